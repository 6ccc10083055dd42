//! The memory of one owner on this host, mapped for reading.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
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

use super::showing::{self, Looking};
use crate::glance::Shown;
use crate::member::Named;

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

/// Why a chunk is not there to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoView {
    /// It may be later.
    Now,
    /// The owner does not hand it out, or it cannot be mapped.
    Ever,
}

/// An owner's memory. See the [module](self).
pub(super) struct Sight {
    channel: LocalChannel,
    board: WordsView,
    words: u32,
    views: RefCell<BTreeMap<u32, Arc<View>>>,
    /// Chunks that were asked for, and who waits for them.
    asked: RefCell<BTreeMap<u32, Vec<oneshot::Sender<()>>>>,
    is_alive: Cell<bool>,
}

impl Sight {
    /// Goes where an owner is met, with a ticket of its; with what it shows, if that is looked at.
    ///
    /// # Errors
    /// The system's; `InvalidData` if it is somebody else.
    pub(super) async fn join(
        meeting: MeetReply,
        proof: u128,
        looking: Option<Looking>,
    ) -> io::Result<(Self, Option<Shown>)> {
        let joined = time::timeout(PATIENCE, Self::enter(meeting, proof, looking)).await;
        joined.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn enter(
        meeting: MeetReply,
        proof: u128,
        looking: Option<Looking>,
    ) -> io::Result<(Self, Option<Shown>)> {
        let channel = LocalChannel::connect(&meeting.name.to_le_bytes())?;
        let ticket = meeting.ticket;
        channel.send(&Packet::Join { ticket }.encode(), &[])?;
        let welcome = channel.recv().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if Packet::decode(&welcome.bytes).ok() != Some(Packet::Welcome { proof }) {
            return Err(nonsense());
        }
        let [board] = <[OwnedFd; 1]>::try_from(welcome.descriptors).map_err(|_| nonsense())?;
        let board = WordsView::map(board, meeting.words as usize).map_err(io::Error::other)?;
        let shown = match looking {
            Some(looking) => showing::by(&channel, looking).await?,
            None => None,
        };
        let sight = Self {
            channel,
            board,
            words: meeting.words,
            views: RefCell::default(),
            asked: RefCell::default(),
            is_alive: Cell::new(true),
        };
        Ok((sight, shown))
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
            self.views.borrow_mut().insert(chunk, Arc::new(view));
        }
        for waiter in waiting {
            if waiter.send(()).is_err() {
                tracing::trace!("who waited for a chunk has given up");
            }
        }
        Ok(())
    }

    /// A chunk of the owner's memory, asked for now if that has not been done.
    pub(super) async fn view(&self, chunk: u32) -> Result<Arc<View>, NoView> {
        let known = || self.views.borrow().get(&chunk).map(Arc::clone);
        if let Some(view) = known() {
            return Ok(view);
        }
        if !self.is_alive() {
            return Err(NoView::Now);
        }
        let answer = self.ask_for(chunk).ok_or(NoView::Now)?;
        let answered = time::timeout(PATIENCE, answer).await;
        tracing::trace!(?answered, chunk, "memory of an owner");
        known().ok_or(match answered {
            Ok(Ok(())) => NoView::Ever,
            Ok(Err(_)) | Err(_) => NoView::Now,
        })
    }

    /// Asks for a chunk, unless that has been done; what ends when there is an answer. `None` if it cannot be
    /// asked for.
    fn ask_for(&self, chunk: u32) -> Option<oneshot::Receiver<()>> {
        let (waiter, answer) = oneshot::channel();
        let mut asked = self.asked.borrow_mut();
        if !asked.contains_key(&chunk) {
            let packet = Packet::Map {
                segment: Named::Chunk(chunk).segment(),
            };
            let is_full = self.views.borrow().len() + asked.len() >= CHUNKS_MAX;
            if is_full || self.channel.send(&packet.encode(), &[]).is_err() {
                return None;
            }
        }
        asked.entry(chunk).or_default().push(waiter);
        Some(answer)
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
        let view = self.view(place.chunk).await;
        let view = view.map_err(|_none| ReadFault::NotMapped)?;
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
pub(super) fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lunette_kvstore_proto::message::FormatVersion;
    use lunette_kvstore_proto::placement::Seat;
    use lunette_runtime::arena::{Arena, ArenaOptions, RegionMut};
    use lunette_runtime::net::LocalListener;
    use lunette_runtime::{CoreOptions, arena, block_on, spawn_local};
    use lunette_runtime_core::checksum::crc32c;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};
    use lunette_transfer_proto::engine::segment::SegmentId;

    use super::*;
    use crate::member::{Board, draw};

    const LEN: usize = 3 * TURN_BYTES / 2;
    const WORDS: usize = 16;

    /// What an owner says that is asked what it shows.
    #[derive(Clone, Copy)]
    enum Says {
        /// Nothing, as one of an earlier version.
        Refused,
        /// A file that is too short for what it says.
        TooShort,
        /// What it was not asked for.
        Nonsense,
    }

    const LOOKING: Looking = Looking {
        seat: Seat {
            node: NodeId(1),
            incarnation: 1,
            core: CoreIndex(0),
        },
        version: FormatVersion::NEWEST,
        handing: Some(Duration::from_secs(1)),
    };

    /// An owner that shares one chunk, and how it answers.
    struct Owner {
        arena: Arena,
        board: RefCell<Board>,
        says: Says,
    }

    impl Owner {
        fn new() -> Rc<Self> {
            Self::saying(Says::Refused)
        }

        fn saying(says: Says) -> Rc<Self> {
            Rc::new(Self {
                says,
                arena: Arena::new(ArenaOptions::default()),
                board: RefCell::new(Board::new(WORDS).expect("memory")),
            })
        }

        fn object(&self, byte: u8) -> RegionMut {
            let mut region = self.arena.alloc(LEN).expect("room");
            region.as_mut_slice().fill(byte);
            region
        }

        fn describe(&self, slot: u32, byte: u8, (chunk, start): (u32, usize)) -> Descriptor {
            Descriptor {
                slot,
                number: self.board.borrow_mut().show(slot).expect("a word"),
                chunk,
                offset_bytes: start as u64,
                len_bytes: u32::try_from(LEN).expect("short"),
                crc32c: crc32c(&[byte; LEN]),
                held_ms: 0,
            }
        }

        /// Lets one reader in.
        async fn serve(self: Rc<Self>, listener: LocalListener, proof: u128) -> io::Result<()> {
            let channel = listener.accept().await?;
            let _join = channel.recv().await?;
            let board = self.board.borrow().file()?;
            channel.send(&Packet::Welcome { proof }.encode(), &[board.as_fd()])?;
            while let Some(packet) = channel.recv().await? {
                let Ok(Packet::Map { segment }) = Packet::decode(&packet.bytes) else {
                    return Err(nonsense());
                };
                let Some(Named::Chunk(chunk)) = Named::of(segment) else {
                    self.answer(&channel, segment)?;
                    continue;
                };
                match self.arena.share(chunk)? {
                    Some(share) => {
                        let packet = Packet::Memory {
                            segment,
                            offset_bytes: 0,
                            len_bytes: share.len_bytes,
                        };
                        channel.send(&packet.encode(), &[share.memfd.as_fd()])?;
                    }
                    None => channel.send(&Packet::Refused { segment }.encode(), &[])?,
                }
            }
            Ok(())
        }

        fn answer(&self, channel: &LocalChannel, segment: SegmentId) -> io::Result<()> {
            let file = self.board.borrow().file()?;
            let memory = |segment, len_bytes| Packet::Memory {
                segment,
                offset_bytes: 0,
                len_bytes,
            };
            match self.says {
                Says::Refused => channel.send(&Packet::Refused { segment }.encode(), &[]),
                Says::TooShort => channel.send(&memory(segment, 1 << 20).encode(), &[file.as_fd()]),
                Says::Nonsense => {
                    let other = Named::Chunk(0).segment();
                    channel.send(&memory(other, 16).encode(), &[file.as_fd()])
                }
            }
        }

        async fn met(self: &Rc<Self>, said: u128, expected: u128) -> io::Result<Rc<Sight>> {
            let (sight, shown) = self.met_looking(said, expected, None).await?;
            assert!(shown.is_none(), "it was not asked for");
            Ok(sight)
        }

        async fn met_looking(
            self: &Rc<Self>,
            said: u128,
            expected: u128,
            looking: Option<Looking>,
        ) -> io::Result<(Rc<Sight>, Option<Shown>)> {
            let name = draw();
            let listener = LocalListener::bind(&name.to_le_bytes()).expect("a name");
            let serving = Rc::clone(self).serve(listener, said);
            drop(spawn_local(async move { drop(serving.await) }));
            let meeting = MeetReply {
                ticket: 1,
                name,
                words: u32::try_from(WORDS).expect("few"),
            };
            let (sight, shown) = Sight::join(meeting, expected, looking).await?;
            let sight = Rc::new(sight);
            drop(spawn_local(Rc::clone(&sight).listen()));
            Ok((sight, shown))
        }
    }

    fn room(len: usize) -> Room {
        Room::whole(arena().alloc(len).expect("room"))
    }

    fn on_a_core<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send + 'static) {
        block_on(None, CoreOptions::default(), test).expect("a core");
    }

    #[test]
    fn what_is_described_is_copied_until_its_memory_is_another_ones() {
        on_a_core(|| async {
            let owner = Owner::new();
            let sight = owner.met(5, 5).await.expect("met");
            let object = owner.object(b'a').freeze();
            let place = owner.describe(3, b'a', object.place());
            let mut room = room(LEN + 10);
            assert_eq!(sight.read(&place, &[], &mut room).await, Ok(LEN));
            assert!(room.as_slice()[..LEN] == [b'a'; LEN]);
            // It is evicted, and another one is written there.
            owner.board.borrow().hide(3);
            drop(object);
            let other = owner.object(b'b').freeze();
            let again = owner.describe(3, b'b', other.place());
            assert_eq!(again.offset_bytes, place.offset_bytes, "at the same place");
            let gone = sight.read(&place, &[], &mut room).await;
            assert_eq!(gone, Err(ReadFault::Gone));
            assert_eq!(sight.read(&again, &[], &mut room).await, Ok(LEN));
            assert!(room.as_slice()[..LEN] == [b'b'; LEN]);
            // Between two turns of one copy.
            let reading = {
                let sight = Rc::clone(&sight);
                spawn_local(async move {
                    let mut room = self::room(LEN);
                    let read = sight.read(&again, &[], &mut room).await;
                    (read, room.as_slice()[0])
                })
            };
            time::yield_now().await;
            owner.board.borrow().hide(3);
            let (read, first) = reading.await.expect("no panic");
            assert_eq!((read, first), (Err(ReadFault::Gone), b'b'), "it had begun");
        });
    }

    #[test]
    fn bytes_that_are_not_what_was_described_are_noticed() {
        on_a_core(|| async {
            let owner = Owner::new();
            let sight = owner.met(5, 5).await.expect("met");
            let object = owner.object(b'a').freeze();
            // Of an owner that breaks its own rules.
            let place = owner.describe(3, b'x', object.place());
            let mut room = room(LEN);
            let read = sight.read(&place, &[], &mut room).await;
            assert_eq!(read, Err(ReadFault::Corrupt));
            let part = ByteRange {
                offset_bytes: 10,
                len_bytes: 20,
            };
            let read = sight.read(&place, &[part, part], &mut room).await;
            assert_eq!(read, Ok(40), "of ranges there is no checksum");
        });
    }

    #[test]
    fn a_descriptor_that_cannot_be_followed_is_not() {
        on_a_core(|| async {
            let owner = Owner::new();
            let sight = owner.met(5, 5).await.expect("met");
            let object = owner.object(b'a').freeze();
            let place = owner.describe(3, b'a', object.place());
            let beyond = ByteRange {
                offset_bytes: 1,
                len_bytes: place.len_bytes,
            };
            let last = owner.arena.options().chunk_bytes as u64 - LEN as u64;
            let number = place.number + 1;
            let words = u32::try_from(WORDS).expect("few");
            for (bad, ranges, fault) in [
                (Descriptor { number, ..place }, &[][..], ReadFault::Gone),
                (
                    Descriptor {
                        slot: words,
                        ..place
                    },
                    &[],
                    ReadFault::BadDescriptor,
                ),
                (
                    Descriptor {
                        slot: u32::MAX,
                        ..place
                    },
                    &[],
                    ReadFault::BadDescriptor,
                ),
                (Descriptor { chunk: 1, ..place }, &[], ReadFault::NotMapped),
                (
                    Descriptor {
                        chunk: u32::MAX,
                        ..place
                    },
                    &[],
                    ReadFault::NotMapped,
                ),
                (
                    Descriptor {
                        offset_bytes: last + 1,
                        ..place
                    },
                    &[],
                    ReadFault::BadDescriptor,
                ),
                (
                    Descriptor {
                        offset_bytes: u64::MAX - 7,
                        ..place
                    },
                    &[],
                    ReadFault::BadDescriptor,
                ),
                (place, &[beyond], ReadFault::BadDescriptor),
            ] {
                let read = sight.read(&bad, ranges, &mut room(2 * LEN)).await;
                assert_eq!(read, Err(fault), "{bad:?} {ranges:?}");
            }
            let small = sight.read(&place, &[], &mut room(LEN - 1)).await;
            assert_eq!(small, Err(ReadFault::RoomTooSmall));
            assert!(sight.is_alive(), "it was not its owner's fault");
        });
    }

    #[test]
    fn an_owner_that_shows_nothing_is_read_and_one_that_shows_nonsense_is_not_met() {
        on_a_core(|| async {
            let owner = Owner::new();
            let (sight, shown) = owner.met_looking(5, 5, Some(LOOKING)).await.expect("met");
            assert!(shown.is_none());
            let object = owner.object(b'a').freeze();
            let place = owner.describe(3, b'a', object.place());
            assert_eq!(sight.read(&place, &[], &mut room(LEN)).await, Ok(LEN));
            for says in [Says::TooShort, Says::Nonsense] {
                let met = Owner::saying(says).met_looking(5, 5, Some(LOOKING)).await;
                met.map(drop).expect_err("it keeps no rules");
            }
        });
    }

    #[test]
    fn an_owner_that_is_gone_shows_nothing() {
        on_a_core(|| async {
            let owner = Owner::new();
            let sight = owner.met(5, 5).await.expect("met");
            let object = owner.object(b'a').freeze();
            let place = owner.describe(3, b'a', object.place());
            assert_eq!(sight.read(&place, &[], &mut room(LEN)).await, Ok(LEN));
            *owner.board.borrow_mut() = Board::new(WORDS).expect("memory");
            let read = sight.read(&place, &[], &mut room(LEN)).await;
            assert_eq!(read, Err(ReadFault::Gone));
            let stranger = owner.met(5, 6).await.map(drop);
            let error = stranger.expect_err("somebody else");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            // A question that makes no sense ends the channel.
            sight.channel.send(b"x", &[]).expect("there is room");
            let deadline = time::now() + PATIENCE;
            while sight.is_alive() {
                assert!(time::now() < deadline, "in time");
                time::sleep(Duration::from_millis(1)).await;
            }
            let read = sight.read(&place, &[], &mut room(LEN)).await;
            assert_eq!(read, Err(ReadFault::NotMapped));
        });
    }
}
