//! Peers that are opened by name: names that change, that nobody knows, that nobody answers for.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunette_auth::Policy;
use lunette_runtime::sim::{Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, spawn_local, time};
use lunette_transfer::engine::{
    Batch, Cause, Done, Endpoint, Engine, EngineOptions, OpenError, Peer, PostOptions,
    RegisterOptions, RemoteSegment, Resolve, ResolveError, Resolver, Resolving, TransferError,
};

use super::on_each_driver::run;
use super::scene::{KIB, full_of, guarded, memory};

const SEEDS: u64 = 8;
const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 7600;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(text: &str) -> SocketAddr {
    SocketAddr::new(ip(text), PORT)
}

fn name(host: &str) -> Endpoint {
    let host = host.to_owned();
    Endpoint::Name { host, port: PORT }
}

/// What a name stands for, and how often it was asked for.
type Entry = (Vec<SocketAddr>, u32);

/// The names of a test.
#[derive(Clone, Debug, Default)]
struct Table(Arc<Mutex<BTreeMap<String, Entry>>>);

impl Table {
    fn set(&self, host: &str, addresses: &[SocketAddr]) {
        let mut names = self.0.lock().expect("one thread");
        names.entry(host.to_owned()).or_default().0 = addresses.to_vec();
    }

    fn asked(&self, host: &str) -> u32 {
        self.0.lock().expect("one thread")[host].1
    }
}

impl Resolve for Table {
    /// `nobody` is never answered for, `once` but once; other names that have no address are unknown.
    fn resolve(&self, host: &str, port: u16) -> Resolving {
        let mut names = self.0.lock().expect("one thread");
        let (addresses, asked) = names.entry(host.to_owned()).or_default();
        *asked += 1;
        let (addresses, host, count) = (addresses.clone(), host.to_owned(), *asked);
        Box::pin(async move {
            assert!(addresses.iter().all(|address| address.port() == port));
            time::sleep(Duration::from_millis(2)).await;
            if host == "nobody" || host == "once" && count > 1 {
                pending::<()>().await;
            }
            if addresses.is_empty() {
                let reason = "not in the table".to_owned();
                return Err(ResolveError::Unknown { name: host, reason });
            }
            Ok(addresses)
        })
    }
}

/// A world with one host that asks, and others that serve.
struct Scene {
    world: World,
    client: ProcessId,
    table: Table,
}

const HERE: &str = "10.0.0.1";

impl Scene {
    fn new(seed: u64) -> Self {
        let options = WorldOptions {
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        let client = world.start(ip(HERE), 1, CoreOptions::default());
        let table = Table::default();
        Self {
            world,
            client,
            table,
        }
    }

    /// An engine on a host of its own, at all of these addresses.
    fn serve(&mut self, addresses: &[&str]) {
        let server = self
            .world
            .start(ip(addresses[0]), 1, CoreOptions::default());
        for more in &addresses[1..] {
            self.world.add_address(ip(addresses[0]), ip(more));
        }
        let listen = addresses.iter().map(|address| at(address)).collect();
        drop(self.world.spawn(server, 0, move || async move {
            let engine = Engine::start(EngineOptions {
                listen,
                ..guarded()
            });
            let engine = engine.expect("an engine");
            let registered = engine.register(memory(64 * KIB), &RegisterOptions::named("kv"));
            registered.expect("registered");
            pending::<()>().await;
        }));
        self.world.run_for(Duration::from_millis(1));
    }

    fn asking(&self) -> EngineOptions {
        EngineOptions {
            resolver: Resolver::new(self.table.clone()),
            ..guarded()
        }
    }

    /// Runs on the host that asks.
    fn spawn<F: Future + 'static>(
        &mut self,
        start: impl FnOnce(Engine) -> F + 'static,
    ) -> Outcome<F::Output> {
        let options = self.asking();
        self.world.spawn(self.client, 0, move || async move {
            start(Engine::start(options).expect("an engine")).await
        })
    }

    fn run<T>(&mut self, seconds: u64, outcome: &Outcome<T>) -> T {
        let until = self.world.now() + SECOND * u32::try_from(seconds).expect("few");
        let ended = self.world.run_until(until, || outcome.is_there());
        assert!(ended, "it does not end");
        outcome.take().expect("it is there")
    }

    fn cut(&mut self, address: &str) {
        for (from, to) in [(HERE, address), (address, HERE)] {
            self.world.cut(ip(from), ip(to));
        }
    }
}

async fn opened(engine: &Engine, endpoints: &[Endpoint]) -> (Peer, RemoteSegment) {
    let peer = engine.open_by_name(endpoints).await.expect("a peer");
    let remote = peer.segment("kv").await.expect("a segment");
    (peer, remote)
}

/// Writes some bytes.
async fn write(peer: &Peer, remote: &RemoteSegment) -> Result<Done, TransferError> {
    let mut batch = Batch::new();
    batch
        .write(full_of(7, 4 * KIB), remote, 0)
        .expect("a write");
    let options = PostOptions {
        timeout: SECOND * 30,
        ..PostOptions::default()
    };
    peer.post(&batch, options).expect("posted").await
}

#[test]
fn a_peer_that_moves_is_found_again_under_its_name() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        scene.serve(&["10.0.0.2", "10.0.1.2"]);
        scene.table.set("store", &[at("10.0.0.2")]);
        let opening = scene.spawn(|engine| async move {
            let (peer, remote) = opened(&engine, &[name("store")]).await;
            write(&peer, &remote).await.expect("written");
            (engine, peer, remote)
        });
        let (_engine, peer, remote) = scene.run(5, &opening);
        assert_eq!(peer.rails()[0].address, at("10.0.0.2"));
        assert_eq!(scene.table.asked("store"), 1);
        scene.cut("10.0.0.2");
        scene.table.set("store", &[at("10.0.1.2")]);
        let handle = peer.clone();
        let client = scene.client;
        let moved = scene.world.spawn(client, 0, move || async move {
            write(&handle, &remote).await.expect("written");
            // From here on it is left alone.
            write(&handle, &remote).await.expect("written")
        });
        scene.run(25, &moved);
        assert_eq!(peer.rails()[0].address, at("10.0.1.2"));
        assert!(peer.rails()[0].is_up);
        assert_eq!(scene.table.asked("store"), 2);
    }
}

#[test]
fn a_name_that_leads_nowhere_is_asked_for_now_and_then() {
    let mut scene = Scene::new(1);
    scene.serve(&["10.0.0.2"]);
    scene.table.set("store", &[at("10.0.0.2")]);
    let opening = scene.spawn(|engine| async move {
        let (peer, remote) = opened(&engine, &[name("store")]).await;
        (engine, peer, remote)
    });
    let (_engine, peer, remote) = scene.run(5, &opening);
    // Refused at once, so it is tried often.
    scene.table.set("store", &[at("10.0.0.9")]);
    scene.cut("10.0.0.2");
    let up = scene.world.start(ip("10.0.0.9"), 1, CoreOptions::default());
    assert_ne!(up, scene.client);
    let client = scene.client;
    let failing = scene.world.spawn(client, 0, move || async move {
        let failed = write(&peer, &remote).await.expect_err("nobody is there");
        (failed, peer.rails()[0].connections)
    });
    let (failed, connections) = scene.run(60, &failing);
    assert_eq!(failed.failures[0].cause, Cause::Unreachable);
    assert_eq!(failed.paths, [at("10.0.0.9")]);
    let asked = scene.table.asked("store");
    assert!(connections > 8, "{connections}");
    assert!((3..=31).contains(&asked), "{asked}");
}

#[test]
fn whoever_has_the_old_address_now_is_not_taken_for_the_peer() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        scene.serve(&["10.0.0.2", "10.0.1.2"]);
        scene.serve(&["10.0.0.3"]);
        let both = [at("10.0.0.2"), at("10.0.0.3")];
        scene.table.set("store", &both);
        let opening = scene.spawn(|engine| async move {
            let (peer, remote) = opened(&engine, &[name("store")]).await;
            (engine, peer, remote)
        });
        let (_engine, peer, remote) = scene.run(5, &opening);
        assert_eq!(peer.rails()[0].address, both[0]);
        // The peer moves, and at an address that was its own somebody else answers: that it is, is not
        // certain before the name has been asked for again.
        scene.cut("10.0.0.2");
        scene.table.set("store", &[at("10.0.1.2")]);
        let client = scene.client;
        let handle = peer.clone();
        let moved = scene.world.spawn(client, 0, move || async move {
            write(&handle, &remote).await.expect("written")
        });
        scene.run(30, &moved);
        assert_eq!(peer.rails()[0].address, at("10.0.1.2"));
        // Now the name says that it is the other one.
        scene.cut("10.0.1.2");
        scene.table.set("store", &both[1..]);
        let handle = peer.clone();
        let replaced = scene.world.spawn(client, 0, move || async move {
            write(&handle, &remote).await.expect_err("somebody else")
        });
        let failed = scene.run(60, &replaced);
        assert_eq!(failed.failures[0].cause, Cause::PeerReplaced);
    }
}

#[test]
fn all_addresses_of_a_name_are_tried_and_not_one_after_the_other_has_timed_out() {
    let mut scene = Scene::new(3);
    scene.serve(&["10.0.0.2"]);
    let silent = ["10.0.9.1", "10.0.9.2", "10.0.9.3"].map(at);
    let addresses = [silent[0], silent[1], at("10.0.0.2"), silent[2]];
    scene.table.set("store", &addresses);
    let opening = scene.spawn(|engine| async move {
        let began = time::now();
        let (peer, remote) = opened(&engine, &[name("store")]).await;
        let took = time::now().since(began);
        write(&peer, &remote).await.expect("written");
        (took, peer.rails()[0].address)
    });
    let (took, address) = scene.run(5, &opening);
    let two_waits = Duration::from_millis(500);
    assert!(took > two_waits && took < two_waits * 2, "{took:?}");
    assert_eq!(address, at("10.0.0.2"));
    // Rails are not waited for either.
    let silent = silent.map(Endpoint::from);
    let opening = scene.spawn(move |engine| async move {
        let [a, b, c] = silent;
        let began = time::now();
        let endpoints = [a, b, c, Endpoint::from(at("10.0.0.2"))];
        drop(opened(&engine, &endpoints).await);
        time::now().since(began)
    });
    let took = scene.run(5, &opening);
    assert!(took < two_waits * 2, "{took:?}");
}

#[test]
fn names_that_nobody_has_or_answers_for_say_so_and_hold_nobody_up() {
    let mut scene = Scene::new(4);
    scene.serve(&["10.0.0.2"]);
    let ended = scene.spawn(|engine| async move {
        let (peer, remote) = opened(&engine, &[Endpoint::from(at("10.0.0.2"))]).await;
        // Unknown: at once.
        let began = time::now();
        let unknown = engine.open_by_name(&[name("stranger")]).await;
        assert!(time::now().since(began) < SECOND / 10);
        // More questions than are asked at a time, and none is answered.
        let asking: Vec<_> = (0..80)
            .map(|_| {
                let engine = engine.clone();
                spawn_local(async move {
                    let began = time::now();
                    let opened = engine.open_by_name(&[name("nobody")]).await;
                    (opened.expect_err("nobody"), time::now().since(began))
                })
            })
            .collect();
        let mut writes = 0;
        let began = time::now();
        while time::now().since(began) < SECOND {
            let done = write(&peer, &remote).await.expect("written");
            assert!(done.took < SECOND / 10, "{done:?}");
            writes += 1;
        }
        assert!(writes > 100, "{writes}");
        let mut silent = Vec::new();
        for asked in asking {
            silent.push(asked.await.expect("task"));
        }
        // A rail that cannot be found stands in nobody's way.
        let rails = [
            name("nobody"),
            name("stranger"),
            Endpoint::from(at("10.0.0.2")),
        ];
        let (peer, remote) = opened(&engine, &rails).await;
        let done = write(&peer, &remote).await.expect("written");
        let rails: Vec<_> = peer.rails().iter().map(|rail| rail.address).collect();
        (unknown.expect_err("unknown"), silent, done, rails)
    });
    let (unknown, silent, done, rails) = scene.run(30, &ended);
    assert!(unknown.is_retryable());
    let OpenError::Resolve { endpoint, error } = unknown else {
        panic!("{unknown}");
    };
    assert_eq!(endpoint, name("stranger"));
    assert!(matches!(error, ResolveError::Unknown { .. }), "{error}");
    for (error, took) in silent {
        let is_late = matches!(
            error,
            OpenError::Resolve {
                error: ResolveError::TimedOut { .. },
                ..
            }
        );
        assert!(is_late, "{error}");
        assert!(took < SECOND * 3, "{took:?}");
    }
    assert!(done.took < SECOND);
    let unspecified: SocketAddr = format!("[::]:{PORT}").parse().expect("an address");
    assert_eq!(rails, [unspecified, unspecified, at("10.0.0.2")]);
    assert_eq!(scene.table.asked("nobody"), 64, "at a time");
}

/// A peer whose name is asked for in vain while it cannot be reached, and which then can.
fn comes_back(scene: &mut Scene, host: &'static str, options: EngineOptions) {
    let client = scene.client;
    let opening = scene.world.spawn(client, 0, move || async move {
        let engine = Engine::start(options).expect("an engine");
        let (peer, remote) = opened(&engine, &[name(host)]).await;
        (engine, peer, remote)
    });
    let (_engine, peer, remote) = scene.run(5, &opening);
    scene.world.set_name(host, &[]);
    scene.cut("10.0.0.2");
    let handle = peer.clone();
    let waiting = scene.world.spawn(client, 0, move || async move {
        write(&handle, &remote).await.expect("written")
    });
    scene.world.run_for(SECOND * 8);
    assert!(!waiting.is_there());
    for (from, to) in [(HERE, "10.0.0.2"), ("10.0.0.2", HERE)] {
        scene.world.mend(ip(from), ip(to));
    }
    scene.run(22, &waiting);
    assert_eq!(peer.rails()[0].address, at("10.0.0.2"));
}

#[test]
fn an_answer_that_does_not_come_leaves_the_addresses_that_are_known() {
    let mut scene = Scene::new(5);
    scene.serve(&["10.0.0.2"]);
    scene.table.set("once", &[at("10.0.0.2")]);
    let asking = scene.asking();
    comes_back(&mut scene, "once", asking);
    assert_eq!(
        scene.table.asked("once"),
        2,
        "the second is under way still"
    );
    // The world's names, which an engine asks for unless it is told otherwise.
    scene.world.set_name("store", &[ip("10.0.0.2")]);
    comes_back(&mut scene, "store", guarded());
}

#[test]
fn an_attempt_that_was_given_up_is_not_taken_for_its_rail_when_it_arrives_late() {
    let mut scene = Scene::new(6);
    let insecure = || EngineOptions {
        policy: Policy::Insecure,
        ..EngineOptions::default()
    };
    let rails = [at("10.0.0.2"), at("10.0.1.2")];
    let server = scene.world.start(rails[0].ip(), 1, CoreOptions::default());
    scene.world.add_address(rails[0].ip(), rails[1].ip());
    drop(scene.world.spawn(server, 0, move || async move {
        let listen = rails.to_vec();
        let engine = Engine::start(EngineOptions {
            listen,
            ..insecure()
        });
        let engine = engine.expect("an engine");
        let registered = engine.register(memory(64 * KIB), &RegisterOptions::named("kv"));
        registered.expect("registered");
        pending::<()>().await;
    }));
    scene.world.run_for(Duration::from_millis(1));
    // What is sent to the first address takes longer to arrive than anybody waits.
    scene.world.set_rate(ip(HERE), rails[0].ip(), 100);
    let client = scene.client;
    let opening = scene.world.spawn(client, 0, move || async move {
        let engine = Engine::start(insecure()).expect("an engine");
        let (peer, remote) = opened(&engine, &rails.map(Endpoint::from)).await;
        (engine, peer, remote)
    });
    let (_engine, peer, remote) = scene.run(5, &opening);
    assert!(!peer.rails()[0].is_up && peer.rails()[1].is_up);
    scene.world.set_rate(ip(HERE), rails[0].ip(), 1_000_000_000);
    let handle = peer.clone();
    let writing = scene.world.spawn(client, 0, move || async move {
        let began = time::now();
        while time::now().since(began) < SECOND * 3 {
            write(&handle, &remote).await.expect("written");
            time::sleep(Duration::from_millis(10)).await;
        }
    });
    scene.run(20, &writing);
    let connections: Vec<_> = peer.rails().iter().map(|rail| rail.connections).collect();
    assert_eq!(connections, [1, 1]);
}

#[test]
fn names_and_literals_on_this_host() {
    run(0, || async {
        let listen = ["127.0.0.1:0", "[::1]:0"].map(|text| text.parse().expect("an address"));
        let engine = |listen| {
            let options = EngineOptions {
                listen,
                same_host: false,
                ..EngineOptions::default()
            };
            Engine::start(options).expect("an engine")
        };
        let (there, here) = (engine(listen.to_vec()), engine(Vec::new()));
        let registered = there.register(memory(64 * KIB), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let (v4, v6) = (there.addresses()[0], there.addresses()[1]);
        // `localhost` may be IPv6 first: nobody listens there on this port.
        for text in [
            format!("localhost:{}", v4.port()),
            v4.to_string(),
            format!("[::1]:{}", v6.port()),
        ] {
            let endpoint: Endpoint = text.parse().expect("an endpoint");
            let (peer, remote) = opened(&here, &[endpoint]).await;
            write(&peer, &remote).await.expect("written");
        }
        let text = format!("no-such-host.invalid:{PORT}");
        let endpoint: Endpoint = text.parse().expect("an endpoint");
        let error = here.open_by_name(&[endpoint]).await.expect_err("unknown");
        assert!(matches!(error, OpenError::Resolve { .. }), "{error}");
    });
}
