//! What a node is to be, and what its cores are therefore.

use std::net::SocketAddr;

use lunette_kvstore_proto::placement::Member;
use lunette_kvstore_proto::shard::ShardLimits;
use lunette_runtime::arena::{ArenaOptions, HugePages};
use lunette_runtime::{CoreOptions, DriverChoice, Idle, Placement};
use lunette_runtime_core::ids::NodeId;
use lunette_transfer::adapters::RdmaOptions;

use crate::error::NodeError;
use crate::member::{ClusterOptions, TierOptions};

/// Bytes per entry that a core's tables are sized for; smaller objects meet the entry limit before
/// the memory limit.
const ENTRY_BYTES_MIN: u64 = 1024;
const ENTRIES_MIN: u64 = 1024;
const ENTRIES_MAX: u64 = 1 << 22;
/// Memory beyond the high watermark: staging buffers, and what fragmentation costs.
const ARENA_SLACK_BYTES: u64 = 64 * 1024 * 1024;
/// A core evicts down to this share below its high watermark.
const LOW_WATERMARK_SHARE: u64 = 256;
/// The same where a drive takes what leaves: so much is on its way there at a time, of small memory a quarter.
const DEMOTION_SHARE: u64 = 32;
const DEMOTION_BYTES_MIN: u64 = 64 << 20;
const DEMOTION_SHARE_MAX: u64 = 4;
/// Chunks of a core's own arena where its copies lie in another one: so that little is mapped beside them. The
/// longest payload fits, with room to spare.
const BESIDE_CHUNK_BYTES: usize = 128 * 1024 * 1024;

/// How far the pages of a core's memory are found before it is used: this share of it, within bounds.
const AHEAD_SHARE: u64 = 16;
const AHEAD_BYTES_MIN: u64 = 16 << 20;
const AHEAD_BYTES_MAX: u64 = 256 << 20;

/// When the system is to find pages for a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefault {
    /// When something first comes to lie there: who puts it waits for that.
    Never,
    /// Beside the cores, for a sixteenth of the memory beyond what has been used so far, and at least 16 and at most
    /// 256 MiB for each core: see [`Arena::touch_ahead`](lunette_runtime::arena::Arena::touch_ahead).
    #[default]
    Ahead,
    /// All of it, before the node serves.
    All,
}

/// What a node is to be.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its identity, stable for its life: homes of keys depend on it.
    pub id: NodeId,
    /// Its share of keys, relative to the other nodes' weights.
    pub weight: u32,
    /// Where its first core listens; the others get ports from the system. Port 0: any.
    pub listen: SocketAddr,
    /// Memory for resident objects, in bytes, over all cores: the high watermark. The process
    /// maps some more, for buffers and fragmentation.
    pub memory_bytes: u64,
    /// Its cores.
    pub placement: Placement,
    /// What its cores do when they have nothing to do.
    pub idle: Idle,
    /// How its cores reach the system.
    pub driver: DriverChoice,
    /// Most connections per core.
    pub connections_max: usize,
    /// Whether memory is backed with huge pages.
    pub huge_pages: HugePages,
    /// Whether memory is locked.
    pub lock_memory: bool,
    /// When the system is to find pages for the memory.
    pub prefault: Prefault,
    /// Whether clients and members on the same host may map the memory of its copies, for reading, and get what
    /// is long by copying it themselves, and others read it by their RDMA adapters where this node has some
    /// ([`rdma`](Self::rdma)). Of a member of a cluster only, and only where there is such a thing;
    /// those in another network namespace are sent the bytes all the same.
    pub one_sided: bool,
    /// RDMA: by default none. With adapters, each of its cores opens them, and what clients get that have some too
    /// is written to their memory, or read by them. Of a member of a cluster only.
    pub rdma: RdmaOptions,
    /// The cluster that it is to be a member of. Without, it is alone, and clients list such nodes.
    pub cluster: Option<ClusterOptions>,
    /// Drives that take what leaves memory. Of a member of a cluster only.
    pub tier: Option<TierOptions>,
}

impl NodeOptions {
    /// A node of one core with `memory_bytes`, listening on `listen`.
    #[must_use]
    pub fn new(id: NodeId, listen: SocketAddr, memory_bytes: u64) -> Self {
        Self {
            id,
            weight: 1,
            listen,
            memory_bytes,
            placement: Placement::Anywhere(1),
            idle: Idle::default(),
            driver: DriverChoice::default(),
            connections_max: 1024,
            huge_pages: HugePages::Transparent,
            lock_memory: false,
            prefault: Prefault::default(),
            one_sided: true,
            rdma: RdmaOptions::default(),
            cluster: None,
            tier: None,
        }
    }
}

impl NodeOptions {
    /// What each core of its runtime is to be.
    ///
    /// # Errors
    /// [`NodeError`]: memory and cores do not go together.
    pub fn core_options(&self) -> Result<CoreOptions, NodeError> {
        let limits = self.core_limits(self.placement.cores())?;
        Ok(core_options(self, limits))
    }

    /// Whether copies are kept in an arena of their own, which is shared.
    pub(super) const fn is_shared(&self) -> bool {
        self.one_sided && self.cluster.is_some()
    }

    /// What it is in a cluster map.
    pub(super) fn member(&self, cores: usize) -> Member {
        Member {
            id: self.id,
            weight: self.weight,
            cores: u16::try_from(cores).unwrap_or(u16::MAX),
        }
    }
}

impl NodeOptions {
    /// That each drive has one of so many cores.
    pub(super) fn check_drives(&self, cores: usize) -> Result<(), NodeError> {
        let drives = self.tier.as_ref().map_or(0, |tier| tier.places.len());
        if drives > cores {
            return Err(NodeError::DrivesBeyondCores { drives, cores });
        }
        Ok(())
    }

    /// What one of so many cores may hold.
    pub(super) fn core_limits(&self, cores: usize) -> Result<ShardLimits, NodeError> {
        let high = self.memory_bytes / (cores as u64).max(1);
        let free = if self.tier.is_some() {
            let wanted = (high / DEMOTION_SHARE).max(DEMOTION_BYTES_MIN);
            wanted.min(high / DEMOTION_SHARE_MAX)
        } else {
            high / LOW_WATERMARK_SHARE
        };
        let low = high - free;
        let entries = (high / ENTRY_BYTES_MIN).clamp(ENTRIES_MIN, ENTRIES_MAX);
        let entries = usize::try_from(entries).expect("bounded");
        Ok(ShardLimits::new(high, low, entries)?)
    }
}

fn core_options(options: &NodeOptions, limits: ShardLimits) -> CoreOptions {
    let mut arena = memory_options(options, limits);
    if options.is_shared() {
        arena.chunk_bytes = arena.chunk_bytes.min(BESIDE_CHUNK_BYTES);
    }
    CoreOptions {
        idle: options.idle,
        driver: options.driver,
        arena,
        ..CoreOptions::default()
    }
}

/// How far the pages of a core's memory are to be found before it is used.
pub(super) fn ahead_bytes(limits: ShardLimits) -> usize {
    let share = limits.high_watermark_bytes() / AHEAD_SHARE;
    let bytes = share.clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
    usize::try_from(bytes).expect("bounded")
}

/// The arena that a core's copies are in.
pub(super) fn memory_options(options: &NodeOptions, limits: ShardLimits) -> ArenaOptions {
    let resident = limits.high_watermark_bytes();
    let bytes_max = resident + resident / 8 + ARENA_SLACK_BYTES;
    ArenaOptions {
        bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        chunk_bytes: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        huge_pages: options.huge_pages,
        lock: options.lock_memory,
    }
}
