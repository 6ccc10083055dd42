//! Transfers over rails.
//!
//! A scheduler belongs to one peer. It cuts the requests of transfers into slices, sends each over
//! the rail that will have it through first, and sends what is lost again over another one:
//!
//! ```text
//!                      Send                  answered
//!   waiting -----------------------> under way ----------------------> done
//!      ^                              |     |
//!      |        a read, lost          |     | a write, lost
//!      +------------------------------+     v
//!      |                                  limbo   (it may still land at the peer)
//!      |          Fence, fenced             |
//!      +------------------------------------+
//! ```
//!
//! A write whose connection was lost may be in the peer's kernel still. If it were sent again over
//! another rail, and that memory were then used for something else, the first one could land on top.
//! So the peer is asked to end the lost connection first, and answers when nothing of it can land any
//! more. A read that is lost lands in our own memory, where the driver has seen its end.
//!
//! At the end of its work a scheduler takes slices back from a rail that holds it up, and sends them over
//! another one; writes when they are fenced.
//!
//! Rails are streams, or lead from memory to memory ([`Carrier`]). These come first: streams carry bytes only
//! while none of the others is up, and what they alone reach ([`on_barred`](Scheduler::on_barred)),
//! and fences always. A notification goes over one of these that tells ([`on_tells`](Scheduler::on_tells)), at once
//! behind the last writes if it has carried all that are under way, or over a stream.
//!
//! A transfer that is over before its slices are (deadline, cancel) stays until they are settled, for
//! `settle` at most, and says what may still change if they are not.

mod assigning;
mod outcome;
mod slots;
mod stealing;
mod telling;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::{BTreeSet, VecDeque};

use lunette_runtime_core::time::Time;

use super::message::Refusal;
use super::rail::{Carrier, Rail, RailState};
use super::segment::Way;
use super::slices::{Cutter, Request, Slice};

pub use outcome::{
    Action, BUSY_PAUSE_GROWTH_MAX, Cause, CloseCause, Effect, Outcome, Priority, RequestFailure,
    SchedulerOptions, SliceId, TransferId, TransferOptions, TransfersFull,
};

use slots::Slots;
use transfer::{Attempt, NoteState, Transfer};

/// One slice in so many goes to the oldest transfer, however urgent the others are.
const OLDEST_EVERY: u64 = 16;
/// Transfers that are looked at for one slice.
const LOOKED_AT_MAX: usize = 8;
/// Lost connections that wait for their fence; no slice is sent while there are so many.
const LOST_MAX: usize = 64;
/// Rails to one peer.
pub const RAILS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceState {
    Sent,
    /// Its transfer is over, and the driver has been asked to stop it.
    Stopping,
    /// The driver has been asked to stop it, so that it can go another way.
    Stolen,
    /// Its connection is lost, and the peer has not yet said that it is.
    Limbo,
}

#[derive(Debug)]
struct UnderWay {
    slice: Slice,
    /// `None` once its transfer has ended without it.
    transfer: Option<u32>,
    rail: usize,
    connection: u32,
    carries_note: bool,
    sent: Time,
    /// Bytes that were under way on its rail then.
    ahead_bytes: u64,
    state: SliceState,
    /// Its connection was given up because it was slow, and not because it failed.
    is_taken_back: bool,
}

fn is_one_sided(rail: &Rail) -> bool {
    rail.carrier() == Carrier::OneSided
}

/// How a slice leaves its rail.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Answered(Time),
    Refused(Time),
    Stopped,
}

/// A lost connection that is to be ended at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LostConnection {
    rail: usize,
    connection: u32,
    /// The rail that carries the question, and its connection.
    asked: Option<(usize, u32)>,
    /// How often it was asked in vain.
    failures: u32,
    /// It is not asked before.
    not_before: Time,
}

/// The transfers to and from one peer.
#[derive(Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    rails: Vec<Rail>,
    transfers: Slots<Transfer>,
    slices: Slots<UnderWay>,
    /// Transfers with something to send: the most urgent, then the earliest deadline, first.
    ready: BTreeSet<(Priority, Time, u64, u32)>,
    /// The same, the oldest first.
    ready_by_age: BTreeSet<(u64, u32)>,
    /// When each transfer is over, or ends unsettled.
    deadlines: BTreeSet<(Time, u32)>,
    lost: Vec<LostConnection>,
    actions: VecDeque<Action>,
    submitted: u64,
    assigned: u64,
    /// Transfers that are about to be submitted.
    expected: usize,
}

impl Scheduler {
    /// A scheduler over `rails` rails, none of them connected.
    ///
    /// # Panics
    /// If there are none, or more than [`RAILS_MAX`].
    #[must_use]
    pub fn new(options: SchedulerOptions, rails: usize) -> Self {
        Self::with_one_sided(options, rails, 0)
    }

    /// A scheduler over so many streams, and behind them so many rails from memory to memory, none of them
    /// connected.
    ///
    /// # Panics
    /// If there are no streams, or more than [`RAILS_MAX`] rails in all.
    #[must_use]
    pub fn with_one_sided(options: SchedulerOptions, streams: usize, one_sided: usize) -> Self {
        let count = streams + one_sided;
        assert!(
            streams > 0 && count <= RAILS_MAX,
            "{streams} streams, {one_sided} others"
        );
        let mut rails = vec![Rail::new(options.rail); streams];
        let one_sided_rail = Rail::of(Carrier::OneSided, options.one_sided_rail);
        rails.resize(count, one_sided_rail);
        Self {
            options,
            rails,
            transfers: Slots::default(),
            slices: Slots::default(),
            ready: BTreeSet::new(),
            ready_by_age: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            lost: Vec::new(),
            actions: VecDeque::new(),
            submitted: 0,
            assigned: 0,
            expected: 0,
        }
    }

    /// The rails.
    #[must_use]
    pub fn rails(&self) -> &[Rail] {
        &self.rails
    }

    /// Transfers that have not finished.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.transfers.len()
    }

    /// A slice that is under way, and whether its transfer's notification goes with it.
    #[must_use]
    pub fn slice(&self, id: SliceId) -> Option<(&Slice, bool)> {
        let under_way = self.slices.get(id.index, id.generation)?;
        Some((&under_way.slice, under_way.carries_note))
    }

    /// Takes a batch of requests. One without bytes and notification finishes at once.
    ///
    /// # Errors
    /// [`TransfersFull`] at the bound.
    ///
    /// # Panics
    /// If there are more requests than a [`Cutter`] takes.
    pub fn submit(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        options: TransferOptions,
        now: Time,
    ) -> Result<TransferId, TransfersFull> {
        let transfers_max = self.options.transfers_max;
        if self.transfers.len() + self.expected >= transfers_max {
            return Err(TransfersFull { transfers_max });
        }
        self.submitted += 1;
        let transfer = Transfer::new(Cutter::new(requests), options, self.submitted, now);
        let (index, generation) = self.transfers.insert(transfer);
        self.deadlines.insert((options.deadline, index));
        self.refresh(index);
        Ok(TransferId { index, generation })
    }

    /// Ends a transfer. [`Action::Finished`] follows when nothing of it is under way any more.
    pub fn cancel(&mut self, id: TransferId, now: Time) {
        if self.transfers.get(id.index, id.generation).is_some() {
            self.end(id.index, Cause::Cancelled, now);
        }
    }

    /// What is to be done next.
    pub fn next_action(&mut self, now: Time) -> Option<Action> {
        if self.actions.is_empty() {
            self.connect(now);
            self.ask_for_fences(now);
            self.assign(now);
        }
        if self.actions.is_empty() {
            self.steal(now);
        }
        self.actions.pop_front()
    }

    /// When [`on_timeout`](Self::on_timeout) is due, whatever else happens.
    #[must_use]
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        let wants_rails = self.wants_rails();
        let has_stream = self.has_stream();
        let of_rail = |rail: &Rail| match rail.state() {
            RailState::Down { until } => {
                let can_be = has_stream || !is_one_sided(rail);
                (wants_rails && can_be).then_some(until)
            }
            RailState::Connecting => None,
            RailState::Up => match rail.waits_since() {
                Some(since) => Some(since + self.options.stall),
                None => self.idle_at(rail),
            },
        };
        let rails = self.rails.iter().filter_map(of_rail);
        let over = self.deadlines.first().map(|&(at, _)| at);
        let paused = self.ready.iter().filter_map(|&(.., index)| {
            let generation = self.transfers.generation(index);
            let at = self.transfers.get(index, generation)?.not_before;
            (at > now).then_some(at)
        });
        let fences = self.lost.iter().map(|lost| lost.not_before);
        rails
            .chain(self.steal_at(now))
            .chain(over)
            .chain(fences.filter(|&at| at > now))
            .chain(paused.take(LOOKED_AT_MAX).min())
            .filter(|&at| at < Time::MAX)
            .min()
    }

    /// Ends what is over by now, gives up rails on which nothing moves, and closes those that nobody needs.
    pub fn on_timeout(&mut self, now: Time) {
        while let Some(&(at, index)) = self.deadlines.first()
            && at <= now
            && at < Time::MAX
        {
            if self.transfers.at(index).settle_until.is_some() {
                self.end_unsettled(index);
            } else {
                let cause = if self.rails.iter().any(Rail::is_up) {
                    Cause::DeadlineExceeded
                } else {
                    Cause::Unreachable
                };
                self.end(index, cause, now);
            }
        }
        for rail in 0..self.rails.len() {
            let Some(cause) = self.closes(&self.rails[rail], now) else {
                continue;
            };
            let connection = self.rails[rail].connection();
            match cause {
                CloseCause::Idle => self.rails[rail].on_idle(now),
                CloseCause::Stalled | CloseCause::Overtaken => {
                    self.on_rail_failed(rail, connection, now);
                }
            }
            self.actions.push_back(Action::Close {
                rail,
                connection,
                cause,
            });
        }
    }

    fn closes(&self, rail: &Rail, now: Time) -> Option<CloseCause> {
        match rail.waits_since() {
            Some(since) if since + self.options.stall <= now => Some(CloseCause::Stalled),
            None if self.idle_at(rail).is_some_and(|at| at <= now) => Some(CloseCause::Idle),
            _ => None,
        }
    }

    /// When a rail on which nothing is under way is closed. Rails from memory to memory end with the last
    /// stream, which therefore waits for them.
    fn idle_at(&self, rail: &Rail) -> Option<Time> {
        let others = || {
            self.rails
                .iter()
                .any(|rail| rail.is_up() && is_one_sided(rail))
        };
        let is_needed = !is_one_sided(rail) && others();
        (rail.is_up() && !is_needed).then(|| rail.moved() + self.options.idle_max)
    }

    /// Takes a connection that was made before, as that of a rail that was never tried.
    ///
    /// # Panics
    /// If it was tried.
    pub fn adopt(&mut self, rail: usize, now: Time) -> u32 {
        let found = &mut self.rails[rail];
        assert!(found.try_connect(now), "a rail that was never tried");
        found.on_connected(now);
        found.connection()
    }

    /// A rail is connected. False if that connection is not wanted any more: close it.
    pub fn on_connected(&mut self, rail: usize, connection: u32, now: Time) -> bool {
        let found = &mut self.rails[rail];
        if found.connection() != connection || found.state() != RailState::Connecting {
            return false;
        }
        found.on_connected(now);
        true
    }

    /// A connection could not be made, or is lost.
    pub fn on_rail_failed(&mut self, rail: usize, connection: u32, now: Time) {
        let found = &mut self.rails[rail];
        let is_down = matches!(found.state(), RailState::Down { .. });
        if found.connection() == connection && !is_down {
            found.on_failed(now);
        }
        for lost in &mut self.lost {
            lost.asked = lost.asked.filter(|&asked| asked != (rail, connection));
        }
    }

    /// Another engine answers on a rail: nothing of the one that was there is left.
    pub fn on_peer_replaced(&mut self, now: Time) {
        self.lost.clear();
        let in_limbo: Vec<SliceId> =
            self.slices_where(|under_way| under_way.state == SliceState::Limbo);
        for id in in_limbo {
            self.forget(id);
        }
        let all: Vec<u32> = self.transfers.iter_mut().map(|(index, ..)| index).collect();
        for index in all {
            if self.transfers.at(index).settle_until.is_some() {
                self.refresh(index);
            } else {
                self.end(index, Cause::PeerReplaced, now);
            }
        }
    }

    /// The peer has done what the slice asks for.
    ///
    /// # Panics
    /// If the slice is not under way: each is answered once.
    pub fn on_answered(&mut self, id: SliceId, now: Time) {
        let under_way = self.take(id);
        self.leave_rail(&under_way, Leave::Answered(now));
        if let Some(index) = under_way.transfer {
            let transfer = self.transfers.at(index);
            transfer.under_way -= 1;
            transfer.cutter.done(under_way.slice);
            if under_way.carries_note {
                transfer.note = NoteState::Settled;
                transfer.is_told = true;
            }
            self.refresh(index);
        }
    }

    /// The peer refuses the slice, or the bytes of a read arrived damaged ([`Refusal::Corrupt`]).
    /// `part` is the index of the part that it takes exception to.
    ///
    /// # Panics
    /// As [`on_answered`](Self::on_answered).
    pub fn on_refused(&mut self, id: SliceId, refusal: Refusal, part: usize, now: Time) {
        let under_way = self.take(id);
        self.leave_rail(&under_way, Leave::Refused(now));
        let Some(index) = under_way.transfer else {
            return;
        };
        let attempts = under_way.slice.attempts + 1;
        // What may still be written must not be found behind what the program writes next: only it can say
        // whether the same is to be written again.
        let may_still_land = refusal == Refusal::Detached && under_way.slice.way == Way::Write;
        let is_final =
            !refusal.is_retryable() || may_still_land || attempts >= self.options.attempts_max;
        let cause = match refusal {
            Refusal::Corrupt => Cause::Corrupt,
            other => Cause::Refused(other),
        };
        let culprit = if refusal.is_retryable() && refusal != Refusal::Device {
            // The whole slice is at fault, for the last time; a device is at fault for its part alone.
            None
        } else {
            under_way.slice.parts.get(part).map(|part| part.request)
        };
        let attempt = Attempt {
            rail: Some(under_way.rail),
            attempts,
            now,
        };
        let pause = now + self.options.pause_after(refusal, attempts);
        let transfer = self.transfers.at(index);
        transfer.under_way -= 1;
        transfer.note_attempts += u32::from(under_way.slice.parts.is_empty());
        if is_final {
            transfer.fail_parts(&under_way.slice, culprit, cause, attempt);
        } else {
            // Another slice may have been refused more often: the peer is as busy for this one.
            transfer.not_before = transfer.not_before.max(pause);
        }
        if is_final && under_way.slice.parts.is_empty() {
            transfer.fail_note(cause, attempt);
        } else if under_way.carries_note && transfer.note == NoteState::UnderWay {
            transfer.note = NoteState::Waiting;
        }
        transfer.cutter.again(under_way.slice);
        self.refresh(index);
    }

    /// The slice's connection ended before the answer. For a read: nothing of it can land in our
    /// memory any more.
    ///
    /// # Panics
    /// As [`on_answered`](Self::on_answered).
    pub fn on_lost(&mut self, id: SliceId, now: Time) {
        let under_way = self.slices.at(id.index);
        assert!(under_way.state != SliceState::Limbo, "lost once");
        let (rail, connection) = (under_way.rail, under_way.connection);
        if self.has_arrived(id) {
            self.on_rail_failed(rail, connection, now);
            self.on_answered(id, now);
            return;
        }
        let under_way = self.slices.at(id.index);
        if under_way.slice.way == Way::Write {
            under_way.state = SliceState::Limbo;
            let is_known =
                |lost: &LostConnection| (lost.rail, lost.connection) == (rail, connection);
            if !self.lost.iter().any(is_known) {
                self.lost.push(LostConnection {
                    rail,
                    connection,
                    asked: None,
                    failures: 0,
                    not_before: now,
                });
            }
            self.does_not_follow(id);
        } else {
            self.send_again(id, now);
        }
        self.on_rail_failed(rail, connection, now);
    }

    /// The driver could not send the slice: nothing of it is under way. It goes again after a pause.
    ///
    /// # Panics
    /// As [`on_answered`](Self::on_answered).
    pub fn on_unsent(&mut self, id: SliceId, now: Time) {
        let under_way = self.take(id);
        self.leave_rail(&under_way, Leave::Stopped);
        let Some(index) = under_way.transfer else {
            return;
        };
        let pause = now + self.options.busy_pause;
        let transfer = self.transfers.at(index);
        transfer.under_way -= 1;
        if under_way.carries_note && transfer.note == NoteState::UnderWay {
            transfer.note = NoteState::Waiting;
        }
        transfer.not_before = transfer.not_before.max(pause);
        transfer.cutter.back(under_way.slice);
        self.refresh(index);
    }

    /// The slice cannot go over its rail, since not all of it is reached from memory to memory: nothing of it
    /// is under way. It goes over a stream.
    ///
    /// # Panics
    /// As [`on_answered`](Self::on_answered).
    pub fn on_barred(&mut self, id: SliceId) {
        let (under_way, index) = self.take_unsent(id);
        if let Some(index) = index {
            self.transfers.at(index).cutter.bar(under_way.slice);
            self.refresh(index);
        }
    }

    /// A slice that never was under way on its rail, and its transfer, which does not count it.
    fn take_unsent(&mut self, id: SliceId) -> (UnderWay, Option<u32>) {
        let under_way = self.take(id);
        self.leave_rail(&under_way, Leave::Stopped);
        let index = under_way.transfer;
        if let Some(index) = index {
            let transfer = self.transfers.at(index);
            transfer.under_way -= 1;
            transfer.outcome.slices -= 1;
            transfer.outcome.resent -= u64::from(under_way.slice.attempts > 0);
        }
        (under_way, index)
    }

    /// A read that was to be stopped has been: nothing of it can land in our memory any more. It goes
    /// another way unless its transfer is over.
    ///
    /// # Panics
    /// As [`on_answered`](Self::on_answered).
    pub fn on_stopped(&mut self, id: SliceId) {
        let under_way = self.take(id);
        self.leave_rail(&under_way, Leave::Stopped);
        if let Some(index) = under_way.transfer {
            let transfer = self.transfers.at(index);
            transfer.under_way -= 1;
            if under_way.state == SliceState::Stolen {
                transfer.outcome.stolen += 1;
            }
            transfer.cutter.back(under_way.slice);
            self.refresh(index);
        }
    }

    /// The peer has ended a connection, or (`is_fenced` false) did not: it is asked again after a pause,
    /// which grows as a rail's does.
    pub fn on_fenced(&mut self, rail: usize, connection: u32, is_fenced: bool, now: Time) {
        let is_it = |lost: &LostConnection| (lost.rail, lost.connection) == (rail, connection);
        let Some(at) = self.lost.iter().position(is_it) else {
            return;
        };
        if !is_fenced {
            let lost = &mut self.lost[at];
            lost.asked = None;
            lost.not_before = now + self.options.rail.pause(lost.failures);
            lost.failures = lost.failures.saturating_add(1);
            return;
        }
        self.lost.remove(at);
        let fenced = self.slices_where(|under_way| {
            under_way.state == SliceState::Limbo
                && (under_way.rail, under_way.connection) == (rail, connection)
        });
        for id in fenced {
            self.send_again(id, now);
        }
    }

    fn slices_where(&mut self, matches: impl Fn(&UnderWay) -> bool) -> Vec<SliceId> {
        let found = self
            .slices
            .iter_mut()
            .filter_map(|(index, generation, under_way)| {
                matches(under_way).then_some(SliceId { index, generation })
            });
        found.collect()
    }

    fn take(&mut self, id: SliceId) -> UnderWay {
        let under_way = self.slices.remove(id.index, id.generation);
        under_way.expect("a slice is settled once")
    }

    /// A slice that was lost goes back to its transfer. One that was taken back was not tried in vain.
    fn send_again(&mut self, id: SliceId, now: Time) {
        let under_way = self.take(id);
        let Some(index) = under_way.transfer else {
            return;
        };
        let transfer = self.transfers.at(index);
        transfer.under_way -= 1;
        if under_way.carries_note && transfer.note == NoteState::UnderWay {
            transfer.note = NoteState::Waiting;
        }
        if under_way.is_taken_back {
            transfer.outcome.stolen += u64::from(!under_way.slice.parts.is_empty());
            transfer.cutter.back(under_way.slice);
            self.refresh(index);
            return;
        }
        let attempt = Attempt {
            rail: Some(under_way.rail),
            attempts: under_way.slice.attempts + 1,
            now,
        };
        transfer.note_attempts += u32::from(under_way.slice.parts.is_empty());
        if attempt.attempts >= self.options.attempts_max {
            transfer.fail_parts(&under_way.slice, None, Cause::Lost, attempt);
            if under_way.slice.parts.is_empty() {
                transfer.fail_note(Cause::Lost, attempt);
            }
        }
        transfer.cutter.again(under_way.slice);
        self.refresh(index);
    }

    /// A slice in limbo of which nothing can land any more, whose transfer is about to end.
    fn forget(&mut self, id: SliceId) {
        let under_way = self.take(id);
        if let Some(index) = under_way.transfer {
            self.transfers.at(index).under_way -= 1;
        }
    }

    fn leave_rail(&mut self, under_way: &UnderWay, how: Leave) {
        let rail = &mut self.rails[under_way.rail];
        if rail.connection() != under_way.connection || !rail.is_up() {
            return;
        }
        let len_bytes = under_way.slice.len_bytes();
        match how {
            Leave::Answered(now) if is_one_sided(rail) && under_way.slice.parts.is_empty() => {
                rail.on_told(under_way.sent, now);
            }
            Leave::Answered(now) if is_one_sided(rail) => {
                let ahead_bytes = under_way.ahead_bytes;
                rail.on_done_in_order(len_bytes, ahead_bytes, under_way.sent, now);
            }
            Leave::Answered(now) => rail.on_answered(len_bytes, under_way.sent, now),
            Leave::Refused(now) => rail.on_refused(len_bytes, now),
            Leave::Stopped => rail.on_stopped(len_bytes),
        }
    }

    /// Nothing more of a transfer is sent. What is under way is stopped, or waited for.
    fn end(&mut self, index: u32, cause: Cause, now: Time) {
        let settle_until = now + self.options.settle;
        let transfer = self.transfers.at(index);
        if transfer.settle_until.is_some() {
            return;
        }
        let attempt = Attempt {
            rail: transfer.last_rail,
            attempts: transfer.last_attempts,
            now,
        };
        self.deadlines.remove(&(transfer.options.deadline, index));
        transfer.settle_until = Some(settle_until);
        transfer.fail_all(cause, attempt);
        self.deadlines.insert((settle_until, index));
        for (slice, generation, under_way) in self.slices.iter_mut() {
            if under_way.transfer == Some(index)
                && under_way.slice.way == Way::Read
                && under_way.state == SliceState::Sent
            {
                under_way.state = SliceState::Stopping;
                let slice = SliceId {
                    index: slice,
                    generation,
                };
                self.actions.push_back(Action::Stop { slice });
            }
        }
        self.refresh(index);
    }

    /// A transfer that is over has waited long enough for what it has under way.
    fn end_unsettled(&mut self, index: u32) {
        let mut unsettled = BTreeSet::new();
        for (.., under_way) in self.slices.iter_mut() {
            if under_way.transfer == Some(index) {
                under_way.transfer = None;
                let requests = under_way.slice.parts.iter().map(|part| Some(part.request));
                unsettled.extend(requests);
                if under_way.carries_note {
                    unsettled.insert(None);
                }
            }
        }
        let transfer = self.transfers.at(index);
        transfer.under_way = 0;
        transfer.leave_unsettled(|request| unsettled.contains(&request));
        self.refresh(index);
    }

    /// Brings the lists of transfers up to date with what has become of one.
    fn refresh(&mut self, index: u32) {
        let transfer = self.transfers.at(index);
        let is_ready = transfer.has_work() && transfer.settle_until.is_none();
        if is_ready != transfer.is_listed {
            transfer.is_listed = is_ready;
            let TransferOptions {
                priority, deadline, ..
            } = transfer.options;
            let by_urgency = (priority, deadline, transfer.sequence, index);
            let by_age = (transfer.sequence, index);
            if is_ready {
                self.ready.insert(by_urgency);
                self.ready_by_age.insert(by_age);
            } else {
                self.ready.remove(&by_urgency);
                self.ready_by_age.remove(&by_age);
            }
        }
        if !transfer.is_finished() {
            return;
        }
        let over = transfer.settle_until.unwrap_or(transfer.options.deadline);
        self.deadlines.remove(&(over, index));
        let generation = self.transfers.generation(index);
        let transfer = self.transfers.remove(index, generation);
        let outcome = transfer.expect("it was there").into_outcome();
        let transfer = TransferId { index, generation };
        self.actions
            .push_back(Action::Finished { transfer, outcome });
    }

    fn wants_rails(&self) -> bool {
        !self.ready.is_empty() || !self.lost.is_empty() || self.expected > 0
    }

    fn has_stream(&self) -> bool {
        let mut rails = self.rails.iter();
        rails.any(|rail| rail.is_up() && !is_one_sided(rail))
    }

    /// A transfer is about to be submitted: rails are connected meanwhile, and there is room for it when
    /// it is not expected any more.
    ///
    /// # Errors
    /// [`TransfersFull`] at the bound.
    pub fn expect(&mut self) -> Result<(), TransfersFull> {
        let transfers_max = self.options.transfers_max;
        if self.transfers.len() + self.expected >= transfers_max {
            return Err(TransfersFull { transfers_max });
        }
        self.expected += 1;
        Ok(())
    }

    /// It is submitted now, or never will be.
    ///
    /// # Panics
    /// If none was expected.
    pub const fn expect_no_more(&mut self) {
        self.expected = self.expected.checked_sub(1).expect("it was expected");
    }

    /// Whether a rail from memory to memory is up; `None` while that is not known, because one is being
    /// connected or may be.
    #[must_use]
    pub fn is_one_sided(&self, now: Time) -> Option<bool> {
        let mut rails = self.rails.iter().filter(|rail| is_one_sided(rail));
        if rails.any(Rail::is_up) {
            return Some(true);
        }
        let mut rails = self.rails.iter().filter(|rail| is_one_sided(rail));
        let may_come = rails.any(|rail| match rail.state() {
            RailState::Connecting => true,
            RailState::Down { until } => until <= now && rail.failures() == 0,
            RailState::Up => false,
        });
        (!may_come).then_some(false)
    }

    fn connect(&mut self, now: Time) {
        if !self.wants_rails() {
            return;
        }
        let has_stream = self.has_stream();
        for (index, rail) in self.rails.iter_mut().enumerate() {
            // What is to be agreed on is said over a stream.
            let can_be = has_stream || !is_one_sided(rail);
            if can_be && rail.try_connect(now) {
                let connection = rail.connection();
                let rail = index;
                self.actions.push_back(Action::Connect { rail, connection });
            }
        }
    }

    fn ask_for_fences(&mut self, now: Time) {
        let fastest = |(_, rail): &(usize, &Rail)| std::cmp::Reverse(rail.bytes_per_second());
        let due = |lost: &&mut LostConnection| lost.asked.is_none() && lost.not_before <= now;
        for lost in self.lost.iter_mut().filter(due) {
            let up = self
                .rails
                .iter()
                .enumerate()
                .filter(|(_, rail)| rail.is_up() && !is_one_sided(rail));
            if let Some((via, carrier)) = up.min_by_key(fastest) {
                lost.asked = Some((via, carrier.connection()));
                self.actions.push_back(Action::Fence {
                    rail: lost.rail,
                    connection: lost.connection,
                    via,
                });
            }
        }
    }
}
