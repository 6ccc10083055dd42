//! Transfers with an engine of the same host against a model of that engine: what is said to be done has
//! landed whole, once; what failed left what it says; nothing lands after its end unless that was said; and
//! no two pieces have one slot of the window.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::same_host::commands::COMMANDS_MAX;
use lunette_transfer_proto::engine::same_host::lane::{
    Lane, LaneId, LaneOptions, LaneRequest, Piece,
};
use lunette_transfer_proto::engine::scheduler::{
    Cause, Effect, Outcome, Priority, TransferOptions, TransfersFull,
};
use lunette_transfer_proto::engine::segment::Way;
use proptest::prelude::*;

const OPTIONS: LaneOptions = LaneOptions {
    piece_bytes_max: 10,
    slots: 3,
    slot_bytes: 7,
    settle: Duration::from_millis(50),
    transfers_max: 8,
};

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Submit(Vec<LaneRequest>, Option<u64>, bool),
    HandOut(usize),
    Answer(usize, bool),
    Cancel(prop::sample::Index),
    Wait(u64),
    Lose,
}

/// A read, which goes through the window, or a write, which may.
fn request() -> impl Strategy<Value = LaneRequest> {
    (0..300_u64, any::<bool>(), any::<bool>()).prop_map(|(len_bytes, is_read, by_window)| {
        LaneRequest {
            way: if is_read { Way::Read } else { Way::Write },
            len_bytes,
            by_window: by_window || is_read,
        }
    })
}

fn write(len_bytes: u64) -> LaneRequest {
    LaneRequest {
        way: Way::Write,
        len_bytes,
        by_window: false,
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let submit = (
        prop::collection::vec(request(), 0..5),
        prop::option::of(1..200_u64),
        any::<bool>(),
    );
    let step = prop_oneof![
        4 => submit.prop_map(|(asked, deadline, back)| Step::Submit(asked, deadline, back)),
        8 => (1..40_usize).prop_map(Step::HandOut),
        8 => (1..40_usize, prop::bool::weighted(0.1)).prop_map(|(n, no)| Step::Answer(n, no)),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        3 => (0..60_u64).prop_map(Step::Wait),
        1 => Just(Step::Lose),
    ];
    prop::collection::vec(step, 0..80)
}

/// What one transfer should have come to.
#[derive(Debug)]
struct Expected {
    requests: Vec<LaneRequest>,
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
    transfers: BTreeMap<LaneId, Expected>,
    /// Those of which nothing may land any more.
    settled: Vec<LaneId>,
    /// What those asked that have ended here.
    over: BTreeMap<LaneId, Vec<LaneRequest>>,
}

impl Model {
    fn new() -> Self {
        Self {
            lane: Lane::new(OPTIONS),
            now: Time::ZERO,
            with_owner: VecDeque::new(),
            transfers: BTreeMap::new(),
            settled: Vec::new(),
            over: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Submit(asked, deadline, back) => self.submit(asked, *deadline, *back),
            Step::HandOut(count) => self.hand_out(*count),
            Step::Answer(count, refuse) => self.answer(*count, *refuse),
            Step::Cancel(at) => {
                let ids: Vec<LaneId> = self.transfers.keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[at.index(ids.len())];
                    self.transfers.get_mut(&id).expect("listed").is_cancelled = true;
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
                    let write = self.transfers.remove(&id).expect("it was under way");
                    assert!(!write.is_cancelled, "it was given up");
                }
            }
        }
        self.finished();
    }

    fn submit(&mut self, requests: &[LaneRequest], deadline: Option<u64>, back: bool) {
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
        let is_full = self.transfers.len() >= OPTIONS.transfers_max;
        match self.lane.submit(requests.iter().copied(), asked, self.now) {
            Err(TransfersFull { transfers_max }) => {
                assert!(is_full && transfers_max == OPTIONS.transfers_max);
            }
            Ok(id) => {
                assert!(!is_full);
                let bytes = |request: &LaneRequest| {
                    vec![false; usize::try_from(request.len_bytes).expect("small")]
                };
                let expected = Expected {
                    requests: requests.to_vec(),
                    landed: requests.iter().map(bytes).collect(),
                    refused: vec![false; requests.len()],
                    deadline,
                    is_cancelled: false,
                };
                assert!(self.transfers.insert(id, expected).is_none(), "a new id");
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
            let request = self.transfers[&piece.transfer].requests[piece.request as usize];
            assert_eq!(piece.slot.is_some(), request.by_window);
            let len_bytes_max = match piece.slot {
                Some(slot) => {
                    assert!(slot < OPTIONS.slots, "there is such a slot");
                    let mut others = self.with_owner.iter();
                    assert!(others.all(|other| other.slot != piece.slot), "it is free");
                    OPTIONS.slot_bytes
                }
                None => OPTIONS.piece_bytes_max,
            };
            assert!((1..=len_bytes_max).contains(&piece.len_bytes));
            let write = &self.transfers[&piece.transfer];
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
            let request = piece.request as usize;
            let is_write = self.is_write(&piece);
            assert!(
                !(is_write && self.settled.contains(&piece.transfer)),
                "it was settled"
            );
            if let Some(write) = self.transfers.get_mut(&piece.transfer) {
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
            let write = self.transfers.remove(&id).expect("it ends once");
            self.judge(id, &write, &outcome);
        }
        assert_eq!(self.lane.with_owner(), self.with_owner.len());
        assert_eq!(self.lane.is_idle(), self.transfers.is_empty());
    }

    fn judge(&mut self, id: LaneId, write: &Expected, outcome: &Outcome) {
        // What is read with a transfer that is over is copied to nowhere.
        let may_land = |request: usize| {
            let mut pieces = self.with_owner.iter();
            write.requests[request].way == Way::Write
                && pieces.any(|piece| piece.transfer == id && piece.request as usize == request)
        };
        let mut may_change = false;
        for (request, landed) in write.landed.iter().enumerate() {
            let mut failures = outcome.failures.iter();
            let failure = failures.find(|failure| failure.request == u32::try_from(request).ok());
            let all = landed.iter().all(|&byte| byte);
            let Some(failure) = failure else {
                assert!(all, "request {request} of {:?} is done", write.requests);
                continue;
            };
            assert!(!all, "what landed whole is done");
            let some = landed.iter().any(|&byte| byte);
            match failure.effect {
                Effect::MayStillChange => {
                    assert!(may_land(request));
                    may_change = true;
                }
                Effect::Partly => assert!(some && !may_land(request)),
                Effect::Untouched => assert!(!some && !may_land(request)),
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
        assert!(outcome.failures.len() <= write.requests.len());
        if !may_change {
            self.settled.push(id);
        }
        self.over.insert(id, write.requests.clone());
    }

    fn is_write(&self, piece: &Piece) -> bool {
        let live = self.transfers.get(&piece.transfer);
        let requests = live.map(|transfer| &transfer.requests);
        let requests = requests.or_else(|| self.over.get(&piece.transfer));
        requests.expect("it was handed out")[piece.request as usize].way == Way::Write
    }
}

proptest! {
    #[test]
    fn each_transfer_ends_as_it_says(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        // An owner that goes on carries everything out; one that is silent holds nobody for ever.
        for _ in 0..1000 {
            model.hand_out(COMMANDS_MAX);
            model.answer(COMMANDS_MAX, false);
        }
        prop_assert!(model.transfers.is_empty(), "{:?}", model.transfers);
    }

    #[test]
    fn a_silent_owner_keeps_nobody_beyond_deadline_and_settling(
        lens in prop::collection::vec(1..3000_u64, 1..5),
        deadline_ms in 1..100_u64,
    ) {
        let mut model = Model::new();
        let writes = lens.into_iter().map(write).collect();
        model.step(&Step::Submit(writes, Some(deadline_ms), false));
        model.step(&Step::HandOut(COMMANDS_MAX + 1));
        model.step(&Step::Wait(deadline_ms));
        prop_assert_eq!(model.transfers.len(), 1, "it settles");
        model.step(&Step::Wait(50));
        prop_assert!(model.transfers.is_empty());
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
fn what_reads_waits_for_nobody_when_it_is_given_up_and_its_slot_does() {
    let mut model = Model::new();
    let read = LaneRequest {
        way: Way::Read,
        len_bytes: 1000,
        by_window: true,
    };
    model.step(&Step::Submit(vec![read], Some(10), false));
    model.step(&Step::HandOut(100));
    assert_eq!(model.with_owner.len(), 3, "as many as there are slots");
    model.step(&Step::Wait(10));
    assert!(model.transfers.is_empty(), "over at its deadline");
    model.step(&Step::Submit(vec![read, write(10)], None, false));
    model.step(&Step::HandOut(100));
    assert_eq!(model.with_owner.len(), 3, "the owner may still use them");
    model.step(&Step::Answer(1, false));
    model.step(&Step::HandOut(100));
    assert_eq!(model.with_owner.len(), 3);
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
        let long = std::iter::once(write(10_000));
        let submitted = lane.submit(long, options(priority), Time::ZERO);
        submitted.expect("room")
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
