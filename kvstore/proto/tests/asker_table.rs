//! What an asker makes of each answer: the whole table; what it repeats, and what never.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use core::time::Duration;

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::asker::{
    Asker, AskerAction, LEFT_WAIT, MAP_PAUSE, OPERATIONS_MAX, OperationId, Outcome, PAUSE,
    REACH_WAIT, RESEND, ReadAnswer, SILENT_WAIT, TooManyOperations, Wish,
};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{Answer, AskerId, Found, Only};
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::retention::{Pin, Retention};
use lunette_kvstore_proto::version::{Form, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_runtime_core::time::Time;

const KEY: Fingerprint = Fingerprint(0x5eed);
const CACHE: NamespaceKind = NamespaceKind::Cache;
const STRICT: NamespaceKind = NamespaceKind::Strict;
const VERSION: Version = Version {
    epoch: Epoch(1),
    sequence: 1,
};
const SEAT: Seat = Seat {
    node: NodeId(1),
    incarnation: 1,
    core: CoreIndex(0),
};
const PATIENCE: Duration = Duration::from_secs(5);
const END: Time = Time::from_ns(5_000_000_000);
const ASK: WriteAsk = WriteAsk {
    key: KEY,
    kind: WriteKind::Put,
    form: Form::Whole,
    namespace: CACHE,
    wanted: 1,
    wait_ms: 100,
    retention: Retention {
        is_last: false,
        pin: Pin::None,
        group: None,
        behind: None,
    },
};

/// What comes of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Then {
    Ends(Outcome),
    /// Another request, after a pause.
    Again,
    /// The owner is asked for the bytes.
    Reads,
}

use Then::{Again, Ends, Reads};

fn found() -> Found {
    Found {
        version: VERSION,
        form: Form::Whole,
        len_bytes: 5,
        crc32c: 6,
        held_ms: 0,
        owners: vec![SEAT],
    }
}

fn asker() -> Asker {
    let member = MapMember::new(SEAT.node, 1, ([192, 0, 2, 1], 7000).into());
    let mut asker = Asker::new(AskerId(1));
    asker.on_map(&ClusterMap::new(Epoch(1), 0, vec![member]).expect("a map"));
    asker
}

fn begin(asker: &mut Asker, wish: Wish) -> Vec<AskerAction> {
    begin_in(CACHE, asker, wish)
}

fn begin_in(namespace: NamespaceKind, asker: &mut Asker, wish: Wish) -> Vec<AskerAction> {
    let mut out = Vec::new();
    let begun = asker.begin(Time::ZERO, KEY, namespace, wish, END, &mut out);
    assert!(begun.is_ok());
    out
}

/// The requests among actions.
fn requests(actions: &[AskerAction]) -> Vec<RequestId> {
    let requests = actions.iter().filter_map(|action| match action {
        AskerAction::Ask(_, _, ask) => Some(ask.request()),
        AskerAction::Write(_, request, _) | AskerAction::Read { request, .. } => Some(*request),
        _ => None,
    });
    requests.collect()
}

/// What an asker with one request under way, the first, makes of what `tell` tells it.
fn then(asker: &mut Asker, tell: impl FnOnce(&mut Asker, &mut Vec<AskerAction>)) -> Then {
    let mut out = Vec::new();
    tell(asker, &mut out);
    let done = out.iter().find_map(|action| match action {
        AskerAction::Done(_, outcome) => Some(outcome.clone()),
        _ => None,
    });
    if let Some(outcome) = done {
        return Ends(outcome);
    }
    if out
        .iter()
        .any(|action| matches!(action, AskerAction::Read { .. }))
    {
        return Reads;
    }
    out.clear();
    asker.on_tick(Time::ZERO + PAUSE, &mut out);
    assert_eq!(requests(&out), [RequestId(2)], "another request");
    Again
}

#[test]
fn answers_of_homes() {
    let removed = Outcome::Removed {
        found: true,
        version: VERSION,
    };
    let table: [(Answer, Then, Then); 9] = [
        (Answer::Found(found()), Reads, Ends(Outcome::Found(found()))),
        (Answer::Miss, Ends(Outcome::Miss), Ends(Outcome::Miss)),
        (
            Answer::Unknown,
            Ends(Outcome::Unknown),
            Ends(Outcome::Unknown),
        ),
        (
            Answer::Removed {
                found: true,
                version: VERSION,
            },
            Ends(removed.clone()),
            Ends(removed),
        ),
        (Answer::Unavailable, Again, Again),
        (Answer::Stale(Epoch(2)), Again, Again),
        (Answer::Busy, Again, Again),
        (Answer::Full, Again, Again),
        (
            Answer::Interrupted,
            Ends(Outcome::Interrupted),
            Ends(Outcome::Interrupted),
        ),
    ];
    for (answer, to_get, to_remove) in table {
        // Where an object may leave at any time, it may as well be removed twice.
        let to_remove_cached = match answer {
            Answer::Interrupted => Again,
            _ => to_remove.clone(),
        };
        for (namespace, wish, expected) in [
            (CACHE, Wish::Get, to_get.clone()),
            (STRICT, Wish::Get, to_get),
            (CACHE, Wish::Remove(Only::Any), to_remove_cached),
            (STRICT, Wish::Remove(Only::Any), to_remove),
        ] {
            let mut asker = asker();
            begin_in(namespace, &mut asker, wish);
            let answer = answer.clone();
            let then = then(&mut asker, |asker, out| {
                asker.on_answer(Time::ZERO, RequestId(1), answer.clone(), out);
            });
            assert_eq!(then, expected, "{answer:?} to {wish:?}, {namespace:?}");
        }
    }
}

#[test]
fn answers_of_owners_to_writes() {
    let written = WriteAnswer::Written {
        version: VERSION,
        is_cut_off: false,
    };
    let exists = WriteAnswer::Exists { version: VERSION };
    let table: [(WriteAnswer, Then); 7] = [
        (written, Ends(Outcome::Written(written))),
        (exists, Ends(Outcome::Written(exists))),
        (WriteAnswer::Busy, Again),
        (WriteAnswer::Full, Again),
        (WriteAnswer::Unavailable, Again),
        (
            WriteAnswer::Aborted,
            Ends(Outcome::Written(WriteAnswer::Aborted)),
        ),
        (WriteAnswer::Interrupted, Ends(Outcome::Interrupted)),
    ];
    for (answer, expected) in table {
        let mut asker = asker();
        begin(&mut asker, Wish::Write(SEAT, ASK));
        let then = then(&mut asker, |asker, out| {
            asker.on_written(Time::ZERO, RequestId(1), answer, out);
        });
        assert_eq!(then, expected, "{answer:?}");
        // Who would try another owner next is told that nothing was done.
        let once = match expected {
            Again => Ends(Outcome::Written(answer)),
            ends => ends,
        };
        let mut asker = self::asker();
        begin(&mut asker, Wish::WriteOnce(SEAT, ASK));
        let then = self::then(&mut asker, |asker, out| {
            asker.on_written(Time::ZERO, RequestId(1), answer, out);
        });
        assert_eq!(then, once, "{answer:?}");
    }
}

#[test]
fn answers_of_owners_to_reads() {
    for (answer, expected) in [
        (ReadAnswer::Bytes, Ends(Outcome::Hit(VERSION))),
        (ReadAnswer::Absent, Again),
        (ReadAnswer::Unavailable, Again),
    ] {
        let mut asker = asker();
        begin(&mut asker, Wish::Get);
        asker.on_answer(
            Time::ZERO,
            RequestId(1),
            Answer::Found(found()),
            &mut Vec::new(),
        );
        let then = then(&mut asker, |asker, out| {
            asker.on_read(Time::ZERO, RequestId(1), answer, out);
        });
        assert_eq!(then, expected, "{answer:?}");
    }
}

/// Without an answer the same request goes to the same place.
#[test]
fn what_may_have_been_done_is_not_done_again() {
    for wish in [
        Wish::Get,
        Wish::Lookup(None),
        Wish::Remove(Only::Any),
        Wish::Write(SEAT, ASK),
        Wish::WriteOnce(SEAT, ASK),
    ] {
        let mut asker = asker();
        let first = begin(&mut asker, wish);
        assert_eq!(requests(&first), [RequestId(1)]);
        let mut out = Vec::new();
        asker.on_tick(Time::from_ns(1), &mut out);
        assert_eq!(out, [], "too early");
        asker.on_tick(Time::ZERO + RESEND, &mut out);
        assert_eq!(requests(&out), [RequestId(1)], "{wish:?}");
    }
}

/// What is told of somebody who cannot be reached, again and again for a while: only reads end.
#[test]
fn reads_do_not_wait_for_who_cannot_be_reached() {
    let unknown = Some(Outcome::Unknown);
    for (wish, outcome) in [
        (Wish::Get, unknown.clone()),
        (Wish::Lookup(None), unknown),
        (Wish::Remove(Only::Any), None),
    ] {
        let mut asker = asker();
        let mut out = begin(&mut asker, wish);
        let mut now = Time::ZERO;
        let ended = loop {
            let request = requests(&out)[0];
            out.clear();
            asker.on_unreached(now, request, Duration::ZERO, &mut out);
            if let Some(AskerAction::Done(_, outcome)) = out.pop() {
                break Some(outcome);
            }
            now = now + PAUSE;
            asker.on_tick(now, &mut out);
            if requests(&out).is_empty() {
                break None;
            }
        };
        assert_eq!(ended, outcome, "{wish:?}");
        if outcome.is_some() {
            assert!(now >= Time::ZERO + REACH_WAIT && now < Time::ZERO + REACH_WAIT + PAUSE);
            // The next one does not wait as long, until there is an answer.
            let next = requests(&begin(&mut asker, wish))[0];
            asker.on_unreached(now, next, Duration::ZERO, &mut out);
            assert!(matches!(out[..], [AskerAction::Done(_, Outcome::Unknown)]));
            let answered = requests(&begin(&mut asker, wish))[0];
            asker.on_answer(now, answered, Answer::Miss, &mut out);
            out.clear();
            let next = requests(&begin(&mut asker, wish))[0];
            asker.on_unreached(now, next, Duration::ZERO, &mut out);
            assert_eq!(out, [], "it is tried again");
        }
    }
}

/// Owners that cannot be reached are passed over; where there is no other, nobody knows.
#[test]
fn bytes_are_asked_of_who_can_be_reached() {
    let other = Seat {
        node: NodeId(2),
        ..SEAT
    };
    let mut asker = asker();
    let mut out = begin(&mut asker, Wish::Get);
    let mut now = Time::ZERO;
    let both = Found {
        owners: vec![SEAT, other],
        ..found()
    };
    let reads = |out: &[AskerAction]| match out {
        [AskerAction::Read { owner, request, .. }] => (*owner, *request),
        _ => panic!("no read: {out:?}"),
    };
    while now < Time::ZERO + REACH_WAIT {
        let request = requests(&out)[0];
        out.clear();
        asker.on_answer(now, request, Answer::Found(both.clone()), &mut out);
        let (owner, first) = reads(&out);
        assert_eq!(owner, SEAT);
        out.clear();
        asker.on_unreached(now, first, Duration::ZERO, &mut out);
        let (owner, second) = reads(&out);
        assert_eq!((owner, first == second), (other, false));
        out.clear();
        asker.on_unreached(now, second, Duration::ZERO, &mut out);
        assert_eq!(out, [], "the home is asked again");
        now = now + PAUSE;
        asker.on_tick(now, &mut out);
    }
    let request = requests(&out)[0];
    out.clear();
    asker.on_answer(now, request, Answer::Found(both), &mut out);
    let (_, first) = reads(&out);
    out.clear();
    asker.on_unreached(now, first, Duration::ZERO, &mut out);
    let (_, second) = reads(&out);
    out.clear();
    asker.on_unreached(now, second, Duration::ZERO, &mut out);
    assert!(matches!(out[..], [AskerAction::Done(_, Outcome::Unknown)]));
}

/// A get of who says nothing waits until it is told that nothing else comes from there either.
#[test]
fn gets_wait_while_anything_comes() {
    let mut asker = asker();
    let request = requests(&begin(&mut asker, Wish::Get))[0];
    let mut out = Vec::new();
    let silent = Time::ZERO + SILENT_WAIT;
    asker.on_tick(silent, &mut out);
    assert_eq!(requests(&out), [request], "asked again");
    out.clear();
    asker.on_unreached(silent, request, SILENT_WAIT, &mut out);
    assert!(matches!(out[..], [AskerAction::Done(_, Outcome::Unknown)]));
    assert_eq!(asker.patience(silent, SEAT), RESEND);
}

/// A lookup does not wait for who says nothing; a get does.
#[test]
fn lookups_do_not_wait_for_who_is_silent() {
    let mut asker = asker();
    begin(&mut asker, Wish::Lookup(None));
    begin(&mut asker, Wish::Get);
    let mut out = Vec::new();
    let silent = Time::ZERO + SILENT_WAIT;
    asker.on_tick(Time::from_ns(silent.as_ns() - 1), &mut out);
    assert_eq!(requests(&out), [RequestId(1), RequestId(2)], "asked again");
    out.clear();
    asker.on_tick(silent, &mut out);
    let ends = |out: &[AskerAction]| {
        let ends = out.iter().filter_map(|action| match action {
            AskerAction::Done(OperationId(id), Outcome::Unknown) => Some(*id),
            _ => None,
        });
        ends.collect::<Vec<_>>()
    };
    assert_eq!(ends(&out), [1]);
    let mut now = silent;
    for (id, waits) in [(3, RESEND), (4, RESEND)] {
        let begun = asker.begin(
            now,
            KEY,
            CACHE,
            Wish::Lookup(None),
            now + PATIENCE,
            &mut out,
        );
        assert_eq!(begun, Ok(OperationId(id)));
        out.clear();
        now = now + waits;
        asker.on_tick(now, &mut out);
        assert_eq!(ends(&out), [id]);
    }
}

/// A home that refuses what was asked under an earlier map than its own remembers nothing of it, so that a copy that is
/// under way under the later one would be done after its asker was told that nothing was.
#[test]
fn copies_of_a_request_are_asked_under_one_map() {
    let asked = |actions: &[AskerAction]| -> Vec<_> {
        let asked = actions.iter().filter_map(|action| match action {
            AskerAction::Ask(_, epoch, ask) => Some((*epoch, ask.request().0)),
            _ => None,
        });
        asked.collect()
    };
    for (wish, again) in [(Wish::Remove(Only::Any), 1), (Wish::Get, 2)] {
        let mut asker = asker();
        let mut out = begin(&mut asker, wish);
        assert_eq!(asked(&out), [(Epoch(1), 1)]);
        let member = MapMember::new(SEAT.node, 1, ([192, 0, 2, 1], 7000).into());
        asker.on_map(&ClusterMap::new(Epoch(2), 0, vec![member]).expect("a map"));
        out.clear();
        asker.on_tick(Time::ZERO + RESEND, &mut out);
        assert_eq!(
            asked(&out),
            [(Epoch(again), 1)],
            "what changes nothing may be done twice"
        );
        out.clear();
        let now = Time::ZERO + RESEND;
        asker.on_answer(now, RequestId(1), Answer::Stale(Epoch(2)), &mut out);
        asker.on_tick(now + PAUSE, &mut out);
        assert_eq!(asked(&out), [(Epoch(2), 2)], "another request");
    }
}

/// Who was asked is asked again, until it has left the map for so long that no answer is to come; whether it has is looked for.
#[test]
fn nobody_waits_for_the_answer_of_who_has_left() {
    let other = MapMember::new(NodeId(2), 1, ([192, 0, 2, 2], 7000).into());
    let former = MapMember::new(SEAT.node, 1, ([192, 0, 2, 1], 7000).into());
    let map = |epoch, members| ClusterMap::new(Epoch(epoch), 0, members).expect("a map");
    for (namespace, wish) in [
        (STRICT, Wish::Remove(Only::Any)),
        (CACHE, Wish::Write(SEAT, ASK)),
        (CACHE, Wish::WriteOnce(SEAT, ASK)),
    ] {
        let mut asker = asker();
        begin_in(namespace, &mut asker, wish);
        let mut out = Vec::new();
        let (mut now, mut wanted, mut ended) = (Time::ZERO, 0, None);
        // It is gone for a while, comes back, and leaves.
        let maps = [
            (300, map(2, vec![other])),
            (1000, map(3, vec![former, other])),
            (1500, map(4, vec![other])),
        ];
        let mut maps = maps.into_iter().peekable();
        while ended.is_none() && now < END {
            now = now + Duration::from_millis(10);
            if let Some((_, map)) =
                maps.next_if(|(ms, _)| now >= Time::ZERO + Duration::from_millis(*ms))
            {
                asker.on_map(&map);
            }
            asker.on_tick(now, &mut out);
            wanted += out
                .iter()
                .filter(|action| matches!(action, AskerAction::MapWanted(_)))
                .count();
            ended = out.drain(..).find_map(|action| match action {
                AskerAction::Done(_, outcome) => Some((now, outcome)),
                _ => None,
            });
        }
        let Some((at, Outcome::Interrupted)) = ended else {
            panic!("{wish:?}: {ended:?}");
        };
        let took = at.since(Time::ZERO + Duration::from_millis(1500));
        assert!(
            (LEFT_WAIT..LEFT_WAIT + RESEND * 2).contains(&took),
            "{wish:?}: {took:?}"
        );
        assert!(
            (6..=10).contains(&wanted),
            "each {MAP_PAUSE:?} of 2.5 s: {wanted}"
        );
    }
}

/// In a map without homes there is nobody to ask, and nobody who would say that it is an old one.
#[test]
fn where_there_is_no_home_a_newer_map_is_looked_for() {
    let nobody = ClusterMap::new(Epoch(1), 0, vec![]).expect("a map");
    let member = MapMember::new(SEAT.node, 1, ([192, 0, 2, 1], 7000).into());
    let next = ClusterMap::new(Epoch(2), 0, vec![member]).expect("a map");
    for wish in [Wish::Lookup(None), Wish::Get, Wish::Remove(Only::Any)] {
        let mut asker = Asker::new(AskerId(1));
        asker.on_map(&nobody);
        let mut out = Vec::new();
        let begun = asker.begin(Time::ZERO, KEY, STRICT, wish, END, &mut out);
        assert!(begun.is_ok());
        let (mut now, mut wanted) = (Time::ZERO, 0);
        while now < Time::ZERO + 4 * MAP_PAUSE {
            now = now + Duration::from_millis(5);
            asker.on_tick(now, &mut out);
            for action in out.drain(..) {
                assert_eq!(action, AskerAction::MapWanted(Epoch(2)), "{wish:?}");
                wanted += 1;
            }
        }
        assert!(
            (3..=4).contains(&wanted),
            "{wish:?}: {wanted} in 4 {MAP_PAUSE:?}"
        );
        asker.on_map(&next);
        asker.on_tick(now + PAUSE, &mut out);
        assert_eq!(requests(&out).len(), 1, "{wish:?}");
    }
}

/// A removal that may have been done is asked for again in a cache namespace, of the next home. It is not known whether it was,
/// until that one says so.
#[test]
fn a_removal_in_doubt_is_asked_for_again() {
    let other = MapMember::new(NodeId(2), 1, ([192, 0, 2, 2], 7000).into());
    let next = ClusterMap::new(Epoch(2), 0, vec![other]).expect("a map");
    let removed = Outcome::Removed {
        found: false,
        version: VERSION,
    };
    for (is_answered, expected) in [(true, removed), (false, Outcome::Interrupted)] {
        let mut asker = asker();
        begin(&mut asker, Wish::Remove(Only::Any));
        asker.on_map(&next);
        let (mut now, mut out) = (Time::ZERO, Vec::new());
        while requests(&out) != [RequestId(2)] {
            assert!(now <= Time::ZERO + LEFT_WAIT + RESEND * 4, "{out:?}");
            now = now + PAUSE;
            out.clear();
            asker.on_tick(now, &mut out);
        }
        assert!(
            now >= Time::ZERO + LEFT_WAIT,
            "its answer may be on its way"
        );
        let is_next = |action: &AskerAction| matches!(action, AskerAction::Ask(to, ..) if to.node == NodeId(2));
        assert!(out.iter().any(is_next));
        let then = then(&mut asker, |asker, out| {
            // Nobody waits for the first any more.
            asker.on_answer(now, RequestId(1), Answer::Miss, out);
            let answer = if is_answered {
                Answer::Removed {
                    found: false,
                    version: VERSION,
                }
            } else {
                Answer::Busy
            };
            asker.on_answer(now, RequestId(2), answer, out);
            asker.on_tick(END, out);
        });
        assert_eq!(then, Ends(expected));
    }
}

#[test]
fn at_the_end_it_says_what_it_knows() {
    for (wish, expected) in [
        (Wish::Get, Outcome::TimedOut),
        (Wish::Remove(Only::Any), Outcome::Interrupted),
        (Wish::Write(SEAT, ASK), Outcome::Interrupted),
        (Wish::WriteOnce(SEAT, ASK), Outcome::Interrupted),
    ] {
        let mut asker = asker();
        begin(&mut asker, wish);
        let then = then(&mut asker, |asker, out| asker.on_tick(END, out));
        assert_eq!(then, Ends(expected), "{wish:?}");
        assert_eq!(asker.under_way(), 0);
    }
    assert!(Outcome::Unknown.is_miss_to_callers() && Outcome::Miss.is_miss_to_callers());
    assert!(!Outcome::TimedOut.is_miss_to_callers());
}

/// Of a write that nobody began, it says whether there was no room when it was last asked for.
#[test]
fn a_write_that_found_no_room_says_so_at_the_end() {
    let (full, busy) = (WriteAnswer::Full, WriteAnswer::Busy);
    for (answers, expected) in [
        (vec![full], Outcome::NoRoom),
        (vec![busy, full], Outcome::NoRoom),
        (vec![full, busy], Outcome::TimedOut),
        (vec![full, WriteAnswer::Unavailable], Outcome::TimedOut),
    ] {
        let mut asker = asker();
        let mut asked = requests(&begin(&mut asker, Wish::Write(SEAT, ASK)));
        for (turn, &answer) in (1..).zip(&answers) {
            let (now, mut out) = (Time::ZERO + PAUSE * turn, Vec::new());
            asker.on_written(now, asked[0], answer, &mut out);
            assert_eq!(out, [], "{answers:?}: it is not over");
            if usize::try_from(turn) != Ok(answers.len()) {
                asker.on_tick(now + PAUSE, &mut out);
                asked = requests(&out);
            }
        }
        let then = then(&mut asker, |asker, out| asker.on_tick(END, out));
        assert_eq!(then, Ends(expected), "{answers:?}");
    }
    assert!(!Outcome::NoRoom.is_miss_to_callers());
}

/// What did nothing is not asked for again when the answer might come too late, and whether it did would not be known.
#[test]
fn what_did_nothing_is_not_sent_again_when_little_time_is_left() {
    let [early, late] = [15, 300].map(Duration::from_millis);
    let moment = Duration::from_nanos(1);
    for (late, enough) in [(early, 4 * early), (late, RESEND)] {
        for (wish, undone) in [
            (Wish::Write(SEAT, ASK), Outcome::NoRoom),
            (Wish::Remove(Only::Any), Outcome::TimedOut),
        ] {
            for (left, expected) in [(moment, Outcome::Interrupted), (Duration::ZERO, undone)] {
                let pause_ends = END.since(Time::ZERO) - enough - left;
                let mut asker = asker();
                let asked = Time::ZERO + (pause_ends - PAUSE - late);
                let mut out = Vec::new();
                let begun = asker.begin(asked, KEY, CACHE, wish, END, &mut out);
                assert!(begun.is_ok());
                let (answered, request) = (asked + late, RequestId(1));
                if matches!(wish, Wish::Write(..)) {
                    asker.on_written(answered, request, WriteAnswer::Full, &mut Vec::new());
                } else {
                    asker.on_answer(answered, request, Answer::Busy, &mut Vec::new());
                }
                asker.on_tick(Time::ZERO + pause_ends, &mut Vec::new());
                let then = then(&mut asker, |asker, out| asker.on_tick(END, out));
                assert_eq!(then, Ends(expected), "{wish:?}, {late:?}, {left:?}");
            }
        }
    }
}

/// An operation that is given up takes no room, and is not heard of any more.
#[test]
fn what_is_given_up_is_over() {
    for wish in [Wish::Get, Wish::Remove(Only::Any), Wish::Write(SEAT, ASK)] {
        let (mut asker, mut out) = (asker(), Vec::new());
        let mut last = RequestId(0);
        for _ in 0..=OPERATIONS_MAX {
            out.clear();
            let begun = asker.begin(Time::ZERO, KEY, CACHE, wish, END, &mut out);
            let id = begun.expect("those before it are over");
            last = requests(&out)[0];
            assert_eq!(asker.over_below(), last);
            asker.give_up(id);
            asker.give_up(id);
        }
        assert_eq!((asker.under_way(), asker.operation_of(last)), (0, None));
        assert!(asker.over_below() > last, "it is not sent again");
        out.clear();
        asker.on_answer(Time::ZERO, last, Answer::Miss, &mut out);
        asker.on_written(Time::ZERO, last, WriteAnswer::Interrupted, &mut out);
        asker.on_unreached(Time::ZERO, last, Duration::ZERO, &mut out);
        asker.on_tick(END, &mut out);
        assert_eq!(out, [], "{wish:?}");
    }
}

#[test]
fn operations_are_bounded_on_both_sides() {
    let mut asker = asker();
    for _ in 0..OPERATIONS_MAX {
        begin(&mut asker, Wish::Get);
    }
    let one_more = asker.begin(Time::ZERO, KEY, CACHE, Wish::Get, END, &mut Vec::new());
    assert_eq!(one_more, Err(TooManyOperations));
    asker.on_answer(Time::ZERO, RequestId(1), Answer::Miss, &mut Vec::new());
    begin(&mut asker, Wish::Get);
}
