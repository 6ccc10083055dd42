//! Gets in which the owner has no part, where it is on this host and shares its memory.
//!
//! An owner is met when something long is got of it for the first time: that get goes the ordinary way, and
//! so do all until its board is mapped, and where there is nothing to map. From then on it is asked for a
//! descriptor, and the bytes are copied from its memory. What cannot be had so, because it has left its memory
//! meanwhile say, is asked for once more, in the ordinary way.
//!
//! | file | subject |
//! |---|---|
//! | `sight` | one owner's memory |

mod sight;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::message::directory::{
    Described, HoldWish, MeetMessage, MeetReply, NearWish,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_kvstore_proto::range::ByteRange;
use lunette_runtime::{boot_id, time};
use lunette_runtime_core::time::Time;
use lunette_transfer::{Attachments, Reply, Room};

use super::adapters;
use super::asking::Asking;
use super::calls::{Called, call, into};
use crate::member::draw;
use sight::{ReadFault, Sight};

/// From how many bytes on it pays, where nobody says: below, a descriptor and a copy take about as long as the
/// bytes over a socket.
pub(super) const FROM_BYTES: usize = 64 * 1024;
/// For how long a copy is to be kept from eviction that is about to be read: long enough for the longest one,
/// and short, since nobody gives it up before.
const HOLD: Duration = Duration::from_millis(100);
/// Owners that are known, mapped or not; of others the bytes are sent.
const SIGHTS_MAX: usize = 1024;
/// How long until an owner is asked again that could not be met.
const RETRY: Duration = Duration::from_secs(10);

/// What a client has got by copying from owners' memory itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneSided {
    /// Owners whose memory is mapped now.
    pub owners: usize,
    /// Gets whose bytes were copied.
    pub reads: u64,
    /// How many bytes that was.
    pub read_bytes: u64,
    /// Gets that had to ask for the bytes after all.
    pub fallbacks: u64,
}

/// What is known of an owner.
enum Path {
    /// It is being met.
    Meeting,
    Seen(Rc<Sight>),
    /// It could not be met, and is not asked again before this.
    None(Time),
}

/// The owners on this host. See the [module](self).
pub(super) struct Sights {
    boot_id: Option<u128>,
    from_bytes: usize,
    paths: RefCell<BTreeMap<Seat, Path>>,
    reads: Cell<u64>,
    read_bytes: Cell<u64>,
    fallbacks: Cell<u64>,
}

impl Sights {
    /// For gets of so many bytes and more; `None` for none.
    pub(super) fn new(from_bytes: Option<usize>) -> Self {
        Self {
            boot_id: from_bytes.and_then(|_| boot_id()),
            from_bytes: from_bytes.unwrap_or(usize::MAX),
            paths: RefCell::default(),
            reads: Cell::new(0),
            read_bytes: Cell::new(0),
            fallbacks: Cell::new(0),
        }
    }

    pub(super) fn counted(&self) -> OneSided {
        let paths = self.paths.borrow();
        let seen = paths.values().filter(|path| matches!(path, Path::Seen(_)));
        OneSided {
            owners: seen.count(),
            reads: self.reads.get(),
            read_bytes: self.read_bytes.get(),
            fallbacks: self.fallbacks.get(),
        }
    }

    /// Whether objects for so much room are sent, and there is at most so much of it.
    pub(super) const fn are_sent(&self, room_bytes: usize, room_bytes_max: usize) -> bool {
        room_bytes <= room_bytes_max && (self.boot_id.is_none() || room_bytes < self.from_bytes)
    }

    /// Owners that are in the map no more are forgotten.
    pub(super) fn on_map(&self, map: &ClusterMap) {
        self.paths
            .borrow_mut()
            .retain(|seat, _| has_seat(map, *seat));
    }

    /// The memory of an owner, for a get into so much room. If nobody has tried yet, it is met.
    fn of(&self, asking: &Rc<Asking>, seat: Seat, room_bytes: usize) -> Option<Rc<Sight>> {
        let boot_id = self.boot_id?;
        if room_bytes < self.from_bytes {
            return None;
        }
        let mut paths = self.paths.borrow_mut();
        match paths.get(&seat) {
            Some(Path::Seen(sight)) if sight.is_alive() => return Some(Rc::clone(sight)),
            // It ends its life, or does not keep to the rules.
            Some(Path::Seen(_)) => {
                paths.insert(seat, Path::None(time::now() + RETRY));
                return None;
            }
            Some(Path::Meeting) => return None,
            Some(Path::None(until)) if time::now() < *until => return None,
            None if paths.len() >= SIGHTS_MAX => return None,
            Some(Path::None(_)) | None => {}
        }
        paths.insert(seat, Path::Meeting);
        drop(paths);
        asking.spawn(meet(Rc::clone(asking), seat, boot_id));
        None
    }

    fn met(&self, seat: Seat, sight: Option<Rc<Sight>>) {
        let mut paths = self.paths.borrow_mut();
        // Otherwise it has left the map meanwhile.
        if let Some(path) = paths.get_mut(&seat) {
            *path = match sight {
                Some(sight) => Path::Seen(sight),
                None => Path::None(time::now() + RETRY),
            };
        }
    }

    fn has_read(&self, len_bytes: usize) {
        self.reads.set(self.reads.get() + 1);
        let read_bytes = self.read_bytes.get() + len_bytes as u64;
        self.read_bytes.set(read_bytes);
    }

    fn wish(&self, asking: &Asking) -> NearWish {
        NearWish {
            from_bytes: u32::try_from(self.from_bytes).unwrap_or(u32::MAX),
            is_again: false,
            hold: HoldWish {
                holder: asking.id().0,
                ttl_ms: u32::try_from(HOLD.as_millis()).expect("short"),
            },
        }
    }
}

/// Meets an owner, and listens to it for as long as it is there.
async fn meet(asking: Rc<Asking>, seat: Seat, boot_id: u128) {
    let sight = see(&asking, seat, boot_id).await.map(Rc::new);
    asking.sights.met(seat, sight.clone());
    if let Some(sight) = sight {
        sight.listen().await;
    }
}

async fn see(asking: &Asking, seat: Seat, boot_id: u128) -> Option<Sight> {
    let proof = draw();
    let message = MeetMessage {
        to: seat,
        boot_id,
        proof,
    };
    let body = |version, out: &mut Vec<u8>| message.encode(version, out);
    let (called, _) = call(asking, seat, Op::Meet, body, Attachments::default()).await;
    let Called::Reply(version, reply) = called else {
        return None;
    };
    if Status::from_code(reply.status) != Status::Ok {
        return None;
    }
    let meeting = MeetReply::decode(version, &reply.body).ok()?;
    let joined = Sight::join(meeting, proof).await;
    let refused = |error: &std::io::Error| {
        tracing::debug!(%error, ?seat, "an owner on this host is not met");
    };
    joined.inspect_err(refused).ok()
}

/// Asks for bytes, which are copied from the owner's memory or received, as if they had been received.
/// `op` is [`Op::Find`] or [`Op::Read`], and `body` the request's.
pub(super) async fn fetch(
    asking: &Rc<Asking>,
    (seat, op): (Seat, Op),
    body: impl Fn(FormatVersion, &mut Vec<u8>),
    ranges: &[ByteRange],
    room: Room,
) -> (Called, Option<Room>) {
    let sights = &asking.sights;
    let Some(sight) = sights.of(asking, seat, room.len()) else {
        return adapters::fetch(asking, (seat, op), body, ranges, room).await;
    };
    let near = if op == Op::Find {
        Op::FindNear
    } else {
        Op::ReadNear
    };
    let wished = |wish: NearWish| {
        let body = &body;
        move |version, out: &mut Vec<u8>| {
            wish.encode(version, out);
            body(version, out);
        }
    };
    let wish = sights.wish(asking);
    let (called, room) = call(asking, seat, near, wished(wish), into(room)).await;
    let (version, reply, mut room) = match (called, room) {
        (Called::Reply(version, reply), Some(room)) if is_described(&reply) => {
            (version, reply, room)
        }
        others => return others,
    };
    let fault = match Described::decode(version, &reply.body) {
        Ok(Described { bytes, descriptor }) => {
            match sight.read(&descriptor, ranges, &mut room).await {
                Ok(len_bytes) => {
                    sights.has_read(len_bytes);
                    let mut body = Vec::new();
                    bytes.encode(version, &mut body);
                    let reply = Reply {
                        status: Status::Ok.code(),
                        body,
                        payload_len_bytes: u32::try_from(len_bytes).expect("a value is bounded"),
                        room: None,
                    };
                    return (Called::Reply(version, reply), Some(room));
                }
                Err(fault) => fault,
            }
        }
        Err(_fault) => ReadFault::BadDescriptor,
    };
    if fault == ReadFault::RoomTooSmall {
        return call(asking, seat, op, body, into(room)).await;
    }
    tracing::debug!(?seat, %fault, "bytes are asked for after all");
    sights.fallbacks.set(sights.fallbacks.get() + 1);
    let again = NearWish {
        from_bytes: u32::MAX,
        is_again: true,
        ..wish
    };
    call(asking, seat, near, wished(again), into(room)).await
}

const fn is_described(reply: &Reply) -> bool {
    reply.status == Status::Described.code()
}
