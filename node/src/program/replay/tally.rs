//! What a replay counts and times.

use std::time::Duration;

use hdrhistogram::Histogram;
use lunette::trace::reference::HitCount;

/// Digits that a recorded latency keeps.
const LATENCY_DIGITS: u8 = 3;
/// Longest latency that is told from longer ones: ten minutes, in nanoseconds.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// How long one step of the requests took, and all of them together.
#[derive(Debug)]
pub(super) struct Latency {
    ns: Histogram<u64>,
    total: Duration,
}

impl Latency {
    fn new() -> Self {
        Self {
            ns: Histogram::new_with_max(LATENCY_NS_MAX, LATENCY_DIGITS)
                .expect("1 to 5 digits are possible"),
            total: Duration::ZERO,
        }
    }

    pub(super) fn record(&mut self, elapsed: Duration) {
        let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.ns.saturating_record(ns);
        self.total += elapsed;
    }

    /// The latency that this share of the requests did not exceed, in microseconds.
    pub(super) fn us_at(&self, quantile: f64) -> f64 {
        self.ns.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// Everything that a replay counts.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) hits: HitCount,
    /// Blocks that a lookup found and the get after it did not: evicted in between.
    pub(super) lost: u64,
    /// Blocks that came back with other bytes than were put.
    pub(super) verify_errors: u64,
    /// Puts that a node had no room for at that moment.
    pub(super) puts_refused: u64,
    /// Bytes of the blocks got.
    pub(super) bytes_read: u64,
    /// Bytes of the blocks put that were not there before.
    pub(super) bytes_written: u64,
    /// Evictions on all nodes meanwhile.
    pub(super) evictions: u64,
    pub(super) lookup: Latency,
    pub(super) get: Latency,
    pub(super) put: Latency,
    /// The whole replay, with filling and verifying.
    pub(super) elapsed: Duration,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            hits: HitCount::default(),
            lost: 0,
            verify_errors: 0,
            puts_refused: 0,
            bytes_read: 0,
            bytes_written: 0,
            evictions: 0,
            lookup: Latency::new(),
            get: Latency::new(),
            put: Latency::new(),
            elapsed: Duration::ZERO,
        }
    }

    /// Time in which the store was at work.
    pub(super) fn timed(&self) -> Duration {
        self.lookup.total + self.get.total + self.put.total
    }

    /// Bytes got and put per second of that time, in units of 10^9.
    pub(super) fn gigabytes_per_second(&self) -> f64 {
        let seconds = self.timed().as_secs_f64();
        if seconds == 0.0 {
            return 0.0;
        }
        (self.bytes_read + self.bytes_written) as f64 / 1e9 / seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::new();
        for us in 1..=1000 {
            latency.record(Duration::from_micros(us));
        }
        let off = |quantile: f64, us: f64| (latency.us_at(quantile) - us).abs() / us;
        assert!(off(0.5, 500.0) < 0.002);
        assert!(off(0.99, 990.0) < 0.002);
        assert!(off(0.999, 999.0) < 0.002);
        assert_eq!(latency.total, Duration::from_micros(500_500));
    }

    #[test]
    fn nothing_in_no_time_is_no_rate() {
        let mut tally = Tally::new();
        assert_eq!(tally.gigabytes_per_second(), 0.0);
        tally.bytes_read = 3_000_000_000;
        tally.put.record(Duration::from_secs(2));
        assert_eq!(tally.gigabytes_per_second(), 1.5);
    }
}
