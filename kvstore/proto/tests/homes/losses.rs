//! Removals that those knew who have left: what a home believes until they are back, and from when on.
//!
//! The home of node 1 judges two copies of node 9, which was away since [`LAST`]'s predecessor; it drops them if what was
//! removed since may be lost.

use crate::bench::{Bench, KEPT, LAST, REMOVED, known, seat};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::home::{HomeAction, HomeLimits, HomeMemory, RESEND};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{
    GONE_MAX, Gone, Losses, PAST_MAX, Recalled, ToPeer, TombstonePage,
};
use lunette_kvstore_proto::placement::{Seat, seats};
use lunette_kvstore_proto::version::{Generation, Tombstone, Version};
use lunette_runtime_core::ids::{CoreIndex, NodeId};

/// Who was away, and since when.
const AWAY: u64 = 9;
const SINCE: Epoch = Epoch(LAST.0 - 1);

fn is_away(seat: Seat) -> bool {
    seat.node == NodeId(AWAY)
}

/// So many maps after the last one of those who leave, of these lives of nodes, with one core each; node 1 is the home of all.
fn map(later: u64, lives: &[(u64, u64)]) -> ClusterMap {
    let members = lives.iter().map(|&(id, incarnation)| MapMember {
        home_weight: if id == 1 { 1 << 20 } else { 1 },
        ..MapMember::new(NodeId(id), incarnation, ([192, 0, 2, 1], 7000).into())
    });
    ClusterMap::new(Epoch(LAST.0 + later), 0, members.collect()).expect("a map")
}

fn of((node, incarnation): (u64, u64)) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation,
        core: CoreIndex(0),
    }
}

fn gone(node: u64, later: u64) -> Gone {
    Gone {
        life: Some((NodeId(node), 1)),
        last: Epoch(LAST.0 + later),
    }
}

/// A map under which each seat reports what it recalls, and who was away its copies. Before the first of them nothing was lost.
fn go_on(bench: &mut Bench, map: &ClusterMap, recalled: &[((u64, u64), Recalled)]) {
    bench.begin(map);
    for from in seats(map) {
        let its = recalled.iter().find(|(life, _)| of(*life) == from);
        let page = TombstonePage {
            is_informed: map.epoch() == LAST && from != seat(1),
            recalled: its.map(|(_, recalled)| recalled.clone()),
            ..TombstonePage::default()
        };
        bench.report(from, is_away(from).then_some(SINCE), page);
    }
    assert!(bench.home.is_complete());
    bench.home.on_tick(bench.now, &mut bench.out);
}

/// These homes say that they are complete.
fn are_complete(bench: &mut Bench, lives: &[(u64, u64)]) {
    for &life in lives {
        bench.hear(of(life), ToPeer::Complete);
    }
}

/// Of whose knowledge it says that it may be missing.
fn told(bench: &mut Bench) -> Losses {
    bench.out.clear();
    let asker = seats(&bench.map).last().expect("one");
    bench.hear(asker, ToPeer::TombstonesWanted { after: None });
    let pages = bench.out.iter().find_map(|action| match action {
        HomeAction::ToPeer(_, ToPeer::Tombstones(page)) => Some(page.losses.clone()),
        _ => None,
    });
    pages.expect("a page")
}

const fn life(node: u64) -> (u64, u64) {
    (node, 1)
}

/// Nodes in their first lives.
fn first(nodes: &[u64]) -> Vec<(u64, u64)> {
    nodes.iter().copied().map(life).collect()
}

/// Of five, these leave together, those come back with what they recall, and it is believed or not.
type Story = (&'static [u64], Vec<((u64, u64), Recalled)>, bool);

fn stories() -> Vec<Story> {
    let it = || known(5);
    let again = |node| ((node, 2), it());
    let with = |change: fn(&mut Recalled)| {
        let mut recalled = it();
        change(&mut recalled);
        vec![((2, 2), recalled)]
    };
    vec![
        (&[2], vec![], true),
        (&[2, 3], vec![], false),
        (&[2, 3], vec![again(2)], true),
        (&[2, 3], vec![again(3)], true),
        (&[2, 3, 4], vec![again(2)], false),
        (&[2, 3, 4], vec![again(2), again(4)], true),
        // Another life, or what was kept under another map than the last, or one core of two.
        (&[2, 3], with(|it| it.incarnation = 3), false),
        (&[2, 3], with(|it| it.is_final = false), true),
        (
            &[2, 3],
            with(|it| (it.is_final, it.epoch) = (false, SINCE)),
            false,
        ),
        (&[2, 3], with(|it| it.cores = 2), false),
        // Whether it knew all that there was to know, and when it heard of a map last, are other questions.
        (
            &[2, 3],
            with(|it| (it.is_whole, it.epoch) = (false, SINCE)),
            true,
        ),
        // It may have forgotten what matters here.
        (&[2, 3], with(|it| it.horizon = SINCE), false),
        // Who was cut off is back in the same life.
        (
            &[2, 3],
            vec![(
                life(3),
                Recalled {
                    incarnation: 7,
                    ..it()
                },
            )],
            true,
        ),
    ]
}

#[test]
fn what_left_together_is_lost_until_all_but_one_are_back() {
    for (left, back, is_believed) in stories() {
        let mut bench = Bench::new(1);
        let mut there = first(&[1, 2, 3, 4, 5]);
        go_on(&mut bench, &map(0, &there), &[]);
        there.retain(|(node, _)| !left.contains(node));
        go_on(&mut bench, &map(1, &there), &[]);
        there.extend(back.iter().map(|(life, _)| *life));
        there.push(life(AWAY));
        go_on(&mut bench, &map(2, &there), &back);
        bench.tick_at(1000);
        assert_eq!(bench.is_shown(KEPT), is_believed, "{left:?} {back:?}");
        assert_ne!(bench.is_dropped(KEPT), is_believed, "{left:?} {back:?}");
    }
}

/// One after the other: what the first one knew has to be at two others before the second one leaves. A home that is complete
/// itself does not know that, and those who have begun meanwhile may not be.
#[test]
fn who_leaves_later_is_of_the_same_group_until_all_are_complete() {
    for (complete, is_believed) in [(&[3, 4, 5][..], true), (&[3, 4], false), (&[], false)] {
        let mut bench = Bench::new(1);
        go_on(&mut bench, &map(0, &first(&[1, 2, 3])), &[]);
        go_on(&mut bench, &map(1, &first(&[1, 3, 4, 5])), &[]);
        are_complete(&mut bench, &first(complete));
        go_on(&mut bench, &map(2, &first(&[1, 4, 5, AWAY])), &[]);
        bench.tick_at(1000);
        assert_eq!(bench.is_shown(KEPT), is_believed, "{complete:?}");
    }
}

/// Up to the last map in which two of a group were.
#[test]
fn what_was_removed_while_only_one_of_them_was_there_others_know() {
    for (later, is_believed) in [(1, false), (2, true)] {
        let mut bench = Bench::new(1);
        let maps = [&[1, 2, 3, 4][..], &[1, 3, 4], &[1, 3, 4]];
        for (at, nodes) in maps.into_iter().enumerate().take(later + 1) {
            go_on(&mut bench, &map(at as u64, &first(nodes)), &[]);
        }
        // It was away since the first of these maps but one, or since the second.
        let since = Epoch(LAST.0 + later as u64 - 1);
        let next = map(later as u64 + 1, &first(&[1, 4, AWAY]));
        bench.begin(&next);
        for from in seats(&next) {
            let away = is_away(from).then_some(since);
            bench.report(from, away, TombstonePage::default());
        }
        bench.tick_at(1000);
        assert_eq!(bench.is_shown(KEPT), is_believed, "{later}");
    }
}

/// What came back is over when all know it; until then it is told to others, and so is what is still missing.
#[test]
fn a_group_is_over_when_all_are_complete_and_it_is_back() {
    let mut bench = Bench::new(1);
    go_on(&mut bench, &map(0, &first(&[1, 2, 3, 4])), &[]);
    assert_eq!(told(&mut bench), Losses::default());
    go_on(&mut bench, &map(1, &first(&[1, 4])), &[]);
    let group = vec![gone(2, 0), gone(3, 0)];
    let (open, past) = (group.clone(), vec![]);
    assert_eq!(told(&mut bench), Losses { open, past });
    are_complete(&mut bench, &first(&[4]));
    let (open, past) = (vec![], vec![group.clone()]);
    let missing = Losses { open, past };
    assert_eq!(told(&mut bench), missing);
    let back = ((3, 2), known(4));
    let lives = [life(1), life(4), back.0];
    go_on(&mut bench, &map(2, &lives), core::slice::from_ref(&back));
    are_complete(&mut bench, &first(&[4]));
    assert_eq!(told(&mut bench), missing, "one is not complete");
    are_complete(&mut bench, &[back.0]);
    assert_eq!(told(&mut bench), Losses::default());
    // Who comes back and leaves before all are complete has told nobody for sure.
    let mut bench = Bench::new(1);
    go_on(&mut bench, &map(0, &first(&[1, 2, 3, 4])), &[]);
    go_on(&mut bench, &map(1, &first(&[1, 4])), &[]);
    go_on(&mut bench, &map(2, &lives), &[back]);
    go_on(&mut bench, &map(3, &first(&[1, 4, AWAY])), &[]);
    bench.tick_at(1000);
    assert!(bench.is_dropped(KEPT) && bench.is_dropped(REMOVED));
}

/// Homes are asked until they say so, as long as there is anything to know, and say so themselves.
#[test]
fn homes_ask_each_other_whether_they_are_complete() {
    let asked = |bench: &mut Bench| -> Vec<Seat> {
        let now = bench.now;
        bench.out.clear();
        bench.home.on_tick(now, &mut bench.out);
        let asked = bench.out.iter().filter_map(|action| match action {
            HomeAction::ToPeer(seat, ToPeer::CompleteWanted) => Some(*seat),
            _ => None,
        });
        asked.collect()
    };
    let mut bench = Bench::new(1);
    go_on(&mut bench, &map(0, &first(&[1, 2, 3, 4])), &[]);
    assert_eq!(asked(&mut bench), [], "nobody has left");
    let next = map(1, &first(&[1, 3, 4]));
    bench.begin(&next);
    bench.hear(of(life(3)), ToPeer::CompleteWanted);
    let says_so = |bench: &Bench| {
        let complete = HomeAction::ToPeer(of(life(3)), ToPeer::Complete);
        bench.out.contains(&complete)
    };
    assert!(!says_so(&bench));
    for from in seats(&next) {
        bench.report(from, None, TombstonePage::default());
    }
    assert_eq!(asked(&mut bench), [of(life(3)), of(life(4))]);
    are_complete(&mut bench, &first(&[4]));
    assert_eq!(asked(&mut bench), [], "it was asked just now");
    bench.now = bench.now + RESEND;
    assert_eq!(asked(&mut bench), [of(life(3))]);
    bench.hear(of(life(3)), ToPeer::CompleteWanted);
    assert!(says_so(&bench));
    are_complete(&mut bench, &first(&[3]));
    bench.now = bench.now + RESEND;
    assert_eq!(asked(&mut bench), []);
}

/// A home that begins is told who has left before, and counts them with those who leave later.
#[test]
fn a_home_that_begins_is_told_of_losses() {
    for (is_informed, is_believed) in [(true, false), (false, true)] {
        let mut bench = Bench::new(1);
        let now = map(0, &first(&[1, 3, 4]));
        bench.begin(&now);
        for from in seats(&now).filter(|from| *from != seat(1)) {
            let losses = Losses {
                open: vec![Gone {
                    last: Epoch(LAST.0 - 1),
                    ..gone(2, 0)
                }],
                past: vec![],
            };
            let speaks = is_informed && from == of(life(3));
            let page = TombstonePage {
                is_informed: speaks || from == of(life(4)),
                losses: if speaks { losses } else { Losses::default() },
                ..TombstonePage::default()
            };
            bench.report(from, None, page);
        }
        bench.report(seat(1), None, TombstonePage::default());
        go_on(&mut bench, &map(1, &first(&[1, 4, AWAY])), &[]);
        bench.tick_at(1000);
        assert_eq!(bench.is_shown(KEPT), is_believed);
    }
}

/// Where all have ended and one has not come back, each of the others may be the only one who knows something.
#[test]
fn who_is_missing_when_all_have_ended_is_of_the_group() {
    for (back, is_believed) in [(&[2, 3][..], true), (&[2], false)] {
        let mut bench = Bench::new(2);
        let (known, tombstones) = (known(3), vec![]);
        let memory = HomeMemory { known, tombstones };
        bench.home.recall(bench.now, memory.clone());
        let mut lives = vec![(1, 2), life(4), life(5)];
        lives.extend(back.iter().map(|&node| (node, 2)));
        let recalled = back.iter().map(|&node| ((node, 2), memory.known.clone()));
        let recalled: Vec<_> = recalled.collect();
        go_on(&mut bench, &map(1, &lives), &recalled);
        lives.retain(|life| *life != (2, 2));
        lives.push(life(AWAY));
        go_on(&mut bench, &map(2, &lives), &[]);
        bench.tick_at(1000);
        assert_eq!(bench.is_shown(KEPT), is_believed, "{back:?}");
    }
}

/// Beyond its bounds, what those knew who have left counts as forgotten.
#[test]
fn groups_are_bounded_on_both_sides() {
    // The lives of one node, which have all that they knew from others.
    for (lives, are_all_told) in [(GONE_MAX, true), (GONE_MAX + 1, false)] {
        let mut bench = Bench::new(1);
        for at in 0..=lives as u64 {
            let lives = [life(1), (2, at + 1), life(3)];
            go_on(&mut bench, &map(at, &lives), &[]);
        }
        assert_eq!(
            told(&mut bench).open.len(),
            if are_all_told { lives } else { 0 }
        );
    }
    for (groups, are_all_told) in [(PAST_MAX, true), (PAST_MAX + 1, false)] {
        let mut bench = Bench::new(1);
        let mut later = 0;
        for group in 0..groups as u64 {
            let pair = [life(1), (2, group + 1), (3, group + 1), life(4)];
            go_on(&mut bench, &map(later, &pair), &[]);
            are_complete(&mut bench, &pair[1..]);
            go_on(&mut bench, &map(later + 1, &[life(1), life(4)]), &[]);
            are_complete(&mut bench, &pair[3..]);
            later += 2;
        }
        let told = told(&mut bench);
        assert_eq!((told.open.len(), told.past.len()), (0, PAST_MAX));
        let has_first = told.past.iter().any(|group| {
            group.contains(&Gone {
                life: Some((NodeId(2), 1)),
                last: LAST,
            })
        });
        assert_eq!(has_first, are_all_told, "the earliest is forgotten");
    }
}

/// What it has no room for while it is told is forgotten, and nobody else says so.
#[test]
fn what_a_home_that_begins_cannot_keep_is_forgotten() {
    for (count, is_believed) in [(2, true), (3, false)] {
        let limits = HomeLimits {
            tombstones_max: 2,
            ..HomeLimits::default()
        };
        let mut bench = Bench::within(1, limits);
        let now = map(0, &first(&[1, 2, AWAY]));
        bench.begin(&now);
        let buried = (0..count).map(|number| {
            let version = Version {
                epoch: Epoch(LAST.0 - 1),
                sequence: number,
            };
            let generation = Generation(0);
            let tombstone = Tombstone {
                version,
                generation,
            };
            (Fingerprint(u128::from(number) << 90), tombstone)
        });
        let page = TombstonePage {
            is_informed: true,
            tombstones: buried.collect(),
            ..TombstonePage::default()
        };
        bench.report(of(life(2)), None, page);
        for from in [seat(1), of(life(AWAY))] {
            let away = is_away(from).then_some(SINCE);
            bench.report(from, away, TombstonePage::default());
        }
        bench.tick_at(1000);
        assert_eq!(bench.is_shown(KEPT), is_believed, "{count}");
    }
}
