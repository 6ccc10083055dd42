//! A peer's engine, seen from here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_runtime::{Scope, Signal, time};
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::{
    Descriptor, NOTE_BYTES_MAX, Operation, Refusal, finish,
};
use lunette_transfer_proto::engine::scheduler::{
    Outcome, RAILS_MAX, Scheduler, SliceId, TransferId, TransferOptions,
};
use lunette_transfer_proto::engine::segment::{Access, SegmentId};

use super::batch::{Batch, PostOptions};
use super::error::{OpenError, PostError, TransferError};
use super::statistics::RailStatistics;
use super::{Inner, spawned};
use crate::client::{Attachments, Connection, Reply};
use crate::error::ConnectError;

/// A segment of a peer, as it was when it was opened. Its id dies with its registration: an access to
/// memory that was registered later in its place is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSegment {
    peer: u64,
    descriptor: Descriptor,
}

impl RemoteSegment {
    /// The session epoch of the engine whose it is.
    #[must_use]
    pub const fn peer(&self) -> u64 {
        self.peer
    }

    /// Its id there.
    #[must_use]
    pub const fn id(&self) -> SegmentId {
        self.descriptor.segment
    }

    /// Its length.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.descriptor.len_bytes
    }

    /// What we may do.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.descriptor.access
    }
}

/// What came of a transfer of which everything was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes that were moved.
    pub len_bytes: u64,
    /// Slices that were sent, those sent again included.
    pub slices: u64,
    /// Slices that were sent again.
    pub resent: u64,
    /// How long it took.
    pub took: Duration,
}

/// A transfer that was posted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) batch: Batch,
    pub(super) options: PostOptions,
    /// The number of its notification in the engine's session, from its first sending on.
    pub(super) note: Cell<Option<u64>>,
    began: Time,
    outcome: RefCell<Option<Outcome>>,
    waker: RefCell<Option<Waker>>,
}

impl Posted {
    /// It is over.
    pub(super) fn finish(&self, outcome: Outcome) {
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// An engine that was opened. Clones are handles to the same; its connections end with the last handle
/// and the last transfer.
#[derive(Clone, Debug)]
pub struct Peer {
    pub(super) shared: Rc<Shared>,
    _closes: Rc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(Rc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.tasks.abort();
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) engine: Rc<Inner>,
    pub(super) addresses: Vec<SocketAddr>,
    /// Its session epoch.
    pub(super) epoch: u64,
    /// What it is called in the numbers of its connections.
    pub(super) number: u32,
    pub(super) state: RefCell<State>,
    pub(super) tasks: Scope,
    /// Wakes the task that keeps times, when there is an earlier one than it sleeps for.
    pub(super) keeper: Signal,
    pub(super) sleeps_until: Cell<Time>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) scheduler: Scheduler,
    /// The connection of each rail that is up.
    pub(super) rails: Vec<Option<Connection>>,
    pub(super) posted: BTreeMap<TransferId, Rc<Posted>>,
    /// What stops each read that is under way.
    pub(super) stops: BTreeMap<SliceId, Rc<Signal>>,
    pub(super) is_replaced: bool,
}

impl Peer {
    pub(super) async fn open(
        engine: &Rc<Inner>,
        addresses: &[SocketAddr],
    ) -> Result<Self, OpenError> {
        let count = addresses.len();
        if !(1..=RAILS_MAX).contains(&count) {
            return Err(OpenError::BadAddresses { count });
        }
        let number = engine.next_peer();
        let (rail, connection) = first_to_answer(engine, addresses, number).await?;
        let mut scheduler = Scheduler::new(engine.options.scheduler, count);
        let adopted = scheduler.adopt(rail, time::now());
        assert_eq!(adopted, 1, "the first of its connections");
        let mut rails: Vec<Option<Connection>> = (0..count).map(|_| None).collect();
        let epoch = connection.agreement().session_epoch;
        rails[rail] = Some(connection.clone());
        let state = State {
            scheduler,
            rails,
            posted: BTreeMap::new(),
            stops: BTreeMap::new(),
            is_replaced: false,
        };
        let shared = Rc::new(Shared {
            engine: Rc::clone(engine),
            addresses: addresses.to_vec(),
            epoch,
            number,
            state: RefCell::new(state),
            tasks: Scope::new(),
            keeper: Signal::default(),
            sleeps_until: Cell::new(Time::MAX),
        });
        shared.watch(rail, adopted, connection);
        spawned(shared.tasks.spawn(Rc::clone(&shared).keep_times()));
        let closes = Rc::new(CloseOnDrop(Rc::clone(&shared)));
        Ok(Self {
            shared,
            _closes: closes,
        })
    }

    /// Its session epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Whether it is the very engine that opened it.
    #[must_use]
    pub fn is_self(&self) -> bool {
        self.shared.epoch == self.shared.engine.epoch
    }

    /// Opens the segment of a name.
    ///
    /// # Errors
    /// [`OpenError`]; [`Refusal::Stale`] if it has none.
    pub async fn segment(&self, name: &str) -> Result<RemoteSegment, OpenError> {
        let body = |out: &mut Vec<u8>| out.extend_from_slice(name.as_bytes());
        let reply = self.ask(Operation::Open, body).await?;
        let mut reader = Reader::new(&reply.body);
        let descriptor = Descriptor::decode(&mut reader).map_err(|_| OpenError::Malformed)?;
        finish(&reader).map_err(|_| OpenError::Malformed)?;
        Ok(self.remote(descriptor))
    }

    /// Opens the segment in which a range of the peer's addresses lies, and says where in it.
    ///
    /// # Errors
    /// [`OpenError`]; [`Refusal::OutOfRange`] if there is none.
    pub async fn segment_at(
        &self,
        start: u64,
        len_bytes: u64,
    ) -> Result<(RemoteSegment, u64), OpenError> {
        let body = |out: &mut Vec<u8>| {
            Writer::new(out).u64(start).u64(len_bytes);
        };
        let reply = self.ask(Operation::Find, body).await?;
        let mut reader = Reader::new(&reply.body);
        let descriptor = Descriptor::decode(&mut reader).map_err(|_| OpenError::Malformed)?;
        let offset = reader.u64().map_err(|_| OpenError::Malformed)?;
        finish(&reader).map_err(|_| OpenError::Malformed)?;
        Ok((self.remote(descriptor), offset))
    }

    /// Posts a batch, from now on under way whether the future is polled or not. Dropping the future
    /// cancels the transfer; to know that nothing of it lands any more, [`Transfer::cancel`] it and
    /// await it.
    ///
    /// # Errors
    /// [`PostError`]; nothing was sent.
    pub fn post(&self, batch: &Batch, options: PostOptions) -> Result<Transfer, PostError> {
        let shared = &self.shared;
        if batch.peer().is_some_and(|peer| peer != shared.epoch) {
            return Err(PostError::OtherPeer);
        }
        let note = options.notification.as_deref().unwrap_or_default();
        if note.len() > NOTE_BYTES_MAX {
            let len_bytes = note.len();
            return Err(PostError::NoteTooLong { len_bytes });
        }
        let now = time::now();
        let posted = Rc::new(Posted {
            batch: batch.clone(),
            options: options.clone(),
            note: Cell::default(),
            began: now,
            outcome: RefCell::default(),
            waker: RefCell::default(),
        });
        if self.is_self() {
            let id = None;
            spawned(
                shared
                    .tasks
                    .spawn(Rc::clone(shared).copy(Rc::clone(&posted))),
            );
            return Ok(Transfer {
                peer: self.clone(),
                id,
                posted,
            });
        }
        let mut state = shared.state.borrow_mut();
        if state.is_replaced {
            return Err(PostError::PeerReplaced);
        }
        let asked = TransferOptions {
            priority: options.priority.unwrap_or(options.intent.priority()),
            deadline: now + options.timeout,
            has_note: options.notification.is_some(),
        };
        let id = state.scheduler.submit(batch.requests(), asked, now)?;
        state.posted.insert(id, Rc::clone(&posted));
        drop(state);
        shared.pump();
        Ok(Transfer {
            peer: self.clone(),
            id: Some(id),
            posted,
        })
    }

    /// What is known of its rails, in the order of the addresses that it was opened by.
    #[must_use]
    pub fn rails(&self) -> Vec<RailStatistics> {
        let state = self.shared.state.borrow();
        let rails = state.scheduler.rails().iter();
        rails
            .zip(&self.shared.addresses)
            .map(|(rail, &address)| RailStatistics {
                address,
                is_up: rail.is_up(),
                bytes_per_second: rail.bytes_per_second(),
                under_way_bytes: rail.under_way_bytes(),
                connections: rail.connection(),
                failures: rail.failures(),
            })
            .collect()
    }

    fn remote(&self, descriptor: Descriptor) -> RemoteSegment {
        RemoteSegment {
            peer: self.shared.epoch,
            descriptor,
        }
    }

    /// Asks over whatever rail is up, or over a new connection if none is.
    async fn ask(
        &self,
        op: Operation,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Reply, OpenError> {
        let shared = &self.shared;
        let up = shared.state.borrow().rails.iter().flatten().next().cloned();
        let connection = match up {
            Some(connection) => connection,
            None => {
                let number = shared.engine.next_peer();
                let found = first_to_answer(&shared.engine, &shared.addresses, number).await?;
                found.1
            }
        };
        let timeout = shared.engine.options.connect_timeout;
        let asked = connection.call(op.to_wire(), body, Attachments::default(), timeout);
        let reply = asked
            .await
            .map_err(|failure| OpenError::Call(failure.error))?;
        match Refusal::from_wire(reply.status) {
            None => Ok(reply),
            Some(refusal) => Err(OpenError::Refused(refusal)),
        }
    }
}

/// What a connection is called at the other side.
pub(super) fn connection_number(peer: u32, rail: usize, connection: u32) -> u64 {
    assert!(rail < RAILS_MAX, "rails are bounded");
    u64::from(peer) << 40 | (rail as u64) << 32 | u64::from(connection)
}

/// Connects one rail.
pub(super) async fn connect(
    engine: &Inner,
    address: SocketAddr,
    number: u64,
) -> Result<Connection, ConnectError> {
    let hello = engine.hello(number.to_le_bytes().to_vec());
    let (timeout, guard) = (engine.options.connect_timeout, engine.guard.as_ref());
    Connection::connect_guarded(address, hello, timeout, guard).await
}

async fn first_to_answer(
    engine: &Inner,
    addresses: &[SocketAddr],
    peer: u32,
) -> Result<(usize, Connection), OpenError> {
    let mut last = None;
    for (rail, &address) in addresses.iter().enumerate() {
        match connect(engine, address, connection_number(peer, rail, 1)).await {
            Ok(connection) => return Ok((rail, connection)),
            Err(error) => last = Some(OpenError::Connect { address, error }),
        }
    }
    Err(last.expect("there is at least one address"))
}

/// A transfer: ends with what came of it. Dropping it cancels what is left of it, in the background.
#[derive(Debug)]
pub struct Transfer {
    peer: Peer,
    /// `None` within one engine, and when it is over.
    id: Option<TransferId>,
    posted: Rc<Posted>,
}

impl Transfer {
    /// Gives up what is not done. The future ends when what was under way is settled.
    pub fn cancel(&self) {
        if let Some(id) = self.id {
            let shared = &self.peer.shared;
            shared.state.borrow_mut().scheduler.cancel(id, time::now());
            shared.pump();
        }
    }

    fn result(&self, outcome: Outcome) -> Result<Done, TransferError> {
        let Outcome {
            failures,
            slices,
            resent,
        } = outcome;
        if !failures.is_empty() {
            let paths = self.peer.shared.addresses.clone();
            return Err(TransferError { failures, paths });
        }
        Ok(Done {
            len_bytes: self.posted.batch.len_bytes(),
            slices,
            resent,
            took: time::now().since(self.posted.began),
        })
    }
}

impl Future for Transfer {
    type Output = Result<Done, TransferError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.posted.outcome.borrow_mut().take();
        let Some(outcome) = outcome else {
            *self.posted.waker.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        };
        // It is over: nothing is left to be cancelled.
        self.id = None;
        Poll::Ready(self.result(outcome))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.cancel();
    }
}
