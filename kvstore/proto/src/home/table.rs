//! What a home has recorded: the copies of each key, and an index by seat.
//!
//! The index is what makes the loss of a node cost in proportion to what that node held.

use std::collections::{BTreeMap, BTreeSet};

use lunette_runtime_core::time::Time;

use super::limits::COPIES_PER_KEY_MAX;
use crate::key::Fingerprint;
use crate::message::directory::{CopyPlace, OpId};
use crate::placement::Seat;
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
    },
    /// A replica that was published without a claim. The publication may be a late copy of one whose
    /// replica has been dropped since, so it is shown once its owner has said that it is there.
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

#[derive(Debug, Default)]
pub(super) struct Table {
    records: BTreeMap<Fingerprint, Vec<Copy>>,
    by_seat: BTreeMap<Seat, BTreeSet<Fingerprint>>,
    /// Copies that leave or join, whose owners have to say that they heard of it.
    telling: BTreeMap<Seat, BTreeSet<CopyPlace>>,
    copies: usize,
}

impl Table {
    pub(super) const fn len(&self) -> usize {
        self.copies
    }

    pub(super) fn copies(&self, key: Fingerprint) -> &[Copy] {
        self.records.get(&key).map_or(&[], Vec::as_slice)
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
        let is_known = self.copy(key, copy.seat, copy.info.version).is_some();
        if is_known {
            self.set_standing(key, copy.seat, copy.info.version, copy.standing);
            return Ok(());
        }
        if self.copies >= copies_max || self.copies(key).len() >= COPIES_PER_KEY_MAX {
            return Err(Full);
        }
        self.copies += 1;
        self.records.entry(key).or_default().push(copy);
        self.by_seat.entry(copy.seat).or_default().insert(key);
        self.set_standing(key, copy.seat, copy.info.version, copy.standing);
        Ok(())
    }

    pub(super) fn set_standing(
        &mut self,
        key: Fingerprint,
        seat: Seat,
        version: Version,
        standing: Standing,
    ) {
        let copies = self.records.get_mut(&key).into_iter().flatten();
        for copy in copies.filter(|copy| (copy.seat, copy.info.version) == (seat, version)) {
            copy.standing = standing;
        }
        let place = CopyPlace { key, version };
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
        let Some(copies) = self.records.get_mut(&key) else {
            return false;
        };
        let before = copies.len();
        copies.retain(|copy| (copy.seat, copy.info.version) != (seat, version));
        let was_known = copies.len() < before;
        self.copies -= before - copies.len();
        if !copies.iter().any(|copy| copy.seat == seat) {
            self.unlist(seat, key);
        }
        if self.copies(key).is_empty() {
            self.records.remove(&key);
        }
        self.end_telling(seat, CopyPlace { key, version });
        was_known
    }

    fn unlist(&mut self, seat: Seat, key: Fingerprint) {
        if let Some(keys) = self.by_seat.get_mut(&seat) {
            keys.remove(&key);
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
    pub(super) fn forget_seat(&mut self, seat: Seat) -> BTreeSet<Fingerprint> {
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

    pub(super) fn keys_of(&self, seat: Seat) -> BTreeSet<Fingerprint> {
        self.by_seat.get(&seat).cloned().unwrap_or_default()
    }

    pub(super) fn seats(&self) -> Vec<Seat> {
        self.by_seat.keys().copied().collect()
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
        let from = after.map_or(0, |key| key.0.saturating_add(1));
        let keys = self.records.range(Fingerprint(from)..);
        keys.take(count).map(|(&key, _)| key).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Fingerprint, &Copy)> {
        let all = self.records.iter();
        all.flat_map(|(&key, copies)| copies.iter().map(move |copy| (key, copy)))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
