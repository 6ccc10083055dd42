//! Gets whose bytes RDMA adapters move: the owner's, which writes them to where they belong, or the client's, which
//! reads them where they lie.
//!
//! ```text
//!   get ── a rail to the owner? ── ways that there are ── the quickest lately ──┬── Sent: over the connection
//!                                    (memory landed,                            ├── Written: `pushing`
//!                                     memory registered)                        └── Read: `reading`
//! ```
//!
//! Whatever comes of an adapter's way, the bytes are asked for over the connection where it did not bring them. Queue
//! pairs are those of the connection to the seat: made when the first get asks for them, in the background; so is
//! memory registered. Nothing waits for either. Over them go the requests, too, of these gets and of lookups
//! (`messages`): the connection is for what is missing still, for what is long, and for writes.
//!
//! | file | subject |
//! |---|---|
//! | `connecting` | queue pairs: asking for adapters, handshakes |
//! | `direct` | [`DeviceLanding`]: memory of devices that adapters reach |
//! | `held` | copies that are held, which are read without asking anybody |
//! | `landing` | [`Landing`]: memory that owners may write |
//! | `messages` | requests that go by messages |
//! | `notices` | the calls under way, and the notices that name them |
//! | `pulled` | puts whose bytes the owner reads |
//! | `pushing` | bytes that the owner writes |
//! | `reading` | bytes that this side reads |
//! | `sightings` | memory that is worth to be registered |

mod connecting;
mod direct;
mod held;
mod landing;
mod messages;
mod notices;
mod pulled;
mod pushing;
mod reading;
mod sightings;

use std::cell::Cell;
use std::rc::Rc;

use lunette_kvstore_proto::message::{FormatVersion, Op};
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_runtime::arena::Exposed;
use lunette_runtime::time;
use lunette_transfer::Room;
use lunette_transfer::adapters::{Adapters, RdmaOptions};
use lunette_transfer::engine::DeviceSegment;
use lunette_verbs::Context;

use super::asking::Asking;
use super::calls::{Called, call, into};
use crate::rails::{Picked, Rail};
use crate::seats::Link;
use crate::value::sum_of;
pub(super) use direct::Standing;
pub use direct::{DeviceCheck, DeviceLanding};
use direct::{Direct, Place};
use held::Held;
pub(super) use held::{fetch as fetch_held, learn};
use landing::Landings;
pub use landing::{Landing, TooManyLandings};
pub(super) use messages::ask;
use notices::Ears;
pub(super) use notices::hear;
pub(super) use pulled::write;
use sightings::Sightings;

/// What a client has got by RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterGets {
    /// Gets whose bytes owners' adapters have written to where they belong.
    pub written: u64,
    /// How many bytes that was.
    pub written_bytes: u64,
    /// Gets whose bytes the client's adapters have read where they lie.
    pub read: u64,
    /// How many bytes that was.
    pub read_bytes: u64,
    /// Gets of those that have been read for which nobody was asked: of held copies.
    pub read_unasked: u64,
    /// Gets that had to ask for the bytes after all.
    pub fallbacks: u64,
}

/// What a client has put by RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterPuts {
    /// Puts whose bytes owners' adapters have read where they lay.
    pub pulled: u64,
    /// How many bytes that was.
    pub pulled_bytes: u64,
    /// Puts whose bytes had to be sent after all.
    pub fallbacks: u64,
}

/// What a client has for it.
pub(super) struct ByAdapters {
    ears: Ears,
    landings: Rc<Landings>,
    direct: Rc<Direct>,
    sightings: Sightings,
    held: Held,
    options: RdmaOptions,
    /// The only way besides the connection, if there is to be but one.
    only: Option<Path>,
    counted: Cell<AdapterGets>,
    counted_puts: Cell<AdapterPuts>,
    /// Requests that have gone by messages.
    asked: Cell<u64>,
}

impl ByAdapters {
    /// With the adapters that the options name, and those that are given.
    pub(super) fn open(options: &RdmaOptions, only: Option<Path>, given: Vec<Context>) -> Self {
        let adapters = Adapters::open(options, false, given);
        Self {
            ears: Ears::open(&adapters),
            landings: Rc::new(Landings::new(options.windows_max)),
            direct: Rc::default(),
            sightings: Sightings::default(),
            held: Held::default(),
            options: options.clone(),
            only,
            counted: Cell::default(),
            counted_puts: Cell::default(),
            asked: Cell::new(0),
        }
    }

    /// How many adapters it has.
    pub(super) const fn len(&self) -> usize {
        self.ears.len()
    }

    /// See [`ClusterClient::land`](super::ClusterClient::land).
    pub(super) async fn land(&self, memory: Exposed) -> Result<Landing, TooManyLandings> {
        self.landings.land(memory, self.ears.adapters()).await
    }

    /// See [`DeviceClient::land`](super::DeviceClient::land).
    pub(super) async fn land_device(
        &self,
        memory: &DeviceSegment,
        check: DeviceCheck,
    ) -> Result<DeviceLanding, TooManyLandings> {
        let landings_max = self.options.windows_max;
        let adapters = self.ears.adapters();
        let landing = self.direct.land((memory, check), adapters, landings_max);
        landing.await.ok_or(TooManyLandings { landings_max })
    }

    /// Has a room stand for memory of a device while something is got into it; `None` if no adapter reaches that.
    pub(super) fn stand(&self, room: &Exposed, memory: &DeviceSegment) -> Option<Standing> {
        self.direct.stand(room, memory)
    }

    pub(super) const fn counted(&self) -> AdapterGets {
        self.counted.get()
    }

    pub(super) const fn counted_puts(&self) -> AdapterPuts {
        self.counted_puts.get()
    }

    fn count_puts(&self, change: impl FnOnce(&mut AdapterPuts)) {
        let mut counted = self.counted_puts.get();
        change(&mut counted);
        self.counted_puts.set(counted);
    }

    pub(super) const fn asked(&self) -> u64 {
        self.asked.get()
    }

    fn count(&self, change: impl FnOnce(&mut AdapterGets)) {
        let mut counted = self.counted.get();
        change(&mut counted);
        self.counted.set(counted);
    }

    /// The connection to a seat, and a rail of it, if both are there now. What is missing is begun.
    fn rail(asking: &Rc<Asking>, seat: Seat) -> Option<(Link, Rc<Rail>)> {
        if asking.adapters.len() == 0 {
            return None;
        }
        let link = asking.seats.live(seat)?;
        let (missing, rail) = match link.rails.pick() {
            Picked::Nothing => return None,
            Picked::Ask => {
                asking.spawn(connecting::ask(Rc::clone(asking), seat, link));
                return None;
            }
            Picked::Rails(missing, rail) => (missing, rail),
        };
        for missing in missing {
            let connecting = connecting::connect(Rc::clone(asking), seat, link.clone(), missing);
            asking.spawn(connecting);
        }
        Some((link, rail?))
    }

    /// Whether all of a room is registered with this adapter. What is not, and is landed or has been seen before, is
    /// begun to be.
    fn is_registered(&self, room: &Room, adapter: usize) -> bool {
        let adapter = self.ears.adapter(adapter);
        let mut is_registered = true;
        for (extent, start, len) in room.extents() {
            if !adapter.is_registered(start, len) {
                is_registered = false;
                let landed = self.landings.extent_of(start, len);
                if let Some(extent) = landed.or_else(|| self.sightings.again(extent)) {
                    adapter.begin_register(extent);
                }
            }
        }
        is_registered
    }

    fn may_go(&self, path: Path) -> bool {
        self.only.is_none_or(|only| only == path)
    }
}

/// Asks for bytes, which an adapter brings or which are received, as if they had been received. `op` is
/// [`Op::Find`] or [`Op::Read`], and `body` the request's.
pub(super) async fn fetch(
    asking: &Rc<Asking>,
    (seat, op): (Seat, Op),
    body: impl Fn(FormatVersion, &mut Vec<u8>),
    ranges: &[ByteRange],
    room: Room,
) -> (Called, Option<Room>) {
    // Where there is no room for bytes there is nothing to bring, nor a place to name.
    let over = (!room.is_empty()).then(|| ByAdapters::rail(asking, seat));
    match over.flatten() {
        // By itself, so that what is moved about for the others is short.
        Some(over) => Box::pin(fetch_over(asking, over, (seat, op), body, ranges, room)).await,
        None => call(asking, seat, op, body, into(room)).await,
    }
}

/// As [`fetch`], where adapters of both sides are connected.
async fn fetch_over(
    asking: &Rc<Asking>,
    (link, rail): (Link, Rc<Rail>),
    (seat, op): (Seat, Op),
    body: impl Fn(FormatVersion, &mut Vec<u8>),
    ranges: &[ByteRange],
    room: Room,
) -> (Called, Option<Room>) {
    let by = &asking.adapters;
    let may_be_written = by.may_go(Path::Written) && total_bytes(ranges) <= room.len() as u64;
    let device = by.direct.place_of(&room);
    let device = device.filter(|place| place.window(rail.adapter).is_some());
    let places = may_be_written.then(|| match &device {
        Some(place) => by.landings.place_on(place, rail.adapter),
        None => by.landings.places(&room, rail.adapter),
    });
    let places = places.flatten();
    let is_registered =
        by.may_go(Path::Read) && (device.is_some() || by.is_registered(&room, rail.adapter));
    if places.is_none() && !is_registered {
        return call(asking, seat, op, body, into(room)).await;
    }
    let (len_bytes, began) = (room.len(), time::now());
    let path = match by.only {
        Some(only) => only,
        None => link.rails.choose(len_bytes, |path| match path {
            Path::Sent => true,
            Path::Written => places.is_some(),
            Path::Read => is_registered,
        }),
    };
    let brought = match (path, places) {
        (Path::Written, Some(places)) => {
            let over = (&link, &rail, places);
            pushing::push(asking, (seat, op), over, &body, (room, device)).await
        }
        (Path::Read, _) => {
            let over = (&link, &rail);
            reading::read(asking, (seat, op), over, &body, ranges, (room, device)).await
        }
        _ => Err(NotBrought::Wanted(room)),
    };
    let called = match brought {
        Ok(called) => called,
        Err(not) => {
            let room = match not {
                NotBrought::Wanted(room) => room,
                NotBrought::Failed(room) => {
                    tracing::debug!(?seat, "bytes are asked for after all");
                    by.count(|counted| counted.fallbacks += 1);
                    room
                }
            };
            call(asking, seat, op, body, into(room)).await
        }
    };
    link.rails.ended(path, len_bytes, time::now().since(began));
    called
}

/// A get whose bytes no adapter has brought: they are to be asked for over the connection.
enum NotBrought {
    /// That is the way, or none was to be had.
    Wanted(Room),
    /// It was tried.
    Failed(Room),
}

/// Whether so many bytes that have been brought are those of the checksum: in a room, or on the device for which it stands.
async fn is_right(room: &Room, device: Option<&Rc<Place>>, len: usize, crc32c: u32) -> bool {
    match device {
        Some(place) => place.is_right(room, len, crc32c).await,
        None => sum_of(room, len).await == crc32c,
    }
}
