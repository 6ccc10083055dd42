//! Override files, and matrices of peers.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{FILE_BYTES_MAX, Matrix, Override, ReadFault};

/// Why a file was not read. Trying again does not help before somebody changes the file.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The system refused it.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// It does not say what it should.
    #[error("{}: {fault}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        #[source]
        fault: ReadFault,
    },
}

/// Reads an override file. It blocks.
///
/// # Errors
/// [`LoadError`].
pub fn load_override(path: &Path) -> Result<Override, LoadError> {
    load(path, Override::from_json)
}

/// Reads the matrix of another machine. It blocks.
///
/// # Errors
/// [`LoadError`].
pub fn load_matrix(path: &Path) -> Result<Matrix, LoadError> {
    load(path, Matrix::from_json)
}

fn load<T>(path: &Path, read: impl FnOnce(&[u8]) -> Result<T, ReadFault>) -> Result<T, LoadError> {
    let mut bytes = Vec::new();
    let limit = FILE_BYTES_MAX as u64 + 1;
    let opened = File::open(path);
    let taken = opened.and_then(|file| file.take(limit).read_to_end(&mut bytes));
    let path = || path.to_owned();
    if let Err(error) = taken {
        let path = path();
        return Err(LoadError::File { path, error });
    }
    read(&bytes).map_err(|fault| {
        let path = path();
        LoadError::Read { path, fault }
    })
}
