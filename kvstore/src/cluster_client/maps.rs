//! Where a client's maps come from: any member tells the newest that it knows.

use std::cell::RefCell;
use std::iter;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt};
use lunette_cluster::proto::map::{ClusterMap, MapMember};
use lunette_kvstore_proto::asker::MAP_PAUSE;
use lunette_kvstore_proto::message::{FormatVersions, NodeCard, NodeStat, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::{entropy, time};
use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::time::Time;
use lunette_transfer::{Attachments, Connection};

use super::asking::Asking;
use super::turns::by_turns;
use crate::error::{ClusterError, StoreError, StoreErrorKind};
use crate::seats::{Linking, SeatFault, Seats, connect};

/// How long a member may take to tell its map.
const MAP_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a client that has connections looks for a newer map that it does not know to want.
const MAP_LOOK: Duration = Duration::from_secs(5);
/// Least pause between two looks.
const LOOK_MIN: Duration = Duration::from_millis(20);
/// Longest pause between two looks while a newer map is wanted: each is twice as long as the one before that found none.
const LOOK_PAUSE_MAX: Duration = MAP_PAUSE;
/// Those that are asked in one look, and that tell the map that is known: what more than these do not know will be known by
/// the next look.
const BEHIND_MAX: usize = 3;
/// Members that are asked in one look, reached or not, before the seeds.
const ASKED_MAX: usize = 8;

/// The first core of one member, each member by turns, and where it listens; `None` if there are none.
pub(super) fn any_seat(map: &ClusterMap, turn: u64) -> Option<(Seat, SocketAddr)> {
    let members = map.members();
    let count = u64::try_from(members.len()).expect("bounded");
    let index = usize::try_from(turn.checked_rem(count)?).expect("an index");
    let member = &members[index];
    let seat = Seat {
        node: member.id,
        incarnation: member.incarnation,
        core: CoreIndex(0),
    };
    Some((seat, member.address))
}

/// The map of the first seed that tells one, asked by turns. Those that can be reached are asked until `deadline`:
/// they may be about to join.
pub(super) async fn first(
    linking: &Linking,
    seeds: &[SocketAddr],
    deadline: Time,
) -> Result<ClusterMap, ClusterError> {
    let mut why = ClusterError::NoMap;
    loop {
        let mut is_waiting = false;
        let asked = seeds.iter().map(|&seed| seed_map(seed, linking));
        let told = by_turns(asked, linking.connect_timeout + MAP_TIMEOUT, |told| {
            match told {
                Ok(Some(map)) => return ControlFlow::Break(map),
                Ok(None) => {
                    is_waiting = true;
                    why = ClusterError::NoMap;
                }
                Err(error) => why = error,
            }
            ControlFlow::Continue(())
        });
        if let Some(map) = told.await {
            return Ok(map);
        }
        if time::now() >= deadline || !is_waiting {
            return Err(why);
        }
        time::sleep(LOOK_MIN).await;
    }
}

/// The map that a seed tells; `None` if it has none yet.
async fn seed_map(seed: SocketAddr, linking: &Linking) -> Result<Option<ClusterMap>, ClusterError> {
    let connected = connect(seed, linking).await;
    let connection = connected.map_err(|error| ClusterError::Connect { node: seed, error })?;
    check(seed, &connection)?;
    match told(&connection).await {
        Ok(map) => Ok(Some(map)),
        Err(Status::Unsupported) => Err(ClusterError::NoMember { node: seed }),
        Err(_status) => Ok(None),
    }
}

/// The map that a member tells.
async fn told(connection: &Connection) -> Result<ClusterMap, Status> {
    let nothing = Attachments::default();
    let reply = connection.call(Op::Map.code(), |_| {}, nothing, MAP_TIMEOUT);
    let reply = reply.await.map_err(|_failure| Status::Unavailable)?;
    match Status::from_code(reply.status) {
        Status::Ok => ClusterMap::decode(&reply.body).map_err(|_fault| Status::Internal),
        status => Err(status),
    }
}

/// Whether it is a store node that speaks one of our versions.
fn check(node: SocketAddr, connection: &Connection) -> Result<(), ClusterError> {
    let card = NodeCard::decode(&connection.agreement().greeting)
        .map_err(|fault| ClusterError::Greeting { node, fault })?;
    let common = card.common_version();
    let ours = FormatVersions::OURS;
    common.map_err(|theirs| ClusterError::Versions { node, ours, theirs })?;
    Ok(())
}

/// Keeps the map new: when it is known to be old or may be, and once in a while.
pub(super) async fn keep(asking: Rc<Asking>, seeds: Vec<SocketAddr>) {
    let mut pause = LOOK_MIN;
    loop {
        let looked = time::now();
        let is_wanted = time::timeout(MAP_LOOK, asking.stale.raised()).await.is_ok();
        let wanted = time::now();
        let map = if is_wanted {
            newer(&asking, &seeds).await
        } else {
            look(&asking).await
        };
        // What was looked for in vain so long ago is another matter.
        let is_again = is_wanted && wanted.since(looked) < LOOK_PAUSE_MAX;
        pause = match map {
            Some(map) => {
                asking.on_map(map);
                LOOK_MIN
            }
            None if is_again => LOOK_PAUSE_MAX.min(pause * 2),
            None => LOOK_MIN,
        };
        time::sleep(pause).await;
    }
}

/// The map of some member to which there is a connection, if it is newer. A client that asks nobody for anything
/// keeps no connection for this; it learns of a newer map when it has asked the wrong member.
async fn look(asking: &Asking) -> Option<ClusterMap> {
    let link = asking.seats.any_open(entropy())?;
    let map = told(&link).await.ok()?;
    (map.epoch() > asking.map().epoch()).then_some(map)
}

/// A map of a member of the one known, some of which are asked by turns in random order, or else of a seed that was not asked so.
/// The first that is newer is taken.
async fn newer(asking: &Asking, seeds: &[SocketAddr]) -> Option<ClusterMap> {
    let known = asking.map();
    let mut members: Vec<&MapMember> = known.members().iter().collect();
    let asked = RefCell::default();
    let mut left = ASKED_MAX.min(members.len());
    let drawn = iter::from_fn(|| {
        left = left.checked_sub(1)?;
        let index = usize::try_from(entropy() % members.len() as u64).expect("an index");
        let member = members.swap_remove(index);
        Some(Either::Left(member_map(asking, member, &asked)))
    });
    // Where a member was asked for in vain, somebody else may listen who knows another map.
    let others = seeds.iter().filter(|seed| !asked.borrow().contains(seed));
    let others = others.map(|&seed| {
        let told = seed_map(seed, asking.seats.linking());
        Either::Right(told.map(|told| told.ok().flatten()))
    });
    let mut behind = 0;
    let newer = by_turns(drawn.chain(others), MAP_TIMEOUT, |told| match told {
        Some(map) if map.epoch() > known.epoch() => ControlFlow::Break(Some(map)),
        Some(_) if behind + 1 == BEHIND_MAX => ControlFlow::Break(None),
        told => {
            behind += usize::from(told.is_some());
            ControlFlow::Continue(())
        }
    });
    newer.await.flatten()
}

/// The map that a member tells. It is among those that are `asked`, unless somebody else listens there.
async fn member_map(
    asking: &Asking,
    member: &MapMember,
    asked: &RefCell<Vec<SocketAddr>>,
) -> Option<ClusterMap> {
    let address = member.address;
    asked.borrow_mut().push(address);
    let seat = Seat {
        node: member.id,
        incarnation: member.incarnation,
        core: CoreIndex(0),
    };
    // Room for one may be taken by others for long, who are tried in vain because this map is old.
    if asking.seats.is_full() && asking.seats.live(seat).is_none() {
        let told = seed_map(address, asking.seats.linking()).await;
        return told.ok().flatten();
    }
    match asking.seats.connection(seat).await {
        Ok(connection) => told(&connection).await.ok(),
        Err(SeatFault::Connect(_)) => None,
        Err(_fault) => {
            asked.borrow_mut().retain(|asked| *asked != address);
            None
        }
    }
}

/// What one seat holds and has counted.
pub(super) async fn stat(
    seats: &Seats,
    seat: Seat,
    timeout: Duration,
) -> Result<NodeStat, StoreError> {
    let connection = seats.connection(seat).await;
    let connection = connection.map_err(|fault| {
        StoreError::local(match fault {
            SeatFault::Versions { theirs } => {
                let ours = FormatVersions::OURS;
                StoreErrorKind::Versions { ours, theirs }
            }
            _ => StoreErrorKind::Reconnecting,
        })
    })?;
    let nothing = Attachments::default();
    let reply = connection.call(Op::Stat.code(), |_| {}, nothing, timeout);
    let reply = reply
        .await
        .map_err(|failure| StoreError::local(failure.error.into()))?;
    match Status::from_code(reply.status) {
        Status::Ok => {
            NodeStat::decode(&reply.body).map_err(|fault| StoreError::local(fault.into()))
        }
        status => Err(StoreError::local(StoreErrorKind::Refused(status))),
    }
}
