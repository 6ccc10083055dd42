//! Completion queues as sources of their core's loop.
//!
//! ```text
//!   every turn     post what was staged (one doorbell per queue pair) ─▶ poll ─▶ retire, wake
//!   before sleep   post ─▶ ask for an event ─▶ poll once more ─▶ nothing: sleep
//!   an event       the driver's completion for the channel wakes the core: take it, poll
//! ```
//!
//! The order before sleep is what loses no completion: one that comes before the event was asked
//! for is found by the poll, one that comes later raises the event, and the driver waits for the
//! channel all the time. Deadlines are kept by a task, which sleeps until the earliest and so is no
//! work while nothing is in flight; another one waits for the channel.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use lunette_runtime::{JoinHandle, Source, SourceGuard, Watched, add_source, spawn_local, time};
use lunette_runtime_core::time::Time;
use lunette_verbs_proto::completion_room::CompletionRoom;
use lunette_verbs_proto::id::{SLOTS_MAX, WrId, next_generation};
use lunette_verbs_proto::status::Status;
use rustix::io::Errno;

use crate::context::Context;
use crate::error::SetupError;
use crate::events::Events;
use crate::provider::{Cause, Completion, POLL_COMPLETIONS_MAX, PairEvent, RawCompletions};
use crate::queue_pair::PairCore;
use crate::shared_receives::SharedCore;

/// How long a core polls for which a wait was one operation too many.
const WATCH_AGAIN: Duration = Duration::from_millis(10);

/// What a completion queue has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionCounts {
    /// Polls.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Completions.
    pub completions: u64,
    /// Completions that belong to nothing that is here.
    pub strays: u64,
    /// Times that it was armed before a sleep.
    pub parks: u64,
    /// Events of its channel.
    pub events: u64,
}

/// A completion queue that the current core polls. Clones share it.
#[derive(Clone)]
pub struct CompletionQueue {
    shared: Rc<Shared>,
}

/// Polled as long as somebody holds it.
struct Shared {
    // The source goes before the queue that it polls.
    _guard: SourceGuard,
    inner: Rc<Inner>,
    /// Waits for the channel of a provider that has one, or for the time of one that has none.
    watch: Option<JoinHandle<()>>,
}

pub(crate) struct Inner {
    raw: RefCell<RawCompletions>,
    room: Cell<CompletionRoom>,
    slots: RefCell<Vec<Slot>>,
    /// Slots without an owner.
    free: RefCell<Vec<u16>>,
    /// Queue pairs with a batch to be posted.
    dirty: RefCell<Vec<u16>>,
    counts: Cell<CompletionCounts>,
    is_armed: Cell<bool>,
    /// Nobody waits for its channel: its core must not sleep.
    is_unwatched: Cell<bool>,
    broken: Cell<Option<Cause>>,
    /// What events name it by; and who brings them, held for that.
    token: u64,
    _events: Rc<Events>,
    keeper: RefCell<Keeper>,
    /// Room for what a poll finds.
    found: RefCell<Box<[Completion]>>,
}

#[derive(Default)]
struct Slot {
    generation: u16,
    owner: Option<Owner>,
}

/// Whose completions a slot's are.
#[derive(Clone)]
pub(crate) enum Owner {
    /// A queue pair.
    Pair(Rc<PairCore>),
    /// Receives that several queue pairs share.
    Shared(Rc<SharedCore>),
}

/// The task that keeps deadlines.
#[derive(Default)]
struct Keeper {
    waker: Option<Waker>,
    sleeps_until: Option<Time>,
}

impl CompletionQueue {
    /// A queue that holds `entries` completions, polled by the current core.
    ///
    /// # Errors
    /// [`SetupError`].
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(context: &Context, entries: u32) -> Result<Self, SetupError> {
        let raw = context.device().completions(entries);
        let raw = raw.map_err(SetupError::Refused)?;
        let channel = raw.channel().map_err(SetupError::Refused)?;
        let inner = Rc::new(Inner {
            token: raw.token(),
            _events: Rc::clone(context.events()),
            raw: RefCell::new(raw),
            room: Cell::new(CompletionRoom::new(entries)),
            slots: RefCell::default(),
            free: RefCell::default(),
            dirty: RefCell::default(),
            counts: Cell::default(),
            is_armed: Cell::new(false),
            is_unwatched: Cell::new(false),
            broken: Cell::new(None),
            keeper: RefCell::default(),
            found: RefCell::new(vec![Completion::default(); POLL_COMPLETIONS_MAX].into()),
        });
        let source = Polled {
            inner: Rc::clone(&inner),
        };
        let guard = add_source(source).map_err(|_| SetupError::TooManySources)?;
        let listed = context.events().list(&inner);
        listed.map_err(SetupError::Refused)?;
        let keeper = spawn_local(keep_deadlines(Rc::downgrade(&inner)));
        let weak = Rc::downgrade(&inner);
        let has_times = inner.raw().has_times();
        let watch = match channel {
            Some(channel) => Some(spawn_local(watch(Watched::new(channel), weak))),
            None => has_times.then(|| spawn_local(keep_times(weak))),
        };
        // Nobody would keep its deadlines, or wake the core for it.
        if keeper.is_finished() || watch.as_ref().is_some_and(JoinHandle::is_finished) {
            return Err(SetupError::TooManyTasks);
        }
        Ok(Self {
            shared: Rc::new(Shared {
                _guard: guard,
                inner,
                watch,
            }),
        })
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> CompletionCounts {
        self.shared.inner.counts.get()
    }

    /// Whether completions are read where the adapter has them.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        self.inner().raw().is_extended()
    }

    pub(crate) fn inner(&self) -> &Rc<Inner> {
        &self.shared.inner
    }
}

impl Inner {
    pub(crate) fn raw(&self) -> std::cell::Ref<'_, RawCompletions> {
        self.raw.borrow()
    }

    /// Makes room for a queue pair and gives it a place: slot and generation of its ids.
    pub(crate) fn admit(&self, entries: u32) -> Result<(u16, u16), SetupError> {
        if self.broken.get().is_some() {
            return Err(SetupError::Broken);
        }
        let mut room = self.room.get();
        room.reserve(entries)?;
        let mut slots = self.slots.borrow_mut();
        let free = self.free.borrow_mut().pop();
        let index = free.map_or(slots.len(), usize::from);
        if index >= SLOTS_MAX {
            return Err(SetupError::Size);
        }
        if index == slots.len() {
            slots.push(Slot::default());
        }
        self.room.set(room);
        let slot = &mut slots[index];
        assert!(slot.owner.is_none(), "a free place has no owner");
        slot.generation = next_generation(slot.generation);
        let index = u16::try_from(index).expect("bounded by SLOTS_MAX");
        Ok((index, slot.generation))
    }

    pub(crate) fn place(&self, slot: u16, owner: Owner) {
        self.slots.borrow_mut()[usize::from(slot)].owner = Some(owner);
    }

    /// The owner of a slot is gone: its completions, if any are left, are strays.
    pub(crate) fn dismiss(&self, slot: u16, entries: u32) {
        self.slots.borrow_mut()[usize::from(slot)].owner = None;
        self.free.borrow_mut().push(slot);
        let mut room = self.room.get();
        room.release(entries);
        self.room.set(room);
    }

    /// A queue pair has something to post, with this deadline.
    pub(crate) fn staged(&self, slot: u16, is_first: bool, deadline: Time) {
        if is_first {
            self.dirty.borrow_mut().push(slot);
        }
        let mut keeper = self.keeper.borrow_mut();
        if keeper.sleeps_until.is_none_or(|until| deadline < until)
            && let Some(waker) = keeper.waker.take()
        {
            waker.wake();
        }
    }

    fn pair(&self, slot: u16) -> Option<Rc<PairCore>> {
        match self.slots.borrow().get(usize::from(slot))?.owner.as_ref()? {
            Owner::Pair(pair) => Some(Rc::clone(pair)),
            Owner::Shared(_) => None,
        }
    }

    /// Posts what was staged, one doorbell per queue pair. Whether there was anything.
    fn flush(&self) -> bool {
        let had_any = !self.dirty.borrow().is_empty();
        while let Some(slot) = self.dirty.borrow_mut().pop() {
            if let Some(pair) = self.pair(slot) {
                pair.flush();
            }
        }
        had_any
    }

    /// Polls once and hands completions to their queue pairs.
    fn poll(&self, budget: usize) -> usize {
        let mut found = self.found.borrow_mut();
        let most = budget.min(POLL_COMPLETIONS_MAX);
        let polled = self.raw.borrow_mut().poll(&mut found[..most]);
        let Ok(count) = polled else {
            self.broken(Cause::CompletionQueue);
            return 0;
        };
        let mut counts = self.counts.get();
        counts.polls += 1;
        counts.empty_polls += u64::from(count == 0);
        counts.completions += count as u64;
        for completion in &found[..count] {
            counts.strays += u64::from(!self.dispatch(completion));
        }
        self.counts.set(counts);
        count
    }

    fn dispatch(&self, completion: &Completion) -> bool {
        let id = WrId::from_bits(completion.id);
        let slots = self.slots.borrow();
        let slot = slots.get(usize::from(id.slot));
        let owner = slot
            .filter(|slot| slot.generation == id.generation)
            .and_then(|slot| slot.owner.clone());
        // The owner may wake tasks; it must find nothing borrowed.
        drop(slots);
        let status = Status::from_code(completion.status);
        match owner {
            Some(Owner::Pair(pair)) => pair.completed(id, status, completion),
            Some(Owner::Shared(shared)) => shared.completed(id, status, completion),
            None => false,
        }
    }

    pub(crate) const fn token(&self) -> u64 {
        self.token
    }

    /// The queue overflowed or the device is gone: so are all its queue pairs.
    pub(crate) fn broken(&self, cause: Cause) {
        if self.broken.get().is_some() {
            return;
        }
        self.broken.set(Some(cause));
        tracing::error!(%cause, "a completion queue broke, and its queue pairs with it");
        for pair in self.pairs() {
            pair.declare(cause);
            pair.destroy();
        }
        for shared in self.shared() {
            shared.broken(cause);
        }
    }

    /// Brings an event to the queue pair that it names. False if that is none of this queue's.
    pub(crate) fn tell_pair(&self, token: u64, event: PairEvent) -> bool {
        let Some(pair) = self.pairs().into_iter().find(|pair| pair.token() == token) else {
            return false;
        };
        match event.cause() {
            None => pair.notice(event),
            Some(cause) => self.end(&[pair], cause),
        }
        true
    }

    /// Receives that queue pairs share broke: so did these queue pairs.
    pub(crate) fn shared_broken(&self, token: u64) {
        let mut pairs = self.pairs();
        pairs.retain(|pair| pair.shared() == Some(token));
        self.end(&pairs, Cause::SharedReceives);
        for shared in self
            .shared()
            .iter()
            .filter(|shared| shared.token() == token)
        {
            shared.broken(Cause::SharedReceives);
        }
    }

    /// Ends queue pairs that the device declared broken, after what it completed before.
    fn end(&self, pairs: &[Rc<PairCore>], cause: Cause) {
        tracing::warn!(%cause, count = pairs.len(), "queue pairs were declared broken");
        pairs.iter().for_each(|pair| pair.declare(cause));
        while self.poll(POLL_COMPLETIONS_MAX) == POLL_COMPLETIONS_MAX {}
        pairs.iter().for_each(|pair| pair.destroy());
    }

    fn pairs(&self) -> Vec<Rc<PairCore>> {
        let slots = self.slots.borrow();
        let owners = slots.iter().filter_map(|slot| slot.owner.as_ref());
        let pairs = owners.filter_map(|owner| match owner {
            Owner::Pair(pair) => Some(Rc::clone(pair)),
            Owner::Shared(_) => None,
        });
        pairs.collect()
    }

    fn shared(&self) -> Vec<Rc<SharedCore>> {
        let slots = self.slots.borrow();
        let owners = slots.iter().filter_map(|slot| slot.owner.as_ref());
        let shared = owners.filter_map(|owner| match owner {
            Owner::Pair(_) => None,
            Owner::Shared(shared) => Some(Rc::clone(shared)),
        });
        shared.collect()
    }

    fn timeout(&self) -> Option<Time> {
        let slots = self.slots.borrow();
        let owners = slots.iter().filter_map(|slot| slot.owner.as_ref());
        let timeouts = owners.filter_map(|owner| match owner {
            Owner::Pair(pair) => pair.timeout(),
            Owner::Shared(_) => None,
        });
        timeouts.min()
    }

    fn arm(&self) -> Result<(), Errno> {
        let mut raw = self.raw.borrow_mut();
        if !self.is_armed.get() {
            raw.arm()?;
            self.is_armed.set(true);
        }
        Ok(())
    }

    /// Takes the events of the channel: the next sleep asks for another one.
    fn take_events(&self) {
        let events = self.raw.borrow_mut().take_events();
        if events > 0 {
            self.is_armed.set(false);
            let mut counts = self.counts.get();
            counts.events += events as u64;
            self.counts.set(counts);
        }
    }
}

/// What the core's loop holds.
struct Polled {
    inner: Rc<Inner>,
}

impl Source for Polled {
    fn poll(&mut self, budget: usize) -> usize {
        self.inner.flush();
        // What is broken has nothing more to say.
        if self.inner.broken.get().is_some() {
            return 0;
        }
        self.inner.poll(budget)
    }

    fn try_park(&mut self) -> bool {
        let inner = &self.inner;
        if inner.flush() {
            // What was posted may have woken somebody.
            return false;
        }
        if inner.broken.get().is_some() {
            return true;
        }
        if inner.arm().is_err() || inner.poll(POLL_COMPLETIONS_MAX) > 0 {
            return false;
        }
        if inner.raw.borrow().has_work() || inner.is_unwatched.get() {
            return false;
        }
        let mut counts = inner.counts.get();
        counts.parks += 1;
        inner.counts.set(counts);
        true
    }

    // What was asked for stays asked for; the task that waits for the channel takes it.
    fn unpark(&mut self) {}

    fn sleeps_until(&self) -> Option<Time> {
        self.inner.raw().next_due()
    }
}

/// Waits for the channel until the queue is gone.
async fn watch(channel: Watched, queue: Weak<Inner>) {
    loop {
        let ready = channel.readable().await;
        let Some(inner) = queue.upgrade() else {
            return;
        };
        let Err(error) = ready else {
            inner.take_events();
            continue;
        };
        tracing::warn!(%error, "a completion channel is not watched: its core polls");
        inner.is_unwatched.set(true);
        if !error.is_retryable() {
            return;
        }
        drop(inner);
        time::sleep(WATCH_AGAIN).await;
        if let Some(inner) = queue.upgrade() {
            // No core sleeps between this and the next wait.
            inner.is_unwatched.set(false);
        }
    }
}

/// Looks for passed deadlines until the queue is gone.
async fn keep_deadlines(queue: Weak<Inner>) {
    let mut sleep: Option<time::Sleep> = None;
    poll_fn(move |cx| {
        loop {
            let Some(inner) = queue.upgrade() else {
                return Poll::Ready(());
            };
            let next = inner.timeout();
            inner.keeper.borrow_mut().waker = Some(cx.waker().clone());
            inner.keeper.borrow_mut().sleeps_until = next;
            let Some(at) = next else {
                sleep = None;
                return Poll::Pending;
            };
            if sleep.as_ref().is_none_or(|sleep| sleep.deadline() != at) {
                sleep = Some(time::sleep_until(at));
            }
            if poll_sleep(&mut sleep, cx).is_pending() {
                return Poll::Pending;
            }
            sleep = None;
            let now = time::now();
            for pair in inner.pairs() {
                pair.expire(now);
            }
        }
    })
    .await;
}

/// Wakes the core where a provider without a channel is to be polled sooner than it was when the core fell asleep, until
/// the queue is gone.
async fn keep_times(queue: Weak<Inner>) {
    poll_fn(move |cx| {
        let Some(inner) = queue.upgrade() else {
            return Poll::Ready(());
        };
        inner.raw().wake_at_begin(cx.waker());
        Poll::Pending
    })
    .await;
}

fn poll_sleep(sleep: &mut Option<time::Sleep>, cx: &mut TaskContext<'_>) -> Poll<()> {
    sleep
        .as_mut()
        .map_or(Poll::Ready(()), |sleep| Pin::new(sleep).poll(cx))
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The keeper notices that the queue is gone.
        if let Some(waker) = self.inner.keeper.borrow_mut().waker.take() {
            waker.wake();
        }
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({:?})", self.counts())
    }
}
