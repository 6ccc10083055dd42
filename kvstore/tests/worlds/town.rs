//! The processes of a world, and what befalls them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::{Hosted, serve};
use lunette_kvstore::{ClusterOptions, NodeOptions, SeatedNode};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{Kill, Outcome, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, Placement};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use super::ledger::Ledger;
use super::load::Load;

const PORT: u16 = 7000;
const CLIENTS: u8 = 2;
/// When clients begin: by then all are members.
const LOAD_FROM_MS: u64 = 4_000;
const FAULTS_FROM_MS: u64 = 5_000;
const FAULTS_UNTIL_MS: u64 = 11_000;
/// When everything works again: who was killed waits for its former lease, and is a member a while
/// later.
const CALM_FROM_MS: u64 = 22_000;
const LOAD_UNTIL_MS: u64 = 23_000;
const END_MS: u64 = 40_000;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(u8, Kill),
    Start(u8),
    Cut(IpAddr, IpAddr),
    Mend(IpAddr, IpAddr),
    Reset(IpAddr, IpAddr),
}

pub(crate) struct Town {
    world: World,
    random: SplitMix64,
    ledger: Rc<RefCell<Ledger>>,
    nodes: Vec<ProcessId>,
    cores: usize,
    /// Of each node. Little of it makes nodes evict.
    memory_bytes: u64,
    copies_max: u8,
    plan: BTreeMap<(u64, usize), Fault>,
}

const COORDINATOR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1));

fn node_host(index: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, 1 + index])
}

fn client_host(index: u8) -> IpAddr {
    IpAddr::from([10, 0, 1, 1 + index])
}

fn at_ms(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

impl Town {
    pub(crate) fn new(seed: u64, keeps_log: bool) -> Self {
        let mut random = SplitMix64::new(seed);
        let options = WorldOptions {
            losses_per_mille: random.below(4),
            ..WorldOptions::default()
        };
        let mut world = World::new(random.next(), options);
        if keeps_log {
            world.keep_log();
        }
        let count = 3 + u8::try_from(random.below(5)).expect("few");
        let is_tight = random.below(4) == 0;
        let mut town = Self {
            world,
            ledger: Rc::default(),
            nodes: Vec::new(),
            cores: 1 + random.below(2) as usize,
            memory_bytes: if is_tight { 10 << 10 } else { 64 << 20 },
            copies_max: 1 + u8::try_from(random.below(3)).expect("few"),
            plan: BTreeMap::new(),
            random,
        };
        let process = town.world.start(COORDINATOR, 1, CoreOptions::default());
        let _serves = town.world.spawn(process, 0, || async {
            let listener = TcpListener::bind(SocketAddr::new(COORDINATOR, PORT));
            let listener = listener.expect("a port");
            serve(listener, Hosted::in_memory(), None, pending()).await;
        });
        for index in 0..count {
            let node = town.start_node(index);
            town.nodes.push(node);
        }
        town.ledger.borrow_mut().has_losses = is_tight;
        // Half of the worlds lose no process, so that nothing in them may be lost.
        town.make_plan(count, seed.is_multiple_of(2));
        town
    }

    fn make_plan(&mut self, count: u8, is_gentle: bool) {
        let window = u32::try_from(FAULTS_UNTIL_MS - FAULTS_FROM_MS).expect("short");
        for number in 0..2 + self.random.below(4) {
            let begin = FAULTS_FROM_MS + u64::from(self.random.below(window));
            let lasts = 50 + u64::from(self.random.below(4000));
            let end = (begin + lasts).min(FAULTS_UNTIL_MS);
            let victim = u8::try_from(self.random.below(count.into())).expect("few");
            let own = node_host(victim);
            let other = match self.random.below(3) {
                0 => COORDINATOR,
                1 => node_host((victim + 1) % count),
                _ => client_host(0),
            };
            let kind = self.random.below(4);
            // A world that may lose a process loses one.
            let is_kill = !is_gentle && (kind == 0 || number == 0);
            let (begins, ends) = match kind {
                _ if is_kill => {
                    let how = if self.random.below(2) == 0 {
                        Kill::Crash
                    } else {
                        Kill::PowerLoss
                    };
                    (Fault::Kill(victim, how), Some(Fault::Start(victim)))
                }
                1 => (Fault::Reset(own, other), None),
                _ => (Fault::Cut(own, other), Some(Fault::Mend(own, other))),
            };
            let number = number as usize;
            self.plan.insert((begin, 2 * number), begins);
            if let Some(ends) = ends {
                self.plan.insert((end, 2 * number + 1), ends);
            }
        }
    }

    fn start_node(&mut self, index: u8) -> ProcessId {
        let address = SocketAddr::new(node_host(index), PORT);
        let mut cluster = ClusterOptions::new("world", vec![SocketAddr::new(COORDINATOR, PORT)]);
        cluster.lease_ttl_s = 2;
        let options = NodeOptions {
            placement: Placement::Anywhere(self.cores),
            cluster: Some(cluster),
            ..NodeOptions::new(NodeId(1 + u64::from(index)), address, self.memory_bytes)
        };
        let core_options = options.core_options().expect("it has memory");
        let process = self.world.start(address.ip(), self.cores, core_options);
        let _runs = self.world.spawn(process, 0, || async {
            let node = SeatedNode::start(options).await.expect("it starts");
            // For as long as the process lives.
            pending::<()>().await;
            drop(node);
        });
        process
    }

    fn load(&self) -> Load {
        let nodes = u8::try_from(self.nodes.len()).expect("few");
        Load {
            seeds: (0..nodes)
                .map(|index| SocketAddr::new(node_host(index), PORT))
                .collect(),
            ledger: Rc::clone(&self.ledger),
            log: self.world.log(),
            until: at_ms(LOAD_UNTIL_MS),
            calm_from: at_ms(CALM_FROM_MS),
            timeout: Duration::from_secs(3),
            copies_max: self.copies_max,
        }
    }

    fn strike(&mut self, fault: Fault) {
        self.world.log().note(&format!("fault {fault:?}"));
        match fault {
            Fault::Kill(index, how) => {
                let process = self.nodes[usize::from(index)];
                if self.world.is_alive(process) {
                    let mut ledger = self.ledger.borrow_mut();
                    ledger.has_losses = true;
                    ledger.count("kill");
                    self.world.kill(process, how);
                }
            }
            Fault::Start(index) => {
                if !self.world.is_alive(self.nodes[usize::from(index)]) {
                    self.nodes[usize::from(index)] = self.start_node(index);
                }
            }
            Fault::Cut(one, other) => {
                let mut ledger = self.ledger.borrow_mut();
                ledger.count("cut");
                ledger.away_until = at_ms(CALM_FROM_MS);
                self.world.cut(one, other);
                self.world.cut(other, one);
            }
            Fault::Mend(one, other) => {
                self.world.mend(one, other);
                self.world.mend(other, one);
            }
            Fault::Reset(one, other) => self.world.reset_connections(one, other),
        }
    }

    /// Runs to the end: failures, counts, and the log if it was kept.
    pub(crate) fn run(mut self) -> (Vec<String>, BTreeMap<&'static str, u64>, Vec<String>) {
        let never = || false;
        self.world.run_until(at_ms(LOAD_FROM_MS), never);
        let mut clients = Vec::new();
        for index in 0..CLIENTS {
            let process = self
                .world
                .start(client_host(index), 1, CoreOptions::default());
            let (load, random) = (self.load(), self.world.draw());
            let _works = self.world.spawn(process, 0, || load.run(random));
            clients.push(process);
        }
        // A client beside a node's own cores.
        let (load, random) = (self.load(), self.world.draw());
        let _works = self.world.spawn(self.nodes[0], 0, || load.run(random));
        for ((at, _), fault) in std::mem::take(&mut self.plan) {
            self.world.run_until(at_ms(at), never);
            self.strike(fault);
        }
        self.world.run_until(at_ms(LOAD_UNTIL_MS + 4_000), never);
        let checks: Vec<Outcome<()>> = clients
            .into_iter()
            .map(|process| {
                let load = self.load();
                self.world.spawn(process, 0, || load.check())
            })
            .collect();
        let are_done = || checks.iter().all(Outcome::is_there);
        if !self.world.run_until(at_ms(END_MS), are_done) {
            let mut ledger = self.ledger.borrow_mut();
            ledger.fail(self.world.now(), "the last checks do not end");
        }
        let log = self.world.take_log();
        let mut ledger = self.ledger.borrow_mut();
        let failures = std::mem::take(&mut ledger.failures);
        (failures, ledger.counts.clone(), log)
    }
}
