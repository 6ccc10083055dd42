//! Completion queues that cannot overflow.
//!
//! When a queue pair fails, every request that it holds yields a completion, also those that asked
//! for none. A completion queue that overflows takes all its queue pairs with it, so it has room
//! for the whole depth of each.

use thiserror::Error;

/// What is left of a completion queue's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionRoom {
    entries_max: u32,
    reserved: u32,
}

/// The queue has no room for this depth: make another one, or a shallower queue pair.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("completion queue full: {wanted} entries wanted, {reserved} of {entries_max} reserved")]
pub struct NoRoom {
    /// Entries that were asked for.
    pub wanted: u32,
    /// Entries that are reserved.
    pub reserved: u32,
    /// Entries of the queue.
    pub entries_max: u32,
}

impl CompletionRoom {
    /// The room of an empty queue.
    #[must_use]
    pub const fn new(entries_max: u32) -> Self {
        Self {
            entries_max,
            reserved: 0,
        }
    }

    /// Reserves room for every request that a queue can hold.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing is reserved then.
    pub fn reserve(&mut self, entries: u32) -> Result<(), NoRoom> {
        let reserved = self.reserved.checked_add(entries);
        let fitting = reserved.filter(|reserved| *reserved <= self.entries_max);
        self.reserved = fitting.ok_or(NoRoom {
            wanted: entries,
            reserved: self.reserved,
            entries_max: self.entries_max,
        })?;
        Ok(())
    }

    /// Gives room back, when the queue that had it is gone and its completions are taken.
    ///
    /// # Panics
    /// If so much is not reserved.
    pub fn release(&mut self, entries: u32) {
        let left = self.reserved.checked_sub(entries);
        self.reserved = left.expect("what is released was reserved");
    }

    /// Entries that are reserved.
    #[must_use]
    pub const fn reserved(&self) -> u32 {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_from_both_sides() {
        let mut room = CompletionRoom::new(10);
        assert_eq!(room.reserve(10), Ok(()));
        let full = NoRoom {
            wanted: 1,
            reserved: 10,
            entries_max: 10,
        };
        assert_eq!(room.reserve(1), Err(full));
        room.release(4);
        assert_eq!(room.reserve(4), Ok(()));
        assert!(room.reserve(u32::MAX).is_err());
        assert_eq!(room.reserved(), 10);
    }

    #[test]
    #[should_panic(expected = "was reserved")]
    fn room_is_not_released_twice() {
        CompletionRoom::new(10).release(1);
    }
}
