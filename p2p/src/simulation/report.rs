//! What was measured.

use core::time::Duration;

/// What was measured of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What no scheme can pass.
    pub bound: Duration,
    /// When the first receiver had the object; none if none ever had.
    pub first: Option<Duration>,
    /// When half of those who live had it.
    pub median: Option<Duration>,
    /// When all who live had it, stragglers apart.
    pub last: Option<Duration>,
    /// When all stragglers had it.
    pub stragglers: Option<Duration>,
    /// Receivers that live and never had it.
    pub unserved: usize,
    /// What the first origin sent, in objects.
    pub origin_copies: f64,
    /// What went from rack to rack, in objects.
    pub crossed_copies: f64,
    /// What was sent beyond one object for each receiver that had it, in objects.
    pub wasted_copies: f64,
    /// Messages for each chunk that was received.
    pub messages_per_chunk: f64,
    /// Events of the simulation.
    pub events: u64,
}

impl Report {
    /// The time of the last one, over the bound; infinite if somebody is left without.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self.last {
            Some(last) if self.unserved == 0 => last.as_secs_f64() / self.bound.as_secs_f64(),
            _ => f64::INFINITY,
        }
    }
}
