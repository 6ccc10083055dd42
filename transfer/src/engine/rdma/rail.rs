//! A connected queue pair, and slices on it.
//!
//! Each part of a slice is a request, and those for which there is room at a time are one list. Lists of one queue
//! pair end in the order in which they were made, so one task waits for the oldest, and most of what follows is over
//! by then. What fails breaks the queue pair:
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
use lunette_transfer_proto::engine::segment::{SegmentId, Way};
use lunette_transfer_proto::engine::slices::{self, Slice};
use lunette_verbs::{
    INLINE_BYTES_MAX, Lender, List, Listed, Moved, QueuePair, Ready, RemoteMemory, RequestError,
};
use lunette_verbs_proto::status::Status;
use slab::Slab;

use super::super::batch::{Batch, Intent, Local};
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::asking::OneSided;
use super::windows::Windows;
use crate::adapters::Adapter;
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
    /// Lists of requests that were made, in their order, and to which slice each belongs.
    flying: VecDeque<(List, usize)>,
    /// Room for the requests of lists, kept: of no more than were under way at a time.
    spare: Vec<Vec<Listed>>,
    /// Requests that find no room yet.
    waiting: VecDeque<(Listed, usize)>,
    slices: Slab<Carried>,
    /// The task that waits for requests.
    waker: Option<Waker>,
}

/// A slice that is under way.
struct Carried {
    id: SliceId,
    way: Way,
    intent: Intent,
    len_bytes: u64,
    posted: Rc<Posted>,
    /// Requests that are not made.
    unmade: usize,
    /// Lists of those that were, and are not over.
    flying: usize,
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
                spare: Vec::new(),
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
    fn carry(&self, carried: Carried, slice: &Slice, reach: &mut Reach<'_>) -> bool {
        let mut state = self.state.borrow_mut();
        let State {
            pair,
            flying,
            spare,
            waiting,
            slices,
            waker,
        } = &mut *state;
        let mut requests = spare.pop().unwrap_or_default();
        requests.reserve(slice.parts.len());
        for part in &slice.parts {
            let Some(request) = reach.part(slice.way, *part, &carried.posted.batch) else {
                return false;
            };
            requests.push(request);
        }
        let key = slices.insert(carried);
        let room = match pair {
            Some(pair) if waiting.is_empty() => pair.credits() as usize,
            _ => 0,
        };
        let left = requests.drain(room.min(requests.len())..);
        waiting.extend(left.map(|request| (request, key)));
        if let Some(pair) = pair
            && !requests.is_empty()
        {
            let list = make(pair, &mut slices[key], requests);
            flying.push_back((list, key));
        }
        if let Some(waker) = waker.take() {
            waker.wake();
        }
        true
    }

    /// Waits for slices that are over, and takes all that are by then. False when the queue pair has ended and
    /// nothing is under way.
    fn poll_ended(&self, cx: &mut Context<'_>, ended: &mut Vec<Carried>) -> Poll<bool> {
        let mut state = self.state.borrow_mut();
        loop {
            let Some((list, _)) = state.flying.front_mut() else {
                if state.pair.is_some() {
                    return state.waits(cx, ended);
                }
                ended.extend(state.unmade());
                return Poll::Ready(!ended.is_empty());
            };
            let Poll::Ready((result, mut requests)) = Pin::new(list).poll(cx) else {
                return state.waits(cx, ended);
            };
            // Each slice holds its batch, so nothing ends with these.
            requests.clear();
            state.spare.push(requests);
            let (_, key) = state.flying.pop_front().expect("just looked at");
            if result.is_err() {
                // It is broken: what is behind it is not waited for.
                let pair = state.pair.take();
                drop(state);
                drop(pair);
                state = self.state.borrow_mut();
            }
            let carried = &mut state.slices[key];
            carried.flying -= 1;
            carried.failure = carried.failure.or(result.err());
            if carried.flying == 0 && carried.unmade == 0 {
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
            spare,
            waiting,
            slices,
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
        while let Some(&(_, key)) = waiting.front()
            && pair.credits() > 0
        {
            let carried = &mut slices[key];
            let count = carried.unmade.min(pair.credits() as usize);
            let mut requests = spare.pop().unwrap_or_default();
            requests.extend(waiting.drain(..count).map(|(request, _)| request));
            flying.push_back((make(pair, carried, requests), key));
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

/// Makes requests of a slice, for which there is room.
fn make(pair: &QueuePair<Ready>, carried: &mut Carried, requests: Vec<Listed>) -> List {
    carried.unmade -= requests.len();
    carried.flying += 1;
    // What bounds the time of a request is the rail's: it is given up when nothing comes through.
    pair.list(requests, Time::MAX)
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
            unmade: slice.parts.len(),
            flying: 0,
            failure: None,
        };
        let mut reach = Reach::new(&self.one_sided, rail);
        if !connected.carry(carried, slice, &mut reach) {
            state.scheduler.on_barred(id);
        }
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

/// What a rail reaches. The window of one part is often that of the next.
struct Reach<'a> {
    windows: &'a Windows,
    theirs: u16,
    window: Option<(SegmentId, RemoteMemory)>,
    here: &'a Adapter,
}

impl<'a> Reach<'a> {
    fn new(one_sided: &'a OneSided, rail: usize) -> Self {
        let ends = one_sided.ends_of(rail);
        Self {
            windows: &one_sided.windows,
            theirs: ends.theirs,
            window: None,
            here: &ends.ours,
        }
    }

    fn window(&mut self, segment: SegmentId) -> Option<RemoteMemory> {
        match self.window {
            Some((known, window)) if known == segment => Some(window),
            _ => {
                let window = self.windows.find(segment, self.theirs)?;
                self.window = Some((segment, window));
                Some(window)
            }
        }
    }

    /// The request of a part of a slice. `None` if it is not reached.
    #[inline]
    fn part(&mut self, way: Way, part: slices::Part, batch: &Batch) -> Option<Listed> {
        let span = batch.span(part.request);
        if span.is_remote {
            return None;
        }
        let window = self.window(span.segment)?;
        let there = window.at(span.offset_bytes + part.offset_bytes);
        let offset = usize::try_from(part.offset_bytes).ok()?;
        let len = part.len_bytes as usize;
        let local = span.local();
        if way == Way::Write && len <= INLINE_BYTES_MAX {
            let moved = Moved::Few(lender(local, offset, len));
            return Some(Listed { moved, there });
        }
        let lent = self.here.lend(lender(local, offset, len))?;
        let moved = match way {
            Way::Write => Moved::From(lent),
            Way::Read => Moved::Into(lent),
        };
        Some(Listed { moved, there })
    }
}

#[inline]
fn lender(local: &Local, offset: usize, len: usize) -> Lender {
    match local {
        Local::Into(memory) | Local::From(WriteSource::Exposed(memory)) => {
            Lender::Exposed(memory.slice(offset, len))
        }
        Local::From(WriteSource::Region(region)) => Lender::Region(region.slice(offset, len)),
    }
}
