//! The table of a slot's states, whole, and the way of buckets through two and three slots.

use super::*;

const OPTIONS: PipelineOptions = PipelineOptions {
    slots: 2,
    tries_max: 2,
};

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn actions(pipeline: &mut Pipeline) -> Vec<Action> {
    core::iter::from_fn(|| pipeline.poll_action()).collect()
}

fn fetch(bucket: u32, slot: u32) -> Action {
    Action::Fetch { bucket, slot }
}

fn lend(bucket: u32, slot: u32) -> Action {
    Action::Lend { bucket, slot }
}

fn release(bucket: u32, slot: u32) -> Action {
    Action::Release { bucket, slot }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Fetched,
    Failed,
    Hopeless,
    Copied,
    Released,
    Late,
    Stop,
}

const EVENTS: [Event; 7] = [
    Event::Fetched,
    Event::Failed,
    Event::Hopeless,
    Event::Copied,
    Event::Released,
    Event::Late,
    Event::Stop,
];

/// Bucket 0 of one, in slot 0, in the state, and what was to be done until then.
fn with(slot: Slot) -> Pipeline {
    let mut pipeline = Pipeline::new(1, OPTIONS);
    drop(actions(&mut pipeline));
    pipeline.slots[0] = slot;
    match slot {
        Slot::Serving(_) => {
            pipeline.copied = 1;
            pipeline.phase = Phase::Complete;
        }
        Slot::Releasing(_) => {
            pipeline.copied = 1;
            pipeline.phase = Phase::Ending(Outcome::Complete);
        }
        _ => {}
    }
    pipeline
}

/// What each event makes of each state: the state then, and what is to be done.
fn expected(slot: Slot, event: Event) -> (Slot, Vec<Action>) {
    let stopped = vec![release(0, 0)];
    let failed = vec![Action::Ended(Outcome::Failed(0))];
    match (slot, event) {
        (Slot::Fetching { .. }, Event::Fetched) => (Slot::Lent(0), vec![lend(0, 0)]),
        (Slot::Fetching { failures: 0, .. }, Event::Failed) => (RESTING, vec![]),
        (Slot::Fetching { .. }, Event::Failed | Event::Hopeless) => (Slot::Free, failed),
        (Slot::Fetching { .. }, Event::Stop) => (Slot::Releasing(0), stopped),
        (Slot::Resting { .. }, Event::Late) => (AGAIN, vec![fetch(0, 0)]),
        (Slot::Resting { .. }, Event::Stop) => (Slot::Free, vec![Action::Ended(Outcome::Stopped)]),
        (Slot::Lent(_), Event::Copied) => (Slot::Serving(0), vec![Action::Complete]),
        (Slot::Serving(_), Event::Stop) => (Slot::Releasing(0), stopped),
        (Slot::Releasing(_), Event::Released) => {
            (Slot::Free, vec![Action::Ended(Outcome::Complete)])
        }
        // Everything else is late, or of somebody else: nothing comes of it.
        (slot, _) => (slot, vec![]),
    }
}

const FIRST: Slot = Slot::Fetching {
    bucket: 0,
    failures: 0,
};
const AGAIN: Slot = Slot::Fetching {
    bucket: 0,
    failures: 1,
};
const RESTING: Slot = Slot::Resting {
    bucket: 0,
    failures: 1,
    until: Time::from_ns(100_000_000),
};

#[test]
fn each_event_in_each_state_does_what_the_table_says() {
    let states = [
        FIRST,
        AGAIN,
        RESTING,
        Slot::Lent(0),
        Slot::Serving(0),
        Slot::Releasing(0),
    ];
    for state in states {
        for event in EVENTS {
            let mut pipeline = with(state);
            match event {
                Event::Fetched => pipeline.on_fetched(0),
                Event::Failed => pipeline.on_failed(at(0), 0, true),
                Event::Hopeless => pipeline.on_failed(at(0), 0, false),
                Event::Copied => pipeline.on_copied(0),
                Event::Released => pipeline.on_released(0),
                Event::Late => pipeline.on_time(at(100)),
                Event::Stop => pipeline.stop(),
            }
            let came = (pipeline.slots[0], actions(&mut pipeline));
            assert_eq!(came, expected(state, event), "{state:?}, {event:?}");
            let is_resting = matches!(pipeline.slots[0], Slot::Resting { .. });
            assert_eq!(pipeline.deadline(), is_resting.then(|| at(100)));
        }
    }
}

#[test]
fn what_is_lent_is_waited_for_when_it_ends() {
    let mut pipeline = Pipeline::new(2, OPTIONS);
    pipeline.on_fetched(0);
    assert_eq!(
        actions(&mut pipeline),
        [fetch(0, 0), fetch(1, 1), lend(0, 0)]
    );
    pipeline.on_failed(at(0), 1, false);
    assert_eq!(
        actions(&mut pipeline),
        [],
        "the program still has the first"
    );
    pipeline.on_copied(0);
    assert_eq!(actions(&mut pipeline), [release(0, 0)]);
    pipeline.stop();
    pipeline.on_released(0);
    assert_eq!(
        actions(&mut pipeline),
        [Action::Ended(Outcome::Failed(1))],
        "why it ended is what was first"
    );
}

#[test]
fn one_is_fetched_while_one_is_copied_and_a_third_is_served() {
    let mut pipeline = Pipeline::new(5, PipelineOptions::default());
    assert_eq!(actions(&mut pipeline), [fetch(0, 0), fetch(1, 1)]);
    // Out of order: what is next is lent first.
    pipeline.on_fetched(1);
    assert_eq!(actions(&mut pipeline), []);
    pipeline.on_fetched(0);
    assert_eq!(actions(&mut pipeline), [lend(0, 0)]);
    pipeline.on_copied(0);
    assert_eq!(actions(&mut pipeline), [lend(1, 1), fetch(2, 2)]);
    pipeline.on_copied(1);
    // The first is served until its slot is needed.
    assert_eq!(actions(&mut pipeline), [release(0, 0)]);
    pipeline.on_fetched(2);
    assert_eq!(actions(&mut pipeline), [lend(2, 2)]);
    pipeline.on_released(0);
    assert_eq!(actions(&mut pipeline), [fetch(3, 0)]);
    assert_eq!(pipeline.copied(), 2);
}

#[test]
fn of_no_buckets_it_is_complete() {
    let mut pipeline = Pipeline::new(0, OPTIONS);
    assert_eq!(actions(&mut pipeline), [Action::Complete]);
    pipeline.stop();
    pipeline.stop();
    assert_eq!(actions(&mut pipeline), [Action::Ended(Outcome::Complete)]);
}

#[test]
fn a_rest_is_longer_each_time_and_bounded() {
    let rests = [1, 2, 3, 7, 100].map(|failures| rest(failures).as_millis());
    assert_eq!(rests, [100, 200, 400, 5000, 5000]);
}
