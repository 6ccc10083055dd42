//! What can go wrong in an engine, and what the caller may do then.

use std::fmt;
use std::net::SocketAddr;

use lunette_auth::policy::ListenRefusal;
use lunette_runtime::JoinError;
use lunette_runtime::arena::Exposed;
use lunette_runtime::net::ResolveError;
use lunette_runtime_core::limits::CORES_MAX;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::scheduler::{RAILS_MAX, RequestFailure, TransfersFull};
use lunette_transfer_proto::engine::segment::RegisterRefusal;
use lunette_transfer_proto::engine::slices::REQUESTS_MAX;
use thiserror::Error;

use super::LISTENERS_MAX;
use super::devices::DeviceSegment;
use super::endpoint::Endpoint;
use super::files::FileSegment;
use super::namespaces::NamespaceSegment;
use crate::error::{CallError, ConnectError};

/// Why no engine was started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The system does not let it listen there.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// Other hosts could reach it, and nobody would have to prove anything.
    #[error(transparent)]
    Insecure(#[from] ListenRefusal),
    /// Connections are to be sealed, and there is no secret to make keys from.
    #[error("encryption takes a secret: set one, or leave it out")]
    NoSecret,
    /// More addresses than an engine may have.
    #[error("{count} addresses, of {LISTENERS_MAX} at most")]
    TooManyAddresses {
        /// How many were asked for.
        count: usize,
    },
    /// The core has no room for its tasks.
    #[error("no room on this core: {0}")]
    Task(JoinError),
    /// The core polls as much as it can.
    #[error("no room on this core for another thing to poll")]
    NoSource,
    /// An engine has at least one core, and no more than this.
    #[error("{cores} cores are outside 1..={CORES_MAX}")]
    CoreCount {
        /// How many were asked for.
        cores: usize,
    },
    /// Each core listens on a port of its own, from this one on, and there are not so many.
    #[error("not enough ports for all cores from {address} on")]
    NoPorts {
        /// Where the first core was to listen.
        address: SocketAddr,
    },
}

/// Memory that was not registered: why, and the memory.
#[derive(Debug, Error)]
#[error("{refusal}")]
pub struct RegisterError {
    /// Why.
    #[source]
    pub refusal: RegisterRefusal,
    /// The memory.
    pub memory: Exposed,
}

/// A file that was not registered: why, and the file.
#[derive(Debug, Error)]
#[error("{refusal}")]
pub struct RegisterFileError {
    /// Why.
    #[source]
    pub refusal: RegisterRefusal,
    /// The file.
    pub file: FileSegment,
}

/// Memory of a device that was not registered: why, and the memory.
#[derive(Debug, Error)]
#[error("{refusal}")]
pub struct RegisterDeviceError {
    /// Why.
    #[source]
    pub refusal: RegisterRefusal,
    /// The memory.
    pub device: DeviceSegment,
}

/// A namespace that was not registered: why, and the namespace.
#[derive(Debug, Error)]
#[error("{refusal}")]
pub struct RegisterNamespaceError {
    /// Why.
    #[source]
    pub refusal: RegisterRefusal,
    /// The namespace.
    pub namespace: NamespaceSegment,
}

/// Why a peer, or a segment of it, was not opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// None, or more than [`RAILS_MAX`].
    #[error("{count} addresses are outside 1..={RAILS_MAX}")]
    BadAddresses {
        /// How many were given.
        count: usize,
    },
    /// Nobody answers at any address; the error is that of the last.
    #[error("no engine answers at {address}: {error}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// Why not.
        #[source]
        error: ConnectError,
    },
    /// The name of its host leads nowhere now.
    #[error("{endpoint}: {error}")]
    Resolve {
        /// Where the peer should be.
        endpoint: Endpoint,
        /// Why its name has no address.
        #[source]
        error: ResolveError,
    },
    /// The peer refuses.
    #[error("the peer refuses: {0}")]
    Refused(Refusal),
    /// The question got no answer.
    #[error("the peer did not answer: {0}")]
    Call(CallError),
    /// The core takes no more tasks.
    #[error(transparent)]
    Task(JoinError),
    /// The answer made no sense.
    #[error("the peer's answer makes no sense")]
    Malformed,
}

impl OpenError {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { error, .. } => error.is_retryable(),
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::Call(error) => error.is_retryable(),
            // Names come and go.
            Self::Resolve { .. } | Self::Task(_) => true,
            Self::BadAddresses { .. } | Self::Malformed => false,
        }
    }
}

/// Why a request was not added to a batch.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    /// The batch has [`REQUESTS_MAX`] requests.
    #[error("a batch has {REQUESTS_MAX} requests at most")]
    Full,
    /// The range does not lie in the segment.
    #[error("{offset_bytes}+{len_bytes} does not lie in a segment of {segment_bytes} bytes")]
    OutOfRange {
        /// Its first byte.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
        /// The segment's length.
        segment_bytes: u64,
    },
    /// The segment does not allow it.
    #[error("the segment does not allow it")]
    Forbidden,
    /// The segment belongs to another peer than those before it.
    #[error("the segment belongs to another peer than the batch's others")]
    OtherPeer,
}

/// Why a batch was not posted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PostError {
    /// Too many transfers are under way: wait for one to end.
    #[error(transparent)]
    Full(#[from] TransfersFull),
    /// The batch names segments of another peer.
    #[error("the batch is for another peer")]
    OtherPeer,
    /// Another engine answers where the peer was: open it anew.
    #[error("the peer is gone, another engine answers in its place")]
    PeerReplaced,
    /// A notification that is too long.
    #[error("a notification of {len_bytes} bytes is too long")]
    NoteTooLong {
        /// Its length.
        len_bytes: usize,
    },
}

impl PostError {
    /// Whether waiting for a transfer to end helps.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Full(_))
    }
}

/// A transfer of which not everything was done. Requests that are not among the failures were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferError {
    /// What failed; at least one.
    pub failures: Vec<RequestFailure>,
    /// The peer's addresses, by rail.
    pub paths: Vec<SocketAddr>,
}

impl TransferError {
    /// Whether the failed requests may fare better when they are posted again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.failures
            .iter()
            .all(|failure| failure.cause.is_retryable())
    }

    /// Whether a limit was met at the peer.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        self.failures
            .iter()
            .all(|failure| failure.cause.is_backpressure())
    }

    /// Whether bytes were damaged.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        self.failures
            .iter()
            .any(|failure| failure.cause.is_corruption())
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.failures.first() else {
            return f.write_str("nothing failed");
        };
        match first.request {
            Some(request) => write!(f, "request {request}: {}", first.cause)?,
            None => write!(f, "notification: {}", first.cause)?,
        }
        if let Some(path) = first.rail.and_then(|rail| self.paths.get(rail)) {
            write!(f, ", over {path}")?;
        }
        let (attempts, age) = (first.attempts, first.age);
        write!(f, ", attempt {attempts}, after {age:?}")?;
        match self.failures.len() {
            1 => Ok(()),
            count => write!(f, " ({} more failed)", count - 1),
        }
    }
}

impl std::error::Error for TransferError {}
