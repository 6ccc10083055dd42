//! Tasks in line, and all tasks of a core: lists through the tasks themselves.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use super::header::Header;

type Link = Cell<Option<NonNull<Header>>>;

/// The links of one task.
#[derive(Default)]
pub(super) struct Links {
    /// The next in the queue.
    behind: Link,
    /// Its neighbours in the list of all.
    newer: Link,
    older: Link,
}

/// First in, first out.
#[derive(Default)]
pub(super) struct Queue {
    first: Link,
    last: Link,
}

impl Queue {
    pub(super) const fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    /// # Safety
    /// The task is in no queue, and lives until it has been popped from this one.
    pub(super) unsafe fn push(&self, task: NonNull<Header>) {
        // SAFETY: the caller's promise.
        unsafe { links(task) }.behind.set(None);
        match self.last.replace(Some(task)) {
            // SAFETY: a task in the queue lives.
            Some(last) => unsafe { links(last) }.behind.set(Some(task)),
            None => self.first.set(Some(task)),
        }
    }

    pub(super) fn pop(&self) -> Option<NonNull<Header>> {
        let first = self.first.get()?;
        let behind = behind(first);
        self.first.set(behind);
        if behind.is_none() {
            self.last.set(None);
        }
        Some(first)
    }

    /// How many tasks there are, counted up to `most`.
    pub(super) fn len_up_to(&self, most: usize) -> usize {
        std::iter::successors(self.first.get(), |task| behind(*task))
            .take(most)
            .count()
    }

    /// Puts the task with `ahead` others in front of it before all of them, in a world. The others
    /// keep their order.
    pub(super) fn bring_forward(&self, ahead: usize) {
        let Some(places) = ahead.checked_sub(1) else {
            return;
        };
        let first = self.first.get();
        let mut before = std::iter::successors(first, |task| behind(*task)).skip(places);
        let Some((before, task)) = before.next().and_then(|task| Some((task, behind(task)?)))
        else {
            return;
        };
        // SAFETY: a task in the queue lives.
        let links_before = unsafe { links(before) };
        // SAFETY: as above.
        let own = unsafe { links(task) };
        links_before.behind.set(own.behind.replace(first));
        self.first.set(Some(task));
        if links_before.behind.get().is_none() {
            self.last.set(Some(before));
        }
    }
}

/// Which task comes after this one, that is in a queue.
fn behind(task: NonNull<Header>) -> Option<NonNull<Header>> {
    // SAFETY: a task in a queue lives.
    unsafe { links(task) }.behind.get()
}

/// Every task that is not done, the newest first.
#[derive(Default)]
pub(super) struct All {
    newest: Link,
    len: Cell<usize>,
}

impl All {
    pub(super) const fn len(&self) -> usize {
        self.len.get()
    }

    pub(super) const fn newest(&self) -> Option<NonNull<Header>> {
        self.newest.get()
    }

    /// # Safety
    /// The task is not in the list, and lives until it has been removed.
    pub(super) unsafe fn insert(&self, task: NonNull<Header>) {
        let older = self.newest.replace(Some(task));
        // SAFETY: the caller's promise.
        unsafe { links(task) }.older.set(older);
        if let Some(older) = older {
            // SAFETY: a task in the list lives.
            unsafe { links(older) }.newer.set(Some(task));
        }
        self.len.set(self.len.get() + 1);
    }

    /// # Safety
    /// The task is in the list.
    pub(super) unsafe fn remove(&self, task: NonNull<Header>) {
        // SAFETY: the caller's promise.
        let own = unsafe { links(task) };
        let (newer, older) = (own.newer.take(), own.older.take());
        match newer {
            // SAFETY: a task in the list lives.
            Some(newer) => unsafe { links(newer) }.older.set(older),
            None => {
                assert_eq!(self.newest.get(), Some(task), "the list has the task");
                self.newest.set(older);
            }
        }
        if let Some(older) = older {
            // SAFETY: a task in the list lives.
            unsafe { links(older) }.newer.set(newer);
        }
        self.len.set(self.len.get() - 1);
    }
}

/// # Safety
/// The task lives as long as the result is used, and the caller is its core's thread.
const unsafe fn links<'a>(task: NonNull<Header>) -> &'a Links {
    // SAFETY: the caller's promise.
    unsafe { task.as_ref() }.links()
}

impl fmt::Debug for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("All").field("len", &self.len()).finish()
    }
}
