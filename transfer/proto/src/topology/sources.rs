//! Which address of ours to connect from.

use std::net::IpAddr;

use super::{Adapter, AdapterAddress, Location, Machine, Matrix};

/// The addresses of a machine's adapters, chosen among for the memory at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    matrix: Matrix,
    location: Location,
    /// Adapters that the matrix knows, with their addresses.
    adapters: Vec<(String, Vec<AdapterAddress>)>,
}

impl Sources {
    /// For memory at `location` on `machine`, by `matrix`: that of the machine, or what an override
    /// makes of it. Adapters that the matrix does not know are not used.
    #[must_use]
    pub fn new(machine: &Machine, matrix: Matrix, location: Location) -> Self {
        let is_known = |adapter: &&Adapter| matrix.adapters().contains(&adapter.name);
        let known = machine.adapters.iter().filter(is_known);
        let adapters = known.map(|adapter| (adapter.name.clone(), adapter.addresses.clone()));
        Self {
            adapters: adapters.collect(),
            matrix,
            location,
        }
    }

    /// Where the memory lies.
    #[must_use]
    pub const fn location(&self) -> &Location {
        &self.location
    }

    /// The addresses to connect from to `target`, one of each adapter, in the order in which they should
    /// be tried: the nearest first, which take turns ([`Matrix::walk`]).
    ///
    /// They are those of adapters on the target's own network, if there are any. Else they are of all that
    /// could get there: of the target's family, and on loopback if, and only if, the target is.
    #[must_use]
    pub fn walk(&self, target: IpAddr, turn: u64) -> Vec<IpAddr> {
        let target = target.to_canonical();
        let walk = |is_direct: bool| -> Vec<IpAddr> {
            let address = |name: &str| self.address(name, target, is_direct);
            let fit = |name: &str| address(name).is_some();
            let names = self.matrix.walk(&self.location, turn, fit);
            names.into_iter().filter_map(address).collect()
        };
        let direct = walk(true);
        if direct.is_empty() {
            walk(false)
        } else {
            direct
        }
    }

    /// The address of an adapter that is closest to the target.
    fn address(&self, name: &str, target: IpAddr, is_direct: bool) -> Option<IpAddr> {
        let (_, addresses) = self.adapters.iter().find(|(known, _)| known == name)?;
        let fit = addresses.iter().filter(|address| {
            let is_near = !is_direct || address.reaches(target);
            is_near
                && address.ip.is_loopback() == target.is_loopback()
                && !is_link_local(address.ip)
        });
        let rated = fit.filter_map(|address| Some((address.common_bits(target)?, address.ip)));
        // Of several that are as close, the first.
        let best = rated.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, ip)| ip)
    }
}

/// Whether an address means something only together with an interface.
const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Memory;

    fn adapter(name: &str, numa: u32, addresses: &[(&str, u8)]) -> Adapter {
        let addresses = addresses.iter().map(|&(ip, prefix_bits)| AdapterAddress {
            ip: ip.parse().expect("an address"),
            prefix_bits,
        });
        Adapter {
            name: name.to_owned(),
            interfaces: vec![name.to_owned()],
            is_rdma: false,
            pci: None,
            numa: Some(numa),
            addresses: addresses.collect(),
        }
    }

    fn sources(adapters: Vec<Adapter>) -> Sources {
        let memory = Memory {
            location: Location::Cpu(0),
            numa: Some(0),
            pci: None,
        };
        let machine = Machine {
            adapters,
            memories: vec![memory],
        };
        let matrix = machine.matrix().expect("a matrix");
        Sources::new(&machine, matrix, Location::Cpu(0))
    }

    fn walk(sources: &Sources, target: &str, turn: u64) -> Vec<String> {
        let target = target.parse().expect("an address");
        let walk = sources.walk(target, turn).into_iter();
        walk.map(|ip| ip.to_string()).collect()
    }

    #[test]
    fn the_nearest_take_turns_then_come_the_others() {
        let sources = sources(vec![
            adapter("far", 1, &[("10.1.0.1", 24)]),
            adapter("near0", 0, &[("10.2.0.1", 24), ("fd00::1", 64)]),
            adapter("near1", 0, &[("10.3.0.1", 24)]),
        ]);
        let first = walk(&sources, "192.0.2.1", 0);
        assert_eq!(first, ["10.2.0.1", "10.3.0.1", "10.1.0.1"]);
        let second = walk(&sources, "192.0.2.1", 1);
        assert_eq!(second, ["10.3.0.1", "10.2.0.1", "10.1.0.1"]);
        // Whoever is on the target's network, however far from the memory.
        assert_eq!(walk(&sources, "10.1.0.9", 0), ["10.1.0.1"]);
        assert_eq!(walk(&sources, "2001:db8::1", 0), ["fd00::1"]);
        // An IPv4 address in IPv6's clothes.
        assert_eq!(walk(&sources, "::ffff:10.1.0.9", 0), ["10.1.0.1"]);
        assert_eq!(sources.location(), &Location::Cpu(0));
    }

    #[test]
    fn adapters_that_the_matrix_does_not_know_are_not_used() {
        let machine = Machine {
            adapters: vec![
                adapter("eth0", 0, &[("10.1.0.1", 24)]),
                adapter("eth1", 0, &[("10.2.0.1", 24)]),
            ],
            memories: Vec::new(),
        };
        let matrix = Matrix::new(["eth1".to_owned(), "eth9".to_owned()]).expect("a matrix");
        let sources = Sources::new(&machine, matrix, Location::Any);
        assert_eq!(walk(&sources, "10.1.0.9", 0), ["10.2.0.1"]);
    }

    #[test]
    fn loopback_talks_to_loopback_only_and_link_local_addresses_are_left_out() {
        let sources = sources(vec![
            adapter("lo", 0, &[("127.0.0.1", 8)]),
            adapter("eth0", 0, &[("fe80::1", 64), ("10.0.0.1", 24)]),
        ]);
        assert!(walk(&sources, "fe80::2", 0).is_empty());
        assert_eq!(walk(&sources, "192.0.2.1", 0), ["10.0.0.1"]);
        assert_eq!(walk(&sources, "127.9.9.9", 0), ["127.0.0.1"]);
    }

    #[test]
    fn of_several_addresses_the_closest_is_taken() {
        let addresses = [("10.0.0.1", 8), ("10.7.0.1", 16), ("10.7.3.1", 24)];
        let sources = sources(vec![adapter("eth0", 0, &addresses)]);
        let first = |target| walk(&sources, target, 0);
        assert_eq!(first("10.7.3.9"), ["10.7.3.1"]);
        assert_eq!(first("10.7.9.9"), ["10.7.0.1"]);
        assert_eq!(first("10.200.0.9"), ["10.0.0.1"]);
        let of_a_network = AdapterAddress {
            ip: "10.7.3.1".parse().expect("an address"),
            prefix_bits: 24,
        };
        assert!(of_a_network.reaches("10.7.3.255".parse().expect("an address")));
        assert!(!of_a_network.reaches("10.7.2.255".parse().expect("an address")));
        assert!(!of_a_network.reaches("::".parse().expect("an address")));
        let whole = AdapterAddress {
            prefix_bits: 0,
            ..of_a_network
        };
        assert!(whole.reaches("192.0.2.1".parse().expect("an address")));
    }
}
