//! The default policy: what is least likely to be used next leaves first, as learnt from what came back.

use hashbrown::HashMap;

use crate::Policy;
use crate::class::{CLASSES, Class, REUSES_MAX, Use};
use crate::hash::MixBuild;
use crate::hazard::{AGING_USES, Hazard};
use crate::tracks::{Ends, NIL, Standing, Tracks};

/// Blocks that left and are remembered, per slot.
pub const GHOSTS_PER_SLOT: usize = 8;
/// Blocks that left and are remembered, at least: a small cache learns from what it never had for long.
pub const GHOSTS_MIN: usize = 65_536;
/// Beside a block that is here, a policy [with so many ghosts](Learned::with_ghosts) remembers at most so many that left: one
/// that comes back later than that is as new, since a cache as small as it is could not have kept it by far.
pub const GHOSTS_PER_BLOCK_MAX: usize = 16;
/// It remembers so many whatever is here.
pub const GHOSTS_FEW: usize = 1024;
/// So many are forgotten with one that leaves, at most, where many blocks were removed: that takes no time of its own.
const FORGOTTEN_AT_ONCE_MAX: usize = 2;
/// Bytes that one of them takes, at most: its track, and its place in the table by keys, which is half empty when it
/// has just grown.
pub const GHOST_BYTES: usize = crate::TRACK_BYTES + 2 * (size_of::<(u64, u32)>() + 1) * 8 / 7;
/// One fit per this part of all uses, within [`FIT_EVERY_MAX`]: what is known changes less, the longer it was learnt.
const FIT_SHARE: u64 = 32;
/// Uses between two fits of what was learnt, at most.
const FIT_EVERY_MAX: u64 = 16_000;
/// All blocks are counted until there were so many uses, half of them until there were twice as many, and so on.
const COUNT_ALL_USES: u64 = 131_072;
/// At least one block of so many is counted.
const COUNT_ONE_OF_MAX: u32 = 8;
/// Uses between two walks of the cursors that count who grew older.
const ADVANCE_EVERY: u64 = 16;

/// The default policy: what is least likely to be used next leaves first, as learnt from what came back.
///
/// Blocks are kept in one list per class of blocks, by their last use. The victim is the tail of
/// one of them: that of the least chance of a use soon. Blocks that left are remembered for a while
/// (*ghosts*), so that what is learnt does not end at the age at which blocks leave, and one that comes
/// back is known.
///
/// Each call takes constant time, amortised; a [`victim`](Policy::victim) one look at each of the
/// [`CLASSES`]. Memory: [`TRACK_BYTES`](crate::TRACK_BYTES) per block and ghost, four more per slot, and
/// some 30 per ghost for finding it.
#[derive(Debug)]
pub struct Learned {
    hazard: Hazard,
    tracks: Tracks,
    by_slot: Vec<u32>,
    lists: [Ends; CLASSES],
    ghosts: Ends,
    ghosts_by_key: HashMap<u64, u32, MixBuild>,
    ghosts_max: usize,
    /// Whether the blocks that are here bound them too.
    is_bound_by_blocks: bool,
    blocks: usize,
    fitted_at: u64,
    fit_at: u64,
    now: u64,
}

/// How many blocks that left are worth remembering beside so many that are here.
#[must_use]
pub const fn ghosts_beside(blocks: usize) -> usize {
    let ghosts = blocks.saturating_mul(GHOSTS_PER_BLOCK_MAX);
    if ghosts > GHOSTS_FEW {
        ghosts
    } else {
        GHOSTS_FEW
    }
}

impl Learned {
    /// A policy for the slots `0..slots`, more of which make it allocate. It remembers at most
    /// [`GHOSTS_PER_SLOT`] blocks that left for each slot, or [`GHOSTS_MIN`].
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            is_bound_by_blocks: false,
            ..Self::with_ghosts(slots, GHOSTS_MIN.max(slots.saturating_mul(GHOSTS_PER_SLOT)))
        }
    }

    /// The same that remembers at most `ghosts_max` blocks that left, and no more than go
    /// [beside](ghosts_beside) those that are here: where many of these are removed, it forgets little by little.
    #[must_use]
    pub fn with_ghosts(slots: usize, ghosts_max: usize) -> Self {
        Self {
            hazard: Hazard::new(),
            tracks: Tracks::with_capacity(slots),
            // Of slots that are used the first time only: the memory of others is not touched.
            by_slot: Vec::with_capacity(slots),
            lists: [Ends::EMPTY; CLASSES],
            ghosts: Ends::EMPTY,
            ghosts_by_key: HashMap::default(),
            ghosts_max,
            is_bound_by_blocks: true,
            blocks: 0,
            fitted_at: 0,
            fit_at: AGING_USES,
            now: 0,
        }
    }

    /// Blocks that left and are remembered.
    #[must_use]
    pub fn ghosts(&self) -> usize {
        self.ghosts_by_key.len()
    }

    /// How many may be remembered now.
    fn ghosts_max(&self) -> usize {
        if self.is_bound_by_blocks {
            self.ghosts_max.min(ghosts_beside(self.blocks))
        } else {
            self.ghosts_max
        }
    }

    /// How likely the block in a slot is used next: the chance per use of the cache. Only the order of
    /// such chances is sure, not their size.
    ///
    /// # Panics
    /// If the slot holds no block.
    #[must_use]
    pub fn chance(&self, slot_index: u32) -> f64 {
        let track = self.tracks.get(self.track_of(slot_index));
        self.hazard.chance(track.class, self.now - track.used_at)
    }

    /// Whether the block in a slot may be a victim.
    ///
    /// # Panics
    /// If the slot holds no block.
    #[must_use]
    pub fn is_offered(&self, slot_index: u32) -> bool {
        self.tracks.get(self.track_of(slot_index)).standing == Standing::Listed
    }

    /// How often a block was used after the first time, as far as is known: one that is here, or that left and is
    /// remembered.
    #[must_use]
    pub fn reuses(&self, slot_index: Option<u32>, key: u64) -> u8 {
        let id = match slot_index {
            Some(slot_index) => Some(self.track_of(slot_index)),
            None => self.ghosts_by_key.get(&key).copied(),
        };
        id.map_or(0, |id| self.tracks.get(id).reuses)
    }

    /// The block in a slot had left another cache before it was inserted here, after so many uses behind the first one:
    /// its insertion was one more. No use is counted here, since [`came_back`](Self::came_back) counts it there.
    ///
    /// # Panics
    /// If the slot holds no block.
    pub fn was_used(&mut self, slot_index: u32, reuses_elsewhere: u8) {
        let id = self.track_of(slot_index);
        let track = self.tracks.get(id);
        let reuses = reuses_elsewhere.saturating_add(1).min(REUSES_MAX);
        if reuses <= track.reuses {
            return;
        }
        let was_listed = track.standing == Standing::Listed;
        self.unlist(id);
        let track = self.tracks.get_mut(id);
        track.reuses = reuses;
        track.class = track.class.with_reuses(reuses);
        if was_listed {
            self.list(id);
        }
    }

    /// A block that left was used now, by another cache, which has it from now on: that counts as a use, and it is not
    /// remembered here any more. Of others nothing is known.
    pub fn came_back(&mut self, key: u64) {
        if let Some(&id) = self.ghosts_by_key.get(&key) {
            self.forget_ghost(id);
            self.tracks.renew(id, self.now, &mut self.hazard);
            self.tracks.drop(id);
        }
    }

    fn track_of(&self, slot_index: u32) -> u32 {
        let id = self.by_slot.get(slot_index as usize).copied();
        let id = id.filter(|&id| id != NIL);
        id.expect("the slot of a block that is here")
    }

    fn tick(&mut self) {
        self.now += 1;
        if self.now.is_multiple_of(ADVANCE_EVERY) {
            self.tracks.advance(self.now, &mut self.hazard);
        }
        if self.now == self.fit_at {
            self.hazard.fit(self.now - self.fitted_at);
            let steps = (self.now / FIT_SHARE).min(FIT_EVERY_MAX) / AGING_USES;
            let one_of = (self.now / COUNT_ALL_USES + 1).next_power_of_two();
            let one_of = u32::try_from(one_of).unwrap_or(COUNT_ONE_OF_MAX);
            self.tracks.count_one_of(one_of.min(COUNT_ONE_OF_MAX));
            self.fitted_at = self.now;
            self.fit_at = self.now + steps.max(1) * AGING_USES;
        }
    }

    fn list(&mut self, id: u32) {
        let track = self.tracks.get_mut(id);
        track.standing = Standing::Listed;
        let ends = &mut self.lists[track.class.index()];
        self.tracks.push_front(ends, id);
    }

    fn unlist(&mut self, id: u32) {
        let track = self.tracks.get_mut(id);
        if track.standing == Standing::Listed {
            track.standing = Standing::Withheld;
            let ends = &mut self.lists[track.class.index()];
            self.tracks.unlink(ends, id);
        }
    }

    fn reuse(&mut self, id: u32, used: Use) {
        self.tracks.renew(id, self.now, &mut self.hazard);
        let track = self.tracks.get_mut(id);
        track.reuses = (track.reuses + 1).min(REUSES_MAX);
        track.class = Class::new(track.reuses, used);
    }

    fn forget_ghost(&mut self, id: u32) {
        self.tracks.unlink(&mut self.ghosts, id);
        self.ghosts_by_key.remove(&self.tracks.get(id).key);
    }
}

impl Policy for Learned {
    fn insert(&mut self, slot_index: u32, key: u64, used: Use) {
        self.tick();
        let slots = self.by_slot.len().max(slot_index as usize + 1);
        self.by_slot.resize(slots, NIL);
        let is_free = self.by_slot[slot_index as usize] == NIL;
        assert!(is_free, "slot {slot_index} holds a block already");
        let id = if let Some(&id) = self.ghosts_by_key.get(&key) {
            self.forget_ghost(id);
            self.reuse(id, used);
            self.tracks.get_mut(id).slot_index = slot_index;
            id
        } else {
            let id = self.tracks.add(key, slot_index, self.now);
            self.tracks.get_mut(id).class = Class::new(0, used);
            id
        };
        self.by_slot[slot_index as usize] = id;
        self.blocks += 1;
        self.list(id);
    }

    fn touch(&mut self, slot_index: u32, used: Use) {
        self.tick();
        let id = self.track_of(slot_index);
        let was_listed = self.tracks.get(id).standing == Standing::Listed;
        self.unlist(id);
        self.reuse(id, used);
        if was_listed {
            self.list(id);
        }
    }

    fn withhold(&mut self, slot_index: u32) {
        self.unlist(self.track_of(slot_index));
    }

    fn offer(&mut self, slot_index: u32) {
        let id = self.track_of(slot_index);
        self.unlist(id);
        self.list(id);
    }

    fn remembers(&self, key: u64) -> bool {
        self.ghosts_by_key.contains_key(&key)
    }

    fn victim(&mut self) -> Option<u32> {
        let mut least: Option<(f64, u64, u32)> = None;
        for ends in &self.lists {
            if ends.tail() == NIL {
                continue;
            }
            let track = self.tracks.get(ends.tail());
            let chance = self.hazard.chance(track.class, self.now - track.used_at);
            let is_less = least.is_none_or(|(best, used_at, _)| {
                chance < best || (chance == best && track.used_at < used_at)
            });
            if is_less {
                least = Some((chance, track.used_at, track.slot_index));
            }
        }
        least.map(|(_, _, slot_index)| slot_index)
    }

    fn evict(&mut self, slot_index: u32) {
        let id = self.track_of(slot_index);
        self.unlist(id);
        self.by_slot[slot_index as usize] = NIL;
        self.blocks -= 1;
        let track = self.tracks.get_mut(id);
        track.slot_index = NIL;
        track.standing = Standing::Ghost;
        // Two blocks of one key: the older ghost makes way.
        if let Some(former) = self.ghosts_by_key.insert(track.key, id) {
            self.tracks.unlink(&mut self.ghosts, former);
            self.tracks.drop(former);
        }
        self.tracks.push_front(&mut self.ghosts, id);
        for _ in 0..FORGOTTEN_AT_ONCE_MAX {
            if self.ghosts_by_key.len() <= self.ghosts_max() {
                break;
            }
            let oldest = self.ghosts.tail();
            self.forget_ghost(oldest);
            self.tracks.drop(oldest);
        }
    }

    fn remove(&mut self, slot_index: u32) {
        let id = self.track_of(slot_index);
        self.unlist(id);
        self.by_slot[slot_index as usize] = NIL;
        self.blocks -= 1;
        self.tracks.drop(id);
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::random::mix;

    use super::*;

    /// Uses until no fewer blocks are counted any more.
    const COUNTED_LEAST_USES: u64 = COUNT_ALL_USES * COUNT_ONE_OF_MAX as u64;

    #[test]
    fn what_comes_from_another_cache_stays_longer_than_what_is_new() {
        let mut policy = policy_of_reused_blocks();
        policy.insert(0, 1_000_000, Use::default());
        policy.insert(1, 1_000_001, Use::default());
        assert_eq!(policy.reuses(Some(0), 1_000_000), 0);
        policy.was_used(0, 2);
        assert_eq!(policy.reuses(Some(0), 1_000_000), 3);
        assert!(policy.chance(0) > policy.chance(1));
        assert_eq!(policy.victim(), Some(1), "though it came later");
        // What is known here already is not less than what is known elsewhere.
        policy.was_used(0, 0);
        assert_eq!(policy.reuses(Some(0), 1_000_000), 3);
        policy.was_used(0, u8::MAX);
        assert_eq!(policy.reuses(Some(0), 1_000_000), REUSES_MAX);
        // What is withheld stays so.
        policy.withhold(1);
        policy.was_used(1, 4);
        assert!(!policy.is_offered(1));
        policy.evict(1);
        assert_eq!(policy.reuses(None, 1_000_001), 5, "also when it has left");
    }

    #[test]
    fn a_small_cache_forgets_sooner() {
        let blocks = 100;
        let [bound, free] = [
            Learned::with_ghosts(blocks, usize::MAX),
            Learned::new(blocks),
        ]
        .map(|mut policy| {
            for key in 0..10_000_u64 {
                let slot_index = u32::try_from(key % blocks as u64).expect("few");
                if key >= blocks as u64 {
                    policy.evict(slot_index);
                }
                policy.insert(slot_index, key, Use::default());
            }
            policy
        });
        // One has left when the newest one came.
        let most = ghosts_beside(blocks - 1);
        assert_eq!((bound.ghosts(), free.ghosts()), (most, 10_000 - blocks));
        assert!(bound.remembers(10_000 - blocks as u64 - 1));
        assert!(!bound.remembers(10_000 - (blocks + most) as u64 - 1));
        // With what is removed it forgets too, little by little.
        let mut bound = bound;
        for slot_index in 1..u32::try_from(blocks).expect("few") {
            bound.remove(slot_index);
        }
        for left in 0..most - GHOSTS_FEW {
            assert_eq!(bound.ghosts(), most - left);
            bound.evict(0);
            bound.insert(0, 20_000 + left as u64, Use::default());
        }
        bound.evict(0);
        assert_eq!(bound.ghosts(), GHOSTS_FEW);
    }

    /// A cache that has seen that what was used again is used again, and what is new is not.
    fn policy_of_reused_blocks() -> Learned {
        let mut policy = Learned::new(64);
        for slot_index in 2..34 {
            policy.insert(slot_index, slot_index.into(), Use::default());
        }
        for round in 0..2_000_u64 {
            for slot_index in 2..34 {
                policy.touch(slot_index, Use::default());
            }
            policy.insert(40, 10_000 + round, Use::default());
            policy.evict(40);
        }
        policy
    }

    #[test]
    fn what_came_back_elsewhere_counts_as_used_here_and_is_forgotten() {
        // One of two caches is told that all that leaves it is used soon after, elsewhere.
        let [not_told, told] = [false, true].map(|is_told| {
            let mut policy = Learned::new(64);
            for key in 0..20_000_u64 {
                let slot_index = u32::try_from(key % 16).expect("few");
                if key >= 16 {
                    policy.evict(slot_index);
                }
                policy.insert(slot_index, key, Use::default());
                if is_told && key >= 32 {
                    policy.came_back(key - 32);
                    assert!(!policy.remembers(key - 32));
                    // Nobody remembers it: nothing happens.
                    policy.came_back(key - 32);
                }
            }
            policy.chance(0)
        });
        assert!(told > 10.0 * not_told, "{told} and {not_told}");
    }

    #[test]
    fn the_blocks_that_are_counted_stand_for_the_others() {
        const SLOTS: u32 = 1_000;
        let mut policy = Learned::new(SLOTS as usize);
        for slot_index in 0..SLOTS {
            policy.insert(slot_index, slot_index.into(), Use::default());
        }
        let expected = 1.0 / f64::from(SLOTS);
        for at in 0..COUNTED_LEAST_USES + 200_000 {
            let drawn = u32::try_from(mix(at) % u64::from(SLOTS)).expect("a slot");
            policy.touch(drawn, Use::default());
            // While all are counted, and when the fewest are.
            if at == COUNT_ALL_USES - 1 || at == COUNTED_LEAST_USES + 199_999 {
                let chance = policy.chance(drawn);
                let ratio = chance / expected;
                assert!((0.8..1.25).contains(&ratio), "{ratio} after {at} uses");
            }
        }
        let one_of = u64::from(COUNT_ONE_OF_MAX);
        let drawn = (0..SLOTS).filter(|&key| mix(key.into()).is_multiple_of(one_of));
        assert_eq!(policy.tracks.counted(), drawn.count());
    }
}
