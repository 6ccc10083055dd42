//! The topology of a machine, read by libhwloc: packages, caches, cores, memory, and what is on its
//! buses.
//!
//! What a library of this workspace needs to know of a machine it reads from sysfs, so that programs that
//! embed it need no `libhwloc`. The program `lunette` asks hwloc as well: it knows models, sizes and caches,
//! finds a place for devices of which sysfs has none, and reads what `lstopo` saved elsewhere.
//!
//! It leaves out everything that changes a machine: binding of threads and memory.
//!
//! | module | subject |
//! |---|---|
//! | `read` | from hwloc's objects to a [`Topology`] |
//! | `failure` | [`TopologyError`] |
#![forbid(unsafe_code)]

mod failure;
mod read;

use std::path::Path;

use lunette_runtime::topology::Topology;

pub use failure::TopologyError;

/// The longest saved topology that is read; those of machines with hundreds of cores have some 1 MiB.
/// libxml2, which hwloc uses where it can, gives up at 10 MB.
pub const XML_BYTES_MAX: usize = 8 << 20;

/// Reads this machine's topology, devices included. Takes some 10 to 200 ms: for starts and for people,
/// not for the data path.
///
/// # Errors
/// [`TopologyError::Refused`]: [`lunette_runtime::topology::cpus`] still knows the CPUs.
pub fn load() -> Result<Topology, TopologyError> {
    read::load()
}

/// Reads a topology that hwloc 2 has saved (`lstopo FILE.xml`), of this machine or another one.
///
/// # Errors
/// [`TopologyError`]: the file cannot be read or is something else.
pub fn load_xml(path: &Path) -> Result<Topology, TopologyError> {
    read::load_xml(path)
}
