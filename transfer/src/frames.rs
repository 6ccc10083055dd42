//! Frames on their way out, and what goes behind them.

use lunette_runtime::arena::Region;
use lunette_runtime::net::{Outbox, Pin};
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::frame::{FrameKind, PayloadDigest, encode_frame};

/// Bytes to send behind a frame, and their checksum, which the sender does not compute again.
#[derive(Debug)]
pub struct Payload {
    /// The bytes, pinned until they have been sent. At least one.
    pub region: Region,
    /// Their CRC32C.
    pub crc32c: u32,
    /// What their owner wants dropped when they have been sent, or will not be.
    pub pin: Option<Pin>,
}

/// Queues a frame.
pub(crate) fn push_frame(
    outbox: &Outbox,
    kind: FrameKind,
    code: u16,
    id: RequestId,
    body: &[u8],
    payload: Option<Payload>,
) {
    let digest = payload.as_ref().map(|payload| PayloadDigest {
        len_bytes: u32::try_from(payload.region.len()).expect("a payload is bounded"),
        crc32c: payload.crc32c,
    });
    outbox.append(|message| {
        message.control(|out| encode_frame(out, kind, code, id, body, digest));
        match payload {
            None => {}
            Some(Payload {
                region, pin: None, ..
            }) => message.payload(region),
            Some(Payload {
                region,
                pin: Some(pin),
                ..
            }) => {
                message.payload_pinned(region, pin);
            }
        }
    });
}
