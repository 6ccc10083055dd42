//! Objects in pieces, in parts and in batches.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{Fetched, PutOptions, StoreErrorKind, Stored, VALUE_PIECES_MAX, Value};
use lunette_kvstore_proto::asker::OPERATIONS_MAX;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{AskerId, GetMessage};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::range::{ByteRange, RANGES_MAX};
use lunette_runtime::arena;
use lunette_runtime::arena::Exposed;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::{Attachments, CallError, Room, WriteSource};

use super::on_each_driver::run;
use super::scene::{Scene, key, pattern, room, stranger};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;

/// The bytes of a region, in pieces of these lengths: every second one is exposed memory.
fn pieces(n: usize, lens: &[usize]) -> Vec<WriteSource> {
    let whole = pattern(n, lens.iter().sum());
    let mut start = 0;
    let mut pieces = Vec::new();
    for (index, &len) in lens.iter().enumerate() {
        let piece = whole.slice(start, len);
        start += len;
        pieces.push(if index % 2 == 0 {
            WriteSource::Region(piece)
        } else {
            let exposed = exposed(len);
            exposed.copy_in(0, piece.as_slice());
            WriteSource::Exposed(exposed)
        });
    }
    pieces
}

fn exposed(len: usize) -> Exposed {
    let region = arena().alloc(len.max(1)).expect("room");
    region.expose().slice(0, len)
}

const fn range(offset_bytes: u64, len_bytes: u32) -> ByteRange {
    ByteRange {
        offset_bytes,
        len_bytes,
    }
}

/// Gets that end early, since their room is too short or nobody waits for them any more, take no room among those under way.
#[test]
fn many_gets_may_end_early() {
    run(1, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 100).await;
        for _ in 0..=OPERATIONS_MAX {
            let failure = client.get(&key(1), room(99)).await;
            let kind = failure.expect_err("it does not fit").error.kind;
            let is_too_long = matches!(kind, StoreErrorKind::Call(CallError::TooLong { .. }));
            assert!(is_too_long, "{kind}");
        }
        for _ in 0..=OPERATIONS_MAX {
            let name = key(1);
            let mut get = Box::pin(client.get(&name, room(100)));
            let begun = poll_fn(|cx| Poll::Ready(get.as_mut().poll(cx).is_pending())).await;
            assert!(begun, "it is asked for");
        }
        scene.expect_value(&client, 1, 1, 100).await;
    });
}

#[test]
fn values_are_gathered_from_pieces_and_scattered_into_pieces() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let shapes: [&[usize]; 4] = [&[5], &[0, 1, 0], &[1000, 70_000, 3, 0, 9999], &[0, 0]];
        for (n, lens) in shapes.into_iter().enumerate() {
            let value = Value::gathered(pieces(n, lens));
            let len: usize = lens.iter().sum();
            assert_eq!((value.len(), value.is_empty()), (len, len == 0));
            let put = client.put(&key(n), value, PutOptions::default()).await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
            scene.expect(&client, n, len).await;
            // Into other pieces than it came from.
            let into: Vec<Exposed> = lens.iter().rev().map(|&len| exposed(len)).collect();
            let fetched = client.get(&key(n), Room::exposed(into.clone())).await;
            let fetched = fetched.expect("an answer");
            assert!(matches!(fetched, Fetched::Hit { len_bytes, .. } if len_bytes == len));
            let bytes: Vec<u8> = into.iter().flat_map(Exposed::to_vec).collect();
            assert_eq!(bytes, pattern(n, len).as_slice());
        }
    });
}

#[test]
fn a_value_is_in_so_many_pieces_at_most() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let most = Value::gathered(pieces(1, &[3; VALUE_PIECES_MAX]));
        let put = client.put(&key(1), most, PutOptions::default()).await;
        assert!(put.is_ok(), "{put:?}");
        scene.expect(&client, 1, 3 * VALUE_PIECES_MAX).await;
        let more = Value::gathered(pieces(2, &[3; VALUE_PIECES_MAX + 1]));
        let put = client.put(&key(2), more, PutOptions::default()).await;
        let error = put.expect_err("too many");
        let pieces = VALUE_PIECES_MAX + 1;
        assert_eq!(error.kind, StoreErrorKind::TooManyPieces { pieces });
        assert!(!error.is_retryable());
    });
}

#[test]
fn ranges_come_from_wherever_the_object_is() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        const LEN: usize = 200_000;
        for n in 0..12 {
            scene.put(&client, n, n, LEN).await;
        }
        // Some of them have another home from now on, which asks the first node.
        scene.add(64 * MIB).await;
        let ranges = [
            range(199_990, 10),
            range(0, 1),
            range(70_000, 0),
            range(3, 100_000),
        ];
        let total: usize = ranges.iter().map(|range| range.len_bytes as usize).sum();
        for n in 0..12 {
            let fetched = client.get_ranges(&key(n), &ranges, room(total)).await;
            let Ok(Fetched::Hit {
                room,
                len_bytes,
                object_len_bytes,
                ..
            }) = fetched
            else {
                panic!("{fetched:?}");
            };
            assert_eq!((len_bytes, object_len_bytes), (total, LEN));
            let whole = pattern(n, LEN);
            let expected: Vec<u8> = (ranges.iter())
                .flat_map(|range| {
                    let start = usize::try_from(range.offset_bytes).expect("small");
                    &whole.as_slice()[start..start + range.len_bytes as usize]
                })
                .copied()
                .collect();
            assert!(room.as_slice()[..total] == expected);
        }
    });
}

#[test]
fn ranges_that_are_not_there_are_refused() {
    run(0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, 100).await;
        for bad in [
            range(0, 101),
            range(100, 1),
            range(u64::MAX, 1 << 20),
            range(1 << 40, 1),
        ] {
            let ranges = [range(0, 1), bad];
            let failure = client.get_ranges(&key(1), &ranges, room(200)).await;
            let failure = failure.expect_err("it is not there");
            let kind = StoreErrorKind::OutOfRange {
                object_len_bytes: 100,
            };
            assert_eq!(failure.error.kind, kind);
            assert!(failure.room.is_some() && !failure.error.is_retryable());
        }
        let many = vec![range(0, 1); RANGES_MAX];
        let most = client.get_ranges(&key(1), &many, room(RANGES_MAX)).await;
        assert!(matches!(
            most,
            Ok(Fetched::Hit {
                len_bytes: RANGES_MAX,
                ..
            })
        ));
        for ranges in [vec![], vec![range(0, 1); RANGES_MAX + 1]] {
            let failure = client
                .get_ranges(&key(1), &ranges, room(RANGES_MAX + 1))
                .await;
            let failure = failure.expect_err("too few or many");
            let count = ranges.len();
            assert_eq!(failure.error.kind, StoreErrorKind::Ranges { ranges: count });
            assert!(failure.room.is_some());
        }
        let missing = client.get_ranges(&key(2), &[range(0, 1)], room(1)).await;
        assert!(matches!(missing, Ok(Fetched::Miss { is_known: true, .. })));
        let nothing = client.get_ranges(&key(1), &[range(7, 0)], room(1)).await;
        assert!(matches!(nothing, Ok(Fetched::Hit { len_bytes: 0, .. })));
    });
}

#[test]
fn batches_are_longer_than_what_is_under_way_at_a_time() {
    run(1, || async {
        const COUNT: usize = 1100;
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let mut objects: Vec<_> = (0..COUNT)
            .map(|n| (key(n), Value::new(pattern(n, n % 70))))
            .collect();
        objects[7].0 = Vec::new();
        let stored = client.put_all(&objects, PutOptions::default()).await;
        assert_eq!(stored.len(), COUNT);
        for (n, stored) in stored.into_iter().enumerate() {
            let is_written = matches!(stored, Ok(Stored::Written { .. }));
            assert_eq!(is_written, n != 7, "{n}: {stored:?}");
        }
        let wanted = (0..COUNT).map(|n| (key(n), room(70)));
        let fetched = client.get_all(wanted).await;
        assert_eq!(fetched.len(), COUNT);
        for (n, fetched) in fetched.into_iter().enumerate() {
            match fetched.expect("an answer") {
                Fetched::Hit {
                    room, len_bytes, ..
                } => assert_eq!(room.as_slice()[..len_bytes], *pattern(n, n % 70).as_slice()),
                Fetched::Miss { is_known, .. } => assert_eq!((n, is_known), (7, true)),
            }
        }
        let keys: Vec<_> = (0..COUNT).map(key).collect();
        let present = client.exists(&keys).await.expect("asked");
        assert_eq!(present.iter().filter(|is| **is).count(), COUNT - 1);
        let removed = client.remove(&keys).await;
        assert_eq!(
            removed
                .iter()
                .filter(|removed| **removed == Ok(true))
                .count(),
            COUNT - 1
        );
    });
}

#[test]
fn lookups_of_a_batch_are_one_message_for_each_home() {
    run(2, || async {
        const COUNT: usize = 300;
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..COUNT {
            scene.put(&client, n, n, 10).await;
        }
        let keys: Vec<_> = (0..2 * COUNT).map(key).collect();
        let is_there = |present: &[bool]| (0..2 * COUNT).all(|n| present[n] == (n < COUNT));
        let count = async |node, op| {
            let outcomes = scene.outcomes(node, op).await;
            outcomes.iter().map(|(_, count)| count).sum::<u64>()
        };
        for times in 1..=3 {
            let present = client.exists(&keys).await.expect("asked");
            assert!(is_there(&present), "{times}: {present:?}");
            for node in 0..2 {
                assert_eq!(count(node, Op::Peek).await, times, "node {node}");
            }
        }
        assert_eq!(client.remove(&keys[..1]).await, [Ok(true)]);
        assert_eq!(client.exists(&keys[..2]).await, Ok(vec![false, true]));
        let asked = count(0, Op::Ask).await + count(1, Op::Ask).await;
        assert_eq!(asked, 1, "the removal");
    });
}

/// Ranges that overlap come to more than a frame holds.
#[test]
fn ranges_that_are_too_long_together_are_refused_on_both_sides() {
    run(0, || async {
        const LEN: usize = 20 << 20;
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        scene.put(&client, 1, 1, LEN).await;
        let whole = range(0, u32::try_from(LEN).expect("small"));
        let failure = client.get_ranges(&key(1), &[whole; 4], room(1)).await;
        let failure = failure.expect_err("too long");
        let len_bytes = 4 * LEN;
        assert_eq!(
            failure.error.kind,
            StoreErrorKind::ValueTooLong {
                len_bytes,
                len_max_bytes: 64 * MIB,
            }
        );
        assert!(failure.room.is_some());
        let (connection, to) = stranger(&client).await;
        let name = key(1);
        for count in [4, RANGES_MAX] {
            let message = GetMessage {
                epoch: client.map().epoch(),
                asker: AskerId(5),
                request: RequestId(1),
                to,
                namespace: NamespaceKind::Cache,
                ranges: vec![whole; count],
                key: Key::new(&name).expect("a key"),
            };
            let body = |out: &mut Vec<u8>| message.encode(FormatVersion::NEWEST, out);
            let nothing = Attachments::default();
            let asked = connection.call(Op::Find.code(), body, nothing, Duration::from_secs(9));
            let reply = asked.await.expect("it answers");
            assert_eq!(Status::from_code(reply.status), Status::BadRequest);
        }
        scene.expect(&client, 1, LEN).await;
    });
}
