//! One transfer within a scheduler.

use lunette_runtime_core::time::Time;

use super::outcome::{Cause, Effect, Outcome, RequestFailure, TransferOptions};
use crate::engine::message::Refusal;
use crate::engine::segment::Way;
use crate::engine::slices::{Cutter, Slice};

/// Where the notification stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoteState {
    /// There is none, or it has been delivered, or never will be.
    Settled,
    /// It waits for the bytes.
    Waiting,
    /// It is under way.
    UnderWay,
}

/// A connection of a rail.
pub(super) type Link = (usize, u32);

/// Over what goes what a transfer has under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// All of it are writes over this one, which carries notifications.
    One(Link),
    /// Over several, or over such as carry none, or it is not known what becomes of it.
    Others,
}

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) cutter: Cutter,
    pub(super) options: TransferOptions,
    pub(super) sequence: u64,
    pub(super) note: NoteState,
    /// Whether it is in the lists of those that have something to send.
    pub(super) is_listed: bool,
    /// Slices under way, lost ones that wait for their fence included.
    pub(super) under_way: u32,
    under: Under,
    /// The notification is none for rails from memory to memory.
    pub(super) is_note_barred: bool,
    /// The notification has been answered: all bytes are where they belong.
    pub(super) is_told: bool,
    /// Nothing is sent before this point in time.
    pub(super) not_before: Time,
    /// When it ends unsettled, once it is over.
    pub(super) settle_until: Option<Time>,
    /// How often the notification was sent by itself.
    pub(super) note_attempts: u32,
    /// Connections that were given up because its writes were overdue on them.
    pub(super) given_up: u32,
    pub(super) last_rail: Option<usize>,
    pub(super) last_attempts: u32,
    submitted: Time,
    pub(super) outcome: Outcome,
}

/// What is known of a failed attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) rail: Option<usize>,
    pub(super) attempts: u32,
    pub(super) now: Time,
}

impl Transfer {
    pub(super) fn new(cutter: Cutter, options: TransferOptions, sequence: u64, now: Time) -> Self {
        let note = if options.has_note {
            NoteState::Waiting
        } else {
            NoteState::Settled
        };
        Self {
            cutter,
            options,
            sequence,
            note,
            is_listed: false,
            under_way: 0,
            under: Under::Others,
            is_note_barred: false,
            is_told: false,
            not_before: Time::ZERO,
            settle_until: None,
            note_attempts: 0,
            given_up: 0,
            last_rail: None,
            last_attempts: 0,
            submitted: now,
            outcome: Outcome::default(),
        }
    }

    /// Whether something of it could be sent.
    pub(super) fn has_work(&self) -> bool {
        self.cutter.waiting_bytes() > 0 || self.note_is_due() || self.note_follows().is_some()
    }

    /// Whether the notification goes by itself now: all bytes are where they belong.
    pub(super) fn note_is_due(&self) -> bool {
        self.note == NoteState::Waiting
            && self.cutter.is_finished()
            && self.under_way == 0
            && self.outcome.failures.is_empty()
    }

    /// Behind what the notification may be sent before that is answered: it arrives after it.
    pub(super) fn note_follows(&self) -> Option<Link> {
        let Under::One(link) = self.under else {
            return None;
        };
        let follows = self.note == NoteState::Waiting
            && !self.is_note_barred
            && self.under_way > 0
            && self.cutter.waiting_bytes() == 0
            && self.outcome.failures.is_empty();
        follows.then_some(link)
    }

    /// Whether the notification may go with `slice`, which has just been taken: it is the last one.
    pub(super) fn note_fits(&self, slice: &Slice) -> bool {
        self.note == NoteState::Waiting
            && slice.way == Way::Write
            && self.under_way == 0
            && self.cutter.waiting_bytes() == 0
            && self.outcome.failures.is_empty()
    }

    /// A slice is sent; `telling` if it is a write over a connection that carries notifications.
    pub(super) fn on_sent(&mut self, rail: usize, attempts: u32, telling: Option<Link>) {
        self.under = match telling {
            Some(link) if self.under_way == 0 || self.under == Under::One(link) => Under::One(link),
            _ => Under::Others,
        };
        self.under_way += 1;
        self.outcome.slices += 1;
        self.outcome.resent += u64::from(attempts > 0);
        self.last_rail = Some(rail);
        self.last_attempts = attempts + 1;
    }

    /// Something of it was lost: nothing follows that.
    pub(super) const fn on_lost(&mut self) {
        self.under = Under::Others;
    }

    /// Whether nothing is left to do or to wait for.
    pub(super) fn is_finished(&self) -> bool {
        self.cutter.is_finished()
            && self.under_way == 0
            && (self.note == NoteState::Settled || !self.outcome.failures.is_empty())
    }

    /// One request fails.
    pub(super) fn fail_request(&mut self, request: u32, cause: Cause, attempt: Attempt) {
        if self.cutter.unfinished_contains(request) {
            let effect = if self.cutter.was_begun(request) {
                Effect::Partly
            } else {
                Effect::Untouched
            };
            self.cutter.fail(request);
            self.record(Some(request), cause, effect, attempt);
        }
    }

    /// The requests of a slice fail: that of `culprit`, or all.
    pub(super) fn fail_parts(
        &mut self,
        slice: &Slice,
        culprit: Option<u32>,
        cause: Cause,
        attempt: Attempt,
    ) {
        let is_detached = cause == Cause::Refused(Refusal::Detached);
        let may_still_land = is_detached && slice.way == Way::Write;
        for part in &slice.parts {
            if culprit.is_none_or(|culprit| culprit == part.request) {
                self.fail_request(part.request, cause, attempt);
                if may_still_land {
                    self.may_still_change(part.request);
                }
            }
        }
    }

    /// A request that has failed may still be written.
    fn may_still_change(&mut self, request: u32) {
        let failures = self.outcome.failures.iter_mut();
        for failure in failures.filter(|failure| failure.request == Some(request)) {
            failure.effect = Effect::MayStillChange;
        }
    }

    /// Everything that is not done fails.
    pub(super) fn fail_all(&mut self, cause: Cause, attempt: Attempt) {
        let unfinished: Vec<u32> = self.cutter.unfinished().collect();
        for request in unfinished {
            self.fail_request(request, cause, attempt);
        }
        if self.note != NoteState::Settled && self.outcome.failures.is_empty() {
            self.fail_note(cause, attempt);
        }
    }

    /// The notification fails, unless it has already.
    pub(super) fn fail_note(&mut self, cause: Cause, attempt: Attempt) {
        let effect = match self.note {
            NoteState::UnderWay => Effect::Partly,
            NoteState::Waiting if self.note_attempts > 0 => Effect::Partly,
            NoteState::Waiting => Effect::Untouched,
            NoteState::Settled => return,
        };
        self.note = NoteState::Settled;
        self.record(None, cause, effect, attempt);
    }

    /// What is under way is not waited for any more.
    pub(super) fn leave_unsettled(&mut self, writes: impl Fn(Option<u32>) -> bool) {
        for failure in &mut self.outcome.failures {
            if writes(failure.request) {
                failure.effect = Effect::MayStillChange;
            }
        }
    }

    pub(super) fn into_outcome(self) -> Outcome {
        self.outcome
    }

    fn record(&mut self, request: Option<u32>, cause: Cause, effect: Effect, attempt: Attempt) {
        let age = attempt.now.since(self.submitted);
        self.outcome.failures.push(RequestFailure {
            request,
            cause,
            effect,
            rail: attempt.rail,
            attempts: attempt.attempts,
            age,
        });
    }
}
