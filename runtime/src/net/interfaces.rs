//! The addresses of this host.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Addresses that are read; a host with more shows the first ones.
pub const INTERFACE_ADDRESSES_MAX: usize = 4096;

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface, like `eth0`.
    pub interface: String,
    /// Its address.
    pub ip: IpAddr,
    /// Leading bits that all hosts of the network have in common.
    pub prefix_bits: u8,
}

/// The addresses of all interfaces that are up, loopback included. It asks the system and may take a
/// while: for the control thread, or a program's start.
///
/// # Errors
/// The system's refusal.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut first = ptr::null_mut();
    // SAFETY: the place for the list's head is valid; the list is freed below, once.
    let result = unsafe { libc::getifaddrs(&raw mut first) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next: *const libc::ifaddrs = first;
    while !next.is_null() && addresses.len() < INTERFACE_ADDRESSES_MAX {
        // SAFETY: each entry of the list stays valid until the list is freed, below.
        let entry = unsafe { &*next };
        addresses.extend(read(entry));
        next = entry.ifa_next;
    }
    // SAFETY: the head that `getifaddrs` gave, which nothing points into any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// What an entry of the system's list says, if it is about an IP address of an interface that is up.
fn read(entry: &libc::ifaddrs) -> Option<InterfaceAddress> {
    let is_up = entry.ifa_flags & libc::IFF_UP.cast_unsigned() != 0;
    if !is_up || entry.ifa_addr.is_null() || entry.ifa_netmask.is_null() {
        return None;
    }
    // SAFETY: the system ends names with zero, and they live as long as the entry.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    // SAFETY: it is not null, and an address begins with its family.
    let family = unsafe { (*entry.ifa_addr).sa_family };
    // Masks need not name their family: it is that of the address.
    let (ip, prefix_bits) = match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: it is of this family, and not null.
            let ip = unsafe { v4(entry.ifa_addr) };
            // SAFETY: it is that address's mask, and not null.
            let mask = unsafe { v4(entry.ifa_netmask) };
            (IpAddr::V4(ip), mask.to_bits().leading_ones())
        }
        libc::AF_INET6 => {
            // SAFETY: it is of this family, and not null.
            let ip = unsafe { v6(entry.ifa_addr) };
            // SAFETY: it is that address's mask, and not null.
            let mask = unsafe { v6(entry.ifa_netmask) };
            (IpAddr::V6(ip), mask.to_bits().leading_ones())
        }
        _ => return None,
    };
    Some(InterfaceAddress {
        interface: name.to_string_lossy().into_owned(),
        ip,
        prefix_bits: u8::try_from(prefix_bits).expect("128 bits at most"),
    })
}

/// # Safety
/// It points to an IPv4 address of the system's, or to a mask of such.
const unsafe fn v4(address: *const libc::sockaddr) -> Ipv4Addr {
    // SAFETY: the caller says so; it may lie anywhere.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr))
}

/// # Safety
/// It points to an IPv6 address of the system's, or to a mask of such.
const unsafe fn v6(address: *const libc::sockaddr) -> Ipv6Addr {
    // SAFETY: the caller says so; it may lie anywhere.
    let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
    Ipv6Addr::from_octets(address.sin6_addr.s6_addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_addresses() {
        let addresses = interface_addresses().expect("the system says");
        let loopback = InterfaceAddress {
            interface: "lo".to_owned(),
            ip: Ipv4Addr::LOCALHOST.into(),
            prefix_bits: 8,
        };
        assert!(addresses.contains(&loopback), "{addresses:?}");
    }
}
