//! What was measured.

use lunette_conductor_policy::ids::{InstanceId, LengthClass};
use lunette_conductor_policy::slo::Slo;

use crate::simulation::DECODE_WAIT_S_MAX;
use crate::workload::Item;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All its tokens were made.
    Served,
    /// Refused on arrival, because of the load of prefill instances.
    RefusedForPrefill,
    /// Refused on arrival, because of the load of decode instances.
    RefusedForDecode,
    /// Refused while it waited for its prefill, or for the rest of it.
    Dropped,
    /// Refused after its prefill, which was wasted.
    RefusedLate,
}

impl Ending {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Served,
        Self::RefusedForPrefill,
        Self::RefusedForDecode,
        Self::Dropped,
        Self::RefusedLate,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::RefusedForPrefill => "refused_for_prefill",
            Self::RefusedForDecode => "refused_for_decode",
            Self::Dropped => "dropped",
            Self::RefusedLate => "refused_late",
        }
    }
}

/// One request. Times are in seconds; those of steps that it did not reach are zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When it arrived.
    pub arrival_s: f64,
    /// Length of its prompt.
    pub input_tokens: u32,
    /// Length of its answer.
    pub output_tokens: u32,
    /// How it ended.
    pub ending: Ending,
    /// From arrival to the end of its prefill.
    pub ttft_s: f64,
    /// What it may be.
    pub ttft_limit_s: f64,
    /// Mean of the longest tenth of the intervals between its tokens.
    pub tbt_s: f64,
    /// Tokens of its prompt that were found in the cache.
    pub cached_tokens: u32,
    /// Tokens that were fetched for it.
    pub fetched_tokens: u32,
    /// Time that a prefill instance spent on it.
    pub prefill_s: f64,
    /// From the arrival of its keys and values to its first step.
    pub decode_wait_s: f64,
    /// Whether that was too long, or the time between tokens was.
    pub is_slow: bool,
    /// Where it was decoded.
    pub decode: InstanceId,
    /// Whether it was served within all objectives.
    pub is_good: bool,
}

impl Record {
    pub(crate) fn new(item: &Item<'_>) -> Self {
        Self {
            arrival_s: item.arrival_s,
            input_tokens: item.input_tokens,
            output_tokens: item.output_tokens,
            ending: Ending::RefusedForPrefill,
            ttft_s: 0.0,
            ttft_limit_s: 0.0,
            tbt_s: 0.0,
            cached_tokens: 0,
            fetched_tokens: 0,
            prefill_s: 0.0,
            decode_wait_s: 0.0,
            is_slow: false,
            decode: InstanceId::default(),
            is_good: false,
        }
    }

    pub(crate) fn end(&mut self, ending: Ending, slo: &Slo) {
        self.ending = ending;
        let is_soon = self.ttft_s <= self.ttft_limit_s;
        self.is_slow = self.tbt_s > slo.tbt_s || self.decode_wait_s > DECODE_WAIT_S_MAX;
        self.is_good = ending == Ending::Served && is_soon && !self.is_slow;
    }

    fn tokens(&self) -> f64 {
        f64::from(self.input_tokens) + f64::from(self.output_tokens)
    }

    fn has_first_token(&self) -> bool {
        matches!(self.ending, Ending::Served | Ending::RefusedLate)
    }
}

/// The load at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at_s: f64,
    /// Work queued at all prefill instances, in seconds.
    pub prefill_backlog_s: f64,
    /// Requests in all batches.
    pub decode_requests: usize,
    /// Tokens that they hold.
    pub decode_kv_tokens: u64,
}

/// A distribution, in the unit of its values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Values.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Half are not above it.
    pub p50: f64,
    /// Nine of ten are not above it.
    pub p90: f64,
    /// 99 of 100 are not above it.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Distribution {
    /// Of these values. Zeros if there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let at = |permille: usize| values[(count * permille).div_ceil(1000).max(1) - 1];
        Self {
            count,
            mean: values.iter().sum::<f64>() / number(count),
            p50: at(500),
            p90: at(900),
            p99: at(990),
            max: at(1000),
        }
    }
}

/// What became of one length class, or of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Requests.
    pub requests: usize,
    /// Share of them that were served within all objectives.
    pub good: f64,
    /// Share of the tokens, of prompts and answers, that belong to those.
    pub good_tokens: f64,
}

impl Share {
    fn of(records: impl Iterator<Item = Record>) -> Self {
        let mut share = Self::default();
        let (mut tokens, mut good, mut good_tokens) = (0.0, 0.0, 0.0);
        for record in records {
            share.requests += 1;
            tokens += record.tokens();
            if record.is_good {
                good += 1.0;
                good_tokens += record.tokens();
            }
        }
        if share.requests > 0 {
            share.good = good / number(share.requests);
            share.good_tokens = good_tokens / tokens;
        }
        share
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// All requests.
    pub all: Share,
    /// Each of [`LengthClass::ALL`].
    pub classes: [Share; 3],
    /// Requests by [`Ending::ALL`].
    pub endings: [usize; 5],
    /// Requests that were served with a late first token.
    pub late: usize,
    /// Requests that were served with tokens that came too slowly.
    pub slow: usize,
    /// Time to first token of those that got one, in seconds.
    pub ttft_s: Distribution,
    /// Time between tokens of those that were served, in seconds.
    pub tbt_s: Distribution,
    /// Tokens of prompts that were found in caches, of those whose prefill started.
    pub hit_tokens: f64,
    /// Mean time that a prefill instance spent on a request that it started, in seconds.
    pub prefill_s: f64,
    /// Prefill time spent on requests that were refused later, in seconds, over all.
    pub wasted_prefill_s: f64,
    /// Tokens copied between prefill instances.
    pub fetched_tokens: f64,
    /// Share of the prefill instances' time that was used, up to the last arrival.
    pub prefill_utilization: f64,
    /// Every request, in order of arrival.
    pub records: Vec<Record>,
    /// The load over time.
    pub samples: Vec<Sample>,
}

impl Report {
    pub(crate) fn new(records: Vec<Record>, samples: Vec<Sample>, prefill: usize) -> Self {
        let class = |class: LengthClass| {
            let of_class = move |record: &&Record| LengthClass::of(record.input_tokens) == class;
            Share::of(records.iter().filter(of_class).copied())
        };
        let ended = |ending: Ending| records.iter().filter(|r| r.ending == ending).count();
        let started = || records.iter().filter(|record| record.prefill_s > 0.0);
        let sum = |value: fn(&Record) -> f64| started().map(value).sum::<f64>();
        let served = records.iter().filter(|r| r.ending == Ending::Served);
        let with_token = records.iter().filter(|record| record.has_first_token());
        let wasted = records
            .iter()
            .filter(|r| matches!(r.ending, Ending::RefusedLate | Ending::Dropped));
        let end_s = records.last().map_or(0.0, |record| record.arrival_s);
        let prefill_s = sum(|record| record.prefill_s);
        Self {
            all: Share::of(records.iter().copied()),
            classes: LengthClass::ALL.map(class),
            endings: Ending::ALL.map(ended),
            late: served.clone().filter(|r| r.ttft_s > r.ttft_limit_s).count(),
            slow: served.clone().filter(|r| r.is_slow).count(),
            ttft_s: Distribution::of(with_token.map(|record| record.ttft_s).collect()),
            tbt_s: Distribution::of(served.map(|record| record.tbt_s).collect()),
            hit_tokens: ratio(
                sum(|record| f64::from(record.cached_tokens)),
                sum(|record| f64::from(record.input_tokens)),
            ),
            prefill_s: ratio(prefill_s, number(started().count())),
            wasted_prefill_s: wasted.fold(0.0, |sum, record| sum + record.prefill_s),
            fetched_tokens: records.iter().map(|r| f64::from(r.fetched_tokens)).sum(),
            prefill_utilization: ratio(prefill_s, end_s * number(prefill)),
            records,
            samples,
        }
    }

    /// Requests that were not served.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.endings[1..].iter().sum()
    }
}

/// Mean of the longest tenth of a request's intervals, of which there is at least one. They come
/// out in another order.
pub(crate) fn longest_tenth_mean_s(intervals_s: &mut [f64]) -> f64 {
    let count = intervals_s.len();
    let longest = count.div_ceil(10);
    let (_, first, rest) = intervals_s.select_nth_unstable_by(count - longest, f64::total_cmp);
    (*first + rest.iter().sum::<f64>()) / number(longest)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

pub(crate) fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values = (1..=200).rev().map(f64::from).collect();
        let distribution = Distribution::of(values);
        assert_eq!(distribution.p50, 100.0);
        assert_eq!(distribution.p90, 180.0);
        assert_eq!(distribution.p99, 198.0);
        assert_eq!(distribution.max, 200.0);
        assert_eq!(distribution.mean, 100.5);
        assert_eq!(Distribution::of(vec![]), Distribution::default());
        assert_eq!(Distribution::of(vec![3.0]).p50, 3.0);
    }
}
