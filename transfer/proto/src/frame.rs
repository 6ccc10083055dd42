//! The frame: 40 bytes of header, a body for the protocol, a payload for the destination.
//!
//! ```text
//!  offset  0        2    3    4        6        8                        16
//!         +--------+----+----+--------+--------+------------------------+
//!         | magic  |ver |kind| code   | flags  | request id             |
//!         +--------+----+----+--------+--------+-----------+------------+
//!      16 | body_len        | payload_len     | payload_crc| body_crc   |
//!         +-----------------+-----------------+------------+------------+
//!      32 | reserved, 0     | header_crc      |  body bytes ...
//!         +-----------------+-----------------+  payload bytes ...
//! ```
//!
//! All fields are little-endian. `header_crc` is the CRC32C of bytes `0..36` and is checked before
//! any length is believed. The header keeps this shape in every wire version up to the version
//! byte; hello frames are written in version 1 for ever.

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::limits::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};

mod fault;

pub use fault::FrameFault;

/// Length of an encoded [`FrameHeader`], in bytes.
pub const HEADER_BYTES: usize = 40;
/// The first two bytes of each frame, `LN`.
pub const MAGIC: u16 = u16::from_le_bytes(*b"LN");
/// The wire version of each frame that this package writes.
pub const WIRE_VERSION: u8 = 1;

/// Reason of a [goaway](FrameKind::Goaway) that says in place of an id how many requests its sender has read on this
/// connection: those behind are not carried out.
pub const GOAWAY_HAS_READ: u16 = 1;

/// Bytes of the header that its checksum covers.
const HEADER_SUMMED_BYTES: usize = HEADER_BYTES - 4;

/// What a frame is for. It decides what [`FrameHeader::code`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameKind {
    /// The initiator's first frame; code 0.
    Hello,
    /// The acceptor's answer to it; code 0, or why it refuses.
    HelloAck,
    /// A call; the code is its operation.
    Request,
    /// The answer to a call; the code is its status.
    Response,
    /// The sender reads no more requests on this connection; the code is the reason. What it has read it may still answer.
    Goaway,
}

impl FrameKind {
    /// Every kind, in the order of its wire value.
    pub const ALL: [Self; 5] = [
        Self::Hello,
        Self::HelloAck,
        Self::Request,
        Self::Response,
        Self::Goaway,
    ];

    /// Whether a payload may follow a frame of this kind.
    #[must_use]
    pub const fn may_carry_payload(self) -> bool {
        matches!(self, Self::Request | Self::Response)
    }

    const fn to_wire(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::HelloAck => 2,
            Self::Request => 3,
            Self::Response => 4,
            Self::Goaway => 5,
        }
    }

    fn from_wire(found: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_wire() == found)
    }
}

/// Length and checksum of a payload, known to its sender without touching the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PayloadDigest {
    /// Length in bytes, at most [`PAYLOAD_BYTES_MAX`].
    pub len_bytes: u32,
    /// CRC32C of the bytes; 0 for no bytes.
    pub crc32c: u32,
}

/// The header of one frame, as far as it varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameHeader {
    /// What the frame is for.
    pub kind: FrameKind,
    /// Operation of a request, status of a response, reason of a refusal or goaway.
    pub code: u16,
    /// The call that the frame belongs to; outside calls 0, or [what was read](GOAWAY_HAS_READ).
    pub id: RequestId,
    /// Length of the body, in bytes.
    pub body_len_bytes: u32,
    /// CRC32C of the body; 0 for an empty one.
    pub body_crc32c: u32,
    /// The payload that follows the body; of length 0 if there is none.
    pub payload: PayloadDigest,
}

impl FrameHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        out[2] = WIRE_VERSION;
        out[3] = self.kind.to_wire();
        out[4..6].copy_from_slice(&self.code.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_len_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.payload.len_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.payload.crc32c.to_le_bytes());
        out[28..32].copy_from_slice(&self.body_crc32c.to_le_bytes());
        let header_crc32c = crc32c(&out[..HEADER_SUMMED_BYTES]);
        out[HEADER_SUMMED_BYTES..].copy_from_slice(&header_crc32c.to_le_bytes());
        out
    }

    /// Reads a header. Total: any 40 bytes give a header or a fault.
    ///
    /// Magic and version come first, because another version may keep its checksum elsewhere; then
    /// the checksum; then the rest. Lengths are bounded by the global limits here, and by those of
    /// the connection in the [`Receiver`](crate::receiver::Receiver).
    ///
    /// # Errors
    /// A [`FrameFault`]: close the connection.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameFault> {
        check_envelope(bytes)?;
        let kind =
            FrameKind::from_wire(bytes[3]).ok_or(FrameFault::UnknownKind { found: bytes[3] })?;
        check_zeroes(bytes)?;
        let payload = PayloadDigest {
            len_bytes: u32_at(bytes, 20),
            crc32c: u32_at(bytes, 24),
        };
        let header = Self {
            kind,
            code: u16_at(bytes, 4),
            id: RequestId(u64_at(bytes, 8)),
            body_len_bytes: u32_at(bytes, 16),
            body_crc32c: u32_at(bytes, 28),
            payload,
        };
        header.check_lengths(bytes_u32(BODY_BYTES_MAX), bytes_u32(PAYLOAD_BYTES_MAX))?;
        Ok(header)
    }

    /// Checks the lengths against a receiver's limits.
    pub(crate) fn check_lengths(
        &self,
        body_bytes_max: u32,
        payload_bytes_max: u32,
    ) -> Result<(), FrameFault> {
        if self.body_len_bytes > body_bytes_max {
            let len_bytes = self.body_len_bytes;
            return Err(FrameFault::BodyTooLong {
                len_bytes,
                max_bytes: body_bytes_max,
            });
        }
        let PayloadDigest { len_bytes, crc32c } = self.payload;
        if len_bytes == 0 && crc32c != 0 {
            return Err(FrameFault::StrayPayloadCrc { found: crc32c });
        }
        if len_bytes > 0 && !self.kind.may_carry_payload() {
            return Err(FrameFault::PayloadNotAllowed { kind: self.kind });
        }
        if len_bytes > payload_bytes_max {
            return Err(FrameFault::PayloadTooLong {
                len_bytes,
                max_bytes: payload_bytes_max,
            });
        }
        Ok(())
    }
}

/// Appends the control part of a frame, header and body, to a buffer of outgoing control bytes.
///
/// The payload, if any, is not copied: the caller sends its `payload.len_bytes` bytes right behind
/// the control part, from where they lie. A payload of length 0 is the same as none.
///
/// # Panics
/// If the body or payload exceeds the global limits, or a kind without payload is given one:
/// callers bound what they send. Nothing has been appended then.
pub fn encode_frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    code: u16,
    id: RequestId,
    body: &[u8],
    payload: Option<PayloadDigest>,
) {
    assert!(
        body.len() <= BODY_BYTES_MAX,
        "a body of {} bytes exceeds the limit",
        body.len()
    );
    let payload = payload.unwrap_or_default();
    let header = FrameHeader {
        kind,
        code,
        id,
        body_len_bytes: bytes_u32(body.len()),
        body_crc32c: crc32c(body),
        payload,
    };
    let lengths = header.check_lengths(bytes_u32(BODY_BYTES_MAX), bytes_u32(PAYLOAD_BYTES_MAX));
    assert!(lengths.is_ok(), "a frame that no peer accepts: {lengths:?}");
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(body);
}

/// A length that one of the global limits bounds, as the wire has it.
pub(crate) fn bytes_u32(len_bytes: usize) -> u32 {
    u32::try_from(len_bytes).expect("the limits on lengths fit 32 bits")
}

fn check_envelope(bytes: &[u8; HEADER_BYTES]) -> Result<(), FrameFault> {
    let magic = u16_at(bytes, 0);
    if magic != MAGIC {
        return Err(FrameFault::BadMagic { found: magic });
    }
    if bytes[2] != WIRE_VERSION {
        return Err(FrameFault::BadVersion { found: bytes[2] });
    }
    let expected = u32_at(bytes, HEADER_SUMMED_BYTES);
    let computed = crc32c(&bytes[..HEADER_SUMMED_BYTES]);
    if expected != computed {
        return Err(FrameFault::HeaderCorrupt { expected, computed });
    }
    Ok(())
}

fn check_zeroes(bytes: &[u8; HEADER_BYTES]) -> Result<(), FrameFault> {
    let flags = u16_at(bytes, 6);
    if flags != 0 {
        return Err(FrameFault::UnknownFlags { found: flags });
    }
    let reserved = u32_at(bytes, 32);
    if reserved != 0 {
        return Err(FrameFault::ReservedNotZero { found: reserved });
    }
    Ok(())
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    *bytes[at..]
        .first_chunk()
        .expect("field offsets are constants within the header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Response,
            code: 0x0102,
            id: RequestId(0x1112_1314_1516_1718),
            body_len_bytes: 3,
            body_crc32c: 0x3132_3334,
            payload: PayloadDigest {
                len_bytes: 0x0001_0203,
                crc32c: 0x2122_2324,
            },
        }
    }

    /// Changes a byte and makes the checksum fit again, as a faulty peer would.
    fn forged(at: usize, value: u8) -> [u8; HEADER_BYTES] {
        let mut bytes = header().encode();
        bytes[at] = value;
        resum(&mut bytes);
        bytes
    }

    fn resum(bytes: &mut [u8; HEADER_BYTES]) {
        let crc = crc32c(&bytes[..HEADER_SUMMED_BYTES]);
        bytes[HEADER_SUMMED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn golden_layout() {
        #[rustfmt::skip]
        let golden = [
            b'L', b'N', 1, 4, 0x02, 0x01, 0, 0,
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
            3, 0, 0, 0, 0x03, 0x02, 0x01, 0x00,
            0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31,
            0, 0, 0, 0, 0xd4, 0x37, 0x2c, 0xf5,
        ];
        assert_eq!(header().encode(), golden);
        assert_eq!(FrameHeader::decode(&golden), Ok(header()));
    }

    #[test]
    fn every_kind_has_its_wire_value() {
        let wire: Vec<u8> = FrameKind::ALL.into_iter().map(FrameKind::to_wire).collect();
        assert_eq!(wire, [1, 2, 3, 4, 5]);
        for found in 0..=u8::MAX {
            let known = FrameKind::from_wire(found).map(FrameKind::to_wire);
            assert_eq!(known, (1..=5).contains(&found).then_some(found));
        }
    }

    #[test]
    fn each_fault_is_told_apart() {
        let cases = [
            (forged(0, b'X'), FrameFault::BadMagic { found: 0x4e58 }),
            (forged(2, 2), FrameFault::BadVersion { found: 2 }),
            (forged(3, 0), FrameFault::UnknownKind { found: 0 }),
            (forged(3, 6), FrameFault::UnknownKind { found: 6 }),
            (forged(6, 1), FrameFault::UnknownFlags { found: 1 }),
            (forged(7, 0x80), FrameFault::UnknownFlags { found: 0x8000 }),
            (forged(32, 9), FrameFault::ReservedNotZero { found: 9 }),
            (
                forged(3, 1),
                FrameFault::PayloadNotAllowed {
                    kind: FrameKind::Hello,
                },
            ),
            (
                forged(3, 5),
                FrameFault::PayloadNotAllowed {
                    kind: FrameKind::Goaway,
                },
            ),
        ];
        for (bytes, fault) in cases {
            assert_eq!(FrameHeader::decode(&bytes), Err(fault));
            assert!(!fault.is_corruption() && !fault.is_retryable(), "{fault}");
        }
    }

    #[test]
    fn any_flipped_bit_is_a_fault() {
        let good = header().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let fault = FrameHeader::decode(&bytes).expect_err("a damaged header is refused");
            let checked_before_crc = bit < 24;
            assert_eq!(
                fault.is_corruption(),
                !checked_before_crc,
                "bit {bit}: {fault}"
            );
        }
    }

    #[test]
    fn lengths_are_accepted_up_to_the_limits_and_no_further() {
        let mut at_limit = header();
        at_limit.body_len_bytes = bytes_u32(BODY_BYTES_MAX);
        at_limit.payload.len_bytes = bytes_u32(PAYLOAD_BYTES_MAX);
        assert_eq!(FrameHeader::decode(&at_limit.encode()), Ok(at_limit));

        let mut beyond = at_limit;
        beyond.body_len_bytes += 1;
        let (len_bytes, max_bytes) = (beyond.body_len_bytes, at_limit.body_len_bytes);
        let fault = FrameFault::BodyTooLong {
            len_bytes,
            max_bytes,
        };
        assert_eq!(FrameHeader::decode(&beyond.encode()), Err(fault));

        let mut beyond = at_limit;
        beyond.payload.len_bytes += 1;
        let (len_bytes, max_bytes) = (beyond.payload.len_bytes, at_limit.payload.len_bytes);
        let fault = FrameFault::PayloadTooLong {
            len_bytes,
            max_bytes,
        };
        assert_eq!(FrameHeader::decode(&beyond.encode()), Err(fault));
    }

    #[test]
    fn a_checksum_without_a_payload_is_refused() {
        let mut stray = header();
        stray.payload.len_bytes = 0;
        let fault = FrameFault::StrayPayloadCrc {
            found: stray.payload.crc32c,
        };
        assert_eq!(FrameHeader::decode(&stray.encode()), Err(fault));
    }

    #[test]
    fn encode_frame_appends_header_and_body() {
        let mut out = vec![7];
        let payload = PayloadDigest {
            len_bytes: 5,
            crc32c: 6,
        };
        encode_frame(
            &mut out,
            FrameKind::Request,
            9,
            RequestId(8),
            b"body",
            Some(payload),
        );
        assert_eq!(out.len(), 1 + HEADER_BYTES + 4);
        let header = FrameHeader::decode(out[1..].first_chunk().unwrap()).unwrap();
        assert_eq!(header.payload, payload);
        assert_eq!(
            (header.kind, header.code, header.id.0),
            (FrameKind::Request, 9, 8)
        );
        assert_eq!(
            (header.body_len_bytes, header.body_crc32c),
            (4, crc32c(b"body"))
        );
        assert_eq!(&out[1 + HEADER_BYTES..], b"body");
    }

    #[test]
    #[should_panic(expected = "a frame that no peer accepts")]
    fn a_payload_behind_a_goaway_is_a_bug_of_the_caller() {
        let payload = PayloadDigest {
            len_bytes: 1,
            crc32c: 0,
        };
        encode_frame(
            &mut Vec::new(),
            FrameKind::Goaway,
            0,
            RequestId(0),
            &[],
            Some(payload),
        );
    }

    #[test]
    #[should_panic(expected = "exceeds the limit")]
    fn a_body_beyond_the_limit_is_a_bug_of_the_caller() {
        let body = vec![0; BODY_BYTES_MAX + 1];
        encode_frame(
            &mut Vec::new(),
            FrameKind::Request,
            0,
            RequestId(0),
            &body,
            None,
        );
    }
}
