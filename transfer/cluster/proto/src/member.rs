//! A member: it joins, keeps its lease alive, knows the map and the quotas, proposes the next map, and
//! leaves.
//!
//! ```text
//!   Joining --(registered, all read)--> Joined --leave--> Leaving --(revoked)--> Left
//!      ^  |                               |
//!      |  +--> Refused (wrong cluster,    |
//!      |       version, identity taken)   |
//!      +---------(lease lost)-------------+
//! ```
//!
//! The machine asks the coordinator one thing after the other and beside that keeps its lease alive
//! and watches. Every ask may fail, be answered late, or have been done although it failed: what is
//! asked is safe to ask again. While the coordinator is away nothing is given up but the lease; the
//! [`Fence`] says what may still be served.
//!
//! A member that starts draws a new incarnation. If its identity is still registered, another
//! process has it, or it had it itself before a crash: it waits for twice as long as that lease can last
//! without being renewed, from when the coordinator was last away, and is refused if the lease
//! outlives that. If it knows that what is registered is a life that has ended, it takes that away and
//! does not wait.

mod machine;
mod quotas;
mod record;
mod view;

use core::time::Duration;

use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;
use thiserror::Error;

use crate::coordination::{Ask, WatchFrom};
#[cfg(doc)]
use crate::fence::Fence;
use crate::map::MapMember;
use crate::quota::{QUOTA_NAME_BYTES_MAX, QUOTAS_MAX, QuotaFault};

pub use machine::Member;
pub use record::{CLUSTER_NAME_BYTES_MAX, ClusterIdentity, RecordFault, map_key};

/// Least time between two changes of the map.
pub const MAP_CHANGE_MIN: Duration = Duration::from_secs(1);
/// How much longer each next member waits before it proposes: usually the first one's is enough.
pub const PROPOSAL_STEP: Duration = Duration::from_millis(20);
/// Longest such wait.
pub const PROPOSAL_WAIT_MAX: Duration = Duration::from_millis(500);
/// Shortest and longest pause before something that failed is asked again.
pub const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
pub const RETRY_MAX: Duration = Duration::from_secs(2);
/// How many times in a row what is under the prefix may make no sense before a node that wants to join
/// gives up.
pub const BAD_RECORDS_MAX: u32 = 5;
/// Most former lives that a member is told of.
pub const FORMER_MAX: usize = 16;
/// Most changes of quotas that wait at a member.
pub const QUOTA_CHANGES_MAX: usize = 16;
/// Longest wait for one answer.
pub const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);

/// Who a member is, and how it behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOptions {
    /// The name of the cluster, at most [`CLUSTER_NAME_BYTES_MAX`] bytes.
    pub cluster: String,
    /// What all keys of the cluster begin with.
    pub prefix: String,
    /// Itself, as the map is to have it. Its incarnation is new with each start.
    pub member: MapMember,
    /// Oldest and newest version of the nodes' protocols that it speaks.
    pub versions: (u8, u8),
    /// Incarnations of this identity that have surely ended, at most [`FORMER_MAX`]: what they have
    /// registered is taken away and not waited for. Who names one that lives has two that serve.
    pub former: Vec<u64>,
    /// How long its lease is, in seconds.
    pub lease_ttl_s: u32,
    /// How long members are waited for when all leases have expired together.
    pub rejoin_wait: Duration,
    /// Fixes the names of leases and the jitter of pauses.
    pub seed: u64,
}

/// What a member asked for, until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// What names a change of a quota until it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaTicket(pub u64);

/// Whether a member is emptied, or is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draining {
    /// It takes objects while it is in the map; also if it was to be emptied, and that was not done in time.
    #[default]
    No,
    /// It is to be emptied, which is tried before this time.
    Wanted {
        /// When it is given up.
        until: Time,
    },
    /// It was to be emptied, and is not: no other member takes objects.
    Last,
    /// The coordinator has it as one that is emptied: the next map has it without weight.
    Yes,
}

/// What is to be done for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the coordinator, and hand in what came of it by `until` at the latest.
    Ask {
        /// Its name.
        op: OpId,
        /// What to ask.
        ask: Ask,
        /// When to give up.
        until: Time,
    },
    /// Watch, instead of what was watched before.
    Watch {
        /// Its name.
        op: OpId,
        /// What to watch.
        from: WatchFrom,
    },
    /// The map is another one.
    MapChanged,
    /// The quotas are others.
    QuotasChanged,
    /// The coordinator has made this change of a quota.
    QuotaSet(QuotaTicket),
    /// This change of a quota is not tried any more. It may have been made.
    QuotaGivenUp(QuotaTicket),
    /// What lies there as this tenant's quota is none, and it counts as having none. Whoever keeps a
    /// log should say so: it is told once for each time that it was written.
    QuotaIgnored {
        /// Whose quota it would be.
        name: String,
        /// What is wrong with it.
        fault: QuotaFault,
    },
    /// It cannot become a member. Nothing follows.
    Refused(Refusal),
    /// It is a member no more. Nothing follows.
    Left,
}

/// Why a quota will not be set.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum QuotaRefusal {
    /// No tenant has such a name.
    #[error("a tenant's name has 1 to {QUOTA_NAME_BYTES_MAX} bytes")]
    BadName,
    /// A quota is above 0. Remove it instead, or remove what the tenant has.
    #[error("a quota of 0 bytes")]
    NoBytes,
    /// So many others have one: remove one of them before.
    #[error("{QUOTAS_MAX} others have a quota")]
    TooMany,
    /// So many changes wait already. Ask again when one of them was made.
    #[error("{QUOTA_CHANGES_MAX} changes of quotas are waiting")]
    Busy,
    /// It is a member no more, or leaves, or never was one. Ask another node.
    #[error("this node is not a member any more")]
    Left,
    /// No coordinator has said in time that it was made. It may have been, before another has set the same quota.
    #[error("it is not known whether the quota was changed in time")]
    Late,
}

impl QuotaRefusal {
    /// Whether a limit was met that may have room later.
    #[must_use]
    pub const fn is_backpressure(self) -> bool {
        matches!(self, Self::Busy)
    }
}

/// Why a node cannot be a member. What it was told to be is at fault.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The prefix belongs to another cluster.
    #[error("the keys there belong to the cluster `{found}`")]
    WrongCluster {
        /// The name found there.
        found: String,
    },
    /// It shares no version with a member.
    #[error("{id} speaks versions {theirs:?}, this node {ours:?}")]
    WrongVersion {
        /// The member.
        id: NodeId,
        /// What this node speaks.
        ours: (u8, u8),
        /// What the member speaks.
        theirs: (u8, u8),
    },
    /// Another process with this identity keeps its lease alive.
    #[error("{id} is another process, which is alive")]
    IdentityTaken {
        /// The identity.
        id: NodeId,
    },
    /// Something under the prefix is not the cluster's.
    #[error("under the prefix there is what no member wrote: {0}")]
    Record(#[from] RecordFault),
}
