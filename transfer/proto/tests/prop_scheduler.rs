//! The scheduler against a model of a peer, its rails and time: every transfer ends; what is said to
//! be done is done, exactly once; a write that may still land is never sent a second time; and what
//! may not be touched any more is not.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::rail::Carrier;
use lunette_transfer_proto::engine::scheduler::{
    Action, CloseCause, Effect, Priority, Scheduler, SchedulerOptions, SliceId, TransferId,
    TransferOptions,
};
use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::slices::{Request, Slice};
use proptest::prelude::*;

const RAILS: usize = 3;
/// Most that is to be done at one point in time.
const ACTIONS_MAX: u32 = 2000;
const MS: Duration = Duration::from_millis(1);

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        requests: Vec<(bool, u64)>,
        deadline_ms: Option<u16>,
        has_note: bool,
        background: bool,
    },
    Cancel(prop::sample::Index),
    /// One of the answers that are outstanding comes.
    Answer(prop::sample::Index),
    Refuse(prop::sample::Index, bool),
    /// The driver could not send one of those that are under way.
    Unsent(prop::sample::Index),
    /// One of those that are under way from memory to memory is not reached so, or a notification does not fit there.
    Bar(prop::sample::Index),
    /// A rail breaks: what is under way on it is lost, or lands nevertheless.
    Break(usize, bool),
    Wait(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let submit = (
        prop::collection::vec((any::<bool>(), 0..3_000_000_u64), 0..6),
        prop::option::of(1..4000_u16),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(requests, deadline_ms, has_note, background)| Step::Submit {
                requests,
                deadline_ms,
                has_note,
                background,
            },
        );
    let step = prop_oneof![
        3 => submit,
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        12 => any::<prop::sample::Index>().prop_map(Step::Answer),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, busy)| Step::Refuse(at, busy)),
        1 => any::<prop::sample::Index>().prop_map(Step::Unsent),
        2 => any::<prop::sample::Index>().prop_map(Step::Bar),
        2 => (0..RAILS, any::<bool>()).prop_map(|(rail, lands)| Step::Break(rail, lands)),
        3 => (0..300_u16).prop_map(Step::Wait),
        1 => (0..4000_u16).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..120)
}

/// A piece of a request: its transfer, request, offset and length.
type Piece = (TransferId, u32, u64, u32);

#[derive(Default)]
struct Model {
    /// Slices that are under way: rail, connection.
    under_way: BTreeMap<SliceId, (usize, u32, TransferId, Slice)>,
    /// Connections that are up.
    up: BTreeMap<usize, u32>,
    connecting: Vec<(usize, u32)>,
    /// Writes of lost connections that may land still.
    may_land: BTreeMap<(usize, u32), Vec<Piece>>,
    fences: Vec<(usize, u32, usize)>,
    submitted: BTreeMap<TransferId, Vec<u64>>,
    done: BTreeMap<(TransferId, u32), u64>,
    finished: BTreeSet<TransferId>,
    /// Those whose notification was answered.
    told: BTreeSet<TransferId>,
}

impl Model {
    fn has_landed(&mut self, transfer: TransferId, slice: &Slice) {
        for (transfer, request, _, len) in pieces(transfer, slice) {
            *self.done.entry((transfer, request)).or_default() += u64::from(len);
        }
    }
}

fn pieces(transfer: TransferId, slice: &Slice) -> Vec<Piece> {
    let piece = |part: &lunette_transfer_proto::engine::slices::Part| {
        (transfer, part.request, part.offset_bytes, part.len_bytes)
    };
    slice.parts.iter().map(piece).collect()
}

/// Whether two pieces have a byte in common.
fn overlap(one: Piece, other: Piece) -> bool {
    let (start, end) = (one.2, one.2 + u64::from(one.3));
    let (other_start, other_end) = (other.2, other.2 + u64::from(other.3));
    (one.0, one.1) == (other.0, other.1) && start < other_end && other_start < end
}

impl Model {
    /// What is sent is under way nowhere else, and goes over the right kind of rail.
    fn check_sent(&self, transfer: TransferId, rail: usize, slice: SliceId, scheduler: &Scheduler) {
        let (found, _) = scheduler.slice(slice).expect("what is sent is there");
        for piece in pieces(transfer, found) {
            let mut landing = self.may_land.values().flatten();
            let twice = landing.any(|other| overlap(*other, piece));
            assert!(!twice, "{piece:?} may land still");
            let under_way = self.under_way.values();
            let mut under_way = under_way.flat_map(|(.., other, sent)| pieces(*other, sent));
            let twice = under_way.any(|other| overlap(other, piece));
            assert!(!twice, "{piece:?} is under way");
        }
        let of = |rail: usize| scheduler.rails()[rail].carrier();
        let is_stream = of(rail) == Carrier::Stream;
        let has_other = self.up.keys().any(|&rail| of(rail) == Carrier::OneSided);
        let (_, carries_note) = scheduler.slice(slice).expect("what is sent is there");
        if is_stream {
            let alone = found.is_barred || found.parts.is_empty();
            assert!(alone || !has_other, "a stream comes last: {found:?}");
            assert!(
                found.len_bytes() <= 5 * 512 * 1024 / 4,
                "as long as it takes"
            );
        } else {
            assert!(!found.is_barred, "{found:?}");
            assert_eq!(carries_note, found.parts.is_empty(), "{found:?}");
        }
        if carries_note && !is_stream {
            self.check_told(transfer, (rail, self.up[&rail]));
        }
    }

    /// A notification that goes from memory to memory follows all bytes of its transfer: they are where they belong, or
    /// are being written over the same connection.
    fn check_told(&self, transfer: TransferId, link: (usize, u32)) {
        let all: u64 = self.submitted[&transfer].iter().sum();
        let of_it = (transfer, 0)..=(transfer, u32::MAX);
        let done: u64 = self.done.range(of_it).map(|(_, len)| len).sum();
        let under_way = self.under_way.values();
        let under_way = under_way.filter(|(.., other, _)| *other == transfer);
        let ahead: u64 = under_way
            .map(|(rail, connection, _, slice)| {
                assert_eq!((slice.way, (*rail, *connection)), (Way::Write, link));
                slice.len_bytes()
            })
            .sum();
        assert_eq!(done + ahead, all, "{transfer:?}");
    }

    /// Whether a notification follows the slices of a transfer that are under way.
    fn is_followed(&self, id: SliceId) -> bool {
        let transfer = self.under_way[&id].2;
        let mut all = self.under_way.values();
        let is_told = self.told.contains(&transfer);
        let is_note = self.under_way[&id].3.parts.is_empty();
        !is_note && (is_told || all.any(|sent| sent.2 == transfer && sent.3.parts.is_empty()))
    }

    fn take(&mut self, action: Action, scheduler: &Scheduler) {
        match action {
            Action::Connect { rail, connection } => self.connecting.push((rail, connection)),
            Action::Send {
                slice,
                transfer,
                rail,
            } => {
                let (found, _) = scheduler.slice(slice).expect("what is sent is there");
                let connection = self.up[&rail];
                self.check_sent(transfer, rail, slice, scheduler);
                let entry = (rail, connection, transfer, found.clone());
                assert!(self.under_way.insert(slice, entry).is_none());
            }
            Action::Fence {
                rail,
                connection,
                via,
            } => {
                assert!(self.up.contains_key(&via), "over a rail that is up");
                assert_eq!(scheduler.rails()[via].carrier(), Carrier::Stream);
                self.fences.push((rail, connection, via));
            }
            Action::Stop { slice } => assert!(self.under_way.contains_key(&slice)),
            Action::Close {
                rail, connection, ..
            } => assert_eq!(self.up.get(&rail), Some(&connection)),
            Action::Finished { transfer, outcome } => {
                assert!(self.finished.insert(transfer), "finished once");
                let failed: BTreeMap<u32, Effect> = outcome
                    .failures
                    .iter()
                    .filter_map(|failure| Some((failure.request?, failure.effect)))
                    .collect();
                for (request, &len) in (0..).zip(&self.submitted[&transfer]) {
                    let done = self.done.get(&(transfer, request)).copied().unwrap_or(0);
                    match failed.get(&request) {
                        None => assert_eq!(done, len, "{transfer:?} {request}"),
                        Some(Effect::Untouched) => assert_eq!(done, 0),
                        Some(_) => assert!(done <= len),
                    }
                }
                let mut open = self
                    .may_land
                    .values()
                    .flatten()
                    .copied()
                    .collect::<Vec<_>>();
                for (.., other, slice) in self.under_way.values() {
                    open.extend(pieces(*other, slice));
                }
                for (_, request, ..) in open.into_iter().filter(|open| open.0 == transfer) {
                    assert_eq!(failed.get(&request), Some(&Effect::MayStillChange));
                }
            }
        }
    }
}

struct Run {
    scheduler: Scheduler,
    model: Model,
    now: Time,
    /// Whether rails from memory to memory carry notifications.
    tells: bool,
}

impl Run {
    fn act(&mut self) {
        let mut actions = 0;
        while let Some(action) = self.scheduler.next_action(self.now) {
            actions += 1;
            assert!(actions < ACTIONS_MAX, "it never ends: {action:?}");
            match action {
                Action::Stop { slice } => {
                    self.model.take(Action::Stop { slice }, &self.scheduler);
                    self.model.under_way.remove(&slice);
                    self.scheduler.on_stopped(slice);
                }
                Action::Close { rail, cause, .. } => {
                    self.model.take(action, &self.scheduler);
                    let on_it = self.model.under_way.values().filter(|sent| sent.0 == rail);
                    assert!(cause != CloseCause::Idle || on_it.count() == 0);
                    self.break_rail(rail, false);
                }
                other => self.model.take(other, &self.scheduler),
            }
        }
    }

    fn nth(&self, at: &prop::sample::Index) -> Option<SliceId> {
        let count = self.model.under_way.len();
        (count > 0).then(|| {
            *self
                .model
                .under_way
                .keys()
                .nth(at.index(count))
                .expect("counted")
        })
    }

    fn answer(&mut self, id: SliceId) {
        let (.., transfer, slice) = self.model.under_way.remove(&id).expect("under way");
        self.model.has_landed(transfer, &slice);
        if slice.parts.is_empty() {
            self.model.told.insert(transfer);
        }
        self.scheduler.on_answered(id, self.now);
    }

    fn break_rail(&mut self, rail: usize, lands: bool) {
        let Some(connection) = self.model.up.remove(&rail) else {
            return;
        };
        let lost: Vec<SliceId> = self
            .model
            .under_way
            .iter()
            .filter_map(|(id, (on, ..))| (*on == rail).then_some(*id))
            .collect();
        for id in lost {
            let (.., transfer, slice) = self.model.under_way.remove(&id).expect("under way");
            if self.model.told.contains(&transfer) {
                self.model.has_landed(transfer, &slice);
            } else if slice.way == Way::Write && lands {
                let may_land = self.model.may_land.entry((rail, connection)).or_default();
                may_land.extend(pieces(transfer, &slice));
            }
            self.scheduler.on_lost(id, self.now);
        }
        self.scheduler.on_rail_failed(rail, connection, self.now);
        self.model.fences.retain(|&(.., via)| via != rail);
    }

    /// What the world does by itself, in no time: connections come up, fences are answered.
    fn settle(&mut self) {
        for (rail, connection) in std::mem::take(&mut self.model.connecting) {
            if self.scheduler.on_connected(rail, connection, self.now) {
                self.model.up.insert(rail, connection);
                if self.tells && self.scheduler.rails()[rail].carrier() == Carrier::OneSided {
                    self.scheduler.on_tells(rail);
                }
            }
        }
        for (rail, connection, _) in std::mem::take(&mut self.model.fences) {
            self.model.may_land.remove(&(rail, connection));
            self.scheduler.on_fenced(rail, connection, true, self.now);
        }
    }

    fn wait(&mut self, ms: u16) {
        let until = self.now + MS * u32::from(ms);
        while let Some(due) = self.scheduler.poll_timeout(self.now)
            && due <= until
        {
            self.now = self.now.max(due);
            self.scheduler.on_timeout(self.now);
            self.act();
            self.settle();
            self.act();
        }
        self.now = until;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit {
                requests,
                deadline_ms,
                has_note,
                background,
            } => {
                let lens: Vec<u64> = requests.iter().map(|&(_, len)| len).collect();
                let requests = requests.into_iter().map(|(is_read, len_bytes)| Request {
                    way: if is_read { Way::Read } else { Way::Write },
                    len_bytes,
                });
                let deadline = deadline_ms.map_or(Time::MAX, |ms| self.now + MS * u32::from(ms));
                let priority = if background {
                    Priority::Background
                } else {
                    Priority::Foreground
                };
                let options = TransferOptions {
                    priority,
                    deadline,
                    has_note,
                };
                let id = self.scheduler.submit(requests, options, self.now);
                self.model.submitted.insert(id.expect("room"), lens);
            }
            Step::Cancel(at) if !self.model.submitted.is_empty() => {
                let count = self.model.submitted.len();
                let id = self.model.submitted.keys().nth(at.index(count));
                self.scheduler.cancel(*id.expect("counted"), self.now);
            }
            Step::Cancel(_) => {}
            Step::Answer(at) => {
                if let Some(id) = self.nth(&at) {
                    self.answer(id);
                }
            }
            Step::Refuse(at, busy) => {
                if let Some(id) = self.nth(&at).filter(|id| !self.model.is_followed(*id)) {
                    self.model.under_way.remove(&id);
                    let refusal = if busy { Refusal::Busy } else { Refusal::Stale };
                    self.scheduler.on_refused(id, refusal, 0, self.now);
                }
            }
            Step::Unsent(at) => {
                if let Some(id) = self.nth(&at).filter(|id| !self.model.is_followed(*id)) {
                    self.model.under_way.remove(&id);
                    self.scheduler.on_unsent(id, self.now);
                }
            }
            Step::Bar(at) => {
                if let Some(id) = self.nth(&at).filter(|id| !self.model.is_followed(*id)) {
                    let (rail, .., slice) = &self.model.under_way[&id];
                    let is_note = slice.parts.is_empty();
                    if self.scheduler.rails()[*rail].carrier() == Carrier::OneSided {
                        self.model.under_way.remove(&id);
                        if is_note {
                            self.scheduler.on_note_barred(id);
                        } else {
                            self.scheduler.on_barred(id);
                        }
                    }
                }
            }
            Step::Break(rail, lands) => self.break_rail(rail, lands),
            Step::Wait(ms) => self.wait(ms),
        }
        self.act();
        self.settle();
        self.act();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_transfer_ends_as_it_says(steps in steps(), one_sided in 0..RAILS, tells in any::<bool>()) {
        let options = SchedulerOptions {
            idle_max: Duration::from_secs(2),
            ..SchedulerOptions::default()
        };
        let mut run = Run {
            scheduler: Scheduler::with_one_sided(options, RAILS - one_sided, one_sided),
            model: Model::default(),
            now: Time::ZERO + MS,
            tells,
        };
        for step in steps {
            run.step(step);
        }
        // From here on nothing fails: everything ends soon.
        for _ in 0..10_000 {
            if run.scheduler.transfers() == 0 {
                break;
            }
            while let Some(&id) = run.model.under_way.keys().next() {
                run.answer(id);
                run.act();
            }
            run.wait(100);
            run.settle();
            run.act();
        }
        let ends: BTreeSet<TransferId> = run.model.submitted.keys().copied().collect();
        prop_assert_eq!(run.model.finished, ends);
        prop_assert!(run.model.under_way.is_empty() || run.scheduler.transfers() == 0);
    }
}
