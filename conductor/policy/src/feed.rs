//! Events of instances, put in order and checked for gaps, into an index.
//!
//! Each instance numbers its events from 0. They may arrive out of order and more than once.
//! An event that is early waits for those before it. When too many wait, events were lost: what
//! the index says of the instance can no longer be trusted, so the instance is forgotten, and
//! counting goes on behind the gap. An index that knows too little costs a recomputation; one
//! that knows too much sends requests after blocks that are gone.

use std::collections::BTreeMap;

use crate::ids::{BlockHash, InstanceId, Tier};
use crate::index::PrefixIndex;

/// Most events of an instance that wait for one before them.
pub const EARLY_EVENTS_MAX: usize = 256;

/// What changed at an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It holds these blocks.
    Stored {
        /// Where.
        tier: Tier,
        /// Which.
        hashes: Vec<BlockHash>,
    },
    /// It no longer holds these blocks.
    Removed {
        /// Where.
        tier: Tier,
        /// Which.
        hashes: Vec<BlockHash>,
    },
    /// It holds nothing.
    Cleared,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// It is in the index, with this many events in all, itself and those that waited for it.
    Applied {
        /// Events applied.
        events: u64,
    },
    /// It waits: ask the instance to repeat its events from here.
    Early {
        /// The first event that is missing.
        missing: u64,
    },
    /// It had been applied, or waits already.
    Duplicate,
    /// Events from `first` up to `last` are given up. The instance was forgotten, and then the
    /// events that waited were applied.
    Lost {
        /// The first event given up.
        first: u64,
        /// The last event given up.
        last: u64,
    },
}

/// An index and the place in each instance's events up to which it is true.
#[derive(Debug)]
pub struct IndexFeed {
    index: PrefixIndex,
    places: Vec<Place>,
}

#[derive(Debug, Default)]
struct Place {
    next: u64,
    early: BTreeMap<u64, Change>,
}

impl IndexFeed {
    /// An empty index over this many instances, which have sent nothing.
    ///
    /// # Panics
    /// If there are more than [`crate::ids::INSTANCES_MAX`].
    #[must_use]
    pub fn new(instances: usize) -> Self {
        Self {
            index: PrefixIndex::new(instances),
            places: (0..instances).map(|_| Place::default()).collect(),
        }
    }

    /// The index.
    #[must_use]
    pub const fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Takes event `number` of `instance`, or `None` where the instance is unknown.
    pub fn feed(&mut self, instance: InstanceId, number: u64, change: Change) -> Option<Fed> {
        let place = self.places.get_mut(instance.index())?;
        if number < place.next || place.early.contains_key(&number) {
            return Some(Fed::Duplicate);
        }
        place.early.insert(number, change);
        if number == place.next {
            let events = self.apply_ready(instance);
            return Some(Fed::Applied { events });
        }
        let first = place.next;
        if place.early.len() <= EARLY_EVENTS_MAX {
            return Some(Fed::Early { missing: first });
        }
        let (&waiting, _) = place.early.first_key_value().expect("one was inserted");
        place.next = waiting;
        self.index.clear(instance);
        self.apply_ready(instance);
        let last = waiting - 1;
        Some(Fed::Lost { first, last })
    }

    fn apply_ready(&mut self, instance: InstanceId) -> u64 {
        let place = &mut self.places[instance.index()];
        let first = place.next;
        while let Some(change) = place.early.remove(&place.next) {
            place.next += 1;
            apply(&mut self.index, instance, &change);
        }
        place.next - first
    }
}

fn apply(index: &mut PrefixIndex, instance: InstanceId, change: &Change) {
    match change {
        Change::Stored { tier, hashes } => index.store_all(instance, *tier, hashes),
        Change::Removed { tier, hashes } => index.remove_all(instance, *tier, hashes),
        Change::Cleared => index.clear(instance),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(hash: BlockHash) -> Change {
        let tier = Tier::Dram;
        let hashes = vec![hash];
        Change::Stored { tier, hashes }
    }

    #[test]
    fn an_early_event_waits_and_a_late_copy_does_nothing() {
        let mut feed = IndexFeed::new(1);
        let one = InstanceId(0);
        let missing = 0;
        assert_eq!(feed.feed(one, 1, stored(5)), Some(Fed::Early { missing }));
        assert_eq!(feed.feed(one, 1, stored(5)), Some(Fed::Duplicate));
        assert!(feed.index().is_empty());
        assert_eq!(
            feed.feed(one, 0, Change::Cleared),
            Some(Fed::Applied { events: 2 })
        );
        assert_eq!(feed.feed(one, 0, Change::Cleared), Some(Fed::Duplicate));
        assert!(feed.index().holds(one, Tier::Dram, 5));
    }

    #[test]
    fn an_unknown_instance_is_no_event() {
        assert_eq!(
            IndexFeed::new(1).feed(InstanceId(1), 0, Change::Cleared),
            None
        );
    }

    #[test]
    fn a_gap_is_waited_for_up_to_the_limit_and_then_given_up() {
        let mut feed = IndexFeed::new(1);
        let one = InstanceId(0);
        feed.feed(one, 0, stored(1_000));
        let early_max = u64::try_from(EARLY_EVENTS_MAX).expect("it fits");
        for number in 3..3 + early_max {
            let missing = 1;
            assert_eq!(
                feed.feed(one, number, stored(number)),
                Some(Fed::Early { missing })
            );
        }
        assert_eq!(feed.index().len(), 1);
        let last = feed.feed(one, 3 + early_max, stored(0));
        assert_eq!(last, Some(Fed::Lost { first: 1, last: 2 }));
        assert!(!feed.index().holds(one, Tier::Dram, 1_000));
        assert_eq!(feed.index().len(), EARLY_EVENTS_MAX + 1);
    }
}
