//! Counted handles to pieces of a chunk.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use lunette_runtime_core::carve::Carved;
use lunette_runtime_core::region::RegionRef;

use super::chunk::Chunk;
use super::exposed::Exposed;
use super::extent::Extent;
use super::handle::ChunkHandle;
use super::mapping::Mapping;
use super::summed::{Then, copy_summed};

/// One carved piece; returns to its chunk when the last handle drops.
pub(super) struct Piece {
    chunk: Rc<Chunk>,
    carved: Carved,
}

impl Piece {
    pub(super) fn chunk(&self) -> ChunkHandle {
        ChunkHandle::new(Rc::clone(&self.chunk))
    }

    pub(super) fn extent(&self) -> Extent {
        Extent::of_chunk(&self.chunk)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.chunk.free(&self.carved);
    }
}

/// Bytes of an arena with one owner, who may write them or lend them to a device that writes them.
pub struct RegionMut {
    address: NonNull<u8>,
    len: usize,
    piece: Rc<Piece>,
}

/// A shared, read-only piece of an arena. Clones are counted; holding one pins the memory.
#[derive(Clone)]
pub struct Region {
    address: NonNull<u8>,
    len: usize,
    piece: Rc<Piece>,
}

impl RegionMut {
    /// Carves `len` bytes from `chunk`, if it has room.
    pub(super) fn carve(chunk: &Rc<Chunk>, len: u32) -> Option<Self> {
        let carved = chunk.carve(len)?;
        Some(Self::of_carved(chunk, carved, len))
    }

    /// The first `len` bytes of what was carved from `chunk`, for nobody else.
    pub(super) fn of_carved(chunk: &Rc<Chunk>, carved: Carved, len: u32) -> Self {
        assert!(
            carved.len_bytes >= len,
            "the allocator never hands out less than asked"
        );
        let address = chunk.address(&carved);
        let piece = Rc::new(Piece {
            chunk: Rc::clone(chunk),
            carved,
        });
        Self {
            address,
            len: len as usize,
            piece,
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        // SAFETY: address..+len lies in the piece that `self.piece` keeps; `self` is the only
        // handle to these bytes and is borrowed shared, so nothing writes them meanwhile (a device
        // that writes them holds `self` by value). Ends with the borrow.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    /// The bytes, to be written.
    #[must_use]
    pub const fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: address..+len lies in the piece that `self.piece` keeps; `self` is the only
        // handle to these bytes and is borrowed exclusively, so nothing else reads or writes them.
        // Ends with the borrow.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }

    /// The chunk in which it lies.
    #[must_use]
    pub fn chunk(&self) -> ChunkHandle {
        self.piece.chunk()
    }

    /// All of the chunk in which it lies.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.piece.extent()
    }

    /// Ends writing: from here on the piece is shared and read-only.
    #[must_use]
    pub fn freeze(self) -> Region {
        Region {
            address: self.address,
            len: self.len,
            piece: self.piece,
        }
    }

    /// Cuts it in two, so that each half may be written, or frozen, by itself: what is behind the first `at` bytes. Either
    /// pins the whole piece. Frozen, the halves can be [joined](Region::join) again.
    ///
    /// # Panics
    /// If one of them would be empty.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(
            0 < at && at < self.len,
            "a region of {} bytes has no two halves at {at}",
            self.len
        );
        // SAFETY: the assert keeps address+at inside the piece that `self.piece` (cloned below) keeps. Ends when
        // the new handle drops. Neither handle reaches the other's bytes: `self` ends at `at` from here on.
        let address = unsafe { self.address.add(at) };
        let len = self.len - at;
        self.len = at;
        Self {
            address,
            len,
            piece: Rc::clone(&self.piece),
        }
    }

    /// Ends ownership: from here on anybody who has a handle may write.
    #[must_use]
    pub fn expose(self) -> Exposed {
        Exposed::of_piece(self.address, self.len, self.piece)
    }

    /// The region again, if `piece` is its only handle.
    pub(super) fn of_only(
        address: NonNull<u8>,
        len: usize,
        piece: Rc<Piece>,
    ) -> Result<Self, Rc<Piece>> {
        if Rc::strong_count(&piece) == 1 {
            Ok(Self {
                address,
                len,
                piece,
            })
        } else {
            Err(piece)
        }
    }

    /// The mapping in which it lies.
    pub(super) fn mapping(&self) -> Arc<Mapping> {
        self.piece.chunk.counted()
    }

    /// The first byte, for a device that owns the region while it writes.
    pub(crate) const fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Region {
    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the piece is an empty slice of a region.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        // SAFETY: address..+len lies in the piece that `self.piece` keeps, and no handle that may
        // write it exists since `freeze` consumed it. Ends with the borrow.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }

    /// Copies all of it over `bytes`, which are as many, to stay there: what has 4 KiB or more is written past the caches, where
    /// the processor can. Their CRC32C.
    ///
    /// # Panics
    /// If they are not as many.
    pub fn copy_out_summed(&self, bytes: &mut [u8]) -> u32 {
        assert_eq!(bytes.len(), self.len, "room for the region and no more");
        // SAFETY: the source is as in `as_slice`; `bytes` is borrowed exclusively and as long. Ends with the
        // copy.
        unsafe {
            copy_summed(
                self.address.as_ptr(),
                bytes.as_mut_ptr(),
                self.len,
                Then::Kept,
            )
        }
    }

    /// The chunk in which it lies.
    #[must_use]
    pub fn chunk(&self) -> ChunkHandle {
        self.piece.chunk()
    }

    /// The whole chunk in which it lies.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.piece.extent()
    }

    /// The part `start..start + len` of this region, pinning the whole piece.
    ///
    /// # Panics
    /// If the part does not lie inside the region.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        let end = start.checked_add(len).expect("a slice's end fits");
        assert!(
            end <= self.len,
            "slice {start}..{end} of a region of {} bytes",
            self.len
        );
        // SAFETY: the assert keeps address+start inside the piece that `self.piece` (cloned
        // below) keeps. Ends when the new handle drops.
        let address = unsafe { self.address.add(start) };
        Self {
            address,
            len,
            piece: Rc::clone(&self.piece),
        }
    }

    /// This region and the one behind it as one.
    ///
    /// # Errors
    /// Both, if `next` does not begin where this one ends, in memory that was allocated as one.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        let end = self.address.as_ptr().wrapping_add(self.len);
        if !Rc::ptr_eq(&self.piece, &next.piece) || end != next.address.as_ptr() {
            return Err((self, next));
        }
        // Both are read-only, and lie in the piece that either keeps: so does what they are together.
        Ok(Self {
            len: self.len + next.len,
            ..self
        })
    }

    /// Takes the region back for writing if this is its only handle.
    ///
    /// # Errors
    /// The region itself, while other handles (a send in flight, say) still pin it.
    pub fn try_unfreeze(self) -> Result<RegionMut, Self> {
        let Self {
            address,
            len,
            piece,
        } = self;
        RegionMut::of_only(address, len, piece).map_err(|piece| Self {
            address,
            len,
            piece,
        })
    }

    /// Where it begins: which chunk of its arena, in the order in which they were mapped, and how many bytes
    /// behind the chunk's first one. See [`Arena::share`](super::Arena::share).
    #[must_use]
    pub fn place(&self) -> (u32, usize) {
        let chunk = &self.piece.chunk;
        let offset = self.address.as_ptr().addr() - chunk.base().as_ptr().addr();
        (chunk.index(), offset)
    }

    /// The mapping in which it lies.
    pub(super) fn mapping(&self) -> Arc<Mapping> {
        self.piece.chunk.counted()
    }

    /// Whether this is its only handle: nobody else reads it, no device and no other thread.
    #[must_use]
    pub fn is_only(&self) -> bool {
        Rc::strong_count(&self.piece) == 1
    }

    /// The name of this region: a value that pins nothing and goes stale when the memory is freed.
    #[must_use]
    pub fn name(&self) -> RegionRef {
        name(&self.piece, self.address, self.len)
    }
}

fn name(piece: &Piece, address: NonNull<u8>, len: usize) -> RegionRef {
    let start = piece.chunk.address(&piece.carved);
    let offset = address.as_ptr().addr() - start.as_ptr().addr();
    RegionRef {
        chunk_index: piece.chunk.index(),
        slot_index: piece.carved.slot_index,
        generation: piece.carved.generation,
        offset_bytes: u32::try_from(offset).expect("a region's length is bounded"),
        len_bytes: u32::try_from(len).expect("a region's length is bounded"),
    }
}

impl fmt::Debug for RegionMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RegionMut({:?})",
            name(&self.piece, self.address, self.len)
        )
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:?})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use crate::arena::{Arena, ArenaOptions};

    #[test]
    fn a_slice_pins_the_whole_region() {
        let arena = Arena::new(ArenaOptions::default());
        let mut region = arena.alloc(1000).expect("room");
        region.as_mut_slice()[500] = 9;
        let region = region.freeze();
        let part = region.slice(500, 10);
        drop(region);
        assert!(arena.used_bytes() > 0, "the slice still pins it");
        assert_eq!(part.as_slice()[0], 9);
        drop(part);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn unfreezing_needs_the_last_handle() {
        let arena = Arena::new(ArenaOptions::default());
        let region = arena.alloc(10).expect("room").freeze();
        let pin = region.clone();
        let region = region.try_unfreeze().expect_err("pinned");
        drop(pin);
        assert!(region.try_unfreeze().is_ok());
    }

    #[test]
    fn halves_are_written_by_themselves_and_joined_when_they_are_frozen() {
        let arena = Arena::new(ArenaOptions::default());
        let mut first = arena.alloc(1000).expect("room");
        let mut second = first.split_off(300);
        let mut third = second.split_off(1);
        first.as_mut_slice().fill(1);
        second.as_mut_slice().fill(2);
        third.as_mut_slice().fill(3);
        assert_eq!((first.len(), second.len(), third.len()), (300, 1, 699));
        let first = first.freeze();
        let (second, first) = second.freeze().join(first).expect_err("the wrong order");
        let other = arena.alloc(10).expect("room").freeze();
        let (first, other) = first.join(other).expect_err("another region");
        drop(other);
        let front = first.join(second).expect("neighbours");
        let front = front.try_unfreeze().expect_err("the third half is written");
        third.as_mut_slice()[698] = 4;
        let whole = front.join(third.freeze()).expect("neighbours");
        let expected = [&[1; 300][..], &[2], &[3; 698], &[4]].concat();
        assert_eq!(whole.as_slice(), expected);
        let whole = whole.try_unfreeze().expect("its only handle");
        assert_eq!(whole.len(), 1000);
        drop(whole);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "no two halves")]
    fn a_half_is_not_empty() {
        let arena = Arena::new(ArenaOptions::default());
        let mut region = arena.alloc(10).expect("room");
        let _half = region.split_off(10);
    }

    #[test]
    fn a_name_changes_when_the_memory_changes_hands() {
        let arena = Arena::new(ArenaOptions::default());
        let first = arena.alloc(512).expect("room").freeze();
        let name = first.name();
        assert_eq!(first.slice(10, 5).name().offset_bytes, 10);
        drop(first);
        let second = arena.alloc(512).expect("room").freeze();
        assert_ne!(second.name(), name, "same place, later generation");
    }

    #[test]
    #[should_panic(expected = "of a region of")]
    fn a_slice_beyond_the_end_is_refused() {
        let arena = Arena::new(ArenaOptions::default());
        let region = arena.alloc(10).expect("room").freeze();
        let _part = region.slice(5, 6);
    }
}
