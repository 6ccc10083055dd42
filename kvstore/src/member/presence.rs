//! Which keys this core, their home, would show: words that threads and other processes read without asking it.
//!
//! ```text
//!   0       turn: even while the rest may be read; it is another one each time that all of it changes
//!   1       the epoch of the map under which that holds
//!   2       1: what is not listed is absent
//!   8 ..    the keys, in levels
//! ```
//!
//! A key's word is [`tag`] of it, in one of its [buckets](super::levels). If there is no room for a key, nothing is absent
//! until everything has been listed anew. Two keys that are taken for each other agree in 62 bits besides their bucket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::home::{Home, PresenceChange};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::Peek;
use lunette_runtime::arena::{MapError, Words, WordsView};

use super::core::MemberCore;
use super::levels::{Levels, LevelsView, levels_for};
use super::shown::ShownPart;
use super::tier::Tier;

/// Most words of one core's list. They take memory once there are keys for them.
const WORDS_MAX: usize = 1 << 22;
/// Words for each copy that the core may know.
const WORDS_PER_COPY: usize = 2;

const TURN: usize = 0;
const EPOCH: usize = 1;
const IS_ALL_TOLD: usize = 2;
/// Where the levels begin.
const LEVELS: usize = 8;

const IS_TAG: u64 = 2;
const IS_PRESENT: u64 = 1;

/// A key, without what is known of it.
const fn tag(key: Fingerprint) -> u64 {
    key.low() & !(IS_TAG | IS_PRESENT) | IS_TAG
}

/// The list of one core. It says nothing any more once it is dropped.
#[derive(Debug)]
pub(crate) struct Presence {
    words: Words,
    levels_max: usize,
    /// There was no room for a key.
    is_crowded: bool,
    /// Changes since everything was listed anew.
    changes: usize,
    turn: u64,
    /// Shared with all who look on.
    kept: Arc<()>,
    told: Option<(Epoch, bool)>,
}

impl Presence {
    /// For a core that may know so many copies.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(copies_max: usize) -> io::Result<Self> {
        let words = copies_max.saturating_mul(WORDS_PER_COPY).min(WORDS_MAX);
        let (levels_max, words) = levels_for(words);
        let presence = Self {
            words: Words::new(LEVELS + words, true)?,
            levels_max,
            is_crowded: false,
            changes: 0,
            turn: 1,
            kept: Arc::new(()),
            told: None,
        };
        presence.words[TURN].store(1, Ordering::Release);
        Ok(presence)
    }

    /// For those who look on.
    ///
    /// # Errors
    /// The system's.
    fn share(&self) -> io::Result<ShownPart> {
        Ok(ShownPart {
            file: self.words.as_fd().try_clone_to_owned()?,
            words: self.words.len(),
            kept: Arc::clone(&self.kept),
        })
    }

    /// Takes over what the home has to tell.
    pub(crate) fn follow(&mut self, home: &mut Home) {
        home.tell_presence(|change| match change {
            PresenceChange::Reset => self.reset(),
            PresenceChange::Key(key, peek) => self.set(key, peek),
        });
        // Not more often than pays.
        if self.is_crowded && self.changes > self.words.len() {
            home.watch();
        }
        let now = (home.epoch(), home.is_all_told() && !self.is_crowded);
        if self.told != Some(now) {
            self.close();
            self.words[EPOCH].store(now.0.0, Ordering::Release);
            self.words[IS_ALL_TOLD].store(now.1.into(), Ordering::Release);
            self.told = Some(now);
            self.step();
        }
    }

    fn levels(&self) -> Levels<'_> {
        Levels::new(&self.words[LEVELS..], self.levels_max)
    }

    /// Asks for the words of a key, which are about to be written.
    pub(super) fn touch(&self, key: Fingerprint) {
        self.levels().touch(key);
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
        self.levels().clear();
        (self.is_crowded, self.changes) = (false, 0);
    }

    fn set(&mut self, key: Fingerprint, peek: Peek) {
        self.changes += 1;
        let tag = tag(key);
        let levels = self.levels();
        let listed = levels.find(key, |word| word & !IS_PRESENT == tag);
        let value = match peek {
            Peek::Present => tag | IS_PRESENT,
            Peek::Unsure => tag,
            Peek::Absent => 0,
        };
        let word = match listed {
            None if peek == Peek::Absent => return,
            None => levels.free(key),
            listed => listed,
        };
        match word {
            Some(word) => word.store(value, Ordering::Release),
            None => self.is_crowded = true,
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.close();
    }
}

impl MemberCore {
    /// What may be looked at of keys.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn show_presence(&self) -> io::Result<ShownPart> {
        let mut presence = self.presence.borrow_mut();
        if let Some(presence) = &*presence {
            return presence.share();
        }
        let begun = presence.insert(Presence::new(self.copies_max())?);
        let part = begun.share()?;
        let home = &mut self.machines().borrow_mut().home;
        home.watch();
        begun.follow(home);
        self.busy.raise();
        Ok(part)
    }

    /// Nothing is shown any more once nobody looks.
    pub(super) fn end_presence(&self) {
        let presence = self.presence.borrow();
        if (presence.as_ref()).is_some_and(|shown| Arc::strong_count(&shown.kept) == 1) {
            drop(presence);
            self.stop_showing();
        }
    }

    /// Nothing is shown any more.
    pub(super) fn stop_showing(&self) {
        if self.presence.take().is_some() {
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
    levels: LevelsView,
}

impl PresenceView {
    /// What a core, of this process or another one, [shows](MemberCore::show).
    ///
    /// # Errors
    /// [`MapError`].
    pub(crate) fn map(file: OwnedFd, count: usize) -> Result<Self, MapError> {
        if count < LEVELS {
            return Err(MapError::BadRange);
        }
        let words = WordsView::map(file, count)?;
        let levels = LevelsView::new(&words, LEVELS);
        Ok(Self { words, levels })
    }

    /// What the core would say of a key. `home_under` is the epoch of the map under which it is the key's home, as far as
    /// is known; nothing is said of what is absent without, or if the core's is another one.
    ///
    /// What has been told before this is called is found.
    pub(crate) fn peek(&self, key: Fingerprint, home_under: Option<Epoch>) -> Peek {
        let turn = self.words.load(TURN);
        if !turn.is_multiple_of(2) {
            return Peek::Unsure;
        }
        let tag = tag(key);
        let mut words = self.levels.words_of(&self.words, key);
        if let Some(word) = words.find(|word| word & !IS_PRESENT == tag) {
            let is_present = word & IS_PRESENT != 0;
            return if is_present {
                Peek::Present
            } else {
                Peek::Unsure
            };
        }
        let is_home = home_under.is_some_and(|epoch| epoch.0 == self.words.load(EPOCH));
        let is_all_told = self.words.load(IS_ALL_TOLD) == 1;
        if is_home && is_all_told && self.words.load(TURN) == turn {
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

    fn key(n: u64) -> Fingerprint {
        let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Fingerprint(u128::from(spread) << 64 | u128::from(n << 2))
    }

    fn view(presence: &Presence) -> PresenceView {
        let part = presence.share().expect("a descriptor");
        PresenceView::map(part.file, part.words).expect("sealed")
    }

    /// One that is looked at under the first epoch, where everything is told.
    fn told() -> (Presence, PresenceView) {
        let mut presence = Presence::new(0).expect("memory");
        let view = view(&presence);
        tell_all(&mut presence, 1);
        (presence, view)
    }

    fn tell_all(presence: &mut Presence, epoch: u64) {
        presence.close();
        presence.words[EPOCH].store(epoch, Ordering::Release);
        let is_all_told = u64::from(!presence.is_crowded);
        presence.words[IS_ALL_TOLD].store(is_all_told, Ordering::Release);
        presence.step();
    }

    fn peek(view: &PresenceView, key: Fingerprint) -> Peek {
        view.peek(key, Some(Epoch(1)))
    }

    #[test]
    fn nothing_is_said_before_it_is_told_by_another_map_or_of_who_is_gone() {
        let mut presence = Presence::new(0).expect("memory");
        let view = view(&presence);
        let (here, other) = (key(7), key(8));
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
    fn where_there_was_no_room_nothing_is_absent() {
        let (mut presence, view) = told();
        let keys = 1..=40_000;
        for n in keys.clone() {
            presence.set(key(n), Peek::Present);
        }
        tell_all(&mut presence, 1);
        let listed = keys
            .clone()
            .filter(|&n| peek(&view, key(n)) == Peek::Present);
        assert!(listed.count() > 3000, "of 4,096 words");
        let not = (1..50_000).find(|&n| peek(&view, key(n)) != Peek::Present);
        assert_eq!(peek(&view, key(not.expect("there are more"))), Peek::Unsure);
        for n in keys {
            presence.set(key(n), Peek::Absent);
        }
        tell_all(&mut presence, 1);
        assert_eq!(
            peek(&view, key(1)),
            Peek::Unsure,
            "what had no room may be there still"
        );
        presence.reset();
        tell_all(&mut presence, 1);
        assert_eq!(peek(&view, key(1)), Peek::Absent);
    }

    proptest! {
        /// What has been told last is said, of each key.
        #[test]
        fn prop_what_is_told_is_said(
            told_keys in prop::collection::vec((1..60_u64, 0..3_u8), 1..400),
        ) {
            let (mut presence, view) = told();
            let mut model: BTreeMap<u64, Peek> = BTreeMap::new();
            for (n, peek_index) in told_keys {
                let known = [Peek::Absent, Peek::Present, Peek::Unsure][usize::from(peek_index)];
                presence.set(key(n), known);
                model.insert(n, known);
            }
            for n in 1..60 {
                let is = model.get(&n).copied().unwrap_or(Peek::Absent);
                prop_assert_eq!(peek(&view, key(n)), is, "{}", n);
            }
        }
    }
}
