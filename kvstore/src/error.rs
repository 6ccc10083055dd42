//! What can go wrong in the store, and what the caller may do then.

use std::io;
use std::net::SocketAddr;

use lunette_cluster::proto::coordination::CoordinationFault;
use lunette_cluster::proto::member::Refusal;
use lunette_kvstore_proto::key::KeyFault;
use lunette_kvstore_proto::message::{FormatVersions, MessageFault, Status};
use lunette_kvstore_proto::placement::MapFault;
use lunette_kvstore_proto::range::RANGES_MAX;
use lunette_kvstore_proto::shard::LimitsFault;
use lunette_kvstore_proto::version::COPIES_WANTED_MAX;
use lunette_runtime::arena::AllocError;
use lunette_runtime::{CorePanicked, MeshError, StartError};
use lunette_transfer::engine::DeviceFault;
use lunette_transfer::{CallError, ConnectError};
use thiserror::Error;

use crate::drive::DriveError;
use crate::member::LifeError;
use crate::value::VALUE_PIECES_MAX;

/// A failed operation on the store: what failed, and at which node.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}{kind}", .node.map(|node| format!("node {node}: ")).unwrap_or_default())]
pub struct StoreError {
    /// The core's address, if the operation got as far as choosing one.
    pub node: Option<SocketAddr>,
    /// What failed.
    #[source]
    pub kind: StoreErrorKind,
}

/// What failed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The key is not one.
    #[error(transparent)]
    Key(#[from] KeyFault),
    /// The value is longer than a value may be.
    #[error("a value of {len_bytes} bytes exceeds the limit of {len_max_bytes}")]
    ValueTooLong {
        /// Its length.
        len_bytes: usize,
        /// Longest that it may be, here.
        len_max_bytes: u64,
    },
    /// The value is in more pieces than one message holds. Put it in fewer, or copy it together.
    #[error("a value of {pieces} pieces exceeds the limit of {VALUE_PIECES_MAX}")]
    TooManyPieces {
        /// How many it is in.
        pieces: usize,
    },
    /// An object has at least one copy, and at most [`COPIES_WANTED_MAX`].
    #[error("{copies} copies are not within 1 to {COPIES_WANTED_MAX}")]
    Copies {
        /// How many were wanted.
        copies: u8,
    },
    /// "Remove all" is of all tenants' objects, and so are quotas: the default tenant alone asks for them. What a tenant has is removed by
    /// [`remove_listed`](crate::ClusterClient::remove_listed).
    #[error("it is of all tenants: only a client of the default one may ask for it")]
    OfAllTenants,
    /// The cluster's map has no member of this name.
    #[error("{member} is no member of the cluster")]
    NoMember {
        /// The name that was asked for.
        member: SocketAddr,
    },
    /// No other member could be the home of anything.
    #[error("{member} is the last member that takes objects")]
    LastMember {
        /// The name that was asked for.
        member: SocketAddr,
    },
    /// A writer prefers at most [`PREFERRED_MAX`](crate::PREFERRED_MAX) nodes.
    #[error(
        "{count} preferred nodes are above the limit of {}",
        crate::PREFERRED_MAX
    )]
    Preferred {
        /// How many were named.
        count: usize,
    },
    /// A get is of at least one range, and of at most [`RANGES_MAX`].
    #[error("{ranges} ranges are not within 1 to {RANGES_MAX}")]
    Ranges {
        /// How many were wanted.
        ranges: usize,
    },
    /// A range does not lie inside the object.
    #[error("a range is not within the object's {object_len_bytes} bytes")]
    OutOfRange {
        /// The object's length.
        object_len_bytes: usize,
    },
    /// The room that was reserved is gone: nothing was written for too long, or its node has left.
    #[error("the reserved room is gone")]
    ReservationLost,
    /// The call has no reply. Whether the node did what was asked is unknown; gets, puts and
    /// removes may be repeated.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The connection had ended, and a new one could not be made.
    #[error(transparent)]
    Reconnect(ConnectError),
    /// The node speaks none of the versions that this program speaks: one of them is too old.
    #[error("the node speaks versions {theirs} of the formats, this program {ours}")]
    Versions {
        /// What this program speaks.
        ours: FormatVersions,
        /// What the node speaks.
        theirs: FormatVersions,
    },
    /// The connection had ended, and another call is making a new one at this moment.
    #[error("reconnecting")]
    Reconnecting,
    /// The node refused.
    #[error("refused: {0:?}")]
    Refused(Status),
    /// The node's reply makes no sense.
    #[error("malformed reply: {0}")]
    BadReply(#[from] MessageFault),
    /// Time was over before anything was done. It may be asked again.
    #[error("time was over before anything was done")]
    TimedOut,
    /// It is not known whether a write or a removal was done, now or later.
    #[error("it is not known whether it was done")]
    Interrupted,
    /// This client has as many operations under way as it may. Wait for one.
    #[error("too many operations are under way")]
    TooManyOperations,
    /// A device did not copy. Nothing was put; memory into which was got may hold anything.
    #[error("the device: {0}")]
    Device(DeviceFault),
    /// The core's arena has no room for what devices copy. Nothing was done.
    #[error("no memory to stage {len_bytes} bytes in")]
    NoStaging {
        /// How many were to be staged.
        len_bytes: usize,
    },
    /// Memory is not, or no longer, of a device that can be used here.
    #[error("the memory is not of a device that can be used here")]
    NotOfDevice,
    /// The core shut down while the operation was under way.
    #[error("the core shut down")]
    ShutDown,
}

impl StoreError {
    pub(crate) const fn at(node: SocketAddr, kind: StoreErrorKind) -> Self {
        Self {
            node: Some(node),
            kind,
        }
    }

    pub(crate) const fn local(kind: StoreErrorKind) -> Self {
        Self { node: None, kind }
    }

    /// Whether the same operation may succeed when tried again, at once or after a while.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            StoreErrorKind::Call(error) => error.is_retryable(),
            StoreErrorKind::Reconnect(error) => error.is_retryable(),
            StoreErrorKind::Reconnecting
            | StoreErrorKind::TimedOut
            | StoreErrorKind::TooManyOperations => true,
            StoreErrorKind::Refused(status) => status.is_retryable(),
            StoreErrorKind::Device(fault) => fault.is_retryable(),
            StoreErrorKind::NoStaging { .. } => true,
            StoreErrorKind::NotOfDevice
            | StoreErrorKind::Key(_)
            | StoreErrorKind::ValueTooLong { .. }
            | StoreErrorKind::TooManyPieces { .. }
            | StoreErrorKind::Copies { .. }
            | StoreErrorKind::OfAllTenants
            | StoreErrorKind::NoMember { .. }
            | StoreErrorKind::LastMember { .. }
            | StoreErrorKind::Preferred { .. }
            | StoreErrorKind::Ranges { .. }
            | StoreErrorKind::OutOfRange { .. }
            | StoreErrorKind::ReservationLost
            | StoreErrorKind::Versions { .. }
            | StoreErrorKind::Interrupted
            | StoreErrorKind::BadReply(_)
            | StoreErrorKind::ShutDown => false,
        }
    }

    /// Whether the node asks for less.
    #[must_use]
    pub fn is_backpressure(&self) -> bool {
        match self.kind {
            StoreErrorKind::Device(fault) => fault.is_backpressure(),
            StoreErrorKind::NoStaging { .. } => true,
            StoreErrorKind::Refused(status) => status.is_backpressure(),
            StoreErrorKind::Reconnect(error) => error.is_backpressure(),
            StoreErrorKind::TooManyOperations => true,
            _ => false,
        }
    }

    /// Whether bytes were damaged underway.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self.kind {
            StoreErrorKind::Call(error) => error.is_corruption(),
            StoreErrorKind::Refused(status) => status.is_corruption(),
            _ => false,
        }
    }

    /// Whether the node could not be reached, as against having answered.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Reconnect(_)
                | StoreErrorKind::Reconnecting
                | StoreErrorKind::Call(
                    CallError::Disconnected(_) | CallError::NotRead | CallError::DeadlineExceeded
                )
        )
    }
}

/// Why a client could not join a cluster.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ClusterError {
    /// A node, or one of its cores, could not be reached.
    #[error("node {node}: {error}")]
    Connect {
        /// Its address.
        node: SocketAddr,
        /// Why.
        #[source]
        error: ConnectError,
    },
    /// What listens there is no store node, or a later one.
    #[error("node {node}: not a store node's greeting: {fault}")]
    Greeting {
        /// Its address.
        node: SocketAddr,
        /// Why.
        #[source]
        fault: MessageFault,
    },
    /// The node speaks none of the versions that this program speaks: one of them is too old.
    #[error("node {node} speaks versions {theirs} of the formats, this program {ours}")]
    Versions {
        /// Its address.
        node: SocketAddr,
        /// What this program speaks.
        ours: FormatVersions,
        /// What the node speaks.
        theirs: FormatVersions,
    },
    /// Another node or core answers where one was announced.
    #[error("node {node}: another core answers there than the one announced")]
    WrongCore {
        /// Its address.
        node: SocketAddr,
    },
    /// The node is no member of a cluster: clients list such nodes.
    #[error("node {node} is no member of a cluster")]
    NoMember {
        /// Its address.
        node: SocketAddr,
    },
    /// No node that was named is a member of a cluster yet.
    #[error("no node knows a cluster's map yet")]
    NoMap,
    /// The coordinators do not tell who the members are.
    #[error(transparent)]
    Coordinator(#[from] CoordinationFault),
    /// The core has no room for the client's tasks.
    #[error("the core has no room for the client's tasks")]
    TooManyTasks,
    /// The nodes make no map: none given, one given twice, and so on.
    #[error(transparent)]
    Map(#[from] MapFault),
}

impl ClusterError {
    /// Whether trying again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { error, .. } => error.is_retryable(),
            Self::Coordinator(fault) => fault.is_retryable(),
            Self::WrongCore { .. } | Self::NoMap | Self::TooManyTasks => true,
            Self::Greeting { .. }
            | Self::Versions { .. }
            | Self::NoMember { .. }
            | Self::Map(_) => false,
        }
    }
}

/// Why a node could not be started or ended badly.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The options contradict each other.
    #[error(transparent)]
    Limits(#[from] LimitsFault),
    /// Identity or weight do not fit a cluster map.
    #[error(transparent)]
    Map(#[from] MapFault),
    /// The cores could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The address could not be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why: `AddrInUse` if another process has the port.
        #[source]
        error: io::Error,
    },
    /// Another process is this node, or its host does not let it say that it lives.
    #[error(transparent)]
    Life(#[from] LifeError),
    /// It cannot be a member of its cluster.
    #[error("the node cannot be a member of its cluster: {0}")]
    Refused(#[from] Refusal),
    /// It was told of no cluster, or has left it.
    #[error("the node is no member of a cluster")]
    NoCluster,
    /// No other member of its cluster takes objects.
    #[error("the node is the last member that takes objects")]
    LastMember,
    /// Too many wait for the same.
    #[error("too many wait for the node to be emptied")]
    Busy,
    /// The memory was refused.
    #[error("cannot lend memory: {0}")]
    Memory(#[from] AllocError),
    /// A drive cannot be used.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// There is a drive and no cluster.
    #[error("drives are for members of a cluster")]
    DriveAlone,
    /// There are more drives than cores. A core writes to one, so some would be left out.
    #[error(
        "{drives} drives, and {cores} cores of which each takes one: have as many cores, or name fewer drives"
    )]
    DrivesBeyondCores {
        /// The drives.
        drives: usize,
        /// The cores.
        cores: usize,
    },
    /// A core ended while it was being asked.
    #[error(transparent)]
    Core(#[from] MeshError),
    /// A core's task panicked: a bug of this program.
    #[error(transparent)]
    Panicked(#[from] CorePanicked),
}
