//! What registering, finding and unregistering costs with many segments, beside the same with few.
//!
//! Beside it stands what one look into memory costs that nobody can do without: at a line of a table with as many
//! lines, in the same order. What does not fit a cache is as much slower as the next one is.
//!
//! `cargo run --release -p lunette-transfer --example registration`
#![expect(clippy::print_stdout, reason = "a table is what it is for")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::{CoreOptions, block_on};
use lunette_transfer::engine::{Access, Engine, EngineOptions, RegisterOptions, SegmentId};

const FEW: usize = 1_000;
const MANY: usize = 100_000;
const BUFFER_BYTES: usize = 4096;
/// Pairs of measurements, of which the medians are compared.
const PAIRS: usize = 9;
/// Operations of one measurement, on top of what is registered.
const OPERATIONS: usize = 1_000;

#[derive(Clone, Copy, Debug)]
struct Cost {
    register: Duration,
    find: Duration,
    reach: Duration,
    look: Duration,
    unregister: Duration,
}

/// As much memory as one look brings into the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(u64);

/// One of the costs.
type Of = fn(&Cost) -> Duration;

/// A spread order in which neighbours do not follow each other.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| index * 7_919 % count)
}

async fn measure(
    engine: &Engine,
    memory: &Exposed,
    standing: usize,
    options: &RegisterOptions,
) -> Cost {
    let buffer = |index: usize| memory.slice(index * BUFFER_BYTES, BUFFER_BYTES);
    let register = |index| engine.register(buffer(index), options).expect("room");
    let base: Vec<SegmentId> = (0..standing).map(register).collect();
    let fresh: Vec<usize> = spread(OPERATIONS).map(|index| standing + index).collect();
    let began = Instant::now();
    let ids: Vec<SegmentId> = fresh.iter().map(|&index| register(index)).collect();
    let registered = began.elapsed();
    let start = memory.start() as u64;
    let began = Instant::now();
    for index in spread(standing).take(OPERATIONS) {
        let at = start + (index * BUFFER_BYTES) as u64 + 5;
        assert!(engine.find(at, 100).is_some(), "it is registered");
    }
    let found = began.elapsed();
    let began = Instant::now();
    for index in spread(standing).take(OPERATIONS) {
        assert!(
            engine.memory(base[index], 5, 100).is_some(),
            "it is registered"
        );
    }
    let reached = began.elapsed();
    let lines = vec![Line(1); standing];
    // As what else is measured: it was touched, and other things since.
    black_box(&memory.slice(0, BUFFER_BYTES * OPERATIONS).to_vec());
    let began = Instant::now();
    for index in spread(standing).take(OPERATIONS) {
        assert!(black_box(lines[index]).0 > 0, "it is written");
    }
    let looked = began.elapsed();
    let began = Instant::now();
    for id in ids {
        assert!(engine.unregister(id).await.is_some(), "it is registered");
    }
    let unregistered = began.elapsed();
    for id in base {
        engine.unregister(id).await;
    }
    let each = |all: Duration| all / u32::try_from(OPERATIONS).expect("few");
    Cost {
        register: each(registered),
        find: each(found),
        reach: each(reached),
        look: each(looked),
        unregister: each(unregistered),
    }
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}

fn main() {
    let measured = block_on(None, CoreOptions::default(), || async {
        let engine = Engine::start(EngineOptions::default()).expect("an engine");
        let len = (MANY + OPERATIONS) * BUFFER_BYTES;
        let memory = Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory");
        let options = RegisterOptions {
            name: None,
            by_address: true,
            access: Access::ReadWrite,
            same_host: true,
            by_capability: false,
        };
        let mut costs = Vec::new();
        for _ in 0..=PAIRS {
            let few = measure(&engine, &memory, FEW, &options).await;
            let many = measure(&engine, &memory, MANY, &options).await;
            costs.push((few, many));
        }
        // The first pair warms up.
        costs.split_off(1)
    });
    let costs = measured.expect("a core");
    println!("| per operation | {FEW} segments | {MANY} segments | ratio (goal 1.5) |");
    println!("|---|---|---|---|");
    let rows: [(&str, Of); 5] = [
        ("register", |cost| cost.register),
        ("find by address", |cost| cost.find),
        ("find by id", |cost| cost.reach),
        ("unregister", |cost| cost.unregister),
        ("one look into memory", |cost| cost.look),
    ];
    for (name, of) in rows {
        let few = median(costs.iter().map(|(few, _)| of(few)).collect());
        let many = median(costs.iter().map(|(_, many)| of(many)).collect());
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("| {name} | {few:?} | {many:?} | {ratio:.2} |");
    }
}
