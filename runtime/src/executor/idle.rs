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

/// The policy's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleState {
    policy: Idle,
    idle_since: Option<Time>,
    /// Running mean of the idle intervals, in ns, each counted as at most 8 spin budgets so that
    /// one long pause does not take long to forget.
    mean_ns: u64,
}

impl IdleState {
    pub(super) const fn new(policy: Idle) -> Self {
        Self {
            policy,
            idle_since: None,
            mean_ns: 0,
        }
    }

    /// Whether it never spins, and so asks for no time.
    pub(super) const fn is_efficient(&self) -> bool {
        matches!(self.policy, Idle::Efficient)
    }

    /// Work arrived at `now`, after an idle interval or within none.
    pub(super) fn on_work(&mut self, now: Time) {
        let Some(since) = self.idle_since.take() else {
            return;
        };
        if let Idle::Adaptive(budget) = self.policy {
            let budget_ns = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
            let interval_ns = (now.as_ns() - since.as_ns()).min(budget_ns.saturating_mul(8));
            self.mean_ns =
                self.mean_ns - (self.mean_ns >> MEAN_SHIFT) + (interval_ns >> MEAN_SHIFT);
        }
    }

    /// Nothing to do at `now`; `worked` if this turn did something. Whether to poll once more
    /// rather than sleep.
    pub(super) fn should_spin(&mut self, now: Time, worked: bool) -> bool {
        if worked {
            self.on_work(now);
        }
        let since = *self.idle_since.get_or_insert(now);
        match self.policy {
            Idle::Efficient => false,
            Idle::Latency => true,
            Idle::Adaptive(budget) => {
                u128::from(self.mean_ns) <= budget.as_nanos() && now.since(since) < budget
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);

    fn at_us(us: u64) -> Time {
        Time::from_ns(us * 1000)
    }

    /// Feeds `rounds` intervals of `interval_us` and tells whether the core would spin after them.
    fn spins_after(state: &mut IdleState, start_us: u64, interval_us: u64, rounds: u64) -> bool {
        let mut now_us = start_us;
        for _ in 0..rounds {
            state.should_spin(at_us(now_us), false);
            now_us += interval_us;
            state.on_work(at_us(now_us));
        }
        state.should_spin(at_us(now_us), false)
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

    #[test]
    fn adaptive_ends_a_spin_at_its_budget() {
        let mut state = IdleState::new(Idle::Adaptive(BUDGET));
        assert!(state.should_spin(at_us(0), true));
        assert!(state.should_spin(at_us(49), false));
        assert!(!state.should_spin(at_us(50), false));
    }

    #[test]
    fn the_other_policies_are_constant() {
        assert!(!IdleState::new(Idle::Efficient).should_spin(at_us(0), true));
        let mut latency = IdleState::new(Idle::Latency);
        latency.should_spin(at_us(0), true);
        assert!(latency.should_spin(at_us(10_000_000), false));
    }
}
