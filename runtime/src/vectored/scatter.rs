//! A scatter list: regions that one read fills, one after the other.

use std::fmt;

use super::empty_header;
use crate::arena::{Exposed, RegionMut};

/// Most parts of one list (the system's limit is 1,024).
pub const SCATTER_PARTS_MAX: usize = 1024;

enum Memory {
    Region(RegionMut),
    Exposed(Exposed),
}

impl Memory {
    const fn first(&self) -> *mut u8 {
        match self {
            Self::Region(region) => region.address().as_ptr(),
            Self::Exposed(memory) => memory.address().as_ptr(),
        }
    }
}

struct Part {
    memory: Memory,
    start: usize,
    len: usize,
}

/// Memory to be filled, in order.
///
/// It is boxed when it is lent, because the system reads its list until the completion.
pub struct Scatter {
    parts: Vec<Part>,
    len: usize,
    filled: usize,
    iov: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Scatter {
    /// An empty list.
    #[must_use]
    pub fn new() -> Box<Self> {
        Box::new(Self {
            parts: Vec::new(),
            len: 0,
            filled: 0,
            iov: Vec::new(),
            header: empty_header(),
        })
    }

    /// Appends `len` bytes of `region`, from its `start`.
    ///
    /// # Errors
    /// The region, if the list has [`SCATTER_PARTS_MAX`] parts.
    ///
    /// # Panics
    /// If the range is not inside the region.
    pub fn push(&mut self, region: RegionMut, start: usize, len: usize) -> Result<(), RegionMut> {
        assert!(
            start
                .checked_add(len)
                .is_some_and(|end| end <= region.len()),
            "a part lies inside its region"
        );
        if self.parts.len() >= SCATTER_PARTS_MAX {
            return Err(region);
        }
        let memory = Memory::Region(region);
        self.parts.push(Part { memory, start, len });
        self.len += len;
        Ok(())
    }

    /// Appends exposed memory.
    ///
    /// # Errors
    /// The memory, if the list has [`SCATTER_PARTS_MAX`] parts.
    pub fn push_exposed(&mut self, memory: Exposed) -> Result<(), Exposed> {
        if self.parts.len() >= SCATTER_PARTS_MAX {
            return Err(memory);
        }
        let len = memory.len();
        let memory = Memory::Exposed(memory);
        self.parts.push(Part {
            memory,
            start: 0,
            len,
        });
        self.len += len;
        Ok(())
    }

    /// Empties the list and keeps its buffers. Regions in it are freed.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.iov.clear();
        self.len = 0;
        self.filled = 0;
    }

    /// Bytes that are still to be filled.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len - self.filled
    }

    /// Whether nothing is left to be filled.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The regions, in the order in which they were appended; exposed memory is left out.
    #[must_use]
    #[expect(clippy::boxed_local, reason = "a list lives in a box")]
    pub fn into_regions(mut self: Box<Self>) -> Vec<RegionMut> {
        self.drain_regions().collect()
    }

    /// As [`into_regions`](Self::into_regions), and keeps the list, which is empty then, for the next time.
    pub fn drain_regions(&mut self) -> impl Iterator<Item = RegionMut> {
        self.iov.clear();
        self.len = 0;
        self.filled = 0;
        self.parts.drain(..).filter_map(|part| match part.memory {
            Memory::Region(region) => Some(region),
            Memory::Exposed(_) => None,
        })
    }

    /// Records that the next `count` bytes have been filled.
    pub(crate) fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "no more is filled than was lent");
        self.filled += count;
    }

    /// The system's view of what is left, for a socket. Valid until the list is changed or moved out
    /// of its box.
    pub(crate) fn header(&mut self) -> *mut libc::msghdr {
        self.list();
        self.header.msg_iov = self.iov.as_mut_ptr();
        self.header.msg_iovlen = self.iov.len();
        &raw mut self.header
    }

    /// The system's view of what is left: the list's address and length. Valid until the list is
    /// changed.
    pub(crate) fn list(&mut self) -> (*const libc::iovec, usize) {
        self.iov.clear();
        let mut skip = self.filled;
        for part in &self.parts {
            let skipped = skip.min(part.len);
            skip -= skipped;
            if skipped < part.len {
                let first = part.memory.first();
                self.iov.push(libc::iovec {
                    iov_base: first.wrapping_add(part.start + skipped).cast(),
                    iov_len: part.len - skipped,
                });
            }
        }
        (self.iov.as_ptr(), self.iov.len())
    }
}

impl fmt::Debug for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scatter")
            .field("parts", &self.parts.len())
            .field("len", &self.len)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, ArenaOptions};

    #[test]
    fn what_is_left_starts_at_any_point() {
        let arena = Arena::new(ArenaOptions::default());
        let mut scatter = Scatter::new();
        let mut firsts = Vec::new();
        for (start, len) in [(1, 3), (0, 2), (7, 0), (2, 4)] {
            let region = arena.alloc(8).expect("room");
            firsts.push(region.address().as_ptr().wrapping_add(start));
            scatter.push(region, start, len).expect("room in the list");
        }
        let addresses: Vec<*mut u8> = [(0, 3), (1, 2), (3, 4)]
            .into_iter()
            .flat_map(|(part, len)| (0..len).map(move |at| (part, at)))
            .map(|(part, at): (usize, usize)| firsts[part].wrapping_add(at))
            .collect();
        for filled in 0..=9 {
            assert_eq!(scatter.len(), 9 - filled);
            scatter.list();
            let seen: Vec<*mut u8> = scatter
                .iov
                .iter()
                .flat_map(|iov| {
                    (0..iov.iov_len).map(|at| iov.iov_base.cast::<u8>().wrapping_add(at))
                })
                .collect();
            assert_eq!(seen, addresses[filled..]);
            if filled < 9 {
                scatter.advance(1);
            }
        }
        assert_eq!(scatter.drain_regions().count(), 4);
        assert!(scatter.is_empty(), "and can be filled anew");
        let region = arena.alloc(8).expect("room");
        let first = region.address().as_ptr();
        scatter.push(region, 0, 8).expect("room in the list");
        let (iov, len) = scatter.list();
        assert_eq!((scatter.len(), len), (8, 1));
        assert!(!iov.is_null());
        assert_eq!(scatter.iov[0].iov_base.cast(), first);
        assert_eq!(scatter.into_regions().len(), 1);
    }

    #[test]
    fn the_list_is_bounded_and_gives_the_region_back() {
        let arena = Arena::new(ArenaOptions::default());
        let mut scatter = Scatter::new();
        for _ in 0..SCATTER_PARTS_MAX {
            let region = arena.alloc(1).expect("room");
            assert!(scatter.push(region, 0, 1).is_ok());
        }
        let region = arena.alloc(1).expect("room");
        assert!(scatter.push(region, 0, 1).is_err());
    }
}
