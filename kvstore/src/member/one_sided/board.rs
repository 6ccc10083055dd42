//! Which memory is whose: a word for each copy, which readers of this host see.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use lunette_runtime::arena::{Extent, Words};

/// One core's board. A word is 0, or a number that was never on the board before: as long as it stands there,
/// the memory that was described with it is one copy's. It shows nothing any more when it is dropped.
#[derive(Debug)]
pub(crate) struct Board {
    words: Words,
    last_number: u64,
    /// Words from this one on were never shown.
    end: usize,
}

impl Board {
    /// With a word for each entry that the core may have.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(entries_max: usize) -> io::Result<Self> {
        Ok(Self {
            words: Words::new(entries_max, true)?,
            last_number: 0,
            end: 0,
        })
    }

    /// How many words it has.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// All of it, and where a word of it is, for a reader by an adapter.
    pub(crate) fn word(&self, slot_index: u32) -> (Extent, usize) {
        let word = &raw const self.words[slot_index as usize];
        (self.words.extent(), word.addr())
    }

    /// For a reader.
    pub(crate) fn file(&self) -> io::Result<OwnedFd> {
        self.words.as_fd().try_clone_to_owned()
    }

    /// From now on the memory of this entry may be read; the number that says so. `None` if there is no such
    /// word.
    pub(crate) fn show(&mut self, slot_index: u32) -> Option<u64> {
        let index = slot_index as usize;
        let word = self.words.get(index)?;
        let shown = word.load(Ordering::Relaxed);
        if shown != 0 {
            return Some(shown);
        }
        self.last_number += 1;
        word.store(self.last_number, Ordering::Release);
        self.end = self.end.max(index + 1);
        Some(self.last_number)
    }

    /// From now on no copy of that memory that ends is a good one: it may be used for something else.
    pub(crate) fn hide(&self, slot_index: u32) {
        let index = slot_index as usize;
        if index < self.end && self.words[index].load(Ordering::Relaxed) != 0 {
            self.words[index].store(0, Ordering::Relaxed);
            // Before whatever the memory is written with next.
            fence(Ordering::SeqCst);
        }
    }

    /// The same of all memory.
    pub(crate) fn hide_all(&self) {
        for word in &self.words[..self.end] {
            word.store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.hide_all();
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::WordsView;

    use super::*;

    #[test]
    fn a_number_stands_until_its_memory_is_another_ones_and_never_comes_back() {
        let mut board = Board::new(100).expect("memory");
        let view = WordsView::map(board.file().expect("a descriptor"), 100).expect("sealed");
        assert_eq!(board.show(7), Some(1));
        assert_eq!(board.show(99), Some(2));
        assert_eq!(board.show(7), Some(1), "it is the same copy still");
        assert_eq!(board.show(100), None, "there is no such word");
        assert_eq!([view.load(7), view.load(99), view.load(0)], [1, 2, 0]);
        board.hide(7);
        board.hide(7);
        board.hide(0);
        board.hide(u32::MAX);
        assert_eq!(view.load(7), 0);
        assert_eq!(board.show(7), Some(3), "another copy");
        drop(board);
        assert_eq!([view.load(7), view.load(99)], [0, 0], "its owner is gone");
    }
}
