//! This machine's adapters and memories, and what the operator says about them.
//!
//! It comes from sysfs, and from hwloc where a program asks it (`lunette-hwloc`): what that knows is completed
//! then by virtual interfaces, RDMA devices over them, bonds. Addresses are those of the moment.
//!
//! Reading a machine takes a while and blocks: [`discover`] does it on the control thread. Choosing
//! among the adapters is [`Matrix`]'s and [`Sources`]'s, in `lunette-transfer-proto`.
//!
//! ```no_run
//! use lunette_transfer::engine::EngineOptions;
//! use lunette_transfer::topology::{Sources, discover, here, load_override};
//!
//! # async fn options() -> Result<EngineOptions, Box<dyn std::error::Error>> {
//! let machine = discover(|| None).await?;
//! let said = load_override("/etc/lunette/topology.json".as_ref())?;
//! let matrix = said.apply(&machine.matrix()?)?;
//! let options = EngineOptions {
//!     sources: Some(Sources::new(&machine, matrix, here())),
//!     ..EngineOptions::default()
//! };
//! # Ok(options)
//! # }
//! ```
//!
//! | module | subject |
//! |---|---|
//! | `devices` | from what hwloc, sysfs and the system's interfaces say to a [`Machine`] |
//! | `sysfs` | reading sysfs |
//! | `files` | override files, and matrices of peers |

mod devices;
mod files;
mod sysfs;

use std::path::Path;

use lunette_runtime::net::interface_addresses;
use lunette_runtime::topology::{Topology, cpus};
use lunette_runtime::{ControlError, control};

pub use files::{LoadError, load_matrix, load_override};
pub use lunette_transfer_proto::topology::{
    ADAPTERS_MAX, Adapter, AdapterAddress, FILE_BYTES_MAX, LOCATIONS_MAX, Location, Machine,
    Matrix, MatrixFault, Memory, NotALocation, Override, Pattern, PciPath, ReadFault, Sources,
};

use sysfs::Sysfs;

/// Reads this machine, of which a program may know a topology. It blocks for a while: for the control thread
/// ([`discover`]), or a program's start.
#[must_use]
pub fn load(topology: Option<&Topology>) -> Machine {
    let addresses = interface_addresses().unwrap_or_else(|error| {
        tracing::warn!(%error, "addresses of this host");
        Vec::new()
    });
    devices::machine(topology, &Sysfs::read(Path::new("/sys")), &addresses)
}

/// Reads this machine, on the control thread, where `topology` is asked as well for what a library like hwloc knows.
/// Not for simulated worlds, which have no devices.
///
/// # Errors
/// [`ControlError`].
pub async fn discover(
    topology: impl FnOnce() -> Option<Topology> + Send + 'static,
) -> Result<Machine, ControlError> {
    control(move || load(topology().as_ref())).await
}

/// The machine of a topology that was saved elsewhere: its adapters have no addresses.
#[must_use]
pub fn saved(topology: &Topology) -> Machine {
    devices::machine(Some(topology), &Sysfs::default(), &[])
}

/// Where memory lies that this thread allocates: on the NUMA node of its CPUs, if they are all on one.
#[must_use]
pub fn here() -> Location {
    let cpus = cpus();
    let node = cpus.first().and_then(|first| first.numa_index);
    let is_one = cpus.iter().all(|cpu| cpu.numa_index == node);
    let node = node.filter(|_| is_one);
    node.and_then(|node| u32::try_from(node).ok())
        .map_or(Location::Any, Location::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_a_row_for_it() {
        let machine = load(None);
        let matrix = machine.matrix().expect("a matrix");
        assert!(!machine.memories.is_empty());
        for memory in &machine.memories {
            let row = matrix.row(&memory.location).expect("a row");
            assert_eq!(row.concat().len(), machine.adapters.len(), "{memory:?}");
        }
        let is_loopback = |adapter: &Adapter| adapter.addresses.iter().any(|a| a.ip.is_loopback());
        assert!(!machine.adapters.iter().any(is_loopback), "{machine:?}");
        let here = here();
        assert!(
            here == Location::Any || matrix.row(&here).is_some(),
            "{here}"
        );
    }
}
