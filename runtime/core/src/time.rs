//! Points in time on a driver's monotonic clock.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin that only the driver knows.
///
/// Points of two drivers are not comparable. Arithmetic saturates, so that a deadline "never"
/// ([`Time::MAX`]) survives the addition of any delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than every deadline: used as "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The point `ns` nanoseconds after the origin.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The time that passed from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, delay: Duration) -> Self {
        let ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ns))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_survives_any_delay() {
        assert_eq!(Time::MAX + Duration::from_secs(1), Time::MAX);
        assert_eq!(Time::from_ns(1) + Duration::MAX, Time::MAX);
    }

    #[test]
    fn since_saturates_at_zero() {
        assert_eq!(Time::from_ns(5).since(Time::from_ns(9)), Duration::ZERO);
        assert_eq!(Time::from_ns(9) - Time::from_ns(5), Duration::from_nanos(4));
    }
}
