//! `cargo xtask demo`: the product at work on this machine.

use std::process::Command;

use crate::system;
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Passed on to `lunette replay`, for example `--trace FILE` or `--json`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) extra: Vec<String>,
}

/// Builds the program and replays a trace against two nodes, which it starts itself.
///
/// # Errors
/// Those of the build and of the program.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), TaskError> {
    system::ensure(system::PRODUCT)?;
    workspace::run(&mut workspace.cargo(["build", "--release", "-p", "lunette", "--locked"]))?;
    let program = workspace.target_dir()?.join("release/lunette");
    // It starts in the caller's folder: paths among the extra arguments are relative to that.
    let mut command = Command::new(program);
    command
        .args(["replay", "--nodes", "2"])
        .args(&arguments.extra);
    workspace::run(&mut command)
}
