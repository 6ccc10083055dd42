//! All of the memory of which a handle names a part: what devices register once.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::{self, Arc};

use super::chunk::Chunk;
use super::exposed::Foreign;
use super::mapping::Mapping;
use super::shared::Here;
use super::words::Mapped;

/// What is asked whether the memory is still there.
#[derive(Clone)]
enum Keeper {
    Chunk(Weak<Chunk>),
    Mapping(Weak<Mapping>),
    Shared(Weak<Here>),
    Foreign(Weak<Foreign>),
    Words(sync::Weak<Mapped>),
}

/// The whole chunk, mapping or foreign memory in which exposed memory or a region lies. It keeps nothing:
/// while somebody else does ([`is_alive`](Self::is_alive)) its range is what it was, and nothing else has
/// come to lie there.
pub struct Extent {
    address: NonNull<u8>,
    len: usize,
    keeper: Keeper,
}

/// Keeps the memory of an extent, while something is done with it that has no handle to a part of it.
#[derive(Clone)]
pub struct ExtentGuard(#[expect(dead_code, reason = "held, so that it stays")] Rc<dyn Any>);

impl Extent {
    pub(super) fn of_chunk(chunk: &Rc<Chunk>) -> Self {
        Self {
            address: chunk.base(),
            len: chunk.len(),
            keeper: Keeper::Chunk(Rc::downgrade(chunk)),
        }
    }

    pub(super) fn of_mapping(mapping: &Rc<Mapping>) -> Self {
        Self {
            address: mapping.base(),
            len: mapping.len(),
            keeper: Keeper::Mapping(Rc::downgrade(mapping)),
        }
    }

    pub(super) fn of_shared(here: &Rc<Here>) -> Self {
        let (address, len) = here.whole();
        Self {
            address,
            len,
            keeper: Keeper::Shared(Rc::downgrade(here)),
        }
    }

    pub(super) fn of_foreign(foreign: &Rc<Foreign>) -> Self {
        Self {
            address: foreign.address,
            len: foreign.len,
            keeper: Keeper::Foreign(Rc::downgrade(foreign)),
        }
    }

    pub(super) fn of_words(words: &Arc<Mapped>) -> Self {
        let (address, len) = words.whole();
        Self {
            address,
            len,
            keeper: Keeper::Words(Arc::downgrade(words)),
        }
    }

    /// Its first byte. It lends nothing: who may read and write what lies there is up to the handles.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.address
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len
    }

    /// Whether anybody still keeps the memory.
    #[must_use]
    #[inline]
    pub fn is_alive(&self) -> bool {
        match &self.keeper {
            Keeper::Chunk(chunk) => chunk.strong_count() > 0,
            Keeper::Mapping(mapping) => mapping.strong_count() > 0,
            Keeper::Shared(here) => here.strong_count() > 0,
            Keeper::Foreign(foreign) => foreign.strong_count() > 0,
            Keeper::Words(words) => words.strong_count() > 0,
        }
    }

    /// Whether a range of addresses lies in it.
    #[must_use]
    #[inline]
    pub fn covers(&self, start: usize, len: usize) -> bool {
        let first = self.address.as_ptr().addr();
        let end = start.checked_add(len);
        first <= start && end.is_some_and(|end| end <= first + self.len)
    }

    /// A part of it, if the range lies in it.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Option<Self> {
        if !self.covers(start, len) {
            return None;
        }
        let offset = start - self.address.as_ptr().addr();
        let address = self.address.as_ptr().wrapping_add(offset);
        let address = NonNull::new(address).expect("no memory lies at null");
        Some(Self {
            address,
            len,
            keeper: self.keeper.clone(),
        })
    }

    /// Keeps the memory, if it is still there.
    #[must_use]
    pub fn guard(&self) -> Option<ExtentGuard> {
        let kept: Rc<dyn Any> = match &self.keeper {
            Keeper::Chunk(chunk) => chunk.upgrade()?,
            Keeper::Mapping(mapping) => mapping.upgrade()?,
            Keeper::Shared(here) => here.upgrade()?,
            Keeper::Foreign(foreign) => foreign.upgrade()?,
            Keeper::Words(words) => Rc::new(words.upgrade()?),
        };
        Some(ExtentGuard(kept))
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({:?}+{:#x})", self.address, self.len)
    }
}

impl fmt::Debug for ExtentGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExtentGuard")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Arena, ArenaOptions, Exposed, ForeignMemory, HugePages, SharedMemory, Words,
    };
    use super::*;

    #[test]
    fn parts_name_the_whole_and_keep_it() {
        let arena = Arena::new(ArenaOptions::default());
        let piece = arena.alloc(5000).expect("room").expose();
        let region = arena.alloc(5000).expect("room").freeze();
        let (one, other) = (piece.slice(9, 3).extent(), region.slice(1, 1).extent());
        assert_eq!(one.start(), other.start(), "one chunk");
        assert!(one.covers(piece.start(), 5000) && !one.covers(piece.start(), one.len_bytes() + 1));
        let mapping = Exposed::map(8192, HugePages::Never, &mut Vec::new()).expect("memory");
        let part = mapping.slice(4096, 1);
        let extent = part.extent();
        assert_eq!(extent.start().as_ptr().addr(), mapping.start());
        drop(mapping);
        assert!(extent.is_alive(), "a part keeps it");
        let guard = extent.guard().expect("it is there");
        drop(part);
        assert!(extent.is_alive(), "so does a guard");
        drop(guard);
        assert!(!extent.is_alive() && extent.guard().is_none());
    }

    #[test]
    fn memory_of_others_is_whole_too() {
        let mut bytes = vec![1_u8; 64];
        let address = NonNull::from(bytes.as_mut_slice()).cast();
        // SAFETY: `bytes` lives to the end of the test and is not touched before.
        let foreign = unsafe { ForeignMemory::new(address, 64, Box::new(())) };
        let memory = Exposed::foreign(foreign);
        let extent = memory.slice(60, 2).extent();
        assert_eq!((extent.start(), extent.len_bytes()), (address, 64));
        drop(memory);
        assert!(!extent.is_alive());
        let shared = SharedMemory::map(4096, HugePages::Never, &mut Vec::new()).expect("memory");
        let here = shared.here(Arc::new(()));
        let extent = here.slice(5, 5).extent();
        assert_eq!(extent.start().as_ptr().addr(), shared.start());
        drop(here);
        assert!(!extent.is_alive(), "this core's hold is what counts");
        drop(bytes);
        let words = Words::new(5, true).expect("memory");
        let extent = words.extent();
        assert_eq!((extent.len_bytes(), extent.is_alive()), (40, true));
        drop(words);
        assert!(!extent.is_alive());
    }
}
