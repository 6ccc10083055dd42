//! The clock of a runtime's cores.

use std::time::{SystemTime, UNIX_EPOCH};

use lunette_runtime_core::time::Time;

use crate::sim::SimulatedClock;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Counts from the start of a runtime, the same on all its cores.
///
/// It reads the system's monotonic clock and subtracts: a core asks several times in each turn, and
/// what `Instant` does to keep its parts normal costs more than the reading.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The system's, since `origin_ns`.
    System { origin_ns: u64 },
    /// A simulated one.
    Simulated(SimulatedClock),
}

impl Clock {
    /// The system's clock, from now on.
    pub(crate) fn start() -> Self {
        Self::System {
            origin_ns: monotonic_ns(),
        }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Time {
        match self {
            // The clock does not go back, also between CPUs; if one does, time stands still.
            Self::System { origin_ns } => Time::from_ns(monotonic_ns().saturating_sub(*origin_ns)),
            Self::Simulated(clock) => clock.now(),
        }
    }

    /// Nanoseconds since 1970: for names that are not to come again, not for measuring.
    pub(crate) fn unix_ns(&self) -> u64 {
        match self {
            Self::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
            }
            Self::Simulated(clock) => clock.unix_ns(),
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is ours and of the type that the call fills. Ends with the call. (The C library's
    // call, because analysers that replace the kernel's fast path do so there.)
    let done = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(done, 0, "Linux has this clock");
    // Since the machine's start, so neither is negative, and 500 years fit.
    now.tv_sec.cast_unsigned() * SECOND_NS + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn it_goes_as_fast_as_the_systems_and_starts_at_nothing() {
        let (clock, began) = (Clock::start(), Instant::now());
        let first = clock.now();
        std::thread::sleep(Duration::from_millis(20));
        let took = clock.now().since(first);
        let expected = began.elapsed();
        assert!(
            took <= expected && took >= Duration::from_millis(20),
            "{took:?}"
        );
        assert!(first.since(Time::ZERO) < Duration::from_secs(5));
    }
}
