//! Operations in flight, and the futures that wait for them.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::error::CopyError;
use crate::lease::{Holds, HostLease, HostMemory};

/// An operation, shared by its stream, until its event, and its future.
#[derive(Debug)]
pub(crate) struct Cell {
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    lease: Option<HostLease>,
    holds: Holds,
    result: Option<Result<(), CopyError>>,
    waker: Option<Waker>,
}

impl Cell {
    /// One that is about to be queued.
    pub(crate) fn new(lease: HostLease, holds: Holds) -> Rc<Self> {
        Rc::new(Self {
            state: RefCell::new(State {
                lease: Some(lease),
                holds,
                result: None,
                waker: None,
            }),
        })
    }

    /// The device has let go.
    pub(crate) fn end(&self, result: Result<(), CopyError>) {
        let mut state = self.state.borrow_mut();
        assert!(state.result.is_none(), "an operation ends once");
        state.result = Some(result);
        let holds = std::mem::take(&mut state.holds);
        let waker = state.waker.take();
        // Dropping memory and waking tasks must find nothing borrowed.
        drop(state);
        drop(holds);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A copy in flight. Ready with its outcome and the host memory that was lent to it.
///
/// Dropping it stops nothing: the device goes on, and the memory is freed when it has let go. That
/// is also what a timeout does. There is no way to cancel what a stream has been given.
#[must_use = "memory that is lent comes back through the future"]
pub struct Operation<H> {
    cell: Rc<Cell>,
    lent: PhantomData<H>,
}

impl<H: HostMemory> Operation<H> {
    pub(crate) const fn new(cell: Rc<Cell>) -> Self {
        Self {
            cell,
            lent: PhantomData,
        }
    }

    /// Whether it is over, so that the next poll is ready.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.cell.state.borrow().result.is_some()
    }
}

impl<H> Unpin for Operation<H> {}

impl<H: HostMemory> Future for Operation<H> {
    type Output = (Result<(), CopyError>, H);

    /// # Panics
    /// If it was ready before.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.cell.state.borrow_mut();
        let Some(result) = state.result else {
            let is_known = state
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()));
            if !is_known {
                state.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        };
        let lease = state.lease.take().expect("polled after it was ready");
        Poll::Ready((result, H::from_lease(lease)))
    }
}

impl<H> fmt::Debug for Operation<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = self.cell.state.borrow().result;
        write!(f, "Operation({result:?})")
    }
}
