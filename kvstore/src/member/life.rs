//! The life of a node, as its host knows it: a file that is locked for as long as the process lives.
//!
//! The system gives the lock up when the process ends, however that happens. So who gets the lock knows
//! that the lives that the file lists are over: the cluster need not wait for their leases. Who does not
//! get it is told at once that the identity is taken.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use lunette_cluster::proto::member::FORMER_MAX;
use thiserror::Error;

/// Longest file, in bytes: a line for each life.
const FILE_BYTES_MAX: u64 = 4096;

/// Why a node does not begin a life.
#[derive(Debug, Error)]
pub enum LifeError {
    /// Another process of this host has the node's identity, and is alive.
    #[error("{}: another process on this host is this node", .0.display())]
    Taken(PathBuf),
    /// The system refuses the file.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
}

/// The life of this process, until it is dropped.
#[derive(Debug)]
pub(crate) struct Life {
    /// Holds the lock.
    _file: File,
    /// Incarnations that are over.
    pub(crate) former: Vec<u64>,
}

impl Life {
    /// Begins the life of this incarnation.
    pub(crate) fn begin(path: &Path, incarnation: u64) -> Result<Self, LifeError> {
        let failed = |error| LifeError::File {
            path: path.to_owned(),
            error,
        };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false);
        let mut file = file.open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LifeError::Taken(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let former = former(&mut file).map_err(failed)?;
        let lives = former.iter().chain([&incarnation]);
        let text: String = lives.map(|life| format!("{life}\n")).collect();
        let written = (file.rewind())
            .and_then(|()| file.set_len(0))
            .and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(failed)?;
        let _file = file;
        Ok(Self { _file, former })
    }
}

/// The latest lives that the file lists; what is no number is passed over.
fn former(file: &mut File) -> io::Result<Vec<u64>> {
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
    match read {
        Err(error) if error.kind() != io::ErrorKind::InvalidData => return Err(error),
        _ => {}
    }
    let mut lives: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let beyond = lives.len().saturating_sub(FORMER_MAX);
    lives.drain(..beyond);
    Ok(lives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_life_at_a_time_knows_those_before_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("life");
        let first = Life::begin(&path, 1).expect("the first");
        assert!(first.former.is_empty());
        let second = Life::begin(&path, 2).expect_err("the first is alive");
        assert!(matches!(second, LifeError::Taken(_)), "{second}");
        drop(first);
        for life in 2..40 {
            let begun = Life::begin(&path, life).expect("nobody is alive");
            assert_eq!(begun.former.last(), Some(&(life - 1)));
            assert!(begun.former.len() <= FORMER_MAX);
        }
    }

    #[test]
    fn a_file_of_something_else_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("life");
        std::fs::write(&path, b"7\nnonsense\n\xff\xfe").expect("it is written");
        let begun = Life::begin(&path, 9).expect("nobody is alive");
        assert!(begun.former.is_empty() || begun.former == [7]);
        drop(begun);
        let again = Life::begin(&path, 10).expect("nobody is alive");
        assert_eq!(again.former.last(), Some(&9));
        let nowhere = Life::begin(&path.join("below"), 1).expect_err("it is no folder");
        assert!(matches!(nowhere, LifeError::File { .. }), "{nowhere}");
    }
}
