//! What can go wrong in a command, and the exit code it ends with.

use std::io;
use std::net::SocketAddr;

use lunette::hwloc::TopologyError;
use lunette::kvstore::{ClusterError, NodeError, StoreError, StoreErrorKind};
use lunette::runtime::StartError;
use lunette::runtime::arena::AllocError;
use lunette::trace::format::TraceError;
use lunette::transfer::topology::{LoadError, MatrixFault};
use lunette_cluster::{OpenError, SecretFileError};
use lunette_kvstore_proto::message::Status;
use thiserror::Error;

use super::address::NodeAddress;
use super::nvme::NvmeFailure;
use super::p2p::P2pFailure;
use super::transfer::TransferFailure;

/// A command that did not do what it was asked.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(&'static str),
    #[error(
        "refusing to listen on {0}: without a secret nobody is authenticated, so only loopback \
         addresses are listened on; make a cluster with LUNETTE_SECRET_FILE, or set \
         LUNETTE_INSECURE=1 to do it all the same"
    )]
    NotLoopback(SocketAddr),
    #[error(
        "refusing to answer /metrics and /health on {0}: nobody who asks there is authenticated, so \
         only loopback addresses are listened on; set LUNETTE_INSECURE=1 to do it all the same"
    )]
    MetricsNotLoopback(SocketAddr),
    #[error(transparent)]
    Secret(#[from] SecretFileError),
    #[error(transparent)]
    Coordinator(#[from] OpenError),
    #[error("cannot resolve {address}: {error}")]
    Resolve { address: NodeAddress, error: String },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("{error}{}", hint(error))]
    Store {
        #[source]
        error: StoreError,
    },
    #[error("{}", node_message(error))]
    Node {
        #[source]
        error: NodeError,
    },
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("no memory for a buffer: {0}")]
    Memory(#[from] AllocError),
    #[error("{name}: {error}")]
    File {
        name: String,
        #[source]
        error: io::Error,
    },
    #[error("{name}: longer than {len_max_bytes} bytes, which is the longest value there")]
    ValueTooLong { name: String, len_max_bytes: u64 },
    /// Which keys, has been said on standard output where several were asked for.
    #[error("not found: {keys}")]
    NotFound { keys: String },
    #[error("{member} still has {left} objects: others have no room for them, or no time yet")]
    NotEmpty { member: SocketAddr, left: u64 },
    #[error(
        "{member} is in the cluster no more: what it had may be nowhere else, if it did not leave by itself"
    )]
    Gone { member: SocketAddr },
    #[error("trace {name}: {error}")]
    Trace {
        name: String,
        #[source]
        error: TraceError,
    },
    #[error("node process {index}: {problem}")]
    Child { index: usize, problem: String },
    #[error(transparent)]
    P2p(#[from] P2pFailure),
    #[error(transparent)]
    Transfer(#[from] TransferFailure),
    #[error(transparent)]
    Nvme(#[from] NvmeFailure),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    #[error(transparent)]
    Matrix(#[from] MatrixFault),
    #[error(transparent)]
    MatrixFile(#[from] LoadError),
    /// What is missing, has been said on standard output.
    #[error("{0} missing without which nodes do not run")]
    Missing(String),
    #[error("interrupted")]
    Interrupted,
    #[error("{0} of the blocks read were not what had been written")]
    Verify(u64),
}

impl Failure {
    /// An error with a file, or what stands for one.
    pub(crate) fn file(name: &str, error: io::Error) -> Self {
        let name = name.to_owned();
        Self::File { name, error }
    }

    /// The process's exit code, as `lunette --help` lists them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Store { error } if matches!(error.kind, StoreErrorKind::Key(_)) => 2,
            Self::NotFound { .. } => 3,
            Self::Transfer(failure) => failure.exit_code(),
            Self::Nvme(failure) => failure.exit_code(),
            Self::P2p(failure) => failure.exit_code(),
            Self::Resolve { .. } | Self::Cluster(ClusterError::Connect { .. }) => 4,
            Self::Store { error } if error.is_unreachable() => 4,
            _ => 1,
        }
    }

    /// Whether standard output has said all about it.
    pub(crate) const fn is_reported(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::NotEmpty { .. } | Self::Verify(_) | Self::Missing(_)
        )
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store { error }
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::Node { error }
    }
}

/// What the user can do about a refusal.
fn hint(error: &StoreError) -> &'static str {
    match error.kind {
        StoreErrorKind::Refused(Status::TooLarge) => {
            " (the object is larger than a core's share of the node's memory: give the node more \
             with --memory, or fewer cores)"
        }
        StoreErrorKind::Refused(Status::Full) => {
            " (the memory is full of objects that are in use at this moment: try again)"
        }
        StoreErrorKind::Refused(Status::PinnedFull) => {
            " (half of what fits is pinned for ever already: remove some of it)"
        }
        StoreErrorKind::Refused(Status::OverQuota) => {
            " (what the tenant has pinned for ever leaves too little of its quota: remove some of it, or \
             raise the quota with `lunette cluster quota`)"
        }
        StoreErrorKind::Refused(Status::Busy) => {
            " (another put of this key is under way: try again)"
        }
        StoreErrorKind::Refused(Status::WrongHome) => {
            " (the node has a different view of its cluster: name all its nodes, and no others)"
        }
        _ => "",
    }
}

fn node_message(error: &NodeError) -> String {
    match error {
        NodeError::Listen { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
            format!("cannot listen on {address}: another process uses this port")
        }
        other => other.to_string(),
    }
}
