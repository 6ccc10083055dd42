//! Copies that are missing: keys of which there are fewer than their writers asked for.
//!
//! An owner that has a copy is told of such a key, and makes what is missing. It is told again, later
//! each time, until the copies are recorded: an owner may be gone meanwhile, or nobody has room. Its
//! rules, each with what it excludes:
//!
//! - **One owner is told at a time**, and has a while for it. Two would make a copy too many between
//!   them. Where that happens all the same (the home is another one since), the publication of the one
//!   too many is refused.
//! - **A key waits for a moment before anybody is told.** A writer's own replicas are on their way, and
//!   of keys that are being removed all copies leave.
//! - **A bounded number is under way**, so that what a lost node held does not come all at once; a
//!   further key waits for its turn. What has no room in the queue is found again by looking through
//!   the table, a part in each tick.
//! - **A member that is to be emptied has nothing that counts** ([`MapMember::is_draining`]): what it has is missing, is shown
//!   until there are as many copies elsewhere as were asked for, or as there are members, and is surplus then. So it ends with nothing, and what it had
//!   is lost to nobody, as far as others have room.
//!
//!   [`MapMember::is_draining`]: lunette_cluster_proto::map::MapMember::is_draining
//! - **What leaves for want of room is missing like what is lost, and yet the two never chase each
//!   other**: copies that are made again may fill a node's memory up to its low watermark, less a share
//!   ([`repair_room_bytes`](crate::placement::choice::repair_room_bytes)), and eviction takes nothing from
//!   below it.

use std::collections::{BTreeMap, BTreeSet};

use lunette_cluster_proto::map::ClusterMap;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::limits::{
    COPIES_PER_KEY_MAX, KEYS_PER_TICK_MAX, REPAIR_PAUSE_MAX, REPAIR_WAIT, REPAIRS_UNDER_WAY_MAX,
};
use super::table::Standing;
use super::writes::alive;
use super::{Home, HomeAction, Out};
use crate::key::Fingerprint;
use crate::message::directory::{HOLDERS_MAX, ToOwner};
use crate::placement::{Seat, seats};
use crate::version::CopyInfo;

const _: () = assert!(COPIES_PER_KEY_MAX <= HOLDERS_MAX, "all holders can be told");

#[derive(Clone, Copy, Debug)]
struct Missing {
    due: Time,
    /// How often an owner was told.
    tries: u32,
    /// An owner was told, and has until then.
    is_under_way: bool,
}

/// The keys that have copies too few, in the order in which they are due.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    keys: BTreeMap<Fingerprint, Missing>,
    waiting: BTreeSet<(Time, Fingerprint)>,
    under_way: BTreeSet<(Time, Fingerprint)>,
    /// There was no room for all.
    has_missed: bool,
    /// After which key the table is to be looked through.
    scan: Option<Option<Fingerprint>>,
    /// Members that may take copies.
    takers: usize,
}

impl Repairs {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// How many members may take copies.
    pub(super) const fn takers(&self) -> usize {
        self.takers
    }

    fn has_room(&self, repairs_max: usize) -> bool {
        self.keys.len() < repairs_max
    }

    fn put(&mut self, key: Fingerprint, missing: Missing) {
        self.remove(key);
        let line = if missing.is_under_way {
            &mut self.under_way
        } else {
            &mut self.waiting
        };
        line.insert((missing.due, key));
        self.keys.insert(key, missing);
    }

    pub(super) fn remove(&mut self, key: Fingerprint) -> bool {
        let Some(missing) = self.keys.remove(&key) else {
            return false;
        };
        let place = (missing.due, key);
        self.waiting.remove(&place) || self.under_way.remove(&place)
    }

    /// The first of those whose time is over.
    fn next(line: &BTreeSet<(Time, Fingerprint)>, now: Time) -> Option<Fingerprint> {
        let &(due, key) = line.first()?;
        (due <= now).then_some(key)
    }

    /// The map is another one. Who was told may be gone; whether the keys are here still is found when
    /// they are due.
    pub(super) fn on_map(&mut self) {
        let told: Vec<_> = self.under_way.iter().copied().collect();
        for (due, key) in told {
            let tries = self.keys[&key].tries;
            let is_under_way = false;
            let missing = Missing {
                due,
                tries,
                is_under_way,
            };
            self.put(key, missing);
        }
    }

    /// Everything will be judged again.
    pub(super) fn clear(&mut self) {
        *self = Self {
            takers: self.takers,
            ..Self::default()
        };
    }
}

/// How many members may take copies.
fn takers(map: &ClusterMap) -> usize {
    let members = map.members().iter();
    members.filter(|member| !member.is_draining).count()
}

/// How long a key waits before an owner is told the next time, where it was told so often already.
fn pause(tries: u32, limits: &super::HomeLimits) -> core::time::Duration {
    let doubled = limits.repair_after * (1 << tries.saturating_sub(1).min(10));
    doubled.min(REPAIR_PAUSE_MAX)
}

impl Home {
    /// The map is another one: what those have who are to be emptied since is to be judged again; and what others have who are, where
    /// fewer members may take copies, since fewer may be enough then.
    pub(super) fn note_emptied(&mut self) {
        let members = self.map.members().iter();
        let emptied = members.filter(|member| member.is_draining);
        let emptied: BTreeSet<NodeId> = emptied.map(|member| member.id).collect();
        let takers = takers(&self.map);
        let are_fewer = takers < self.repairs.takers;
        self.repairs.takers = takers;
        for seat in seats(&self.map) {
            let is_new = !self.emptied.contains(&seat.node);
            if emptied.contains(&seat.node) && (is_new || are_fewer) {
                let keys = self.table.keys_of(seat);
                self.unjudged.extend(keys);
            }
        }
        self.emptied = emptied;
    }

    /// Whether a copy there counts for nothing, and others are to be made instead.
    pub(super) fn is_emptied(&self, seat: Seat) -> bool {
        self.emptied.contains(&seat.node)
    }

    /// The copies of a key that live, or are about to, are others: notes whether there are too few.
    pub(super) fn note_copies(&mut self, now: Time, key: Fingerprint) {
        if self.is_scarce(key).is_none() {
            self.repairs.remove(key);
            return;
        }
        if self.repairs.keys.contains_key(&key) {
            return;
        }
        if !self.repairs.has_room(self.limits.repairs_max) {
            self.repairs.has_missed = true;
            return;
        }
        let missing = Missing {
            due: now + self.limits.repair_after,
            tries: 0,
            is_under_way: false,
        };
        self.repairs.put(key, missing);
    }

    /// What lives of a key, and how many copies are missing that some member could take.
    fn is_scarce(&self, key: Fingerprint) -> Option<(CopyInfo, usize)> {
        let is_one_enough = self.emptied.is_empty();
        let info = self.winner(key);
        let info = info.filter(|info| info.wanted > 1 || !is_one_enough)?;
        let wanted = usize::from(info.wanted.max(1));
        let missing = wanted.checked_sub(self.live_count(key))?;
        let holders = self.holders(key);
        let is_taker = |node: &&NodeId| {
            let member = self.map.member(**node);
            member.is_some_and(|member| !member.is_draining)
        };
        let takers = self.repairs.takers - holders.iter().filter(is_taker).count();
        let missing = missing.min(takers);
        (missing > 0).then_some((info, missing))
    }

    /// The members that have a copy, or have one that has not left yet.
    fn holders(&self, key: Fingerprint) -> Vec<NodeId> {
        let copies = self.table.copies(key).iter();
        let present = copies.filter(|copy| !matches!(copy.standing, Standing::Departed { .. }));
        let mut nodes: Vec<NodeId> = present.map(|copy| copy.seat.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Some of the keys that are due.
    pub(super) fn repair_some(&mut self, now: Time, out: Out<'_>) {
        self.look_through(now);
        for _ in 0..KEYS_PER_TICK_MAX {
            let Some(key) = Repairs::next(&self.repairs.under_way, now) else {
                break;
            };
            let tries = self.repairs.keys[&key].tries;
            let missing = Missing {
                due: now + pause(tries, &self.limits),
                tries,
                is_under_way: false,
            };
            self.repairs.put(key, missing);
        }
        if !self.fence.is_leased(now) || mutant::is_on(Mutant::RepairForgotten) {
            // Who is cut off does not know who is there.
            return;
        }
        for _ in 0..KEYS_PER_TICK_MAX {
            if self.repairs.under_way.len() >= REPAIRS_UNDER_WAY_MAX {
                break;
            }
            let Some(key) = Repairs::next(&self.repairs.waiting, now) else {
                break;
            };
            self.repair(now, key, out);
        }
    }

    /// Tells an owner what is missing: another one each time.
    fn repair(&mut self, now: Time, key: Fingerprint, out: Out<'_>) {
        let is_here = self.is_home_of(key);
        let scarce = self.is_scarce(key).filter(|_| is_here);
        let Some((info, missing)) = scarce else {
            self.repairs.remove(key);
            return;
        };
        let tries = self.repairs.keys[&key].tries;
        let alive = alive(self.table.copies(key), self.tombstones.version(key));
        let of_it = alive.filter(|copy| copy.info.version == info.version);
        let mut owners: Vec<Seat> = of_it.map(|copy| copy.seat).collect();
        owners.sort_unstable();
        let owner = owners[tries as usize % owners.len()];
        let told = Missing {
            due: now + REPAIR_WAIT,
            tries: tries.saturating_add(1),
            is_under_way: true,
        };
        self.repairs.put(key, told);
        self.stats.repairs += 1;
        let replicate = ToOwner::Replicate {
            key,
            version: info.version,
            missing: u8::try_from(missing).expect("at most as many as are wanted"),
            holders: self.holders(key),
        };
        out.push(HomeAction::ToOwner(owner, replicate));
    }

    /// Where not all keys had room in the queue, and some have by now: looks at a part of the table.
    fn look_through(&mut self, now: Time) {
        let repairs = &mut self.repairs;
        if repairs.scan.is_none()
            && repairs.has_missed
            && repairs.len() <= self.limits.repairs_max / 2
        {
            repairs.has_missed = false;
            repairs.scan = Some(None);
        }
        let Some(after) = self.repairs.scan else {
            return;
        };
        let keys = self.table.keys_after(after, KEYS_PER_TICK_MAX);
        if keys.is_empty() {
            self.repairs.scan = None;
        }
        for key in keys {
            if !self.repairs.has_room(self.limits.repairs_max) {
                break;
            }
            self.note_copies(now, key);
            self.repairs.scan = Some(Some(key));
        }
    }
}
