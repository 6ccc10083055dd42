//! Removals and upserts that a home remembers, and how far back its memory goes.

use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster_proto::map::Epoch;
use lunette_runtime_core::time::Time;

use super::limits::TOMBSTONE_KEEP;
use crate::key::Fingerprint;
use crate::version::{Tombstone, Version};

/// A bounded number of tombstones. The oldest is forgotten for a new one, and the *horizon* says so:
/// whoever has been away since that epoch or longer may hold what was removed, and nobody knows.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    by_key: BTreeMap<Fingerprint, (Tombstone, Time)>,
    by_age: BTreeSet<(Time, Fingerprint)>,
    /// The latest epoch of a tombstone that was forgotten.
    pub(super) forgotten: Epoch,
}

impl Tombstones {
    pub(super) fn version(&self, key: Fingerprint) -> Option<Version> {
        self.by_key
            .get(&key)
            .map(|(tombstone, _)| tombstone.version)
    }

    /// Keeps it, unless a later one is known.
    pub(super) fn insert(
        &mut self,
        now: Time,
        key: Fingerprint,
        tombstone: Tombstone,
        tombstones_max: usize,
    ) {
        if self.version(key) >= Some(tombstone.version) {
            return;
        }
        if let Some((_, since)) = self.by_key.insert(key, (tombstone, now)) {
            self.by_age.remove(&(since, key));
        }
        self.by_age.insert((now, key));
        while self.by_key.len() > tombstones_max.max(1) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let (_, key) = self.by_age.pop_first().expect("the two are as long");
        let (tombstone, _) = self.by_key.remove(&key).expect("the two are as long");
        self.forgotten = self.forgotten.max(tombstone.version.epoch);
    }

    /// Forgets what is older than [`TOMBSTONE_KEEP`].
    pub(super) fn expire(&mut self, now: Time, count: usize) {
        for _ in 0..count {
            match self.by_age.first() {
                Some(&(since, _)) if now >= since + TOMBSTONE_KEEP => self.forget_oldest(),
                _ => return,
            }
        }
    }

    /// Forgets those of earlier generations, whose copies are dead without them.
    pub(super) fn raise(&mut self, generation: crate::version::Generation) {
        self.by_key.retain(|&key, (tombstone, since)| {
            let is_kept = tombstone.generation >= generation;
            if !is_kept {
                self.by_age.remove(&(*since, key));
            }
            is_kept
        });
    }

    /// Those after a key, in order.
    pub(super) fn after(
        &self,
        after: Option<Fingerprint>,
    ) -> impl Iterator<Item = (Fingerprint, Tombstone)> + '_ {
        let from = after.map_or(0, |key| key.0.saturating_add(1));
        let rest = self.by_key.range(Fingerprint(from)..);
        rest.map(|(&key, (tombstone, _))| (key, *tombstone))
    }
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
