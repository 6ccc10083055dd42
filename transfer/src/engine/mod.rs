//! The transfer engine: bytes between memories, over the best path there is.
//!
//! An [`Engine`] registers memory as segments, which its peers read and write without its program
//! taking part, and opens peers whose segments it reads and writes:
//!
//! ```text
//!   Engine --open--> Peer --post(Batch)--> Transfer (a future)
//!                     |
//!                     +- Scheduler (transfer/proto): slices, rails, failover, fences, deadlines
//!                     +- rail 0, rail 1, ... a Connection each
//! ```
//!
//! A write is done when the peer's memory holds it. A request that fails says what it left behind,
//! and when a future says that it is over, nothing of it can land any more, unless it says so
//! ([`Effect::MayStillChange`]). Memory in a batch is counted: it stays while any operation names it,
//! whatever becomes of the batch, its future and the engine.
//!
//! ```
//! use lunette_runtime::arena::{Exposed, HugePages};
//! use lunette_runtime::{CoreOptions, block_on};
//! use lunette_transfer::engine::{Batch, Engine, EngineOptions, PostOptions, RegisterOptions};
//!
//! fn memory() -> Exposed {
//!     Exposed::map(1 << 20, HugePages::Never, &mut Vec::new()).unwrap()
//! }
//!
//! let done = block_on(None, CoreOptions::default(), || async {
//!     let options = EngineOptions {
//!         listen: vec!["127.0.0.1:0".parse().unwrap()],
//!         ..EngineOptions::default()
//!     };
//!     let server = Engine::start(options).unwrap();
//!     let there = memory();
//!     server.register(there.clone(), &RegisterOptions::named("kv")).unwrap();
//!
//!     let client = Engine::start(EngineOptions::default()).unwrap();
//!     let peer = client.open(server.addresses()).await.unwrap();
//!     let remote = peer.segment("kv").await.unwrap();
//!     let here = memory();
//!     here.copy_in(0, b"keys and values");
//!     let mut batch = Batch::new();
//!     batch.write(here.slice(0, 15), &remote, 4096).unwrap();
//!     let done = peer.post(&batch, PostOptions::default()).unwrap().await.unwrap();
//!     assert_eq!(there.slice(4096, 15).to_vec(), b"keys and values");
//!     done
//! });
//! assert_eq!(done.unwrap().len_bytes, 15);
//! ```
//!
//! | module | subject |
//! |---|---|
//! | `batch` | [`Batch`], what is asked; [`PostOptions`] |
//! | `registry` | registered memory, and who is using it |
//! | `service` | the answering side |
//! | `sessions` | who is connected, what is fenced, which notifications were seen |
//! | `grants` | [`Token`]: segments that are reached by capability; what sessions have redeemed |
//! | `peer` | [`Peer`], [`RemoteSegment`] |
//! | `tokens` | tokens that a peer is shown, on each new connection again |
//! | `posted` | [`Transfer`]: which way it goes, how it ends |
//! | `host` | [`EngineHost`]: for programs without a core |
//! | `endpoint`, `resolver` | [`Endpoint`], [`Resolver`]: names of hosts |
//! | `destination`, `race` | where a rail leads, and getting there |
//! | `rails` | does what the scheduler asks for |
//! | `files` | [`FileSegment`]: files as segments |
//! | `copying` | transfers that are copies: within one engine, and from memory of a peer on this host |
//! | `same_host` | peers on this host: who they are, what is mapped, writes that the peer copies |
//! | `error` | what can go wrong |
//! | `statistics` | [`Statistics`] |

mod batch;
mod copying;
mod destination;
mod endpoint;
mod error;
mod files;
mod grants;
mod host;
mod peer;
mod posted;
mod race;
mod rails;
mod registry;
mod resolver;
mod same_host;
mod service;
mod sessions;
mod statistics;
mod tokens;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use lunette_auth::{Encryption, OwnerKey, Policy};
use lunette_runtime::arena::Exposed;
use lunette_runtime::net::TcpListener;
use lunette_runtime::{JoinError, Scope, entropy};
use lunette_transfer_proto::calls::IN_FLIGHT_MAX;
use lunette_transfer_proto::hello::{Hello, VersionRange};
use lunette_transfer_proto::topology::Sources;

use crate::drain::Drain;
use crate::guard::Guard;
use crate::server::{ServeOptions, serve};

pub use batch::{Batch, Intent, PostOptions};
pub use endpoint::{Endpoint, EndpointFault, HOST_BYTES_MAX};
pub use error::{
    BatchError, OpenError, PostError, RegisterError, RegisterFileError, StartError, TransferError,
};
pub use files::{FileSegment, FileSegmentError, FileSegmentOptions};
pub use grants::{GRANTS_MAX, GrantError, Token};
pub use host::{
    EngineHandle, EngineHost, HandleError, HandleRequest, HostError, PeerHandle, Pending,
};
pub use lunette_auth::Rights;
pub use lunette_runtime::net::ResolveError;
pub use lunette_transfer_proto::engine::message::Refusal;
pub use lunette_transfer_proto::engine::rail::RailOptions;
pub use lunette_transfer_proto::engine::scheduler::{
    Cause, Effect, Priority, RequestFailure, SchedulerOptions,
};
pub use lunette_transfer_proto::engine::segment::{Access, Kind, RegisterRefusal, SegmentId, Way};
pub use peer::{Peer, RemoteSegment};
pub use posted::{Done, Transfer};
pub use registry::RegisterOptions;
pub use resolver::{Resolve, Resolver, Resolving};
pub use statistics::{RailStatistics, Statistics};

use files::Staging;
use registry::{Content, Registry};
use resolver::Questions;
use same_host::Owner;
use service::EngineService;
use sessions::Sessions;
use statistics::Counts;

/// Bytes of answers that wait for one peer: a slice's checksum is to be computed shortly before the
/// system reads its bytes, while they are in cache.
const REPLY_BYTES: usize = 64 * 1024;
/// Addresses of one engine.
pub const LISTENERS_MAX: usize = 64;

/// What an engine is to be.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where it listens; empty for an engine that only asks.
    pub listen: Vec<SocketAddr>,
    /// Its session epoch, which no other engine and no earlier one has, and which nobody can guess.
    /// By default it is drawn.
    pub epoch: Option<u64>,
    /// How connections are authenticated, those that it accepts and those that it makes; without a
    /// secret it listens on loopback only.
    pub policy: Policy,
    /// Whether what goes over connections is sealed; one side's wish is enough. It takes a secret, and a
    /// copy and a cipher on both sides. Peers on the same host copy from memory all the same
    /// ([`same_host`](Self::same_host)).
    pub encryption: Encryption,
    /// Rails, failover, fences.
    pub scheduler: SchedulerOptions,
    /// Connections that it accepts at each address.
    pub connections_max: usize,
    /// Longest payload of a frame, in bytes; a slice is no longer.
    pub payload_bytes_max: u32,
    /// Memory that is on its way between peers and files, at most, in bytes, unless a single frame is longer.
    /// Reads wait for room, writes are refused as busy and sent again.
    pub file_bytes_max: usize,
    /// Notifications that wait to be taken; more are refused as busy.
    pub notifications_max: usize,
    /// Whether bytes go between this engine and peers on this host through memory that both map, and are
    /// not sent: registered memory ([`RegisterOptions::same_host`]), or a window of the session.
    pub same_host: bool,
    /// Whether peers on this host may read this process's memory (`process_vm_readv`), if they want that
    /// too: so what is no mapping of its own is copied once and not through the window. Who may do that may
    /// read all of it. Where the system forbids it, the window serves.
    pub same_host_trust: bool,
    /// Peers on this host that are let in at each place where they come in; others go over the network.
    pub same_host_peers_max: usize,
    /// Segments of one peer that are mapped, and segments that one peer has mapped here for its writes; the
    /// bytes of others go through the window.
    pub same_host_segments_max: usize,
    /// A folder in which this engine and peers on this host meet that are in another network namespace: in
    /// another container, say, into which the folder is mounted. Each side names it as it sees it. Peers in
    /// the same network namespace need none.
    pub same_host_dir: Option<PathBuf>,
    /// How long a connection may take to come about, from the name of its host on.
    pub connect_timeout: Duration,
    /// Who is asked for the addresses of names.
    pub resolver: Resolver,
    /// A name that leads nowhere any more is asked for again after this time at the earliest.
    pub resolve_interval_min: Duration,
    /// The addresses of this host that connections are made from; without it the system's routes say.
    pub sources: Option<Sources>,
    /// How long a peer may pause in the middle of a payload, or answer nothing at all.
    pub stall_timeout: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            epoch: None,
            policy: Policy::LoopbackOnly,
            encryption: Encryption::Optional,
            scheduler: SchedulerOptions::default(),
            connections_max: 1024,
            payload_bytes_max: 4 * 1024 * 1024,
            file_bytes_max: 64 * 1024 * 1024,
            notifications_max: 4096,
            same_host: true,
            same_host_trust: false,
            same_host_peers_max: 1024,
            same_host_segments_max: 4096,
            same_host_dir: None,
            connect_timeout: Duration::from_secs(2),
            resolver: Resolver::default(),
            resolve_interval_min: Duration::from_secs(1),
            sources: None,
            stall_timeout: Duration::from_secs(5),
        }
    }
}

/// What a peer sent with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The session epoch of the engine that sent it.
    pub from: u64,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// One core's transfer engine. Clones are handles to the same one; it ends with the last of them and
/// of its peers.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Rc<Inner>,
    tasks: Rc<Scope>,
}

#[derive(Debug)]
struct Inner {
    options: EngineOptions,
    epoch: u64,
    guard: Option<Guard>,
    addresses: Vec<SocketAddr>,
    registry: RefCell<Registry>,
    staging: Rc<Staging>,
    sessions: RefCell<Sessions>,
    notifications: RefCell<VecDeque<Notification>>,
    waiting: RefCell<Vec<Waker>>,
    counts: Counts,
    drain: Drain,
    peers: Cell<u32>,
    notes: Cell<u64>,
    /// Names that are asked for.
    questions: Rc<Questions>,
    /// Lets peers of this host in.
    owner: Option<Owner>,
    /// What its capabilities are made with: drawn with the first of them.
    owner_key: OnceCell<OwnerKey>,
}

impl Engine {
    /// Starts an engine on this core.
    ///
    /// # Errors
    /// [`StartError`]: an address cannot be listened on.
    pub fn start(options: EngineOptions) -> Result<Self, StartError> {
        if options.listen.len() > LISTENERS_MAX {
            return Err(StartError::TooManyAddresses {
                count: options.listen.len(),
            });
        }
        let is_sealed = options.encryption == Encryption::Required;
        if is_sealed && options.policy.secrets().is_none() {
            return Err(StartError::NoSecret);
        }
        let mut listeners = Vec::new();
        if options.policy == Policy::Insecure && !options.listen.is_empty() {
            tracing::warn!("whoever reaches this engine may read and write what it registers");
        }
        for &address in &options.listen {
            options.policy.permits_listening(address.ip())?;
            let listener = TcpListener::bind(address);
            listeners.push(listener.map_err(|error| StartError::Listen { address, error })?);
        }
        let epoch = options.epoch.unwrap_or_else(entropy);
        let secrets = options.policy.secrets();
        let is_shared = options.same_host && !listeners.is_empty();
        let meeting_at = options.same_host_dir.as_deref();
        let owner = is_shared.then(|| Owner::listen(meeting_at)).flatten();
        let (owner, local) = owner.unzip();
        let inner = Rc::new(Inner {
            epoch,
            guard: secrets.map(|secrets| {
                Guard::new(secrets.clone(), epoch).with_encryption(options.encryption)
            }),
            addresses: listeners.iter().map(TcpListener::local_addr).collect(),
            registry: RefCell::new(Registry::new(options.same_host_trust)),
            staging: Rc::new(Staging::new(options.file_bytes_max)),
            sessions: RefCell::default(),
            notifications: RefCell::default(),
            waiting: RefCell::default(),
            counts: Counts::default(),
            drain: Drain::default(),
            peers: Cell::new(0),
            notes: Cell::new(0),
            questions: Rc::default(),
            owner,
            owner_key: OnceCell::new(),
            options,
        });
        let tasks = Scope::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            let service = Rc::new(EngineService::new(Rc::clone(&inner), index));
            let serving = serve(
                listener,
                service,
                inner.serve_options(),
                inner.drain.clone(),
            );
            tasks.spawn(serving).map_err(StartError::Task)?;
        }
        for local in local.into_iter().flatten() {
            let accepting = same_host::accept(Rc::clone(&inner), local);
            tasks.spawn(accepting).map_err(StartError::Task)?;
        }
        Ok(Self {
            inner,
            tasks: Rc::new(tasks),
        })
    }

    /// Where it listens, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.inner.addresses
    }

    /// Its session epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    /// Exposes memory to peers.
    ///
    /// # Errors
    /// [`RegisterError`], with the memory.
    pub fn register(
        &self,
        memory: Exposed,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterError> {
        self.inner.registry.borrow_mut().register(memory, options)
    }

    /// Exposes a file to peers, and to this engine's own transfers. It has no addresses, so
    /// [`RegisterOptions::by_address`] has no effect; nobody maps it.
    ///
    /// # Errors
    /// [`RegisterFileError`], with the file.
    pub fn register_file(
        &self,
        file: FileSegment,
        options: &RegisterOptions,
    ) -> Result<SegmentId, RegisterFileError> {
        let mut registry = self.inner.registry.borrow_mut();
        registry.register_file(file, options)
    }

    /// Takes a segment away. From the first poll on no access begins; the future ends with the memory
    /// when those that had begun are over. Dropping the future does not bring the segment back. `None`
    /// if there is no such segment, or if it is a file.
    pub async fn unregister(&self, id: SegmentId) -> Option<Exposed> {
        match self.take_away(id, Kind::Memory).await? {
            Content::Memory(exposed) => Some(exposed),
            Content::File(_) => unreachable!("it is memory"),
        }
    }

    /// As [`unregister`](Self::unregister), of a file: everything that was written to it has reached the
    /// system. `None` if there is no such segment, or if it is memory.
    pub async fn unregister_file(&self, id: SegmentId) -> Option<FileSegment> {
        match self.take_away(id, Kind::File).await? {
            Content::File(file) => Some(file),
            Content::Memory(_) => unreachable!("it is a file"),
        }
    }

    /// Takes a segment of whatever kind away; `false` if there is none.
    async fn unregister_any(&self, id: SegmentId) -> bool {
        let kind = self.inner.registry.borrow().kind(id);
        match kind {
            Some(kind) => self.take_away(id, kind).await.is_some(),
            None => false,
        }
    }

    async fn take_away(&self, id: SegmentId, kind: Kind) -> Option<Content> {
        if self.inner.registry.borrow().kind(id)? != kind {
            return None;
        }
        let unregistered = self.inner.registry.borrow_mut().unregister(id)?;
        Some(unregistered.unused().await)
    }

    /// How many segments are registered.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.inner.registry.borrow().len()
    }

    /// Memory that is registered here, for the program itself.
    #[must_use]
    pub fn memory(&self, id: SegmentId, offset_bytes: u64, len_bytes: u64) -> Option<Exposed> {
        let registry = self.inner.registry.borrow();
        registry.memory(id, offset_bytes, len_bytes)
    }

    /// Where in a segment a range of addresses lies, if it does, and if that segment was registered
    /// by address.
    #[must_use]
    pub fn find(&self, start: u64, len_bytes: u64) -> Option<(SegmentId, u64)> {
        self.inner.registry.borrow().find(start, len_bytes)
    }

    /// Opens the engine that listens at `addresses`, each of which makes a rail. One of them must
    /// answer now: they are tried in their order, the next when one has failed or is silent for a while.
    /// The others are connected when there is something to carry.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(&self, addresses: &[SocketAddr]) -> Result<Peer, OpenError> {
        let endpoints = addresses.iter().copied().map(Endpoint::from);
        Peer::open(&self.inner, endpoints.collect()).await
    }

    /// As [`open`](Self::open), also by names, each of which makes one rail, however many addresses it
    /// has: all of them should be the peer's. The name is asked for again when its rail was lost and
    /// does not come back, so a peer may move, as long as its session lives.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Resolve`] if the last name that was tried is unknown.
    pub async fn open_by_name(&self, endpoints: &[Endpoint]) -> Result<Peer, OpenError> {
        Peer::open(&self.inner, endpoints.to_vec()).await
    }

    /// The next notification that a peer sent. Those of one transfer come after its bytes.
    pub async fn notified(&self) -> Notification {
        poll_fn(|cx| match self.take_notification() {
            Some(notification) => Poll::Ready(notification),
            None => {
                self.inner.waiting.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// A notification, if one waits.
    #[must_use]
    pub fn take_notification(&self) -> Option<Notification> {
        self.inner.notifications.borrow_mut().pop_front()
    }

    /// What it has done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.inner.counts.read()
    }

    /// Ends the answering side in good order: what is being received is received, what has been
    /// answered is sent, and then the connections end.
    pub async fn close(self) {
        self.inner.drain.begin();
        self.tasks.join().await;
    }
}

impl Inner {
    fn hello(&self, greeting: Vec<u8>) -> Hello {
        Hello {
            versions: VersionRange::OURS,
            session_epoch: self.epoch,
            in_flight_max: IN_FLIGHT_MAX,
            payload_bytes_max: self.options.payload_bytes_max,
            greeting,
        }
    }

    fn serve_options(&self) -> ServeOptions {
        ServeOptions {
            hello: self.hello(Vec::new()),
            connections_max: self.options.connections_max,
            handshake_timeout: self.options.connect_timeout,
            stall_timeout: self.options.stall_timeout,
            guard: self.guard.clone(),
            reply_bytes_max: REPLY_BYTES,
        }
    }

    /// Queues a notification. False if the queue is full.
    fn notify(&self, notification: Notification) -> bool {
        let mut queue = self.notifications.borrow_mut();
        if queue.len() >= self.options.notifications_max {
            return false;
        }
        queue.push_back(notification);
        drop(queue);
        for waker in self.waiting.take() {
            waker.wake();
        }
        true
    }

    /// The number of a notification, the same however often it is sent. Peers tell notifications of
    /// one session apart by it, so all that this engine sends are numbered together.
    fn note_number(&self, given: &Cell<Option<u64>>) -> u64 {
        let number = given.get().unwrap_or_else(|| {
            self.notes.set(self.notes.get() + 1);
            self.notes.get()
        });
        given.set(Some(number));
        number
    }

    /// A number for a peer, which names its connections at the other side.
    fn next_peer(&self) -> u32 {
        let next = self.peers.get() + 1;
        self.peers.set(next);
        next
    }
}

/// Whether a task was spawned: the core may be full.
fn spawned(result: Result<(), JoinError>) -> bool {
    if let Err(error) = &result {
        tracing::warn!(%error, "the core takes no more tasks");
    }
    result.is_ok()
}
