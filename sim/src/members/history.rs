//! What was written under one key, and removed, and what of that is sure.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime_core::time::Time;

use super::ledger::Hold;
use super::plan::{FAULTS_UNTIL, SETTLES};

/// An operation that has not ended by then never will: who began it is gone, or has given up.
const TAKES_MAX: Duration = Duration::from_secs(4);

/// How a write or a removal ended, for who judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was done.
    Done,
    /// It was, by who was cut off: others may know better.
    DoneCutOff,
    /// It was not done, and never will be.
    Undone,
    /// Nobody knows.
    Doubt,
}

/// What gets have shown of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// When the first of them ended.
    first: Time,
    /// When one of them began, the last one that did.
    last: Time,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) kind: WriteKind,
    /// How many copies it asked for.
    pub(super) wanted: u8,
    /// Its copies are pinned for ever.
    pub(super) is_pinned: bool,
    pub(super) begun: Time,
    pub(super) ended: Option<(Time, End)>,
    pub(super) version: Option<Version>,
    shown: Option<Shown>,
}

impl Write {
    pub(super) const fn new(kind: WriteKind, begun: Time) -> Self {
        Self {
            kind,
            wanted: 1,
            is_pinned: false,
            begun,
            ended: None,
            version: None,
            shown: None,
        }
    }

    /// Whether nobody has said that it was done, nor that it was not.
    pub(super) const fn is_in_doubt(&self) -> bool {
        matches!(self.ended, None | Some((_, End::Doubt)))
    }

    /// Since when it is known that it was done.
    fn done(&self) -> Option<Time> {
        match self.ended {
            Some((ended, End::Done)) => Some(ended),
            _ if self.is_in_doubt() => self.shown.map(|shown| shown.first),
            _ => None,
        }
    }

    /// A get that began then, and ended now, has brought it. Whether that is how one knows that it was done.
    pub(super) fn on_shown(&mut self, now: Time, begun: Time, version: Version) -> bool {
        let is_first = self.shown.is_none() && self.is_in_doubt();
        let shown = self.shown.get_or_insert(Shown {
            first: now,
            last: begun,
        });
        shown.last = shown.last.max(begun);
        if self.is_in_doubt() {
            self.version = Some(version);
        }
        is_first
    }

    fn doubt(&self) -> Doubt {
        Doubt {
            begun: self.begun,
            ended: self.ended.map(|(ended, _)| ended),
        }
    }
}

/// A removal or an upsert that was acknowledged: what was acknowledged before it began is dead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) begun: Time,
    pub(super) ended: Time,
    /// The value that it brought.
    pub(super) value: Option<u64>,
    /// Its own version, if that is known.
    pub(super) version: Option<Version>,
}

/// A removal or an upsert that may have been done, now or later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    pub(super) begun: Time,
    ended: Option<Time>,
}

impl Doubt {
    /// From when on it will not be done any more. Until the last fault it may wait for whoever is paused.
    pub(super) fn over(&self) -> Time {
        let ended = self.ended.unwrap_or(self.begun + TAKES_MAX);
        ended.max(FAULTS_UNTIL) + SETTLES
    }

    /// Whether it may have been done after this write was, and after what was seen of it.
    fn may_befall(&self, write: &Write) -> bool {
        let seen = write.shown.map_or(write.begun, |shown| shown.last);
        self.over() > seen.max(write.begun)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) writes: BTreeMap<u64, Write>,
    pub(super) changes: Vec<Change>,
    removals: Vec<Doubt>,
    pub(super) by_version: BTreeMap<Version, u64>,
    pub(super) holds: Vec<Hold>,
}

impl History {
    pub(super) fn begin_removal(&mut self, now: Time) {
        self.removals.push(Doubt {
            begun: now,
            ended: None,
        });
    }

    pub(super) fn end_removal(&mut self, now: Time, begun: Time, end: End) {
        let mut open = self.removals.iter();
        let own = open.position(|doubt| doubt.begun == begun && doubt.ended.is_none());
        let own = own.expect("it has begun");
        if end == End::Doubt {
            self.removals[own].ended = Some(now);
        } else {
            self.removals.remove(own);
        }
        if end == End::Done {
            self.changes.push(Change {
                begun,
                ended: now,
                value: None,
                version: None,
            });
        }
    }

    /// Values whose writes are known to have been done by then, with their versions.
    pub(super) fn acknowledged(&self, begun: Time) -> Vec<(u64, &Write, Version)> {
        let acknowledged = self.writes.iter().filter_map(|(value, write)| {
            let is_done = write.done().is_some_and(|done| done < begun);
            is_done.then_some((*value, write, write.version?))
        });
        acknowledged.collect()
    }

    /// Those of them that nobody has removed or replaced since.
    pub(super) fn standing<'a>(
        &self,
        acknowledged: &[(u64, &'a Write, Version)],
    ) -> Vec<(u64, &'a Write, Version)> {
        let standing = acknowledged.iter().copied();
        let standing = standing.filter(|(value, write, _)| !self.is_changed(*value, write));
        standing.collect()
    }

    fn is_changed(&self, value: u64, write: &Write) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| change.ended > write.begun && change.value != Some(value))
    }

    /// Whether somebody had removed or replaced by then what had been acknowledged before.
    pub(super) fn is_dead(&self, (value, write): (u64, &Write), by: Time) -> bool {
        self.changes.iter().any(|change| {
            let is_older = matches!(write.ended, Some((ended, End::Done | End::DoneCutOff)) if ended < change.begun);
            change.value != Some(value) && is_older && change.ended < by
        })
    }

    /// Whether copies of a version may be what there is under the key: they are of a write that nobody has replaced for sure.
    pub(super) fn may_live(&self, version: Version) -> bool {
        let value = self.by_version.get(&version);
        value.is_none_or(|value| self.is_living(*value, &self.writes[value]))
    }

    /// What has been written and may be what there is under the key.
    pub(super) fn living(&self) -> impl Iterator<Item = u64> {
        let writes = self.writes.iter();
        let living = writes.filter(|(value, write)| self.is_living(**value, write));
        living.map(|(value, _)| *value)
    }

    fn is_living(&self, value: u64, write: &Write) -> bool {
        match write.ended {
            Some((_, End::Undone)) => false,
            _ => write.is_in_doubt() || !self.is_changed(value, write),
        }
    }

    /// Upserts of which nobody has said whether they were done.
    fn upserts_in_doubt(&self) -> impl Iterator<Item = (u64, Doubt)> {
        let upserts = self.writes.iter();
        let upserts =
            upserts.filter(|(_, write)| write.kind == WriteKind::Upsert && write.is_in_doubt());
        upserts.map(|(value, write)| (*value, write.doubt()))
    }

    /// Whether something may be done to the key after that.
    pub(super) fn may_change(&self, after: Time) -> bool {
        let upserts = self.upserts_in_doubt().map(|(_, doubt)| doubt);
        let mut all = upserts.chain(self.removals.iter().copied());
        all.any(|doubt| doubt.over() > after)
    }

    /// Whether a removal in doubt may have removed what was written.
    pub(super) fn may_be_removed(&self, write: &Write) -> bool {
        self.removals.iter().any(|doubt| doubt.may_befall(write))
    }

    /// Since when an upsert in doubt may have replaced it.
    pub(super) fn may_be_replaced(&self, value: u64, write: &Write) -> Option<Time> {
        let upserts = self.upserts_in_doubt();
        let befalling = upserts.filter(|(other, doubt)| *other != value && doubt.may_befall(write));
        befalling.map(|(_, doubt)| doubt.begun).min()
    }
}
