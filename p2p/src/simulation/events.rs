//! What happens next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lunette_runtime_core::time::Time;

/// Events in the order of their times, and of their making where times are equal.
#[derive(Debug)]
pub(super) struct Events<E> {
    heap: BinaryHeap<Reverse<(Time, u64, Slot)>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    made: u64,
}

type Slot = usize;

impl<E> Events<E> {
    pub(super) const fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            made: 0,
        }
    }

    pub(super) fn push(&mut self, at: Time, event: E) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[slot] = Some(event);
        self.heap.push(Reverse((at, self.made, slot)));
        self.made += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(Time, E)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        let event = self.events[slot].take().expect("it was made");
        Some((at, event))
    }

    /// How many there have been.
    pub(super) const fn made(&self) -> u64 {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_in_the_order_of_times_then_of_making() {
        let mut events = Events::new();
        for (at, name) in [(2, "c"), (1, "a"), (2, "d"), (1, "b")] {
            events.push(Time::from_ns(at), name);
        }
        let first = events.pop();
        events.push(Time::from_ns(1), "b2");
        assert_eq!(first, Some((Time::from_ns(1), "a")));
        let rest = core::iter::from_fn(|| events.pop());
        let rest: Vec<_> = rest.map(|(_, name)| name).collect();
        assert_eq!(rest, ["b", "b2", "c", "d"]);
        assert_eq!(events.made(), 5);
    }
}
