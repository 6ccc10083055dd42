//! Test binaries of the workspace, by themselves: for those who run them elsewhere, or otherwise.
//!
//! All are built as the lane `test` builds them, whatever is wanted. Cargo unites the features that the
//! packages of one build ask for, so a build of a few packages makes most of their dependencies anew, and that
//! takes longer than any of the tests.

use std::path::{Path, PathBuf};

use cargo_metadata::{Message, TargetKind};

use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// A test binary, and the folder it expects to run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The folder of its package.
    pub(crate) folder: PathBuf,
    /// As cargo names what it is of: a test's file, or the library or program itself.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
}

impl Binary {
    /// Whether it is of the package in this folder, below the root.
    pub(crate) fn is_in(&self, root: &Path, package: &str) -> bool {
        self.folder == root.join(package)
    }
}

/// Builds the test binaries of all packages, and these tests, which cargo builds for those alone who ask for
/// them and for nothing else.
///
/// # Errors
/// Those of the build; [`TaskError::Failed`] for a test that no package has.
pub(crate) fn build(workspace: &Workspace, on_request: &[&str]) -> Result<Vec<Binary>, TaskError> {
    let mut binaries = targets(workspace, &["--lib", "--bins", "--tests"])?;
    if on_request.is_empty() {
        return Ok(binaries);
    }
    let named: Vec<&str> = on_request
        .iter()
        .flat_map(|name| ["--test", name])
        .collect();
    binaries.extend(targets(workspace, &named)?);
    for wanted in on_request {
        if !binaries.iter().any(|binary| binary.name == *wanted) {
            return Err(TaskError::Failed {
                command: format!("building the test `{wanted}`"),
                status: "it is not among what cargo has built".to_owned(),
            });
        }
    }
    Ok(binaries)
}

fn targets(workspace: &Workspace, which: &[&str]) -> Result<Vec<Binary>, TaskError> {
    let mut command = workspace.cargo(["test", "--workspace", "--locked", "--no-run"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    command.args(which);
    let output = workspace::output(&mut command)?;
    let mut binaries = Vec::new();
    for message in Message::parse_stream(output.as_slice()) {
        let Ok(Message::CompilerArtifact(artifact)) = message else {
            continue;
        };
        let is_test = artifact.profile.test && !artifact.target.kind.contains(&TargetKind::Bench);
        let (Some(executable), true) = (artifact.executable, is_test) else {
            continue;
        };
        let folder = artifact.manifest_path.parent().map(PathBuf::from);
        binaries.push(Binary {
            folder: folder.unwrap_or_default(),
            name: artifact.target.name,
            executable: executable.into_std_path_buf(),
        });
    }
    Ok(binaries)
}
