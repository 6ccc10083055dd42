//! When a read that takes long is sent a second way, and how much that may cost.
//!
//! A second request is worth it when the first one takes longer than nearly all reads do (Dean and
//! Barroso, "The Tail at Scale", 2013). What "nearly all" is, is learnt from what was answered
//! lately. Requests beyond the first are bounded by a share of all reads, and their memory by a
//! number of bytes, which count until the slower of the two has been answered, too.

use core::time::Duration;

/// Answers that have to be known before anything is learnt from them.
const ANSWERS_MIN: u32 = 64;
/// Answers after which what is known counts half.
const ANSWERS_MAX: u32 = 4096;
/// Answers between two looks at what is known.
const LOOK_EVERY: u32 = 64;
/// Second requests that reads without one can save up for.
const SAVED_MAX: u32 = 16;
/// What a second request costs; a read earns as many of it as the budget has percent.
const COST: u32 = 100;
/// Parts of each doubling of the latency that are told apart.
const PARTS_LOG2: u32 = 3;
const BUCKETS: usize = (64 - PARTS_LOG2 as usize + 1) << PARTS_LOG2;

/// How long a read may take before it is sent a second way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HedgeDelay {
    /// As long as that.
    Fixed(Duration),
    /// As long as `permille` of a thousand reads take, and no less than `least`.
    Learnt {
        /// Reads out of a thousand: up to 999.
        permille: u16,
        /// The shortest delay.
        least: Duration,
    },
}

/// Whether and when reads are sent a second way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeOptions {
    /// When.
    pub delay: HedgeDelay,
    /// Second requests at most, in percent of all reads: up to 100.
    pub budget_percent: u8,
    /// Memory for them at most, in bytes.
    pub bytes_max: usize,
}

impl Default for HedgeOptions {
    fn default() -> Self {
        Self {
            delay: HedgeDelay::Learnt {
                permille: 990,
                least: Duration::from_micros(200),
            },
            budget_percent: 5,
            bytes_max: 16 << 20,
        }
    }
}

/// Counts of second requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HedgeCounts {
    /// Reads.
    pub reads: u64,
    /// Second requests.
    pub sent: u64,
    /// Those that were answered first.
    pub won: u64,
    /// Reads that took long enough, and were not sent a second way because of the limits.
    pub withheld: u64,
}

/// How long answers took.
#[derive(Clone, Debug)]
struct Latencies {
    counts: Box<[u32; BUCKETS]>,
    total: u32,
}

impl Latencies {
    fn new() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            total: 0,
        }
    }

    fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)] += 1;
        self.total += 1;
        if self.total >= ANSWERS_MAX {
            self.total = 0;
            for count in self.counts.iter_mut() {
                *count /= 2;
                self.total += *count;
            }
        }
    }

    /// No less than what `permille` of a thousand answers took.
    fn quantile(&self, permille: u16) -> Duration {
        let wanted = u64::from(self.total) * u64::from(permille);
        let mut seen = 0;
        let found = self.counts.iter().position(|&count| {
            seen += u64::from(count) * 1000;
            seen >= wanted && seen > 0
        });
        Duration::from_nanos(found.map_or(u64::MAX, end_of))
    }
}

/// Values below 2^PARTS_LOG2 have a bucket each; of every doubling above, the next bits below the
/// highest one say which part it is.
fn bucket_of(value: u64) -> usize {
    let bits = 64 - value.leading_zeros();
    let shift = bits.saturating_sub(PARTS_LOG2 + 1);
    let part = usize::try_from(value >> shift).expect("a few bits");
    ((shift as usize) << PARTS_LOG2) + part
}

/// The greatest value of a bucket.
fn end_of(bucket: usize) -> u64 {
    let parts = 1 << PARTS_LOG2;
    if bucket < 2 * parts {
        return bucket as u64;
    }
    let shift = bucket / parts - 1;
    let part = (bucket - shift * parts) as u64;
    let next = u128::from(part + 1) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

/// When reads are sent a second way.
#[derive(Clone, Debug)]
pub struct Hedge {
    options: HedgeOptions,
    latencies: Latencies,
    until_look: u32,
    learnt: Option<Duration>,
    saved: u32,
    bytes: usize,
    counts: HedgeCounts,
}

impl Hedge {
    /// Nothing is known yet.
    ///
    /// # Panics
    /// If the budget or the share of reads is no such share.
    #[must_use]
    pub fn new(options: HedgeOptions) -> Self {
        assert!(options.budget_percent <= 100, "a share of all reads");
        if let HedgeDelay::Learnt { permille, .. } = options.delay {
            assert!(permille < 1000, "no read takes longer than all do");
        }
        Self {
            options,
            latencies: Latencies::new(),
            until_look: ANSWERS_MIN,
            learnt: None,
            saved: 0,
            bytes: 0,
            counts: HedgeCounts::default(),
        }
    }

    /// A read begins. After what time it is to be sent a second way, if that is known.
    pub fn on_read(&mut self) -> Option<Duration> {
        self.counts.reads += 1;
        let earned = u32::from(self.options.budget_percent);
        self.saved = (self.saved + earned).min(SAVED_MAX * COST);
        match self.options.delay {
            HedgeDelay::Fixed(delay) => Some(delay),
            HedgeDelay::Learnt { least, .. } => self.learnt.map(|learnt| learnt.max(least)),
        }
    }

    /// Whether a read of `len_bytes` may be sent a second way now; if so it counts as sent, and its
    /// memory until [`Hedge::on_reaped`].
    pub fn begin(&mut self, len_bytes: usize) -> bool {
        let bytes = self.bytes.saturating_add(len_bytes);
        if self.saved < COST || bytes > self.options.bytes_max {
            self.counts.withheld += 1;
            return false;
        }
        self.saved -= COST;
        self.bytes = bytes;
        self.counts.sent += 1;
        true
    }

    /// The second request was answered first.
    pub const fn on_won(&mut self) {
        self.counts.won += 1;
    }

    /// The slower of two requests has been answered, or has ended otherwise: one of the two
    /// memories of `len_bytes` is free.
    ///
    /// # Panics
    /// If fewer bytes are in use.
    pub fn on_reaped(&mut self, len_bytes: usize) {
        let left = self.bytes.checked_sub(len_bytes);
        self.bytes = left.expect("what is reaped has begun");
    }

    /// A request was answered after `latency`, whichever it was.
    pub fn on_answer(&mut self, latency: Duration) {
        let HedgeDelay::Learnt { permille, .. } = self.options.delay else {
            return;
        };
        self.latencies.record(latency);
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = LOOK_EVERY;
            self.learnt = Some(self.latencies.quantile(permille));
        }
    }

    /// Memory that second requests take, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What has happened so far.
    #[must_use]
    pub const fn counts(&self) -> HedgeCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn learnt(permille: u16) -> HedgeOptions {
        HedgeOptions {
            delay: HedgeDelay::Learnt {
                permille,
                least: us(10),
            },
            ..HedgeOptions::default()
        }
    }

    #[test]
    fn every_value_lies_in_its_bucket_and_within_an_eighth_of_its_end() {
        let mut values: Vec<u64> = (0..200).collect();
        for bit in 0..64 {
            let power = 1_u64 << bit;
            values.extend([power - 1, power, power + power / 3, power + (power - 1)]);
        }
        values.sort_unstable();
        for pair in values.windows(2) {
            assert!(bucket_of(pair[0]) <= bucket_of(pair[1]), "{pair:?}");
        }
        for value in values {
            let (bucket, end) = (bucket_of(value), end_of(bucket_of(value)));
            assert!(bucket < BUCKETS && value <= end, "{value}: {end}");
            assert!(end - value <= value / 8, "{value}: {end}");
            assert!(
                end == u64::MAX || bucket_of(end + 1) == bucket + 1,
                "{value}"
            );
        }
    }

    #[test]
    fn the_delay_is_what_nearly_all_reads_take() {
        let mut hedge = Hedge::new(learnt(900));
        for index in 0..ANSWERS_MIN {
            assert_eq!(hedge.on_read(), None, "{index} answers are not enough");
            hedge.on_answer(us(if index % 20 == 0 { 5000 } else { 100 }));
        }
        let delay = hedge.on_read().expect("learnt");
        assert!(delay >= us(100) && delay < us(113), "{delay:?}");
        // It follows what changes.
        for _ in 0..2 * ANSWERS_MAX {
            hedge.on_answer(us(1000));
        }
        let delay = hedge.on_read().expect("learnt");
        assert!(delay >= us(1000) && delay < us(1130), "{delay:?}");
        for _ in 0..4 * ANSWERS_MAX {
            hedge.on_answer(us(1));
        }
        assert_eq!(hedge.on_read(), Some(us(10)), "the shortest");
    }

    #[test]
    fn second_requests_are_a_share_of_all_reads() {
        let mut hedge = Hedge::new(HedgeOptions {
            delay: HedgeDelay::Fixed(us(1)),
            ..HedgeOptions::default()
        });
        for _ in 0..1000 {
            assert_eq!(hedge.on_read(), Some(us(1)));
            if hedge.begin(512) {
                hedge.on_reaped(512);
            }
        }
        let expected = HedgeCounts {
            reads: 1000,
            sent: 50,
            won: 0,
            withheld: 950,
        };
        assert_eq!(hedge.counts(), expected);
        // What was not needed is saved up, and not for ever.
        for _ in 0..1000 {
            hedge.on_read();
        }
        let sent = (0..100).filter(|_| hedge.begin(1)).count();
        assert_eq!(sent, SAVED_MAX as usize);
    }

    #[test]
    fn memory_is_bounded_until_the_slower_one_is_answered() {
        let mut hedge = Hedge::new(HedgeOptions {
            delay: HedgeDelay::Fixed(us(1)),
            budget_percent: 100,
            bytes_max: 1000,
        });
        for _ in 0..10 {
            hedge.on_read();
        }
        assert!(hedge.begin(600) && !hedge.begin(401) && hedge.begin(400));
        assert_eq!((hedge.bytes(), hedge.counts().withheld), (1000, 1));
        hedge.on_reaped(600);
        assert!(hedge.begin(600) && !hedge.begin(usize::MAX));
    }
}
