//! Frames on their way out, and what goes behind them.

use lunette_runtime::arena::{Exposed, Region};
use lunette_runtime::net::{Message, Outbox, Pin};
use lunette_runtime_core::checksum::Crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::frame::{FrameKind, PayloadDigest, encode_frame};

use crate::fed::{Fed, Feed};
use crate::source::WriteSource;

/// Bytes to send behind a frame, and their checksum.
#[derive(Debug)]
pub struct Payload {
    bytes: Bytes,
    len: usize,
    crc32c: u32,
    pin: Option<Pin>,
}

#[derive(Debug)]
enum Bytes {
    Region(Region),
    Pieces(Vec<WriteSource>),
    Fed(Fed),
}

impl Payload {
    /// A region, pinned until it has been sent, and its CRC32C, which is not computed again.
    #[must_use]
    pub const fn region(region: Region, crc32c: u32) -> Self {
        Self {
            len: region.len(),
            bytes: Bytes::Region(region),
            crc32c,
            pin: None,
        }
    }

    /// Pieces of exposed memory, one after the other, kept until they have been sent. Their checksum
    /// is computed here; if somebody writes them before they have left, the peer will find that it
    /// does not fit.
    #[must_use]
    pub fn exposed(pieces: Vec<Exposed>) -> Self {
        Self::gathered(pieces.into_iter().map(WriteSource::Exposed).collect())
    }

    /// As [`exposed`](Self::exposed), of memory of either kind.
    #[must_use]
    pub fn gathered(pieces: Vec<WriteSource>) -> Self {
        let mut checksum = Crc32c::new();
        for piece in &pieces {
            piece.fold(&mut checksum);
        }
        Self::pieces(pieces, checksum.value())
    }

    /// As [`gathered`](Self::gathered), with their CRC32C, which is not computed again.
    #[must_use]
    pub fn pieces(pieces: Vec<WriteSource>, crc32c: u32) -> Self {
        Self {
            len: pieces.iter().map(WriteSource::len).sum(),
            bytes: Bytes::Pieces(pieces),
            crc32c,
            pin: None,
        }
    }

    /// So many bytes, at least one, that come by and by, and their CRC32C, which is known before. The answer with them is
    /// begun as soon as it is given: for an answer that is given [later](crate::Intake::Later), and nothing else.
    #[must_use]
    pub fn fed(len_bytes: usize, crc32c: u32) -> (Self, Feed) {
        assert!(len_bytes > 0, "a payload that is fed has bytes");
        let (fed, feed) = Fed::new(len_bytes);
        let payload = Self {
            len: len_bytes,
            bytes: Bytes::Fed(fed),
            crc32c,
            pin: None,
        };
        (payload, feed)
    }

    /// The other end of what it is [fed](Self::fed) by, and its digest.
    pub(crate) fn into_fed(self) -> Result<(Fed, PayloadDigest), Self> {
        let digest = self.digest();
        match self.bytes {
            Bytes::Fed(mut fed) => {
                fed.pin = self.pin;
                Ok((fed, digest))
            }
            bytes => Err(Self { bytes, ..self }),
        }
    }

    fn digest(&self) -> PayloadDigest {
        PayloadDigest {
            len_bytes: u32::try_from(self.len).expect("a payload is bounded"),
            crc32c: self.crc32c,
        }
    }

    /// The same, with what its owner wants dropped when it has been sent, or will not be.
    #[must_use]
    pub fn pinned(self, pin: Pin) -> Self {
        let pin = Some(pin);
        Self { pin, ..self }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty, which is the same as none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn parts(&self) -> usize {
        match &self.bytes {
            Bytes::Region(_) => 1,
            Bytes::Pieces(pieces) => pieces.len(),
            Bytes::Fed(_) => 0,
        }
    }

    fn append(self, message: &mut Message) {
        match (self.bytes, self.pin) {
            (Bytes::Region(region), None) => message.payload(region),
            (Bytes::Region(region), Some(pin)) => message.payload_pinned(region, pin),
            (Bytes::Pieces(pieces), pin) => {
                for piece in pieces {
                    piece.append(message);
                }
                if let Some(pin) = pin {
                    message.pin(pin);
                }
            }
            (Bytes::Fed(_), _) => unreachable!("only answers that are given later are fed"),
        }
    }
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
    let digest = payload.as_ref().map(Payload::digest);
    let parts = 1 + payload.as_ref().map_or(0, Payload::parts);
    outbox.append_parts(parts, |message| {
        message.control(|out| encode_frame(out, kind, code, id, body, digest));
        if let Some(payload) = payload {
            payload.append(message);
        }
    });
}
