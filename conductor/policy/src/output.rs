//! The length of answers, learnt from those that ended.
//!
//! The length of an answer is not known before it ends, and it hardly depends on the prompt's
//! (correlation 0.07 in the conversation trace). So one distribution is kept for all, as counts in
//! buckets, and a request's chance to go on is that of the answers that got as far as it has.

use crate::state::{as_f64, count};

const BUCKETS: usize = 128;
const BUCKET_TOKENS: f64 = 32.0;
/// Answers believed to have ended in each of the first buckets, before any did: so that early
/// estimates are a mean of 500 tokens or so, which is cautious.
const PRIOR_BUCKETS: usize = 32;

/// The distribution of the lengths of answers.
#[derive(Clone, Debug)]
pub struct OutputEstimator {
    /// Answers whose length lay in this bucket or behind it.
    reached: [u64; BUCKETS],
    tokens: u64,
    answers: u64,
}

impl Default for OutputEstimator {
    fn default() -> Self {
        Self::new()
    }
}

impl OutputEstimator {
    /// One that has seen no answer.
    #[must_use]
    pub fn new() -> Self {
        let mut reached = [0; BUCKETS];
        for (at, count) in reached.iter_mut().enumerate() {
            *count = u64::try_from(PRIOR_BUCKETS.saturating_sub(at)).expect("it is small");
        }
        let prior = u64::try_from(PRIOR_BUCKETS).expect("it is small");
        Self {
            reached,
            tokens: prior * 500,
            answers: prior,
        }
    }

    /// An answer ended after this many tokens.
    pub fn ended(&mut self, output_tokens: u32) {
        let last = usize::try_from(output_tokens).unwrap_or(usize::MAX) / 32;
        for count in &mut self.reached[..=last.min(BUCKETS - 1)] {
            *count += 1;
        }
        self.tokens += u64::from(output_tokens);
        self.answers += 1;
    }

    /// Mean length, in tokens.
    #[must_use]
    pub fn mean_tokens(&self) -> f64 {
        as_f64(self.tokens) / as_f64(self.answers)
    }

    /// The chance that an answer that has `made` tokens gets `more`.
    #[must_use]
    pub fn survival(&self, made: f64, more: f64) -> f64 {
        let here = self.reached_at(made);
        if here <= 0.0 {
            return 0.0;
        }
        (self.reached_at(made + more) / here).clamp(0.0, 1.0)
    }

    /// Between two buckets it falls in a straight line.
    fn reached_at(&self, tokens: f64) -> f64 {
        let place = tokens.max(0.0) / BUCKET_TOKENS;
        let mut low = 0;
        let mut high = BUCKETS;
        // A float is not cast to an index anywhere: the bucket is searched for.
        while high - low > 1 {
            let middle = low.midpoint(high);
            if count(middle) <= place {
                low = middle;
            } else {
                high = middle;
            }
        }
        let here = as_f64(self.reached[low]);
        let next = self.reached.get(low + 1).copied().map_or(0.0, as_f64);
        let part = (place - count(low)).min(1.0);
        here + (next - here) * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_got_far_is_judged_by_those_who_got_as_far() {
        let mut outputs = OutputEstimator::new();
        for _ in 0..5_000 {
            outputs.ended(20);
            outputs.ended(1_000);
        }
        assert!((outputs.survival(0.0, 64.0) - 0.5).abs() < 0.02);
        assert!(outputs.survival(64.0, 640.0) > 0.98);
        assert!(outputs.survival(64.0, 1_100.0) < 0.02);
        assert!((outputs.mean_tokens() - 510.0).abs() < 5.0);
    }

    #[test]
    fn chances_fall_from_one_to_nothing() {
        let outputs = OutputEstimator::new();
        assert_eq!(outputs.survival(0.0, 0.0), 1.0);
        assert!(outputs.survival(0.0, 500.0) > outputs.survival(0.0, 600.0));
        assert_eq!(outputs.survival(0.0, 1e9), 0.0);
        assert_eq!(outputs.survival(1e9, 1.0), 0.0);
    }
}
