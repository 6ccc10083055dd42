//! Homes of copies are found in turns of bounded work, and no home is told less for that.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use lunette_cluster_proto::fence::{Fence, NamespaceKind};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{AskerId, Away, CopyPage, CopyPlace, ToOwner};
use lunette_kvstore_proto::owner::{
    Owner, OwnerAction, OwnerLimits, Read, Sought, WriteAnswer, WriteAsk,
};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::retention::Retention;
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_runtime_core::time::Time;

const PER_TURN: usize = 10;
const NAMESPACE: NamespaceKind = NamespaceKind::Strict;
const OWNER: u64 = 9;

fn seat(node: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation: 1,
        core: CoreIndex(0),
    }
}

/// A map in which these nodes are homes, and the owner is none.
fn map(epoch: u64, homes: &[u64]) -> ClusterMap {
    let member = |id: u64, home_weight| MapMember {
        home_weight,
        ..MapMember::new(NodeId(id), 1, ([192, 0, 2, 1], 7000).into())
    };
    let homes = homes.iter().map(|&id| member(id, 1));
    let members = homes.chain([member(OWNER, 0)]).collect();
    ClusterMap::new(Epoch(epoch), 0, members).expect("a map")
}

fn key(n: u64) -> Fingerprint {
    Fingerprint(u128::from(n) << 64 | 7)
}

struct Bench {
    owner: Owner,
    out: Vec<OwnerAction>,
    now: Time,
}

impl Bench {
    /// An owner whose copies have this home, under map 1.
    fn new(copies: u64, home: u64) -> Self {
        let limits = OwnerLimits {
            relisted_per_turn_max: PER_TURN,
            ..OwnerLimits::default()
        };
        let mut owner = Owner::new(seat(OWNER), limits);
        let mut fence = Fence::default();
        fence.renew(Time::ZERO, Duration::from_secs(100));
        owner.on_fence(fence);
        let mut bench = Self {
            owner,
            out: Vec::new(),
            now: Time::ZERO,
        };
        bench.on_map(&map(1, &[home]));
        (0..copies).for_each(|n| bench.publish(n, home));
        assert!(bench.owner.is_idle());
        bench
    }

    fn publish(&mut self, n: u64, home: u64) {
        let ask = WriteAsk {
            key: key(n),
            kind: WriteKind::Put,
            form: Form::Whole,
            namespace: NAMESPACE,
            wanted: 1,
            wait_ms: 1000,
            retention: Retention::default(),
        };
        let (request, out) = (RequestId(n + 1), &mut self.out);
        let op = self.owner.write(self.now, AskerId(4), request, ask, out);
        let (op, version) = (op.expect("it may"), version(n));
        self.owner.whole(self.now, op, 5, 6, &mut self.out);
        let (key, generation) = (key(n), Generation(0));
        let granted = ToOwner::Granted {
            op,
            key,
            version,
            generation,
        };
        let recorded = ToOwner::Recorded {
            op,
            key,
            version,
            is_cut_off: false,
            order: 1,
        };
        for item in [granted, recorded] {
            self.hear(1, home, item);
        }
    }

    fn hear(&mut self, epoch: u64, home: u64, item: ToOwner) {
        let (owner, out) = (&mut self.owner, &mut self.out);
        owner.on_home(self.now, seat(home), Epoch(epoch), item, out);
    }

    fn on_map(&mut self, map: &ClusterMap) {
        self.owner.on_map(self.now, map, &mut self.out);
    }

    fn ask(&mut self, epoch: u64, home: u64) {
        let (is_full, after) = (false, None);
        self.hear(epoch, home, ToOwner::CopiesWanted { is_full, after });
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(5);
        self.owner.on_tick(self.now, &mut self.out);
    }

    /// The pages that homes were sent.
    fn pages(&mut self) -> Vec<(Seat, CopyPage)> {
        let out = core::mem::take(&mut self.out);
        let pages = out.into_iter().filter_map(|action| match action {
            OwnerAction::Page(home, page) => Some((home, page)),
            _ => None,
        });
        pages.collect()
    }

    /// The one page that there is now, for this home.
    fn page_for(&mut self, home: u64) -> BTreeSet<Fingerprint> {
        let [(to, page)] = <[_; 1]>::try_from(self.pages()).expect("one page");
        assert!(to == seat(home) && page.is_last, "{page:?}");
        page.copies.iter().map(|(key, _)| *key).collect()
    }
}

fn version(n: u64) -> Version {
    Version {
        epoch: Epoch(1),
        sequence: n + 1,
    }
}

fn keys(count: u64) -> BTreeSet<Fingerprint> {
    (0..count).map(key).collect()
}

#[test]
fn what_one_turn_has_room_for_is_told_at_once() {
    for copies in [0, 1, 9] {
        let mut bench = Bench::new(copies, 1);
        bench.on_map(&map(2, &[3]));
        bench.ask(2, 3);
        assert_eq!(bench.page_for(3), keys(copies));
        assert!(bench.owner.is_idle());
    }
}

#[test]
fn a_home_is_answered_when_the_homes_of_all_copies_have_been_found() {
    for (copies, turns) in [(10, 1), (11, 1), (19, 1), (20, 2), (25, 2), (31, 3)] {
        let mut bench = Bench::new(copies, 1);
        bench.on_map(&map(2, &[3]));
        for _ in 0..turns {
            bench.ask(2, 3);
            assert_eq!(bench.pages(), [], "{copies}: not before all is known");
            assert!(!bench.owner.is_idle(), "{copies}: it is to be let go on");
            bench.tick();
        }
        assert_eq!(bench.page_for(3), keys(copies), "unasked");
        assert!(bench.owner.is_idle());
        bench.tick();
        assert_eq!(bench.pages(), [], "once");
    }
}

#[test]
fn a_map_that_changes_in_between_leaves_nothing_out() {
    let mut bench = Bench::new(35, 1);
    bench.on_map(&map(2, &[3]));
    bench.tick();
    // Some have been the former home's all the time, as far as this owner has found out.
    bench.on_map(&map(3, &[1]));
    bench.ask(2, 3);
    bench.ask(3, 1);
    while !bench.owner.is_idle() {
        bench.tick();
    }
    assert_eq!(bench.page_for(1), keys(35), "the other has asked too late");
}

#[test]
fn where_nobody_is_a_home_the_next_one_is_waited_for() {
    let mut bench = Bench::new(25, 1);
    bench.on_map(&map(2, &[]));
    assert!(bench.owner.is_idle(), "there is nothing to find");
    bench.tick();
    bench.on_map(&map(3, &[1]));
    bench.ask(3, 1);
    while !bench.owner.is_idle() {
        bench.tick();
    }
    assert_eq!(bench.page_for(1), keys(25));
}

#[test]
fn what_goes_meanwhile_is_not_told() {
    let mut bench = Bench::new(25, 1);
    bench.on_map(&map(2, &[3]));
    bench.ask(2, 3);
    for (order, n) in [(1, 0), (2, 24)] {
        let drop = ToOwner::Drop {
            key: key(n),
            version: version(n),
            order,
            was_recorded: true,
        };
        bench.hear(2, 3, drop);
    }
    while !bench.owner.is_idle() {
        bench.tick();
    }
    let mut expected = keys(25);
    expected.remove(&key(0));
    expected.remove(&key(24));
    assert_eq!(bench.page_for(3), expected);
    let place = CopyPlace {
        key: key(0),
        version: version(0),
    };
    assert!(bench.owner.copy(place).is_none());
}

fn info(n: u64) -> CopyInfo {
    CopyInfo {
        version: version(n),
        kind: WriteKind::Put,
        form: Form::Whole,
        generation: Generation(0),
        wanted: 1,
        len_bytes: 5,
        crc32c: 6,
    }
}

#[test]
fn what_a_former_life_left_is_told_like_that_of_one_who_was_away() {
    let limits = OwnerLimits {
        relisted_per_turn_max: PER_TURN,
        copies_max: 25,
        ..OwnerLimits::default()
    };
    let mut bench = Bench {
        owner: Owner::new(seat(OWNER), limits),
        ..Bench::new(0, 1)
    };
    let mut fence = Fence::default();
    fence.renew(Time::ZERO, Duration::from_secs(100));
    bench.owner.on_fence(fence);
    let copies = |of: core::ops::Range<u64>| of.map(|n| (key(n), info(n), NAMESPACE));
    bench.owner.restore(Epoch(4), copies(0..12));
    bench.owner.restore(Epoch(5), copies(10..30));
    assert_eq!(bench.owner.stats().copies, 25, "as many as it may have");
    bench.on_map(&map(6, &[3]));
    bench.ask(6, 3);
    bench.tick();
    bench.tick();
    let [(to, page)] = <[_; 1]>::try_from(bench.pages()).expect("one page");
    let away = Away {
        since: Epoch(4),
        back: Epoch(6),
    };
    assert_eq!((to, page.away, page.is_full), (seat(3), Some(away), true));
    let told = page.copies.iter().map(|(key, _)| *key);
    assert_eq!(told.collect::<BTreeSet<_>>(), keys(25));
    let read = |bench: &mut Bench, n| {
        bench
            .owner
            .read(bench.now, key(n), Sought::Latest(Epoch(6)), NAMESPACE)
    };
    assert_eq!(
        read(&mut bench, 7),
        Read::Unavailable,
        "it is not judged yet"
    );
    let drop = ToOwner::Drop {
        key: key(7),
        version: version(7),
        order: 1,
        was_recorded: false,
    };
    bench.hear(6, 3, drop);
    bench.hear(6, 3, ToOwner::Settled);
    assert_eq!(read(&mut bench, 8), Read::Unavailable, "not by all of them");
    bench.hear(6, OWNER, ToOwner::Settled);
    assert_eq!(read(&mut bench, 7), Read::Absent);
    assert!(matches!(read(&mut bench, 8), Read::Served { .. }));
    assert_eq!(bench.owner.away_since(), None);
}

/// Since when, and when it was back the last time, as far as it knows.
#[test]
fn it_tells_when_it_was_away() {
    let without = |epoch| {
        let members = map(epoch, &[3]).members().to_vec();
        let others = members.into_iter().filter(|it| it.id != NodeId(OWNER));
        ClusterMap::new(Epoch(epoch), 0, others.collect()).expect("a map")
    };
    let mut bench = Bench::new(1, 3);
    let mut told = |map: &ClusterMap| {
        bench.on_map(map);
        // Homes of its copies are found by then.
        bench.tick();
        bench.ask(map.epoch().0, 3);
        let page = bench.pages().pop();
        page.and_then(|(_, page)| page.away)
    };
    let away = |since, back| {
        Some(Away {
            since: Epoch(since),
            back: Epoch(back),
        })
    };
    assert_eq!(told(&map(2, &[3])), None);
    assert_eq!(told(&map(4, &[3])), away(2, 4), "of 3 it has not heard");
    assert_eq!(told(&map(5, &[3])), away(2, 4));
    told(&without(6));
    assert_eq!(told(&map(7, &[3])), away(2, 7));
    assert_eq!(told(&map(8, &[3])), away(2, 7));
}

/// It has missed maps that it was in: nothing that it has was removed meanwhile, since whoever was the home of that had to hear
/// from it first.
#[test]
fn who_has_missed_maps_was_not_away_if_it_was_in_them() {
    let since = |epoch, since| {
        let members = map(epoch, &[3]).members().to_vec();
        let members = members.into_iter().map(|member| MapMember {
            since: Epoch(since),
            ..member
        });
        ClusterMap::new(Epoch(epoch), 0, members.collect()).expect("a map")
    };
    for (told, is_away) in [(1, false), (2, false), (3, true), (4, true), (0, true)] {
        let mut bench = Bench::new(1, 3);
        bench.on_map(&since(2, told.min(2)));
        bench.on_map(&since(4, told));
        assert_eq!(bench.owner.away_since().is_some(), is_away, "since {told}");
        bench.tick();
        bench.ask(4, 3);
        let (_, page) = bench.pages().pop().expect("it tells its copies");
        assert_eq!(page.away.is_some(), is_away, "since {told}");
        assert!(page.is_full, "of what has moved meanwhile nobody knows");
    }
}

/// Where all members are to be emptied there is no home, and nobody who could have judged anything.
#[test]
fn who_was_away_speaks_of_nothing_under_a_map_without_homes() {
    let mut bench = Bench {
        owner: Owner::new(seat(OWNER), OwnerLimits::default()),
        ..Bench::new(0, 1)
    };
    let mut fence = Fence::default();
    fence.renew(Time::ZERO, Duration::from_secs(100));
    bench.owner.on_fence(fence);
    bench
        .owner
        .restore(Epoch(4), [(key(3), info(3), NAMESPACE)]);
    let latest = |bench: &mut Bench, epoch| {
        let sought = Sought::Latest(Epoch(epoch));
        bench.owner.read(bench.now, key(3), sought, NAMESPACE)
    };
    bench.on_map(&map(6, &[]));
    bench.hear(6, OWNER, ToOwner::Settled);
    assert_eq!(latest(&mut bench, 6), Read::Unavailable);
    bench.on_map(&map(7, &[3]));
    for node in [3, OWNER] {
        bench.hear(7, node, ToOwner::Settled);
    }
    assert!(matches!(latest(&mut bench, 7), Read::Served { .. }));
}

/// It has its lease before it has heard of the map that it is in, which others may have heard of already.
#[test]
fn who_was_in_no_map_yet_speaks_of_nothing_that_a_former_life_left() {
    for namespace in [NamespaceKind::Cache, NamespaceKind::Strict] {
        let mut owner = Owner::new(seat(OWNER), OwnerLimits::default());
        let mut fence = Fence::default();
        fence.renew(Time::ZERO, Duration::from_secs(100));
        owner.on_fence(fence);
        owner.restore(Epoch(4), [(key(3), info(3), namespace)]);
        for sought in [Sought::Latest(Epoch(0)), Sought::Version(version(3))] {
            let read = owner.read(Time::ZERO, key(3), sought, namespace);
            assert_eq!(read, Read::Unavailable, "{sought:?}");
        }
        let ask = WriteAsk {
            key: key(3),
            kind: WriteKind::Put,
            form: Form::Whole,
            namespace,
            wanted: 1,
            wait_ms: 1000,
            retention: Retention::default(),
        };
        let mut out = Vec::new();
        let (asker, request) = (AskerId(1), RequestId(1));
        let begun = owner.write(Time::ZERO, asker, request, ask, &mut out);
        let answer = OwnerAction::Written(asker, request, WriteAnswer::Unavailable);
        assert_eq!((begun, out), (None, vec![answer]));
    }
}
