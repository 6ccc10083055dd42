//! A command in flight, as its caller has it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use lunette_nvmeof_proto::host::GiveUp;

use super::Done;
use super::lent::Incoming;
use super::shared::Shared;
use super::state::Waiter;
use crate::error::{CommandError, CommandFailure};

/// A command in flight.
pub(super) struct Flight {
    shared: Rc<Shared>,
    index: usize,
    is_finished: bool,
}

impl Flight {
    pub(super) const fn new(shared: Rc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index,
            is_finished: false,
        }
    }
}

impl Future for Flight {
    type Output = Result<Done, CommandFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.state.borrow_mut();
        let waiter = &mut state.waiters[self.index];
        if waiter.outcome.is_none() || waiter.is_lent {
            waiter.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let region = waiter.incoming.take().and_then(Incoming::into_region);
        let outcome = waiter.outcome.take().expect("just seen");
        let len = waiter.len;
        if waiter.is_over {
            drop(state.forget(self.index));
        } else {
            // The deadline has passed; the slot is taken until the controller answers.
            waiter.outcome = Some(Err(CommandError::DeadlineExceeded));
            waiter.is_abandoned = true;
        }
        drop(state);
        self.is_finished = true;
        let checked = outcome.and_then(|(completion, moved_bytes)| {
            let len_bytes = u32::try_from(len).expect("regions are shorter than 4 GiB");
            if !completion.status.is_success() {
                return Err(CommandError::Status(completion.status));
            }
            if moved_bytes != len_bytes {
                return Err(CommandError::Short {
                    moved_bytes,
                    len_bytes,
                });
            }
            Ok(completion.result)
        });
        Poll::Ready(match checked {
            Ok(result) => Ok(Done { result, region }),
            Err(error) => Err(CommandFailure { error, region }),
        })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let mut state = self.shared.state.borrow_mut();
        let Waiter {
            cid,
            is_over,
            may_be_aborted,
            ..
        } = state.waiters[self.index];
        if is_over {
            drop(state.forget(self.index));
            return;
        }
        let given_up = state.queue.give_up(cid);
        let waiter = &mut state.waiters[self.index];
        waiter.is_abandoned = true;
        if given_up == GiveUp::MustFence {
            self.shared.fence.raise();
        } else {
            // No receive is in flight into it; what is to be sent stays.
            waiter.incoming = None;
        }
        if may_be_aborted {
            self.shared.abort(cid);
        }
    }
}
