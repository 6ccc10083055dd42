//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

use lunette_cluster::proto::coordination::CoordinationFault;
use lunette_p2p_proto::Version;
use lunette_p2p_proto::catalogue::{PrefixFault, RecordFault};
use lunette_p2p_proto::layout::{LayoutFault, PlanFault};
use lunette_p2p_proto::object::{ObjectName, ShapeFault};
use lunette_runtime::JoinError;
use lunette_runtime::arena::Exposed;
use lunette_transfer::engine::RegisterRefusal;
use thiserror::Error;

/// Why a store does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Its engine does not.
    #[error("the engine does not start: {0}")]
    Engine(#[from] lunette_transfer::engine::StartError),
    /// It would listen nowhere, so nobody could answer it.
    #[error("a store listens: give its engine an address")]
    NoAddress,
    /// Its keys have no place.
    #[error(transparent)]
    Prefix(#[from] PrefixFault),
    /// The coordinator gives no lease.
    #[error("no lease: {0}")]
    Lease(CoordinationFault),
    /// The core takes no more tasks.
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// Why the catalogue was not read or written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CatalogueError {
    /// The coordinator did not answer, or refused. What was written may be there all the same.
    #[error(transparent)]
    Coordination(#[from] CoordinationFault),
    /// What lies there is no record of ours.
    #[error("in the catalogue: {0}")]
    Record(#[from] RecordFault),
    /// The tensors that are told of there are none of the object.
    #[error("in the catalogue: {0}")]
    Layout(#[from] LayoutFault),
}

impl CatalogueError {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Coordination(fault) => fault.is_retryable(),
            Self::Record(_) | Self::Layout(_) => false,
        }
    }
}

/// Why an object is not held: neither registered nor received.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HoldFault {
    /// The buffers make no object.
    #[error(transparent)]
    Shape(#[from] ShapeFault),
    /// The tensors are none of the object.
    #[error(transparent)]
    Layout(#[from] LayoutFault),
    /// There is more to tell of its tensors than the catalogue takes.
    #[error("there is more to tell of the tensors than the catalogue takes: 64 MiB")]
    LongLayout,
    /// What is wanted of its tensors is not to be had of it, or does not fit.
    #[error(transparent)]
    Slices(#[from] PlanFault),
    /// Somebody has registered something else under this name: take another name, or replace it.
    #[error("the name {name} is taken, by version {version}")]
    NameTaken {
        /// The name.
        name: ObjectName,
        /// What has it.
        version: Version,
    },
    /// There is no object of this name now.
    #[error("there is no object {name}")]
    NotFound {
        /// The name.
        name: ObjectName,
    },
    /// There are not as many buffers as the object has.
    #[error("{given} buffers, and the object has {wanted}")]
    WrongCount {
        /// How many there are.
        given: usize,
        /// How many there are to be.
        wanted: usize,
    },
    /// A buffer is not as long as the object's.
    #[error("buffer {buffer} is of {given_bytes} bytes, and the object's of {wanted_bytes}")]
    WrongLength {
        /// The first that differs.
        buffer: usize,
        /// How long it is.
        given_bytes: u64,
        /// How long it is to be.
        wanted_bytes: u64,
    },
    /// It is held here already: let go of it first.
    #[error("version {version} is held here already")]
    Held {
        /// Which.
        version: Version,
    },
    /// The system has no memory for the chunks that are fetched.
    #[error("no memory for chunks: {0}")]
    NoMemory(String),
    /// A file that the object is registered of is not read, or is changed.
    #[error(transparent)]
    Source(#[from] SourceFault),
    /// What comes cannot be written: the file was opened to be read.
    #[error("the file of buffer {buffer} was opened to be read")]
    ReadOnly {
        /// The first such.
        buffer: usize,
    },
    /// The engine does not take the memory.
    #[error("memory was not registered: {0}")]
    Memory(#[from] RegisterRefusal),
    /// The catalogue was not read or written.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The core takes no more tasks.
    #[error("the core takes no more tasks")]
    Task,
}

impl HoldFault {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Catalogue(fault) => fault.is_retryable(),
            Self::NotFound { .. } | Self::NoMemory(_) | Self::Task => true,
            Self::Source(fault) => fault.is_retryable(),
            Self::Shape(_)
            | Self::Layout(_)
            | Self::LongLayout
            | Self::Slices(_)
            | Self::NameTaken { .. }
            | Self::WrongCount { .. }
            | Self::WrongLength { .. }
            | Self::Held { .. }
            | Self::ReadOnly { .. }
            | Self::Memory(_) => false,
        }
    }
}

/// Why an object is not served of a file, or no more.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SourceFault {
    /// Its bytes are not those that the object has: register it anew.
    #[error("the file of buffer {buffer} was changed")]
    Changed {
        /// Which.
        buffer: usize,
    },
    /// It was made shorter.
    #[error("the file of buffer {buffer} is of {len_bytes} bytes, and was of {wanted_bytes}")]
    Shortened {
        /// Which.
        buffer: usize,
        /// How long it is.
        len_bytes: u64,
        /// How long it was.
        wanted_bytes: u64,
    },
    /// The system does not read it.
    #[error("buffer {buffer} is not read: {said}")]
    Unreadable {
        /// Which.
        buffer: usize,
        /// What it says.
        said: String,
    },
}

impl SourceFault {
    /// Whether registering it again may help: always, as long as nobody writes to it.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        true
    }
}

/// A file that was not opened, or not made as long as it is to be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}: {said}", path.display())]
pub struct FileFault {
    /// Which.
    pub path: PathBuf,
    /// What it is, as the system tells.
    pub kind: io::ErrorKind,
    /// What the system says.
    pub said: String,
}

impl FileFault {
    pub(crate) fn new(path: &Path, error: &io::Error) -> Self {
        Self {
            path: path.to_owned(),
            kind: error.kind(),
            said: error.to_string(),
        }
    }
}

/// An object that is not held: why, and the buffers.
#[derive(Debug, Error)]
#[error("{fault}")]
pub struct HoldError {
    /// Why.
    #[source]
    pub fault: HoldFault,
    /// The buffers, as they were given.
    pub buffers: Vec<Exposed>,
}

impl HoldError {
    /// Whether trying again later may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.fault.is_retryable()
    }
}

/// Not all chunks came in time. What came stays, and is served; waiting on, or receiving anew into the same buffers,
/// goes on from there.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{held} of {chunks} chunks are here, and {neighbours} holders are known that answer")]
pub struct Incomplete {
    /// Chunks that are here.
    pub held: u32,
    /// Of how many.
    pub chunks: u32,
    /// Holders that answer.
    pub neighbours: usize,
}

impl Incomplete {
    /// Whether waiting on may help: always, for holders come back.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        true
    }
}
