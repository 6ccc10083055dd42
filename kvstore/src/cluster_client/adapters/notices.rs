//! Where adapters hear: the calls under way, the notices that name them, and answers that come by messages.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use lunette_kvstore_proto::message::directory::{PUSHED_BYTES_MAX, PushPlace};
use lunette_kvstore_proto::pushed::{PushEvent, PushStep, PushedGet};
use lunette_runtime::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN, Exposed, HugePages};
use lunette_runtime::time;
use lunette_runtime_core::carve::GRANULE_BYTES;
use lunette_transfer::adapters::{Adapter, Adapters, Asked, Heard as Arrived, Messages};
use lunette_verbs::{Access, ExposedWindow, Piece, SetupError, SharedReceives, Slab};
use rustix::io::Errno;
use slab::Slab as Table;

use super::super::asking::Asking;
use super::landing::Window;
use crate::rails::Rail;

/// Calls of one client at a time; what further ones ask for is sent. Each adapter has as many receives for their
/// notices.
const CALLS_MAX: usize = 256;
/// Requests of one adapter at a time that go by messages; further ones go over connections. There are as many receives
/// for their answers.
const ASKED_MAX: usize = 256;
/// Messages that are being sent.
const SENDS_MAX: u32 = 128;
/// Words that are being read by one adapter.
const WORDS_MAX: usize = 256;
const WORD_BYTES: usize = 8;
/// Calls take turns with the places of the table, and so do their numbers.
const INDEX_BITS: u32 = 16;

/// One of our adapters, where notices come in.
struct Ear {
    adapter: Rc<Adapter>,
    messages: Messages,
    /// How many more requests may be under way.
    left: Rc<Cell<usize>>,
    /// Of words that are read.
    words: Slab,
    /// Those whose queue pairs hear here, by their numbers.
    rails: RefCell<BTreeMap<u32, Weak<Rail>>>,
    /// Where answers are written: once it has been registered.
    answers: OnceCell<ExposedWindow>,
    /// Nothing is heard there any more.
    is_deaf: Cell<bool>,
}

/// A call.
struct Heard {
    immediate: u32,
    rail: Rc<Rail>,
    /// How long the answer is that came with its notice.
    noticed: Option<u32>,
    /// Its queue pair has ended first.
    is_lost: bool,
    waker: Option<Waker>,
    _windows: Vec<Window>,
}

/// Where a client hears what has been written, and of which call.
pub(super) struct Ears {
    ears: Vec<Ear>,
    /// A place for each call's answer.
    answers: Option<Exposed>,
    calls: RefCell<Table<Heard>>,
    last_turn: Cell<u16>,
}

impl Ears {
    /// At those of the adapters that give what it takes.
    pub(super) fn open(adapters: &Adapters) -> Self {
        let mut ears = Vec::new();
        let mut answers = None;
        if !adapters.all().is_empty() {
            let len = CALLS_MAX * PUSHED_BYTES_MAX;
            let mapped = Exposed::map(len, HugePages::Never, &mut Vec::new());
            let refused = |error: &Errno| tracing::warn!(%error, "no memory for answers");
            answers = mapped.inspect_err(refused).ok();
        }
        for adapter in adapters.all().iter().filter(|_| answers.is_some()) {
            let refused = |error: &SetupError| {
                tracing::warn!(name = adapter.name(), %error, "an adapter is not used");
            };
            let ear = Ear::open(adapter).inspect_err(refused);
            ears.extend(ear);
        }
        Self {
            ears,
            answers,
            calls: RefCell::default(),
            last_turn: Cell::new(0),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.ears.len()
    }

    pub(super) fn adapter(&self, index: usize) -> &Rc<Adapter> {
        &self.ears[index].adapter
    }

    pub(super) fn receives(&self, index: usize) -> &SharedReceives {
        self.ears[index].messages.receives()
    }

    pub(super) fn messages(&self, index: usize) -> &Messages {
        &self.ears[index].messages
    }

    /// For requests over one more queue pair of an adapter.
    pub(super) fn asked(&self, index: usize) -> Rc<Asked> {
        Asked::new(Rc::clone(&self.ears[index].left))
    }

    /// What comes by this rail's queue pair is its own from now on.
    pub(super) fn listen(&self, rail: &Rc<Rail>) {
        let mut rails = self.ears[rail.adapter].rails.borrow_mut();
        rails.retain(|_, rail| rail.strong_count() > 0);
        rails.insert(rail.number, Rc::downgrade(rail));
    }

    fn on_heard(&self, adapter: usize, number: u32, heard: Arrived<'_>) {
        match heard {
            Arrived::Notice {
                immediate,
                len_bytes,
            } => self.on_notice((adapter, number), immediate, len_bytes),
            Arrived::Message(bytes) => self.on_message((adapter, number), bytes),
        }
    }

    /// A message has come.
    fn on_message(&self, (adapter, number): (usize, u32), bytes: &[u8]) {
        let rails = self.ears[adapter].rails.borrow();
        let rail = rails.get(&number).and_then(Weak::upgrade);
        drop(rails);
        let Some((rail, asked)) = rail.as_ref().and_then(|rail| Some((rail, rail.asked()?))) else {
            return tracing::debug!(number, "a message from nowhere");
        };
        if let Err(fault) = asked.on_message(bytes) {
            tracing::warn!(?rail, %fault, "an adapter's peer does not keep to the rules");
            self.give_up(rail);
        }
    }

    pub(super) fn adapters(&self) -> impl Iterator<Item = Rc<Adapter>> {
        self.ears.iter().map(|ear| Rc::clone(&ear.adapter))
    }

    /// A notice has come.
    fn on_notice(&self, (adapter, number): (usize, u32), immediate: u32, len_bytes: u32) {
        let index = immediate & ((1 << INDEX_BITS) - 1);
        let mut calls = self.calls.borrow_mut();
        let call = calls.get_mut(index as usize).filter(|call| {
            // Whoever names another one's call is not heard.
            let is_from = call.rail.adapter == adapter && call.rail.number == number;
            call.immediate == immediate && is_from
        });
        let Some(call) = call else {
            tracing::debug!(immediate, "a notice of no call");
            return;
        };
        call.noticed = Some(len_bytes);
        let waker = call.waker.take();
        drop(calls);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Memory for a word that is read by this adapter; `None` if as many are being read as may be.
    pub(super) fn word(&self, adapter: usize) -> Option<Piece> {
        self.ears[adapter].words.alloc(WORD_BYTES).ok()
    }

    /// Gives a queue pair up: nothing lands over it any more. The calls that would come over it are told.
    pub(super) fn give_up(&self, rail: &Rail) {
        tracing::debug!(?rail, "a queue pair is given up");
        rail.close();
        self.close(|other| std::ptr::eq(other, rail));
    }

    /// Gives queue pairs up, and tells the calls that would come over them.
    fn close(&self, is_lost: impl Fn(&Rail) -> bool) {
        let mut wakers = Vec::new();
        let mut ended = Vec::new();
        for (_, call) in self.calls.borrow_mut().iter_mut() {
            if is_lost(&call.rail) {
                call.is_lost = true;
                wakers.extend(call.waker.take());
                ended.push(Rc::clone(&call.rail));
            }
        }
        ended.iter().for_each(|rail| rail.close());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Ear {
    fn open(adapter: &Rc<Adapter>) -> Result<Self, SetupError> {
        let receives = u32::try_from(CALLS_MAX + ASKED_MAX).expect("small");
        let messages = Messages::open(adapter, receives, SENDS_MAX)?;
        // In a chunk of its own, since a chunk is registered as a whole.
        let arena = Arena::new(ArenaOptions {
            bytes_max: CHUNK_BYTES_MIN,
            chunk_bytes: CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        });
        let region = arena.alloc(WORDS_MAX * GRANULE_BYTES as usize);
        let region = region.map_err(|_full| SetupError::Refused(Errno::NOMEM))?;
        let words = Slab::register(adapter.context(), region)?;
        Ok(Self {
            adapter: Rc::clone(adapter),
            messages,
            left: Rc::new(Cell::new(ASKED_MAX)),
            words,
            rails: RefCell::default(),
            answers: OnceCell::new(),
            is_deaf: Cell::new(false),
        })
    }

    async fn register_answers(&self, answers: &Exposed) -> Result<(), SetupError> {
        let access = Access {
            remote_write: true,
            ..Access::default()
        };
        let context = self.adapter.context();
        let window = ExposedWindow::register(context, answers.clone(), access).await?;
        drop(self.answers.set(window));
        Ok(())
    }
}

/// Takes in the notices and the answers of one adapter, for as long as it is polled.
pub(in crate::cluster_client) async fn hear(asking: Rc<Asking>, index: usize) {
    let ears = &asking.adapters.ears;
    let ear = &ears.ears[index];
    let name = ear.adapter.name();
    let answers = ears.answers.as_ref().expect("there are ears");
    if let Err(error) = ear.register_answers(answers).await {
        return tracing::warn!(%name, %error, "an adapter is not used");
    }
    loop {
        let take = |number: u32, heard: Arrived<'_>| ears.on_heard(index, number, heard);
        if let Err(error) = ear.messages.hear(take).await {
            tracing::warn!(%name, %error, "an adapter is not used any more");
            ear.is_deaf.set(true);
            let rails = ear.rails.take().into_values();
            rails.for_each(|rail| rail.upgrade().iter().for_each(|rail| rail.close()));
            return ears.close(|rail| rail.adapter == index);
        }
    }
}

/// A call whose bytes are to be written. While it is under way, something may land in its room; dropped then, it
/// gives its queue pair up.
pub(super) struct PushCall {
    asking: Rc<Asking>,
    key: usize,
    immediate: u32,
    rail: Rc<Rail>,
    get: PushedGet,
}

impl PushCall {
    /// Begins one that comes over this rail, and where its answer goes. `None` if too many are under way, or
    /// answers have no place yet.
    pub(super) fn begin(
        asking: &Rc<Asking>,
        rail: Rc<Rail>,
        windows: Vec<Window>,
    ) -> Option<(Self, PushPlace)> {
        let ears = &asking.adapters.ears;
        let ear = &ears.ears[rail.adapter];
        let answers = ear.answers.get().filter(|_| !ear.is_deaf.get())?;
        let mut calls = ears.calls.borrow_mut();
        if calls.len() >= CALLS_MAX {
            return None;
        }
        let turn = ears.last_turn.get().wrapping_add(1);
        ears.last_turn.set(turn);
        let entry = calls.vacant_entry();
        let key = entry.key();
        let immediate = u32::from(turn) << INDEX_BITS | u32::try_from(key).expect("bounded");
        entry.insert(Heard {
            immediate,
            rail: Rc::clone(&rail),
            noticed: None,
            is_lost: false,
            waker: None,
            _windows: windows,
        });
        rail.under_way.set(rail.under_way.get() + 1);
        let place = answers.remote().at((key * PUSHED_BYTES_MAX) as u64);
        let call = Self {
            asking: Rc::clone(asking),
            key,
            immediate,
            rail,
            get: PushedGet::asked(),
        };
        let answer = PushPlace {
            address: place.address,
            key: place.rkey,
            len_bytes: u32::try_from(PUSHED_BYTES_MAX).expect("small"),
        };
        Some((call, answer))
    }

    pub(super) const fn immediate(&self) -> u32 {
        self.immediate
    }

    /// What has happened to it beside its answer.
    pub(super) fn happened(&self) -> Option<PushEvent> {
        let calls = self.asking.adapters.ears.calls.borrow();
        happened(&calls[self.key])
    }

    /// Ends when something has.
    pub(super) fn told(&self) -> impl Future<Output = ()> + use<> {
        let (asking, key) = (Rc::clone(&self.asking), self.key);
        poll_fn(move |cx| {
            let mut calls = asking.adapters.ears.calls.borrow_mut();
            let call = &mut calls[key];
            if happened(call).is_some() {
                return Poll::Ready(());
            }
            call.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    /// What follows from an event. If its queue pair is to be given up for it, that has been done.
    pub(super) fn on(&mut self, event: PushEvent) -> PushStep {
        let step = self.get.on(time::now(), event);
        if step.is_fenced() {
            self.asking.adapters.ears.give_up(&self.rail);
        }
        step
    }

    /// The answer that came with the notice.
    pub(super) fn answer(&self) -> Option<Vec<u8>> {
        let ears = &self.asking.adapters.ears;
        let len = ears.calls.borrow()[self.key].noticed? as usize;
        let answers = ears.answers.as_ref()?;
        let place = answers.slice(self.key * PUSHED_BYTES_MAX, PUSHED_BYTES_MAX);
        (len <= PUSHED_BYTES_MAX).then(|| place.slice(0, len).to_vec())
    }
}

impl Drop for PushCall {
    fn drop(&mut self) {
        // Nothing follows of one that is over.
        let _step = self.on(PushEvent::GivenUp);
        let gone = self
            .asking
            .adapters
            .ears
            .calls
            .borrow_mut()
            .remove(self.key);
        let rail = &gone.rail;
        rail.under_way.set(rail.under_way.get() - 1);
    }
}

fn happened(call: &Heard) -> Option<PushEvent> {
    if call.noticed.is_some() {
        return Some(PushEvent::Noticed);
    }
    call.is_lost.then_some(PushEvent::QueuePairLost)
}
