//! Measuring reads or writes, by one core or several, each of which has a connection of its own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use lunette::runtime::arena::RegionMut;
use lunette::runtime::{Placement, Runtime, arena, spawn_local};
use lunette_nvmeof::proto::host::HedgeCounts;
use lunette_nvmeof::{CommandError, RemoteNamespace};
use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::random::SplitMix64;
use serde_json::{Value, json};

use super::core::{CORES_MAX, core};
use super::failure::{NvmeFailure, Outcome};
use super::subsystem::{COMMAND_TIMEOUT, SubsystemArguments, connect};
use crate::program::arguments::IdleChoice;
use crate::program::failure::Failure;
use crate::program::size::Size;

#[derive(Args, Debug)]
pub(super) struct BenchArguments {
    #[command(flatten)]
    subsystem: SubsystemArguments,
    /// Length of one command's data.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = Size::parse)]
    size: Size,
    /// Commands in flight, of each core.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    depth: u16,
    /// Cores that ask, each over a connection of its own.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(CORES_MAX)))]
    cores: u16,
    /// How long.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Write instead of reading. What was there is lost.
    #[arg(long)]
    write: bool,
    /// One after the other instead of anywhere.
    #[arg(long)]
    sequential: bool,
    /// What the core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    idle: IdleChoice,
}

/// What a core has measured.
struct Measured {
    /// How many commands each core of them has done.
    by_core: Vec<u64>,
    latencies_ns: Histogram<u64>,
    took: Duration,
    repeated: u64,
    hedged: HedgeCounts,
}

/// What the tasks of a measurement share.
struct Measurement {
    namespace: RemoteNamespace,
    latencies_ns: RefCell<Histogram<u64>>,
    random: RefCell<SplitMix64>,
    next: Cell<u64>,
    /// Pieces of the namespace, and blocks of one.
    pieces: u64,
    piece_blocks: u64,
    piece_bytes: usize,
    is_sequential: bool,
    ends_at: Instant,
}

impl Measurement {
    fn first(&self) -> u64 {
        let piece = if self.is_sequential {
            self.next.replace(self.next.get() + 1) % self.pieces
        } else {
            self.random.borrow_mut().next() % self.pieces
        };
        piece * self.piece_blocks
    }

    /// Commands one after the other until the time is over.
    async fn keep_one_in_flight(self: Rc<Self>, writes: bool) -> Result<(), CommandError> {
        let mut region: Option<RegionMut> = Some(arena().alloc(self.piece_bytes)?);
        while Instant::now() < self.ends_at {
            let started = Instant::now();
            let buffer = region.take().expect("each command gives it back");
            if writes {
                let shared = buffer.freeze();
                let writing =
                    self.namespace
                        .write(self.first(), shared.clone(), false, COMMAND_TIMEOUT);
                writing.await.map_err(|failure| failure.error)?;
                // A message may hold it a moment longer.
                region = Some(match shared.try_unfreeze() {
                    Ok(buffer) => buffer,
                    Err(_held) => arena().alloc(self.piece_bytes)?,
                });
            } else {
                let reading = self.namespace.read(self.first(), buffer, COMMAND_TIMEOUT);
                region = Some(reading.await.map_err(|failure| failure.error)?);
            }
            let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.latencies_ns.borrow_mut().saturating_record(elapsed_ns);
        }
        Ok(())
    }
}

/// Keeps commands in flight, and says how many were done and how long they took.
pub(super) fn bench(arguments: BenchArguments) -> Result<Value, Failure> {
    let placement = Placement::Anywhere(usize::from(arguments.cores));
    let runtime = Runtime::start(&placement, core(arguments.idle, 0))?;
    let arguments = Arc::new(arguments);
    let measuring = |core| {
        let arguments = Arc::clone(&arguments);
        let measuring = move || async move { measure(&arguments, core).await };
        let spawned = runtime.spawn_on(CoreIndex(core), measuring);
        spawned.map_err(NvmeFailure::from)
    };
    let all_measuring: Vec<_> = (0..arguments.cores).map(measuring).collect();
    let mut all: Option<Measured> = None;
    for measuring in all_measuring {
        let measured = measuring?.wait().map_err(NvmeFailure::from)??;
        match &mut all {
            None => all = Some(measured),
            Some(all) => all.add(&measured),
        }
    }
    runtime.shut_down().map_err(NvmeFailure::from)?;
    let all = all.expect("there is at least one core");
    Ok(all.told(arguments.size.0))
}

impl Measured {
    fn add(&mut self, other: &Self) {
        self.latencies_ns
            .add(&other.latencies_ns)
            .expect("all have the same bounds");
        self.by_core.extend(&other.by_core);
        self.took = self.took.max(other.took);
        self.repeated += other.repeated;
        self.hedged.sent += other.hedged.sent;
        self.hedged.won += other.hedged.won;
        self.hedged.withheld += other.hedged.withheld;
    }

    fn told(&self, size: u64) -> Value {
        let (count, seconds) = (self.latencies_ns.len(), self.took.as_secs_f64());
        let us = |quantile| self.latencies_ns.value_at_quantile(quantile) as f64 / 1e3;
        let hedged = &self.hedged;
        json!({
            "commands": count,
            "commands_by_core": self.by_core,
            "repeated": self.repeated,
            "hedged": { "sent": hedged.sent, "won": hedged.won, "withheld": hedged.withheld },
            "iops": (count as f64 / seconds).round(),
            "megabytes_per_s": (count as f64 * size as f64 / seconds / 1e4).round() / 100.0,
            "p50_us": us(0.5),
            "p99_us": us(0.99),
        })
    }
}

/// What one core of them does.
async fn measure(arguments: &BenchArguments, core: u16) -> Outcome<Measured> {
    let namespace = connect(&arguments.subsystem, arguments.depth).await?;
    let identity = *namespace.identity();
    let block_bytes = identity.block_bytes();
    let size = arguments.size.0;
    let fits = size <= u64::from(namespace.transfer_bytes_max());
    let pieces = (identity.blocks << identity.block_bytes_log2) / size;
    if !fits || !size.is_multiple_of(u64::from(block_bytes)) || pieces == 0 {
        return Err(NvmeFailure::Range {
            what: "the size",
            block_bytes,
        });
    }
    let longest_ns = u64::try_from(COMMAND_TIMEOUT.as_nanos()).unwrap_or(u64::MAX);
    let latencies_ns = Histogram::new_with_bounds(1, longest_ns, 3);
    let latencies_ns = latencies_ns.expect("bounds and digits that are allowed");
    let started = Instant::now();
    let measurement = Rc::new(Measurement {
        namespace,
        latencies_ns: RefCell::new(latencies_ns),
        random: RefCell::new(SplitMix64::new(1 + u64::from(core))),
        // Each core goes through all of it, from a place of its own.
        next: Cell::new(pieces * u64::from(core) / u64::from(arguments.cores)),
        pieces,
        piece_blocks: size >> identity.block_bytes_log2,
        piece_bytes: usize::try_from(size).expect("a command's data are short"),
        is_sequential: arguments.sequential,
        ends_at: started + Duration::from_secs(arguments.seconds),
    });
    let tasks: Vec<_> = (0..arguments.depth)
        .map(|_| spawn_local(Rc::clone(&measurement).keep_one_in_flight(arguments.write)))
        .collect();
    for task in tasks {
        task.await.expect("a task that nobody cancels")?;
    }
    let latencies_ns = measurement.latencies_ns.borrow().clone();
    Ok(Measured {
        by_core: vec![latencies_ns.len()],
        latencies_ns,
        took: started.elapsed(),
        repeated: measurement.namespace.repeats(),
        hedged: measurement.namespace.hedge_counts(),
    })
}
