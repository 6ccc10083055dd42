//! Tasks that belong to whoever started them.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::task::{JoinError, JoinHandle};
use super::{Class, Core};

/// A group of tasks on one core that ends as one: none outlives the scope by more than a turn.
///
/// [`Scope::join`] waits for them. Dropping the scope, in whatever way the task that holds it ends,
/// aborts those that still run; their operations are cancelled and keep their buffers until their
/// completions.
#[derive(Debug, Default)]
pub struct Scope {
    members: Rc<Members>,
}

#[derive(Debug, Default)]
struct Members {
    /// A task that has just been spawned has no handle yet.
    handles: RefCell<Slab<Option<JoinHandle<()>>>>,
    waiters: RefCell<Vec<Waker>>,
}

/// Leaves the scope when its task ends, or is dropped.
struct Membership {
    members: Rc<Members>,
    index: usize,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let handle = self.members.handles.borrow_mut().try_remove(self.index);
        drop(handle);
        if self.members.handles.borrow().is_empty() {
            for waiter in self.members.waiters.take() {
                waiter.wake();
            }
        }
    }
}

impl Scope {
    /// An empty scope.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task of the class of the current one.
    ///
    /// # Errors
    /// [`JoinError::TooManyTasks`]: it was not started.
    ///
    /// # Panics
    /// Outside a runtime.
    #[track_caller]
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> Result<(), JoinError> {
        self.spawn_at(Location::caller(), None, future)
    }

    /// Starts a task of `class`.
    ///
    /// # Errors
    /// [`JoinError::TooManyTasks`]: it was not started.
    ///
    /// # Panics
    /// Outside a runtime.
    #[track_caller]
    pub fn spawn_as(
        &self,
        class: Class,
        future: impl Future<Output = ()> + 'static,
    ) -> Result<(), JoinError> {
        self.spawn_at(Location::caller(), Some(class), future)
    }

    fn spawn_at(
        &self,
        spawned_at: &'static Location<'static>,
        class: Option<Class>,
        future: impl Future<Output = ()> + 'static,
    ) -> Result<(), JoinError> {
        let index = self.members.handles.borrow_mut().insert(None);
        let membership = Membership {
            members: Rc::clone(&self.members),
            index,
        };
        let member = async move {
            let _membership = membership;
            future.await;
        };
        let core = Core::current();
        let handle = core.spawn_at(spawned_at, class, member);
        if handle.is_finished() {
            // Refused: the future, and its membership with it, has been dropped.
            return Err(JoinError::TooManyTasks);
        }
        self.members.handles.borrow_mut()[index] = Some(handle);
        Ok(())
    }

    /// Tasks that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.handles.borrow().len()
    }

    /// Whether every task has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until every task has ended. Dropping the future changes nothing.
    pub async fn join(&self) {
        poll_fn(|cx| self.poll_empty(cx)).await;
    }

    /// Aborts every task that has not ended. They are dropped in their next turn.
    pub fn abort(&self) {
        for (_, handle) in self.members.handles.borrow().iter() {
            if let Some(handle) = handle {
                handle.cancel();
            }
        }
    }

    fn poll_empty(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_empty() {
            return Poll::Ready(());
        }
        let mut waiters = self.members.waiters.borrow_mut();
        if !waiters.iter().any(|known| known.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.abort();
    }
}
