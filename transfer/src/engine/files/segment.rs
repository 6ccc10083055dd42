//! A range of a file.

use std::path::PathBuf;

use lunette_runtime::OpError;
use lunette_runtime::arena::Exposed;
use lunette_runtime::fs::{File, FileError, OpenOptions};
use thiserror::Error;

use crate::source::WriteSource;

/// What part of a file is to be a segment, and how it is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSegmentOptions {
    /// Whether it may be written too. A file that does not exist is made.
    pub write: bool,
    /// Around the page cache (`O_DIRECT`), for every piece whose place, length and memory are aligned as
    /// the file asks; the others go through the cache.
    pub direct: bool,
    /// Where in the file it begins.
    pub offset_bytes: u64,
    /// Its length; by default, all that there is behind `offset_bytes`. A file that may be written is made
    /// that long if it is shorter.
    pub len_bytes: Option<u64>,
}

/// Why a file was not opened as a segment.
#[derive(Debug, Error)]
pub enum FileSegmentError {
    /// The system's reason.
    #[error(transparent)]
    File(#[from] FileError),
    /// The range does not lie in the file.
    #[error("{len_bytes} bytes at {offset_bytes} of a file of {file_bytes}")]
    OutOfRange {
        /// Where it was to begin.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
        /// The file's length.
        file_bytes: u64,
    },
}

/// A range of a file that can be registered as a segment. Clones are handles to the same one; it belongs to
/// the core on which it was opened.
#[derive(Clone, Debug)]
pub struct FileSegment {
    cached: File,
    /// The same file around the page cache.
    direct: Option<File>,
    offset_bytes: u64,
    len_bytes: u64,
}

/// A part of a file segment.
#[derive(Clone, Debug)]
pub(in crate::engine) struct FilePart {
    segment: FileSegment,
    offset_bytes: u64,
    len: usize,
}

impl FileSegment {
    /// Opens a range of a file.
    ///
    /// # Errors
    /// [`FileSegmentError`].
    pub async fn open(
        path: impl Into<PathBuf>,
        options: FileSegmentOptions,
    ) -> Result<Self, FileSegmentError> {
        let path = path.into();
        let opening = OpenOptions {
            read: true,
            write: options.write,
            create: options.write,
            ..OpenOptions::default()
        };
        let cached = File::open(path.clone(), opening).await?;
        let len_bytes = measure(&cached, &options).await?;
        let direct = if options.direct {
            let around = OpenOptions {
                direct: true,
                create: false,
                ..opening
            };
            Some(File::open(path, around).await?)
        } else {
            None
        };
        Ok(Self {
            cached,
            direct,
            offset_bytes: options.offset_bytes,
            len_bytes,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Waits until what has been written, by whomever, is on the device.
    ///
    /// # Errors
    /// [`FileError`]: what was written since the last success may be lost.
    pub async fn sync(&self) -> Result<(), FileError> {
        self.cached.sync_data().await
    }

    /// # Panics
    /// If the part does not lie inside.
    pub(in crate::engine) fn part(&self, offset_bytes: u64, len: usize) -> FilePart {
        let end = offset_bytes.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len_bytes), "inside");
        FilePart {
            segment: self.clone(),
            offset_bytes,
            len,
        }
    }
}

/// How long the segment is; the file is that long afterwards.
async fn measure(file: &File, options: &FileSegmentOptions) -> Result<u64, FileSegmentError> {
    let file_bytes = file.len_bytes().await?;
    let offset_bytes = options.offset_bytes;
    let there = file_bytes.saturating_sub(offset_bytes);
    let len_bytes = options.len_bytes.unwrap_or(there);
    let out_of_range = || FileSegmentError::OutOfRange {
        offset_bytes,
        len_bytes,
        file_bytes,
    };
    let end = offset_bytes
        .checked_add(len_bytes)
        .ok_or_else(out_of_range)?;
    if end > file_bytes {
        if !options.write {
            return Err(out_of_range());
        }
        file.allocate(end).await?;
    }
    Ok(len_bytes)
}

impl FilePart {
    pub(in crate::engine) const fn len(&self) -> usize {
        self.len
    }

    /// Reads it over all of `to`, which is as long.
    pub(in crate::engine) async fn read(&self, to: Exposed) -> Result<(), OpError> {
        let (file, at, len) = self.way(to.start(), to.len());
        file.read_exact_at(to, 0, len, at).await.0
    }

    /// Writes all of `from`, which is as long, over it. Dropping the future does not stop what is on its
    /// way.
    pub(in crate::engine) async fn write(&self, from: WriteSource) -> Result<(), OpError> {
        let (file, at, len) = self.way(from.start(), from.len());
        match from {
            WriteSource::Exposed(from) => file.write_all_at(from, 0, len, at).await.0,
            WriteSource::Region(from) => file.write_all_at(from, 0, len, at).await.0,
        }
    }

    /// By which file it goes between here and memory of that start and length, and where in that it lies.
    fn way(&self, start: usize, len: usize) -> (&File, u64, usize) {
        assert_eq!(len, self.len, "memory of the same length");
        let at = self.segment.offset_bytes + self.offset_bytes;
        let is_aligned = |file: &&File| {
            let align_bytes = file.align_bytes();
            at.is_multiple_of(align_bytes as u64)
                && self.len.is_multiple_of(align_bytes)
                && start.is_multiple_of(align_bytes)
        };
        let direct = self.segment.direct.as_ref().filter(is_aligned);
        (direct.unwrap_or(&self.segment.cached), at, self.len)
    }
}
