//! What can go wrong on a connection, and what the caller may do then.

use lunette_auth::RecordFault;
use lunette_runtime::OpError;
use lunette_runtime::arena::AllocError;
use lunette_transfer_proto::calls::CallFault;
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::hello::HandshakeFault;
use lunette_transfer_proto::receiver::WireFault;
use thiserror::Error;

use crate::guard::GuardFault;
use crate::room::Room;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CloseReason {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// The peer finished, between two frames.
    #[error("closed by the peer")]
    Peer,
    /// The system reported an error: the peer died, or the network did.
    #[error("connection lost: {0}")]
    Io(OpError),
    /// The peer's bytes made no sense, or ended within a frame.
    #[error(transparent)]
    Wire(#[from] WireFault),
    /// The peer answered what was not asked.
    #[error(transparent)]
    Call(#[from] CallFault),
    /// A frame of a kind that has no place on an open connection.
    #[error("unexpected {0:?} frame")]
    UnexpectedFrame(FrameKind),
    /// A sealed record was changed on its way, came again, or is missing.
    #[error(transparent)]
    Record(#[from] RecordFault),
    /// The peer announced a payload and stopped sending it.
    #[error("the peer stopped in the middle of a payload")]
    Stalled,
}

impl From<OpError> for CloseReason {
    fn from(error: OpError) -> Self {
        Self::Io(error)
    }
}

impl CloseReason {
    /// Whether a new connection may fare better.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Peer | Self::Io(_) | Self::Stalled => true,
            Self::Wire(fault) => fault.is_retryable(),
            Self::Record(fault) => fault.is_retryable(),
            Self::Local | Self::Call(_) | Self::UnexpectedFrame(_) => false,
        }
    }

    /// Whether bytes were damaged underway.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self {
            Self::Wire(fault) => fault.is_corruption(),
            Self::Record(fault) => fault.is_corruption(),
            _ => false,
        }
    }
}

/// Why no connection came about.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConnectError {
    /// The system could not connect: nobody listens there, say.
    #[error("cannot connect: {0}")]
    Connect(OpError),
    /// The peer's host did not answer in time.
    #[error("cannot connect: no answer in time")]
    TimedOut,
    /// The handshake failed: versions, limits, or time.
    #[error(transparent)]
    Handshake(#[from] HandshakeFault),
    /// The peer is not authenticated, or this side is not to the peer.
    #[error("not authenticated: {0}")]
    Guard(#[from] GuardFault),
    /// The connection ended during the handshake.
    #[error("during the handshake: {0}")]
    Closed(#[from] CloseReason),
    /// This core's arena has no room for the connection's staging buffer.
    #[error("no staging buffer: {0}")]
    Staging(#[from] AllocError),
}

impl From<OpError> for ConnectError {
    fn from(error: OpError) -> Self {
        if error.is_timeout() {
            Self::TimedOut
        } else {
            Self::Connect(error)
        }
    }
}

impl ConnectError {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(_) | Self::TimedOut => true,
            Self::Handshake(fault) => fault.is_retryable(),
            Self::Guard(fault) => fault.is_retryable(),
            Self::Closed(reason) => reason.is_retryable(),
            Self::Staging(error) => error.is_backpressure(),
        }
    }

    /// Whether a limit was met, here or at the peer.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::Handshake(fault) => fault.is_backpressure(),
            Self::Guard(fault) => fault.is_backpressure(),
            Self::Staging(error) => error.is_backpressure(),
            Self::Connect(_) | Self::TimedOut | Self::Closed(_) => false,
        }
    }
}

/// Why a call has no reply.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// The connection ended first. Whether the peer did what was asked is unknown.
    #[error("connection ended: {0}")]
    Disconnected(CloseReason),
    /// The connection ended, and its peer has not read the request: nothing of it was done.
    #[error("connection ended before the request was read")]
    NotRead,
    /// The caller gave it up. Nothing of a reply lands in its room any more; whether the peer did what
    /// was asked is unknown.
    #[error("cancelled")]
    Cancelled,
    /// The deadline passed first. Whether the peer did what was asked is unknown.
    #[error("deadline exceeded")]
    DeadlineExceeded,
    /// The reply's payload was damaged underway; the room's bytes are unspecified. Ask again.
    #[error("payload corrupt: checksum {expected:#010x} expected, {computed:#010x} computed")]
    Corrupt {
        /// The checksum that the peer sent.
        expected: u32,
        /// The checksum of what arrived.
        computed: u32,
    },
    /// The reply's payload is longer than the room for it; the room is untouched.
    #[error("a payload of {payload_len_bytes} bytes does not fit {room_bytes} bytes")]
    TooLong {
        /// Length of the payload.
        payload_len_bytes: u32,
        /// Room that was offered.
        room_bytes: u32,
    },
    /// The request's payload is longer than the connection allows; nothing was sent.
    #[error("a payload of {payload_len_bytes} bytes exceeds the connection's {payload_bytes_max}")]
    RequestTooLong {
        /// Length of the payload.
        payload_len_bytes: usize,
        /// What both sides agreed on.
        payload_bytes_max: u32,
    },
}

impl CallError {
    /// Whether asking again (on a new connection, if this one ended) may help. Unless it was [not read](Self::NotRead),
    /// the request may have been carried out already.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Disconnected(reason) => reason.is_retryable(),
            Self::NotRead | Self::DeadlineExceeded | Self::Corrupt { .. } => true,
            Self::Cancelled | Self::TooLong { .. } | Self::RequestTooLong { .. } => false,
        }
    }

    /// Whether bytes were damaged underway.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self {
            Self::Corrupt { .. } => true,
            Self::Disconnected(reason) => reason.is_corruption(),
            Self::NotRead
            | Self::Cancelled
            | Self::DeadlineExceeded
            | Self::TooLong { .. }
            | Self::RequestTooLong { .. } => false,
        }
    }
}

/// A failed call: why, and the room that was lent to it.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct CallFailure {
    /// Why.
    #[source]
    pub error: CallError,
    /// The room that the call was given, the caller's again.
    pub room: Option<Room>,
}
