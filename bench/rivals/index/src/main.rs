//! The prefix index of the conductor beside those of `dynamo-kv-router`, on one workload.
//!
//! A decision finds how much of a prompt each instance holds and chooses the instance that has
//! least to do. Between decisions come the events that serving causes: blocks stored, blocks
//! removed. Each side of each row runs in a process of its own, sides in turn, and what counts is
//! the median over the rounds.
//!
//! Throughput is in decisions for each second of processor time of the whole process, so that a
//! rival that applies events on a second thread is not given a second core for nothing.
//!
//! | module | subject |
//! |---|---|
//! | `workload` | prompts, and the events that serving them causes, from a seed |
//! | `sides` | the indexes, each behind the same few calls |
//! | `measure` | one side of one row: fill, decide, count |
#![forbid(unsafe_code)]

mod measure;
mod sides;
mod workload;

use std::process::{Command, ExitCode};

use clap::Parser;
use serde_json::Value;

use crate::measure::Figures;
use crate::sides::Side;
use crate::workload::Size;

/// The conductor's prefix index beside those of dynamo-kv-router.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Instances, of one row only.
    #[arg(long, requires = "blocks")]
    instances: Option<u16>,
    /// Blocks held, over all instances, of one row only.
    #[arg(long, requires = "instances")]
    blocks: Option<u32>,
    /// Run this side only.
    #[arg(long)]
    side: Option<Side>,
    /// Decisions that are measured.
    #[arg(long, default_value_t = 40_000)]
    decisions: u32,
    /// Tokens of a block: smaller blocks make longer chains of a prompt.
    #[arg(long, default_value_t = 512)]
    block_tokens: u32,
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure in this process and print one JSON object (used by this program on itself).
    #[arg(long, requires_all = ["instances", "blocks", "side"])]
    child: bool,
}

const INSTANCES: [u16; 3] = [16, 64, 1024];
const BLOCKS: [u32; 3] = [200_000, 1_500_000, 12_000_000];

fn main() -> ExitCode {
    let args = Args::parse();
    let sizes: Vec<Size> = match (args.instances, args.blocks) {
        (Some(instances), Some(blocks)) => vec![size(&args, instances, blocks)],
        _ => INSTANCES
            .into_iter()
            .flat_map(|instances| BLOCKS.map(|blocks| size(&args, instances, blocks)))
            .collect(),
    };
    if let (true, Some(side)) = (args.child, args.side) {
        println!("{}", measure::run(side, &sizes[0], args.decisions).json());
        return ExitCode::SUCCESS;
    }
    let sides = args.side.map_or(Side::ALL.to_vec(), |side| vec![side]);
    println!(
        "{:>9} {:>10}  {:<22} {:>12} {:>12} {:>9} {:>9} {:>9} {:>12}",
        "instances",
        "blocks",
        "index",
        "decisions/s",
        "of it finds",
        "p50 us",
        "p99 us",
        "B/block",
        "events/s"
    );
    for size in &sizes {
        let Some(rows) = row(&args, size, &sides) else {
            return ExitCode::FAILURE;
        };
        for (side, figures) in rows {
            println!(
                "{:>9} {:>10}  {:<22} {:>12.0} {:>12.0} {:>9.2} {:>9.2} {:>9.1} {:>12.0}",
                size.instances,
                size.blocks,
                side.name(),
                figures.decisions_per_s,
                figures.finds_per_s,
                figures.p50_us,
                figures.p99_us,
                figures.bytes_per_block,
                figures.blocks_per_s
            );
        }
    }
    ExitCode::SUCCESS
}

const fn size(args: &Args, instances: u16, blocks: u32) -> Size {
    Size {
        instances,
        blocks,
        block_tokens: args.block_tokens,
    }
}

/// The sides in turn, as often as asked for, and of each the median of every figure.
fn row(args: &Args, size: &Size, sides: &[Side]) -> Option<Vec<(Side, Figures)>> {
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); sides.len()];
    for round in 0..args.rounds {
        for at in 0..sides.len() {
            // Each round begins with another side.
            let at = (at + round) % sides.len();
            let figures = child(args, size, sides[at]);
            if figures.is_none() {
                eprintln!("{} did not run", sides[at].name());
            }
            runs[at].push(figures?);
        }
    }
    let medians = sides
        .iter()
        .zip(runs)
        .map(|(side, runs)| (*side, Figures::median(&runs)));
    Some(medians.collect())
}

fn child(args: &Args, size: &Size, side: Side) -> Option<Figures> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program)
        .arg("--child")
        .args(["--instances", &size.instances.to_string()])
        .args(["--blocks", &size.blocks.to_string()])
        .args(["--block-tokens", &size.block_tokens.to_string()])
        .args(["--decisions", &args.decisions.to_string()])
        .args(["--side", side.name()])
        .output()
        .ok()?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let value: Value = serde_json::from_slice(&output.stdout).ok()?;
    Figures::from_json(&value)
}
