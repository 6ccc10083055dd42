//! Which start of which machine this is, and how long ago that was.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::time::{ClockId, clock_gettime};

use crate::executor::Core;

/// A number that two processes have in common if they run on one kernel: in one container or in two, and
/// whatever their addresses are. `None` in a simulated world, and where the system does not tell.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn boot_id() -> Option<u128> {
    if Core::current().simulated_host().is_some() {
        return None;
    }
    parse(&fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
}

/// The clock by which processes of one kernel tell each other until when something holds: it never goes back. On any thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostClock {
    /// Which of them it is: each namespace of times has its own (`time_namespaces(7)`). 0 where the kernel has none.
    namespace: u64,
}

impl HostClock {
    /// The one of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let file = fs::metadata("/proc/self/ns/time");
        Self {
            namespace: file.map_or(0, |file| file.ino()),
        }
    }

    /// What another process has to have for both to mean the same times.
    #[must_use]
    pub const fn namespace(self) -> u64 {
        self.namespace
    }

    /// The time, in nanoseconds since some moment that all who have this clock agree on.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        let (secs, nanos) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
        secs.saturating_mul(1_000_000_000).saturating_add(nanos)
    }
}

fn parse(text: &str) -> Option<u128> {
    let digits: String = text.trim().split('-').collect();
    if digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CoreOptions, block_on};

    #[test]
    fn a_host_has_one_clock_which_does_not_go_back() {
        let (ours, later) = (HostClock::of_process(), HostClock::of_process());
        assert_eq!(ours, later);
        let (then, now) = (ours.now_ns(), later.now_ns());
        assert!(0 < then && then <= now, "{then} {now}");
    }

    #[test]
    fn a_kernel_has_one() {
        let both = block_on(None, CoreOptions::default(), || async {
            (boot_id(), boot_id())
        });
        let (one, other) = both.expect("a core");
        assert!(one.is_some());
        assert_eq!(one, other);
    }

    #[test]
    fn what_is_no_id_is_none() {
        assert_eq!(parse("00000000-0000-0000-0000-00000000000f\n"), Some(15));
        for text in ["", "f", "g0000000-0000-0000-0000-00000000000f"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
