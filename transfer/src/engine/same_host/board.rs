//! Which segments may be read: a word each, which readers of this host see.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use lunette_runtime::arena::{MapError, Words, WordsView};
use lunette_transfer_proto::engine::segment::{SEGMENTS_MAX, SegmentId};
use rustix::io::Errno;

/// The owner's board. It shows nothing any more when it is dropped.
#[derive(Debug)]
pub(in crate::engine) struct Board {
    words: Words,
    shown: BTreeSet<usize>,
}

impl Board {
    pub(in crate::engine) fn new() -> Result<Self, Errno> {
        Ok(Self {
            words: Words::new(SEGMENTS_MAX, true)?,
            shown: BTreeSet::new(),
        })
    }

    /// For a reader.
    pub(in crate::engine) fn file(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.words.as_fd(), 0)
    }

    /// From now on the segment may be read.
    pub(in crate::engine) fn show(&mut self, id: SegmentId) {
        self.words[id.index()].store(u64::from(id.generation()), Ordering::Release);
        self.shown.insert(id.index());
    }

    /// From now on no copy of the segment that ends is a good one; its memory may be used for something
    /// else.
    pub(in crate::engine) fn hide(&mut self, id: SegmentId) {
        if self.shown.remove(&id.index()) {
            self.words[id.index()].store(0, Ordering::Relaxed);
            // Before whatever its memory is written with next.
            fence(Ordering::SeqCst);
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        for &index in &self.shown {
            self.words[index].store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}

/// A peer's board.
#[derive(Debug)]
pub(super) struct BoardView(WordsView);

impl BoardView {
    pub(super) fn map(file: OwnedFd) -> Result<Self, MapError> {
        WordsView::map(file, SEGMENTS_MAX).map(Self)
    }

    /// Whether a segment may be read: what was copied before this look is what was registered.
    pub(super) fn shows(&self, id: SegmentId) -> bool {
        id.index() < SEGMENTS_MAX && self.0.load(id.index()) == u64::from(id.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_shows_what_may_be_read_until_it_may_not_or_is_gone() {
        let id = |index: u64, generation: u64| SegmentId::from_wire(generation << 32 | index);
        let mut board = Board::new().expect("memory");
        let view = BoardView::map(board.file().expect("a descriptor")).expect("sealed");
        let last = SEGMENTS_MAX as u64 - 1;
        board.show(id(7, 3));
        board.show(id(last, 1));
        assert!(view.shows(id(7, 3)) && view.shows(id(last, 1)));
        assert!(!view.shows(id(7, 2)) && !view.shows(id(6, 1)));
        assert!(!view.shows(id(last + 1, 1)), "there is no such place");
        board.hide(id(7, 3));
        board.hide(id(7, 3));
        assert!(!view.shows(id(7, 3)));
        drop(board);
        assert!(!view.shows(id(last, 1)), "its owner is gone");
    }
}
