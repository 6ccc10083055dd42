//! What members write at the coordinator.
//!
//! ```text
//!  <prefix>/cluster        | LNCI | version (2) | cluster id (8) | name length (2) | name | CRC |
//!  <prefix>/members/<id>   | LNMR | version (2) | wire min, max | ttl_s (4) | length (2) | member | ... | CRC |
//!  <prefix>/map            a map
//!  <prefix>/quota/<name>   a quota
//! ```
//!
//! The first is written once and says whose prefix it is; the second is bound to its member's lease, and
//! may have more behind its member, which later versions know. Members that know no quotas pass their keys
//! over.

use lunette_runtime_core::codec::{Truncated, Writer};
use lunette_runtime_core::ids::NodeId;
use thiserror::Error;

use crate::framing::{Frame, FrameFault};
use crate::map::{MapFault, MapMember};
use crate::quota::is_quota_name;

/// Longest name of a cluster, in bytes.
pub const CLUSTER_NAME_BYTES_MAX: usize = 128;

const RECORD_VERSION: u16 = 1;
const IDENTITY: Frame = frame(*b"LNCI");
const REGISTRATION: Frame = frame(*b"LNMR");

/// Whose prefix it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterIdentity {
    /// Drawn when the cluster came into being.
    pub id: u64,
    /// What people call it.
    pub name: String,
}

/// What a member says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    /// Oldest and newest version that it speaks.
    pub(super) versions: (u8, u8),
    /// How long its lease is.
    pub(super) ttl_s: u32,
    pub(super) member: MapMember,
}

/// A value that is not what its key is for. Something else writes under the prefix, or a later
/// version does.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RecordFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It is something else, or of a later version.
    #[error("not a record of version {RECORD_VERSION}")]
    Unknown,
    /// Its bytes are damaged.
    #[error("the record is damaged")]
    Damaged,
    /// What it says of a member, or a map, makes no sense.
    #[error(transparent)]
    Map(#[from] MapFault),
}

impl From<FrameFault> for RecordFault {
    fn from(fault: FrameFault) -> Self {
        match fault {
            FrameFault::Truncated(fault) => Self::Truncated(fault),
            FrameFault::Unknown => Self::Unknown,
            FrameFault::Damaged => Self::Damaged,
        }
    }
}

const fn frame(magic: [u8; 4]) -> Frame {
    Frame {
        magic,
        version: RECORD_VERSION,
    }
}

impl ClusterIdentity {
    pub(super) fn encode(&self) -> Vec<u8> {
        IDENTITY.seal(|out| {
            Writer::new(out)
                .u64(self.id)
                .short_bytes(self.name.as_bytes());
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RecordFault> {
        let mut reader = IDENTITY.open(bytes)?;
        let id = reader.u64()?;
        let name = reader.short_bytes()?;
        let is_bounded = name.len() <= CLUSTER_NAME_BYTES_MAX && reader.is_empty();
        let name = core::str::from_utf8(name).ok().filter(|_| is_bounded);
        let name = name.ok_or(RecordFault::Damaged)?.to_owned();
        Ok(Self { id, name })
    }
}

impl Registration {
    pub(super) fn encode(&self) -> Vec<u8> {
        REGISTRATION.seal(|out| {
            Writer::new(out)
                .u8(self.versions.0)
                .u8(self.versions.1)
                .u32(self.ttl_s);
            let mut member = Vec::new();
            self.member.encode(&mut member);
            Writer::new(out).short_bytes(&member);
        })
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RecordFault> {
        let mut reader = REGISTRATION.open(bytes)?;
        let versions = (reader.u8()?, reader.u8()?);
        let ttl_s = reader.u32()?;
        let member = MapMember::decode(reader.short_bytes()?)?;
        if versions.0 == 0 || versions.0 > versions.1 {
            return Err(RecordFault::Damaged);
        }
        Ok(Self {
            versions,
            ttl_s,
            member,
        })
    }

    pub(super) const fn shares_version(&self, versions: (u8, u8)) -> bool {
        self.versions.0 <= versions.1 && versions.0 <= self.versions.1
    }
}

/// Under which key the cluster of this prefix has its map, a [`ClusterMap`](crate::map::ClusterMap), at its
/// coordinator.
#[must_use]
pub fn map_key(prefix: &str) -> Vec<u8> {
    Keys::new(prefix).map()
}

/// The keys of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    prefix: String,
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind<'a> {
    Identity,
    Map,
    Member(NodeId),
    Quota(&'a str),
    Other,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = format!("{}/", prefix.trim_end_matches('/'));
        Self { prefix }
    }

    pub(super) fn all(&self) -> crate::coordination::KeyRange {
        crate::coordination::KeyRange::prefix(self.prefix.as_bytes())
    }

    pub(super) fn identity(&self) -> Vec<u8> {
        format!("{}cluster", self.prefix).into_bytes()
    }

    pub(super) fn map(&self) -> Vec<u8> {
        format!("{}map", self.prefix).into_bytes()
    }

    pub(super) fn member(&self, id: NodeId) -> Vec<u8> {
        format!("{}members/{:016x}", self.prefix, id.0).into_bytes()
    }

    pub(super) fn quota(&self, name: &str) -> Vec<u8> {
        format!("{}quota/{name}", self.prefix).into_bytes()
    }

    pub(super) fn kind<'a>(&self, key: &'a [u8]) -> KeyKind<'a> {
        let key = core::str::from_utf8(key).ok();
        let Some(rest) = key.and_then(|key| key.strip_prefix(&self.prefix)) else {
            return KeyKind::Other;
        };
        match rest.split_once('/') {
            None if rest == "cluster" => KeyKind::Identity,
            None if rest == "map" => KeyKind::Map,
            Some(("members", digits)) if digits.len() == 16 => {
                let id = u64::from_str_radix(digits, 16).ok();
                id.map_or(KeyKind::Other, |id| KeyKind::Member(NodeId(id)))
            }
            // Names may have slashes.
            Some(("quota", name)) if is_quota_name(name) => KeyKind::Quota(name),
            _ => KeyKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime_core::checksum::crc32c;

    use super::*;

    fn registration() -> Registration {
        Registration {
            versions: (1, 2),
            ttl_s: 5,
            member: MapMember {
                cores: 2,
                ..MapMember::new(NodeId(7), 9, "192.0.2.1:7000".parse().unwrap())
            },
        }
    }

    /// The next version's members are longer.
    #[cfg(not(feature = "next-version"))]
    #[test]
    fn golden_records() {
        let identity = ClusterIdentity {
            id: 3,
            name: "kv".into(),
        };
        let bytes = identity.encode();
        let golden = [
            b'L', b'N', b'C', b'I', 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, b'k', b'v',
        ];
        assert_eq!(bytes[..bytes.len() - 4], golden);
        assert_eq!(ClusterIdentity::decode(&bytes), Ok(identity));
        let bytes = registration().encode();
        assert_eq!(
            bytes[..14],
            [b'L', b'N', b'M', b'R', 1, 0, 1, 2, 5, 0, 0, 0, 65, 0]
        );
        assert_eq!(bytes.len(), 14 + 65 + 4);
        assert_eq!(Registration::decode(&bytes), Ok(registration()));
    }

    #[test]
    fn what_later_versions_register_is_skipped() {
        let bytes = registration().encode();
        let content = &bytes[..bytes.len() - 4];
        let mut member = content[14..].to_vec();
        member.extend_from_slice(&[1, 2, 3]);
        let mut later = content[..12].to_vec();
        Writer::new(&mut later).short_bytes(&member).u64(9);
        let crc = crc32c(&later);
        Writer::new(&mut later).u32(crc);
        assert_eq!(Registration::decode(&later), Ok(registration()));
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let bytes = registration().encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(Registration::decode(&changed).is_err(), "byte {at}");
            assert!(Registration::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(ClusterIdentity::decode(&bytes).is_err());
    }

    #[test]
    fn versions_overlap_or_do_not() {
        for (versions, shared) in [
            ((1, 1), true),
            ((2, 9), true),
            ((1, 9), true),
            ((3, 3), false),
        ] {
            assert_eq!(
                registration().shares_version(versions),
                shared,
                "{versions:?}"
            );
        }
    }

    #[test]
    fn keys_are_recognized() {
        let keys = Keys::new("a/b/");
        assert_eq!(keys, Keys::new("a/b"));
        let id = NodeId(0xab);
        assert_eq!(keys.member(id), b"a/b/members/00000000000000ab");
        assert_eq!(keys.quota("team a"), b"a/b/quota/team a");
        let (longest, longer) = ("n".repeat(64), "n".repeat(65));
        for (key, kind) in [
            (keys.quota("default"), KeyKind::Quota("default")),
            (keys.quota("x/\u{e9}"), KeyKind::Quota("x/\u{e9}")),
            (keys.quota(&longest), KeyKind::Quota(&longest)),
            (keys.quota(&longer), KeyKind::Other),
            (keys.quota(""), KeyKind::Other),
            (b"a/b/quota".to_vec(), KeyKind::Other),
            (b"a/b/quota/\xff".to_vec(), KeyKind::Other),
            (keys.identity(), KeyKind::Identity),
            (keys.map(), KeyKind::Map),
            (keys.member(id), KeyKind::Member(id)),
            (b"a/b/members/ab".to_vec(), KeyKind::Other),
            (b"a/c/map".to_vec(), KeyKind::Other),
            (vec![0xff], KeyKind::Other),
        ] {
            assert_eq!(keys.kind(&key), kind);
            assert_eq!(keys.all().contains(&key), key.starts_with(b"a/b/"));
        }
    }
}
