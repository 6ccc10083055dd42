//! Objects that threads get themselves: what they [see](crate::glance), and from homes on other hosts by
//! [lines](super::lines), past their own process's core, which neither carries them nor wakes for them.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    GATHERED_BYTES_MAX, GATHERED_MAX, GatherMessage, Gathered,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_runtime::Pending;
use lunette_runtime::arena::SharedMemory;
use lunette_transfer::LineSink;

use super::StoreHandle;
use super::bringing::{Brought, ObjectBytes};
use super::cores::Cores;
use super::lent::Lent;
use super::objects::Got;
use super::round::{Ended, Round, went};
use crate::error::StoreError;

/// One of several objects that has more room is left to cores, which receive from many connections at the same time.
const ROOM_BYTES_MAX: usize = 64 * 1024;
/// Room of all of several objects that one thread gets at a time.
const BYTES_MAX: usize = 256 * 1024;
/// Room of an object that a thread gets alone.
const ALONE_BYTES_MAX: usize = GATHERED_BYTES_MAX as usize;

/// How long an answer may come for.
const ARRIVING_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(BYTES_MAX <= GATHERED_BYTES_MAX as usize);

/// Objects that are being got. See [`StoreHandle::fetch`].
#[must_use = "what has not been got yet is asked for when it is finished"]
pub struct Fetching {
    cores: Arc<Cores>,
    wanted: Vec<(Vec<u8>, Vec<Lent>)>,
    known: Known,
    round: Round<Filled>,
}

/// What came of each, where that is known.
type Known = Vec<Option<Got>>;

/// What a home answers.
struct Filled {
    version: FormatVersion,
    /// Which of the objects, and how much room each has.
    places: Vec<usize>,
    rooms: Vec<usize>,
    /// In their order; none if it does not say.
    gathered: Vec<Gathered>,
    /// What of the rooms the payload goes to, from the first byte on.
    parts: VecDeque<(Lent, Range<usize>)>,
    /// The rooms, until it is known what goes there.
    into: Vec<Vec<Lent>>,
}

impl fmt::Debug for Fetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetching")
            .field("objects", &self.wanted.len())
            .field("homes", &self.round.len())
            .finish_non_exhaustive()
    }
}

impl StoreHandle {
    /// As [`bring_all`](Self::bring_all), for a thread that waits: a few homes on other hosts are asked by the thread for short
    /// objects, each on a connection that it has for that time, as by [`look_up`](Self::look_up). The thread copies what comes,
    /// in [`step`](Fetching::step).
    ///
    /// What is dropped before the end may have been written, or not; the memory is the caller's at once.
    ///
    /// # Errors
    /// With [`finish`](Fetching::finish).
    pub fn fetch(&self, wanted: Vec<(Vec<u8>, Vec<Lent>)>) -> Fetching {
        let known = self.cores.read_all_into(&wanted);
        let round = ask(&self.cores, &wanted, &known);
        Fetching {
            cores: Arc::clone(&self.cores),
            wanted,
            known,
            round: round.unwrap_or_else(Round::none),
        }
    }

    /// Room in bytes that the next value is likely to fit, if a thread does well to [fetch](Self::fetch_bytes) it. `None` if it
    /// is better left to cores from the beginning: nobody knows how long the value may be, or it is likely to be long.
    #[must_use]
    pub fn likely_bytes(&self) -> Option<usize> {
        let room_bytes = self.cores.lengths().guess();
        room_bytes.filter(|room_bytes| *room_bytes <= ALONE_BYTES_MAX)
    }

    /// As [`bring_bytes`](Self::bring_bytes), for a thread that waits: see [`fetch`](Self::fetch). What the thread gets itself
    /// comes to `room`, of [as many](Self::likely_bytes) bytes, which nobody else is to read before it has ended.
    pub fn fetch_bytes(&self, key: &[u8], room: Lent) -> FetchingBytes {
        FetchingBytes(self.fetch(vec![(key.to_vec(), vec![room])]))
    }
}

/// Asks the homes of what is not known, if threads may.
fn ask(cores: &Cores, wanted: &[(Vec<u8>, Vec<Lent>)], known: &Known) -> Option<Round<Filled>> {
    let mut left = Vec::with_capacity(wanted.len());
    let mut keys = Vec::with_capacity(wanted.len());
    let mut left_bytes = 0;
    let is_alone = known.iter().filter(|known| known.is_none()).count() == 1;
    for (place, (key, into)) in wanted.iter().enumerate() {
        let key = cores.tenant().key(key);
        if known[place].is_none() {
            let fingerprint = cores.tenant().check(&key).ok()?.fingerprint();
            let room_bytes: usize = into.iter().map(Lent::len).sum();
            left_bytes += room_bytes;
            let is_short = room_bytes <= ROOM_BYTES_MAX && left_bytes <= BYTES_MAX;
            let is_fitting = is_short || is_alone && room_bytes <= ALONE_BYTES_MAX;
            if !is_fitting || into.iter().any(Lent::is_of_device) {
                return None;
            }
            left.push((fingerprint, (place, room_bytes)));
        }
        keys.push(key);
    }
    let items = left.len();
    let (epoch, homes) = cores.far_homes(left.into_iter())?;
    if homes.is_empty() || !cores.homes_have().is_likely() {
        return None;
    }
    if homes.values().any(|places| places.len() > GATHERED_MAX) {
        return None;
    }
    let round = Round::begin(cores, (homes, items), |seat, home, places| {
        let wanted_here = places.iter().map(|&(place, room_bytes)| {
            let room_bytes = u32::try_from(room_bytes).expect("it is bounded");
            (room_bytes, Key::new(&keys[place]).expect("it has a home"))
        });
        let message = GatherMessage {
            to: seat,
            epoch,
            namespace: home.namespace,
            wanted: wanted_here.collect(),
        };
        let rooms: Vec<usize> = places.iter().map(|(_, room_bytes)| *room_bytes).collect();
        let in_all = u32::try_from(rooms.iter().sum::<usize>()).expect("they are bounded");
        let version = home.version;
        let body = |out: &mut Vec<u8>| message.encode(version, out);
        let asked = home.line.ask(Op::Gather.code(), body, in_all);
        let filled = Filled {
            version,
            into: places
                .iter()
                .map(|(place, _)| wanted[*place].1.clone())
                .collect(),
            places: places.into_iter().map(|(place, _)| place).collect(),
            rooms,
            gathered: Vec::new(),
            parts: VecDeque::new(),
        };
        (filled, went(&home.line, asked))
    });
    Some(round.ok()?.arriving_within(ARRIVING_MAX))
}

impl Fetching {
    /// Objects that have not been got yet, and of which it is not known either that there is none. When there is nothing to
    /// [wait](Self::step) for, cores are to be asked for so many.
    #[must_use]
    pub fn left(&self) -> usize {
        self.known.iter().filter(|known| known.is_none()).count()
    }

    /// Whether nothing more is to come.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.round.is_over()
    }

    /// Takes what has come, and copies it to where it was to be got. Whether nothing more is to come: what is not known then is
    /// left to cores. Else this is to be called again, after a while, or when it has [slept](Self::sleep).
    pub fn step(&mut self) -> bool {
        let (cores, known) = (&self.cores, &mut self.known);
        self.round
            .step(|filled, ended| filled.note(ended, cores, known))
    }

    /// Sleeps until something may have come, and no longer than `timeout`; it may wake for no reason.
    pub fn sleep(&mut self, timeout: Duration) {
        self.round.sleep(timeout);
    }

    /// Blocks this thread until nothing more is to come, and no longer than `timeout`; whether that is so. It looks for a
    /// while, where that has paid [lately](lunette_runtime::Patience), then sleeps.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let (cores, known) = (&self.cores, &mut self.known);
        let note = |filled: Filled, ended| filled.note(ended, cores, known);
        self.round.wait(timeout, note)
    }

    /// Has cores get what is left.
    ///
    /// # Errors
    /// With [`Brought::finish`].
    pub fn finish(self) -> Pending<Brought> {
        let Self {
            cores,
            wanted,
            known,
            ..
        } = self;
        cores.bring_rest(wanted, known)
    }
}

/// The bytes of an object that are being got. See [`StoreHandle::fetch_bytes`].
#[derive(Debug)]
#[must_use = "what has not been got yet is asked for when it is finished"]
pub struct FetchingBytes(Fetching);

/// The bytes of an object that have been got.
#[derive(Debug)]
pub enum FetchedBytes {
    /// So many lie at the front of the room.
    InRoom {
        /// How many.
        len_bytes: usize,
    },
    /// A core has brought them; of the room somebody may have written a part.
    Brought(ObjectBytes),
}

impl FetchingBytes {
    /// As [`Fetching::is_over`].
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// As [`Fetching::step`].
    pub fn step(&mut self) -> bool {
        self.0.step()
    }

    /// As [`Fetching::wait`].
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.0.wait(timeout)
    }

    /// Has a core get what is left. `None` if there is no object, or its home does not know. The room is the caller's again at
    /// once.
    ///
    /// # Errors
    /// As of [`StoreHandle::bring_bytes`].
    pub fn finish(self) -> Pending<Result<Option<FetchedBytes>, StoreError>> {
        let Fetching {
            cores,
            mut wanted,
            mut known,
            round,
        } = self.0;
        // With it goes what would still write the room.
        drop(round);
        let (key, room) = wanted.pop().expect("one object");
        drop(room);
        match known.pop().expect("one object") {
            Some(Got::Miss { is_known: true }) => Pending::ready(Ok(None)),
            Some(Got::Hit { len_bytes, .. }) => {
                cores.lengths().learn(len_bytes);
                Pending::ready(Ok(Some(FetchedBytes::InRoom { len_bytes })))
            }
            Some(Got::Miss { is_known: false }) | None => {
                let brought = cores.bring_bytes(key);
                Pending::here(async move { Ok(brought.await?.map(FetchedBytes::Brought)) })
            }
        }
    }
}

impl Filled {
    fn note(self, ended: Ended, cores: &Cores, known: &mut Known) {
        if ended != Ended::Answered {
            // What has come of it may be damaged.
            return;
        }
        let mut gathered = self.gathered.iter();
        let had_any = gathered.any(|gathered| *gathered != Gathered::Unsure {});
        cores.homes_have().learn(had_any);
        for (place, gathered) in self.places.into_iter().zip(self.gathered) {
            known[place] = match gathered {
                Gathered::Unsure {} => None,
                Gathered::Absent {} => Some(Got::Miss { is_known: true }),
                Gathered::Here {
                    version,
                    is_cut_off,
                    len_bytes,
                } => Some(Got::Hit {
                    len_bytes: len_bytes as usize,
                    object_len_bytes: len_bytes as usize,
                    version,
                    is_cut_off,
                }),
            };
        }
    }
}

impl LineSink for Filled {
    fn on_answer(&mut self, status: u16, body: &[u8], payload_len_bytes: usize) {
        if Status::from_code(status) != Status::Ok {
            // A core learns why when it asks.
            return;
        }
        let gathered = match Gathered::decode(self.version, body, &self.rooms) {
            Ok(gathered) => gathered,
            Err(fault) => {
                tracing::warn!(%fault, "a node's answer makes no sense");
                return;
            }
        };
        let in_all: usize = gathered.iter().map(|gathered| gathered.len_bytes()).sum();
        if in_all != payload_len_bytes {
            tracing::warn!(
                in_all,
                payload_len_bytes,
                "a node sends something else than it says"
            );
            return;
        }
        for (gathered, into) in gathered.iter().zip(self.into.drain(..)) {
            let mut left = gathered.len_bytes();
            for piece in into {
                let count = piece.len().min(left);
                left -= count;
                if count > 0 {
                    self.parts.push_back((piece, 0..count));
                }
            }
        }
        self.gathered = gathered;
    }

    fn on_payload(&mut self, mut bytes: &[u8]) {
        while let Some((piece, left)) = self.parts.front()
            && !bytes.is_empty()
        {
            let (now, later) = bytes.split_at(left.len().min(bytes.len()));
            piece.copy_in_at(left.start, now);
            self.on_placed(now.len());
            bytes = later;
        }
    }

    fn place(&self) -> Option<(&SharedMemory, Range<usize>)> {
        let (piece, left) = self.parts.front()?;
        Some(piece.place_of(left))
    }

    fn on_placed(&mut self, len_bytes: usize) {
        let (_, left) = self.parts.front_mut().expect("there is a place");
        left.start += len_bytes;
        if left.start == left.end {
            self.parts.pop_front();
        }
    }
}
