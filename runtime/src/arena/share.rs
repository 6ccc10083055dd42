//! Memory that processes of one host share: a part of a memfd, for reading.

use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

use lunette_runtime_core::checksum::{after_zeroes, joined_crc32c, product};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use thiserror::Error;

use super::Exposed;
use super::summed::{Then, copy_summed};
use super::transparent::{HUGE_PAGE_BYTES, hint};

/// Bytes that are summed at a time: as many as stay in the nearest cache.
const TURN_BYTES: usize = 16 * 1024;

/// Memory as it is handed to another process. See [`Exposed::share`].
#[derive(Debug)]
pub struct Share {
    /// The file that is the memory. Who gets it can read all of it, and map it for reading.
    pub memfd: OwnedFd,
    /// Where in it the memory begins.
    pub offset_bytes: u64,
    /// Length of the memory.
    pub len_bytes: u64,
    /// Whether the file holds nothing else.
    pub is_whole: bool,
}

/// Why memory of another process was not mapped.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MapError {
    /// Its owner could shrink it, and then reading it would end this process.
    #[error("the file is not sealed against shrinking")]
    NotSealed,
    /// The file is shorter than its owner says.
    #[error("the file has {file_bytes} bytes")]
    TooShort {
        /// Its length.
        file_bytes: u64,
    },
    /// Nothing to map, or a range that is none.
    #[error("no such range")]
    BadRange,
    /// The system refuses.
    #[error(transparent)]
    Os(#[from] Errno),
}

/// Memory of another process, mapped for reading. It stays as long as the view, whatever becomes of its
/// owner, who may change it at any time.
///
/// As with [`Exposed`] memory no reference to its bytes is ever handed out: they are copied.
pub struct View {
    address: NonNull<u8>,
    len: usize,
    /// What was mapped, from a page's boundary on.
    base: NonNull<u8>,
    mapped: usize,
}

// SAFETY: a view has its mapping to itself, which knows of no thread. Ends with the view.
unsafe impl Send for View {}

// SAFETY: a shared view is only read, by copies that allow others to write meanwhile (`copy_out` and those behind it);
// its mapping ends in `Drop`, when nobody shares it any more. Ends with the view.
unsafe impl Sync for View {}

impl View {
    /// Maps `len_bytes` from `offset_bytes` of a file that another process has shared.
    ///
    /// # Errors
    /// [`MapError`]; the file is closed.
    pub fn map(memfd: OwnedFd, offset_bytes: u64, len_bytes: u64) -> Result<Self, MapError> {
        let end = offset_bytes.checked_add(len_bytes);
        let end = end.filter(|_| len_bytes > 0).ok_or(MapError::BadRange)?;
        check_file(memfd.as_fd(), end)?;
        let page = rustix::param::page_size() as u64;
        let first = offset_bytes / page * page;
        let fit = |bytes: u64| usize::try_from(bytes).map_err(|_| MapError::BadRange);
        let (skipped, mapped) = (fit(offset_bytes - first)?, fit(end - first)?);
        // Which has huge pages where the file has them, if what is mapped begins with one.
        let is_whole = first.is_multiple_of(HUGE_PAGE_BYTES as u64);
        let place = if is_whole {
            hint(mapped)
        } else {
            ptr::null_mut()
        };
        // SAFETY: a fresh mapping, which replaces none (an address that is taken is not used), overlaps nothing.
        // The file cannot shrink (its seals were checked, and seals stay), so no access within `mapped` can
        // fault. Ends at the munmap in `Drop`.
        let base = unsafe {
            mm::mmap(
                place,
                mapped,
                ProtFlags::READ,
                MapFlags::SHARED,
                &memfd,
                first,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel never maps at null");
        // SAFETY: `skipped` is less than `mapped`, so the sum lies in the mapping, which `Self` owns.
        let address = unsafe { base.add(skipped) };
        Ok(Self {
            address,
            len: fit(len_bytes)?,
            base,
            mapped,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it names no byte: never, since nothing of no bytes is mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies from `start` on over all of `to`. What its owner writes meanwhile may be in the copy or
    /// not.
    ///
    /// # Panics
    /// If the source does not lie inside.
    pub fn copy_out(&self, start: usize, to: &Exposed) {
        let from = self.source(start, to.len());
        // SAFETY: the source lies in the mapping that `self` owns (asserted) and the target in memory
        // that `to` keeps; nobody holds a reference to either, and `copy` allows them to overlap, since
        // they may be one file's. Ends with the copy.
        unsafe { to.address().as_ptr().copy_from(from, to.len()) };
    }

    /// Where `len` bytes from `start` on lie.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub(super) fn source(&self, start: usize, len: usize) -> *const u8 {
        let end = start.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{start}+{len} of a view of {} bytes",
            self.len
        );
        self.address.as_ptr().wrapping_add(start)
    }

    /// As [`copy_out`](Self::copy_out), over all of `to`; the CRC32C of what is there then.
    ///
    /// # Panics
    /// If the source does not lie inside.
    pub fn copy_out_summed(&self, start: usize, to: &mut [u8]) -> u32 {
        let len = to.len();
        self.copy_out_to(start, to.as_mut_ptr(), len)
    }

    /// As [`copy_out_summed`](Self::copy_out_summed), to memory of which nothing is known before; all of it is written.
    ///
    /// # Panics
    /// As there.
    pub fn copy_out_new(&self, start: usize, to: &mut [MaybeUninit<u8>]) -> u32 {
        let len = to.len();
        self.copy_out_to(start, to.as_mut_ptr().cast(), len)
    }

    /// The CRC32C of `len` bytes from `start` on, as they are when they are read, each once.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[must_use]
    pub fn crc32c(&self, start: usize, len: usize) -> u32 {
        let after_turn = const { after_zeroes(TURN_BYTES as u64) };
        // No reference to bytes that others may write: they are copied, to where the next ones are copied, too.
        let mut turn = [MaybeUninit::uninit(); TURN_BYTES];
        let mut crc32c = 0;
        for at in (0..len).step_by(TURN_BYTES) {
            let count = TURN_BYTES.min(len - at);
            let then = self.copy_out_new(start + at, &mut turn[..count]);
            crc32c = if count == TURN_BYTES {
                product(after_turn, crc32c) ^ then
            } else {
                joined_crc32c(crc32c, then, count as u64)
            };
        }
        crc32c
    }

    /// Its first byte, for devices that read it while the view is held.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.address
    }

    /// The pages in which it lies, all of which are mapped as long as it is held: where they begin, and how many bytes
    /// they have.
    #[must_use]
    pub const fn pages(&self) -> (NonNull<u8>, usize) {
        (self.base, self.mapped)
    }

    /// `to` is the beginning of that many bytes that are borrowed exclusively (both callers).
    fn copy_out_to(&self, start: usize, to: *mut u8, len: usize) -> u32 {
        let from = self.source(start, len);
        // SAFETY: the source lies in the mapping that `self` owns (asserted), to whose bytes no reference
        // exists, and may be written meanwhile, which `copy_summed` allows; `to` is borrowed exclusively, so
        // it is none of that mapping. Ends with the copy.
        unsafe { copy_summed(from, to, len, Then::Read) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and is owned by `self` alone. Ends with the call.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast::<c_void>(), self.mapped) };
        debug_assert_eq!(unmapped, Ok(()), "unmapping an owned mapping");
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:?}+{:#x})", self.address, self.len)
    }
}

/// Whether a file of somebody else can be mapped up to `end` without danger.
pub(super) fn check_file(memfd: impl AsFd, end: u64) -> Result<(), MapError> {
    // A file that knows no seals is refused by the system with `INVAL`.
    let seals = fcntl_get_seals(&memfd).map_err(|_| MapError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MapError::NotSealed);
    }
    let file_bytes = u64::try_from(fstat(&memfd)?.st_size).unwrap_or(0);
    if end > file_bytes {
        return Err(MapError::TooShort { file_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{
        FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
    };

    use super::*;
    use crate::arena::{Arena, ArenaOptions, HugePages};

    fn memory(len: usize) -> Exposed {
        Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory")
    }

    #[test]
    fn a_view_shows_what_its_owner_writes_also_after_the_owner_is_gone() {
        let owner = memory(10_000);
        let share = owner.share().expect("a mapping of its own");
        assert_eq!((share.offset_bytes, share.len_bytes), (0, 10_000));
        assert!(share.is_whole);
        let view = View::map(share.memfd, 0, 10_000).expect("sealed");
        owner.copy_in(9_000, b"later");
        let copy = memory(5);
        view.copy_out(9_000, &copy);
        assert_eq!(copy.to_vec(), b"later");
        drop(owner);
        view.copy_out(9_001, &copy.slice(0, 4));
        assert_eq!(copy.to_vec(), b"aterr");
    }

    #[test]
    fn a_part_of_an_arena_is_shared_with_its_neighbours_and_says_so() {
        let arena = Arena::new(ArenaOptions::default());
        let _neighbour = arena.alloc(100).expect("room");
        let part = arena.alloc(100).expect("room").expose();
        part.copy_in(0, b"part");
        let share = part.share().expect("a memfd");
        assert!(!share.is_whole && share.offset_bytes > 0);
        let view = View::map(share.memfd, share.offset_bytes, share.len_bytes).expect("sealed");
        let copy = memory(4);
        view.copy_out(0, &copy);
        assert_eq!(copy.to_vec(), b"part");
        assert!(
            !memory(8192)
                .slice(4096, 4096)
                .share()
                .expect("a memfd")
                .is_whole
        );
    }

    #[test]
    fn who_gets_shared_memory_can_neither_write_nor_resize_it() {
        let owner = memory(4096);
        let memfd = owner.share().expect("a mapping").memfd;
        let written = rustix::io::pwrite(&memfd, b"x", 0);
        assert_eq!(written, Err(Errno::PERM));
        assert_eq!(ftruncate(&memfd, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&memfd, 8192), Err(Errno::PERM));
        // SAFETY: a fresh mapping, which is refused.
        let mapped = unsafe {
            mm::mmap(
                ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &memfd,
                0,
            )
        };
        assert_eq!(mapped.err(), Some(Errno::PERM));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&memfd, hole, 0, 4096), Err(Errno::PERM));
        owner.copy_in(0, b"its owner can");
    }

    #[test]
    fn who_gets_shared_memory_cannot_keep_it_from_others() {
        let owner = memory(4096);
        let memfd = owner.share().expect("a mapping").memfd;
        fcntl_add_seals(&memfd, SealFlags::SEAL).expect("anybody may");
        let again = owner.share().expect("for somebody else");
        assert_eq!(View::map(again.memfd, 0, 4096).expect("sealed").len(), 4096);
    }

    #[test]
    fn files_that_could_fault_are_refused() {
        let file = || memfd_create("t", MemfdFlags::ALLOW_SEALING).expect("a memfd");
        let unsealed = file();
        ftruncate(&unsealed, 4096).expect("room");
        let error = View::map(unsealed, 0, 4096).expect_err("it may shrink");
        assert_eq!(error, MapError::NotSealed);
        let plain = File::open("/proc/self/exe").expect("a program");
        let error = View::map(plain.into(), 0, 1).expect_err("it may shrink");
        assert_eq!(error, MapError::NotSealed);
        let share = || memory(4096).share().expect("a mapping").memfd;
        let error = View::map(share(), 4000, 97).expect_err("it ends before");
        assert_eq!(error, MapError::TooShort { file_bytes: 4096 });
        let error = View::map(share(), u64::MAX, 2).expect_err("it wraps");
        assert_eq!(error, MapError::BadRange);
        assert_eq!(View::map(share(), 0, 0).err(), Some(MapError::BadRange));
        assert_eq!(View::map(share(), 4000, 96).expect("it fits").len(), 96);
    }

    #[test]
    fn a_part_is_copied_and_summed() {
        let owner = memory(10_000);
        let bytes: Vec<u8> = (0..=250).cycle().take(10_000).collect();
        owner.copy_in(0, &bytes);
        let share = owner.share().expect("a mapping of its own");
        let view = View::map(share.memfd, 0, 10_000).expect("sealed");
        for (start, len) in [(0, 0), (10_000, 0), (3, 1), (1, 9_999)] {
            let mut copy = vec![0; len];
            let crc = view.copy_out_summed(start, &mut copy);
            assert_eq!(copy, bytes[start..start + len]);
            assert_eq!(crc, lunette_runtime_core::checksum::crc32c(&copy));
        }
    }

    #[test]
    fn what_is_seen_is_summed_where_it_lies() {
        let owner = memory(100_000);
        let bytes: Vec<u8> = (0..=250).cycle().take(100_000).collect();
        owner.copy_in(0, &bytes);
        let view = View::map(owner.share().expect("memory").memfd, 0, 100_000).expect("sealed");
        for (start, len) in [
            (0, 0),
            (100_000, 0),
            (5, 1),
            (0, TURN_BYTES),
            (3, TURN_BYTES + 1),
            (1, 2 * TURN_BYTES - 1),
            (7, 3 * TURN_BYTES),
            (0, 100_000),
        ] {
            let expected = lunette_runtime_core::checksum::crc32c(&bytes[start..start + len]);
            assert_eq!(view.crc32c(start, len), expected, "{start}+{len}");
        }
        let (pages, len) = view.pages();
        assert_eq!((pages, len), (view.start(), 25 * 4096 - 2400));
    }

    #[test]
    #[should_panic(expected = "of a view of 4096 bytes")]
    fn a_sum_of_what_is_beyond_the_end_is_refused() {
        let memfd = memory(4096).share().expect("a mapping").memfd;
        let view = View::map(memfd, 0, 4096).expect("sealed");
        let _sum = view.crc32c(4000, 97);
    }

    #[test]
    #[should_panic(expected = "of a view of 4096 bytes")]
    fn a_summed_copy_from_beyond_the_end_is_refused() {
        let memfd = memory(4096).share().expect("a mapping").memfd;
        let view = View::map(memfd, 0, 4096).expect("sealed");
        view.copy_out_summed(4000, &mut [0; 97]);
    }

    #[test]
    #[should_panic(expected = "of a view of 4096 bytes")]
    fn a_copy_from_beyond_the_end_is_refused() {
        let memfd = memory(4096).share().expect("a mapping").memfd;
        let view = View::map(memfd, 0, 4096).expect("sealed");
        view.copy_out(4000, &memory(97));
    }
}
