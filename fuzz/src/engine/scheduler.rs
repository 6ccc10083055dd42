//! A scheduler and any events in any order that its driver's contract allows.
//!
//! ```text
//!   byte 0      rails less one (bits 0, 1); how often a slice is sent (bits 2, 3);
//!               whether the first rail is connected already (bit 4)
//!   then        events, each a code and its arguments
//! ```

use std::time::Duration;

use lunette_runtime_core::codec::{Reader, Truncated};
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::message::Refusal;
use lunette_transfer_proto::engine::scheduler::{
    Priority, Scheduler, SchedulerOptions, SliceId, TransferOptions,
};
use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::slices::Request;

use super::world::{Link, LinkState, World};

/// Most events of a script, so that one run stays short.
const EVENTS_MAX: usize = 256;
/// Transfers at a time: few, so that the bound is met.
const TRANSFERS_MAX: usize = 8;
/// Timers that may be due within one wait.
const TIMERS_MAX: usize = 4096;
/// Turns within which everything ends once nothing fails any more.
const TURNS_MAX: usize = 4096;
/// A rail that nobody needs is closed after so long.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// Requests have multiples of so many bytes.
const UNIT_BYTES: u64 = 3000;

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Transfers without a failure.
    pub succeeded: u32,
    /// Transfers with one.
    pub failed: u32,
    /// Transfers of which something may still land.
    pub unsettled: u32,
    /// Transfers that were cancelled.
    pub cancelled: u32,
    /// Transfers that were one too many.
    pub full: u32,
    /// Slices that were sent again.
    pub resent: u32,
    /// Slices that were refused.
    pub refused: u32,
    /// Slices that were lost.
    pub lost: u32,
    /// Reads that were stopped.
    pub stopped: u32,
    /// Connections that were ended at the peer.
    pub fenced: u32,
    /// Connections that were given up because nothing moved.
    pub stalls: u32,
    /// Connections that were closed because nobody needed them.
    pub idles: u32,
    /// Other engines that answered.
    pub replaced: u32,
}

/// Drives a scheduler with any bytes.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn scheduler(data: &[u8]) -> Reached {
    let mut script = Reader::new(data);
    let Ok(flags) = script.u8() else {
        return Reached::default();
    };
    let options = SchedulerOptions {
        attempts_max: 1 + u32::from(flags >> 2 & 3),
        transfers_max: TRANSFERS_MAX,
        idle_max: IDLE_MAX,
        ..SchedulerOptions::default()
    };
    let mut world = World::new(Scheduler::new(options, 1 + usize::from(flags & 3)));
    if flags & 0x10 != 0 {
        let connection = world.scheduler.adopt(0, world.now);
        world.links.insert((0, connection), LinkState::Up);
    }
    for _ in 0..EVENTS_MAX {
        if step(&mut world, &mut script).is_err() {
            break;
        }
        world.act();
    }
    settle(&mut world);
    world.reached
}

fn step(world: &mut World, script: &mut Reader<'_>) -> Result<(), Truncated> {
    match script.u8()? % 16 {
        0 | 1 => submit(world, script)?,
        2 => {
            let at = usize::from(script.u8()?).checked_rem(world.submitted.len());
            if let Some(at) = at {
                world.cancel(world.submitted[at]);
            }
        }
        3 | 4 => {
            if let Some(id) = flight(world, script, |_, _| true)? {
                world.answer(id);
            }
        }
        5 => refuse(world, script)?,
        6 => {
            // The network's doing: neither side knows yet.
            if let Some(link) = link(world, script, LinkState::Up)? {
                world.links.insert(link, LinkState::Broken);
            }
        }
        7 => {
            if let Some(link) = link(world, script, LinkState::Broken)? {
                world.fail(link);
            }
        }
        8 | 9 => {
            if let Some(id) = flight(world, script, is_cut)? {
                world.lose(id);
            }
        }
        10 => {
            let is_stopping = |world: &World, id| world.flights[&id].is_stopping;
            if let Some(id) = flight(world, script, is_stopping)? {
                world.stopped(id);
            }
        }
        11 => {
            if let Some(link) = link(world, script, LinkState::Connecting)? {
                match script.u8()? % 8 {
                    0 => world.replace(link),
                    1 | 2 => world.fail(link),
                    _ => world.connected(link),
                }
            }
        }
        12 | 13 => fenced(world, script)?,
        14 => wait(world, Duration::from_millis(script.u8()?.into())),
        _ => wait(world, Duration::from_millis(20) * u32::from(script.u8()?)),
    }
    Ok(())
}

fn is_cut(world: &World, id: SliceId) -> bool {
    let state = world.links[&world.flights[&id].link];
    matches!(state, LinkState::Broken | LinkState::Over)
}

/// One of the slices under way of which something is true.
fn flight(
    world: &World,
    script: &mut Reader<'_>,
    is_meant: impl Fn(&World, SliceId) -> bool,
) -> Result<Option<SliceId>, Truncated> {
    let meant = world.flights.keys().copied();
    let meant: Vec<SliceId> = meant.filter(|&id| is_meant(world, id)).collect();
    let at = usize::from(script.u8()?).checked_rem(meant.len());
    Ok(at.map(|at| meant[at]))
}

/// One of the connections in a state.
fn link(
    world: &World,
    script: &mut Reader<'_>,
    wanted: LinkState,
) -> Result<Option<Link>, Truncated> {
    let meant = world.links.iter();
    let meant: Vec<Link> = meant
        .filter_map(|(&link, &state)| (state == wanted).then_some(link))
        .collect();
    let at = usize::from(script.u8()?).checked_rem(meant.len());
    Ok(at.map(|at| meant[at]))
}

fn submit(world: &mut World, script: &mut Reader<'_>) -> Result<(), Truncated> {
    let flags = script.u8()?;
    let mut requests = Vec::new();
    for _ in 0..flags & 7 {
        let size = script.u8()?;
        requests.push(Request {
            way: if size & 1 == 0 { Way::Read } else { Way::Write },
            len_bytes: u64::from(size >> 1) * UNIT_BYTES,
        });
    }
    let deadline = match flags >> 3 & 7 {
        0..4 => Time::MAX,
        short => world.now + Duration::from_millis(40) * u32::from(short - 4),
    };
    let priority = if flags & 0x40 == 0 {
        Priority::Foreground
    } else {
        Priority::Background
    };
    let options = TransferOptions {
        priority,
        deadline,
        has_note: flags & 0x80 != 0,
    };
    world.submit(&requests, options);
    Ok(())
}

fn refuse(world: &mut World, script: &mut Reader<'_>) -> Result<(), Truncated> {
    let (chosen, why) = (flight(world, script, |_, _| true)?, script.u8()?);
    let refusal = Refusal::from_wire(u16::from(why >> 4)).unwrap_or(Refusal::Busy);
    if let Some(id) = chosen {
        // Peers may take exception to parts that there are not.
        world.refuse(id, refusal, usize::from(why & 15));
    }
    Ok(())
}

fn fenced(world: &mut World, script: &mut Reader<'_>) -> Result<(), Truncated> {
    let chosen = usize::from(script.u8()?);
    if let Some(at) = (chosen >> 2).checked_rem(world.fences.len()) {
        let link = world.fences.remove(at);
        world.fenced(link, chosen & 3 != 0);
    }
    Ok(())
}

/// Time passes, and timers fire when they are due.
fn wait(world: &mut World, time: Duration) {
    let until = world.now + time;
    for _ in 0..TIMERS_MAX {
        let due = world.scheduler.poll_timeout(world.now);
        let Some(due) = due.filter(|&due| due <= until) else {
            world.now = until;
            world.scheduler.on_timeout(until);
            return;
        };
        world.now = world.now.max(due);
        world.scheduler.on_timeout(world.now);
        world.act();
    }
    unreachable!("timers are due again and again at {:?}", world.now);
}

/// From here on nothing fails: everything ends soon, and nothing is left.
fn settle(world: &mut World) {
    world.act();
    for _ in 0..TURNS_MAX {
        let links: Vec<_> = world
            .links
            .iter()
            .map(|(&at, &state)| (at, state))
            .collect();
        for (link, state) in links {
            match state {
                LinkState::Connecting => world.connected(link),
                LinkState::Broken => world.fail(link),
                LinkState::Up | LinkState::Over => continue,
            }
            world.act();
        }
        for id in world.flights.keys().copied().collect::<Vec<_>>() {
            if is_cut(world, id) {
                world.lose(id);
            } else if world.flights[&id].is_stopping {
                world.stopped(id);
            } else {
                world.answer(id);
            }
            world.act();
        }
        for link in std::mem::take(&mut world.fences) {
            world.fenced(link, true);
            world.act();
        }
        if world.is_over() && world.fences.is_empty() {
            wait(world, IDLE_MAX);
            world.act();
            let due = world.scheduler.poll_timeout(world.now);
            assert_eq!(due, None, "nothing is left to wait for");
            let rails = world.scheduler.rails().iter();
            let left: u64 = rails.map(|rail| rail.under_way_bytes()).sum();
            assert_eq!(left, 0, "nothing is left under way");
            return;
        }
        wait(world, Duration::from_millis(50));
        world.act();
    }
    unreachable!("something never ends: {:?}", world.scheduler);
}
