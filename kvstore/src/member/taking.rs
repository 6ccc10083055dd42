//! Which replicas this core takes.
//!
//! Nothing is evicted for a replica. One that is made again may use memory up to the low watermark, less a
//! share, which eviction takes nothing from: so they never chase each other. And a node that has joined a
//! cluster whose other members are full would draw all replicas, and soon all reads: it takes them no faster
//! than [`Fill`] allows. Under the first map of a cluster there is nobody who is fuller.
//!
//! Where a drive has room, what leaves memory for a replica is not lost: such a core takes what memory it has free,
//! and says that it has the drive's room as well.

use std::cell::Cell;

use lunette_cluster::proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::placement::choice::{Fill, repair_room_bytes};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_runtime_core::time::Time;

use super::core::MemberCore;
use super::tier::Tier;

/// Whether the core is filled slowly.
#[derive(Debug, Default)]
pub(super) struct Taking {
    has_joined: Cell<bool>,
    fill: Cell<Option<Fill>>,
}

impl Taking {
    /// The map is another one: perhaps the first that this core is in.
    pub(super) fn on_map(&self, now: Time, map: &ClusterMap, seat: Seat, capacity_bytes: u64) {
        if self.has_joined.get() || !has_seat(map, seat) {
            return;
        }
        self.has_joined.set(true);
        if map.epoch() > Epoch::FIRST {
            self.fill.set(Some(Fill::new(now, capacity_bytes)));
        }
    }

    /// Bytes that it may take now, if that is less than it has room for.
    fn left_bytes(&self, now: Time) -> u64 {
        self.fill
            .get()
            .map_or(u64::MAX, |fill| fill.left_bytes(now))
    }

    fn take(&self, now: Time, len_bytes: u64) -> bool {
        let Some(mut fill) = self.fill.get() else {
            return true;
        };
        let is_taken = fill.take(now, len_bytes);
        self.fill.set(Some(fill));
        is_taken
    }
}

impl MemberCore {
    /// Bytes that replicas may still use now.
    pub(crate) fn replica_room_bytes(&self, now: Time, is_repair: bool) -> u64 {
        let free_bytes = self.free_for_replicas(is_repair) + self.drive_room_bytes();
        free_bytes.min(self.taking.left_bytes(now))
    }

    fn free_for_replicas(&self, is_repair: bool) -> u64 {
        let bytes = self.bytes().borrow();
        let limits = bytes.limits();
        let is_careful = is_repair && self.drive_room_bytes() == 0;
        let most_bytes = if is_careful {
            repair_room_bytes(limits.low_watermark_bytes())
        } else {
            limits.high_watermark_bytes()
        };
        // The share of entries that eviction keeps free is as large as the one that repair leaves.
        let entries_most = limits.low_watermark_entries() as u64;
        if is_careful && bytes.stats().entries >= entries_most {
            return 0;
        }
        most_bytes.saturating_sub(bytes.stats().used_bytes)
    }

    /// Bytes that a drive takes without letting anything go.
    fn drive_room_bytes(&self) -> u64 {
        self.tier().map_or(0, Tier::room_bytes)
    }

    /// Whether a replica is taken now; if not, somebody else may have room, or this core later.
    pub(crate) fn takes_replica(
        &self,
        now: Time,
        extent_bytes: u64,
        is_repair: bool,
    ) -> Result<(), Status> {
        if self.free_for_replicas(is_repair) < extent_bytes {
            return Err(Status::Full);
        }
        if self.taking.take(now, extent_bytes) {
            Ok(())
        } else {
            Err(Status::Busy)
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster::proto::map::MapMember;
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;

    const SEAT: Seat = Seat {
        node: NodeId(2),
        incarnation: 1,
        core: CoreIndex(0),
    };

    fn map(epoch: u64, nodes: &[u64]) -> ClusterMap {
        let members = nodes
            .iter()
            .map(|&id| MapMember::new(NodeId(id), 1, ([192, 0, 2, 1], 7000).into()));
        ClusterMap::new(Epoch(epoch), 0, members.collect()).expect("a map")
    }

    #[test]
    fn who_joins_others_is_filled_slowly_and_who_begins_with_them_is_not() {
        for (epoch, is_bounded) in [(1, false), (2, true)] {
            let taking = Taking::default();
            let now = Time::from_ns(7);
            taking.on_map(now, &map(epoch, &[1]), SEAT, 1600);
            assert_eq!(taking.left_bytes(now), u64::MAX, "it is not in the map");
            taking.on_map(now, &map(epoch, &[1, 2]), SEAT, 1600);
            assert_eq!(taking.left_bytes(now) == 100, is_bounded);
            assert!(taking.take(now, 100));
            assert_eq!(taking.take(now, 1), !is_bounded);
            taking.on_map(now, &map(epoch + 1, &[1, 2]), SEAT, 1600);
            assert_eq!(taking.left_bytes(now) == 0, is_bounded, "it is no fresher");
        }
    }
}
