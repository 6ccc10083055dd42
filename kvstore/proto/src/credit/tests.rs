//! Lenders and borrowers, step by step.

use std::collections::BTreeMap;

use lunette_cluster_proto::map::{Epoch, MapMember};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::time::Time;

use super::*;

const TENANT: TenantTag = TenantTag(7);
const MIB: u64 = 1 << 20;
/// Of two cores each has pieces of 1 MiB.
const QUOTA: u64 = 16 * MIB;

fn map(epoch: u64, nodes: impl IntoIterator<Item = u64>) -> ClusterMap {
    let address = "192.0.2.1:7000".parse().expect("an address");
    let members = nodes.into_iter();
    let members = members.map(|id| MapMember::new(NodeId(id), 1, address));
    ClusterMap::new(Epoch(epoch), 0, members.collect()).expect("a map")
}

fn seat(node: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation: 1,
        core: CoreIndex(0),
    }
}

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn quotas() -> BTreeMap<TenantTag, u64> {
    BTreeMap::from([(TENANT, QUOTA)])
}

/// What was to be done, without what changed.
fn told(out: &mut Vec<CreditAction>) -> Vec<(Seat, CreditNews)> {
    let told = out.drain(..).filter_map(|action| match action {
        CreditAction::Tell(to, news) => Some((to, news)),
        CreditAction::Changed(_) => None,
    });
    told.collect()
}

fn says(number: u64, have_bytes: u64, want_bytes: u64) -> CreditNews {
    needs(number, have_bytes, want_bytes, 0)
}

fn needs(number: u64, have_bytes: u64, want_bytes: u64, need_bytes: u64) -> CreditNews {
    CreditNews::Use {
        tenant: TENANT,
        number,
        have_bytes,
        want_bytes,
        need_bytes,
    }
}

fn lent(number: u64, max_bytes: u64, is_last: bool) -> CreditNews {
    CreditNews::Lent {
        tenant: TENANT,
        number,
        max_bytes,
        is_last,
    }
}

const WANTED: CreditNews = CreditNews::Wanted { tenant: TENANT };

/// A borrower that has been lent 2 MiB, and its lender.
fn borrower() -> (Borrower, Seat) {
    let (mut borrower, mut out) = (Borrower::default(), Vec::new());
    let map = map(1, [1, 2]);
    let lender = lender_of(&map, TENANT).expect("a home");
    borrower.on_map(at(0), &map, |_| 0, &mut out);
    borrower.on_quotas(at(0), &quotas(), |_| 0, &mut out);
    assert_eq!(told(&mut out), [(lender, says(1, 0, 0))]);
    borrower.on_news(at(1), lender, lent(1, 0, false), |_| 0, &mut out);
    borrower.want(at(2), TENANT, (0, MIB), &mut out);
    assert_eq!(
        told(&mut out),
        [(lender, needs(2, 0, 2 * MIB, MIB))],
        "a piece ahead"
    );
    borrower.on_news(at(3), lender, lent(2, 2 * MIB, false), |_| 0, &mut out);
    assert_eq!(told(&mut out), []);
    (borrower, lender)
}

#[test]
fn who_has_enough_asks_nobody_and_who_runs_short_asks_ahead() {
    let (mut borrower, lender) = borrower();
    let mut out = Vec::new();
    borrower.want(at(4), TENANT, (MIB, MIB / 2), &mut out);
    assert_eq!(told(&mut out), [], "half a piece is left");
    borrower.want(at(4), TENANT, (MIB, MIB / 2 + 1), &mut out);
    assert_eq!(
        told(&mut out),
        [(lender, needs(3, 2 * MIB, 3 * MIB, MIB / 2 + 1))]
    );
    borrower.want(at(5), TENANT, (MIB, MIB), &mut out);
    assert_eq!(told(&mut out), [], "it is being asked");
    borrower.on_tick(at(103), |_| MIB, &mut out);
    assert_eq!(told(&mut out), []);
    borrower.on_tick(at(104), |_| MIB, &mut out);
    let again = told(&mut out);
    assert_eq!(
        again,
        [(lender, needs(4, 2 * MIB, 3 * MIB, MIB))],
        "it was lost"
    );
    // An answer to what was said before means nothing any more, nor what another says.
    for (from, number) in [(lender, 3), (seat(3), 4)] {
        borrower.on_news(
            at(105),
            from,
            lent(number, 9 * MIB, false),
            |_| MIB,
            &mut out,
        );
        let credit = borrower.credit(TENANT).expect("it has a quota");
        assert_eq!(credit.max_bytes, 2 * MIB);
    }
    borrower.on_news(at(106), lender, lent(4, 3 * MIB, false), |_| MIB, &mut out);
    let credit = Credit {
        max_bytes: 3 * MIB,
        quota_bytes: QUOTA,
        is_last: false,
    };
    assert_eq!(borrower.credit(TENANT), Some(credit));
}

#[test]
fn who_can_have_no_more_asks_seldom_unless_there_is_more() {
    let (mut borrower, lender) = borrower();
    let mut out = Vec::new();
    borrower.want(at(10), TENANT, (2 * MIB, MIB), &mut out);
    assert_eq!(told(&mut out), [(lender, needs(3, 2 * MIB, 4 * MIB, MIB))]);
    borrower.on_news(
        at(11),
        lender,
        lent(3, 2 * MIB, true),
        |_| 2 * MIB,
        &mut out,
    );
    for ms in [12, 500, 1010] {
        borrower.want(at(ms), TENANT, (2 * MIB, MIB), &mut out);
        borrower.on_tick(at(ms), |_| 2 * MIB, &mut out);
        assert_eq!(told(&mut out), []);
    }
    // What it has wanted of late it wants still.
    borrower.on_news(at(1010), lender, WANTED, |_| 2 * MIB, &mut out);
    assert_eq!(told(&mut out), [(lender, needs(4, 2 * MIB, 4 * MIB, MIB))]);
    borrower.on_news(at(1010), lender, WANTED, |_| 2 * MIB, &mut out);
    assert_eq!(told(&mut out), [], "it has just said it");
    borrower.on_news(
        at(1011),
        lender,
        lent(4, 2 * MIB, true),
        |_| 2 * MIB,
        &mut out,
    );
    borrower.on_news(at(9000), lender, WANTED, |_| MIB, &mut out);
    assert_eq!(told(&mut out), [(lender, says(5, 2 * MIB, 2 * MIB))]);
}

#[test]
fn what_is_lowered_is_told_when_it_has_been_evicted_down_to() {
    let (mut borrower, lender) = borrower();
    let mut out = Vec::new();
    borrower.on_news(at(10), lender, WANTED, |_| 2 * MIB, &mut out);
    assert_eq!(told(&mut out).len(), 1);
    borrower.on_news(at(11), lender, lent(3, MIB, true), |_| 2 * MIB, &mut out);
    assert_eq!(told(&mut out), [], "it still has more");
    borrower.on_tick(at(50), |_| MIB + 1, &mut out);
    assert_eq!(told(&mut out), [], "not so soon");
    borrower.on_tick(at(51), |_| MIB, &mut out);
    assert!(matches!(
        told(&mut out)[..],
        [(
            _,
            CreditNews::Use {
                have_bytes: MIB,
                ..
            }
        )]
    ));
    // At once, if it has not used it.
    let (mut borrower, lender) = self::borrower();
    borrower.on_news(at(10), lender, WANTED, |_| MIB, &mut out);
    told(&mut out);
    borrower.on_news(at(11), lender, lent(3, MIB, true), |_| MIB, &mut out);
    assert!(matches!(
        told(&mut out)[..],
        [(
            _,
            CreditNews::Use {
                have_bytes: MIB,
                ..
            }
        )]
    ));
}

#[test]
fn a_quota_that_is_gone_binds_nobody() {
    let (mut borrower, _) = borrower();
    let mut out = Vec::new();
    borrower.on_quotas(at(10), &BTreeMap::new(), |_| MIB, &mut out);
    assert_eq!(out, [CreditAction::Changed(TENANT)]);
    assert_eq!(borrower.credit(TENANT), None);
    assert!(borrower.is_empty());
}

/// A lender of nodes 1 to this one, all of which have said that they have nothing.
fn lender(nodes: u64) -> (Lender, Seat) {
    let map = map(1, 1..=nodes);
    let seat_of = lender_of(&map, TENANT).expect("a home");
    let (mut lender, mut out) = (Lender::new(seat_of), Vec::new());
    lender.on_map(at(0), &map, &mut out);
    lender.on_quotas(at(0), &quotas(), &mut out);
    assert_eq!(told(&mut out).len() as u64, nodes, "all are asked");
    for node in 1..=nodes {
        lender.on_news(at(1), (seat(node), Epoch(1)), says(1, 0, 0), &mut out);
        assert_eq!(told(&mut out), [(seat(node), lent(1, 0, false))]);
    }
    (lender, seat_of)
}

#[test]
fn nothing_is_lent_before_it_is_known_what_all_have() {
    let map = map(4, [1, 2]);
    let seat_of = lender_of(&map, TENANT).expect("a home");
    let (mut lender, mut out) = (Lender::new(seat_of), Vec::new());
    lender.on_quotas(at(0), &quotas(), &mut out);
    lender.on_map(at(0), &map, &mut out);
    told(&mut out);
    lender.on_news(at(1), (seat(1), Epoch(4)), says(1, MIB, 2 * MIB), &mut out);
    let kept = [(seat(1), lent(1, MIB, false))];
    assert_eq!(told(&mut out), kept, "it has what it has");
    // Who says it under an older map may say something else to another.
    lender.on_news(at(2), (seat(2), Epoch(3)), says(1, MIB, 2 * MIB), &mut out);
    assert_eq!(told(&mut out), []);
    lender.on_tick(at(99), &mut out);
    assert_eq!(told(&mut out), []);
    lender.on_tick(at(100), &mut out);
    assert_eq!(told(&mut out), [(seat(2), WANTED)]);
    lender.on_news(
        at(101),
        (seat(1), Epoch(4)),
        says(2, MIB, 2 * MIB),
        &mut out,
    );
    assert_eq!(told(&mut out), [(seat(1), lent(2, MIB, false))]);
    assert!(!lender.lends_unheard(at(1999), TENANT));
    assert!(lender.lends_unheard(at(2000), TENANT), "it waits no longer");
    lender.on_news(
        at(2000),
        (seat(1), Epoch(4)),
        says(3, MIB, 2 * MIB),
        &mut out,
    );
    assert_eq!(told(&mut out), [(seat(1), lent(3, 2 * MIB, false))]);
}

#[test]
fn after_a_map_that_was_missed_all_are_heard_again() {
    for (epoch, is_missed) in [(2, false), (3, true)] {
        let (mut lender, seat_of) = lender(3);
        let mut out = Vec::new();
        let next = map(epoch, 1..=3);
        assert_eq!(lender_of(&next, TENANT), Some(seat_of));
        lender.on_map(at(200), &next, &mut out);
        assert_eq!(told(&mut out).len(), if is_missed { 3 } else { 0 });
        let of_next = (seat(1), Epoch(epoch));
        lender.on_news(at(201), of_next, says(2, 0, 2 * MIB), &mut out);
        let max_bytes = if is_missed { 0 } else { 2 * MIB };
        assert_eq!(told(&mut out), [(seat(1), lent(2, max_bytes, false))]);
    }
}

#[test]
fn who_has_more_than_all_may_is_asked_and_who_has_less_is_told() {
    let (mut lender, _) = lender(2);
    let mut out = Vec::new();
    lender.on_news(at(202), (seat(1), Epoch(1)), says(2, 0, QUOTA), &mut out);
    assert_eq!(told(&mut out), [(seat(1), lent(2, QUOTA, false))]);
    lender.on_news(at(203), (seat(2), Epoch(1)), says(2, 0, 4 * MIB), &mut out);
    let there_is_none = [(seat(1), WANTED), (seat(2), lent(2, 0, true))];
    assert_eq!(told(&mut out), there_is_none);
    lender.on_news(
        at(204),
        (seat(1), Epoch(1)),
        says(3, QUOTA, QUOTA),
        &mut out,
    );
    assert_eq!(told(&mut out), [(seat(1), lent(3, 12 * MIB, true))]);
    assert_eq!(
        lender.lent_bytes(TENANT),
        Some(QUOTA),
        "until it is given back"
    );
    lender.on_news(
        at(205),
        (seat(1), Epoch(1)),
        says(4, 12 * MIB, QUOTA),
        &mut out,
    );
    let given_back = [(seat(1), lent(4, 12 * MIB, true)), (seat(2), WANTED)];
    assert_eq!(told(&mut out), given_back);
    lender.on_news(at(206), (seat(2), Epoch(1)), says(3, 0, 4 * MIB), &mut out);
    assert_eq!(told(&mut out), [(seat(2), lent(3, 4 * MIB, false))]);
    assert_eq!(lender.lent_bytes(TENANT), Some(QUOTA));
    // What comes late means nothing.
    lender.on_news(at(207), (seat(2), Epoch(1)), says(2, 0, 0), &mut out);
    lender.on_news(at(207), (seat(9), Epoch(1)), says(9, 0, MIB), &mut out);
    assert_eq!(told(&mut out), []);
}

#[test]
fn who_has_too_little_for_anything_is_given_that_by_those_who_have_most() {
    let (mut lender, _) = lender(4);
    let mut out = Vec::new();
    let mut say = |at_ms, node, news| {
        lender.on_news(at(at_ms), (seat(node), Epoch(1)), news, &mut out);
        told(&mut out)
    };
    // An object takes more than a fourth of the quota: there is room for three.
    let object = 5 * MIB;
    for node in 1..=3 {
        let heard = say(201, node, needs(2, 0, object, object));
        assert_eq!(heard, [(seat(node), lent(2, object, false))]);
    }
    let heard = say(202, 4, needs(2, 0, object, object));
    let (answer, asked) = heard.split_last().expect("an answer");
    assert_eq!(*answer, (seat(4), lent(2, MIB, true)), "what is free");
    let [(giver, WANTED)] = *asked else {
        panic!("one is asked: {asked:?}");
    };
    // It may have as much as any other, but for what is missing there.
    let heard = say(203, giver.node.0, needs(3, object, object, 0));
    let left = object - (object - MIB);
    assert_eq!(heard, [(giver, lent(3, left, true))]);
    let heard = say(304, giver.node.0, says(4, left, left));
    assert_eq!(heard, [(giver, lent(4, left, false)), (seat(4), WANTED)]);
    let heard = say(305, 4, needs(3, MIB, object, object));
    assert_eq!(heard, [(seat(4), lent(3, object, false))]);
}

#[test]
fn what_waited_for_room_counts_until_it_might_have_been_tried_again() {
    let (mut borrower, lender_of) = borrower();
    let mut out = Vec::new();
    borrower.want(at(10), TENANT, (2 * MIB, MIB), &mut out);
    assert_eq!(
        told(&mut out),
        [(lender_of, needs(3, 2 * MIB, 4 * MIB, MIB))]
    );
    for (number, ms, need_bytes) in [(4, 309, MIB), (5, 410, 0)] {
        borrower.on_tick(at(ms), |_| 2 * MIB, &mut out);
        let said = [(lender_of, needs(number, 2 * MIB, 4 * MIB, need_bytes))];
        assert_eq!(told(&mut out), said, "at {ms} ms");
    }
    // Of the whole quota, which one has, another has waited for longer than the third, and asks no more.
    for (ms, expected) in [(501, 0), (502, 5 * MIB)] {
        let (mut lender, _) = lender(3);
        let mut say = |at_ms, node, news| {
            lender.on_news(at(at_ms), (seat(node), Epoch(1)), news, &mut out);
            told(&mut out)
                .into_iter()
                .find(|(to, news)| *to == seat(node) && *news != WANTED)
        };
        let all = say(201, 1, needs(2, 0, QUOTA, 5 * MIB));
        assert_eq!(all, Some((seat(1), lent(2, QUOTA, false))));
        for node in [2, 3] {
            let nothing = say(200 + node, node, needs(2, 0, 5 * MIB, 5 * MIB));
            assert_eq!(nothing, Some((seat(node), lent(2, 0, true))));
        }
        // Room for one of them is given back.
        say(400, 1, says(3, 11 * MIB, QUOTA));
        let told = say(ms, 3, needs(3, 0, 5 * MIB, 5 * MIB));
        assert_eq!(
            told,
            Some((seat(3), lent(3, expected, expected == 0))),
            "at {ms} ms"
        );
    }
}

#[test]
fn how_much_objects_take_is_remembered_for_a_while() {
    let (mut lender, _) = lender(2);
    let mut out = Vec::new();
    let mut say = |at_ms, node, news| {
        lender.on_news(at(at_ms), (seat(node), Epoch(1)), news, &mut out);
        told(&mut out).pop()
    };
    let (object, want) = (10 * MIB, 12 * MIB);
    let all = say(201, 1, needs(2, 0, want, object));
    assert_eq!(all, Some((seat(1), lent(2, want, false))));
    let rest = say(202, 2, says(2, 0, want));
    assert_eq!(rest, Some((seat(2), lent(2, 4 * MIB, true))));
    let larger_half = say(203, 1, says(3, want, want));
    assert_eq!(larger_half, Some((seat(1), lent(3, object, true))));
    let half = say(60_300, 1, says(4, object, want));
    assert_eq!(half, Some((seat(1), lent(4, QUOTA / 2, true))));
}

#[test]
fn amounts_of_any_size_are_borne() {
    let (mut lender, _) = lender(3);
    let mut out = Vec::new();
    for (node, have_bytes) in [(1, u64::MAX), (2, u64::MAX), (3, 0)] {
        let news = needs(2, have_bytes, u64::MAX, u64::MAX);
        lender.on_news(at(2), (seat(node), Epoch(1)), news, &mut out);
    }
    assert_eq!(lender.lent_bytes(TENANT), Some(u64::MAX));
    let (mut borrower, home) = borrower();
    borrower.want(at(10), TENANT, (u64::MAX, u64::MAX), &mut out);
    borrower.on_news(
        at(11),
        home,
        lent(3, u64::MAX, true),
        |_| u64::MAX,
        &mut out,
    );
    let credit = borrower.credit(TENANT).expect("it has a quota");
    assert_eq!(credit.max_bytes, u64::MAX);
}

#[test]
fn few_are_told_at_a_time_that_there_is_more() {
    let (mut lender, _) = lender(lender::HUNGRY_MAX as u64 + 3);
    let mut out = Vec::new();
    lender.on_news(at(202), (seat(1), Epoch(1)), says(2, 0, QUOTA), &mut out);
    for node in 2..lender::HUNGRY_MAX as u64 + 4 {
        lender.on_news(at(203), (seat(node), Epoch(1)), says(2, 0, MIB), &mut out);
    }
    told(&mut out);
    lender.on_news(
        at(204),
        (seat(1), Epoch(1)),
        says(3, QUOTA / 2, QUOTA),
        &mut out,
    );
    let asked = told(&mut out)
        .into_iter()
        .filter(|(_, news)| *news == WANTED);
    assert_eq!(asked.count(), lender::HUNGRY_MAX);
}

#[test]
fn pieces_are_bounded() {
    assert_eq!(piece_bytes(QUOTA, 2), MIB);
    assert_eq!(piece_bytes(u64::MAX, 1), PIECE_BYTES_MAX);
    assert_eq!(piece_bytes(1, 8), PIECE_BYTES_MIN);
    assert_eq!(piece_bytes(QUOTA, 0), QUOTA);
}
