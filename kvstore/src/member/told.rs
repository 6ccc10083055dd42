//! The reads that those who look on tell a core of, as eviction is by use: a ring of words of who tells, which the core looks
//! at from time to time. What it has not heard of when the ring has gone round is forgotten.
//!
//! ```text
//!   0       reads that were told, ever
//!   1       how many of them have been heard, as the core says
//!   8 ..    the last 4,096: the entry, counted from 1, and the lower half of its number in the upper one
//! ```
//!
//! A read is only a hint: whoever tells what is not so moves what was not read to the end of the line.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunette_runtime::arena::{MapError, Words};

/// Reads that are told between two turns of the core.
const TOLD_MAX: u64 = 4096;

const BEGUN: usize = 0;
const HEARD: usize = 1;
const READS: usize = 8;
/// How many words it is of.
pub(crate) const TOLD_WORDS: usize = READS + 4096;

/// The lower half of a number, in the upper half of a word.
const UPPER: u64 = u64::MAX << 32;

/// A ring. Clones, and what has mapped its file, are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Told(Words);

impl Told {
    /// One of this process.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Words::new(TOLD_WORDS, false)?))
    }

    /// One that somebody else has handed out.
    ///
    /// # Errors
    /// [`MapError`].
    pub(super) fn map(file: OwnedFd) -> Result<Self, MapError> {
        Words::map(file, TOLD_WORDS).map(Self)
    }

    /// For the core.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn file(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        let index = usize::try_from(number % TOLD_MAX).expect("below their number");
        &self.0[READS + index]
    }

    /// Tells of a read. Whether the core should hear soon, or reads are forgotten.
    pub(super) fn tell(&self, entry: u32, number: u64) -> bool {
        let mine = self.0[BEGUN].fetch_add(1, Ordering::Relaxed);
        let read = u64::from(entry + 1) | number << 32;
        self.place(mine).store(read, Ordering::Release);
        // The core may have heard of it meanwhile.
        let heard = self.0[HEARD].load(Ordering::Relaxed);
        mine.saturating_sub(heard) == TOLD_MAX / 2
    }
}

/// A ring, as the core listens to it.
#[derive(Debug)]
struct Listening {
    told: Told,
    heard: u64,
    /// Shared with who tells.
    kept: Arc<()>,
}

impl Listening {
    /// Those since the last time: entry, and the lower half of the number that stood for it, in the upper one.
    fn hear(&mut self, mut each: impl FnMut(u32, u64)) {
        let begun = self.told.0[BEGUN].load(Ordering::Relaxed);
        let first = self.heard.max(begun.saturating_sub(TOLD_MAX));
        for place in first..begun {
            let read = self.told.place(place).swap(0, Ordering::Acquire);
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            let entry = (read as u32).checked_sub(1);
            if let Some(entry) = entry {
                each(entry, read & UPPER);
            }
        }
        self.heard = begun;
        self.told.0[HEARD].store(begun, Ordering::Relaxed);
    }
}

/// All rings that a core listens to: one for each that looks on.
#[derive(Debug, Default)]
pub(super) struct Hearing(Vec<Listening>);

impl Hearing {
    /// Another one, for as long as what is returned is kept.
    pub(super) fn listen_to(&mut self, told: Told) -> Arc<()> {
        let kept = Arc::new(());
        self.0.push(Listening {
            told,
            heard: 0,
            kept: Arc::clone(&kept),
        });
        kept
    }

    /// The reads since the last time: entry, and the lower half of the number that stood for it, in the upper one.
    pub(super) fn hear(&mut self, mut each: impl FnMut(u32, u64)) {
        for listening in &mut self.0 {
            listening.hear(&mut each);
        }
        self.0
            .retain(|listening| Arc::strong_count(&listening.kept) > 1);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn begin() -> (Told, Hearing, Arc<()>) {
        let told = Told::new().expect("memory");
        let mut hearing = Hearing::default();
        let theirs = Told::map(told.file().expect("a descriptor")).expect("as long");
        let kept = hearing.listen_to(theirs);
        (told, hearing, kept)
    }

    #[test]
    fn reads_are_heard_once_and_the_oldest_are_forgotten() {
        let (told, mut hearing, kept) = begin();
        let mut heard = || {
            let mut heard = Vec::new();
            hearing.hear(|entry, number| heard.push((entry, number >> 32)));
            heard
        };
        assert!(!told.tell(0, 9) && !told.tell(u32::MAX - 1, 1 << 32 | 8));
        assert_eq!(
            heard(),
            [(0, 9), (u32::MAX - 1, 8)],
            "the lower half of each number"
        );
        assert_eq!(heard(), []);
        let count = u32::try_from(TOLD_MAX + 10).expect("few");
        let should_hear = (0..count).filter(|&entry| told.tell(entry, 1));
        assert_eq!(should_hear.count(), 1, "once, halfway");
        let last: Vec<_> = (10..count).map(|entry| (entry, 1)).collect();
        assert_eq!(heard(), last);
        drop(kept);
        told.tell(3, 3);
        assert_eq!(heard(), [(3, 3)], "a last time");
        told.tell(4, 4);
        assert_eq!(heard(), [], "nobody listens any more");
    }

    #[test]
    fn several_tell_and_who_tells_nonsense_is_heard_for_so_long() {
        let (told, mut hearing, _kept) = begin();
        let other = Told::new().expect("memory");
        let _other_kept = hearing.listen_to(other.clone());
        for place in 0..TOLD_MAX {
            told.place(place).store(u64::MAX, Ordering::Relaxed);
        }
        told.0[BEGUN].store(u64::MAX, Ordering::Relaxed);
        told.0[HEARD].store(7, Ordering::Relaxed);
        other.tell(5, 6);
        let mut heard = Vec::new();
        hearing.hear(|entry, _| heard.push(entry));
        let nonsense = usize::try_from(TOLD_MAX).expect("few");
        assert_eq!(heard.len(), nonsense + 1);
        assert_eq!(heard.last(), Some(&5));
        // It goes round, and is heard no more.
        told.0[BEGUN].store(3, Ordering::Relaxed);
        hearing.hear(|entry, _| heard.push(entry));
        assert_eq!(heard.len(), nonsense + 1);
    }

    #[test]
    fn threads_tell_while_the_core_hears() {
        let (told, mut hearing, _kept) = begin();
        let mut heard = 0;
        thread::scope(|scope| {
            let tellers = [(); 2].map(|()| {
                scope.spawn(|| (0..200_000).filter(|&entry| told.tell(entry, 1)).count())
            });
            while !tellers.iter().all(thread::ScopedJoinHandle::is_finished) {
                hearing.hear(|_, _| heard += 1);
            }
        });
        hearing.hear(|_, _| heard += 1);
        assert!((1..=400_000).contains(&heard), "{heard}");
    }
}
