//! Memory that several cores of a process reach.

use std::any::Any;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use lunette_runtime_core::checksum::Crc32c;
use rustix::io::Errno;

use super::exposed::{Exposed, ForeignMemory};
use super::mapping::Mapping;
use super::share::View;
use super::summed::{Then, copy_summed};
use super::{HugePages, Shortfall};

/// Memory that several cores of this process are to reach. Each makes a handle of its own
/// ([`here`](Self::here)), so that operations count on their core alone. Clones name the same memory, which
/// stays as long as any of them and any core's handle.
#[derive(Clone)]
pub struct SharedMemory(Arc<Whole>);

struct Whole {
    address: NonNull<u8>,
    len: usize,
    keeper: Keeper,
}

enum Keeper {
    Mapping(Mapping),
    /// A vector's, with this capacity.
    Owned {
        capacity: usize,
    },
    /// Never looked at again, and dropped by whoever is last.
    Foreign {
        _owner: Box<dyn Any + Send>,
    },
    /// It has been given back.
    Taken,
}

// SAFETY: the bytes are exposed memory, which any thread may read and write by copies (`Exposed`), and who
// named foreign memory vouched for it on any thread (`ForeignMemory::new`). A mapping is unmapped, a vector
// freed and an owner dropped once, by the last handle; `Mapping` has no state that changes. Holds as long as
// the value.
unsafe impl Send for Whole {}

// SAFETY: as above; a shared `Whole` gives out its address, its length and its mapping, which threads share
// as they share any memory and descriptor, and never its owner, which need not be `Sync` therefore. Holds as
// long as the value.
unsafe impl Sync for Whole {}

impl Whole {
    /// The vector whose bytes it had, if it was one.
    fn take_owned(&mut self) -> Option<Vec<u8>> {
        let Keeper::Owned { capacity } = self.keeper else {
            return None;
        };
        let (address, len) = (self.address.as_ptr(), self.len);
        self.keeper = Keeper::Taken;
        // SAFETY: address, length and capacity are those of a vector that was taken apart in
        // `SharedMemory::owned`; exclusive access says that no handle reaches the bytes any more; and the
        // keeper, which is another one now, says that it is put together once. Ends with the call.
        Some(unsafe { Vec::from_raw_parts(address, len, capacity) })
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        drop(self.take_owned());
    }
}

/// One core's hold on shared memory.
pub(super) struct Here {
    whole: Arc<Whole>,
    _keeps: Arc<dyn Any + Send + Sync>,
}

impl Here {
    /// First byte and length of all of it.
    pub(super) fn whole(&self) -> (NonNull<u8>, usize) {
        (self.whole.address, self.whole.len)
    }

    pub(super) fn mapping(&self) -> Option<&Mapping> {
        match &self.whole.keeper {
            Keeper::Mapping(mapping) => Some(mapping),
            Keeper::Owned { .. } | Keeper::Foreign { .. } | Keeper::Taken => None,
        }
    }
}

impl SharedMemory {
    /// A mapping of its own. See [`Exposed::map`].
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
        Ok(Self(Arc::new(Whole {
            address: mapping.base(),
            len,
            keeper: Keeper::Mapping(mapping),
        })))
    }

    /// A mapping of its own, zeroed, and the file by which another process [joins](Exposed::join) it: both read and write it.
    ///
    /// # Errors
    /// The system's; `INVAL` for no bytes.
    pub fn shared(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let memory = Self::map(len, HugePages::Never, &mut Vec::new())?;
        let Keeper::Mapping(mapping) = &memory.0.keeper else {
            unreachable!("it was just mapped");
        };
        let file = mapping.file()?;
        Ok((memory, file))
    }

    /// Memory of somebody else, whose owner is dropped by whoever is last, on whatever thread.
    #[must_use]
    pub fn foreign(memory: ForeignMemory) -> Self {
        let (address, len, owner) = memory.into_parts();
        Self(Arc::new(Whole {
            address,
            len,
            keeper: Keeper::Foreign { _owner: owner },
        }))
    }

    /// The bytes of a vector, which can be had back ([`into_bytes`](Self::into_bytes)).
    #[must_use]
    pub fn owned(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let (len, capacity) = (bytes.len(), bytes.capacity());
        let address = NonNull::new(bytes.as_mut_ptr()).expect("a vector's bytes are somewhere");
        Self(Arc::new(Whole {
            address,
            len,
            keeper: Keeper::Owned { capacity },
        }))
    }

    /// The vector again, with whatever has come to lie in it.
    ///
    /// # Errors
    /// The memory, if it never was a vector's, or if somebody still has a handle to it.
    pub fn into_bytes(self) -> Result<Vec<u8>, Self> {
        let mut whole = self.0;
        let taken = Arc::get_mut(&mut whole).and_then(Whole::take_owned);
        taken.ok_or(Self(whole))
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> usize {
        self.0.address.as_ptr().addr()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it names no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Copies `bytes` to `start`, on whatever thread.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn copy_in(&self, start: usize, bytes: &[u8]) {
        self.check(start, bytes.len());
        let to = self.0.address.as_ptr().wrapping_add(start);
        // SAFETY: the check keeps the target inside memory that `self` keeps, and no reference to it exists, so
        // `bytes` lies elsewhere. Ends with the copy.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies `len` bytes of `from`, from `from_start` on, to `start`, on whatever thread. The two may overlap.
    ///
    /// # Panics
    /// If either does not lie inside.
    pub fn copy_from(&self, start: usize, from: &Self, from_start: usize, len: usize) {
        self.check(start, len);
        from.check(from_start, len);
        let to = self.0.address.as_ptr().wrapping_add(start);
        let from = from.0.address.as_ptr().wrapping_add(from_start);
        if (to.addr()).abs_diff(from.addr()) >= len {
            // SAFETY: the checks keep both inside memory that `self` and `from` keep, and they do not overlap; nobody holds a
            // reference to either. Ends with the copy.
            let _crc32c = unsafe { copy_summed(from, to, len, Then::Read) };
            return;
        }
        // SAFETY: as above, and `copy` allows them to overlap. Ends with the copy.
        unsafe { to.copy_from(from, len) };
    }

    /// Copies `len` bytes of a view, from `from` on, to `start`, on whatever thread; the CRC32C of what is there then. What
    /// the view's owner writes meanwhile may be in the copy or not.
    ///
    /// # Panics
    /// If either does not lie inside.
    pub fn copy_in_view(&self, start: usize, view: &View, from: usize, len: usize) -> u32 {
        self.check(start, len);
        let (from, to) = (
            view.source(from, len),
            self.0.address.as_ptr().wrapping_add(start),
        );
        // SAFETY: the source lies in the view's mapping, which is borrowed, and may be written meanwhile, as `copy_summed`
        // allows; the check keeps the target inside memory that `self` keeps, which is no part of a mapping that was made
        // for a view alone, and to which no reference exists. Ends with the copy.
        unsafe { copy_summed(from, to, len, Then::Read) }
    }

    /// Copies from `start` on over all of `bytes`, on whatever thread, to stay there: what has 4 KiB or more is written past the
    /// caches, where the processor can. The CRC32C of the copy.
    ///
    /// # Panics
    /// If the source does not lie inside.
    pub fn copy_out_summed(&self, start: usize, bytes: &mut [u8]) -> u32 {
        self.check(start, bytes.len());
        let from = self.0.address.as_ptr().wrapping_add(start);
        // SAFETY: the check keeps the source inside memory that `self` keeps; `bytes` is borrowed exclusively, so it
        // lies elsewhere. Ends with the copy.
        unsafe { copy_summed(from, bytes.as_mut_ptr(), bytes.len(), Then::Kept) }
    }

    /// Receives what has come at a socket, on whatever thread, to the front of these bytes, of which there are some: how many.
    ///
    /// # Errors
    /// The system's; `AGAIN` if nothing has come.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub(crate) fn receive(
        &self,
        range: Range<usize>,
        socket: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        self.check(range.start, range.len());
        let to = self.0.address.as_ptr().wrapping_add(range.start);
        let socket = socket.as_raw_fd();
        // SAFETY: the check keeps the target inside memory that `self` keeps, to which no reference exists; the system writes
        // it as another thread that has a handle may, and not after this call. Ends with the call.
        let got = unsafe { libc::recv(socket, to.cast(), range.len(), libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| {
            let error = io::Error::last_os_error();
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    }

    /// Folds these bytes into a checksum, on whatever thread. See [`Exposed::fold`].
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn fold(&self, range: Range<usize>, checksum: &mut Crc32c) {
        self.check(range.start, range.len());
        let from = self.0.address.as_ptr().wrapping_add(range.start);
        // SAFETY: the check keeps the range inside memory that `self` keeps, initialised. Others may change it meanwhile: the
        // fold reads bytes into registers and draws no conclusion from them, so that its result may be wrong, and nothing
        // else. Ends with the call.
        checksum.fold(unsafe { slice::from_raw_parts(from, range.len()) });
    }

    fn check(&self, start: usize, len: usize) {
        let end = start.checked_add(len);
        let is_inside = end.is_some_and(|end| end <= self.0.len);
        assert!(is_inside, "{start}+{len} of {}", self.0.len);
    }

    /// A handle for this core. `keeps` is kept by it, its slices and the operations that hold them: it is let
    /// go when no operation of this core reaches the memory any more.
    #[must_use]
    pub fn here(&self, keeps: Arc<dyn Any + Send + Sync>) -> Exposed {
        let here = Here {
            whole: Arc::clone(&self.0),
            _keeps: keeps,
        };
        Exposed::of_shared(self.0.address, self.0.len, Rc::new(here))
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({:?}+{:#x})", self.0.address, self.0.len)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use lunette_runtime_core::checksum::crc32c;

    use super::*;

    #[test]
    fn threads_reach_the_same_bytes_and_each_keeps_what_it_is_given() {
        let memory = SharedMemory::map(8192, HugePages::Never, &mut Vec::new()).expect("memory");
        let kept = Arc::new(());
        let ours = memory.here(Arc::clone(&kept) as Arc<_>);
        let (theirs, given) = (memory.clone(), Arc::clone(&kept));
        let thread = thread::spawn(move || {
            let here = theirs.here(given);
            let part = here.slice(5000, 5);
            drop(here);
            part.copy_in(0, b"there");
            part.mapping()
        });
        let seen = thread.join().expect("no panic");
        assert_eq!(seen, Some((memory.start(), 8192)));
        assert_eq!(ours.slice(5000, 5).to_vec(), b"there");
        assert!(ours.share().expect("a mapping").is_whole);
        assert_eq!(Arc::strong_count(&kept), 2, "that thread's is gone");
        let part = ours.slice(0, 1);
        drop((ours, memory));
        assert_eq!(Arc::strong_count(&kept), 2, "a slice keeps it");
        part.copy_in(0, b"x");
        drop(part);
        assert_eq!(Arc::strong_count(&kept), 1);
        let nothing = SharedMemory::map(0, HugePages::Never, &mut Vec::new());
        assert_eq!(nothing.err(), Some(Errno::INVAL));
    }

    #[test]
    fn a_vector_comes_back_when_nobody_reaches_it_any_more() {
        let mut bytes = Vec::with_capacity(100);
        bytes.extend_from_slice(b"bytes of a vector");
        let memory = SharedMemory::owned(bytes);
        let theirs = memory.clone();
        let thread = thread::spawn(move || theirs.here(Arc::new(())).slice(9, 1).copy_in(0, b"A"));
        thread.join().expect("no panic");
        let here = memory.here(Arc::new(()));
        assert!(here.mapping().is_none() && here.share().is_err());
        let memory = memory.into_bytes().expect_err("a handle is left");
        drop(here);
        let bytes = memory.into_bytes().expect("the last one");
        assert_eq!(
            (bytes.as_slice(), bytes.capacity()),
            (&b"bytes of A vector"[..], 100)
        );
        drop(SharedMemory::owned(bytes));
        assert!(SharedMemory::owned(Vec::new()).is_empty());
        let mapped = SharedMemory::map(1, HugePages::Never, &mut Vec::new()).expect("memory");
        assert!(mapped.into_bytes().is_err(), "never was a vector");
    }

    #[test]
    fn any_thread_copies_to_it() {
        let memory = SharedMemory::owned(vec![0; 4]);
        let theirs = memory.clone();
        let thread = thread::spawn(move || theirs.copy_in(1, b"abc"));
        thread.join().expect("no panic");
        for (start, len) in [(2, 3), (5, 0), (usize::MAX, 1)] {
            let bytes = vec![1; len];
            let outside = AssertUnwindSafe(|| memory.copy_in(start, &bytes));
            assert!(catch_unwind(outside).is_err(), "{start}+{len}");
        }
        let mut copied = [0; 2];
        let sum = memory.copy_out_summed(2, &mut copied);
        assert_eq!((copied, sum), (*b"bc", crc32c(b"bc")));
        let outside = AssertUnwindSafe(|| memory.copy_out_summed(3, &mut [0; 2]));
        assert!(catch_unwind(outside).is_err());
        assert_eq!(memory.into_bytes().ok(), Some(b"\0abc".to_vec()));
    }

    #[test]
    fn bytes_go_from_memory_to_memory_and_another_process_joins_what_has_a_file() {
        let (window, file) = SharedMemory::shared(8192).expect("memory");
        let from = SharedMemory::owned(b"what is copied".to_vec());
        window.copy_from(5000, &from, 8, 6);
        let joined = Exposed::join(file, 8192).expect("sealed");
        assert_eq!(joined.slice(5000, 6).to_vec(), b"copied");
        joined.copy_in(5000, b"C");
        window.copy_from(5001, &window, 5000, 6);
        assert_eq!(joined.slice(5000, 7).to_vec(), b"CCopied");
        for (to, start, len) in [(8190, 0, 3), (0, 12, 3), (0, usize::MAX, 1)] {
            let outside = AssertUnwindSafe(|| window.copy_from(to, &from, start, len));
            assert!(catch_unwind(outside).is_err(), "{to} {start}+{len}");
        }
        drop(window);
        assert_eq!(joined.slice(5000, 1).to_vec(), b"C", "it stays");
        assert_eq!(SharedMemory::shared(0).err(), Some(Errno::INVAL));
    }

    #[test]
    fn foreign_memory_keeps_its_owner_until_the_last_core_lets_go() {
        let owner = Arc::new(());
        let mut bytes = vec![1_u8; 8];
        let address = NonNull::from(bytes.as_mut_slice()).cast();
        // SAFETY: `bytes` lives to the end of the test and is not touched before.
        let foreign = unsafe { ForeignMemory::new(address, 8, Box::new(Arc::clone(&owner))) };
        let memory = SharedMemory::foreign(foreign);
        assert_eq!((memory.len(), memory.is_empty()), (8, false));
        let theirs = memory.clone();
        let thread = thread::spawn(move || {
            let here = theirs.here(Arc::new(()));
            assert!(here.mapping().is_none() && here.share().is_err());
            here.slice(2, 2).copy_in(0, b"ab");
        });
        drop(memory);
        thread.join().expect("no panic");
        assert_eq!(Arc::strong_count(&owner), 1, "given up");
        assert_eq!(bytes, b"\x01\x01ab\x01\x01\x01\x01");
    }
}
