//! Whether an instance's memory is tight, and which blocks are used often.
//!
//! A block that is fetched is kept where it was used, and so is held twice. That pays where it is
//! used again at both, and costs an eviction. Where memory is tight and the block is used by few
//! prompts, most likely by one session that has gone elsewhere, its old holder had better drop it:
//! it is moved rather than copied.

use lunette_runtime_core::random::mix;

use crate::ids::BlockHash;

/// How much the age of the last block counts.
const MEMORY: f64 = 1.0 / 4096.0;
/// Memory is tight where blocks are evicted at less than this many times the age at which they are
/// used again on average. Uses at greater ages than evictions are never seen.
const TIGHT: f64 = 8.0;

/// Ages of the blocks of an instance: how long ago they had been used when they were used again, or
/// evicted. Both are means over blocks, so that the one block that all prompts share, which is used
/// all the time, counts for little.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ages {
    evicted_s: Option<f64>,
    used_again_s: Option<f64>,
}

impl Ages {
    /// A block was evicted, this long after its last use.
    pub fn evicted(&mut self, age_s: f64) {
        follow(&mut self.evicted_s, age_s, 1);
    }

    /// So many blocks were used again, of which the last had been used this long before.
    pub fn used_again(&mut self, age_s: f64, blocks: u32) {
        follow(&mut self.used_again_s, age_s, blocks);
    }

    /// Whether blocks are evicted so early that a copy pushes out what would be used.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        match (self.evicted_s, self.used_again_s) {
            (Some(evicted_s), Some(used_again_s)) => evicted_s < TIGHT * used_again_s,
            _ => false,
        }
    }
}

fn follow(mean: &mut Option<f64>, value: f64, weight: u32) {
    let mean = mean.get_or_insert(value);
    let share = (MEMORY * f64::from(weight)).min(1.0);
    *mean += share * (value - *mean);
}

const ROWS: usize = 2;
const COLUMNS: usize = 1 << 16;
/// After this many uses all counts are halved.
const USES_PER_AGE: u32 = 1 << 16;

/// How often blocks were used of late, counted in fixed memory: never too low, seldom too high.
#[derive(Clone, Debug)]
pub struct Popularity {
    counts: Vec<u8>,
    uses: u32,
}

impl Default for Popularity {
    fn default() -> Self {
        Self::new()
    }
}

impl Popularity {
    /// Nothing was used yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            counts: vec![0; ROWS * COLUMNS],
            uses: 0,
        }
    }

    /// A prompt uses these blocks.
    pub fn used(&mut self, hashes: &[BlockHash]) {
        for &hash in hashes {
            for place in places(hash) {
                self.counts[place] = self.counts[place].saturating_add(1);
            }
            self.uses += 1;
            if self.uses == USES_PER_AGE {
                self.uses = 0;
                self.counts.iter_mut().for_each(|count| *count /= 2);
            }
        }
    }

    /// Uses of a block of late.
    #[must_use]
    pub fn of(&self, hash: BlockHash) -> u8 {
        let [first, second] = places(hash).map(|place| self.counts[place]);
        first.min(second)
    }
}

fn places(hash: BlockHash) -> [usize; ROWS] {
    let mixed = mix(hash);
    let place = |bits: u64| usize::from(u16::try_from(bits & 0xffff).expect("it is masked"));
    [place(mixed), COLUMNS + place(mixed >> 32)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_tight_where_evictions_come_close_to_uses() {
        let mut ages = Ages::default();
        assert!(!ages.is_tight());
        assert!(!ages.is_tight());
        for _ in 0..20_000 {
            ages.used_again(0.0, 1);
            ages.used_again(11.0, 9);
        }
        assert!(!ages.is_tight());
        ages.evicted(79.0);
        assert!(ages.is_tight());
        for _ in 0..20_000 {
            ages.evicted(80.0);
        }
        assert!(!ages.is_tight());
    }

    #[test]
    fn counts_are_never_too_low_and_are_forgotten_in_time() {
        let mut popularity = Popularity::new();
        for _ in 0..20 {
            popularity.used(&[7]);
        }
        popularity.used(&[8]);
        assert_eq!(popularity.of(7), 20);
        assert_eq!(popularity.of(8), 1);
        for _ in 0..300 {
            popularity.used(&[9]);
        }
        assert_eq!(popularity.of(9), u8::MAX);
        let others: Vec<BlockHash> = vec![10; usize::try_from(USES_PER_AGE).expect("it fits")];
        popularity.used(&others);
        assert_eq!(popularity.of(7), 10);
    }
}
