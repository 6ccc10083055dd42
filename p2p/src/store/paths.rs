//! The files of what is received, by their paths.

use std::collections::BTreeSet;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lunette_runtime::control;
use rustix::fs::statvfs;

use super::BufferFile;
use crate::error::FileFault;

/// Files for buffers, each as long as its buffer. Those that it has made are taken away when it is dropped before it is
/// [kept](Self::keep); those that were there stay, and may have become longer or shorter.
#[derive(Debug)]
pub struct ObjectFiles {
    files: Vec<BufferFile>,
    made: Vec<PathBuf>,
}

impl ObjectFiles {
    /// Opens a file for each length, in bytes: makes those that are not there, and has the others be as long, with what
    /// they have in front.
    ///
    /// # Errors
    /// [`FileFault`]: `StorageFull` where the disk has no room for what is to come, as far as it can be told; `InvalidInput`
    /// for one file by two paths; else the system's.
    ///
    /// # Panics
    /// If there is not a path for each length.
    pub async fn open(paths: &[PathBuf], lens: &[u64]) -> Result<Self, FileFault> {
        assert_eq!(paths.len(), lens.len(), "a file for each buffer");
        let mut opened = Self {
            files: Vec::new(),
            made: Vec::new(),
        };
        let mut known = BTreeSet::new();
        for (path, &len_bytes) in paths.iter().zip(lens) {
            let fault = |error: io::Error| FileFault::new(path, &error);
            let place = path.clone();
            let before = blocking(move || look(&place, len_bytes)).await;
            if before.map_err(fault)?.is_none() {
                opened.made.push(path.clone());
            }
            let file = BufferFile::open(path, len_bytes).await.map_err(fault)?;
            opened.files.push(file);
            let place = path.clone();
            let identity = blocking(move || cut(&place, len_bytes)).await;
            if !known.insert(identity.map_err(fault)?) {
                let error = io::Error::new(io::ErrorKind::InvalidInput, "it is named twice");
                return Err(fault(error));
            }
        }
        Ok(opened)
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> Vec<BufferFile> {
        self.files.clone()
    }

    /// Whether one was there before.
    #[must_use]
    pub fn was_any_there(&self) -> bool {
        self.made.len() < self.files.len()
    }

    /// Those that were made stay.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for ObjectFiles {
    fn drop(&mut self) {
        for path in &self.made {
            // Where it was not made there is none.
            let _gone = fs::remove_file(path);
        }
    }
}

/// A call of the control thread.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    control(call).await.map_err(io::Error::other)?
}

/// What there is at a path. Whether the disk has room for the rest is told rather now than when half of it is there.
fn look(path: &Path, len_bytes: u64) -> io::Result<Option<Metadata>> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let folder = path.parent().filter(|it| *it != Path::new(""));
    let disk = statvfs(folder.unwrap_or(Path::new(".")))?;
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    let there_bytes = metadata.as_ref().map_or(0, |it| it.blocks() * 512);
    if len_bytes.saturating_sub(there_bytes) > free_bytes {
        let said = format!("no room: {len_bytes} bytes are to come, and {free_bytes} are free");
        return Err(io::Error::new(io::ErrorKind::StorageFull, said));
    }
    Ok(metadata)
}

/// Takes away what is behind the buffer: it is none of the object's. Which file it is.
fn cut(path: &Path, len_bytes: u64) -> io::Result<(u64, u64)> {
    let file = OpenOptions::new().write(true).open(path)?;
    let metadata = file.metadata()?;
    if metadata.len() > len_bytes {
        file.set_len(len_bytes)?;
    }
    Ok((metadata.dev(), metadata.ino()))
}
