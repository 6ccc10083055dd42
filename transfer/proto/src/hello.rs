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
use lunette_runtime_core::time::Time;
use thiserror::Error;

use crate::calls::IN_FLIGHT_MAX;
use crate::frame::{FrameKind, WIRE_VERSION, bytes_u32, encode_frame};
use crate::receiver::FrameView;

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

/// Why a handshake failed. The connection is to be closed once outgoing bytes are sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HandshakeFault {
    /// The acceptor refused; on the acceptor's own side: it has refused the peer.
    #[error(transparent)]
    Refused(#[from] HelloRefusal),
    /// A frame that has no place in this state.
    #[error("unexpected {kind:?} frame in a handshake")]
    UnexpectedFrame {
        /// The frame's kind.
        kind: FrameKind,
    },
    /// The body of a hello or of its answer does not make sense.
    #[error("malformed hello: {0}")]
    Malformed(#[from] Malformed),
    /// The peer did not answer, or did not say hello, before the deadline.
    #[error("the handshake timed out")]
    TimedOut,
}

impl HandshakeFault {
    /// Whether a new connection may fare better.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::TimedOut => true,
            Self::UnexpectedFrame { .. } | Self::Malformed(_) => false,
        }
    }

    /// Whether the acceptor is at a limit.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_backpressure())
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

/// What came of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeOutput {
    /// The connection is open; an acceptor's answer has been appended to the outgoing bytes.
    Open(Agreement),
    /// The handshake failed; an acceptor's refusal, if the peer can read one, has been appended to
    /// the outgoing bytes. Send those, then close.
    Failed(HandshakeFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    AwaitAck,
    AwaitHello,
    Open,
    Failed(HandshakeFault),
}

/// The handshake of one side of a connection.
#[derive(Debug)]
pub struct Handshake {
    ours: Hello,
    deadline: Time,
    state: State,
}

impl Handshake {
    /// The side that connected. Call [`start`](Self::start) to say hello.
    ///
    /// # Panics
    /// If a field of `ours` is out of its range.
    #[must_use]
    pub fn initiator(ours: Hello, deadline: Time) -> Self {
        Self::new(ours, deadline, State::Start)
    }

    /// The side that was connected to.
    ///
    /// # Panics
    /// If a field of `ours` is out of its range.
    #[must_use]
    pub fn acceptor(ours: Hello, deadline: Time) -> Self {
        Self::new(ours, deadline, State::AwaitHello)
    }

    fn new(ours: Hello, deadline: Time, state: State) -> Self {
        let checked = ours.check();
        assert!(checked.is_ok(), "a hello that no peer accepts: {checked:?}");
        Self {
            ours,
            deadline,
            state,
        }
    }

    /// Appends the initiator's hello to outgoing control bytes.
    ///
    /// # Panics
    /// If this is the acceptor's side, or the hello has been said before.
    pub fn start(&mut self, out: &mut Vec<u8>) {
        assert_eq!(self.state, State::Start, "an initiator says hello once");
        let mut body = Vec::new();
        self.ours.encode(&mut body);
        encode_frame(out, FrameKind::Hello, CODE_ACCEPTED, HELLO_ID, &body, None);
        self.state = State::AwaitAck;
    }

    /// Takes a frame from the peer. An answer to it, if there is one, is appended to `out`.
    ///
    /// Total: a frame that has no place fails the handshake, also after it was open; once failed,
    /// it stays so with the same fault.
    pub fn handle(&mut self, frame: FrameView<'_>, out: &mut Vec<u8>) -> HandshakeOutput {
        let kind = frame.header.kind;
        let opened = match (self.state, kind) {
            (State::AwaitAck, FrameKind::HelloAck) => self.on_ack(frame),
            (State::AwaitHello, FrameKind::Hello) => self.on_hello(frame, out),
            (State::Failed(fault), _) => Err(fault),
            (State::Start | State::AwaitAck | State::AwaitHello | State::Open, _) => {
                Err(HandshakeFault::UnexpectedFrame { kind })
            }
        };
        match opened {
            Ok(agreement) => {
                self.state = State::Open;
                HandshakeOutput::Open(agreement)
            }
            Err(fault) => {
                self.state = State::Failed(fault);
                HandshakeOutput::Failed(fault)
            }
        }
    }

    /// When to call [`on_timeout`](Self::on_timeout), if a peer is being waited for.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        matches!(self.state, State::AwaitAck | State::AwaitHello).then_some(self.deadline)
    }

    /// Fails the handshake if it waits and `now` has reached the deadline. Early, late and repeated
    /// calls change nothing.
    pub fn on_timeout(&mut self, now: Time) -> Option<HandshakeFault> {
        if self.poll_timeout().is_none_or(|deadline| now < deadline) {
            return None;
        }
        self.state = State::Failed(HandshakeFault::TimedOut);
        Some(HandshakeFault::TimedOut)
    }

    fn on_hello(
        &self,
        frame: FrameView<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Agreement, HandshakeFault> {
        let theirs = match Hello::decode(frame) {
            Ok(theirs) => theirs,
            Err(malformed) => {
                HelloRefusal::Malformed.append_frame(out);
                return Err(malformed.into());
            }
        };
        let Some(version) = self.ours.versions.newest_common(theirs.versions) else {
            let (ours, theirs) = (self.ours.versions, theirs.versions);
            let refusal = HelloRefusal::VersionMismatch { ours, theirs };
            refusal.append_frame(out);
            return Err(refusal.into());
        };
        let agreement = Agreement {
            version,
            in_flight_max: self.ours.in_flight_max.min(theirs.in_flight_max),
            payload_bytes_max: self.ours.payload_bytes_max.min(theirs.payload_bytes_max),
            session_epoch: theirs.session_epoch,
            greeting: theirs.greeting,
        };
        self.append_ack(&agreement, out);
        Ok(agreement)
    }

    /// The answer says what was agreed, and what the acceptor says of itself.
    fn append_ack(&self, agreement: &Agreement, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let agreed = VersionRange {
            min: agreement.version,
            max: agreement.version,
        };
        let (in_flight_max, payload_bytes_max) =
            (agreement.in_flight_max, agreement.payload_bytes_max);
        let ack = Hello {
            versions: agreed,
            in_flight_max,
            payload_bytes_max,
            ..self.ours.clone()
        };
        ack.encode(&mut body);
        encode_frame(
            out,
            FrameKind::HelloAck,
            CODE_ACCEPTED,
            HELLO_ID,
            &body,
            None,
        );
    }

    fn on_ack(&self, frame: FrameView<'_>) -> Result<Agreement, HandshakeFault> {
        let code = frame.header.code;
        if code != CODE_ACCEPTED {
            let refusal = HelloRefusal::decode(code, frame.body, self.ours.versions)?;
            return Err(refusal.into());
        }
        let ack = Hello::decode(frame)?;
        let version = ack.versions.max;
        let is_one = ack.versions.min == version;
        check(
            "agreed version",
            is_one && self.ours.versions.contains(version),
        )?;
        check(
            "agreed in_flight_max",
            ack.in_flight_max <= self.ours.in_flight_max,
        )?;
        check(
            "agreed payload_bytes_max",
            ack.payload_bytes_max <= self.ours.payload_bytes_max,
        )?;
        Ok(Agreement {
            version,
            in_flight_max: ack.in_flight_max,
            payload_bytes_max: ack.payload_bytes_max,
            session_epoch: ack.session_epoch,
            greeting: ack.greeting,
        })
    }
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
