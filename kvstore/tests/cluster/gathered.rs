//! Batches of gets, which come from each home in one answer.

use std::rc::Rc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_cluster::proto::map::Epoch;
use lunette_kvstore::{ClusterClient, Fetched, Outcome, PutOptions, StoreErrorKind, Stored, Value};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{GatherMessage, Gathered};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_runtime::arena::Exposed;
use lunette_runtime::{arena, time};
use lunette_transfer::{Attachments, Room};

use crate::on_each_driver::run;
use crate::scene::{Scene, eventually, key, pattern, room, stranger};

const MIB: u64 = 1 << 20;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// How often members were asked for so.
async fn asked(scene: &Scene, nodes: usize, op: Op) -> u64 {
    let mut count = 0;
    for node in 0..nodes {
        let outcomes = scene.outcomes(node, op).await;
        count += outcomes.iter().map(|(_, count)| count).sum::<u64>();
    }
    count
}

fn len_of(n: usize) -> usize {
    [4096, 0, 1, 70, 30_000][n % 5]
}

fn check(n: usize, fetched: Fetched) {
    match fetched {
        Fetched::Hit {
            room,
            len_bytes,
            object_len_bytes,
            ..
        } => {
            assert_eq!((len_bytes, object_len_bytes), (len_of(n), len_of(n)), "{n}");
            assert!(
                room.as_slice()[..len_bytes] == *pattern(n, len_of(n)).as_slice(),
                "{n}"
            );
        }
        Fetched::Miss { .. } => panic!("{n} is a miss"),
    }
}

async fn put(client: &ClusterClient, ns: impl Iterator<Item = usize>) {
    let objects: Vec<_> = ns
        .map(|n| (key(n), Value::new(pattern(n, len_of(n)))))
        .collect();
    for stored in client.put_all(&objects, PutOptions::default()).await {
        assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
    }
}

#[test]
fn small_objects_of_a_batch_are_one_answer_of_each_home() {
    run(1, || async {
        const COUNT: usize = 40;
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        put(&client, (0..COUNT).filter(|n| n % 4 != 3)).await;
        // Rooms that fit, and those that are longer; a miss in between has no part of the answer.
        let wanted = (0..COUNT).map(|n| (key(n), room(len_of(n) + n % 3)));
        for (n, fetched) in client.get_all(wanted).await.into_iter().enumerate() {
            match fetched.expect("an answer") {
                Fetched::Miss { is_known, .. } => assert_eq!((n % 4, is_known), (3, true)),
                hit => check(n, hit),
            }
        }
        assert_eq!(asked(&scene, 2, Op::Gather).await, 2);
        let count = async |outcome| {
            let mut count = 0;
            for node in 0..2 {
                let outcomes = scene.outcomes(node, Op::Find).await;
                let counts = outcomes.iter().filter(|(which, _)| *which == outcome);
                count += counts.map(|(_, count)| count).sum::<u64>();
            }
            count
        };
        let counted = (count(Outcome::Ok).await, count(Outcome::NotFound).await);
        assert_eq!(counted, (30, 10), "each is a get");
    });
}

#[test]
fn what_does_not_come_together_is_asked_for_by_itself() {
    run(2, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        put(&client, 0..3).await;
        let striped = PutOptions {
            stripe_len: Some(1000),
            ..PutOptions::default()
        };
        let value = Value::new(pattern(3, 70));
        let stored = client.put(&key(3), value, striped).await;
        assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
        let value = Value::new(pattern(9, 5000));
        let stored = client.put(b"parts", value, striped).await;
        assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
        // Whole, too long for its room, in parts, and no key.
        let wanted = vec![
            (key(0), room(4096)),
            (key(2), Room::exposed(Vec::new())),
            (b"parts".to_vec(), room(5000)),
            (Vec::new(), room(10)),
        ];
        let mut fetched = client.get_all(wanted).await.into_iter();
        check(0, fetched.next().expect("the first").expect("an answer"));
        let failure = fetched.next().expect("the second").expect_err("too long");
        assert!(
            matches!(failure.error.kind, StoreErrorKind::Call(_)),
            "{failure:?}"
        );
        assert!(failure.room.is_some());
        let parts = fetched.next().expect("the third");
        assert!(
            matches!(&parts, Ok(Fetched::Hit { len_bytes: 5000, room, .. })
                if room.as_slice()[..5000] == *pattern(9, 5000).as_slice()),
            "{parts:?}"
        );
        let failure = fetched.next().expect("the fourth").expect_err("no key");
        assert!(
            matches!(failure.error.kind, StoreErrorKind::Key(_)),
            "{failure:?}"
        );
        assert_eq!(asked(&scene, 1, Op::Gather).await, 1);
        // One alone is asked for as ever.
        let alone = client.get_all([(key(0), room(4096))]).await;
        check(
            0,
            alone.into_iter().next().expect("one").expect("an answer"),
        );
        assert_eq!(asked(&scene, 1, Op::Gather).await, 1);
    });
}

#[test]
fn pieces_of_rooms_are_filled_where_they_lie() {
    run(0, || async {
        const COUNT: usize = 200;
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        put(&client, 0..COUNT).await;
        let pieces = |n: usize| -> Vec<Exposed> {
            let lens = [len_of(n) / 3, len_of(n) - len_of(n) / 3, 5];
            let alloc = |len: usize| {
                arena()
                    .alloc(len.max(1))
                    .expect("room")
                    .expose()
                    .slice(0, len)
            };
            lens.map(alloc).to_vec()
        };
        let memory: Rc<Vec<_>> = Rc::new((0..COUNT).map(pieces).collect());
        let wanted = (0..COUNT).map(|n| (key(n), Room::exposed(memory[n].clone())));
        for (n, fetched) in client.get_all(wanted).await.into_iter().enumerate() {
            let fetched = fetched.expect("an answer");
            assert!(matches!(fetched, Fetched::Hit { len_bytes, .. } if len_bytes == len_of(n)));
            let all: Vec<u8> = memory[n].iter().flat_map(Exposed::to_vec).collect();
            assert!(all[..len_of(n)] == *pattern(n, len_of(n)).as_slice(), "{n}");
        }
        // 128 keys, or 1 MiB of room, are one message's.
        let rooms: usize = (0..COUNT).map(|n| len_of(n) + 5).sum();
        let messages = asked(&scene, 1, Op::Gather).await;
        assert!(
            messages >= (rooms as u64).div_ceil(MIB).max(2),
            "{messages}"
        );
        assert!(messages <= 4, "{messages}");
    });
}

#[test]
fn a_batch_that_nobody_waits_for_keeps_nothing() {
    run(1, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        put(&client, 0..40).await;
        let before = arena().used_bytes();
        for wait_us in [0, 20, 50, 100, 200, 400, 800] {
            let wanted: Vec<_> = (0..40).map(|n| (key(n), room(len_of(n)))).collect();
            let got = client.get_all(wanted);
            drop(time::timeout(std::time::Duration::from_micros(wait_us), got).await);
        }
        eventually("rooms are free", async || arena().used_bytes() <= before).await;
        let wanted = (0..40).map(|n| (key(n), room(len_of(n))));
        for (n, fetched) in client.get_all(wanted).await.into_iter().enumerate() {
            check(n, fetched.expect("an answer"));
        }
    });
}

#[test]
fn a_home_with_another_map_knows_of_no_miss() {
    run(0, || async {
        let scene = Scene::of(1, 8 * MIB).await;
        let client = scene.client().await;
        put(&client, 0..1).await;
        let (connection, to) = stranger(&client).await;
        let epoch = client.map().epoch();
        let (here, missing) = (key(0), key(1));
        let keys = [&here, &missing].map(|key| Key::new(key).expect("a key"));
        for (epoch, expected) in [
            (epoch, Gathered::Absent {}),
            (Epoch(epoch.0 + 1), Gathered::Unsure {}),
        ] {
            let message = GatherMessage {
                to,
                epoch,
                namespace: NamespaceKind::Cache,
                wanted: keys.map(|key| (4096, key)).to_vec(),
            };
            let body = |out: &mut Vec<u8>| message.encode(FormatVersion(1), out);
            let attachments = Attachments {
                room: Some(room(8192)),
                ..Attachments::default()
            };
            let reply = connection.call(Op::Gather.code(), body, attachments, PATIENCE);
            let reply = reply.await.expect("an answer");
            let gathered = Gathered::decode(FormatVersion(1), &reply.body, &[4096; 2]);
            let gathered = gathered.expect("it makes sense");
            assert_eq!((gathered[0].len_bytes(), gathered[1]), (4096, expected));
            let got = reply.room.expect("the room comes back");
            assert!(got.as_slice()[..4096] == *pattern(0, 4096).as_slice());
        }
        // More keys than one message may have, and what is no message.
        for body in [vec![1; 30], vec![1], vec![]] {
            let write = |out: &mut Vec<u8>| out.extend_from_slice(&body);
            let reply = connection.call(Op::Gather.code(), write, Attachments::default(), PATIENCE);
            let status = reply.await.expect("an answer").status;
            assert_eq!(Status::from_code(status), Status::BadRequest);
        }
    });
}
