//! The frames of the handshake.
//!
//! ```text
//!  0             3         4      5      6           8
//!  | 'L' 'n' 'A' | version | kind | code | body_len  | body
//! ```
//!
//! The first eight bytes keep their layout in every later version, so that peers that share no
//! version can say so. Bodies, in version 1:
//!
//! | kind | body |
//! |---|---|
//! | hello, reply | a Noise message: 32 bytes of ephemeral key, 16 of sealed [`Party`], 16 of tag |
//! | confirm | 32 bytes, the proof |
//! | refusal | for a version mismatch the oldest and the newest version spoken, else empty |

use lunette_runtime_core::codec::{Reader, Writer};
use thiserror::Error;

use crate::session::{Encryption, Party};

/// The version that this package speaks.
pub(crate) const VERSION: u8 = 1;
pub(crate) const HEADER_BYTES: usize = 8;
/// Longest body that is read.
pub(crate) const BODY_BYTES_MAX: usize = 64;
pub(crate) const NOISE_BYTES: usize = 32 + PARTY_BYTES + 16;
pub(crate) const CONFIRM_BYTES: usize = 32;
pub(crate) const PARTY_BYTES: usize = 16;

const MAGIC: [u8; 3] = *b"LnA";
const WISH_ENCRYPTION: u8 = 1;

const _: () = assert!(NOISE_BYTES <= BODY_BYTES_MAX && CONFIRM_BYTES <= BODY_BYTES_MAX);

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The initiator's first message.
    Hello,
    /// The responder's answer.
    Reply,
    /// The initiator's proof.
    Confirm,
    /// The responder's no.
    Refusal,
}

/// What is wrong with a frame. The peer is no Lunette, or bytes were damaged.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Malformed {
    /// The first bytes are not those of a handshake: the peer does not authenticate, or is
    /// something else altogether.
    #[error("the peer does not speak this handshake")]
    NotAHandshake,
    /// A kind that version 1 does not know.
    #[error("frame of the unknown kind {kind}")]
    UnknownKind {
        /// The kind as it came.
        kind: u8,
    },
    /// A known kind that has no place here.
    #[error("unexpected {kind:?}")]
    Unexpected {
        /// The kind.
        kind: Kind,
    },
    /// A body of the wrong length.
    #[error("{kind:?} with a body of {len_bytes} bytes")]
    BodyLength {
        /// The frame's kind.
        kind: Kind,
        /// The length it says.
        len_bytes: usize,
    },
    /// What the peer says of itself, under the right secret, makes no sense to this version.
    #[error("the peer says of itself what this version does not know")]
    Party,
}

/// The fixed first bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u8,
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) body_len: u16,
}

impl Kind {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Reply => 2,
            Self::Confirm => 3,
            Self::Refusal => 4,
        }
    }

    pub(crate) const fn of_byte(kind: u8) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Self::Hello,
            2 => Self::Reply,
            3 => Self::Confirm,
            4 => Self::Refusal,
            kind => return Err(Malformed::UnknownKind { kind }),
        })
    }
}

/// Whether `bytes`, at most the first three of a stream, can begin a handshake.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    let len = bytes.len().min(MAGIC.len());
    bytes[..len] == MAGIC[..len]
}

impl Header {
    /// Reads the header behind its magic, which the caller has checked as it came.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [_, _, _, version, kind, code, low, high] = *bytes;
        let body_len = u16::from_le_bytes([low, high]);
        Self {
            version,
            kind,
            code,
            body_len,
        }
    }
}

/// Appends a frame.
pub(crate) fn append(out: &mut Vec<u8>, kind: Kind, code: u8, body: &[u8]) {
    assert!(body.len() <= BODY_BYTES_MAX, "bodies have fixed lengths");
    Writer::new(out)
        .bytes(&MAGIC)
        .u8(VERSION)
        .u8(kind.to_byte())
        .u8(code)
        .short_bytes(body);
}

impl Party {
    /// Epoch (8 bytes), wishes (1), and 7 bytes that are zero in this version.
    pub(crate) fn encode(self) -> [u8; PARTY_BYTES] {
        let mut bytes = [0; PARTY_BYTES];
        bytes[..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8] = match self.encryption {
            Encryption::Optional => 0,
            Encryption::Required => WISH_ENCRYPTION,
        };
        bytes
    }

    /// What is reserved must be zero: a later version may mean by it what must not be overlooked.
    pub(crate) fn decode(bytes: &[u8; PARTY_BYTES]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let epoch = reader.u64().map_err(|_| Malformed::Party)?;
        let wishes = reader.u8().map_err(|_| Malformed::Party)?;
        let encryption = match wishes {
            0 => Encryption::Optional,
            WISH_ENCRYPTION => Encryption::Required,
            _ => return Err(Malformed::Party),
        };
        if reader.rest().iter().any(|&byte| byte != 0) {
            return Err(Malformed::Party);
        }
        Ok(Self { epoch, encryption })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_layout() {
        let mut out = Vec::new();
        append(&mut out, Kind::Refusal, 2, &[1, 3]);
        assert_eq!(out, [b'L', b'n', b'A', 1, 4, 2, 2, 0, 1, 3]);
        let header = Header::decode(out.first_chunk().unwrap());
        let expected = Header {
            version: 1,
            kind: 4,
            code: 2,
            body_len: 2,
        };
        assert_eq!(header, expected);
        let party = Party {
            epoch: 0x0807_0605_0403_0201,
            encryption: Encryption::Required,
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(party.encode(), bytes);
        assert_eq!(Party::decode(&bytes), Ok(party));
    }

    #[test]
    fn what_is_reserved_is_refused() {
        for (at, value) in [(8, 2), (8, 3), (9, 1), (15, 128)] {
            let mut bytes = [0; PARTY_BYTES];
            bytes[at] = value;
            assert_eq!(Party::decode(&bytes), Err(Malformed::Party));
        }
    }

    #[test]
    fn kinds_come_back_and_others_are_unknown() {
        let known = [Kind::Hello, Kind::Reply, Kind::Confirm, Kind::Refusal];
        for kind in 0..=u8::MAX {
            let expected = known.into_iter().find(|known| known.to_byte() == kind);
            assert_eq!(Kind::of_byte(kind).ok(), expected);
        }
    }

    #[test]
    fn a_stream_is_recognized_by_its_first_bytes() {
        assert!(may_begin(b"") && may_begin(b"Ln") && may_begin(b"LnA\xff"));
        assert!(!may_begin(b"G") && !may_begin(b"LnB") && !may_begin(b"GET / HTTP/1.1"));
    }
}
