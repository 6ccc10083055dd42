//! The asker's commands: what it has the peer copy, and what both copy through the window.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{Ordering, fence};
use std::task::Poll;

use lunette_runtime::arena::{Exposed, Words};
use lunette_runtime::{Signal, Source, SourceGuard, add_source, time};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::same_host::commands::{
    ASKER_SLEEPS, CARRIED_OUT, COMMAND_BYTES_MAX, Command, OWNER_SLEEPS, SUBMITTED, WINDOW,
    WINDOW_BYTES_MAX, WORDS, answer_at, answer_from_word, between, command_at,
};
use lunette_transfer_proto::engine::same_host::lane::{
    Lane, LaneId, LaneOptions, LaneRequest, Piece,
};
use lunette_transfer_proto::engine::scheduler::{Outcome, TransferId, TransfersFull};
use lunette_transfer_proto::engine::segment::{SegmentId, Way};

use super::super::Inner;
use super::super::batch::{Local, Span};
use super::super::peer::Shared;
use super::super::posted::Posted;
use super::super::registry::InUse;
use super::link::{Link, SWEEP};
use super::seat::rouse;
use crate::source::WriteSource;

/// Bytes that are copied out of the window before further pieces are handed out, and others get their
/// turn: so the owner fills some slots while others are emptied.
const TURN_BYTES: u64 = 256 * 1024;

/// Where a transfer is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Under {
    /// It is over, or copied by ourselves.
    #[default]
    Nothing,
    /// It waits for what has to be known of adapters.
    Preparing,
    /// On the rails.
    Rails(TransferId),
    /// With a peer of this host.
    Lane(LaneId),
}

/// How a request's bytes get to the owner, or from there.
#[derive(Clone, Copy, Debug)]
enum Passage {
    /// The owner copies them from a segment of ours, from this offset on.
    Lent(SegmentId, u64),
    /// Through the window.
    Window,
}

/// What the owner is to do of one transfer.
#[derive(Debug)]
struct Errand {
    posted: Rc<Posted>,
    /// For each request.
    passages: Vec<Passage>,
    _in_use: Vec<InUse>,
}

/// What one link has its owner do.
#[derive(Debug)]
pub(in crate::engine) struct Commanding {
    words: Words,
    options: LaneOptions,
    lane: RefCell<Lane>,
    under_way: RefCell<BTreeMap<LaneId, Errand>>,
    submitted: Cell<u64>,
    answered: Cell<u64>,
    /// Wakes the task that keeps times, when there is an earlier one than it sleeps for.
    keeper: Signal,
    sleeps_until: Cell<Time>,
    guard: RefCell<Option<SourceGuard>>,
}

impl Commanding {
    pub(super) fn new(commands: OwnedFd, engine: &Inner) -> io::Result<Self> {
        let scheduler = engine.options.scheduler;
        let options = LaneOptions {
            settle: scheduler.settle,
            transfers_max: scheduler.transfers_max,
            ..LaneOptions::default()
        };
        assert!(options.piece_bytes_max.max(options.slot_bytes) <= COMMAND_BYTES_MAX);
        assert!(options.window_bytes() <= WINDOW_BYTES_MAX);
        Ok(Self {
            words: Words::map(commands, WORDS).map_err(io::Error::other)?,
            options,
            lane: RefCell::new(Lane::new(options)),
            under_way: RefCell::default(),
            submitted: Cell::new(0),
            answered: Cell::new(0),
            keeper: Signal::default(),
            sleeps_until: Cell::new(Time::MAX),
            guard: RefCell::default(),
        })
    }

    /// Length of the window that it uses.
    pub(super) const fn window_bytes(&self) -> u64 {
        self.options.window_bytes()
    }

    /// Has the task that keeps times look whether anything is to be given up.
    pub(super) fn look(&self) {
        self.keeper.raise();
    }

    fn uses(&self, segment: SegmentId) -> bool {
        let under_way = self.under_way.borrow();
        let mut passages = under_way.values().flat_map(|errand| &errand.passages);
        passages.any(|passage| matches!(*passage, Passage::Lent(lent, _) if lent == segment))
    }

    /// Hands pieces to the owner, as many as it takes.
    fn hand_out(&self, link: &Link) {
        let mut lane = self.lane.borrow_mut();
        let under_way = self.under_way.borrow();
        let mut next = self.submitted.get();
        let first = next;
        while let Some(piece) = lane.next_piece() {
            let errand = &under_way[&piece.transfer];
            let span = errand.posted.batch.span(piece.request);
            if let Local::From(source) = local(span, &piece)
                && let Some(slot) = self.slot(link, &piece)
            {
                source.copy_to(&slot);
            }
            let command = self.command(errand, span, &piece);
            let words = &self.words[command_at(next)..];
            for (word, value) in words.iter().zip(command.to_words()) {
                word.store(value, Ordering::Relaxed);
            }
            next = next.wrapping_add(1);
            if piece.slot.is_some() {
                // The owner has something to do while the next slot is being filled.
                self.submit(next, link);
            }
        }
        if next != first {
            self.submit(next, link);
        }
    }

    /// Tells the owner of all commands up to this one.
    fn submit(&self, next: u64, link: &Link) {
        self.submitted.set(next);
        self.words[SUBMITTED].store(next, Ordering::Release);
        // The count before the look: who sleeps after the look has seen the count.
        fence(Ordering::SeqCst);
        rouse(&self.words[OWNER_SLEEPS], &link.channel);
    }

    fn command(&self, errand: &Errand, span: &Span, piece: &Piece) -> Command {
        let (theirs, at) = (span.segment, span.offset_bytes + piece.offset_bytes);
        let (ours, offset_bytes) = match (piece.slot, errand.passages[piece.request as usize]) {
            (Some(slot), _) => (WINDOW, self.slot_at(slot)),
            (None, Passage::Lent(segment, offset)) => (segment, offset + piece.offset_bytes),
            (None, Passage::Window) => unreachable!("what goes through the window has a slot"),
        };
        let (from, from_offset_bytes, to, to_offset_bytes) = match span.way() {
            Way::Read => (theirs, at, ours, offset_bytes),
            Way::Write => (ours, offset_bytes, theirs, at),
        };
        Command {
            from,
            from_offset_bytes,
            to,
            to_offset_bytes,
            len_bytes: piece.len_bytes,
        }
    }

    const fn slot_at(&self, slot: u32) -> u64 {
        slot as u64 * self.options.slot_bytes
    }

    /// The part of the window that is a piece's own, if one is.
    fn slot(&self, link: &Link, piece: &Piece) -> Option<Exposed> {
        let start = in_memory(self.slot_at(piece.slot?));
        let window = link.window().expect("what is accepted stays");
        Some(window.slice(start, in_memory(piece.len_bytes)))
    }

    /// Takes in answers, as many as a turn allows; `None` if there cannot be so many.
    fn take_answers(&self, link: &Link, shared: &Shared) -> Option<usize> {
        let carried_out = self.words[CARRIED_OUT].load(Ordering::Acquire);
        let mut lane = self.lane.borrow_mut();
        let first = self.answered.get();
        let count = between(first, carried_out).filter(|&count| count <= lane.with_owner())?;
        if count == 0 {
            return Some(0);
        }
        let now = time::now();
        let under_way = self.under_way.borrow();
        let (mut taken, mut copied_bytes) = (0, 0);
        while taken < count && copied_bytes < TURN_BYTES {
            let number = self.answered.get();
            let word = self.words[answer_at(number)].load(Ordering::Relaxed);
            let answer = answer_from_word(word);
            let piece = lane.on_answer(answer, now);
            if let (Ok(()), Some(errand)) = (answer, under_way.get(&piece.transfer)) {
                copied_bytes += self.arrived(link, shared, errand, &piece);
            }
            self.answered.set(number.wrapping_add(1));
            taken += 1;
        }
        Some(taken)
    }

    /// A piece has been carried out. What was read is put in its place; says how much that was.
    fn arrived(&self, link: &Link, shared: &Shared, errand: &Errand, piece: &Piece) -> u64 {
        let span = errand.posted.batch.span(piece.request);
        let intent = errand.posted.options.intent;
        let counts = &shared.engine.counts;
        counts.moved(span.way(), intent, piece.len_bytes);
        counts.moved_here(piece.len_bytes);
        let Some(slot) = self.slot(link, piece) else {
            return 0;
        };
        counts.moved_by_window(piece.len_bytes);
        match local(span, piece) {
            Local::Into(memory) => {
                memory.copy_from(0, &slot);
                piece.len_bytes
            }
            Local::From(_) => 0,
        }
    }

    fn next_finished(&self) -> Option<(Rc<Posted>, Outcome)> {
        let (id, outcome) = self.lane.borrow_mut().next_finished()?;
        let errand = self.under_way.borrow_mut().remove(&id);
        Some((errand.expect("what finishes was begun").posted, outcome))
    }
}

/// Where a piece's bytes lie here.
fn local(span: &Span, piece: &Piece) -> Local {
    let (start, len) = (in_memory(piece.offset_bytes), in_memory(piece.len_bytes));
    span.local().slice(start, len)
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("it lies in memory")
}

impl Shared {
    /// Polls the answers of a link's peer, and keeps its times.
    pub(in crate::engine) async fn keep_link(self: Rc<Self>, link: Rc<Link>) {
        let source = LinkSource {
            link: Rc::downgrade(&link),
            shared: Rc::downgrade(&self),
        };
        match add_source(source) {
            Ok(guard) => *link.commanding.guard.borrow_mut() = Some(guard),
            Err(_) => {
                tracing::warn!("the core polls too much to write to peers of this host");
                link.broken.raise();
            }
        }
        while link.is_alive() {
            let commanding = &link.commanding;
            let now = time::now();
            let sweep = link.holds_memory().then(|| now + SWEEP);
            let due = commanding.lane.borrow().poll_timeout();
            let next = [sweep, due]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(Time::MAX);
            commanding.sleeps_until.set(next);
            let mut sleep = (next < Time::MAX).then(|| time::sleep_until(next));
            poll_fn(|cx| {
                let is_called = commanding.keeper.poll(cx.waker()).is_ready();
                let is_due = match &mut sleep {
                    Some(sleep) => Pin::new(sleep).poll(cx).is_ready(),
                    None => false,
                };
                if is_called || is_due {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            commanding.lane.borrow_mut().on_timeout(time::now());
            link.sweep(&self.engine, |segment| commanding.uses(segment));
            self.pump_link(&link);
        }
    }

    /// Begins a transfer that the peer can carry out; `false` if it cannot.
    pub(in crate::engine) fn command_here(
        self: &Rc<Self>,
        link: &Rc<Link>,
        posted: &Rc<Posted>,
    ) -> Result<bool, TransfersFull> {
        let commanding = &link.commanding;
        if commanding.guard.borrow().is_none() {
            return Ok(false);
        }
        let spans = posted.batch.spans();
        let mut passages = Vec::with_capacity(spans.len());
        let mut in_use = Vec::new();
        for span in spans {
            let Some((passage, hold)) = self.passage(link, span) else {
                return Ok(false);
            };
            passages.push(passage);
            in_use.extend(hold);
        }
        let requests = spans.iter().zip(&passages);
        let requests = requests.map(|(span, passage)| LaneRequest {
            way: span.way(),
            len_bytes: span.len() as u64,
            by_window: matches!(passage, Passage::Window),
        });
        let mut lane = commanding.lane.borrow_mut();
        let id = lane.submit(requests, posted.asked(), posted.began)?;
        drop(lane);
        let errand = Errand {
            posted: Rc::clone(posted),
            passages,
            _in_use: in_use,
        };
        commanding.under_way.borrow_mut().insert(id, errand);
        posted.under.set(Under::Lane(id));
        self.pump_link(link);
        let next = commanding.lane.borrow().poll_timeout();
        if next.is_some_and(|next| next < commanding.sleeps_until.get()) {
            commanding.keeper.raise();
        }
        Ok(true)
    }

    /// How a request's bytes can go, if they can, and the hold on them that it takes.
    fn passage(&self, link: &Link, span: &Span) -> Option<(Passage, Option<InUse>)> {
        // Regions are not registered, so they cannot be lent.
        if let Local::From(WriteSource::Exposed(memory)) = span.local()
            && let Some((passage, hold)) = self.lend(link, memory)
        {
            return Some((passage, Some(hold)));
        }
        link.window().map(|_| (Passage::Window, None))
    }

    /// Memory that the peer may copy from, and a hold on it. What could be lent and is not yet is offered.
    fn lend(&self, link: &Link, memory: &Exposed) -> Option<(Passage, InUse)> {
        let registry = self.engine.registry.borrow();
        let (segment, offset) = registry.lendable(memory, link.is_read())?;
        let len_bytes = memory.len() as u64;
        let reached = registry.reach(segment, Way::Read, offset, len_bytes, |_, _| Ok(()));
        drop(registry);
        let (_, hold) = reached.ok()?;
        link.is_lent(&self.engine, segment)
            .then_some((Passage::Lent(segment, offset), hold))
    }

    pub(in crate::engine) fn cancel_here(self: &Rc<Self>, id: LaneId) {
        let link = self.same_host.borrow().clone();
        if let Some(link) = link {
            let commanding = &link.commanding;
            commanding.lane.borrow_mut().cancel(id, time::now());
            commanding.keeper.raise();
            self.pump_link(&link);
        }
    }

    /// What was under way on a link that has ended goes over the rails.
    pub(super) fn reroute(self: &Rc<Self>, link: &Rc<Link>) {
        let commanding = &link.commanding;
        let guard = commanding.guard.take();
        drop(guard);
        let left = commanding.lane.borrow_mut().on_lost(time::now());
        self.pump_link(link);
        for id in left {
            let errand = commanding.under_way.borrow_mut().remove(&id);
            let posted = errand.expect("it was under way").posted;
            posted.is_touched.set(true);
            self.to_rails(&posted);
        }
        commanding.keeper.raise();
    }

    /// Hands out what can be, and ends what is over.
    fn pump_link(self: &Rc<Self>, link: &Rc<Link>) {
        let commanding = &link.commanding;
        if link.is_alive() {
            commanding.hand_out(link);
        }
        while let Some((posted, outcome)) = commanding.next_finished() {
            self.copied(&posted, outcome);
        }
    }
}

struct LinkSource {
    link: Weak<Link>,
    shared: Weak<Shared>,
}

impl Source for LinkSource {
    fn poll(&mut self, _budget: usize) -> usize {
        let (Some(link), Some(shared)) = (self.link.upgrade(), self.shared.upgrade()) else {
            return 0;
        };
        match link.commanding.take_answers(&link, &shared) {
            Some(0) => 0,
            Some(count) => {
                shared.pump_link(&link);
                count
            }
            None => {
                link.broken.raise();
                0
            }
        }
    }

    fn try_park(&mut self) -> bool {
        let Some(link) = self.link.upgrade() else {
            return true;
        };
        let commanding = &link.commanding;
        commanding.words[ASKER_SLEEPS].store(1, Ordering::Relaxed);
        // That we may sleep before the look: who answers after the look sees that we may.
        fence(Ordering::SeqCst);
        let is_quiet =
            commanding.words[CARRIED_OUT].load(Ordering::Acquire) == commanding.answered.get();
        if !is_quiet {
            self.unpark();
        }
        is_quiet
    }

    fn unpark(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.commanding.words[ASKER_SLEEPS].store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
