//! Does what the scheduler asks for.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_runtime::arena::Exposed;
use lunette_runtime::{Signal, time};
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::{
    Note, Operation, Place, Refusal, write_note, write_places,
};
use lunette_transfer_proto::engine::scheduler::{Action, SliceId, TransferId};
use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::slices::Slice;

use super::batch::{Batch, Intent};
use super::peer::{Shared, connection_number, passage};
use super::spawned;
use crate::client::{Attachments, Connection, Reply};
use crate::error::{CallError, CallFailure};
use crate::frames::Payload;
use crate::room::Room;

/// Slices are given up by the scheduler, which sees the whole rail, and not by their calls.
const CALL_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// A longer write waits until what was queued before it is with the system, so that its checksum is
/// computed while the system still sends, and shortly before its own bytes are read.
const CHECKSUM_AHEAD_BYTES: usize = 64 * 1024;

/// A slice on its way.
struct Carriage {
    id: SliceId,
    way: Way,
    intent: Intent,
    op: Operation,
    body: Vec<u8>,
    pieces: Vec<Exposed>,
    len_bytes: u64,
    stop: Rc<Signal>,
}

impl Shared {
    /// Does all that is to be done now.
    pub(super) fn pump(self: &Rc<Self>) {
        if self.act_until(time::now()) < self.sleeps_until.get() {
            self.keeper.raise();
        }
    }

    /// Does all that is to be done at `now`, and says when there is more. What is due by then has been
    /// looked at, so nothing falls between the two.
    fn act_until(self: &Rc<Self>, now: Time) -> Time {
        loop {
            let action = self.state.borrow_mut().scheduler.next_action(now);
            match action {
                None => break,
                Some(action) => self.act(action),
            }
        }
        let next = self.state.borrow().scheduler.poll_timeout(now);
        next.unwrap_or(Time::MAX)
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
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
            Action::Stop { slice } => {
                if let Some(stop) = self.state.borrow().stops.get(&slice) {
                    stop.raise();
                }
            }
            Action::Close { rail, connection } => {
                let address = self.destinations[rail].address();
                tracing::warn!(%address, connection, "nothing moves on a rail");
                // Its calls end when their receives have been reaped, and say that they are lost.
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
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let (slice, carries_note) = state.scheduler.slice(id).expect("it is to be sent");
        let posted = &state.posted[&transfer];
        let note = carries_note.then(|| Note {
            id: self.engine.note_number(&posted.note),
            bytes: posted.options.notification.as_deref().unwrap_or_default(),
        });
        let carriage = Carriage::new(id, slice, &posted.batch, posted.options.intent, note);
        state.stops.insert(id, Rc::clone(&carriage.stop));
        let connection = state.rails[rail].clone();
        let connection = connection.expect("a rail that is up has its connection");
        let carrying = Rc::clone(self).carry(carriage, connection);
        if !spawned(self.tasks.spawn(carrying)) {
            state.stops.remove(&id);
            state.scheduler.on_unsent(id, time::now());
        }
    }

    async fn carry(self: Rc<Self>, carriage: Carriage, connection: Connection) {
        let Carriage {
            id,
            way,
            intent,
            op,
            body,
            pieces,
            len_bytes,
            stop,
        } = carriage;
        let mut attachments = Attachments::default();
        match way {
            _ if len_bytes == 0 => {}
            Way::Read => attachments.room = Some(Room::exposed(pieces)),
            Way::Write => {
                if len_bytes > CHECKSUM_AHEAD_BYTES as u64 {
                    connection.drained_below(CHECKSUM_AHEAD_BYTES).await;
                }
                attachments.payload = Some(Payload::exposed(pieces));
            }
        }
        let stopped = poll_fn(|cx| stop.poll(cx.waker()));
        let write = |out: &mut Vec<u8>| out.extend_from_slice(&body);
        let called = connection.call_until(op.to_wire(), write, attachments, CALL_TIMEOUT, stopped);
        let result = pin!(called).await;
        let mut state = self.state.borrow_mut();
        state.stops.remove(&id);
        let (scheduler, now) = (&mut state.scheduler, time::now());
        match verdict(result, len_bytes, way) {
            Verdict::Done => {
                self.engine.counts.moved(way, intent, len_bytes);
                scheduler.on_answered(id, now);
            }
            Verdict::Refused(refusal, part) => scheduler.on_refused(id, refusal, part, now),
            Verdict::Stopped => scheduler.on_stopped(id),
            Verdict::Lost => scheduler.on_lost(id, now),
        }
        drop(state);
        self.pump();
    }

    async fn connect(self: Rc<Self>, rail: usize, number: u32) {
        let destination = &self.destinations[rail];
        let failures = self.state.borrow().scheduler.rails()[rail].failures();
        let passage = passage(self.number, rail, number, failures);
        let reached = destination.reach(&self.engine, passage).await;
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
            drop(state);
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

impl Carriage {
    fn new(
        id: SliceId,
        slice: &Slice,
        batch: &Batch,
        intent: Intent,
        note: Option<Note<'_>>,
    ) -> Self {
        let op = match slice.way {
            _ if slice.parts.is_empty() => Operation::Notify,
            Way::Read => Operation::Read,
            Way::Write => Operation::Write,
        };
        let mut body = Vec::new();
        if op != Operation::Read {
            write_note(&mut body, note);
        }
        let mut pieces = Vec::with_capacity(slice.parts.len());
        if op != Operation::Notify {
            let places = slice.parts.iter().map(|part| {
                let span = batch.span(part.request);
                let offset = usize::try_from(part.offset_bytes).expect("within memory");
                pieces.push(span.local.slice(offset, part.len_bytes as usize));
                Place {
                    segment: span.segment,
                    offset_bytes: span.offset_bytes + part.offset_bytes,
                    len_bytes: part.len_bytes,
                }
            });
            write_places(&mut body, places);
        }
        Self {
            id,
            way: slice.way,
            intent,
            op,
            body,
            pieces,
            len_bytes: slice.len_bytes(),
            stop: Rc::default(),
        }
    }
}

/// How a slice was answered.
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
            CallError::Disconnected(_) | CallError::DeadlineExceeded => return Verdict::Lost,
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
