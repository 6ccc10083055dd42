//! The memory of one owner on this host, mapped for reading.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_kvstore_proto::message::directory::{Descriptor, MeetReply};
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_runtime::arena::{View, WordsView};
use lunette_runtime::net::LocalChannel;
use lunette_runtime::time;
use lunette_runtime_core::checksum::joined_crc32c;
use lunette_runtime_core::limits::CHUNK_BYTES_MAX;
use lunette_transfer::Room;
use lunette_transfer_proto::engine::same_host::packet::Packet;
use thiserror::Error;

use crate::member::segment_of;

/// How long the owner is waited for on the local channel.
const PATIENCE: Duration = Duration::from_secs(1);
/// Chunks of one owner that are mapped: as many as make the largest memory that one core of a node has.
const CHUNKS_MAX: usize = 4096;
/// Bytes that are copied before others on this core have their turn.
const TURN_BYTES: usize = 1024 * 1024;

/// Why an object was not copied.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum ReadFault {
    /// It does not fit.
    #[error("the room is too small")]
    RoomTooSmall,
    /// Its memory is not mapped.
    #[error("the owner's memory cannot be mapped")]
    NotMapped,
    /// What was described is no part of the memory that is mapped, or not what was asked for.
    #[error("the owner describes what it does not have")]
    BadDescriptor,
    /// It has left its memory. What has been copied is anything.
    #[error("it has left its memory")]
    Gone,
    /// The bytes do not match the checksum, although they are where they were.
    #[error("the bytes do not match their checksum")]
    Corrupt,
}

/// An owner's memory. See the [module](self).
pub(super) struct Sight {
    channel: LocalChannel,
    board: WordsView,
    words: u32,
    views: RefCell<BTreeMap<u32, Rc<View>>>,
    /// Chunks that were asked for, and who waits for them.
    asked: RefCell<BTreeMap<u32, Vec<oneshot::Sender<()>>>>,
    is_alive: Cell<bool>,
}

impl Sight {
    /// Goes where an owner is met, with a ticket of its.
    ///
    /// # Errors
    /// The system's; `InvalidData` if it is somebody else.
    pub(super) async fn join(meeting: MeetReply, proof: u128) -> io::Result<Self> {
        let joined = time::timeout(PATIENCE, Self::enter(meeting, proof)).await;
        joined.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn enter(meeting: MeetReply, proof: u128) -> io::Result<Self> {
        let channel = LocalChannel::connect(&meeting.name.to_le_bytes())?;
        let ticket = meeting.ticket;
        channel.send(&Packet::Join { ticket }.encode(), &[])?;
        let welcome = channel.recv().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if Packet::decode(&welcome.bytes).ok() != Some(Packet::Welcome { proof }) {
            return Err(nonsense());
        }
        let [board] = <[OwnedFd; 1]>::try_from(welcome.descriptors).map_err(|_| nonsense())?;
        let board = WordsView::map(board, meeting.words as usize).map_err(io::Error::other)?;
        Ok(Self {
            channel,
            board,
            words: meeting.words,
            views: RefCell::default(),
            asked: RefCell::default(),
            is_alive: Cell::new(true),
        })
    }

    /// Whether the owner may be there still.
    pub(super) const fn is_alive(&self) -> bool {
        self.is_alive.get()
    }

    /// Takes in what the owner says until the channel ends.
    pub(super) async fn listen(self: Rc<Self>) {
        let ended = loop {
            match self.channel.recv().await {
                Ok(Some(packet)) => match Packet::decode(&packet.bytes) {
                    Ok(said) => {
                        if let Err(error) = self.take(said, packet.descriptors) {
                            break Err(error);
                        }
                    }
                    Err(_fault) => break Err(nonsense()),
                },
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        tracing::debug!(?ended, "the channel to an owner on this host ends");
        self.is_alive.set(false);
        self.views.borrow_mut().clear();
        self.asked.borrow_mut().clear();
    }

    fn take(&self, said: Packet, mut files: Vec<OwnedFd>) -> io::Result<()> {
        let (segment, view) = match said {
            Packet::Memory {
                segment,
                offset_bytes,
                len_bytes,
            } => {
                let file = files.pop().ok_or_else(nonsense)?;
                if len_bytes > CHUNK_BYTES_MAX as u64 {
                    return Err(nonsense());
                }
                (segment, View::map(file, offset_bytes, len_bytes))
            }
            Packet::Refused { segment } => return self.answered(segment.index(), None),
            _ => return Err(nonsense()),
        };
        let view = view.inspect_err(|error| tracing::warn!(%error, "memory is not mapped"));
        self.answered(segment.index(), view.ok())
    }

    /// A chunk that was asked for can be read, or not.
    fn answered(&self, chunk: usize, view: Option<View>) -> io::Result<()> {
        let chunk = u32::try_from(chunk).map_err(|_| nonsense())?;
        let waiting = self.asked.borrow_mut().remove(&chunk);
        let waiting = waiting.ok_or_else(nonsense)?;
        if let Some(view) = view {
            self.views.borrow_mut().insert(chunk, Rc::new(view));
        }
        for waiter in waiting {
            if waiter.send(()).is_err() {
                tracing::trace!("who waited for a chunk has given up");
            }
        }
        Ok(())
    }

    /// A chunk of the owner's memory, asked for now if that has not been done.
    async fn view(&self, chunk: u32) -> Option<Rc<View>> {
        let known = || self.views.borrow().get(&chunk).map(Rc::clone);
        if let Some(view) = known() {
            return Some(view);
        }
        if !self.is_alive() {
            return None;
        }
        let (waiter, answer) = oneshot::channel();
        let is_first = !self.asked.borrow().contains_key(&chunk);
        if is_first {
            let count = self.views.borrow().len() + self.asked.borrow().len();
            let packet = Packet::Map {
                segment: segment_of(chunk),
            };
            if count >= CHUNKS_MAX || self.channel.send(&packet.encode(), &[]).is_err() {
                return None;
            }
        }
        let mut asked = self.asked.borrow_mut();
        asked.entry(chunk).or_default().push(waiter);
        drop(asked);
        let answered = time::timeout(PATIENCE, answer).await;
        tracing::trace!(?answered, chunk, "memory of an owner");
        known()
    }

    /// Copies an object, or ranges of it, to the front of the room; how many bytes that was. What is in the
    /// room after an error is anything.
    ///
    /// Of a whole object the checksum is verified. Of ranges none is known; that they are the object's says the
    /// board.
    pub(super) async fn read(
        &self,
        place: &Descriptor,
        ranges: &[ByteRange],
        room: &mut Room,
    ) -> Result<usize, ReadFault> {
        let whole = [ByteRange {
            offset_bytes: 0,
            len_bytes: place.len_bytes,
        }];
        let parts = if ranges.is_empty() { &whole } else { ranges };
        if total_bytes(parts) > room.len() as u64 {
            return Err(ReadFault::RoomTooSmall);
        }
        if place.slot >= self.words {
            return Err(ReadFault::BadDescriptor);
        }
        let view = self.view(place.chunk).await.ok_or(ReadFault::NotMapped)?;
        let (mut at, mut crc32c) = (0, 0);
        for part in parts {
            let start = start_in(&view, place, *part).ok_or(ReadFault::BadDescriptor)?;
            let len = part.len_bytes as usize;
            for done in (0..len).step_by(TURN_BYTES) {
                // What has gone is not copied to its end.
                if self.board.load(place.slot as usize) != place.number {
                    return Err(ReadFault::Gone);
                }
                let count = TURN_BYTES.min(len - done);
                let then = room.place_from(at, &view, start + done, count);
                crc32c = joined_crc32c(crc32c, then, count as u64);
                at += count;
                if at % TURN_BYTES == 0 {
                    time::yield_now().await;
                }
            }
        }
        if self.board.load(place.slot as usize) != place.number {
            return Err(ReadFault::Gone);
        }
        if ranges.is_empty() && crc32c != place.crc32c {
            return Err(ReadFault::Corrupt);
        }
        Ok(at)
    }
}

/// Where in a view a range of an object begins, if all of it lies there.
fn start_in(view: &View, place: &Descriptor, range: ByteRange) -> Option<usize> {
    let start = usize::try_from(place.start_of(range)?).ok()?;
    let end = start.checked_add(range.len_bytes as usize)?;
    (end <= view.len()).then_some(start)
}

/// What an owner says that keeps no rules.
fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
