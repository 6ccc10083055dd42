//! What a seed makes of a cluster: sizes, load, and faults with their times.

use std::time::Duration;

use lunette_runtime::sim::DiskOptions;
use lunette_runtime_core::random::SplitMix64;

/// Nodes of a cluster.
pub const NODES: u8 = 3;
/// Clients of a cluster.
pub const CLIENTS: u8 = 2;
/// Members that the coordinator has.
pub const MEMBERS: u8 = 2;
/// Keys that are put and asked for.
pub const KEYS: u8 = 48;
/// Longest deadline of an operation, and of connecting.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(1);
/// When the first fault may begin.
const FAULTS_FROM: Duration = Duration::from_millis(300);
/// When the last fault is undone.
pub const FAULTS_UNTIL: Duration = Duration::from_secs(6);
/// From when on nothing fails: what was lost has been sent again, and connections are new.
pub const CALM_FROM: Duration = Duration::from_secs(11);
/// When a world ends.
pub const END: Duration = Duration::from_secs(14);

/// Of a world's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A node.
    Node(u8),
    /// A client.
    Client(u8),
    /// The coordinator.
    Coordinator,
    /// A member.
    Member(u8),
}

/// A fault, and how it is undone where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing gets from the first to the second; nor back, if so said.
    Cut {
        /// From here.
        from: Who,
        /// To there.
        to: Who,
        /// Nor back.
        both_ways: bool,
    },
    /// All connections between the two break.
    Reset(Who, Who),
    /// A process is killed, and started again.
    Crash(Who),
    /// A host loses its power, and gets it back.
    PowerLoss(Who),
    /// A process is stopped, and goes on.
    Pause(Who),
    /// A process is slow for a while, by so many times.
    Slow(Who, u32),
    /// A process's clocks jump ahead.
    ClockJump(Who, Duration),
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it begins.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What it is.
    pub fault: Fault,
}

/// What a seed makes of a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Cores of each node.
    pub cores: usize,
    /// Memory of each node in bytes: less than the values need, so that it evicts.
    pub memory_bytes: u64,
    /// Longest value in bytes.
    pub value_bytes_max: u32,
    /// Operations that each client has under way at a time.
    pub tasks: usize,
    /// Mean time between two operations of one of them.
    pub pause: Duration,
    /// Deadline of each operation, and of connecting: at times shorter than what is lost takes to
    /// be sent again.
    pub timeout: Duration,
    /// Arrivals of a thousand that are lost, until the faults are over.
    pub losses_per_mille: u32,
    /// Bytes that a connection holds before its sender waits.
    pub window_bytes: usize,
    /// Most time that the cancelling of an operation takes.
    pub cancel_max: Duration,
    /// Arrivals of a million in which the network changes a bit, until the faults are over.
    pub damages_per_million: u32,
    /// The coordinator's drive.
    pub drive: DiskOptions,
    /// Whether what goes to and from the coordinator is sealed: where the network damages, it is.
    pub is_sealed: bool,
    /// Mean time between two questions of a member.
    pub account_pause: Duration,
    /// Most bytes of a value that a member puts, beyond the shortest.
    pub account_bytes_max: u32,
    /// The faults, by time.
    pub faults: Vec<Planned>,
}

impl Plan {
    /// What this seed makes.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x706c_616e);
        let count = random.below(7);
        let mut faults: Vec<Planned> = (0..count).map(|_| planned(&mut random, fault)).collect();
        let count = random.below(6);
        faults.extend((0..count).map(|_| planned(&mut random, coordination_fault)));
        faults.sort_by_key(|planned| planned.at);
        let cores = 1 + random.below(2);
        let value_bytes_max = 1 << (6 + random.below(10));
        // A few values per core, and some more.
        let core_bytes = (value_bytes_max * (3 + random.below(20))).max(16 * 1024);
        let damages_per_million = if random.below(4) == 0 { 2000 } else { 0 };
        Self {
            cores: cores as usize,
            memory_bytes: u64::from(cores) * u64::from(core_bytes),
            value_bytes_max,
            tasks: 1 + random.below(4) as usize,
            pause: Duration::from_millis(u64::from(5 + random.below(40))),
            timeout: TIMEOUT_MAX / if random.below(2) == 0 { 10 } else { 1 },
            losses_per_mille: 1 << random.below(5),
            window_bytes: 4096 << random.below(7),
            cancel_max: Duration::from_micros(50 * 10_u64.pow(random.below(5))),
            damages_per_million,
            drive: drive(&mut random),
            is_sealed: damages_per_million > 0 || random.below(4) == 0,
            account_pause: Duration::from_millis(u64::from(40_u32 << random.below(4))),
            account_bytes_max: if random.below(2) == 0 { 0 } else { 3000 },
            faults,
        }
    }
}

fn planned(random: &mut SplitMix64, fault: fn(&mut SplitMix64) -> Fault) -> Planned {
    let window_ms = millis(FAULTS_UNTIL - FAULTS_FROM);
    let at_ms = random.below(window_ms);
    // Short ones are as likely as long ones.
    let longest_ms = (window_ms - at_ms).max(2);
    let halvings = random.below(8);
    let lasts_ms = 1 + random
        .below((longest_ms >> halvings).max(1))
        .min(longest_ms - 1);
    Planned {
        at: FAULTS_FROM + Duration::from_millis(at_ms.into()),
        lasts: Duration::from_millis(lasts_ms.into()),
        fault: fault(random),
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).expect("seconds")
}

fn fault(random: &mut SplitMix64) -> Fault {
    let node = Who::Node(small(random, NODES));
    let client = Who::Client(small(random, CLIENTS));
    let any = if random.below(3) == 0 { client } else { node };
    match random.below(8) {
        0 | 1 => {
            let (from, to) = if random.below(2) == 0 {
                (client, node)
            } else {
                (node, client)
            };
            let both_ways = random.below(2) == 0;
            Fault::Cut {
                from,
                to,
                both_ways,
            }
        }
        2 => Fault::Reset(client, node),
        3 => Fault::Crash(any),
        4 => Fault::PowerLoss(any),
        5 => Fault::Pause(any),
        6 => Fault::Slow(any, 10 << random.below(7)),
        _ => Fault::ClockJump(any, Duration::from_millis(random.below(8000).into())),
    }
}

/// Of the coordinator and its members. Power cuts come most often: they are what its file is for.
fn coordination_fault(random: &mut SplitMix64) -> Fault {
    let member = Who::Member(small(random, MEMBERS));
    match random.below(10) {
        0 => Fault::Crash(Who::Coordinator),
        1..5 => Fault::PowerLoss(Who::Coordinator),
        5 => {
            let (from, to) = if random.below(2) == 0 {
                (member, Who::Coordinator)
            } else {
                (Who::Coordinator, member)
            };
            let both_ways = random.below(2) == 0;
            Fault::Cut {
                from,
                to,
                both_ways,
            }
        }
        6 => Fault::Pause(Who::Coordinator),
        7 => Fault::Slow(Who::Coordinator, 10 << random.below(7)),
        8 => Fault::Reset(member, Who::Coordinator),
        _ => Fault::Crash(member),
    }
}

/// A good drive, one that fails, one that lies, or one that does both.
fn drive(random: &mut SplitMix64) -> DiskOptions {
    let kind = random.below(4);
    let (fails, lies) = (kind & 1 != 0, kind & 2 != 0);
    let slowness = 1 << random.below(10);
    let mut often = |is_asked: bool, per_million: u32| {
        let rate = per_million >> random.below(4);
        if is_asked { rate } else { 0 }
    };
    DiskOptions {
        latency: (
            Duration::from_micros(20) * slowness,
            Duration::from_micros(200) * slowness,
        ),
        io_errors_per_million: often(fails, 20_000),
        short_operations_per_million: often(fails, 400_000),
        lost_writes_per_million: often(lies, 20_000),
        misdirected_writes_per_million: often(lies, 20_000),
        lying_syncs_per_million: often(lies, 50_000),
        rots_per_million: often(lies, 200_000),
        capacity_bytes: if fails && random.below(2) == 0 {
            20 * 1024
        } else {
            DiskOptions::default().capacity_bytes
        },
    }
}

fn small(random: &mut SplitMix64, bound: u8) -> u8 {
    u8::try_from(random.below(bound.into())).expect("below a byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_lie_in_their_window_and_are_of_every_kind() {
        let mut kinds = [0; 7];
        for seed in 0..2000 {
            for planned in Plan::of(seed).faults {
                assert!(planned.at >= FAULTS_FROM, "seed {seed}");
                let end = planned.at + planned.lasts;
                assert!(
                    end <= FAULTS_UNTIL + Duration::from_millis(1),
                    "seed {seed}"
                );
                let kind = match planned.fault {
                    Fault::Cut { .. } => 0,
                    Fault::Reset(..) => 1,
                    Fault::Crash(_) => 2,
                    Fault::PowerLoss(_) => 3,
                    Fault::Pause(_) => 4,
                    Fault::Slow(..) => 5,
                    Fault::ClockJump(..) => 6,
                };
                kinds[kind] += 1;
            }
        }
        assert!(kinds.iter().all(|count| *count > 100), "{kinds:?}");
    }
}
