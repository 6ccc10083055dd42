//! What can be wrong with a frame's header.

use thiserror::Error;

use super::FrameKind;

/// A header that is not one of ours, or not one that we accept. The connection cannot go on, since
/// nothing says where the next frame begins.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameFault {
    /// Not our protocol at all.
    #[error("not a lunette frame: magic {found:#06x}")]
    BadMagic {
        /// The magic that was found.
        found: u16,
    },
    /// A wire version that was never offered to the peer.
    #[error("wire version {found} was not agreed on")]
    BadVersion {
        /// The version that was found.
        found: u8,
    },
    /// The header's checksum does not fit its bytes: damaged underway.
    #[error("header corrupt: checksum {expected:#010x} expected, {computed:#010x} computed")]
    HeaderCorrupt {
        /// The checksum in the header.
        expected: u32,
        /// The checksum of the header's bytes.
        computed: u32,
    },
    /// A kind that this version does not have.
    #[error("unknown frame kind {found}")]
    UnknownKind {
        /// The kind that was found.
        found: u8,
    },
    /// Flags that this version does not have.
    #[error("unknown frame flags {found:#06x}")]
    UnknownFlags {
        /// The flags that were found.
        found: u16,
    },
    /// A field that must be 0 is not.
    #[error("reserved field is {found:#010x}, not 0")]
    ReservedNotZero {
        /// What was found in the field.
        found: u32,
    },
    /// A body beyond the receiver's limit.
    #[error("body of {len_bytes} bytes exceeds {max_bytes}")]
    BodyTooLong {
        /// The announced length.
        len_bytes: u32,
        /// The receiver's limit.
        max_bytes: u32,
    },
    /// A payload beyond the receiver's limit.
    #[error("payload of {len_bytes} bytes exceeds {max_bytes}")]
    PayloadTooLong {
        /// The announced length.
        len_bytes: u32,
        /// The receiver's limit.
        max_bytes: u32,
    },
    /// A payload behind a kind of frame that has none.
    #[error("a {kind:?} frame cannot carry a payload")]
    PayloadNotAllowed {
        /// The frame's kind.
        kind: FrameKind,
    },
    /// The checksum of a payload that is not there.
    #[error("payload checksum {found:#010x} without a payload")]
    StrayPayloadCrc {
        /// The checksum that was found.
        found: u32,
    },
}

impl FrameFault {
    /// Whether bytes were damaged underway, as against written wrongly by the peer.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::HeaderCorrupt { .. })
    }

    /// Whether a new connection may fare better.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.is_corruption()
    }
}
