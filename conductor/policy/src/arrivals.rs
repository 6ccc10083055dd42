//! What a queue in order of arrival would serve of a class.
//!
//! Under overload such a queue, which refuses what would be late, is as long as the slack of what it
//! still just takes: requests with more slack get in, those with less do not, and those that get in
//! keep the instances busy. So the slack at the margin, and with it the share of a class that would
//! get in, follows from the work that arrives.

use crate::ids::LengthClass;

const BUCKETS: usize = 40;
/// The most slack of the first bucket, and that of each other beside the one before.
const SLACK_FIRST_S: f64 = 1.0;
const SLACK_STEP: f64 = 1.15;
/// How fast arrivals are forgotten.
const MEMORY_S: f64 = 60.0;

/// Arrivals of late, by slack.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    work_s: [f64; BUCKETS],
    requests: [[f64; LengthClass::ALL.len()]; BUCKETS],
    last_s: f64,
    /// The time in which these arrived, forgotten as they are.
    seen_s: f64,
}

impl Arrivals {
    /// Nothing has arrived yet.
    pub(crate) const fn new() -> Self {
        Self {
            work_s: [0.0; BUCKETS],
            requests: [[0.0; LengthClass::ALL.len()]; BUCKETS],
            last_s: 0.0,
            seen_s: 0.0,
        }
    }

    /// A request arrives that takes `work_s` and can wait for `slack_s` before.
    pub(crate) fn arrived(&mut self, now_s: f64, class: LengthClass, slack_s: f64, work_s: f64) {
        let kept = (-(now_s - self.last_s).max(0.0) / MEMORY_S).exp();
        self.last_s = now_s;
        self.seen_s = kept * self.seen_s + MEMORY_S * (1.0 - kept);
        for (work_s, requests) in self.work_s.iter_mut().zip(&mut self.requests) {
            *work_s *= kept;
            requests.iter_mut().for_each(|requests| *requests *= kept);
        }
        let mut at = 0;
        let mut most_s = SLACK_FIRST_S;
        while slack_s > most_s && at + 1 < BUCKETS {
            at += 1;
            most_s *= SLACK_STEP;
        }
        self.work_s[at] += work_s;
        self.requests[at][class.index()] += 1.0;
    }

    /// The share of a class that this many instances would serve. All of it, if nothing is known.
    pub(crate) fn share(&self, class: LengthClass, instances: f64) -> f64 {
        let mut left_s = instances * self.seen_s;
        let (mut all, mut served) = (0.0, 0.0);
        for (&work_s, requests) in self.work_s.iter().zip(&self.requests).rev() {
            let part = if work_s > 0.0 {
                (left_s / work_s).clamp(0.0, 1.0)
            } else {
                1.0
            };
            all += requests[class.index()];
            served += part * requests[class.index()];
            left_s -= work_s;
        }
        if all > 0.0 { served / all } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One short and one medium request a second, each of `work_s`.
    fn after(seconds: u16, work_s: f64) -> Arrivals {
        let mut arrivals = Arrivals::new();
        for second in 0..seconds {
            let now_s = f64::from(second);
            arrivals.arrived(now_s, LengthClass::Short, 3.0, work_s);
            arrivals.arrived(now_s, LengthClass::Medium, 9.0, work_s);
        }
        arrivals
    }

    #[test]
    fn under_overload_those_with_more_slack_get_in() {
        for seconds in [60, 600] {
            let arrivals = after(seconds, 2.0);
            let share = |class, instances| arrivals.share(class, instances);
            assert!((share(LengthClass::Medium, 1.0) - 0.5).abs() < 0.02);
            assert!(share(LengthClass::Short, 1.0) < 0.01);
            assert!(share(LengthClass::Medium, 3.0) > 0.98);
            assert!((share(LengthClass::Short, 3.0) - 0.5).abs() < 0.04);
            assert_eq!(share(LengthClass::Short, 5.0), 1.0);
        }
    }

    #[test]
    fn what_is_unknown_is_served() {
        assert_eq!(Arrivals::new().share(LengthClass::Medium, 1.0), 1.0);
        assert_eq!(after(60, 2.0).share(LengthClass::Long, 1.0), 1.0);
    }
}
