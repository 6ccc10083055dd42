//! Copies that are held for this client, and where its adapters read them: nobody is asked, so no owner that is late
//! is waited for.
//!
//! Who looks an object up with a hold ([`ClusterClient::lookup`](super::super::ClusterClient::lookup),
//! [`hold_all`](super::super::ClusterClient::hold_all)) asks its owner for the place too (`Op::Reach`), and gets of
//! that key read there. A place is good for as long as its owner has said, counted from when the question was sent: the
//! copy is kept from eviction that long, and the owner's lease holds for longer. Within that time the word says
//! whether the memory is the copy's, as for every read of this kind. It is looked at behind the bytes, and the clock
//! behind the word; whatever is not as it should be is forgotten, and asked for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    Found, Held as HeldCopy, HoldWish, REACHED_MAX, ReachMessage, Reached,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::{Form, Version};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::{Attachments, Room};

use super::super::asking::Asking;
use super::super::calls::{Called, called_of};
use super::ByAdapters;
use super::messages::{self, Messaged};
use super::reading::{self, FarFault};
use crate::rails::Rail;
use crate::seats::Link;

/// Places that a client knows; beyond, gets ask.
const HELD_MAX: usize = 16 * 1024;
/// How long an owner is waited for that is to tell places; without an answer gets ask.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a copy is read.
#[derive(Clone)]
struct Place {
    owner: Seat,
    /// Its keys are good over this queue pair's adapters alone. It ends with its connection.
    rail: Weak<Rail>,
    spoken: FormatVersion,
    reached: Reached,
    /// From then on it is asked for.
    until: Time,
}

/// The places that a client knows. See the [module](self).
#[derive(Default)]
pub(super) struct Held(RefCell<BTreeMap<Box<[u8]>, Place>>);

impl Place {
    /// The queue pair over which it is read, for as long as it is good.
    fn rail(&self, now: Time) -> Option<Rc<Rail>> {
        let rail = self.rail.upgrade()?;
        (now < self.until && rail.is_open()).then_some(rail)
    }
}

impl Held {
    /// A place of this key that is good still.
    fn find(&self, key: &[u8]) -> Option<(Place, Rc<Rail>)> {
        let mut places = self.0.borrow_mut();
        let place = places.get(key)?;
        if let Some(rail) = place.rail(time::now()) {
            return Some((place.clone(), rail));
        }
        places.remove(key);
        None
    }

    fn forget(&self, key: &[u8]) {
        self.0.borrow_mut().remove(key);
    }

    /// The version of a key that is there now: a place of another one is good no more.
    fn on_version(&self, key: &[u8], version: Version) {
        let mut places = self.0.borrow_mut();
        if let Some(place) = places.get(key)
            && place.reached.bytes.version != version
        {
            places.remove(key);
        }
    }

    fn insert(&self, key: &[u8], place: Place) {
        let mut places = self.0.borrow_mut();
        if places.len() >= HELD_MAX && !places.contains_key(key) {
            let now = time::now();
            places.retain(|_, place| place.rail(now).is_some());
            if places.len() >= HELD_MAX {
                return;
            }
        }
        places.insert(key.into(), place);
    }
}

impl ByAdapters {
    /// Whether a get of this key would ask nobody.
    pub(in crate::cluster_client) fn is_held(&self, key: &[u8]) -> bool {
        self.held.find(key).is_some()
    }
}

/// Has the owners of objects that were found, and are held, tell where they are read. Those that do not are asked by
/// each get, as ever.
pub(in crate::cluster_client) async fn learn(
    asking: &Rc<Asking>,
    found: &[(Key<'_>, Found)],
    hold: HoldWish,
) {
    let by = &asking.adapters;
    if by.len() == 0 || !by.may_go(Path::Read) {
        return;
    }
    let mut owners: BTreeMap<Seat, Vec<(Version, Key<'_>)>> = BTreeMap::new();
    for (key, found) in found {
        by.held.on_version(key.bytes(), found.version);
        if found.held_ms > 0 && found.form == Form::Whole && found.len_bytes > 0 {
            let owner = found.owners.first().copied();
            let copies = owner.map(|owner| owners.entry(owner).or_default());
            copies
                .into_iter()
                .for_each(|copies| copies.push((found.version, *key)));
        }
    }
    let mut told = Vec::new();
    for (owner, copies) in owners {
        let Some((link, rail)) = ByAdapters::rail(asking, owner) else {
            continue;
        };
        for copies in copies.chunks(REACHED_MAX) {
            let message = ReachMessage {
                to: owner,
                connection: rail.name,
                namespace: asking.namespace(),
                hold,
                copies: copies.to_vec(),
            };
            let over = (link.clone(), Rc::clone(&rail));
            told.push(Box::pin(learn_of(asking, over, message)));
        }
    }
    join_all(told).await;
}

/// Has one owner tell.
async fn learn_of(asking: &Asking, (link, rail): (Link, Rc<Rail>), message: ReachMessage<'_>) {
    let (owner, spoken, asked) = (message.to, link.version, time::now());
    let body = |out: &mut Vec<u8>| message.encode(spoken, out);
    let called = match messages::ask_over(asking, &rail, Op::Reach, body).await {
        Messaged::Answered(answered) => messages::called(asking, (owner, &link), answered),
        Messaged::Lost => return,
        Messaged::No => {
            let answered = link.call(Op::Reach.code(), body, Attachments::default(), PATIENCE);
            called_of(asking, owner, spoken, answered.await).0
        }
    };
    let Called::Reply(_, reply) = called else {
        return;
    };
    match Status::from_code(reply.status) {
        Status::Ok => {}
        // The other end has been given up.
        Status::PushFailed => return asking.adapters.ears.give_up(&rail),
        _ => return,
    }
    let told = match HeldCopy::decode(spoken, &reply.body, message.copies.len()) {
        Ok(told) => told,
        Err(fault) => return tracing::warn!(%fault, "a node's answer makes no sense"),
    };
    for ((version, key), told) in message.copies.iter().zip(told) {
        match told {
            HeldCopy::At { reached } if reached.bytes.version == *version => {
                let place = Place {
                    owner,
                    rail: Rc::downgrade(&rail),
                    spoken,
                    reached,
                    until: asked + Duration::from_millis(reached.reach.held_ms.into()),
                };
                asking.adapters.held.insert(key.bytes(), place);
            }
            _ => asking.adapters.held.forget(key.bytes()),
        }
    }
}

/// Reads bytes where they are known to lie, as if they had been received. The room, if that is not known, or they are
/// not there: somebody is to be asked.
pub(in crate::cluster_client) async fn fetch(
    asking: &Rc<Asking>,
    key: &[u8],
    ranges: &[ByteRange],
    room: Room,
) -> Result<(Called, Option<Room>), Room> {
    let by = &asking.adapters;
    let Some((place, rail)) = by.held.find(key) else {
        return Err(room);
    };
    // The connection is in use meanwhile. One that has ended has taken its queue pairs along.
    let Some(_link) = asking.seats.live(place.owner) else {
        return Err(room);
    };
    let device = by.direct.place_of(&room);
    let device = device.filter(|place| place.window(rail.adapter).is_some());
    if device.is_none() && !by.is_registered(&room, rail.adapter) {
        return Err(room);
    }
    let Reached { bytes, reach } = place.reached;
    let (brought, room) = {
        let into = (room, device.clone());
        // By itself, so that what is moved about where nothing is held is short.
        Box::pin(reading::bring(asking, &rail, &reach, ranges, into)).await
    };
    let Some(room) = room else {
        return Ok((Called::Unanswered(Duration::ZERO), None));
    };
    let fault = match brought {
        Ok(len) if time::now() < place.until => {
            by.count(|counted| counted.read_unasked += 1);
            let called = reading::called(asking, place.spoken, (&bytes, len));
            return Ok((called, Some(room)));
        }
        Ok(_) => {
            if let Some(place) = device {
                place.is_not_there();
            }
            FarFault::Late
        }
        Err(fault) => fault,
    };
    if fault.is_of_the_place() {
        tracing::debug!(?fault, "a held copy is asked for after all");
        by.held.forget(key);
        by.count(|counted| counted.fallbacks += 1);
    }
    Err(room)
}

#[cfg(test)]
mod tests {
    use lunette_cluster::proto::map::Epoch;
    use lunette_kvstore_proto::message::directory::{BytesReply, Reach};
    use lunette_runtime::{CoreOptions, block_on};
    use lunette_runtime_core::ids::{CoreIndex, NodeId};

    use super::*;

    fn place(sequence: u64, until: Time) -> Place {
        let version = Version {
            epoch: Epoch(1),
            sequence,
        };
        Place {
            owner: Seat {
                node: NodeId(1),
                incarnation: 1,
                core: CoreIndex(0),
            },
            rail: Weak::new(),
            spoken: FormatVersion(1),
            reached: Reached {
                bytes: BytesReply::new(version, false, 1),
                reach: Reach {
                    address: 0,
                    key: 0,
                    word_address: 0,
                    word_key: 0,
                    number: 1,
                    len_bytes: 1,
                    crc32c: 0,
                    held_ms: 1,
                },
            },
            until,
        }
    }

    #[test]
    fn places_are_bounded_and_those_of_gone_queue_pairs_make_room() {
        let test = || async {
            let held = Held::default();
            for n in 0..HELD_MAX as u64 {
                held.insert(&n.to_le_bytes(), place(1, Time::MAX));
            }
            assert_eq!(held.0.borrow().len(), HELD_MAX);
            held.insert(b"one more", place(1, Time::MAX));
            assert_eq!(held.0.borrow().len(), 1, "their queue pairs are gone");
            assert!(held.find(b"one more").is_none(), "so is its own");
            assert!(held.0.borrow().is_empty());
        };
        block_on(None, CoreOptions::default(), test).expect("a core");
    }

    #[test]
    fn a_place_of_another_version_is_forgotten() {
        let held = Held::default();
        held.0
            .borrow_mut()
            .insert(Box::from(&b"k"[..]), place(7, Time::MAX));
        held.on_version(b"k", place(7, Time::MAX).reached.bytes.version);
        assert_eq!(held.0.borrow().len(), 1);
        held.on_version(b"k", place(8, Time::MAX).reached.bytes.version);
        assert!(held.0.borrow().is_empty());
    }
}
