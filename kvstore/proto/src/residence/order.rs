//! In which order copies leave memory.
//!
//! ```text
//!               insert, offer                   ordinary
//!  (arriving) -----------------> offered -----------------> told ---> leaves, or is
//!      |                            ^  ^                                   |
//!      |     unused for STANDS_BY   |  | SPARED_FOR others were told       |
//!      +----------> standing by ----+  +------------- spared <-------------+
//!      |     its time is over       |
//!      +----------> pinned ---------+
//! ```
//!
//! What is abandoned, since others of its group have left, goes before all that is offered, the longest abandoned
//! first; a use takes it back to these.
//!
//! Of those that are offered, the one goes first that is least likely to be used again, as the policy has
//! learnt. What belongs to an object in parts stands by for a while, and leaves when nothing else can, the least
//! recently used first: it has just come, so it would seem least likely to be used again, but a part that makes room
//! for the next one undoes the write that both belong to. What its writer pinned for a time leaves after these, or,
//! pinned for ever, not at all: such a copy is never offered. What has been told is told once, and is not offered again
//! before others have been.

use core::time::Duration;
use std::collections::VecDeque;

use lunette_kvstore_policy::class::Use;
use lunette_kvstore_policy::{Learned, Policy as _};
use lunette_runtime_core::time::Time;

use super::LEAVE_PER_TURN_MAX;
use super::pinned::{Pinned, Until};
use super::standing::Standing;
use crate::leaving::policy_for;
use crate::shard::EntryId;

/// A copy that was spared may be told again when so many others have been, or when there are no others.
pub const SPARED_FOR: u64 = LEAVE_PER_TURN_MAX as u64;
/// For so long after it came or was used, a piece of an object in parts leaves after all others, if it came by a write.
/// Who takes longer to write all parts has them [held](crate::owner::Owner::hold).
pub const STANDS_BY: Duration = Duration::from_secs(5);

/// See the [module](self). Slots are those of resident entries.
#[derive(Debug)]
pub(super) struct Order {
    policy: Learned,
    /// Victims that were told, ever.
    told: u64,
    /// Those that could not leave, the first one first, and how many had been told by then.
    spared: VecDeque<(EntryId, u64)>,
    standing: Standing,
    pinned: Pinned,
    /// Of those that are offered.
    abandoned: Standing,
    /// As it was told last.
    now: Time,
}

impl Order {
    /// For at most `entries_max` copies, in memory of that size.
    pub(super) fn new(entries_max: usize, memory_bytes: u64) -> Self {
        Self {
            policy: policy_for(entries_max, memory_bytes),
            told: 0,
            spared: VecDeque::new(),
            standing: Standing::default(),
            pinned: Pinned::default(),
            abandoned: Standing::default(),
            now: Time::ZERO,
        }
    }

    pub(super) fn insert(&mut self, slot_index: u32, key: u64, used: Use) {
        self.policy.insert(slot_index, key, used);
    }

    /// What has just been inserted stands by.
    pub(super) fn stand_by(&mut self, now: Time, slot_index: u32) {
        self.now = self.now.max(now);
        self.policy.withhold(slot_index);
        self.standing.push(self.now, slot_index);
    }

    /// What has just been inserted is pinned.
    pub(super) fn pin(&mut self, now: Time, slot_index: u32, until: Until) {
        self.now = self.now.max(now);
        self.policy.withhold(slot_index);
        self.pinned.insert(slot_index, until);
        self.pinned.offer(self.now, slot_index);
    }

    pub(super) fn pinned(&self, slot_index: u32) -> Option<Until> {
        self.pinned.get(slot_index)
    }

    pub(super) fn touch(&mut self, slot_index: u32) {
        self.policy.touch(slot_index, Use::default());
        self.standing.touch(self.now, slot_index);
        self.pinned.touch(self.now, slot_index);
        self.abandoned.remove(slot_index);
    }

    pub(super) fn withhold(&mut self, slot_index: u32) {
        self.policy.withhold(slot_index);
        self.standing.remove(slot_index);
        self.pinned.withhold(slot_index);
        self.abandoned.remove(slot_index);
    }

    /// What is offered is of no use any more, as far as is known. Whether that is new.
    pub(super) fn abandon(&mut self, now: Time, slot_index: u32) -> bool {
        self.offer_ended(now);
        let is_offered = self.policy.is_offered(slot_index);
        let is_new = is_offered && !self.abandoned.contains(slot_index);
        if is_new {
            self.abandoned.push(self.now, slot_index);
        }
        is_new
    }

    /// What was withheld may leave again, in its turn.
    pub(super) fn offer(&mut self, slot_index: u32) {
        if !self.pinned.offer(self.now, slot_index) {
            self.policy.offer(slot_index);
        }
    }

    /// A copy has left to make room.
    pub(super) fn evict(&mut self, slot_index: u32) {
        self.policy.evict(slot_index);
        self.standing.remove(slot_index);
        self.pinned.remove(slot_index);
        self.abandoned.remove(slot_index);
    }

    /// A copy is no more, and does not come back.
    pub(super) fn remove(&mut self, slot_index: u32) {
        self.policy.remove(slot_index);
        self.standing.remove(slot_index);
        self.pinned.remove(slot_index);
        self.abandoned.remove(slot_index);
    }

    /// How often a copy was used after the first time: one in this slot, or one that left and is remembered.
    pub(super) fn reuses(&self, slot_index: Option<u32>, key: u64) -> u8 {
        self.policy.reuses(slot_index, key)
    }

    /// What is in this slot had been used elsewhere, so often after the first time.
    pub(super) fn was_used(&mut self, slot_index: u32, reuses: u8) {
        self.policy.was_used(slot_index, reuses);
    }

    /// What left came back elsewhere.
    pub(super) fn came_back(&mut self, key: u64) {
        self.policy.came_back(key);
    }

    /// A copy that was told cannot leave.
    pub(super) fn spare(&mut self, id: EntryId) {
        self.withhold(id.slot_index);
        self.spared.push_back((id, self.told));
    }

    /// Offers those whose time it is: say so before [`ordinary`](Self::ordinary).
    pub(super) fn begin(&mut self, now: Time, is_resident: impl Fn(EntryId) -> bool) {
        self.offer_ended(now);
        self.offer_spared(self.told, is_resident);
    }

    /// Offers what is no longer pinned and does not stand by any more.
    fn offer_ended(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some((slot_index, was_offered)) = self.pinned.pop_ended(self.now) {
            if was_offered {
                self.policy.offer(slot_index);
            }
        }
        while let Some(slot_index) = self.standing.pop(self.now, STANDS_BY) {
            self.policy.offer(slot_index);
        }
    }

    /// Who leaves next. It is told once, unless it is spared. If `asks_again`, those that were spared are told again
    /// rather than nobody.
    pub(super) fn ordinary(
        &mut self,
        asks_again: bool,
        is_resident: impl Fn(EntryId) -> bool,
    ) -> Option<u32> {
        let abandoned = self.abandoned.pop(self.now, Duration::ZERO);
        let mut next = abandoned.or_else(|| self.policy.victim());
        if next.is_none() && asks_again {
            self.offer_spared(u64::MAX, is_resident);
            next = self.policy.victim();
        }
        next.map(|slot_index| self.tell(slot_index))
    }

    /// Who leaves next where there are no others: it stands by, or is pinned.
    pub(super) fn last_resort(&mut self) -> Option<u32> {
        let next = self.standing.pop(self.now, Duration::ZERO);
        let next = next.or_else(|| self.pinned.pop(self.now));
        next.map(|slot_index| self.tell(slot_index))
    }

    fn tell(&mut self, slot_index: u32) -> u32 {
        self.told += 1;
        self.policy.withhold(slot_index);
        debug_assert!(
            !self.abandoned.contains(slot_index),
            "it was told before others"
        );
        slot_index
    }

    /// Those that were spared [`SPARED_FOR`] victims before `told` may leave again.
    fn offer_spared(&mut self, told: u64, is_resident: impl Fn(EntryId) -> bool) {
        while let Some(&(id, since)) = self.spared.front()
            && told - since >= SPARED_FOR
        {
            self.spared.pop_front();
            if is_resident(id) {
                self.offer(id.slot_index);
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
        self.standing.count()
    }
}
