//! Puts of objects in parts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::residence::STANDS_BY;
use lunette_kvstore_proto::retention::{GroupId, PIN_TTL_MAX, Pin};
use lunette_kvstore_proto::striped::{Manifest, Part, PartKey, WriteId};
use lunette_kvstore_proto::version::{Form, Version, WriteKind};
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{entropy, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;
use lunette_transfer::WriteSource;

use super::parts::Parts;
use super::{PARTS_AHEAD_MAX, len};
use crate::cluster_client::placing::Places;
use crate::cluster_client::running::Ended;
use crate::cluster_client::trying::{Begun, Writing};
use crate::cluster_client::{ClusterClient, PutOptions, Stored};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// How often a part is written of which nobody knows whether it was. No other write is of its key.
const PART_TRIES: usize = 3;
/// How often names of parts are drawn, and their homes with them.
const DRAWS_MAX: u32 = 2;
/// How often parts are written that are gone by the time that all others are there.
const ROUNDS_MAX: u32 = 6;
/// How often these are written at their homes, which others may have filled; then where there is room: two of them that have one
/// home, with room for one, would make each other leave for ever.
const ROUNDS_AT_HOME: u32 = 2;
/// How long others have to end what they are writing before that is done, the first time; then twice as long.
const ROUND_WAIT: Duration = Duration::from_millis(2);
/// Of an object of more parts, more than half of which are gone, no part is written again.
const ALL_AGAIN_MAX: usize = 16;

/// What an object in parts is written from.
pub(in crate::cluster_client) trait PartSource {
    type Error: From<StoreError>;
    /// What the bytes of a part are kept by, until they are written.
    type Kept;

    /// Length of the object in bytes.
    fn len_bytes(&self) -> u64;

    /// Why some part of it cannot be an object's value, if one cannot.
    fn check(&self, manifest: &Manifest) -> Result<(), StoreErrorKind>;

    /// The bytes of a part; `None` if there are none before others are written, and it may not wait for that.
    async fn part(
        &self,
        part: Part,
        may_wait: bool,
    ) -> Result<Option<(Value, Self::Kept)>, Self::Error>;
}

impl PartSource for Value {
    type Error = StoreError;
    type Kept = ();

    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn check(&self, manifest: &Manifest) -> Result<(), StoreErrorKind> {
        let mut parts = manifest.parts();
        parts.try_for_each(|part| part_of(self, part).check())
    }

    async fn part(&self, part: Part, _may_wait: bool) -> Result<Option<(Self, ())>, StoreError> {
        Ok(Some((part_of(self, part), ())))
    }
}

/// A part whose write was begun.
struct PartWrite<'a, F> {
    place: u32,
    key: PartKey,
    value: Value,
    places: Places,
    begun: Option<Begun<'a, F>>,
    until: Time,
}

/// What is under a key that is to be written.
pub(in crate::cluster_client) enum Former {
    /// A put has nothing to do.
    Taken {
        version: Version,
    },
    /// An object, whose parts are of no use once it is replaced.
    Parts(Manifest),
    Other,
}

/// What the parts of a write have come to.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cluster_client) struct Written {
    is_cut_off: bool,
    is_elsewhere: bool,
}

impl Written {
    pub(in crate::cluster_client) const fn of(stored: &Stored) -> Self {
        match *stored {
            Stored::Written {
                is_cut_off,
                is_elsewhere,
                ..
            } => Self {
                is_cut_off,
                is_elsewhere,
            },
            // It was written the time before.
            Stored::Exists { .. } => Self {
                is_cut_off: false,
                is_elsewhere: false,
            },
        }
    }

    pub(in crate::cluster_client) const fn and(self, other: Self) -> Self {
        Self {
            is_cut_off: self.is_cut_off || other.is_cut_off,
            is_elsewhere: self.is_elsewhere || other.is_elsewhere,
        }
    }

    /// What an object with such parts has come to, whose manifest has come to `stored`.
    pub(in crate::cluster_client) const fn with_manifest(self, stored: Stored) -> Stored {
        let Stored::Written { version, .. } = stored else {
            return stored;
        };
        let all = self.and(Self::of(&stored));
        Stored::Written {
            version,
            is_cut_off: all.is_cut_off,
            is_elsewhere: all.is_elsewhere,
        }
    }
}

impl ClusterClient {
    /// Writes an object in parts of `part_len` bytes, whose bytes are brought one part after the other.
    pub(in crate::cluster_client) async fn put_from<S: PartSource>(
        &self,
        key: &[u8],
        source: &S,
        part_len: u32,
        options: PutOptions,
    ) -> Result<Stored, S::Error> {
        options.check()?;
        let nothing = Value::empty();
        let key = self.own(key);
        let object = Writing::alone(self.valid(&key)?, &nothing, options);
        self.put_striped(object, source, part_len, None).await
    }

    /// Writes an object in parts of `part_len` bytes. With `together` they go to that node.
    pub(in crate::cluster_client) async fn put_striped<S: PartSource>(
        &self,
        object: Writing<'_>,
        source: &S,
        part_len: u32,
        together: Option<NodeId>,
    ) -> Result<Stored, S::Error> {
        let Writing { key, options, .. } = object;
        let former = match self.former(key, options.kind).await? {
            Former::Taken { version } => return Ok(Stored::Exists { version }),
            former => former,
        };
        for _ in 0..DRAWS_MAX {
            let manifest = drawn_manifest(source.len_bytes(), part_len);
            let object = Writing {
                options: of_object(options, &manifest),
                ..object
            };
            source.check(&manifest).map_err(StoreError::local)?;
            let parts = Parts::new(self, key, manifest, STANDS_BY);
            let written = self.put_parts((object, source), &parts, together).await?;
            if let Some(written) = written {
                let stored = self.publish(object, &parts, together, former).await?;
                return Ok(written.with_manifest(stored));
            }
        }
        Err(too_full().into())
    }

    /// Looks for what a write would find.
    pub(in crate::cluster_client) async fn former(
        &self,
        key: Key<'_>,
        kind: WriteKind,
    ) -> Result<Former, StoreError> {
        let Some(found) = self.find(key, None).await? else {
            return Ok(Former::Other);
        };
        if kind == WriteKind::Put {
            let version = found.version;
            return Ok(Former::Taken { version });
        }
        if found.form == Form::Striped
            && let Ok(Some(reply)) = self.manifest_of(key).await
        {
            return Ok(Former::Parts(reply.manifest));
        }
        Ok(Former::Other)
    }

    /// Writes the manifest, and removes the parts of what it replaces.
    pub(in crate::cluster_client) async fn publish(
        &self,
        object: Writing<'_>,
        parts: &Parts,
        together: Option<NodeId>,
        former: Former,
    ) -> Result<Stored, StoreError> {
        let stored = self.put_manifest(object, parts, together).await?;
        if let (Stored::Written { .. }, Former::Parts(former)) = (&stored, former) {
            drop(self.drop_parts(parts.of, former, former.count()));
        }
        Ok(stored)
    }

    /// What parts are for is known from here on by who reads it.
    async fn put_manifest(
        &self,
        object: Writing<'_>,
        parts: &Parts,
        together: Option<NodeId>,
    ) -> Result<Stored, StoreError> {
        let value = value_of(&parts.manifest);
        let object = Writing {
            value: &value,
            form: Form::Striped,
            ..object
        };
        parts.tell(object.key);
        // Given up from now on, it may be there all the same.
        parts.keep(true);
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
        parts.keep(is_there);
        stored
    }

    /// Writes the parts; each has the time of an operation. Those that are gone by the end are written again, and where that goes
    /// on elsewhere; `None` if some are gone each time.
    async fn put_parts<S: PartSource>(
        &self,
        object: (Writing<'_>, &S),
        parts: &Parts,
        together: Option<NodeId>,
    ) -> Result<Option<Written>, S::Error> {
        let mut all = Written::default();
        let mut left: Vec<Part> = parts.manifest.parts().collect();
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                time::sleep(ROUND_WAIT * (1 << (round - 1))).await;
            }
            let is_drawn = round >= ROUNDS_AT_HOME;
            let written = self
                .put_some(object, parts, (left, is_drawn), together)
                .await?;
            all = all.and(written);
            let every = parts.manifest.parts().collect();
            left = self.lost_parts(parts, every).await?;
            if left.is_empty() {
                return Ok(Some(all));
            }
        }
        Ok(None)
    }

    async fn put_some<S: PartSource>(
        &self,
        (object, source): (Writing<'_>, &S),
        parts: &Parts,
        (some, is_drawn): (Vec<Part>, bool),
        together: Option<NodeId>,
    ) -> Result<Written, S::Error> {
        let options = of_part(object.options);
        let (mut left, mut under_way) = (some.into_iter().peekable(), VecDeque::new());
        let mut all = Ok(Written::default());
        loop {
            while all.is_ok()
                && under_way.len() < PARTS_AHEAD_MAX
                && let Some(part) = left.peek().copied()
            {
                // Each is summed, or copied, before it leaves.
                time::yield_now().await;
                let (value, kept) = match source.part(part, under_way.is_empty()).await {
                    Ok(Some(brought)) => brought,
                    Ok(None) => break,
                    Err(error) => {
                        all = Err(error);
                        break;
                    }
                };
                left.next();
                parts.begin_to(part.place + 1);
                let key = parts.key_of(part.place);
                let drawn = if is_drawn {
                    self.draw_seat(key.key(), value.len()).await
                } else {
                    None
                };
                let begun = self.begin_part((part.place, key), value, options, (together, drawn));
                under_way.push_back((begun, kept));
            }
            let Some((part, kept)) = under_way.pop_front() else {
                return all;
            };
            let place = part.place;
            let mut written = self.end_part(part, options, together).await;
            drop(kept);
            if written.is_ok() && parts.take_long() {
                // What is gone is written again with the others that are by the end.
                let first = parts.manifest.parts().take(place as usize + 1);
                let lost = self.lost_parts(parts, first.collect()).await;
                written = lost.and(written);
            }
            all = all.and_then(|all| Ok(all.and(written?)));
        }
    }

    /// Those that are surely gone already. If these are most of many, there is not enough memory for all, and each makes its
    /// room at the cost of another.
    async fn lost_parts(&self, parts: &Parts, some: Vec<Part>) -> Result<Vec<Part>, StoreError> {
        let count = some.len();
        let lost = self.looked_for(parts, some).await.lost;
        if count > ALL_AGAIN_MAX && lost.len() * 2 > count {
            return Err(too_full());
        }
        Ok(lost)
    }

    fn begin_part(
        &self,
        (place, key): (u32, PartKey),
        value: Value,
        options: PutOptions,
        (together, drawn): (Option<NodeId>, Option<Seat>),
    ) -> PartWrite<'_, impl Future<Output = Ended> + use<>> {
        let object = part_writing(&key, &value, options);
        let mut places = self.places_of_part(object.key, &options, together, drawn);
        let until = time::now() + self.timeout;
        let begun = self.begin_next(&mut places, object, until);
        PartWrite {
            place,
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
            let places = self.places_of_part(object.key, &options, together, None);
            stored = self.put_at(object, places, until).await;
        }
        Ok(Written::of(&stored?))
    }
}

pub(in crate::cluster_client) const fn too_full() -> StoreError {
    StoreError::local(StoreErrorKind::Refused(Status::Full))
}

fn part_writing<'a>(key: &'a PartKey, value: &'a Value, options: PutOptions) -> Writing<'a> {
    Writing::alone(key.key(), value, options)
}

/// A manifest of an object in parts of `part_len` bytes, both of which were checked.
pub(in crate::cluster_client) fn drawn_manifest(len_bytes: u64, part_len: u32) -> Manifest {
    let write = u128::from(entropy()) << 64 | u128::from(entropy());
    let manifest = Manifest::new(len_bytes, part_len, WriteId(write));
    manifest.expect("an object's length and that of its parts were checked")
}

/// How an object in parts is written, and [its parts](of_part) are: none of them is of use without the others.
pub(in crate::cluster_client) fn of_object(options: PutOptions, manifest: &Manifest) -> PutOptions {
    let own = GroupId::drawn(manifest.write().0);
    PutOptions {
        group: options.group.or(Some(own)),
        ..options
    }
}

/// How a part of an object is written.
pub(in crate::cluster_client) fn of_part(options: PutOptions) -> PutOptions {
    PutOptions {
        kind: WriteKind::Put,
        pin: pin_of_part(options.pin),
        // They go with the manifest.
        behind: None,
        ..options
    }
}

/// What a writer that died left of an object would never leave, if its parts were pinned for ever.
fn pin_of_part(pin: Pin) -> Pin {
    match pin {
        Pin::Hard => Pin::soft(Some(PIN_TTL_MAX)),
        Pin::None | Pin::Soft { .. } => pin,
    }
}

fn part_of(value: &Value, part: Part) -> Value {
    value.slice(len(part.offset_bytes), part.len_bytes as usize)
}

fn value_of(manifest: &Manifest) -> Value {
    let memory = SharedMemory::owned(manifest.encode().to_vec());
    Value::gathered(vec![WriteSource::Exposed(memory.here(Arc::new(())))])
}
