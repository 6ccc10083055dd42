//! What a queue pair is made of, as its completion queue and its requests see it.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::id::WrId;
use lunette_verbs_proto::negotiate::Agreement;
use lunette_verbs_proto::qp_state::QpState;
use lunette_verbs_proto::receive_queue::{ReceiveQueue, place_of};
use lunette_verbs_proto::send_queue::{Expiry, Retired, SendQueue};
use lunette_verbs_proto::status::Status;
use rustix::io::Errno;

use super::entries::{Entries, Held, Over};
use super::list::{List, Listed, Moved};
use super::payload::{Nameable, Named, Payload};
use super::request::Request;
use super::{INLINE_BYTES_MAX, Tells};
use crate::error::{RequestError, result_of};
use crate::events::PairNotices;
use crate::memory::Piece;
use crate::provider::real::connection::Id;
use crate::provider::{
    Cause, Completion, DOORBELL_REQUESTS_MAX, Operation, PairEvent, Patience, QueueSizes,
    RawQueuePair, ReceiveRequest, SendRequest, Step,
};

/// A request of so many bytes asks for a completion of its own: it takes longer than the completion costs, and
/// who waits for it would wait for those behind it.
const SIGNALLED_BYTES_MIN: u32 = 256 * 1024;

/// What a queue pair has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairCounts {
    /// Requests that the adapter took.
    pub posted: u64,
    /// Of these, those that asked for a completion.
    pub signalled: u64,
    /// Times that the adapter was told of new requests.
    pub doorbells: u64,
    /// Requests that are over.
    pub retired: u64,
    /// Deadlines that broke it: 0 or 1.
    pub deadlines: u64,
}

/// A receive that ended.
#[derive(Debug)]
pub struct Arrival {
    /// The piece that was posted.
    pub piece: Piece,
    /// Bytes of the message; of a write with immediate data, bytes that were written elsewhere.
    pub len_bytes: u32,
    /// The immediate data, of a write that had some.
    pub immediate: Option<u32>,
    /// Whether anything arrived at all: receives of a broken queue pair come back flushed.
    pub status: Status,
}

/// A queue pair.
pub(crate) struct PairCore {
    state: RefCell<State>,
    counts: Cell<PairCounts>,
    notices: Cell<PairNotices>,
    queue: Tells,
    /// What events name it by, and the receives that it shares.
    token: u64,
    shared: Option<u64>,
    slot: u16,
    generation: u16,
}

struct State {
    /// None once it has ended.
    raw: Option<RawQueuePair>,
    /// Why the device declared it broken.
    cause: Option<Cause>,
    sends: SendQueue,
    entries: Entries,
    /// Of request `n`, at `n % depth`: its entry.
    ring: Box<[u32]>,
    /// Of request `n`, at `n % depth`: the bytes that it sends inline.
    inline: Box<[[u8; INLINE_BYTES_MAX]]>,
    inline_bytes_max: u32,
    batch: Vec<SendRequest>,
    retired: Vec<Retired>,
    receives: ReceiveQueue,
    receiving: Box<[Option<Piece>]>,
    arrived: VecDeque<Arrival>,
    arrival_waker: Option<Waker>,
    credit_wakers: Vec<Waker>,
    /// Room for whom to wake and what to free, kept between completions.
    wakers: Vec<Waker>,
    freed: Vec<Over>,
}

/// A request that has its number.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    sequence: u32,
    /// No other is due as early.
    is_earliest: bool,
}

impl PairCore {
    pub(super) fn new(
        raw: RawQueuePair,
        sizes: QueueSizes,
        shared: Option<u64>,
        (slot, generation): (u16, u16),
        queue: Tells,
    ) -> Self {
        let token = raw.token();
        let (sends, receives) = (sizes.sends as usize, sizes.receives as usize);
        let state = State {
            raw: Some(raw),
            cause: None,
            sends: SendQueue::new(sizes.sends, 0),
            entries: Entries::with_capacity(sends),
            ring: vec![u32::MAX; sends].into(),
            inline: vec![[0; INLINE_BYTES_MAX]; sends].into(),
            inline_bytes_max: sizes.inline_bytes,
            batch: Vec::with_capacity(DOORBELL_REQUESTS_MAX),
            retired: Vec::with_capacity(sends),
            receives: ReceiveQueue::new(sizes.receives),
            receiving: (0..receives).map(|_| None).collect(),
            arrived: VecDeque::with_capacity(receives),
            arrival_waker: None,
            credit_wakers: Vec::new(),
            wakers: Vec::with_capacity(sends),
            freed: Vec::with_capacity(sends),
        };
        Self {
            state: RefCell::new(state),
            counts: Cell::default(),
            notices: Cell::default(),
            queue,
            token,
            shared,
            slot,
            generation,
        }
    }

    pub(super) fn counts(&self) -> PairCounts {
        self.counts.get()
    }

    pub(super) fn notices(&self) -> PairNotices {
        self.notices.get()
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        self.state.borrow().cause
    }

    pub(crate) const fn token(&self) -> u64 {
        self.token
    }

    pub(crate) const fn shared(&self) -> Option<u64> {
        self.shared
    }

    fn count(&self, change: impl FnOnce(&mut PairCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub(super) fn number(&self) -> Option<u32> {
        let state = self.state.borrow();
        state.raw.as_ref().map(RawQueuePair::number)
    }

    pub(super) fn is_built(&self) -> bool {
        let state = self.state.borrow();
        state.raw.as_ref().is_some_and(RawQueuePair::is_built)
    }

    pub(super) fn is_open(&self) -> bool {
        let state = self.state.borrow();
        state.raw.is_some() && state.sends.is_open()
    }

    pub(super) fn credits(&self) -> u32 {
        self.state.borrow().sends.credits()
    }

    pub(super) fn wait_for_credit(&self, waker: &Waker) {
        let wakers = &mut self.state.borrow_mut().credit_wakers;
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(super) fn step(&self, step: &Step) -> Result<(), Errno> {
        let mut state = self.state.borrow_mut();
        state.raw.as_mut().ok_or(Errno::NODEV)?.step(step)
    }

    pub(super) fn move_on(
        &self,
        id: &Id,
        to: QpState,
        agreement: Agreement,
        patience: Patience,
    ) -> Result<(), Errno> {
        let mut state = self.state.borrow_mut();
        let raw = state.raw.as_mut().ok_or(Errno::NODEV)?;
        raw.move_on(id, to, agreement, patience)
    }

    const fn id(&self, is_receive: bool, sequence: u32) -> WrId {
        WrId {
            slot: self.slot,
            generation: self.generation,
            is_receive,
            sequence,
        }
    }

    /// Stages a request.
    pub(super) fn request<P: Payload>(
        self: &Rc<Self>,
        operation: Operation,
        payload: P,
        deadline: Time,
    ) -> Request {
        let mut state = self.state.borrow_mut();
        let fits = payload.fits(state.inline_bytes_max);
        let admitted = match fits.and_then(|()| state.admit(deadline)) {
            Ok(admitted) => admitted,
            Err(error) => return Request::refused(error, payload.into_piece()),
        };
        let State {
            sends,
            inline,
            batch,
            ring,
            entries,
            ..
        } = &mut *state;
        let place = place(ring, admitted.sequence);
        let named = payload.name(&mut inline[place]);
        batch.push(self.send_request(sends, admitted.sequence, operation, named));
        let key = payload.hold(entries);
        ring[place] = key;
        let (is_first, is_full) = (
            state.batch.len() == 1,
            state.batch.len() == DOORBELL_REQUESTS_MAX,
        );
        drop(state);
        self.tell(is_first, admitted.is_earliest, is_full, deadline);
        Request::flying(Rc::clone(self), key)
    }

    /// Stages requests that are over together.
    pub(super) fn list(self: &Rc<Self>, requests: Vec<Listed>, deadline: Time) -> List {
        let mut state = self.state.borrow_mut();
        if state.raw.is_none() || !state.sends.is_open() {
            return List::refused(RequestError::Broken, requests);
        }
        if requests.len() > state.sends.credits() as usize {
            return List::refused(RequestError::Full, requests);
        }
        let count = requests.len();
        let key = state.entries.insert_list(requests);
        let mut staged = 0;
        while staged < count {
            let (was_empty, is_earliest) = (state.batch.is_empty(), state.is_earliest(deadline));
            let result = self.extend(&mut state, key, &mut staged, deadline);
            let is_first = was_empty && !state.batch.is_empty();
            let is_full = state.batch.len() == DOORBELL_REQUESTS_MAX;
            drop(state);
            self.tell(is_first, is_earliest, is_full, deadline);
            state = self.state.borrow_mut();
            if let Err(error) = result {
                state.entries.fail(key, error);
                break;
            }
        }
        state.entries.close(key);
        List::flying(Rc::clone(self), key)
    }

    /// Stages requests of a list until the batch is full, up to the first that cannot be made.
    fn extend(
        &self,
        state: &mut State,
        list: u32,
        staged: &mut usize,
        deadline: Time,
    ) -> Result<(), RequestError> {
        let State {
            sends,
            inline,
            inline_bytes_max,
            batch,
            ring,
            entries,
            ..
        } = state;
        let (requests, left) = entries.list(list);
        while batch.len() < DOORBELL_REQUESTS_MAX
            && let Some(request) = requests.get(*staged)
        {
            request.moved.fits(*inline_bytes_max)?;
            let sequence = sends.stage(deadline)?;
            let operation = match &request.moved {
                Moved::Into(_) => Operation::Read(request.there),
                Moved::From(_) | Moved::Few(_) => Operation::Write(request.there),
            };
            let place = place(ring, sequence);
            let named = request.moved.name(&mut inline[place]);
            batch.push(self.send_request(sends, sequence, operation, named));
            ring[place] = list;
            *left += 1;
            *staged += 1;
        }
        Ok(())
    }

    /// A request as the adapter takes it.
    #[inline]
    fn send_request(
        &self,
        sends: &mut SendQueue,
        sequence: u32,
        operation: Operation,
        named: Named,
    ) -> SendRequest {
        if named.len_bytes >= SIGNALLED_BYTES_MIN {
            sends.signal_last();
        }
        SendRequest {
            id: self.id(false, sequence).to_bits(),
            operation,
            address: named.address,
            len_bytes: named.len_bytes,
            lkey: named.lkey,
            is_signalled: sends.is_signalled(sequence),
            is_inline: named.is_inline,
        }
    }

    /// Tells the completion queue what it does not know of requests in the batch otherwise, and posts a full one.
    #[inline]
    fn tell(&self, is_first: bool, is_earliest: bool, is_full: bool, deadline: Time) {
        // Of the others it knows, and looks for the earliest of them itself.
        if (is_first || is_earliest)
            && let Some(queue) = self.queue.upgrade()
        {
            queue.staged(self.slot, is_first, deadline);
        }
        if is_full {
            self.flush();
        }
    }

    /// Posts the batch.
    pub(crate) fn flush(&self) {
        let mut state = self.state.borrow_mut();
        let State {
            raw,
            sends,
            batch,
            retired,
            ..
        } = &mut *state;
        let Some(raw) = raw.as_mut().filter(|_| !batch.is_empty()) else {
            batch.clear();
            return;
        };
        sends.seal();
        let last = batch.last_mut().expect("a batch is not empty");
        last.is_signalled = true;
        // SAFETY: each request's memory is owned by its entry until the request is retired, that of a
        // list's until all of them are: by a completion, or after the queue pair has been dropped. Inline bytes lie in a ring that is
        // not written again before that either.
        let (taken, refusal) = unsafe { raw.post_sends(batch) };
        let signalled = batch[..taken].iter().filter(|request| request.is_signalled);
        let signalled = signalled.count() as u64;
        batch.clear();
        let accepted = u32::try_from(taken).expect("a doorbell's requests are few");
        let ended = sends.posted(accepted, retired);
        self.count(|counts| {
            counts.posted += u64::from(accepted);
            counts.signalled += signalled;
            counts.doorbells += 1;
        });
        if ended.needs_marker || refusal.is_some() {
            tracing::warn!(?refusal, taken, "the adapter did not take a batch");
            // Nobody would learn of the end of what it took.
            Self::break_now(&mut state);
        }
        self.settle(state);
    }

    /// Moves the queue pair to the error state, so that the adapter flushes it.
    fn break_now(state: &mut State) {
        state.sends.fail(time::now());
        if let Some(raw) = state.raw.as_mut()
            && let Err(errno) = raw.step(&Step::Error)
        {
            // Its end does the same.
            tracing::warn!(%errno, "a queue pair does not break");
        }
    }

    pub(crate) fn abort(&self) {
        let mut state = self.state.borrow_mut();
        Self::break_now(&mut state);
        self.settle(state);
    }

    /// The device declares it broken: what it has not completed by now ends for that cause. To be
    /// followed by a last poll, and then by [`PairCore::destroy`].
    pub(crate) fn declare(&self, cause: Cause) {
        self.state.borrow_mut().cause.get_or_insert(cause);
    }

    /// Takes in what the device says of it, unless that is a cause to be declared broken.
    pub(crate) fn notice(&self, event: PairEvent) {
        tracing::debug!(?event, "a queue pair was told");
        let mut notices = self.notices.get();
        notices.count(event);
        self.notices.set(notices);
        // Without receives of its own it may have nothing that could tell it that it is broken.
        if event == PairEvent::LastReceiveTaken && self.is_open() {
            self.abort();
        }
    }

    /// Takes a completion in. False if nothing here waits for it.
    pub(crate) fn completed(&self, id: WrId, status: Status, completion: &Completion) -> bool {
        let mut state = self.state.borrow_mut();
        let is_known = if id.is_receive {
            state.arrive(id.sequence, status, completion)
        } else {
            // The clock is read for failures alone: a success needs no time.
            let now = if status == Status::Success {
                Time::ZERO
            } else {
                time::now()
            };
            let State { sends, retired, .. } = &mut *state;
            sends.complete(now, id.sequence, status, retired).is_ok()
        };
        self.settle(state);
        is_known
    }

    pub(crate) fn timeout(&self) -> Option<Time> {
        self.state.borrow().sends.timeout()
    }

    pub(crate) fn expire(&self, now: Time) {
        let mut state = self.state.borrow_mut();
        match state.sends.expire(now) {
            None => {}
            Some(Expiry::Break) => {
                self.count(|counts| counts.deadlines += 1);
                Self::break_now(&mut state);
            }
            Some(Expiry::Destroy) => {
                drop(state);
                return self.destroy();
            }
        }
        self.settle(state);
    }

    /// Ends the queue pair. Everything in flight is over when this returns.
    pub(crate) fn destroy(&self) {
        let mut state = self.state.borrow_mut();
        // First the adapter lets go, then memory is given back.
        state.raw = None;
        state.batch.clear();
        let State {
            sends,
            retired,
            receives,
            receiving,
            arrived,
            ..
        } = &mut *state;
        sends.destroyed(retired);
        let mut left = Vec::new();
        receives.destroyed(&mut left);
        for received in left {
            if let Some(piece) = receiving[usize::from(received.place)].take() {
                arrived.push_back(Arrival {
                    piece,
                    len_bytes: 0,
                    immediate: None,
                    status: received.status,
                });
            }
        }
        self.settle(state);
    }

    /// Hands out what is over, and wakes who waits, with nothing borrowed.
    fn settle(&self, mut state: RefMut<'_, State>) {
        if state.retired.is_empty() && !state.has_news() {
            return;
        }
        let mut wakers = std::mem::take(&mut state.wakers);
        let mut freed = std::mem::take(&mut state.freed);
        let mut retired = std::mem::take(&mut state.retired);
        self.count(|counts| counts.retired += retired.len() as u64);
        for ended in retired.drain(..) {
            state.end(ended, &mut wakers, &mut freed);
        }
        state.retired = retired;
        let is_over = state.raw.is_none() || !state.sends.is_open();
        if state.sends.credits() > 0 || is_over {
            wakers.append(&mut state.credit_wakers);
        }
        if state.has_news() {
            wakers.extend(state.arrival_waker.take());
        }
        let flush_by = state.sends.timeout().filter(|_| is_over);
        drop(state);
        // A queue pair that broke has less time to flush than its requests had to be done.
        if let (Some(at), Some(queue)) = (flush_by, self.queue.upgrade()) {
            queue.staged(self.slot, false, at);
        }
        freed.clear();
        wakers.drain(..).for_each(Waker::wake);
        // Whoever was woken may have been here in the meantime; the room is kept, once.
        let mut state = self.state.borrow_mut();
        state.wakers = wakers;
        state.freed = freed;
    }

    pub(super) fn post_receive(&self, piece: Piece) -> Result<(), (RequestError, Piece)> {
        let mut state = self.state.borrow_mut();
        let State {
            raw,
            sends,
            receives,
            receiving,
            ..
        } = &mut *state;
        let Some(raw) = raw.as_mut().filter(|_| sends.is_open()) else {
            return Err((RequestError::Broken, piece));
        };
        let Ok(sequence) = receives.stage() else {
            return Err((RequestError::Full, piece));
        };
        let request = ReceiveRequest {
            id: self.id(true, sequence).to_bits(),
            address: piece.address(),
            len_bytes: u32::try_from(piece.len()).expect("pieces are bounded by a chunk"),
            lkey: piece.lkey(),
        };
        let place = usize::from(place_of(sequence));
        receiving[place] = Some(piece);
        // SAFETY: the piece is owned by its place until the receive has completed or the queue pair
        // has been dropped.
        let (taken, _refusal) = unsafe { raw.post_receives(&[request]) };
        if taken == 1 {
            return Ok(());
        }
        receives.refused(sequence);
        let piece = receiving[place].take().expect("it was put there above");
        Err((RequestError::Refused, piece))
    }

    pub(super) fn poll_arrival(&self, cx: &TaskContext<'_>) -> Poll<Result<Arrival, RequestError>> {
        let mut state = self.state.borrow_mut();
        if let Some(arrival) = state.arrived.pop_front() {
            return Poll::Ready(Ok(arrival));
        }
        let is_over = state.raw.is_none() || !state.sends.is_open();
        if is_over && state.receives.posted() == 0 {
            return Poll::Ready(Err(RequestError::Broken));
        }
        state.arrival_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The outcome of a request, with its piece.
    #[inline]
    pub(crate) fn poll_request(
        &self,
        key: u32,
        cx: &TaskContext<'_>,
    ) -> Poll<(Result<(), RequestError>, Option<Piece>)> {
        let taken = self.state.borrow_mut().entries.take(key, cx.waker());
        match taken {
            None => Poll::Pending,
            // What was held goes with nothing borrowed.
            Some((outcome, piece, _held)) => Poll::Ready((outcome, piece)),
        }
    }

    /// The outcome of a list, with its requests.
    pub(super) fn poll_list(
        &self,
        key: u32,
        cx: &TaskContext<'_>,
    ) -> Poll<(Result<(), RequestError>, Vec<Listed>)> {
        match self.state.borrow_mut().entries.take(key, cx.waker()) {
            Some((outcome, _, Some(Held::List(requests)))) => Poll::Ready((outcome, requests)),
            Some(_) => unreachable!("a list has its requests until it is over"),
            None => Poll::Pending,
        }
    }

    /// Nobody waits for a request any more.
    pub(crate) fn abandon(&self, key: u32) {
        let freed = self.state.borrow_mut().entries.abandon(key);
        drop(freed);
    }
}

/// Where in a ring is what belongs to a request.
const fn place(ring: &[u32], sequence: u32) -> usize {
    sequence as usize & (ring.len() - 1)
}

impl State {
    /// Whether somebody waits who is to be told something.
    fn has_news(&self) -> bool {
        let is_over = self.raw.is_none() || !self.sends.is_open();
        !self.arrived.is_empty() || is_over
    }

    /// Whether no request is due as early; what has no end is never due.
    fn is_earliest(&self, deadline: Time) -> bool {
        deadline < Time::MAX && self.sends.timeout().is_none_or(|at| deadline < at)
    }

    /// Gives a request its number.
    #[inline]
    fn admit(&mut self, deadline: Time) -> Result<Admitted, RequestError> {
        if self.raw.is_none() {
            return Err(RequestError::Broken);
        }
        let is_earliest = self.is_earliest(deadline);
        let sequence = self.sends.stage(deadline)?;
        Ok(Admitted {
            sequence,
            is_earliest,
        })
    }

    /// A request is over.
    fn end(&mut self, ended: Retired, wakers: &mut Vec<Waker>, freed: &mut Vec<Over>) {
        let key = self.ring[place(&self.ring, ended.sequence)];
        let outcome = result_of(ended.outcome, self.cause);
        self.entries.end(key, outcome, wakers, freed);
    }

    /// A receive is over.
    fn arrive(&mut self, sequence: u32, status: Status, completion: &Completion) -> bool {
        let Ok(received) = self.receives.complete(sequence, status) else {
            return false;
        };
        let piece = self.receiving[usize::from(received.place)].take();
        self.arrived.push_back(Arrival {
            piece: piece.expect("a posted receive has its piece"),
            len_bytes: completion.len_bytes,
            immediate: completion.immediate,
            status,
        });
        // A receive that failed broke the queue pair.
        if status != Status::Success {
            self.sends.fail(time::now());
        }
        true
    }
}

impl fmt::Debug for PairCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.borrow();
        f.debug_struct("PairCore")
            .field("number", &state.raw.as_ref().map(RawQueuePair::number))
            .field("in_flight", &state.sends.in_flight())
            .field("counts", &self.counts.get())
            .finish()
    }
}
