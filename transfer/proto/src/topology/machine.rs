//! A machine: its adapters, the places where memory lies, and what is near to what.

use std::net::IpAddr;

use lunette_runtime_core::pci::PciAddress;

use super::{Location, Matrix, MatrixFault};

/// A network adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// What it is called in a matrix: its RDMA device if it has one, else its first interface.
    pub name: String,
    /// Its interfaces, like `eth0`.
    pub interfaces: Vec<String>,
    /// Whether it is an RDMA device.
    pub is_rdma: bool,
    /// Its place on the PCI bus.
    pub pci: Option<PciPath>,
    /// The NUMA node that it is next to.
    pub numa: Option<u32>,
    /// The addresses of its interfaces.
    pub addresses: Vec<AdapterAddress>,
}

/// An address of this host, and the network that it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdapterAddress {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that all hosts of the network have in common.
    pub prefix_bits: u8,
}

impl AdapterAddress {
    /// How many leading bits another address of the same family has in common with this one.
    #[must_use]
    pub fn common_bits(&self, other: IpAddr) -> Option<u32> {
        match (self.ip, other) {
            (IpAddr::V4(here), IpAddr::V4(there)) => {
                Some((here.to_bits() ^ there.to_bits()).leading_zeros())
            }
            (IpAddr::V6(here), IpAddr::V6(there)) => {
                Some((here.to_bits() ^ there.to_bits()).leading_zeros())
            }
            _ => None,
        }
    }

    /// Whether another address is on the same network.
    #[must_use]
    pub fn reaches(&self, other: IpAddr) -> bool {
        self.common_bits(other)
            .is_some_and(|bits| bits >= u32::from(self.prefix_bits))
    }
}

/// A place where memory lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Where.
    pub location: Location,
    /// The NUMA node that it is on, or next to.
    pub numa: Option<u32>,
    /// Place of its device on the PCI bus; none for memory of the host.
    pub pci: Option<PciPath>,
}

/// What a matrix is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its adapters, of different names.
    pub adapters: Vec<Adapter>,
    /// Where memory lies.
    pub memories: Vec<Memory>,
}

/// The way from the root of a PCI bus down to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPath {
    /// The bridges, and the device last. Never empty.
    steps: Vec<PciAddress>,
}

impl PciPath {
    /// The way to `device`, over `bridges`, of which the first is next to the root.
    #[must_use]
    pub fn new(bridges: &[PciAddress], device: PciAddress) -> Self {
        let mut steps = bridges.to_vec();
        steps.push(device);
        Self { steps }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> PciAddress {
        *self.steps.last().expect("it ends at the device")
    }

    /// The root: whatever is on one bus at the top.
    fn root(&self) -> (u32, u8) {
        let first = self.steps.first().expect("it ends at the device");
        (first.domain, first.bus)
    }

    /// How many steps lead up from one device and down to the other. Two roots are joined above.
    #[must_use]
    pub fn hops(&self, other: &Self) -> usize {
        let pairs = self.steps.iter().zip(&other.steps);
        let common = pairs.take_while(|(here, there)| here == there).count();
        let apart = self.steps.len() + other.steps.len() - 2 * common;
        if self.root() == other.root() {
            apart
        } else {
            apart + 2
        }
    }
}

impl Machine {
    /// What is near to what:
    ///
    /// - memory of the host: the adapters on its NUMA node, then the others;
    /// - memory of a device: of the adapters on its NUMA node (of all, if there are none) those with
    ///   the fewest PCI hops; then the others on the node; then the others;
    /// - `*`: all alike.
    ///
    /// # Errors
    /// [`MatrixFault`]: adapters of one name, of a bad name, or too many.
    pub fn matrix(&self) -> Result<Matrix, MatrixFault> {
        let names = self.adapters.iter().map(|adapter| adapter.name.clone());
        let mut matrix = Matrix::new(names)?;
        let all: Vec<&Adapter> = self.adapters.iter().collect();
        matrix.insert(Location::Any, &[named(&all)])?;
        for memory in &self.memories {
            let tiers = tiers(memory, &all);
            let tiers: Vec<Vec<&str>> = tiers.iter().map(|tier| named(tier)).collect();
            matrix.insert(memory.location.clone(), &tiers)?;
        }
        Ok(matrix)
    }

    /// The adapter of a name.
    #[must_use]
    pub fn adapter(&self, name: &str) -> Option<&Adapter> {
        self.adapters.iter().find(|adapter| adapter.name == name)
    }
}

fn named<'a>(adapters: &[&'a Adapter]) -> Vec<&'a str> {
    adapters.iter().map(|adapter| &*adapter.name).collect()
}

/// The adapters by their distance to a memory.
fn tiers<'a>(memory: &Memory, all: &[&'a Adapter]) -> Vec<Vec<&'a Adapter>> {
    let is_beside = |adapter: &&Adapter| memory.numa.is_some() && adapter.numa == memory.numa;
    let (beside, elsewhere): (Vec<_>, Vec<_>) = all.iter().copied().partition(is_beside);
    let Some(device) = &memory.pci else {
        return vec![beside, elsewhere];
    };
    let is_alone = beside.is_empty();
    let (first, last) = if is_alone {
        (elsewhere, beside)
    } else {
        (beside, elsewhere)
    };
    let hops = |adapter: &Adapter| adapter.pci.as_ref().map(|path| path.hops(device));
    let Some(fewest) = first.iter().filter_map(|adapter| hops(adapter)).min() else {
        return vec![first, last];
    };
    let (nearest, others): (Vec<_>, Vec<_>) = first
        .into_iter()
        .partition(|adapter| hops(adapter) == Some(fewest));
    if is_alone {
        vec![nearest, others]
    } else {
        vec![nearest, others, last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(text: &str) -> PciAddress {
        text.parse().expect("a place")
    }

    fn path(steps: &[&str]) -> PciPath {
        let steps: Vec<PciAddress> = steps.iter().map(|step| pci(step)).collect();
        let (device, bridges) = steps.split_last().expect("a device");
        PciPath::new(bridges, *device)
    }

    fn adapter(name: &str, numa: Option<u32>, pci: Option<PciPath>) -> Adapter {
        Adapter {
            name: name.to_owned(),
            interfaces: Vec::new(),
            is_rdma: true,
            pci,
            numa,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn hops_are_counted_up_and_down() {
        let switch = ["0000:10:01.0", "0000:11:00.0"];
        let near = path(&[switch[0], switch[1], "0000:12:00.0", "0000:13:00.0"]);
        let sibling = path(&[switch[0], switch[1], "0000:12:01.0", "0000:14:00.0"]);
        let port = path(&["0000:10:02.0", "0000:15:00.0"]);
        let far = path(&["0000:20:01.0", "0000:21:00.0"]);
        assert_eq!(near.hops(&near), 0);
        assert_eq!(near.hops(&sibling), 4);
        assert_eq!((near.hops(&port), port.hops(&near)), (6, 6));
        assert_eq!(near.hops(&far), 8, "over the root");
        assert_eq!(near.device(), pci("0000:13:00.0"));
        // Two functions of one device on a root bus, and one alone on another.
        let (first, second) = (path(&["0000:00:03.0"]), path(&["0000:00:03.1"]));
        assert_eq!(first.hops(&second), 2);
        assert_eq!(first.hops(&path(&["0001:00:03.0"])), 4);
    }

    #[test]
    fn a_device_prefers_its_own_switch_then_its_node_then_the_others() {
        let at = |bridge: &str, device: &str| Some(path(&[bridge, device]));
        let machine = Machine {
            adapters: vec![
                adapter("far", Some(1), at("0000:20:01.0", "0000:21:00.0")),
                adapter("node", Some(0), at("0000:10:02.0", "0000:12:00.0")),
                adapter("switch", Some(0), at("0000:10:01.0", "0000:11:00.0")),
                adapter("nowhere", None, None),
            ],
            memories: vec![
                Memory {
                    location: Location::Cpu(0),
                    numa: Some(0),
                    pci: None,
                },
                Memory {
                    location: Location::Cpu(2),
                    numa: Some(2),
                    pci: None,
                },
                Memory {
                    location: Location::cuda(0),
                    numa: Some(0),
                    pci: at("0000:10:01.0", "0000:11:01.0"),
                },
                Memory {
                    location: Location::cuda(1),
                    numa: Some(2),
                    pci: at("0000:20:02.0", "0000:22:00.0"),
                },
            ],
        };
        let matrix = machine.matrix().expect("a matrix");
        let row = |location: &Location| matrix.row(location).expect("a row");
        let cpu: [&[&str]; 2] = [&["node", "switch"], &["far", "nowhere"]];
        assert_eq!(row(&Location::Cpu(0)), cpu);
        let all = ["far", "node", "switch", "nowhere"];
        let none_beside: [&[&str]; 2] = [&[], &all];
        assert_eq!(row(&Location::Cpu(2)), none_beside);
        let gpu: [&[&str]; 3] = [&["switch"], &["node"], &["far", "nowhere"]];
        assert_eq!(row(&Location::cuda(0)), gpu);
        let no_node: [&[&str]; 2] = [&["far"], &["node", "switch", "nowhere"]];
        assert_eq!(row(&Location::cuda(1)), no_node);
        assert_eq!(row(&Location::Any), [&all[..]]);
    }

    #[test]
    fn a_machine_has_one_adapter_of_a_name() {
        let machine = Machine {
            adapters: vec![adapter("a", None, None), adapter("a", None, None)],
            memories: Vec::new(),
        };
        let fault = machine.matrix().expect_err("two of a name");
        assert_eq!(fault, MatrixFault::SameName("a".to_owned()));
        assert_eq!(machine.adapter("a"), Some(&machine.adapters[0]));
        assert_eq!(machine.adapter("b"), None);
    }
}
