//! Clients on a node's own core, which need no message for what is there.

use std::time::Duration;

use lunette_kvstore::{Fetched, Outcome, PutOptions, StoreErrorKind, Stored, Value};
use lunette_kvstore_proto::message::Op;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::time;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern, room};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;

#[test]
fn a_client_inside_and_one_outside_see_the_same() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let (inside, outside) = (scene.inside(0).await, scene.client().await);
        let keys: Vec<_> = (0..40).map(key).collect();
        for n in 0..20 {
            let stored = scene.put(&inside, n, n, 100_000).await;
            assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
            let again = scene.put(&outside, n, 99, 7).await;
            assert!(matches!(again, Stored::Exists { .. }), "{again:?}");
        }
        for n in 20..40 {
            scene.put(&outside, n, n, 100_000).await;
            let again = scene.put(&inside, n, 99, 7).await;
            assert!(matches!(again, Stored::Exists { .. }), "{again:?}");
        }
        for client in [&inside, &outside] {
            for n in 0..40 {
                scene.expect(client, n, 100_000).await;
            }
            assert_eq!(client.exists(&keys).await, Ok(vec![true; 40]));
            let missing = client.exists(&[key(50), key(3), key(51)]).await;
            assert_eq!(missing, Ok(vec![false, true, false]));
            let missing = client.get(&key(50), room(1)).await.expect("asked");
            assert!(matches!(missing, Fetched::Miss { is_known: true, .. }));
        }
        let removed = inside.remove(&keys).await;
        assert!(removed.iter().all(|removed| *removed == Ok(true)));
        for client in [&inside, &outside] {
            assert_eq!(client.exists(&keys).await, Ok(vec![false; 40]));
        }
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        for n in 0..6 {
            for bytes in [n, n + 1] {
                let value = Value::new(pattern(bytes, 500));
                inside.put(&key(n), value, upsert).await.expect("replaced");
            }
            scene.expect_value(&outside, n, n + 1, 500).await;
        }
    });
}

#[test]
fn a_home_is_asked_by_a_client_on_its_core_without_a_connection() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let inside = scene.inside(0).await;
        let connections = async || scene.reports().await[0].stat.connections;
        let before = connections().await;
        for round in 0..3 {
            for n in 0..20 {
                scene.put(&inside, n, n + round, 1000).await;
            }
            let long = PutOptions {
                stripe_len: Some(4096),
                ..PutOptions::default()
            };
            let value = Value::new(pattern(7, 20_000));
            inside.put(&key(100), value, long).await.expect("written");
            let keys: Vec<_> = (10..30).chain([100]).map(key).collect();
            let located = inside.locate(&keys).await;
            let there = located.iter().filter(|one| matches!(one, Ok(Some(_))));
            assert_eq!(there.count(), 11, "{located:?}");
            let removed = inside.remove(&keys).await;
            for (index, removed) in removed.into_iter().enumerate() {
                assert_eq!(removed, Ok(index < 10 || index == 20), "key {index}");
            }
            let present = inside.exists(&(0..30).map(key).collect::<Vec<_>>()).await;
            let present = present.expect("asked");
            assert!(present.iter().enumerate().all(|(n, is)| *is == (n < 10)));
            assert_eq!(connections().await, before, "round {round}");
            let others = inside.remove(&(0..10).map(key).collect::<Vec<_>>()).await;
            assert!(others.iter().all(|removed| *removed == Ok(true)));
        }
    });
}

#[test]
fn batches_and_ranges_inside() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let inside = scene.inside(1).await;
        let mut objects: Vec<_> = (0..50)
            .map(|n| (key(n), Value::new(pattern(n, 1000))))
            .collect();
        objects[3].0 = Vec::new();
        let stored = inside.put_all(&objects, PutOptions::default()).await;
        for (n, stored) in stored.iter().enumerate() {
            assert_eq!(stored.is_ok(), n != 3, "{stored:?}");
        }
        let fetched = inside.get_all((0..50).map(|n| (key(n), room(1000)))).await;
        for (n, fetched) in fetched.into_iter().enumerate() {
            match fetched.expect("an answer") {
                Fetched::Hit { room, .. } => {
                    assert_eq!(room.as_slice(), pattern(n, 1000).as_slice());
                }
                Fetched::Miss { .. } => assert_eq!(n, 3),
            }
        }
        let range = |offset_bytes, len_bytes| ByteRange {
            offset_bytes,
            len_bytes,
        };
        for n in 10..20 {
            let ranges = [range(990, 10), range(5, 0), range(0, 3)];
            let fetched = inside.get_ranges(&key(n), &ranges, room(13)).await;
            let Ok(Fetched::Hit { room: bytes, .. }) = fetched else {
                panic!("{fetched:?}");
            };
            let whole = pattern(n, 1000);
            let expected = [&whole.as_slice()[990..], &whole.as_slice()[..3]].concat();
            assert_eq!(bytes.as_slice(), expected);
            let beyond = inside.get_ranges(&key(n), &[range(1000, 1)], room(1)).await;
            let object_len_bytes = 1000;
            let kind = beyond.expect_err("beyond the end").error.kind;
            assert_eq!(kind, StoreErrorKind::OutOfRange { object_len_bytes });
            let small = inside.get(&key(n), room(999)).await.expect_err("too small");
            assert!(small.room.is_some(), "{small}");
        }
    });
}

#[test]
fn memory_that_is_full_is_made_room_in_from_inside() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 2 * MIB).await;
        let inside = scene.inside(0).await;
        for n in 0..200 {
            let stored = scene.put(&inside, n, n, 60_000).await;
            assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
        }
        let keys: Vec<_> = (0..200).map(key).collect();
        let present = inside.exists(&keys).await.expect("asked");
        assert!(present[190..].iter().all(|is| *is), "the latest are there");
        assert!(present[..100].iter().all(|is| !is), "the first are not");
        let large = Value::new(pattern(1, 3 << 20));
        let put = inside.put(b"large", large, PutOptions::default()).await;
        assert!(!put.expect_err("it never fits").is_retryable());
    });
}

/// A large object takes the place of more small ones than are asked to leave together.
#[test]
fn room_is_made_for_a_write_without_refusing_it() {
    run(1, || async {
        let scene = Scene::of(1, 3 * MIB).await;
        for client in [scene.inside(0).await, scene.client().await] {
            for n in 0..1300 {
                scene.put(&client, n, 1, 2048).await;
            }
            for n in 0..3 {
                let large = Value::new(pattern(n, 1 << 20));
                let options = PutOptions::default();
                let put = client.put(&key(10_000 + n), large, options).await;
                put.expect("written");
            }
            let full = scene.outcomes(0, Op::Write).await;
            let full = full
                .into_iter()
                .find(|(outcome, _)| *outcome == Outcome::Full);
            assert_eq!(full.map(|(_, count)| count), Some(0), "none was refused");
            scene.clear().await;
        }
    });
}

/// Objects may be so small that a node runs out of entries before it runs out of bytes.
#[test]
fn room_is_made_for_more_small_objects_than_there_are_entries() {
    run(1, || async {
        let scene = Scene::of(1, MIB).await;
        for client in [scene.inside(0).await, scene.client().await] {
            for n in 0..3000 {
                scene.put(&client, n, 1, 1).await;
            }
            let outcomes = scene.outcomes(0, Op::Write).await;
            let full = outcomes
                .into_iter()
                .find(|(outcome, _)| *outcome == Outcome::Full);
            assert_eq!(full.map(|(_, count)| count), Some(0), "none was refused");
            let present = client.exists(&[key(0), key(2999)]).await.expect("asked");
            assert_eq!(present, [false, true]);
            scene.clear().await;
        }
    });
}

/// More copies have to leave than do so for one write in one turn: it is refused, and comes again.
#[test]
fn a_write_in_the_place_of_very_many_small_ones_comes_again() {
    run(1, || async {
        let scene = Scene::of(1, 4 * MIB).await;
        for client in [scene.inside(0).await, scene.client().await] {
            for n in 0..3900 {
                scene.put(&client, n, 1, 700).await;
            }
            let large = Value::new(pattern(2, 3 << 20));
            let put = client.put(b"large", large, PutOptions::default()).await;
            put.expect("written");
            let outcomes = scene.outcomes(0, Op::Write).await;
            let refused =
                |(outcome, count): &(Outcome, u64)| *outcome == Outcome::Full && *count > 0;
            assert!(outcomes.iter().any(refused), "in several turns");
            scene.clear().await;
        }
    });
}

#[test]
fn a_client_inside_follows_the_map() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 64 * MIB).await;
        let inside = scene.inside(0).await;
        for n in 0..20 {
            scene.put(&inside, n, n, 3000).await;
        }
        scene.add(64 * MIB).await;
        for n in 0..40 {
            let stored = scene.put(&inside, n, n, 3000).await;
            assert_eq!(
                matches!(stored, Stored::Exists { .. }),
                n < 20,
                "{n}: {stored:?}"
            );
        }
        let outside = scene.client().await;
        assert_eq!(
            scene.holders(&outside).await,
            1,
            "its own node has room, whoever is the home"
        );
        for n in 0..40 {
            scene.expect(&inside, n, 3000).await;
        }
        // Its node leaves: what it still has is not served by it, also not here.
        scene.remove_first().await;
        eventually("the client asks others", async || {
            let there = inside.exists(&[key(0)]).await;
            time::sleep(Duration::from_millis(1)).await;
            there.is_ok()
        })
        .await;
        let fetched = inside.get(&key(0), room(3000)).await;
        assert!(
            !matches!(fetched, Ok(Fetched::Hit { .. })),
            "it went with its node"
        );
    });
}

/// A key that is found taken only while room is being made for its value: that room is not kept.
#[test]
fn a_put_inside_that_comes_too_late_keeps_no_room() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 64 * MIB).await;
        let former = scene.inside(0).await;
        for n in 0..20 {
            scene.put(&former, n, n, 60_000).await;
        }
        scene.add(2 * MIB).await;
        let inside = scene.inside(1).await;
        for (count, n) in (0..20).cycle().take(200).enumerate() {
            // More or less of what is left is taken each time.
            scene
                .put(&inside, 100 + count, 1, 1000 + count * 7919 % 60_000)
                .await;
            let again = scene.put(&inside, n, 99, 60_000).await;
            assert!(matches!(again, Stored::Exists { .. }), "{again:?}");
        }
        scene.clear().await;
        let outside = scene.client().await;
        eventually("no memory is in use", async || {
            let stats = outside.stat().await.into_iter();
            let used = stats.map(|(_, stat)| stat.map_or(1, |stat| stat.shards.used_bytes));
            used.sum::<u64>() == 0
        })
        .await;
    });
}
