//! The receive side of one connection: bytes in, frames and places of payload bytes out.
//!
//! A [`Receiver`] never holds payload memory. Control bytes (headers and bodies) come through the
//! driver's staging buffer; payload bytes either happen to lie in staging too, and are copied to
//! their destination by the driver, or are received straight into it:
//!
//! ```text
//!               step: NeedControl                    step: Payload / NeedPayload + on_payload
//!                  +--+                                 +--+
//!                  v  |    step: Frame                  v  |
//!   new ------->  Header -----------> (payload_len > 0) Payload
//!                  ^  |  ^                                |
//!                  |  v  +--------------------------------+
//!                  Body          step: PayloadDone
//!
//!   any of them ---- fault ----> Failed (for good; each later call returns the same fault)
//! ```

use lunette_runtime_core::checksum::{Crc32c, crc32c};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::limits::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX};

use crate::frame::{FrameFault, FrameHeader, HEADER_BYTES, PayloadDigest, bytes_u32};
use crate::hello::HELLO_BODY_BYTES_MAX;

mod step;

pub use step::{FrameView, PayloadVerdict, Step, WireFault};

/// What one connection accepts. At most the global limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverLimits {
    /// Longest body, in bytes, at most [`BODY_BYTES_MAX`].
    pub body_bytes_max: u32,
    /// Longest payload, in bytes, at most [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u32,
}

impl ReceiverLimits {
    /// Before the handshake is over: room for a hello, so that a peer nobody knows yet costs little.
    pub const HELLO: Self = Self {
        body_bytes_max: HELLO_BODY_BYTES_MAX,
        payload_bytes_max: 0,
    };

    /// An open connection, with the payload limit that the handshake agreed on.
    #[must_use]
    pub fn open(payload_bytes_max: u32) -> Self {
        Self {
            body_bytes_max: bytes_u32(BODY_BYTES_MAX),
            payload_bytes_max,
        }
    }

    fn assert_within_global(self) {
        assert!(
            self.body_bytes_max <= bytes_u32(BODY_BYTES_MAX),
            "body limit beyond the global"
        );
        assert!(
            self.payload_bytes_max <= bytes_u32(PAYLOAD_BYTES_MAX),
            "payload limit beyond the global"
        );
    }
}

/// The payload that is arriving.
#[derive(Clone, Debug)]
struct Arrival {
    id: RequestId,
    digest: PayloadDigest,
    arrived_bytes: u32,
    crc: Crc32c,
}

impl Arrival {
    fn new(id: RequestId, digest: PayloadDigest) -> Self {
        Self {
            id,
            digest,
            arrived_bytes: 0,
            crc: Crc32c::new(),
        }
    }

    fn left_bytes(&self) -> u32 {
        self.digest.len_bytes - self.arrived_bytes
    }

    /// Folds bytes that are part of this payload.
    fn fold(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.left_bytes() as usize,
            "more bytes than the payload has left"
        );
        self.crc.fold(bytes);
        self.arrived_bytes += bytes_u32(bytes.len());
    }

    fn verdict(&self) -> PayloadVerdict {
        assert_eq!(self.left_bytes(), 0, "a verdict needs the whole payload");
        let (expected, computed) = (self.digest.crc32c, self.crc.value());
        if expected == computed {
            PayloadVerdict::Intact
        } else {
            PayloadVerdict::Corrupt { expected, computed }
        }
    }
}

#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one per connection; a box would be one per payload"
)]
enum State {
    /// The first `filled_bytes` of `Receiver::header_bytes` have arrived.
    Header { filled_bytes: usize },
    /// The header is complete, the body is not; what arrived of it is in `Receiver::body`.
    Body { header: FrameHeader },
    /// The payload is arriving, or is complete and not reported yet.
    Payload(Arrival),
    /// The stream is lost.
    Failed(WireFault),
}

/// The receive side of one connection.
///
/// Bytes have one order: those given to [`step`](Self::step) and to
/// [`on_payload`](Self::on_payload), in the order in which they came from the peer.
#[derive(Debug)]
pub struct Receiver {
    limits: ReceiverLimits,
    state: State,
    header_bytes: [u8; HEADER_BYTES],
    /// A body that did not arrive in one piece. Grows with what the peer sent, not with what it
    /// announced, up to `limits.body_bytes_max`; kept for the next one.
    body: Vec<u8>,
}

impl Receiver {
    /// A receiver at the start of a stream.
    ///
    /// # Panics
    /// If `limits` exceed the global ones.
    #[must_use]
    pub fn new(limits: ReceiverLimits) -> Self {
        limits.assert_within_global();
        Self {
            limits,
            state: State::Header { filled_bytes: 0 },
            header_bytes: [0; HEADER_BYTES],
            body: Vec::new(),
        }
    }

    /// Changes the limits, from the next header that is not complete yet on.
    ///
    /// # Panics
    /// If `limits` exceed the global ones.
    pub fn set_limits(&mut self, limits: ReceiverLimits) {
        limits.assert_within_global();
        self.limits = limits;
    }

    /// Bytes of memory that the receiver holds for a body in pieces: at most the largest
    /// `body_bytes_max` it was given.
    #[must_use]
    pub fn control_bytes(&self) -> usize {
        self.body.capacity()
    }

    /// Consumes bytes from the front of `input`, which the driver received into staging, and says
    /// what comes next. Call it until it asks for more bytes; the staging memory is the driver's
    /// again when the returned step is dropped and `input` is empty.
    ///
    /// # Errors
    /// A [`WireFault`], the same one for ever: close the connection.
    #[expect(
        single_use_lifetimes,
        reason = "the input outlives the step, so that it can be stepped on"
    )]
    pub fn step<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Step<'s>, WireFault> {
        match &mut self.state {
            State::Header { filled_bytes } => {
                match take_header(&mut self.header_bytes, filled_bytes, input) {
                    Some(header) => {
                        let header = self.accept(header)?;
                        self.take_body(header, input)
                    }
                    None => Ok(Step::NeedControl),
                }
            }
            State::Body { header } => {
                let header = *header;
                self.take_body(header, input)
            }
            State::Payload(arrival) if arrival.left_bytes() == 0 => {
                let (id, verdict) = (arrival.id, arrival.verdict());
                self.state = State::Header { filled_bytes: 0 };
                Ok(Step::PayloadDone { id, verdict })
            }
            State::Payload(arrival) => Ok(take_payload(arrival, input)),
            State::Failed(fault) => Err(*fault),
        }
    }

    /// Takes note of payload bytes that the driver received straight into the destination, at the
    /// offset that [`Step::NeedPayload`] named. The bytes are only read, to fold the checksum.
    ///
    /// # Errors
    /// The [`WireFault`] of an earlier step.
    ///
    /// # Panics
    /// If no payload is arriving, or less of it is left than `bytes`: a bug of the driver, which
    /// chose how much to receive.
    pub fn on_payload(&mut self, bytes: &[u8]) -> Result<(), WireFault> {
        match &mut self.state {
            State::Payload(arrival) => {
                arrival.fold(bytes);
                Ok(())
            }
            State::Failed(fault) => Err(*fault),
            State::Header { .. } | State::Body { .. } => {
                assert!(bytes.is_empty(), "payload bytes outside a payload");
                Ok(())
            }
        }
    }

    /// Whether the stream may end here. Step until [`Step::NeedControl`] or
    /// [`Step::NeedPayload`] first.
    ///
    /// # Errors
    /// [`WireFault::Truncated`] within a frame, or the fault of an earlier step.
    pub fn on_eof(&self) -> Result<(), WireFault> {
        let missing_bytes = match &self.state {
            State::Header { filled_bytes: 0 } => 0,
            State::Header { filled_bytes } => bytes_u32(HEADER_BYTES - filled_bytes),
            State::Body { header } => header.body_len_bytes - bytes_u32(self.body.len()),
            State::Payload(arrival) => arrival.left_bytes(),
            State::Failed(fault) => return Err(*fault),
        };
        if missing_bytes == 0 {
            Ok(())
        } else {
            Err(WireFault::Truncated { missing_bytes })
        }
    }

    /// Checks a complete header and waits for its body.
    fn accept(
        &mut self,
        header: Result<FrameHeader, FrameFault>,
    ) -> Result<FrameHeader, WireFault> {
        let ReceiverLimits {
            body_bytes_max,
            payload_bytes_max,
        } = self.limits;
        let checked = header.and_then(|header| {
            header
                .check_lengths(body_bytes_max, payload_bytes_max)
                .map(|()| header)
        });
        match checked {
            Ok(header) => {
                self.body.clear();
                self.state = State::Body { header };
                Ok(header)
            }
            Err(fault) => Err(self.fail(fault.into())),
        }
    }

    /// The frame of `header`, once its body is complete.
    fn take_body<'s, 'i: 's>(
        &'s mut self,
        header: FrameHeader,
        input: &mut &'i [u8],
    ) -> Result<Step<'s>, WireFault> {
        let body_bytes = header.body_len_bytes as usize;
        let in_one_piece = self.body.is_empty() && input.len() >= body_bytes;
        let lent: &'i [u8] = if in_one_piece {
            take(input, body_bytes)
        } else {
            self.keep(take(input, body_bytes - self.body.len()), body_bytes);
            if self.body.len() < body_bytes {
                return Ok(Step::NeedControl);
            }
            &[]
        };
        let computed = crc32c(if in_one_piece { lent } else { &self.body });
        let expected = header.body_crc32c;
        if computed != expected {
            return Err(self.fail(WireFault::BodyCorrupt {
                id: header.id,
                expected,
                computed,
            }));
        }
        self.state = if header.payload.len_bytes > 0 {
            State::Payload(Arrival::new(header.id, header.payload))
        } else {
            State::Header { filled_bytes: 0 }
        };
        let body = if in_one_piece { lent } else { &self.body };
        Ok(Step::Frame(FrameView { header, body }))
    }

    /// Keeps a piece of a body of `body_bytes`. At least doubles the memory when it must grow, but
    /// never beyond the body's own length.
    fn keep(&mut self, piece: &[u8], body_bytes: usize) {
        let needed_bytes = self.body.len() + piece.len();
        assert!(
            needed_bytes <= body_bytes,
            "more bytes than the body has left"
        );
        if needed_bytes > self.body.capacity() {
            let target_bytes = needed_bytes.max(self.body.capacity() * 2).min(body_bytes);
            self.body.reserve_exact(target_bytes - self.body.len());
        }
        self.body.extend_from_slice(piece);
    }

    fn fail(&mut self, fault: WireFault) -> WireFault {
        self.state = State::Failed(fault);
        fault
    }
}

/// The next header, or `None` if it is not complete yet and the input is spent. A header in one
/// piece is read where it lies.
fn take_header(
    kept: &mut [u8; HEADER_BYTES],
    filled_bytes: &mut usize,
    input: &mut &[u8],
) -> Option<Result<FrameHeader, FrameFault>> {
    if *filled_bytes == 0
        && let Some((whole, rest)) = input.split_first_chunk::<HEADER_BYTES>()
    {
        *input = rest;
        return Some(FrameHeader::decode(whole));
    }
    let vacant = &mut kept[*filled_bytes..];
    let piece = take(input, vacant.len());
    vacant[..piece.len()].copy_from_slice(piece);
    *filled_bytes += piece.len();
    (*filled_bytes == HEADER_BYTES).then(|| FrameHeader::decode(kept))
}

fn take_payload<'i>(arrival: &mut Arrival, input: &mut &'i [u8]) -> Step<'i> {
    let Arrival {
        id,
        arrived_bytes: offset_bytes,
        ..
    } = *arrival;
    let bytes = take(input, arrival.left_bytes() as usize);
    if bytes.is_empty() {
        return Step::NeedPayload {
            id,
            offset_bytes,
            len_bytes: arrival.left_bytes(),
        };
    }
    arrival.fold(bytes);
    Step::Payload {
        id,
        offset_bytes,
        bytes,
    }
}

/// Up to `len_bytes` from the front of `input`.
fn take<'i>(input: &mut &'i [u8], len_bytes: usize) -> &'i [u8] {
    let (head, rest) = input.split_at(len_bytes.min(input.len()));
    *input = rest;
    head
}
