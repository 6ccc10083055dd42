//! The window between two engines of one host: through it goes what cannot be mapped or lent, and nothing
//! that may not.
use std::os::fd::OwnedFd;
use std::time::Duration;

use lunette_runtime::arena::Exposed;
use lunette_runtime::{arena, time};
use lunette_transfer::engine::{
    Access, Batch, Cause, Effect, Engine, Peer, PostOptions, Refusal, RegisterOptions,
    RemoteSegment,
};
use lunette_transfer_proto::engine::same_host::commands::{
    COMMAND_BYTES_MAX, Command, WINDOW, WINDOW_BYTES_MAX,
};
use lunette_transfer_proto::engine::same_host::packet::Packet;

use super::guest::Guest;
use super::sluggish::Sluggish;
use crate::on_each_driver::run;
use crate::scene::{KIB, MIB, engine, memory, part, pattern, post, read, write};

/// Two engines, one of which has opened the other's segment, which nobody maps.
struct Pair {
    here: Engine,
    there: Engine,
    peer: Peer,
    remote: RemoteSegment,
    memory: Exposed,
}

impl Pair {
    async fn new(len: usize) -> Self {
        let (here, there) = (engine(), engine());
        let memory = part(len);
        let registered = there.register(memory.clone(), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let peer = here.open(there.addresses()).await.expect("open");
        let remote = peer.segment("kv").await.expect("a segment");
        let pair = Self {
            here,
            there,
            peer,
            remote,
            memory,
        };
        opened(&pair.here, &pair.peer, &pair.remote).await;
        pair
    }
}

/// Waits until the peer has taken the window: until then bytes go over the rails.
async fn opened(here: &Engine, peer: &Peer, remote: &RemoteSegment) {
    for _ in 0..100 {
        write(peer, remote, part(1), 0).await.expect("done");
        if here.statistics().window_bytes > 0 {
            return;
        }
        time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("the peer takes no window");
}

#[test]
fn what_is_no_mapping_goes_through_the_window_both_ways() {
    run(0, || async {
        let pair = Pair::new(8 * MIB).await;
        let register = |name, memory, access, same_host| {
            let options = RegisterOptions {
                access,
                same_host,
                ..RegisterOptions::named(name)
            };
            pair.there.register(memory, &options).expect("registered");
        };
        let piece = arena().alloc(6 * MIB).expect("room").expose();
        register("part of an arena", piece, Access::ReadWrite, true);
        register(
            "mapped by nobody",
            memory(6 * MIB),
            Access::ReadWrite,
            false,
        );
        let mut moved = pair.here.statistics().window_bytes;
        for name in ["kv", "part of an arena", "mapped by nobody"] {
            let remote = pair.peer.segment(name).await.expect("a segment");
            for (seed, len) in [(1, 1), (2, 4096), (3, 128 * KIB + 1), (4, 5_000 * KIB)] {
                let source = arena().alloc(len).expect("room").expose();
                source.copy_in(0, &pattern(len, seed));
                write(&pair.peer, &remote, source, 9).await.expect("done");
                let target = part(len);
                read(&pair.peer, &remote, target.clone(), 9)
                    .await
                    .expect("done");
                assert_eq!(target.to_vec(), pattern(len, seed), "{name}");
                moved += 2 * len as u64;
            }
        }
        let statistics = pair.here.statistics();
        assert_eq!(statistics.window_bytes, moved, "each byte, once");
        let served = pair.there.statistics();
        assert_eq!(served.served_read_bytes, statistics.read_bytes);
        assert_eq!(served.served_written_bytes, statistics.written_bytes);
    });
}

#[test]
fn a_batch_that_reads_and_writes_is_whole_before_its_notification() {
    run(0, || async {
        const LEN: usize = 3 * MIB;
        let pair = Pair::new(2 * LEN).await;
        for turn in 0..10_u8 {
            pair.memory.copy_in(0, &pattern(LEN, turn));
            let (source, target) = (part(LEN), part(LEN));
            source.copy_in(0, &pattern(LEN, turn + 100));
            let mut batch = Batch::new();
            let remote = &pair.remote;
            batch.read(target.clone(), remote, 0).expect("a read");
            batch.write(source, remote, LEN as u64).expect("a write");
            let options = PostOptions {
                notification: Some(vec![turn]),
                ..PostOptions::default()
            };
            let transfer = pair.peer.post(&batch, options).expect("posted");
            assert_eq!(pair.there.notified().await.bytes, [turn]);
            assert_eq!(
                pair.memory.slice(LEN, LEN).to_vec(),
                pattern(LEN, turn + 100)
            );
            assert_eq!(target.to_vec(), pattern(LEN, turn));
            transfer.await.expect("done");
        }
        assert!(pair.there.take_notification().is_none());
    });
}

#[test]
fn what_may_not_be_read_can_be_written_and_the_other_way_round() {
    run(0, || async {
        let pair = Pair::new(4 * KIB).await;
        for (name, access) in [("in", Access::Write), ("out", Access::Read)] {
            let options = RegisterOptions {
                access,
                ..RegisterOptions::named(name)
            };
            let registered = pair.there.register(part(4 * KIB), &options);
            registered.expect("registered");
        }
        let before = pair.here.statistics().window_bytes;
        let remote = pair.peer.segment("in").await.expect("a segment");
        write(&pair.peer, &remote, part(KIB), 0)
            .await
            .expect("done");
        assert!(Batch::new().read(part(KIB), &remote, 0).is_err());
        let remote = pair.peer.segment("out").await.expect("a segment");
        read(&pair.peer, &remote, part(KIB), 0).await.expect("done");
        assert!(Batch::new().write(part(KIB), &remote, 0).is_err());
        let after = pair.here.statistics().window_bytes;
        assert_eq!(after - before, 2 * KIB as u64);
    });
}

#[test]
fn more_transfers_than_slots_and_pieces_of_any_length_all_land() {
    run(0, || async {
        const COUNT: usize = 40;
        const LEN: usize = 300 * KIB + 7;
        let pair = Pair::new(COUNT * LEN).await;
        let sources: Vec<_> = (0..COUNT).map(|_| part(LEN)).collect();
        let mut transfers = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            source.copy_in(0, &pattern(LEN, u8::try_from(index).expect("few")));
            let mut batch = Batch::new();
            let at = (index * LEN) as u64;
            batch
                .write(source.clone(), &pair.remote, at)
                .expect("a write");
            let posted = pair.peer.post(&batch, PostOptions::default());
            transfers.push(posted.expect("posted"));
        }
        for transfer in transfers {
            transfer.await.expect("done");
        }
        let target = part(COUNT * LEN);
        read(&pair.peer, &pair.remote, target.clone(), 0)
            .await
            .expect("done");
        for (index, source) in sources.iter().enumerate() {
            let landed = target.slice(index * LEN, LEN);
            assert_eq!(landed.to_vec(), source.to_vec(), "{index}");
        }
    });
}

#[test]
fn a_read_that_is_given_up_ends_at_once_and_lands_nowhere() {
    run(0, || async {
        const LEN: usize = 4 * MIB;
        let there = Sluggish::new(|| part(LEN));
        let here = engine();
        let peer = here.open(&[there.address]).await.expect("open");
        let remote = peer.segment("kv").await.expect("a segment");
        opened(&here, &peer, &remote).await;
        there.stand_still(Duration::from_secs(2));
        let target = part(LEN);
        target.copy_in(0, &pattern(LEN, 7));
        let mut batch = Batch::new();
        batch.read(target.clone(), &remote, 0).expect("a read");
        let hurried = PostOptions {
            timeout: Duration::from_millis(50),
            ..PostOptions::default()
        };
        let began = time::now();
        let late = peer.post(&batch, hurried).expect("posted");
        let cancelled = peer.post(&batch, PostOptions::default()).expect("posted");
        cancelled.cancel();
        for (transfer, cause) in [
            (cancelled, Cause::Cancelled),
            (late, Cause::DeadlineExceeded),
        ] {
            let error = transfer.await.expect_err("given up");
            let failure = &error.failures[0];
            assert_eq!((failure.cause, failure.effect), (cause, Effect::Untouched));
        }
        assert!(time::now().since(began) < Duration::from_millis(1500));
        // The owner wakes up and reads for nobody; what comes next is not mixed up with that.
        let next = part(KIB);
        next.copy_in(0, &[1; KIB]);
        read(&peer, &remote, next.clone(), 64).await.expect("done");
        assert_eq!(next.to_vec(), [0; KIB]);
        assert_eq!(target.to_vec(), pattern(LEN, 7));
        drop((peer, here));
        there.end();
    });
}

#[test]
fn a_window_is_one_is_sealed_and_is_no_longer_than_it_may_be() {
    run(0, || async {
        let there = engine();
        let (_window, file) = Exposed::shared(64 * KIB).expect("memory");
        let accepted = Some(Packet::Accepted { segment: WINDOW });
        let declined = Some(Packet::Declined { segment: WINDOW });
        let guest = Guest::new(&there).await;
        let unsealed: OwnedFd = tempfile::tempfile().expect("a file").into();
        assert_eq!(guest.offer(4096, &unsealed).await, declined);
        assert_eq!(guest.offer(64 * KIB as u64 + 1, &file).await, declined);
        assert_eq!(guest.offer(0, &file).await, declined);
        assert_eq!(guest.offer(64 * KIB as u64, &file).await, accepted);
        assert_eq!(guest.offer(64 * KIB as u64, &file).await, None, "a second");
        let guest = Guest::new(&there).await;
        assert_eq!(guest.offer(WINDOW_BYTES_MAX + 1, &file).await, None);
        let long = usize::try_from(WINDOW_BYTES_MAX).expect("bounded");
        let (_long, file) = Exposed::shared(long).expect("memory");
        let guest = Guest::new(&there).await;
        assert_eq!(guest.offer(WINDOW_BYTES_MAX, &file).await, accepted);
    });
}

#[test]
fn commands_reach_what_the_peer_may_reach_and_nothing_beside_the_window() {
    run(0, || async {
        let there = engine();
        let register = |name, access, by_capability| {
            let options = RegisterOptions {
                access,
                by_capability,
                ..RegisterOptions::named(name)
            };
            let secret = part(4 * KIB);
            secret.copy_in(0, &[5; 4 * KIB]);
            there.register(secret, &options).expect("registered")
        };
        let open = register("open", Access::ReadWrite, false);
        let shut = register("shut", Access::Write, false);
        let held = register("held", Access::ReadWrite, true);
        let mut guest = Guest::new(&there).await;
        let (window, file) = Exposed::shared(64 * KIB).expect("memory");
        let reading = |from, from_offset_bytes, to_offset_bytes, len_bytes| Command {
            from,
            from_offset_bytes,
            to: WINDOW,
            to_offset_bytes,
            len_bytes,
        };
        let early = guest.command(reading(open, 0, 0, 1)).await;
        assert_eq!(early, Err(Refusal::Stale), "there is no window yet");
        let offered = guest.offer(64 * KIB as u64, &file).await;
        assert_eq!(offered, Some(Packet::Accepted { segment: WINDOW }));
        let end = 64 * KIB as u64;
        for (command, answer) in [
            (reading(shut, 0, 0, 1), Refusal::Forbidden),
            (reading(held, 0, 0, 1), Refusal::NoCapability),
            (reading(WINDOW, 0, 0, 1), Refusal::Stale),
            (reading(open, 4 * KIB as u64, 0, 1), Refusal::OutOfRange),
            (reading(open, 0, end, 1), Refusal::OutOfRange),
            (reading(open, 0, end - 1, 2), Refusal::OutOfRange),
            (reading(open, 0, u64::MAX, 2), Refusal::OutOfRange),
            (reading(open, 0, 0, 0), Refusal::Malformed),
            (
                reading(open, 0, 0, COMMAND_BYTES_MAX + 1),
                Refusal::Malformed,
            ),
        ] {
            assert_eq!(guest.command(command).await, Err(answer), "{command:?}");
        }
        assert_eq!(window.to_vec(), vec![0; 64 * KIB], "nothing came of that");
        let last = reading(open, 0, end - 2, 2);
        assert_eq!(guest.command(last).await, Ok(()));
        assert_eq!(window.slice(64 * KIB - 3, 3).to_vec(), [0, 5, 5]);
        let write = Command {
            from: WINDOW,
            from_offset_bytes: 0,
            to: held,
            to_offset_bytes: 0,
            len_bytes: 1,
        };
        assert_eq!(guest.command(write).await, Err(Refusal::NoCapability));
        let write = Command { to: shut, ..write };
        assert_eq!(guest.command(write).await, Ok(()));
        let written = there.memory(shut, 0, 2).expect("it is there");
        assert_eq!(written.to_vec(), [0, 5]);
    });
}

#[test]
fn transfers_go_on_beside_each_other_through_the_window_and_by_mapping() {
    run(0, || async {
        let pair = Pair::new(2 * MIB).await;
        let mapped = RegisterOptions::named("mapped");
        let shown = memory(2 * MIB);
        shown.copy_in(0, &pattern(2 * MIB, 3));
        pair.there.register(shown, &mapped).expect("registered");
        let remote = pair.peer.segment("mapped").await.expect("a segment");
        pair.memory.copy_in(0, &pattern(2 * MIB, 4));
        let (near, by_window) = (part(2 * MIB), part(2 * MIB));
        let mut batch = Batch::new();
        batch.read(near.clone(), &remote, 0).expect("a read");
        batch
            .read(by_window.clone(), &pair.remote, 0)
            .expect("a read");
        post(&pair.peer, &batch).await.expect("done");
        assert_eq!(near.to_vec(), pattern(2 * MIB, 3));
        assert_eq!(by_window.to_vec(), pattern(2 * MIB, 4));
        let statistics = pair.here.statistics();
        assert_eq!(statistics.read_bytes, 4 * MIB as u64);
    });
}
