//! The engine over adapters of a simulated fabric, in worlds where both fail.

mod bounds;
mod cores;
mod devices;
mod faults;
mod telling;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::CoreOptions;
use lunette_runtime::sim::{Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::time;
use lunette_transfer::engine::{
    Batch, Carrier, Done, Engine, EngineOptions, Peer, PostOptions, RdmaOptions, RegisterOptions,
    RemoteSegment, TransferError,
};
use lunette_verbs::Context;
use lunette_verbs::sim::{Fabric, Speed};

use super::rails::{HERE, RAILS, addresses, finish};
use crate::scene::{MIB, guarded, memory, pattern};

/// A fast adapter.
pub(crate) const SPEED: Speed = Speed {
    bytes_per_second: 12_500_000_000,
    latency: Duration::from_micros(2),
};

/// Two hosts with adapters of one fabric each: the server's are 0, 1.., the client's those behind them.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) fabric: Fabric,
    theirs: usize,
    pub(crate) adapters: usize,
    pub(crate) server: ProcessId,
    client: ProcessId,
    /// What the server was notified of.
    pub(crate) notes: Rc<RefCell<Vec<Vec<u8>>>>,
    /// The first and the last byte of its memory, when it was.
    landed: Rc<RefCell<Vec<(u8, u8)>>>,
    /// The server's engine.
    pub(crate) engine: Rc<RefCell<Option<Engine>>>,
}

/// The adapters `first..first + count`, opened.
fn contexts(fabric: &Fabric, first: usize, count: usize) -> Vec<Context> {
    let open = |index| Context::simulated(fabric, index).expect("it was added");
    (first..first + count).map(open).collect()
}

impl Scene {
    pub(crate) fn new(seed: u64, adapters: usize, len: usize) -> Self {
        Self::with(seed, [adapters; 2], len, RdmaOptions::default())
    }

    /// With so many adapters of the server's and of the client's, and these options of the server's.
    pub(crate) fn with(
        seed: u64,
        [theirs, ours]: [usize; 2],
        len: usize,
        rdma: RdmaOptions,
    ) -> Self {
        let server = EngineOptions {
            listen: addresses(),
            rdma,
            ..guarded()
        };
        Self::of(seed, [theirs, ours], len, server)
    }

    /// The same, of a server with these options.
    fn of(
        seed: u64,
        [theirs, ours]: [usize; 2],
        len: usize,
        server_options: EngineOptions,
    ) -> Self {
        let options = WorldOptions {
            bytes_per_second: 50_000_000,
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        let fabric = Fabric::new(seed);
        for _ in 0..theirs + ours {
            let device = fabric.add_device();
            fabric.set_speed(device, SPEED);
        }
        let server = world.start(RAILS[0], 1, CoreOptions::default());
        world.add_address(RAILS[0], RAILS[1]);
        let client = world.start(HERE, 1, CoreOptions::default());
        let (notes, engine): (Rc<RefCell<Vec<_>>>, Rc<RefCell<Option<Engine>>>) =
            Default::default();
        let (heard, started) = (Rc::clone(&notes), Rc::clone(&engine));
        let landed: Rc<RefCell<Vec<_>>> = Rc::default();
        let seen = Rc::clone(&landed);
        let reached = fabric.clone();
        drop(world.spawn(server, 0, move || async move {
            let engine = Engine::start_with(server_options, contexts(&reached, 0, theirs));
            let engine = engine.expect("an engine");
            let memory = memory(len);
            let registered = engine.register(memory.clone(), &RegisterOptions::named("kv"));
            registered.expect("registered");
            *started.borrow_mut() = Some(engine.clone());
            loop {
                let notification = engine.notified().await;
                heard.borrow_mut().push(notification.bytes);
                let byte = |at: usize| memory.slice(at, 1).to_vec()[0];
                seen.borrow_mut().push((byte(0), byte(len - 1)));
            }
        }));
        world.run_for(Duration::from_millis(10));
        Self {
            world,
            fabric,
            theirs,
            adapters: ours,
            server,
            client,
            notes,
            landed,
            engine,
        }
    }

    pub(crate) fn spawn<F: Future + 'static>(
        &mut self,
        start: impl FnOnce(Engine, Peer, RemoteSegment) -> F + 'static,
    ) -> Outcome<F::Output> {
        self.spawn_with(RdmaOptions::default(), start)
    }

    /// The same, with these options of the client's.
    fn spawn_with<F: Future + 'static>(
        &mut self,
        rdma: RdmaOptions,
        start: impl FnOnce(Engine, Peer, RemoteSegment) -> F + 'static,
    ) -> Outcome<F::Output> {
        let (fabric, first, count) = (self.fabric.clone(), self.theirs, self.adapters);
        self.world.spawn(self.client, 0, move || async move {
            let ours = contexts(&fabric, first, count);
            let options = EngineOptions { rdma, ..guarded() };
            let engine = Engine::start_with(options, ours).expect("an engine");
            let peer = engine.open(&addresses()).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            start(engine, peer, remote).await
        })
    }

    pub(crate) fn run<T>(&mut self, seconds: u64, outcome: &Outcome<T>) -> T {
        finish(&mut self.world, seconds, outcome)
    }
}

pub(crate) async fn post(peer: &Peer, batch: &Batch, seconds: u64) -> Result<Done, TransferError> {
    let options = PostOptions {
        timeout: Duration::from_secs(seconds),
        ..PostOptions::default()
    };
    peer.post(batch, options).expect("posted").await
}

#[test]
fn bytes_go_from_memory_to_memory_and_notifications_follow_them() {
    for seed in 0..4 {
        let len = 8 * MIB + 777;
        let mut scene = Scene::new(seed, 2, len);
        let outcome = scene.spawn(move |engine, peer, remote| async move {
            let source = memory(len);
            source.copy_in(0, &pattern(len, 3));
            let mut batch = Batch::new();
            batch
                .write(source.slice(0, 40), &remote, 0)
                .expect("a write");
            batch
                .write(source.slice(40, len - 40), &remote, 40)
                .expect("a write");
            let options = PostOptions {
                notification: Some(b"written".to_vec()),
                ..PostOptions::default()
            };
            let written = peer.post(&batch, options).expect("posted").await;
            assert_eq!(written.expect("done").len_bytes, len as u64);
            let target = memory(len);
            let mut batch = Batch::new();
            batch.read(target.clone(), &remote, 0).expect("a read");
            post(&peer, &batch, 30).await.expect("done");
            assert!(target.to_vec() == pattern(len, 3), "as it was written");
            (engine.statistics(), peer.rails())
        });
        let (statistics, rails) = scene.run(30, &outcome);
        assert_eq!(statistics.one_sided_bytes, 2 * len as u64, "seed {seed}");
        let up = rails.iter().filter(|rail| rail.is_up);
        let kinds: Vec<Carrier> = up.map(|rail| rail.carrier).collect();
        use Carrier::{OneSided, Stream};
        assert_eq!(kinds, [Stream, Stream, OneSided, OneSided], "{rails:?}");
        assert_eq!(scene.notes.borrow().as_slice(), [b"written".to_vec()]);
        let server = scene.engine.borrow().clone().expect("it runs");
        let served = server.statistics();
        assert_eq!(
            (served.served_written_bytes, served.served_read_bytes),
            (0, 0)
        );
        // Its peer is gone, and so are its queue pairs.
        scene.world.run_for(Duration::from_secs(1));
        assert_eq!(server.accepted_queue_pairs(), 0, "seed {seed}");
    }
}

/// Reads 1 GiB over so many rails of which one is slow: how long it took, once rails are known.
fn a_gibibyte(adapters: usize, slow: Option<u64>) -> Duration {
    const REGION: usize = 128 * MIB;
    let mut scene = Scene::new(1, adapters, REGION);
    if let Some(bytes_per_second) = slow {
        let speed = Speed {
            bytes_per_second,
            ..SPEED
        };
        scene.fabric.set_speed(0, speed);
    }
    let outcome = scene.spawn(move |_, peer, remote| async move {
        let target = memory(REGION);
        let read = |times: usize| {
            let mut batch = Batch::new();
            for _ in 0..times {
                batch.read(target.clone(), &remote, 0).expect("a read");
            }
            batch
        };
        post(&peer, &read(1), 30).await.expect("done");
        let began = time::now();
        post(&peer, &read(8), 30).await.expect("done");
        time::now().since(began)
    });
    scene.run(60, &outcome)
}

#[test]
fn eight_rails_reach_their_sum_and_a_slow_one_costs_its_missing_share() {
    let share = |took: Duration, bytes_per_second: f64| {
        let ideal = (1_u64 << 30) as f64 / bytes_per_second;
        ideal / took.as_secs_f64()
    };
    let rate = SPEED.bytes_per_second as f64;
    let reached = share(a_gibibyte(8, None), 8.0 * rate);
    println!("eight rails: {reached} of their sum");
    assert!(reached >= 0.97, "{reached} of the sum of eight rails");
    let reached = share(a_gibibyte(8, Some(SPEED.bytes_per_second / 2)), 7.5 * rate);
    println!("one at half speed: {reached} of the sum");
    assert!(
        reached >= 0.97,
        "{reached} of the sum with one at half speed"
    );
}
