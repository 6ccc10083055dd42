//! What can go wrong, and what the caller may do then.

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::host::{BringUpFault, Fate, NoPath, fate_of};
use lunette_nvmeof_proto::pdu::WireFault;
use lunette_runtime::arena::{AllocError, RegionMut};
use lunette_runtime::{ControlError, OpError};
use thiserror::Error;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CloseReason {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it between two PDUs.
    #[error("closed by the peer")]
    Peer,
    /// The system reported an error: the peer died, or the network did.
    #[error("connection lost: {0}")]
    Io(OpError),
    /// The peer's bytes made no sense.
    #[error(transparent)]
    Wire(#[from] WireFault),
    /// A command that was given up did not complete either.
    #[error("the controller does not answer")]
    Stuck,
    /// This core's arena has no room for the connection.
    #[error("no memory for the connection")]
    NoMemory,
    /// It was to be in TLS.
    #[error("TLS: {0}")]
    Tls(#[from] TlsFault),
}

/// Why a connection is not, or no longer, in TLS.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TlsFault {
    /// This build leaves TLS out: its feature `tls` is off.
    #[error("this build leaves it out (feature `tls`)")]
    Absent,
    /// The peer does not have the key, or no TLS.
    #[error("the peer does not share the key")]
    Refused,
    /// The key has 48 bytes: its cipher suite is not to be had.
    #[error("keys of 48 bytes (SHA-384) are not to be had: take one of 32")]
    Suite,
    /// The names of host and subsystem are too long together.
    #[error("the names of host and subsystem are too long together")]
    Identity,
    /// What came was damaged underway, or sent by somebody else.
    #[error("a record does not fit")]
    Record,
    /// OpenSSL refused, as when there is no memory.
    #[error("OpenSSL refused")]
    Library,
}

impl CloseReason {
    /// Whether a new connection may fare better.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Peer | Self::Io(_) | Self::Stuck | Self::NoMemory => true,
            Self::Tls(fault) => matches!(fault, TlsFault::Record | TlsFault::Library),
            Self::Wire(fault) => fault.is_retryable(),
            Self::Local => false,
        }
    }

    /// Whether bytes were damaged underway.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self {
            Self::Wire(fault) => fault.is_corruption(),
            Self::Tls(fault) => matches!(fault, TlsFault::Record),
            _ => false,
        }
    }
}

impl From<OpError> for CloseReason {
    fn from(error: OpError) -> Self {
        Self::Io(error)
    }
}

/// Why a command did not do what was asked.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CommandError {
    /// The controller said no.
    #[error("{0}")]
    Status(Status),
    /// The connection ended first. Whether the command was carried out is unknown.
    #[error("connection ended: {0}")]
    Disconnected(CloseReason),
    /// The connection ended before the controller had what it needs: the command was not carried out.
    #[error("connection ended before the command was sent: {0}")]
    NotSent(CloseReason),
    /// The namespace cannot be reached. The command was not carried out.
    #[error(transparent)]
    NoPath(#[from] NoPath),
    /// The deadline passed first. Whether the command was, or will be, carried out is unknown.
    #[error("deadline exceeded")]
    DeadlineExceeded,
    /// The controller said that it succeeded, and did not move all data.
    #[error("{moved_bytes} bytes of {len_bytes} were moved")]
    Short {
        /// What was moved.
        moved_bytes: u32,
        /// What was asked for.
        len_bytes: u32,
    },
    /// This core's arena has no room for what the command needs.
    #[error(transparent)]
    Memory(#[from] AllocError),
}

impl CommandError {
    /// Whether asking again (on a new connection, if this one ended) may help. The command may
    /// have been carried out already.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Status(status) => status.is_retryable(),
            Self::Disconnected(reason) | Self::NotSent(reason) => reason.is_retryable(),
            Self::NoPath(reason) => reason.is_retryable(),
            Self::DeadlineExceeded => true,
            Self::Short { .. } => false,
            Self::Memory(error) => error.is_backpressure(),
        }
    }

    /// Whether it speaks of the way to the namespace, or of this moment, and not of what the medium has or takes: the
    /// same command may do what was asked once there is a way again, unless the namespace has been given up
    /// ([`RemoteNamespace::is_given_up`](crate::RemoteNamespace::is_given_up)). The command may have been carried out
    /// already.
    #[must_use]
    pub fn is_of_the_way(&self) -> bool {
        match self {
            Self::Status(status) => {
                let moments = [
                    Status::NAMESPACE_NOT_READY,
                    Status::ABORT_REQUESTED,
                    Status::ABORTED_WITH_QUEUE,
                ];
                let is_of_moment = moments.iter().any(|of| of.code() == status.code());
                is_of_moment || fate_of(*status) != Fate::Answered
            }
            Self::Disconnected(_) | Self::NotSent(_) | Self::DeadlineExceeded => true,
            Self::NoPath(reason) => reason.is_retryable(),
            Self::Memory(error) => error.is_backpressure(),
            Self::Short { .. } => false,
        }
    }

    /// Whether a limit was met.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Memory(error) if error.is_backpressure())
    }

    /// Whether bytes were damaged underway, or on the medium.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self {
            Self::Status(status) => status.is_corruption(),
            Self::Disconnected(reason) | Self::NotSent(reason) => reason.is_corruption(),
            Self::NoPath(_) | Self::Short { .. } | Self::DeadlineExceeded | Self::Memory(_) => {
                false
            }
        }
    }
}

/// A failed command: why, and the region that was lent to it.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct CommandFailure {
    /// Why.
    #[source]
    pub error: CommandError,
    /// The region that was to be filled, the caller's again; its bytes are unspecified.
    pub region: Option<RegionMut>,
}

impl From<CommandError> for CommandFailure {
    fn from(error: CommandError) -> Self {
        Self {
            error,
            region: None,
        }
    }
}

/// Why no controller, or no queue of one, was connected.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConnectError {
    /// The system could not connect: nobody listens there, say.
    #[error("cannot connect: {0}")]
    Connect(OpError),
    /// It took too long.
    #[error("cannot connect: no answer in time")]
    TimedOut,
    /// The connection ended meanwhile.
    #[error("while connecting: {0}")]
    Closed(#[from] CloseReason),
    /// The controller refused, or did not become ready.
    #[error(transparent)]
    BringUp(#[from] BringUpFault),
    /// A command on the way failed.
    #[error("while connecting: {0}")]
    Command(#[from] CommandError),
    /// The namespace has no lasting name, by which it could be known on another path.
    #[error("the namespace has no lasting name, which several paths need")]
    NoName,
    /// Nobody could compute a proof.
    #[error("while authenticating: {0}")]
    Busy(#[from] ControlError),
}

impl ConnectError {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(_) | Self::TimedOut => true,
            Self::NoName => false,
            Self::Closed(reason) => reason.is_retryable(),
            Self::BringUp(fault) => fault.is_retryable(),
            Self::Command(error) => error.is_retryable(),
            Self::Busy(error) => error.is_backpressure(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_speaks_of_the_way_and_what_of_the_medium() {
        let peer = CloseReason::Peer;
        for (error, is_of_the_way) in [
            (CommandError::Disconnected(peer), true),
            (CommandError::NotSent(peer), true),
            (CommandError::DeadlineExceeded, true),
            (CommandError::NoPath(NoPath::Inaccessible), true),
            (CommandError::NoPath(NoPath::Lost), false),
            (CommandError::Status(Status::NAMESPACE_NOT_READY), true),
            (CommandError::Status(Status::ABORTED_WITH_QUEUE), true),
            (CommandError::Status(Status::ANA_TRANSITION), true),
            (CommandError::Status(Status::LBA_OUT_OF_RANGE), false),
            (CommandError::Status(Status::UNRECOVERED_READ), false),
            (CommandError::Status(Status::WRITE_FAULT), false),
        ] {
            assert_eq!(error.is_of_the_way(), is_of_the_way, "{error}");
        }
    }
}
