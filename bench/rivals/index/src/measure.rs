//! One side of one row: fill, decide, count.

use std::fs;
use std::time::Instant;

use hdrhistogram::Histogram;
use lunette_runtime_core::random::SplitMix64;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::sides::{Index, Lunette, Pooled, Radix, Side};
use crate::workload::{Size, Workload};

/// Turns whose events are made ahead of being measured, so that making them is not.
const AHEAD: u32 = 2_000;
/// Decisions that are not counted.
const WARM_UP: u32 = 4_000;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Decisions with their events, for each second of processor time.
    pub(crate) decisions_per_s: f64,
    /// Decisions for each second spent in them.
    pub(crate) finds_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) bytes_per_block: f64,
    /// Blocks stored and removed for each second of processor time.
    pub(crate) blocks_per_s: f64,
    /// Sum over the decisions of the blocks held where they went: equal on all sides that agree.
    pub(crate) held: f64,
}

type Field = (&'static str, fn(&mut Figures) -> &mut f64);

const FIELDS: [Field; 7] = [
    ("decisions_per_s", |figures| &mut figures.decisions_per_s),
    ("finds_per_s", |figures| &mut figures.finds_per_s),
    ("p50_us", |figures| &mut figures.p50_us),
    ("p99_us", |figures| &mut figures.p99_us),
    ("bytes_per_block", |figures| &mut figures.bytes_per_block),
    ("blocks_per_s", |figures| &mut figures.blocks_per_s),
    ("held", |figures| &mut figures.held),
];

impl Figures {
    const NONE: Self = Self {
        decisions_per_s: 0.0,
        finds_per_s: 0.0,
        p50_us: 0.0,
        p99_us: 0.0,
        bytes_per_block: 0.0,
        blocks_per_s: 0.0,
        held: 0.0,
    };

    pub(crate) fn json(mut self) -> Value {
        let mut object = json!({});
        for (name, field) in FIELDS {
            object[name] = json!(*field(&mut self));
        }
        object
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let mut figures = Self::NONE;
        for (name, field) in FIELDS {
            *field(&mut figures) = value[name].as_f64()?;
        }
        Some(figures)
    }

    /// The median of each figure.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let mut median = Self::NONE;
        for (_, field) in FIELDS {
            let mut values: Vec<f64> = runs.iter().map(|run| *field(&mut run.clone())).collect();
            values.sort_by(f64::total_cmp);
            *field(&mut median) = values[values.len() / 2];
        }
        median
    }
}

pub(crate) fn run(side: Side, size: &Size, decisions: u32) -> Figures {
    match side {
        Side::Lunette => measure(Lunette::new(size.instances), size, decisions),
        Side::DynamoRadix => measure(Radix::default(), size, decisions),
        Side::DynamoCompressed => measure(Pooled::compressed(size.block_tokens), size, decisions),
        Side::DynamoPositional => measure(Pooled::positional(size.block_tokens), size, decisions),
    }
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    let kilobytes: f64 = kilobytes
        .and_then(|text| text.parse().ok())
        .expect("Linux tells");
    kilobytes * 1024.0
}

fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn measure<I: Index>(mut index: I, size: &Size, decisions: u32) -> Figures {
    let mut workload = Workload::new(*size);
    let before = resident_bytes();
    let held = workload.fill(|event| {
        let event = index.event(event);
        index.apply(event);
    });
    index.settle();
    let mut figures = Figures::NONE;
    figures.bytes_per_block = (resident_bytes() - before) / f64::from(held);
    let mut random = SplitMix64::new(3);
    let mut load: Vec<u32> = (0..size.instances).map(|_| random.below(40)).collect();
    let mut latency = Histogram::<u64>::new(3).expect("three digits are few");
    let (mut used_s, mut finding_ns, mut blocks, mut held) = (0.0, 0_u64, 0_usize, 0_u64);
    let mut done = 0;
    while done < WARM_UP + decisions {
        let turns: Vec<_> = (0..AHEAD)
            .map(|_| {
                let turn = workload.turn();
                let blocks: usize = turn.events.iter().map(|event| event.hashes.len()).sum();
                let prompt = index.prompt(&turn.prompt);
                let events: Vec<_> = turn.events.into_iter().map(|e| index.event(e)).collect();
                (prompt, events, blocks)
            })
            .collect();
        let is_counted = done >= WARM_UP;
        let from_s = processor_s();
        for (prompt, events, turn_blocks) in turns {
            let start = Instant::now();
            let (instance, found) = index.decide(prompt, &load);
            let passed = start.elapsed().as_nanos();
            // Loads move as they do in a service: up where a request goes, down over time.
            load[instance] = load[instance] + 1 + random.below(4);
            let other = usize::try_from(random.below(u32::from(size.instances))).expect("it fits");
            load[other] = load[other].saturating_sub(3);
            for event in events {
                index.apply(event);
            }
            if is_counted {
                let passed = u64::try_from(passed).unwrap_or(u64::MAX);
                latency.record(passed.max(1)).expect("it resizes");
                finding_ns += passed;
                blocks += turn_blocks;
                held += u64::from(found);
            }
        }
        index.settle();
        if is_counted {
            used_s += processor_s() - from_s;
        }
        done += AHEAD;
    }
    let counted = f64::from(done - WARM_UP);
    figures.decisions_per_s = counted / used_s;
    figures.finds_per_s = counted / (finding_ns as f64 / 1e9);
    figures.p50_us = latency.value_at_quantile(0.5) as f64 / 1e3;
    figures.p99_us = latency.value_at_quantile(0.99) as f64 / 1e3;
    figures.blocks_per_s = blocks as f64 / used_s;
    figures.held = held as f64;
    figures
}
