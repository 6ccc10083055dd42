//! A disk on a file, a block device, or an NVMe namespace's character device: around the page cache
//! where that is possible, and around the block layer for the last.

use std::io;
use std::path::{Path, PathBuf};

use lunette_nvmeof_proto::completion::Status;
use lunette_runtime::arena::{AllocError, Region};
use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_runtime::{OpError, arena};
use rustix::io::Errno;
use thiserror::Error;

use super::room;

/// Zeroes that are written at once.
const ZERO_BYTES: usize = 256 * 1024;

/// Why a file cannot serve as a disk.
#[derive(Debug, Error)]
pub enum FileDiskError {
    /// It cannot be opened.
    #[error("{path}: {error}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        error: FileError,
    },
    /// Its length cannot be found.
    #[error("{path}: {error}")]
    Length {
        /// The file.
        path: PathBuf,
        /// Why.
        error: FileError,
    },
    /// What it lies on has larger blocks than it is to have.
    #[error(
        "{path}: blocks of {block_bytes} bytes are no multiple of its own, {align_bytes} bytes"
    )]
    Block {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        block_bytes: u32,
        /// What reads and writes of it are multiples of.
        align_bytes: usize,
    },
    /// There is no memory for a piece of zeroes.
    #[error(transparent)]
    Memory(#[from] AllocError),
    /// It is shorter than a block.
    #[error("{path}: shorter than a block")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// A disk on a file. Its length is that of the file when it was opened.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    zeroes: Region,
    len_bytes: u64,
}

impl FileDisk {
    /// Opens a file that exists, for reading and writing. The length is rounded down to blocks of
    /// `block_bytes`.
    ///
    /// The character device of an NVMe namespace (`/dev/ng0n1`) is read and written by commands to
    /// the drive, and what the drive answers to one is what the host is told.
    ///
    /// # Errors
    /// [`FileDiskError`].
    pub async fn open(path: &Path, block_bytes: u32) -> Result<Self, FileDiskError> {
        let named = || path.to_owned();
        let file = opened(path).await.map_err(|error| FileDiskError::Open {
            path: named(),
            error,
        })?;
        let align_bytes = file.align_bytes();
        if block_bytes == 0 || !(block_bytes as usize).is_multiple_of(align_bytes) {
            return Err(FileDiskError::Block {
                path: named(),
                block_bytes,
                align_bytes,
            });
        }
        let length = file.len_bytes().await;
        let whole_bytes = length.map_err(|error| FileDiskError::Length {
            path: named(),
            error,
        })?;
        let len_bytes = whole_bytes - whole_bytes % u64::from(block_bytes);
        if len_bytes == 0 {
            return Err(FileDiskError::Empty { path: named() });
        }
        let mut zeroes = arena().alloc(ZERO_BYTES)?;
        zeroes.as_mut_slice().fill(0);
        Ok(Self {
            file,
            zeroes: zeroes.freeze(),
            len_bytes,
        })
    }

    /// What a block's length is a multiple of, in bytes.
    pub(crate) const fn align_bytes(&self) -> usize {
        self.file.align_bytes()
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(super) async fn read(&self, offset: u64, len: usize) -> Result<Region, Status> {
        let region = room(len).await.ok_or(Status::NAMESPACE_NOT_READY)?;
        let (result, region) = self.file.read_exact_at(region, 0, len, offset).await;
        result.map_err(|error| status_of(error, Status::UNRECOVERED_READ))?;
        Ok(region.freeze())
    }

    pub(super) async fn write(&self, offset: u64, bytes: Region) -> Result<(), Status> {
        let len = bytes.len();
        let (result, _bytes) = self.file.write_all_at(bytes, 0, len, offset).await;
        result.map_err(|error| status_of(error, Status::WRITE_FAULT))
    }

    pub(super) async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Status> {
        let mut done = 0;
        while done < len {
            let count = (len - done).min(ZERO_BYTES as u64);
            let count = usize::try_from(count).expect("a piece is short");
            self.write(offset + done, self.zeroes.slice(0, count))
                .await?;
            done += count as u64;
        }
        Ok(())
    }

    pub(super) async fn flush(&self) -> Result<(), Status> {
        self.file.sync_data().await.map_err(|error| {
            tracing::warn!(%error, "flush");
            Status::WRITE_FAULT
        })
    }
}

/// Opens it for direct access, where it has that.
async fn opened(path: &Path) -> Result<File, FileError> {
    let direct = OpenOptions {
        read: true,
        write: true,
        create: false,
        direct: true,
        polled: false,
    };
    match File::open(path, direct).await {
        // The file system has no direct access.
        Err(FileError::Io(error)) if error.kind() == io::ErrorKind::InvalidInput => {
            tracing::warn!(path = %path.display(), "no direct access: through the page cache");
            let buffered = OpenOptions {
                direct: false,
                ..direct
            };
            File::open(path, buffered).await
        }
        opened => opened,
    }
}

/// What the host is told of a failure; `status`, where nothing more is known.
fn status_of(error: OpError, status: Status) -> Status {
    if error.is_backpressure() {
        return Status::NAMESPACE_NOT_READY;
    }
    tracing::warn!(%error, "disk");
    match error {
        OpError::Nvme(bits) => passed_on(Status::from_bits(bits)).unwrap_or(status),
        OpError::Os(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Status::CAPACITY_EXCEEDED,
        _ => status,
    }
}

/// A drive's status as ours: its type and code, and whether to try again. That its log has more of
/// it, and after what delay of its own to try again, says nothing of us; nor do its paths, of which
/// our host knows nothing.
fn passed_on(found: Status) -> Option<Status> {
    if found.is_success() {
        return None;
    }
    let plain = if found.is_path_error() {
        Status::PATH_INTERNAL
    } else {
        Status::from_bits(found.code())
    };
    Some(if found.is_retryable() {
        plain
    } else {
        plain.do_not_retry()
    })
}

#[cfg(test)]
mod tests {
    use lunette_runtime::{CoreOptions, block_on};

    use super::*;

    #[test]
    fn what_a_drive_answered_is_what_the_host_is_told() {
        let told = |bits| status_of(OpError::Nvme(bits), Status::WRITE_FAULT);
        // More in the log, and a delay: neither is ours.
        assert_eq!(told(0x2000 | 0x1000 | 0x0281), Status::UNRECOVERED_READ);
        let denied = told(0x4000 | 0x0080);
        assert_eq!(denied, Status::LBA_OUT_OF_RANGE.do_not_retry());
        assert_eq!(told(0x0371), Status::PATH_INTERNAL);
        assert_eq!(told(0x4303), Status::PATH_INTERNAL.do_not_retry());
        assert_eq!(told(0), Status::WRITE_FAULT, "no failure is no answer");
    }

    #[test]
    fn what_the_system_says_has_a_status() {
        let told = |error| status_of(error, Status::UNRECOVERED_READ);
        assert_eq!(told(OpError::TooManyInFlight), Status::NAMESPACE_NOT_READY);
        assert_eq!(told(OpError::Os(Errno::NOSPC)), Status::CAPACITY_EXCEEDED);
        assert_eq!(told(OpError::Os(Errno::IO)), Status::UNRECOVERED_READ);
    }

    #[test]
    fn a_block_is_made_of_whole_blocks_of_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(10_000).expect("room");
        let ran = block_on(None, CoreOptions::default(), || async move {
            let disk = FileDisk::open(file.path(), 4096).await.expect("opened");
            assert_eq!(disk.len_bytes(), 8192);
            let align_bytes = disk.align_bytes();
            let opened = FileDisk::open(file.path(), 65_536).await;
            assert!(matches!(opened, Err(FileDiskError::Empty { .. })));
            // Through the page cache any other length does.
            let short = u32::try_from(align_bytes / 2).expect("small");
            for block_bytes in [0, short] {
                let opened = FileDisk::open(file.path(), block_bytes).await;
                assert!(matches!(opened, Err(FileDiskError::Block { .. })));
            }
        });
        ran.expect("a core");
    }

    #[test]
    fn bytes_that_the_file_has_lost_are_a_failed_read() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(8192).expect("room");
        let ran = block_on(None, CoreOptions::default(), || async move {
            let disk = FileDisk::open(file.path(), 4096).await.expect("opened");
            disk.read(4096, 4096).await.expect("read");
            file.as_file().set_len(4096).expect("cut");
            let read = disk.read(4096, 4096).await.map(drop);
            assert_eq!(read, Err(Status::UNRECOVERED_READ));
        });
        ran.expect("a core");
    }
}
