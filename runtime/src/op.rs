//! An operation as a future.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::driver::{Arrival, Completion, Descriptor, Key, Submission};
use crate::executor::Core;
use crate::lease::{Lease, Lend};

/// Why an operation did not do what it was asked.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OpError {
    /// It was cancelled before it had any effect. The buffer is free again.
    #[error("cancelled")]
    Cancelled,
    /// The core has as many operations in flight as it may have; nothing was submitted.
    #[error("too many operations in flight on this core")]
    TooManyInFlight,
    /// The NVMe device refused the command, with this status (its type and code, and whether it
    /// would refuse it again: NVM Express Base Specification 2.0, section 4.6.1.2).
    #[error("the NVMe device answered with status {0:#06x}")]
    Nvme(u16),
    /// The system said no.
    #[error("{0}")]
    Os(Errno),
}

impl OpError {
    /// Whether the same operation may succeed when tried again on the same descriptor.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Cancelled | Self::TooManyInFlight => true,
            Self::Nvme(status) => status & STATUS_DO_NOT_RETRY == 0,
            Self::Os(errno) => matches!(*errno, Errno::INTR | Errno::AGAIN | Errno::NOBUFS),
        }
    }

    /// Whether it took longer than it was given, or than the system gives.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        *self == Self::Os(Errno::TIMEDOUT)
    }

    /// Whether a signal or the like came between, and nothing was done.
    pub(crate) const fn is_interruption(&self) -> bool {
        matches!(self, Self::Os(Errno::INTR | Errno::AGAIN))
    }

    /// Whether waiting for other operations to end can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::TooManyInFlight)
    }
}

/// The bit of a status by which the device says that it would refuse the same command again.
const STATUS_DO_NOT_RETRY: u16 = 1 << 14;

impl OpError {
    /// The error that a completion tells.
    fn from_result(result: i32) -> Self {
        match Completion::error(result) {
            Ok(errno) => errno.into(),
            Err(status) => Self::Nvme(status),
        }
    }
}

impl From<Errno> for OpError {
    fn from(errno: Errno) -> Self {
        if errno == Errno::CANCELED {
            Self::Cancelled
        } else {
            Self::Os(errno)
        }
    }
}

/// The outcome of an operation on a buffer: a result, and the buffer in either case.
pub type BufResult<T, B> = (Result<T, OpError>, B);

/// An operation in flight, which owns `B`.
///
/// Await it for its outcome and the buffer. Dropping it asks for cancellation and leaves the
/// buffer with the device until the completion arrives; the buffer is then freed by the core.
#[must_use = "an operation that is dropped is cancelled"]
pub(crate) struct Op<B: Lend> {
    state: OpState,
    core: Rc<Core>,
    buffer: PhantomData<B>,
}

enum OpState {
    Flying(Key),
    Refused(Lease),
    Finished,
}

impl<B: Lend> Op<B> {
    /// Submits `what` on `fd`, which is kept open until the completion.
    pub(crate) fn submit(
        core: &Rc<Core>,
        what: Submission,
        fd: &Rc<Descriptor>,
        buffer: B,
    ) -> Self {
        Self::submit_within(core, what, fd, buffer, None)
    }

    /// As [`Op::submit`]. With a timeout, the driver cancels it if it has not completed by then.
    pub(crate) fn submit_within(
        core: &Rc<Core>,
        what: Submission,
        fd: &Rc<Descriptor>,
        buffer: B,
        timeout: Option<Duration>,
    ) -> Self {
        let state = match core.submit(what, Rc::clone(fd), buffer.into_lease(), timeout) {
            Ok(key) => OpState::Flying(key),
            Err(lease) => OpState::Refused(lease),
        };
        Self {
            state,
            core: Rc::clone(core),
            buffer: PhantomData,
        }
    }

    /// Asks for an early end. Await the operation afterwards: it may still have succeeded.
    pub(crate) fn cancel(&self) {
        if let OpState::Flying(key) = self.state {
            self.core.cancel(key);
        }
    }
}

impl<B: Lend> Future for Op<B> {
    type Output = BufResult<u32, B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match std::mem::replace(&mut this.state, OpState::Finished) {
            OpState::Flying(key) => match this.core.poll(key, cx) {
                Poll::Pending => {
                    this.state = OpState::Flying(key);
                    Poll::Pending
                }
                Poll::Ready(polled) => {
                    let result = u32::try_from(polled.result)
                        .map_err(|_| OpError::from_result(polled.result));
                    Poll::Ready((result, B::from_lease(polled.lease)))
                }
            },
            OpState::Refused(lease) => {
                Poll::Ready((Err(OpError::TooManyInFlight), B::from_lease(lease)))
            }
            OpState::Finished => unreachable!("an operation is not polled after its outcome"),
        }
    }
}

impl<B: Lend> Unpin for Op<B> {}

impl<B: Lend> Drop for Op<B> {
    fn drop(&mut self) {
        if let OpState::Flying(key) = self.state {
            self.core.abandon(key);
        }
    }
}

/// A multishot operation in flight: one submission, many answers.
///
/// Dropping it asks for cancellation; what arrives afterwards is given back.
#[derive(Debug)]
pub(crate) struct Multishot {
    /// None once it has ended.
    key: Option<Key>,
    core: Rc<Core>,
}

impl Multishot {
    /// Submits `what` on `fd`.
    pub(crate) fn submit<B: Lend>(
        core: &Rc<Core>,
        what: Submission,
        fd: &Rc<Descriptor>,
        buffer: B,
    ) -> Result<Self, OpError> {
        let submitted = core.submit(what, Rc::clone(fd), buffer.into_lease(), None);
        let key = submitted.map_err(|_lease| OpError::TooManyInFlight)?;
        Ok(Self {
            key: Some(key),
            core: Rc::clone(core),
        })
    }

    /// The next answer, or `None` once it has ended.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<Arrival>> {
        let Some(key) = self.key else {
            return Poll::Ready(None);
        };
        match self.core.poll_next(key, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(arrival)) => Poll::Ready(Some(arrival)),
            Poll::Ready(Err(lease)) => {
                self.key = None;
                drop(lease);
                Poll::Ready(None)
            }
        }
    }
}

impl Drop for Multishot {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.abandon(key);
        }
    }
}
