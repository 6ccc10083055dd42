//! Which owners have members of the groups that are at home here.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{GroupAction, GroupNews};
use crate::placement::Seat;
use crate::retention::{GroupId, Parent};

/// Most groups that one home remembers. Beyond, the one is forgotten that an owner joined the longest time ago.
pub const GROUPS_MAX: usize = 256 << 10;
/// Most owners of one group that its home remembers: members at others stay when one leaves.
pub const SEATS_MAX: usize = 64;

#[derive(Debug, Default)]
struct Entry {
    /// Most groups are of the ranks of one engine on a few hosts.
    seats: SmallVec<[Seat; 2]>,
    /// When it was joined last, in joins.
    joined: u64,
}

/// The groups that are at home at one core. See the [module](super).
#[derive(Debug, Default)]
pub struct Registry {
    groups: BTreeMap<GroupId, Entry>,
    /// By when they were joined last.
    by_join: BTreeMap<u64, GroupId>,
    joins: u64,
}

impl Registry {
    /// Groups that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether it remembers none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// An owner says something of a group. What is none of a home's business changes nothing.
    pub fn on_news(&mut self, from: Seat, news: GroupNews, out: &mut Vec<GroupAction>) {
        match news {
            GroupNews::Joined { group: id } => self.join(from, id),
            GroupNews::Left { group: id } => self.leave(from, id),
            GroupNews::Broken { group: id } => {
                let entry = self.groups.get(&id);
                let seats = entry.map_or(&[][..], |entry| &entry.seats);
                let others = seats.iter().filter(|&&seat| seat != from);
                out.extend(
                    others.map(|&seat| GroupAction::Tell(seat, GroupNews::Part { group: id })),
                );
            }
            GroupNews::Part { .. } => {}
        }
    }

    /// There is no copy of this object any more, in memory or elsewhere: what is behind it is of no use.
    pub fn on_gone(&self, parent: Parent, out: &mut Vec<GroupAction>) {
        let group = GroupId::behind(parent);
        let seats = self.groups.get(&group).map(|entry| entry.seats.iter());
        let told = seats.into_iter().flatten();
        out.extend(told.map(|&seat| GroupAction::Tell(seat, GroupNews::Part { group })));
    }

    fn join(&mut self, from: Seat, id: GroupId) {
        self.joins += 1;
        let entry = self.groups.entry(id).or_default();
        self.by_join.remove(&entry.joined);
        entry.joined = self.joins;
        self.by_join.insert(self.joins, id);
        // Another life of a seat is no more: its core has one now.
        let same = |seat: &Seat| (seat.node, seat.core) == (from.node, from.core);
        if let Some(known) = entry.seats.iter_mut().find(|seat| same(seat)) {
            known.incarnation = known.incarnation.max(from.incarnation);
        } else if entry.seats.len() < SEATS_MAX {
            entry.seats.push(from);
        }
        if self.groups.len() > GROUPS_MAX
            && let Some((_, oldest)) = self.by_join.pop_first()
        {
            self.groups.remove(&oldest);
        }
    }

    fn leave(&mut self, from: Seat, id: GroupId) {
        let Some(entry) = self.groups.get_mut(&id) else {
            return;
        };
        entry.seats.retain(|seat| *seat != from);
        if entry.seats.is_empty() {
            self.by_join.remove(&entry.joined);
            self.groups.remove(&id);
        }
    }
}
