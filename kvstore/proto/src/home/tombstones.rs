//! Removals and upserts that a home remembers, and how far back its memory goes.

use std::collections::VecDeque;

use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::time::Time;

use super::limits::TOMBSTONE_KEEP;
use crate::key::Fingerprint;
use crate::sorted::Sorted;
use crate::version::{Tombstone, Version};

/// How many entries of the line of ages nobody counts, beside as many as there are tombstones.
const STALE_MAX: usize = 1024;

/// A bounded number of tombstones. The oldest is forgotten for a new one, and the *horizon* says so:
/// whoever has been away since that epoch or longer may hold what was removed, and nobody knows.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    by_key: Sorted<Fingerprint, Kept>,
    /// The oldest first. Those that have been replaced or forgotten stand here too, until their turn comes, or they are
    /// more than the others.
    by_age: VecDeque<(Time, Fingerprint)>,
    /// The latest epoch of a tombstone that was forgotten.
    pub(super) forgotten: Epoch,
    /// The same, since the map has changed.
    pub(super) dropped: Epoch,
}

/// A tombstone, and since when it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    tombstone: Tombstone,
    since: Time,
}

impl Tombstones {
    pub(super) fn version(&self, key: Fingerprint) -> Option<Version> {
        self.by_key.get(key).map(|kept| kept.tombstone.version)
    }

    pub(super) const fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Asks memory for what [`version`](Self::version) will look at.
    pub(super) fn touch(&self, key: Fingerprint) {
        if !self.by_key.is_empty() {
            self.by_key.touch(key);
        }
    }

    /// Keeps it, unless a later one is known. Whether none was.
    pub(super) fn insert(
        &mut self,
        now: Time,
        key: Fingerprint,
        tombstone: Tombstone,
        tombstones_max: usize,
    ) -> bool {
        if self.version(key) >= Some(tombstone.version) {
            return false;
        }
        let since = now;
        self.by_key.insert(key, Kept { tombstone, since });
        self.by_age.push_back((since, key));
        while self.by_key.len() > tombstones_max.max(1) {
            self.forget_oldest();
        }
        if self.by_age.len() > 2 * self.by_key.len() + STALE_MAX {
            let by_key = &self.by_key;
            self.by_age.retain(|&aged| is_kept(by_key, aged));
        }
        true
    }

    /// The one that has been kept for longest, and since when.
    fn oldest(&mut self) -> Option<(Time, Fingerprint)> {
        while let Some(&aged) = self.by_age.front() {
            if is_kept(&self.by_key, aged) {
                return Some(aged);
            }
            self.by_age.pop_front();
        }
        None
    }

    fn forget_oldest(&mut self) {
        let (_, key) = self.oldest().expect("each has an age");
        let kept = self.by_key.remove(key).expect("it is the oldest");
        let epoch = kept.tombstone.version.epoch;
        self.forgotten = self.forgotten.max(epoch);
        self.dropped = self.dropped.max(epoch);
    }

    /// Forgets what is older than [`TOMBSTONE_KEEP`].
    pub(super) fn expire(&mut self, now: Time, count: usize) {
        for _ in 0..count {
            match self.oldest() {
                Some((since, _)) if now >= since + TOMBSTONE_KEEP => self.forget_oldest(),
                _ => return,
            }
        }
    }

    /// Forgets those of earlier generations, whose copies are dead without them.
    pub(super) fn raise(&mut self, generation: crate::version::Generation) {
        let of_earlier = |&(_, kept): &(Fingerprint, Kept)| kept.tombstone.generation < generation;
        let earlier: Vec<_> = self.by_key.iter().filter(of_earlier).collect();
        for (key, _) in earlier {
            self.by_key.remove(key);
        }
    }

    /// Those after a key, in order.
    pub(super) fn after(
        &self,
        after: Option<Fingerprint>,
    ) -> impl Iterator<Item = (Fingerprint, Tombstone)> + '_ {
        let rest = self.by_key.after(after);
        rest.map(|(key, kept)| (key, kept.tombstone))
    }
}

/// Whether what stands in the line of ages is what is kept of its key.
fn is_kept(by_key: &Sorted<Fingerprint, Kept>, (since, key): (Time, Fingerprint)) -> bool {
    by_key.get(key).is_some_and(|kept| kept.since == since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Generation;

    fn made(epoch: u64, sequence: u64) -> Tombstone {
        let epoch = Epoch(epoch);
        Tombstone {
            version: Version { epoch, sequence },
            generation: Generation(epoch.0 / 10),
        }
    }

    #[test]
    fn their_number_is_bounded_and_the_horizon_tells() {
        let mut kept = Tombstones::default();
        for number in 1..=3 {
            let key = Fingerprint(number.into());
            kept.insert(Time::from_ns(number), key, made(number, 1), 3);
        }
        assert_eq!((kept.by_key.len(), kept.forgotten), (3, Epoch(0)));
        kept.insert(Time::from_ns(4), Fingerprint(1), made(4, 1), 3);
        assert_eq!(
            (kept.by_key.len(), kept.forgotten),
            (3, Epoch(0)),
            "no new key"
        );
        kept.insert(Time::from_ns(5), Fingerprint(9), made(5, 1), 3);
        assert_eq!(
            (kept.by_key.len(), kept.forgotten),
            (3, Epoch(2)),
            "the oldest"
        );
        assert_eq!(kept.version(Fingerprint(2)), None);
        kept.insert(Time::from_ns(6), Fingerprint(9), made(1, 1), 3);
        assert_eq!(
            kept.version(Fingerprint(9)),
            Some(made(5, 1).version),
            "the later one"
        );
    }

    #[test]
    fn one_key_removed_again_and_again_takes_no_more_room() {
        let mut kept = Tombstones::default();
        for number in 1..=10_000 {
            kept.insert(
                Time::from_ns(number),
                Fingerprint(1),
                made(1, number),
                1 << 20,
            );
            assert!(kept.by_age.len() <= STALE_MAX + 2, "{number}");
        }
        kept.insert(Time::from_ns(10_001), Fingerprint(2), made(1, 1), 1);
        assert_eq!(kept.version(Fingerprint(1)), None, "the older of the two");
        assert!(kept.version(Fingerprint(2)).is_some());
    }

    #[test]
    fn they_live_for_a_day() {
        let mut kept = Tombstones::default();
        kept.insert(Time::ZERO, Fingerprint(1), made(7, 1), 9);
        kept.expire(
            Time::ZERO + TOMBSTONE_KEEP.saturating_sub(core::time::Duration::from_nanos(1)),
            9,
        );
        assert_eq!((kept.by_key.len(), kept.forgotten), (1, Epoch(0)));
        kept.expire(Time::ZERO + TOMBSTONE_KEEP, 9);
        assert_eq!((kept.by_key.len(), kept.forgotten), (0, Epoch(7)));
    }

    #[test]
    fn a_new_generation_needs_no_old_ones() {
        let mut kept = Tombstones::default();
        kept.insert(Time::ZERO, Fingerprint(1), made(9, 1), 9);
        kept.insert(Time::ZERO, Fingerprint(2), made(10, 1), 9);
        kept.raise(Generation(1));
        let left: Vec<_> = kept.after(None).map(|(key, _)| key.0).collect();
        assert_eq!((left, kept.forgotten), (vec![2], Epoch(0)));
        assert_eq!(kept.after(Some(Fingerprint(2))).count(), 0);
    }
}
