//! What the tasks and handles of one connection share.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_nvmeof_proto::command::{Command, Sgl};
use lunette_nvmeof_proto::host::{Expired, HostOptions};
use lunette_nvmeof_proto::pdu::WireFault;
use lunette_runtime::net::{Outbox, TcpStream};
use lunette_runtime::{Signal, time};
use lunette_runtime_core::time::Time;

use super::abort::Aborts;
use super::flight::Flight;
use super::state::{State, Waiter};
use super::{Data, failure};
use crate::error::{CloseReason, CommandError, CommandFailure};
use crate::host::inbound::Inbound;
use crate::wire::Wire;

/// How long after its deadline a command may take before the controller counts as dead.
pub(super) const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(in crate::host) struct Shared {
    pub(in crate::host) stream: TcpStream,
    pub(in crate::host) wire: Wire,
    pub(in crate::host) outbox: Outbox,
    pub(in crate::host) state: RefCell<State>,
    /// Stops a receive into a command's region.
    pub(in crate::host) fence: Signal,
    /// Wakes the task that keeps deadlines, when a command has an earlier one than it sleeps for.
    pub(super) keeper: Signal,
    pub(super) keeper_sleeps_until: Cell<Time>,
    pub(super) in_capsule_bytes_max: Cell<usize>,
    pub(super) aborts: Aborts,
}

impl Shared {
    pub(super) fn new(stream: TcpStream, wire: Wire, options: HostOptions) -> Self {
        Self {
            stream,
            wire,
            outbox: Outbox::default(),
            state: RefCell::new(State::new(options)),
            fence: Signal::default(),
            keeper: Signal::default(),
            keeper_sleeps_until: Cell::new(Time::MAX),
            in_capsule_bytes_max: Cell::new(0),
            aborts: Aborts::default(),
        }
    }

    pub(super) async fn set_up(&self) -> Result<(), CloseReason> {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            match state.closed {
                Some(reason) => Poll::Ready(Err(reason)),
                None if state.is_open => Poll::Ready(Ok(())),
                None => {
                    state.watch(cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    pub(super) fn must_wait(&self) -> bool {
        let state = self.state.borrow();
        state.closed.is_none() && state.queue.is_full()
    }

    /// Puts a command in flight.
    pub(super) fn start(
        self: &Rc<Self>,
        mut command: Command,
        data: Data,
        deadline: Time,
    ) -> Result<Flight, CommandFailure> {
        let mut state = self.state.borrow_mut();
        if let Some(reason) = state.closed {
            return Err(failure(CommandError::NotSent(reason), data));
        }
        let len = data.len();
        let in_capsule = matches!(data, Data::Out(_) | Data::OutExposed(_))
            && len <= self.in_capsule_bytes_max.get();
        command.sgl = match u32::try_from(len) {
            Ok(0) => Sgl::None,
            Ok(len_bytes) => Sgl::Transport { len_bytes },
            Err(_) => unreachable!("regions are shorter than 4 GiB"),
        };
        let (incoming, outgoing) = data.lent();
        let State { queue, scratch, .. } = &mut *state;
        scratch.clear();
        let submitted = queue.submit(command, in_capsule, deadline, scratch);
        let cid = submitted.expect("a slot is free: the caller has waited for it");
        let framing = queue.framing();
        self.outbox.append(|message| {
            message.control(|out| out.extend_from_slice(scratch));
            if let Some(outgoing) = outgoing.as_ref().filter(|_| in_capsule) {
                outgoing.clone().append(message);
                message.control(|out| framing.append_data_digest(out, || outgoing.crc32c()));
            }
        });
        let waiter = Waiter {
            cid,
            waker: None,
            incoming,
            outgoing,
            len,
            outcome: None,
            is_abandoned: false,
            is_lent: false,
            is_over: false,
            may_be_aborted: !self.is_abort(&command),
        };
        let index = state.insert(waiter);
        if deadline < self.keeper_sleeps_until.get() {
            self.keeper.raise();
        }
        Ok(Flight::new(Rc::clone(self), index))
    }

    pub(super) async fn send(self: Rc<Self>) {
        if let Err(error) = self.wire.send(&self.outbox, &self.stream).await {
            tracing::debug!(%error, "sending ended");
        }
        self.outbox.close();
        self.stream.shutdown();
    }

    pub(super) async fn receive(self: Rc<Self>, mut inbound: Inbound) {
        let reason = inbound.run(&self).await;
        if let CloseReason::Wire(fault) = &reason {
            let mut farewell = Vec::new();
            self.say_farewell(fault, &mut farewell);
            self.outbox.append_bytes(&mut farewell);
            let said = time::timeout(GRACE, self.outbox.drained_below(0)).await;
            tracing::trace!(?said, "farewell");
        }
        self.end(reason);
    }

    fn say_farewell(&self, fault: &WireFault, out: &mut Vec<u8>) {
        self.state.borrow().queue.append_term_req(fault, out);
    }

    /// Ends the connection and every command. A region that is lent to a receive comes back with
    /// that receive, which the end of the stream ends.
    pub(super) fn end(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        let reason = *state.closed.get_or_insert(reason);
        let mut wakers = std::mem::take(&mut state.watchers);
        wakers.extend(state.blocked.drain(..).map(|(_, waker)| waker));
        let mut abandoned = Vec::new();
        let State { queue, waiters, .. } = &mut *state;
        for (index, waiter) in waiters {
            waiter.is_over = true;
            let error = if queue.is_without_data(waiter.cid) {
                CommandError::NotSent(reason)
            } else {
                CommandError::Disconnected(reason)
            };
            waiter.outcome.get_or_insert(Err(error));
            wakers.extend(waiter.waker.take());
            if waiter.is_abandoned {
                abandoned.push(index);
            }
        }
        for index in abandoned {
            state.forget(index);
        }
        drop(state);
        self.outbox.close();
        self.stream.shutdown();
        self.keeper.raise();
        self.aborts.told.raise();
        self.fence.raise();
        for waker in wakers {
            waker.wake();
        }
    }

    /// Ends commands at their deadlines.
    pub(super) async fn keep_deadlines(self: Rc<Self>) {
        while self.state.borrow().closed.is_none() {
            let next = self.expire();
            self.keeper_sleeps_until.set(next);
            let mut sleep = pin!(time::sleep_until(next));
            poll_fn(|cx| {
                if self.keeper.poll(cx.waker()).is_ready() {
                    return Poll::Ready(());
                }
                sleep.as_mut().poll(cx)
            })
            .await;
        }
    }

    fn expire(&self) -> Time {
        let mut expired: Vec<Expired> = Vec::new();
        let mut state = self.state.borrow_mut();
        state.queue.expire(time::now(), GRACE, &mut expired);
        let next = state.queue.poll_timeout().unwrap_or(Time::MAX);
        let mut wakers = Vec::new();
        let mut is_stuck = false;
        for expired in expired {
            is_stuck |= expired.is_stuck;
            let waiter = state.waiter(expired.cid);
            let Some(waiter) = waiter.filter(|waiter| waiter.outcome.is_none()) else {
                continue;
            };
            waiter.outcome = Some(Err(CommandError::DeadlineExceeded));
            if expired.must_fence {
                self.fence.raise();
            }
            wakers.extend(waiter.waker.take());
            if waiter.may_be_aborted {
                self.abort(expired.cid);
            }
        }
        drop(state);
        for waker in wakers {
            waker.wake();
        }
        if is_stuck {
            self.end(CloseReason::Stuck);
        }
        next
    }
}
