//! The operations of one stream, from begin to end.
//!
//! A stream runs what is queued in it in order, so its operations end in order, and only the oldest
//! one's event is worth asking for. What an operation names belongs to the device from the moment
//! that any part of it was queued until its event has come; nothing but an event, or the end of the
//! device's context, gives it back:
//!
//! ```text
//!   begin ──▶ staged ── queued ──▶ in flight ── its event ──▶ Done
//!               │          └─ in part ──▶ in flight ── its event ──▶ Failed, or Poisoned
//!               └─ nothing was queued: withdrawn
//!   a fault that the context does not survive: everything in flight ends as Poisoned, and
//!   nothing begins any more
//! ```
//!
//! There is no cancelling and no deadline: a stream does not take back what it has been given. Who
//! waits may go away, and the operation goes on.

use std::collections::VecDeque;

use thiserror::Error;

use crate::fault::Fault;

/// Most operations of one stream.
pub const STREAM_OPERATIONS_MAX: usize = 1024;

/// An operation of one stream, counted from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(u64);

/// Why no operation begins. Nothing was done.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BeginError {
    /// As many are in flight as the stream may have: wait for one.
    #[error("the stream has as many operations as it may")]
    Full,
    /// The context is of no use any more.
    #[error("{0}")]
    Poisoned(Fault),
}

/// How an operation ended. Its memory is its owner's again in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// Some of it was not. What it writes holds anything.
    Failed(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Staged,
    /// With the first fault of what could not be queued.
    InFlight(Option<Fault>),
}

/// Which operations of a stream are in flight, and how each ends.
#[derive(Debug)]
pub struct StreamQueue {
    /// From the oldest; ids follow one another.
    states: VecDeque<State>,
    first: u64,
    depth: usize,
    poisoned: Option<Fault>,
}

impl StreamQueue {
    /// For at most `depth` operations at a time.
    ///
    /// # Panics
    /// If that is none, or more than [`STREAM_OPERATIONS_MAX`].
    #[must_use]
    pub fn new(depth: usize) -> Self {
        assert!(
            (1..=STREAM_OPERATIONS_MAX).contains(&depth),
            "a stream of {depth} operations"
        );
        Self {
            states: VecDeque::with_capacity(depth),
            first: 0,
            depth,
            poisoned: None,
        }
    }

    /// How many have begun and not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// What the context died of, if it did.
    #[must_use]
    pub const fn poisoned(&self) -> Option<Fault> {
        self.poisoned
    }

    /// Takes a place for an operation, which is to be queued next.
    ///
    /// # Errors
    /// [`BeginError`].
    ///
    /// # Panics
    /// If another one is being queued.
    pub fn begin(&mut self) -> Result<OperationId, BeginError> {
        if let Some(fault) = self.poisoned {
            return Err(BeginError::Poisoned(fault));
        }
        if self.states.len() == self.depth {
            return Err(BeginError::Full);
        }
        assert_ne!(self.states.back(), Some(&State::Staged), "one at a time");
        let id = OperationId(self.first + self.states.len() as u64);
        self.states.push_back(State::Staged);
        Ok(id)
    }

    /// Nothing of the operation that is being queued has reached the stream: it is over.
    ///
    /// # Panics
    /// If it is not the one that is being queued.
    pub fn withdraw(&mut self, id: OperationId) {
        self.assert_staged(id);
        self.states.pop_back();
    }

    /// The operation, or with a fault a part of it, has been queued, and its event behind it.
    ///
    /// # Panics
    /// If it is not the one that is being queued.
    pub fn queued(&mut self, id: OperationId, part: Result<(), Fault>) {
        self.assert_staged(id);
        let last = self.states.back_mut().expect("it is staged");
        *last = State::InFlight(part.err());
    }

    fn assert_staged(&self, id: OperationId) {
        let last = self.first + self.states.len() as u64;
        assert_eq!(id.0 + 1, last, "the newest operation");
        assert_eq!(self.states.back(), Some(&State::Staged), "it is staged");
    }

    /// The operation whose event is to be asked for.
    #[must_use]
    pub fn oldest(&self) -> Option<OperationId> {
        let is_in_flight = matches!(self.states.front(), Some(State::InFlight(_)));
        is_in_flight.then_some(OperationId(self.first))
    }

    /// The oldest operation's event has come.
    ///
    /// # Panics
    /// If nothing is in flight.
    pub fn completed(&mut self) -> (OperationId, Outcome) {
        assert!(
            self.oldest().is_some(),
            "an event of an operation in flight"
        );
        let id = OperationId(self.first);
        let state = self.states.pop_front();
        self.first += 1;
        let outcome = match state {
            Some(State::InFlight(Some(fault))) => Outcome::Failed(fault),
            _ => Outcome::Done,
        };
        (id, outcome)
    }

    /// The context is of no use any more. What is in flight ends with [`StreamQueue::end_oldest`];
    /// nothing begins.
    ///
    /// # Panics
    /// For a fault that a context survives.
    pub fn poison(&mut self, fault: Fault) {
        assert!(fault.is_sticky(), "{fault} is no end");
        self.poisoned.get_or_insert(fault);
    }

    /// The next operation that ends because the context did, the oldest first.
    pub fn end_oldest(&mut self) -> Option<(OperationId, Outcome)> {
        let fault = self.poisoned?;
        self.oldest()?;
        let (id, _outcome) = self.completed();
        Some((id, Outcome::Failed(fault)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: Fault = Fault::Poisoned(700);

    /// A queue with operations that have been queued.
    fn queue(depth: usize, count: usize) -> StreamQueue {
        let mut queue = StreamQueue::new(depth);
        for _ in 0..count {
            let id = queue.begin().unwrap();
            queue.queued(id, Ok(()));
        }
        queue
    }

    #[test]
    fn operations_end_in_order() {
        let mut queue = queue(4, 3);
        let ids: Vec<_> = (0..3).map(|_| queue.completed()).collect();
        assert_eq!(ids, [0, 1, 2].map(|id| (OperationId(id), Outcome::Done)));
        assert!(queue.is_empty() && queue.oldest().is_none());
    }

    #[test]
    fn the_depth_holds_from_both_sides() {
        let mut queue = queue(4, 3);
        let last = queue.begin().unwrap();
        queue.queued(last, Ok(()));
        assert_eq!(queue.begin(), Err(BeginError::Full));
        queue.completed();
        assert!(queue.begin().is_ok());
        assert_eq!(StreamQueue::new(STREAM_OPERATIONS_MAX).len(), 0);
    }

    #[test]
    #[should_panic(expected = "a stream of 1025")]
    fn a_deeper_stream_is_refused() {
        let _queue = StreamQueue::new(STREAM_OPERATIONS_MAX + 1);
    }

    #[test]
    fn what_was_queued_in_part_is_in_flight_and_fails() {
        let mut queue = queue(4, 1);
        let id = queue.begin().unwrap();
        queue.queued(id, Err(Fault::Code(1)));
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.completed().1, Outcome::Done);
        assert_eq!(queue.completed(), (id, Outcome::Failed(Fault::Code(1))));
    }

    #[test]
    fn what_was_not_queued_at_all_leaves_nothing() {
        let mut queue = queue(4, 1);
        let id = queue.begin().unwrap();
        queue.withdraw(id);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.begin(), Ok(id), "its number was never seen");
    }

    #[test]
    fn a_dead_context_ends_everything_once_and_begins_nothing() {
        let mut queue = queue(4, 3);
        assert_eq!(queue.end_oldest(), None);
        queue.poison(DEAD);
        queue.poison(Fault::Lost(46));
        let mut ended = Vec::new();
        while let Some(one) = queue.end_oldest() {
            ended.push(one);
        }
        assert_eq!(
            ended,
            [0, 1, 2].map(|id| (OperationId(id), Outcome::Failed(DEAD)))
        );
        assert_eq!(queue.begin(), Err(BeginError::Poisoned(DEAD)));
    }

    #[test]
    #[should_panic(expected = "is no end")]
    fn a_fault_that_passes_ends_nothing() {
        queue(1, 1).poison(Fault::OutOfMemory);
    }

    #[test]
    #[should_panic(expected = "one at a time")]
    fn one_operation_is_queued_at_a_time() {
        let mut queue = StreamQueue::new(4);
        let _first = queue.begin();
        let _second = queue.begin();
    }
}
