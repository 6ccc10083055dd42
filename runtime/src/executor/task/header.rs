//! One allocation per task: a header that is the same for all, then the future or its output.
//!
//! # Who may touch what
//!
//! The fields of a task belong to its core's thread, but for four that any thread may use: the count
//! `remote`, the flag `woken`, the link, and the pointer to the inbox. So a wake-up, a clone and a
//! drop of a waker on the core's own thread cost no atomic operation.
//!
//! # How long a task lives
//!
//! Until it is done it is kept by its core's list. References (wakers, and places in the ready
//! queue) are counted in two numbers, `local` by the core's thread and `remote`, atomically, by all
//! others. A waker may be cloned on one side and dropped on the other, so only their sum means
//! something. When the task is done the core settles:
//!
//! ```text
//!              sum = 0                       ┌─ no handle: freed now
//!   running ───────────▶ unreachable ────────┤
//!      │                                     └─ handle: freed by it
//!      │       sum > 0
//!      └──────────────▶ merged: `remote` is the whole count, of all threads, the handle included;
//!                       whoever takes it to zero frees the memory
//! ```
//!
//! The future and its output are dropped by the core's thread, always; what is left to be freed by
//! another thread is memory and a count on the inbox.

use std::cell::Cell;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Waker};

use super::super::classes::Class;
use super::Scheduler;
use super::blocks::Blocks;
use super::queue::Links;
use crate::mesh::{Inbox, Linked, WokenLink};

/// In `remote`: the core has added its own count, and does so no more.
const MERGED: i64 = 1 << 62;

/// What the header does with the future behind it, whose type it does not know.
pub(super) struct Table {
    /// Polls the future. True if it has ended: then its output is in its place.
    pub(super) poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> bool,
    /// Drops future or output, whatever is there.
    pub(super) clear: unsafe fn(NonNull<Header>),
    /// Moves the output to an `Option<Output>`; none if there is none.
    pub(super) take: unsafe fn(NonNull<Header>, *mut ()),
    /// Frees the allocation, to the blocks of the task's core if the caller is that.
    pub(super) free: unsafe fn(NonNull<Header>, Option<&Blocks>),
}

/// The part of a task that does not depend on its future.
pub(crate) struct Header {
    table: &'static Table,
    /// The core's scheduler, as an identity; used only on the core's own thread while it runs.
    home: *const Scheduler,
    /// The core's inbox, which lives as long as the task: until the task is done the core keeps it,
    /// afterwards `kept` does.
    inbox: NonNull<Inbox>,
    spawned_at: &'static Location<'static>,
    class: Class,
    is_queued: Cell<bool>,
    is_done: Cell<bool>,
    is_merged: Cell<bool>,
    is_cancelled: Cell<bool>,
    is_settled: Cell<bool>,
    has_handle: Cell<bool>,
    /// The output waits for the handle.
    has_output: Cell<bool>,
    links: Links,
    local: Cell<i64>,
    joiner: Cell<Option<Waker>>,
    /// Written once, when the counts are merged; read when the task is freed.
    kept: Cell<Option<Arc<Inbox>>>,
    remote: AtomicI64,
    woken: AtomicBool,
    link: WokenLink<Self>,
}

impl Linked for Header {
    fn link(&self) -> &WokenLink<Self> {
        &self.link
    }
}

impl Header {
    /// A task that waits in its core's queue, with a handle.
    #[inline(always)]
    pub(super) fn new(
        table: &'static Table,
        home: &Scheduler,
        spawned_at: &'static Location<'static>,
        class: Class,
    ) -> Self {
        Self {
            table,
            home,
            inbox: home.inbox_ptr(),
            spawned_at,
            class,
            is_queued: Cell::new(true),
            is_done: Cell::new(false),
            is_merged: Cell::new(false),
            is_cancelled: Cell::new(false),
            is_settled: Cell::new(false),
            has_handle: Cell::new(true),
            has_output: Cell::new(false),
            links: Links::default(),
            local: Cell::new(1),
            joiner: Cell::new(None),
            kept: Cell::new(None),
            remote: AtomicI64::new(0),
            woken: AtomicBool::new(false),
            link: WokenLink::new(ptr::null_mut()),
        }
    }

    pub(super) const fn table(&self) -> &'static Table {
        self.table
    }

    pub(super) const fn spawned_at(&self) -> &'static Location<'static> {
        self.spawned_at
    }

    pub(super) const fn links(&self) -> &Links {
        &self.links
    }

    pub(super) const fn is_done(&self) -> bool {
        self.is_done.get()
    }

    /// Marks the task done. From here on it is not queued or polled any more.
    pub(super) fn set_done(&self) {
        assert!(!self.is_done.replace(true), "a task ends once");
    }

    pub(super) const fn is_cancelled(&self) -> bool {
        self.is_cancelled.get()
    }

    pub(super) fn set_cancelled(&self) {
        self.is_cancelled.set(true);
    }

    pub(super) const fn has_handle(&self) -> bool {
        self.has_handle.get()
    }

    pub(super) fn set_output(&self) {
        self.has_output.set(true);
    }

    /// Whether there is an output, which is the caller's from here on.
    pub(super) const fn take_output(&self) -> bool {
        self.has_output.replace(false)
    }

    pub(super) fn set_joiner(&self, waker: &Waker) {
        let joiner = self.joiner.take();
        let joiner = joiner.filter(|known| known.will_wake(waker));
        self.joiner
            .set(Some(joiner.unwrap_or_else(|| waker.clone())));
    }

    pub(super) fn take_joiner(&self) -> Option<Waker> {
        self.joiner.take()
    }

    /// Whether the calling thread is the task's core, and runs.
    fn is_home(&self) -> bool {
        Scheduler::is_current(self.home)
    }
}

/// Counts one more reference.
///
/// # Safety
/// The task lives: the caller has a reference, or is its core and the task is not done.
pub(super) unsafe fn retain(task: NonNull<Header>) {
    // SAFETY: the caller's promise.
    let header = unsafe { task.as_ref() };
    if header.is_home() && !header.is_done() {
        header.local.set(header.local.get() + 1);
    } else {
        // Relaxed: the new reference comes from one that exists.
        header.remote.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives a reference up. It may have been the last.
///
/// # Safety
/// The caller has a reference, and does not use it again.
pub(super) unsafe fn release(task: NonNull<Header>) {
    // SAFETY: the caller's promise.
    let header = unsafe { task.as_ref() };
    if header.is_home() && !header.is_done() {
        header.local.set(header.local.get() - 1);
        return;
    }
    // Release: what this reference was used for happens before the memory is freed. Acquire: by
    // whoever frees it.
    let before = header.remote.fetch_sub(1, Ordering::AcqRel);
    if before == MERGED + 1 {
        // SAFETY: the count was merged and is zero, so no reference is left, of any thread.
        unsafe { free(task) };
    }
}

/// The task is done and its place empty of the future: what becomes of its memory.
///
/// # Safety
/// Called by the task's core, once, after which the core does not use the task any more but
/// through references and the handle.
pub(super) unsafe fn settle(task: NonNull<Header>) {
    // SAFETY: the task lives until it has been settled.
    let header = unsafe { task.as_ref() };
    header.is_settled.set(true);
    let local = header.local.get();
    // Acquire: what other threads did with the references that they have given up comes first.
    if local + header.remote.load(Ordering::Acquire) == 0 {
        // No reference is left from which another could be made.
        if !header.has_handle() {
            // SAFETY: nobody knows the task any more.
            unsafe { free(task) };
        }
        return;
    }
    // SAFETY: the core, which calls this, keeps its inbox. Ends with the clone.
    let inbox = unsafe { clone_inbox(header.inbox) };
    header.kept.set(Some(inbox));
    header.is_merged.set(true);
    let handle = i64::from(header.has_handle());
    let added = MERGED + local + handle;
    let before = header.remote.fetch_add(added, Ordering::AcqRel);
    if before + added == MERGED {
        // SAFETY: the last references were given up in between, so none is left.
        unsafe { free(task) };
    }
}

/// The handle goes. The output, if there is one, must have been dropped.
///
/// # Safety
/// Called once, on the core's thread, by the handle, which does not use the task again.
pub(super) unsafe fn drop_handle(task: NonNull<Header>) {
    // SAFETY: a handle keeps its task.
    let header = unsafe { task.as_ref() };
    header.has_handle.set(false);
    if !header.is_settled.get() {
        // The future may hold the handle and be dropped right now: the core settles afterwards.
        drop(header.take_joiner());
    } else if header.is_merged.get() {
        // SAFETY: the merged count includes the handle.
        unsafe { release(task) };
    } else {
        // SAFETY: settled and not merged: the handle was the last to know the task.
        unsafe { free(task) };
    }
}

/// Frees the task's memory.
///
/// # Safety
/// No reference and no handle is left, and the future's place is empty.
unsafe fn free(task: NonNull<Header>) {
    // SAFETY: the caller's promise: the task is freed here, so it lives.
    let header = unsafe { task.as_ref() };
    let (table, home) = (header.table, header.home);
    // SAFETY: the calling thread runs this scheduler, which therefore lives.
    let blocks = Scheduler::is_current(home).then(|| unsafe { &*home }.blocks());
    // SAFETY: the caller's promise; the blocks are those of the task's core.
    unsafe { (table.free)(task, blocks) };
}

/// # Safety
/// The inbox is kept by an `Arc` somewhere until the call returns.
unsafe fn clone_inbox(inbox: NonNull<Inbox>) -> Arc<Inbox> {
    // SAFETY: the pointer came from a reference into an `Arc`'s allocation by `Arc::as_ptr`, and the
    // count is above zero as the caller promises.
    unsafe {
        Arc::increment_strong_count(inbox.as_ptr());
    }
    // SAFETY: the count that was just added is this one's.
    unsafe { Arc::from_raw(inbox.as_ptr()) }
}

/// Makes the task ready, from any thread.
///
/// # Safety
/// The caller has a reference.
pub(super) unsafe fn wake(task: NonNull<Header>) {
    // SAFETY: the caller's promise.
    let header = unsafe { task.as_ref() };
    if header.is_home() {
        // SAFETY: the task lives, and this is its core.
        unsafe { wake_at_home(task) };
        return;
    }
    // Whoever sets the flag puts the task into the list. AcqRel: what was done before the wake-up is
    // seen by the poll that follows it, also if another thread's wake-up is on its way.
    if !header.woken.swap(true, Ordering::AcqRel) {
        header.remote.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the inbox lives as long as the task (see the field).
        let inbox = unsafe { header.inbox.as_ref() };
        // SAFETY: the flag says that the task is in no list; the reference just counted keeps it.
        if unsafe { inbox.push_woken(task) } {
            super::super::wake_inbox(inbox);
        } else {
            // SAFETY: the reference that was counted for the list.
            unsafe { release(task) };
        }
    }
}

/// Makes the task ready, from any thread, and gives a reference up.
///
/// # Safety
/// The caller has a reference, and does not use it again.
pub(super) unsafe fn wake_and_release(task: NonNull<Header>) {
    // SAFETY: the caller's promise.
    let header = unsafe { task.as_ref() };
    if !header.is_home() || header.is_done() {
        // SAFETY: the caller's reference.
        unsafe { wake(task) };
        // SAFETY: the caller's reference, which ends here.
        unsafe { release(task) };
    } else if header.is_queued.replace(true) {
        header.local.set(header.local.get() - 1);
    } else {
        // SAFETY: the task is not done and this is its core; it was not queued until now, and the caller's
        // reference, which is counted, is the queue's from here on.
        unsafe { push_at_home(header, task) };
    }
}

/// The core takes a task that another thread has woken, and the reference with it.
///
/// # Safety
/// Called by the task's core with a task that came from its inbox.
pub(super) unsafe fn wake_from_afar(task: NonNull<Header>) {
    // SAFETY: the list's reference keeps it.
    let header = unsafe { task.as_ref() };
    // From here on it may be pushed again. AcqRel: see `wake`.
    header.woken.swap(false, Ordering::AcqRel);
    // SAFETY: as above, and this is its core.
    unsafe { wake_at_home(task) };
    let before = header.remote.fetch_sub(1, Ordering::AcqRel);
    if before == MERGED + 1 {
        // SAFETY: no reference is left.
        unsafe { free(task) };
    }
}

/// # Safety
/// The task lives, and the caller is its core.
unsafe fn wake_at_home(task: NonNull<Header>) {
    // SAFETY: the caller's promise.
    let header = unsafe { task.as_ref() };
    if header.is_done() || header.is_queued.replace(true) {
        return;
    }
    header.local.set(header.local.get() + 1);
    // SAFETY: the caller is its core; it was not queued until now, and the queue's reference has been counted.
    unsafe { push_at_home(header, task) };
}

/// # Safety
/// The caller is the task's core; the task is in no queue, and a reference was counted for the queue.
unsafe fn push_at_home(header: &Header, task: NonNull<Header>) {
    // SAFETY: the calling thread runs this scheduler (the caller's promise), which therefore lives.
    let home = unsafe { &*header.home };
    // SAFETY: the caller's promise.
    unsafe { home.push(header.class, task) };
}

/// The core takes the task from its queue. False if it is done: then the reference of the queue has
/// been given up and the task may be gone.
///
/// # Safety
/// Called by the core with a task from its queue.
pub(super) unsafe fn unqueue(task: NonNull<Header>) -> bool {
    // SAFETY: the queue's reference keeps it.
    let header = unsafe { task.as_ref() };
    header.is_queued.set(false);
    if header.is_done() {
        // SAFETY: the queue's reference.
        unsafe { release(task) };
        return false;
    }
    // The core's list keeps it from here on.
    header.local.set(header.local.get() - 1);
    true
}
