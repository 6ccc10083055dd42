//! Bytes that an adapter of the owner's writes.
//!
//! A room in memory that the program has [landed](super::super::ClusterClient::land) is named to the owner, with a
//! number for the call. The owner's adapter writes the object there, and behind it the answer, to a place of the
//! call's own, with the number as the immediate: its notice says that both are there. Then the bytes are compared
//! with their checksum. The owner is asked by a message; or over the connection, and all the while the call is under
//! way there as any other, with the room: where the owner does not write, it sends. What ends when ([`PushedGet`](lunette_kvstore_proto::pushed::PushedGet)) is
//! the protocol's matter.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{PushPlace, PushWish, PushedReply};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::pushed::{NOTICE_WAIT, PushAnswer, PushEvent, PushStep};
use lunette_runtime::time;
use lunette_transfer::adapters::{Asking as Request, Lost};
use lunette_transfer::{CallError, CallFailure, Reply, Room};

use super::super::asking::Asking;
use super::super::calls::{Called, called_of, into};
use super::direct::Place;
use super::landing::Window;
use super::notices::PushCall;
use super::{NotBrought, is_right, messages};
use crate::rails::Rail;
use crate::seats::Link;

/// How long an owner that was asked by a message is waited for: longer than it tries to write.
const PUSHED_WAIT: Duration = Duration::from_millis(2500);

/// How an owner names a room, and what makes it so.
type Places = (Vec<PushPlace>, Vec<Window>);

/// Asks for bytes that are to be written.
pub(super) async fn push(
    asking: &Rc<Asking>,
    (seat, op): (Seat, Op),
    (link, rail, (places, windows)): (&Link, &Rc<Rail>, Places),
    body: &impl Fn(FormatVersion, &mut Vec<u8>),
    (room, device): (Room, Option<Rc<Place>>),
) -> Result<(Called, Option<Room>), NotBrought> {
    let Some((mut get, answer)) = PushCall::begin(asking, Rc::clone(rail), windows) else {
        return Err(NotBrought::Wanted(room));
    };
    let wish = PushWish {
        connection: rail.name,
        immediate: get.immediate(),
        answer,
        places,
    };
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
    let (mut step, called, room) = match messages::begin(asking, rail, op, write) {
        Some(request) => {
            let (step, called) = by_message(asking, (seat, link, rail), request, &mut get).await;
            match called {
                Some(called) => (step, called, Some(room)),
                None => return Err(NotBrought::Wanted(room)),
            }
        }
        None => {
            let told = get.told();
            let timeout = asking.get_timeout();
            let answered = link.call_until(op.code(), write, into(room), timeout, told);
            let answered = answered.await;
            let step = get.on(event_of(&answered, &get));
            let (called, room) = called_of(asking, seat, version, answered);
            (step, called, room)
        }
    };
    if step == PushStep::Wait {
        let told = time::timeout(NOTICE_WAIT, get.told()).await;
        tracing::trace!(?told, "a notice");
        step = get.on(get.happened().unwrap_or(PushEvent::Tick));
    }
    let Some(room) = room else {
        return Ok((called, None));
    };
    match step {
        PushStep::Verify => match arrived(version, &get, &room, device.as_ref()).await {
            Some(reply) => {
                asking.adapters.count(|counted| {
                    counted.written += 1;
                    counted.written_bytes += u64::from(reply.payload_len_bytes);
                });
                Ok((Called::Reply(version, reply), Some(room)))
            }
            None => Err(NotBrought::Failed(room)),
        },
        PushStep::AsAnswered | PushStep::Unanswered => Ok((called, Some(room))),
        PushStep::AskAgain { .. } | PushStep::Wait | PushStep::GivenUp => {
            Err(NotBrought::Failed(room))
        }
    }
}

/// What comes of a get whose owner was asked by a message, and how that was answered, where it was; `None` if it is to
/// be asked over the connection. The notice is the only answer of an owner that has written.
async fn by_message(
    asking: &Asking,
    (seat, link, rail): (Seat, &Link, &Rail),
    request: Request,
    get: &mut PushCall,
) -> (PushStep, Option<Called>) {
    let (mut request, mut told) = (pin!(request), pin!(get.told()));
    let ended = time::timeout(
        PUSHED_WAIT,
        poll_fn(|cx| {
            if told.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            request.as_mut().poll(cx).map(Some)
        }),
    );
    let unanswered = Some(Called::Unanswered(Duration::ZERO));
    match ended.await {
        Ok(None) => {
            request.is_answered();
            let event = get.happened().unwrap_or(PushEvent::QueuePairLost);
            (get.on(event), unanswered)
        }
        Ok(Some(Ok(answered))) => {
            let status = Status::from_code(answered.status);
            let step = get.on(PushEvent::Answered(answer_of(status)));
            let is_wanted = status == Status::OverConnection;
            let called = || messages::called(asking, (seat, link), answered);
            (step, (!is_wanted).then(called))
        }
        Ok(Some(Err(Lost))) | Err(_) => {
            asking.adapters.ears.give_up(rail);
            (get.on(PushEvent::QueuePairLost), unanswered)
        }
    }
}

const fn answer_of(status: Status) -> PushAnswer {
    match status {
        Status::Pushed => PushAnswer::Written,
        Status::PushFailed => PushAnswer::Failed,
        _ => PushAnswer::Other,
    }
}

/// What a call's end means for the get.
fn event_of(answered: &Result<Reply, CallFailure>, get: &PushCall) -> PushEvent {
    match answered {
        Ok(reply) => PushEvent::Answered(answer_of(Status::from_code(reply.status))),
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
async fn arrived(
    version: FormatVersion,
    get: &PushCall,
    room: &Room,
    device: Option<&Rc<Place>>,
) -> Option<Reply> {
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
    if !is_right(room, device, len, crc32c).await {
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
