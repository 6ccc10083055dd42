//! Where objects are, for those who send work to what it reads.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::Found;
use lunette_kvstore_proto::striped::{Manifest, PartKey};
use lunette_kvstore_proto::version::Form;

use super::ClusterClient;
use crate::error::{StoreError, StoreErrorKind};

/// Where an object is: a hint, since copies come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Length of the value in bytes.
    pub len_bytes: usize,
    /// Where the members listen that have a copy, in memory or on a drive, the best first. Of an object in parts,
    /// those that have parts, most of them first.
    /// At least one.
    pub nodes: Vec<SocketAddr>,
}

impl ClusterClient {
    /// Where the objects under `keys` are, in their order; `None` where there is none, a part of it is lost, its
    /// home does not know yet, or all who have it have left meanwhile. The questions of one home go together.
    ///
    /// # Errors
    /// One for each: [`StoreError`].
    pub async fn locate(&self, keys: &[Vec<u8>]) -> Vec<Result<Option<Located>, StoreError>> {
        let keys = self.own_all(keys);
        let valid_keys: Vec<_> = keys.iter().map(|key| self.valid(key)).collect();
        let asked = valid_keys.iter().filter_map(|key| key.ok());
        let mut ended = self.ask_all(asked, Wish::Lookup(None)).await.into_iter();
        let mut located = Vec::with_capacity(keys.len());
        for key in valid_keys {
            let key = match key {
                Ok(key) => key,
                Err(error) => {
                    located.push(Err(error));
                    continue;
                }
            };
            let ended = ended.next().expect("one for each key");
            located.push(match found(ended) {
                Ok(Some(found)) if found.form == Form::Striped => self.locate_striped(key).await,
                Ok(Some(found)) => Ok(self.located_whole(&found)),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            });
        }
        located
    }

    fn located_whole(&self, found: &Found) -> Option<Located> {
        let map = self.asking.map();
        let nodes: Vec<_> = addresses(&map, found).collect();
        (!nodes.is_empty()).then_some(Located {
            len_bytes: found.len_bytes as usize,
            nodes,
        })
    }

    /// An object that was in parts when it was asked for.
    async fn locate_striped(&self, key: Key<'_>) -> Result<Option<Located>, StoreError> {
        let Some(reply) = self.manifest_of(key).await? else {
            let found = self.find(key, None).await?;
            let whole = found.filter(|found| found.form == Form::Whole);
            return Ok(whole.and_then(|found| self.located_whole(&found)));
        };
        let nodes = self.locate_parts(key, &reply.manifest).await?;
        let len_bytes = usize::try_from(reply.manifest.len_bytes());
        let len_bytes = len_bytes.expect("lengths of objects fit in memory");
        Ok(nodes.map(|nodes| Located { len_bytes, nodes }))
    }

    /// Who has parts; `None` if one is not found.
    async fn locate_parts(
        &self,
        key: Key<'_>,
        manifest: &Manifest,
    ) -> Result<Option<Vec<SocketAddr>>, StoreError> {
        let keys = (0..manifest.count()).map(|place| manifest.part_key(key.into(), place));
        let keys: Vec<_> = keys.collect();
        let keys = keys.iter().map(PartKey::key);
        let ended = self.ask_all(keys, Wish::Lookup(None)).await;
        let map = self.asking.map();
        let mut parts: BTreeMap<SocketAddr, u32> = BTreeMap::new();
        for ended in ended {
            let Some(found) = found(ended)? else {
                return Ok(None);
            };
            let mut nodes = addresses(&map, &found).peekable();
            if nodes.peek().is_none() {
                return Ok(None);
            }
            for address in nodes {
                *parts.entry(address).or_default() += 1;
            }
        }
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort_by_key(|&(address, count)| (Reverse(count), address));
        Ok(Some(
            parts.into_iter().map(|(address, _)| address).collect(),
        ))
    }
}

/// What came of a lookup.
pub(super) fn found(ended: Result<Outcome, StoreErrorKind>) -> Result<Option<Found>, StoreError> {
    match ended {
        Ok(Outcome::Found(found)) => Ok(Some(found)),
        Ok(Outcome::TimedOut) => Err(StoreError::local(StoreErrorKind::TimedOut)),
        Ok(_) => Ok(None),
        Err(kind) => Err(StoreError::local(kind)),
    }
}

/// Where those listen that have a copy and are still of the cluster.
fn addresses(map: &ClusterMap, found: &Found) -> impl Iterator<Item = SocketAddr> {
    let members = found.owners.iter();
    members.filter_map(|owner| Some(map.member(owner.node)?.address))
}
