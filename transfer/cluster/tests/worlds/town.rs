//! A world of members and a coordinator, and what is seen in it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_auth::Secrets;
use lunette_cluster::proto::fence::{Act, Fenced, NamespaceKind, Standing};
use lunette_cluster::proto::map::{ClusterMap, Epoch, MapMember};
use lunette_cluster::proto::member::{MAP_CHANGE_MIN, MemberOptions};
use lunette_cluster::proto::quota::Quotas;
use lunette_cluster::{Client, ClientOptions, Hosted, Membership, Security, serve};
use lunette_runtime::net::TcpListener;
use lunette_runtime::sim::{Kill, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, spawn_local, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

pub(crate) const TTL_S: u32 = 5;
const PORT: u16 = 2379;
/// How often each node says what it sees.
const LOOK: Duration = Duration::from_millis(20);
/// Whose quotas nodes set.
const TENANTS: [&str; 3] = ["default", "a", "b"];

/// What a node said last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) is_serving: bool,
    pub(crate) cache_read: Result<Standing, Fenced>,
    pub(crate) cache_put: Result<Standing, Fenced>,
    pub(crate) cache_change: Result<Standing, Fenced>,
    pub(crate) strict_read: Result<Standing, Fenced>,
}

/// When a node said what, in which of its lives.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Time,
    incarnation: u64,
    seen: Seen,
}

/// A quota that a node was asked to set. Each is of other bytes.
#[derive(Clone, Copy, Debug)]
struct QuotaSet {
    name: &'static str,
    bytes: u64,
    asked: Time,
    /// From when on the node does not try any more.
    until: Time,
    /// When the node said that it is set, if it was waited for.
    done: Option<Time>,
}

/// What all of them have seen, and the rules that were broken.
#[derive(Debug, Default)]
struct Record {
    seen: BTreeMap<u64, Look>,
    newest: Option<(ClusterMap, Time)>,
    broken: Vec<String>,
    /// Whether nodes are to set quotas.
    are_quotas_set: bool,
    quotas: BTreeMap<u64, Quotas>,
    quota_sets: Vec<QuotaSet>,
}

impl Record {
    fn look(&mut self, id: u64, incarnation: u64, now: Time, seen: Seen, map: Option<ClusterMap>) {
        let at = now;
        let look = Look {
            at,
            incarnation,
            seen,
        };
        self.seen.insert(id, look);
        let Some(map) = map else { return };
        let Some((old, since)) = &self.newest else {
            self.newest = Some((map, now));
            return;
        };
        if map.epoch() <= old.epoch() {
            if map.epoch() == old.epoch() && map != *old {
                self.broken
                    .push(format!("two maps of epoch {}", map.epoch().0));
            }
            return;
        }
        // It is told with a delay, which is below this in these worlds.
        if now.since(*since) + MAP_CHANGE_MIN / 2 < MAP_CHANGE_MIN {
            self.broken
                .push(format!("epoch {} came at once", map.epoch().0));
        }
        for gone in old.members() {
            let is_out = map.member(gone.id).is_none();
            // What a stopped process said last, it does not do any more.
            let serves = self.seen.get(&gone.id.0).is_some_and(|look| {
                let is_fresh = now.since(look.at) <= 2 * LOOK;
                look.incarnation == gone.incarnation && look.seen.is_serving && is_fresh
            });
            if is_out && serves {
                self.broken
                    .push(format!("{} serves, and is out of the map", gone.id));
            }
        }
        self.newest = Some((map, now));
    }
}

pub(crate) struct Town {
    world: World,
    coordinator: Option<ProcessId>,
    hosted: Rc<RefCell<Option<Rc<Hosted>>>>,
    nodes: BTreeMap<u64, ProcessId>,
    record: Rc<RefCell<Record>>,
    /// Whether all that goes to and from the coordinator is sealed.
    is_sealed: bool,
}

const fn node_host(id: u64) -> IpAddr {
    let [low, ..] = id.to_le_bytes();
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, low))
}

const COORDINATOR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 0));

impl Town {
    pub(crate) fn new(seed: u64) -> Self {
        let mut town = Self {
            world: World::new(seed, WorldOptions::default()),
            coordinator: None,
            hosted: Rc::default(),
            nodes: BTreeMap::new(),
            record: Rc::default(),
            is_sealed: seed % 2 == 1,
        };
        town.start_coordinator();
        town
    }

    fn security(&mut self) -> Option<Security> {
        let draw = RefCell::new(self.world.draw());
        self.is_sealed.then(|| Security {
            secrets: Secrets::parse(&[b't'; 32]).expect("it is long enough"),
            entropy: Rc::new(move || {
                let mut bytes = [0; 32];
                for piece in bytes.chunks_exact_mut(8) {
                    piece.copy_from_slice(&draw.borrow_mut().next().to_le_bytes());
                }
                bytes
            }),
        })
    }

    /// Starts the coordinator, unless it runs.
    pub(crate) fn start_coordinator(&mut self) {
        if self.coordinator.is_some() {
            return;
        }
        let process = self.world.start(COORDINATOR, 1, CoreOptions::default());
        let slot = Rc::clone(&self.hosted);
        let security = self.security();
        drop(self.world.spawn(process, 0, || async move {
            let hosted = Hosted::open(Path::new("coordinator")).await;
            let hosted = hosted.expect("its drive is good");
            slot.replace(Some(Rc::clone(&hosted)));
            let listener = TcpListener::bind(SocketAddr::new(COORDINATOR, PORT));
            serve(
                listener.expect("the port is free"),
                hosted,
                security,
                pending(),
            )
            .await;
        }));
        self.coordinator = Some(process);
    }

    /// Its host loses power: nobody is told, and what was not synced is gone.
    pub(crate) fn stop_coordinator(&mut self) {
        self.hosted.take();
        if let Some(process) = self.coordinator.take() {
            self.world.kill(process, Kill::PowerLoss);
        }
    }

    /// Starts a node, unless it runs.
    pub(crate) fn start_node(&mut self, id: u64) {
        if self.nodes.contains_key(&id) {
            return;
        }
        let host = node_host(id);
        let process = self.world.start(host, 1, CoreOptions::default());
        let mut draw = self.world.draw();
        let options = MemberOptions {
            cluster: "town".into(),
            prefix: "town".into(),
            member: MapMember::new(NodeId(id), draw.next() | 1, SocketAddr::new(host, 7000)),
            versions: (1, 1),
            former: Vec::new(),
            lease_ttl_s: TTL_S,
            rejoin_wait: Duration::from_secs(10),
            seed: draw.next(),
        };
        let record = Rc::clone(&self.record);
        let security = self.security();
        let life = move || live(id, options, security, record, draw);
        drop(self.world.spawn(process, 0, life));
        self.nodes.insert(id, process);
    }

    pub(crate) fn kill_node(&mut self, id: u64) {
        if let Some(process) = self.nodes.remove(&id) {
            let how = if self.world.draw().below(2) == 0 {
                Kill::Crash
            } else {
                Kill::PowerLoss
            };
            self.world.kill(process, how);
            let mut record = self.record.borrow_mut();
            record.seen.remove(&id);
            record.quotas.remove(&id);
        }
    }

    pub(crate) fn cut_off(&mut self, id: u64) {
        self.world.cut(node_host(id), COORDINATOR);
        self.world.cut(COORDINATOR, node_host(id));
    }

    pub(crate) fn cut_off_all(&mut self, nodes: u64) {
        (1..=nodes).for_each(|id| self.cut_off(id));
    }

    pub(crate) fn mend(&mut self, id: u64) {
        self.world.mend(node_host(id), COORDINATOR);
        self.world.mend(COORDINATOR, node_host(id));
    }

    pub(crate) fn mend_all(&mut self, nodes: u64) {
        (1..=nodes).for_each(|id| self.mend(id));
        self.world.set_network_faults(1, 0);
        if let Some(process) = self.coordinator {
            self.world.slow_down(process, 1);
        }
    }

    pub(crate) fn run_for(&mut self, delay: Duration) {
        self.world.run_for(delay);
    }

    /// That many faults, each followed by up to nine seconds.
    pub(crate) fn storm(&mut self, nodes: u64, faults: u32) {
        for _ in 0..faults {
            let mut draw = self.world.draw();
            let id = 1 + u64::from(draw.below(u32::try_from(nodes).expect("few")));
            match draw.below(15) {
                0 => self.cut_off(id),
                1 => self.cut_off_all(nodes),
                2 | 3 => self.mend_all(nodes),
                4 => self.world.cut(node_host(id), COORDINATOR),
                5 => self.world.cut(COORDINATOR, node_host(id)),
                6 => self.kill_node(id),
                7 => self.start_node(id),
                8 => {
                    self.stop_coordinator();
                    self.world
                        .run_for(Duration::from_millis(u64::from(draw.below(3000))));
                    self.start_coordinator();
                }
                9 => {
                    let hosted = self.hosted.borrow().clone();
                    if let Some(hosted) = hosted {
                        hosted.compact();
                    }
                }
                10 => self.stop_for(self.nodes.get(&id).copied(), draw.below(12_000)),
                11 => self.stop_for(self.coordinator, draw.below(12_000)),
                12 => {
                    if let Some(process) = self.coordinator {
                        self.world.slow_down(process, 1 + draw.below(2000));
                    }
                }
                13 => self.world.reset_connections(node_host(id), COORDINATOR),
                // What is not sealed, nobody keeps from being changed.
                _ => {
                    let damages = if self.is_sealed { 2000 } else { 0 };
                    self.world.set_network_faults(50, damages);
                }
            }
            let pause = Duration::from_millis(u64::from(draw.below(9000)));
            self.world.run_for(pause);
        }
    }

    /// A process stands still for so long, as when someone debugs it.
    fn stop_for(&mut self, process: Option<ProcessId>, ms: u32) {
        if let Some(process) = process {
            self.world.pause(process);
            self.world.run_for(Duration::from_millis(u64::from(ms)));
            self.world.resume(process);
        }
    }

    pub(crate) fn seen(&self, id: u64) -> Seen {
        self.record
            .borrow()
            .seen
            .get(&id)
            .expect("it has said something")
            .seen
    }

    pub(crate) fn newest_epoch(&self) -> Epoch {
        let record = self.record.borrow();
        record.newest.as_ref().expect("there is a map").0.epoch()
    }

    pub(crate) fn newest_ids(&self) -> Vec<u64> {
        let record = self.record.borrow();
        let map = &record.newest.as_ref().expect("there is a map").0;
        map.members().iter().map(|member| member.id.0).collect()
    }

    pub(crate) fn living(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// From now on each node sets a quota every few seconds.
    pub(crate) fn begin_quotas(&mut self) {
        self.record.borrow_mut().are_quotas_set = true;
    }

    pub(crate) fn end_quotas(&mut self) {
        self.record.borrow_mut().are_quotas_set = false;
    }

    /// Whether the living know the same quotas, and of each tenant one that nothing has followed for sure.
    /// How many were said to be set.
    pub(crate) fn check_quotas(&self, seed: u64) -> usize {
        let record = self.record.borrow();
        let (mut all, sets) = (record.quotas.values(), &record.quota_sets);
        assert_eq!(record.quotas.len(), self.nodes.len(), "seed {seed}");
        let done = || sets.iter().filter(|set| set.done.is_some());
        let Some(quotas) = all.next() else {
            return done().count();
        };
        assert!(all.all(|same| same == quotas), "seed {seed}: {record:?}");
        for name in TENANTS {
            let set = quotas.get(name).map(|bytes| {
                let set = sets.iter().find(|set| set.bytes == bytes);
                set.expect("somebody has set it")
            });
            let until = set.map_or(Time::ZERO, |set| set.done.unwrap_or(set.until));
            let mut later = done().filter(|later| later.name == name);
            let is_newest = later.all(|later| later.asked <= until);
            assert!(is_newest, "seed {seed}: {name}, {set:?} of {sets:?}");
        }
        done().count()
    }

    /// Whether every rule was kept.
    pub(crate) fn check(&self, seed: u64) {
        let record = self.record.borrow();
        assert!(record.broken.is_empty(), "seed {seed}: {:?}", record.broken);
    }
}

/// A node's life: it is a member, and says what it sees.
async fn live(
    id: u64,
    options: MemberOptions,
    security: Option<Security>,
    record: Rc<RefCell<Record>>,
    draw: SplitMix64,
) {
    let incarnation = options.member.incarnation;
    let client = Client::new(ClientOptions {
        endpoints: vec![SocketAddr::new(COORDINATOR, PORT)],
        security,
        silence_max: Duration::from_secs(u64::from(TTL_S)),
    });
    let membership = Membership::start(client, options).expect("there is room");
    let membership = Rc::new(membership);
    drop(spawn_local(set_quotas(
        Rc::clone(&membership),
        Rc::clone(&record),
        draw,
    )));
    loop {
        let permit = |kind, act| membership.permit(kind, act);
        let seen = Seen {
            is_serving: membership.is_serving(),
            cache_read: permit(NamespaceKind::Cache, Act::Read),
            cache_put: permit(NamespaceKind::Cache, Act::LocalPut),
            cache_change: permit(NamespaceKind::Cache, Act::Change),
            strict_read: permit(NamespaceKind::Strict, Act::Read),
        };
        let map = membership.map();
        let quotas = membership.quotas();
        record.borrow_mut().quotas.insert(id, quotas);
        (record.borrow_mut()).look(id, incarnation, time::now(), seen, map);
        time::sleep(LOOK).await;
    }
}

/// Sets one quota after the other, and waits for some of them.
async fn set_quotas(membership: Rc<Membership>, record: Rc<RefCell<Record>>, mut draw: SplitMix64) {
    loop {
        time::sleep(Duration::from_millis(draw.below(4000).into())).await;
        if !record.borrow().are_quotas_set {
            continue;
        }
        let name = TENANTS[draw.below(3) as usize];
        let index = record.borrow().quota_sets.len();
        let bytes = index as u64 + 1;
        let until = time::now() + Duration::from_millis(draw.below(9000).into());
        record.borrow_mut().quota_sets.push(QuotaSet {
            name,
            bytes,
            asked: time::now(),
            until,
            done: None,
        });
        let set = membership.set_quota(name, Some(bytes), until);
        let patience = Duration::from_millis(draw.below(6000).into());
        if time::timeout(patience, set).await == Ok(Ok(())) {
            record.borrow_mut().quota_sets[index].done = Some(time::now());
        }
    }
}
