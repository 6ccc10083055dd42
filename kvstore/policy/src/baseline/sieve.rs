//! SIEVE (Zhang et al., NSDI '24): a queue in order of arrival, and a hand that spares what was used.

use super::slots::{Links, List};
use crate::Policy;
use crate::class::Use;

/// SIEVE. Twelve bytes per slot.
#[derive(Debug, Default)]
pub struct Sieve {
    links: Links,
    list: List,
    was_used: Vec<bool>,
    listed: Vec<bool>,
    /// The slot to be looked at next; the tail where it is none.
    hand: Option<u32>,
}

impl Policy for Sieve {
    fn insert(&mut self, slot_index: u32, _key: u64, _used: Use) {
        let slots = self.listed.len().max(slot_index as usize + 1);
        self.listed.resize(slots, false);
        self.was_used.resize(slots, false);
        self.was_used[slot_index as usize] = false;
        self.offer(slot_index);
    }

    fn touch(&mut self, slot_index: u32, _used: Use) {
        self.was_used[slot_index as usize] = true;
    }

    fn withhold(&mut self, slot_index: u32) {
        if core::mem::take(&mut self.listed[slot_index as usize]) {
            if self.hand == Some(slot_index) {
                self.hand = self.links.newer(slot_index);
            }
            self.list.unlink(&mut self.links, slot_index);
        }
    }

    fn offer(&mut self, slot_index: u32) {
        self.withhold(slot_index);
        self.list.push_front(&mut self.links, slot_index);
        self.listed[slot_index as usize] = true;
    }

    fn remembers(&self, _key: u64) -> bool {
        false
    }

    fn victim(&mut self) -> Option<u32> {
        // Each step clears a mark, so the second round ends at its first step.
        loop {
            let slot_index = self.hand.or_else(|| self.list.tail())?;
            self.hand = Some(slot_index);
            if !core::mem::take(&mut self.was_used[slot_index as usize]) {
                return Some(slot_index);
            }
            self.hand = self.links.newer(slot_index);
        }
    }

    fn evict(&mut self, slot_index: u32) {
        self.withhold(slot_index);
    }

    fn remove(&mut self, slot_index: u32) {
        self.withhold(slot_index);
    }
}
