//! The hierarchical timer wheel.
//!
//! A deadline is rounded *up* to a tick of 2^16 ns (65.5 us) and a timer fires once the clock's
//! tick, rounded *down*, has reached it. So no timer fires early, and none is more than one tick
//! late once [`Wheel::advance`] is called on time. The finest level decides that bound: a tick much
//! below the cost of a sleep and wake-up of a core (tens of microseconds) would cascade more often
//! without firing anything sooner, and a coarser one would show in deadlines of a millisecond.
//!
//! Each level has 64 slots, 64 times as wide as those of the level below, and one word that says
//! which are occupied. A timer sits at the level of the highest bit group in which its deadline
//! differs from the clock, and moves down as the clock enters its slot: at most once per level.
//! Each slot knows when its earliest timer is due, so that a core that sleeps is not woken to move
//! timers down: it wakes when one fires.

use core::mem;

use thiserror::Error;

use crate::time::Time;

/// Most timers pending in one wheel.
pub const TIMERS_MAX: usize = 1 << 18;
/// Width of the finest slot, and so the latest that a timer fires after its deadline, in ns.
pub const TICK_NS: u64 = 1 << TICK_BITS;

const TICK_BITS: u32 = 16;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_MASK: u64 = SLOTS as u64 - 1;
/// 48 bits of ticks are eight levels; the ninth holds deadlines in the last tick, which no clock
/// reaches ("never").
const LEVELS: usize = 9;
/// The first tick that lies beyond every [`Time`].
const NEVER_TICK: u64 = 1 << (u64::BITS - TICK_BITS);
/// No node.
const NIL: u32 = u32::MAX;

const _: () = assert!(TIMERS_MAX < NIL as usize);
const _: () = assert!(LEVELS * SLOT_BITS as usize > (u64::BITS - TICK_BITS) as usize);
const _: () = assert!(LEVELS <= u16::BITS as usize);

/// The name of one pending timer. It goes stale when that timer fires or is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey {
    node_index: u32,
    generation: u64,
}

/// The wheel holds [`TIMERS_MAX`] timers. The payload comes back; wait for a timer to fire or
/// cancel one.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the timer wheel holds its most, {TIMERS_MAX} timers")]
pub struct TimersFull<T>(
    /// The payload that found no place.
    pub T,
);

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    /// No timer of the list is due before; one that was cancelled may have been. Meaningless in an
    /// empty list.
    earliest_tick: u64,
}

const EMPTY: List = List {
    head: NIL,
    tail: NIL,
    earliest_tick: 0,
};

#[derive(Debug)]
struct Node<T> {
    /// `None` while the node is on the free list.
    payload: Option<T>,
    deadline_tick: u64,
    generation: u64,
    prev: u32,
    /// Also the link of the free list.
    next: u32,
    /// Index into [`Wheel::lists`].
    list_index: u32,
}

/// Pending timers of one core, each with a small payload `T` such as a slot number.
///
/// Insertion and cancellation take constant time. Nodes are kept and reused: nothing is allocated
/// once the wheel has held as many timers as it will.
#[derive(Debug)]
pub struct Wheel<T> {
    /// Tick of the last [`Wheel::advance`].
    tick: u64,
    advanced_to: Time,
    len: usize,
    free_head: u32,
    nodes: Vec<Node<T>>,
    /// Level by level, slot by slot.
    lists: Box<[List]>,
    /// Per level: the slots whose list is not empty.
    occupied: [u64; LEVELS],
    /// The levels with an occupied slot.
    occupied_levels: u16,
}

impl<T> Wheel<T> {
    /// An empty wheel whose clock stands at `origin`.
    #[must_use]
    pub fn new(origin: Time) -> Self {
        Self {
            tick: tick_reached(origin),
            advanced_to: origin,
            len: 0,
            free_head: NIL,
            nodes: Vec::new(),
            lists: vec![EMPTY; LEVELS * SLOTS].into_boxed_slice(),
            occupied: [0; LEVELS],
            occupied_levels: 0,
        }
    }

    /// The number of pending timers.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer is pending.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a timer that fires at `at`, or in the next [`Wheel::advance`] if `at` has passed.
    ///
    /// A deadline in the last tick of the clock's range, such as [`Time::MAX`], never fires.
    ///
    /// # Errors
    /// [`TimersFull`] with the payload, if [`TIMERS_MAX`] timers are pending.
    pub fn insert(&mut self, at: Time, payload: T) -> Result<TimerKey, TimersFull<T>> {
        if self.len == TIMERS_MAX {
            return Err(TimersFull(payload));
        }
        let node_index = self.claim_node();
        let deadline_tick = at.as_ns().div_ceil(TICK_NS).max(self.tick);
        let node = &mut self.nodes[node_index as usize];
        assert!(node.payload.is_none(), "a free node holds no payload");
        node.payload = Some(payload);
        node.deadline_tick = deadline_tick;
        let key = TimerKey {
            node_index,
            generation: node.generation,
        };
        self.link(node_index);
        self.len += 1;
        Ok(key)
    }

    /// Takes a pending timer out and returns its payload; `None` if it has fired or has been
    /// cancelled already.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let node = self.nodes.get(key.node_index as usize)?;
        if node.generation != key.generation {
            return None;
        }
        self.unlink(key.node_index);
        Some(self.release_node(key.node_index))
    }

    /// A point no later than the first point at which [`Wheel::advance`] fires a timer, and later
    /// than the last [`Wheel::advance`]; `None` if no pending timer can ever fire.
    ///
    /// It is the tick of the first deadline, unless the timer that was the first of its slot has
    /// been cancelled: then advancing to it may fire nothing, and the next answer is closer.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Time> {
        let (list_index, start_tick) = self.first_occupied()?;
        let earliest_tick = self.lists[list_index].earliest_tick;
        assert!(
            earliest_tick >= start_tick,
            "a slot's timers lie within its width"
        );
        if earliest_tick >= NEVER_TICK {
            return None;
        }
        let next = self.advanced_to.as_ns().checked_add(1)?;
        Some(Time::from_ns((earliest_tick << TICK_BITS).max(next)))
    }

    /// Moves the clock to `now` and appends the payloads of the timers that are due to `expired`,
    /// by tick of deadline, then by order of insertion. A `now` before the last one stands still.
    pub fn advance(&mut self, now: Time, expired: &mut Vec<T>) {
        let now = now.max(self.advanced_to);
        let now_tick = tick_reached(now);
        while let Some((list_index, start_tick)) = self.first_occupied() {
            if start_tick > now_tick {
                break;
            }
            self.tick = start_tick;
            let list = self.take_list(list_index);
            if list_index < SLOTS {
                self.expire(list, expired);
            } else {
                self.cascade(list);
            }
        }
        self.tick = now_tick;
        self.advanced_to = now;
    }

    /// The first occupied slot in time and the tick at which it starts.
    ///
    /// Slots of a level lie after all slots of the levels below, because a timer's level is the
    /// highest bit group in which it differs from the clock.
    fn first_occupied(&self) -> Option<(usize, u64)> {
        if self.occupied_levels == 0 {
            return None;
        }
        let level = self.occupied_levels.trailing_zeros();
        let slot = self.occupied[level as usize].trailing_zeros();
        let shift = level * SLOT_BITS;
        let start_tick = (self.tick >> (shift + SLOT_BITS) << SLOT_BITS | u64::from(slot)) << shift;
        assert!(
            start_tick >= self.tick,
            "an occupied slot lies ahead of the clock"
        );
        Some((level as usize * SLOTS + slot as usize, start_tick))
    }

    fn expire(&mut self, list: List, expired: &mut Vec<T>) {
        let mut node_index = list.head;
        while node_index != NIL {
            let node = &self.nodes[node_index as usize];
            assert!(
                node.deadline_tick == self.tick,
                "a finest slot is one tick wide"
            );
            let next = node.next;
            expired.push(self.release_node(node_index));
            node_index = next;
        }
    }

    /// Spreads the timers of a coarse slot that the clock has entered over finer ones. These are
    /// empty until then, so the order of insertion holds.
    fn cascade(&mut self, list: List) {
        let mut node_index = list.head;
        while node_index != NIL {
            let next = self.nodes[node_index as usize].next;
            self.link(node_index);
            node_index = next;
        }
    }

    fn take_list(&mut self, list_index: usize) -> List {
        self.mark_empty(list_index);
        mem::replace(&mut self.lists[list_index], EMPTY)
    }

    /// Appends a node to the list of its deadline.
    fn link(&mut self, node_index: u32) {
        let node = &mut self.nodes[node_index as usize];
        let (level, slot) = place(self.tick, node.deadline_tick);
        let list_index = level << SLOT_BITS | slot;
        let list = &mut self.lists[list_index as usize];
        let tail = mem::replace(&mut list.tail, node_index);
        node.prev = tail;
        node.next = NIL;
        node.list_index = list_index;
        if tail == NIL {
            list.head = node_index;
            list.earliest_tick = node.deadline_tick;
        } else {
            list.earliest_tick = list.earliest_tick.min(node.deadline_tick);
            self.nodes[tail as usize].next = node_index;
        }
        self.occupied[level as usize] |= 1 << slot;
        self.occupied_levels |= 1 << level;
    }

    fn unlink(&mut self, node_index: u32) {
        let node = &self.nodes[node_index as usize];
        let (prev, next, list_index) = (node.prev, node.next, node.list_index as usize);
        if next == NIL {
            self.lists[list_index].tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
        if prev == NIL {
            self.lists[list_index].head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if self.lists[list_index].head == NIL {
            self.mark_empty(list_index);
        }
    }

    fn mark_empty(&mut self, list_index: usize) {
        let (level, slot) = (list_index / SLOTS, list_index % SLOTS);
        self.occupied[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.occupied_levels &= !(1 << level);
        }
    }

    fn claim_node(&mut self) -> u32 {
        if self.free_head != NIL {
            let node_index = self.free_head;
            self.free_head = self.nodes[node_index as usize].next;
            return node_index;
        }
        let node_index = u32::try_from(self.nodes.len()).expect("TIMERS_MAX bounds the nodes");
        self.nodes.push(Node {
            payload: None,
            deadline_tick: 0,
            generation: 0,
            prev: NIL,
            next: NIL,
            list_index: 0,
        });
        node_index
    }

    /// Frees an unlinked node: its keys go stale.
    fn release_node(&mut self, node_index: u32) -> T {
        let node = &mut self.nodes[node_index as usize];
        node.generation += 1;
        node.next = mem::replace(&mut self.free_head, node_index);
        self.len -= 1;
        node.payload.take().expect("a linked node holds a payload")
    }
}

/// The last tick that `now` has reached.
const fn tick_reached(now: Time) -> u64 {
    now.as_ns() >> TICK_BITS
}

/// The level and slot of a deadline, seen from the clock at `tick`.
fn place(tick: u64, deadline_tick: u64) -> (u32, u32) {
    assert!(
        tick <= deadline_tick,
        "a passed deadline was moved up to the clock"
    );
    let level = (u64::BITS - 1 - (tick ^ deadline_tick | SLOT_MASK).leading_zeros()) / SLOT_BITS;
    let slot = (deadline_tick >> (level * SLOT_BITS)) & SLOT_MASK;
    (level, u32::try_from(slot).expect("a slot has 6 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_tick(tick: u64) -> Time {
        Time::from_ns(tick * TICK_NS)
    }

    fn fired(wheel: &mut Wheel<u32>, now: Time) -> Vec<u32> {
        let mut expired = Vec::new();
        wheel.advance(now, &mut expired);
        expired
    }

    #[test]
    fn a_timer_fires_on_the_tick_at_or_after_its_deadline() {
        let mut wheel = Wheel::new(Time::ZERO);
        wheel.insert(Time::from_ns(TICK_NS + 1), 1).expect("room");
        wheel.insert(at_tick(1), 2).expect("room");
        assert_eq!(fired(&mut wheel, Time::from_ns(TICK_NS - 1)), []);
        assert_eq!(fired(&mut wheel, at_tick(1)), [2]);
        assert_eq!(fired(&mut wheel, Time::from_ns(2 * TICK_NS - 1)), []);
        assert_eq!(fired(&mut wheel, at_tick(2)), [1]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn every_level_is_reached_from_both_sides_of_its_edge() {
        for level in 0..8 {
            let edge = 1_u64 << (level * SLOT_BITS);
            for deadline in [edge - 1, edge, edge + 1] {
                let mut wheel = Wheel::new(Time::ZERO);
                wheel.insert(at_tick(deadline), 7).expect("room");
                let before = Time::from_ns((deadline * TICK_NS).saturating_sub(1));
                if deadline > 0 {
                    assert_eq!(fired(&mut wheel, before), [], "tick {deadline}");
                }
                assert_eq!(fired(&mut wheel, at_tick(deadline)), [7], "tick {deadline}");
            }
        }
    }

    #[test]
    fn timers_fire_by_tick_then_by_insertion_across_levels() {
        let mut wheel = Wheel::new(Time::ZERO);
        wheel.insert(at_tick(5000), 1).expect("room");
        wheel.insert(at_tick(70), 2).expect("room");
        wheel.insert(at_tick(5000), 3).expect("room");
        assert_eq!(fired(&mut wheel, at_tick(4990)), [2]);
        wheel.insert(at_tick(5000), 4).expect("room");
        wheel.insert(at_tick(4991), 5).expect("room");
        assert_eq!(fired(&mut wheel, at_tick(1 << 40)), [5, 1, 3, 4]);
    }

    #[test]
    fn far_timers_are_waited_for_at_once() {
        let mut wheel = Wheel::new(at_tick(63));
        for tick in [100_000, 4_097, 70_000_000] {
            wheel.insert(at_tick(tick), 1).expect("room");
        }
        let mut turns = Vec::new();
        while let Some(next) = wheel.next_expiry() {
            assert_eq!(fired(&mut wheel, next), [1]);
            turns.push(next);
        }
        assert_eq!(turns, [4_097, 100_000, 70_000_000].map(at_tick));
    }

    #[test]
    fn a_slot_whose_first_timer_is_gone_costs_one_turn() {
        let mut wheel = Wheel::new(Time::ZERO);
        let first = wheel.insert(at_tick(4_100), 1).expect("room");
        wheel.insert(at_tick(4_200), 2).expect("room");
        wheel.insert(at_tick(4_150), 3).expect("room");
        assert_eq!(wheel.cancel(first), Some(1));
        assert_eq!(wheel.next_expiry(), Some(at_tick(4_100)));
        assert_eq!(fired(&mut wheel, at_tick(4_100)), []);
        assert_eq!(wheel.next_expiry(), Some(at_tick(4_150)));
        assert_eq!(fired(&mut wheel, at_tick(4_150)), [3]);
        assert_eq!(wheel.next_expiry(), Some(at_tick(4_200)));
    }

    #[test]
    fn a_passed_deadline_fires_in_the_next_advance() {
        let mut wheel = Wheel::new(at_tick(100));
        wheel.insert(Time::ZERO, 1).expect("room");
        assert_eq!(wheel.next_expiry(), Some(Time::from_ns(100 * TICK_NS + 1)));
        assert_eq!(fired(&mut wheel, at_tick(100)), [1]);
        wheel.insert(Time::ZERO, 2).expect("room");
        assert_eq!(
            fired(&mut wheel, Time::ZERO),
            [2],
            "a clock that went back stands still"
        );
    }

    #[test]
    fn never_is_never() {
        let mut wheel = Wheel::new(Time::ZERO);
        let key = wheel.insert(Time::MAX, 1).expect("room");
        assert_eq!(wheel.next_expiry(), None);
        assert_eq!(fired(&mut wheel, Time::MAX), []);
        assert_eq!(wheel.next_expiry(), None);
        assert_eq!(wheel.cancel(key), Some(1));
        wheel.insert(at_tick(NEVER_TICK - 1), 2).expect("room");
        assert_eq!(
            fired(&mut wheel, Time::MAX),
            [2],
            "the last tick but that one is reached"
        );
    }

    #[test]
    fn a_stale_key_cancels_nothing() {
        let mut wheel = Wheel::new(Time::ZERO);
        let first = wheel.insert(at_tick(1), 1).expect("room");
        assert_eq!(wheel.cancel(first), Some(1));
        assert_eq!(wheel.cancel(first), None);
        let second = wheel.insert(at_tick(1), 2).expect("room");
        assert_eq!(
            wheel.cancel(first),
            None,
            "the node was reused, the key was not"
        );
        assert_eq!(fired(&mut wheel, at_tick(1)), [2]);
        assert_eq!(wheel.cancel(second), None);
    }

    #[test]
    fn the_limit_gives_the_payload_back() {
        let mut wheel = Wheel::new(Time::ZERO);
        let keys: Vec<_> = (0..TIMERS_MAX)
            .map(|i| wheel.insert(at_tick(1 + i as u64), i).expect("room"))
            .collect();
        assert_eq!(wheel.insert(Time::ZERO, 42), Err(TimersFull(42)));
        assert_eq!(wheel.len(), TIMERS_MAX);
        assert_eq!(wheel.cancel(keys[9]), Some(9));
        assert!(wheel.insert(Time::ZERO, 42).is_ok());
    }
}
