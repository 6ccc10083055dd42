//! In which order copies leave memory.
//!
//! ```text
//!               insert, offer                     next
//!  (arriving) -----------------> offered -----------------> told ---> leaves, or is
//!      |                            ^  ^                                   |
//!      |  a part         PART_STAYS |  | SPARED_FOR others were told       |
//!      +----------> standing by ----+  +------------- spared <-------------+
//! ```
//!
//! Of those that are offered, the one goes first that is least likely to be used again, as the policy has
//! learnt. Parts of an object stand by: until its manifest is written, nobody can ask for them, and one that
//! makes room for the next would undo the write that it belongs to. What has been told is told once, and
//! is not offered again before others have been.

use core::time::Duration;
use std::collections::VecDeque;

use lunette_kvstore_policy::class::Use;
use lunette_kvstore_policy::{GHOST_BYTES, Learned, Policy as _};
use lunette_runtime_core::time::Time;

use super::LEAVE_PER_TURN_MAX;
use crate::shard::EntryId;

/// A copy that was spared may be told again when so many others have been, or when there are no others.
pub const SPARED_FOR: u64 = LEAVE_PER_TURN_MAX as u64;
/// For so long after it came, a part of an object leaves after all that are no parts, the oldest part first. Who
/// takes longer to write all parts has them [held](crate::owner::Owner::hold).
pub const PART_STAYS: Duration = Duration::from_secs(5);

/// Of so many bytes of memory, one is spent on remembering what left, at most, or [`REMEMBERED_MIN`].
pub const REMEMBERING_SHARE: u64 = 128;
/// So many copies that left are remembered by the smallest memory: some 1.3 MB.
pub const REMEMBERED_MIN: u64 = 16_384;

/// See the [module](self). Slots are those of resident entries.
#[derive(Debug)]
pub(super) struct Order {
    policy: Learned,
    /// Victims that were told, ever.
    told: u64,
    /// Those that could not leave, the first one first, and how many had been told by then.
    spared: VecDeque<(EntryId, u64)>,
    /// Parts that stand by, the oldest one first, and until when. Some of them may be no more.
    parts: VecDeque<(EntryId, Time)>,
    parts_max: usize,
}

impl Order {
    /// For at most `entries_max` copies, in memory of that size.
    pub(super) fn new(entries_max: usize, memory_bytes: u64) -> Self {
        let remembered_max = memory_bytes / REMEMBERING_SHARE / GHOST_BYTES as u64;
        let remembered_max = usize::try_from(remembered_max.max(REMEMBERED_MIN));
        let remembered_max = remembered_max.unwrap_or(usize::MAX);
        Self {
            policy: Learned::with_ghosts(entries_max, remembered_max),
            told: 0,
            spared: VecDeque::new(),
            parts: VecDeque::new(),
            parts_max: entries_max,
        }
    }

    pub(super) fn insert(&mut self, slot_index: u32, key: u64) {
        self.policy.insert(slot_index, key, Use::default());
    }

    /// What has just been inserted is a part.
    pub(super) fn keep_to_the_last(
        &mut self,
        now: Time,
        id: EntryId,
        is_resident: impl Fn(EntryId) -> bool,
    ) {
        if self.parts.len() == self.parts_max {
            let (oldest, _) = self.parts.pop_front().expect("there are some");
            if is_resident(oldest) {
                self.policy.offer(oldest.slot_index);
            }
        }
        self.policy.withhold(id.slot_index);
        self.parts.push_back((id, now + PART_STAYS));
    }

    pub(super) fn touch(&mut self, slot_index: u32) {
        self.policy.touch(slot_index, Use::default());
    }

    pub(super) fn withhold(&mut self, slot_index: u32) {
        self.policy.withhold(slot_index);
    }

    pub(super) fn offer(&mut self, slot_index: u32) {
        self.policy.offer(slot_index);
    }

    /// A copy has left to make room.
    pub(super) fn evict(&mut self, slot_index: u32) {
        self.policy.evict(slot_index);
    }

    /// A copy is no more, and does not come back.
    pub(super) fn remove(&mut self, slot_index: u32) {
        self.policy.remove(slot_index);
    }

    /// A copy that was told cannot leave.
    pub(super) fn spare(&mut self, id: EntryId) {
        self.policy.withhold(id.slot_index);
        self.spared.push_back((id, self.told));
    }

    /// Offers those whose time it is: say so before [`next`](Self::next).
    pub(super) fn begin(&mut self, now: Time, is_resident: impl Fn(EntryId) -> bool) {
        self.offer_spared(self.told, &is_resident);
        while let Some(&(id, until)) = self.parts.front()
            && until <= now
        {
            self.parts.pop_front();
            if is_resident(id) {
                self.policy.offer(id.slot_index);
            }
        }
    }

    /// Who leaves next. It is told once, unless it is spared. If it is the first one that is asked for in a turn,
    /// those that were spared are told again rather than nobody.
    pub(super) fn next(
        &mut self,
        is_first: bool,
        is_resident: impl Fn(EntryId) -> bool,
    ) -> Option<u32> {
        let mut next = self
            .policy
            .victim()
            .or_else(|| self.oldest_part(&is_resident));
        if next.is_none() && is_first {
            self.offer_spared(u64::MAX, &is_resident);
            next = self.policy.victim();
        }
        let slot_index = next?;
        self.told += 1;
        self.policy.withhold(slot_index);
        Some(slot_index)
    }

    fn oldest_part(&mut self, is_resident: impl Fn(EntryId) -> bool) -> Option<u32> {
        while let Some((id, _)) = self.parts.pop_front() {
            if is_resident(id) {
                return Some(id.slot_index);
            }
        }
        None
    }

    /// Those that were spared [`SPARED_FOR`] victims before `told` may leave again.
    fn offer_spared(&mut self, told: u64, is_resident: impl Fn(EntryId) -> bool) {
        while let Some(&(id, since)) = self.spared.front()
            && told - since >= SPARED_FOR
        {
            self.spared.pop_front();
            if is_resident(id) {
                self.policy.offer(id.slot_index);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn remembers(&self, key: u64) -> bool {
        self.policy.remembers(key)
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.policy.ghosts()
    }

    #[cfg(test)]
    pub(super) fn spared(&self) -> usize {
        self.spared.len()
    }

    #[cfg(test)]
    pub(super) fn standing_by(&self) -> usize {
        self.parts.len()
    }
}
