//! A call that a future waits for.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::calls::Abandon;

use super::Reply;
use super::calls::{Caller, Shared};
use crate::error::CallFailure;

/// A call in flight.
pub(super) struct Flight {
    shared: Rc<Shared>,
    id: RequestId,
    /// `None` once the outcome has been fetched.
    waiter: Option<usize>,
}

impl Flight {
    pub(super) const fn new(shared: Rc<Shared>, id: RequestId, waiter: usize) -> Self {
        Self {
            shared,
            id,
            waiter: Some(waiter),
        }
    }

    /// Gives the call up. Its outcome comes nevertheless, at once or when its room is not lent to a
    /// receive any more.
    pub(super) fn cancel(&self) {
        self.shared.give_up(self.id);
    }
}

impl Future for Flight {
    type Output = Result<Reply, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.waiter.expect("a call is not polled after its outcome");
        let mut state = self.shared.state.borrow_mut();
        let waiter = &mut state.waiters[index];
        if waiter.outcome.is_none() {
            waiter.caller = Caller::Future(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let waiter = state.waiters.remove(index);
        drop(state);
        self.waiter = None;
        Poll::Ready(waiter.into_result())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let Some(index) = self.waiter else { return };
        let mut state = self.shared.state.borrow_mut();
        let state = &mut *state;
        match state.calls.abandon(self.id) {
            Abandon::Ended { .. } => drop(state.waiters.remove(index)),
            Abandon::MustFence => {
                state.waiters[index].abandoned = true;
                self.shared.fence.raise();
            }
            Abandon::Over if state.waiters[index].outcome.is_some() => {
                drop(state.waiters.remove(index));
            }
            // Being fenced for its deadline.
            Abandon::Over => state.waiters[index].abandoned = true,
        }
    }
}
