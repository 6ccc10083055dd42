//! What a home says of a key that left one owner and is written at another: to both, once, and of nothing else.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::time::Duration;

use lunette_cluster_proto::fence::{Fence, NamespaceKind};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_policy::ghosts_beside;
use lunette_kvstore_proto::home::{Home, HomeAction, HomeLimits};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{
    Ask, AskerId, CopyPage, Only, OpId, ToHome, ToOwner, ToPeer, TombstonePage,
};
use lunette_kvstore_proto::placement::{Seat, seats};
use lunette_kvstore_proto::version::{CopyInfo, Form, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_runtime_core::time::Time;

const KEY: Fingerprint = Fingerprint(0x5eed);
const CACHE: NamespaceKind = NamespaceKind::Cache;
/// The home's own node; two more have copies.
const HOME: u64 = 1;

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn map(epoch: u64) -> ClusterMap {
    let member = |id: u64, home_weight| MapMember {
        home_weight,
        ..MapMember::new(NodeId(id), 1, ([192, 0, 2, 1], 7000).into())
    };
    let members = vec![member(HOME, 1), member(2, 0), member(3, 0)];
    ClusterMap::new(Epoch(epoch), 0, members).expect("a map")
}

fn seat(node: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation: 1,
        core: CoreIndex(0),
    }
}

struct Bench {
    home: Home,
    map: ClusterMap,
    ops: u64,
    out: Vec<HomeAction>,
}

impl Bench {
    fn new(limits: HomeLimits) -> Self {
        let mut home = Home::new(seat(HOME), limits);
        let mut fence = Fence::default();
        fence.renew(at(0), Duration::from_secs(1000));
        home.on_fence(fence);
        let mut bench = Self {
            home,
            map: map(1),
            ops: 0,
            out: Vec::new(),
        };
        bench.on_map(map(1));
        bench
    }

    /// A map in which everybody says that it has nothing.
    fn on_map(&mut self, map: ClusterMap) {
        self.map = map;
        self.home.on_map(at(1), &self.map, &mut self.out);
        for from in seats(&self.map) {
            let page = CopyPage {
                after: None,
                is_full: true,
                away: None,
                copies: vec![],
                is_last: true,
            };
            let epoch = self.map.epoch();
            self.home.on_page(at(1), from, epoch, page, &mut self.out);
            let tombstones = ToPeer::Tombstones(TombstonePage::default());
            self.home
                .on_peer(at(1), from, epoch, tombstones, &mut self.out);
        }
        self.tick();
        assert!(self.home.is_complete());
    }

    fn tick(&mut self) -> Vec<(u64, ToOwner)> {
        self.home.on_tick(at(60_000), &mut self.out);
        let advice = self.out.drain(..).filter_map(|action| match action {
            HomeAction::ToOwner(
                seat,
                item @ (ToOwner::CameBack { .. } | ToOwner::WasUsed { .. }),
            ) => Some((seat.node.0, item)),
            _ => None,
        });
        advice.collect()
    }

    fn tell(&mut self, from: Seat, item: ToHome) {
        self.home
            .on_owner(at(60_000), from, self.map.epoch(), item, &mut self.out);
    }

    /// The version of a copy of the key that this owner writes.
    fn write(&mut self, from: Seat, key: Fingerprint) -> Version {
        self.ops += 1;
        let op = OpId(self.ops);
        let (kind, namespace) = (WriteKind::Put, CACHE);
        let wait_ms = 1000;
        let claim = ToHome::Claim {
            op,
            key,
            kind,
            namespace,
            wait_ms,
        };
        self.tell(from, claim);
        let granted = self.out.iter().rev().find_map(|action| match action {
            HomeAction::ToOwner(
                _,
                ToOwner::Granted {
                    version,
                    generation,
                    ..
                },
            ) => Some((*version, *generation)),
            _ => None,
        });
        let (version, generation) = granted.expect("a grant");
        let info = CopyInfo {
            version,
            kind,
            form: Form::Whole,
            generation,
            wanted: 1,
            len_bytes: 100,
            crc32c: 7,
        };
        let publish = ToHome::Publish {
            op,
            key,
            info,
            namespace,
        };
        self.tell(from, publish);
        version
    }

    /// Which of the keys, which are written again by a third owner, were known.
    fn known(&mut self, keys: impl Iterator<Item = Fingerprint>) -> Vec<bool> {
        let known = keys.map(|key| {
            self.write(seat(3), key);
            !self.tick().is_empty()
        });
        known.collect()
    }

    /// A copy of this owner, that was used so often after the first time, leaves.
    fn leave(&mut self, from: Seat, key: Fingerprint, reuses: u8) {
        let version = self.write(from, key);
        let retract = ToHome::Retract {
            key,
            version,
            reuses,
        };
        self.tell(from, retract);
        let order = self.out.iter().rev().find_map(|action| match action {
            HomeAction::ToOwner(_, ToOwner::Drop { order, .. }) => Some(*order),
            _ => None,
        });
        let dropped = ToHome::Dropped {
            key,
            version,
            order: order.expect("an order"),
        };
        self.tell(from, dropped);
    }
}

fn told(to: u64, key: Fingerprint, reuses: u8) -> Vec<(u64, ToOwner)> {
    vec![
        (2, ToOwner::CameBack { key }),
        (to, ToOwner::WasUsed { key, reuses }),
    ]
}

#[test]
fn both_owners_hear_of_a_key_that_left_one_and_is_at_the_other() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.leave(seat(2), KEY, 5);
    assert_eq!(bench.tick(), [], "nobody has it yet");
    assert!(bench.home.is_idle());
    bench.write(seat(3), KEY);
    assert!(!bench.home.is_idle(), "they have not been told");
    assert_eq!(bench.tick(), told(3, KEY, 5));
    assert_eq!(bench.tick(), [], "once");
}

#[test]
fn an_owner_on_the_homes_core_hears_of_it_too() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.leave(seat(2), KEY, 2);
    let recorded = (bench.home).record_here(at(60_000), (KEY, Form::Whole, CACHE), (100, 7));
    assert!(recorded.is_ok());
    assert_eq!(bench.tick(), told(HOME, KEY, 2));
}

#[test]
fn where_it_left_it_is_remembered_already() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.leave(seat(2), KEY, 5);
    bench.write(seat(2), KEY);
    assert_eq!(bench.tick(), []);
}

#[test]
fn what_is_written_under_a_key_that_was_removed_is_new() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.leave(seat(2), KEY, 5);
    let remove = Ask::Remove {
        request: RequestId(1),
        key: KEY,
        namespace: CACHE,
        only: Only::Any,
        wait_ms: 1000,
    };
    let epoch = bench.map.epoch();
    bench
        .home
        .on_ask(at(60_000), AskerId(9), epoch, remove, &mut bench.out);
    bench.write(seat(3), KEY);
    assert_eq!(bench.tick(), []);
}

#[test]
fn of_who_is_gone_the_new_owner_hears_alone() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.leave(seat(2), KEY, 5);
    let members = map(2).members().to_vec();
    let others = members.into_iter().filter(|member| member.id != NodeId(2));
    bench.on_map(ClusterMap::new(Epoch(2), 0, others.collect()).expect("a map"));
    bench.write(seat(3), KEY);
    assert_eq!(bench.tick(), told(3, KEY, 5)[1..]);
}

#[test]
fn beyond_its_bound_a_home_forgets_what_left_longest_ago() {
    const HISTORIES_MAX: usize = 8;
    let limits = HomeLimits {
        histories_max: HISTORIES_MAX,
        ..HomeLimits::default()
    };
    let mut bench = Bench::new(limits);
    let keys = (1..=u128::try_from(2 * HISTORIES_MAX).expect("few")).map(Fingerprint);
    for key in keys.clone() {
        bench.leave(seat(2), key, 1);
    }
    let known = bench.known(keys);
    let count = known.iter().filter(|&&is_known| is_known).count();
    assert!((HISTORIES_MAX / 2..=HISTORIES_MAX).contains(&count));
    assert!(
        known[known.len() - count..]
            .iter()
            .all(|&is_known| is_known)
    );
}

/// What left a small memory is remembered by nobody for long.
#[test]
fn a_home_of_few_copies_remembers_few_histories() {
    for copies in [0, 100] {
        let mut bench = Bench::new(HomeLimits::default());
        for key in (1 << 64..).take(copies) {
            bench.write(seat(2), Fingerprint(key));
        }
        let keys = (1..=4096).map(Fingerprint);
        for key in keys.clone() {
            bench.leave(seat(2), key, 1);
        }
        let count = bench.known(keys).into_iter().filter(|&is_known| is_known);
        let (count, most) = (count.count(), ghosts_beside(copies));
        assert!((most / 2..=most).contains(&count), "{count} of {most}");
    }
    assert!(ghosts_beside(100) > ghosts_beside(0));
}
