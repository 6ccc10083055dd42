//! A node: cores that each lend memory and serve it.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use futures_channel::{mpsc, oneshot};
use futures_core::Stream;
use lunette_kvstore_proto::message::{NodeCard, NodeStat};
use lunette_kvstore_proto::placement::{ClusterMap, Member};
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_runtime::arena::{ArenaOptions, HugePages};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{
    CoreOptions, DriverChoice, Idle, MeshError, Placement, Runtime, arena, core_count, spawn_local,
    spawn_on, time,
};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_transfer::{Drain, REPLY_BYTES_MAX, ServeOptions, serve};
use lunette_transfer_proto::calls::IN_FLIGHT_MAX;
use lunette_transfer_proto::hello::{Hello, VersionRange};

use crate::error::NodeError;
use crate::service::CoreService;

/// Questions that may wait at one core.
const QUESTIONS_MAX: usize = 16;
/// Bytes per entry that a core's tables are sized for; smaller objects meet the entry limit before
/// the memory limit.
const ENTRY_BYTES_MIN: u64 = 1024;
const ENTRIES_MIN: u64 = 1024;
const ENTRIES_MAX: u64 = 1 << 22;
/// Memory beyond the high watermark: staging buffers, and what fragmentation costs.
const ARENA_SLACK_BYTES: u64 = 64 * 1024 * 1024;
/// A core evicts down to this share below its high watermark.
const LOW_WATERMARK_SHARE: u64 = 256;

/// What a node is to be.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its identity, stable for its life: homes of keys depend on it.
    pub id: NodeId,
    /// Its share of keys, relative to the other nodes' weights.
    pub weight: u32,
    /// Where its first core listens; the others get ports from the system. Port 0: any.
    pub listen: SocketAddr,
    /// Memory for resident objects, in bytes, over all cores: the high watermark. The process
    /// maps some more, for buffers and fragmentation.
    pub memory_bytes: u64,
    /// Its cores.
    pub placement: Placement,
    /// What its cores do when they have nothing to do.
    pub idle: Idle,
    /// How its cores reach the system.
    pub driver: DriverChoice,
    /// Most connections per core.
    pub connections_max: usize,
    /// Whether memory is backed with huge pages.
    pub huge_pages: HugePages,
    /// Whether memory is locked.
    pub lock_memory: bool,
    /// Whether all memory is mapped and touched before the node serves.
    pub prefault: bool,
}

impl NodeOptions {
    /// A node of one core with `memory_bytes`, listening on `listen`.
    #[must_use]
    pub fn new(id: NodeId, listen: SocketAddr, memory_bytes: u64) -> Self {
        Self {
            id,
            weight: 1,
            listen,
            memory_bytes,
            placement: Placement::Anywhere(1),
            idle: Idle::default(),
            driver: DriverChoice::default(),
            connections_max: 1024,
            huge_pages: HugePages::Never,
            lock_memory: false,
            prefault: false,
        }
    }
}

impl NodeOptions {
    /// What each core of its runtime is to be.
    ///
    /// # Errors
    /// [`NodeError`]: memory and cores do not go together.
    pub fn core_options(&self) -> Result<CoreOptions, NodeError> {
        let limits = core_limits(self.memory_bytes, self.placement.cores())?;
        Ok(core_options(self, limits))
    }

    /// What it is in a cluster map.
    fn member(&self, cores: usize) -> Member {
        Member {
            id: self.id,
            weight: self.weight,
            cores: u16::try_from(cores).unwrap_or(u16::MAX),
        }
    }
}

/// A running node. Dropping it shuts it down.
pub struct Node {
    seated: SeatedNode,
    runtime: Runtime,
}

/// A node on the cores of a runtime that somebody else runs, and ends.
pub struct SeatedNode {
    address: SocketAddr,
    questions: Vec<mpsc::Sender<Question>>,
}

/// What the node asks of one of its cores.
enum Question {
    /// Its statistics.
    Stat(oneshot::Sender<NodeStat>),
    /// To end its connections; the sender is dropped when the last one has ended.
    Drain(std_mpsc::Sender<Infallible>),
}

/// What a core needs to know before it can serve.
struct CorePlan {
    index: CoreIndex,
    listen: SocketAddr,
    limits: ShardLimits,
    options: NodeOptions,
    cores: usize,
    bound: oneshot::Sender<Result<SocketAddr, NodeError>>,
    ports: oneshot::Receiver<Vec<u16>>,
    questions: mpsc::Receiver<Question>,
}

impl Node {
    /// Starts a node and waits until every core listens.
    ///
    /// # Errors
    /// [`NodeError`]: nothing is left running.
    pub fn start(options: NodeOptions) -> Result<Self, NodeError> {
        let runtime = Runtime::start(&options.placement, options.core_options()?)?;
        let first = CoreIndex(0);
        let seated = runtime.spawn_on(first, move || SeatedNode::start(options))?;
        let seated = seated.wait()??;
        Ok(Self { seated, runtime })
    }

    /// Where its first core listens; clients find the others from there.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.seated.address()
    }

    /// What it holds and has counted, over all cores. Blocks until each core has answered.
    ///
    /// # Errors
    /// [`NodeError::Core`]: a core does not answer.
    pub fn stat(&self) -> Result<NodeStat, NodeError> {
        pollster::block_on(self.seated.stat())
    }

    /// Ends its connections in good order, within `timeout`: none is accepted any more, values that
    /// are being received are received to their end, answers are sent; requests that were not read
    /// by then are not carried out. Whether all had ended in time. Shut the node down afterwards.
    pub fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let (draining, drained) = std_mpsc::channel();
        for questions in &self.seated.questions {
            if questions
                .clone()
                .try_send(Question::Drain(draining.clone()))
                .is_err()
            {
                tracing::debug!("a core has ended already");
            }
        }
        drop(draining);
        let left = deadline.saturating_duration_since(Instant::now());
        matches!(
            drained.recv_timeout(left),
            Err(std_mpsc::RecvTimeoutError::Disconnected)
        )
    }

    /// Ends its connections and its cores. Replies that the system has taken still leave.
    ///
    /// # Errors
    /// [`NodeError::Panicked`]: a core had ended before, by a bug.
    pub fn shut_down(self) -> Result<(), NodeError> {
        Ok(self.runtime.shut_down()?)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.address())
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

impl SeatedNode {
    /// Starts a node on all cores of the current runtime, whose cores are as
    /// [`NodeOptions::core_options`] says, and waits until each of them listens. The options'
    /// placement, idle policy and driver are the runtime's matter.
    ///
    /// # Errors
    /// [`NodeError`]: nothing is left running.
    ///
    /// # Panics
    /// Outside a runtime.
    pub async fn start(options: NodeOptions) -> Result<Self, NodeError> {
        let cores = core_count();
        let limits = core_limits(options.memory_bytes, cores)?;
        ClusterMap::new(vec![options.member(cores)])?;
        let mut starting = Starting::default();
        for index in 0..cores {
            let index = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            starting.start_core(index, cores, limits, &options).await?;
        }
        let address = starting.announce()?;
        tracing::info!(%address, id = %options.id, cores, "node serves");
        Ok(Self {
            address,
            questions: starting.questions,
        })
    }

    /// Where its first core listens; clients find the others from there.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it holds and has counted, over all cores.
    ///
    /// # Errors
    /// [`NodeError::Core`]: a core does not answer.
    pub async fn stat(&self) -> Result<NodeStat, NodeError> {
        let mut total = NodeStat::default();
        for (index, questions) in self.questions.iter().enumerate() {
            let core = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            let gone = NodeError::Core(MeshError::ShutDown(core));
            let (answer, answered) = oneshot::channel();
            if questions.clone().try_send(Question::Stat(answer)).is_err() {
                return Err(gone);
            }
            let Ok(stat) = answered.await else {
                return Err(gone);
            };
            total.add_shard(stat.shards, stat.capacity_bytes);
            total.connections += stat.connections;
        }
        Ok(total)
    }
}

impl fmt::Debug for SeatedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeatedNode")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Cores on their way to serving.
#[derive(Default)]
struct Starting {
    addresses: Vec<SocketAddr>,
    ports: Vec<oneshot::Sender<Vec<u16>>>,
    questions: Vec<mpsc::Sender<Question>>,
}

impl Starting {
    /// Starts a core and waits until it listens.
    async fn start_core(
        &mut self,
        index: CoreIndex,
        cores: usize,
        limits: ShardLimits,
        options: &NodeOptions,
    ) -> Result<(), NodeError> {
        let port = if index.0 == 0 {
            options.listen.port()
        } else {
            0
        };
        let (bound, address) = oneshot::channel();
        let (ports, ports_receiver) = oneshot::channel();
        let (questions, questions_receiver) = mpsc::channel(QUESTIONS_MAX);
        let plan = CorePlan {
            index,
            listen: SocketAddr::new(options.listen.ip(), port),
            limits,
            options: options.clone(),
            cores,
            bound,
            ports: ports_receiver,
            questions: questions_receiver,
        };
        // It runs until the runtime ends, or until it has been drained.
        drop(spawn_on(index, move || run_core(plan)));
        let gone = MeshError::ShutDown(index);
        self.addresses.push(address.await.map_err(|_gone| gone)??);
        self.ports.push(ports);
        self.questions.push(questions);
        Ok(())
    }

    /// Tells every core the ports of all, which lets them serve; returns the node's address.
    fn announce(&mut self) -> Result<SocketAddr, NodeError> {
        let ports: Vec<u16> = self.addresses.iter().map(SocketAddr::port).collect();
        for (index, sender) in self.ports.drain(..).enumerate() {
            let core = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            let gone = MeshError::ShutDown(core);
            sender.send(ports.clone()).map_err(|_ports| gone)?;
        }
        Ok(self.addresses[0])
    }
}

/// One core: listens, learns the others' ports, serves, and answers for its statistics.
async fn run_core(plan: CorePlan) {
    let listener = match open_core(&plan) {
        Ok(listener) => listener,
        Err(error) => {
            // A starter that has given up does not want to know.
            drop(plan.bound.send(Err(error)));
            return;
        }
    };
    drop(plan.bound.send(Ok(listener.local_addr())));
    let Ok(ports) = plan.ports.await else { return };
    let options = &plan.options;
    let member = options.member(plan.cores);
    let own = ClusterMap::new(vec![member]).expect("checked before the core was started");
    let service = Rc::new(CoreService::new(plan.index, own, plan.limits, arena()));
    let drain = Drain::default();
    let drained = Rc::new(Drained::default());
    let answering = answer(
        Rc::clone(&service),
        plan.questions,
        drain.clone(),
        Rc::clone(&drained),
    );
    drop(spawn_local(answering));
    let card = NodeCard {
        node_id: options.id,
        weight: options.weight,
        core: plan.index,
        ports,
    };
    let serving = serve_options(&card, options.connections_max);
    serve(listener, service, serving, drain).await;
    // Whoever waits for the drain learns of its end.
    drained.end();
}

fn open_core(plan: &CorePlan) -> Result<TcpListener, NodeError> {
    if plan.options.prefault {
        arena().prefault()?;
    }
    let address = plan.listen;
    TcpListener::bind(address).map_err(|error| NodeError::Listen { address, error })
}

/// Who waits for the end of a drain.
#[derive(Default)]
struct Drained {
    ended: Cell<bool>,
    waiting: RefCell<Vec<std_mpsc::Sender<Infallible>>>,
}

impl Drained {
    fn wait(&self, waiting: std_mpsc::Sender<Infallible>) {
        if !self.ended.get() {
            self.waiting.borrow_mut().push(waiting);
        }
    }

    fn end(&self) {
        self.ended.set(true);
        self.waiting.borrow_mut().clear();
    }
}

/// Answers the node's questions.
async fn answer(
    service: Rc<CoreService>,
    mut questions: mpsc::Receiver<Question>,
    drain: Drain,
    drained: Rc<Drained>,
) {
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut questions).poll_next(cx)).await;
        match next {
            None => return,
            Some(Question::Stat(answer)) => {
                if answer.send(service.stat()).is_err() {
                    tracing::trace!("whoever asked for statistics is gone");
                }
            }
            Some(Question::Drain(waiting)) => {
                drained.wait(waiting);
                drain.begin();
            }
        }
    }
}

fn serve_options(card: &NodeCard, connections_max: usize) -> ServeOptions {
    let mut greeting = Vec::new();
    card.encode(&mut greeting);
    ServeOptions {
        guard: None,
        reply_bytes_max: REPLY_BYTES_MAX,
        hello: hello(greeting),
        connections_max,
        handshake_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(30),
    }
}

/// What either side of a store connection offers.
pub(crate) fn hello(greeting: Vec<u8>) -> Hello {
    Hello {
        versions: VersionRange::OURS,
        session_epoch: time::unix_ns(),
        in_flight_max: IN_FLIGHT_MAX,
        payload_bytes_max: u32::try_from(PAYLOAD_BYTES_MAX).expect("bounded"),
        greeting,
    }
}

fn core_limits(memory_bytes: u64, cores: usize) -> Result<ShardLimits, NodeError> {
    let high = memory_bytes / (cores as u64).max(1);
    let low = high - high / LOW_WATERMARK_SHARE;
    let entries = (high / ENTRY_BYTES_MIN).clamp(ENTRIES_MIN, ENTRIES_MAX);
    let entries = usize::try_from(entries).expect("bounded");
    Ok(ShardLimits::new(high, low, entries)?)
}

fn core_options(options: &NodeOptions, limits: ShardLimits) -> CoreOptions {
    let resident = limits.high_watermark_bytes();
    let bytes_max = resident + resident / 8 + ARENA_SLACK_BYTES;
    CoreOptions {
        idle: options.idle,
        driver: options.driver,
        arena: ArenaOptions {
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            chunk_bytes: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            huge_pages: options.huge_pages,
            lock: options.lock_memory,
        },
        ..CoreOptions::default()
    }
}
