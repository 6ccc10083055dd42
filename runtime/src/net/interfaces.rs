//! The addresses of this host, asked for by rtnetlink (`rtnetlink(7)`).

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice};

/// Addresses that are read; a host with more shows the first ones.
pub const INTERFACE_ADDRESSES_MAX: usize = 4096;

/// `RTM_GETADDR`, as a dump of all (`linux/rtnetlink.h`, `linux/netlink.h`).
const GET_ADDRESSES: u16 = 22;
const REQUEST_DUMP: u16 = 0x301;
/// Kinds of messages: `RTM_NEWADDR`, `NLMSG_ERROR`, `NLMSG_DONE`.
const NEW_ADDRESS: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// A message's header; what a message about an address begins with; an attribute's header.
const HEADER_BYTES: usize = 16;
const ABOUT_BYTES: usize = 8;
const ATTRIBUTE_BYTES: usize = 4;
/// Messages and attributes begin at multiples of this.
const ALIGN_BYTES: usize = 4;
/// Attributes: the address, at the other end if the interface leads to one host only (`IFA_ADDRESS`),
/// and our own then (`IFA_LOCAL`).
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// Not usable: another host may have it (`IFA_F_DADFAILED`, `IFA_F_TENTATIVE`).
const UNUSABLE: u8 = 0x48;
/// The kernel answers in pieces of at most this.
const PIECE_BYTES: usize = 32 * 1024;
/// `IFF_UP`.
const IS_UP: u32 = 1;

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

/// The same, as the kernel says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    interface: u32,
    ip: IpAddr,
    prefix_bits: u8,
}

/// The addresses of all interfaces that are up, loopback included. It asks the system and may take a
/// while: for the control thread, or a program's start.
///
/// # Errors
/// The system's refusal.
pub fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    net::send(&socket, &request(), SendFlags::empty())?;
    let mut told = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    while told.len() < INTERFACE_ADDRESSES_MAX {
        let (_, len) = net::recv(&socket, &mut piece[..], RecvFlags::empty())?;
        if take(&piece[..len.min(PIECE_BYTES)], &mut told)? {
            break;
        }
    }
    told.truncate(INTERFACE_ADDRESSES_MAX);
    let addresses = told.into_iter().filter_map(|told| {
        // It may be gone by now.
        let interface = netdevice::index_to_name(&socket, told.interface).ok()?;
        is_up(&interface).then_some(InterfaceAddress {
            interface,
            ip: told.ip,
            prefix_bits: told.prefix_bits,
        })
    });
    Ok(addresses.collect())
}

/// Where sysfs is not there, an interface with an address is taken to be up.
fn is_up(interface: &str) -> bool {
    let flags = fs::read_to_string(format!("/sys/class/net/{interface}/flags"));
    let flags = flags.ok().and_then(|text| {
        let digits = text.trim().strip_prefix("0x")?;
        u32::from_str_radix(digits, 16).ok()
    });
    flags.is_none_or(|flags| flags & IS_UP != 0)
}

fn request() -> Vec<u8> {
    let len = HEADER_BYTES + ABOUT_BYTES;
    let mut request = u32::try_from(len).expect("short").to_ne_bytes().to_vec();
    request.extend(GET_ADDRESSES.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    // Neither a sequence nor a sender nor a family is asked for.
    request.resize(len, 0);
    request
}

/// Takes the addresses of a piece of the answer. Whether it was the last piece.
fn take(mut piece: &[u8], told: &mut Vec<Told>) -> Result<bool, Errno> {
    while let Some(len) = u32_at(piece, 0) {
        let message = piece.get(..len as usize).ok_or(Errno::BADMSG)?;
        let body = message.get(HEADER_BYTES..).ok_or(Errno::BADMSG)?;
        match u16_at(message, 4) {
            Some(DONE) => return Ok(true),
            Some(ERROR) => {
                let code = u32_at(body, 0).ok_or(Errno::BADMSG)?;
                let code = code.cast_signed().wrapping_neg();
                return Err(Errno::from_raw_os_error(code.max(1)));
            }
            Some(NEW_ADDRESS) => told.extend(address(body)),
            _ => {}
        }
        piece = rest(piece, message.len());
    }
    Ok(false)
}

/// What a message says of an address.
fn address(body: &[u8]) -> Option<Told> {
    let &[_family, prefix_bits, flags, _scope, ..] = body else {
        return None;
    };
    let interface = u32_at(body, 4)?;
    let mut attributes = body.get(ABOUT_BYTES..)?;
    let mut ip = None;
    while let (Some(len), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let attribute = attributes.get(..usize::from(len))?;
        let value = attribute.get(ATTRIBUTE_BYTES..)?;
        if kind == LOCAL || (kind == ADDRESS && ip.is_none()) {
            ip = parse(value);
        }
        attributes = rest(attributes, attribute.len());
    }
    let told = Told {
        interface,
        ip: ip?,
        prefix_bits,
    };
    (flags & UNUSABLE == 0).then_some(told)
}

fn parse(value: &[u8]) -> Option<IpAddr> {
    let v4 = || Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into());
    let v6 = || Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into());
    v4().or_else(v6)
}

/// What comes after the first `len` bytes, and after the gap behind them.
fn rest(bytes: &[u8], len: usize) -> &[u8] {
    bytes
        .get(len.next_multiple_of(ALIGN_BYTES)..)
        .unwrap_or_default()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(ATTRIBUTE_BYTES + value.len()).expect("short");
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(ALIGN_BYTES), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(HEADER_BYTES + body.len()).expect("short");
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(ALIGN_BYTES), 0);
        bytes
    }

    fn about(prefix_bits: u8, flags: u8, interface: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![2, prefix_bits, flags, 0];
        body.extend(interface.to_ne_bytes());
        body.extend(attributes.concat());
        message(NEW_ADDRESS, &body)
    }

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

    #[test]
    fn our_own_end_counts_and_addresses_that_may_be_somebody_elses_do_not() {
        let v6 = Ipv6Addr::LOCALHOST.octets();
        let piece = [
            about(
                24,
                0,
                2,
                &[attribute(8, &[1; 3]), attribute(ADDRESS, &[10, 0, 0, 1])],
            ),
            about(
                32,
                0x80,
                3,
                &[
                    attribute(ADDRESS, &[10, 0, 0, 9]),
                    attribute(LOCAL, &[10, 0, 0, 8]),
                ],
            ),
            about(64, 0x40, 3, &[attribute(ADDRESS, &v6)]),
            about(128, 0, 1, &[attribute(ADDRESS, &v6)]),
            about(0, 0, 1, &[attribute(ADDRESS, &[1; 5])]),
        ];
        let mut told = Vec::new();
        assert_eq!(take(&piece.concat(), &mut told), Ok(false));
        let told: Vec<_> = told
            .iter()
            .map(|told| format!("{} {}/{}", told.interface, told.ip, told.prefix_bits))
            .collect();
        assert_eq!(told, ["2 10.0.0.1/24", "3 10.0.0.8/32", "1 ::1/128"]);
        let done = message(DONE, &[0; 4]);
        assert_eq!(take(&done, &mut Vec::new()), Ok(true));
        let refused = message(ERROR, &(-1_i32).to_ne_bytes());
        assert_eq!(take(&refused, &mut Vec::new()), Err(Errno::PERM));
    }

    #[test]
    fn pieces_that_make_no_sense_end_nothing_but_the_question() {
        let whole = about(24, 0, 2, &[attribute(ADDRESS, &[10, 0, 0, 1])]);
        for len in 4..whole.len() {
            assert_eq!(take(&whole[..len], &mut Vec::new()), Err(Errno::BADMSG));
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let mut told = Vec::new();
                let read = take(&damaged, &mut told);
                assert!(told.len() <= 1, "{read:?}");
            }
        }
    }
}
