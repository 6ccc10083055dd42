//! A member that does not hear of maps for a while, in which it is all the time: what it has stays, whoever else comes and goes.

use std::cell::Cell;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, ClusterClientOptions, ClusterOptions, NodeOptions, Preferred, PutOptions,
    SeatedNode, Stored, Value,
};
use lunette_runtime::sim::{ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, time};
use lunette_runtime_core::ids::NodeId;

use super::scene::{key, pattern};
use super::town::{CLIENTS, COORDINATOR, MEMBER, coordinate};

const LEASE_TTL_S: u32 = 15;
const LOOK: Duration = Duration::from_millis(10);
const MINUTE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(20);
const MEMORY_BYTES: u64 = 8 << 20;
const KEYS: usize = 20;
const LEN: usize = 1_000;

const fn address(id: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 1, id)), MEMBER.port())
}

/// A cluster, and who is told to leave.
struct Town {
    world: World,
    leaves: Vec<(u8, Rc<Cell<bool>>)>,
    clients: ProcessId,
}

impl Town {
    fn begin() -> Self {
        let mut world = World::new(1, WorldOptions::default());
        let coordinator = world.start(COORDINATOR.ip(), 1, CoreOptions::default());
        let _serves = world.spawn(coordinator, 0, coordinate);
        let clients = world.start(CLIENTS, 1, CoreOptions::default());
        let mut town = Self {
            world,
            leaves: Vec::new(),
            clients,
        };
        (1..=3).for_each(|id| town.add(id));
        town
    }

    fn add(&mut self, id: u8) {
        let leaves = Rc::new(Cell::new(false));
        self.leaves.push((id, Rc::clone(&leaves)));
        let mut options = NodeOptions::new(NodeId(id.into()), address(id), MEMORY_BYTES);
        let mut cluster = ClusterOptions::new("world", vec![COORDINATOR]);
        cluster.lease_ttl_s = LEASE_TTL_S;
        options.cluster = Some(cluster);
        let core_options = options.core_options().expect("it has memory");
        let process = self.world.start(address(id).ip(), 1, core_options);
        let _lives = self.world.spawn(process, 0, || async move {
            let node = SeatedNode::start(options).await.expect("a member");
            while !leaves.get() {
                time::sleep(LOOK).await;
            }
            node.leave().await.expect("a member");
            pending::<()>().await;
        });
    }

    fn leave(&self, id: u8) {
        for (_, leaves) in self.leaves.iter().filter(|(own, _)| *own == id) {
            leaves.set(true);
        }
    }

    /// Does this in the client's process, to its end.
    fn ask<F>(&mut self, what: &str, asks: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let asked = self.world.spawn(self.clients, 0, asks);
        let end = self.world.now() + MINUTE;
        assert!(self.world.run_until(end, || asked.is_there()), "{what}");
    }

    /// Lets time pass until members of a map that is known to the last of them are these.
    fn wait_for(&mut self, ids: &'static [u8]) {
        let last = address(*ids.last().expect("one"));
        self.ask("they are members", move || async move {
            loop {
                if let Ok(client) = client(last).await {
                    let map = client.map();
                    let members = map.members().iter().map(|member| member.id.0);
                    if members.eq(ids.iter().copied().map(u64::from)) {
                        break;
                    }
                }
                time::sleep(LOOK).await;
            }
        });
    }

    /// From then on the first one hears nothing of the coordinator, or does again.
    fn cut(&mut self, is_cut: bool) {
        let (one, other) = (address(1).ip(), COORDINATOR.ip());
        for (from, to) in [(one, other), (other, one)] {
            if is_cut {
                self.world.cut(from, to);
            } else {
                self.world.mend(from, to);
            }
        }
    }
}

async fn client(seed: SocketAddr) -> Result<ClusterClient, lunette_kvstore::ClusterError> {
    ClusterClient::connect(ClusterClientOptions::new(vec![seed])).await
}

#[test]
fn what_it_has_stays_where_nobody_is_left_who_knew() {
    let mut town = Town::begin();
    town.wait_for(&[1, 2, 3]);
    town.ask("it puts", || async {
        let client = client(address(1)).await.expect("a member");
        let options = PutOptions {
            preferred: Preferred::new(&[address(1)]).expect("one"),
            ..PutOptions::default()
        };
        for n in 0..KEYS {
            let put = client
                .put(&key(n), Value::new(pattern(n, LEN)), options)
                .await;
            assert!(matches!(put, Ok(Stored::Written { .. })), "{n}: {put:?}");
        }
    });
    town.cut(true);
    town.add(4);
    town.wait_for(&[1, 2, 3, 4]);
    town.leave(2);
    town.wait_for(&[1, 3, 4]);
    town.leave(3);
    town.wait_for(&[1, 4]);
    town.cut(false);
    town.ask("all are there", || async {
        let client = client(address(4)).await.expect("a member");
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        // Its homes wait for what the first one has to tell.
        let until = time::now() + WAIT;
        while client.exists(&keys).await != Ok(vec![true; KEYS]) {
            assert!(time::now() < until, "some are gone");
            time::sleep(LOOK).await;
        }
    });
}
