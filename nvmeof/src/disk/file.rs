//! A disk on a file or block device, around the page cache where that is possible.

use std::io;
use std::path::{Path, PathBuf};

use lunette_nvmeof_proto::completion::Status;
use lunette_runtime::arena::{AllocError, Region};
use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_runtime::{ControlError, OpError, arena, control};
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
        error: io::Error,
    },
    /// The control thread did not take the call.
    #[error(transparent)]
    Control(#[from] ControlError),
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
    /// # Errors
    /// [`FileDiskError`].
    pub async fn open(path: &Path, block_bytes: u32) -> Result<Self, FileDiskError> {
        let options = OpenOptions {
            read: true,
            write: true,
            create: false,
            direct: true,
            polled: false,
        };
        let file = match File::open(path, options).await {
            // The file system has no direct access.
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::warn!(path = %path.display(), "no direct access: through the page cache");
                let buffered = OpenOptions {
                    direct: false,
                    ..options
                };
                File::open(path, buffered).await
            }
            opened => opened,
        };
        let file = file.map_err(|error| FileDiskError::Open {
            path: path.to_owned(),
            error,
        })?;
        let whole_bytes = length_of(path).await?;
        let len_bytes = whole_bytes - whole_bytes % u64::from(block_bytes);
        if len_bytes == 0 {
            let path = path.to_owned();
            return Err(FileDiskError::Empty { path });
        }
        let mut zeroes = arena().alloc(ZERO_BYTES)?;
        zeroes.as_mut_slice().fill(0);
        Ok(Self {
            file,
            zeroes: zeroes.freeze(),
            len_bytes,
        })
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

fn status_of(error: OpError, status: Status) -> Status {
    if error.is_backpressure() {
        return Status::NAMESPACE_NOT_READY;
    }
    tracing::warn!(%error, "disk");
    status
}

/// Of a block device, its size is where its end is.
async fn length_of(path: &Path) -> Result<u64, FileDiskError> {
    let owned = path.to_owned();
    let found = control(move || {
        use io::Seek as _;
        std::fs::File::open(owned)?.seek(io::SeekFrom::End(0))
    });
    found.await?.map_err(|error| FileDiskError::Length {
        path: path.to_owned(),
        error,
    })
}
