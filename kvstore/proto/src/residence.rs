//! What one core's memory holds for its owner: how much, what is read, what is to leave next.
//!
//! The [`Owner`](crate::owner::Owner) says which copies there are, this machine whether there is room
//! for another, and the driver holds the bytes, one extent per entry.
//!
//! ```text
//!            admit             reside                 leave
//!  (absent) -------> Arriving --------> Resident ----------------> Leaving
//!     ^                 |                  |                          |
//!     +---- discard ----+                  +---------- free ----------+
//!     |                                    |
//!     |                no pins             v   pins
//!     +------------------------------------+---------> Dying --(last unpin)--> (absent)
//! ```
//!
//! Nothing leaves at once: the last copy of an object goes when its home has recorded that. So
//! eviction begins before memory is full, at the high watermark less a share, and a write that
//! finds no room is refused, to be tried again, while room is being made. An entry is released to
//! the driver once, when nobody reads it any more.

use std::collections::VecDeque;

use lunette_kvstore_policy::class::Use;
use lunette_kvstore_policy::{GHOST_BYTES, Learned, Policy as _};
use slab::Slab;
use thiserror::Error;

use crate::key::Fingerprint;
use crate::message::directory::CopyPlace;
use crate::shard::{EntryId, ShardLimits};
use crate::sorted::{Sorted, Spread};

/// Most copies that are asked to leave together. It bounds the time that eviction takes from its core.
pub const LEAVE_PER_TURN_MAX: usize = 64;

/// A copy that was spared may be told again when so many others have been, or when there are no others.
pub const SPARED_FOR: u64 = LEAVE_PER_TURN_MAX as u64;

/// Of so many bytes of memory, one is spent on remembering what left, at most, or [`REMEMBERED_MIN`].
pub const REMEMBERING_SHARE: u64 = 128;
/// So many copies that left are remembered by the smallest memory: some 1.3 MB.
pub const REMEMBERED_MIN: u64 = 16_384;

/// Why there is no room.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NoRoom {
    /// It is being made: try again soon.
    #[error("there is no room for {needed_bytes} bytes yet")]
    Full {
        /// The length of the extent.
        needed_bytes: u64,
    },
    /// It never fits.
    #[error("{needed_bytes} bytes never fit into {max_bytes}")]
    TooLarge {
        /// The length of the extent.
        needed_bytes: u64,
        /// The longest extent that ever fits.
        max_bytes: u64,
    },
}

impl NoRoom {
    /// Whether the same may fit later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Arriving,
    Resident(CopyPlace),
    Leaving(CopyPlace),
    Dying,
}

#[derive(Debug)]
struct Entry {
    state: State,
    pins: u32,
    generation: u32,
    extent_bytes: u32,
}

/// What it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidenceStats {
    /// Entries that are not released.
    pub entries: u64,
    /// Bytes of all entries.
    pub used_bytes: u64,
    /// Entries that were asked to leave.
    pub leaving_entries: u64,
    /// Bytes of those.
    pub leaving_bytes: u64,
    /// Writes refused for want of room.
    pub refused: u64,
}

/// The machine of one core's memory. See the [module](self).
#[derive(Debug)]
pub struct Residence {
    limits: ShardLimits,
    slots: Slab<Entry>,
    by_place: Sorted<CopyPlace, u32>,
    /// Which of the resident entries leaves next.
    policy: Learned,
    /// Victims that were told, ever.
    told: u64,
    /// Those that could not leave, the first one first, and how many had been told by then.
    spared: VecDeque<(EntryId, u64)>,
    next_generation: u32,
    /// Bytes that a write was refused for.
    wanted_bytes: u64,
    stats: ResidenceStats,
}

impl Residence {
    /// Empty memory within `limits`. Its slots are allocated here for all entries.
    #[must_use]
    pub fn new(limits: ShardLimits) -> Self {
        let entries_max = limits.entries_max();
        let remembered_max = limits.high_watermark_bytes() / REMEMBERING_SHARE / GHOST_BYTES as u64;
        let remembered_max = usize::try_from(remembered_max.max(REMEMBERED_MIN));
        let remembered_max = remembered_max.unwrap_or(usize::MAX);
        Self {
            limits,
            slots: Slab::with_capacity(entries_max),
            by_place: Sorted::default(),
            policy: Learned::with_ghosts(entries_max, remembered_max),
            told: 0,
            spared: VecDeque::new(),
            next_generation: 0,
            wanted_bytes: 0,
            stats: ResidenceStats::default(),
        }
    }

    /// Its limits.
    #[must_use]
    pub const fn limits(&self) -> &ShardLimits {
        &self.limits
    }

    /// What it holds.
    #[must_use]
    pub const fn stats(&self) -> ResidenceStats {
        self.stats
    }

    /// An entry for an extent that is to be filled: end it with [`reside`](Self::reside) or
    /// [`discard`](Self::discard).
    ///
    /// # Errors
    /// [`NoRoom`]; if room can be made, it is wanted from now on.
    pub fn admit(&mut self, extent_bytes: u32) -> Result<EntryId, NoRoom> {
        let needed_bytes = u64::from(extent_bytes);
        let max_bytes = self.limits.high_watermark_bytes();
        if needed_bytes > max_bytes {
            self.stats.refused += 1;
            return Err(NoRoom::TooLarge {
                needed_bytes,
                max_bytes,
            });
        }
        let is_full = self.stats.entries >= self.limits.entries_max() as u64;
        if is_full || self.stats.used_bytes + needed_bytes > max_bytes {
            self.stats.refused += 1;
            self.wanted_bytes = self.wanted_bytes.max(needed_bytes);
            return Err(NoRoom::Full { needed_bytes });
        }
        if needed_bytes >= self.wanted_bytes {
            self.wanted_bytes = 0;
        }
        self.stats.entries += 1;
        self.stats.used_bytes += needed_bytes;
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let entry = Entry {
            state: State::Arriving,
            pins: 0,
            generation,
            extent_bytes,
        };
        let slot_index = u32::try_from(self.slots.insert(entry)).expect("entries are bounded");
        Ok(EntryId {
            slot_index,
            generation,
        })
    }

    /// The driver's memory is too fragmented for an extent that was admitted: more has to leave.
    pub fn want(&mut self, extent_bytes: u32) {
        let target = self.staying_bytes().saturating_sub(extent_bytes.into());
        let wanted = self.limits.high_watermark_bytes() - target;
        self.wanted_bytes = self.wanted_bytes.max(wanted);
    }

    /// A filled entry is this copy from now on.
    ///
    /// # Panics
    /// If the entry is not arriving, or there is such a copy: the owner has each once.
    pub fn reside(&mut self, id: EntryId, place: CopyPlace) {
        let entry = self.entry_mut(id);
        assert!(entry.state == State::Arriving, "{id:?} is not arriving");
        entry.state = State::Resident(place);
        let former = self.by_place.insert(place, id.slot_index);
        assert!(former.is_none(), "{place:?} is here twice");
        self.policy
            .insert(id.slot_index, place.key.low(), Use::default());
    }

    /// A write is given up: its entry is released.
    ///
    /// # Panics
    /// If the entry is not arriving.
    pub fn discard(&mut self, id: EntryId) {
        assert!(
            self.entry_mut(id).state == State::Arriving,
            "{id:?} is not arriving"
        );
        self.release(id.slot_index);
    }

    /// The entry of a copy, which is used once more, with one more pin, which
    /// [`unpin`](Self::unpin) takes back. Its memory stays while it is pinned.
    pub fn pin(&mut self, place: CopyPlace) -> Option<EntryId> {
        let slot_index = self.by_place.get(place)?;
        let entry = &mut self.slots[slot_index as usize];
        entry.pins = entry.pins.checked_add(1).expect("far fewer reads");
        let generation = entry.generation;
        self.policy.touch(slot_index, Use::default());
        Some(EntryId {
            slot_index,
            generation,
        })
    }

    /// A copy of this key is about to be looked for, or to be kept: see [`Sorted::touch`].
    pub fn touch(&self, key: Fingerprint) {
        self.by_place.touch(CopyPlace::least(key.head()));
    }

    /// The entry of a copy, as it is.
    #[must_use]
    pub fn find(&self, place: CopyPlace) -> Option<EntryId> {
        let slot_index = self.by_place.get(place)?;
        let generation = self.slots[slot_index as usize].generation;
        Some(EntryId {
            slot_index,
            generation,
        })
    }

    /// Takes one pin back. Whether the entry is released by that.
    ///
    /// # Panics
    /// If the entry is not pinned.
    pub fn unpin(&mut self, id: EntryId) -> bool {
        let entry = self.entry_mut(id);
        assert!(entry.pins > 0, "{id:?} is not pinned");
        entry.pins -= 1;
        let is_released = entry.pins == 0 && entry.state == State::Dying;
        if is_released {
            self.release(id.slot_index);
        }
        is_released
    }

    /// A copy is no more. The entry that is released by that; none if it is being read, or there is
    /// no such copy.
    pub fn free(&mut self, place: CopyPlace) -> Option<EntryId> {
        let slot_index = self.by_place.remove(place)?;
        let entry = &mut self.slots[slot_index as usize];
        let bytes = u64::from(entry.extent_bytes);
        match entry.state {
            State::Resident(_) => self.policy.remove(slot_index),
            State::Leaving(_) => {
                // It was not removed: it may come back.
                self.policy.evict(slot_index);
                self.stats.leaving_entries -= 1;
                self.stats.leaving_bytes -= bytes;
            }
            State::Arriving | State::Dying => unreachable!("{place:?} is {:?}", entry.state),
        }
        entry.state = State::Dying;
        let (pins, generation) = (entry.pins, entry.generation);
        if pins > 0 {
            return None;
        }
        self.release(slot_index);
        Some(EntryId {
            slot_index,
            generation,
        })
    }

    /// Copies that are to leave now, those first that are least likely to be used again: at most
    /// [`LEAVE_PER_TURN_MAX`]. They are told once: say [`leave`](Self::leave) for each that does, and
    /// [`spare`](Self::spare) for each that cannot.
    #[must_use]
    pub fn victims(&mut self) -> Vec<CopyPlace> {
        let mut victims = Vec::new();
        let (mut bytes, mut entries) = (self.excess_bytes(), self.excess_entries());
        self.offer_spared(self.told);
        while (bytes, entries) != (0, 0) && victims.len() < LEAVE_PER_TURN_MAX {
            let Some(slot_index) = self.policy.victim() else {
                if victims.is_empty() && !self.spared.is_empty() {
                    self.offer_spared(u64::MAX);
                    continue;
                }
                break;
            };
            self.told += 1;
            self.policy.withhold(slot_index);
            let entry = &self.slots[slot_index as usize];
            let State::Resident(place) = entry.state else {
                unreachable!("{slot_index} is offered and {:?}", entry.state)
            };
            bytes = bytes.saturating_sub(entry.extent_bytes.into());
            entries = entries.saturating_sub(1);
            victims.push(place);
        }
        victims
    }

    /// Those that were spared [`SPARED_FOR`] victims before `told` may leave again.
    fn offer_spared(&mut self, told: u64) {
        while let Some(&(id, since)) = self.spared.front()
            && told - since >= SPARED_FOR
        {
            self.spared.pop_front();
            let entry = self.slots.get(id.slot_index as usize);
            let is_here = entry.is_some_and(|entry| {
                entry.generation == id.generation && matches!(entry.state, State::Resident(_))
            });
            if is_here {
                self.policy.offer(id.slot_index);
            }
        }
    }

    /// Whether it is time to make room, so that the next writes find some: less than half of what lies
    /// between the watermarks is left.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        let limits = &self.limits;
        let (low, high) = (limits.low_watermark_bytes(), limits.high_watermark_bytes());
        let is_short_of_bytes = self.staying_bytes() > low.midpoint(high);
        let (low, high) = (limits.low_watermark_entries(), limits.entries_max());
        is_short_of_bytes || self.staying_entries() > low.midpoint(high) as u64
    }

    const fn staying_bytes(&self) -> u64 {
        self.stats.used_bytes - self.stats.leaving_bytes
    }

    const fn staying_entries(&self) -> u64 {
        self.stats.entries - self.stats.leaving_entries
    }

    /// Bytes that are to leave beyond those that are leaving.
    fn excess_bytes(&self) -> u64 {
        let low = self.limits.low_watermark_bytes();
        let room = self.limits.high_watermark_bytes() - self.wanted_bytes;
        self.staying_bytes().saturating_sub(low.min(room))
    }

    /// Entries that are to leave beyond those that are leaving.
    fn excess_entries(&self) -> u64 {
        let low = self.limits.low_watermark_entries() as u64;
        self.staying_entries().saturating_sub(low)
    }

    /// A copy was asked to leave. It may be read until it is freed.
    ///
    /// # Panics
    /// If it is not resident.
    pub fn leave(&mut self, place: CopyPlace) {
        let slot_index = self.by_place.get(place).expect("a copy that is here");
        let entry = &mut self.slots[slot_index as usize];
        assert!(
            entry.state == State::Resident(place),
            "{place:?} is not resident"
        );
        entry.state = State::Leaving(place);
        self.policy.withhold(slot_index);
        self.stats.leaving_entries += 1;
        self.stats.leaving_bytes += u64::from(entry.extent_bytes);
        if self.excess_bytes() == 0 {
            self.wanted_bytes = 0;
        }
    }

    /// A copy that was asked to leave stays, as if it had just been read. Nothing happens if it is not leaving.
    pub fn stay(&mut self, place: CopyPlace) {
        let Some(slot_index) = self.by_place.get(place) else {
            return;
        };
        let entry = &mut self.slots[slot_index as usize];
        if !matches!(entry.state, State::Leaving(_)) {
            return;
        }
        entry.state = State::Resident(place);
        self.stats.leaving_entries -= 1;
        self.stats.leaving_bytes -= u64::from(entry.extent_bytes);
        self.policy.offer(slot_index);
    }

    /// A copy that was told cannot leave now: [`SPARED_FOR`] others are told first, and then it is as if it had just
    /// been read.
    pub fn spare(&mut self, place: CopyPlace) {
        if let Some(id) = self.find(place)
            && matches!(self.slots[id.slot_index as usize].state, State::Resident(_))
        {
            self.policy.withhold(id.slot_index);
            self.spared.push_back((id, self.told));
        }
    }

    fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        let entry = self.slots.get_mut(id.slot_index as usize);
        let entry = entry.filter(|entry| entry.generation == id.generation);
        entry.expect("the id of an entry that is not released")
    }

    fn release(&mut self, slot_index: u32) {
        let entry = self.slots.remove(slot_index as usize);
        self.stats.entries -= 1;
        self.stats.used_bytes -= u64::from(entry.extent_bytes);
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster_proto::map::Epoch;

    use super::*;
    use crate::version::Version;

    fn place(number: u64) -> CopyPlace {
        CopyPlace {
            key: Fingerprint(number.into()),
            version: Version {
                epoch: Epoch(1),
                sequence: number,
            },
        }
    }

    /// 1000 bytes, evicted down to 800.
    fn memory(entries_max: usize) -> Residence {
        Residence::new(ShardLimits::new(1000, 800, entries_max).expect("limits"))
    }

    fn keep(memory: &mut Residence, number: u64, bytes: u32) -> EntryId {
        let id = memory.admit(bytes).expect("room");
        memory.reside(id, place(number));
        id
    }

    #[test]
    fn the_least_recently_used_leaves_first_and_before_memory_is_full() {
        let mut memory = memory(100);
        for number in 0..8 {
            keep(&mut memory, number, 100);
        }
        assert_eq!(memory.victims(), [], "at the low watermark");
        keep(&mut memory, 8, 100);
        let pinned = memory.pin(place(0)).expect("here");
        assert_eq!(memory.victims(), [place(1)]);
        memory.leave(place(1));
        assert_eq!(memory.victims(), [], "one that leaves is enough");
        assert!(memory.pin(place(1)).is_some(), "it is read until it left");
        memory.spare(place(2));
        keep(&mut memory, 9, 100);
        assert_eq!(memory.victims(), [place(3)], "2 was spared, 0 was read");
        assert!(!memory.unpin(pinned));
    }

    #[test]
    fn who_finds_no_room_is_refused_until_enough_has_left() {
        let mut memory = memory(100);
        for number in 0..10 {
            keep(&mut memory, number, 100);
        }
        let needed_bytes = 450;
        assert_eq!(memory.admit(450), Err(NoRoom::Full { needed_bytes }));
        let victims = memory.victims();
        assert_eq!(victims, [0, 1, 2, 3, 4].map(place));
        for &victim in &victims {
            memory.leave(victim);
        }
        assert_eq!(memory.victims(), []);
        assert_eq!(memory.admit(450), Err(NoRoom::Full { needed_bytes }));
        for victim in victims {
            assert!(memory.free(victim).is_some());
        }
        assert!(memory.admit(450).is_ok());
        let too_large = NoRoom::TooLarge {
            needed_bytes: 1001,
            max_bytes: 1000,
        };
        assert_eq!(memory.admit(1001), Err(too_large));
        assert!(!too_large.is_retryable());
    }

    #[test]
    fn entries_are_bounded_like_bytes() {
        let mut memory = memory(2);
        keep(&mut memory, 0, 10);
        keep(&mut memory, 1, 10);
        assert_eq!(memory.admit(10), Err(NoRoom::Full { needed_bytes: 10 }));
        assert_eq!(memory.victims(), [place(0)]);
        memory.leave(place(0));
        memory.free(place(0));
        assert!(memory.admit(10).is_ok());
    }

    #[test]
    fn entries_have_watermarks_like_bytes() {
        let mut memory = memory(64);
        for number in 0..60 {
            keep(&mut memory, number, 1);
        }
        assert_eq!(memory.victims(), [], "four are free");
        for number in 60..62 {
            keep(&mut memory, number, 1);
        }
        assert!(!memory.is_tight(), "half of them are left");
        keep(&mut memory, 62, 1);
        assert!(memory.is_tight());
        assert_eq!(memory.victims(), [0, 1, 2].map(place));
        memory.leave(place(0));
        memory.spare(place(1));
        memory.spare(place(2));
        assert_eq!(memory.victims(), [3, 4].map(place), "one leaves already");
        memory.spare(place(3));
        memory.spare(place(4));
        let mut others = 4;
        loop {
            let told = memory.victims();
            if told.contains(&place(1)) {
                break;
            }
            assert_eq!(told.len(), 2);
            others += told.len();
            told.into_iter().for_each(|place| memory.spare(place));
        }
        assert_eq!(others, 62, "all others have been told by then");
        assert!(memory.free(place(0)).is_some());
        assert_eq!(memory.stats().leaving_entries, 0);
    }

    #[test]
    fn fragmented_memory_makes_more_leave_than_bytes_alone() {
        let mut memory = memory(100);
        for number in 0..3 {
            keep(&mut memory, number, 100);
        }
        let id = memory.admit(150).expect("room");
        memory.discard(id);
        memory.want(150);
        assert_eq!(memory.victims(), [place(0), place(1)]);
    }

    #[test]
    fn what_is_read_is_released_when_it_is_read() {
        let mut memory = memory(100);
        let id = keep(&mut memory, 0, 600);
        assert_eq!(memory.pin(place(0)), Some(id));
        assert_eq!(memory.pin(place(0)), Some(id));
        assert_eq!(memory.free(place(0)), None);
        assert_eq!(memory.free(place(0)), None, "it is freed once");
        assert_eq!(memory.find(place(0)), None);
        assert!(memory.admit(600).is_err(), "its bytes count");
        assert!(!memory.unpin(id));
        assert!(memory.unpin(id), "released");
        assert!(memory.admit(600).is_ok());
    }

    #[test]
    fn what_was_to_leave_may_stay() {
        let mut memory = memory(100);
        for number in 0..9 {
            keep(&mut memory, number, 100);
        }
        memory.leave(place(0));
        assert_eq!(memory.victims(), []);
        memory.stay(place(0));
        assert_eq!(memory.stats().leaving_bytes, 0);
        assert_eq!(memory.stats().leaving_entries, 0);
        assert_eq!(memory.victims(), [place(1)], "0 is the latest one");
        memory.stay(place(1));
        memory.stay(place(99));
        assert_eq!(
            memory.victims(),
            [place(2)],
            "1 was told, and was not leaving"
        );
        memory.spare(place(1));
        memory.leave(place(2));
        assert!(memory.free(place(0)).is_some());
    }

    /// Puts what is not there, after making room as an owner does; whether it was.
    fn get_or_put(memory: &mut Residence, number: u64) -> bool {
        if let Some(id) = memory.pin(place(number)) {
            memory.unpin(id);
            return true;
        }
        keep(memory, number, 1 << 17);
        for victim in memory.victims() {
            memory.leave(victim);
            assert!(memory.free(victim).is_some());
        }
        false
    }

    #[test]
    fn what_comes_back_stays_while_what_does_not_passes_by() {
        let limits = ShardLimits::new(9 << 17, 8 << 17, 100).expect("limits");
        let mut memory = Residence::new(limits);
        let mut hits = 0;
        for round in 0..4000 {
            // Each of these is back after 20 uses, by when eight others would have pushed it out.
            for often in 0..4 {
                let hit = get_or_put(&mut memory, often);
                hits += u64::from(hit && round >= 2000);
            }
            for once in 0..16 {
                get_or_put(&mut memory, 1000 + round * 16 + once);
            }
        }
        assert!(hits > 7000, "{hits} of 8000; the least recently used: none");
    }

    #[test]
    fn what_cannot_leave_is_asked_again_after_others() {
        let limits = ShardLimits::new(100_000, 99_000, 1000).expect("limits");
        let mut memory = Residence::new(limits);
        for number in 0..199 {
            keep(&mut memory, number, 500);
        }
        let told = memory.victims();
        assert_eq!(told, [place(0)]);
        memory.spare(place(0));
        let mut others = 0;
        loop {
            let told = memory.victims();
            if told == [place(0)] {
                break;
            }
            memory.leave(told[0]);
            memory.free(told[0]);
            keep(&mut memory, 1000 + others, 500);
            others += 1;
        }
        let most = SPARED_FOR + 199;
        assert!((SPARED_FOR..=most).contains(&others), "{others} of {most}");
        assert!(memory.spared.is_empty());
    }

    #[test]
    fn what_is_removed_is_forgotten_and_what_left_is_not() {
        let mut memory = memory(100);
        keep(&mut memory, 0, 100);
        assert!(memory.free(place(0)).is_some());
        assert!(!memory.policy.remembers(0), "it does not come back");
        let room = 1 << 28;
        let of_large = room / REMEMBERING_SHARE / GHOST_BYTES as u64;
        assert!(of_large > REMEMBERED_MIN);
        for (room, remembered_max) in [(1 << 20, REMEMBERED_MIN), (room, of_large)] {
            let limits = ShardLimits::new(room, room / 2, 100).expect("limits");
            let mut memory = Residence::new(limits);
            for number in 0..2 * remembered_max {
                keep(&mut memory, number, 100);
                memory.leave(place(number));
                assert!(memory.free(place(number)).is_some());
            }
            assert_eq!(memory.policy.ghosts() as u64, remembered_max);
            assert!(memory.policy.remembers(2 * remembered_max - 1));
            assert!(!memory.policy.remembers(remembered_max - 1));
        }
    }

    #[test]
    fn a_write_that_is_given_up_leaves_nothing() {
        let mut memory = memory(100);
        let id = memory.admit(1000).expect("room");
        memory.discard(id);
        assert_eq!(memory.stats().used_bytes, 0);
        assert_eq!(memory.victims(), []);
        let other = memory.admit(1000).expect("room");
        assert_ne!(id, other, "an id goes stale");
    }
}
