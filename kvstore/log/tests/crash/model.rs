//! What may be found, by what was acknowledged.

use std::collections::BTreeMap;

use lunette_kvstore_log::effect::{AppendId, RemovalId};
use lunette_kvstore_log::record::{Fingerprint, Record, Version};

/// What a key may have after a crash: a version, or nothing.
type State = Option<Version>;

#[derive(Debug, Default)]
struct KeyModel {
    /// What may be found after a crash, and the moment since which that is so.
    allowed: BTreeMap<State, u64>,
    /// What is found now.
    live: Option<Record>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Model {
    keys: BTreeMap<Fingerprint, KeyModel>,
    /// All that was ever appended: there is nothing else.
    pub(super) written: BTreeMap<(Fingerprint, Version), Record>,
    appends: BTreeMap<AppendId, (Record, u64)>,
    removals: BTreeMap<RemovalId, (Fingerprint, u64)>,
    moment: u64,
    /// When the log was recovered, until that is durable.
    recovered: Option<u64>,
    /// Whether a part of it could not be read then.
    is_unread: bool,
}

impl Model {
    const fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn key(&mut self, fingerprint: Fingerprint) -> &mut KeyModel {
        self.keys.entry(fingerprint).or_insert_with(|| KeyModel {
            allowed: BTreeMap::from([(None, 0)]),
            live: None,
        })
    }

    pub(super) fn live(&self, fingerprint: Fingerprint) -> Option<Record> {
        self.keys.get(&fingerprint).and_then(|key| key.live)
    }

    pub(super) fn appended(&mut self, append: AppendId, record: Record) {
        let moment = self.moment();
        self.appends.insert(append, (record, moment));
        self.written
            .insert((record.fingerprint, record.version), record);
        self.key(record.fingerprint)
            .allowed
            .insert(Some(record.version), moment);
    }

    pub(super) fn durable(&mut self, append: AppendId) {
        let (record, moment) = self.appends.remove(&append).expect("an append ends once");
        let key = self.key(record.fingerprint);
        key.allowed.retain(|_, since| *since >= moment);
        key.live = Some(record);
    }

    pub(super) fn failed(&mut self, append: AppendId) {
        self.appends.remove(&append).expect("an append ends once");
    }

    /// A removal of this version was begun, unless it is under way; nothing of its key is found from now on but what
    /// is on its way.
    pub(super) fn removing(
        &mut self,
        removal: Option<RemovalId>,
        fingerprint: Fingerprint,
        version: Version,
    ) {
        if removal.is_some_and(|removal| self.removals.contains_key(&removal)) {
            return;
        }
        let moment = self.moment();
        for (record, since) in self.appends.values_mut() {
            if record.fingerprint == fingerprint && record.version != version {
                *since = moment;
                let key = self.keys.get_mut(&fingerprint).expect("it was appended to");
                key.allowed.insert(Some(record.version), moment);
            }
        }
        let key = self.key(fingerprint);
        key.allowed.insert(None, moment);
        key.live = None;
        if let Some(removal) = removal {
            self.removals.insert(removal, (fingerprint, moment));
        }
    }

    /// There was nothing to remove: this version is not found again.
    pub(super) fn removed_at_once(&mut self, fingerprint: Fingerprint, version: Version) {
        let moment = self.moment();
        let key = self.key(fingerprint);
        key.allowed.remove(&Some(version));
        if key.allowed.is_empty() {
            key.allowed.insert(None, moment);
        }
        key.live = key.live.filter(|record| record.version != version);
    }

    pub(super) fn removed(&mut self, removal: RemovalId) {
        let (fingerprint, moment) = self.removals.remove(&removal).expect("a removal ends once");
        self.key(fingerprint)
            .allowed
            .retain(|_, since| *since >= moment);
    }

    pub(super) fn removal_failed(&mut self, removal: RemovalId) {
        self.removals.remove(&removal).expect("a removal ends once");
    }

    /// The owner has let it go, or it is lost.
    pub(super) fn released(&mut self, fingerprint: Fingerprint) {
        let moment = self.moment();
        let key = self.key(fingerprint);
        key.allowed.insert(None, moment);
        key.live = None;
    }

    /// What is of an earlier generation is not found any more; once that is durable, not after a crash either.
    pub(super) fn raised(&mut self, generation: u64, is_durable: bool) {
        let moment = self.moment();
        let written = &self.written;
        for (fingerprint, key) in &mut self.keys {
            let is_old =
                |version: &Version| written[&(*fingerprint, *version)].generation < generation;
            if key.live.is_some_and(|record| is_old(&record.version)) {
                key.live = None;
            }
            let has_old = key.allowed.keys().flatten().any(is_old);
            if has_old {
                key.allowed.insert(None, moment);
            }
            if is_durable {
                key.allowed
                    .retain(|state, _| !state.is_some_and(|version| is_old(&version)));
            }
        }
    }

    /// What was recovered is now durable: nothing else is found any more.
    pub(super) fn mounted(&mut self) {
        let Some(recovered) = self.recovered.take() else {
            return;
        };
        self.is_unread = false;
        for key in self.keys.values_mut() {
            key.allowed.retain(|_, since| *since >= recovered);
        }
    }

    /// The log was recovered, and has this of a key. What is wrong with that, if anything is. Where a part of it could
    /// not be read, anything that was ever appended may be there, and nothing else once that is durable.
    pub(super) fn recovered(
        &mut self,
        fingerprint: Fingerprint,
        found: Option<Record>,
    ) -> Result<(), String> {
        let (moment, is_unread) = (self.moment, self.is_unread);
        let key = self.key(fingerprint);
        let state = found.map(|record| record.version);
        if !is_unread && !key.allowed.contains_key(&state) {
            return Err(format!(
                "{fingerprint:?} has {state:?} after a crash, and may have {:?}",
                key.allowed
            ));
        }
        key.allowed.insert(state, moment);
        key.live = found;
        Ok(())
    }

    /// Whether there may be no record of the key after a crash.
    pub(super) fn may_be_gone(&mut self, fingerprint: Fingerprint) -> bool {
        self.is_unread || self.key(fingerprint).allowed.contains_key(&None)
    }

    /// The log was opened without what it has of the key: that stays on the drive.
    pub(super) fn dropped(&mut self, fingerprint: Fingerprint) {
        let moment = self.moment();
        let key = self.key(fingerprint);
        key.allowed.insert(None, moment);
        key.allowed.values_mut().for_each(|since| *since = moment);
        key.live = None;
    }

    /// Before the log is compared with [`recovered`](Self::recovered).
    pub(super) fn crashed(&mut self, is_unread: bool) {
        // What was made to stay away may be a part of it, until all of that is durable.
        self.is_unread |= is_unread;
        self.appends.clear();
        self.removals.clear();
        let moment = self.moment();
        self.recovered = Some(moment);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.appends.is_empty() && self.removals.is_empty()
    }
}
