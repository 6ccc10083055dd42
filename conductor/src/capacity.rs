//! The highest load at which a share of the requests is served in time.

use crate::report::Report;
use crate::workload::{Timing, Workload};

/// What has to reach the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Requests.
    Requests,
    /// Tokens.
    Tokens,
}

impl Measure {
    /// Its value in a report.
    #[must_use]
    pub const fn of(self, report: &Report) -> f64 {
        match self {
            Self::Requests => report.all.good,
            Self::Tokens => report.all.good_tokens,
        }
    }
}

/// The highest speed-up, up to `resolution` below or above, at which `measure` reaches `share` in the
/// reports of `run`. It is looked for between `low`, which is returned if nothing reaches the share,
/// and `high`.
#[must_use]
pub fn speed_up(
    workload: &Workload,
    timing: Timing,
    run: impl Fn(&Workload) -> Report,
    (measure, share): (Measure, f64),
    (low, high, resolution): (f64, f64, f64),
) -> f64 {
    let (mut low, mut high) = (low, high);
    while high - low > resolution {
        let middle = f64::midpoint(low, high);
        let report = run(&workload.timed(timing, middle));
        if measure.of(&report) >= share {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}
