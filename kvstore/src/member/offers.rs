//! What other nodes offer for replicas: their room and their load as they tell, their rack as the map does.

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_cluster::proto::map::{ClusterMap, MapMember};
use lunette_cluster::proto::rack::Rack;
use lunette_kvstore_proto::message::{NodeStat, Op};
use lunette_kvstore_proto::placement::choice::Offer;
use lunette_kvstore_proto::placement::{Seat, seat_at};
use lunette_runtime::{entropy, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;
use lunette_transfer::Attachments;

use super::core::MemberCore;
use super::replicas::Scarce;
use crate::seats::Seats;

/// How long a node may take to say how much room it has.
const STAT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long what a node has said is believed.
const STAT_KEEP: Duration = Duration::from_millis(100);
/// How long a node that said nothing is not asked again.
const SILENCE_KEEP: Duration = Duration::from_secs(1);
/// Nodes with room that are drawn for each replica.
const CANDIDATES: usize = 2;
/// Nodes that are asked at most, for each replica.
const ASKED_MAX: usize = 16;

/// What nodes have said lately. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Offers {
    known: BTreeMap<Seat, (Time, Option<NodeStat>)>,
}

/// What is known of a node without asking it.
pub(super) fn holder(map: &ClusterMap, node: NodeId) -> Offer {
    let member = map.member(node);
    Offer {
        node,
        free_bytes: 0,
        load: 0,
        rack: member.map_or(Rack::NONE, |member| member.rack),
        is_open: false,
    }
}

impl Offers {
    /// What some nodes that have no copy offer: as many as are drawn for one choice have room, if there are
    /// such, and are in racks without a copy, if some of those have.
    pub(super) async fn find(
        &mut self,
        core: &MemberCore,
        seats: &Seats,
        scarce: &Scarce,
        taken: &[Offer],
        extent_bytes: u64,
    ) -> Vec<(Seat, Offer)> {
        let map = core.map();
        let mut others: Vec<_> = map.members().iter().collect();
        others.retain(|member| {
            let has_copy = taken.iter().any(|offer| offer.node == member.id);
            !member.is_draining && has_copy == mutant::is_on(Mutant::ReplicaDoubled)
        });
        // Those in racks that have a copy are asked only where no other has room.
        let is_near = |rack| taken.iter().any(|offer| offer.rack == rack);
        let (mut near, mut apart): (Vec<&MapMember>, Vec<&MapMember>) =
            others.into_iter().partition(|member| is_near(member.rack));
        let mut found = Vec::new();
        let mut candidates = 0;
        for _ in 0..ASKED_MAX {
            if candidates == CANDIDATES {
                break;
            }
            let others = match (apart.is_empty(), candidates) {
                (false, _) => &mut apart,
                (true, 0) if !near.is_empty() => &mut near,
                (true, _) => break,
            };
            let count = others.len() as u64;
            let drawn = usize::try_from(entropy() % count).expect("an index");
            let node = others.swap_remove(drawn).id;
            let Some(seat) = seat_at(&map, node, scarce.place.key) else {
                continue;
            };
            let Some(stat) = self.stat_of(seats, seat).await else {
                continue;
            };
            let offer = offer(&map, node, &stat, scarce.cause.is_repair());
            candidates += usize::from(offer.free_bytes >= extent_bytes);
            found.push((seat, offer));
        }
        found
    }

    /// A node has taken a replica of that size.
    pub(super) fn take(&mut self, seat: Seat, extent_bytes: u64) {
        if let Some((_, Some(stat))) = self.known.get_mut(&seat) {
            for room in [&mut stat.replica_room_bytes, &mut stat.repair_room_bytes] {
                *room = room.saturating_sub(extent_bytes);
            }
        }
    }

    /// What a node has said is wrong.
    pub(super) fn forget(&mut self, seat: Seat) {
        self.known.remove(&seat);
    }

    async fn stat_of(&mut self, seats: &Seats, seat: Seat) -> Option<NodeStat> {
        let now = time::now();
        self.known.retain(|_, (until, _)| now < *until);
        if let Some((_, stat)) = self.known.get(&seat) {
            return *stat;
        }
        let stat = ask(seats, seat).await;
        let keep = if stat.is_some() {
            STAT_KEEP
        } else {
            SILENCE_KEEP
        };
        self.known.insert(seat, (time::now() + keep, stat));
        stat
    }
}

fn offer(map: &ClusterMap, node: NodeId, stat: &NodeStat, is_repair: bool) -> Offer {
    let free_bytes = if is_repair {
        stat.repair_room_bytes
    } else {
        stat.replica_room_bytes
    };
    Offer {
        free_bytes,
        load: u16::try_from(stat.load_permille).unwrap_or(u16::MAX),
        is_open: free_bytes > 0,
        ..holder(map, node)
    }
}

async fn ask(seats: &Seats, seat: Seat) -> Option<NodeStat> {
    let connection = seats.connection(seat).await.ok()?;
    let nothing = Attachments::default();
    let reply = connection.call(Op::Stat.code(), |_| {}, nothing, STAT_TIMEOUT);
    NodeStat::decode(&reply.await.ok()?.body).ok()
}
