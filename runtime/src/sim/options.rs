//! The knobs of a simulated world, and how often each of its faults occurred.

use std::time::Duration;

/// How a simulated network and its cores behave when nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldOptions {
    /// Least and most time that bytes take from one host to another.
    pub latency: (Duration, Duration),
    /// Bytes per second of each connection, each way.
    pub bytes_per_second: u64,
    /// Bytes that a connection holds, each way, before its sender has to wait.
    pub window_bytes: usize,
    /// How long a turn of a core takes.
    pub turn: Duration,
    /// Whether it is drawn which of a core's ready tasks of a class runs next, instead of the one that
    /// has been ready for longest: no program may rely on that order.
    pub draws_tasks: bool,
    /// Most time from the event that wakes a core to its turn.
    pub wake_max: Duration,
    /// Most time from the cancelling of an operation to its end.
    pub cancel_max: Duration,
    /// How many receives of a thousand bring less than is there.
    pub short_receives_per_mille: u32,
    /// How many arrivals of a thousand are lost on the way and sent again, which delays what comes
    /// after them.
    pub losses_per_mille: u32,
    /// How many arrivals of a million have a bit changed that no checksum of the network noticed.
    pub damages_per_million: u32,
    /// The hosts' drives.
    pub disk: DiskOptions,
    /// After how long what was lost is sent again, first; each time twice as long.
    pub resend: Duration,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            latency: (Duration::from_micros(5), Duration::from_micros(60)),
            bytes_per_second: 3_000_000_000,
            window_bytes: 256 * 1024,
            turn: Duration::from_micros(2),
            draws_tasks: true,
            wake_max: Duration::from_micros(10),
            cancel_max: Duration::from_micros(50),
            short_receives_per_mille: 100,
            losses_per_mille: 1,
            damages_per_million: 0,
            disk: DiskOptions::default(),
            resend: Duration::from_millis(200),
        }
    }
}

/// How the drives of a world's hosts behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// Least and most time of an operation.
    pub latency: (Duration, Duration),
    /// Bytes that a drive holds.
    pub capacity_bytes: usize,
    /// How many reads, writes and syncs of a million fail. What a failed sync was to keep is kept or
    /// not.
    pub io_errors_per_million: u32,
    /// How many do less than asked, by whole sectors.
    pub short_operations_per_million: u32,
    /// How many writes are acknowledged and not done.
    pub lost_writes_per_million: u32,
    /// How many writes are done elsewhere in their file.
    pub misdirected_writes_per_million: u32,
    /// How many syncs are acknowledged and not done.
    pub lying_syncs_per_million: u32,
    /// How many reads find a bit changed, for good.
    pub rots_per_million: u32,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            latency: (Duration::from_micros(20), Duration::from_micros(200)),
            capacity_bytes: 64 << 20,
            io_errors_per_million: 0,
            short_operations_per_million: 0,
            lost_writes_per_million: 0,
            misdirected_writes_per_million: 0,
            lying_syncs_per_million: 0,
            rots_per_million: 0,
        }
    }
}

/// How often each fault occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it, and `list` spells them")]
pub struct FaultCounts {
    pub short_receives: u64,
    pub losses: u64,
    pub damages: u64,
    pub cuts: u64,
    pub held_by_a_cut: u64,
    pub resets: u64,
    pub refusals: u64,
    pub cancels_lost: u64,
    pub crashes: u64,
    pub power_losses: u64,
    pub half_open: u64,
    pub pauses: u64,
    pub slowed: u64,
    pub clock_jumps: u64,
    pub io_errors: u64,
    pub short_operations: u64,
    pub full_disks: u64,
    pub lost_writes: u64,
    pub misdirected_writes: u64,
    pub failed_syncs: u64,
    pub lying_syncs: u64,
    pub rots: u64,
    pub lost_sectors: u64,
}

impl FaultCounts {
    /// Those of processes and of the network, by name.
    #[must_use]
    pub const fn list(&self) -> [(&'static str, u64); 14] {
        [
            ("short_receives", self.short_receives),
            ("losses", self.losses),
            ("damages", self.damages),
            ("cuts", self.cuts),
            ("held_by_a_cut", self.held_by_a_cut),
            ("resets", self.resets),
            ("refusals", self.refusals),
            ("cancels_lost", self.cancels_lost),
            ("crashes", self.crashes),
            ("power_losses", self.power_losses),
            ("half_open", self.half_open),
            ("pauses", self.pauses),
            ("slowed", self.slowed),
            ("clock_jumps", self.clock_jumps),
        ]
    }

    /// How often a drive did not do what it said, or forgot what it had done: what follows is not its
    /// owner's fault.
    #[must_use]
    pub const fn lies(&self) -> u64 {
        self.lost_writes + self.misdirected_writes + self.lying_syncs + self.rots
    }

    /// Those of drives, by name.
    #[must_use]
    pub const fn list_of_disks(&self) -> [(&'static str, u64); 9] {
        [
            ("io_errors", self.io_errors),
            ("short_operations", self.short_operations),
            ("full_disks", self.full_disks),
            ("lost_writes", self.lost_writes),
            ("misdirected_writes", self.misdirected_writes),
            ("failed_syncs", self.failed_syncs),
            ("lying_syncs", self.lying_syncs),
            ("rots", self.rots),
            ("lost_sectors", self.lost_sectors),
        ]
    }
}
