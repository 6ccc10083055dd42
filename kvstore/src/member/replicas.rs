//! Replicas: copies beyond the first, made behind the acknowledgement of a write.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::message::directory::{CopyPlace, ReplicaMessage};
use lunette_kvstore_proto::message::{NodeStat, Op, Status};
use lunette_kvstore_proto::placement::choice::{Offer, choose};
use lunette_kvstore_proto::placement::{Seat, seat_at};
use lunette_kvstore_proto::version::CopyInfo;
use lunette_runtime::{Signal, entropy};
use lunette_transfer::{Attachments, Payload};

use super::core::MemberCore;
use crate::counting::CopyCounts;
use crate::seats::Seats;

/// Copies that may wait for their replicas; further ones have none.
const SCARCE_MAX: usize = 16 * 1024;
/// How long making one replica may take.
const REPLICATE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a node may take to say how much room it has.
const STAT_TIMEOUT: Duration = Duration::from_secs(2);
/// Nodes that are asked for room, for each replica.
const CANDIDATES: usize = 2;

/// A copy that is to have replicas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scarce {
    pub(super) place: CopyPlace,
    pub(super) info: CopyInfo,
    pub(super) namespace: NamespaceKind,
}

/// The copies of one core that are to have replicas, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Scarcity {
    waiting: RefCell<VecDeque<Scarce>>,
    /// Raised when there is one.
    wake: Signal,
}

impl Scarcity {
    /// Adds a copy, if there is room for it.
    pub(super) fn push(&self, scarce: Scarce) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= SCARCE_MAX {
            tracing::warn!(place = ?scarce.place, "too many copies wait for replicas: one has none");
            return;
        }
        waiting.push_back(scarce);
        self.wake.raise();
    }

    fn next(&self) -> Option<Scarce> {
        self.waiting.borrow_mut().pop_front()
    }
}

/// Makes the replicas of copies that are to have some, one after the other.
pub(super) async fn replicate(core: Rc<MemberCore>, seats: Rc<Seats>) {
    loop {
        while let Some(scarce) = core.scarcity.next() {
            replicate_one(&core, &seats, scarce).await;
        }
        core.scarcity.wake.raised().await;
    }
}

async fn replicate_one(core: &MemberCore, seats: &Seats, scarce: Scarce) {
    let own = Offer {
        node: core.seat().node,
        free_bytes: 0,
        load: 0,
        rack: 0,
        is_open: false,
    };
    let mut taken = vec![own];
    for _ in 1..scarce.info.wanted {
        let offers = offers(core, seats, scarce, &taken).await;
        let draws = [entropy(), entropy()];
        let Some(index) = choose(&offers, scarce.info.len_bytes.into(), &taken, draws) else {
            tracing::debug!(place = ?scarce.place, "nobody has room for a replica");
            CopyCounts::add(&core.copies.replicas_failed);
            return;
        };
        taken.push(offers[index]);
        let Some(to) = seat_at(&core.map(), offers[index].node, scarce.place.key) else {
            continue;
        };
        match send_replica(core, seats, scarce, to).await {
            Ok(()) => CopyCounts::add(&core.copies.replicas_made),
            Err(why) => {
                tracing::debug!(?to, why, "a replica was not made");
                CopyCounts::add(&core.copies.replicas_failed);
            }
        }
    }
}

/// What some nodes that have no copy offer: as many as are drawn for one choice.
async fn offers(core: &MemberCore, seats: &Seats, scarce: Scarce, taken: &[Offer]) -> Vec<Offer> {
    let map: Rc<ClusterMap> = core.map();
    let mut others: Vec<_> = map.members().iter().collect();
    others.retain(|member| {
        let has_copy = taken.iter().any(|offer| offer.node == member.id);
        !member.is_draining && !has_copy
    });
    let mut offers = Vec::new();
    while offers.len() < CANDIDATES && !others.is_empty() {
        let count = others.len() as u64;
        let drawn = usize::try_from(entropy() % count).expect("an index");
        let node = others.swap_remove(drawn).id;
        let Some(seat) = seat_at(&map, node, scarce.place.key) else {
            continue;
        };
        if let Some(stat) = stat_of(seats, seat).await {
            offers.push(Offer {
                node,
                free_bytes: stat.free_bytes(),
                load: 0,
                rack: 0,
                is_open: true,
            });
        }
    }
    offers
}

async fn stat_of(seats: &Seats, seat: Seat) -> Option<NodeStat> {
    let connection = seats.connection(seat).await.ok()?;
    let nothing = Attachments::default();
    let reply = connection.call(Op::Stat.code(), |_| {}, nothing, STAT_TIMEOUT);
    NodeStat::decode(&reply.await.ok()?.body).ok()
}

async fn send_replica(
    core: &MemberCore,
    seats: &Seats,
    scarce: Scarce,
    to: Seat,
) -> Result<(), &'static str> {
    let connection = seats.connection(to).await;
    let connection = connection.map_err(|_fault| "it cannot be reached")?;
    let extent = core.bytes().borrow().extent(scarce.place);
    let extent = extent.ok_or("the copy is gone")?;
    let message = ReplicaMessage {
        to,
        info: scarce.info,
        namespace: scarce.namespace,
        key: extent.key(),
    };
    let value = extent.value();
    let attachments = Attachments {
        payload: (!value.is_empty()).then(|| Payload::region(value, extent.crc32c)),
        room: None,
    };
    let write = |out: &mut Vec<u8>| message.encode(connection.version, out);
    let reply = connection.call(Op::Replicate.code(), write, attachments, REPLICATE_TIMEOUT);
    let reply = reply.await.map_err(|_failure| "the call failed")?;
    match Status::from_code(reply.status) {
        Status::Ok => Ok(()),
        Status::Full => Err("it has no room"),
        _ => Err("it was refused"),
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster::proto::map::Epoch;
    use lunette_kvstore_proto::key::Fingerprint;
    use lunette_kvstore_proto::version::{Generation, Version, WriteKind};

    use super::*;

    fn scarce(number: usize) -> Scarce {
        let version = Version {
            epoch: Epoch(1),
            sequence: number as u64,
        };
        let key = Fingerprint(7);
        Scarce {
            place: CopyPlace { key, version },
            info: CopyInfo {
                version,
                kind: WriteKind::Put,
                generation: Generation(0),
                wanted: 2,
                len_bytes: 1,
                crc32c: 0,
            },
            namespace: NamespaceKind::Cache,
        }
    }

    #[test]
    fn copies_that_wait_are_bounded_and_keep_their_order() {
        let scarcity = Scarcity::default();
        for number in 0..=SCARCE_MAX {
            scarcity.push(scarce(number));
        }
        for number in 0..SCARCE_MAX {
            let next = scarcity.next().expect("it waits");
            assert_eq!(next.place, scarce(number).place);
        }
        assert!(scarcity.next().is_none(), "one too many");
    }
}
