//! Receiver and handshake: however a stream is cut, the same comes out, and every byte is used.

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::frame::{FrameHeader, FrameKind};
use lunette_transfer_proto::hello::{
    Agreement, GREETING_BYTES_MAX, Handshake, HandshakeFault, HandshakeOutput, Hello, VersionRange,
};
use lunette_transfer_proto::receiver::{
    FrameView, PayloadVerdict, Receiver, ReceiverLimits, Step, WireFault,
};

use super::script::{Cut, Script};
use super::{Reached, message};

const IN_FLIGHT_MAX: u32 = 8;
const PAYLOAD_BYTES_MAX: u32 = 200;
const LIMITS: ReceiverLimits = ReceiverLimits {
    body_bytes_max: 200,
    payload_bytes_max: PAYLOAD_BYTES_MAX,
};

/// What came out of a stream, payloads put together again.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Frame {
        header: FrameHeader,
        body: Vec<u8>,
    },
    Opened(Agreement),
    Refused(HandshakeFault),
    Payload {
        bytes: Vec<u8>,
        verdict: PayloadVerdict,
    },
    End(Result<(), WireFault>),
}

pub(super) fn attack(script: &Script, reached: &mut Reached) {
    let transcript = Connection::run(script, &script.cuts);
    for straight in [false, true] {
        let byte_by_byte = Connection::run(
            script,
            &[Cut {
                len_bytes: 1,
                straight,
            }],
        );
        assert_eq!(transcript, byte_by_byte, "cuts change what comes out");
        let whole = Connection::run(
            script,
            &[Cut {
                len_bytes: usize::MAX,
                straight,
            }],
        );
        assert_eq!(transcript, whole, "cuts change what comes out");
    }
    check_transcript(&transcript);
    transcript.iter().for_each(|event| count(event, reached));
}

fn count(event: &Event, reached: &mut Reached) {
    let counter = match event {
        Event::Frame { .. } => &mut reached.frames,
        Event::Opened(_) => &mut reached.handshakes_open,
        Event::Refused(_) => &mut reached.handshakes_failed,
        Event::Payload {
            verdict: PayloadVerdict::Intact,
            ..
        } => &mut reached.payloads_intact,
        Event::Payload { .. } => &mut reached.payloads_corrupt,
        Event::End(Err(_)) => &mut reached.wire_faults,
        Event::End(Ok(())) => return,
    };
    *counter += 1;
}

/// Every payload is reported once, right behind its frame, with the verdict its bytes deserve.
fn check_transcript(transcript: &[Event]) {
    let mut awaited = None;
    for event in transcript {
        match event {
            Event::Frame { header, body } => {
                assert_eq!(awaited, None, "a payload is done before the next frame");
                assert_eq!(crc32c(body), header.body_crc32c);
                assert_eq!(body.len(), header.body_len_bytes as usize);
                message::check(header, body);
                awaited = (header.payload.len_bytes > 0).then_some(header.payload);
            }
            Event::Payload { bytes, verdict } => {
                let digest = awaited
                    .take()
                    .expect("a payload belongs to the frame before it");
                assert_eq!(bytes.len(), digest.len_bytes as usize);
                let is_intact = crc32c(bytes) == digest.crc32c;
                assert_eq!(*verdict == PayloadVerdict::Intact, is_intact);
            }
            Event::End(Ok(())) => assert_eq!(awaited, None, "a stream ends between frames"),
            Event::End(Err(_)) | Event::Opened(_) | Event::Refused(_) => {}
        }
    }
    assert!(
        matches!(transcript.last(), Some(Event::End(_))),
        "a stream has one end"
    );
}

/// A driver over a stream in memory.
struct Connection<'a> {
    receiver: Receiver,
    /// `None` once it is over.
    handshake: Option<Handshake>,
    stream: &'a [u8],
    payload: Vec<u8>,
    transcript: Vec<Event>,
}

impl<'a> Connection<'a> {
    fn run(script: &'a Script, cuts: &[Cut]) -> Vec<Event> {
        let handshake = (!script.handshake_is_over).then(|| handshake(script.peer_is_initiator));
        let limits = if handshake.is_some() {
            ReceiverLimits::HELLO
        } else {
            LIMITS
        };
        let mut connection = Self {
            receiver: Receiver::new(limits),
            handshake,
            stream: &script.stream,
            payload: Vec::new(),
            transcript: Vec::new(),
        };
        let mut cuts = cuts.iter().copied().cycle();
        let ended = loop {
            let cut = cuts.next().expect("a script has cuts");
            let arrived = connection.receive(cut);
            if let Err(fault) = connection.step_through(arrived, cut) {
                connection.check_sticky(fault);
                break Err(fault);
            }
            if connection.stream.is_empty() {
                break connection.receiver.on_eof();
            }
        };
        connection.transcript.push(Event::End(ended));
        connection.transcript
    }

    fn receive(&mut self, cut: Cut) -> &'a [u8] {
        let (arrived, rest) = self.stream.split_at(cut.len_bytes.min(self.stream.len()));
        self.stream = rest;
        arrived
    }

    fn step_through(&mut self, arrived: &[u8], cut: Cut) -> Result<(), WireFault> {
        let mut input = arrived;
        loop {
            match self.receiver.step(&mut input)? {
                Step::NeedControl => break,
                Step::Frame(view) => {
                    self.payload = vec![0; view.header.payload.len_bytes as usize];
                    let opened = on_frame(&mut self.handshake, view, &mut self.transcript);
                    if opened {
                        self.receiver.set_limits(LIMITS);
                    }
                }
                Step::Payload {
                    offset_bytes,
                    bytes,
                    ..
                } => {
                    let at = offset_bytes as usize;
                    self.payload[at..at + bytes.len()].copy_from_slice(bytes);
                }
                Step::NeedPayload {
                    offset_bytes,
                    len_bytes,
                    ..
                } => {
                    assert!(len_bytes > 0 && input.is_empty());
                    if !cut.straight || self.stream.is_empty() {
                        break;
                    }
                    let len_bytes = cut.len_bytes.min(len_bytes as usize);
                    let placed = self.receive(Cut { len_bytes, ..cut });
                    let at = offset_bytes as usize;
                    self.payload[at..at + placed.len()].copy_from_slice(placed);
                    self.receiver.on_payload(placed)?;
                }
                Step::PayloadDone { verdict, .. } => {
                    let bytes = std::mem::take(&mut self.payload);
                    self.transcript.push(Event::Payload { bytes, verdict });
                }
            }
        }
        assert!(input.is_empty(), "every byte is consumed");
        assert!(self.receiver.control_bytes() <= ReceiverLimits::HELLO.body_bytes_max as usize);
        Ok(())
    }

    fn check_sticky(&mut self, fault: WireFault) {
        assert_eq!(self.receiver.step(&mut &[0x4c; 80][..]), Err(fault));
        assert_eq!(self.receiver.on_payload(&[1]), Err(fault));
        assert_eq!(self.receiver.on_eof(), Err(fault));
    }
}

fn handshake(peer_is_initiator: bool) -> Handshake {
    let ours = Hello {
        versions: VersionRange { min: 1, max: 3 },
        session_epoch: 9,
        in_flight_max: IN_FLIGHT_MAX,
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        greeting: b"fuzz".to_vec(),
    };
    if peer_is_initiator {
        return Handshake::acceptor(ours, Time::from_ns(1));
    }
    let mut initiator = Handshake::initiator(ours, Time::from_ns(1));
    initiator.start(&mut Vec::new());
    initiator
}

/// Records a frame, lets a handshake have it, and says whether that opened the connection.
fn on_frame(
    handshake: &mut Option<Handshake>,
    view: FrameView<'_>,
    transcript: &mut Vec<Event>,
) -> bool {
    transcript.push(Event::Frame {
        header: view.header,
        body: view.body.to_vec(),
    });
    let Some(machine) = handshake else {
        return false;
    };
    let mut answer = Vec::new();
    let output = machine.handle(view, &mut answer);
    check_answer(&answer);
    assert!(
        answer.is_empty() || view.header.kind == FrameKind::Hello,
        "only hellos are answered"
    );
    match output {
        HandshakeOutput::Open(agreement) => {
            check_agreement(&agreement);
            assert_eq!(machine.poll_timeout(), None);
            transcript.push(Event::Opened(agreement));
            *handshake = None;
            true
        }
        HandshakeOutput::Failed(fault) => {
            let again = machine.handle(view, &mut answer);
            assert_eq!(
                again,
                HandshakeOutput::Failed(fault),
                "a failed handshake stays so"
            );
            assert_eq!(
                (machine.poll_timeout(), machine.on_timeout(Time::MAX)),
                (None, None)
            );
            transcript.push(Event::Refused(fault));
            false
        }
    }
}

/// Nothing that a peer says raises a limit.
fn check_agreement(agreement: &Agreement) {
    assert!((1..=3).contains(&agreement.version));
    assert!((1..=IN_FLIGHT_MAX).contains(&agreement.in_flight_max));
    assert!((1..=PAYLOAD_BYTES_MAX).contains(&agreement.payload_bytes_max));
    assert!(agreement.greeting.len() <= GREETING_BYTES_MAX);
}

/// What we answer, our own receiver understands, and it is at most one frame.
fn check_answer(answer: &[u8]) {
    let (mut receiver, mut input) = (Receiver::new(ReceiverLimits::HELLO), answer);
    if !answer.is_empty() {
        let step = receiver.step(&mut input).expect("our own answer is good");
        assert!(matches!(step, Step::Frame(view) if view.header.kind == FrameKind::HelloAck));
    }
    assert!(input.is_empty());
}
