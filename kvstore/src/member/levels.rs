//! Where words that stand for keys are in a list that threads read: tables one behind the other, each twice as large as the
//! one before, so that a list takes as much memory as it has keys, and what stands in it never moves.
//!
//! ```text
//!   0        how many levels are in use
//!   8 ..     level 0: 512 buckets of 8 words, each a line of a cache
//!            level 1: 1,024 buckets
//!            ...
//! ```
//!
//! A key has one bucket in each level, by its first bits. It is put into the last level that has room for it, and a level is
//! begun when none has.

use std::sync::atomic::{AtomicU64, Ordering};

use lunette_kvstore_proto::key::Fingerprint;
use lunette_runtime::arena::WordsView;

pub(super) const BUCKET_WORDS: usize = 8;
const FIRST_BUCKETS: usize = 512;

/// The first word of a key's bucket in a level.
fn bucket_of(key: Fingerprint, level: usize) -> usize {
    let buckets = FIRST_BUCKETS << level;
    let bucket = (u128::from(key.high()) * buckets as u128) >> 64;
    let bucket = usize::try_from(bucket).expect("below their number");
    // Before it lie all smaller ones.
    (1 + (buckets - FIRST_BUCKETS) + bucket) * BUCKET_WORDS
}

/// Levels that are needed for so many words, and how many words that takes.
pub(super) fn levels_for(words: usize) -> (usize, usize) {
    let is_enough = |last: &usize| ((2 << last) - 1) * FIRST_BUCKETS * BUCKET_WORDS >= words;
    let last = (0..32).find(is_enough).unwrap_or(31);
    (last + 1, bucket_of(Fingerprint(0), last + 1))
}

/// One core's list, for that core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels<'a> {
    words: &'a [AtomicU64],
    levels_max: usize,
}

impl<'a> Levels<'a> {
    /// In words that are all 0 at first, as many as [`levels_for`] has told.
    pub(super) const fn new(words: &'a [AtomicU64], levels_max: usize) -> Self {
        Self { words, levels_max }
    }

    fn used(&self) -> usize {
        usize::try_from(self.words[0].load(Ordering::Relaxed)).expect("few")
    }

    fn bucket(&self, key: Fingerprint, level: usize) -> &'a [AtomicU64] {
        let first = bucket_of(key, level);
        &self.words[first..first + BUCKET_WORDS]
    }

    /// The word of a key that `is_its`.
    pub(super) fn find(
        &self,
        key: Fingerprint,
        is_its: impl Fn(u64) -> bool,
    ) -> Option<&'a AtomicU64> {
        let levels = (0..self.used()).rev();
        let mut words = levels.flat_map(|level| self.bucket(key, level));
        words.find(|word| is_its(word.load(Ordering::Relaxed)))
    }

    /// A word for a key that has none; `None` if all that it could have are taken.
    pub(super) fn free(&self, key: Fingerprint) -> Option<&'a AtomicU64> {
        if let Some(word) = self.find(key, |word| word == 0) {
            return Some(word);
        }
        let next = self.used();
        if next == self.levels_max {
            return None;
        }
        self.words[0].store(next as u64 + 1, Ordering::Release);
        self.bucket(key, next).first()
    }

    /// Asks for the words of a key, which are about to be looked at.
    pub(super) fn touch(&self, key: Fingerprint) {
        for level in 0..self.used() {
            std::hint::black_box(self.bucket(key, level)[0].load(Ordering::Relaxed));
        }
    }

    /// No key has a word any more.
    pub(super) fn clear(&self) {
        let end = bucket_of(Fingerprint(0), self.used());
        self.words[0].store(0, Ordering::Release);
        for word in &self.words[BUCKET_WORDS..end] {
            word.store(0, Ordering::Release);
        }
    }
}

/// A list, for who looks on. What its core says of it is not relied on: words that are not there are not read.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelsView {
    at: usize,
    levels_max: usize,
}

impl LevelsView {
    /// The list that begins at the word `at` and goes on to the end.
    pub(super) fn new(words: &WordsView, at: usize) -> Self {
        let count = words.len().saturating_sub(at);
        let fits = |levels: &usize| bucket_of(Fingerprint(0), *levels) <= count;
        let levels_max = (0..=32).take_while(fits).last();
        Self {
            at,
            levels_max: levels_max.unwrap_or(0),
        }
    }

    /// The words that may be a key's.
    pub(super) fn words_of(
        self,
        words: &WordsView,
        key: Fingerprint,
    ) -> impl Iterator<Item = u64> + '_ {
        let used = match self.levels_max {
            0 => 0,
            levels_max => {
                usize::try_from(words.load(self.at)).map_or(0, |used| used.min(levels_max))
            }
        };
        let levels = (0..used).rev();
        levels.flat_map(move |level| {
            let first = self.at + bucket_of(key, level);
            (first..first + BUCKET_WORDS).map(|index| words.load(index))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;

    use lunette_runtime::arena::Words;

    use super::*;

    fn key(n: u64) -> Fingerprint {
        let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Fingerprint(u128::from(spread) << 64 | u128::from(n))
    }

    #[test]
    fn what_stands_there_is_found_and_takes_as_much_as_there_is() {
        let (levels_max, count) = levels_for(1 << 16);
        assert_eq!((levels_max, count), (5, (1 + 512 * 31) * 8));
        let memory = Words::new(3 + count, true).expect("memory");
        let file = memory.as_fd().try_clone_to_owned().expect("a descriptor");
        let view = WordsView::map(file, 3 + count).expect("sealed");
        let levels = Levels::new(&memory[3..], levels_max);
        let levels_view = LevelsView::new(&view, 3);
        assert_eq!(levels_view.levels_max, levels_max);
        let mut model = BTreeMap::new();
        let mut refused = 0;
        for n in 1..=200_000_u64 {
            let word = levels.free(key(n));
            if let Some(word) = word {
                assert_eq!(word.swap(n, Ordering::Release), 0);
                model.insert(n, ());
            } else {
                refused += 1;
            }
            if n == 1000 {
                assert!(levels.used() <= 2, "{} levels", levels.used());
            }
            if n % 3 == 0 {
                let word = levels.find(key(n / 3), |word| word == n / 3);
                assert_eq!(word.is_some(), model.remove(&(n / 3)).is_some());
                if let Some(word) = word {
                    word.store(0, Ordering::Release);
                }
            }
        }
        assert_eq!(levels.used(), levels_max);
        assert!(
            model.len() > count * 9 / 10 && refused > 0,
            "{}",
            model.len()
        );
        for n in 1..=200_000 {
            let is_there = levels_view.words_of(&view, key(n)).any(|word| word == n);
            assert_eq!(is_there, model.contains_key(&n), "{n}");
        }
        levels.touch(key(1));
        levels.clear();
        assert!(
            memory[3..]
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
        assert_eq!(levels_view.words_of(&view, key(1)).count(), 0);
    }

    #[test]
    fn levels_that_are_not_there_are_not_read() {
        let (levels_max, count) = levels_for(1 << 13);
        for (words, fit) in [(1, 0), (count - 1, levels_max - 1), (count, levels_max)] {
            let memory = Words::new(words, true).expect("memory");
            let file = memory.as_fd().try_clone_to_owned().expect("a descriptor");
            let view = WordsView::map(file, words).expect("sealed");
            memory[0].store(u64::MAX, Ordering::Release);
            let levels = LevelsView::new(&view, 0);
            let read = levels.words_of(&view, Fingerprint(u128::MAX)).count();
            assert_eq!(read, fit * BUCKET_WORDS, "{words} words");
            let beyond = LevelsView::new(&view, words + 1);
            assert_eq!(beyond.words_of(&view, key(1)).count(), 0);
        }
    }

    #[test]
    fn levels_suffice_for_what_is_asked_and_no_more() {
        for (words, levels) in [(0, 1), (4096, 1), (4097, 2), (1 << 22, 11)] {
            assert_eq!(levels_for(words).0, levels, "{words}");
        }
    }
}
