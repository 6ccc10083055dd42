//! What is held: objects that were looked up and are about to be read.
//!
//! A hold binds eviction and nothing else. Memory is safe without it, since a read pins what it
//! reads; and neither a removal waits for it, nor a home that has one copy too many, or one at a member that is to
//! be emptied: the object is elsewhere then, and held by nobody. Nor does it bring back what a drive has lost.

use std::collections::{BTreeMap, BTreeSet};

use lunette_runtime_core::time::Time;

use super::limits::OwnerLimits;
use crate::message::directory::CopyPlace;

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    count: usize,
    bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Holds {
    by_place: BTreeMap<CopyPlace, BTreeMap<u64, (Time, u32)>>,
    usage: BTreeMap<u64, Usage>,
    ends: BTreeSet<(Time, CopyPlace, u64)>,
}

impl Holds {
    /// Holds a copy for a holder, or longer than before. Whether it is held for that long.
    pub(super) fn hold(
        &mut self,
        place: CopyPlace,
        holder: u64,
        until: Time,
        len_bytes: u32,
        limits: &OwnerLimits,
    ) -> bool {
        let known = self
            .by_place
            .get(&place)
            .and_then(|holders| holders.get(&holder));
        if let Some(&(end, len_bytes)) = known {
            if until > end {
                self.ends.remove(&(end, place, holder));
                self.insert(place, holder, until, len_bytes);
            }
            return true;
        }
        let usage = self.usage.get(&holder).copied().unwrap_or_default();
        let bytes = usage.bytes + u64::from(len_bytes);
        if usage.count >= limits.holds_per_holder_max
            || bytes > limits.held_bytes_per_holder_max
            || self.ends.len() >= limits.holds_max
        {
            return false;
        }
        let count = usage.count + 1;
        self.usage.insert(holder, Usage { count, bytes });
        self.insert(place, holder, until, len_bytes);
        true
    }

    fn insert(&mut self, place: CopyPlace, holder: u64, until: Time, len_bytes: u32) {
        let holders = self.by_place.entry(place).or_default();
        holders.insert(holder, (until, len_bytes));
        self.ends.insert((until, place, holder));
    }

    /// Until when a copy is held.
    pub(super) fn until(&self, place: CopyPlace) -> Option<Time> {
        let holders = self.by_place.get(&place)?;
        holders.values().map(|(until, _)| *until).max()
    }

    /// Ends the holds of a copy that is no more.
    pub(super) fn forget(&mut self, place: CopyPlace) {
        for (holder, (until, len_bytes)) in self.by_place.remove(&place).unwrap_or_default() {
            self.ends.remove(&(until, place, holder));
            self.give_back(holder, len_bytes);
        }
    }

    fn give_back(&mut self, holder: u64, len_bytes: u32) {
        let usage = self.usage.get_mut(&holder).expect("who holds has a usage");
        usage.count -= 1;
        usage.bytes -= u64::from(len_bytes);
        if usage.count == 0 {
            self.usage.remove(&holder);
        }
    }

    /// Ends what has lasted long enough.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some(&(until, place, holder)) = self.ends.first() {
            if now < until {
                return;
            }
            self.ends.pop_first();
            let holders = self.by_place.get_mut(&place).expect("what ends was held");
            let (_, len_bytes) = holders.remove(&holder).expect("what ends was held");
            if holders.is_empty() {
                self.by_place.remove(&place);
            }
            self.give_back(holder, len_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Fingerprint;
    use crate::version::Version;

    fn place(key: u128) -> CopyPlace {
        CopyPlace {
            key: Fingerprint(key),
            version: Version::default(),
        }
    }

    fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    #[test]
    fn holds_end_and_are_given_back() {
        let limits = OwnerLimits::default();
        let mut holds = Holds::default();
        assert!(holds.hold(place(1), 7, at(5), 10, &limits));
        assert!(holds.hold(place(1), 8, at(9), 10, &limits));
        assert!(holds.hold(place(1), 7, at(6), 10, &limits), "longer");
        assert!(holds.hold(place(1), 7, at(2), 10, &limits), "never shorter");
        assert_eq!(holds.until(place(1)), Some(at(9)));
        holds.expire(at(6));
        assert_eq!(holds.usage.keys().copied().collect::<Vec<_>>(), [8]);
        holds.forget(place(1));
        assert_eq!(holds.until(place(1)), None);
        assert!(holds.usage.is_empty() && holds.ends.is_empty());
    }

    #[test]
    fn each_holder_is_bounded_in_number_and_in_bytes_and_all_are() {
        let limits = OwnerLimits {
            holds_per_holder_max: 2,
            held_bytes_per_holder_max: 100,
            holds_max: 3,
            ..OwnerLimits::default()
        };
        let mut holds = Holds::default();
        let mut hold =
            |key, holder, len_bytes| holds.hold(place(key), holder, at(5), len_bytes, &limits);
        assert!(hold(1, 7, 60));
        assert!(!hold(2, 7, 41), "bytes");
        assert!(hold(2, 7, 40));
        assert!(!hold(3, 7, 0), "number");
        assert!(hold(3, 8, 100));
        assert!(!hold(4, 9, 1), "all");
        assert!(hold(3, 8, 100), "held already");
    }
}
