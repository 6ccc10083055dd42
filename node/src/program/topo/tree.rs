//! The machine as a tree: packages, their memory, what is next to it.

use lunette::runtime::topology::{
    Cache, Core, Gpu, Locality, Nic, NumaNode, NvmeDrive, PciAddress, Topology,
};

use super::ranges::ranges;
use crate::program::size::Size;

/// Cores on one line.
const CORES_PER_LINE: usize = 8;

/// A part of the tree: its own line, and what is below.
struct Branch {
    text: String,
    below: Vec<Self>,
}

impl Branch {
    fn new(text: impl Into<String>, below: Vec<Self>) -> Self {
        let text = text.into();
        Self { text, below }
    }

    fn leaf(text: impl Into<String>) -> Self {
        Self::new(text, Vec::new())
    }

    fn write(&self, depth: usize, out: &mut String) {
        out.push_str(&"  ".repeat(depth));
        out.push_str(&self.text);
        out.push('\n');
        for branch in &self.below {
            branch.write(depth + 1, out);
        }
    }
}

/// The tree, line by line.
pub(super) fn tree(machine: &Topology) -> String {
    let mut branches: Vec<Branch> = machine
        .packages
        .iter()
        .map(|package| {
            let model = package.model.as_deref().unwrap_or("unknown model");
            let text = format!("package {}: {model}", package.os_index);
            Branch::new(text, in_package(machine, Some(package.os_index)))
        })
        .collect();
    let elsewhere = in_package(machine, None);
    if !elsewhere.is_empty() {
        branches.push(Branch::new("next to no package", elsewhere));
    }
    let mut out = String::new();
    for branch in branches {
        branch.write(0, &mut out);
    }
    out
}

/// What is in a package: its memory with all that is next to it, then what is next to none.
fn in_package(machine: &Topology, package: Option<usize>) -> Vec<Branch> {
    let nodes = machine.numa_nodes.iter();
    let mut below: Vec<Branch> = nodes
        .filter(|node| node.package == package)
        .map(|node| {
            let text = format!("NUMA node {}: {}", node.os_index, size(node.memory_bytes));
            let numa = Some(node.os_index);
            Branch::new(text, beside(machine, |locality| locality.numa == numa))
        })
        .collect();
    let listed = |node: &NumaNode, locality: Locality| Some(node.os_index) == locality.numa;
    below.extend(beside(machine, |locality| {
        locality.package == package && !machine.numa_nodes.iter().any(|node| listed(node, locality))
    }));
    below
}

/// Cores and devices at places that `is_here` knows.
fn beside(machine: &Topology, is_here: impl Fn(Locality) -> bool) -> Vec<Branch> {
    let cores = machine.cores.iter();
    let cores: Vec<&Core> = cores.filter(|core| is_here(core.locality)).collect();
    let mut branches = by_cache(&machine.caches, &cores);
    let nics = machine.nics.iter().filter(|nic| is_here(nic.locality));
    let drives = machine.drives.iter();
    let drives = drives.filter(|drive| is_here(drive.locality));
    let gpus = machine.gpus.iter().filter(|gpu| is_here(gpu.locality));
    branches.extend(nics.map(|nic| Branch::leaf(nic_line(nic))));
    branches.extend(drives.map(|drive| Branch::leaf(drive_line(drive))));
    branches.extend(gpus.map(|gpu| Branch::leaf(gpu_line(gpu))));
    branches
}

/// Cores below the L3 caches that they share.
fn by_cache(caches: &[Cache], cores: &[&Core]) -> Vec<Branch> {
    let shares = |cache: &Cache, core: &Core| core.cpus.iter().any(|cpu| cache.cpus.contains(cpu));
    let third = |core: &Core| {
        caches
            .iter()
            .position(|cache| cache.level == 3 && shares(cache, core))
    };
    let mut branches = Vec::new();
    let mut cores = cores;
    while let Some(first) = cores.first() {
        let cache = third(first);
        let together = cores.iter().take_while(|core| third(core) == cache).count();
        let (group, rest) = cores.split_at(together);
        cores = rest;
        let lines: Vec<Branch> = group
            .chunks(CORES_PER_LINE)
            .map(|line| Branch::leaf(core_line(caches, line)))
            .collect();
        match cache {
            Some(at) => {
                let size = known_size(caches[at].size_bytes);
                let text = format!("L3 {size}: CPUs {}", ranges(&caches[at].cpus));
                branches.push(Branch::new(text, lines));
            }
            None => branches.extend(lines),
        }
    }
    branches
}

/// `cores 0-3: CPUs 0+4 1+5 2+6 3+7, L2 1MiB`: the CPUs of one core are joined by a plus.
fn core_line(caches: &[Cache], cores: &[&Core]) -> String {
    let indices: Vec<usize> = cores.iter().map(|core| core.index).collect();
    let cpus: Vec<String> = cores.iter().map(|core| siblings(core)).collect();
    let noun = if cores.len() == 1 { "core" } else { "cores" };
    let mut line = format!("{noun} {}: CPUs {}", ranges(&indices), cpus.join(" "));
    let mut sizes: Vec<String> = Vec::new();
    for cache in caches.iter().filter(|cache| cache.level == 2) {
        let size = known_size(cache.size_bytes);
        let near = cores
            .iter()
            .any(|core| core.cpus.iter().any(|cpu| cache.cpus.contains(cpu)));
        if near && !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    if !sizes.is_empty() {
        line.push_str(&format!(", L2 {}", sizes.join(" and ")));
    }
    line
}

fn siblings(core: &Core) -> String {
    let cpus: Vec<String> = core.cpus.iter().map(usize::to_string).collect();
    cpus.join("+")
}

fn nic_line(nic: &Nic) -> String {
    let names = nic.rdma_device.iter().chain(&nic.interfaces);
    let names: Vec<&str> = names.map(String::as_str).collect();
    format!("NIC {}{}", joined(&names), at(nic.pci))
}

fn drive_line(drive: &NvmeDrive) -> String {
    let name = drive.name.as_deref().unwrap_or("without a block device");
    let size = drive.size_bytes.map(|bytes| format!(" {}", size(bytes)));
    let model = drive.model.as_ref().map(|model| format!(" ({model})"));
    let (size, model) = (size.unwrap_or_default(), model.unwrap_or_default());
    format!("NVMe drive {name}{size}{model}{}", at(drive.pci))
}

fn gpu_line(gpu: &Gpu) -> String {
    let names: Vec<&str> = gpu.names.iter().map(String::as_str).collect();
    let model = gpu.model.as_ref().map(|model| format!(" ({model})"));
    let model = model.unwrap_or_default();
    format!("GPU {}{model}{}", joined(&names), at(Some(gpu.pci)))
}

fn joined(names: &[&str]) -> String {
    if names.is_empty() {
        "without a driver".to_owned()
    } else {
        names.join(", ")
    }
}

fn at(pci: Option<PciAddress>) -> String {
    pci.map(|address| format!(" at {address}"))
        .unwrap_or_default()
}

fn known_size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "of unknown size".to_owned(), size)
}

fn size(bytes: u64) -> String {
    Size(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(index: usize, numa: Option<usize>) -> Core {
        Core {
            index,
            locality: Locality {
                package: Some(0),
                numa,
            },
            cpus: vec![index, index + 10],
        }
    }

    #[test]
    fn cores_without_a_node_and_devices_without_a_driver_are_shown_all_the_same() {
        let machine = Topology {
            numa_nodes: vec![NumaNode {
                os_index: 0,
                package: None,
                memory_bytes: 3 << 30,
            }],
            packages: vec![lunette::runtime::topology::Package {
                os_index: 0,
                model: None,
            }],
            cores: vec![core(0, Some(0)), core(1, None), core(2, Some(7))],
            nics: vec![Nic {
                interfaces: Vec::new(),
                rdma_device: None,
                pci: None,
                bridges: Vec::new(),
                locality: Locality::default(),
            }],
            ..Topology::default()
        };
        let expected = "\
package 0: unknown model
  cores 1-2: CPUs 1+11 2+12
next to no package
  NUMA node 0: 3GiB
    core 0: CPUs 0+10
  NIC without a driver
";
        assert_eq!(tree(&machine), expected);
    }
}
