//! Times of things that are too short to be timed one by one.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_bench::harness::Sample;

/// How long one side of a pair is measured.
const RUN: Duration = Duration::from_millis(400);
/// How long it runs before.
const WARM_UP: Duration = Duration::from_millis(50);
/// Longest batch that is told apart from longer ones.
const BATCH_NS_MAX: u64 = 10_000_000_000;

/// Batches of a fixed number of things, timed one after the other.
#[derive(Debug)]
pub(crate) struct Batches {
    things: u32,
    opened: Instant,
    begun: Instant,
    times_ns: Histogram<u64>,
}

impl Batches {
    /// Batches of `things` each.
    pub(crate) fn of(things: u32) -> Self {
        let now = Instant::now();
        Self {
            things,
            opened: now,
            begun: now,
            times_ns: Histogram::new_with_bounds(1, BATCH_NS_MAX, 3)
                .expect("the bounds make a histogram"),
        }
    }

    /// The next batch begins; `None` if there have been enough.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.begun = Instant::now();
        let over = self.begun - self.opened >= WARM_UP + RUN;
        (!over || self.times_ns.is_empty()).then_some(self.things)
    }

    /// The batch has ended.
    pub(crate) fn end(&mut self) {
        let now = Instant::now();
        if now - self.opened >= WARM_UP {
            let took_ns = u64::try_from((now - self.begun).as_nanos()).unwrap_or(u64::MAX);
            self.times_ns.saturating_record(took_ns);
        }
    }

    /// Nanoseconds per thing: the median batch, and the 99th percentile.
    pub(crate) fn sample_ns(&self) -> Sample {
        let each = |quantile| {
            let batch_ns = self.times_ns.value_at_quantile(quantile);
            as_f64(batch_ns) / f64::from(self.things)
        };
        Sample {
            value: each(0.5),
            p99: each(0.99),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}
