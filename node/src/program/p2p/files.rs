//! Buffers from files, and files that are buffers.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use lunette::runtime::arena::{Exposed, HugePages};
use lunette::runtime::fs::{self, FileError};
use lunette::runtime::time;
use lunette_p2p::BufferFile;

use super::failure::{Outcome, P2pFailure};

/// Bytes of a piece.
const PIECE_BYTES: usize = 1 << 20;

fn of_file(path: &Path) -> impl FnOnce(io::Error) -> P2pFailure {
    let path = path.to_owned();
    move |error| P2pFailure::File { path, error }
}

/// A buffer of so many bytes, all 0.
pub(super) fn buffer(len_bytes: u64) -> Outcome<Exposed> {
    let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
    // There is no mapping of nothing.
    let mapped = Exposed::map(len.max(1), HugePages::Prefer, &mut Vec::new());
    let mapped = mapped.map_err(|error| P2pFailure::Memory(error.into()))?;
    Ok(mapped.slice(0, len))
}

/// The bytes of files.
pub(super) async fn read_all(paths: &[PathBuf]) -> Outcome<Vec<Exposed>> {
    let mut buffers = Vec::new();
    for path in paths {
        buffers.push(read(path).await?);
    }
    Ok(buffers)
}

/// A file's bytes, in pieces, between which the core does what else there is.
async fn read(path: &Path) -> Outcome<Exposed> {
    let mut file = File::open(path).map_err(of_file(path))?;
    let metadata = file.metadata().map_err(of_file(path))?;
    let buffer = buffer(metadata.len())?;
    fill(&mut file, &buffer).await.map_err(of_file(path))?;
    Ok(buffer)
}

/// Reads until the buffer is full or the file ends.
async fn fill(file: &mut File, buffer: &Exposed) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES.min(buffer.len())];
    let mut at = 0;
    while at < buffer.len() {
        let wanted = piece.len().min(buffer.len() - at);
        let count = file.read(&mut piece[..wanted])?;
        if count == 0 {
            return Ok(());
        }
        buffer.copy_in(at, &piece[..count]);
        at += count;
        time::yield_now().await;
    }
    Ok(())
}

/// Files that are there, each a buffer of an object.
pub(super) async fn existing(paths: &[PathBuf]) -> Outcome<Vec<BufferFile>> {
    let mut files = Vec::new();
    for path in paths {
        let opened = BufferFile::existing(path).await;
        files.push(opened.map_err(of_file(path))?);
    }
    Ok(files)
}

/// Writes the beginning of a file.
pub(super) async fn write_head(path: &Path, head: Vec<u8>) -> Outcome<()> {
    let failed = |error| of_file(path)(error);
    let opened = fs::File::open(path, fs::OpenOptions::READ_WRITE).await;
    let file = opened.map_err(|error| match error {
        FileError::Io(error) => failed(error),
        FileError::Control(error) => failed(io::Error::other(error)),
    })?;
    let len = head.len();
    let (written, _) = file.write_all_at(head, 0, len, 0).await;
    written.map_err(|error| failed(io::Error::other(error)))
}
