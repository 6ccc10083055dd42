//! Regions that another thread reads, or writes.

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::mapping::Mapping;
use super::region::{Region, RegionMut};

/// A region's bytes, to be read by whatever thread has this. The memory stays until it is dropped.
pub struct Borrowed {
    address: NonNull<u8>,
    len: usize,
    /// The bytes are there even if the core ends meanwhile.
    _mapping: Arc<Mapping>,
    /// Dropped with the last access.
    _reads: Arc<()>,
}

// SAFETY: the bytes are those of a region, which nobody writes (`Region::as_slice`), and its `Lender` gives it back to
// the core only when this is no more. Holds as long as the value.
unsafe impl Send for Borrowed {}

// SAFETY: as above; a shared one gives out a shared slice, and nothing else. Holds as long as the value.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// The bytes.
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        // SAFETY: address..+len lies in the region that the lender has, and leaks rather than frees while this is
        // there, in a mapping that this keeps; nobody writes it. Ends with the borrow.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrowed({:?}+{:#x})", self.address, self.len)
    }
}

/// The core's half of a region that another thread reads. Dropped before that has ended, it leaks the memory: a thread
/// that is slow, or gone for good, never reads what belongs to somebody else.
#[derive(Debug)]
pub struct Lender {
    region: Option<Region>,
    reads: Arc<()>,
}

impl Lender {
    /// Whether nobody reads it any more.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        // Unlike a look at the count, this is ordered behind the last read.
        Arc::get_mut(&mut self.reads).is_some()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        if !self.is_over() {
            std::mem::forget(self.region.take());
        }
    }
}

impl Region {
    /// Has another thread read it: what that thread gets, and what this core keeps until that is dropped.
    #[must_use]
    pub fn lend(&self) -> (Borrowed, Lender) {
        let reads = Arc::new(());
        let borrowed = Borrowed {
            address: NonNull::from(self.as_slice()).cast(),
            len: self.len(),
            _mapping: self.mapping(),
            _reads: Arc::clone(&reads),
        };
        let region = Some(self.clone());
        (borrowed, Lender { region, reads })
    }
}

/// A region's bytes, to be written by whatever thread has this. The memory stays until it is dropped.
pub struct BorrowedMut {
    address: NonNull<u8>,
    len: usize,
    /// The bytes are there even if the core ends meanwhile.
    _mapping: Arc<Mapping>,
    /// Dropped with the last access.
    accesses: Arc<()>,
}

// SAFETY: the bytes are those of a region whose only handle its `LenderMut` has, which reaches them only when this is
// no more. Holds as long as the value.
unsafe impl Send for BorrowedMut {}

impl BorrowedMut {
    /// The bytes.
    #[must_use]
    pub const fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: address..+len lies in the region that the lender has, and leaks rather than frees while this is
        // there, in a mapping that this keeps; nobody else reaches it, and `self` is borrowed exclusively. Ends with
        // the borrow.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl fmt::Debug for BorrowedMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BorrowedMut({:?}+{:#x})", self.address, self.len)
    }
}

/// The core's half of a region that another thread writes. Dropped before that has ended, it leaks the memory.
#[derive(Debug)]
pub struct LenderMut {
    region: Option<RegionMut>,
    accesses: Arc<()>,
}

impl LenderMut {
    /// Whether nobody writes it any more: what was lent was dropped.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        Arc::get_mut(&mut self.accesses).is_some()
    }

    /// The region again, as it was written.
    ///
    /// # Errors
    /// Both, if what was lent is not this region.
    pub fn end(mut self, borrowed: BorrowedMut) -> Result<RegionMut, (Self, BorrowedMut)> {
        if !Arc::ptr_eq(&self.accesses, &borrowed.accesses) {
            return Err((self, borrowed));
        }
        drop(borrowed);
        Ok(self.region.take().expect("it is taken once"))
    }
}

impl Drop for LenderMut {
    fn drop(&mut self) {
        if !self.is_over() {
            std::mem::forget(self.region.take());
        }
    }
}

impl RegionMut {
    /// Has another thread write it: what that thread gets, and what this core keeps until it is given back, or
    /// dropped.
    #[must_use]
    pub fn lend(self) -> (BorrowedMut, LenderMut) {
        let accesses = Arc::new(());
        let borrowed = BorrowedMut {
            address: self.address(),
            len: self.len(),
            _mapping: self.mapping(),
            accesses: Arc::clone(&accesses),
        };
        let region = Some(self);
        (borrowed, LenderMut { region, accesses })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::arena::{Arena, ArenaOptions};

    #[test]
    fn memory_stays_while_another_thread_reads_it() {
        let arena = Arena::new(ArenaOptions::default());
        let mut region = arena.alloc(1000).expect("room");
        region.as_mut_slice()[999] = 7;
        let region = region.freeze();
        let (borrowed, mut lender) = region.slice(500, 500).lend();
        drop(region);
        assert!(!lender.is_over());
        assert!(format!("{borrowed:?}").starts_with("Borrowed("));
        let reader = thread::spawn(move || borrowed.as_slice()[499]);
        assert_eq!(reader.join().expect("no panic"), 7);
        assert!(lender.is_over(), "it dropped it");
        assert!(arena.used_bytes() > 0);
        drop(lender);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn another_thread_writes_and_gives_back() {
        let arena = Arena::new(ArenaOptions::default());
        let (mut borrowed, mut lender) = arena.alloc(100).expect("room").lend();
        assert!(format!("{borrowed:?}").starts_with("BorrowedMut("));
        let writer = thread::spawn(move || {
            borrowed.as_mut_slice().fill(7);
            borrowed
        });
        let borrowed = writer.join().expect("no panic");
        assert!(!lender.is_over());
        let (_other, others) = arena.alloc(100).expect("room").lend();
        let (others, borrowed) = others.end(borrowed).expect_err("it is not of that region");
        let region = lender.end(borrowed).expect("it is of this one");
        assert_eq!(region.as_slice(), [7; 100]);
        drop(others);
        drop(region);
        assert!(arena.used_bytes() > 0, "what is written still is leaked");
    }

    #[test]
    fn what_is_not_given_back_is_over_when_it_is_dropped() {
        let arena = Arena::new(ArenaOptions::default());
        let (borrowed, mut lender) = arena.alloc(100).expect("room").lend();
        drop(borrowed);
        assert!(lender.is_over());
        drop(lender);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn what_is_read_when_the_core_ends_is_never_given_to_others() {
        let arena = Arena::new(ArenaOptions::default());
        let mut region = arena.alloc(10).expect("room");
        region.as_mut_slice()[0] = 7;
        let (borrowed, lender) = region.freeze().lend();
        drop(lender);
        assert!(arena.used_bytes() > 0, "leaked");
        drop(arena);
        assert_eq!(borrowed.as_slice()[0], 7);
    }
}
