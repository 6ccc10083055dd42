//! Which keys this core, their home, would show: words that other threads read without asking it.
//!
//! ```text
//!   0       turn: even while the rest may be read; it is another one each time that all of it changes
//!   1       the epoch of the map under which that holds
//!   2       1: what is not listed is absent
//!   8 ..    buckets of 8 words: one line of a cache each
//! ```
//!
//! A key is in the bucket that its first bits say. A word is 0 for nothing, [`CROWDED`], or [`tag`] of a key. A bucket that
//! had no room for a key once has no word that is 0 from then on: who finds none does not know what else would be in it.
//! When too many are so, everything is listed anew. Two keys that are taken for each other agree in 62 bits besides
//! their bucket.

use std::hint::black_box;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::home::{Home, PresenceChange};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::Peek;
use lunette_runtime::arena::{Words, WordsView};

use super::core::MemberCore;
use super::tier::Tier;

/// Bounds of the words of one core. They take memory once they are written.
const WORDS_MIN: usize = 1 << 12;
const WORDS_MAX: usize = 1 << 21;
/// Words for each copy that the core may know: of as many, one in six thousand has no room in its bucket.
const WORDS_PER_COPY: usize = 4;
/// Of how many buckets one may be crowded.
const CROWDED_SHARE: usize = 16;

const TURN: usize = 0;
const EPOCH: usize = 1;
const IS_ALL_TOLD: usize = 2;
const BUCKET_WORDS: usize = 8;

/// No key is here, and some that belong here are not listed.
const CROWDED: u64 = 1;
const IS_TAG: u64 = 2;
const IS_PRESENT: u64 = 1;

/// A key, without what is known of it.
const fn tag(key: Fingerprint) -> u64 {
    key.low() & !(IS_TAG | IS_PRESENT) | IS_TAG
}

/// The first word of a key's bucket, where there are so many words.
fn bucket_of(key: Fingerprint, words: usize) -> usize {
    let buckets = (words / BUCKET_WORDS - 1) as u64;
    let bucket = (u128::from(key.high()) * u128::from(buckets)) >> 64;
    (1 + usize::try_from(bucket).expect("below their number")) * BUCKET_WORDS
}

/// The list of one core. It says nothing any more once it is dropped.
#[derive(Debug)]
pub(crate) struct Presence {
    words: Words,
    /// Buckets that had no room for a key: a bit for each.
    crowded: Vec<u64>,
    crowded_count: usize,
    /// Changes since everything was listed anew.
    changes: usize,
    turn: u64,
    /// Shared with each view.
    views: Arc<()>,
    told: Option<(Epoch, bool)>,
}

impl Presence {
    /// For a core that may know so many copies.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(copies_max: usize) -> io::Result<Self> {
        let words = copies_max.saturating_mul(WORDS_PER_COPY);
        let words = words
            .clamp(WORDS_MIN, WORDS_MAX)
            .next_multiple_of(BUCKET_WORDS);
        let presence = Self {
            words: Words::new(words, true)?,
            crowded: vec![0; (words / BUCKET_WORDS).div_ceil(64)],
            crowded_count: 0,
            changes: 0,
            turn: 1,
            views: Arc::new(()),
            told: None,
        };
        presence.words[TURN].store(1, Ordering::Release);
        Ok(presence)
    }

    /// For those who look on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn view(&self) -> io::Result<PresenceView> {
        let file: OwnedFd = self.words.as_fd().try_clone_to_owned()?;
        let count = self.words.len();
        let words = WordsView::map(file, count).map_err(io::Error::other)?;
        let alive = Arc::clone(&self.views);
        Ok(PresenceView {
            words,
            count,
            _alive: alive,
        })
    }

    /// Takes over what the home has to tell.
    pub(crate) fn follow(&mut self, home: &mut Home) {
        home.tell_presence(|change| match change {
            PresenceChange::Reset => self.reset(),
            PresenceChange::Key(key, peek) => self.set(key, peek),
        });
        // Not more often than pays.
        let is_crowded = self.crowded_count * CROWDED_SHARE > self.words.len() / BUCKET_WORDS;
        if is_crowded && self.changes > self.words.len() {
            home.watch();
        }
        let now = (home.epoch(), home.is_all_told());
        if self.told != Some(now) {
            self.close();
            self.words[EPOCH].store(now.0.0, Ordering::Release);
            self.words[IS_ALL_TOLD].store(now.1.into(), Ordering::Release);
            self.told = Some(now);
            self.step();
        }
    }

    /// Asks for the words of a key, which are about to be written.
    pub(super) fn touch(&self, key: Fingerprint) {
        let first = bucket_of(key, self.words.len());
        black_box(self.words[first].load(Ordering::Relaxed));
    }

    /// From now on who looks knows nothing.
    pub(crate) fn close(&mut self) {
        if self.turn.is_multiple_of(2) {
            self.step();
        }
        self.told = None;
    }

    fn step(&mut self) {
        self.turn += 1;
        self.words[TURN].store(self.turn, Ordering::Release);
    }

    fn reset(&mut self) {
        self.close();
        for word in &self.words[BUCKET_WORDS..] {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Release);
            }
        }
        self.crowded.fill(0);
        (self.crowded_count, self.changes) = (0, 0);
    }

    fn set(&mut self, key: Fingerprint, peek: Peek) {
        self.changes += 1;
        let first = bucket_of(key, self.words.len());
        let bucket = &self.words[first..first + BUCKET_WORDS];
        let tag = tag(key);
        let is_key = |word: &&AtomicU64| word.load(Ordering::Relaxed) & !IS_PRESENT == tag;
        let is_free = |word: &&AtomicU64| word.load(Ordering::Relaxed) <= CROWDED;
        let listed = bucket.iter().find(is_key);
        let value = match peek {
            Peek::Present => tag | IS_PRESENT,
            Peek::Unsure => tag,
            Peek::Absent if self.is_crowded(first) => CROWDED,
            Peek::Absent => 0,
        };
        match listed.or_else(|| bucket.iter().find(is_free).filter(|_| peek != Peek::Absent)) {
            Some(word) => word.store(value, Ordering::Release),
            // All of its words are taken: it is marked as they are given up.
            None if peek != Peek::Absent => self.crowd(first),
            None => {}
        }
    }

    const fn bit(first: usize) -> (usize, u64) {
        let bucket = first / BUCKET_WORDS;
        (bucket / 64, 1 << (bucket % 64))
    }

    fn is_crowded(&self, first: usize) -> bool {
        let (word, bit) = Self::bit(first);
        self.crowded[word] & bit != 0
    }

    fn crowd(&mut self, first: usize) {
        let (word, bit) = Self::bit(first);
        self.crowded_count += usize::from(self.crowded[word] & bit == 0);
        self.crowded[word] |= bit;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.close();
    }
}

impl MemberCore {
    /// What threads of this process may look at; `None` once this core serves nobody any more.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn presence(&self) -> io::Result<Option<PresenceView>> {
        if self.has_left() {
            return Ok(None);
        }
        let mut presence = self.presence.borrow_mut();
        if let Some(presence) = &*presence {
            return presence.view().map(Some);
        }
        let begun = presence.insert(Presence::new(self.copies_max())?);
        let view = begun.view()?;
        let home = &mut self.machines().borrow_mut().home;
        home.watch();
        begun.follow(home);
        self.busy.raise();
        Ok(Some(view))
    }

    /// Nothing is shown any more once nobody looks.
    pub(super) fn end_presence(&self) {
        let mut presence = self.presence.borrow_mut();
        if (presence.as_ref()).is_some_and(|shown| Arc::strong_count(&shown.views) == 1) {
            *presence = None;
            self.machines().borrow_mut().home.end_watch();
        }
    }

    /// How many copies it may know by the memory and the drive that it has.
    fn copies_max(&self) -> usize {
        let in_memory_max = self.bytes().borrow().limits().entries_max();
        in_memory_max.saturating_add(self.tier().map_or(0, Tier::records_max))
    }

    /// The home has been told something.
    pub(super) fn tell_presence(&self, home: &mut Home) {
        if let Some(presence) = &mut *self.presence.borrow_mut() {
            presence.follow(home);
        }
    }
}

/// The list of one core, for those who look on. It may be looked at by any thread.
#[derive(Debug)]
pub(crate) struct PresenceView {
    words: WordsView,
    count: usize,
    _alive: Arc<()>,
}

impl PresenceView {
    /// What the core would say of a key. `home_under` is the epoch of the map under which it is the key's home, as far as
    /// is known; nothing is said of what is absent without, or if the core's is another one.
    ///
    /// What has been told before this is called is found.
    pub(crate) fn peek(&self, key: Fingerprint, home_under: Option<Epoch>) -> Peek {
        let turn = self.words.load(TURN);
        if !turn.is_multiple_of(2) {
            return Peek::Unsure;
        }
        let first = bucket_of(key, self.count);
        let tag = tag(key);
        let mut has_room = false;
        for index in first..first + BUCKET_WORDS {
            let word = self.words.load(index);
            if word & !IS_PRESENT == tag {
                let is_present = word & IS_PRESENT != 0;
                return if is_present {
                    Peek::Present
                } else {
                    Peek::Unsure
                };
            }
            has_room |= word == 0;
        }
        let is_home = home_under.is_some_and(|epoch| epoch.0 == self.words.load(EPOCH));
        let is_all_told = self.words.load(IS_ALL_TOLD) == 1;
        if has_room && is_home && is_all_told && self.words.load(TURN) == turn {
            Peek::Absent
        } else {
            Peek::Unsure
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Buckets of the smallest list.
    const BUCKETS: usize = WORDS_MIN / BUCKET_WORDS - 1;

    /// A key of this bucket of the smallest list.
    fn key(bucket: usize, low: u64) -> Fingerprint {
        let width = u64::MAX / BUCKETS as u64;
        let high = bucket as u64 * width + width / 2;
        Fingerprint(u128::from(high) << 64 | u128::from(low << 2))
    }

    /// One that is looked at under the first epoch, where everything is told.
    fn told() -> (Presence, PresenceView) {
        let mut presence = Presence::new(0).expect("memory");
        let view = presence.view().expect("memory");
        tell_all(&mut presence, 1);
        (presence, view)
    }

    fn tell_all(presence: &mut Presence, epoch: u64) {
        presence.close();
        presence.words[EPOCH].store(epoch, Ordering::Release);
        presence.words[IS_ALL_TOLD].store(1, Ordering::Release);
        presence.step();
    }

    fn peek(view: &PresenceView, key: Fingerprint) -> Peek {
        view.peek(key, Some(Epoch(1)))
    }

    #[test]
    fn nothing_is_said_before_it_is_told_by_another_map_or_of_who_is_gone() {
        let mut presence = Presence::new(0).expect("memory");
        let view = presence.view().expect("memory");
        let (here, other) = (key(3, 7), key(3, 8));
        presence.set(here, Peek::Present);
        assert_eq!(peek(&view, here), Peek::Unsure, "it has not begun");
        tell_all(&mut presence, 1);
        assert_eq!(
            [peek(&view, here), peek(&view, other)],
            [Peek::Present, Peek::Absent]
        );
        for home_under in [None, Some(Epoch(2))] {
            assert_eq!(view.peek(here, home_under), Peek::Present);
            assert_eq!(view.peek(other, home_under), Peek::Unsure);
        }
        presence.set(here, Peek::Unsure);
        assert_eq!(peek(&view, here), Peek::Unsure);
        presence.set(here, Peek::Absent);
        assert_eq!(peek(&view, here), Peek::Absent);
        presence.set(here, Peek::Present);
        presence.reset();
        tell_all(&mut presence, 1);
        assert_eq!(peek(&view, here), Peek::Absent);
        presence.words[IS_ALL_TOLD].store(0, Ordering::Release);
        assert_eq!(
            peek(&view, here),
            Peek::Unsure,
            "it may not have been listed"
        );
        presence.set(here, Peek::Present);
        drop(presence);
        assert_eq!(peek(&view, here), Peek::Unsure);
    }

    #[test]
    fn of_a_bucket_that_had_no_room_nothing_is_absent() {
        let (mut presence, view) = told();
        let keys = |n: u64| key(9, n);
        for n in 1..=9 {
            presence.set(keys(n), Peek::Present);
        }
        assert!((1..=8).all(|n| peek(&view, keys(n)) == Peek::Present));
        assert_eq!(peek(&view, keys(9)), Peek::Unsure);
        for n in 1..=8 {
            presence.set(keys(n), Peek::Absent);
        }
        assert!((1..=10).all(|n| peek(&view, keys(n)) == Peek::Unsure));
        presence.set(keys(9), Peek::Present);
        assert_eq!(peek(&view, keys(9)), Peek::Present, "there is room again");
        assert_eq!(peek(&view, key(10, 1)), Peek::Absent, "a bucket beside it");
        assert_eq!(
            (
                presence.crowded_count,
                presence.is_crowded(bucket_of(keys(1), WORDS_MIN))
            ),
            (1, true)
        );
    }

    proptest! {
        /// What is said is so, whatever is told, and what has room is said.
        #[test]
        fn prop_what_is_said_is_so(
            told_keys in prop::collection::vec((0..4_usize, 1..14_u64, 0..3_u8), 1..400),
        ) {
            let (mut presence, view) = told();
            let mut model: BTreeMap<Fingerprint, Peek> = BTreeMap::new();
            let mut fullest = [0; 4];
            for (bucket, low, peek_index) in told_keys {
                let key = key(bucket, low);
                let known = [Peek::Absent, Peek::Present, Peek::Unsure][usize::from(peek_index)];
                presence.set(key, known);
                model.remove(&key);
                if known != Peek::Absent {
                    model.insert(key, known);
                }
                let first = bucket_of(key, WORDS_MIN);
                let listed = model.keys().filter(|key| bucket_of(**key, WORDS_MIN) == first);
                fullest[bucket] = fullest[bucket].max(listed.count());
            }
            for (bucket, low) in (0..4).flat_map(|bucket| (1..14).map(move |low| (bucket, low))) {
                let key = key(bucket, low);
                let is = model.get(&key).copied().unwrap_or(Peek::Absent);
                let said = peek(&view, key);
                prop_assert!(said == is || said == Peek::Unsure, "{:?} is {:?}, said {:?}", key, is, said);
                prop_assert!(said == is || fullest[bucket] >= BUCKET_WORDS, "{:?} is not said", key);
            }
        }
    }
}
