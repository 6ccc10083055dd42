//! What can go wrong.

use std::io;
use std::path::PathBuf;

use lunette_p2p::proto::safetensors::SafetensorsFault;
use lunette_p2p::{
    CatalogueError, Dtype, FileFault, HoldError, HoldFault, Incomplete, ObjectName, SourceFault,
    StartError, UpdateFault,
};
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
    #[error(transparent)]
    Update(#[from] UpdateFault),
    #[error(
        "not all came: {incomplete}; what came is in the files, and another get goes on with it"
    )]
    Incomplete {
        #[source]
        incomplete: Incomplete,
    },
    #[error(
        "not all came: {incomplete}; what came is in the file, and another get goes on with what is of whole chunks"
    )]
    IncompleteParts {
        #[source]
        incomplete: Incomplete,
    },
    #[error("{}: no safetensors file: {fault}; --bytes serves it as it is", path.display())]
    NotSafetensors {
        path: PathBuf,
        #[source]
        fault: SafetensorsFault,
    },
    #[error("the object has no tensor that is wanted: `lunette p2p ls NAME` lists those of one")]
    NoTensors,
    #[error("tensor {name:?} is of {dtype}, and its part no whole number of bytes")]
    NotCut { name: String, dtype: Dtype },
    #[error("parts of tensors go into one file: {0} are named")]
    OneFile(usize),
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
    #[error(transparent)]
    Opened(#[from] FileFault),
    #[error("it is served no more: {0}")]
    Source(SourceFault),
    #[error("no memory: {0}")]
    Memory(io::Error),
    #[error("standard output: {0}")]
    Output(io::Error),
}

impl P2pFailure {
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Files { .. } | Self::OneFile(_) | Self::ChunkTooLong(_) => 2,
            Self::NotFound(_)
            | Self::NoTensors
            | Self::Hold(HoldFault::NotFound { .. })
            | Self::Update(UpdateFault::Hold(HoldFault::NotFound { .. })) => 3,
            Self::Start(StartError::Lease(fault)) if fault.is_retryable() => 4,
            Self::Catalogue(error) | Self::Update(UpdateFault::Catalogue(error))
                if error.is_retryable() =>
            {
                4
            }
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
