//! Copies that are missing: who is told of them, when, and how many at once.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::time::Duration;

use lunette_cluster_proto::fence::{Fence, NamespaceKind};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::home::{
    Home, HomeAction, HomeLimits, REPAIR_PAUSE_MAX, REPAIR_WAIT, REPAIRS_UNDER_WAY_MAX,
};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{CopyPage, OpId, ToHome, ToOwner};
use lunette_kvstore_proto::placement::{Seat, seats};
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::time::Time;

const KEY: Fingerprint = Fingerprint(77);
const AFTER: Duration = Duration::from_secs(1);

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn seat(node: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation: 1,
        core: CoreIndex(0),
    }
}

/// The home at node 1, and owners.
fn map(epoch: u64, nodes: &[u64], draining: &[u64]) -> ClusterMap {
    let members = nodes.iter().map(|&id| MapMember {
        home_weight: u32::from(id == 1),
        is_draining: draining.contains(&id),
        ..MapMember::new(NodeId(id), 1, ([192, 0, 2, 1], 7000).into())
    });
    ClusterMap::new(Epoch(epoch), 0, members.collect()).expect("a map")
}

const fn info(wanted: u8) -> CopyInfo {
    CopyInfo {
        version: Version {
            epoch: Epoch(1),
            sequence: 1,
        },
        kind: WriteKind::Put,
        form: Form::Whole,
        generation: Generation(0),
        wanted,
        len_bytes: 9,
        crc32c: 9,
    }
}

/// Who was told of which key: how many copies are missing, and who has one.
type Told = (u64, Fingerprint, u8, Vec<u64>);

struct Bench {
    home: Home,
    map: ClusterMap,
    now: Time,
    out: Vec<HomeAction>,
    /// Of the copy that was to be dropped last.
    last_order: u64,
}

impl Bench {
    /// A home that is complete, and knows these copies: of which key, at which node, and how many are wanted.
    fn with(limits: HomeLimits, map: ClusterMap, copies: &[(Fingerprint, u64, u8)]) -> Self {
        let mut home = Home::new(seat(1), limits);
        let mut fence = Fence::default();
        fence.renew(at(0), Duration::from_secs(100_000));
        home.on_fence(fence);
        let mut bench = Self {
            home,
            map: ClusterMap::default(),
            now: at(1),
            out: Vec::new(),
            last_order: 0,
        };
        bench.change_map(map);
        bench.report(copies, true);
        bench
    }

    fn change_map(&mut self, map: ClusterMap) {
        self.home.on_map(self.now, &map, &mut self.out);
        self.map = map;
    }

    fn report(&mut self, copies: &[(Fingerprint, u64, u8)], is_full: bool) {
        let copies = copies.iter();
        let copies: Vec<_> = copies
            .map(|&(key, node, wanted)| (key, node, info(wanted)))
            .collect();
        self.report_all(&copies, is_full);
    }

    fn report_all(&mut self, copies: &[(Fingerprint, u64, CopyInfo)], is_full: bool) {
        for from in seats(&self.map).collect::<Vec<_>>() {
            let own = copies.iter().filter(|copy| NodeId(copy.1) == from.node);
            let copies = own.map(|&(key, _, info)| (key, info));
            let page = CopyPage {
                after: None,
                is_full,
                away: None,
                copies: copies.collect(),
                is_last: true,
            };
            let epoch = self.map.epoch();
            self.home
                .on_page(self.now, from, epoch, page, &mut self.out);
            let nothing = lunette_kvstore_proto::message::directory::TombstonePage::default();
            let page = lunette_kvstore_proto::message::directory::ToPeer::Tombstones(nothing);
            self.home
                .on_peer(self.now, from, epoch, page, &mut self.out);
        }
        assert!(self.home.is_complete());
        self.told_after(Duration::ZERO);
    }

    fn say(&mut self, node: u64, item: ToHome) {
        let epoch = self.map.epoch();
        self.home
            .on_owner(self.now, seat(node), epoch, item, &mut self.out);
    }

    /// A node has a replica, and asks for it to be recorded.
    fn publish(&mut self, key: Fingerprint, node: u64, wanted: u8) {
        let (op, info) = (OpId(node), info(wanted));
        let namespace = NamespaceKind::Strict;
        self.say(
            node,
            ToHome::Publish {
                op,
                key,
                info,
                namespace,
            },
        );
    }

    /// It has heard that it is, and says that it is there.
    fn keep(&mut self, key: Fingerprint, node: u64) {
        let (op, version) = (OpId(node), info(1).version);
        self.say(node, ToHome::Kept { op, key, version });
    }

    /// A replica of the node's is recorded.
    fn replicate(&mut self, key: Fingerprint, node: u64, wanted: u8) {
        self.publish(key, node, wanted);
        self.keep(key, node);
    }

    /// A node gives its copy up.
    fn leave(&mut self, key: Fingerprint, node: u64) {
        let version = info(1).version;
        self.say(
            node,
            ToHome::Retract {
                key,
                version,
                reuses: 0,
            },
        );
        let order = self.dropped().expect("it is ordered to");
        self.say(
            node,
            ToHome::Dropped {
                key,
                version,
                order,
            },
        );
    }

    /// The order of the copy that is to be dropped last, of what has not been looked at.
    fn dropped(&self) -> Option<u64> {
        self.out.iter().rev().find_map(|action| match action {
            HomeAction::ToOwner(_, ToOwner::Drop { order, .. }) => Some(*order),
            _ => None,
        })
    }

    fn told_after(&mut self, passes: Duration) -> Vec<Told> {
        self.now = self.now + passes;
        self.home.on_tick(self.now, &mut self.out);
        self.last_order = self.dropped().unwrap_or(self.last_order);
        let told = self.out.drain(..).filter_map(|action| match action {
            HomeAction::ToOwner(
                seat,
                ToOwner::Replicate {
                    key,
                    missing,
                    holders,
                    ..
                },
            ) => {
                let holders = holders.into_iter().map(|node| node.0).collect();
                Some((seat.node.0, key, missing, holders))
            }
            _ => None,
        });
        told.collect()
    }
}

#[test]
fn an_owner_is_told_what_is_missing_once_the_key_has_waited() {
    let mut bench = Bench::with(
        HomeLimits::default(),
        map(1, &[1, 2, 3, 4], &[]),
        &[(KEY, 2, 3)],
    );
    assert_eq!(bench.home.stats().scarce, 1);
    assert_eq!(bench.told_after(AFTER - Duration::from_millis(1)), []);
    let told = bench.told_after(Duration::from_millis(1));
    assert_eq!(told, [(2, KEY, 2, vec![2])]);
    assert_eq!(
        bench.told_after(Duration::from_millis(1)),
        [],
        "one at a time"
    );
    bench.replicate(KEY, 3, 3);
    bench.replicate(KEY, 4, 3);
    assert_eq!(bench.home.stats().scarce, 0);
    assert_eq!(bench.told_after(REPAIR_PAUSE_MAX * 2), []);
}

#[test]
fn a_replica_that_comes_in_time_is_not_made_twice_and_one_too_many_is_refused() {
    let mut bench = Bench::with(
        HomeLimits::default(),
        map(1, &[1, 2, 3, 4], &[]),
        &[(KEY, 2, 2)],
    );
    bench.replicate(KEY, 3, 2);
    assert_eq!(bench.told_after(AFTER * 2), []);
    bench.replicate(KEY, 4, 2);
    let lost = bench.out.iter().any(
        |action| matches!(action, HomeAction::ToOwner(to, ToOwner::Lost { .. }) if *to == seat(4)),
    );
    assert!(lost);
}

#[test]
fn who_had_another_version_takes_a_copy_once_that_has_gone() {
    let mut bench = Bench::with(HomeLimits::default(), map(1, &[1, 2, 3], &[]), &[]);
    bench.change_map(map(2, &[1, 2, 3], &[]));
    // Written while the others were away, and by somebody who wanted one copy.
    let mut other = info(1);
    other.version.sequence += 1;
    let copies = [(KEY, 2, info(3)), (KEY, 3, info(3)), (KEY, 1, other)];
    bench.report_all(&copies, true);
    assert_eq!(bench.home.stats().scarce, 0, "nobody could take one");
    let (key, version, order) = (KEY, other.version, bench.last_order);
    bench.say(
        1,
        ToHome::Dropped {
            key,
            version,
            order,
        },
    );
    assert_eq!(bench.home.stats().scarce, 1);
    assert_eq!(bench.told_after(AFTER), [(2, KEY, 1, vec![2, 3])]);
}

#[test]
fn a_late_publication_of_a_former_replica_does_not_take_the_place_of_the_later_one() {
    let mut bench = Bench::with(
        HomeLimits::default(),
        map(1, &[1, 2, 3], &[]),
        &[(KEY, 2, 2)],
    );
    let publish = |op| ToHome::Publish {
        op: OpId(op),
        key: KEY,
        info: info(2),
        namespace: NamespaceKind::Strict,
    };
    let recorded = |bench: &mut Bench| -> Vec<u64> {
        let told = bench.out.drain(..).filter_map(|action| match action {
            HomeAction::ToOwner(_, ToOwner::Recorded { op, .. }) => Some(op.0),
            _ => None,
        });
        told.collect()
    };
    bench.say(3, publish(7));
    assert_eq!(recorded(&mut bench), [7]);
    // Of one that the node has dropped since, before it took this one.
    bench.say(3, publish(6));
    assert!(recorded(&mut bench).is_empty());
    let version = info(2).version;
    let kept = |op| ToHome::Kept {
        op: OpId(op),
        key: KEY,
        version,
    };
    bench.say(3, kept(6));
    assert_eq!(bench.home.shown().count(), 1);
    bench.say(3, kept(7));
    assert_eq!(bench.home.shown().count(), 2);
    assert!(bench.home.is_idle());
}

/// It could be lost with the one that it was made of, though it is there.
#[test]
fn a_replica_that_joins_when_the_last_copy_leaves_is_the_object() {
    let nodes = map(1, &[1, 2, 3, 4], &[]);
    let mut bench = Bench::with(HomeLimits::default(), nodes, &[(KEY, 2, 2)]);
    bench.publish(KEY, 3, 2);
    bench.leave(KEY, 2);
    // It is told already, and answers once it knows that it is recorded.
    let told = (3, KEY, 1, vec![3]);
    assert_eq!(bench.told_after(AFTER), std::slice::from_ref(&told));
    bench.keep(KEY, 3);
    let shown = bench.home.shown().map(|(_, seat, info)| (seat, info));
    assert_eq!(shown.collect::<Vec<_>>(), [(seat(3), info(2))]);
    assert!(bench.told_after(REPAIR_WAIT).is_empty());
    assert_eq!(bench.told_after(REPAIR_PAUSE_MAX), [told]);
}

/// What a member has that is to be emptied counts for nothing: it is made elsewhere, shown until that is, and dropped then.
#[test]
fn what_is_to_be_emptied_is_there_until_others_have_it() {
    let mut bench = Bench::with(
        HomeLimits::default(),
        map(1, &[1, 2, 3], &[]),
        &[(KEY, 2, 1)],
    );
    bench.change_map(map(2, &[1, 2, 3], &[2]));
    bench.report(&[], false);
    assert_eq!(bench.home.stats().scarce, 1);
    assert_eq!(bench.told_after(AFTER), [(2, KEY, 1, vec![2])]);
    bench.publish(KEY, 3, 1);
    let shown = |bench: &Bench| -> Vec<Seat> {
        let shown = bench.home.shown().map(|(_, seat, _)| seat);
        shown.collect()
    };
    assert_eq!(bench.told_after(REPAIR_WAIT), []);
    assert_eq!(
        shown(&bench),
        [seat(2)],
        "the other is not sure to be there"
    );
    bench.keep(KEY, 3);
    assert_eq!(bench.told_after(REPAIR_PAUSE_MAX), []);
    assert_eq!(shown(&bench), [seat(3)]);
    assert!(bench.last_order > 0, "the first is to drop it");
}

/// As many as are wanted, or as there are members that may have one.
#[test]
fn a_member_is_emptied_of_what_others_have_enough_of() {
    for (wanted, nodes, makes) in [
        (2, &[1, 2, 3][..], true),
        (2, &[1, 2], false),
        (1, &[1, 2], false),
    ] {
        let copies = [(KEY, 1, wanted), (KEY, 2, wanted)];
        let copies = &copies[usize::from(wanted == 1)..];
        let mut bench = Bench::with(HomeLimits::default(), map(1, nodes, &[]), copies);
        bench.change_map(map(2, nodes, &[2]));
        bench.report(&[], false);
        let told = bench.told_after(AFTER);
        if makes {
            assert_eq!(told, [(1, KEY, 1, vec![1, 2])]);
            assert_eq!(bench.home.shown().count(), 2, "one is not enough");
            bench.replicate(KEY, 3, wanted);
        } else if wanted == 1 {
            assert_eq!(told, [(2, KEY, 1, vec![2])]);
            bench.replicate(KEY, 1, wanted);
        }
        bench.told_after(AFTER);
        let shown = bench.home.shown().map(|(_, seat, _)| seat.node.0);
        let shown: Vec<_> = shown.collect();
        let expected = if makes { vec![1, 3] } else { vec![1] };
        assert_eq!(shown, expected, "{wanted} {nodes:?}");
    }
}

/// There is enough without it as well when there are fewer who may have one.
#[test]
fn a_member_is_emptied_when_others_may_take_no_more() {
    let [is_emptied, is_gone] = [(&[1, 2, 3][..], &[2, 3][..]), (&[1, 2], &[2])];
    for (nodes, draining) in [is_emptied, is_gone] {
        let copies = [(KEY, 1, 2), (KEY, 2, 2)];
        let mut bench = Bench::with(HomeLimits::default(), map(1, &[1, 2, 3], &[]), &copies);
        let shown = |bench: &Bench| -> Vec<u64> {
            let shown = bench.home.shown().map(|(_, seat, _)| seat.node.0);
            shown.collect()
        };
        bench.change_map(map(2, &[1, 2, 3], &[2]));
        bench.report(&[], false);
        assert_eq!(shown(&bench), [1, 2], "two are wanted");
        bench.change_map(map(3, nodes, draining));
        bench.report(&[], false);
        bench.told_after(AFTER);
        assert_eq!(shown(&bench), [1]);
    }
}

#[test]
fn what_a_lost_node_held_is_made_again_and_so_is_what_left_for_want_of_room() {
    let copies = [(KEY, 2, 2), (KEY, 3, 2)];
    let mut bench = Bench::with(HomeLimits::default(), map(1, &[1, 2, 3], &[]), &copies);
    assert_eq!(bench.told_after(AFTER), []);
    bench.change_map(map(2, &[1, 2], &[]));
    bench.report(&[], false);
    let told = bench.told_after(AFTER);
    assert_eq!(told, [(2, KEY, 1, vec![2])]);
    bench.replicate(KEY, 1, 2);
    assert_eq!(bench.home.stats().scarce, 0);
    bench.leave(KEY, 2);
    assert_eq!(bench.told_after(AFTER), [(1, KEY, 1, vec![1])]);
}

#[test]
fn nobody_is_told_where_nobody_could_take_it_until_somebody_joins() {
    let copies = [(KEY, 1, 3), (KEY, 2, 3)];
    let former = map(1, &[1, 2, 3], &[3]);
    let mut bench = Bench::with(HomeLimits::default(), former, &copies);
    assert_eq!(bench.home.stats().scarce, 0, "the third one is leaving");
    assert_eq!(bench.told_after(AFTER * 2), []);
    bench.change_map(map(2, &[1, 2, 3, 4], &[3]));
    bench.report(&[], false);
    assert_eq!(bench.told_after(AFTER), [(1, KEY, 1, vec![1, 2])]);
}

#[test]
fn who_has_one_is_told_by_turns_and_later_each_time() {
    let copies = [(KEY, 2, 3), (KEY, 3, 3)];
    let mut bench = Bench::with(HomeLimits::default(), map(1, &[1, 2, 3, 4], &[]), &copies);
    let mut pauses = Vec::new();
    let mut owners = Vec::new();
    let mut since = bench.now;
    while pauses.len() < 9 {
        let told = bench.told_after(Duration::from_millis(500));
        if let Some((owner, ..)) = told.first() {
            owners.push(*owner);
            pauses.push(bench.now.since(since).as_secs());
            since = bench.now;
        }
    }
    assert_eq!(owners, [2, 3, 2, 3, 2, 3, 2, 3, 2]);
    let wait = REPAIR_WAIT.as_secs();
    let expected = [0, 1, 2, 4, 8, 8, 8, 8, 8].map(|pause| pause + wait);
    assert_eq!(pauses, expected);
}

#[test]
fn who_is_cut_off_has_nothing_made() {
    let mut bench = Bench::with(
        HomeLimits::default(),
        map(1, &[1, 2, 3], &[]),
        &[(KEY, 2, 2)],
    );
    bench.home.on_fence(Fence::default());
    assert_eq!(bench.told_after(AFTER * 2), []);
    let mut fence = Fence::default();
    fence.renew(bench.now, Duration::from_secs(1000));
    bench.home.on_fence(fence);
    assert_eq!(bench.told_after(AFTER).len(), 1);
}

/// From both sides: as many as fit, and one more, which is found again.
#[test]
fn what_is_under_way_and_what_is_remembered_are_bounded_and_nothing_is_forgotten() {
    let limits = HomeLimits {
        repairs_max: REPAIRS_UNDER_WAY_MAX + 8,
        ..HomeLimits::default()
    };
    let count = REPAIRS_UNDER_WAY_MAX + 9;
    let keys = (1..=count).map(|number| Fingerprint(number as u128));
    let copies: Vec<_> = keys.map(|key| (key, 2, 2)).collect();
    let mut bench = Bench::with(limits, map(1, &[1, 2, 3], &[]), &copies);
    assert_eq!(bench.home.stats().scarce, limits.repairs_max as u64);
    let first = bench.told_after(AFTER);
    assert_eq!(first.len(), REPAIRS_UNDER_WAY_MAX);
    assert_eq!(bench.told_after(Duration::from_millis(10)), []);
    let mut all: Vec<Fingerprint> = first.iter().map(|told| told.1).collect();
    for key in all.clone() {
        bench.replicate(key, 3, 2);
    }
    while bench.home.stats().scarce > 0 {
        for (_, key, ..) in bench.told_after(Duration::from_millis(10)) {
            all.push(key);
            bench.replicate(key, 3, 2);
        }
    }
    all.sort_unstable();
    let expected = (1..=count).map(|number| Fingerprint(number as u128));
    assert!(all.into_iter().eq(expected), "each once");
}
