//! What a home does with each message about a key, in each state of the key: the whole table.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::time::Duration;

use lunette_cluster_proto::fence::{Fence, NamespaceKind};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::home::{DEPARTED_WAIT, Home, HomeAction, HomeLimits, PresenceChange};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{
    Answer, Ask, AskerId, Away, CopyPage, Only, OpId, Peek, Refusal, ToHome, ToOwner, ToPeer,
    TombstonePage,
};
use lunette_kvstore_proto::placement::{Seat, home_of, next_of, seats};
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Tombstone, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_runtime_core::time::Time;

const KEY: Fingerprint = Fingerprint(0x5eed);
const STRICT: NamespaceKind = NamespaceKind::Strict;
const EPOCH: Epoch = Epoch(1);
/// What one owner asks in the rows, and another before, to bring the state about.
const OURS: OpId = OpId(1);
const THEIRS: OpId = OpId(2);

/// What a key is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not everybody has reported.
    Rebuilding,
    Absent,
    /// Another owner has claimed it.
    Claimed,
    /// Another owner has a recorded copy.
    Held,
    /// That copy has been retracted, and is not dropped yet.
    Leaving,
    /// That copy is being removed, and is not dropped yet.
    Removing,
    /// Another copy has left, and this one is a replica of it that has not said that it is there.
    Joining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Put,
    Upsert,
    /// Of a version that nobody was granted.
    Publish,
    Retract,
    Lookup,
    Remove,
}

/// The first thing that is said to whoever caused the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// It waits.
    Nothing,
    Granted,
    Exists,
    Lost,
    Dropped,
    Found,
    Miss,
    Removed,
}

use Event::{Lookup, Publish, Put, Remove, Retract, Upsert};
use Said::{Dropped, Exists, Found, Granted, Lost, Miss, Nothing, Removed};
use State::{Absent, Claimed, Held, Joining, Leaving, Rebuilding, Removing};

const STATES: [State; 7] = [
    Rebuilding, Absent, Claimed, Held, Leaving, Removing, Joining,
];
const EVENTS: [Event; 6] = [Put, Upsert, Publish, Retract, Lookup, Remove];

const TABLE: [(State, Event, Said); 42] = [
    (Rebuilding, Put, Nothing),
    (Rebuilding, Upsert, Nothing),
    (Rebuilding, Publish, Nothing),
    (Rebuilding, Retract, Nothing),
    (Rebuilding, Lookup, Nothing),
    (Rebuilding, Remove, Nothing),
    (Absent, Put, Granted),
    (Absent, Upsert, Granted),
    (Absent, Publish, Lost),
    (Absent, Retract, Dropped),
    (Absent, Lookup, Miss),
    (Absent, Remove, Removed),
    (Claimed, Put, Nothing),
    (Claimed, Upsert, Nothing),
    (Claimed, Publish, Lost),
    (Claimed, Retract, Dropped),
    (Claimed, Lookup, Miss),
    (Claimed, Remove, Removed),
    (Held, Put, Exists),
    (Held, Upsert, Granted),
    (Held, Publish, Lost),
    (Held, Retract, Dropped),
    (Held, Lookup, Found),
    // It is answered when the holder has dropped its copy.
    (Held, Remove, Nothing),
    (Leaving, Put, Granted),
    (Leaving, Upsert, Granted),
    (Leaving, Publish, Lost),
    (Leaving, Retract, Dropped),
    (Leaving, Lookup, Miss),
    (Leaving, Remove, Nothing),
    (Removing, Put, Nothing),
    (Removing, Upsert, Nothing),
    (Removing, Publish, Nothing),
    (Removing, Retract, Dropped),
    (Removing, Lookup, Miss),
    (Removing, Remove, Nothing),
    (Joining, Put, Exists),
    (Joining, Upsert, Granted),
    (Joining, Publish, Lost),
    (Joining, Retract, Dropped),
    (Joining, Lookup, Found),
    (Joining, Remove, Nothing),
];

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn map() -> ClusterMap {
    let member = |id: u64, home_weight| MapMember {
        home_weight,
        ..MapMember::new(NodeId(id), 1, ([192, 0, 2, 1], 7000).into())
    };
    // The home, and two owners.
    ClusterMap::new(EPOCH, 0, vec![member(1, 1), member(2, 0), member(3, 0)]).expect("a map")
}

fn seat(node: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation: 1,
        core: CoreIndex(0),
    }
}

struct Bench {
    home: Home,
    epoch: Epoch,
    now: Time,
    out: Vec<HomeAction>,
}

impl Bench {
    fn new(limits: HomeLimits) -> Self {
        Self::at_epoch(EPOCH, limits)
    }

    fn at_epoch(epoch: Epoch, limits: HomeLimits) -> Self {
        let mut home = Home::new(seat(1), limits);
        let mut fence = Fence::default();
        fence.renew(at(0), Duration::from_secs(1000));
        home.on_fence(fence);
        let mut bench = Self {
            home,
            epoch,
            now: at(1),
            out: Vec::new(),
        };
        let map = ClusterMap::new(epoch, 0, map().members().to_vec()).expect("a map");
        bench.home.on_map(bench.now, &map, &mut bench.out);
        bench
    }

    /// Everybody reports that it has nothing, and whoever was away may be serving no more.
    fn complete(&mut self) {
        self.report();
        self.now = at(60_000);
        self.home.on_tick(self.now, &mut self.out);
    }

    /// Everybody reports that it has nothing.
    fn report(&mut self) {
        for from in seats(&map()) {
            self.page(from, None);
        }
        assert!(self.home.is_complete());
    }

    /// A seat reports that it has nothing, or was away since then with a copy.
    fn page(&mut self, from: Seat, away: Option<(Away, (Fingerprint, CopyInfo))>) {
        let page = CopyPage {
            after: None,
            is_full: true,
            away: away.map(|(away, _)| away),
            copies: away.into_iter().map(|(_, copy)| copy).collect(),
            is_last: true,
        };
        let (now, epoch) = (self.now, self.epoch);
        self.home.on_page(now, from, epoch, page, &mut self.out);
        let tombstones = TombstonePage::default();
        let page = ToPeer::Tombstones(tombstones);
        self.home.on_peer(now, from, epoch, page, &mut self.out);
    }

    fn tell(&mut self, node: u64, item: ToHome) {
        self.home
            .on_owner(self.now, seat(node), self.epoch, item, &mut self.out);
        self.bury();
    }

    fn ask(&mut self, asker: u64, ask: Ask) {
        self.home
            .on_ask(self.now, AskerId(asker), self.epoch, ask, &mut self.out);
        self.bury();
    }

    /// Who would be the next home keeps the tombstones that it is to keep.
    fn bury(&mut self) {
        let said = core::mem::take(&mut self.out);
        let (bury, said): (Vec<_>, Vec<_>) = said
            .into_iter()
            .partition(|action| matches!(action, HomeAction::ToPeer(_, ToPeer::Bury { .. })));
        self.out = said;
        for action in bury {
            if let HomeAction::ToPeer(next, ToPeer::Bury { key, tombstone }) = action {
                let version = tombstone.version;
                let buried = ToPeer::Buried { key, version };
                let (now, epoch) = (self.now, self.epoch);
                self.home.on_peer(now, next, epoch, buried, &mut self.out);
            }
        }
    }

    fn claim(&mut self, node: u64, op: OpId, key: Fingerprint, kind: WriteKind) {
        let (namespace, wait_ms) = (STRICT, 1000);
        self.tell(
            node,
            ToHome::Claim {
                op,
                key,
                kind,
                namespace,
                wait_ms,
            },
        );
    }

    fn publish(&mut self, node: u64, op: OpId, key: Fingerprint, sequence: u64) {
        self.publish_wanted(node, op, key, info(sequence));
    }

    fn publish_wanted(&mut self, node: u64, op: OpId, key: Fingerprint, info: CopyInfo) {
        let namespace = STRICT;
        self.tell(
            node,
            ToHome::Publish {
                op,
                key,
                info,
                namespace,
            },
        );
    }

    fn remove(&mut self, asker: u64, key: Fingerprint) {
        self.remove_only(asker, key, Only::Any);
    }

    fn remove_only(&mut self, asker: u64, key: Fingerprint, only: Only) {
        let (request, namespace, wait_ms) = (RequestId(1), STRICT, 1000);
        self.ask(
            asker,
            Ask::Remove {
                request,
                key,
                namespace,
                wait_ms,
                only,
            },
        );
    }

    fn bring(&mut self, state: State) {
        if state == Rebuilding {
            return;
        }
        self.complete();
        if state == Joining {
            return self.bring_joining();
        }
        if state != Absent {
            self.claim(3, THEIRS, KEY, WriteKind::Put);
        }
        if matches!(state, Held | Leaving | Removing) {
            self.publish(3, THEIRS, KEY, 1);
        }
        match state {
            Leaving => self.tell(
                3,
                ToHome::Retract {
                    key: KEY,
                    version: version(1),
                    reuses: 0,
                },
            ),
            Removing => self.remove(9, KEY),
            _ => {}
        }
        self.out.clear();
    }

    fn bring_joining(&mut self) {
        let info = CopyInfo {
            wanted: 2,
            ..info(1)
        };
        self.claim(2, THEIRS, KEY, WriteKind::Put);
        self.publish_wanted(2, THEIRS, KEY, info);
        self.publish_wanted(3, THEIRS, KEY, info);
        let (key, version) = (KEY, info.version);
        self.tell(
            2,
            ToHome::Retract {
                key,
                version,
                reuses: 0,
            },
        );
        self.out.clear();
    }

    fn apply(&mut self, state: State, event: Event) -> Said {
        match event {
            Put => self.claim(2, OURS, KEY, WriteKind::Put),
            Upsert => self.claim(2, OURS, KEY, WriteKind::Upsert),
            Publish => self.publish(2, OURS, KEY, 77),
            // Whoever has a copy retracts it; nobody else has anything to retract.
            Retract => {
                let is_held = matches!(state, Held | Leaving | Removing | Joining);
                let node = if is_held { 3 } else { 2 };
                self.tell(
                    node,
                    ToHome::Retract {
                        key: KEY,
                        version: version(1),
                        reuses: 0,
                    },
                );
            }
            Lookup => {
                let (request, key, namespace, hold) = (RequestId(1), KEY, STRICT, None);
                self.ask(
                    8,
                    Ask::Lookup {
                        request,
                        key,
                        namespace,
                        hold,
                    },
                );
            }
            Remove => self.remove(8, KEY),
        }
        self.said(event)
    }

    /// What the home answers to a lookup.
    fn looked_up(&mut self, namespace: NamespaceKind) -> Answer {
        let ask = Ask::Lookup {
            request: RequestId(1),
            key: KEY,
            namespace,
            hold: None,
        };
        self.ask(8, ask);
        match self.out.pop() {
            Some(HomeAction::Answer(AskerId(8), RequestId(1), answer)) => answer,
            other => unreachable!("{other:?}"),
        }
    }

    /// What it knows at once, of the key and of another one.
    fn peeked(&self, namespace: NamespaceKind) -> Vec<Peek> {
        let mut peeked = Vec::new();
        let others = (1..).map(|n| Fingerprint(KEY.0 + n));
        let mut others = others.filter(|&key| home_of(&map(), key) == Some(seat(1)));
        let keys = [KEY, others.next().expect("there are more")];
        (self.home).peek(self.now, &keys, namespace, |peek| peeked.push(peek));
        peeked
    }

    fn said(&self, event: Event) -> Said {
        let to = if event == Retract {
            None
        } else {
            Some(seat(2))
        };
        let said = self.out.iter().find_map(|action| match action {
            HomeAction::ToOwner(seat, item) if to.is_none_or(|to| to == *seat) => match item {
                ToOwner::Granted { .. } => Some(Granted),
                ToOwner::Exists { .. } => Some(Exists),
                ToOwner::Lost { .. } => Some(Lost),
                ToOwner::Drop { .. } => Some(Dropped),
                _ => None,
            },
            HomeAction::Answer(AskerId(8), _, answer) => match answer {
                Answer::Found(_) => Some(Found),
                Answer::Miss => Some(Miss),
                Answer::Removed { .. } => Some(Removed),
                other => unreachable!("{other:?}"),
            },
            _ => None,
        });
        said.unwrap_or(Nothing)
    }
}

const fn version(sequence: u64) -> Version {
    Version {
        epoch: EPOCH,
        sequence,
    }
}

const fn info(sequence: u64) -> CopyInfo {
    CopyInfo {
        version: version(sequence),
        kind: WriteKind::Put,
        form: Form::Whole,
        generation: Generation(0),
        wanted: 1,
        len_bytes: 9,
        crc32c: 9,
    }
}

#[test]
fn the_table_names_each_state_and_event_once() {
    for state in STATES {
        for event in EVENTS {
            let rows = TABLE.iter().filter(|row| (row.0, row.1) == (state, event));
            assert_eq!(rows.count(), 1, "{state:?} on {event:?}");
        }
    }
}

#[test]
fn every_answer_is_as_the_table_says() {
    // With one home a member that is none keeps tombstones too.
    assert_eq!(next_of(&map(), KEY), Some(seat(2)));
    for (state, event, said) in TABLE {
        let mut bench = Bench::new(HomeLimits::default());
        bench.bring(state);
        bench.out.clear();
        assert_eq!(bench.apply(state, event), said, "{state:?} on {event:?}");
    }
}

/// What waits is answered when the reports are in, or else when its time is over.
#[test]
fn what_waits_for_the_barrier_is_answered_after_it_or_told_that_it_took_too_long() {
    for (event, after, late) in [(Put, Granted, None), (Lookup, Miss, Some(Answer::Unknown))] {
        let mut bench = Bench::new(HomeLimits::default());
        assert_eq!(bench.apply(Rebuilding, event), Nothing);
        bench.complete();
        assert_eq!(bench.said(event), after);
        let mut bench = Bench::new(HomeLimits::default());
        assert_eq!(bench.apply(Rebuilding, event), Nothing);
        bench.out.clear();
        bench.home.on_tick(at(50), &mut bench.out);
        let answers = |bench: &Bench| {
            let mut answers = bench.out.iter().filter_map(|action| match action {
                HomeAction::Answer(_, _, answer) => Some(answer.clone()),
                _ => None,
            });
            answers.next()
        };
        assert_eq!(answers(&bench), None, "{event:?}");
        bench.home.on_tick(at(51), &mut bench.out);
        assert_eq!(answers(&bench), late, "a lookup waits for 50 ms");
        bench.home.on_tick(at(1001), &mut bench.out);
        let busy = ToOwner::Refused {
            op: OURS,
            key: KEY,
            refusal: Refusal::Busy,
        };
        let is_refused = bench.out.contains(&HomeAction::ToOwner(seat(2), busy));
        assert_eq!(is_refused, event == Put, "a claim waits to its deadline");
    }
}

/// Others may have put it since: their home is another one by now.
#[test]
fn a_home_that_is_cut_off_knows_what_there_is_and_not_what_there_is_not() {
    const CACHE: NamespaceKind = NamespaceKind::Cache;
    for (state, namespace, answer, peek) in [
        (Absent, STRICT, Answer::Unavailable, Peek::Unsure),
        (Absent, CACHE, Answer::Unknown, Peek::Unsure),
        (Removing, CACHE, Answer::Unknown, Peek::Unsure),
        (Held, STRICT, Answer::Unavailable, Peek::Unsure),
    ] {
        let mut bench = Bench::new(HomeLimits::default());
        bench.bring(state);
        bench.now = at(1_000_000);
        assert_eq!(bench.looked_up(namespace), answer, "{state:?}");
        assert_eq!(bench.peeked(namespace), [peek; 2], "{state:?}");
    }
    let mut bench = Bench::new(HomeLimits::default());
    bench.bring(Held);
    bench.now = at(1_000_000);
    assert!(matches!(bench.looked_up(CACHE), Answer::Found(_)));
    assert_eq!(bench.peeked(CACHE), [Peek::Present, Peek::Unsure]);
}

/// The barrier may stand for long, if somebody does not report and keeps its lease.
#[test]
fn a_removal_under_way_is_told_at_its_time_that_nobody_knows_also_behind_the_barrier() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.complete();
    bench.bring(Removing);
    let begun = bench.now;
    let next = ClusterMap::new(Epoch(EPOCH.0 + 1), 0, map().members().to_vec());
    let next = next.expect("the same members");
    bench.home.on_map(begun, &next, &mut bench.out);
    let interrupted = |bench: &Bench| {
        let answers = bench.out.iter();
        let interrupted = answers
            .filter(|action| matches!(action, HomeAction::Answer(_, _, Answer::Interrupted)));
        interrupted.count()
    };
    bench
        .home
        .on_tick(begun + Duration::from_millis(999), &mut bench.out);
    assert_eq!(interrupted(&bench), 0);
    bench
        .home
        .on_tick(begun + Duration::from_millis(1000), &mut bench.out);
    bench
        .home
        .on_tick(begun + Duration::from_millis(1001), &mut bench.out);
    assert_eq!(interrupted(&bench), 1);
    assert!(!bench.home.is_complete());
}

/// A tombstone that a report brings makes dead what was recorded, before the last report is in and both are judged.
#[test]
fn who_looks_on_is_told_of_what_a_reported_tombstone_makes_dead() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.complete();
    bench.claim(2, THEIRS, KEY, WriteKind::Put);
    bench.publish(2, THEIRS, KEY, 1);
    bench.epoch = Epoch(EPOCH.0 + 1);
    let map = ClusterMap::new(bench.epoch, 0, map().members().to_vec()).expect("a map");
    let (now, epoch) = (bench.now, bench.epoch);
    bench.home.on_map(now, &map, &mut bench.out);
    bench.home.watch();
    bench.home.on_tick(now, &mut bench.out);
    let told = |home: &mut Home| {
        let mut told = None;
        home.tell_presence(|change| {
            if let PresenceChange::Key(KEY, peek) = change {
                told = Some(peek);
            }
        });
        told
    };
    assert_eq!(told(&mut bench.home), Some(Peek::Present));
    let tombstone = Tombstone {
        version: version(2),
        generation: Generation(0),
    };
    let tombstones = TombstonePage {
        tombstones: vec![(KEY, tombstone)],
        ..TombstonePage::default()
    };
    let page = ToPeer::Tombstones(tombstones);
    (bench.home).on_peer(now, seat(2), epoch, page, &mut bench.out);
    assert!(!bench.home.is_complete());
    assert_eq!(bench.peeked(STRICT)[0], Peek::Unsure);
    assert_eq!(told(&mut bench.home), Some(Peek::Unsure));
}

/// What was removed under a map that a home was not in, or has not heard of, it may know nothing of, and where nobody else does
/// a copy that was away meanwhile is not believed.
#[test]
fn a_home_that_missed_a_map_knows_nothing_of_earlier_removals() {
    enum Between {
        In,
        Outside,
        Unheard,
    }
    for (between, cold) in [
        (Between::In, 0),
        (Between::Outside, 1),
        (Between::Unheard, 1),
    ] {
        let mut bench = Bench::new(HomeLimits::default());
        bench.complete();
        let all = map().members().to_vec();
        let go_on = |bench: &mut Bench, members: Vec<MapMember>, away: Option<u64>| {
            let map = ClusterMap::new(bench.epoch, 0, members).expect("a map");
            bench.home.on_map(bench.now, &map, &mut bench.out);
            for from in seats(&map) {
                let is_away = away == Some(from.node.0);
                let away = Away {
                    since: EPOCH,
                    back: bench.epoch,
                };
                bench.page(from, is_away.then_some((away, (KEY, info(1)))));
            }
        };
        bench.epoch = Epoch(EPOCH.0 + 1);
        match between {
            Between::In => go_on(&mut bench, all[..2].to_vec(), None),
            Between::Outside => {
                let other = MapMember {
                    home_weight: 1,
                    ..all[1]
                };
                go_on(&mut bench, vec![other], None);
            }
            Between::Unheard => {}
        }
        bench.epoch = Epoch(EPOCH.0 + 2);
        go_on(&mut bench, all, Some(3));
        assert!(bench.home.is_complete());
        bench.now = at(120_000);
        bench.home.on_tick(bench.now, &mut bench.out);
        assert_eq!(bench.home.stats().cold, cold);
    }
}

/// Its owner was told of each removal of it, however little a home that has just begun knows of those before.
#[test]
fn what_was_written_when_its_owner_was_back_is_believed() {
    let [back, now] = [EPOCH.0 + 2, EPOCH.0 + 3].map(Epoch);
    for (written, cold) in [(Epoch(EPOCH.0 + 1), 1), (back, 0)] {
        let mut bench = Bench::new(HomeLimits::default());
        bench.epoch = now;
        let map = ClusterMap::new(now, 0, map().members().to_vec()).expect("a map");
        bench.home.on_map(bench.now, &map, &mut bench.out);
        let info = CopyInfo {
            version: Version {
                epoch: written,
                sequence: 1,
            },
            ..info(1)
        };
        for from in seats(&map) {
            let is_away = from == seat(3);
            let away = Away { since: EPOCH, back };
            bench.page(from, is_away.then_some((away, (KEY, info))));
        }
        assert!(bench.home.is_complete());
        bench.now = at(120_000);
        bench.home.on_tick(bench.now, &mut bench.out);
        assert_eq!(bench.home.stats().cold, cold, "{written:?}");
        let drop =
            |action: &HomeAction| matches!(action, HomeAction::ToOwner(_, ToOwner::Drop { .. }));
        assert_eq!(bench.out.iter().any(drop), cold > 0, "{written:?}");
    }
}

/// Before the first map there was nobody who may be serving still.
#[test]
fn a_removal_waits_for_former_homes_unless_there_were_none() {
    let limits = HomeLimits::default();
    for (epoch, waits) in [(1, false), (2, true)] {
        let mut bench = Bench::at_epoch(Epoch(epoch), limits);
        let begun = bench.now;
        bench.report();
        let (request, namespace, wait_ms) = (RequestId(1), STRICT, 20_000);
        bench.ask(
            8,
            Ask::Remove {
                request,
                key: KEY,
                namespace,
                wait_ms,
                only: Only::Any,
            },
        );
        let first = if waits { Nothing } else { Removed };
        assert_eq!(bench.said(Remove), first, "epoch {epoch}");
        let early = begun + (DEPARTED_WAIT - Duration::from_millis(1));
        bench.home.on_tick(early, &mut bench.out);
        assert_eq!(bench.said(Remove), first, "epoch {epoch}");
        bench.home.on_tick(begun + DEPARTED_WAIT, &mut bench.out);
        assert_eq!(bench.said(Remove), Removed, "epoch {epoch}");
    }
}

/// Before what it replaces leaves, and when it is asked again. Otherwise its owner, whose writer may wait no longer, would let go of it
/// as well.
#[test]
fn the_owner_of_an_upsert_under_way_is_told_that_its_copy_is_recorded() {
    let mut bench = Bench::new(HomeLimits::default());
    bench.bring(Held);
    bench.claim(2, OURS, KEY, WriteKind::Upsert);
    let info = CopyInfo {
        kind: WriteKind::Upsert,
        ..info(2)
    };
    bench.publish_wanted(2, OURS, KEY, info);
    let told = |bench: &Bench, it: &dyn Fn(&ToOwner) -> bool| {
        let mut said = bench.out.iter();
        said.any(
            |action| matches!(action, HomeAction::ToOwner(to, item) if *to == seat(2) && it(item)),
        )
    };
    let is_replacing = |item: &ToOwner| matches!(item, ToOwner::Replacing { op: OURS, key: KEY, version: its } if *its == version(2));
    assert!(told(&bench, &is_replacing));
    let orders = bench.out.iter().find_map(|action| match action {
        HomeAction::ToOwner(_, ToOwner::Drop { order, .. }) => Some(*order),
        _ => None,
    });
    bench.out.clear();
    bench.publish_wanted(2, OURS, KEY, info);
    assert!(told(&bench, &is_replacing), "it may have been lost");
    bench.out.clear();
    let (key, version, order) = (KEY, version(1), orders.expect("it has to leave"));
    bench.tell(
        3,
        ToHome::Dropped {
            key,
            version,
            order,
        },
    );
    let is_recorded = |item: &ToOwner| matches!(item, ToOwner::Recorded { op: OURS, .. });
    assert!(told(&bench, &is_recorded));
}

/// Each bound of a home, from both sides: the last that fits, and the first that does not.
#[test]
fn tables_are_bounded_on_both_sides() {
    let small = HomeLimits {
        copies_max: 2,
        claims_max: 3,
        answered_max: 8,
        waiters_max: 2,
        waiters_per_key_max: 1,
        ..HomeLimits::default()
    };
    let key = |number: u128| Fingerprint(number);
    let refused = |number| {
        let refusal = Refusal::Full;
        HomeAction::ToOwner(
            seat(2),
            ToOwner::Refused {
                op: OURS,
                key: key(number),
                refusal,
            },
        )
    };
    // Claims.
    let mut bench = Bench::new(small);
    bench.complete();
    for number in 1..=4 {
        assert!(!bench.out.contains(&refused(number)));
        bench.claim(2, OURS, key(number), WriteKind::Put);
    }
    assert!(!bench.out.contains(&refused(3)) && bench.out.contains(&refused(4)));
    // Copies.
    let mut bench = Bench::new(small);
    bench.complete();
    for number in 1..=3_u8 {
        bench.claim(2, OURS, key(number.into()), WriteKind::Put);
        bench.publish(2, OURS, key(number.into()), number.into());
    }
    assert_eq!(bench.home.stats().copies, 2);
    assert!(!bench.out.contains(&refused(2)) && bench.out.contains(&refused(3)));
    // Waiters: of one key, and of all.
    let mut bench = Bench::new(small);
    for (number, asker) in [(1, 1), (1, 2), (2, 3), (3, 4)] {
        bench.remove(asker, key(number));
    }
    let refused = bench.out.iter().filter_map(|action| match action {
        HomeAction::Answer(AskerId(asker), _, Answer::Full) => Some(*asker),
        _ => None,
    });
    assert_eq!(refused.collect::<Vec<_>>(), [2, 4]);
}

/// The first change waits for a copy to be dropped. The one that is refused meanwhile is not done by another copy of its
/// request either, when there is room: its asker knows that nothing was.
#[test]
fn changes_are_bounded_and_what_was_refused_is_not_done_later() {
    let mut bench = Bench::new(HomeLimits {
        changes_max: 1,
        ..HomeLimits::default()
    });
    bench.complete();
    let [first, second] = [1, 2].map(Fingerprint);
    for (sequence, key) in [(1, first), (2, second)] {
        bench.claim(2, OURS, key, WriteKind::Put);
        bench.publish(2, OURS, key, sequence);
    }
    bench.out.clear();
    let dropped = |out: &[HomeAction]| {
        out.iter().find_map(|action| match action {
            HomeAction::ToOwner(_, ToOwner::Drop { version, order, .. }) => {
                Some((*version, *order))
            }
            _ => None,
        })
    };
    bench.remove(7, first);
    let (version, order) = dropped(&bench.out).expect("its copy is to be dropped");
    let is_answer = |action: &_| matches!(action, HomeAction::Answer(..));
    assert!(!bench.out.iter().any(is_answer));
    let full = [HomeAction::Answer(AskerId(8), RequestId(1), Answer::Full)];
    bench.out.clear();
    bench.remove(8, second);
    assert_eq!(bench.out, full);
    let key = first;
    bench.tell(
        2,
        ToHome::Dropped {
            key,
            version,
            order,
        },
    );
    bench.out.clear();
    bench.remove(8, second);
    assert_eq!(bench.out, full);
    bench.remove(9, second);
    assert!(dropped(&bench.out).is_some(), "there is room");
}

#[test]
fn a_removal_is_of_what_it_is_meant_for() {
    let this = |sequence| Only::Version {
        version: version(sequence),
    };
    let rows = [
        (Absent, Form::Whole, Only::Any, Removed),
        (Absent, Form::Whole, Only::Whole, Removed),
        (Absent, Form::Whole, this(1), Miss),
        (Claimed, Form::Whole, this(1), Miss),
        (Held, Form::Whole, Only::Any, Nothing),
        (Held, Form::Whole, Only::Whole, Nothing),
        (Held, Form::Whole, this(1), Nothing),
        (Held, Form::Whole, this(2), Found),
        (Held, Form::Striped, Only::Any, Nothing),
        (Held, Form::Striped, Only::Whole, Found),
        (Held, Form::Striped, this(1), Nothing),
        (Held, Form::Striped, this(2), Found),
    ];
    for (state, form, only, expected) in rows {
        let mut bench = Bench::at_epoch(EPOCH, HomeLimits::default());
        bench.complete();
        if state != Absent {
            bench.claim(3, THEIRS, KEY, WriteKind::Put);
        }
        if state == Held {
            let (op, key, namespace) = (THEIRS, KEY, STRICT);
            let info = CopyInfo { form, ..info(1) };
            bench.tell(
                3,
                ToHome::Publish {
                    op,
                    key,
                    info,
                    namespace,
                },
            );
        }
        bench.out.clear();
        bench.remove_only(8, KEY, only);
        let said = bench.said(Remove);
        assert_eq!(said, expected, "{state:?} {form:?} {only:?}");
        let is_ordered = bench
            .out
            .iter()
            .any(|action| matches!(action, HomeAction::ToOwner(_, ToOwner::Drop { .. })));
        // What holds it is asked to drop it, and only then; that is what is waited for.
        assert_eq!(
            is_ordered,
            expected == Nothing,
            "{state:?} {form:?} {only:?}"
        );
        let found = bench.out.iter().find_map(|action| match action {
            HomeAction::Answer(_, _, Answer::Found(found)) => Some(found),
            _ => None,
        });
        if let Some(found) = found {
            assert_eq!((found.version, found.form), (version(1), form));
            assert_eq!(found.owners, [seat(3)]);
        }
    }
}
