//! Files of an engine in worlds whose links and drives fail: what was said to be written stays as it was
//! written, and what fails says so.
use std::future::pending;
use std::time::Duration;

use lunette_runtime::sim::{DiskOptions, ProcessId, World};
use lunette_runtime::time;
use lunette_transfer::engine::{
    Batch, Cause, Engine, FileSegment, FileSegmentOptions, Peer, PostOptions, Refusal,
    RegisterOptions, RemoteSegment, TransferError,
};

use super::rails::{HERE, Processes, RAILS, addresses, finish, world};
use crate::scene::{KIB, full_of, guarded};

const LEN: usize = 128 * KIB;

/// A world whose server has a file on its drive.
fn serving(seed: u64, disk: DiskOptions) -> (World, ProcessId) {
    let (mut world, Processes { client, .. }) = world(seed, |engine| async move {
        let whole = FileSegmentOptions {
            write: true,
            len_bytes: Some(LEN as u64),
            ..FileSegmentOptions::default()
        };
        let file = FileSegment::open("/segment", whole).await.expect("opened");
        let registered = engine.register_file(file, &RegisterOptions::named("file"));
        registered.expect("registered");
        pending::<()>().await;
    });
    world.set_drives(disk);
    (world, client)
}

async fn open() -> (Engine, Peer, RemoteSegment) {
    let engine = Engine::start(guarded()).expect("an engine");
    let peer = engine.open(&addresses()).await.expect("a peer");
    let remote = peer.segment("file").await.expect("a segment");
    (engine, peer, remote)
}

async fn write(peer: &Peer, remote: &RemoteSegment, byte: u8) -> Result<u64, TransferError> {
    let mut batch = Batch::new();
    let source = full_of(byte, LEN);
    batch.write(source, remote, 0).expect("a write");
    let posted = peer.post(&batch, PostOptions::default()).expect("posted");
    posted.await.map(|done| done.resent)
}

async fn read(peer: &Peer, remote: &RemoteSegment) -> Result<Vec<u8>, TransferError> {
    let target = full_of(0, LEN);
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
        let (mut world, client) = serving(seed, slow);
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
        let (wrong, again) = finish(&mut world, 120, &writing);
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
        let (mut world, client) = serving(seed, failing);
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
        let (more_failed, more_done) = finish(&mut world, 120, &trying);
        failed += more_failed;
        done += more_done;
    }
    assert!(failed > 20 && done > 20, "{failed} failed, {done} done");
}
