//! Why there is no topology.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::XML_BYTES_MAX;

/// Why there is no topology.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// A saved topology could not be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// A saved topology is longer than [`XML_BYTES_MAX`].
    #[error("{}: longer than {XML_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
    /// A file is not a topology saved by hwloc 2.
    #[error("{}: not a topology saved by hwloc 2 (lstopo FILE.xml)", .0.display())]
    NotATopology(PathBuf),
    /// hwloc could not read this machine.
    #[error("hwloc could not read this machine's topology: {0}")]
    Refused(String),
}
