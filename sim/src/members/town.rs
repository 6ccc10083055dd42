//! The processes of a world, and what befalls them.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{ClusterOptions, NodeError, NodeOptions, SeatedNode, TierOptions};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, Placement, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;

use super::adapters::Adapters;
use super::ledger::Ledger;
use super::load::Load;
use super::plan::{
    CALM_FROM, CHECKS_FROM, CLIENTS, END, FAULTS_UNTIL, Fault, LOAD_FROM, LOAD_UNTIL, Plan,
    Planned, SETTLES, Who,
};

const PORT: u16 = 7000;
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
    nodes: Vec<ProcessId>,
    /// When everything began to be removed.
    cleared: Option<Time>,
    /// Whether that was acknowledged.
    is_cleared: Rc<Cell<bool>>,
    /// Raised for the node that is to remove everything.
    clears: Rc<Cell<bool>>,
    /// Raised for each node that is to leave.
    stops: Vec<Rc<Cell<bool>>>,
    clients: Vec<ProcessId>,
    /// A client that asks for nothing before it is raised, and whether that has ended.
    late: Option<Outcome<()>>,
    is_late: Rc<Cell<bool>>,
}

fn host(who: Who) -> IpAddr {
    IpAddr::V4(match who {
        Who::Node(index) => Ipv4Addr::new(10, 0, 0, 1 + index),
        Who::Client(index) => Ipv4Addr::new(10, 0, 1, 1 + index),
        Who::Coordinator => Ipv4Addr::new(10, 0, 2, 1),
    })
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
        let coordinator = world.start(host(Who::Coordinator), 1, CoreOptions::default());
        let _serves = world.spawn(coordinator, 0, || async {
            let listener = TcpListener::bind(SocketAddr::new(host(Who::Coordinator), PORT));
            let listener = listener.expect("a port");
            serve(listener, Hosted::in_memory(), None, pending()).await;
        });
        let mut town = Self {
            world,
            ledger: Rc::new(RefCell::new(Ledger::new(plan.namespace))),
            adapters,
            coordinator,
            nodes: Vec::new(),
            cleared: None,
            is_cleared: Rc::default(),
            clears: Rc::default(),
            stops: Vec::new(),
            clients: Vec::new(),
            late: None,
            is_late: Rc::default(),
            plan,
        };
        for index in 0..town.plan.nodes {
            town.stops.push(Rc::default());
            let node = town.start_node(index);
            town.nodes.push(node);
        }
        town
    }

    fn start_node(&mut self, index: u8) -> ProcessId {
        let address = SocketAddr::new(host(Who::Node(index)), PORT);
        let coordinator = SocketAddr::new(host(Who::Coordinator), PORT);
        let mut cluster = ClusterOptions::new("world", vec![coordinator]);
        cluster.lease_ttl_s = LEASE_TTL_S.into();
        let cores = self.plan.cores;
        let options = NodeOptions {
            placement: Placement::Anywhere(cores),
            cluster: Some(cluster),
            tier: self
                .plan
                .has_drives
                .then(|| TierOptions::in_folders(vec!["drive".into()], DRIVE_BYTES * cores as u64)),
            ..NodeOptions::new(NodeId(node_id(index)), address, self.plan.memory_bytes)
        };
        let core_options = options.core_options().expect("it has memory");
        let process = self.world.start(address.ip(), cores, core_options);
        let (clears, is_cleared) = (Rc::clone(&self.clears), Rc::clone(&self.is_cleared));
        let stops = Rc::<Cell<bool>>::default();
        self.stops[usize::from(index)] = Rc::clone(&stops);
        let _runs = self.world.spawn(process, 0, || async move {
            let node = started(options).await;
            // For as long as the process lives.
            loop {
                time::sleep(LOOK_PAUSE).await;
                if clears.replace(false) {
                    node.clear_cluster().await.expect("a member");
                    is_cleared.set(true);
                }
                if stops.get() {
                    node.leave().await.expect("a member");
                    // Until it is started again.
                    pending::<()>().await;
                }
            }
        });
        for core in 0..self.plan.cores {
            if let Some(adapters) = self.adapters.clone() {
                let equipping = async move || adapters.equip(index).await;
                let _equips = self.world.spawn(process, core, equipping);
            }
        }
        process
    }

    /// What the adapters have done, and in which order.
    pub(super) fn adapters_hash(&self) -> u64 {
        let adapters = self.adapters.as_ref();
        adapters.map_or(0, |adapters| adapters.trace_hash())
    }

    fn load(&self) -> Load {
        let nodes = 0..self.plan.nodes;
        Load {
            seeds: nodes
                .map(|index| SocketAddr::new(host(Who::Node(index)), PORT))
                .collect(),
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
            adapters: None,
        }
    }

    /// As [`load`](Self::load), of a client with adapters where there are any.
    fn load_of(&self, client: u8) -> Load {
        let adapters = self.adapters.clone();
        let load = self.load();
        let has_hasty = self.plan.has_hasty && self.plan.is_roomy();
        let is_hasty = has_hasty && client == CLIENTS - 1;
        Load {
            adapters: adapters.map(|adapters| (adapters, client)),
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
        if let Some((at, index)) = self.plan.retire {
            let (load, node) = (self.load(), SocketAddr::new(host(Who::Node(index)), PORT));
            let retire = || load.retire(at, node);
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
        let (load, random) = (self.load(), self.world.draw());
        let _works = self.world.spawn(self.nodes[0], 0, || load.run(random));
    }

    fn start_client(&mut self, index: u8) -> ProcessId {
        let address = host(Who::Client(index));
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

    fn is_alive(&self, index: u8) -> bool {
        self.world.is_alive(self.nodes[usize::from(index)])
    }

    /// From now on a node may be outside the map, until it has settled after that.
    fn disturb(&self, index: u8, until: Time) {
        let now = self.world.now();
        let mut ledger = self.ledger.borrow_mut();
        (ledger.copies).on_disturbed(node_id(index), now, until + SETTLES);
    }

    fn begin(&mut self, Planned { fault, until, .. }: Planned) {
        match fault {
            Fault::Kill(index, how) => self.kill(index, how),
            Fault::Stop(index) if self.is_alive(index) => {
                self.disturb(index, until);
                self.ledger.borrow_mut().count("stopped");
                self.stops[usize::from(index)].set(true);
            }
            Fault::Cut {
                from,
                to,
                both_ways,
            } => {
                if let (Who::Node(index), Who::Coordinator) | (Who::Coordinator, Who::Node(index)) =
                    (from, to)
                {
                    self.disturb(index, until);
                }
                self.ledger.borrow_mut().count("cut");
                self.world.cut(host(from), host(to));
                if both_ways {
                    self.world.cut(host(to), host(from));
                }
            }
            Fault::Reset(one, other) => self.world.reset_connections(host(one), host(other)),
            Fault::Pause(index) if self.is_alive(index) => {
                self.disturb(index, until);
                self.world.pause(self.nodes[usize::from(index)]);
            }
            Fault::Slow(index, times) if self.is_alive(index) => {
                self.disturb(index, until);
                self.world.slow_down(self.nodes[usize::from(index)], times);
            }
            Fault::ClockJump(index, ahead) if self.is_alive(index) => {
                self.disturb(index, until);
                self.world.jump_clock(self.nodes[usize::from(index)], ahead);
            }
            Fault::Stop(_) | Fault::Pause(_) | Fault::Slow(..) | Fault::ClockJump(..) => {}
            Fault::Coordinator => {
                (0..self.plan.nodes).for_each(|index| self.disturb(index, until));
                self.ledger.borrow_mut().count("coordinator away");
                self.world.pause(self.coordinator);
            }
            Fault::KillClient(how) => {
                self.ledger.borrow_mut().count("client killed");
                self.world.kill(self.clients[usize::from(CLIENTS) - 1], how);
            }
            Fault::PauseClient(index) => {
                let client = self.clients[usize::from(index)];
                if self.world.is_alive(client) {
                    self.world.pause(client);
                }
            }
        }
    }

    fn kill(&mut self, index: u8, how: Kill) {
        if !self.is_alive(index) {
            return;
        }
        let now = self.world.now();
        let mut ledger = self.ledger.borrow_mut();
        ledger.count("kill");
        ledger.copies.on_kill(now, node_id(index));
        drop(ledger);
        self.world.kill(self.nodes[usize::from(index)], how);
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(index, _) if !self.is_alive(index) => {
                self.nodes[usize::from(index)] = self.start_node(index);
            }
            Fault::Stop(index) => {
                self.kill(index, Kill::Crash);
                self.nodes[usize::from(index)] = self.start_node(index);
            }
            Fault::Cut { from, to, .. } => {
                self.world.mend(host(from), host(to));
                self.world.mend(host(to), host(from));
            }
            Fault::Pause(index) if self.is_alive(index) => {
                self.world.resume(self.nodes[usize::from(index)]);
            }
            Fault::Slow(index, _) if self.is_alive(index) => {
                self.world.slow_down(self.nodes[usize::from(index)], 1);
            }
            Fault::Coordinator => self.world.resume(self.coordinator),
            Fault::KillClient(_) => {
                let index = CLIENTS - 1;
                self.clients[usize::from(index)] = self.start_client(index);
            }
            Fault::PauseClient(index) => {
                let client = self.clients[usize::from(index)];
                if self.world.is_alive(client) {
                    self.world.resume(client);
                }
            }
            _ => {}
        }
    }
}
