//! What a namespace's bytes lie on.
//!
//! | module | subject |
//! |---|---|
//! | `memory` | regions of the core's arena |
//! | `shared` | memory that the cores of one server share |
//! | `file` | a file, a block device or a drive's namespace |
//! | `room` | memory for a command |

mod file;
mod memory;
mod room;
mod shared;

use lunette_nvmeof_proto::completion::Status;
use lunette_runtime::arena::{Region, RegionMut};

pub use file::{FileDisk, FileDiskError};
pub use memory::{GRANULE_BYTES, MemoryDisk};
pub(crate) use room::room;
pub use shared::{SharedDisk, SharedDiskHere};

/// What a read found: regions, in order.
#[derive(Debug)]
pub(crate) enum Found {
    /// As nearly always.
    One(Region),
    Several(Vec<Region>),
}

impl Found {
    pub(crate) fn regions(&self) -> &[Region] {
        match self {
            Self::One(region) => std::slice::from_ref(region),
            Self::Several(regions) => regions,
        }
    }
}

/// A disk: offsets and lengths are multiples of a block.
#[derive(Debug)]
pub enum Disk {
    /// See [`MemoryDisk`].
    Memory(MemoryDisk),
    /// See [`SharedDisk`].
    Shared(SharedDiskHere),
    /// See [`FileDisk`].
    File(FileDisk),
}

impl Disk {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Memory(disk) => disk.len_bytes(),
            Self::Shared(disk) => disk.len_bytes(),
            Self::File(disk) => disk.len_bytes(),
        }
    }

    /// What a block's length is a multiple of, in bytes.
    pub(crate) const fn align_bytes(&self) -> usize {
        match self {
            Self::Memory(_) | Self::Shared(_) => 1,
            Self::File(disk) => disk.align_bytes(),
        }
    }

    /// Whether a write may be lost until a flush.
    #[must_use]
    pub const fn caches_writes(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Whether nothing that is asked of it ever waits.
    pub(crate) const fn is_immediate(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::Shared(_))
    }

    /// The bytes of a range, in order.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Found, Status> {
        match self {
            Self::File(disk) => Ok(Found::One(disk.read(offset, len).await?)),
            Self::Memory(_) | Self::Shared(_) => {
                let found = self.read_at_once(offset, len);
                found.expect("it is immediate")
            }
        }
    }

    /// As [`Disk::read`], if the disk is [immediate](Disk::is_immediate).
    pub(crate) fn read_at_once(&self, offset: u64, len: usize) -> Option<Result<Found, Status>> {
        match self {
            Self::Memory(disk) => Some(Ok(disk.read(offset, len))),
            Self::Shared(disk) => Some(disk.read(offset, len).map(Found::One)),
            Self::File(_) => None,
        }
    }

    /// Overwrites a range with all of `bytes`.
    pub(crate) async fn write(&self, offset: u64, bytes: RegionMut) -> Result<(), Status> {
        match self {
            Self::Memory(disk) => disk.write(offset, bytes),
            Self::Shared(disk) => {
                disk.write(offset, bytes.as_slice());
                Ok(())
            }
            Self::File(disk) => disk.write(offset, bytes.freeze()).await,
        }
    }

    /// Overwrites a range with bytes that are the caller's, if the disk is
    /// [immediate](Disk::is_immediate).
    pub(crate) fn write_at_once(&self, offset: u64, bytes: &[u8]) -> Option<Result<(), Status>> {
        match self {
            Self::Memory(disk) => Some(disk.write_bytes(offset, bytes)),
            Self::Shared(disk) => {
                disk.write(offset, bytes);
                Some(Ok(()))
            }
            Self::File(_) => None,
        }
    }

    /// Fills a range with zeroes.
    pub(crate) async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Status> {
        match self {
            Self::Memory(disk) => disk.write_zeroes(offset, len),
            Self::Shared(disk) => {
                disk.write_zeroes(offset, len);
                Ok(())
            }
            Self::File(disk) => disk.write_zeroes(offset, len).await,
        }
    }

    /// A range need not be kept: it may read as zeroes from here on.
    pub(crate) fn deallocate(&self, offset: u64, len: u64) {
        match self {
            Self::Memory(disk) => disk.deallocate(offset, len),
            // A hint; what is there stays there.
            Self::File(_) | Self::Shared(_) => {}
        }
    }

    /// What has been written is to last.
    pub(crate) async fn flush(&self) -> Result<(), Status> {
        match self {
            Self::Memory(_) | Self::Shared(_) => Ok(()),
            Self::File(disk) => disk.flush().await,
        }
    }
}
