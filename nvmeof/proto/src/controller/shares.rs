//! Whose command is carried out next: deficit round robin over hosts, by bytes (Shreedhar and
//! Varghese, "Efficient Fair Queueing Using Deficit Round Robin", 1995).
//!
//! Each host that has commands waiting gets a quantum of bytes in its turn, and what it does not
//! use of it stays its own until nothing of it waits any more. So hosts that have enough to do get
//! the same number of bytes, however many commands and queues they have, and a host that comes with
//! one command waits for one quantum of each of the others at most.

use std::collections::{BTreeMap, VecDeque};

/// Whose share a command counts against: as the caller numbers its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

#[derive(Debug)]
struct Share<T> {
    /// What waits, with its cost in bytes.
    waiting: VecDeque<(usize, T)>,
    deficit_bytes: usize,
}

/// What waits to be carried out, by host.
#[derive(Debug)]
pub struct Shares<T> {
    quantum_bytes: usize,
    shares: BTreeMap<HostId, Share<T>>,
    /// Hosts of which something waits, in turn.
    turns: VecDeque<HostId>,
    /// The first one of them has had its quantum.
    is_begun: bool,
    len: usize,
}

impl<T> Shares<T> {
    /// Nothing waits.
    ///
    /// # Panics
    /// If the quantum is zero.
    #[must_use]
    pub fn new(quantum_bytes: usize) -> Self {
        assert!(quantum_bytes > 0, "turns without bytes never end");
        Self {
            quantum_bytes,
            shares: BTreeMap::new(),
            turns: VecDeque::new(),
            is_begun: false,
            len: 0,
        }
    }

    /// What waits, of all hosts.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Something of a host waits; it costs `cost_bytes`, and at least one.
    pub fn push(&mut self, host: HostId, cost_bytes: usize, item: T) {
        let share = self.shares.entry(host).or_insert_with(|| {
            self.turns.push_back(host);
            Share {
                waiting: VecDeque::new(),
                deficit_bytes: 0,
            }
        });
        share.waiting.push_back((cost_bytes.max(1), item));
        self.len += 1;
    }

    /// The next one, with its cost.
    pub fn pop(&mut self) -> Option<(usize, T)> {
        loop {
            let host = *self.turns.front()?;
            let share = self.shares.get_mut(&host).expect("who has turns waits");
            if !core::mem::replace(&mut self.is_begun, true) {
                share.deficit_bytes += self.quantum_bytes;
            }
            let &(cost_bytes, _) = share.waiting.front().expect("who has turns waits");
            if cost_bytes > share.deficit_bytes {
                // It saves up what is left for its next turn.
                self.turns.rotate_left(1);
                self.is_begun = false;
                continue;
            }
            share.deficit_bytes -= cost_bytes;
            let popped = share.waiting.pop_front();
            if share.waiting.is_empty() {
                self.leave(host);
            }
            self.len -= 1;
            return popped;
        }
    }

    /// Takes out what `is_meant` of a host, wherever it waits.
    pub fn remove(&mut self, host: HostId, is_meant: impl Fn(&T) -> bool) -> Option<T> {
        let share = self.shares.get_mut(&host)?;
        let index = share.waiting.iter().position(|(_, item)| is_meant(item))?;
        let (_, item) = share.waiting.remove(index)?;
        if share.waiting.is_empty() {
            self.leave(host);
        }
        self.len -= 1;
        Some(item)
    }

    /// Takes out all that `is_meant`, of every host, each host's in its order.
    pub fn remove_all(&mut self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for share in self.shares.values_mut() {
            for (cost_bytes, item) in core::mem::take(&mut share.waiting) {
                if is_meant(&item) {
                    removed.push(item);
                } else {
                    share.waiting.push_back((cost_bytes, item));
                }
            }
        }
        let hosts = self.shares.iter();
        let gone = hosts.filter(|(_, share)| share.waiting.is_empty());
        let gone: Vec<HostId> = gone.map(|(&host, _)| host).collect();
        for host in gone {
            self.leave(host);
        }
        self.len -= removed.len();
        removed
    }

    /// Nothing of a host waits any more: what it has saved up is gone.
    fn leave(&mut self, host: HostId) {
        self.shares.remove(&host);
        if self.turns.front() == Some(&host) {
            self.is_begun = false;
        }
        self.turns.retain(|&other| other != host);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: HostId = HostId(1);
    const B: HostId = HostId(2);

    #[test]
    fn one_host_is_served_in_its_order() {
        let mut shares = Shares::new(10);
        for (cost, item) in [(100, 'a'), (0, 'b'), (7, 'c')] {
            shares.push(A, cost, item);
        }
        let served: Vec<_> = core::iter::from_fn(|| shares.pop()).collect();
        assert_eq!(served, [(100, 'a'), (1, 'b'), (7, 'c')]);
        assert!(shares.is_empty());
    }

    #[test]
    fn a_host_that_comes_with_one_command_waits_for_one_quantum() {
        let mut shares = Shares::new(64);
        for index in 0..128 {
            shares.push(A, 4, index);
        }
        for expected in 0..5 {
            assert_eq!(shares.pop(), Some((4, expected)));
        }
        shares.push(B, 4, 1000);
        // What is left of the turn of the other one.
        let before = core::iter::from_fn(|| shares.pop()).take_while(|(_, item)| *item != 1000);
        assert_eq!(before.count(), 11);
        assert_eq!(shares.len(), 128 - 16);
    }

    #[test]
    fn what_is_taken_out_is_not_served() {
        let mut shares = Shares::new(8);
        for (host, item) in [(A, 1), (A, 2), (B, 3)] {
            shares.push(host, 8, item);
        }
        assert_eq!(shares.remove(A, |&item| item == 3), None);
        assert_eq!(shares.remove(A, |&item| item == 1), Some(1));
        assert_eq!(shares.pop(), Some((8, 2)));
        assert_eq!(shares.remove(B, |_| true), Some(3));
        assert_eq!((shares.pop(), shares.len()), (None, 0));
        assert_eq!(shares.remove(B, |_| true), None);
    }

    #[test]
    fn what_is_taken_out_of_all_hosts_is_not_served() {
        let mut shares = Shares::new(8);
        for (host, item) in [(A, 1), (B, 2), (A, 3), (B, 4), (A, 5)] {
            shares.push(host, 8, item);
        }
        assert_eq!(shares.remove_all(|&item| item < 3), [1, 2]);
        assert_eq!(shares.remove_all(|&item| item == 4), [4]);
        assert_eq!(shares.len(), 2);
        assert_eq!([shares.pop(), shares.pop()], [Some((8, 3)), Some((8, 5))]);
        assert!(shares.is_empty() && shares.pop().is_none());
    }

    proptest! {
        /// Two hosts that always have something waiting get the same bytes, but for a quantum and
        /// the longest command; and nothing is lost or put before another of its host.
        #[test]
        fn hosts_that_have_enough_to_do_get_the_same(
            quantum in 1_usize..1000,
            costs in prop::collection::vec((1_usize..2000, 1_usize..2000), 1..200),
        ) {
            let mut shares = Shares::new(quantum);
            for (index, (a, b)) in costs.iter().enumerate() {
                shares.push(A, *a, (A, index));
                shares.push(B, *b, (B, index));
            }
            let (mut bytes, mut next) = ([0_usize; 2], [0; 2]);
            while let Some((cost, (host, index))) = shares.pop() {
                let of = usize::from(host == B);
                prop_assert_eq!(index, next[of]);
                next[of] += 1;
                bytes[of] += cost;
                if next.iter().all(|&count| count < costs.len()) {
                    let bound = quantum + 2000;
                    prop_assert!(bytes[0].abs_diff(bytes[1]) <= bound, "{:?}", bytes);
                }
            }
            prop_assert_eq!(next, [costs.len(); 2]);
        }
    }
}
