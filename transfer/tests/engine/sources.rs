//! Which address of this host rails are connected from: on each driver, and in worlds whose links fail.

use std::collections::BTreeSet;
use std::fs;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lunette_auth::{Policy, Secrets};
use lunette_runtime::sim::{Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_transfer::engine::{
    Batch, Done, Engine, EngineOptions, Peer, PostOptions, RegisterOptions, RemoteSegment,
};
use lunette_transfer::topology::{
    Adapter, AdapterAddress, Location, Machine, Memory, Override, Sources,
};

use super::on_each_driver::run;
use super::scene::{KIB, memory};

const SECOND: Duration = Duration::from_secs(1);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Adapters with an address each, of which some are near: on the node of the engine's memory.
fn sources(adapters: &[(&str, bool)], said: &str) -> Sources {
    let adapters = adapters.iter().map(|&(address, is_near)| Adapter {
        name: format!("to-{address}"),
        interfaces: Vec::new(),
        is_rdma: false,
        pci: None,
        numa: Some(u32::from(!is_near)),
        addresses: vec![AdapterAddress {
            ip: ip(address),
            prefix_bits: 32,
        }],
    });
    let machine = Machine {
        adapters: adapters.collect(),
        memories: vec![Memory {
            location: Location::Cpu(0),
            numa: Some(0),
            pci: None,
        }],
    };
    let found = machine.matrix().expect("a matrix");
    let said = Override::from_json(said.as_bytes()).expect("an override");
    let matrix = said.apply(&found).expect("a matrix");
    Sources::new(&machine, matrix, Location::Cpu(0))
}

async fn write(peer: &Peer, remote: &RemoteSegment, len: usize) -> Done {
    let mut batch = Batch::new();
    batch.write(memory(len), remote, 0).expect("a write");
    let posted = peer.post(&batch, PostOptions::default());
    posted.expect("posted").await.expect("written")
}

/// From where this process has connections to `port`, as the system says.
fn connected_from(port: u16) -> BTreeSet<IpAddr> {
    let table = fs::read_to_string("/proc/self/net/tcp").expect("the system's table");
    let rows = table.lines().skip(1).filter_map(|row| {
        let mut fields = row.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let remote = u16::from_str_radix(remote.split_once(':')?.1, 16).ok()?;
        let address = u32::from_str_radix(local.split_once(':')?.0, 16).ok()?;
        let is_established = state == "01";
        (is_established && remote == port).then(|| IpAddr::from(address.to_ne_bytes()))
    });
    rows.collect()
}

#[test]
fn rails_are_connected_from_the_nearest_adapters_in_turn() {
    run(0, || async {
        let listen: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let options = EngineOptions {
            listen: vec![listen, listen],
            same_host: false,
            ..EngineOptions::default()
        };
        let there = Engine::start(options).expect("an engine");
        let registered = there.register(memory(2048 * KIB), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let ports = [0, 1].map(|rail| there.addresses()[rail].port());
        let cases = [
            ("{}", ["127.0.0.2", "127.0.0.3"]),
            // What the operator says counts more than what was found.
            (r#"{"cpu:0": [["to-127.0.0.4"], []]}"#, ["127.0.0.4"; 2]),
            (r#"{"deny": ["to-127.0.0.2"]}"#, ["127.0.0.3"; 2]),
        ];
        for (said, expected) in cases {
            let adapters = [
                ("127.0.0.4", false),
                ("127.0.0.2", true),
                ("127.0.0.3", true),
            ];
            let options = EngineOptions {
                same_host: false,
                sources: Some(sources(&adapters, said)),
                ..EngineOptions::default()
            };
            let here = Engine::start(options).expect("an engine");
            let peer = here.open(there.addresses()).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            while peer.rails().iter().any(|rail| !rail.is_up) {
                write(&peer, &remote, 2048 * KIB).await;
            }
            let rails = peer.rails();
            let used = rails.iter().map(|rail| rail.source.expect("chosen"));
            assert_eq!(used.collect::<BTreeSet<_>>(), expected.map(ip).into());
            let seen = ports.map(connected_from);
            let seen: BTreeSet<IpAddr> = seen.into_iter().flatten().collect();
            assert_eq!(seen, expected.map(ip).into(), "{said}");
            drop((peer, here));
            while ports.iter().any(|&port| !connected_from(port).is_empty()) {
                time::sleep(Duration::from_millis(1)).await;
            }
        }
        // Without any, the system says.
        let here = Engine::start(EngineOptions {
            same_host: false,
            ..EngineOptions::default()
        });
        let here = here.expect("an engine");
        let peer = here.open(&there.addresses()[..1]).await.expect("a peer");
        assert_eq!(peer.rails()[0].source, None);
        assert_eq!(connected_from(ports[0]), [ip("127.0.0.1")].into());
    });
}

/// A server, and a client with two addresses.
struct Scene {
    world: World,
    client: ProcessId,
}

const NEAR: &str = "10.0.0.1";
const FAR: &str = "10.0.1.1";
const SERVER: &str = "10.0.9.2";

fn options() -> EngineOptions {
    let secrets = Secrets::parse(b"0123456789abcdef0123456789abcdef");
    EngineOptions {
        policy: Policy::Authenticated(secrets.expect("a secret")),
        ..EngineOptions::default()
    }
}

impl Scene {
    fn new(seed: u64) -> Self {
        let quiet = WorldOptions {
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, quiet);
        let client = world.start(ip(NEAR), 1, CoreOptions::default());
        world.add_address(ip(NEAR), ip(FAR));
        let server = world.start(ip(SERVER), 1, CoreOptions::default());
        drop(world.spawn(server, 0, || async {
            let listen = vec![SocketAddr::new(ip(SERVER), 7600)];
            let engine = Engine::start(EngineOptions {
                listen,
                ..options()
            });
            let engine = engine.expect("an engine");
            let registered = engine.register(memory(64 * KIB), &RegisterOptions::named("kv"));
            registered.expect("registered");
            pending::<()>().await;
        }));
        world.run_for(Duration::from_millis(1));
        Self { world, client }
    }

    /// Opens the server from these adapters.
    fn open(&mut self, adapters: &[(&str, bool)]) -> (Engine, Peer, RemoteSegment) {
        let options = EngineOptions {
            sources: Some(sources(adapters, "{}")),
            ..options()
        };
        let opening = self.world.spawn(self.client, 0, || async move {
            let engine = Engine::start(options).expect("an engine");
            let peer = engine.open(&[SocketAddr::new(ip(SERVER), 7600)]).await;
            let peer = peer.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            (engine, peer, remote)
        });
        self.run(&opening)
    }

    fn run<T>(&mut self, outcome: &Outcome<T>) -> T {
        let until = self.world.now() + SECOND * 30;
        let ended = self.world.run_until(until, || outcome.is_there());
        assert!(ended, "it does not end");
        outcome.take().expect("it is there")
    }

    fn write(&mut self, peer: &Peer, remote: RemoteSegment) {
        let peer = peer.clone();
        let writing = self.world.spawn(self.client, 0, move || async move {
            write(&peer, &remote, 4 * KIB).await
        });
        self.run(&writing);
    }

    fn cut(&mut self, from: &str) {
        self.world.cut(ip(from), ip(SERVER));
        self.world.cut(ip(SERVER), ip(from));
    }

    fn mend(&mut self, from: &str) {
        self.world.mend(ip(from), ip(SERVER));
        self.world.mend(ip(SERVER), ip(from));
    }
}

#[test]
fn an_adapter_that_leads_nowhere_is_stood_in_for_by_the_next() {
    for seed in 0..8 {
        let mut scene = Scene::new(seed);
        let adapters = [(FAR, false), (NEAR, true)];
        let (_engine, peer, remote) = scene.open(&adapters);
        let source = |peer: &Peer| peer.rails()[0].source;
        assert_eq!(source(&peer), Some(ip(NEAR)));
        scene.write(&peer, remote);
        // What is under way is sent again from the other one, far as it is.
        scene.cut(NEAR);
        scene.write(&peer, remote);
        assert_eq!(source(&peer), Some(ip(FAR)));
        // And back, when that one is lost: the near one is tried first.
        scene.mend(NEAR);
        scene.cut(FAR);
        scene.write(&peer, remote);
        assert_eq!(source(&peer), Some(ip(NEAR)));
    }
    // So it is when a peer is opened.
    let mut scene = Scene::new(9);
    scene.cut(NEAR);
    let (_engine, peer, _) = scene.open(&[(FAR, false), (NEAR, true)]);
    assert_eq!(peer.rails()[0].source, Some(ip(FAR)));
}

#[test]
fn addresses_that_this_host_does_not_have_any_more_hold_nobody_up() {
    let mut scene = Scene::new(3);
    let (_engine, peer, remote) = scene.open(&[("10.0.7.1", true), ("10.0.7.2", false)]);
    assert_eq!(peer.rails()[0].source, None, "the system's choice");
    scene.write(&peer, remote);
    let (_engine, peer, _) = scene.open(&[("10.0.7.1", true), (FAR, false)]);
    assert_eq!(peer.rails()[0].source, Some(ip(FAR)));
}
