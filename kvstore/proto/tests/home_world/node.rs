//! A node of a world: its cores, each a home and an owner, their bytes, and its lease.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_cluster_proto::fence::Fence;
use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::home::{Home, HomeLimits, HomeMemory};
use lunette_kvstore_proto::message::directory::{CopyPlace, OpId};
use lunette_kvstore_proto::owner::{Owner, OwnerLimits};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::time::Time;

use super::onlooker::Onlooker;

pub(crate) struct Core {
    pub(crate) home: Home,
    pub(crate) owner: Owner,
    /// The bytes of writes under way, and how many copies each is to have.
    pub(crate) arriving: BTreeMap<OpId, u64>,
    pub(crate) stored: BTreeMap<CopyPlace, u64>,
    pub(crate) onlooker: Onlooker,
    /// What a drive has of what the home knew, and whether it is forgetting that.
    pub(crate) kept: Option<HomeMemory>,
    pub(crate) is_forgetting: bool,
}

pub(crate) struct Node {
    pub(crate) incarnation: u64,
    pub(crate) is_alive: bool,
    /// It reaches neither the coordinator nor the others.
    pub(crate) is_cut: bool,
    /// It is to be emptied.
    pub(crate) is_draining: bool,
    pub(crate) cores: Vec<Core>,
    pub(crate) fence: Fence,
    pub(crate) map: ClusterMap,
    /// The map that it has to have read before its lease counts.
    pub(crate) reads_from: Epoch,
    /// How fast its clock is, in thousandths.
    rate: u64,
}

impl Node {
    pub(crate) fn new(id: u64, incarnation: u64, cores: u16, rate: u64) -> Self {
        let limits = HomeLimits {
            tombstones_max: 64,
            repair_after: Duration::from_millis(250),
            keep_after: Duration::from_millis(5),
            ..HomeLimits::default()
        };
        let owner_limits = OwnerLimits {
            // Few, so that maps change and homes ask in between.
            relisted_per_turn_max: 3,
            ..OwnerLimits::default()
        };
        let cores = (0..cores).map(|core| {
            let seat = Seat {
                node: NodeId(id),
                incarnation,
                core: CoreIndex(core),
            };
            let mut home = Home::new(seat, limits);
            home.watch();
            Core {
                home,
                owner: Owner::new(seat, owner_limits),
                arriving: BTreeMap::new(),
                stored: BTreeMap::new(),
                onlooker: Onlooker::default(),
                kept: None,
                is_forgetting: false,
            }
        });
        Self {
            incarnation,
            is_alive: true,
            is_cut: false,
            is_draining: false,
            cores: cores.collect(),
            fence: Fence::default(),
            map: ClusterMap::default(),
            reads_from: Epoch(0),
            rate,
        }
    }

    pub(crate) fn seat(&self, core: usize) -> Seat {
        self.cores[core].home.seat()
    }

    /// The node's own time: clocks drift.
    pub(crate) fn local(&self, now: Time) -> Time {
        Time::from_ns(now.as_ns() / 1000 * self.rate)
    }

    /// The lease was renewed by what was sent now.
    pub(crate) fn renew(&mut self, now: Time, ttl: Duration) {
        let mut epochs = self.cores.iter().map(|core| core.home.epoch());
        if epochs.any(|epoch| epoch < self.reads_from) {
            return;
        }
        let local = self.local(now);
        self.fence.renew(local, ttl);
        for core in &mut self.cores {
            core.home.on_fence(self.fence);
            core.owner.on_fence(self.fence);
        }
    }
}
