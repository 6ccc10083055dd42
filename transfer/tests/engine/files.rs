//! Files as segments: what peers and the engine itself read is what is in the file, what they write is there
//! when it is said to be, and what the system cannot do is an honest failure.

use std::fs;
use std::path::{Path, PathBuf};

use lunette_runtime::arena;
use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::{
    Access, Batch, Cause, Effect, Engine, EngineOptions, FileSegment, FileSegmentError,
    FileSegmentOptions, Kind, Peer, PostOptions, Refusal, RegisterOptions, RemoteSegment, Rights,
    SegmentId,
};
use tempfile::TempDir;

use super::on_each_driver::run;
use super::scene::{KIB, MIB, memory, options, pattern, post, read};

const WRITABLE: FileSegmentOptions = FileSegmentOptions {
    write: true,
    direct: false,
    offset_bytes: 0,
    len_bytes: None,
};

fn engine(file_bytes_max: usize) -> Engine {
    Engine::start(EngineOptions {
        file_bytes_max,
        ..options()
    })
    .expect("an engine")
}

/// A file of that content. Around the page cache only where the folder's file system has that.
fn file(folder: &TempDir, content: &[u8]) -> PathBuf {
    let path = folder.path().join("segment");
    fs::write(&path, content).expect("written");
    path
}

/// A folder on a file system with direct access: the target's, since `/tmp` may be memory.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

async fn open(path: &Path, options: FileSegmentOptions) -> FileSegment {
    FileSegment::open(path, options).await.expect("opened")
}

/// An engine that has a file, and one that has opened it.
struct Pair {
    here: Engine,
    there: Engine,
    peer: Peer,
    remote: RemoteSegment,
    id: SegmentId,
}

impl Pair {
    async fn new(segment: FileSegment) -> Self {
        Self::of(engine(64 * MIB), segment).await
    }

    async fn of(there: Engine, segment: FileSegment) -> Self {
        let here = engine(64 * MIB);
        let registered = there.register_file(segment, &RegisterOptions::named("file"));
        let id = registered.expect("registered");
        let peer = here.open(there.addresses()).await.expect("open");
        let remote = peer.segment("file").await.expect("a segment");
        Self {
            here,
            there,
            peer,
            remote,
            id,
        }
    }
}

async fn bytes(peer: &Peer, remote: &RemoteSegment, at: u64, len: usize) -> Vec<u8> {
    let target = memory(len.max(1)).slice(0, len);
    read(peer, remote, target.clone(), at).await.expect("done");
    target.to_vec()
}

fn source(bytes: &[u8]) -> Exposed {
    let memory = memory(bytes.len());
    memory.copy_in(0, bytes);
    memory
}

#[test]
fn peers_read_and_write_a_file_with_and_without_the_page_cache() {
    run(0, || async {
        for direct in [false, true] {
            let folder = folder();
            let path = file(&folder, &pattern(6 * MIB, 1));
            let options = FileSegmentOptions { direct, ..WRITABLE };
            let pair = Pair::new(open(&path, options).await).await;
            assert_eq!(
                (pair.remote.kind(), pair.remote.len_bytes()),
                (Kind::File, 6 << 20)
            );
            // Aligned and not, in one frame and in many, and nothing.
            for (at, len) in [(0, 0), (0, 4 * KIB), (1, 1), (4095, 70_001), (0, 6 * MIB)] {
                let found = bytes(&pair.peer, &pair.remote, at as u64, len).await;
                assert_eq!(found, pattern(6 * MIB, 1)[at..at + len], "{at}+{len}");
            }
            let mut expected = pattern(6 * MIB, 1);
            for (at, len, seed) in [(8192, 2 * MIB, 5), (3, 7, 6), (4 * MIB, 4 * KIB, 7)] {
                let mut batch = Batch::new();
                let bytes = pattern(len, seed);
                batch
                    .write(source(&bytes), &pair.remote, at as u64)
                    .expect("a write");
                post(&pair.peer, &batch).await.expect("done");
                expected[at..at + len].copy_from_slice(&bytes);
                assert_eq!(fs::read(&path).expect("read"), expected, "{at}+{len}");
            }
            let statistics = pair.here.statistics();
            assert_eq!(statistics.same_host_bytes, 0, "over connections alone");
            assert_eq!(
                pair.there.statistics().served_read_bytes,
                statistics.read_bytes
            );
        }
    });
}

#[test]
fn an_engine_moves_bytes_between_its_files_and_memory() {
    run(0, || async {
        for direct in [false, true] {
            let folder = folder();
            let path = file(&folder, &pattern(5 * MIB, 2));
            let options = FileSegmentOptions { direct, ..WRITABLE };
            let here = engine(64 * MIB);
            let named = RegisterOptions::named("file");
            let registered = here.register_file(open(&path, options).await, &named);
            registered.expect("registered");
            let own = memory(64 * KIB);
            here.register(own.clone(), &RegisterOptions::named("memory"))
                .expect("registered");
            let peer = here.open(here.addresses()).await.expect("open");
            assert!(peer.is_self());
            let remote = peer.segment("file").await.expect("a segment");
            let beside = peer.segment("memory").await.expect("a segment");
            // From a region of the arena, which direct access takes.
            let target = arena().alloc(4 * MIB).expect("room").expose();
            let mut batch = Batch::new();
            batch.read(target.clone(), &remote, 4096).expect("a read");
            batch
                .write(source(&pattern(9, 9)), &remote, 4096 + (4 << 20))
                .expect("a write");
            batch
                .write(source(&pattern(100, 3)), &beside, 0)
                .expect("a write");
            let options = PostOptions {
                notification: Some(b"all of it".to_vec()),
                ..PostOptions::default()
            };
            let transfer = peer.post(&batch, options).expect("posted");
            assert_eq!(here.notified().await.bytes, b"all of it");
            transfer.await.expect("done");
            assert_eq!(target.to_vec(), pattern(5 * MIB, 2)[4096..4096 + 4 * MIB]);
            let start = 4096 + 4 * MIB;
            let written = fs::read(&path).expect("read");
            assert_eq!(written[start..start + 9], pattern(9, 9));
            assert_eq!(own.slice(0, 100).to_vec(), pattern(100, 3));
            assert_eq!(here.statistics().read_bytes, 4 << 20);
        }
    });
}

#[test]
fn a_batch_of_many_pieces_and_of_both_kinds_is_one_batch() {
    run(0, || async {
        const PIECES: usize = 700;
        let folder = folder();
        let path = file(&folder, &pattern(PIECES * 100, 4));
        let pair = Pair::new(open(&path, WRITABLE).await).await;
        let shown = memory(PIECES * 100);
        shown.copy_in(0, &pattern(PIECES * 100, 8));
        let registered = pair
            .there
            .register(shown, &RegisterOptions::named("memory"));
        registered.expect("registered");
        let beside = pair.peer.segment("memory").await.expect("a segment");
        let target = memory(PIECES * 100);
        let mut batch = Batch::new();
        for index in 0..PIECES {
            let from = if index % 2 == 0 {
                &pair.remote
            } else {
                &beside
            };
            let (start, to) = (index * 100, PIECES - 1 - index);
            batch
                .read(target.slice(to * 100, 100), from, start as u64)
                .expect("a read");
        }
        post(&pair.peer, &batch).await.expect("done");
        for index in 0..PIECES {
            let seed = if index % 2 == 0 { 4 } else { 8 };
            let expected = &pattern(PIECES * 100, seed)[index * 100..][..100];
            let found = target.slice((PIECES - 1 - index) * 100, 100);
            assert_eq!(found.to_vec(), expected, "{index}");
        }
    });
}

#[test]
fn little_memory_for_staging_makes_transfers_wait_and_not_fail() {
    run(0, || async {
        const LEN: usize = 3 * MIB;
        let folder = folder();
        let path = file(&folder, &vec![0; 8 * LEN]);
        // Less than one frame of the writes.
        let there = engine(64 * KIB);
        let pair = Pair::of(there, open(&path, WRITABLE).await).await;
        let mut transfers = Vec::new();
        let targets: Vec<_> = (0..8).map(|_| memory(LEN)).collect();
        let mut writes = Batch::new();
        writes
            .write(source(&pattern(LEN, 1)), &pair.remote, 0)
            .expect("a write");
        post(&pair.peer, &writes).await.expect("done");
        for target in &targets {
            let mut batch = Batch::new();
            batch.read(target.clone(), &pair.remote, 0).expect("a read");
            let posted = pair.peer.post(&batch, PostOptions::default());
            transfers.push(posted.expect("posted"));
        }
        for transfer in transfers {
            transfer.await.expect("done");
        }
        for target in targets {
            assert_eq!(target.to_vec(), pattern(LEN, 1));
        }
    });
}

#[test]
fn what_the_system_cannot_read_fails_alone_and_says_so() {
    run(0, || async {
        let folder = folder();
        let path = file(&folder, &pattern(MIB, 1));
        let pair = Pair::new(open(&path, WRITABLE).await).await;
        // Somebody cuts the file.
        let cut = fs::File::options().write(true).open(&path).expect("opened");
        cut.set_len(4096).expect("cut");
        for is_own in [false, true] {
            let (engine, peer) = if is_own {
                let peer = pair.there.open(pair.there.addresses()).await;
                (&pair.there, peer.expect("open"))
            } else {
                (&pair.here, pair.peer.clone())
            };
            let remote = peer.segment("file").await.expect("a segment");
            let (lost, kept) = (memory(KIB), memory(KIB));
            let mut batch = Batch::new();
            batch.read(lost, &remote, 512 << 10).expect("a read");
            batch.read(kept.clone(), &remote, 1024).expect("a read");
            let error = post(&peer, &batch).await.expect_err("it is not there");
            assert_eq!(error.failures.len(), 1, "{error}");
            let failure = &error.failures[0];
            assert_eq!(failure.request, Some(0));
            assert_eq!(failure.cause, Cause::Refused(Refusal::Storage));
            assert_eq!(failure.effect, Effect::Partly);
            assert!(!error.is_retryable());
            assert_eq!(kept.to_vec(), pattern(MIB, 1)[1024..2048]);
            assert_eq!(engine.statistics().transfers_failed, 1);
        }
    });
}

#[test]
fn an_unregistered_file_is_whole_and_out_of_reach() {
    run(0, || async {
        let folder = folder();
        let path = file(&folder, &pattern(MIB, 1));
        let pair = Pair::new(open(&path, WRITABLE).await).await;
        assert!(pair.there.unregister(pair.id).await.is_none(), "no memory");
        assert!(pair.there.memory(pair.id, 0, 1).is_none());
        let mut batch = Batch::new();
        batch
            .write(source(&pattern(MIB, 6)), &pair.remote, 0)
            .expect("a write");
        post(&pair.peer, &batch).await.expect("done");
        let given_back = pair.there.unregister_file(pair.id).await;
        let given_back = given_back.expect("it was registered");
        given_back.sync().await.expect("durable");
        assert_eq!(fs::read(&path).expect("read"), pattern(MIB, 6));
        let error = post(&pair.peer, &batch).await.expect_err("gone");
        assert_eq!(error.failures[0].cause, Cause::Refused(Refusal::Stale));
        assert!(pair.there.unregister_file(pair.id).await.is_none());
        let own = pair.there.register(memory(1), &RegisterOptions::named("m"));
        let own = own.expect("registered");
        assert!(pair.there.unregister_file(own).await.is_none(), "no file");
        assert!(pair.there.unregister(own).await.is_some());
    });
}

#[test]
fn rights_and_capabilities_hold_for_files_too() {
    run(0, || async {
        let folder = folder();
        let path = file(&folder, &pattern(MIB, 1));
        let segment = open(&path, WRITABLE).await;
        let pair = Pair::new(segment.clone()).await;
        let only_read = RegisterOptions {
            access: Access::Read,
            ..RegisterOptions::named("read")
        };
        let registered = pair.there.register_file(segment.clone(), &only_read);
        registered.expect("registered");
        let remote = pair.peer.segment("read").await.expect("a segment");
        assert!(Batch::new().write(memory(1), &remote, 0).is_err());
        let held = RegisterOptions {
            by_capability: true,
            ..RegisterOptions::named("held")
        };
        let held = pair.there.register_file(segment.clone(), &held);
        let held = held.expect("registered");
        let epoch = pair.here.epoch();
        let token = pair.there.grant(held, epoch, Rights::READ, 4096..8192);
        let granted = pair.peer.redeem(&token.expect("granted")).await;
        let granted = granted.expect("redeemed");
        assert_eq!(granted.kind(), Kind::File);
        let found = bytes(&pair.peer, &granted, 5000, 100).await;
        assert_eq!(found, pattern(MIB, 1)[5000..5100]);
        let mut batch = Batch::new();
        batch.read(memory(1), &granted, 0).expect("a read");
        let error = post(&pair.peer, &batch).await.expect_err("not granted");
        let cause = error.failures[0].cause;
        assert!(matches!(cause, Cause::Refused(_)), "{cause:?}");
        let again = pair
            .there
            .register_file(segment, &RegisterOptions::named("file"));
        let error = again.expect_err("the name is taken");
        assert_eq!(error.file.len_bytes(), 1 << 20, "and the file comes back");
    });
}

#[test]
fn a_segment_is_a_range_that_lies_in_its_file() {
    run(0, || async {
        let folder = folder();
        let path = file(&folder, &pattern(1000, 1));
        let read_only = FileSegmentOptions::default();
        let range = |offset_bytes, len_bytes| FileSegmentOptions {
            offset_bytes,
            len_bytes,
            ..read_only
        };
        assert_eq!(open(&path, range(900, None)).await.len_bytes(), 100);
        assert_eq!(open(&path, range(0, Some(1000))).await.len_bytes(), 1000);
        for (offset_bytes, len_bytes) in [(1, 1000), (u64::MAX, 2), (1001, 1)] {
            let refused = FileSegment::open(&path, range(offset_bytes, Some(len_bytes))).await;
            let error = refused.expect_err("it does not lie inside");
            assert!(
                matches!(
                    error,
                    FileSegmentError::OutOfRange {
                        file_bytes: 1000,
                        ..
                    }
                ),
                "{error}"
            );
        }
        let nowhere = FileSegment::open(folder.path().join("no"), read_only).await;
        assert!(matches!(nowhere, Err(FileSegmentError::File(_))));
        let longer = FileSegmentOptions {
            write: true,
            ..range(500, Some(2000))
        };
        let segment = open(&path, longer).await;
        assert_eq!(fs::metadata(&path).expect("there").len(), 2500);
        // The offset is the file's, not the segment's.
        let pair = Pair::new(segment).await;
        let found = bytes(&pair.peer, &pair.remote, 0, 600).await;
        assert_eq!(found[..500], pattern(1000, 1)[500..]);
        assert_eq!(found[500..], [0; 100]);
        let none = open(&path, range(2500, None)).await;
        let refused = pair
            .there
            .register_file(none, &RegisterOptions::named("none"));
        assert!(refused.is_err(), "no bytes, no segment");
    });
}
