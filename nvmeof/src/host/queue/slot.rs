//! Waiting for a free slot, in turn.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::shared::Shared;
use super::state::State;

/// Waits for a free slot.
pub(super) struct SlotWait<'a> {
    shared: &'a Shared,
    /// Its place among those who wait, or that it had before it was woken.
    ticket: Option<u64>,
}

impl<'a> SlotWait<'a> {
    pub(super) const fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            ticket: None,
        }
    }

    fn leave(&mut self, state: &mut State) -> bool {
        let Some(ticket) = self.ticket.take() else {
            return true;
        };
        let place = state.blocked.iter().position(|(known, _)| *known == ticket);
        place
            .and_then(|place| state.blocked.remove(place))
            .is_some()
    }
}

impl Future for SlotWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let must_wait = self.shared.must_wait();
        let shared = self.shared;
        let mut state = shared.state.borrow_mut();
        let was_woken = !self.leave(&mut state);
        if !must_wait {
            return Poll::Ready(());
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        self.ticket = Some(ticket);
        let entry = (ticket, cx.waker().clone());
        // Somebody was faster: it keeps its turn.
        if was_woken {
            state.blocked.push_front(entry);
        } else {
            state.blocked.push_back(entry);
        }
        Poll::Pending
    }
}

impl Drop for SlotWait<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        // It was woken and does not use the slot: the next one may.
        if !self.leave(&mut state) {
            state.wake_next();
        }
    }
}
