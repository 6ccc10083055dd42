//! Gets in which the owner has no part, where it is on this host and shares its memory.
//!
//! An owner is met when something long is got of it for the first time: that get goes the ordinary way, and
//! so do all until its board is mapped, and where there is nothing to map. From then on it is asked for a
//! descriptor, and the bytes are copied from its memory. What cannot be had so, because it has left its memory
//! meanwhile say, is asked for once more, in the ordinary way.
//!
//! An owner is met, too, once it has been asked for a few short things. Who is met shows which keys its home has and where
//! its short copies lie ([`Glance`]), in a cache namespace: these are looked at first, and not asked for if they are seen.
//!
//! | file | subject |
//! |---|---|
//! | `sight` | one owner's memory |
//! | `showing` | what an owner shows |

mod showing;
mod sight;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
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
use crate::glance::{Glance, Shown};
use crate::member::draw;
use showing::Looking;
use sight::{NoView, ReadFault, Sight};

/// From how many bytes on it pays, where nobody says: below, a descriptor and a copy take about as long as the
/// bytes over a socket.
pub(super) const FROM_BYTES: usize = 64 * 1024;
/// For how long a copy is to be kept from eviction that is about to be read: long enough for the longest one,
/// and short, since nobody gives it up before.
const HOLD: Duration = Duration::from_millis(100);
/// Owners that are known, mapped or not; of others the bytes are sent.
const SIGHTS_MAX: usize = 1024;
/// Lookups and short gets of which an owner is asked until it is met: it lists all keys for who looks on, which is not for
/// those who ask once.
const ASKED_MIN: u32 = 16;
/// How long until an owner is asked again that could not be met.
const RETRY: Duration = Duration::from_secs(10);
/// The same of one that had too much to do.
const RETRY_SOON: Duration = Duration::from_secs(1);

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
    /// So often has it been asked for something short.
    Asked(u32),
    /// It is being met.
    Meeting,
    Seen(Rc<Sight>),
    /// It is on another host.
    Elsewhere,
    /// It could not be met, and is not asked again before this.
    None(Time),
}

/// The owners on this host. See the [module](self).
pub(super) struct Sights {
    boot_id: Option<u128>,
    from_bytes: usize,
    paths: RefCell<BTreeMap<Seat, Path>>,
    /// What is seen of owners, and which core this is of those who look.
    glance: RefCell<(Arc<Glance>, usize)>,
    /// How long what threads hand over may take, where they do.
    handing: Cell<Option<Duration>>,
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
            glance: RefCell::default(),
            handing: Cell::new(None),
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
        let mut paths = self.paths.borrow_mut();
        paths.retain(|seat, _| has_seat(map, *seat));
        self.glance().retain(|seat| has_seat(map, seat));
    }

    /// What is seen of owners.
    pub(super) fn glance(&self) -> Arc<Glance> {
        Arc::clone(&self.glance.borrow().0)
    }

    /// What is seen goes there from now on, as of this core of those who look. Owners are handed objects, if that has a time.
    pub(super) fn look_by(&self, glance: &Arc<Glance>, core: usize, handing: Option<Duration>) {
        *self.glance.borrow_mut() = (Arc::clone(glance), core);
        self.handing.set(handing);
    }

    /// The memory of an owner, for a get into so much room. If nobody has tried yet, it is met.
    fn of(&self, asking: &Rc<Asking>, seat: Seat, room_bytes: usize) -> Option<Rc<Sight>> {
        if room_bytes < self.from_bytes {
            self.is_asked(asking, seat);
            return None;
        }
        self.sight(seat).or_else(|| {
            self.meet(asking, seat);
            None
        })
    }

    /// The memory of an owner that has been met.
    fn sight(&self, seat: Seat) -> Option<Rc<Sight>> {
        let mut paths = self.paths.borrow_mut();
        match paths.get(&seat) {
            Some(Path::Seen(sight)) if sight.is_alive() => Some(Rc::clone(sight)),
            // It ends its life, or does not keep to the rules.
            Some(Path::Seen(_)) => {
                paths.insert(seat, Path::None(time::now() + RETRY));
                None
            }
            _ => None,
        }
    }

    /// An owner is asked for something short. One that is asked again and again is met.
    pub(super) fn is_asked(&self, asking: &Rc<Asking>, seat: Seat) {
        if self.boot_id.is_none() || asking.namespace() != NamespaceKind::Cache {
            return;
        }
        let mut paths = self.paths.borrow_mut();
        let count = match paths.get_mut(&seat) {
            Some(Path::Asked(count)) => {
                *count += 1;
                *count
            }
            Some(_) => ASKED_MIN,
            None => {
                paths.insert(seat, Path::Asked(1));
                1
            }
        };
        drop(paths);
        if count >= ASKED_MIN && self.sight(seat).is_none() && !self.glance().sees(seat) {
            self.meet(asking, seat);
        }
    }

    /// Whether an owner's memory is seen, or it may be found that it can be.
    pub(super) fn may_see(&self, seat: Seat) -> bool {
        let is_far = matches!(
            self.paths.borrow().get(&seat),
            Some(Path::Elsewhere | Path::None(_))
        );
        self.boot_id.is_some() && !is_far
    }

    /// Something is written at an owner, which threads could hand over if it were met.
    pub(super) fn is_written_to(&self, asking: &Rc<Asking>, seat: Seat) {
        if self.handing.get().is_some() {
            self.is_asked(asking, seat);
        }
    }

    /// Meets an owner, unless that is being done, or was not to be done lately.
    fn meet(&self, asking: &Rc<Asking>, seat: Seat) {
        let Some(boot_id) = self.boot_id else {
            return;
        };
        let mut paths = self.paths.borrow_mut();
        let is_near = |path: &&Path| !matches!(path, Path::Asked(_) | Path::Elsewhere);
        match paths.get(&seat) {
            Some(Path::Meeting | Path::Seen(_) | Path::Elsewhere) => return,
            Some(Path::None(until)) if time::now() < *until => return,
            Some(Path::None(_)) => {}
            Some(Path::Asked(_)) | None => {
                if paths.values().filter(is_near).count() >= SIGHTS_MAX {
                    return;
                }
            }
        }
        paths.insert(seat, Path::Meeting);
        drop(paths);
        asking.spawn(Box::pin(meet(Rc::clone(asking), seat, boot_id)));
    }

    fn met(&self, seat: Seat, path: Path) {
        // Otherwise it has left the map meanwhile.
        if let Some(known) = self.paths.borrow_mut().get_mut(&seat) {
            *known = path;
        }
    }

    /// Has a chunk of the memory of an owner that has been met looked at.
    pub(super) async fn bring_chunk(&self, seat: Seat, chunk: u32, shown: &Shown) {
        let view = match self.sight(seat) {
            Some(sight) => sight.view(chunk).await,
            None => Err(NoView::Now),
        };
        match view {
            Ok(view) => shown.has_chunk(chunk, view),
            Err(NoView::Now) => shown.is_not_asked_for(chunk),
            Err(NoView::Ever) => {}
        }
    }

    pub(super) fn has_read(&self, len_bytes: usize) {
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
    let sights = &asking.sights;
    let (sight, shown) = match see(&asking, seat, boot_id).await {
        Ok(Some((sight, shown))) => (Rc::new(sight), shown),
        Ok(None) => return sights.met(seat, Path::Elsewhere),
        Err(not) => return sights.met(seat, Path::None(time::now() + not.pause())),
    };
    let (glance, core) = sights.glance.borrow().clone();
    let _seen = shown.map(|shown| Seen::begin(glance, seat, shown.asked_by(core)));
    sights.met(seat, Path::Seen(Rc::clone(&sight)));
    sight.listen().await;
}

/// An owner is seen as long as this lives.
struct Seen {
    glance: Arc<Glance>,
    shown: Arc<Shown>,
}

impl Seen {
    fn begin(glance: Arc<Glance>, seat: Seat, shown: Shown) -> Self {
        let shown = Arc::new(shown);
        glance.show(seat, Arc::clone(&shown));
        Self { glance, shown }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.glance.forget(&self.shown);
        self.shown.end();
    }
}

/// An owner could not be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotMet {
    /// It does not answer in time.
    Busy,
    /// It, or the system, refuses.
    Refused,
}

impl NotMet {
    /// How long it is left in peace.
    const fn pause(self) -> Duration {
        match self {
            Self::Busy => RETRY_SOON,
            Self::Refused => RETRY,
        }
    }
}

impl From<Status> for NotMet {
    fn from(status: Status) -> Self {
        if status.is_retryable() {
            Self::Busy
        } else {
            Self::Refused
        }
    }
}

impl From<io::ErrorKind> for NotMet {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            // Too many come at the same time.
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Busy,
            _ => Self::Refused,
        }
    }
}

/// An owner, and what it shows; `None` if it is on another host.
async fn see(
    asking: &Asking,
    seat: Seat,
    boot_id: u128,
) -> Result<Option<(Sight, Option<Shown>)>, NotMet> {
    let proof = draw();
    let message = MeetMessage {
        to: seat,
        boot_id,
        proof,
    };
    let body = |version, out: &mut Vec<u8>| message.encode(version, out);
    let (called, _) = call(asking, seat, Op::Meet, body, Attachments::default()).await;
    let Called::Reply(version, reply) = called else {
        return Err(NotMet::Busy);
    };
    match Status::from_code(reply.status) {
        Status::Ok => {}
        Status::Unsupported => return Ok(None),
        status => return Err(status.into()),
    }
    let meeting = MeetReply::decode(version, &reply.body).map_err(|_fault| NotMet::Refused)?;
    let is_looking = asking.namespace() == NamespaceKind::Cache;
    let looking = is_looking.then(|| Looking {
        seat,
        version,
        handing: asking.sights.handing.get(),
    });
    let joined = Sight::join(meeting, proof, looking).await;
    let refused = |error: &io::Error| {
        tracing::debug!(%error, ?seat, "an owner on this host is not met");
    };
    let joined = joined.inspect_err(refused);
    joined.map(Some).map_err(|error| error.kind().into())
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
    match asking.sights.of(asking, seat, room.len()) {
        // By itself, so that what is moved about for the others is short.
        Some(sight) => Box::pin(fetch_near(asking, &sight, (seat, op), body, ranges, room)).await,
        None => adapters::fetch(asking, (seat, op), body, ranges, room).await,
    }
}

/// As [`fetch`], of an owner whose memory is seen.
async fn fetch_near(
    asking: &Rc<Asking>,
    sight: &Sight,
    (seat, op): (Seat, Op),
    body: impl Fn(FormatVersion, &mut Vec<u8>),
    ranges: &[ByteRange],
    room: Room,
) -> (Called, Option<Room>) {
    let sights = &asking.sights;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_busy_is_asked_again_soon_and_who_refuses_late() {
        for (status, pause) in [
            (Status::Busy, RETRY_SOON),
            (Status::Unavailable, RETRY_SOON),
            (Status::BadRequest, RETRY),
        ] {
            assert_eq!(NotMet::from(status).pause(), pause, "{status:?}");
        }
        for (kind, pause) in [
            (io::ErrorKind::TimedOut, RETRY_SOON),
            (io::ErrorKind::WouldBlock, RETRY_SOON),
            (io::ErrorKind::ConnectionRefused, RETRY),
            (io::ErrorKind::InvalidData, RETRY),
        ] {
            assert_eq!(NotMet::from(kind).pause(), pause, "{kind:?}");
        }
    }
}
