//! How long a get of 4 KiB takes by each way, in virtual time, from an owner whose core is late.
//!
//! `cargo test -p lunette-kvstore --test cluster latency -- --nocapture` prints it.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, Fetched, NodeCore, NodeOptions,
    PutOptions, SeatedNode, Value,
};
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::paths::Path;
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_runtime_core::ids::NodeId;
use lunette_transfer::Room;
use lunette_transfer::adapters::RdmaOptions;
use lunette_verbs::Context;
use lunette_verbs::sim::{Fabric, Speed};

use super::pushed::memory;
use super::scene::{eventually, key, pattern};

const LEN: usize = 4096;
const GETS: usize = 200;
const PORT: u16 = 7000;
/// One way, over the network.
const NETWORK: Duration = Duration::from_micros(10);
/// One way, from adapter to adapter.
const ADAPTER: Duration = Duration::from_micros(2);
const TURN: Duration = Duration::from_micros(2);

/// How gets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    By(Path),
    /// The same, asked for over the connection.
    Asked(Path),
    /// Of an object that is held: nobody is asked.
    Held,
}

impl Way {
    const ALL: [Self; 6] = [
        Self::By(Path::Sent),
        Self::Asked(Path::Written),
        Self::Asked(Path::Read),
        Self::By(Path::Written),
        Self::By(Path::Read),
        Self::Held,
    ];

    const fn path(self) -> Path {
        match self {
            Self::By(path) | Self::Asked(path) => path,
            Self::Held => Path::Read,
        }
    }
}

const fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

fn fabric() -> Fabric {
    let fabric = Fabric::new(1);
    for _ in 0..2 {
        let device = fabric.add_device();
        let speed = Speed {
            bytes_per_second: 12_500_000_000,
            latency: ADAPTER,
        };
        fabric.set_speed(device, speed);
    }
    fabric
}

fn open(fabric: &Fabric, device: usize) -> Vec<Context> {
    vec![Context::simulated(fabric, device).expect("it was added")]
}

/// A coordinator, and one member with an adapter.
fn begin(world: &mut World, fabric: &Fabric) -> ProcessId {
    let coordinator = SocketAddr::new(host(1), PORT);
    let process = world.start(host(1), 1, CoreOptions::default());
    let _serves = world.spawn(process, 0, move || async move {
        let listener = TcpListener::bind(coordinator).expect("a port");
        serve(listener, Hosted::in_memory(), None, std::future::pending()).await;
    });
    let options = NodeOptions {
        cluster: Some(ClusterOptions::new("scene", vec![coordinator])),
        ..NodeOptions::new(NodeId(1), SocketAddr::new(host(2), PORT), 64 << 20)
    };
    let core_options = options.core_options().expect("it has memory");
    let owner = world.start(host(2), 1, core_options);
    let fabric = fabric.clone();
    let _runs = world.spawn(owner, 0, move || async move {
        let node = SeatedNode::start(options).await.expect("a node");
        node.joined().await.expect("a member");
        NodeCore::here()[0].use_adapters(open(&fabric, 0));
        std::future::pending::<()>().await;
    });
    owner
}

/// Gets of one client, one after the other, once it may begin: how long each took.
async fn gets(
    fabric: Fabric,
    way: Way,
    (is_ready, may_begin): (Rc<Cell<bool>>, Rc<Cell<bool>>),
) -> Vec<Duration> {
    let options = ClusterClientOptions {
        rdma_path: Some(way.path()),
        rdma: RdmaOptions {
            messages: !matches!(way, Way::Asked(_)),
            ..RdmaOptions::default()
        },
        one_sided_from_bytes: None,
        ..ClusterClientOptions::new(vec![SocketAddr::new(host(2), PORT)])
    };
    let adapters = match way.path() {
        Path::Sent => Vec::new(),
        Path::Written | Path::Read => open(&fabric, 1),
    };
    let mut client = ClusterClient::connect_with(options.clone(), adapters).await;
    while client.is_err() {
        time::sleep(Duration::from_millis(50)).await;
        let adapters = open(&fabric, 1);
        client = ClusterClient::connect_with(options.clone(), adapters).await;
    }
    let client = client.expect("just looked at");
    let value = Value::new(pattern(1, LEN));
    let put = client.put(&key(1), value, PutOptions::default()).await;
    put.expect("it is there");
    let memory = memory(LEN);
    let _landing = client.land(memory.clone()).await.expect("room");
    let get = async || {
        let fetched = client
            .get(&key(1), Room::exposed(vec![memory.clone()]))
            .await;
        assert!(matches!(fetched, Ok(Fetched::Hit { .. })), "{fetched:?}");
    };
    let brought = || match way {
        Way::By(Path::Sent) | Way::Asked(Path::Sent) => 1,
        Way::By(Path::Written) | Way::Asked(Path::Written) => client.by_adapters().written,
        Way::By(Path::Read) | Way::Asked(Path::Read) => client.by_adapters().read,
        Way::Held => client.by_adapters().read_unasked,
    };
    eventually("it goes this way", async || {
        if way == Way::Held {
            let hold = HoldWish {
                holder: 1,
                ttl_ms: 2000,
            };
            let found = client.lookup(&key(1), Some(hold)).await;
            assert!(matches!(found, Ok(Some(_))), "{found:?}");
        }
        get().await;
        brought() > 0
    })
    .await;
    is_ready.set(true);
    while !may_begin.get() {
        time::sleep(Duration::from_millis(1)).await;
    }
    let mut took = Vec::with_capacity(GETS);
    for _ in 0..GETS {
        let began = time::now();
        get().await;
        took.push(time::now().since(began));
        // Not in step with the owner's turns.
        time::sleep(Duration::from_nanos(13_700)).await;
    }
    took.sort_unstable();
    took
}

/// Half of the gets took no longer, and all but one in a hundred, with an owner each of whose turns takes so long.
fn measure(way: Way, turn: Duration) -> [Duration; 2] {
    let options = WorldOptions {
        latency: (NETWORK, NETWORK),
        turn: TURN,
        short_receives_per_mille: 0,
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(3, options);
    let fabric = fabric();
    let owner = begin(&mut world, &fabric);
    world.run_for(Duration::from_secs(3));
    let client = world.start(host(3), 1, CoreOptions::default());
    let (is_ready, may_begin) = (Rc::<Cell<bool>>::default(), Rc::<Cell<bool>>::default());
    let told = (Rc::clone(&is_ready), Rc::clone(&may_begin));
    let took = world.spawn(client, 0, move || gets(fabric, way, told));
    let soon = world.now() + Duration::from_secs(60);
    assert!(world.run_until(soon, || is_ready.get()), "{way:?}");
    let times = turn.as_nanos() / TURN.as_nanos();
    world.slow_down(owner, u32::try_from(times).expect("small"));
    may_begin.set(true);
    let soon = world.now() + Duration::from_secs(60);
    assert!(world.run_until(soon, || took.is_there()), "{way:?}");
    let took = took.take().expect("just looked at");
    [took[GETS / 2], took[GETS * 99 / 100]]
}

#[test]
fn latency_of_4_kib_by_each_way_and_how_late_the_owner_is() {
    println!(
        "| the owner's turn | sent: p50, p99 | asked over the connection: written | read \
         | by messages: written | read | held |"
    );
    println!("|---|---|---|---|---|---|---|");
    let us = |took: Duration| took.as_nanos() as f64 / 1000.0;
    for turn in [
        TURN,
        TURN + Duration::from_micros(10),
        TURN + Duration::from_millis(1),
    ] {
        let measured = Way::ALL.map(|way| measure(way, turn));
        let cells = measured.map(|[half, most]| format!("{:.1}, {:.1} us", us(half), us(most)));
        println!("| {:.0} us | {} |", us(turn), cells.join(" | "));
        let [asked @ .., held] = measured;
        // Nobody waits for an owner that is late if nobody asks it.
        assert!(held[1] < Duration::from_micros(100), "{held:?}");
        let [sent, written, read, by_messages @ ..] = asked;
        // What is asked over the network once takes that, and what is answered there; adapters carry what they are
        // asked, too.
        assert!(sent[0] >= 2 * NETWORK, "{sent:?}");
        for [half, most] in [written, read] {
            assert!(half >= NETWORK && most < 5 * turn + 4 * NETWORK);
        }
        for [half, most] in by_messages {
            assert!(half >= 2 * ADAPTER, "{half:?}");
            assert!(half < 2 * turn + NETWORK, "{half:?}, of turns of {turn:?}");
            assert!(
                most < 5 * turn + 2 * NETWORK,
                "{most:?}, of turns of {turn:?}"
            );
        }
    }
}
