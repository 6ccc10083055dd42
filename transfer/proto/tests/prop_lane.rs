//! Writes to an engine of the same host against a model of that engine: what is said to be done has landed
//! whole, once; what failed left what it says; and nothing lands after its end unless that was said.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::same_host::commands::COMMANDS_MAX;
use lunette_transfer_proto::engine::same_host::lane::{Lane, LaneId, LaneOptions, Piece};
use lunette_transfer_proto::engine::scheduler::{
    Cause, Effect, Outcome, Priority, TransferOptions, TransfersFull,
};
use proptest::prelude::*;

const OPTIONS: LaneOptions = LaneOptions {
    piece_bytes_max: 10,
    settle: Duration::from_millis(50),
    transfers_max: 8,
};

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Submit(Vec<u64>, Option<u64>, bool),
    HandOut(usize),
    Answer(usize, bool),
    Cancel(prop::sample::Index),
    Wait(u64),
    Lose,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let submit = (
        prop::collection::vec(0..300_u64, 0..5),
        prop::option::of(1..200_u64),
        any::<bool>(),
    );
    let step = prop_oneof![
        4 => submit.prop_map(|(lens, deadline, back)| Step::Submit(lens, deadline, back)),
        8 => (1..40_usize).prop_map(Step::HandOut),
        8 => (1..40_usize, prop::bool::weighted(0.1)).prop_map(|(n, no)| Step::Answer(n, no)),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        3 => (0..60_u64).prop_map(Step::Wait),
        1 => Just(Step::Lose),
    ];
    prop::collection::vec(step, 0..80)
}

/// What one write should have come to.
#[derive(Debug)]
struct Expected {
    lens: Vec<u64>,
    landed: Vec<Vec<bool>>,
    refused: Vec<bool>,
    deadline: Option<Time>,
    is_cancelled: bool,
}

#[derive(Debug)]
struct Model {
    lane: Lane,
    now: Time,
    with_owner: VecDeque<Piece>,
    writes: BTreeMap<LaneId, Expected>,
    /// Those of which nothing may land any more.
    settled: Vec<LaneId>,
}

impl Model {
    fn new() -> Self {
        Self {
            lane: Lane::new(OPTIONS),
            now: Time::ZERO,
            with_owner: VecDeque::new(),
            writes: BTreeMap::new(),
            settled: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Submit(lens, deadline, back) => self.submit(lens, *deadline, *back),
            Step::HandOut(count) => self.hand_out(*count),
            Step::Answer(count, refuse) => self.answer(*count, *refuse),
            Step::Cancel(at) => {
                let ids: Vec<LaneId> = self.writes.keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[at.index(ids.len())];
                    self.writes.get_mut(&id).expect("listed").is_cancelled = true;
                    self.lane.cancel(id, self.now);
                }
            }
            Step::Wait(ms) => {
                let until = self.now + Duration::from_millis(*ms);
                while let Some(due) = self.lane.poll_timeout().filter(|&due| due <= until) {
                    self.now = self.now.max(due);
                    self.lane.on_timeout(self.now);
                    self.finished();
                }
                self.now = until;
            }
            Step::Lose => {
                self.with_owner.clear();
                for id in self.lane.on_lost(self.now) {
                    let write = self.writes.remove(&id).expect("it was under way");
                    assert!(!write.is_cancelled, "it was given up");
                }
            }
        }
        self.finished();
    }

    fn submit(&mut self, lens: &[u64], deadline: Option<u64>, back: bool) {
        let deadline = deadline.map(|ms| self.now + Duration::from_millis(ms));
        let asked = TransferOptions {
            priority: if back {
                Priority::Background
            } else {
                Priority::Foreground
            },
            deadline: deadline.unwrap_or(Time::MAX),
            has_note: false,
        };
        let is_full = self.writes.len() >= OPTIONS.transfers_max;
        match self.lane.submit(lens.iter().copied(), asked, self.now) {
            Err(TransfersFull { transfers_max }) => {
                assert!(is_full && transfers_max == OPTIONS.transfers_max);
            }
            Ok(id) => {
                assert!(!is_full);
                let bytes = |&len: &u64| vec![false; usize::try_from(len).expect("small")];
                let expected = Expected {
                    lens: lens.to_vec(),
                    landed: lens.iter().map(bytes).collect(),
                    refused: vec![false; lens.len()],
                    deadline,
                    is_cancelled: false,
                };
                assert!(self.writes.insert(id, expected).is_none(), "a new id");
            }
        }
    }

    fn hand_out(&mut self, count: usize) {
        for _ in 0..count {
            let is_full = self.with_owner.len() == COMMANDS_MAX;
            let Some(piece) = self.lane.next_piece() else {
                return;
            };
            assert!(!is_full, "no more than the owner takes");
            assert!((1..=OPTIONS.piece_bytes_max).contains(&piece.len_bytes));
            let write = &self.writes[&piece.transfer];
            assert!(!write.is_cancelled, "nothing new of what was given up");
            assert!(write.deadline.is_none_or(|deadline| deadline >= self.now));
            self.with_owner.push_back(piece);
        }
    }

    fn answer(&mut self, count: usize, refuse: bool) {
        for _ in 0..count {
            let Some(piece) = self.with_owner.pop_front() else {
                return;
            };
            assert!(!self.settled.contains(&piece.transfer), "it was settled");
            let request = piece.request as usize;
            if let Some(write) = self.writes.get_mut(&piece.transfer) {
                if refuse {
                    write.refused[request] = true;
                } else {
                    let from = usize::try_from(piece.offset_bytes).expect("small");
                    let len = usize::try_from(piece.len_bytes).expect("small");
                    for byte in &mut write.landed[request][from..from + len] {
                        assert!(!*byte, "each byte is copied once");
                        *byte = true;
                    }
                }
            }
            let answer = if refuse { Err(Refusal::Stale) } else { Ok(()) };
            assert_eq!(self.lane.on_answer(answer, self.now), piece, "in order");
            self.finished();
        }
    }

    fn finished(&mut self) {
        while let Some((id, outcome)) = self.lane.next_finished() {
            let write = self.writes.remove(&id).expect("it ends once");
            self.judge(id, &write, &outcome);
        }
        assert_eq!(self.lane.with_owner(), self.with_owner.len());
        assert_eq!(self.lane.is_idle(), self.writes.is_empty());
    }

    fn judge(&mut self, id: LaneId, write: &Expected, outcome: &Outcome) {
        let with_owner = |request: usize| {
            let mut pieces = self.with_owner.iter();
            pieces.any(|piece| piece.transfer == id && piece.request as usize == request)
        };
        let mut may_change = false;
        for (request, landed) in write.landed.iter().enumerate() {
            let mut failures = outcome.failures.iter();
            let failure = failures.find(|failure| failure.request == u32::try_from(request).ok());
            let all = landed.iter().all(|&byte| byte);
            let Some(failure) = failure else {
                assert!(all, "request {request} of {:?} is done", write.lens);
                continue;
            };
            assert!(!all, "what landed whole is done");
            let some = landed.iter().any(|&byte| byte);
            match failure.effect {
                Effect::MayStillChange => {
                    assert!(with_owner(request));
                    may_change = true;
                }
                Effect::Partly => assert!(some && !with_owner(request)),
                Effect::Untouched => assert!(!some && !with_owner(request)),
            }
            match failure.cause {
                Cause::Refused(Refusal::Stale) => assert!(write.refused[request]),
                Cause::Cancelled => assert!(write.is_cancelled),
                Cause::DeadlineExceeded => {
                    assert!(write.deadline.is_some_and(|deadline| deadline <= self.now));
                }
                other => unreachable!("{other}"),
            }
        }
        assert!(outcome.failures.len() <= write.lens.len());
        if !may_change {
            self.settled.push(id);
        }
    }
}

proptest! {
    #[test]
    fn each_write_ends_as_it_says(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        // An owner that goes on carries everything out; one that is silent holds nobody for ever.
        for _ in 0..1000 {
            model.hand_out(COMMANDS_MAX);
            model.answer(COMMANDS_MAX, false);
        }
        prop_assert!(model.writes.is_empty(), "{:?}", model.writes);
    }

    #[test]
    fn a_silent_owner_keeps_nobody_beyond_deadline_and_settling(
        lens in prop::collection::vec(1..3000_u64, 1..5),
        deadline_ms in 1..100_u64,
    ) {
        let mut model = Model::new();
        model.step(&Step::Submit(lens, Some(deadline_ms), false));
        model.step(&Step::HandOut(COMMANDS_MAX + 1));
        model.step(&Step::Wait(deadline_ms));
        prop_assert_eq!(model.writes.len(), 1, "it settles");
        model.step(&Step::Wait(50));
        prop_assert!(model.writes.is_empty());
        // Late answers are for nobody.
        model.with_owner.clear();
        let count = model.lane.with_owner();
        prop_assert!(count > 0);
        for _ in 0..count {
            model.lane.on_answer(Ok(()), model.now);
        }
        prop_assert!(model.lane.next_finished().is_none());
    }
}

#[test]
fn the_foreground_goes_first_and_the_background_is_not_starved() {
    let mut lane = Lane::new(OPTIONS);
    let options = |priority| TransferOptions {
        priority,
        deadline: Time::MAX,
        has_note: false,
    };
    let mut submit = |priority| {
        let len = std::iter::once(10_000_u64);
        lane.submit(len, options(priority), Time::ZERO)
            .expect("room")
    };
    let background = submit(Priority::Background);
    let foreground = submit(Priority::Foreground);
    let mut counts = BTreeMap::new();
    for _ in 0..640 {
        let piece = lane.next_piece().expect("there is enough");
        *counts.entry(piece.transfer).or_insert(0) += 1;
        lane.on_answer(Ok(()), Time::ZERO);
    }
    assert_eq!((counts[&foreground], counts[&background]), (600, 40));
}
