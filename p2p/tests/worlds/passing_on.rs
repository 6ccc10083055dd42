//! An object that receivers pass on to each other.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use lunette_p2p::ReceiveOptions;
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World};
use lunette_runtime::{CoreOptions, spawn_local};

use crate::scene::{COORDINATOR, LONG, host, memory, name, pattern, register, store, world};

/// Of the object: 64 chunks.
const LEN: usize = 1 << 20;

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
        let mut world = world(seed);
        let origin = world.start(host(1), 1, CoreOptions::default());
        drop(world.spawn(origin, 0, || async {
            let store = store(host(1)).await;
            register(&store, LEN).await;
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
            let buffers = vec![memory(LEN)];
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
            buffers[0].to_vec() == pattern(LEN)
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
