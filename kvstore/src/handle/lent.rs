//! Memory of threads.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use lunette_runtime::arena::{Exposed, SharedMemory};

/// A range of memory that threads and cores reach: what a value is put from, or got into. The memory stays
/// for as long as anything has a part of it.
///
/// Bytes that somebody writes while they are put are neither those of before nor those of after.
#[derive(Clone, Debug)]
pub struct Lent {
    memory: SharedMemory,
    range: Range<usize>,
}

impl Lent {
    /// All of it.
    #[must_use]
    pub fn whole(memory: &SharedMemory) -> Self {
        Self {
            memory: memory.clone(),
            range: 0..memory.len(),
        }
    }

    /// A part of it; `None` if it does not lie inside.
    #[must_use]
    pub fn part(memory: &SharedMemory, range: Range<usize>) -> Option<Self> {
        let is_inside = range.start <= range.end && range.end <= memory.len();
        is_inside.then(|| Self {
            memory: memory.clone(),
            range,
        })
    }

    /// The bytes of a vector.
    #[must_use]
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self::whole(&SharedMemory::owned(bytes))
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Whether it is of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes`, which are no longer, to its front.
    pub(super) fn copy_in(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len(), "{} do not fit", bytes.len());
        self.memory.copy_in(self.range.start, bytes);
    }

    /// Copies all of it over `bytes`, which are as many; the CRC32C of the copy.
    pub(super) fn copy_out_summed(&self, bytes: &mut [u8]) -> u32 {
        assert_eq!(bytes.len(), self.len(), "as many bytes");
        self.memory.copy_out_summed(self.range.start, bytes)
    }

    /// A handle for this core.
    pub(super) fn here(&self, keeps: &Arc<dyn Any + Send + Sync>) -> Exposed {
        let memory = self.memory.here(Arc::clone(keeps));
        memory.slice(self.range.start, self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    fn parts_lie_inside() {
        let memory = SharedMemory::owned(vec![7; 10]);
        let part = Lent::part(&memory, 3..10).expect("inside");
        assert_eq!((part.len(), part.is_empty()), (7, false));
        for outside in [3..11, 4..3, 11..11, usize::MAX..0] {
            assert!(Lent::part(&memory, outside).is_none());
        }
        let end = Lent::part(&memory, 10..10).expect("inside");
        assert!(end.is_empty() && end.here(&(Arc::new(()) as _)).is_empty());
        assert_eq!(Lent::bytes(vec![1, 2]).len(), 2);
    }
}
