//! The engine on each driver and in worlds: bytes go where they belong, and nowhere else.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_auth::{Policy, Secrets};
use lunette_runtime::arena::Exposed;
use lunette_runtime::net::TcpStream;
use lunette_runtime::{arena, spawn_local, time};
use lunette_transfer::engine::{
    Access, Batch, BatchError, Cause, Effect, Engine, EngineOptions, Intent, LISTENERS_MAX,
    OpenError, Peer, PostError, PostOptions, Refusal, RegisterOptions, RegisterRefusal,
    RemoteSegment, StartError,
};
use lunette_transfer::{Attachments, Connection, Payload};
use lunette_transfer_proto::engine::slices::REQUESTS_MAX;
use lunette_transfer_proto::hello::{Hello, VersionRange};

use super::on_each_driver::run;
use super::scene::{KIB, memory, options, pattern, patterned};

const WORLDS: u64 = 8;

/// One that sends, also to peers on this host: `same_host` is about those.
fn engine() -> Engine {
    Engine::start(EngineOptions {
        same_host: false,
        ..options()
    })
    .expect("an engine")
}

/// Two engines, one of which has opened the other's segment.
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
        let memory = memory(len);
        let registered = there.register(memory.clone(), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let peer = here.open(there.addresses()).await.expect("open");
        let remote = peer.segment("kv").await.expect("a segment");
        assert_eq!(remote.len_bytes(), len as u64);
        Self {
            here,
            there,
            peer,
            remote,
            memory,
        }
    }
}

#[test]
fn what_is_written_is_there_and_is_read_back() {
    run(WORLDS, || async {
        let pair = Pair::new(6_000 * KIB).await;
        for (seed, len) in [(1, 1), (2, 4096), (3, 300 * KIB), (4, 5_000 * KIB)] {
            let source = patterned(len, seed);
            let mut batch = Batch::new();
            batch.write(source, &pair.remote, 7).expect("a write");
            let done = pair.peer.post(&batch, PostOptions::default());
            let done = done.expect("posted").await.expect("done");
            assert_eq!((done.len_bytes, done.resent), (len as u64, 0));
            assert!(done.slices >= len.div_ceil(640 * KIB) as u64, "{done:?}");
            assert_eq!(pair.memory.slice(7, len).to_vec(), pattern(len, seed));
            let target = memory(len);
            let mut batch = Batch::new();
            batch.read(target.clone(), &pair.remote, 7).expect("a read");
            let done = pair.peer.post(&batch, PostOptions::default());
            done.expect("posted").await.expect("done");
            assert_eq!(target.to_vec(), pattern(len, seed));
        }
        let statistics = pair.here.statistics();
        assert_eq!(statistics.read_bytes, statistics.written_bytes);
        assert_eq!(statistics.intent_bytes[0], 2 * statistics.read_bytes);
        assert_eq!(
            (statistics.transfers_done, statistics.transfers_failed),
            (8, 0)
        );
        let served = pair.there.statistics();
        assert_eq!(served.served_written_bytes, statistics.written_bytes);
        assert_eq!(served.served_read_bytes, statistics.read_bytes);
    });
}

#[test]
fn a_prepared_batch_of_scattered_pieces_is_posted_again_and_again() {
    const PIECES: usize = 700;
    const PIECE: usize = 600;
    run(WORLDS, || async {
        let pair = Pair::new(2 * PIECES * PIECE).await;
        let source = memory(PIECES * PIECE);
        let target = memory(PIECES * PIECE);
        let (mut writes, mut reads) = (Batch::new(), Batch::new());
        // Every second place there, in reverse order.
        for piece in 0..PIECES {
            let at = 2 * (PIECES - 1 - piece) * PIECE;
            let (from, to) = (
                source.slice(piece * PIECE, PIECE),
                target.slice(piece * PIECE, PIECE),
            );
            writes
                .write(from, &pair.remote, at as u64)
                .expect("a write");
            reads.read(to, &pair.remote, at as u64).expect("a read");
        }
        for round in 0..3 {
            let bytes = pattern(PIECES * PIECE, round);
            source.copy_in(0, &bytes);
            let written = pair.peer.post(&writes, PostOptions::default());
            let done = written.expect("posted").await.expect("written");
            assert!(done.slices < 10, "small pieces travel together: {done:?}");
            let read = pair.peer.post(&reads, PostOptions::default());
            read.expect("posted").await.expect("read");
            assert_eq!(target.to_vec(), bytes);
            let gap = pair.memory.slice(PIECE, PIECE).to_vec();
            assert_eq!(gap, vec![0; PIECE], "nothing beside its place");
        }
    });
}

#[test]
fn a_notification_comes_after_its_bytes_and_once() {
    run(WORLDS, || async {
        let pair = Pair::new(900 * KIB).await;
        let there = pair.there.clone();
        let memory = pair.memory.clone();
        let listening = spawn_local(async move {
            let mut seen = Vec::new();
            for _ in 0..3 {
                let notified = there.notified().await;
                seen.push((notified, memory.slice(0, 1).to_vec()[0]));
            }
            (seen, there.take_notification())
        });
        for (round, len) in [(1_u8, 100), (2, 900 * KIB), (3, 0)] {
            let source = memory_of(len, round);
            let mut batch = Batch::new();
            if let Some(source) = source {
                batch.write(source, &pair.remote, 0).expect("a write");
            }
            let options = PostOptions {
                notification: Some(vec![round]),
                ..PostOptions::default()
            };
            let posted = pair.peer.post(&batch, options).expect("posted");
            posted.await.expect("done");
        }
        let (seen, more) = listening.await.expect("no panic");
        let from = pair.here.epoch();
        let told: Vec<(u64, u8, u8)> = seen
            .into_iter()
            .map(|(notified, first)| (notified.from, notified.bytes[0], first))
            .collect();
        assert_eq!(told, [(from, 1, 1), (from, 2, 2), (from, 3, 2)]);
        assert_eq!(more, None);
    });
}

#[test]
fn notifications_of_two_peers_that_are_the_same_engine_both_come() {
    run(WORLDS, || async {
        let pair = Pair::new(KIB).await;
        let again = pair.here.open(pair.there.addresses()).await.expect("open");
        for (index, peer) in [(1_u8, &pair.peer), (2, &again), (3, &pair.peer)] {
            let options = PostOptions {
                notification: Some(vec![index]),
                ..PostOptions::default()
            };
            let posted = peer.post(&Batch::new(), options).expect("posted");
            posted.await.expect("done");
        }
        let told: Vec<u8> = std::iter::from_fn(|| pair.there.take_notification())
            .map(|notified| notified.bytes[0])
            .collect();
        assert_eq!(told, [1, 2, 3]);
    });
}

fn memory_of(len: usize, byte: u8) -> Option<Exposed> {
    (len > 0).then(|| {
        let memory = memory(len);
        memory.copy_in(0, &vec![byte; len]);
        memory
    })
}

#[test]
fn what_is_unregistered_is_out_of_reach_at_once_also_for_who_opened_it() {
    run(WORLDS, || async {
        let pair = Pair::new(64 * KIB).await;
        let other = patterned(64 * KIB, 9);
        let kept = pair
            .there
            .register(other.clone(), &RegisterOptions::named("kept"));
        kept.expect("registered");
        let kept = pair.peer.segment("kept").await.expect("a segment");
        let freed = pair
            .there
            .unregister(pair.remote.id())
            .await
            .expect("it was there");
        assert_eq!(pair.there.segments(), 1);
        // Its slot gets a new tenant, which the old id does not reach.
        let tenant = pair
            .there
            .register(freed, &RegisterOptions::named("tenant"));
        let tenant = tenant.expect("registered");
        let (into, lost) = (memory(KIB), memory(KIB));
        let mut batch = Batch::new();
        batch.read(lost, &pair.remote, 0).expect("a read");
        batch.read(into.clone(), &kept, 5).expect("a read");
        batch
            .write(patterned(KIB, 1), &pair.remote, 0)
            .expect("a write");
        let posted = pair
            .peer
            .post(&batch, PostOptions::default())
            .expect("posted");
        let error = posted.await.expect_err("two of three are refused");
        let refused: Vec<_> = error
            .failures
            .iter()
            .map(|failure| (failure.request, failure.cause))
            .collect();
        let stale = Cause::Refused(Refusal::Stale);
        assert_eq!(refused, [(Some(0), stale), (Some(2), stale)]);
        assert!(!error.is_retryable() && !error.is_corruption());
        assert!(error.to_string().contains("no such segment"), "{error}");
        assert_eq!(
            into.to_vec(),
            other.slice(5, KIB).to_vec(),
            "the third is done"
        );
        assert_eq!(
            pair.memory.slice(0, KIB).to_vec(),
            vec![0; KIB],
            "untouched"
        );
        assert!(pair.there.unregister(pair.remote.id()).await.is_none());
        assert!(pair.there.unregister(tenant).await.is_some());
        let gone = pair.peer.segment("tenant").await.expect_err("no such name");
        assert!(matches!(gone, OpenError::Refused(Refusal::Stale)), "{gone}");
    });
}

#[test]
fn rights_and_ranges_are_checked_before_anything_is_sent() {
    run(1, || async {
        let pair = Pair::new(100).await;
        let read_only = RegisterOptions {
            access: Access::Read,
            ..RegisterOptions::named("read only")
        };
        let registered = pair.there.register(memory(100), &read_only);
        registered.expect("registered");
        let read_only = pair.peer.segment("read only").await.expect("a segment");
        let mut batch = Batch::new();
        assert_eq!(
            batch.write(memory(1), &read_only, 0),
            Err(BatchError::Forbidden)
        );
        for offset in [1, u64::MAX] {
            let refused = batch.read(memory(100), &read_only, offset);
            assert!(matches!(refused, Err(BatchError::OutOfRange { .. })));
        }
        assert!(batch.is_empty());
        batch.read(memory(100), &read_only, 0).expect("a read");
        let third = engine();
        third
            .register(memory(10), &RegisterOptions::named("elsewhere"))
            .expect("registered");
        let other = pair.here.open(third.addresses()).await.expect("open");
        let elsewhere = other.segment("elsewhere").await.expect("a segment");
        let mixed = batch.read(memory(1), &elsewhere, 0);
        assert_eq!(mixed, Err(BatchError::OtherPeer));
        let misdirected = other.post(&batch, PostOptions::default());
        assert_eq!(misdirected.err(), Some(PostError::OtherPeer));
        let long = PostOptions {
            notification: Some(vec![0; 5000]),
            ..PostOptions::default()
        };
        let refused = pair.peer.post(&batch, long);
        assert!(matches!(
            refused,
            Err(PostError::NoteTooLong { len_bytes: 5000 })
        ));
    });
}

/// Asks without an engine's manners.
async fn ask(connection: &Connection, op: u16, body: &[u8], payload: Option<Exposed>) -> u16 {
    let attachments = Attachments {
        payload: payload.map(|memory| Payload::exposed(vec![memory])),
        room: None,
        arrange: None,
    };
    let write = |out: &mut Vec<u8>| out.extend_from_slice(body);
    let second = Duration::from_secs(1);
    let reply = connection.call(op, write, attachments, second).await;
    reply.expect("an answer").status
}

#[test]
fn a_peer_that_makes_no_sense_is_refused_and_harms_nobody() {
    run(WORLDS, || async {
        let pair = Pair::new(4 * KIB).await;
        let hello = Hello {
            versions: VersionRange::OURS,
            session_epoch: 9,
            in_flight_max: 8,
            payload_bytes_max: 1 << 20,
            greeting: b"no".to_vec(),
        };
        let address = pair.there.addresses()[0];
        let second = Duration::from_secs(1);
        let rude = Connection::connect(address, hello, second)
            .await
            .expect("connected");
        let malformed = Refusal::Malformed.to_wire();
        for op in [
            0,
            0x0101,
            0x0102,
            0x0103,
            0x0104,
            0x0105,
            0x0106,
            0x0107,
            u16::MAX,
        ] {
            assert_eq!(ask(&rude, op, b"", None).await, malformed, "{op:#x}");
            let payload = Some(patterned(100, 1));
            let status = ask(&rude, op, &[255; 50], payload).await;
            assert_eq!(status, malformed, "{op:#x}");
        }
        let id = pair.remote.id().to_wire().to_le_bytes();
        let place = |offset: u64, len: u32| {
            let mut body = vec![1, 0];
            body.extend_from_slice(&id);
            body.extend_from_slice(&offset.to_le_bytes());
            body.extend_from_slice(&len.to_le_bytes());
            body
        };
        for (offset, len) in [(4096, 1), (0, 4097), (u64::MAX, 1), (0, u32::MAX)] {
            let status = ask(&rude, 0x0103, &place(offset, len), None).await;
            assert_eq!(status, Refusal::OutOfRange.to_wire());
        }
        // A write whose payload is longer than its places.
        let mut body = vec![0; 8];
        body.extend(place(0, 10));
        let status = ask(&rude, 0x0104, &body, Some(patterned(20, 1))).await;
        assert_eq!(status, malformed);
        // Who has no session cannot end anybody's connection, nor notify.
        assert_eq!(ask(&rude, 0x0106, &[0; 8], None).await, 0);
        let status = ask(&rude, 0x0105, &[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, b'x'], None).await;
        assert_eq!(status, Refusal::Session.to_wire());
        assert_eq!(pair.memory.to_vec(), vec![0; 4 * KIB]);
        let mut batch = Batch::new();
        batch
            .write(patterned(4 * KIB, 1), &pair.remote, 0)
            .expect("a write");
        let posted = pair.peer.post(&batch, PostOptions::default());
        posted.expect("posted").await.expect("the others go on");
    });
}

fn secrets(text: &[u8]) -> Policy {
    Policy::Authenticated(Secrets::parse(text).expect("secrets"))
}

fn under(policy: Policy) -> EngineOptions {
    EngineOptions {
        listen: vec!["127.0.0.1:0".parse().expect("an address")],
        policy,
        ..EngineOptions::default()
    }
}

const OLD: &[u8] = b"0123456789abcdef0123456789abcdef";
const NEW: &[u8] = b"fedcba9876543210fedcba9876543210";
const BOTH: &[u8] = b"fedcba9876543210fedcba9876543210\n0123456789abcdef0123456789abcdef";

#[test]
fn who_does_not_know_the_secret_gets_nowhere() {
    run(WORLDS, || async {
        let server = Engine::start(under(secrets(BOTH))).expect("an engine");
        let registered = server.register(memory(KIB), &RegisterOptions::named("kv"));
        registered.expect("registered");
        for (known, is_let_in) in [
            (secrets(OLD), true),
            (secrets(NEW), true),
            (secrets(b"another secret of 32 bytes or so"), false),
            (Policy::LoopbackOnly, false),
        ] {
            let client = Engine::start(under(known.clone())).expect("an engine");
            let opened = client.open(server.addresses()).await;
            assert_eq!(opened.is_ok(), is_let_in, "{known:?}: {opened:?}");
            if let Ok(peer) = opened {
                let remote = peer.segment("kv").await.expect("a segment");
                let mut batch = Batch::new();
                batch.read(memory(KIB), &remote, 0).expect("a read");
                let posted = peer.post(&batch, PostOptions::default());
                posted.expect("posted").await.expect("done");
            }
        }
        // Nor does who knows it talk to an engine that asks for none.
        let open = engine();
        let client = Engine::start(under(secrets(OLD))).expect("an engine");
        assert!(client.open(open.addresses()).await.is_err());
    });
}

#[test]
fn without_a_secret_other_hosts_are_not_served() {
    run(0, || async {
        let everywhere: SocketAddr = "0.0.0.0:0".parse().expect("an address");
        let options = |policy| EngineOptions {
            listen: vec![everywhere],
            ..under(policy)
        };
        let refused = Engine::start(options(Policy::LoopbackOnly));
        assert!(
            matches!(refused, Err(StartError::Insecure(_))),
            "{refused:?}"
        );
        assert!(Engine::start(options(Policy::Insecure)).is_ok());
        assert!(Engine::start(options(secrets(OLD))).is_ok());
    });
}

/// How long a connection may be silent before it has introduced itself.
const SILENCE: Duration = Duration::from_secs(1);

#[test]
fn silent_connections_delay_nobody_and_are_bounded() {
    run(1, || async {
        let options = EngineOptions {
            connections_max: 40,
            connect_timeout: SILENCE,
            ..under(secrets(OLD))
        };
        let server = Engine::start(options).expect("an engine");
        let registered = server.register(memory(KIB), &RegisterOptions::named("kv"));
        registered.expect("registered");
        let mut silent = Vec::new();
        for _ in 0..39 {
            let connected = TcpStream::connect(server.addresses()[0]).await;
            silent.push(connected.expect("connected"));
        }
        let client = Engine::start(under(secrets(OLD))).expect("an engine");
        let began = time::now();
        let peer = client
            .open(server.addresses())
            .await
            .expect("the last place");
        peer.segment("kv").await.expect("a segment");
        let took = time::now().since(began);
        assert!(
            took < SILENCE,
            "one after the other they would take {took:?}"
        );
        // All places are taken: the next one is told so, and the silent ones lose theirs.
        let other = Engine::start(under(secrets(OLD))).expect("an engine");
        let refused = other.open(server.addresses()).await.expect_err("no place");
        assert!(matches!(refused, OpenError::Connect { .. }), "{refused}");
        time::sleep(SILENCE * 3 / 2).await;
        other.open(server.addresses()).await.expect("places again");
        assert_eq!(silent.len(), 39);
    });
}

#[test]
fn within_one_engine_bytes_are_copied() {
    run(WORLDS, || async {
        let engine = engine();
        let there = memory(3 << 20);
        let registered = engine.register(there.clone(), &RegisterOptions::named("own"));
        let id = registered.expect("registered");
        let peer = engine.open(engine.addresses()).await.expect("open");
        assert!(peer.is_self());
        let own = peer.segment("own").await.expect("a segment");
        let mut batch = Batch::new();
        batch
            .write(patterned(3 << 20, 5), &own, 0)
            .expect("a write");
        let options = PostOptions {
            intent: Intent::Prefetch,
            notification: Some(b"there".to_vec()),
            ..PostOptions::default()
        };
        let done = peer
            .post(&batch, options)
            .expect("posted")
            .await
            .expect("done");
        assert_eq!((done.len_bytes, done.slices), (3 << 20, 0));
        assert_eq!(there.to_vec(), pattern(3 << 20, 5));
        assert_eq!(engine.notified().await.bytes, b"there");
        assert_eq!(engine.statistics().intent_bytes[1], 3 << 20);
        assert!(engine.unregister(id).await.is_some());
        let late = peer.post(&batch, PostOptions::default()).expect("posted");
        let error = late.await.expect_err("gone");
        assert_eq!(error.failures[0].cause, Cause::Refused(Refusal::Stale));
    });
}

#[test]
fn places_are_found_by_address() {
    run(1, || async {
        let pair = Pair::new(100).await;
        let by_address = RegisterOptions {
            name: None,
            by_address: true,
            access: Access::ReadWrite,
            same_host: true,
            by_capability: false,
        };
        let held = memory(8 * KIB);
        let id = pair
            .there
            .register(held.clone(), &by_address)
            .expect("registered");
        let overlap = pair.there.register(held.slice(100, 1), &by_address);
        let overlap = overlap.expect_err("two owners of one address");
        assert_eq!(overlap.refusal, RegisterRefusal::Overlaps { holder: id });
        let start = held.start() as u64;
        let found = pair.peer.segment_at(start + 4000, 96).await.expect("found");
        assert_eq!((found.0.id(), found.1), (id, 4000));
        assert_eq!(pair.there.find(start + 4000, 96), Some((id, 4000)));
        for (start, len) in [(start - 1, 2), (start + 8 * 1024, 1), (start, u64::MAX)] {
            let missing = pair.peer.segment_at(start, len).await.expect_err("nothing");
            assert!(matches!(missing, OpenError::Refused(Refusal::OutOfRange)));
        }
    });
}

#[test]
fn a_cancelled_transfer_leaves_its_memory_alone_afterwards() {
    run(WORLDS, || async {
        let len = 40 << 20;
        let pair = Pair::new(len).await;
        pair.memory.copy_in(0, &vec![1; len]);
        let target = memory(len);
        let mut batch = Batch::new();
        batch.read(target.clone(), &pair.remote, 0).expect("a read");
        let reading = pair
            .peer
            .post(&batch, PostOptions::default())
            .expect("posted");
        time::sleep(Duration::from_millis(1)).await;
        reading.cancel();
        let error = reading.await.expect_err("cancelled");
        let [failure] = error.failures[..] else {
            panic!("{error}")
        };
        assert_eq!(
            (failure.cause, failure.effect),
            (Cause::Cancelled, Effect::Partly)
        );
        target.copy_in(0, &vec![2; len]);
        time::sleep(Duration::from_millis(50)).await;
        assert_eq!(target.to_vec(), vec![2; len], "nothing lands after the end");
        // The rail goes on.
        let mut batch = Batch::new();
        batch
            .read(target.slice(0, KIB), &pair.remote, 0)
            .expect("a read");
        let posted = pair
            .peer
            .post(&batch, PostOptions::default())
            .expect("posted");
        assert_eq!(posted.await.expect("done").resent, 0);
        assert_eq!(target.slice(0, KIB).to_vec(), vec![1; KIB]);
    });
}

#[test]
fn memory_is_kept_while_peers_use_it_and_given_back_when_they_do_not() {
    run(WORLDS, || async {
        let pair = Pair::new(32 << 20).await;
        let mut batch = Batch::new();
        batch
            .write(memory(32 << 20), &pair.remote, 0)
            .expect("a write");
        let writing = pair
            .peer
            .post(&batch, PostOptions::default())
            .expect("posted");
        while pair.there.statistics().served_written_bytes == 0 {
            time::sleep(Duration::from_micros(50)).await;
        }
        let memory = pair
            .there
            .unregister(pair.remote.id())
            .await
            .expect("it was there");
        // From here on no byte of that write lands.
        memory.copy_in(0, &vec![3; 32 << 20]);
        let error = writing.await.expect_err("refused in the middle");
        assert_eq!(error.failures[0].cause, Cause::Refused(Refusal::Stale));
        assert_eq!(error.failures[0].effect, Effect::Partly);
        assert_eq!(memory.to_vec(), vec![3; 32 << 20]);
    });
}

#[test]
fn an_engine_that_closes_ends_its_connections_and_a_new_one_is_not_taken_for_it() {
    run(1, || async {
        let pair = Pair::new(KIB).await;
        let address = pair.there.addresses()[0];
        pair.there.close().await;
        let options = EngineOptions {
            listen: vec![address],
            ..EngineOptions::default()
        };
        let next = Engine::start(options).expect("the port is free");
        next.register(memory(KIB), &RegisterOptions::named("kv"))
            .expect("registered");
        let mut batch = Batch::new();
        batch.read(memory(KIB), &pair.remote, 0).expect("a read");
        let posted = pair
            .peer
            .post(&batch, PostOptions::default())
            .expect("posted");
        let error = posted.await.expect_err("it is gone");
        assert_eq!(error.failures[0].cause, Cause::PeerReplaced);
        let again = pair.peer.post(&batch, PostOptions::default());
        assert_eq!(again.err(), Some(PostError::PeerReplaced));
        assert!(arena().used_bytes() > 0, "staging of the connections");
    });
}

#[test]
fn more_addresses_than_an_engine_or_a_peer_may_have_are_refused() {
    run(0, || async {
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let start = |count| {
            Engine::start(EngineOptions {
                listen: vec![any; count],
                ..EngineOptions::default()
            })
        };
        let there = start(LISTENERS_MAX).expect("as many as there may be");
        assert_eq!(there.addresses().len(), LISTENERS_MAX);
        let refused = start(LISTENERS_MAX + 1);
        assert!(
            matches!(refused, Err(StartError::TooManyAddresses { count }) if count == LISTENERS_MAX + 1)
        );
        let here = engine();
        for count in [0, LISTENERS_MAX + 1] {
            let opened = here.open(&vec![there.addresses()[0]; count]).await;
            assert!(
                matches!(opened, Err(OpenError::BadAddresses { count: found }) if found == count),
                "{count}"
            );
        }
        let rails = vec![there.addresses()[0]; LISTENERS_MAX];
        let peer = here.open(&rails).await.expect("one rail to each");
        assert_eq!(peer.rails().len(), LISTENERS_MAX);
    });
}

#[test]
fn notifications_that_nobody_takes_are_refused_at_the_bound_and_come_when_there_is_room() {
    run(WORLDS, || async {
        let there = Engine::start(EngineOptions {
            listen: vec!["127.0.0.1:0".parse().expect("an address")],
            notifications_max: 2,
            ..EngineOptions::default()
        });
        let there = there.expect("an engine");
        let here = engine();
        let peer = here.open(there.addresses()).await.expect("open");
        let notify = |number| {
            let options = PostOptions {
                notification: Some(vec![number]),
                ..PostOptions::default()
            };
            peer.post(&Batch::new(), options).expect("posted")
        };
        for number in [1, 2] {
            notify(number).await.expect("there is room");
        }
        let error = notify(3).await.expect_err("nobody takes any");
        let failure = error.failures[0];
        assert_eq!(
            (failure.request, failure.cause),
            (None, Cause::Refused(Refusal::Busy))
        );
        assert!(failure.attempts > 1, "it was tried again: {failure:?}");
        assert!(error.is_backpressure());
        let late = notify(4);
        assert_eq!(there.notified().await.bytes, [1]);
        late.await.expect("there is room now");
        assert_eq!(there.notified().await.bytes, [2]);
        assert_eq!(there.notified().await.bytes, [4]);
    });
}

#[test]
fn a_pause_that_is_over_before_its_timer_is_set_ends_all_the_same() {
    run(0, || async {
        let there = Engine::start(EngineOptions {
            listen: vec!["127.0.0.1:0".parse().expect("an address")],
            notifications_max: 0,
            ..EngineOptions::default()
        });
        let there = there.expect("an engine");
        let peer = engine().open(there.addresses()).await.expect("open");
        // Another task holds the core longer than a pause lasts, each time that it runs.
        let hog = spawn_local(async {
            loop {
                std::thread::sleep(Duration::from_micros(1500));
                time::yield_now().await;
            }
        });
        let options = PostOptions {
            notification: Some(vec![1]),
            timeout: Duration::from_secs(30),
            ..PostOptions::default()
        };
        let posted = peer.post(&Batch::new(), options).expect("posted");
        let error = posted.await.expect_err("nobody takes any");
        assert_eq!(error.failures[0].cause, Cause::Refused(Refusal::Busy));
        hog.abort();
    });
}

#[test]
fn a_batch_takes_as_many_requests_as_it_says() {
    run(0, || async {
        let pair = Pair::new(KIB).await;
        let (local, mut batch) = (memory(1), Batch::new());
        for _ in 0..REQUESTS_MAX {
            batch.read(local.clone(), &pair.remote, 0).expect("room");
        }
        let full = batch.read(local, &pair.remote, 0);
        assert!(matches!(full, Err(BatchError::Full)));
        let done = pair.peer.post(&batch, PostOptions::default());
        let done = done.expect("posted").await.expect("done");
        assert_eq!(done.len_bytes, REQUESTS_MAX as u64);
    });
}
