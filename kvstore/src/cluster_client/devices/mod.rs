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
//! What adapters reach of a device ([`DeviceClient::land`]) they bring there: of a whole object that goes into one piece of
//! it, the room is not filled then.
//!
//! Objects are whole in between: what reaches a device has been verified as what reaches any other memory. So it is
//! objects that overlap, and not pieces of one: while one group of a batch is with the device, another is with the
//! store. Short objects are in a group together, as they come together from their homes. Long ones that are in parts
//! go part by part.
//!
//! On one host that is not needed: what is seen there, and what stays on this core, the device copies from and to where it
//! lies, and sums it (`seen`, `placed`).
//!
//! | file | subject |
//! |---|---|
//! | `piece` | memory of devices and of this host, and the copies between it and rooms |
//! | `seen` | objects that are got from where they lie |
//! | `placed` | objects that are put where they stay |
//! | `lending` | bytes of a device that threads carry on |
//! | `summing` | who sums what a device copies |
//! | `long` | objects in parts |
//! | here | objects in groups |

mod lending;
mod long;
mod piece;
mod placed;
mod seen;
mod summing;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::Version;
use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::{DeviceFault, DeviceSegment};
use lunette_transfer::{Room, Staged, Staging};
use thiserror::Error;

use super::adapters::{DeviceCheck, DeviceLanding, Standing, TooManyLandings};
use super::objects::{Among, Putting};
use super::{ClusterClient, Fetched, PutOptions, Stored};
use crate::client::GetFailure;
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;
pub(crate) use lending::Lending;
pub(crate) use piece::Piece;
use piece::{download, len, upload};
use summing::Summing;

/// Objects that travel together have no more bytes than this, unless it is one alone.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Objects that travel together.
const GROUP_OBJECTS_MAX: usize = 64;
/// Copies that a device makes at once, unless one object has more.
const PIECES_MAX: usize = 4096;
/// Groups of one batch at a time: one with the device and one with the store, and one more of each.
const GROUPS_MAX: usize = 4;

/// A client that puts from and gets into memory of devices. Clones share the bound on what is on its way.
///
/// Dropping a future of it leaves with a device what the device has; that memory is held until it has let go.
#[derive(Clone, Debug)]
pub struct DeviceClient {
    client: ClusterClient,
    staging: Rc<Staging>,
    summing: Rc<Summing>,
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
    /// There is no object. The memory is as it was, unless adapters reach it, or the object was lost while the device
    /// copied it.
    Miss {
        /// Whether that is sure. Otherwise a home does not know yet what all members hold.
        is_known: bool,
    },
}

/// Why an object was not put from a device's memory, or got into it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DeviceStoreError {
    /// The store. A device's memory is as it was, unless adapters reach it, or the object was lost while the device copied
    /// it.
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

impl From<DeviceStoreError> for StoreError {
    fn from(error: DeviceStoreError) -> Self {
        Self::local(match error {
            DeviceStoreError::Store(error) => return error,
            DeviceStoreError::Device(fault) => StoreErrorKind::Device(fault),
            DeviceStoreError::NoRoom { len_bytes } => StoreErrorKind::NoStaging { len_bytes },
        })
    }
}

/// An object of a batch, and where its bytes are, or are to be.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) key: Vec<u8>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) among: Among,
}

/// Room that is staged for a group, and which of it is whose.
type Rooms = (Staged, Vec<Exposed>);

impl DeviceClient {
    /// A client whose objects have `staging_bytes_max` bytes of this core's arena on their way at most, unless a
    /// group of a batch alone is longer: of 4 MiB, or of one object. Further ones wait, in their order.
    #[must_use]
    pub fn new(client: ClusterClient, staging_bytes_max: usize) -> Self {
        Self {
            client,
            staging: Rc::new(Staging::new(staging_bytes_max)),
            summing: Rc::new(Summing::new()),
        }
    }

    /// The client by which it asks.
    #[must_use]
    pub const fn client(&self) -> &ClusterClient {
        &self.client
    }

    /// Lets adapters bring what is got into parts of this memory of a device straight there: owners' adapters write it, and
    /// the client's read into it, as [`ClusterClient::land`] says of memory of the host. It is registered with each of the
    /// client's adapters by its dma-buf; one that does not take that brings objects by way of memory of the host, as ever
    /// ([`DeviceLanding::adapters`] counts those that do). Of what they bring a `check` says how it is known to be right.
    ///
    /// So come objects that are not in parts, into one piece that is no longer than they may be. A get that fails, or finds
    /// nothing in the end, may have changed such memory.
    ///
    /// # Errors
    /// [`TooManyLandings`].
    pub async fn land(
        &self,
        memory: &DeviceSegment,
        check: DeviceCheck,
    ) -> Result<DeviceLanding, TooManyLandings> {
        self.client.asking.adapters.land_device(memory, check).await
    }

    /// As [`ClusterClient::put`], of the bytes of devices' memory, one piece after the other. They are what lies there
    /// when the devices copy them: what a stream of somebody else has still to write is to be waited for before
    /// (`lunette_gpu::Stream::after_engine`). What is written in parts is copied part by part, and some again if they
    /// are lost before all are there.
    ///
    /// # Errors
    /// [`DeviceStoreError`]: as of `put`.
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
        objects: &[(Vec<u8>, Vec<DeviceSegment>)],
        options: PutOptions,
    ) -> Vec<Result<Stored, DeviceStoreError>> {
        self.put_each(&of_devices(objects), options).await
    }

    /// As [`put_all`](Self::put_all), of memory of devices and of this host.
    pub(crate) async fn put_each(
        &self,
        objects: &[Object],
        options: PutOptions,
    ) -> Vec<Result<Stored, DeviceStoreError>> {
        let done = self.put_placed(objects, options).await;
        let put = async |group: &[Object]| self.put_group(group, options).await;
        self.others(objects, done, put).await
    }

    /// As [`ClusterClient::get`], into devices' memory, one piece after the other. It is written when all of the value
    /// has come and been verified, and is there for whatever is queued on a device after this has ended. What lies in memory
    /// of this host the device may copy while it is verified, and copies again if it was not right. Of an object in
    /// parts that is longer than 32 MiB it is written part by part: where that fails or the object is lost meanwhile,
    /// the memory may hold anything.
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
    pub async fn get_all(
        &self,
        wanted: &[(Vec<u8>, Vec<DeviceSegment>)],
    ) -> Vec<Result<DeviceFetched, DeviceStoreError>> {
        let fetched = self.get_each(&of_devices(wanted)).await.into_iter();
        fetched
            .map(|fetched| fetched.map(DeviceFetched::from))
            .collect()
    }

    /// As [`get_all`](Self::get_all), into memory of devices and of this host. Rooms stay here.
    pub(crate) async fn get_each(
        &self,
        wanted: &[Object],
    ) -> Vec<Result<Landed, DeviceStoreError>> {
        let seen = self.get_seen(wanted).await;
        let done = seen.into_iter().map(|landed| landed.map(Ok)).collect();
        let get = async |group: &[Object]| self.get_group(group).await;
        self.others(wanted, done, get).await
    }

    /// Does `each` for those that are not done, in groups; the results in the order of all.
    async fn others<T>(
        &self,
        objects: &[Object],
        done: Vec<Option<T>>,
        each: impl AsyncFn(&[Object]) -> Vec<T>,
    ) -> Vec<T> {
        if done.iter().all(Option::is_none) {
            return self.in_groups(objects, each).await;
        }
        let left = objects.iter().zip(&done);
        let left = left.filter(|(_, done)| done.is_none());
        let left: Vec<Object> = left.map(|(object, _)| object.clone()).collect();
        let mut results = self.in_groups(&left, each).await.into_iter();
        let done = done.into_iter();
        done.map(|done| done.unwrap_or_else(|| results.next().expect("one for each that is left")))
            .collect()
    }

    /// As [`ClusterClient::get_ranges`], into memory of devices and of this host: 64 MiB at most.
    pub(crate) async fn get_ranges(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        to: &[Piece],
    ) -> Result<Landed, DeviceStoreError> {
        let staged = self.stage(len(to)).await?;
        let room = staged.memory().slice(0, len(to));
        let into = Room::exposed(vec![room.clone()]);
        let landed = landed(self.client.get_ranges(key, ranges, into).await)?;
        let arrived = room.slice(0, landed.len_bytes());
        upload(to, &arrived)
            .end()
            .await
            .map_err(DeviceStoreError::Device)?;
        Ok(landed)
    }

    /// The bytes of memory of devices and of this host, as a value, and what keeps them.
    pub(crate) async fn value_of(
        &self,
        from: &[Piece],
    ) -> Result<(Value, Staged), DeviceStoreError> {
        let staged = self.stage(len(from)).await?;
        let room = staged.memory().slice(0, len(from));
        download(from, &room)
            .end()
            .await
            .map_err(DeviceStoreError::Device)?;
        Ok((Value::gathered(vec![room.into()]), staged))
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
        if let [object] = group
            && let Some(part_len) = long::part_len_of(object, options)
        {
            return vec![self.put_long(object, part_len, options).await];
        }
        let (_staged, rooms) = match self.rooms(group).await {
            Ok(rooms) => rooms,
            Err(error) => return group.iter().map(|_| Err(error)).collect(),
        };
        let faults = faults(group, &rooms, download).await;
        let whole = group.iter().zip(&rooms).zip(&faults);
        let whole = whole.filter(|(_, fault)| fault.is_ok());
        let values: Vec<(&Object, Value)> = whole
            .map(|((object, room), _)| (object, Value::gathered(vec![room.clone().into()])))
            .collect();
        let values = values.iter().map(|(object, value)| Putting {
            key: &object.key,
            value,
            placed: None,
            among: object.among,
        });
        let until = self.client.until(Duration::ZERO);
        let stored = self.client.put_each(values, options, until).await;
        let mut stored = stored.into_iter();
        let results = faults.into_iter().map(|fault| match fault {
            Err(fault) => Err(DeviceStoreError::Device(fault)),
            Ok(()) => Ok(stored.next().expect("one for each")?),
        });
        results.collect()
    }

    async fn get_group(&self, group: &[Object]) -> Vec<Result<Landed, DeviceStoreError>> {
        if let [object] = group
            && long::may_be_long(object)
        {
            return vec![self.get_long(object).await];
        }
        self.get_short(group).await
    }

    /// Gets objects that are no longer than their memory, all of which is staged.
    async fn get_short(&self, group: &[Object]) -> Vec<Result<Landed, DeviceStoreError>> {
        let (_staged, rooms) = match self.rooms(group).await {
            Ok(rooms) => rooms,
            Err(error) => return group.iter().map(|_| Err(error)).collect(),
        };
        let wanted = group.iter().zip(&rooms);
        let standing: Vec<Option<Standing>> = wanted
            .clone()
            .map(|(object, room)| match &object.pieces[..] {
                [Piece::Device(memory)] => self.client.asking.adapters.stand(room, memory),
                _ => None,
            })
            .collect();
        let wanted =
            wanted.map(|(object, room)| (object.key.clone(), Room::exposed(vec![room.clone()])));
        let fetched = self.client.get_all(wanted).await;
        let fetched: Vec<Result<Landed, DeviceStoreError>> =
            fetched.into_iter().map(landed).collect();
        let arrived: Vec<Exposed> = fetched
            .iter()
            .zip(&rooms)
            .zip(&standing)
            .map(|((fetched, room), standing)| {
                let is_there = standing.as_ref().is_some_and(Standing::is_there);
                let len_bytes = fetched.as_ref().map_or(0, Landed::len_bytes);
                room.slice(0, if is_there { 0 } else { len_bytes })
            })
            .collect();
        drop(standing);
        let faults = faults(group, &arrived, upload).await;
        let results = fetched.into_iter().zip(faults);
        let results = results.map(|(fetched, fault)| match fault {
            Err(fault) => Err(DeviceStoreError::Device(fault)),
            Ok(()) => fetched,
        });
        results.collect()
    }

    /// Room for all bytes of a group, in its turn, and which of it is whose.
    async fn rooms(&self, group: &[Object]) -> Result<Rooms, DeviceStoreError> {
        let lens = group.iter().map(|object| len(&object.pieces));
        let staged = self.stage(lens.fold(0, usize::saturating_add)).await?;
        let mut start = 0;
        let room = |object: &Object| {
            let room = staged.memory().slice(start, len(&object.pieces));
            start += room.len();
            room
        };
        let rooms = group.iter().map(room).collect();
        Ok((staged, rooms))
    }

    async fn stage(&self, len_bytes: usize) -> Result<Staged, DeviceStoreError> {
        let staged = self.staging.take(len_bytes.max(1)).await;
        staged.ok_or(DeviceStoreError::NoRoom { len_bytes })
    }
}

/// What came of a get, when its bytes are where they belong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Landed {
    Hit {
        len_bytes: usize,
        object_len_bytes: usize,
        version: Version,
        is_cut_off: bool,
    },
    Miss {
        is_known: bool,
    },
}

impl Landed {
    const fn len_bytes(&self) -> usize {
        match self {
            Self::Hit { len_bytes, .. } => *len_bytes,
            Self::Miss { .. } => 0,
        }
    }
}

impl From<Landed> for DeviceFetched {
    fn from(landed: Landed) -> Self {
        match landed {
            Landed::Hit {
                len_bytes,
                version,
                is_cut_off,
                ..
            } => Self::Hit {
                len_bytes,
                version,
                is_cut_off,
            },
            Landed::Miss { is_known } => Self::Miss { is_known },
        }
    }
}

fn of_devices(objects: &[(Vec<u8>, Vec<DeviceSegment>)]) -> Vec<Object> {
    let count = objects.len();
    let object = |(index, (key, memory)): (usize, &(Vec<u8>, Vec<DeviceSegment>))| Object {
        key: key.clone(),
        pieces: memory.iter().cloned().map(Piece::Device).collect(),
        among: Among::at(index, count),
    };
    objects.iter().enumerate().map(object).collect()
}

/// Consecutive objects that travel together.
fn groups(objects: &[Object]) -> Vec<&[Object]> {
    let mut groups = Vec::new();
    let (mut first, mut bytes) = (0, 0_usize);
    for (index, object) in objects.iter().enumerate() {
        let with_it = bytes.saturating_add(len(&object.pieces));
        let is_full = with_it > GROUP_BYTES_MAX || index - first == GROUP_OBJECTS_MAX;
        if is_full && index > first {
            groups.push(&objects[first..index]);
            (first, bytes) = (index, len(&object.pieces));
        } else {
            bytes = with_it;
        }
    }
    if first < objects.len() {
        groups.push(&objects[first..]);
    }
    groups
}

/// Copies between each object's memory and its room, all at the same time: what became of each.
async fn faults(
    group: &[Object],
    rooms: &[Exposed],
    copy: impl Fn(&[Piece], &Exposed) -> piece::Copies,
) -> Vec<Result<(), DeviceFault>> {
    let copies = group.iter().zip(rooms);
    let copies = copies.map(|(object, room)| copy(&object.pieces, room));
    let copies: Vec<_> = copies.map(piece::Copies::end).collect();
    join_all(copies).await
}

fn landed(fetched: Result<Fetched, GetFailure>) -> Result<Landed, DeviceStoreError> {
    match fetched {
        Ok(Fetched::Hit {
            len_bytes,
            object_len_bytes,
            version,
            is_cut_off,
            ..
        }) => Ok(Landed::Hit {
            len_bytes,
            object_len_bytes,
            version,
            is_cut_off,
        }),
        Ok(Fetched::Miss { is_known, .. }) => Ok(Landed::Miss { is_known }),
        Err(failure) => Err(failure.error.into()),
    }
}
