//! Handles for threads: in worlds, where a task stands for the thread, and with threads and nodes of several
//! cores.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{
    ClientHost, ClusterClientOptions, ClusterOptions, Got, HandleError, Lent, Node, NodeOptions,
    ObjectBytes, PutOptions, QUESTIONS_MAX, ReservationHandle, ReservedHandle, StoreErrorKind,
    StoreHandle, Stored,
};
use lunette_kvstore_proto::message::{NodeStat, Status};
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::arena::SharedMemory;
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, Placement, Runtime, time};
use lunette_runtime_core::ids::{CoreIndex, NodeId};
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const KEEP: Duration = Duration::from_secs(30);

/// Bytes that only this number has.
pub(crate) fn bytes_of(n: usize, len: usize) -> Vec<u8> {
    let byte = |index| u8::try_from((index + n * 31) % 251).expect("small");
    (0..len).map(byte).collect()
}

pub(crate) fn lent(n: usize, len: usize) -> Vec<Lent> {
    vec![Lent::bytes(bytes_of(n, len))]
}

/// Memory of zeroes, as two pieces.
pub(crate) fn empty(len: usize) -> (SharedMemory, Vec<Lent>) {
    let memory = SharedMemory::owned(vec![0; len]);
    let (first, second) = (0..len / 3, len / 3..len);
    let pieces = [first, second].map(|range| Lent::part(&memory, range).expect("inside"));
    (memory, pieces.into())
}

fn range(offset_bytes: u64, len_bytes: u32) -> ByteRange {
    ByteRange {
        offset_bytes,
        len_bytes,
    }
}

#[test]
fn what_threads_put_they_and_others_get() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let handle = client.handle().expect("room for a task");
            let options = PutOptions {
                kind: WriteKind::Upsert,
                ..PutOptions::default()
            };
            let len = |n: usize| n * 997 % 40_000;
            for n in 0..20 {
                let whole = SharedMemory::owned(bytes_of(n, len(n)));
                let (first, second) = (0..len(n) / 2, len(n) / 2..len(n));
                let pieces = [first, second].map(|at| Lent::part(&whole, at).expect("inside"));
                let put = handle.put(key(n), pieces.into(), options).await;
                assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
                whole.into_bytes().expect("it is let go of");
            }
            for n in 0..20 {
                scene.expect(&client, n, len(n)).await;
                let (memory, pieces) = empty(len(n) + 5);
                let got = handle.get(key(n), pieces).await.expect("asked");
                let Got::Hit { len_bytes, .. } = got else {
                    panic!("{got:?}");
                };
                assert_eq!(len_bytes, len(n));
                let mut expected = bytes_of(n, len(n));
                assert_eq!(handle.get_bytes(key(n)).await, Ok(Some(expected.clone())));
                expected.extend([0; 5]);
                assert_eq!(memory.into_bytes().expect("it is let go of"), expected);
            }
            let (memory, pieces) = empty(13);
            let ranges = vec![range(900, 10), range(5, 0), range(0, 3)];
            let got = handle.get_ranges(key(1), ranges, pieces).await;
            assert!(matches!(got, Ok(Got::Hit { len_bytes: 13, .. })), "{got:?}");
            let whole = bytes_of(1, len(1));
            let expected = [&whole[900..910], &whole[..3]].concat();
            assert_eq!(memory.into_bytes().expect("let go of"), expected);
            let removed = handle.remove((0..20).map(key).collect()).await;
            assert!(removed.iter().all(|removed| *removed == Ok(true)));
        }
    });
}

/// Whoever reads does not know how long the next value is.
#[test]
fn objects_that_are_replaced_while_they_are_read_are_got_whole() {
    run(20, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let (writer, reader) = (scene.client().await, scene.client().await);
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        let len = |n: usize| if n.is_multiple_of(2) { 100 } else { 9000 };
        let writer = writer.handle().expect("room for a task");
        let reader = reader.handle().expect("room for a task");
        let put = writer.put(key(1), lent(0, len(0)), upsert);
        put.await.expect("written");
        for n in 1..40 {
            let replacing = writer.put(key(1), lent(n, len(n)), upsert);
            let bytes = reader.get_bytes(key(1)).await;
            let bytes = bytes.expect("asked").expect("it is always there");
            let is_one = |n| bytes == bytes_of(n, len(n));
            assert!(is_one(n - 1) || is_one(n), "{} bytes", bytes.len());
            replacing.await.expect("written");
        }
    });
}

#[test]
fn batches_of_threads_answer_in_order_each_for_itself() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(1).await] {
            let handle = client.handle().expect("room for a task");
            let mut objects: Vec<_> = (0..40).map(|n| (key(n), lent(n, 100 + n))).collect();
            objects[7].0 = Vec::new();
            let stored = handle.put_all(objects, PutOptions::default()).await;
            for (n, stored) in stored.iter().enumerate() {
                assert_eq!(stored.is_ok(), n != 7, "{stored:?}");
            }
            let sizes = handle.sizes((0..40).map(key).collect()).await;
            let present = handle.exists((0..40).map(key).collect()).await;
            let (memory, wanted): (Vec<_>, Vec<_>) = (0..40)
                .map(|n| {
                    let (memory, pieces) = empty(100 + n);
                    (memory, (key(n), pieces))
                })
                .unzip();
            let got = handle.get_all(wanted).await;
            for (n, memory) in memory.into_iter().enumerate() {
                let is_there = n != 7;
                assert_eq!(sizes[n], Ok(is_there.then_some(100 + n)));
                assert_eq!(present[n], Ok(is_there));
                assert_eq!(matches!(got[n], Ok(Got::Hit { .. })), is_there, "{got:?}");
                let bytes = memory.into_bytes().expect("it is let go of");
                assert_eq!(bytes == bytes_of(n, 100 + n), is_there);
            }
            let mut keys: Vec<_> = (0..40).map(key).collect();
            keys[3] = vec![b'k'; 5000];
            let sizes = handle.sizes(keys.clone()).await;
            assert!(sizes[3].is_err() && sizes[4].is_ok(), "each for itself");
            let removed = handle.remove(keys).await;
            assert!(removed[3].is_err() && removed[4] == Ok(true));
            assert_eq!(removed[7], Ok(false));
            handle.remove(vec![key(3)]).await;
        }
    });
}

#[test]
fn long_objects_are_copied_by_who_asked_and_stay_until_then() {
    const LONG: usize = 100_000;
    run(WORLDS, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.inside(0).await;
        let handle = client.handle().expect("room for a task");
        let lens = [LONG, 64 << 10, 0, LONG + 1];
        for (n, len) in lens.into_iter().enumerate() {
            let put = handle.put(key(n), lent(n, len), PutOptions::default());
            put.await.expect("written");
        }
        let memory: Vec<_> = (0..6).map(|_| empty(LONG)).collect();
        let (memory, pieces): (Vec<_>, Vec<_>) = memory.into_iter().unzip();
        // The last but one does not fit, the last one is not there.
        let wanted = [0, 1, 2, 0, 3, 9].map(key).into_iter().zip(pieces);
        let brought = handle.bring_all(wanted.collect()).await;
        assert_eq!(brought.left_bytes(), 2 * LONG);
        let bytes = handle.bring_bytes(key(0)).await.expect("asked");
        let bytes = bytes.expect("it is there");
        assert!(matches!(bytes, ObjectBytes::Lent(_)));
        let removed = handle.remove((0..4).map(key).collect()).await;
        assert!(removed.iter().all(|removed| *removed == Ok(true)));
        assert!(used_bytes(&handle).await >= LONG as u64, "it is read");
        let got = brought.finish();
        let hit = |len| matches!(len, Ok(Got::Hit { object_len_bytes, len_bytes, .. }) if object_len_bytes == len_bytes);
        assert!(got[..4].iter().copied().all(hit), "{got:?}");
        assert!(
            got[4].is_err() && matches!(got[5], Ok(Got::Miss { .. })),
            "{got:?}"
        );
        for (memory, n) in memory.into_iter().zip([0, 1, 2, 0]) {
            let bytes = memory.into_bytes().expect("it is let go of");
            assert_eq!(bytes[..lens[n]], bytes_of(n, lens[n]));
            assert!(bytes[lens[n]..].iter().all(|byte| *byte == 0));
        }
        assert_eq!(bytes.as_slice(), bytes_of(0, LONG));
        assert!(used_bytes(&handle).await >= LONG as u64, "it is read");
        drop(bytes);
        eventually("its memory is free", async || {
            used_bytes(&handle).await == 0
        })
        .await;
        assert!(matches!(handle.bring_bytes(key(0)).await, Ok(None)));
    });
}

#[test]
fn long_objects_are_copied_to_where_they_stay_by_who_puts_them() {
    const LONG: usize = 100_000;
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.inside(0).await;
        let handle = client.handle().expect("room for a task");
        let lens = [LONG, 64 << 10, LONG, 0, 3 * LONG];
        let value = |n: usize| {
            let memory = SharedMemory::owned(bytes_of(n, lens[n]));
            let middle = lens[n] / 3;
            let pieces = [0..middle, middle..lens[n]];
            pieces
                .map(|at| Lent::part(&memory, at).expect("inside"))
                .into()
        };
        let mut objects: Vec<_> = (0..5).map(|n| (key(n), value(n))).collect();
        objects.push((Vec::new(), value(0)));
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        for (options, long) in [(PutOptions::default(), 5 * LONG), (upsert, 5 * LONG)] {
            let placing = handle.place_all(objects.clone(), options).await;
            assert_eq!(placing.left_bytes(), long);
            assert!(used_bytes(&handle).await >= long as u64);
            let stored = placing.finish().await;
            let is_written = |stored| matches!(stored, &Ok(Stored::Written { .. }));
            assert!(stored[..5].iter().all(is_written), "{stored:?}");
            assert!(stored[5].is_err(), "it is no key");
            for (n, len) in lens.into_iter().enumerate() {
                assert_eq!(handle.get_bytes(key(n)).await, Ok(Some(bytes_of(n, len))));
            }
        }
        // What is there already is not copied again, nor is what goes elsewhere.
        let elsewhere = PutOptions {
            is_same_node: true,
            ..upsert
        };
        for options in [PutOptions::default(), elsewhere] {
            let placing = handle.place_all(objects.clone(), options).await;
            assert_eq!(placing.left_bytes(), 0);
            let stored = placing.finish().await;
            assert!(stored[..5].iter().all(Result::is_ok), "{stored:?}");
        }
        // What is not finished, or is too late, leaves nothing.
        let before = used_bytes(&handle).await;
        drop(handle.place_all(vec![(key(7), value(0))], upsert).await);
        let late = handle.place_all(vec![(key(8), value(0))], PutOptions::default());
        let late = late.await;
        let put = handle.put(key(8), lent(1, 10), PutOptions::default());
        put.await.expect("written");
        let stored = late.finish().await;
        assert!(matches!(stored[0], Ok(Stored::Exists { .. })), "{stored:?}");
        eventually("their room is free", async || {
            used_bytes(&handle).await < before + LONG as u64
        })
        .await;
        assert_eq!(handle.get_bytes(key(8)).await, Ok(Some(bytes_of(1, 10))));
    });
}

#[test]
fn so_many_copies_are_lent_and_no_more() {
    run(1, || async {
        let scene = Scene::of(1, 512 * MIB).await;
        let client = scene.inside(0).await;
        let handle = client.handle().expect("room for a task");
        let put = handle.put(key(0), lent(0, 70_000), PutOptions::default());
        put.await.expect("written");
        let value = lent(1, 70_000);
        let objects = (1..4100).map(|n| (key(n), value.clone()));
        let placing = handle.place_all(objects.collect(), PutOptions::default());
        let placing = placing.await;
        assert_eq!(placing.left_bytes(), 4096 * 70_000);
        let stored = placing.finish().await;
        assert!(stored.iter().all(Result::is_ok));
        let mut lent = Vec::new();
        let own = loop {
            match handle.bring_bytes(key(0)).await.expect("asked") {
                Some(ObjectBytes::Lent(bytes)) => lent.push(bytes),
                own => break own,
            }
        };
        assert_eq!(lent.len(), 4096);
        assert_eq!(own.expect("it is there").as_slice(), bytes_of(0, 70_000));
        lent.pop();
        let again = handle.bring_bytes(key(0)).await.expect("asked");
        assert!(matches!(again, Some(ObjectBytes::Lent(_))));
    });
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_kept() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 8 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let handle = client.handle().expect("room for a task");
            let long = handle.put(vec![0; 5000], lent(1, 9), PutOptions::default());
            assert!(matches!(
                long.await.expect_err("no key").kind,
                StoreErrorKind::Key(_)
            ));
            let put = handle.put(key(1), lent(1, 1000), PutOptions::default());
            put.await.expect("written");
            let (memory, pieces) = empty(999);
            let small = handle.get(key(1), pieces).await;
            assert!(!small.expect_err("it does not fit").is_retryable());
            assert_eq!(memory.into_bytes().expect("let go of"), vec![0; 999]);
            let (_memory, pieces) = empty(1);
            let beyond = handle.get_ranges(key(1), vec![range(1000, 1)], pieces);
            let kind = StoreErrorKind::OutOfRange {
                object_len_bytes: 1000,
            };
            assert_eq!(beyond.await.expect_err("beyond the end").kind, kind);
            let miss = handle.get(key(2), Vec::new()).await;
            assert_eq!(miss, Ok(Got::Miss { is_known: true }));
            assert_eq!(handle.get_bytes(key(2)).await, Ok(None));
            let none = handle.get_ranges(key(1), Vec::new(), Vec::new()).await;
            let kind = StoreErrorKind::Ranges { ranges: 0 };
            assert_eq!(none.expect_err("of no range").kind, kind);
            assert_eq!(handle.exists(Vec::new()).await, Vec::new());
            let removed = handle.remove(vec![key(1)]).await;
            assert_eq!(removed, [Ok(true)]);
        }
    });
}

/// Nobody answers while they are put, since this core asks itself.
#[test]
fn more_questions_than_may_wait_are_refused() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 8 * MIB).await;
        let client = scene.inside(0).await;
        let handle = client.handle().expect("room for a task");
        let put = handle.put(key(1), lent(1, 10), PutOptions::default());
        put.await.expect("written");
        let reservation = reserve(&handle, 3, 1 << 20).await;
        let asked: Vec<_> = (0..QUESTIONS_MAX)
            .map(|_| handle.exists(vec![key(1), key(2)]))
            .collect();
        let memory = SharedMemory::owned(vec![1; 10]);
        let one_more = handle.put(key(2), vec![Lent::whole(&memory)], PutOptions::default());
        let refused = one_more.await.expect_err("too many");
        assert_eq!(refused.kind, StoreErrorKind::TooManyOperations);
        assert!(refused.is_backpressure() && refused.is_retryable());
        memory.into_bytes().expect("it is let go of");
        let refused = handle.remove(vec![key(1), key(2)]).await;
        assert!(refused.iter().all(Result::is_err) && refused.len() == 2);
        let refused = reservation.commit().await.expect_err("too many");
        assert!(refused.error.is_backpressure() && refused.reservation.is_none());
        for asked in asked {
            assert_eq!(asked.await, [Ok(true), Ok(false)]);
        }
        let put = handle.put(key(2), lent(1, 10), PutOptions::default());
        put.await.expect("there is room again");
        eventually("what could not be committed is given back", async || {
            used_bytes(&handle).await < 1 << 20
        })
        .await;
    });
}

/// Bytes of all nodes' memory that are in use.
async fn used_bytes(handle: &StoreHandle) -> u64 {
    let stats = handle.stat().await.expect("asked").into_iter();
    let used = |stat: Result<NodeStat, _>| stat.expect("it answers").shards.used_bytes;
    stats.map(|(_, stat)| used(stat)).sum()
}

async fn reserve(handle: &StoreHandle, n: usize, len: usize) -> ReservationHandle {
    let reserved = handle.reserve(key(n), len, PutOptions::default(), KEEP);
    match reserved.await.expect("an answer") {
        ReservedHandle::Room(reservation) => reservation,
        ReservedHandle::Exists { .. } => panic!("the key is taken"),
    }
}

#[test]
fn threads_write_objects_in_ranges() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let handle = client.handle().expect("room for a task");
        let reservation = reserve(&handle, 1, 100_000).await;
        assert_eq!(
            (reservation.len(), reservation.is_empty()),
            (100_000, false)
        );
        let bytes = bytes_of(1, 100_000);
        let part = |range: std::ops::Range<usize>| vec![Lent::bytes(bytes[range].to_vec())];
        let second = reservation.write(70_000, part(70_000..100_000));
        let first = reservation.write(0, part(0..10_000));
        assert_eq!((second.await, first.await), (Ok(()), Ok(())));
        let failure = reservation.commit().await.expect_err("a part is missing");
        let kind = StoreErrorKind::Refused(Status::Unfinished);
        assert_eq!(failure.error.kind, kind);
        let reservation = failure.reservation.expect("it is still there");
        let outside = reservation.write(99_999, part(0..2)).await;
        let object_len_bytes = 100_000;
        let kind = StoreErrorKind::OutOfRange { object_len_bytes };
        assert_eq!(outside.expect_err("beyond the end").kind, kind);
        let rest = reservation.write(10_000, part(10_000..70_000));
        rest.await.expect("written");
        let stored = reservation.commit().await.expect("it is whole");
        assert!(matches!(stored, Stored::Written { .. }));
        scene.expect(&client, 1, 100_000).await;
        let taken = handle.reserve(key(1), 1, PutOptions::default(), KEEP).await;
        assert!(matches!(taken, Ok(ReservedHandle::Exists { .. })));
    });
}

#[test]
fn threads_write_long_objects_in_ranges() {
    const LONG: usize = PAYLOAD_BYTES_MAX + 100_000;
    const LAYER: usize = 10 << 20;
    run(0, || async {
        let scene = Scene::of(2, 256 * MIB).await;
        let client = scene.client().await;
        let handle = client.handle().expect("room for a task");
        let reservation = reserve(&handle, 1, LONG).await;
        assert_eq!(reservation.len(), LONG);
        let memory = SharedMemory::owned(bytes_of(1, LONG));
        let layers = (0..LONG).step_by(LAYER);
        let writes: Vec<_> = layers
            .map(|start| {
                let len = (LONG - start).min(LAYER);
                let layer = Lent::part(&memory, start..start + len).expect("inside");
                reservation.write(start, vec![layer])
            })
            .collect();
        for written in writes {
            assert_eq!(written.await, Ok(()));
        }
        let stored = reservation.commit().await.expect("it is whole");
        assert!(matches!(stored, Stored::Written { .. }));
        let into = SharedMemory::owned(vec![0; LONG]);
        let got = handle.get(key(1), vec![Lent::whole(&into)]).await;
        let len_bytes = LONG;
        assert!(matches!(got, Ok(Got::Hit { len_bytes: got, .. }) if got == len_bytes));
        let both = [into, memory].map(|memory| memory.into_bytes().expect("it is let go of"));
        assert!(both[0] == both[1]);
    });
}

#[test]
fn reservations_that_threads_give_up_leave_no_room_taken() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let handle = client.handle().expect("room for a task");
        let revoked = reserve(&handle, 1, 1 << 20).await;
        assert_eq!(revoked.revoke().await, Ok(()));
        let (dropped, written) = (
            reserve(&handle, 2, 1 << 20).await,
            reserve(&handle, 3, 1 << 20).await,
        );
        drop(dropped);
        // It is taken back while a write of it is under way.
        let writing = written.write(0, lent(1, 1 << 20));
        let failure = written.commit().await.expect_err("it is being written");
        assert_eq!(failure.error.kind, StoreErrorKind::TooManyOperations);
        let written = failure.reservation.expect("it is still there");
        assert_eq!(written.revoke().await, Ok(()));
        let _either = writing.await;
        // Of an answer that nobody waits for.
        drop(handle.reserve(key(4), 1 << 20, PutOptions::default(), KEEP));
        eventually("no memory is in use", async || {
            used_bytes(&handle).await == 0
        })
        .await;
    });
}

#[test]
fn a_get_that_nobody_waits_for_ends() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 64 * MIB).await;
        let handle = scene.client().await.handle().expect("a task");
        let stored = handle.put(key(1), lent(1, 100), PutOptions::default());
        stored.await.expect("written");
        scene.remove_first().await;
        let (memory, pieces) = empty(100);
        let get = handle.get(key(1), pieces);
        // Nobody answers: it goes on until its deadline, seconds from now.
        let waited = time::timeout(Duration::from_millis(300), get).await;
        assert!(waited.is_err(), "it has no answer: {waited:?}");
        is_let_go_of(memory).await;
    });
}

/// Soon.
async fn is_let_go_of(mut memory: SharedMemory) {
    let ended = time::now() + Duration::from_millis(300);
    while let Err(lent) = memory.into_bytes() {
        assert!(time::now() < ended, "its memory is let go of");
        memory = lent;
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn puts_that_nobody_waits_for_go_on_unless_they_are_to_be_given_up() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 64 * MIB).await;
        let handle = scene.client().await.handle().expect("a task");
        for options in [PutOptions::default(), upsert()] {
            drop(handle.put(key(1), lent(1, 100), options));
        }
        eventually("it is written", async || {
            handle.get_bytes(key(1)).await == Ok(Some(bytes_of(1, 100)))
        })
        .await;
        scene.remove_first().await;
        let handle = handle.giving_up();
        for at_once in [true, false] {
            let (memory, pieces) = empty(100);
            let waited = if at_once {
                let put = handle.put(key(1), pieces, upsert());
                time::timeout(Duration::from_millis(300), put).await.is_ok()
            } else {
                let placing = handle.place_all(vec![(key(2), pieces)], upsert());
                let put = placing.await.finish();
                time::timeout(Duration::from_millis(300), put).await.is_ok()
            };
            assert!(!waited, "it has no answer");
            is_let_go_of(memory).await;
        }
    });
}

fn upsert() -> PutOptions {
    PutOptions {
        kind: WriteKind::Upsert,
        ..PutOptions::default()
    }
}

/// A coordinator on a core of its own.
pub(crate) fn coordinator() -> (Runtime, SocketAddr) {
    let placement = Placement::Anywhere(1);
    let runtime = Runtime::start(&placement, CoreOptions::default()).expect("a core");
    let (told, address) = mpsc::channel();
    let serving = runtime.spawn_on(CoreIndex(0), move || async move {
        let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address"));
        let listener = listener.expect("a port");
        told.send(listener.local_addr()).expect("it is waited for");
        serve(listener, Hosted::in_memory(), None, pending()).await;
    });
    drop(serving.expect("it runs"));
    let address = address.recv().expect("it listens");
    (runtime, address)
}

pub(crate) fn node(id: u64, cores: usize, coordinator: SocketAddr) -> Node {
    node_of(cores, options(id, coordinator))
}

pub(crate) fn options(id: u64, coordinator: SocketAddr) -> NodeOptions {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let mut options = NodeOptions::new(NodeId(id), listen, 64 * MIB);
    options.cluster = Some(ClusterOptions::new("threads", vec![coordinator]));
    options
}

pub(crate) fn node_of(cores: usize, mut options: NodeOptions) -> Node {
    options.placement = Placement::Anywhere(cores);
    Node::start(options).expect("a node")
}

/// What one thread does with keys of its own, alone and in batches.
fn work(handle: &StoreHandle, thread: usize) {
    let name = |n: usize| key(thread * 1000 + n);
    for n in 0..60 {
        let put = handle.put(name(n), lent(n, 3000), PutOptions::default());
        put.wait().expect("written");
        let bytes = handle.get_bytes(name(n)).wait();
        assert_eq!(bytes, Ok(Some(bytes_of(n, 3000))));
    }
    let objects = (60..120).map(|n| (name(n), lent(n, 200))).collect();
    let stored = handle.put_all(objects, PutOptions::default()).wait();
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    let present = handle.exists((0..121).map(name).collect()).wait();
    for (n, present) in present.into_iter().enumerate() {
        assert_eq!(present, Ok(n < 120));
    }
    let (memory, wanted): (Vec<_>, Vec<_>) = (60..120)
        .map(|n| {
            let (memory, pieces) = empty(200);
            (memory, (name(n), pieces))
        })
        .unzip();
    let got = handle.get_all(wanted).wait();
    for (n, (memory, got)) in (60..).zip(memory.into_iter().zip(got)) {
        assert!(
            matches!(got, Ok(Got::Hit { len_bytes: 200, .. })),
            "{got:?}"
        );
        assert_eq!(memory.into_bytes().expect("let go of"), bytes_of(n, 200));
    }
    let reserved = handle.reserve(name(200), 5000, PutOptions::default(), KEEP);
    let Ok(ReservedHandle::Room(reservation)) = reserved.wait() else {
        panic!("room for it");
    };
    let written = reservation.write(0, lent(9, 5000));
    assert_eq!(written.wait(), Ok(()));
    reservation.commit().wait().expect("whole");
    assert_eq!(
        handle.get_bytes(name(200)).wait(),
        Ok(Some(bytes_of(9, 5000)))
    );
    let removed = handle.remove((0..120).map(name).collect()).wait();
    assert!(
        removed.iter().all(|removed| *removed == Ok(true)),
        "{removed:?}"
    );
}

#[test]
fn several_threads_share_a_node_of_several_cores() {
    let (_coordinating, coordinator) = coordinator();
    let node = node(1, 2, coordinator);
    node.joined().expect("it joins");
    let options = ClusterClientOptions::new(Vec::new());
    let inside = node.handle(&options).expect("clients on its cores");
    let outside = ClusterClientOptions::new(vec![node.address()]);
    let placement = Placement::Anywhere(2);
    let host = ClientHost::start(&placement, CoreOptions::default(), &outside);
    let host = host.expect("clients on cores of their own");
    let by_coordinator = ClientHost::start_in(
        ClusterOptions::new("threads", vec![coordinator]),
        &placement,
        CoreOptions::default(),
        options,
    );
    let by_coordinator = by_coordinator.expect("the coordinator tells who the members are");
    let threads: Vec<_> = [
        inside.clone(),
        inside.clone(),
        host.handle(),
        by_coordinator.handle(),
    ]
    .into_iter()
    .enumerate()
    .map(|(thread, handle)| thread::spawn(move || work(&handle, thread)))
    .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    let stats = inside.stat().wait().expect("asked");
    assert_eq!(stats.len(), 2, "one of each core");
    let entries = stats
        .into_iter()
        .map(|(_, stat)| stat.expect("it answers").shards.entries);
    assert_eq!(entries.sum::<u64>(), 4, "what each thread wrote in ranges");
    let of_host = host.handle();
    drop(host);
    let gone = of_host.get_bytes(key(200)).wait();
    assert_eq!(
        gone.expect_err("its cores ended").kind,
        StoreErrorKind::ShutDown
    );
    assert!(matches!(inside.get_bytes(key(200)).wait(), Ok(Some(_))));
    node.shut_down().expect("in good order");
    let gone = inside.exists(vec![key(1), key(2)]).wait();
    let kinds = gone.iter().map(|gone| gone.expect_err("it has ended").kind);
    assert!(kinds.eq([StoreErrorKind::ShutDown; 2]));
}

#[test]
fn a_node_that_is_no_member_has_no_handle() {
    let mut options = ClusterClientOptions::new(Vec::new());
    options.timeout = Duration::from_millis(50);
    let listen = "127.0.0.1:0".parse().expect("an address");
    let alone = Node::start(NodeOptions::new(NodeId(3), listen, MIB)).expect("a node");
    let error = alone.handle(&options).expect_err("it is alone");
    assert!(matches!(error, HandleError::Cluster(_)) && error.is_retryable());
    let host = ClientHost::start(
        &Placement::Anywhere(1),
        CoreOptions::default(),
        &ClusterClientOptions {
            timeout: Duration::from_millis(50),
            ..ClusterClientOptions::new(vec![alone.address()])
        },
    );
    assert!(matches!(host, Err(HandleError::Cluster(_))));
}
