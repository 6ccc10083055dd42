//! `cargo xtask sim`: the cluster in simulated worlds.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::beside::each;
use crate::system;
use crate::task_error::TaskError;
use crate::vm;
use crate::workspace::{self, Workspace};

/// Seeds that the lane runs, and among which each bug is to be found.
const LANE_SEEDS: &str = "300";
/// These last longer, and have more processes.
const LANE_SEEDS_OF_MEMBERS: &str = "60";
const LANE_SEEDS_OF_ADAPTERS: &str = "8";
const MUTANT_SEEDS: &str = "2000";
/// Bugs that worlds of members find within seconds; the others take minutes, and `--mutants`.
const QUICK_MUTANTS: [&str; 8] = [
    "claim-unchecked",
    "retract-unrecorded",
    "barrier-skipped",
    "hold-ignored",
    "hard-pin-ignored",
    "generation-ignored",
    "repair-forgotten",
    "replica-doubled",
];
/// Bugs of machines that are under test without a cluster around them.
const MACHINE_MUTANTS: [&str; 10] = [
    "test",
    "--profile",
    "sim",
    "--locked",
    "-p=lunette-kvstore-proto",
    "-p=lunette-kvstore-log",
    "--features=lunette-kvstore-proto/mutants,lunette-kvstore-log/mutants",
    "--test=home_mutants",
    "--test=log_mutants",
    "--no-fail-fast",
];
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
    /// Passed on: `--scenario nodes|members|adapters`, `--seeds N`, `--first S`, `--seed S [--log]`, `--json`, `--mutant NAME`; or `replay`.
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

/// The lane: some seeds and each bug, all by the program in which bugs can be switched on. With none on it does
/// what the other does, and it is built once: that takes longer than the seeds. Each run uses one processor, so that
/// several go at a time.
///
/// # Errors
/// As for [`run`].
pub(crate) fn check(workspace: &Workspace) -> Result<(), TaskError> {
    let program = build(workspace, true)?;
    let run = |scenario: &str, words: &[&str]| {
        let mut run = Command::new(program.get_program());
        run.args(["--scenario", scenario]).args(words);
        run
    };
    let seeds = [
        ("members", LANE_SEEDS_OF_MEMBERS),
        ("nodes", LANE_SEEDS),
        ("adapters", LANE_SEEDS_OF_ADAPTERS),
    ];
    let seeds = seeds.map(|(scenario, seeds)| run(scenario, &["--seeds", seeds]));
    let all = [("nodes", "all")].into_iter();
    let bugs = all.chain(QUICK_MUTANTS.map(|name| ("members", name)));
    let bugs = bugs
        .map(|(scenario, mutant)| run(scenario, &["--mutant", mutant, "--seeds", MUTANT_SEEDS]));
    each(seeds.into_iter().chain(bugs).collect())?;
    workspace::run(&mut workspace.cargo(MACHINE_MUTANTS))
}

/// Runs the same seeds on two machines, and compares the hashes of all that happened.
///
/// # Errors
/// Those of the build and of the machine; [`TaskError::Failed`] when the hashes differ.
pub(crate) fn agree(workspace: &Workspace) -> Result<(), TaskError> {
    let mut seeds = build(workspace, true)?;
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

/// The built program. With the bugs it is another one.
fn build(workspace: &Workspace, with_mutants: bool) -> Result<Command, TaskError> {
    let words = ["build", "--profile", "sim", "-p", "lunette-sim", "--locked"];
    let mut build = workspace.cargo(words);
    if with_mutants {
        build.args(["--features", "mutants"]);
    }
    workspace::run(&mut build)?;
    let built = workspace.target_dir()?.join("sim/lunette-sim");
    if !with_mutants {
        return Ok(Command::new(built));
    }
    // The next build without the bugs has the same name.
    let kept = built.with_file_name("lunette-sim-mutants");
    fs::copy(&built, &kept).map_err(|source| TaskError::Read {
        path: built,
        source,
    })?;
    Ok(Command::new(kept))
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
