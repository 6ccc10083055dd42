//! A connection on which a thread that is no core's asks, one request after the other.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use lunette_runtime::net::ThreadStream;
use lunette_runtime_core::limits::BODY_BYTES_MAX;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::calls::{CallEnd, Calls, ResponseSink};
use lunette_transfer_proto::frame::{FrameKind, encode_frame};
use lunette_transfer_proto::hello::{Agreement, Hello};
use lunette_transfer_proto::receiver::{PayloadVerdict, Receiver, ReceiverLimits, Step};

use super::Greeted;
use crate::error::{CallError, CloseReason, ConnectError};
use crate::guard::Guard;

/// What is received at a time: payloads are copied from there.
const STAGING_BYTES: usize = 32 * 1024;

/// Who is told an answer.
pub trait LineSink {
    /// The answer's status and body, and the length of the payload that follows.
    fn on_answer(&mut self, status: u16, body: &[u8], payload_len_bytes: usize);
    /// The next bytes of the payload. Whether they are as they were sent is told at its [end](Line::look).
    fn on_payload(&mut self, bytes: &[u8]);
}

/// A connection of whatever thread has it. A core makes it; from then on the thread asks the system itself, so that a request
/// wakes the peer, and its answer the thread, and nobody between them.
///
/// There is one request at a time, without payload. It does not end by itself: who asks keeps the time, and drops the line
/// with what is unanswered on it. A line that has failed once fails again. What is received of a payload is copied to who is
/// told, while it looks: no memory is lent.
#[derive(Debug)]
pub struct Line {
    stream: ThreadStream,
    agreement: Agreement,
    calls: Calls<()>,
    receiver: Receiver,
    staging: Vec<u8>,
    /// What of staging has been received and not been stepped through.
    unread: Range<usize>,
    out: Vec<u8>,
    /// What of it has been sent.
    sent: usize,
    body: Vec<u8>,
    is_asked: bool,
    /// Whether the payload that arrives is told.
    is_told: bool,
    failed: Option<CloseReason>,
}

impl Line {
    /// Connects to `address`, authenticates both sides if there is a guard, and shakes hands, all within `timeout`, on a
    /// core. `None` where a thread cannot have the connection: it is sealed, or a simulated one.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        address: SocketAddr,
        hello: Hello,
        timeout: Duration,
        guard: Option<&Guard>,
    ) -> Result<Option<Self>, ConnectError> {
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
            sent: 0,
            body: Vec::new(),
            is_asked: false,
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

    /// Asks the peer for `op`, with an answer of at most `room_bytes` of payload; `body` appends the request's body. What the
    /// system does not take at once is sent as the [answer](Self::look) is looked for.
    ///
    /// # Errors
    /// [`CloseReason`]: the connection has ended. Whether the peer does what was asked is unknown.
    ///
    /// # Panics
    /// If something is [unanswered](Self::is_free), or the body is longer than a frame's may be.
    pub fn ask(
        &mut self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        room_bytes: u32,
    ) -> Result<(), CloseReason> {
        assert!(!self.is_asked, "one request at a time");
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
        self.sent = 0;
        let out = &mut self.out;
        encode_frame(out, FrameKind::Request, op, id, &self.body, None);
        let sent = self.send();
        self.note(sent)
    }

    /// Tells `sink` what has come of the answer, without waiting; and once all of it has, whether it is whole.
    ///
    /// # Errors
    /// [`CloseReason`]: the connection has ended, or the peer does not make sense. Whether it did what was asked is unknown.
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

    /// Blocks this thread until there may be something to [look](Self::look) for, and no longer than `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let sends = self.sent < self.out.len();
        if let Err(error) = self.stream.sleep(sends, timeout) {
            tracing::debug!(%error, "a thread looks for its answer at once");
        }
    }

    fn note<T>(&mut self, done: Result<T, CloseReason>) -> Result<T, CloseReason> {
        self.failed = done.as_ref().err().copied();
        done
    }

    /// Sends what the system takes.
    fn send(&mut self) -> Result<(), CloseReason> {
        while self.sent < self.out.len() {
            match self.stream.try_send(&self.out[self.sent..])? {
                0 => break,
                count => self.sent += count,
            }
        }
        Ok(())
    }

    fn step_all(
        &mut self,
        sink: &mut impl LineSink,
    ) -> Result<Option<Result<(), CallError>>, CloseReason> {
        self.send()?;
        loop {
            if let Some(ended) = self.step(sink)? {
                self.is_asked = false;
                return Ok(Some(ended));
            }
            match self.stream.try_recv(&mut self.staging)? {
                None => return Ok(None),
                Some(0) => {
                    self.receiver.on_eof()?;
                    return Err(CloseReason::Peer);
                }
                Some(count) => self.unread = 0..count,
            }
        }
    }

    /// Steps through what has been received, up to the end of an answer.
    fn step(
        &mut self,
        sink: &mut impl LineSink,
    ) -> Result<Option<Result<(), CallError>>, CloseReason> {
        loop {
            let mut input = &self.staging[self.unread.clone()];
            let step = self.receiver.step(&mut input)?;
            self.unread.start = self.unread.end - input.len();
            let (id, verdict) = match step {
                Step::Frame(frame) => {
                    match frame.header.kind {
                        FrameKind::Response => {}
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
                Step::NeedControl | Step::NeedPayload { .. } => return Ok(None),
            };
            return Ok(Some(ended(self.calls.on_response_end(id, verdict))));
        }
    }
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
