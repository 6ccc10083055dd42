//! A hold on a whole chunk, for what is registered with a device once and not per region.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use super::chunk::Chunk;
use super::mapping::Mapping;

/// Keeps a chunk mapped, whatever becomes of its arena and of the regions in it.
///
/// An adapter or a GPU that registers memory does so once per chunk: the registration owns a handle,
/// so the range stays what it was as long as the device knows it, and no other chunk comes to lie
/// there. Handles are equal if they hold the same chunk.
#[derive(Clone)]
pub struct ChunkHandle(Rc<Chunk>);

impl ChunkHandle {
    pub(super) const fn new(chunk: Rc<Chunk>) -> Self {
        Self(chunk)
    }

    pub(super) fn mapping(&self) -> &Mapping {
        self.0.mapping()
    }

    /// The chunk's first byte. What may be read and written there is up to the regions that lie in
    /// it: the handle lends no bytes.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.0.base()
    }

    /// The chunk's length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.len()
    }
}

impl PartialEq for ChunkHandle {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ChunkHandle {}

impl fmt::Debug for ChunkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkHandle({:?}+{:#x})", self.start(), self.len_bytes())
    }
}

#[cfg(test)]
mod tests {
    use crate::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN};

    #[test]
    fn regions_name_the_chunk_in_which_they_lie() {
        let arena = Arena::new(ArenaOptions {
            bytes_max: 2 * CHUNK_BYTES_MIN,
            chunk_bytes: CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        });
        let first = arena.alloc(CHUNK_BYTES_MIN / 2).expect("room");
        let second = arena.alloc(CHUNK_BYTES_MIN / 2).expect("room").freeze();
        let third = arena.alloc(CHUNK_BYTES_MIN).expect("room");
        assert_eq!(first.chunk(), second.chunk());
        assert_eq!(first.chunk(), second.slice(9, 1).chunk());
        assert_ne!(first.chunk(), third.chunk());
        let chunk = second.chunk();
        let offset = second.as_slice().as_ptr().addr() - chunk.start().as_ptr().addr();
        assert!(offset + second.len() <= chunk.len_bytes());
    }

    #[test]
    fn a_handle_keeps_the_chunk_mapped_without_arena_and_regions() {
        let arena = Arena::new(ArenaOptions::default());
        let mut region = arena.alloc(512).expect("room");
        region.as_mut_slice().fill(3);
        let chunk = region.chunk();
        let offset = region.as_slice().as_ptr().addr() - chunk.start().as_ptr().addr();
        drop((region, arena));
        let byte = chunk.start().as_ptr().wrapping_add(offset);
        // SAFETY: the handle keeps the mapping, and no region that could write it is left.
        assert_eq!(unsafe { byte.read() }, 3);
    }
}
