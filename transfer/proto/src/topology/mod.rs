//! Which adapter is near which memory, and which one to take.
//!
//! A [`Matrix`] has a row for each place where memory may lie, and in a row the machine's adapters in
//! tiers: those of the first are nearest. Matrices are made of a [`Machine`], read from the JSON that
//! Mooncake publishes and takes, changed by an [`Override`], and written again:
//!
//! ```text
//!   {"cpu:0":[["mlx5_0","mlx5_1"],["mlx5_2"]], "cuda:0":[["mlx5_1"],["mlx5_0","mlx5_2"]]}
//!     place    nearest             the others
//! ```
//!
//! Choosing has no state and draws nothing: who chooses counts, and hands the count in as `turn`.
//!
//! It leaves out where a machine's adapters come from (`lunette-transfer` asks hwloc and sysfs) and
//! whether an adapter works, which is an argument.
//!
//! | module | subject |
//! |---|---|
//! | `location` | [`Location`], where memory lies |
//! | `machine` | [`Machine`]: adapters, memories; tiers by distance |
//! | `matrix` | [`Matrix`]: choice, fallback, the peer's adapter for one of ours |
//! | `sources` | [`Sources`], the address of ours to connect from |
//! | `filter` | [`Pattern`], [`Override`]: what the operator says |
//! | `json` | reading and writing |
//! | `fault` | [`MatrixFault`], [`ReadFault`] |

mod fault;
mod filter;
mod json;
mod location;
mod machine;
mod matrix;
mod sources;

pub use fault::{MatrixFault, ReadFault};
pub use filter::{Override, Pattern};
pub use location::{Location, NotALocation};
pub use machine::{Adapter, AdapterAddress, Machine, Memory, PciPath};
pub use matrix::Matrix;
pub use sources::Sources;

/// Adapters of one machine.
pub const ADAPTERS_MAX: usize = 256;
/// Rows of a matrix.
pub const LOCATIONS_MAX: usize = 1024;
/// Tiers of a row.
pub const TIERS_MAX: usize = 3;
/// Filters of an override, allowing and denying ones each.
pub const PATTERNS_MAX: usize = 256;
/// Longest name of an adapter, in bytes: the kernel's for RDMA devices is 64 with its end.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Whether a text can be an adapter's name.
fn is_name(text: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_graphic();
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_fit)
}
