//! What is copied from mapped memory is what was registered, and whatever cannot go that way goes another.
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lunette_auth::{Policy, Secrets};
use lunette_runtime::arena::Exposed;
use lunette_runtime::{CoreOptions, block_on, boot_id, time};
use lunette_transfer::engine::{
    Access, Batch, Cause, Effect, Engine, EngineOptions, OpenError, Peer, PostOptions, Refusal,
    RegisterOptions, RemoteSegment, SchedulerOptions, TransferError,
};
use lunette_transfer_proto::engine::message::Whereabouts;
use lunette_transfer_proto::engine::same_host::packet::Packet;

use super::guest::{Guest, whereabouts};
use super::sluggish::Sluggish;
use crate::on_each_driver::run;
use crate::scene::{KIB, MIB, engine, memory, options, pattern, post, read, write};

/// Memory that a peer of this host may copy from.
fn lendable(engine: &Engine, len: usize) -> Exposed {
    let local = memory(len);
    let unnamed = RegisterOptions {
        name: None,
        by_address: false,
        access: Access::Read,
        same_host: true,
        by_capability: false,
    };
    engine
        .register(local.clone(), &unnamed)
        .expect("registered");
    local
}

/// Two engines, one of which has opened the other's segment, and memory here that can be lent.
struct Pair {
    here: Engine,
    there: Engine,
    peer: Peer,
    remote: RemoteSegment,
    memory: Exposed,
    local: Exposed,
}

impl Pair {
    async fn new(len: usize) -> Self {
        Self::of(engine(), engine(), len).await
    }

    async fn of(here: Engine, there: Engine, len: usize) -> Self {
        let memory = memory(len);
        let registered = there.register(memory.clone(), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let peer = here.open(there.addresses()).await.expect("open");
        let remote = peer.segment("kv").await.expect("a segment");
        let local = lendable(&here, len);
        Self {
            here,
            there,
            peer,
            remote,
            memory,
            local,
        }
    }

    /// Has the peer take what is lent: the first write goes through the window, or over the rails.
    async fn lend(&self) {
        for _ in 0..100 {
            let before = lent_bytes(&self.here);
            write(&self.peer, &self.remote, self.local.slice(0, 1), 0)
                .await
                .expect("done");
            if lent_bytes(&self.here) > before {
                return;
            }
            time::sleep(Duration::from_millis(5)).await;
        }
        unreachable!("the peer takes nothing");
    }
}

/// Bytes that were copied once, and not through the window.
fn lent_bytes(engine: &Engine) -> u64 {
    let statistics = engine.statistics();
    statistics.same_host_bytes - statistics.window_bytes
}

fn first(error: &TransferError) -> (Cause, Effect) {
    (error.failures[0].cause, error.failures[0].effect)
}

#[test]
fn bytes_are_copied_and_not_sent() {
    run(0, || async {
        let pair = Pair::new(8 * MIB).await;
        assert!(pair.peer.is_same_host());
        pair.lend().await;
        let sent = pair.here.statistics().slices;
        let mut moved = 0;
        for (seed, len) in [(1, 1), (2, 4096), (3, 300 * KIB), (4, 5_000 * KIB)] {
            pair.local.copy_in(13, &pattern(len, seed));
            let from = pair.local.slice(13, len);
            write(&pair.peer, &pair.remote, from, 7)
                .await
                .expect("done");
            assert_eq!(pair.memory.slice(7, len).to_vec(), pattern(len, seed));
            let target = memory(len);
            read(&pair.peer, &pair.remote, target.clone(), 7)
                .await
                .expect("done");
            assert_eq!(target.to_vec(), pattern(len, seed));
            moved += 2 * len as u64;
        }
        let statistics = pair.here.statistics();
        assert_eq!(lent_bytes(&pair.here), moved + 1);
        assert_eq!(statistics.read_bytes, moved / 2);
        // The pieces of the writes: nothing else was handed to anybody.
        assert_eq!(statistics.slices - sent, 1 + 1 + 2 + 20);
        assert_eq!(statistics.transfers_failed, 0);
        let served = pair.there.statistics();
        assert!(served.served_written_bytes > moved / 2);
    });
}

#[test]
fn batches_of_many_pieces_land_each_in_its_place() {
    run(0, || async {
        const PIECES: usize = 500;
        let pair = Pair::new(PIECES * 100).await;
        pair.lend().await;
        let mut writes = Batch::new();
        for index in 0..PIECES {
            let seed = u8::try_from(index % 250).expect("small");
            pair.local.copy_in(index * 100, &pattern(100, seed));
            let (from, to) = (pair.local.slice(index * 100, 100), PIECES - 1 - index);
            writes
                .write(from, &pair.remote, (to * 100) as u64)
                .expect("a write");
        }
        post(&pair.peer, &writes).await.expect("done");
        let target = memory(PIECES * 100);
        let mut reads = Batch::new();
        for index in 0..PIECES {
            let (to, from) = (target.slice(index * 100, 100), PIECES - 1 - index);
            reads
                .read(to, &pair.remote, (from * 100) as u64)
                .expect("a read");
        }
        post(&pair.peer, &reads).await.expect("done");
        assert_eq!(target.to_vec(), pair.local.to_vec());
        assert_eq!(lent_bytes(&pair.here), 2 * PIECES as u64 * 100 + 1);
    });
}

#[test]
fn notifications_follow_the_bytes_once() {
    run(0, || async {
        let pair = Pair::new(MIB).await;
        pair.lend().await;
        for (turn, writes) in (0..20_u8).zip([true, false].into_iter().cycle()) {
            let mut batch = Batch::new();
            if writes {
                pair.local.copy_in(0, &pattern(MIB, turn));
                batch
                    .write(pair.local.clone(), &pair.remote, 0)
                    .expect("a write");
            } else {
                batch.read(memory(MIB), &pair.remote, 0).expect("a read");
            }
            let options = PostOptions {
                notification: Some(vec![turn]),
                ..PostOptions::default()
            };
            let transfer = pair.peer.post(&batch, options).expect("posted");
            let notified = pair.there.notified().await;
            assert_eq!(notified.bytes, [turn]);
            if writes {
                assert_eq!(pair.memory.to_vec(), pattern(MIB, turn), "they came first");
            }
            transfer.await.expect("done");
        }
        assert!(pair.there.take_notification().is_none());
    });
}

#[test]
fn either_side_can_decline() {
    run(0, || async {
        let apart = || {
            let options = EngineOptions {
                same_host: false,
                ..options()
            };
            Engine::start(options).expect("an engine")
        };
        for (here, there) in [(apart(), engine()), (engine(), apart())] {
            let pair = Pair::of(here, there, 4 * KIB).await;
            assert!(!pair.peer.is_same_host());
            write(&pair.peer, &pair.remote, pair.local.clone(), 0)
                .await
                .expect("done");
            assert_eq!(pair.here.statistics().same_host_bytes, 0);
        }
    });
}

#[test]
fn what_was_unregistered_is_not_reached_any_more() {
    run(0, || async {
        let pair = Pair::new(64 * KIB).await;
        pair.lend().await;
        let whole = memory(64 * KIB);
        read(&pair.peer, &pair.remote, whole.clone(), 0)
            .await
            .expect("done");
        let given_back = pair.there.unregister(pair.remote.id()).await;
        let given_back = given_back.expect("it was registered");
        given_back.copy_in(0, &pattern(64 * KIB, 3));
        let error = read(&pair.peer, &pair.remote, whole.clone(), 0)
            .await
            .expect_err("gone");
        assert_eq!(error.failures[0].cause, Cause::Refused(Refusal::Stale));
        assert_ne!(whole.to_vec(), pattern(64 * KIB, 3), "nothing was read");
        let error = write(&pair.peer, &pair.remote, pair.local.clone(), 0)
            .await
            .expect_err("gone");
        assert_eq!(
            first(&error),
            (Cause::Refused(Refusal::Stale), Effect::Untouched)
        );
        assert_eq!(given_back.to_vec(), pattern(64 * KIB, 3), "nor written");
        // Registered again it is another segment, which the old id does not reach.
        let again = pair
            .there
            .register(given_back, &RegisterOptions::named("kv"));
        again.expect("registered");
        let error = read(&pair.peer, &pair.remote, whole, 0).await;
        let error = error.expect_err("another one");
        assert_eq!(error.failures[0].cause, Cause::Refused(Refusal::Stale));
    });
}

#[test]
fn memory_here_that_is_unregistered_is_not_copied_from_any_more() {
    run(0, || async {
        let pair = Pair::new(64 * KIB).await;
        let local = memory(64 * KIB);
        let options = RegisterOptions {
            access: Access::Read,
            ..RegisterOptions::named("source")
        };
        let id = pair.here.register(local.clone(), &options);
        let id = id.expect("registered");
        for _ in 0..50 {
            write(&pair.peer, &pair.remote, local.clone(), 0)
                .await
                .expect("done");
            time::sleep(Duration::from_millis(1)).await;
        }
        let copied = lent_bytes(&pair.here);
        assert!(copied > 0);
        pair.here.unregister(id).await.expect("it was registered");
        local.copy_in(0, &pattern(64 * KIB, 9));
        write(&pair.peer, &pair.remote, local, 0)
            .await
            .expect("through the window");
        assert_eq!(pair.memory.to_vec(), pattern(64 * KIB, 9));
        assert_eq!(lent_bytes(&pair.here), copied);
    });
}

/// An engine on a thread of its own, whose segment is filled with one byte, unregistered, overwritten with
/// nonsense and registered again, over and over.
fn restless(len: usize, stop: Arc<AtomicBool>) -> (SocketAddr, thread::JoinHandle<u64>) {
    let (say, hear) = mpsc::channel();
    let owner = thread::spawn(move || {
        let owning = move || async move {
            let there = engine();
            say.send(there.addresses()[0]).expect("heard");
            let mut shared = memory(len);
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let byte = u8::try_from(rounds % 100).expect("small");
                shared.copy_in(0, &vec![byte; len]);
                let options = RegisterOptions::named("kv");
                let id = there.register(shared, &options).expect("registered");
                // Long enough for a read now and then, however slow the machine is.
                time::sleep(Duration::from_micros(300 << (rounds % 8))).await;
                shared = there.unregister(id).await.expect("registered");
                for start in (0..len).step_by(KIB) {
                    shared.copy_in(
                        start,
                        &[200 + u8::try_from(start / KIB % 50).expect("small")],
                    );
                }
                rounds += 1;
            }
            there.close().await;
            rounds
        };
        block_on(None, CoreOptions::default(), owning).expect("a core")
    });
    (hear.recv().expect("said"), owner)
}

#[test]
fn a_reader_never_gets_what_came_to_lie_where_a_segment_was() {
    const LEN: usize = 256 * KIB;
    run(0, || async {
        let stop = Arc::new(AtomicBool::new(false));
        let (address, owner) = restless(LEN, Arc::clone(&stop));
        let here = engine();
        let peer = here.open(&[address]).await.expect("open");
        let target = memory(LEN);
        let (mut good, mut stale) = (0, 0);
        let started = time::now();
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(60));
        while time::now() < started + least
            || (time::now() < started + most && (good <= 10 || stale <= 10))
        {
            let remote = match peer.segment("kv").await {
                Ok(remote) => remote,
                Err(OpenError::Refused(Refusal::Stale)) => continue,
                Err(error) => unreachable!("{error}"),
            };
            loop {
                match read(&peer, &remote, target.clone(), 0).await {
                    Ok(()) => {
                        let bytes = target.to_vec();
                        let is_one = bytes.iter().all(|&byte| byte == bytes[0] && byte < 200);
                        assert!(is_one, "bytes of two lives");
                        good += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.failures[0].cause, Cause::Refused(Refusal::Stale));
                        stale += 1;
                        break;
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        drop((peer, here));
        let rounds = owner.join().expect("no panic");
        assert!(
            good > 10 && stale > 10,
            "{good} good, {stale} stale, {rounds} rounds"
        );
    });
}

#[test]
fn a_peer_that_stands_still_holds_a_write_no_longer_than_it_may() {
    run(0, || async {
        let there = Sluggish::new(|| memory(MIB));
        let scheduler = SchedulerOptions {
            settle: Duration::from_millis(50),
            ..SchedulerOptions::default()
        };
        let here = Engine::start(EngineOptions {
            scheduler,
            ..options()
        });
        let here = here.expect("an engine");
        let peer = here.open(&[there.address]).await.expect("open");
        let remote = peer.segment("kv").await.expect("a segment");
        let local = lendable(&here, MIB);
        while lent_bytes(&here) == 0 {
            write(&peer, &remote, local.slice(0, 1), 0)
                .await
                .expect("done");
            time::sleep(Duration::from_millis(1)).await;
        }
        there.stand_still(Duration::from_millis(1500));
        let mut batch = Batch::new();
        batch.write(local.clone(), &remote, 0).expect("a write");
        let hurried = PostOptions {
            timeout: Duration::from_millis(100),
            ..PostOptions::default()
        };
        let began = time::now();
        let error = peer.post(&batch, hurried).expect("posted").await;
        let error = error.expect_err("nobody copies");
        assert_eq!(
            first(&error),
            (Cause::DeadlineExceeded, Effect::MayStillChange)
        );
        assert!(time::now().since(began) < Duration::from_millis(1300));
        // What is cancelled ends as late, and says so too.
        let transfer = peer.post(&batch, PostOptions::default()).expect("posted");
        transfer.cancel();
        let error = transfer.await.expect_err("cancelled");
        assert_eq!(first(&error), (Cause::Cancelled, Effect::MayStillChange));
        // It goes on when the peer does.
        write(&peer, &remote, local, 0).await.expect("done");
        drop((peer, here));
        there.end();
    });
}

#[test]
fn an_owner_that_goes_takes_no_transfer_with_it_that_it_had_not_begun() {
    run(0, || async {
        let pair = Pair::new(MIB).await;
        pair.lend().await;
        let Pair {
            here,
            there,
            peer,
            remote,
            local,
            memory,
        } = pair;
        there.close().await;
        drop(memory);
        for _ in 0..2 {
            let hurried = PostOptions {
                timeout: Duration::from_millis(200),
                ..PostOptions::default()
            };
            let mut batch = Batch::new();
            batch.write(local.clone(), &remote, 0).expect("a write");
            let error = peer.post(&batch, hurried).expect("posted").await;
            let error = error.expect_err("nobody is there");
            assert!(error.is_retryable(), "{error}");
            time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!peer.is_same_host());
        assert_eq!(here.statistics().transfers_failed, 2);
    });
}

#[test]
fn an_authenticated_engine_lets_in_who_has_the_secret() {
    run(0, || async {
        let secrets = Secrets::parse(b"0123456789abcdef0123456789abcdef");
        let policy = Policy::Authenticated(secrets.expect("a secret"));
        let start = |policy: &Policy| {
            Engine::start(EngineOptions {
                policy: policy.clone(),
                ..options()
            })
            .expect("an engine")
        };
        let pair = Pair::of(start(&policy), start(&policy), 4 * KIB).await;
        assert!(pair.peer.is_same_host());
        let opened = engine().open(pair.there.addresses()).await;
        assert!(matches!(opened, Err(OpenError::Connect { .. })));
    });
}

#[test]
fn nobody_comes_in_without_a_ticket_and_nonsense_ends_a_channel_alone() {
    run(0, || async {
        let pair = Pair::new(4 * KIB).await;
        let boot_id = boot_id().expect("a kernel");
        let elsewhere = whereabouts(&pair.there, boot_id ^ 1).await;
        assert_eq!(elsewhere, Err(Refusal::Elsewhere.to_wire()));
        let Whereabouts { ticket, name } = whereabouts(&pair.there, boot_id).await.expect("here");
        let stranger = Guest::join(name, ticket ^ 1).await;
        assert!(stranger.is_none(), "a ticket of nobody's");
        let guest = Guest::join(name, ticket).await.expect("let in");
        assert!(Guest::join(name, ticket).await.is_none(), "used up");
        let unknown = lunette_transfer::engine::SegmentId::from_wire(77);
        let refused = Some(Packet::Refused { segment: unknown });
        assert_eq!(guest.ask(Packet::Map { segment: unknown }).await, refused);
        let segment = pair.remote.id();
        let shown = guest.ask(Packet::Map { segment }).await;
        assert!(matches!(shown, Some(Packet::Memory { .. })));
        // Memory without its file, packets that only an owner sends, and no packets at all.
        let memory = Packet::Memory {
            segment,
            offset_bytes: 0,
            len_bytes: 1,
        };
        let welcome = Packet::Welcome { proof: 1 };
        for nonsense in [memory.encode(), welcome.encode(), b"nonsense".to_vec()] {
            let guest = Guest::new(&pair.there).await;
            guest.say_bytes(&nonsense);
            assert_eq!(guest.hear().await, None, "its channel ends");
        }
        pair.lend().await;
        assert!(pair.peer.is_same_host(), "and no other");
    });
}
