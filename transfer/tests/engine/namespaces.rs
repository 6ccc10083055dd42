//! Namespaces of NVMe controllers as segments, over loopback: what is read is what was written, straight and for
//! peers; what is no whole block, read only or gone is an honest failure.

use std::time::Duration;

use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{Disk, MemoryDisk};
use lunette_runtime::arena;
use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::{
    Access, Batch, Cause, Effect, Engine, Kind, NamespaceSegment, NamespaceSegmentError, Peer,
    PostOptions, Refusal, RegisterOptions, RegisterRefusal, RemoteSegment, RequestFailure,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::disks::{BLOCK, export, namespace, serve, serve_at};
use super::on_each_driver::run;
use super::scene::{KIB, MIB, engine, memory, pattern, patterned, post, read, write};

/// An engine with a namespace, which asks itself.
async fn own(len: usize) -> (Engine, Peer, RemoteSegment) {
    let engine = engine();
    let segment = NamespaceSegment::connect(namespace(serve(len))).await;
    let segment = segment.expect("connected");
    assert_eq!(segment.len_bytes(), len as u64);
    let registered = engine.register_namespace(segment, &RegisterOptions::named("disk"));
    registered.expect("registered");
    let (peer, remote) = open(&engine, &engine).await;
    (engine, peer, remote)
}

async fn open(here: &Engine, there: &Engine) -> (Peer, RemoteSegment) {
    let peer = here.open(there.addresses()).await.expect("open");
    let remote = peer.segment("disk").await.expect("a segment");
    assert_eq!(remote.kind(), Kind::Namespace);
    (peer, remote)
}

/// The one failure of a batch of one request.
async fn failure(peer: &Peer, batch: &Batch) -> RequestFailure {
    let error = post(peer, batch).await.expect_err("it cannot be done");
    assert_eq!(error.failures.len(), 1, "{error}");
    error.failures[0]
}

#[test]
fn an_engine_moves_bytes_between_its_namespaces_and_memory() {
    run(0, || async {
        for data in [false, true] {
            let engine = engine();
            let mut options = namespace(serve(8 * MIB));
            options.namespace.config.digests = Digests { header: data, data };
            let segment = NamespaceSegment::connect(options).await.expect("connected");
            let id = engine
                .register_namespace(segment, &RegisterOptions::named("disk"))
                .expect("registered");
            let (peer, remote) = open(&engine, &engine).await;
            assert!(peer.is_self());
            // From exposed memory, and from a region; in one command and in many.
            let mut region = arena().alloc(4 * KIB).expect("room");
            region.as_mut_slice().copy_from_slice(&pattern(4 * KIB, 9));
            let mut batch = Batch::new();
            let source = patterned(5 * MIB, 3);
            batch.write(source, &remote, 512).expect("a write");
            batch
                .write(region.freeze(), &remote, 6 << 20)
                .expect("a write");
            post(&peer, &batch).await.expect("written");
            for (at, len) in [(0, 512), (512, 512), (1024, 3 * MIB + 512), (0, 0)] {
                let target = memory(len.max(1)).slice(0, len);
                read(&peer, &remote, target.clone(), at as u64)
                    .await
                    .expect("read");
                let mut expected = vec![0; 512];
                expected.extend(pattern(5 * MIB, 3));
                assert_eq!(target.to_vec(), expected[at..at + len], "{at}+{len}");
            }
            let target = memory(4 * KIB);
            read(&peer, &remote, target.clone(), 6 << 20)
                .await
                .expect("read");
            assert_eq!(target.to_vec(), pattern(4 * KIB, 9));
            let statistics = engine.statistics();
            let moved = statistics.read_bytes + statistics.written_bytes;
            assert_eq!(statistics.namespace_bytes, moved);
            assert_eq!(statistics.slices, 0, "nothing went over rails");
            let back = engine.unregister_namespace(id).await.expect("a namespace");
            back.sync().await.expect("flushed");
            let gone = failure(&peer, &batch_of(&remote, 512, 0)).await;
            assert_eq!(gone.cause, Cause::Refused(Refusal::Stale));
        }
    });
}

fn batch_of(remote: &RemoteSegment, len: usize, at: u64) -> Batch {
    let mut batch = Batch::new();
    batch.read(memory(len), remote, at).expect("a read");
    batch
}

#[test]
fn peers_reach_a_namespace_by_its_engine() {
    run(0, || async {
        let (there, ..) = own(16 * MIB).await;
        let here = engine();
        let (peer, remote) = open(&here, &there).await;
        // Requests of odd numbers of blocks, which are cut and travel together.
        let mut batch = Batch::new();
        let (mut at, mut expected) = (0, Vec::new());
        for blocks in [1, 3, 2049, 7, 5001, 129] {
            let bytes = patterned(blocks * BLOCK, 1);
            batch.write(bytes, &remote, at as u64).expect("a write");
            expected.extend(pattern(blocks * BLOCK, 1));
            at += blocks * BLOCK;
        }
        for _ in 0..4 {
            post(&peer, &batch).await.expect("written");
            let target = memory(at);
            read(&peer, &remote, target.clone(), 0).await.expect("read");
            assert!(target.to_vec() == expected);
        }
        let (ours, theirs) = (here.statistics(), there.statistics());
        assert_eq!((ours.namespace_bytes, ours.same_host_bytes), (0, 0));
        assert_eq!(theirs.served_read_bytes, ours.read_bytes);
    });
}

#[test]
fn what_is_no_whole_block_is_refused_and_nothing_is_touched() {
    run(0, || async {
        let (there, own_peer, own_remote) = own(MIB).await;
        let here = engine();
        let (peer, remote) = open(&here, &there).await;
        for (peer, remote) in [(&own_peer, &own_remote), (&peer, &remote)] {
            for (at, len) in [(1, 512), (0, 511), (511, 1), (512, 513)] {
                let found = failure(peer, &batch_of(remote, len, at)).await;
                let unaligned = Cause::Refused(Refusal::Unaligned);
                assert_eq!(found.cause, unaligned, "{at}+{len}");
                assert!(!found.cause.is_retryable());
                let mut batch = Batch::new();
                let source = patterned(len, 1);
                batch.write(source, remote, at).expect("a write");
                let found = failure(peer, &batch).await;
                assert_eq!(found.cause, unaligned, "{at}+{len}");
                if peer.is_self() {
                    assert_eq!(found.effect, Effect::Untouched);
                }
            }
            let target = memory(4 * KIB);
            read(peer, remote, target.clone(), 0).await.expect("read");
            assert_eq!(target.to_vec(), vec![0; 4 * KIB]);
        }
    });
}

#[test]
fn what_cannot_be_opened_or_written_says_so() {
    run(0, || async {
        let any = "127.0.0.1:0".parse().expect("an address");
        let disk = || Disk::Memory(MemoryDisk::new(MIB as u64).expect("room"));
        // Blocks that are longer than what requests are cut at.
        let long = namespace(serve_at(any, export(disk(), 8192, false)));
        let error = NamespaceSegment::connect(long).await.expect_err("too long");
        let NamespaceSegmentError::BlockLength { block_bytes } = error else {
            unreachable!("{error}");
        };
        assert_eq!(block_bytes, 8192);
        // No such namespace; nobody there.
        let mut missing = namespace(serve(MIB));
        missing.namespace.nsid = 9;
        let error = NamespaceSegment::connect(missing).await.expect_err("none");
        assert!(!error.is_retryable(), "{error}");
        let nobody = namespace("127.0.0.1:1".parse().expect("an address"));
        let error = NamespaceSegment::connect(nobody).await.expect_err("nobody");
        assert!(error.is_retryable(), "{error}");
        // A disk that cannot be written, and a segment that may not be.
        let engine = engine();
        let options = namespace(serve_at(any, export(disk(), 512, true)));
        let segment = NamespaceSegment::connect(options).await.expect("connected");
        let named = RegisterOptions::named("disk");
        let kept = segment.clone();
        engine
            .register_namespace(segment, &named)
            .expect("registered");
        let error = engine.register_namespace(kept.clone(), &named);
        let error = error.expect_err("the name is taken");
        assert!(matches!(error.refusal, RegisterRefusal::NameTaken { .. }));
        let read_only = RegisterOptions {
            access: Access::Read,
            ..RegisterOptions::named("read-only")
        };
        engine
            .register_namespace(error.namespace, &read_only)
            .expect("registered");
        let (peer, remote) = open(&engine, &engine).await;
        let mut batch = Batch::new();
        batch.write(patterned(512, 1), &remote, 0).expect("a write");
        let found = failure(&peer, &batch).await;
        assert_eq!(found.cause, Cause::Refused(Refusal::Storage));
        let remote = peer.segment("read-only").await.expect("a segment");
        let refused = Batch::new().write(patterned(512, 1), &remote, 0);
        refused.expect_err("it may not be written");
    });
}

#[test]
fn a_deadline_or_a_cancel_ends_a_transfer_and_says_what_it_left() {
    run(0, || async {
        let (engine, peer, remote) = own(64 * MIB).await;
        let mut batch = Batch::new();
        batch
            .write(patterned(64 * MIB, 1), &remote, 0)
            .expect("a write");
        let options = PostOptions {
            timeout: Duration::from_micros(1),
            ..PostOptions::default()
        };
        let late = peer.post(&batch, options).expect("posted").await;
        let error = late.expect_err("it is late");
        assert_eq!(error.failures[0].cause, Cause::DeadlineExceeded);
        assert!(error.is_retryable());
        let transfer = peer.post(&batch, PostOptions::default()).expect("posted");
        transfer.cancel();
        let error = transfer.await.expect_err("cancelled");
        assert_eq!(error.failures[0].cause, Cause::Cancelled);
        // The engine goes on.
        write(&peer, &remote, patterned(MIB, 4), 0)
            .await
            .expect("written");
        let target = memory(MIB);
        read(&peer, &remote, target.clone(), 0).await.expect("read");
        assert!(target.to_vec() == pattern(MIB, 4));
        drop(engine);
    });
}

/// A request of a random batch, in blocks.
#[derive(Clone, Debug)]
struct Step {
    is_write: bool,
    first: usize,
    count: usize,
    seed: u8,
}

const BLOCKS: usize = 512;

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = (any::<bool>(), 0..BLOCKS, 1..64_usize, 0..250_u8);
    let step = step.prop_map(|(is_write, first, count, seed)| Step {
        is_write,
        first,
        count: count.min(BLOCKS - first),
        seed,
    });
    vec(vec(step, 1..6), 1..8)
}

/// Requests of one batch have no order: those that meet a write are left out.
fn without_races(batch: Vec<Step>) -> Vec<Step> {
    let mut kept: Vec<Step> = Vec::new();
    for step in batch {
        let meets = |other: &Step| {
            (step.is_write || other.is_write)
                && step.first < other.first + other.count
                && other.first < step.first + step.count
        };
        if !kept.iter().any(meets) {
            kept.push(step);
        }
    }
    kept
}

async fn against_model(
    peer: &Peer,
    remote: &RemoteSegment,
    model: &mut [u8],
    batches: Vec<Vec<Step>>,
) {
    for steps in batches {
        let steps = without_races(steps);
        let mut batch = Batch::new();
        let mut reads: Vec<(Step, Exposed)> = Vec::new();
        for step in &steps {
            let (at, len) = (step.first * BLOCK, step.count * BLOCK);
            if step.is_write {
                let source = patterned(len, step.seed);
                batch.write(source, remote, at as u64).expect("a write");
                model[at..at + len].copy_from_slice(&pattern(len, step.seed));
            } else {
                let target = memory(len);
                batch
                    .read(target.clone(), remote, at as u64)
                    .expect("a read");
                reads.push((step.clone(), target));
            }
        }
        post(peer, &batch).await.expect("done");
        for (step, target) in reads {
            let at = step.first * BLOCK;
            assert!(
                target.to_vec() == model[at..at + step.count * BLOCK],
                "{step:?}"
            );
        }
    }
}

#[test]
fn any_batches_leave_what_a_model_disk_has() {
    let mut runner = TestRunner::new(Config {
        cases: 24,
        failure_persistence: None,
        ..Config::default()
    });
    let ran = runner.run(&steps(), |batches| {
        run(0, || as_the_model(batches.clone()));
        Ok(())
    });
    ran.expect("as the model");
}

async fn as_the_model(batches: Vec<Vec<Step>>) {
    let (there, own_peer, own_remote) = own(BLOCKS * BLOCK).await;
    let here = engine();
    let (peer, remote) = open(&here, &there).await;
    let mut model = vec![0; BLOCKS * BLOCK];
    against_model(&own_peer, &own_remote, &mut model, batches.clone()).await;
    against_model(&peer, &remote, &mut model, batches).await;
    let target = memory(model.len());
    read(&peer, &remote, target.clone(), 0).await.expect("read");
    assert!(target.to_vec() == model);
}
