//! Verdicts on histories written by hand.

use super::*;

const KEY: u32 = 1;
const NODE: usize = 2;
const HIGH: u64 = 77;

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

const fn span(start: Time, end: Time) -> Span {
    Span { start, end }
}

fn oracle() -> Oracle {
    let mut oracle = Oracle::new(at(10_000), false);
    oracle.add_key(KEY, HIGH, NODE);
    oracle
}

/// An oracle that knows of one put, acknowledged as version 5 between 10 and 20 ms.
fn with_a_put() -> (Oracle, u64) {
    let mut oracle = oracle();
    let put = oracle.on_put(KEY, at(10));
    oracle.on_put_end(KEY, put, PutOutcome::Written(5), span(at(10), at(20)));
    (oracle, put)
}

fn misses(oracle: &Oracle, cause: Cause) -> u64 {
    oracle
        .tally()
        .misses
        .get(cause.name())
        .copied()
        .unwrap_or(0)
}

fn get(oracle: &mut Oracle, answer: Answer, start: u64, end: u64) -> bool {
    let before = oracle.failures().len();
    oracle.on_get(KEY, answer, span(at(start), at(end)));
    oracle.failures().len() == before
}

#[test]
fn a_miss_without_a_cause_is_a_failure() {
    let (mut oracle, _) = with_a_put();
    assert!(
        get(&mut oracle, Answer::Miss, 5, 30),
        "it began before the put ended"
    );
    assert!(!get(&mut oracle, Answer::Miss, 21, 30));
}

#[test]
fn each_cause_of_a_miss_is_told() {
    let mut nothing = oracle();
    assert!(get(&mut nothing, Answer::Miss, 1, 2));
    assert_eq!(misses(&nothing, Cause::NeverPut), 1);

    let mut failed = oracle();
    let put = failed.on_put(KEY, at(1));
    failed.on_put_end(KEY, put, PutOutcome::Failed, span(at(1), at(2)));
    assert!(get(&mut failed, Answer::Miss, 3, 4));
    assert_eq!(misses(&failed, Cause::Unacknowledged), 1);

    let (mut evicted, _) = with_a_put();
    evicted.on_release(HIGH, 5, at(25));
    assert!(get(&mut evicted, Answer::Miss, 24, 30));
    assert_eq!(misses(&evicted, Cause::Evicted), 1);

    let (mut removed, _) = with_a_put();
    let remove = removed.on_remove(KEY, at(25));
    assert!(get(&mut removed, Answer::Miss, 24, 30), "it is under way");
    removed.on_remove_end(KEY, remove, Some(true), at(31));
    assert!(get(&mut removed, Answer::Miss, 40, 41));
    assert_eq!(misses(&removed, Cause::Removed), 2);

    let (mut gone, _) = with_a_put();
    gone.on_kill(NODE, at(25));
    assert!(get(&mut gone, Answer::Miss, 30, 31));
    assert_eq!(misses(&gone, Cause::HolderGone), 1);
}

#[test]
fn a_cause_of_another_node_version_or_time_is_none() {
    let (mut oracle, _) = with_a_put();
    oracle.on_kill(NODE + 1, at(25));
    oracle.on_kill(NODE, at(5));
    oracle.on_release(HIGH, 4, at(25));
    oracle.on_release(HIGH + 1, 5, at(25));
    oracle.on_release(HIGH, 5, at(9));
    let remove = oracle.on_remove(KEY, at(1));
    oracle.on_remove_end(KEY, remove, Some(true), at(2));
    assert!(!get(&mut oracle, Answer::Miss, 30, 31));
}

#[test]
fn a_hit_brings_a_put_that_can_be_there() {
    let (mut oracle, put) = with_a_put();
    let hit = |put, version| Answer::Hit { put, version };
    assert!(
        get(&mut oracle, hit(Some(put), 5), 12, 15),
        "seen before it was acknowledged"
    );
    assert!(get(&mut oracle, hit(Some(put), 5), 30, 31));
    assert!(
        !get(&mut oracle, hit(Some(put), 6), 30, 31),
        "another version"
    );
    assert!(
        !get(&mut oracle, hit(Some(put + 1), 5), 30, 31),
        "no such put"
    );
    assert!(!get(&mut oracle, hit(None, 5), 30, 31), "no value at all");
    assert!(
        !get(&mut oracle, hit(Some(put), 5), 1, 9),
        "before it began"
    );
}

#[test]
fn what_was_freed_removed_or_lost_does_not_come_back() {
    let (mut freed, put) = with_a_put();
    let hit = Answer::Hit {
        put: Some(put),
        version: 5,
    };
    freed.on_release(HIGH, 5, at(25));
    assert!(get(&mut freed, hit, 24, 30), "it was still there");
    assert!(!get(&mut freed, hit, 26, 30));

    let (mut removed, _) = with_a_put();
    let remove = removed.on_remove(KEY, at(25));
    removed.on_remove_end(KEY, remove, Some(true), at(26));
    assert!(!get(&mut removed, hit, 27, 30));

    let (mut unsure, _) = with_a_put();
    let remove = unsure.on_remove(KEY, at(25));
    unsure.on_remove_end(KEY, remove, None, at(26));
    assert!(get(&mut unsure, hit, 27, 30), "it may not have happened");
    assert!(get(&mut unsure, Answer::Miss, 31, 32), "or it has");
    assert!(get(&mut unsure, Answer::Miss, 9_000, 9_001), "or late");

    let (mut lost, _) = with_a_put();
    lost.on_kill(NODE, at(25));
    assert!(!get(&mut lost, hit, 26, 30));
}

#[test]
fn a_put_does_not_write_what_is_there() {
    let (mut oracle, _) = with_a_put();
    let again = oracle.on_put(KEY, at(30));
    oracle.on_put_end(KEY, again, PutOutcome::Written(6), span(at(30), at(31)));
    assert_eq!(oracle.failures().len(), 1, "{:?}", oracle.failures());

    let (mut oracle, _) = with_a_put();
    let touches = oracle.on_put(KEY, at(30));
    oracle.on_put_end(KEY, touches, PutOutcome::Touched(5), span(at(30), at(31)));
    assert!(oracle.failures().is_empty(), "{:?}", oracle.failures());
    let other = oracle.on_put(KEY, at(40));
    oracle.on_put_end(KEY, other, PutOutcome::Touched(9), span(at(40), at(41)));
    assert_eq!(oracle.failures().len(), 1, "a version that nobody wrote");
}

#[test]
fn deadlines_are_kept() {
    let mut oracle = oracle();
    let limit = Some(Duration::from_millis(10));
    let first = oracle.on_begin(0, at(11));
    oracle.on_end(first, "a get", limit, span(at(1), at(11)));
    assert!(oracle.failures().is_empty());
    let second = oracle.on_begin(0, at(11));
    oracle.on_end(second, "a get", limit, span(at(1), at(12)));
    assert_eq!(oracle.failures().len(), 1);
    oracle.on_begin(0, at(11));
    oracle.on_begin(1, at(11));
    oracle.on_client_gone(1);
    oracle.on_world_end(at(11));
    assert_eq!(oracle.failures().len(), 1);
    oracle.on_world_end(at(12));
    assert_eq!(oracle.failures().len(), 2, "one has not ended");
}

#[test]
fn a_request_removes_once() {
    let (mut oracle, _) = with_a_put();
    let lost = oracle.on_remove(KEY, at(25));
    oracle.on_removed(HIGH, at(26));
    oracle.on_remove_end(KEY, lost, None, at(27));
    assert!(oracle.failures().is_empty(), "{:?}", oracle.failures());
    let found = oracle.on_remove(KEY, at(30));
    oracle.on_removed(HIGH, at(31));
    oracle.on_remove_end(KEY, found, Some(true), at(32));
    assert!(oracle.failures().is_empty(), "{:?}", oracle.failures());
    let none = oracle.on_remove(KEY, at(40));
    oracle.on_removed(HIGH, at(41));
    oracle.on_remove_end(KEY, none, Some(false), at(42));
    assert_eq!(oracle.failures().len(), 1, "it said that it found none");
}

#[test]
fn a_network_that_damages_is_complained_about() {
    let damaged = StoreError {
        node: None,
        kind: StoreErrorKind::Refused(Status::Corrupt),
    };
    let mut oracle = Oracle::new(at(10_000), true);
    oracle.on_error(&damaged, span(at(1), at(2)));
    assert!(oracle.failures().is_empty());
    oracle.on_error(&damaged, span(at(10_001), at(10_002)));
    assert_eq!(oracle.failures().len(), 1, "it does so no more");
}

#[test]
fn errors_are_forgiven_while_there_are_faults_and_not_afterwards() {
    let disconnected = StoreError {
        node: None,
        kind: StoreErrorKind::Call(CallError::DeadlineExceeded),
    };
    let damaged = StoreError {
        node: None,
        kind: StoreErrorKind::Refused(Status::Corrupt),
    };
    let full = StoreError {
        node: None,
        kind: StoreErrorKind::Refused(Status::Full),
    };
    let mut oracle = oracle();
    oracle.on_error(&disconnected, span(at(1), at(2)));
    oracle.on_error(&full, span(at(10_001), at(10_002)));
    assert!(oracle.failures().is_empty(), "{:?}", oracle.failures());
    oracle.on_error(&disconnected, span(at(10_001), at(10_002)));
    assert_eq!(oracle.failures().len(), 1);
    oracle.on_error(&damaged, span(at(1), at(2)));
    assert_eq!(oracle.failures().len(), 2, "at any time");
}

#[test]
fn what_is_being_sent_is_not_freed() {
    let (mut oracle, _) = with_a_put();
    oracle.on_answer_begun(HIGH, 5);
    oracle.on_answer_begun(HIGH, 5);
    oracle.on_answer_sent(HIGH, 5, at(25));
    oracle.on_release(HIGH, 4, at(26));
    assert!(oracle.failures().is_empty(), "{:?}", oracle.failures());
    oracle.on_release(HIGH, 5, at(27));
    assert_eq!(oracle.failures().len(), 1, "one is under way");

    let (mut oracle, _) = with_a_put();
    oracle.on_answer_begun(HIGH, 5);
    oracle.on_answer_sent(HIGH, 5, at(25));
    oracle.on_release(HIGH, 5, at(25));
    assert!(oracle.failures().is_empty(), "{:?}", oracle.failures());
    oracle.on_answer_sent(HIGH, 5, at(26));
    assert_eq!(oracle.failures().len(), 1, "none was under way");
}
