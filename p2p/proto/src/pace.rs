//! How long a chunk takes, and how long one waits for it.

use core::time::Duration;

/// The shortest and the longest that somebody is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Even if chunks take no time at all.
    pub min: Duration,
    /// Even if nothing is known.
    pub max: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            min: Duration::from_millis(50),
            max: Duration::from_secs(10),
        }
    }
}

/// How long one chunk has lately taken, from when it was granted: a mean in which the last one counts an eighth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace(Option<Duration>);

impl Pace {
    /// One took so long.
    pub fn note(&mut self, took: Duration) {
        let mean = self.0.map_or(took, |mean| mean - mean / 8 + took / 8);
        self.0 = Some(mean);
    }

    /// The mean, if there has been one.
    #[must_use]
    pub const fn mean(self) -> Option<Duration> {
        self.0
    }

    /// This, or the other one where nothing is known.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match self.0 {
            Some(_) => self,
            None => other,
        }
    }

    /// How long `chunks` of them are waited for.
    #[must_use]
    pub fn patience(self, chunks: u32, patience: Patience) -> Duration {
        let wait = self.0.map(|mean| mean.saturating_mul(chunks));
        let wait = wait.unwrap_or(patience.max);
        wait.clamp(patience.min, patience.max)
    }

    /// A pause of a part of one chunk's time: before somebody is asked again who was busy, and between two words
    /// to the same neighbour.
    #[must_use]
    pub fn pause(self) -> Duration {
        let half = self.0.map_or(PAUSE_MIN, |mean| mean / 4);
        half.clamp(PAUSE_MIN, PAUSE_MAX)
    }
}

/// The shortest pause.
pub const PAUSE_MIN: Duration = Duration::from_micros(500);
/// The longest.
pub const PAUSE_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_mean_follows() {
        let mut pace = Pace::default();
        assert_eq!(pace.mean(), None);
        pace.note(ms(8));
        assert_eq!(pace.mean(), Some(ms(8)));
        pace.note(ms(16));
        assert_eq!(pace.mean(), Some(ms(9)));
        assert_eq!(Pace::default().or(pace), pace);
        assert_eq!(pace.or(Pace::default()), pace);
    }

    #[test]
    fn waits_have_both_bounds() {
        let patience = Patience {
            min: ms(20),
            max: ms(100),
        };
        let mut pace = Pace::default();
        assert_eq!(pace.patience(1, patience), ms(100), "nothing is known");
        assert_eq!(pace.pause(), PAUSE_MIN);
        pace.note(ms(8));
        assert_eq!(pace.patience(1, patience), ms(20));
        assert_eq!(pace.patience(4, patience), ms(32));
        assert_eq!(pace.patience(u32::MAX, patience), ms(100));
        assert_eq!(pace.pause(), ms(2));
        let mut slow = Pace::default();
        slow.note(Duration::from_secs(9));
        assert_eq!(slow.pause(), PAUSE_MAX);
    }
}
