//! Notifications by messages, over the queue pairs of rails and of those who come.
//!
//! ```text
//!   rail ── a request of `Asked` ──▶ receives that all queue pairs of the peer's adapter share ──▶ its notifications
//!     ▲                                                                                               │
//!     └──── receives of ours, which the answers to all our rails share ◀── an answer ────────────────┘
//! ```
//!
//! A message behind writes of the same queue pair arrives after them. One that is lost has been delivered, or has not:
//! it goes again, under the same number. A peer that hears no messages, or an adapter that has no room for them, leaves
//! notifications to the streams.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use lunette_runtime::Scope;
use lunette_runtime_core::codec::Reader;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer_proto::engine::message::{
    BodyFault, Note, Operation, Refusal, finish, read_note, write_note,
};
use lunette_transfer_proto::frame::FrameKind;
use lunette_transfer_proto::message::{self, MessageFault};
use lunette_verbs::{QueuePair, Ready, SetupError};
use thiserror::Error;

use super::super::Inner;
use super::acceptor::Over;
use super::rail::Rail;
use crate::adapters::{ASKED_MAX, Adapter, Asked, AskedFault, Asking, Heard, Messages};

/// Receives of each adapter: of eight queue pairs over which peers tell as much as they may, and of answers. With what
/// is being sent they fill one chunk of memory.
const RECEIVES: u32 = 12 * ASKED_MAX;
/// Notifications of ours that are not answered, over all rails of an adapter: each answer takes a receive.
const TOLD_MAX: usize = 4 * ASKED_MAX as usize;
/// Messages that are being sent by each adapter.
const SENDS_MAX: u32 = 4 * ASKED_MAX;

/// What is told over one adapter.
pub(super) struct Telling {
    messages: Rc<Messages>,
    /// How many more notifications there may be.
    left: Rc<Cell<usize>>,
    /// By the numbers of their queue pairs; some have ended.
    rails: RefCell<BTreeMap<u32, Weak<Rail>>>,
}

/// A peer does not keep to the rules: its queue pair is broken off.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum ToldFault {
    #[error(transparent)]
    Message(#[from] MessageFault),
    #[error("a message that is no request")]
    NoRequest,
}

/// How a rail tells.
#[derive(Clone)]
pub(super) struct Teller {
    asked: Rc<Asked>,
    messages: Rc<Messages>,
}

impl Teller {
    /// Sends a notification; `None` if it does not go so.
    pub(super) fn tell(&self, pair: &QueuePair<Ready>, note: Note<'_>) -> Option<Asking> {
        let body = |out: &mut Vec<u8>| write_note(out, Some(note));
        let op = Operation::Notify.to_wire();
        Asking::begin(&self.asked, (pair, &self.messages), op, body)
    }

    pub(super) fn on_message(&self, bytes: &[u8]) -> Result<(), AskedFault> {
        self.asked.on_message(bytes)
    }

    /// The queue pair has ended.
    pub(super) fn end(&self) {
        self.asked.end();
    }
}

impl Telling {
    /// Of an adapter, if messages are wanted and there is room for them.
    pub(super) fn open(adapter: &Adapter, are_wanted: bool) -> Option<Rc<Self>> {
        if !are_wanted {
            return None;
        }
        let refused = |error: &SetupError| {
            let name = adapter.name();
            tracing::warn!(%name, %error, "notifications go over streams: there is no room for messages");
        };
        let messages = Messages::open(adapter, RECEIVES, SENDS_MAX);
        let messages = messages.inspect_err(refused).ok()?;
        Some(Rc::new(Self {
            messages: Rc::new(messages),
            left: Rc::new(Cell::new(TOLD_MAX)),
            rails: RefCell::default(),
        }))
    }

    pub(super) fn messages(&self) -> &Messages {
        &self.messages
    }

    /// For one more rail.
    pub(super) fn teller(&self) -> Teller {
        Teller {
            asked: Asked::new(Rc::clone(&self.left)),
            messages: Rc::clone(&self.messages),
        }
    }

    /// What comes by this queue pair is the rail's from now on.
    pub(super) fn listen(&self, number: u32, rail: &Rc<Rail>) {
        let mut rails = self.rails.borrow_mut();
        rails.retain(|_, rail| rail.strong_count() > 0);
        rails.insert(number, Rc::downgrade(rail));
    }

    /// The rail of a queue pair, if that has not ended.
    fn rail(&self, number: u32) -> Option<Rc<Rail>> {
        let rails = self.rails.borrow();
        let rail = rails.get(&number).and_then(Weak::upgrade);
        rail.filter(|rail| rail.has_number(number))
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Telling({} left)", self.left.get())
    }
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked.fmt(f)
    }
}

impl Inner {
    /// Hears what comes by messages, as long as the scope is there.
    pub(in crate::engine) fn hear_messages(self: &Rc<Self>, hearing: &Scope) {
        for (index, telling) in (0..).zip(&self.rdma.telling) {
            let Some(telling) = telling else {
                continue;
            };
            let listening = hear(Rc::downgrade(self), index, Rc::clone(telling));
            if let Err(error) = hearing.spawn(listening) {
                tracing::warn!(%error, "what peers tell by messages is not heard");
            }
        }
    }

    fn on_message(&self, telling: &Telling, (adapter, number): (u16, u32), bytes: &[u8]) {
        if let Some(rail) = telling.rail(number) {
            return rail.on_message(bytes);
        }
        let acceptor = self.rdma.acceptor();
        let Some(over) = acceptor.over(adapter, number) else {
            return tracing::debug!(number, "a message of a queue pair that has ended");
        };
        let told = self.on_told(over, bytes);
        let answer = |pair: &QueuePair<Ready>| match told {
            Ok((id, status)) => {
                let mut out = Vec::new();
                let is_short = message::encode(&mut out, FrameKind::Response, status, id, &[]);
                assert!(is_short, "a status is a message");
                match telling.messages.send(pair, &out) {
                    // If it does not arrive, the queue pair ends, and its peer tells again.
                    Some(sent) => drop(sent),
                    None => pair.abort(),
                }
            }
            Err(fault) => {
                tracing::warn!(?over, %fault, "a peer's queue pair is broken off");
                pair.abort();
            }
        };
        acceptor.with(over, answer);
    }

    /// A peer tells something. What it is answered.
    fn on_told(&self, over: Over, bytes: &[u8]) -> Result<(RequestId, u16), ToldFault> {
        let (id, note) = told(bytes)?;
        let delivered = match note {
            // Who has no connection any more has nothing that would end what it is remembered by.
            Ok(_) if !self.rdma.acceptor().is_there(over) => Err(Refusal::Session),
            Ok(Note { id, bytes }) => {
                let notices = &self.alive.siblings().notices;
                notices.deliver(over.session(), id, bytes.to_vec())
            }
            Err(fault) => {
                tracing::debug!(%fault, "a message makes no sense");
                Err(Refusal::Malformed)
            }
        };
        let status = delivered.map_or_else(
            |refusal| {
                self.counts.refused();
                refusal.to_wire()
            },
            |()| 0,
        );
        Ok((id, status))
    }
}

/// A request to be told something, and its number.
type Told<'a> = (RequestId, Result<Note<'a>, BodyFault>);

fn told(bytes: &[u8]) -> Result<Told<'_>, ToldFault> {
    let frame = message::decode(bytes)?;
    if frame.header.kind != FrameKind::Request {
        return Err(ToldFault::NoRequest);
    }
    Ok((frame.header.id, note_of(frame.header.code, frame.body)))
}

/// The notification that is asked for.
fn note_of(code: u16, body: &[u8]) -> Result<Note<'_>, BodyFault> {
    if Operation::from_wire(code) != Some(Operation::Notify) {
        return Err(BodyFault::OutOfRange);
    }
    let mut reader = Reader::new(body);
    let note = read_note(&mut reader)?;
    finish(&reader)?;
    note.ok_or(BodyFault::OutOfRange)
}

/// Hears one adapter.
async fn hear(inner: Weak<Inner>, adapter: u16, telling: Rc<Telling>) {
    loop {
        let take = |number: u32, heard: Heard<'_>| match (heard, inner.upgrade()) {
            (Heard::Message(bytes), Some(inner)) => {
                inner.on_message(&telling, (adapter, number), bytes);
            }
            (Heard::Notice { immediate, .. }, _) => tracing::debug!(immediate, "a notice"),
            (Heard::Message(_), None) => {}
        };
        if let Err(error) = telling.messages.hear(take).await {
            return tracing::warn!(%error, "no messages come by an adapter any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: FrameKind, op: Operation, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(message::encode(
            &mut out,
            kind,
            op.to_wire(),
            RequestId(7),
            body
        ));
        out
    }

    #[test]
    fn what_is_no_notification_is_refused_and_what_is_no_request_is_a_fault() {
        let note = Note {
            id: 3,
            bytes: b"done",
        };
        let mut body = Vec::new();
        write_note(&mut body, Some(note));
        let request = message(FrameKind::Request, Operation::Notify, &body);
        let (id, found) = told(&request).expect("a request");
        assert_eq!(
            (id, found.map(|note| (note.id, note.bytes))),
            (RequestId(7), Ok((3, note.bytes)))
        );
        let mut nothing = Vec::new();
        write_note(&mut nothing, None);
        for wrong in [
            &nothing,
            &body[..body.len() - 1],
            &[&body[..], &[0]].concat(),
        ] {
            let request = message(FrameKind::Request, Operation::Notify, wrong);
            let (id, found) = told(&request).expect("a request");
            assert!(id == RequestId(7) && found.is_err(), "{wrong:?}");
        }
        for op in Operation::ALL
            .into_iter()
            .filter(|op| *op != Operation::Notify)
        {
            let request = message(FrameKind::Request, op, &body);
            let (_, found) = told(&request).expect("a request");
            assert!(found.is_err(), "{op:?}");
        }
        let answer = message(FrameKind::Response, Operation::Notify, &body);
        assert_eq!(told(&answer).err(), Some(ToldFault::NoRequest));
        for len in 0..request.len() {
            assert!(
                matches!(told(&request[..len]), Err(ToldFault::Message(_))),
                "{len}"
            );
        }
    }
}
