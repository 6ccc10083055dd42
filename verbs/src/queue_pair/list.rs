//! Requests that are over together.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::core::PairCore;
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
    /// staged, and need not be registered.
    Few(Lender),
}

/// Requests in flight that are over together, with one future for all of them: each costs about half of what it does
/// alone.
///
/// Await it for the outcome, which is the first failure if there is one, and the requests as they were given; the list
/// owns them until all are over. Dropping it does not take them back: the adapter may still do them, and what is lent is
/// kept until then.
#[must_use = "a list that is dropped is not known to be done"]
pub struct List {
    state: State,
}

enum State {
    /// At this queue pair and entry, until its outcome has been taken.
    Flying(Rc<PairCore>, u32),
    Refused(RequestError, Vec<Listed>),
    Over,
}

impl List {
    pub(super) const fn flying(core: Rc<PairCore>, key: u32) -> Self {
        Self {
            state: State::Flying(core, key),
        }
    }

    pub(super) const fn refused(error: RequestError, requests: Vec<Listed>) -> Self {
        Self {
            state: State::Refused(error, requests),
        }
    }
}

impl Future for List {
    type Output = (Result<(), RequestError>, Vec<Listed>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Flying(core, key) = &self.state {
            let polled = core.poll_list(*key, cx);
            if polled.is_ready() {
                self.state = State::Over;
            }
            return polled;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Refused(error, requests) => Poll::Ready((Err(error), requests)),
            State::Flying(..) | State::Over => {
                unreachable!("a list is not polled after its outcome")
            }
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let State::Flying(core, key) = &self.state {
            core.abandon(*key);
        }
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Flying(..) => "List(in flight)",
            State::Refused(..) => "List(refused)",
            State::Over => "List(over)",
        })
    }
}
