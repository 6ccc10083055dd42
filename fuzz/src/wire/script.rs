//! From fuzz bytes to what a hostile peer does.
//!
//! ```text
//!   byte 0      bit 0: the peer is an initiator (else acceptor); bit 1: the handshake is over
//!   byte 1      number of cuts, 1..=8; then one byte for each: bits 0..7 length, bit 7 straight
//!   then        operations, each a code and its arguments; missing bytes read as 0
//! ```
//!
//! Frames carry right checksums unless an operation damages them, so that a fuzzer gets past the
//! checksums; raw bytes and forged headers go to the places where they matter.

use lunette_generate::{Bytes, Source};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::Writer;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::frame::{
    FrameHeader, FrameKind, HEADER_BYTES, PayloadDigest, encode_frame,
};

/// Most operations of a script, so that one run stays short.
const OPS_MAX: usize = 64;

/// One receive: how many bytes arrive at most, and whether payload goes straight to its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) len_bytes: usize,
    pub(super) straight: bool,
}

/// What happens at a client besides receiving.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    /// A call starts, with a deadline so many nanoseconds ahead, and room for so many bytes.
    Start { ttl_ns: u8, room_bytes: u8 },
    /// Time passes.
    Pass { ns: u8 },
    /// A caller gives up the call with this id.
    Abandon { id: RequestId },
    /// The oldest fence that was asked for is reported.
    Fence,
}

#[derive(Debug)]
pub(super) struct Script {
    pub(super) peer_is_initiator: bool,
    pub(super) handshake_is_over: bool,
    /// At least one; they repeat.
    pub(super) cuts: Vec<Cut>,
    /// What the peer sends.
    pub(super) stream: Vec<u8>,
    /// What happens once the client has received so many bytes, in order.
    pub(super) moments: Vec<(usize, Moment)>,
}

impl Script {
    pub(super) fn read(data: &[u8]) -> Self {
        let mut source = Bytes::new(data);
        let flags = source.u8();
        let cuts = (0..1 + source.u8() % 8).map(|_| source.cut()).collect();
        let mut script = Self {
            peer_is_initiator: flags & 1 != 0,
            handshake_is_over: flags & 2 != 0,
            cuts,
            stream: Vec::new(),
            moments: Vec::new(),
        };
        for _ in 0..OPS_MAX {
            if source.is_spent() {
                break;
            }
            script.read_op(&mut source);
        }
        script
    }

    fn read_op(&mut self, source: &mut Bytes<'_>) {
        match source.u8() % 9 {
            0 => self.frame(source),
            1 => self.response(source),
            2 => self.hello(source),
            3 => self.forged_header(source),
            4 => {
                let len = usize::from(source.u8());
                let raw = source.take(len);
                self.stream.extend_from_slice(raw);
            }
            5 => self.flip(source),
            6 => {
                let kept = self.stream.len().saturating_sub(usize::from(source.u8()));
                self.stream.truncate(kept);
            }
            _ => {
                let moment = source.moment();
                self.moments.push((self.stream.len(), moment));
            }
        }
    }

    /// A good frame of any kind, with a body and perhaps a payload of a pattern.
    fn frame(&mut self, source: &mut Bytes<'_>) {
        let kind = source.kind();
        let code = u16::from(source.u8());
        let id = source.id();
        let body_bytes = usize::from(source.u8());
        let payload_bytes = if kind.may_carry_payload() {
            source.u8()
        } else {
            0
        };
        self.append(
            kind,
            code,
            id,
            &vec![0xb0; body_bytes],
            usize::from(payload_bytes),
        );
    }

    /// A good response, short to write: what a client's table is made for.
    fn response(&mut self, source: &mut Bytes<'_>) {
        let id = source.id();
        let payload_bytes = usize::from(source.u8());
        self.append(FrameKind::Response, 0, id, &[], payload_bytes);
    }

    fn append(
        &mut self,
        kind: FrameKind,
        code: u16,
        id: RequestId,
        body: &[u8],
        payload_bytes: usize,
    ) {
        let payload: Vec<u8> = (0..=u8::MAX).cycle().take(payload_bytes).collect();
        let len_bytes = u32::try_from(payload.len()).expect("one byte of length");
        let digest = PayloadDigest {
            len_bytes,
            crc32c: crc32c(&payload),
        };
        encode_frame(&mut self.stream, kind, code, id, body, Some(digest));
        self.stream.extend_from_slice(&payload);
    }

    /// A hello or its answer with any fields.
    fn hello(&mut self, source: &mut Bytes<'_>) {
        let kind = if source.u8() & 1 == 0 {
            FrameKind::Hello
        } else {
            FrameKind::HelloAck
        };
        let code = u16::from(source.u8() % 5);
        let mut body = Vec::new();
        Writer::new(&mut body)
            .u8(source.u8())
            .u8(source.u8())
            .u16(0)
            .u32(u32::from(source.u8()))
            .u32(u32::from_le_bytes(source.array()))
            .u64(u64::from(source.u8()))
            .short_bytes(&vec![0x67; usize::from(source.u8()) * 17]);
        let trailing = usize::from(source.u8());
        if trailing.is_multiple_of(4) {
            body.extend_from_slice(&vec![0; trailing]);
        } else {
            body.truncate(body.len().saturating_sub(trailing));
        }
        encode_frame(&mut self.stream, kind, code, RequestId(0), &body, None);
    }

    /// A header whose checksum fits, whatever else is wrong with it.
    fn forged_header(&mut self, source: &mut Bytes<'_>) {
        let payload = PayloadDigest {
            len_bytes: u32::from_le_bytes(source.array()),
            crc32c: u32::from(source.u8()),
        };
        let header = FrameHeader {
            kind: source.kind(),
            code: u16::from(source.u8()),
            id: source.id(),
            body_len_bytes: u32::from_le_bytes(source.array()),
            body_crc32c: u32::from(source.u8()),
            payload,
        };
        let mut bytes = header.encode();
        let at = usize::from(source.u8()) % HEADER_BYTES;
        bytes[at] ^= source.u8();
        let summed = HEADER_BYTES - 4;
        let crc = crc32c(&bytes[..summed]);
        bytes[summed..].copy_from_slice(&crc.to_le_bytes());
        self.stream.extend_from_slice(&bytes);
    }

    /// Damages one bit among the last 64 KiB.
    fn flip(&mut self, source: &mut Bytes<'_>) {
        let back = usize::from(u16::from_le_bytes(source.array()));
        let bit = source.u8() % 8;
        if let Some(byte) = self.stream.iter_mut().rev().nth(back) {
            *byte ^= 1 << bit;
        }
    }
}

/// What is drawn besides bytes.
trait Draws: Source {
    fn cut(&mut self) -> Cut {
        let byte = self.u8();
        Cut {
            len_bytes: 1 + usize::from(byte & 0x7f),
            straight: byte & 0x80 != 0,
        }
    }

    fn kind(&mut self) -> FrameKind {
        FrameKind::ALL[usize::from(self.u8()) % FrameKind::ALL.len()]
    }

    /// An id as the client's table issues them: 8 slots, generations 0 to 31.
    fn id(&mut self) -> RequestId {
        let byte = u64::from(self.u8());
        RequestId((byte >> 3) << 32 | (byte & 7))
    }

    fn moment(&mut self) -> Moment {
        match self.u8() % 4 {
            0 => Moment::Start {
                ttl_ns: self.u8(),
                room_bytes: self.u8(),
            },
            1 => Moment::Pass { ns: self.u8() },
            2 => Moment::Abandon { id: self.id() },
            _ => Moment::Fence,
        }
    }
}

impl Draws for Bytes<'_> {}
