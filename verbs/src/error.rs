//! What can go wrong, per operation.

use lunette_verbs_proto::completion_room::NoRoom;
use lunette_verbs_proto::send_queue::{Outcome, StageError};
use lunette_verbs_proto::status::Status;
use rdma_core_sys::Unavailable;
use rustix::io::Errno;
use thiserror::Error;

use crate::provider::Cause;

/// Why a device was not opened.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// There is no RDMA here; use another transport.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// There is RDMA, and no device of this name.
    #[error("no RDMA device {0}")]
    NoSuchDevice(String),
    /// The system refused.
    #[error("cannot open the device: {0}")]
    System(Errno),
}

/// Why an object was not made of a device.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SetupError {
    /// The system or the adapter refused; `ENOMEM` is often the limit of locked memory.
    #[error("refused: {0}")]
    Refused(Errno),
    /// The patience that was asked for has no end, or is none that adapters know.
    #[error("patience without an end")]
    Endless,
    /// Adapter, library or kernel cannot do this at all: take another way.
    #[error("not supported by adapter, library or kernel")]
    Unsupported,
    /// The completion queue has no room for a queue pair of this depth.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The core polls as many sources as it may.
    #[error("too many completion sources on this core")]
    TooManySources,
    /// The core has as many tasks as it may have.
    #[error("too many tasks on this core")]
    TooManyTasks,
    /// The completion queue is broken: make another one.
    #[error("the completion queue is broken")]
    Broken,
    /// A size is beyond what the device or this crate allows.
    #[error("a size is out of range")]
    Size,
}

impl SetupError {
    /// Whether freeing something can help.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        matches!(
            self,
            Self::NoRoom(_)
                | Self::TooManySources
                | Self::TooManyTasks
                | Self::Refused(Errno::NOMEM)
        )
    }
}

/// Why a request did not do what it was asked. Its memory is the caller's again in every case.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    /// As many requests are in flight as the queue pair holds; nothing was done.
    #[error("send queue full")]
    Full,
    /// The queue pair is broken; nothing was done. Make another one.
    #[error("the queue pair is broken")]
    Broken,
    /// The piece or the bytes do not fit the request; nothing was done.
    #[error("the request does not fit its memory")]
    Length,
    /// The adapter did not take it; nothing was done.
    #[error("the adapter did not take the request")]
    Refused,
    /// It failed and broke the queue pair. Whether the peer's memory changed is not known.
    #[error("{0}")]
    Failed(Status),
    /// The queue pair broke before it was done. Whether the peer's memory changed is not known. Where
    /// the device says why, it may do so later: see [`QueuePair::cause`](crate::QueuePair::cause).
    #[error("flushed: the queue pair broke")]
    Flushed,
    /// Its deadline passed, which broke the queue pair.
    #[error("the deadline passed")]
    TimedOut,
    /// The device declared the queue pair broken. Whether the peer's memory changed is not known.
    #[error("{0}")]
    Declared(Cause),
    /// The queue pair ended without a word about it.
    #[error("the queue pair ended")]
    Lost,
}

impl RequestError {
    /// Whether the same request may succeed, on this queue pair later or on another one.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Length => false,
            Self::Failed(status) => status.is_retryable(),
            _ => true,
        }
    }

    /// Whether waiting can help.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        match self {
            Self::Full => true,
            Self::Failed(status) => status.is_backpressure(),
            _ => false,
        }
    }
}

impl From<StageError> for RequestError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Full => Self::Full,
            StageError::Broken => Self::Broken,
        }
    }
}

/// The end of a request, as its future has it; `cause` says why the device declared its queue pair
/// broken, if it did.
#[inline]
pub(crate) const fn result_of(outcome: Outcome, cause: Option<Cause>) -> Result<(), RequestError> {
    match outcome {
        Outcome::Done => Ok(()),
        other => failure_of(other, cause),
    }
}

#[cold]
const fn failure_of(outcome: Outcome, cause: Option<Cause>) -> Result<(), RequestError> {
    Err(match (outcome, cause) {
        (Outcome::Done, _) => return Ok(()),
        (Outcome::Failed(status), _) => RequestError::Failed(status),
        (Outcome::Flushed | Outcome::Lost, Some(cause)) => RequestError::Declared(cause),
        (Outcome::Flushed, None) => RequestError::Flushed,
        (Outcome::TimedOut, _) => RequestError::TimedOut,
        (Outcome::Lost, None) => RequestError::Lost,
        (Outcome::Refused, _) => RequestError::Refused,
    })
}
