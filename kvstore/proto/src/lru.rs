//! Least recently used order over the slots of a slab.

use core::iter;

/// No slot.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    /// Towards the front, the more recently used; [`NIL`] at the front.
    newer: u32,
    /// Towards the tail; [`NIL`] at the tail.
    older: u32,
    listed: bool,
}

const UNLISTED: Link = Link {
    newer: NIL,
    older: NIL,
    listed: false,
};

/// A list of slot indexes from the most to the least recently used.
///
/// It holds links only: what a slot stands for lies in the caller's slab, under the same index.
/// Every operation takes constant time; links are allocated up to the highest slot ever listed.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    front: u32,
    tail: u32,
    len: usize,
}

impl Lru {
    /// An empty list with room for the slots `0..slots`; higher slots make it allocate.
    #[must_use]
    pub fn with_capacity(slots: usize) -> Self {
        Self {
            links: Vec::with_capacity(slots),
            front: NIL,
            tail: NIL,
            len: 0,
        }
    }

    /// The number of listed slots.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no slot is listed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `slot_index` is listed.
    #[must_use]
    pub fn contains(&self, slot_index: u32) -> bool {
        self.links
            .get(slot_index as usize)
            .is_some_and(|link| link.listed)
    }

    /// Lists `slot_index` as the most recently used.
    ///
    /// # Panics
    /// If it is listed already, or is `u32::MAX`.
    pub fn push_front(&mut self, slot_index: u32) {
        assert!(slot_index != NIL, "the last index stands for no slot");
        assert!(
            !self.contains(slot_index),
            "slot {slot_index} is listed twice"
        );
        let slots = self.links.len().max(slot_index as usize + 1);
        self.links.resize(slots, UNLISTED);
        let older = self.front;
        self.links[slot_index as usize] = Link {
            newer: NIL,
            older,
            listed: true,
        };
        if older == NIL {
            self.tail = slot_index;
        } else {
            self.links[older as usize].newer = slot_index;
        }
        self.front = slot_index;
        self.len += 1;
    }

    /// Makes a listed slot the most recently used.
    ///
    /// # Panics
    /// If it is not listed.
    pub fn touch(&mut self, slot_index: u32) {
        if self.front != slot_index {
            self.remove(slot_index);
            self.push_front(slot_index);
        }
    }

    /// Takes a slot off the list.
    ///
    /// # Panics
    /// If it is not listed.
    pub fn remove(&mut self, slot_index: u32) {
        assert!(self.contains(slot_index), "slot {slot_index} is not listed");
        let Link { newer, older, .. } = self.links[slot_index as usize];
        self.links[slot_index as usize] = UNLISTED;
        if newer == NIL {
            self.front = older;
        } else {
            self.links[newer as usize].older = older;
        }
        if older == NIL {
            self.tail = newer;
        } else {
            self.links[older as usize].newer = newer;
        }
        self.len -= 1;
    }

    /// The least recently used slot.
    #[must_use]
    pub fn tail(&self) -> Option<u32> {
        (self.tail != NIL).then_some(self.tail)
    }

    /// The slot used next after `slot_index`: one step from the tail towards the front.
    ///
    /// # Panics
    /// If `slot_index` is not listed.
    #[must_use]
    pub fn next_newer(&self, slot_index: u32) -> Option<u32> {
        assert!(self.contains(slot_index), "slot {slot_index} is not listed");
        let newer = self.links[slot_index as usize].newer;
        (newer != NIL).then_some(newer)
    }

    /// Takes the least recently used slot off the list.
    pub fn pop_tail(&mut self) -> Option<u32> {
        let tail = self.tail()?;
        self.remove(tail);
        Some(tail)
    }

    /// All slots, from the least to the most recently used.
    pub fn iter_from_tail(&self) -> impl Iterator<Item = u32> {
        iter::successors(self.tail(), |&slot_index| self.next_newer(slot_index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_tail(lru: &Lru) -> Vec<u32> {
        lru.iter_from_tail().collect()
    }

    #[test]
    fn order_is_by_last_use() {
        let mut lru = Lru::with_capacity(4);
        for slot_index in [3, 0, 7] {
            lru.push_front(slot_index);
        }
        assert_eq!(from_tail(&lru), [3, 0, 7]);
        lru.touch(0);
        lru.touch(0);
        assert_eq!(from_tail(&lru), [3, 7, 0]);
        lru.touch(3);
        lru.remove(0);
        assert_eq!(from_tail(&lru), [7, 3]);
        assert_eq!(
            (lru.pop_tail(), lru.pop_tail(), lru.pop_tail()),
            (Some(7), Some(3), None)
        );
        assert!(lru.is_empty());
    }

    #[test]
    #[should_panic(expected = "slot 1 is listed twice")]
    fn a_slot_is_listed_once() {
        let mut lru = Lru::with_capacity(4);
        lru.push_front(1);
        lru.push_front(1);
    }

    #[test]
    #[should_panic(expected = "slot 1 is not listed")]
    fn only_a_listed_slot_is_removed() {
        Lru::with_capacity(4).remove(1);
    }
}
