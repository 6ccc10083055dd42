//! What the tasks of one connection share: the calls in flight, who waits for each, and their ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use lunette_auth::Sealer;
use lunette_runtime::net::{Outbox, TcpStream};
use lunette_runtime::{Signal, spawn_local, time};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::calls::{Abandon, Calls, Expired};
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::hello::Agreement;
use slab::Slab;

use super::replies::Asking;
use super::{Arrange, Attachments, Reply};
use crate::error::{CallError, CallFailure, CloseReason};
use crate::frames::{Payload, push_frame};
use crate::inbound::Inbound;
use crate::room::Room;
use crate::sealed;

/// Is told how calls end that no future waits for.
pub(crate) trait Told {
    /// The call that was started with `token` is over, and nothing can land in its room any more.
    /// Nothing of the connection is borrowed: other calls may be started and given up.
    fn on_ended(self: Rc<Self>, token: usize, result: Result<Reply, CallFailure>);
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) agreement: Agreement,
    stream: TcpStream,
    pub(super) outbox: Outbox,
    pub(super) state: RefCell<State>,
    /// Wakes the task that keeps deadlines, when a call has an earlier one than it sleeps for.
    keeper: Signal,
    keeper_sleeps_until: Cell<Time>,
    /// Stops a receive into a call's room.
    pub(super) fence: Signal,
    /// How often something has come.
    pub(super) heard: Cell<u64>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) calls: Calls<usize>,
    pub(super) waiters: Slab<Waiter>,
    /// Callers that wait for a free slot.
    pub(super) blocked: VecDeque<Waker>,
    /// Nothing more is asked.
    pub(super) closed: Option<CloseReason>,
    /// Every call has ended, and no receive is in flight.
    pub(super) is_over: bool,
    /// Wait for that.
    pub(super) watching: Vec<Waker>,
    scratch: Vec<u8>,
}

/// Who is to learn how a call ends.
pub(super) enum Caller {
    /// A future that looks at the outcome.
    Future(Option<Waker>),
    /// Somebody who keeps its calls by these tokens.
    Told(Rc<dyn Told>, usize),
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Future(waker) => f.debug_tuple("Future").field(waker).finish(),
            Self::Told(_, token) => f.debug_tuple("Told").field(token).finish(),
        }
    }
}

/// One caller.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) caller: Caller,
    /// `None` while it is lent to a receive.
    pub(super) room: Option<Room>,
    pub(super) arrange: Option<Arrange>,
    pub(super) reply: Option<ReplyHead>,
    pub(super) outcome: Option<Result<(), CallError>>,
    /// The caller is gone; what is left goes when the call ends.
    pub(super) abandoned: bool,
}

#[derive(Debug)]
pub(super) struct ReplyHead {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    pub(super) payload_len_bytes: u32,
}

impl Waiter {
    /// What the caller gets.
    pub(super) fn into_result(self) -> Result<Reply, CallFailure> {
        let Self {
            room,
            reply,
            outcome,
            ..
        } = self;
        match outcome.expect("asked when the call has ended") {
            Ok(()) => {
                let head = reply.expect("a call that succeeded has a reply");
                Ok(Reply {
                    status: head.status,
                    body: head.body,
                    payload_len_bytes: head.payload_len_bytes,
                    room,
                })
            }
            Err(error) => Err(CallFailure { error, room }),
        }
    }
}

/// A call that has ended, and whom to tell. To be delivered when nothing is borrowed any more.
#[must_use]
pub(super) enum Ending {
    Wake(Waker),
    Tell(Rc<dyn Told>, usize, Result<Reply, CallFailure>),
}

impl Ending {
    pub(super) fn deliver(self) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Tell(told, token, result) => told.on_ended(token, result),
        }
    }
}

impl Shared {
    pub(super) fn new(agreement: Agreement, stream: TcpStream, outbox: Outbox) -> Self {
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
            heard: Cell::new(0),
        }
    }

    /// Something has come.
    pub(super) fn hear(&self) {
        self.heard.set(self.heard.get() + 1);
    }

    pub(super) fn must_wait(&self) -> bool {
        let state = self.state.borrow();
        state.calls.is_full() && state.closed.is_none()
    }

    pub(super) async fn slot_is_free(&self) {
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

    /// Registers a call and queues its request. Its id, and the index of its waiter.
    ///
    /// # Panics
    /// If as many calls are in flight as the connection allows.
    pub(super) fn start(
        &self,
        op: u16,
        body: impl FnOnce(&mut Vec<u8>),
        attachments: Attachments,
        deadline: Time,
        caller: Caller,
    ) -> Result<(RequestId, usize), CallFailure> {
        let Attachments {
            payload,
            room,
            arrange,
        } = attachments;
        let payload_len_bytes = payload.as_ref().map_or(0, Payload::len);
        let payload_bytes_max = self.agreement.payload_bytes_max;
        if payload_len_bytes > payload_bytes_max as usize {
            let error = CallError::RequestTooLong {
                payload_len_bytes,
                payload_bytes_max,
            };
            return Err(CallFailure { error, room });
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.closed.is_some() {
            let error = CallError::NotRead;
            return Err(CallFailure { error, room });
        }
        let room_bytes = room.as_ref().map_or(0, Room::len);
        let room_bytes = u32::try_from(room_bytes).unwrap_or(u32::MAX);
        let waiter = state.waiters.insert(Waiter {
            caller,
            room,
            arrange,
            reply: None,
            outcome: None,
            abandoned: false,
        });
        let started = state.calls.start(deadline, room_bytes, waiter);
        let id = started.expect("a slot is free: the caller has made sure of it");
        state.scratch.clear();
        body(&mut state.scratch);
        let kind = FrameKind::Request;
        push_frame(&self.outbox, kind, op, id, &state.scratch, payload);
        if deadline < self.keeper_sleeps_until.get() {
            self.keeper.raise();
        }
        Ok((id, waiter))
    }

    /// Gives a call up that somebody is told of. Its end comes nevertheless, at once or when its room is
    /// not lent to a receive any more.
    pub(super) fn give_up(&self, id: RequestId) {
        let mut state = self.state.borrow_mut();
        match state.calls.abandon(id) {
            Abandon::Ended { token } => {
                let ending = state.finish(token, Err(CallError::Cancelled));
                drop(state);
                ending.into_iter().for_each(Ending::deliver);
            }
            Abandon::MustFence => self.fence.raise(),
            Abandon::Over => {}
        }
    }

    async fn send(&self, sealer: Option<Sealer>) {
        let sent = sealed::send(&self.stream, &self.outbox, sealer).await;
        tracing::trace!(?sent, "sender ended");
    }

    /// Nothing is sent any more. The receiving side learns it from its receive.
    fn hang_up(&self) {
        self.outbox.close();
        self.stream.shutdown();
    }

    async fn receive(self: &Rc<Self>, mut inbound: Inbound) {
        let mut asking = Asking {
            shared: Rc::clone(self),
        };
        let reason = inbound.run(&mut asking).await;
        drop(inbound);
        self.end(reason);
    }

    /// The peer reads no more requests, and has read so many. It may still answer those; whatever else is asked goes to
    /// another connection.
    pub(super) fn on_goaway(&self, read: u64) {
        let mut state = self.state.borrow_mut();
        state.closed.get_or_insert(CloseReason::Peer);
        let unread = state.calls.on_goaway(read);
        let mut endings: Vec<Ending> = state.blocked.drain(..).map(Ending::Wake).collect();
        for (_, waiter) in unread {
            endings.extend(state.finish(waiter, Err(CallError::NotRead)));
        }
        drop(state);
        endings.into_iter().for_each(Ending::deliver);
    }

    /// Ends every call. No receive is in flight any more.
    fn end(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        let reason = *state.closed.get_or_insert(reason);
        let failed = state.calls.fail_all();
        let mut endings: Vec<Ending> = state.blocked.drain(..).map(Ending::Wake).collect();
        state.is_over = true;
        endings.extend(state.watching.drain(..).map(Ending::Wake));
        for (_, waiter) in failed {
            endings.extend(state.finish(waiter, Err(CallError::Disconnected(reason))));
        }
        drop(state);
        self.hang_up();
        self.keeper.raise();
        endings.into_iter().for_each(Ending::deliver);
    }

    /// Nothing is received any more, and no call ends: the core is ending, or has no room for the task that
    /// receives. Who would be told of calls is let go, since it may be what keeps this connection.
    fn forsake(&self) {
        let mut state = self.state.borrow_mut();
        state.closed.get_or_insert(CloseReason::Local);
        state.is_over = true;
        let callers = state.waiters.iter_mut();
        let forget = |waiter: &mut Waiter| mem::replace(&mut waiter.caller, Caller::Future(None));
        let forsaken: Vec<Caller> = callers.map(|(_, waiter)| forget(waiter)).collect();
        drop(state);
        self.hang_up();
        // What goes with them may close this connection, and others.
        drop(forsaken);
    }

    /// This side is done: no call is left.
    pub(super) fn close(&self) {
        self.state
            .borrow_mut()
            .closed
            .get_or_insert(CloseReason::Local);
        self.hang_up();
        self.keeper.raise();
    }

    /// Ends calls at their deadlines.
    async fn keep_deadlines(&self) {
        while !self.state.borrow().is_over {
            let next = self.expire_calls();
            self.keeper_sleeps_until.set(next);
            self.wait_until(next).await;
        }
    }

    /// Ends the calls that are past their deadlines; returns the next deadline.
    fn expire_calls(&self) -> Time {
        let mut expired = Vec::new();
        let mut endings = Vec::new();
        let mut state = self.state.borrow_mut();
        state.calls.expire(time::now(), &mut expired);
        for expired in expired {
            match expired {
                Expired::Ended { token, .. } => {
                    endings.extend(state.finish(token, Err(CallError::DeadlineExceeded)));
                }
                Expired::MustFence { .. } => self.fence.raise(),
            }
        }
        let next = state.calls.next_deadline().unwrap_or(Time::MAX);
        drop(state);
        endings.into_iter().for_each(Ending::deliver);
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

/// Kept by a task of a connection, which ends with it in whatever way that ends: dropped with its core, say, or
/// never begun.
#[derive(Debug)]
struct Held {
    shared: Rc<Shared>,
    on_end: fn(&Shared),
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.on_end)(&self.shared);
    }
}

/// Starts the tasks of a connection.
pub(super) fn attend(shared: &Rc<Shared>, inbound: Inbound, sealer: Option<Sealer>) {
    let held = |on_end| Held {
        shared: Rc::clone(shared),
        on_end,
    };
    let sending = held(Shared::hang_up);
    drop(spawn_local(
        async move { sending.shared.send(sealer).await },
    ));
    let receiving = held(Shared::forsake);
    drop(spawn_local(async move {
        receiving.shared.receive(inbound).await
    }));
    let keeping = held(Shared::close);
    drop(spawn_local(
        async move { keeping.shared.keep_deadlines().await },
    ));
}

impl State {
    /// Records a call's outcome; what comes of it is to be delivered, if its caller is still there.
    pub(super) fn finish(
        &mut self,
        index: usize,
        outcome: Result<(), CallError>,
    ) -> Option<Ending> {
        let waiter = &mut self.waiters[index];
        if waiter.abandoned {
            drop(self.waiters.remove(index));
            return None;
        }
        assert!(waiter.outcome.is_none(), "a call ends once");
        waiter.outcome = Some(outcome);
        match &mut waiter.caller {
            Caller::Future(waker) => waker.take().map(Ending::Wake),
            Caller::Told(told, token) => {
                let (told, token) = (Rc::clone(told), *token);
                let result = self.waiters.remove(index).into_result();
                Some(Ending::Tell(told, token, result))
            }
        }
    }

    pub(super) fn waiter(&mut self, id: RequestId) -> Option<&mut Waiter> {
        let index = *self.calls.token(id)?;
        Some(&mut self.waiters[index])
    }
}
