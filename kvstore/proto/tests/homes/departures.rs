//! What waits for those who have left, and may be serving still: until they say that they do not, or for as long as it takes.

use std::time::Duration;

use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::home::{DEPARTED_WAIT, HomeAction};
use lunette_kvstore_proto::message::directory::{ToPeer, TombstonePage};
use lunette_kvstore_proto::placement::{Seat, seats};
use lunette_runtime_core::ids::{CoreIndex, NodeId};

use crate::bench::{Bench, KEPT, LAST, at, info, seat};

/// So many maps after the first, of nodes with so many cores; the home of all keys is node 2, and where that has left node 1.
fn map(later: u64, nodes: &[(u64, u16)]) -> ClusterMap {
    let members = nodes.iter().map(|&(id, cores)| MapMember {
        home_weight: [1, 1 << 14, 1 << 28, 1][usize::try_from(id).expect("few")],
        cores,
        ..MapMember::new(NodeId(id), 1, ([192, 0, 2, 1], 7000).into())
    });
    ClusterMap::new(Epoch(LAST.0 + later), 0, members.collect()).expect("a map")
}

fn of(node: u64, core: u16) -> Seat {
    Seat {
        node: NodeId(node),
        core: CoreIndex(core),
        ..seat(1)
    }
}

/// All report, who know all; one of them has two copies.
fn go_on(bench: &mut Bench, map: &ClusterMap, holder: Option<Seat>, is_quiet: bool) {
    bench.begin(map);
    for from in seats(map) {
        let page = TombstonePage {
            is_informed: from != seat(1),
            is_quiet,
            ..TombstonePage::default()
        };
        let holds = holder == Some(from);
        bench.report(from, holds.then_some(info().version.epoch), page);
    }
    assert!(bench.home.is_complete());
    let now = bench.now;
    bench.home.on_tick(now, &mut bench.out);
}

/// Who says that it serves no more, when a node of two cores leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Nobody,
    One,
    Other,
    Both,
}

impl Says {
    fn seats(self) -> Vec<Seat> {
        match self {
            Self::Nobody => vec![],
            Self::One => vec![of(2, 0)],
            Self::Other => vec![of(2, 0), of(3, 0), of(9, 1)],
            Self::Both => vec![of(2, 0), of(2, 1)],
        }
    }
}

/// What a former home of a key, or a holder, may be telling others yet holds back what removes it.
#[test]
fn a_removal_waits_for_who_has_left_unless_all_its_cores_say_that_they_serve_no_more() {
    for says in [Says::Nobody, Says::One, Says::Other, Says::Both] {
        for (is_before, is_holder) in [(true, false), (true, true), (false, false), (false, true)] {
            let story = format!("{says:?} {is_before} {is_holder}");
            let mut bench = Bench::new(1);
            let holder = is_holder.then_some(of(2, 1));
            go_on(&mut bench, &map(0, &[(1, 1), (2, 2), (3, 1)]), holder, true);
            let hear = |bench: &mut Bench| {
                for from in says.seats() {
                    bench.hear(from, ToPeer::Left);
                }
            };
            if is_before {
                hear(&mut bench);
            }
            bench.now = at(1000);
            go_on(&mut bench, &map(1, &[(1, 1), (3, 1)]), None, true);
            let is_over = is_before && says == Says::Both;
            assert_eq!(bench.remove(KEPT), is_over, "{story}");
            if !is_before {
                hear(&mut bench);
                assert_eq!(bench.has_removed(), says == Says::Both, "{story}");
            }
            let wait = 1000 + u64::try_from(DEPARTED_WAIT.as_millis()).expect("short");
            bench.tick_at(wait - 1);
            assert_eq!(bench.has_removed(), says == Says::Both, "{story}");
            bench.tick_at(wait);
            assert!(bench.has_removed(), "{story}");
        }
    }
}

/// One that has left and says so has not left for another.
#[test]
fn each_who_leaves_is_waited_for() {
    let mut bench = Bench::new(1);
    go_on(&mut bench, &map(0, &[(1, 1), (2, 1), (3, 1)]), None, true);
    bench.hear(of(2, 0), ToPeer::Left);
    go_on(&mut bench, &map(1, &[(1, 1)]), None, true);
    assert!(!bench.remove(KEPT));
    bench.hear(of(2, 0), ToPeer::Left);
    assert!(!bench.has_removed());
    bench.hear(of(3, 0), ToPeer::Left);
    assert!(bench.has_removed());
}

/// A home that begins knows nothing of who was there before, but by others.
#[test]
fn a_home_that_begins_is_told_whether_anybody_who_left_may_be_serving() {
    for is_quiet in [true, false] {
        let mut bench = Bench::new(1);
        go_on(&mut bench, &map(1, &[(1, 1), (3, 1)]), None, is_quiet);
        assert_eq!(bench.remove(KEPT), is_quiet);
        let early = bench.now + (DEPARTED_WAIT - Duration::from_millis(1));
        let after = bench.now + DEPARTED_WAIT;
        bench.home.on_tick(early, &mut bench.out);
        assert_eq!(bench.has_removed(), is_quiet);
        bench.home.on_tick(after, &mut bench.out);
        assert!(bench.has_removed());
    }
}

/// And says what it knows of that itself, as soon as it is so.
#[test]
fn a_home_tells_whether_anybody_who_left_may_be_serving() {
    let tells = |bench: &mut Bench| {
        bench.out.clear();
        bench.hear(of(3, 0), ToPeer::TombstonesWanted { after: None });
        bench.out.iter().any(|action| {
            matches!(action, HomeAction::ToPeer(_, ToPeer::Tombstones(page)) if page.is_quiet)
        })
    };
    let mut bench = Bench::new(1);
    go_on(&mut bench, &map(0, &[(1, 1), (2, 1), (3, 1)]), None, false);
    assert!(!tells(&mut bench), "it does not know yet");
    bench.tick_at(600);
    assert!(tells(&mut bench));
    go_on(&mut bench, &map(1, &[(1, 1), (3, 1)]), None, false);
    assert!(!tells(&mut bench));
    bench.hear(of(2, 0), ToPeer::Left);
    assert!(tells(&mut bench));
}

/// It is the last word of a home, to all others but those of its own node.
#[test]
fn who_leaves_says_so() {
    let mut bench = Bench::new(1);
    go_on(&mut bench, &map(0, &[(1, 2), (2, 2), (3, 1)]), None, true);
    bench.out.clear();
    let now = bench.now;
    bench.home.leave(now, &mut bench.out);
    let told = [of(2, 0), of(2, 1), of(3, 0)];
    let told = told.map(|seat| HomeAction::ToPeer(seat, ToPeer::Left));
    assert_eq!(bench.out, told);
}
