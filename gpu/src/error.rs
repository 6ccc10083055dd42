//! What can go wrong, per operation.

use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::stream_queue::BeginError;
use lunette_gpu_proto::transfer::TransferError;
use thiserror::Error;

/// Why there is no GPU here. Nothing is wrong with the program; another path is to be taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unavailable {
    /// No driver is installed.
    #[error("no CUDA driver: {reason}")]
    NoDriver {
        /// What the loader said.
        reason: String,
    },
    /// The driver is too old, or another library of the same name.
    #[error("the CUDA driver has no {name}")]
    SymbolMissing {
        /// The function.
        name: &'static str,
    },
    /// The driver works, and there is no device.
    #[error("no CUDA device")]
    NoDevice,
    /// The driver does not start: its kernel module is missing or of another version, say.
    #[error("the CUDA driver does not start (code {code})")]
    Driver {
        /// The driver's result code.
        code: u32,
    },
}

/// Why a device was not opened.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// There is no GPU here; use memory of the host.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// There are GPUs, and not so many.
    #[error("there is no device {index}, only {count}")]
    NoSuchDevice {
        /// Number asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The driver refused.
    #[error("cannot open the device: {0}")]
    Refused(Fault),
    /// The core polls as many sources as it may.
    #[error("too many completion sources on this core")]
    TooManySources,
}

/// Why an object was not made of a device. Nothing is left behind.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SetupError {
    /// The driver refused.
    #[error("refused: {0}")]
    Refused(#[from] Fault),
    /// A size is zero, or beyond what the device or this crate allows.
    #[error("a size is out of range")]
    Size,
    /// The pool has no room of this length: drop a region, then try again.
    #[error("no room in the pool")]
    Full,
    /// The device has as many streams or regions as it may.
    #[error("too many streams or regions of this device")]
    TooMany,
}

impl SetupError {
    /// Whether freeing something can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::Refused(fault) => fault.is_backpressure(),
            Self::Full | Self::TooMany => true,
            Self::Size => false,
        }
    }

    /// Whether this device, driver or machine cannot do it at all.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Refused(fault) if fault.is_unavailable())
    }
}

/// Why a copy did not do what it was asked. Its memory is the caller's again in every case.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CopyError {
    /// As many operations are in flight as the stream has: wait for one. Nothing was done.
    #[error("the stream is full")]
    Full,
    /// Something does not lie inside the memory that it names, or nothing is to be copied.
    /// Nothing was done.
    #[error("a range is empty, or outside its memory")]
    Range,
    /// More pieces than one operation may have ([`PIECES_MAX`](crate::PIECES_MAX)). Nothing was done.
    #[error("too many pieces in one operation")]
    Pieces,
    /// Memory of another device, or of another opening of this one. Nothing was done.
    #[error("memory of another device")]
    Foreign,
    /// The pages are not there, or not of one shape. Nothing was done.
    #[error("{0}")]
    Pages(TransferError),
    /// The memory could not be made known to the device, or room for a list of pages was not
    /// there. Nothing was done.
    #[error("{0}")]
    Setup(SetupError),
    /// The device's context is of no use any more. What the destination holds is not known.
    #[error("{0}")]
    Poisoned(Fault),
    /// It failed. What the destination holds is not known.
    #[error("{0}")]
    Failed(Fault),
}

impl CopyError {
    /// Whether the same copy may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Full | Self::Failed(_) => true,
            Self::Setup(error) => error.is_backpressure(),
            _ => false,
        }
    }

    /// Whether waiting can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        match self {
            Self::Full => true,
            Self::Setup(error) => error.is_backpressure(),
            Self::Failed(fault) => fault.is_backpressure(),
            _ => false,
        }
    }

    pub(crate) const fn of(fault: Fault) -> Self {
        if fault.is_sticky() {
            Self::Poisoned(fault)
        } else {
            Self::Failed(fault)
        }
    }
}

impl From<BeginError> for CopyError {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::Full => Self::Full,
            BeginError::Poisoned(fault) => Self::Poisoned(fault),
        }
    }
}

/// Why memory of somebody else was not taken in.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ImportError {
    /// The address is not memory of this device: of the host, of another device, managed, or none.
    #[error("not memory of this device")]
    NotOfDevice,
    /// The range leaves the allocation in which it begins.
    #[error("the range leaves its allocation")]
    Range,
    /// The elements of a tensor do not lie side by side.
    #[error("the tensor is not contiguous")]
    NotContiguous,
    /// A handle that nobody made, or of another version.
    #[error("a malformed handle")]
    Malformed,
    /// The driver refused.
    #[error("{0}")]
    Setup(#[from] SetupError),
}

impl From<Fault> for ImportError {
    fn from(fault: Fault) -> Self {
        Self::Setup(SetupError::Refused(fault))
    }
}
