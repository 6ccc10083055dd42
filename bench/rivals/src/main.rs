//! The runtime of Lunette beside other runtimes.
//!
//! Each row measures ours and one rival in interleaved pairs on the same pinned cores, by the rules
//! of `lunette-bench`. Every run of a side is a process of its own, so that no runtime inherits
//! threads, rings or heaps of another one. Where a row needs a client, it is the same for all: it
//! spins on plain sockets, so only the serving side differs.
//!
//! It leaves out stores and engines: this is about the loop. It is a workspace of its own, because
//! its dependencies must never reach the product.
//!
//! | module | subject |
//! |---|---|
//! | `rows` | the rows: what is measured, beside whom, what it must come to |
//! | `role` | what a child process does, and starting one |
//! | `runtimes` | the same few programs on each runtime |
//! | `client` | the asking side, on plain sockets |
//! | `batches` | times of many small things, in batches |
#![deny(unsafe_code)]

mod batches;
mod client;
mod role;
mod rows;
mod runtimes;

use std::process::ExitCode;

use clap::Parser;
use lunette_bench::harness::{self, Plan};
use lunette_bench::report;

use crate::role::Role;

/// The runtime of Lunette beside other runtimes, in interleaved pairs.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Run the rows whose names contain this, like `yield`, `glommio` or `echo_1m:tokio`.
    filter: Option<String>,
    /// Print one JSON object with all rows instead of a table.
    #[arg(long)]
    json: bool,
    /// Pairs of runs per row; verdicts need at least 9.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// List the rows and end.
    #[arg(long)]
    list: bool,
    /// CPU of the serving side, and of tasks.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the asking side.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
    /// Be one side of a row (used by this program on itself).
    #[command(flatten)]
    role: Option<Role>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let plan = Plan {
        pairs: args.rounds,
        server_cpu: args.server_cpu,
        client_cpu: args.client_cpu,
    };
    if let Some(role) = args.role {
        return role.play(&plan);
    }
    let rows = rows::matching(args.filter.as_deref().unwrap_or(""));
    if rows.is_empty() {
        eprintln!("no row matches; try --list");
        return ExitCode::FAILURE;
    }
    if args.list {
        for row in &rows {
            println!("{}", row.name());
        }
        return ExitCode::SUCCESS;
    }
    let mut outcomes = Vec::new();
    for row in rows {
        eprintln!("{} ...", row.name());
        outcomes.push(harness::run(&row.subject(), row.open(&plan), &plan));
    }
    if args.json {
        println!("{}", report::json(&outcomes));
    } else {
        print!("{}", report::table(&outcomes));
    }
    ExitCode::SUCCESS
}
