//! Requests that go by messages, over the queue pairs that are there anyway: no system call, nor a stream's turn, is
//! between a lookup and its home, or a get and its owner.
//!
//! Only what may be asked twice goes this way ([`Op::may_be_message`]). Where no queue pair is connected, or as much is
//! under way as may be, or the answer is too long for a message, it is asked over the connection; so it is where an
//! answer does not come. A queue pair over which nothing at all came meanwhile is given up.

use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::time;
use lunette_transfer::Reply;
use lunette_transfer::adapters::{Answered, Asking as Request, Lost};

use super::super::asking::Asking;
use super::super::calls::{Called, called_of};
use super::ByAdapters;
use crate::rails::Rail;
use crate::seats::Link;

/// How long an answer is waited for that brings no bytes, and takes its home no time. One that takes longer is asked
/// for over the connection besides.
const ANSWER_WAIT: Duration = Duration::from_millis(250);

/// What came of a request by a message.
pub(super) enum Messaged {
    Answered(Answered),
    /// It is to be asked over the connection: nothing came of it.
    No,
    /// The same, and the queue pair has been given up.
    Lost,
}

/// Begins a request over a rail; `None` if it is to be asked over the connection.
pub(super) fn begin(
    asking: &Asking,
    rail: &Rc<Rail>,
    op: Op,
    body: impl FnOnce(&mut Vec<u8>),
) -> Option<Request> {
    assert!(op.may_be_message(), "it may be asked twice");
    let by = &asking.adapters;
    let messages = by.ears.messages(rail.adapter);
    let request = rail.ask(messages, op.code(), body)?;
    by.asked.set(by.asked.get() + 1);
    Some(request)
}

/// Asks over a rail, and waits for the answer for a while.
pub(super) async fn ask_over(
    asking: &Asking,
    rail: &Rc<Rail>,
    op: Op,
    body: impl FnOnce(&mut Vec<u8>),
) -> Messaged {
    let began = time::now();
    let Some(request) = begin(asking, rail, op, body) else {
        return Messaged::No;
    };
    let is_heard = match time::timeout(ANSWER_WAIT, request).await {
        Ok(Ok(answered)) if Status::from_code(answered.status) == Status::OverConnection => {
            return Messaged::No;
        }
        Ok(Ok(answered)) => return Messaged::Answered(answered),
        Ok(Err(Lost)) => false,
        Err(_late) => rail
            .asked()
            .is_some_and(|asked| asked.has_heard_since(began)),
    };
    if is_heard {
        return Messaged::No;
    }
    asking.adapters.ears.give_up(rail);
    Messaged::Lost
}

/// Asks a seat what brings no bytes, if there is a queue pair to it; `None` if it is to be asked over the connection.
pub(in crate::cluster_client) async fn ask(
    asking: &Rc<Asking>,
    seat: Seat,
    op: Op,
    body: impl FnOnce(FormatVersion, &mut Vec<u8>),
) -> Option<Called> {
    let (link, rail) = ByAdapters::rail(asking, seat)?;
    let version = link.version;
    let write = |out: &mut Vec<u8>| body(version, out);
    match ask_over(asking, &rail, op, write).await {
        Messaged::Answered(answered) => Some(called(asking, (seat, &link), answered)),
        Messaged::No | Messaged::Lost => None,
    }
}

/// An answer, as if it had come over the connection.
pub(super) fn called(asking: &Asking, (seat, link): (Seat, &Link), answered: Answered) -> Called {
    let Answered { status, body } = answered;
    let reply = Reply {
        status,
        body,
        payload_len_bytes: 0,
        room: None,
    };
    called_of(asking, seat, link.version, Ok(reply)).0
}
