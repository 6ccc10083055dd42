//! What a class of requests is worth, so that none is forgotten.
//!
//! The weight of a class that has a floor rises with each of its requests that is not good and falls
//! with each that is: it rests where the share that is good is the floor. A request counts as good
//! when it is placed, and that is taken back if it turns out not to be. Were it counted when it ends,
//! as a refused one is at once and a served one a minute later, the weight would overshoot.
//!
//! What is wanted is a share of all, for which one steady weight is best: it is found in large
//! steps, and then kept with small ones.
//!
//! The long class has a fixed floor. The medium class would be the next to pay where much is short:
//! its floor is what a queue in order of arrival would serve of it, and a little more, up to the same.
//! Short requests would be served least by such a queue, and are worth most for their work here.

use crate::ids::LengthClass;

/// How fast the weight follows in the long run.
const GAIN: f64 = 0.05;
/// How much faster it does so at first, and after how many requests half of that is left.
const GAIN_FIRST: f64 = 1.0;
const REQUESTS_FIRST: f64 = 20.0;
/// Under heavy overload a short request is worth hundreds of times more for its work than a long one.
const WEIGHT_MAX: f64 = 4096.0;

/// The floor of the medium class beside the share that a queue in order of arrival would serve: that
/// share is estimated too low where our own refusals make prompts longer to compute.
const FIRST_COME_FACTOR: f64 = 1.4;
const FIRST_COME_MORE: f64 = 0.05;
/// Its class is steadier than the long one, which has fewer requests, and needs less to spare.
const FIRST_COME_MAX: f64 = 0.87;

/// Weights of the length classes.
#[derive(Clone, Debug)]
pub(crate) struct Fairness {
    floors: [f64; LengthClass::ALL.len()],
    weights: [f64; LengthClass::ALL.len()],
    requests: [f64; LengthClass::ALL.len()],
}

impl Fairness {
    /// With this floor for the long class, and none for the others.
    pub(crate) const fn new(floor: f64) -> Self {
        let mut floors = [0.0; LengthClass::ALL.len()];
        floors[LengthClass::Long.index()] = floor;
        Self {
            floors,
            weights: [1.0; LengthClass::ALL.len()],
            requests: [0.0; LengthClass::ALL.len()],
        }
    }

    pub(crate) const fn weight(&self, input_tokens: u32) -> f64 {
        self.weights[LengthClass::of(input_tokens).index()]
    }

    /// Whether there is a floor.
    pub(crate) const fn has_floor(&self) -> bool {
        self.floors[LengthClass::Long.index()] > 0.0
    }

    /// A queue in order of arrival would serve this share of the medium class.
    pub(crate) fn first_come(&mut self, share: f64) {
        let most = self.floors[LengthClass::Long.index()];
        let floor = FIRST_COME_FACTOR * share + FIRST_COME_MORE;
        self.floors[LengthClass::Medium.index()] = floor.min(most).min(FIRST_COME_MAX);
    }

    /// A request was placed, or refused on arrival.
    pub(crate) fn decided(&mut self, input_tokens: u32, is_placed: bool) {
        let class = LengthClass::of(input_tokens).index();
        if self.floors[class] > 0.0 {
            self.requests[class] += 1.0;
            self.change(class, self.floors[class] - f64::from(u8::from(is_placed)));
        }
    }

    /// A request that had been placed turned out not to be good.
    pub(crate) fn failed(&mut self, input_tokens: u32) {
        let class = LengthClass::of(input_tokens).index();
        if self.floors[class] > 0.0 {
            self.change(class, 1.0);
        }
    }

    /// Steps up and down are of one size: one of each leaves the weight where it was.
    fn change(&mut self, class: usize, error: f64) {
        let gain = GAIN + GAIN_FIRST / (1.0 + self.requests[class] / REQUESTS_FIRST);
        let step = 1.0 + gain * error.abs();
        let weight = if error > 0.0 {
            self.weights[class] * step
        } else {
            self.weights[class] / step
        };
        self.weights[class] = weight.clamp(1.0, WEIGHT_MAX);
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

    #[test]
    fn the_medium_class_gets_what_a_queue_in_order_of_arrival_would_serve() {
        let medium = 20_000;
        let weight_after = |share: f64, is_placed: fn(u32) -> bool| {
            let mut fairness = Fairness::new(0.9);
            fairness.first_come(share);
            for at in 0..400 {
                fairness.decided(medium, is_placed(at));
            }
            fairness.weight(medium)
        };
        let half = |at: u32| at.is_multiple_of(2);
        assert!(weight_after(1.0, half) > 100.0, "the floor is .9");
        assert!(weight_after(0.2, half) < 1.2, "the floor is .32");
        let mut fairness = Fairness::new(0.9);
        fairness.decided(medium, false);
        assert_eq!(fairness.weight(medium), 1.0, "there is no floor yet");
    }
}
