//! Puts whose bytes the owner's adapter reads where they lie.
//!
//! A value in memory that the program has [landed](super::super::ClusterClient::land) is named to the owner, with its
//! checksum, in a write that goes over the connection as any other, but without the bytes. The owner's adapter reads
//! them into the room that it has made, and the answer says, as ever, what came of the write. Where they could not be
//! read they are sent. Which of both is quicker is measured, as for gets.

use std::rc::Rc;

use lunette_kvstore_proto::message::directory::{PullWish, PushPlace};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::time;
use lunette_transfer::Attachments;

use super::super::asking::Asking;
use super::super::calls::{CALL_TIMEOUT, Called, call, called_of};
use super::ByAdapters;
use super::landing::Window;
use crate::rails::Rail;
use crate::seats::Link;
use crate::value::Value;

/// Writes a value at an owner. `body` is the request's.
pub(in crate::cluster_client) async fn write(
    asking: &Rc<Asking>,
    seat: Seat,
    value: &Value,
    body: impl Fn(FormatVersion, &mut Vec<u8>),
) -> Called {
    let Some((over, path)) = choose(asking, seat, value) else {
        return sent(asking, seat, value, &body).await;
    };
    let began = time::now();
    let called = match path {
        Path::Read => pulled(asking, seat, &over, value, &body).await,
        Path::Sent | Path::Written => None,
    };
    let called = match called {
        Some(called) => called,
        None => sent(asking, seat, value, &body).await,
    };
    let took = time::now().since(began);
    over.link.rails.has_put(path, value.len(), took);
    called
}

/// Sends it.
async fn sent(
    asking: &Rc<Asking>,
    seat: Seat,
    value: &Value,
    body: &impl Fn(FormatVersion, &mut Vec<u8>),
) -> Called {
    let attachments = Attachments {
        payload: value.payload(),
        room: None,
        arrange: None,
    };
    call(asking, seat, Op::Write, body, attachments).await.0
}

/// Over what a value can be read, and where it lies.
struct Over {
    link: Link,
    rail: Rc<Rail>,
    places: Vec<PushPlace>,
    /// They are there until the write is over.
    _windows: Vec<Window>,
}

/// Whether a value is to be read or sent; `None` if there is nothing to choose.
fn choose(asking: &Rc<Asking>, seat: Seat, value: &Value) -> Option<(Over, Path)> {
    let by = &asking.adapters;
    if by.len() == 0 || value.is_empty() || by.only == Some(Path::Sent) {
        return None;
    }
    let pieces = value.exposed()?;
    let (link, rail) = ByAdapters::rail(asking, seat).filter(|(_, rail)| rail.is_pulled.get())?;
    let (places, windows) = by.landings.values(&pieces, rail.adapter)?;
    let path = match by.only {
        Some(_) => Path::Read,
        None => link.rails.choose_put(value.len()),
    };
    let over = Over {
        link,
        rail,
        places,
        _windows: windows,
    };
    Some((over, path))
}

/// Has the owner read it; `None` if it is to be sent.
async fn pulled(
    asking: &Rc<Asking>,
    seat: Seat,
    over: &Over,
    value: &Value,
    body: &impl Fn(FormatVersion, &mut Vec<u8>),
) -> Option<Called> {
    let by = &asking.adapters;
    let Over {
        link, rail, places, ..
    } = over;
    let wish = PullWish {
        connection: rail.name,
        crc32c: value.crc32c(),
        places: places.clone(),
    };
    let version = link.version;
    let write = |out: &mut Vec<u8>| {
        wish.encode(version, out);
        body(version, out);
    };
    let nothing = Attachments::default();
    let answered = link.call(Op::WritePulled.code(), write, nothing, CALL_TIMEOUT);
    let (called, _) = called_of(asking, seat, version, answered.await);
    let status = match &called {
        Called::Reply(_, reply) => Status::from_code(reply.status),
        Called::Unsent(_) | Called::Unanswered(_) | Called::Never(_) => {
            return Some(called);
        }
    };
    match status {
        // It is of an earlier version.
        Status::Unsupported => rail.is_pulled.set(false),
        // What has been begun is over: sent again, it is told so, and tried anew.
        Status::OverConnection | Status::PushFailed => {
            tracing::debug!(?seat, ?status, "a value is sent after all");
            by.count_puts(|counted| counted.fallbacks += 1);
            by.landings.has_been_read(places, false);
            if status == Status::PushFailed {
                // The other end has been given up.
                by.ears.give_up(rail);
            }
        }
        _ => {
            if is_written(&called) {
                by.landings.has_been_read(places, true);
                by.count_puts(|counted| {
                    counted.pulled += 1;
                    counted.pulled_bytes += value.len() as u64;
                });
            }
            return Some(called);
        }
    }
    None
}

fn is_written(called: &Called) -> bool {
    let Called::Reply(version, reply) = called else {
        return false;
    };
    let is_answered = Status::from_code(reply.status) == Status::Ok;
    let answer = is_answered.then(|| WriteAnswer::decode(*version, &reply.body));
    matches!(answer, Some(Ok(WriteAnswer::Written { .. })))
}
