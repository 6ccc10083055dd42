//! One home between others that are told what to say, and when it is believed what a copy says that was away.

use std::time::Duration;

use lunette_cluster_proto::fence::{Fence, NamespaceKind};
use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_kvstore_proto::home::{Home, HomeAction, HomeLimits};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{
    Answer, Ask, AskerId, Away, CopyPage, Losses, Only, Recalled, ToOwner, ToPeer, TombstonePage,
};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_runtime_core::time::Time;

/// The last map of the former lives.
pub(crate) const LAST: Epoch = Epoch(7);
pub(crate) const REMOVED: Fingerprint = Fingerprint(1 << 100);
pub(crate) const KEPT: Fingerprint = Fingerprint(3 << 100);

pub(crate) fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

pub(crate) fn seat(incarnation: u64) -> Seat {
    Seat {
        node: NodeId(1),
        incarnation,
        core: CoreIndex(0),
    }
}

pub(crate) fn info() -> CopyInfo {
    CopyInfo {
        version: Version {
            epoch: Epoch(LAST.0 - 1),
            sequence: 5,
        },
        kind: WriteKind::Put,
        form: Form::Whole,
        generation: Generation(0),
        wanted: 1,
        len_bytes: 9,
        crc32c: 1,
    }
}

pub(crate) struct Bench {
    pub(crate) home: Home,
    pub(crate) map: ClusterMap,
    pub(crate) now: Time,
    pub(crate) out: Vec<HomeAction>,
}

impl Bench {
    pub(crate) fn new(incarnation: u64) -> Self {
        Self::within(incarnation, HomeLimits::default())
    }

    pub(crate) fn within(incarnation: u64, limits: HomeLimits) -> Self {
        let mut home = Home::new(seat(incarnation), limits);
        let mut fence = Fence::default();
        fence.renew(at(0), Duration::from_secs(1000));
        home.on_fence(fence);
        Self {
            home,
            map: ClusterMap::default(),
            now: at(1),
            out: Vec::new(),
        }
    }

    pub(crate) fn begin(&mut self, map: &ClusterMap) {
        self.home.on_map(self.now, map, &mut self.out);
        self.map = map.clone();
    }

    /// A seat reports, which has two copies if it was away.
    pub(crate) fn report(
        &mut self,
        from: Seat,
        away_since: Option<Epoch>,
        tombstones: TombstonePage,
    ) {
        let copies = [(REMOVED, info()), (KEPT, info())];
        let page = CopyPage {
            after: None,
            is_full: true,
            away: away_since.map(|since| Away {
                since,
                back: self.map.epoch(),
            }),
            copies: away_since.map_or(vec![], |_| copies.to_vec()),
            is_last: true,
        };
        let (now, epoch) = (self.now, self.map.epoch());
        self.home.on_page(now, from, epoch, page, &mut self.out);
        self.hear(from, ToPeer::Tombstones(tombstones));
    }

    /// Another home says something.
    pub(crate) fn hear(&mut self, from: Seat, item: ToPeer) {
        let (now, epoch) = (self.now, self.map.epoch());
        self.home.on_peer(now, from, epoch, item, &mut self.out);
    }

    pub(crate) fn tick_at(&mut self, ms: u64) {
        self.now = at(ms);
        self.home.on_tick(self.now, &mut self.out);
    }

    /// A removal, of which the next home keeps the tombstone too. Whether it has ended.
    pub(crate) fn remove(&mut self, key: Fingerprint) -> bool {
        self.out.clear();
        let ask = Ask::Remove {
            request: RequestId(u64::try_from(key.0 >> 100).expect("small")),
            key,
            namespace: NamespaceKind::Strict,
            wait_ms: 1000,
            only: Only::Any,
        };
        let (now, epoch) = (self.now, self.map.epoch());
        self.home.on_ask(now, AskerId(1), epoch, ask, &mut self.out);
        for action in self.out.clone() {
            if let HomeAction::ToPeer(next, ToPeer::Bury { key, tombstone }) = action {
                let version = tombstone.version;
                let buried = ToPeer::Buried { key, version };
                self.home.on_peer(now, next, epoch, buried, &mut self.out);
            }
        }
        self.home.on_tick(now, &mut self.out);
        self.has_removed()
    }

    pub(crate) fn has_removed(&self) -> bool {
        let is_done = |action: &HomeAction| {
            matches!(action, HomeAction::Answer(_, _, Answer::Removed { .. }))
        };
        self.out.iter().any(is_done)
    }

    pub(crate) fn is_shown(&self, key: Fingerprint) -> bool {
        self.home.shown().any(|(shown, _, _)| shown == key)
    }

    pub(crate) fn is_dropped(&self, wanted: Fingerprint) -> bool {
        self.out.iter().any(|action| {
            matches!(action, HomeAction::ToOwner(_, ToOwner::Drop { key, .. }) if *key == wanted)
        })
    }
}

/// What one of so many homes knew when it left under [`LAST`].
pub(crate) fn known(homes: u32) -> Recalled {
    Recalled {
        incarnation: 1,
        epoch: LAST,
        homes,
        cores: 1,
        horizon: Epoch(0),
        is_whole: true,
        is_final: true,
        losses: Losses::default(),
    }
}
