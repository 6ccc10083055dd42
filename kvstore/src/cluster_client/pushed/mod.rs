//! Gets whose bytes an adapter of the owner's writes to where they belong.
//!
//! A room that lies in memory which the program has [landed](super::ClusterClient::land) is named to the owner,
//! with a number for the call. The owner's adapter writes the object there, and behind it the answer, to a place of
//! the call's own, with the number as the immediate: its notice says that both are there. Then the bytes are
//! compared with their checksum. All the while the call is under way over the connection as any other, with the
//! room: where the owner does not write, it sends. What ends when ([`PushedGet`]) is the protocol's matter.
//!
//! Queue pairs are those of the connection to the seat: made when the first such get asks for them, in the
//! background, so nothing waits for them.
//!
//! | file | subject |
//! |---|---|
//! | `connecting` | queue pairs: asking for adapters, handshakes |
//! | `landing` | [`Landing`]: memory that owners may write |
//! | `notices` | the calls under way, and the notices that name them |

mod connecting;
mod landing;
mod notices;

use std::cell::Cell;
use std::rc::Rc;

use lunette_kvstore_proto::message::directory::{PushWish, PushedReply};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::pushed::{NOTICE_WAIT, PushAnswer, PushEvent, PushStep};
use lunette_kvstore_proto::range::ByteRange;
use lunette_runtime::arena::Exposed;
use lunette_runtime::time;
use lunette_runtime_core::checksum::Crc32c;
use lunette_transfer::adapters::{Adapters, RdmaOptions};
use lunette_transfer::{CallError, CallFailure, Reply, Room};
use lunette_verbs::Context;

use super::asking::Asking;
use super::calls::{CALL_TIMEOUT, Called, call, called_of, into};
use crate::rails::Picked;
use crate::seats::Link;
use landing::Landings;
pub use landing::{Landing, TooManyLandings};
pub(super) use notices::hear;
use notices::{Ears, PushCall};

/// Bytes that are summed before others on this core have their turn.
const TURN_BYTES: usize = 1024 * 1024;

/// What a client has got by owners' adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushedGets {
    /// Gets whose bytes were written to where they belong.
    pub gets: u64,
    /// How many bytes that was.
    pub bytes: u64,
    /// Gets that had to ask for the bytes after all.
    pub fallbacks: u64,
}

/// What a client has for it.
pub(super) struct Pushes {
    ears: Ears,
    landings: Rc<Landings>,
    options: RdmaOptions,
    counted: Cell<PushedGets>,
}

impl Pushes {
    /// With the adapters that the options name, and those that are given.
    pub(super) fn open(options: &RdmaOptions, given: Vec<Context>) -> Self {
        let adapters = Adapters::open(options, false, given);
        Self {
            ears: Ears::open(&adapters),
            landings: Rc::new(Landings::new(options.windows_max)),
            options: options.clone(),
            counted: Cell::default(),
        }
    }

    /// How many adapters it has.
    pub(super) const fn adapters(&self) -> usize {
        self.ears.len()
    }

    /// See [`ClusterClient::land`](super::ClusterClient::land).
    pub(super) async fn land(&self, memory: Exposed) -> Result<Landing, TooManyLandings> {
        self.landings.land(memory, self.ears.adapters()).await
    }

    pub(super) const fn counted(&self) -> PushedGets {
        self.counted.get()
    }

    fn count(&self, change: impl FnOnce(&mut PushedGets)) {
        let mut counted = self.counted.get();
        change(&mut counted);
        self.counted.set(counted);
    }

    /// What it takes to have an object written to this room by this seat, if that can be had now.
    fn begin(asking: &Rc<Asking>, seat: Seat, room: &Room) -> Option<(Link, PushCall, PushWish)> {
        let pushes = &asking.pushes;
        if pushes.adapters() == 0 || !pushes.landings.has_any_of(room) {
            return None;
        }
        let link = asking.seats.live(seat)?;
        let (missing, rail) = match link.rails.pick() {
            Picked::Nothing => return None,
            Picked::Ask => {
                asking.spawn(connecting::ask(Rc::clone(asking), seat, link));
                return None;
            }
            Picked::Rails(missing, rail) => (missing, rail),
        };
        for missing in missing {
            let connecting = connecting::connect(Rc::clone(asking), seat, link.clone(), missing);
            asking.spawn(connecting);
        }
        let rail = rail?;
        let (places, windows) = pushes.landings.places(room, rail.adapter)?;
        let (call, answer) = PushCall::begin(asking, rail, windows)?;
        let wish = PushWish {
            connection: call.rail().name,
            immediate: call.immediate(),
            answer,
            places,
        };
        Some((link, call, wish))
    }
}

/// Asks for bytes, which are written to the room or received in it, as if they had been received. `op` is
/// [`Op::Find`] or [`Op::Read`], and `body` the request's.
pub(super) async fn fetch(
    asking: &Rc<Asking>,
    (seat, op): (Seat, Op),
    body: impl Fn(FormatVersion, &mut Vec<u8>),
    ranges: &[ByteRange],
    room: Room,
) -> (Called, Option<Room>) {
    let begun = ranges
        .is_empty()
        .then(|| Pushes::begin(asking, seat, &room));
    let Some((link, call_by, wish)) = begun.flatten() else {
        return call(asking, seat, op, body, into(room)).await;
    };
    let pushed = push(asking, (seat, op), (link, call_by, wish), &body, room);
    match pushed.await {
        Ok(called) => called,
        Err(room) => {
            tracing::debug!(?seat, "bytes are asked for after all");
            asking.pushes.count(|counted| counted.fallbacks += 1);
            call(asking, seat, op, body, into(room)).await
        }
    }
}

/// The same, by an adapter; the room, if the bytes are to be asked for once more.
async fn push(
    asking: &Rc<Asking>,
    (seat, op): (Seat, Op),
    (link, mut get, wish): (Link, PushCall, PushWish),
    body: &impl Fn(FormatVersion, &mut Vec<u8>),
    room: Room,
) -> Result<(Called, Option<Room>), Room> {
    let version = link.version;
    let write = |out: &mut Vec<u8>| {
        wish.encode(version, out);
        body(version, out);
    };
    let op = if op == Op::Find {
        Op::FindPushed
    } else {
        Op::ReadPushed
    };
    let told = get.told();
    let answered = link.call_until(op.code(), write, into(room), CALL_TIMEOUT, told);
    let answered = answered.await;
    let mut step = get.on(event_of(&answered, &get));
    let (called, room) = called_of(asking, seat, version, answered);
    if step == PushStep::Wait {
        let told = time::timeout(NOTICE_WAIT, get.told()).await;
        tracing::trace!(?told, "a notice");
        step = get.on(get.happened().unwrap_or(PushEvent::Tick));
    }
    let Some(mut room) = room else {
        return Ok((called, None));
    };
    match step {
        PushStep::Verify => match arrived(version, &get, &mut room).await {
            Some(reply) => {
                asking.pushes.count(|counted| {
                    counted.gets += 1;
                    counted.bytes += u64::from(reply.payload_len_bytes);
                });
                Ok((Called::Reply(version, reply), Some(room)))
            }
            None => Err(room),
        },
        PushStep::AsAnswered | PushStep::Unanswered => Ok((called, Some(room))),
        PushStep::AskAgain { .. } | PushStep::Wait | PushStep::GivenUp => Err(room),
    }
}

/// What a call's end means for the get.
fn event_of(answered: &Result<Reply, CallFailure>, get: &PushCall) -> PushEvent {
    match answered {
        Ok(reply) => PushEvent::Answered(match Status::from_code(reply.status) {
            Status::Pushed => PushAnswer::Written,
            Status::PushFailed => PushAnswer::Failed,
            _ => PushAnswer::Other,
        }),
        Err(failure) if failure.error == CallError::Cancelled => {
            get.happened().unwrap_or(PushEvent::Unanswered)
        }
        // Its bytes were on the way over the connection, and were too many.
        Err(failure) if matches!(failure.error, CallError::TooLong { .. }) => {
            PushEvent::Answered(PushAnswer::Other)
        }
        Err(_) => PushEvent::Unanswered,
    }
}

/// What has been written, as if it had been received. `None`, if it is not what its owner says.
async fn arrived(version: FormatVersion, get: &PushCall, room: &mut Room) -> Option<Reply> {
    let answer = get.answer()?;
    let reply = PushedReply::decode(version, &answer);
    let reply = reply.inspect_err(|fault| tracing::warn!(%fault, "an answer that makes no sense"));
    let PushedReply {
        bytes,
        len_bytes,
        crc32c,
    } = reply.ok()?;
    let len = len_bytes as usize;
    if len > room.len() {
        return None;
    }
    let mut checksum = Crc32c::new();
    for start in (0..len).step_by(TURN_BYTES) {
        if start > 0 {
            time::yield_now().await;
        }
        room.fold(start, TURN_BYTES.min(len - start), &mut checksum);
    }
    if checksum.value() != crc32c {
        tracing::warn!("what an adapter has written does not match its checksum");
        return None;
    }
    let mut body = Vec::new();
    bytes.encode(version, &mut body);
    Some(Reply {
        status: Status::Ok.code(),
        body,
        payload_len_bytes: len_bytes,
        room: None,
    })
}
