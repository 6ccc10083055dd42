//! One mapping, carved.

use std::cell::RefCell;
use std::ptr::NonNull;

use lunette_runtime_core::carve::{Carved, Carver};
use rustix::io::Errno;

use super::mapping::Mapping;
use super::{ArenaOptions, Shortfall};

/// A mapped chunk. The mapping lives as long as the chunk; regions hold the chunk by count.
pub(super) struct Chunk {
    index: u32,
    mapping: Mapping,
    carver: RefCell<Carver>,
}

impl Chunk {
    /// Maps a chunk of `len` bytes, falling back from huge pages to plain ones unless they are
    /// required.
    pub(super) fn map(
        index: u32,
        len: usize,
        options: &ArenaOptions,
        shortfalls: &mut Vec<Shortfall>,
    ) -> Result<Self, Errno> {
        let carver = RefCell::new(Carver::new(u32::try_from(len).expect("chunks are bounded")));
        let mapping = Mapping::new(len, options.huge_pages, options.lock, shortfalls)?;
        Ok(Self {
            index,
            mapping,
            carver,
        })
    }

    pub(super) const fn index(&self) -> u32 {
        self.index
    }

    pub(super) const fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    pub(super) const fn len(&self) -> usize {
        self.mapping.len()
    }

    pub(super) const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(super) fn used_bytes(&self) -> usize {
        usize::try_from(self.carver.borrow().used_bytes()).expect("a chunk fits memory")
    }

    /// Populates every page.
    pub(super) fn prefault(&self) -> Result<(), Errno> {
        self.mapping.prefault()
    }

    pub(super) fn carve(&self, len: u32) -> Option<Carved> {
        self.carver.borrow_mut().alloc(len)
    }

    /// Takes a piece back.
    ///
    /// # Panics
    /// If the piece was freed before: its handle would have named memory of another owner.
    pub(super) fn free(&self, carved: &Carved) {
        let freed = self
            .carver
            .borrow_mut()
            .free(carved.slot_index, carved.generation);
        assert!(freed.is_ok(), "a region was freed twice");
    }

    /// The first byte of a piece.
    pub(super) fn address(&self, carved: &Carved) -> NonNull<u8> {
        let offset = carved.offset_bytes as usize;
        assert!(offset + carved.len_bytes as usize <= self.len());
        // SAFETY: the assert keeps base+offset inside the mapping that `self` owns; valid until
        // the chunk drops, which the region's count on it prevents.
        unsafe { self.base().add(offset) }
    }
}
