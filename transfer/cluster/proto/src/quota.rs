//! Quotas of tenants: how many bytes each may have in the cluster.
//!
//! ```text
//!  0      4         6       14
//!  | LNTQ | version | bytes | CRC32C of all before |
//! ```
//!
//! All numbers are little-endian. That is one quota; whose it is, its key says, `<prefix>/quota/<name>`.
//! Quotas have no part in the map: nothing is moved because one has changed.

use std::collections::BTreeMap;

use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use thiserror::Error;

use crate::framing::{Frame, FrameFault};

/// Most quotas that count. Of more keys, the first by name do.
pub const QUOTAS_MAX: usize = 31;
/// Longest name of a tenant that has a quota, in bytes. It is UTF-8, and not empty.
pub const QUOTA_NAME_BYTES_MAX: usize = 64;

const MAGIC: [u8; 4] = *b"LNTQ";
const VERSION: u16 = 1;

/// The quotas of a cluster, in the order of the tenants' names. Who is not among them has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    by_name: BTreeMap<String, u64>,
}

/// A value that is no quota.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum QuotaFault {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It is something else.
    #[error("not a quota")]
    Unknown,
    /// A later version wrote it, and it came undamaged.
    #[error("a quota of version {version}, which is later than {VERSION}")]
    Later {
        /// Which one.
        version: u16,
    },
    /// Its bytes are damaged.
    #[error("the quota is damaged")]
    Damaged,
    /// It is of 0 bytes, which nobody can set.
    #[error("a quota of 0 bytes")]
    NoBytes,
}

impl From<FrameFault> for QuotaFault {
    fn from(fault: FrameFault) -> Self {
        match fault {
            FrameFault::Truncated(fault) => Self::Truncated(fault),
            FrameFault::Unknown => Self::Unknown,
            FrameFault::Damaged => Self::Damaged,
        }
    }
}

/// Whether a tenant of this name can have a quota: it has 1 to [`QUOTA_NAME_BYTES_MAX`] bytes.
#[must_use]
pub const fn is_quota_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= QUOTA_NAME_BYTES_MAX
}

/// A quota of so many bytes, as it is kept at the coordinator.
#[must_use]
pub fn encode_quota(bytes: u64) -> Vec<u8> {
    frame(VERSION).seal(|out| {
        Writer::new(out).u64(bytes);
    })
}

/// Reads a quota: so many bytes, above 0.
///
/// # Errors
/// [`QuotaFault`].
pub fn decode_quota(record: &[u8]) -> Result<u64, QuotaFault> {
    let mut header = Reader::new(record);
    header.bytes(MAGIC.len())?;
    let version = header.u16()?;
    // The frame is the same in each version, so what is damaged is not taken for what is later.
    let mut reader = frame(version).open(record)?;
    match version {
        VERSION => {}
        0 => return Err(QuotaFault::Unknown),
        version => return Err(QuotaFault::Later { version }),
    }
    let bytes = reader.u64()?;
    if !reader.is_empty() {
        return Err(QuotaFault::Damaged);
    }
    if bytes == 0 {
        return Err(QuotaFault::NoBytes);
    }
    Ok(bytes)
}

const fn frame(version: u16) -> Frame {
    Frame {
        magic: MAGIC,
        version,
    }
}

impl Quotas {
    /// The quota of the tenant of this name, in bytes; `None` if it has none.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    /// Each name with its quota in bytes, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.by_name
            .iter()
            .map(|(name, &bytes)| (name.as_str(), bytes))
    }

    /// How many tenants have one, at most [`QUOTAS_MAX`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether nobody has one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// What no coordinator keeps is left out: names that no tenant has, and 0 bytes. Of more than
/// [`QUOTAS_MAX`], the first by name are taken.
impl FromIterator<(String, u64)> for Quotas {
    fn from_iter<I: IntoIterator<Item = (String, u64)>>(quotas: I) -> Self {
        let mut by_name = BTreeMap::new();
        for (name, bytes) in quotas {
            if is_quota_name(&name) && bytes > 0 {
                by_name.insert(name, bytes);
            }
            if by_name.len() > QUOTAS_MAX {
                by_name.pop_last();
            }
        }
        Self { by_name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change here is a change of what running clusters have stored.
    #[test]
    fn golden_quota() {
        let record = encode_quota(0x0102_0304_0506);
        #[rustfmt::skip]
        let golden = [
            b'L', b'N', b'T', b'Q', 1, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0x65, 0x6c, 0xcc, 0xbc,
        ];
        assert_eq!(record, golden);
        assert_eq!(decode_quota(&record), Ok(0x0102_0304_0506));
        assert_eq!(decode_quota(&encode_quota(u64::MAX)), Ok(u64::MAX));
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let record = encode_quota(1 << 30);
        for len in 0..record.len() {
            assert!(decode_quota(&record[..len]).is_err(), "cut at {len}");
        }
        for bit in 0..record.len() * 8 {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let fault = decode_quota(&changed).unwrap_err();
            let expected = if bit < 32 {
                QuotaFault::Unknown
            } else {
                QuotaFault::Damaged
            };
            assert_eq!(fault, expected, "bit {bit}");
        }
        let longer = [&record[..], &[0]].concat();
        assert_eq!(decode_quota(&longer), Err(QuotaFault::Damaged));
        let more = frame(VERSION).seal(|out| out.extend_from_slice(&[1; 9]));
        assert_eq!(decode_quota(&more), Err(QuotaFault::Damaged));
    }

    #[test]
    fn what_a_later_version_wrote_is_told_apart() {
        for version in [2, 3, u16::MAX] {
            let later = frame(version).seal(|out| out.extend_from_slice(&[7; 20]));
            assert_eq!(decode_quota(&later), Err(QuotaFault::Later { version }));
            let mut damaged = later;
            damaged[9] ^= 1;
            assert_eq!(decode_quota(&damaged), Err(QuotaFault::Damaged));
        }
        let none = frame(0).seal(|out| out.extend_from_slice(&[7; 8]));
        assert_eq!(decode_quota(&none), Err(QuotaFault::Unknown));
    }

    #[test]
    fn no_quota_is_of_no_bytes() {
        assert_eq!(decode_quota(&encode_quota(0)), Err(QuotaFault::NoBytes));
        assert_eq!(decode_quota(&encode_quota(1)), Ok(1));
    }

    #[test]
    fn names_hold_their_limit_from_both_sides() {
        let longest = "n".repeat(QUOTA_NAME_BYTES_MAX);
        assert!(is_quota_name("default") && is_quota_name(&longest));
        assert!(!is_quota_name("") && !is_quota_name(&format!("{longest}n")));
        // Bytes are counted, not characters.
        assert!(!is_quota_name(
            &"\u{e9}".repeat(QUOTA_NAME_BYTES_MAX / 2 + 1)
        ));
    }

    #[test]
    fn the_first_by_name_count() {
        let numbered = |count: u64| (0..count).rev().map(|n| (format!("t{n:02}"), n + 1));
        let most: Quotas = numbered(QUOTAS_MAX as u64).collect();
        assert_eq!(most.len(), QUOTAS_MAX);
        let more: Quotas = numbered(QUOTAS_MAX as u64 + 3).collect();
        assert_eq!(more, most);
        let names: Vec<_> = most.iter().take(2).collect();
        assert_eq!(names, [("t00", 1), ("t01", 2)]);
        assert_eq!((most.get("t30"), most.get("t31")), (Some(31), None));
    }

    #[test]
    fn what_cannot_be_kept_is_left_out() {
        let pairs = [("", 1), ("a", 0), ("b", 2), ("b", 3)];
        let quotas: Quotas = pairs
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .into_iter()
            .collect();
        assert_eq!(quotas.iter().collect::<Vec<_>>(), [("b", 3)]);
        assert!(!quotas.is_empty() && Quotas::default().is_empty());
    }
}
