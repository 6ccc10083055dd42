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
//! | `siblings` | [`Sibling`]: the cores of one engine, and what they have in common |
//! | `options`, `registering` | [`EngineOptions`]; what its program registers |
//! | `peer` | [`Peer`], [`RemoteSegment`] |
//! | `tokens` | tokens that a peer is shown, on each new connection again |
//! | `posted` | [`Transfer`]: which way it goes, how it ends |
//! | `host` | [`EngineHost`], [`EngineHandle`]: for programs without a core, and over several |
//! | `endpoint`, `resolver` | [`Endpoint`], [`Resolver`]: names of hosts |
//! | `destination`, `race`, `homing` | where a rail leads, and getting there; to which core of the peer's |
//! | `rails` | does what the scheduler asks for |
//! | `rdma` | bytes between memories by adapters ([`RdmaOptions`]) |
//! | `files` | [`FileSegment`]: files as segments |
//! | `devices` | [`DeviceSegment`]: memory of devices, as segments and as this side of requests |
//! | `namespaces` | [`NamespaceSegment`]: namespaces of NVMe controllers as segments |
//! | `copying` | transfers that are copies: within one engine, and from memory of a peer on this host |
//! | `same_host` | peers on this host: who they are, what is mapped, writes that the peer copies |
//! | `error` | what can go wrong |
//! | `statistics` | [`Statistics`] |

mod batch;
mod copying;
mod destination;
mod devices;
mod endpoint;
mod error;
mod files;
mod grants;
mod homing;
mod host;
mod namespaces;
mod options;
mod peer;
mod posted;
mod race;
mod rails;
mod rdma;
mod registering;
mod registry;
mod resolver;
mod same_host;
mod service;
mod sessions;
mod siblings;
mod statistics;
mod tokens;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use lunette_auth::{Encryption, Policy};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{JoinError, Scope};
use lunette_transfer_proto::calls::IN_FLIGHT_MAX;
use lunette_transfer_proto::hello::{Hello, VersionRange};

use crate::drain::Drain;
use crate::guard::Guard;
use crate::server::{ServeOptions, serve};
use crate::staging::Staging;

pub use crate::adapters::{AdapterChoice, AdapterFault, AdapterStatus, RdmaOptions};
pub use crate::source::WriteSource;
pub use batch::{Batch, Intent, PostOptions};
pub use devices::{
    ALLOCATIONS_MAX, DeviceFault, DeviceLendError, DeviceLent, DeviceSegment, DeviceWay,
    LentDevices,
};
pub use endpoint::{Endpoint, EndpointFault, HOST_BYTES_MAX};
pub use error::{
    BatchError, OpenError, PostError, RegisterDeviceError, RegisterError, RegisterFileError,
    RegisterNamespaceError, StartError, TransferError,
};
pub use files::{FileSegment, FileSegmentError, FileSegmentOptions};
pub use grants::{GRANTS_MAX, GrantError, Token};
pub use host::{
    EngineHandle, EngineHost, HandleError, HandleRequest, HostError, PeerHandle, Pending,
};
pub use lunette_auth::Rights;
pub use lunette_runtime::net::ResolveError;
pub use lunette_transfer_proto::engine::message::Refusal;
pub use lunette_transfer_proto::engine::rail::{Carrier, RailOptions};
pub use lunette_transfer_proto::engine::scheduler::{
    Cause, Effect, Priority, RequestFailure, SchedulerOptions,
};
pub use lunette_transfer_proto::engine::segment::{Access, Kind, RegisterRefusal, SegmentId, Way};
pub use namespaces::{NamespaceSegment, NamespaceSegmentError, NamespaceSegmentOptions};
pub use options::EngineOptions;
pub use peer::{Peer, RemoteSegment};
pub use posted::{Done, Transfer};
pub use registry::RegisterOptions;
pub use resolver::{Resolve, Resolver, Resolving};
pub use siblings::Sibling;
pub use statistics::{RailStatistics, Statistics};

use lunette_verbs::Context;
use rdma::Rdma;
use registry::Registry;
use resolver::Questions;
use same_host::Owner;
use service::EngineService;
use sessions::Sessions;
use siblings::{Alive, Siblings};
use statistics::Counts;

/// Bytes of answers that wait for one peer: a slice's checksum is to be computed shortly before the
/// system reads its bytes, while they are in cache.
const REPLY_BYTES: usize = 64 * 1024;
/// Addresses of one engine.
pub const LISTENERS_MAX: usize = 64;

/// What a peer sent with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The session epoch of the engine that sent it.
    pub from: u64,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// One core's transfer engine, or one core's part of an engine of several ([`Engine::siblings`]). Clones are
/// handles to the same one; it ends with the last of them and of its peers.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Rc<Inner>,
    tasks: Rc<Scope>,
    /// Answers threads and the other cores, and ends what peers have left here.
    attends: Rc<Scope>,
}

#[derive(Debug)]
struct Inner {
    options: EngineOptions,
    epoch: u64,
    guard: Option<Guard>,
    addresses: Vec<SocketAddr>,
    registry: RefCell<Registry>,
    staging: Rc<Staging>,
    /// Memory between peers and devices that are this side of transfers. It has a bound of its own: who holds some
    /// waits for a peer, which may wait for what this engine serves by way of the other.
    device_staging: Rc<Staging>,
    sessions: RefCell<Sessions>,
    /// What it has in common with the engine's other cores.
    alive: Arc<Alive>,
    counts: Counts,
    drain: Drain,
    /// Names that are asked for.
    questions: Rc<Questions>,
    /// Lets peers of this host in.
    owner: Option<Owner>,
    /// Its adapters, and what peers have of them.
    rdma: Rdma,
}

impl Engine {
    /// Starts an engine on this core.
    ///
    /// # Errors
    /// [`StartError`]: an address cannot be listened on.
    pub fn start(options: EngineOptions) -> Result<Self, StartError> {
        Self::start_with(options, Vec::new())
    }

    /// The same, with adapters that the program has opened on this core, besides those that the options name:
    /// those of a simulated fabric, say.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(options: EngineOptions, adapters: Vec<Context>) -> Result<Self, StartError> {
        let siblings = Siblings::alone(&options);
        Self::start_on(options, Alive::new(&siblings, 0), adapters)
    }

    /// Starts this core's part.
    fn start_on(
        options: EngineOptions,
        alive: Arc<Alive>,
        adapters: Vec<Context>,
    ) -> Result<Self, StartError> {
        if options.listen.len() > LISTENERS_MAX {
            return Err(StartError::TooManyAddresses {
                count: options.listen.len(),
            });
        }
        let is_sealed = options.encryption == Encryption::Required;
        if is_sealed && options.policy.secrets().is_none() {
            return Err(StartError::NoSecret);
        }
        let listeners = listen(&options)?;
        let epoch = alive.siblings().epoch(options.epoch);
        let secrets = options.policy.secrets();
        let is_shared = options.same_host && !listeners.is_empty();
        let meeting_at = options.same_host_dir.as_deref();
        let owner = is_shared.then(|| Owner::listen(meeting_at)).flatten();
        let (owner, local) = owner.unzip();
        let addresses: Vec<_> = listeners.iter().map(TcpListener::local_addr).collect();
        alive.siblings().listens(alive.core(), &addresses);
        let inner = Rc::new(Inner {
            epoch,
            guard: secrets.map(|secrets| {
                Guard::new(secrets.clone(), epoch).with_encryption(options.encryption)
            }),
            addresses,
            registry: RefCell::new(Registry::new(options.same_host_trust)),
            staging: Rc::new(Staging::new(options.file_bytes_max)),
            device_staging: Rc::new(Staging::new(options.device_bytes_max)),
            sessions: RefCell::default(),
            alive,
            counts: Counts::default(),
            drain: Drain::default(),
            questions: Rc::default(),
            owner,
            rdma: Rdma::open(&options, adapters),
            options,
        });
        Rdma::hear(&inner);
        let (tasks, attends) = (Scope::new(), Scope::new());
        let siblings = inner.alive.siblings();
        siblings.has_adapters(inner.alive.core(), inner.rdma.adapters().len());
        if !inner.rdma.adapters().is_empty() {
            let presences = Arc::clone(&siblings.presences);
            let ending = Inner::end_queue_pairs(Rc::downgrade(&inner), presences);
            attends.spawn(ending).map_err(StartError::Task)?;
        }
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
            attends: Rc::new(attends),
        })
    }

    /// The RDMA adapters that were asked for, in their order, and which of them it does not use, and why.
    #[must_use]
    pub fn adapters(&self) -> &[AdapterStatus] {
        self.inner.rdma.status()
    }

    /// Queue pairs over which peers reach memory, at this core: of an engine of several one serves.
    #[must_use]
    pub fn accepted_queue_pairs(&self) -> usize {
        self.inner.rdma.acceptor().len()
    }

    /// Peers of which this core keeps something: those that have a connection to it, and those of which something is still
    /// landing.
    #[must_use]
    pub fn accepted_sessions(&self) -> usize {
        self.inner.sessions.borrow().len()
    }

    fn common(&self) -> &Arc<Siblings> {
        self.inner.alive.siblings()
    }

    /// Where it listens, with the ports that the system chose; one core's part, where that does.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.inner.addresses
    }

    /// Its session epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
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

    /// The next notification that a peer sent, to whichever core. Those of one transfer come after its bytes.
    pub async fn notified(&self) -> Notification {
        let next = self.common().notices.next().await;
        next.expect("this core has not ended")
    }

    /// A notification, if one waits.
    #[must_use]
    pub fn take_notification(&self) -> Option<Notification> {
        self.common().notices.take()
    }

    /// What it has done so far, on this core.
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
            hello: self.hello(self.alive.siblings().greeting(self.alive.core())),
            connections_max: self.options.connections_max,
            handshake_timeout: self.options.connect_timeout,
            stall_timeout: self.options.stall_timeout,
            guard: self.guard.clone(),
            reply_bytes_max: REPLY_BYTES,
        }
    }

    /// The number of a notification, the same however often it is sent.
    fn note_number(&self, given: &Cell<Option<u64>>) -> u64 {
        let number = given.get();
        let number = number.unwrap_or_else(|| self.alive.siblings().next_note());
        given.set(Some(number));
        number
    }

    /// A number for a peer, which names its connections at the other side.
    fn next_peer(&self) -> u32 {
        self.alive.siblings().next_peer()
    }
}

fn listen(options: &EngineOptions) -> Result<Vec<TcpListener>, StartError> {
    if options.policy == Policy::Insecure && !options.listen.is_empty() {
        tracing::warn!("whoever reaches this engine may read and write what it registers");
    }
    let mut listeners = Vec::new();
    for &address in &options.listen {
        options.policy.permits_listening(address.ip())?;
        let listener = TcpListener::bind(address);
        listeners.push(listener.map_err(|error| StartError::Listen { address, error })?);
    }
    Ok(listeners)
}

/// Whether a task was spawned: the core may be full.
fn spawned(result: Result<(), JoinError>) -> bool {
    if let Err(error) = &result {
        tracing::warn!(%error, "the core takes no more tasks");
    }
    result.is_ok()
}
