//! Files that buffers lie in.

use std::io;
use std::path::{Path, PathBuf};

use lunette_runtime::fs::{File, FileError, OpenOptions};
use lunette_transfer::engine::{FileSegment, FileSegmentError, FileSegmentOptions};

/// A file that an object's buffer lies in ([`Store::receive_files`](super::Store::receive_files),
/// [`Store::register_files`](super::Store::register_files)). Clones are handles to the same one; it belongs to the core on
/// which it was opened.
#[derive(Clone, Debug)]
pub struct BufferFile {
    pub(super) file: File,
    pub(super) segment: FileSegment,
    pub(super) is_to_write: bool,
}

impl BufferFile {
    /// Opens a file for a buffer of so many bytes; makes it, or makes it longer, where it is not that long. What is behind
    /// these is left as it is.
    ///
    /// # Errors
    /// The system's.
    pub async fn open(path: &Path, len_bytes: u64) -> Result<Self, io::Error> {
        Self::open_as(path, Some(len_bytes)).await
    }

    /// Opens a file as it is, to be read: for [`Store::register_files`](super::Store::register_files).
    ///
    /// # Errors
    /// The system's.
    pub async fn existing(path: &Path) -> Result<Self, io::Error> {
        Self::open_as(path, None).await
    }

    /// To be written, if its length is given.
    async fn open_as(path: &Path, len_bytes: Option<u64>) -> Result<Self, io::Error> {
        let path: PathBuf = path.to_owned();
        let is_to_write = len_bytes.is_some();
        let options = FileSegmentOptions {
            write: is_to_write,
            len_bytes,
            ..FileSegmentOptions::default()
        };
        let segment = FileSegment::open(path.clone(), options).await;
        let segment = segment.map_err(|error| match error {
            FileSegmentError::File(error) => of_file(error),
            FileSegmentError::OutOfRange { .. } => io::Error::other(error),
        })?;
        let opening = if is_to_write {
            OpenOptions::READ_WRITE
        } else {
            OpenOptions::READ
        };
        let file = File::open(path, opening).await.map_err(of_file)?;
        Ok(Self {
            file,
            segment,
            is_to_write,
        })
    }

    /// How long the buffer is, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.segment.len_bytes()
    }
}

pub(super) fn of_file(error: FileError) -> io::Error {
    match error {
        FileError::Io(error) => error,
        FileError::Control(error) => io::Error::other(error),
    }
}
