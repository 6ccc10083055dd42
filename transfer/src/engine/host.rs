//! An engine for programs that have no core: one on a core of its own, asked from any thread.
//!
//! Every question travels to that core and its answer back, so a caller from a core of its own does
//! better with an [`Engine`] there. Memory is named by the segment under which it is registered.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_channel::oneshot;
use lunette_auth::Rights;
use lunette_runtime::arena::{Exposed, ForeignMemory, HugePages};
use lunette_runtime::{
    CoreOptions, Placement, Port, Runtime, SendError, Sender, StartError as CoreStartError,
    channel, spawn_local,
};
use lunette_runtime_core::ids::CoreIndex;
use lunette_transfer_proto::engine::segment::{RegisterRefusal, SegmentId, Way};
use slab::Slab;
use thiserror::Error;

use super::batch::{Batch, PostOptions};
use super::error::{BatchError, OpenError, PostError, StartError, TransferError};
use super::grants::{GrantError, Token};
use super::peer::{Peer, RemoteSegment};
use super::posted::{Done, Transfer};
use super::registry::RegisterOptions;
use super::statistics::Statistics;
use super::{Endpoint, Engine, EngineOptions, Notification};

/// Questions that wait for the engine's core.
const JOBS_MAX: usize = 4096;

type Job = Box<dyn FnOnce(&Rc<Hosted>) + Send>;

/// What lives on the engine's core.
struct Hosted {
    engine: Engine,
    peers: RefCell<Slab<Peer>>,
}

/// An engine on a core of its own. It ends with this value; handles then say so.
#[derive(Debug)]
pub struct EngineHost {
    handle: EngineHandle,
    addresses: Vec<SocketAddr>,
    epoch: u64,
    /// Ends its core when dropped.
    _runtime: Runtime,
}

/// Why a hosted engine did not start.
#[derive(Debug, Error)]
pub enum HostError {
    /// Its core did not.
    #[error(transparent)]
    Core(#[from] CoreStartError),
    /// The engine on it did not.
    #[error(transparent)]
    Engine(#[from] StartError),
    /// The core ended at once.
    #[error("the engine's core ended at once")]
    Ended,
}

/// Why a question to a hosted engine has no answer, or a bad one.
#[derive(Debug, Error)]
pub enum HandleError {
    /// The engine is gone.
    #[error("the engine is gone")]
    Gone,
    /// Too many questions wait for it.
    #[error("{JOBS_MAX} questions wait for the engine")]
    Busy,
    /// No segment of this engine, or not all of the range lies in it.
    #[error("no such local memory")]
    NoMemory,
    /// The system gives no memory.
    #[error("no memory: {0}")]
    Map(std::io::Error),
    /// See there.
    #[error(transparent)]
    Register(#[from] RegisterRefusal),
    /// See there.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// See there.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// See there.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// See there.
    #[error(transparent)]
    Post(#[from] PostError),
    /// See there.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl HandleError {
    /// Whether asking again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Open(error) => error.is_retryable(),
            Self::Transfer(error) => error.is_retryable(),
            other => other.is_backpressure(),
        }
    }

    /// Whether a limit was met, here or at the peer.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Register(refusal) => refusal.is_backpressure(),
            Self::Post(error) => error.is_backpressure(),
            Self::Transfer(error) => error.is_backpressure(),
            _ => false,
        }
    }
}

/// An answer on its way: a future for any executor, or [`wait`](Self::wait). Dropping that of a
/// transfer cancels it.
#[derive(Debug)]
pub struct Pending<T>(oneshot::Receiver<Result<T, HandleError>>);

impl<T> Pending<T> {
    /// Blocks this thread until the answer is there. Not for a core's thread.
    ///
    /// # Errors
    /// [`HandleError`].
    pub fn wait(self) -> Result<T, HandleError> {
        pollster::block_on(self)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, HandleError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|answer| answer.unwrap_or(Err(HandleError::Gone)))
    }
}

/// Asks a hosted engine, from any thread.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    jobs: Sender<Job>,
}

/// A peer that a hosted engine has opened. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct PeerHandle {
    engine: EngineHandle,
    peer: Arc<PeerSlot>,
}

#[derive(Debug)]
struct PeerSlot {
    index: usize,
    engine: EngineHandle,
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let index = self.index;
        // If the engine is gone, so is the peer; if it is busy, the peer stays until it ends.
        drop(self.engine.jobs.try_send(Box::new(move |hosted| {
            let peer = hosted.peers.borrow_mut().try_remove(index);
            drop(peer);
        })));
    }
}

/// One request of a thread's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleRequest {
    /// Which way its bytes go.
    pub way: Way,
    /// The segment of this engine in which they lie, or are to lie.
    pub local: SegmentId,
    /// Where in it.
    pub local_offset_bytes: u64,
    /// How many.
    pub len_bytes: u64,
    /// The peer's segment.
    pub remote: RemoteSegment,
    /// Where in that.
    pub remote_offset_bytes: u64,
}

impl EngineHost {
    /// Starts an engine on one core of its own.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn start(
        placement: &Placement,
        core: CoreOptions,
        options: EngineOptions,
    ) -> Result<Self, HostError> {
        let runtime = Runtime::start(placement, core)?;
        let (jobs, port) = channel::<Job>(JOBS_MAX);
        let (started, answer) = oneshot::channel();
        let hosting = runtime.spawn_on(CoreIndex(0), move || host(options, port, started));
        drop(hosting.map_err(|_| HostError::Ended)?);
        let (addresses, epoch) = pollster::block_on(answer).map_err(|_| HostError::Ended)??;
        Ok(Self {
            handle: EngineHandle { jobs },
            addresses,
            epoch,
            _runtime: runtime,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its session epoch: the holder in what peers grant to it.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A handle to it.
    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }
}

async fn host(
    options: EngineOptions,
    port: Port<Job>,
    started: oneshot::Sender<Result<(Vec<SocketAddr>, u64), StartError>>,
) {
    let engine = match Engine::start(options) {
        Ok(engine) => engine,
        Err(error) => {
            // Whoever started it has given up otherwise.
            drop(started.send(Err(error)));
            return;
        }
    };
    let Ok(mut jobs) = port.open() else {
        tracing::error!("the core has no room for the engine's questions");
        return;
    };
    drop(started.send(Ok((engine.addresses().to_vec(), engine.epoch()))));
    let hosted = Rc::new(Hosted {
        engine,
        peers: RefCell::default(),
    });
    while let Some(job) = jobs.recv().await {
        job(&hosted);
    }
}

impl EngineHandle {
    /// Asks, and answers at once.
    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Rc<Hosted>) -> Result<T, HandleError> + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = oneshot::channel();
        self.send(sender, move |hosted, sender| {
            // Nobody waits any more: then nobody is told.
            drop(sender.send(job(hosted)));
        });
        Pending(receiver)
    }

    /// Asks for what takes its time.
    fn ask_for<T: Send + 'static, F: Future<Output = Result<T, HandleError>> + 'static>(
        &self,
        job: impl FnOnce(Rc<Hosted>) -> F + Send + 'static,
    ) -> Pending<T> {
        let (sender, receiver) = oneshot::channel();
        self.send(sender, move |hosted, sender| {
            let answer = job(Rc::clone(hosted));
            drop(spawn_local(async move {
                drop(sender.send(answer.await));
            }));
        });
        Pending(receiver)
    }

    fn send<T: Send + 'static>(
        &self,
        sender: oneshot::Sender<Result<T, HandleError>>,
        job: impl FnOnce(&Rc<Hosted>, oneshot::Sender<Result<T, HandleError>>) + Send + 'static,
    ) {
        let sender = Arc::new(Mutex::new(Some(sender)));
        let taken = Arc::clone(&sender);
        let take = |sender: &Mutex<Option<_>>| {
            let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
            sender.take().expect("it is taken once")
        };
        let job: Job = Box::new(move |hosted| job(hosted, take(&taken)));
        if let Err(refused) = self.jobs.try_send(job) {
            let error = match refused {
                SendError::Full(_) => HandleError::Busy,
                SendError::Closed(_) => HandleError::Gone,
            };
            // The caller has the other end.
            drop(take(&sender).send(Err(error)));
        }
    }

    /// Registers memory of the program.
    #[must_use]
    pub fn register(&self, memory: ForeignMemory, options: RegisterOptions) -> Pending<SegmentId> {
        self.ask(move |hosted| {
            let memory = Exposed::foreign(memory);
            let registered = hosted.engine.register(memory, &options);
            registered.map_err(|error| error.refusal.into())
        })
    }

    /// Maps memory, zeroed, and registers it.
    #[must_use]
    pub fn allocate(&self, len_bytes: usize, options: RegisterOptions) -> Pending<SegmentId> {
        self.ask(move |hosted| {
            let memory = Exposed::map(len_bytes, HugePages::Prefer, &mut Vec::new());
            let memory = memory.map_err(|errno| HandleError::Map(errno.into()))?;
            let registered = hosted.engine.register(memory, &options);
            registered.map_err(|error| error.refusal.into())
        })
    }

    /// Takes a segment away; the answer comes when nobody uses its memory any more. False if there is
    /// no such segment.
    #[must_use]
    pub fn unregister(&self, id: SegmentId) -> Pending<bool> {
        self.ask_for(move |hosted| async move { Ok(hosted.engine.unregister_any(id).await) })
    }

    /// Grants part of a segment to another engine. See [`Engine::grant`].
    #[must_use]
    pub fn grant(
        &self,
        segment: SegmentId,
        holder: u64,
        rights: Rights,
        range: Range<u64>,
    ) -> Pending<Token> {
        self.ask(move |hosted| Ok(hosted.engine.grant(segment, holder, rights, range)?))
    }

    /// Revokes all that was granted for a segment. See [`Engine::revoke`].
    #[must_use]
    pub fn revoke(&self, segment: SegmentId) -> Pending<bool> {
        self.ask(move |hosted| Ok(hosted.engine.revoke(segment)))
    }

    /// Copies bytes into a segment of this engine.
    #[must_use]
    pub fn fill(&self, id: SegmentId, offset_bytes: u64, bytes: Vec<u8>) -> Pending<()> {
        self.ask(move |hosted| {
            let len_bytes = bytes.len() as u64;
            hosted
                .memory(id, offset_bytes, len_bytes)?
                .copy_in(0, &bytes);
            Ok(())
        })
    }

    /// Bytes of a segment of this engine, copied.
    #[must_use]
    pub fn bytes(&self, id: SegmentId, offset_bytes: u64, len_bytes: u64) -> Pending<Vec<u8>> {
        self.ask(move |hosted| Ok(hosted.memory(id, offset_bytes, len_bytes)?.to_vec()))
    }

    /// Opens a peer. See [`Engine::open`].
    #[must_use]
    pub fn open(&self, addresses: Vec<SocketAddr>) -> Pending<PeerHandle> {
        self.open_by_name(addresses.into_iter().map(Endpoint::from).collect())
    }

    /// Opens a peer, also by names. See [`Engine::open_by_name`].
    #[must_use]
    pub fn open_by_name(&self, endpoints: Vec<Endpoint>) -> Pending<PeerHandle> {
        let engine = self.clone();
        self.ask_for(move |hosted| async move {
            let peer = hosted.engine.open_by_name(&endpoints).await?;
            let index = hosted.peers.borrow_mut().insert(peer);
            let slot = PeerSlot {
                index,
                engine: engine.clone(),
            };
            Ok(PeerHandle {
                engine,
                peer: Arc::new(slot),
            })
        })
    }

    /// The next notification of a peer. If nobody waits for it any more when it comes, it is lost.
    #[must_use]
    pub fn notified(&self) -> Pending<Notification> {
        self.ask_for(|hosted| async move { Ok(hosted.engine.notified().await) })
    }

    /// A notification, if one waits.
    #[must_use]
    pub fn take_notification(&self) -> Pending<Option<Notification>> {
        self.ask(|hosted| Ok(hosted.engine.take_notification()))
    }

    /// What the engine has done so far.
    #[must_use]
    pub fn statistics(&self) -> Pending<Statistics> {
        self.ask(|hosted| Ok(hosted.engine.statistics()))
    }
}

impl PeerHandle {
    /// Opens the segment of a name. See [`Peer::segment`].
    #[must_use]
    pub fn segment(&self, name: &str) -> Pending<RemoteSegment> {
        let (name, index) = (name.to_owned(), self.peer.index);
        self.engine.ask_for(move |hosted| async move {
            let peer = hosted.peer(index)?;
            Ok(peer.segment(&name).await?)
        })
    }

    /// Opens what a capability is for. See [`Peer::redeem`].
    #[must_use]
    pub fn redeem(&self, token: Token) -> Pending<RemoteSegment> {
        let index = self.peer.index;
        self.engine.ask_for(move |hosted| async move {
            let peer = hosted.peer(index)?;
            Ok(peer.redeem(&token).await?)
        })
    }

    /// Posts a batch. See [`Peer::post`].
    #[must_use]
    pub fn post(&self, requests: Vec<HandleRequest>, options: PostOptions) -> Pending<Done> {
        let index = self.peer.index;
        let (sender, receiver) = oneshot::channel();
        self.engine.send(sender, move |hosted, sender| {
            match hosted.post(index, &requests, options) {
                Ok(transfer) => drop(spawn_local(answer(transfer, sender))),
                // Nobody waits any more: then nobody is told.
                Err(error) => drop(sender.send(Err(error))),
            }
        });
        Pending(receiver)
    }
}

/// Waits for a transfer, and cancels it when nobody waits for the answer any more.
async fn answer(transfer: Transfer, mut sender: oneshot::Sender<Result<Done, HandleError>>) {
    let mut transfer = pin!(transfer);
    let result = std::future::poll_fn(|cx| {
        if sender.poll_canceled(cx).is_ready() {
            transfer.cancel();
        }
        transfer.as_mut().poll(cx)
    })
    .await;
    drop(sender.send(result.map_err(HandleError::Transfer)));
}

impl Hosted {
    fn peer(&self, index: usize) -> Result<Peer, HandleError> {
        self.peers
            .borrow()
            .get(index)
            .cloned()
            .ok_or(HandleError::Gone)
    }

    fn memory(&self, id: SegmentId, offset: u64, len: u64) -> Result<Exposed, HandleError> {
        self.engine
            .memory(id, offset, len)
            .ok_or(HandleError::NoMemory)
    }

    fn post(
        &self,
        index: usize,
        requests: &[HandleRequest],
        options: PostOptions,
    ) -> Result<Transfer, HandleError> {
        let mut batch = Batch::new();
        for asked in requests {
            let local = self.memory(asked.local, asked.local_offset_bytes, asked.len_bytes)?;
            match asked.way {
                Way::Read => batch.read(local, &asked.remote, asked.remote_offset_bytes)?,
                Way::Write => batch.write(local, &asked.remote, asked.remote_offset_bytes)?,
            }
        }
        Ok(self.peer(index)?.post(&batch, options)?)
    }
}
