//! What a machine consists of, as plain data.

use lunette_runtime_core::pci::PciAddress;

/// A machine. Lists are in hwloc's logical order, in which neighbours share most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Sockets.
    pub packages: Vec<Package>,
    /// Memory.
    pub numa_nodes: Vec<NumaNode>,
    /// Unified and data caches of the second and third level.
    pub caches: Vec<Cache>,
    /// Physical cores.
    pub cores: Vec<Core>,
    /// Network interfaces and RDMA devices.
    pub nics: Vec<Nic>,
    /// NVMe drives.
    pub drives: Vec<NvmeDrive>,
    /// GPUs and other accelerators on the PCI bus.
    pub gpus: Vec<Gpu>,
}

/// What a piece of the machine is next to. `None` where it is next to several, as a device is that
/// hangs below the whole machine, or where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// The package, by its system's number.
    pub package: Option<usize>,
    /// The NUMA node, by its system's number.
    pub numa: Option<usize>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// The system's number.
    pub os_index: usize,
    /// Name of the processor.
    pub model: Option<String>,
}

/// Memory that some CPUs are nearer to than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// The system's number.
    pub os_index: usize,
    /// The package that it belongs to.
    pub package: Option<usize>,
    /// Memory of this node, in bytes.
    pub memory_bytes: u64,
}

/// A cache that some CPUs share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 2 or 3.
    pub level: u8,
    /// Its size, where known.
    pub size_bytes: Option<u64>,
    /// The CPUs that share it, ascending.
    pub cpus: Vec<usize>,
}

/// A physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its place in hwloc's logical order.
    pub index: usize,
    /// Where it is.
    pub locality: Locality,
    /// Its CPUs, the system's numbers: more than one with simultaneous multithreading.
    pub cpus: Vec<usize>,
}

/// A network adapter: one function of a PCI device, or an interface that is on no PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Network interfaces, like `eth0`; none if its driver has made none.
    pub interfaces: Vec<String>,
    /// RDMA device, like `mlx5_0`.
    pub rdma_device: Option<String>,
    /// Its place on the PCI bus.
    pub pci: Option<PciAddress>,
    /// The bridges above it, the one next to the root first.
    pub bridges: Vec<PciAddress>,
    /// What it is next to.
    pub locality: Locality,
}

/// An NVMe drive: one namespace, or a controller that no driver of the system serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeDrive {
    /// Block device, like `nvme0n1`; `None` for a controller without one.
    pub name: Option<String>,
    /// Model, as the drive says it.
    pub model: Option<String>,
    /// Capacity, where known.
    pub size_bytes: Option<u64>,
    /// Its controller's place on the PCI bus.
    pub pci: Option<PciAddress>,
    /// What it is next to.
    pub locality: Locality,
}

/// A GPU or another accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// What drivers and libraries call it, like `card1`, `cuda0`, `nvml0`.
    pub names: Vec<String>,
    /// Model or PCI device name, where known.
    pub model: Option<String>,
    /// Its maker, by PCI's number.
    pub vendor_id: u16,
    /// Its place on the PCI bus.
    pub pci: PciAddress,
    /// The bridges above it, the one next to the root first.
    pub bridges: Vec<PciAddress>,
    /// What it is next to.
    pub locality: Locality,
}
