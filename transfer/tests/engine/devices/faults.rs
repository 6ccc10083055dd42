//! What a device does not copy fails alone and says which side it was; what is dropped, cancelled, killed or too slow
//! gives everything back.

use std::future::pending;
use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions, Fault};
use lunette_runtime::sim::{Kill, World};
use lunette_runtime::{arena, time};
use lunette_transfer::engine::{
    Access, Batch, BatchError, Cause, DeviceSegment, Effect, Engine, EngineOptions, Peer,
    PostOptions, Refusal, RegisterOptions, RemoteSegment, RequestFailure, SchedulerOptions,
};

use super::{Gpu, PATHS, Pair, Path, done, in_world, read, write};
use crate::on_each_driver::run;
use crate::scene::{KIB, MIB, engine, guarded, memory, options, pattern, post};
use crate::worlds::rails::{HERE, Processes, RAILS, addresses, finish, world};

const WORLDS: u64 = 1;
const LEN: usize = 3 * MIB + 5;
/// A code that a context survives.
const SURVIVED: u32 = 719_000;

fn refused(after: u32) -> Fault {
    Fault::Refused {
        after,
        code: SURVIVED,
    }
}

/// The one failure of a batch.
async fn failure(peer: &Peer, batch: &Batch) -> (RequestFailure, bool) {
    let error = post(peer, batch).await.expect_err("it cannot be done");
    assert_eq!(error.failures.len(), 1, "{error}");
    (error.failures[0], error.is_retryable())
}

#[test]
fn a_copy_that_fails_here_fails_its_request_alone_and_says_so() {
    run(WORLDS, || async {
        for path in PATHS {
            for is_read in [true, false] {
                let pair = Pair::new(path).await;
                let far = pair.far.full_of(&pattern(2 * LEN, 1)).await;
                let remote = pair.register("far", &far).await;
                let near = pair.near.full_of(&pattern(LEN, 2)).await;
                let beside = memory(LEN);
                beside.copy_in(0, &pattern(LEN, 3));
                let mut batch = if is_read {
                    read(&near, &remote, 0)
                } else {
                    write(&near, &remote, 0)
                };
                let added = if is_read {
                    batch.read(beside.clone(), &remote, LEN as u64)
                } else {
                    batch.write(beside.clone(), &remote, LEN as u64)
                };
                added.expect("added");
                pair.machine.inject(0, refused(1));
                let (failure, is_retryable) = failure(&pair.peer, &batch).await;
                assert_eq!(failure.request, Some(0), "{path:?}");
                assert_eq!(failure.cause, Cause::OwnDevice, "{path:?}");
                assert_eq!(failure.effect, Effect::Partly);
                assert!(is_retryable);
                if is_read {
                    assert!(beside.to_vec() == pattern(2 * LEN, 1)[LEN..]);
                } else {
                    assert!(pair.far.bytes_of(&far).await[LEN..] == pattern(LEN, 3));
                }
                done(&pair.peer, &batch).await;
                let (ours, theirs) = (
                    pair.near.bytes_of(&near).await,
                    pair.far.bytes_of(&far).await,
                );
                assert!(ours == theirs[..LEN], "{path:?}");
            }
        }
    });
}

#[test]
fn a_copy_that_fails_there_is_asked_for_again() {
    run(WORLDS, || async {
        for path in [Path::Tcp, Path::SameHost] {
            let pair = Pair::new(path).await;
            let far = pair.far.full_of(&pattern(LEN, 1)).await;
            let remote = pair.register("far", &far).await;
            let near = pair.near.full_of(&pattern(LEN, 2)).await;
            pair.machine.inject(1, refused(1));
            done(&pair.peer, &write(&near, &remote, 0)).await;
            assert!(pair.far.bytes_of(&far).await == pattern(LEN, 2), "{path:?}");
            assert_eq!(pair.there.statistics().refused, 1, "{path:?}");
            let to = pair.near.full_of(&vec![0; LEN]).await;
            pair.machine.inject(1, refused(2));
            done(&pair.peer, &read(&to, &remote, 0)).await;
            assert!(pair.near.bytes_of(&to).await == pattern(LEN, 2), "{path:?}");
            assert_eq!(pair.there.statistics().refused, 2, "{path:?}");
        }
    });
}

#[test]
fn a_device_that_is_lost_is_told_from_one_that_fails_on_either_side() {
    run(WORLDS, || async {
        for path in PATHS {
            for (device, cause) in [
                (0, Cause::OwnDeviceLost),
                (1, Cause::Refused(Refusal::DeviceLost)),
            ] {
                let pair = Pair::new(path).await;
                let far = pair.far.full_of(&pattern(LEN, 1)).await;
                let remote = pair.register("far", &far).await;
                let host = memory(KIB);
                let registered = pair.there.register(host, &RegisterOptions::named("host"));
                registered.expect("registered");
                let beside = pair.peer.segment("host").await.expect("a segment");
                let near = pair.near.full_of(&pattern(LEN, 2)).await;
                let batch = write(&near, &remote, 0);
                let kept = memory(KIB);
                let mut both = batch.clone();
                both.read(kept, &beside, 0).expect("a read");
                pair.machine.inject(device, Fault::Lost);
                for batch in [&both, &read(&near, &remote, 0)] {
                    let (failure, is_retryable) = failure(&pair.peer, batch).await;
                    assert_eq!(failure.request, Some(0));
                    assert_eq!(failure.cause, cause, "{path:?}");
                    assert!(!is_retryable, "{path:?}");
                }
            }
        }
    });
}

#[test]
fn a_context_that_dies_while_it_copies_ends_its_requests_and_no_others() {
    run(WORLDS, || async {
        let pair = Pair::new(Path::Tcp).await;
        let far = pair.far.full_of(&pattern(LEN, 1)).await;
        let remote = pair.register("far", &far).await;
        let index = pair.machine.add_device(FakeOptions::default());
        let other = Gpu::open(&pair.machine, index);
        let (dies, lives) = (
            pair.near.full_of(&[0; LEN]).await,
            other.full_of(&[0; LEN]).await,
        );
        let mut batch = read(&dies, &remote, 0);
        batch.read_device(&lives, &remote, 0).expect("a read");
        pair.machine.inject(0, Fault::Poisoned { code: 700 });
        let (failure, _) = failure(&pair.peer, &batch).await;
        assert_eq!(
            (failure.request, failure.cause, failure.effect),
            (Some(0), Cause::OwnDeviceLost, Effect::Partly)
        );
        assert!(other.bytes_of(&lives).await == pattern(LEN, 1));
    });
}

#[test]
fn memory_that_the_stream_does_not_know_and_ranges_that_are_none() {
    run(WORLDS, || async {
        for path in PATHS {
            let pair = Pair::new(path).await;
            let far = pair.far.full_of(&pattern(KIB, 1)).await;
            let remote = pair.register("far", &far).await;
            let near = pair.near.full_of(&pattern(KIB, 2)).await;
            let (longer, shorter) = (near.clone(), near.slice(0..KIB as u64 - 1));
            let mut batch = Batch::new();
            for (local, at) in [(&longer, 1), (&shorter, 2), (&shorter, u64::MAX)] {
                let error = batch.read_device(local, &remote, at).expect_err("outside");
                assert!(matches!(error, BatchError::OutOfRange { .. }), "{error}");
            }
            let fixed = RegisterOptions {
                access: Access::Read,
                ..RegisterOptions::named("fixed")
            };
            let registered = pair.there.register_device(far.clone(), &fixed);
            registered.expect("registered");
            let fixed = pair.peer.segment("fixed").await.expect("a segment");
            let forbidden = batch.write_device(&near, &fixed, 0);
            assert_eq!(forbidden, Err(BatchError::Forbidden));
            assert!(batch.is_empty());
            // Another device's stream.
            let wrong = DeviceSegment::new(near.region().clone(), pair.far.stream.clone());
            let (found, is_retryable) = failure(&pair.peer, &read(&wrong, &remote, 0)).await;
            assert_eq!(
                (found.cause, is_retryable),
                (Cause::OwnDeviceForeign, false)
            );
            // What is gone.
            let stale = pair
                .there
                .register_device(far, &RegisterOptions::named("gone"));
            let gone = pair.peer.segment("gone").await.expect("a segment");
            let taken = pair
                .there
                .unregister_device(stale.expect("registered"))
                .await;
            assert!(taken.is_some());
            // What is read is staged, so the device's memory is as it was.
            for (batch, effect) in [
                (read(&near, &gone, 0), Effect::Untouched),
                (write(&near, &gone, 0), Effect::Partly),
            ] {
                let (found, _) = failure(&pair.peer, &batch).await;
                assert_eq!(found.cause, Cause::Refused(Refusal::Stale), "{path:?}");
                assert!(found.effect <= effect, "{path:?}: {found:?}");
            }
            assert_eq!(pair.near.bytes_of(&near).await, pattern(KIB, 2));
        }
    });
}

/// Options of engines that do not wait long for what is under way.
fn hasty() -> EngineOptions {
    EngineOptions {
        scheduler: SchedulerOptions {
            settle: Duration::from_millis(20),
            ..SchedulerOptions::default()
        },
        ..options()
    }
}

#[test]
fn a_device_that_is_too_slow_is_not_waited_for_and_keeps_its_memory() {
    in_world(2, || async {
        for path in PATHS {
            let tardy = FakeOptions {
                latency: (Duration::from_millis(1), Duration::from_millis(2)),
                ..FakeOptions::default()
            };
            let pair = Pair::with(path, tardy, hasty()).await;
            let far = pair.far.full_of(&pattern(KIB, 1)).await;
            let remote = pair.register("far", &far).await;
            let near = pair.near.full_of(&pattern(KIB, 2)).await;
            let before = arena().used_bytes();
            pair.machine.inject(0, Fault::Slow { times: 500 });
            let short = PostOptions {
                timeout: Duration::from_millis(30),
                ..PostOptions::default()
            };
            for (batch, effect) in [
                (write(&near, &remote, 0), Effect::Untouched),
                (read(&near, &remote, 0), Effect::MayStillChange),
            ] {
                let posted = pair.peer.post(&batch, short.clone()).expect("posted");
                let error = posted.await.expect_err("it is late");
                let found = &error.failures[0];
                assert_eq!(found.cause, Cause::DeadlineExceeded, "{path:?}");
                assert_eq!(found.effect, effect, "{path:?}");
            }
            assert!(arena().used_bytes() > before, "the device still has it");
            assert_eq!(pair.far.bytes_of(&far).await, pattern(KIB, 1));
            pair.machine.inject(0, Fault::Slow { times: 1 });
            // What was queued before it has been copied by then.
            assert_eq!(pair.near.bytes_of(&near).await, pattern(KIB, 1));
            while arena().used_bytes() > before {
                time::yield_now().await;
            }
        }
    });
}

#[test]
fn what_is_dropped_or_cancelled_gives_everything_back() {
    run(WORLDS, || async {
        for path in PATHS {
            let pair = Pair::new(path).await;
            let far = pair.far.full_of(&pattern(6 * MIB, 1)).await;
            let remote = pair.register("far", &far).await;
            let before = arena().used_bytes();
            let allocations = pair.machine.counts().allocations;
            for turns in 0..12 {
                let near = pair.near.full_of(&vec![0; 6 * MIB]).await;
                let batch = read(&near, &remote, 0);
                drop(near);
                let posted = pair.peer.post(&batch, PostOptions::default());
                let transfer = posted.expect("posted");
                drop(batch);
                for _ in 0..turns * turns {
                    time::yield_now().await;
                }
                if turns % 2 == 0 {
                    drop(transfer);
                } else {
                    transfer.cancel();
                    if let Err(error) = transfer.await {
                        let found = error.failures[0];
                        assert_eq!(found.cause, Cause::Cancelled, "{path:?}");
                        assert!(found.effect < Effect::MayStillChange, "{path:?}");
                    }
                }
            }
            while pair.machine.counts().allocations > allocations || arena().used_bytes() > before {
                time::yield_now().await;
            }
            let near = pair.near.full_of(&vec![0; 6 * MIB]).await;
            done(&pair.peer, &read(&near, &remote, 0)).await;
            assert!(pair.near.bytes_of(&near).await == pattern(6 * MIB, 1));
        }
    });
}

#[test]
fn who_waits_for_room_hears_of_its_cancelling_and_its_deadline() {
    in_world(3, || async {
        let little = EngineOptions {
            device_bytes_max: 1,
            ..hasty()
        };
        let pair = Pair::with(Path::Tcp, FakeOptions::default(), little).await;
        let far = pair.far.full_of(&pattern(KIB, 1)).await;
        let remote = pair.register("far", &far).await;
        let (holds, waits) = (
            pair.near.full_of(&[0; KIB]).await,
            pair.far.full_of(&[0; KIB]).await,
        );
        pair.machine.inject(0, Fault::Slow { times: 100_000 });
        let post = |to: &DeviceSegment, timeout_ms| {
            let options = PostOptions {
                timeout: Duration::from_millis(timeout_ms),
                ..PostOptions::default()
            };
            pair.peer
                .post(&read(to, &remote, 0), options)
                .expect("posted")
        };
        let first = post(&holds, 60_000);
        while pair.near.stream.in_flight() == 0 {
            time::yield_now().await;
        }
        let (cancelled, late) = (post(&waits, 60_000), post(&waits, 20));
        time::yield_now().await;
        cancelled.cancel();
        for (transfer, cause) in [
            (cancelled, Cause::Cancelled),
            (late, Cause::DeadlineExceeded),
        ] {
            let error = transfer.await.expect_err("there was no room");
            let found = error.failures[0];
            assert_eq!((found.cause, found.effect), (cause, Effect::Untouched));
        }
        assert!(pair.near.stream.in_flight() > 0, "the room is still taken");
        drop(first);
    });
}

/// A world whose server has a device's memory registered.
fn serving(seed: u64) -> (World, Processes) {
    world(seed, |engine| async move {
        let machine = FakeMachine::new(1);
        let far = Gpu::open(&machine, machine.add_device(FakeOptions::default()));
        let far = far.full_of(&pattern(LEN, 1)).await;
        let registered = engine.register_device(far, &RegisterOptions::named("far"));
        registered.expect("registered");
        pending::<()>().await;
    })
}

async fn opened() -> (Engine, Peer, RemoteSegment) {
    let engine = Engine::start(guarded()).expect("an engine");
    let peer = engine.open(&addresses()).await.expect("a peer");
    let remote = peer.segment("far").await.expect("a segment");
    (engine, peer, remote)
}

#[test]
fn a_peer_that_is_killed_fails_what_is_under_way_and_the_device_is_free() {
    for (seed, kill) in [
        (1, Kill::Crash),
        (2, Kill::PowerLoss),
        (3, Kill::Crash),
        (4, Kill::PowerLoss),
    ] {
        let (mut world, Processes { server, client }) = serving(seed);
        world.run_for(Duration::from_millis(10));
        let asked = world.spawn(client, 0, move || async move {
            let (engine, peer, remote) = opened().await;
            let machine = FakeMachine::new(2);
            let near = Gpu::open(&machine, machine.add_device(FakeOptions::default()));
            let (from, to) = (
                near.full_of(&pattern(LEN, 2)).await,
                near.full_of(&vec![0; LEN]).await,
            );
            let mut batch = write(&from, &remote, 0);
            batch.read_device(&to, &remote, 0).expect("a read");
            let options = PostOptions {
                timeout: Duration::from_secs(3),
                notification: Some(vec![1]),
                ..PostOptions::default()
            };
            let error = loop {
                let posted = peer.post(&batch, options.clone()).expect("posted");
                if let Err(error) = posted.await {
                    break error;
                }
            };
            for failure in &error.failures {
                let is_known = matches!(
                    failure.cause,
                    Cause::Lost | Cause::Unreachable | Cause::DeadlineExceeded
                );
                assert!(is_known, "{error}");
                let is_write = failure.request == Some(0);
                assert!(
                    is_write || failure.effect < Effect::MayStillChange,
                    "{error}"
                );
            }
            assert!(error.is_retryable(), "{error}");
            // The device is as it was, and can be used.
            assert!(near.bytes_of(&from).await == pattern(LEN, 2));
            drop((batch, peer, engine, to, from));
            while arena().used_bytes() > 0 || machine.counts().allocations > 0 {
                time::sleep(Duration::from_millis(10)).await;
            }
        });
        world.run_for(Duration::from_millis(60 + 17 * seed));
        assert!(!asked.is_there());
        world.kill(server, kill);
        finish(&mut world, 60, &asked);
    }
}

#[test]
fn a_transfer_that_is_cancelled_cancels_its_pieces() {
    let (mut world, Processes { client, .. }) = serving(9);
    world.run_for(Duration::from_millis(10));
    let took = world.spawn(client, 0, || async {
        let (_engine, peer, remote) = opened().await;
        let machine = FakeMachine::new(2);
        let near = Gpu::open(&machine, machine.add_device(FakeOptions::default()));
        let near = near.full_of(&vec![0; LEN]).await;
        let options = PostOptions {
            timeout: Duration::from_secs(60),
            ..PostOptions::default()
        };
        let transfer = peer.post(&read(&near, &remote, 0), options);
        let transfer = transfer.expect("posted");
        time::sleep(Duration::from_millis(100)).await;
        let cancelled = time::now();
        transfer.cancel();
        let error = transfer.await.expect_err("nobody answers");
        assert_eq!(error.failures[0].cause, Cause::Cancelled);
        time::now().since(cancelled)
    });
    world.run_for(Duration::from_millis(10));
    for rail in RAILS {
        world.cut(HERE, rail);
        world.cut(rail, HERE);
    }
    let took = finish(&mut world, 100, &took);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn connections_that_are_lost_in_the_middle_lose_no_bytes() {
    let mut resent = 0;
    for seed in 0..6 {
        let (mut world, Processes { client, .. }) = serving(seed);
        world.run_for(Duration::from_millis(10));
        let moved = world.spawn(client, 0, || async {
            let (engine, peer, remote) = opened().await;
            let machine = FakeMachine::new(2);
            let near = Gpu::open(&machine, machine.add_device(FakeOptions::default()));
            for round in 2..8 {
                let from = near.full_of(&pattern(LEN, round)).await;
                let to = near.full_of(&vec![0; LEN]).await;
                done(&peer, &write(&from, &remote, 0)).await;
                done(&peer, &read(&to, &remote, 0)).await;
                assert!(near.bytes_of(&to).await == pattern(LEN, round));
            }
            engine.statistics().slices_resent
        });
        let mut random = world.draw();
        while !moved.is_there() {
            world.run_for(Duration::from_millis(1 + u64::from(random.below(120))));
            let rail = RAILS[usize::try_from(random.below(2)).expect("one of two")];
            world.reset_connections(HERE, rail);
        }
        resent += moved.take().expect("it is there");
    }
    assert!(resent > 10, "hardly anything was lost: {resent}");
}

#[test]
fn the_last_handles_may_go_while_pieces_are_under_way() {
    run(WORLDS, || async {
        for path in PATHS {
            let pair = Pair::new(path).await;
            let far = pair.far.full_of(&pattern(6 * MIB, 1)).await;
            let remote = pair.register("far", &far).await;
            let near = pair.near.full_of(&vec![0; 6 * MIB]).await;
            let transfer = pair
                .peer
                .post(&write(&near, &remote, 0), PostOptions::default());
            let transfer = transfer.expect("posted");
            for _ in 0..5 {
                time::yield_now().await;
            }
            let machine = pair.machine.clone();
            drop((near, far, pair, transfer));
            while machine.counts().allocations > 0 {
                time::yield_now().await;
            }
        }
        // A whole engine beside it goes on.
        drop(engine());
    });
}
