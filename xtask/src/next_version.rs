//! The program as a later version would be: it speaks one version of the store's formats more, and runs
//! in tests beside the program of now.

use std::fs;
use std::path::PathBuf;

use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// Names the built program, for tests.
pub(crate) const SETTING: &str = "LUNETTE_NEXT_VERSION";

/// Builds it, in the profile of the tests, which share most of what is built.
///
/// # Errors
/// Those of the build; [`TaskError::Read`] if what was built cannot be kept.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf, TaskError> {
    let words = ["build", "-p", "lunette", "--bin", "lunette", "--locked"];
    let mut build = workspace.cargo(words);
    workspace::run(build.args(["--features", "next-version"]))?;
    let built = workspace.target_dir()?.join("debug/lunette");
    // The next build without the feature has the same name.
    let kept = built.with_file_name("lunette-next-version");
    fs::copy(&built, &kept).map_err(|source| TaskError::Read {
        path: built,
        source,
    })?;
    Ok(kept)
}
