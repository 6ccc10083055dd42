//! Copies that leave after others, the least recently used one first.

use core::time::Duration;
use std::collections::BTreeMap;

use lunette_runtime_core::time::Time;

/// See the [module](self). By slots.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// By their last use: when it was, and which use it was.
    by_use: BTreeMap<(Time, u64), u32>,
    of_slot: BTreeMap<u32, (Time, u64)>,
    uses: u64,
}

impl Standing {
    pub(super) fn push(&mut self, now: Time, slot_index: u32) {
        self.uses += 1;
        let used = (now, self.uses);
        self.by_use.insert(used, slot_index);
        let former = self.of_slot.insert(slot_index, used);
        assert!(former.is_none(), "{slot_index} stands by twice");
    }

    pub(super) fn touch(&mut self, now: Time, slot_index: u32) {
        if self.remove(slot_index) {
            self.push(now, slot_index);
        }
    }

    pub(super) fn remove(&mut self, slot_index: u32) -> bool {
        let used = self.of_slot.remove(&slot_index);
        used.is_some_and(|used| self.by_use.remove(&used).is_some())
    }

    pub(super) fn contains(&self, slot_index: u32) -> bool {
        self.of_slot.contains_key(&slot_index)
    }

    /// The least recently used one, if it has not been used for so long.
    pub(super) fn pop(&mut self, now: Time, unused_for: Duration) -> Option<u32> {
        let first = self.by_use.first_entry()?;
        let (used_at, _) = *first.key();
        if now.since(used_at) < unused_for {
            return None;
        }
        let slot_index = first.remove();
        self.of_slot.remove(&slot_index);
        Some(slot_index)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        assert_eq!(self.by_use.len(), self.of_slot.len());
        self.by_use.len()
    }
}
