//! Answers of a hosted engine, and why there is none.

use lunette_nvmeof::CommandError;
use lunette_runtime::{JoinError, StartError as CoreStartError};
use lunette_transfer_proto::engine::segment::RegisterRefusal;
use thiserror::Error;

use super::super::devices::DeviceLendError;
use super::super::error::{BatchError, OpenError, PostError, StartError, TransferError};
use super::super::files::FileSegmentError;
use super::super::grants::GrantError;
use super::super::namespaces::NamespaceSegmentError;
use super::super::siblings::{JOBS_MAX, NotAnswered, NotAsked, OpeningError};

/// Why a hosted engine did not start.
#[derive(Debug, Error)]
pub enum HostError {
    /// Its cores did not.
    #[error(transparent)]
    Core(#[from] CoreStartError),
    /// The engine on them did not.
    #[error(transparent)]
    Engine(#[from] StartError),
    /// A core ended at once.
    #[error("a core of the engine ended at once")]
    Ended,
}

/// Why a question to a hosted engine has no answer, or a bad one.
#[derive(Debug, Error)]
pub enum HandleError {
    /// The engine is gone.
    #[error("the engine is gone")]
    Gone,
    /// The core that was to answer has ended in the meantime, or the engine. What it was to do may be done in
    /// part, and what it was to write at a peer may still change there.
    #[error("the core that was to answer has ended")]
    Ended,
    /// Too many questions wait for it.
    #[error("{JOBS_MAX} questions wait for the engine")]
    Busy,
    /// The core that was to do it takes no more tasks. Nothing was done.
    #[error(transparent)]
    Task(JoinError),
    /// No segment of this engine, or not all of the range lies in it.
    #[error("no such local memory")]
    NoMemory,
    /// The system gives no memory.
    #[error("no memory: {0}")]
    Map(std::io::Error),
    /// See there.
    #[error(transparent)]
    Register(#[from] RegisterRefusal),
    /// A core could not open the file. See there.
    #[error(transparent)]
    File(FileSegmentError),
    /// A core could not connect the namespace. See there.
    #[error(transparent)]
    Namespace(NamespaceSegmentError),
    /// A core could not take the memory of the device. See there.
    #[error(transparent)]
    Device(DeviceLendError),
    /// What was written to a namespace may not be on its medium. See there.
    #[error(transparent)]
    Sync(CommandError),
    /// See there.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// See there.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// See there.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// See there.
    #[error(transparent)]
    Post(#[from] PostError),
    /// See there.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl HandleError {
    /// Whether asking again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy | Self::Ended => true,
            Self::Open(error) => error.is_retryable(),
            Self::Namespace(error) => error.is_retryable(),
            Self::Sync(error) => error.is_retryable(),
            Self::Transfer(error) => error.is_retryable(),
            other => other.is_backpressure(),
        }
    }

    /// Whether a limit was met, here or at the peer.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        match self {
            Self::Busy | Self::Task(_) => true,
            Self::Register(refusal) => refusal.is_backpressure(),
            Self::Device(error) => error.is_backpressure(),
            Self::Post(error) => error.is_backpressure(),
            Self::Transfer(error) => error.is_backpressure(),
            _ => false,
        }
    }
}

impl From<NotAsked> for HandleError {
    fn from(not_asked: NotAsked) -> Self {
        match not_asked {
            NotAsked::Busy => Self::Busy,
            NotAsked::Gone => Self::Gone,
        }
    }
}

impl From<OpeningError> for HandleError {
    fn from(error: OpeningError) -> Self {
        match error {
            OpeningError::File(error) => Self::File(error),
            OpeningError::Namespace(error) => Self::Namespace(error),
            OpeningError::Device(error) => Self::Device(error),
            OpeningError::Register(refusal) => Self::Register(refusal),
            OpeningError::Task(error) => Self::Task(error),
            OpeningError::Ended => Self::Ended,
        }
    }
}

impl From<NotAnswered> for HandleError {
    fn from(not_answered: NotAnswered) -> Self {
        match not_answered {
            NotAnswered::Ended => Self::Ended,
            NotAnswered::Full => Self::Task(JoinError::TooManyTasks),
        }
    }
}

/// What an answer is.
pub(super) type Answered<T> = Result<T, HandleError>;

/// An answer on its way: a future for any executor, or waited for. Dropping that of a transfer cancels it.
pub type Pending<T> = lunette_runtime::Pending<Answered<T>>;
