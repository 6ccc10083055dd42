//! The connections of a client: how many there are, and for how long.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, NodeOptions, SeatedNode,
};
use lunette_kvstore_proto::asker::SILENT_WAIT;
use lunette_kvstore_proto::message::FormatVersions;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, Placement, spawn_local, time};
use lunette_runtime_core::ids::NodeId;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key};
use super::strangers::{Counts, Stranger};
use super::town::{CLIENTS, COORDINATOR, MEMBER, connected, coordinate};

const NODES: u64 = 5;
const KEYS: usize = 100;

/// Nodes of one cluster, and a client with these options otherwise.
async fn begin(options: ClusterClientOptions) -> (ClusterClient, Rc<Counts>, Vec<Stranger>) {
    let counts = Rc::new(Counts::default());
    let nodes: Vec<_> = (1..=NODES)
        .map(|id| Stranger::start(id, FormatVersions::OURS, &counts))
        .collect();
    let all: Vec<_> = nodes.iter().collect();
    for node in &nodes {
        node.join(&all);
    }
    let options = ClusterClientOptions {
        seeds: vec![nodes[0].address()],
        ..options
    };
    let client = ClusterClient::connect(options).await.expect("a map");
    // The one over which it has learnt the map.
    eventually("nothing is open", async || counts.open.get() == 0).await;
    (client, counts, nodes)
}

async fn ask_all(client: &ClusterClient) {
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let present = client.exists(&keys).await.expect("all answer");
    assert_eq!(present, [false; KEYS]);
}

#[test]
fn connections_are_closed_when_nothing_is_asked_and_opened_again() {
    run(2, || async {
        let options = ClusterClientOptions {
            idle_timeout: Duration::from_millis(150),
            ..ClusterClientOptions::new(Vec::new())
        };
        let (client, counts, nodes) = begin(options).await;
        for _ in 0..2 {
            counts.open_max.set(0);
            ask_all(&client).await;
            assert_eq!(counts.open_max.get(), nodes.len(), "one for each");
            eventually("they are closed", async || counts.open.get() == 0).await;
        }
    });
}

/// A client looks for newer maps more often than this, which keeps none of them open.
#[test]
fn looking_for_maps_is_no_use_of_a_connection() {
    let mut world = World::new(1, WorldOptions::default());
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let done = world.spawn(process, 0, || async {
        let idle_timeout = Duration::from_secs(12);
        let options = ClusterClientOptions {
            idle_timeout,
            ..ClusterClientOptions::new(Vec::new())
        };
        let (client, counts, nodes) = begin(options).await;
        ask_all(&client).await;
        time::sleep(Duration::from_secs(11)).await;
        assert_eq!(counts.open.get(), nodes.len(), "not yet");
        time::sleep(idle_timeout / 2).await;
        assert_eq!(counts.open.get(), 0, "none was kept");
        ask_all(&client).await;
    });
    let until = world.now() + Duration::from_secs(600);
    assert!(world.run_until(until, || done.is_there()), "it ends");
}

#[test]
fn connections_are_bounded_and_make_room_for_each_other() {
    run(2, || async {
        let options = ClusterClientOptions {
            connections_max: 2,
            ..ClusterClientOptions::new(Vec::new())
        };
        let (client, counts, nodes) = begin(options).await;
        counts.open_max.set(0);
        // At the same time, so that some wait until others are not in use.
        ask_all(&client).await;
        // And each for itself.
        for number in 0..20 {
            let present = client.exists(&[key(number)]).await;
            assert_eq!(present, Ok(vec![false]));
        }
        // A node may learn of a connection's end after the client has made another.
        let most = counts.open_max.get();
        assert!(most < nodes.len(), "{most}");
        eventually("two are left", async || counts.open.get() == 2).await;
    });
}

/// Who asks several cores of one node has a connection to its first one before: which makes room for others, of those who wait for it
/// as well.
#[test]
fn cores_of_a_node_make_room_for_each_other() {
    const CORES: usize = 4;
    let mut world = World::new(1, WorldOptions::default());
    let coordinator = world.start(COORDINATOR.ip(), 1, CoreOptions::default());
    let _serves = world.spawn(coordinator, 0, coordinate);
    let options = NodeOptions {
        placement: Placement::Anywhere(CORES),
        cluster: Some(ClusterOptions::new("world", vec![COORDINATOR])),
        ..NodeOptions::new(NodeId(1), MEMBER, 64 << 20)
    };
    let core_options = options.core_options().expect("it has memory");
    let node = world.start(MEMBER.ip(), CORES, core_options);
    let _lives = world.spawn(node, 0, || async {
        let _node = SeatedNode::start(options).await.expect("a member");
        pending::<()>().await;
    });
    let clients = world.start(CLIENTS, 1, CoreOptions::default());
    let done = world.spawn(clients, 0, || async {
        connected().await;
        let options = ClusterClientOptions {
            connections_max: 2,
            ..ClusterClientOptions::new(vec![MEMBER])
        };
        let client = ClusterClient::connect(options).await.expect("a map");
        for _ in 0..10 {
            let stats = client.stat().await;
            assert_eq!(stats.len(), CORES);
            for (seat, stat) in stats {
                assert!(stat.is_ok(), "{seat:?}: {stat:?}");
            }
        }
    });
    let until = world.now() + Duration::from_secs(60);
    assert!(world.run_until(until, || done.is_there()), "it ends");
}

/// A home that has heard that nobody waits any more does not answer.
#[test]
fn what_nobody_waits_for_any_more_uses_no_connection() {
    const TIMEOUT: Duration = Duration::from_millis(400);
    run(2, || async {
        let options = ClusterClientOptions {
            connections_max: 2,
            timeout: TIMEOUT,
            ..ClusterClientOptions::new(Vec::new())
        };
        let (client, counts, _nodes) = begin(options).await;
        counts.are_homes_silent.set(true);
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let removed = client.remove(&keys).await;
        assert!(removed.iter().all(Result::is_err), "{removed:?}");
        counts.are_homes_silent.set(false);
        let until = time::now() + 2 * TIMEOUT;
        loop {
            let present = client.exists(&keys).await;
            if present == Ok(vec![false; KEYS]) {
                break;
            }
            assert!(time::now() < until, "connections are in use: {present:?}");
        }
    });
}

#[test]
fn nodes_are_asked_for_their_statistics_at_the_same_time() {
    run(2, || async {
        let (client, counts, nodes) = begin(ClusterClientOptions::new(Vec::new())).await;
        counts.stats_awaited.set(nodes.len());
        let stats = client.stat().await;
        let seats: Vec<_> = stats.iter().map(|(seat, _)| seat.node.0).collect();
        assert_eq!(seats, (1..=NODES).collect::<Vec<_>>());
        for (seat, stat) in stats {
            assert!(stat.is_ok(), "{seat:?}: {stat:?}");
        }
    });
}

/// However many there are, and however long one of them is gone.
#[test]
fn a_few_members_at_a_time_are_asked_for_a_newer_map() {
    const MEMBERS: u64 = 20;
    run(2, || async {
        let counts = Rc::new(Counts::default());
        let mut nodes: Vec<_> = (1..MEMBERS)
            .map(|id| Stranger::start(id, FormatVersions::OURS, &counts))
            .collect();
        nodes.push(Stranger::gone(MEMBERS, &counts));
        let all: Vec<_> = nodes.iter().collect();
        for node in &nodes {
            node.join(&all);
        }
        let options = ClusterClientOptions::new(vec![nodes[0].address()]);
        let client = ClusterClient::connect(options).await.expect("a map");
        let before = counts.maps.get();
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let until = time::now() + Duration::from_secs(1);
        while time::now() < until {
            let exist = client.exists(&keys).await;
            assert_eq!(exist, Ok(vec![false; KEYS]));
            time::sleep(Duration::from_millis(10)).await;
        }
        let asked = counts.maps.get() - before;
        assert!((3..=24).contains(&asked), "{asked} maps");
    });
}

/// Bytes that come are waited for, for longer than who says nothing would be, and so is what comes behind them.
#[test]
fn what_comes_slowly_is_waited_for() {
    const LEN: usize = 1_500_000;
    let options = WorldOptions {
        bytes_per_second: 500_000,
        ..WorldOptions::default()
    };
    let mut world = World::new(1, options);
    let process = world.start(IpAddr::V4(Ipv4Addr::LOCALHOST), 1, CoreOptions::default());
    let done = world.spawn(process, 0, || async {
        let mut scene = Scene::of(1, 16 << 20).await;
        scene.set_client_timeout(Duration::from_secs(60));
        let client = Rc::new(scene.client().await);
        for n in 0..2 {
            scene.put(&client, n, n, LEN).await;
        }
        let begun = time::now();
        let (scene, other) = (Rc::new(scene), Rc::clone(&client));
        let beside = Rc::clone(&scene);
        let first = spawn_local(async move { beside.expect(&other, 0, LEN).await });
        scene.expect(&client, 1, LEN).await;
        first.await.expect("it has them");
        let took = time::now().since(begun);
        assert!(took > 2 * SILENT_WAIT, "{took:?}");
    });
    let until = world.now() + Duration::from_secs(100);
    assert!(world.run_until(until, || done.is_there()), "it ends");
}
