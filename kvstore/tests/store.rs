//! Nodes on cores of their own, a client on the test's thread.
#![forbid(unsafe_code)]

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use lunette_kvstore::{
    Client, ClientOptions, ClusterError, Get, Node, NodeError, NodeOptions, Put, StoreErrorKind,
    Value, extent_bytes,
};
use lunette_kvstore_proto::key::{Key, KeyFault};
use lunette_kvstore_proto::message::{KeyRequest, NodeState, Op, Status};
use lunette_kvstore_proto::placement::MapFault;
use lunette_runtime::arena::Region;
use lunette_runtime::net::TcpStream;
use lunette_runtime::{CoreOptions, Idle, Placement, arena, block_on, spawn_local, time};
use lunette_runtime_core::ids::{NodeId, RequestId};
use lunette_runtime_core::limits::KEY_BYTES_MAX;
use lunette_transfer::{Attachments, Connection, Payload, Room};
use lunette_transfer_proto::frame::{FrameKind, PayloadDigest, encode_frame};
use lunette_transfer_proto::hello::{Handshake, Hello, VersionRange};

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

fn run<F: Future + 'static>(start: impl FnOnce() -> F) -> F::Output {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, start).expect("a core")
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn node(id: u64, cores: usize, memory_bytes: u64) -> Node {
    let mut options = NodeOptions::new(NodeId(id), loopback(), memory_bytes);
    options.placement = Placement::Anywhere(cores);
    options.idle = Idle::Efficient;
    Node::start(options).expect("a node")
}

/// A client as patient as a busy machine needs it.
async fn connect(nodes: &[SocketAddr]) -> Client {
    let options = ClientOptions {
        timeout: 30 * SECOND,
        connect_timeout: 30 * SECOND,
        ..ClientOptions::default()
    };
    Client::connect(nodes, options).await.expect("a client")
}

/// Bytes that only this key has.
fn pattern(key: &[u8], len: usize) -> Region {
    let mut region = arena().alloc(len).expect("room");
    let seed = key
        .iter()
        .fold(7_usize, |sum, &byte| sum * 31 % 65_521 + usize::from(byte));
    for (index, byte) in region.as_mut_slice().iter_mut().enumerate() {
        *byte = u8::try_from((index + seed) % 251).expect("small");
    }
    region.freeze()
}

fn room(len: usize) -> Room {
    Room::whole(arena().alloc(len).expect("room"))
}

fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

#[test]
fn what_is_put_is_got_over_all_cores_and_nodes() {
    let nodes = [node(1, 2, 64 * MIB), node(2, 1, 64 * MIB)];
    let addresses = nodes.each_ref().map(Node::address);
    run(move || async move {
        let client = connect(&addresses).await;
        let keys: Vec<_> = (0..300).map(key).collect();
        let len = |n: usize| 1 + n * 977 % 70_000;
        let puts = keys.iter().enumerate();
        let puts = puts
            .map(|(n, key)| (key.clone(), Value::new(pattern(key, len(n)))))
            .collect();
        for put in client.put_batch(puts).await {
            assert!(matches!(put, Ok(Put::Written { version: 1.. })), "{put:?}");
        }
        assert_eq!(client.exists(&keys).await, Ok(vec![true; 300]));
        let gets = keys.iter().map(|key| (key.clone(), room(70_000))).collect();
        for (n, got) in client.get_batch(gets).await.into_iter().enumerate() {
            let Ok(Get::Hit {
                room, len_bytes, ..
            }) = got
            else {
                unreachable!("{got:?}")
            };
            assert_eq!(len_bytes, len(n));
            assert!(room.as_slice()[..len_bytes] == *pattern(&keys[n], len_bytes).as_slice());
        }
        for (address, stat) in client.stat().await {
            let stat = stat.expect("an answer");
            assert!(
                stat.shards.entries > 50,
                "{address} got its share: {stat:?}"
            );
            assert_eq!(stat.capacity_bytes, 64 * MIB);
        }
        let removed = client
            .remove(&[key(1), b"never put".to_vec(), key(2)])
            .await;
        assert_eq!(removed, Ok(vec![true, false, true]));
        let got = client.get(&key(1), room(10)).await;
        assert!(matches!(got, Ok(Get::Miss { .. })));
        drop((client, got));
        while arena().used_bytes() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
    });
    for node in nodes {
        node.shut_down().expect("no panic");
    }
}

#[test]
fn a_second_put_is_a_touch_and_keeps_the_first_value() {
    let node = node(1, 1, 8 * MIB);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        let first = client.put(b"k", Value::new(pattern(b"one", 100_000))).await;
        let Ok(Put::Written { version }) = first else {
            unreachable!("{first:?}")
        };
        let second = client.put(b"k", Value::new(pattern(b"two", 50))).await;
        assert_eq!(second, Ok(Put::Touched { version }));
        let got = client.get(b"k", room(100_000)).await;
        let Ok(Get::Hit { room, .. }) = got else {
            unreachable!("{got:?}")
        };
        assert!(room.as_slice() == pattern(b"one", 100_000).as_slice());
    });
    assert_eq!(node.stat().expect("an answer").shards.touches, 1);
}

#[test]
fn the_least_recently_used_objects_leave_at_the_high_watermark() {
    const BLOCK: usize = 4096;
    let capacity = 100 * extent_bytes(key(10).len(), BLOCK);
    let node = node(1, 1, capacity);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        for n in 10..100 {
            if n >= 60 {
                let got = client.get(&key(10), room(BLOCK)).await;
                assert!(matches!(got, Ok(Get::Hit { .. })), "touched, so it stays");
            }
            let value = Value::new(pattern(b"", BLOCK));
            client.put(&key(n), value).await.expect("room is made");
        }
        for n in 2000..2050 {
            client
                .put(&key(n), Value::new(pattern(b"", BLOCK)))
                .await
                .expect("room is made");
            let got = client.get(&key(10), room(BLOCK)).await;
            assert!(matches!(got, Ok(Get::Hit { .. })), "touched, so it stays");
        }
        let present = client.exists(&[key(10), key(11), key(2049)]).await;
        assert_eq!(present, Ok(vec![true, false, true]));
    });
    let stat = node.stat().expect("an answer");
    assert!(stat.shards.used_bytes <= capacity);
    assert!(stat.shards.evictions > 0);
}

/// As of members in `cluster/moving.rs`.
#[test]
fn long_objects_find_room_among_short_ones_that_stay() {
    const MEMORY: u64 = 256 * MIB;
    const SHORT: (usize, usize) = (2900, 100_000);
    const LONG: (usize, usize) = (260, 1_000_000);
    let nodes = [node(1, 1, MEMORY)];
    let addresses = nodes.each_ref().map(Node::address);
    run(move || async move {
        let client = connect(&addresses).await;
        let ask_for = async |nth: usize, len: usize| {
            let got = client.get(&key(nth), room(len)).await.expect("an answer");
            if let Get::Hit { room, .. } = &got {
                let expected = pattern(&key(nth), len);
                assert!(room.as_slice()[..len] == *expected.as_slice());
            }
            usize::from(matches!(got, Get::Hit { .. }))
        };
        let (wanted, (count, len)) = (SHORT.0 / 4, LONG);
        for nth in 0..SHORT.0 {
            let value = Value::new(pattern(&key(nth), SHORT.1));
            client.put(&key(nth), value).await.expect("room");
            assert_eq!(ask_for(nth / 4 * 4, SHORT.1).await, 1, "{nth}");
        }
        let mut found = 0;
        for nth in SHORT.0..SHORT.0 + count {
            let value = Value::new(pattern(&key(nth), len));
            client.put(&key(nth), value).await.expect("room");
            if nth.is_multiple_of(50) {
                found = 0;
                for nth in (0..SHORT.0).step_by(4) {
                    found += ask_for(nth, SHORT.1).await;
                }
            }
        }
        let (_, stat) = client.stat().await.remove(0);
        let held = stat.expect("an answer").shards;
        assert!(held.resident_bytes > MEMORY / 10 * 9, "{held:?}");
        assert!(found > wanted / 2, "{found} of {wanted}");
        drop(client);
    });
}

#[test]
fn a_full_store_and_an_object_that_never_fits_are_typed() {
    let node = node(1, 1, MIB);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        let error = client.put(b"huge", Value::new(pattern(b"", 1 << 20))).await;
        let error = error.expect_err("never fits");
        assert_eq!(error.kind, StoreErrorKind::Refused(Status::TooLarge));
        assert!(!error.is_retryable());

        // A put with a false checksum is refused after its payload, and leaves nothing behind.
        let hello = Hello {
            versions: VersionRange::OURS,
            session_epoch: 1,
            in_flight_max: 8,
            payload_bytes_max: 1 << 24,
            greeting: Vec::new(),
        };
        let other = Connection::connect(address, hello, SECOND)
            .await
            .expect("connected");
        let held = pattern(b"", 900_000);
        let asking = other.clone();
        let false_put = spawn_local(async move {
            let body = |out: &mut Vec<u8>| {
                let key = Key::new(b"false").expect("a key");
                KeyRequest { key }.encode(out);
            };
            let payload = Some(Payload::region(held, 0));
            let attachments = Attachments {
                payload,
                room: None,
                arrange: None,
            };
            asking.call(Op::Put.code(), body, attachments, SECOND).await
        });
        let outcome = false_put.await.expect("no panic").expect("a reply");
        assert_eq!(
            Status::from_code(outcome.status),
            Status::Corrupt,
            "a false checksum"
        );
        let got = client.get(b"false", room(10)).await;
        assert!(
            matches!(got, Ok(Get::Miss { .. })),
            "a damaged put leaves nothing"
        );
        client
            .put(b"fits", Value::new(pattern(b"", 900_000)))
            .await
            .expect("nothing is leaked");
    });
}

/// A put whose payload never comes, over a connection of its own.
async fn stalled_put(address: SocketAddr, key: &[u8], payload_len_bytes: u32) -> TcpStream {
    let hello = Hello {
        versions: VersionRange::OURS,
        session_epoch: 1,
        in_flight_max: 8,
        payload_bytes_max: 1 << 24,
        greeting: Vec::new(),
    };
    let stream = TcpStream::connect(address).await.expect("connected");
    let mut out = Vec::new();
    Handshake::initiator(hello, time::now() + SECOND).start(&mut out);
    let mut body = Vec::new();
    let key = Key::new(key).expect("a key");
    KeyRequest { key }.encode(&mut body);
    let digest = PayloadDigest {
        len_bytes: payload_len_bytes,
        crc32c: 0,
    };
    let (kind, code) = (FrameKind::Request, Op::Put.code());
    encode_frame(&mut out, kind, code, RequestId(1), &body, Some(digest));
    let len = out.len();
    stream.send_all(out, 0, len).await.0.expect("sent");
    stream
}

#[test]
fn what_is_being_written_keeps_its_room_until_its_writer_is_gone() {
    let node = node(1, 1, MIB);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        let used = async || {
            client
                .stat()
                .await
                .remove(0)
                .1
                .expect("an answer")
                .shards
                .used_bytes
        };
        let writer = stalled_put(address, b"held", 900_000).await;
        while used().await == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        let value = Value::new(pattern(b"", 500_000));
        let error = client
            .put(b"other", value.clone())
            .await
            .expect_err("no room");
        assert_eq!(error.kind, StoreErrorKind::Refused(Status::Full));
        assert!(error.is_backpressure() && error.is_retryable());
        let error = client
            .put(b"held", value.clone())
            .await
            .expect_err("another writer");
        assert_eq!(error.kind, StoreErrorKind::Refused(Status::Busy));
        assert_eq!(client.exists(&[b"held".to_vec()]).await, Ok(vec![false]));
        drop(writer);
        while used().await > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        client
            .put(b"other", value)
            .await
            .expect("the room is free again");
    });
    assert_eq!(node.stat().expect("an answer").shards.aborts, 1);
}

#[test]
fn empty_values_and_bad_keys() {
    let node = node(1, 1, MIB);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        assert!(matches!(
            client.put(b"e", Value::empty()).await,
            Ok(Put::Written { .. })
        ));
        let got = client.get(b"e", room(10)).await;
        assert!(matches!(got, Ok(Get::Hit { len_bytes: 0, .. })), "{got:?}");
        let error = client.put(b"", Value::empty()).await.expect_err("no key");
        assert_eq!(error.kind, StoreErrorKind::Key(KeyFault::Empty));
        let longest = vec![b'k'; KEY_BYTES_MAX];
        assert!(client.put(&longest, Value::empty()).await.is_ok());
        let too_long = vec![b'k'; KEY_BYTES_MAX + 1];
        let failure = client.get(&too_long, room(10)).await.expect_err("too long");
        assert!(failure.room.is_some());
        let error = client
            .exists(&[b"ok".to_vec(), Vec::new()])
            .await
            .expect_err("no key");
        assert_eq!(error.kind, StoreErrorKind::Key(KeyFault::Empty));
    });
}

#[test]
fn a_value_longer_than_the_room_gives_the_room_back() {
    let node = node(1, 1, MIB);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        client
            .put(b"k", Value::new(pattern(b"k", 1000)))
            .await
            .expect("written");
        let failure = client.get(b"k", room(999)).await.expect_err("too long");
        assert!(failure.room.is_some() && !failure.error.is_retryable());
        assert!(matches!(
            client.get(b"k", room(1000)).await,
            Ok(Get::Hit { .. })
        ));
    });
    let stat = node.stat().expect("an answer");
    assert_eq!(stat.shards.hits, 2);
}

#[test]
fn a_node_that_dies_is_typed_and_a_new_one_at_its_place_is_found_again() {
    let first = node(7, 1, MIB);
    let address = first.address();
    run(move || async move {
        let client = connect(&[address]).await;
        client
            .put(b"k", Value::new(pattern(b"k", 1000)))
            .await
            .expect("written");
        first.shut_down().expect("no panic");
        let failure = client
            .get(b"k", room(1000))
            .await
            .expect_err("the node is gone");
        assert!(failure.room.is_some());
        assert!(
            failure.error.is_retryable() && failure.error.is_unreachable(),
            "{failure}"
        );
        let mut options = NodeOptions::new(NodeId(7), address, MIB);
        options.idle = Idle::Efficient;
        let second = Node::start(options).expect("the port is free again");
        let got = client.get(b"k", room(1000)).await;
        assert!(matches!(got, Ok(Get::Miss { .. })), "{got:?}");
        drop(second);
    });
}

#[test]
fn clusters_that_make_no_map_and_ports_in_use_are_refused_clearly() {
    let node = node(1, 1, MIB);
    let address = node.address();
    let error = Node::start(NodeOptions::new(NodeId(2), address, MIB)).expect_err("port in use");
    assert!(matches!(error, NodeError::Listen { .. }) && error.to_string().contains("in use"));
    let mut weightless = NodeOptions::new(NodeId(3), loopback(), MIB);
    weightless.weight = 0;
    assert!(matches!(Node::start(weightless), Err(NodeError::Map(_))));
    assert!(matches!(
        Node::start(NodeOptions::new(NodeId(3), loopback(), 0)),
        Err(NodeError::Limits(_))
    ));
    run(move || async move {
        let none = Client::connect(&[], ClientOptions::default()).await;
        assert_eq!(
            none.expect_err("no nodes"),
            ClusterError::Map(MapFault::Empty)
        );
        let twice = Client::connect(&[address, address], ClientOptions::default()).await;
        assert!(matches!(twice, Err(ClusterError::Map(_))));
        let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let error = Client::connect(&[nobody], ClientOptions::default()).await;
        assert!(matches!(error, Err(ClusterError::Connect { .. })));
    });
}

#[test]
fn a_get_that_is_dropped_unpins_what_it_asked_for() {
    let node = node(1, 1, 4 * MIB);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        client
            .put(b"k", Value::new(pattern(b"k", 2 << 20)))
            .await
            .expect("written");
        for _ in 0..50 {
            let asking = client.clone();
            let get = spawn_local(async move { asking.get(b"k", room(2 << 20)).await });
            time::sleep(Duration::from_micros(300)).await;
            get.abort();
        }
        assert_eq!(client.remove(&[b"k".to_vec()]).await, Ok(vec![true]));
        let deadline = time::now() + 5 * SECOND;
        loop {
            let (_, stat) = client.stat().await.remove(0);
            if stat.expect("an answer").shards.used_bytes == 0 {
                break;
            }
            assert!(time::now() < deadline, "every pin is taken back");
            time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn a_drained_node_has_ended_its_connections_and_takes_none() {
    let node = node(1, 2, MIB);
    let address = node.address();
    run(move || async move {
        let client = connect(&[address]).await;
        client
            .put(b"k", Value::new(pattern(b"k", 1000)))
            .await
            .expect("written");
        let draining = std::thread::spawn(move || (node.drain(5 * SECOND), node));
        while !draining.is_finished() {
            time::sleep(Duration::from_millis(1)).await;
        }
        let (in_time, node) = draining.join().expect("no panic");
        assert!(in_time);
        let stat = node.stat().expect("an answer");
        assert_eq!((stat.connections, stat.state()), (0, NodeState::Draining));
        let failure = client
            .get(b"k", room(1000))
            .await
            .expect_err("nobody is there");
        assert!(
            failure.error.is_unreachable() && failure.error.is_retryable(),
            "{failure}"
        );
        assert!(node.drain(SECOND), "once more is no harm");
        node.shut_down().expect("no panic");
    });
}

#[test]
fn a_drain_gives_up_on_a_peer_that_stalls() {
    let node = node(1, 1, MIB);
    let address = node.address();
    run(move || async move {
        let writer = stalled_put(address, b"held", 900_000).await;
        let client = connect(&[address]).await;
        while client
            .stat()
            .await
            .remove(0)
            .1
            .expect("an answer")
            .shards
            .used_bytes
            == 0
        {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!node.drain(Duration::from_millis(50)));
        drop(writer);
        node.shut_down().expect("no panic");
    });
}
