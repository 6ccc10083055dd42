//! Members that are emptied, to be stopped later, and those that leave.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{ClusterClient, NodeError, PutOptions, StoreErrorKind, Stored, Value};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::ids::NodeId;

use super::on_each_driver::run;
use super::scene::{Scene, key, pattern};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const LEN: usize = 5000;

#[test]
fn who_is_emptied_serves_what_it_has_and_takes_nothing_more() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..60 {
            scene.put(&client, n, 1, LEN).await;
        }
        let held = scene.held_by(&client, 2).await;
        assert!(held > 0, "it is the home of some");
        let name = client.map().members()[1].address;
        for _twice in 0..2 {
            client.retire(name).await.expect("it is asked");
            let map = client.map();
            let draining = map.members().iter().filter(|member| member.is_draining);
            let draining: Vec<NodeId> = draining.map(|member| member.id).collect();
            assert_eq!(draining, [NodeId(2)]);
        }
        for n in 60..120 {
            let value = Value::new(pattern(n, LEN));
            let options = PutOptions {
                copies: 2,
                ..PutOptions::default()
            };
            let put = client.put(&key(n), value, options).await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{put:?}");
        }
        for n in 0..60 {
            scene.expect_value(&client, n, 1, LEN).await;
        }
        for n in 60..120 {
            scene.expect(&client, n, LEN).await;
        }
        assert_eq!(scene.held_by(&client, 2).await, held);
    });
}

#[test]
fn who_is_no_member_is_not_emptied_and_not_everybody_may_ask() {
    run(1, || async {
        let scene = Scene::of(1, 8 * MIB).await;
        let client = scene.client().await;
        let member = SocketAddr::from(([127, 0, 0, 1], 1));
        let refused = client.retire(member).await.expect_err("nobody");
        assert_eq!(refused.kind, StoreErrorKind::NoMember { member });
        assert!(!refused.is_retryable());
        let tenant = client.of_tenant(Tenant::named("a").expect("a name"));
        let name = client.map().members()[0].address;
        let refused = tenant.retire(name).await.expect_err("it is of all");
        assert_eq!(refused.kind, StoreErrorKind::OfAllTenants);
        assert!(!client.map().members()[0].is_draining);
        let member = name;
        let refused = client.retire(member).await.expect_err("it is the last");
        assert_eq!(refused.kind, StoreErrorKind::LastMember { member });
        let refused = scene.retire_first().await;
        assert!(matches!(refused, Err(NodeError::LastMember)), "{refused:?}");
        assert!(!client.map().members()[0].is_draining);
    });
}

/// As many may wait while no coordinator answers.
#[test]
fn those_who_wait_for_a_member_to_be_emptied_are_bounded() {
    const WAITING_MAX: usize = 64;
    run(1, || async {
        let mut scene = Scene::of(2, 8 * MIB).await;
        scene.end_coordinator();
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let mut retired = Box::pin(scene.retire_first());
            let early = time::timeout(Duration::from_millis(5), retired.as_mut()).await;
            assert!(early.is_err(), "{early:?}");
            waiting.push(retired);
        }
        let refused = scene.retire_first().await;
        assert!(matches!(refused, Err(NodeError::Busy)), "{refused:?}");
    });
}

/// Each is asked by somebody who sees that the others stay.
#[test]
fn of_those_who_are_emptied_at_one_time_one_stays() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 8 * MIB).await;
        let mut retiring = Vec::new();
        for member in 0..3 {
            let client = scene.client().await;
            let name = client.map().members()[member].address;
            retiring.push(spawn_local(async move { client.retire(name).await }));
        }
        let mut refused = Vec::new();
        for retired in retiring {
            refused.extend(retired.await.expect("no panic").err());
        }
        let kinds: Vec<_> = refused.into_iter().map(|error| error.kind).collect();
        assert!(
            matches!(kinds[..], [StoreErrorKind::LastMember { .. }]),
            "{kinds:?}"
        );
        let client = scene.client().await;
        scene.put(&client, 1, 1, LEN).await;
        let map = client.map();
        let staying = map.members().iter().filter(|member| !member.is_draining);
        assert_eq!(staying.count(), 1);
    });
}

/// Who was asked to be emptied may have asked the coordinator.
#[test]
fn whether_a_member_will_be_emptied_may_be_in_doubt() {
    run(WORLDS, || async {
        let mut scene = Scene::of(2, 8 * MIB).await;
        scene.set_client_timeout(Duration::from_millis(500));
        let client = scene.client().await;
        let first = client.map().members()[0].address;
        scene.end_coordinator();
        let refused = client
            .retire(first)
            .await
            .expect_err("there is no such map");
        assert_eq!(refused.kind, StoreErrorKind::Interrupted);
        assert!(!client.map().members()[0].is_draining);
    });
}

/// It looks for a newer map only now and then, and not at all while it asks nobody for anything.
#[test]
fn a_client_that_has_not_heard_of_others_looks_before_it_says_that_there_are_none() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 8 * MIB).await;
        let client = scene.client().await;
        let first = client.map().members()[0].address;
        scene.add(8 * MIB).await;
        assert_eq!(client.map().members().len(), 1, "it has not heard of it");
        assert_eq!(client.retire(first).await, Ok(()));
    });
}

/// A lease that a member gave up itself is not waited for, nor is one that was over before the map was changed.
#[test]
fn changes_go_on_soon_after_a_member_has_left_or_come() {
    run(WORLDS, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..60 {
            scene.put(&client, n, 1, LEN).await;
        }
        scene.remove_first().await;
        change_soon(&client, 0..30).await;
        scene.add(64 * MIB).await;
        change_soon(&client, 30..60).await;
    });
}

/// A member that is to leave right after the map has changed serves until it may change again: nobody waits for that.
#[test]
fn who_leaves_serves_until_others_can() {
    run(WORLDS, || async {
        let mut scene = Scene::of(2, 64 * MIB).await;
        let client = scene.client().await;
        for n in 0..60 {
            scene.put(&client, n, 1, LEN).await;
        }
        let held = scene.held_by(&client, 1).await;
        assert!(0 < held && held < 60, "{held}");
        scene.add(64 * MIB).await;
        let leaving = spawn_local(scene.first_leaves());
        let keys: Vec<_> = (0..60).map(key).collect();
        let mut longest = Duration::ZERO;
        while !leaving.is_finished() || client.map().members().len() > 2 {
            let begun = time::now();
            let exist = client.exists(&keys).await;
            assert!(exist.is_ok(), "{exist:?}");
            longest = longest.max(time::now().since(begun));
            time::sleep(Duration::from_millis(1)).await;
        }
        // The map is changed once a second at most.
        assert!(longest < Duration::from_millis(600), "{longest:?}");
    });
}

/// Puts, upserts and removes objects of its own until it is told to stop: how many, and what failed.
async fn change_all(
    client: ClusterClient,
    who: usize,
    stop: Rc<Cell<bool>>,
) -> (usize, Vec<StoreErrorKind>) {
    let (mut done, mut failed) = (0, Vec::new());
    while !stop.get() {
        let n = who * 1000 + done / 3 % 50;
        let upsert = PutOptions {
            kind: WriteKind::Upsert,
            ..PutOptions::default()
        };
        let value = || Value::new(pattern(n, LEN));
        let changed = match done % 3 {
            0 => client
                .put(&key(n), value(), PutOptions::default())
                .await
                .err(),
            1 => client.put(&key(n), value(), upsert).await.err(),
            _ => client.remove(&[key(n)]).await.swap_remove(0).err(),
        };
        failed.extend(changed.map(|error| error.kind));
        done += 1;
    }
    (done, failed)
}

/// What a member has begun when it leaves it finishes, or says that it did not do it, to who asks by a home, by an owner, or
/// is an owner itself.
#[test]
fn nothing_is_in_doubt_when_a_member_leaves() {
    run(WORLDS * 2, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let stop = Rc::new(Cell::new(false));
        let mut changing = Vec::new();
        for who in 0..6 {
            let client = scene.client().await;
            changing.push(spawn_local(change_all(client, who, Rc::clone(&stop))));
        }
        time::sleep(Duration::from_millis(50)).await;
        let left = scene.first_leaves().await;
        time::sleep(Duration::from_millis(700)).await;
        stop.set(true);
        for changing in changing {
            let (done, failed) = changing.await.expect("no panic");
            assert!(done > 30, "{done}");
            assert_eq!(failed, [], "of {done}");
        }
        drop(left);
    });
}

/// Of these objects one in two is removed, and the others are replaced, long before a lease (2 s) would be over.
async fn change_soon(client: &ClusterClient, range: Range<usize>) {
    let begun = time::now();
    let (replaced, removed): (Vec<_>, Vec<_>) = range.partition(|n| n.is_multiple_of(2));
    let value = |&n: &usize| (key(n), Value::new(pattern(n, LEN)));
    let values: Vec<_> = replaced.iter().map(value).collect();
    let upsert = PutOptions {
        kind: WriteKind::Upsert,
        ..PutOptions::default()
    };
    let stored = client.put_all(&values, upsert).await;
    let is_written = |stored: &_| matches!(stored, Ok(Stored::Written { .. }));
    assert!(stored.iter().all(is_written), "{stored:?}");
    let removed = client
        .remove(&removed.into_iter().map(key).collect::<Vec<_>>())
        .await;
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    let took = time::now().since(begun);
    assert!(took < Duration::from_millis(1500), "{took:?}");
}
