//! A client that has asked nobody for anything in a while has not heard of who has joined since. Whatever it asks all members,
//! those are asked too.

use std::num::NonZeroU64;

use lunette_kvstore::{ClusterClient, Preferred, PutOptions, Value};
use lunette_kvstore_proto::tenant::Tenant;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern};

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
    let second = others.map().members()[1].clone();
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
