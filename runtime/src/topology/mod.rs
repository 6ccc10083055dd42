//! The machine: its CPUs, what is near them, and who uses them.
//!
//! Cores of a runtime run on CPUs of the calling thread's affinity mask and on no others, so that a
//! host process, a container or `taskset` keeps what it has set aside. A [`CoreClaim`] keeps two
//! programs on one host from choosing the same CPU.
//!
//! It leaves out reading a whole [`Topology`], which `lunette-hwloc` does, binding of memory, and distances between NUMA nodes: a device is near the NUMA
//! node that it hangs below, or near none.
//!
//! | module | subject |
//! |---|---|
//! | `cpus` | CPUs that this process may use, choosing among them, pinning |
//! | `claim` | CPUs claimed by a program for itself |
//! | `machine` | [`Topology`]: packages, memory, caches, cores, devices |
//! | `sysfs` | where the system says that a CPU is |

mod claim;
mod cpus;
mod machine;
mod sysfs;

pub(crate) use claim::choose_and_claim;
pub use claim::{ChooseError, ClaimError, CoreClaim, choose_unclaimed, user_folder};
pub use cpus::{Cpu, PinError, TooFewCpus, choose, cpus, pin_current_thread};
pub use machine::{Cache, Core, Gpu, Locality, Nic, NumaNode, NvmeDrive, Package, Topology};

#[doc(no_inline)]
pub use lunette_runtime_core::pci::PciAddress;
