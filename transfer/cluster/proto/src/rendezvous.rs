//! Whose a key or a shard is: weighted rendezvous hashing.
//!
//! Each member draws a number from the key and its own id; the draw, weighed, decides. Nothing is
//! stored, shares follow weights, and a member that joins or leaves moves only what it wins or had
//! won. With `u` in (0, 1) for the draw and `w` for the weight, the score is `-log2(u) / w` and the
//! lowest wins: the first arrival among exponential clocks of rates `w`. The arithmetic is of
//! integers alone, so that every machine comes to the same winner.

use core::cmp::Ordering;

use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::mix;

use crate::map::{ClusterMap, MapMember};

/// Keeps these draws apart from others that are made of the same ids: the fraction bits of the
/// square root of 11.
const SALT: u64 = 0x510e_527f_ade6_82d1;
/// Fraction bits of the logarithm.
const LOG_FRACTION_BITS: u32 = 40;

/// A member's claim to a key: the lowest `-log2(drawn) / weight` first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    drawn: u64,
    weight: u32,
    id: NodeId,
}

impl Claim {
    fn of(member: &MapMember, key: u64) -> Option<Self> {
        let weight = member.weight();
        let seed = mix(member.id.0 ^ SALT);
        // Twice, so that neither the key's nor the id's structure is left.
        let drawn = mix(mix(key ^ seed).wrapping_add(seed.rotate_left(32)));
        let id = member.id;
        (weight > 0).then_some(Self { drawn, weight, id })
    }

    /// Cross-multiplied; equal scores go to the higher draw, then to the lower id.
    ///
    /// A higher draw never has the higher logarithm, so that between members of one weight, which is
    /// the usual case, no logarithm is needed.
    fn compare(&self, other: &Self) -> Ordering {
        let by_score = if self.weight == other.weight {
            Ordering::Equal
        } else {
            let scaled = u128::from(negative_log2(self.drawn)) * u128::from(other.weight);
            let other_scaled = u128::from(negative_log2(other.drawn)) * u128::from(self.weight);
            scaled.cmp(&other_scaled)
        };
        let by_draw = other.drawn.cmp(&self.drawn);
        by_score.then(by_draw).then(self.id.cmp(&other.id))
    }
}

impl ClusterMap {
    /// The home of `key`, which is well mixed already; `None` if no member may be one.
    #[must_use]
    pub fn home(&self, key: u64) -> Option<NodeId> {
        let claims = self
            .members()
            .iter()
            .filter_map(|member| Claim::of(member, key));
        claims.min_by(Claim::compare).map(|claim| claim.id)
    }

    /// The first `count` members for `key`, best first: its home, and who would be next.
    #[must_use]
    pub fn ranking(&self, key: u64, count: usize) -> Vec<NodeId> {
        let claims = self
            .members()
            .iter()
            .filter_map(|member| Claim::of(member, key));
        let mut claims: Vec<Claim> = claims.collect();
        claims.sort_unstable_by(Claim::compare);
        claims.truncate(count);
        claims.into_iter().map(|claim| claim.id).collect()
    }
}

/// `-log2(u)` for the number `u` in (0, 1) that `drawn` stands for, in fixed point; above 0.
///
/// The whole part is the number of leading zeros; the fraction comes bit by bit, by squaring what
/// is left in [1, 2).
fn negative_log2(drawn: u64) -> u64 {
    let odd = drawn | 1;
    let zeros = odd.leading_zeros();
    let mut left = odd << zeros;
    let mut fraction = 0_u64;
    for _ in 0..LOG_FRACTION_BITS {
        let square = (u128::from(left) * u128::from(left)) >> 63;
        let carry = u32::from(square >> 64 != 0);
        left = u64::try_from(square >> carry).expect("it is below 2 in 64 bits");
        fraction = fraction << 1 | u64::from(carry);
    }
    let log2 = u64::from(63 - zeros) << LOG_FRACTION_BITS | fraction;
    (64 << LOG_FRACTION_BITS) - log2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Epoch;

    fn member(id: u64, home_weight: u32) -> MapMember {
        MapMember {
            home_weight,
            ..MapMember::new(NodeId(id), 1, "192.0.2.1:7000".parse().unwrap())
        }
    }

    fn map(members: Vec<MapMember>) -> ClusterMap {
        ClusterMap::new(Epoch(1), 0, members).unwrap()
    }

    /// Computed apart from this code, with logarithms in floating point. A change of any of these
    /// moves keys of every running cluster.
    #[test]
    fn golden_homes() {
        let map = map(vec![
            member(1, 1),
            member(2, 2),
            member(0xdead_beef, 1),
            member(4, 7),
        ]);
        let homes: Vec<u64> = (0..12).map(|key| map.home(mix(key)).unwrap().0).collect();
        assert_eq!(homes, [0xdead_beef, 4, 1, 4, 1, 4, 4, 4, 4, 4, 1, 2]);
    }

    #[test]
    fn shares_follow_weights() {
        let map = map(vec![member(1, 1), member(2, 2), member(3, 5), member(4, 0)]);
        let mut wins = [0_u32; 5];
        for key in 0..80_000 {
            let home = map.home(mix(key)).unwrap();
            wins[usize::try_from(home.0).unwrap()] += 1;
        }
        for (id, expected) in [(1, 10_000_u32), (2, 20_000), (3, 50_000)] {
            let off = wins[id].abs_diff(expected);
            assert!(off < expected / 25, "{id}: {}", wins[id]);
        }
        assert_eq!(wins[4], 0, "without weight it is the home of nothing");
    }

    #[test]
    fn who_drains_or_weighs_nothing_is_no_home() {
        let leaving = MapMember {
            is_draining: true,
            ..member(2, 9)
        };
        assert_eq!(map(vec![member(1, 0), leaving]).home(5), None);
        assert_eq!(map(vec![]).home(5), None);
        assert_eq!(map(vec![member(1, 1), leaving]).home(5), Some(NodeId(1)));
    }

    #[test]
    fn a_higher_draw_never_has_the_higher_logarithm() {
        for bit in 0..64 {
            let base = 1_u64 << bit;
            for drawn in base.saturating_sub(50)..base.saturating_add(50) {
                assert!(negative_log2(drawn) >= negative_log2(drawn + 1));
            }
        }
        assert_eq!(
            (negative_log2(0), negative_log2(u64::MAX)),
            (64 << LOG_FRACTION_BITS, 1)
        );
        assert_eq!(negative_log2(1 << 63), 1 << LOG_FRACTION_BITS);
    }
}
