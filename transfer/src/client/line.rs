//! A connection on which a thread that is no core's asks, one request after the other.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use lunette_runtime::arena::SharedMemory;
use lunette_runtime::net::ThreadStream;
use lunette_runtime_core::checksum::Crc32c;
use lunette_runtime_core::limits::BODY_BYTES_MAX;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::calls::{CallEnd, Calls, ResponseSink};
use lunette_transfer_proto::frame::{FrameKind, GOAWAY_HAS_READ, PayloadDigest, encode_frame};
use lunette_transfer_proto::hello::{Agreement, Hello};
use lunette_transfer_proto::receiver::{PayloadVerdict, Receiver, ReceiverLimits, Step};

use super::Greeted;
use crate::error::{CallError, CloseReason, ConnectError};
use crate::guard::Guard;

/// What is received at a time: short payloads, and the fronts of long ones, are copied from there.
const STAGING_BYTES: usize = 32 * 1024;
/// From so many bytes on, what is left of a payload is received straight to where it belongs, if the sink says where.
const PLACED_BYTES_MIN: usize = 16 * 1024;
/// Most that is received so at once: it is to be in the processor's own cache when its checksum is folded.
const PLACED_BYTES_MAX: usize = 256 * 1024;

/// Requests that are under way on a line. It is by this that who serves knows one.
pub(crate) const LINE_IN_FLIGHT: u32 = 1;

/// Who is told an answer.
pub trait LineSink {
    /// The answer's status and body, and the length of the payload that follows.
    fn on_answer(&mut self, status: u16, body: &[u8], payload_len_bytes: usize);
    /// The next bytes of the payload. Whether they are as they were sent is told at its [end](Line::look).
    fn on_payload(&mut self, bytes: &[u8]);
    /// Where the next bytes of the payload belong, as many as that is: a sink that says so is not told of them, but of
    /// [how many](Self::on_placed) have come there. What does not come straight to there is [told](Self::on_payload) all the same.
    fn place(&self) -> Option<(&SharedMemory, Range<usize>)> {
        None
    }
    /// So many bytes lie at the front of the [place](Self::place).
    fn on_placed(&mut self, _len_bytes: usize) {}
}

/// A connection of whatever thread has it. A core makes it; from then on the thread asks the system itself, so that a request
/// wakes the peer, and its answer the thread, and nobody between them.
///
/// There is one request at a time. It does not end by itself: who asks keeps the time, and drops the line with what is
/// unanswered on it. A line that has failed once fails again. What is sent is copied to memory of the line, by the thread, and
/// what comes from there or straight to where it belongs: between calls nothing is lent.
#[derive(Debug)]
pub struct Line {
    stream: ThreadStream,
    agreement: Agreement,
    calls: Calls<()>,
    receiver: Receiver,
    staging: Vec<u8>,
    /// What of staging has been received and not been stepped through.
    unread: Range<usize>,
    /// The head of the request.
    out: Vec<u8>,
    /// Its payload lies at the front; what is behind it is of earlier ones.
    payload: Vec<u8>,
    payload_len: usize,
    /// What of head and payload has been sent.
    sent: usize,
    body: Vec<u8>,
    /// Bytes that have come since it was asked.
    arrived_bytes: usize,
    is_asked: bool,
    /// The peer reads nothing more. What was asked it has read, and may answer.
    is_last: bool,
    /// The peer has not read what was asked.
    is_refused: bool,
    /// Whether the payload that arrives is told.
    is_told: bool,
    failed: Option<CloseReason>,
}

impl Line {
    /// Connects to `address`, authenticates both sides if there is a guard, and shakes hands, all within `timeout`, on a
    /// core. `None` where a thread cannot have the connection: it is sealed, or a simulated one. A peer of whose connections
    /// more than half are [taken](crate::ServeOptions::connections_max) ends it at once.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        address: SocketAddr,
        hello: Hello,
        timeout: Duration,
        guard: Option<&Guard>,
    ) -> Result<Option<Self>, ConnectError> {
        let hello = Hello {
            in_flight_max: LINE_IN_FLIGHT,
            ..hello
        };
        let Greeted {
            agreement,
            stream,
            inbound,
            outbox,
            sealer,
        } = Greeted::connect(address, hello, timeout, guard).await?;
        if sealer.is_some() {
            return Ok(None);
        }
        assert_eq!(outbox.pending_bytes(), 0, "who connects has said all");
        let mut staging = inbound.into_unread();
        let unread = 0..staging.len();
        staging.resize(STAGING_BYTES.max(unread.end), 0);
        let limits = ReceiverLimits::open(agreement.payload_bytes_max);
        Ok(stream.into_thread().map(|stream| Self {
            stream,
            agreement,
            calls: Calls::new(1),
            receiver: Receiver::new(limits),
            staging,
            unread,
            out: Vec::new(),
            payload: Vec::new(),
            payload_len: 0,
            sent: 0,
            body: Vec::new(),
            arrived_bytes: 0,
            is_asked: false,
            is_last: false,
            is_refused: false,
            is_told: false,
            failed: None,
        }))
    }

    /// What the handshake agreed on, and what the peer said of itself.
    #[must_use]
    pub const fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Whether something can be asked: nothing is unanswered, and the connection has not been found ended.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        !self.is_asked && self.failed.is_none()
    }

    /// Whether the peer has neither finished nor said anything, when nothing is unanswered. It may have by the time that this
    /// returns.
    pub fn is_quiet(&mut self) -> bool {
        let is_quiet = self.unread.is_empty() && matches!(self.stream.try_recv(&mut [0]), Ok(None));
        if !is_quiet {
            self.failed.get_or_insert(CloseReason::Peer);
        }
        self.is_free()
    }

    /// Whether the peer cannot have done what was asked last: nothing of it has been sent, or the peer has said that it did not
    /// read it.
    #[must_use]
    pub const fn is_unread(&self) -> bool {
        self.sent == 0 || self.is_refused
    }

    /// Bytes that have been received since the last request.
    #[must_use]
    pub const fn arrived_bytes(&self) -> usize {
        self.arrived_bytes
    }

    /// Asks the peer for `op`, with an answer of at most `room_bytes` of payload; `body` appends the request's body. What the
    /// system does not take at once is sent as the [answer](Self::look) is looked for.
    ///
    /// # Errors
    /// [`CloseReason`]: the connection has ended, and nothing of the request has been sent.
    ///
    /// # Panics
    /// If something is [unanswered](Self::is_free), or the body is longer than a frame's may be.
    pub fn ask(
        &mut self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        room_bytes: u32,
    ) -> Result<(), CloseReason> {
        self.payload_len = 0;
        self.begin(op, body, None, room_bytes)
    }

    /// Room for the payload of the next request, which [`ask_with_payload`](Self::ask_with_payload) sends. What lies there before
    /// is anything.
    ///
    /// # Panics
    /// If something is [unanswered](Self::is_free).
    pub fn payload(&mut self, len_bytes: usize) -> &mut [u8] {
        assert!(!self.is_asked, "one request at a time");
        if self.payload.len() < len_bytes {
            self.payload.resize(len_bytes, 0);
        }
        self.payload_len = len_bytes;
        &mut self.payload[..len_bytes]
    }

    /// As [`ask`](Self::ask), with what was written to the [payload's room](Self::payload), of this checksum, and an answer
    /// without payload.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there, or if the payload is longer than was [agreed](Self::agreement).
    pub fn ask_with_payload(
        &mut self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        crc32c: u32,
    ) -> Result<(), CloseReason> {
        let len_bytes = u32::try_from(self.payload_len).expect("payloads are bounded");
        let len_max = self.agreement.payload_bytes_max;
        assert!(len_bytes <= len_max, "more than was agreed");
        let digest = PayloadDigest { len_bytes, crc32c };
        self.begin(op, body, Some(digest), 0)
    }

    fn begin(
        &mut self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        payload: Option<PayloadDigest>,
        room_bytes: u32,
    ) -> Result<(), CloseReason> {
        assert!(!self.is_asked, "one request at a time");
        (self.sent, self.arrived_bytes) = (0, 0);
        if let Some(reason) = self.failed {
            return Err(reason);
        }
        self.body.clear();
        body(&mut self.body);
        assert!(self.body.len() <= BODY_BYTES_MAX, "a request of one frame");
        let id = self.calls.start(Time::MAX, room_bytes, ());
        let id = id.expect("nothing is under way");
        self.is_asked = true;
        self.out.clear();
        let out = &mut self.out;
        encode_frame(out, FrameKind::Request, op, id, &self.body, payload);
        let sent = self.send();
        if self.sent > 0 {
            // Who looks for the answer finds why the rest cannot be sent.
            return Ok(());
        }
        self.note(sent)
    }

    /// Tells `sink` what has come of the answer, without waiting; and once all of it has, whether it is whole.
    ///
    /// # Errors
    /// [`CloseReason`]: the connection has ended, or the peer does not make sense. Whether it did what was asked is unknown, unless that is
    /// [unread](Self::is_unread).
    /// Inside, of a whole answer: [`CallError::Corrupt`], or [`CallError::TooLong`], of whose payload nothing was told. The line
    /// goes on.
    pub fn look(
        &mut self,
        sink: &mut impl LineSink,
    ) -> Result<Option<Result<(), CallError>>, CloseReason> {
        if let Some(reason) = self.failed {
            return Err(reason);
        }
        let looked = self.step_all(sink);
        self.note(looked)
    }

    /// Whether the peer sends no more as long as this thread does not sleep: it is on this host, and on this processor.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        self.stream.is_in_the_way()
    }

    /// Blocks this thread until there may be something to [look](Self::look) for, and no longer than `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        if !self.unread.is_empty() {
            return;
        }
        let sends = self.sent < self.out.len() + self.payload_len;
        if let Err(error) = self.stream.sleep(sends, timeout) {
            tracing::debug!(%error, "a thread looks for its answer at once");
        }
    }

    fn note<T>(&mut self, done: Result<T, CloseReason>) -> Result<T, CloseReason> {
        self.failed = done.as_ref().err().copied();
        if self.is_last && !self.is_asked {
            self.failed.get_or_insert(CloseReason::Peer);
        }
        done
    }

    /// Sends what the system takes.
    fn send(&mut self) -> Result<(), CloseReason> {
        let payload = &self.payload[..self.payload_len];
        loop {
            let head = self.out.get(self.sent..).unwrap_or_default();
            let rest = &payload[self.sent.saturating_sub(self.out.len())..];
            if head.is_empty() && rest.is_empty() {
                return Ok(());
            }
            match self
                .stream
                .try_send(&[IoSlice::new(head), IoSlice::new(rest)])?
            {
                0 => return Ok(()),
                count => self.sent += count,
            }
        }
    }

    fn step_all(
        &mut self,
        sink: &mut impl LineSink,
    ) -> Result<Option<Result<(), CallError>>, CloseReason> {
        // Who reads no more may have said what it has read before it ended.
        let sent = self.send();
        loop {
            let payload_left = match self.step(sink)? {
                Next::Ended(ended) => {
                    self.is_asked = false;
                    return Ok(Some(ended));
                }
                Next::Bytes { payload_left } => payload_left,
            };
            match self.receive(sink, payload_left)? {
                None => return sent.map(|()| None),
                Some(0) => {
                    self.receiver.on_eof()?;
                    return Err(CloseReason::Peer);
                }
                Some(count) => self.arrived_bytes += count,
            }
        }
    }

    /// Receives what has come, within a payload of which so much is left, or outside one: how many bytes.
    fn receive(
        &mut self,
        sink: &mut impl LineSink,
        payload_left: usize,
    ) -> Result<Option<usize>, CloseReason> {
        if let Some((memory, place)) = sink.place().filter(|_| self.is_told) {
            let len = place.len().min(payload_left).min(PLACED_BYTES_MAX);
            if len >= PLACED_BYTES_MIN {
                let start = place.start;
                let received = self.stream.try_recv_to(memory, start..start + len)?;
                if let Some(count @ 1..) = received {
                    let fold = |checksum: &mut Crc32c| memory.fold(start..start + count, checksum);
                    self.receiver.on_payload_in_place(count, fold)?;
                    sink.on_placed(count);
                }
                return Ok(received);
            }
        }
        let received = self.stream.try_recv(&mut self.staging)?;
        self.unread = 0..received.unwrap_or(0);
        Ok(received)
    }

    /// Steps through what has been received, up to the end of an answer.
    fn step(&mut self, sink: &mut impl LineSink) -> Result<Next, CloseReason> {
        loop {
            let mut input = &self.staging[self.unread.clone()];
            let step = self.receiver.step(&mut input)?;
            self.unread.start = self.unread.end - input.len();
            let (id, verdict) = match step {
                Step::Frame(frame) => {
                    match frame.header.kind {
                        FrameKind::Response => {}
                        FrameKind::Goaway if frame.header.code == GOAWAY_HAS_READ => {
                            let read = frame.header.id.0;
                            self.is_last = true;
                            self.is_refused = !self.calls.on_goaway(read).is_empty();
                            if self.is_refused {
                                return Err(CloseReason::Peer);
                            }
                            continue;
                        }
                        FrameKind::Goaway => return Err(CloseReason::Peer),
                        kind => return Err(CloseReason::UnexpectedFrame(kind)),
                    }
                    let (id, len_bytes) = (frame.header.id, frame.header.payload.len_bytes);
                    self.is_told = self.calls.on_response(id, len_bytes)? == ResponseSink::Place;
                    if self.is_told {
                        sink.on_answer(frame.header.code, frame.body, len_bytes as usize);
                    }
                    if len_bytes > 0 {
                        continue;
                    }
                    (id, PayloadVerdict::Intact)
                }
                Step::Payload { bytes, .. } => {
                    if self.is_told {
                        sink.on_payload(bytes);
                    }
                    continue;
                }
                Step::PayloadDone { id, verdict } => (id, verdict),
                Step::NeedControl => return Ok(Next::Bytes { payload_left: 0 }),
                Step::NeedPayload { len_bytes, .. } => {
                    let payload_left = len_bytes as usize;
                    return Ok(Next::Bytes { payload_left });
                }
            };
            return Ok(Next::Ended(ended(self.calls.on_response_end(id, verdict))));
        }
    }
}

/// What comes next.
enum Next {
    /// Nothing: the answer has ended.
    Ended(Result<(), CallError>),
    /// Bytes that are to be received, so many of which are of a payload.
    Bytes { payload_left: usize },
}

/// What came of the request.
fn ended(end: CallEnd<()>) -> Result<(), CallError> {
    match end {
        CallEnd::Done { token: () } => Ok(()),
        CallEnd::Corrupt {
            expected, computed, ..
        } => Err(CallError::Corrupt { expected, computed }),
        CallEnd::TooLong {
            payload_len_bytes,
            room_bytes,
            ..
        } => Err(CallError::TooLong {
            payload_len_bytes,
            room_bytes,
        }),
        CallEnd::Discarded => unreachable!("no request is given up"),
    }
}
