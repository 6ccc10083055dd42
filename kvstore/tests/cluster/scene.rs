//! A coordinator, some members, and clients, all on the core of the test.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_auth::Secrets;
use lunette_cluster::proto::rack::Rack;
use lunette_cluster::{Hosted, Security, serve};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterError, ClusterOptions, CoreReport, Fetched,
    NodeCore, NodeError, NodeOptions, Outcome, PutOptions, SeatedNode, Stored, TierOptions, Value,
};
use lunette_kvstore_proto::message::Op;
use lunette_kvstore_proto::paths::Path;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime::arena::Region;
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, arena, entropy, spawn_local, time};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_transfer::adapters::RdmaOptions;
use lunette_transfer::{Connection, Room};
use lunette_transfer_proto::hello::{Hello, VersionRange};
use lunette_verbs::Context;
use lunette_verbs::sim::Fabric;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// By when owners know what homes have recorded.
const TOLD: Duration = Duration::from_millis(200);

pub(crate) fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// Bytes that only this number has.
pub(crate) fn pattern(n: usize, len: usize) -> Region {
    let mut region = arena().alloc(len.max(1)).expect("room");
    for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
        *byte = u8::try_from((index + n * 31) % 251).expect("small");
    }
    region.freeze().slice(0, len)
}

pub(crate) fn room(len: usize) -> Room {
    Room::whole(arena().alloc(len.max(1)).expect("room"))
}

/// A connection to the first member, for requests that no client would make, and which seat that is.
pub(crate) async fn stranger(client: &ClusterClient) -> (Connection, Seat) {
    let map = client.map();
    let member = &map.members()[0];
    let hello = Hello {
        versions: VersionRange::OURS,
        session_epoch: 7,
        in_flight_max: 4,
        payload_bytes_max: 1 << 20,
        greeting: Vec::new(),
    };
    let connected = Connection::connect(member.address, hello, PATIENCE).await;
    let seat = Seat {
        node: member.id,
        incarnation: member.incarnation,
        core: CoreIndex(0),
    };
    (connected.expect("it answers"), seat)
}

/// Those of all nodes, which serve on this very core, in the order in which they were started: they may have begun to serve in
/// another.
fn cores() -> Vec<NodeCore> {
    let mut cores = NodeCore::here();
    cores.sort_by_key(|core| core.seat().node);
    cores
}

/// Waits until it holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = time::now() + PATIENCE;
    while !holds().await {
        assert!(time::now() < deadline, "in time: {what}");
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// Puts an object, as soon as there is room for it.
pub(crate) async fn put_in_time(client: &ClusterClient, n: usize, len: usize, options: PutOptions) {
    eventually("it is put", async || {
        let value = Value::new(pattern(n, len));
        let put = client.put(&key(n), value, options).await;
        matches!(put, Ok(Stored::Written { .. } | Stored::Exists { .. }))
    })
    .await;
}

/// Whether an object is there. If so, it is the right one.
pub(crate) async fn is_found(client: &ClusterClient, n: usize, len: usize) -> bool {
    match client.get(&key(n), room(len)).await.expect("an answer") {
        Fetched::Hit {
            room, len_bytes, ..
        } => {
            assert!(room.as_slice()[..len_bytes] == *pattern(n, len).as_slice());
            true
        }
        Fetched::Miss { .. } => false,
    }
}

pub(crate) struct Scene {
    coordinator: SocketAddr,
    secrets: Option<Secrets>,
    nodes: Vec<SeatedNode>,
    last_id: u64,
    /// How long its clients try.
    client_timeout: Duration,
    /// How long those with adapters keep connections on which nothing is asked.
    client_idle: Duration,
    /// What the next node fails together with.
    rack: Rack,
    /// Whether the next node shares its memory.
    is_shared: bool,
    /// What the nodes' adapters belong to, and how many each of them has.
    fabric: Option<(Fabric, usize)>,
    /// Whether the next nodes, and clients with adapters, have messages.
    has_messages: bool,
    /// The drives of the next node.
    tier: Option<TierOptions>,
    /// Ends the coordinator when it is dropped.
    serving: Option<oneshot::Sender<()>>,
}

impl Scene {
    pub(crate) async fn of(nodes: usize, memory_bytes: u64) -> Self {
        Self::begin(nodes, memory_bytes, None).await
    }

    /// A node in each of these racks.
    pub(crate) async fn in_racks(racks: &[&str], memory_bytes: u64) -> Self {
        let mut scene = Self::begin(0, memory_bytes, None).await;
        for rack in racks {
            scene.rack = rack.parse().expect("a label");
            scene.start(memory_bytes).await;
        }
        scene.agree().await;
        scene
    }

    pub(crate) async fn secret(nodes: usize, memory_bytes: u64, secrets: Secrets) -> Self {
        Self::begin(nodes, memory_bytes, Some(secrets)).await
    }

    async fn begin(nodes: usize, memory_bytes: u64, secrets: Option<Secrets>) -> Self {
        let listener = TcpListener::bind(loopback()).expect("a port");
        let coordinator = listener.local_addr();
        let security = secrets.clone().map(|secrets| Security {
            secrets,
            entropy: Rc::new(|| {
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&entropy().to_le_bytes());
                bytes
            }),
        });
        let (serving, stop) = oneshot::channel::<()>();
        let stop = async move {
            let _ended = stop.await;
        };
        drop(spawn_local(serve(
            listener,
            Hosted::in_memory(),
            security,
            stop,
        )));
        let mut scene = Self {
            coordinator,
            secrets,
            nodes: Vec::new(),
            last_id: 0,
            client_timeout: Duration::from_secs(8),
            client_idle: Duration::from_secs(60),
            rack: Rack::NONE,
            is_shared: true,
            fabric: None,
            has_messages: true,
            tier: None,
            serving: Some(serving),
        };
        for _ in 0..nodes {
            scene.start(memory_bytes).await;
        }
        scene.agree().await;
        scene
    }

    /// One node, whose coordinator cannot be reached.
    pub(crate) async fn without_coordinator() -> Self {
        let mut scene = Self {
            coordinator: TcpListener::bind(loopback()).expect("a port").local_addr(),
            secrets: None,
            nodes: Vec::new(),
            last_id: 0,
            client_timeout: Duration::from_millis(300),
            client_idle: Duration::from_secs(60),
            rack: Rack::NONE,
            is_shared: true,
            fabric: None,
            has_messages: true,
            tier: None,
            serving: None,
        };
        scene.start(4 << 20).await;
        scene
    }

    /// How many requests of a node ended in which way.
    pub(crate) async fn outcomes(&self, node: usize, op: Op) -> Vec<(Outcome, u64)> {
        let reports = self.nodes[node].watch().report().await.expect("it answers");
        let requests = reports.iter().flat_map(|report| &report.requests);
        let requests = requests.filter(|requests| requests.op == Some(op));
        requests
            .flat_map(|requests| requests.by_outcome())
            .collect()
    }

    /// What each core of each node tells of itself.
    pub(crate) async fn reports(&self) -> Vec<CoreReport> {
        let mut reports = Vec::new();
        for node in &self.nodes {
            reports.extend(node.watch().report().await.expect("it answers"));
        }
        reports
    }

    async fn start(&mut self, memory_bytes: u64) {
        self.try_start(memory_bytes).await.expect("a node");
    }

    pub(crate) async fn try_start(&mut self, memory_bytes: u64) -> Result<(), NodeError> {
        self.last_id += 1;
        let mut options = NodeOptions::new(NodeId(self.last_id), loopback(), memory_bytes);
        let mut cluster = ClusterOptions::new("scene", vec![self.coordinator]);
        cluster.secrets = self.secrets.clone();
        cluster.is_coordinator_sealed = true;
        cluster.lease_ttl_s = 2;
        cluster.rack = self.rack;
        options.cluster = Some(cluster);
        options.one_sided = self.is_shared;
        options.rdma.messages = self.has_messages;
        options.tier = self.tier.clone();
        self.nodes.push(SeatedNode::start(options).await?);
        Ok(())
    }

    /// Waits until all are in each other's map.
    async fn agree(&self) {
        let count = self.nodes.len();
        for node in &self.nodes {
            eventually("all are members", async || {
                let map = node.joined().await.expect("a member");
                map.members().len() == count
            })
            .await;
        }
    }

    pub(crate) const fn set_client_timeout(&mut self, timeout: Duration) {
        self.client_timeout = timeout;
    }

    pub(crate) const fn set_client_idle(&mut self, idle: Duration) {
        self.client_idle = idle;
    }

    pub(crate) async fn add(&mut self, memory_bytes: u64) {
        self.start(memory_bytes).await;
        self.agree().await;
    }

    /// The first member leaves. Copies that replicate are recorded before, and their owners told so: what is not told when its
    /// home leaves is given up.
    pub(crate) async fn remove_first(&mut self) {
        time::sleep(TOLD).await;
        let node = self.nodes.remove(0);
        node.leave().await.expect("a member");
        self.agree().await;
    }

    /// The first member leaves, at once.
    pub(crate) fn first_leaves(&mut self) -> impl Future<Output = SeatedNode> + use<> {
        let node = self.nodes.remove(0);
        async move {
            node.leave().await.expect("a member");
            node
        }
    }

    pub(crate) async fn retire_first(&self) -> Result<(), NodeError> {
        self.nodes[0].retire().await
    }

    pub(crate) async fn clear(&self) {
        self.nodes[0].clear_cluster().await.expect("a member");
    }

    /// The generation in the first node's map.
    pub(crate) async fn generation(&self) -> u64 {
        let map = self.nodes[0].joined().await.expect("a member");
        map.generation()
    }

    /// A client inside of a node.
    pub(crate) async fn inside(&self, node: usize) -> ClusterClient {
        let options = ClusterClientOptions {
            timeout: self.client_timeout,
            ..ClusterClientOptions::new(Vec::new())
        };
        let core = cores().swap_remove(node);
        core.client(options).await.expect("a client")
    }

    pub(crate) async fn client(&self) -> ClusterClient {
        self.client_with(self.secrets.clone())
            .await
            .expect("a client")
    }

    /// The coordinator ends, and does not come back.
    pub(crate) fn end_coordinator(&mut self) {
        self.serving = None;
    }

    /// The next nodes have these drives.
    pub(crate) fn set_tier(&mut self, tier: Option<TierOptions>) {
        self.tier = tier;
    }

    /// Whether the next nodes, and clients with adapters, have messages.
    pub(crate) const fn set_messages(&mut self, has_messages: bool) {
        self.has_messages = has_messages;
    }

    /// The next nodes share their memory, or not.
    pub(crate) const fn set_shared(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// From now on each node has so many adapters of a fabric of this seed, and so may clients
    /// ([`fabric_client`](Self::fabric_client)): those of the first node come first, and clients' last.
    pub(crate) fn set_fabric(&mut self, seed: u64, adapters: usize) -> Fabric {
        let fabric = Fabric::new(seed);
        let open = || {
            let opened = (0..adapters).map(|_| {
                let device = fabric.add_device();
                Context::simulated(&fabric, device).expect("it was added")
            });
            opened.collect::<Vec<_>>()
        };
        for node in cores() {
            node.use_adapters(open());
        }
        self.fabric = Some((fabric.clone(), adapters));
        fabric
    }

    /// A client with as many adapters of the fabric as nodes have, whose gets go this way alone, and how the first of
    /// them is numbered.
    pub(crate) async fn fabric_client(&self, path: Option<Path>) -> (ClusterClient, usize) {
        let (fabric, adapters) = self.fabric.as_ref().expect("a fabric");
        let devices: Vec<usize> = (0..*adapters).map(|_| fabric.add_device()).collect();
        let contexts = devices
            .iter()
            .map(|device| Context::simulated(fabric, *device).expect("it was added"));
        let options = ClusterClientOptions {
            one_sided_from_bytes: None,
            rdma_path: path,
            rdma: RdmaOptions {
                messages: self.has_messages,
                ..RdmaOptions::default()
            },
            idle_timeout: self.client_idle,
            secrets: self.secrets.clone(),
            timeout: self.client_timeout,
            ..ClusterClientOptions::new(self.addresses())
        };
        let client = ClusterClient::connect_with(options, contexts.collect()).await;
        (client.expect("a client"), devices[0])
    }

    /// Where the members listen.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(SeatedNode::address).collect()
    }

    /// A client that copies objects of so many bytes itself.
    pub(crate) async fn client_from(&self, from_bytes: Option<usize>) -> ClusterClient {
        let options = ClusterClientOptions {
            one_sided_from_bytes: from_bytes,
            secrets: self.secrets.clone(),
            timeout: self.client_timeout,
            ..ClusterClientOptions::new(self.addresses())
        };
        ClusterClient::connect(options).await.expect("a client")
    }

    pub(crate) async fn client_with(
        &self,
        secrets: Option<Secrets>,
    ) -> Result<ClusterClient, ClusterError> {
        let options = ClusterClientOptions {
            secrets,
            timeout: self.client_timeout,
            ..ClusterClientOptions::new(self.addresses())
        };
        ClusterClient::connect(options).await
    }

    /// Puts the bytes of a number under a key.
    pub(crate) async fn put(
        &self,
        client: &ClusterClient,
        n: usize,
        bytes: usize,
        len: usize,
    ) -> Stored {
        let value = Value::new(pattern(bytes, len));
        let put = client.put(&key(n), value, PutOptions::default()).await;
        put.expect("it is put")
    }

    pub(crate) async fn expect(&self, client: &ClusterClient, n: usize, len: usize) {
        self.expect_value(client, n, n, len).await;
    }

    pub(crate) async fn expect_value(
        &self,
        client: &ClusterClient,
        n: usize,
        bytes: usize,
        len: usize,
    ) {
        let expected = pattern(bytes, len);
        self.expect_bytes(client, &key(n), &expected).await;
    }

    pub(crate) async fn expect_bytes(&self, client: &ClusterClient, key: &[u8], bytes: &Region) {
        let fetched = client.get(key, room(bytes.len())).await.expect("an answer");
        let Fetched::Hit {
            room, len_bytes, ..
        } = fetched
        else {
            panic!("{fetched:?} of {}", String::from_utf8_lossy(key));
        };
        assert_eq!(len_bytes, bytes.len());
        assert!(room.as_slice()[..len_bytes] == *bytes.as_slice());
    }

    /// How many objects a node holds.
    pub(crate) async fn held_by(&self, client: &ClusterClient, node: u64) -> u64 {
        let stats = client.stat().await.into_iter();
        let held = stats.filter(|(seat, _)| seat.node == NodeId(node));
        held.map(|(_, stat)| stat.expect("it answers").shards.entries)
            .sum()
    }

    /// How many nodes hold anything.
    pub(crate) async fn holders(&self, client: &ClusterClient) -> usize {
        let stats = client.stat().await;
        let holding = stats.into_iter().filter_map(|(seat, stat)| {
            let stat = stat.expect("it answers");
            (stat.shards.entries > 0).then_some(seat.node)
        });
        holding.collect::<BTreeSet<_>>().len()
    }
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// Runs a scenario in the world of this seed alone.
pub(super) fn in_a_world<F: Future<Output = ()> + 'static>(
    seed: u64,
    options: WorldOptions,
    scenario: impl Fn() -> F + 'static,
) {
    let mut world = World::new(seed, options);
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let done = world.spawn(process, 0, scenario);
    let until = world.now() + Duration::from_secs(1000);
    let ended = world.run_until(until, || done.is_there());
    assert!(ended, "in a world of seed {seed} it does not end");
}
