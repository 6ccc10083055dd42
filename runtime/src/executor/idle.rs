//! When a core with nothing to do spins, and when it sleeps.

use std::time::Duration;

use lunette_runtime_core::time::Time;

/// What a core does when it has nothing to do.
///
/// Waking a sleeping core costs 4-8 us on the machines measured, which is a third of a small
/// request's round trip; polling costs a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Sleeps at once.
    Efficient,
    /// Spins up to this long while work has been arriving at shorter intervals than that, and
    /// sleeps at once while it has not.
    Adaptive(Duration),
    /// Never sleeps.
    Latency,
}

impl Default for Idle {
    fn default() -> Self {
        Self::Adaptive(Duration::from_micros(50))
    }
}

/// Share of the newest interval in the running mean: 1 / 2^SHIFT.
const MEAN_SHIFT: u32 = 3;
/// Intervals count as at most so many spin budgets, so that one long pause does not take long to forget.
const INTERVAL_BUDGETS_MAX: u64 = 8;
/// How often it is spun though intervals are longer than the budget, where they are not longer by far: what ends a sleep is
/// seen a wake-up later than it came, and on some machines that alone is longer than the budget.
const TRIED_EACH: u8 = 8;

/// The policy's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleState {
    policy: Idle,
    idle: Option<Interval>,
    /// Running mean of the idle intervals, in ns, none of them counted as longer than `INTERVAL_BUDGETS_MAX`.
    mean_ns: u64,
    /// The newest one, so counted.
    last_ns: u64,
    /// Whether the newest one was spun through to its end.
    has_paid: bool,
    /// Intervals that were slept through since one was spun through.
    not_tried: u8,
}

/// An idle interval.
#[derive(Clone, Copy, Debug)]
struct Interval {
    since: Time,
    /// When there was nothing yet, or what ended it was seen.
    looked: Time,
    /// Whether it begins with a spin.
    spins: bool,
}

impl IdleState {
    pub(super) const fn new(policy: Idle) -> Self {
        Self {
            policy,
            idle: None,
            mean_ns: 0,
            last_ns: 0,
            has_paid: false,
            not_tried: 0,
        }
    }

    /// Whether it never spins, and so asks for no time.
    pub(super) const fn is_efficient(&self) -> bool {
        matches!(self.policy, Idle::Efficient)
    }

    /// Something has been seen at `now`.
    pub(super) const fn on_wake(&mut self, now: Time) {
        if let Some(interval) = &mut self.idle {
            interval.looked = now;
        }
    }

    /// Work has been done, after an idle interval or within none. How long that took does not count.
    pub(super) fn on_work(&mut self) {
        let Some(interval) = self.idle.take() else {
            return;
        };
        if let Idle::Adaptive(budget) = self.policy {
            let longest_ns = budget_ns(budget).saturating_mul(INTERVAL_BUDGETS_MAX);
            let interval_ns = interval.looked.as_ns() - interval.since.as_ns();
            let interval_ns = interval_ns.min(longest_ns);
            self.last_ns = interval_ns;
            self.has_paid = interval.spins && interval_ns < budget_ns(budget);
            self.mean_ns =
                self.mean_ns - (self.mean_ns >> MEAN_SHIFT) + (interval_ns >> MEAN_SHIFT);
        }
    }

    /// Nothing to do at `now`; `worked` if this turn did something. Whether to poll once more
    /// rather than sleep. `is_in_the_way`, told whether the last spin has paid: whether others that this core waits for cannot
    /// run while it does.
    pub(super) fn should_spin(
        &mut self,
        now: Time,
        worked: bool,
        is_in_the_way: impl FnOnce(bool) -> bool,
    ) -> bool {
        if worked {
            self.on_work();
        }
        let budget = match self.policy {
            Idle::Efficient => return false,
            Idle::Latency => return true,
            Idle::Adaptive(budget) => budget,
        };
        let mut interval = self.idle.unwrap_or_else(|| Interval {
            since: now,
            looked: now,
            spins: self.begins_with_spin(budget_ns(budget)) && !is_in_the_way(self.has_paid),
        });
        interval.looked = now;
        self.idle = Some(interval);
        interval.spins && now.since(interval.since) < budget
    }

    fn begins_with_spin(&mut self, budget_ns: u64) -> bool {
        if self.mean_ns <= budget_ns || self.has_paid {
            self.not_tried = 0;
            return true;
        }
        if self.last_ns >= budget_ns.saturating_mul(INTERVAL_BUDGETS_MAX) {
            return false;
        }
        self.not_tried += 1;
        let is_tried = self.not_tried == TRIED_EACH;
        if is_tried {
            self.not_tried = 0;
        }
        is_tried
    }
}

fn budget_ns(budget: Duration) -> u64 {
    u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);
    /// Who is waited for runs on another processor.
    const NOWHERE: fn(bool) -> bool = |_has_paid| false;

    fn at_us(us: u64) -> Time {
        Time::from_ns(us * 1000)
    }

    /// Feeds `rounds` intervals of `interval_us` and tells whether the core would spin after them.
    fn spins_after(state: &mut IdleState, start_us: u64, interval_us: u64, rounds: u64) -> bool {
        let mut now_us = start_us;
        for _ in 0..rounds {
            pass(state, at_us(now_us), at_us(now_us + interval_us));
            now_us += interval_us;
        }
        state.should_spin(at_us(now_us), true, NOWHERE)
    }

    /// An idle interval. Whether it began with a spin.
    fn pass(state: &mut IdleState, from: Time, to: Time) -> bool {
        let spins = state.should_spin(from, true, NOWHERE);
        if spins && state.should_spin(to, false, NOWHERE) {
            // Something comes now.
        } else {
            state.on_wake(to);
        }
        spins
    }

    #[test]
    fn adaptive_spins_under_load_and_not_when_paced() {
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        assert!(spins_after(&mut state, 0, 12, 100));
        assert!(
            !spins_after(&mut state, 10_000, 10_000, 20),
            "one call each 10 ms: sleep"
        );
        assert!(spins_after(&mut state, 1_000_000, 12, 40), "load came back");
    }

    /// What comes within the budget of a core that spins, and much later to one that sleeps, since it is woken first.
    #[test]
    fn adaptive_finds_out_that_it_only_waits_for_wake_ups() {
        let (soon_us, woken_us) = (20, 120);
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        assert!(!spins_after(&mut state, 0, 10_000, 20));
        let mut now_us = 1_000_000;
        let mut spun = 0;
        for _ in 0..400 {
            let spins = state.should_spin(at_us(now_us), true, NOWHERE);
            spun += u32::from(spins);
            now_us += if spins { soon_us } else { woken_us };
            if spins {
                assert!(
                    state.should_spin(at_us(now_us), false, NOWHERE),
                    "it goes on"
                );
            } else {
                state.on_wake(at_us(now_us));
            }
        }
        assert!(spun > 200, "it spun {spun} times");
        assert!(
            state.should_spin(at_us(now_us), true, NOWHERE),
            "it has found out for good"
        );
    }

    #[test]
    fn work_that_takes_long_does_not_make_intervals_longer() {
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        for round in 0..100 {
            let from_us = round * 1_000;
            assert!(state.should_spin(at_us(from_us), true, NOWHERE), "{round}");
            assert!(
                state.should_spin(at_us(from_us + 20), false, NOWHERE),
                "{round}"
            );
        }
    }

    #[test]
    fn adaptive_hardly_spins_for_what_takes_longer() {
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        spins_after(&mut state, 0, 120, 100);
        let mut now_us = 1_000_000;
        let spun = (0..800).filter(|_| {
            let from = at_us(now_us);
            now_us += 120;
            pass(&mut state, from, at_us(now_us))
        });
        let spun = spun.count();
        assert!((99..=101).contains(&spun), "one in eight, not {spun}");
    }

    #[test]
    fn adaptive_ends_a_spin_at_its_budget() {
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        assert!(state.should_spin(at_us(0), true, NOWHERE));
        assert!(state.should_spin(at_us(49), false, NOWHERE));
        assert!(!state.should_spin(at_us(50), false, NOWHERE));
    }

    #[test]
    fn the_other_policies_are_constant() {
        assert!(!IdleState::new(Idle::Efficient).should_spin(at_us(0), true, NOWHERE));
        let mut latency = IdleState::new(Idle::Latency);
        latency.should_spin(at_us(0), true, NOWHERE);
        assert!(latency.should_spin(at_us(10_000_000), false, NOWHERE));
    }

    #[test]
    fn it_makes_room_on_its_processor_and_spins_again_when_that_is_its_own() {
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        let mut now_us = 0;
        for round in 0..40 {
            let is_in_the_way = (20..30).contains(&round);
            let told = Cell::new(None);
            let spins = state.should_spin(at_us(now_us), true, |has_paid| {
                told.set(Some(has_paid));
                is_in_the_way
            });
            assert_eq!(spins, !is_in_the_way, "{round}");
            let has_paid = (1..21).contains(&round) || round > 30;
            assert_eq!(told.get(), Some(has_paid), "{round}");
            now_us += 10;
            if spins {
                assert!(state.should_spin(at_us(now_us), false, NOWHERE));
            }
            state.on_wake(at_us(now_us));
        }
    }
}
