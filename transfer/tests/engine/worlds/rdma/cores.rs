//! Engines of several cores over adapters: those of one core serve, whichever core is asked, as long as it is
//! there.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lunette_runtime::arena::{HugePages, SharedMemory};
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, Signal, time};
use lunette_transfer::engine::{
    Access, Batch, Cause, Engine, EngineHandle, EngineOptions, HandleError, HandleRequest, Peer,
    PeerHandle, PostOptions, RdmaOptions, Refusal, RegisterOptions, RemoteSegment, SegmentId, Way,
};
use lunette_verbs::sim::Fabric;

use super::{SPEED, contexts, post};
use crate::scene::{MIB, guarded, memory, pattern};
use crate::worlds::rails::{HERE, RAILS, addresses, finish};

const SEEDS: u64 = 2;
const LEN: usize = 2 * MIB;
/// Adapters of each side: the server's are the first.
const ADAPTERS: usize = 2;
/// Cores of each side. With its adapters each registers where their messages come.
const CORES: usize = 2;

/// A core's part of an engine.
#[derive(Clone, Default)]
struct Part {
    engine: Rc<RefCell<Option<Engine>>>,
    ends: Rc<Signal>,
}

impl Part {
    fn queue_pairs(&self) -> usize {
        let engine = self.engine.borrow();
        engine.as_ref().map_or(0, Engine::accepted_queue_pairs)
    }
}

/// Starts the cores of an engine over the adapters `first..`.
fn start(
    world: &mut World,
    process: ProcessId,
    (fabric, first): (&Fabric, usize),
    options: &EngineOptions,
) -> (EngineHandle, Vec<Part>) {
    let (handle, siblings) = Engine::siblings(options, 2).expect("a port each");
    let mut parts = Vec::new();
    for sibling in siblings {
        let (fabric, part) = (fabric.clone(), Part::default());
        parts.push(part.clone());
        drop(world.spawn(process, sibling.core(), move || async move {
            let adapters = contexts(&fabric, first, ADAPTERS);
            let engine = sibling.start_with(adapters).expect("an engine");
            *part.engine.borrow_mut() = Some(engine);
            part.ends.raised().await;
            drop(part.engine.take());
        }));
    }
    (handle, parts)
}

struct Scene {
    world: World,
    fabric: Fabric,
    server: ProcessId,
    client: ProcessId,
    far: EngineHandle,
    parts: Vec<Part>,
    near: EngineHandle,
    segment: SegmentId,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let options = WorldOptions {
            bytes_per_second: 50_000_000,
            losses_per_mille: 0,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        let fabric = Fabric::new(seed);
        for _ in 0..2 * ADAPTERS {
            let device = fabric.add_device();
            fabric.set_speed(device, SPEED);
        }
        let server = world.start(RAILS[0], CORES, CoreOptions::default());
        world.add_address(RAILS[0], RAILS[1]);
        let client = world.start(HERE, CORES, CoreOptions::default());
        let listening = EngineOptions {
            listen: addresses(),
            rdma: RdmaOptions {
                queue_pairs_max: 8,
                ..RdmaOptions::default()
            },
            ..guarded()
        };
        let (far, parts) = start(&mut world, server, (&fabric, 0), &listening);
        let (near, _) = start(&mut world, client, (&fabric, ADAPTERS), &guarded());
        let allocating = far.clone();
        let segment = world.spawn(server, 1, move || async move {
            let allocated = allocating.allocate(LEN, RegisterOptions::named("kv"));
            allocated.await.expect("memory")
        });
        let segment = finish(&mut world, 1, &segment);
        Self {
            world,
            fabric,
            server,
            client,
            far,
            parts,
            near,
            segment,
        }
    }

    /// Has both cores of the client's ask.
    fn spawn<F: Future + 'static>(
        &mut self,
        start: impl FnOnce(EngineHandle, PeerHandle, RemoteSegment) -> F + 'static,
    ) -> Outcome<F::Output> {
        let near = self.near.clone();
        self.world.spawn(self.client, 0, move || async move {
            let peer = near.open(addresses()).await.expect("a peer");
            let remote = peer.segment("kv").await.expect("a segment");
            start(near, peer, remote).await
        })
    }

    fn run<T>(&mut self, seconds: u64, outcome: &Outcome<T>) -> T {
        finish(&mut self.world, seconds, outcome)
    }

    /// Queue pairs of peers, by the server's core.
    fn queue_pairs(&self) -> Vec<usize> {
        self.parts.iter().map(Part::queue_pairs).collect()
    }

    /// What is registered with the server's adapters.
    fn registrations(&self) -> Vec<usize> {
        let all = 0..ADAPTERS;
        all.map(|device| self.fabric.registrations(device))
            .collect()
    }
}

fn private() -> RegisterOptions {
    RegisterOptions {
        name: None,
        access: Access::Read,
        ..RegisterOptions::named("")
    }
}

async fn local(near: &EngineHandle) -> (SegmentId, SharedMemory) {
    let memory = SharedMemory::map(LEN, HugePages::Never, &mut Vec::new()).expect("memory");
    let registered = near.register_shared(memory.clone(), private()).await;
    (registered.expect("registered"), memory)
}

/// A request for each half of a segment, so that there is one for each core.
fn halves(way: Way, local: SegmentId, remote: RemoteSegment) -> Vec<HandleRequest> {
    let half = LEN as u64 / 2;
    let request = |offset_bytes| HandleRequest {
        way,
        local,
        local_offset_bytes: offset_bytes,
        len_bytes: half,
        remote,
        remote_offset_bytes: offset_bytes,
    };
    vec![request(0), request(half)]
}

async fn there_and_back(
    near: &EngineHandle,
    peer: &PeerHandle,
    remote: RemoteSegment,
    seed: u8,
) -> Result<(), HandleError> {
    let (id, _memory) = local(near).await;
    near.fill(id, 0, pattern(LEN, seed)).await?;
    let options = PostOptions::default;
    peer.post(halves(Way::Write, id, remote), options()).await?;
    near.fill(id, 0, vec![0; LEN]).await?;
    peer.post(halves(Way::Read, id, remote), options()).await?;
    let found = near.bytes(id, 0, LEN as u64).await?;
    assert!(found == pattern(LEN, seed), "{seed}");
    assert!(near.unregister(id).await?);
    Ok(())
}

#[test]
fn one_core_serves_for_all_and_a_segment_is_registered_once_with_each_adapter() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        let outcome = scene.spawn(|near, peer, remote| async move {
            for seed in 1..=3 {
                let done = there_and_back(&near, &peer, remote, seed).await;
                done.expect("there and back");
            }
            let statistics = near.statistics().await.expect("an answer");
            (statistics, peer)
        });
        let (statistics, peer) = scene.run(30, &outcome);
        let moved = 6 * LEN as u64;
        assert_eq!(statistics.one_sided_bytes, moved, "seed {seed}");
        let pairs = scene.queue_pairs();
        assert!(pairs.contains(&0) && pairs.contains(&4), "{pairs:?}");
        assert_eq!(scene.registrations(), [1 + CORES; ADAPTERS], "seed {seed}");
        // With the last connection, to whichever core, queue pairs end.
        drop(peer);
        scene.world.run_for(Duration::from_secs(1));
        assert_eq!(scene.queue_pairs(), [0, 0], "seed {seed}");
        let (far, segment) = (scene.far.clone(), scene.segment);
        let gone = scene.world.spawn(scene.server, 0, move || async move {
            far.unregister(segment).await.expect("an answer")
        });
        assert!(scene.run(5, &gone));
        assert_eq!(scene.registrations(), [CORES; ADAPTERS], "seed {seed}");
    }
}

#[test]
fn a_peer_of_one_core_finds_the_core_that_serves_by_whichever_it_is_at_home_with() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        let fabric = scene.fabric.clone();
        let outcome = scene.world.spawn(scene.client, 0, move || async move {
            let mut all = Vec::new();
            for epoch in 0..4 {
                let options = EngineOptions {
                    epoch: Some(1000 + epoch),
                    ..guarded()
                };
                let adapters = contexts(&fabric, ADAPTERS, ADAPTERS);
                let engine = Engine::start_with(options, adapters).expect("an engine");
                let to = &addresses()[..1];
                let peer: Peer = engine.open(to).await.expect("a peer");
                let remote = peer.segment("kv").await.expect("a segment");
                let mut batch = Batch::new();
                batch.read(memory(LEN), &remote, 0).expect("a read");
                post(&peer, &batch, 5).await.expect("done");
                let port = peer.rails()[0].address.port();
                all.push((port, engine.statistics().one_sided_bytes));
            }
            all
        });
        let all = scene.run(30, &outcome);
        let first = addresses()[0].port();
        for port in [first, first + 1] {
            let of_core = all.iter().filter(|found| found.0 == port);
            let bytes: Vec<u64> = of_core.map(|found| found.1).collect();
            assert_eq!(bytes, [LEN as u64; 2], "seed {seed}: {all:?}");
        }
    }
}

#[test]
fn a_segment_is_given_back_while_several_cores_read_and_write_it_and_nothing_lands_then() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        let ended = scene.spawn(|near, peer, remote| async move {
            let (id, _memory) = local(&near).await;
            near.fill(id, 0, vec![1; LEN]).await.expect("filled");
            let mut done = 0;
            loop {
                for way in [Way::Write, Way::Read] {
                    let requests = halves(way, id, remote);
                    match peer.post(requests, PostOptions::default()).await {
                        Ok(_) => done += 1,
                        Err(HandleError::Transfer(error)) => return (done, error),
                        Err(error) => unreachable!("{error}"),
                    }
                }
            }
        });
        scene.world.run_for(Duration::from_millis(20 + seed));
        let (far, segment) = (scene.far.clone(), scene.segment);
        let given_back = scene.world.spawn(scene.server, 1, move || async move {
            let bytes = far.bytes(segment, 0, LEN as u64);
            assert!(bytes.await.expect("bytes") == vec![1; LEN], "written");
            assert!(far.unregister(segment).await.expect("an answer"));
        });
        scene.run(5, &given_back);
        assert_eq!(scene.registrations(), [CORES; ADAPTERS], "seed {seed}");
        let (done, error) = scene.run(30, &ended);
        assert!(done > 2, "seed {seed}: {done}");
        let stale = Cause::Refused(Refusal::Stale);
        let mut failures = error.failures.iter();
        assert!(failures.all(|failure| failure.cause == stale), "{error:?}");
    }
}

#[test]
fn when_the_core_ends_that_serves_another_one_does() {
    for seed in 0..SEEDS {
        let mut scene = Scene::new(seed);
        let near = scene.near.clone();
        let outcome = scene.spawn(|near, peer, remote| async move {
            let mut done = 0;
            let until = time::now() + Duration::from_secs(4);
            while time::now() < until {
                match there_and_back(&near, &peer, remote, done).await {
                    Ok(()) => done = done.wrapping_add(1),
                    Err(HandleError::Transfer(error)) => assert!(error.is_retryable()),
                    Err(error) => unreachable!("{error}"),
                }
                time::sleep(Duration::from_millis(400)).await;
            }
            (done, peer)
        });
        scene.world.run_for(Duration::from_millis(400));
        let serving = scene.queue_pairs().iter().position(|&pairs| pairs > 0);
        let serving = serving.expect("bytes go by adapters");
        scene.parts[serving].ends.raise();
        let asked = move |scene: &mut Scene| {
            let near = near.clone();
            let asked = scene.world.spawn(scene.client, 1, move || async move {
                let statistics = near.statistics().await.expect("an answer");
                statistics.one_sided_bytes
            });
            scene.run(1, &asked)
        };
        scene.world.run_for(Duration::from_secs(2));
        let before = asked(&mut scene);
        let (done, peer) = scene.run(30, &outcome);
        assert!(done > 4, "seed {seed}: {done}");
        let moved = asked(&mut scene) - before;
        assert!(moved > LEN as u64, "seed {seed}: {moved} by adapters again");
        let other = 1 - serving;
        assert!(scene.queue_pairs()[other] > 0, "seed {seed}");
        drop(peer);
        // All that was registered by the core that ended has ended with it.
        let (far, segment) = (scene.far.clone(), scene.segment);
        let given_back = scene.world.spawn(scene.server, other, move || async move {
            far.unregister(segment).await.expect("an answer")
        });
        assert!(scene.run(5, &given_back));
        assert_eq!(scene.registrations(), [CORES - 1; ADAPTERS], "seed {seed}");
    }
}

#[test]
fn a_client_that_is_killed_leaves_no_queue_pairs_at_any_core() {
    let mut scene = Scene::new(1);
    let outcome = scene.spawn(|near, peer, remote| async move {
        loop {
            let _done = there_and_back(&near, &peer, remote, 1).await;
            time::sleep(Duration::from_millis(200)).await;
        }
    });
    scene.world.run_for(Duration::from_millis(500));
    assert!(scene.queue_pairs().iter().sum::<usize>() > 0);
    scene.world.kill(scene.client, Kill::Crash);
    scene.world.run_for(Duration::from_secs(1));
    assert_eq!(scene.queue_pairs(), [0, 0]);
    drop::<Outcome<()>>(outcome);
}
