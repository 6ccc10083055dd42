//! Puts of objects that stay on this core: a device copies them to where they stay, and sums them on the way, or this core
//! sums them there.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use lunette_gpu::{Device, HostPiece};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::time;
use lunette_transfer::engine::{DeviceFault, DeviceSegment};

use super::piece::{Together, beside, len, of_one_device};
use super::summing::{Sum, Summing};
use super::{
    DeviceClient, DeviceStoreError, GROUP_BYTES_MAX, GROUPS_MAX, Object, PIECES_MAX, long,
};
use crate::cluster_client::objects::Putting;
use crate::cluster_client::{PutOptions, Stored};
use crate::member::{Placed, RoomHere};
use crate::value::Value;

/// Objects that the device copies together.
struct Group {
    device: Device,
    copying: Together<Vec<RegionMut>>,
    objects: Vec<Copying>,
    /// The length of each piece.
    lens: Vec<usize>,
}

/// One of them.
struct Copying {
    /// Which of those that are put.
    place: usize,
    /// Where it stays.
    room: RoomHere,
    /// Its pieces.
    pieces: Range<usize>,
}

/// What is to be in a group.
#[derive(Default)]
struct Gathered {
    objects: Vec<Copying>,
    regions: Vec<RegionMut>,
    pieces: Vec<(HostPiece, DeviceSegment)>,
    bytes: usize,
}

/// What came of objects that were put in their places; `None` for those that are put otherwise.
pub(super) type Done = Vec<Option<Result<Stored, DeviceStoreError>>>;

impl Gathered {
    fn takes(&self, memory: &DeviceSegment) -> bool {
        let with = |(_, first): &(HostPiece, DeviceSegment)| first.is_copied_with(memory);
        let has_room = self.bytes < GROUP_BYTES_MAX && self.pieces.len() < PIECES_MAX;
        self.pieces.first().is_none_or(with) && has_room
    }

    fn add(&mut self, place: usize, object: &Object, (room, region): (RoomHere, RegionMut)) {
        let len_bytes = len(&object.pieces);
        let at = (self.regions.len(), room.value_at(), len_bytes);
        let first = self.pieces.len();
        self.pieces.extend(beside(&object.pieces, at));
        self.regions.push(region);
        self.objects.push(Copying {
            place,
            room,
            pieces: first..self.pieces.len(),
        });
        self.bytes += len_bytes;
    }

    /// Has the device copy them, to memory that it has pinned before.
    async fn begin(self, summing: &Summing) -> Group {
        let device = self.pieces[0].1.device().clone();
        for region in &self.regions {
            // What cannot be pinned is copied all the same.
            let _pinned = device.pin(&region.chunk()).await;
        }
        let is_worth_it = summing.is_for_kernel(self.bytes, Sum::Behind, device.kernel_wait());
        let summed = if is_worth_it {
            DeviceSegment::begin_download_summed(&self.pieces, self.regions)
        } else {
            Err(self.regions)
        };
        let copying = match summed {
            Ok(copying) => Together::Summed(copying),
            Err(regions) => Together::Plain(DeviceSegment::begin_download(&self.pieces, regions)),
        };
        if Summing::has_choice(self.bytes) {
            device.look();
        }
        Group {
            device,
            copying,
            objects: self.objects,
            lens: self
                .pieces
                .iter()
                .map(|(piece, _)| piece.len_bytes)
                .collect(),
        }
    }
}

impl DeviceClient {
    /// Puts those that stay on this core, if their bytes are devices' alone.
    pub(super) async fn put_placed(&self, objects: &[Object], options: PutOptions) -> Done {
        let mut done: Done = objects.iter().map(|_| None).collect();
        let mut places = 0..objects.len();
        let mut groups: VecDeque<Group> = VecDeque::new();
        loop {
            while groups.len() < GROUPS_MAX
                && let Some(gathered) = self.next_group_of(objects, &mut places, options)
            {
                groups.push_back(gathered.begin(&self.summing).await);
            }
            let Some(group) = groups.pop_front() else {
                return done;
            };
            self.put_copied(group, (objects, options), &mut done).await;
        }
    }

    fn next_group_of(
        &self,
        objects: &[Object],
        places: &mut Range<usize>,
        options: PutOptions,
    ) -> Option<Gathered> {
        let mut gathered = Gathered::default();
        while let Some(object) = objects.get(places.start) {
            let place = places.start;
            let memory = of_one_device(&object.pieces);
            let memory = memory.filter(|_| long::part_len_of(object, options).is_none());
            if let Some(memory) = memory {
                if !gathered.takes(memory) {
                    break;
                }
                let len_bytes = len(&object.pieces);
                if let Some(room) = self.client.room_here(&object.key, len_bytes, &options) {
                    gathered.add(place, object, room);
                }
            }
            places.start += 1;
        }
        (!gathered.objects.is_empty()).then_some(gathered)
    }

    /// Puts what the device has copied.
    async fn put_copied(
        &self,
        group: Group,
        (objects, options): (&[Object], PutOptions),
        done: &mut Done,
    ) {
        let Group {
            device,
            copying,
            objects: copies,
            lens,
        } = group;
        let mut copied = match copying.end(lens.len()).await {
            Ok(copied) => copied,
            Err(error) => {
                let fault = DeviceStoreError::Device(DeviceFault::Copy(error));
                // Where only a place was missing, they are put otherwise.
                if !fault.is_backpressure() {
                    for copy in &copies {
                        done[copy.place] = Some(Err(fault));
                    }
                }
                return;
            }
        };
        let regions = std::mem::take(&mut copied.host);
        let filled = copies.into_iter().zip(regions);
        let began = time::now();
        let placed: Vec<(usize, Placed, Value)> = filled
            .map(|(copy, region)| {
                let crc32c = copied.crc32c(copy.pieces, &lens);
                let (placed, value) = copy.room.filled(region, crc32c);
                (copy.place, placed, Value::new(value))
            })
            .collect();
        if !copied.is_summed() {
            let took = time::now().since(began);
            self.summing.summed(lens.iter().sum(), took);
            device.was_away(took);
        }
        let putting = placed.iter().map(|(place, placed, value)| Putting {
            key: &objects[*place].key,
            value,
            placed: Some(placed),
            among: objects[*place].among,
        });
        let until = self.client.until(Duration::ZERO);
        let stored = self.client.put_each(putting, options, until).await;
        for ((place, ..), stored) in placed.iter().zip(stored) {
            done[*place] = Some(stored.map_err(DeviceStoreError::from));
        }
    }
}
