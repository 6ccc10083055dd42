//! Puts of objects that stay on this core: a device copies them to where they stay, and this core sums them there.

use std::collections::VecDeque;

use lunette_gpu::{HostPiece, Operation};
use lunette_runtime::arena::RegionMut;
use lunette_transfer::engine::{DeviceFault, DeviceSegment};

use super::piece::{beside, len, of_one_device};
use super::{
    DeviceClient, DeviceStoreError, GROUP_BYTES_MAX, GROUPS_MAX, Object, PIECES_MAX, long,
};
use crate::cluster_client::objects::Putting;
use crate::cluster_client::{PutOptions, Stored};
use crate::member::{Placed, RoomHere};
use crate::value::Value;

/// Objects that the device copies together.
struct Group {
    copying: Operation<Vec<RegionMut>>,
    /// Which of those that are put, and where it stays.
    objects: Vec<(usize, RoomHere)>,
}

/// What is to be in a group.
#[derive(Default)]
struct Gathered {
    objects: Vec<(usize, RoomHere)>,
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
        self.pieces.extend(beside(&object.pieces, at));
        self.regions.push(region);
        self.objects.push((place, room));
        self.bytes += len_bytes;
    }

    /// Has the device copy them, to memory that it has pinned before.
    async fn begin(self) -> Group {
        let device = self.pieces[0].1.device().clone();
        for region in &self.regions {
            // What cannot be pinned is copied all the same.
            let _pinned = device.pin(&region.chunk()).await;
        }
        Group {
            copying: DeviceSegment::begin_download(&self.pieces, self.regions),
            objects: self.objects,
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
                groups.push_back(gathered.begin().await);
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
        places: &mut std::ops::Range<usize>,
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
        let (copied, regions) = group.copying.await;
        if let Err(error) = copied {
            let fault = DeviceStoreError::Device(DeviceFault::Copy(error));
            if !fault.is_backpressure() {
                for (place, _) in &group.objects {
                    done[*place] = Some(Err(fault));
                }
            }
            return;
        }
        let placed = group.objects.into_iter().zip(regions);
        let placed: Vec<(usize, Placed, Value)> = placed
            .map(|((place, room), region)| {
                let (placed, value) = room.filled(region);
                (place, placed, Value::new(value))
            })
            .collect();
        let putting = placed.iter().map(|(place, placed, value)| Putting {
            key: &objects[*place].key,
            value,
            placed: Some(placed),
            among: objects[*place].among,
        });
        let stored = self.client.put_each(putting, options).await;
        for ((place, ..), stored) in placed.iter().zip(stored) {
            done[*place] = Some(stored.map_err(DeviceStoreError::from));
        }
    }
}
