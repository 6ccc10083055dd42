//! Who looks on at a home: what it lists is compared with what it would be told if it asked.

use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::ClusterMap;
use lunette_kvstore_proto::home::{Home, PresenceChange};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::Peek;
use lunette_kvstore_proto::placement::home_of;
use lunette_runtime_core::time::Time;

/// The list that it keeps, and every key that was ever on it.
#[derive(Debug, Default)]
pub(crate) struct Onlooker {
    listed: BTreeMap<Fingerprint, Peek>,
    ever: BTreeSet<Fingerprint>,
}

impl Onlooker {
    /// The home has been told something: how many keys were found as listed, or what is wrong.
    pub(crate) fn look(
        &mut self,
        home: &mut Home,
        now: Time,
        (map, has_lease): (&ClusterMap, bool),
    ) -> Result<u64, String> {
        home.tell_presence(|change| match change {
            PresenceChange::Reset => self.listed.clear(),
            PresenceChange::Key(key, Peek::Absent) => {
                self.listed.remove(&key);
            }
            PresenceChange::Key(key, peek) => {
                self.listed.insert(key, peek);
                self.ever.insert(key);
            }
        });
        let mut agreed = 0;
        for &key in &self.ever {
            let mut asked = Peek::Unsure;
            home.peek(now, &[key], NamespaceKind::Cache, |peek| asked = peek);
            let seen = match self.listed.get(&key) {
                Some(&peek) => peek,
                None if home.is_all_told() => Peek::Absent,
                None => Peek::Unsure,
            };
            let is_home = home_of(map, key) == Some(home.seat());
            let is_told = map.epoch() == home.epoch() && has_lease;
            match (seen, asked) {
                (Peek::Unsure, _) => {}
                (seen, asked) if seen == asked => agreed += 1,
                // Who finds nothing asks the home under its own map.
                (Peek::Absent, Peek::Unsure) if !is_home => {}
                (_, Peek::Unsure) if !is_told => {}
                (seen, asked) => return Err(format!("{key:?} is listed {seen:?}, is {asked:?}")),
            }
        }
        let (listed, copies) = (self.listed.len() as u64, home.stats().copies);
        if listed > copies {
            return Err(format!("{listed} keys are listed, of {copies} copies"));
        }
        let shown: BTreeSet<_> = home.shown().map(|(key, ..)| key).collect();
        let present = (self.listed.iter()).filter(|(_, peek)| **peek == Peek::Present);
        let present: BTreeSet<_> = present.map(|(&key, _)| key).collect();
        if home.is_idle() && shown != present {
            return Err(format!("idle, listed {present:?}, shown {shown:?}"));
        }
        Ok(agreed)
    }
}
