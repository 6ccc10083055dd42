//! `lunette-sim replay`: a trace, or one that is generated, served by a cluster.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use lunette::trace::format::TraceReader;
use lunette::trace::generator::{Generator, REQUESTS_DEFAULT};
use lunette_sim::replay::{Plan, of_one_cache, serve};
use serde_json::json;

/// Has five members with two cores each serve a trace.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A file with a request a line, as Mooncake published them; without one a trace is generated from the seed.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Requests of the trace that are served; all by default.
    #[arg(long)]
    requests: Option<usize>,
    /// Blocks that memory has room for, in all members together: one run for each.
    #[arg(long, value_delimiter = ',', default_value = "1000,3000,10000,30000")]
    capacity_blocks: Vec<usize>,
    /// Blocks that the members' drives have room for, all of them together.
    #[arg(long, default_value_t = 0)]
    drive_blocks: usize,
    /// Length of a block in bytes.
    #[arg(long, default_value_t = 65536)]
    block_bytes: usize,
    #[arg(long, default_value_t = 5)]
    nodes: u8,
    /// Cores of each of them.
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Puts each block behind the one before it.
    #[arg(long)]
    chains: bool,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let requests = match requests(arguments) {
        Ok(requests) => requests,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for &memory_blocks in &arguments.capacity_blocks {
        let plan = Plan {
            seed: arguments.seed,
            nodes: arguments.nodes,
            cores: arguments.cores,
            block_bytes: arguments.block_bytes,
            memory_blocks,
            drive_blocks: arguments.drive_blocks,
            are_chains: arguments.chains,
        };
        let served = serve(plan, &requests);
        // Of both tiers, less a third of memory, whose blocks are on drives as well.
        let one_blocks = match arguments.drive_blocks {
            0 => memory_blocks,
            drive_blocks => drive_blocks + memory_blocks / 3,
        };
        let line = json!({
            "memory_blocks": memory_blocks,
            "drive_blocks": arguments.drive_blocks,
            "members": arguments.nodes,
            "cores": arguments.cores,
            "blocks": served.blocks,
            "hit_ratio": served.hit_ratio(),
            "leading_hit_ratio": served.leading_hit_ratio(),
            "one_cache_blocks": one_blocks,
            "one_cache": of_one_cache(&requests, one_blocks),
            "resident_blocks": served.resident_blocks(),
            "lacking_the_one_before": served.lacking_ratio(),
            "written_per_miss": served.written_per_miss(arguments.block_bytes),
            "drive_records": served.drives.records,
            "drive_records_max": served.drive_records_max,
            "drive_refused": served.drives.refused,
            "drive_lost": served.drives.lost,
            "drive_read": served.drives.read,
            "trace_hash": format!("{:016x}", served.trace_hash),
        });
        println!("{line}");
    }
    ExitCode::SUCCESS
}

fn requests(arguments: &Arguments) -> Result<Vec<Vec<u64>>, String> {
    let limit = arguments.requests;
    let Some(path) = &arguments.trace else {
        let count = usize::try_from(REQUESTS_DEFAULT).expect("few");
        let generated = Generator::new(arguments.seed).take(limit.unwrap_or(count));
        return Ok(generated.map(|request| request.hash_ids).collect());
    };
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let read = TraceReader::new(BufReader::new(file)).take(limit.unwrap_or(usize::MAX));
    let read = read.map(|request| request.map(|request| request.hash_ids));
    read.collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}
