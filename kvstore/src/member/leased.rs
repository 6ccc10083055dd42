//! Until when others may rely on what a core shows: as long as the node's lease is sure to last. A core that does nothing
//! any more cannot take anything back, and others take over what it had.
//!
//! ```text
//!   0       until when, by the clock of the host, in nanoseconds
//!   1       which clock that is
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunette_runtime::HostClock;
use lunette_runtime::arena::{Words, WordsView};

const UNTIL_NS: usize = 0;
const CLOCK: usize = 1;
/// How many words it is of.
pub(crate) const LEASED_WORDS: usize = 2;

/// The lease, as a core tells it.
#[derive(Debug)]
pub(crate) struct Leased {
    words: Words,
    clock: HostClock,
}

impl Leased {
    /// One that has ended.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new() -> io::Result<Self> {
        let clock = HostClock::of_process();
        let words = Words::new(LEASED_WORDS, true)?;
        words[CLOCK].store(clock.namespace(), Ordering::Release);
        Ok(Self { words, clock })
    }

    /// The time by which it is told how long it lasts.
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// It lasts for so long from a [time](Self::now_ns) on that was read before it was known how long: who is stopped in
    /// between does not make it last longer.
    pub(super) fn lasts(&self, from_ns: u64, left: Duration) {
        let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = match left_ns {
            0 => 0,
            left_ns => from_ns.saturating_add(left_ns),
        };
        self.words[UNTIL_NS].store(until_ns, Ordering::Release);
    }

    /// For those who look on.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn file(&self) -> io::Result<OwnedFd> {
        self.words.as_fd().try_clone_to_owned()
    }
}

/// The lease, as it is seen from any thread.
#[derive(Debug)]
pub(crate) struct LeasedView {
    words: WordsView,
    clock: HostClock,
}

impl LeasedView {
    /// What a core, of this process or another one, has [told](Leased::file).
    ///
    /// # Errors
    /// The system's; `Unsupported` if the core's process has another clock.
    pub(crate) fn map(file: OwnedFd) -> io::Result<Self> {
        let words = WordsView::map(file, LEASED_WORDS).map_err(io::Error::other)?;
        let clock = HostClock::of_process();
        if words.load(CLOCK) != clock.namespace() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { words, clock })
    }

    /// Whether what was looked at before this was called may be relied on.
    pub(crate) fn is_lasting(&self) -> bool {
        self.clock.now_ns() < self.words.load(UNTIL_NS)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One that lasts, or has ended.
    pub(crate) fn leased(is_lasting: bool) -> LeasedView {
        let leased = Leased::new().expect("memory");
        leased.lasts(
            leased.now_ns(),
            Duration::from_secs(u64::from(is_lasting) * 1000),
        );
        LeasedView::map(leased.file().expect("a descriptor")).expect("ours")
    }

    #[test]
    fn it_ends_by_itself_and_when_it_is_said() {
        let leased = Leased::new().expect("memory");
        let view = LeasedView::map(leased.file().expect("a descriptor")).expect("ours");
        assert!(!view.is_lasting());
        leased.lasts(leased.now_ns(), Duration::from_secs(1000));
        assert!(view.is_lasting());
        leased.lasts(leased.now_ns(), Duration::from_nanos(1));
        std::thread::sleep(Duration::from_millis(1));
        assert!(!view.is_lasting());
        leased.lasts(leased.now_ns(), Duration::MAX / 4);
        assert!(view.is_lasting(), "longer than its words tell");
        leased.lasts(leased.now_ns(), Duration::ZERO);
        assert!(!view.is_lasting());
    }

    #[test]
    fn who_is_stopped_before_it_is_told_does_not_make_it_last_longer() {
        let leased = Leased::new().expect("memory");
        let view = LeasedView::map(leased.file().expect("a descriptor")).expect("ours");
        let from_ns = leased.now_ns();
        std::thread::sleep(Duration::from_millis(20));
        leased.lasts(from_ns, Duration::from_millis(20));
        assert!(!view.is_lasting());
    }

    #[test]
    fn who_has_another_clock_does_not_rely_on_it() {
        let leased = Leased::new().expect("memory");
        leased.words[CLOCK].fetch_add(1, Ordering::Relaxed);
        let error = LeasedView::map(leased.file().expect("a descriptor")).expect_err("another");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
