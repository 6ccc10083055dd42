//! Memory of threads.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use lunette_runtime::arena::{Exposed, SharedMemory, View};
use lunette_transfer::engine::DeviceLent;

/// A range of memory that threads and cores reach, or of a device: what a value is put from, or got into. The memory
/// stays for as long as anything has a part of it.
///
/// Bytes that somebody writes while they are put are neither those of before nor those of after.
#[derive(Clone, Debug)]
pub struct Lent {
    place: Place,
}

/// Whose memory it is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Host {
        memory: SharedMemory,
        range: Range<usize>,
    },
    Device(DeviceLent),
}

impl Lent {
    /// All of it.
    #[must_use]
    pub fn whole(memory: &SharedMemory) -> Self {
        Self::of_host(memory, 0..memory.len())
    }

    /// A part of it; `None` if it does not lie inside.
    #[must_use]
    pub fn part(memory: &SharedMemory, range: Range<usize>) -> Option<Self> {
        let is_inside = range.start <= range.end && range.end <= memory.len();
        is_inside.then(|| Self::of_host(memory, range))
    }

    fn of_host(memory: &SharedMemory, range: Range<usize>) -> Self {
        let memory = memory.clone();
        Self {
            place: Place::Host { memory, range },
        }
    }

    /// The bytes of a vector.
    #[must_use]
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self::whole(&SharedMemory::owned(bytes))
    }

    /// Memory of a device. Its bytes go by way of the core's memory, which the device knows; no thread copies them.
    #[must_use]
    pub const fn device(memory: DeviceLent) -> Self {
        Self {
            place: Place::Device(memory),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match &self.place {
            Place::Host { range, .. } => range.end - range.start,
            Place::Device(memory) => memory.len_bytes,
        }
    }

    /// Whether it is of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is a device's.
    #[must_use]
    pub const fn is_of_device(&self) -> bool {
        matches!(self.place, Place::Device(_))
    }

    pub(super) const fn place(&self) -> &Place {
        &self.place
    }

    /// Copies `bytes`, which are no longer, to its front.
    pub(super) fn copy_in(&self, bytes: &[u8]) {
        self.copy_in_at(0, bytes);
    }

    /// Copies `bytes`, for which there is room from `at` on, there.
    pub(super) fn copy_in_at(&self, at: usize, bytes: &[u8]) {
        let fits = at <= self.len() && bytes.len() <= self.len() - at;
        assert!(fits, "{} do not fit", bytes.len());
        let (memory, range) = self.host();
        memory.copy_in(range.start + at, bytes);
    }

    /// Where a part of it lies.
    pub(super) fn place_of(&self, part: &Range<usize>) -> (&SharedMemory, Range<usize>) {
        assert!(part.end <= self.len(), "a part of it");
        let (memory, range) = self.host();
        (memory, range.start + part.start..range.start + part.end)
    }

    /// Copies `len` bytes of a view, from `from` on, to its front; the CRC32C of what is there then.
    pub(super) fn copy_in_view(&self, view: &View, from: usize, len: usize) -> u32 {
        assert!(len <= self.len(), "{len} do not fit");
        let (memory, range) = self.host();
        memory.copy_in_view(range.start, view, from, len)
    }

    /// Copies all of it over `bytes`, which are as many; the CRC32C of the copy.
    pub(super) fn copy_out_summed(&self, bytes: &mut [u8]) -> u32 {
        assert_eq!(bytes.len(), self.len(), "as many bytes");
        let (memory, range) = self.host();
        memory.copy_out_summed(range.start, bytes)
    }

    /// Copies a part of it into other memory, where there is room for it, from `start` on.
    pub(super) fn copy_to(&self, part: Range<usize>, to: &SharedMemory, start: usize) {
        assert!(part.end <= self.len(), "a part of it");
        let (memory, range) = self.host();
        to.copy_from(start, memory, range.start + part.start, part.len());
    }

    /// A handle for this core.
    pub(super) fn here(&self, keeps: &Arc<dyn Any + Send + Sync>) -> Exposed {
        let (memory, range) = self.host();
        let memory = memory.here(Arc::clone(keeps));
        memory.slice(range.start, range.len())
    }

    fn host(&self) -> (&SharedMemory, &Range<usize>) {
        match &self.place {
            Place::Host { memory, range } => (memory, range),
            Place::Device(_) => unreachable!("what is a device's is copied by the device"),
        }
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
