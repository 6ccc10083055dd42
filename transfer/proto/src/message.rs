//! A frame by itself, in a message of its own: for channels that carry messages in place of a stream, such as two
//! RDMA adapters. It is whole, without a payload, and nothing is behind it.

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::RequestId;
use thiserror::Error;

use crate::frame::{FrameFault, FrameHeader, FrameKind, HEADER_BYTES, encode_frame};
use crate::receiver::FrameView;

/// Most bytes of a message, header included. What is longer goes over a stream.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// Bytes that are no message: end the channel.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MessageFault {
    /// There is no header, or none that is acceptable.
    #[error(transparent)]
    Frame(#[from] FrameFault),
    /// It is shorter than a header.
    #[error("a message of {len_bytes} bytes is shorter than a header")]
    Short {
        /// How long it is.
        len_bytes: usize,
    },
    /// Header and body are not what came.
    #[error("a message of {len_bytes} bytes, whose header tells of {told_bytes}")]
    Length {
        /// How long it is.
        len_bytes: usize,
        /// How long it says that it is, its payload included.
        told_bytes: u64,
    },
    /// The body was damaged underway.
    #[error(
        "the body of {id} is corrupt: checksum {expected:#010x} expected, {computed:#010x} computed"
    )]
    BodyCorrupt {
        /// The frame's request id.
        id: RequestId,
        /// The CRC32C in the frame's header.
        expected: u32,
        /// The CRC32C of the body that arrived.
        computed: u32,
    },
}

/// Writes a frame to `out`, in place of what is there; false, and nothing is written, if that is too long for a
/// message.
pub fn encode(out: &mut Vec<u8>, kind: FrameKind, code: u16, id: RequestId, body: &[u8]) -> bool {
    if HEADER_BYTES + body.len() > MESSAGE_BYTES_MAX {
        return false;
    }
    out.clear();
    encode_frame(out, kind, code, id, body, None);
    true
}

/// The frame that is in a message. Total: any bytes give a frame or a fault.
///
/// # Errors
/// [`MessageFault`].
pub fn decode(bytes: &[u8]) -> Result<FrameView<'_>, MessageFault> {
    let len_bytes = bytes.len();
    let (header, body) = bytes
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(MessageFault::Short { len_bytes })?;
    let header = FrameHeader::decode(header)?;
    let told_bytes = HEADER_BYTES as u64
        + u64::from(header.body_len_bytes)
        + u64::from(header.payload.len_bytes);
    if told_bytes != len_bytes as u64 || header.payload.len_bytes > 0 {
        return Err(MessageFault::Length {
            len_bytes,
            told_bytes,
        });
    }
    let (expected, computed) = (header.body_crc32c, crc32c(body));
    if expected != computed {
        let id = header.id;
        return Err(MessageFault::BodyCorrupt {
            id,
            expected,
            computed,
        });
    }
    Ok(FrameView { header, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RequestId = RequestId(77);

    fn message(body: &[u8]) -> Vec<u8> {
        let mut out = vec![9; 3];
        assert!(encode(&mut out, FrameKind::Request, 12, ID, body));
        out
    }

    #[test]
    fn what_is_written_is_read() {
        for body in [&b""[..], b"lookup", &[7; MESSAGE_BYTES_MAX - HEADER_BYTES]] {
            let bytes = message(body);
            let frame = decode(&bytes).expect("a message");
            assert_eq!(frame.body, body);
            let header = frame.header;
            assert_eq!(
                (header.kind, header.code, header.id),
                (FrameKind::Request, 12, ID)
            );
        }
    }

    #[test]
    fn what_is_too_long_is_no_message() {
        let mut out = vec![3];
        let long = [7; MESSAGE_BYTES_MAX - HEADER_BYTES + 1];
        assert!(!encode(&mut out, FrameKind::Request, 12, ID, &long));
        assert_eq!(out, [3]);
    }

    #[test]
    fn what_is_cut_or_followed_or_damaged_is_refused() {
        let whole = message(b"a body");
        for len in 0..HEADER_BYTES {
            let short = MessageFault::Short { len_bytes: len };
            assert_eq!(decode(&whole[..len]), Err(short));
        }
        for len in HEADER_BYTES..whole.len() {
            assert!(matches!(
                decode(&whole[..len]),
                Err(MessageFault::Length { .. })
            ));
        }
        let more = [whole.as_slice(), &[0]].concat();
        assert!(matches!(decode(&more), Err(MessageFault::Length { .. })));
        for (at, byte) in whole.iter().enumerate() {
            let mut damaged = whole.clone();
            damaged[at] = !byte;
            assert!(decode(&damaged).is_err(), "at {at}");
        }
    }

    #[test]
    fn a_payload_does_not_go_in_a_message() {
        let mut out = Vec::new();
        let payload = Some(crate::frame::PayloadDigest {
            len_bytes: 6,
            crc32c: crc32c(b"abcdef"),
        });
        encode_frame(&mut out, FrameKind::Response, 0, ID, b"", payload);
        out.extend_from_slice(b"abcdef");
        assert!(matches!(decode(&out), Err(MessageFault::Length { .. })));
    }
}
