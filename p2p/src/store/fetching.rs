//! One chunk, from being granted to being verified.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p_proto::PeerId;
use lunette_p2p_proto::swarm::{FetchId, Fetched};
use lunette_runtime::arena::Exposed;
use lunette_runtime::{Signal, time};
use lunette_transfer::engine::{Batch, Intent, Peer, PostOptions, Priority, RemoteSegment};

use super::Inner;
use super::local::Local;

/// When a read ends in any case: the machine gives up before.
const READ_MAX: Duration = Duration::from_secs(600);

/// A chunk that is being fetched.
#[derive(Debug)]
pub(super) struct Flight {
    source: PeerId,
    chunk: u32,
    is_copy: bool,
    cancelled: Signal,
    is_cancelled: Cell<bool>,
    /// Its bytes have stopped coming, and it is told.
    ended: Signal,
}

impl Flight {
    pub(super) fn new(source: PeerId, chunk: u32, is_copy: bool) -> Self {
        Self {
            source,
            chunk,
            is_copy,
            cancelled: Signal::default(),
            is_cancelled: Cell::default(),
            ended: Signal::default(),
        }
    }

    pub(super) fn cancel(&self) {
        self.is_cancelled.set(true);
        self.cancelled.raise();
    }
}

/// How a read ended; of a chunk that is right, also where it is.
struct Read {
    fetched: Fetched,
    chunk: Option<Exposed>,
}

impl From<Fetched> for Read {
    fn from(fetched: Fetched) -> Self {
        let chunk = None;
        Self { fetched, chunk }
    }
}

impl Local {
    /// Reads a chunk, verifies it, and tells the machine how that ended.
    pub(super) async fn fetch(self: Rc<Self>, inner: Rc<Inner>, id: FetchId, flight: Rc<Flight>) {
        let Read { mut fetched, chunk } = self.read(&inner, &flight).await;
        if let (Some(backing), Some(chunk)) = (&self.backing, &chunk) {
            let place = self.content.record.shape.place(flight.chunk);
            let place = place.expect("a chunk of the object");
            // Of two that have come both are right.
            if !backing.write(&place, chunk.clone()).await {
                fetched = Fetched::Failed;
            }
        } else if let Some(chunk) = chunk {
            if flight.is_copy {
                self.put_in_place(&flight, &chunk).await;
            }
            let is_new = !self.holds(flight.chunk);
            if is_new && !self.take_slices(flight.chunk, chunk).await {
                fetched = Fetched::Failed;
            }
        }
        self.flights.borrow_mut().remove(&id);
        self.on(&inner, |swarm| swarm.on_fetched(time::now(), id, fetched));
        flight.ended.raise();
    }

    async fn read(&self, inner: &Inner, flight: &Flight) -> Read {
        let (version, chunk) = (self.content.record.version, flight.chunk);
        let place = self
            .content
            .record
            .shape
            .place(chunk)
            .expect("a chunk of the object");
        let Some((peer, segment)) = inner.remote(flight.source, version, place.buffer).await else {
            return Fetched::Failed.into();
        };
        let Some(room) = self.room_for(flight) else {
            return Fetched::Failed.into();
        };
        let is_read = carry(&peer, &segment, room.clone(), place.offset_bytes, flight).await;
        if !is_read {
            inner.ways.forget_segments(flight.source, version);
            let is_cancelled = flight.is_cancelled.get();
            return if is_cancelled {
                Fetched::Cancelled
            } else {
                Fetched::Failed
            }
            .into();
        }
        if room.crc32c() != self.content.sums[chunk as usize] {
            let source = flight.source.0;
            tracing::warn!(source, chunk, "a chunk is not what it should be");
            return Fetched::Corrupt.into();
        }
        Read {
            fetched: Fetched::Held,
            chunk: Some(room),
        }
    }

    /// Where a chunk is read to: its place, or memory of its own while its place is another fetch's, or if it has none.
    fn room_for(&self, flight: &Flight) -> Option<Exposed> {
        match self.room(flight.chunk) {
            Some(room) if !flight.is_copy => Some(room),
            Some(_) | None => self.own_room(flight.chunk),
        }
    }

    /// The fetch that has the place of a copy's chunk, if it is still under way.
    fn other(&self, copy: &Flight) -> Option<Rc<Flight>> {
        let flights = self.flights.borrow();
        let mut others = flights.values();
        let other = others.find(|it| it.chunk == copy.chunk && !it.is_copy);
        other.cloned()
    }

    /// Puts a chunk where it belongs, once nothing of the other fetch can land there any more.
    async fn put_in_place(&self, flight: &Flight, copy: &Exposed) {
        let other = self.other(flight);
        if let Some(other) = other {
            other.cancel();
            other.ended.raised().await;
        }
        let room = self.room(flight.chunk);
        if let Some(room) = room.filter(|_| !self.holds(flight.chunk)) {
            room.copy_from(0, copy);
        }
    }
}

/// Whether all bytes were read. If the fetch is cancelled meanwhile it ends when nothing of them lands any more.
async fn carry(
    peer: &Peer,
    segment: &RemoteSegment,
    room: Exposed,
    offset_bytes: u64,
    flight: &Flight,
) -> bool {
    let mut batch = Batch::new();
    if batch.read(room, segment, offset_bytes).is_err() {
        return false;
    }
    let options = PostOptions {
        timeout: READ_MAX,
        intent: Intent::Weights,
        priority: Some(Priority::Background),
        notification: None,
    };
    let Ok(mut transfer) = peer.post(&batch, options) else {
        return false;
    };
    let read = poll_fn(|cx| {
        if flight.cancelled.poll(cx.waker()).is_ready() {
            transfer.cancel();
        }
        Pin::new(&mut transfer).poll(cx)
    });
    read.await.is_ok()
}
