//! A connected queue pair, and slices on it.
//!
//! Each part of a slice is a request. Requests of one queue pair end in the order in which they were made, so
//! one task waits for the oldest, and most of what follows is over by then. What fails breaks the queue pair:
//! it is dropped at once, so that all that was under way is over, and a new one is connected.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::scheduler::SliceId;
use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::slices::{self, Slice};
use lunette_verbs::{
    INLINE_BYTES_MAX, Lender, Lent, QueuePair, Ready, RemoteMemory, Request, RequestError,
};
use lunette_verbs_proto::status::Status;
use slab::Slab;

use super::super::batch::{Batch, Intent, Local};
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::asking::Ends;
use crate::source::WriteSource;

/// A rail's queue pair.
pub(super) struct Rail {
    rail: usize,
    connection: u32,
    state: RefCell<State>,
}

struct State {
    /// `None` once it has ended.
    pair: Option<QueuePair<Ready>>,
    /// Requests that were made, in their order, and to which slice each belongs.
    flying: VecDeque<(Request, usize)>,
    /// Those that find no room yet.
    waiting: VecDeque<(Part, usize)>,
    slices: Slab<Carried>,
    /// The task that waits for requests.
    waker: Option<Waker>,
}

/// What a request is to do.
struct Part {
    way: Way,
    here: Here,
    there: RemoteMemory,
}

enum Here {
    Lent(Lent),
    /// A few bytes to be written, copied.
    Few([u8; INLINE_BYTES_MAX], usize),
}

/// A slice that is under way.
struct Carried {
    id: SliceId,
    way: Way,
    intent: Intent,
    len_bytes: u64,
    posted: Rc<Posted>,
    /// Requests that are not over.
    left: usize,
    failure: Option<RequestError>,
}

impl Rail {
    pub(super) fn new(pair: QueuePair<Ready>, rail: usize, connection: u32) -> Self {
        Self {
            rail,
            connection,
            state: RefCell::new(State {
                pair: Some(pair),
                flying: VecDeque::new(),
                waiting: VecDeque::new(),
                slices: Slab::new(),
                waker: None,
            }),
        }
    }

    pub(super) const fn connection(&self) -> u32 {
        self.connection
    }

    /// Ends it: all that is under way is over, and nothing of it lands here any more.
    pub(super) fn close(&self) {
        let pair = self.state.borrow_mut().pair.take();
        // Its end wakes who waits for requests.
        drop(pair);
        let waker = self.state.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Makes the requests of a slice. False if not all of it is reached by this rail: then nothing is made.
    fn carry(&self, carried: Carried, parts: impl Iterator<Item = Option<Part>>) -> bool {
        let mut state = self.state.borrow_mut();
        let State {
            waiting, slices, ..
        } = &mut *state;
        let (before, entry) = (waiting.len(), slices.vacant_entry());
        for part in parts {
            let Some(part) = part else {
                waiting.truncate(before);
                return false;
            };
            waiting.push_back((part, entry.key()));
        }
        let left = waiting.len() - before;
        entry.insert(Carried { left, ..carried });
        state.post();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        true
    }

    /// Waits for slices that are over, and takes all that are by then. False when the queue pair has ended and
    /// nothing is under way.
    fn poll_ended(&self, cx: &mut Context<'_>, ended: &mut Vec<Carried>) -> Poll<bool> {
        let mut state = self.state.borrow_mut();
        loop {
            let Some((request, _)) = state.flying.front_mut() else {
                if state.pair.is_some() {
                    return state.waits(cx, ended);
                }
                ended.extend(state.unmade());
                return Poll::Ready(!ended.is_empty());
            };
            let Poll::Ready((result, _)) = Pin::new(request).poll(cx) else {
                return state.waits(cx, ended);
            };
            let (_, key) = state.flying.pop_front().expect("just looked at");
            if result.is_err() {
                // It is broken: what is behind it is not waited for.
                let pair = state.pair.take();
                drop(state);
                drop(pair);
                state = self.state.borrow_mut();
            }
            let carried = &mut state.slices[key];
            carried.left -= 1;
            carried.failure = carried.failure.or(result.err());
            if carried.left == 0 {
                ended.push(state.slices.remove(key));
            }
            if !state.waiting.is_empty() {
                state.post();
            }
        }
    }
}

impl State {
    /// Makes the requests for which there is room.
    fn post(&mut self) {
        let Self {
            pair: Some(pair),
            flying,
            waiting,
            ..
        } = self
        else {
            return;
        };
        if !pair.is_open() {
            // What waits is never made.
            self.pair = None;
            return;
        }
        while pair.credits() > 0
            && let Some((part, key)) = waiting.pop_front()
        {
            // What bounds the time of a request is the rail's: it is given up when nothing comes through.
            let request = match (part.way, part.here) {
                (Way::Read, Here::Lent(lent)) => pair.read_lent(lent, part.there, Time::MAX),
                (_, Here::Lent(lent)) => pair.write_lent(lent, part.there, Time::MAX),
                (_, Here::Few(bytes, len)) => {
                    pair.write_inline(&bytes[..len], part.there, Time::MAX)
                }
            };
            flying.push_back((request, key));
        }
    }

    /// Nothing more is over now.
    fn waits(&mut self, cx: &Context<'_>, ended: &[Carried]) -> Poll<bool> {
        if !ended.is_empty() {
            return Poll::Ready(true);
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The slices of which no request is under way, of a queue pair that has ended.
    fn unmade(&mut self) -> impl Iterator<Item = Carried> {
        self.waiting.clear();
        self.slices.drain().map(|carried| Carried {
            failure: carried.failure.or(Some(RequestError::Broken)),
            ..carried
        })
    }
}

impl fmt::Debug for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rail, connection) = (self.rail, self.connection);
        write!(f, "Rail({rail}, connection {connection})")
    }
}

impl Shared {
    /// Sends a slice over a rail from memory to memory, if all of it is reached so.
    pub(in crate::engine) fn carry_one_sided(
        self: &Rc<Self>,
        id: SliceId,
        posted: &Rc<Posted>,
        rail: usize,
    ) {
        let mut state = self.state.borrow_mut();
        let connected = self.one_sided.rail(rail);
        let connected = connected.expect("a rail that is up has its queue pair");
        let (slice, _) = state.scheduler.slice(id).expect("it is to be sent");
        let carried = Carried {
            id,
            way: slice.way,
            intent: posted.options.intent,
            len_bytes: slice.len_bytes(),
            posted: Rc::clone(posted),
            left: 0,
            failure: None,
        };
        let ends = self.one_sided.ends_of(rail);
        let parts = slice.parts.iter();
        let parts = parts.map(|part| self.part(slice.way, *part, &posted.batch, ends));
        if !connected.carry(carried, parts) {
            state.scheduler.on_barred(id);
        }
    }

    /// The request of a part of a slice. `None` if it is not reached by this rail.
    fn part(&self, way: Way, part: slices::Part, batch: &Batch, ends: &Ends) -> Option<Part> {
        let span = batch.span(part.request);
        if span.is_remote {
            return None;
        }
        let window = self.one_sided.windows.find(span.segment, ends.theirs)?;
        let there = window.at(span.offset_bytes + part.offset_bytes);
        let offset = usize::try_from(part.offset_bytes).ok()?;
        let local = span.local().slice(offset, part.len_bytes as usize);
        let start = local.start();
        let here = match few(&local) {
            Some((bytes, len)) => Here::Few(bytes, len),
            None => Here::Lent(ends.ours.lend(lender(local), start)?),
        };
        Some(Part { way, here, there })
    }

    /// Waits for the requests of a queue pair until it has ended, and tells what became of slices.
    pub(super) async fn reap(self: Rc<Self>, rail: Rc<Rail>) {
        let mut ended = Vec::new();
        while poll_fn(|cx| rail.poll_ended(cx, &mut ended)).await {
            self.ended(&mut ended);
        }
        let (index, connection) = (rail.rail, rail.connection);
        let _taken = self.one_sided.take(index, connection);
        self.release(index, connection);
        let mut state = self.state.borrow_mut();
        let scheduler = &mut state.scheduler;
        scheduler.on_rail_failed(index, connection, time::now());
        drop(state);
        self.one_sided.waiting.wake();
        self.pump();
    }

    /// Slices are over. What follows from that is done for all of them together.
    fn ended(self: &Rc<Self>, ended: &mut Vec<Carried>) {
        let now = time::now();
        let mut state = self.state.borrow_mut();
        for carried in &*ended {
            let Carried { id, len_bytes, .. } = *carried;
            match carried.failure {
                None => {
                    let counts = &self.engine.counts;
                    counts.moved(carried.way, carried.intent, len_bytes);
                    counts.moved_one_sided(len_bytes);
                    state.scheduler.on_answered(id, now);
                }
                Some(error) => {
                    tracing::debug!(%error, "a slice between memories");
                    if error == RequestError::Failed(Status::RemoteAccess) {
                        let slice = state.scheduler.slice(id);
                        let (slice, _) = slice.expect("it is not settled");
                        self.forget_windows(slice, &carried.posted.batch);
                    }
                    state.scheduler.on_lost(id, now);
                }
            }
        }
        drop(state);
        // With the last of them may go memory of somebody who looks here.
        ended.clear();
        self.pump_at(now);
    }

    /// A slice was refused by the peer's adapter. The segment may be gone: its owner says so over a stream.
    fn forget_windows(&self, slice: &Slice, batch: &Batch) {
        let segments = slice
            .parts
            .iter()
            .map(|part| batch.span(part.request).segment);
        for segment in segments.collect::<BTreeSet<_>>() {
            self.one_sided.windows.forget(segment);
        }
    }

    /// Ends a rail's connection, as the scheduler asks.
    pub(in crate::engine) fn close_one_sided(&self, rail: usize, connection: u32) {
        if let Some(rail) = self.one_sided.take(rail, connection) {
            rail.close();
        }
    }
}

/// The bytes of a short write.
fn few(local: &Local) -> Option<([u8; INLINE_BYTES_MAX], usize)> {
    let Local::From(source) = local else {
        return None;
    };
    if source.len() > INLINE_BYTES_MAX {
        return None;
    }
    let mut bytes = [0; INLINE_BYTES_MAX];
    let room = &mut bytes[..source.len()];
    match source {
        WriteSource::Exposed(memory) => memory.copy_out(0, room),
        WriteSource::Region(region) => room.copy_from_slice(region.as_slice()),
    }
    Some((bytes, source.len()))
}

fn lender(local: Local) -> Lender {
    match local {
        Local::Into(memory) | Local::From(WriteSource::Exposed(memory)) => memory.into(),
        Local::From(WriteSource::Region(region)) => region.into(),
    }
}
