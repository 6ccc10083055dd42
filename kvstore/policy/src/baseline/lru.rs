//! What was used least recently leaves first.

use super::slots::{Links, List};
use crate::Policy;
use crate::class::Use;

/// Least recently used. The length of a list of slots, and 8 bytes per slot.
#[derive(Debug, Default)]
pub struct Lru {
    links: Links,
    list: List,
    listed: Vec<bool>,
}

impl Policy for Lru {
    fn insert(&mut self, slot_index: u32, _key: u64, _used: Use) {
        let slots = self.listed.len().max(slot_index as usize + 1);
        self.listed.resize(slots, false);
        self.offer(slot_index);
    }

    fn touch(&mut self, slot_index: u32, _used: Use) {
        if self.listed[slot_index as usize] {
            self.offer(slot_index);
        }
    }

    fn withhold(&mut self, slot_index: u32) {
        if core::mem::take(&mut self.listed[slot_index as usize]) {
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
        self.list.tail()
    }

    fn evict(&mut self, slot_index: u32) {
        self.withhold(slot_index);
    }

    fn remove(&mut self, slot_index: u32) {
        self.withhold(slot_index);
    }
}
