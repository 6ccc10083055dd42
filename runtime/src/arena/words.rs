//! Words that processes of one host share, for what they tell each other without a system call.

use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::extent::Extent;
use super::share::{MapError, check_file};

/// A mapped file of words.
pub(super) struct Mapped {
    base: NonNull<AtomicU64>,
    count: usize,
    /// Of words that others can be given.
    memfd: Option<OwnedFd>,
}

/// Words that this process and those that it gives their file to read and write, on any thread. Clones are the same words.
#[derive(Clone)]
pub struct Words(Arc<Mapped>);

/// Words of another process, or of another thread of this one, which are only read here.
pub struct WordsView(Mapped);

// SAFETY: the mapping and its file are its own, and neither knows of threads. Ends with it.
unsafe impl Send for Mapped {}

// SAFETY: what is shared is only used through atomics (`Deref` of `Words`, `load`); the mapping ends in `Drop`, when
// nobody shares it any more. Ends with it.
unsafe impl Sync for Mapped {}

impl Words {
    /// So many words, all 0, in a file of their own. `is_ours` keeps every other process from writing
    /// them.
    ///
    /// # Errors
    /// The system's; `INVAL` for none.
    pub fn new(count: usize, is_ours: bool) -> Result<Self, Errno> {
        let memfd = memfd_create(
            "lunette-words",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        let len = count.checked_mul(8).ok_or(Errno::INVAL)?;
        ftruncate(&memfd, len as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&memfd, seals)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let mut mapped = Mapped::new(&memfd, count, both)?;
        if is_ours {
            fcntl_add_seals(&memfd, SealFlags::FUTURE_WRITE)?;
        }
        mapped.memfd = Some(memfd);
        Ok(Self(Arc::new(mapped)))
    }

    /// Maps the words of another process, to read and write them.
    ///
    /// # Errors
    /// [`MapError`]; the file is closed.
    pub fn map(memfd: OwnedFd, count: usize) -> Result<Self, MapError> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let mut mapped = Mapped::foreign(&memfd, count, both)?;
        mapped.memfd = Some(memfd);
        Ok(Self(Arc::new(mapped)))
    }
}

impl Words {
    /// All of them, for a device that reads them.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent::of_words(&self.0)
    }

    /// Has this thread sleep until somebody wakes it by this word ([`wake`](Self::wake)), here or in another process that has
    /// these words, and no longer than `timeout`. It does not sleep if the word's lower half is not that of `value` any more:
    /// so who changes it, and wakes then, is never missed. It may wake for no reason. Not for a core's thread.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn sleep(&self, index: usize, value: u64, timeout: Duration) {
        let lower = u32::try_from(value & u64::from(u32::MAX)).expect("a half");
        // Longer than anybody lives.
        let timeout = Timespec::try_from(timeout).ok();
        let slept = futex::wait(
            self.lower_half(index),
            futex::Flags::empty(),
            lower,
            timeout.as_ref(),
        );
        match slept {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(errno) => unreachable!("a word that is mapped is slept on: {errno}"),
        }
    }

    /// Wakes all who [sleep](Self::sleep) on this word: after it was changed. A system call.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn wake(&self, index: usize) {
        let woken = futex::wake(self.lower_half(index), futex::Flags::empty(), u32::MAX >> 1);
        debug_assert!(woken.is_ok(), "a word that is mapped is woken by");
    }

    /// For the system, which compares it; here it is never read or written by itself.
    fn lower_half(&self, index: usize) -> &AtomicU32 {
        let word = ptr::from_ref(&self[index]).cast::<AtomicU32>();
        let half = if cfg!(target_endian = "big") { 1 } else { 0 };
        // SAFETY: either half of a word lies in it, is aligned as half of it is, and as long-lived as the borrow; no access is
        // made through it in this program, whose atomics would be of another size than the word's (std::sync::atomic, "mixed
        // sizes"): both callers hand it to the system. Ends with the borrow.
        unsafe { &*word.wrapping_add(half) }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: base..base+count is the live mapping that `self` owns, aligned to pages and
        // initialised by the system; it is only ever used through atomics, here and in every process
        // that keeps to the rules (one that does not can spoil values, and no more). Ends with the borrow.
        unsafe { slice::from_raw_parts(self.0.base.as_ptr(), self.0.count) }
    }
}

impl AsFd for Words {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let memfd = self.0.memfd.as_ref();
        memfd.expect("words that are written have theirs").as_fd()
    }
}

impl WordsView {
    /// Maps the words of another process, to read them. The file is closed.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(memfd: OwnedFd, count: usize) -> Result<Self, MapError> {
        Mapped::foreign(&memfd, count, ProtFlags::READ).map(Self)
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "there is one at least")]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.count
    }

    /// A word. What its owner wrote before it is seen by whoever reads after it, and what was read before
    /// it, the owner wrote before whatever follows the word there.
    ///
    /// # Panics
    /// If there is no such word.
    #[must_use]
    pub fn load(&self, index: usize) -> u64 {
        assert!(index < self.0.count, "word {index} of {}", self.0.count);
        // SAFETY: the assert keeps the word inside the mapping that `self` owns. Ends with the load.
        let word = unsafe { self.0.base.add(index) };
        fence(Ordering::Acquire);
        // SAFETY: the word is mapped, aligned and initialised, and a relaxed load of one works on memory
        // that may not be written (std::sync::atomic, "read-only memory"). Ends with the load.
        let value = unsafe { word.as_ref() }.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }
}

impl Mapped {
    /// Where it begins, and its length in bytes.
    pub(super) const fn whole(&self) -> (NonNull<u8>, usize) {
        (self.base.cast(), self.count * size_of::<AtomicU64>())
    }

    fn foreign(memfd: &OwnedFd, count: usize, protection: ProtFlags) -> Result<Self, MapError> {
        let len = count.checked_mul(8).filter(|&len| len > 0);
        check_file(memfd.as_fd(), len.ok_or(MapError::BadRange)? as u64)?;
        Ok(Self::new(memfd, count, protection)?)
    }

    /// Maps a file that cannot shrink and is long enough.
    fn new(memfd: &OwnedFd, count: usize, protection: ProtFlags) -> Result<Self, Errno> {
        let len = count * size_of::<AtomicU64>();
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing, and the file
        // has `len` bytes and is sealed against shrinking (both callers), so no access faults. Ends at the
        // munmap in `Drop`.
        let base =
            unsafe { mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, memfd, 0) }?;
        let base = NonNull::new(base.cast()).expect("the kernel never maps at null");
        Ok(Self {
            base,
            count,
            memfd: None,
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let len = self.count * size_of::<AtomicU64>();
        // SAFETY: the mapping was made by `new` and is owned by `self` alone. Ends with the call.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast::<c_void>(), len) };
        debug_assert_eq!(unmapped, Ok(()), "unmapping an owned mapping");
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({})", self.0.count)
    }
}

impl fmt::Debug for WordsView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WordsView({})", self.0.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duplicate(words: &Words) -> OwnedFd {
        words.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    #[test]
    fn a_view_sees_what_is_stored_and_both_sides_of_shared_words_write() {
        let ours = Words::new(1000, true).expect("memory");
        let view = WordsView::map(duplicate(&ours), 1000).expect("sealed");
        ours[999].store(7, Ordering::Release);
        assert_eq!((view.load(999), view.load(0)), (7, 0));

        let words = Words::new(2, false).expect("memory");
        let other = Words::map(duplicate(&words), 2).expect("sealed");
        other[1].store(9, Ordering::Release);
        words[0].store(8, Ordering::Release);
        assert_eq!(words[1].load(Ordering::Acquire), 9);
        assert_eq!(other[0].load(Ordering::Acquire), 8);
    }

    #[test]
    fn words_that_are_ours_are_not_written_by_others_and_no_file_is_trusted() {
        let ours = Words::new(2, true).expect("memory");
        let error = Words::map(duplicate(&ours), 2).expect_err("sealed");
        assert_eq!(error, MapError::Os(Errno::PERM));
        let error = WordsView::map(duplicate(&ours), 3).expect_err("too short");
        assert_eq!(error, MapError::TooShort { file_bytes: 16 });
        let error = WordsView::map(duplicate(&ours), usize::MAX).expect_err("it wraps");
        assert_eq!(error, MapError::BadRange);
        assert_eq!(Words::new(0, true).err(), Some(Errno::INVAL));
    }

    #[test]
    fn who_sleeps_on_a_word_is_woken_by_whoever_has_it() {
        let words = Words::new(2, false).expect("memory");
        let other = Words::map(duplicate(&words), 2).expect("sealed");
        let long = Duration::from_secs(3600);
        words[1].store(8, Ordering::Relaxed);
        words.sleep(1, 7, long);
        words.sleep(1, 8, Duration::from_millis(1));
        // Only the lower half is looked at.
        words[1].store(1 << 40 | 5, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while other[1].load(Ordering::Acquire) & 0xff == 5 {
                    other.sleep(1, 5, long);
                }
                other[0].store(1, Ordering::Release);
            });
            words[1].store(6, Ordering::Release);
            words.wake(1);
        });
        assert_eq!(words[0].load(Ordering::Acquire), 1);
    }

    #[test]
    #[should_panic(expected = "word 2 of 2")]
    fn a_word_beyond_the_end_is_refused() {
        let ours = Words::new(2, true).expect("memory");
        let view = WordsView::map(duplicate(&ours), 2).expect("sealed");
        let _word = view.load(2);
    }
}
