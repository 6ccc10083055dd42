//! Who has which copies, as members tell, and what became of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::version::Version;
use lunette_runtime_core::time::Time;

use crate::hearing::Told;

/// How long a home's order is under way, sent again if need be.
const ORDER_TAKES_MAX: Duration = Duration::from_millis(250);

/// How copies of a version have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) is_evicted: bool,
    /// Who had one is gone.
    pub(crate) is_lost: bool,
    /// One was dropped for an earlier version, which is the object where both were put.
    pub(crate) is_beaten: bool,
}

/// While a node may be outside the map.
#[derive(Clone, Copy, Debug)]
struct Absence {
    node: u64,
    from: Time,
    until: Time,
}

/// A core of a node.
type Holder = (u64, u64);

/// Since when a holder has a copy, and since when its home knows; that is `MAX` before it does, and when the copy leaves.
#[derive(Clone, Copy, Debug)]
struct Kept {
    since: Time,
    recorded: Time,
}

impl Kept {
    const fn unknown(since: Time) -> Self {
        Self {
            since,
            recorded: Time::MAX,
        }
    }
}

/// See the [module](self). A key is named by the high half of its fingerprint.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    living: BTreeMap<(u64, Version), BTreeMap<Holder, Kept>>,
    ended: BTreeMap<(u64, Version), Ends>,
    /// Which nodes were told last to drop one while others had some, and when.
    spared: BTreeMap<((u64, Version), u64), Time>,
    /// When one of them was last dropped to make room.
    evicted_at: BTreeMap<(u64, Version), Time>,
    absences: Vec<Absence>,
    /// When a holder last found that it had been in no map for a while.
    away: BTreeMap<Holder, Time>,
    last_kill: Option<Time>,
    /// How many went to a drive, came back, and were there when their node was started again.
    pub(crate) moves: BTreeMap<&'static str, u64>,
}

impl Copies {
    pub(crate) fn on_told(&mut self, now: Time, told: &Told) {
        let holder = (told.number("node"), told.number("core"));
        if told.what == "away" {
            self.away.insert(holder, now);
            return;
        }
        let version = Version {
            epoch: Epoch(told.number("epoch")),
            sequence: told.number("sequence"),
        };
        let copy = (told.number("key_high"), version);
        let is_beaten = told.what == "ordered" && self.is_there_earlier(copy, now);
        let holders = self.living.entry(copy).or_default();
        match told.what.as_str() {
            "kept" => {
                holders.insert(holder, Kept::unknown(now));
            }
            // From a time of which nobody tells.
            "returned" => {
                holders.insert(holder, Kept::unknown(Time::ZERO));
                *self.moves.entry("returned").or_default() += 1;
            }
            "recorded" => {
                let kept = holders.entry(holder).or_insert(Kept::unknown(now));
                kept.recorded = now.min(kept.recorded);
            }
            "leaves" => {
                let kept = holders.entry(holder).or_insert(Kept::unknown(now));
                kept.recorded = Time::MAX;
                self.ended.entry(copy).or_default().is_evicted = true;
            }
            // Its drive has lost it, whatever was promised.
            "lost" => {
                let kept = holders.entry(holder).or_insert(Kept::unknown(now));
                kept.recorded = Time::MAX;
                self.ended.entry(copy).or_default().is_lost = true;
            }
            "abandoned" => *self.moves.entry("abandoned").or_default() += 1,
            // Between memory and the drive.
            "demotes" => {}
            "demoted" => *self.moves.entry("demoted").or_default() += 1,
            "promoted" => *self.moves.entry("promoted").or_default() += 1,
            what => {
                let kept = holders.remove(&holder);
                let since = kept.map_or(Time::ZERO, |kept| kept.since);
                if what == "evicted" {
                    self.evicted_at.insert(copy, now);
                }
                // Another may be leaving by then, or have left, of which the home had not heard.
                let evicted_at = self.evicted_at.get(&copy);
                let was_elsewhere = evicted_at.is_some_and(|at| now.since(*at) < ORDER_TAKES_MAX);
                if what == "ordered" && (!holders.is_empty() || was_elsewhere) {
                    self.spared.insert((copy, holder.0), now);
                }
                // Who was away may come back cold: what it had is not trusted, where nobody knows any more
                // whether it was removed.
                let was_away = self.away.get(&holder).is_some_and(|at| *at >= since);
                let is_cold = what == "ordered" && was_away;
                let ends = self.ended.entry(copy).or_default();
                ends.is_lost |= is_cold;
                ends.is_beaten |= is_beaten;
            }
        }
    }

    /// Whether there are copies of an earlier version, or were when the order was given.
    fn is_there_earlier(&self, copy: (u64, Version), now: Time) -> bool {
        let (key, version) = copy;
        let mut versions = self.of_key(key).into_iter();
        versions.any(|(other, _)| other < version) || self.has_earlier_left(copy, now)
    }

    /// Whether copies of an earlier version, which is the object where both were put, have left a moment ago: that others are to be
    /// dropped may be under way.
    pub(crate) fn has_earlier_left(&self, (key, version): (u64, Version), now: Time) -> bool {
        let earlier = (key, Version::default())..(key, version);
        let mut evicted = self.evicted_at.range(earlier);
        evicted.any(|(_, at)| now.since(*at) < ORDER_TAKES_MAX)
    }

    /// A node has been killed.
    pub(crate) fn on_kill(&mut self, now: Time, node: u64) {
        self.last_kill = Some(now);
        for (copy, holders) in &mut self.living {
            let before = holders.len();
            holders.retain(|holder, _| holder.0 != node);
            if holders.len() < before {
                self.ended.entry(*copy).or_default().is_lost = true;
            }
        }
    }

    /// Something befalls a node that may keep it from renewing its lease.
    pub(crate) fn on_disturbed(&mut self, node: u64, from: Time, until: Time) {
        self.absences.push(Absence { node, from, until });
    }

    pub(crate) fn may_be_away(&self, node: u64, from: Time, until: Time) -> bool {
        let mut own = self.absences.iter().filter(|absence| absence.node == node);
        own.any(|absence| absence.from <= until && from < absence.until)
    }

    /// Who has had a copy, and was in the map, from one point in time until now.
    pub(crate) fn holder_throughout(
        &self,
        copy: (u64, Version),
        from: Time,
        now: Time,
    ) -> Option<u64> {
        let holders = self.living.get(&copy)?.iter();
        let mut present = holders.filter(|(holder, kept)| {
            kept.recorded <= from && !self.may_be_away(holder.0, from, now)
        });
        present.next().map(|(holder, _)| holder.0)
    }

    /// Whether a node has been killed, or may have been away, since then: what it was writing is gone with it, of which nobody has
    /// told.
    pub(crate) fn has_anybody_gone(&self, since: Time, now: Time) -> bool {
        let mut absences = self.absences.iter();
        let is_away = |absence: &Absence| absence.from <= now && since < absence.until;
        self.last_kill.is_some_and(|last| last >= since) || absences.any(is_away)
    }

    /// Whether a node was told to drop its copy since then, and others had some.
    pub(crate) fn is_spared(&self, copy: (u64, Version), node: u64, since: Time) -> bool {
        let told = self.spared.get(&(copy, node));
        told.is_some_and(|told| *told >= since)
    }

    /// What has become of its copies.
    pub(crate) fn ends(&self, copy: (u64, Version)) -> Ends {
        let mut ends = self.ended.get(&copy).copied().unwrap_or_default();
        // Whoever still has one, and did not count, may be away.
        let holders = self.living.get(&copy).into_iter().flatten();
        ends.is_lost |= holders
            .into_iter()
            .any(|(_, kept)| kept.recorded < Time::MAX);
        ends
    }

    /// Whether any copy of a key has been evicted, or had by who is gone or may be away, of these versions.
    pub(crate) fn has_ended(
        &self,
        key: u64,
        now: Time,
        is_meant: impl Fn(Version) -> bool,
    ) -> bool {
        let ended = self.ended.iter();
        let mut ended = ended.filter(|((own, version), ends)| {
            *own == key && is_meant(*version) && (ends.is_evicted || ends.is_lost)
        });
        let living = self.living.iter();
        let living = living.filter(|((own, version), _)| *own == key && is_meant(*version));
        let mut holders = living.flat_map(|(_, all)| all.iter());
        ended.next().is_some()
            || holders.any(|((node, _), kept)| self.may_be_away(*node, kept.since, now))
    }

    /// How many copies of a key these nodes have.
    pub(crate) fn held_by(&self, key: u64, nodes: &BTreeSet<u64>) -> usize {
        let of_it = self.living.iter().filter(|((own, _), _)| *own == key);
        let holders = of_it.flat_map(|(_, all)| all.keys());
        holders.filter(|(node, _)| nodes.contains(node)).count()
    }

    /// The versions of a key of which there are copies, and how many.
    pub(crate) fn of_key(&self, key: u64) -> Vec<(Version, usize)> {
        let versions = self
            .living
            .iter()
            .filter(|((own, _), all)| *own == key && !all.is_empty());
        versions
            .map(|((_, version), all)| (*version, all.len()))
            .collect()
    }
}
