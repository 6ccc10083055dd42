//! What a member knows of the cluster, and what the next map should be.

use core::time::Duration;
use std::collections::BTreeMap;

use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

use super::quotas::KnownQuotas;
use super::record::{ClusterIdentity, KeyKind, Keys, RecordFault, Registration};
use crate::coordination::{Change, KeyValue, LeaseId, Revision, TXN_OPS_MAX};
use crate::map::{ClusterMap, Epoch, MEMBERS_MAX, MapMember};

/// Most members that one change of the map removes: that each is gone is compared as it is made.
const REMOVALS_MAX: usize = TXN_OPS_MAX - 1;

/// A member as it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    pub(super) registration: Registration,
    pub(super) created: Revision,
    pub(super) modified: Revision,
    pub(super) lease: Option<LeaseId>,
}

/// The map as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownMap {
    pub(super) map: ClusterMap,
    pub(super) modified: Revision,
}

#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) identity: Option<ClusterIdentity>,
    pub(super) members: BTreeMap<NodeId, Registered>,
    pub(super) map: Option<KnownMap>,
    pub(super) quotas: KnownQuotas,
    /// The newest change that is part of it.
    pub(super) revision: Revision,
    /// When the map was last seen to change.
    pub(super) map_seen: Option<Time>,
    /// The latest epoch that was ever seen: the next one is later, whatever became of the map.
    newest_epoch: Epoch,
    /// Since when no lease is known that is older than the map.
    all_expired: Option<Time>,
}

/// What is to be proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proposal {
    /// The map is as it should be.
    Nothing,
    /// Members may still come back; ask again then.
    Wait(Time),
    /// This map, if the one known is still the newest.
    Map(ClusterMap),
}

impl View {
    /// Everything under the prefix was read. Whether the map changed. Quotas are taken in whatever is
    /// wrong with the rest.
    pub(super) fn reset(
        &mut self,
        now: Time,
        keys: &Keys,
        pairs: &[KeyValue],
        revision: Revision,
    ) -> Result<bool, RecordFault> {
        let old = self.map.take();
        self.members.clear();
        self.identity = None;
        self.revision = revision;
        let quotas = pairs.iter().filter_map(|pair| match keys.kind(&pair.key) {
            KeyKind::Quota(name) => Some((name, pair)),
            _ => None,
        });
        self.quotas.reset(quotas);
        for pair in pairs {
            self.put(now, keys, pair)?;
        }
        // A map that is older than the one known is another coordinator's, or one that lost it: it
        // is taken all the same, and told apart by its epoch.
        let is_new = self.map != old;
        if is_new {
            self.map_seen = Some(now);
        }
        Ok(is_new)
    }

    /// Something under the prefix changed. Whether the map did.
    pub(super) fn apply(
        &mut self,
        now: Time,
        keys: &Keys,
        change: &Change,
    ) -> Result<bool, RecordFault> {
        self.revision = self.revision.max(change.revision());
        match change {
            Change::Put(pair) => {
                if let KeyKind::Quota(name) = keys.kind(&pair.key) {
                    let put = self.quotas.put(name, pair);
                    return put
                        .map(|()| false)
                        .map_err(|_no_quota| RecordFault::Damaged);
                }
                self.put(now, keys, pair)
            }
            Change::Delete { key, .. } => {
                match keys.kind(key) {
                    KeyKind::Member(id) => drop(self.members.remove(&id)),
                    KeyKind::Map => self.map = None,
                    KeyKind::Identity => self.identity = None,
                    KeyKind::Quota(name) => self.quotas.remove(name),
                    KeyKind::Other => {}
                }
                Ok(false)
            }
        }
    }

    /// Takes in what is no quota.
    fn put(&mut self, now: Time, keys: &Keys, pair: &KeyValue) -> Result<bool, RecordFault> {
        match keys.kind(&pair.key) {
            KeyKind::Identity => self.identity = Some(ClusterIdentity::decode(&pair.value)?),
            KeyKind::Member(id) => {
                let registration = Registration::decode(&pair.value)?;
                if registration.member.id != id {
                    return Err(RecordFault::Damaged);
                }
                let registered = Registered {
                    registration,
                    created: pair.created,
                    modified: pair.modified,
                    lease: pair.lease,
                };
                self.members.insert(id, registered);
            }
            KeyKind::Map => {
                // One's own proposal is known before the watch tells it.
                let is_known = self
                    .map
                    .as_ref()
                    .is_some_and(|known| known.modified >= pair.modified);
                if !is_known {
                    let map = ClusterMap::decode(&pair.value)?;
                    let modified = pair.modified;
                    self.newest_epoch = self.newest_epoch.max(map.epoch());
                    self.map = Some(KnownMap { map, modified });
                    self.map_seen = Some(now);
                    return Ok(true);
                }
            }
            KeyKind::Quota(_) | KeyKind::Other => {}
        }
        Ok(false)
    }

    pub(super) fn map_revision(&self) -> Revision {
        self.map
            .as_ref()
            .map_or(Revision(0), |known| known.modified)
    }

    /// The members of a map of this epoch that is behind the known one, if that is the newest of all.
    fn registered(&self, next: Epoch) -> Vec<MapMember> {
        let known = self.map.as_ref().map(|known| &known.map);
        let before = known.filter(|map| map.epoch() == self.newest_epoch);
        let members = self.members.values();
        let members = members.map(|known| {
            let member = known.registration.member;
            let old = before.and_then(|map| Some((map.epoch(), map.member(member.id)?)));
            let old = old.filter(|(_, old)| old.incarnation == member.incarnation);
            let since = match old {
                Some((epoch, old)) if old.since == Epoch(0) => epoch,
                Some((_, old)) => old.since,
                None => next,
            };
            MapMember { since, ..member }
        });
        members.collect()
    }

    /// The number of the next map.
    const fn next_epoch(&self) -> Epoch {
        Epoch(self.newest_epoch.0 + 1)
    }

    /// Whether the known map is of those who are registered.
    pub(super) fn is_settled(&self) -> bool {
        let members = self.registered(self.next_epoch());
        self.map
            .as_ref()
            .is_none_or(|known| is_same(known.map.members(), &members))
    }

    /// The members of the known map that `next` is without.
    pub(super) fn removed_by(&self, next: &ClusterMap) -> Vec<NodeId> {
        let old = self.map.iter().flat_map(|known| known.map.members());
        let gone = old.filter(|member| next.member(member.id).is_none());
        gone.map(|member| member.id).collect()
    }

    /// This member's place among those that are registered, from 0.
    pub(super) fn rank(&self, id: NodeId) -> usize {
        self.members.range(..id).count()
    }

    /// The next map. `raised` is the generation that is wanted at least, and `renewed` the epoch behind which one is wanted.
    pub(super) fn proposal(
        &mut self,
        now: Time,
        rejoin_wait: Duration,
        (raised, renewed): (u64, Epoch),
    ) -> Proposal {
        let next = self.next_epoch();
        let mut members = self.registered(next);
        let Some(known) = &self.map else {
            return proposed(next, raised, members);
        };
        let old = known.map.members();
        // Nobody who is in the map has held a lease since it was written: all have expired together,
        // because the coordinator was away. They come back one by one, and are waited for.
        let all_expired = self
            .members
            .values()
            .all(|member| member.created > known.modified);
        if !all_expired || old.is_empty() {
            self.all_expired = None;
        } else {
            let since = *self.all_expired.get_or_insert(now);
            let is_missing = old
                .iter()
                .any(|member| !self.members.contains_key(&member.id));
            if is_missing && now < since + rejoin_wait {
                return Proposal::Wait(since + rejoin_wait);
            }
        }
        let generation = known.map.generation().max(raised);
        // Each that goes is compared; those beyond go with the next change.
        let gone = old.iter().filter(|old| !self.members.contains_key(&old.id));
        let is_newest = known.map.epoch() == self.newest_epoch;
        let staying = gone.skip(REMOVALS_MAX).map(|old| MapMember {
            since: if is_newest { old.since } else { next },
            ..*old
        });
        members.extend(staying);
        // Who is in the map stays; others wait until one leaves.
        members.sort_unstable_by_key(|member| (known.map.member(member.id).is_none(), member.id));
        members.truncate(MEMBERS_MAX);
        members.sort_unstable_by_key(|member| member.id);
        let is_same = is_same(&members, old)
            && generation == known.map.generation()
            && is_newest
            && known.map.epoch() > renewed;
        if is_same && self.all_expired.is_none() {
            return Proposal::Nothing;
        }
        proposed(next, generation, members)
    }
}

/// Whether these are the same, whoever told since when they are there.
fn is_same(members: &[MapMember], others: &[MapMember]) -> bool {
    let untold = |member: &MapMember| MapMember {
        since: Epoch(0),
        ..*member
    };
    members.iter().map(untold).eq(others.iter().map(untold))
}

/// A map of as many members as a map has.
fn proposed(epoch: Epoch, generation: u64, mut members: Vec<MapMember>) -> Proposal {
    members.truncate(MEMBERS_MAX);
    let map = ClusterMap::new(epoch, generation, members);
    Proposal::Map(map.expect("registrations are checked, and in order"))
}
