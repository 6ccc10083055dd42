//! What clients and nodes say to each other.
//!
//! The transport carries an operation, a status, a body and a payload, and looks into none of
//! them. The formats of the bodies are here; a payload is an object's value, its length and CRC32C
//! are in the frame.
//!
//! | operation | body of the request | body of the answer | payload |
//! |---|---|---|---|
//! | [`Op::Get`] | [`KeyRequest`] | [`VersionReply`] | of the answer |
//! | [`Op::Put`] | [`KeyRequest`] | [`VersionReply`] | of the request |
//! | [`Op::Exists`] | [`KeyBatch`] | [`PresenceReply`] | none |
//! | [`Op::Remove`] | [`KeyBatch`] | [`RemoveReply`] | none |
//! | [`Op::Stat`] | empty | [`NodeStat`] | none |
//!
//! Where copies are is settled by messages of their own ([`directory`]), between members of a cluster
//! and their clients:
//!
//! | operation | body of the request | body of the answer | payload |
//! |---|---|---|---|
//! | [`Op::Map`] | empty | the bytes of a cluster map | none |
//! | [`Op::Tell`] | [`directory::SeatMessage`] | empty, or one back | none |
//! | [`Op::Ask`] | [`directory::AskMessage`] | [`directory::AnswerMessage`] | none |
//! | [`Op::Write`] | [`directory::WriteMessage`] | [`WriteAnswer`](crate::owner::WriteAnswer) | of the request |
//! | [`Op::Find`] | [`directory::GetMessage`] | [`directory::BytesReply`], or an [`directory::AnswerMessage`] with [`Status::NotFound`] | of the answer |
//! | [`Op::Read`] | [`directory::ReadMessage`] | [`directory::BytesReply`] | of the answer |
//! | [`Op::Replicate`] | [`directory::ReplicaMessage`] | empty | of the request |
//! | [`Op::Reserve`] | [`directory::ReserveMessage`] | [`directory::ReserveReply`] | none |
//! | [`Op::Fill`] | [`directory::FillMessage`] | empty | of the request |
//! | [`Op::Commit`] | [`directory::CommitMessage`] | [`WriteAnswer`](crate::owner::WriteAnswer) | none |
//! | [`Op::Revoke`] | [`directory::RevokeMessage`] | empty | none |
//! | [`Op::Quota`] | [`directory::QuotaMessage`] | [`directory::QuotaReply`] | none |
//! | [`Op::Clock`] | [`directory::MemberMessage`] | [`directory::ClockReply`] | none |
//! | [`Op::Clear`] | [`directory::ChangeMessage`] | [`directory::ClearReply`] | none |
//! | [`Op::Retire`] | [`directory::ChangeMessage`] | nothing | none |
//! | [`Op::Peek`] | [`directory::PeekMessage`] | [`directory::PeekReply`] | none |
//! | [`Op::Meet`] | [`directory::MeetMessage`] | [`directory::MeetReply`] | none |
//! | [`Op::FindNear`], [`Op::ReadNear`] | [`directory::NearWish`], then as without it | as without it, or a [`directory::Described`] with [`Status::Described`] | of the answer |
//!
//! An answer whose [`Status`] carries no result has an empty body. A [`NodeCard`] travels in the
//! connection's hello, and tells which versions of these formats are spoken: see [`FormatVersions`].
//!
//! Decoding is total: any bytes give a value within its limits or a [`MessageFault`], and a body
//! ends where its last field does, but for a card and a stat, behind which later versions have more.

mod batch;
mod card;
pub mod directory;
mod format;
mod op;
mod reply;
mod stat;
mod status;

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::limits::{BATCH_KEYS_MAX, CORES_MAX};
use thiserror::Error;

use crate::key::{Key, KeyFault};
use crate::striped::ManifestFault;

pub use batch::{BatchFull, KeyBatch, KeyBatchWriter};
pub use card::NodeCard;
#[cfg(feature = "next-version")]
pub use format::Next;
pub use format::{FormatVersion, FormatVersions};
pub use op::{Op, UnknownOp};
pub use reply::{PresenceReply, RemoveReply, VersionReply, encode_presence, encode_removals};
pub use stat::{NodeStat, NodeState};
pub use status::Status;

/// Why bytes are no message. The sender is at fault: answer [`Status::BadRequest`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MessageFault {
    /// The bytes ended within a field.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// Bytes follow the last field.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
    /// A key breaks its rules.
    #[error(transparent)]
    Key(#[from] KeyFault),
    /// A manifest is none.
    #[error(transparent)]
    Manifest(#[from] ManifestFault),
    /// A batch has at most [`BATCH_KEYS_MAX`] keys.
    #[error("{0} keys are above the limit of {BATCH_KEYS_MAX}")]
    TooManyKeys(usize),
    /// An answer covers another number of keys than the request did.
    #[error("the answer covers {found} keys, the request {expected}")]
    KeyCountMismatch {
        /// Keys that the answer covers.
        found: usize,
        /// Keys of the request.
        expected: usize,
    },
    /// Bits behind those of the last key are set.
    #[error("bits behind the last key are set")]
    StrayBits,
    /// A removal's outcome is none of those that exist.
    #[error("{0} is no outcome of a removal")]
    UnknownOutcome(u8),
    /// A byte that chooses among several stands for none of them.
    #[error("{code} stands for no {what}")]
    UnknownCode {
        /// What it was to choose.
        what: &'static str,
        /// The byte.
        code: u8,
    },
    /// The message is of a version that this package does not speak.
    #[error("version {found} of the formats is not spoken here, but {ours}")]
    Version {
        /// The version.
        found: FormatVersion,
        /// Those that are spoken.
        ours: FormatVersions,
    },
    /// The oldest version that a node speaks is 0, or newer than its newest.
    #[error("versions {0} are no range")]
    VersionsOutOfOrder(FormatVersions),
    /// A list is longer than messages have it.
    #[error("{found} items are above the limit of {items_max}")]
    TooManyItems {
        /// Items that are announced.
        found: usize,
        /// The limit.
        items_max: usize,
    },
    /// More bytes than one answer has, or than there is room for.
    #[error("{0} bytes are more than fit")]
    TooMuchRoom(u64),
    /// Keys of a page come in the order of their fingerprints, and behind where it begins.
    #[error("keys are out of their order")]
    KeysOutOfOrder,
    /// No memory has such a place.
    #[error("a descriptor names what no memory has")]
    Descriptor,
    /// A node has 1 to [`CORES_MAX`] cores, each with its port.
    #[error("{0} ports are not within 1 to {CORES_MAX}")]
    PortsOutOfLimits(usize),
    /// The core that sends a card is one of those that the card lists.
    #[error("the card of core {core} lists {ports} ports")]
    CoreOutOfLimits {
        /// The core that sends the card.
        core: u16,
        /// The ports that the card lists.
        ports: usize,
    },
}

/// Refuses what follows the last field.
fn end_of(reader: &Reader<'_>) -> Result<(), MessageFault> {
    match reader.rest().len() {
        0 => Ok(()),
        trailing => Err(MessageFault::Trailing(trailing)),
    }
}

/// The body of a get or a put: a key behind its 16-bit length. It borrows the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRequest<'a> {
    /// The object's key.
    pub key: Key<'a>,
}

impl<'a> KeyRequest<'a> {
    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer::new(out).short_bytes(self.key.bytes());
    }

    /// The request in `body`.
    ///
    /// # Errors
    /// [`MessageFault`] if it holds anything else than one valid key.
    pub fn decode(body: &'a [u8]) -> Result<Self, MessageFault> {
        let mut reader = Reader::new(body);
        let key = Key::new(reader.short_bytes()?)?;
        end_of(&reader)?;
        Ok(Self { key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_key_request() {
        let mut body = Vec::new();
        KeyRequest {
            key: Key::new(b"abc").expect("a key"),
        }
        .encode(&mut body);
        assert_eq!(body, *b"\x03\0abc");
    }

    #[test]
    fn a_key_request_is_one_key_and_nothing_else() {
        let decode = |body| KeyRequest::decode(body).map(|request| request.key.bytes());
        assert_eq!(decode(b"\x01\0a"), Ok(&b"a"[..]));
        assert_eq!(decode(b"\x01\0ab"), Err(MessageFault::Trailing(1)));
        assert_eq!(decode(b"\0\0"), Err(MessageFault::Key(KeyFault::Empty)));
        let truncated = Truncated {
            needed_bytes: 2,
            left_bytes: 1,
        };
        assert_eq!(decode(b"\x02\0a"), Err(MessageFault::Truncated(truncated)));
        let long = [&1025_u16.to_le_bytes()[..], &[7; 1025]].concat();
        let fault = KeyFault::TooLong { len_bytes: 1025 };
        assert_eq!(decode(&long), Err(MessageFault::Key(fault)));
    }
}
