//! What runs on one core of a member beside its service: messages out and in, time, replicas.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::map::ClusterMap;
use lunette_kvstore_proto::message::directory::{ReplicaMessage, SeatMessage};
use lunette_kvstore_proto::message::{NodeStat, Op, Status};
use lunette_kvstore_proto::placement::choice::{Offer, choose};
use lunette_kvstore_proto::placement::{Seat, seat_at};
use lunette_runtime::{Receiver, Scope, entropy, time};
use lunette_transfer::{Attachments, Payload};

use super::core::{MemberCore, Scarce};
use super::post::Mail;
use crate::seats::{SeatFault, Seats};

/// How long a core that has something under way waits before it looks again.
const TICK: Duration = Duration::from_millis(5);
/// The same of one that has not.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// How long another seat may take to acknowledge a message; its sender says it again if it matters.
const TELL_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages to one seat that are not acknowledged yet; further ones wait, and are sent together.
const TELLS_MAX: usize = 32;
/// How long making one replica may take.
const REPLICATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Nodes that are asked for room, for each replica.
const CANDIDATES: usize = 2;

/// Sends what waits, once a turn: to the other cores of this node at once, to other nodes over
/// connections.
pub(super) async fn send_post(core: Rc<MemberCore>, seats: Rc<Seats>) {
    let calls = Scope::new();
    let under_way: Rc<RefCell<BTreeMap<Seat, usize>>> = Rc::default();
    loop {
        core.post.wake.raised().await;
        for seat in core.post.seats() {
            if seat.node == core.seat().node {
                while let Some(message) = core.post.take(seat) {
                    core.post.hand_over(message);
                }
                continue;
            }
            while under_way.borrow().get(&seat).copied().unwrap_or(0) < TELLS_MAX {
                let Some(message) = core.post.take(seat) else {
                    break;
                };
                *under_way.borrow_mut().entry(seat).or_default() += 1;
                let telling = tell(
                    Rc::clone(&core),
                    Rc::clone(&seats),
                    message,
                    Rc::clone(&under_way),
                );
                if let Err(error) = calls.spawn(telling) {
                    tracing::warn!(%error, "a message to another node is lost");
                    under_way.borrow_mut().remove(&seat);
                }
            }
        }
    }
}

/// Sends one message; what comes back with the acknowledgement is taken in.
async fn tell(
    core: Rc<MemberCore>,
    seats: Rc<Seats>,
    message: SeatMessage,
    under_way: Rc<RefCell<BTreeMap<Seat, usize>>>,
) {
    let to = message.to;
    let answer = told(&seats, &message).await;
    {
        let mut under_way = under_way.borrow_mut();
        if let Some(count) = under_way.get_mut(&to) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                under_way.remove(&to);
            }
        }
    }
    // There may be room for what waited.
    core.post.wake.raise();
    match answer {
        Ok(Some(message)) if message.from == to => core.on_told(message),
        Ok(_) => {}
        Err(fault) => tracing::debug!(?to, %fault, "a message to another node is lost"),
    }
}

async fn told(seats: &Seats, message: &SeatMessage) -> Result<Option<SeatMessage>, SeatFault> {
    let connection = seats.connection(message.to).await?;
    let write = |out: &mut Vec<u8>| message.encode(out);
    let nothing = Attachments::default();
    let reply = connection.call(Op::Tell.code(), write, nothing, TELL_TIMEOUT);
    let Ok(reply) = reply.await else {
        return Ok(None);
    };
    if Status::from_code(reply.status) != Status::Ok || reply.body.is_empty() {
        return Ok(None);
    }
    Ok(Some(SeatMessage::decode(&reply.body)?))
}

/// Takes in what the other cores of this node, and its membership, have to say.
pub(super) async fn take_mail(core: Rc<MemberCore>, seats: Rc<Seats>, mut mail: Receiver<Mail>) {
    while let Some(mail) = mail.recv().await {
        match mail {
            Mail::Told(message) => core.on_told(*message),
            Mail::Map(map) => {
                seats.on_map(&map);
                core.on_map(&map);
            }
            Mail::Fence(fence) => core.on_fence(fence),
            Mail::Left => core.leave(),
        }
    }
}

/// Lets time pass: often while something is under way.
pub(super) async fn keep_time(core: Rc<MemberCore>) {
    loop {
        core.on_tick();
        if core.is_idle() {
            let early = time::timeout(IDLE_TICK, core.busy.raised()).await;
            tracing::trace!(?early, "member");
        }
        time::sleep(TICK).await;
    }
}

/// Makes the replicas of copies that are to have some, one after the other.
pub(super) async fn replicate(core: Rc<MemberCore>, seats: Rc<Seats>) {
    loop {
        while let Some(scarce) = core.next_scarce() {
            replicate_one(&core, &seats, scarce).await;
        }
        core.is_scarce.raised().await;
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
            return;
        };
        taken.push(offers[index]);
        let Some(to) = seat_at(&core.map(), offers[index].node, scarce.place.key) else {
            continue;
        };
        if let Err(why) = send_replica(core, seats, scarce, to).await {
            tracing::debug!(?to, why, "a replica was not made");
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
                free_bytes: stat.capacity_bytes.saturating_sub(stat.shards.used_bytes),
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
    let reply = connection.call(Op::Stat.code(), |_| {}, nothing, TELL_TIMEOUT);
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
    let write = |out: &mut Vec<u8>| message.encode(out);
    let reply = connection.call(Op::Replicate.code(), write, attachments, REPLICATE_TIMEOUT);
    let reply = reply.await.map_err(|_failure| "the call failed")?;
    match Status::from_code(reply.status) {
        Status::Ok => Ok(()),
        Status::Full => Err("it has no room"),
        _ => Err("it was refused"),
    }
}
