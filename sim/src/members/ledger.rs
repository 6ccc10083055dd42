//! What every client did and was told, and whether that can all be true.
//!
//! Each write brings a value of its own, so an answer tells which write it is of. Order is judged by
//! when operations began and ended, and by the versions that answers carry.

use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime::sim::Log;
use lunette_runtime_core::time::Time;

use super::copies::{Copies, Ends};
use super::history::{Change, End, History, Write};
use super::load::{KEYS, fingerprint_high, is_striped, len_of};
use crate::hearing::{Told, heard};

/// Why a key was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No put of it has been acknowledged.
    NeverPut,
    /// It was removed or replaced, or may have been.
    Removed,
    /// Its holders needed the room.
    Evicted,
    /// All its holders were gone.
    HolderGone,
    /// It was in parts, of which one was evicted, or was had by nobody any more.
    PartGone,
    /// Its home did not know, for as long as somebody waited.
    Unknown,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NeverPut,
        Self::Removed,
        Self::Evicted,
        Self::HolderGone,
        Self::PartGone,
        Self::Unknown,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverPut => "never_put",
            Self::Removed => "removed",
            Self::Evicted => "evicted",
            Self::HolderGone => "holder_gone",
            Self::PartGone => "part_gone",
            Self::Unknown => "unknown",
        }
    }
}

/// What a get was answered with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) value: u64,
    pub(crate) version: Version,
    /// Whether who served it said that it was cut off.
    pub(crate) is_cut_off: bool,
}

/// A copy that a node has promised to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) version: Version,
    pub(crate) node: u64,
    pub(crate) asked: Time,
    pub(crate) told: Time,
    pub(crate) until: Time,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    /// Of everything that is put.
    namespace: NamespaceKind,
    keys: BTreeMap<usize, History>,
    last_value: u64,
    pub(crate) copies: Copies,
    /// The keys of the parts of a key's objects, all of them named by the high halves of fingerprints, and how long each of these
    /// objects is, which tells what it is.
    parts: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Nodes that are to have nothing, in the end.
    pub(crate) emptied: BTreeSet<u64>,
    pub(crate) failures: Vec<String>,
    pub(crate) answers: BTreeMap<&'static str, u64>,
    pub(crate) misses: BTreeMap<&'static str, u64>,
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Ledger {
    pub(crate) fn new(namespace: NamespaceKind) -> Self {
        Self {
            namespace,
            keys: BTreeMap::new(),
            last_value: 0,
            copies: Copies::default(),
            parts: BTreeMap::new(),
            emptied: BTreeSet::new(),
            failures: Vec::new(),
            answers: BTreeMap::new(),
            misses: BTreeMap::new(),
            errors: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.answers.entry(what).or_default() += 1;
    }

    pub(crate) fn count_error(&mut self, what: String) {
        *self.errors.entry(what).or_default() += 1;
    }

    /// Hears what members have told of copies since it did last. Who judges an answer does first: of what has left in the same
    /// turn of a core it is told by then.
    pub(crate) fn hear(&mut self, log: &Log) {
        for told in heard() {
            if told.target == lunette_kvstore::COPIES {
                log.note(&format!("{told}"));
                self.copies.on_told(log.now(), &told);
            } else if told.target == lunette_kvstore::PARTS {
                self.on_part(&told);
            }
        }
    }

    /// An object of a key may have this part.
    pub(crate) fn on_part(&mut self, told: &Told) {
        let parts = self.parts.entry(told.number("key_high")).or_default();
        parts.push((told.number("len_bytes"), told.number("part_high")));
    }

    pub(crate) fn fail(&mut self, now: Time, text: &str) {
        let ms = now.as_ns() / 1_000_000;
        self.failures.push(format!("at {ms} ms: {text}"));
    }

    /// A write begins: the number of its value.
    pub(crate) fn begin_write(&mut self, now: Time, key: usize, kind: WriteKind) -> u64 {
        self.last_value += 1;
        let history = self.keys.entry(key).or_default();
        history
            .writes
            .insert(self.last_value, Write::new(kind, now));
        self.last_value
    }

    /// The write asks for so many copies, which are pinned for ever or not.
    pub(crate) fn on_wanted(&mut self, (key, value): (usize, u64), wanted: u8, is_pinned: bool) {
        let history = self.keys.get_mut(&key).expect("it has begun");
        let write = history.writes.get_mut(&value).expect("it has begun");
        write.wanted = wanted;
        write.is_pinned = is_pinned;
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
        write.version = version.or(write.version);
        let write = *write;
        if end == End::DoneCutOff {
            self.on_cut_off(now, "write of who was cut off");
            // Parts are put, whatever is done with the object that they are of.
            if write.kind == WriteKind::Upsert && !is_striped(key) {
                self.fail(now, "who was cut off has replaced an object");
            }
        }
        let history = self.keys.get_mut(&key).expect("it has begun");
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

    pub(crate) fn begin_removal(&mut self, now: Time, key: usize) {
        self.keys.entry(key).or_default().begin_removal(now);
    }

    pub(crate) fn end_removal(&mut self, now: Time, key: usize, begun: Time, end: End) {
        let history = self.keys.get_mut(&key).expect("it has begun");
        history.end_removal(now, begun, end);
    }

    /// A get that began then was answered with these bytes.
    pub(crate) fn on_hit(&mut self, now: Time, key: usize, begun: Time, hit: Hit) {
        self.count("hit");
        let (value, at) = (hit.value, hit.version);
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
        if hit.is_cut_off {
            self.on_cut_off(now, "hit of who was cut off");
            return self.note_version(now, key, at, value);
        }
        let stale = history.changes.iter().find(|change| {
            // One that is in doubt may be done much later, but not as an older version.
            let is_older = matches!(write.ended, Some((ended, End::Done | End::DoneCutOff)) if ended < change.begun);
            let is_dead = is_older || change.version.is_some_and(|version| version > at);
            change.value != Some(value) && is_dead && change.ended < begun
        });
        if let Some(change) = stale {
            let text = format!("key {key}: value {value} outlived {change:?}: {write:?}");
            self.fail(now, &text);
            return;
        }
        self.note_version(now, key, at, value);
        self.note_shown(now, key, begun, hit);
    }

    /// What is shown was done, whatever its writer has been told.
    fn note_shown(&mut self, now: Time, key: usize, begun: Time, hit: Hit) {
        let history = self.keys.get_mut(&key).expect("it has begun");
        let write = history.writes.get_mut(&hit.value).expect("it has begun");
        let was_in_doubt = write.on_shown(now, begun, hit.version);
        if was_in_doubt && write.kind == WriteKind::Upsert {
            let change = Change {
                begun: write.begun,
                ended: now,
                value: Some(hit.value),
                version: Some(hit.version),
            };
            history.changes.push(change);
        }
    }

    /// Somebody who asked then was told that there is an object, of so many bytes.
    pub(crate) fn on_shown(
        &mut self,
        now: Time,
        key: usize,
        begun: Time,
        len_bytes: Option<usize>,
    ) {
        self.count("shown");
        let is_cache = self.namespace == NamespaceKind::Cache;
        let history = self.keys.get(&key);
        let is_shown = |(value, write): (&u64, &Write)| {
            let is_of_it = len_bytes.is_none_or(|len_bytes| len_bytes == len_of(*value));
            let is_undone = matches!(write.ended, Some((_, End::Undone)));
            // Who is cut off may show what is dead.
            let is_dead = || history.is_some_and(|own| own.is_dead((*value, write), begun));
            is_of_it && !is_undone && (is_cache || !is_dead())
        };
        let is_known = history.is_some_and(|history| history.writes.iter().any(is_shown));
        if !is_known {
            let text = format!("key {key}: nothing of {len_bytes:?} bytes can be there");
            self.fail(now, &text);
        }
    }

    /// Somebody said that they were cut off, and answered all the same.
    fn on_cut_off(&mut self, now: Time, what: &'static str) {
        self.count(what);
        if self.namespace == NamespaceKind::Strict {
            self.fail(now, &format!("a {what}, in a strict namespace"));
        }
    }

    /// A get that began then was told that nobody knows.
    pub(crate) fn on_unknown(&mut self) {
        *self.misses.entry(Cause::Unknown.name()).or_default() += 1;
    }

    /// A get that began then was told for sure that there is nothing.
    pub(crate) fn on_miss(&mut self, now: Time, key: usize, begun: Time) {
        match self.cause_of_miss(now, key, begun) {
            Ok(cause) => *self.misses.entry(cause.name()).or_default() += 1,
            Err(_) if is_striped(key) && self.is_part_gone(now, key) => {
                *self.misses.entry(Cause::PartGone.name()).or_default() += 1;
            }
            Err(text) => self.fail(now, &format!("key {key}: a miss without a cause: {text}")),
        }
    }

    /// Whether any part is not where it was of any object that may be under this key: an earlier one may be back, and who was cut
    /// off, or has given up, may have replaced it.
    fn is_part_gone(&self, now: Time, key: usize) -> bool {
        let lengths: BTreeSet<u64> = self.keys.get(&key).map_or_else(BTreeSet::new, |history| {
            let living = history.living().map(|value| len_of(value) as u64);
            living.collect()
        });
        let parts = self.parts.get(&fingerprint_high(key)).into_iter().flatten();
        let mut parts = parts.filter(|(len_bytes, _)| lengths.contains(len_bytes));
        parts.any(|(_, part)| self.copies.has_ended(*part, now, |_| true))
    }

    /// A listing that began then has not named the key. It may be on its way from one member to another, and be named by none.
    pub(crate) fn on_unlisted(&mut self, now: Time, key: usize, begun: Time) {
        self.count("not listed");
        let Some(history) = self.keys.get(&key) else {
            return;
        };
        if history.may_change(begun) {
            return;
        }
        let standing = history.standing(&history.acknowledged(begun));
        let high = fingerprint_high(key);
        for (value, _, version) in standing {
            if let Some(node) = (self.copies).holder_throughout((high, version), begun, now) {
                let text = format!("key {key} is not listed, and node {node} has value {value}");
                return self.fail(now, &text);
            }
        }
    }

    fn cause_of_miss(&self, now: Time, key: usize, begun: Time) -> Result<Cause, String> {
        let Some(history) = self.keys.get(&key) else {
            return Ok(Cause::NeverPut);
        };
        let acknowledged = history.acknowledged(begun);
        if acknowledged.is_empty() {
            return Ok(Cause::NeverPut);
        }
        let standing = history.standing(&acknowledged);
        if standing.is_empty() {
            return Ok(Cause::Removed);
        }
        let high = fingerprint_high(key);
        let is_removed = |write: &Write| history.may_be_removed(write);
        let is_replaced =
            |value: u64, write: &Write| history.may_be_replaced(value, write).is_some();
        let may_change = history.may_change(begun);
        for (value, write, version) in &standing {
            let is_sure = !may_change || (!is_removed(write) && !is_replaced(*value, write));
            let copy = (high, *version);
            let gave_way = self.copies.has_earlier_left(copy, now);
            let holder = self.copies.holder_throughout(copy, begun, now);
            if let Some(node) = holder.filter(|_| is_sure && !gave_way) {
                return Err(format!(
                    "node {node} has value {value}, {version:?}: {write:?}"
                ));
            }
        }
        if standing.iter().all(|(_, write, _)| is_removed(write)) {
            return Ok(Cause::Removed);
        }
        let mut all = standing.iter();
        if all.all(|(value, write, _)| is_removed(write) || is_replaced(*value, write)) {
            return self.cause_in_doubt((now, key, history), &standing);
        }
        self.cause_of_loss((begun, now, key, history), &standing)
    }

    /// All that stands may have been replaced by an upsert in doubt. Whichever of the versions is there now, it was not removed.
    fn cause_in_doubt(
        &self,
        (now, key, history): (Time, usize, &History),
        standing: &[(u64, &Write, Version)],
    ) -> Result<Cause, String> {
        let since = standing
            .iter()
            .filter_map(|(value, write, _)| history.may_be_replaced(*value, write));
        let since = since.min().expect("one of them may be");
        let may_live = |version| history.may_live(version);
        if self.copies.has_ended(fingerprint_high(key), now, may_live) {
            Ok(Cause::Evicted)
        } else if self.copies.has_anybody_gone(since, now) {
            Ok(Cause::HolderGone)
        } else {
            Err(format!(
                "an upsert in doubt has left nothing of {standing:?}"
            ))
        }
    }

    /// What became of all that stands.
    fn cause_of_loss(
        &self,
        (begun, now, key, history): (Time, Time, usize, &History),
        standing: &[(u64, &Write, Version)],
    ) -> Result<Cause, String> {
        let high = fingerprint_high(key);
        let (mut ends, mut held) = (Ends::default(), None);
        let mut pinned = standing.iter().filter(|(_, write, version)| {
            write.is_pinned && !self.copies.ends((high, *version)).is_beaten
        });
        let pinned = pinned.next().map(|(value, ..)| *value);
        for (_, write, version) in standing {
            let copy = (high, *version);
            if self.copies.has_earlier_left(copy, now) {
                ends.is_evicted = true;
                continue;
            }
            let own = self.copies.ends(copy);
            ends.is_evicted |= own.is_evicted;
            ends.is_lost |= own.is_lost;
            // Of what nobody has acknowledged one that goes may take along what it replaced.
            ends.is_lost |= write.is_in_doubt() && self.copies.has_anybody_gone(write.begun, now);
            if !own.is_beaten {
                held = held.or_else(|| self.hold_throughout((history, copy), begun, now));
            } else if self
                .copies
                .has_ended(high, now, |version| history.may_live(version))
            {
                ends.is_evicted = true;
            }
        }
        match ends {
            Ends { is_lost: true, .. } => Ok(Cause::HolderGone),
            Ends {
                is_evicted: true, ..
            } => match (held, pinned) {
                (Some(hold), _) => Err(format!("it was evicted, and held: {hold:?}")),
                (_, Some(value)) => Err(format!("it was evicted, and {value} is pinned for ever")),
                (None, None) => Ok(Cause::Evicted),
            },
            Ends { .. } => Err(format!("what became of {standing:?}?")),
        }
    }

    fn hold_throughout(
        &self,
        (history, copy): (&History, (u64, Version)),
        begun: Time,
        now: Time,
    ) -> Option<Hold> {
        let holds = history.holds.iter().copied();
        let mut holds = holds.filter(|hold| hold.version == copy.1);
        // One whose clock has jumped takes its promise for kept, and who has dropped a copy that was one too many, or
        // is to be emptied, holds it no more.
        holds.find(|hold| {
            let is_undisturbed = !self.copies.may_be_away(hold.node, hold.asked, now);
            let is_spared = self.copies.is_spared(copy, hold.node, hold.asked);
            hold.told < begun && now < hold.until && is_undisturbed && !is_spared
        })
    }

    pub(crate) fn on_hold(&mut self, key: usize, hold: Hold) {
        self.count("held");
        let history = self.keys.entry(key).or_default();
        history.holds.retain(|old| old.until > hold.asked);
        history.holds.push(hold);
    }

    /// Everything is to be removed.
    pub(crate) fn begin_clear(&mut self, now: Time) {
        self.count("cleared");
        for key in 0..KEYS {
            self.begin_removal(now, key);
        }
    }

    /// By now every member knows of it.
    pub(crate) fn end_clear(&mut self, now: Time, begun: Time) {
        for key in 0..KEYS {
            self.end_removal(now, key, begun, End::Done);
        }
    }

    /// Nothing has happened for a while: of each key there is one version, and not too many copies; nor too
    /// few, where as many nodes have room for all.
    pub(crate) fn on_quiet(&mut self, now: Time, copies_max: u8, roomy_nodes: Option<u8>) {
        for key in 0..KEYS {
            let versions = self.copies.of_key(fingerprint_high(key));
            let copies: usize = versions.iter().map(|(_, count)| count).sum();
            // Those stay until there are as many elsewhere, for which there may have been no room before.
            let spare = self.copies.held_by(fingerprint_high(key), &self.emptied);
            if versions.len() > 1 || copies - spare > usize::from(copies_max) {
                let text =
                    format!("key {key}: surplus copies, long after all faults: {versions:?}");
                self.fail(now, &text);
            }
            if let ([(version, count)], Some(nodes)) = (versions.as_slice(), roomy_nodes) {
                let emptied = u8::try_from(self.emptied.len()).expect("few");
                let wanted = self.wanted(key, *version).min(nodes - emptied);
                if spare > 0 && nodes > emptied {
                    let text = format!("key {key}: {spare} copies where nothing is to be");
                    self.fail(now, &text);
                }
                if *count < usize::from(wanted) {
                    let text = format!("key {key}: {count} copies of {version:?}, not {wanted}");
                    self.fail(now, &text);
                }
            }
        }
    }

    /// How many copies the write of a version asked for; 1 if it is not known which write that is.
    fn wanted(&self, key: usize, version: Version) -> u8 {
        let wanted = self.keys.get(&key).and_then(|history| {
            let value = history.by_version.get(&version)?;
            Some(history.writes.get(value)?.wanted)
        });
        wanted.unwrap_or(1)
    }
}
