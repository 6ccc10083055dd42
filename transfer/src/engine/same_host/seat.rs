//! The owner's end of one channel: what was lent by its peer, the window, and the peer's commands.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use lunette_runtime::arena::{Exposed, ProcessMemory, Words};
use lunette_runtime::net::{LocalChannel, Packet as Received};
use lunette_runtime::{Signal, Source, SourceGuard, add_source, spawn_local, time};
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::same_host::commands::{
    ASKER_SLEEPS, CARRIED_OUT, COMMAND_BYTES_MAX, COMMAND_WORDS, COMMANDS_MAX, Command,
    OWNER_SLEEPS, SUBMITTED, WINDOW, WORDS, answer_at, answer_to_word, between, command_at,
};
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::engine::segment::{SegmentId, Way};

use super::super::Inner;
use super::super::registry::InUse;
use super::nonsense;
use super::trust::{self, Proof, Sight};
use crate::server::select;

/// Bytes that are copied for one peer before the others get their turn.
const TURN_BYTES: u64 = 1024 * 1024;

/// Everybody who has a seat, polled by the core as one source.
#[derive(Debug, Default)]
pub(super) struct Seats {
    taken: RefCell<Vec<Rc<Seat>>>,
    /// While anybody has one.
    guard: RefCell<Option<SourceGuard>>,
}

#[derive(Debug)]
pub(super) struct Seat {
    inner: Weak<Inner>,
    channel: Rc<LocalChannel>,
    words: Words,
    carried_out: Cell<u64>,
    lent: RefCell<BTreeMap<SegmentId, Sight>>,
    /// What its peer is tried out by, and its peer, if that could be read.
    trust: OnceCell<(Proof, Option<Rc<ProcessMemory>>)>,
    /// Whether its peer has read this process, and may be told addresses.
    is_trusted: Cell<bool>,
    window: OnceCell<Exposed>,
    /// Memory of devices that its peer has opened, and holds on it.
    handed: RefCell<BTreeMap<SegmentId, InUse>>,
    /// How long what its peer has begun may take, after its end.
    settle: Duration,
    /// Raised when its peer does not keep to the rules.
    broken: Signal,
    is_broken: Cell<bool>,
}

/// A seat while its channel lasts. Commands that come later are not carried out.
#[derive(Debug)]
pub(super) struct Seated {
    seats: Rc<Seats>,
    seat: Rc<Seat>,
}

impl Seats {
    pub(super) fn take(
        seats: &Rc<Self>,
        inner: &Rc<Inner>,
        channel: &Rc<LocalChannel>,
    ) -> io::Result<Seated> {
        let seat = Rc::new(Seat {
            inner: Rc::downgrade(inner),
            channel: Rc::clone(channel),
            words: Words::new(WORDS, false)?,
            carried_out: Cell::new(0),
            lent: RefCell::default(),
            window: OnceCell::new(),
            handed: RefCell::default(),
            settle: inner.options.scheduler.settle,
            trust: OnceCell::new(),
            is_trusted: Cell::new(false),
            broken: Signal::default(),
            is_broken: Cell::new(false),
        });
        let mut guard = seats.guard.borrow_mut();
        if guard.is_none() {
            let source = SeatSource(Rc::downgrade(seats));
            *guard = Some(add_source(source).map_err(|_| io::ErrorKind::QuotaExceeded)?);
        }
        seats.taken.borrow_mut().push(Rc::clone(&seat));
        Ok(Seated {
            seats: Rc::clone(seats),
            seat,
        })
    }
}

impl Seats {
    /// Has those who have opened a segment look at the board, by which they close it.
    pub(super) fn recall(&self, segment: SegmentId, patience: Duration) {
        for seat in self.taken.borrow().iter() {
            if !seat.handed.borrow().contains_key(&segment) {
                continue;
            }
            if let Err(error) = seat.channel.send(&Packet::Wake.encode(), &[]) {
                tracing::trace!(%error, "it looks by itself after a while");
            }
            let seat = Rc::downgrade(seat);
            drop(spawn_local(async move {
                time::sleep(patience).await;
                if let Some(seat) = seat.upgrade()
                    && seat.handed.borrow().contains_key(&segment)
                {
                    tracing::debug!(%segment, "a peer of this host does not close what it has opened");
                    seat.give_up();
                }
            }));
        }
    }
}

impl Seated {
    /// The file of its commands.
    pub(super) fn commands(&self) -> BorrowedFd<'_> {
        self.seat.words.as_fd()
    }

    /// The next packet, unless its peer breaks the rules meanwhile.
    pub(super) async fn recv(&self, channel: &LocalChannel) -> io::Result<Option<Received>> {
        let broken = poll_fn(|cx| self.seat.broken.poll(cx.waker()));
        let received = select(channel.recv(), broken).await;
        received.unwrap_or_else(|| Err(nonsense()))
    }

    /// Keeps what is lent. False if that is too much.
    pub(super) fn borrow(&self, segment: SegmentId, sight: Sight, lent_max: usize) -> bool {
        let mut lent = self.seat.lent.borrow_mut();
        if lent.len() >= lent_max {
            return false;
        }
        lent.insert(segment, sight);
        true
    }

    /// Tries whether the peer's process can be read, and says so; `None` if that was tried before.
    pub(super) fn try_out(&self, address: u64, value: u128) -> Option<Packet> {
        let process = trust::try_out(&self.seat.channel, address, value).map(Rc::new);
        let proof = Proof::new();
        let answer = proof.packet(process.is_some());
        self.seat.trust.set((proof, process)).ok()?;
        Some(answer)
    }

    /// The peer has read this process.
    pub(super) fn trust(&self) {
        self.seat.is_trusted.set(true);
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.seat.is_trusted.get()
    }

    /// Memory of the peer's process, if that can be read.
    pub(super) fn sight(&self, address: u64, len_bytes: u64) -> Option<Sight> {
        let (_, process) = self.seat.trust.get()?;
        Sight::at(process.as_ref()?, address, len_bytes)
    }

    /// Keeps the window. False if there is one.
    pub(super) fn open_window(&self, window: Exposed) -> bool {
        self.seat.window.set(window).is_ok()
    }

    /// Whether its peer may open one more segment.
    pub(super) fn has_room(&self, handed_max: usize) -> bool {
        self.seat.handed.borrow().len() < handed_max
    }

    /// Its peer opens a segment.
    pub(super) fn hand(&self, segment: SegmentId, in_use: InUse) {
        self.seat.handed.borrow_mut().insert(segment, in_use);
    }

    /// Its peer has closed a segment.
    pub(super) fn closed(&self, segment: SegmentId) {
        let handed = self.seat.handed.borrow_mut().remove(&segment);
        drop(handed);
    }

    pub(super) fn give_back(&self, segment: SegmentId) {
        self.seat.lent.borrow_mut().remove(&segment);
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let handed = self.seat.handed.take();
        if !handed.is_empty() {
            // Its device may still have to do with what was not closed.
            let settle = self.seat.settle;
            drop(spawn_local(async move {
                time::sleep(settle).await;
                drop(handed);
            }));
        }
        let mut taken = self.seats.taken.borrow_mut();
        taken.retain(|seat| !Rc::ptr_eq(seat, &self.seat));
        if taken.is_empty() {
            drop(taken);
            let guard = self.seats.guard.take();
            drop(guard);
        }
    }
}

impl Seat {
    /// Carries out what has been submitted, up to its turn's bound.
    fn poll(&self, budget: usize) -> usize {
        let submitted = self.words[SUBMITTED].load(Ordering::Acquire);
        let first = self.carried_out.get();
        let Some(count) = between(first, submitted) else {
            self.give_up();
            return 0;
        };
        let Some(inner) = self.inner.upgrade() else {
            return 0;
        };
        let (mut done, mut bytes) = (0, 0);
        while done < count.min(budget) && bytes < TURN_BYTES {
            let number = self.carried_out.get();
            let command = self.command(number);
            let answer = self.carry_out(&inner, &command);
            if self.is_broken.get() {
                // Not answered: its peer has it go another way when the channel ends.
                break;
            }
            match answer {
                Ok(way) => {
                    inner.counts.served(way, command.len_bytes);
                    bytes += command.len_bytes;
                }
                Err(_) => inner.counts.refused(),
            }
            self.words[answer_at(number)]
                .store(answer_to_word(answer.map(|_| ())), Ordering::Relaxed);
            self.carried_out.set(number.wrapping_add(1));
            self.words[CARRIED_OUT].store(number.wrapping_add(1), Ordering::Release);
            done += 1;
        }
        if done > 0 {
            // The count before the look: who sleeps after the look has seen the count.
            fence(Ordering::SeqCst);
            rouse(&self.words[ASKER_SLEEPS], &self.channel);
        }
        done
    }

    /// The channel is to end.
    fn give_up(&self) {
        if !self.is_broken.replace(true) {
            self.broken.raise();
        }
    }

    /// The words of a command, each read once.
    fn command(&self, number: u64) -> Command {
        let first = command_at(number);
        let mut words = [0; COMMAND_WORDS];
        for (word, shared) in words.iter_mut().zip(&self.words[first..]) {
            *word = shared.load(Ordering::Relaxed);
        }
        Command::from_words(words)
    }

    /// Copies as it is told; says which way that was for its peer.
    fn carry_out(&self, inner: &Inner, command: &Command) -> Result<Way, Refusal> {
        let len_bytes = command.len_bytes;
        if !(1..=COMMAND_BYTES_MAX).contains(&len_bytes) {
            return Err(Refusal::Malformed);
        }
        if command.to == WINDOW {
            let to = self.in_window(command.to_offset_bytes, len_bytes)?;
            let at = command.from_offset_bytes;
            let (from, _in_use) = reach(inner, command.from, Way::Read, at, len_bytes)?;
            to.copy_from(0, &from);
            return Ok(Way::Read);
        }
        let at = command.to_offset_bytes;
        let (to, _in_use) = reach(inner, command.to, Way::Write, at, len_bytes)?;
        if command.from == WINDOW {
            let from = self.in_window(command.from_offset_bytes, len_bytes)?;
            to.copy_from(0, &from);
            return Ok(Way::Write);
        }
        let lent = self.lent.borrow();
        let from = lent.get(&command.from).ok_or(Refusal::Stale)?;
        check_range(command.from_offset_bytes, len_bytes, from.len_bytes())?;
        let copied = from.copy_out(command.from_offset_bytes, &to);
        copied.map(|()| Way::Write).map_err(|error| {
            // It lends what it does not have, or has ended. Another way may do.
            tracing::debug!(%error, "a peer's process");
            self.give_up();
            Refusal::Elsewhere
        })
    }

    fn in_window(&self, offset_bytes: u64, len_bytes: u64) -> Result<Exposed, Refusal> {
        let window = self.window.get().ok_or(Refusal::Stale)?;
        check_range(offset_bytes, len_bytes, window.len() as u64)?;
        let start = usize::try_from(offset_bytes).expect("it lies in the window");
        let len = usize::try_from(len_bytes).expect("it lies in the window");
        Ok(window.slice(start, len))
    }

    fn has_work(&self) -> bool {
        self.words[SUBMITTED].load(Ordering::Acquire) != self.carried_out.get()
            && !self.is_broken.get()
    }
}

/// Memory of ours. Who commands is not known by the session that has redeemed, so what is reached by
/// capability is not reached here.
fn reach(
    inner: &Inner,
    segment: SegmentId,
    way: Way,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<(Exposed, InUse), Refusal> {
    let registry = inner.registry.borrow();
    let unknown = |_: &_, _| Err(Refusal::NoCapability);
    registry.reach_memory(segment, way, offset_bytes, len_bytes, unknown)
}

/// Whether a range lies in memory of `held_bytes`.
fn check_range(offset_bytes: u64, len_bytes: u64, held_bytes: u64) -> Result<(), Refusal> {
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= held_bytes => Ok(()),
        _ => Err(Refusal::OutOfRange),
    }
}

/// Wakes the other side if it may sleep, once for each time that it says so.
pub(super) fn rouse(sleeps: &std::sync::atomic::AtomicU64, channel: &LocalChannel) {
    if sleeps.load(Ordering::Relaxed) != 0
        && sleeps.swap(0, Ordering::SeqCst) != 0
        && let Err(error) = channel.send(&Packet::Wake.encode(), &[])
    {
        // Full of wake-ups that were not read yet, or its other end is gone: both are news there.
        tracing::trace!(%error, "a wake-up");
    }
}

struct SeatSource(Weak<Seats>);

impl Source for SeatSource {
    fn poll(&mut self, budget: usize) -> usize {
        let Some(seats) = self.0.upgrade() else {
            return 0;
        };
        let budget = budget.min(COMMANDS_MAX);
        seats
            .taken
            .borrow()
            .iter()
            .map(|seat| seat.poll(budget))
            .sum()
    }

    fn try_park(&mut self) -> bool {
        let Some(seats) = self.0.upgrade() else {
            return true;
        };
        let taken = seats.taken.borrow();
        for seat in taken.iter() {
            seat.words[OWNER_SLEEPS].store(1, Ordering::Relaxed);
        }
        // That we may sleep before the look: who submits after the look sees that we may.
        fence(Ordering::SeqCst);
        let has_work = taken.iter().any(|seat| seat.has_work());
        drop(taken);
        if has_work {
            self.unpark();
        }
        !has_work
    }

    fn unpark(&mut self) {
        if let Some(seats) = self.0.upgrade() {
            for seat in seats.taken.borrow().iter() {
                seat.words[OWNER_SLEEPS].store(0, Ordering::Relaxed);
            }
        }
    }
}
