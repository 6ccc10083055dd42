//! The extent allocator of an arena chunk.
//!
//! A [`Carver`] hands out offsets in `0..len_bytes` and never touches the memory behind them: its
//! metadata lies out of line, so the chunk may be a mapping that a device writes, or none at all.
//!
//! Free blocks are kept in lists by size class, two levels deep: powers of two, each cut into 32.
//! One bit per list says whether it is empty, so a block that fits is found in constant time, and
//! it is at most 1/32 larger than the best class. Neighbours that are both free are joined at once:
//! two free blocks never touch.
//!
//! | file | subject |
//! |---|---|
//! | `stretch` | where a long extent has room once short ones have moved |

mod stretch;

use core::mem;

use thiserror::Error;

use crate::limits::CHUNK_BYTES_MAX;

pub use stretch::{STRETCH_BLOCKS_MAX, STRETCH_USED_BYTES_MAX, Stretch};

/// Unit of offsets and lengths in bytes: the sector size of the strictest common drive, so that
/// every extent can be the target of an `O_DIRECT` read, and a multiple of a cache line.
pub const GRANULE_BYTES: u32 = 512;

/// Each power of two of granules is cut into `1 << SPLIT_BITS` classes.
const SPLIT_BITS: u32 = 5;
const SPLITS: usize = 1 << SPLIT_BITS;
/// The largest chunk has 2^21 granules; sizes below 32 granules share the first row.
const ROWS: usize =
    (CHUNK_BYTES_MAX / GRANULE_BYTES as usize).ilog2() as usize + 2 - SPLIT_BITS as usize;
/// Blocks of the request's own class that are looked at before a larger class is split. In that
/// class a block may be too small, so looking at all of them would not take constant time.
const OWN_CLASS_SCAN_MAX: usize = 4;
/// No block.
const NIL: u32 = u32::MAX;

const _: () = assert!(CHUNK_BYTES_MAX.is_multiple_of(GRANULE_BYTES as usize));
const _: () = assert!(CHUNK_BYTES_MAX < u32::MAX as usize);
const _: () = assert!(ROWS <= u32::BITS as usize);

/// A carved extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carved {
    /// The slot that names it, together with `generation`.
    pub slot_index: u32,
    /// Generation of that slot; it moves on when the extent is freed.
    pub generation: u32,
    /// First byte, a multiple of [`GRANULE_BYTES`].
    pub offset_bytes: u32,
    /// Length in bytes: what was asked for, rounded up to [`GRANULE_BYTES`].
    pub len_bytes: u32,
}

/// The slot does not name a live extent of that generation: it was freed before, or never issued.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("slot {slot_index} holds no live extent of generation {generation}")]
pub struct StaleSlot {
    /// The slot that was named.
    pub slot_index: u32,
    /// The generation that was named.
    pub generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The slot stands for no block and is on the spare list, linked by `next_free`.
    Spare,
    Free,
    Used,
}

/// A block of the chunk, free or used; its index is the slot of the extent.
#[derive(Debug)]
struct Block {
    state: State,
    generation: u32,
    offset_granules: u32,
    len_granules: u32,
    /// The block that ends where this one begins.
    before: u32,
    /// The block that begins where this one ends.
    after: u32,
    prev_free: u32,
    next_free: u32,
}

/// Carves one chunk of at most [`CHUNK_BYTES_MAX`] bytes into extents.
///
/// Every operation takes constant time. Slots are reused: nothing is allocated once the chunk has
/// held as many blocks as it will. A stale name is refused until its slot has been freed 2^32
/// times more.
#[derive(Debug)]
pub struct Carver {
    len_granules: u32,
    used_granules: u32,
    blocks: Vec<Block>,
    spare_head: u32,
    /// First free block of each class, row by row.
    free_heads: Box<[u32]>,
    /// Per row: the classes with a free block.
    occupied: [u32; ROWS],
    /// The rows with a free block.
    occupied_rows: u32,
}

impl Carver {
    /// A carver of a free chunk of `len_bytes`.
    ///
    /// # Panics
    /// If `len_bytes` is zero, above [`CHUNK_BYTES_MAX`] or no multiple of [`GRANULE_BYTES`].
    #[must_use]
    pub fn new(len_bytes: u32) -> Self {
        assert!(len_bytes > 0, "an empty chunk");
        assert!(
            len_bytes as usize <= CHUNK_BYTES_MAX,
            "a chunk of {len_bytes} bytes"
        );
        assert!(
            len_bytes.is_multiple_of(GRANULE_BYTES),
            "a chunk of {len_bytes} bytes"
        );
        let len_granules = len_bytes / GRANULE_BYTES;
        let mut carver = Self {
            len_granules,
            used_granules: 0,
            blocks: Vec::new(),
            spare_head: NIL,
            free_heads: vec![NIL; ROWS * SPLITS].into_boxed_slice(),
            occupied: [0; ROWS],
            occupied_rows: 0,
        };
        let whole = carver.claim_slot(0, len_granules);
        carver.link_free(whole);
        carver
    }

    /// Carves an extent of at least `len_bytes` (of one granule for zero).
    ///
    /// `None` if no free block fits, or none of those that are looked at: a block of the request's
    /// own class may be missed behind others, one of a larger class never. An extent of at most
    /// [`Carver::largest_free_bytes`] always succeeds.
    pub fn alloc(&mut self, len_bytes: u32) -> Option<Carved> {
        let len_granules = len_bytes.div_ceil(GRANULE_BYTES).max(1);
        if len_granules > self.len_granules - self.used_granules {
            return None;
        }
        let slot_index = self.find(len_granules)?;
        self.unlink_free(slot_index);
        self.split(slot_index, len_granules);
        self.blocks[slot_index as usize].state = State::Used;
        self.used_granules += len_granules;
        Some(self.carved(slot_index))
    }

    /// Frees the extent that slot and generation name; the name goes stale.
    ///
    /// # Errors
    /// [`StaleSlot`] if they name no live extent; nothing changes then.
    pub fn free(&mut self, slot_index: u32, generation: u32) -> Result<(), StaleSlot> {
        if !self.is_live(slot_index, generation) {
            return Err(StaleSlot {
                slot_index,
                generation,
            });
        }
        let block = &mut self.blocks[slot_index as usize];
        block.generation = block.generation.wrapping_add(1);
        block.state = State::Free;
        self.used_granules -= block.len_granules;
        let (before, after) = (block.before, block.after);
        if self.is_free(after) {
            self.unlink_free(after);
            self.join(slot_index, after);
        }
        let mut joined = slot_index;
        if self.is_free(before) {
            self.unlink_free(before);
            self.join(before, slot_index);
            joined = before;
        }
        self.link_free(joined);
        Ok(())
    }

    /// The live extent that slot and generation name.
    #[must_use]
    pub fn get(&self, slot_index: u32, generation: u32) -> Option<Carved> {
        self.is_live(slot_index, generation)
            .then(|| self.carved(slot_index))
    }

    /// Whether slot and generation name a live extent.
    #[must_use]
    pub fn is_live(&self, slot_index: u32, generation: u32) -> bool {
        self.blocks
            .get(slot_index as usize)
            .is_some_and(|block| block.state == State::Used && block.generation == generation)
    }

    /// Length of the chunk in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u32 {
        self.len_granules * GRANULE_BYTES
    }

    /// Bytes of all live extents, rounded up to granules.
    #[must_use]
    pub const fn used_bytes(&self) -> u32 {
        self.used_granules * GRANULE_BYTES
    }

    /// Bytes in no live extent, in one piece or in many.
    #[must_use]
    pub const fn free_bytes(&self) -> u32 {
        (self.len_granules - self.used_granules) * GRANULE_BYTES
    }

    /// A length that [`Carver::alloc`] is certain to find, in bytes; zero if nothing is free.
    ///
    /// It is the largest of the blocks that an allocation would look at, so it falls short of the
    /// largest free block by less than the width of its class, 1/32.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u32 {
        if self.occupied_rows == 0 {
            return 0;
        }
        let row = self.occupied_rows.ilog2();
        let class = row << SPLIT_BITS | self.occupied[row as usize].ilog2();
        let largest = self.scan(class).map(|(_, len_granules)| len_granules).max();
        largest.expect("an occupied class has a block") * GRANULE_BYTES
    }

    /// A free block of at least `len_granules`: of its own class if one is in front, else of the
    /// next class up, in which every block fits.
    fn find(&self, len_granules: u32) -> Option<u32> {
        let class = class_of(len_granules);
        let fits = |&(_, found_granules): &(u32, u32)| found_granules >= len_granules;
        if let Some((slot_index, _)) = self.scan(class).filter(fits).min_by_key(|found| found.1) {
            return Some(slot_index);
        }
        let larger = self.first_occupied_from(class + 1)?;
        Some(self.free_heads[larger as usize])
    }

    /// The first blocks of a class, with their lengths in granules.
    fn scan(&self, class: u32) -> impl Iterator<Item = (u32, u32)> {
        let mut slot_index = self.free_heads[class as usize];
        core::iter::from_fn(move || {
            let block = self.blocks.get(slot_index as usize)?;
            let found = (slot_index, block.len_granules);
            slot_index = block.next_free;
            Some(found)
        })
        .take(OWN_CLASS_SCAN_MAX)
    }

    fn first_occupied_from(&self, class: u32) -> Option<u32> {
        let (row, split) = (class >> SPLIT_BITS, class % (1 << SPLIT_BITS));
        let in_row = self.occupied.get(row as usize)? & (u32::MAX << split);
        if in_row != 0 {
            return Some(row << SPLIT_BITS | in_row.trailing_zeros());
        }
        let rows = self.occupied_rows & (u32::MAX << (row + 1));
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros();
        Some(row << SPLIT_BITS | self.occupied[row as usize].trailing_zeros())
    }

    /// Cuts an unlinked free block to `len_granules`; what is left over becomes a free block.
    fn split(&mut self, slot_index: u32, len_granules: u32) {
        let block = &mut self.blocks[slot_index as usize];
        assert!(block.state == State::Free, "a used block is never split");
        let left_granules = block
            .len_granules
            .checked_sub(len_granules)
            .expect("the block fits");
        if left_granules == 0 {
            return;
        }
        block.len_granules = len_granules;
        let (left_offset, after) = (block.offset_granules + len_granules, block.after);
        let left = self.claim_slot(left_offset, left_granules);
        self.blocks[left as usize].before = slot_index;
        self.blocks[left as usize].after = after;
        self.blocks[slot_index as usize].after = left;
        if after != NIL {
            self.blocks[after as usize].before = left;
        }
        self.link_free(left);
    }

    /// Joins two unlinked free neighbours into the first; the slot of the second is spare then.
    fn join(&mut self, first: u32, second: u32) {
        let absorbed = &mut self.blocks[second as usize];
        assert!(absorbed.before == first, "joined blocks are neighbours");
        let (offset, len, after) = (
            absorbed.offset_granules,
            absorbed.len_granules,
            absorbed.after,
        );
        absorbed.state = State::Spare;
        absorbed.next_free = mem::replace(&mut self.spare_head, second);
        let block = &mut self.blocks[first as usize];
        assert!(
            block.offset_granules + block.len_granules == offset,
            "neighbours touch"
        );
        block.len_granules += len;
        block.after = after;
        if after != NIL {
            self.blocks[after as usize].before = first;
        }
    }

    fn is_free(&self, slot_index: u32) -> bool {
        self.blocks
            .get(slot_index as usize)
            .is_some_and(|block| block.state == State::Free)
    }

    fn link_free(&mut self, slot_index: u32) {
        let class = class_of(self.blocks[slot_index as usize].len_granules);
        let next = mem::replace(&mut self.free_heads[class as usize], slot_index);
        let block = &mut self.blocks[slot_index as usize];
        assert!(block.state == State::Free, "only a free block is listed");
        block.prev_free = NIL;
        block.next_free = next;
        if next != NIL {
            self.blocks[next as usize].prev_free = slot_index;
        }
        let row = class >> SPLIT_BITS;
        self.occupied[row as usize] |= 1 << (class % (1 << SPLIT_BITS));
        self.occupied_rows |= 1 << row;
    }

    fn unlink_free(&mut self, slot_index: u32) {
        let block = &self.blocks[slot_index as usize];
        let (prev, next) = (block.prev_free, block.next_free);
        let class = class_of(block.len_granules);
        if next != NIL {
            self.blocks[next as usize].prev_free = prev;
        }
        if prev != NIL {
            self.blocks[prev as usize].next_free = next;
            return;
        }
        assert!(
            self.free_heads[class as usize] == slot_index,
            "a list begins at its head"
        );
        self.free_heads[class as usize] = next;
        if next == NIL {
            let row = class >> SPLIT_BITS;
            self.occupied[row as usize] &= !(1 << (class % (1 << SPLIT_BITS)));
            if self.occupied[row as usize] == 0 {
                self.occupied_rows &= !(1 << row);
            }
        }
    }

    /// A slot for a new free block without neighbours, in no list.
    fn claim_slot(&mut self, offset_granules: u32, len_granules: u32) -> u32 {
        let (slot_index, generation) = match self.blocks.get(self.spare_head as usize) {
            Some(spare) => (self.spare_head, spare.generation),
            None => (
                u32::try_from(self.blocks.len()).expect("granules bound the blocks"),
                0,
            ),
        };
        let block = Block {
            state: State::Free,
            generation,
            offset_granules,
            len_granules,
            before: NIL,
            after: NIL,
            prev_free: NIL,
            next_free: NIL,
        };
        if let Some(spare) = self.blocks.get_mut(slot_index as usize) {
            assert!(spare.state == State::Spare, "a listed slot is spare");
            self.spare_head = mem::replace(spare, block).next_free;
        } else {
            self.blocks.push(block);
        }
        slot_index
    }

    fn carved(&self, slot_index: u32) -> Carved {
        let block = &self.blocks[slot_index as usize];
        Carved {
            slot_index,
            generation: block.generation,
            offset_bytes: block.offset_granules * GRANULE_BYTES,
            len_bytes: block.len_granules * GRANULE_BYTES,
        }
    }
}

/// The class of a block: its row, and its place among the 32 of that row. Classes rise with
/// length; those of rows 0 and 1 hold one length each.
fn class_of(len_granules: u32) -> u32 {
    assert!(len_granules > 0, "a block has at least one granule");
    let log = len_granules.ilog2();
    if log < SPLIT_BITS {
        return len_granules;
    }
    let split = (len_granules >> (log - SPLIT_BITS)) % (1 << SPLIT_BITS);
    (log - SPLIT_BITS + 1) << SPLIT_BITS | split
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: u32 = 1 << 30;
    const _: () = assert!(WHOLE as usize == CHUNK_BYTES_MAX);

    #[test]
    fn classes_rise_with_length_and_end_at_the_largest_chunk() {
        let lens = (1..5000).chain((13..22).flat_map(|log| [(1 << log) - 1, 1 << log]));
        let classes: Vec<_> = lens.map(class_of).collect();
        assert!(classes.is_sorted());
        assert!(
            (1..64).all(|len| class_of(len) == len),
            "small classes hold one length"
        );
        assert_eq!(
            class_of(WHOLE / GRANULE_BYTES) as usize,
            (ROWS - 1) * SPLITS
        );
    }

    #[test]
    fn the_whole_chunk_can_be_carved_and_nothing_more() {
        for len in [
            GRANULE_BYTES,
            3 * GRANULE_BYTES,
            1000 * GRANULE_BYTES,
            WHOLE,
        ] {
            let mut carver = Carver::new(len);
            assert_eq!(carver.largest_free_bytes(), len);
            assert_eq!(carver.alloc(len + 1), None);
            let whole = carver.alloc(len).expect("the chunk is free");
            assert_eq!((whole.offset_bytes, whole.len_bytes), (0, len));
            assert_eq!((carver.free_bytes(), carver.largest_free_bytes()), (0, 0));
            assert_eq!(carver.alloc(0), None);
            assert_eq!(carver.free(whole.slot_index, whole.generation), Ok(()));
            assert_eq!(carver.used_bytes(), 0);
        }
    }

    #[test]
    fn lengths_round_up_to_granules() {
        let mut carver = Carver::new(16 * GRANULE_BYTES);
        for (asked, given) in [(0, 1), (1, 1), (512, 1), (513, 2)] {
            let extent = carver.alloc(asked).expect("room");
            assert_eq!(extent.len_bytes, given * GRANULE_BYTES, "for {asked}");
        }
        assert_eq!(carver.used_bytes(), 5 * GRANULE_BYTES);
    }

    /// Every second extent of a chunk that is full of short ones is freed.
    fn in_holes(short: u32, count: u32) -> Carver {
        let mut carver = Carver::new(short * count);
        let all: Vec<_> = (0..count)
            .map(|_| carver.alloc(short).expect("room"))
            .collect();
        for hole in all.iter().step_by(2) {
            assert_eq!(carver.free(hole.slot_index, hole.generation), Ok(()));
        }
        carver
    }

    #[test]
    fn a_stretch_has_no_more_blocks_and_no_more_bytes_than_may_be() {
        let short = 4 * GRANULE_BYTES;
        let blocks_max = u32::try_from(STRETCH_BLOCKS_MAX).expect("few");
        let carver = || in_holes(short, 2 * blocks_max);
        let stretch = carver().stretch(short * (blocks_max - 1), |_| true);
        let stretch = stretch.expect("as many blocks as may be");
        let blocks = stretch.used.len() + stretch.holes.len();
        assert!(blocks <= STRETCH_BLOCKS_MAX, "{blocks}");
        assert!(
            carver()
                .stretch(short * (blocks_max + 1), |_| true)
                .is_none()
        );
        let long = STRETCH_USED_BYTES_MAX / 128;
        let carver = || in_holes(long, 1024);
        let stretch = carver().stretch(STRETCH_USED_BYTES_MAX, |_| true);
        assert_eq!(stretch.expect("a stretch").used.len(), 64);
        assert!(
            carver()
                .stretch(2 * STRETCH_USED_BYTES_MAX, |_| true)
                .is_none()
        );
    }

    #[test]
    fn neighbours_join_in_every_order() {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut carver = Carver::new(3 * GRANULE_BYTES);
            let extents: Vec<_> = (0..3).map(|_| carver.alloc(1).expect("room")).collect();
            for index in order {
                let extent = extents[index];
                assert_eq!(carver.free(extent.slot_index, extent.generation), Ok(()));
            }
            assert_eq!(carver.largest_free_bytes(), 3 * GRANULE_BYTES, "{order:?}");
        }
    }

    #[test]
    fn a_stale_name_is_refused_and_a_reused_slot_has_a_new_one() {
        let mut carver = Carver::new(4 * GRANULE_BYTES);
        let first = carver.alloc(1).expect("room");
        assert_eq!(carver.get(first.slot_index, first.generation), Some(first));
        assert_eq!(carver.free(first.slot_index, first.generation), Ok(()));
        let stale = StaleSlot {
            slot_index: first.slot_index,
            generation: first.generation,
        };
        assert_eq!(carver.free(first.slot_index, first.generation), Err(stale));
        let second = carver.alloc(1).expect("room");
        assert_eq!(second.slot_index, first.slot_index);
        assert_ne!(second.generation, first.generation);
        assert_eq!(carver.get(first.slot_index, first.generation), None);
        assert!(!carver.is_live(NIL, 0));
    }

    #[test]
    #[should_panic(expected = "a chunk of 513 bytes")]
    fn a_chunk_is_whole_granules() {
        drop(Carver::new(GRANULE_BYTES + 1));
    }

    #[test]
    #[should_panic(expected = "a chunk of 1073742336 bytes")]
    fn a_chunk_is_bounded() {
        drop(Carver::new(WHOLE + GRANULE_BYTES));
    }
}
