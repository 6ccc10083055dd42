//! Bytes go where they belong, and nowhere else.

use std::fs;
use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions};
use lunette_gpu::{Device, StreamOptions};
use lunette_runtime::{arena, spawn_local, time};
use lunette_transfer::engine::{
    Batch, DeviceSegment, Engine, EngineOptions, FileSegment, FileSegmentOptions, PostError,
    PostOptions, RegisterOptions, SchedulerOptions,
};

use super::{Gpu, PATHS, Pair, Path, done, read, write};
use crate::on_each_driver::run;
use crate::scene::{KIB, MIB, guarded, memory, options, pattern};
use crate::worlds::rails::{addresses, finish, world};

const WORLDS: u64 = 1;
/// Around a piece's length, and no multiple of anything.
const LENGTHS: [usize; 5] = [1, 4095, MIB, MIB + 1, 3 * MIB + 7];
/// Where they begin there, and in the device's memory here.
const AT: usize = 7;
const HERE: usize = 13;

/// Writes from a device to `remote` and reads it back into another place, for each length.
async fn there_and_back(pair: &Pair, name: &str) {
    let remote = pair.peer.segment(name).await.expect("a segment");
    for (seed, len) in (1..).zip(LENGTHS) {
        let bytes = pattern(len + 2 * HERE, seed);
        let from = pair.near.full_of(&bytes).await;
        let inner = HERE as u64..(HERE + len) as u64;
        done(&pair.peer, &write(&from.slice(inner.clone()), &remote, AT)).await;
        let to = pair.near.full_of(&vec![0xee; len + 2 * HERE]).await;
        done(&pair.peer, &read(&to.slice(inner), &remote, AT)).await;
        let found = pair.near.bytes_of(&to).await;
        let beside = [0xee; HERE];
        assert!(found[HERE..HERE + len] == bytes[HERE..HERE + len], "{len}");
        assert_eq!(
            (&found[..HERE], &found[HERE + len..]),
            (&beside[..], &beside[..])
        );
        assert_eq!(pair.near.bytes_of(&from).await, bytes, "it stays as it was");
    }
}

#[test]
fn between_a_device_here_and_memory_there() {
    run(WORLDS, || async {
        const LEN: usize = 4 * MIB;
        for path in PATHS {
            let pair = Pair::new(path).await;
            let mapped = memory(LEN);
            let piece = arena().alloc(LEN).expect("room").expose();
            for (name, there) in [("mapped", mapped), ("piece", piece)] {
                there.copy_in(0, &[0xdd; LEN]);
                let registered = pair
                    .there
                    .register(there.clone(), &RegisterOptions::named(name));
                registered.expect("registered");
                there_and_back(&pair, name).await;
                let found = there.to_vec();
                assert!(found[..AT] == [0xdd; AT]);
                let end = AT + LENGTHS[4];
                assert!(found[AT..end] == pattern(LEN, 5)[HERE..HERE + LENGTHS[4]]);
                assert!(found[end..].iter().all(|&byte| byte == 0xdd), "{path:?}");
            }
            let sum: usize = LENGTHS.iter().sum();
            let statistics = pair.here.statistics();
            assert_eq!(statistics.read_bytes, 2 * sum as u64, "{path:?}");
            assert_eq!(statistics.written_bytes, 2 * sum as u64, "{path:?}");
            let count = 4 * LENGTHS.len() as u64;
            assert_eq!(statistics.transfers_done, count, "pieces are no transfers");
            assert_eq!(pair.machine.counts().unpinned, 0, "{path:?}");
        }
    });
}

#[test]
fn between_devices_of_two_engines_and_of_one() {
    run(WORLDS, || async {
        const LEN: usize = 4 * MIB;
        for path in PATHS {
            let pair = Pair::new(path).await;
            let far = pair.far.full_of(&pattern(LEN, 9)).await;
            pair.register("far", &far).await;
            there_and_back(&pair, "far").await;
            let found = pair.far.bytes_of(&far).await;
            let end = AT + LENGTHS[4];
            assert!(found[..AT] == pattern(LEN, 9)[..AT]);
            assert!(found[AT..end] == pattern(LEN, 5)[HERE..HERE + LENGTHS[4]]);
            assert!(found[end..] == pattern(LEN, 9)[end..]);
            // Of the same opening of the same device: nothing is staged.
            let beside = pair.near.full_of(&pattern(LEN, 8)).await;
            pair.register("beside", &beside).await;
            let before = pair.machine.counts().copies;
            let to = pair.near.full_of(&vec![0; MIB]).await;
            let remote = pair.peer.segment("beside").await.expect("a segment");
            done(&pair.peer, &read(&to, &remote, 100)).await;
            let copies = pair.machine.counts().copies - before;
            assert!(
                path != Path::Own || copies == 2,
                "filled, and copied once: {copies}"
            );
            assert!(pair.near.bytes_of(&to).await == pattern(LEN, 8)[100..100 + MIB]);
        }
    });
}

#[test]
fn between_a_device_and_a_file() {
    run(0, || async {
        for path in PATHS {
            let pair = Pair::new(path).await;
            let folder = tempfile::tempdir().expect("a folder");
            let name = folder.path().join("ssd");
            fs::write(&name, pattern(4 * MIB, 2)).expect("a file");
            let writable = FileSegmentOptions {
                write: true,
                ..FileSegmentOptions::default()
            };
            let file = FileSegment::open(&name, writable).await.expect("opened");
            let registered = pair
                .there
                .register_file(file, &RegisterOptions::named("ssd"));
            registered.expect("registered");
            there_and_back(&pair, "ssd").await;
            let end = AT + LENGTHS[4];
            let found = fs::read(&name).expect("read");
            assert!(found[AT..end] == pattern(4 * MIB, 5)[HERE..HERE + LENGTHS[4]]);
            assert!(found[end..] == pattern(4 * MIB, 2)[end..]);
        }
    });
}

#[test]
fn many_pages_of_both_kinds_are_one_batch_and_its_notification_comes_last() {
    run(WORLDS, || async {
        const PAGES: usize = 700;
        const PAGE: usize = 600;
        for path in PATHS {
            let pair = Pair::new(path).await;
            let far = pair.far.full_of(&vec![0; PAGES * PAGE]).await;
            let remote = pair.register("far", &far).await;
            let bytes = pattern(PAGES * PAGE, 3);
            let from = pair.near.full_of(&bytes).await;
            let host = memory(PAGES * PAGE);
            host.copy_in(0, &bytes);
            let mut batch = Batch::new();
            for page in 0..PAGES {
                let at = page * PAGE;
                let to = (PAGES * PAGE - at - PAGE) as u64;
                let added = if page % 3 == 0 {
                    batch.write(host.slice(at, PAGE), &remote, to)
                } else {
                    let page = from.slice(at as u64..(at + PAGE) as u64);
                    batch.write_device(&page, &remote, to)
                };
                added.expect("a write");
            }
            let options = PostOptions {
                notification: Some(b"all of it".to_vec()),
                ..PostOptions::default()
            };
            let transfer = pair.peer.post(&batch, options).expect("posted");
            assert_eq!(pair.there.notified().await.bytes, b"all of it");
            let found = pair.far.bytes_of(&far).await;
            let done = transfer.await.expect("done");
            assert_eq!(done.len_bytes, (PAGES * PAGE) as u64);
            assert!(done.slices < 20, "pages travel together: {done:?}");
            for page in 0..PAGES {
                let at = page * PAGE;
                let back = PAGES * PAGE - at - PAGE;
                assert_eq!(found[back..back + PAGE], bytes[at..at + PAGE], "{page}");
            }
            // Into memory of both kinds.
            let (to, beside) = (pair.near.full_of(&[0; PAGE]).await, memory(PAGE));
            let mut batch = read(&to, &remote, 0);
            batch.read(beside.clone(), &remote, 50).expect("a read");
            batch
                .read(memory(1).slice(0, 0), &remote, 0)
                .expect("nothing");
            super::done(&pair.peer, &batch).await;
            assert_eq!(pair.near.bytes_of(&to).await, found[..PAGE]);
            assert_eq!(beside.to_vec(), found[50..50 + PAGE]);
        }
    });
}

#[test]
fn little_room_and_narrow_streams_make_transfers_wait_and_not_fail() {
    run(WORLDS, || async {
        const LEN: usize = 2 * MIB + 5;
        for path in PATHS {
            let little = EngineOptions {
                // Less than a piece.
                device_bytes_max: 64 * KIB,
                ..options()
            };
            let pair = Pair::with(path, FakeOptions::default(), little).await;
            let narrow = StreamOptions {
                depth: 1,
                ..StreamOptions::default()
            };
            let index = pair.machine.add_device(FakeOptions::default());
            let near = Gpu::with(Device::fake(&pair.machine, index).expect("added"), narrow);
            let far = pair.far.full_of(&pattern(LEN, 1)).await;
            let remote = pair.register("far", &far).await;
            let targets: Vec<DeviceSegment> = {
                let mut targets = Vec::new();
                for _ in 0..6 {
                    targets.push(near.full_of(&[0; LEN]).await);
                }
                targets
            };
            let used = arena().used_bytes();
            let transfers: Vec<_> = targets
                .iter()
                .map(|to| {
                    pair.peer
                        .post(&read(to, &remote, 0), PostOptions::default())
                })
                .collect();
            for transfer in transfers {
                transfer.expect("posted").await.expect("done");
            }
            for to in &targets {
                assert!(near.bytes_of(to).await == pattern(LEN, 1));
            }
            assert_eq!(arena().used_bytes(), used, "{path:?}");
        }
    });
}

#[test]
fn no_more_are_carried_than_may_be_posted() {
    run(WORLDS, || async {
        let few = EngineOptions {
            scheduler: SchedulerOptions {
                transfers_max: 2,
                ..SchedulerOptions::default()
            },
            ..options()
        };
        let pair = Pair::with(Path::Tcp, FakeOptions::default(), few).await;
        let far = pair.far.full_of(&pattern(3 * MIB, 1)).await;
        let remote = pair.register("far", &far).await;
        let to = pair.near.full_of(&vec![0; 3 * MIB]).await;
        let batch = read(&to, &remote, 0);
        let post = || pair.peer.post(&batch, PostOptions::default());
        let both = (post().expect("one"), post().expect("two"));
        let error = post().expect_err("a third");
        assert!(matches!(error, PostError::Full(_)) && error.is_backpressure());
        both.0.await.expect("done");
        post().expect("there is room again").await.expect("done");
        both.1.await.expect("done");
        assert!(pair.near.bytes_of(&to).await == pattern(3 * MIB, 1));
    });
}

/// How long it takes to move 16 MiB between devices of two hosts, over one rail of 50 MB/s.
fn took(is_read: bool) -> Duration {
    // A copy of a piece takes about as long as the wire has it.
    let slow = || FakeOptions {
        latency: (Duration::from_micros(10), Duration::from_micros(20)),
        bytes_per_second: 60_000_000,
        ..FakeOptions::default()
    };
    const LEN: usize = 16 * MIB;
    let (mut world, processes) = world(3, move |engine| async move {
        let machine = FakeMachine::new(1);
        let far = Gpu::open(&machine, machine.add_device(slow()));
        let far = far.full_of(&pattern(LEN, 1)).await;
        let registered = engine.register_device(far, &RegisterOptions::named("far"));
        registered.expect("registered");
        std::future::pending::<()>().await;
    });
    world.run_for(Duration::from_secs(2));
    let moved = world.spawn(processes.client, 0, move || async move {
        let engine = Engine::start(guarded()).expect("an engine");
        let machine = FakeMachine::new(2);
        let near = Gpu::open(&machine, machine.add_device(slow()));
        let near = near.full_of(&pattern(LEN, 1)).await;
        let peer = engine.open(&addresses()[..1]).await.expect("a peer");
        let remote = peer.segment("far").await.expect("a segment");
        let batch = if is_read {
            read(&near, &remote, 0)
        } else {
            write(&near, &remote, 0)
        };
        let posted = peer.post(&batch, PostOptions::default()).expect("posted");
        posted.await.expect("done").took
    });
    finish(&mut world, 60, &moved)
}

#[test]
fn while_one_piece_is_with_the_device_another_is_with_the_peer() {
    // Each of the three takes this long alone: the device here, the wire, the device there.
    let alone = Duration::from_millis(16 * 1024 * 1024 / 50_000);
    for is_read in [true, false] {
        let took = took(is_read);
        assert!(took > alone, "{took:?}");
        assert!(
            took < alone * 3 / 2,
            "one after the other it takes thrice as long: {took:?}"
        );
    }
}

#[test]
fn engines_that_move_to_each_other_wait_for_each_other_and_not_for_ever() {
    run(WORLDS, || async {
        const LEN: usize = 4 * MIB;
        // Both bounds hold one frame.
        let little = EngineOptions {
            device_bytes_max: 64 * KIB,
            file_bytes_max: 64 * KIB,
            ..options()
        };
        let pair = Pair::with(Path::Tcp, FakeOptions::default(), little).await;
        let back = pair.there.open(pair.here.addresses()).await.expect("open");
        let far = pair.far.full_of(&pattern(LEN, 1)).await;
        let near = pair.near.full_of(&pattern(LEN, 2)).await;
        let remote = pair.register("far", &far).await;
        let options = RegisterOptions::named("near");
        pair.here
            .register_device(near, &options)
            .expect("registered");
        let other = back.segment("near").await.expect("a segment");
        let (here, there) = (
            pair.near.full_of(&vec![0; LEN]).await,
            pair.far.full_of(&vec![0; LEN]).await,
        );
        let (to, peer) = (there.clone(), back.clone());
        let other = spawn_local(async move { done(&peer, &read(&to, &other, 0)).await });
        done(&pair.peer, &read(&here, &remote, 0)).await;
        other.await.expect("a task");
        assert!(pair.near.bytes_of(&here).await == pattern(LEN, 1));
        assert!(pair.far.bytes_of(&there).await == pattern(LEN, 2));
        time::yield_now().await;
    });
}
