//! The program as a later version would be: it speaks one version of the store's formats more, and runs
//! in tests beside the program of now.

use std::fs;
use std::path::PathBuf;

use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// Names the built program, for tests.
pub(crate) const SETTING: &str = "LUNETTE_NEXT_VERSION";

/// What is built for it alone, since it is above what has the feature: a few tests call it, and not for long.
const BUILT_FOR_IT: [&str; 7] = [
    "lunette-cluster-proto",
    "lunette-cluster",
    "lunette-kvstore-proto",
    "lunette-kvstore",
    "lunette-p2p-proto",
    "lunette-p2p",
    "lunette",
];

/// A small one.
const A_TEST: &str = "loading";

/// Builds it, in the profile of the tests, which share most of what is built.
///
/// # Errors
/// Those of the build; [`TaskError::Read`] if what was built cannot be kept.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf, TaskError> {
    // All packages, and a test among what is built: cargo then unites features as it does for the tests, and
    // builds nothing anew but what has this one.
    let words = ["build", "--workspace", "--locked", "--bin", "lunette"];
    let mut build = workspace.cargo(words);
    build.args(["--test", A_TEST, "--features", "lunette/next-version"]);
    for package in BUILT_FOR_IT {
        let plainly = format!("profile.dev.package.{package}.opt-level=0");
        build.args(["--config", &plainly]);
    }
    workspace::run(&mut build)?;
    let built = workspace.target_dir()?.join("debug/lunette");
    // The next build without the feature has the same name.
    let kept = built.with_file_name("lunette-next-version");
    fs::copy(&built, &kept).map_err(|source| TaskError::Read {
        path: built,
        source,
    })?;
    Ok(kept)
}
