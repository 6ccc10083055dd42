//! What is asked for all members and is on its way for so long that whoever asked has gone on: it is not done any more.
//!
//! A member is stopped or cut off at any moment while it is asked, and goes on when its client has had the same or something else
//! done by another one.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{ClusterClient, StoreErrorKind, Value};
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::sim::{ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};

use super::scene::pattern;
use super::town::{CLIENTS, COORDINATOR, MEMBER, connected, start_two};

const WORLDS: u64 = 60;
const MINUTE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
const KEY: &[u8] = b"a key";

const fn second() -> SocketAddr {
    SocketAddr::new(
        std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 4)),
        MEMBER.port(),
    )
}

/// What is seen of a client, and what it waits for.
#[derive(Clone, Default)]
struct Signs {
    has_begun: Rc<Cell<bool>>,
    begins: Rc<Cell<bool>>,
    has_gone_on: Rc<Cell<bool>>,
    is_late: Rc<Cell<bool>>,
}

async fn wait_for(raised: &Cell<bool>) {
    while !raised.get() {
        time::sleep(LOOK).await;
    }
}

/// What befalls the member.
#[derive(Clone, Copy)]
enum Mishap {
    Stops,
    /// It reaches no coordinator.
    IsCutOff,
}

impl Mishap {
    fn begin(self, world: &mut World, member: ProcessId) {
        match self {
            Self::Stops => world.pause(member),
            Self::IsCutOff => {
                world.cut(second().ip(), COORDINATOR.ip());
                world.cut(COORDINATOR.ip(), second().ip());
            }
        }
    }

    fn end(self, world: &mut World, member: ProcessId) {
        match self {
            Self::Stops => world.resume(member),
            Self::IsCutOff => {
                world.mend(second().ip(), COORDINATOR.ip());
                world.mend(COORDINATOR.ip(), second().ip());
            }
        }
    }
}

/// A client that knows two members does this, of which something befalls the second at any moment meanwhile, until the client
/// says that it is over.
fn in_each_world<C, F>(mishap: Mishap, client: C)
where
    C: Fn(ClusterClient, Signs) -> F + Clone + 'static,
    F: Future<Output = ()> + 'static,
{
    for seed in 0..WORLDS {
        let mut world = World::new(seed, WorldOptions::default());
        let member = start_two(&mut world, second());
        let clients = world.start(CLIENTS, 1, CoreOptions::default());
        let (signs, seen, client) = (Signs::default(), Signs::default(), client.clone());
        let shown = Signs {
            has_begun: Rc::clone(&seen.has_begun),
            ..signs.clone()
        };
        let asked = world.spawn(clients, 0, move || async move {
            let connected = connected().await;
            while connected.map().members().len() < 2 {
                time::sleep(LOOK).await;
                drop(connected.exists(&[KEY.to_vec()]).await);
            }
            shown.has_begun.set(true);
            wait_for(&shown.begins).await;
            client(connected, shown).await;
        });
        let end = world.now() + MINUTE;
        assert!(world.run_until(end, || seen.has_begun.get()), "{seed}");
        signs.begins.set(true);
        // It begins at any time within the first of these, and its first question takes about as long as the others.
        let end = world.now() + LOOK + Duration::from_micros(seed * 40);
        world.run_until(end, || false);
        mishap.begin(&mut world, member);
        let end = world.now() + MINUTE;
        assert!(world.run_until(end, || signs.has_gone_on.get()), "{seed}");
        mishap.end(&mut world, member);
        signs.is_late.set(true);
        let end = world.now() + MINUTE;
        assert!(world.run_until(end, || asked.is_there()), "{seed}");
    }
}

impl Signs {
    /// The member goes on: whatever it has to do is done.
    async fn go_on(&self) {
        self.has_gone_on.set(true);
        wait_for(&self.is_late).await;
        time::sleep(Duration::from_secs(10)).await;
    }
}

#[test]
fn a_quota_is_not_set_late() {
    in_each_world(Mishap::Stops, |client, signs| async move {
        let tenant = Tenant::named("a").expect("a name");
        let quota = |bytes: u64| NonZeroU64::new(bytes << 20);
        let _set = client.set_quota(&tenant, quota(2)).await;
        while client.set_quota(&tenant, quota(1)).await.is_err() {}
        signs.go_on().await;
        let quotas = client.quotas().await.expect("answers");
        assert_eq!(quotas[0].quota_bytes, 1 << 20);
    });
}

#[test]
fn nothing_is_removed_late() {
    for mishap in [Mishap::Stops, Mishap::IsCutOff] {
        in_each_world(mishap, |client, signs| async move {
            while client.clear().await.is_err() {}
            put_then(&client, signs).await;
        });
        // Who is in doubt may as well go on.
        in_each_world(mishap, |client, signs| async move {
            let _cleared = client.clear().await;
            put_then(&client, signs).await;
        });
    }
}

/// What is put after that is there still when the member goes on.
async fn put_then(client: &ClusterClient, signs: Signs) {
    let value = Value::new(pattern(1, 100));
    while client
        .put(KEY, value.clone(), Default::default())
        .await
        .is_err()
    {}
    signs.go_on().await;
    let found = client.exists(&[KEY.to_vec()]).await;
    assert_eq!(found, Ok(vec![true]));
}

/// What its client is told may be that it is in the map no more.
#[test]
fn nobody_is_emptied_late() {
    let counts = [Rc::new(Cell::new(0)), Rc::new(Cell::new(0))];
    let counted = counts.clone();
    in_each_world(Mishap::Stops, move |client, signs| {
        let [emptied, late] = counted.clone();
        async move {
            let retired = client.retire(second()).await;
            signs.go_on().await;
            let _present = client.exists(&[KEY.to_vec()]).await;
            let map = client.map();
            let mut members = map.members().iter();
            let member = members.find(|member| member.address == second());
            let is_emptied = member.expect("it is back").is_draining;
            let is_undone = retired.is_err_and(|error| error.kind == StoreErrorKind::TimedOut);
            assert!(!(is_undone && is_emptied));
            let count = if is_emptied { emptied } else { late };
            count.set(count.get() + 1);
        }
    });
    let [emptied, late] = counts.map(|count| count.get());
    assert!(emptied > 0 && late > 0, "{emptied}, {late}");
}
