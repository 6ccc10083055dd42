//! One memfd, mapped and carved.

use std::cell::RefCell;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use lunette_runtime_core::carve::{Carved, Carver};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::{ArenaOptions, HugePages, Shortfall};

/// A mapped chunk. The mapping lives as long as the chunk; regions hold the chunk by count.
pub(super) struct Chunk {
    index: u32,
    base: NonNull<u8>,
    len: usize,
    carver: RefCell<Carver>,
    /// Kept open: peers of the same host and devices get the chunk through its descriptor.
    _memfd: OwnedFd,
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
        let (memfd, base) = match options.huge_pages {
            HugePages::Never => map_memfd(len, MemfdFlags::empty())?,
            HugePages::Require => map_memfd(len, MemfdFlags::HUGETLB)?,
            HugePages::Prefer => map_memfd(len, MemfdFlags::HUGETLB).or_else(|errno| {
                shortfalls.push(Shortfall::HugePages(errno));
                map_memfd(len, MemfdFlags::empty())
            })?,
        };
        let carver = RefCell::new(Carver::new(u32::try_from(len).expect("chunks are bounded")));
        // Owned from here on, so that an early return unmaps.
        let chunk = Self {
            index,
            base,
            len,
            carver,
            _memfd: memfd,
        };
        chunk.advise(Advice::LinuxDontFork)?;
        if options.lock {
            // SAFETY: base..base+len is the live mapping that `chunk` owns; locking changes no
            // byte of it. Ends with the call.
            let locked = unsafe { mm::mlock(chunk.base.as_ptr().cast::<c_void>(), len) };
            if let Err(errno) = locked {
                shortfalls.push(Shortfall::Lock(errno));
            }
        }
        Ok(chunk)
    }

    pub(super) const fn index(&self) -> u32 {
        self.index
    }

    pub(super) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn used_bytes(&self) -> usize {
        usize::try_from(self.carver.borrow().used_bytes()).expect("a chunk fits memory")
    }

    /// Populates every page.
    pub(super) fn prefault(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxPopulateWrite)
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
        assert!(offset + carved.len_bytes as usize <= self.len);
        // SAFETY: the assert keeps base+offset inside the mapping that `self` owns; valid until
        // the chunk drops, which the region's count on it prevents.
        unsafe { self.base.add(offset) }
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        if cfg!(miri) {
            return Ok(());
        }
        // SAFETY: base..base+len is the live mapping that `self` owns, and neither advice used
        // here (do not inherit, populate) discards its content. Ends with the call.
        unsafe { mm::madvise(self.base.as_ptr().cast::<c_void>(), self.len, advice) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_memfd` and is owned by `self` alone; every region
        // holds the chunk by count, so none is left. Ends with the call.
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
    let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
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
    // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing; the file is
    // sealed against shrinking, so no access within `len` can fault. Ends at the munmap in `Drop`.
    let base = unsafe {
        mm::mmap(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &memfd,
            0,
        )
    }?;
    let base = NonNull::new(base.cast::<u8>()).expect("the kernel never maps at null");
    Ok((memfd, base))
}
