//! What a member knows of quotas, and what it is to change of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lunette_runtime_core::time::Time;

use super::{QUOTA_CHANGES_MAX, QuotaTicket};
use crate::coordination::{KeyValue, Revision};
use crate::quota::{QUOTAS_MAX, QuotaFault, Quotas, decode_quota};

/// A key as it was read, or as the watch told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    bytes: Result<u64, QuotaFault>,
    modified: Revision,
}

/// A change of this member's own, which the coordinator has made and the watch has not told yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Early {
    bytes: Option<u64>,
    made: Revision,
}

/// The quotas as they are known.
#[derive(Debug, Default)]
pub(super) struct KnownQuotas {
    /// The first [`QUOTAS_MAX`] keys by name. Those that make no sense are among them: who knows fewer
    /// versions looks at the same keys.
    kept: BTreeMap<String, Kept>,
    /// Whether keys behind them were seen.
    has_more: bool,
    /// At most [`QUOTA_CHANGES_MAX`].
    early: BTreeMap<String, Early>,
    quotas: Quotas,
    /// Whether they may differ from what is kept.
    is_stale: bool,
    /// Keys that make no sense, and that nobody was told of.
    ignored: Vec<(String, QuotaFault)>,
}

impl KnownQuotas {
    /// Those that count, as of the last [`refresh`](Self::refresh).
    pub(super) const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// All of them were read.
    pub(super) fn reset<'a>(&mut self, read: impl Iterator<Item = (&'a str, &'a KeyValue)>) {
        let old = core::mem::take(&mut self.kept);
        self.early.clear();
        self.has_more = false;
        for (name, pair) in read {
            self.keep(name, decode_quota(&pair.value), pair.modified);
        }
        for (name, kept) in &self.kept {
            if let Err(fault) = kept.bytes
                && old.get(name) != Some(kept)
            {
                self.ignored.push((name.clone(), fault));
            }
        }
        self.is_stale = true;
    }

    /// One was set. One that makes no sense may have been damaged on its way: then nothing is
    /// changed, and it is to be read.
    pub(super) fn put(&mut self, name: &str, pair: &KeyValue) -> Result<(), QuotaFault> {
        let bytes = match decode_quota(&pair.value) {
            Err(fault @ QuotaFault::Later { .. }) => {
                self.ignored.push((name.to_owned(), fault));
                Err(fault)
            }
            bytes => Ok(bytes?),
        };
        self.keep(name, bytes, pair.modified);
        self.is_stale = true;
        Ok(())
    }

    fn keep(&mut self, name: &str, bytes: Result<u64, QuotaFault>, modified: Revision) {
        self.kept.insert(name.to_owned(), Kept { bytes, modified });
        if self.kept.len() > QUOTAS_MAX {
            self.kept.pop_last();
            self.has_more = true;
        }
    }

    /// One is gone.
    pub(super) fn remove(&mut self, name: &str) {
        self.is_stale |= self.kept.remove(name).is_some();
    }

    /// Whether a key that was behind the first ones may count now: all are to be read.
    pub(super) fn is_short(&self) -> bool {
        self.has_more && self.kept.len() < QUOTAS_MAX
    }

    /// The coordinator has made this member's own change. It counts until the watch has told it, which
    /// may be so already: the next [`refresh`](Self::refresh) knows.
    pub(super) fn set_early(&mut self, name: &str, bytes: Option<u64>, made: Revision) {
        let has_room = self.early.len() < QUOTA_CHANGES_MAX || self.early.contains_key(name);
        // Without room, the watch tells it soon enough.
        if has_room {
            self.early.insert(name.to_owned(), Early { bytes, made });
            self.is_stale = true;
        }
    }

    /// The watch has told all up to `told`. Whether the quotas are others now.
    pub(super) fn refresh(&mut self, told: Revision) -> bool {
        let before = self.early.len();
        self.early.retain(|_, early| early.made > told);
        if !core::mem::take(&mut self.is_stale) && self.early.len() == before {
            return false;
        }
        let mut all: BTreeMap<&str, u64> = BTreeMap::new();
        let kept = self.kept.iter();
        all.extend(kept.filter_map(|(name, kept)| Some((name.as_str(), kept.bytes.ok()?))));
        for (name, early) in &self.early {
            match early.bytes {
                Some(bytes) => drop(all.insert(name, bytes)),
                None => drop(all.remove(name.as_str())),
            }
        }
        let quotas = all
            .into_iter()
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .collect();
        let has_changed = self.quotas != quotas;
        self.quotas = quotas;
        has_changed
    }

    /// The keys that make no sense, each once.
    pub(super) fn take_ignored(&mut self) -> Vec<(String, QuotaFault)> {
        core::mem::take(&mut self.ignored)
    }

    /// When the key of this name was last changed, as far as that is known; 0 if it is not there.
    pub(super) fn modified(&self, name: &str) -> Revision {
        match (self.early.get(name), self.kept.get(name)) {
            (Some(early), _) if early.bytes.is_some() => early.made,
            (None, Some(kept)) => kept.modified,
            _ => Revision(0),
        }
    }

    /// The names of all keys.
    fn names(&self) -> BTreeSet<&str> {
        let mut names: BTreeSet<&str> = self.kept.keys().map(String::as_str).collect();
        for (name, early) in &self.early {
            set(&mut names, name, early.bytes);
        }
        names
    }
}

fn set<'a>(names: &mut BTreeSet<&'a str>, name: &'a str, bytes: Option<u64>) {
    if bytes.is_some() {
        names.insert(name);
    } else {
        names.remove(name);
    }
}

/// A change that is to be made.
#[derive(Debug)]
pub(super) struct QuotaChange {
    pub(super) ticket: QuotaTicket,
    pub(super) name: String,
    pub(super) bytes: Option<u64>,
    /// When its key was last changed, if the coordinator has said so.
    pub(super) modified: Option<Revision>,
    /// From when on it is not tried any more.
    until: Time,
}

impl QuotaChange {
    /// Its key is not as it was thought to be at `read`, but so: another has changed it, or it is this
    /// change, whose answer was lost. Since when it is as it is to be, if it is.
    pub(super) fn on_found(
        &mut self,
        found: Option<&KeyValue>,
        read: Revision,
    ) -> Option<Revision> {
        self.modified = Some(found.map_or(Revision(0), |pair| pair.modified));
        match (found, self.bytes) {
            (Some(pair), Some(bytes)) if decode_quota(&pair.value) == Ok(bytes) => {
                Some(pair.modified)
            }
            (None, None) => Some(read),
            _ => None,
        }
    }
}

/// The changes that this member is to make, in order; at most [`QUOTA_CHANGES_MAX`].
#[derive(Debug, Default)]
pub(super) struct QuotaChanges {
    waiting: VecDeque<QuotaChange>,
    tickets_issued: u64,
}

impl QuotaChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= QUOTA_CHANGES_MAX
    }

    pub(super) fn push(&mut self, name: &str, bytes: Option<u64>, until: Time) -> QuotaTicket {
        assert!(!self.is_full(), "who asks for more is refused");
        self.tickets_issued += 1;
        let ticket = QuotaTicket(self.tickets_issued);
        self.waiting.push_back(QuotaChange {
            ticket,
            name: name.to_owned(),
            bytes,
            modified: None,
            until,
        });
        ticket
    }

    /// Those that were to be made by now, which are forgotten; not what is `asked` for.
    pub(super) fn take_late(&mut self, now: Time, asked: Option<QuotaTicket>) -> Vec<QuotaTicket> {
        let mut late = Vec::new();
        self.waiting.retain(|change| {
            let is_late = change.until <= now && Some(change.ticket) != asked;
            late.extend(is_late.then_some(change.ticket));
            !is_late
        });
        late
    }

    /// Until when the first of them is to be made that is not `asked` for.
    pub(super) fn next_late(&self, asked: Option<QuotaTicket>) -> Option<Time> {
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|change| Some(change.ticket) != asked);
        waiting.map(|change| change.until).min()
    }

    /// The one to be made next.
    pub(super) fn first(&self) -> Option<&QuotaChange> {
        self.waiting.front()
    }

    /// That one, if it is this.
    pub(super) fn first_mut(&mut self, ticket: QuotaTicket) -> Option<&mut QuotaChange> {
        self.waiting
            .front_mut()
            .filter(|change| change.ticket == ticket)
    }

    pub(super) fn take_first(&mut self) -> Option<QuotaChange> {
        self.waiting.pop_front()
    }

    /// How many others than `name` have a quota once all of this is made.
    pub(super) fn others(&self, known: &KnownQuotas, name: &str) -> usize {
        let mut names = known.names();
        for change in &self.waiting {
            set(&mut names, &change.name, change.bytes);
        }
        names.remove(name);
        names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::encode_quota;

    fn pair(bytes: u64, modified: u64) -> KeyValue {
        let modified = Revision(modified);
        KeyValue {
            key: Vec::new(),
            value: encode_quota(bytes),
            created: modified,
            modified,
            lease: None,
        }
    }

    fn damaged(modified: u64) -> KeyValue {
        KeyValue {
            value: b"LNTQ?".to_vec(),
            ..pair(1, modified)
        }
    }

    fn list(known: &KnownQuotas) -> Vec<(&str, u64)> {
        known.quotas().iter().collect()
    }

    /// So many keys were read, at revision 5, which are called `k00` and so on.
    fn read(count: usize) -> KnownQuotas {
        let pairs: Vec<_> = (0..count)
            .map(|n| (format!("k{n:02}"), pair(n as u64 + 1, 5)))
            .collect();
        let mut known = KnownQuotas::default();
        known.reset(pairs.iter().map(|(name, pair)| (name.as_str(), pair)));
        known.refresh(Revision(5));
        known
    }

    #[test]
    fn they_have_changed_when_they_differ_and_only_then() {
        let mut known = KnownQuotas::default();
        assert!(!known.refresh(Revision(1)));
        known.put("a", &pair(7, 2)).unwrap();
        assert!(known.refresh(Revision(2)) && !known.refresh(Revision(2)));
        known.put("a", &pair(7, 3)).unwrap();
        assert!(!known.refresh(Revision(3)), "it is the same again");
        known.remove("b");
        assert!(!known.refresh(Revision(4)));
        known.reset([("a", &pair(7, 3))].into_iter());
        assert!(!known.refresh(Revision(4)));
        known.reset([("a", &pair(8, 5))].into_iter());
        assert!(known.refresh(Revision(5)));
        known.remove("a");
        assert!(known.refresh(Revision(6)) && known.quotas().is_empty());
    }

    #[test]
    fn what_makes_no_sense_is_ignored_and_told_once() {
        let mut known = read(1);
        assert!(known.put("k00", &damaged(6)).is_err(), "it is to be read");
        assert_eq!(list(&known), [("k00", 1)]);
        for told in [1, 0] {
            known.reset([("k00", &damaged(6)), ("k01", &pair(2, 6))].into_iter());
            known.refresh(Revision(6));
            assert_eq!(list(&known), [("k01", 2)]);
            assert_eq!(known.take_ignored().len(), told);
        }
        known.reset([("k00", &damaged(7))].into_iter());
        assert_eq!(known.take_ignored().len(), 1, "it was written again");
        known.put("k00", &pair(3, 8)).unwrap();
        known.refresh(Revision(8));
        assert_eq!(list(&known), [("k00", 3)]);
    }

    #[test]
    fn what_a_later_version_set_need_not_be_read_again() {
        let mut later = encode_quota(9);
        later[4] = 2;
        let end = later.len() - 4;
        let crc = lunette_runtime_core::checksum::crc32c(&later[..end]);
        later[end..].copy_from_slice(&crc.to_le_bytes());
        let value = later;
        let mut known = read(1);
        let later = KeyValue {
            value,
            ..pair(1, 6)
        };
        known.put("k00", &later).unwrap();
        assert!(known.refresh(Revision(6)) && known.quotas().is_empty());
        let fault = QuotaFault::Later { version: 2 };
        assert_eq!(known.take_ignored(), [("k00".to_owned(), fault)]);
    }

    #[test]
    fn of_more_keys_the_first_count_and_the_next_is_read_when_one_goes() {
        let mut known = read(QUOTAS_MAX + 2);
        assert_eq!(known.quotas(), read(QUOTAS_MAX).quotas());
        assert!(!known.is_short());
        known.put("z", &pair(1, 6)).unwrap();
        known.remove("z");
        assert!(!known.is_short() && !known.refresh(Revision(7)));
        known.put("a", &pair(1, 8)).unwrap();
        assert!(known.refresh(Revision(8)));
        assert_eq!(known.quotas().get("a"), Some(1));
        assert_eq!(known.quotas().get("k30"), None, "it is behind them now");
        known.remove("k00");
        assert!(known.is_short());
        // Without any behind them, nothing is to be read.
        let mut known = read(QUOTAS_MAX);
        known.remove("k00");
        assert!(!known.is_short());
    }

    #[test]
    fn own_changes_count_until_the_watch_has_told_them() {
        let mut known = read(2);
        known.set_early("k00", Some(70), Revision(8));
        known.set_early("k01", None, Revision(9));
        assert!(known.refresh(Revision(5)));
        assert_eq!(list(&known), [("k00", 70)]);
        assert_eq!(known.modified("k00"), Revision(8));
        assert_eq!(known.modified("k01"), Revision(0));
        // What was before is told late, and does not come back.
        known.put("k00", &pair(60, 6)).unwrap();
        known.put("k01", &pair(60, 7)).unwrap();
        assert!(!known.refresh(Revision(7)));
        known.put("k00", &pair(70, 8)).unwrap();
        assert!(!known.refresh(Revision(8)));
        known.remove("k01");
        assert!(!known.refresh(Revision(9)));
        known.put("k01", &pair(5, 10)).unwrap();
        assert!(known.refresh(Revision(10)));
        assert_eq!(known.modified("k01"), Revision(10));
    }

    #[test]
    fn own_changes_are_not_believed_of_a_coordinator_that_has_lost_them() {
        let mut known = read(2);
        known.set_early("k00", Some(70), Revision(8));
        assert!(known.refresh(Revision(5)));
        known.reset([("k00", &pair(1, 3))].into_iter());
        known.refresh(Revision(3));
        assert_eq!(list(&known), [("k00", 1)]);
        assert_eq!(known.modified("k00"), Revision(3));
    }

    #[test]
    fn what_the_watch_has_told_is_not_taken_back() {
        let mut known = read(1);
        known.put("k00", &pair(2, 6)).unwrap();
        known.remove("k00");
        known.refresh(Revision(7));
        known.set_early("k00", Some(2), Revision(6));
        assert!(!known.refresh(Revision(7)) && known.quotas().is_empty());
    }

    #[test]
    fn own_changes_ahead_of_the_watch_are_bounded() {
        let mut known = KnownQuotas::default();
        for n in 0..=QUOTA_CHANGES_MAX {
            known.set_early(&format!("k{n:02}"), Some(1), Revision(9));
        }
        known.refresh(Revision(5));
        assert_eq!(known.quotas().len(), QUOTA_CHANGES_MAX);
        known.set_early("k00", Some(2), Revision(10));
        known.refresh(Revision(5));
        assert_eq!(known.quotas().get("k00"), Some(2));
    }

    #[test]
    fn others_are_counted_as_they_will_be() {
        let mut known = read(3);
        known.set_early("e", Some(1), Revision(6));
        known.set_early("k00", None, Revision(7));
        let mut changes = QuotaChanges::default();
        assert_eq!(changes.others(&known, "k01"), 2, "k02 and e");
        changes.push("x", Some(1), Time::MAX);
        changes.push("k02", None, Time::MAX);
        changes.push("y", None, Time::MAX);
        assert_eq!(changes.others(&known, "k01"), 2, "e and x");
        assert_eq!(changes.others(&known, "none"), 3);
    }
}
