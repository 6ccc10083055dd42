//! The handshake's state machine, for both sides.

use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::{
    Agreement, CODE_ACCEPTED, HELLO_ID, Hello, HelloRefusal, Malformed, VersionRange, check,
};
use crate::frame::{FrameKind, encode_frame};
use crate::receiver::FrameView;

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
