//! Memory of a device as a segment: by adapters where they reach it, else by way of its owner's machine.

use std::future::Future;
use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions};
use lunette_gpu::{Device, DeviceRegion, Stream, StreamOptions};
use lunette_runtime::{arena, time};
use lunette_transfer::engine::{
    Batch, Cause, DeviceSegment, Engine, Kind, Peer, RdmaOptions, Refusal, RegisterOptions,
    RemoteSegment, SegmentId, Statistics,
};

use super::{Scene, post};
use crate::scene::{KIB, MIB, memory, pattern};

/// Longer than a piece that is copied at once, and no multiple of anything.
const LEN: usize = 2 * MIB + 12 * KIB;

/// A device's memory in the server's engine, full of a pattern.
async fn register(engine: &Engine, options: FakeOptions) -> (SegmentId, DeviceSegment) {
    let machine = FakeMachine::new(1);
    let device = Device::fake(&machine, machine.add_device(options)).expect("added");
    // The pieces of a request wait for each other.
    let narrow = StreamOptions {
        depth: 1,
        ..StreamOptions::default()
    };
    let stream = Stream::new(&device, narrow).expect("a stream");
    let region = DeviceRegion::alloc(&device, LEN as u64).expect("memory");
    let mut bytes = arena().alloc(LEN).expect("room");
    bytes.as_mut_slice().copy_from_slice(&pattern(LEN, 1));
    let (filled, _) = stream.upload(bytes, 0, &region).await;
    filled.expect("filled");
    let segment = DeviceSegment::new(region, stream);
    let options = RegisterOptions::named("device");
    let id = engine.register_device(segment.clone(), &options);
    (id.expect("registered"), segment)
}

/// Registers a device's memory with the server.
fn serve(scene: &mut Scene, options: FakeOptions) -> SegmentId {
    let server: Engine = scene.engine.borrow().clone().expect("it runs");
    let registered = scene.world.spawn(scene.server, 0, move || async move {
        register(&server, options).await.0
    });
    scene.run(1, &registered)
}

async fn read(peer: &Peer, remote: &RemoteSegment) -> Vec<u8> {
    let target = memory(LEN);
    let mut batch = Batch::new();
    batch.read(target.clone(), remote, 0).expect("a read");
    post(peer, &batch, 30).await.expect("done");
    target.to_vec()
}

/// Reads all of it, and writes and reads again what begins in the middle of a page.
async fn there_and_back(peer: &Peer) {
    const AT: usize = 5000;
    let remote = peer.segment("device").await.expect("a segment");
    assert_eq!(
        (remote.kind(), remote.len_bytes()),
        (Kind::Device, LEN as u64)
    );
    assert!(read(peer, &remote).await == pattern(LEN, 1));
    let source = memory(LEN - 2 * AT);
    source.copy_in(0, &pattern(source.len(), 7));
    let mut batch = Batch::new();
    batch
        .write(source.clone(), &remote, AT as u64)
        .expect("a write");
    post(peer, &batch, 30).await.expect("done");
    let mut expected = pattern(LEN, 1);
    expected[AT..LEN - AT].copy_from_slice(&pattern(source.len(), 7));
    assert!(read(peer, &remote).await == expected);
}

fn moved(theirs: usize, options: FakeOptions) -> Statistics {
    let mut scene = Scene::with(1, [theirs, 2], MIB, RdmaOptions::default());
    serve(&mut scene, options);
    let outcome = scene.spawn(|engine, peer, _| async move {
        there_and_back(&peer).await;
        engine.statistics()
    });
    scene.run(30, &outcome)
}

#[test]
fn adapters_reach_a_devices_memory_and_others_by_way_of_its_owner() {
    let without = FakeOptions {
        has_dma_buf: false,
        ..FakeOptions::default()
    };
    let by_address = FakeOptions {
        has_peer_memory: true,
        ..without.clone()
    };
    let sum = (3 * LEN - 10_000) as u64;
    for (adapters, options, by_adapters) in [
        (2, FakeOptions::default(), sum),
        (2, by_address, sum),
        (2, without, 0),
        (0, FakeOptions::default(), 0),
    ] {
        let statistics = moved(adapters, options);
        let (read, written) = (statistics.read_bytes, statistics.written_bytes);
        assert_eq!(read + written, sum);
        assert_eq!(
            statistics.one_sided_bytes, by_adapters,
            "{adapters} adapters"
        );
    }
}

#[test]
fn a_devices_memory_is_given_back_while_adapters_reach_it() {
    for seed in 0..2 {
        let mut scene = Scene::new(seed, 2, MIB);
        let id = serve(&mut scene, FakeOptions::default());
        let outcome = scene.spawn(|engine, peer, _| async move {
            let remote = peer.segment("device").await.expect("a segment");
            let mut done = 0;
            loop {
                let mut batch = Batch::new();
                batch.read(memory(LEN), &remote, 0).expect("a read");
                match post(&peer, &batch, 30).await {
                    Ok(_) => done += 1,
                    Err(error) => return (done, error, engine.statistics()),
                }
            }
        });
        scene.world.run_for(Duration::from_millis(20 + seed));
        let server: Engine = scene.engine.borrow().clone().expect("it runs");
        let given_back = scene.world.spawn(scene.server, 0, move || async move {
            assert!(server.unregister(id).await.is_none(), "it is a device's");
            assert!(
                server.unregister_file(id).await.is_none(),
                "it is a device's"
            );
            server
                .unregister_device(id)
                .await
                .map(|device| device.len_bytes())
        });
        assert_eq!(scene.run(5, &given_back), Some(LEN as u64));
        let left: usize = (0..2)
            .map(|device| scene.fabric.registrations(device))
            .sum();
        assert_eq!(left, 2, "seed {seed}: where each adapter's messages come");
        let (done, error, statistics) = scene.run(30, &outcome);
        assert!(done > 0 && statistics.one_sided_bytes > 0, "seed {seed}");
        let stale = Cause::Refused(Refusal::Stale);
        assert!(error.failures.iter().all(|failure| failure.cause == stale));
    }
}

/// Runs something at the server, which has a device's memory registered.
fn at_the_server<F: Future<Output = ()> + 'static>(
    start: impl FnOnce(Engine, DeviceSegment) -> F + 'static,
) {
    let mut scene = Scene::new(3, 1, MIB);
    let server: Engine = scene.engine.borrow().clone().expect("it runs");
    let done = scene.world.spawn(scene.server, 0, move || async move {
        let (_, segment) = register(&server, FakeOptions::default()).await;
        start(server, segment).await;
    });
    scene.run(30, &done);
}

#[test]
fn an_engine_moves_bytes_between_its_own_device_and_memory() {
    at_the_server(|engine, segment| async move {
        let peer = engine.open(engine.addresses()).await.expect("itself");
        there_and_back(&peer).await;
        time::yield_now().await;
        drop((peer, segment));
    });
}

#[test]
fn what_a_device_does_not_copy_is_refused_alone() {
    at_the_server(|engine, _| async move {
        // A stream of another device knows nothing of this memory.
        let machine = FakeMachine::new(2);
        let device = |_| {
            let index = machine.add_device(FakeOptions::default());
            Device::fake(&machine, index).expect("added")
        };
        let devices: Vec<Device> = (0..2).map(device).collect();
        let region = DeviceRegion::alloc(&devices[0], 4096).expect("memory");
        let stream = Stream::new(&devices[1], StreamOptions::default()).expect("a stream");
        let wrong = DeviceSegment::new(region, stream);
        let options = RegisterOptions::named("wrong");
        engine.register_device(wrong, &options).expect("registered");
        let peer = engine.open(engine.addresses()).await.expect("itself");
        let wrong = peer.segment("wrong").await.expect("a segment");
        let right = peer.segment("device").await.expect("a segment");
        let mut batch = Batch::new();
        batch.read(memory(100), &right, 0).expect("a read");
        batch.read(memory(100), &wrong, 0).expect("a read");
        let error = post(&peer, &batch, 30).await.expect_err("not all of it");
        let failed: Vec<_> = error
            .failures
            .iter()
            .map(|failure| (failure.request, failure.cause))
            .collect();
        assert_eq!(failed, [(Some(1), Cause::Refused(Refusal::Storage))]);
    });
}
