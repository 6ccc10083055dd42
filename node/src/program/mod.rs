//! The program `lunette`.
//!
//! | module | subject |
//! |---|---|
//! | `arguments` | the command line |
//! | `address`, `size` | what `host:port` and `64MiB` mean |
//! | `failure` | what can go wrong, and the exit code it ends with |
//! | `output` | standard output |
//! | `serve` | a node |
//! | `object` | put, get, rm |
//! | `stat` | the table of nodes |
//! | `store` | nodes that are listed, or a cluster that they are members of |
//! | `membership` | coordinators, members, what a cluster is like |
//! | `cluster` | nodes as child processes |
//! | `replay` | traces against a cluster |
//! | `simulate` | traces through a simulated cluster |
//! | `transfer` | memory that peers read and write |
//! | `nvme` | disks over NVMe/TCP |
//! | `doctor` | what this machine offers and lacks |
//! | `topo` | the machine's topology |

mod address;
mod arguments;
mod cluster;
mod doctor;
mod failure;
mod membership;
mod nvme;
mod object;
mod output;
mod replay;
mod serve;
mod simulate;
mod size;
mod stat;
mod store;
mod topo;
mod transfer;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use tracing_subscriber::EnvFilter;

use arguments::{Arguments, Command};

/// Reads the command line, does what it says, and reports how that ended.
pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("LUNETTE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_ansi(io::stderr().is_terminal())
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
    let as_json = arguments.json;
    let done = match arguments.command {
        Command::Serve(arguments) => serve::serve(&arguments, as_json),
        Command::Put(arguments) => object::put(&arguments, as_json),
        Command::Get(arguments) => object::get(&arguments, as_json),
        Command::Rm(arguments) => object::remove(&arguments, as_json),
        Command::Stat(arguments) => stat::stat(&arguments, as_json),
        Command::Replay(arguments) => replay::replay(&arguments, as_json),
        Command::Simulate(arguments) => simulate::simulate(&arguments, as_json),
        Command::Transfer(arguments) => transfer::transfer(arguments, as_json),
        Command::Nvme(arguments) => nvme::nvme(arguments, as_json),
        Command::Cluster(arguments) => membership::membership(&arguments, as_json),
        Command::Doctor(_) => doctor::doctor(as_json),
        Command::Topo(arguments) => topo::topo(&arguments, as_json),
    };
    let Err(failure) = done else {
        return ExitCode::SUCCESS;
    };
    if as_json && !failure.is_reported() {
        let object = json!({ "error": failure.to_string(), "exit_code": failure.exit_code() });
        if let Err(failure) = output::line(&object.to_string()) {
            tracing::debug!(%failure, "nobody reads standard output");
        }
    }
    eprintln!("lunette: {failure}");
    ExitCode::from(failure.exit_code())
}
