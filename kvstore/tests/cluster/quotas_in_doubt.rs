//! Quotas that are set while nobody can: whether they are is known, or is not, and what is not set in time is not set later.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::StoreErrorKind;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};

use super::on_each_driver::run;
use super::scene::Scene;
use super::town::{CLIENTS, COORDINATOR, MEMBER, connected, coordinate, member};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;

fn named(name: &str) -> Tenant {
    Tenant::named(name).expect("a name")
}

fn quota() -> Option<NonZeroU64> {
    NonZeroU64::new(2 * MIB)
}

/// Without a coordinator nobody sets it, and nobody knows that.
#[test]
fn whether_a_quota_was_set_may_be_in_doubt() {
    run(WORLDS, || async {
        let mut scene = Scene::of(1, 8 * MIB).await;
        scene.set_client_timeout(Duration::from_millis(500));
        let client = scene.client().await;
        scene.end_coordinator();
        let refused = client.set_quota(&named("a"), quota()).await;
        let refused = refused.expect_err("nobody sets it");
        assert_eq!(refused.kind, StoreErrorKind::Interrupted);
    });
}

/// One member, whose client begins once `begins` is raised, and has said before that it knows the member.
struct Town {
    world: World,
    member: ProcessId,
    is_known: Rc<Cell<bool>>,
    begins: Rc<Cell<bool>>,
}

impl Town {
    fn start() -> Self {
        let mut world = World::new(1, WorldOptions::default());
        let coordinator = world.start(COORDINATOR.ip(), 1, CoreOptions::default());
        let _serves = world.spawn(coordinator, 0, coordinate);
        let process = world.start(MEMBER.ip(), 1, CoreOptions::default());
        let _lives = world.spawn(process, 0, member);
        Self {
            world,
            member: process,
            is_known: Rc::default(),
            begins: Rc::default(),
        }
    }

    fn ask(&mut self, wanted: StoreErrorKind, goes_on: Rc<Cell<bool>>) -> Outcome<()> {
        let (knows, begins) = (Rc::clone(&self.is_known), Rc::clone(&self.begins));
        let clients = self.world.start(CLIENTS, 1, CoreOptions::default());
        let asked = self.world.spawn(clients, 0, move || async move {
            let client = connected().await;
            // Its connections are closed by then.
            time::sleep(Duration::from_secs(1)).await;
            knows.set(true);
            wait_for(&begins).await;
            let refused = client.set_quota(&named("a"), quota()).await;
            let refused = refused.expect_err("nobody can set it");
            assert_eq!(refused.kind, wanted);
            begins.set(false);
            wait_for(&goes_on).await;
            // The member is one again.
            time::sleep(Duration::from_secs(10)).await;
            assert_eq!(client.quotas().await.expect("an answer"), []);
        });
        self.run_until("it connects", |town| town.is_known.get());
        asked
    }

    fn run_until(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..6_000 {
            if is_done(self) {
                return;
            }
            let end = self.world.now() + Duration::from_millis(10);
            self.world.run_until(end, || false);
        }
        panic!("{what}: not after a minute");
    }
}

async fn wait_for(raised: &Cell<bool>) {
    while !raised.get() {
        time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn where_no_member_was_asked_no_quota_was_set() {
    let mut town = Town::start();
    let goes_on = Rc::new(Cell::new(false));
    let asked = town.ask(StoreErrorKind::TimedOut, Rc::clone(&goes_on));
    town.world.kill(town.member, Kill::Crash);
    town.begins.set(true);
    town.run_until("it is refused", |town| !town.begins.get());
    let process = town.world.start(MEMBER.ip(), 1, CoreOptions::default());
    let _lives = town.world.spawn(process, 0, member);
    goes_on.set(true);
    town.run_until("it ends", |_| asked.is_there());
}

/// By then somebody else may have set it, or have given up.
#[test]
fn what_a_member_could_not_set_in_time_it_does_not_set_when_it_is_back() {
    let mut town = Town::start();
    let goes_on = Rc::new(Cell::new(false));
    let asked = town.ask(StoreErrorKind::Interrupted, Rc::clone(&goes_on));
    let (one, other) = (MEMBER.ip(), COORDINATOR.ip());
    town.world.cut(one, other);
    town.world.cut(other, one);
    town.begins.set(true);
    town.run_until("it is refused", |town| !town.begins.get());
    town.world.mend(one, other);
    town.world.mend(other, one);
    goes_on.set(true);
    town.run_until("it ends", |_| asked.is_there());
}
