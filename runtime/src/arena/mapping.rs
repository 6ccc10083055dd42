//! One memfd, mapped.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::transparent::{self, HUGE_PAGE_BYTES};
use super::{HugePages, Shortfall};

/// A mapping of a memfd of its own, sealed against resizing. It lives as long as the value.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Kept open: peers of the same host and devices get the memory through its descriptor.
    memfd: OwnedFd,
    /// The system is to make huge pages of it, and has not said that it does not.
    is_made_huge: AtomicBool,
}

// SAFETY: what it does on any thread is a call of the system on a range of addresses, whose bytes it neither reads
// nor changes; its only state that changes is atomic, and it is unmapped once, by its last owner. Who reaches the bytes is the
// business of those who hand them out. Holds as long as the value.
unsafe impl Send for Mapping {}

// SAFETY: as above. Holds as long as the value.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, falling back from huge pages to plain ones unless they are required. A
    /// child of a fork does not inherit them.
    pub(super) fn new(
        len: usize,
        huge_pages: HugePages,
        lock: bool,
        shortfalls: &mut Vec<Shortfall>,
    ) -> Result<Self, Errno> {
        let plain = || map_memfd(len, MemfdFlags::empty());
        let pooled = || map_memfd(len, MemfdFlags::HUGETLB);
        let ((memfd, base), is_made_huge) = match huge_pages {
            HugePages::Never => (plain()?, false),
            HugePages::Transparent => (plain()?, true),
            HugePages::Require => (pooled()?, false),
            HugePages::Prefer => match pooled() {
                Ok(mapped) => (mapped, false),
                Err(errno) => {
                    shortfalls.push(Shortfall::HugePages(errno));
                    (plain()?, true)
                }
            },
        };
        // Owned from here on, so that an early return unmaps.
        let mapping = Self {
            base,
            len,
            memfd,
            is_made_huge: AtomicBool::new(is_made_huge),
        };
        mapping.advise(0..len, Advice::LinuxDontFork)?;
        if lock {
            // SAFETY: base..base+len is the live mapping that `mapping` owns; locking changes no
            // byte of it. Ends with the call.
            let locked = unsafe { mm::mlock(mapping.base.as_ptr().cast::<c_void>(), len) };
            if let Err(errno) = locked {
                shortfalls.push(Shortfall::Lock(errno));
            }
        }
        Ok(mapping)
    }

    /// Maps a file of somebody else, who may write it too, for reading and writing. The file has `len`
    /// bytes and cannot shrink: the caller has checked that. A child of a fork does not inherit it.
    pub(super) fn of_file(memfd: OwnedFd, len: usize) -> Result<Self, Errno> {
        let base = map_shared(&memfd, len)?;
        let mapping = Self {
            base,
            len,
            memfd,
            is_made_huge: AtomicBool::new(false),
        };
        mapping.advise(0..len, Advice::LinuxDontFork)?;
        Ok(mapping)
    }

    pub(super) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// A duplicate of the descriptor. Whoever holds one can read the memory, and from now on no other
    /// mapping of it can be made that writes.
    pub(super) fn share(&self) -> Result<OwnedFd, Errno> {
        // Who has it may have sealed the seals, so it is not asked for twice.
        if !fcntl_get_seals(&self.memfd)?.contains(SealFlags::FUTURE_WRITE) {
            fcntl_add_seals(&self.memfd, SealFlags::FUTURE_WRITE)?;
        }
        rustix::io::fcntl_dupfd_cloexec(&self.memfd, 0)
    }

    /// A duplicate of the descriptor, for somebody who is to write the memory too.
    pub(super) fn file(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.memfd, 0)
    }

    /// Populates the pages of a part, with huge ones where they are to be made and can be. What is read or written
    /// there meanwhile waits for them.
    pub(super) fn populate(&self, part: Range<usize>) -> Result<(), Errno> {
        if self.is_made_huge.load(Ordering::Relaxed) {
            match self.make_huge(transparent::whole(&part)) {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY) => {}
                Err(errno) => {
                    tracing::debug!(%errno, "the system makes no huge pages");
                    self.is_made_huge.store(false, Ordering::Relaxed);
                }
            }
        }
        // What is handed out ends anywhere in a page.
        let start = part.start / rustix::param::page_size() * rustix::param::page_size();
        self.advise(start..part.end, Advice::LinuxPopulateWrite)
    }

    /// Whether the system makes huge pages now: one, of which nothing is left.
    pub(super) fn probe_huge() -> Result<(), Errno> {
        let mapping = Self::new(
            HUGE_PAGE_BYTES,
            HugePages::Transparent,
            false,
            &mut Vec::new(),
        )?;
        mapping.make_huge(0..HUGE_PAGE_BYTES)
    }

    /// Makes huge pages of a part that consists of whole ones.
    fn make_huge(&self, part: Range<usize>) -> Result<(), Errno> {
        if part.is_empty() || cfg!(miri) {
            return Ok(());
        }
        let page_bytes = rustix::param::page_size();
        // The system makes them of what has some page already.
        for start in part.clone().step_by(HUGE_PAGE_BYTES) {
            self.advise(start..start + page_bytes, Advice::LinuxPopulateWrite)?;
        }
        assert!(part.end <= self.len, "{part:?}");
        // SAFETY: the assert keeps the part in the live mapping that `self` owns. Ends with the call.
        let start = unsafe { self.base.add(part.start) };
        let start = start.as_ptr().cast::<c_void>();
        // SAFETY: as above.
        unsafe { transparent::make(start, part.len()) }
    }

    /// Whether the system has not said yet that it makes no huge pages of it.
    #[cfg(test)]
    pub(super) fn makes_huge_pages(&self) -> bool {
        self.is_made_huge.load(Ordering::Relaxed)
    }

    /// How many bytes lie in huge pages.
    #[cfg(test)]
    pub(super) fn huge(&self) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
        let begins = format!("{:x}-", self.base.addr());
        let own = maps.lines().skip_while(|line| !line.starts_with(&begins));
        let mut told = own.filter_map(|line| line.strip_prefix("ShmemPmdMapped:"));
        let kib = told.next().and_then(|rest| rest.split_whitespace().next());
        kib.and_then(|kib| kib.parse::<usize>().ok()).expect("KiB") * 1024
    }

    /// How many bytes have pages.
    #[cfg(test)]
    pub(super) fn resident(&self) -> usize {
        let page_bytes = rustix::param::page_size();
        let mut pages = vec![0_u8; self.len.div_ceil(page_bytes)];
        // SAFETY: base..base+len is the live mapping that `self` owns, and `pages` has a byte for each page
        // of it. Ends with the call.
        let told =
            unsafe { libc::mincore(self.base.as_ptr().cast(), self.len, pages.as_mut_ptr()) };
        assert_eq!(told, 0, "it is mapped");
        pages.iter().filter(|page| *page & 1 == 1).count() * page_bytes
    }

    fn advise(&self, part: Range<usize>, advice: Advice) -> Result<(), Errno> {
        assert!(part.start <= part.end && part.end <= self.len, "{part:?}");
        if cfg!(miri) {
            return Ok(());
        }
        // SAFETY: the assert keeps the part in the live mapping that `self` owns. Ends with the call.
        let start = unsafe { self.base.add(part.start) };
        let start = start.as_ptr().cast::<c_void>();
        // SAFETY: as above, and neither advice used here (do not inherit, populate) discards what is there.
        unsafe { mm::madvise(start, part.end - part.start, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_shared` and is owned by `self` alone; every region
        // holds it by count, so none is left. Ends with the call.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert_eq!(unmapped, Ok(()), "unmapping an owned mapping");
    }
}

/// What Miri, which knows no mappings of files, checks regions on: an anonymous mapping, and a
/// descriptor that stands for the memfd.
#[cfg(miri)]
fn map_memfd(len: usize, _extra: MemfdFlags) -> Result<(OwnedFd, NonNull<u8>), Errno> {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a fresh mapping at an address that the system chooses overlaps nothing. Ends at the
    // munmap in `Drop`.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    let file = std::fs::File::open("/dev/null").map_err(|_| Errno::NFILE)?;
    Ok((
        file.into(),
        NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?,
    ))
}

/// A sealed memfd of `len` bytes and its shared mapping.
#[cfg(not(miri))]
fn map_memfd(len: usize, extra: MemfdFlags) -> Result<(OwnedFd, NonNull<u8>), Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | extra;
    let memfd = memfd_create("lunette-arena", flags)?;
    ftruncate(&memfd, u64::try_from(len).expect("a length fits 64 bits"))?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW)?;
    let base = map_shared(&memfd, len)?;
    Ok((memfd, base))
}

/// Maps `len` bytes of a file that has them and is sealed against shrinking (every caller).
fn map_shared(memfd: &OwnedFd, len: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a fresh mapping, which replaces none (an address that is taken is not used), overlaps nothing; the
    // file has `len` bytes and is sealed against shrinking, so no access within `len` can fault. Ends at the munmap
    // in `Drop`.
    let base = unsafe {
        mm::mmap(
            transparent::hint(len),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            memfd,
            0,
        )
    }?;
    Ok(NonNull::new(base.cast::<u8>()).expect("the kernel never maps at null"))
}
