//! What is in doubt, and what is learned of it.

use super::*;
use crate::members::plan::{FAULTS_UNTIL, SETTLES};

/// From when on nothing is done any more that was in doubt before the last fault.
fn settled_ms() -> u64 {
    let settled = FAULTS_UNTIL + SETTLES;
    settled.as_ns() / 1_000_000 + 1
}

/// A removal of which nobody has told the end, of what node 1 has.
fn with_a_removal_in_doubt(end: Option<End>) -> Ledger {
    let (mut ledger, _) = with_a_write(WriteKind::Put, 5);
    ledger.begin_removal(at(22), KEY);
    if let Some(end) = end {
        ledger.end_removal(at(24), KEY, at(22), end);
    }
    ledger
}

#[test]
fn a_removal_in_doubt_excuses_a_miss_of_what_is_nowhere() {
    for end in [None, Some(End::Doubt)] {
        let mut ledger = with_a_removal_in_doubt(end);
        assert_eq!(miss(&mut ledger, 30, 31), Some("removed"));
        let late = settled_ms();
        assert_eq!(miss(&mut ledger, late, late + 1), None, "node 1 has it");
        tell(&mut ledger, late + 2, 1, 5, "ordered");
        assert_eq!(miss(&mut ledger, late + 3, late + 4), Some("removed"));
    }
    let mut undone = with_a_removal_in_doubt(Some(End::Undone));
    assert_eq!(miss(&mut undone, 30, 31), None);
}

/// After that it is done no more.
#[test]
fn a_removal_in_doubt_excuses_nothing_that_was_written_or_seen_later() {
    let late = settled_ms();
    let mut ledger = with_a_removal_in_doubt(None);
    tell(&mut ledger, late, 1, 5, "ordered");
    let value = ledger.begin_write(at(late + 1), KEY, WriteKind::Put);
    tell(&mut ledger, late + 2, 1, 6, "kept");
    let end = (KEY, value);
    ledger.end_write(at(late + 3), end, End::Done, Some(version(6)));
    tell(&mut ledger, late + 4, 1, 6, "ordered");
    assert_eq!(miss(&mut ledger, late + 5, late + 6), None);

    let (mut seen, value) = with_a_write(WriteKind::Put, 5);
    seen.begin_removal(at(22), KEY);
    seen.on_hit(at(late + 1), KEY, at(late), hit(value, 5));
    tell(&mut seen, late + 2, 1, 5, "ordered");
    assert_eq!(miss(&mut seen, late + 3, late + 4), None);
}

#[test]
fn what_is_shown_was_done_and_what_it_replaced_is_dead() {
    let (mut ledger, old) = with_a_write(WriteKind::Put, 5);
    let new = ledger.begin_write(at(22), KEY, WriteKind::Upsert);
    ledger.end_write(at(24), (KEY, new), End::Doubt, None);
    ledger.on_hit(at(26), KEY, at(25), hit(old, 5));
    tell(&mut ledger, 27, 1, 5, "ordered");
    tell(&mut ledger, 27, 2, 6, "kept");
    tell(&mut ledger, 27, 2, 6, "recorded");
    ledger.on_hit(at(29), KEY, at(28), hit(new, 6));
    assert_eq!(ledger.failures, [""; 0]);
    assert_eq!(miss(&mut ledger, 30, 31), None, "node 2 has it");
    ledger.on_hit(at(31), KEY, at(30), hit(old, 5));
    assert_eq!(ledger.failures.len(), 2, "the old one is back");
}

/// What it replaced may have gone, and what was not known to be recorded leaves under another map.
#[test]
fn what_was_shown_and_never_acknowledged_may_be_gone_with_any_node() {
    let gone = || {
        let mut ledger = Ledger::new(NamespaceKind::Strict);
        let value = ledger.begin_write(at(22), KEY, WriteKind::Upsert);
        ledger.end_write(at(24), (KEY, value), End::Doubt, None);
        ledger.on_hit(at(26), KEY, at(25), hit(value, 6));
        ledger
    };
    assert_eq!(miss(&mut gone(), 30, 31), None);
    let mut killed = gone();
    killed.copies.on_kill(at(28), 3);
    assert_eq!(miss(&mut killed, 30, 31), Some("holder_gone"));
}

/// Who was away, as it tells, is not believed in what it had before.
#[test]
fn what_is_written_after_an_absence_is_not_cold() {
    for (away, cause) in [(40, Some("holder_gone")), (14, None)] {
        let mut ledger = Ledger::new(NamespaceKind::Strict);
        tell(&mut ledger, 14, 2, 0, "away");
        let value = ledger.begin_write(at(10), KEY, WriteKind::Put);
        if away < 15 {
            tell(&mut ledger, away, 1, 0, "away");
        }
        tell(&mut ledger, 15, 1, 5, "kept");
        tell(&mut ledger, 16, 1, 5, "recorded");
        ledger.end_write(at(20), (KEY, value), End::Done, Some(version(5)));
        if away > 20 {
            tell(&mut ledger, away, 1, 0, "away");
        }
        tell(&mut ledger, 50, 1, 5, "ordered");
        assert_eq!(miss(&mut ledger, 60, 61), cause, "{away}");
    }
    let (mut returned, _) = with_a_write(WriteKind::Put, 5);
    tell(&mut returned, 14, 1, 0, "away");
    tell(&mut returned, 45, 1, 5, "returned");
    tell(&mut returned, 50, 1, 5, "ordered");
    assert_eq!(miss(&mut returned, 60, 61), Some("holder_gone"));
}

#[test]
fn what_a_drive_has_lost_is_gone_also_if_it_is_held() {
    let (mut ledger, value) = with_a_write(WriteKind::Put, 5);
    ledger.on_wanted((KEY, value), 1, true);
    let hold = Hold {
        version: version(5),
        node: 1,
        asked: at(21),
        told: at(22),
        until: at(600),
    };
    ledger.on_hold(KEY, hold);
    tell(&mut ledger, 25, 1, 5, "lost");
    assert_eq!(miss(&mut ledger, 30, 31), Some("holder_gone"));
}
