//! Objects that are written in ranges.

use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore::{
    ClusterClient, Fetched, PutOptions, Reservation, Reserved, StoreErrorKind, Stored, Value,
};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    AskerId, KEEP_MS_MAX, ReservationId, ReserveMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::retention::Retention;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::sim::WorldOptions;
use lunette_runtime::time;
use lunette_transfer::Attachments;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, in_a_world, key, pattern, room, stranger};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const KEEP: Duration = Duration::from_secs(30);

async fn reserve(client: &ClusterClient, n: usize, len: usize) -> Reservation {
    let options = PutOptions::default();
    let reserved = client.reserve(&key(n), len, options, KEEP).await;
    match reserved.expect("an answer") {
        Reserved::Room(reservation) => reservation,
        Reserved::Exists { .. } => panic!("the key is taken"),
    }
}

/// Writes a part of the bytes of a number.
async fn write(reservation: &Reservation, n: usize, start: usize, len: usize) {
    let part = pattern(n, reservation.len()).slice(start, len);
    let written = reservation.write(start, Value::new(part)).await;
    written.expect("it is written");
}

/// Bytes of all nodes' memory that are in use.
async fn used_bytes(client: &ClusterClient) -> u64 {
    let stats = client.stat().await.into_iter();
    stats
        .map(|(_, stat)| stat.expect("it answers").shards.used_bytes)
        .sum()
}

#[test]
fn what_is_written_in_ranges_is_seen_when_it_is_committed() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..8 {
            let reservation = reserve(&client, n, 100_000).await;
            write(&reservation, n, 70_000, 30_000).await;
            write(&reservation, n, 0, 10_000).await;
            let missing = client.get(&key(n), room(100_000)).await.expect("asked");
            // Whether a home that has begun a moment ago knows that is another matter.
            assert!(matches!(missing, Fetched::Miss { .. }), "{missing:?}");
            let failure = reservation.commit().await.expect_err("a part is missing");
            let kind = StoreErrorKind::Refused(Status::Unfinished);
            assert_eq!(failure.error.kind, kind);
            let reservation = failure.reservation.expect("it is still there");
            write(&reservation, n, 10_000, 60_000).await;
            let committed = reservation.commit().await.expect("it is whole");
            assert!(matches!(committed, Stored::Written { .. }));
            scene.expect(&client, n, 100_000).await;
        }
        let empty = reserve(&client, 8, 0).await;
        assert!(empty.is_empty() && empty.commit().await.is_ok());
        scene.expect(&client, 8, 0).await;
    });
}

#[test]
fn what_is_written_again_replaces_what_was_there() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let reservation = reserve(&client, 1, 3 << 20).await;
        write(&reservation, 2, 0, 3 << 20).await;
        write(&reservation, 1, 5, 2 << 20).await;
        write(&reservation, 1, 2 << 20, 1 << 20).await;
        write(&reservation, 1, 0, 5).await;
        reservation.commit().await.expect("it is whole");
        scene.expect(&client, 1, 3 << 20).await;
    });
}

#[test]
fn a_reservation_claims_nothing() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        let reservation = reserve(&client, 1, 100).await;
        write(&reservation, 1, 0, 100).await;
        let stored = scene.put(&client, 1, 2, 50).await;
        let Stored::Written { version, .. } = stored else {
            panic!("the key is free: {stored:?}");
        };
        let committed = reservation.commit().await.expect("an answer");
        assert_eq!(committed, Stored::Exists { version });
        scene.expect_value(&client, 1, 2, 50).await;
        let taken = key(1);
        let reserved = client.reserve(&taken, 10, PutOptions::default(), KEEP);
        let reserved = reserved.await.expect("an answer");
        assert!(matches!(reserved, Reserved::Exists { version: is } if is == version));
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        let reserved = client.reserve(&key(1), 10, upsert, KEEP).await;
        let Ok(Reserved::Room(reservation)) = reserved else {
            panic!("{reserved:?}");
        };
        write(&reservation, 3, 0, 10).await;
        let committed = reservation.commit().await.expect("an answer");
        assert!(matches!(committed, Stored::Written { version: is, .. } if is > version));
        scene.expect_value(&client, 1, 3, 10).await;
    });
}

#[test]
fn room_that_is_not_used_is_given_back() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        assert_eq!(used_bytes(&client).await, 0);
        let revoked = reserve(&client, 1, 1 << 20).await;
        let dropped = reserve(&client, 2, 1 << 20).await;
        let (third, keep) = (key(3), Duration::from_millis(500));
        let reserved = client.reserve(&third, 1 << 20, PutOptions::default(), keep);
        let Ok(Reserved::Room(forgotten)) = reserved.await else {
            panic!("there is room");
        };
        write(&forgotten, 3, 0, 1 << 20).await;
        assert!(used_bytes(&client).await > 3 << 20);
        revoked.revoke().await.expect("it is there");
        drop(dropped);
        eventually("both are given back", async || {
            used_bytes(&client).await < 2 << 20
        })
        .await;
        eventually("the third is given back", async || {
            used_bytes(&client).await == 0
        })
        .await;
        let lost = forgotten.write(0, Value::new(pattern(3, 1))).await;
        let kind = lost.expect_err("it is gone").kind;
        assert_eq!(kind, StoreErrorKind::ReservationLost);
        let late = reserve(&client, 4, 10).await;
        write(&late, 4, 0, 10).await;
        late.commit().await.expect("others are not concerned");
    });
}

#[test]
fn reservations_have_a_part_of_the_memory_and_no_more() {
    run(0, || async {
        let mut scene = Scene::of(1, 8 * MIB).await;
        scene.set_client_timeout(Duration::from_millis(300));
        let client = scene.client().await;
        let more = async |n: usize, len: usize| {
            client
                .reserve(&key(n), len, PutOptions::default(), KEEP)
                .await
        };
        let kind = more(2, 9 << 20).await.expect_err("it never fits").kind;
        assert_eq!(kind, StoreErrorKind::Refused(Status::TooLarge));
        let most = reserve(&client, 1, 6 << 20).await;
        most.revoke()
            .await
            .expect("one alone may take more than a half");
        let first = reserve(&client, 1, 3 << 20).await;
        let kind = more(2, 3 << 20).await.expect_err("no room").kind;
        assert_eq!(kind, StoreErrorKind::Refused(Status::Full));
        drop(first);
        let kept = reserve(&client, 2, 3 << 20).await;
        let past = kept.write(3 << 20, Value::new(pattern(1, 1))).await;
        let object_len_bytes = 3 << 20;
        let kind = past.expect_err("beyond the end").kind;
        assert_eq!(kind, StoreErrorKind::OutOfRange { object_len_bytes });
        let mut all = Vec::new();
        for n in 10..10 + 1023 {
            all.push(more(n, 0).await.expect("so many"));
        }
        let kind = more(9, 0).await.expect_err("too many").kind;
        assert_eq!(kind, StoreErrorKind::Refused(Status::Full));
    });
}

/// Where all memory is kept for something that is not there yet, by whom the put is and whoever puts it. What is lost on the way
/// and sent again may come too late for that to be known.
#[test]
fn a_put_that_finds_no_room_all_its_time_says_so() {
    let nothing_lost = WorldOptions {
        losses_per_mille: 0,
        ..WorldOptions::default()
    };
    run(0, no_room_all_its_time);
    for seed in 0..WORLDS {
        in_a_world(seed, nothing_lost, no_room_all_its_time);
    }
}

async fn no_room_all_its_time() {
    let mut scene = Scene::of(1, 8 * MIB).await;
    scene.set_client_timeout(Duration::from_secs(1));
    for client in [scene.client().await, scene.inside(0).await] {
        let kept = reserve(&client, 1, 7 << 20).await;
        let put = async || {
            let value = Value::new(pattern(2, 1 << 20));
            client.put(&key(2), value, PutOptions::default()).await
        };
        let error = put().await.expect_err("no room");
        assert_eq!(error.kind, StoreErrorKind::Refused(Status::Full));
        assert!(error.is_backpressure() && error.is_retryable());
        kept.revoke().await.expect("room");
        assert!(matches!(put().await, Ok(Stored::Written { .. })));
        client.remove(&[key(2)]).await.remove(0).expect("removed");
    }
}

#[test]
fn a_commit_finds_the_keys_new_home() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let mut all = Vec::new();
        for n in 0..12 {
            let reservation = reserve(&client, n, 5000).await;
            write(&reservation, n, 0, 5000).await;
            all.push(reservation);
        }
        scene.add(64 * MIB).await;
        for reservation in all {
            let committed = reservation.commit().await.expect("it is written");
            assert!(matches!(committed, Stored::Written { .. }));
        }
        for n in 0..12 {
            scene.expect(&client, n, 5000).await;
        }
        // What is reserved at a node that leaves is gone with it.
        eventually("the client knows the new map", async || {
            client.exists(&[key(20)]).await.is_ok() && client.map().members().len() == 2
        })
        .await;
        let mut all = Vec::new();
        for n in 20..32 {
            let reservation = reserve(&client, n, 100).await;
            write(&reservation, n, 0, 100).await;
            all.push(reservation);
        }
        scene.remove_first().await;
        let mut lost = 0;
        for reservation in all {
            if let Err(failure) = reservation.commit().await {
                assert_eq!(failure.error.kind, StoreErrorKind::ReservationLost);
                lost += 1;
            }
        }
        assert!((1..12).contains(&lost), "{lost} of 12 are lost");
    });
}

#[test]
fn a_committed_object_has_the_copies_that_it_was_reserved_with() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let options = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        let reserved = client.reserve(&key(1), 4000, options, KEEP).await;
        let Ok(Reserved::Room(reservation)) = reserved else {
            panic!("{reserved:?}");
        };
        write(&reservation, 1, 0, 4000).await;
        reservation.commit().await.expect("it is whole");
        eventually("there are two", async || scene.holders(&client).await == 2).await;
        scene.expect(&client, 1, 4000).await;
    });
}

/// Reserves room for longer than anything is kept, which no client of ours would ask for.
async fn reserve_unbounded(client: &ClusterClient, len_bytes: u32) -> Status {
    let (connection, to) = stranger(client).await;
    let name = key(1);
    let message = ReserveMessage {
        asker: AskerId(5),
        reservation: ReservationId(1),
        to,
        kind: WriteKind::Put,
        namespace: NamespaceKind::Cache,
        wanted: 1,
        len_bytes,
        keep_ms: u32::MAX,
        retention: Retention::default(),
        key: Key::new(&name).expect("a key"),
    };
    let body = |out: &mut Vec<u8>| message.encode(FormatVersion::NEWEST, out);
    let asked = connection.call(Op::Reserve.code(), body, Attachments::default(), KEEP);
    Status::from_code(asked.await.expect("it answers").status)
}

/// A length that no client of ours would send.
#[test]
fn a_length_beyond_every_limit_is_refused_and_harms_nobody() {
    run(0, || async {
        let scene = Scene::of(1, 8 * MIB).await;
        let client = scene.client().await;
        for len_bytes in [(64 << 20) + 1, u32::MAX] {
            let status = reserve_unbounded(&client, len_bytes).await;
            assert_eq!(status, Status::TooLarge);
        }
        scene.put(&client, 1, 1, 100).await;
        scene.expect(&client, 1, 100).await;
    });
}

/// Who asks for longer than that has as long as others; more than a system's clock has time for.
#[test]
fn room_is_kept_for_as_long_as_it_may_be_and_no_longer() {
    in_a_world(1, WorldOptions::default(), || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        assert_eq!(reserve_unbounded(&client, 1 << 20).await, Status::Ok);
        let most = Duration::from_millis(KEEP_MS_MAX.into());
        time::sleep(most - Duration::from_secs(5)).await;
        assert!(used_bytes(&client).await > 1 << 20, "it is there");
        time::sleep(Duration::from_secs(6)).await;
        assert_eq!(used_bytes(&client).await, 0, "it is given back");
    });
}
