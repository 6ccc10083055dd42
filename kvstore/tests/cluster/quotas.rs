//! Quotas of tenants: nobody has more memory of the cluster than theirs, and what they put finds room all the same.

use std::num::NonZeroU64;
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, Fetched, PutOptions, StoreErrorKind, Stored, TenantQuota, TierOptions, Value,
};
use lunette_kvstore_proto::credit::QUOTAS_MAX;
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::retention::Pin;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::time;

use super::on_each_driver::run;
use super::scene::{Scene, eventually, key, pattern, room};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const LEN: usize = 20_000;
const QUOTA: u64 = 2 * MIB;
/// Four times the quota.
const COUNT: usize = 400;

fn named(name: &str) -> Tenant {
    Tenant::named(name).expect("a name")
}

async fn set(client: &ClusterClient, name: &str, bytes: Option<u64>) {
    let bytes = bytes.map(|bytes| NonZeroU64::new(bytes).expect("more than nothing"));
    let set = client.set_quota(&named(name), bytes).await;
    set.expect("a coordinator");
    let is_known = async || {
        let known = quota(client, name).await;
        known.map(|known| known.quota_bytes) == bytes.map(NonZeroU64::get)
    };
    eventually("members know it", is_known).await;
}

async fn quota(client: &ClusterClient, name: &str) -> Option<TenantQuota> {
    let quotas = client.quotas().await.expect("answers");
    quotas.into_iter().find(|known| known.tenant == name)
}

/// Puts objects, each of which finds room in time.
async fn fill(client: &ClusterClient, numbers: std::ops::Range<usize>, options: PutOptions) {
    for n in numbers {
        let value = Value::new(pattern(n, LEN));
        let put = client.put(&key(n), value, options).await;
        assert!(matches!(put, Ok(Stored::Written { .. })), "{n}: {put:?}");
    }
}

async fn present(client: &ClusterClient, numbers: std::ops::Range<usize>) -> usize {
    let keys: Vec<_> = numbers.map(key).collect();
    let found = client.exists(&keys).await.expect("answered");
    found.into_iter().filter(|found| *found).count()
}

async fn expect_within(client: &ClusterClient, name: &str) -> TenantQuota {
    let known = quota(client, name).await.expect("it has one");
    assert!(known.used_bytes <= known.quota_bytes, "{known:?}");
    assert!(known.lent_bytes <= known.quota_bytes, "{known:?}");
    known
}

#[test]
fn a_tenant_has_no_more_than_its_quota_and_what_it_puts_finds_room() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let all = scene.client().await;
        set(&all, "a", Some(QUOTA)).await;
        for (turn, all) in [scene.client().await, scene.inside(1).await]
            .into_iter()
            .enumerate()
        {
            let (a, b) = (all.of_tenant(named("a")), all.of_tenant(named("b")));
            let first = turn * COUNT;
            for from in (first..first + COUNT).step_by(50) {
                fill(&a, from..from + 50, PutOptions::default()).await;
                fill(&b, from..from + 50, PutOptions::default()).await;
                expect_within(&all, "a").await;
            }
            let known = expect_within(&all, "a").await;
            assert!(known.used_bytes >= QUOTA / 4, "it has use of it: {known:?}");
            let kept = present(&a, first..first + COUNT).await as u64;
            assert!((QUOTA / 4..QUOTA).contains(&(kept * LEN as u64)), "{kept}");
            // Others have what they had.
            assert_eq!(present(&b, 0..first + COUNT).await, first + COUNT);
        }
    });
}

#[test]
fn a_quota_that_is_lowered_is_evicted_down_to_and_one_that_is_gone_binds_nobody() {
    run(WORLDS, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let all = scene.client().await;
        let a = all.of_tenant(named("a"));
        fill(&a, 0..COUNT, PutOptions::default()).await;
        assert_eq!(present(&a, 0..COUNT).await, COUNT);
        assert_eq!(all.quotas().await, Ok(Vec::new()));
        for bytes in [3 * MIB, MIB] {
            set(&all, "a", Some(bytes)).await;
            let is_within = async || {
                let known = quota(&all, "a").await.expect("it has one");
                known.used_bytes <= bytes && known.lent_bytes <= bytes
            };
            eventually("it is evicted down to", is_within).await;
            assert!(present(&a, 0..COUNT).await > 0);
        }
        set(&all, "a", None).await;
        fill(&a, COUNT..2 * COUNT, PutOptions::default()).await;
        assert_eq!(present(&a, COUNT..2 * COUNT).await, COUNT);
        // The default tenant may have one as well, and a quota that comes back holds again.
        set(&all, "default", Some(MIB)).await;
        set(&all, "a", Some(MIB)).await;
        fill(&all, 0..COUNT, PutOptions::default()).await;
        expect_within(&all, "default").await;
        let is_within = async || {
            let known = quota(&all, "a").await.expect("it has one");
            known.used_bytes <= MIB
        };
        eventually("it is evicted down to", is_within).await;
    });
}

#[test]
fn what_one_node_has_is_lent_to_another_that_wants_it() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let all = scene.client().await;
        set(&all, "a", Some(QUOTA)).await;
        let inside = [scene.inside(0).await, scene.inside(1).await];
        let [first, second] = inside.map(|client| client.of_tenant(named("a")));
        // All of it is at the first.
        fill(&first, 0..COUNT, PutOptions::default()).await;
        assert!(expect_within(&all, "a").await.used_bytes > QUOTA / 2);
        for from in (COUNT..2 * COUNT).step_by(20) {
            fill(&second, from..from + 20, PutOptions::default()).await;
            expect_within(&all, "a").await;
        }
        let wide = present(&second, COUNT..2 * COUNT).await as u64 * LEN as u64;
        assert!(wide >= QUOTA / 4, "{wide}");
    });
}

#[test]
fn quotas_hold_while_members_come_and_go() {
    run(WORLDS, || async {
        let mut scene = Scene::of(3, 64 * MIB).await;
        let all = scene.client().await;
        set(&all, "a", Some(QUOTA)).await;
        let a = all.of_tenant(named("a"));
        let mut first = 0;
        for turn in 0..4 {
            for _ in 0..4 {
                for n in first..first + 40 {
                    let put = async || {
                        let value = Value::new(pattern(n, LEN));
                        let put = a.put(&key(n), value, PutOptions::default()).await;
                        matches!(put, Ok(Stored::Written { .. } | Stored::Exists { .. }))
                    };
                    eventually("it is put", put).await;
                }
                first += 40;
                let quotas = all.quotas().await;
                let known = quotas.ok().and_then(|mut quotas| quotas.pop());
                if let Some(known) = known {
                    assert!(known.used_bytes <= QUOTA, "{known:?}");
                }
            }
            match turn {
                0 | 2 => scene.add(64 * MIB).await,
                _ => scene.remove_first().await,
            }
        }
        let is_within = async || {
            let known = quota(&all, "a").await;
            known.is_some_and(|known| known.lent_bytes <= QUOTA && known.used_bytes > 0)
        };
        eventually("all is known again", is_within).await;
    });
}

#[test]
fn what_is_pinned_for_ever_is_told_to_be_in_the_way() {
    run(WORLDS, || async {
        let scene = Scene::of(1, 64 * MIB).await;
        for all in [scene.client().await, scene.inside(0).await] {
            set(&all, "a", Some(MIB)).await;
            let a = all.of_tenant(named("a"));
            let pinned = PutOptions {
                pin: Pin::Hard,
                ..PutOptions::default()
            };
            let mut count = 0;
            let refused = loop {
                let value = Value::new(pattern(count, LEN));
                match a.put(&key(count), value, pinned).await {
                    Ok(_) => count += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind, StoreErrorKind::Refused(Status::OverQuota));
            assert!(!refused.is_retryable());
            assert!((40..60).contains(&count), "{count}");
            let value = Value::new(pattern(0, LEN));
            let other = all.put(&key(1000), value, pinned).await;
            assert!(other.is_ok(), "others are free to");
            // What is removed makes room.
            let keys: Vec<_> = (0..count).map(key).collect();
            for removed in a.remove(&keys).await {
                assert_eq!(removed, Ok(true));
            }
            fill(&a, 0..10, PutOptions::default()).await;
            let too_large = Value::new(pattern(0, 2 << 20));
            let options = PutOptions {
                stripe_len: None,
                ..PutOptions::default()
            };
            let refused = a.put(&key(5000), too_large, options).await;
            let refused = refused.expect_err("more than the quota");
            assert_eq!(refused.kind, StoreErrorKind::Refused(Status::TooLarge));
            all.remove(&[key(1000)]).await.into_iter().for_each(drop);
            a.remove_listed(b"").await.expect("removed");
        }
    });
}

#[test]
fn copies_and_parts_are_paid_for() {
    run(WORLDS, || async {
        let scene = Scene::of(3, 64 * MIB).await;
        let all = scene.client().await;
        set(&all, "a", Some(4 * MIB)).await;
        let a = all.of_tenant(named("a"));
        let options = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        fill(&a, 0..10, options).await;
        let all_copies =
            async || quota(&all, "a").await.expect("one").used_bytes >= 20 * LEN as u64;
        eventually("both copies are paid for", all_copies).await;
        let parts = PutOptions {
            stripe_len: Some(10_000),
            ..PutOptions::default()
        };
        let value = Value::new(pattern(100, 10 * LEN));
        a.put(&key(100), value, parts).await.expect("room");
        let all_parts = async || quota(&all, "a").await.expect("one").used_bytes >= 30 * LEN as u64;
        eventually("parts are paid for", all_parts).await;
        expect_within(&all, "a").await;
        a.remove_listed(b"").await.expect("removed");
        let nothing = async || quota(&all, "a").await.expect("one").used_bytes == 0;
        eventually("what is removed is not", nothing).await;
    });
}

#[test]
fn what_leaves_for_a_quota_is_on_the_drive() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    run(1, || {
        let path = path.clone();
        async move {
            let mut scene = Scene::of(0, 64 * MIB).await;
            let folder = path.join(format!("{:?}", time::now()).replace([':', ' ', '(', ')'], ""));
            // There are no folders in a world.
            drop(std::fs::create_dir_all(&folder));
            scene.set_tier(Some(TierOptions::in_folders(vec![folder], 30 * MIB)));
            scene.add(64 * MIB).await;
            let all = scene.client().await;
            set(&all, "a", Some(MIB)).await;
            let a = all.of_tenant(named("a"));
            for n in 0..200 {
                fill(&a, n..n + 1, PutOptions::default()).await;
                time::sleep(Duration::from_millis(2)).await;
            }
            let known = expect_within(&all, "a").await;
            assert!(known.used_bytes < 60 * LEN as u64);
            for n in 0..200 {
                let got = a.get(&key(n), room(LEN)).await.expect("an answer");
                let Fetched::Hit { room, .. } = got else {
                    panic!("{n} is lost: {got:?}");
                };
                assert_eq!(room.as_slice()[..LEN], *pattern(n, LEN).as_slice());
            }
            expect_within(&all, "a").await;
        }
    });
}

#[test]
fn so_many_have_quotas_and_only_the_default_tenant_sets_them() {
    run(1, || async {
        let scene = Scene::of(2, 64 * MIB).await;
        let all = scene.client().await;
        for n in 0..QUOTAS_MAX {
            set(&all, &format!("tenant-{n}"), Some(MIB)).await;
        }
        let quotas = all.quotas().await.expect("answers");
        assert_eq!(quotas.len(), QUOTAS_MAX);
        let refused = all.set_quota(&named("other"), NonZeroU64::new(MIB)).await;
        let refused = refused.expect_err("so many have one");
        assert_eq!(refused.kind, StoreErrorKind::Refused(Status::TooManyQuotas));
        // One that has one may have another, and one less makes room.
        set(&all, "tenant-3", Some(2 * MIB)).await;
        set(&all, "tenant-4", None).await;
        set(&all, "other", Some(MIB)).await;
        let tenant = all.of_tenant(named("tenant-3"));
        let refused = tenant.set_quota(&named("tenant-3"), None).await;
        let refused = refused.expect_err("it is of all");
        assert_eq!(refused.kind, StoreErrorKind::OfAllTenants);
        let refused = tenant.quotas().await.expect_err("they are of all");
        assert_eq!(refused.kind, StoreErrorKind::OfAllTenants);
    });
}
