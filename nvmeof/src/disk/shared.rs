//! A disk in memory that the cores of one server share.
//!
//! Its bytes are copied to and from the commands' own memory, a granule at a time under its lock: so
//! a block is always one that somebody wrote (NVM Command Set 1.0, "Atomic Operations"), and what a
//! read was given never changes.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use lunette_nvmeof_proto::completion::Status;
use lunette_runtime::arena;
use lunette_runtime::arena::{Exposed, HugePages, Region, SharedMemory};
use rustix::io::Errno;

use super::GRANULE_BYTES;

/// Memory that cores share, as a disk: it may be sent to each of them, and is
/// [opened](SharedDisk::here) there.
#[derive(Clone, Debug)]
pub struct SharedDisk {
    memory: SharedMemory,
    locks: Arc<[RwLock<()>]>,
}

/// A [`SharedDisk`], as one core reaches it.
#[derive(Debug)]
pub struct SharedDiskHere {
    memory: Exposed,
    locks: Arc<[RwLock<()>]>,
    zeroes: Box<[u8]>,
}

impl SharedDisk {
    /// A disk of `len_bytes`, rounded up to whole granules; it reads as zeroes. The system gives
    /// memory as it is written, and keeps it.
    ///
    /// # Errors
    /// The system's: there is not that much memory to be had.
    pub fn new(len_bytes: u64) -> Result<Self, Errno> {
        let granules = len_bytes.div_ceil(GRANULE_BYTES as u64);
        let granules = usize::try_from(granules).map_err(|_| Errno::NOMEM)?;
        let len = granules.checked_mul(GRANULE_BYTES).ok_or(Errno::NOMEM)?;
        let memory = SharedMemory::map(len, HugePages::Never, &mut Vec::new())?;
        let locks = (0..granules).map(|_| RwLock::new(()));
        Ok(Self {
            memory,
            locks: locks.collect(),
        })
    }

    /// The disk on this core.
    #[must_use]
    pub fn here(&self) -> SharedDiskHere {
        SharedDiskHere {
            memory: self.memory.here(Arc::new(())),
            locks: Arc::clone(&self.locks),
            zeroes: vec![0; GRANULE_BYTES].into(),
        }
    }
}

impl SharedDiskHere {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Result<Region, Status> {
        let room = arena().alloc(len);
        let mut room = room.map_err(|_full| Status::NAMESPACE_NOT_READY)?;
        let mut rest = room.as_mut_slice();
        for piece in pieces(offset, len as u64) {
            let (front, behind) = rest.split_at_mut(piece.len());
            let lock = &self.locks[piece.start / GRANULE_BYTES];
            let reading = lock.read().unwrap_or_else(PoisonError::into_inner);
            self.memory.copy_out(piece.start, front);
            drop(reading);
            rest = behind;
        }
        Ok(room.freeze())
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces(offset, rest.len() as u64) {
            let (front, behind) = rest.split_at(piece.len());
            self.put(piece.start, front);
            rest = behind;
        }
    }

    pub(super) fn write_zeroes(&self, offset: u64, len: u64) {
        for piece in pieces(offset, len) {
            self.put(piece.start, &self.zeroes[..piece.len()]);
        }
    }

    fn put(&self, start: usize, bytes: &[u8]) {
        let lock = &self.locks[start / GRANULE_BYTES];
        let writing = lock.write().unwrap_or_else(PoisonError::into_inner);
        self.memory.copy_in(start, bytes);
        drop(writing);
    }
}

/// The parts of a range, each within one granule.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Range<usize>> {
    let at = |byte: u64| usize::try_from(byte).expect("within the disk's memory");
    let (mut start, end) = (at(offset), at(offset + len));
    core::iter::from_fn(move || {
        let next = end.min((start / GRANULE_BYTES + 1) * GRANULE_BYTES);
        let piece = start..next;
        start = next;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use lunette_runtime::{CoreOptions, block_on};

    use super::*;

    const BLOCK_BYTES: usize = 4096;

    #[test]
    fn ranges_are_cut_at_granules() {
        let granule = GRANULE_BYTES as u64;
        let cut: Vec<_> = pieces(granule - 1, granule + 2).collect();
        let whole = GRANULE_BYTES..2 * GRANULE_BYTES;
        let ends = [
            GRANULE_BYTES - 1..GRANULE_BYTES,
            2 * GRANULE_BYTES..2 * GRANULE_BYTES + 1,
        ];
        assert_eq!(cut, [ends[0].clone(), whole, ends[1].clone()]);
        assert_eq!(pieces(5, 0).count(), 0);
    }

    #[test]
    fn blocks_are_whole_whoever_writes_them() {
        let disk = SharedDisk::new(1).expect("memory");
        let writers = (1..=2_u8).map(|byte| {
            let disk = disk.clone();
            thread::spawn(move || {
                let work = move || async move {
                    let here = disk.here();
                    for _ in 0..300 {
                        let mut region = arena().alloc(2 * BLOCK_BYTES).expect("room");
                        region.as_mut_slice().fill(byte);
                        here.write(0, region.as_slice());
                        let read = here.read(0, BLOCK_BYTES).expect("room");
                        let first = read.as_slice()[0];
                        assert!((1..=2).contains(&first));
                        assert!(read.as_slice().iter().all(|&found| found == first));
                    }
                };
                block_on(None, CoreOptions::default(), work).expect("a core");
            })
        });
        let writers: Vec<_> = writers.collect();
        for writer in writers {
            writer.join().expect("no panic");
        }
        let ran = block_on(None, CoreOptions::default(), move || async move {
            let here = disk.here();
            assert_eq!(here.len_bytes(), GRANULE_BYTES as u64);
            here.write_zeroes(512, 512);
            let read = here.read(0, 2048).expect("room");
            let zeroes: Vec<bool> = read.as_slice().chunks(512).map(|c| c == [0; 512]).collect();
            assert_eq!(zeroes, [false, true, false, false]);
        });
        ran.expect("a core");
    }
}
