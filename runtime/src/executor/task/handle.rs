//! Waiting for a task.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use thiserror::Error;

use super::header::{self, Header};

/// Why a task has no output.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum JoinError {
    /// The core has as many tasks as it may have; the task was never started.
    #[error("too many tasks on this core")]
    TooManyTasks,
    /// The core shut down before the task ended.
    #[error("the core shut down before the task ended")]
    Cancelled,
}

/// Waits for a task of this core. Dropping it lets the task run on.
pub struct JoinHandle<T> {
    task: Option<NonNull<Header>>,
    /// Tasks and their outputs stay on their core.
    output: PhantomData<(*const (), T)>,
}

impl<T> JoinHandle<T> {
    /// The handle of a task whose output is a `T`, or of none.
    pub(super) const fn new(task: Option<NonNull<Header>>) -> Self {
        Self {
            task,
            output: PhantomData,
        }
    }

    fn header(&self) -> Option<&Header> {
        // SAFETY: a handle keeps its task.
        self.task.as_ref().map(|task| unsafe { task.as_ref() })
    }

    /// Whether the task has ended (or was never started).
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.header().is_none_or(Header::is_done)
    }

    /// Ends the task at its next suspension point. Operations that it has in flight are cancelled
    /// and keep their buffers until their completions.
    pub fn abort(self) {
        self.cancel();
    }

    /// As [`JoinHandle::abort`]; the task's end can still be waited for.
    pub(crate) fn cancel(&self) {
        if let (Some(task), Some(header)) = (self.task, self.header())
            && !header.is_done()
        {
            header.set_cancelled();
            // SAFETY: the handle keeps the task.
            unsafe { header::wake(task) };
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (Some(task), Some(header)) = (self.task, self.header()) else {
            return Poll::Ready(Err(JoinError::TooManyTasks));
        };
        if !header.is_done() {
            header.set_joiner(cx.waker());
            return Poll::Pending;
        }
        let mut output: Option<T> = None;
        if header.take_output() {
            // SAFETY: the task is done and this is its core's thread (a handle is not Send). `T` is
            // the output's type, by `Scheduler::spawn`. The output is ours.
            unsafe { (header.table().take)(task, (&raw mut output).cast()) };
        }
        Poll::Ready(output.ok_or(JoinError::Cancelled))
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let (Some(task), Some(header)) = (self.task, self.header()) else {
            return;
        };
        if header.take_output() {
            // SAFETY: the task is done and this is its core's thread. The output is ours.
            unsafe { (header.table().clear)(task) };
        }
        // SAFETY: the handle does not use the task again.
        unsafe { header::drop_handle(task) };
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.is_finished())
            .finish()
    }
}
