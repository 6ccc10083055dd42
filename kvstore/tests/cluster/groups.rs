//! Objects that are of use together only, on several nodes.

use std::time::Duration;

use lunette_kvstore::{ClusterClient, Preferred, PutOptions, Value};
use lunette_kvstore_proto::residence::STANDS_BY;
use lunette_kvstore_proto::retention::GroupId;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::time::{self, timeout};

use super::on_each_driver::run;
use super::scene::{PATIENCE, Scene, eventually, key, pattern, room};

const MIB: u64 = 1 << 20;
/// What is told of groups may be lost, and come twice, as it does in worlds.
const WORLDS: u64 = 0;
const LEN: usize = 16_384;
/// Groups with an object on each node.
const SHARED: usize = 20;
/// The objects of groups on the first node, and on the second.
const HERE: usize = 0;
const THERE: usize = 100;
/// The others on the second node, which are older.
const OLDER: usize = 200;
const ALONE: usize = 300;
const OLDER_COUNT: usize = 40;
/// Of these about a half fits.
const FLOOD: usize = 500;
const FIRST_OF_FLOOD: usize = 10_000;

fn group_id(number: usize) -> GroupId {
    GroupId::of(&(number as u64).to_le_bytes())
}

/// Puts an object on a node, though something has to leave for it.
async fn put_at(client: &ClusterClient, node: usize, n: usize, group: Option<usize>) {
    let options = PutOptions {
        group: group.map(group_id),
        ..PutOptions::default()
    };
    put_as(client, node, n, options).await;
}

/// Puts an object on a node behind another.
async fn put_behind(client: &ClusterClient, node: usize, n: usize, parent: usize) {
    let options = PutOptions {
        behind: client.parent(&key(parent)),
        ..PutOptions::default()
    };
    put_as(client, node, n, options).await;
}

async fn put_as(client: &ClusterClient, node: usize, n: usize, options: PutOptions) {
    let address = client.map().members()[node].address;
    let options = PutOptions {
        preferred: Preferred::new(&[address]).expect("one"),
        ..options
    };
    let value = Value::new(pattern(n, LEN));
    client.put(&key(n), value, options).await.expect("room");
}

/// Puts more than fits on the first node.
async fn flood(client: &ClusterClient, first: usize) {
    for n in first..first + FLOOD {
        put_at(client, 0, n, None).await;
    }
}

async fn present(client: &ClusterClient, first: usize, count: usize) -> usize {
    let keys: Vec<_> = (first..first + count).map(key).collect();
    let found = client.exists(&keys).await.expect("answered");
    found.into_iter().filter(|found| *found).count()
}

/// Copies that the second node let go first, as their groups were broken.
async fn abandoned(scene: &Scene) -> u64 {
    abandoned_by(scene, 1).await
}

async fn abandoned_by(scene: &Scene, node: usize) -> u64 {
    let report = scene.reports().await.swap_remove(node);
    report.member.expect("a member").copies_abandoned
}

/// Runs something at two nodes with little memory, with a client inside of each.
async fn at_two_nodes(work: impl AsyncFnOnce(&Scene, &ClusterClient, &ClusterClient)) {
    let scene = Scene::of(2, 4 * MIB).await;
    let (first, second) = (scene.inside(0).await, scene.inside(1).await);
    let work = work(&scene, &first, &second);
    timeout(20 * PATIENCE, work).await.expect("in time");
}

/// What the first node has leaves, and the second one knows, where there is room still.
async fn have_left_and_is_known(scene: &Scene, first: &ClusterClient, second: &ClusterClient) {
    flood(first, FIRST_OF_FLOOD).await;
    assert_eq!(present(first, HERE, SHARED).await, 0, "they have left");
    eventually("the other node knows", async || {
        abandoned(scene).await == SHARED as u64
    })
    .await;
    let left = present(second, THERE, SHARED).await;
    assert_eq!(left, SHARED, "there is room");
}

#[test]
fn what_left_memory_on_one_node_takes_its_group_with_it_on_another() {
    run(WORLDS, || {
        at_two_nodes(async |scene, first, second| {
            for n in 0..OLDER_COUNT {
                put_at(second, 1, OLDER + n, None).await;
                // A group that nothing happens to.
                put_at(second, 1, ALONE + n, Some(ALONE + n)).await;
            }
            for n in 0..SHARED {
                put_at(first, 0, HERE + n, Some(n)).await;
                put_at(second, 1, THERE + n, Some(n)).await;
            }
            have_left_and_is_known(scene, first, second).await;
            // One is used all the same.
            second.get(&key(THERE), room(LEN)).await.expect("here");
            let mut n = FIRST_OF_FLOOD + FLOOD;
            while present(second, THERE + 1, SHARED - 1).await > 0 {
                put_at(second, 1, n, None).await;
                n += 1;
                let others = present(second, OLDER, OLDER_COUNT).await
                    + present(second, ALONE, OLDER_COUNT).await;
                let gone = 2 * OLDER_COUNT - others;
                assert!(
                    gone == 0 || present(second, THERE + 1, SHARED - 1).await == 0,
                    "{gone} of what was older have left before it"
                );
            }
            assert_eq!(present(second, THERE, 1).await, 1, "it was used");
        })
    });
}

#[test]
fn a_group_is_whole_again_when_it_is_written_again() {
    run(WORLDS, || {
        at_two_nodes(async |scene, first, second| {
            put_at(second, 1, THERE, Some(0)).await;
            // The one that is used each time, the one that is new, and not those that wait for their turn.
            for (round, expected) in (1..).zip([1, 3, 5]) {
                put_at(first, 0, HERE, Some(0)).await;
                flood(first, FIRST_OF_FLOOD * round).await;
                assert_eq!(present(first, HERE, 1).await, 0, "it has left");
                eventually("the other node knows", async || {
                    abandoned(scene).await == expected
                })
                .await;
                put_at(second, 1, THERE + round, Some(0)).await;
                second.get(&key(THERE), room(LEN)).await.expect("here");
            }
        })
    });
}

#[test]
fn parts_of_an_object_are_of_use_together_only() {
    run(WORLDS, || {
        at_two_nodes(async |scene, _, second| {
            let options = PutOptions {
                stripe_len: Some(16_384),
                ..PutOptions::default()
            };
            // Of as many parts some are on each node.
            let value = Value::new(pattern(HERE, 32 * LEN));
            second.put(&key(HERE), value, options).await.expect("room");
            let there = scene.held_by(second, 2).await;
            assert!((1..33).contains(&there), "{there}");
            time::sleep(STANDS_BY).await;
            assert_eq!(abandoned(scene).await, 0);
            // What has stood by is offered last.
            flood(second, FIRST_OF_FLOOD).await;
            flood(second, 2 * FIRST_OF_FLOOD).await;
            eventually("what is on the other node is next", async || {
                abandoned(scene).await == there
            })
            .await;
        })
    });
}

#[test]
fn objects_of_several_copies_are_in_no_group() {
    run(WORLDS, || {
        at_two_nodes(async |scene, first, second| {
            let options = PutOptions {
                copies: 2,
                group: Some(group_id(0)),
                ..PutOptions::default()
            };
            let value = Value::new(pattern(HERE, LEN));
            first.put(&key(HERE), value, options).await.expect("room");
            put_at(second, 1, THERE, Some(0)).await;
            flood(first, FIRST_OF_FLOOD).await;
            time::sleep(Duration::from_millis(300)).await;
            assert_eq!(abandoned(scene).await, 0);
        })
    });
}

#[test]
fn what_is_behind_a_block_that_is_gone_leaves_with_what_is_behind_it() {
    run(WORLDS, || {
        at_two_nodes(async |scene, first, second| {
            for n in 0..OLDER_COUNT {
                put_at(second, 1, OLDER + n, None).await;
            }
            // On the first node the parents, on the second what is behind them, and what is behind that.
            for n in 0..SHARED {
                put_at(first, 0, HERE + n, None).await;
                put_behind(second, 1, THERE + n, HERE + n).await;
                put_behind(second, 1, ALONE + n, THERE + n).await;
            }
            have_left_and_is_known(scene, first, second).await;
            let mut n = FIRST_OF_FLOOD + FLOOD;
            let left = async || {
                present(second, THERE, SHARED).await + present(second, ALONE, SHARED).await
            };
            while left().await > 0 {
                put_at(second, 1, n, None).await;
                n += 1;
                let others = present(second, OLDER, OLDER_COUNT).await;
                // What is behind what leaves is known to be of no use a message later.
                let gone = OLDER_COUNT - others;
                assert!(gone < OLDER_COUNT / 4, "{gone} of what was older have left");
            }
        })
    });
}

#[test]
fn what_is_behind_a_block_that_is_there_stays() {
    run(WORLDS, || {
        at_two_nodes(async |scene, first, second| {
            // Of these the parents are used again and again, or written anew.
            for n in 0..SHARED {
                put_at(second, 1, HERE + n, None).await;
                put_behind(first, 0, THERE + n, HERE + n).await;
            }
            let upsert = PutOptions {
                kind: WriteKind::Upsert,
                ..PutOptions::default()
            };
            for n in 0..SHARED {
                let value = Value::new(pattern(n, LEN));
                second
                    .put(&key(HERE + n), value, upsert)
                    .await
                    .expect("room");
            }
            // Nothing of all that is gone but versions.
            assert_eq!(abandoned_by(scene, 0).await, 0);
            assert_eq!(second.remove(&[key(HERE)]).await, [Ok(true)]);
            eventually("what was behind it is abandoned", async || {
                abandoned_by(scene, 0).await == 1
            })
            .await;
        })
    });
}

#[test]
fn blocks_of_a_chain_are_behind_each_other() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 4 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let client = client.of_tenant(Tenant::named("a").expect("a name"));
            let before = abandoned_by(&scene, 0).await + abandoned_by(&scene, 1).await;
            let blocks: Vec<_> = (0..5)
                .map(|n| (key(n), Value::new(pattern(n, LEN))))
                .collect();
            let stored = client
                .put_chain(None, &blocks[..2], PutOptions::default())
                .await;
            assert!(stored.iter().all(Result::is_ok), "{stored:?}");
            let last = Some(blocks[1].0.as_slice());
            let stored = client
                .put_chain(last, &blocks[2..], PutOptions::default())
                .await;
            assert!(stored.iter().all(Result::is_ok), "{stored:?}");
            // Each that is removed has one behind it, but the last.
            let mut abandoned = before;
            for n in 0..5 {
                assert_eq!(client.remove(&[key(n)]).await, [Ok(true)]);
                abandoned += u64::from(n < 4);
                eventually("the next one is abandoned", async || {
                    abandoned_by(&scene, 0).await + abandoned_by(&scene, 1).await == abandoned
                })
                .await;
            }
        }
    });
}
