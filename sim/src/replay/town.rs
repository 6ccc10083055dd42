//! The members of a cluster that serves a trace, in a world in which nothing fails.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, NodeCore, NodeOptions, NodeWatch,
    SeatedNode, TierOptions,
};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, Placement, time};
use lunette_runtime_core::ids::NodeId;

use super::{Drives, Plan, serving};

const PORT: u16 = 7000;
const COORDINATOR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1)), PORT);
/// What a block takes in memory beside its bytes: its key, and what memory is cut in.
const BESIDE_BYTES: usize = 512;
/// The same on a drive: its key, and its place in a table.
const BESIDE_ON_DRIVE_BYTES: usize = 4096;
/// Of a drive that has room for the blocks, such a share comes on top: segments that are free, or being filled, at any
/// time. That many of the 64 which a small drive is cut in; of the thousands of a large one it is next to nothing.
const FREE_ON_DRIVE_SHARE: usize = 64 / 3;
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Most simulated time of a request, and of a start.
const PATIENCE: Duration = Duration::from_secs(60);

/// The client on a core, when it is connected.
type ClientPlace = Rc<RefCell<Option<Rc<ClusterClient>>>>;

/// A core of a member: its process, and which of its cores it is.
type CorePlace = (ProcessId, usize);

/// See the [module](self).
pub(super) struct Town {
    world: World,
    plan: Plan,
    cores: Vec<(CorePlace, ClientPlace)>,
    nodes: Vec<Rc<RefCell<Option<NodeWatch>>>>,
}

fn address(node: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + node)), PORT)
}

impl Town {
    pub(super) fn start(plan: Plan) -> Self {
        let mut options = WorldOptions {
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let drives_bytes = plan.drive_blocks * (plan.block_bytes + BESIDE_ON_DRIVE_BYTES);
        options.disk.capacity_bytes = options.disk.capacity_bytes.max(2 * drives_bytes);
        let mut world = World::new(plan.seed, options);
        let coordinator = world.start(COORDINATOR.ip(), 1, CoreOptions::default());
        let _serves = world.spawn(coordinator, 0, || async {
            let listener = TcpListener::bind(COORDINATOR).expect("a port");
            serve(listener, Hosted::in_memory(), None, pending()).await;
        });
        let mut town = Self {
            world,
            plan,
            cores: Vec::new(),
            nodes: Vec::new(),
        };
        for node in 0..plan.nodes {
            town.start_node(node);
        }
        town.connect();
        town
    }

    fn start_node(&mut self, index: u8) {
        let Plan {
            nodes,
            cores,
            block_bytes,
            memory_blocks,
            drive_blocks,
            ..
        } = self.plan;
        let share = |blocks: usize, beside_bytes| {
            (blocks * (block_bytes + beside_bytes) / usize::from(nodes)) as u64
        };
        let drive_bytes = share(
            drive_blocks + drive_blocks / FREE_ON_DRIVE_SHARE,
            BESIDE_ON_DRIVE_BYTES,
        );
        let tier = TierOptions::in_folders(vec!["drive".into()], drive_bytes);
        let options = NodeOptions {
            placement: Placement::Anywhere(cores),
            cluster: Some(ClusterOptions::new("world", vec![COORDINATOR])),
            tier: (drive_blocks > 0).then_some(tier),
            ..NodeOptions::new(
                NodeId(1 + u64::from(index)),
                address(index),
                share(memory_blocks, BESIDE_BYTES),
            )
        };
        let core_options = options.core_options().expect("it has memory");
        let process = (self.world).start(address(index).ip(), cores, core_options);
        let node = Rc::new(RefCell::new(None));
        let started = Rc::clone(&node);
        let _runs = self.world.spawn(process, 0, || async move {
            let node = SeatedNode::start(options).await.expect("it starts");
            *started.borrow_mut() = Some(node.watch());
            pending::<()>().await;
        });
        self.nodes.push(node);
        let cores = (0..cores).map(|index| ((process, index), ClientPlace::default()));
        self.cores.extend(cores);
    }

    /// Runs something on a core to its end.
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        (process, index): CorePlace,
        work: impl FnOnce() -> F + 'static,
    ) -> T {
        let done = self.world.spawn(process, index, work);
        let until = self.world.now() + PATIENCE;
        self.world.run_until(until, || done.is_there());
        done.take().expect("it ends in time")
    }

    fn core(&self, at: usize) -> (CorePlace, ClientPlace) {
        let (core, client) = &self.cores[at];
        (*core, Rc::clone(client))
    }

    /// A client on each core, when all members are of one map.
    fn connect(&mut self) {
        let nodes = usize::from(self.plan.nodes);
        for at in 0..self.cores.len() {
            let (core, place) = self.core(at);
            self.run(core, move || async move {
                let client = loop {
                    if let Some(core) = NodeCore::here().pop()
                        && let Ok(client) = core
                            .client(ClusterClientOptions::new(vec![address(0)]))
                            .await
                        && client.map().members().len() == nodes
                    {
                        break client;
                    }
                    time::sleep(LOOK_PAUSE).await;
                };
                *place.borrow_mut() = Some(Rc::new(client));
            });
        }
    }

    /// Does something with the client on a core.
    fn with_client<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        at: usize,
        work: impl FnOnce(Rc<ClusterClient>) -> F + 'static,
    ) -> T {
        let (core, client) = self.core(at);
        let client = client.borrow().clone().expect("it is connected");
        self.run(core, move || work(client))
    }

    /// Serves a request: how many of its blocks were there.
    pub(super) fn serve(&mut self, number: usize, request: &[u64]) -> serving::Hits {
        let (plan, request) = (self.plan, request.to_vec());
        let at = number % self.cores.len();
        self.with_client(at, move |client| serving::serve(client, request, plan))
    }

    /// Which of the blocks are there.
    pub(super) fn present(&mut self, blocks: &BTreeSet<u64>) -> BTreeSet<u64> {
        let blocks = blocks.iter().copied().collect();
        let there = self.with_client(0, move |client| serving::present(client, blocks));
        there.into_iter().collect()
    }

    /// Ends the clients: what the drives say, and the hash of all that happened.
    pub(super) fn end(mut self) -> (Drives, u64) {
        for at in 0..self.cores.len() {
            let (core, client) = self.core(at);
            self.run(core, async move || drop(client.take()));
        }
        (self.drives(), self.world.trace_hash())
    }

    /// What the drives say.
    pub(super) fn drives(&mut self) -> Drives {
        let mut drives = Drives::default();
        for node in 0..self.nodes.len() {
            let (core, _) = self.core(node * self.plan.cores);
            let watch = self.nodes[node].borrow().clone();
            let watch = watch.expect("it has started");
            let told = self.run(core, async move || {
                let reports = watch.report().await.expect("it runs");
                let members = reports.iter().filter_map(|report| report.member);
                members
                    .filter_map(|member| member.drive)
                    .collect::<Vec<_>>()
            });
            told.into_iter().for_each(|drive| drives.add(drive));
        }
        drives
    }
}
