//! Where the first copy of an object is: on the writer's own node, where it is preferred, together with others.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use lunette_kvstore::{ClusterClient, Lent, Preferred, PutOptions, Reserved, Stored, Value};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::placement::home_of;
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime_core::ids::NodeId;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const KEEP: Duration = Duration::from_secs(30);

/// Nodes, as their places in the map.
fn preferring(client: &ClusterClient, nodes: &[usize]) -> PutOptions {
    let map = client.map();
    let names = nodes.iter().map(|&node| map.members()[node].address);
    let names: Vec<SocketAddr> = names.collect();
    PutOptions {
        preferred: Preferred::new(&names).expect("few"),
        ..PutOptions::default()
    }
}

async fn put(client: &ClusterClient, n: usize, len: usize, options: PutOptions) -> bool {
    let put = client
        .put(&key(n), Value::new(pattern(n, len)), options)
        .await;
    match put {
        Ok(Stored::Written { is_elsewhere, .. }) => is_elsewhere,
        other => unreachable!("{other:?}"),
    }
}

async fn held(scene: &Scene, client: &ClusterClient) -> [u64; 3] {
    let mut held = [0; 3];
    for (node, held) in (1..).zip(&mut held) {
        *held = scene.held_by(client, node).await;
    }
    held
}

#[test]
fn who_writes_inside_of_a_node_writes_there_while_nothing_has_to_leave_for_it() {
    run(WORLDS, || async {
        const LEN: usize = 60_000;
        let scene = Scene::of(3, 2 * MIB).await;
        let inside = scene.inside(1).await;
        let outside = scene.client().await;
        for n in 0..30 {
            assert!(!put(&inside, n, LEN, PutOptions::default()).await);
        }
        assert_eq!(held(&scene, &outside).await, [0, 30, 0]);
        for n in 0..30 {
            scene.expect(&outside, n, LEN).await;
        }
        let batch = (30..60).map(|n| (key(n), Value::new(pattern(n, LEN))));
        let batch: Vec<_> = batch.collect();
        for stored in inside.put_all(&batch, PutOptions::default()).await {
            assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
        }
        let held = held(&scene, &outside).await;
        assert!(
            held[0] > 0 && held[2] > 0,
            "the others at their homes: {held:?}"
        );
        let present = outside.exists(&(0..30).map(key).collect::<Vec<_>>()).await;
        let kept = present.expect("asked").into_iter().filter(|is| *is).count();
        // Room is made here only for keys whose home this is.
        assert!(kept >= 15, "{kept}");
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        assert!(
            !put(&inside, 59, 100, upsert).await,
            "nothing was wished for"
        );
        scene.expect_value(&outside, 59, 59, 100).await;
    });
}

/// Objects may be so small that entries are what a node is short of.
#[test]
fn who_writes_small_objects_inside_of_a_node_lets_none_leave_for_them() {
    run(1, || async {
        let scene = Scene::of(3, MIB).await;
        let (inside, outside) = (scene.inside(1).await, scene.client().await);
        for n in 0..1000 {
            assert!(!put(&inside, n, 1, PutOptions::default()).await);
        }
        let held = held(&scene, &outside).await;
        assert!(
            held[0] > 0 && held[2] > 0,
            "the last at their homes: {held:?}"
        );
        // Room is made here only for keys whose home this is.
        assert!(held.iter().sum::<u64>() > 970, "{held:?}");
    });
}

#[test]
fn objects_are_where_they_are_preferred_and_who_writes_is_told_if_not() {
    run(WORLDS, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let second = preferring(&client, &[1, 2]);
        for n in 0..20 {
            assert!(!put(&client, n, 5000, second).await);
        }
        assert_eq!(held(&scene, &client).await, [0, 20, 0]);
        let inside = scene.inside(0).await;
        for n in 20..30 {
            assert!(!put(&inside, n, 5000, second).await);
            assert!(!put(&inside, n + 10, 5000, preferring(&client, &[0])).await);
        }
        assert_eq!(held(&scene, &client).await, [10, 30, 0]);
        let nobody = Preferred::new(&[SocketAddr::from(([127, 0, 0, 1], 1))]);
        let nobody = PutOptions {
            preferred: nobody.expect("one"),
            ..PutOptions::default()
        };
        assert!(put(&client, 40, 5000, nobody).await);
        // What prefers who has left goes to the next.
        let first = preferring(&client, &[0, 2]);
        scene.remove_first().await;
        eventually("the client knows that it left", async || {
            client.exists(&[key(1)]).await.is_ok() && client.map().members().len() == 2
        })
        .await;
        let before = scene.held_by(&client, 3).await;
        for n in 41..51 {
            assert!(!put(&client, n, 5000, first).await);
        }
        assert_eq!(scene.held_by(&client, 3).await, before + 10);
        for n in (0..30).chain(41..51) {
            scene.expect(&client, n, 5000).await;
        }
    });
}

#[test]
fn where_there_is_no_room_objects_are_not_although_they_are_preferred() {
    run(WORLDS, || async {
        const LEN: usize = 60_000;
        let mut scene = Scene::of(1, 64 * MIB).await;
        scene.add(2 * MIB).await;
        let client = scene.client().await;
        let small = preferring(&client, &[1]);
        assert!(put(&client, 100, 3 << 20, small).await, "it never fits");
        let mut count = 0;
        // Each is held, so that nothing can leave.
        while !put(&client, count, LEN, small).await {
            let hold = HoldWish {
                holder: 7,
                ttl_ms: 5000,
            };
            let found = client.lookup(&key(count), Some(hold)).await.expect("asked");
            assert_eq!(found.expect("found").held_ms, 5000);
            count += 1;
        }
        assert!(count > 20, "{count}");
        scene.expect(&client, count, LEN).await;
    });
}

#[test]
fn a_batch_that_a_thread_puts_is_on_one_node_as_well() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let handle = client.handle().expect("room for a task");
        let together = PutOptions {
            is_same_node: true,
            ..PutOptions::default()
        };
        let mut before = [0; 3];
        for round in 0..3 {
            let batch = (40 * round..40 * (round + 1)).map(|n| {
                let bytes = pattern(n, 3000).as_slice().to_vec();
                (key(n), vec![Lent::bytes(bytes)])
            });
            for stored in handle.put_all(batch.collect(), together).await {
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
            }
            let now = held(&scene, &client).await;
            let grown = now.iter().zip(before).filter(|(now, before)| *now > before);
            assert_eq!(grown.count(), 1, "{before:?}, {now:?}");
            before = now;
        }
        for n in 0..120 {
            scene.expect(&client, n, 3000).await;
        }
    });
}

#[test]
fn a_batch_is_on_one_node_if_that_is_asked_for() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let batch = |from: usize| -> Vec<_> {
            let all = from..from + 40;
            all.map(|n| (key(n), Value::new(pattern(n, 3000))))
                .collect()
        };
        let together = PutOptions {
            is_same_node: true,
            ..PutOptions::default()
        };
        let mut before = [0; 3];
        for round in 0..4 {
            for stored in client.put_all(&batch(40 * round), together).await {
                assert!(
                    matches!(
                        stored,
                        Ok(Stored::Written {
                            is_elsewhere: false,
                            ..
                        })
                    ),
                    "{stored:?}"
                );
            }
            let now = held(&scene, &client).await;
            let grown = now.iter().zip(before).filter(|(now, before)| *now > before);
            assert_eq!(grown.count(), 1, "{before:?}, {now:?}");
            before = now;
        }
        let inside = scene.inside(2).await;
        for stored in inside.put_all(&batch(160), together).await {
            assert!(stored.is_ok());
        }
        assert_eq!(held(&scene, &client).await[2], before[2] + 40);
        let invalid = vec![(vec![], Value::new(pattern(1, 1)))];
        assert!(client.put_all(&invalid, together).await[0].is_err());
    });
}

/// Nothing may leave there: it is reserved, or pinned for ever.
#[test]
fn what_its_home_has_no_room_for_goes_to_who_has_room() {
    run(WORLDS, || async {
        const LEN: usize = 1 << 20;
        let scene = Scene::of(2, 8 * MIB).await;
        let outside = scene.client().await;
        let map = outside.map();
        let of_first = |n: &usize| {
            let name = key(*n);
            let key = Key::new(&name).expect("a key");
            home_of(&map, key.fingerprint()).is_some_and(|home| home.node == NodeId(1))
        };
        let mut numbers = (0..).filter(of_first);
        let mut next = || numbers.next().expect("there are more");
        let reserve = async |n: usize, len: usize| {
            let options = PutOptions::default();
            let reserved = outside.reserve(&key(n), len, options, KEEP).await;
            match reserved.expect("room") {
                Reserved::Room(reservation) => reservation,
                exists @ Reserved::Exists { .. } => unreachable!("{exists:?}"),
            }
        };
        let kept = reserve(next(), 7 * LEN).await;
        for (count, client) in (1..).zip([&outside, &scene.inside(0).await]) {
            let n = next();
            assert!(!put(client, n, LEN, PutOptions::default()).await);
            assert_eq!(scene.held_by(client, 2).await, count);
            scene.expect(client, n, LEN).await;
        }
        let n = next();
        let reserved = reserve(n, LEN).await;
        let value = Value::new(pattern(n, LEN));
        reserved.write(0, value).await.expect("written");
        reserved.commit().await.expect("committed");
        assert_eq!(scene.held_by(&outside, 2).await, 3);
        scene.expect(&outside, n, LEN).await;
        kept.revoke().await.expect("it is there");

        let pinned = PutOptions {
            pin: Pin::Hard,
            ..PutOptions::default()
        };
        // Of each memory a half may be pinned.
        for _ in 0..5 {
            let n = next();
            assert!(!put(&outside, n, LEN, pinned).await);
            scene.expect(&outside, n, LEN).await;
        }
        let held = [1, 2].map(|node| scene.held_by(&outside, node));
        let [first, second] = join_all(held).await[..] else {
            unreachable!("two");
        };
        assert!(
            first > 0 && second > 3 && first + second == 8,
            "{first}, {second}"
        );
    });
}
