//! What can go wrong.

use std::io;
use std::path::PathBuf;

use lunette::runtime::ControlError;
use lunette::transfer::engine::{
    BatchError, FileSegmentError, HandleError, HostError, NamespaceSegmentError, OpenError,
    PostError, RegisterRefusal, StartError, TransferError,
};
use lunette::transfer::topology::{LoadError, MatrixFault};
use lunette_auth::policy::SettingsFault;
use lunette_cluster::SecretFileError;
use thiserror::Error;

use crate::program::nvme::NvmeFailure;

/// A command that did not do what it was asked.
#[derive(Debug, Error)]
pub(crate) enum TransferFailure {
    #[error(transparent)]
    Settings(#[from] SettingsFault),
    #[error(transparent)]
    Secret(#[from] SecretFileError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Handle(#[from] HandleError),
    #[error("RDMA adapters are reached on one core: leave out --cores")]
    AdaptersOnCores,
    #[error("{0}")]
    Register(#[from] RegisterRefusal),
    #[error("{segment}: {error}")]
    Open {
        segment: String,
        #[source]
        error: OpenError,
    },
    #[error(transparent)]
    Matrix(#[from] MatrixFault),
    #[error(transparent)]
    MatrixFile(#[from] LoadError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    Post(#[from] PostError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("{}: {error}", path.display())]
    File {
        path: PathBuf,
        #[source]
        error: FileSegmentError,
    },
    #[error(transparent)]
    Namespace(#[from] NamespaceSegmentError),
    #[error(transparent)]
    Nvme(Box<NvmeFailure>),
    #[error("no memory: {0}")]
    Memory(io::Error),
    #[error("standard output: {0}")]
    Output(io::Error),
    #[error("a batch of {batch} times {size} bytes does not fit the segment's {len_bytes}")]
    TooLong {
        batch: u32,
        size: u64,
        len_bytes: u64,
    },
}

impl From<NvmeFailure> for TransferFailure {
    fn from(failure: NvmeFailure) -> Self {
        Self::Nvme(Box::new(failure))
    }
}

impl TransferFailure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::TooLong { .. }
            | Self::AdaptersOnCores
            | Self::Settings(_)
            | Self::Start(StartError::NoSecret)
            | Self::Host(HostError::Engine(StartError::NoSecret)) => 2,
            Self::Handle(HandleError::Open(
                OpenError::Connect { .. } | OpenError::Resolve { .. },
            )) => 4,
            Self::Open {
                error: OpenError::Connect { .. } | OpenError::Resolve { .. },
                ..
            } => 4,
            _ => 1,
        }
    }
}

pub(super) type Outcome<T> = Result<T, TransferFailure>;
