//! Members of a cluster and their clients, on each driver and in worlds, with an embedded coordinator.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "cluster/scene.rs"]
mod scene;

#[cfg(test)]
#[path = "../../runtime/tests/on_each_driver/mod.rs"]
mod on_each_driver;

#[cfg(test)]
#[path = "../../gpu/tests/driver/stub.rs"]
mod stub;

#[cfg(test)]
#[path = "../../transfer/tests/engine/devices/gpu.rs"]
mod gpu;

#[cfg(test)]
#[path = "cluster/asked_together.rs"]
mod asked_together;

#[cfg(test)]
#[path = "cluster/batches.rs"]
mod batches;

#[cfg(test)]
#[path = "cluster/clearing.rs"]
mod clearing;

#[cfg(test)]
#[path = "cluster/costs.rs"]
mod costs;

#[cfg(test)]
#[path = "cluster/devices.rs"]
mod devices;

#[cfg(test)]
#[path = "cluster/devices_here.rs"]
mod devices_here;

#[cfg(test)]
#[path = "cluster/far.rs"]
mod far;

#[cfg(test)]
#[path = "cluster/gathered.rs"]
mod gathered;

#[cfg(test)]
#[path = "cluster/groups.rs"]
mod groups;

#[cfg(test)]
#[path = "cluster/handed.rs"]
mod handed;

#[cfg(test)]
#[path = "cluster/handed_devices.rs"]
mod handed_devices;

#[cfg(test)]
#[path = "cluster/held.rs"]
mod held;

#[cfg(test)]
#[path = "cluster/inside.rs"]
mod inside;

#[cfg(test)]
#[path = "cluster/landed_devices.rs"]
mod landed_devices;

#[cfg(test)]
#[path = "cluster/latency.rs"]
mod latency;

#[cfg(test)]
#[path = "cluster/lanes.rs"]
mod lanes;

#[cfg(test)]
#[path = "cluster/lent_devices.rs"]
mod lent_devices;

#[cfg(test)]
#[path = "cluster/lines.rs"]
mod lines;

#[cfg(test)]
#[path = "cluster/listed.rs"]
mod listed;

#[cfg(test)]
#[path = "cluster/located.rs"]
mod located;

#[cfg(test)]
#[path = "cluster/messages.rs"]
mod messages;

#[cfg(test)]
#[path = "cluster/moving.rs"]
mod moving;

#[cfg(test)]
#[path = "cluster/objects.rs"]
mod objects;

#[cfg(test)]
#[path = "cluster/one_sided.rs"]
mod one_sided;

#[cfg(test)]
#[path = "cluster/pins.rs"]
mod pins;

#[cfg(test)]
#[path = "cluster/placing.rs"]
mod placing;

#[cfg(test)]
#[path = "cluster/pulled.rs"]
mod pulled;

#[cfg(test)]
#[path = "cluster/pushed.rs"]
mod pushed;

#[cfg(test)]
#[path = "cluster/late.rs"]
mod late;

#[cfg(test)]
#[path = "cluster/silent_hosts.rs"]
mod silent_hosts;

#[cfg(test)]
#[path = "cluster/missed_maps.rs"]
mod missed_maps;

#[cfg(test)]
#[path = "cluster/quotas.rs"]
mod quotas;

#[cfg(test)]
#[path = "cluster/quotas_in_doubt.rs"]
mod quotas_in_doubt;

#[path = "cluster/repairs.rs"]
mod repairs;

#[cfg(test)]
#[path = "cluster/reserved.rs"]
mod reserved;

#[cfg(test)]
#[path = "cluster/reserved_doubt.rs"]
mod reserved_doubt;

#[cfg(test)]
#[path = "cluster/reserved_parts.rs"]
mod reserved_parts;

#[cfg(test)]
#[path = "cluster/retiring.rs"]
mod retiring;

#[cfg(test)]
#[path = "cluster/connections.rs"]
mod connections;

#[cfg(test)]
#[path = "cluster/strangers.rs"]
mod strangers;

#[cfg(test)]
#[path = "cluster/scattered.rs"]
mod scattered;

#[cfg(test)]
#[path = "cluster/striped.rs"]
mod striped;

#[cfg(test)]
#[path = "cluster/tenants.rs"]
mod tenants;

#[cfg(test)]
#[path = "cluster/threads.rs"]
mod threads;

#[cfg(test)]
#[path = "cluster/tier.rs"]
mod tier;

#[cfg(test)]
#[path = "cluster/town.rs"]
mod town;

#[cfg(test)]
#[path = "cluster/unasked.rs"]
mod unasked;

#[cfg(test)]
#[path = "cluster/unheard.rs"]
mod unheard;

#[cfg(test)]
#[path = "cluster/versions.rs"]
mod versions;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_auth::Secrets;
    use lunette_kvstore::{ClusterError, Fetched, PutOptions, StoreErrorKind, Stored, Value};
    use lunette_kvstore_proto::key::KeyFault;
    use lunette_kvstore_proto::message::directory::HoldWish;
    use lunette_kvstore_proto::version::WriteKind;
    use lunette_runtime::time;
    use lunette_runtime_core::limits::KEY_BYTES_MAX;

    use super::on_each_driver::run;
    use super::scene::{Scene, eventually, key, pattern, room};

    const WORLDS: u64 = 3;
    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_put_is_got_wherever_it_is() {
        run(WORLDS, || async {
            let scene = Scene::of(3, 64 * MIB).await;
            let client = scene.client().await;
            let len = |n: usize| n * 1979 % 50_000;
            for n in 0..60 {
                let value = Value::new(pattern(n, len(n)));
                let put = client.put(&key(n), value, PutOptions::default()).await;
                assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
            }
            let keys: Vec<_> = (0..80).map(key).collect();
            let present = client.exists(&keys).await.expect("asked");
            assert!(present.iter().enumerate().all(|(n, &is)| is == (n < 60)));
            for n in 0..60 {
                scene.expect(&client, n, len(n)).await;
            }
            let homes = client.map().members().len();
            assert_eq!(homes, 3);
            assert!(scene.holders(&client).await >= 2, "keys are spread");
        });
    }

    #[test]
    fn objects_are_immutable_unless_they_are_replaced() {
        run(WORLDS, || async {
            let scene = Scene::of(3, 64 * MIB).await;
            let client = scene.client().await;
            let upsert = PutOptions {
                kind: WriteKind::Upsert,
                ..PutOptions::default()
            };
            let written = scene.put(&client, 1, 1, 100).await;
            let Stored::Written { version: first, .. } = written else {
                unreachable!("it is the first")
            };
            let again = scene.put(&client, 1, 2, 100).await;
            assert_eq!(again, Stored::Exists { version: first });
            scene.expect_value(&client, 1, 1, 100).await;
            let value = Value::new(pattern(3, 5000));
            let replaced = client.put(&key(1), value, upsert).await.expect("replaced");
            let Stored::Written { version: later, .. } = replaced else {
                unreachable!("an upsert writes")
            };
            assert!(later > first);
            scene.expect_value(&client, 1, 3, 5000).await;
            let keys = [key(1), key(2)];
            let removed = client.remove(&keys).await;
            assert_eq!(removed, [Ok(true), Ok(false)]);
            assert_eq!(client.exists(&keys).await, Ok(vec![false, false]));
            let fetched = client.get(&key(1), room(100)).await.expect("asked");
            assert!(matches!(fetched, Fetched::Miss { is_known: true, .. }));
            let written = scene.put(&client, 1, 4, 0).await;
            assert!(matches!(written, Stored::Written { .. }), "{written:?}");
            scene.expect_value(&client, 1, 4, 0).await;
        });
    }

    #[test]
    fn bad_input_is_refused_and_loses_nothing() {
        run(0, || async {
            let scene = Scene::of(1, 4 * MIB).await;
            let client = scene.client().await;
            let value = || Value::new(pattern(1, 10));
            for (bad, fault) in [
                (vec![], KeyFault::Empty),
                (
                    vec![7; KEY_BYTES_MAX + 1],
                    KeyFault::TooLong {
                        len_bytes: KEY_BYTES_MAX + 1,
                    },
                ),
            ] {
                let put = client.put(&bad, value(), PutOptions::default()).await;
                let kind = put.expect_err("no key").kind;
                assert_eq!(kind, StoreErrorKind::Key(fault));
                let failure = client.get(&bad, room(10)).await.expect_err("no key");
                assert!(failure.room.is_some(), "the room comes back");
            }
            let binary = vec![0, 0xff, 0x80, b'\n'];
            let put = client.put(&binary, value(), PutOptions::default()).await;
            assert!(put.is_ok());
            let small = client.get(&binary, room(5)).await.expect_err("too small");
            assert!(small.room.is_some() && !small.error.is_corruption());
            let large = Value::new(pattern(1, 5 << 20));
            let put = client.put(b"large", large, PutOptions::default()).await;
            let error = put.expect_err("it never fits");
            assert!(!error.is_retryable(), "{error}");
            let none = PutOptions {
                copies: 0,
                ..PutOptions::default()
            };
            let put = client.put(b"none", value(), none).await;
            let kind = put.expect_err("no copy").kind;
            assert_eq!(kind, StoreErrorKind::Copies { copies: 0 });
            scene.expect_bytes(&client, &binary, &pattern(1, 10)).await;
        });
    }

    #[test]
    fn memory_that_is_full_is_made_room_in() {
        run(WORLDS, || async {
            let scene = Scene::of(2, 2 * MIB).await;
            let client = scene.client().await;
            for n in 0..200 {
                let stored = scene.put(&client, n, n, 60_000).await;
                assert!(matches!(stored, Stored::Written { .. }), "{stored:?}");
            }
            let keys: Vec<_> = (0..200).map(key).collect();
            let present = client.exists(&keys).await.expect("asked");
            let count = present.iter().filter(|is| **is).count();
            assert!((20..=70).contains(&count), "{count} of 200");
            let latest = present[190..].iter().filter(|is| **is).count();
            assert_eq!(latest, 10, "the least recently used leave first");
            let seen: Vec<usize> = (0..200).filter(|&n| present[n]).collect();
            for n in seen {
                scene.expect(&client, n, 60_000).await;
            }
        });
    }

    #[test]
    fn what_is_held_is_not_evicted() {
        run(WORLDS, || async {
            let scene = Scene::of(1, 2 * MIB).await;
            let client = scene.client().await;
            scene.put(&client, 0, 0, 60_000).await;
            let hold = HoldWish {
                holder: 7,
                ttl_ms: 4000,
            };
            let found = client.lookup(&key(0), Some(hold)).await.expect("asked");
            assert_eq!(found.expect("found").held_ms, 4000);
            for n in 1..80 {
                scene.put(&client, n, n, 60_000).await;
            }
            scene.expect(&client, 0, 60_000).await;
            assert_eq!(client.exists(&[key(1)]).await, Ok(vec![false]));
        });
    }

    #[test]
    fn a_member_that_joins_takes_over_and_loses_nothing() {
        run(WORLDS, || async {
            let mut scene = Scene::of(2, 64 * MIB).await;
            let client = scene.client().await;
            for n in 0..40 {
                scene.put(&client, n, n, 3000).await;
            }
            scene.add(64 * MIB).await;
            eventually("the client knows the new map", async || {
                // What the third is the home of is asked for in vain at the former ones.
                client.exists(&[key(0)]).await.is_ok() && client.map().members().len() == 3
            })
            .await;
            for n in 0..40 {
                scene.expect(&client, n, 3000).await;
            }
            // Its home sends such a lookup on to the owner, whose answer comes back by way of the home.
            let hold = HoldWish {
                holder: 7,
                ttl_ms: 1000,
            };
            for n in 0..40 {
                let found = client.lookup(&key(n), Some(hold)).await.expect("asked");
                assert_eq!(found.expect("found").held_ms, 1000);
            }
            for n in 40..80 {
                scene.put(&client, n, n, 3000).await;
            }
            assert_eq!(scene.holders(&client).await, 3);
        });
    }

    #[test]
    fn a_member_that_retires_is_emptied_and_nothing_is_lost() {
        run(WORLDS, || async {
            let scene = Scene::of(2, 64 * MIB).await;
            let client = scene.client().await;
            for n in 0..30 {
                scene.put(&client, n, n, 1000).await;
            }
            let before = scene.held_by(&client, 1).await;
            assert!((1..30).contains(&before), "{before}");
            scene.retire_first().await.expect("another stays");
            eventually("the client knows that it retires", async || {
                client.exists(&[key(0)]).await.is_ok() && client.map().members()[0].is_draining
            })
            .await;
            for n in 0..30 {
                scene.expect(&client, n, 1000).await;
            }
            for n in 30..60 {
                scene.put(&client, n, n, 1000).await;
            }
            eventually("others have what it had", async || {
                scene.held_by(&client, 1).await == 0
            })
            .await;
            for n in 0..60 {
                scene.expect(&client, n, 1000).await;
            }
        });
    }

    #[test]
    fn who_asks_nodes_that_have_not_joined_is_told_so() {
        run(2, || async {
            let lonely = Scene::without_coordinator().await;
            let error = lonely.client_with(None).await.expect_err("no map");
            assert_eq!(error, ClusterError::NoMap);
            assert!(error.is_retryable());
        });
    }

    #[test]
    fn replicas_outlive_a_member_that_leaves() {
        run(WORLDS, || async {
            let mut scene = Scene::of(3, 64 * MIB).await;
            let client = scene.client().await;
            let twice = PutOptions {
                copies: 2,
                ..PutOptions::default()
            };
            for n in 0..20 {
                let value = Value::new(pattern(n, 7000));
                let put = client.put(&key(n), value, twice).await;
                assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
            }
            eventually("each has two copies", async || {
                for n in 0..20 {
                    let found = client.lookup(&key(n), None).await.expect("asked");
                    if found.expect("found").owners.len() != 2 {
                        return false;
                    }
                }
                true
            })
            .await;
            scene.remove_first().await;
            eventually("the client knows that it left", async || {
                client.exists(&[key(0)]).await.is_ok() && client.map().members().len() == 2
            })
            .await;
            for n in 0..20 {
                scene.expect(&client, n, 7000).await;
            }
        });
    }

    #[test]
    fn what_a_member_took_with_it_is_a_miss_and_can_be_put_again() {
        run(WORLDS, || async {
            let mut scene = Scene::of(3, 64 * MIB).await;
            let client = scene.client().await;
            for n in 0..30 {
                scene.put(&client, n, n, 1000).await;
            }
            scene.remove_first().await;
            let mut lost = 0;
            for n in 0..30 {
                match client.get(&key(n), room(1000)).await.expect("asked") {
                    Fetched::Hit { .. } => {}
                    Fetched::Miss { .. } => lost += 1,
                }
                let stored = scene.put(&client, n, n, 1000).await;
                tracing::trace!(?stored);
                scene.expect(&client, n, 1000).await;
            }
            assert!((1..30).contains(&lost), "{lost} of 30");
        });
    }

    #[test]
    fn remove_all_removes_all() {
        run(WORLDS, || async {
            let scene = Scene::of(2, 64 * MIB).await;
            let client = scene.client().await;
            let keys: Vec<_> = (0..20).map(key).collect();
            for n in 0..20 {
                scene.put(&client, n, n, 1000).await;
            }
            let before = scene.generation().await;
            scene.clear().await;
            assert!(
                scene.generation().await > before,
                "it is done when it is told"
            );
            eventually("nothing is there", async || {
                let present = client.exists(&keys).await.unwrap_or_default();
                !present.is_empty() && present.iter().all(|is| !is)
            })
            .await;
            scene.put(&client, 3, 33, 1000).await;
            scene.expect_value(&client, 3, 33, 1000).await;
        });
    }

    #[test]
    fn only_who_knows_the_secret_is_heard() {
        run(2, || async {
            let secrets = |byte: u8| Secrets::parse(&[byte; 32]).expect("long enough");
            let scene = Scene::secret(2, 64 * MIB, secrets(b's')).await;
            let client = scene.client().await;
            scene.put(&client, 1, 1, 1000).await;
            scene.expect(&client, 1, 1000).await;
            let stranger = scene.client_with(Some(secrets(b'x'))).await;
            let refused = stranger.expect_err("another secret");
            assert!(matches!(refused, ClusterError::Connect { .. }), "{refused}");
            time::sleep(Duration::from_millis(10)).await;
            scene.expect(&client, 1, 1000).await;
        });
    }
}
