//! Puts of objects in parts.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::{Fingerprint, Key};
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::residence::STANDS_BY;
use lunette_kvstore_proto::striped::{Manifest, PART_KEY_BYTES, Part, WriteId};
use lunette_kvstore_proto::version::{Form, WriteKind};
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::{entropy, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;
use lunette_transfer::WriteSource;

use super::{PARTS_AHEAD_MAX, len};
use crate::cluster_client::objects::{Begun, Writing};
use crate::cluster_client::placing::Places;
use crate::cluster_client::running::Ended;
use crate::cluster_client::{ClusterClient, PutOptions, Stored};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// How often a part is written of which nobody knows whether it was. No other write is of its key.
const PART_TRIES: usize = 3;

/// How often parts are written that are gone by the time that all others are there.
const ROUNDS_MAX: u32 = 7;
/// How long others have to end what they are writing before that is done, the first time; then twice as long.
const ROUND_WAIT: Duration = Duration::from_millis(2);
/// Of an object of more parts, more than half of which are gone, no part is written again.
const ALL_AGAIN_MAX: u32 = 16;

/// The parts of a write, which are removed with it unless they are kept.
struct Parts<'a> {
    client: &'a ClusterClient,
    key: Fingerprint,
    manifest: Manifest,
    /// So many may be there.
    begun: Cell<u32>,
    /// Since when those that are there stay where they are, without being held.
    since: Cell<Time>,
    is_kept: Cell<bool>,
}

impl Parts<'_> {
    /// Whether those that came first may leave soon.
    fn take_long(&self) -> bool {
        time::now().since(self.since.get()) > STANDS_BY / 2
    }
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
    place: u32,
    key: [u8; PART_KEY_BYTES],
    value: Value,
    places: Places,
    begun: Option<Begun<'a, F>>,
    until: Time,
}

/// What the parts of a write have come to.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    is_cut_off: bool,
    is_elsewhere: bool,
}

impl ClusterClient {
    /// Writes an object in parts of `part_len` bytes. With `together` they go to that node.
    pub(in crate::cluster_client) async fn put_striped(
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
            since: Cell::new(time::now()),
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

    /// Writes the parts; each has the time of an operation. Those that are gone by the end are written again.
    async fn put_parts(
        &self,
        object: Writing<'_>,
        parts: &Parts<'_>,
        together: Option<NodeId>,
    ) -> Result<Written, StoreError> {
        let count = parts.manifest.count();
        let mut all = Written::default();
        let mut left: Vec<Part> = parts.manifest.parts().collect();
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                time::sleep(ROUND_WAIT * (1 << (round - 1))).await;
            }
            let written = self.put_some(object, parts, left, together).await?;
            all.is_cut_off |= written.is_cut_off;
            all.is_elsewhere |= written.is_elsewhere;
            left = self.lost_parts(parts, count).await?;
            if left.is_empty() {
                return Ok(all);
            }
        }
        Err(too_full())
    }

    async fn put_some(
        &self,
        object: Writing<'_>,
        parts: &Parts<'_>,
        some: Vec<Part>,
        together: Option<NodeId>,
    ) -> Result<Written, StoreError> {
        let options = PutOptions {
            kind: WriteKind::Put,
            ..object.options
        };
        let (mut left, mut under_way) = (some.into_iter(), VecDeque::new());
        let mut all = Ok(Written::default());
        loop {
            while all.is_ok()
                && under_way.len() < PARTS_AHEAD_MAX
                && let Some(part) = left.next()
            {
                // Each is summed, or copied, before it leaves.
                time::yield_now().await;
                parts.begun.set(parts.begun.get().max(part.place + 1));
                let value = part_of(object.value, part);
                let key = parts.manifest.part_key(parts.key, part.place);
                under_way.push_back(self.begin_part((part.place, key), value, options, together));
            }
            let Some(part) = under_way.pop_front() else {
                return all;
            };
            let place = part.place;
            let mut written = self.end_part(part, options, together).await;
            if written.is_ok() && parts.take_long() {
                // What is gone is written again with the others that are by the end.
                written = self.lost_parts(parts, place + 1).await.and(written);
            }
            all = all.and_then(|all| {
                let written = written?;
                Ok(Written {
                    is_cut_off: all.is_cut_off || written.is_cut_off,
                    is_elsewhere: all.is_elsewhere || written.is_elsewhere,
                })
            });
        }
    }

    /// Those of the first `count` parts that are surely gone already. If these are most of many, there is not enough
    /// memory for all, and each makes its room at the cost of another. Where writing them takes long, parts
    /// are held from now on, within what one holder may hold, and until it takes long again.
    async fn lost_parts(&self, parts: &Parts<'_>, count: u32) -> Result<Vec<Part>, StoreError> {
        let hold = parts.take_long().then(|| HoldWish {
            holder: self.asking.id().0,
            ttl_ms: u32::try_from(STANDS_BY.as_millis()).expect("seconds"),
        });
        if hold.is_some() {
            parts.since.set(time::now());
        }
        let keys: Vec<_> = (0..count)
            .map(|place| parts.manifest.part_key(parts.key, place))
            .collect();
        let keys = keys
            .iter()
            .map(|key| Key::new(key).expect("a part's key is one"));
        let found = self.ask_all(keys, Wish::Lookup(hold)).await;
        let found = parts.manifest.parts().zip(found);
        let lost = found.filter(|(_, found)| matches!(found, Ok(Outcome::Miss)));
        let lost: Vec<Part> = lost.map(|(part, _)| part).collect();
        if count > ALL_AGAIN_MAX && lost.len() * 2 > count as usize {
            return Err(too_full());
        }
        Ok(lost)
    }

    fn begin_part(
        &self,
        (place, key): (u32, [u8; PART_KEY_BYTES]),
        value: Value,
        options: PutOptions,
        together: Option<NodeId>,
    ) -> PartWrite<'_, impl Future<Output = Ended> + use<>> {
        let object = part_writing(&key, &value, options);
        let mut places = self.places_of_part(object.key, &options, together);
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
}

const fn too_full() -> StoreError {
    StoreError::local(StoreErrorKind::Refused(Status::Full))
}

fn part_writing<'a>(
    key: &'a [u8; PART_KEY_BYTES],
    value: &'a Value,
    options: PutOptions,
) -> Writing<'a> {
    Writing {
        key: Key::new(key).expect("a part's key is one"),
        value,
        placed: None,
        options,
        form: Form::Whole,
        is_last: false,
    }
}

fn part_of(value: &Value, part: Part) -> Value {
    value.slice(len(part.offset_bytes), part.len_bytes as usize)
}

fn value_of(manifest: &Manifest) -> Value {
    let memory = SharedMemory::owned(manifest.encode().to_vec());
    Value::gathered(vec![WriteSource::Exposed(memory.here(Arc::new(())))])
}
