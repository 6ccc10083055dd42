//! Puts in batches: small objects of one owner go in one request.
//!
//! ```text
//!   begun together ──┬── short, of an owner that no adapter reaches ── wait for each other ──┬── several: `Scatter`
//!                    └── others: `Write`                                                     └── one: `Write`
//! ```
//!
//! Each stays an operation of its own, with its own request: what the asker is told of it is as if it had been sent alone,
//! and what is to be sent again goes alone. An owner that knows no such requests, as those before them, is sent the writes
//! one by one from then on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use futures_channel::oneshot;
use lunette_kvstore_proto::asker::OperationId;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    ScatterHead, ScatterMessage, ScatterWrite, Scattered,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::{Seat, has_seat};
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::{Attachments, Payload};

use super::asking::{Asking, News};
use super::calls::{Called, call, refused_write, write};
use crate::error::StoreErrorKind;
use crate::joined::Joined;
use crate::value::{VALUE_PIECES_MAX, Value};

/// Longer values are sent by themselves: one of them keeps a connection busy for longer than asking takes.
const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Most writes of one request: the owner works on them while the next one is made.
const WRITES_MAX: usize = 32;
/// Most bytes of one request: as much.
const BYTES_MAX: usize = 256 * 1024;

/// A write that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToWrite {
    pub(super) id: OperationId,
    pub(super) request: RequestId,
    pub(super) ask: WriteAsk,
}

/// Writes that wait for each other, for no longer than they are begun.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// Writes that are begun now belong together.
    is_open: Cell<bool>,
    waiting: RefCell<BTreeMap<Seat, Collected>>,
    /// Owners that know no such requests.
    strangers: RefCell<BTreeSet<Seat>>,
}

#[derive(Debug, Default)]
struct Collected {
    writes: Vec<ToWrite>,
    len_bytes: usize,
    pieces: usize,
}

impl Together {
    /// What `begin` begins waits for others of its owner, until it is [sent](Asking::send_together).
    pub(super) fn begin<T>(&self, begin: impl FnOnce() -> T) -> T {
        self.is_open.set(true);
        let begun = begin();
        self.is_open.set(false);
        begun
    }

    pub(super) const fn is_open(&self) -> bool {
        self.is_open.get()
    }
}

/// Whether a value may go with others.
fn is_short(value: &Value) -> bool {
    (1..=VALUE_BYTES_MAX).contains(&value.len()) && value.pieces() <= VALUE_PIECES_MAX
}

impl Asking {
    /// Sends a write with others of its owner, or alone.
    pub(super) fn write_soon(self: &Rc<Self>, seat: Seat, to_write: ToWrite) {
        let may_wait = self.together.is_open()
            && self.adapters.len() == 0
            && !self.together.strangers.borrow().contains(&seat);
        let value = may_wait.then(|| self.value_of(to_write.id)).flatten();
        let Some(value) = value.filter(is_short) else {
            return self.write_alone(seat, to_write);
        };
        let mut waiting = self.together.waiting.borrow_mut();
        let collected = waiting.entry(seat).or_default();
        if let Some(full) = collected.push(to_write, &value) {
            drop(waiting);
            self.send_collected(seat, full);
        }
    }

    /// Sends what waits.
    pub(super) fn send_together(self: &Rc<Self>) {
        let waiting = std::mem::take(&mut *self.together.waiting.borrow_mut());
        for (seat, collected) in waiting {
            self.send_collected(seat, collected.writes);
        }
    }

    fn send_collected(self: &Rc<Self>, seat: Seat, writes: Vec<ToWrite>) {
        match *writes {
            [] => {}
            [alone] => self.write_alone(seat, alone),
            _ => self.spawn(Box::pin(scatter(Rc::clone(self), seat, writes))),
        }
    }

    fn write_alone(self: &Rc<Self>, seat: Seat, to_write: ToWrite) {
        let ToWrite { id, request, ask } = to_write;
        self.spawn(write(Rc::clone(self), id, seat, request, ask));
    }

    /// The owner knows no such requests.
    fn is_strange(&self, seat: Seat) {
        let map = self.map();
        let mut strangers = self.together.strangers.borrow_mut();
        strangers.retain(|seat| has_seat(&map, *seat));
        strangers.insert(seat);
    }
}

impl Collected {
    /// One more; those before it, if there is no room for it beside them.
    fn push(&mut self, to_write: ToWrite, value: &Value) -> Option<Vec<ToWrite>> {
        let first = self.writes.first().map_or(to_write.ask, |first| first.ask);
        let one = |ask: WriteAsk| (ask.kind, ask.form, ask.namespace, ask.wanted);
        let is_full = self.writes.len() >= WRITES_MAX
            || self.len_bytes + value.len() > BYTES_MAX
            || self.pieces + value.pieces() > VALUE_PIECES_MAX
            || one(first) != one(to_write.ask);
        let full = is_full.then(|| std::mem::take(self).writes);
        self.writes.push(to_write);
        self.len_bytes += value.len();
        self.pieces += value.pieces();
        full
    }
}

/// A write that is being sent.
struct Sent {
    to_write: ToWrite,
    key: Vec<u8>,
    value: Value,
}

/// Writes at an owner, all in one request.
async fn scatter(asking: Rc<Asking>, seat: Seat, writes: Vec<ToWrite>) {
    asking.sights.is_written_to(&asking, seat);
    let (mut sent, mut wanted) = (Vec::new(), Vec::new());
    for to_write in writes {
        // It may have been given up.
        if let (Some(key), Some(value)) = (asking.key_of(to_write.id), asking.send(to_write.id)) {
            sent.push(Sent {
                to_write,
                key,
                value: value.value,
            });
            wanted.push(value.wanted);
        }
    }
    let Some(first) = sent.first() else {
        return;
    };
    let ask = first.to_write.ask;
    let head = ScatterHead {
        asker: asking.id(),
        over_below: asking.over_below(),
        to: seat,
        kind: ask.kind,
        namespace: ask.namespace,
        wanted: ask.wanted,
        wait_ms: ask.wait_ms,
    };
    let (message, payload) = message_of(head, &sent);
    let body = |version: FormatVersion, out: &mut Vec<u8>| message.encode(version, out);
    let attachments = Attachments {
        payload: Some(payload),
        ..Attachments::default()
    };
    let called = pin!(call(&asking, seat, Op::Scatter, body, attachments));
    let Some((called, _)) = while_any_wanted(called, wanted).await else {
        return;
    };
    let writes = sent.iter().map(|sent| sent.to_write).collect();
    end(&asking, seat, called, writes);
}

fn message_of<'a>(head: ScatterHead, sent: &'a [Sent]) -> (ScatterMessage<'a>, Payload) {
    let (mut joined, mut pieces) = (Joined::new(), Vec::new());
    let mut writes = Vec::with_capacity(sent.len());
    for sent in sent {
        let write = ScatterWrite {
            request: sent.to_write.request,
            len_bytes: u32::try_from(sent.value.len()).expect("it is short"),
            crc32c: sent.value.crc32c(),
            retention: sent.to_write.ask.retention,
            key: Key::new(&sent.key).expect("it was one when the operation began"),
        };
        joined.push(write.crc32c, write.len_bytes);
        sent.value.append_to(&mut pieces);
        writes.push(write);
    }
    let payload = Payload::pieces(pieces, joined.crc32c());
    (ScatterMessage { head, writes }, payload)
}

/// What it comes to, unless nobody waits for any of the writes any more.
async fn while_any_wanted<T>(
    mut call: Pin<&mut impl Future<Output = T>>,
    mut wanted: Vec<oneshot::Receiver<()>>,
) -> Option<T> {
    poll_fn(|cx| {
        if let Poll::Ready(called) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(called));
        }
        // A sender sends nothing: it is there, or gone.
        wanted.retain_mut(|wanted| Pin::new(wanted).poll(cx).is_pending());
        if wanted.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

/// Tells the asker what came of each write.
fn end(asking: &Rc<Asking>, seat: Seat, called: Called, writes: Vec<ToWrite>) {
    let all = |answer: Result<WriteAnswer, StoreErrorKind>| vec![answer; writes.len()];
    let answers = match called {
        Called::Unsent(_) => all(Ok(WriteAnswer::Aborted)),
        Called::Unanswered(_) => all(Ok(WriteAnswer::Interrupted)),
        Called::Never(kind) => all(Err(kind)),
        Called::Reply(version, reply) => match Status::from_code(reply.status) {
            Status::Ok => match Scattered::decode(version, &reply.body, writes.len()) {
                Ok(scattered) => scattered.into_iter().map(told).collect(),
                Err(fault) => all(Err(fault.into())),
            },
            Status::Unsupported => {
                asking.is_strange(seat);
                let alone = writes.into_iter();
                alone.for_each(|to_write| asking.write_alone(seat, to_write));
                return;
            }
            status => all(refused_write(status)),
        },
    };
    let mut news = Vec::with_capacity(writes.len());
    for (to_write, answer) in writes.into_iter().zip(answers) {
        asking.has_called(to_write.id);
        match answer {
            Ok(answer) => news.push(News::Written(to_write.request, answer)),
            Err(kind) => asking.fail(to_write.id, kind),
        }
    }
    asking.on_news(news);
}

fn told(scattered: Scattered) -> Result<WriteAnswer, StoreErrorKind> {
    match scattered {
        Scattered::Done { answer } => Ok(answer),
        Scattered::Refused { status } => refused_write(status),
    }
}
