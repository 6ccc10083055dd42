//! A node: cores that each lend memory and serve it.
//!
//! | file | subject |
//! |---|---|
//! | `options` | [`NodeOptions`] |
//! | `core` | what runs on one core |
//! | `watch` | [`NodeWatch`]: asking the cores what they have counted |
//! | `inside` | [`NodeCore`]: what a program runs on the cores of its own node |

mod core;
mod inside;
mod options;
mod watch;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use futures_channel::{mpsc, oneshot};
use lunette_cluster::proto::map::{self as cluster_map, MapMember};
use lunette_kvstore_proto::message::NodeStat;
use lunette_kvstore_proto::placement::ClusterMap;
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_runtime::{
    Answer, MeshError, Runtime, Sender, channel, core_count, entropy, spawn_local, spawn_on,
};
use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::time::Time;

use self::core::{Announced, CorePlan, Question, run_core};
use crate::cluster_client::ClusterClientOptions;
use crate::error::{ClusterError, NodeError};
use crate::handle::{Cores, HandleError, Seated, StoreHandle};
use crate::member::{Emptied, Life, MAIL_MAX, Mail, Steer, steer};

pub(crate) use self::core::hello;
pub use inside::NodeCore;
pub use options::{NodeOptions, Prefault};
pub use watch::NodeWatch;

/// Questions that may wait at one core.
const QUESTIONS_MAX: usize = 16;

/// A running node. Dropping it shuts it down.
pub struct Node {
    seated: SeatedNode,
    runtime: Runtime,
}

/// A node on the cores of a runtime that somebody else runs, and ends.
pub struct SeatedNode {
    address: SocketAddr,
    questions: Vec<mpsc::Sender<Question>>,
    /// Of a member of a cluster.
    steering: Option<mpsc::Sender<Steer>>,
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

    /// Runs what the program has to do on one of the node's own cores, beside what that serves. There,
    /// [`NodeCore::here`] leads to clients that need no message for what the core has.
    ///
    /// # Errors
    /// [`MeshError`]: the node has no such core, or it has ended.
    pub fn spawn_on<T, F>(
        &self,
        core: CoreIndex,
        start: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Answer<T>, MeshError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.runtime.spawn_on(core, start)
    }

    /// A handle for any thread to clients on all of the node's cores, as [`NodeCore::client`] gives one. Blocks
    /// until each has begun. One is enough for a program: clones are for free.
    ///
    /// # Errors
    /// [`HandleError`]: the node is no member yet, or has ended.
    pub fn handle(&self, options: &ClusterClientOptions) -> Result<StoreHandle, HandleError> {
        let first = CoreIndex(0);
        let seat = self.spawn_on(first, || async { Some(NodeCore::here().first()?.seat()) })?;
        let (tenant, glance) = (options.tenant.clone(), Arc::default());
        let (cores, seated) = Cores::new(self.runtime.cores(), seat.wait()?, tenant, glance);
        let mut beginning = Vec::new();
        for (core, seated) in (0..).map(CoreIndex).zip(seated) {
            let options = options.clone();
            beginning.push(self.spawn_on(core, move || handle_on(seated, options))?);
        }
        for begun in beginning {
            begun.wait()??;
        }
        Ok(StoreHandle::new(cores))
    }

    /// What it holds and has counted, over all cores. Blocks until each core has answered.
    ///
    /// # Errors
    /// [`NodeError::Core`]: a core does not answer.
    pub fn stat(&self) -> Result<NodeStat, NodeError> {
        pollster::block_on(self.seated.stat())
    }

    /// Who asks its cores, on whatever thread.
    #[must_use]
    pub fn watch(&self) -> NodeWatch {
        self.seated.watch()
    }

    /// Waits until the node is in its cluster's map, which is returned. Blocks.
    ///
    /// # Errors
    /// [`NodeError::Refused`]: it never will be. [`NodeError::NoCluster`]: it was not told of one, or
    /// has left.
    pub fn joined(&self) -> Result<cluster_map::ClusterMap, NodeError> {
        pollster::block_on(self.joining())
    }

    /// As [`joined`](Self::joined), for those who wait for other things too. Dropping it changes nothing.
    ///
    /// # Errors
    /// As there.
    pub async fn joining(&self) -> Result<cluster_map::ClusterMap, NodeError> {
        self.seated.joined().await
    }

    /// Gives the node's place in its cluster's map up: see [`SeatedNode::leave`]. Blocks until the
    /// coordinator knows, or the lease has run out.
    ///
    /// # Errors
    /// [`NodeError::NoCluster`].
    pub fn leave(&self) -> Result<(), NodeError> {
        pollster::block_on(self.seated.leave())
    }

    /// "Remove all": see [`SeatedNode::clear_cluster`]. Blocks until it is done.
    ///
    /// # Errors
    /// [`NodeError::NoCluster`].
    pub fn clear_cluster(&self) -> Result<(), NodeError> {
        pollster::block_on(self.seated.clear_cluster())
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

/// Threads may look at what the core shows.
async fn handle_on(seated: Seated, options: ClusterClientOptions) -> Result<(), ClusterError> {
    let core = NodeCore::here().pop().ok_or(ClusterError::NoMap)?;
    if let Some(shown) = core.shown(options.namespace) {
        seated.show(core.seat(), shown);
    }
    let client = core.client(options).await?;
    seated.begin(client)
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
        let limits = options.core_limits(cores)?;
        options.check_drives(cores)?;
        ClusterMap::new(vec![options.member(cores)])?;
        // Another one in each life, and never 0.
        let incarnation = entropy() | 1;
        let life_file = options.cluster.as_ref();
        let life_file = life_file.and_then(|cluster| cluster.life_file.as_deref());
        let life = life_file.map(|path| Life::begin(path, incarnation));
        let life = life.transpose()?.map(Arc::new);
        let former = life
            .as_ref()
            .map_or_else(Vec::new, |life| life.former.clone());
        let mut starting = Starting::default();
        let (ask, asked) = mpsc::channel(QUESTIONS_MAX);
        for index in 0..cores {
            let index = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            let born = (incarnation, life.clone());
            let size = (cores, limits);
            let born = (born, ask.clone());
            starting.start_core(index, size, born, &options);
        }
        starting.all_listen().await?;
        let address = starting.announce()?;
        tracing::info!(node = options.id.0, %address, cores, "the node serves");
        let Starting {
            questions, mail, ..
        } = starting;
        let steering = options.cluster.clone().map(|cluster| {
            let (steering, steered) = mpsc::channel(QUESTIONS_MAX);
            let member = MapMember {
                home_weight: options.weight,
                cores: u16::try_from(cores).expect("cores are bounded"),
                rack: cluster.rack,
                #[cfg(feature = "next-version")]
                next: lunette_kvstore_proto::message::Next::MARK,
                ..MapMember::new(
                    options.id,
                    incarnation,
                    cluster.advertised.unwrap_or(address),
                )
            };
            let steered = (steered, asked);
            drop(spawn_local(steer(cluster, (member, former), mail, steered)));
            steering
        });
        Ok(Self {
            address,
            questions,
            steering,
        })
    }

    /// Waits until the node is in its cluster's map, which is returned.
    ///
    /// # Errors
    /// [`NodeError::Refused`]: it never will be. [`NodeError::NoCluster`]: it was not told of one.
    pub async fn joined(&self) -> Result<cluster_map::ClusterMap, NodeError> {
        let (answer, answered) = oneshot::channel();
        self.steer(Steer::Joined(answer))?;
        let joined = answered.await.map_err(|_gone| NodeError::NoCluster)?;
        Ok(joined?)
    }

    /// Has the node emptied: the next map has it without weight, so that it is the home of nothing, and others take what it has. Waits
    /// until the node knows that map. Dropping the future leaves it to be done or not.
    ///
    /// # Errors
    /// [`NodeError::LastMember`]: no other takes objects, and nothing is done. [`NodeError::Busy`]: too many wait for the same.
    /// [`NodeError::NoCluster`]: it was not told of one, or ended meanwhile.
    pub async fn retire(&self) -> Result<(), NodeError> {
        let (answer, emptied) = oneshot::channel();
        let until = Time::MAX;
        self.steer(Steer::Drain { until, answer })?;
        match emptied.await {
            Ok(Emptied::Yes) => Ok(()),
            Ok(Emptied::IsLast) => Err(NodeError::LastMember),
            Ok(Emptied::IsBusy) => Err(NodeError::Busy),
            Err(_gone) => Err(NodeError::NoCluster),
        }
    }

    /// "Remove all": the next map makes everything dead that was written before, on every member. Waits
    /// until this node knows that map, which takes a node that is outside of it until it is back; others
    /// learn of it within a lease, or stop serving. Dropping the future leaves it to be done or not.
    ///
    /// # Errors
    /// [`NodeError::NoCluster`]: it was not told of one, or ended meanwhile.
    pub async fn clear_cluster(&self) -> Result<(), NodeError> {
        let (answer, answered) = oneshot::channel();
        let until = Time::MAX;
        self.steer(Steer::Clear { until, answer })?;
        let cleared = answered.await;
        cleared.map_or(Err(NodeError::NoCluster), |_generation| Ok(()))
    }

    /// Gives the node's place in its cluster's map up. Nothing is served from here on; end the node
    /// afterwards. Others need not wait for its lease to run out then.
    ///
    /// # Errors
    /// [`NodeError::NoCluster`].
    pub async fn leave(&self) -> Result<(), NodeError> {
        let (answer, answered) = oneshot::channel();
        self.steer(Steer::Leave(answer))?;
        answered.await.map_err(|_gone| NodeError::NoCluster)
    }

    fn steer(&self, steer: Steer) -> Result<(), NodeError> {
        let steering = self.steering.as_ref().ok_or(NodeError::NoCluster)?;
        let sent = steering.clone().try_send(steer);
        sent.map_err(|_gone| NodeError::NoCluster)
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
        for report in self.watch().report().await? {
            total.add(&report.stat);
        }
        Ok(total)
    }

    /// Who asks its cores, on whatever thread.
    #[must_use]
    pub fn watch(&self) -> NodeWatch {
        NodeWatch {
            questions: self.questions.clone(),
        }
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
    /// Cores that have not said yet where they listen.
    bound: Vec<(CoreIndex, oneshot::Receiver<Result<SocketAddr, NodeError>>)>,
    addresses: Vec<SocketAddr>,
    announced: Vec<oneshot::Sender<Announced>>,
    questions: Vec<mpsc::Sender<Question>>,
    mail: Vec<Sender<Mail>>,
}

impl Starting {
    /// Starts a core, which listens soon.
    fn start_core(
        &mut self,
        index: CoreIndex,
        (cores, limits): (usize, ShardLimits),
        ((incarnation, life), steering): ((u64, Option<Arc<Life>>), mpsc::Sender<Steer>),
        options: &NodeOptions,
    ) {
        let port = if index.0 == 0 {
            options.listen.port()
        } else {
            0
        };
        let (bound, address) = oneshot::channel();
        let (announced, announced_receiver) = oneshot::channel();
        let (sender, mail) = channel(MAIL_MAX);
        let (questions, questions_receiver) = mpsc::channel(QUESTIONS_MAX);
        let plan = CorePlan {
            index,
            listen: SocketAddr::new(options.listen.ip(), port),
            limits,
            options: options.clone(),
            cores,
            bound,
            announced: announced_receiver,
            questions: questions_receiver,
            incarnation,
            life,
            mail,
            steering,
        };
        // It runs until the runtime ends, or until it has been drained.
        drop(spawn_on(index, move || run_core(plan)));
        self.bound.push((index, address));
        self.announced.push(announced);
        self.questions.push(questions);
        self.mail.push(sender);
    }

    /// Waits until all cores listen, or have failed: none is left in the middle of it. Opening drives takes its time, and
    /// all cores do so at once.
    async fn all_listen(&mut self) -> Result<(), NodeError> {
        let mut outcome = Ok(());
        for (index, address) in self.bound.drain(..) {
            let bound = address
                .await
                .map_err(|_gone| MeshError::ShutDown(index).into());
            match bound.and_then(|bound| bound) {
                Ok(address) => self.addresses.push(address),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Tells every core the ports of all, which lets them serve; returns the node's address.
    fn announce(&mut self) -> Result<SocketAddr, NodeError> {
        let ports: Vec<u16> = self.addresses.iter().map(SocketAddr::port).collect();
        let mail = self.mail.clone();
        let announced = Announced { ports, mail };
        for (index, sender) in self.announced.drain(..).enumerate() {
            let core = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            let gone = MeshError::ShutDown(core);
            sender.send(announced.clone()).map_err(|_announced| gone)?;
        }
        Ok(self.addresses[0])
    }
}
