//! A world of homes, owners and askers in one process, from one seed.
//!
//! Nodes have one or two cores, each a home and an owner. A coordinator renews leases, expires them,
//! and makes a map at most once a second. The network delays, reorders, loses and doubles; nodes are
//! cut off and come back, are killed or leave in order and start again, in some worlds all of them at one time; what they had is
//! on drives in some; clocks drift; "remove all" happens. Everybody has room for copies: in the end there are as many as were
//! wanted.

pub(crate) mod node;
mod onlooker;
pub(crate) mod oracle;
mod saved;
mod traffic;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_cluster_proto::fence::NamespaceKind;
use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::asker::{Asker, OperationId};
use lunette_kvstore_proto::home::{Home, HomeMemory};
use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{AskerId, CopyPlace};
use lunette_kvstore_proto::owner::Owner;
use lunette_kvstore_proto::placement::Seat;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

use node::Node;
use oracle::Oracle;
use saved::Saved;
use traffic::Mail;

pub(crate) const MS: u64 = 1_000_000;
/// Leases are short, so that worlds are.
pub(crate) const TTL: Duration = Duration::from_secs(2);
const TICK_MS: u64 = 10;
/// How long members are waited for when all have ended.
const REJOIN_WAIT: Duration = Duration::from_secs(1);
/// When the faults are over; five seconds later all is to be as it should.
const FAULTS_END_MS: u64 = 8_000;
const CALM_MS: u64 = 5_000;
/// So much longer, and copies that were lost have been made again.
const REPAIR_MS: u64 = 5_000;
/// Operations go on for a while after the last fault, and then stop, so that the end is quiet.
const WORK_END_MS: u64 = FAULTS_END_MS + 2_800;

pub(crate) const fn at_ms(ms: u64) -> Time {
    Time::from_ns(ms * MS)
}

pub(crate) enum Event {
    Mail(Mail),
    /// A map reaches a core of a node, or an asker.
    Map {
        node: usize,
        incarnation: u64,
        core: usize,
        map: ClusterMap,
    },
    AskerMap {
        asker: usize,
        map: ClusterMap,
    },
    /// All bytes of a write have come, or its writer is gone.
    Whole {
        seat: Seat,
        op: lunette_kvstore_proto::message::directory::OpId,
        is_whole: bool,
    },
    /// A drive has kept what a home knew, or has forgotten it.
    Kept {
        seat: Seat,
        kept: Option<HomeMemory>,
    },
    Tick,
    Work,
    Fault(Fault),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Cut(usize),
    Heal(usize),
    Kill(usize),
    /// It ends, in good order or not, whatever others do.
    End(usize, bool),
    Start(usize),
    /// It is to be emptied, until it starts anew.
    Drain(usize),
    Raise,
    CoordinatorDown,
    CoordinatorUp,
}

/// A registered life of a node, and when its lease ends.
#[derive(Clone, Copy, Debug)]
struct Lease {
    incarnation: u64,
    until: Time,
}

pub(crate) struct AskerSide {
    pub(crate) machine: Asker,
    /// The node on whose side of a partition it is.
    pub(crate) beside: usize,
    pub(crate) reads: BTreeMap<OperationId, (u64, bool)>,
    /// The value that each write brings.
    pub(crate) values: BTreeMap<OperationId, u64>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) random: SplitMix64,
    queue: BTreeMap<(Time, u64), Event>,
    queued: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) askers: Vec<AskerSide>,
    pub(crate) oracle: Oracle,
    pub(crate) namespace: NamespaceKind,
    pub(crate) keys: Vec<Fingerprint>,
    leases: BTreeMap<usize, Lease>,
    pub(crate) map: ClusterMap,
    map_changed: Time,
    /// Since when nobody who has a lease is in the map.
    all_new: Option<Time>,
    raised: u64,
    is_coordinator_up: bool,
    incarnations: u64,
    /// Whether tasks put at their own core as clients inside of nodes do.
    pub(crate) has_direct_puts: bool,
    /// Whether nodes that end leave the cluster first, if they can.
    leaves_in_order: bool,
    /// Whether what a node has outlasts it, and what that is of those that have ended.
    has_drives: bool,
    saved: BTreeMap<Seat, Saved>,
    /// Copies that a former life had.
    returned: BTreeSet<(Seat, CopyPlace)>,
    /// Whether all nodes end at about one time, or some.
    ends_all: bool,
    ends_some: bool,
    pub(crate) last_value: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let is_strict = random.below(3) != 0;
        let count = 3 + random.below(5) as usize;
        let mut world = Self {
            now: at_ms(1000),
            random,
            queue: BTreeMap::new(),
            queued: 0,
            nodes: Vec::new(),
            askers: Vec::new(),
            oracle: Oracle::new(is_strict),
            namespace: if is_strict {
                NamespaceKind::Strict
            } else {
                NamespaceKind::Cache
            },
            keys: Vec::new(),
            leases: BTreeMap::new(),
            map: ClusterMap::default(),
            map_changed: Time::ZERO,
            all_new: None,
            raised: 0,
            is_coordinator_up: true,
            incarnations: 0,
            has_direct_puts: !seed.is_multiple_of(2),
            leaves_in_order: !(seed / 2).is_multiple_of(3),
            has_drives: !(seed / 6).is_multiple_of(3),
            saved: BTreeMap::new(),
            returned: BTreeSet::new(),
            ends_all: false,
            ends_some: seed.is_multiple_of(3),
            last_value: 0,
        };
        for index in 0..count {
            let node = world.new_life(index);
            world.nodes.push(node);
        }
        for index in 0..3 {
            world.askers.push(AskerSide {
                machine: Asker::new(AskerId(index)),
                beside: world.random.below(3) as usize,
                reads: BTreeMap::new(),
                values: BTreeMap::new(),
            });
        }
        let keys = 5 + world.random.below(8);
        world.keys = (0..keys)
            .map(|_| {
                Fingerprint(u128::from(world.random.next()) << 64 | u128::from(world.random.next()))
            })
            .collect();
        world.plan();
        if seed % 7 == 3 {
            // One, and in some worlds another.
            let random = &mut SplitMix64::new(!seed << 1);
            for _ in 0..=random.below(2) {
                let node = random.below(u32::try_from(count).expect("few")) as usize;
                let at = 1500 + u64::from(random.below(6500));
                world.fault(at, Fault::Drain(node));
            }
        }
        if world.ends_some {
            world.plan_for_some(&mut SplitMix64::new(!seed));
        }
        world
    }

    fn new_life(&mut self, index: usize) -> Node {
        self.incarnations += 1;
        let cores = 1 + u16::from(index % 3 == 1);
        let rate = 980 + u64::from(self.random.below(41));
        Node::new(index as u64 + 1, self.incarnations, cores, rate)
    }

    /// At least one partition and one kill, each with a change of the map, or the end of all.
    fn plan(&mut self) {
        let count = u32::try_from(self.nodes.len()).expect("few");
        let is_gentle = self.random.below(2) == 0;
        self.ends_all = self.has_drives && self.random.below(2) == 0;
        if self.ends_all {
            self.plan_for_all();
        }
        let has_more = !self.ends_all || self.random.below(3) == 0;
        if has_more && is_gentle {
            self.plan_one_by_one(count);
        }
        let rounds = if is_gentle || !has_more {
            0
        } else {
            1 + self.random.below(3)
        };
        for round in 0..rounds {
            let begin = |random: &mut SplitMix64| 1300 + u64::from(random.below(4000));
            let victim = self.random.below(count) as usize;
            let at = begin(&mut self.random);
            // Some for long enough that removals go on without the node.
            let for_ms = 300 + u64::from(self.random.below(6000));
            self.fault(at, Fault::Cut(victim));
            self.fault((at + for_ms).min(FAULTS_END_MS), Fault::Heal(victim));
            if round > 0 && self.random.below(2) == 0 {
                continue;
            }
            let victim = self.random.below(count) as usize;
            let at = begin(&mut self.random);
            self.fault(at, Fault::Kill(victim));
            let for_ms = 100 + u64::from(self.random.below(4000));
            self.fault((at + for_ms).min(FAULTS_END_MS), Fault::Start(victim));
        }
        if self.random.below(3) == 0 {
            let at = 1500 + u64::from(self.random.below(6000));
            self.fault(at, Fault::Raise);
        }
        if self.random.below(5) == 0 {
            let at = 1500 + u64::from(self.random.below(3000));
            self.fault(at, Fault::CoordinatorDown);
            self.fault(at + 3000, Fault::CoordinatorUp);
        }
        self.schedule(self.now, Event::Tick);
        self.schedule(self.now, Event::Work);
    }

    /// All nodes end at about one time, and start again: in most worlds one ends before, in every other one most start late.
    fn plan_for_all(&mut self) {
        let count = u32::try_from(self.nodes.len()).expect("few");
        let first = self.random.below(count) as usize;
        let at = 4500 + u64::from(self.random.below(1000));
        // With a map in between, or none.
        let ends_ms = [1, 500][self.random.below(2) as usize];
        let starts_ms = 1 + self.random.below(800);
        let (is_early, are_late) = (self.random.below(3) != 0, self.random.below(2) == 0);
        let is_in_order = self.random.below(2) == 0;
        for node in 0..self.nodes.len() {
            let end = at + u64::from(self.random.below(ends_ms));
            let mut start = end + 600 + u64::from(self.random.below(starts_ms));
            if is_early && node == first {
                let early = 1300 + u64::from(self.random.below(1000));
                self.fault(early, Fault::End(node, true));
                // It knows less than those who are late.
                if self.random.below(if are_late { 8 } else { 2 }) == 0 {
                    start = FAULTS_END_MS;
                }
            } else {
                if are_late && self.random.below(8) != 0 {
                    start = FAULTS_END_MS;
                }
                self.fault(end, Fault::End(node, is_in_order));
            }
            self.fault(start, Fault::Start(node));
        }
    }

    /// Several nodes, but not all, end at about one time, or are cut off together, and come back: in most worlds one has ended
    /// before, and in some it comes back while most of them are away.
    fn plan_for_some(&mut self, random: &mut SplitMix64) {
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        let draw = |nodes: &mut Vec<usize>, random: &mut SplitMix64| {
            let at = random.below(u32::try_from(nodes.len()).expect("few"));
            nodes.swap_remove(at as usize)
        };
        let most = u32::try_from(nodes.len() - 2).expect("few");
        let fewer = random.below(most) * random.below(2);
        let count = (1 + most - fewer) as usize;
        let at = 3500 + u64::from(random.below(1500));
        let ends_ms = [1, 500, 1500][random.below(3) as usize];
        let (is_cut, is_in_order) = (random.below(3) == 0, random.below(2) == 0);
        let (is_early, are_late) = (random.below(3) != 0, random.below(2) == 0);
        if is_early {
            let node = draw(&mut nodes, random);
            self.fault(1300 + u64::from(random.below(1000)), Fault::End(node, true));
            let back = at + 1000 + u64::from(random.below(1500));
            self.fault(back, Fault::Start(node));
        }
        while nodes.len() > self.nodes.len() - count {
            let node = draw(&mut nodes, random);
            let end = at + u64::from(random.below(ends_ms));
            let mut back = (end + 600 + u64::from(random.below(4000))).min(FAULTS_END_MS);
            if are_late && random.below(4) != 0 {
                back = FAULTS_END_MS;
            }
            if is_cut {
                self.fault(end, Fault::Cut(node));
                self.fault(back, Fault::Heal(node));
            } else {
                self.fault(end, Fault::End(node, is_in_order));
                self.fault(back, Fault::Start(node));
            }
        }
    }

    /// One fault, and the next when the first is recovered from: a node is away for long enough that
    /// others go on without it, comes back, and then another is killed.
    fn plan_one_by_one(&mut self, count: u32) {
        let victim = self.random.below(count) as usize;
        let at = 1300 + u64::from(self.random.below(700));
        self.fault(at, Fault::Cut(victim));
        let back = at + 3300 + u64::from(self.random.below(1500));
        self.fault(back, Fault::Heal(victim));
        let victim = self.random.below(count) as usize;
        let at = 6500 + u64::from(self.random.below(1000));
        self.fault(at, Fault::Kill(victim));
        self.fault(FAULTS_END_MS, Fault::Start(victim));
    }

    fn fault(&mut self, at: u64, fault: Fault) {
        self.schedule(at_ms(at), Event::Fault(fault));
    }

    pub(crate) fn schedule(&mut self, at: Time, event: Event) {
        self.queued += 1;
        self.queue.insert((at, self.queued), event);
    }

    pub(crate) fn after(&mut self, us: u64, event: Event) {
        self.schedule(Time::from_ns(self.now.as_ns() + us * 1000), event);
    }

    /// Runs to the end, and judges it.
    pub(crate) fn run(&mut self) {
        let end = at_ms(FAULTS_END_MS + CALM_MS + REPAIR_MS);
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > end || !self.oracle.failures.is_empty() {
                break;
            }
            let event = entry.remove();
            self.now = at;
            self.step(event);
        }
        if self.oracle.failures.is_empty() {
            self.count_returned();
            self.judge_end();
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Mail(mail) => self.deliver(mail),
            Event::Tick => self.tick(),
            Event::Work => self.work(),
            Event::Fault(fault) => self.strike(fault),
            Event::Map {
                node,
                incarnation,
                core,
                map,
            } => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].is_alive {
                    self.on_map(node, core, &map);
                }
            }
            Event::AskerMap { asker, map } => self.askers[asker].machine.on_map(&map),
            Event::Whole { seat, op, is_whole } => self.on_whole(seat, op, is_whole),
            Event::Kept { seat, kept } => self.on_kept(seat, kept),
        }
    }

    pub(crate) fn index_of(&self, seat: Seat) -> Option<usize> {
        let index = usize::try_from(seat.node.0 - 1).expect("few");
        let node = self.nodes.get(index)?;
        (node.is_alive && node.incarnation == seat.incarnation).then_some(index)
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(node) => {
                self.nodes[node].is_cut = true;
                self.oracle
                    .partitions
                    .push((self.now, at_ms(FAULTS_END_MS)));
            }
            Fault::Heal(node) => {
                self.nodes[node].is_cut = false;
            }
            Fault::Kill(node) => self.end_life(node, self.leaves_in_order),
            Fault::End(node, is_in_order) => self.end_life(node, is_in_order),
            Fault::Start(node) => {
                if !self.nodes[node].is_alive {
                    let is_cut = self.nodes[node].is_cut;
                    self.nodes[node] = self.new_life(node);
                    self.nodes[node].is_cut = is_cut;
                    self.restore(node);
                }
            }
            Fault::Drain(node) => self.nodes[node].is_draining = true,
            Fault::Raise => self.raised += 1,
            Fault::CoordinatorDown => {
                self.is_coordinator_up = false;
                self.oracle
                    .partitions
                    .push((self.now, at_ms(FAULTS_END_MS)));
            }
            Fault::CoordinatorUp => {
                // Leases that ended meanwhile come back before the map is changed.
                self.is_coordinator_up = true;
                for lease in self.leases.values_mut() {
                    lease.until = lease.until.max(self.now + TTL);
                }
            }
        }
    }

    fn end_life(&mut self, node: usize, is_in_order: bool) {
        if !self.nodes[node].is_alive {
            return;
        }
        let had = self.copies_of(node);
        if is_in_order {
            self.leave(node);
        }
        self.save(node, had, is_in_order);
        self.nodes[node].is_alive = false;
        let seat = self.nodes[node].seat(0);
        self.oracle.on_kill(self.now, seat);
    }

    /// A node serves nobody any more, tells those who wait there, and gives its lease back.
    fn leave(&mut self, index: usize) {
        for core in 0..self.nodes[index].cores.len() {
            let seat = self.nodes[index].seat(core);
            self.at_owner(seat, Owner::leave);
            self.at_home(seat, Home::leave);
        }
        if self.is_coordinator_up && !self.nodes[index].is_cut {
            self.leases.remove(&index);
        }
    }

    fn tick(&mut self) {
        self.after(TICK_MS * 1000, Event::Tick);
        let tick = self.now.as_ns() / (TICK_MS * MS);
        if tick.is_multiple_of(20) {
            self.coordinate();
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_alive {
                for core in 0..self.nodes[node].cores.len() {
                    self.tick_core(node, core);
                    self.keep(node, core);
                }
            }
        }
        for asker in 0..self.askers.len() {
            self.tick_asker(asker);
        }
    }

    /// Leases are renewed and expire; the map follows, at most once a second.
    fn coordinate(&mut self) {
        if !self.is_coordinator_up {
            return;
        }
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if !node.is_alive || node.is_cut {
                continue;
            }
            let known = self.leases.get(&index);
            let is_other = known.is_some_and(|lease| lease.incarnation != node.incarnation);
            if is_other && known.is_some_and(|lease| self.now < lease.until) {
                // The former life's lease has to end first.
                continue;
            }
            let incarnation = node.incarnation;
            if known.is_none() {
                // A lease that was granted anew counts once the map was read again.
                node.reads_from = self.map.epoch();
            }
            node.renew(self.now, TTL);
            let until = self.now + TTL;
            self.leases.insert(index, Lease { incarnation, until });
        }
        self.leases.retain(|_, lease| self.now < lease.until);
        self.change_map();
        self.note_generation();
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.is_alive && !node.is_cut && node.map.epoch() < self.map.epoch() {
                self.tell_map(index);
            }
        }
    }

    /// "Remove all" is done when all members have its map, and others have surely stopped.
    fn note_generation(&mut self) {
        let is_quiet = self.now >= self.map_changed + TTL + Duration::from_secs(1);
        let mut nodes = self.nodes.iter().filter(|node| node.is_alive);
        let is_known = nodes.all(|node| {
            let mut homes = node.cores.iter().map(|core| &core.home);
            let is_member = self
                .map
                .members()
                .iter()
                .any(|member| member.incarnation == node.incarnation);
            !is_member || homes.all(|home| home.epoch() == self.map.epoch())
        });
        if is_quiet && is_known {
            self.oracle.on_generation(self.now, self.map.generation());
        }
    }

    fn change_map(&mut self) {
        let epoch = Epoch(self.map.epoch().0 + 1);
        let since = |id: NodeId, incarnation: u64| {
            let old = self.map.member(id);
            let old = old.filter(|old| old.incarnation == incarnation);
            old.map_or(epoch, |old| old.since)
        };
        let members = self.leases.iter().map(|(&index, lease)| MapMember {
            since: since(NodeId(index as u64 + 1), lease.incarnation),
            home_weight: 1 + u32::from(index % 4 == 3),
            is_draining: self.nodes[index].is_draining,
            cores: u16::try_from(self.nodes[index].cores.len()).expect("few"),
            ..MapMember::new(
                NodeId(index as u64 + 1),
                lease.incarnation,
                ([192, 0, 2, 1], 7000).into(),
            )
        });
        let members: Vec<MapMember> = members.collect();
        // All have ended together: they come back one by one, and are waited for.
        let is_known = |member: &MapMember| self.map.member(member.id).map(|it| it.incarnation);
        let is_new = |member: &MapMember| is_known(member) != Some(member.incarnation);
        let mut old = self.map.members().iter();
        let is_missing = old.any(|old| members.iter().all(|member| member.id != old.id));
        if members.is_empty() || !members.iter().all(is_new) {
            self.all_new = None;
        } else {
            let since = *self.all_new.get_or_insert(self.now);
            if is_missing && self.now < since + REJOIN_WAIT {
                return;
            }
        }
        let is_same = members == self.map.members() && self.raised == self.map.generation();
        if is_same || members.is_empty() || self.now < self.map_changed + Duration::from_secs(1) {
            return;
        }
        let map = ClusterMap::new(epoch, self.raised, members).expect("a map");
        let seat = |member: &MapMember| Seat {
            node: member.id,
            incarnation: member.incarnation,
            core: lunette_runtime_core::ids::CoreIndex(0),
        };
        for member in self.map.members() {
            let is_gone =
                map.member(member.id).map(|now| now.incarnation) != Some(member.incarnation);
            if is_gone {
                self.oracle.on_absent(seat(member), self.now);
            }
        }
        for member in map.members() {
            self.oracle.on_present(seat(member), self.now);
        }
        if map.generation() > self.map.generation() {
            self.oracle.on_raise(self.now, map.generation());
        }
        self.map = map;
        self.map_changed = self.now;
    }

    /// The newest map is on its way to a node's cores. Some maps are missed.
    fn tell_map(&mut self, index: usize) {
        self.nodes[index].map = self.map.clone();
        let node_us = 100 + u64::from(self.random.below(120_000));
        for core in 0..self.nodes[index].cores.len() {
            let us = node_us + u64::from(self.random.below(3000));
            let map = self.map.clone();
            let incarnation = self.nodes[index].incarnation;
            self.after(
                us,
                Event::Map {
                    node: index,
                    incarnation,
                    core,
                    map,
                },
            );
        }
        for asker in 0..self.askers.len() {
            if self.askers[asker].beside == index {
                let map = self.map.clone();
                self.after(node_us, Event::AskerMap { asker, map });
            }
        }
    }
}
