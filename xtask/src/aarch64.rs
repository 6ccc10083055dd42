//! The lane `aarch64`: what is embedded elsewhere compiles for processors of the other kind.
//!
//! It leaves out the program, which links against the host's hwloc.

use crate::system;
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The wheel with everything below it, and the devices that it has not.
const PACKAGES: [&str; 5] = [
    "lunette-python",
    "lunette-conductor",
    "lunette-gpu",
    "lunette-nvmeof",
    "lunette-verbs",
];

/// Sees to it that the standard library and a C compiler for the target are there; says what cannot be had.
pub(crate) fn absent() -> Option<&'static str> {
    if !workspace::succeeds("rustup", &["target", "add", TARGET]) {
        return Some("rustup brings no standard library for aarch64");
    }
    system::offer(system::CROSS);
    let compiles = workspace::succeeds("aarch64-linux-gnu-gcc", &["--version"]);
    (!compiles).then_some("there is no C compiler for aarch64")
}

/// # Errors
/// [`TaskError::Failed`]: something does not compile, or warns.
pub(crate) fn check(workspace: &Workspace) -> Result<(), TaskError> {
    let mut command = workspace.cargo(["check", "--locked", "--target", TARGET]);
    command.env("RUSTFLAGS", "-D warnings");
    for package in PACKAGES {
        command.args(["-p", package]);
    }
    workspace::run(&mut command)
}
