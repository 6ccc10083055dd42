//! The asking side: a connection, and calls on it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_runtime::net::{Outbox, TcpStream};
use lunette_runtime::{Signal, spawn_local, time};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::calls::{Abandon, CallEnd, Calls, EndCause, Expired, ResponseSink};
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::hello::{Agreement, Handshake, Hello};
use lunette_transfer_proto::receiver::{FrameView, PayloadVerdict};
use slab::Slab;

use crate::error::{CallError, CallFailure, CloseReason, ConnectError};
use crate::frames::{Payload, push_frame};
use crate::guard::{Guard, GuardFault};
use crate::inbound::{Inbound, Sink};
use crate::room::Room;

/// How long a peer may answer nothing at all, before its connection is given up. Calls end by their
/// own deadlines; this is for the host that is gone without a word, to which each of them would be
/// sent again.
const UNANSWERED_MAX: Duration = Duration::from_secs(20);

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// What came of the request.
    pub status: u16,
    /// The reply's body.
    pub body: Vec<u8>,
    /// Length of the payload, which lies at the front of the room.
    pub payload_len_bytes: u32,
    /// The room that the call was given, the caller's again.
    pub room: Option<Room>,
}

/// What goes with a request besides its body.
#[derive(Debug, Default)]
pub struct Attachments {
    /// Bytes to send. Pinned until they have been sent.
    pub payload: Option<Payload>,
    /// Where the reply's payload is to be received. Lent until the call's future ends.
    pub room: Option<Room>,
}

impl Attachments {
    /// Whether nothing goes with the request.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.payload.is_none() && self.room.is_none()
    }
}

/// A connection to a peer that answers calls. Clones are handles to the same one; it closes when
/// the last handle drops and no call is in flight.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Rc<Shared>,
    _closes: Rc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(Rc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[derive(Debug)]
struct Shared {
    agreement: Agreement,
    stream: TcpStream,
    outbox: Outbox,
    state: RefCell<State>,
    /// Wakes the task that keeps deadlines, when a call has an earlier one than it sleeps for.
    keeper: Signal,
    keeper_sleeps_until: Cell<Time>,
    /// Stops a receive into a call's room.
    fence: Signal,
}

#[derive(Debug)]
struct State {
    calls: Calls<usize>,
    waiters: Slab<Waiter>,
    /// Callers that wait for a free slot.
    blocked: VecDeque<Waker>,
    closed: Option<CloseReason>,
    /// Every call has ended, and no receive is in flight.
    is_over: bool,
    /// Wait for that.
    watching: Vec<Waker>,
    scratch: Vec<u8>,
}

/// One caller.
#[derive(Debug, Default)]
struct Waiter {
    waker: Option<Waker>,
    /// `None` while it is lent to a receive.
    room: Option<Room>,
    reply: Option<ReplyHead>,
    outcome: Option<Result<(), CallError>>,
    /// The caller is gone; what is left goes when the call ends.
    abandoned: bool,
}

#[derive(Debug)]
struct ReplyHead {
    status: u16,
    body: Vec<u8>,
    payload_len_bytes: u32,
}

impl Connection {
    /// Connects to `address` and shakes hands, within `timeout`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        address: SocketAddr,
        hello: Hello,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        Self::connect_guarded(address, hello, timeout, None).await
    }

    /// As [`connect`](Self::connect), and authenticates both sides first.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_guarded(
        address: SocketAddr,
        hello: Hello,
        timeout: Duration,
        guard: Option<&Guard>,
    ) -> Result<Self, ConnectError> {
        let deadline = time::now() + timeout;
        let stream = TcpStream::connect_timeout(address, timeout).await?;
        Self::over(stream, hello, deadline, guard).await
    }

    /// Shakes hands over what is connected.
    pub(crate) async fn over(
        stream: TcpStream,
        hello: Hello,
        deadline: Time,
        guard: Option<&Guard>,
    ) -> Result<Self, ConnectError> {
        if let Err(error) = stream.set_unanswered_max(UNANSWERED_MAX) {
            tracing::debug!(%error, "a connection may outlive its peer");
        }
        let mut inbound = Inbound::new(stream.clone())?;
        let authenticated = match guard {
            None => None,
            Some(guard) => {
                let handshake = guard.initiator(deadline);
                Some(inbound.authenticate(handshake, true).await?)
            }
        };
        let outbox = Outbox::default();
        let mut handshake = Handshake::initiator(hello, deadline);
        let mut frame = Vec::new();
        handshake.start(&mut frame);
        let len = frame.len();
        let (sent, _) = stream.send_all(frame, 0, len).await;
        sent.map_err(CloseReason::Io)?;
        let agreement = inbound.handshake(handshake, &outbox).await?;
        if authenticated.is_some_and(|epoch| epoch != agreement.session_epoch) {
            return Err(GuardFault::Epoch.into());
        }
        let shared = Rc::new(Shared::new(agreement, stream, outbox));
        drop(spawn_local(Rc::clone(&shared).send()));
        drop(spawn_local(Rc::clone(&shared).receive(inbound)));
        drop(spawn_local(Rc::clone(&shared).keep_deadlines()));
        let closes = Rc::new(CloseOnDrop(Rc::clone(&shared)));
        Ok(Self {
            shared,
            _closes: closes,
        })
    }

    /// What the handshake agreed on, and what the peer said of itself.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        &self.shared.agreement
    }

    /// Why the connection has ended, if it has.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.shared.state.borrow().closed
    }

    /// Asks the peer for `op`; `body` appends the request's body. The call waits while as many are
    /// in flight as the connection allows. Dropping the future gives the call up: its room is freed
    /// as soon as no receive into it is in flight, and a late reply is discarded.
    ///
    /// # Errors
    /// [`CallFailure`], with the room.
    pub async fn call(
        &self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
        timeout: Duration,
    ) -> Result<Reply, CallFailure> {
        let stop = std::future::pending();
        self.call_until(op, body, attachments, timeout, stop).await
    }

    /// As [`call`](Self::call), but gives the call up when `stop` ends, and waits until nothing of a
    /// reply can land in the room any more: [`CallError::Cancelled`] says so.
    ///
    /// # Errors
    /// [`CallFailure`], with the room.
    pub async fn call_until(
        &self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
        timeout: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Reply, CallFailure> {
        let Attachments { payload, room } = attachments;
        let shared = &self.shared;
        let payload_len_bytes = payload.as_ref().map_or(0, Payload::len);
        let payload_bytes_max = shared.agreement.payload_bytes_max;
        if payload_len_bytes > payload_bytes_max as usize {
            let error = CallError::RequestTooLong {
                payload_len_bytes,
                payload_bytes_max,
            };
            return Err(CallFailure { error, room });
        }
        let deadline = time::now() + timeout;
        if shared.must_wait() && time::timeout(timeout, shared.slot_is_free()).await.is_err() {
            return Err(CallFailure {
                error: CallError::DeadlineExceeded,
                room,
            });
        }
        let mut flight = shared.start(op, body, payload, room, deadline)?;
        let mut stop = pin!(stop);
        let mut is_stopped = false;
        poll_fn(|cx| {
            if !is_stopped && stop.as_mut().poll(cx).is_ready() {
                is_stopped = true;
                flight.cancel();
            }
            Pin::new(&mut flight).poll(cx)
        })
        .await
    }

    /// Waits until at most `bytes_max` of what was asked are still to be handed to the system, or the
    /// connection has ended.
    pub async fn drained_below(&self, bytes_max: usize) {
        self.shared.outbox.drained_below(bytes_max).await;
    }

    /// Waits until the connection has ended, with all calls on it, and says why.
    pub async fn ended(&self) -> CloseReason {
        poll_fn(|cx| {
            let mut state = self.shared.state.borrow_mut();
            if state.is_over {
                return Poll::Ready(state.closed.unwrap_or(CloseReason::Local));
            }
            state.watching.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Ends the connection. Calls in flight end with [`CallError::Disconnected`], each when nothing of
    /// a reply can land in its room any more.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Shared {
    fn new(agreement: Agreement, stream: TcpStream, outbox: Outbox) -> Self {
        let state = State {
            calls: Calls::new(agreement.in_flight_max),
            waiters: Slab::new(),
            blocked: VecDeque::new(),
            closed: None,
            is_over: false,
            watching: Vec::new(),
            scratch: Vec::new(),
        };
        Self {
            agreement,
            stream,
            outbox,
            state: RefCell::new(state),
            keeper: Signal::default(),
            keeper_sleeps_until: Cell::new(Time::MAX),
            fence: Signal::default(),
        }
    }

    fn must_wait(&self) -> bool {
        let state = self.state.borrow();
        state.calls.is_full() && state.closed.is_none()
    }

    async fn slot_is_free(&self) {
        poll_fn(|cx| {
            if self.must_wait() {
                self.state
                    .borrow_mut()
                    .blocked
                    .push_back(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Registers a call and queues its request.
    fn start(
        self: &Rc<Self>,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        payload: Option<Payload>,
        room: Option<Room>,
        deadline: Time,
    ) -> Result<Flight, CallFailure> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let Some(reason) = state.closed {
            return Err(CallFailure {
                error: CallError::Disconnected(reason),
                room,
            });
        }
        let room_bytes = room.as_ref().map_or(0, Room::len);
        let room_bytes = u32::try_from(room_bytes).unwrap_or(u32::MAX);
        let waiter = state.waiters.insert(Waiter {
            room,
            ..Waiter::default()
        });
        let started = state.calls.start(deadline, room_bytes, waiter);
        let id = started.expect("a slot is free: the caller has waited for it");
        state.scratch.clear();
        body(&mut state.scratch);
        push_frame(
            &self.outbox,
            FrameKind::Request,
            op,
            id,
            &state.scratch,
            payload,
        );
        if deadline < self.keeper_sleeps_until.get() {
            self.keeper.raise();
        }
        Ok(Flight {
            shared: Rc::clone(self),
            id,
            waiter: Some(waiter),
        })
    }

    async fn send(self: Rc<Self>) {
        let sent = self.outbox.run(&self.stream).await;
        tracing::trace!(?sent, "sender ended");
        self.outbox.close();
        self.stream.shutdown();
    }

    async fn receive(self: Rc<Self>, mut inbound: Inbound) {
        let mut asking = Asking {
            shared: Rc::clone(&self),
        };
        let reason = inbound.run(&mut asking).await;
        drop(inbound);
        self.end(reason);
    }

    /// Ends every call. No receive is in flight any more.
    fn end(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        let reason = *state.closed.get_or_insert(reason);
        let failed = state.calls.fail_all();
        let mut wakers: Vec<Waker> = state.blocked.drain(..).collect();
        state.is_over = true;
        wakers.append(&mut state.watching);
        for (_, waiter) in failed {
            wakers.extend(state.finish(waiter, Err(CallError::Disconnected(reason))));
        }
        drop(state);
        self.outbox.close();
        self.stream.shutdown();
        self.keeper.raise();
        for waker in wakers {
            waker.wake();
        }
    }

    /// This side is done: no call is left.
    fn close(&self) {
        self.state
            .borrow_mut()
            .closed
            .get_or_insert(CloseReason::Local);
        self.outbox.close();
        self.stream.shutdown();
        self.keeper.raise();
    }

    /// Ends calls at their deadlines.
    async fn keep_deadlines(self: Rc<Self>) {
        while self.state.borrow().closed.is_none() {
            let next = self.expire_calls();
            self.keeper_sleeps_until.set(next);
            self.wait_until(next).await;
        }
    }

    /// Ends the calls that are past their deadlines; returns the next deadline.
    fn expire_calls(&self) -> Time {
        let mut expired = Vec::new();
        let mut wakers = Vec::new();
        let mut state = self.state.borrow_mut();
        state.calls.expire(time::now(), &mut expired);
        for expired in expired {
            match expired {
                Expired::Ended { token, .. } => {
                    wakers.extend(state.finish(token, Err(CallError::DeadlineExceeded)));
                }
                Expired::MustFence { .. } => self.fence.raise(),
            }
        }
        let next = state.calls.next_deadline().unwrap_or(Time::MAX);
        drop(state);
        for waker in wakers {
            waker.wake();
        }
        next
    }

    async fn wait_until(&self, at: Time) {
        let mut sleep = (at < Time::MAX).then(|| time::sleep_until(at));
        poll_fn(|cx| {
            if self.keeper.poll(cx.waker()).is_ready() {
                return Poll::Ready(());
            }
            sleep
                .as_mut()
                .map_or(Poll::Pending, |sleep| Pin::new(sleep).poll(cx))
        })
        .await;
    }
}

impl State {
    /// Records a call's outcome; its caller, if still there, is to be woken.
    fn finish(&mut self, index: usize, outcome: Result<(), CallError>) -> Option<Waker> {
        if self.waiters[index].abandoned {
            drop(self.waiters.remove(index));
            return None;
        }
        let waiter = &mut self.waiters[index];
        assert!(waiter.outcome.is_none(), "a call ends once");
        waiter.outcome = Some(outcome);
        waiter.waker.take()
    }

    fn waiter(&mut self, id: RequestId) -> Option<&mut Waiter> {
        let index = *self.calls.token(id)?;
        Some(&mut self.waiters[index])
    }
}

/// A call in flight.
struct Flight {
    shared: Rc<Shared>,
    id: RequestId,
    /// `None` once the outcome has been fetched.
    waiter: Option<usize>,
}

impl Flight {
    /// Gives the call up. Its outcome comes nevertheless, at once or when its room is not lent to a
    /// receive any more.
    fn cancel(&self) {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        match state.calls.abandon(self.id) {
            // The caller is the one that asks: nobody else is to be woken.
            Abandon::Ended { token } => drop(state.finish(token, Err(CallError::Cancelled))),
            Abandon::MustFence => self.shared.fence.raise(),
            Abandon::Over => {}
        }
    }
}

impl Future for Flight {
    type Output = Result<Reply, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.waiter.expect("a call is not polled after its outcome");
        let mut state = self.shared.state.borrow_mut();
        let waiter = &mut state.waiters[index];
        if waiter.outcome.is_none() {
            waiter.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let Waiter {
            room,
            reply,
            outcome,
            ..
        } = state.waiters.remove(index);
        drop(state);
        self.waiter = None;
        let outcome = outcome.expect("just seen");
        Poll::Ready(match outcome {
            Ok(()) => {
                let head = reply.expect("a call that succeeded has a reply");
                let ReplyHead {
                    status,
                    body,
                    payload_len_bytes,
                } = head;
                Ok(Reply {
                    status,
                    body,
                    payload_len_bytes,
                    room,
                })
            }
            Err(error) => Err(CallFailure { error, room }),
        })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let Some(index) = self.waiter else { return };
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        match state.calls.abandon(self.id) {
            Abandon::Ended { .. } => drop(state.waiters.remove(index)),
            Abandon::MustFence => {
                state.waiters[index].abandoned = true;
                self.shared.fence.raise();
            }
            Abandon::Over if state.waiters[index].outcome.is_some() => {
                drop(state.waiters.remove(index));
            }
            // Being fenced for its deadline.
            Abandon::Over => state.waiters[index].abandoned = true,
        }
    }
}

/// One connection's asking side.
struct Asking {
    shared: Rc<Shared>,
}

impl Asking {
    /// A reply is complete: its caller gets it, and a slot is free.
    fn end_call(&self, id: RequestId, verdict: PayloadVerdict) {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        let ended = match state.calls.on_response_end(id, verdict) {
            CallEnd::Done { token } => Some((token, Ok(()))),
            CallEnd::Corrupt {
                token,
                expected,
                computed,
            } => Some((token, Err(CallError::Corrupt { expected, computed }))),
            CallEnd::TooLong {
                token,
                payload_len_bytes,
                room_bytes,
            } => Some((
                token,
                Err(CallError::TooLong {
                    payload_len_bytes,
                    room_bytes,
                }),
            )),
            CallEnd::Discarded => None,
        };
        let waker = ended.and_then(|(token, outcome)| state.finish(token, outcome));
        for waker in waker.into_iter().chain(state.blocked.drain(..)) {
            waker.wake();
        }
    }
}

impl Sink for Asking {
    fn on_frame(&mut self, frame: FrameView<'_>) -> Result<(), CloseReason> {
        let FrameView { header, body } = frame;
        match header.kind {
            FrameKind::Response => {}
            FrameKind::Goaway => return Err(CloseReason::Peer),
            kind => return Err(CloseReason::UnexpectedFrame(kind)),
        }
        let payload_len_bytes = header.payload.len_bytes;
        let mut state = self.shared.state.borrow_mut();
        let sink = state.calls.on_response(header.id, payload_len_bytes)?;
        if sink == ResponseSink::Place
            && let Some(waiter) = state.waiter(header.id)
        {
            let body = body.to_vec();
            waiter.reply = Some(ReplyHead {
                status: header.code,
                body,
                payload_len_bytes,
            });
        }
        drop(state);
        if payload_len_bytes == 0 {
            self.end_call(header.id, PayloadVerdict::Intact);
        }
        Ok(())
    }

    fn on_staged(&mut self, id: RequestId, offset: usize, bytes: &[u8]) {
        let mut state = self.shared.state.borrow_mut();
        if let Some(waiter) = state.waiter(id)
            && waiter.reply.is_some()
            && let Some(room) = waiter.room.as_mut()
        {
            room.place(offset, bytes);
        }
    }

    fn on_payload_end(&mut self, id: RequestId, verdict: PayloadVerdict) {
        self.end_call(id, verdict);
    }

    fn lend(&mut self, id: RequestId) -> Option<Room> {
        let mut state = self.shared.state.borrow_mut();
        state
            .waiter(id)
            .filter(|waiter| waiter.reply.is_some())?
            .room
            .take()
    }

    fn give_back(&mut self, id: RequestId, room: Room, _stopped: bool) -> Result<(), CloseReason> {
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        let index = *state
            .calls
            .token(id)
            .expect("what was lent belongs to a call");
        state.waiters[index].room = Some(room);
        // A fence may have been asked for while the receive was in flight, stopped or not.
        let Some(fenced) = state.calls.on_fenced(id) else {
            return Ok(());
        };
        let error = match fenced.cause {
            EndCause::DeadlineExceeded => CallError::DeadlineExceeded,
            EndCause::Abandoned => CallError::Cancelled,
        };
        if let Some(waker) = state.finish(fenced.token, Err(error)) {
            waker.wake();
        }
        Ok(())
    }

    fn stop(&self) -> impl Future<Output = ()> + use<> {
        let shared = Rc::clone(&self.shared);
        poll_fn(move |cx| shared.fence.poll(cx.waker()))
    }

    fn retire(&self) -> impl Future<Output = ()> + use<> {
        std::future::pending()
    }

    fn is_ready(&self) -> bool {
        true
    }

    async fn ready(&self) {}
}
