//! How soon a node serves, and what it costs while nobody asks.

use std::thread;
use std::time::{Duration, Instant};

use lunette_bench::harness::{Failure, Plan, Sample};

use crate::peer::{Peer, Serve};

/// Starts of one run, the middle of which counts.
const STARTS: usize = 5;
/// How long a node is left alone before it is looked at.
const IDLE: Duration = Duration::from_secs(1);

/// What is asked of a node that was just started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// Milliseconds from the start of its process until it listens.
    Listening,
    /// Its threads while nobody asks.
    Threads,
    /// MB that it has in memory then.
    Memory,
}

pub(super) fn measure(fact: Fact, plan: &Plan) -> Result<Sample, Failure> {
    let start = || Peer::start(Serve::Store, plan, Duration::ZERO);
    let value = match fact {
        Fact::Listening => {
            let mut times = Vec::with_capacity(STARTS);
            for _ in 0..STARTS {
                let begun = Instant::now();
                let _node = start()?;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            times[STARTS / 2]
        }
        Fact::Threads | Fact::Memory => {
            let node = start()?;
            thread::sleep(IDLE);
            match fact {
                Fact::Memory => f64::from(node.told_by_system("VmRSS")?) * 1024.0 / 1e6,
                _ => f64::from(node.told_by_system("Threads")?),
            }
        }
    };
    Ok(Sample { value, p99: value })
}
