//! Mooncake's P2P store, as its sources have it (`mooncake-p2p-store/src/p2pstore`, 2026-08): a receiver reads all
//! shards at once, each from a source that is drawn: from a whole replica if there is any, else from an origin. A
//! receiver is a replica once it has the whole object.

use core::time::Duration;

use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use super::events::Events;
use super::network::{Arrival, Block, Network};
use super::report::Report;
use super::scenario::Scenario;

/// The shards that its documentation recommends.
const SHARD_BYTES: u64 = 64 << 20;
/// Blocks of one shard.
const BLOCKS: u64 = 16;
/// A read of a dead source fails after so long: the engine's deadline, at least.
const FAILS_AFTER: Duration = Duration::from_secs(5);

enum Event {
    Block(Block),
    Dies(usize),
    /// A receiver tries a shard again.
    Again {
        host: usize,
        len_bytes: u64,
    },
}

struct World<'a> {
    scenario: &'a Scenario,
    now: Time,
    events: Events<Event>,
    network: Network,
    random: SplitMix64,
    /// Shards that each host lacks.
    lacks: Vec<u64>,
    died: Vec<bool>,
    whole: Vec<Option<Time>>,
    replicas: Vec<usize>,
    lens: Vec<u64>,
}

/// Runs as many receivers under Mooncake's scheme, until all who live have the object.
#[must_use]
pub fn simulate_mooncake(scenario: &Scenario) -> Report {
    let mut world = World::new(scenario);
    let is_over = |world: &World<'_>| {
        let mut hosts = 0..scenario.hosts();
        hosts.all(|host| world.died[host] || world.whole[host].is_some())
    };
    while !is_over(&world) {
        let Some((now, event)) = world.events.pop() else {
            break;
        };
        world.now = now;
        world.step(event);
    }
    world.report()
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let hosts = scenario.hosts();
        let lines: Vec<_> = (0..hosts).map(|host| scenario.line(host)).collect();
        let racks = (0..hosts).map(|host| scenario.rack(host)).collect();
        let between = scenario.between_bytes_per_s;
        let shards = scenario.object_bytes.div_ceil(SHARD_BYTES);
        let start = Time::from_ns(0);
        let is_origin = |host: usize| host < scenario.origins;
        let mut world = Self {
            scenario,
            now: start,
            events: Events::new(),
            network: Network::new(&lines, racks, between, SHARD_BYTES / BLOCKS),
            random: SplitMix64::new(scenario.seed),
            lacks: (0..hosts)
                .map(|host| if is_origin(host) { 0 } else { shards })
                .collect(),
            died: vec![false; hosts],
            whole: (0..hosts)
                .map(|host| is_origin(host).then_some(start))
                .collect(),
            replicas: Vec::new(),
            lens: Vec::new(),
        };
        for (host, after) in scenario.deaths() {
            world.events.push(start + after, Event::Dies(host));
        }
        for host in scenario.origins..hosts {
            for shard in 0..shards {
                let rest = scenario.object_bytes - shard * SHARD_BYTES;
                world.read(host, rest.min(SHARD_BYTES));
            }
        }
        world
    }

    fn read(&mut self, host: usize, len_bytes: u64) {
        let replicas: Vec<_> = if self.replicas.is_empty() {
            (0..self.scenario.origins).collect()
        } else {
            self.replicas.clone()
        };
        let count = u32::try_from(replicas.len()).expect("hosts are few");
        let source = replicas[self.random.below(count) as usize];
        if self.died[source] {
            let at = self.now + FAILS_AFTER;
            self.events.push(at, Event::Again { host, len_bytes });
            return;
        }
        let (flow, blocks) = self.network.begin(source, host, len_bytes);
        assert_eq!(self.lens.len(), flow, "flows are numbered in their order");
        self.lens.push(len_bytes);
        for block in blocks {
            self.carry(block);
        }
    }

    fn carry(&mut self, block: Block) {
        let at = self.network.carry(self.now, block);
        self.events.push(at, Event::Block(block));
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Dies(host) => self.died[host] = true,
            Event::Again { host, len_bytes } => self.read(host, len_bytes),
            Event::Block(block) if !self.network.is_over(block) => self.on_block(block),
            Event::Block(_) => {}
        }
    }

    fn on_block(&mut self, block: Block) {
        let (from, to) = self.network.ends(block.flow);
        let len_bytes = self.lens[block.flow];
        if self.died[from] || self.died[to] {
            self.network.end(block.flow);
            if !self.died[to] {
                let at = self.now + FAILS_AFTER;
                let host = to;
                self.events.push(at, Event::Again { host, len_bytes });
            }
            return;
        }
        let (next, arrival) = self.network.arrived(block);
        if let Some(next) = next {
            self.carry(next);
        }
        if arrival == Arrival::Ended {
            self.network.end(block.flow);
            self.lacks[to] -= 1;
            if self.lacks[to] == 0 {
                self.whole[to] = Some(self.now);
                self.replicas.push(to);
            }
        }
    }

    fn report(&self) -> Report {
        let scenario = self.scenario;
        let receivers = scenario.origins..scenario.hosts();
        let alive = receivers.filter(|&host| !self.died[host]);
        let times = |slow: bool| {
            let hosts = alive
                .clone()
                .filter(move |&host| scenario.is_straggler(host) == slow);
            let whole = hosts.filter_map(|host| self.whole[host]);
            let mut times: Vec<_> = whole.map(|at| Duration::from_nanos(at.as_ns())).collect();
            times.sort_unstable();
            times
        };
        let (fast, slow) = (times(false), times(true));
        let sent: u64 = self.network.sent.iter().sum();
        let copies = |bytes: u64| bytes as f64 / scenario.object_bytes as f64;
        let served = fast.len() + slow.len();
        Report {
            bound: scenario.bound(),
            first: fast.first().copied(),
            median: fast.get(fast.len() / 2).copied(),
            last: fast.last().copied(),
            stragglers: slow.last().copied(),
            unserved: alive.clone().count() - served,
            origin_copies: copies(self.network.sent[0]),
            crossed_copies: copies(self.network.crossed_bytes),
            wasted_copies: copies(sent) - served as f64,
            messages_per_chunk: 0.0,
            events: self.events.made(),
        }
    }
}
