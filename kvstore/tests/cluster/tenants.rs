//! Tenants of one cluster: their keys, and what each has of memory.

use std::time::Duration;

use lunette_gpu::fake::{FakeMachine, FakeOptions};
use lunette_kvstore::{
    ClusterClient, DeviceClient, DeviceFetched, Fetched, Lent, PutOptions, Reserved,
    StoreErrorKind, Stored, Value,
};
use lunette_kvstore_proto::key::KeyFault;
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::retention::{GroupId, Pin};
use lunette_kvstore_proto::tenant::{TENANT_NAME_BYTES_MAX, Tenant};
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::time::timeout;
use lunette_runtime_core::limits::KEY_BYTES_MAX;

use super::on_each_driver::run;
use super::scene::{PATIENCE, Scene, eventually, key, pattern, room};
use crate::gpu::Gpu;

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const PART: u32 = 10_000;
/// In parts.
const LONG: usize = 95_000;

fn named(name: &str) -> Tenant {
    Tenant::named(name).expect("a name")
}

fn in_parts() -> PutOptions {
    PutOptions {
        stripe_len: Some(PART),
        ..PutOptions::default()
    }
}

async fn put(client: &ClusterClient, n: usize, bytes: usize, len: usize) -> Stored {
    let value = Value::new(pattern(bytes, len));
    let put = client.put(&key(n), value, in_parts()).await;
    put.expect("room")
}

/// What is under a key: its bytes, if there is anything.
async fn bytes_at(client: &ClusterClient, n: usize) -> Option<Vec<u8>> {
    match client.get(&key(n), room(LONG + 10)).await.expect("got") {
        Fetched::Hit {
            room, len_bytes, ..
        } => Some(room.as_slice()[..len_bytes].to_vec()),
        Fetched::Miss { .. } => None,
    }
}

#[test]
fn the_same_key_is_another_object_for_each_tenant() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let tenants = ["default", "a", "b"].map(|name| client.of_tenant(named(name)));
            assert_eq!(tenants[1].tenant().name(), "a");
            for (n, len) in [(0, 100), (1, LONG)] {
                for (bytes, client) in tenants.iter().enumerate() {
                    assert_eq!(client.exists(&[key(n)]).await, Ok(vec![false]));
                    assert!(
                        client.locate(&[key(n)]).await[0]
                            .as_ref()
                            .expect("asked")
                            .is_none()
                    );
                    assert_eq!(client.sizes(&[key(n)]).await, [Ok(None)]);
                    let stored = put(client, n, bytes, len + bytes).await;
                    assert!(matches!(stored, Stored::Written { .. }));
                }
                for (bytes, client) in tenants.iter().enumerate() {
                    let expected = pattern(bytes, len + bytes);
                    assert!(bytes_at(client, n).await.as_deref() == Some(expected.as_slice()));
                    assert_eq!(client.exists(&[key(n)]).await, Ok(vec![true]));
                    assert_eq!(client.sizes(&[key(n)]).await, [Ok(Some(len + bytes))]);
                    assert!(client.lookup(&key(n), None).await.expect("asked").is_some());
                    let located = client.locate(&[key(n)]).await.swap_remove(0);
                    assert_eq!(
                        located.expect("asked").expect("found").len_bytes,
                        len + bytes
                    );
                    let again = put(client, n, 9, 50).await;
                    assert!(matches!(again, Stored::Exists { .. }), "{again:?}");
                    let range = ByteRange {
                        offset_bytes: 7,
                        len_bytes: 40,
                    };
                    let got = client.get_ranges(&key(n), &[range], room(40)).await;
                    let Ok(Fetched::Hit { room, .. }) = got else {
                        panic!("{got:?}");
                    };
                    assert_eq!(room.as_slice()[..40], expected.as_slice()[7..47]);
                }
                // One removes its own.
                assert_eq!(tenants[1].remove(&[key(n)]).await, [Ok(true)]);
                let mut found = Vec::new();
                for client in &tenants {
                    found.push(bytes_at(client, n).await.is_some());
                }
                assert_eq!(found, [true, false, true]);
                for client in [&tenants[0], &tenants[2]] {
                    assert_eq!(client.remove(&[key(n)]).await, [Ok(true)]);
                }
            }
        }
    });
}

#[test]
fn batches_holds_and_reservations_are_of_one_tenant() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let (own, other) = (client.of_tenant(named("a")), client.of_tenant(named("b")));
            let objects: Vec<_> = (0..20)
                .map(|n| (key(n), Value::new(pattern(n, 500 + n))))
                .collect();
            let options = PutOptions {
                group: Some(GroupId::of(b"g")),
                pin: Pin::soft(None),
                is_same_node: true,
                ..PutOptions::default()
            };
            let stored = own.put_all(&objects, options).await;
            assert!(
                stored
                    .iter()
                    .all(|stored| matches!(stored, Ok(Stored::Written { .. })))
            );
            let keys: Vec<_> = (0..20).map(key).collect();
            let wanted = || keys.iter().map(|key| (key.clone(), room(600)));
            for (n, got) in own.get_all(wanted()).await.into_iter().enumerate() {
                let Ok(Fetched::Hit {
                    room, len_bytes, ..
                }) = got
                else {
                    panic!("{got:?}");
                };
                assert_eq!(
                    room.as_slice()[..len_bytes],
                    *pattern(n, 500 + n).as_slice()
                );
            }
            let missed = other.get_all(wanted()).await;
            assert!(
                missed
                    .iter()
                    .all(|got| matches!(got, Ok(Fetched::Miss { .. })))
            );
            let hold = HoldWish {
                holder: 7,
                ttl_ms: 5000,
            };
            let held = own.hold_all(&keys, hold).await;
            assert!(held.iter().all(|held| matches!(held, Ok(Some(_)))));
            let held = other.hold_all(&keys, hold).await;
            assert!(held.iter().all(|held| matches!(held, Ok(None))));
            for (n, len) in [(30, 400), (31, LONG)] {
                let keep = Duration::from_secs(30);
                let Ok(Reserved::Room(reservation)) =
                    own.reserve(&key(n), len, in_parts(), keep).await
                else {
                    panic!("no room");
                };
                let written = reservation.write(0, Value::new(pattern(n, len))).await;
                assert_eq!(written, Ok(()));
                reservation.commit().await.expect("committed");
                assert_eq!(bytes_at(&other, n).await, None);
                assert!(bytes_at(&own, n).await.as_deref() == Some(pattern(n, len).as_slice()));
            }
            let removed = own
                .remove(&[keys.as_slice(), &[key(30), key(31)]].concat())
                .await;
            assert!(removed.iter().all(|removed| *removed == Ok(true)));
        }
    });
}

#[test]
fn threads_ask_for_their_tenants_keys() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let own = client.of_tenant(named("a"));
            let (own, other) = (
                own.handle().expect("a task"),
                client.handle().expect("a task"),
            );
            // Short, lent to the thread, and in parts.
            for (n, len) in [(0, 100), (1, 80_000), (2, LONG)] {
                let bytes = pattern(n, len).as_slice().to_vec();
                let options = if n == 2 {
                    in_parts()
                } else {
                    PutOptions::default()
                };
                let value = vec![Lent::bytes(bytes.clone())];
                let stored = own.put(key(n), value, options).await;
                assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
                assert_eq!(own.get_bytes(key(n)).await, Ok(Some(bytes)));
                assert_eq!(other.get_bytes(key(n)).await, Ok(None));
                assert_eq!(own.exists(vec![key(n)]).await, [Ok(true)]);
                assert_eq!(other.exists(vec![key(n)]).await, [Ok(false)]);
                assert_eq!(own.remove(vec![key(n)]).await, [Ok(true)]);
            }
        }
    });
}

#[test]
fn devices_get_their_tenants_objects() {
    run(1, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await.of_tenant(named("a"));
        put(&client, 1, 1, LONG).await;
        let machine = FakeMachine::new(3);
        let gpu = Gpu::open(&machine, machine.add_device(FakeOptions::default()));
        let memory = gpu.full_of(&vec![0; LONG]).await;
        for (tenant, is_found) in [("a", true), ("b", false)] {
            let devices = DeviceClient::new(client.of_tenant(named(tenant)), 8 << 20);
            let got = devices.get(&key(1), std::slice::from_ref(&memory)).await;
            let is_hit = matches!(got, Ok(DeviceFetched::Hit { .. }));
            assert_eq!(is_hit, is_found, "{got:?}");
        }
        assert!(gpu.bytes_of(&memory).await == pattern(1, LONG).as_slice());
    });
}

#[test]
fn what_is_no_key_of_a_tenant_is_refused() {
    run(1, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let tenant = named(&"n".repeat(TENANT_NAME_BYTES_MAX));
        let own = client.of_tenant(tenant.clone());
        let put = async |client: &ClusterClient, key: &[u8]| {
            let put = client.put(key, Value::new(pattern(1, 10)), PutOptions::default());
            put.await.map(drop).map_err(|error| error.kind)
        };
        let refused = |fault| Err(StoreErrorKind::Key(fault));
        assert_eq!(put(&own, b"").await, refused(KeyFault::Empty));
        let longest = vec![7; KEY_BYTES_MAX - TENANT_NAME_BYTES_MAX - 8];
        assert_eq!(put(&own, &longest).await, Ok(()));
        let len_bytes = KEY_BYTES_MAX + 1;
        let too_long = refused(KeyFault::TooLong { len_bytes });
        assert_eq!(
            put(&own, &[longest.as_slice(), &[7]].concat()).await,
            too_long
        );
        // Nobody reaches another's by a key of the store's own form.
        let foreign = tenant.key(&longest);
        assert_eq!(put(&client, &foreign).await, refused(KeyFault::Reserved));
        let got = client.get(&foreign, room(10)).await;
        assert!(
            got.is_err_and(|failure| failure.error.kind == StoreErrorKind::Key(KeyFault::Reserved))
        );
        let cleared = own.clear().await.map_err(|error| error.kind);
        assert_eq!(cleared, Err(StoreErrorKind::OfAllTenants));
        assert_eq!(own.exists(&[longest]).await, Ok(vec![true]));
    });
}

/// One tenant writes more than there is room for, again and again.
#[test]
fn who_has_little_keeps_it_whatever_others_write() {
    run(0, || async {
        const LEN: usize = 16_384;
        let scene = Scene::of(2, 4 * MIB).await;
        let client = scene.inside(0).await;
        let (few, many) = (
            client.of_tenant(named("few")),
            client.of_tenant(named("many")),
        );
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        let put = async |client: &ClusterClient, n: usize| {
            let value = Value::new(pattern(n, LEN));
            client.put(&key(n), value, upsert).await.expect("room");
        };
        let work = async {
            let kept: Vec<_> = (0..60).map(key).collect();
            for n in 0..60 {
                put(&few, n).await;
            }
            for n in 1000..3000 {
                put(&many, n).await;
            }
            let stats = client.stat().await.into_iter();
            let shards = stats.map(|(_, stat)| stat.expect("it answers").shards);
            let evicted: u64 = shards.map(|shard| shard.evictions).sum();
            assert!(evicted > 1000, "{evicted}");
            let left = few.exists(&kept).await.expect("answered");
            assert!(left.iter().all(|is_left| *is_left), "{left:?}");
            // Those of whoever has most are gone.
            let flood: Vec<_> = (1000..3000).map(key).collect();
            eventually("most of them have left", async || {
                let found = many.exists(&flood).await.expect("answered");
                found.iter().filter(|found| **found).count() < 600
            })
            .await;
        };
        timeout(10 * PATIENCE, work).await.expect("in time");
    });
}
