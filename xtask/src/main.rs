//! The one door to checks, demo, benchmarks and fuzzing: `cargo xtask <command>`.
//!
//! It needs a Rust toolchain and nothing else; what the product needs from the system (hwloc,
//! udev) is looked for and, where it may, installed before the first build that wants it.
//! It leaves out everything that a lane's own tool already does: it starts `cargo`, reads what
//! came out and says what to do about it.
//!
//! | module | subject |
//! |---|---|
//! | [`lanes`] | `test`: the lanes in order, their table, their exit code |
//! | [`tally`] | what `cargo test` printed: passed, failed, skipped and why |
//! | [`tidy`] | `tidy`: the house rules that no compiler checks |
//! | [`demo`], [`mod@bench`], [`sim`], [`fuzz`] | build and run one program each |
//! | [`next_version`] | the program as a later version would be, for tests of clusters of two versions |
//! | [`aarch64`] | what is embedded elsewhere, compiled for the other kind of processor |
//! | [`wheel`] | the wheel as it is given away |
//! | [`vm`] | a command in a throw-away machine with RDMA and NVMe devices |
//! | [`binaries`] | test binaries by themselves, for the lanes that run them otherwise |
//! | [`system`] | Debian packages: probe, install or name them |
//! | [`workspace`] | the root folder, the cargo binary, children with their output streamed |
#![forbid(unsafe_code)]

mod aarch64;
mod bench;
mod beside;
mod binaries;
mod demo;
mod deny_uring;
mod fuzz;
mod lanes;
mod libtest;
mod next_version;
mod outcome;
mod python;
mod sim;
mod system;
mod tally;
mod task_error;
mod tidy;
mod vm;
mod wheel;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::task_error::TaskError;
use crate::workspace::Workspace;

/// Checks, demo, benchmarks and fuzzing of this workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the lanes that a change must pass; all of them, unless some are named.
    Test(lanes::Arguments),
    /// Checks the house rules: floors, purity, sizes, stubs, unsafe, prose, crate roots.
    Tidy,
    /// Replays a trace against two nodes of this machine.
    Demo(demo::Arguments),
    /// Measures: builds and runs the benchmark rows.
    Bench(bench::Arguments),
    /// Runs a cluster in simulated worlds, one per seed.
    Sim(sim::Arguments),
    /// Attacks the protocol machines with libFuzzer.
    Fuzz(fuzz::Arguments),
    /// Runs a command in a throw-away machine that has RDMA and NVMe devices.
    Vm(vm::Arguments),
    /// Builds the wheel that runs on every Linux of manylinux_2_28.
    Wheel(wheel::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match dispatch(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<(), TaskError> {
    let workspace = Workspace::find();
    match command {
        Command::Test(arguments) => lanes::run(&workspace, &arguments),
        Command::Tidy => tidy::run(&workspace),
        Command::Demo(arguments) => demo::run(&workspace, &arguments),
        Command::Bench(arguments) => bench::run(&workspace, &arguments),
        Command::Sim(arguments) => sim::run(&workspace, &arguments),
        Command::Fuzz(arguments) => fuzz::run(&workspace, &arguments),
        Command::Vm(arguments) => vm::run(&workspace, &arguments),
        Command::Wheel(arguments) => wheel::run(&workspace, &arguments),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn extra_arguments_of_the_demo_pass_through() {
        let given = ["xtask", "demo", "--", "--trace", "file.jsonl", "--json"];
        let Command::Demo(demo) = Arguments::try_parse_from(given).unwrap().command else {
            panic!("another command was parsed");
        };
        assert_eq!(demo.extra, ["--trace", "file.jsonl", "--json"]);
    }
}
