//! What a task costs: yield, spawn and join.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use lunette_runtime::{CoreOptions, block_on, spawn_local, time};

fn yields(criterion: &mut Criterion) {
    criterion.bench_function("yield", |bencher| {
        bencher.iter_custom(|rounds| {
            let took = block_on(None, CoreOptions::default(), move || async move {
                let start = Instant::now();
                for _ in 0..rounds {
                    time::yield_now().await;
                }
                start.elapsed()
            });
            took.expect("a core")
        });
    });
}

fn spawns(criterion: &mut Criterion) {
    criterion.bench_function("spawn and join", |bencher| {
        bencher.iter_custom(|rounds| {
            let took = block_on(None, CoreOptions::default(), move || async move {
                let start = Instant::now();
                for round in 0..rounds {
                    let output = spawn_local(async move { black_box(round) }).await;
                    assert_eq!(output, Ok(round));
                }
                start.elapsed()
            });
            took.expect("a core")
        });
    });
}

criterion_group!(tasks, yields, spawns);
criterion_main!(tasks);
