//! Quotas among cores that come and go, with messages that are late or lost: what may be used stays within the quota, and
//! when all is calm again each core has what it needs, or as much as any other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lunette_cluster_proto::map::{ClusterMap, Epoch, MapMember};
use lunette_kvstore_proto::credit::{
    Borrower, CreditAction, CreditNews, Lender, PIECE_BYTES_MIN, lender_of,
};
use lunette_kvstore_proto::placement::{Seat, has_seat, seats};
use lunette_kvstore_proto::tenant::TenantTag;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;

const NODES: u64 = 4;
const TENANT: TenantTag = TenantTag(7);
const QUOTA_BYTES: u64 = 100 * PIECE_BYTES_MIN;
/// Less than a core's fair share: nobody's is made larger, so that one fits.
const PUT_BYTES_MAX: u64 = QUOTA_BYTES / 8;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A core is to have so many bytes more.
    Put(usize, u64),
    /// It frees so many.
    Free(usize, u64),
    /// The nth message under way arrives, or is lost.
    Deliver(usize),
    Lose(usize),
    /// Milliseconds pass.
    Tick(u64),
    /// A core learns of the newest map.
    Learn(usize),
    /// The next map is with, or without, this node. One that was without starts anew, or has only been away.
    Move(u64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<usize>(), 1..PUT_BYTES_MAX).prop_map(|(core, bytes)| Step::Put(core, bytes)),
        3 => (any::<usize>(), 1..QUOTA_BYTES / 2).prop_map(|(core, bytes)| Step::Free(core, bytes)),
        16 => any::<usize>().prop_map(Step::Deliver),
        1 => any::<usize>().prop_map(Step::Lose),
        6 => (1_u64..150).prop_map(Step::Tick),
        4 => any::<usize>().prop_map(Step::Learn),
        1 => (1..=NODES, any::<bool>()).prop_map(|(node, is_new)| Step::Move(node, is_new)),
    ]
}

struct Core {
    borrower: Borrower,
    lender: Lender,
    used_bytes: u64,
    epoch: Epoch,
}

struct World {
    now: Time,
    map: ClusterMap,
    lives: BTreeMap<u64, u64>,
    cores: BTreeMap<Seat, Core>,
    under_way: Vec<(Seat, Epoch, Seat, CreditNews)>,
    /// Some core may have what its lender does not know of: one that was away.
    is_excused: bool,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: Time::ZERO,
            map: ClusterMap::default(),
            lives: (1..=NODES).map(|node| (node, 1)).collect(),
            cores: BTreeMap::new(),
            under_way: Vec::new(),
            is_excused: false,
        };
        world.change_map((1..=NODES).collect());
        world.all_learn();
        world
    }

    fn change_map(&mut self, nodes: BTreeSet<u64>) {
        let members = nodes.into_iter().map(|node| MapMember {
            cores: 1 + u16::from(node == 2),
            ..MapMember::new(
                NodeId(node),
                self.lives[&node],
                "192.0.2.1:7000".parse().expect("an address"),
            )
        });
        let epoch = Epoch(self.map.epoch().0 + 1);
        self.map = ClusterMap::new(epoch, 0, members.collect()).expect("a map");
        for seat in seats(&self.map) {
            self.cores.entry(seat).or_insert_with(|| Core {
                borrower: Borrower::default(),
                lender: Lender::new(seat),
                used_bytes: 0,
                epoch: Epoch::default(),
            });
        }
    }

    fn nth(&self, nth: usize) -> Seat {
        let seats: Vec<Seat> = self.cores.keys().copied().collect();
        seats[nth % seats.len()]
    }

    fn on(&mut self, seat: Seat, tell: impl FnOnce(&mut Core, Time, &mut Vec<CreditAction>)) {
        let mut out = Vec::new();
        let core = self.cores.get_mut(&seat).expect("a core");
        tell(core, self.now, &mut out);
        let epoch = core.epoch;
        for action in out {
            if let CreditAction::Tell(to, news) = action {
                self.under_way.push((seat, epoch, to, news));
            }
        }
    }

    fn learn(&mut self, seat: Seat) {
        let map = self.map.clone();
        let quotas = BTreeMap::from([(TENANT, QUOTA_BYTES)]);
        self.on(seat, |core, now, out| {
            let used_bytes = core.used_bytes;
            core.epoch = map.epoch();
            core.lender.on_map(now, &map, out);
            core.borrower.on_map(now, &map, |_| used_bytes, out);
            core.lender.on_quotas(now, &quotas, out);
            core.borrower.on_quotas(now, &quotas, |_| used_bytes, out);
        });
    }

    fn all_learn(&mut self) {
        let seats: Vec<Seat> = self.cores.keys().copied().collect();
        seats.into_iter().for_each(|seat| self.learn(seat));
    }

    fn put(&mut self, seat: Seat, bytes: u64) {
        self.on(seat, |core, now, out| {
            let used_bytes = core.used_bytes;
            (core.borrower).want(now, TENANT, (used_bytes, bytes), out);
            // One that has learnt of no map yet serves nobody.
            let Some(credit) = core.borrower.credit(TENANT) else {
                return;
            };
            if used_bytes + bytes <= credit.max_bytes {
                core.used_bytes += bytes;
            } else if credit.is_last && bytes <= credit.max_bytes {
                // What is in the way leaves.
                core.used_bytes = credit.max_bytes;
            }
        });
    }

    fn deliver(&mut self, (from, epoch, to, news): (Seat, Epoch, Seat, CreditNews)) {
        if !self.cores.contains_key(&to) {
            return;
        }
        self.on(to, |core, now, out| {
            let used_bytes = core.used_bytes;
            core.lender.on_news(now, (from, epoch), news, out);
            (core.borrower).on_news(now, from, news, |_| used_bytes, out);
            // What is beyond its credit leaves in time.
        });
    }

    fn tick(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
        let seats: Vec<Seat> = self.cores.keys().copied().collect();
        for seat in seats {
            self.on(seat, |core, now, out| {
                if let Some(credit) = core.borrower.credit(TENANT) {
                    core.used_bytes = core.used_bytes.min(credit.max_bytes);
                }
                let used_bytes = core.used_bytes;
                core.borrower.on_tick(now, |_| used_bytes, out);
                core.lender.on_tick(now, out);
            });
        }
    }

    fn do_move(&mut self, node: u64, is_new: bool) {
        let mut nodes: BTreeSet<u64> = self
            .map
            .members()
            .iter()
            .map(|member| member.id.0)
            .collect();
        if !nodes.remove(&node) {
            nodes.insert(node);
        } else if nodes.is_empty() {
            return;
        } else if is_new {
            self.cores.retain(|seat, _| seat.node.0 != node);
            *self.lives.get_mut(&node).expect("a node") += 1;
        } else {
            self.is_excused = true;
        }
        self.change_map(nodes);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Put(nth, bytes) => self.put(self.nth(nth), bytes),
            Step::Free(nth, bytes) => {
                let seat = self.nth(nth);
                let core = self.cores.get_mut(&seat).expect("a core");
                core.used_bytes = core.used_bytes.saturating_sub(bytes);
            }
            Step::Deliver(nth) => {
                if let Some(nth) = nth.checked_rem(self.under_way.len()) {
                    let message = self.under_way.swap_remove(nth);
                    self.deliver(message);
                }
            }
            Step::Lose(nth) => {
                if let Some(nth) = nth.checked_rem(self.under_way.len()) {
                    self.under_way.swap_remove(nth);
                }
            }
            Step::Tick(ms) => self.tick(ms),
            Step::Learn(nth) => self.learn(self.nth(nth)),
            Step::Move(node, is_new) => self.do_move(node, is_new),
        }
        let mut lenders = self.cores.values().map(|core| &core.lender);
        self.is_excused |= lenders.any(|lender| lender.lends_unheard(self.now, TENANT));
    }

    /// What may be used, and is.
    fn all_bytes(&self) -> u64 {
        let cores = self.cores.values();
        let bytes = cores.map(|core| {
            let credit = core.borrower.credit(TENANT);
            credit
                .map_or(0, |credit| credit.max_bytes)
                .max(core.used_bytes)
        });
        bytes.sum()
    }

    /// Everything arrives, and all cores want so much.
    fn calm_down(&mut self, wants: &[u64]) {
        self.cores.retain(|&seat, _| has_seat(&self.map, seat));
        self.all_learn();
        for turn in 0..600 {
            self.tick(20);
            let messages = std::mem::take(&mut self.under_way);
            messages
                .into_iter()
                .for_each(|message| self.deliver(message));
            if turn > 580 {
                // What is under way arrives.
                continue;
            }
            let seats: Vec<Seat> = self.cores.keys().copied().collect();
            for (seat, want_bytes) in seats.into_iter().zip(wants) {
                let used_bytes = self.cores[&seat].used_bytes;
                let more = want_bytes.saturating_sub(used_bytes);
                if more > 0 {
                    self.put(seat, more.min(PIECE_BYTES_MIN));
                } else {
                    self.cores.get_mut(&seat).expect("a core").used_bytes = *want_bytes;
                }
            }
        }
    }
}

/// An object of which three fit, and some cores of which each is to keep one.
const LARGE_BYTES: u64 = QUOTA_BYTES / 3 - PIECE_BYTES_MIN;

/// However the quota is divided by then: what is put last finds room somewhere, and there.
fn large_objects_find_room(world: &mut World, turns: &[usize]) -> Result<(), TestCaseError> {
    for &turn in turns {
        let seat = world.nth(turn);
        let is_put = |world: &mut World| {
            world.cores.get_mut(&seat).expect("a core").used_bytes = 0;
            world.put(seat, LARGE_BYTES);
            world.cores[&seat].used_bytes > 0
        };
        let mut is_done = false;
        for _ in 0..400 {
            world.tick(20);
            let messages = std::mem::take(&mut world.under_way);
            messages
                .into_iter()
                .for_each(|message| world.deliver(message));
            is_done = is_put(world);
            if is_done {
                break;
            }
        }
        prop_assert!(is_done, "{:?}", seat);
        prop_assert!(world.all_bytes() <= QUOTA_BYTES, "{}", world.all_bytes());
    }
    Ok(())
}

/// All want to keep one at the same time, of which three fit: each has its turn.
fn each_has_its_turn(world: &mut World) -> Result<(), TestCaseError> {
    let mut waiting: BTreeSet<Seat> = world.cores.keys().copied().collect();
    for core in world.cores.values_mut() {
        core.used_bytes = 0;
    }
    for _ in 0..1000 {
        world.tick(20);
        let messages = std::mem::take(&mut world.under_way);
        messages
            .into_iter()
            .for_each(|message| world.deliver(message));
        for seat in waiting.clone() {
            world.put(seat, LARGE_BYTES);
            if world.cores[&seat].used_bytes >= LARGE_BYTES {
                waiting.remove(&seat);
            }
        }
        prop_assert!(world.all_bytes() <= QUOTA_BYTES, "{}", world.all_bytes());
    }
    prop_assert_eq!(waiting, BTreeSet::new());
    Ok(())
}

fn run(steps: Vec<Step>, wants: &[u64]) -> Result<World, TestCaseError> {
    let mut world = World::new();
    for step in steps {
        world.step(step);
        if !world.is_excused {
            prop_assert!(world.all_bytes() <= QUOTA_BYTES, "{:?}", step);
        }
    }
    world.calm_down(wants);
    prop_assert!(world.all_bytes() <= QUOTA_BYTES, "{}", world.all_bytes());
    let lender = lender_of(&world.map, TENANT).expect("there is a home");
    let lent_bytes = world.cores[&lender].lender.lent_bytes(TENANT);
    prop_assert_eq!(lent_bytes, Some(world.all_bytes()));
    let count = world.cores.len() as u64;
    let ahead = 2 * PIECE_BYTES_MIN * 4;
    let is_enough =
        wants.iter().take(world.cores.len()).sum::<u64>() + count * ahead <= QUOTA_BYTES;
    for (core, &want_bytes) in world.cores.values().zip(wants) {
        let fair_bytes = if is_enough {
            want_bytes
        } else {
            want_bytes.min(QUOTA_BYTES / count)
        };
        prop_assert!(
            core.used_bytes + PIECE_BYTES_MIN >= fair_bytes,
            "{} of {}",
            core.used_bytes,
            fair_bytes
        );
    }
    Ok(world)
}

proptest! {
    #[test]
    fn what_may_be_used_stays_within_the_quota(
        steps in vec(step(), 0..400),
        wants in vec(0..QUOTA_BYTES, 5),
        turns in vec(0_usize..5, 0..12),
    ) {
        let mut world = run(steps, &wants)?;
        large_objects_find_room(&mut world, &turns)?;
        each_has_its_turn(&mut world)?;
    }
}
