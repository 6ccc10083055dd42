//! The processes of a world.

mod befalling;

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{ClusterOptions, NodeError, NodeOptions, SeatedNode, TierOptions};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, Placement, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use super::adapters::Adapters;
use super::ledger::Ledger;
use super::load::Load;
use super::plan::{
    CALM_FROM, CHECKS_FROM, CLIENTS, END, FAULTS_UNTIL, LOAD_FROM, LOAD_UNTIL, Means, Plan, Shape,
    Who,
};

const PORT: u16 = 7000;
/// Where nobody is.
const NO_COORDINATOR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2)), PORT);
const RACKS: [&str; 2] = ["a", "b"];
const LEASE_TTL_S: u16 = 2;
/// How often a node looks whether it is told something.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// What a client that asks late has in all.
const LATE_WAIT: Duration = Duration::from_secs(10);
/// Most time of an operation.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The same, of a client that waits for little.
const HASTY_TIMEOUT: Duration = Duration::from_millis(150);

/// Of each core.
const DRIVE_BYTES: u64 = 6 << 20;
const IO_ERRORS_PER_MILLION: u32 = 5_000;
const SHORT_OPERATIONS_PER_MILLION: u32 = 20_000;

/// See the [module](self).
pub(super) struct Town {
    pub(super) world: World,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    /// Where there are any.
    pub(super) adapters: Option<Rc<Adapters>>,
    plan: Plan,
    coordinator: ProcessId,
    nodes: Vec<Node>,
    /// What they are next is drawn here.
    of_shapes: SplitMix64,
    /// When everything began to be removed.
    cleared: Option<Time>,
    /// Whether that was acknowledged.
    is_cleared: Rc<Cell<bool>>,
    /// Raised for the node that is to remove everything.
    clears: Rc<Cell<bool>>,
    clients: Vec<ProcessId>,
    /// A client that asks for nothing before it is raised, and whether that has ended.
    late: Option<Outcome<()>>,
    is_late: Rc<Cell<bool>>,
}

/// A node, this time.
struct Node {
    process: ProcessId,
    cores: usize,
    /// Raised when it is to leave.
    stops: Rc<Cell<bool>>,
}

/// Where somebody is; `is_elsewhere` of a node that has moved.
fn host(who: Who, is_elsewhere: bool) -> IpAddr {
    IpAddr::V4(match who {
        Who::Node(index) => Ipv4Addr::new(10, 0, 3 * u8::from(is_elsewhere), 1 + index),
        Who::Client(index) => Ipv4Addr::new(10, 0, 1, 1 + index),
        Who::Coordinator => Ipv4Addr::new(10, 0, 2, 1),
    })
}

fn address(who: Who, is_elsewhere: bool) -> SocketAddr {
    SocketAddr::new(host(who, is_elsewhere), PORT)
}

/// A node whose drive fails when it is opened is started again.
async fn started(options: NodeOptions) -> SeatedNode {
    loop {
        match SeatedNode::start(options.clone()).await {
            Err(NodeError::Drive(_)) => time::sleep(LOOK_PAUSE).await,
            started => return started.expect("it starts"),
        }
    }
}

/// One that is killed now and then goes on from its file.
fn start_coordinator(world: &mut World, has_file: bool) -> ProcessId {
    let at = address(Who::Coordinator, false);
    let process = world.start(at.ip(), 1, CoreOptions::default());
    let _serves = world.spawn(process, 0, move || async move {
        let hosted = if has_file {
            let opened = Hosted::open(Path::new("coordinator")).await;
            opened.expect("its drive does not fail")
        } else {
            Hosted::in_memory()
        };
        let listener = TcpListener::bind(at).expect("a port");
        serve(listener, hosted, None, pending()).await;
    });
    process
}

fn node_id(index: u8) -> u64 {
    1 + u64::from(index)
}

impl Town {
    /// The coordinator and its members.
    pub(super) fn start(
        seed: u64,
        plan: Plan,
        adapters: Option<Rc<Adapters>>,
        keeps_log: bool,
    ) -> Self {
        let mut options = WorldOptions {
            losses_per_mille: plan.losses_per_mille,
            ..WorldOptions::default()
        };
        if plan.has_drives {
            options.disk.io_errors_per_million = IO_ERRORS_PER_MILLION;
            options.disk.short_operations_per_million = SHORT_OPERATIONS_PER_MILLION;
        }
        let mut world = World::new(seed, options);
        if keeps_log {
            world.keep_log();
        }
        let coordinator = start_coordinator(&mut world, plan.coordinator_dies);
        let mut town = Self {
            world,
            ledger: Rc::new(RefCell::new(Ledger::new(plan.namespace))),
            adapters,
            coordinator,
            nodes: Vec::new(),
            of_shapes: SplitMix64::new(seed ^ 0x7368_6170),
            cleared: None,
            is_cleared: Rc::default(),
            clears: Rc::default(),
            clients: Vec::new(),
            late: None,
            is_late: Rc::default(),
            plan,
        };
        for index in 0..town.plan.nodes {
            let node = town.start_node(index, town.plan.shape());
            town.nodes.push(node);
        }
        town
    }

    /// It is started again, and may be something else by now.
    fn start_again(&mut self, index: u8) {
        let shape = self.plan.next_shape(&mut self.of_shapes);
        self.world.log().note(&format!("{index} is {shape:?}"));
        self.nodes[usize::from(index)] = self.start_node(index, shape);
        if index == 0 {
            self.start_inside();
        }
    }

    fn start_node(&mut self, index: u8, shape: Shape) -> Node {
        let Shape {
            cores,
            memory_bytes,
            is_elsewhere,
        } = shape;
        let address = address(Who::Node(index), is_elsewhere);
        let lacks_one = usize::from(!self.plan.lacks_a_coordinator);
        let coordinators = [NO_COORDINATOR, self::address(Who::Coordinator, false)];
        let mut cluster = ClusterOptions::new("world", coordinators[lacks_one..].to_vec());
        if self.plan.has_racks {
            cluster.rack = RACKS[usize::from(index) % RACKS.len()]
                .parse()
                .expect("a label");
        }
        cluster.lease_ttl_s = LEASE_TTL_S.into();
        let options = NodeOptions {
            placement: Placement::Anywhere(cores),
            cluster: Some(cluster),
            tier: self
                .plan
                .has_drives
                .then(|| TierOptions::in_folders(vec!["drive".into()], DRIVE_BYTES * cores as u64)),
            ..NodeOptions::new(NodeId(node_id(index)), address, memory_bytes)
        };
        let core_options = options.core_options().expect("it has memory");
        let process = self.world.start(address.ip(), cores, core_options);
        let (clears, is_cleared) = (Rc::clone(&self.clears), Rc::clone(&self.is_cleared));
        let stops = Rc::<Cell<bool>>::default();
        let is_stopped = Rc::clone(&stops);
        let _runs = self.world.spawn(process, 0, || async move {
            let node = started(options).await;
            // For as long as the process lives.
            loop {
                time::sleep(LOOK_PAUSE).await;
                if clears.replace(false) {
                    node.clear_cluster().await.expect("a member");
                    is_cleared.set(true);
                }
                if is_stopped.get() {
                    node.leave().await.expect("a member");
                    // Until it is started again.
                    pending::<()>().await;
                }
            }
        });
        for core in 0..cores {
            if let Some(adapters) = self.adapters.clone() {
                let equipping = async move || adapters.equip(index).await;
                let _equips = self.world.spawn(process, core, equipping);
            }
        }
        Node {
            process,
            cores,
            stops,
        }
    }

    /// What the adapters have done, and in which order.
    pub(super) fn adapters_hash(&self) -> u64 {
        let adapters = self.adapters.as_ref();
        adapters.map_or(0, |adapters| adapters.trace_hash())
    }

    /// Wherever somebody may be.
    fn places(&self, who: Who) -> impl Iterator<Item = IpAddr> + use<> {
        let may_move = self.plan.reshapes && matches!(who, Who::Node(_));
        let places = [false, true].into_iter().take(1 + usize::from(may_move));
        places.map(move |is_elsewhere| host(who, is_elsewhere))
    }

    fn load(&self) -> Load {
        let nodes = 0..self.plan.nodes;
        let places = nodes.flat_map(|index| self.places(Who::Node(index)));
        Load {
            seeds: places.map(|host| SocketAddr::new(host, PORT)).collect(),
            ledger: Rc::clone(&self.ledger),
            log: self.world.log(),
            until: LOAD_UNTIL,
            calm_from: CALM_FROM,
            unrest: self.plan.unrest(),
            timeout: TIMEOUT,
            namespace: self.plan.namespace,
            is_roomy: self.plan.is_roomy(),
            has_drives: self.plan.has_drives,
            copies_max: self.plan.copies_max,
            quotas: Rc::clone(&self.plan.quotas),
            means: Means::default(),
            adapters: None,
        }
    }

    /// As [`load`](Self::load), of a client with adapters where there are any.
    fn load_of(&self, client: u8) -> Load {
        let adapters = self.adapters.clone();
        let load = self.load();
        let has_hasty = self.plan.has_hasty && self.plan.is_roomy();
        // What is asked by adapters that have failed unnoticed takes longer.
        let is_hasty = has_hasty && client == CLIENTS - 1 && adapters.is_none();
        Load {
            adapters: adapters.map(|adapters| (adapters, client)),
            // To connect anew takes it longer than it waits.
            means: if is_hasty {
                Means::default()
            } else {
                self.plan.means[usize::from(client)]
            },
            timeout: if is_hasty { HASTY_TIMEOUT } else { TIMEOUT },
            // It may be over before something that is lost is sent again.
            unrest: if is_hasty {
                Rc::new([(Time::ZERO, CALM_FROM)])
            } else {
                Rc::clone(&load.unrest)
            },
            ..load
        }
    }

    /// Runs to the end, or to the first failure.
    pub(super) fn live(&mut self) {
        if !self.advance(LOAD_FROM) {
            return;
        }
        self.start_load();
        let adapters = self.adapters.clone();
        let mut failing = adapters
            .iter()
            .flat_map(|adapters| adapters.faults())
            .peekable();
        for (at, begins, number) in self.timeline() {
            while let Some(fails) = failing.next_if(|fails| fails.at < at) {
                if !self.advance(fails.at) {
                    return;
                }
                fails.happen(&self.world.log());
            }
            if !self.advance(at) {
                return;
            }
            self.clear_if_due();
            let planned = self.plan.faults[number];
            self.world
                .log()
                .note(&format!("begins {begins}: {planned:?}"));
            if begins {
                self.begin(planned);
            } else {
                self.end(planned.fault);
            }
        }
        for fails in failing {
            if !self.advance(fails.at) {
                return;
            }
            fails.happen(&self.world.log());
        }
        if !self.advance(FAULTS_UNTIL) {
            return;
        }
        self.world.set_network_faults(0, 0);
        if !self.advance(CALM_FROM) {
            return;
        }
        if let Some(begun) = self.cleared.take_if(|_| self.is_cleared.get()) {
            self.ledger.borrow_mut().end_clear(self.world.now(), begun);
        }
        if self.advance(CHECKS_FROM) {
            self.check();
        }
    }

    /// Whichever node looks first has everything removed.
    fn clear_if_due(&mut self) {
        let now = self.world.now();
        let is_due = |at: &mut Time| *at <= now && !self.plan.clears_by_client;
        if self.plan.clear_at.take_if(is_due).is_some() {
            self.world.log().note("everything is removed");
            self.ledger.borrow_mut().begin_clear(now);
            self.cleared = Some(now);
            self.clears.set(true);
        }
    }

    /// Clients in processes of their own, and one on a member's core.
    fn start_load(&mut self) {
        for index in 0..CLIENTS {
            let process = self.start_client(index);
            self.clients.push(process);
        }
        for (at, index) in self.plan.retires.clone() {
            let places = self.places(Who::Node(index));
            let places = places.map(|host| SocketAddr::new(host, PORT)).collect();
            let load = self.load();
            let retire = || load.retire(at, places);
            let _retires = self.world.spawn(self.clients[0], 0, retire);
        }
        let (load, is_late) = (self.load_of(0), Rc::clone(&self.is_late));
        let looks = || load.look_late(is_late);
        self.late = Some(self.world.spawn(self.clients[0], 0, looks));
        if let Some(at) = self.plan.clear_at.filter(|_| self.plan.clears_by_client) {
            let load = self.load();
            let _clears = self.world.spawn(self.clients[0], 0, move || load.clear(at));
        }
        let load = self.load();
        let _sets = self.world.spawn(self.clients[0], 0, || load.set_quotas());
        self.start_inside();
    }

    /// A client on the last core of the first node.
    fn start_inside(&mut self) {
        let now = self.world.now();
        if now < LOAD_FROM || now >= LOAD_UNTIL {
            return;
        }
        let (load, random) = (self.load(), self.world.draw());
        let Node { process, cores, .. } = self.nodes[0];
        let _works = self.world.spawn(process, cores - 1, || load.run(random));
    }

    fn start_client(&mut self, index: u8) -> ProcessId {
        let address = host(Who::Client(index), false);
        let process = self.world.start(address, 1, CoreOptions::default());
        let (load, random) = (self.load_of(index), self.world.draw());
        let _works = self.world.spawn(process, 0, || load.run(random));
        process
    }

    /// When which fault begins, or ends.
    fn timeline(&self) -> Vec<(Time, bool, usize)> {
        let planned = self.plan.faults.iter().enumerate();
        let mut all: Vec<_> = planned
            .flat_map(|(number, planned)| {
                [(planned.from, true, number), (planned.until, false, number)]
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// A client of each process puts and gets everything; then there are no copies too many, nor
    /// too few.
    fn check(&mut self) {
        let checks: Vec<Outcome<()>> = (0..self.clients.len())
            .zip(0..)
            .map(|(index, client)| {
                let load = self.load_of(client);
                self.world.spawn(self.clients[index], 0, || load.check())
            })
            .collect();
        if !self.wait_for(&checks, END) {
            return;
        }
        let quiet_from = self.world.now() + Duration::from_secs(5);
        if !self.advance(quiet_from) {
            return;
        }
        let mut ledger = self.ledger.borrow_mut();
        let roomy_nodes = self.plan.is_roomy().then_some(self.plan.nodes);
        ledger.on_quiet(quiet_from, self.plan.copies_max, roomy_nodes);
        drop(ledger);
        self.is_late.set(true);
        let late: Vec<Outcome<()>> = self.late.take().into_iter().collect();
        self.wait_for(&late, quiet_from + LATE_WAIT);
    }

    /// Whether all of them end in time, and nothing fails.
    fn wait_for(&mut self, checks: &[Outcome<()>], until: Time) -> bool {
        while !checks.iter().all(Outcome::is_there) {
            let next = self.world.now() + Duration::from_millis(100);
            if next > until {
                let mut ledger = self.ledger.borrow_mut();
                ledger.fail(self.world.now(), "the last checks do not end");
                return false;
            }
            if !self.advance(next) {
                return false;
            }
        }
        true
    }

    /// Lets time pass, and tells the ledger what members tell when they do. Whether nothing has failed.
    fn advance(&mut self, until: Time) -> bool {
        let (ledger, log) = (Rc::clone(&self.ledger), self.world.log());
        let hear = || {
            let mut ledger = ledger.borrow_mut();
            ledger.hear(&log);
            !ledger.failures.is_empty()
        };
        !self.world.run_until(until, hear)
    }
}
