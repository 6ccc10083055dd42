//! Does what the scheduler asks for.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use lunette_runtime::time;
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::{
    Note, Operation, Place, Refusal, write_note, write_places,
};
use lunette_transfer_proto::engine::scheduler::{Action, CloseCause, SliceId, TransferId};
use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::slices::Slice;

use super::batch::{Batch, Intent, Local};
use super::peer::{Shared, State, connection_number, passage};
use super::posted::Posted;
use super::spawned;
use crate::client::{Attachments, Connection, Reply, Told};
use crate::error::{CallError, CallFailure};
use crate::frames::Payload;
use crate::room::Room;

/// A longer write waits until what was queued before it is with the system, so that its checksum is
/// computed while the system still sends, and shortly before its own bytes are read.
const CHECKSUM_AHEAD_BYTES: usize = 64 * 1024;

/// A slice that is under way.
#[derive(Debug)]
pub(super) struct Carried {
    slice: SliceId,
    way: Way,
    intent: Intent,
    len_bytes: u64,
    /// Where it was asked for, and as what.
    asked: (Connection, RequestId),
}

impl Shared {
    /// Does all that is to be done now.
    pub(super) fn pump(self: &Rc<Self>) {
        self.pump_at(time::now());
    }

    /// The same, by a clock that was just read: reading it takes longer than looking for what is due.
    pub(super) fn pump_at(self: &Rc<Self>, now: Time) {
        let next = self.act_until(now);
        if next.is_some_and(|next| next < self.sleeps_until.get()) {
            self.keeper.raise();
        }
    }

    /// Does all that is to be done at `now`, and says when there is more. What is due by then has been
    /// looked at, so nothing falls between the two. `None` if it is called by what is being done: who does
    /// it looks again.
    fn act_until(self: &Rc<Self>, now: Time) -> Option<Time> {
        if self.is_acting.replace(true) {
            return None;
        }
        loop {
            let action = self.state.borrow_mut().scheduler.next_action(now);
            match action {
                None => break,
                Some(action) => self.act(action),
            }
        }
        self.is_acting.set(false);
        let next = self.state.borrow().scheduler.poll_timeout(now);
        Some(next.unwrap_or(Time::MAX))
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Connect { rail, connection } if self.one_sided.has(rail) => {
                let connecting = Rc::clone(self).connect_one_sided(rail, connection);
                if !spawned(self.tasks.spawn(connecting)) {
                    let mut state = self.state.borrow_mut();
                    let now = time::now();
                    state.scheduler.on_rail_failed(rail, connection, now);
                }
            }
            Action::Connect { rail, connection } => {
                let connecting = Rc::clone(self).connect(rail, connection);
                if !spawned(self.tasks.spawn(connecting)) {
                    let mut state = self.state.borrow_mut();
                    state
                        .scheduler
                        .on_rail_failed(rail, connection, time::now());
                }
            }
            Action::Send {
                slice,
                transfer,
                rail,
            } => self.send(slice, transfer, rail),
            Action::Stop { slice } => self.stop(slice),
            Action::Close {
                rail,
                connection,
                cause,
            } => {
                let address = self.destination(rail).address();
                match cause {
                    CloseCause::Stalled => {
                        tracing::warn!(%address, connection, "nothing moves on a rail");
                    }
                    CloseCause::Overtaken => {
                        tracing::debug!(%address, connection, "writes go over another rail");
                    }
                    CloseCause::Idle => tracing::debug!(%address, connection, "a rail is idle"),
                }
                // Its calls end when their receives have been reaped, and say that they are lost.
                if self.one_sided.has(rail) {
                    self.close_one_sided(rail, connection);
                    return;
                }
                let taken = self.state.borrow_mut().rails[rail].take();
                if let Some(connection) = taken {
                    connection.close();
                }
            }
            Action::Fence {
                rail,
                connection,
                via,
            } => {
                let asking = Rc::clone(self).fence(rail, connection, via);
                if !spawned(self.tasks.spawn(asking)) {
                    let mut state = self.state.borrow_mut();
                    let now = time::now();
                    state.scheduler.on_fenced(rail, connection, false, now);
                }
            }
            Action::Finished { transfer, outcome } => {
                let posted = self.state.borrow_mut().posted.remove(&transfer);
                let posted = posted.expect("what finishes was posted");
                self.finish(&posted, outcome);
            }
        }
    }

    fn send(self: &Rc<Self>, id: SliceId, transfer: TransferId, rail: usize) {
        let state = self.state.borrow();
        let posted = Rc::clone(&state.posted[&transfer]);
        if self.one_sided.has(rail) {
            drop(state);
            self.carry_one_sided(id, &posted, rail);
            return;
        }
        let connection = state.rails[rail].clone();
        let connection = connection.expect("a rail that is up has its connection");
        let (slice, _) = state.scheduler.slice(id).expect("it is to be sent");
        let waits = slice.way == Way::Write
            && slice.len_bytes() > CHECKSUM_AHEAD_BYTES as u64
            && connection.pending_bytes() > CHECKSUM_AHEAD_BYTES;
        drop(state);
        if !waits {
            self.carry(id, &posted, connection);
            return;
        }
        let shared = Rc::clone(self);
        let carrying = async move {
            connection.drained_below(CHECKSUM_AHEAD_BYTES).await;
            shared.carry(id, &posted, connection);
            shared.pump();
        };
        if !spawned(self.tasks.spawn(carrying)) {
            let mut state = self.state.borrow_mut();
            state.scheduler.on_unsent(id, time::now());
        }
    }

    /// Asks for what a slice is about.
    fn carry(self: &Rc<Self>, id: SliceId, posted: &Posted, connection: Connection) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if !connection.has_slot() {
            state.scheduler.on_unsent(id, time::now());
            return;
        }
        let (slice, carries_note) = state.scheduler.slice(id).expect("it is not settled");
        let op = match slice.way {
            _ if slice.parts.is_empty() => Operation::Notify,
            Way::Read => Operation::Read,
            Way::Write => Operation::Write,
        };
        let note = carries_note.then(|| Note {
            id: self.engine.note_number(&posted.note),
            bytes: posted.options.notification.as_deref().unwrap_or_default(),
        });
        let entry = state.carried.vacant_entry();
        let body = |out: &mut Vec<u8>| write_body(out, op, slice, &posted.batch, note);
        let attachments = attachments(slice, &posted.batch);
        let told: Rc<Self> = Rc::clone(self);
        let asked = connection.start(op.to_wire(), body, attachments, told, entry.key());
        match asked {
            Ok(call) => {
                entry.insert(Carried {
                    slice: id,
                    way: slice.way,
                    intent: posted.options.intent,
                    len_bytes: slice.len_bytes(),
                    asked: (connection, call),
                });
            }
            Err(failure) => {
                let (way, len_bytes) = (slice.way, slice.len_bytes());
                let verdict = verdict(Err(failure), len_bytes, way);
                state.settle(id, verdict, time::now());
            }
        }
    }

    /// Stops a read.
    fn stop(&self, id: SliceId) {
        let state = self.state.borrow();
        let mut carried = state.carried.iter();
        let found = carried.find(|(_, carried)| carried.slice == id);
        let asked = found.map(|(_, carried)| carried.asked.clone());
        drop(state);
        if let Some((connection, call)) = asked {
            connection.give_up(call);
        }
    }

    async fn connect(self: Rc<Self>, rail: usize, number: u32) {
        let destination = &self.destinations[rail];
        let failures = self.state.borrow().scheduler.rails()[rail].failures();
        let passage = passage(self.number, rail, number, failures);
        let mut reached = destination.reach(&self.engine, passage).await;
        if let Ok(found) = &reached
            && found.connection.agreement().session_epoch == self.epoch
            && let Err(error) = self.present(&found.connection).await
        {
            reached = Err(error);
        }
        let (address, now) = (destination.address(), time::now());
        let mut state = self.state.borrow_mut();
        match reached.map(|reached| (reached.connection, reached.is_certain)) {
            Err(error) => {
                tracing::debug!(%address, %error, "a rail");
                state.scheduler.on_rail_failed(rail, number, now);
            }
            Ok((connection, is_certain))
                if connection.agreement().session_epoch != self.epoch && !is_certain =>
            {
                tracing::debug!(%address, "another engine answers; the peer may have moved");
                destination.doubt();
                state.scheduler.on_rail_failed(rail, number, now);
            }
            Ok((connection, _)) if connection.agreement().session_epoch != self.epoch => {
                tracing::warn!(%address, "another engine answers");
                state.is_replaced = true;
                state.scheduler.on_rail_failed(rail, number, now);
                state.scheduler.on_peer_replaced(now);
            }
            Ok((connection, _)) => {
                if state.scheduler.on_connected(rail, number, now) {
                    state.rails[rail] = Some(connection.clone());
                    self.watch(rail, number, connection);
                }
            }
        }
        drop(state);
        self.pump();
    }

    /// Tells the scheduler when a connection has ended, also if nothing is under way on it.
    pub(super) fn watch(self: &Rc<Self>, rail: usize, number: u32, connection: Connection) {
        let shared = Rc::clone(self);
        let watched = connection.clone();
        let watching = async move {
            let reason = watched.ended().await;
            let address = shared.destinations[rail].address();
            tracing::debug!(%address, %reason, "a rail is lost");
            let mut state = shared.state.borrow_mut();
            let is_current = state.scheduler.rails()[rail].connection() == number;
            if is_current {
                state.rails[rail] = None;
            }
            state.scheduler.on_rail_failed(rail, number, time::now());
            let is_last = state.rails.iter().all(Option::is_none);
            drop(state);
            if is_last {
                // The peer ends the queue pairs of a session that has no connection.
                shared.one_sided.close_all();
            }
            shared.pump();
        };
        if !spawned(self.tasks.spawn(watching)) {
            // What is under way on it is lost with it, and says so.
            connection.close();
        }
    }

    async fn fence(self: Rc<Self>, rail: usize, number: u32, via: usize) {
        let connection = self.state.borrow().rails[via].clone();
        let is_fenced = match connection {
            None => false,
            Some(connection) => {
                let name = connection_number(self.number, rail, number);
                let body = |out: &mut Vec<u8>| {
                    Writer::new(out).u64(name);
                };
                let op = Operation::Fence.to_wire();
                let timeout = self.engine.options.scheduler.stall;
                let asked = connection.call(op, body, Attachments::default(), timeout);
                asked.await.is_ok_and(|reply| reply.status == 0)
            }
        };
        let mut state = self.state.borrow_mut();
        state
            .scheduler
            .on_fenced(rail, number, is_fenced, time::now());
        drop(state);
        self.pump();
    }

    pub(super) async fn keep_times(self: Rc<Self>) {
        loop {
            // Since whoever raised the signal looked at the clock, a pause may have ended.
            let next = self.act_until(time::now());
            let next = next.expect("nothing that is done waits for this task");
            self.sleeps_until.set(next);
            let mut sleep = (next < Time::MAX).then(|| time::sleep_until(next));
            let is_due = poll_fn(|cx| {
                if self.keeper.poll(cx.waker()).is_ready() {
                    return Poll::Ready(false);
                }
                match &mut sleep {
                    Some(sleep) => std::pin::Pin::new(sleep).poll(cx).map(|()| true),
                    None => Poll::Pending,
                }
            })
            .await;
            if is_due {
                let now = time::now();
                self.state.borrow_mut().scheduler.on_timeout(now);
                self.pump();
            }
        }
    }
}

impl Told for Shared {
    fn on_ended(self: Rc<Self>, token: usize, result: Result<Reply, CallFailure>) {
        let mut state = self.state.borrow_mut();
        let Carried {
            slice,
            way,
            intent,
            len_bytes,
            ..
        } = state.carried.remove(token);
        let verdict = verdict(result, len_bytes, way);
        if verdict == Verdict::Done {
            self.engine.counts.moved(way, intent, len_bytes);
        }
        let now = time::now();
        state.settle(slice, verdict, now);
        drop(state);
        self.pump_at(now);
    }
}

impl State {
    fn settle(&mut self, slice: SliceId, verdict: Verdict, now: Time) {
        let scheduler = &mut self.scheduler;
        match verdict {
            Verdict::Done => scheduler.on_answered(slice, now),
            Verdict::Refused(refusal, part) => scheduler.on_refused(slice, refusal, part, now),
            Verdict::Stopped => scheduler.on_stopped(slice),
            Verdict::Lost => scheduler.on_lost(slice, now),
        }
    }
}

fn write_body(
    out: &mut Vec<u8>,
    op: Operation,
    slice: &Slice,
    batch: &Batch,
    note: Option<Note<'_>>,
) {
    if op != Operation::Read {
        write_note(out, note);
    }
    if op != Operation::Notify {
        let places = slice.parts.iter().map(|part| {
            let span = batch.span(part.request);
            Place {
                segment: span.segment,
                offset_bytes: span.offset_bytes + part.offset_bytes,
                len_bytes: part.len_bytes,
            }
        });
        write_places(out, places);
    }
}

/// The memory of a slice's parts, from which it is sent or into which it is received.
fn attachments(slice: &Slice, batch: &Batch) -> Attachments {
    let mut attachments = Attachments::default();
    if slice.len_bytes() == 0 {
        return attachments;
    }
    // A slice is of requests of one way.
    let (mut into, mut from) = (Vec::new(), Vec::new());
    for part in &slice.parts {
        let offset = usize::try_from(part.offset_bytes).expect("within memory");
        let local = batch.span(part.request).local();
        match local.slice(offset, part.len_bytes as usize) {
            Local::Into(memory) => into.push(memory),
            Local::From(source) => from.push(source),
        }
    }
    match slice.way {
        Way::Read => attachments.room = Some(Room::exposed(into)),
        Way::Write => attachments.payload = Some(Payload::gathered(from)),
    }
    attachments
}

/// How a slice was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Done,
    Refused(Refusal, usize),
    Stopped,
    Lost,
}

fn verdict(result: Result<Reply, CallFailure>, len_bytes: u64, way: Way) -> Verdict {
    let reply = match result {
        Ok(reply) => reply,
        Err(failure) => match failure.error {
            CallError::Corrupt { .. } => return Verdict::Refused(Refusal::Corrupt, 0),
            CallError::Cancelled => return Verdict::Stopped,
            // More than was asked for: the peer makes no sense.
            CallError::TooLong { .. } | CallError::RequestTooLong { .. } => {
                return Verdict::Refused(Refusal::Malformed, 0);
            }
            CallError::Disconnected(_) | CallError::NotRead | CallError::DeadlineExceeded => {
                return Verdict::Lost;
            }
        },
    };
    if let Some(refusal) = Refusal::from_wire(reply.status) {
        let place = Reader::new(&reply.body).u16().unwrap_or(0);
        return Verdict::Refused(refusal, usize::from(place));
    }
    if way == Way::Read && u64::from(reply.payload_len_bytes) != len_bytes {
        return Verdict::Refused(Refusal::Malformed, 0);
    }
    Verdict::Done
}
