//! Stores in simulated worlds: hosts that lose power, links that are cut, lose and damage.

use std::cell::Cell;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_auth::{Policy, Secrets};
use lunette_cluster::{ClientOptions, Hosted, serve};
use lunette_p2p::{ObjectName, ReceiveOptions, RegisterOptions, Store, StoreOptions};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, spawn_local};
use lunette_transfer::engine::EngineOptions;

const COORDINATOR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 0));
const PORT: u16 = 2379;
/// Of one object: 64 chunks.
const LEN: usize = 1 << 20;
const CHUNK_BYTES: u32 = 16 << 10;
/// Longer than anything takes, in the world's time.
const LONG: Duration = Duration::from_secs(300);

const fn host(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

fn name() -> ObjectName {
    "object".parse().expect("a name")
}

fn pattern() -> Vec<u8> {
    let bytes = (0..LEN).map(|at| (at / 4096 * 7 + at * 13) % 251);
    bytes
        .map(|byte| u8::try_from(byte).expect("below 251"))
        .collect()
}

fn memory() -> Exposed {
    Exposed::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory")
}

async fn store(at: IpAddr) -> Store {
    let secrets = Secrets::parse(b"0123456789abcdef0123456789abcdef");
    let engine = EngineOptions {
        listen: vec![SocketAddr::new(at, 700)],
        policy: Policy::Authenticated(secrets.expect("a secret")),
        ..EngineOptions::default()
    };
    let coordinator = ClientOptions {
        endpoints: vec![SocketAddr::new(COORDINATOR, PORT)],
        security: None,
        silence_max: LONG,
    };
    let mut options = StoreOptions::new(engine, coordinator);
    options.lease_ttl_s = 2;
    Store::start(options).await.expect("a store")
}

/// A coordinator, an origin, and who receives from it.
struct Town {
    world: World,
    origin: ProcessId,
    receivers: Vec<Receiver>,
}

struct Receiver {
    /// Whether all that came is right.
    outcome: Outcome<bool>,
    held_bytes: Rc<Cell<u64>>,
}

impl Town {
    fn new(seed: u64) -> Self {
        let options = WorldOptions {
            bytes_per_second: 4_000_000,
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        let coordinator = world.start(COORDINATOR, 1, CoreOptions::default());
        drop(world.spawn(coordinator, 0, || async {
            let listener = TcpListener::bind(SocketAddr::new(COORDINATOR, PORT));
            let listener = listener.expect("the port is free");
            serve(listener, Hosted::in_memory(), None, pending()).await;
        }));
        let origin = world.start(host(1), 1, CoreOptions::default());
        drop(world.spawn(origin, 0, || async {
            let store = store(host(1)).await;
            let memory = memory();
            memory.copy_in(0, &pattern());
            let options = RegisterOptions {
                chunk_bytes: CHUNK_BYTES,
                may_replace: false,
            };
            let registered = store.register(&name(), vec![memory], options).await;
            registered.expect("registered");
            pending::<()>().await;
        }));
        world.run_for(Duration::from_millis(200));
        Self {
            world,
            origin,
            receivers: Vec::new(),
        }
    }

    /// One more receiver, on a host of its own, which serves on.
    fn receive(&mut self) {
        let number = u8::try_from(self.receivers.len()).expect("few") + 2;
        let process = self.world.start(host(number), 1, CoreOptions::default());
        let held_bytes = Rc::new(Cell::new(0));
        let seen = Rc::clone(&held_bytes);
        let outcome = self.world.spawn(process, 0, move || async move {
            let store = store(host(number)).await;
            let buffers = vec![memory()];
            let options = ReceiveOptions::default();
            let held = store.receive(&name(), buffers.clone(), options).await;
            let held = held.expect("received");
            while held.whole(Duration::from_millis(5)).await.is_err() {
                seen.set(held.progress().held_bytes);
            }
            seen.set(held.progress().held_bytes);
            // It is served on as long as the process lives.
            drop(spawn_local(async move {
                pending::<()>().await;
                drop(store);
            }));
            buffers[0].to_vec() == pattern()
        });
        self.receivers.push(Receiver {
            outcome,
            held_bytes,
        });
    }

    /// Until a receiver has so many bytes.
    fn until_held(&mut self, receiver: usize, held_bytes: u64) {
        let held = Rc::clone(&self.receivers[receiver].held_bytes);
        let until = self.world.now() + LONG;
        let is_there = self.world.run_until(until, || held.get() >= held_bytes);
        assert!(is_there, "receiver {receiver} has {} bytes", held.get());
    }

    fn finish(&mut self, seed: u64) {
        let until = self.world.now() + LONG;
        for (index, receiver) in self.receivers.iter().enumerate() {
            let outcome = &receiver.outcome;
            let is_over = self.world.run_until(until, || outcome.is_there());
            let held = receiver.held_bytes.get();
            assert!(is_over, "seed {seed}: receiver {index} has {held} bytes");
            assert_eq!(outcome.take(), Some(true), "seed {seed}: receiver {index}");
        }
    }
}

#[test]
fn an_origin_that_loses_power_at_half_is_done_without() {
    for seed in 0..4 {
        let mut town = Town::new(seed);
        town.receive();
        town.until_held(0, LEN as u64);
        for _ in 0..3 {
            town.receive();
        }
        town.until_held(1, LEN as u64 / 2);
        let origin = town.origin;
        town.world.kill(origin, Kill::PowerLoss);
        town.finish(seed);
    }
}

#[test]
fn links_that_lose_damage_and_end_lose_nothing() {
    for seed in 0..4 {
        let mut town = Town::new(seed);
        for _ in 0..4 {
            town.receive();
        }
        town.world.set_network_faults(2, 200);
        town.until_held(0, LEN as u64 / 8);
        town.world.cut(host(2), host(3));
        town.world.reset_connections(host(1), host(4));
        town.world.run_for(Duration::from_millis(500));
        town.world.mend(host(2), host(3));
        town.finish(seed);
    }
}

#[test]
fn without_a_coordinator_those_who_know_each_other_go_on() {
    for seed in 0..2 {
        let mut town = Town::new(seed);
        for _ in 0..3 {
            town.receive();
        }
        for receiver in 0..3 {
            town.until_held(receiver, 1);
        }
        for number in 1..5 {
            town.world.cut(COORDINATOR, host(number));
            town.world.cut(host(number), COORDINATOR);
        }
        town.finish(seed);
    }
}

#[test]
fn a_seed_shows_the_same_world_again() {
    let trace = || {
        let mut town = Town::new(9);
        town.receive();
        town.receive();
        town.finish(9);
        town.world.trace_hash()
    };
    assert_eq!(trace(), trace());
}
