//! The calls of one run: when they follow each other, and how long they took.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::harness::Sample;

/// How long one side of a pair is measured when calls follow each other.
const HOT: Duration = Duration::from_millis(400);
/// Calls of one side of a pair when they are paced.
const PACED_CALLS: usize = 60;
/// The pause before each call of a paced run.
pub const PACED_PAUSE: Duration = Duration::from_millis(10);
/// Longest latency that is told apart from longer ones.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Calls before the measurement.
const WARM_UP_CALLS: usize = 200;

/// How calls follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Closed loop.
    Hot,
    /// One call each 10 ms, the cores parked in between.
    Paced,
}

/// What is taken from the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Median latency in microseconds.
    P50,
    /// Median latency in microseconds, of calls of which so many are timed together.
    P50Of {
        /// How many.
        calls: u32,
    },
    /// Operations per second.
    Rate {
        /// Operations of one call.
        operations: u32,
        /// How many of them a second are 1 of the row's unit.
        unit: u32,
    },
    /// Payload per second, in units of 10^9 bytes.
    Throughput {
        /// Payload of one call.
        bytes: usize,
    },
}

/// The calls of one run.
#[derive(Debug)]
pub struct Calls {
    pace: Pace,
    warm_up_left: usize,
    started: Option<Instant>,
    begun: Instant,
    busy: Duration,
    latencies_ns: Histogram<u64>,
}

impl Calls {
    /// A run that has not begun.
    ///
    /// # Panics
    /// Never: the histogram's bounds are good ones.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            warm_up_left: if pace == Pace::Hot { WARM_UP_CALLS } else { 2 },
            started: None,
            begun: Instant::now(),
            busy: Duration::ZERO,
            latencies_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
                .expect("the bounds make a histogram"),
        }
    }

    /// Whether the run is to go on.
    #[must_use]
    pub fn go_on(&self) -> bool {
        match (self.pace, self.started) {
            (_, None) => true,
            (Pace::Hot, Some(started)) => started.elapsed() < HOT,
            (Pace::Paced, Some(_)) => self.latencies_ns.len() < PACED_CALLS as u64,
        }
    }

    /// A call begins.
    pub fn begin(&mut self) {
        if self.warm_up_left == 0 {
            self.started.get_or_insert_with(Instant::now);
        }
        self.begun = Instant::now();
    }

    /// The call ends.
    pub fn end(&mut self) {
        let took = self.begun.elapsed();
        if self.warm_up_left > 0 {
            self.warm_up_left -= 1;
            return;
        }
        self.busy += took;
        self.latencies_ns
            .saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What the run came to.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "times and sizes of one run are below 2^52"
    )]
    pub fn sample(&self, measure: Measure) -> Sample {
        let quantile_us = |q: f64| self.latencies_ns.value_at_quantile(q) as f64 / 1000.0;
        let value = match measure {
            Measure::P50 => quantile_us(0.5),
            Measure::P50Of { calls } => quantile_us(0.5) / f64::from(calls),
            Measure::Rate { operations, unit } => {
                let done = self.latencies_ns.len() as f64 * f64::from(operations);
                done / self.busy.as_secs_f64() / f64::from(unit)
            }
            Measure::Throughput { bytes } => {
                let moved = self.latencies_ns.len() as f64 * bytes as f64;
                moved / self.busy.as_secs_f64() / 1e9
            }
        };
        Sample {
            value,
            p99: quantile_us(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_from_calls_agrees_with_itself() {
        let mut calls = Calls::new(Pace::Hot);
        for _ in 0..WARM_UP_CALLS + 50 {
            calls.begin();
            std::hint::black_box(vec![1; 10_000]);
            calls.end();
        }
        assert_eq!(calls.latencies_ns.len(), 50, "those before warm up");
        let value = |measure| calls.sample(measure).value;
        let is_close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        let grouped = value(Measure::P50Of { calls: 4 });
        assert!(is_close(value(Measure::P50), 4.0 * grouped));
        let (operations, unit) = (3, 1000);
        let rate = value(Measure::Rate { operations, unit });
        let throughput = value(Measure::Throughput { bytes: 3 });
        assert!(is_close(rate * 1e3, throughput * 1e9));
    }
}
