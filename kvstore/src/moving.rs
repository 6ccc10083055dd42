//! Room in one piece, where there is enough of it in many.
//!
//! What leaves memory leaves holes, of the lengths that objects had: where these were short, and some of them stay, a long
//! one finds no room however much is free. So short objects move out of its way: their bytes are copied elsewhere, and
//! nobody hears of it. Those stay that somebody reads or relies on where they lie.

use lunette_runtime::arena::{AllocError, Arena, Region, RegionMut};
use lunette_runtime_core::region::RegionRef;

/// How often it is left untried, at most, after it was of no use.
const UNTRIED_MAX: u32 = 64;

/// What lies in an arena, by the slots of its entries.
pub(crate) trait Lying {
    /// Where an entry's bytes lie, if they may lie elsewhere.
    fn at_rest(&self, entry: u32) -> Option<&Region>;

    /// An entry's bytes lie elsewhere from now on: where they lay. Nobody reads them there any more.
    fn lies_at(&mut self, entry: u32, region: Region) -> Region;
}

/// Which objects lie where, and what has moved.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// The entry whose bytes lie, or lay, in a slot of a chunk.
    entries: Vec<Vec<u32>>,
    /// After it was of no use: how often it is still left untried, and how often it was.
    untried: (u32, u32),
    moved: u64,
    moved_bytes: u64,
}

impl Moving {
    /// How many objects have moved, and how many bytes that were.
    pub(crate) const fn moved(&self) -> (u64, u64) {
        (self.moved, self.moved_bytes)
    }

    /// An entry's bytes lie there from now on.
    pub(crate) fn lies(&mut self, region: &Region, entry: u32) {
        let name = region.name();
        let (chunk, slot) = (name.chunk_index as usize, name.slot_index as usize);
        if self.entries.len() <= chunk {
            self.entries.resize_with(chunk + 1, Vec::new);
        }
        let entries = &mut self.entries[chunk];
        if entries.len() <= slot {
            entries.resize(slot + 1, 0);
        }
        entries[slot] = entry;
    }

    /// Memory of so many bytes, for which objects move if need be: not if that has been of no use lately.
    ///
    /// # Errors
    /// The arena's.
    pub(crate) fn alloc(
        &mut self,
        arena: &Arena,
        len_bytes: usize,
        lying: &mut impl Lying,
    ) -> Result<RegionMut, AllocError> {
        match arena.alloc(len_bytes) {
            Err(error) if error.is_backpressure() && self.is_worth_a_try() => {
                let is_there_room = self.clear_stretch(arena, len_bytes, lying);
                self.has_tried(is_there_room);
                if is_there_room {
                    arena.alloc(len_bytes)
                } else {
                    Err(error)
                }
            }
            allocated => allocated,
        }
    }

    /// Whether it is worth a try, this time.
    const fn is_worth_a_try(&mut self) -> bool {
        let (left, _) = self.untried;
        self.untried.0 = left.saturating_sub(1);
        left == 0
    }

    /// Whether the next try is to be the next time, or later.
    pub(crate) fn has_tried(&mut self, is_there_room: bool) {
        let (_, last) = self.untried;
        let next = if is_there_room {
            0
        } else {
            (2 * last).clamp(1, UNTRIED_MAX)
        };
        self.untried = (next, next);
    }

    fn clear_stretch(&mut self, arena: &Arena, len_bytes: usize, lying: &mut impl Lying) -> bool {
        let is_movable = |name| self.at_rest(name, lying).is_some();
        let Some(stretch) = arena.stretch(len_bytes, is_movable) else {
            return false;
        };
        // Freed together, when nothing can come to lie between them any more.
        let mut left = Vec::new();
        for &name in stretch.used() {
            let (entry, bytes) = self.at_rest(name, lying).expect("it was just seen");
            let Ok(mut region) = arena.alloc(bytes.len()) else {
                return false;
            };
            region.as_mut_slice().copy_from_slice(bytes.as_slice());
            let region = region.freeze();
            self.lies(&region, entry);
            self.moved += 1;
            self.moved_bytes += region.len() as u64;
            left.push(lying.lies_at(entry, region));
        }
        true
    }

    /// The entry whose bytes lie there, if nobody reads them.
    fn at_rest<'a>(&self, name: RegionRef, lying: &'a impl Lying) -> Option<(u32, &'a Region)> {
        let entries = self.entries.get(name.chunk_index as usize)?;
        let entry = *entries.get(name.slot_index as usize)?;
        let region = lying.at_rest(entry)?;
        let found = region.name();
        let is_it = (found.chunk_index, found.slot_index, found.generation)
            == (name.chunk_index, name.slot_index, name.generation);
        (is_it && region.is_only()).then_some((entry, region))
    }
}
