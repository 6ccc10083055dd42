//! Gets of objects that are [seen](crate::glance) on this host: a device copies them from where they lie, in memory of this
//! process or another one, while this core sums them there. So their bytes are not copied by a core.
//!
//! ```text
//!   where it lies --> the device copies it   \
//!                 --> this core sums it      /  has it been there all the time, and is it right? --> got
//! ```
//!
//! Else it is asked for, and the memory of the device is written once more. The memory in which it lies is pinned for the
//! device when something there is first wanted; until then objects go the ordinary way.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_gpu::HostPiece;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::placement::home_of;
use lunette_runtime::arena::View;
use lunette_runtime::time;
use lunette_transfer::engine::DeviceSegment;

use super::piece::{Piece, Together, beside, len, of_one_device};
use super::summing::{Sum, Summing};
use super::{DeviceClient, GROUP_BYTES_MAX, GROUPS_MAX, Landed, Object, PIECES_MAX};
use crate::glance::{Likely, Sighting, Spot};

/// Objects that the device copies together.
struct Group {
    copying: Together<Vec<Arc<View>>>,
    objects: Vec<Copying>,
    /// The length of each piece.
    lens: Vec<usize>,
}

/// One of them.
struct Copying {
    /// Which of those that are wanted.
    place: usize,
    spot: Spot,
    /// Its pieces.
    pieces: Range<usize>,
    /// Its CRC32C where it lies, if this core has summed it there.
    crc32c: Option<u32>,
}

/// What is to be in a group.
#[derive(Default)]
struct Gathered {
    objects: Vec<Copying>,
    pieces: Vec<(HostPiece, DeviceSegment)>,
    views: Vec<Arc<View>>,
    bytes: usize,
}

impl Gathered {
    fn is_full(&self) -> bool {
        self.bytes >= GROUP_BYTES_MAX || self.pieces.len() >= PIECES_MAX
    }

    /// Whether the object may be in it: copied by the same streams.
    fn takes(&self, memory: &DeviceSegment) -> bool {
        let with = |(_, first): &(HostPiece, DeviceSegment)| first.is_copied_with(memory);
        self.pieces.first().is_none_or(with)
    }

    fn add(&mut self, place: usize, spot: Spot, to: &[Piece]) {
        let (view, start, len_bytes) = spot.place();
        let known = self.views.iter().position(|known| Arc::ptr_eq(known, view));
        let index = known.unwrap_or(self.views.len());
        if known.is_none() {
            self.views.push(Arc::clone(view));
        }
        let first = self.pieces.len();
        self.pieces.extend(beside(to, (index, start, len_bytes)));
        self.bytes += len_bytes;
        self.objects.push(Copying {
            place,
            pieces: first..self.pieces.len(),
            spot,
            crc32c: None,
        });
    }

    /// Has the device copy them, and sums them meanwhile, unless the device does.
    fn begin(self, summing: &Summing) -> Group {
        let (pieces, mut objects) = (self.pieces, self.objects);
        let device = pieces[0].1.device().clone();
        let is_worth_it = summing.is_for_kernel(self.bytes, Sum::Beside, device.kernel_wait());
        let summed = if is_worth_it {
            DeviceSegment::begin_upload_summed(self.views, &pieces)
        } else {
            Err(self.views)
        };
        let copying = match summed {
            Ok(copying) => Together::Summed(copying),
            Err(views) => Together::Plain(DeviceSegment::begin_upload(views, &pieces)),
        };
        if Summing::has_choice(self.bytes) {
            device.look();
        }
        if !copying.is_summed() {
            let began = time::now();
            for object in &mut objects {
                let (view, start, len_bytes) = object.spot.place();
                object.crc32c = Some(view.crc32c(start, len_bytes));
            }
            let took = time::now().since(began);
            summing.summed(self.bytes, took);
            device.was_away(took);
        }
        Group {
            copying,
            objects,
            lens: pieces.iter().map(|(piece, _)| piece.len_bytes).collect(),
        }
    }
}

impl DeviceClient {
    /// Gets what is seen, if it goes to devices' memory alone: `None` for what is to be asked for.
    pub(super) async fn get_seen(&self, wanted: &[Object]) -> Vec<Option<Landed>> {
        let mut got = vec![None; wanted.len()];
        if self.client.asking.namespace() != NamespaceKind::Cache {
            return got;
        }
        // The last one is used first, as in `ClusterClient::get_all`.
        let mut places = (0..wanted.len()).rev();
        let mut groups: VecDeque<Group> = VecDeque::new();
        loop {
            while groups.len() < GROUPS_MAX
                && let Some(group) = self.next_group(wanted, &mut places)
            {
                // This core has summed it, perhaps: others are to have their turn.
                if !group.copying.is_summed() {
                    time::yield_now().await;
                }
                groups.push_back(group);
            }
            let Some(group) = groups.pop_front() else {
                return got;
            };
            let Group {
                copying,
                objects,
                lens,
            } = group;
            // What fails is asked for, and told then.
            let Ok(copied) = copying.end(lens.len()).await else {
                continue;
            };
            for object in objects {
                let summed = || copied.crc32c(object.pieces.clone(), &lens);
                let crc32c = object.crc32c.or_else(summed);
                got[object.place] = crc32c.and_then(|crc32c| self.landed(&object.spot, crc32c));
            }
        }
    }

    fn landed(&self, spot: &Spot, crc32c: u32) -> Option<Landed> {
        let version = spot.confirm(crc32c)?;
        let (_, _, len_bytes) = spot.place();
        self.client.asking.sights.has_read(len_bytes);
        Some(Landed::Hit {
            len_bytes,
            object_len_bytes: len_bytes,
            version,
            is_cut_off: false,
        })
    }

    /// As many of what is wanted as are copied together.
    fn next_group(
        &self,
        wanted: &[Object],
        places: &mut impl Iterator<Item = usize>,
    ) -> Option<Group> {
        let mut gathered = Gathered::default();
        while !gathered.is_full()
            && let Some(place) = places.next()
        {
            let to = &wanted[place].pieces;
            let Some(first) = of_one_device(to) else {
                continue;
            };
            if let Some(spot) = self.spot(&wanted[place], first)
                && gathered.takes(first)
            {
                gathered.add(place, spot, to);
            }
        }
        (!gathered.pieces.is_empty()).then(|| gathered.begin(&self.summing))
    }

    /// Where an object lies, if it is seen, and the device reaches it there.
    fn spot(&self, object: &Object, memory: &DeviceSegment) -> Option<Spot> {
        let key = self.client.own(&object.key);
        let key = Key::new(&key).ok()?;
        let likely = Likely {
            home: home_of(&self.client.asking.map(), key.fingerprint()),
            own_core: None,
        };
        let room = len(&object.pieces);
        match self.client.glance().spot(key, likely, room) {
            Sighting::Seen(spot) => {
                let (view, _, len_bytes) = spot.place();
                let is_there = len_bytes > 0 && memory.device().is_pinned(view);
                if !is_there {
                    self.pin_soon(memory, view);
                }
                is_there.then_some(spot)
            }
            Sighting::Wants { seat, chunk, shown } => {
                self.client.bring_chunk(seat, chunk, shown);
                None
            }
            Sighting::Nothing => None,
        }
    }

    /// Has the device pin what is seen, beside what goes on.
    fn pin_soon(&self, memory: &DeviceSegment, view: &Arc<View>) {
        let device = memory.device();
        if device.may_pin(view) {
            let (device, view) = (device.clone(), Arc::clone(view));
            self.client.asking.spawn(async move {
                // What is refused is told by the device, and not asked again.
                let _pinned = device.pin_view(&view).await;
            });
        }
    }
}
