//! Bytes that an adapter of this side reads where they lie.
//!
//! The owner, or the home, tells where: an address, a key, a checksum, and a word with the number that stands there
//! for as long as the memory is the object's. The copy is held from eviction meanwhile. The adapter reads the bytes
//! into the room, and the word: of a whole object right behind them, since the checksum says whether they are of one
//! piece; of ranges, of which there is none, when they are there.
//!
//! Nothing of a room is under way when it is anybody's again: its requests are over, or their queue pair has been
//! given up.

use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{FarWish, HoldWish, NearWish, Reach, Reached};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::{Reply, Room, SplitRoom};
use lunette_verbs::{Lent, Piece, RemoteMemory, Request, RequestError};
use thiserror::Error;

use super::super::asking::Asking;
use super::super::calls::{CALL_TIMEOUT, Called, called_of, into};
use super::{NotBrought, sum_of};
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
enum FarFault {
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
    #[error("the bytes do not match their checksum")]
    Corrupt,
}

/// Asks where bytes lie, and reads them there.
pub(super) async fn read(
    asking: &Rc<Asking>,
    (seat, op): (Seat, Op),
    (link, rail): (&Link, &Rc<Rail>),
    body: &impl Fn(FormatVersion, &mut Vec<u8>),
    ranges: &[ByteRange],
    room: Room,
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
    let answered = link.call(op.code(), write, into(room), CALL_TIMEOUT).await;
    let (reply, room) = match called_of(asking, seat, version, answered) {
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
    let (brought, room) = bring(asking, rail, &reach, ranges, room).await;
    let len = match (brought, room.is_some()) {
        (Ok(len), true) => len,
        (brought, _) => {
            tracing::debug!(?seat, ?brought, "bytes are not read");
            return match room {
                Some(room) => Err(NotBrought::Failed(room)),
                None => Ok((Called::Unanswered, None)),
            };
        }
    };
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
    Ok((Called::Reply(version, reply), room))
}

/// Reads an object, or ranges of it, to the front of the room; how many bytes that was. What is in the room after an
/// error is anything.
async fn bring(
    asking: &Rc<Asking>,
    rail: &Rc<Rail>,
    reach: &Reach,
    ranges: &[ByteRange],
    room: Room,
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
    let split = room.split();
    let reading = read_into(asking, rail, reach, (parts, ranges.is_empty()), &split);
    let read = time::timeout(READ_MAX, reading).await;
    let read = read.unwrap_or(Err(FarFault::Read(RequestError::TimedOut)));
    let Ok(room) = split.join() else {
        return (read.map(|()| len), None);
    };
    if let Err(fault) = read {
        return (Err(fault), Some(room));
    }
    if ranges.is_empty() && sum_of(&room, len).await != reach.crc32c {
        return (Err(FarFault::Corrupt), Some(room));
    }
    (Ok(len), Some(room))
}

/// Reads parts of an object, one after the other, and then that it is the object.
async fn read_into(
    asking: &Rc<Asking>,
    rail: &Rc<Rail>,
    reach: &Reach,
    (parts, is_whole): (&[ByteRange], bool),
    split: &SplitRoom,
) -> Result<(), FarFault> {
    let lent = lend(asking, rail, reach, parts, split)?;
    let word = asking.adapters.ears.word(rail.adapter);
    let word = word.ok_or(FarFault::Busy)?;
    let mut under_way = UnderWay::begin(asking, rail);
    // What bounds their time is given up with the queue pair.
    let deadline = Time::MAX;
    let begun = rail.with(|pair| {
        let is_room = pair.is_open() && pair.credits() as usize > lent.len();
        is_room.then(|| {
            let reads = lent.into_iter();
            let reads = reads.map(|(into, from)| pair.read_lent(into, from, deadline));
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
    let (early, late) = if is_whole {
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

/// Memory of the room, and what is to be read into it.
fn lend(
    asking: &Asking,
    rail: &Rail,
    reach: &Reach,
    parts: &[ByteRange],
    split: &SplitRoom,
) -> Result<Vec<(Lent, RemoteMemory)>, FarFault> {
    let adapter = asking.adapters.ears.adapter(rail.adapter);
    let (mut lent, mut at) = (Vec::new(), 0);
    for part in parts {
        let mut address = reach.start_of(*part).ok_or(FarFault::BadDescriptor)?;
        let end = at + part.len_bytes as usize;
        let room = split.part(std::iter::once(at..end));
        at = end;
        for piece in room.pieces().unwrap_or_default() {
            let (start, len) = (piece.start(), piece.len() as u64);
            let some = adapter.lend(piece.clone().into(), start);
            let from = RemoteMemory {
                address,
                rkey: reach.key,
            };
            lent.push((some.ok_or(FarFault::NotRegistered)?, from));
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
