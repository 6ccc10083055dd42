//! `cargo xtask sim`: the cluster in simulated worlds.

use std::process::Command;
use std::time::Duration;

use crate::system;
use crate::task_error::TaskError;
use crate::vm;
use crate::workspace::{self, Workspace};

/// Seeds that the lane runs, and among which each bug is to be found.
const LANE_SEEDS: &str = "300";
const MUTANT_SEEDS: &str = "2000";
/// Seeds that run on two machines: one of them is emulated, and slow.
const MACHINE_SEEDS: &str = "30";
/// Limit of them there.
const MACHINE_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Looks for bugs that are switched on, one after the other, instead of looking for new ones.
    #[arg(long)]
    mutants: bool,
    /// Runs a few seeds here and in a machine with another kernel and CPU: the worlds are the same.
    #[arg(long, conflicts_with = "mutants")]
    machine: bool,
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
    if arguments.machine {
        return agree(workspace);
    }
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

/// Runs the same seeds on two machines, and compares the hashes of all that happened.
///
/// # Errors
/// Those of the build and of the machine; [`TaskError::Failed`] when the hashes differ.
pub(crate) fn agree(workspace: &Workspace) -> Result<(), TaskError> {
    let mut seeds = build(workspace, false)?;
    seeds.args(["--seeds", MACHINE_SEEDS, "--json"]);
    let program = seeds.get_program().to_string_lossy().into_owned();
    let script = format!("exec {program} --seeds {MACHINE_SEEDS} --json");
    let mut here = String::new();
    workspace::run_lines(&mut seeds, |line| {
        here.push_str(line);
        false
    })?;
    let there = vm::lines_of(workspace, script, MACHINE_MAX)?.concat();
    let (here, there) = (hash_of(&here), hash_of(&there));
    println!("{MACHINE_SEEDS} seeds: {here:?} here, {there:?} in the machine");
    if here.is_some() && here == there {
        return Ok(());
    }
    Err(TaskError::Failed {
        command: "sim --machine".to_owned(),
        status: "a seed shows other worlds on two machines".to_owned(),
    })
}

/// The trace hash that a run has printed.
fn hash_of(json: &str) -> Option<&str> {
    let (_, rest) = json.split_once("\"trace_hash\":\"")?;
    rest.split_once('"').map(|(hash, _)| hash)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_found_in_what_a_run_prints() {
        let json = r#"{"seeds":3,"trace_hash":"00ff","x":"y"}"#;
        assert_eq!(hash_of(json), Some("00ff"));
        assert_eq!(hash_of(r#"{"seeds":3}"#), None);
    }
}
