//! The deadlines of the slots of a table, earliest first, in memory that is reserved once.
//!
//! A binary heap whose slots know their places, so that a call that ends takes its deadline with
//! it: nothing stale is left behind, and nothing is allocated after the start.

use lunette_runtime_core::time::Time;

/// The place of a slot that has no deadline.
const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Deadlines {
    /// A binary heap: no entry is earlier than its parent.
    heap: Vec<(Time, u32)>,
    /// For each slot the place of its entry in `heap`, or [`ABSENT`].
    places: Vec<u32>,
}

impl Deadlines {
    /// No deadlines, for slots `0..slots_max`.
    pub(crate) fn new(slots_max: u32) -> Self {
        let slots = slots_max as usize;
        Self {
            heap: Vec::with_capacity(slots),
            places: vec![ABSENT; slots],
        }
    }

    /// The earliest deadline and its slot.
    pub(crate) fn first(&self) -> Option<(Time, u32)> {
        self.heap.first().copied()
    }

    /// Gives a slot without a deadline one.
    pub(crate) fn insert(&mut self, slot: u32, deadline: Time) {
        assert_eq!(
            self.places[slot as usize], ABSENT,
            "a slot has one deadline"
        );
        self.heap.push((deadline, slot));
        self.sift_up(self.heap.len() - 1);
    }

    /// Takes a slot's deadline away, if it has one.
    pub(crate) fn remove(&mut self, slot: u32) {
        let place = self.places[slot as usize];
        if place == ABSENT {
            return;
        }
        let place = place as usize;
        let removed = self.heap.swap_remove(place);
        assert_eq!(removed.1, slot, "a slot knows the place of its deadline");
        self.places[slot as usize] = ABSENT;
        if place < self.heap.len() {
            self.sift_up(place);
            self.sift_down(place);
        }
    }

    /// Moves the entry at `place` up to where its parent is not later, and notes its place.
    fn sift_up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent] <= self.heap[place] {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        self.note(place);
    }

    /// Moves the entry at `place` down to where its children are not earlier, and notes its place.
    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|&child| self.heap[child]) else {
                break;
            };
            if self.heap[place] <= self.heap[child] {
                break;
            }
            self.swap(place, child);
            place = child;
        }
        self.note(place);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn note(&mut self, place: usize) {
        let slot = self.heap[place].1;
        self.places[slot as usize] = u32::try_from(place).expect("places are fewer than slots");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SLOTS: u32 = 40;

    proptest! {
        #[test]
        fn the_first_is_the_earliest(ops in prop::collection::vec((0..SLOTS, 0..50_u64), 0..300)) {
            let mut deadlines = Deadlines::new(SLOTS);
            let mut model = BTreeSet::new();
            for (slot, ns) in ops {
                let held = model.iter().find(|entry: &&(Time, u32)| entry.1 == slot).copied();
                if let Some(entry) = held {
                    deadlines.remove(slot);
                    model.remove(&entry);
                } else {
                    deadlines.insert(slot, Time::from_ns(ns));
                    model.insert((Time::from_ns(ns), slot));
                }
                prop_assert_eq!(deadlines.first(), model.first().copied());
            }
            while let Some(entry) = model.pop_first() {
                prop_assert_eq!(deadlines.first(), Some(entry));
                deadlines.remove(entry.1);
            }
            prop_assert_eq!(deadlines.first(), None);
        }
    }

    #[test]
    fn removing_what_is_absent_changes_nothing() {
        let mut deadlines = Deadlines::new(2);
        deadlines.insert(0, Time::from_ns(1));
        deadlines.remove(1);
        deadlines.remove(0);
        deadlines.remove(0);
        assert_eq!(deadlines.first(), None);
    }

    #[test]
    fn no_memory_is_added_after_the_start() {
        let mut deadlines = Deadlines::new(SLOTS);
        let reserved = (deadlines.heap.capacity(), deadlines.places.capacity());
        for slot in 0..SLOTS {
            deadlines.insert(slot, Time::from_ns(u64::from(SLOTS - slot)));
        }
        assert_eq!(
            (deadlines.heap.capacity(), deadlines.places.capacity()),
            reserved
        );
    }
}
