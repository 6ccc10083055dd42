//! The first exchange of a connection: who speaks which versions, within which limits.
//!
//! ```text
//!   initiator                                        acceptor
//!   Start --start--> AwaitAck  ---- Hello ---->      AwaitHello
//!                    |         <--- HelloAck ---     |
//!                    +--> Open (code 0)              +--> Open
//!                    +--> Failed (refused, timeout)  +--> Failed (refuses, timeout)
//! ```
//!
//! Hello and its answer keep their layout and their frame version 1 in every later version of the
//! wire, so that peers that share no version can still say so to each other.

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use thiserror::Error;

use crate::calls::IN_FLIGHT_MAX;
use crate::frame::{FrameKind, WIRE_VERSION, bytes_u32, encode_frame};
use crate::receiver::FrameView;

mod machine;

pub use machine::{Handshake, HandshakeFault, HandshakeOutput};

/// Longest greeting, in bytes.
pub const GREETING_BYTES_MAX: usize = 4096;
/// Longest body of a hello or of its answer, in bytes.
pub const HELLO_BODY_BYTES_MAX: u32 = 22 + 4096;

const _: () = assert!(HELLO_BODY_BYTES_MAX as usize == 22 + GREETING_BYTES_MAX);

/// Hello frames belong to no call.
const HELLO_ID: RequestId = RequestId(0);
const CODE_ACCEPTED: u16 = 0;
const CODE_VERSION_MISMATCH: u16 = 1;
const CODE_BUSY: u16 = 2;
const CODE_MALFORMED: u16 = 3;

/// The wire versions that a side speaks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest, at least 1.
    pub min: u8,
    /// The newest, at least `min`.
    pub max: u8,
}

impl VersionRange {
    /// The versions that this package speaks.
    pub const OURS: Self = Self {
        min: WIRE_VERSION,
        max: WIRE_VERSION,
    };

    const fn is_valid(self) -> bool {
        1 <= self.min && self.min <= self.max
    }

    /// The newest version that both speak.
    fn newest_common(self, other: Self) -> Option<u8> {
        let newest = self.max.min(other.max);
        (newest >= self.min && newest >= other.min).then_some(newest)
    }

    const fn contains(self, version: u8) -> bool {
        self.min <= version && version <= self.max
    }
}

/// What one side offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The wire versions that it speaks.
    pub versions: VersionRange,
    /// Changes whenever the sending process starts anew: what it said in an earlier epoch is void.
    pub session_epoch: u64,
    /// Most requests in flight on the connection, `1..=IN_FLIGHT_MAX`.
    pub in_flight_max: u32,
    /// Longest payload of one frame, in bytes, `1..=PAYLOAD_BYTES_MAX`.
    pub payload_bytes_max: u32,
    /// Bytes for the layer above, at most [`GREETING_BYTES_MAX`]; opaque here.
    pub greeting: Vec<u8>,
}

/// What both sides go by on an open connection, and what the peer said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The wire version, the newest that both speak.
    pub version: u8,
    /// Most requests in flight on the connection: the smaller of both offers.
    pub in_flight_max: u32,
    /// Longest payload of one frame, in bytes: the smaller of both offers.
    pub payload_bytes_max: u32,
    /// The peer's session epoch.
    pub session_epoch: u64,
    /// The peer's greeting, at most [`GREETING_BYTES_MAX`] bytes.
    pub greeting: Vec<u8>,
}

/// Why an acceptor refuses a connection. Sent as the code of its `HelloAck`.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HelloRefusal {
    /// The two sides share no version. `ours` is of the side that reads this.
    #[error("no common wire version: ours {ours:?}, theirs {theirs:?}")]
    VersionMismatch {
        /// The versions of the side that holds this value.
        ours: VersionRange,
        /// The versions of its peer.
        theirs: VersionRange,
    },
    /// The acceptor has as many connections as it takes. Try later, or another node.
    #[error("the acceptor takes no more connections now")]
    Busy,
    /// The acceptor could not read the hello.
    #[error("the acceptor could not read the hello")]
    Malformed,
    /// A reason that only a newer acceptor knows.
    #[error("refused with the unknown code {code}")]
    Other {
        /// The reason as it came.
        code: u16,
    },
}

impl HelloRefusal {
    /// Whether the same hello may be accepted later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.is_backpressure()
    }

    /// Whether the acceptor is at a limit.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Appends the refusal's frame to outgoing control bytes. Send it, then close: an acceptor may
    /// say [`Busy`](Self::Busy) before it has read a hello.
    pub fn append_frame(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let code = match *self {
            Self::VersionMismatch { ours, .. } => {
                Writer::new(&mut body).u8(ours.min).u8(ours.max);
                CODE_VERSION_MISMATCH
            }
            Self::Busy => CODE_BUSY,
            Self::Malformed => CODE_MALFORMED,
            Self::Other { code } => {
                assert_ne!(code, CODE_ACCEPTED, "code 0 accepts");
                code
            }
        };
        encode_frame(out, FrameKind::HelloAck, code, HELLO_ID, &body, None);
    }

    fn decode(code: u16, body: &[u8], ours: VersionRange) -> Result<Self, Malformed> {
        Ok(match code {
            CODE_VERSION_MISMATCH => {
                let mut reader = Reader::new(body);
                let theirs = read_versions(&mut reader)?;
                Self::VersionMismatch { ours, theirs }
            }
            CODE_BUSY => Self::Busy,
            CODE_MALFORMED => Self::Malformed,
            code => Self::Other { code },
        })
    }
}

/// What is wrong with the body of a hello or of its answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Malformed {
    /// The body ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// The body goes on behind its last field.
    #[error("{trailing_bytes} bytes behind the last field")]
    Trailing {
        /// How many bytes are too many.
        trailing_bytes: usize,
    },
    /// The greeting is longer than [`GREETING_BYTES_MAX`].
    #[error("greeting of {len_bytes} bytes")]
    GreetingTooLong {
        /// The greeting's length.
        len_bytes: usize,
    },
    /// A field has a value outside its range, or outside what was offered.
    #[error("{field} is out of range")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
    },
}

impl Hello {
    /// The body of a hello, and of an accepting answer:
    ///
    /// ```text
    ///  0        1        2        4              8                  12             20        22
    ///  | min    | max    | 0      | in_flight    | payload_bytes    | epoch        | len     | greeting
    /// ```
    fn encode(&self, body: &mut Vec<u8>) {
        Writer::new(body)
            .u8(self.versions.min)
            .u8(self.versions.max)
            .u16(0)
            .u32(self.in_flight_max)
            .u32(self.payload_bytes_max)
            .u64(self.session_epoch)
            .short_bytes(&self.greeting);
    }

    /// Reads a hello. Offers beyond this package's limits are kept as they are: the smaller of both
    /// offers counts. The two reserved bytes are for later versions and not looked at.
    fn decode(frame: FrameView<'_>) -> Result<Self, Malformed> {
        let mut reader = Reader::new(frame.body);
        let versions = read_versions(&mut reader)?;
        reader.u16()?;
        let in_flight_max = reader.u32()?;
        let payload_bytes_max = reader.u32()?;
        let session_epoch = reader.u64()?;
        let greeting = reader.short_bytes()?;
        let trailing_bytes = reader.rest().len();
        if trailing_bytes > 0 {
            return Err(Malformed::Trailing { trailing_bytes });
        }
        if greeting.len() > GREETING_BYTES_MAX {
            return Err(Malformed::GreetingTooLong {
                len_bytes: greeting.len(),
            });
        }
        check("in_flight_max", in_flight_max > 0)?;
        check("payload_bytes_max", payload_bytes_max > 0)?;
        let greeting = greeting.to_vec();
        Ok(Self {
            versions,
            session_epoch,
            in_flight_max,
            payload_bytes_max,
            greeting,
        })
    }

    /// Checks what this side is about to offer.
    fn check(&self) -> Result<(), Malformed> {
        check("versions", self.versions.is_valid())?;
        check(
            "in_flight_max",
            (1..=IN_FLIGHT_MAX).contains(&self.in_flight_max),
        )?;
        let payload_bytes = 1..=bytes_u32(PAYLOAD_BYTES_MAX);
        check(
            "payload_bytes_max",
            payload_bytes.contains(&self.payload_bytes_max),
        )?;
        check("greeting", self.greeting.len() <= GREETING_BYTES_MAX)
    }
}

fn read_versions(reader: &mut Reader<'_>) -> Result<VersionRange, Malformed> {
    let versions = VersionRange {
        min: reader.u8()?,
        max: reader.u8()?,
    };
    check("versions", versions.is_valid())?;
    Ok(versions)
}

const fn check(field: &'static str, is_in_range: bool) -> Result<(), Malformed> {
    if is_in_range {
        Ok(())
    } else {
        Err(Malformed::OutOfRange { field })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameHeader, PayloadDigest};

    fn hello() -> Hello {
        Hello {
            versions: VersionRange { min: 1, max: 2 },
            session_epoch: 0x1112_1314_1516_1718,
            in_flight_max: 0x0304,
            payload_bytes_max: 0x0506,
            greeting: b"hi".to_vec(),
        }
    }

    fn encoded(hello: &Hello) -> Vec<u8> {
        let mut body = Vec::new();
        hello.encode(&mut body);
        body
    }

    fn decode(body: &[u8]) -> Result<Hello, Malformed> {
        let payload = PayloadDigest::default();
        let (kind, code, id) = (FrameKind::Hello, 0, HELLO_ID);
        let header = FrameHeader {
            kind,
            code,
            id,
            body_len_bytes: 0,
            body_crc32c: 0,
            payload,
        };
        Hello::decode(FrameView { header, body })
    }

    #[test]
    fn golden_layout() {
        #[rustfmt::skip]
        let golden = [
            1, 2, 0, 0, 0x04, 0x03, 0, 0, 0x06, 0x05, 0, 0,
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 2, 0, b'h', b'i',
        ];
        assert_eq!(encoded(&hello()), golden);
        assert_eq!(decode(&golden), Ok(hello()));
    }

    #[test]
    fn a_cut_or_longer_body_is_malformed() {
        let mut body = encoded(&hello());
        for len in 0..body.len() {
            let cut = decode(&body[..len]);
            assert!(
                matches!(cut, Err(Malformed::Truncated(_))),
                "cut at {len}: {cut:?}"
            );
        }
        body.push(0);
        assert_eq!(
            decode(&body),
            Err(Malformed::Trailing { trailing_bytes: 1 })
        );
    }

    #[test]
    fn greetings_are_accepted_up_to_their_limit() {
        let longest = Hello {
            greeting: vec![1; GREETING_BYTES_MAX],
            ..hello()
        };
        let body = encoded(&longest);
        assert_eq!(body.len(), HELLO_BODY_BYTES_MAX as usize);
        assert_eq!(decode(&body), Ok(longest.clone()));
        assert_eq!(longest.check(), Ok(()));

        let longer = Hello {
            greeting: vec![1; GREETING_BYTES_MAX + 1],
            ..hello()
        };
        let len_bytes = GREETING_BYTES_MAX + 1;
        assert_eq!(
            decode(&encoded(&longer)),
            Err(Malformed::GreetingTooLong { len_bytes })
        );
        assert_eq!(
            longer.check(),
            Err(Malformed::OutOfRange { field: "greeting" })
        );
    }

    #[test]
    fn offers_are_checked_on_both_ends_of_their_ranges() {
        let range = |min, max| Hello {
            versions: VersionRange { min, max },
            ..hello()
        };
        let payload = |payload_bytes_max| Hello {
            payload_bytes_max,
            ..hello()
        };
        let in_flight = |in_flight_max| Hello {
            in_flight_max,
            ..hello()
        };
        let payload_max = bytes_u32(PAYLOAD_BYTES_MAX);
        for good in [
            range(1, 1),
            range(1, 255),
            payload(1),
            payload(payload_max),
            in_flight(1),
        ] {
            assert_eq!(
                (good.check(), decode(&encoded(&good))),
                (Ok(()), Ok(good.clone()))
            );
        }
        for bad in [range(0, 1), range(2, 1), payload(0), in_flight(0)] {
            assert!(
                bad.check().is_err() && decode(&encoded(&bad)).is_err(),
                "{bad:?}"
            );
        }
        // A peer may offer more than this side can: the smaller offer counts.
        for generous in [payload(payload_max + 1), in_flight(IN_FLIGHT_MAX + 1)] {
            assert!(generous.check().is_err());
            assert_eq!(decode(&encoded(&generous)), Ok(generous.clone()));
        }
    }

    #[test]
    fn refusals_come_back_as_they_were_sent() {
        let (ours, theirs) = (
            VersionRange { min: 1, max: 2 },
            VersionRange { min: 3, max: 4 },
        );
        let refusals = [
            HelloRefusal::VersionMismatch { ours, theirs },
            HelloRefusal::Busy,
            HelloRefusal::Malformed,
            HelloRefusal::Other { code: 4 },
            HelloRefusal::Other { code: u16::MAX },
        ];
        for refusal in refusals {
            let mut out = Vec::new();
            refusal.append_frame(&mut out);
            let (header, body) = out.split_first_chunk().unwrap();
            let code = FrameHeader::decode(header).unwrap().code;
            let seen = match refusal {
                HelloRefusal::VersionMismatch { ours, theirs } => HelloRefusal::VersionMismatch {
                    ours: theirs,
                    theirs: ours,
                },
                other => other,
            };
            assert_eq!(HelloRefusal::decode(code, body, theirs), Ok(seen));
            assert_eq!(refusal.is_backpressure(), refusal == HelloRefusal::Busy);
        }
        let cut = HelloRefusal::decode(CODE_VERSION_MISMATCH, &[1], ours);
        assert!(matches!(cut, Err(Malformed::Truncated(_))));
    }

    #[test]
    fn the_newest_common_version_is_chosen() {
        let range = |min, max| VersionRange { min, max };
        let cases = [
            (range(1, 1), range(1, 1), Some(1)),
            (range(1, 3), range(2, 5), Some(3)),
            (range(1, 9), range(2, 5), Some(5)),
            (range(1, 2), range(2, 2), Some(2)),
            (range(1, 2), range(3, 3), None),
        ];
        for (a, b, newest) in cases {
            assert_eq!((a.newest_common(b), b.newest_common(a)), (newest, newest));
        }
    }
}
