//! What can be wrong with a PDU, and how its receiver says so.

use thiserror::Error;

use super::{PduKind, TermReq};

/// Why a connection cannot go on. Every one is fatal for it (NVMe/TCP 1.0, "Error Handling Model").
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WireFault {
    /// A PDU of a type that this side does not receive.
    #[error("unknown PDU type {found:#04x}")]
    UnknownKind {
        /// The type.
        found: u8,
    },
    /// A PDU of a known type that has no place here and now.
    #[error("unexpected {kind:?} PDU")]
    Unexpected {
        /// Its type.
        kind: PduKind,
    },
    /// A header field with a value that it may not have.
    #[error("invalid field at byte {at} of a {kind:?} header")]
    BadField {
        /// The PDU's type.
        kind: PduKind,
        /// First byte of the field in the header.
        at: u8,
    },
    /// The header was damaged underway.
    #[error("header digest {received:#010x} received, {computed:#010x} computed")]
    HeaderDigest {
        /// The digest that came with it.
        received: u32,
        /// The digest of what arrived.
        computed: u32,
    },
    /// Data outside what the command, or the request for it, covers.
    #[error("data out of range in a {kind:?} PDU, field at byte {at}")]
    DataOutOfRange {
        /// The PDU's type.
        kind: PduKind,
        /// First byte of the field in the header.
        at: u8,
    },
    /// More data, more requests for data, or more commands at a time than was agreed.
    #[error("limit exceeded by a {kind:?} PDU")]
    LimitExceeded {
        /// The PDU's type.
        kind: PduKind,
    },
    /// A parameter of the connection that this side does not support.
    #[error("unsupported parameter at byte {at} of a {kind:?} header")]
    Unsupported {
        /// The PDU's type.
        kind: PduKind,
        /// First byte of the field in the header.
        at: u8,
    },
    /// The peer ended the connection because of something that it received.
    #[error("ended by the peer: fatal error status {}, information {:#x}", .0.status, .0.information)]
    Terminated(
        /// What it said.
        TermReq,
    ),
    /// The connection ended within a PDU, or before its commands had ended.
    #[error("the connection ended in the middle")]
    Truncated,
}

impl WireFault {
    /// What to say to the peer before closing; nothing if the peer has said it, or is gone.
    ///
    /// The status values are those of NVMe/TCP 1.0, "Host to Controller Terminate Connection
    /// Request PDU" and its counterpart.
    #[must_use]
    pub fn term_req(&self) -> Option<TermReq> {
        let (status, information) = match *self {
            Self::UnknownKind { .. } => (1, 0),
            Self::BadField { at, .. } => (1, u32::from(at)),
            Self::Unexpected { .. } => (2, 0),
            Self::HeaderDigest { received, .. } => (3, received),
            Self::DataOutOfRange { at, .. } => (4, u32::from(at)),
            Self::LimitExceeded { .. } => (5, 0),
            Self::Unsupported { at, .. } => (6, u32::from(at)),
            Self::Terminated(_) | Self::Truncated => return None,
        };
        Some(TermReq {
            status,
            information,
        })
    }

    /// Whether bytes were damaged underway.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::HeaderDigest { .. })
    }

    /// Whether a new connection may fare better.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::HeaderDigest { .. } | Self::Truncated | Self::Terminated(_)
        )
    }
}
