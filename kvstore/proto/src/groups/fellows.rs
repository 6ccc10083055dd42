//! The members of groups that one owner has, and of what is behind others.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster_proto::map::ClusterMap;
use smallvec::SmallVec;

use super::{GroupAction, GroupNews};
use crate::message::directory::CopyPlace;
use crate::placement::{Seat, home_of};
use crate::retention::{GroupId, GroupKind};

/// Most members of one group at one owner: further ones are kept as if they were in none.
pub const MEMBERS_MAX: usize = 1024;
/// Most groups that are joined anew in one tick after a new map.
pub const JOINS_PER_TICK_MAX: usize = 256;

/// A group of which something is here.
#[derive(Debug, Default)]
struct Group {
    members: BTreeSet<CopyPlace>,
    /// Which home knows.
    told: Option<Seat>,
    /// One has left, here or elsewhere, and none has come since.
    is_broken: bool,
}

/// What a copy is in: a group of fellows, and the group of those that are behind its parent.
type Bonds = SmallVec<[GroupId; 2]>;

/// The groups of an owner's copies. See the [module](super). There are no more of them than copies.
#[derive(Debug, Default)]
pub struct Fellows {
    groups: BTreeMap<GroupId, Group>,
    of: BTreeMap<CopyPlace, Bonds>,
    map: ClusterMap,
    /// After which group those are to be looked at that have moved to another home.
    moved: Option<Option<GroupId>>,
}

type Out<'a> = &'a mut Vec<GroupAction>;

impl Fellows {
    /// Copies that are in a group, or behind others.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether no copy is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether there are groups that have yet to be joined anew: go on [ticking](Self::on_tick).
    #[must_use]
    pub const fn is_joining(&self) -> bool {
        self.moved.is_some()
    }

    /// The map is another one. Older ones than the one known are ignored.
    pub fn on_map(&mut self, map: &ClusterMap) {
        if map.epoch() > self.map.epoch() {
            self.map = map.clone();
            self.moved = (!self.groups.is_empty()).then_some(None);
        }
    }

    /// Time passes: groups whose home is another one are joined there.
    pub fn on_tick(&mut self, out: Out<'_>) {
        let Some(after) = self.moved else {
            return;
        };
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let groups = self.groups.range_mut((after, Bound::Unbounded));
        self.moved = None;
        for (looked_at, (&id, group)) in groups.enumerate() {
            if looked_at == JOINS_PER_TICK_MAX {
                break;
            }
            join(&self.map, id, group, out);
            self.moved = (looked_at + 1 == JOINS_PER_TICK_MAX).then_some(Some(id));
        }
    }

    /// A copy of an object of that group is here, and is the only one that is wanted. Said again it changes nothing: writers
    /// may wish for one group twice.
    pub fn kept(&mut self, place: CopyPlace, id: GroupId, out: Out<'_>) {
        if self.of.get(&place).is_some_and(|ids| ids.contains(&id)) {
            return;
        }
        let group = self.groups.entry(id).or_default();
        if group.members.len() == MEMBERS_MAX {
            return;
        }
        let is_new = group.members.insert(place);
        assert!(is_new, "{place:?} is kept twice");
        self.of.entry(place).or_default().push(id);
        group.is_broken = false;
        join(&self.map, id, group, out);
    }

    /// A copy is no more, or has left to make room. One that is in no group changes nothing.
    pub fn freed(&mut self, place: CopyPlace, has_left_for_room: bool, out: Out<'_>) {
        for id in self.of.remove(&place).unwrap_or_default() {
            let group = self.groups.get_mut(&id).expect("the group of a member");
            group.members.remove(&place);
            let is_fellow = id.kind() == GroupKind::Fellows;
            if has_left_for_room && is_fellow && !group.is_broken {
                part(group, out);
                tell(group, GroupNews::Broken { group: id }, out);
            }
            if group.members.is_empty() {
                tell(group, GroupNews::Left { group: id }, out);
                self.groups.remove(&id);
            }
        }
    }

    /// A member has left elsewhere, says the group's home, or the parent of all has.
    pub fn on_part(&mut self, home: Seat, id: GroupId, out: Out<'_>) {
        match self.groups.get_mut(&id) {
            // A parent may have come back and have left again.
            Some(group) if id.kind() == GroupKind::Behind => part(group, out),
            Some(group) if !group.is_broken => part(group, out),
            Some(_) => {}
            // It has missed that.
            None => out.push(GroupAction::Tell(home, GroupNews::Left { group: id })),
        }
    }
}

fn join(map: &ClusterMap, id: GroupId, group: &mut Group, out: Out<'_>) {
    let home = home_of(map, id.hash());
    if home != group.told {
        group.told = home;
        tell(group, GroupNews::Joined { group: id }, out);
    }
}

fn tell(group: &Group, news: GroupNews, out: Out<'_>) {
    out.extend(group.told.map(|home| GroupAction::Tell(home, news)));
}

fn part(group: &mut Group, out: Out<'_>) {
    group.is_broken = true;
    let members = group.members.iter().copied();
    out.extend(members.map(GroupAction::Abandon));
}
