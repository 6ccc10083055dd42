//! The program `lunette`.
//!
//! | module | subject |
//! |---|---|
//! | `arguments` | the command line |
//! | `address`, `size` | what `host:port` and `64MiB` mean |
//! | `failure` | what can go wrong, and the exit code it ends with |
//! | `output` | standard output |
//! | `serve` | a node |
//! | `object` | put, get, rm, ls |
//! | `stat` | the table of nodes |
//! | `top` | nodes as they work, second by second |
//! | `observe` | metrics and health of a node, over HTTP |
//! | `logs` | what is logged, and how |
//! | `store` | nodes that are listed, or a cluster that they are members of |
//! | `membership` | coordinators, members, what a cluster is like |
//! | `coordination` | where coordinators are, as commands are told |
//! | `cluster` | nodes as child processes |
//! | `replay` | traces against a cluster |
//! | `simulate` | traces through a simulated cluster |
//! | `cache_sim` | traces through caches |
//! | `transfer` | memory that peers read and write |
//! | `p2p` | objects that receivers pass on to each other |
//! | `nvme` | disks over NVMe/TCP |
//! | `doctor` | what this machine offers and lacks |
//! | `topo` | the machine's topology |

mod address;
mod arguments;
mod cache_sim;
mod cluster;
mod coordination;
mod doctor;
mod failure;
mod logs;
mod membership;
mod nvme;
mod object;
mod observe;
mod output;
mod p2p;
mod replay;
mod serve;
mod simulate;
mod size;
mod stat;
mod store;
mod top;
mod topo;
mod transfer;

use std::process::ExitCode;

use clap::Parser;
use serde_json::json;

use arguments::{Arguments, Command};

/// Reads the command line, does what it says, and reports how that ended.
pub(crate) fn run() -> ExitCode {
    let arguments = Arguments::parse();
    logs::begin(arguments.command.log());
    let as_json = arguments.json;
    let done = match arguments.command {
        Command::Serve(arguments) => serve::serve(&arguments, as_json),
        Command::Put(arguments) => object::put(&arguments, as_json),
        Command::Get(arguments) => object::get(&arguments, as_json),
        Command::Rm(arguments) => object::remove(&arguments, as_json),
        Command::Ls(arguments) => object::list(&arguments, as_json),
        Command::Stat(arguments) => stat::stat(&arguments, as_json),
        Command::Top(arguments) => top::top(&arguments, as_json),
        Command::Replay(arguments) => replay::replay(&arguments, as_json),
        Command::Simulate(arguments) => simulate::simulate(&arguments, as_json),
        Command::CacheSim(arguments) => cache_sim::cache_sim(&arguments, as_json),
        Command::Transfer(arguments) => transfer::transfer(arguments, as_json),
        Command::P2p(arguments) => p2p::p2p(arguments, as_json),
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
