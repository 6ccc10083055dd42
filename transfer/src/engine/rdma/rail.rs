//! A connected queue pair, and slices on it.
//!
//! Each part of a slice is a request, and those for which there is room at a time are one list. Lists of one queue
//! pair end in the order in which they were made, so one task waits for the oldest, and most of what follows is over
//! by then. What fails breaks the queue pair:
//! it is dropped at once, so that all that was under way is over, and a new one is connected.
//!
//! A notification is a message behind what was made before it, and is over when it is answered.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::{Note, Refusal};
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
use super::telling::Teller;
use super::windows::Windows;
use crate::adapters::{Adapter, Asking, Lost};
use crate::source::WriteSource;

/// A rail's queue pair.
pub(super) struct Rail {
    rail: usize,
    connection: u32,
    /// If it carries notifications.
    teller: Option<Teller>,
    state: RefCell<State>,
}

struct State {
    /// `None` once it has ended.
    pair: Option<QueuePair<Ready>>,
    /// Lists of requests that were made, in their order, and to which slice each belongs.
    flying: VecDeque<(List, usize)>,
    /// Room for the requests of lists, kept: of no more than were under way at a time.
    spare: Vec<Vec<Listed>>,
    /// Requests that find no room yet, and notifications behind them.
    waiting: VecDeque<(Unmade, usize)>,
    /// Notifications that are not answered.
    telling: Vec<(Asking, usize)>,
    slices: Slab<Carried>,
    /// The task that waits for requests.
    waker: Option<Waker>,
}

/// What was not made yet.
enum Unmade {
    Request(Listed),
    Note,
}

/// Why a slice was not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Request(RequestError),
    /// The notification was refused.
    Refused(Refusal),
    /// The notification does not go this way.
    Barred,
}

/// A slice that is under way.
struct Carried {
    id: SliceId,
    way: Way,
    intent: Intent,
    len_bytes: u64,
    posted: Rc<Posted>,
    /// The number of the notification, which has no requests.
    note: Option<u64>,
    /// Requests that are not made.
    unmade: usize,
    /// Lists of those that were, and are not over.
    flying: usize,
    failure: Option<Failure>,
}

impl Carried {
    /// Sends its notification; `None` if that does not go this way.
    fn tell(&self, teller: &Teller, pair: &QueuePair<Ready>) -> Option<Asking> {
        let bytes = self.posted.options.notification.as_deref();
        let note = Note {
            id: self.note.expect("a notification has its number"),
            bytes: bytes.unwrap_or_default(),
        };
        teller.tell(pair, note)
    }
}

impl Rail {
    pub(super) fn new(
        pair: QueuePair<Ready>,
        (rail, connection): (usize, u32),
        teller: Option<Teller>,
    ) -> Self {
        Self {
            rail,
            connection,
            teller,
            state: RefCell::new(State {
                pair: Some(pair),
                flying: VecDeque::new(),
                spare: Vec::new(),
                waiting: VecDeque::new(),
                telling: Vec::new(),
                slices: Slab::new(),
                waker: None,
            }),
        }
    }

    pub(super) const fn connection(&self) -> u32 {
        self.connection
    }

    /// Whether it has this queue pair.
    pub(super) fn has_number(&self, number: u32) -> bool {
        let state = self.state.borrow();
        let pair = state.pair.as_ref();
        pair.is_some_and(|pair| pair.number() == Some(number))
    }

    /// Takes in what has come by a message.
    pub(super) fn on_message(&self, bytes: &[u8]) {
        let Some(teller) = &self.teller else {
            return;
        };
        if let Err(fault) = teller.on_message(bytes) {
            tracing::warn!(rail = ?self, %fault, "an adapter's peer does not keep to the rules");
            self.close();
        }
    }

    /// Gives its queue pair up: all that is under way is over.
    fn end(&self) {
        let pair = self.state.borrow_mut().pair.take();
        // Its end wakes who waits for requests.
        drop(pair);
        if let Some(teller) = &self.teller {
            teller.end();
        }
    }

    /// Ends it: all that is under way is over, and nothing of it lands here any more.
    pub(super) fn close(&self) {
        self.end();
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
            ..
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
        waiting.extend(left.map(|request| (Unmade::Request(request), key)));
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

    /// Sends a notification behind all that it carries. False if it does not go this way.
    fn carry_note(&self, carried: Carried) -> bool {
        let Some(teller) = &self.teller else {
            return false;
        };
        let mut state = self.state.borrow_mut();
        let State {
            pair,
            waiting,
            telling,
            slices,
            waker,
            ..
        } = &mut *state;
        match pair {
            Some(pair) if waiting.is_empty() && pair.credits() > 0 => {
                let Some(told) = carried.tell(teller, pair) else {
                    return false;
                };
                telling.push((told, slices.insert(carried)));
            }
            _ => waiting.push_back((Unmade::Note, slices.insert(carried))),
        }
        if let Some(waker) = waker.take() {
            waker.wake();
        }
        true
    }

    /// Waits for slices that are over, and takes all that are by then. False when the queue pair has ended and
    /// nothing is under way.
    fn poll_ended(&self, cx: &mut Context<'_>, ended: &mut Vec<Carried>) -> Poll<bool> {
        let teller = self.teller.as_ref();
        let mut state = self.state.borrow_mut();
        while state.take_ended(teller, cx, ended) {
            // It is broken: what is under way is not waited for.
            drop(state);
            self.end();
            state = self.state.borrow_mut();
        }
        if state.pair.is_none() && state.flying.is_empty() && state.telling.is_empty() {
            ended.extend(state.unmade());
            return Poll::Ready(!ended.is_empty());
        }
        if !ended.is_empty() {
            return Poll::Ready(true);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl State {
    /// Takes what is over, and makes what there is room for. True if the queue pair has broken, which it had not before.
    fn take_ended(
        &mut self,
        teller: Option<&Teller>,
        cx: &mut Context<'_>,
        ended: &mut Vec<Carried>,
    ) -> bool {
        if self.take_listed(teller, cx, ended) || self.take_told(cx, ended) {
            return true;
        }
        // With a list that is over comes room, and this is looked at; room of messages comes without.
        while self.flying.is_empty()
            && !self.waiting.is_empty()
            && let Some(pair) = &self.pair
        {
            match pair.poll_credit(cx) {
                Poll::Pending => return false,
                Poll::Ready(Err(_broken)) => return true,
                Poll::Ready(Ok(())) if self.post(teller, ended) => return true,
                Poll::Ready(Ok(())) => {
                    if self.take_listed(teller, cx, ended) || self.take_told(cx, ended) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Takes the slices whose requests are over.
    fn take_listed(
        &mut self,
        teller: Option<&Teller>,
        cx: &mut Context<'_>,
        ended: &mut Vec<Carried>,
    ) -> bool {
        while let Some((list, _)) = self.flying.front_mut() {
            let Poll::Ready((result, mut requests)) = Pin::new(list).poll(cx) else {
                return false;
            };
            // Each slice holds its batch, so nothing ends with these.
            requests.clear();
            self.spare.push(requests);
            let (_, key) = self.flying.pop_front().expect("just looked at");
            let carried = &mut self.slices[key];
            carried.flying -= 1;
            let failure = result.err().map(Failure::Request);
            carried.failure = carried.failure.or(failure);
            if carried.flying == 0 && carried.unmade == 0 {
                ended.push(self.slices.remove(key));
            }
            if failure.is_some() && self.pair.is_some() {
                return true;
            }
            if !self.waiting.is_empty() && self.post(teller, ended) {
                return true;
            }
        }
        false
    }

    /// The same of notifications that were answered.
    fn take_told(&mut self, cx: &mut Context<'_>, ended: &mut Vec<Carried>) -> bool {
        let (mut at, mut is_lost) = (0, false);
        while let Some((asking, _)) = self.telling.get_mut(at) {
            let Poll::Ready(answer) = Pin::new(asking).poll(cx) else {
                at += 1;
                continue;
            };
            let (_, key) = self.telling.swap_remove(at);
            let mut carried = self.slices.remove(key);
            is_lost |= answer.is_err();
            carried.failure = match answer {
                Ok(answered) => Refusal::from_wire(answered.status).map(Failure::Refused),
                Err(Lost) => Some(Failure::Request(RequestError::Broken)),
            };
            ended.push(carried);
        }
        is_lost && self.pair.is_some()
    }

    /// Makes the requests for which there is room. True if the queue pair has broken.
    fn post(&mut self, teller: Option<&Teller>, ended: &mut Vec<Carried>) -> bool {
        let Self {
            pair: Some(pair),
            flying,
            spare,
            waiting,
            telling,
            slices,
            ..
        } = self
        else {
            return false;
        };
        if !pair.is_open() {
            // What waits is never made.
            return true;
        }
        while let Some((unmade, key)) = waiting.front()
            && pair.credits() > 0
        {
            let key = *key;
            if matches!(unmade, Unmade::Note) {
                waiting.pop_front();
                let told = teller.and_then(|teller| slices[key].tell(teller, pair));
                match told {
                    Some(told) => telling.push((told, key)),
                    None => {
                        let mut carried = slices.remove(key);
                        carried.failure = Some(Failure::Barred);
                        ended.push(carried);
                    }
                }
                continue;
            }
            let carried = &mut slices[key];
            let count = carried.unmade.min(pair.credits() as usize);
            let mut requests = spare.pop().unwrap_or_default();
            requests.extend(
                waiting
                    .drain(..count)
                    .filter_map(|(unmade, _)| match unmade {
                        Unmade::Request(request) => Some(request),
                        Unmade::Note => None,
                    }),
            );
            flying.push_back((make(pair, carried, requests), key));
        }
        false
    }

    /// The slices of which no request is under way, of a queue pair that has ended.
    fn unmade(&mut self) -> impl Iterator<Item = Carried> {
        self.waiting.clear();
        self.slices.drain().map(|carried| Carried {
            failure: carried
                .failure
                .or(Some(Failure::Request(RequestError::Broken))),
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
        let (slice, carries_note) = state.scheduler.slice(id).expect("it is to be sent");
        let carried = Carried {
            id,
            way: slice.way,
            intent: posted.options.intent,
            len_bytes: slice.len_bytes(),
            posted: Rc::clone(posted),
            note: carries_note.then(|| self.engine.note_number(&posted.note)),
            unmade: slice.parts.len(),
            flying: 0,
            failure: None,
        };
        if carries_note {
            if !connected.carry_note(carried) {
                state.scheduler.on_note_barred(id);
            }
            return;
        }
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
                    if carried.note.is_some() {
                        counts.told_one_sided();
                    } else {
                        counts.moved(carried.way, carried.intent, len_bytes);
                        counts.moved_one_sided(len_bytes);
                    }
                    state.scheduler.on_answered(id, now);
                }
                Some(Failure::Refused(refusal)) => {
                    state.scheduler.on_refused(id, refusal, 0, now);
                }
                Some(Failure::Barred) => state.scheduler.on_note_barred(id),
                Some(Failure::Request(error)) => {
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
