//! What two engines of one host have each other copy: a lane, any events in any order that its driver's contract
//! allows, and an owner that carries out whatever it likes, late, or nothing.
//!
//! ```text
//!   byte 0      slots less one (bits 0, 1); length of one (bit 2); length of a piece (bit 3)
//!   then        events, each a code and its arguments
//! ```
//!
//! The driver answers in the order in which pieces were handed out, and says that the owner is lost at most when it
//! is. What the owner does is free, and so is when.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lunette_runtime_core::codec::{Reader, Truncated};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::same_host::commands::{
    COMMANDS_MAX, Command, WINDOW, answer_at, answer_from_word, answer_to_word, between,
};
use lunette_transfer_proto::engine::same_host::lane::{
    Lane, LaneId, LaneOptions, LaneRequest, Piece,
};
use lunette_transfer_proto::engine::scheduler::{
    Cause, Effect, Outcome, Priority, RequestFailure, TransferOptions,
};
use lunette_transfer_proto::engine::segment::Way;

/// Most events of a script, so that one run stays short.
const EVENTS_MAX: usize = 256;
/// Transfers at a time: few, so that the bound is met.
const TRANSFERS_MAX: usize = 6;
/// Timers that may be due within one wait.
const TIMERS_MAX: usize = 64;
/// Requests have multiples of so many bytes.
const UNIT_BYTES: u64 = 3;
const SETTLE: Duration = Duration::from_millis(50);

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Transfers without a failure.
    pub succeeded: u32,
    /// Requests of which nothing landed.
    pub untouched: u32,
    /// Requests of which something did.
    pub partly: u32,
    /// Requests of which something may still land.
    pub unsettled: u32,
    /// Transfers that were cancelled.
    pub cancelled: u32,
    /// Transfers that were too late.
    pub late: u32,
    /// Transfers that were one too many.
    pub full: u32,
    /// Pieces that were refused.
    pub refused: u32,
    /// Answers to transfers that had ended.
    pub stray: u32,
    /// Pieces that had to wait for a slot of the window.
    pub no_slot: u32,
    /// Pieces that had to wait for the owner.
    pub no_room: u32,
    /// Transfers that are to go another way.
    pub lost: u32,
}

/// A request of a transfer, as whoever asked for it sees it.
#[derive(Debug)]
struct Asked {
    request: LaneRequest,
    /// The first byte that was not handed out.
    handed_out_bytes: u64,
    landed_bytes: u64,
    with_owner: u32,
    refusal: Option<Refusal>,
}

#[derive(Debug)]
struct Posted {
    asked: Vec<Asked>,
    deadline: Time,
    is_cancelled: bool,
}

/// Everything outside of the lane.
struct World {
    lane: Lane,
    options: LaneOptions,
    now: Time,
    /// In the order of their commands.
    with_owner: VecDeque<Piece>,
    submitted: u64,
    carried_out: u64,
    posted: BTreeMap<LaneId, Posted>,
    reached: Reached,
}

/// Drives a lane with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn lane(data: &[u8]) -> Reached {
    let mut script = Reader::new(data);
    let Ok(flags) = script.u8() else {
        return Reached::default();
    };
    let options = LaneOptions {
        piece_bytes_max: if flags & 8 == 0 { 10 } else { 200 },
        slots: 1 + u32::from(flags & 3),
        slot_bytes: if flags & 4 == 0 { 7 } else { 20 },
        settle: SETTLE,
        transfers_max: TRANSFERS_MAX,
    };
    let mut world = World {
        lane: Lane::new(options),
        options,
        now: Time::ZERO,
        with_owner: VecDeque::new(),
        // Counts go round, and nobody may notice.
        submitted: u64::MAX - 9,
        carried_out: u64::MAX - 9,
        posted: BTreeMap::new(),
        reached: Reached::default(),
    };
    for _ in 0..EVENTS_MAX {
        if world.step(&mut script).is_err() {
            break;
        }
        world.judge_ended();
    }
    world.settle();
    world.reached
}

impl World {
    fn step(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        match script.u8()? % 16 {
            0..=2 => self.submit(script)?,
            3..=6 => self.hand_out(usize::from(script.u8()? % 80)),
            7..=10 => self.answer(usize::from(script.u8()? % 40), Ok(())),
            11 => {
                let refusal = Refusal::from_wire(u16::from(script.u8()? & 15));
                self.answer(1, Err(refusal.unwrap_or(Refusal::Busy)));
            }
            12 => {
                let at = usize::from(script.u8()?).checked_rem(self.posted.len());
                if let Some((&id, posted)) = at.and_then(|at| self.posted.iter_mut().nth(at)) {
                    posted.is_cancelled = true;
                    self.lane.cancel(id, self.now);
                }
            }
            13 | 14 => self.wait(Duration::from_millis(script.u8()?.into())),
            _ => self.lose(),
        }
        Ok(())
    }

    fn submit(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let flags = script.u8()?;
        let mut requests = Vec::new();
        for _ in 0..flags & 7 {
            let (size, kind) = (script.u8()?, script.u8()?);
            let way = if kind & 1 == 0 { Way::Read } else { Way::Write };
            requests.push(LaneRequest {
                way,
                len_bytes: u64::from(size) * UNIT_BYTES,
                by_window: way == Way::Read || kind & 2 != 0,
            });
        }
        let deadline = match flags >> 3 & 7 {
            0..4 => Time::MAX,
            short => self.now + Duration::from_millis(20) * u32::from(short - 4),
        };
        let options = TransferOptions {
            priority: if flags & 0x40 == 0 {
                Priority::Foreground
            } else {
                Priority::Background
            },
            deadline,
            has_note: false,
        };
        let is_full = self.posted.len() == TRANSFERS_MAX;
        let submitted = self
            .lane
            .submit(requests.iter().copied(), options, self.now);
        assert_eq!(submitted.is_err(), is_full, "at its bound, and not before");
        let Ok(id) = submitted else {
            self.reached.full += 1;
            return Ok(());
        };
        let asked = requests.into_iter().map(|request| Asked {
            request,
            handed_out_bytes: 0,
            landed_bytes: 0,
            with_owner: 0,
            refusal: None,
        });
        let posted = Posted {
            asked: asked.collect(),
            deadline,
            is_cancelled: false,
        };
        assert!(self.posted.insert(id, posted).is_none(), "no id twice");
        Ok(())
    }

    fn hand_out(&mut self, count: usize) {
        for _ in 0..count {
            let is_full = self.with_owner.len() == COMMANDS_MAX;
            let Some(piece) = self.lane.next_piece() else {
                let in_use = self.slots_in_use();
                self.reached.no_room += u32::from(is_full);
                self.reached.no_slot += u32::from(!is_full && in_use == self.options.slots);
                return;
            };
            assert!(!is_full, "no more than the owner takes");
            self.take(piece);
        }
    }

    fn slots_in_use(&self) -> u32 {
        let slots = self.with_owner.iter().filter(|other| other.slot.is_some());
        u32::try_from(slots.count()).expect("few")
    }

    fn take(&mut self, piece: Piece) {
        let posted = self.posted.get_mut(&piece.transfer);
        let posted = posted.expect("of what is under way alone");
        assert!(!posted.is_cancelled, "nothing new of what was given up");
        let asked = &mut posted.asked[piece.request as usize];
        assert!(asked.refusal.is_none(), "nothing new of what was refused");
        assert_eq!(piece.offset_bytes, asked.handed_out_bytes, "in order, once");
        asked.handed_out_bytes += piece.len_bytes;
        asked.with_owner += 1;
        assert!(asked.handed_out_bytes <= asked.request.len_bytes);
        assert_eq!(piece.slot.is_some(), asked.request.by_window);
        let len_bytes_max = match piece.slot {
            Some(slot) => {
                assert!(slot < self.options.slots, "there is such a slot");
                let mut others = self.with_owner.iter();
                assert!(others.all(|other| other.slot != piece.slot), "it is free");
                self.options.slot_bytes
            }
            None => self.options.piece_bytes_max,
        };
        assert!((1..=len_bytes_max).contains(&piece.len_bytes));
        self.with_owner.push_back(piece);
        self.submitted = self.submitted.wrapping_add(1);
        let count = between(self.carried_out, self.submitted);
        assert_eq!(count, Some(self.with_owner.len()), "what the owner counts");
        let command = Command {
            from: WINDOW,
            from_offset_bytes: piece.offset_bytes,
            to: WINDOW,
            to_offset_bytes: u64::from(piece.slot.unwrap_or_default()),
            len_bytes: piece.len_bytes,
        };
        assert_eq!(Command::from_words(command.to_words()), command);
    }

    fn answer(&mut self, count: usize, answer: Result<(), Refusal>) {
        for _ in 0..count {
            let Some(piece) = self.with_owner.pop_front() else {
                return;
            };
            let next = self.with_owner.len() as u64;
            let number = self.carried_out;
            let mut others = (1..=next).map(|ahead| answer_at(number.wrapping_add(ahead)));
            assert!(others.all(|other| other != answer_at(number)), "its own");
            self.carried_out = number.wrapping_add(1);
            let answer = answer_from_word(answer_to_word(answer));
            self.reached.refused += u32::from(answer.is_err());
            self.landed(&piece, answer);
            assert_eq!(self.lane.on_answer(answer, self.now), piece, "in order");
            self.judge_ended();
        }
    }

    fn landed(&mut self, piece: &Piece, answer: Result<(), Refusal>) {
        let Some(posted) = self.posted.get_mut(&piece.transfer) else {
            self.reached.stray += 1;
            return;
        };
        let asked = &mut posted.asked[piece.request as usize];
        asked.with_owner -= 1;
        match answer {
            Ok(()) => asked.landed_bytes += piece.len_bytes,
            Err(refusal) => {
                asked.refusal.get_or_insert(refusal);
            }
        }
    }

    /// Time passes, and timers fire when they are due.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..TIMERS_MAX {
            let due = self.lane.poll_timeout().filter(|&due| due <= until);
            self.now = self.now.max(due.unwrap_or(until));
            self.lane.on_timeout(self.now);
            self.judge_ended();
            if due.is_none() {
                return;
            }
        }
        unreachable!("timers are due again and again at {:?}", self.now);
    }

    fn lose(&mut self) {
        self.with_owner.clear();
        self.carried_out = self.submitted;
        let posted = self.posted.values_mut();
        posted
            .flat_map(|posted| &mut posted.asked)
            .for_each(|asked| asked.with_owner = 0);
        for id in self.lane.on_lost(self.now) {
            let posted = self.posted.remove(&id).expect("it was under way");
            assert!(!posted.is_cancelled && posted.deadline >= self.now);
            self.reached.lost += 1;
        }
        self.judge_ended();
        assert!(self.posted.is_empty(), "nobody waits for who is gone");
    }

    fn judge_ended(&mut self) {
        while let Some((id, outcome)) = self.lane.next_finished() {
            let posted = self.posted.remove(&id).expect("each ends once");
            self.judge(&posted, &outcome);
        }
        assert_eq!(self.lane.with_owner(), self.with_owner.len());
        assert_eq!(self.lane.is_idle(), self.posted.is_empty());
    }

    fn judge(&mut self, posted: &Posted, outcome: &Outcome) {
        let is_late = posted.deadline <= self.now;
        let mut failures = outcome.failures.iter().peekable();
        for (index, asked) in (0..).zip(&posted.asked) {
            let is_whole = asked.landed_bytes == asked.request.len_bytes;
            let failure = failures.next_if(|failure| failure.request == Some(index));
            assert_eq!(failure.is_none(), is_whole, "{posted:?}, {outcome:?}");
            if let Some(failure) = failure {
                self.judge_failure(posted, asked, failure);
            }
        }
        assert!(failures.next().is_none(), "once each, in their order");
        let has_failed = !outcome.failures.is_empty();
        self.reached.succeeded += u32::from(!has_failed);
        self.reached.cancelled += u32::from(has_failed && posted.is_cancelled);
        self.reached.late += u32::from(has_failed && is_late && !posted.is_cancelled);
    }

    fn judge_failure(&mut self, posted: &Posted, asked: &Asked, failure: &RequestFailure) {
        match failure.cause {
            Cause::Refused(refusal) => assert_eq!(Some(refusal), asked.refusal),
            Cause::Cancelled => assert!(posted.is_cancelled),
            Cause::DeadlineExceeded => assert!(posted.deadline <= self.now),
            other => unreachable!("{other}"),
        }
        // What is read is copied to its place by the asker alone.
        let may_land = asked.with_owner > 0 && asked.request.way == Way::Write;
        match failure.effect {
            Effect::MayStillChange => {
                assert!(may_land);
                self.reached.unsettled += 1;
            }
            Effect::Partly => {
                assert!(!may_land && asked.landed_bytes > 0);
                self.reached.partly += 1;
            }
            Effect::Untouched => {
                assert!(!may_land && asked.landed_bytes == 0);
                self.reached.untouched += 1;
            }
        }
    }

    /// From here on the owner carries out everything: everything ends, and nothing is left.
    fn settle(&mut self) {
        while !self.posted.is_empty() || !self.with_owner.is_empty() {
            let before = (self.submitted, self.carried_out, self.posted.len());
            self.hand_out(COMMANDS_MAX);
            self.answer(COMMANDS_MAX, Ok(()));
            let after = (self.submitted, self.carried_out, self.posted.len());
            assert_ne!(before, after, "it stands still: {:?}", self.posted);
        }
        assert_eq!(self.lane.poll_timeout(), None, "nothing to wait for");
        assert_eq!(self.lane.next_piece(), None);
    }
}
