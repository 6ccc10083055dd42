//! Verdicts on histories written by hand.

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime_core::time::Time;

use super::history::End;
use super::ledger::{Cause, Hit, Hold, Ledger};
use super::load::{fingerprint_high, len_of};
use crate::hearing::Told;

mod doubts;

const KEY: usize = 3;

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

const fn version(sequence: u64) -> Version {
    Version {
        epoch: Epoch(1),
        sequence,
    }
}

fn tell(ledger: &mut Ledger, ms: u64, node: u64, sequence: u64, what: &str) {
    let high = fingerprint_high(KEY);
    let fields = [
        ("node", node),
        ("key_high", high),
        ("epoch", 1),
        ("sequence", sequence),
    ];
    let told = Told::of(lunette_kvstore::COPIES, &fields, what);
    ledger.copies.on_told(at(ms), &told);
}

/// A write that node 1 has, acknowledged as this version between 10 and 20 ms.
fn with_a_write(kind: WriteKind, sequence: u64) -> (Ledger, u64) {
    let mut ledger = Ledger::new(NamespaceKind::Strict);
    let value = ledger.begin_write(at(10), KEY, kind);
    tell(&mut ledger, 15, 1, sequence, "kept");
    tell(&mut ledger, 16, 1, sequence, "recorded");
    ledger.end_write(at(20), (KEY, value), End::Done, Some(version(sequence)));
    (ledger, value)
}

/// What is shown by who is not cut off.
const fn hit(value: u64, sequence: u64) -> Hit {
    Hit {
        value,
        version: version(sequence),
        is_cut_off: false,
    }
}

/// The cause of a miss between two points in time; `None` if it has none.
fn miss(ledger: &mut Ledger, begun: u64, ended: u64) -> Option<&'static str> {
    let (failures, before) = (ledger.failures.len(), ledger.misses.clone());
    ledger.on_miss(at(ended), KEY, at(begun));
    if ledger.failures.len() > failures {
        return None;
    }
    let counted = |cause: &Cause| ledger.misses.get(cause.name()) != before.get(cause.name());
    Cause::ALL.iter().copied().find(counted).map(Cause::name)
}

#[test]
fn a_miss_of_what_is_there_has_no_cause() {
    let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
    assert_eq!(
        miss(&mut ledger, 15, 30),
        Some("never_put"),
        "it began early"
    );
    assert_eq!(miss(&mut ledger, 21, 30), None);
}

#[test]
fn each_cause_is_told() {
    assert_eq!(
        miss(&mut Ledger::new(NamespaceKind::Strict), 1, 2),
        Some("never_put")
    );

    let (mut evicted, _) = with_a_write(WriteKind::Put, 5);
    tell(&mut evicted, 25, 1, 5, "leaves");
    assert_eq!(miss(&mut evicted, 24, 30), Some("evicted"), "it is leaving");
    tell(&mut evicted, 31, 1, 5, "evicted");
    assert_eq!(miss(&mut evicted, 40, 41), Some("evicted"));

    let (mut removed, _) = with_a_write(WriteKind::Put, 5);
    removed.begin_removal(at(22), KEY);
    assert_eq!(
        miss(&mut removed, 24, 30),
        Some("removed"),
        "it is under way"
    );
    removed.end_removal(at(31), KEY, at(22), End::Done);
    assert_eq!(miss(&mut removed, 40, 41), Some("removed"));

    let (mut killed, _) = with_a_write(WriteKind::Put, 5);
    killed.copies.on_kill(at(25), 1);
    assert_eq!(miss(&mut killed, 40, 41), Some("holder_gone"));

    let (mut away, _) = with_a_write(WriteKind::Put, 5);
    away.copies.on_disturbed(1, at(30), at(50));
    assert_eq!(miss(&mut away, 25, 29), None, "not yet");
    assert_eq!(miss(&mut away, 25, 31), Some("holder_gone"));
    assert_eq!(miss(&mut away, 50, 51), None, "it is back");
}

#[test]
fn what_is_pinned_for_ever_is_not_evicted() {
    let (mut pinned, value) = with_a_write(WriteKind::Put, 5);
    pinned.on_wanted((KEY, value), 1, true);
    tell(&mut pinned, 25, 1, 5, "leaves");
    tell(&mut pinned, 31, 1, 5, "evicted");
    assert_eq!(miss(&mut pinned, 40, 41), None);
}

/// Who had it was away when another one was put.
#[test]
fn what_is_pinned_and_held_gives_way_to_what_was_put_before() {
    // The order may be under way while the other leaves.
    let evicted = Some("evicted");
    let cases = [
        (3, 22, evicted),
        (3, 27, evicted),
        (3, 500, None),
        (6, 22, None),
    ];
    for (earlier, ordered, cause) in cases {
        let (mut ledger, pinned) = with_a_write(WriteKind::Put, 5);
        ledger.on_wanted((KEY, pinned), 1, true);
        let value = ledger.begin_write(at(10), KEY, WriteKind::Put);
        let other = Some(version(earlier));
        ledger.end_write(at(20), (KEY, value), End::Done, other);
        let hold = Hold {
            version: version(5),
            node: 1,
            asked: at(20),
            told: at(21),
            until: at(600),
        };
        ledger.on_hold(KEY, hold);
        tell(&mut ledger, 21, 2, earlier, "kept");
        let told = [
            (ordered, 1, 5, "ordered"),
            (25, 2, earlier, "leaves"),
            (26, 2, earlier, "evicted"),
        ];
        let mut told = told.to_vec();
        told.sort_unstable();
        for (ms, node, sequence, what) in told {
            tell(&mut ledger, ms, node, sequence, what);
        }
        let begun = 40.max(ordered);
        assert_eq!(
            miss(&mut ledger, begun, begun + 1),
            cause,
            "{earlier} {ordered}"
        );
    }
}

/// An earlier put that is back is the object. When it has left, the later one may still be there, and is shown no more.
#[test]
fn what_gave_way_to_what_has_left_may_be_there() {
    for (earlier, missed, cause) in [(3, 40, Some("evicted")), (3, 500, None), (6, 40, None)] {
        let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
        tell(&mut ledger, 30, 2, earlier, "returned");
        tell(&mut ledger, 35, 2, earlier, "leaves");
        tell(&mut ledger, 35, 2, earlier, "evicted");
        assert_eq!(
            miss(&mut ledger, missed, missed + 1),
            cause,
            "{earlier} {missed}"
        );
    }
}

#[test]
fn what_was_dropped_for_no_reason_is_missed_without_a_cause() {
    let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
    tell(&mut ledger, 25, 1, 5, "ordered");
    assert_eq!(miss(&mut ledger, 30, 31), None);
    // That something has befallen its node is none: it may have been in all maps.
    for (told, cause) in [(None, None), (Some(23), Some("holder_gone"))] {
        let (mut cold, _) = with_a_write(WriteKind::Put, 5);
        cold.copies.on_disturbed(1, at(22), at(50));
        if let Some(told) = told {
            tell(&mut cold, told, 1, 0, "away");
        }
        tell(&mut cold, 25, 1, 5, "ordered");
        assert_eq!(miss(&mut cold, 30, 31), cause);
    }
}

/// Of an upsert in doubt and what it replaces one is there, unless it has left or who was writing is gone.
#[test]
fn an_upsert_in_doubt_removes_nothing() {
    let in_doubt = || {
        let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
        let value = ledger.begin_write(at(22), KEY, WriteKind::Upsert);
        ledger.end_write(at(24), (KEY, value), End::Doubt, None);
        ledger
    };
    let mut gone = in_doubt();
    tell(&mut gone, 26, 1, 5, "ordered");
    assert_eq!(miss(&mut gone, 30, 31), None);
    let mut evicted = in_doubt();
    tell(&mut evicted, 26, 1, 5, "ordered");
    tell(&mut evicted, 27, 1, 6, "kept");
    tell(&mut evicted, 28, 1, 6, "leaves");
    assert_eq!(miss(&mut evicted, 30, 31), Some("evicted"));
    let mut killed = in_doubt();
    tell(&mut killed, 21, 1, 5, "ordered");
    killed.copies.on_kill(at(21), 2);
    assert_eq!(miss(&mut killed, 30, 31), None, "it was before that");
    killed.copies.on_kill(at(23), 2);
    assert_eq!(miss(&mut killed, 30, 31), Some("holder_gone"));
    let mut away = in_doubt();
    tell(&mut away, 21, 1, 5, "ordered");
    away.copies.on_disturbed(2, at(29), at(40));
    assert_eq!(miss(&mut away, 27, 28), None, "it is later");
    assert_eq!(miss(&mut away, 30, 31), Some("holder_gone"));
}

#[test]
fn who_drops_one_of_several_holds_it_no_more() {
    let held = || {
        let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
        tell(&mut ledger, 21, 2, 5, "kept");
        tell(&mut ledger, 21, 2, 5, "recorded");
        let (asked, told, until) = (at(22), at(23), at(1000));
        ledger.on_hold(
            KEY,
            Hold {
                version: version(5),
                node: 1,
                asked,
                told,
                until,
            },
        );
        ledger
    };
    let mut spared = held();
    tell(&mut spared, 25, 1, 5, "ordered");
    tell(&mut spared, 26, 2, 5, "leaves");
    tell(&mut spared, 27, 2, 5, "evicted");
    assert_eq!(miss(&mut spared, 30, 31), Some("evicted"));
    for (heard_at, cause) in [(30, Some("evicted")), (300, None)] {
        // An order that was under way when the other one left.
        let mut ledger = held();
        tell(&mut ledger, 26, 2, 5, "leaves");
        tell(&mut ledger, 27, 2, 5, "evicted");
        tell(&mut ledger, heard_at, 1, 5, "ordered");
        assert_eq!(
            miss(&mut ledger, heard_at + 1, heard_at + 2),
            cause,
            "{heard_at}"
        );
    }
    let mut broken = held();
    for (ms, node) in [(25, 2), (27, 1)] {
        tell(&mut broken, ms, node, 5, "leaves");
        tell(&mut broken, ms + 1, node, 5, "evicted");
    }
    assert_eq!(miss(&mut broken, 30, 31), None);
}

/// Whatever else becomes of it.
#[test]
fn what_one_member_has_all_the_while_is_listed() {
    let is_missed = |ledger: &mut Ledger, begun, ended| {
        let failures = ledger.failures.len();
        ledger.on_unlisted(at(ended), KEY, at(begun));
        ledger.failures.len() > failures
    };
    let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
    assert!(!is_missed(&mut ledger, 15, 30), "it was not acknowledged");
    assert!(is_missed(&mut ledger, 21, 30));
    ledger.begin_removal(at(31), KEY);
    assert!(!is_missed(&mut ledger, 21, 30), "it may be removed");
    ledger.end_removal(at(32), KEY, at(31), End::Done);
    assert!(!is_missed(&mut ledger, 33, 34), "it is removed");
    let (mut moved, _) = with_a_write(WriteKind::Put, 5);
    tell(&mut moved, 24, 2, 5, "kept");
    tell(&mut moved, 24, 2, 5, "recorded");
    tell(&mut moved, 26, 1, 5, "ordered");
    assert!(!is_missed(&mut moved, 21, 30), "by neither");
    assert!(is_missed(&mut moved, 25, 30), "by the other");
    tell(&mut moved, 31, 2, 5, "leaves");
    assert!(!is_missed(&mut moved, 25, 32));
}

#[test]
fn another_holder_counts_from_when_the_home_knows_of_it() {
    let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
    tell(&mut ledger, 21, 2, 5, "kept");
    ledger.copies.on_kill(at(25), 1);
    assert_eq!(miss(&mut ledger, 30, 31), Some("holder_gone"));
    tell(&mut ledger, 32, 2, 5, "recorded");
    assert_eq!(miss(&mut ledger, 31, 33), Some("holder_gone"));
    assert_eq!(miss(&mut ledger, 33, 34), None);
}

#[test]
fn what_is_held_is_not_evicted() {
    let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
    let hold = Hold {
        version: version(5),
        node: 1,
        asked: at(21),
        told: at(22),
        until: at(50),
    };
    ledger.on_hold(KEY, hold);
    tell(&mut ledger, 25, 1, 5, "leaves");
    tell(&mut ledger, 26, 1, 5, "evicted");
    assert_eq!(miss(&mut ledger, 22, 30), Some("evicted"), "it began early");
    assert_eq!(miss(&mut ledger, 23, 30), None);
    assert_eq!(miss(&mut ledger, 49, 50), Some("evicted"), "it is over");
    ledger.copies.on_disturbed(1, at(40), at(60));
    assert_eq!(
        miss(&mut ledger, 41, 42),
        Some("evicted"),
        "its clock may have jumped"
    );
}

#[test]
fn what_was_removed_with_everything_does_not_come_back() {
    let (mut ledger, value) = with_a_write(WriteKind::Put, 5);
    ledger.begin_clear(at(25));
    ledger.on_hit(at(30), KEY, at(29), hit(value, 5));
    assert_eq!(miss(&mut ledger, 30, 31), Some("removed"));
    ledger.end_clear(at(40), at(25));
    assert_eq!(ledger.failures, [""; 0]);
    ledger.on_hit(at(50), KEY, at(41), hit(value, 5));
    assert_eq!(ledger.failures.len(), 1);
}

#[test]
fn hits_are_of_what_was_written_and_lives() {
    let (mut ledger, value) = with_a_write(WriteKind::Put, 5);
    ledger.on_hit(at(30), KEY, at(25), hit(value, 5));
    assert_eq!(ledger.failures, [""; 0]);
    ledger.begin_removal(at(31), KEY);
    ledger.end_removal(at(40), KEY, at(31), End::Done);
    ledger.on_hit(at(50), KEY, at(39), hit(value, 5));
    assert_eq!(
        ledger.failures, [""; 0],
        "it began before the removal had ended"
    );
    ledger.on_hit(at(50), KEY, at(41), hit(value, 5));
    assert_eq!(ledger.failures.len(), 1);
    let (mut mixed, value) = with_a_write(WriteKind::Put, 5);
    mixed.on_hit(at(30), KEY, at(25), hit(value, 6));
    mixed.on_hit(at(30), KEY, at(25), hit(value + 1, 7));
    let other = mixed.begin_write(at(31), KEY, WriteKind::Put);
    mixed.end_write(at(32), (KEY, other), End::Undone, None);
    mixed.on_hit(at(40), KEY, at(33), hit(other, 8));
    mixed.on_hit(at(40), KEY, at(33), hit(value, 5));
    assert_eq!(mixed.failures.len(), 2, "{:?}", mixed.failures);
}

#[test]
fn surplus_copies_are_gone_in_the_end() {
    let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
    tell(&mut ledger, 21, 2, 5, "kept");
    ledger.on_quiet(at(30), 2, None);
    assert_eq!(ledger.failures, [""; 0]);
    ledger.on_quiet(at(30), 1, None);
    assert_eq!(ledger.failures.len(), 1);
    tell(&mut ledger, 31, 2, 5, "ordered");
    tell(&mut ledger, 32, 2, 6, "kept");
    ledger.on_quiet(at(40), 2, None);
    assert_eq!(ledger.failures.len(), 2, "of two versions one is dead");
}

#[test]
fn copies_that_were_asked_for_are_there_in_the_end_where_there_is_room() {
    let (mut ledger, value) = with_a_write(WriteKind::Put, 5);
    ledger.on_wanted((KEY, value), 3, false);
    tell(&mut ledger, 21, 2, 5, "kept");
    ledger.on_quiet(at(30), 3, None);
    ledger.on_quiet(at(30), 3, Some(2));
    assert_eq!(ledger.failures, [""; 0]);
    ledger.on_quiet(at(30), 3, Some(3));
    assert_eq!(ledger.failures.len(), 1);
    tell(&mut ledger, 31, 3, 5, "kept");
    ledger.on_quiet(at(40), 3, Some(3));
    assert_eq!(ledger.failures.len(), 1);
}

#[test]
fn what_is_shown_is_of_a_write_that_may_be_there() {
    let (mut ledger, value) = with_a_write(WriteKind::Put, 5);
    let undone = ledger.begin_write(at(21), KEY, WriteKind::Put);
    ledger.end_write(at(22), (KEY, undone), End::Undone, None);
    let open = ledger.begin_write(at(23), KEY, WriteKind::Upsert);
    let mut is_fine = |key, len_bytes| {
        let before = ledger.failures.len();
        ledger.on_shown(at(30), key, at(25), len_bytes);
        ledger.failures.len() == before
    };
    assert!(is_fine(KEY, None));
    assert!(is_fine(KEY, Some(len_of(value))) && is_fine(KEY, Some(len_of(open))));
    assert!(!is_fine(KEY, Some(len_of(undone))), "it was not written");
    assert!(!is_fine(KEY, Some(len_of(value) + 1)));
    assert!(!is_fine(KEY + 1, None), "nobody wrote it");
    ledger.end_write(at(31), (KEY, open), End::Done, Some(version(6)));
    let mut is_fine = |begun, of| {
        let before = ledger.failures.len();
        ledger.on_shown(at(40), KEY, at(begun), Some(len_of(of)));
        ledger.failures.len() == before
    };
    assert!(is_fine(30, value), "it may have been there by then");
    assert!(!is_fine(32, value), "it was replaced");
    assert!(is_fine(32, open));
}

#[test]
fn of_an_object_in_parts_one_of_its_own_may_be_gone() {
    const STRIPED: usize = 2;
    const OWN: u64 = 77;
    const OTHER: u64 = 78;
    let mut ledger = Ledger::new(NamespaceKind::Strict);
    let value = ledger.begin_write(at(10), STRIPED, WriteKind::Put);
    let tell_of = |ledger: &mut Ledger, ms: u64, high: u64, what: &str| {
        let fields = [
            ("node", 1),
            ("key_high", high),
            ("epoch", 1),
            ("sequence", 5),
        ];
        let told = Told::of(lunette_kvstore::COPIES, &fields, what);
        ledger.copies.on_told(at(ms), &told);
    };
    for high in [fingerprint_high(STRIPED), OWN, OTHER] {
        tell_of(&mut ledger, 15, high, "kept");
        tell_of(&mut ledger, 16, high, "recorded");
    }
    let old = ledger.begin_write(at(10), STRIPED, WriteKind::Put);
    ledger.end_write(at(11), (STRIPED, old), End::Undone, None);
    for (part_high, of) in [(OWN, value), (OTHER, old)] {
        let part = [
            ("key_high", fingerprint_high(STRIPED)),
            ("len_bytes", len_of(of) as u64),
            ("part_high", part_high),
        ];
        ledger.on_part(&Told::of(lunette_kvstore::PARTS, &part, ""));
    }
    ledger.end_write(at(20), (STRIPED, value), End::Done, Some(version(5)));
    ledger.on_miss(at(30), STRIPED, at(25));
    assert_eq!(ledger.failures.len(), 1, "all of it is there");
    tell_of(&mut ledger, 35, OTHER, "leaves");
    ledger.on_miss(at(50), STRIPED, at(40));
    assert_eq!(ledger.failures.len(), 2, "it is of another");
    tell_of(&mut ledger, 55, OWN, "leaves");
    ledger.on_miss(at(70), STRIPED, at(60));
    assert_eq!(ledger.failures.len(), 2);
    assert_eq!(ledger.misses.get(Cause::PartGone.name()), Some(&1));
}

/// Who is cut off may show and write what others know better, in a cache namespace, where it says so.
#[test]
fn what_is_said_by_who_is_cut_off_is_believed_in_nothing_but_in_a_strict_namespace() {
    for namespace in [NamespaceKind::Cache, NamespaceKind::Strict] {
        let is_fine =
            |ledger: &Ledger| ledger.failures.is_empty() == (namespace == NamespaceKind::Cache);
        let begin = |kind| {
            let mut ledger = Ledger::new(namespace);
            let value = ledger.begin_write(at(10), KEY, kind);
            (ledger, value)
        };
        let (mut removed, value) = begin(WriteKind::Put);
        removed.end_write(at(20), (KEY, value), End::Done, Some(version(5)));
        removed.begin_removal(at(22), KEY);
        removed.end_removal(at(31), KEY, at(22), End::Done);
        let is_cut_off = true;
        let shown = Hit {
            is_cut_off,
            ..hit(value, 5)
        };
        removed.on_hit(at(42), KEY, at(40), shown);
        assert!(is_fine(&removed), "{:?}", removed.failures);
        removed.on_hit(at(42), KEY, at(40), hit(value, 5));
        assert!(!removed.failures.is_empty(), "who is not knows of it");

        let (mut written, value) = begin(WriteKind::Put);
        written.end_write(at(20), (KEY, value), End::DoneCutOff, Some(version(5)));
        assert!(is_fine(&written), "{:?}", written.failures);
        assert_eq!(
            miss(&mut written, 21, 30),
            Some("never_put"),
            "it may go again"
        );

        let (mut replaced, value) = begin(WriteKind::Upsert);
        replaced.end_write(at(20), (KEY, value), End::DoneCutOff, Some(version(5)));
        assert!(!replaced.failures.is_empty(), "that is refused everywhere");
    }
}
