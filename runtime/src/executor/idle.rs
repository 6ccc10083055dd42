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
    /// Spins up to this long after the last submission while work has been arriving at shorter
    /// intervals than that, or while it is seen sooner, by a ninth at least, when it spins before it
    /// sleeps. Sleeps at once while neither is so.
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
/// How often it sleeps at once where spinning first is known to gain, to see whether it still does.
const DOUBTED_EACH: u8 = 64;
/// Spinning first gains if that makes intervals shorter by more than this part of what they become.
const GAIN_PART: u64 = 8;

/// The policy's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleState {
    policy: Idle,
    idle: Option<Interval>,
    /// Whether what was queued has been handed over since it was asked last.
    has_submitted: bool,
    /// Running mean of the idle intervals, in ns, none of them counted as longer than `INTERVAL_BUDGETS_MAX`.
    mean_ns: u64,
    /// The newest one, so counted.
    last_ns: u64,
    /// Whether the newest one was spun through to its end.
    has_paid: bool,
    /// Of the intervals before which it had to be asked what promises more: running means of those that began with a spin, and
    /// of those that did not, in ns; 0 before the first one. Others are not comparable: what is spun for since that has paid
    /// comes soon, and what follows a pause is not spun for.
    spun_ns: u64,
    slept_ns: u64,
    /// Intervals since the less promising way was tried.
    not_tried: u8,
}

/// An idle interval.
#[derive(Clone, Copy, Debug)]
struct Interval {
    since: Time,
    /// When what was queued had been handed over, if that was before the spin: the budget counts from then.
    spins_since: Time,
    /// When there was nothing yet, or what ended it was seen.
    looked: Time,
    begins: Begins,
}

/// How an idle interval begins.
#[derive(Clone, Copy, Debug)]
struct Begins {
    with_spin: bool,
    /// Whether that was asked of the means of both ways.
    is_compared: bool,
}

impl Begins {
    const SURELY: Self = Self {
        with_spin: true,
        is_compared: false,
    };
    const WITH_SLEEP: Self = Self {
        with_spin: false,
        is_compared: false,
    };
}

impl IdleState {
    pub(super) const fn new(policy: Idle) -> Self {
        Self {
            policy,
            idle: None,
            has_submitted: false,
            mean_ns: 0,
            last_ns: 0,
            has_paid: false,
            spun_ns: 0,
            slept_ns: 0,
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

    /// What was queued when the idle interval began has been handed over, and nothing has come yet.
    pub(super) const fn on_submitted(&mut self) {
        self.has_submitted = true;
    }

    /// Work has been done, after an idle interval or within none. How long that took does not count.
    pub(super) fn on_work(&mut self) {
        self.has_submitted = false;
        let Some(interval) = self.idle.take() else {
            return;
        };
        if let Idle::Adaptive(budget) = self.policy {
            let longest_ns = budget_ns(budget).saturating_mul(INTERVAL_BUDGETS_MAX);
            let interval_ns = interval.looked.as_ns() - interval.since.as_ns();
            let interval_ns = interval_ns.min(longest_ns);
            self.last_ns = interval_ns;
            let begins = interval.begins;
            let looked_for = interval.looked.since(interval.spins_since);
            self.has_paid = begins.with_spin && looked_for < budget;
            count(&mut self.mean_ns, interval_ns);
            if begins.is_compared {
                let mean_ns = if begins.with_spin {
                    &mut self.spun_ns
                } else {
                    &mut self.slept_ns
                };
                if *mean_ns == 0 {
                    *mean_ns = interval_ns;
                } else {
                    count(mean_ns, interval_ns);
                }
            }
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
            spins_since: now,
            looked: now,
            begins: self.begin(budget_ns(budget), is_in_the_way),
        });
        interval.looked = now;
        if std::mem::take(&mut self.has_submitted) {
            interval.spins_since = now;
        }
        self.idle = Some(interval);
        interval.begins.with_spin && now.since(interval.spins_since) < budget
    }

    fn begin(&mut self, budget_ns: u64, is_in_the_way: impl FnOnce(bool) -> bool) -> Begins {
        let begins = self.promising(budget_ns);
        if begins.with_spin && is_in_the_way(self.has_paid) {
            Begins::WITH_SLEEP
        } else {
            begins
        }
    }

    fn promising(&mut self, budget_ns: u64) -> Begins {
        if self.mean_ns <= budget_ns || self.has_paid {
            self.not_tried = 0;
            return Begins::SURELY;
        }
        if self.last_ns >= budget_ns.saturating_mul(INTERVAL_BUDGETS_MAX) {
            return Begins::WITH_SLEEP;
        }
        // A spin that ends in a sleep is not in vain where short sleeps end sooner than long ones: systems look for a while
        // before they halt a processor.
        let gains = self.spun_ns > 0 && self.spun_ns + self.spun_ns / GAIN_PART < self.slept_ns;
        self.not_tried += 1;
        let is_tried = self.not_tried >= if gains { DOUBTED_EACH } else { TRIED_EACH };
        if is_tried {
            self.not_tried = 0;
        }
        Begins {
            with_spin: gains != is_tried,
            is_compared: true,
        }
    }
}

/// Takes an interval into a running mean.
const fn count(mean_ns: &mut u64, interval_ns: u64) {
    *mean_ns = *mean_ns - (*mean_ns >> MEAN_SHIFT) + (interval_ns >> MEAN_SHIFT);
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

    /// A drive answers in some more or less time than the budget. A sleep of 20 us and more is seen 40 us late, as the
    /// processor was halted meanwhile.
    #[test]
    fn adaptive_spins_where_that_makes_the_sleep_short() {
        let took_us = |round: u64| [52, 61, 47, 58][usize::try_from(round % 4).unwrap_or(0)];
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        let mut now_us = 1_000_000;
        let mut round = |state: &mut IdleState, number: u64, late_us: u64| {
            let spins = state.should_spin(at_us(now_us), true, NOWHERE);
            let end_us = now_us + took_us(number);
            if spins && state.should_spin(at_us(end_us), false, NOWHERE) {
                now_us = end_us;
            } else {
                now_us = if spins { end_us } else { end_us + late_us };
                state.on_wake(at_us(now_us));
            }
            spins
        };
        for number in 0..400 {
            round(&mut state, number, 40);
        }
        let spun = (0..400).filter(|&number| round(&mut state, number, 40));
        let spun = spun.count();
        assert!(spun > 380, "it spun {spun} times");
        // Where a sleep costs nothing, and nothing ends within the budget, it hardly spins.
        for number in 0..2000 {
            round(&mut state, 4 * number, 0);
        }
        let spun = (0..400).filter(|&number| round(&mut state, 4 * number, 0));
        let spun = spun.count();
        assert!(spun <= 51, "it spun {spun} times");
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

    /// One call each 10 ms, after many at once: who asks waits 150 us for the answer; who answers 5 us until that has left, or
    /// 45 as it sleeps. What either would spin for is the pause.
    #[test]
    fn adaptive_spins_rarely_before_long_pauses() {
        for soon_us in [150, 45, 5] {
            let mut state = IdleState::new(Idle::Adaptive(BUDGET));
            let mut now_us = 0;
            for _ in 0..100 {
                let from = at_us(now_us);
                now_us += 12;
                assert!(pass(&mut state, from, at_us(now_us)));
            }
            let mut spun = 0;
            for call in 0..800 {
                for took_us in [soon_us, 10_000] {
                    let from = at_us(now_us);
                    now_us += took_us;
                    let spins = pass(&mut state, from, at_us(now_us));
                    spun += u32::from(spins && call >= 100);
                }
            }
            assert!((80..=90).contains(&spun), "one in eight calls, not {spun}");
        }
    }

    /// To hand a read over takes as long as a good part of the budget.
    #[test]
    fn adaptive_spins_for_the_budget_after_the_submission() {
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        for round in 0..100 {
            let from_us = round * 1_000;
            assert!(state.should_spin(at_us(from_us), true, NOWHERE), "{round}");
            state.on_submitted();
            for after_us in [15, 64] {
                assert!(
                    state.should_spin(at_us(from_us + after_us), false, NOWHERE),
                    "{round}"
                );
            }
        }
        assert!(
            state.should_spin(at_us(1_000_000), true, NOWHERE),
            "it pays"
        );
        assert!(
            !state.should_spin(at_us(1_000_050), false, NOWHERE),
            "nothing was submitted this time"
        );
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
