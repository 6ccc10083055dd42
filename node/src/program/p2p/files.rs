//! Buffers from files, and files from buffers.
//!
//! Both go in pieces, between which the core does what else there is: a store serves while its files are written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use lunette::runtime::arena::{Exposed, HugePages};
use lunette::runtime::time;

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

/// A file's bytes.
pub(super) async fn read(path: &Path) -> Outcome<Exposed> {
    let mut file = File::open(path).map_err(of_file(path))?;
    let metadata = file.metadata().map_err(of_file(path))?;
    let buffer = buffer(metadata.len())?;
    fill(&mut file, &buffer).await.map_err(of_file(path))?;
    Ok(buffer)
}

/// As many of a file's bytes as fit, if there is such a file. Whether there is.
pub(super) async fn read_into(path: &Path, buffer: &Exposed) -> Outcome<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(of_file(path)(error)),
    };
    fill(&mut file, buffer).await.map_err(of_file(path))?;
    Ok(true)
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

/// Writes buffers to files, one each.
pub(super) async fn write(paths: &[PathBuf], buffers: &[Exposed]) -> Outcome<()> {
    for (path, buffer) in paths.iter().zip(buffers) {
        let mut file = File::create(path).map_err(of_file(path))?;
        let mut piece = vec![0; PIECE_BYTES.min(buffer.len())];
        let mut at = 0;
        while at < buffer.len() {
            let count = piece.len().min(buffer.len() - at);
            buffer.copy_out(at, &mut piece[..count]);
            file.write_all(&piece[..count]).map_err(of_file(path))?;
            at += count;
            time::yield_now().await;
        }
        file.sync_all().map_err(of_file(path))?;
    }
    Ok(())
}
