//! `cargo xtask bench`: the benchmark rows of this machine.

use std::process::Command;

use crate::system;
use crate::task_error::TaskError;
use crate::workspace::{self, Workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Runs only the rows whose name contains this.
    filter: Option<String>,
    /// Prints the rows as JSON.
    #[arg(long)]
    json: bool,
    /// How often each row is measured.
    #[arg(long)]
    rounds: Option<u32>,
    /// Runs the rows beside other runtimes instead, which are a workspace of their own.
    #[arg(long)]
    rivals: bool,
    /// Counts instructions and system calls of an exchange instead, beside the raw loop's.
    #[arg(long, conflicts_with = "rivals")]
    counts: bool,
}

impl Arguments {
    fn passed_on(&self) -> Vec<String> {
        let mut passed: Vec<String> = self.filter.iter().cloned().collect();
        if self.json {
            passed.push("--json".into());
        }
        if let Some(rounds) = self.rounds {
            passed.extend(["--rounds".into(), rounds.to_string()]);
        }
        if self.counts {
            passed.push("--counts".into());
        }
        passed
    }
}

/// Where the rows beside other runtimes are.
const RIVALS: &str = "bench/rivals/Cargo.toml";

/// Builds the harness, or that of the rivals, and runs it with the same arguments.
///
/// # Errors
/// Those of the build and of the harness.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), TaskError> {
    system::ensure(system::PRODUCT)?;
    if arguments.counts {
        system::ensure(system::COUNTS)?;
    }
    if arguments.rivals {
        // Not locked: its lock file follows the product's dependencies only when it is built.
        let mut command = workspace.cargo(["run", "--release", "--manifest-path", RIVALS]);
        command.arg("--").args(arguments.passed_on());
        return workspace::run(&mut command);
    }
    workspace::run(&mut workspace.cargo([
        "build",
        "--release",
        "-p",
        "lunette-bench",
        "--locked",
    ]))?;
    let program = workspace.target_dir()?.join("release/lunette-bench");
    let mut command = Command::new(program);
    command
        .current_dir(workspace.root())
        .args(arguments.passed_on());
    workspace::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_the_harness_unchanged() {
        let none = Arguments {
            filter: None,
            json: false,
            rounds: None,
            rivals: false,
            counts: false,
        };
        assert!(none.passed_on().is_empty());
        let all = Arguments {
            filter: Some("tcp".into()),
            json: true,
            rounds: Some(5),
            rivals: true,
            counts: true,
        };
        let words = ["tcp", "--json", "--rounds", "5", "--counts"];
        assert_eq!(all.passed_on(), words);
    }
}
