//! Tasks: their life on one core, their wakers, and the handles that wait for them.

mod blocks;
mod cell;
mod handle;
mod header;
mod queue;
mod scheduler;
#[cfg(test)]
mod tests;

use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;
use std::task::{Context, RawWaker, RawWakerVTable, Waker};

pub use handle::{JoinError, JoinHandle};
pub(crate) use header::Header;
pub(super) use scheduler::NO_RUNTIME;
pub(crate) use scheduler::{Current, Scheduler};

/// A task in its core's queue.
#[derive(Debug)]
pub(super) struct Task(NonNull<Header>);

impl Task {
    /// The queue's reference to a task, which has been counted.
    const fn queued(task: NonNull<Header>) -> Self {
        Self(task)
    }

    pub(super) fn spawned_at(&self) -> &'static Location<'static> {
        // SAFETY: the queue's reference keeps the task. Ends with the call.
        unsafe { self.0.as_ref() }.spawned_at()
    }

    /// Polls the task on its core. A panic of the future ends the task, then goes on.
    pub(super) fn run(self, home: &Scheduler) {
        let task = ManuallyDrop::new(self).0;
        // SAFETY: the task comes from its core's queue, by this type.
        if !unsafe { header::unqueue(task) } {
            return;
        }
        // SAFETY: a task that is not done is kept by the core's list.
        let header = unsafe { task.as_ref() };
        if header.is_cancelled() {
            home.end(task);
            return;
        }
        // On the way out by a panic, too.
        let ending = EndOnPanic { home, task };
        // SAFETY: the waker is a borrowed reference: the core keeps the task while it is not done,
        // and a clone counts for itself. It is never dropped, so its count is not given up.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw(task)) });
        // SAFETY: the task is not done, and this is its core's thread; a task is not in the queue
        // twice, so it is not being polled.
        let has_ended = unsafe { (header.table().poll)(task, &mut Context::from_waker(&waker)) };
        std::mem::forget(ending);
        if has_ended {
            home.end(task);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // SAFETY: the queue's reference to a task of this core. The task stays in the core's list
        // if it is not done.
        unsafe { header::unqueue(self.0) };
    }
}

struct EndOnPanic<'a> {
    home: &'a Scheduler,
    task: NonNull<Header>,
}

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        // Before anything is dropped: those who wait for an answer are to know why none comes.
        self.home.poison();
        // SAFETY: the task is not done, so the core's list keeps it.
        unsafe { self.task.as_ref() }.set_cancelled();
        self.home.end(self.task);
    }
}

/// A waker is a counted pointer to the header.
static WAKER: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

const fn raw(task: NonNull<Header>) -> RawWaker {
    RawWaker::new(task.as_ptr().cast_const().cast(), &WAKER)
}

fn task_of(data: *const ()) -> NonNull<Header> {
    NonNull::new(data.cast_mut().cast()).expect("a waker points to its task")
}

/// # Safety
/// `data` is that of a waker made by [`raw`], which has a reference.
unsafe fn clone(data: *const ()) -> RawWaker {
    let task = task_of(data);
    // SAFETY: the waker's reference.
    unsafe { header::retain(task) };
    raw(task)
}

/// # Safety
/// As for [`clone`]; the waker is not used again.
unsafe fn wake(data: *const ()) {
    // SAFETY: the waker's reference, which ends here.
    unsafe { header::wake_and_release(task_of(data)) };
}

/// # Safety
/// As for [`clone`].
unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: the waker's reference.
    unsafe { header::wake(task_of(data)) };
}

/// # Safety
/// As for [`clone`]; the waker is not used again.
unsafe fn drop_waker(data: *const ()) {
    // SAFETY: the waker's reference, which ends here.
    unsafe { header::release(task_of(data)) };
}
