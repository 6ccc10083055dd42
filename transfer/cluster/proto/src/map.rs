//! The map of an epoch: who is a member, and with what weight.
//!
//! ```text
//!  0      4         6       8       16           24             26
//!  | LNMP | version | count | epoch | generation | member bytes | members ... | CRC32C of all before |
//!  a member, at least 57 bytes:
//!  0    8             16      17 (address, IPv4 mapped)  33     35       39      41     57      65
//!  | id | incarnation | flags | address                  | port | weight | cores | rack | since |
//! ```
//!
//! All numbers are little-endian; members are in the order of their ids, and a rack is its label padded with zeros.
//! Members of later versions are
//! longer: who knows fewer fields skips the rest, and who knows more takes what is missing for 0, which
//! means that nobody told. Who writes a map writes what it knows of each member, so a field is complete when all
//! members know it. The version changes only when what is there changes its meaning.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::limits::CORES_MAX;
use thiserror::Error;

use crate::rack::{RACK_BYTES_MAX, Rack};

/// Most members of one cluster.
pub const MEMBERS_MAX: usize = 1024;
/// Length of a member as it is written here, in bytes.
pub const MEMBER_BYTES: usize = MEMBER_BYTES_MIN + SINCE_BYTES + NEXT_BYTES;
/// Longest map as it is written here, in bytes.
pub const MAP_BYTES_MAX: usize = 30 + MEMBERS_MAX * MEMBER_BYTES;
/// Length of a member of the first version, in bytes.
const MEMBER_BYTES_MIN: usize = 41 + RACK_BYTES_MAX;
/// Since when it is a member, which the first writers did not tell.
const SINCE_BYTES: usize = 8;
/// What the next version adds to it.
const NEXT_BYTES: usize = if cfg!(feature = "next-version") { 4 } else { 0 };

const MAGIC: [u8; 4] = *b"LNMP";
const VERSION: u16 = 1;
const FLAG_DRAINING: u8 = 1;

/// The number of a map. Each map has a later one than the map before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// That of the first map of a cluster.
    pub const FIRST: Self = Self(1);
}

/// A node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapMember {
    /// Who it is. It has the same id after a restart.
    pub id: NodeId,
    /// Which of its lives this is: a process that starts draws another, above 0. What was held in
    /// memory in an earlier life is gone.
    pub incarnation: u64,
    /// Where it listens, and its name in the world.
    pub address: SocketAddr,
    /// Its share of homes, relative to the others' weights. 0: it is the home of nothing.
    pub home_weight: u32,
    /// The number of its cores.
    pub cores: u16,
    /// Whether it is leaving: the home of nothing, and to be emptied.
    pub is_draining: bool,
    /// What it fails together with.
    pub rack: Rack,
    /// The first map of those without a gap up to this one that it is in, in this life; 0 where nobody told. Who makes the map
    /// says so, not the member.
    pub since: Epoch,
    /// What the next version adds; 0 where nobody told.
    #[cfg(feature = "next-version")]
    pub next: u32,
}

/// The members of one epoch, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMap {
    epoch: Epoch,
    generation: u64,
    members: Vec<MapMember>,
}

/// Why there is no such map.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MapFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It is something else, or of a later version.
    #[error("not a map of version {VERSION}")]
    Unknown,
    /// Its bytes are damaged.
    #[error("the map is damaged")]
    Damaged,
    /// A cluster has at most [`MEMBERS_MAX`] members.
    #[error("{members} members are above the limit of {MEMBERS_MAX}")]
    TooManyMembers {
        /// How many were listed.
        members: usize,
    },
    /// Two members have one id, or they are out of order.
    #[error("{0} is out of order, or listed twice")]
    Order(NodeId),
    /// A field of a member is out of its range.
    #[error("{field} of {id} is out of range")]
    OutOfRange {
        /// The member.
        id: NodeId,
        /// The field.
        field: &'static str,
    },
}

impl MapMember {
    /// One of one core that is a home like others and stays, in no rack. Fields that differ are named before it.
    #[must_use]
    pub const fn new(id: NodeId, incarnation: u64, address: SocketAddr) -> Self {
        Self {
            id,
            incarnation,
            address,
            home_weight: 1,
            cores: 1,
            is_draining: false,
            rack: Rack::NONE,
            since: Epoch(0),
            #[cfg(feature = "next-version")]
            next: 0,
        }
    }

    /// Whether it has been in each map from that one on, in this life.
    #[must_use]
    pub const fn is_there_since(&self, epoch: Epoch) -> bool {
        self.since.0 > 0 && self.since.0 <= epoch.0
    }

    /// Its weight as a home now.
    #[must_use]
    pub const fn weight(&self) -> u32 {
        if self.is_draining {
            0
        } else {
            self.home_weight
        }
    }

    /// Checks its fields.
    ///
    /// # Errors
    /// [`MapFault::OutOfRange`] names the first that is out of range.
    pub fn check(&self) -> Result<(), MapFault> {
        let id = self.id;
        let out_of_range = |field| Err(MapFault::OutOfRange { id, field });
        if self.incarnation == 0 {
            return out_of_range("incarnation");
        }
        if self.cores == 0 || usize::from(self.cores) > CORES_MAX {
            return out_of_range("cores");
        }
        if self.address.port() == 0 || self.address.ip().is_unspecified() {
            return out_of_range("address");
        }
        Ok(())
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Writer::new(out)
            .u64(self.id.0)
            .u64(self.incarnation)
            .u8(if self.is_draining { FLAG_DRAINING } else { 0 })
            .bytes(&ip.octets())
            .u16(self.address.port())
            .u32(self.home_weight)
            .u16(self.cores)
            .bytes(self.rack.bytes())
            .u64(self.since.0);
        #[cfg(feature = "next-version")]
        Writer::new(out).u32(self.next);
    }

    /// Reads it. What follows the fields that are known here is skipped.
    ///
    /// # Errors
    /// [`MapFault`]: it is shorter than those of the first version, or a field is out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self, MapFault> {
        let mut reader = Reader::new(bytes);
        let id = NodeId(reader.u64()?);
        let incarnation = reader.u64()?;
        let flags = reader.u8()?;
        let ip = IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?)).to_canonical();
        let address = SocketAddr::new(ip, reader.u16()?);
        let (home_weight, cores) = (reader.u32()?, reader.u16()?);
        if flags & !FLAG_DRAINING != 0 {
            return Err(MapFault::OutOfRange { id, field: "flags" });
        }
        let is_draining = flags & FLAG_DRAINING != 0;
        let rack = Rack::from_bytes(&reader.array()?);
        let rack = rack.map_err(|_no_label| MapFault::OutOfRange { id, field: "rack" })?;
        let member = Self {
            id,
            incarnation,
            address,
            home_weight,
            cores,
            is_draining,
            rack,
            since: Epoch(reader.u64().unwrap_or(0)),
            #[cfg(feature = "next-version")]
            next: reader.u32().unwrap_or(0),
        };
        member.check()?;
        Ok(member)
    }
}

impl ClusterMap {
    /// The map of these members, in any order.
    ///
    /// # Errors
    /// [`MapFault`] names the first rule that the list breaks.
    pub fn new(
        epoch: Epoch,
        generation: u64,
        mut members: Vec<MapMember>,
    ) -> Result<Self, MapFault> {
        members.sort_by_key(|member| member.id);
        check(epoch, &members)?;
        Ok(Self {
            epoch,
            generation,
            members,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Records of earlier generations are dead everywhere: "remove all" raises it.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The members, in the order of their ids.
    #[must_use]
    pub fn members(&self) -> &[MapMember] {
        &self.members
    }

    /// The member with this id.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&MapMember> {
        let index = self.members.binary_search_by_key(&id, |member| member.id);
        index.ok().map(|index| &self.members[index])
    }

    /// The map as it is kept at the coordinator and told among nodes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(30 + self.members.len() * MEMBER_BYTES);
        let count = u16::try_from(self.members.len()).expect("members are bounded");
        let member_bytes = u16::try_from(MEMBER_BYTES).expect("members are short");
        Writer::new(&mut out)
            .bytes(&MAGIC)
            .u16(VERSION)
            .u16(count)
            .u64(self.epoch.0)
            .u64(self.generation)
            .u16(member_bytes);
        for member in &self.members {
            member.encode(&mut out);
        }
        let crc = crc32c(&out);
        Writer::new(&mut out).u32(crc);
        out
    }

    /// Reads a map.
    ///
    /// # Errors
    /// [`MapFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MapFault> {
        let Some((content, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(Truncated {
                needed_bytes: 4,
                left_bytes: bytes.len(),
            }
            .into());
        };
        let mut reader = Reader::new(content);
        if reader.array()? != MAGIC || reader.u16()? != VERSION {
            return Err(MapFault::Unknown);
        }
        if crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(MapFault::Damaged);
        }
        let count = usize::from(reader.u16()?);
        let (epoch, generation) = (Epoch(reader.u64()?), reader.u64()?);
        let member_bytes = usize::from(reader.u16()?);
        if count > MEMBERS_MAX {
            return Err(MapFault::TooManyMembers { members: count });
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            members.push(MapMember::decode(reader.bytes(member_bytes)?)?);
        }
        if !reader.is_empty() {
            return Err(MapFault::Damaged);
        }
        check(epoch, &members)?;
        Ok(Self {
            epoch,
            generation,
            members,
        })
    }
}

/// Whether these members, in order, make a map.
fn check(epoch: Epoch, members: &[MapMember]) -> Result<(), MapFault> {
    if members.len() > MEMBERS_MAX {
        let members = members.len();
        return Err(MapFault::TooManyMembers { members });
    }
    for member in members {
        member.check()?;
        if member.since > epoch {
            let (id, field) = (member.id, "since");
            return Err(MapFault::OutOfRange { id, field });
        }
    }
    for pair in members.windows(2) {
        if pair[0].id >= pair[1].id {
            return Err(MapFault::Order(pair[1].id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64) -> MapMember {
        MapMember {
            home_weight: 3,
            cores: 4,
            since: Epoch(4),
            ..MapMember::new(NodeId(id), 0x0102, "192.0.2.1:7000".parse().unwrap())
        }
    }

    /// A change here is a change of what running clusters have stored. The next version's members are longer.
    #[cfg(not(feature = "next-version"))]
    #[test]
    fn golden_map() {
        let leaving = MapMember {
            address: "[2001:db8::1]:7001".parse().unwrap(),
            is_draining: true,
            rack: "r7".parse().unwrap(),
            ..member(9)
        };
        let map = ClusterMap::new(Epoch(5), 6, vec![leaving, member(8)]).unwrap();
        #[rustfmt::skip]
        let golden = [
            b'L', b'N', b'M', b'P', 1, 0, 2, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0,
            65, 0,
            8, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1, 0x58, 0x1b, 3, 0, 0, 0, 4, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
            9, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1,
            0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x59, 0x1b, 3, 0, 0, 0, 4, 0,
            b'r', b'7', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
        ];
        let bytes = map.encode();
        assert_eq!(bytes[..bytes.len() - 4], golden);
        assert_eq!(bytes.len(), 30 + 2 * MEMBER_BYTES);
        assert_eq!(ClusterMap::decode(&bytes), Ok(map.clone()));
        assert_eq!(map.member(NodeId(9)).map(MapMember::weight), Some(0));
        assert_eq!(map.member(NodeId(7)), None);
    }

    /// The content of a map, sealed anew after it was changed.
    fn sealed(content: &[u8]) -> Vec<u8> {
        [content, &crc32c(content).to_le_bytes()].concat()
    }

    #[test]
    fn what_later_versions_say_of_members_is_skipped() {
        let map = ClusterMap::new(Epoch(5), 6, vec![member(8), member(9)]).unwrap();
        let bytes = map.encode();
        let len = |bytes: usize| u16::try_from(bytes).unwrap().to_le_bytes();
        let mut later = bytes[..24].to_vec();
        later.extend_from_slice(&len(MEMBER_BYTES + 3));
        for one in 0..2 {
            later.extend_from_slice(&bytes[26 + one * MEMBER_BYTES..][..MEMBER_BYTES]);
            later.extend_from_slice(&[7, 8, 9]);
        }
        assert_eq!(ClusterMap::decode(&sealed(&later)), Ok(map));
        let mut shorter = bytes[..24].to_vec();
        let too_few = MEMBER_BYTES_MIN - 1;
        shorter.extend_from_slice(&len(too_few));
        for one in 0..2 {
            shorter.extend_from_slice(&bytes[26 + one * MEMBER_BYTES..][..too_few]);
        }
        let fault = ClusterMap::decode(&sealed(&shorter)).unwrap_err();
        assert!(matches!(fault, MapFault::Truncated(_)), "{fault}");
    }

    #[test]
    fn a_rack_is_told_with_its_member() {
        let racked = MapMember {
            rack: "r7".parse().unwrap(),
            ..member(8)
        };
        let map = ClusterMap::new(Epoch(5), 6, vec![racked, member(9)]).unwrap();
        let bytes = map.encode();
        let label = &bytes[26 + 41..][..RACK_BYTES_MAX];
        assert_eq!(label, b"r7\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(ClusterMap::decode(&bytes), Ok(map));
        let mut spaced = bytes[..bytes.len() - 4].to_vec();
        spaced[26 + 41] = b' ';
        let (id, field) = (NodeId(8), "rack");
        let fault = MapFault::OutOfRange { id, field };
        assert_eq!(ClusterMap::decode(&sealed(&spaced)), Err(fault));
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let bytes = ClusterMap::new(Epoch(5), 0, vec![member(1)])
            .unwrap()
            .encode();
        for len in 0..bytes.len() {
            assert!(ClusterMap::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(ClusterMap::decode(&changed).is_err(), "byte {at}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(ClusterMap::decode(&longer), Err(MapFault::Damaged));
    }

    #[test]
    fn members_are_bounded_and_each_is_there_once() {
        let map = |count: u64| ClusterMap::new(Epoch(5), 0, (1..=count).map(member).collect());
        let racked = |id| MapMember {
            rack: "0123456789abcdef".parse().unwrap(),
            ..member(id)
        };
        let most = (1..=MEMBERS_MAX as u64).map(racked).collect();
        let most = ClusterMap::new(Epoch(5), 0, most).unwrap();
        assert_eq!(most.encode().len(), MAP_BYTES_MAX);
        assert_eq!(ClusterMap::decode(&most.encode()), Ok(most));
        let members = MEMBERS_MAX + 1;
        assert_eq!(
            map(members as u64),
            Err(MapFault::TooManyMembers { members })
        );
        let twice = ClusterMap::new(Epoch(5), 0, vec![member(1), member(1)]);
        assert_eq!(twice, Err(MapFault::Order(NodeId(1))));
    }

    #[test]
    fn fields_of_members_are_checked_from_both_sides() {
        let cores = u16::try_from(CORES_MAX).unwrap();
        for (member, field) in [
            (
                MapMember {
                    incarnation: 0,
                    ..member(1)
                },
                "incarnation",
            ),
            (
                MapMember {
                    cores: 0,
                    ..member(1)
                },
                "cores",
            ),
            (
                MapMember {
                    cores: cores + 1,
                    ..member(1)
                },
                "cores",
            ),
            (
                MapMember {
                    address: "192.0.2.1:0".parse().unwrap(),
                    ..member(1)
                },
                "address",
            ),
            (
                MapMember {
                    address: "0.0.0.0:1".parse().unwrap(),
                    ..member(1)
                },
                "address",
            ),
        ] {
            let id = NodeId(1);
            let expected = Err(MapFault::OutOfRange { id, field });
            assert_eq!(ClusterMap::new(Epoch(5), 0, vec![member]), expected);
        }
        for member in [
            MapMember { cores, ..member(1) },
            MapMember {
                home_weight: 0,
                ..member(1)
            },
        ] {
            assert_eq!(member.check(), Ok(()));
        }
    }
}
