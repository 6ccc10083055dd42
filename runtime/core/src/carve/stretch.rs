//! Stretches of a chunk that are room for a long extent once what lies there has moved.

use super::{Carved, Carver, GRANULE_BYTES, NIL, State};

/// Free blocks that are looked at, the longest first, for what lies around them.
const SEEDS_MAX: usize = 64;
/// Blocks that are looked at in all.
const LOOKED_MAX: usize = 4096;
/// Stretches of which the one is taken where the least is to move.
const STRETCHES_MAX: usize = 3;
/// Most blocks of a stretch: so that it takes no longer to clear than to fill.
pub const STRETCH_BLOCKS_MAX: usize = 4096;
/// How much lies in a stretch at most, in bytes, and less than it is asked for: so that nobody waits for more than a
/// millisecond or two while it is copied.
pub const STRETCH_USED_BYTES_MAX: u32 = 8 << 20;
/// What is movable is at most such a part of what room is wanted for: longer extents would want room in one piece themselves.
const MOVED_SHARE: u32 = 4;

/// Blocks side by side that are long enough together.
#[derive(Clone, Copy, Debug)]
struct Found {
    first: u32,
    blocks: usize,
    used_granules: u32,
}

/// A stretch that is to be cleared: when all of it has been freed, it is one free block.
#[derive(Debug, Default)]
pub struct Stretch {
    /// What was free there. It is carved now, so that nothing else comes to lie there.
    pub holes: Vec<Carved>,
    /// What lies there, and is to move.
    pub used: Vec<Carved>,
}

impl Carver {
    /// A stretch of at least `len_bytes`, of extents that are movable and of what is free between them: around the longest
    /// free blocks, where the least is to move of those that are looked at. What is free there is carved, for the caller to
    /// free.
    ///
    /// `None` if there is none within the limits ([`STRETCH_BLOCKS_MAX`], [`STRETCH_USED_BYTES_MAX`]), as where only a few
    /// extents may move.
    pub fn stretch(
        &mut self,
        len_bytes: u32,
        is_movable: impl Fn(&Carved) -> bool,
    ) -> Option<Stretch> {
        let len_granules = len_bytes.div_ceil(GRANULE_BYTES).max(1);
        let found = self.find_stretch(len_granules, &is_movable)?;
        let mut stretch = Stretch::default();
        let mut at = found.first;
        for _ in 0..found.blocks {
            let is_free = self.is_free(at);
            if is_free {
                self.unlink_free(at);
                let block = &mut self.blocks[at as usize];
                block.state = State::Used;
                self.used_granules += block.len_granules;
            }
            let lies = if is_free {
                &mut stretch.holes
            } else {
                &mut stretch.used
            };
            lies.push(self.carved(at));
            at = self.blocks[at as usize].after;
        }
        Some(stretch)
    }

    fn find_stretch(
        &self,
        len_granules: u32,
        is_movable: &impl Fn(&Carved) -> bool,
    ) -> Option<Found> {
        let is_movable = |carved: &Carved| {
            carved.len_bytes / GRANULE_BYTES <= len_granules / MOVED_SHARE && is_movable(carved)
        };
        let most = len_granules.min(STRETCH_USED_BYTES_MAX / GRANULE_BYTES);
        let mut best: Option<Found> = None;
        let mut count = 0;
        let mut looked = LOOKED_MAX;
        for seed in self.longest_free().take(SEEDS_MAX) {
            let used_max = best.map_or(most, |best| best.used_granules);
            let Some(found) = self.grow(seed, (len_granules, used_max), &mut looked, &is_movable)
            else {
                continue;
            };
            best = Some(found);
            count += 1;
            if count == STRETCHES_MAX {
                break;
            }
        }
        best
    }

    /// The free blocks, class by class from the longest.
    fn longest_free(&self) -> impl Iterator<Item = u32> {
        let classes = (0..self.free_heads.len()).rev();
        classes.flat_map(move |class| {
            let is_there = |&slot: &u32| slot != NIL;
            let head = Some(self.free_heads[class]).filter(is_there);
            core::iter::successors(head, move |&slot| {
                Some(self.blocks[slot as usize].next_free).filter(is_there)
            })
        })
    }

    /// What is around a free block, to either side as less is to move there, until it is long enough.
    fn grow(
        &self,
        seed: u32,
        (len_granules, used_max): (u32, u32),
        looked: &mut usize,
        is_movable: &impl Fn(&Carved) -> bool,
    ) -> Option<Found> {
        let block = &self.blocks[seed as usize];
        let mut found = Found {
            first: seed,
            blocks: 1,
            used_granules: 0,
        };
        let mut len = block.len_granules;
        let mut before = self.costs(block.before, is_movable);
        let mut after = self.costs(block.after, is_movable);
        while len < len_granules {
            *looked = looked.checked_sub(1)?;
            let takes_before = match (before, after) {
                (None, None) => return None,
                (Some((_, cost)), Some((_, other))) => cost < other,
                (some, _) => some.is_some(),
            };
            let side = if takes_before {
                &mut before
            } else {
                &mut after
            };
            let (slot, used_granules) = side.expect("just seen");
            let block = &self.blocks[slot as usize];
            len += block.len_granules;
            found.used_granules += used_granules;
            found.blocks += 1;
            if found.used_granules >= used_max || found.blocks > STRETCH_BLOCKS_MAX {
                return None;
            }
            if takes_before {
                found.first = slot;
                before = self.costs(block.before, is_movable);
            } else {
                after = self.costs(block.after, is_movable);
            }
        }
        Some(found)
    }

    /// A block, and how much of it is to move; `None` if it is none, or has to stay.
    fn costs(&self, slot: u32, is_movable: &impl Fn(&Carved) -> bool) -> Option<(u32, u32)> {
        let block = self.blocks.get(slot as usize)?;
        if block.state == State::Free {
            return Some((slot, 0));
        }
        is_movable(&self.carved(slot)).then_some((slot, block.len_granules))
    }
}
