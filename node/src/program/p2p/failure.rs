//! What can go wrong.

use std::io;
use std::path::PathBuf;

use lunette_p2p::{CatalogueError, HoldError, HoldFault, Incomplete, ObjectName, StartError};
use thiserror::Error;

/// A command that did not do what it was asked.
#[derive(Debug, Error)]
pub(crate) enum P2pFailure {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Hold(#[from] HoldFault),
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    #[error(
        "not all came: {incomplete}; what came is in the files, and another get goes on with it"
    )]
    Incomplete {
        #[source]
        incomplete: Incomplete,
    },
    #[error("there is no object {0}")]
    NotFound(ObjectName),
    #[error("{name} has {wanted} buffers, each for a file: {given} files are named")]
    Files {
        name: ObjectName,
        wanted: usize,
        given: usize,
    },
    #[error("chunks of {0} bytes are too long")]
    ChunkTooLong(u64),
    #[error("{}: {error}", path.display())]
    File {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("no memory: {0}")]
    Memory(io::Error),
    #[error("standard output: {0}")]
    Output(io::Error),
}

impl P2pFailure {
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Files { .. } | Self::ChunkTooLong(_) => 2,
            Self::NotFound(_) | Self::Hold(HoldFault::NotFound { .. }) => 3,
            Self::Start(StartError::Lease(fault)) if fault.is_retryable() => 4,
            Self::Catalogue(error) if error.is_retryable() => 4,
            _ => 1,
        }
    }
}

impl From<HoldError> for P2pFailure {
    fn from(error: HoldError) -> Self {
        Self::Hold(error.fault)
    }
}

pub(super) type Outcome<T> = Result<T, P2pFailure>;
