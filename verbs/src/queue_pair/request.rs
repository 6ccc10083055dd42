//! A request as a future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::core::PairCore;
use crate::error::RequestError;
use crate::memory::Piece;

/// A request in flight, which owns its piece.
///
/// Await it for the outcome and the piece, if it had one. Dropping it does not take it back: the
/// adapter may still do it, and the piece is freed when it is over.
#[must_use = "a request that is dropped is not known to be done"]
pub struct Request {
    state: State,
}

enum State {
    /// At this queue pair and entry, until its outcome has been taken.
    Flying(Rc<PairCore>, u32),
    /// Apart, so that a request that flies is small to move.
    Refused(Box<(RequestError, Option<Piece>)>),
    Over,
}

impl Request {
    pub(super) const fn flying(core: Rc<PairCore>, key: u32) -> Self {
        Self {
            state: State::Flying(core, key),
        }
    }

    #[cold]
    pub(super) fn refused(error: RequestError, piece: Option<Piece>) -> Self {
        Self {
            state: State::Refused(Box::new((error, piece))),
        }
    }
}

impl Future for Request {
    type Output = (Result<(), RequestError>, Option<Piece>);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Flying(core, key) = &self.state {
            let polled = core.poll_request(*key, cx);
            if polled.is_ready() {
                self.state = State::Over;
            }
            return polled;
        }
        let State::Refused(refused) = std::mem::replace(&mut self.state, State::Over) else {
            unreachable!("a request is not polled after its outcome");
        };
        let (error, piece) = *refused;
        Poll::Ready((Err(error), piece))
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        if let State::Flying(core, key) = &self.state {
            core.abandon(*key);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Flying(..) => "Request(in flight)",
            State::Refused(_) => "Request(refused)",
            State::Over => "Request(over)",
        })
    }
}
