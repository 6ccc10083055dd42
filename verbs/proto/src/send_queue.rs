//! Accounting of a send queue: credits, signals, flushes, deadlines.
//!
//! Requests are numbered in the order of staging; the driver keeps what belongs to request `n` at
//! place `n % depth` of a ring of its own. A number is over exactly once, in order, when it comes
//! out as [`Retired`]. The rules, and why:
//!
//! | rule | because |
//! |---|---|
//! | at most `depth` requests are unretired | adapters differ in what they do beyond: Soft-RoCE accepts and breaks |
//! | at most `depth / 2` in a row ask for no completion, and the last of a batch asks for one | room is learnt of by a later completion alone |
//! | a success retires all before it | reliable connections complete in order |
//! | a failure retires all before it as done, itself as failed, and from then on each by its own completion | what fails flushes everything behind it, unasked |
//! | a batch that is accepted in part gives back the rest, exactly | the adapter names the first it refused |
//! | every request has a deadline; a passed one breaks the queue pair | adapters may retry for ever: Soft-RoCE was seen silent for 20 s after 67 ms x 8 |
//! | a broken queue pair that does not flush in time is destroyed | then nothing can reach the memory any more |

use core::time::Duration;

use lunette_runtime_core::time::Time;
use thiserror::Error;

use crate::status::Status;

/// Deepest send queue.
pub const DEPTH_MAX: u32 = 1 << 15;
/// How long a broken queue pair may take to flush.
pub const FLUSH_MAX: Duration = Duration::from_secs(2);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The adapter did it.
    Done,
    /// It failed, and broke the queue pair. Whether the peer's memory changed is not known.
    Failed(Status),
    /// The queue pair was broken before its turn, or in the middle of it.
    Flushed,
    /// As [`Outcome::Flushed`], because of this request's deadline.
    TimedOut,
    /// The queue pair ended without a word about it.
    Lost,
    /// The adapter did not take it; it had no effect.
    Refused,
}

impl Outcome {
    /// Whether the same request may be made again on another queue pair.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Done => false,
            Self::Failed(status) => status.is_retryable(),
            Self::Flushed | Self::TimedOut | Self::Lost | Self::Refused => true,
        }
    }
}

/// A request that is over. Its memory is the program's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Its number.
    pub sequence: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// Why a request was not staged. Nothing has changed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StageError {
    /// As many requests are unretired as the queue holds: wait for one.
    #[error("send queue full")]
    Full,
    /// The queue pair is broken: make another one.
    #[error("the queue pair is broken")]
    Broken,
}

impl StageError {
    /// Whether waiting can help.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        matches!(self, Self::Full)
    }

    /// Whether the request may be made on another queue pair, at once.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Broken)
    }
}

/// A completion that belongs to no request in flight. The adapter or its driver is at fault:
/// break the queue pair.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a completion of request {sequence}, which is not in flight")]
pub struct UnknownRequest {
    /// The number that it named.
    pub sequence: u32,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Requests that came back as refused.
    pub refused: u32,
    /// The last one that was accepted asks for no completion: post something that does, or break
    /// the queue pair, or nobody learns of its end.
    pub needs_marker: bool,
}

/// What a passed deadline asks of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Move the queue pair to the error state; completions follow.
    Break,
    /// The completions did not follow: destroy the queue pair, then call
    /// [`SendQueue::destroyed`].
    Destroy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Open,
    /// Broken by us or by a failure; `has_failed` once a completion said so.
    Broken {
        flush_by: Time,
        has_failed: bool,
    },
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    deadline: Time,
    is_signalled: bool,
    has_expired: bool,
}

/// The accounting of one send queue.
#[derive(Debug)]
pub struct SendQueue {
    /// By number modulo depth.
    ring: Box<[Entry]>,
    depth: u32,
    /// The oldest unretired number.
    head: u32,
    /// Behind the last accepted number.
    posted: u32,
    /// Behind the last staged number.
    staged: u32,
    /// How many at the end ask for no completion.
    unsignalled_run: u32,
    /// No later than the earliest deadline.
    earliest: Time,
    mode: Mode,
}

impl SendQueue {
    /// An empty queue whose first request has the number `first`.
    ///
    /// # Panics
    /// If the depth is no power of two of 2 to [`DEPTH_MAX`] (numbers wrap, so it must divide 2^32).
    #[must_use]
    pub fn new(depth: u32, first: u32) -> Self {
        assert!(
            (2..=DEPTH_MAX).contains(&depth) && depth.is_power_of_two(),
            "depth {depth}"
        );
        let empty = Entry {
            deadline: Time::MAX,
            is_signalled: false,
            has_expired: false,
        };
        Self {
            ring: vec![empty; depth as usize].into(),
            depth,
            head: first,
            posted: first,
            staged: first,
            unsignalled_run: 0,
            earliest: Time::MAX,
            mode: Mode::Open,
        }
    }

    /// Requests that the queue holds.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Requests that may be staged now.
    #[must_use]
    pub const fn credits(&self) -> u32 {
        self.depth - self.unretired()
    }

    /// Requests that are staged or with the adapter.
    #[must_use]
    pub const fn unretired(&self) -> u32 {
        self.staged.wrapping_sub(self.head)
    }

    /// Requests that are with the adapter.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.posted.wrapping_sub(self.head)
    }

    /// Requests that are staged and not yet posted, and the number of the first.
    #[must_use]
    pub const fn batch(&self) -> (u32, u32) {
        (self.posted, self.staged.wrapping_sub(self.posted))
    }

    /// Whether requests may be staged, if there are credits.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open)
    }

    /// Takes a request in, for the next batch. Answers with its number.
    ///
    /// # Errors
    /// [`StageError`].
    #[inline]
    pub fn stage(&mut self, deadline: Time) -> Result<u32, StageError> {
        if !self.is_open() {
            return Err(StageError::Broken);
        }
        if self.credits() == 0 {
            return Err(StageError::Full);
        }
        let sequence = self.staged;
        self.staged = sequence.wrapping_add(1);
        let is_signalled = self.unsignalled_run + 1 >= self.depth / 2;
        self.unsignalled_run = if is_signalled {
            0
        } else {
            self.unsignalled_run + 1
        };
        *self.entry_mut(sequence) = Entry {
            deadline,
            is_signalled,
            has_expired: false,
        };
        self.earliest = self.earliest.min(deadline);
        Ok(sequence)
    }

    /// Has the request that was staged last ask for a completion, because whoever waits for it should not wait
    /// for those behind it.
    ///
    /// # Panics
    /// If nothing is staged.
    pub fn signal_last(&mut self) {
        assert!(self.staged != self.posted, "a request was staged");
        self.entry_mut(self.staged.wrapping_sub(1)).is_signalled = true;
        self.unsignalled_run = 0;
    }

    /// Ends the batch: its last request asks for a completion. To be called before the adapter is
    /// asked which requests do.
    pub fn seal(&mut self) {
        if self.staged != self.posted {
            self.signal_last();
        }
    }

    /// Whether a request asks for a completion.
    #[must_use]
    pub fn is_signalled(&self, sequence: u32) -> bool {
        self.entry(sequence).is_signalled
    }

    /// The adapter accepted the first `accepted` of the batch; the rest comes back.
    ///
    /// # Panics
    /// If the batch has fewer.
    pub fn posted(&mut self, accepted: u32, out: &mut Vec<Retired>) -> Posted {
        let (first, count) = self.batch();
        assert!(accepted <= count, "{accepted} of {count} were accepted");
        self.posted = first.wrapping_add(accepted);
        let refused = count - accepted;
        // Nothing before them is retired by this: a number that was never with the adapter can be
        // given out again.
        for offset in 0..refused {
            out.push(Retired {
                sequence: self.posted.wrapping_add(offset),
                outcome: Outcome::Refused,
            });
        }
        self.staged = self.posted;
        self.unsignalled_run = self.count_unsignalled();
        Posted {
            refused,
            needs_marker: self.unsignalled_run > 0,
        }
    }

    /// How many at the end of what is with the adapter ask for no completion.
    fn count_unsignalled(&self) -> u32 {
        let behind = (1..=self.in_flight())
            .take_while(|back| !self.is_signalled(self.posted.wrapping_sub(*back)));
        u32::try_from(behind.count()).expect("bounded by the depth")
    }

    /// The adapter completed a request. `out` gets what is over now, in order.
    ///
    /// # Errors
    /// [`UnknownRequest`]; nothing has changed then.
    pub fn complete(
        &mut self,
        now: Time,
        sequence: u32,
        status: Status,
        out: &mut Vec<Retired>,
    ) -> Result<(), UnknownRequest> {
        let ahead = sequence.wrapping_sub(self.head);
        if ahead >= self.in_flight() || self.mode == Mode::Ended {
            return Err(UnknownRequest { sequence });
        }
        let had_failed = matches!(
            self.mode,
            Mode::Broken {
                has_failed: true,
                ..
            }
        );
        // Before the first failure, silence means success; after it every request speaks.
        let silent = if had_failed {
            Outcome::Lost
        } else {
            Outcome::Done
        };
        for _ in 0..ahead {
            self.retire(silent, out);
        }
        match status {
            Status::Success => self.retire(Outcome::Done, out),
            Status::Flushed if self.entry(sequence).has_expired => {
                self.retire(Outcome::TimedOut, out);
            }
            Status::Flushed => self.retire(Outcome::Flushed, out),
            other => self.retire(Outcome::Failed(other), out),
        }
        if status != Status::Success {
            self.note_failure(now);
        }
        Ok(())
    }

    fn note_failure(&mut self, now: Time) {
        self.fail(now);
        if let Mode::Broken { has_failed, .. } = &mut self.mode {
            *has_failed = true;
        }
    }

    fn retire(&mut self, outcome: Outcome, out: &mut Vec<Retired>) {
        let sequence = self.head;
        out.push(Retired { sequence, outcome });
        self.head = sequence.wrapping_add(1);
    }

    /// The queue pair has been moved to the error state, or the driver is about to do so.
    pub fn fail(&mut self, now: Time) {
        if self.mode == Mode::Open {
            self.mode = Mode::Broken {
                flush_by: now + FLUSH_MAX,
                has_failed: false,
            };
        }
    }

    /// When to call [`SendQueue::expire`] again, at the latest. It may be too early, never too late.
    #[must_use]
    pub fn timeout(&self) -> Option<Time> {
        match self.mode {
            Mode::Open if self.unretired() > 0 => Some(self.earliest),
            Mode::Broken { flush_by, .. } if self.in_flight() > 0 => Some(flush_by),
            _ => None,
        }
        .filter(|at| *at != Time::MAX)
    }

    /// Looks for passed deadlines.
    pub fn expire(&mut self, now: Time) -> Option<Expiry> {
        let at = self.timeout()?;
        if now < at {
            return None;
        }
        if matches!(self.mode, Mode::Broken { .. }) {
            return Some(Expiry::Destroy);
        }
        let mut has_expired = false;
        self.earliest = Time::MAX;
        for ahead in 0..self.unretired() {
            let entry = self.entry_mut(self.head.wrapping_add(ahead));
            entry.has_expired = entry.deadline <= now;
            let (expired, deadline) = (entry.has_expired, entry.deadline);
            has_expired |= expired;
            self.earliest = self.earliest.min(deadline);
        }
        if !has_expired {
            return None;
        }
        self.fail(now);
        Some(Expiry::Break)
    }

    /// Whether nothing is with the adapter.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.in_flight() == 0
    }

    /// The queue pair is gone; nothing can reach memory any more. What was left comes out.
    pub fn destroyed(&mut self, out: &mut Vec<Retired>) {
        while self.head != self.posted {
            self.retire(Outcome::Lost, out);
        }
        while self.head != self.staged {
            self.retire(Outcome::Refused, out);
        }
        self.posted = self.staged;
        self.mode = Mode::Ended;
    }

    fn place(&self, sequence: u32) -> usize {
        sequence as usize & (self.ring.len() - 1)
    }

    fn entry(&self, sequence: u32) -> &Entry {
        &self.ring[self.place(sequence)]
    }

    fn entry_mut(&mut self, sequence: u32) -> &mut Entry {
        &mut self.ring[self.place(sequence)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ns(1000);

    fn posted(depth: u32, count: u32) -> (SendQueue, Vec<Retired>) {
        let mut queue = SendQueue::new(depth, u32::MAX - 1);
        for _ in 0..count {
            queue.stage(Time::MAX).unwrap();
        }
        queue.seal();
        let mut out = Vec::new();
        let ended = queue.posted(count, &mut out);
        assert_eq!(
            ended,
            Posted {
                refused: 0,
                needs_marker: false
            }
        );
        (queue, out)
    }

    fn outcomes(out: &[Retired]) -> Vec<Outcome> {
        out.iter().map(|retired| retired.outcome).collect()
    }

    #[test]
    fn the_fourth_of_eight_fails_as_on_soft_roce() {
        let (mut queue, mut out) = posted(8, 8);
        let first = u32::MAX - 1;
        let failed = Status::RemoteAccess;
        queue
            .complete(NOW, first.wrapping_add(3), failed, &mut out)
            .unwrap();
        for ahead in 4..8 {
            queue
                .complete(NOW, first.wrapping_add(ahead), Status::Flushed, &mut out)
                .unwrap();
        }
        let mut expected = vec![Outcome::Done; 3];
        expected.push(Outcome::Failed(failed));
        expected.extend([Outcome::Flushed; 4]);
        assert_eq!(outcomes(&out), expected);
        assert!(queue.is_drained() && !queue.is_open());
        assert_eq!(queue.stage(Time::MAX), Err(StageError::Broken));
    }

    #[test]
    fn credits_are_bounded_from_both_sides() {
        let (mut queue, mut out) = posted(4, 4);
        assert_eq!(queue.stage(Time::MAX), Err(StageError::Full));
        queue
            .complete(NOW, u32::MAX, Status::Success, &mut out)
            .unwrap();
        assert_eq!((out.len(), queue.credits()), (2, 2));
        assert!(queue.stage(Time::MAX).is_ok() && queue.stage(Time::MAX).is_ok());
        assert_eq!(queue.stage(Time::MAX), Err(StageError::Full));
    }

    #[test]
    fn a_deadline_breaks_then_destroys() {
        let mut queue = SendQueue::new(4, 0);
        let mut out = Vec::new();
        queue.stage(Time::from_ns(50)).unwrap();
        queue.stage(Time::from_ns(5000)).unwrap();
        queue.seal();
        queue.posted(2, &mut out);
        assert_eq!(queue.timeout(), Some(Time::from_ns(50)));
        assert_eq!(queue.expire(Time::from_ns(49)), None);
        assert_eq!(queue.expire(Time::from_ns(50)), Some(Expiry::Break));
        let flush_by = Time::from_ns(50) + FLUSH_MAX;
        assert_eq!(queue.timeout(), Some(flush_by));
        queue.complete(NOW, 0, Status::Flushed, &mut out).unwrap();
        assert_eq!(outcomes(&out), [Outcome::TimedOut]);
        assert_eq!(queue.expire(flush_by), Some(Expiry::Destroy));
        queue.destroyed(&mut out);
        assert_eq!(outcomes(&out), [Outcome::TimedOut, Outcome::Lost]);
        assert_eq!(queue.timeout(), None);
    }

    #[test]
    fn a_completion_of_nothing_changes_nothing() {
        let (mut queue, mut out) = posted(4, 2);
        for sequence in [7, u32::MAX - 2, 0] {
            let unknown = queue.complete(NOW, sequence, Status::Success, &mut out);
            assert_eq!(unknown, Err(UnknownRequest { sequence }));
        }
        assert_eq!((out.len(), queue.in_flight()), (0, 2));
    }

    #[test]
    fn half_a_batch_leaves_a_tail_that_needs_a_marker() {
        let mut queue = SendQueue::new(8, 0);
        let mut out = Vec::new();
        for _ in 0..3 {
            queue.stage(Time::MAX).unwrap();
        }
        queue.seal();
        let ended = queue.posted(2, &mut out);
        assert_eq!(
            ended,
            Posted {
                refused: 1,
                needs_marker: true
            }
        );
        assert_eq!(
            out,
            [Retired {
                sequence: 2,
                outcome: Outcome::Refused
            }]
        );
        assert_eq!(queue.stage(Time::MAX), Ok(2));
        queue.seal();
        assert!(!queue.posted(1, &mut out).needs_marker);
    }
}
