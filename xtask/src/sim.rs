//! `cargo xtask sim`: the cluster in simulated worlds.

use std::process::Command;

use crate::system;
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

/// Seeds that the lane runs, and among which each bug is to be found.
const LANE_SEEDS: &str = "300";
const MUTANT_SEEDS: &str = "2000";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Looks for bugs that are switched on, one after the other, instead of looking for new ones.
    #[arg(long)]
    mutants: bool,
    /// Passed on: `--seeds N`, `--first S`, `--seed S [--log]`, `--json`, `--mutant NAME`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    extra: Vec<String>,
}

/// Builds the simulator and runs it.
///
/// # Errors
/// Those of the build; [`TaskError::Failed`] when a seed has failed.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), TaskError> {
    system::ensure(system::PRODUCT)?;
    let mut command = if arguments.mutants {
        let mut command = build(workspace, true)?;
        command.args(["--mutant", "all", "--seeds", MUTANT_SEEDS]);
        command
    } else {
        // A bug by its name is one of the bugs.
        let wants_bug = arguments.extra.iter().any(|word| word == "--mutant");
        build(workspace, wants_bug)?
    };
    workspace::run(command.args(&arguments.extra))
}

/// The lane: some seeds, then each bug.
///
/// # Errors
/// As for [`run`].
pub(crate) fn check(workspace: &Workspace) -> Result<(), TaskError> {
    let mut seeds = build(workspace, false)?;
    workspace::run(seeds.args(["--seeds", LANE_SEEDS]))?;
    let mut mutants = build(workspace, true)?;
    workspace::run(mutants.args(["--mutant", "all", "--seeds", MUTANT_SEEDS]))
}

/// The built program. With the bugs it is another one, in another folder.
fn build(workspace: &Workspace, with_mutants: bool) -> Result<Command, TaskError> {
    let mut target = workspace.target_dir()?;
    let mut build = workspace.cargo(["build", "--release", "-p", "lunette-sim", "--locked"]);
    if with_mutants {
        target = target.join("mutants");
        build
            .args(["--features", "mutants", "--target-dir"])
            .arg(&target);
    }
    workspace::run(&mut build)?;
    Ok(Command::new(target.join("release/lunette-sim")))
}
