//! Who gets a copy: two weighted random choices, and the better one of both.
//!
//! The fullest node is never chosen twice in a row by chance alone, and the emptiest is not chosen by
//! everybody at once, as it would be if the best of all were taken: what is known of the others is
//! always a little old. Randomness is an argument.
//!
//! A node that has just begun is empty, and would draw all writes, and soon all reads, of the
//! cluster. So it takes copies no faster than it could be filled in [`FILL_TIME_MIN`], but for a small share
//! at once.

use core::time::Duration;

use lunette_cluster_proto::rack::Rack;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

/// The shortest time in which an empty node is filled.
pub const FILL_TIME_MIN: Duration = Duration::from_secs(60);
/// The share of its memory that a node which has just begun takes at once: few copies do not draw all
/// reads, and need not wait.
const FILL_AT_ONCE_SHARE: u64 = 16;
/// What a free byte of a node in a rack that has a copy already is worth, beside one in another.
const SAME_RACK_SHARE: u64 = 16;
/// The load of a node that does nothing else, in thousandths.
const LOAD_FULL: u64 = 1000;

/// Of the memory below the low watermark, the share that copies which are made again leave free.
const REPAIR_SPARE_SHARE: u64 = 16;

/// How much of a memory may be used up by copies that are made again, in bytes.
///
/// They never fill it up to where eviction ends, and so bring about none; and what eviction frees, they do not
/// take (unless an object needed more room at once than lies between the watermarks, and did not come). So the
/// two cannot chase each other: where all memory is in use, copies stay missing.
#[must_use]
pub const fn repair_room_bytes(low_watermark_bytes: u64) -> u64 {
    low_watermark_bytes - low_watermark_bytes / REPAIR_SPARE_SHARE
}

/// What is known of a node that may own a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The node.
    pub node: NodeId,
    /// What fits without eviction, in bytes.
    pub free_bytes: u64,
    /// How busy it is, in thousandths.
    pub load: u16,
    /// Where it stands: what fails together.
    pub rack: Rack,
    /// Whether it may take the copy now: see [`Fill`].
    pub is_open: bool,
}

impl Offer {
    /// How likely it is to be drawn, and which of two is better.
    fn weight(&self, len_bytes: u64, taken: &[Self]) -> u64 {
        let is_taken = taken.iter().any(|other| other.node == self.node);
        if is_taken != mutant::is_on(Mutant::ReplicaDoubled)
            || !self.is_open
            || self.free_bytes < len_bytes
        {
            return 0;
        }
        let idle = LOAD_FULL.saturating_sub(self.load.into()).max(1);
        // In pieces of 4 KiB, so that the sum over a cluster fits.
        let weight = (self.free_bytes >> 12).max(1).saturating_mul(idle) / LOAD_FULL;
        let is_apart = taken.iter().all(|other| other.rack != self.rack);
        if is_apart {
            weight.max(1)
        } else {
            (weight / SAME_RACK_SHARE).max(1)
        }
    }
}

/// The node for the next copy of `len_bytes`, beside those that have one, as an index of `offers`;
/// `None` if nobody has room. `draws` are two random numbers.
#[must_use]
pub fn choose(offers: &[Offer], len_bytes: u64, taken: &[Offer], draws: [u64; 2]) -> Option<usize> {
    let weights: Vec<u64> = offers
        .iter()
        .map(|offer| offer.weight(len_bytes, taken))
        .collect();
    let total: u128 = weights.iter().copied().map(u128::from).sum();
    if total == 0 {
        return None;
    }
    let [first, second] = draws.map(|draw| draw_one(&weights, total, draw));
    Some(if weights[second] > weights[first] {
        second
    } else {
        first
    })
}

/// The index that a random number falls on, each with the probability of its weight.
fn draw_one(weights: &[u64], total: u128, draw: u64) -> usize {
    let mut left = (u128::from(draw) * total) >> 64;
    for (index, &weight) in weights.iter().enumerate() {
        match left.checked_sub(weight.into()) {
            Some(rest) => left = rest,
            None => return index,
        }
    }
    unreachable!("a draw is below the total")
}

/// How much a node that began empty may take by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    begun: Time,
    capacity_bytes: u64,
    taken_bytes: u64,
}

impl Fill {
    /// Of a node that is empty now.
    #[must_use]
    pub const fn new(now: Time, capacity_bytes: u64) -> Self {
        Self {
            begun: now,
            capacity_bytes,
            taken_bytes: 0,
        }
    }

    /// Whether a copy of that length may be taken now. It counts if it is.
    pub fn take(&mut self, now: Time, len_bytes: u64) -> bool {
        let is_open = len_bytes <= self.left_bytes(now);
        if is_open {
            self.taken_bytes = self.taken_bytes.saturating_add(len_bytes);
        }
        is_open
    }

    /// How many bytes may be taken now; `u64::MAX` once the node is like others.
    #[must_use]
    pub fn left_bytes(&self, now: Time) -> u64 {
        let age = now.since(self.begun);
        if age >= FILL_TIME_MIN {
            return u64::MAX;
        }
        let share = u128::from(self.capacity_bytes) * age.as_nanos() / FILL_TIME_MIN.as_nanos();
        let share = u64::try_from(share).expect("less than all of it");
        let at_once = self.capacity_bytes / FILL_AT_ONCE_SHARE;
        (at_once + share).saturating_sub(self.taken_bytes)
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::random::SplitMix64;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn rack(label: &str) -> Rack {
        label.parse().expect("a label")
    }

    fn offer(node: u64, free_mib: u64) -> Offer {
        Offer {
            node: NodeId(node),
            free_bytes: free_mib * MIB,
            load: 0,
            rack: rack(&format!("r{node}")),
            is_open: true,
        }
    }

    /// How often each of the offers is chosen in ten thousand times.
    fn chosen(offers: &[Offer], taken: &[Offer]) -> Vec<u32> {
        let mut random = SplitMix64::new(1);
        let mut counts = vec![0; offers.len()];
        for _ in 0..10_000 {
            let draws = [random.next(), random.next()];
            let index = choose(offers, MIB, taken, draws).expect("there is room");
            counts[index] += 1;
        }
        counts
    }

    #[test]
    fn more_room_draws_more_and_never_all() {
        let counts = chosen(&[offer(1, 100), offer(2, 200), offer(3, 400)], &[]);
        assert!(counts[0] > 100 && counts[0] < counts[1] && counts[1] < counts[2]);
        // Of two draws the better counts: the largest is chosen unless both miss it.
        let expected = 10_000.0 * (1.0 - (3.0_f64 / 7.0).powi(2));
        assert!(
            (f64::from(counts[2]) - expected).abs() < 250.0,
            "{counts:?}"
        );
    }

    #[test]
    fn who_cannot_take_it_is_never_chosen() {
        let closed = Offer {
            is_open: false,
            ..offer(2, 1000)
        };
        let busy = Offer {
            load: 1000,
            ..offer(4, 100)
        };
        let offers = [offer(1, 0), closed, offer(3, 100), busy];
        let counts = chosen(&offers, &[]);
        assert_eq!((counts[0], counts[1]), (0, 0));
        assert!(counts[2] > 9900 && counts[3] < 100, "{counts:?}");
        assert_eq!(choose(&offers[..2], MIB, &[], [1, u64::MAX]), None);
        assert_eq!(
            choose(&offers[2..3], MIB, &offers[2..3], [1, 2]),
            None,
            "it has one"
        );
        let exact = offer(5, 1);
        assert_eq!(choose(&[exact], MIB, &[], [0, u64::MAX]), Some(0));
        assert_eq!(choose(&[exact], MIB + 1, &[], [0, u64::MAX]), None);
    }

    #[test]
    fn copies_go_to_other_racks() {
        let neighbour = Offer {
            rack: rack("r9"),
            ..offer(1, 100)
        };
        let holder = Offer {
            rack: rack("r9"),
            ..offer(7, 100)
        };
        let counts = chosen(&[neighbour, offer(2, 100)], &[holder]);
        assert!(counts[1] > 9900, "{counts:?}");
    }

    #[test]
    fn copies_that_are_made_again_end_where_eviction_does_not_begin() {
        assert_eq!(repair_room_bytes(1600), 1500);
        assert_eq!((repair_room_bytes(0), repair_room_bytes(15)), (0, 15));
        assert!(repair_room_bytes(u64::MAX) < u64::MAX);
    }

    #[test]
    fn a_fresh_node_is_filled_slowly() {
        let at = |ms: u64| Time::from_ns(ms * 1_000_000);
        let mut fill = Fill::new(at(0), 960 * MIB);
        assert!(!fill.take(at(0), 60 * MIB + 1));
        assert!(fill.take(at(0), 60 * MIB), "a sixteenth at once");
        assert!(!fill.take(at(0), 1));
        assert!(fill.take(at(1000), 16 * MIB), "a sixtieth in a second");
        assert_eq!(fill.left_bytes(at(1000)), 0);
        assert!(fill.take(at(3000), 31 * MIB));
        assert_eq!(fill.left_bytes(at(3000)), MIB);
        assert!(!fill.take(at(59_999), 960 * MIB));
        assert!(fill.take(at(60_000), 9600 * MIB), "then it is like others");
    }
}
