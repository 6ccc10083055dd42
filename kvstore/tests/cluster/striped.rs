//! Objects in parts, on several nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, Fetched, Got, Lent, Preferred, PutOptions, StoreErrorKind, Stored, Value,
};
use lunette_kvstore_proto::key::{Key, KeyFault, RESERVED_PREFIX};
use lunette_kvstore_proto::message::directory::{AskerId, WriteMessage};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::residence::STANDS_BY;
use lunette_kvstore_proto::striped::{MANIFEST_BYTES, Manifest, OBJECT_LEN_MAX, WriteId};
use lunette_kvstore_proto::version::{Form, WriteKind};
use lunette_runtime::arena;
use lunette_runtime::arena::{Exposed, SharedMemory};
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::{Attachments, CallError, Payload, Room, WriteSource};

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern, room, stranger};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const PART: u32 = 10_000;

fn striped(kind: WriteKind) -> PutOptions {
    PutOptions {
        kind,
        stripe_len: Some(PART),
        ..PutOptions::default()
    }
}

fn in_parts() -> PutOptions {
    striped(WriteKind::Put)
}

const fn range(offset_bytes: u64, len_bytes: u32) -> ByteRange {
    ByteRange {
        offset_bytes,
        len_bytes,
    }
}

/// Copies that all nodes have.
async fn entries(client: &ClusterClient) -> u64 {
    let stats = client.stat().await.into_iter();
    stats
        .map(|(_, stat)| stat.expect("it answers").shards.entries)
        .sum()
}

async fn put(client: &ClusterClient, n: usize, len: usize, options: PutOptions) -> Stored {
    let value = Value::new(pattern(n, len));
    let stored = client.put(&key(n), value, options).await;
    stored.expect("it is put")
}

async fn is_missed(client: &ClusterClient, n: usize, len: usize) -> bool {
    let fetched = client.get(&key(n), room(len)).await.expect("an answer");
    matches!(fetched, Fetched::Miss { is_known: true, room: back } if back.len() == len)
}

#[test]
fn objects_in_parts_are_as_others_are() {
    const LEN: usize = 123_456;
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let first = put(&client, 1, LEN, in_parts()).await;
            let Stored::Written { version, .. } = first else {
                panic!("{first:?}");
            };
            // Where an answer was late, a part may have come twice.
            eventually("each part is there once", async || {
                entries(&client).await == 13 + 1
            })
            .await;
            assert!(scene.holders(&client).await > 1, "parts are spread");
            scene.expect(&client, 1, LEN).await;
            let keys = [key(1), key(2)];
            assert_eq!(client.exists(&keys).await, Ok(vec![true, false]));
            assert_eq!(client.sizes(&keys).await, [Ok(Some(LEN)), Ok(None)]);
            let found = client.lookup(&key(1), None).await.expect("asked");
            assert!(found.is_some_and(|found| found.form == Form::Striped));
            // It is there: nothing is written, in parts or not.
            for options in [in_parts(), PutOptions::default()] {
                let again = put(&client, 1, LEN, options).await;
                assert_eq!(again, Stored::Exists { version });
            }
            assert_eq!(entries(&client).await, 13 + 1);
            // A shorter one in its place, whose parts are all that is left.
            let upserted = put(&client, 1, LEN / 2, striped(WriteKind::Upsert)).await;
            assert!(matches!(upserted, Stored::Written { version: now, .. } if now > version));
            scene.expect(&client, 1, LEN / 2).await;
            eventually("the former parts are removed", async || {
                entries(&client).await == 7 + 1
            })
            .await;
            let removed = client.remove(&[key(2), key(1)]).await;
            assert_eq!(removed, [Ok(false), Ok(true)]);
            assert_eq!(entries(&client).await, 0, "its parts are gone with it");
            assert!(is_missed(&client, 1, LEN).await);
        }
    });
}

#[test]
fn ranges_of_them_cross_parts() {
    const LEN: usize = 95_000;
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let name = key(1);
        for client in [scene.client().await, scene.inside(1).await] {
            put(&client, 1, LEN, in_parts()).await;
            let ranges = [
                range(94_999, 1),
                range(9_999, 40_002),
                range(20_000, 10_000),
                range(5, 0),
                range(0, 1),
            ];
            let total: usize = ranges.iter().map(|range| range.len_bytes as usize).sum();
            let whole = pattern(1, LEN);
            let mut expected = Vec::new();
            for range in ranges {
                let start = usize::try_from(range.offset_bytes).expect("small");
                expected
                    .extend_from_slice(&whole.as_slice()[start..start + range.len_bytes as usize]);
            }
            let fetched = client.get_ranges(&key(1), &ranges, room(total + 3)).await;
            let Ok(Fetched::Hit {
                room: back,
                len_bytes,
                object_len_bytes,
                ..
            }) = fetched
            else {
                panic!("{fetched:?}");
            };
            assert_eq!((len_bytes, object_len_bytes), (total, LEN));
            assert!(back.as_slice()[..total] == expected);
            // Into pieces that lie anywhere.
            let piece = |len| arena().alloc(len).expect("room").expose();
            let into = [7, 12_345, 40_000].map(piece);
            let fetched = client.get_ranges(&name, &ranges, Room::exposed(into.to_vec()));
            let hit = fetched.await.expect("an answer");
            assert!(matches!(hit, Fetched::Hit { len_bytes, .. } if len_bytes == total));
            let bytes: Vec<u8> = into.iter().flat_map(Exposed::to_vec).collect();
            assert!(bytes[..total] == expected);
            for bad in [range(95_000, 1), range(0, 95_001), range(u64::MAX, 0)] {
                let ranges = [range(0, 1), bad];
                let asked = client.get_ranges(&name, &ranges, room(9));
                let failure = asked.await.expect_err("it is not there");
                let object_len_bytes = LEN;
                let kind = StoreErrorKind::OutOfRange { object_len_bytes };
                assert_eq!(failure.error.kind, kind);
                assert!(failure.room.is_some_and(|room| room.len() == 9));
            }
            let failure = client.get(&key(1), room(LEN - 1)).await;
            let failure = failure.expect_err("it does not fit");
            let is_too_long = |kind| {
                matches!(kind, StoreErrorKind::Call(CallError::TooLong { payload_len_bytes, .. })
                    if payload_len_bytes as usize == LEN)
            };
            assert!(is_too_long(failure.error.kind), "{failure}");
            assert!(failure.room.is_some_and(|room| room.len() == LEN - 1));
            assert_eq!(client.remove(&[key(1)]).await, [Ok(true)]);
        }
    });
}

#[test]
fn of_two_writers_one_is_there_and_the_other_leaves_nothing() {
    const LEN: usize = 60_000;
    run(10, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let other = scene.client().await.handle().expect("room for a task");
        let name = key(1);
        let bytes = |n: usize| pattern(n, LEN).as_slice().to_vec();
        for kind in [WriteKind::Put, WriteKind::Upsert] {
            let theirs = other.put(key(1), vec![Lent::bytes(bytes(2))], striped(kind));
            let ours = client.put(&name, Value::new(pattern(3, LEN)), striped(kind));
            let (ours, theirs) = (ours.await.expect("put"), theirs.await.expect("put"));
            let found = client.lookup(&key(1), None).await.expect("asked");
            let found = found.expect("it is there").version;
            let mut written = Vec::new();
            for (n, stored) in [(3, ours), (2, theirs)] {
                match stored {
                    Stored::Written { version, .. } => written.push((version, n)),
                    Stored::Exists { version } => assert_eq!(version, found),
                }
            }
            if kind == WriteKind::Put {
                assert_eq!(written.len(), 1);
            }
            let (last, n) = *written.iter().max().expect("one has written");
            assert_eq!(last, found);
            scene.expect_bytes(&client, &key(1), &pattern(n, LEN)).await;
            // Two upserts that have not seen each other leave one's parts to eviction.
            let most = if kind == WriteKind::Put { 7 } else { 13 };
            eventually("what lost is removed", async || {
                entries(&client).await <= most
            })
            .await;
            assert_eq!(client.remove(&[key(1)]).await, [Ok(true)]);
        }
    });
}

#[test]
fn where_parts_are_lost_the_object_is_and_it_can_be_put_again() {
    const LEN: usize = 400_000;
    run(WORLDS, || async {
        let scene = Scene::of(2, 2 * MIB).await;
        let client = scene.client().await;
        put(&client, 1, LEN, in_parts()).await;
        scene.expect(&client, 1, LEN).await;
        // The manifest is asked for again and again, its parts are not.
        for n in 100..200 {
            put(&client, n, 40_000, in_parts()).await;
            assert_eq!(client.sizes(&[key(1)]).await, [Ok(Some(LEN))]);
        }
        assert_eq!(client.exists(&[key(1)]).await, Ok(vec![true]), "a hint");
        assert!(is_missed(&client, 1, LEN).await);
        assert_eq!(client.exists(&[key(1)]).await, Ok(vec![false]));
        let again = put(&client, 1, LEN, in_parts()).await;
        assert!(matches!(again, Stored::Written { .. }));
        scene.expect(&client, 1, LEN).await;
    });
}

/// It takes ten seconds and more to write all parts, while others' objects fill the memory again and again.
#[test]
fn parts_stay_until_their_object_is_written_however_long_that_takes() {
    const LEN: usize = 1_000_000;
    let options = WorldOptions {
        bytes_per_second: 100_000,
        ..WorldOptions::default()
    };
    let mut world = World::new(1, options);
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let done = world.spawn(process, 0, || async {
        let scene = Scene::of(1, 2 * MIB).await;
        let (client, others) = (scene.client().await, scene.inside(0).await);
        let begun = time::now();
        let writing = spawn_local(async move {
            put(&client, 1, LEN, in_parts()).await;
            client
        });
        let mut filled = 0;
        while !writing.is_finished() {
            filled += 1;
            put(&others, 100 + filled, 60_000, PutOptions::default()).await;
            time::sleep(Duration::from_millis(50)).await;
        }
        let took = time::now().since(begun);
        assert!(took > 2 * STANDS_BY, "{took:?}");
        assert!(filled * 60_000 > 4 << 20, "{filled} others");
        drop(writing.await);
        scene.expect(&others, 1, LEN).await;
    });
    let until = world.now() + Duration::from_secs(100);
    assert!(world.run_until(until, || done.is_there()), "it ends");
}

#[test]
fn what_is_longer_than_all_memory_is_refused_and_leaves_nothing() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 2 * MIB).await;
        let client = scene.client().await;
        let value = Value::new(pattern(1, 6 << 20));
        let refused = client.put(&key(1), value, in_parts()).await;
        let refused = refused.expect_err("there is no room for it");
        assert_eq!(refused.kind, StoreErrorKind::Refused(Status::Full));
        assert!(refused.is_backpressure());
        assert_eq!(client.exists(&[key(1)]).await, Ok(vec![false]));
        eventually("its parts are gone", async || entries(&client).await == 0).await;
    });
}

/// Each node has room for one part. Of two parts one in four pairs has one home.
#[test]
fn parts_that_make_each_other_leave_are_tried_elsewhere() {
    const PUTS: usize = 100;
    const PART_LEN: usize = 1_100_000;
    run(0, || async {
        let scene = Scene::of(4, 2 * MIB).await;
        let client = scene.client().await;
        let options = PutOptions {
            stripe_len: Some(u32::try_from(PART_LEN).expect("short")),
            ..PutOptions::default()
        };
        for n in 0..PUTS {
            let stored = put(&client, n, 2 * PART_LEN, options).await;
            assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
            scene.expect(&client, n, 2 * PART_LEN).await;
            let removed = client.remove(&[key(n)]).await;
            assert!(removed[0].is_ok(), "{removed:?}");
            eventually("nothing is left", async || entries(&client).await == 0).await;
        }
    });
}

#[test]
fn parts_are_where_their_writer_prefers_them() {
    const LEN: usize = 55_000;
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        for (n, client) in [scene.client().await, scene.inside(0).await]
            .iter()
            .enumerate()
        {
            let map = client.map();
            let member = &map.members()[1 + n];
            let options = PutOptions {
                preferred: Preferred::new(&[member.address]).expect("one"),
                ..in_parts()
            };
            let stored = put(client, n, LEN, options).await;
            let is_there = matches!(
                stored,
                Stored::Written {
                    is_elsewhere: false,
                    ..
                }
            );
            assert!(is_there, "{stored:?}");
            assert_eq!(scene.held_by(client, member.id.0).await, 6 + 1);
            scene.expect(client, n, LEN).await;
        }
    });
}

#[test]
fn with_two_copies_a_node_may_go() {
    const LEN: usize = 200_000;
    run(WORLDS, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let options = PutOptions {
            copies: 2,
            ..in_parts()
        };
        put(&client, 1, LEN, options).await;
        eventually("each part has two copies", async || {
            entries(&client).await == 2 * (20 + 1)
        })
        .await;
        put(&client, 2, LEN, in_parts()).await;
        scene.remove_first().await;
        scene.expect(&client, 1, LEN).await;
        // What had one copy has lost some of it.
        assert!(is_missed(&client, 2, LEN).await);
    });
}

#[test]
fn batches_may_have_some_of_them_and_clearing_removes_all() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let len = |n: usize| 3_000 * (n % 20 + 1);
        for (first, is_same_node) in [(0, false), (20, true)] {
            let options = PutOptions {
                is_same_node,
                ..in_parts()
            };
            let before = [
                scene.held_by(&client, 1).await,
                scene.held_by(&client, 2).await,
            ];
            let numbers = first..first + 12;
            let value = |n| (key(n), Value::new(pattern(n, len(n))));
            let objects: Vec<_> = numbers.clone().map(value).collect();
            let stored = client.put_all(&objects, options).await;
            assert!(stored.iter().all(Result::is_ok), "{stored:?}");
            let wanted = numbers.clone().map(|n| (key(n), room(len(n))));
            let fetched = client.get_all(wanted).await;
            for (n, fetched) in numbers.clone().zip(fetched) {
                let Ok(Fetched::Hit { room, .. }) = fetched else {
                    panic!("{fetched:?}");
                };
                assert!(room.as_slice() == pattern(n, len(n)).as_slice());
            }
            let keys: Vec<_> = numbers.clone().map(key).collect();
            let sizes = client.sizes(&keys).await;
            let sizes: Vec<_> = sizes.into_iter().map(Result::ok).collect();
            let expected: Vec<_> = numbers.map(|n| Some(Some(len(n)))).collect();
            assert_eq!(sizes, expected);
            // Parts too are where they are wished to be.
            let after = [
                scene.held_by(&client, 1).await,
                scene.held_by(&client, 2).await,
            ];
            let grown = before
                .iter()
                .zip(after)
                .filter(|(before, after)| **before < *after);
            assert_eq!(grown.count(), if is_same_node { 1 } else { 2 });
        }
        scene.clear().await;
        eventually("all of it is gone", async || entries(&client).await == 0).await;
        assert!(is_missed(&client, 11, len(11)).await);
    });
}

#[test]
fn what_is_too_long_for_one_copy_is_in_parts() {
    const PIECE: usize = 33 << 20;
    run(0, || async {
        let scene = Scene::of(2, 256 * MIB).await;
        let client = scene.client().await;
        let mut piece = arena().alloc(PIECE).expect("room");
        for (index, bytes) in piece.as_mut_slice().chunks_mut(4096).enumerate() {
            bytes.fill(u8::try_from(index % 251).expect("small"));
        }
        let piece = piece.freeze();
        let value = Value::gathered(vec![piece.clone().into(), piece.clone().into()]);
        let put = client.put(&key(1), value, PutOptions::default()).await;
        assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
        assert_eq!(entries(&client).await, 5 + 1);
        let into = [PIECE + 10, PIECE].map(|len| arena().alloc(len).expect("room").expose());
        let fetched = client.get(&key(1), Room::exposed(into.to_vec())).await;
        let fetched = fetched.expect("an answer");
        assert!(matches!(fetched, Fetched::Hit { len_bytes, .. } if len_bytes == 2 * PIECE));
        assert_eq!(into[0].slice(0, PIECE).crc32c(), crc32c(piece.as_slice()));
        assert_eq!(into[0].slice(PIECE, 10).to_vec(), piece.as_slice()[..10]);
        // More than one answer carries.
        let all = [range(0, u32::try_from(2 * PIECE).expect("small"))];
        let name = key(1);
        let fetched = client.get_ranges(&name, &all, Room::exposed(into.to_vec()));
        let fetched = fetched.await.expect("an answer");
        assert!(matches!(fetched, Fetched::Hit { len_bytes, .. } if len_bytes == 2 * PIECE));
        let fetched = client.get_ranges(&key(2), &all, room(9)).await;
        assert!(matches!(fetched, Ok(Fetched::Miss { is_known: true, .. })));
    });
}

#[test]
fn what_is_longer_than_an_object_may_be_is_refused() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let piece = pattern(1, 16 << 20);
        let count = usize::try_from(OBJECT_LEN_MAX).expect("64 bits") / piece.len();
        let mut pieces: Vec<WriteSource> = vec![piece.clone().into(); count];
        pieces.push(piece.slice(0, 1).into());
        let value = Value::gathered(pieces);
        let len_bytes = value.len();
        let (name, whole) = (key(1), PutOptions::default());
        let refused = client.put(&name, value.clone(), whole).await;
        let error = refused.expect_err("too long");
        let kind = StoreErrorKind::ValueTooLong {
            len_bytes,
            len_max_bytes: OBJECT_LEN_MAX,
        };
        assert_eq!(error.kind, kind);
        assert!(!error.is_retryable());
        drop(value);
        assert_eq!(entries(&client).await, 0);
        piece.try_unfreeze().expect("nobody has its bytes any more");
        // Pieces that no part can have are told before anything is written.
        let byte = pattern(1, 1);
        let pieces: Vec<WriteSource> = vec![byte.into(); 2 * PART as usize];
        let refused = client
            .put(&key(1), Value::gathered(pieces), in_parts())
            .await;
        let error = refused.expect_err("too many");
        assert!(matches!(error.kind, StoreErrorKind::TooManyPieces { .. }));
        assert_eq!(entries(&client).await, 0);
    });
}

#[test]
fn what_there_is_no_room_for_leaves_nothing() {
    run(0, || async {
        let mut scene = Scene::of(1, 2 * MIB).await;
        scene.set_client_timeout(Duration::from_millis(300));
        let client = scene.client().await;
        let options = PutOptions {
            stripe_len: Some(3 << 20),
            ..in_parts()
        };
        let value = Value::new(pattern(1, 4 << 20));
        let error = client.put(&key(1), value, options).await;
        let error = error.expect_err("no part fits");
        assert_eq!(error.kind, StoreErrorKind::Refused(Status::TooLarge));
        eventually("its parts are removed", async || {
            entries(&client).await == 0
        })
        .await;
        assert!(is_missed(&client, 1, 9).await);
    });
}

#[test]
fn keys_of_parts_and_manifests_are_nobody_elses() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let ours = [RESERVED_PREFIX.as_slice(), b"1"].concat();
        let kind = StoreErrorKind::Key(KeyFault::Reserved);
        let put = client
            .put(&ours, Value::empty(), PutOptions::default())
            .await;
        assert_eq!(put.expect_err("the store's").kind, kind);
        let got = client.get(&ours, room(9)).await.expect_err("the store's");
        assert_eq!(got.error.kind, kind);
        assert!(got.room.is_some());
        let removed = client.remove(&[ours]).await;
        assert_eq!(removed[0].expect_err("the store's").kind, kind);
        // What says that it is a manifest has to be one.
        let (connection, to) = stranger(&client).await;
        let good = Manifest::new(100, 10, WriteId(7)).expect("within the limits");
        let mut bad = good.encode();
        bad[MANIFEST_BYTES - 1] ^= 1;
        let name = key(1);
        for (request, bytes, status) in [
            (1, vec![0; MANIFEST_BYTES - 1], Status::BadRequest),
            (2, Vec::new(), Status::BadRequest),
            (3, bad.to_vec(), Status::BadRequest),
            (4, good.encode().to_vec(), Status::Ok),
        ] {
            let asker = (AskerId(5), RequestId(request));
            let key = Key::new(&name).expect("a key");
            let message = WriteMessage {
                form: Form::Striped,
                wait_ms: 1_000,
                ..WriteMessage::new(asker, RequestId(0), to, key)
            };
            let body = |out: &mut Vec<u8>| message.encode(FormatVersion::NEWEST, out);
            let mut region = arena().alloc(bytes.len().max(1)).expect("room");
            region.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
            let region = region.freeze().slice(0, bytes.len());
            let payload = (!bytes.is_empty()).then(|| Payload::region(region, crc32c(&bytes)));
            let attachments = Attachments {
                payload,
                room: None,
                arrange: None,
            };
            let patience = Duration::from_secs(9);
            let asked = connection.call(Op::Write.code(), body, attachments, patience);
            let reply = asked.await.expect("it answers");
            assert_eq!(Status::from_code(reply.status), status, "{bytes:?}");
        }
        // Its parts were never there.
        assert_eq!(client.sizes(&[key(1)]).await, [Ok(Some(100))]);
        assert!(is_missed(&client, 1, 100).await);
        assert_eq!(client.exists(&[key(1)]).await, Ok(vec![false]));
    });
}

#[test]
fn threads_put_and_get_them() {
    const LEN: usize = 88_888;
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let handle = client.handle().expect("room for a task");
            let bytes = pattern(1, LEN).as_slice().to_vec();
            let memory = SharedMemory::owned(bytes.clone());
            let pieces = [0..5, 5..50_000, 50_000..LEN];
            let pieces = pieces.map(|range| Lent::part(&memory, range).expect("inside"));
            let put = handle.put(key(1), pieces.into(), in_parts()).await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
            memory.into_bytes().expect("it is let go of");
            assert_eq!(handle.get_bytes(key(1)).await, Ok(Some(bytes.clone())));
            assert_eq!(handle.sizes(vec![key(1)]).await, [Ok(Some(LEN))]);
            let memory = SharedMemory::owned(vec![0; 30_000]);
            let ranges = vec![range(9_000, 20_000), range(70_000, 10_000)];
            let got = handle.get_ranges(key(1), ranges, vec![Lent::whole(&memory)]);
            let got = got.await;
            assert!(
                matches!(
                    got,
                    Ok(Got::Hit {
                        len_bytes: 30_000,
                        ..
                    })
                ),
                "{got:?}"
            );
            let expected = [&bytes[9_000..29_000], &bytes[70_000..80_000]].concat();
            assert!(memory.into_bytes().expect("let go of") == expected);
            assert_eq!(handle.remove(vec![key(1)]).await, [Ok(true)]);
            assert_eq!(handle.get_bytes(key(1)).await, Ok(None));
            assert_eq!(entries(&client).await, 0);
        }
    });
}

/// Whoever reads finds the parts of the former one gone, and looks again.
#[test]
fn what_is_replaced_while_it_is_read_is_read_whole() {
    run(5, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let (writer, reader) = (scene.client().await, scene.client().await);
        let writer = writer.handle().expect("room for a task");
        let reader = reader.handle().expect("room for a task");
        let len = |n: usize| if n.is_multiple_of(2) { 25_000 } else { 90_000 };
        let bytes = |n: usize| pattern(n, len(n)).as_slice().to_vec();
        let lent = |n: usize| vec![Lent::bytes(bytes(n))];
        let upsert = striped(WriteKind::Upsert);
        let put = writer.put(key(1), lent(0), upsert);
        put.await.expect("written");
        for n in 1..30 {
            let replacing = writer.put(key(1), lent(n), upsert);
            let got = reader.get_bytes(key(1)).await.expect("asked");
            let got = got.expect("it is always there");
            let is_one = |n| got == bytes(n);
            assert!(is_one(n - 1) || is_one(n), "{} bytes", got.len());
            replacing.await.expect("written");
        }
    });
}
