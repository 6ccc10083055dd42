//! Members that are emptied, to be stopped later.

use std::net::SocketAddr;

use lunette_kvstore::{PutOptions, StoreErrorKind, Stored, Value};
use lunette_kvstore_proto::tenant::Tenant;
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
        assert!(!client.map().members()[0].is_draining);
    });
}
