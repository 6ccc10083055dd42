//! What can go wrong with disks over NVMe/TCP.

use std::io;

use lunette::runtime::arena::AllocError;
use lunette::runtime::{CorePanicked, MeshError};
use lunette_nvmeof::proto::auth::{PskFault, SecretFault};
use lunette_nvmeof::proto::host::PATHS_MAX;
use lunette_nvmeof::proto::nqn::NqnFault;
use lunette_nvmeof::{CommandError, ConnectError, FileDiskError, ServerError};
use thiserror::Error;

/// What can go wrong with disks over NVMe/TCP.
#[derive(Debug, Error)]
pub(crate) enum NvmeFailure {
    #[error(transparent)]
    Name(#[from] NqnFault),
    #[error(transparent)]
    Core(#[from] MeshError),
    #[error(transparent)]
    Panicked(#[from] CorePanicked),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Disk(#[from] FileDiskError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Memory(#[from] AllocError),
    #[error(
        "{what} must be a multiple of the block, {block_bytes} bytes, and inside the namespace"
    )]
    Range {
        what: &'static str,
        block_bytes: u32,
    },
    #[error("at most {PATHS_MAX} paths to a namespace")]
    Paths,
    #[error("{name}, line {line}: an address that is listened on and a state are wanted")]
    States { name: String, line: usize },
    #[error("{name}: {fault}")]
    Secret { name: String, fault: SecretFault },
    #[error("{name}: {fault}")]
    TlsKey { name: String, fault: PskFault },
    #[error(
        "{name}: this build leaves TLS out: build it with --features tls, which needs libssl-dev"
    )]
    NoTls { name: String },
    #[error("a controller's secret needs one of the host beside it")]
    NoHostSecret,
    #[error("{name}: {error}")]
    File { name: String, error: io::Error },
}

impl NvmeFailure {
    /// As `lunette --help` lists them.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Name(_)
            | Self::Server(_)
            | Self::Range { .. }
            | Self::Paths
            | Self::States { .. }
            | Self::Secret { .. }
            | Self::TlsKey { .. }
            | Self::NoTls { .. }
            | Self::NoHostSecret => 2,
            Self::Connect(ConnectError::Connect(_) | ConnectError::TimedOut) => 4,
            _ => 1,
        }
    }

    pub(super) fn file(name: &str, error: io::Error) -> Self {
        let name = name.to_owned();
        Self::File { name, error }
    }
}

pub(super) type Outcome<T> = Result<T, NvmeFailure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_exit_codes_of_the_help() {
        let refused = lunette::runtime::OpError::Cancelled;
        let unreachable = NvmeFailure::Connect(ConnectError::Connect(refused));
        assert_eq!(unreachable.exit_code(), 4);
        assert_eq!(NvmeFailure::Name(NqnFault::Malformed).exit_code(), 2);
        let error = CommandError::DeadlineExceeded;
        assert_eq!(NvmeFailure::Command(error).exit_code(), 1);
    }
}
