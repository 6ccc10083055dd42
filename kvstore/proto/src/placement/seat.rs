//! Seats: the cores of the members of a map, in one life each.

use lunette_cluster_proto::map::{ClusterMap, Epoch};
use lunette_runtime_core::ids::{CoreIndex, NodeId};

use super::core_of;
use crate::key::Fingerprint;

/// One core of one life of a node. It is the home of some keys, the owner of some copies, or both.
///
/// A node that starts again has another incarnation, and with it other seats: what was held or
/// recorded at the old ones is gone, and nobody can mistake the new ones for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// The node.
    pub node: NodeId,
    /// Which of its lives.
    pub incarnation: u64,
    /// The core.
    pub core: CoreIndex,
}

fn seat_of(map: &ClusterMap, node: NodeId, key: Fingerprint) -> Seat {
    let member = map.member(node).expect("the ranking is of members");
    Seat {
        node,
        incarnation: member.incarnation,
        core: core_of(key, member.cores),
    }
}

/// The home of a key; `None` if no member may be one.
#[must_use]
pub fn home_of(map: &ClusterMap, key: Fingerprint) -> Option<Seat> {
    let node = map.home(key.placement())?;
    Some(seat_of(map, node, key))
}

/// Who would be the home if the home were gone: there tombstones are kept too.
#[must_use]
pub fn next_of(map: &ClusterMap, key: Fingerprint) -> Option<Seat> {
    let ranking = map.ranking(key.placement(), 2);
    let home = *ranking.first()?;
    let next = ranking.get(1).copied().or_else(|| {
        let mut others = map.members().iter().map(|member| member.id);
        others.find(|other| *other != home)
    });
    next.map(|node| seat_of(map, node, key))
}

/// The core of a node where its copies of a key are; `None` if it is no member.
#[must_use]
pub fn seat_at(map: &ClusterMap, node: NodeId, key: Fingerprint) -> Option<Seat> {
    map.member(node).is_some().then(|| seat_of(map, node, key))
}

/// Whether the map has this core of this life.
#[must_use]
pub fn has_seat(map: &ClusterMap, seat: Seat) -> bool {
    map.member(seat.node)
        .is_some_and(|member| member.incarnation == seat.incarnation && seat.core.0 < member.cores)
}

/// Whether the node of a seat has been in each map from that one on to this one, in this life: also in those of which it has not heard.
#[must_use]
pub fn is_there_since(map: &ClusterMap, seat: Seat, epoch: Epoch) -> bool {
    let own = map.member(seat.node);
    has_seat(map, seat) && own.is_some_and(|own| own.is_there_since(epoch))
}

/// All cores of all members, in order.
pub fn seats(map: &ClusterMap) -> impl Iterator<Item = Seat> + '_ {
    map.members().iter().flat_map(|member| {
        (0..member.cores).map(|core| Seat {
            node: member.id,
            incarnation: member.incarnation,
            core: CoreIndex(core),
        })
    })
}
