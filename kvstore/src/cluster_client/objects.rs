//! Objects: puts, gets, parts of objects, and many of them at a time.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{Peek, StripedReply};
use lunette_kvstore_proto::range::{ByteRange, RANGES_MAX, total_bytes};
use lunette_kvstore_proto::retention::{GroupId, Parent, Retention};
use lunette_kvstore_proto::striped::{OBJECT_LEN_MAX, part_len};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::{COPIES_WANTED_MAX, Form, WriteKind};
use lunette_runtime::arena::RegionMut;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::Room;

use super::gathering::Get;
use super::running::{Arrived, Brought, Ended};
use super::trying::Writing;
use super::{ClusterClient, Fetched, PutOptions, Stored, local};
use crate::client::GetFailure;
use crate::error::{StoreError, StoreErrorKind};
use crate::member::{Here, LENT_MIN, LentCopy, LentRoom, Placed, RoomHere};
use crate::value::Value;

/// How long to wait for a newer map before a write is tried elsewhere.
const MAP_WAIT: Duration = Duration::from_millis(50);
/// How many of a batch are begun before the first has ended.
const BATCH_AHEAD: usize = 1024;

impl ClusterClient {
    /// Writes `value` under `key`: where the options wish it to be, or on the own node of a client that is
    /// inside of one and has room, or at the key's home. What is longer than `options.stripe_len`, or too long for
    /// one copy, is written in parts, each of which has the time of an operation: a put of what is there already
    /// writes none, and one that fails removes those that it has written, as well as it goes.
    ///
    /// The value's bytes are pinned until they have been sent, also if the future is dropped; the write
    /// may happen all the same then.
    ///
    /// # Errors
    /// [`StoreError`]: `TimedOut` if nothing was done in time; `Interrupted` if it may have been; `Refused` as
    /// `Full` if there was no room all that time, or not for all parts of an object at a time; `ValueTooLong`
    /// if it is longer than [`OBJECT_LEN_MAX`].
    pub async fn put(
        &self,
        key: &[u8],
        value: Value,
        options: PutOptions,
    ) -> Result<Stored, StoreError> {
        let until = time::now() + self.timeout;
        let key = self.own(key);
        let (key, parts) = self.check(&key, &value, options)?;
        let object = Writing::alone(key, &value, options);
        if let Some(part_len) = parts {
            return Box::pin(self.put_striped(object, &value, part_len, None)).await;
        }
        let places = self.places(key, &options, None);
        self.put_at(object, places, until).await
    }

    /// As [`put`](Self::put), of many objects, whose results are in their order. Their bytes are on the way
    /// at the same time. They are taken for the blocks of a prompt, of which each is worth nothing without those before
    /// it: so the last is written first, and leaves memory first; that it is the last is remembered too, as it is less
    /// likely to be asked for again.
    ///
    /// # Errors
    /// One for each.
    pub async fn put_all(
        &self,
        objects: &[(Vec<u8>, Value)],
        options: PutOptions,
    ) -> Vec<Result<Stored, StoreError>> {
        let count = objects.len();
        let objects = objects.iter().enumerate();
        let objects = objects.map(|(index, (key, value))| Putting {
            key,
            value,
            placed: None,
            among: Among::at(index, count),
        });
        self.put_each(objects, options, self.until(Duration::ZERO))
            .await
    }

    /// As [`put_all`](Self::put_all), of the blocks of one prompt, in their order: each is of no use without the one before,
    /// and the first without what is under `after`, if that is named. When a block is gone, those behind it leave memory before
    /// what is of use, wherever they are, unless they are used first; see [`PutOptions::behind`].
    ///
    /// # Errors
    /// One for each.
    pub async fn put_chain(
        &self,
        after: Option<&[u8]>,
        blocks: &[(Vec<u8>, Value)],
        options: PutOptions,
    ) -> Vec<Result<Stored, StoreError>> {
        let before = blocks.iter().map(|(key, _)| key.as_slice());
        let before = std::iter::once(after).chain(before.map(Some));
        let count = blocks.len();
        let blocks = blocks.iter().zip(before).enumerate();
        let blocks = blocks.map(|(index, ((key, value), before))| Putting {
            key,
            value,
            placed: None,
            among: Among {
                behind: before.and_then(|key| self.parent(key)),
                ..Among::at(index, count)
            },
        });
        let blocks: Vec<_> = blocks.collect();
        let until = self.until(Duration::ZERO);
        self.put_each(blocks.into_iter(), options, until).await
    }

    /// What objects are put [behind](PutOptions::behind) that are of no use without the one under this key; `None` if it is
    /// no key.
    #[must_use]
    pub fn parent(&self, key: &[u8]) -> Option<Parent> {
        let key = self.own(key);
        let key = self.valid(&key).ok()?;
        Some(Parent(key.fingerprint()))
    }

    /// When the time of an operation is over that is under way for so long already.
    pub(crate) fn until(&self, spent: Duration) -> Time {
        time::now() + self.timeout.saturating_sub(spent)
    }

    /// As [`put_all`](Self::put_all), of objects some of which have been placed, and all or some of a batch. What is put in parts has
    /// its own time.
    pub(crate) async fn put_each(
        &self,
        objects: impl DoubleEndedIterator<Item = Putting<'_>> + Clone,
        options: PutOptions,
        until: Time,
    ) -> Vec<Result<Stored, StoreError>> {
        let together = if options.is_same_node && options.preferred.is_empty() {
            let objects = objects.clone();
            self.one_node(objects.map(|object| (object.key, object.value)))
                .await
        } else {
            None
        };
        let keys = objects.clone().rev().map(|putting| self.own(putting.key));
        let keys: Vec<Cow<'_, [u8]>> = keys.collect();
        let begun = objects.rev().zip(&keys).map(|(putting, key)| {
            let (key, parts) = self.check(key, putting.value, options)?;
            let object = Writing {
                key,
                value: putting.value,
                placed: putting.placed,
                options: PutOptions {
                    group: putting.among.group.or(options.group),
                    behind: putting.among.behind.or(options.behind),
                    ..options
                },
                form: Form::Whole,
                is_last: putting.among.is_last,
            };
            if let Some(part_len) = parts {
                return Ok((object, Err(part_len)));
            }
            let mut places = self.places(key, &options, together);
            let together = &self.asking.together;
            let begun = together.begin(|| self.begin_next(&mut places, object, until));
            Ok((object, Ok((places, begun))))
        });
        let end = async |begun: Result<_, StoreError>| {
            self.asking.send_together();
            let (object, begun) = begun?;
            match begun {
                Ok((places, begun)) => self.put_begun(object, places, begun, until).await,
                Err(part_len) => {
                    let put = self.put_striped(object, object.value, part_len, together);
                    Box::pin(put).await
                }
            }
        };
        let mut stored = batch(begun, end).await;
        stored.reverse();
        stored
    }

    /// As the options wish it, in the tenant's group.
    pub(super) fn retention(&self, options: &PutOptions, is_last: bool) -> Retention {
        retention_in(&self.tenant, options, is_last)
    }

    /// The key, and the length of the object's parts if it is to be in several.
    fn check<'a>(
        &self,
        own: &'a [u8],
        value: &Value,
        options: PutOptions,
    ) -> Result<(Key<'a>, Option<u32>), StoreError> {
        let key = self.valid(own)?;
        options.check()?;
        let part_len = parts_of(value.len(), options)?;
        if part_len.is_none() {
            value.check().map_err(StoreError::local)?;
        }
        Ok((key, part_len))
    }

    pub(super) async fn wait_for_map(&self, until: Time) -> Result<(), StoreError> {
        if time::now() >= until {
            return Err(StoreError::local(StoreErrorKind::TimedOut));
        }
        self.asking.renew_map(MAP_WAIT).await;
        Ok(())
    }

    /// Gets the value under `key` into the front of `room`; its checksum has been verified. One that is in parts is
    /// there if all of its parts are.
    ///
    /// The room is lent until the future ends. Dropping the future frees it as soon as no receive
    /// into it is in flight.
    ///
    /// # Errors
    /// [`GetFailure`], with the room.
    pub async fn get(&self, key: &[u8], room: Room) -> Result<Fetched, GetFailure> {
        self.get_by(key, &[], room).await
    }

    async fn get_by(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        room: Room,
    ) -> Result<Fetched, GetFailure> {
        let key = &*self.own(key);
        let fetched = match self.valid(key) {
            Ok(key) => self.fetch(key, ranges, room).await,
            Err(error) => {
                let room = Some(room);
                return Err(GetFailure { error, room });
            }
        };
        self.get_parts(key, ranges, fetched).await
    }

    /// The parts of an object that is in parts; what came of the get, if it is not.
    async fn get_parts(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        fetched: Fetching,
    ) -> Result<Fetched, GetFailure> {
        match fetched {
            Fetching::Done(ended) => ended,
            Fetching::Striped(room, reply) => {
                Box::pin(self.get_striped(key, ranges, room, reply)).await
            }
        }
    }

    /// What this core knows of it, or is seen of it; the room, if it is to be asked for.
    pub(super) fn get_here(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        room: Room,
    ) -> Result<Fetching, Room> {
        match self.get_inside(key, ranges, room) {
            Err(room) if ranges.is_empty() => self.get_seen(key, room),
            got => got,
        }
    }

    /// What this core knows of it.
    fn get_inside(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        mut room: Room,
    ) -> Result<Fetching, Room> {
        let (Some(local), Ok(key)) = (self.inside(), Key::new(key)) else {
            return Err(room);
        };
        let done = match local.get(key, self.asking.namespace(), ranges, &mut room) {
            Here::Unsure => return Err(room),
            Here::Striped {
                version,
                is_cut_off,
                manifest,
            } => {
                let reply = StripedReply {
                    version,
                    is_cut_off,
                    manifest,
                };
                return Ok(Fetching::Striped(room, reply));
            }
            Here::Miss => Ok(Fetched::Miss {
                room,
                is_known: true,
            }),
            Here::OutOfRange { object_len_bytes } => {
                let error = StoreError::local(StoreErrorKind::OutOfRange { object_len_bytes });
                let room = Some(room);
                Err(GetFailure { error, room })
            }
            Here::Hit {
                version,
                is_cut_off,
                len_bytes,
                object_len_bytes,
            } => Ok(Fetched::Hit {
                room,
                len_bytes,
                object_len_bytes,
                version,
                is_cut_off,
            }),
        };
        Ok(Fetching::Done(done))
    }

    /// The object, for a thread of this process to read where it lies, if this core has it in one piece, and it is long
    /// but not longer than that.
    pub(crate) fn lend(&self, key: &[u8], len_max: usize) -> Option<LentCopy> {
        let (local, key) = (self.inside()?, self.own(key));
        local.lend(self.valid(&key).ok()?, self.asking.namespace(), len_max)
    }

    /// Room for a long object in one piece that stays on this core, for a thread of this process to fill; none for one
    /// that a put would find to be there.
    pub(crate) fn lend_room(
        &self,
        key: &[u8],
        len_bytes: usize,
        options: &PutOptions,
    ) -> Option<LentRoom> {
        let (local, key) = (self.inside()?, self.own(key));
        let key = self.valid(&key).ok()?;
        let stays = len_bytes >= LENT_MIN && self.may_stay(local, key, len_bytes, options);
        let room = stays.then(|| local.lend_room(key, u32::try_from(len_bytes).ok()?, options.pin));
        room.flatten()
    }

    /// Room for an object in one piece that stays on this core, for a device to fill, and the memory that is it; none for
    /// one that a put would find to be there.
    pub(super) fn room_here(
        &self,
        key: &[u8],
        len_bytes: usize,
        options: &PutOptions,
    ) -> Option<(RoomHere, RegionMut)> {
        let (local, key) = (self.inside()?, self.own(key));
        let key = self.valid(&key).ok()?;
        let stays = len_bytes > 0 && self.may_stay(local, key, len_bytes, options);
        let room = stays.then(|| local.room_here(key, u32::try_from(len_bytes).ok()?, options.pin));
        room.flatten()
    }

    /// Whether an object may be put where its writer is, and is in one piece, and not known to be there.
    fn may_stay(
        &self,
        local: &local::Local,
        key: Key<'_>,
        len_bytes: usize,
        options: &PutOptions,
    ) -> bool {
        let is_placed_elsewhere = options.is_same_node || !options.preferred.is_empty();
        let in_parts = part_len(len_bytes as u64, options.stripe_len);
        if is_placed_elsewhere || options.check().is_err() || !matches!(in_parts, Ok(None)) {
            return false;
        }
        let mut known = Peek::Unsure;
        let namespace = self.asking.namespace();
        local.peek(&[key.fingerprint()], namespace, |peek| known = peek);
        options.kind != WriteKind::Put || known != Peek::Present
    }

    /// The room has been filled with a value of this checksum: by that it is placed.
    pub(crate) fn filled(&self, room: LentRoom, crc32c: u32) -> Option<Placed> {
        Some(self.inside()?.filled(room, crc32c))
    }

    /// Gets ranges of the value under `key`, one after the other, into the front of `room`: at most
    /// [`RANGES_MAX`] of them. A room of several pieces takes each where it belongs.
    ///
    /// What has been verified is the way of the bytes; the checksum of the object is of all of it.
    ///
    /// # Errors
    /// [`GetFailure`], with the room: `OutOfRange`, which tells the object's length, if a range does not lie
    /// inside it; `ValueTooLong` if all of them together are longer than an object may be, or than one copy may
    /// be where the object is one.
    pub async fn get_ranges(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        room: Room,
    ) -> Result<Fetched, GetFailure> {
        let count = ranges.len();
        if !(1..=RANGES_MAX).contains(&count) {
            let error = StoreError::local(StoreErrorKind::Ranges { ranges: count });
            let room = Some(room);
            return Err(GetFailure { error, room });
        }
        if total_bytes(ranges) > OBJECT_LEN_MAX {
            let error = too_long(usize::try_from(total_bytes(ranges)).unwrap_or(usize::MAX));
            let room = Some(room);
            return Err(GetFailure { error, room });
        }
        self.get_by(key, ranges, room).await
    }

    /// As [`get`](Self::get), of many objects, whose results are in their order. Those that have little room come
    /// together from their home. The last one is asked for first: see [`put_all`](Self::put_all).
    ///
    /// # Errors
    /// One for each, with its room.
    pub async fn get_all(
        &self,
        wanted: impl IntoIterator<Item = (Vec<u8>, Room), IntoIter: DoubleEndedIterator>,
    ) -> Vec<Result<Fetched, GetFailure>> {
        let wanted = wanted.into_iter().rev().map(|(key, room)| {
            let key = self.own(&key).into_owned();
            Get {
                got: self.get_here(&key, &[], room),
                key,
            }
        });
        let mut gets: Vec<Get> = wanted.collect();
        self.gather(&mut gets).await;
        let begun = gets.into_iter().map(|Get { key, got }| {
            let begun = match got {
                Ok(fetched) => Err(fetched),
                Err(room) => {
                    let begun = self.begin_get(&key, Vec::new(), room);
                    begun.map_err(|failure| Fetching::Done(Err(failure)))
                }
            };
            (key, begun)
        });
        let end = async |(key, begun): (Vec<u8>, Result<_, Fetching>)| {
            let fetched = match begun {
                Ok(begun) => Fetching::of(begun.await),
                Err(fetched) => fetched,
            };
            self.get_parts(&key, &[], fetched).await
        };
        let mut fetched = batch(begun, end).await;
        fetched.reverse();
        fetched
    }

    fn begin_get(
        &self,
        key: &[u8],
        ranges: Vec<ByteRange>,
        room: Room,
    ) -> Result<impl Future<Output = Ended> + use<>, GetFailure> {
        match self.valid(key) {
            Ok(key) => Ok(self.begin_get_of(key, ranges, room)),
            Err(error) => {
                let room = Some(room);
                Err(GetFailure { error, room })
            }
        }
    }

    pub(super) fn begin_get_of(
        &self,
        key: Key<'_>,
        ranges: Vec<ByteRange>,
        room: Room,
    ) -> impl Future<Output = Ended> + use<> {
        let until = time::now() + self.timeout;
        let brought = Brought::Room(room, ranges);
        self.asking.begin(key, Wish::Get, brought, until)
    }
}

impl PutOptions {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if (1..=COPIES_WANTED_MAX).contains(&self.copies) {
            return Ok(());
        }
        let copies = self.copies;
        Err(StoreError::local(StoreErrorKind::Copies { copies }))
    }
}

/// How an object of a tenant is kept, as the options wish it.
pub(crate) fn retention_in(tenant: &Tenant, options: &PutOptions, is_last: bool) -> Retention {
    let tag = tenant.tag();
    Retention {
        is_last,
        pin: options.pin,
        group: options.group.map(|group| group.in_tenant(tag)),
        behind: options.behind,
    }
}

/// One of several objects that are put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Putting<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a Value,
    /// The same bytes, if they lie already where they are to stay.
    pub(crate) placed: Option<&'a Placed>,
    pub(crate) among: Among,
}

/// What an object is to those that it is put with, and to others of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Among {
    /// It is the last one of several that are put together. They are taken for blocks of a prompt, the last of which is
    /// not asked for again if the prompt goes on: what leaves memory first is learnt with that.
    pub(crate) is_last: bool,
    /// Its own group, if not that of all.
    pub(crate) group: Option<GroupId>,
    /// Its own parent, if not that of all.
    pub(crate) behind: Option<Parent>,
}

impl Among {
    /// Of an object at this place of so many.
    pub(crate) const fn at(index: usize, count: usize) -> Self {
        Self {
            is_last: count > 1 && index + 1 == count,
            group: None,
            behind: None,
        }
    }
}

/// What came of a get of what is under a key.
pub(super) enum Fetching {
    Done(Result<Fetched, GetFailure>),
    /// It is in parts, which are to be asked for.
    Striped(Room, StripedReply),
}

/// The length of the parts of an object of this length, if it is to be in several.
pub(crate) fn parts_of(len_bytes: usize, options: PutOptions) -> Result<Option<u32>, StoreError> {
    let part_len = part_len(len_bytes as u64, options.stripe_len);
    part_len.map_err(|_too_long| too_long(len_bytes))
}

pub(super) const fn too_long(len_bytes: usize) -> StoreError {
    StoreError::local(StoreErrorKind::ValueTooLong {
        len_bytes,
        len_max_bytes: OBJECT_LEN_MAX,
    })
}

impl Fetching {
    pub(super) fn of(ended: Ended) -> Self {
        match ended {
            Ended {
                outcome: Ok(Outcome::Hit(_)),
                room: Some(room),
                arrived: Some(Arrived::Striped(reply)),
            } => Self::Striped(room, reply),
            ended => Self::Done(fetched(ended)),
        }
    }
}

fn fetched(ended: Ended) -> Result<Fetched, GetFailure> {
    let failed = |kind, room| {
        let error = StoreError::local(kind);
        Err(GetFailure { error, room })
    };
    let Some(room) = ended.room else {
        let kind = ended.outcome.err().unwrap_or(StoreErrorKind::ShutDown);
        return failed(kind, None);
    };
    match (ended.outcome, ended.arrived) {
        (Ok(Outcome::Hit(version)), Some(Arrived::Bytes(reply, len_bytes))) => Ok(Fetched::Hit {
            room,
            len_bytes: len_bytes as usize,
            object_len_bytes: reply.object_len_bytes as usize,
            version,
            is_cut_off: reply.is_cut_off,
        }),
        (Ok(outcome @ (Outcome::Miss | Outcome::Unknown)), _) => Ok(Fetched::Miss {
            room,
            is_known: outcome == Outcome::Miss,
        }),
        (Ok(_), _) => failed(StoreErrorKind::TimedOut, Some(room)),
        (Err(kind), _) => failed(kind, Some(room)),
    }
}

/// Ends what an iterator begins, in its order: a bounded number is begun before the first has ended.
pub(super) async fn batch<B, T>(
    begun: impl IntoIterator<Item = B>,
    end: impl AsyncFn(B) -> T,
) -> Vec<T> {
    let mut under_way = VecDeque::new();
    let mut ended = Vec::new();
    for begun in begun {
        if under_way.len() >= BATCH_AHEAD
            && let Some(first) = under_way.pop_front()
        {
            ended.push(end(first).await);
        }
        under_way.push_back(begun);
    }
    for begun in under_way {
        ended.push(end(begun).await);
    }
    ended
}
