//! What a second of prefill is worth: the value of the least worthy work that is still taken.
//!
//! It rises with each request that was placed and then not served in time. It falls with each that
//! was, a little with each that was refused, and, at each arrival, with the share of instances that
//! have nothing to do: what is refused while instances idle is refused for nothing. It rests where
//! three are missed for a thousand in time and a hundred refused each, if nothing idles.

const MISSED_SHARE: f64 = 0.003;
const MISSED_BY_REFUSED: f64 = 0.01;
const IDLE_WEIGHT: f64 = 2.0;
const GAIN: f64 = 0.02;
/// At this price everything is taken: it is that of a request worth one which takes twenty seconds,
/// and few take longer. Were it much lower, the price would take long to come to where it matters.
const PRICE_MIN: f64 = 0.05;
const PRICE_MAX: f64 = 100.0;

/// The price, as learnt so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Price {
    value_per_s: f64,
}

impl Price {
    pub(crate) const fn new() -> Self {
        Self {
            value_per_s: PRICE_MIN,
        }
    }

    pub(crate) fn value_per_s(self) -> f64 {
        if self.value_per_s > PRICE_MIN {
            self.value_per_s
        } else {
            0.0
        }
    }

    /// A request arrives while this share of the instances has nothing to do.
    pub(crate) fn arrived(&mut self, idle: f64) {
        assert!((0.0..=1.0).contains(&idle), "a share of the instances");
        self.change(-IDLE_WEIGHT * idle);
    }

    /// A request ended; `None` if it was refused on arrival.
    pub(crate) fn ended(&mut self, was_in_time: Option<bool>) {
        self.change(match was_in_time {
            Some(true) => -MISSED_SHARE,
            Some(false) => 1.0,
            None => -MISSED_BY_REFUSED,
        });
    }

    fn change(&mut self, change: f64) {
        let price = self.value_per_s * (1.0 + GAIN * change);
        self.value_per_s = price.clamp(PRICE_MIN, PRICE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_misses(misses: u32) -> Price {
        let mut price = Price::new();
        for _ in 0..misses {
            price.ended(Some(false));
        }
        price
    }

    #[test]
    fn misses_raise_it_and_requests_in_time_lower_it_to_nothing() {
        assert_eq!(Price::new().value_per_s(), 0.0);
        let mut price = after_misses(100);
        let high = price.value_per_s();
        assert!(high > 0.3, "{high}");
        for _ in 0..1_000 {
            price.ended(Some(true));
        }
        assert!(price.value_per_s() < high);
        for _ in 0..100_000 {
            price.ended(Some(true));
        }
        assert_eq!(price.value_per_s(), 0.0);
        assert_eq!(after_misses(10_000).value_per_s(), PRICE_MAX);
    }

    #[test]
    fn it_falls_sooner_where_instances_idle() {
        let fallen = |idle: f64| {
            let mut price = after_misses(200);
            for _ in 0..100 {
                price.arrived(idle);
            }
            price.value_per_s()
        };
        assert_eq!(fallen(0.0), after_misses(200).value_per_s());
        assert!(fallen(0.5) < 0.3 * fallen(0.1));
    }
}
