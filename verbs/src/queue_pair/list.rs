//! Requests that are over together.

use std::fmt;
use std::rc::Rc;

use lunette_runtime_core::time::Time;

use super::core::PairCore;
use super::request::Request;
use crate::error::RequestError;
use crate::lent::{Lender, Lent};
use crate::provider::RemoteMemory;

/// A request of a list.
#[derive(Debug)]
pub struct Listed {
    /// This side of it.
    pub moved: Moved,
    /// The peer's.
    pub there: RemoteMemory,
}

/// What a request of a list moves, and which way.
#[derive(Debug)]
pub enum Moved {
    /// The peer's memory is read into it, which must be exposed.
    Into(Lent),
    /// It is written to the peer's memory.
    From(Lent),
    /// The same of a few bytes, [`INLINE_BYTES_MAX`](super::INLINE_BYTES_MAX) at most, which are copied when they are
    /// added, and need not be registered.
    Few(Lender),
}

/// Requests that are over together, with one future for all of them: each costs about half of what it does alone.
///
/// Each is staged as it is added, in that order, and goes to the adapter with whatever else is staged. What is lent is
/// kept until all are over, whoever waits for them. [`List::end`] gives the future, which is done when all are, or fails
/// as the first that failed. If the list is dropped instead, what was added is done all the same, and nobody is told.
#[must_use = "a list that is dropped is not known to be done"]
pub struct List<'a> {
    core: &'a Rc<PairCore>,
    key: u32,
    deadline: Time,
    /// Whether the peer lets itself be read.
    has_reads: bool,
    is_closed: bool,
}

impl<'a> List<'a> {
    pub(super) fn new(core: &'a Rc<PairCore>, deadline: Time, has_reads: bool) -> Self {
        Self {
            core,
            key: core.begin_list(),
            deadline,
            has_reads,
            is_closed: false,
        }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// Why it was not added; it is gone, and the list is as before. [`RequestError::Full`] beyond
    /// [`credits`](super::QueuePair::credits); [`RequestError::Broken`]; [`RequestError::Refused`] of a read into what must
    /// not be written, or where no reads were agreed on; [`RequestError::Length`] of more bytes than the queue pair takes
    /// inline.
    #[inline]
    pub fn push(&mut self, request: Listed) -> Result<(), RequestError> {
        if !self.has_reads && matches!(request.moved, Moved::Into(_)) {
            return Err(RequestError::Refused);
        }
        self.core.push(self.key, request, self.deadline)
    }

    /// The list as it is now. One of nothing is done at once.
    pub fn end(mut self) -> Request {
        self.is_closed = true;
        self.core.close_list(self.key);
        Request::flying(Rc::clone(self.core), self.key)
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        if !self.is_closed {
            self.core.close_list(self.key);
            self.core.abandon(self.key);
        }
    }
}

impl fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "List({} of {:?})", self.key, self.core)
    }
}
