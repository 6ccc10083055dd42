//! The tables of states, as data, and the bounds.

use super::neighbours::Link;
use super::*;
use crate::message::{Ending, Refusal};

const ME: PeerId = PeerId(1);
const OTHER: PeerId = PeerId(2);

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn member(id: u64, is_whole: bool) -> Member {
    Member {
        id: PeerId(id),
        rack: Rack::NONE,
        is_whole,
        keeps_all: true,
    }
}

fn swarm(held: ChunkSet, options: Options) -> Swarm {
    Swarm::new(at(0), ME, Rack::NONE, held, options, 7)
}

fn actions(swarm: &mut Swarm) -> Vec<Action> {
    core::iter::from_fn(|| swarm.poll_action()).collect()
}

fn sent(swarm: &mut Swarm) -> Vec<Message> {
    let sent = actions(swarm)
        .into_iter()
        .filter_map(|action| match action {
            Action::Send { message, .. } => Some(message),
            _ => None,
        });
    sent.collect()
}

/// The want's number, and what is named.
fn wanted(swarm: &mut Swarm) -> (u32, Vec<u32>) {
    let wants = sent(swarm).into_iter().find_map(|message| match message {
        Message::Want { want, candidates } => Some((want, candidates)),
        _ => None,
    });
    wants.expect("something is wanted")
}

/// A receiver of one chunk from [`OTHER`], which has it.
fn asking() -> (Swarm, u32) {
    let mut swarm = swarm(ChunkSet::empty(1), Options::default());
    swarm.on_members(at(0), &[member(2, true)]);
    swarm.on_message(at(0), OTHER, Message::Welcome);
    swarm.on_message(at(0), OTHER, Message::All { load: 0 });
    let (want, candidates) = wanted(&mut swarm);
    assert_eq!(candidates, [0]);
    (swarm, want)
}

fn fetching() -> (Swarm, u32) {
    let (mut swarm, want) = asking();
    let grant = Message::Grant {
        want,
        chunk: 0,
        load: 1,
    };
    swarm.on_message(at(1), OTHER, grant);
    let fetch = Action::Fetch {
        fetch: FetchId(want),
        source: OTHER,
        chunk: 0,
        is_copy: false,
    };
    assert_eq!(actions(&mut swarm), [fetch]);
    (swarm, want)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Greeting,
    Linked,
    Resting,
}

fn state(swarm: &Swarm) -> State {
    match swarm.neighbours.get(&OTHER).map(|other| other.link) {
        None => State::Unknown,
        Some(Link::Greeting { .. }) => State::Greeting,
        Some(Link::Linked) => State::Linked,
        Some(Link::Resting { .. }) => State::Resting,
    }
}

fn in_state(wanted: State) -> Swarm {
    let mut swarm = swarm(ChunkSet::empty(4), Options::default());
    if wanted != State::Unknown {
        swarm.on_members(at(0), &[member(2, false)]);
    }
    match wanted {
        State::Unknown | State::Greeting => {}
        State::Linked => swarm.on_message(at(0), OTHER, Message::Welcome),
        State::Resting => swarm.on_unreachable(at(0), OTHER),
    }
    assert_eq!(state(&swarm), wanted);
    actions(&mut swarm);
    swarm
}

#[test]
fn the_table_of_neighbours() {
    use State::{Greeting, Linked, Resting, Unknown};
    let have = || Message::Have {
        load: 0,
        chunks: vec![1],
    };
    let want = Message::Want {
        want: 3,
        candidates: vec![1],
    };
    let done = Message::Done {
        want: 3,
        ending: Ending::Held,
    };
    let grant = Message::Grant {
        want: 9,
        chunk: 1,
        load: 0,
    };
    let busy = Message::Busy { want: 9, load: 0 };
    let full = Message::Refuse(Refusal::Full);
    let gone = Message::Refuse(Refusal::Gone);
    let stay = [Unknown, Greeting, Linked, Resting];
    let table = [
        (Message::Hello, [Linked; 4]),
        (Message::Welcome, [Unknown, Linked, Linked, Linked]),
        (full, [Unknown, Resting, Resting, Resting]),
        (gone, [Unknown, Resting, Resting, Resting]),
        (Message::Bye, [Unknown, Resting, Resting, Resting]),
        (Message::All { load: 0 }, [Unknown, Linked, Linked, Resting]),
        (have(), [Unknown, Linked, Linked, Resting]),
        (want, stay),
        (done, stay),
        (grant, stay),
        (busy, stay),
    ];
    for (message, expected) in table {
        for (before, after) in stay.into_iter().zip(expected) {
            let mut swarm = in_state(before);
            swarm.on_message(at(1), OTHER, message.clone());
            assert_eq!(state(&swarm), after, "{message:?} in {before:?}");
        }
    }
    for (before, after) in stay.into_iter().zip([Unknown, Resting, Resting, Resting]) {
        let mut swarm = in_state(before);
        swarm.on_unreachable(at(1), OTHER);
        assert_eq!(state(&swarm), after, "unreachable in {before:?}");
    }
    let late = [Unknown, Resting, Resting, Greeting];
    for (before, after) in stay.into_iter().zip(late) {
        let mut swarm = in_state(before);
        swarm.on_time(at(6_000));
        assert_eq!(state(&swarm), after, "silence in {before:?}");
    }
}

#[test]
fn who_takes_us_for_a_neighbour_wrongly_is_told() {
    let have = Message::Have {
        load: 0,
        chunks: vec![],
    };
    for (state, answers) in [
        (State::Unknown, 1),
        (State::Greeting, 0),
        (State::Linked, 0),
        (State::Resting, 1),
    ] {
        let mut swarm = in_state(state);
        swarm.on_message(at(1), OTHER, have.clone());
        let refusals = sent(&mut swarm).into_iter();
        let refusals = refusals.filter(|said| *said == Message::Refuse(Refusal::Full));
        assert_eq!(refusals.count(), answers, "{state:?}");
    }
}

#[test]
fn a_chunk_that_is_granted_is_fetched_and_told() {
    let (mut swarm, want) = fetching();
    swarm.on_fetched(at(2), FetchId(want), Fetched::Held);
    let ending = Ending::Held;
    let told = Action::Send {
        to: OTHER,
        message: Message::Done { want, ending },
    };
    assert_eq!(actions(&mut swarm), [told, Action::Whole]);
    assert!(swarm.held().is_full());
}

#[test]
fn a_fetch_that_fails_is_asked_for_again_after_a_pause() {
    let (mut swarm, want) = fetching();
    swarm.on_fetched(at(2), FetchId(want), Fetched::Failed);
    let ending = Ending::Failed;
    assert_eq!(sent(&mut swarm), [Message::Done { want, ending }]);
    swarm.on_time(at(2 + 49));
    assert_eq!(sent(&mut swarm), []);
    swarm.on_time(at(2 + 50));
    assert_eq!(wanted(&mut swarm).1, [0]);
}

#[test]
fn who_sends_something_else_does_not_have_it() {
    let (mut swarm, want) = fetching();
    for message in [Message::Hello, Message::All { load: 0 }] {
        swarm.on_message(at(1), PeerId(3), message);
    }
    actions(&mut swarm);
    swarm.on_fetched(at(2), FetchId(want), Fetched::Corrupt);
    assert!(!swarm.neighbours[&OTHER].held.contains(0));
    assert_eq!(state(&swarm), State::Linked);
}

#[test]
fn who_alone_has_a_chunk_is_asked_again_if_it_sends_something_else() {
    let (mut swarm, want) = fetching();
    swarm.on_fetched(at(2), FetchId(want), Fetched::Corrupt);
    let ending = Ending::Failed;
    assert_eq!(sent(&mut swarm), [Message::Done { want, ending }]);
    assert_eq!(state(&swarm), State::Linked);
    swarm.on_time(at(2 + 50));
    assert_eq!(wanted(&mut swarm).1, [0]);
}

#[test]
fn who_fails_again_and_again_rests() {
    let (mut swarm, mut want) = fetching();
    for round in 1..=neighbours::STRIKES_MAX {
        let now = u64::from(round) * 1000;
        swarm.on_fetched(at(now), FetchId(want), Fetched::Failed);
        if round == neighbours::STRIKES_MAX {
            break;
        }
        actions(&mut swarm);
        swarm.on_time(at(now + 500));
        (want, _) = wanted(&mut swarm);
        let (chunk, load) = (0, 0);
        swarm.on_message(at(now + 500), OTHER, Message::Grant { want, chunk, load });
        actions(&mut swarm);
    }
    assert_eq!(state(&swarm), State::Resting);
    assert_eq!(swarm.copies, [0], "what it has counts no more");
}

#[test]
fn a_late_fetch_is_cancelled_and_its_source_struck() {
    let (mut swarm, want) = fetching();
    let late = Options::default().patience.max;
    swarm.on_message(at(5_000), OTHER, Message::All { load: 0 });
    swarm.on_message(at(9_000), OTHER, Message::All { load: 0 });
    actions(&mut swarm);
    swarm.on_time(at(1) + late);
    let cancel = Action::Cancel(FetchId(want));
    assert_eq!(actions(&mut swarm).first(), Some(&cancel));
    assert_eq!(swarm.neighbours[&OTHER].strikes, 1);
    swarm.on_fetched(at(20_000), FetchId(want), Fetched::Cancelled);
    assert!(!swarm.taken.contains(0));
}

#[test]
fn grants_that_fit_nothing_are_given_back() {
    let unwanted = |want| Message::Done {
        want,
        ending: Ending::Unwanted,
    };
    let (mut swarm, want) = asking();
    let grant = |want, chunk| Message::Grant {
        want,
        chunk,
        load: 0,
    };
    swarm.on_message(at(1), OTHER, grant(want + 1, 0));
    assert_eq!(sent(&mut swarm), [unwanted(want + 1)]);
    swarm.on_message(at(1), PeerId(3), grant(want, 0));
    assert_eq!(sent(&mut swarm), [unwanted(want)], "of somebody else");
    swarm.on_message(at(1), OTHER, grant(want, 5));
    assert_eq!(sent(&mut swarm)[0], unwanted(want), "what was not named");
}

#[test]
fn no_more_neighbours_than_there_may_be() {
    let options = Options {
        neighbours_max: 2,
        ..Options::default()
    };
    let mut swarm = swarm(ChunkSet::full(4), options);
    for peer in 2..4 {
        swarm.on_message(at(0), PeerId(peer), Message::Hello);
        let expected = [Message::Welcome, Message::All { load: 0 }];
        assert_eq!(sent(&mut swarm), expected);
    }
    swarm.on_message(at(0), PeerId(4), Message::Hello);
    assert_eq!(sent(&mut swarm), [Message::Refuse(Refusal::Full)]);
    assert_eq!(swarm.neighbours(), 2);
    swarm.on_message(at(1), PeerId(2), Message::Bye);
    swarm.on_message(at(1), PeerId(4), Message::Hello);
    assert_eq!(sent(&mut swarm)[0], Message::Welcome);
}

#[test]
fn no_more_is_asked_for_than_there_may_be() {
    let options = Options {
        downloads_max: 3,
        ..Options::default()
    };
    let mut swarm = swarm(ChunkSet::empty(64), options);
    let members: Vec<_> = (2..6).map(|id| member(id, true)).collect();
    swarm.on_members(at(0), &members);
    let mut wants = 0;
    for peer in 2..6 {
        swarm.on_message(at(0), PeerId(peer), Message::Welcome);
        swarm.on_message(at(0), PeerId(peer), Message::All { load: 0 });
        let messages = sent(&mut swarm);
        let asked = messages
            .iter()
            .filter(|message| matches!(message, Message::Want { .. }));
        wants += asked.count();
        assert!(wants <= 3);
    }
    assert_eq!(wants, 3);
    assert!(swarm.neighbours.values().all(|other| other.asked <= 2));
}

#[test]
fn closing_waits_for_readers() {
    let mut swarm = swarm(ChunkSet::full(4), Options::default());
    swarm.on_message(at(0), OTHER, Message::Hello);
    let (want, candidates) = (1, vec![2]);
    swarm.on_message(at(0), OTHER, Message::Want { want, candidates });
    actions(&mut swarm);
    swarm.close(at(1));
    assert_eq!(sent(&mut swarm), [Message::Bye]);
    let candidates = vec![3];
    swarm.on_message(
        at(2),
        OTHER,
        Message::Want {
            want: 2,
            candidates,
        },
    );
    assert_eq!(
        sent(&mut swarm),
        [Message::Bye],
        "nothing is granted any more"
    );
    let ending = Ending::Held;
    swarm.on_message(at(3), OTHER, Message::Done { want, ending });
    assert_eq!(actions(&mut swarm), [Action::Closed]);
    assert_eq!(swarm.deadline(), None);
}

#[test]
fn closing_does_not_wait_for_the_dead() {
    let mut swarm = swarm(ChunkSet::full(4), Options::default());
    swarm.on_message(at(0), OTHER, Message::Hello);
    let (want, candidates) = (1, vec![2]);
    swarm.on_message(at(0), OTHER, Message::Want { want, candidates });
    swarm.close(at(1));
    actions(&mut swarm);
    while let Some(until) = swarm.deadline() {
        assert!(
            until <= at(0) + Options::default().patience.max,
            "a place is given back"
        );
        swarm.on_time(until);
    }
    assert_eq!(actions(&mut swarm), [Action::Closed]);
}

#[test]
fn closing_waits_for_what_is_fetched() {
    let (mut swarm, want) = fetching();
    swarm.close(at(2));
    let bye = Action::Send {
        to: OTHER,
        message: Message::Bye,
    };
    let cancel = Action::Cancel(FetchId(want));
    assert_eq!(actions(&mut swarm), [cancel, bye]);
    swarm.on_time(at(60_000));
    assert_eq!(actions(&mut swarm), [], "its memory is the device's");
    swarm.on_fetched(at(60_001), FetchId(want), Fetched::Cancelled);
    assert_eq!(actions(&mut swarm).last(), Some(&Action::Closed));
}

/// What is asked, of whom.
fn wants_to(swarm: &mut Swarm) -> Vec<(PeerId, u32)> {
    let wants = actions(swarm)
        .into_iter()
        .filter_map(|action| match action {
            Action::Send {
                to,
                message: Message::Want { want, .. },
            } => Some((to, want)),
            _ => None,
        });
    wants.collect()
}

#[test]
fn what_is_slow_at_the_end_is_asked_for_twice() {
    let mut swarm = swarm(ChunkSet::empty(2), Options::default());
    swarm.on_members(at(0), &[member(2, true), member(3, true)]);
    for peer in [2, 3] {
        swarm.on_message(at(0), PeerId(peer), Message::Welcome);
        swarm.on_message(at(0), PeerId(peer), Message::All { load: 0 });
    }
    let wants = wants_to(&mut swarm);
    let [(to_first, first), (to_second, second)] = wants[..] else {
        panic!("each is asked once");
    };
    let load = 0;
    for (chunk, to, want) in [(0, to_first, first), (1, to_second, second)] {
        swarm.on_message(at(1), to, Message::Grant { want, chunk, load });
    }
    swarm.on_fetched(at(11), FetchId(first), Fetched::Held);
    // What was asked before the second grant is answered: there is nothing now, so that only the slow one is left.
    for (to, want) in wants_to(&mut swarm) {
        swarm.on_message(at(12), to, Message::Busy { want, load });
    }
    swarm.on_time(at(1_000));
    let asked = actions(&mut swarm);
    let copy = asked.iter().find_map(|action| match action {
        Action::Send {
            to,
            message: Message::Want { want, candidates },
        } if *to == to_first && *candidates == [1] => Some(*want),
        _ => None,
    });
    let want = copy.expect("the other one is asked, too");
    swarm.on_message(
        at(1_001),
        to_first,
        Message::Grant {
            want,
            chunk: 1,
            load,
        },
    );
    let copied = Action::Fetch {
        fetch: FetchId(want),
        source: to_first,
        chunk: 1,
        is_copy: true,
    };
    assert!(actions(&mut swarm).contains(&copied));
    swarm.on_fetched(at(1_002), FetchId(want), Fetched::Held);
    let ended = actions(&mut swarm);
    assert!(ended.contains(&Action::Cancel(FetchId(second))));
    assert!(ended.contains(&Action::Whole));
}

/// A receiver of four chunks, of which it wants the second and the last, from [`OTHER`], which has all.
fn wanting_two(options: Options) -> Swarm {
    let mut some = ChunkSet::empty(4);
    some.insert(1);
    some.insert(3);
    let mut swarm = swarm(ChunkSet::empty(4), options).wanting(some);
    swarm.on_members(at(0), &[member(2, true)]);
    swarm.on_message(at(0), OTHER, Message::Welcome);
    swarm.on_message(at(0), OTHER, Message::All { load: 0 });
    swarm
}

/// Fetches all that is asked for; what else was said, and whether that was all.
fn fetch_all(swarm: &mut Swarm) -> (Vec<Message>, bool) {
    let (mut said, mut is_whole) = (Vec::new(), false);
    while let Some(action) = swarm.poll_action() {
        match action {
            Action::Send {
                message: Message::Want { want, candidates },
                ..
            } => {
                let (chunk, load) = (candidates[0], 0);
                swarm.on_message(at(1), OTHER, Message::Grant { want, chunk, load });
            }
            Action::Send { message, .. } => said.push(message),
            Action::Fetch { fetch, .. } => swarm.on_fetched(at(2), fetch, Fetched::Held),
            Action::Whole => is_whole = true,
            Action::Cancel(_) | Action::Closed => {}
        }
    }
    (said, is_whole)
}

#[test]
fn a_receiver_of_some_asks_for_those_and_is_through_with_them() {
    let mut swarm = wanting_two(Options::default());
    let (said, is_whole) = fetch_all(&mut swarm);
    assert!(is_whole && swarm.is_complete() && !swarm.held().is_full());
    assert_eq!(swarm.held().iter().collect::<Vec<_>>(), [1, 3]);
    let is_had = |message: &&Message| {
        matches!(
            message,
            Message::Done {
                ending: Ending::Held,
                ..
            }
        )
    };
    assert_eq!(said.iter().filter(is_had).count(), 2);
    // Nothing more is wanted of whoever comes.
    swarm.on_members(at(3), &[member(2, true), member(3, true)]);
    assert_eq!(sent(&mut swarm), []);
    // And others have them from here.
    let third = PeerId(3);
    swarm.on_message(at(4), third, Message::Hello);
    let words = vec![0b1010];
    let (load, first) = (0, 0);
    let told = [Message::Welcome, Message::Map { load, first, words }];
    assert_eq!(sent(&mut swarm), told);
    let (want, candidates) = (9, vec![0, 3]);
    swarm.on_message(at(4), third, Message::Want { want, candidates });
    let (chunk, load) = (3, 1);
    assert_eq!(sent(&mut swarm), [Message::Grant { want, chunk, load }]);
}

#[test]
fn a_neighbour_with_nothing_that_is_wanted_is_not_asked() {
    let mut swarm = wanting_two(Options::default());
    fetch_all(&mut swarm);
    let mut some = ChunkSet::empty(4);
    some.insert(0);
    let mut other = self::swarm(ChunkSet::empty(4), Options::default()).wanting(some);
    other.on_members(at(0), &[member(2, false)]);
    other.on_message(at(0), OTHER, Message::Welcome);
    sent(&mut other);
    let (load, chunks) = (0, vec![1, 2, 3]);
    other.on_message(at(0), OTHER, Message::Have { load, chunks });
    assert_eq!(sent(&mut other), []);
    let chunks = vec![0];
    other.on_message(at(0), OTHER, Message::Have { load, chunks });
    assert_eq!(wanted(&mut other).1, [0]);
}

#[test]
fn who_does_not_serve_tells_nobody_and_grants_nothing() {
    let options = Options {
        is_serving: false,
        ..Options::default()
    };
    let mut swarm = wanting_two(options);
    let (want, candidates) = (9, vec![1]);
    sent(&mut swarm);
    swarm.on_message(at(0), OTHER, Message::Want { want, candidates });
    swarm.on_message(at(0), PeerId(3), Message::Hello);
    let refused = Message::Refuse(Refusal::Full);
    assert_eq!(
        sent(&mut swarm),
        [Message::Busy { want, load: 0 }, refused.clone()]
    );
    // It says that it lives, and no more.
    swarm.on_time(at(3_000));
    let alive = Message::Have {
        load: 0,
        chunks: Vec::new(),
    };
    assert!(sent(&mut swarm).contains(&alive));
    let mut swarm = wanting_two(options);
    let (said, is_whole) = fetch_all(&mut swarm);
    assert!(is_whole);
    // Nor is it a holder of what it has had; and it leaves its place to others.
    let ending = Ending::Unwanted;
    let done = |want| Message::Done { want, ending };
    assert_eq!(said, [Message::Hello, done(0), done(1), refused]);
}

#[test]
fn who_has_wanted_nothing_for_long_makes_room() {
    let options = Options {
        neighbours_max: 2,
        ..Options::default()
    };
    let mut swarm = swarm(ChunkSet::full(4), options);
    let full = [Message::Refuse(Refusal::Full)];
    for id in [2, 3] {
        swarm.on_message(at(0), PeerId(id), Message::Hello);
    }
    sent(&mut swarm);
    swarm.on_message(at(5_000), PeerId(4), Message::Hello);
    assert!(sent(&mut swarm).contains(&full[0]));
    // One of the two has asked meanwhile, and the other has only said that it lives.
    let (want, candidates, load, chunks) = (1, vec![1], 0, Vec::new());
    swarm.on_message(at(5_000), PeerId(2), Message::Want { want, candidates });
    swarm.on_message(at(5_000), PeerId(3), Message::Have { load, chunks });
    sent(&mut swarm);
    swarm.on_message(at(6_000), PeerId(4), Message::Hello);
    let neighbours = [2, 3, 4].map(|id| swarm.is_neighbour(PeerId(id)));
    assert_eq!(neighbours, [true, false, true]);
    assert_eq!(sent(&mut swarm)[..2], [full[0].clone(), Message::Welcome]);
    // Who has asked within that time stays.
    swarm.on_message(at(10_500), PeerId(5), Message::Hello);
    assert!(swarm.is_neighbour(PeerId(2)) && !swarm.is_neighbour(PeerId(5)));
}

/// A receiver of 16 chunks from [`OTHER`], which is in another rack and has all, with somebody else of its own rack
/// who has none: a neighbour or not.
fn in_a_rack(knows_its_mate: bool) -> Swarm {
    let [here, there] = ["a", "b"].map(|rack| rack.parse::<Rack>().unwrap());
    let options = Options {
        greeted_max: if knows_its_mate { 2 } else { 1 },
        downloads_far_max: 1,
        ..Options::default()
    };
    let mut swarm = Swarm::new(at(0), ME, here, ChunkSet::empty(16), options, 7);
    let [mut other, mut mate] = [member(2, true), member(3, false)];
    (other.rack, mate.rack) = (there, here);
    // The other one first, so that it is who is greeted where that is one.
    swarm.on_members(at(0), &[other]);
    swarm.on_members(at(0), &[other, mate]);
    if knows_its_mate {
        swarm.on_message(at(0), mate.id, Message::Welcome);
    }
    swarm.on_message(at(0), OTHER, Message::Welcome);
    swarm.on_message(at(0), OTHER, Message::All { load: 0 });
    swarm
}

/// Fetches the first chunk that is asked for, in 10 ms; how many were named, if any was.
fn fetch_one(swarm: &mut Swarm, now: u64) -> Option<usize> {
    let asked = sent(swarm).into_iter().find_map(|message| match message {
        Message::Want { want, candidates } => Some((want, candidates)),
        _ => None,
    });
    let (want, candidates) = asked?;
    let (chunk, load) = (candidates[0], 0);
    swarm.on_message(at(now), OTHER, Message::Grant { want, chunk, load });
    actions(swarm);
    swarm.on_fetched(at(now + 10), FetchId(want), Fetched::Held);
    Some(candidates.len())
}

#[test]
fn who_has_no_neighbour_in_its_rack_asks_for_everything() {
    let mut swarm = in_a_rack(false);
    assert!(!swarm.is_neighbour(PeerId(3)));
    assert_eq!(fetch_one(&mut swarm, 1), Some(16));
}

#[test]
fn who_was_let_down_by_its_rack_waits_once_and_as_long_as_chunks_take() {
    let mut swarm = in_a_rack(true);
    let mut now = 1;
    let mut own = 0;
    while let Some(named) = fetch_one(&mut swarm, now) {
        assert!(named < 16, "some fall to the other one");
        (now, own) = (now + 10, own + 1);
    }
    assert!(0 < own && own < 16);
    swarm.on_time(at(now + 16 * 10 - 1));
    assert_eq!(fetch_one(&mut swarm, now), None, "it may still come");
    now += 16 * 10 + 1;
    swarm.on_time(at(now));
    for _ in own..16 {
        assert!(
            fetch_one(&mut swarm, now).is_some(),
            "and no more is waited for"
        );
        now += 10;
    }
    assert!(swarm.is_complete());
}
