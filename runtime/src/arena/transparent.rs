//! Huge pages that the system makes of plain ones.
//!
//! A copy of 1 MiB reads and writes 512 plain pages, and the processor looks up where each of them lies. In huge pages
//! it looks up two. The pool of huge pages (`vm.nr_hugepages`) is empty on most machines, and the system makes huge
//! pages of a file's memory by itself only where an administrator has said so
//! (`transparent_hugepage/shmem_enabled`). Asked to (`MADV_COLLAPSE`, Linux 6.1 on), it makes them of any, of plain
//! pages that are there already, and of what has no pages yet as fast as it clears them.
//!
//! What a file's memory is to be made of is a matter of the file: whoever else maps it, at an address that
//! [`hint`] has chosen, has the same huge pages.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

/// Length of a huge page in bytes, where plain pages have 4 KiB. Elsewhere the system makes none of parts of this length.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Where a mapping of `len` bytes of a file is to lie so that huge pages of the file are huge pages of the mapping.
/// Null where that makes no difference, and where the system says no: it then chooses. The address is free now and is
/// a wish: map it without `MAP_FIXED`, for another thread may have been there first.
pub(super) fn hint(len: usize) -> *mut c_void {
    if len < HUGE_PAGE_BYTES || cfg!(miri) {
        return ptr::null_mut();
    }
    let Some(spacious) = len.checked_add(HUGE_PAGE_BYTES) else {
        return ptr::null_mut();
    };
    // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing. Ends with the `munmap` below.
    let found = unsafe {
        mm::mmap_anonymous(
            ptr::null_mut(),
            spacious,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let Ok(start) = found else {
        return ptr::null_mut();
    };
    // SAFETY: it was mapped above with this length, and nobody else knows of it. Ends with the call.
    let freed = unsafe { mm::munmap(start, spacious) };
    debug_assert_eq!(freed, Ok(()), "unmapping an owned mapping");
    start.with_addr(start.addr().next_multiple_of(HUGE_PAGE_BYTES))
}

/// The whole huge pages of a part of a mapping that begins with one: empty if there are none.
pub(super) fn whole(part: &Range<usize>) -> Range<usize> {
    let start = part.start.next_multiple_of(HUGE_PAGE_BYTES);
    let end = part.end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    start..end.max(start)
}

/// Makes huge pages of `len` bytes at `address`, both of which are multiples of [`HUGE_PAGE_BYTES`], if each of them
/// has a page. What lies there stays.
///
/// # Errors
/// The system's: `AGAIN` and `BUSY` are about what these pages are used for just now, others mean that there are no
/// huge pages to be had.
///
/// # Safety
/// All of it is mapped, until this returns.
pub(super) unsafe fn make(address: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise; this advice changes neither what lies there nor who may use it.
    let said = unsafe { libc::madvise(address, len, MADV_COLLAPSE) };
    match said {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// `include/uapi/asm-generic/mman-common.h`.
const MADV_COLLAPSE: libc::c_int = 25;

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = HUGE_PAGE_BYTES;

    #[test]
    fn only_whole_huge_pages_are_made() {
        for (part, expected) in [
            (0..UNIT, 0..UNIT),
            (0..UNIT - 1, 0..0),
            (1..UNIT, UNIT..UNIT),
            (1..2 * UNIT + 5, UNIT..2 * UNIT),
            (4096..8192, UNIT..UNIT),
            (UNIT..4 * UNIT, UNIT..4 * UNIT),
        ] {
            assert_eq!(whole(&part), expected, "{part:?}");
        }
    }

    #[test]
    fn a_wish_is_a_place_for_huge_pages_and_free() {
        assert!(hint(UNIT - 1).is_null());
        assert!(hint(usize::MAX).is_null());
        let wish = hint(3 * UNIT);
        assert!(wish.addr().is_multiple_of(UNIT));
        if !cfg!(miri) {
            assert!(!wish.is_null());
        }
    }
}
