//! Bytes that an adapter of this side reads where they lie.
//!
//! The owner, or the home, tells where: an address, a key, a checksum, and a word with the number that stands there
//! for as long as the memory is the object's. The copy is held from eviction meanwhile. The adapter reads the bytes
//! into the room, and the word: of a whole object right behind them, since the checksum says whether they are of one
//! piece; of ranges, of which there is none, when they are there.
//!
//! Nothing of a room is under way when it is anybody's again: its requests are over, or their queue pair has been
//! given up.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{
    BytesReply, FarWish, HoldWish, NearWish, Reach, Reached,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::{Reply, Room, SplitRoom};
use lunette_verbs::{DeviceMemory, Lent, Piece, RemoteMemory, Request, RequestError};
use thiserror::Error;

use super::super::asking::Asking;
use super::super::calls::{Called, called_of, into};
use super::direct::Place;
use super::messages::{self, Messaged};
use super::{NotBrought, is_right};
use crate::rails::Rail;
use crate::seats::Link;

/// How long reads may take, those before them on their queue pair included.
const READ_MAX: Duration = Duration::from_secs(2);
/// For how long a copy is to be kept from eviction that is about to be read.
const HOLD: Duration = Duration::from_millis(100);
/// Bytes of the word.
const WORD_BYTES: usize = 8;

/// Why an object was not read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum FarFault {
    #[error("the room is too small")]
    RoomTooSmall,
    #[error("what is described is not what was asked for")]
    BadDescriptor,
    #[error("as much is under way as may be")]
    Busy,
    #[error("the room is not registered any more")]
    NotRegistered,
    #[error("it is not read: {0}")]
    Read(RequestError),
    #[error("it has left its memory")]
    Gone,
    #[error("it may have been removed meanwhile")]
    Late,
    #[error("the bytes do not match their checksum")]
    Corrupt,
}

impl FarFault {
    /// Whether the place is not what it was said to be, rather than the room or the moment.
    pub(super) const fn is_of_the_place(self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::Gone | Self::Late | Self::Corrupt
        )
    }
}

/// Asks where bytes lie, and reads them there.
pub(super) async fn read(
    asking: &Rc<Asking>,
    (seat, op): (Seat, Op),
    (link, rail): (&Link, &Rc<Rail>),
    body: &impl Fn(FormatVersion, &mut Vec<u8>),
    ranges: &[ByteRange],
    (room, device): (Room, Option<Rc<Place>>),
) -> Result<(Called, Option<Room>), NotBrought> {
    let version = link.version;
    let wish = FarWish {
        connection: rail.name,
        near: NearWish {
            from_bytes: 1,
            is_again: false,
            hold: HoldWish {
                holder: asking.id().0,
                ttl_ms: u32::try_from(HOLD.as_millis()).expect("short"),
            },
        },
    };
    let write = |out: &mut Vec<u8>| {
        wish.encode(version, out);
        body(version, out);
    };
    let op = if op == Op::Find {
        Op::FindFar
    } else {
        Op::ReadFar
    };
    let (asked, room) = match messages::ask_over(asking, rail, op, write).await {
        Messaged::Answered(answered) => {
            (messages::called(asking, (seat, link), answered), Some(room))
        }
        Messaged::Lost => return Err(NotBrought::Failed(room)),
        Messaged::No => {
            let timeout = asking.get_timeout();
            let answered = link.call(op.code(), write, into(room), timeout).await;
            called_of(asking, seat, version, answered)
        }
    };
    let (reply, room) = match (asked, room) {
        (Called::Reply(_, reply), Some(room)) if reply.status == Status::Described.code() => {
            (reply, room)
        }
        // The other end has been given up.
        (Called::Reply(_, reply), Some(room)) if reply.status == Status::PushFailed.code() => {
            asking.adapters.ears.give_up(rail);
            return Err(NotBrought::Failed(room));
        }
        others => return Ok(others),
    };
    let Ok(Reached { bytes, reach }) = Reached::decode(version, &reply.body) else {
        return Err(NotBrought::Failed(room));
    };
    let (brought, room) = bring(asking, rail, &reach, ranges, (room, device)).await;
    let len = match (brought, room.is_some()) {
        (Ok(len), true) => len,
        (brought, _) => {
            tracing::debug!(?seat, ?brought, "bytes are not read");
            return match room {
                Some(room) => Err(NotBrought::Failed(room)),
                None => Ok((Called::Unanswered(Duration::ZERO), None)),
            };
        }
    };
    Ok((called(asking, version, (&bytes, len)), room))
}

/// So many bytes have been read, as if they had been received.
pub(super) fn called(
    asking: &Asking,
    version: FormatVersion,
    (bytes, len): (&BytesReply, usize),
) -> Called {
    asking.adapters.count(|counted| {
        counted.read += 1;
        counted.read_bytes += len as u64;
    });
    let mut body = Vec::new();
    bytes.encode(version, &mut body);
    let reply = Reply {
        status: Status::Ok.code(),
        body,
        payload_len_bytes: u32::try_from(len).expect("a value is bounded"),
        room: None,
    };
    Called::Reply(version, reply)
}

/// Reads an object, or ranges of it, to the front of the room; how many bytes that was. What is in the room after an
/// error is anything.
pub(super) async fn bring(
    asking: &Rc<Asking>,
    rail: &Rc<Rail>,
    reach: &Reach,
    ranges: &[ByteRange],
    (room, device): (Room, Option<Rc<Place>>),
) -> (Result<usize, FarFault>, Option<Room>) {
    let whole = [ByteRange {
        offset_bytes: 0,
        len_bytes: reach.len_bytes,
    }];
    let parts = if ranges.is_empty() { &whole } else { ranges };
    let total = total_bytes(parts);
    let len = usize::try_from(total).unwrap_or(usize::MAX);
    if len > room.len() {
        return (Err(FarFault::RoomTooSmall), Some(room));
    }
    // Ranges have no checksum of their own, so nothing would say whether they are right on a device.
    let device = device.filter(|_| ranges.is_empty());
    let split = room.split();
    let is_compared = device.as_ref().is_none_or(|place| place.is_compared());
    let is_early = ranges.is_empty() && is_compared;
    let into = (&split, device.as_deref());
    let reading = read_into(asking, rail, reach, (parts, is_early), into);
    let read = time::timeout(READ_MAX, reading).await;
    let read = read.unwrap_or(Err(FarFault::Read(RequestError::TimedOut)));
    let Ok(room) = split.join() else {
        return (read.map(|()| len), None);
    };
    if let Err(fault) = read {
        return (Err(fault), Some(room));
    }
    if ranges.is_empty() && !is_right(&room, device.as_ref(), len, reach.crc32c).await {
        return (Err(FarFault::Corrupt), Some(room));
    }
    (Ok(len), Some(room))
}

/// Reads parts of an object, one after the other, and then that it is the object.
async fn read_into(
    asking: &Rc<Asking>,
    rail: &Rc<Rail>,
    reach: &Reach,
    (parts, is_early): (&[ByteRange], bool),
    into: (&SplitRoom, Option<&Place>),
) -> Result<(), FarFault> {
    let lent = lend(asking, rail, reach, parts, into)?;
    let word = asking.adapters.ears.word(rail.adapter);
    let word = word.ok_or(FarFault::Busy)?;
    let mut under_way = UnderWay::begin(asking, rail);
    // What bounds their time is given up with the queue pair.
    let deadline = Time::MAX;
    let begun = rail.with(|pair| {
        let is_room = pair.is_open() && pair.credits() as usize > lent.len();
        is_room.then(|| {
            let reads = lent.into_iter();
            let reads = reads.map(|(into, from)| match into {
                Into::Host(lent) => pair.read_lent(lent, from, deadline),
                Into::Device(memory, range) => pair.read_device(&memory, range, from, deadline),
            });
            reads.collect::<Vec<Request>>()
        })
    });
    let Some(reads) = begun.flatten() else {
        under_way.end();
        return Err(FarFault::Busy);
    };
    let word_at = RemoteMemory {
        address: reach.word_address,
        rkey: reach.word_key,
    };
    let read_word = |word: Piece| rail.with(|pair| pair.read(word, WORD_BYTES, word_at, deadline));
    let (early, late) = if is_early {
        (read_word(word), None)
    } else {
        (None, Some(word))
    };
    for read in reads {
        read.await.0.map_err(FarFault::Read)?;
    }
    let last = early.or_else(|| late.and_then(read_word));
    let last = last.ok_or(FarFault::Read(RequestError::Broken))?;
    let (read, word) = last.await;
    read.map_err(FarFault::Read)?;
    under_way.end();
    let word = word.ok_or(FarFault::Gone)?;
    let word = word.as_slice().first_chunk().copied();
    let is_it = word.is_some_and(|word| u64::from_le_bytes(word) == reach.number);
    is_it.then_some(()).ok_or(FarFault::Gone)
}

/// Where bytes are read into.
enum Into {
    Host(Lent),
    Device(DeviceMemory, Range<usize>),
}

/// Memory of the room, or of the device for which it stands, and what is to be read into it.
fn lend(
    asking: &Asking,
    rail: &Rail,
    reach: &Reach,
    parts: &[ByteRange],
    (split, device): (&SplitRoom, Option<&Place>),
) -> Result<Vec<(Into, RemoteMemory)>, FarFault> {
    let adapter = asking.adapters.ears.adapter(rail.adapter);
    let (mut lent, mut at) = (Vec::new(), 0);
    for part in parts {
        let mut address = reach.start_of(*part).ok_or(FarFault::BadDescriptor)?;
        let end = at + part.len_bytes as usize;
        if let Some(place) = device {
            let range = place.range(at..end);
            let range = range.ok_or(FarFault::RoomTooSmall)?;
            let memory = place.window(rail.adapter).ok_or(FarFault::NotRegistered)?;
            let from = RemoteMemory {
                address,
                rkey: reach.key,
            };
            lent.push((Into::Device(memory.clone(), range), from));
            at = end;
            continue;
        }
        let room = split.part(std::iter::once(at..end));
        at = end;
        for piece in room.pieces().unwrap_or_default() {
            let len = piece.len() as u64;
            let some = adapter.lend(piece.clone().into());
            let from = RemoteMemory {
                address,
                rkey: reach.key,
            };
            let some = some.ok_or(FarFault::NotRegistered)?;
            lent.push((Into::Host(some), from));
            address += len;
        }
    }
    Ok(lent)
}

/// Reads that may be under way. Dropped before they are known to be over, they are taken back with their queue pair.
struct UnderWay<'a> {
    asking: &'a Asking,
    rail: &'a Rail,
    is_over: bool,
}

impl<'a> UnderWay<'a> {
    fn begin(asking: &'a Asking, rail: &'a Rail) -> Self {
        rail.under_way.set(rail.under_way.get() + 1);
        Self {
            asking,
            rail,
            is_over: false,
        }
    }

    const fn end(&mut self) {
        self.is_over = true;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.rail.under_way.set(self.rail.under_way.get() - 1);
        if !self.is_over {
            self.asking.adapters.ears.give_up(self.rail);
        }
    }
}
