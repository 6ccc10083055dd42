//! What an owner does on each event, in each state of a copy: the whole table.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::time::Duration;

use lunette_cluster_proto::fence::{Fence, NamespaceKind};
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{AskerId, CopyPlace, OpId, ToHome, ToOwner};
use lunette_kvstore_proto::owner::{
    EvictRefusal, FreeCause, Owner, OwnerAction, OwnerLimits, Read, Sought, WriteAnswer, WriteAsk,
};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::retention::Retention;
use lunette_kvstore_proto::version::{CopyInfo, Form, Generation, Version, WriteKind};
use lunette_runtime_core::ids::{CoreIndex, NodeId, RequestId};
use lunette_runtime_core::time::Time;

const LEASE: Duration = Duration::from_secs(100);
const KEY: Fingerprint = Fingerprint(0x5eed);
const STRICT: NamespaceKind = NamespaceKind::Strict;
const VERSION: Version = Version {
    epoch: Epoch(1),
    sequence: 1,
};
const PLACE: CopyPlace = CopyPlace {
    key: KEY,
    version: VERSION,
};
const INFO: CopyInfo = CopyInfo {
    version: VERSION,
    kind: WriteKind::Put,
    form: Form::Whole,
    generation: Generation(0),
    wanted: 2,
    len_bytes: 5,
    crc32c: 6,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Claiming,
    Claimed,
    Publishing,
    /// It is published, and its writer waits no longer.
    GivenUp,
    /// And its home is having dropped what it replaces.
    Replacing,
    Published,
    Retracting,
    /// A replica that its home has not recorded yet.
    Joining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Whole,
    Granted,
    Exists,
    Recorded,
    Replaces,
    Lost,
    Drop,
    Read,
    Evict,
    /// Its bytes are gone.
    Gone,
    /// The map changes, and the home is the same.
    Map,
    /// The writer waits no longer.
    Late,
}

/// What it does, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    AskedClaim,
    AskedPublish,
    AskedRetract,
    SaidDropped,
    SaidKept,
    SaidAbandon,
    Named,
    Discarded,
    Freed(FreeCause),
    Served,
    /// The writer was told.
    Wrote,
    Existed,
    Interrupts,
    IsBusy,
}

use Did::{
    AskedClaim, AskedPublish, AskedRetract, Discarded, Existed, Freed, Interrupts, IsBusy, Named,
    SaidAbandon, SaidDropped, SaidKept, Served, Wrote,
};
use Event::{
    Drop, Evict, Exists, Gone, Granted, Late, Lost, Map, Read as Reads, Recorded, Replaces, Whole,
};
use FreeCause::{Evicted, Ordered, Unrecorded};
use State::{
    Absent, Claimed, Claiming, GivenUp, Joining, Published, Publishing, Replacing, Retracting,
};

const STATES: [State; 9] = [
    Absent, Claiming, Claimed, Publishing, GivenUp, Replacing, Published, Retracting, Joining,
];
const EVENTS: [Event; 12] = [
    Whole, Granted, Exists, Recorded, Replaces, Lost, Drop, Reads, Evict, Gone, Map, Late,
];

const TABLE: [(State, Event, &[Did]); 108] = [
    (Absent, Whole, &[]),
    // Nobody waits for it: others need not either.
    (Absent, Granted, &[SaidAbandon]),
    (Absent, Exists, &[]),
    // The home believes in a copy that is not here.
    (Absent, Recorded, &[AskedRetract]),
    (Absent, Replaces, &[]),
    (Absent, Lost, &[]),
    (Absent, Drop, &[SaidDropped]),
    (Absent, Reads, &[]),
    (Absent, Evict, &[]),
    (Absent, Gone, &[]),
    (Absent, Map, &[]),
    (Absent, Late, &[]),
    (Claiming, Whole, &[]),
    (Claiming, Granted, &[]),
    (Claiming, Exists, &[Discarded, Existed]),
    (Claiming, Recorded, &[AskedRetract]),
    (Claiming, Replaces, &[]),
    (Claiming, Lost, &[]),
    (Claiming, Drop, &[SaidDropped]),
    (Claiming, Reads, &[]),
    (Claiming, Evict, &[]),
    (Claiming, Gone, &[]),
    (Claiming, Map, &[AskedClaim]),
    (Claiming, Late, &[SaidAbandon, Discarded, IsBusy]),
    (Claimed, Whole, &[AskedPublish]),
    (Claimed, Granted, &[]),
    (Claimed, Exists, &[]),
    (Claimed, Recorded, &[AskedRetract]),
    (Claimed, Replaces, &[]),
    (Claimed, Lost, &[]),
    (Claimed, Drop, &[SaidDropped]),
    (Claimed, Reads, &[]),
    (Claimed, Evict, &[]),
    (Claimed, Gone, &[]),
    // The claim was the former epoch's.
    (Claimed, Map, &[AskedClaim]),
    (Claimed, Late, &[SaidAbandon, Discarded, IsBusy]),
    (Publishing, Whole, &[]),
    (Publishing, Granted, &[]),
    (Publishing, Exists, &[]),
    (Publishing, Recorded, &[Named, Wrote]),
    (Publishing, Replaces, &[]),
    // Its claim is over: it begins anew.
    (Publishing, Lost, &[AskedClaim]),
    (Publishing, Drop, &[Discarded, Interrupts, SaidDropped]),
    (Publishing, Reads, &[]),
    (Publishing, Evict, &[]),
    (Publishing, Gone, &[]),
    (Publishing, Map, &[AskedPublish]),
    // It may be recorded, and what it replaces be gone: its home is asked on.
    (Publishing, Late, &[Interrupts, AskedPublish]),
    (GivenUp, Whole, &[]),
    (GivenUp, Granted, &[]),
    (GivenUp, Exists, &[]),
    (GivenUp, Recorded, &[Named]),
    (GivenUp, Replaces, &[]),
    (GivenUp, Lost, &[Discarded]),
    (GivenUp, Drop, &[Discarded, SaidDropped]),
    (GivenUp, Reads, &[]),
    (GivenUp, Evict, &[]),
    (GivenUp, Gone, &[]),
    // Its next home need not know what was removed.
    (GivenUp, Map, &[Named, Freed(Evicted), AskedRetract]),
    (GivenUp, Late, &[AskedPublish]),
    (Replacing, Whole, &[]),
    (Replacing, Granted, &[]),
    (Replacing, Exists, &[]),
    (Replacing, Recorded, &[Named]),
    (Replacing, Replaces, &[]),
    (Replacing, Lost, &[Discarded]),
    (Replacing, Drop, &[Discarded, SaidDropped]),
    (Replacing, Reads, &[]),
    (Replacing, Evict, &[]),
    (Replacing, Gone, &[]),
    // It is a copy like others.
    (Replacing, Map, &[AskedPublish]),
    (Replacing, Late, &[AskedPublish]),
    (Published, Whole, &[]),
    (Published, Granted, &[SaidAbandon]),
    (Published, Exists, &[]),
    (Published, Recorded, &[SaidKept]),
    (Published, Replaces, &[]),
    (Published, Lost, &[]),
    (Published, Drop, &[Freed(Ordered), SaidDropped]),
    (Published, Reads, &[Served]),
    (Published, Evict, &[AskedRetract]),
    (Published, Gone, &[AskedRetract]),
    (Published, Map, &[]),
    (Published, Late, &[]),
    (Retracting, Whole, &[]),
    (Retracting, Granted, &[SaidAbandon]),
    (Retracting, Exists, &[]),
    (Retracting, Recorded, &[SaidKept]),
    (Retracting, Replaces, &[]),
    (Retracting, Lost, &[]),
    (Retracting, Drop, &[Freed(Evicted), SaidDropped]),
    (Retracting, Reads, &[Served]),
    (Retracting, Evict, &[]),
    (Retracting, Gone, &[]),
    // The next home is not told of it.
    (Retracting, Map, &[Freed(Evicted), AskedRetract]),
    (Retracting, Late, &[AskedRetract]),
    (Joining, Whole, &[]),
    (Joining, Granted, &[SaidAbandon]),
    (Joining, Exists, &[]),
    (Joining, Recorded, &[SaidKept]),
    (Joining, Replaces, &[]),
    (Joining, Lost, &[Freed(Unrecorded)]),
    (Joining, Drop, &[Freed(Unrecorded), SaidDropped]),
    (Joining, Reads, &[]),
    (Joining, Evict, &[]),
    (Joining, Gone, &[]),
    (Joining, Map, &[AskedPublish]),
    (Joining, Late, &[AskedPublish]),
];

fn at(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn map(epoch: u64) -> ClusterMap {
    let member = |id: u64, home_weight| MapMember {
        home_weight,
        ..MapMember::new(NodeId(id), 1, ([192, 0, 2, 1], 7000).into())
    };
    ClusterMap::new(Epoch(epoch), 0, vec![member(1, 1), member(2, 0)]).expect("a map")
}

fn seat(node: u64) -> Seat {
    Seat {
        node: NodeId(node),
        incarnation: 1,
        core: CoreIndex(0),
    }
}

struct Bench {
    owner: Owner,
    out: Vec<OwnerAction>,
    /// The write or the arrival that the rows are about.
    op: OpId,
}

impl Bench {
    fn new(limits: OwnerLimits) -> Self {
        let mut owner = Owner::new(seat(2), limits);
        let mut fence = Fence::default();
        fence.renew(at(0), LEASE);
        owner.on_fence(fence);
        let mut out = Vec::new();
        owner.on_map(at(0), &map(1), &mut out);
        Self {
            owner,
            out,
            op: OpId(1),
        }
    }

    fn write(&mut self, request: u64, key: Fingerprint) -> Option<OpId> {
        self.write_of(request, key, (WriteKind::Put, STRICT))
    }

    fn write_of(
        &mut self,
        request: u64,
        key: Fingerprint,
        (kind, namespace): (WriteKind, NamespaceKind),
    ) -> Option<OpId> {
        let (asker, request) = (AskerId(4), RequestId(request));
        let (wanted, wait_ms) = (2, 1000);
        let ask = WriteAsk {
            key,
            kind,
            form: Form::Whole,
            namespace,
            wanted,
            wait_ms,
            retention: Retention::default(),
        };
        self.owner.write(at(0), asker, request, ask, &mut self.out)
    }

    fn hear(&mut self, item: ToOwner) {
        self.hear_in(Epoch(1), item);
    }

    fn hear_in(&mut self, epoch: Epoch, item: ToOwner) {
        self.owner
            .on_home(at(0), seat(1), epoch, item, &mut self.out);
    }

    fn granted(&mut self) {
        self.granted_in(Epoch(1));
    }

    fn granted_in(&mut self, epoch: Epoch) {
        let (op, key, version, generation) = (self.op, KEY, VERSION, Generation(0));
        let granted = ToOwner::Granted {
            op,
            key,
            version,
            generation,
        };
        self.hear_in(epoch, granted);
    }

    fn recorded(&mut self) {
        self.recorded_in(Epoch(1));
    }

    fn recorded_in(&mut self, epoch: Epoch) {
        let (op, key, version) = (self.op, KEY, VERSION);
        let (is_cut_off, order) = (false, 6);
        let recorded = ToOwner::Recorded {
            op,
            key,
            version,
            is_cut_off,
            order,
        };
        self.hear_in(epoch, recorded);
    }

    fn replacing(&mut self) {
        let (op, key, version) = (self.op, KEY, VERSION);
        self.hear(ToOwner::Replacing { op, key, version });
    }

    fn whole(&mut self) {
        self.owner
            .whole(at(0), self.op, INFO.len_bytes, INFO.crc32c, &mut self.out);
    }

    fn bring(&mut self, state: State) {
        if state == Joining {
            assert!(self.owner.replica(at(0), KEY, INFO, STRICT, &mut self.out));
        }
        if matches!(
            state,
            Claiming | Claimed | Publishing | GivenUp | Replacing | Published | Retracting
        ) {
            assert_eq!(self.write(1, KEY), Some(self.op));
        }
        if matches!(
            state,
            Claimed | Publishing | GivenUp | Replacing | Published | Retracting
        ) {
            self.granted();
        }
        if matches!(
            state,
            Publishing | GivenUp | Replacing | Published | Retracting
        ) {
            self.whole();
        }
        if state == Replacing {
            self.replacing();
        }
        if matches!(state, GivenUp | Replacing) {
            self.owner.on_tick(at(1000), &mut self.out);
        }
        if matches!(state, Published | Retracting) {
            self.recorded();
        }
        if state == Retracting {
            assert_eq!(self.owner.evict(at(0), PLACE, 3, &mut self.out), Ok(()));
        }
        self.out.clear();
    }

    fn apply(&mut self, state: State, event: Event) -> Vec<Did> {
        let (op, key, version) = (self.op, KEY, VERSION);
        match event {
            // Bytes come once.
            Whole if matches!(state, Publishing | GivenUp | Replacing) => {}
            Whole => self.whole(),
            Granted => self.granted(),
            Exists => self.hear(ToOwner::Exists { op, key, version }),
            Recorded => self.recorded(),
            Replaces => self.replacing(),
            Lost => self.hear(ToOwner::Lost { op, key, version }),
            Drop => self.hear(ToOwner::Drop {
                key,
                version,
                order: 7,
                was_recorded: false,
            }),
            Reads => {
                let read = self
                    .owner
                    .read(at(0), KEY, Sought::Version(VERSION), STRICT);
                return match read {
                    Read::Served {
                        place: PLACE,
                        info: INFO,
                        is_cut_off: false,
                    } => vec![Served],
                    Read::Absent => vec![],
                    other => unreachable!("{other:?}"),
                };
            }
            Evict => {
                let evicted = self.owner.evict(at(0), PLACE, 3, &mut self.out);
                let expected = if state == Published {
                    Ok(())
                } else {
                    Err(EvictRefusal::NotPublished)
                };
                assert_eq!(evicted, expected, "{state:?}");
            }
            Gone => {
                let stays = matches!(
                    state,
                    Publishing | GivenUp | Replacing | Published | Joining
                );
                assert_eq!(self.owner.stays(PLACE), stays, "{state:?}");
                let leaves = self.owner.lose(at(0), PLACE, 3, &mut self.out);
                assert_eq!(leaves, state == Published, "{state:?}");
            }
            Map => self.owner.on_map(at(0), &map(2), &mut self.out),
            Late => self.owner.on_tick(at(2000), &mut self.out),
        }
        self.out.iter().map(did).collect()
    }
}

fn did(action: &OwnerAction) -> Did {
    match action {
        OwnerAction::ToHome(home, item) => {
            assert_eq!(*home, seat(1), "the home");
            match item {
                ToHome::Claim { .. } => AskedClaim,
                ToHome::Publish { info: INFO, .. } => AskedPublish,
                ToHome::Retract { .. } => AskedRetract,
                ToHome::Dropped { order: 7, .. } => SaidDropped,
                ToHome::Kept { .. } => SaidKept,
                ToHome::Abandon { .. } => SaidAbandon,
                other => unreachable!("{other:?}"),
            }
        }
        OwnerAction::Name(_, PLACE) => Named,
        OwnerAction::Discard(_) => Discarded,
        OwnerAction::Free(PLACE, cause) => Freed(*cause),
        OwnerAction::Written(_, _, answer) => match answer {
            WriteAnswer::Written {
                version: VERSION,
                is_cut_off: false,
            } => Wrote,
            WriteAnswer::Exists { version: VERSION } => Existed,
            WriteAnswer::Interrupted => Interrupts,
            WriteAnswer::Busy => IsBusy,
            other => unreachable!("{other:?}"),
        },
        other => unreachable!("{other:?}"),
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

/// What was claimed of a home that may be another one by now is not asked for any longer than its writer waits.
#[test]
fn what_is_not_known_to_be_recorded_is_taken_back_under_another_map() {
    let mut bench = Bench::new(OwnerLimits::default());
    bench.bring(Publishing);
    assert_eq!(bench.apply(Publishing, Map), [AskedPublish]);
    bench.out.clear();
    let late = bench.apply(Publishing, Late);
    assert_eq!(late, [Interrupts, Named, AskedRetract]);
    // That it is recorded may come when the map has changed already: what it replaces may be gone all the same.
    for is_late in [false, true] {
        let mut bench = Bench::new(OwnerLimits::default());
        bench.bring(Publishing);
        if !is_late {
            bench.replacing();
        }
        bench.apply(Publishing, Map);
        if is_late {
            bench.replacing();
        }
        bench.out.clear();
        assert_eq!(bench.apply(Publishing, Late), [Interrupts, AskedPublish]);
    }
}

#[test]
fn every_transition_is_as_the_table_says() {
    for (state, event, expected) in TABLE {
        let mut bench = Bench::new(OwnerLimits::default());
        bench.bring(state);
        assert_eq!(
            bench.apply(state, event),
            expected,
            "{state:?} on {event:?}"
        );
    }
}

/// Each bound of an owner, from both sides.
#[test]
fn tables_are_bounded_on_both_sides() {
    let limits = OwnerLimits::default();
    for limits in [
        OwnerLimits {
            writes_max: 2,
            ..limits
        },
        OwnerLimits {
            copies_max: 2,
            ..limits
        },
        OwnerLimits {
            answered_max: 2,
            ..limits
        },
    ] {
        let mut bench = Bench::new(limits);
        assert!(bench.write(1, Fingerprint(1)).is_some());
        assert!(bench.write(2, Fingerprint(2)).is_some(), "{limits:?}");
        assert_eq!(bench.write(3, Fingerprint(3)), None, "{limits:?}");
        assert!(!bench.out.contains(&full(2)) && bench.out.contains(&full(3)));
        assert_eq!(bench.owner.stats().full, 1);
    }
}

fn full(request: u64) -> OwnerAction {
    OwnerAction::Written(AskerId(4), RequestId(request), WriteAnswer::Full)
}

/// A request that comes twice is done once, and answered alike.
#[test]
fn a_write_is_done_once_per_request() {
    let mut bench = Bench::new(OwnerLimits::default());
    bench.bring(Publishing);
    assert_eq!(bench.write(1, KEY), None);
    assert_eq!(bench.out, []);
    bench.recorded();
    bench.out.clear();
    assert_eq!(bench.write(1, KEY), None);
    let written = WriteAnswer::Written {
        version: VERSION,
        is_cut_off: false,
    };
    assert_eq!(
        bench.out,
        [OwnerAction::Written(AskerId(4), RequestId(1), written)]
    );
}

/// What it has may have been removed meanwhile; what it writes its home knows of.
#[test]
fn who_was_away_is_cut_off_for_reads_until_it_is_judged_and_not_for_what_it_writes() {
    for kind in [WriteKind::Put, WriteKind::Upsert] {
        let mut bench = Bench::new(OwnerLimits::default());
        // It is told of no map in between.
        bench.owner.on_map(at(0), &map(3), &mut bench.out);
        assert!(bench.owner.away_since().is_some());
        let begun = bench.write_of(1, KEY, (kind, NamespaceKind::Cache));
        assert_eq!(begun, Some(bench.op));
        bench.granted_in(Epoch(3));
        bench.whole();
        bench.recorded_in(Epoch(3));
        let written = WriteAnswer::Written {
            version: VERSION,
            is_cut_off: false,
        };
        let answer = OwnerAction::Written(AskerId(4), RequestId(1), written);
        assert!(bench.out.contains(&answer), "{:?}", bench.out);
        let read = |bench: &mut Bench, namespace| {
            bench
                .owner
                .read(at(0), KEY, Sought::Version(VERSION), namespace)
        };
        let of_cache = read(&mut bench, NamespaceKind::Cache);
        assert!(
            matches!(
                of_cache,
                Read::Served {
                    is_cut_off: true,
                    ..
                }
            ),
            "{of_cache:?}"
        );
        assert_eq!(read(&mut bench, STRICT), Read::Unavailable);
        // Without its home having been asked: not while that can be done, nor for who knows a later map.
        let mut latest = |now, epoch| {
            let sought = Sought::Latest(Epoch(epoch));
            (bench.owner).read(now, KEY, sought, NamespaceKind::Cache)
        };
        assert_eq!(latest(at(0), 3), Read::Absent);
        assert_eq!(latest(Time::ZERO + LEASE, 4), Read::Absent);
        assert_eq!(latest(Time::ZERO + LEASE, 3), of_cache, "it is cut off");
    }
}

/// What a writer says is over need not be remembered, so that the bound is on what it has under way.
#[test]
fn a_writer_that_says_what_is_over_may_write_for_ever() {
    let limits = OwnerLimits {
        answered_max: 4,
        ..OwnerLimits::default()
    };
    let mut bench = Bench::new(limits);
    for request in 1..50 {
        (bench.owner).over(at(0), AskerId(4), RequestId(request));
        let op = bench.write(request, KEY).expect("there is room");
        bench.owner.abort(at(0), op, &mut bench.out);
    }
    assert!(!bench.out.contains(&full(49)));
    bench.out.clear();
    assert_eq!(bench.write(48, KEY), None, "it is over");
    let aborted = OwnerAction::Written(AskerId(4), RequestId(48), WriteAnswer::Aborted);
    assert_eq!(bench.out, [aborted]);
    for request in 50..52 {
        let op = bench.write(request, KEY).expect("there is room");
        bench.owner.abort(at(0), op, &mut bench.out);
    }
    assert_eq!(bench.write(52, KEY), None, "nothing more was over");
    assert!(bench.out.contains(&full(52)));
}

/// A copy that is leaving is no source of others.
#[test]
fn replicas_are_made_of_what_is_published() {
    for state in STATES {
        let mut bench = Bench::new(OwnerLimits::default());
        bench.bring(state);
        let (missing, holders) = (2, vec![NodeId(2)]);
        let (key, version) = (KEY, VERSION);
        bench.hear(ToOwner::Replicate {
            key,
            version,
            missing,
            holders: holders.clone(),
        });
        let replicate = OwnerAction::Replicate {
            place: PLACE,
            info: INFO,
            namespace: STRICT,
            missing,
            holders,
        };
        let expected = if state == Published {
            vec![replicate]
        } else {
            vec![]
        };
        assert_eq!(bench.out, expected, "{state:?}");
    }
}

/// A copy is made again where there was one before, and the order to drop that one comes late.
#[test]
fn an_order_is_about_the_copy_that_was_there_then() {
    for (order, is_dropped) in [(5, false), (6, false), (7, true)] {
        let mut bench = Bench::new(OwnerLimits::default());
        bench.bring(Published);
        let (key, version) = (KEY, VERSION);
        bench.hear(ToOwner::Drop {
            key,
            version,
            order,
            was_recorded: true,
        });
        let freed = bench
            .out
            .iter()
            .any(|action| matches!(action, OwnerAction::Free(..)));
        assert_eq!(freed, is_dropped, "order {order}");
        assert_eq!(bench.out.is_empty(), !is_dropped, "order {order}");
    }
}

/// What is recorded may be replaced before its writer hears that it is.
#[test]
fn a_write_whose_copy_has_to_go_has_succeeded_if_it_was_recorded() {
    for was_recorded in [false, true] {
        let mut bench = Bench::new(OwnerLimits::default());
        bench.bring(Publishing);
        let (key, version, order) = (KEY, VERSION, 7);
        bench.hear(ToOwner::Drop {
            key,
            version,
            order,
            was_recorded,
        });
        let answers = bench.out.iter().filter_map(|action| match action {
            OwnerAction::Written(_, _, answer) => Some(*answer),
            _ => None,
        });
        let expected = if was_recorded {
            WriteAnswer::Written {
                version,
                is_cut_off: false,
            }
        } else {
            WriteAnswer::Interrupted
        };
        assert_eq!(answers.collect::<Vec<_>>(), [expected]);
    }
}
