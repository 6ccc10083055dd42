//! Paths that come, go, and say one thing and do another.

use super::*;

const TRANSITION: Duration = Duration::from_secs(10);

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn facts(state: AnaState) -> PathFacts {
    PathFacts {
        group: 1,
        state,
        transition: TRANSITION,
    }
}

fn group(state: AnaState) -> [AnaGroup; 1] {
    [AnaGroup {
        id: 1,
        changes: 1,
        state,
        nsids: Vec::new(),
    }]
}

fn up(policy: PathPolicy, states: &[AnaState]) -> Paths {
    let mut paths = Paths::new(states.len(), policy);
    for (index, &state) in states.iter().enumerate() {
        paths.on_up(index, facts(state), Time::ZERO);
    }
    paths
}

fn chosen(paths: &mut Paths, now: Time, count: usize) -> Vec<usize> {
    let choose = |_| match paths.choose(None, now) {
        Choice::Use(index) => index,
        other => panic!("{other:?}"),
    };
    (0..count).map(choose).collect()
}

#[test]
fn what_each_status_says() {
    let others = [0x360, 0x370, 0x3ff].map(Status::from_bits);
    for &status in Status::NAMED.iter().chain(&others) {
        let expected = match status.code() {
            0x301..=0x303 => Fate::NotDone,
            0x022 | 0x300 | 0x304..=0x3ff => Fate::Unknown,
            _ => Fate::Answered,
        };
        assert_eq!(fate_of(status), expected, "{status}");
        assert_eq!(fate_of(status.do_not_retry()), Fate::Answered, "{status}");
    }
}

#[test]
fn every_state_of_two_paths_has_its_choice() {
    use AnaState::{Change, Inaccessible, NonOptimized, Optimized, PersistentLoss};
    use Choice::{Never, Use, WaitUntil};
    let wait = WaitUntil(Time::ZERO + TRANSITION);
    let told = WaitUntil(Time::MAX);
    let lost = Never(NoPath::PersistentLoss);
    #[rustfmt::skip]
    let table = [
        (Optimized,      [Use(0), Use(0), Use(0), Use(0), Use(0)]),
        (NonOptimized,   [Use(1), Use(0), Use(0), Use(0), Use(0)]),
        (Inaccessible,   [Use(1), Use(1), wait,   wait,   told]),
        (PersistentLoss, [Use(1), Use(1), wait,   lost,   told]),
        (Change,         [Use(1), Use(1), told,   told,   told]),
    ];
    for (first, row) in table {
        for (second, expected) in AnaState::ALL.into_iter().zip(row) {
            let mut paths = up(PathPolicy::RoundRobin, &[first, second]);
            let choice = paths.choose(None, Time::ZERO);
            assert_eq!(choice, expected, "{first:?} {second:?}");
        }
    }
}

#[test]
fn equals_take_turns_or_the_least_busy_one() {
    let states = [
        AnaState::Optimized,
        AnaState::NonOptimized,
        AnaState::Optimized,
        AnaState::Optimized,
    ];
    let mut paths = up(PathPolicy::RoundRobin, &states);
    assert_eq!(chosen(&mut paths, at(1), 6), [0, 2, 3, 0, 2, 3]);
    assert_eq!(paths.choose(Some(0), at(1)), Choice::Use(2));
    let mut paths = up(PathPolicy::QueueDepth, &states);
    for (index, depth) in [(0, 3), (2, 1), (3, 2)] {
        (0..depth).for_each(|_| paths.began(index));
    }
    assert_eq!(chosen(&mut paths, at(1), 2), [2, 2]);
    (0..2).for_each(|_| paths.ended(0));
    assert_eq!(paths.in_flight(0), 1);
    // Among equals in turn.
    assert_eq!(chosen(&mut paths, at(1), 2), [0, 2]);
}

#[test]
fn a_path_that_fails_is_left_for_longer_and_longer() {
    let mut paths = up(PathPolicy::RoundRobin, &[AnaState::Optimized; 2]);
    let fault = Status::PATH_INTERNAL;
    assert!(paths.on_status(0, fault, at(0)));
    // Commands of the same moment change nothing.
    assert!(paths.on_status(0, fault, at(0)));
    assert_eq!(chosen(&mut paths, at(9), 3), [1, 1, 1]);
    assert_eq!(chosen(&mut paths, at(10), 2), [0, 1]);
    let mut now = at(10);
    for pause_ms in [20, 40, 80, 160, 320, 640, 1280, 1280] {
        paths.on_status(0, fault, now);
        let end = now + Duration::from_millis(pause_ms);
        assert_eq!(paths.choose(Some(1), now), Choice::WaitUntil(end));
        now = end;
    }
    assert!(!paths.on_status(0, Status::COMPARE_FAILURE, now));
    paths.on_status(0, fault, now);
    let end = now + Duration::from_millis(10);
    assert_eq!(paths.choose(Some(1), now), Choice::WaitUntil(end));
    // What was damaged underway says nothing of the path.
    assert!(!paths.on_status(1, Status::TRANSIENT_TRANSPORT_ERROR, now));
    assert_eq!(paths.choose(None, now), Choice::Use(1));
}

#[test]
fn a_status_closes_a_path_until_its_log_says_otherwise() {
    for (status, state) in [
        (Status::ANA_INACCESSIBLE, AnaState::Inaccessible),
        (Status::ANA_TRANSITION, AnaState::Change),
        (Status::ANA_PERSISTENT_LOSS, AnaState::PersistentLoss),
    ] {
        let mut paths = up(PathPolicy::RoundRobin, &[AnaState::Optimized; 2]);
        assert!(paths.on_status(0, status, at(0)));
        assert!(paths.on_status(0, status, at(0)));
        assert_eq!(paths.state(0), Some(state));
        assert_eq!(chosen(&mut paths, at(5000), 2), [1, 1]);
        paths.on_groups(0, &group(AnaState::Optimized), at(1));
        assert_eq!(chosen(&mut paths, at(1), 2), [0, 1]);
        // A log that says the same as before does not end the pause of a path that fails.
        paths.on_status(0, Status::PATH_INTERNAL, at(100));
        paths.on_groups(0, &group(AnaState::Optimized), at(101));
        assert_eq!(chosen(&mut paths, at(101), 2), [1, 1]);
        paths.on_groups(0, &[], at(101));
        assert_eq!(paths.state(0), Some(AnaState::Optimized), "not named");
    }
}

#[test]
fn commands_wait_for_paths_that_may_open_and_no_longer() {
    let mut paths = up(PathPolicy::RoundRobin, &[AnaState::Inaccessible; 2]);
    let end = Time::ZERO + TRANSITION;
    assert_eq!(paths.choose(None, at(9_999)), Choice::WaitUntil(end));
    let never = Choice::Never(NoPath::Inaccessible);
    assert_eq!(paths.choose(None, end), never);
    // A change between two such states is no new start; a new connection is.
    paths.on_groups(0, &group(AnaState::PersistentLoss), at(9_000));
    paths.on_groups(0, &group(AnaState::Inaccessible), at(9_000));
    assert_eq!(paths.choose(None, end), never);
    paths.on_down(1);
    assert_eq!(paths.choose(None, end), Choice::WaitUntil(Time::MAX));
    paths.on_up(1, facts(AnaState::Inaccessible), end);
    let later = end + TRANSITION;
    assert_eq!(paths.choose(None, end), Choice::WaitUntil(later));
    paths.on_lost(1);
    assert_eq!(paths.choose(None, end), never);
    paths.on_lost(0);
    assert_eq!(paths.choose(None, end), Choice::Never(NoPath::Lost));
    paths.on_up(0, facts(AnaState::Optimized), end);
    paths.on_absent(0, end);
    // Its group may be as accessible as it likes.
    paths.on_groups(0, &group(AnaState::NonOptimized), end);
    assert_eq!(paths.choose(None, end), Choice::WaitUntil(later));
    assert_eq!(paths.state(0), Some(AnaState::Inaccessible));
    paths.on_up(0, facts(AnaState::Optimized), end);
    assert_eq!(paths.choose(None, end), Choice::Use(0));
}

#[test]
fn a_change_that_takes_too_long_is_told_once() {
    let states = [AnaState::Optimized, AnaState::Change];
    let mut paths = up(PathPolicy::RoundRobin, &states);
    let end = Time::ZERO + TRANSITION;
    assert_eq!(paths.poll_timeout(), Some(end));
    assert_eq!(paths.expire(at(9_999)), None);
    assert_eq!(paths.expire(end), Some(1));
    assert_eq!((paths.expire(end), paths.poll_timeout()), (None, None));
    assert_eq!(paths.state(1), None, "it is made again");
    paths.on_up(1, facts(AnaState::Change), end);
    assert_eq!(paths.poll_timeout(), Some(end + TRANSITION));
    paths.on_down(1);
    assert_eq!(paths.poll_timeout(), None);
}

#[test]
fn it_is_known_whether_any_path_is_open_and_whether_all_are_lost() {
    let told = |paths: &Paths| (paths.is_any_open(), paths.is_lost());
    let mut paths = Paths::new(2, PathPolicy::RoundRobin);
    assert_eq!(told(&paths), (false, false), "connecting");
    paths.on_up(0, facts(AnaState::Inaccessible), at(1));
    assert_eq!(told(&paths), (false, false));
    paths.on_up(1, facts(AnaState::NonOptimized), at(1));
    assert_eq!(told(&paths), (true, false));
    paths.on_lost(0);
    assert_eq!(told(&paths), (true, false));
    paths.on_down(1);
    assert_eq!(told(&paths), (false, false), "it may come back");
    paths.on_lost(1);
    assert_eq!(told(&paths), (false, true));
}
