//! Objects in parts. A write puts the parts first, each an object under a key of its own, and then the manifest,
//! with which the object is there: that is where the write takes its place among others of the key.
//!
//! A read asks for the manifest and then for the parts, many at a time, each straight to where it belongs. Where
//! one is lost the object is, so the manifest is removed, if it is still that one, and the key can be put again.
//! What a writer that failed or was beaten leaves is removed as well as it goes: what is left of it nobody asks
//! for, so that it is evicted before what is used.
//!
//! | file | subject |
//! |---|---|
//! | `writing` | puts: parts, then the manifest |
//! | `parts` | the parts of a put, which are looked for, held and removed |
//! | `reading` | gets: the manifest, then parts |
//! | here | removals |

mod parts;
mod reading;
mod writing;

pub use parts::PARTS;
pub(super) use parts::Parts;
pub(super) use reading::Stretch;
pub(super) use writing::{
    Former, PartSource, Written, drawn_manifest, of_object, of_part, too_full,
};

use std::time::Duration;

use futures_channel::oneshot;
use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{Only, StripedReply};
use lunette_kvstore_proto::striped::{Manifest, PartKey, PartsOf};
use lunette_kvstore_proto::version::Version;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::running::{Brought, Ended};
use super::{ClusterClient, removed_as};
use crate::error::{StoreError, StoreErrorKind};

/// Parts of one object that are under way at the same time.
pub(super) const PARTS_AHEAD_MAX: usize = 16;
/// How often an object is looked at anew that others have replaced meanwhile.
const ROUNDS_MAX: usize = 4;
/// How long a read waits until what it found to be lost is forgotten.
const FORGET_WAIT: Duration = Duration::from_millis(50);

impl ClusterClient {
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
        let (client, key, manifest) = (self.clone(), PartsOf::from(key), reply.manifest);
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
                        let parts = self.drop_parts(key.into(), manifest, manifest.count());
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
    async fn remove_parts(&self, of: PartsOf, manifest: &Manifest, count: u32) {
        let keys: Vec<_> = (0..count)
            .map(|place| manifest.part_key(of, place))
            .collect();
        let keys = keys.iter().map(PartKey::key);
        let ended = self.ask_all(keys, Wish::Remove(Only::Any)).await;
        let is_removed = |ended: &Result<Outcome, _>| matches!(ended, Ok(Outcome::Removed { .. }));
        let left = ended.iter().filter(|ended| !is_removed(ended)).count();
        if left > 0 {
            tracing::debug!(left, "parts are left to eviction");
        }
    }

    /// As [`remove_parts`](Self::remove_parts), whoever waits for it.
    fn drop_parts(&self, of: PartsOf, manifest: Manifest, count: u32) -> oneshot::Receiver<()> {
        let (told, done) = oneshot::channel();
        let client = self.clone();
        self.asking.spawn(async move {
            client.remove_parts(of, &manifest, count).await;
            let is_waited_for = told.send(()).is_ok();
            tracing::trace!(is_waited_for, "parts are removed");
        });
        done
    }
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("lengths of objects fit in memory")
}
