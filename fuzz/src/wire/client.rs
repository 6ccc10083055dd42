//! Receiver and calls: whatever a peer answers and whenever deadlines pass, each call's token comes
//! back exactly once, and no payload byte goes to memory that was given back.

use std::collections::{BTreeSet, VecDeque};

use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::calls::{
    Abandon, CallEnd, CallFault, Calls, EndCause, Expired, InFlightFull, ResponseSink,
};
use lunette_transfer_proto::frame::{FrameKind, GOAWAY_HAS_READ};
use lunette_transfer_proto::receiver::{PayloadVerdict, Receiver, ReceiverLimits, Step, WireFault};

use super::Reached;
use super::script::{Cut, Moment, Script};

const IN_FLIGHT_MAX: u32 = 8;

pub(super) fn attack(script: &Script, reached: &mut Reached) {
    let mut client = Client {
        calls: Calls::new(IN_FLIGHT_MAX),
        now: Time::ZERO,
        tokens: 0,
        held: BTreeSet::new(),
        fences: VecDeque::new(),
        arriving: None,
        wanted_bytes: 0,
        reached,
    };
    let mut receiver = Receiver::new(ReceiverLimits {
        body_bytes_max: 255,
        payload_bytes_max: 255,
    });
    let mut cuts = script.cuts.iter().copied().cycle();
    let (mut moments, mut at) = (script.moments.iter().peekable(), 0);
    loop {
        while let Some((_, moment)) = moments.next_if(|(due, _)| *due <= at) {
            client.live(*moment);
        }
        if at == script.stream.len() {
            break;
        }
        let next_moment = moments.peek().map_or(usize::MAX, |(due, _)| *due);
        let cut = cuts.next().expect("a script has cuts");
        let end = next_moment
            .min(at.saturating_add(cut.len_bytes))
            .min(script.stream.len());
        if client
            .receive(&mut receiver, &script.stream[at..end], cut)
            .is_err()
        {
            break;
        }
        at = end;
    }
    client.disconnect();
}

/// Why a client closes its connection; the fault itself is checked elsewhere.
#[derive(Debug)]
struct Closed;

impl From<WireFault> for Closed {
    fn from(_: WireFault) -> Self {
        Self
    }
}

struct Client<'a> {
    calls: Calls<u32>,
    now: Time,
    /// How many tokens were handed out: the next one's value.
    tokens: u32,
    /// Tokens of calls that are not over: their memory may be written to.
    held: BTreeSet<u32>,
    /// Fences that were asked for and not reported yet.
    fences: VecDeque<RequestId>,
    /// The response whose payload is arriving, and the token whose memory it goes to.
    arriving: Option<(RequestId, Option<u32>)>,
    /// How much of a payload is left when the receiver has asked for it.
    wanted_bytes: usize,
    reached: &'a mut Reached,
}

impl Client<'_> {
    fn live(&mut self, moment: Moment) {
        match moment {
            Moment::Start { ttl_ns, room_bytes } => self.start(ttl_ns, room_bytes),
            Moment::Pass { ns } => self.pass(ns),
            Moment::Abandon { id } => match self.calls.abandon(id) {
                Abandon::Ended { token } => {
                    self.reached.calls_given_up += 1;
                    self.give_back(token);
                }
                Abandon::MustFence => self.fences.push_back(id),
                Abandon::Over => {}
            },
            Moment::Fence => self.fence(),
        }
        let is_due = self
            .calls
            .next_deadline()
            .is_some_and(|deadline| deadline <= self.now);
        assert!(!is_due, "what is due has expired");
    }

    fn start(&mut self, ttl_ns: u8, room_bytes: u8) {
        let (token, was_full) = (self.tokens, self.calls.is_full());
        self.tokens += 1;
        let deadline = Time::from_ns(self.now.as_ns() + 1 + u64::from(ttl_ns));
        match self.calls.start(deadline, u32::from(room_bytes), token) {
            Ok(id) => {
                assert!(!was_full);
                assert_eq!(self.calls.token(id), Some(&token));
                self.held.insert(token);
            }
            Err(InFlightFull { token: refused }) => assert!(was_full && refused == token),
        }
    }

    fn pass(&mut self, ns: u8) {
        self.now = Time::from_ns(self.now.as_ns() + u64::from(ns));
        let mut expired = Vec::new();
        self.calls.expire(self.now, &mut expired);
        for expired in expired {
            match expired {
                Expired::Ended { token, .. } => {
                    self.reached.calls_given_up += 1;
                    self.give_back(token);
                }
                Expired::MustFence { id } => self.fences.push_back(id),
            }
        }
    }

    /// The driver has reaped the receive into a call's memory.
    fn fence(&mut self) {
        let Some(id) = self.fences.pop_front() else {
            return;
        };
        if let Some(fenced) = self.calls.on_fenced(id) {
            self.reached.calls_fenced += 1;
            assert!(matches!(
                fenced.cause,
                EndCause::DeadlineExceeded | EndCause::Abandoned
            ));
            let arriving = self
                .arriving
                .as_mut()
                .filter(|(arriving, _)| *arriving == id);
            let (_, place) = arriving.expect("only an arriving payload is fenced");
            assert_eq!(place.take(), Some(fenced.token), "the rest is discarded");
            self.give_back(fenced.token);
        }
        assert_eq!(self.calls.on_fenced(id), None, "a fence is reported once");
    }

    fn receive(
        &mut self,
        receiver: &mut Receiver,
        mut input: &[u8],
        cut: Cut,
    ) -> Result<(), Closed> {
        let wanted_bytes = std::mem::take(&mut self.wanted_bytes);
        if cut.straight && wanted_bytes > 0 {
            self.place();
            receiver.on_payload(take(&mut input, wanted_bytes))?;
        }
        loop {
            match receiver.step(&mut input)? {
                Step::NeedControl => return Ok(()),
                Step::Frame(view) if view.header.kind == FrameKind::Response => {
                    self.respond(view.header.id, view.header.payload.len_bytes)?;
                }
                Step::Frame(view) => {
                    self.arriving = None;
                    let header = view.header;
                    if header.kind == FrameKind::Goaway && header.code == GOAWAY_HAS_READ {
                        self.part(header.id.0);
                    }
                }
                Step::Payload { .. } => self.place(),
                Step::NeedPayload { len_bytes, .. } => {
                    self.wanted_bytes = len_bytes as usize;
                    return Ok(());
                }
                Step::PayloadDone { id, verdict } => {
                    if self.arriving.is_some_and(|(arriving, _)| arriving == id) {
                        self.end(id, verdict);
                    }
                }
            }
        }
    }

    fn respond(&mut self, id: RequestId, payload_len_bytes: u32) -> Result<(), Closed> {
        let token = self.calls.token(id).copied();
        let sink = match self.calls.on_response(id, payload_len_bytes) {
            Ok(sink) => sink,
            Err(CallFault::NeverIssued { .. } | CallFault::AlreadyAnswered { .. }) => {
                self.reached.call_faults += 1;
                return Err(Closed);
            }
        };
        let place = match sink {
            ResponseSink::Place => Some(token.expect("only an open call has a place")),
            ResponseSink::Discard => None,
        };
        self.arriving = Some((id, place));
        if payload_len_bytes == 0 {
            self.end(id, PayloadVerdict::Intact);
        }
        Ok(())
    }

    /// The peer reads no more, and has read so many requests.
    fn part(&mut self, read: u64) {
        for (id, token) in self.calls.on_goaway(read) {
            assert_eq!(self.calls.token(id), None);
            self.reached.calls_unread += 1;
            self.give_back(token);
        }
    }

    /// Payload bytes go to the memory of a call that is not over.
    fn place(&self) {
        if let Some((_, Some(token))) = self.arriving {
            assert!(
                self.held.contains(&token),
                "bytes for memory that was given back"
            );
        }
    }

    fn end(&mut self, id: RequestId, verdict: PayloadVerdict) {
        let arrived = self.arriving.take();
        let (_, place) = arrived.expect("a response ends after it has begun");
        match self.calls.on_response_end(id, verdict) {
            CallEnd::Done { token } => {
                assert_eq!((place, verdict), (Some(token), PayloadVerdict::Intact));
                self.reached.calls_done += 1;
                self.give_back(token);
            }
            CallEnd::Corrupt {
                token,
                expected,
                computed,
            } => {
                assert_eq!(verdict, PayloadVerdict::Corrupt { expected, computed });
                assert_eq!(place, Some(token));
                self.give_back(token);
            }
            CallEnd::TooLong {
                token,
                payload_len_bytes,
                room_bytes,
            } => {
                assert!(place.is_none() && payload_len_bytes > room_bytes);
                self.give_back(token);
            }
            CallEnd::Discarded => {
                assert_eq!(place, None, "a call with a place is not over");
                self.reached.responses_discarded += 1;
            }
        }
    }

    fn give_back(&mut self, token: u32) {
        assert!(self.held.remove(&token), "a token is given back once");
    }

    fn disconnect(mut self) {
        for (id, token) in self.calls.fail_all() {
            assert_eq!(self.calls.token(id), None);
            self.give_back(token);
        }
        assert!(self.held.is_empty(), "every token is given back");
        assert_eq!(
            (self.calls.in_flight(), self.calls.next_deadline()),
            (0, None)
        );
    }
}

/// Up to `len_bytes` from the front of `input`.
fn take<'i>(input: &mut &'i [u8], len_bytes: usize) -> &'i [u8] {
    let (head, rest) = input.split_at(len_bytes.min(input.len()));
    *input = rest;
    head
}
