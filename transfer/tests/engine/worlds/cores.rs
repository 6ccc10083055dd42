//! Engines of two cores in worlds whose links fail: a connection that is lost is asked for at another core
//! than its own, and what is sent again goes to another core than before. Nothing lands late, and no
//! notification comes twice.
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::{HugePages, SharedMemory};
use lunette_runtime::sim::{Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_transfer::engine::{
    Access, Engine, EngineHandle, EngineOptions, HandleError, HandleRequest, PeerHandle,
    PostOptions, RegisterOptions, RemoteSegment, SegmentId, Way,
};

use super::rails::{HERE, RAILS, addresses, finish};
use crate::scene::{MIB, guarded, pattern};

const SEEDS: u64 = 4;
const LEN: usize = 3 * MIB;

/// Starts the cores of an engine in a process.
fn start(world: &mut World, process: ProcessId, options: &EngineOptions) -> EngineHandle {
    let (handle, siblings) = Engine::siblings(options, 2).expect("a port each");
    for sibling in siblings {
        drop(world.spawn(process, sibling.core(), move || async move {
            let _engine = sibling.start().expect("an engine");
            std::future::pending::<()>().await;
        }));
    }
    handle
}

/// A world of two engines of two cores, and what theirs was notified of.
struct Scene {
    world: World,
    client: ProcessId,
    near: EngineHandle,
    notes: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let options = WorldOptions {
            bytes_per_second: 50_000_000,
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        let server = world.start(RAILS[0], 2, CoreOptions::default());
        world.add_address(RAILS[0], RAILS[1]);
        let client = world.start(HERE, 2, CoreOptions::default());
        let listening = EngineOptions {
            listen: addresses(),
            ..guarded()
        };
        let far = start(&mut world, server, &listening);
        let near = start(&mut world, client, &guarded());
        let notes: Rc<RefCell<Vec<_>>> = Rc::default();
        let heard = Rc::clone(&notes);
        let served = world.spawn(server, 1, move || async move {
            let allocated = far.allocate(LEN, RegisterOptions::named("kv"));
            allocated.await.expect("memory");
            loop {
                let notification = far.notified().await.expect("it goes on");
                heard.borrow_mut().push(notification.bytes);
            }
        });
        drop::<Outcome<()>>(served);
        world.run_for(Duration::from_millis(10));
        Self {
            world,
            client,
            near,
            notes,
        }
    }

    fn spawn<F: Future + 'static>(
        &mut self,
        core: usize,
        start: impl FnOnce(EngineHandle, PeerHandle, RemoteSegment) -> F + 'static,
    ) -> Outcome<F::Output> {
        let near = self.near.clone();
        self.world.spawn(self.client, core, move || async move {
            let peer = near.open(addresses()).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            start(near, peer, remote).await
        })
    }
}

fn whole(way: Way, local: SegmentId, remote: RemoteSegment) -> HandleRequest {
    HandleRequest {
        way,
        local,
        local_offset_bytes: 0,
        len_bytes: LEN as u64,
        remote,
        remote_offset_bytes: 0,
    }
}

fn private() -> RegisterOptions {
    RegisterOptions {
        name: None,
        access: Access::Read,
        ..RegisterOptions::named("")
    }
}

/// Posts in parts, with a notification, as often as it takes.
async fn post(peer: &PeerHandle, request: HandleRequest, note: u8) -> (u64, u32) {
    let mut failures = 0;
    loop {
        let options = PostOptions {
            timeout: Duration::from_secs(60),
            notification: Some(vec![note]),
            ..PostOptions::default()
        };
        match peer.post(vec![request], options).await {
            Ok(done) => return (done.resent, failures),
            // A slice that was lost each time that it was sent.
            Err(HandleError::Transfer(error)) if error.is_retryable() => failures += 1,
            Err(error) => unreachable!("{error}"),
        }
    }
}

#[test]
fn connections_of_all_cores_are_reset_and_nothing_lands_late_or_comes_twice() {
    const ROUNDS: u8 = 3;
    let mut resent = 0;
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        let core = usize::from(seed % 2 == 0);
        let outcome = scene.spawn(core, move |near, peer, remote| async move {
            let memory = SharedMemory::map(LEN, HugePages::Never, &mut Vec::new());
            let memory = memory.expect("memory");
            let local = near.register_shared(memory.clone(), private()).await;
            let local = local.expect("registered");
            let (mut resent, mut failures) = (0, 0);
            for round in 1..=ROUNDS {
                let bytes = pattern(LEN, round);
                near.fill(local, 0, bytes.clone()).await.expect("filled");
                let written = post(&peer, whole(Way::Write, local, remote), round).await;
                // What was sent twice would land on top of this.
                let clean = vec![0; LEN];
                near.fill(local, 0, clean).await.expect("filled");
                time::sleep(Duration::from_millis(50)).await;
                let read = post(&peer, whole(Way::Read, local, remote), 100 + round).await;
                let found = near.bytes(local, 0, LEN as u64).await.expect("bytes");
                assert!(found == bytes, "seed {seed}, round {round}");
                resent += written.0 + read.0;
                failures += written.1 + read.1;
            }
            let statistics = near.statistics().await.expect("an answer");
            assert!(near.unregister(local).await.expect("an answer"));
            drop(memory);
            (resent, failures, statistics)
        });
        let mut resets = 0;
        while !outcome.is_there() && resets < 300 {
            scene.world.run_for(Duration::from_millis(13));
            scene.world.reset_connections(HERE, RAILS[resets % 2]);
            resets += 1;
        }
        let (again, failures, statistics) = finish(&mut scene.world, 120, &outcome);
        assert!(statistics.written_bytes >= u64::from(ROUNDS) * LEN as u64);
        scene.world.run_for(Duration::from_secs(2));
        let notes = scene.notes.take();
        for round in 1..=ROUNDS {
            for note in [round, 100 + round] {
                let times = notes.iter().filter(|found| **found == [note]).count();
                let most = 1 + failures as usize;
                assert!((1..=most).contains(&times), "seed {seed}: {note} {times}");
            }
        }
        resent += again;
    }
    assert!(resent > SEEDS, "{resent} slices of {SEEDS} seeds");
}

#[test]
fn an_engine_of_one_core_fails_over_between_two_cores_of_its_peer() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        let to: Vec<SocketAddr> = addresses();
        let other = "10.0.0.9".parse().expect("an address");
        let process = scene.world.start(other, 1, CoreOptions::default());
        let outcome = scene.world.spawn(process, 0, move || async move {
            let engine = Engine::start(guarded()).expect("an engine");
            let peer = engine.open(&to).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            let mut resent = 0;
            for seed in 1..=2 {
                let source = crate::scene::patterned(LEN, seed);
                let target = crate::scene::memory(LEN);
                for (way, local) in [(Way::Write, &source), (Way::Read, &target)] {
                    let mut batch = lunette_transfer::engine::Batch::new();
                    match way {
                        Way::Write => batch.write(local.clone(), &remote, 0),
                        Way::Read => batch.read(local.clone(), &remote, 0),
                    }
                    .expect("a request");
                    let posted = peer.post(&batch, PostOptions::default()).expect("posted");
                    resent += posted.await.expect("done").resent;
                }
                assert!(target.to_vec() == pattern(LEN, seed), "{seed}");
            }
            let ports: Vec<u16> = peer
                .rails()
                .iter()
                .map(|rail| rail.address.port())
                .collect();
            (resent, ports)
        });
        let mut resets = 0;
        while !outcome.is_there() && resets < 8 {
            scene.world.run_for(Duration::from_millis(23));
            scene.world.reset_connections(other, RAILS[resets % 2]);
            resets += 1;
        }
        let (resent, mut ports) = finish(&mut scene.world, 120, &outcome);
        assert!(resent > 0, "seed {seed}");
        ports.sort_unstable();
        let first = addresses()[0].port();
        assert_eq!(
            ports,
            [first, first + 1],
            "seed {seed}: a rail to each core"
        );
    }
}
