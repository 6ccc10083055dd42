//! The asker's end of a channel: what it maps of the peer, and what it lends to it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::{Exposed, View};
use lunette_runtime::net::LocalChannel;
use lunette_runtime::{Signal, boot_id, time};
use lunette_transfer_proto::engine::message::{Introduction, Operation, Whereabouts};
use lunette_transfer_proto::engine::same_host::commands::WINDOW;
use lunette_transfer_proto::engine::same_host::packet::Packet;
use lunette_transfer_proto::engine::segment::{SegmentId, Way};

use super::super::Inner;
use super::super::devices::DevicePart;
use super::super::peer::Shared;
use super::super::registry::Shown;
use super::board::BoardView;
use super::commanding::Commanding;
use super::handles::{Handles, Used};
use super::owner::meeting_point;
use super::trust::{Sight, Trust};
use super::{draw, nonsense, understand};
use crate::client::{Attachments, Connection};
use crate::server::select;

/// How often what is not needed any more is looked for.
pub(super) const SWEEP: Duration = Duration::from_secs(1);

/// Memory of ours that the peer may copy from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loan {
    /// It has not said yet whether it takes it.
    Offered,
    Accepted,
    /// It does not, and is not asked again.
    Declined,
}

/// A peer on this host.
#[derive(Debug)]
pub(in crate::engine) struct Link {
    pub(super) channel: LocalChannel,
    board: BoardView,
    /// Memory that both write, for what cannot be mapped or lent.
    window: Option<Exposed>,
    is_window_accepted: Cell<bool>,
    /// The peer's process, if it can be read, and what we were tried out by.
    trust: Option<Trust>,
    /// How many segments of the peer are mapped, and how many of ours are lent to it.
    segments_max: usize,
    sights: RefCell<BTreeMap<SegmentId, Sight>>,
    /// Segments that were asked for, and who waits for them.
    asked: RefCell<BTreeMap<SegmentId, Vec<Rc<Signal>>>>,
    loans: RefCell<BTreeMap<SegmentId, Loan>>,
    /// Memory of the peer's devices.
    handles: Handles,
    is_alive: Cell<bool>,
    /// Raised when the peer does not keep to the rules.
    pub(super) broken: Signal,
    pub(super) commanding: Commanding,
}

/// Somebody who waits until a segment is mapped or refused.
struct Asked<'a> {
    link: &'a Link,
    segment: SegmentId,
    signal: Rc<Signal>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.link.asked.borrow_mut().get_mut(&self.segment) {
            waiting.retain(|signal| !Rc::ptr_eq(signal, &self.signal));
        }
    }
}

/// Why a piece was not read from a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum ReadFault {
    /// There is no view of it, or none any more: it can be had over the rails.
    NotMapped,
    /// It was unregistered. Some of it may have been copied.
    Hidden,
}

impl Link {
    /// Joins a peer over a connection to it, if it is on this host and shares memory.
    pub(in crate::engine) async fn join(engine: &Inner, connection: &Connection) -> Option<Self> {
        let boot_id = boot_id().filter(|_| engine.options.same_host)?;
        let proof = draw();
        let introduction = Introduction { boot_id, proof };
        let asked = connection.call(
            Operation::Introduce.to_wire(),
            |out| introduction.encode(out),
            Attachments::default(),
            engine.options.connect_timeout,
        );
        let reply = asked.await.ok().filter(|reply| reply.status == 0)?;
        let whereabouts = Whereabouts::decode(&reply.body).ok()?;
        let patience = engine.options.connect_timeout;
        let entered = time::timeout(patience, Self::enter(engine, whereabouts, proof)).await;
        let entered = entered.map_err(|_| io::ErrorKind::TimedOut.into());
        entered
            .and_then(|entered| entered)
            .inspect_err(|error| tracing::debug!(%error, "a peer of this host is not joined"))
            .ok()
    }

    async fn enter(engine: &Inner, whereabouts: Whereabouts, proof: u128) -> io::Result<Self> {
        let channel = find(engine.options.same_host_dir.as_deref(), whereabouts.name)?;
        let ticket = whereabouts.ticket;
        channel.send(&Packet::Join { ticket }.encode(), &[])?;
        let received = channel.recv().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (packet, files) = understand(received).ok_or_else(nonsense)?;
        if packet != (Packet::Welcome { proof }) {
            return Err(nonsense());
        }
        let [board, commands] = <[OwnedFd; 2]>::try_from(files).map_err(|_| nonsense())?;
        let board = BoardView::map(board).map_err(io::Error::other)?;
        let commanding = Commanding::new(commands, engine)?;
        let trust = if engine.options.same_host_trust {
            Some(Trust::agree(&channel).await?)
        } else {
            None
        };
        let window = offer_window(&channel, commanding.window_bytes());
        let window = window
            .inspect_err(|error| tracing::warn!(%error, "no window to a peer of this host"))
            .ok();
        Ok(Self {
            channel,
            board,
            window,
            is_window_accepted: Cell::new(false),
            trust,
            segments_max: engine.options.same_host_segments_max,
            sights: RefCell::default(),
            asked: RefCell::default(),
            loans: RefCell::default(),
            handles: Handles::default(),
            is_alive: Cell::new(true),
            broken: Signal::default(),
            commanding,
        })
    }

    /// Whether the channel lasts.
    pub(in crate::engine) fn is_alive(&self) -> bool {
        self.is_alive.get()
    }

    /// Tries to map a segment; if it cannot be, it is read over the rails.
    pub(in crate::engine) async fn map(&self, segment: SegmentId, patience: Duration) {
        let is_known = self.sights.borrow().contains_key(&segment) || self.handles.has(segment);
        if !self.is_alive() || is_known {
            return;
        }
        let Some(asked) = self.wait_for(segment) else {
            return;
        };
        if time::timeout(patience, asked.signal.raised())
            .await
            .is_err()
        {
            tracing::debug!(%segment, "a peer of this host does not answer");
        }
    }

    /// Asks for a segment, unless that has been done, and waits for the answer; `None` if there is no room for
    /// it, or if it cannot be asked for. What was asked stays so until the answer comes or the channel ends,
    /// whoever waits for it: an answer to no question ends the channel.
    fn wait_for(&self, segment: SegmentId) -> Option<Asked<'_>> {
        let is_first = !self.asked.borrow().contains_key(&segment);
        if is_first {
            let open = self.asked.borrow().len();
            let known = self.sights.borrow().len() + self.handles.len();
            let is_full = known + open >= self.segments_max;
            if is_full || self.say(&Packet::Map { segment }, &[]).is_err() {
                return None;
            }
        }
        let signal = Rc::new(Signal::default());
        let mut asked = self.asked.borrow_mut();
        let waiting = asked.entry(segment).or_default();
        waiting.push(Rc::clone(&signal));
        drop(asked);
        Some(Asked {
            link: self,
            segment,
            signal,
        })
    }

    /// Whether all of a range can be read here.
    pub(in crate::engine) fn reaches(&self, segment: SegmentId, offset: u64, len: usize) -> bool {
        let sights = self.sights.borrow();
        let sight = sights.get(&segment);
        let end = offset.checked_add(len as u64);
        sight.is_some_and(|sight| end.is_some_and(|end| end <= sight.len_bytes()))
    }

    /// Copies from a segment of the peer over all of `to`.
    pub(in crate::engine) fn read(
        &self,
        segment: SegmentId,
        offset_bytes: u64,
        to: &Exposed,
    ) -> Result<(), ReadFault> {
        if !self.reaches(segment, offset_bytes, to.len()) {
            return Err(ReadFault::NotMapped);
        }
        if !self.board.shows(segment) {
            return Err(ReadFault::NotMapped);
        }
        let copied = self.sights.borrow()[&segment].copy_out(offset_bytes, to);
        if !self.board.shows(segment) {
            return Err(ReadFault::Hidden);
        }
        copied.map_err(|error| {
            // It shows what it does not have, or has ended.
            tracing::debug!(%error, "a peer's process");
            self.broken.raise();
            ReadFault::NotMapped
        })
    }

    /// Whether the peer's process is read here, so that it hands out memory of its devices.
    pub(in crate::engine) fn reads_peer(&self) -> bool {
        self.trust
            .as_ref()
            .is_some_and(|trust| trust.process.is_some())
    }

    /// Memory of a device of the peer, as the device of `near` reaches it; `None` if it does not, or may not.
    pub(in crate::engine) fn device(
        self: &Rc<Self>,
        segment: SegmentId,
        way: Way,
        offset_bytes: u64,
        near: &DevicePart,
    ) -> Option<(DevicePart, Used)> {
        if !self.is_alive() || !self.board.shows(segment) {
            return None;
        }
        let (part, open) = self.handles.reach(segment, way, offset_bytes, near)?;
        Some((part, Used::new(open, self, segment)))
    }

    /// Whether a segment of a device is still what it was when it was reached.
    pub(in crate::engine) fn still_shows(&self, segment: SegmentId) -> bool {
        self.is_alive() && self.board.shows(segment)
    }

    /// Whether the peer has read this process, and may be told addresses.
    pub(super) fn is_read(&self) -> bool {
        self.trust.as_ref().is_some_and(|trust| trust.is_read)
    }

    /// Whether the peer may copy from a segment of ours. If it was not asked yet, it is asked now.
    pub(super) fn is_lent(&self, engine: &Inner, segment: SegmentId) -> bool {
        let mut loans = self.loans.borrow_mut();
        if let Some(&loan) = loans.get(&segment) {
            return loan == Loan::Accepted;
        }
        if loans.len() >= self.segments_max {
            return false;
        }
        let Ok(shown) = engine.registry.borrow().lend(segment, self.is_read()) else {
            return false;
        };
        let said = match shown {
            Shown::File(share) => {
                let offer = Packet::Memory {
                    segment,
                    offset_bytes: share.offset_bytes,
                    len_bytes: share.len_bytes,
                };
                self.say(&offer, &[share.memfd])
            }
            Shown::At { address, len_bytes } => {
                let offer = Packet::At {
                    segment,
                    address,
                    len_bytes,
                };
                self.say(&offer, &[])
            }
        };
        if said.is_ok() {
            loans.insert(segment, Loan::Offered);
        }
        false
    }

    /// The window, if the peer has taken it.
    pub(super) fn window(&self) -> Option<&Exposed> {
        self.window
            .as_ref()
            .filter(|_| self.is_window_accepted.get())
    }

    /// Takes in what the peer says until the channel ends.
    pub(in crate::engine) async fn listen(&self) {
        loop {
            let broken = std::future::poll_fn(|cx| self.broken.poll(cx.waker()));
            let received = select(self.channel.recv(), broken).await;
            let understood = match received.unwrap_or_else(|| Err(nonsense())) {
                Ok(Some(received)) => understand(received).ok_or_else(nonsense),
                Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error),
            };
            let taken = understood.and_then(|(packet, files)| self.take(packet, files));
            if let Err(error) = taken {
                tracing::debug!(%error, "the channel to a peer of this host ends");
                return;
            }
        }
    }

    /// The channel has ended, or is to. Nothing is mapped any more.
    pub(in crate::engine) fn end(&self) {
        self.broken.raise();
        self.is_alive.set(false);
        self.sights.borrow_mut().clear();
        self.loans.borrow_mut().clear();
        self.handles.clear();
        for (_, waiting) in self.asked.take() {
            waiting.iter().for_each(|signal| signal.raise());
        }
    }

    /// Gives up what is of no use any more: views of what was unregistered there, and loans of what was
    /// unregistered here. `is_used` says of which something is still to be copied.
    pub(super) fn sweep(&self, engine: &Inner, is_used: impl Fn(SegmentId) -> bool) {
        let mut sights = self.sights.borrow_mut();
        sights.retain(|&segment, _| self.board.shows(segment));
        for segment in self.handles.closed(|segment| self.board.shows(segment)) {
            if self.say(&Packet::Closed { segment }, &[]).is_err() {
                // The owner, who waits, ends the channel.
                self.broken.raise();
            }
        }
        let registry = engine.registry.borrow();
        self.loans.borrow_mut().retain(|&segment, _| {
            let stays = registry.has(segment) || is_used(segment);
            if !stays && self.say(&Packet::TakeBack { segment }, &[]).is_err() {
                // The channel is full or has ended; the next sweep tries again.
                return true;
            }
            stays
        });
    }

    /// Whether there is anything to sweep.
    pub(super) fn holds_memory(&self) -> bool {
        !self.sights.borrow().is_empty()
            || !self.loans.borrow().is_empty()
            || self.handles.len() > 0
    }

    fn say(&self, packet: &Packet, files: &[OwnedFd]) -> io::Result<()> {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let said = self.channel.send(&packet.encode(), &files);
        said.inspect_err(|error| tracing::debug!(%error, ?packet, "a peer of this host"))
    }

    fn take(&self, packet: Packet, mut files: Vec<OwnedFd>) -> io::Result<()> {
        match packet {
            Packet::Memory {
                segment,
                offset_bytes,
                len_bytes,
            } => {
                let file = files.pop().expect("it came with its file");
                let view = View::map(file, offset_bytes, len_bytes);
                let view = view
                    .inspect_err(|error| tracing::warn!(%error, %segment, "memory is not mapped"));
                self.shown(segment, view.ok().map(Sight::Mapped))?;
            }
            Packet::At {
                segment,
                address,
                len_bytes,
            } => {
                let process = self.trust.as_ref().and_then(|trust| trust.process.as_ref());
                let process = process.ok_or_else(nonsense)?;
                self.shown(segment, Sight::at(process, address, len_bytes))?;
            }
            Packet::Handle {
                segment,
                access,
                handle,
            } => {
                if !self.reads_peer() {
                    return Err(nonsense());
                }
                self.shown(segment, None)?;
                self.handles.add(segment, access, &handle);
            }
            Packet::Refused { segment } => self.shown(segment, None)?,
            Packet::Accepted { segment: WINDOW } => {
                let is_first = !self.is_window_accepted.replace(true);
                if self.window.is_none() || !is_first {
                    return Err(nonsense());
                }
            }
            Packet::Declined { segment: WINDOW } => {
                tracing::debug!("a peer of this host takes no window");
            }
            Packet::Accepted { segment } => self.answered(segment, Loan::Accepted)?,
            Packet::Declined { segment } => self.answered(segment, Loan::Declined)?,
            // What was unregistered is to be closed.
            Packet::Wake if self.handles.len() > 0 => self.commanding.look(),
            Packet::Wake => {}
            Packet::Closed { .. }
            | Packet::Join { .. }
            | Packet::Welcome { .. }
            | Packet::Map { .. }
            | Packet::TakeBack { .. }
            | Packet::Trust { .. }
            | Packet::Trusted
            | Packet::Window { .. } => return Err(nonsense()),
        }
        Ok(())
    }

    /// A segment that was asked for can be read, or not.
    fn shown(&self, segment: SegmentId, sight: Option<Sight>) -> io::Result<()> {
        let waiting = self.asked.borrow_mut().remove(&segment);
        let waiting = waiting.ok_or_else(nonsense)?;
        if let Some(sight) = sight {
            self.sights.borrow_mut().insert(segment, sight);
        }
        waiting.iter().for_each(|signal| signal.raise());
        Ok(())
    }

    fn answered(&self, segment: SegmentId, answer: Loan) -> io::Result<()> {
        let mut loans = self.loans.borrow_mut();
        match loans.get_mut(&segment) {
            Some(loan) if *loan == Loan::Offered => {
                *loan = answer;
                Ok(())
            }
            // Taken back in the meantime.
            None => Ok(()),
            Some(_) => Err(nonsense()),
        }
    }
}

/// Connects to an owner: in the folder where peers meet, if there is one, else by its name alone, which is
/// known in its network namespace.
fn find(folder: Option<&Path>, name: u128) -> io::Result<LocalChannel> {
    if let Some(folder) = folder {
        match LocalChannel::connect_at(&meeting_point(folder, name)) {
            Err(error) => tracing::debug!(%error, "not met in the folder"),
            found => return found,
        }
    }
    LocalChannel::connect(&name.to_le_bytes())
}

/// Makes a window and offers it.
fn offer_window(channel: &LocalChannel, len_bytes: u64) -> io::Result<Exposed> {
    let len = usize::try_from(len_bytes).expect("a window lies in memory");
    let (window, file) = Exposed::shared(len)?;
    channel.send(&Packet::Window { len_bytes }.encode(), &[file.as_fd()])?;
    Ok(window)
}

impl Shared {
    /// Keeps up a link until its channel ends; then what was under way on it goes over the rails.
    pub(in crate::engine) async fn attend(self: Rc<Self>, link: Rc<Link>) {
        link.listen().await;
        link.end();
        self.same_host.replace(None);
        self.reroute(&link);
    }
}
