//! What a home knew of removals when it left, told to its next life: when it is believed, and what follows.

use crate::bench::{Bench, KEPT, LAST, REMOVED, at, info, known, seat};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::home::HomeMemory;
use lunette_kvstore_proto::message::directory::{Recalled, ToPeer, TombstonePage};
use lunette_kvstore_proto::placement::{Seat, seats};
use lunette_kvstore_proto::version::{Generation, Tombstone};
use lunette_runtime_core::ids::{CoreIndex, NodeId};

/// Nodes with so many cores each, in a life of that number. The first alone is a home of keys that are asked for here:
/// the others weigh so little.
fn map(epoch: Epoch, incarnation: u64, cores: &[u16]) -> ClusterMap {
    let members = cores.iter().zip(1..).map(|(&cores, id)| MapMember {
        home_weight: if id == 1 { 1 << 20 } else { 1 },
        cores,
        ..MapMember::new(NodeId(id), incarnation, ([192, 0, 2, 1], 7000).into())
    });
    ClusterMap::new(epoch, 0, members.collect()).expect("a map")
}

impl Bench {
    /// A map, under which each seat reports what it recalls, and the first one two copies, if it was away.
    fn go_on(&mut self, map: &ClusterMap, recalled: &[(Seat, Recalled)], is_back: bool) {
        self.begin(map);
        for from in seats(map) {
            let its = recalled.iter().find(|(seat, _)| *seat == from);
            let page = TombstonePage {
                recalled: its.map(|(_, recalled)| recalled.clone()),
                ..TombstonePage::default()
            };
            let is_back = is_back && from == self.home.seat();
            self.report(from, is_back.then_some(info().version.epoch), page);
        }
        assert!(self.home.is_complete());
    }
}

/// What the first home knew when it left under [`LAST`], of so many nodes, having removed a key.
fn memory(cores: &[u16]) -> HomeMemory {
    let mut bench = Bench::new(1);
    bench.go_on(&map(LAST, 1, cores), &[], false);
    bench.tick_at(60_000);
    assert!(bench.remove(REMOVED));
    assert_eq!(bench.home.memory(), None, "it has not left");
    bench.home.leave(bench.now, &mut bench.out);
    bench.home.memory().expect("it was complete")
}

#[test]
fn a_home_tells_when_it_knew_all_and_of_how_many() {
    let memory = memory(&[1, 2, 1]);
    let known = Recalled {
        horizon: Epoch(LAST.0 - 1),
        ..known(3)
    };
    assert_eq!(memory.known, known);
    let keys: Vec<_> = memory.tombstones.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [REMOVED]);
}

/// What it leaves is what it had, though that may not be all that there was to know; and without a map what it was told.
#[test]
fn a_home_that_does_not_know_all_says_so() {
    let memory = memory(&[1]);
    let mut bench = Bench::new(2);
    bench.home.recall(bench.now, memory.clone());
    let next = map(Epoch(LAST.0 + 1), 2, &[1, 1]);
    bench.home.on_map(bench.now, &next, &mut bench.out);
    assert!(!bench.home.is_complete());
    bench.home.leave(bench.now, &mut bench.out);
    let left = HomeMemory {
        known: Recalled {
            incarnation: 2,
            epoch: next.epoch(),
            homes: 2,
            is_whole: false,
            ..memory.known.clone()
        },
        ..memory.clone()
    };
    assert_eq!(bench.home.memory(), Some(left));
    let mut without = Bench::new(3);
    without.home.recall(without.now, memory.clone());
    without.home.leave(without.now, &mut without.out);
    assert_eq!(without.home.memory(), Some(memory));
    let mut other = Bench::new(1);
    other.home.leave(other.now, &mut other.out);
    assert_eq!(other.home.memory(), None);
}

/// Who has left is no home any more, whatever comes.
#[test]
fn a_home_that_has_left_heeds_no_map() {
    let mut bench = Bench::new(1);
    bench.go_on(&map(LAST, 1, &[1]), &[], false);
    bench.home.leave(bench.now, &mut bench.out);
    let left = bench.home.memory();
    let next = map(Epoch(LAST.0 + 1), 1, &[1]);
    bench.home.on_map(bench.now, &next, &mut bench.out);
    bench.map = next;
    assert!(!bench.home.is_complete() && !bench.remove(KEPT));
    assert_eq!(bench.home.memory(), left);
}

/// Of a member that was alone: what it had is there again, and what was removed is not.
#[test]
fn who_was_alone_begins_with_what_it_had() {
    for (recalls, between) in [(true, 0), (false, 0), (true, 1)] {
        let mut bench = Bench::new(2);
        if recalls {
            let memory = HomeMemory {
                known: Recalled {
                    horizon: Epoch(0),
                    ..memory(&[1]).known
                },
                ..memory(&[1])
            };
            bench.home.recall(bench.now, memory);
        }
        let epoch = Epoch(LAST.0 + 1 + between);
        bench.go_on(&map(epoch, 2, &[1]), &[], true);
        bench.tick_at(100);
        let is_believed = recalls && between == 0;
        assert_eq!(bench.is_shown(KEPT), is_believed, "{recalls} {between}");
        assert!(!bench.is_shown(REMOVED) && bench.is_dropped(REMOVED));
        assert_eq!(bench.home.stats().cold, if is_believed { 0 } else { 2 });
    }
}

/// All of them but one of several, with all their cores, under the same last map, which was directly before.
#[test]
fn it_is_believed_if_nobody_can_have_removed_anything_since() {
    let earlier = |known: Recalled| Recalled {
        epoch: Epoch(LAST.0 - 1),
        ..known
    };
    let beyond = |known: Recalled| Recalled {
        horizon: info().version.epoch,
        ..known
    };
    let two_cores = |known: Recalled| Recalled { cores: 2, ..known };
    let unsure = |known: Recalled| Recalled {
        is_whole: false,
        ..known
    };
    let two = || known(2);
    let three = || known(3);
    for (homes, others, is_believed) in [
        (three(), &[(2, 0, three()), (3, 0, three())][..], true),
        (three(), &[(2, 0, three())][..], true),
        (three(), &[(3, 0, three())][..], true),
        (three(), &[][..], false),
        (two(), &[][..], true),
        (three(), &[(2, 0, earlier(three()))][..], false),
        (earlier(three()), &[(2, 0, three())][..], false),
        (three(), &[(3, 0, two_cores(three()))][..], false),
        (
            three(),
            &[(3, 0, two_cores(three())), (3, 1, two_cores(three()))][..],
            true,
        ),
        (unsure(three()), &[(2, 0, three())][..], false),
        (
            three(),
            &[(2, 0, beyond(three())), (3, 0, three())][..],
            false,
        ),
    ] {
        let mut bench = Bench::new(2);
        let mut memory = memory(&[1]);
        memory.known = homes.clone();
        bench.home.recall(bench.now, memory);
        let others = others.iter().map(|(node, core, known)| {
            let seat = Seat {
                node: NodeId(*node),
                incarnation: 2,
                core: CoreIndex(*core),
            };
            (seat, known.clone())
        });
        let others: Vec<_> = others.collect();
        bench.go_on(&map(Epoch(LAST.0 + 1), 2, &[1, 1, 2]), &others, true);
        bench.tick_at(100);
        assert_eq!(bench.is_shown(KEPT), is_believed, "{homes:?} {others:?}");
        assert!(!bench.is_shown(REMOVED) && bench.is_dropped(REMOVED));
    }
}

/// What is kept for the case of a crash is forgotten before anything that is removed counts.
#[test]
fn what_is_kept_is_outdated_by_the_first_removal_which_waits() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.home.keep(bench.now), None, "it knows nothing");
    bench.go_on(&map(LAST, 1, &[1, 1]), &[], false);
    bench.tick_at(60_000);
    let kept = bench.home.keep(bench.now).expect("all is known");
    assert_eq!((kept.known.epoch, kept.tombstones.len()), (LAST, 0));
    assert_eq!(bench.home.keep(bench.now), None, "it is kept");
    assert!(!bench.home.is_outdated());
    assert!(!bench.remove(REMOVED) && bench.home.is_outdated());
    bench.tick_at(60_100);
    assert!(!bench.has_removed());
    bench.home.has_forgotten(bench.now, &mut bench.out);
    assert!(bench.has_removed() && !bench.home.is_outdated());
    // The next ones wait for nothing, and it is kept again when there are none for a while.
    bench.now = at(60_200);
    assert!(bench.remove(KEPT));
    assert_eq!(bench.home.keep(at(60_900)), None);
    let kept = bench.home.keep(at(61_300)).expect("nothing is removed");
    let keys: Vec<_> = kept.tombstones.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [REMOVED, KEPT]);
}

/// Neither is a tombstone kept for another home before that, nor does anything wait where the map is another one.
#[test]
fn a_tombstone_of_another_home_outdates_what_is_kept_until_the_next_map() {
    let mut bench = Bench::new(1);
    bench.go_on(&map(LAST, 1, &[1, 1]), &[], false);
    bench.tick_at(60_000);
    assert!(bench.home.keep(bench.now).is_some());
    let tombstone = Tombstone {
        version: info().version,
        generation: Generation(0),
    };
    let other = Seat {
        node: NodeId(2),
        ..seat(1)
    };
    let buried = |bench: &mut Bench| {
        bench.out.clear();
        let (now, key) = (bench.now, REMOVED);
        let bury = ToPeer::Bury { key, tombstone };
        bench
            .home
            .on_peer(now, other, bench.map.epoch(), bury, &mut bench.out);
        !bench.out.is_empty()
    };
    assert!(!buried(&mut bench) && bench.home.is_outdated());
    assert!(!buried(&mut bench), "also the second time");
    bench.go_on(&map(Epoch(LAST.0 + 1), 1, &[1, 1]), &[], false);
    assert!(!bench.home.is_outdated() && buried(&mut bench));
    // It is known by now: nothing new.
    assert!(bench.home.keep(at(62_000)).is_some());
    assert!(buried(&mut bench) && !bench.home.is_outdated());
}
