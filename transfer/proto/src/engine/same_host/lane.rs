//! Transfers with an engine of the same host that this engine has it carry out: which pieces are with it,
//! and what came of them.
//!
//! The owner carries pieces out in the order in which they were handed to it, and cannot be asked for one
//! back. So a transfer that is given up hands out no further pieces. Of what it writes, pieces that are
//! with the owner may still land: it ends when they are answered, or, where the owner does not answer,
//! after [`LaneOptions::settle`] with [`Effect::MayStillChange`]. What it reads is copied to its place by
//! the asker alone, so for that it waits for nobody.
//!
//! ```text
//!   submit --> waiting --next_piece--> with the owner --on_answer--> finished
//!                 |  cancel, deadline       |
//!                 +---------> ending <------+   settles, or its time is over
//! ```
//!
//! A piece that goes through the window has a slot of it from [`Lane::next_piece`] on until it is answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lunette_runtime_core::time::Time;

use super::super::message::Refusal;
use super::super::scheduler::{
    Cause, Effect, Outcome, Priority, RequestFailure, TransferOptions, TransfersFull,
};
use super::super::segment::Way;
use super::commands::COMMANDS_MAX;

/// Every so many pieces one is of a transfer in the background, if there is any.
const BACKGROUND_EVERY: u64 = 16;

/// Bounds of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOptions {
    /// Longest piece. The owner carries one out in one go.
    pub piece_bytes_max: u64,
    /// Slots of the window.
    pub slots: u32,
    /// Length of a slot, and of the longest piece that goes through the window.
    pub slot_bytes: u64,
    /// How long a write that is over (deadline, cancel) waits for what is with the owner.
    pub settle: Duration,
    /// Transfers at a time.
    pub transfers_max: usize,
}

impl LaneOptions {
    /// Length of the window.
    #[must_use]
    pub const fn window_bytes(&self) -> u64 {
        self.slots as u64 * self.slot_bytes
    }
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            piece_bytes_max: 256 * 1024,
            slots: 8,
            slot_bytes: 128 * 1024,
            settle: Duration::from_secs(2),
            transfers_max: 4096,
        }
    }
}

/// What is asked of a lane: one request of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRequest {
    /// Which way its bytes go.
    pub way: Way,
    /// How many they are.
    pub len_bytes: u64,
    /// Whether they go through the window: all reads do, and writes from memory that is not lent.
    pub by_window: bool,
}

/// Names a transfer of one lane. No two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(u64);

/// A piece for the owner to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of which transfer.
    pub transfer: LaneId,
    /// Of which of its requests.
    pub request: u32,
    /// Where in that.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// The slot of the window that is its own until it is answered, if it goes through the window.
    pub slot: Option<u32>,
}

#[derive(Debug)]
struct Request {
    asked: LaneRequest,
    handed_out_bytes: u64,
    landed_bytes: u64,
    with_owner: u32,
    refusal: Option<Refusal>,
}

#[derive(Debug)]
struct Transfer {
    requests: Vec<Request>,
    /// The first request of which something is to be handed out.
    next: usize,
    with_owner: u32,
    /// Of those, the pieces that write.
    writes_with_owner: u32,
    pieces: u64,
    began: Time,
    /// When the next thing happens to it: its deadline, or the end of its patience.
    due: Time,
    ending: Option<Cause>,
}

/// What one asker has one owner carry out.
#[derive(Debug)]
pub struct Lane {
    options: LaneOptions,
    next: u64,
    transfers: BTreeMap<LaneId, Transfer>,
    foreground: VecDeque<LaneId>,
    background: VecDeque<LaneId>,
    handed_out: u64,
    with_owner: VecDeque<Piece>,
    /// Slots of the window that have been given out, ever. They are answered in their order, so those in
    /// use are the last ones.
    slots_taken: u64,
    slots_in_use: u32,
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
            transfers: BTreeMap::new(),
            foreground: VecDeque::new(),
            background: VecDeque::new(),
            handed_out: 0,
            with_owner: VecDeque::new(),
            slots_taken: 0,
            slots_in_use: 0,
            due: BTreeSet::new(),
            finished: VecDeque::new(),
        }
    }

    /// Takes on a transfer.
    ///
    /// # Errors
    /// [`TransfersFull`].
    pub fn submit(
        &mut self,
        requests: impl Iterator<Item = LaneRequest>,
        options: TransferOptions,
        now: Time,
    ) -> Result<LaneId, TransfersFull> {
        let transfers_max = self.options.transfers_max;
        if self.transfers.len() >= transfers_max {
            return Err(TransfersFull { transfers_max });
        }
        let id = LaneId(self.next);
        self.next += 1;
        let transfer = Transfer::new(requests, options.deadline, now);
        if transfer.is_handed_out() {
            self.finished.push_back((id, Outcome::default()));
            return Ok(id);
        }
        self.due.insert((transfer.due, id));
        self.transfers.insert(id, transfer);
        match options.priority {
            Priority::Foreground => self.foreground.push_back(id),
            Priority::Background => self.background.push_back(id),
        }
        Ok(id)
    }

    /// The next piece to hand to the owner, in the order of these calls; `None` if there is none, or if
    /// the owner has as many as it takes, or if it needs a slot and all are in use.
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
            let transfer = self.transfers.get_mut(&id);
            let Some((transfer, by_window)) =
                transfer.and_then(|transfer| transfer.next_goes().map(|by| (transfer, by)))
            else {
                queue.pop_front();
                continue;
            };
            if by_window && self.slots_in_use >= self.options.slots {
                return None;
            }
            let mut piece = transfer.cut(id, &self.options);
            if by_window {
                let slot = self.slots_taken % u64::from(self.options.slots);
                piece.slot = Some(u32::try_from(slot).expect("less than the slots"));
                self.slots_taken += 1;
                self.slots_in_use += 1;
            }
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

    /// Whether no transfer is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    /// The oldest piece that is with the owner has been answered. Says whose it is. Its slot, if it has
    /// one, is free for the next piece: what was read is copied from there before
    /// [`next_piece`](Self::next_piece) is called again, and only if its transfer has not ended.
    ///
    /// # Panics
    /// If none is.
    pub fn on_answer(&mut self, answer: Result<(), Refusal>, now: Time) -> Piece {
        let piece = self.with_owner.pop_front().expect("a piece was answered");
        self.slots_in_use -= u32::from(piece.slot.is_some());
        let id = piece.transfer;
        if let Some(transfer) = self.transfers.get_mut(&id) {
            transfer.on_answer(&piece, answer);
            if transfer.is_over() {
                self.finish(id, now);
            }
        }
        piece
    }

    /// Gives a transfer up.
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
            if self.transfers[&id].ending.is_some() {
                self.finish(id, now);
            } else {
                self.end(id, Cause::DeadlineExceeded, now);
            }
        }
    }

    /// The owner is gone, or carries out nothing any more, so nothing lands any more. Transfers that were
    /// ending have ended; the others are to go another way, whole, and are not this lane's any more.
    pub fn on_lost(&mut self, now: Time) -> Vec<LaneId> {
        self.with_owner.clear();
        self.slots_in_use = 0;
        let mut others = Vec::new();
        let ids: Vec<LaneId> = self.transfers.keys().copied().collect();
        for id in ids {
            let transfer = self.transfers.get_mut(&id).expect("it was listed");
            transfer.requests.iter_mut().for_each(|r| r.with_owner = 0);
            if transfer.ending.is_some() {
                self.finish(id, now);
            } else {
                self.due.remove(&(transfer.due, id));
                self.transfers.remove(&id);
                others.push(id);
            }
        }
        others
    }

    /// A transfer that is over, and what came of it.
    pub fn next_finished(&mut self) -> Option<(LaneId, Outcome)> {
        self.finished.pop_front()
    }

    fn end(&mut self, id: LaneId, cause: Cause, now: Time) {
        let settle = self.options.settle;
        let Some(transfer) = self.transfers.get_mut(&id) else {
            return;
        };
        if transfer.ending.is_some() {
            return;
        }
        transfer.ending = Some(cause);
        self.due.remove(&(transfer.due, id));
        transfer.due = now + settle;
        self.due.insert((transfer.due, id));
        if transfer.is_over() {
            self.finish(id, now);
        }
    }

    fn finish(&mut self, id: LaneId, now: Time) {
        let transfer = self.transfers.remove(&id).expect("it is under way");
        self.due.remove(&(transfer.due, id));
        self.finished.push_back((id, transfer.outcome(now)));
    }
}

impl Transfer {
    fn new(requests: impl Iterator<Item = LaneRequest>, deadline: Time, now: Time) -> Self {
        let requests = requests.map(|asked| Request {
            asked,
            handed_out_bytes: 0,
            landed_bytes: 0,
            with_owner: 0,
            refusal: None,
        });
        let mut transfer = Self {
            requests: requests.collect(),
            next: 0,
            with_owner: 0,
            writes_with_owner: 0,
            pieces: 0,
            began: now,
            due: deadline,
            ending: None,
        };
        transfer.skip();
        transfer
    }

    /// Passes over requests of which nothing more is to be handed out.
    fn skip(&mut self) {
        while let Some(request) = self.requests.get(self.next)
            && (request.refusal.is_some() || request.handed_out_bytes == request.asked.len_bytes)
        {
            self.next += 1;
        }
    }

    fn is_handed_out(&self) -> bool {
        self.next == self.requests.len()
    }

    fn is_over(&self) -> bool {
        if self.ending.is_some() {
            self.writes_with_owner == 0
        } else {
            self.with_owner == 0 && self.is_handed_out()
        }
    }

    /// Whether its next piece goes through the window; `None` if there is none.
    fn next_goes(&self) -> Option<bool> {
        if self.ending.is_some() {
            return None;
        }
        let request = self.requests.get(self.next)?;
        Some(request.asked.by_window)
    }

    fn cut(&mut self, transfer: LaneId, options: &LaneOptions) -> Piece {
        let request = &mut self.requests[self.next];
        let piece_bytes_max = if request.asked.by_window {
            options.slot_bytes
        } else {
            options.piece_bytes_max
        };
        let offset_bytes = request.handed_out_bytes;
        let len_bytes = piece_bytes_max.min(request.asked.len_bytes - offset_bytes);
        request.handed_out_bytes += len_bytes;
        request.with_owner += 1;
        self.with_owner += 1;
        self.writes_with_owner += u32::from(request.asked.way == Way::Write);
        self.pieces += 1;
        let piece = Piece {
            transfer,
            request: u32::try_from(self.next).expect("requests are bounded"),
            offset_bytes,
            len_bytes,
            slot: None,
        };
        self.skip();
        piece
    }

    fn on_answer(&mut self, piece: &Piece, answer: Result<(), Refusal>) {
        self.with_owner -= 1;
        let request = &mut self.requests[piece.request as usize];
        self.writes_with_owner -= u32::from(request.asked.way == Way::Write);
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
            if request.landed_bytes == request.asked.len_bytes {
                continue;
            }
            let refused = request.refusal.map(Cause::Refused);
            let effect = if request.with_owner > 0 && request.asked.way == Way::Write {
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
