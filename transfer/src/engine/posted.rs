//! Transfers that were posted: which way they go, and how they end.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::iter;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::scheduler::{
    Cause, Effect, Outcome, RequestFailure, TransferId, TransferOptions, TransfersFull,
};
use lunette_transfer_proto::engine::segment::{Kind, Way};

use super::Refusal;
use super::batch::{Batch, PostOptions, Span};
use super::copying::Near;
use super::error::TransferError;
use super::peer::{Peer, Shared, State};
use super::same_host::Under;

/// What came of a transfer of which everything was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes that were moved.
    pub len_bytes: u64,
    /// Slices that were sent, those sent again included.
    pub slices: u64,
    /// Slices that were sent again.
    pub resent: u64,
    /// Slices that were taken back from a slow rail and sent over another one.
    pub stolen: u64,
    /// How long it took.
    pub took: Duration,
}

/// A transfer that was posted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) batch: Batch,
    pub(super) options: PostOptions,
    /// The number of its notification in the engine's session, from its first sending on.
    pub(super) note: Cell<Option<u64>>,
    pub(super) began: Time,
    pub(super) under: Cell<Under>,
    /// Whether bytes of it may have been copied already, where it goes another way now.
    pub(super) is_touched: Cell<bool>,
    is_cancelled: Cell<bool>,
    /// Whether it is a piece of another one, which is counted in its place.
    is_part: bool,
    /// The pieces that are under way, of one that is carried in pieces.
    pub(super) parts: RefCell<Vec<Rc<Self>>>,
    /// Who is to know if it is cancelled.
    roused: RefCell<Vec<Waker>>,
    outcome: RefCell<Option<Outcome>>,
    waker: RefCell<Option<Waker>>,
}

impl Posted {
    pub(super) fn new(batch: &Batch, options: PostOptions, began: Time) -> Self {
        Self {
            batch: batch.clone(),
            options,
            note: Cell::default(),
            began,
            under: Cell::default(),
            is_touched: Cell::new(false),
            is_cancelled: Cell::new(false),
            is_part: false,
            parts: RefCell::default(),
            roused: RefCell::default(),
            outcome: RefCell::default(),
            waker: RefCell::default(),
        }
    }

    /// A piece of another one.
    pub(super) fn part(batch: &Batch, options: PostOptions, began: Time) -> Self {
        Self {
            is_part: true,
            ..Self::new(batch, options, began)
        }
    }

    /// Has somebody woken when it is cancelled.
    pub(super) fn rouse(&self, waker: &Waker) {
        let mut roused = self.roused.borrow_mut();
        if !roused.iter().any(|known| known.will_wake(waker)) {
            roused.push(waker.clone());
        }
    }

    /// What came of it, once.
    pub(super) fn poll_ended(&self, cx: &Context<'_>) -> Poll<Outcome> {
        let outcome = self.outcome.borrow_mut().take();
        outcome.map_or_else(
            || {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            },
            Poll::Ready,
        )
    }

    /// What is asked of whoever carries it.
    pub(super) fn asked(&self) -> TransferOptions {
        let PostOptions {
            timeout,
            intent,
            priority,
            ref notification,
        } = self.options;
        TransferOptions {
            priority: priority.unwrap_or(intent.priority()),
            deadline: self.began + timeout,
            has_note: notification.is_some(),
        }
    }

    /// How much of its time is left.
    pub(super) fn left(&self) -> Duration {
        let passed = time::now().since(self.began);
        self.options.timeout.saturating_sub(passed)
    }

    /// Why nothing more of it is to be copied, if so.
    pub(super) fn is_over(&self) -> Option<Cause> {
        if self.is_cancelled.get() {
            Some(Cause::Cancelled)
        } else if time::now().since(self.began) >= self.options.timeout {
            Some(Cause::DeadlineExceeded)
        } else {
            None
        }
    }

    /// A failure that no rail had a part in.
    pub(super) fn failure(
        &self,
        request: Option<u32>,
        cause: Cause,
        effect: Effect,
    ) -> RequestFailure {
        RequestFailure {
            request,
            cause,
            effect,
            rail: None,
            attempts: 1,
            age: time::now().since(self.began),
        }
    }

    /// It is over.
    pub(super) fn finish(&self, mut outcome: Outcome) {
        self.under.set(Under::Nothing);
        if self.is_touched.get() {
            for failure in &mut outcome.failures {
                let is_bytes = failure.request.is_some();
                if is_bytes && failure.effect == Effect::Untouched {
                    failure.effect = Effect::Partly;
                }
            }
        }
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Shared {
    /// Posts a batch whose memory is this machine's, the way that is the shortest.
    pub(super) fn dispatch(
        self: &Rc<Self>,
        posted: &Rc<Posted>,
        now: Time,
    ) -> Result<(), TransfersFull> {
        if self.is_own() {
            self.post_own(posted);
        } else if !self.post_here(posted)? {
            self.submit_prepared(posted, now)?;
        }
        Ok(())
    }

    /// Posts a batch to the very engine that asks.
    fn post_own(self: &Rc<Self>, posted: &Rc<Posted>) {
        let registry = self.engine.registry.borrow();
        // What is gone is refused either way.
        let is_memory =
            |span: &Span| matches!(registry.kind(span.segment), None | Some(Kind::Memory));
        let is_copied = posted.batch.spans().iter().all(is_memory);
        drop(registry);
        if !is_copied {
            self.move_own(posted);
        } else {
            self.copy(posted, Near::Own);
        }
    }

    /// Posts a batch that can be copied between two engines of this host; `false` if it cannot.
    pub(super) fn post_here(self: &Rc<Self>, posted: &Rc<Posted>) -> Result<bool, TransfersFull> {
        let Some(link) = self.link() else {
            return Ok(false);
        };
        let mut spans = posted.batch.spans().iter();
        if spans.any(|span| span.is_remote || span.is_device) {
            return Ok(false);
        }
        let mut spans = posted.batch.spans().iter();
        let is_mapped = spans.all(|span| {
            span.way() == Way::Read && link.reaches(span.segment, span.offset_bytes, span.len())
        });
        if is_mapped {
            self.copy(posted, Near::Mapped(link));
            return Ok(true);
        }
        self.command_here(&link, posted)
    }

    /// Posts a batch to the rails.
    pub(super) fn submit(
        self: &Rc<Self>,
        posted: &Rc<Posted>,
        now: Time,
    ) -> Result<(), TransfersFull> {
        let mut state = self.state.borrow_mut();
        let requests = posted.batch.requests();
        let id = state.scheduler.submit(requests, posted.asked(), now)?;
        self.is_submitted(&mut state, id, posted);
        drop(state);
        self.pump_at(now);
        Ok(())
    }

    fn is_submitted(&self, state: &mut State, id: TransferId, posted: &Rc<Posted>) {
        posted.under.set(Under::Rails(id));
        state.posted.insert(id, Rc::clone(posted));
    }

    /// What could not be copied goes over the rails, whole.
    pub(super) fn to_rails(self: &Rc<Self>, posted: &Rc<Posted>) {
        if self.submit(posted, time::now()).is_err() {
            self.fail_whole(posted, Cause::Lost);
        }
    }

    pub(super) fn fail_whole(&self, posted: &Posted, cause: Cause) {
        let count = u32::try_from(posted.batch.len()).expect("requests are bounded");
        let failure = |request| posted.failure(Some(request), cause, Effect::Untouched);
        let failures = (0..count).map(failure).collect();
        let outcome = Outcome {
            failures,
            ..Outcome::default()
        };
        self.finish(posted, outcome);
    }

    /// The notification of a batch whose bytes have been copied goes over the rails.
    pub(super) fn note_to_rails(self: &Rc<Self>, posted: &Rc<Posted>) {
        let mut state = self.state.borrow_mut();
        let nothing = iter::empty();
        let submitted = state.scheduler.submit(nothing, posted.asked(), time::now());
        match submitted {
            Ok(id) => {
                self.is_submitted(&mut state, id, posted);
                drop(state);
                self.pump();
            }
            Err(_) => {
                drop(state);
                let busy = Cause::Refused(Refusal::Busy);
                let failure = posted.failure(None, busy, Effect::Untouched);
                let outcome = Outcome {
                    failures: vec![failure],
                    ..Outcome::default()
                };
                self.finish(posted, outcome);
            }
        }
    }

    /// A transfer is over.
    pub(super) fn finish(&self, posted: &Posted, outcome: Outcome) {
        let is_done = outcome.failures.is_empty();
        if !posted.is_part {
            self.engine.counts.finished(is_done, &outcome);
        }
        posted.finish(outcome);
    }

    /// Gives up what is not done of a transfer.
    pub(super) fn cancel(self: &Rc<Self>, posted: &Posted) {
        posted.is_cancelled.set(true);
        let parts = posted.parts.borrow().clone();
        for part in parts {
            self.cancel(&part);
        }
        for waker in posted.roused.take() {
            waker.wake();
        }
        match posted.under.get() {
            Under::Nothing => {}
            Under::Preparing => self.fail_whole(posted, Cause::Cancelled),
            Under::Rails(id) => {
                self.state.borrow_mut().scheduler.cancel(id, time::now());
                self.pump();
            }
            Under::Lane(id) => self.cancel_here(id),
        }
    }
}

/// A transfer: ends with what came of it. Dropping it cancels what is left of it, in the background.
#[derive(Debug)]
pub struct Transfer {
    pub(super) peer: Peer,
    pub(super) posted: Rc<Posted>,
}

impl Transfer {
    /// Gives up what is not done. The future ends when what was under way is settled.
    pub fn cancel(&self) {
        self.peer.shared.cancel(&self.posted);
    }

    fn result(&self, outcome: Outcome) -> Result<Done, TransferError> {
        let Outcome {
            failures,
            slices,
            resent,
            stolen,
        } = outcome;
        if !failures.is_empty() {
            let paths = self.peer.shared.addresses();
            return Err(TransferError { failures, paths });
        }
        Ok(Done {
            len_bytes: self.posted.batch.len_bytes(),
            slices,
            resent,
            stolen,
            took: time::now().since(self.posted.began),
        })
    }
}

impl Future for Transfer {
    type Output = Result<Done, TransferError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.posted
            .poll_ended(cx)
            .map(|outcome| self.result(outcome))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.cancel();
    }
}
