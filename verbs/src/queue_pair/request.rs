//! A request as a future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::core::{PairCore, Payload};
use crate::error::RequestError;
use crate::memory::Piece;

/// A request in flight, which owns its piece.
///
/// Await it for the outcome and the piece, if it had one. Dropping it does not take it back: the
/// adapter may still do it, and the piece is freed when it is over.
#[must_use = "a request that is dropped is not known to be done"]
pub struct Request {
    state: RequestState,
}

enum RequestState {
    Flying(Rc<PairCore>, u32),
    /// Apart, so that a request that flies is small to move.
    Refused(Box<(RequestError, Option<Piece>)>),
    Taken,
}

impl Request {
    pub(super) const fn flying(core: Rc<PairCore>, key: u32) -> Self {
        Self {
            state: RequestState::Flying(core, key),
        }
    }

    #[cold]
    pub(super) fn refused(error: RequestError, payload: Payload<'_>) -> Self {
        Self {
            state: RequestState::Refused(Box::new((error, payload.into_piece()))),
        }
    }
}

impl Future for Request {
    type Output = (Result<(), RequestError>, Option<Piece>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let RequestState::Flying(core, key) = &self.state {
            let polled = core.poll_request(*key, cx);
            if polled.is_ready() {
                self.state = RequestState::Taken;
            }
            return polled;
        }
        let RequestState::Refused(refused) =
            std::mem::replace(&mut self.state, RequestState::Taken)
        else {
            unreachable!("a request is not polled after its outcome");
        };
        let (error, piece) = *refused;
        Poll::Ready((Err(error), piece))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let RequestState::Flying(core, key) = &self.state {
            core.abandon(*key);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            RequestState::Flying(..) => "Request(in flight)",
            RequestState::Refused(..) => "Request(refused)",
            RequestState::Taken => "Request(over)",
        })
    }
}
