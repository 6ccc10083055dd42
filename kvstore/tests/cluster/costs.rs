//! How many messages a put and a get cost, counted by the nodes themselves: the figures of the README.

use lunette_kvstore::{ClusterClient, Fetched, PutOptions, Stored, Value};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::Op;
use lunette_kvstore_proto::placement::home_of;
use lunette_runtime_core::ids::NodeId;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern, room};

const MIB: u64 = 1 << 20;
const NODES: usize = 3;
const COUNT: usize = 40;
const LONG: usize = 5000;
/// What is asked for objects.
const ASKED: [Op; 4] = [Op::Ask, Op::Find, Op::Read, Op::Gather];

/// Requests of these kinds, and messages between seats.
async fn counted(scene: &Scene, ops: &[Op]) -> (u64, u64) {
    let mut requests = 0;
    for node in 0..NODES {
        for op in ops {
            let outcomes = scene.outcomes(node, *op).await;
            requests += outcomes.iter().map(|(_, count)| count).sum::<u64>();
        }
    }
    let reports = scene.reports().await;
    let members = reports.iter().filter_map(|report| report.member.as_ref());
    (requests, members.map(|member| member.messages_sent).sum())
}

async fn put(client: &ClusterClient, n: usize, copies: u8) {
    let options = PutOptions {
        copies,
        ..PutOptions::default()
    };
    let stored = client
        .put(&key(n), Value::new(pattern(n, 500)), options)
        .await;
    assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
}

async fn put_long(client: &ClusterClient, n: usize) {
    let value = Value::new(pattern(n, LONG));
    let stored = client.put(&key(n), value, PutOptions::default()).await;
    assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
}

async fn get(client: &ClusterClient, n: usize) {
    let fetched = client.get(&key(n), room(500)).await;
    assert!(matches!(fetched, Ok(Fetched::Hit { .. })), "{fetched:?}");
}

/// What is acknowledged late has been counted.
async fn quiet(scene: &Scene) {
    let mut last = None;
    eventually("nobody says anything", async || {
        let now = counted(scene, &[]).await.1;
        last.replace(now) == Some(now)
    })
    .await;
}

#[test]
fn a_put_at_the_home_is_one_request_and_so_is_a_get() {
    run(1, || async {
        let scene = Scene::of(NODES, 16 * MIB).await;
        let client = scene.client().await;
        quiet(&scene).await;
        let before = counted(&scene, &Op::ALL).await;
        for n in 0..COUNT {
            put(&client, n, 1).await;
        }
        let puts = counted(&scene, &Op::ALL).await;
        assert_eq!(puts.0 - before.0, COUNT as u64);
        for n in 0..COUNT {
            get(&client, n).await;
        }
        let gets = counted(&scene, &Op::ALL).await;
        assert_eq!(gets.0 - puts.0, COUNT as u64);
        assert_eq!(gets.1, before.1, "nodes say nothing to each other");
    });
}

/// How long the value is nobody knows: that is asked for first of the first one, and where one is longer than those before.
#[test]
fn a_value_of_any_length_is_one_request_if_others_were_as_long() {
    run(1, || async {
        let scene = Scene::of(NODES, 16 * MIB).await;
        let client = scene.client().await;
        let handle = client.handle().expect("room for a task");
        for n in 0..COUNT {
            put(&client, n, 1).await;
        }
        put_long(&client, COUNT).await;
        let before = counted(&scene, &ASKED).await;
        for n in 0..COUNT {
            let bytes = handle.get_bytes(key(n)).await.expect("asked");
            assert_eq!(bytes.map(|bytes| bytes.len()), Some(500));
        }
        let short = counted(&scene, &ASKED).await;
        assert_eq!(short.0 - before.0, COUNT as u64 + 1);
        let bytes = handle.get_bytes(key(COUNT)).await.expect("asked");
        assert_eq!(bytes.map(|bytes| bytes.len()), Some(LONG));
        let long = counted(&scene, &ASKED).await;
        assert_eq!(long.0 - short.0, 3, "in vain, its length, and again");
        assert_eq!(handle.get_bytes(key(COUNT + 1)).await, Ok(None));
        let none = counted(&scene, &ASKED).await;
        assert_eq!(none.0 - long.0, 1);
    });
}

#[test]
fn a_put_away_from_the_home_is_four_messages_and_its_get_two_requests() {
    run(1, || async {
        let scene = Scene::of(NODES, 16 * MIB).await;
        let (inside, outside) = (scene.inside(0).await, scene.client().await);
        let map = outside.map();
        let is_elsewhere = |n: &usize| {
            let name = key(*n);
            let key = Key::new(&name).expect("a key");
            home_of(&map, key.fingerprint()).is_some_and(|home| home.node != NodeId(1))
        };
        let numbers: Vec<usize> = (0..10 * COUNT).filter(is_elsewhere).take(COUNT).collect();
        quiet(&scene).await;
        let before = counted(&scene, &[]).await;
        for n in &numbers {
            put(&inside, *n, 1).await;
        }
        quiet(&scene).await;
        let puts = counted(&scene, &[Op::Find, Op::Read]).await;
        // What goes back with the acknowledgement of what was said is counted as well, and what is said again where an answer is late.
        let messages = puts.1 - before.1;
        let all = 4 * COUNT as u64;
        assert!((all / 2..=all + all / 10).contains(&messages), "{messages}");
        for n in &numbers {
            get(&outside, *n).await;
        }
        let gets = counted(&scene, &[Op::Find, Op::Read]).await;
        assert_eq!(
            gets.0 - puts.0,
            2 * COUNT as u64,
            "the home, then the owner"
        );
    });
}

#[test]
fn a_second_copy_is_one_request_and_at_most_three_messages() {
    run(0, || async {
        let scene = Scene::of(NODES, 16 * MIB).await;
        let client = scene.client().await;
        quiet(&scene).await;
        let before = counted(&scene, &[Op::Write, Op::Replicate]).await;
        for n in 0..COUNT {
            put(&client, n, 2).await;
        }
        eventually("both copies are there", async || {
            let mut held = 0;
            for node in 1..=NODES as u64 {
                held += scene.held_by(&client, node).await;
            }
            held == 2 * COUNT as u64
        })
        .await;
        quiet(&scene).await;
        let after = counted(&scene, &[Op::Write, Op::Replicate]).await;
        assert_eq!(after.0 - before.0, 2 * COUNT as u64);
        let messages = after.1 - before.1;
        assert!(messages <= 3 * COUNT as u64, "{messages}");
    });
}
