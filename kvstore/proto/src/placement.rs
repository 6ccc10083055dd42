//! The home of a key: one core of one node.
//!
//! The node is chosen by weighted rendezvous hashing: every member draws a number from the key and
//! its own id, and the best draw, weighed, wins. So shares follow weights, nothing is stored, and
//! a member that joins or leaves moves only the keys that it wins or had won.
//!
//! A draw `u` in (0, 1) and a weight `w` score `-log2(u) / w`; the lowest score wins, which is the
//! first arrival among exponential clocks of rates `w`. Clients and nodes must agree to the last
//! bit, so there is no floating point: the logarithm is computed in fixed point from integers, and
//! scores are compared by cross-multiplication. Among members of equal weight the score falls with
//! the draw, so the highest draw wins there, and one logarithm per distinct weight suffices.

mod seat;

use core::cmp::Ordering;

use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::limits::CORES_MAX;
use thiserror::Error;

use crate::key::Fingerprint;

pub use seat::{Seat, has_seat, home_of, next_of, seats};

/// Most members of one cluster.
pub const MEMBERS_MAX: usize = 1024;

/// Fraction bits of the logarithm. The best of n draws has a score near 1/n, so 40 bits leave a
/// resolution of about 30 bits to the largest cluster.
const LOG_FRACTION_BITS: u32 = 40;
/// Constants without structure (fraction bits of the square roots of 2, 3, 5 and 7), which keep
/// the draws for nodes and those for cores apart.
const NODE_SALT: u64 = 0x6a09_e667_f3bc_c909;
const KEY_SALT: u64 = 0xbb67_ae85_84ca_a73b;
const CORE_SALT_LOW: u64 = 0x3c6e_f372_fe94_f82b;
const CORE_SALT_HIGH: u64 = 0xa54f_f53a_5f1d_36f1;

/// A node that can be the home of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity, which decides its draws: a node that comes back under its id has its keys.
    pub id: NodeId,
    /// Its share of the keys, relative to the other members' weights; above 0.
    pub weight: u32,
    /// The number of its cores: 1 to [`CORES_MAX`].
    pub cores: u16,
}

/// Why a list of members is no cluster map. The configuration is at fault.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MapFault {
    /// A cluster has at least one member.
    #[error("a cluster has no members")]
    Empty,
    /// A cluster has at most [`MEMBERS_MAX`] members.
    #[error("{members} members are above the limit of {MEMBERS_MAX}")]
    TooManyMembers {
        /// The number of members listed.
        members: usize,
    },
    /// A member without weight can be no home.
    #[error("{0} has weight 0")]
    ZeroWeight(NodeId),
    /// A member has 1 to [`CORES_MAX`] cores.
    #[error("{id} has {cores} cores, which is not within 1 to {CORES_MAX}")]
    CoresOutOfLimits {
        /// The member.
        id: NodeId,
        /// The number of its cores.
        cores: u16,
    },
    /// Two members have the same id.
    #[error("{0} is listed twice")]
    Duplicate(NodeId),
}

/// Where a key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Index into [`ClusterMap::members`].
    pub member_index: usize,
    /// The core of that member.
    pub core: CoreIndex,
}

/// The members of a cluster, in the order of their ids. The order in which they were listed does
/// not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    members: Vec<Member>,
    /// All members, those of equal weight together.
    draws: Vec<Contender>,
}

/// What the choice needs to know of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contender {
    weight: u32,
    seed: u64,
    member_index: usize,
}

impl ClusterMap {
    /// The map of these members.
    ///
    /// # Errors
    /// [`MapFault`] names the first rule that the list breaks.
    pub fn new(mut members: Vec<Member>) -> Result<Self, MapFault> {
        if members.is_empty() {
            return Err(MapFault::Empty);
        }
        if members.len() > MEMBERS_MAX {
            return Err(MapFault::TooManyMembers {
                members: members.len(),
            });
        }
        members.sort_by_key(|member| member.id);
        for (index, &Member { id, weight, cores }) in members.iter().enumerate() {
            if weight == 0 {
                return Err(MapFault::ZeroWeight(id));
            }
            if cores == 0 || usize::from(cores) > CORES_MAX {
                return Err(MapFault::CoresOutOfLimits { id, cores });
            }
            if index > 0 && members[index - 1].id == id {
                return Err(MapFault::Duplicate(id));
            }
        }
        let seed = |id: NodeId| scramble(id.0 ^ NODE_SALT);
        let mut draws: Vec<_> = (members.iter().enumerate())
            .map(|(member_index, &Member { id, weight, .. })| Contender {
                weight,
                seed: seed(id),
                member_index,
            })
            .collect();
        draws.sort_by_key(|contender| (contender.weight, contender.member_index));
        Ok(Self { members, draws })
    }

    /// The members, in the order of their ids.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The index of the member with this id.
    #[must_use]
    pub fn member_index(&self, id: NodeId) -> Option<usize> {
        self.members
            .binary_search_by_key(&id, |member| member.id)
            .ok()
    }

    /// The home of a key. Its cost grows with the number of members, by a few multiplications
    /// each.
    #[must_use]
    pub fn home(&self, fingerprint: Fingerprint) -> Home {
        let best = (self.draws)
            .chunk_by(|a, b| a.weight == b.weight)
            .map(|equals| Bid::best_of(equals, fingerprint))
            .min_by(Bid::compare)
            .expect("a cluster has at least one member");
        let member = self.members[best.member_index];
        Home {
            member_index: best.member_index,
            core: core_of(fingerprint, member.cores),
        }
    }
}

/// The best draw among members of equal weight.
struct Bid {
    /// `-log2(u)`, not yet divided by the weight.
    log: u64,
    weight: u32,
    member_index: usize,
}

impl Bid {
    fn best_of(equals: &[Contender], fingerprint: Fingerprint) -> Self {
        let (low, high) = halves(fingerprint);
        let (highest, winner) = (equals.iter())
            .map(|contender| (draw(low, high, contender.seed), contender))
            .max_by_key(|&(drawn, contender)| (drawn, contender.member_index))
            .expect("a chunk is never empty");
        Self {
            log: negative_log2(highest),
            weight: winner.weight,
            member_index: winner.member_index,
        }
    }

    /// By `log / weight`. Equal scores go to the smaller weight, so that the order is total and
    /// does not depend on who else takes part.
    fn compare(&self, other: &Self) -> Ordering {
        let scaled = u128::from(self.log) * u128::from(other.weight);
        let other_scaled = u128::from(other.log) * u128::from(self.weight);
        scaled
            .cmp(&other_scaled)
            .then(self.weight.cmp(&other.weight))
    }
}

fn halves(fingerprint: Fingerprint) -> (u64, u64) {
    let [b0, b1, b2, b3, b4, b5, b6, b7, high @ ..] = fingerprint.0.to_le_bytes();
    (
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
        u64::from_le_bytes(high),
    )
}

/// The number that the member with this seed draws for a key.
fn draw(low: u64, high: u64, seed: u64) -> u64 {
    scramble(fold(low ^ seed, high ^ seed.rotate_left(32) ^ KEY_SALT))
}

/// The core of a key within its node. The draw does not depend on the node and is
/// independent of the draws for nodes.
fn core_of(fingerprint: Fingerprint, cores: u16) -> CoreIndex {
    let (low, high) = halves(fingerprint);
    let drawn = scramble(fold(low ^ CORE_SALT_LOW, high ^ CORE_SALT_HIGH));
    let core = (u128::from(drawn) * u128::from(cores)) >> 64;
    CoreIndex(u16::try_from(core).expect("below the number of cores"))
}

/// Both halves of the 128-bit product, combined.
fn fold(a: u64, b: u64) -> u64 {
    let [low @ .., b8, b9, b10, b11, b12, b13, b14, b15] =
        (u128::from(a) * u128::from(b)).to_le_bytes();
    let high = [b8, b9, b10, b11, b12, b13, b14, b15];
    u64::from_le_bytes(low) ^ u64::from_le_bytes(high)
}

/// A bijection in which each bit of the result depends on each bit of `value`: the finalizer of
/// SplitMix64 (Steele, Lea and Flood, 2014).
const fn scramble(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// `-log2(u)` for the number `u` in (0, 1) that `drawn` stands for, with [`LOG_FRACTION_BITS`]
/// bits behind the point; above 0.
///
/// The lowest bit of `drawn` is taken as set, so that `u` is never 0. The fraction comes bit by bit:
/// squaring a mantissa in [1, 2) doubles its logarithm, whose whole part is the next bit. Every step
/// rounds down and keeps order, so a higher draw never has the higher result.
fn negative_log2(drawn: u64) -> u64 {
    let drawn = drawn | 1;
    let zeros = drawn.leading_zeros();
    let mut mantissa = drawn << zeros;
    let mut fraction = 0_u64;
    for _ in 0..LOG_FRACTION_BITS {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let carry = u32::from(square >> 64 != 0);
        mantissa = u64::try_from(square >> carry).expect("a mantissa has 64 bits");
        fraction = fraction << 1 | u64::from(carry);
    }
    let log2 = u64::from(63 - zeros) << LOG_FRACTION_BITS | fraction;
    (64 << LOG_FRACTION_BITS) - log2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, weight: u32, cores: u16) -> Member {
        Member {
            id: NodeId(id),
            weight,
            cores,
        }
    }

    /// Computed apart from this code, with logarithms in floating point. A change of any of these
    /// moves every key of every running cluster.
    #[test]
    fn golden_homes() {
        let members = vec![
            member(1, 1, 4),
            member(2, 2, 8),
            member(0xdead_beef, 1, 1),
            member(4, 7, 16),
        ];
        let map = ClusterMap::new(members).expect("valid");
        for (fingerprint, member_index, core) in [
            (0, 0, 2),
            (1, 2, 1),
            (2, 0, 1),
            (1 << 64, 3, 0),
            (1 << 127, 2, 8),
            (u128::MAX, 1, 3),
            (0x0123_4567_89ab_cdef_0011_2233_4455_6677, 0, 2),
            (0x139f_9c9a_210a_5578_f526_0bf1_4544_d9a7, 2, 14),
        ] {
            let home = Home {
                member_index,
                core: CoreIndex(core),
            };
            assert_eq!(map.home(Fingerprint(fingerprint)), home, "{fingerprint:#x}");
        }
    }

    #[test]
    fn the_logarithm_is_exact_to_its_last_bits() {
        let scale = f64::from(1_u32 << 20) * f64::from(1_u32 << (LOG_FRACTION_BITS - 20));
        let mut drawn = 1_u64;
        for step in 0..100_000_u64 {
            drawn = scramble(drawn.wrapping_add(step)) >> (step % 60);
            #[expect(
                clippy::cast_precision_loss,
                reason = "53 bits are enough to compare with"
            )]
            let (odd, log) = ((drawn | 1) as f64, negative_log2(drawn) as f64);
            assert!(
                (log / scale - (64.0 - odd.log2())).abs() < 1e-11,
                "{drawn:#x}"
            );
        }
        assert_eq!(negative_log2(0), 64 << LOG_FRACTION_BITS);
        assert_eq!(negative_log2(1 << 63), 1 << LOG_FRACTION_BITS);
        assert_eq!(
            negative_log2(u64::MAX),
            1,
            "never 0: a score of 0 would forget the weight"
        );
    }

    #[test]
    fn the_logarithm_keeps_order() {
        for base in (0..64).map(|bit| 1_u64 << bit) {
            for drawn in base.saturating_sub(100)..base.saturating_add(100) {
                assert!(negative_log2(drawn) >= negative_log2(drawn.saturating_add(1)));
            }
        }
    }

    #[test]
    fn a_map_refuses_what_breaks_its_rules() {
        assert_eq!(ClusterMap::new(vec![]), Err(MapFault::Empty));
        assert_eq!(
            ClusterMap::new(vec![member(1, 0, 1)]),
            Err(MapFault::ZeroWeight(NodeId(1)))
        );
        for cores in [0, 257] {
            let fault = MapFault::CoresOutOfLimits {
                id: NodeId(1),
                cores,
            };
            assert_eq!(ClusterMap::new(vec![member(1, 1, cores)]), Err(fault));
        }
        assert!(ClusterMap::new(vec![member(1, 1, 256)]).is_ok());
        let twice = vec![member(1, 1, 1), member(2, 1, 1), member(1, 5, 2)];
        assert_eq!(ClusterMap::new(twice), Err(MapFault::Duplicate(NodeId(1))));
        let many =
            |members: u64| ClusterMap::new((0..members).map(|id| member(id, 1, 1)).collect());
        assert!(many(MEMBERS_MAX as u64).is_ok());
        let fault = MapFault::TooManyMembers {
            members: MEMBERS_MAX + 1,
        };
        assert_eq!(many(MEMBERS_MAX as u64 + 1), Err(fault));
    }

    #[test]
    fn members_are_found_by_id() {
        let map = ClusterMap::new(vec![member(9, 1, 1), member(3, 1, 1)]).expect("valid");
        assert_eq!(map.member_index(NodeId(9)), Some(1));
        assert_eq!(map.members()[0].id, NodeId(3));
        assert_eq!(map.member_index(NodeId(4)), None);
    }
}
