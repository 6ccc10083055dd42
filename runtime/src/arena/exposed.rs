//! Memory that more than one party may write.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;

use lunette_runtime_core::checksum::Crc32c;
use rustix::io::Errno;

use super::extent::Extent;
use super::handle::ChunkHandle;
use super::mapping::Mapping;
use super::region::{Piece, RegionMut};
use super::share::{MapError, check_file};
use super::shared::Here;
use super::summed::{Then, copy_summed};
use super::{HugePages, Share, Shortfall};

/// What keeps the memory.
#[derive(Clone)]
enum Backing {
    /// A piece of an arena.
    Piece(Rc<Piece>),
    /// A mapping of its own.
    Mapping(Rc<Mapping>),
    /// Memory that other cores reach too.
    Shared(Rc<Here>),
    /// Memory of somebody else, whom it keeps.
    Foreign(Rc<Foreign>),
}

/// All of somebody else's memory, and who that is.
pub(super) struct Foreign {
    pub(super) address: NonNull<u8>,
    pub(super) len: usize,
    _owner: Box<dyn Any>,
}

/// Memory that is exposed: the program, devices and peers may each read and write it, in any order
/// and at the same time. That is what one-sided transfers work on.
///
/// No reference to its bytes is ever handed out, since they may change under it; the program copies
/// in and out. What it reads while somebody else writes may be of both. Clones and slices are counted
/// handles, and the memory stays as long as any of them: an operation in flight owns one.
#[derive(Clone)]
pub struct Exposed {
    address: NonNull<u8>,
    len: usize,
    backing: Backing,
}

/// Memory of somebody else on its way to a core. See [`Exposed::foreign`].
pub struct ForeignMemory {
    address: NonNull<u8>,
    len: usize,
    owner: Box<dyn Any + Send>,
}

// SAFETY: who makes one vouches for the memory on any thread (`ForeignMemory::new`), and the owner is
// `Send` by its type.
unsafe impl Send for ForeignMemory {}

impl ForeignMemory {
    /// Names `len` bytes from `address` on. `owner` is dropped when nothing uses them any more: the
    /// place to free or unpin them, or to drop a reference that keeps them. It is dropped on the
    /// core to which they go.
    ///
    /// # Safety
    /// Until `owner` has been dropped the whole range must be mapped, initialised, readable and
    /// writable, and every other access to it must be one that tolerates concurrent writes: through
    /// raw pointers, by devices, or in times in which no transfer names it.
    #[must_use]
    pub unsafe fn new(address: NonNull<u8>, len: usize, owner: Box<dyn Any + Send>) -> Self {
        assert!(
            address.as_ptr().addr().checked_add(len).is_some(),
            "memory does not wrap"
        );
        Self {
            address,
            len,
            owner,
        }
    }

    /// Where it begins.
    #[must_use]
    #[inline]
    pub fn start(&self) -> usize {
        self.address.as_ptr().addr()
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it names no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn into_parts(self) -> (NonNull<u8>, usize, Box<dyn Any + Send>) {
        (self.address, self.len, self.owner)
    }
}

impl Exposed {
    /// A mapping of its own, of `len` bytes (rounded up to whole pages by the system), zeroed.
    /// What was asked for and not had is appended to `shortfalls`. With
    /// [`HugePages::Transparent`] all of it has pages when this returns, some 60 us to 2 ms for each 2 MiB later; else it
    /// gets them as it is used.
    ///
    /// # Errors
    /// The system's.
    pub fn map(
        len: usize,
        huge_pages: HugePages,
        shortfalls: &mut Vec<Shortfall>,
    ) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let mapping = Mapping::new(len, huge_pages, false, shortfalls)?;
        if huge_pages == HugePages::Transparent {
            mapping.populate(0..len)?;
        }
        Ok(Self {
            address: mapping.base(),
            len,
            backing: Backing::Mapping(Rc::new(mapping)),
        })
    }

    /// A mapping of its own, zeroed, and the file by which another process [joins](Self::join) it: both
    /// read and write it.
    ///
    /// # Errors
    /// The system's; `INVAL` for no bytes.
    pub fn shared(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let memory = Self::map(len, HugePages::Never, &mut Vec::new())?;
        let Backing::Mapping(mapping) = &memory.backing else {
            unreachable!("it was just mapped");
        };
        let file = mapping.file()?;
        Ok((memory, file))
    }

    /// Joins the memory of another process, which goes on reading and writing it.
    ///
    /// # Errors
    /// [`MapError`]; the file is closed.
    pub fn join(memfd: OwnedFd, len: usize) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::BadRange);
        }
        check_file(&memfd, len as u64)?;
        let mapping = Mapping::of_file(memfd, len)?;
        Ok(Self {
            address: mapping.base(),
            len,
            backing: Backing::Mapping(Rc::new(mapping)),
        })
    }

    /// Exposes memory of somebody else.
    #[must_use]
    pub fn foreign(memory: ForeignMemory) -> Self {
        let ForeignMemory {
            address,
            len,
            owner,
        } = memory;
        let owner: Box<dyn Any> = owner;
        Self {
            address,
            len,
            backing: Backing::Foreign(Rc::new(Foreign {
                address,
                len,
                _owner: owner,
            })),
        }
    }

    pub(super) const fn of_piece(address: NonNull<u8>, len: usize, piece: Rc<Piece>) -> Self {
        Self {
            address,
            len,
            backing: Backing::Piece(piece),
        }
    }

    pub(super) const fn of_shared(address: NonNull<u8>, len: usize, here: Rc<Here>) -> Self {
        Self {
            address,
            len,
            backing: Backing::Shared(here),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is an empty slice.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins, as a number: peers that name memory by address know it by this.
    #[must_use]
    pub fn start(&self) -> usize {
        self.address.as_ptr().addr()
    }

    /// The chunk in which it lies, if it is a piece of an arena.
    #[must_use]
    pub fn chunk(&self) -> Option<ChunkHandle> {
        match &self.backing {
            Backing::Piece(piece) => Some(piece.chunk()),
            Backing::Mapping(_) | Backing::Shared(_) | Backing::Foreign(_) => None,
        }
    }

    /// First address and length of the mapping that it is a part of, if it has one of its own
    /// ([`Exposed::map`]): all of that is exposed memory.
    #[must_use]
    pub fn mapping(&self) -> Option<(usize, usize)> {
        let mapping = match &self.backing {
            Backing::Mapping(mapping) => &**mapping,
            Backing::Shared(here) => here.mapping()?,
            Backing::Piece(_) | Backing::Foreign(_) => return None,
        };
        Some((mapping.base().as_ptr().addr(), mapping.len()))
    }

    /// All of the memory of which it is a part.
    #[must_use]
    pub fn extent(&self) -> Extent {
        match &self.backing {
            Backing::Piece(piece) => piece.extent(),
            Backing::Mapping(mapping) => Extent::of_mapping(mapping),
            Backing::Shared(here) => Extent::of_shared(here),
            Backing::Foreign(foreign) => Extent::of_foreign(foreign),
        }
    }

    /// What another process of this host needs to map it for reading ([`View`](super::View)). From the
    /// first time on no other writing mapping of that memory can be made.
    ///
    /// Who gets it can read the whole file: an arena's chunk with all of its neighbours, unless
    /// [`Share::is_whole`]; and goes on reading it as long as it likes, whatever comes to lie there.
    ///
    /// # Errors
    /// The system's; `OPNOTSUPP` for memory of somebody else, of which no file is known.
    pub fn share(&self) -> Result<Share, Errno> {
        let chunk;
        let mapping = match &self.backing {
            Backing::Mapping(mapping) => &**mapping,
            Backing::Shared(here) => here.mapping().ok_or(Errno::OPNOTSUPP)?,
            Backing::Piece(piece) => {
                chunk = piece.chunk();
                chunk.mapping()
            }
            Backing::Foreign(_) => return Err(Errno::OPNOTSUPP),
        };
        let offset_bytes = (self.start() - mapping.base().as_ptr().addr()) as u64;
        Ok(Share {
            memfd: mapping.share()?,
            offset_bytes,
            len_bytes: self.len as u64,
            is_whole: offset_bytes == 0 && self.len == mapping.len(),
        })
    }

    /// The part `start..start + len`, which keeps the whole.
    ///
    /// # Panics
    /// If the part does not lie inside.
    #[must_use]
    #[inline]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        self.check(start, len);
        // SAFETY: the check keeps address+start inside the memory that `backing` (cloned below)
        // keeps. Ends when the new handle drops.
        let address = unsafe { self.address.add(start) };
        Self {
            address,
            len,
            backing: self.backing.clone(),
        }
    }

    /// Copies `bytes` to `start`.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn copy_in(&self, start: usize, bytes: &[u8]) {
        self.check(start, bytes.len());
        let to = self.address.as_ptr().wrapping_add(start);
        // SAFETY: the check keeps the target inside memory that `self` keeps, and no reference to
        // it exists, so `bytes` lies elsewhere. Ends with the copy.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies from `start` on over all of `bytes`.
    ///
    /// # Panics
    /// If the source does not lie inside.
    pub fn copy_out(&self, start: usize, bytes: &mut [u8]) {
        self.check(start, bytes.len());
        let from = self.address.as_ptr().wrapping_add(start);
        // SAFETY: as in `copy_in`, the other way.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Copies from `start` on over all of `bytes`, to stay there: what has 4 KiB or more is written past the caches, where the
    /// processor can. The CRC32C of the copy, also if somebody writes meanwhile.
    ///
    /// # Panics
    /// If the source does not lie inside.
    pub fn copy_out_summed(&self, start: usize, bytes: &mut [u8]) -> u32 {
        self.check(start, bytes.len());
        let from = self.address.as_ptr().wrapping_add(start);
        // SAFETY: as in `copy_out`; `bytes` is borrowed exclusively.
        unsafe { copy_summed(from, bytes.as_mut_ptr(), bytes.len(), Then::Kept) }
    }

    /// Copies all of `from` to `start`. The two may overlap.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn copy_from(&self, start: usize, from: &Self) {
        self.check(start, from.len);
        let to = self.address.as_ptr().wrapping_add(start);
        // SAFETY: both ranges lie inside memory that the handles keep, and `copy` allows them to
        // overlap. Ends with the copy.
        unsafe { to.copy_from(from.address.as_ptr(), from.len) };
    }

    /// The bytes, copied.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_out(0, &mut bytes);
        bytes
    }

    /// Folds the bytes into a checksum. If somebody writes them meanwhile, the checksum fits neither
    /// what was there nor what is.
    pub fn fold(&self, checksum: &mut Crc32c) {
        // SAFETY: the range lies inside memory that `self` keeps, initialised. A device may change it
        // meanwhile: the fold reads bytes into registers and draws no conclusion from them, so that
        // its result may be wrong, and nothing else. Ends with the call.
        checksum.fold(unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) });
    }

    /// The checksum of the bytes. See [`Exposed::fold`].
    #[must_use]
    pub fn crc32c(&self) -> u32 {
        let mut checksum = Crc32c::new();
        self.fold(&mut checksum);
        checksum.value()
    }

    /// Ends the exposure, if this is the only handle and names a whole region of an arena.
    ///
    /// # Errors
    /// The handle itself: an operation in flight still pins it, or it never was a region.
    pub fn try_reclaim(self) -> Result<RegionMut, Self> {
        let Self {
            address,
            len,
            backing,
        } = self;
        match backing {
            Backing::Piece(piece) => {
                RegionMut::of_only(address, len, piece).map_err(|piece| Self {
                    address,
                    len,
                    backing: Backing::Piece(piece),
                })
            }
            backing => Err(Self {
                address,
                len,
                backing,
            }),
        }
    }

    /// The first byte, for a device.
    pub(crate) const fn address(&self) -> NonNull<u8> {
        self.address
    }

    #[inline]
    fn check(&self, start: usize, len: usize) {
        let end = start.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{start}+{len} of exposed memory of {} bytes",
            self.len
        );
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exposed({:?}+{:#x})", self.address, self.len)
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignMemory({:?}+{:#x})", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lunette_runtime_core::checksum::crc32c;

    use super::*;
    use crate::arena::{Arena, ArenaOptions};

    #[test]
    fn bytes_go_in_and_out_and_over() {
        let arena = Arena::new(ArenaOptions::default());
        let memory = arena.alloc(100).expect("room").expose();
        memory.copy_in(0, &[0; 100]);
        memory.copy_in(10, b"abc");
        let part = memory.slice(10, 3);
        assert_eq!((part.to_vec().as_slice(), part.len()), (&b"abc"[..], 3));
        assert_eq!(part.crc32c(), crc32c(b"abc"));
        memory.copy_from(11, &part);
        let mut out = [0; 5];
        memory.copy_out(10, &mut out);
        let mut summed = [1; 5];
        assert_eq!(memory.copy_out_summed(10, &mut summed), crc32c(&out));
        assert_eq!(summed, out);
        assert_eq!(&out, b"aabc\0", "overlapping");
        assert!(memory.slice(100, 0).is_empty());
    }

    #[test]
    fn an_exposure_ends_when_nobody_else_holds_it() {
        let arena = Arena::new(ArenaOptions::default());
        let memory = arena.alloc(100).expect("room").expose();
        let pin = memory.slice(50, 1);
        let memory = memory.try_reclaim().expect_err("pinned");
        drop(pin);
        let region = memory.try_reclaim().expect("the only handle");
        assert_eq!(region.len(), 100);
        drop(region);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn a_mapping_is_zeroed_and_longer_than_any_region() {
        let len = crate::arena::REGION_BYTES_MAX + 1;
        let memory = Exposed::map(len, HugePages::Never, &mut Vec::new()).expect("memory");
        memory.copy_in(len - 1, &[7]);
        assert_eq!(memory.slice(len - 2, 2).to_vec(), [0, 7]);
        assert!(memory.try_reclaim().is_err(), "never was a region");
        let part = Exposed::map(4096, HugePages::Never, &mut Vec::new()).expect("memory");
        let base = part.start();
        assert_eq!(part.slice(9, 7).mapping(), Some((base, 4096)));
        let nothing = Exposed::map(0, HugePages::Never, &mut Vec::new());
        assert_eq!(nothing.err(), Some(Errno::INVAL));
    }

    #[test]
    fn two_that_share_memory_both_write_it() {
        let (ours, file) = Exposed::shared(8192).expect("memory");
        let theirs = Exposed::join(file, 8192).expect("sealed");
        assert_ne!(ours.start(), theirs.start(), "two mappings");
        ours.copy_in(5000, b"ask");
        assert_eq!(theirs.slice(5000, 3).to_vec(), b"ask");
        theirs.copy_in(5000, b"act");
        drop(theirs);
        assert_eq!(ours.slice(5000, 3).to_vec(), b"act");
    }

    #[test]
    fn memory_that_could_fault_or_is_not_to_be_written_is_not_joined() {
        let (_ours, file) = Exposed::shared(4096).expect("memory");
        let again = || file.try_clone().expect("a descriptor");
        let error = Exposed::join(again(), 4097).expect_err("it ends before");
        assert_eq!(error, MapError::TooShort { file_bytes: 4096 });
        assert_eq!(Exposed::join(again(), 0).err(), Some(MapError::BadRange));
        let plain = std::fs::File::open("/proc/self/exe").expect("a program");
        let error = Exposed::join(plain.into(), 1).expect_err("it may shrink");
        assert_eq!(error, MapError::NotSealed);
        let shown = Exposed::map(4096, HugePages::Never, &mut Vec::new()).expect("memory");
        let share = shown.share().expect("for reading");
        let error = Exposed::join(share.memfd, 4096).expect_err("for reading alone");
        assert_eq!(error, MapError::Os(Errno::PERM));
    }

    #[test]
    fn foreign_memory_keeps_its_owner_until_the_last_handle() {
        let owner = Arc::new(());
        let mut bytes = vec![1_u8; 8];
        let address = NonNull::from(bytes.as_mut_slice()).cast();
        // SAFETY: `bytes` lives to the end of the test and is not touched before.
        let foreign = unsafe { ForeignMemory::new(address, 8, Box::new(Arc::clone(&owner))) };
        let memory = std::thread::spawn(move || {
            let memory = Exposed::foreign(foreign);
            memory.copy_in(0, b"there");
            memory.slice(2, 2).to_vec()
        });
        assert_eq!(memory.join().expect("no panic"), b"er");
        assert_eq!(Arc::strong_count(&owner), 1, "given up");
        assert_eq!(bytes, b"there\x01\x01\x01");
    }

    #[test]
    #[should_panic(expected = "of exposed memory of 10 bytes")]
    fn a_part_beyond_the_end_is_refused() {
        let arena = Arena::new(ArenaOptions::default());
        let memory = arena.alloc(10).expect("room").expose();
        let _part = memory.slice(usize::MAX, 2);
    }
}
