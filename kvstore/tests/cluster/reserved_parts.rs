//! Objects in parts that are written in ranges.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, Fetched, PutOptions, Reservation, Reserved, StoreErrorKind, Stored, Value,
};
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::KEEP_MS_MAX;
use lunette_kvstore_proto::striped::OBJECT_LEN_MAX;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::sim::{World, WorldOptions};
use lunette_runtime::{CoreOptions, spawn_local, time};

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern, room};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const KEEP: Duration = Duration::from_secs(30);
const PART: u32 = 10_000;
/// In ten parts, the last of which is shorter.
const LEN: usize = 95_000;

fn options(kind: WriteKind) -> PutOptions {
    PutOptions {
        kind,
        stripe_len: Some(PART),
        ..PutOptions::default()
    }
}

async fn reserve_for(client: &ClusterClient, kind: WriteKind, keep: Duration) -> Reservation {
    reserve_len(client, LEN, kind, keep).await
}

async fn reserve_len(
    client: &ClusterClient,
    len: usize,
    kind: WriteKind,
    keep: Duration,
) -> Reservation {
    let name = key(1);
    let reserved = client.reserve(&name, len, options(kind), keep).await;
    let Ok(Reserved::Room(reservation)) = reserved else {
        panic!("no room: {reserved:?}");
    };
    reservation
}

async fn reserve(client: &ClusterClient) -> Reservation {
    reserve_for(client, WriteKind::Put, KEEP).await
}

/// Writes some of the bytes of a number.
async fn write(
    reservation: &Reservation,
    n: usize,
    start: usize,
    len: usize,
) -> Result<(), StoreErrorKind> {
    let some = pattern(n, reservation.len()).slice(start, len);
    let written = reservation.write(start, Value::new(some)).await;
    written.map_err(|error| error.kind)
}

/// Copies that all nodes have, and bytes of their memory that are in use.
async fn entries(client: &ClusterClient) -> (u64, u64) {
    let stats = client.stat().await.into_iter();
    let shards = stats.map(|(_, stat)| stat.expect("it answers").shards);
    shards.fold((0, 0), |(entries, used), shard| {
        (entries + shard.entries, used + shard.used_bytes)
    })
}

async fn are_empty(client: &ClusterClient) {
    eventually("nothing is left", async || entries(client).await == (0, 0)).await;
}

#[test]
fn ranges_cross_parts_in_any_order_and_are_one_object_in_the_end() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(0).await] {
            let reservation = reserve(&client).await;
            assert_eq!((reservation.len(), reservation.is_empty()), (LEN, false));
            assert_eq!(write(&reservation, 1, 94_999, 1).await, Ok(()));
            assert_eq!(write(&reservation, 1, 9_999, 50_002).await, Ok(()));
            assert_eq!(write(&reservation, 1, 5, 0).await, Ok(()));
            // What is written again takes the place of what was there.
            assert_eq!(write(&reservation, 2, 0, 20_000).await, Ok(()));
            assert_eq!(write(&reservation, 1, 0, 30_000).await, Ok(()));
            let fetched = client.get(&key(1), room(LEN)).await.expect("asked");
            assert!(matches!(fetched, Fetched::Miss { .. }), "{fetched:?}");
            let failure = reservation.commit().await.expect_err("some are missing");
            let unfinished = StoreErrorKind::Refused(Status::Unfinished);
            assert_eq!(failure.error.kind, unfinished);
            let reservation = failure.reservation.expect("it is still there");
            // Nothing was committed: all of it can still be written.
            assert_eq!(write(&reservation, 1, 0, 10_000).await, Ok(()));
            assert_eq!(write(&reservation, 1, 60_001, 34_998).await, Ok(()));
            let object_len_bytes = LEN;
            let outside = reservation.write(LEN, Value::new(pattern(1, 1))).await;
            let kind = StoreErrorKind::OutOfRange { object_len_bytes };
            assert_eq!(outside.expect_err("beyond the end").kind, kind);
            let committed = reservation.commit().await.expect("it is whole");
            assert!(matches!(committed, Stored::Written { .. }));
            scene.expect(&client, 1, LEN).await;
            assert!(scene.holders(&client).await > 1, "parts are spread");
            assert_eq!(client.sizes(&[key(1)]).await, [Ok(Some(LEN))]);
            assert_eq!(client.remove(&[key(1)]).await, [Ok(true)]);
            are_empty(&client).await;
        }
    });
}

#[test]
fn writes_of_the_same_bytes_wait_for_one_another() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let reservation = reserve(&client).await;
        let both = futures_util::future::join(
            write(&reservation, 1, 0, 50_000),
            write(&reservation, 1, 49_999, 45_001),
        );
        assert_eq!(both.await, (Ok(()), Ok(())));
        // Given up, it may have been done or not: it is to be written again.
        let given_up = time::timeout(Duration::ZERO, write(&reservation, 2, 10, 20_000)).await;
        assert!(given_up.is_err());
        let failure = reservation.commit().await.expect_err("some are unsure");
        let unfinished = StoreErrorKind::Refused(Status::Unfinished);
        assert_eq!(failure.error.kind, unfinished);
        let reservation = failure.reservation.expect("it is still there");
        assert_eq!(write(&reservation, 1, 0, 30_000).await, Ok(()));
        reservation.commit().await.expect("it is whole");
        scene.expect(&client, 1, LEN).await;
    });
}

#[test]
fn it_claims_nothing_and_replaces_what_an_upsert_finds() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let beaten = reserve(&client).await;
        assert_eq!(write(&beaten, 2, 0, LEN).await, Ok(()));
        let (name, value) = (key(1), Value::new(pattern(1, LEN)));
        let put = client.put(&name, value, options(WriteKind::Put));
        let Ok(Stored::Written { version, .. }) = put.await else {
            panic!("the key is free");
        };
        let committed = beaten.commit().await.expect("an answer");
        assert_eq!(committed, Stored::Exists { version });
        let reserved = client.reserve(&name, LEN, options(WriteKind::Put), KEEP);
        let reserved = reserved.await.expect("an answer");
        assert!(matches!(reserved, Reserved::Exists { version: is } if is == version));
        eventually("the parts that were beaten are gone", async || {
            entries(&client).await.0 == 11
        })
        .await;
        let second = reserve_for(&client, WriteKind::Upsert, KEEP).await;
        assert_eq!(write(&second, 3, 0, LEN).await, Ok(()));
        let committed = second.commit().await.expect("an answer");
        assert!(matches!(committed, Stored::Written { version: is, .. } if is > version));
        scene.expect_value(&client, 1, 3, LEN).await;
        eventually("so are those that were replaced", async || {
            entries(&client).await.0 == 11
        })
        .await;
    });
}

#[test]
fn room_that_is_not_used_is_given_back() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let (revoked, dropped) = (reserve(&client).await, reserve(&client).await);
        assert_eq!(write(&dropped, 1, 0, LEN).await, Ok(()));
        assert!(entries(&client).await.1 > 2 * LEN as u64);
        assert_eq!(revoked.revoke().await, Ok(()));
        drop(dropped);
        are_empty(&client).await;
        // Nobody has room for all of it, so nobody keeps any.
        let name = key(2);
        let too_much = client.reserve(&name, 120 << 20, PutOptions::default(), KEEP);
        let kind = too_much.await.expect_err("no room").kind;
        assert!(
            matches!(kind, StoreErrorKind::Refused(Status::Full)),
            "{kind:?}"
        );
        are_empty(&client).await;
        let longest = usize::try_from(OBJECT_LEN_MAX).expect("small");
        let too_long = client.reserve(&name, longest + 1, PutOptions::default(), KEEP);
        let kind = too_long.await.expect_err("too long").kind;
        assert!(matches!(kind, StoreErrorKind::ValueTooLong { .. }));
    });
}

#[test]
fn parts_are_kept_while_others_are_written_and_no_longer() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let keep = Duration::from_secs(1);
        let reservation = reserve_for(&client, WriteKind::Put, keep).await;
        let begun_at = time::now();
        while time::now().since(begun_at) < 3 * keep {
            assert_eq!(write(&reservation, 1, 0, PART as usize).await, Ok(()));
            time::sleep(keep / 5).await;
        }
        assert_eq!(write(&reservation, 1, 10_000, LEN - 10_000).await, Ok(()));
        reservation.commit().await.expect("all parts are there");
        scene.expect(&client, 1, LEN).await;
        assert_eq!(client.remove(&[key(1)]).await, [Ok(true)]);
        let forgotten = reserve_for(&client, WriteKind::Put, keep).await;
        are_empty(&client).await;
        let late = write(&forgotten, 1, 0, 10).await;
        assert_eq!(late, Err(StoreErrorKind::ReservationLost));
    });
}

#[test]
fn parts_at_a_node_that_leaves_are_lost_and_the_others_go_with_them() {
    run(WORLDS, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        // Parts lie where it happens: one time in sixty a node has none of ten.
        let mut reservation = reserve(&client).await;
        while scene.holders(&client).await < 3 {
            reservation.revoke().await.expect("given back");
            reservation = reserve(&client).await;
        }
        assert_eq!(write(&reservation, 1, 0, LEN).await, Ok(()));
        scene.remove_first().await;
        let failure = reservation.commit().await.expect_err("parts are lost");
        assert_eq!(failure.error.kind, StoreErrorKind::ReservationLost);
        assert!(failure.reservation.is_none());
        are_empty(&client).await;
    });
}

/// All that others write is in parts too, so that nothing leaves before what was committed first.
#[test]
fn what_was_committed_stays_until_all_is() {
    const ROUNDS: usize = 40;
    const WRITERS: usize = 8;
    /// In forty parts.
    const LONG: usize = 4 * LEN;
    run(WORLDS, || async {
        let scene = Scene::of(1, 2 * MIB).await;
        let client = scene.client().await;
        let is_over = Rc::new(Cell::new(false));
        let mut writing = Vec::new();
        for writer in 0..WRITERS {
            let (others, is_over) = (scene.client().await, Rc::clone(&is_over));
            writing.push(spawn_local(async move {
                let mut count = 0;
                while !is_over.get() {
                    count += 1;
                    let n = (writer + 1) * 10_000 + count;
                    let value = Value::new(pattern(n, LONG));
                    // Whether there is room for them all does not matter.
                    let stored = others.put(&key(n), value, options(WriteKind::Put)).await;
                    if let Err(error) = stored {
                        assert!(error.is_backpressure(), "{error}");
                    }
                }
                count
            }));
        }
        for round in 0..ROUNDS {
            let reservation = reserve_len(&client, LONG, WriteKind::Upsert, KEEP).await;
            assert_eq!(write(&reservation, round, 0, LONG).await, Ok(()));
            let committed = reservation.commit().await;
            assert!(
                committed.is_ok(),
                "{round}: {:?}",
                committed.err().map(|failure| failure.error)
            );
        }
        is_over.set(true);
        let mut count = 0;
        for others in writing {
            count += others.await.expect("it ends");
        }
        assert!(count > WRITERS, "{count} others");
    });
}

/// Whoever asks for longer than nodes keep anything does not lose what is asked after too late.
#[test]
fn parts_are_kept_while_others_are_written_however_long_was_asked_for() {
    let mut world = World::new(1, WorldOptions::default());
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let process = world.start(host, 1, CoreOptions::default());
    let done = world.spawn(process, 0, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let most = Duration::from_millis(KEEP_MS_MAX.into());
        let reservation = reserve_for(&client, WriteKind::Put, 100 * most).await;
        for _ in 0..5 {
            assert_eq!(write(&reservation, 1, 0, PART as usize).await, Ok(()));
            time::sleep(most / 2).await;
        }
        assert_eq!(write(&reservation, 1, 10_000, LEN - 10_000).await, Ok(()));
        reservation.commit().await.expect("all parts are there");
        scene.expect(&client, 1, LEN).await;
    });
    let until = world.now() + Duration::from_secs(10_000);
    assert!(world.run_until(until, || done.is_there()), "it ends");
}
