//! Measuring reads or writes of a segment.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use lunette::hwloc;
use lunette::runtime::spawn_local;
use lunette::transfer::engine::{Endpoint, EngineOptions, RailStatistics};
use lunette::transfer::topology::{Sources, discover, here, load_override};
use serde_json::{Value, json};

use super::adapters::{Adapters, described};
use super::asker::{Asker, Prepared};
use super::failure::Outcome;
use super::neighbours::Neighbours;
use super::policy::{encryption, policy};
use crate::program::arguments::IdleChoice;
use crate::program::size::Size;

/// Longest latency that is told apart from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Stands for no override file.
const AS_FOUND: &str = "-";

#[derive(Args, Debug)]
pub(super) struct BenchArguments {
    /// Where the peer listens, each address or name a rail.
    #[arg(value_name = "HOST:PORT,...", value_delimiter = ',', required = true)]
    pub(super) peer: Vec<Endpoint>,
    /// The segment's name.
    #[arg(long, value_name = "NAME", default_value = "memory")]
    pub(super) segment: String,
    /// Length of one request.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = Size::parse)]
    pub(super) size: Size,
    /// Requests of one batch.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(super) batch: u32,
    /// Batches under way.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// How long.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Write instead of reading. What was there is lost.
    #[arg(long)]
    pub(super) write: bool,
    /// Send the bytes also if the peer is on this host, instead of copying them from memory that both map.
    #[arg(long)]
    network: bool,
    #[command(flatten)]
    neighbours: Neighbours,
    #[command(flatten)]
    adapters: Adapters,
    /// Seal what is sent. It takes a secret, and is enough if one side asks for it.
    #[arg(long)]
    encrypt: bool,
    /// Connect from the network adapters that are nearest to the core's memory, as `lunette topo` shows
    /// them, with an override file or without.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = AS_FOUND
    )]
    topology: Option<PathBuf>,
    /// Cores to move bytes on, besides the one that asks; 1 for one that does both.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub(super) cores: u16,
    /// What a core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    pub(super) idle: IdleChoice,
}

/// Keeps batches under way, and says how many were done and how long they took.
pub(super) async fn bench(arguments: BenchArguments) -> Outcome<Value> {
    let options = EngineOptions {
        policy: policy()?,
        encryption: encryption(arguments.encrypt),
        same_host: !arguments.network,
        same_host_trust: arguments.neighbours.same_host_trust,
        same_host_dir: arguments.neighbours.same_host_dir.clone(),
        rdma: arguments.adapters.options(),
        sources: sources(&arguments).await?,
        ..EngineOptions::default()
    };
    let asker = Asker::open(&arguments, options).await?;
    let latencies_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
    let latencies_ns = latencies_ns.expect("bounds and digits that are allowed");
    let latencies_ns = Rc::new(RefCell::new(latencies_ns));
    let started = Instant::now();
    let ends_at = started + Duration::from_secs(arguments.seconds);
    let mut tasks = Vec::new();
    for index in 0..u64::from(arguments.depth) {
        let prepared = asker.prepare(&arguments, index).await?;
        let posting = keep_one_under_way(prepared, ends_at, Rc::clone(&latencies_ns));
        tasks.push(spawn_local(posting));
    }
    for task in tasks {
        task.await.expect("a task that nobody cancels")?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let (statistics, rails) = asker.account().await?;
    let latencies_ns = latencies_ns.borrow();
    let requests = latencies_ns.len() * u64::from(arguments.batch);
    let bytes = requests as f64 * arguments.size.0 as f64;
    let us = |quantile| latencies_ns.value_at_quantile(quantile) as f64 / 1e3;
    let rails: Vec<Value> = rails.iter().map(rail).collect();
    Ok(json!({
        "requests": requests,
        "requests_per_s": (requests as f64 / seconds).round(),
        "megabytes_per_s": (bytes / seconds / 1e4).round() / 100.0,
        "batch_p50_us": us(0.5),
        "batch_p99_us": us(0.99),
        "slices_resent": statistics.slices_resent,
        "slices_stolen": statistics.slices_stolen,
        "same_host_bytes": statistics.same_host_bytes,
        "window_bytes": statistics.window_bytes,
        "one_sided_bytes": statistics.one_sided_bytes,
        "adapters": described(asker.adapters()),
        "rails": rails,
    }))
}

/// The addresses to connect from, if the adapters are to be chosen.
async fn sources(arguments: &BenchArguments) -> Outcome<Option<Sources>> {
    let Some(said) = &arguments.topology else {
        return Ok(None);
    };
    let machine = discover(|| hwloc::load().ok()).await?;
    let found = machine.matrix()?;
    let matrix = if said.as_os_str() == AS_FOUND {
        found
    } else {
        load_override(said)?.apply(&found)?
    };
    Ok(Some(Sources::new(&machine, matrix, here())))
}

fn rail(rail: &RailStatistics) -> Value {
    json!({
        "adapter": rail.adapter,
        "address": rail.address.to_string(),
        "source": rail.source.as_ref().map(IpAddr::to_string),
        "up": rail.is_up,
        "bytes_per_s": rail.bytes_per_second,
        "connections": rail.connections,
        "failures": rail.failures,
    })
}

async fn keep_one_under_way(
    prepared: Prepared,
    ends_at: Instant,
    latencies_ns: Rc<RefCell<Histogram<u64>>>,
) -> Outcome<()> {
    while Instant::now() < ends_at {
        let started = Instant::now();
        prepared.post().await?;
        let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latencies_ns.borrow_mut().saturating_record(elapsed_ns);
    }
    Ok(())
}
