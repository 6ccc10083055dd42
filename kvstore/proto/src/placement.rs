//! Where a key is at home, and where a copy goes.
//!
//! The home's node is chosen by the cluster's map ([`lunette_cluster_proto::rendezvous`]): weighted
//! rendezvous hashing, of integers alone, so that every machine draws the same winner. Here the core
//! is added, by a draw of its own. Who owns a copy is chosen freely: see [`choice`].
//!
//! | module | subject |
//! |---|---|
//! | [`seat`](Seat) | one core of one life of a node; homes by the map of an epoch |
//! | [`choice`] | owners for copies, by two weighted random choices |
//! | here | a map that never changes, which a client learns from greetings |

pub mod choice;
mod seat;

use core::net::SocketAddr;

use lunette_cluster_proto::map::{self, Epoch, MapMember};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::limits::CORES_MAX;
use lunette_runtime_core::random::mix;
use thiserror::Error;

use crate::key::Fingerprint;

pub use lunette_cluster_proto::map::MEMBERS_MAX;
pub use seat::{Seat, has_seat, home_of, is_there_since, next_of, seat_at, seats};

/// Keeps the draws for cores apart from those for nodes: the fraction bits of the square root of 5.
const CORE_SALT: u64 = 0x3c6e_f372_fe94_f82b;

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
/// not matter. It is the cluster's map of one epoch that never ends, for clients that know no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    members: Vec<Member>,
    map: map::ClusterMap,
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
        // Neither decides who is a home, and a client has a connection to each already.
        let (incarnation, address) = (1, SocketAddr::from(([127, 0, 0, 1], 1)));
        let known = members.iter().map(|member| MapMember {
            home_weight: member.weight,
            cores: member.cores,
            ..MapMember::new(member.id, incarnation, address)
        });
        let map = map::ClusterMap::new(Epoch(1), 0, known.collect());
        let map = map.expect("what the cluster's map refuses was refused before");
        Ok(Self { members, map })
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
        let home = home_of(&self.map, fingerprint).expect("each member has a weight");
        let member_index = self.member_index(home.node).expect("a home is a member");
        Home {
            member_index,
            core: home.core,
        }
    }
}

/// The core of a key within its node. The draw does not depend on the node and is
/// independent of the draws for nodes.
fn core_of(fingerprint: Fingerprint, cores: u16) -> CoreIndex {
    let drawn = mix(fingerprint.placement() ^ CORE_SALT);
    let core = (u128::from(drawn) * u128::from(cores)) >> 64;
    CoreIndex(u16::try_from(core).expect("below the number of cores"))
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
    /// moves keys of every running cluster.
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
            (0, 3, 0),
            (1, 2, 6),
            (2, 1, 7),
            (1 << 64 | 7, 2, 11),
            (1 << 127, 2, 0),
            (u128::MAX, 3, 0),
            (0x0123_4567_89ab_cdef_0011_2233_4455_6677, 3, 0),
            (0x139f_9c9a_210a_5578_f526_0bf1_4544_d9a7, 2, 13),
        ] {
            let home = Home {
                member_index,
                core: CoreIndex(core),
            };
            assert_eq!(map.home(Fingerprint(fingerprint)), home, "{fingerprint:#x}");
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
