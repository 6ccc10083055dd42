//! The ring through which the kernel is offered buffers (`io_uring_register_buf_ring(3)`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

/// The tail's place in the ring, counted in its own size (`struct io_uring_buf_ring`).
const TAIL_AT: usize = 7;

/// Entries shared with the kernel: we write entries and the tail, the kernel reads both.
pub(crate) struct OfferRing {
    base: NonNull<BufRingEntry>,
    entries: u16,
    tail: u16,
}

impl OfferRing {
    /// The kernel wants the ring on a page of its own.
    const ALIGN_BYTES: usize = 4096;

    /// An empty ring of `entries`, a power of two.
    pub(crate) fn new(entries: u16) -> Self {
        assert!(entries.is_power_of_two(), "the kernel masks its indices");
        let layout = Self::layout(entries);
        // SAFETY: the layout is not empty. Owned by `self` and freed in `Drop`, once.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base.cast::<BufRingEntry>()) else {
            handle_alloc_error(layout)
        };
        Self {
            base,
            entries,
            tail: 0,
        }
    }

    fn layout(entries: u16) -> Layout {
        let len_bytes = usize::from(entries) * size_of::<BufRingEntry>();
        Layout::from_size_align(len_bytes, Self::ALIGN_BYTES).expect("a small power of two")
    }

    /// Where the tail lies: in the reserved field of the first entry.
    fn tail_at(&self) -> *mut u16 {
        self.base.as_ptr().cast::<u16>().wrapping_add(TAIL_AT)
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub(crate) const fn entries(&self) -> u16 {
        self.entries
    }

    /// Offers a buffer to the kernel, which may write it from now on.
    ///
    /// The caller keeps the memory in place, and neither reads nor writes it, until the kernel says
    /// that it has picked the buffer.
    pub(crate) fn offer(&mut self, id: u16, address: NonNull<u8>, len: u32) {
        let index = self.tail & (self.entries - 1);
        // SAFETY: `index` is below `entries`, so the entry lies in the allocation. The kernel reads
        // an entry only between its head and the tail, so this one is ours: there are as many
        // entries as buffers, each offered at most once at a time. Fields are written one by one,
        // because the tail lies in the first entry. Ends with the last of them.
        let entry = unsafe { &mut *self.base.as_ptr().wrapping_add(usize::from(index)) };
        entry.set_addr(address.as_ptr().expose_provenance() as u64);
        entry.set_len(len);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is an aligned u16 of the allocation, which the kernel only reads; we are
        // its only writer, and an atomic store is how both sides see it. Ends with the store.
        let tail = unsafe { AtomicU16::from_ptr(self.tail_at()) };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for OfferRing {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and owned by `self` alone: the pool takes the
        // ring away from the kernel before it drops it.
        unsafe { dealloc(self.base.as_ptr().cast(), Self::layout(self.entries)) };
    }
}

impl fmt::Debug for OfferRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfferRing")
            .field("entries", &self.entries)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would see at `index`.
    fn seen(ring: &OfferRing, index: usize) -> (u64, u32, u16) {
        assert!(index < usize::from(ring.entries));
        // SAFETY: inside the allocation by the assert, and nobody writes meanwhile.
        let entry = unsafe { &*ring.base.as_ptr().wrapping_add(index) };
        (entry.addr(), entry.len(), entry.bid())
    }

    fn tail(ring: &OfferRing) -> u16 {
        // SAFETY: the address of a field of a live allocation; nothing is read yet.
        let tail = unsafe { BufRingEntry::tail(ring.base.as_ptr()) };
        assert_eq!(tail, ring.tail_at().cast_const());
        // SAFETY: the tail lies in the allocation, and nobody writes meanwhile.
        unsafe { *tail }
    }

    #[test]
    fn entries_and_tail_are_where_the_kernel_looks_also_after_a_lap() {
        let mut ring = OfferRing::new(4);
        assert_eq!(ring.address() % 4096, 0);
        let mut memory = [0_u8; 8];
        let base = NonNull::from(&mut memory).cast::<u8>();
        for lap in 0..3_u16 {
            for id in 0..4_u16 {
                ring.offer(id, base, u32::from(lap) + 1);
                assert_eq!(tail(&ring), lap * 4 + id + 1);
                let (address, len, bid) = seen(&ring, usize::from(id));
                assert_eq!((len, bid), (u32::from(lap) + 1, id));
                assert_eq!(address, base.as_ptr().expose_provenance() as u64);
            }
        }
    }

    #[test]
    fn the_tail_wraps() {
        let mut ring = OfferRing::new(1);
        let mut byte = 0_u8;
        ring.tail = u16::MAX - 1;
        for expected in [u16::MAX, 0, 1] {
            ring.offer(0, NonNull::from(&mut byte), 1);
            assert_eq!(tail(&ring), expected);
        }
    }
}
