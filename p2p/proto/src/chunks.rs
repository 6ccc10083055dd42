//! A set of chunks of one object.

/// Which of an object's chunks somebody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkSet {
    words: Vec<u64>,
    /// How many chunks the object has.
    len: u32,
    /// How many are in the set.
    count: u32,
}

impl ChunkSet {
    /// None of `len` chunks.
    #[must_use]
    pub fn empty(len: u32) -> Self {
        Self {
            words: vec![0; len.div_ceil(u64::BITS) as usize],
            len,
            count: 0,
        }
    }

    /// All of `len` chunks.
    #[must_use]
    pub fn full(len: u32) -> Self {
        let mut all = Self::empty(len);
        for word in 0..all.words.len() {
            all.words[word] = all.mask(word);
        }
        all.count = len;
        all
    }

    /// How many chunks the object has.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// How many are in the set.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Whether none is in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether all are in it.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count == self.len
    }

    /// Whether a chunk is in it; one that there is not never is.
    #[must_use]
    pub fn contains(&self, chunk: u32) -> bool {
        chunk < self.len && self.words[(chunk / u64::BITS) as usize] & bit(chunk) != 0
    }

    /// Puts a chunk in. Whether it was not in before; one that there is not stays out.
    pub fn insert(&mut self, chunk: u32) -> bool {
        if chunk >= self.len || self.contains(chunk) {
            return false;
        }
        self.words[(chunk / u64::BITS) as usize] |= bit(chunk);
        self.count += 1;
        true
    }

    /// Takes a chunk out. Whether it was in.
    pub fn remove(&mut self, chunk: u32) -> bool {
        if !self.contains(chunk) {
            return false;
        }
        self.words[(chunk / u64::BITS) as usize] &= !bit(chunk);
        self.count -= 1;
        true
    }

    /// The set in words of 64 chunks, the lowest first; bits behind the last chunk are 0.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The chunks of a word that `word` has and the set has not, put in one after the other.
    pub fn missing_of(&self, index: usize, word: u64) -> impl Iterator<Item = u32> + use<> {
        let held = self.words.get(index).copied();
        let new = held.map_or(0, |held| word & self.mask(index) & !held);
        bits(index, new)
    }

    /// The chunks in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.words.iter().enumerate();
        words.flat_map(|(index, &word)| bits(index, word))
    }

    /// The bits of a word that stand for chunks.
    fn mask(&self, word: usize) -> u64 {
        let rest = u64::from(self.len) - word as u64 * u64::from(u64::BITS);
        if rest >= u64::from(u64::BITS) {
            u64::MAX
        } else {
            (1 << rest) - 1
        }
    }
}

const fn bit(chunk: u32) -> u64 {
    1 << (chunk % u64::BITS)
}

/// The chunks that the bits of one word stand for.
pub(crate) fn bits(index: usize, mut word: u64) -> impl Iterator<Item = u32> {
    let first = u32::try_from(index).expect("words are bounded") * u64::BITS;
    core::iter::from_fn(move || {
        let low = word.trailing_zeros();
        word &= word.checked_sub(1)?;
        Some(first + low)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_there_is_not_stays_out() {
        let mut set = ChunkSet::empty(65);
        assert!(set.insert(64) && !set.insert(64) && !set.insert(65));
        assert!(!set.contains(65) && !set.contains(u32::MAX) && !set.remove(65));
        assert_eq!(set.missing_of(1, u64::MAX).count(), 0);
        assert_eq!(set.missing_of(0, 5).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(set.missing_of(2, u64::MAX).count(), 0, "no such word");
        assert_eq!(ChunkSet::full(65).words(), [u64::MAX, 1]);
        assert!(ChunkSet::full(64).is_full());
    }

    proptest! {
        #[test]
        fn it_is_a_set(len in 1..200_u32, steps in prop::collection::vec((any::<bool>(), 0..220_u32), 0..200)) {
            let (mut set, mut model) = (ChunkSet::empty(len), BTreeSet::new());
            for (is_insert, chunk) in steps {
                if is_insert {
                    prop_assert_eq!(set.insert(chunk), chunk < len && model.insert(chunk));
                } else {
                    prop_assert_eq!(set.remove(chunk), model.remove(&chunk));
                }
                prop_assert_eq!(set.count() as usize, model.len());
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(set.is_full(), model.len() == len as usize);
        }
    }
}
