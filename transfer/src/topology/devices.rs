//! From what hwloc, sysfs and the system's interfaces say to a machine.

use std::collections::BTreeSet;

use lunette_runtime::net::InterfaceAddress;
use lunette_runtime::topology::{Gpu, Nic, Topology};
use lunette_transfer_proto::topology::{
    ADAPTERS_MAX, Adapter, AdapterAddress, LOCATIONS_MAX, Location, Machine, Memory, PciPath,
};

use super::sysfs::{Device, Interface, Rdma, Sysfs};

/// PCI's number for NVIDIA, whose GPUs CUDA counts.
const VENDOR_NVIDIA: u16 = 0x10de;
/// What libraries call a GPU before its number; of the second the order is that of the PCI bus, which is
/// CUDA's with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
const GPU_NAMES: [&str; 2] = ["cuda", "nvml"];

/// An adapter in the making.
#[derive(Debug)]
struct Found {
    rdma: Option<String>,
    interfaces: Vec<String>,
    pci: Option<PciPath>,
    numa: Option<u32>,
}

/// The machine. Where there is a topology, sysfs tells only of what it does not know.
pub(super) fn machine(
    topology: Option<&Topology>,
    sysfs: &Sysfs,
    addresses: &[InterfaceAddress],
) -> Machine {
    let memories = memories(topology, sysfs);
    let mut found: Vec<Found> = Vec::new();
    let nics = topology.map(|topology| &topology.nics[..]);
    for nic in nics.unwrap_or_default() {
        found.extend(of_nic(nic));
    }
    for rdma in &sysfs.rdma {
        add_rdma(&mut found, rdma);
    }
    let interfaces = sysfs.interfaces.iter();
    let (real, made): (Vec<_>, Vec<_>) = interfaces.partition(|i| i.device.is_some());
    for interface in real.into_iter().chain(made) {
        add_interface(&mut found, interface, sysfs, addresses);
    }
    let nodes: BTreeSet<u32> = memories.iter().filter_map(|memory| memory.numa).collect();
    let only = (nodes.len() == 1).then(|| nodes.first().copied()).flatten();
    let adapters = found
        .into_iter()
        .filter_map(|found| found.adapter(addresses));
    let mut adapters: Vec<Adapter> = adapters
        .map(|adapter| Adapter {
            // What is nowhere else is on the only node.
            numa: adapter.numa.or(only),
            ..adapter
        })
        .collect();
    let mut seen = BTreeSet::new();
    adapters.retain(|adapter| seen.insert(adapter.name.clone()));
    adapters.truncate(ADAPTERS_MAX);
    Machine { adapters, memories }
}

impl Found {
    fn adapter(self, addresses: &[InterfaceAddress]) -> Option<Adapter> {
        let name = self.rdma.as_ref().or(self.interfaces.first())?.clone();
        // Others would not be taken into a matrix.
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let own = addresses
            .iter()
            .filter(|address| self.interfaces.contains(&address.interface));
        let own = own.map(|address| AdapterAddress {
            ip: address.ip,
            prefix_bits: address.prefix_bits,
        });
        Some(Adapter {
            name,
            is_rdma: self.rdma.is_some(),
            addresses: own.collect(),
            interfaces: self.interfaces,
            pci: self.pci,
            numa: self.numa,
        })
    }

    fn is_at(&self, device: Option<&Device>) -> bool {
        let pci = device.and_then(|device| device.pci.as_ref());
        pci.is_some() && pci.map(PciPath::device) == self.pci.as_ref().map(PciPath::device)
    }
}

fn of_nic(nic: &Nic) -> Option<Found> {
    let is_named = nic.rdma_device.is_some() || !nic.interfaces.is_empty();
    is_named.then(|| Found {
        rdma: nic.rdma_device.clone(),
        interfaces: nic.interfaces.clone(),
        pci: nic.pci.map(|pci| PciPath::new(&nic.bridges, pci)),
        numa: number(nic.locality.numa),
    })
}

fn add_rdma(found: &mut Vec<Found>, rdma: &Rdma) {
    let interface = rdma.interface.as_ref();
    let is_known = |other: &&mut Found| other.rdma.as_ref() == Some(&rdma.name);
    if let Some(known) = found.iter_mut().find(is_known) {
        let is_new = |name: &&String| !known.interfaces.contains(name);
        let new = interface.filter(is_new).cloned();
        known.interfaces.extend(new);
        return;
    }
    found.push(Found {
        rdma: Some(rdma.name.clone()),
        interfaces: interface.cloned().into_iter().collect(),
        pci: rdma.device.as_ref().and_then(|device| device.pci.clone()),
        numa: rdma.device.as_ref().and_then(|device| device.numa),
    });
}

/// Adds an interface that no adapter has yet: to the adapter of its device, or as an adapter.
fn add_interface(
    found: &mut Vec<Found>,
    interface: &Interface,
    sysfs: &Sysfs,
    addresses: &[InterfaceAddress],
) {
    let is_known = |other: &Found| other.interfaces.contains(&interface.name);
    if found.iter().any(is_known) {
        return;
    }
    let is_same = |other: &&mut Found| other.is_at(interface.device.as_ref());
    if let Some(same) = found.iter_mut().find(is_same) {
        same.interfaces.push(interface.name.clone());
        return;
    }
    let device = match &interface.device {
        Some(device) => device.clone(),
        None => match beneath(found, interface, sysfs, addresses) {
            Some(device) => device,
            None => return,
        },
    };
    found.push(Found {
        rdma: None,
        interfaces: vec![interface.name.clone()],
        pci: device.pci,
        numa: device.numa,
    });
}

/// Where a virtual interface is: where those are that it is made of, if they are all in one place.
/// `None` if it leads out of this host over no device and has no address for that: loopback, bridges
/// between containers, and what is not used.
fn beneath(
    found: &[Found],
    interface: &Interface,
    sysfs: &Sysfs,
    addresses: &[InterfaceAddress],
) -> Option<Device> {
    let has_address = addresses
        .iter()
        .any(|address| address.interface == interface.name && !address.ip.is_loopback());
    let place = |name: &String| {
        // hwloc's word counts, where it has one.
        let known = found.iter().find(|other| other.interfaces.contains(name));
        let known = known.map(|other| Device {
            pci: other.pci.clone(),
            numa: other.numa,
        });
        known.or_else(|| {
            let lower = sysfs.interfaces.iter().find(|other| other.name == *name)?;
            lower.device.clone()
        })
    };
    let lowers: Vec<Device> = interface.lowers.iter().filter_map(place).collect();
    if !has_address || (interface.is_bridge && lowers.is_empty()) {
        return None;
    }
    let same = |pick: fn(&Device) -> bool| !lowers.is_empty() && lowers.iter().all(pick);
    let first = lowers.first().cloned();
    let is_one = lowers.len() == 1;
    let numa = first.as_ref().and_then(|device| device.numa);
    let is_near =
        same(|device| device.numa.is_some()) && lowers.iter().all(|device| device.numa == numa);
    Some(Device {
        pci: first.and_then(|device| device.pci).filter(|_| is_one),
        numa: numa.filter(|_| is_near),
    })
}

/// NUMA nodes, and the GPUs that CUDA counts.
fn memories(topology: Option<&Topology>, sysfs: &Sysfs) -> Vec<Memory> {
    let nodes: Vec<u32> = match topology {
        Some(topology) => {
            let nodes = topology.numa_nodes.iter();
            nodes
                .filter_map(|node| number(Some(node.os_index)))
                .collect()
        }
        None => sysfs.nodes.clone(),
    };
    let host = nodes.into_iter().map(|node| Memory {
        location: Location::Cpu(node),
        numa: Some(node),
        pci: None,
    });
    let gpus = match topology {
        Some(topology) => gpus(&topology.gpus),
        None => {
            let gpus = sysfs.gpus.iter().zip(0..);
            gpus.map(|(gpu, index)| gpu_memory(index, gpu.numa, gpu.pci.clone()))
                .collect()
        }
    };
    let mut seen = BTreeSet::new();
    let all = host.chain(gpus);
    // A matrix has a row for `*` beside these.
    all.filter(|memory| seen.insert(memory.location.clone()))
        .take(LOCATIONS_MAX - 1)
        .collect()
}

fn gpus(gpus: &[Gpu]) -> Vec<Memory> {
    let mut ours: Vec<&Gpu> = gpus
        .iter()
        .filter(|gpu| gpu.vendor_id == VENDOR_NVIDIA)
        .collect();
    ours.sort_by_key(|gpu| gpu.pci);
    let memory = |(gpu, place): (&&Gpu, u32)| {
        let said = GPU_NAMES.iter().find_map(|kind| counted(gpu, kind));
        let pci = PciPath::new(&gpu.bridges, gpu.pci);
        gpu_memory(said.unwrap_or(place), number(gpu.locality.numa), Some(pci))
    };
    ours.iter().zip(0..).map(memory).collect()
}

/// The number behind `kind` in one of a GPU's names.
fn counted(gpu: &Gpu, kind: &str) -> Option<u32> {
    let mut names = gpu.names.iter();
    names.find_map(|name| name.strip_prefix(kind)?.parse().ok())
}

fn gpu_memory(index: u32, numa: Option<u32>, pci: Option<PciPath>) -> Memory {
    Memory {
        location: Location::cuda(index),
        numa,
        pci,
    }
}

fn number(numa: Option<usize>) -> Option<u32> {
    numa.and_then(|node| u32::try_from(node).ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use lunette_runtime::topology::{Locality, NumaNode, PciAddress};

    use super::*;

    fn pci(text: &str) -> PciAddress {
        text.parse().expect("a place")
    }

    fn at(interface: &str, ip: &str) -> InterfaceAddress {
        InterfaceAddress {
            interface: interface.to_owned(),
            ip: ip.parse().expect("an address"),
            prefix_bits: 24,
        }
    }

    fn write(file: &Path, text: &str) {
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        fs::write(file, text).expect("written");
    }

    /// A tree like sysfs: two PCI devices with interfaces, of which one has an RDMA device too, a bond
    /// over both, a bridge between containers, one over an interface, a tunnel, a GPU, two nodes.
    fn tree(root: &Path) {
        let below = "devices/pci0000:00/0000:00:01.0";
        for (place, node) in [("0000:01:00.0", "0\n"), ("0000:02:00.0", "1\n")] {
            write(&root.join(below).join(place).join("numa_node"), node);
        }
        let gpu = root.join(below).join("0000:03:00.0");
        for (file, text) in [
            ("numa_node", "-1\n"),
            ("class", "0x030200\n"),
            ("vendor", "0x10de\n"),
        ] {
            write(&gpu.join(file), text);
        }
        let link = |from: &str, to: &str| {
            let (from, to) = (root.join(from), root.join(to));
            fs::create_dir_all(from.parent().expect("a folder")).expect("made");
            fs::create_dir_all(&to).expect("made");
            symlink(to, from).expect("linked");
        };
        link("class/net/eth0/device", &format!("{below}/0000:01:00.0"));
        link(
            "class/net/eth1/device",
            &format!("{below}/0000:02:00.0/virtio0"),
        );
        link(
            "class/infiniband/mlx5_0/device",
            &format!("{below}/0000:01:00.0"),
        );
        link(
            "bus/pci/devices/0000:03:00.0",
            &format!("{below}/0000:03:00.0"),
        );
        link(
            "bus/pci/devices/0000:01:00.0",
            &format!("{below}/0000:01:00.0"),
        );
        link("class/net/bond0/lower_eth0", "class/net/eth0");
        link("class/net/bond0/lower_eth1", "class/net/eth1");
        link("class/net/vlan7/lower_eth1", "class/net/eth1");
        link("class/net/br0/lower_eth1", "class/net/eth1");
        for folder in ["br0/bridge", "docker0/bridge", "lo", "tun0", "dummy0"] {
            fs::create_dir_all(root.join("class/net").join(folder)).expect("made");
        }
        write(
            &root.join("class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0"),
            "dummy0\n",
        );
        for node in ["node0", "node1", "power"] {
            fs::create_dir_all(root.join("devices/system/node").join(node)).expect("made");
        }
    }

    fn addresses() -> Vec<InterfaceAddress> {
        vec![
            at("lo", "127.0.0.1"),
            at("bond0", "10.0.0.1"),
            at("vlan7", "10.7.0.1"),
            at("br0", "10.8.0.1"),
            at("docker0", "172.17.0.1"),
            at("tun0", "10.9.0.1"),
            at("eth0", "10.1.0.1"),
            at("dummy0", "10.2.0.1"),
        ]
    }

    /// Name, interfaces, node, PCI device, addresses.
    fn shown(adapter: &Adapter) -> String {
        let Adapter {
            name,
            interfaces,
            numa,
            pci,
            addresses,
            ..
        } = adapter;
        let pci = pci.as_ref().map(|path| path.device().to_string());
        let addresses: Vec<_> = addresses.iter().map(|a| a.ip.to_string()).collect();
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        format!(
            "{name} [{}] {} {} [{}]",
            interfaces.join(" "),
            or_none(numa.map(|node| node.to_string())),
            or_none(pci),
            addresses.join(" ")
        )
    }

    fn places(machine: &Machine) -> Vec<String> {
        let memories = machine.memories.iter();
        memories.map(|memory| memory.location.to_string()).collect()
    }

    #[test]
    fn sysfs_alone_tells_of_devices_bonds_and_tunnels_but_not_of_what_stays_on_this_host() {
        let root = tempfile::tempdir().expect("a folder");
        tree(root.path());
        let sysfs = Sysfs::read(root.path());
        let machine = machine(None, &sysfs, &addresses());
        let adapters: Vec<String> = machine.adapters.iter().map(shown).collect();
        let expected = [
            "mlx5_0 [eth0] 0 0000:01:00.0 [10.1.0.1]",
            "rxe0 [dummy0] - - [10.2.0.1]",
            "eth1 [eth1] 1 0000:02:00.0 []",
            "bond0 [bond0] - - [10.0.0.1]",
            "br0 [br0] 1 0000:02:00.0 [10.8.0.1]",
            "tun0 [tun0] - - [10.9.0.1]",
            "vlan7 [vlan7] 1 0000:02:00.0 [10.7.0.1]",
        ];
        assert_eq!(adapters, expected);
        assert_eq!(places(&machine), ["cpu:0", "cpu:1", "cuda:0"]);
        assert_eq!(machine.memories[2].numa, None);
        let bridge = pci("0000:00:01.0");
        let gpu = PciPath::new(&[bridge], pci("0000:03:00.0"));
        assert_eq!(machine.memories[2].pci, Some(gpu));
        assert!(machine.matrix().is_ok());
    }

    #[test]
    fn hwlocs_word_counts_and_sysfs_adds_what_it_does_not_know() {
        let root = tempfile::tempdir().expect("a folder");
        tree(root.path());
        let sysfs = Sysfs::read(root.path());
        let near = |numa| Locality {
            package: None,
            numa: Some(numa),
        };
        let nic = |name: &str, rdma: Option<&str>, place: Option<&str>, numa| Nic {
            interfaces: Vec::from_iter((!name.is_empty()).then(|| name.to_owned())),
            rdma_device: rdma.map(str::to_owned),
            pci: place.map(pci),
            bridges: Vec::new(),
            locality: near(numa),
        };
        let topology = Topology {
            numa_nodes: vec![NumaNode {
                os_index: 3,
                package: None,
                memory_bytes: 1,
            }],
            nics: vec![
                nic("eth0", Some("mlx5_0"), Some("0000:01:00.0"), 3),
                nic("eth1", None, Some("0000:02:00.0"), 3),
                nic("", Some("rxe0"), None, 3),
                nic("", None, Some("0000:04:00.0"), 3),
            ],
            gpus: [("nvml1", 0x10de), ("cuda0", 0x10de), ("card0", 0x1002)]
                .map(|(name, vendor_id)| Gpu {
                    names: vec!["card9".to_owned(), name.to_owned()],
                    model: None,
                    vendor_id,
                    pci: pci("0000:03:00.0"),
                    bridges: Vec::new(),
                    locality: near(3),
                })
                .to_vec(),
            ..Topology::default()
        };
        let machine = machine(Some(&topology), &sysfs, &addresses());
        let adapters: Vec<String> = machine.adapters.iter().map(shown).collect();
        let expected = [
            "mlx5_0 [eth0] 3 0000:01:00.0 [10.1.0.1]",
            "eth1 [eth1] 3 0000:02:00.0 []",
            "rxe0 [dummy0] 3 - [10.2.0.1]",
            "bond0 [bond0] 3 - [10.0.0.1]",
            "br0 [br0] 3 0000:02:00.0 [10.8.0.1]",
            "tun0 [tun0] 3 - [10.9.0.1]",
            "vlan7 [vlan7] 3 0000:02:00.0 [10.7.0.1]",
        ];
        assert_eq!(adapters, expected);
        assert_eq!(places(&machine), ["cpu:3", "cuda:1", "cuda:0"]);
    }
}
