//! Which keys there are: each once, whoever has it, in memory or on a drive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, ListCursor, PutOptions, StoreErrorKind, Stored, TierOptions, Value,
};
use lunette_kvstore_proto::key::{Fingerprint, KeyFault, RESERVED_PREFIX};
use lunette_kvstore_proto::message::directory::{LISTED_MAX, ListMessage, ListReply};
use lunette_kvstore_proto::message::{FormatVersion, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::tenant::{TENANT_PREFIX, Tenant};
use lunette_runtime::time;
use lunette_runtime_core::limits::KEY_BYTES_MAX;
use lunette_transfer::{Attachments, Connection};

use super::on_each_driver::run;
use super::scene::{PATIENCE, Scene, eventually, key, pattern, stranger};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const PART: u32 = 10_000;

fn tenant(client: &ClusterClient, name: &str) -> ClusterClient {
    client.of_tenant(Tenant::named(name).expect("a name"))
}

async fn put(client: &ClusterClient, key: &[u8], len: usize, copies: u8) {
    let options = PutOptions {
        copies,
        stripe_len: Some(PART),
        ..PutOptions::default()
    };
    let stored = client.put(key, Value::new(pattern(1, len)), options).await;
    assert!(matches!(stored, Ok(Stored::Written { .. })), "{stored:?}");
}

/// All pages, how many there were, and how often each key was told.
async fn pages(client: &ClusterClient, prefix: &[u8]) -> (usize, BTreeMap<Vec<u8>, usize>) {
    let (mut pages, mut told, mut after) = (0, BTreeMap::new(), None);
    loop {
        let page = client.list(prefix, after).await.expect("all answer");
        pages += 1;
        for key in page.keys {
            *told.entry(key).or_default() += 1;
        }
        // As somebody who keeps it elsewhere would.
        after = page.next.map(|next| ListCursor::from_bits(next.to_bits()));
        if after.is_none() {
            return (pages, told);
        }
    }
}

/// The keys, each of which was told once.
async fn keys(client: &ClusterClient, prefix: &[u8]) -> BTreeSet<Vec<u8>> {
    let (_, told) = pages(client, prefix).await;
    assert!(told.values().all(|times| *times == 1), "{told:?}");
    told.into_keys().collect()
}

fn set(keys: &[&[u8]]) -> BTreeSet<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

#[test]
fn keys_are_told_to_their_tenant_by_their_prefix() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        for client in [scene.client().await, scene.inside(1).await] {
            let (own, other) = (tenant(&client, "a"), tenant(&client, "ab"));
            for client in [&client, &own, &other] {
                assert_eq!(keys(client, b"").await, BTreeSet::new());
            }
            put(&client, b"model/1", 100, 1).await;
            put(&client, b"model/2", 100, 3).await;
            put(&client, b"\xff", 100, 1).await;
            // In parts, which have keys of their own.
            put(&client, b"long", 95_000, 2).await;
            put(&own, b"model/1", 100, 2).await;
            put(&own, b"long", 95_000, 1).await;
            let all = set(&[b"model/1", b"model/2", b"\xff", b"long"]);
            assert_eq!(keys(&client, b"").await, all);
            let models = set(&[b"model/1", b"model/2"]);
            assert_eq!(keys(&client, b"model/").await, models);
            assert_eq!(keys(&client, b"model/2").await, set(&[b"model/2"]));
            assert_eq!(keys(&client, b"model/22").await, BTreeSet::new());
            assert_eq!(keys(&client, b"\xff").await, set(&[b"\xff"]));
            assert_eq!(keys(&own, b"").await, set(&[b"model/1", b"long"]));
            assert_eq!(keys(&own, b"m").await, set(&[b"model/1"]));
            assert_eq!(keys(&other, b"").await, BTreeSet::new());

            assert_eq!(client.remove(&[b"model/1".to_vec()]).await, [Ok(true)]);
            assert_eq!(keys(&client, b"model/").await, set(&[b"model/2"]));
            // All of one tenant, and of one prefix.
            assert_eq!(own.remove_listed(b"").await, Ok(2));
            assert_eq!(keys(&own, b"").await, BTreeSet::new());
            assert_eq!(client.remove_listed(b"mo").await, Ok(1));
            assert_eq!(keys(&client, b"").await, set(&[b"\xff", b"long"]));
            assert_eq!(client.remove_listed(b"").await, Ok(2));
            assert_eq!(client.remove_listed(b"").await, Ok(0));
        }
    });
}

#[test]
fn what_stays_is_told_once_while_others_come_and_go() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        let stay = |n: usize| format!("stay/{n}").into_bytes();
        let staying = 3 * LISTED_MAX + 100;
        let objects = |keys: Vec<Vec<u8>>| {
            let objects = keys.into_iter();
            objects.map(|key| (key, Value::new(pattern(1, 10))))
        };
        let objects: Vec<_> = objects((0..staying).map(stay).collect()).collect();
        for some in objects.chunks(500) {
            let options = PutOptions {
                copies: 2,
                ..PutOptions::default()
            };
            let stored = client.put_all(some, options).await;
            assert!(stored.iter().all(Result::is_ok));
        }
        let (mut told, mut pages, mut after) = (BTreeMap::new(), 0, None);
        loop {
            for n in pages * 20..(pages + 1) * 20 {
                put(&client, &key(n), 10, 1).await;
                if n >= 10 {
                    assert_eq!(client.remove(&[key(n - 10)]).await, [Ok(true)]);
                }
            }
            let page = client.list(b"", after).await.expect("all answer");
            assert!(page.keys.len() <= 3 * LISTED_MAX);
            pages += 1;
            for key in page.keys {
                *told.entry(key).or_insert(0) += 1;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(pages > 1, "one page has room for all");
        assert!(told.values().all(|times| *times == 1));
        assert!((0..staying).all(|n| told.contains_key(&stay(n))));
        assert_eq!(client.remove_listed(b"stay/").await, Ok(staying as u64));
        assert_eq!(keys(&client, b"stay/").await, BTreeSet::new());
    });
}

#[test]
fn threads_list_too() {
    run(0, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let client = tenant(&scene.client().await, "a");
        put(&client, b"k", 10, 1).await;
        put(&client, b"l", 10, 1).await;
        let handle = client.handle().expect("a task");
        let listed = handle.list(b"k".to_vec(), None).await.expect("listed");
        assert_eq!((listed.keys, listed.next), (vec![b"k".to_vec()], None));
        assert_eq!(handle.remove_listed(Vec::new()).await, Ok(2));
    });
}

#[test]
fn what_is_on_a_drive_is_told() {
    const COUNT: usize = 240;
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut scene = Scene::of(0, 8 * MIB).await;
        for node in 0..2 {
            let folder = folder.path().join(node.to_string());
            // There are no folders in a world.
            drop(std::fs::create_dir_all(&folder));
            scene.set_tier(Some(TierOptions::in_folders(vec![folder], 30 * MIB)));
            scene.add(8 * MIB).await;
        }
        let client = scene.client().await;
        let own = tenant(&client, "a");
        for n in 0..COUNT {
            let client = if n % 3 == 0 { &own } else { &client };
            let put = async || {
                let value = Value::new(pattern(n, 100_000));
                let put = client.put(&key(n), value, PutOptions::default()).await;
                matches!(put, Ok(Stored::Written { .. } | Stored::Exists { .. }))
            };
            eventually("it is put", put).await;
            time::sleep(Duration::from_millis(2)).await;
        }
        let reports = scene.reports().await.into_iter();
        let drives = reports.filter_map(|report| report.member?.drive);
        let on_drives: u64 = drives.map(|drive| drive.demoted).sum();
        assert!(on_drives > 64, "{on_drives} have left memory");
        for (client, is_own) in [(&own, true), (&client, false)] {
            let all: Vec<_> = (0..COUNT).filter(|n| (n % 3 == 0) == is_own).collect();
            let names: Vec<_> = all.iter().map(|n| key(*n)).collect();
            let there = client.exists(&names).await.expect("asked").into_iter();
            let there = all.iter().zip(there).filter(|(_, is_there)| *is_there);
            let there: BTreeSet<_> = there.map(|(n, _)| key(*n)).collect();
            assert!(
                there.len() * 10 > all.len() * 9,
                "{} are there",
                there.len()
            );
            assert_eq!(keys(client, b"").await, there);
        }
        let of_own = keys(&own, b"").await.len() as u64;
        assert_eq!(own.remove_listed(b"").await, Ok(of_own));
        assert_eq!(keys(&own, b"").await, BTreeSet::new());
        assert!(!keys(&client, b"").await.is_empty());
    });
}

#[test]
fn who_is_no_member_any_more_is_not_waited_for() {
    run(WORLDS, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..50 {
            put(&client, &key(n), 100, 2).await;
        }
        let expected: BTreeSet<_> = (0..50).map(key).collect();
        eventually("there are two copies of each", async || {
            let stats = client.stat().await.into_iter();
            let held = stats.map(|(_, stat)| stat.expect("it answers").shards.entries);
            held.sum::<u64>() == 100
        })
        .await;
        scene.remove_first().await;
        // Its map is still the one before.
        eventually("all are told of again", async || {
            keys(&client, b"").await == expected
        })
        .await;
    });
}

#[test]
fn no_key_begins_so() {
    run(1, || async {
        let scene = Scene::of(1, 8 * MIB).await;
        let client = scene.client().await;
        let own = tenant(&client, "a");
        let refused = async |client: &ClusterClient, prefix: &[u8]| {
            let listed = client.list(prefix, None).await.expect_err("refused");
            let removed = client.remove_listed(prefix).await;
            assert_eq!(removed, Err(listed));
            listed.kind
        };
        let too_long = |len_bytes| StoreErrorKind::Key(KeyFault::TooLong { len_bytes });
        let longest = vec![b'k'; KEY_BYTES_MAX];
        assert_eq!(keys(&client, &longest).await, BTreeSet::new());
        let longer = vec![b'k'; KEY_BYTES_MAX + 1];
        assert_eq!(refused(&client, &longer).await, too_long(KEY_BYTES_MAX + 1));
        assert_eq!(refused(&own, &longest).await, too_long(KEY_BYTES_MAX + 9));
        let reserved = StoreErrorKind::Key(KeyFault::Reserved);
        for prefix in [&TENANT_PREFIX[..], RESERVED_PREFIX] {
            assert_eq!(refused(&client, prefix).await, reserved);
        }
    });
}

async fn ask(connection: &Connection, message: ListMessage<'_>) -> (Status, Option<ListReply>) {
    let version = FormatVersion(1);
    let body = |out: &mut Vec<u8>| message.encode(version, out);
    let nothing = Attachments::default();
    let reply = connection.call(Op::List.code(), body, nothing, PATIENCE);
    let reply = reply.await.expect("an answer");
    let decoded = ListReply::decode(version, message.after, &reply.body);
    (Status::from_code(reply.status), decoded.ok())
}

#[test]
fn an_owner_names_as_many_as_are_wanted_and_looks_at_no_more_than_it_may() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        let client = scene.client().await;
        let own = tenant(&client, "a");
        let objects: Vec<_> = (0..700)
            .map(|n| (key(n), Value::new(pattern(n, 10))))
            .collect();
        for some in objects.chunks(350) {
            let stored = own.put_all(some, PutOptions::default()).await;
            assert!(stored.iter().all(Result::is_ok));
        }
        put(&client, b"k", 10, 1).await;
        let (connection, to) = stranger(&client).await;
        let wanted = |keys, after, prefix| ListMessage {
            to,
            after,
            keys,
            prefix,
        };
        let prefix = Tenant::named("a").expect("a name").prefix(b"").into_owned();
        // Of none there is one, or nobody would get on.
        for (keys, expected) in [(0, 1), (1, 1), (7, 7), (u16::MAX, LISTED_MAX)] {
            let (status, reply) = ask(&connection, wanted(keys, None, &prefix)).await;
            let reply = reply.expect("a page");
            assert!(reply.next.is_some());
            // The other tenant's may be among those that were looked at.
            let found = reply.keys().len() + usize::from(expected == LISTED_MAX);
            assert_eq!(status, Status::Ok);
            assert!((expected..=expected + 1).contains(&found), "{found}");
        }
        // The one key of the default tenant is somewhere among 701.
        let (mut pages, mut found, mut after) = (0, 0, None);
        loop {
            let (_, reply) = ask(&connection, wanted(9, after, b"")).await;
            let reply = reply.expect("a page");
            (pages, found, after) = (pages + 1, found + reply.keys().len(), reply.next);
            if after.is_none() {
                break;
            }
        }
        assert_eq!((pages, found), (2, 1));
        let last = Some(Fingerprint(u128::MAX));
        let (status, reply) = ask(&connection, wanted(9, last, b"")).await;
        let nothing = ListReply::of(client.map().epoch());
        assert_eq!((status, reply), (Status::Ok, Some(nothing)));
        let elsewhere = Seat {
            incarnation: to.incarnation + 1,
            ..to
        };
        let message = ListMessage {
            to: elsewhere,
            ..wanted(9, None, b"")
        };
        assert_eq!(ask(&connection, message).await.0, Status::WrongSeat);
        let cut = connection.call(
            Op::List.code(),
            |out| out.push(1),
            Attachments::default(),
            PATIENCE,
        );
        let status = cut.await.expect("an answer").status;
        assert_eq!(Status::from_code(status), Status::BadRequest);
    });
}
