//! A client that has asked nobody for anything in a while has not heard of who has joined since. Whatever it asks all members,
//! those are asked too.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{ClusterClient, Preferred, PutOptions, Value};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::CoreOptions;
use lunette_runtime::sim::{Kill, World, WorldOptions};

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern, put_in_time};
use super::town::{CLIENTS, COORDINATOR, MEMBER, connected, coordinate, member};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const LEN: usize = 20_000;
/// One member, a client that knows it, and then another member with an object.
async fn unheard(tenant: &Tenant) -> (Scene, ClusterClient) {
    let mut scene = Scene::of(1, 8 * MIB).await;
    let client = scene.client().await;
    scene.add(8 * MIB).await;
    let others = scene.client().await;
    assert_eq!(others.map().members().len(), 2);
    let second = others.map().members()[1];
    let options = PutOptions {
        preferred: Preferred::new(&[second.address]).expect("one"),
        ..PutOptions::default()
    };
    let value = Value::new(pattern(1, LEN));
    let stored = others.of_tenant(tenant.clone());
    let stored = stored.put(&key(1), value, options).await;
    assert!(stored.is_ok(), "{stored:?}");
    assert_eq!(scene.held_by(&others, second.id.0).await, 1);
    assert_eq!(client.map().members().len(), 1, "it has not heard of it");
    (scene, client)
}

/// What a client asks all members for, which has known another life of the only one.
async fn ask_who_began_anew(client: ClusterClient, way: usize) {
    let known = client.map().epoch();
    match way {
        0 => {
            let listed = client.list(b"", None).await.expect("it answers");
            assert_eq!((listed.keys, listed.next), (vec![key(1)], None));
        }
        1 => {
            let quotas = client.quotas().await.expect("it answers");
            assert_eq!(quotas.len(), 1, "{quotas:?}");
        }
        _ => {
            let stats = client.stat().await;
            let entries = stats
                .iter()
                .map(|(_, stat)| Some(stat.as_ref().ok()?.shards.entries));
            assert_eq!(entries.collect::<Vec<_>>(), [Some(1)]);
        }
    }
    assert!(client.map().epoch() > known, "it had not heard of it");
}

#[test]
fn who_has_begun_anew_is_asked_too() {
    for way in 0..3 {
        let mut world = World::new(1, WorldOptions::default());
        let core = CoreOptions::default;
        let coordinator = world.start(COORDINATOR.ip(), 1, core());
        let _serves = world.spawn(coordinator, 0, coordinate);
        let mut lives = world.start(MEMBER.ip(), 1, core());
        let _lives = world.spawn(lives, 0, member);
        let clients = world.start(CLIENTS, 1, core());
        let asks = Rc::new(Cell::new(false));
        let (is_known, due) = (Rc::new(Cell::new(false)), Rc::clone(&asks));
        let knows = Rc::clone(&is_known);
        let asked = world.spawn(clients, 0, move || async move {
            let client = connected().await;
            knows.set(true);
            eventually("it is time", async || due.get()).await;
            ask_who_began_anew(client, way).await;
        });
        let until = |world: &World| world.now() + Duration::from_secs(60);
        let end = until(&world);
        assert!(world.run_until(end, || is_known.get()), "it connects");
        world.kill(lives, Kill::Crash);
        lives = world.start(MEMBER.ip(), 1, core());
        let _lives = world.spawn(lives, 0, member);
        let put = world.spawn(clients, 0, || async {
            let client = connected().await;
            let tenant = Tenant::named("a").expect("a name");
            eventually("its former life is over", async || {
                let quota = client.set_quota(&tenant, NonZeroU64::new(MIB)).await;
                quota.is_ok()
            })
            .await;
            put_in_time(&client, 1, LEN, PutOptions::default()).await;
        });
        let end = until(&world);
        assert!(world.run_until(end, || put.is_there()), "another puts");
        asks.set(true);
        let end = until(&world);
        assert!(world.run_until(end, || asked.is_there()), "{way}: it ends");
    }
}

/// Where the only member that a client knows is to be emptied there is no home of anything, and nobody to ask.
#[test]
fn a_client_that_knows_of_no_home_looks_for_one() {
    run(WORLDS, || async {
        let mut scene = Scene::of(2, 8 * MIB).await;
        let second = scene.client().await;
        let name = second.map().members()[1].address;
        second.retire(name).await.expect("another stays");
        scene.remove_first().await;
        let client = loop {
            let client = scene.client().await;
            if client.map().members().len() == 1 {
                break client;
            }
        };
        scene.add(8 * MIB).await;
        let others = scene.client().await;
        put_in_time(&others, 1, LEN, PutOptions::default()).await;
        assert_eq!(client.map().members().len(), 1, "it has not heard of it");
        scene.expect(&client, 1, LEN).await;
    });
}

#[test]
fn all_keys_are_listed_and_removed() {
    run(WORLDS, || async {
        let (_scene, client) = unheard(&Tenant::default()).await;
        let listed = client.list(b"", None).await.expect("all answer");
        assert_eq!((listed.keys, listed.next), (vec![key(1)], None));
        let (_scene, client) = unheard(&Tenant::default()).await;
        assert_eq!(client.remove_listed(b"").await, Ok(1));
    });
}

#[test]
fn all_statistics_are_told_and_all_know_that_everything_is_removed() {
    run(WORLDS, || async {
        let (_scene, client) = unheard(&Tenant::default()).await;
        assert_eq!(client.stat().await.len(), 2);
        let (scene, client) = unheard(&Tenant::default()).await;
        let cleared = client.clear().await.expect("members answer");
        assert_eq!((cleared.late, client.map().members().len()), (vec![], 2));
        assert_eq!(client.exists(&[key(1)]).await, Ok(vec![false]));
        eventually("it is gone", async || scene.holders(&client).await == 0).await;
    });
}

#[test]
fn what_tenants_have_is_counted_everywhere() {
    run(WORLDS, || async {
        let tenant = Tenant::named("a").expect("a name");
        let (scene, client) = unheard(&tenant).await;
        let others = scene.client().await;
        let is_counted = async |client: &ClusterClient| {
            let quotas = client.quotas().await.expect("all answer");
            quotas.iter().any(|quota| quota.used_bytes >= LEN as u64)
        };
        assert_eq!(
            others.set_quota(&tenant, NonZeroU64::new(MIB)).await,
            Ok(())
        );
        eventually("it is known", async || is_counted(&others).await).await;
        assert!(is_counted(&client).await);
    });
}
