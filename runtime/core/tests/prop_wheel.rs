//! The timer wheel against an ordered map of deadlines.

#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::collections::BTreeMap;

use lunette_runtime_core::time::Time;
use lunette_runtime_core::wheel::{TICK_NS, TimerKey, Wheel};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert {
        delay_ns: u64,
    },
    InsertPassed {
        age_ns: u64,
    },
    /// Cancels the n-th key ever issued, counted modulo their number: stale ones too.
    Cancel {
        nth: usize,
    },
    Advance {
        by_ns: u64,
    },
    AdvanceToNext,
}

/// Delays of every magnitude, so that every level and its edges are used.
fn span_ns() -> impl Strategy<Value = u64> {
    (0_u32..60, any::<u64>()).prop_map(|(bits, raw)| raw & ((1 << bits) - 1))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => span_ns().prop_map(|delay_ns| Op::Insert { delay_ns }),
        1 => span_ns().prop_map(|age_ns| Op::InsertPassed { age_ns }),
        2 => any::<usize>().prop_map(|nth| Op::Cancel { nth }),
        2 => span_ns().prop_map(|by_ns| Op::Advance { by_ns }),
        2 => Just(Op::AdvanceToNext),
    ]
}

/// Pending timers by (tick in which they fire, order of insertion).
struct Model {
    now: u64,
    pending: BTreeMap<(u64, usize), u64>,
    keys: Vec<(TimerKey, (u64, usize))>,
}

impl Model {
    fn insert(&mut self, wheel: &mut Wheel<usize>, at_ns: u64) {
        let number = self.keys.len();
        let key = wheel
            .insert(Time::from_ns(at_ns), number)
            .expect("far below the limit");
        let place = (at_ns.div_ceil(TICK_NS).max(self.now / TICK_NS), number);
        self.pending.insert(place, at_ns);
        self.keys.push((key, place));
    }

    fn cancel(&mut self, wheel: &mut Wheel<usize>, nth: usize) {
        if self.keys.is_empty() {
            return;
        }
        let (key, place) = self.keys[nth % self.keys.len()];
        let expected = self.pending.remove(&place).map(|_| place.1);
        assert_eq!(wheel.cancel(key), expected);
    }

    fn advance(&mut self, wheel: &mut Wheel<usize>, now: u64) {
        let mut expired = Vec::new();
        wheel.advance(Time::from_ns(now), &mut expired);
        self.now = now;
        let still = self.pending.split_off(&(now / TICK_NS + 1, 0));
        let due = std::mem::replace(&mut self.pending, still);
        assert_eq!(expired, due.keys().map(|place| place.1).collect::<Vec<_>>());
        assert!(
            due.values().all(|&at_ns| at_ns <= now),
            "a timer fired early"
        );
        let late = self
            .pending
            .values()
            .find(|&&at_ns| at_ns.saturating_add(TICK_NS) <= now);
        assert_eq!(late, None, "a timer is a whole tick late");
    }

    fn check(&self, wheel: &Wheel<usize>) {
        assert_eq!(wheel.len(), self.pending.len());
        let next = wheel.next_expiry();
        match self.pending.keys().next() {
            None => assert_eq!(next, None),
            Some(&(tick, _)) => {
                let next = next.expect("a timer is pending").as_ns();
                assert!(next > self.now, "next_expiry makes no progress");
                assert!(
                    next <= (tick * TICK_NS).max(self.now + 1),
                    "next_expiry is late"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn the_wheel_fires_as_the_map_does(
        origin_ns in span_ns(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut wheel = Wheel::new(Time::from_ns(origin_ns));
        let mut model = Model { now: origin_ns, pending: BTreeMap::new(), keys: Vec::new() };
        for op in ops {
            let now = model.now;
            match op {
                Op::Insert { delay_ns } => model.insert(&mut wheel, now.saturating_add(delay_ns)),
                Op::InsertPassed { age_ns } => model.insert(&mut wheel, now.saturating_sub(age_ns)),
                Op::Cancel { nth } => model.cancel(&mut wheel, nth),
                Op::Advance { by_ns } => model.advance(&mut wheel, now.saturating_add(by_ns).min(1 << 62)),
                Op::AdvanceToNext => {
                    if let Some(next) = wheel.next_expiry() {
                        model.advance(&mut wheel, next.as_ns());
                    }
                }
            }
            model.check(&wheel);
        }
    }

    /// Following `next_expiry` alone fires everything, and each turn fires something.
    #[test]
    fn following_next_expiry_fires_everything(
        delays in prop::collection::vec(span_ns(), 1..50),
    ) {
        let mut wheel = Wheel::new(Time::ZERO);
        for (number, &delay_ns) in delays.iter().enumerate() {
            wheel.insert(Time::from_ns(delay_ns), number).expect("far below the limit");
        }
        let mut expired = Vec::new();
        let mut turns = 0;
        while let Some(next) = wheel.next_expiry() {
            wheel.advance(next, &mut expired);
            turns += 1;
        }
        prop_assert_eq!(expired.len(), delays.len());
        prop_assert!(turns <= delays.len(), "{} turns for {} timers", turns, delays.len());
    }
}
