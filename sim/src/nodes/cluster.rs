//! The processes of a world, and what befalls them.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{NodeOptions, SeatedNode};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::placement::{ClusterMap, Member};
use lunette_runtime::arena::ArenaOptions;
use lunette_runtime::sim::{DiskOptions, Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, Placement};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

use super::clients::{Load, name};
use super::coordination::{Coordination, Operator};
use super::oracle::Oracle;
use super::plan::{CLIENTS, Fault, KEYS, MEMBERS, NODES, Plan, TIMEOUT_MAX, Who};

/// Where each node's first core listens.
const PORT: u16 = 7000;

/// A cluster in its world.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    plan: Rc<Plan>,
    nodes: Vec<ProcessId>,
    clients: Vec<ProcessId>,
    /// None until it is started, below.
    coordinator: Option<ProcessId>,
    members: Vec<ProcessId>,
    operator: Rc<Operator>,
    disturbed_until: Vec<Rc<Cell<Time>>>,
}

fn host(who: Who) -> IpAddr {
    match who {
        Who::Node(index) => IpAddr::from([10, 0, 0, 1 + index]),
        Who::Client(index) => IpAddr::from([10, 0, 1, 1 + index]),
        Who::Coordinator => IpAddr::from([10, 0, 2, 1]),
        Who::Member(index) => IpAddr::from([10, 0, 3, 1 + index]),
    }
}

fn node_id(index: u8) -> NodeId {
    NodeId(1 + u64::from(index))
}

impl Cluster {
    /// Starts every process of a seed's world.
    pub(crate) fn start(seed: u64, plan: Plan, calm_from: Time, keeps_log: bool) -> Self {
        let options = WorldOptions {
            damages_per_million: plan.damages_per_million,
            losses_per_mille: plan.losses_per_mille,
            window_bytes: plan.window_bytes,
            cancel_max: plan.cancel_max,
            disk: plan.drive,
            ..WorldOptions::default()
        };
        let mut world = World::new(seed, options);
        if keeps_log {
            world.keep_log();
        }
        let mut cluster = Self {
            world,
            oracle: Rc::new(RefCell::new(Oracle::new(
                calm_from,
                plan.damages_per_million > 0,
            ))),
            plan: Rc::new(plan),
            nodes: Vec::new(),
            clients: Vec::new(),
            coordinator: None,
            members: Vec::new(),
            operator: Rc::default(),
            disturbed_until: (0..CLIENTS).map(|_| Rc::default()).collect(),
        };
        cluster.name_keys();
        for index in 0..NODES {
            let node = cluster.start_node(index);
            cluster.nodes.push(node);
        }
        for index in 0..CLIENTS {
            let client = cluster.start_client(index);
            cluster.clients.push(client);
        }
        cluster.start_coordinator();
        for index in 0..MEMBERS {
            let member = cluster.start_member(index);
            cluster.members.push(member);
        }
        cluster
    }

    /// Tells the oracle where each key is at home.
    fn name_keys(&self) {
        let members = (0..NODES).map(|index| Member {
            id: node_id(index),
            weight: 1,
            cores: u16::try_from(self.plan.cores).expect("few"),
        });
        let map = ClusterMap::new(members.collect()).expect("a cluster");
        for key in (0..KEYS).map(u32::from) {
            let name = name(key);
            let fingerprint = Key::new(&name).expect("short").fingerprint();
            let home = map.home(fingerprint);
            let mut oracle = self.oracle.borrow_mut();
            oracle.add_key(key, fingerprint.high(), home.member_index);
        }
    }

    fn start_node(&mut self, index: u8) -> ProcessId {
        let address = SocketAddr::new(host(Who::Node(index)), PORT);
        let options = NodeOptions {
            placement: Placement::Anywhere(self.plan.cores),
            ..NodeOptions::new(node_id(index), address, self.plan.memory_bytes)
        };
        let core_options = options.core_options().expect("it has memory");
        let process = self
            .world
            .start(address.ip(), self.plan.cores, core_options);
        let _serves = self.world.spawn(process, 0, || async {
            SeatedNode::start(options).await.expect("it starts")
        });
        process
    }

    fn load(&self, client: usize) -> Load {
        let nodes = 0..NODES;
        Load {
            client,
            nodes: nodes
                .map(|index| SocketAddr::new(host(Who::Node(index)), PORT))
                .collect(),
            oracle: Rc::clone(&self.oracle),
            log: self.world.log(),
            plan: Rc::clone(&self.plan),
            disturbed_until: Rc::clone(&self.disturbed_until[client]),
        }
    }

    fn start_client(&mut self, index: u8) -> ProcessId {
        let options = CoreOptions {
            arena: ArenaOptions {
                bytes_max: 32 << 20,
                chunk_bytes: 32 << 20,
                ..ArenaOptions::default()
            },
            ..CoreOptions::default()
        };
        let process = self.world.start(host(Who::Client(index)), 1, options);
        let (load, random) = (self.load(index.into()), self.world.draw());
        let _works = self.world.spawn(process, 0, || load.run(random));
        process
    }

    fn coordination(&self) -> Coordination {
        Coordination {
            host: host(Who::Coordinator),
            plan: Rc::clone(&self.plan),
            oracle: Rc::clone(&self.oracle),
            operator: Rc::clone(&self.operator),
            log: self.world.log(),
        }
    }

    fn start_coordinator(&mut self) {
        let at = host(Who::Coordinator);
        let process = self.world.start(at, 1, CoreOptions::default());
        let (coordination, random) = (self.coordination(), self.world.draw());
        let life = || coordination.coordinate(random);
        let _works = self.world.spawn(process, 0, life);
        self.operator.is_needed.set(false);
        self.coordinator = Some(process);
    }

    fn start_member(&mut self, index: u8) -> ProcessId {
        let own = host(Who::Member(index));
        let process = self.world.start(own, 1, CoreOptions::default());
        let (coordination, random) = (self.coordination(), self.world.draw());
        let life = move || coordination.live(own, 1 + u64::from(index), random);
        let _works = self.world.spawn(process, 0, life);
        process
    }

    /// The coordinator is started again if it runs and does not work.
    pub(crate) fn supervise(&mut self) {
        if self.operator.is_needed.get() && self.is_alive(Who::Coordinator) {
            let process = self.process(Who::Coordinator);
            self.world.log().note("the coordinator is started again");
            self.world.kill(process, Kill::Crash);
            self.start_coordinator();
        }
    }

    fn process(&self, who: Who) -> ProcessId {
        match who {
            Who::Node(index) => self.nodes[usize::from(index)],
            Who::Client(index) => self.clients[usize::from(index)],
            Who::Coordinator => self.coordinator.expect("it was started with the world"),
            Who::Member(index) => self.members[usize::from(index)],
        }
    }

    /// Deadlines say nothing of a process that is stopped, slow, or whose clock jumps.
    fn disturb(&self, who: Who, lasts: Duration) {
        if let Who::Client(index) = who {
            let until = self.world.now() + lasts + TIMEOUT_MAX * 3;
            let latest = &self.disturbed_until[usize::from(index)];
            latest.set(latest.get().max(until));
        }
    }

    /// A fault begins.
    pub(crate) fn begin(&mut self, fault: Fault, lasts: Duration) {
        self.world
            .log()
            .note(&format!("fault {fault:?} for {lasts:?}"));
        match fault {
            Fault::Cut {
                from,
                to,
                both_ways,
            } => {
                self.world.cut(host(from), host(to));
                if both_ways {
                    self.world.cut(host(to), host(from));
                }
            }
            Fault::Reset(one, other) => self.world.reset_connections(host(one), host(other)),
            Fault::Crash(who) => self.kill(who, Kill::Crash),
            Fault::PowerLoss(who) => self.kill(who, Kill::PowerLoss),
            Fault::Pause(who) if self.is_alive(who) => {
                self.disturb(who, lasts);
                self.world.pause(self.process(who));
            }
            Fault::Slow(who, times) if self.is_alive(who) => {
                self.disturb(who, lasts);
                self.world.slow_down(self.process(who), times);
            }
            Fault::ClockJump(who, ahead) if self.is_alive(who) => {
                self.disturb(who, Duration::ZERO);
                self.world.jump_clock(self.process(who), ahead);
            }
            Fault::Pause(_) | Fault::Slow(..) | Fault::ClockJump(..) => {}
        }
    }

    fn is_alive(&self, who: Who) -> bool {
        self.world.is_alive(self.process(who))
    }

    fn kill(&mut self, who: Who, how: Kill) {
        if !self.is_alive(who) {
            return;
        }
        let now = self.world.now();
        match who {
            Who::Node(index) => self.oracle.borrow_mut().on_kill(index.into(), now),
            Who::Client(index) => self.oracle.borrow_mut().on_client_gone(index.into()),
            Who::Coordinator | Who::Member(_) => {}
        }
        self.world.kill(self.process(who), how);
    }

    /// The network loses and damages nothing any more, and the drive is a new one with the old files.
    pub(crate) fn calm_down(&mut self) {
        self.world.set_network_faults(0, 0);
        self.world.set_drives(DiskOptions::default());
    }

    /// A fault is over.
    pub(crate) fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Cut { from, to, .. } => {
                self.world.mend(host(from), host(to));
                self.world.mend(host(to), host(from));
            }
            Fault::Crash(who) | Fault::PowerLoss(who) if !self.is_alive(who) => match who {
                Who::Node(index) => self.nodes[usize::from(index)] = self.start_node(index),
                Who::Client(index) => self.clients[usize::from(index)] = self.start_client(index),
                Who::Coordinator => self.start_coordinator(),
                Who::Member(index) => self.members[usize::from(index)] = self.start_member(index),
            },
            Fault::Pause(who) if self.is_alive(who) => self.world.resume(self.process(who)),
            Fault::Slow(who, _) if self.is_alive(who) => {
                self.world.slow_down(self.process(who), 1);
            }
            _ => {}
        }
    }

    /// Has a fresh client of each client process put and get at every node, and one of each member at
    /// the coordinator.
    pub(crate) fn check(&mut self) -> Vec<Outcome<()>> {
        let mut checks = Vec::new();
        for index in 0..MEMBERS {
            let (coordination, random) = (self.coordination(), self.world.draw());
            let process = self.members[usize::from(index)];
            let check = || coordination.check(random);
            checks.push(self.world.spawn(process, 0, check));
        }
        for index in 0..CLIENTS {
            let (load, random) = (self.load(index.into()), self.world.draw());
            let keys = (0..KEYS).step_by(5).map(u32::from).collect();
            let process = self.clients[usize::from(index)];
            checks.push(self.world.spawn(process, 0, || load.check(keys, random)));
        }
        checks
    }
}
