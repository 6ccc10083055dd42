//! One connection of a host: commands in flight, each with its deadline.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_nvmeof_proto::command::{Command, Sgl};
use lunette_nvmeof_proto::completion::Completion;
use lunette_nvmeof_proto::host::{Expired, GiveUp, HostOptions, HostQueue, Transfer};
use lunette_nvmeof_proto::pdu::WireFault;
use lunette_runtime::Signal;
use lunette_runtime::arena::{Region, RegionMut};
use lunette_runtime::net::Outbox;
use lunette_runtime::net::TcpStream;
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::time::Time;
use slab::Slab;

use super::inbound::Inbound;
use crate::error::{CloseReason, CommandError, CommandFailure, ConnectError};

/// How long after its deadline a command may take before the controller counts as dead.
const GRACE: Duration = Duration::from_secs(5);

/// Data of a command.
#[derive(Debug)]
pub enum Data {
    /// None.
    None,
    /// To the controller: all of the region, pinned until the command ends.
    Out(Region),
    /// From the controller, to the whole region, which is lent until the command ends.
    In(RegionMut),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Out(region) => region.len(),
            Self::In(region) => region.len(),
        }
    }
}

/// A command that was carried out.
#[derive(Debug)]
pub struct Done {
    /// What it returned.
    pub result: u64,
    /// The region that was to be filled, and is.
    pub region: Option<RegionMut>,
}

/// A connection to one queue of a controller. Clones are handles to the same one; it closes when
/// the last handle drops and no command is in flight.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Rc<Shared>,
    _closes: Rc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(Rc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.end(CloseReason::Local);
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stream: TcpStream,
    pub(super) outbox: Outbox,
    pub(super) state: RefCell<State>,
    /// Stops a receive into a command's region.
    pub(super) fence: Signal,
    /// Wakes the task that keeps deadlines, when a command has an earlier one than it sleeps for.
    keeper: Signal,
    keeper_sleeps_until: Cell<Time>,
    in_capsule_bytes_max: Cell<usize>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) queue: HostQueue,
    waiters: Slab<Waiter>,
    /// Which waiter's command is in flight in a slot. A waiter stays until its caller has its
    /// outcome, which may be later than the slot is used again.
    by_slot: Vec<Option<usize>>,
    /// Callers that wait for a free slot, with their tickets.
    blocked: VecDeque<(u64, Waker)>,
    next_ticket: u64,
    /// Those who wait for the set-up, or for the end.
    watchers: Vec<Waker>,
    is_open: bool,
    closed: Option<CloseReason>,
    scratch: Vec<u8>,
}

/// One command and its caller.
#[derive(Debug)]
struct Waiter {
    cid: u16,
    waker: Option<Waker>,
    /// To be filled; none while it is lent to a receive.
    incoming: Option<RegionMut>,
    outgoing: Option<Region>,
    len: usize,
    /// How it ended: the completion and the bytes that were moved.
    outcome: Option<Result<(Completion, u32), CommandError>>,
    /// The caller is gone; what is left goes when the command ends.
    is_abandoned: bool,
    /// A receive into its region is in flight.
    is_lent: bool,
    /// The machine has nothing to say about it any more.
    is_over: bool,
}

impl Queue {
    /// Connects to `address` and sets the connection up, within `timeout`. The queue is to be
    /// connected to a controller then.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn open(
        address: SocketAddr,
        options: HostOptions,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let deadline = time::now() + timeout;
        let connected = TcpStream::connect_timeout(address, timeout).await;
        let stream = connected.map_err(|error| {
            if error.is_timeout() {
                ConnectError::TimedOut
            } else {
                ConnectError::Connect(error)
            }
        })?;
        let inbound = Inbound::new().map_err(|_full| CloseReason::NoMemory)?;
        let shared = Rc::new(Shared::new(stream, options));
        let mut hello = Vec::new();
        shared.state.borrow_mut().queue.start(&mut hello);
        shared.outbox.append_bytes(&mut hello);
        drop(spawn_local(Rc::clone(&shared).send()));
        drop(spawn_local(Rc::clone(&shared).receive(inbound)));
        drop(spawn_local(Rc::clone(&shared).keep_deadlines()));
        let closes = Rc::new(CloseOnDrop(Rc::clone(&shared)));
        let queue = Self {
            shared,
            _closes: closes,
        };
        let left = deadline.since(time::now());
        let set_up = time::timeout(left, queue.shared.set_up()).await;
        set_up.map_err(|_late| ConnectError::TimedOut)??;
        Ok(queue)
    }

    /// Data up to this length go with their command, without being asked for. To be taken from
    /// what the controller says of itself.
    pub fn set_in_capsule_bytes_max(&self, bytes_max: usize) {
        self.shared.in_capsule_bytes_max.set(bytes_max);
    }

    /// Why the connection has ended, if it has.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.shared.state.borrow().closed
    }

    /// Waits until the connection has ended.
    pub async fn ended(&self) -> CloseReason {
        poll_fn(|cx| {
            let mut state = self.shared.state.borrow_mut();
            if let Some(reason) = state.closed {
                return Poll::Ready(reason);
            }
            state.watch(cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.state.borrow().queue.in_flight()
    }

    /// Ends the connection: commands in flight fail as disconnected by this side.
    pub fn close(&self) {
        self.end(CloseReason::Local);
    }

    /// Ends the connection for `reason`.
    pub(super) fn end(&self, reason: CloseReason) {
        self.shared.end(reason);
    }

    /// Has `command` carried out. The descriptor of its data is set here. It waits while as many
    /// commands are in flight as may be. Dropping the future gives the command up: its region is
    /// freed as soon as no receive into it is in flight, and its answer is discarded.
    ///
    /// # Errors
    /// [`CommandFailure`], with the region.
    pub async fn command(
        &self,
        command: Command,
        data: Data,
        timeout: Duration,
    ) -> Result<Done, CommandFailure> {
        self.command_until(command, data, time::now() + timeout)
            .await
    }

    /// As [`Queue::command`], with the point at which the timeout is over.
    pub(super) async fn command_until(
        &self,
        command: Command,
        data: Data,
        deadline: Time,
    ) -> Result<Done, CommandFailure> {
        let shared = &self.shared;
        if shared.must_wait() {
            let slot = SlotWait {
                shared,
                ticket: None,
            };
            let left = deadline.since(time::now());
            if time::timeout(left, slot).await.is_err() {
                return Err(failure(CommandError::DeadlineExceeded, data));
            }
        }
        match shared.start(command, data, deadline) {
            Ok(flight) => flight.await,
            Err(failure) => Err(failure),
        }
    }
}

fn failure(error: CommandError, data: Data) -> CommandFailure {
    let region = match data {
        Data::In(region) => Some(region),
        Data::None | Data::Out(_) => None,
    };
    CommandFailure { error, region }
}

impl Shared {
    fn new(stream: TcpStream, options: HostOptions) -> Self {
        let commands_max = usize::from(options.commands_max);
        let state = State {
            queue: HostQueue::new(options),
            waiters: Slab::with_capacity(commands_max),
            by_slot: vec![None; commands_max],
            blocked: VecDeque::new(),
            next_ticket: 0,
            watchers: Vec::new(),
            is_open: false,
            closed: None,
            scratch: Vec::new(),
        };
        Self {
            stream,
            outbox: Outbox::default(),
            state: RefCell::new(state),
            fence: Signal::default(),
            keeper: Signal::default(),
            keeper_sleeps_until: Cell::new(Time::MAX),
            in_capsule_bytes_max: Cell::new(0),
        }
    }

    async fn set_up(&self) -> Result<(), CloseReason> {
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

    fn must_wait(&self) -> bool {
        let state = self.state.borrow();
        state.closed.is_none() && state.queue.is_full()
    }

    /// Puts a command in flight.
    fn start(
        self: &Rc<Self>,
        mut command: Command,
        data: Data,
        deadline: Time,
    ) -> Result<Flight, CommandFailure> {
        let mut state = self.state.borrow_mut();
        if let Some(reason) = state.closed {
            return Err(failure(CommandError::Disconnected(reason), data));
        }
        let len = data.len();
        let in_capsule = matches!(data, Data::Out(_)) && len <= self.in_capsule_bytes_max.get();
        command.sgl = match u32::try_from(len) {
            Ok(0) => Sgl::None,
            Ok(len_bytes) => Sgl::Transport { len_bytes },
            Err(_) => unreachable!("regions are shorter than 4 GiB"),
        };
        let (incoming, outgoing) = match data {
            Data::None => (None, None),
            Data::Out(region) => (None, Some(region)),
            Data::In(region) => (Some(region), None),
        };
        let State { queue, scratch, .. } = &mut *state;
        scratch.clear();
        let submitted = queue.submit(command, in_capsule, deadline, scratch);
        let cid = submitted.expect("a slot is free: the caller has waited for it");
        let framing = queue.framing();
        self.outbox.append(|message| {
            message.control(|out| out.extend_from_slice(scratch));
            if let Some(region) = outgoing.as_ref().filter(|_| in_capsule) {
                message.payload(region.clone());
                let crc = || crc32c(region.as_slice());
                message.control(|out| framing.append_data_digest(out, crc));
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
        };
        let index = state.waiters.insert(waiter);
        let slot = &mut state.by_slot[HostQueue::slot_of(cid)];
        assert!(slot.is_none(), "a free slot has no command in flight");
        *slot = Some(index);
        if deadline < self.keeper_sleeps_until.get() {
            self.keeper.raise();
        }
        Ok(Flight {
            shared: Rc::clone(self),
            index,
            is_finished: false,
        })
    }

    async fn send(self: Rc<Self>) {
        if let Err(error) = self.outbox.run(&self.stream).await {
            tracing::debug!(%error, "sending ended");
        }
        self.outbox.close();
        self.stream.shutdown();
    }

    async fn receive(self: Rc<Self>, mut inbound: Inbound) {
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
    fn end(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        let reason = *state.closed.get_or_insert(reason);
        let mut wakers = std::mem::take(&mut state.watchers);
        wakers.extend(state.blocked.drain(..).map(|(_, waker)| waker));
        let mut abandoned = Vec::new();
        for (index, waiter) in &mut state.waiters {
            waiter.is_over = true;
            let error = CommandError::Disconnected(reason);
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
        self.fence.raise();
        for waker in wakers {
            waker.wake();
        }
    }

    /// Ends commands at their deadlines.
    async fn keep_deadlines(self: Rc<Self>) {
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

impl State {
    fn waiter(&mut self, cid: u16) -> Option<&mut Waiter> {
        let index = self.by_slot[HostQueue::slot_of(cid)]?;
        let waiter = self.waiters.get_mut(index);
        waiter.filter(|waiter| waiter.cid == cid)
    }

    /// Nobody asks for a waiter any more.
    fn forget(&mut self, index: usize) -> Waiter {
        let waiter = self.waiters.remove(index);
        let slot = &mut self.by_slot[HostQueue::slot_of(waiter.cid)];
        if *slot == Some(index) {
            *slot = None;
        }
        waiter
    }

    /// Why the connection has ended, if it has.
    pub(super) const fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// The connection is set up.
    pub(super) fn open(&mut self) {
        self.is_open = true;
        for waker in self.watchers.drain(..) {
            waker.wake();
        }
    }

    /// Keeps `waker` until the set-up, and until the end.
    fn watch(&mut self, waker: &Waker) {
        if !self.watchers.iter().any(|known| known.will_wake(waker)) {
            self.watchers.push(waker.clone());
        }
    }

    /// A slot is free: whoever has waited for one the longest gets to know.
    fn wake_next(&mut self) {
        if let Some((_, waker)) = self.blocked.pop_front() {
            waker.wake();
        }
    }

    /// Places data that arrived in staging.
    pub(super) fn place(&mut self, cid: u16, offset: usize, bytes: &[u8]) {
        let waiter = self.waiter(cid).expect("data of a command in flight");
        if let Some(region) = &mut waiter.incoming {
            region.as_mut_slice()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Takes a command's region for a receive.
    pub(super) fn lend(&mut self, cid: u16) -> Option<RegionMut> {
        let waiter = self.waiter(cid)?;
        waiter.is_lent = true;
        waiter.incoming.take()
    }

    /// A receive into a command's region has ended.
    pub(super) fn give_back(&mut self, cid: u16, region: RegionMut) {
        let Some(waiter) = self.waiter(cid) else {
            return;
        };
        waiter.incoming = Some(region).filter(|_| !waiter.is_abandoned);
        waiter.is_lent = false;
        if waiter.outcome.is_some()
            && let Some(waker) = waiter.waker.take()
        {
            waker.wake();
        }
    }

    /// Queues data that the controller has asked for.
    pub(super) fn send(&mut self, transfer: &Transfer, outbox: &Outbox) {
        self.scratch.clear();
        self.queue.append_transfer(transfer, &mut self.scratch);
        let framing = self.queue.framing();
        let waiter = self.waiter(transfer.cid).expect("a command in flight");
        let region = waiter
            .outgoing
            .as_ref()
            .expect("a command with data to send");
        let region = region.slice(transfer.offset_bytes as usize, transfer.len_bytes as usize);
        let scratch = &self.scratch;
        outbox.append(|message| {
            message.control(|out| out.extend_from_slice(scratch));
            message.payload(region.clone());
            let crc = || crc32c(region.as_slice());
            message.control(|out| framing.append_data_digest(out, crc));
        });
    }

    /// A command has ended: its caller gets to know, and a slot is free.
    pub(super) fn complete(&mut self, cid: u16, completion: Completion, data_bytes: u32) {
        let index = self.by_slot[HostQueue::slot_of(cid)].take();
        let index = index.expect("a command in flight");
        let waiter = &mut self.waiters[index];
        assert_eq!(waiter.cid, cid, "slots are used one command at a time");
        waiter.is_over = true;
        waiter.outcome.get_or_insert(Ok((completion, data_bytes)));
        let waker = waiter.waker.take();
        if waiter.is_abandoned {
            drop(self.waiters.remove(index));
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        self.wake_next();
    }
}

/// Waits for a free slot.
struct SlotWait<'a> {
    shared: &'a Shared,
    /// Its place among those who wait, or that it had before it was woken.
    ticket: Option<u64>,
}

impl SlotWait<'_> {
    fn leave(&mut self, state: &mut State) -> bool {
        let Some(ticket) = self.ticket.take() else {
            return true;
        };
        let place = state.blocked.iter().position(|(known, _)| *known == ticket);
        place
            .and_then(|place| state.blocked.remove(place))
            .is_some()
    }
}

impl Future for SlotWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let must_wait = self.shared.must_wait();
        let shared = self.shared;
        let mut state = shared.state.borrow_mut();
        let was_woken = !self.leave(&mut state);
        if !must_wait {
            return Poll::Ready(());
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        self.ticket = Some(ticket);
        let entry = (ticket, cx.waker().clone());
        // Somebody was faster: it keeps its turn.
        if was_woken {
            state.blocked.push_front(entry);
        } else {
            state.blocked.push_back(entry);
        }
        Poll::Pending
    }
}

impl Drop for SlotWait<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        // It was woken and does not use the slot: the next one may.
        if !self.leave(&mut state) {
            state.wake_next();
        }
    }
}

/// A command in flight.
struct Flight {
    shared: Rc<Shared>,
    index: usize,
    is_finished: bool,
}

impl Future for Flight {
    type Output = Result<Done, CommandFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.state.borrow_mut();
        let waiter = &mut state.waiters[self.index];
        if waiter.outcome.is_none() || waiter.is_lent {
            waiter.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let region = waiter.incoming.take();
        let outcome = waiter.outcome.take().expect("just seen");
        let len = waiter.len;
        if waiter.is_over {
            drop(state.forget(self.index));
        } else {
            // The deadline has passed; the slot is taken until the controller answers.
            waiter.outcome = Some(Err(CommandError::DeadlineExceeded));
            waiter.is_abandoned = true;
        }
        drop(state);
        self.is_finished = true;
        let checked = outcome.and_then(|(completion, moved_bytes)| {
            let len_bytes = u32::try_from(len).expect("regions are shorter than 4 GiB");
            if !completion.status.is_success() {
                return Err(CommandError::Status(completion.status));
            }
            if moved_bytes != len_bytes {
                return Err(CommandError::Short {
                    moved_bytes,
                    len_bytes,
                });
            }
            Ok(completion.result)
        });
        Poll::Ready(match checked {
            Ok(result) => Ok(Done { result, region }),
            Err(error) => Err(CommandFailure { error, region }),
        })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let mut state = self.shared.state.borrow_mut();
        let Waiter { cid, is_over, .. } = state.waiters[self.index];
        if is_over {
            drop(state.forget(self.index));
            return;
        }
        let given_up = state.queue.give_up(cid);
        let waiter = &mut state.waiters[self.index];
        waiter.is_abandoned = true;
        if given_up == GiveUp::MustFence {
            self.shared.fence.raise();
        } else {
            // No receive is in flight into it; what is to be sent stays.
            waiter.incoming = None;
        }
    }
}
