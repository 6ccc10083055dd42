//! Until when threads may rely on what a core shows: as long as the node's lease is sure to last. A core that does nothing
//! any more cannot take anything back, and others take over what it had.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The lease, as a core has told it and threads see it.
#[derive(Debug)]
pub(crate) struct Leased {
    origin: Instant,
    /// Since the origin.
    until_ns: AtomicU64,
}

impl Leased {
    /// One that lasts for so long from now on.
    pub(super) fn new(left: Duration) -> Arc<Self> {
        let leased = Self {
            origin: Instant::now(),
            until_ns: AtomicU64::new(0),
        };
        leased.lasts(left);
        Arc::new(leased)
    }

    /// It lasts for so long from now on.
    pub(super) fn lasts(&self, left: Duration) {
        let until_ns = match left {
            Duration::ZERO => 0,
            left => (self.origin.elapsed() + left).as_nanos(),
        };
        let until_ns = u64::try_from(until_ns).unwrap_or(u64::MAX);
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// Whether what was looked at before this was called may be relied on.
    pub(crate) fn is_lasting(&self) -> bool {
        let until_ns = self.until_ns.load(Ordering::Acquire);
        self.origin.elapsed().as_nanos() < u128::from(until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_by_itself_and_when_it_is_said() {
        let leased = Leased::new(Duration::ZERO);
        assert!(!leased.is_lasting());
        leased.lasts(Duration::from_secs(1000));
        assert!(leased.is_lasting());
        leased.lasts(Duration::from_nanos(1));
        std::thread::sleep(Duration::from_millis(1));
        assert!(!leased.is_lasting());
        leased.lasts(Duration::MAX / 4);
        assert!(leased.is_lasting(), "longer than its words tell");
        leased.lasts(Duration::ZERO);
        assert!(!leased.is_lasting());
    }
}
