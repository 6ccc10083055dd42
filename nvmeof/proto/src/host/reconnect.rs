//! When to try again after a connection was lost, and when to give up.

use core::time::Duration;

use lunette_runtime_core::time::Time;

/// How stubborn a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectOptions {
    /// Pause after the first failure.
    pub first: Duration,
    /// Longest pause.
    pub longest: Duration,
    /// How long to try at all after a loss.
    pub give_up_after: Duration,
}

impl Default for ReconnectOptions {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(10),
            longest: Duration::from_secs(10),
            give_up_after: Duration::from_secs(600),
        }
    }
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Try again then.
    At(Time),
    /// Not any more.
    Never,
}

/// Counts failures since the last success. Pauses double up to the longest, and each is shortened
/// by up to a half, so that hosts that lost the same controller do not come back as one.
#[derive(Clone, Debug)]
pub struct Reconnect {
    options: ReconnectOptions,
    failures: u32,
    gives_up_at: Option<Time>,
}

impl Reconnect {
    /// After a success.
    #[must_use]
    pub const fn new(options: ReconnectOptions) -> Self {
        Self {
            options,
            failures: 0,
            gives_up_at: None,
        }
    }

    /// The connection was lost, or could not be made. `draw` is any random number.
    pub fn on_failure(&mut self, now: Time, draw: u64) -> Retry {
        let give_up = now + self.options.give_up_after;
        let gives_up_at = *self.gives_up_at.get_or_insert(give_up);
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let pause = self.options.first.saturating_mul(factor);
        let pause = pause.min(self.options.longest);
        self.failures = self.failures.saturating_add(1);
        let half_ns = u64::try_from(pause.as_nanos() / 2).unwrap_or(u64::MAX - 1);
        let at = now + (pause - Duration::from_nanos(draw % (half_ns + 1)));
        if at > gives_up_at {
            Retry::Never
        } else {
            Retry::At(at)
        }
    }

    /// A connection works.
    pub const fn on_success(&mut self) {
        self.failures = 0;
        self.gives_up_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: ReconnectOptions = ReconnectOptions {
        first: Duration::from_millis(10),
        longest: Duration::from_millis(100),
        give_up_after: Duration::from_secs(1),
    };

    #[test]
    fn pauses_double_up_to_the_longest_and_start_anew() {
        let mut reconnect = Reconnect::new(OPTIONS);
        let pause = |reconnect: &mut Reconnect, draw| match reconnect.on_failure(Time::ZERO, draw) {
            Retry::At(at) => at.as_ns() / 1_000_000,
            Retry::Never => panic!("time has not passed"),
        };
        let pauses: Vec<u64> = (0..6).map(|_| pause(&mut reconnect, 0)).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 100, 100]);
        reconnect.on_success();
        assert_eq!(pause(&mut reconnect, 5_000_000), 5);
        assert_eq!(pause(&mut reconnect, u64::MAX), 14);
        for _ in 0..100 {
            assert!(pause(&mut reconnect, 1) <= 100);
        }
    }

    #[test]
    fn it_gives_up_after_its_time_counted_from_the_first_loss() {
        let mut reconnect = Reconnect::new(OPTIONS);
        let mut now = Time::from_ns(7);
        let mut tries = 0;
        while let Retry::At(at) = reconnect.on_failure(now, 0) {
            now = at;
            tries += 1;
        }
        // 10 + 20 + 40 + 80 + 8 * 100 = 950 ms.
        assert_eq!(tries, 12);
        reconnect.on_success();
        assert!(matches!(reconnect.on_failure(now, 0), Retry::At(_)));
    }
}
