//! Frames as messages: any bytes are a whole frame or a fault, and what a stream brings comes through as a message too.

use lunette_runtime_core::checksum::crc32c;
use lunette_transfer_proto::frame::{FrameHeader, HEADER_BYTES};
use lunette_transfer_proto::message::{MESSAGE_BYTES_MAX, decode, encode};

/// A peer's bytes, from any place on, in one message.
pub(super) fn attack(stream: &[u8]) {
    for start in 0..stream.len().min(2 * HEADER_BYTES) {
        let bytes = &stream[start..];
        if let Ok(frame) = decode(bytes) {
            assert_eq!(frame.body, &bytes[HEADER_BYTES..], "nothing is behind it");
            assert_eq!(frame.header.payload.len_bytes, 0);
            assert_eq!(crc32c(frame.body), frame.header.body_crc32c);
        }
    }
}

/// A frame that came by a stream, with this body.
pub(super) fn check(header: &FrameHeader, body: &[u8]) {
    let mut message = Vec::new();
    let is_message = encode(&mut message, header.kind, header.code, header.id, body);
    assert_eq!(is_message, HEADER_BYTES + body.len() <= MESSAGE_BYTES_MAX);
    if !is_message {
        return;
    }
    let frame = decode(&message).expect("a message");
    let (found, told) = (frame.header, header);
    assert_eq!(
        (found.kind, found.code, found.id),
        (told.kind, told.code, told.id)
    );
    assert_eq!(frame.body, body);
    for end in 0..message.len() {
        assert!(decode(&message[..end]).is_err(), "a part is no message");
    }
}
