//! Tasks and the handles that wait for them.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_task::{Builder, FallibleTask, Runnable};
use thiserror::Error;

use super::{Core, TASKS_MAX, schedule};

/// A task that is ready to run, and the line that spawned it.
pub(crate) type Spawned = Runnable<&'static Location<'static>>;

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
    task: Option<FallibleTask<T, &'static Location<'static>>>,
    /// Tasks and their outputs stay on their core.
    not_send: PhantomData<*const ()>,
}

impl<T> JoinHandle<T> {
    /// Whether the task has ended (or was never started).
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(FallibleTask::is_finished)
    }

    /// Ends the task at its next suspension point. Operations that it has in flight are cancelled
    /// and keep their buffers until their completions.
    pub fn abort(mut self) {
        drop(self.task.take());
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = self.task.as_mut() else {
            return Poll::Ready(Err(JoinError::TooManyTasks));
        };
        Pin::new(task)
            .poll(cx)
            .map(|output| output.ok_or(JoinError::Cancelled))
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// Takes the task's waker out of its core's list when the task ends or is dropped.
struct Listed {
    core: Rc<Core>,
    index: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let waker = self.core.tasks.borrow_mut().try_remove(self.index);
        drop(waker);
    }
}

impl Core {
    /// Starts a task on this core.
    #[track_caller]
    pub(crate) fn spawn<F>(self: &Rc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        if self.tasks.borrow().len() >= TASKS_MAX || self.inbox.is_closed() {
            return JoinHandle {
                task: None,
                not_send: PhantomData,
            };
        }
        let home = Arc::clone(&self.inbox);
        let index = self.tasks.borrow().vacant_key();
        let listed = Listed {
            core: Rc::clone(self),
            index,
        };
        let future = async move {
            let _listed = listed;
            future.await
        };
        let schedule = move |runnable: Spawned| schedule(&home, runnable);
        let builder = Builder::new().metadata(Location::caller());
        // SAFETY: the future is 'static but not Send. It is run and dropped on this core's thread
        // only: `schedule` brings every runnable back to it, whichever thread wakes it; at shut-down
        // the core drops every future on its own thread, after which wakers schedule nothing; the
        // join handle is not Send. The schedule closure is Send and Sync (it holds an Arc of a Sync
        // type) and 'static. Ends when the task is dropped.
        let (runnable, task) = unsafe { builder.spawn_unchecked(|_| future, schedule) };
        let inserted = self.tasks.borrow_mut().insert(runnable.waker());
        assert_eq!(inserted, index, "the list's slot was vacant");
        self.ready.borrow_mut().push_back(runnable);
        JoinHandle {
            task: Some(task.fallible()),
            not_send: PhantomData,
        }
    }
}
