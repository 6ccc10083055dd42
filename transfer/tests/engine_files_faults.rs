//! Files of an engine in worlds whose links and drives fail: what was said to be written stays as it was
//! written, and what fails says so.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lunette_auth::{Policy, Secrets};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::sim::{DiskOptions, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_transfer::engine::{
    Batch, Cause, Engine, EngineOptions, FileSegment, FileSegmentOptions, Peer, PostOptions,
    Refusal, RegisterOptions, RemoteSegment, TransferError,
};

const KIB: usize = 1024;
const LEN: usize = 128 * KIB;
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// The server's addresses: a rail to each.
const RAILS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2)),
];
const PORT: u16 = 700;

fn memory(len: usize, byte: u8) -> Exposed {
    let memory = Exposed::map(len, HugePages::Never, &mut Vec::new());
    let memory = memory.expect("memory");
    memory.copy_in(0, &vec![byte; len]);
    memory
}

fn addresses() -> Vec<SocketAddr> {
    RAILS.map(|ip| SocketAddr::from((ip, PORT))).to_vec()
}

fn guarded() -> EngineOptions {
    let secrets = Secrets::parse(b"0123456789abcdef0123456789abcdef");
    EngineOptions {
        policy: Policy::Authenticated(secrets.expect("a secret")),
        ..EngineOptions::default()
    }
}

/// A world of two hosts, of which one serves a file on its drive.
fn world(seed: u64, disk: DiskOptions) -> (World, ProcessId) {
    let options = WorldOptions {
        bytes_per_second: 50_000_000,
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    let mut world = World::new(seed, options);
    let server = world.start(RAILS[0], 1, CoreOptions::default());
    world.add_address(RAILS[0], RAILS[1]);
    let client = world.start(HERE, 1, CoreOptions::default());
    drop(world.spawn(server, 0, move || async move {
        let options = EngineOptions {
            listen: addresses(),
            ..guarded()
        };
        let engine = Engine::start(options).expect("an engine");
        let whole = FileSegmentOptions {
            write: true,
            len_bytes: Some(LEN as u64),
            ..FileSegmentOptions::default()
        };
        let file = FileSegment::open("/segment", whole).await.expect("opened");
        let registered = engine.register_file(file, &RegisterOptions::named("file"));
        registered.expect("registered");
        std::future::pending::<()>().await;
    }));
    world.run_for(Duration::from_millis(10));
    world.set_drives(disk);
    (world, client)
}

async fn open() -> (Engine, Peer, RemoteSegment) {
    let engine = Engine::start(guarded()).expect("an engine");
    let peer = engine.open(&addresses()).await.expect("a peer");
    let remote = peer.segment("file").await.expect("a segment");
    (engine, peer, remote)
}

fn run<T>(world: &mut World, outcome: &Outcome<T>) -> T {
    let until = world.now() + Duration::from_secs(120);
    let ended = world.run_until(until, || outcome.is_there());
    assert!(ended, "it does not end");
    outcome.take().expect("it is there")
}

async fn write(peer: &Peer, remote: &RemoteSegment, byte: u8) -> Result<u64, TransferError> {
    let mut batch = Batch::new();
    let source = memory(LEN, byte);
    batch.write(source, remote, 0).expect("a write");
    let posted = peer.post(&batch, PostOptions::default()).expect("posted");
    posted.await.map(|done| done.resent)
}

async fn read(peer: &Peer, remote: &RemoteSegment) -> Result<Vec<u8>, TransferError> {
    let target = memory(LEN, 0);
    let mut batch = Batch::new();
    batch.read(target.clone(), remote, 0).expect("a read");
    let posted = peer.post(&batch, PostOptions::default()).expect("posted");
    posted.await.map(|_| target.to_vec())
}

#[test]
fn what_was_on_its_way_to_a_file_never_covers_what_was_written_after_it() {
    let slow = DiskOptions {
        latency: (Duration::from_millis(1), Duration::from_millis(400)),
        ..DiskOptions::default()
    };
    let mut resent = 0;
    for seed in 0..10 {
        let (mut world, client) = world(seed, slow);
        let writing = world.spawn(client, 0, || async {
            let (_engine, peer, remote) = open().await;
            let (mut resent, mut wrong) = (0, 0);
            for byte in (2..=40).step_by(2) {
                // The second follows at once, while something of the first may still be on its way.
                resent += write(&peer, &remote, byte - 1).await.expect("written");
                write(&peer, &remote, byte).await.expect("written");
                // Whatever still lands has landed by then.
                time::sleep(Duration::from_secs(1)).await;
                let found = read(&peer, &remote).await.expect("read");
                wrong += found.iter().filter(|&&found| found != byte).count();
            }
            (wrong, resent)
        });
        let mut random = world.draw();
        while !writing.is_there() {
            world.run_for(Duration::from_millis(1 + u64::from(random.below(120))));
            let rail = RAILS[usize::try_from(random.below(2)).expect("one of two")];
            world.reset_connections(HERE, rail);
            world.run_for(Duration::from_millis(u64::from(random.below(300))));
        }
        let (wrong, again) = run(&mut world, &writing);
        assert_eq!(wrong, 0, "seed {seed}: bytes of an earlier write");
        resent += again;
    }
    assert!(resent > 30, "hardly anything was lost: {resent}");
}

#[test]
fn a_drive_that_fails_makes_honest_failures() {
    let failing = DiskOptions {
        io_errors_per_million: 150_000,
        short_operations_per_million: 300_000,
        ..DiskOptions::default()
    };
    let (mut failed, mut done) = (0, 0);
    for seed in 0..20 {
        let (mut world, client) = world(seed, failing);
        let trying = world.spawn(client, 0, || async {
            let (_engine, peer, remote) = open().await;
            let (mut failed, mut done) = (0, 0);
            let storage = |error: TransferError| {
                let cause = error.failures[0].cause;
                assert_eq!(cause, Cause::Refused(Refusal::Storage), "{error}");
            };
            for byte in 1..=20 {
                match write(&peer, &remote, byte).await {
                    Ok(_) => done += 1,
                    Err(error) => {
                        storage(error);
                        failed += 1;
                        continue;
                    }
                }
                match read(&peer, &remote).await {
                    Ok(found) => assert_eq!(found, vec![byte; LEN]),
                    Err(error) => storage(error),
                }
            }
            (failed, done)
        });
        let (more_failed, more_done) = run(&mut world, &trying);
        failed += more_failed;
        done += more_done;
    }
    assert!(failed > 20 && done > 20, "{failed} failed, {done} done");
}
