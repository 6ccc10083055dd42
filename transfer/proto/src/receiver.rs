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
use lunette_runtime_core::mutant::{self, Mutant};

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
        self.fold_with(bytes.len(), |checksum| checksum.fold(bytes));
    }

    fn fold_with(&mut self, len: usize, fold: impl FnOnce(&mut Crc32c)) {
        assert!(
            len <= self.left_bytes() as usize,
            "more bytes than the payload has left"
        );
        fold(&mut self.crc);
        self.arrived_bytes += bytes_u32(len);
    }

    fn verdict(&self) -> PayloadVerdict {
        assert_eq!(self.left_bytes(), 0, "a verdict needs the whole payload");
        let (expected, computed) = (self.digest.crc32c, self.crc.value());
        if expected == computed || mutant::is_on(Mutant::ChecksumIgnored) {
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
        self.on_payload_in_place(bytes.len(), |checksum| checksum.fold(bytes))
    }

    /// As [`on_payload`](Self::on_payload), for bytes of which the driver has no slice: `fold` folds
    /// the `len` of them, wherever they lie.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn on_payload_in_place(
        &mut self,
        len: usize,
        fold: impl FnOnce(&mut Crc32c),
    ) -> Result<(), WireFault> {
        match &mut self.state {
            State::Payload(arrival) => {
                arrival.fold_with(len, fold);
                Ok(())
            }
            State::Failed(fault) => Err(*fault),
            State::Header { .. } | State::Body { .. } => {
                assert!(len == 0, "payload bytes outside a payload");
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::frame::{FrameKind, encode_frame};

    const LIMITS: ReceiverLimits = ReceiverLimits {
        body_bytes_max: 8,
        payload_bytes_max: 8,
    };
    const BODY: &[u8] = b"body";
    const PAYLOAD: &[u8] = b"value";
    const ID: RequestId = RequestId(5);

    fn control(body: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let digest = PayloadDigest {
            len_bytes: bytes_u32(payload.len()),
            crc32c: crc32c(payload),
        };
        encode_frame(&mut out, FrameKind::Response, 0, ID, body, Some(digest));
        out
    }

    /// The bytes of a frame with body and payload, and where its parts end.
    fn frame_bytes() -> (Vec<u8>, [(&'static str, usize); 6]) {
        let mut bytes = control(BODY, PAYLOAD);
        let body_end = bytes.len();
        bytes.extend_from_slice(PAYLOAD);
        let states = [
            ("start", 0),
            ("in header", HEADER_BYTES - 1),
            ("in body", body_end - 1),
            ("at payload", body_end),
            ("in payload", body_end + 1),
            ("payload full", bytes.len()),
        ];
        (bytes, states)
    }

    /// A receiver in the named state, and the bytes that would come next.
    fn in_state(name: &str) -> (Receiver, Vec<u8>) {
        let mut receiver = Receiver::new(LIMITS);
        let (bytes, states) = frame_bytes();
        if name == "failed" {
            assert!(receiver.step(&mut &[0; HEADER_BYTES][..]).is_err());
            return (receiver, bytes);
        }
        let (_, at) = *states
            .iter()
            .find(|(state, _)| *state == name)
            .expect("a state's name");
        let (mut fed, rest) = bytes.split_at(at);
        while !fed.is_empty() {
            receiver.step(&mut fed).expect("the frame is good");
        }
        (receiver, rest.to_vec())
    }

    fn apply(receiver: &mut Receiver, rest: &[u8], event: &str) -> String {
        let mut input: &[u8] = match event {
            "nothing" => &[],
            "a byte" => &rest[..1.min(rest.len())],
            "the rest" => rest,
            "garbage" => &[0xee; 64],
            "placed" => return format!("{:?}", receiver.on_payload(&rest[..1.min(rest.len())])),
            "too much" => return format!("{:?}", receiver.on_payload(&[0; 9])),
            "eof" => return format!("{:?}", receiver.on_eof()),
            other => panic!("no event is named {other}"),
        };
        match receiver.step(&mut input) {
            Ok(Step::Frame(frame)) => {
                assert_eq!(frame.body, BODY);
                "Frame".to_owned()
            }
            Ok(Step::Payload {
                offset_bytes,
                bytes,
                ..
            }) => {
                format!("Payload {offset_bytes}+{}", bytes.len())
            }
            Ok(Step::NeedPayload {
                offset_bytes,
                len_bytes,
                ..
            }) => {
                format!("NeedPayload {offset_bytes}+{len_bytes}")
            }
            Ok(Step::PayloadDone {
                verdict: PayloadVerdict::Intact,
                ..
            }) => "Intact".to_owned(),
            other => format!("{other:?}")
                .split([' ', '{'])
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }

    const EVENTS: [&str; 7] = [
        "nothing", "a byte", "the rest", "garbage", "placed", "too much", "eof",
    ];

    const NEED: &str = "Ok(NeedControl)";
    const BAD_FRAME: &str = "Err(Frame(BadMagic";
    const FAULT: &str = "Err(Frame(BadMagic { found: 0 }))";

    /// Each state, and what each event gives there.
    #[rustfmt::skip]
    const TABLE: [(&str, [&str; 7]); 7] = [
        ("start", [NEED, NEED, "Frame", BAD_FRAME, "panic", "panic", "Ok(())"]),
        ("in header", [NEED, NEED, "Frame", "Err(Frame(HeaderCorrupt", "panic", "panic",
            "Err(Truncated { missing_bytes: 1 })"]),
        ("in body", [NEED, "Frame", "Frame", "Err(BodyCorrupt", "panic", "panic",
            "Err(Truncated { missing_bytes: 1 })"]),
        ("at payload", ["NeedPayload 0+5", "Payload 0+1", "Payload 0+5", "Payload 0+5", "Ok(())",
            "panic", "Err(Truncated { missing_bytes: 5 })"]),
        ("in payload", ["NeedPayload 1+4", "Payload 1+1", "Payload 1+4", "Payload 1+4", "Ok(())",
            "panic", "Err(Truncated { missing_bytes: 4 })"]),
        ("payload full", ["Intact", "Intact", "Intact", "Intact", "Ok(())", "panic", "Ok(())"]),
        ("failed", ["Err(Frame(BadMagic", BAD_FRAME, BAD_FRAME, BAD_FRAME, FAULT, FAULT, FAULT]),
    ];

    #[test]
    fn every_state_answers_every_event() {
        for (state, row) in TABLE {
            for (event, expected) in EVENTS.into_iter().zip(row) {
                let (mut receiver, mut rest) = in_state(state);
                if state == "start" && event == "placed" {
                    rest = vec![1];
                }
                let applied = catch_unwind(AssertUnwindSafe(|| apply(&mut receiver, &rest, event)));
                let found = applied.unwrap_or("panic".to_owned());
                assert_eq!(found, expected, "{state} x {event}");
            }
        }
    }

    #[test]
    fn a_body_in_one_piece_is_borrowed_and_costs_no_memory() {
        let bytes = control(BODY, &[]);
        let mut receiver = Receiver::new(LIMITS);
        let mut input = &bytes[..];
        let Ok(Step::Frame(frame)) = receiver.step(&mut input) else {
            panic!("a whole frame")
        };
        assert!(bytes[HEADER_BYTES..].as_ptr_range() == frame.body.as_ptr_range());
        assert_eq!(receiver.control_bytes(), 0);
    }

    #[test]
    fn memory_follows_what_arrived_not_what_was_announced() {
        let body = vec![7; BODY_BYTES_MAX];
        let bytes = control(&body, &[]);
        let mut receiver = Receiver::new(ReceiverLimits::open(1));
        let mut fed = 0;
        for piece in bytes[..bytes.len() - 1].chunks(1000) {
            fed += piece.len();
            assert_eq!(receiver.step(&mut &piece[..]), Ok(Step::NeedControl));
            assert!(receiver.control_bytes() <= 2 * fed);
        }
        let mut last = &bytes[bytes.len() - 1..];
        assert!(matches!(receiver.step(&mut last), Ok(Step::Frame(frame)) if frame.body == body));
        assert!(receiver.control_bytes() <= BODY_BYTES_MAX);
    }

    #[test]
    fn lengths_are_accepted_up_to_the_connection_s_limits() {
        let at_limit = control(&[1; 8], &[1; 8]);
        let mut receiver = Receiver::new(LIMITS);
        assert!(matches!(
            receiver.step(&mut &at_limit[..]),
            Ok(Step::Frame(_))
        ));
        let beyond = [
            (
                control(&[1; 9], &[]),
                FrameFault::BodyTooLong {
                    len_bytes: 9,
                    max_bytes: 8,
                },
            ),
            (
                control(&[], &[1; 9]),
                FrameFault::PayloadTooLong {
                    len_bytes: 9,
                    max_bytes: 8,
                },
            ),
        ];
        for (bytes, fault) in beyond {
            let mut receiver = Receiver::new(LIMITS);
            assert_eq!(receiver.step(&mut &bytes[..]), Err(fault.into()));
            assert_eq!(receiver.control_bytes(), 0);
        }
    }

    #[test]
    fn limits_change_between_frames() {
        let bytes = control(&[], PAYLOAD);
        let mut receiver = Receiver::new(ReceiverLimits::HELLO);
        receiver.set_limits(ReceiverLimits::open(8));
        assert!(matches!(receiver.step(&mut &bytes[..]), Ok(Step::Frame(_))));
        let mut receiver = Receiver::new(ReceiverLimits::HELLO);
        let fault = FrameFault::PayloadTooLong {
            len_bytes: 5,
            max_bytes: 0,
        };
        assert_eq!(receiver.step(&mut &bytes[..]), Err(fault.into()));
    }

    #[test]
    fn a_damaged_payload_is_told_and_the_stream_goes_on() {
        let mut bytes = control(&[], PAYLOAD);
        bytes.extend_from_slice(b"valuX");
        bytes.extend_from_slice(&control(BODY, &[]));
        let mut receiver = Receiver::new(LIMITS);
        let mut input = &bytes[..];
        receiver.step(&mut input).unwrap();
        receiver.step(&mut input).unwrap();
        let (expected, computed) = (crc32c(PAYLOAD), crc32c(b"valuX"));
        let verdict = PayloadVerdict::Corrupt { expected, computed };
        assert_eq!(
            receiver.step(&mut input),
            Ok(Step::PayloadDone { id: ID, verdict })
        );
        assert!(matches!(receiver.step(&mut input), Ok(Step::Frame(frame)) if frame.body == BODY));
        assert_eq!(receiver.step(&mut input), Ok(Step::NeedControl));
    }

    #[test]
    fn limits_beyond_the_global_ones_are_a_bug_of_the_caller() {
        let (body, payload) = (bytes_u32(BODY_BYTES_MAX), bytes_u32(PAYLOAD_BYTES_MAX));
        let limits = |body_bytes_max, payload_bytes_max| ReceiverLimits {
            body_bytes_max,
            payload_bytes_max,
        };
        assert_eq!(Receiver::new(limits(body, payload)).control_bytes(), 0);
        assert!(catch_unwind(|| Receiver::new(limits(body + 1, payload))).is_err());
        assert!(catch_unwind(|| Receiver::new(limits(body, payload + 1))).is_err());
    }
}
