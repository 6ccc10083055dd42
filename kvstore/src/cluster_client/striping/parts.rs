//! The parts of an object that is being written: which of them may be there, whether they still are, and what is done about it.

use std::cell::Cell;
use std::time::Duration;

use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::striped::{Manifest, Part, PartKey, PartsOf};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use crate::cluster_client::ClusterClient;

/// The target of the trace events that tell of each part of an object, before its manifest is put: `key_high` is of the
/// object's key, `len_bytes` its length, and `part_high` of the part's key.
pub const PARTS: &str = "lunette_kvstore::parts";

/// The parts of a write, which are removed with it unless they are kept.
pub(in crate::cluster_client) struct Parts {
    client: ClusterClient,
    pub(super) of: PartsOf,
    pub(super) manifest: Manifest,
    /// So many may be there.
    begun: Cell<u32>,
    /// Since when those that are there stay where they are.
    since: Cell<Time>,
    /// For how long they do.
    stay: Duration,
    is_kept: Cell<bool>,
}

impl Parts {
    /// Of an object under this key. None is there; for so long they stay once they are.
    pub(in crate::cluster_client) fn new(
        client: &ClusterClient,
        key: Key<'_>,
        manifest: Manifest,
        stay: Duration,
    ) -> Self {
        Self {
            client: client.clone(),
            of: key.into(),
            manifest,
            begun: Cell::new(0),
            since: Cell::new(time::now()),
            stay,
            is_kept: Cell::new(false),
        }
    }

    pub(in crate::cluster_client) fn count(&self) -> u32 {
        self.manifest.count()
    }

    pub(in crate::cluster_client) fn key_of(&self, place: u32) -> PartKey {
        self.manifest.part_key(self.of, place)
    }

    /// Any of them may be there from now on, if none was before.
    pub(in crate::cluster_client) fn begin_all(&self) {
        if self.begun.replace(self.count()) == 0 {
            self.since.set(time::now());
        }
    }

    /// Those before this place may be there from now on.
    pub(super) fn begin_to(&self, place: u32) {
        self.begun.set(self.begun.get().max(place));
    }

    /// Whether they are kept when this is dropped.
    pub(super) fn keep(&self, is_kept: bool) {
        self.is_kept.set(is_kept);
    }

    /// An object is to be made of them.
    pub(super) fn tell(&self, object: Key<'_>) {
        if !tracing::enabled!(target: PARTS, tracing::Level::TRACE) {
            return;
        }
        for place in 0..self.count() {
            tracing::trace!(
                target: PARTS,
                key_high = object.fingerprint().high(),
                len_bytes = self.manifest.len_bytes(),
                part_high = self.key_of(place).key().fingerprint().high(),
            );
        }
    }

    /// Whether those that came first may leave soon.
    pub(in crate::cluster_client) fn take_long(&self) -> bool {
        time::now().since(self.since.get()) > self.stay / 2
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let count = self.begun.get();
        if count > 0 && !self.is_kept.get() {
            drop(self.client.drop_parts(self.of, self.manifest, count));
        }
    }
}

/// What was found of parts. Of those that are in neither list nobody tells.
#[derive(Debug, Default)]
pub(in crate::cluster_client) struct LookedFor {
    pub(in crate::cluster_client) there: Vec<Part>,
    /// They are surely gone.
    pub(in crate::cluster_client) lost: Vec<Part>,
}

impl ClusterClient {
    /// Looks for parts that may have been there. Where writing them takes long, they are held from now on, within what one
    /// holder may hold, and until it takes long again.
    pub(in crate::cluster_client) async fn looked_for(
        &self,
        parts: &Parts,
        some: Vec<Part>,
    ) -> LookedFor {
        let hold = parts.take_long().then(|| HoldWish {
            holder: self.asking.id().0,
            ttl_ms: u32::try_from(parts.stay.as_millis()).expect("seconds"),
        });
        if hold.is_some() {
            parts.since.set(time::now());
        }
        let keys: Vec<_> = some.iter().map(|part| parts.key_of(part.place)).collect();
        let keys = keys.iter().map(PartKey::key);
        let found = self.ask_all(keys, Wish::Lookup(hold)).await;
        let mut looked = LookedFor::default();
        for (part, found) in some.into_iter().zip(found) {
            match found {
                Ok(Outcome::Found(_)) => looked.there.push(part),
                Ok(Outcome::Miss) => looked.lost.push(part),
                Ok(_) | Err(_) => {}
            }
        }
        looked
    }
}
