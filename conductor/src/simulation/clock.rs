//! What happens next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens at an instance, or at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The next request arrives.
    Arrival,
    /// The slice of a prefill instance ends.
    SliceEnd { prefill: usize },
    /// A transfer may have ended, unless transfers have begun or ended since this was planned.
    Network { plan: u64 },
    /// The step of a decode instance ends.
    StepEnd { decode: usize },
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    at_s: f64,
    number: u64,
    event: Event,
}

/// Planned events, in order of time, and of planning where times are equal.
#[derive(Debug, Default)]
pub(super) struct Clock {
    now_s: f64,
    planned: BinaryHeap<Planned>,
    number: u64,
}

impl Clock {
    pub(super) const fn now_s(&self) -> f64 {
        self.now_s
    }

    /// Plans an event that does not lie in the past.
    pub(super) fn plan(&mut self, at_s: f64, event: Event) {
        assert!(at_s >= self.now_s, "{event:?} at {at_s} is in the past");
        self.number += 1;
        self.planned.push(Planned {
            at_s,
            number: self.number,
            event,
        });
    }

    /// Goes on to the next event.
    pub(super) fn next(&mut self) -> Option<Event> {
        let planned = self.planned.pop()?;
        assert!(planned.at_s >= self.now_s, "time goes on");
        self.now_s = planned.at_s;
        Some(planned.event)
    }
}

impl Ord for Planned {
    /// The greatest is the earliest, because the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = other.at_s.total_cmp(&self.at_s);
        by_time.then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_planned() {
        let mut clock = Clock::default();
        let step = |decode| Event::StepEnd { decode };
        for (at_s, decode) in [(2.0, 0), (1.0, 1), (2.0, 2), (0.0, 3)] {
            clock.plan(at_s, step(decode));
        }
        let order: Vec<Event> = std::iter::from_fn(|| clock.next()).collect();
        assert_eq!(order, [step(3), step(1), step(0), step(2)]);
        assert_eq!(clock.now_s(), 2.0);
    }

    #[test]
    #[should_panic(expected = "in the past")]
    fn nothing_is_planned_for_the_past() {
        let mut clock = Clock::default();
        clock.plan(1.0, Event::Arrival);
        clock.next();
        clock.plan(0.5, Event::Arrival);
    }
}
