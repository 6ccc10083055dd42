//! `lunette cache-sim`: what caches of several sizes make of a trace, under several policies.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lunette::trace::Request;
use lunette::trace::generator::{Generator, REQUESTS_DEFAULT};
use lunette_kvstore_policy::Learned;
use lunette_kvstore_policy::baseline::{Lru, S3Fifo, Sieve};
use lunette_kvstore_policy::optimum::optimum;
use lunette_kvstore_policy::replay::{Shards, Tally, Trace, replay};
use lunette_kvstore_policy::tiers::{ADMISSION_DEFAULT, Admission, replay_tiers};
use serde_json::{Value, json};

use super::failure::Failure;
use super::output;
use super::replay::read_trace;

/// Most capacities of a run.
const CAPACITIES_MAX: usize = 64;

/// Replay a trace against caches of blocks, and compare eviction policies with the optimum.
///
/// A block is a hit if it is in the cache when its request comes. Then all blocks of the request are
/// used, from the last to the first, and those that were missed come in. `optimum` knows the future
/// (Belady 1966): no policy hits more. `closed` is the part of the way from LRU to it that the default
/// policy, `learned`, goes.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette cache-sim --trace conversation_trace.jsonl
  lunette cache-sim --trace conversation_trace.jsonl --capacity-blocks 1000,3000,10000 --json
  lunette cache-sim --trace conversation_trace.jsonl --policy learned --shards 10
  lunette cache-sim --trace conversation_trace.jsonl --capacity-blocks 3000 --drive-blocks 30000")]
pub(crate) struct CacheSimArguments {
    /// A trace file in Mooncake's format. Default: a generated workload like its conversation trace.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Most requests to replay. Default: all of the trace; of the generated workload, 12031.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Seed of the generated workload.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Capacities, in blocks.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1000,2000,3000,5000,7000,10000,20000,30000,50000,100000",
        value_parser = clap::value_parser!(u64).range(1..=1 << 32)
    )]
    capacity_blocks: Vec<u64>,
    /// Policies to compare, beside the optimum. Default: all.
    #[arg(long, value_name = "POLICY,...", value_enum, value_delimiter = ',')]
    policy: Vec<PolicyChoice>,
    /// Split each capacity into so many caches, each with its share of the keys and a policy of its own.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    shards: u16,
    /// Put a drive of so many blocks behind each capacity, which is memory then: prints what both hit
    /// together under the default policy, and how many blocks are written to the drive per missed block.
    #[arg(long, value_name = "N", conflicts_with_all = ["policy", "shards"],
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    drive_blocks: Option<u64>,
}

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyChoice {
    /// The store's default: what is least likely to come back, as learnt.
    Learned,
    /// Least recently used.
    Lru,
    /// A small queue for what is new, a main one for what was used again.
    S3Fifo,
    /// A queue by arrival, and a hand that spares what was used.
    Sieve,
}

impl PolicyChoice {
    const fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
            Self::Sieve => "sieve",
        }
    }

    fn replay(self, trace: &Trace, shards: usize, blocks_max: usize) -> Tally {
        match self {
            Self::Learned => in_shards(trace, Shards::new(shards, blocks_max, Learned::new)),
            Self::Lru => in_shards(trace, Shards::new(shards, blocks_max, |_| Lru::default())),
            Self::S3Fifo => in_shards(trace, Shards::new(shards, blocks_max, S3Fifo::new)),
            Self::Sieve => in_shards(trace, Shards::new(shards, blocks_max, |_| Sieve::default())),
        }
    }
}

fn in_shards<P: lunette_kvstore_policy::Policy>(trace: &Trace, mut shards: Shards<P>) -> Tally {
    for request in trace.requests() {
        shards.serve(request);
    }
    shards.tally()
}

/// Replays, and prints.
pub(super) fn cache_sim(arguments: &CacheSimArguments, as_json: bool) -> Result<(), Failure> {
    if arguments.capacity_blocks.len() > CAPACITIES_MAX {
        return Err(Failure::Usage("at most 64 capacities"));
    }
    let requests = match &arguments.trace {
        Some(path) => read_trace(path, arguments.requests.unwrap_or(u64::MAX))?,
        None => {
            let requests = arguments.requests.unwrap_or(REQUESTS_DEFAULT);
            let requests = usize::try_from(requests).unwrap_or(usize::MAX);
            Generator::new(arguments.seed).take(requests).collect()
        }
    };
    let trace = blocks_of(&requests);
    if trace.is_empty() {
        return Err(Failure::Usage("the trace holds no request"));
    }
    let capacities = arguments.capacity_blocks.iter();
    let capacities = capacities.map(|&blocks| usize::try_from(blocks).expect("at most 2^32"));
    let rows: Vec<Value> = match arguments.drive_blocks {
        Some(drive) => {
            let drive = usize::try_from(drive).expect("at most 2^32");
            capacities
                .map(|memory| tiers_row(&trace, memory, drive))
                .collect()
        }
        None => capacities
            .map(|blocks| row(arguments, &trace, blocks))
            .collect(),
    };
    print(&trace, &requests, &rows, as_json)
}

fn blocks_of(requests: &[Request]) -> Trace {
    let mut trace = Trace::default();
    for request in requests {
        trace.push(request.hash_ids.iter().copied());
    }
    trace
}

/// Hit ratios of all policies at a capacity.
fn row(arguments: &CacheSimArguments, trace: &Trace, blocks_max: usize) -> Value {
    let policies = match arguments.policy.as_slice() {
        [] => PolicyChoice::value_variants(),
        chosen => chosen,
    };
    let best = optimum(trace, blocks_max).ratio();
    let mut row = json!({ "capacity_blocks": blocks_max, "optimum": best });
    for &policy in policies {
        let ratio = policy
            .replay(trace, arguments.shards.into(), blocks_max)
            .ratio();
        row[policy.name()] = ratio.into();
        if policy == PolicyChoice::Learned {
            let least = replay(trace, blocks_max, Lru::default()).ratio();
            let is_gap = best > least;
            row["closed"] = is_gap.then(|| (ratio - least) / (best - least)).into();
        }
    }
    row
}

/// What memory and a drive hit together, beside one cache.
fn tiers_row(trace: &Trace, memory_blocks: usize, drive_blocks: usize) -> Value {
    // One cache of both sizes, less a third of memory, which holds blocks that are on the drive as well.
    let one_blocks = drive_blocks + memory_blocks / 3;
    let one = replay(trace, one_blocks, Learned::new(one_blocks));
    let all = replay_tiers(trace, memory_blocks, drive_blocks, Admission::All);
    let chosen = replay_tiers(trace, memory_blocks, drive_blocks, ADMISSION_DEFAULT);
    json!({
        "memory_blocks": memory_blocks,
        "drive_blocks": drive_blocks,
        "one_cache_blocks": one_blocks,
        "one_cache": one.ratio(),
        "both": chosen.either.ratio(),
        "writes_per_miss": chosen.writes_per_miss(),
        "both_if_all_is_written": all.either.ratio(),
        "writes_per_miss_if_all_is_written": all.writes_per_miss(),
    })
}

fn print(
    trace: &Trace,
    requests: &[Request],
    rows: &[Value],
    as_json: bool,
) -> Result<(), Failure> {
    let blocks: usize = requests.iter().map(|request| request.hash_ids.len()).sum();
    let distinct = trace.distinct_blocks();
    if as_json {
        let object = json!({
            "requests": trace.len(), "blocks": blocks, "distinct_blocks": distinct, "rows": rows,
        });
        return output::line(&object.to_string());
    }
    let count = trace.len();
    output::line(&format!(
        "{count} requests, {blocks} blocks, {distinct} of them distinct"
    ))?;
    let Some(first) = rows.first().and_then(Value::as_object) else {
        return Ok(());
    };
    let width = |name: &str| name.len().max(8);
    let head = first.keys().map(|name| format!("{name:>0$}", width(name)));
    output::line(&head.collect::<Vec<_>>().join("  "))?;
    for row in rows.iter().filter_map(Value::as_object) {
        let cells = row.iter().map(|(name, value)| {
            let cell = match value.as_u64() {
                Some(blocks) => blocks.to_string(),
                None => value
                    .as_f64()
                    .map_or("-".to_owned(), |ratio| format!("{ratio:.4}")),
            };
            format!("{cell:>0$}", width(name))
        });
        output::line(&cells.collect::<Vec<_>>().join("  "))?;
    }
    Ok(())
}
