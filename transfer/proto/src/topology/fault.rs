//! What can be wrong with a matrix, and with a file that should hold one.

use thiserror::Error;

use super::{
    ADAPTERS_MAX, FILE_BYTES_MAX, LOCATIONS_MAX, Location, NAME_BYTES_MAX, PATTERNS_MAX, TIERS_MAX,
};

/// Why there is no such matrix. Trying again does not help.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MatrixFault {
    /// A name that no adapter can have.
    #[error(
        "`{0}` is no adapter's name: 1 to {NAME_BYTES_MAX} printable characters without spaces"
    )]
    BadName(String),
    /// Two adapters of one name.
    #[error("two adapters are called {0}")]
    SameName(String),
    /// An adapter twice in one row.
    #[error("{location}: {adapter} stands there twice")]
    Twice {
        /// The row.
        location: Location,
        /// The adapter.
        adapter: String,
    },
    /// A row for the same place again.
    #[error("{0}: there are two rows for it")]
    SameLocation(Location),
    /// An adapter that this machine does not have.
    #[error("{location}: this machine has no adapter {adapter}")]
    UnknownAdapter {
        /// The row.
        location: Location,
        /// The adapter.
        adapter: String,
    },
    /// A row of an override whose adapters are all denied.
    #[error("{0}: none of its adapters is allowed")]
    NothingLeft(Location),
    /// All of the machine's adapters are denied.
    #[error("none of this machine's adapters is allowed")]
    NoneAllowed,
    /// Too many adapters.
    #[error("{0} adapters, of {ADAPTERS_MAX} at most")]
    TooManyAdapters(usize),
    /// Too many rows.
    #[error("more than {LOCATIONS_MAX} rows")]
    TooManyLocations,
    /// Too many tiers.
    #[error("{location}: {count} lists of adapters, of {TIERS_MAX} at most")]
    TooManyTiers {
        /// The row.
        location: Location,
        /// How many lists it has.
        count: usize,
    },
}

/// Why a file was not read as a matrix. Trying again does not help.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadFault {
    /// The file is longer than [`FILE_BYTES_MAX`].
    #[error("longer than {FILE_BYTES_MAX} bytes")]
    TooLong,
    /// It is no JSON, or not of this form.
    #[error("line {line}, column {column}: {reason}")]
    Form {
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1; 0 for the end of the line before.
        column: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A key that names no place.
    #[error("`{0}` is no place of memory: cpu:N, cuda:N or *")]
    BadLocation(String),
    /// A filter that can match nothing.
    #[error("`{0}` is no filter: an adapter's name, which may end in *")]
    BadFilter(String),
    /// Too many filters.
    #[error("{0} filters, of {PATTERNS_MAX} at most")]
    TooManyFilters(usize),
    /// Filters where none belong: in the matrix of a peer.
    #[error("`{0}` belongs into an override file")]
    Filters(&'static str),
    /// A number that stands for no adapter of the file.
    #[error("{location}: there is no adapter {number}")]
    NoSuchNumber {
        /// The row.
        location: Location,
        /// The number.
        number: u64,
    },
    /// It is read, and says what cannot be.
    #[error(transparent)]
    Matrix(#[from] MatrixFault),
}
