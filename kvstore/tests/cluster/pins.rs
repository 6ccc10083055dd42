//! What outlasts other objects in memory because its writer wished so.

use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, Fetched, PutOptions, Reserved, StoreError, StoreErrorKind, Value,
};
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::retention::Pin;
use lunette_runtime::time::{self, timeout};

use super::on_each_driver::run;
use super::scene::{PATIENCE, Scene, eventually, key, pattern, room};

const MIB: u64 = 1 << 20;
const WORLDS: u64 = 2;
const LEN: usize = 16_384;
/// Of these about a quarter fits.
const OTHERS: usize = 1_000;
/// Keys of objects that nothing is wished of.
const FIRST_OTHER: usize = 10_000;
/// Of each kind of pin.
const PINNED: usize = 10;
const TTL: Duration = Duration::from_secs(3600);

fn pinned(pin: Pin) -> PutOptions {
    PutOptions {
        pin,
        ..PutOptions::default()
    }
}

async fn put(client: &ClusterClient, n: usize, options: PutOptions) -> Result<(), StoreError> {
    let value = Value::new(pattern(n, LEN));
    client.put(&key(n), value, options).await.map(drop)
}

async fn flood(client: &ClusterClient, first: usize) {
    for n in first..first + OTHERS {
        put(client, n, PutOptions::default()).await.expect("room");
    }
}

async fn present(client: &ClusterClient, numbers: std::ops::Range<usize>) -> usize {
    let keys: Vec<_> = numbers.map(key).collect();
    let found = client.exists(&keys).await.expect("answered");
    found.into_iter().filter(|found| *found).count()
}

#[test]
fn pinned_objects_outlast_any_number_of_others() {
    run(WORLDS, || async {
        for is_inside in [true, false] {
            let scene = Scene::of(1, 4 * MIB).await;
            let client = if is_inside {
                scene.inside(0).await
            } else {
                scene.client().await
            };
            let work = async {
                let pins = [Pin::Hard, Pin::soft(Some(TTL)), Pin::None];
                for (kind, pin) in pins.into_iter().enumerate() {
                    for n in kind * PINNED..(kind + 1) * PINNED {
                        put(&client, n, pinned(pin)).await.expect("room");
                    }
                }
                let parts = Value::new(pattern(100, 4 * LEN));
                let options = PutOptions {
                    stripe_len: Some(16_384),
                    ..pinned(Pin::Hard)
                };
                client.put(&key(100), parts, options).await.expect("room");
                let reserved = client.reserve(&key(101), LEN, pinned(Pin::Hard), TTL).await;
                let Ok(Reserved::Room(reservation)) = reserved else {
                    panic!("{reserved:?}");
                };
                let value = Value::new(pattern(101, LEN));
                reservation.write(0, value).await.expect("in time");
                reservation.commit().await.expect("it is whole");
                flood(&client, FIRST_OTHER).await;
                scene.expect(&client, 100, 4 * LEN).await;
                scene.expect(&client, 101, LEN).await;
                let kinds = (0..3).map(|kind| kind * PINNED..(kind + 1) * PINNED);
                let mut counts = [0; 3];
                for (count, numbers) in counts.iter_mut().zip(kinds) {
                    *count = present(&client, numbers).await;
                }
                assert_eq!(counts, [PINNED, PINNED, 0]);
            };
            timeout(10 * PATIENCE, work).await.expect("in time");
        }
    });
}

#[test]
fn a_soft_pin_ends_and_gives_way_where_all_else_has() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 4 * MIB).await;
        let client = scene.client().await;
        let work = async {
            let soft = Pin::soft(Some(Duration::from_millis(300)));
            for n in 0..PINNED {
                put(&client, n, pinned(soft)).await.expect("room");
            }
            time::sleep(Duration::from_millis(400)).await;
            flood(&client, FIRST_OTHER).await;
            assert_eq!(present(&client, 0..PINNED).await, 0, "their time is over");
            let soft = Pin::soft(Some(TTL));
            for n in 0..OTHERS {
                put(&client, n, pinned(soft)).await.expect("room");
            }
            let last = present(&client, OTHERS - PINNED..OTHERS).await;
            assert_eq!(
                last, PINNED,
                "those that are pinned make room for one another"
            );
        };
        timeout(10 * PATIENCE, work).await.expect("in time");
    });
}

#[test]
fn what_is_pinned_for_ever_leaves_room_for_others() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 4 * MIB).await;
        scene.set_client_timeout(Duration::from_millis(500));
        let client = &scene.client().await;
        let mut refused = None;
        let mut count = 0;
        while refused.is_none() {
            refused = put(client, count, pinned(Pin::Hard)).await.err();
            count += usize::from(refused.is_none());
        }
        let refused = refused.expect("a bound");
        assert_eq!(refused.kind, StoreErrorKind::Refused(Status::PinnedFull));
        assert!(!refused.is_retryable());
        assert!((32..150).contains(&count), "half of what fits: {count}");
        flood(client, FIRST_OTHER).await;
        assert_eq!(present(client, 0..count).await, count);
        assert_eq!(
            client.remove(&[key(0)]).await.pop().and_then(Result::ok),
            Some(true)
        );
        put(client, count, pinned(Pin::Hard))
            .await
            .expect("room again");
    });
}

#[test]
fn copies_of_what_is_pinned_are_pinned_too() {
    run(WORLDS, || async {
        let mut scene = Scene::of(2, 4 * MIB).await;
        let client = scene.client().await;
        let work = async {
            for (n, pin) in [Pin::Hard, Pin::soft(Some(TTL))].into_iter().enumerate() {
                let options = PutOptions {
                    copies: 2,
                    ..pinned(pin)
                };
                put(&client, n, options).await.expect("room");
            }
            eventually("both nodes have both", async || {
                scene.held_by(&client, 1).await == 2 && scene.held_by(&client, 2).await == 2
            })
            .await;
            flood(&client, FIRST_OTHER).await;
            scene.remove_first().await;
            flood(&client, FIRST_OTHER + OTHERS).await;
            for n in 0..2 {
                let fetched = client.get(&key(n), room(LEN)).await;
                assert!(
                    matches!(fetched, Ok(Fetched::Hit { .. })),
                    "{n}: {fetched:?}"
                );
            }
        };
        timeout(10 * PATIENCE, work).await.expect("in time");
    });
}
