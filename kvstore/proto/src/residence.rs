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

mod order;
mod pinned;
mod shares;
mod standing;

use lunette_kvstore_policy::class::Use;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;
use slab::Slab;
use thiserror::Error;

use crate::credit::Credit;
use crate::key::Fingerprint;
use crate::message::directory::CopyPlace;
use crate::retention::{Pin, Retention};
use crate::shard::{EntryId, ShardLimits};
use crate::sorted::{Sorted, Spread};
use crate::tenant::TenantTag;

pub use order::{SPARED_FOR, STANDS_BY};
use pinned::Until;
use shares::{OverCredit, ShareId, Shares};
pub use shares::{TENANTS_MAX, TenantUse};

/// Most copies that are asked to leave together. It bounds the time that eviction takes from its core.
pub const LEAVE_PER_TURN_MAX: usize = 64;
/// So many bytes beyond the low watermark, or half of what lies between the watermarks, begin to leave: so that drives,
/// which take what leaves, have always something to do.
pub const TIGHT_BYTES_MAX: u64 = 4 << 20;
/// What is pinned for ever takes at most one of so many bytes below the low watermark: the rest is there for all others.
pub const HARD_PINNED_SHARE: u64 = 2;

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
    /// Its tenant may have no more: it is let go of something of its own, or may have more soon.
    #[error("{needed_bytes} bytes more, where {used_bytes} of {max_bytes} are used")]
    OverCredit {
        /// The length of the extent.
        needed_bytes: u64,
        /// What the tenant has here.
        used_bytes: u64,
        /// What it may have here.
        max_bytes: u64,
        /// Whether more cannot be had.
        is_last: bool,
    },
    /// Its tenant may have no more, and what it has pinned for ever leaves too little: some of that has to be removed first,
    /// or the quota raised.
    #[error("{needed_bytes} bytes more, where {pinned_bytes} of {max_bytes} are pinned")]
    OverQuota {
        /// The length of the extent.
        needed_bytes: u64,
        /// What the tenant has pinned for ever here.
        pinned_bytes: u64,
        /// What it may have here.
        max_bytes: u64,
    },
    /// It was to be pinned for ever, and too much is: some of that has to be removed first.
    #[error("{needed_bytes} bytes to be pinned, where of {max_bytes} {pinned_bytes} are")]
    Pinned {
        /// The length of the extent.
        needed_bytes: u64,
        /// What is pinned for ever.
        pinned_bytes: u64,
        /// What may be.
        max_bytes: u64,
    },
}

impl NoRoom {
    /// Whether the same may fit later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::OverCredit { .. })
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
    /// As its writer wished.
    pin: Pin,
    share: ShareId,
}

/// How a copy came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// It is a piece of an object in parts that has just been written: it leaves after all others for [`STANDS_BY`].
    pub stands_by: bool,
    /// What its writer knows and wishes.
    pub retention: Retention,
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
    /// Bytes of what is pinned for ever.
    pub hard_pinned_bytes: u64,
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
    shares: Shares,
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
        Self {
            shares: Shares::new(&limits),
            limits,
            slots: Slab::with_capacity(entries_max),
            by_place: Sorted::default(),
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

    /// What each tenant has here, the default one first: those beyond [`TENANTS_MAX`] are in its share.
    pub fn tenants(&self) -> impl Iterator<Item = TenantUse> + '_ {
        self.shares.uses()
    }

    /// What a tenant may have here from now on; `None`: whatever others leave it. What it has beyond that is to leave.
    pub fn set_credit(&mut self, tenant: TenantTag, credit: Option<Credit>) {
        self.shares.set_credit(tenant, credit);
    }

    /// Bytes of all entries of a tenant with a quota.
    #[must_use]
    pub fn charged_bytes(&self, tenant: TenantTag) -> u64 {
        self.shares.charged_bytes(tenant)
    }

    /// An entry for an extent of this tenant's, that is to be filled and pinned so: end it with [`reside`](Self::reside)
    /// or [`discard`](Self::discard).
    ///
    /// # Errors
    /// [`NoRoom`]; if room can be made, it is wanted from now on.
    pub fn admit(
        &mut self,
        extent_bytes: u32,
        pin: Pin,
        tenant: TenantTag,
    ) -> Result<EntryId, NoRoom> {
        let needed_bytes = u64::from(extent_bytes);
        let max_bytes = self.limits.high_watermark_bytes();
        if needed_bytes > max_bytes {
            self.stats.refused += 1;
            return Err(NoRoom::TooLarge {
                needed_bytes,
                max_bytes,
            });
        }
        self.check_pin(needed_bytes, pin)?;
        self.check_credit(needed_bytes, tenant)?;
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
        if pin == Pin::Hard {
            self.stats.hard_pinned_bytes += needed_bytes;
        }
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let entry = Entry {
            state: State::Arriving,
            pins: 0,
            generation,
            extent_bytes,
            pin,
            share: self.shares.admit(tenant, needed_bytes, pin),
        };
        let slot_index = u32::try_from(self.slots.insert(entry)).expect("entries are bounded");
        Ok(EntryId {
            slot_index,
            generation,
        })
    }

    fn check_credit(&mut self, needed_bytes: u64, tenant: TenantTag) -> Result<(), NoRoom> {
        let Err(over) = self.shares.check(tenant, needed_bytes) else {
            return Ok(());
        };
        let OverCredit {
            used_bytes,
            pinned_bytes,
            credit,
        } = over;
        self.stats.refused += 1;
        if needed_bytes > credit.quota_bytes {
            return Err(NoRoom::TooLarge {
                needed_bytes,
                max_bytes: credit.quota_bytes,
            });
        }
        if credit.is_last && pinned_bytes > 0 && pinned_bytes + needed_bytes > credit.max_bytes {
            return Err(NoRoom::OverQuota {
                needed_bytes,
                pinned_bytes,
                max_bytes: credit.max_bytes,
            });
        }
        Err(NoRoom::OverCredit {
            needed_bytes,
            used_bytes,
            max_bytes: credit.max_bytes,
            is_last: credit.is_last,
        })
    }

    const fn check_pin(&mut self, needed_bytes: u64, pin: Pin) -> Result<(), NoRoom> {
        let max_bytes = self.limits.low_watermark_bytes() / HARD_PINNED_SHARE;
        let pinned_bytes = self.stats.hard_pinned_bytes;
        if !matches!(pin, Pin::Hard) || pinned_bytes + needed_bytes <= max_bytes {
            return Ok(());
        }
        self.stats.refused += 1;
        Err(NoRoom::Pinned {
            needed_bytes,
            pinned_bytes,
            max_bytes,
        })
    }

    /// The driver's memory is too fragmented for an extent that was admitted: more has to leave.
    pub fn want(&mut self, extent_bytes: u32) {
        let target = self.staying_bytes().saturating_sub(extent_bytes.into());
        let wanted = self.limits.high_watermark_bytes() - target;
        self.wanted_bytes = self.wanted_bytes.max(wanted);
    }

    /// A filled entry is this copy from now on. Its pin begins.
    ///
    /// # Panics
    /// If the entry is not arriving, or there is such a copy: the owner has each once.
    pub fn reside(&mut self, now: Time, id: EntryId, place: CopyPlace, arrival: Arrival) {
        let entry = self.entry_mut(id);
        assert!(entry.state == State::Arriving, "{id:?} is not arriving");
        entry.state = State::Resident(place);
        let (extent_bytes, share) = (entry.extent_bytes, entry.share);
        let pin = if mutant::is_on(Mutant::HardPinIgnored) {
            Pin::None
        } else {
            entry.pin
        };
        let former = self.by_place.insert(place, id.slot_index);
        assert!(former.is_none(), "{place:?} is here twice");
        let used = Use {
            is_last: arrival.retention.is_last,
            ..Use::default()
        };
        self.shares.come(share, extent_bytes.into());
        let order = self.shares.order(share);
        order.insert(id.slot_index, place.key.low(), used);
        if let Some(until) = Until::of(now, pin) {
            order.pin(now, id.slot_index, until);
        } else if arrival.stands_by {
            order.stand_by(now, id.slot_index);
        }
    }

    /// How a copy is pinned from now on: what another copy of its object is to be pinned like.
    #[must_use]
    pub fn pin_of(&self, now: Time, place: CopyPlace) -> Pin {
        let until = self.by_place.get(place).and_then(|slot_index| {
            let share = self.slots[slot_index as usize].share;
            self.shares.order_of(share).pinned(slot_index)
        });
        until.map_or(Pin::None, |until| until.from(now))
    }

    /// A write is given up: its entry is released.
    ///
    /// # Panics
    /// If the entry is not arriving.
    pub fn discard(&mut self, id: EntryId) {
        let entry = self.entry_mut(id);
        assert!(entry.state == State::Arriving, "{id:?} is not arriving");
        let (bytes, share) = (u64::from(entry.extent_bytes), entry.share);
        self.shares.discard(share, bytes);
        self.release(id.slot_index);
    }

    /// The entry of a copy, which is used once more, with one more pin, which
    /// [`unpin`](Self::unpin) takes back. Its memory stays while it is pinned.
    pub fn pin(&mut self, place: CopyPlace) -> Option<EntryId> {
        let slot_index = self.by_place.get(place)?;
        let entry = &mut self.slots[slot_index as usize];
        entry.pins = entry.pins.checked_add(1).expect("far fewer reads");
        let generation = entry.generation;
        self.shares.order(entry.share).touch(slot_index);
        Some(EntryId {
            slot_index,
            generation,
        })
    }

    /// The copy in this entry, if there is one, is used once more, without a pin.
    pub fn used(&mut self, slot_index: u32) {
        let entry = self.slots.get(slot_index as usize);
        if let Some(entry) = entry
            && matches!(entry.state, State::Resident(_))
        {
            let share = entry.share;
            self.shares.order(share).touch(slot_index);
        }
    }

    /// How often a copy was used after the first time, as far as is known: also one that left and is remembered.
    #[must_use]
    pub fn reuses(&self, place: CopyPlace) -> u8 {
        let key = place.key.low();
        match self.by_place.get(place) {
            Some(slot_index) => {
                let share = self.slots[slot_index as usize].share;
                self.shares.order_of(share).reuses(Some(slot_index), key)
            }
            None => {
                let known = self.shares.orders().map(|order| order.reuses(None, key));
                known.max().unwrap_or(0)
            }
        }
    }

    /// This copy's key had left another memory before it came here, and had been used there so often after the first time.
    pub fn was_used(&mut self, place: CopyPlace, reuses: u8) {
        if let Some(slot_index) = self.by_place.get(place) {
            let share = self.slots[slot_index as usize].share;
            self.shares.order(share).was_used(slot_index, reuses);
        }
    }

    /// A key that left this memory was written to another one.
    pub fn came_back(&mut self, key: Fingerprint) {
        self.shares.came_back(key.low());
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

    /// The copy in an entry, if nobody reads it and it is to stay: its bytes may be moved.
    #[must_use]
    pub fn at_rest(&self, slot_index: u32) -> Option<CopyPlace> {
        let entry = self.slots.get(slot_index as usize)?;
        match entry.state {
            State::Resident(place) if entry.pins == 0 => Some(place),
            _ => None,
        }
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
        let (bytes, share) = (u64::from(entry.extent_bytes), entry.share);
        match entry.state {
            State::Resident(_) => {
                self.shares.order(share).remove(slot_index);
                self.shares.leave(share, bytes);
            }
            State::Leaving(_) => {
                // It was not removed: it may come back.
                self.shares.order(share).evict(slot_index);
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

    /// A copy is of no use any more, as far as is known: it leaves before all others that may leave, unless it is used
    /// meanwhile. Whether that is new; what stands by, is pinned, leaves already or is not here stays as it is.
    pub fn abandon(&mut self, now: Time, place: CopyPlace) -> bool {
        let slot_index = self.by_place.get(place);
        slot_index.is_some_and(|slot_index| {
            let share = self.slots[slot_index as usize].share;
            self.shares.order(share).abandon(now, slot_index)
        })
    }

    /// Copies that are to leave now, of tenants that have more than they may, and then of the one that has most, those first that are least likely to be used again: at most
    /// [`LEAVE_PER_TURN_MAX`]. They are told once: say [`leave`](Self::leave) for each that does, and
    /// [`spare`](Self::spare) for each that cannot. If none could, ask again, with `asks_again` the first time only:
    /// then those are told that could not leave a while ago, if there are no others.
    #[must_use]
    pub fn victims(&mut self, now: Time, asks_again: bool) -> Vec<CopyPlace> {
        let mut victims = Vec::new();
        let (mut bytes, mut entries) = (self.excess_bytes(), self.excess_entries());
        if (bytes, entries) == (0, 0) && !self.shares.is_over() {
            return victims;
        }
        let slots = &self.slots;
        self.shares.begin(now, |id| is_resident(slots, id));
        while victims.len() < LEAVE_PER_TURN_MAX {
            let asks_again = asks_again && victims.is_empty();
            let mut next = self
                .shares
                .next_over(asks_again, |id| is_resident(slots, id));
            if next.is_none() && (bytes, entries) != (0, 0) {
                next = self.shares.next(asks_again, |id| is_resident(slots, id));
            }
            let Some((share, slot_index)) = next else {
                break;
            };
            let entry = &slots[slot_index as usize];
            self.shares.told(share, entry.extent_bytes.into());
            let State::Resident(place) = entry.state else {
                unreachable!("{entry:?} was told to leave")
            };
            bytes = bytes.saturating_sub(entry.extent_bytes.into());
            entries = entries.saturating_sub(1);
            victims.push(place);
        }
        victims
    }

    /// Whether it is time to make room, so that the next writes find some: less than half of what lies
    /// between the watermarks is left, or [`TIGHT_BYTES_MAX`] beyond the low one are taken.
    /// See also [`is_tight_for`](Self::is_tight_for).
    #[must_use]
    pub fn is_tight(&self) -> bool {
        let limits = &self.limits;
        let (low, high) = (limits.low_watermark_bytes(), limits.high_watermark_bytes());
        let tight = low.midpoint(high).min(low + TIGHT_BYTES_MAX);
        let is_short_of_bytes = self.staying_bytes() > tight;
        let (low, high) = (limits.low_watermark_entries(), limits.entries_max());
        is_short_of_bytes || self.staying_entries() > low.midpoint(high) as u64
    }

    /// As [`is_tight`](Self::is_tight), or of what the tenant of this entry may have.
    #[must_use]
    pub fn is_tight_for(&self, id: EntryId) -> bool {
        let entry = self.slots.get(id.slot_index as usize);
        self.is_tight() || entry.is_some_and(|entry| self.shares.is_tight(entry.share))
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
        let (bytes, share) = (u64::from(entry.extent_bytes), entry.share);
        self.shares.order(share).withhold(slot_index);
        self.shares.leave(share, bytes);
        self.stats.leaving_entries += 1;
        self.stats.leaving_bytes += bytes;
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
        let (bytes, share) = (u64::from(entry.extent_bytes), entry.share);
        self.shares.order(share).offer(slot_index);
        self.shares.stay(share, bytes);
        self.stats.leaving_entries -= 1;
        self.stats.leaving_bytes -= bytes;
    }

    /// A copy that was told cannot leave now: [`SPARED_FOR`] others are told first, and then it is as if it had just
    /// been read.
    pub fn spare(&mut self, place: CopyPlace) {
        let Some(id) = self.find(place) else {
            return;
        };
        let entry = &self.slots[id.slot_index as usize];
        if let State::Resident(_) = entry.state {
            self.shares.order(entry.share).spare(id);
        }
    }

    fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        let entry = self.slots.get_mut(id.slot_index as usize);
        let entry = entry.filter(|entry| entry.generation == id.generation);
        entry.expect("the id of an entry that is not released")
    }

    fn release(&mut self, slot_index: u32) {
        let entry = self.slots.remove(slot_index as usize);
        let bytes = u64::from(entry.extent_bytes);
        self.stats.entries -= 1;
        self.stats.used_bytes -= bytes;
        if entry.pin == Pin::Hard {
            self.stats.hard_pinned_bytes -= bytes;
        }
        self.shares.release(entry.share, bytes, entry.pin);
    }
}

fn is_resident(slots: &Slab<Entry>, id: EntryId) -> bool {
    slots.get(id.slot_index as usize).is_some_and(|entry| {
        entry.generation == id.generation && matches!(entry.state, State::Resident(_))
    })
}

#[cfg(test)]
mod tests;
