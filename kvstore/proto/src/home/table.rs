//! What a home has recorded: the copies of each key, and an index by seat.
//!
//! The index is what makes the loss of a node cost in proportion to what that node held.

use std::collections::{BTreeMap, BTreeSet};

use lunette_runtime_core::time::Time;
use slab::Slab;
use smallvec::{SmallVec, smallvec};

use super::limits::COPIES_PER_KEY_MAX;
use super::presence::Watched;
use crate::key::Fingerprint;
use crate::message::directory::{CopyPlace, OpId};
use crate::placement::Seat;
use crate::sorted::{LANES, Sorted};
use crate::version::{CopyInfo, Version};

/// What a recorded copy is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Reported while the home is being rebuilt. Something may be reported yet that kills it.
    Unjudged {
        /// Its owner was away, and so may not have been told that it was removed.
        is_away: bool,
    },
    /// It lives.
    Shown,
    /// Its owner is to drop it. It counts until the owner has said that it did.
    Leaving {
        /// When the owner was last told.
        told: Time,
        /// The order that it was given.
        order: u64,
        /// Whether its write, if it waits to hear so, has succeeded.
        was_recorded: bool,
    },
    /// A replica that was published without a claim. The publication may be a late copy of one whose
    /// replica has been dropped since, so it is shown once its owner has said that it is there. Where no other copy is
    /// shown it counts as if it were: the object is not gone yet.
    Joining {
        /// When the owner was last told.
        told: Time,
        /// The arrival that was published.
        op: OpId,
    },
    /// Its owner has left the map, and may be serving until then.
    Departed {
        /// See above.
        until: Time,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) seat: Seat,
    pub(super) info: CopyInfo,
    pub(super) standing: Standing,
}

/// A table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The copies of a key. Most keys have one.
type Record = SmallVec<[Copy; 1]>;

/// What is known of a key without a look at its record.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    record: u32,
    /// Whether one of its copies is shown.
    is_shown: bool,
}

fn is_shown(copies: &[Copy]) -> bool {
    copies.iter().any(|copy| copy.standing == Standing::Shown)
}

#[derive(Debug)]
pub(super) struct Table {
    /// The home's own seat, which has most of the copies, as writers go where the home is. It is not in the index: what
    /// has to be known of it is looked for in all records.
    own: Seat,
    keys: Sorted<Fingerprint, Mark>,
    records: Slab<Record>,
    by_seat: BTreeMap<Seat, Sorted<Fingerprint, ()>>,
    /// Copies that leave or join, whose owners have to say that they heard of it.
    telling: BTreeMap<Seat, BTreeSet<CopyPlace>>,
    copies: usize,
    /// What those who look on have not been told.
    pub(super) watched: Watched,
}

impl Table {
    pub(super) fn new(own: Seat) -> Self {
        Self {
            own,
            keys: Sorted::default(),
            records: Slab::new(),
            by_seat: BTreeMap::new(),
            telling: BTreeMap::new(),
            copies: 0,
            watched: Watched::default(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.copies
    }

    pub(super) fn copies(&self, key: Fingerprint) -> &[Copy] {
        let mark = self.keys.get(key);
        let record = mark.map(|mark| &self.records[mark.record as usize]);
        record.map_or(&[], SmallVec::as_slice)
    }

    pub(super) fn touch(&self, key: Fingerprint) {
        self.keys.touch(key);
    }

    /// Of which of several keys, at most [`LANES`], a copy is shown, in their order.
    pub(super) fn are_shown(&self, keys: &[Fingerprint]) -> [bool; LANES] {
        let marks = self.keys.get_each(keys);
        marks.map(|mark| mark.is_some_and(|mark| mark.is_shown))
    }

    pub(super) fn copy(&self, key: Fingerprint, seat: Seat, version: Version) -> Option<Copy> {
        let mut copies = self.copies(key).iter();
        let found = copies.find(|copy| (copy.seat, copy.info.version) == (seat, version));
        found.copied()
    }

    /// Records a copy, or gives the one that is known another standing.
    pub(super) fn insert(
        &mut self,
        key: Fingerprint,
        copy: Copy,
        copies_max: usize,
    ) -> Result<(), Full> {
        let copies = self.copies(key);
        let is_same =
            |other: &Copy| (other.seat, other.info.version) == (copy.seat, copy.info.version);
        if copies.iter().any(is_same) {
            self.set_standing(key, copy.seat, copy.info.version, copy.standing);
            return Ok(());
        }
        if self.copies >= copies_max || copies.len() >= COPIES_PER_KEY_MAX {
            return Err(Full);
        }
        self.copies += 1;
        self.watched.note(key);
        let is_shown = copy.standing == Standing::Shown;
        if let Some(mark) = self.keys.get_mut(key) {
            mark.is_shown |= is_shown;
            self.records[mark.record as usize].push(copy);
        } else {
            let record = self.records.insert(smallvec![copy]);
            let record = u32::try_from(record).expect("copies are bounded");
            self.keys.insert(key, Mark { record, is_shown });
        }
        if copy.seat != self.own {
            self.by_seat.entry(copy.seat).or_default().insert(key, ());
        }
        let version = copy.info.version;
        self.note_telling(copy.seat, CopyPlace { key, version }, copy.standing);
        Ok(())
    }

    pub(super) fn set_standing(
        &mut self,
        key: Fingerprint,
        seat: Seat,
        version: Version,
        standing: Standing,
    ) {
        if let Some(mark) = self.keys.get_mut(key) {
            let copies = &mut self.records[mark.record as usize];
            let is_meant = |copy: &&mut Copy| (copy.seat, copy.info.version) == (seat, version);
            for copy in copies.iter_mut().filter(is_meant) {
                copy.standing = standing;
            }
            mark.is_shown = is_shown(copies);
            self.watched.note(key);
        }
        self.note_telling(seat, CopyPlace { key, version }, standing);
    }

    fn note_telling(&mut self, seat: Seat, place: CopyPlace, standing: Standing) {
        if matches!(
            standing,
            Standing::Leaving { .. } | Standing::Joining { .. }
        ) {
            self.telling.entry(seat).or_default().insert(place);
        } else {
            self.end_telling(seat, place);
        }
    }

    fn end_telling(&mut self, seat: Seat, place: CopyPlace) {
        if let Some(places) = self.telling.get_mut(&seat) {
            places.remove(&place);
            if places.is_empty() {
                self.telling.remove(&seat);
            }
        }
    }

    /// Forgets a copy. Whether it was known.
    pub(super) fn remove(&mut self, key: Fingerprint, seat: Seat, version: Version) -> bool {
        let Some(mark) = self.keys.get_mut(key) else {
            return false;
        };
        let record = mark.record as usize;
        let copies = &mut self.records[record];
        let before = copies.len();
        copies.retain(|copy| (copy.seat, copy.info.version) != (seat, version));
        let was_known = copies.len() < before;
        self.copies -= before - copies.len();
        let is_listed = copies.iter().any(|copy| copy.seat == seat);
        mark.is_shown = is_shown(copies);
        self.watched.note(key);
        if copies.is_empty() {
            self.records.remove(record);
            self.keys.remove(key);
        }
        if !is_listed {
            self.unlist(seat, key);
        }
        self.end_telling(seat, CopyPlace { key, version });
        was_known
    }

    fn unlist(&mut self, seat: Seat, key: Fingerprint) {
        if let Some(keys) = self.by_seat.get_mut(&seat) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_seat.remove(&seat);
            }
        }
    }

    /// Forgets all copies of a key.
    pub(super) fn forget_key(&mut self, key: Fingerprint) {
        for copy in self.copies(key).to_vec() {
            self.remove(key, copy.seat, copy.info.version);
        }
    }

    /// Forgets everything of a seat; the keys that it had.
    pub(super) fn forget_seat(&mut self, seat: Seat) -> Vec<Fingerprint> {
        let keys = self.keys_of(seat);
        for &key in &keys {
            for copy in self.copies(key).to_vec() {
                if copy.seat == seat {
                    self.remove(key, seat, copy.info.version);
                }
            }
        }
        keys
    }

    /// The keys of which a seat has copies, in order.
    pub(super) fn keys_of(&self, seat: Seat) -> Vec<Fingerprint> {
        if seat == self.own {
            let own = self.iter().filter(|(_, copy)| copy.seat == seat);
            let mut keys: Vec<Fingerprint> = own.map(|(key, _)| key).collect();
            keys.dedup();
            return keys;
        }
        let keys = self.by_seat.get(&seat).map(Sorted::iter);
        keys.into_iter().flatten().map(|(key, ())| key).collect()
    }

    /// Whether there is an owner that has to say that it heard of something.
    pub(super) fn is_telling_any(&self) -> bool {
        !self.telling.is_empty()
    }

    pub(super) fn is_telling(&self, seat: Seat) -> bool {
        self.telling.contains_key(&seat)
    }

    /// The copies whose owners were last told before `before` and have not said that they heard.
    pub(super) fn unheeded(&self, before: Time, count: usize) -> Vec<(CopyPlace, Copy)> {
        let all = self.telling.iter();
        let all = all.flat_map(|(&seat, places)| places.iter().map(move |&place| (seat, place)));
        let due = all.filter_map(|(seat, place)| {
            let copy = self.copy(place.key, seat, place.version)?;
            match copy.standing {
                Standing::Leaving { told, .. } | Standing::Joining { told, .. } => {
                    (told <= before).then_some((place, copy))
                }
                _ => None,
            }
        });
        due.take(count).collect()
    }

    /// The next keys after one, at most so many.
    pub(super) fn keys_after(&self, after: Option<Fingerprint>, count: usize) -> Vec<Fingerprint> {
        let keys = self.keys.after(after);
        keys.take(count).map(|(key, _)| key).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Fingerprint, &Copy)> {
        let all = self.keys.iter();
        all.flat_map(|(key, mark)| {
            let copies = self.records[mark.record as usize].iter();
            copies.map(move |copy| (key, copy))
        })
    }

    pub(super) fn clear(&mut self) {
        let mut watched = core::mem::take(&mut self.watched);
        watched.reset();
        *self = Self {
            watched,
            ..Self::new(self.own)
        };
    }
}
