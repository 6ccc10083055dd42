//! The transition table of a shard's entries, whole: each state, each event.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::shard::{Effect, EntryId, PutStart, RemoveOutcome, Shard, ShardLimits};

const KEY: Fingerprint = Fingerprint(0x5eed);
const BYTES: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The entry was released; its id is stale.
    Absent,
    Writing,
    Resident,
    /// Resident with one pin.
    Pinned,
    /// Removed with one pin.
    Dying,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Put,
    Commit,
    Abort,
    Lookup,
    Get,
    Unpin,
    Remove,
    MakeRoom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A new entry was begun beside this one.
    Begins,
    Touched,
    Busy,
    Done,
    Found,
    Missing,
    Removed,
    Freed(u64),
    /// The driver broke the contract.
    Panics,
}

use Event::{Abort, Commit, Get, Lookup, MakeRoom, Put, Remove, Unpin};
use Outcome::{Begins, Busy, Done, Found, Freed, Missing, Panics, Removed, Touched};
use State::{Absent, Dying, Pinned, Resident, Writing};

const STATES: [State; 5] = [Absent, Writing, Resident, Pinned, Dying];
const EVENTS: [Event; 8] = [Put, Commit, Abort, Lookup, Get, Unpin, Remove, MakeRoom];

/// What becomes of the entry. (Of one pin more than shown, nothing else follows.)
const TABLE: [(State, Event, Outcome, State); 40] = [
    (Absent, Put, Begins, Absent),
    (Absent, Commit, Panics, Absent),
    (Absent, Abort, Panics, Absent),
    (Absent, Lookup, Missing, Absent),
    (Absent, Get, Missing, Absent),
    (Absent, Unpin, Panics, Absent),
    (Absent, Remove, Missing, Absent),
    (Absent, MakeRoom, Freed(0), Absent),
    (Writing, Put, Busy, Writing),
    (Writing, Commit, Done, Resident),
    (Writing, Abort, Done, Absent),
    (Writing, Lookup, Missing, Writing),
    (Writing, Get, Missing, Writing),
    (Writing, Unpin, Panics, Writing),
    (Writing, Remove, Busy, Writing),
    (Writing, MakeRoom, Freed(0), Writing),
    (Resident, Put, Touched, Resident),
    (Resident, Commit, Panics, Resident),
    (Resident, Abort, Panics, Resident),
    (Resident, Lookup, Found, Resident),
    (Resident, Get, Found, Pinned),
    (Resident, Unpin, Panics, Resident),
    (Resident, Remove, Removed, Absent),
    (Resident, MakeRoom, Freed(BYTES as u64), Absent),
    (Pinned, Put, Touched, Pinned),
    (Pinned, Commit, Panics, Pinned),
    (Pinned, Abort, Panics, Pinned),
    (Pinned, Lookup, Found, Pinned),
    (Pinned, Get, Found, Pinned),
    (Pinned, Unpin, Done, Resident),
    (Pinned, Remove, Removed, Dying),
    (Pinned, MakeRoom, Freed(0), Pinned),
    (Dying, Put, Begins, Dying),
    (Dying, Commit, Panics, Dying),
    (Dying, Abort, Panics, Dying),
    (Dying, Lookup, Missing, Dying),
    (Dying, Get, Missing, Dying),
    (Dying, Unpin, Done, Absent),
    (Dying, Remove, Missing, Dying),
    (Dying, MakeRoom, Freed(0), Dying),
];

fn begin(shard: &mut Shard) -> EntryId {
    let PutStart::Write(id) = shard.begin_put(KEY, BYTES) else {
        unreachable!("an empty shard has room");
    };
    id
}

/// A shard whose only entry is in `state`, with no effect left to poll.
fn shard_in(state: State) -> (Shard, EntryId) {
    let mut shard = Shard::new(ShardLimits::new(1024, 1024, 4).expect("valid limits"));
    let id = begin(&mut shard);
    match state {
        Absent => shard.abort_put(id),
        Writing => {}
        Resident | Pinned | Dying => {
            shard.commit_put(id);
        }
    }
    if matches!(state, Pinned | Dying) {
        assert_eq!(shard.get(KEY), Some(id));
    }
    if state == Dying {
        assert_eq!(shard.remove(KEY), RemoveOutcome::Removed);
    }
    while shard.poll_effect().is_some() {}
    (shard, id)
}

fn apply(shard: &mut Shard, id: EntryId, event: Event) -> Outcome {
    let found = |found: Option<EntryId>| match found {
        Some(found) => {
            assert_eq!(found, id);
            Found
        }
        None => Missing,
    };
    match event {
        Put => match shard.begin_put(KEY, BYTES) {
            PutStart::Write(begun) => {
                assert_ne!(begun, id);
                shard.abort_put(begun);
                assert!(drain(shard).contains(&begun));
                Begins
            }
            PutStart::Touched(touched) => {
                assert_eq!(touched, id);
                Touched
            }
            PutStart::Busy => Busy,
            PutStart::Refused(refusal) => unreachable!("{refusal:?}"),
        },
        Commit => {
            assert!(shard.commit_put(id) > 0);
            Done
        }
        Abort => {
            shard.abort_put(id);
            Done
        }
        Lookup => found(shard.lookup(KEY)),
        Get => found(shard.get(KEY)),
        Unpin => {
            shard.unpin(id);
            Done
        }
        Remove => match shard.remove(KEY) {
            RemoveOutcome::Removed => Removed,
            RemoveOutcome::NotFound => Missing,
            RemoveOutcome::Busy => Busy,
        },
        MakeRoom => Freed(shard.make_room(u64::MAX)),
    }
}

fn drain(shard: &mut Shard) -> Vec<EntryId> {
    std::iter::from_fn(|| shard.poll_effect())
        .map(|Effect::Release(id)| id)
        .collect()
}

/// The state of the entry, found out by what a removal does to it.
fn state_of(shard: &mut Shard, id: EntryId) -> State {
    if !shard.is_live(id) {
        return Absent;
    }
    match shard.remove(KEY) {
        RemoveOutcome::Busy => Writing,
        RemoveOutcome::NotFound => Dying,
        RemoveOutcome::Removed if shard.is_live(id) => Pinned,
        RemoveOutcome::Removed => Resident,
    }
}

#[test]
fn the_table_names_each_state_and_event_once() {
    for state in STATES {
        for event in EVENTS {
            let rows = TABLE
                .iter()
                .filter(|row| (row.0, row.1) == (state, event))
                .count();
            assert_eq!(rows, 1, "{state:?} on {event:?}");
        }
    }
}

#[test]
fn every_transition_is_as_the_table_says() {
    for (state, event, outcome, next) in TABLE {
        let (mut shard, id) = shard_in(state);
        let applied = catch_unwind(AssertUnwindSafe(|| apply(&mut shard, id, event)));
        assert_eq!(applied.unwrap_or(Panics), outcome, "{state:?} on {event:?}");
        let left = state != Absent && next == Absent;
        let released = if left { vec![id] } else { vec![] };
        assert_eq!(
            drain(&mut shard),
            released,
            "releases: {state:?} on {event:?}"
        );
        let used = if next == Absent { 0 } else { u64::from(BYTES) };
        if outcome != Panics {
            assert_eq!(
                shard.stats().used_bytes,
                used,
                "bytes: {state:?} on {event:?}"
            );
            assert_eq!(state_of(&mut shard, id), next, "{state:?} on {event:?}");
        }
    }
}

#[test]
fn pins_are_counted() {
    let (mut shard, id) = shard_in(Pinned);
    assert_eq!(shard.get(KEY), Some(id));
    shard.unpin(id);
    assert_eq!(shard.make_room(1), 0, "one pin is left");
    assert_eq!(shard.get(KEY), Some(id));
    assert_eq!(shard.remove(KEY), RemoveOutcome::Removed);
    shard.unpin(id);
    assert_eq!(drain(&mut shard), [], "one pin is left");
    shard.unpin(id);
    assert_eq!(drain(&mut shard), [id]);
}
