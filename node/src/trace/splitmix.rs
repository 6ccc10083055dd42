//! `SplitMix64`: a stream of pseudo-random numbers that stays the same for ever.

/// The increment of the generator: 2^64 divided by the golden ratio, made odd.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// A small deterministic generator. Not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(INCREMENT);
        mix(self.state)
    }

    /// A number below `bound`, which is not zero. The bias is at most `bound` / 2^32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "no number is below zero");
        let high = self.next() >> 32;
        u32::try_from((high * u64::from(bound)) >> 32).expect("it is below a u32")
    }
}

/// Spreads every bit of `value` over the whole result.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        let mut random = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_both_ends() {
        let mut random = SplitMix64::new(1);
        let drawn: Vec<u32> = (0..1000).map(|_| random.below(10)).collect();
        assert_eq!(drawn.iter().min(), Some(&0));
        assert_eq!(drawn.iter().max(), Some(&9));
    }
}
