//! One core's slice of the store: which objects are resident, pinned, evicted next.
//!
//! The machine decides; the driver holds the memory. An entry is the machine's half of an object,
//! named by an [`EntryId`]; its other half is the extent that the driver carved for it.
//!
//! ```text
//!                begin_put            commit_put
//!      (absent) -----------> Writing -----------> Resident, pins n <---+
//!          ^                    |                   |   |   |          | get: n + 1
//!          |     abort_put      |      evict, or    |   |   +----------+ unpin: n - 1
//!          +--------------------+      remove, n = 0|   | remove, n > 0
//!          +----------------------------------------+   v
//!          +----------------------------------------- Dying, pins n
//!                         last unpin
//! ```
//!
//! Each arrow back to absent emits one [`Effect::Release`]: only then may the driver free the
//! extent. A dying entry is found by no key any more, and its bytes count until its last unpin. An
//! entry that is being written or is pinned is never evicted. Of the others those leave first that are least likely to
//! be used again, as the policy has learnt: one that is pinned when its turn comes is passed over, and comes back with
//! its last unpin.

mod index;
mod limits;
mod stats;

use std::collections::VecDeque;

use lunette_kvstore_policy::class::Use;
use lunette_kvstore_policy::{Learned, Policy as _};
use lunette_runtime_core::mutant::{self, Mutant};
use slab::Slab;

use crate::key::Fingerprint;
use crate::leaving::policy_for;

use index::Index;
pub use limits::{ENTRIES_MAX, LimitsFault, ShardLimits};
pub use stats::ShardStats;

/// Most entries that one put evicts beyond those that it needs itself, on the way down to the low
/// watermark. It bounds the time that one put takes from its core.
pub const EVICT_AHEAD_MAX: usize = 64;

/// The name of an entry. It goes stale when the entry is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId {
    /// Slot of the entry: small, and reused once its [`Effect::Release`] has been polled. Suited to
    /// index what the driver keeps beside the entry.
    pub slot_index: u32,
    /// Tells the entries apart that had the slot one after another, over 2^32 puts.
    pub generation: u32,
}

/// What came of [`Shard::begin_put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutStart {
    /// Room was made. Carve the extent, fill it, then [`Shard::commit_put`] or
    /// [`Shard::abort_put`].
    Write(EntryId),
    /// The key is resident already, and objects are immutable: it was used.
    Touched(EntryId),
    /// Another put of this key is under way. Retry when it may have ended.
    Busy,
    /// There is no room.
    Refused(PutRefusal),
}

/// Why there is no room for a put. Nothing was evicted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutRefusal {
    /// Too much is pinned, being written or dying. Retry when some of that may have ended.
    Full {
        /// The length of the extent.
        needed_bytes: u64,
        /// The longest extent for which there is room now.
        available_bytes: u64,
    },
    /// The extent is longer than the high watermark: it never fits.
    TooLarge {
        /// The length of the extent.
        needed_bytes: u64,
        /// The longest extent that ever fits.
        max_bytes: u64,
    },
    /// As [`PutRefusal::Full`], but it is the number of entries that has reached its limit.
    EntriesFull {
        /// That limit.
        entries_max: usize,
    },
}

impl PutRefusal {
    /// Whether the same put may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Full { .. } | Self::EntriesFull { .. } => true,
            Self::TooLarge { .. } => false,
        }
    }
}

/// What came of [`Shard::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// The key is gone. Gets that hold a pin still finish.
    Removed,
    /// The key was not resident.
    NotFound,
    /// A put of the key is under way. Retry when it may have ended.
    Busy,
}

/// What the driver has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Free what this entry holds: its extent, and whatever the driver keeps under its id.
    Release(EntryId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Writing,
    Resident {
        pins: u32,
    },
    Dying {
        pins: u32,
    },
    /// Waits in the effect queue, so that its slot is not reused before the driver has let go.
    Released,
}

#[derive(Debug)]
struct Entry {
    state: State,
    generation: u32,
    extent_bytes: u32,
    version: u64,
    fingerprint: Fingerprint,
    /// Its turn to leave came while it was pinned.
    is_passed_over: bool,
}

/// The machine of one core's slice. See the [module](self).
#[derive(Debug)]
pub struct Shard {
    limits: ShardLimits,
    slots: Slab<Entry>,
    /// The slot of each key that is being written or is resident.
    index: Index,
    /// Of the resident entries, by their slots.
    policy: Learned,
    effects: VecDeque<EntryId>,
    next_generation: u32,
    last_version: u64,
    /// Bytes of the entries that could be evicted now: resident and not pinned.
    evictable_bytes: u64,
    evictable_entries: usize,
    stats: ShardStats,
}

impl Shard {
    /// An empty slice within `limits`. Its tables are allocated here for all entries.
    #[must_use]
    pub fn new(limits: ShardLimits) -> Self {
        let entries_max = limits.entries_max();
        Self {
            limits,
            slots: Slab::with_capacity(entries_max),
            index: Index::with_capacity(entries_max),
            policy: policy_for(entries_max, limits.high_watermark_bytes()),
            effects: VecDeque::new(),
            next_generation: 0,
            last_version: 0,
            evictable_bytes: 0,
            evictable_entries: 0,
            stats: ShardStats::default(),
        }
    }

    /// Its limits.
    #[must_use]
    pub const fn limits(&self) -> &ShardLimits {
        &self.limits
    }

    /// What it holds and has counted since it was made.
    #[must_use]
    pub const fn stats(&self) -> ShardStats {
        self.stats
    }

    /// The next effect, in order. Drain them after every call that may release an entry, and
    /// before carving memory for a put that made room.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        let id = self.effects.pop_front()?;
        let entry = self.slots.remove(id.slot_index as usize);
        assert!(
            entry.state == State::Released,
            "only a released entry is in the queue"
        );
        assert!(
            entry.generation == id.generation,
            "a slot is not reused before its release"
        );
        Some(Effect::Release(id))
    }

    /// Begins a put of an extent of `extent_bytes` under a key, and evicts to make room for it.
    ///
    /// Room is needed as soon as the used bytes would exceed the high watermark; then as much is
    /// evicted as brings them down to the low one, if that takes at most [`EVICT_AHEAD_MAX`] entries
    /// more than the put needs. A put that is refused evicts nothing.
    pub fn begin_put(&mut self, fingerprint: Fingerprint, extent_bytes: u32) -> PutStart {
        if let Some(slot_index) = self.index.get(fingerprint) {
            return self.meet(slot_index);
        }
        if let Err(refusal) = self.admit(extent_bytes.into()) {
            self.stats.count_refusal(refusal);
            return PutStart::Refused(refusal);
        }
        self.evict_for(extent_bytes.into());
        self.stats.entries += 1;
        self.stats.used_bytes += u64::from(extent_bytes);
        assert!(
            self.stats.used_bytes <= self.limits.high_watermark_bytes(),
            "room was made"
        );
        assert!(
            self.stats.entries <= self.limits.entries_max() as u64,
            "room was made"
        );
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let entry = Entry {
            state: State::Writing,
            generation,
            extent_bytes,
            version: 0,
            fingerprint,
            is_passed_over: false,
        };
        let slot_index = u32::try_from(self.slots.insert(entry)).expect("ENTRIES_MAX bounds slots");
        self.index.insert(fingerprint, slot_index);
        PutStart::Write(EntryId {
            slot_index,
            generation,
        })
    }

    /// Makes a written entry resident, which is a use of it, and returns the version issued for it: above every version that this shard issued before.
    ///
    /// # Panics
    /// If `id` names no entry that is being written.
    pub fn commit_put(&mut self, id: EntryId) -> u64 {
        self.last_version += 1;
        let version = self.last_version;
        let entry = self.entry_mut(id);
        assert!(
            entry.state == State::Writing,
            "commit of {id:?}, which is not being written"
        );
        entry.state = State::Resident { pins: 0 };
        entry.version = version;
        let (extent_bytes, key) = (u64::from(entry.extent_bytes), entry.fingerprint.low());
        self.policy.insert(id.slot_index, key, Use::default());
        self.count_evictable(extent_bytes);
        self.stats.resident_bytes += extent_bytes;
        self.stats.puts += 1;
        version
    }

    /// Gives a put up and releases its entry: its writer is gone, or its payload was damaged.
    ///
    /// # Panics
    /// If `id` names no entry that is being written.
    pub fn abort_put(&mut self, id: EntryId) {
        let entry = self.entry_mut(id);
        assert!(
            entry.state == State::Writing,
            "abort of {id:?}, which is not being written"
        );
        let fingerprint = entry.fingerprint;
        self.index.remove(fingerprint);
        self.stats.aborts += 1;
        self.release(id.slot_index);
    }

    /// The resident entry of a key. It is neither touched nor pinned: the id may go stale with the
    /// next call.
    #[must_use]
    pub fn lookup(&self, fingerprint: Fingerprint) -> Option<EntryId> {
        let slot_index = self.index.get(fingerprint)?;
        match self.slots[slot_index as usize].state {
            State::Writing => None,
            State::Resident { .. } => Some(self.id_of(slot_index)),
            state @ (State::Dying { .. } | State::Released) => unreachable_in_index(state),
        }
    }

    /// The resident entry of a key, which is used by that, with one more pin, which
    /// [`Shard::unpin`] must take back. Its memory stays while it is pinned.
    pub fn get(&mut self, fingerprint: Fingerprint) -> Option<EntryId> {
        self.stats.gets += 1;
        let Some(id) = self.lookup(fingerprint) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.policy.touch(id.slot_index, Use::default());
        let entry = self.entry_mut(id);
        let State::Resident { pins } = &mut entry.state else {
            unreachable_in_index(entry.state);
        };
        *pins = pins
            .checked_add(1)
            .expect("far fewer than 2^32 gets are under way");
        if *pins == 1 {
            let extent_bytes = u64::from(entry.extent_bytes);
            self.discount_evictable(extent_bytes);
        }
        Some(id)
    }

    /// Takes one pin back. The last one of a dying entry releases it.
    ///
    /// # Panics
    /// If `id` names no pinned entry.
    pub fn unpin(&mut self, id: EntryId) {
        if mutant::is_on(Mutant::PinIgnored) && !self.is_live(id) {
            return;
        }
        let entry = self.entry_mut(id);
        let extent_bytes = u64::from(entry.extent_bytes);
        let (State::Resident { pins } | State::Dying { pins }) = &mut entry.state else {
            unreachable!("unpin of {id:?}, which is not pinned");
        };
        assert!(*pins > 0, "unpin of {id:?}, which is not pinned");
        *pins -= 1;
        let is_last = *pins == 0;
        let was_passed_over = is_last && core::mem::take(&mut entry.is_passed_over);
        match entry.state {
            State::Resident { pins: 0 } => {
                if was_passed_over {
                    self.policy.offer(id.slot_index);
                }
                self.count_evictable(extent_bytes);
            }
            State::Dying { pins: 0 } => self.release(id.slot_index),
            _ => {}
        }
    }

    /// Removes a key. If its entry is pinned, its memory is released after the last unpin.
    pub fn remove(&mut self, fingerprint: Fingerprint) -> RemoveOutcome {
        let Some(slot_index) = self.index.get(fingerprint) else {
            return RemoveOutcome::NotFound;
        };
        match self.slots[slot_index as usize].state {
            State::Writing => return RemoveOutcome::Busy,
            State::Resident { pins } => {
                self.policy.remove(slot_index);
                self.retire(slot_index, pins);
            }
            state @ (State::Dying { .. } | State::Released) => unreachable_in_index(state),
        }
        self.stats.removes += 1;
        RemoveOutcome::Removed
    }

    /// Evicts until `bytes` are freed or nothing evictable is left, and returns the bytes freed: for a driver whose memory is too fragmented for a put.
    pub fn make_room(&mut self, bytes: u64) -> u64 {
        let before = self.stats.evicted_bytes;
        let freed = |shard: &Self| shard.stats.evicted_bytes - before;
        self.evict_while(|shard| freed(shard) < bytes);
        freed(self)
    }

    /// The version of an entry, as [`Shard::commit_put`] issued it; 0 while it is being written.
    ///
    /// # Panics
    /// If `id` is stale.
    #[must_use]
    pub fn version(&self, id: EntryId) -> u64 {
        self.entry(id).version
    }

    /// Whether `id` names an entry that has not been released.
    #[must_use]
    pub fn is_live(&self, id: EntryId) -> bool {
        self.slots.get(id.slot_index as usize).is_some_and(|entry| {
            entry.generation == id.generation && entry.state != State::Released
        })
    }

    /// A put meets the entry that its key already has.
    fn meet(&mut self, slot_index: u32) -> PutStart {
        match self.slots[slot_index as usize].state {
            State::Writing => {
                self.stats.busy += 1;
                PutStart::Busy
            }
            State::Resident { .. } => {
                self.stats.touches += 1;
                self.policy.touch(slot_index, Use::default());
                PutStart::Touched(self.id_of(slot_index))
            }
            state @ (State::Dying { .. } | State::Released) => unreachable_in_index(state),
        }
    }

    /// Whether eviction can make room for one more entry of `needed_bytes`.
    fn admit(&self, needed_bytes: u64) -> Result<(), PutRefusal> {
        let max_bytes = self.limits.high_watermark_bytes();
        if needed_bytes > max_bytes {
            return Err(PutRefusal::TooLarge {
                needed_bytes,
                max_bytes,
            });
        }
        let entries_max = self.limits.entries_max();
        if self.stats.entries >= entries_max as u64 && self.evictable_entries == 0 {
            return Err(PutRefusal::EntriesFull { entries_max });
        }
        let available_bytes = max_bytes - (self.stats.used_bytes - self.evictable_bytes);
        if needed_bytes > available_bytes {
            return Err(PutRefusal::Full {
                needed_bytes,
                available_bytes,
            });
        }
        Ok(())
    }

    /// Makes the room that [`Shard::admit`] found possible.
    fn evict_for(&mut self, needed_bytes: u64) {
        let entries_max = self.limits.entries_max() as u64;
        self.evict_while(|shard| shard.stats.entries >= entries_max);
        let high = self.limits.high_watermark_bytes() - needed_bytes;
        if self.stats.used_bytes <= high {
            return;
        }
        self.evict_while(|shard| shard.stats.used_bytes > high);
        let low = self
            .limits
            .low_watermark_bytes()
            .saturating_sub(needed_bytes);
        let ahead_max = self.stats.evictions + EVICT_AHEAD_MAX as u64;
        self.evict_while(|shard| shard.stats.used_bytes > low && shard.stats.evictions < ahead_max);
    }

    /// Evicts while `wanted` says so, passing over what is pinned.
    fn evict_while(&mut self, wanted: impl Fn(&Self) -> bool) {
        while wanted(self)
            && self.evictable_entries > 0
            && let Some(slot_index) = self.policy.victim()
        {
            let entry = &mut self.slots[slot_index as usize];
            let State::Resident { pins } = entry.state else {
                unreachable!("the policy names an entry that is {:?}", entry.state)
            };
            if pins > 0 && !mutant::is_on(Mutant::PinIgnored) {
                entry.is_passed_over = true;
                self.policy.withhold(slot_index);
                continue;
            }
            self.stats.evictions += 1;
            self.stats.evicted_bytes += u64::from(entry.extent_bytes);
            self.policy.evict(slot_index);
            self.retire(slot_index, pins);
            if pins > 0 {
                self.release(slot_index);
            }
        }
    }

    /// Takes a resident entry out of sight, and releases it unless it is pinned.
    fn retire(&mut self, slot_index: u32, pins: u32) {
        let entry = &mut self.slots[slot_index as usize];
        assert!(
            entry.state == State::Resident { pins },
            "only a resident entry is retired"
        );
        let (fingerprint, extent_bytes) = (entry.fingerprint, u64::from(entry.extent_bytes));
        entry.state = State::Dying { pins };
        self.index.remove(fingerprint);
        self.stats.resident_bytes -= extent_bytes;
        if pins == 0 {
            self.discount_evictable(extent_bytes);
            self.release(slot_index);
        }
    }

    /// The one way out: the bytes stop counting, and the driver hears of it once.
    fn release(&mut self, slot_index: u32) {
        let id = self.id_of(slot_index);
        let entry = &mut self.slots[slot_index as usize];
        assert!(entry.state != State::Released, "an entry is released once");
        entry.state = State::Released;
        self.stats.entries -= 1;
        self.stats.used_bytes -= u64::from(entry.extent_bytes);
        self.effects.push_back(id);
    }

    fn count_evictable(&mut self, extent_bytes: u64) {
        self.evictable_bytes += extent_bytes;
        self.evictable_entries += 1;
    }

    fn discount_evictable(&mut self, extent_bytes: u64) {
        self.evictable_bytes -= extent_bytes;
        self.evictable_entries -= 1;
    }

    fn id_of(&self, slot_index: u32) -> EntryId {
        EntryId {
            slot_index,
            generation: self.slots[slot_index as usize].generation,
        }
    }

    fn entry(&self, id: EntryId) -> &Entry {
        assert!(self.is_live(id), "{id:?} is stale");
        &self.slots[id.slot_index as usize]
    }

    fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        assert!(self.is_live(id), "{id:?} is stale");
        &mut self.slots[id.slot_index as usize]
    }
}

/// The index names entries that are being written or are resident, and no others.
fn unreachable_in_index(state: State) -> ! {
    unreachable!("the index names an entry that is {state:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn shard(high: u64, low: u64, entries_max: usize) -> Shard {
        Shard::new(ShardLimits::new(high, low, entries_max).expect("valid limits"))
    }

    fn put(shard: &mut Shard, key: u128, extent_bytes: u32) -> EntryId {
        let PutStart::Write(id) = shard.begin_put(Fingerprint(key), extent_bytes) else {
            unreachable!("there is room for key {key}");
        };
        shard.commit_put(id);
        id
    }

    fn refusal(start: PutStart) -> PutRefusal {
        let PutStart::Refused(refusal) = start else {
            unreachable!("{start:?} is no refusal");
        };
        refusal
    }

    #[test]
    fn the_high_watermark_holds_on_both_sides() {
        let mut shard = shard(100, 100, 10);
        put(&mut shard, 1, 60);
        put(&mut shard, 2, 40);
        assert_eq!(
            (shard.stats().used_bytes, shard.stats().evictions),
            (100, 0)
        );
        put(&mut shard, 3, 1);
        assert_eq!((shard.stats().used_bytes, shard.stats().evictions), (41, 1));
        put(&mut shard, 4, 100);
        assert_eq!(shard.stats().used_bytes, 100);
        let refused = refusal(shard.begin_put(Fingerprint(5), 101));
        assert_eq!(
            refused,
            PutRefusal::TooLarge {
                needed_bytes: 101,
                max_bytes: 100
            }
        );
        assert!(!refused.is_retryable());
    }

    #[test]
    fn eviction_goes_down_to_the_low_watermark_but_not_far_ahead() {
        let entries = EVICT_AHEAD_MAX + 100;
        let mut shard = shard(entries as u64, 0, entries + 1);
        for key in 0..entries {
            put(&mut shard, key as u128, 1);
        }
        put(&mut shard, u128::MAX, 1);
        assert_eq!(shard.stats().evictions, 1 + EVICT_AHEAD_MAX as u64);
        assert_eq!(shard.lookup(Fingerprint(EVICT_AHEAD_MAX as u128)), None);
        assert!(
            shard
                .lookup(Fingerprint(EVICT_AHEAD_MAX as u128 + 1))
                .is_some()
        );
    }

    #[test]
    fn a_refused_put_evicts_nothing() {
        let mut shard = shard(100, 50, 10);
        put(&mut shard, 1, 30);
        put(&mut shard, 2, 30);
        let pinned = shard.get(Fingerprint(2)).expect("resident");
        let refused = refusal(shard.begin_put(Fingerprint(3), 71));
        assert_eq!(
            refused,
            PutRefusal::Full {
                needed_bytes: 71,
                available_bytes: 70
            }
        );
        assert!(refused.is_retryable());
        assert_eq!(shard.stats().evictions, 0);
        assert!(matches!(
            shard.begin_put(Fingerprint(3), 70),
            PutStart::Write(_)
        ));
        assert_eq!(shard.stats().evictions, 1);
        shard.unpin(pinned);
    }

    #[test]
    fn the_limit_of_entries_holds_on_both_sides() {
        let mut shard = shard(100, 100, 2);
        put(&mut shard, 1, 1);
        let pinned = put(&mut shard, 2, 1);
        assert_eq!(shard.get(Fingerprint(2)), Some(pinned));
        assert!(matches!(
            shard.begin_put(Fingerprint(3), 1),
            PutStart::Write(_)
        ));
        assert_eq!(
            shard.lookup(Fingerprint(1)),
            None,
            "the one that could go was evicted"
        );
        let refused = refusal(shard.begin_put(Fingerprint(4), 1));
        assert_eq!(refused, PutRefusal::EntriesFull { entries_max: 2 });
        shard.unpin(pinned);
        assert!(matches!(
            shard.begin_put(Fingerprint(4), 1),
            PutStart::Write(_)
        ));
    }

    #[test]
    fn of_what_is_alike_the_oldest_leaves_first_and_what_is_pinned_when_it_is_let_go() {
        let mut shard = shard(3, 3, 10);
        for key in 1..=3 {
            put(&mut shard, key, 1);
        }
        let pinned = shard.get(Fingerprint(1)).expect("resident");
        for (key, leaves) in [(4, 2), (5, 3)] {
            put(&mut shard, key, 1);
            assert_eq!(shard.lookup(Fingerprint(leaves)), None, "{leaves}");
        }
        assert_eq!(shard.make_room(3), 2, "all but the pinned one");
        assert_eq!(shard.lookup(Fingerprint(1)), Some(pinned));
        shard.unpin(pinned);
        assert_eq!(shard.make_room(3), 1);
        assert_eq!(shard.stats().entries, 0);
    }

    fn get_or_put(shard: &mut Shard, key: u64) -> bool {
        let fingerprint = Key::new(&key.to_le_bytes()).expect("a key").fingerprint();
        if let Some(id) = shard.get(fingerprint) {
            shard.unpin(id);
            return true;
        }
        put(shard, fingerprint.0, 1);
        while shard.poll_effect().is_some() {}
        false
    }

    #[test]
    fn what_comes_back_stays_while_what_does_not_passes_by() {
        let mut shard = shard(9, 8, 100);
        let mut hits = 0;
        for round in 0..4000 {
            // Each of these is back after 20 uses, by when eight others would have pushed it out.
            for often in 0..4 {
                let hit = get_or_put(&mut shard, often);
                hits += u64::from(hit && round >= 2000);
            }
            for once in 0..16 {
                get_or_put(&mut shard, 1000 + round * 16 + once);
            }
        }
        assert!(hits > 7000, "{hits} of 8000; the least recently used: none");
    }

    #[test]
    fn a_slot_is_not_reused_before_its_release_was_polled() {
        let mut shard = shard(1, 1, 1);
        let first = put(&mut shard, 1, 1);
        let second = put(&mut shard, 2, 1);
        assert_ne!(first.slot_index, second.slot_index);
        assert!(!shard.is_live(first));
        assert_eq!(shard.poll_effect(), Some(Effect::Release(first)));
        assert_eq!(shard.poll_effect(), None);
        let third = put(&mut shard, 3, 1);
        assert_eq!(third.slot_index, first.slot_index);
        assert_ne!(third.generation, first.generation);
    }

    #[test]
    fn versions_rise() {
        let mut shard = shard(10, 10, 10);
        let ids = [1, 2, 3].map(|key| put(&mut shard, key, 1));
        assert!(
            ids.map(|id| shard.version(id))
                .is_sorted_by(|a, b| 0 < *a && a < b)
        );
    }

    #[test]
    fn a_removed_key_can_be_put_while_its_old_entry_is_pinned() {
        let mut shard = shard(100, 100, 10);
        let old = put(&mut shard, 1, 60);
        assert_eq!(shard.get(Fingerprint(1)), Some(old));
        assert_eq!(shard.remove(Fingerprint(1)), RemoveOutcome::Removed);
        assert_eq!(
            shard.stats().used_bytes,
            60,
            "the bytes of a dying entry count"
        );
        assert_eq!(shard.make_room(1), 0, "a dying entry cannot be evicted");
        let new = put(&mut shard, 1, 40);
        assert_eq!(shard.lookup(Fingerprint(1)), Some(new));
        shard.unpin(old);
        assert_eq!(shard.poll_effect(), Some(Effect::Release(old)));
        assert_eq!(shard.stats().used_bytes, 40);
    }
}
