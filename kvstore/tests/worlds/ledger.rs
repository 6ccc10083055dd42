//! What every client did and was told, and whether that can all be true.
//!
//! Each write brings a value of its own, so an answer tells which write it is of. Order is judged by
//! when operations began and ended, and by the versions that answers carry.

use std::collections::BTreeMap;

use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime_core::time::Time;

/// How a write or a removal ended, for who judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was done.
    Done,
    /// It was not done, and never will be.
    Undone,
    /// Nobody knows.
    Doubt,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    kind: WriteKind,
    begun: Time,
    ended: Option<(Time, End)>,
}

/// A removal or an upsert that was acknowledged: what was acknowledged before it began is dead.
#[derive(Clone, Copy, Debug)]
struct Change {
    begun: Time,
    ended: Time,
    /// The value that it brought.
    value: Option<u64>,
    /// Its own version, if that is known.
    version: Option<Version>,
}

#[derive(Debug, Default)]
struct History {
    writes: BTreeMap<u64, Write>,
    changes: Vec<Change>,
    /// Removals and upserts that may have been done, now or later.
    doubtful: u64,
    by_version: BTreeMap<Version, u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    keys: BTreeMap<usize, History>,
    last_value: u64,
    pub(crate) failures: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// Whether objects may be gone with who held them.
    pub(crate) has_losses: bool,
    /// Until when a member may be outside the map, and its objects with it.
    pub(crate) away_until: Time,
}

impl Ledger {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn fail(&mut self, now: Time, text: &str) {
        let ms = now.as_ns() / 1_000_000;
        self.failures.push(format!("at {ms} ms: {text}"));
    }

    /// A write begins: the number of its value.
    pub(crate) fn begin_write(&mut self, now: Time, key: usize, kind: WriteKind) -> u64 {
        self.last_value += 1;
        let write = Write {
            kind,
            begun: now,
            ended: None,
        };
        let history = self.keys.entry(key).or_default();
        history.writes.insert(self.last_value, write);
        if kind == WriteKind::Upsert {
            // Until it has ended.
            history.doubtful += 1;
        }
        self.last_value
    }

    /// A write has ended, as this version if it was done.
    pub(crate) fn end_write(
        &mut self,
        now: Time,
        (key, value): (usize, u64),
        end: End,
        version: Option<Version>,
    ) {
        let history = self.keys.get_mut(&key).expect("it has begun");
        let write = history.writes.get_mut(&value).expect("it has begun");
        write.ended = Some((now, end));
        let write = *write;
        if write.kind == WriteKind::Upsert && end != End::Doubt {
            history.doubtful -= 1;
        }
        if write.kind == WriteKind::Upsert && end == End::Done {
            history.changes.push(Change {
                begun: write.begun,
                ended: now,
                value: Some(value),
                version,
            });
        }
        if let Some(version) = version {
            self.note_version(now, key, version, value);
        }
    }

    fn note_version(&mut self, now: Time, key: usize, version: Version, value: u64) {
        let history = self.keys.get_mut(&key).expect("it has begun");
        let known = *history.by_version.entry(version).or_insert(value);
        if known != value {
            let text = format!("key {key}: {version:?} is of both {known} and {value}");
            self.fail(now, &text);
        }
    }

    pub(crate) fn begin_removal(&mut self, key: usize) {
        self.keys.entry(key).or_default().doubtful += 1;
    }

    pub(crate) fn end_removal(&mut self, now: Time, key: usize, begun: Time, end: End) {
        let history = self.keys.get_mut(&key).expect("it has begun");
        if end != End::Doubt {
            history.doubtful -= 1;
        }
        if end == End::Done {
            history.changes.push(Change {
                begun,
                ended: now,
                value: None,
                version: None,
            });
        }
    }

    /// A get that began then was answered with these bytes.
    pub(crate) fn on_hit(&mut self, now: Time, key: usize, begun: Time, value: u64, at: Version) {
        self.count("hit");
        let Some(history) = self.keys.get(&key) else {
            return self.fail(now, &format!("key {key}: a hit of what was never put"));
        };
        let Some(write) = history.writes.get(&value).copied() else {
            return self.fail(now, &format!("key {key}: value {value} is of another key"));
        };
        if let Some((_, End::Undone)) = write.ended {
            let text = format!("key {key}: value {value}, whose write was not done");
            self.fail(now, &text);
            return;
        }
        let stale = history.changes.iter().find(|change| {
            // One that is in doubt may be done much later, but not as an older version.
            let is_older = matches!(write.ended, Some((ended, End::Done)) if ended < change.begun);
            let is_dead = is_older || change.version.is_some_and(|version| version > at);
            change.value != Some(value) && is_dead && change.ended < begun
        });
        if let Some(change) = stale {
            let text = format!("key {key}: value {value} outlived {change:?}: {write:?}");
            self.fail(now, &text);
            return;
        }
        self.note_version(now, key, at, value);
    }

    /// A get that began then was told for sure that there is nothing.
    pub(crate) fn on_miss(&mut self, now: Time, key: usize, begun: Time) {
        self.count("miss");
        let Some(history) = self.keys.get(&key) else {
            return;
        };
        if self.has_losses || begun < self.away_until || history.doubtful > 0 {
            return;
        }
        // Nothing is lost: what was there when it began, and no change has touched, is there.
        let present = history.writes.iter().find(|(_, write)| {
            matches!(write.ended, Some((ended, End::Done)) if ended < begun)
                && !history
                    .changes
                    .iter()
                    .any(|change| change.ended > write.begun && change.value.is_none())
        });
        if let Some((value, write)) = present {
            let text = format!("key {key}: a miss without a cause: {value} {write:?}");
            self.fail(now, &text);
        }
    }
}
