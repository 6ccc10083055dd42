//! A store of two nodes over two rails of Soft-RoCE, on two ports linked to each other: `cargo xtask test --lane vm` runs
//! this in a machine that has them. Nodes and clients have both devices, in opposite order, so that there is a rail
//! each way.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, Fetched, Landing, NodeOptions, PutOptions,
    SeatedNode, Stored, Value,
};
use lunette_kvstore_proto::paths::Path;
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, Idle, arena, block_on, spawn_local, time};
use lunette_runtime_core::ids::NodeId;
use lunette_transfer::Room;
use lunette_transfer::adapters::{AdapterChoice, RdmaOptions};

const COORDINATOR: &str = "127.0.0.1:7620";
const NODES: [&str; 2] = ["127.0.0.1:7621", "127.0.0.1:7622"];
const OBJECTS: usize = 8;
const LEN: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the child of a test that it is the second node.
const CHILD: &str = "LUNETTE_STORE_CHILD";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn rdma(devices: [&str; 2]) -> RdmaOptions {
    RdmaOptions {
        adapters: AdapterChoice::Named(devices.map(str::to_owned).to_vec()),
        ..RdmaOptions::default()
    }
}

/// On a core of its own.
fn on_core<F: Future<Output = ()> + 'static>(start: impl FnOnce() -> F + Send) {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, start).expect("a core");
}

async fn node(index: usize) -> SeatedNode {
    let mut cluster = ClusterOptions::new("soft", vec![address(COORDINATOR)]);
    cluster.lease_ttl_s = 3;
    let id = NodeId(1 + index as u64);
    let options = NodeOptions {
        cluster: Some(cluster),
        rdma: rdma(["rxe0", "rxe1"]),
        ..NodeOptions::new(id, address(NODES[index]), 32 << 20)
    };
    SeatedNode::start(options).await.expect("a node")
}

fn key(n: usize) -> Vec<u8> {
    format!("object-{n}").into_bytes()
}

fn bytes(n: usize) -> Vec<u8> {
    (0..=250).cycle().skip(n * 7).take(LEN).collect()
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {arguments}");
}

/// A client whose gets come one way, and where they go.
struct Getter {
    client: ClusterClient,
    memory: Exposed,
    _landing: Landing,
}

impl Getter {
    async fn new(path: Path) -> Self {
        let options = ClusterClientOptions {
            rdma: rdma(["rxe1", "rxe0"]),
            rdma_path: Some(path),
            one_sided_from_bytes: None,
            timeout: Duration::from_secs(10),
            ..ClusterClientOptions::new(NODES.map(address).to_vec())
        };
        let deadline = time::now() + PATIENCE;
        loop {
            if let Ok(client) = ClusterClient::connect(options.clone()).await
                && client.map().members().len() == NODES.len()
            {
                let map = Exposed::map(LEN, HugePages::Never, &mut Vec::new());
                let memory = map.expect("memory");
                let landing = client.land(memory.clone()).await.expect("room");
                assert_eq!(landing.adapters(), 2);
                return Self {
                    client,
                    memory,
                    _landing: landing,
                };
            }
            assert!(time::now() < deadline, "both nodes are members in time");
            time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Gets every object, for as long as that takes.
    async fn get_all(&self) {
        let deadline = time::now() + PATIENCE;
        for n in 0..OBJECTS {
            while !self.get(n).await {
                assert!(time::now() < deadline, "{n} is found in time");
                time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Whether the object is there: then its bytes are.
    async fn get(&self, n: usize) -> bool {
        let room = Room::exposed(vec![self.memory.clone()]);
        let fetched = self.client.get(&key(n), room).await;
        let is_hit = matches!(fetched, Ok(Fetched::Hit { len_bytes: LEN, .. }));
        assert!(!is_hit || self.memory.to_vec() == bytes(n), "what was put");
        is_hit
    }

    /// Puts objects out of the landed memory, and gets them again, until an owner has read one there.
    async fn until_pulled(&self, first: usize) {
        let deadline = time::now() + PATIENCE;
        let mut numbers = first..;
        while self.client.puts_by_adapters().pulled == 0 {
            let n = numbers.next().expect("there are always more");
            self.memory.copy_in(0, &bytes(n));
            let value = Value::gathered(vec![self.memory.clone().into()]);
            let put = self.client.put(&key(n), value, PutOptions::default()).await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
            self.memory.copy_in(0, &[0; LEN]);
            assert!(self.get(n).await, "it is there");
            assert!(time::now() < deadline, "it is read in time");
        }
    }

    fn brought(&self) -> u64 {
        let counted = self.client.by_adapters();
        counted.written + counted.read
    }

    /// Gets until all of them come by adapters.
    async fn until_by_adapters(&self) {
        let deadline = time::now() + PATIENCE;
        loop {
            let before = self.brought();
            self.get_all().await;
            if self.brought() - before == OBJECTS as u64 {
                return;
            }
            let counted = self.client.by_adapters();
            assert!(time::now() < deadline, "by adapters in time: {counted:?}");
        }
    }
}

async fn put_all(client: &ClusterClient) {
    for n in 0..OBJECTS {
        let mut region = arena().alloc(LEN).expect("room");
        region.as_mut_slice().copy_from_slice(&bytes(n));
        let options = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        let put = client
            .put(&key(n), Value::new(region.freeze()), options)
            .await;
        assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
    }
    let deadline = time::now() + PATIENCE;
    for n in 0..OBJECTS {
        let copies = async || {
            let found = client.lookup(&key(n), None).await.expect("asked");
            found.map_or(0, |found| found.owners.len())
        };
        while copies().await < 2 {
            assert!(time::now() < deadline, "two copies in time");
            time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn child() -> Child {
    let name = "a_store_of_two_nodes_by_each_way_a_link_that_goes_away_and_a_peer_that_is_killed";
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", name])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .spawn()
        .expect("a child")
}

#[test]
fn a_store_of_two_nodes_by_each_way_a_link_that_goes_away_and_a_peer_that_is_killed() {
    if std::env::var_os(CHILD).is_some() {
        return on_core(async || {
            let _node = node(1).await;
            time::sleep(Duration::from_secs(300)).await;
        });
    }
    on_core(async || {
        let listener = TcpListener::bind(address(COORDINATOR)).expect("a port");
        let serving = serve(listener, Hosted::in_memory(), None, std::future::pending());
        drop(spawn_local(serving));
        let mut other = child();
        let _node = node(0).await;
        let getters = [
            Getter::new(Path::Written).await,
            Getter::new(Path::Read).await,
        ];
        put_all(&getters[0].client).await;
        for getter in &getters {
            let began = time::now();
            getter.until_by_adapters().await;
            let took = time::now().since(began);
            println!("by adapters in {took:?}: {:?}", getter.client.by_adapters());
        }
        for (getter, first) in getters.iter().zip([1000, 2000]) {
            getter.until_pulled(first).await;
            let asked = getter.client.asked_by_adapters();
            assert!(asked > 0, "it is asked by messages");
            let puts = getter.client.puts_by_adapters();
            println!("asked by messages: {asked}; {puts:?}");
        }
        let flapping = spawn_local(async {
            time::sleep(Duration::from_millis(20)).await;
            ip("link set net0 down");
            time::sleep(Duration::from_millis(1_500)).await;
            ip("link set net0 up");
        });
        let began = time::now();
        for getter in &getters {
            getter.get_all().await;
        }
        println!("a link that goes away: {:?}", time::now().since(began));
        flapping.await.expect("it runs");
        for getter in &getters {
            getter.until_by_adapters().await;
        }
        other.kill().expect("it runs");
        other.wait().expect("it ends");
        let began = time::now();
        for getter in &getters {
            getter.get_all().await;
        }
        println!("a killed peer: {:?}", time::now().since(began));
        let counted = getters.each_ref().map(|getter| getter.client.by_adapters());
        println!("{counted:?}");
    });
}
