//! Benchmark rows of Lunette, each beside a peer or a physical limit.
//!
//! The rules of measuring and judging are this package's library. The serving side of a row is a
//! process of its own on one core, the asking side this process on another.
//!
//! It leaves out rivals that need packages of their own: those live outside the workspace.
//!
//! | module | subject |
//! |---|---|
//! | `counts` | instructions and system calls of an exchange, which no clock disturbs |
//! | `peer` | the serving side as a process |
//! | `raw` | the hand-written io_uring loop that rows are compared with |
//! | `rows` | the rows themselves |

mod counts;
mod peer;
mod raw;
mod rows;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use lunette_bench::harness::{self, Plan};
use lunette_bench::report;

use crate::peer::Serve;
use crate::rows::Row;

/// Core-pinned benchmark rows, each beside a peer or a physical limit.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Run the rows whose names contain this.
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
    /// Measure our side only, for scripts that measure another beside it: the middle of the runs of each row,
    /// an object on a line.
    #[arg(long)]
    ours: bool,
    /// Count instructions (callgrind) and system calls (strace) of an exchange instead.
    #[arg(long)]
    counts: bool,
    /// CPU of the serving side.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the asking side.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
    /// Be the serving side of a row (used by this program on itself).
    #[arg(long, value_enum, hide = true)]
    serve: Option<Serve>,
    /// How long a serving side polls before it sleeps, in microseconds.
    #[arg(long, default_value_t = 0, hide = true)]
    spin_us: u64,
    /// The serving side of a ping ends with its first connection.
    #[arg(long, hide = true)]
    once: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(serve) = args.serve {
        let spin = Duration::from_micros(args.spin_us);
        return peer::serve(serve, args.server_cpu, spin, args.once);
    }
    if args.counts {
        return match counts::run() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("counting: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let rows = rows::matching(args.filter.as_deref().unwrap_or(""));
    if rows.is_empty() {
        eprintln!("no row matches; try --list");
        return ExitCode::FAILURE;
    }
    if args.list {
        for row in &rows {
            println!("{}", row.name);
        }
        return ExitCode::SUCCESS;
    }
    let plan = Plan {
        pairs: args.rounds,
        server_cpu: args.server_cpu,
        client_cpu: args.client_cpu,
    };
    if args.ours {
        return ours(&rows, &plan);
    }
    let mut outcomes = Vec::new();
    for row in rows {
        eprintln!("{} ...", row.name);
        outcomes.push(harness::run(&row.subject(), row.open(&plan), &plan));
    }
    if args.json {
        println!("{}", report::json(&outcomes));
    } else {
        print!("{}", report::table(&outcomes));
    }
    ExitCode::SUCCESS
}

/// Measures our side of these rows.
fn ours(rows: &[Row], plan: &Plan) -> ExitCode {
    for row in rows {
        let subject = row.subject();
        match row.open(plan).and_then(|sides| harness::ours(sides, plan)) {
            Ok(value) => println!("{}", report::ours(&subject, value)),
            Err(error) => {
                eprintln!("{}: {error}", subject.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
