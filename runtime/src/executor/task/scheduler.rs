//! The tasks of one core: which exist, and which are ready.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use super::super::TASKS_MAX;
use super::super::classes::{Choice, Class, Classes};
use super::blocks::Blocks;
use super::cell::TaskCell;
use super::header::{self, Header};
use super::queue::{All, Queue};
use super::{JoinHandle, Task};
use crate::mesh::Inbox;

thread_local! {
    /// The scheduler that the calling thread runs; null outside a core. It has no destructor, so
    /// that a look at it costs a load.
    static CURRENT: Cell<*const Scheduler> = const { Cell::new(ptr::null()) };
}

/// What is said to who needs a runtime and has none.
pub(in super::super) const NO_RUNTIME: &str =
    "this call needs a runtime: use it inside `block_on` or a core's task";

/// Most ready tasks of a class among which a world draws the next one, so that a crowd of them does
/// not cost the square of its number.
pub(super) const DRAWN_AMONG_MAX: usize = 256;

/// One core's tasks.
pub(crate) struct Scheduler {
    inbox: Arc<Inbox>,
    classes: Classes,
    /// Ready tasks, by class.
    queues: [Queue; Class::COUNT],
    all: All,
    /// The class of the task that runs.
    class: Cell<Class>,
    blocks: Blocks,
}

/// The scheduler is not the thread's any more when this drops.
pub(crate) struct Current;

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(ptr::null());
    }
}

impl Scheduler {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self {
            inbox,
            classes: Classes::default(),
            queues: Default::default(),
            all: All::default(),
            class: Cell::new(Class::default()),
            blocks: Blocks::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn inbox_for_tests(&self) -> &Inbox {
        &self.inbox
    }

    /// The inbox's address, as its `Arc` knows it.
    pub(super) fn inbox_ptr(&self) -> NonNull<Inbox> {
        NonNull::new(Arc::as_ptr(&self.inbox).cast_mut()).expect("an Arc points somewhere")
    }

    pub(super) const fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Makes this the calling thread's scheduler, until the guard drops.
    ///
    /// # Safety
    /// The scheduler outlives the guard and does not move.
    pub(crate) unsafe fn enter(&self) -> Current {
        let before = CURRENT.replace(self);
        assert!(before.is_null(), "a runtime inside a runtime");
        Current
    }

    /// The scheduler that the calling thread runs, for the length of a call.
    ///
    /// # Panics
    /// Outside a runtime's thread.
    #[track_caller]
    pub(crate) fn with_current<T>(then: impl FnOnce(&Self) -> T) -> T {
        // SAFETY: while the thread runs it, it lives and does not move (`enter`); that ends with a guard which the
        // thread's own loop has, and which is not dropped within this call.
        let current = unsafe { CURRENT.get().as_ref() };
        then(current.expect(NO_RUNTIME))
    }

    /// Whether the calling thread runs `scheduler`.
    pub(super) fn is_current(scheduler: *const Self) -> bool {
        ptr::eq(CURRENT.get(), scheduler)
    }

    /// # Safety
    /// The task is this core's and in no queue, and a reference was counted for the queue.
    pub(super) unsafe fn push(&self, class: Class, task: NonNull<Header>) {
        // SAFETY: the caller's promise.
        unsafe { self.queues[class.index()].push(task) };
    }

    fn pop(&self, class: Class) -> Option<Task> {
        self.queues[class.index()].pop().map(Task::queued)
    }

    /// Whether no task is ready.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    /// Whether a task that is spawned now will run.
    pub(in super::super) fn can_spawn(&self) -> bool {
        self.all.len() < TASKS_MAX && !self.inbox.is_closed()
    }

    /// Starts a task of `class`, or of that of the task that runs, unless there are too many or the core shuts
    /// down.
    pub(crate) fn spawn<F>(
        &self,
        class: Option<Class>,
        spawned_at: &'static Location<'static>,
        future: F,
    ) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let class = class.unwrap_or(self.class.get());
        if !self.can_spawn() {
            return JoinHandle::new(None);
        }
        let header = || Header::new(TaskCell::<F>::TABLE, self, spawned_at, class);
        let task = TaskCell::allocate(&self.blocks, header, future);
        // SAFETY: a new task, which is removed when it is done and lives until then.
        unsafe { self.all.insert(task) };
        // SAFETY: a new task; its header counts the queue's reference from the start.
        unsafe { self.push(class, task) };
        JoinHandle::new(Some(task))
    }

    /// A turn begins.
    pub(crate) fn begin_turn(&self) {
        self.class.set(Class::default());
        self.classes.begin_turn();
    }

    /// The next task of this turn.
    pub(in super::super) fn next(&self) -> Option<(Task, Choice)> {
        let is_ready = |class: Class| !self.queues[class.index()].is_empty();
        let choice = self.classes.choose(is_ready)?;
        self.class.set(choice.class);
        Some((self.pop(choice.class)?, choice))
    }

    /// Has another task be next in each class, one of its first [`DRAWN_AMONG_MAX`], as `below` draws.
    pub(crate) fn draw_next(&self, mut below: impl FnMut(usize) -> usize) {
        for queue in &self.queues {
            let ready = queue.len_up_to(DRAWN_AMONG_MAX);
            if ready > 1 {
                queue.bring_forward(below(ready));
            }
        }
    }

    /// A task of `class` took so long while others waited.
    pub(crate) fn charge(&self, class: Class, took: Duration) {
        self.classes.charge(class, took);
    }

    /// Takes in the tasks that other threads have woken.
    pub(crate) fn take_woken(&self) -> bool {
        let mut any = false;
        self.inbox.take_woken(|task| {
            any = true;
            // SAFETY: it comes from the inbox of this core, on whose thread this runs.
            unsafe { header::wake_from_afar(task) };
        });
        any
    }

    /// Ends a task: its future is dropped, or its output, unless that is kept for the handle.
    pub(super) fn end(&self, task: NonNull<Header>) {
        // SAFETY: the task is in the list, since it is not done.
        let header = unsafe { task.as_ref() };
        header.set_done();
        // SAFETY: a task is in the list until it is done, which it has just become.
        unsafe { self.all.remove(task) };
        if header.is_cancelled() || !header.has_handle() {
            // SAFETY: the task is done, this is its core's thread, and nobody else clears it: a
            // handle does so only for an output that was kept.
            unsafe { (header.table().clear)(task) };
        } else {
            header.set_output();
        }
        if let Some(joiner) = header.take_joiner() {
            joiner.wake();
        }
        // SAFETY: once, by the core, which does not use the task again.
        unsafe { header::settle(task) };
    }

    /// A task has panicked.
    pub(super) fn poison(&self) {
        self.inbox.poison();
    }

    /// Ends every task, and takes none any more. Futures are dropped here.
    pub(crate) fn shut_down(&self) {
        assert!(self.inbox.is_closed(), "no task is started any more");
        // A task that is dropped may end others.
        while let Some(task) = self.all.newest() {
            // SAFETY: the list has live tasks.
            unsafe { task.as_ref() }.set_cancelled();
            self.end(task);
        }
        for class in Class::ALL {
            while let Some(task) = self.pop(class) {
                drop(task);
            }
        }
        self.inbox.close_woken(|task| {
            // SAFETY: it comes from the inbox of this core, on whose thread this runs.
            unsafe { header::wake_from_afar(task) };
        });
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("core", &self.inbox.index())
            .field("tasks", &self.all)
            .finish_non_exhaustive()
    }
}
