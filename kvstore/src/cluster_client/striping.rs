//! Objects in parts. A write puts the parts first, each an object under a key of its own, and then the manifest,
//! with which the object is there: that is where the write takes its place among others of the key.
//!
//! A read asks for the manifest and then for the parts, many at a time, each straight to where it belongs. Where
//! one is lost the object is, so the manifest is removed, if it is still that one, and the key can be put again.
//! What a writer that failed or was beaten leaves is removed as well as it goes: what is left of it nobody asks
//! for, so that it is evicted before what is used.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::directory::{Only, StripedReply};
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_kvstore_proto::striped::{Manifest, PART_KEY_BYTES, Part, PartRead, WriteId};
use lunette_kvstore_proto::version::{Form, Version, WriteKind};
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{entropy, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_runtime_core::time::Time;
use lunette_transfer::{CallError, Room, SplitRoom, WriteSource};

use super::objects::{Begun, Fetching, Writing};
use super::placing::Places;
use super::running::{Brought, Ended};
use super::{ClusterClient, Fetched, PutOptions, Stored, removed_as};
use crate::client::GetFailure;
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// Parts of one object that are under way at the same time.
const PARTS_AHEAD_MAX: usize = 16;
/// How often a part is written of which nobody knows whether it was. No other write is of its key.
const PART_TRIES: usize = 3;
/// How often an object is looked at anew that others have replaced meanwhile.
const ROUNDS_MAX: usize = 4;
/// How long a read waits until what it found to be lost is forgotten.
const FORGET_WAIT: Duration = Duration::from_millis(50);
/// Asked for, it tells what is there.
const NOTHING: ByteRange = ByteRange {
    offset_bytes: 0,
    len_bytes: 0,
};

/// The parts of a write, which are removed with it unless they are kept.
struct Parts<'a> {
    client: &'a ClusterClient,
    key: Fingerprint,
    manifest: Manifest,
    /// So many may be there.
    begun: Cell<u32>,
    is_kept: Cell<bool>,
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        if !self.is_kept.get() {
            let (client, count) = (self.client, self.begun.get());
            drop(client.drop_parts(self.key, self.manifest, count));
        }
    }
}

/// A part whose write was begun.
struct PartWrite<'a, F> {
    key: [u8; PART_KEY_BYTES],
    value: Value,
    places: Places,
    begun: Option<Begun<'a, F>>,
    until: Time,
}

/// A part that was asked for.
enum PartGet<F> {
    Here(Fetching),
    There(F),
}

/// What the parts of a write have come to.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    is_cut_off: bool,
    is_elsewhere: bool,
}

/// What the parts of a read have come to.
#[derive(Debug, Default)]
struct Reading {
    is_cut_off: bool,
    /// One is not there.
    is_lost: bool,
    /// Nobody knows yet whether one is there.
    is_unknown: bool,
    error: Option<StoreError>,
    /// A room has not come back.
    is_room_gone: bool,
}

impl Reading {
    const fn is_good(&self) -> bool {
        !self.is_lost && !self.is_unknown && self.error.is_none()
    }

    fn add(&mut self, part: Part, fetched: Fetching) {
        match fetched {
            Fetching::Done(Ok(Fetched::Hit {
                object_len_bytes,
                is_cut_off,
                ..
            })) => {
                self.is_cut_off |= is_cut_off;
                self.is_lost |= object_len_bytes != part.len_bytes as usize;
            }
            Fetching::Done(Ok(Fetched::Miss { is_known, .. })) => {
                self.is_lost |= is_known;
                self.is_unknown |= !is_known;
            }
            Fetching::Striped(..) => self.is_lost = true,
            Fetching::Done(Err(failure)) => {
                self.is_room_gone |= failure.room.is_none();
                match failure.error.kind {
                    // It is none that its manifest knows.
                    StoreErrorKind::OutOfRange { .. }
                    | StoreErrorKind::Call(CallError::TooLong { .. }) => self.is_lost = true,
                    _ => self.error = self.error.or(Some(failure.error)),
                }
            }
        }
    }
}

/// What a read of parts has come to, with the room.
enum Read {
    Done(Result<Fetched, GetFailure>),
    Lost(Room),
}

impl ClusterClient {
    /// Writes an object in parts of `part_len` bytes. With `together` they go to that node.
    pub(super) async fn put_striped(
        &self,
        object: Writing<'_>,
        part_len: u32,
        together: Option<NodeId>,
    ) -> Result<Stored, StoreError> {
        let Writing { key, options, .. } = object;
        let found = self.lookup(key.bytes(), None).await?;
        let former = match found {
            Some(found) if options.kind == WriteKind::Put => {
                let version = found.version;
                return Ok(Stored::Exists { version });
            }
            Some(found) if found.form == Form::Striped => self.manifest_of(key).await,
            _ => Ok(None),
        };
        let write = u128::from(entropy()) << 64 | u128::from(entropy());
        let manifest = Manifest::new(object.value.len() as u64, part_len, WriteId(write));
        let manifest = manifest.expect("an object's length and that of its parts were checked");
        for part in manifest.parts() {
            let checked = part_of(object.value, part).check();
            checked.map_err(StoreError::local)?;
        }
        let parts = Parts {
            client: self,
            key: key.fingerprint(),
            manifest,
            begun: Cell::new(0),
            is_kept: Cell::new(false),
        };
        let written = self.put_parts(object, &parts, together).await?;
        let stored = self.publish(object, &parts, together).await?;
        let Stored::Written {
            version,
            is_cut_off,
            is_elsewhere,
        } = stored
        else {
            return Ok(stored);
        };
        if let Ok(Some(former)) = former {
            let count = former.manifest.count();
            drop(self.drop_parts(key.fingerprint(), former.manifest, count));
        }
        Ok(Stored::Written {
            version,
            is_cut_off: is_cut_off || written.is_cut_off,
            is_elsewhere: is_elsewhere || written.is_elsewhere,
        })
    }

    /// Writes the manifest. What parts are for is known from here on by who reads it.
    async fn publish(
        &self,
        object: Writing<'_>,
        parts: &Parts<'_>,
        together: Option<NodeId>,
    ) -> Result<Stored, StoreError> {
        let value = value_of(&parts.manifest);
        let object = Writing {
            value: &value,
            form: Form::Striped,
            ..object
        };
        // Given up from now on, it may be there all the same.
        parts.is_kept.set(true);
        let until = time::now() + self.timeout;
        let places = self.places(object.key, &object.options, together);
        let stored = self.put_at(object, places, until).await;
        let is_there = match &stored {
            Ok(stored) => matches!(stored, Stored::Written { .. }),
            Err(error) => matches!(
                error.kind,
                StoreErrorKind::Interrupted | StoreErrorKind::ShutDown
            ),
        };
        parts.is_kept.set(is_there);
        stored
    }

    /// Writes the parts; each has the time of an operation.
    async fn put_parts(
        &self,
        object: Writing<'_>,
        parts: &Parts<'_>,
        together: Option<NodeId>,
    ) -> Result<Written, StoreError> {
        let options = PutOptions {
            kind: WriteKind::Put,
            ..object.options
        };
        let (mut left, mut under_way) = (parts.manifest.parts(), VecDeque::new());
        let mut all = Ok(Written::default());
        loop {
            while all.is_ok()
                && under_way.len() < PARTS_AHEAD_MAX
                && let Some(part) = left.next()
            {
                // Each is summed, or copied, before it leaves.
                time::yield_now().await;
                let key = parts.manifest.part_key(parts.key, part.place);
                let value = part_of(object.value, part);
                parts.begun.set(part.place + 1);
                under_way.push_back(self.begin_part(key, value, options, together));
            }
            let Some(part) = under_way.pop_front() else {
                return all;
            };
            let written = self.end_part(part, options, together).await;
            all = all.and_then(|all| {
                let written = written?;
                Ok(Written {
                    is_cut_off: all.is_cut_off || written.is_cut_off,
                    is_elsewhere: all.is_elsewhere || written.is_elsewhere,
                })
            });
        }
    }

    fn begin_part(
        &self,
        key: [u8; PART_KEY_BYTES],
        value: Value,
        options: PutOptions,
        together: Option<NodeId>,
    ) -> PartWrite<'_, impl Future<Output = Ended> + use<>> {
        let object = part_writing(&key, &value, options);
        let mut places = self.places_of_part(object.key, &options, together);
        let until = time::now() + self.timeout;
        let begun = self.begin_next(&mut places, object, until);
        PartWrite {
            key,
            value,
            places,
            begun,
            until,
        }
    }

    async fn end_part<F: Future<Output = Ended>>(
        &self,
        part: PartWrite<'_, F>,
        options: PutOptions,
        together: Option<NodeId>,
    ) -> Result<Written, StoreError> {
        let object = part_writing(&part.key, &part.value, options);
        let begun = self.put_begun(object, part.places, part.begun, part.until);
        let mut stored = begun.await;
        for _ in 1..PART_TRIES {
            let is_open = |error: &StoreError| error.kind == StoreErrorKind::Interrupted;
            if !stored.as_ref().is_err_and(is_open) {
                break;
            }
            let until = time::now() + self.timeout;
            let places = self.places_of_part(object.key, &options, together);
            stored = self.put_at(object, places, until).await;
        }
        Ok(match stored? {
            Stored::Written {
                is_cut_off,
                is_elsewhere,
                ..
            } => Written {
                is_cut_off,
                is_elsewhere,
            },
            // It was written the time before.
            Stored::Exists { .. } => Written::default(),
        })
    }

    /// Reads an object whose manifest has come instead of its bytes.
    pub(super) async fn get_striped(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        room: Room,
        reply: StripedReply,
    ) -> Result<Fetched, GetFailure> {
        let key = Key::new(key).expect("there is an object under it");
        let (mut room, mut reply) = (room, reply);
        for _ in 0..ROUNDS_MAX {
            let left = match self.read_parts(key, ranges, room, &reply).await {
                Read::Done(ended) => return ended,
                Read::Lost(room) => room,
            };
            if self.forget(key, &reply).await {
                return Ok(Fetched::Miss {
                    room: left,
                    is_known: true,
                });
            }
            (room, reply) = match self.fetch(key, ranges, left).await {
                Fetching::Done(ended) => return ended,
                Fetching::Striped(room, reply) => (room, reply),
            };
        }
        Ok(Fetched::Miss {
            room,
            is_known: false,
        })
    }

    /// What is under a key, and not what that stands for.
    pub(super) async fn fetch(&self, key: Key<'_>, ranges: &[ByteRange], room: Room) -> Fetching {
        if total_bytes(ranges) > PAYLOAD_BYTES_MAX as u64 {
            return self.fetch_long(key, ranges, room).await;
        }
        self.fetch_by(key, ranges, room).await
    }

    /// As [`fetch`](Self::fetch), where one answer does not carry as much: it is in parts, or is refused.
    async fn fetch_long(&self, key: Key<'_>, ranges: &[ByteRange], room: Room) -> Fetching {
        let nowhere = Room::exposed(Vec::new());
        let fetched = match self.fetch_by(key, &[NOTHING], nowhere).await {
            Fetching::Striped(_, reply) => return Fetching::Striped(room, reply),
            Fetching::Done(fetched) => fetched,
        };
        let error = match fetched {
            Ok(Fetched::Miss { is_known, .. }) => {
                return Fetching::Done(Ok(Fetched::Miss { room, is_known }));
            }
            Ok(Fetched::Hit {
                object_len_bytes, ..
            }) => {
                let inside = |range: &ByteRange| range.is_within(object_len_bytes as u64);
                StoreError::local(if ranges.iter().all(inside) {
                    StoreErrorKind::ValueTooLong {
                        len_bytes: len(total_bytes(ranges)),
                        len_max_bytes: PAYLOAD_BYTES_MAX as u64,
                    }
                } else {
                    StoreErrorKind::OutOfRange { object_len_bytes }
                })
            }
            Err(failure) => failure.error,
        };
        let room = Some(room);
        Fetching::Done(Err(GetFailure { error, room }))
    }

    async fn fetch_by(&self, key: Key<'_>, ranges: &[ByteRange], room: Room) -> Fetching {
        match self.get_here(key.bytes(), ranges, room) {
            Ok(fetched) => fetched,
            Err(room) => Fetching::of(self.begin_get_of(key, ranges.to_vec(), room).await),
        }
    }

    /// The manifest under a key; `None` if there is none.
    async fn manifest_of(&self, key: Key<'_>) -> Result<Option<StripedReply>, StoreError> {
        match (self.fetch_by(key, &[NOTHING], Room::exposed(Vec::new()))).await {
            Fetching::Striped(_, reply) => Ok(Some(reply)),
            Fetching::Done(Ok(_)) => Ok(None),
            Fetching::Done(Err(failure)) => Err(failure.error),
        }
    }

    /// The length of an object that was in parts when it was asked for last.
    pub(super) async fn size_of_striped(&self, key: Key<'_>) -> Result<Option<usize>, StoreError> {
        if let Some(reply) = self.manifest_of(key).await? {
            return Ok(usize::try_from(reply.manifest.len_bytes()).ok());
        }
        let found = self.lookup(key.bytes(), None).await?;
        let whole = found.filter(|found| found.form == Form::Whole);
        Ok(whole.map(|found| found.len_bytes as usize))
    }

    async fn read_parts(
        &self,
        key: Key<'_>,
        ranges: &[ByteRange],
        room: Room,
        reply: &StripedReply,
    ) -> Read {
        let manifest = &reply.manifest;
        let object_len_bytes = len(manifest.len_bytes());
        let failed = |kind, room| {
            let error = StoreError::local(kind);
            Read::Done(Err(GetFailure { error, room }))
        };
        let Some(reads) = manifest.reads(ranges) else {
            let kind = StoreErrorKind::OutOfRange { object_len_bytes };
            return failed(kind, Some(room));
        };
        let total = reads.iter().map(PartRead::len_bytes).sum();
        if total > room.len() as u64 {
            let bound = |len_bytes: u64| u32::try_from(len_bytes).unwrap_or(u32::MAX);
            let kind = StoreErrorKind::Call(CallError::TooLong {
                payload_len_bytes: bound(total),
                room_bytes: bound(room.len() as u64),
            });
            return failed(kind, Some(room));
        }
        let split = room.split();
        let read = self.read_all(key, manifest, reads, &split).await;
        let Some(room) = split.join().ok().filter(|_| !read.is_room_gone) else {
            let kind = read.error.map(|error| error.kind);
            return failed(kind.unwrap_or(StoreErrorKind::ShutDown), None);
        };
        match read.error {
            _ if read.is_lost => Read::Lost(room),
            Some(error) => failed(error.kind, Some(room)),
            None if read.is_unknown => Read::Done(Ok(Fetched::Miss {
                room,
                is_known: false,
            })),
            None => Read::Done(Ok(Fetched::Hit {
                room,
                len_bytes: len(total),
                object_len_bytes,
                version: reply.version,
                is_cut_off: reply.is_cut_off || read.is_cut_off,
            })),
        }
    }

    /// Asks for parts until all have come, or one will not.
    async fn read_all(
        &self,
        key: Key<'_>,
        manifest: &Manifest,
        reads: Vec<PartRead>,
        split: &SplitRoom,
    ) -> Reading {
        let (mut left, mut under_way) = (reads.into_iter(), VecDeque::new());
        let (mut all, key) = (Reading::default(), key.fingerprint());
        loop {
            while all.is_good()
                && under_way.len() < PARTS_AHEAD_MAX
                && let Some(read) = left.next()
            {
                // Those that are copied from this very core take their time.
                if self.local.is_some() {
                    time::yield_now().await;
                }
                let part_key = manifest.part_key(key, read.part.place);
                let part = read.part;
                under_way.push_back((part, self.begin_read(&part_key, read, split)));
            }
            let Some((part, begun)) = under_way.pop_front() else {
                return all;
            };
            let fetched = match begun {
                PartGet::Here(fetched) => fetched,
                PartGet::There(begun) => Fetching::of(begun.await),
            };
            all.add(part, fetched);
        }
    }

    fn begin_read(
        &self,
        key: &[u8; PART_KEY_BYTES],
        read: PartRead,
        split: &SplitRoom,
    ) -> PartGet<impl Future<Output = Ended> + use<>> {
        let to = read.to.iter().zip(&read.ranges);
        let room = split.part(to.map(|(to, range)| len(*to)..len(*to) + range.len_bytes as usize));
        // Of all of a part the checksum is known.
        let ranges = if read.is_whole() {
            Vec::new()
        } else {
            read.ranges
        };
        match self.get_here(key, &ranges, room) {
            Ok(fetched) => PartGet::Here(fetched),
            Err(room) => {
                let key = Key::new(key).expect("a part's key is one");
                PartGet::There(self.begin_get_of(key, ranges, room))
            }
        }
    }

    /// Removes the manifest of an object of which a part is lost; whether there is no object now. Otherwise another
    /// one is there.
    ///
    /// After a change of the map a removal waits, and whoever reads does not: it goes on behind the answer, and
    /// what is put then waits in line behind it.
    async fn forget(&self, key: Key<'_>, reply: &StripedReply) -> bool {
        let version = reply.version;
        let until = time::now() + self.timeout;
        let removing = self.begin_removal(key, Only::Version { version }, until);
        let (told, outcome) = oneshot::channel();
        let (client, key, manifest) = (self.clone(), key.fingerprint(), reply.manifest);
        self.asking.spawn(async move {
            let outcome = removing.await.outcome;
            let is_removed = matches!(outcome, Ok(Outcome::Removed { .. }));
            // Who reads may have gone on.
            drop(told.send(outcome));
            if is_removed {
                client.remove_parts(key, &manifest, manifest.count()).await;
            }
        });
        let outcome = time::timeout(FORGET_WAIT, outcome).await;
        !matches!(outcome, Ok(Ok(Ok(Outcome::Found(_)))))
    }

    /// Removes an object that was in parts when it was found: its manifest, and then its parts, which it waits for
    /// while there is time.
    pub(super) async fn remove_striped(
        &self,
        key: Key<'_>,
        version: Version,
    ) -> Result<bool, StoreError> {
        let mut version = version;
        let until = time::now() + self.timeout;
        for _ in 0..ROUNDS_MAX {
            let (only, manifest) = match self.manifest_of(key).await {
                Ok(Some(reply)) => {
                    version = reply.version;
                    (Only::Version { version }, Some(reply.manifest))
                }
                Ok(None) => (Only::Whole, None),
                // Nobody can tell: its parts are left to eviction.
                Err(_) => (Only::Version { version }, None),
            };
            let outcome = self.begin_removal(key, only, until).await.outcome;
            match outcome.map_err(StoreError::local)? {
                Outcome::Found(found) => version = found.version,
                // It was there a moment ago, and whoever has it may be away: what removes whatever there is
                // also keeps that from coming back.
                Outcome::Miss => {}
                outcome => {
                    let is_found = removed_as(outcome)?;
                    if let Some(manifest) = manifest {
                        let parts = self.drop_parts(key.fingerprint(), manifest, manifest.count());
                        let waited = time::timeout(until.since(time::now()), parts).await;
                        tracing::trace!(?waited, "parts of what was removed");
                    }
                    return Ok(is_found);
                }
            }
        }
        Err(StoreError::local(StoreErrorKind::TimedOut))
    }

    fn begin_removal(
        &self,
        key: Key<'_>,
        only: Only,
        until: Time,
    ) -> impl Future<Output = Ended> + use<> {
        let wish = Wish::Remove(only);
        self.asking.begin(key, wish, Brought::Nothing, until)
    }

    /// Removes the first `count` parts, as well as it goes.
    async fn remove_parts(&self, key: Fingerprint, manifest: &Manifest, count: u32) {
        let keys: Vec<_> = (0..count)
            .map(|place| manifest.part_key(key, place))
            .collect();
        let keys = keys.iter();
        let keys = keys.map(|key| Key::new(key).expect("a part's key is one"));
        let ended = self.ask_all(keys, Wish::Remove(Only::Any)).await;
        let is_removed = |ended: &Result<Outcome, _>| matches!(ended, Ok(Outcome::Removed { .. }));
        let left = ended.iter().filter(|ended| !is_removed(ended)).count();
        if left > 0 {
            tracing::debug!(left, "parts are left to eviction");
        }
    }

    /// As [`remove_parts`](Self::remove_parts), whoever waits for it.
    fn drop_parts(
        &self,
        key: Fingerprint,
        manifest: Manifest,
        count: u32,
    ) -> oneshot::Receiver<()> {
        let (told, done) = oneshot::channel();
        let client = self.clone();
        self.asking.spawn(async move {
            client.remove_parts(key, &manifest, count).await;
            let is_waited_for = told.send(()).is_ok();
            tracing::trace!(is_waited_for, "parts are removed");
        });
        done
    }
}

fn part_writing<'a>(
    key: &'a [u8; PART_KEY_BYTES],
    value: &'a Value,
    options: PutOptions,
) -> Writing<'a> {
    Writing {
        key: Key::new(key).expect("a part's key is one"),
        value,
        options,
        form: Form::Whole,
    }
}

fn part_of(value: &Value, part: Part) -> Value {
    value.slice(len(part.offset_bytes), part.len_bytes as usize)
}

fn value_of(manifest: &Manifest) -> Value {
    let memory = SharedMemory::owned(manifest.encode().to_vec());
    Value::gathered(vec![WriteSource::Exposed(memory.here(Arc::new(())))])
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("lengths of objects fit in memory")
}
