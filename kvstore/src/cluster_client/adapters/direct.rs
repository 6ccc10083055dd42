//! Memory of devices that adapters reach, so that what is got need not go by way of memory of the host.
//!
//! A get into a device's memory has a room of the host's all the same: what adapters do not bring is received there. While
//! such a get is under way, its room stands for the place on the device ([`Standing`]): owners are told that place instead
//! of the room, and this side's reads go there. Where they have brought an object, and it is as its checksum says, the get is
//! told so, and nothing is left to copy. A place stands for a room as a whole, so objects in parts come by the room.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use lunette_runtime::arena::Exposed;
use lunette_transfer::Room;
use lunette_transfer::adapters::Adapter;
use lunette_transfer::engine::DeviceSegment;
use lunette_verbs::{Access, DeviceMemory, RemoteMemory};

use super::sum_of;

/// What owners may do.
const WRITTEN: Access = Access {
    remote_read: false,
    remote_write: true,
    remote_atomic: false,
    relaxed_ordering: false,
};

/// How bytes that adapters have brought to a device are known to be those of the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceCheck {
    /// The device copies them back to memory of the host, where they are compared with the object's checksum.
    #[default]
    ReadBack,
    /// By what the adapters' links check of each packet, and by what their owner tells. They are not compared with the
    /// object's checksum, so damage in the owner's memory is not seen.
    Links,
}

/// Memory of a device that adapters reach. When it is dropped, no get begins to come there by them any more; those that are
/// under way end first, and hold the memory until then.
#[derive(Debug)]
pub struct DeviceLanding {
    all: Rc<Direct>,
    start: u64,
    adapters: usize,
}

impl DeviceLanding {
    /// How many adapters reach it. What others would bring goes by way of memory of the host.
    #[must_use]
    pub const fn adapters(&self) -> usize {
        self.adapters
    }
}

impl Drop for DeviceLanding {
    fn drop(&mut self) {
        let gone = self.all.landed.borrow_mut().remove(&self.start);
        drop(gone);
    }
}

/// One piece of such memory.
#[derive(Debug)]
struct Landed {
    memory: DeviceSegment,
    /// By our adapters.
    windows: Vec<Option<DeviceMemory>>,
    check: DeviceCheck,
}

/// All of it, by where it begins, and the rooms that stand for parts of it.
#[derive(Debug, Default)]
pub(super) struct Direct {
    landed: RefCell<BTreeMap<u64, Rc<Landed>>>,
    rooms: RefCell<BTreeMap<usize, Rc<Place>>>,
}

/// A place on a device for which a room stands.
#[derive(Debug)]
pub(super) struct Place {
    landed: Rc<Landed>,
    /// Where in the landed memory.
    offset: u64,
    /// As long as the room.
    len: usize,
    is_there: Cell<bool>,
}

/// A room of a get that stands for a place on a device, until this is dropped.
#[derive(Debug)]
pub(in crate::cluster_client) struct Standing {
    all: Rc<Direct>,
    start: usize,
    place: Rc<Place>,
}

impl Standing {
    /// Whether what was got is on the device, and not in the room.
    pub(in crate::cluster_client) fn is_there(&self) -> bool {
        self.place.is_there.get()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let gone = self.all.rooms.borrow_mut().remove(&self.start);
        drop(gone);
    }
}

impl Direct {
    /// Registers memory of a device with these adapters. What one of them refuses, it does without.
    /// `None` if some that begins there is landed already, or there is as much as may be.
    pub(super) async fn land(
        self: &Rc<Self>,
        (memory, check): (&DeviceSegment, DeviceCheck),
        adapters: impl Iterator<Item = Rc<Adapter>>,
        landings_max: usize,
    ) -> Option<DeviceLanding> {
        let mut windows = Vec::new();
        for adapter in adapters {
            let window = memory.register(adapter.context(), WRITTEN).await;
            let name = adapter.name();
            let refused =
                |error: &_| tracing::info!(%name, %error, "an adapter does not reach a device");
            windows.push(window.inspect_err(refused).ok());
        }
        let start = memory.region().address();
        let adapters = windows.iter().flatten().count();
        let mut landed = self.landed.borrow_mut();
        if landed.len() >= landings_max || landed.contains_key(&start) {
            return None;
        }
        let memory = memory.clone();
        let new = Landed {
            memory,
            windows,
            check,
        };
        landed.insert(start, Rc::new(new));
        Some(DeviceLanding {
            all: Rc::clone(self),
            start,
            adapters,
        })
    }

    /// Has a room stand for the memory of a device, which is as long; `None` if adapters do not reach all of it.
    pub(super) fn stand(
        self: &Rc<Self>,
        room: &Exposed,
        memory: &DeviceSegment,
    ) -> Option<Standing> {
        let address = memory.region().address();
        let landed = self.landed.borrow();
        let (start, landed) = landed.range(..=address).next_back()?;
        let offset = address - start;
        let is_inside = offset + memory.len_bytes() <= landed.memory.len_bytes();
        let is_same_length = memory.len_bytes() == room.len() as u64;
        let has_some = landed.windows.iter().any(Option::is_some);
        if !(is_inside && is_same_length && has_some) || room.is_empty() {
            return None;
        }
        let place = Rc::new(Place {
            landed: Rc::clone(landed),
            offset,
            len: room.len(),
            is_there: Cell::new(false),
        });
        let known = self
            .rooms
            .borrow_mut()
            .insert(room.start(), Rc::clone(&place));
        debug_assert!(known.is_none(), "a room is of one get");
        Some(Standing {
            all: Rc::clone(self),
            start: room.start(),
            place,
        })
    }

    /// The place for which a room stands, if it does as a whole. What was there before is not any more.
    pub(super) fn place_of(&self, room: &Room) -> Option<Rc<Place>> {
        let [piece] = room.pieces()? else {
            return None;
        };
        let rooms = self.rooms.borrow();
        let place = rooms.get(&piece.start())?;
        place.is_not_there();
        (place.len == piece.len()).then(|| Rc::clone(place))
    }
}

impl Place {
    /// The device's memory, as this adapter reaches it; `None` if it does not.
    pub(super) fn window(&self, adapter: usize) -> Option<&DeviceMemory> {
        self.landed.windows.get(adapter)?.as_ref()
    }

    /// How an owner names it, by this adapter.
    pub(super) fn remote(&self, adapter: usize) -> Option<RemoteMemory> {
        Some(self.window(adapter)?.remote().at(self.offset))
    }

    /// What has been brought is not what is got.
    pub(super) fn is_not_there(&self) {
        self.is_there.set(false);
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// A part of it, in the memory that adapters reach.
    pub(super) fn range(&self, part: Range<usize>) -> Option<Range<usize>> {
        let offset = usize::try_from(self.offset).ok()?;
        (part.end <= self.len).then(|| offset + part.start..offset + part.end)
    }

    /// Whether what is brought is compared with its checksum.
    pub(super) fn is_compared(&self) -> bool {
        self.landed.check == DeviceCheck::ReadBack
    }

    /// Whether so many bytes that have been brought are those of the checksum, as far as that is to be known: they are
    /// there then. `room` is what stands for it.
    pub(super) async fn is_right(&self, room: &Room, len: usize, crc32c: u32) -> bool {
        if self.is_compared() {
            let pieces = room.pieces().unwrap_or_default();
            let [piece] = pieces else {
                return false;
            };
            let from = self.offset..self.offset + len as u64;
            let memory = self.landed.memory.slice(from);
            if let Err(fault) = memory.download(piece.slice(0, len)).await {
                tracing::warn!(%fault, "what is on a device is not read back");
                return false;
            }
            if sum_of(room, len).await != crc32c {
                return false;
            }
        }
        self.is_there.set(true);
        true
    }
}
