//! Namespaces of an engine in worlds whose links fail and whose server dies: what was said to be written is there,
//! and what is not known to be says so.

use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use lunette_nvmeof::{Disk, FileDisk};
use lunette_runtime::fs::{File, OpenOptions};
use lunette_runtime::sim::{Kill, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_transfer::engine::{
    Batch, Cause, Effect, Engine, EngineOptions, NamespaceSegment, Peer, PostOptions, Refusal,
    RegisterOptions, RemoteSegment, TransferError,
};

use super::rails::{HERE, RAILS, finish};
use crate::disks::{export, namespace, serve_at};
use crate::scene::{KIB, full_of, guarded};

const LEN: usize = 128 * KIB;
const BYTES: u8 = 30;

fn disk_at() -> SocketAddr {
    SocketAddr::from((RAILS[0], 4420))
}

/// Serves a disk that is a file of this host, which outlives the server.
async fn serve_disk() {
    let opening = OpenOptions {
        read: true,
        write: true,
        create: true,
        ..OpenOptions::default()
    };
    let file = File::open("/disk", opening).await.expect("opened");
    file.allocate(LEN as u64).await.expect("room");
    drop(file);
    let disk = FileDisk::open(Path::new("/disk"), 4096)
        .await
        .expect("a disk");
    serve_at(disk_at(), export(Disk::File(disk), 4096, false));
    pending::<()>().await;
}

/// A world with a server of a disk, and somebody who asks.
fn world(seed: u64) -> (World, ProcessId, ProcessId) {
    let options = WorldOptions {
        bytes_per_second: 50_000_000,
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(seed, options);
    let server = started(&mut world, RAILS[0]);
    let client = world.start(HERE, 1, CoreOptions::default());
    world.run_for(Duration::from_millis(10));
    (world, server, client)
}

fn started(world: &mut World, host: IpAddr) -> ProcessId {
    let server = world.start(host, 1, CoreOptions::default());
    drop(world.spawn(server, 0, serve_disk));
    server
}

async fn open() -> (Engine, Peer, RemoteSegment) {
    let options = EngineOptions {
        listen: vec![SocketAddr::from((HERE, 700))],
        ..guarded()
    };
    let engine = Engine::start(options).expect("an engine");
    let segment = loop {
        match NamespaceSegment::connect(namespace(disk_at())).await {
            Ok(segment) => break segment,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        time::sleep(Duration::from_millis(5)).await;
    };
    let registered = engine.register_namespace(segment, &RegisterOptions::named("disk"));
    registered.expect("registered");
    let peer = engine.open(engine.addresses()).await.expect("a peer");
    let remote = peer.segment("disk").await.expect("a segment");
    (engine, peer, remote)
}

async fn write(peer: &Peer, remote: &RemoteSegment, byte: u8) -> Result<(), TransferError> {
    let mut batch = Batch::new();
    let source = full_of(byte, LEN);
    batch.write(source, remote, 0).expect("a write");
    let posted = peer.post(&batch, PostOptions::default()).expect("posted");
    posted.await.map(drop)
}

async fn read(peer: &Peer, remote: &RemoteSegment) -> Vec<u8> {
    let target = full_of(0, LEN);
    let mut batch = Batch::new();
    batch.read(target.clone(), remote, 0).expect("a read");
    let posted = peer.post(&batch, PostOptions::default()).expect("posted");
    posted.await.expect("reads are repeated");
    target.to_vec()
}

/// Writes one byte after the other, each again until it is said to be written, and reads it back. How many
/// writes were not known to be carried out, and how many bytes were wrong.
async fn write_and_read() -> (usize, usize) {
    let (_engine, peer, remote) = open().await;
    let (mut unknown, mut wrong) = (0, 0);
    for byte in 1..=BYTES {
        while let Err(error) = write(&peer, &remote, byte).await {
            let failure = error.failures[0];
            assert_eq!(failure.cause, Cause::Refused(Refusal::Detached), "{error}");
            assert_eq!(failure.effect, Effect::MayStillChange, "{error}");
            assert!(error.is_retryable(), "{error}");
            unknown += 1;
            // What was under way at the drive is over then.
            time::sleep(Duration::from_millis(200)).await;
        }
        let found = read(&peer, &remote).await;
        wrong += found.iter().filter(|&&found| found != byte).count();
    }
    (unknown, wrong)
}

#[test]
fn connections_that_are_lost_lose_nothing_that_was_written() {
    let mut all = 0;
    for seed in 0..10 {
        let (mut world, _server, client) = world(seed);
        let writing = world.spawn(client, 0, write_and_read);
        let mut random = world.draw();
        let until = world.now() + Duration::from_secs(100);
        while !writing.is_there() && world.now() < until {
            world.run_for(Duration::from_micros(500 + u64::from(random.below(20_000))));
            world.reset_connections(HERE, RAILS[0]);
        }
        let (unknown, wrong) = finish(&mut world, 600, &writing);
        assert_eq!(wrong, 0, "seed {seed}");
        all += unknown;
    }
    assert!(all > 20, "hardly anything was lost: {all}");
}

#[test]
fn a_server_that_dies_and_comes_back_is_found_again() {
    let mut all = 0;
    for seed in 0..10 {
        let (mut world, mut server, client) = world(seed);
        let writing = world.spawn(client, 0, write_and_read);
        let mut random = world.draw();
        for _ in 0..12 {
            world.run_for(Duration::from_micros(500 + u64::from(random.below(60_000))));
            world.kill(server, Kill::Crash);
            world.run_for(Duration::from_millis(u64::from(random.below(100))));
            server = started(&mut world, RAILS[0]);
        }
        let (unknown, wrong) = finish(&mut world, 600, &writing);
        assert_eq!(wrong, 0, "seed {seed}");
        all += unknown;
    }
    assert!(all > 5, "hardly anything was lost: {all}");
}
