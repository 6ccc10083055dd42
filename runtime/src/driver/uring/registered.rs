//! Files and memory that the ring knows by index: no look-up of a descriptor, no pinning of pages,
//! for each operation.

use std::os::fd::RawFd;

use io_uring::Submitter;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Files that a ring knows by index; further ones go by their descriptor.
const FILES_MAX: u32 = 4096;
/// Pieces of memory that a ring knows by index; others are pinned by each operation.
pub(super) const BUFFERS_MAX: u32 = 64;
/// An entry of the table of files that names none.
const NO_FILE: RawFd = -1;

/// The table of files.
#[derive(Debug, Default)]
pub(super) struct Files {
    free: Vec<u32>,
    /// Entries never used so far, from here to `len`.
    fresh: u32,
    len: u32,
}

impl Files {
    /// An empty table, as large as the limit on open files allows. None where it is refused.
    pub(super) fn register(submitter: &Submitter<'_>) -> Self {
        let open_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let len = u32::try_from(open_max).map_or(FILES_MAX, |most| most.min(FILES_MAX));
        match submitter.register_files_sparse(len) {
            Ok(()) => Self {
                len,
                ..Self::default()
            },
            Err(_) => Self::default(),
        }
    }

    pub(super) const fn offers_any(&self) -> bool {
        self.len > 0
    }

    /// The index at which the ring now knows `fd`, if there is room.
    pub(super) fn add(&mut self, submitter: &Submitter<'_>, fd: RawFd) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.fresh < self.len => self.fresh,
            None => return None,
        };
        if !matches!(submitter.register_files_update(slot, &[fd]), Ok(1)) {
            if slot != self.fresh {
                self.free.push(slot);
            }
            return None;
        }
        self.fresh = self.fresh.max(slot + 1);
        Some(slot)
    }

    /// Forgets a file. The kernel closes its side when the last operation on it has ended.
    pub(super) fn remove(&mut self, submitter: &Submitter<'_>, slot: u32) {
        if matches!(submitter.register_files_update(slot, &[NO_FILE]), Ok(1)) {
            self.free.push(slot);
        } else {
            tracing::error!(slot, "a registered file could not be forgotten");
        }
    }
}

/// A piece of memory that the ring knows by its place in the list.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    end: usize,
}

/// The table of memory.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    ranges: Vec<Range>,
}

/// Whether the kernel keeps a table of memory for this ring; makes it, empty.
pub(super) fn offers_buffers(submitter: &Submitter<'_>) -> bool {
    submitter.register_buffers_sparse(BUFFERS_MAX).is_ok()
}

impl Buffers {
    /// Makes `len` bytes at `address` known to the ring, unless they are.
    ///
    /// The caller keeps them mapped as long as the ring lives.
    pub(super) fn add(
        &mut self,
        submitter: &Submitter<'_>,
        address: *mut u8,
        len: usize,
    ) -> Result<(), Errno> {
        let index = u32::try_from(self.ranges.len()).expect("the table is bounded");
        if index >= BUFFERS_MAX {
            return Err(Errno::NOSPC);
        }
        let start = address.addr();
        if self.ranges.iter().any(|range| range.start == start) {
            return Ok(());
        }
        let iov = libc::iovec {
            iov_base: address.cast(),
            iov_len: len,
        };
        // SAFETY: the caller's promise: the memory stays mapped as long as the ring. The kernel
        // touches it only for operations, which name parts that their leases own.
        let done = unsafe { submitter.register_buffers_update(index, &[iov], None) };
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let end = start + len;
        self.ranges.push(Range { start, end });
        Ok(())
    }

    /// The index of the registered memory that holds all of `len` bytes at `address`.
    pub(super) fn index_of(&self, address: *const u8, len: u32) -> Option<u16> {
        let start = address.addr();
        let end = start + len as usize;
        let holds = |range: &Range| range.start <= start && end <= range.end;
        let index = self.ranges.iter().position(holds)?;
        u16::try_from(index).ok()
    }
}
