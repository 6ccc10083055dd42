//! What a seed makes of a cluster of members: its size, its memory, and what befalls it when.

use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_runtime::sim::Kill;
use lunette_runtime_core::random::SplitMix64;
use lunette_runtime_core::time::Time;

/// When clients begin: by then all are members.
pub(super) const LOAD_FROM: Time = at_ms(4_000);
const FAULTS_FROM_MS: u32 = 5_000;
const FAULTS_UNTIL_MS: u32 = 11_000;
pub(super) const FAULTS_UNTIL: Time = at_ms(FAULTS_UNTIL_MS);
/// So long after a fault everything works again that it befell.
pub(super) const SETTLES: Duration = Duration::from_secs(5);
/// Five seconds after the last fault everything works again, and what survived is found.
pub(super) const CALM_FROM: Time = at_ms(FAULTS_UNTIL_MS + 5_000);
pub(super) const LOAD_UNTIL: Time = at_ms(17_000);
/// A while after the load: whatever was under way has ended.
pub(super) const CHECKS_FROM: Time = at_ms(20_000);
pub(super) const END: Time = at_ms(35_000);

pub(super) const CLIENTS: u8 = 2;
const MEMORY_BYTES: u64 = 64 << 20;
/// Most cores of a node that is started again.
const CORES_MAX: u32 = 3;
/// Room for the longest values of all of a tenant's keys at one time, but not for many copies of each.
const QUOTA_BYTES_MIN: u32 = 20 << 10;

const fn at_ms(ms: u32) -> Time {
    Time::from_ns(ms as u64 * 1_000_000)
}

/// A process, or the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Node(u8),
    Client(u8),
    Coordinator,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A node is killed, and started again when it is over.
    Kill(u8, Kill),
    /// A node leaves in good order, ends, and is started again when it is over; by then it is killed if it has not left.
    Stop(u8),
    Cut {
        from: Who,
        to: Who,
        both_ways: bool,
    },
    Reset(Who, Who),
    Pause(u8),
    /// Each of its turns takes this many times longer.
    Slow(u8, u32),
    ClockJump(u8, Duration),
    /// The coordinator does nothing, and forgets nothing.
    Coordinator,
    /// The last client is killed, in the middle of whatever it does, and another begins in its place when it is over.
    KillClient(Kill),
    /// A client does nothing.
    PauseClient(u8),
    /// Each of a client's turns takes this many times longer.
    SlowClient(u8, u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) from: Time,
    pub(super) until: Time,
    pub(super) fault: Fault,
}

/// What a node is, from one start to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) cores: usize,
    pub(super) memory_bytes: u64,
    /// Whether it has moved to its other host, which has a drive of its own.
    pub(super) is_elsewhere: bool,
}

/// What a client may have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Means {
    /// Bounds, where they are not the usual ones: of connections, and of requests in flight to one core.
    pub(crate) connections_max: Option<usize>,
    pub(crate) in_flight_max: Option<u32>,
    /// How long it keeps a connection on which nothing is asked, where that is not long.
    pub(crate) idle_timeout: Option<Duration>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: u8,
    /// Of everything that is put.
    pub(super) namespace: NamespaceKind,
    /// Of each node.
    pub(super) cores: usize,
    /// Of each node. Little of it makes nodes evict.
    pub(super) memory_bytes: u64,
    /// Whether a node that is started again may be another one than it was, but for its name.
    pub(super) reshapes: bool,
    /// Whether the coordinator is killed where it would do nothing, and goes on from its file.
    pub(super) coordinator_dies: bool,
    /// Whether members know another coordinator as well, which is not there.
    pub(super) lacks_a_coordinator: bool,
    /// Whether members are in racks, of which each object is wanted in two.
    pub(super) has_racks: bool,
    /// Whether each core has a drive for what leaves memory, which fails now and then.
    pub(super) has_drives: bool,
    /// Most copies that a write asks for.
    pub(super) copies_max: u8,
    pub(super) losses_per_mille: u32,
    /// Whether one of the clients waits for little, where there is room for everything.
    pub(super) has_hasty: bool,
    pub(super) means: [Means; CLIENTS as usize],
    /// How much memory one of the tenants may have, from when on, if that is bounded at any time.
    pub(super) quotas: Rc<[(Time, Option<u64>)]>,
    /// When an operator removes everything, if one does, and whether by a client, which asks any member.
    pub(super) clear_at: Option<Time>,
    pub(super) clears_by_client: bool,
    /// When an operator has nodes emptied, and which, if one does.
    pub(super) retires: Vec<(Time, u8)>,
    pub(super) faults: Vec<Planned>,
}

impl Plan {
    /// Whether each node has room for everything, whosever it is.
    pub(super) fn is_roomy(&self) -> bool {
        self.memory_bytes == MEMORY_BYTES && self.quotas.is_empty()
    }

    /// What each node is at first.
    pub(super) const fn shape(&self) -> Shape {
        Shape {
            cores: self.cores,
            memory_bytes: self.memory_bytes,
            is_elsewhere: false,
        }
    }

    /// What a node is that is started again.
    pub(super) fn next_shape(&self, random: &mut SplitMix64) -> Shape {
        let cores = 1 + u64::from(random.below(CORES_MAX));
        // Not less for any of its cores.
        let shares = cores.max(2) + u64::from(random.below(2));
        let drawn = Shape {
            cores: usize::try_from(cores).expect("few"),
            memory_bytes: self.memory_bytes / 2 * shares,
            is_elsewhere: random.below(2) == 0,
        };
        if self.reshapes { drawn } else { self.shape() }
    }

    /// When something goes wrong, and until when that has consequences.
    pub(super) fn unrest(&self) -> Rc<[(Time, Time)]> {
        let faults = self.faults.iter();
        let faults = faults.map(|planned| (planned.from, planned.until));
        // The map changes, and what is on its way then may be lost.
        let changes = self.clear_at.into_iter();
        let changes = changes.chain(self.retires.iter().map(|(at, _)| *at));
        let unrest = faults.chain(changes.map(|at| (at, at)));
        unrest
            .map(|(from, until)| (from, until + SETTLES))
            .collect()
    }

    /// What this seed makes.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x746f_776e);
        let nodes = 3 + small(&mut random, 5);
        let is_tight = random.below(4) == 0;
        let kill = killing(&mut random, nodes);
        let cut = cutting(&mut random, nodes);
        let mut faults = vec![planned(&mut random, kill), planned(&mut random, cut)];
        for _ in 0..random.below(4) {
            let fault = any(&mut random, nodes);
            faults.push(planned(&mut random, fault));
        }
        let draws_drives = SplitMix64::new(seed ^ 0x6472_6976).below(4) < 3;
        let has_drives = is_tight && draws_drives;
        faults.extend(drawn_apart(seed, nodes, has_drives));
        let mut of_quota = SplitMix64::new(seed ^ 0x7175_6f74);
        let has_quota = of_quota.below(3) == 0;
        let quotas = if has_quota {
            quotas(&mut of_quota)
        } else {
            Vec::new()
        };
        let is_cache = SplitMix64::new(seed ^ 0x6361_6368).below(3) == 0;
        Self {
            nodes,
            namespace: if is_cache {
                NamespaceKind::Cache
            } else {
                NamespaceKind::Strict
            },
            quotas: quotas.into(),
            has_drives,
            reshapes: SplitMix64::new(seed ^ 0x7368_6170).below(3) == 0,
            coordinator_dies: !has_drives && SplitMix64::new(seed ^ 0x6469_6573).below(2) == 0,
            lacks_a_coordinator: SplitMix64::new(seed ^ 0x6c61_636b).below(4) == 0,
            has_racks: SplitMix64::new(seed ^ 0x7261_636b).below(4) == 0,
            cores: 1 + usize::from(small(&mut random, 2)),
            memory_bytes: if is_tight { 10 << 10 } else { MEMORY_BYTES },
            copies_max: 1 + small(&mut random, 3),
            losses_per_mille: random.below(4),
            has_hasty: SplitMix64::new(seed ^ 0x6861_7374).below(3) == 0,
            means: means(seed),
            clear_at: (random.below(4) == 0).then(|| at_ms(FAULTS_FROM_MS + random.below(5_000))),
            clears_by_client: SplitMix64::new(seed ^ 0x636c_6561).below(2) == 0,
            retires: retiring(seed, nodes),
            faults,
        }
    }
}

/// In a quarter of the worlds one, and in a third of those others at the same time, of which one stays, as there would be no other.
fn retiring(seed: u64, nodes: u8) -> Vec<(Time, u8)> {
    let mut random = SplitMix64::new(seed ^ 0x7265_7469);
    if random.below(4) != 0 {
        return Vec::new();
    }
    let first_ms = FAULTS_FROM_MS + random.below(FAULTS_UNTIL_MS - FAULTS_FROM_MS);
    let first = small(&mut random, nodes);
    let mut retires = vec![(at_ms(first_ms), first)];
    if random.below(3) == 0 {
        let others = (0..nodes).filter(|node| *node != first);
        for node in others {
            let (is_left_out, later_ms) = (random.below(4) == 0, random.below(100));
            if !is_left_out {
                retires.push((at_ms(first_ms + later_ms), node));
            }
        }
    }
    retires
}

/// What each client may have: in two thirds of the worlds what they have by default.
fn means(seed: u64) -> [Means; CLIENTS as usize] {
    let mut random = SplitMix64::new(seed ^ 0x6d65_616e);
    if random.below(3) > 0 {
        return [Means::default(); CLIENTS as usize];
    }
    let mut draw = |few: [u32; 2]| few.get(random.below(3) as usize).copied();
    [(); CLIENTS as usize].map(|()| Means {
        connections_max: draw([2, 4]).map(|few| few as usize),
        // What is given up goes on for a while, and others wait behind it.
        in_flight_max: draw([4, 16]),
        idle_timeout: draw([5, 50]).map(|ms| Duration::from_millis(ms.into())),
    })
}

/// What befalls some worlds: drawn apart, so that those without are what they have been.
fn drawn_apart(seed: u64, nodes: u8, has_drives: bool) -> Vec<Planned> {
    let mut faults = Vec::new();
    let mut of_coordinator = SplitMix64::new(seed ^ 0x636f_6f72);
    if of_coordinator.below(4) == 0 {
        faults.push(planned(&mut of_coordinator, Fault::Coordinator));
    }
    let mut of_outages = SplitMix64::new(seed ^ 0x6f75_7461);
    if of_outages.below(8) == 0 {
        faults.extend(outages(&mut of_outages));
    }
    let mut of_stopping = SplitMix64::new(seed ^ 0x7374_6f70);
    if of_stopping.below(3) == 0 {
        for _ in 0..=of_stopping.below(3) {
            let stop = Fault::Stop(small(&mut of_stopping, nodes));
            faults.push(planned(&mut of_stopping, stop));
        }
    }
    let mut of_clients = SplitMix64::new(seed ^ 0x636c_6965);
    if of_clients.below(3) == 0 {
        let how = [Kill::Crash, Kill::PowerLoss][of_clients.below(2) as usize];
        faults.push(planned(&mut of_clients, Fault::KillClient(how)));
    }
    if of_clients.below(3) == 0 {
        let pause = Fault::PauseClient(small(&mut of_clients, CLIENTS));
        faults.push(planned(&mut of_clients, pause));
    }
    if of_clients.below(4) == 0 {
        let client = small(&mut of_clients, CLIENTS);
        let slow = Fault::SlowClient(client, 10 << of_clients.below(7));
        faults.push(planned(&mut of_clients, slow));
    }
    let mut of_all = SplitMix64::new(seed ^ 0x616c_6c20);
    if of_all.below(if has_drives { 2 } else { 16 }) == 0 {
        faults.extend(killing_all(&mut of_all, nodes));
    }
    let mut of_leaving = SplitMix64::new(seed ^ 0x6c65_6176);
    if of_leaving.below(16) == 0 {
        faults.extend(stopping_all(&mut of_leaving, nodes));
    }
    faults
}

/// Most faults last for up to three seconds; some are long enough for everybody to go on without whom they
/// befall.
fn planned(random: &mut SplitMix64, fault: Fault) -> Planned {
    let (from, lasts) = if random.below(3) == 0 {
        (random.below(500), 4_500 + random.below(1_500))
    } else {
        let window = FAULTS_UNTIL_MS - FAULTS_FROM_MS - 50;
        (random.below(window), 50 + random.below(3_000))
    };
    let from = FAULTS_FROM_MS + from;
    let until = (from + lasts).min(FAULTS_UNTIL_MS);
    Planned {
        from: at_ms(from),
        until: at_ms(until),
        fault,
    }
}

/// The coordinator is away again and again, for less than a lease or more.
fn outages(random: &mut SplitMix64) -> Vec<Planned> {
    let mut outages = Vec::new();
    let mut from_ms = FAULTS_FROM_MS + random.below(1_000);
    while from_ms < FAULTS_UNTIL_MS {
        let until_ms = (from_ms + 100 + random.below(2_500)).min(FAULTS_UNTIL_MS);
        outages.push(Planned {
            from: at_ms(from_ms),
            until: at_ms(until_ms),
            fault: Fault::Coordinator,
        });
        from_ms = until_ms + 50 + random.below(1_500);
    }
    outages
}

fn killing(random: &mut SplitMix64, nodes: u8) -> Fault {
    let how = match random.below(2) {
        0 => Kill::Crash,
        _ => Kill::PowerLoss,
    };
    Fault::Kill(small(random, nodes), how)
}

/// All nodes are killed, at one time or nearly, and started again one after the other.
fn killing_all(random: &mut SplitMix64, nodes: u8) -> Vec<Planned> {
    let (from_ms, until_ms) = (FAULTS_FROM_MS + 500, FAULTS_UNTIL_MS - 3_500);
    let from_ms = from_ms + random.below(until_ms - from_ms);
    let (ends_ms, starts_ms) = (
        [1, 1, 400][random.below(3) as usize],
        1 + random.below(2_000),
    );
    let Fault::Kill(_, how) = killing(random, nodes) else {
        unreachable!("it kills");
    };
    let kills = (0..nodes).map(|node| Planned {
        from: at_ms(from_ms + random.below(ends_ms)),
        until: at_ms(from_ms + 500 + random.below(starts_ms)),
        fault: Fault::Kill(node, how),
    });
    kills.collect()
}

/// One from the beginning, and in half of the worlds others later, or none any more.
fn quotas(random: &mut SplitMix64) -> Vec<(Time, Option<u64>)> {
    let quota = |random: &mut SplitMix64| {
        let more = random.below(QUOTA_BYTES_MIN);
        Some(u64::from(QUOTA_BYTES_MIN + more))
    };
    let mut quotas = vec![(LOAD_FROM, quota(random))];
    for _ in 0..random.below(2) * (1 + random.below(4)) {
        let at = at_ms(FAULTS_FROM_MS + random.below(FAULTS_UNTIL_MS - FAULTS_FROM_MS));
        let is_none = random.below(4) == 0;
        quotas.push((at, quota(random).filter(|_| !is_none)));
    }
    quotas.sort_by_key(|(at, _)| *at);
    quotas
}

/// All nodes leave, at one time or one soon after the other, and are started again: for a while there is no member.
fn stopping_all(random: &mut SplitMix64, nodes: u8) -> Vec<Planned> {
    let from_ms = FAULTS_FROM_MS + 500 + random.below(2_000);
    let (spread_ms, lasts_ms) = (
        [1, 400][random.below(2) as usize],
        500 + random.below(2_000),
    );
    let stops = (0..nodes).map(|node| {
        let from_ms = from_ms + random.below(spread_ms);
        Planned {
            from: at_ms(from_ms),
            until: at_ms(from_ms + lasts_ms + random.below(500)),
            fault: Fault::Stop(node),
        }
    });
    stops.collect()
}

/// Two of which at least one is a node.
fn pair(random: &mut SplitMix64, nodes: u8) -> (Who, Who) {
    let one = small(random, nodes);
    let other = match random.below(4) {
        0 | 1 => Who::Coordinator,
        2 => Who::Node((one + 1 + small(random, nodes - 1)) % nodes),
        _ => Who::Client(small(random, CLIENTS)),
    };
    (Who::Node(one), other)
}

fn cutting(random: &mut SplitMix64, nodes: u8) -> Fault {
    let (one, other) = pair(random, nodes);
    let is_there = random.below(2) == 0;
    let (from, to) = if is_there { (one, other) } else { (other, one) };
    Fault::Cut {
        from,
        to,
        both_ways: random.below(2) == 0,
    }
}

fn any(random: &mut SplitMix64, nodes: u8) -> Fault {
    match random.below(7) {
        0 => killing(random, nodes),
        1 | 2 => cutting(random, nodes),
        3 => {
            let (one, other) = pair(random, nodes);
            Fault::Reset(one, other)
        }
        4 => Fault::Pause(small(random, nodes)),
        5 => Fault::Slow(small(random, nodes), 10 << random.below(7)),
        _ => {
            let ahead = Duration::from_millis(random.below(4000).into());
            Fault::ClockJump(small(random, nodes), ahead)
        }
    }
}

fn small(random: &mut SplitMix64, bound: u8) -> u8 {
    u8::try_from(random.below(bound.into())).expect("below a byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_world_has_a_kill_and_a_cut_and_all_faults_lie_in_their_window() {
        let mut kinds = [0; 11];
        for seed in 0..1000 {
            let plan = Plan::of(seed);
            let mut own = [0; 11];
            for planned in &plan.faults {
                assert!(planned.from >= at_ms(FAULTS_FROM_MS), "seed {seed}");
                assert!(planned.from < planned.until, "seed {seed}");
                assert!(planned.until <= FAULTS_UNTIL, "seed {seed}");
                let kind = match planned.fault {
                    Fault::Kill(..) => 0,
                    Fault::Cut { from, to, .. } => {
                        assert_ne!(from, to, "seed {seed}");
                        1
                    }
                    Fault::Reset(..) => 2,
                    Fault::Pause(_) => 3,
                    Fault::Slow(..) => 4,
                    Fault::ClockJump(..) => 5,
                    Fault::Coordinator => 6,
                    Fault::Stop(_) => 7,
                    Fault::KillClient(_) => 8,
                    Fault::PauseClient(_) => 9,
                    Fault::SlowClient(..) => 10,
                };
                own[kind] += 1;
                kinds[kind] += 1;
            }
            assert!(own[0] > 0 && own[1] > 0, "seed {seed}");
        }
        assert!(kinds.iter().all(|count| *count > 50), "{kinds:?}");
    }
}
