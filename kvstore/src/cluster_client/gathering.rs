//! Gets in batches: small objects of one home come in one answer, straight to where they belong.
//!
//! A batch's keys that have little room are asked for together, by their homes. What a home does not send so,
//! because it is elsewhere, longer than its room or in parts, or because the answer is lost, is asked for by itself
//! afterwards.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    GATHERED_BYTES_MAX, GATHERED_MAX, GatherMessage, Gathered,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_transfer::{Arrange, Attachments, Room, SplitRoom};

use super::asking::Asking;
use super::calls::{Called, call_within};
use super::objects::Fetching;
use super::{ClusterClient, Fetched};
use crate::client::GetFailure;
use crate::error::{StoreError, StoreErrorKind};

/// Objects with more room come by themselves: one of them keeps a connection busy for longer than asking takes.
const ROOM_BYTES_MAX: usize = 64 * 1024;
/// Longest that an answer is waited for, before each of its objects is asked for by itself.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A get of a batch.
pub(super) struct Get {
    pub(super) key: Vec<u8>,
    /// What came of it; its room, if it is still to be asked for.
    pub(super) got: Result<Fetching, Room>,
}

/// Gets that one home is asked for in one message.
struct Part {
    home: Seat,
    /// Which of the batch they are.
    places: Vec<usize>,
    rooms: Rc<Vec<SplitRoom>>,
}

impl ClusterClient {
    /// Asks homes for what is small. What is not had so stays to be asked for.
    pub(super) async fn gather(&self, gets: &mut [Get]) {
        let parts = self.parts_of(gets);
        let (map, namespace) = (self.asking.map(), self.asking.namespace());
        let begun = parts.iter().map(|part| {
            self.asking.sights.is_asked(&self.asking, part.home);
            let places = part.places.iter().zip(part.rooms.iter());
            let wanted = places.map(|(place, room)| {
                let key = Key::new(&gets[*place].key).expect("it has a home");
                (u32::try_from(room.len()).expect("it is small"), key)
            });
            let message = GatherMessage {
                to: part.home,
                epoch: map.epoch(),
                namespace,
                wanted: wanted.collect(),
            };
            Box::pin(ask(&self.asking, message, &part.rooms))
        });
        let ended = join_all(begun).await;
        for (part, gathered) in parts.into_iter().zip(ended) {
            part.end(gathered, gets);
        }
    }

    /// What is to be asked for together; its rooms are taken.
    fn parts_of(&self, gets: &mut [Get]) -> Vec<Part> {
        let map = self.asking.map();
        let here = self.local.as_ref().map(|local| local.seat());
        let mut homes: BTreeMap<Seat, Vec<usize>> = BTreeMap::new();
        for (place, get) in gets.iter().enumerate() {
            let is_small = |room: &Room| self.asking.sights.are_sent(room.len(), ROOM_BYTES_MAX);
            if get.got.as_ref().is_err_and(is_small)
                && !self.asking.adapters.is_held(&get.key)
                && let Ok(key) = Key::new(&get.key)
                && let Some(home) = home_of(&map, key.fingerprint())
                && here != Some(home)
            {
                homes.entry(home).or_default().push(place);
            }
        }
        let mut parts = Vec::new();
        for (home, mut places) in homes {
            while !places.is_empty() {
                let rest = places.split_off(fitting(&places, gets));
                // One alone is asked for as it would be without others.
                if places.len() > 1 {
                    let rooms = places.iter().map(|place| gets[*place].lend()).collect();
                    let rooms = Rc::new(rooms);
                    parts.push(Part {
                        home,
                        places,
                        rooms,
                    });
                }
                places = rest;
            }
        }
        parts
    }
}

impl Get {
    /// The room, with nothing in its place.
    fn lend(&mut self) -> SplitRoom {
        let nothing = Err(Room::exposed(Vec::new()));
        match std::mem::replace(&mut self.got, nothing) {
            Err(room) => room.split(),
            Ok(_) => unreachable!("it was to be asked for"),
        }
    }

    fn room_bytes(&self) -> usize {
        self.got.as_ref().err().map_or(0, Room::len)
    }
}

/// How many of these places, from the first on, go into one message: at least one.
fn fitting(places: &[usize], gets: &[Get]) -> usize {
    let mut left = GATHERED_BYTES_MAX as usize;
    let fits = |place: &&usize| {
        let more = left.checked_sub(gets[**place].room_bytes());
        left = more.unwrap_or(left);
        more.is_some()
    };
    let fitting = places.iter().take(GATHERED_MAX).take_while(fits).count();
    fitting.max(1)
}

impl Part {
    /// What came of each get.
    fn end(self, gathered: Option<Vec<Gathered>>, gets: &mut [Get]) {
        let gathered = gathered.unwrap_or_default().into_iter();
        let gathered = gathered.chain(std::iter::repeat(Gathered::Unsure {}));
        // With the answer, nobody else has them any more.
        let rooms = Rc::into_inner(self.rooms);
        let rooms = rooms.into_iter().flatten().map(|room| room.join().ok());
        let rooms = rooms.chain(std::iter::repeat_with(|| None));
        for ((place, gathered), room) in self.places.into_iter().zip(gathered).zip(rooms) {
            let Some(room) = room else {
                let error = StoreError::local(StoreErrorKind::ShutDown);
                gets[place].got = Ok(Fetching::Done(Err(GetFailure { error, room: None })));
                continue;
            };
            gets[place].got = match gathered {
                Gathered::Unsure {} => Err(room),
                Gathered::Absent {} => Ok(Fetching::Done(Ok(Fetched::Miss {
                    room,
                    is_known: true,
                }))),
                Gathered::Here {
                    version,
                    is_cut_off,
                    len_bytes,
                } => Ok(Fetching::Done(Ok(Fetched::Hit {
                    room,
                    len_bytes: len_bytes as usize,
                    object_len_bytes: len_bytes as usize,
                    version,
                    is_cut_off,
                }))),
            };
        }
    }
}

/// What a home has of the keys; `None` if it does not tell soon, or not as it should. Its objects are at the front
/// of the rooms then. Nothing of an answer can land in these any more when this ends.
async fn ask(
    asking: &Asking,
    message: GatherMessage<'_>,
    rooms: &Rc<Vec<SplitRoom>>,
) -> Option<Vec<Gathered>> {
    let lens: Rc<[usize]> = rooms.iter().map(SplitRoom::len).collect();
    let spoken = Rc::new(Cell::new(FormatVersion::NEWEST));
    let body = |version, out: &mut Vec<u8>| {
        spoken.set(version);
        message.encode(version, out);
    };
    let arrange = {
        let (rooms, lens, spoken) = (Rc::clone(rooms), Rc::clone(&lens), Rc::clone(&spoken));
        Arrange::by(move |body| {
            let gathered = Gathered::decode(spoken.get(), body, &lens).ok()?;
            let parts = rooms.iter().zip(gathered);
            let parts = parts.map(|(room, gathered)| (room, 0..gathered.len_bytes()));
            Some(Room::of_parts(parts))
        })
    };
    let whole = rooms.iter().map(|room| (room, 0..room.len()));
    let attachments = Attachments {
        payload: None,
        room: Some(Room::of_parts(whole)),
        arrange: Some(arrange),
    };
    let lent = (attachments, TIMEOUT);
    let (called, room) = call_within(asking, message.to, Op::Gather, body, lent).await;
    drop(room);
    let Called::Reply(version, reply) = called else {
        return None;
    };
    if Status::from_code(reply.status) != Status::Ok {
        return None;
    }
    match Gathered::decode(version, &reply.body, &lens) {
        Ok(gathered) => {
            let in_all: usize = gathered.iter().map(|gathered| gathered.len_bytes()).sum();
            (in_all == reply.payload_len_bytes as usize).then_some(gathered)
        }
        Err(fault) => {
            tracing::warn!(%fault, "a node's answer makes no sense");
            None
        }
    }
}
