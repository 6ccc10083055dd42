//! Holders, each with its machine, and who drives them.

use core::time::Duration;
use std::collections::BTreeMap;

use lunette_cluster_proto::rack::Rack;
use lunette_p2p_proto::message::Message;
use lunette_p2p_proto::swarm::{Action, FetchId, Fetched, Member};
use lunette_p2p_proto::{ChunkSet, PeerId, Swarm};
use lunette_runtime_core::random::{SplitMix64, mix};
use lunette_runtime_core::time::Time;

use super::events::Events;
use super::network::{Arrival, Block, Network};
use super::report::Report;
use super::scenario::Scenario;

/// How often the catalogue is read, as a part of the bound.
const READS: u32 = 32;
/// How long a dead host is still in the catalogue, in such reads.
const LEASE_READS: u32 = 8;
/// Blocks of one chunk.
const BLOCKS: u64 = 16;
/// After how many times the bound nobody is waited for any more.
const BOUNDS_MAX: u32 = 40;

#[derive(Debug)]
enum Event {
    Block(Block),
    Message {
        from: usize,
        to: usize,
        message: Message,
    },
    Timer(usize),
    Dies(usize),
    Catalogue,
}

/// A holder.
#[derive(Debug)]
struct Host {
    swarm: Swarm,
    /// The flow of each fetch.
    flows: BTreeMap<FetchId, usize>,
    /// When it has asked to be woken.
    timer: Option<Time>,
    died: Option<Time>,
    whole: Option<Time>,
}

/// Whose a flow is, and of what.
#[derive(Clone, Copy, Debug)]
struct Read {
    host: usize,
    fetch: FetchId,
    len_bytes: u64,
}

struct World<'a> {
    scenario: &'a Scenario,
    now: Time,
    events: Events<Event>,
    network: Network,
    hosts: Vec<Host>,
    reads: Vec<Read>,
    random: SplitMix64,
    messages: u64,
    /// Bytes of chunks that were kept.
    kept_bytes: u64,
}

/// Runs a swarm until every receiver that lives has the object, or nobody is waited for any more.
#[must_use]
pub fn simulate(scenario: &Scenario) -> Report {
    let mut world = World::new(scenario);
    let end = Time::from_ns(0) + scenario.bound() * BOUNDS_MAX;
    while let Some((now, event)) = world.events.pop() {
        if now > end || world.is_over() {
            break;
        }
        world.now = now;
        world.step(event);
    }
    world.report()
}

fn peer(host: usize) -> PeerId {
    PeerId(host as u64 + 1)
}

fn host(peer: PeerId) -> usize {
    usize::try_from(peer.0 - 1).expect("it was made of a host")
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let lines: Vec<_> = (0..scenario.hosts())
            .map(|host| scenario.line(host))
            .collect();
        let racks: Vec<_> = (0..scenario.hosts())
            .map(|host| scenario.rack(host))
            .collect();
        let block_bytes = (scenario.chunk_bytes / BLOCKS).max(1);
        let network = Network::new(&lines, racks, scenario.between_bytes_per_s, block_bytes);
        let now = Time::from_ns(0);
        let make = |index: usize| Host {
            swarm: Swarm::new(
                now,
                peer(index),
                rack(scenario, index),
                if index < scenario.origins {
                    ChunkSet::full(scenario.chunks())
                } else {
                    ChunkSet::empty(scenario.chunks())
                },
                scenario.options,
                mix(scenario.seed ^ mix(index as u64)),
            ),
            flows: BTreeMap::new(),
            timer: None,
            died: None,
            whole: (index < scenario.origins).then_some(now),
        };
        let mut world = Self {
            scenario,
            now,
            events: Events::new(),
            network,
            hosts: (0..scenario.hosts()).map(make).collect(),
            reads: Vec::new(),
            random: SplitMix64::new(scenario.seed),
            messages: 0,
            kept_bytes: 0,
        };
        world.events.push(now, Event::Catalogue);
        for (host, after) in scenario.deaths() {
            world.events.push(now + after, Event::Dies(host));
        }
        world
    }

    fn is_over(&self) -> bool {
        let mut waiting = self.hosts.iter().filter(|host| host.died.is_none());
        waiting.all(|host| host.whole.is_some())
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Block(block) => self.on_block(block),
            Event::Message { from, to, message } => {
                if self.hosts[to].died.is_none() {
                    let now = self.now;
                    self.hosts[to].swarm.on_message(now, peer(from), message);
                    self.act(to);
                }
            }
            Event::Timer(host) => {
                if self.hosts[host].timer == Some(self.now) {
                    self.hosts[host].timer = None;
                    if self.hosts[host].died.is_none() {
                        let now = self.now;
                        self.hosts[host].swarm.on_time(now);
                        self.act(host);
                    }
                }
            }
            Event::Dies(host) => self.hosts[host].died = Some(self.now),
            Event::Catalogue => self.on_catalogue(),
        }
    }

    /// Everybody reads the catalogue.
    fn on_catalogue(&mut self) {
        let interval = self.scenario.bound() / READS;
        self.events.push(self.now + interval, Event::Catalogue);
        if self.is_catalogue_lost() {
            return;
        }
        let lease = interval * LEASE_READS;
        let is_listed = |host: &Host| host.died.is_none_or(|died| self.now.since(died) < lease);
        let hosts = self.hosts.iter().enumerate();
        let members: Vec<_> = hosts
            .filter(|(_, host)| is_listed(host))
            .map(|(index, host)| Member {
                id: peer(index),
                rack: rack(self.scenario, index),
                is_whole: host.whole.is_some(),
                keeps_all: true,
            })
            .collect();
        for index in 0..self.hosts.len() {
            if self.hosts[index].died.is_none() {
                let now = self.now;
                self.hosts[index].swarm.on_members(now, &members);
                self.act(index);
            }
        }
    }

    fn is_catalogue_lost(&self) -> bool {
        let bound = self.scenario.bound();
        self.scenario
            .faults
            .catalogue_lost
            .is_some_and(|(from, to)| {
                let now = Duration::from_nanos(self.now.as_ns());
                (bound.mul_f64(from)..bound.mul_f64(to)).contains(&now)
            })
    }

    fn on_block(&mut self, block: Block) {
        if self.network.is_over(block) {
            return;
        }
        let (from, to) = self.network.ends(block.flow);
        if self.hosts[from].died.is_some() || self.hosts[to].died.is_some() {
            // Nothing comes any more, and nobody says so.
            self.network.end(block.flow);
            return;
        }
        let (next, arrival) = self.network.arrived(block);
        if let Some(next) = next {
            self.carry(next);
        }
        if arrival == Arrival::Ended {
            self.network.end(block.flow);
            self.on_read(block.flow);
        }
    }

    fn carry(&mut self, block: Block) {
        let at = self.network.carry(self.now, block);
        self.events.push(at, Event::Block(block));
    }

    fn on_read(&mut self, flow: usize) {
        let Read {
            host,
            fetch,
            len_bytes,
        } = self.reads[flow];
        self.hosts[host].flows.remove(&fetch);
        let is_corrupt = self.random.unit() < self.scenario.faults.corrupt;
        let before = self.hosts[host].swarm.held().count();
        let now = self.now;
        let fetched = if is_corrupt {
            Fetched::Corrupt
        } else {
            Fetched::Held
        };
        self.hosts[host].swarm.on_fetched(now, fetch, fetched);
        if self.hosts[host].swarm.held().count() > before {
            self.kept_bytes += len_bytes;
        }
        self.act(host);
    }

    /// Does what a machine asks for.
    fn act(&mut self, index: usize) {
        while let Some(action) = self.hosts[index].swarm.poll_action() {
            match action {
                Action::Send { to, message } => {
                    self.messages += 1;
                    let at = self.now + self.scenario.latency;
                    let (from, to) = (index, host(to));
                    self.events.push(at, Event::Message { from, to, message });
                }
                Action::Fetch {
                    fetch,
                    source,
                    chunk,
                    ..
                } => self.fetch(index, fetch, host(source), chunk),
                Action::Cancel(fetch) => {
                    // A dead source's flow has ended by itself.
                    if let Some(flow) = self.hosts[index].flows.remove(&fetch) {
                        self.network.end(flow);
                    }
                    let now = self.now;
                    let swarm = &mut self.hosts[index].swarm;
                    swarm.on_fetched(now, fetch, Fetched::Cancelled);
                }
                Action::Whole => self.hosts[index].whole = Some(self.now),
                Action::Closed => {}
            }
        }
        let deadline = self.hosts[index].swarm.deadline();
        if let Some(at) =
            deadline.filter(|&at| self.hosts[index].timer.is_none_or(|timer| at < timer))
        {
            self.hosts[index].timer = Some(at);
            self.events.push(at, Event::Timer(index));
        }
    }

    fn fetch(&mut self, index: usize, fetch: FetchId, source: usize, chunk: u32) {
        let has_it = self.hosts[source].swarm.held().contains(chunk);
        assert!(has_it, "what was granted is there");
        let len_bytes = self.scenario.chunk_len(chunk);
        let (flow, blocks) = self.network.begin(source, index, len_bytes);
        assert_eq!(self.reads.len(), flow, "flows are numbered in their order");
        self.reads.push(Read {
            host: index,
            fetch,
            len_bytes,
        });
        self.hosts[index].flows.insert(fetch, flow);
        for block in blocks {
            self.carry(block);
        }
    }

    fn report(&self) -> Report {
        let scenario = self.scenario;
        let mut times: Vec<(bool, Duration)> = Vec::new();
        let mut unserved = 0;
        for (index, host) in self.hosts.iter().enumerate().skip(scenario.origins) {
            match (host.died, host.whole) {
                (None, Some(at)) => {
                    let took = Duration::from_nanos(at.as_ns());
                    times.push((scenario.is_straggler(index), took));
                }
                (None, None) => unserved += 1,
                (Some(_), _) => {}
            }
        }
        times.sort_unstable();
        let (slow, fast): (Vec<_>, Vec<_>) = times.into_iter().partition(|&(slow, _)| slow);
        let sent: u64 = self.network.sent.iter().sum();
        let chunks = self.kept_bytes as f64 / scenario.chunk_bytes as f64;
        let copies = |bytes: u64| bytes as f64 / scenario.object_bytes as f64;
        Report {
            bound: scenario.bound(),
            first: fast.first().map(|&(_, at)| at),
            median: fast.get(fast.len() / 2).map(|&(_, at)| at),
            last: fast.last().map(|&(_, at)| at),
            stragglers: slow.last().map(|&(_, at)| at),
            unserved,
            origin_copies: copies(self.network.sent[0]),
            crossed_copies: copies(self.network.crossed_bytes),
            wasted_copies: copies(sent.saturating_sub(self.kept_bytes)),
            messages_per_chunk: self.messages as f64 / chunks,
            events: self.events.made(),
        }
    }
}

fn rack(scenario: &Scenario, host: usize) -> Rack {
    if scenario.racks == 1 {
        return Rack::NONE;
    }
    let label = format!("rack-{}", scenario.rack(host));
    label.parse().expect("it is a label")
}
