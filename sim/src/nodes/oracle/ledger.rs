//! What the coordinator has answered: that it never goes back.
//!
//! Each answer carries the newest revision. What was acknowledged, or merely told, is kept, so no later
//! question may be answered by an older state, whatever happened to the coordinator in between. Only a
//! drive that has lied may take things back, and only when a coordinator starts from it.

use std::collections::BTreeMap;

use lunette_cluster::proto::map::{ClusterMap, Epoch, MapMember};

/// What was known when a question was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    history: u64,
    revision: u64,
    /// Of the key that it is about: its last known revision and number.
    known: Option<(u64, u64)>,
}

impl Asked {
    /// The last known revision of the key, 0 if none is.
    pub(crate) fn known_revision(&self) -> u64 {
        self.known.map_or(0, |(revision, _)| revision)
    }
}

/// All that was answered.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Counts the times at which a drive that had lied was started from.
    history: u64,
    revision: u64,
    keys: BTreeMap<u8, (u64, u64)>,
    /// Which put each revision of a key is of.
    puts: BTreeMap<(u64, u8), u64>,
    put_count: u64,
    maps: BTreeMap<u64, ClusterMap>,
    /// The newest epoch that each life of a member has seen.
    epochs: BTreeMap<u64, u64>,
    /// Answers to puts.
    pub(super) kept: u64,
}

impl Ledger {
    /// A question about a key is asked.
    #[must_use]
    pub(crate) fn on_ask(&self, key: u8) -> Asked {
        Asked {
            history: self.history,
            revision: self.revision,
            known: self.keys.get(&key).copied(),
        }
    }

    /// The number of a put, which its value carries.
    pub(crate) const fn next_put(&mut self) -> u64 {
        self.put_count += 1;
        self.put_count
    }

    /// A coordinator has started from its drive, which has lied or not.
    pub(crate) fn on_start(&mut self, has_lied: bool) {
        if has_lied {
            self.history += 1;
            self.revision = 0;
            self.keys.clear();
            self.puts.clear();
        }
    }

    /// A put was acknowledged.
    ///
    /// # Errors
    /// What is wrong with that.
    pub(crate) fn on_put(
        &mut self,
        key: u8,
        number: u64,
        asked: Asked,
        revision: u64,
    ) -> Result<(), String> {
        if asked.history != self.history {
            return Ok(());
        }
        self.kept += 1;
        self.on_revision(asked, revision)?;
        if let Some((known, _)) = asked.known.filter(|(known, _)| *known >= revision) {
            return Err(format!(
                "put {number} of {key} was acknowledged as revision {revision}, which is not after {known}"
            ));
        }
        self.learn(key, revision, number)
    }

    /// A key was read: its revision and the number that its value carries.
    ///
    /// # Errors
    /// What is wrong with that.
    pub(crate) fn on_get(
        &mut self,
        key: u8,
        found: Option<(u64, u64)>,
        asked: Asked,
        revision: u64,
    ) -> Result<(), String> {
        if asked.history != self.history {
            return Ok(());
        }
        self.on_revision(asked, revision)?;
        let least = asked.known.map_or(0, |(known, _)| known);
        let Some((modified, number)) = found else {
            return match asked.known {
                Some((known, number)) => Err(format!(
                    "{key} is not there; put {number} of it was acknowledged as revision {known}"
                )),
                None => Ok(()),
            };
        };
        if modified < least {
            return Err(format!(
                "{key} went back from revision {least} to {modified}"
            ));
        }
        if number > self.put_count || modified > revision {
            return Err(format!("{key} has a value that nobody put, {number}"));
        }
        self.learn(key, modified, number)
    }

    fn on_revision(&mut self, asked: Asked, revision: u64) -> Result<(), String> {
        self.revision = self.revision.max(revision);
        if revision < asked.revision {
            return Err(format!(
                "the coordinator went back from revision {} to {revision}",
                asked.revision
            ));
        }
        Ok(())
    }

    /// This put made this revision.
    fn learn(&mut self, key: u8, revision: u64, number: u64) -> Result<(), String> {
        let known = self.keys.entry(key).or_insert((revision, number));
        *known = (*known).max((revision, number));
        let put = *self.puts.entry((revision, key)).or_insert(number);
        if put == number {
            return Ok(());
        }
        Err(format!(
            "revision {revision} of {key} is of two puts, {put} and {number}"
        ))
    }

    /// A member, in one of its lives, knows this map.
    ///
    /// # Errors
    /// What is wrong with that. Where a drive has lied, nothing is.
    pub(crate) fn on_map(&mut self, incarnation: u64, map: &ClusterMap) -> Result<(), String> {
        if self.history > 0 {
            return Ok(());
        }
        let epoch = map.epoch().0;
        let seen = self.epochs.entry(incarnation).or_insert(epoch);
        if *seen > epoch {
            return Err(format!("a member went back from epoch {seen} to {epoch}"));
        }
        *seen = epoch;
        if self.maps.entry(epoch).or_insert_with(|| map.clone()) != map {
            return Err(format!("there are two maps of epoch {epoch}"));
        }
        for member in map.members() {
            if member.since != self.since(map, member) {
                return Err(format!("of epoch {epoch} it is told {member:?}"));
            }
        }
        Ok(())
    }

    /// The first of the maps without a gap up to this one that it is in, of those that were seen: nobody may have seen the
    /// one before.
    fn since(&self, map: &ClusterMap, member: &MapMember) -> Epoch {
        let mut since = map.epoch();
        while since > Epoch::FIRST {
            let Some(before) = self.maps.get(&(since.0 - 1)) else {
                return member.since.min(since);
            };
            let known = before.member(member.id);
            if known.is_none_or(|known| known.incarnation != member.incarnation) {
                return since;
            }
            since = before.epoch();
        }
        since
    }

    /// How many epochs there were.
    pub(super) fn epochs(&self) -> u64 {
        self.maps.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger that knows of put 1 of key 7 as revision 5.
    fn with_a_put() -> Ledger {
        let mut ledger = Ledger::default();
        let asked = ledger.on_ask(7);
        let number = ledger.next_put();
        ledger.on_put(7, number, asked, 5).expect("the first");
        ledger
    }

    #[test]
    fn what_was_acknowledged_does_not_go_back() {
        let get = |found, revision| {
            let mut ledger = with_a_put();
            ledger.next_put();
            let asked = ledger.on_ask(7);
            ledger.on_get(7, found, asked, revision).is_ok()
        };
        assert!(get(Some((5, 1)), 5) && get(Some((6, 2)), 6) && get(Some((5, 1)), 9));
        assert!(!get(Some((5, 1)), 4), "an older revision");
        assert!(!get(Some((4, 1)), 5), "an older value");
        assert!(!get(None, 5), "nothing");
        assert!(!get(Some((5, 2)), 5), "of the same revision");
        assert!(!get(Some((6, 3)), 6), "invented");
        assert!(!get(Some((7, 2)), 6), "of the future");
    }

    #[test]
    fn a_put_is_newer_than_what_was_known_before_it() {
        for (revision, is_right) in [(4, false), (5, false), (6, true)] {
            let mut ledger = with_a_put();
            let asked = ledger.on_ask(7);
            let number = ledger.next_put();
            let judged = ledger.on_put(7, number, asked, revision);
            assert_eq!(judged.is_ok(), is_right, "{revision}");
        }
    }

    #[test]
    fn what_is_told_while_it_is_asked_may_be_old() {
        let mut ledger = Ledger::default();
        let early = ledger.on_ask(7);
        let asked = ledger.on_ask(7);
        let number = ledger.next_put();
        ledger.on_put(7, number, asked, 5).expect("the first");
        assert!(ledger.on_get(7, None, early, 4).is_ok());
    }

    #[test]
    fn a_drive_that_lied_is_forgiven_when_it_is_started_from() {
        for has_lied in [false, true] {
            let mut ledger = with_a_put();
            let early = ledger.on_ask(7);
            ledger.on_start(has_lied);
            let asked = ledger.on_ask(7);
            assert_eq!(ledger.on_get(7, None, asked, 1).is_ok(), has_lied);
            assert_eq!(ledger.on_get(7, None, early, 1).is_ok(), has_lied);
        }
    }

    #[test]
    fn epochs_grow_and_have_one_map_each() {
        let map = |epoch, generation| {
            ClusterMap::new(Epoch(epoch), generation, Vec::new()).expect("a map")
        };
        let mut ledger = Ledger::default();
        assert!(ledger.on_map(1, &map(3, 0)).is_ok() && ledger.on_map(1, &map(4, 0)).is_ok());
        assert!(ledger.on_map(2, &map(3, 0)).is_ok(), "another life, later");
        assert!(ledger.on_map(1, &map(3, 0)).is_err(), "back");
        assert!(ledger.on_map(2, &map(4, 1)).is_err(), "another map");
        ledger.on_start(true);
        assert!(ledger.on_map(2, &map(2, 1)).is_ok());
    }
}
