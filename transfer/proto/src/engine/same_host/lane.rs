//! Writes to an engine of the same host: which pieces are with it, and what came of them.
//!
//! The owner carries pieces out in the order in which they were handed to it, and cannot be asked for one
//! back. So a write that is given up hands out no further pieces and ends when those that are with the
//! owner are answered, or, where the owner does not answer, after [`LaneOptions::settle`] with
//! [`Effect::MayStillChange`].
//!
//! ```text
//!   submit --> waiting --next_piece--> with the owner --on_answer--> finished
//!                 |  cancel, deadline       |
//!                 +---------> ending <------+   settles, or its time is over
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lunette_runtime_core::time::Time;

use super::super::message::Refusal;
use super::super::scheduler::{
    Cause, Effect, Outcome, Priority, RequestFailure, TransferOptions, TransfersFull,
};
use super::commands::COMMANDS_MAX;

/// Every so many pieces one is of a write in the background, if there is any.
const BACKGROUND_EVERY: u64 = 16;

/// Bounds of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOptions {
    /// Longest piece. The owner carries one out in one go.
    pub piece_bytes_max: u64,
    /// How long a write that is over (deadline, cancel) waits for what is with the owner.
    pub settle: Duration,
    /// Writes at a time.
    pub transfers_max: usize,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            piece_bytes_max: 256 * 1024,
            settle: Duration::from_secs(2),
            transfers_max: 4096,
        }
    }
}

/// Names a write of one lane. No two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(u64);

/// A piece for the owner to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of which write.
    pub transfer: LaneId,
    /// Of which of its requests.
    pub request: u32,
    /// Where in that.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

#[derive(Debug)]
struct Request {
    len_bytes: u64,
    handed_out_bytes: u64,
    landed_bytes: u64,
    with_owner: u32,
    refusal: Option<Refusal>,
}

#[derive(Debug)]
struct Write {
    requests: Vec<Request>,
    /// The first request of which something is to be handed out.
    next: usize,
    with_owner: u32,
    pieces: u64,
    began: Time,
    /// When the next thing happens to it: its deadline, or the end of its patience.
    due: Time,
    ending: Option<Cause>,
}

/// The writes of one asker to one owner.
#[derive(Debug)]
pub struct Lane {
    options: LaneOptions,
    next: u64,
    writes: BTreeMap<LaneId, Write>,
    foreground: VecDeque<LaneId>,
    background: VecDeque<LaneId>,
    handed_out: u64,
    with_owner: VecDeque<Piece>,
    due: BTreeSet<(Time, LaneId)>,
    finished: VecDeque<(LaneId, Outcome)>,
}

impl Lane {
    /// A lane on which nothing moves.
    #[must_use]
    pub fn new(options: LaneOptions) -> Self {
        Self {
            options,
            next: 0,
            writes: BTreeMap::new(),
            foreground: VecDeque::new(),
            background: VecDeque::new(),
            handed_out: 0,
            with_owner: VecDeque::new(),
            due: BTreeSet::new(),
            finished: VecDeque::new(),
        }
    }

    /// Takes on a write of requests of these lengths.
    ///
    /// # Errors
    /// [`TransfersFull`].
    pub fn submit(
        &mut self,
        lens: impl Iterator<Item = u64>,
        options: TransferOptions,
        now: Time,
    ) -> Result<LaneId, TransfersFull> {
        let transfers_max = self.options.transfers_max;
        if self.writes.len() >= transfers_max {
            return Err(TransfersFull { transfers_max });
        }
        let id = LaneId(self.next);
        self.next += 1;
        let write = Write::new(lens, options.deadline, now);
        if write.is_handed_out() {
            self.finished.push_back((id, Outcome::default()));
            return Ok(id);
        }
        self.due.insert((write.due, id));
        self.writes.insert(id, write);
        match options.priority {
            Priority::Foreground => self.foreground.push_back(id),
            Priority::Background => self.background.push_back(id),
        }
        Ok(id)
    }

    /// The next piece to hand to the owner, in the order of these calls; `None` if there is none, or if
    /// the owner has as many as it takes.
    pub fn next_piece(&mut self) -> Option<Piece> {
        if self.with_owner.len() >= COMMANDS_MAX {
            return None;
        }
        loop {
            let is_background = !self.background.is_empty()
                && (self.foreground.is_empty() || self.handed_out.is_multiple_of(BACKGROUND_EVERY));
            let queue = if is_background {
                &mut self.background
            } else {
                &mut self.foreground
            };
            let id = *queue.front()?;
            let write = self.writes.get_mut(&id);
            let Some(piece) = write.and_then(|write| write.cut(id, self.options.piece_bytes_max))
            else {
                queue.pop_front();
                continue;
            };
            self.handed_out += 1;
            self.with_owner.push_back(piece);
            return Some(piece);
        }
    }

    /// How many pieces are with the owner.
    #[must_use]
    pub fn with_owner(&self) -> usize {
        self.with_owner.len()
    }

    /// Whether no write is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.writes.is_empty()
    }

    /// The oldest piece that is with the owner has been answered. Says whose it is.
    ///
    /// # Panics
    /// If none is.
    pub fn on_answer(&mut self, answer: Result<(), Refusal>, now: Time) -> Piece {
        let piece = self.with_owner.pop_front().expect("a piece was answered");
        let id = piece.transfer;
        if let Some(write) = self.writes.get_mut(&id) {
            write.on_answer(&piece, answer);
            if write.with_owner == 0 && (write.ending.is_some() || write.is_handed_out()) {
                self.finish(id, now);
            }
        }
        piece
    }

    /// Gives a write up.
    pub fn cancel(&mut self, id: LaneId, now: Time) {
        self.end(id, Cause::Cancelled, now);
    }

    /// When [`Lane::on_timeout`] is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let first = self.due.first().map(|&(due, _)| due);
        first.filter(|&due| due < Time::MAX)
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Time) {
        while let Some(&(due, id)) = self.due.first()
            && due <= now
        {
            if self.writes[&id].ending.is_some() {
                self.finish(id, now);
            } else {
                self.end(id, Cause::DeadlineExceeded, now);
            }
        }
    }

    /// The owner is gone, or carries out nothing any more, so nothing lands any more. Writes that were
    /// ending have ended; the others are to go another way, whole, and are not this lane's any more.
    pub fn on_lost(&mut self, now: Time) -> Vec<LaneId> {
        self.with_owner.clear();
        let mut others = Vec::new();
        let ids: Vec<LaneId> = self.writes.keys().copied().collect();
        for id in ids {
            let write = self.writes.get_mut(&id).expect("it was listed");
            write.with_owner = 0;
            write.requests.iter_mut().for_each(|r| r.with_owner = 0);
            if write.ending.is_some() {
                self.finish(id, now);
            } else {
                self.due.remove(&(write.due, id));
                self.writes.remove(&id);
                others.push(id);
            }
        }
        others
    }

    /// A write that is over, and what came of it.
    pub fn next_finished(&mut self) -> Option<(LaneId, Outcome)> {
        self.finished.pop_front()
    }

    fn end(&mut self, id: LaneId, cause: Cause, now: Time) {
        let settle = self.options.settle;
        let Some(write) = self.writes.get_mut(&id) else {
            return;
        };
        if write.ending.is_some() {
            return;
        }
        write.ending = Some(cause);
        self.due.remove(&(write.due, id));
        write.due = now + settle;
        self.due.insert((write.due, id));
        if write.with_owner == 0 {
            self.finish(id, now);
        }
    }

    fn finish(&mut self, id: LaneId, now: Time) {
        let write = self.writes.remove(&id).expect("it is under way");
        self.due.remove(&(write.due, id));
        self.finished.push_back((id, write.outcome(now)));
    }
}

impl Write {
    fn new(lens: impl Iterator<Item = u64>, deadline: Time, now: Time) -> Self {
        let requests = lens.map(|len_bytes| Request {
            len_bytes,
            handed_out_bytes: 0,
            landed_bytes: 0,
            with_owner: 0,
            refusal: None,
        });
        let mut write = Self {
            requests: requests.collect(),
            next: 0,
            with_owner: 0,
            pieces: 0,
            began: now,
            due: deadline,
            ending: None,
        };
        write.skip();
        write
    }

    /// Passes over requests of which nothing more is to be handed out.
    fn skip(&mut self) {
        while let Some(request) = self.requests.get(self.next)
            && (request.refusal.is_some() || request.handed_out_bytes == request.len_bytes)
        {
            self.next += 1;
        }
    }

    fn is_handed_out(&self) -> bool {
        self.next == self.requests.len()
    }

    fn cut(&mut self, transfer: LaneId, piece_bytes_max: u64) -> Option<Piece> {
        if self.ending.is_some() {
            return None;
        }
        let request = self.requests.get_mut(self.next)?;
        let offset_bytes = request.handed_out_bytes;
        let len_bytes = piece_bytes_max.min(request.len_bytes - offset_bytes);
        request.handed_out_bytes += len_bytes;
        request.with_owner += 1;
        self.with_owner += 1;
        self.pieces += 1;
        let piece = Piece {
            transfer,
            request: u32::try_from(self.next).expect("requests are bounded"),
            offset_bytes,
            len_bytes,
        };
        self.skip();
        Some(piece)
    }

    fn on_answer(&mut self, piece: &Piece, answer: Result<(), Refusal>) {
        self.with_owner -= 1;
        let request = &mut self.requests[piece.request as usize];
        request.with_owner -= 1;
        match answer {
            Ok(()) => request.landed_bytes += piece.len_bytes,
            Err(refusal) => {
                request.refusal.get_or_insert(refusal);
                self.skip();
            }
        }
    }

    fn outcome(self, now: Time) -> Outcome {
        let mut failures = Vec::new();
        for (index, request) in (0..).zip(&self.requests) {
            if request.landed_bytes == request.len_bytes {
                continue;
            }
            let refused = request.refusal.map(Cause::Refused);
            let effect = if request.with_owner > 0 {
                Effect::MayStillChange
            } else if request.landed_bytes > 0 {
                Effect::Partly
            } else {
                Effect::Untouched
            };
            failures.push(RequestFailure {
                request: Some(index),
                cause: refused
                    .or(self.ending)
                    .expect("it did not land for a reason"),
                effect,
                rail: None,
                attempts: 1,
                age: now.since(self.began),
            });
        }
        Outcome {
            failures,
            slices: self.pieces,
            ..Outcome::default()
        }
    }
}
