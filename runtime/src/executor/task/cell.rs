//! A task with its future: the part that knows types.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use super::blocks::{Block, Blocks};
use super::header::{Header, Table};

/// The header is first, so that a pointer to the header is one to the whole.
#[repr(C)]
pub(super) struct TaskCell<F: Future> {
    header: Header,
    stage: UnsafeCell<Stage<F>>,
}

enum Stage<F: Future> {
    Running(F),
    Ended(F::Output),
    Empty,
}

impl<F: Future + 'static> TaskCell<F> {
    pub(super) const TABLE: &'static Table = &Table {
        poll: Self::poll,
        clear: Self::clear,
        take: Self::take,
        free: Self::free,
    };

    const BLOCK: Block = Block::of(Layout::new::<Self>());

    /// Allocates the task. It is freed by its table's `free`.
    ///
    /// The header is made when its place is known, and so in place: copied, it would be read before
    /// the processor has joined its small stores, which takes as long as the rest of a spawn.
    #[inline]
    pub(super) fn allocate(
        blocks: &Blocks,
        header: impl FnOnce() -> Header,
        future: F,
    ) -> NonNull<Header> {
        let cell = blocks.take(Self::BLOCK).cast::<Self>();
        let header = header();
        let stage = UnsafeCell::new(Stage::Running(future));
        // SAFETY: a block of this type's layout that nobody else knows.
        unsafe { cell.write(Self { header, stage }) };
        cell.cast()
    }

    /// # Safety
    /// `task` is a live task of this type, the caller its core's thread, and no other reference to
    /// its stage is in use.
    unsafe fn stage<'a>(task: NonNull<Header>) -> &'a mut Stage<F> {
        // SAFETY: header and cell have the same address (repr(C)), and the task lives.
        let cell = unsafe { task.cast::<Self>().as_ref() };
        // SAFETY: nobody else uses the stage, as the caller promises.
        unsafe { &mut *cell.stage.get() }
    }

    /// # Safety
    /// As for [`TaskCell::stage`], and the task is not done.
    unsafe fn poll(task: NonNull<Header>, cx: &mut Context<'_>) -> bool {
        // SAFETY: the caller's promise. The future does not reach its own stage while it runs: it is
        // not polled again within its poll, and it is cleared only when it is done.
        let stage = unsafe { Self::stage(task) };
        let Stage::Running(future) = stage else {
            unreachable!("a task that is not done has its future")
        };
        // SAFETY: the future lies in an allocation that does not move, and is dropped in place.
        let future = unsafe { Pin::new_unchecked(future) };
        match future.poll(cx) {
            Poll::Pending => false,
            Poll::Ready(output) => {
                *stage = Stage::Ended(output);
                true
            }
        }
    }

    /// # Safety
    /// As for [`TaskCell::stage`], and the task is done.
    unsafe fn clear(task: NonNull<Header>) {
        // SAFETY: the caller's promise. What is dropped may come back to the task's header, but not
        // to its stage, since the task is done.
        unsafe { *Self::stage(task) = Stage::Empty };
    }

    /// # Safety
    /// As for [`TaskCell::clear`]; `out` points to an `Option<F::Output>`.
    unsafe fn take(task: NonNull<Header>, out: *mut ()) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(task) };
        if let Stage::Ended(output) = mem::replace(stage, Stage::Empty) {
            // SAFETY: the caller's promise on the type behind `out`.
            unsafe { *out.cast::<Option<F::Output>>() = Some(output) };
        }
    }

    /// # Safety
    /// `task` is a task of this type that nobody else knows, its stage empty or its thread the
    /// caller's. `blocks` are those of its core, if the caller is its core.
    unsafe fn free(task: NonNull<Header>, blocks: Option<&Blocks>) {
        let cell = task.cast::<Self>();
        // SAFETY: written by `allocate`, and dropped once, as the caller promises.
        unsafe { cell.drop_in_place() };
        match blocks {
            // SAFETY: taken by `allocate` for this layout, and empty.
            Some(blocks) => unsafe { blocks.put(Self::BLOCK, cell.cast()) },
            // SAFETY: as above.
            None => unsafe { Self::BLOCK.free(cell.cast()) },
        }
    }
}
