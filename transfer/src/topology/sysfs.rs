//! Reading sysfs (`Documentation/ABI` of the kernel's source).

use std::fs;
use std::path::Path;

use lunette_runtime::topology::PciAddress;
use lunette_transfer_proto::topology::PciPath;

/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 4096;
/// PCI classes of GPUs: the upper 8 bits of the class code.
const CLASS_DISPLAY: &str = "0x03";
/// PCI's number for NVIDIA.
const VENDOR_NVIDIA: &str = "0x10de";

/// Where a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) pci: Option<PciPath>,
    pub(super) numa: Option<u32>,
}

/// A network interface.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    /// None for a virtual one.
    pub(super) device: Option<Device>,
    pub(super) is_bridge: bool,
    /// Those that a bond, VLAN or bridge is made of.
    pub(super) lowers: Vec<String>,
}

/// An RDMA device.
#[derive(Clone, Debug)]
pub(super) struct Rdma {
    pub(super) name: String,
    pub(super) device: Option<Device>,
    /// The interface that it shares its wire with.
    pub(super) interface: Option<String>,
}

/// What sysfs says. Lists are in the order of names.
#[derive(Clone, Debug, Default)]
pub(super) struct Sysfs {
    pub(super) interfaces: Vec<Interface>,
    pub(super) rdma: Vec<Rdma>,
    /// Numbers of NUMA nodes.
    pub(super) nodes: Vec<u32>,
    /// NVIDIA's GPUs, in the order of their places on the bus.
    pub(super) gpus: Vec<Device>,
}

impl Sysfs {
    /// Reads what is there; folders that are missing are empty.
    pub(super) fn read(root: &Path) -> Self {
        let nodes = names(&root.join("devices/system/node")).into_iter();
        let number = |name: String| name.strip_prefix("node")?.parse().ok();
        let mut nodes: Vec<u32> = nodes.filter_map(number).collect();
        nodes.sort_unstable();
        Self {
            interfaces: interfaces(&root.join("class/net")),
            rdma: rdma(&root.join("class/infiniband")),
            nodes,
            gpus: gpus(&root.join("bus/pci/devices")),
        }
    }
}

fn interfaces(folder: &Path) -> Vec<Interface> {
    let interface = |name: String| {
        let at = folder.join(&name);
        let entries = names(&at).into_iter();
        let lower = |entry: String| entry.strip_prefix("lower_").map(str::to_owned);
        Interface {
            device: device(&at.join("device")),
            is_bridge: at.join("bridge").is_dir(),
            lowers: entries.filter_map(lower).collect(),
            name,
        }
    };
    names(folder).into_iter().map(interface).collect()
}

fn rdma(folder: &Path) -> Vec<Rdma> {
    let device = |name: String| {
        let at = folder.join(&name);
        Rdma {
            device: device(&at.join("device")),
            interface: text(&at.join("ports/1/gid_attrs/ndevs/0")),
            name,
        }
    };
    names(folder).into_iter().map(device).collect()
}

fn gpus(folder: &Path) -> Vec<Device> {
    let is_gpu = |name: &String| {
        let at = folder.join(name);
        let is =
            |file: &str, start: &str| text(&at.join(file)).is_some_and(|t| t.starts_with(start));
        is("class", CLASS_DISPLAY) && is("vendor", VENDOR_NVIDIA)
    };
    let gpus = names(folder).into_iter().filter(is_gpu);
    gpus.filter_map(|name| device(&folder.join(name))).collect()
}

/// Where a link to a device leads.
fn device(link: &Path) -> Option<Device> {
    let path = fs::canonicalize(link).ok()?;
    let mut steps: Vec<PciAddress> = Vec::new();
    let mut numa = None;
    let mut at = std::path::PathBuf::new();
    for part in &path {
        at.push(part);
        let Some(address) = part.to_str().and_then(|part| part.parse().ok()) else {
            continue;
        };
        steps.push(address);
        // That of the last; below it there are parts of the device.
        numa = text(&at.join("numa_node")).and_then(|node| node.parse().ok());
    }
    let (device, bridges) = match steps.split_last() {
        Some((device, bridges)) => (Some(*device), bridges),
        None => (None, &[][..]),
    };
    Some(Device {
        pci: device.map(|device| PciPath::new(bridges, device)),
        numa,
    })
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries
        .take(ENTRIES_MAX)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

fn text(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
