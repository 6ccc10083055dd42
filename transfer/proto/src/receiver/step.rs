//! What the receiver tells its driver.

use lunette_runtime_core::ids::RequestId;
use thiserror::Error;

#[cfg(doc)]
use super::Receiver;
use crate::frame::{FrameFault, FrameHeader};

/// A frame's control part, its checksums verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameView<'a> {
    /// The header.
    pub header: FrameHeader,
    /// The body; borrowed from the input if it lay there whole, else from the receiver.
    pub body: &'a [u8],
}

/// Whether a payload arrived as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadVerdict {
    /// The checksum fits.
    Intact,
    /// The checksum does not fit: the bytes must not be used. The connection goes on.
    Corrupt {
        /// The CRC32C in the frame's header.
        expected: u32,
        /// The CRC32C of the bytes that arrived.
        computed: u32,
    },
}

/// What the driver is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The input is spent: receive more into staging.
    NeedControl,
    /// A frame's control part is complete. Its payload, if any, comes in the next steps.
    Frame(FrameView<'a>),
    /// Payload bytes that arrived in staging: copy them to the destination, or discard them. They
    /// are folded into the checksum already.
    Payload {
        /// The frame's request id.
        id: RequestId,
        /// Where in the payload the bytes belong.
        offset_bytes: u32,
        /// The bytes, borrowed from the input.
        bytes: &'a [u8],
    },
    /// The input is spent within a payload: receive up to `len_bytes` straight into the
    /// destination at that offset (or anywhere, to discard them) and report them to
    /// [`Receiver::on_payload`]. Receiving them into staging and stepping is right too.
    NeedPayload {
        /// The frame's request id.
        id: RequestId,
        /// Where in the payload the next byte belongs.
        offset_bytes: u32,
        /// How many bytes of the payload are left, at least 1.
        len_bytes: u32,
    },
    /// The payload of the last frame is complete. Follows each frame with a payload exactly once.
    PayloadDone {
        /// The frame's request id.
        id: RequestId,
        /// Whether the payload arrived as it was sent.
        verdict: PayloadVerdict,
    },
}

/// The byte stream cannot be followed any further: close the connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WireFault {
    /// A header is not acceptable.
    #[error(transparent)]
    Frame(#[from] FrameFault),
    /// A body was damaged underway.
    #[error("body of {id} corrupt: checksum {expected:#010x} expected, {computed:#010x} computed")]
    BodyCorrupt {
        /// The frame's request id.
        id: RequestId,
        /// The CRC32C in the frame's header.
        expected: u32,
        /// The CRC32C of the body that arrived.
        computed: u32,
    },
    /// The stream ended within a frame.
    #[error("the stream ended within a frame: at least {missing_bytes} bytes are missing")]
    Truncated {
        /// Bytes missing from the part (header, body, payload) that was cut.
        missing_bytes: u32,
    },
}

impl WireFault {
    /// Whether bytes were damaged underway, as against written wrongly by the peer.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self {
            Self::Frame(fault) => fault.is_corruption(),
            Self::BodyCorrupt { .. } => true,
            Self::Truncated { .. } => false,
        }
    }

    /// Whether a new connection may fare better.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Frame(fault) => fault.is_retryable(),
            Self::BodyCorrupt { .. } | Self::Truncated { .. } => true,
        }
    }
}
