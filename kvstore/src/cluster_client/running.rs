//! Operations under way: what each asks with, and who waits for its end.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_channel::oneshot;
use lunette_kvstore_proto::asker::{OperationId, Outcome};
use lunette_kvstore_proto::message::directory::{BytesReply, ReservationId, StripedReply};
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::Version;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::Room;

use crate::error::StoreErrorKind;
use crate::value::Value;

/// How an operation ended, for who began it.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outcome: Result<Outcome, StoreErrorKind>,
    /// The room that it was given, the caller's again.
    pub(super) room: Option<Room>,
    /// Of a hit.
    pub(super) arrived: Option<Arrived>,
}

/// What came in answer to a get.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrived {
    /// So many bytes lie in the room.
    Bytes(BytesReply, u32),
    /// The object is in parts; the room is as it was.
    Striped(StripedReply),
}

impl Arrived {
    pub(super) const fn version(&self) -> Version {
        match self {
            Self::Bytes(reply, _) => reply.version,
            Self::Striped(reply) => reply.version,
        }
    }
}

impl Ended {
    pub(super) const fn failed(kind: StoreErrorKind, room: Option<Room>) -> Self {
        Self {
            outcome: Err(kind),
            room,
            arrived: None,
        }
    }
}

/// What an operation begins with.
#[derive(Debug)]
pub(super) enum Brought {
    Nothing,
    /// What a write writes.
    Value(Value),
    /// The reserved object that a write makes its key's value.
    Reserved(Committed),
    /// Where a get's bytes go, and which they are: none for all.
    Room(Room, Vec<ByteRange>),
}

/// What is committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committed {
    pub(super) id: ReservationId,
    /// How long it is held from then on.
    pub(super) hold_ms: u32,
}

/// A get's room, with a call.
#[derive(Debug)]
pub(super) struct LentRoom {
    pub(super) room: Room,
    /// Ends when the get is given up.
    pub(super) wanted: oneshot::Receiver<()>,
}

impl LentRoom {
    /// What `call` comes to with the room; `None`, and the call is dropped, if the get is given up first.
    pub(super) async fn call<T>(self, call: impl AsyncFnOnce(Room) -> T) -> Option<T> {
        let Self { room, wanted } = self;
        let call = pin!(call(room));
        while_wanted(call, wanted).await
    }
}

/// A write's value, with a call.
#[derive(Debug)]
pub(super) struct SentValue {
    pub(super) value: Value,
    /// Ends when the write is given up.
    pub(super) wanted: oneshot::Receiver<()>,
}

impl SentValue {
    /// What `call` comes to; `None`, and the call is dropped, if the write is given up first.
    pub(super) async fn call<T>(self, call: impl AsyncFnOnce(Value) -> T) -> Option<T> {
        let Self { value, wanted } = self;
        let call = pin!(call(value));
        while_wanted(call, wanted).await
    }
}

/// What it comes to, unless nobody waits for that any more.
async fn while_wanted<T>(
    mut call: Pin<&mut impl Future<Output = T>>,
    mut wanted: oneshot::Receiver<()>,
) -> Option<T> {
    poll_fn(|cx| {
        if let Poll::Ready(called) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(called));
        }
        // Its sender sends nothing: it is there, or gone.
        Pin::new(&mut wanted).poll(cx).map(|_given_up| None)
    })
    .await
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) key: Vec<u8>,
    /// What a write brings.
    pub(super) value: Option<Value>,
    pub(super) reserved: Option<Committed>,
    /// Which bytes a get is for: none for all.
    pub(super) ranges: Vec<ByteRange>,
    /// Where a get's bytes go: here unless a call has it.
    pub(super) room: Option<Room>,
    /// A call has the room: the operation ends when it is back, and the call with the operation.
    lent: Option<oneshot::Sender<()>>,
    /// A call sends the value, and ends with the operation.
    sent: Option<oneshot::Sender<()>>,
    pub(super) arrived: Option<Arrived>,
    /// The request that a call is under way with: sent again, it would be another one in line.
    pub(super) calling: Option<RequestId>,
    outcome: Option<Result<Outcome, StoreErrorKind>>,
    done: oneshot::Sender<Ended>,
}

impl Running {
    pub(super) fn new(key: Vec<u8>, brought: Brought, done: oneshot::Sender<Ended>) -> Self {
        let (mut value, mut reserved, mut room, mut ranges) = (None, None, None, Vec::new());
        match brought {
            Brought::Nothing => {}
            Brought::Value(brought) => value = Some(brought),
            Brought::Reserved(brought) => reserved = Some(brought),
            Brought::Room(brought, which) => (room, ranges) = (Some(brought), which),
        }
        Self {
            key,
            value,
            reserved,
            ranges,
            room,
            lent: None,
            sent: None,
            arrived: None,
            calling: None,
            outcome: None,
            done,
        }
    }

    /// Whether it is a get, whose home may send the bytes at once.
    pub(super) const fn is_get(&self) -> bool {
        self.room.is_some() || self.lent.is_some()
    }

    /// Whether it ends when nobody waits for it: a get, or a write of bytes that are the caller's.
    pub(super) const fn may_be_given_up(&self) -> bool {
        self.is_get() || self.value.is_some()
    }

    /// A call sends the value from now on, one after the other.
    pub(super) fn send(&mut self) -> Option<SentValue> {
        let value = self.value.clone()?;
        let (sent, wanted) = oneshot::channel();
        self.sent = Some(sent);
        Some(SentValue { value, wanted })
    }

    /// A call has the room from now on. What it gets ends if the operation is given up.
    pub(super) fn lent(&mut self) -> oneshot::Receiver<()> {
        let (lent, wanted) = oneshot::channel();
        self.lent = Some(lent);
        wanted
    }
}

/// All operations under way, each where it stays: what is moved whenever others come and go is short.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<OperationId, Box<Running>>);

impl Table {
    pub(super) fn insert(&mut self, id: OperationId, running: Running) {
        self.0.insert(id, Box::new(running));
    }

    pub(super) fn get_mut(&mut self, id: OperationId) -> Option<&mut Running> {
        self.0.get_mut(&id).map(|running| &mut **running)
    }

    /// The operation is over. Its caller is told when no call has its room any more.
    pub(super) fn end(&mut self, id: OperationId, outcome: Result<Outcome, StoreErrorKind>) {
        let Some(running) = self.0.get_mut(&id) else {
            return;
        };
        running.outcome.get_or_insert(outcome);
        self.tell_if_over(id);
    }

    /// A call that had the room gives it back.
    pub(super) fn give_back(&mut self, id: OperationId, room: Option<Room>) {
        let Some(running) = self.0.get_mut(&id) else {
            return;
        };
        running.room = room;
        running.lent = None;
        self.tell_if_over(id);
    }

    /// Nobody waits for the operation any more, which changes nothing.
    pub(super) fn give_up(&mut self, id: OperationId) -> Option<Box<Running>> {
        self.0.remove(&id)
    }

    fn tell_if_over(&mut self, id: OperationId) {
        let running = &self.0[&id];
        if running.lent.is_some() || running.outcome.is_none() {
            return;
        }
        let running = *self.0.remove(&id).expect("just looked at");
        let ended = Ended {
            outcome: running.outcome.expect("just looked at"),
            room: running.room,
            arrived: running.arrived,
        };
        // Whoever began it may have given up.
        drop(running.done.send(ended));
    }
}
