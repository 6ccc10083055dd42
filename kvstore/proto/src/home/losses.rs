//! Removals that nobody may know of any more, since who knew has left.
//!
//! A tombstone is at two nodes: at its home and at the one that would be the home next. Of another map's pair both have it when
//! both are complete, so when all homes of a map are complete each tombstone is at two of its members, and what is removed later
//! is at two as well. Of the lives that have ended since, a *group*, any two may have been all who had one. Each member that has
//! been in all maps since keeps the group and tells it to those who have not; when all homes are complete once more, which they
//! ask each other while there is one, another one begins.
//!
//! What a group of two or more has taken with it is lost up to the last map that two of its nodes were in: an owner that was
//! away since then is not believed. But it is there again when all of the group have come back with what they knew, or all but
//! one: by a drive ([`Recalled`]), or in the same life, after they were cut off. Of the two who had a tombstone one is
//! among them then.
//!
//! ```text
//!              all homes are complete                 all are complete while all but one of it are back
//!     open ----------------------------> past group -----------------------------------> (over)
//!      ^ a member leaves                     |
//!      +-- or nothing, of one life           +-- too many: its removals count as forgotten
//! ```

use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::mutant::{self, Mutant};

use crate::message::directory::{GONE_MAX, Gone, Losses, PAST_MAX, Recalled};
use crate::placement::Seat;

/// Lives that have ended, and whether what they knew is there again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    gone: BTreeSet<Gone>,
    is_cured: bool,
}

/// The groups of one home.
#[derive(Clone, Debug, Default)]
pub(super) struct LossBook {
    open: Group,
    past: Vec<Group>,
}

/// What came back with the members of a map, of their former lives or of this one.
#[derive(Debug, Default)]
pub(super) struct Back {
    /// Of each life, on how many cores of how many; up to which epoch they may have forgotten tombstones; and under
    /// which map that was, if it was not when the life ended.
    lives: BTreeMap<(NodeId, u64), BackLife>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BackLife {
    cores: u16,
    of: u16,
    horizon: Epoch,
    under: Option<Epoch>,
}

impl Back {
    /// A member is there, whose home may have forgotten tombstones up to an epoch.
    pub(super) fn is_there(&mut self, seat: Seat, horizon: Epoch) {
        let life = (seat.node, seat.incarnation);
        let back = self.lives.entry(life).or_default();
        back.horizon = back.horizon.max(horizon);
    }

    /// A member recalls what its former life knew.
    pub(super) fn recalls(&mut self, seat: Seat, recalled: &Recalled) {
        let life = (seat.node, recalled.incarnation);
        let back = self.lives.entry(life).or_default();
        back.cores += 1;
        back.of = back.of.max(recalled.cores);
        back.horizon = back.horizon.max(recalled.horizon);
        if !recalled.is_final {
            // What cores kept under different maps is of none.
            let is_other = back.under.is_some_and(|under| under != recalled.epoch);
            back.under = Some(if is_other { Epoch(0) } else { recalled.epoch });
        }
    }

    /// Up to which epoch what this life knew may be forgotten, if it is all there.
    fn of(&self, gone: &Gone) -> Option<Epoch> {
        let back = self.lives.get(&gone.life?)?;
        let is_whole = back.cores >= back.of;
        let is_all = back.under.is_none_or(|under| under == gone.last);
        (is_whole && is_all).then_some(back.horizon)
    }
}

impl Group {
    /// The last map that each of its nodes was in.
    fn nodes(&self) -> BTreeMap<Option<NodeId>, Epoch> {
        let mut nodes = BTreeMap::new();
        for gone in &self.gone {
            let last = nodes.entry(gone.life.map(|(node, _)| node)).or_default();
            *last = gone.last.max(*last);
        }
        nodes
    }

    /// Up to which epoch two of them may have been all who had a tombstone.
    fn until(&self) -> Option<Epoch> {
        let mut lasts: Vec<Epoch> = self.nodes().into_values().collect();
        lasts.sort_unstable();
        lasts.into_iter().nth_back(1)
    }

    /// Up to which epoch what they knew may be forgotten, if enough of them are back.
    fn cured_by(&self, back: &Back) -> Option<Epoch> {
        let mut nodes: BTreeMap<Option<NodeId>, Option<Epoch>> = BTreeMap::new();
        for gone in &self.gone {
            let known = back.of(gone);
            let node = nodes.entry(gone.life.map(|(node, _)| node));
            let all = node.or_insert(Some(Epoch(0)));
            *all = all.and_then(|all| known.map(|known| all.max(known)));
        }
        let known: Vec<Epoch> = nodes.values().copied().flatten().collect();
        let is_enough = known.len() + 1 >= nodes.len() || mutant::is_on(Mutant::LossOverrated);
        is_enough.then(|| known.into_iter().max().unwrap_or_default())
    }

    fn of(told: Vec<Gone>) -> Self {
        Self {
            gone: told.into_iter().collect(),
            is_cured: false,
        }
    }
}

impl LossBook {
    /// Nobody has gone whose knowledge could be missing.
    pub(super) fn is_empty(&self) -> bool {
        self.open.gone.is_empty() && self.past.is_empty()
    }

    /// The next map: who has left.
    pub(super) fn on_map(&mut self, previous: &ClusterMap, map: &ClusterMap) {
        for member in previous.members() {
            let now = map.member(member.id);
            if now.is_none_or(|now| now.incarnation != member.incarnation) {
                let life = Some((member.id, member.incarnation));
                let last = previous.epoch();
                self.open.gone.insert(Gone { life, last });
            }
        }
        for group in self.groups() {
            group.is_cured = false;
        }
    }

    fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        self.past.iter_mut().chain([&mut self.open])
    }

    /// For those who have not been there.
    pub(super) fn told(&self) -> Losses {
        let told = |group: &Group| -> Vec<Gone> { group.gone.iter().copied().collect() };
        Losses {
            open: told(&self.open),
            past: self.past.iter().map(told).collect(),
        }
    }

    /// What another one has told.
    pub(super) fn take_in(&mut self, told: Losses) {
        self.open.gone.extend(told.open);
        for group in told.past {
            self.add(Group::of(group));
        }
    }

    fn add(&mut self, group: Group) {
        if self.past.iter().all(|known| known.gone != group.gone) {
            self.past.push(group);
        }
    }

    /// One has left who had been there under this map, and nobody knows which.
    pub(super) fn lack_one(&mut self, last: Epoch) {
        self.open.gone.insert(Gone { life: None, last });
    }

    /// These members are back; the home knows what they do. Up to which epoch that may be forgotten.
    pub(super) fn cure(&mut self, back: &Back) -> Epoch {
        let mut horizon = Epoch(0);
        for group in self.groups() {
            let known = group.cured_by(back);
            group.is_cured = known.is_some();
            if group.until().is_some() {
                horizon = horizon.max(known.unwrap_or_default());
            }
        }
        horizon
    }

    /// All homes of the map are complete: each knows what those do that are back.
    pub(super) fn settle(&mut self) {
        let open = core::mem::take(&mut self.open);
        self.past.retain(|group| !group.is_cured);
        if open.until().is_some() && !open.is_cured {
            self.add(open);
        }
    }

    /// What may be lost up to this epoch is taken for lost anyway. What there is no room for is as well: up to which one.
    pub(super) fn bound(&mut self, forgotten: Epoch) -> Epoch {
        let mut forgotten = forgotten;
        if self.open.gone.len() > GONE_MAX {
            let lasts = self.open.gone.iter().map(|gone| gone.last);
            forgotten = lasts.max().unwrap_or_default().max(forgotten);
        }
        while self.past.len() > PAST_MAX {
            let untils = self.past.iter().map(Group::until);
            let (at, until) = untils
                .enumerate()
                .min_by_key(|(_, until)| *until)
                .expect("some");
            forgotten = until.unwrap_or_default().max(forgotten);
            self.past.swap_remove(at);
        }
        self.open.gone.retain(|gone| gone.last > forgotten);
        self.past.retain(|group| group.until() > Some(forgotten));
        forgotten
    }

    /// Up to which epoch removals may be lost.
    pub(super) fn horizon(&self) -> Epoch {
        let missing = self.past.iter().chain([&self.open]);
        let missing = missing.filter(|group| !group.is_cured);
        missing.filter_map(Group::until).max().unwrap_or_default()
    }
}
