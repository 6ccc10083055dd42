//! One mapping, carved.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use lunette_runtime_core::carve::{Carved, Carver, Stretch};
use lunette_runtime_core::region::RegionRef;
use rustix::io::Errno;

use super::mapping::Mapping;
use super::{ArenaOptions, Shortfall};

/// A mapped chunk. The mapping lives as long as the chunk; regions hold the chunk by count.
pub(super) struct Chunk {
    index: u32,
    /// Counted for calls on other threads, which outlast whoever waits for them.
    mapping: Arc<Mapping>,
    carver: RefCell<Carver>,
    /// Where what has ever been handed out ends.
    used_end: Cell<usize>,
    /// Where what was touched beforehand ends.
    touched_end: Cell<usize>,
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
            mapping: Arc::new(mapping),
            carver,
            used_end: Cell::new(0),
            touched_end: Cell::new(0),
        })
    }

    pub(super) const fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(super) fn used_bytes(&self) -> usize {
        usize::try_from(self.carver.borrow().used_bytes()).expect("a chunk fits memory")
    }

    pub(super) fn counted(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    /// Populates every page.
    pub(super) fn prefault(&self) -> Result<(), Errno> {
        self.mapping.populate(0..self.len())?;
        self.set_touched(self.len());
        Ok(())
    }

    pub(super) fn carve(&self, len: u32) -> Option<Carved> {
        let carved = self.carver.borrow_mut().alloc(len)?;
        self.hand_out(&carved);
        Some(carved)
    }

    fn hand_out(&self, carved: &Carved) {
        let end = carved.offset_bytes as usize + carved.len_bytes as usize;
        self.used_end.set(self.used_end.get().max(end));
    }

    /// See [`Carver::stretch`].
    pub(super) fn stretch(
        &self,
        len: u32,
        is_movable: impl Fn(&Carved) -> bool,
    ) -> Option<Stretch> {
        let stretch = self.carver.borrow_mut().stretch(len, is_movable)?;
        for hole in &stretch.holes {
            self.hand_out(hole);
        }
        Some(stretch)
    }

    /// The name of all of a piece.
    pub(super) const fn name(&self, carved: &Carved) -> RegionRef {
        RegionRef {
            chunk_index: self.index,
            slot_index: carved.slot_index,
            generation: carved.generation,
            offset_bytes: 0,
            len_bytes: carved.len_bytes,
        }
    }

    /// Where what has ever been handed out ends.
    pub(super) fn used_end(&self) -> usize {
        self.used_end.get()
    }

    /// What was touched beforehand and has not been handed out yet.
    pub(super) fn lead_bytes(&self) -> usize {
        self.touched_end.get().saturating_sub(self.used_end.get())
    }

    /// What has neither been handed out nor been touched.
    pub(super) fn untouched(&self) -> Option<Range<usize>> {
        let start = self.touched_end.get().max(self.used_end.get());
        (start < self.len()).then(|| start..self.len())
    }

    pub(super) fn set_touched(&self, end: usize) {
        self.touched_end.set(self.touched_end.get().max(end));
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
