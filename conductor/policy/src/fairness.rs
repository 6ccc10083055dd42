//! What a class of requests is worth, so that none is forgotten.
//!
//! The weight of the long class rises with each of its requests that is not good and falls with each
//! that is: it rests where the share that is good is the floor. A request counts as good when it is
//! placed, and that is taken back if it turns out not to be. Were it counted when it ends, as a
//! refused one is at once and a served one a minute later, the weight would overshoot.
//!
//! What is wanted is a share of all, for which one steady weight is best: it is found in large
//! steps, and then kept with small ones.

use crate::ids::LengthClass;

/// How fast the weight follows in the long run.
const GAIN: f64 = 0.05;
/// How much faster it does so at first, and after how many requests half of that is left.
const GAIN_FIRST: f64 = 0.3;
const REQUESTS_FIRST: f64 = 20.0;
/// Under heavy overload a short request is worth hundreds of times more for its work than a long one.
const WEIGHT_MAX: f64 = 4096.0;

/// Weights of the length classes.
#[derive(Clone, Debug)]
pub(crate) struct Fairness {
    floor: f64,
    long_weight: f64,
    long_requests: f64,
}

impl Fairness {
    pub(crate) const fn new(floor: f64) -> Self {
        Self {
            floor,
            long_weight: 1.0,
            long_requests: 0.0,
        }
    }

    pub(crate) const fn weight(&self, input_tokens: u32) -> f64 {
        match LengthClass::of(input_tokens) {
            LengthClass::Long => self.long_weight,
            _ => 1.0,
        }
    }

    /// A request was placed, or refused on arrival.
    pub(crate) fn decided(&mut self, input_tokens: u32, is_placed: bool) {
        if LengthClass::of(input_tokens) == LengthClass::Long {
            self.long_requests += 1.0;
            self.change(self.floor - f64::from(u8::from(is_placed)));
        }
    }

    /// A request that had been placed turned out not to be good.
    pub(crate) fn failed(&mut self, input_tokens: u32) {
        if LengthClass::of(input_tokens) == LengthClass::Long {
            self.change(1.0);
        }
    }

    /// Steps up and down are of one size: one of each leaves the weight where it was.
    fn change(&mut self, error: f64) {
        let gain = GAIN + GAIN_FIRST / (1.0 + self.long_requests / REQUESTS_FIRST);
        let step = 1.0 + gain * error.abs();
        let weight = if error > 0.0 {
            self.long_weight * step
        } else {
            self.long_weight / step
        };
        self.long_weight = weight.clamp(1.0, WEIGHT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u32 = 40_000;

    #[test]
    fn a_class_that_falls_behind_gains_weight_and_loses_it_again() {
        let mut fairness = Fairness::new(0.87);
        for _ in 0..200 {
            fairness.decided(LONG, false);
            fairness.decided(1_000, false);
        }
        assert!(fairness.weight(LONG) > 2.0);
        assert_eq!(fairness.weight(1_000), 1.0);
        for _ in 0..3_000 {
            fairness.decided(LONG, true);
        }
        assert_eq!(fairness.weight(LONG), 1.0);
    }

    #[test]
    fn a_placed_request_that_fails_counts_like_a_refused_one() {
        let weight_after = |fails: bool| {
            let mut fairness = Fairness::new(0.87);
            for _ in 0..500 {
                fairness.decided(LONG, true);
                if fails {
                    fairness.failed(LONG);
                }
            }
            fairness.weight(LONG)
        };
        assert_eq!(weight_after(false), 1.0);
        assert!(weight_after(true) > 100.0);
    }

    #[test]
    fn without_a_floor_nothing_has_weight_by_being_refused() {
        let mut fairness = Fairness::new(0.0);
        for _ in 0..100 {
            fairness.decided(LONG, false);
        }
        assert_eq!(fairness.weight(LONG), 1.0);
    }
}
