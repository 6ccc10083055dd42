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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameHeader, PayloadDigest};
    use crate::receiver::{Receiver, ReceiverLimits, Step};

    const DEADLINE: Time = Time::from_ns(100);

    fn hello(min: u8, max: u8) -> Hello {
        Hello {
            versions: VersionRange { min, max },
            session_epoch: 7,
            in_flight_max: 64,
            payload_bytes_max: 1 << 20,
            greeting: b"who".to_vec(),
        }
    }

    fn frame(kind: FrameKind, code: u16, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_frame(&mut out, kind, code, HELLO_ID, body, None);
        out
    }

    fn body_of(hello: &Hello) -> Vec<u8> {
        let mut body = Vec::new();
        hello.encode(&mut body);
        body
    }

    /// A machine in the named state, of an initiator unless the name says otherwise.
    fn in_state(name: &str) -> Handshake {
        let mut out = Vec::new();
        let mut initiator = Handshake::initiator(hello(1, 3), DEADLINE);
        match name {
            "Start" => return initiator,
            "AwaitHello" => return Handshake::acceptor(hello(1, 3), DEADLINE),
            _ => initiator.start(&mut out),
        }
        match name {
            "AwaitAck" => {}
            "Open" => drop(apply(&mut initiator, "ack", &mut out)),
            "Failed" => drop(apply(&mut initiator, "ack busy", &mut out)),
            other => panic!("no state is named {other}"),
        }
        initiator
    }

    fn feed(machine: &mut Handshake, bytes: &[u8], out: &mut Vec<u8>) -> HandshakeOutput {
        let mut receiver = Receiver::new(ReceiverLimits::HELLO);
        let Ok(Step::Frame(frame)) = receiver.step(&mut &bytes[..]) else {
            panic!("a whole frame was given");
        };
        machine.handle(frame, out)
    }

    fn apply(machine: &mut Handshake, event: &str, out: &mut Vec<u8>) -> String {
        let output = match event {
            "early" => return format!("{:?}", machine.on_timeout(Time::from_ns(99))),
            "due" => return format!("{:?}", machine.on_timeout(DEADLINE)),
            "hello" => feed(
                machine,
                &frame(FrameKind::Hello, 0, &body_of(&hello(2, 4))),
                out,
            ),
            "hello v9" => feed(
                machine,
                &frame(FrameKind::Hello, 0, &body_of(&hello(9, 9))),
                out,
            ),
            "hello bad" => feed(machine, &frame(FrameKind::Hello, 0, b"?"), out),
            "ack" => feed(
                machine,
                &frame(FrameKind::HelloAck, 0, &body_of(&hello(3, 3))),
                out,
            ),
            "ack busy" => feed(machine, &frame(FrameKind::HelloAck, 2, &[]), out),
            "ack bad" => feed(machine, &frame(FrameKind::HelloAck, 0, &[]), out),
            "request" => feed(machine, &frame(FrameKind::Request, 1, &[]), out),
            "response" => feed(machine, &frame(FrameKind::Response, 1, &[]), out),
            "goaway" => feed(machine, &frame(FrameKind::Goaway, 1, &[]), out),
            other => panic!("no event is named {other}"),
        };
        match output {
            HandshakeOutput::Open(agreement) => format!("open v{}", agreement.version),
            HandshakeOutput::Failed(HandshakeFault::Refused(refusal)) => format!("{refusal:?}")
                .split([' ', '{'])
                .next()
                .unwrap_or_default()
                .to_owned(),
            HandshakeOutput::Failed(HandshakeFault::UnexpectedFrame { .. }) => "unexpected".into(),
            HandshakeOutput::Failed(HandshakeFault::Malformed(_)) => "malformed".into(),
            HandshakeOutput::Failed(HandshakeFault::TimedOut) => "timed out".into(),
        }
    }

    const EVENTS: [&str; 11] = [
        "early",
        "due",
        "hello",
        "hello v9",
        "hello bad",
        "ack",
        "ack busy",
        "ack bad",
        "request",
        "response",
        "goaway",
    ];

    const UNEXPECTED: &str = "unexpected>Failed";
    const STAYS: &str = "None>";
    const STICKY: &str = "Busy>Failed";

    /// Each state, and what each event gives there: output, next state, `+` where an answer is
    /// appended to the outgoing bytes.
    #[rustfmt::skip]
    const TABLE: [(&str, [&str; 11]); 5] = [
        ("Start", [
            STAYS, STAYS, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED,
            UNEXPECTED, UNEXPECTED, UNEXPECTED,
        ]),
        ("AwaitAck", [
            STAYS, "Some(TimedOut)>Failed", UNEXPECTED, UNEXPECTED, UNEXPECTED,
            "open v3>Open", "Busy>Failed", "malformed>Failed",
            UNEXPECTED, UNEXPECTED, UNEXPECTED,
        ]),
        ("AwaitHello", [
            STAYS, "Some(TimedOut)>Failed",
            "open v3>Open+", "VersionMismatch>Failed+", "malformed>Failed+",
            UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED,
        ]),
        ("Open", [
            STAYS, STAYS, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED, UNEXPECTED,
            UNEXPECTED, UNEXPECTED, UNEXPECTED,
        ]),
        ("Failed", [
            STAYS, STAYS, STICKY, STICKY, STICKY, STICKY, STICKY, STICKY, STICKY, STICKY, STICKY,
        ]),
    ];

    #[test]
    fn every_state_answers_every_event() {
        for (state, row) in TABLE {
            for (event, expected) in EVENTS.into_iter().zip(row) {
                let (mut machine, mut out) = (in_state(state), Vec::new());
                let output = apply(&mut machine, event, &mut out);
                let next = format!("{:?}", machine.state);
                let next = next.split('(').next().unwrap_or_default();
                let next = if expected == STAYS && next == state {
                    ""
                } else {
                    next
                };
                let answered = if out.is_empty() { "" } else { "+" };
                assert_eq!(
                    format!("{output}>{next}{answered}"),
                    expected,
                    "{state} x {event}"
                );
            }
        }
    }

    #[test]
    fn a_deadline_is_set_only_while_the_peer_is_waited_for() {
        for (state, _) in TABLE {
            let waits = state == "AwaitAck" || state == "AwaitHello";
            assert_eq!(
                in_state(state).poll_timeout(),
                waits.then_some(DEADLINE),
                "{state}"
            );
        }
    }

    /// Both sides of a handshake, frames carried across.
    fn shake(ours: Hello, theirs: Hello) -> (HandshakeOutput, HandshakeOutput) {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        let mut initiator = Handshake::initiator(ours, DEADLINE);
        let mut acceptor = Handshake::acceptor(theirs, DEADLINE);
        initiator.start(&mut there);
        let accepted = feed(&mut acceptor, &there, &mut back);
        there.clear();
        let opened = feed(&mut initiator, &back, &mut there);
        assert!(there.is_empty(), "an answer is not answered");
        (opened, accepted)
    }

    #[test]
    fn both_sides_agree_on_the_smaller_limits_and_the_newest_version() {
        let ours = Hello {
            in_flight_max: 8,
            session_epoch: 1,
            ..hello(1, 3)
        };
        let theirs = Hello {
            payload_bytes_max: 9,
            greeting: vec![4; 4096],
            ..hello(2, 5)
        };
        let (HandshakeOutput::Open(opened), HandshakeOutput::Open(accepted)) = shake(ours, theirs)
        else {
            panic!("the two are compatible");
        };
        for agreement in [&opened, &accepted] {
            assert_eq!((agreement.version, agreement.in_flight_max), (3, 8));
            assert_eq!(agreement.payload_bytes_max, 9);
        }
        assert_eq!((opened.session_epoch, accepted.session_epoch), (7, 1));
        assert_eq!(
            (opened.greeting, accepted.greeting),
            (vec![4; 4096], b"who".to_vec())
        );
    }

    #[test]
    fn each_side_sees_a_mismatch_from_its_own_end() {
        let (older, newer) = (
            VersionRange { min: 1, max: 2 },
            VersionRange { min: 3, max: 4 },
        );
        for (ours, theirs) in [(older, newer), (newer, older)] {
            let sides = shake(hello(ours.min, ours.max), hello(theirs.min, theirs.max));
            let refused = |ours, theirs| {
                HandshakeOutput::Failed(HelloRefusal::VersionMismatch { ours, theirs }.into())
            };
            assert_eq!(sides, (refused(ours, theirs), refused(theirs, ours)));
        }
    }

    #[test]
    fn an_answer_beyond_the_offer_is_malformed() {
        let beyond = [
            ("agreed version", hello(4, 4)),
            ("agreed version", hello(2, 3)),
            (
                "agreed in_flight_max",
                Hello {
                    in_flight_max: 65,
                    ..hello(3, 3)
                },
            ),
            (
                "agreed payload_bytes_max",
                Hello {
                    payload_bytes_max: (1 << 20) + 1,
                    ..hello(3, 3)
                },
            ),
        ];
        for (field, ack) in beyond {
            let mut machine = in_state("AwaitAck");
            let bytes = frame(FrameKind::HelloAck, 0, &body_of(&ack));
            let failed = HandshakeOutput::Failed(Malformed::OutOfRange { field }.into());
            assert_eq!(feed(&mut machine, &bytes, &mut Vec::new()), failed);
        }
    }

    #[test]
    fn the_first_frame_is_of_version_1_whatever_is_offered() {
        let mut out = Vec::new();
        Handshake::initiator(hello(8, 9), DEADLINE).start(&mut out);
        assert_eq!(out[2], 1);
        let header = FrameHeader::decode(out.first_chunk().unwrap()).unwrap();
        assert_eq!(
            (header.id, header.payload),
            (HELLO_ID, PayloadDigest::default())
        );
    }

    #[test]
    #[should_panic(expected = "says hello once")]
    fn a_second_hello_is_a_bug_of_the_caller() {
        in_state("AwaitAck").start(&mut Vec::new());
    }
}
