//! Arenas: the memory that devices read and write.
//!
//! An [`Arena`] belongs to one core. It maps memfds in chunks as they are needed, up to its limit,
//! and carves them into regions:
//!
//! ```text
//!  Arena ── Chunk (memfd, at most 1 GiB) ── Carver (offsets) ── Region / RegionMut (counted)
//! ```
//!
//! A [`RegionMut`] has one owner and may be written, by the program or by a device; a [`Region`] is
//! shared and read-only, also by other threads ([`Borrowed`], and [`BorrowedMut`] before); [`Exposed`] memory, which need not be an arena's, may be written by anybody
//! and is only copied; [`SharedMemory`] is such memory for several cores. Memory returns to its chunk when the last handle to it drops, so an
//! operation in flight that holds a handle keeps the memory, whatever else happens. What is touched before it is used
//! is made of huge pages ([`HugePages::Transparent`]).

mod ahead;
mod chunk;
mod exposed;
mod extent;
mod handle;
mod lent;
mod mapping;
mod process;
mod region;
mod share;
mod shared;
mod stretch;
mod summed;
mod transparent;
mod words;

use std::cell::RefCell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use lunette_runtime_core::limits::{CHUNK_BYTES_MAX, PAYLOAD_BYTES_MAX};
use rustix::io::Errno;
use thiserror::Error;

use ahead::Ahead;
use chunk::Chunk;
pub use exposed::{Exposed, ForeignMemory};
pub use extent::{Extent, ExtentGuard};
pub use handle::ChunkHandle;
pub use lent::{Borrowed, BorrowedMut, Lender, LenderMut};
use mapping::Mapping;
pub use process::ProcessMemory;
pub use region::{Region, RegionMut};
pub use share::{MapError, Share, View};
pub use shared::SharedMemory;
pub use stretch::Stretch;
pub use words::{Words, WordsView};

/// Slack beyond the largest payload for what an extent keeps in front of it.
const EXTENT_OVERHEAD_BYTES_MAX: usize = 4096;
/// Largest region that an arena hands out, in bytes.
pub const REGION_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + EXTENT_OVERHEAD_BYTES_MAX;
/// Smallest chunk: one that can hold the largest region.
pub const CHUNK_BYTES_MIN: usize = 2 * 1024 * 1024;

/// What an arena is to be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaOptions {
    /// Most memory that the arena maps, in bytes.
    pub bytes_max: usize,
    /// Size of one chunk in bytes; clamped to what the system and the limits allow.
    pub chunk_bytes: usize,
    /// Whether to back chunks with huge pages.
    pub huge_pages: HugePages,
    /// Whether to lock chunks into memory. A refusal (`RLIMIT_MEMLOCK`) is reported by
    /// [`Arena::shortfalls`] and the arena works on, unlocked.
    pub lock: bool,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self {
            bytes_max: 256 * 1024 * 1024,
            chunk_bytes: 64 * 1024 * 1024,
            huge_pages: HugePages::Transparent,
            lock: false,
        }
    }
}

/// Whether chunks are backed with huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Plain pages, unless the system makes huge ones unasked.
    Never,
    /// What is touched beforehand ([`Arena::prefault`], [`Arena::touch_ahead`]; all of what is [`Exposed::map`]ped) is
    /// touched as huge pages, which the system makes of its free memory where it can (Linux 6.1 on), without a pool and
    /// without privileges; the rest has plain pages.
    Transparent,
    /// Huge pages of the system's pool where it has enough of them, else [`Transparent`](Self::Transparent); the
    /// fallback is reported.
    Prefer,
    /// Huge pages of the pool or an error.
    Require,
}

/// Whether the system makes huge pages of its free memory, as [`HugePages::Transparent`] has it: it is asked for one.
///
/// # Errors
/// The system's: `INVAL` from one that cannot (before Linux 6.1, or without transparent huge pages), others where it has
/// none to give.
pub fn makes_huge_pages() -> Result<(), Errno> {
    Mapping::probe_huge()
}

/// What an arena asked the system for and did not get. The arena works without it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Shortfall {
    /// No huge pages: the pool is empty or too small.
    #[error("no huge pages ({0}); using plain pages: raise vm.nr_hugepages")]
    HugePages(Errno),
    /// Memory could not be locked.
    #[error("memory is not locked ({0}): raise the memlock limit (ulimit -l)")]
    Lock(Errno),
}

/// Why no region was handed out.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AllocError {
    /// The arena has no room of this length: free something, then try again.
    #[error("arena full: no room for {len_bytes} bytes ({used_bytes} of {bytes_max} in use)")]
    Full {
        /// Length asked for.
        len_bytes: usize,
        /// Bytes in use.
        used_bytes: usize,
        /// The arena's limit.
        bytes_max: usize,
    },
    /// Zero, or longer than a region (or this arena's chunks) may be.
    #[error("a region of {len_bytes} bytes is outside 1..={len_bytes_max}")]
    BadLength {
        /// Length asked for.
        len_bytes: usize,
        /// Longest region of this arena.
        len_bytes_max: usize,
    },
    /// The system refused to map a chunk.
    #[error("cannot map a chunk of {chunk_bytes} bytes: {errno}")]
    Map {
        /// Size of the chunk.
        chunk_bytes: usize,
        /// What the system said.
        errno: Errno,
    },
}

impl AllocError {
    /// Whether freeing memory and trying again can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

/// One core's arena. Cheap to clone: clones share the arena.
#[derive(Clone)]
pub struct Arena {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    options: ArenaOptions,
    chunks: Vec<Rc<Chunk>>,
    shortfalls: Vec<Shortfall>,
    ahead: Option<Ahead>,
}

impl Arena {
    /// An arena that has mapped nothing yet.
    #[must_use]
    pub fn new(options: ArenaOptions) -> Self {
        let chunk_bytes = options
            .chunk_bytes
            .clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
            .next_multiple_of(CHUNK_BYTES_MIN);
        let options = ArenaOptions {
            chunk_bytes,
            ..options
        };
        let inner = Inner {
            options,
            chunks: Vec::new(),
            shortfalls: Vec::new(),
            ahead: None,
        };
        Self {
            inner: Rc::new(RefCell::new(inner)),
        }
    }

    /// A region of `len_bytes` for one writer. Its bytes are initialised, with unspecified values.
    ///
    /// # Errors
    /// [`AllocError::Full`] is back-pressure; the other variants do not go away by waiting.
    pub fn alloc(&self, len_bytes: usize) -> Result<RegionMut, AllocError> {
        self.inner.borrow_mut().alloc(len_bytes)
    }

    /// Bytes in use, after rounding to the allocator's granule.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.inner.borrow().used_bytes()
    }

    /// The options, after clamping.
    #[must_use]
    pub fn options(&self) -> ArenaOptions {
        self.inner.borrow().options
    }

    /// What the arena asked for and did not get, in the order of asking, each once.
    #[must_use]
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        self.inner.borrow().shortfalls.clone()
    }

    /// The chunks mapped so far: address and length in bytes. They stay mapped as long as the arena
    /// or any region in them.
    pub(crate) fn chunks(&self) -> Vec<(NonNull<u8>, usize)> {
        let inner = self.inner.borrow();
        let chunks = inner.chunks.iter();
        chunks.map(|chunk| (chunk.base(), chunk.len())).collect()
    }

    /// All of a chunk, for other processes of this host to read: whatever comes to lie in it, for as long as
    /// they keep it. `None` if there is no such chunk yet.
    ///
    /// # Errors
    /// The system's.
    pub fn share(&self, chunk_index: u32) -> Result<Option<Share>, Errno> {
        let inner = self.inner.borrow();
        let Some(chunk) = inner.chunks.get(chunk_index as usize) else {
            return Ok(None);
        };
        Ok(Some(Share {
            memfd: chunk.mapping().share()?,
            offset_bytes: 0,
            len_bytes: chunk.len() as u64,
            is_whole: true,
        }))
    }

    /// Maps every chunk up to the limit and touches every page, so that no page fault falls into
    /// the first transfers.
    ///
    /// # Errors
    /// [`AllocError::Map`]: the system refused a chunk; what was mapped stays usable.
    pub fn prefault(&self) -> Result<(), AllocError> {
        let mut inner = self.inner.borrow_mut();
        while inner.add_chunk()? {}
        for chunk in &inner.chunks {
            chunk.prefault().map_err(|errno| AllocError::Map {
                chunk_bytes: chunk.len(),
                errno,
            })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.borrow();
        f.debug_struct("Arena")
            .field("options", &inner.options)
            .field("chunks", &inner.chunks.len())
            .field("used_bytes", &inner.used_bytes())
            .finish()
    }
}

impl Inner {
    fn alloc(&mut self, len_bytes: usize) -> Result<RegionMut, AllocError> {
        let len_bytes_max = REGION_BYTES_MAX.min(self.options.chunk_bytes);
        if len_bytes == 0 || len_bytes > len_bytes_max {
            return Err(AllocError::BadLength {
                len_bytes,
                len_bytes_max,
            });
        }
        let len = u32::try_from(len_bytes).expect("a region's length is bounded");
        loop {
            let mut chunks = self.chunks.iter();
            let carved = chunks.find_map(|chunk| {
                let used_end = chunk.used_end();
                let region = RegionMut::carve(chunk, len)?;
                Some((region, chunk.used_end() > used_end))
            });
            if let Some((region, is_first_use)) = carved {
                if is_first_use {
                    self.on_first_use();
                }
                return Ok(region);
            }
            if !self.add_chunk()? {
                return Err(AllocError::Full {
                    len_bytes,
                    used_bytes: self.used_bytes(),
                    bytes_max: self.options.bytes_max,
                });
            }
        }
    }

    /// Maps one more chunk; false at the limit. The last chunk may be smaller than the others.
    fn add_chunk(&mut self) -> Result<bool, AllocError> {
        let mapped: usize = self.chunks.iter().map(|chunk| chunk.len()).sum();
        let left = self.options.bytes_max.saturating_sub(mapped);
        let chunk_bytes = self.options.chunk_bytes.min(left) / CHUNK_BYTES_MIN * CHUNK_BYTES_MIN;
        if chunk_bytes == 0 {
            return Ok(false);
        }
        let index = u32::try_from(self.chunks.len()).expect("chunks are few");
        let mut shortfalls = Vec::new();
        let chunk = Chunk::map(index, chunk_bytes, &self.options, &mut shortfalls)
            .map_err(|errno| AllocError::Map { chunk_bytes, errno })?;
        for shortfall in shortfalls {
            if !self.shortfalls.contains(&shortfall) {
                tracing::warn!(%shortfall, "arena");
                self.shortfalls.push(shortfall);
            }
        }
        self.chunks.push(Rc::new(chunk));
        Ok(true)
    }

    fn used_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.used_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Arena {
        Arena::new(ArenaOptions {
            bytes_max: 2 * CHUNK_BYTES_MIN,
            chunk_bytes: CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        })
    }

    #[test]
    #[cfg(not(miri))]
    fn what_is_touched_beforehand_lies_in_huge_pages_with_what_was_there() {
        let arena = Arena::new(ArenaOptions {
            bytes_max: 3 * CHUNK_BYTES_MIN,
            chunk_bytes: 3 * CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        });
        let mut kept = arena.alloc(CHUNK_BYTES_MIN + 5).expect("room");
        kept.as_mut_slice()[..3].copy_from_slice(b"one");
        kept.as_mut_slice()[CHUNK_BYTES_MIN + 2..].copy_from_slice(b"two");
        // Another mapping, as other processes have it, from before.
        let share = arena.share(0).expect("a memfd").expect("a chunk");
        let view = View::map(share.memfd, 0, share.len_bytes).expect("a view");
        arena.prefault().expect("memory");
        let chunks = arena.inner.borrow().chunks.clone();
        let mapping = chunks[0].mapping();
        assert_eq!(mapping.resident(), 3 * CHUNK_BYTES_MIN);
        if mapping.makes_huge_pages() {
            assert_eq!(mapping.huge(), 3 * CHUNK_BYTES_MIN);
        }
        assert_eq!(&kept.as_slice()[..3], b"one");
        assert_eq!(&kept.as_slice()[CHUNK_BYTES_MIN + 2..], b"two");
        kept.as_mut_slice()[0] = b'O';
        let mut seen = [0; 3];
        view.copy_out_summed(0, &mut seen);
        assert_eq!(&seen, b"One");
    }

    #[test]
    #[cfg(not(miri))]
    fn no_huge_pages_are_asked_for_where_none_are_wanted() {
        let arena = Arena::new(ArenaOptions {
            bytes_max: CHUNK_BYTES_MIN,
            chunk_bytes: CHUNK_BYTES_MIN,
            huge_pages: HugePages::Never,
            ..ArenaOptions::default()
        });
        arena.prefault().expect("memory");
        let chunks = arena.inner.borrow().chunks.clone();
        assert_eq!(chunks[0].mapping().resident(), CHUNK_BYTES_MIN);
        // What the system does by itself is the administrator's business.
        assert!(!chunks[0].mapping().makes_huge_pages());
    }

    #[test]
    fn grows_to_its_limit_then_refuses_then_recovers() {
        let arena = small();
        let first = arena.alloc(CHUNK_BYTES_MIN).expect("first chunk");
        let second = arena.alloc(CHUNK_BYTES_MIN).expect("second chunk");
        let error = arena.alloc(1).expect_err("both chunks are taken");
        assert!(error.is_backpressure(), "{error}");
        drop(first);
        let again = arena
            .alloc(CHUNK_BYTES_MIN)
            .expect("freed memory comes back");
        drop((second, again));
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn lengths_are_bounded_on_both_sides() {
        let arena = small();
        assert!(matches!(arena.alloc(0), Err(AllocError::BadLength { .. })));
        assert!(arena.alloc(1).is_ok());
        assert!(arena.alloc(CHUNK_BYTES_MIN).is_ok());
        assert!(matches!(
            arena.alloc(CHUNK_BYTES_MIN + 1),
            Err(AllocError::BadLength { .. })
        ));
    }

    #[test]
    fn a_chunk_is_shared_as_it_is_and_a_region_says_where_in_it_it_lies() {
        let arena = small();
        assert!(arena.share(0).expect("nothing to refuse").is_none());
        let _first = arena.alloc(5000).expect("room");
        let mut second = arena.alloc(5000).expect("room");
        second.as_mut_slice()[4000..4006].copy_from_slice(b"region");
        let part = second.freeze().slice(4000, 6);
        let (chunk, offset) = part.place();
        let share = arena.share(chunk).expect("a memfd").expect("it is there");
        assert_eq!(share.len_bytes, CHUNK_BYTES_MIN as u64);
        let view = View::map(share.memfd, 0, share.len_bytes).expect("sealed");
        let mut copy = [0; 6];
        view.copy_out_summed(offset, &mut copy);
        assert_eq!(&copy, b"region");
        assert!(arena.share(1).expect("nothing to refuse").is_none());
        let third = arena.alloc(CHUNK_BYTES_MIN).expect("another chunk");
        assert_eq!(third.freeze().place(), (1, 0));
        assert!(arena.share(1).expect("a memfd").is_some());
    }

    #[test]
    fn a_region_outlives_its_arena() {
        let arena = small();
        let mut region = arena.alloc(100).expect("room");
        drop(arena);
        region.as_mut_slice().fill(7);
        assert_eq!(region.freeze().as_slice(), [7; 100]);
    }

    #[test]
    fn without_huge_pages_plain_ones_serve_and_the_fallback_is_reported() {
        let arena = Arena::new(ArenaOptions {
            // More than any pool of huge pages that a test machine has.
            bytes_max: CHUNK_BYTES_MAX,
            chunk_bytes: CHUNK_BYTES_MAX,
            huge_pages: HugePages::Prefer,
            lock: false,
        });
        let mut region = arena.alloc(4096).expect("plain pages serve");
        region.as_mut_slice().fill(1);
        let got_huge_pages = arena.shortfalls().is_empty();
        let reported = matches!(arena.shortfalls()[..], [Shortfall::HugePages(_)]);
        assert!(got_huge_pages || reported, "{:?}", arena.shortfalls());
    }
}
