//! Two threads that spin on a counter: the least that a message between cores can cost.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use lunette_bench::harness::{Failure, Sample};
use lunette_runtime::topology;

use super::program::{EXCHANGES_PER_BATCH, one_way};
use crate::batches::Batches;

/// The question after which nothing is asked.
const END: u64 = u64::MAX;

/// A counter on cache lines of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

/// The calling thread asks, on the first CPU; one on the second CPU answers.
pub(super) fn messages(cpus: [usize; 2]) -> Result<Sample, Failure> {
    let lines: Arc<[Line; 2]> = Arc::default();
    let theirs = Arc::clone(&lines);
    let answering = thread::spawn(move || {
        topology::pin_current_thread(cpus[1])?;
        let [question, answer] = &*theirs;
        let mut last = 0;
        while last != END {
            last = changed(question, last);
            answer.0.store(last, Ordering::Release);
        }
        Ok::<_, topology::PinError>(())
    });
    topology::pin_current_thread(cpus[0])?;
    let [question, answer] = &*lines;
    let mut batches = Batches::of(EXCHANGES_PER_BATCH);
    let mut number = 0;
    while let Some(count) = batches.next() {
        for _ in 0..count {
            number += 1;
            question.0.store(number, Ordering::Release);
            changed(answer, number - 1);
        }
        batches.end();
    }
    question.0.store(END, Ordering::Release);
    answering
        .join()
        .map_err(|_| "the answering thread panicked")??;
    Ok(one_way(batches.sample_ns()))
}

/// Waits until a line holds something else than `last`.
fn changed(line: &Line, last: u64) -> u64 {
    loop {
        let now = line.0.load(Ordering::Acquire);
        if now != last {
            return now;
        }
        hint::spin_loop();
    }
}
