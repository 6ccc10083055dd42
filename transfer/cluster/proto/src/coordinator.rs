//! The embedded coordinator: one machine that keeps keys, leases and the changes of late.
//!
//! It answers as etcd does, and stands in for it in simulated worlds. It is one process and no
//! consensus: while it is down, members cannot change the map, and live on as with an etcd that is
//! lost. What it has acknowledged is in its [`snapshot`](Coordinator::snapshot), which its driver
//! writes before it answers. After a restart every lease begins anew, so that nobody is taken for
//! gone because the coordinator was.

mod snapshot;
mod watches;

use std::collections::{BTreeMap, VecDeque};

use lunette_runtime_core::time::Time;

use crate::coordination::{
    Answer, Ask, Change, Compare, CoordinationFault, Expected, KeyRange, KeyValue, LeaseId, Op,
    OpOutcome, Outcome, RANGE_KEYS_MAX, Revision, Txn,
};
use core::time::Duration;
pub use snapshot::{SNAPSHOT_BYTES_MAX, SnapshotFault};
pub use watches::WatchId;
use watches::Watches;

/// Most keys.
pub const KEYS_MAX: usize = RANGE_KEYS_MAX;
/// Most bytes of keys and values together. A snapshot is about as long.
pub const STORE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most leases.
pub const LEASES_MAX: usize = 4096;
/// Most watches.
pub const WATCHES_MAX: usize = 4096;
/// Most changes of late that are kept for watches that begin in the past.
pub const HISTORY_MAX: usize = 4096;
/// Most bytes of keys and values in them.
pub const HISTORY_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: Vec<u8>,
    created: Revision,
    modified: Revision,
    lease: Option<LeaseId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    ttl_s: u32,
    deadline: Time,
}

/// Keys, leases, watches.
#[derive(Debug)]
pub struct Coordinator {
    revision: Revision,
    keys: BTreeMap<Vec<u8>, Entry>,
    bytes: usize,
    leases: BTreeMap<LeaseId, Lease>,
    history: VecDeque<Change>,
    history_bytes: usize,
    /// The newest change that is no longer in the history.
    forgotten: Revision,
    watches: Watches,
    /// Counts what changes the snapshot.
    writes: u64,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self {
            // As etcd begins: revision 0 means "not there".
            revision: Revision(1),
            keys: BTreeMap::new(),
            bytes: 0,
            leases: BTreeMap::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            forgotten: Revision(1),
            watches: Watches::default(),
            writes: 0,
        }
    }
}

impl Coordinator {
    /// The newest change.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// Counts what has changed the snapshot. A driver that sees it grow writes a snapshot before it
    /// answers.
    #[must_use]
    pub const fn writes(&self) -> u64 {
        self.writes
    }

    /// Answers. Leases that are due by `now` have ended before.
    ///
    /// # Errors
    /// [`CoordinationFault`]; nothing was done then.
    pub fn handle(&mut self, now: Time, ask: &Ask) -> Result<Answer, CoordinationFault> {
        self.on_timeout(now);
        ask.check()?;
        let outcome = match ask {
            Ask::Op(op) => {
                let outcomes = self.apply(core::slice::from_ref(op))?;
                let outcome = outcomes.into_iter().next();
                Outcome::Op(outcome.expect("one operation has one outcome"))
            }
            Ask::Txn(txn) => self.txn(txn)?,
            Ask::Grant { lease, ttl_s } => self.grant(now, *lease, *ttl_s)?,
            Ask::KeepAlive(lease) => {
                let lease = self.leases.get_mut(lease);
                let lease = lease.ok_or(CoordinationFault::LeaseNotFound)?;
                lease.deadline = now + Duration::from_secs(u64::from(lease.ttl_s));
                Outcome::Leased { ttl_s: lease.ttl_s }
            }
            Ask::Revoke(lease) => {
                if !self.leases.contains_key(lease) {
                    return Err(CoordinationFault::LeaseNotFound);
                }
                self.end_lease(*lease);
                Outcome::Revoked
            }
        };
        let revision = self.revision;
        Ok(Answer { revision, outcome })
    }

    /// When the next lease ends.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.leases.values().map(|lease| lease.deadline).min()
    }

    /// Ends the leases that are due, and their keys.
    pub fn on_timeout(&mut self, now: Time) {
        let due = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.deadline <= now);
        let due: Vec<LeaseId> = due.map(|(id, _)| *id).collect();
        for lease in due {
            self.end_lease(lease);
        }
    }

    /// Forgets changes up to `revision`: watches that begin there or before are refused, and those
    /// that are behind end.
    pub fn compact(&mut self, revision: Revision) {
        let revision = revision.min(self.revision);
        while self
            .history
            .front()
            .is_some_and(|change| change.revision() <= revision)
        {
            self.forget();
        }
        self.forgotten = self.forgotten.max(revision);
    }

    fn grant(
        &mut self,
        now: Time,
        lease: LeaseId,
        ttl_s: u32,
    ) -> Result<Outcome, CoordinationFault> {
        if self.leases.contains_key(&lease) {
            return Err(CoordinationFault::LeaseExists);
        }
        if self.leases.len() >= LEASES_MAX {
            return Err(CoordinationFault::TooLarge {
                what: "the number of leases",
            });
        }
        let deadline = now + Duration::from_secs(u64::from(ttl_s));
        self.leases.insert(lease, Lease { ttl_s, deadline });
        self.writes += 1;
        Ok(Outcome::Leased { ttl_s })
    }

    fn end_lease(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
        self.writes += 1;
        let theirs = self
            .keys
            .iter()
            .filter(|(_, entry)| entry.lease == Some(lease));
        let keys: Vec<Vec<u8>> = theirs.map(|(key, _)| key.clone()).collect();
        if keys.is_empty() {
            return;
        }
        self.revision = self.revision.next();
        for key in keys {
            self.remove(key);
        }
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, CoordinationFault> {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded {
            &txn.success
        } else {
            &txn.failure
        };
        let outcomes = self.apply(ops)?;
        Ok(Outcome::Txn {
            succeeded,
            outcomes,
        })
    }

    fn holds(&self, compare: &Compare) -> bool {
        let entry = self.keys.get(&compare.key);
        let zero = Revision(0);
        match compare.expected {
            Expected::Modified(revision) => entry.map_or(zero, |entry| entry.modified) == revision,
            Expected::Created(revision) => entry.map_or(zero, |entry| entry.created) == revision,
        }
    }

    /// Does all of it, as one change, or nothing.
    fn apply(&mut self, ops: &[Op]) -> Result<Vec<OpOutcome>, CoordinationFault> {
        self.check(ops)?;
        let next = self.revision.next();
        let before = self.revision;
        self.revision = next;
        let mut changed = false;
        let mut outcomes = Vec::with_capacity(ops.len());
        for op in ops {
            outcomes.push(match op {
                Op::Range(range) => OpOutcome::Range(self.pairs(range)),
                Op::Put { key, value, lease } => {
                    self.put(key, value, *lease);
                    changed = true;
                    OpOutcome::Put
                }
                Op::Delete(range) => {
                    let keys: Vec<_> = self.pairs(range).into_iter().map(|pair| pair.key).collect();
                    let deleted = keys.len() as u64;
                    changed |= deleted > 0;
                    keys.into_iter().for_each(|key| self.remove(key));
                    OpOutcome::Delete { deleted }
                }
            });
        }
        if changed {
            self.writes += 1;
        } else {
            self.revision = before;
        }
        Ok(outcomes)
    }

    /// Whether all of it can be done.
    fn check(&self, ops: &[Op]) -> Result<(), CoordinationFault> {
        let (mut keys, mut bytes) = (self.keys.len(), self.bytes);
        let mut put: Vec<&[u8]> = Vec::new();
        for op in ops {
            let Op::Put { key, value, lease } = op else {
                continue;
            };
            if key.is_empty() || put.contains(&key.as_slice()) {
                let message = "a key is empty, or put twice at once".to_owned();
                return Err(CoordinationFault::Refused { code: 3, message });
            }
            if lease.is_some_and(|lease| !self.leases.contains_key(&lease)) {
                return Err(CoordinationFault::LeaseNotFound);
            }
            keys += usize::from(!self.keys.contains_key(key));
            bytes += key.len() + value.len();
            put.push(key);
        }
        if keys > KEYS_MAX {
            return Err(CoordinationFault::TooLarge {
                what: "the number of keys",
            });
        }
        if !put.is_empty() && bytes > STORE_BYTES_MAX {
            return Err(CoordinationFault::TooLarge { what: "the store" });
        }
        Ok(())
    }

    fn pairs(&self, range: &KeyRange) -> Vec<KeyValue> {
        let found = self.keys.range(range.start.clone()..);
        found
            .take_while(|(key, _)| range.contains(key))
            .map(|(key, entry)| pair(key, entry))
            .collect()
    }

    /// Sets a key, as part of the change that is under way.
    fn put(&mut self, key: &[u8], value: &[u8], lease: Option<LeaseId>) {
        let modified = self.revision;
        let old = self.keys.remove(key);
        self.bytes -= old.as_ref().map_or(0, |old| key.len() + old.value.len());
        let created = old.map_or(modified, |old| old.created);
        let value = value.to_vec();
        let entry = Entry {
            value,
            created,
            modified,
            lease,
        };
        self.bytes += key.len() + entry.value.len();
        self.tell(Change::Put(pair(key, &entry)));
        self.keys.insert(key.to_vec(), entry);
    }

    /// Removes a key that is there, as part of the change that is under way.
    fn remove(&mut self, key: Vec<u8>) {
        let old = self.keys.remove(&key).expect("who removes it has seen it");
        self.bytes -= key.len() + old.value.len();
        let revision = self.revision;
        self.tell(Change::Delete { key, revision });
    }

    fn tell(&mut self, change: Change) {
        self.watches.mark(change.key());
        self.history_bytes += weight(&change);
        self.history.push_back(change);
        while self.history.len() > HISTORY_MAX || self.history_bytes > HISTORY_BYTES_MAX {
            self.forget();
        }
    }

    fn forget(&mut self) {
        let change = self.history.pop_front().expect("there is one");
        self.history_bytes -= weight(&change);
        self.forgotten = self.forgotten.max(change.revision());
    }
}

fn pair(key: &[u8], entry: &Entry) -> KeyValue {
    KeyValue {
        key: key.to_vec(),
        value: entry.value.clone(),
        created: entry.created,
        modified: entry.modified,
        lease: entry.lease,
    }
}

fn weight(change: &Change) -> usize {
    match change {
        Change::Put(pair) => pair.key.len() + pair.value.len(),
        Change::Delete { key, .. } => key.len(),
    }
}

#[cfg(test)]
mod tests;
