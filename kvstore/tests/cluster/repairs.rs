//! Copies that are missing are made again, and not where memory is in use.

use std::time::Duration;

use lunette_kvstore::{ClusterClient, PutOptions, Stored, Value};
use lunette_runtime::time;
use lunette_runtime_core::ids::NodeId;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;

async fn put_copies(client: &ClusterClient, n: usize, len: usize, copies: u8) {
    let options = PutOptions {
        copies,
        ..PutOptions::default()
    };
    let value = Value::new(pattern(n, len));
    let put = client.put(&key(n), value, options).await;
    assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
}

/// How many copies of each of the first keys their homes know of.
async fn copies(client: &ClusterClient, count: usize) -> Vec<usize> {
    let mut copies = Vec::new();
    for n in 0..count {
        let found = client.lookup(&key(n), None).await.ok().flatten();
        copies.push(found.map_or(0, |found| found.owners.len()));
    }
    copies
}

async fn evictions(client: &ClusterClient) -> u64 {
    let stats = client.stat().await.into_iter();
    stats
        .map(|(_, stat)| stat.expect("it answers").shards.evictions)
        .sum()
}

#[test]
fn what_members_took_with_them_is_made_again() {
    run(WORLDS, || async {
        let mut scene = Scene::of(4, 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..30 {
            put_copies(&client, n, 5000, 2).await;
        }
        // One after the other, each with some of the last copies but for what was made again.
        for left in [3, 2] {
            eventually("each has two copies", async || {
                copies(&client, 30).await == [2; 30]
            })
            .await;
            scene.remove_first().await;
            eventually("the client knows that it left", async || {
                client.exists(&[key(0)]).await.is_ok() && client.map().members().len() == left
            })
            .await;
        }
        eventually("each has two copies", async || {
            copies(&client, 30).await == [2; 30]
        })
        .await;
        for n in 0..30 {
            scene.expect(&client, n, 5000).await;
        }
        let mut repairs = 0;
        for report in scene.reports().await {
            let member = report.member.expect("a member");
            assert_eq!(member.scarce_keys, 0);
            repairs += member.repairs;
        }
        assert!(repairs > 0);
    });
}

#[test]
fn copies_are_in_different_racks_and_so_are_those_that_are_made_again() {
    run(WORLDS, || async {
        let mut scene = Scene::in_racks(&["a", "b", "a", "b"], 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..30 {
            put_copies(&client, n, 1000, 2).await;
        }
        let are_apart = async || {
            let map = client.map();
            for n in 0..30 {
                let found = client.lookup(&key(n), None).await.ok().flatten();
                let owners = found.map(|found| found.owners).unwrap_or_default();
                let members = owners.iter().filter_map(|owner| map.member(owner.node));
                let racks: Vec<_> = members.map(|member| member.rack.label()).collect();
                assert_ne!((racks.first(), racks.len()), (racks.last(), 2));
                if racks.len() < 2 {
                    return false;
                }
            }
            true
        };
        eventually("each has two copies, in different racks", are_apart).await;
        scene.remove_first().await;
        eventually("the client knows that it left", async || {
            client.exists(&[key(0)]).await.is_ok() && client.map().members().len() == 3
        })
        .await;
        eventually("each has two copies, in different racks", are_apart).await;
    });
}

#[test]
fn copies_that_nobody_could_take_are_made_where_somebody_joins_and_no_faster_than_it_is_filled() {
    run(WORLDS, || async {
        const LEN: usize = 60_000;
        const MEMORY: u64 = 8 * MIB;
        let mut scene = Scene::of(2, MEMORY).await;
        let client = scene.client().await;
        for n in 0..50 {
            put_copies(&client, n, LEN, 3).await;
        }
        eventually("both have all", async || {
            copies(&client, 50).await == [2; 50]
        })
        .await;
        let begun = time::now();
        scene.add(MEMORY).await;
        let third = NodeId(3);
        let mut used_bytes = 0;
        while used_bytes < MEMORY / 16 + MIB / 8 {
            time::sleep(Duration::from_millis(100)).await;
            let stats = client.stat().await;
            let stat = stats.into_iter().find(|(seat, _)| seat.node == third);
            let Some((_, Ok(stat))) = stat else {
                continue;
            };
            used_bytes = stat.shards.used_bytes;
            let age_ms = u64::try_from(time::now().since(begun).as_millis()).expect("short");
            let most_bytes = MEMORY / 16 + MEMORY * age_ms / 60_000;
            assert!(used_bytes <= most_bytes, "{used_bytes} after {age_ms} ms");
            assert!(age_ms < 20_000, "{used_bytes} only");
            assert!(stat.replica_room_bytes < MEMORY / 2, "others are drawn too");
        }
    });
}

#[test]
fn where_all_memory_is_in_use_nothing_is_made_again_only_to_be_evicted() {
    run(WORLDS, || async {
        // Small enough for what eviction leaves free.
        const LEN: usize = 2000;
        let mut scene = Scene::of(3, 2 * MIB).await;
        let client = scene.client().await;
        let objects = (0..2500).map(|n| (key(n), Value::new(pattern(n, LEN))));
        let objects: Vec<_> = objects.collect();
        let twice = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        for put in client.put_all(&objects, twice).await {
            assert!(put.is_ok(), "{put:?}");
        }
        scene.remove_first().await;
        eventually("the client knows that it left", async || {
            client.exists(&[key(0)]).await.is_ok() && client.map().members().len() == 2
        })
        .await;
        // Copies are missing now, and there is hardly any room.
        time::sleep(Duration::from_millis(1500)).await;
        let before = evictions(&client).await;
        assert!(before > 0);
        time::sleep(Duration::from_secs(3)).await;
        assert_eq!(evictions(&client).await, before, "nobody writes");
        let mut scarce = 0;
        for report in scene.reports().await {
            scarce += report.member.expect("a member").scarce_keys;
        }
        assert!(scarce > 0);
        // Where there is room, they are made.
        scene.add(64 * MIB).await;
        eventually("nothing is missing", async || {
            let reports = scene.reports().await;
            let mut members = reports.iter().filter_map(|report| report.member);
            members.all(|member| member.scarce_keys == 0)
        })
        .await;
    });
}
