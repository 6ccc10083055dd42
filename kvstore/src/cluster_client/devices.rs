//! Objects that come from devices and go to them.
//!
//! A device's memory is no place from which bytes are sent, so they go by way of pieces of this core's arena, which
//! devices copy to and from at their full rate:
//!
//! ```text
//!   put    room -> copies from the device -> put, checksum included
//!   get    room -> get, verified          -> copies to the device
//! ```
//!
//! Objects are whole in between: what reaches a device has been verified as what reaches any other memory. So it is
//! objects that overlap, and not pieces of one: while one group of a batch is with the device, another is with the
//! store. Short objects are in a group together, as they come together from their homes.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::future::join_all;
use lunette_kvstore_proto::version::Version;
use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::{DeviceFault, DeviceSegment};
use lunette_transfer::{Room, Staged, Staging};
use thiserror::Error;

use super::{ClusterClient, Fetched, PutOptions, Stored};
use crate::error::StoreError;
use crate::value::Value;

/// Objects that travel together have no more bytes than this, unless it is one alone.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Objects that travel together.
const GROUP_OBJECTS_MAX: usize = 64;
/// Groups of one batch at a time: one with the device and one with the store, and one more of each.
const GROUPS_MAX: usize = 4;

/// A client that puts from and gets into memory of devices. Clones share the bound on what is on its way.
///
/// Dropping a future of it leaves with a device what the device has; that memory is held until it has let go.
#[derive(Clone, Debug)]
pub struct DeviceClient {
    client: ClusterClient,
    staging: Rc<Staging>,
}

/// What came of a get into a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFetched {
    /// The value is at the front of the memory. What is behind it is as it was.
    Hit {
        /// Length of the value in bytes.
        len_bytes: usize,
        /// Its version.
        version: Version,
        /// The owner was cut off, in a cache namespace: the object may have been removed meanwhile.
        is_cut_off: bool,
    },
    /// There is no object. The memory is as it was.
    Miss {
        /// Whether that is sure. Otherwise a home does not know yet what all members hold.
        is_known: bool,
    },
}

/// Why an object was not put from a device's memory, or got into it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DeviceStoreError {
    /// The store. A device's memory is as it was.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device. Nothing was put; memory into which was got may hold anything.
    #[error("the device: {0}")]
    Device(DeviceFault),
    /// This core's arena has no room for an object of this length. Nothing was done.
    #[error("no memory to stage {len_bytes} bytes in")]
    NoRoom {
        /// The length of all that was to be staged together.
        len_bytes: usize,
    },
}

impl DeviceStoreError {
    /// Whether the same operation may succeed when tried again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Device(fault) => fault.is_retryable(),
            Self::NoRoom { .. } => true,
        }
    }

    /// Whether a limit was met: wait for something, or free something.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        match self {
            Self::Store(error) => error.is_backpressure(),
            Self::Device(fault) => fault.is_backpressure(),
            Self::NoRoom { .. } => true,
        }
    }

    /// Whether bytes were damaged.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_corruption())
    }
}

/// An object, and the memory of devices in which its bytes are, or are to be, one piece after the other.
type Object = (Vec<u8>, Vec<DeviceSegment>);
/// A copy between a device and memory of an arena.
type Copy = Pin<Box<dyn Future<Output = Result<(), DeviceFault>>>>;

impl DeviceClient {
    /// A client whose objects have `staging_bytes_max` bytes of this core's arena on their way at most, unless a
    /// group of a batch alone is longer: of 4 MiB, or of one object. Further ones wait, in their order.
    #[must_use]
    pub fn new(client: ClusterClient, staging_bytes_max: usize) -> Self {
        Self {
            client,
            staging: Rc::new(Staging::new(staging_bytes_max)),
        }
    }

    /// The client by which it asks.
    #[must_use]
    pub const fn client(&self) -> &ClusterClient {
        &self.client
    }

    /// As [`ClusterClient::put`], of the bytes of devices' memory, one piece after the other. They are what lies there
    /// when the devices copy them: what a stream of somebody else has still to write is to be waited for before
    /// (`lunette_gpu::Stream::after_engine`).
    ///
    /// # Errors
    /// [`DeviceStoreError`]. An object has to fit into one chunk of the core's arena, in whatever parts it is put.
    pub async fn put(
        &self,
        key: &[u8],
        from: &[DeviceSegment],
        options: PutOptions,
    ) -> Result<Stored, DeviceStoreError> {
        let object = [(key.to_vec(), from.to_vec())];
        let mut stored = self.put_all(&object, options).await;
        stored.pop().expect("one for each")
    }

    /// As [`put`](Self::put), of many objects, whose results are in their order. Groups of them are on their way at the
    /// same time; [`PutOptions::is_same_node`] is heeded for each group by itself.
    ///
    /// # Errors
    /// One for each.
    pub async fn put_all(
        &self,
        objects: &[Object],
        options: PutOptions,
    ) -> Vec<Result<Stored, DeviceStoreError>> {
        self.in_groups(objects, async |group| self.put_group(group, options).await)
            .await
    }

    /// As [`ClusterClient::get`], into devices' memory, one piece after the other. It is written when all of the value
    /// has come and been verified, and is there for whatever is queued on a device after this has ended.
    ///
    /// # Errors
    /// [`DeviceStoreError`].
    pub async fn get(
        &self,
        key: &[u8],
        to: &[DeviceSegment],
    ) -> Result<DeviceFetched, DeviceStoreError> {
        let wanted = [(key.to_vec(), to.to_vec())];
        let mut fetched = self.get_all(&wanted).await;
        fetched.pop().expect("one for each")
    }

    /// As [`get`](Self::get), of many objects, whose results are in their order.
    ///
    /// # Errors
    /// One for each.
    pub async fn get_all(&self, wanted: &[Object]) -> Vec<Result<DeviceFetched, DeviceStoreError>> {
        self.in_groups(wanted, async |group| self.get_group(group).await)
            .await
    }

    /// Does `each` for all groups of objects, some of them at a time; the results in the order of the objects.
    async fn in_groups<T>(
        &self,
        objects: &[Object],
        each: impl AsyncFn(&[Object]) -> Vec<T>,
    ) -> Vec<T> {
        let groups: Vec<&[Object]> = groups(objects);
        let ended: RefCell<Vec<Vec<T>>> = RefCell::new(groups.iter().map(|_| Vec::new()).collect());
        let next = RefCell::new(groups.iter().enumerate());
        let take = || next.borrow_mut().next();
        let walk = async || {
            while let Some((index, group)) = take() {
                let results = each(group).await;
                ended.borrow_mut()[index] = results;
            }
        };
        let walks = (0..GROUPS_MAX.min(groups.len())).map(|_| Box::pin(walk()));
        join_all(walks).await;
        ended.into_inner().into_iter().flatten().collect()
    }

    async fn put_group(
        &self,
        group: &[Object],
        options: PutOptions,
    ) -> Vec<Result<Stored, DeviceStoreError>> {
        let (_staged, rooms) = match self.room(group).await {
            Ok(room) => room,
            Err(error) => return group.iter().map(|_| Err(error)).collect(),
        };
        let faults = copy(group, &rooms, |memory, room| {
            Box::pin(async move { memory.download(room).await })
        })
        .await;
        let whole = group.iter().zip(&rooms).zip(&faults);
        let whole = whole.filter(|(_, fault)| fault.is_none());
        let values: Vec<(Vec<u8>, Value)> = whole
            .map(|(((key, _), room), _)| (key.clone(), Value::gathered(vec![room.clone().into()])))
            .collect();
        let stored = self.client.put_all(&values, options).await;
        let mut stored = stored.into_iter();
        let results = faults.into_iter().map(|fault| match fault {
            Some(fault) => Err(DeviceStoreError::Device(fault)),
            None => Ok(stored.next().expect("one for each")?),
        });
        results.collect()
    }

    async fn get_group(&self, group: &[Object]) -> Vec<Result<DeviceFetched, DeviceStoreError>> {
        let (_staged, rooms) = match self.room(group).await {
            Ok(room) => room,
            Err(error) => return group.iter().map(|_| Err(error)).collect(),
        };
        let wanted = group.iter().zip(&rooms);
        let wanted =
            wanted.map(|((key, _), room)| (key.clone(), Room::exposed(vec![room.clone()])));
        let fetched = self.client.get_all(wanted).await;
        let fetched: Vec<Result<DeviceFetched, DeviceStoreError>> =
            fetched.into_iter().map(verdict).collect();
        let arrived: Vec<Exposed> = fetched
            .iter()
            .zip(&rooms)
            .map(|(fetched, room)| match fetched {
                Ok(DeviceFetched::Hit { len_bytes, .. }) => room.slice(0, *len_bytes),
                _ => room.slice(0, 0),
            })
            .collect();
        let faults = copy(group, &arrived, |memory, room| {
            Box::pin(async move { memory.upload(room).await })
        })
        .await;
        let results = fetched.into_iter().zip(faults);
        let results = results.map(|(fetched, fault)| match fault {
            Some(fault) => Err(DeviceStoreError::Device(fault)),
            None => fetched,
        });
        results.collect()
    }

    /// Room for all bytes of a group, in its turn, and which of it is whose.
    async fn room(&self, group: &[Object]) -> Result<(Staged, Vec<Exposed>), DeviceStoreError> {
        let len_bytes: usize = group.iter().map(len).sum();
        let staged = self.staging.take(len_bytes.max(1)).await;
        let staged = staged.ok_or(DeviceStoreError::NoRoom { len_bytes })?;
        let mut start = 0;
        let room = |object| {
            let room = staged.memory().slice(start, len(object));
            start += room.len();
            room
        };
        let rooms = group.iter().map(room).collect();
        Ok((staged, rooms))
    }
}

fn len((_, memory): &Object) -> usize {
    let len = memory.iter().map(DeviceSegment::len_bytes).sum::<u64>();
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Consecutive objects that travel together.
fn groups(objects: &[Object]) -> Vec<&[Object]> {
    let mut groups = Vec::new();
    let (mut first, mut bytes) = (0, 0_usize);
    for (index, object) in objects.iter().enumerate() {
        let with_it = bytes.saturating_add(len(object));
        let is_full = with_it > GROUP_BYTES_MAX || index - first == GROUP_OBJECTS_MAX;
        if is_full && index > first {
            groups.push(&objects[first..index]);
            (first, bytes) = (index, len(object));
        } else {
            bytes = with_it;
        }
    }
    if first < objects.len() {
        groups.push(&objects[first..]);
    }
    groups
}

/// Copies between the memory of each object and the front of its room, as much as the room has; all at the same time.
/// The first fault of each object.
async fn copy(
    group: &[Object],
    rooms: &[Exposed],
    each: impl Fn(DeviceSegment, Exposed) -> Copy,
) -> Vec<Option<DeviceFault>> {
    let (mut whose, mut copies) = (Vec::new(), Vec::new());
    for (index, ((_, memory), room)) in group.iter().zip(rooms).enumerate() {
        let mut start = 0;
        for memory in memory {
            let here = usize::try_from(memory.len_bytes()).unwrap_or(usize::MAX);
            let here = here.min(room.len() - start);
            if here > 0 {
                whose.push(index);
                let part = memory.slice(0..here as u64);
                copies.push(each(part, room.slice(start, here)));
                start += here;
            }
        }
    }
    let mut faults = vec![None; group.len()];
    for (index, copied) in whose.into_iter().zip(join_all(copies).await) {
        faults[index] = faults[index].or(copied.err());
    }
    faults
}

fn verdict(
    fetched: Result<Fetched, crate::client::GetFailure>,
) -> Result<DeviceFetched, DeviceStoreError> {
    match fetched {
        Ok(Fetched::Hit {
            len_bytes,
            version,
            is_cut_off,
            ..
        }) => Ok(DeviceFetched::Hit {
            len_bytes,
            version,
            is_cut_off,
        }),
        Ok(Fetched::Miss { is_known, .. }) => Ok(DeviceFetched::Miss { is_known }),
        Err(failure) => Err(failure.error.into()),
    }
}
