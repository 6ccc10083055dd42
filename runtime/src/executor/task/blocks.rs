//! The memory of tasks that have ended, kept for the next ones.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

/// Kept blocks. Longer tasks are allocated and freed one by one.
const LAYOUTS: [Layout; 2] = [Layout::new::<Piece<256>>(), Layout::new::<Piece<1024>>()];

#[repr(align(16))]
struct Piece<const LEN_BYTES: usize>([u8; LEN_BYTES]);

/// Blocks kept of each length.
const BLOCKS_MAX: usize = 256;

/// How a task is allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    layout: Layout,
    /// Which length it has of those that are kept.
    kept: Option<usize>,
}

impl Block {
    /// The block of a task of this layout.
    pub(super) const fn of(task: Layout) -> Self {
        let mut kept = 0;
        while kept < LAYOUTS.len() {
            if task.align() <= LAYOUTS[kept].align() && task.size() <= LAYOUTS[kept].size() {
                let layout = LAYOUTS[kept];
                let kept = Some(kept);
                return Self { layout, kept };
            }
            kept += 1;
        }
        Self {
            layout: task,
            kept: None,
        }
    }

    #[cold]
    fn allocate(self) -> NonNull<u8> {
        assert!(self.layout.size() > 0, "a task has a header");
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc(self.layout) };
        NonNull::new(block).unwrap_or_else(|| handle_alloc_error(self.layout))
    }

    /// Frees a block, on any thread.
    ///
    /// # Safety
    /// `block` was allocated for this layout and is not used any more.
    pub(super) unsafe fn free(self, block: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(block.as_ptr(), self.layout) };
    }
}

/// The kept blocks of one core.
#[derive(Default)]
pub(super) struct Blocks {
    kept: [Kept; LAYOUTS.len()],
}

/// Free blocks of one length, each holding the address of the next.
#[derive(Default)]
struct Kept {
    first: Cell<Option<NonNull<u8>>>,
    len: Cell<usize>,
}

impl Kept {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        let first = self.first.get()?;
        // SAFETY: a kept block holds the address of the next one, written by `push`.
        self.first
            .set(unsafe { first.cast::<Option<NonNull<u8>>>().read() });
        self.len.set(self.len.get() - 1);
        Some(first)
    }

    /// # Safety
    /// The block is aligned for a pointer, has room for one, and belongs to nobody.
    #[inline]
    unsafe fn push(&self, block: NonNull<u8>) {
        let next = self.first.replace(Some(block));
        // SAFETY: the caller's promise.
        unsafe { block.cast::<Option<NonNull<u8>>>().write(next) };
        self.len.set(self.len.get() + 1);
    }
}

impl Blocks {
    /// Memory for a task, kept or fresh.
    #[inline]
    pub(super) fn take(&self, block: Block) -> NonNull<u8> {
        let kept = block.kept.and_then(|kept| self.kept[kept].pop());
        kept.unwrap_or_else(|| block.allocate())
    }

    /// Keeps a block, or frees it.
    ///
    /// # Safety
    /// As for [`Block::free`].
    #[inline]
    pub(super) unsafe fn put(&self, block: Block, at: NonNull<u8>) {
        match block.kept.map(|kept| &self.kept[kept]) {
            // SAFETY: kept lengths have room for a pointer and are aligned for one; the rest is the
            // caller's promise.
            Some(kept) if kept.len.get() < BLOCKS_MAX => unsafe { kept.push(at) },
            // SAFETY: the caller's promise.
            _ => unsafe { block.free(at) },
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for (layout, kept) in LAYOUTS.into_iter().zip(&self.kept) {
            let block = Block::of(layout);
            while let Some(at) = kept.pop() {
                // SAFETY: a kept block has this layout and belongs to nobody.
                unsafe { block.free(at) };
            }
        }
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.each_ref().map(|kept| kept.len.get());
        f.debug_tuple("Blocks").field(&kept).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_put_back_is_the_next_one_of_its_length() {
        let blocks = Blocks::default();
        let short = Block::of(Layout::new::<[u64; 20]>());
        let long = Block::of(Layout::new::<[u64; 100]>());
        let (first, other) = (blocks.take(short), blocks.take(long));
        // SAFETY: taken for this layout, and not used.
        unsafe { blocks.put(short, first) };
        // SAFETY: as above.
        unsafe { blocks.put(long, other) };
        assert_eq!(blocks.take(long), other);
        assert_eq!(blocks.take(short), first);
        // SAFETY: as above.
        unsafe { blocks.put(short, first) };
        // SAFETY: as above.
        unsafe { blocks.put(long, other) };
    }

    #[test]
    fn kept_blocks_are_bounded_and_long_ones_are_not_kept() {
        let blocks = Blocks::default();
        let short = Block::of(Layout::new::<u64>());
        let taken: Vec<_> = (0..BLOCKS_MAX + 10).map(|_| blocks.take(short)).collect();
        for at in taken {
            // SAFETY: taken for this layout, and not used.
            unsafe { blocks.put(short, at) };
        }
        let longest = Block::of(Layout::new::<[u64; 1000]>());
        let at = blocks.take(longest);
        // SAFETY: as above.
        unsafe { blocks.put(longest, at) };
        assert_eq!(format!("{blocks:?}"), format!("Blocks([{BLOCKS_MAX}, 0])"));
    }

    #[test]
    fn a_task_that_wants_more_than_the_usual_alignment_gets_it() {
        let layout = Layout::from_size_align(128, 128).expect("powers of two");
        let block = Block::of(layout);
        let blocks = Blocks::default();
        let at = blocks.take(block);
        assert_eq!(at.addr().get() % 128, 0);
        // SAFETY: taken for this layout, and not used.
        unsafe { blocks.put(block, at) };
    }
}
