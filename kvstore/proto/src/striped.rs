//! Objects in parts: those that are too long for one copy, or that are to be read from many nodes at a time.
//!
//! A part is an object like others, under a key that no caller can choose: made of the object's fingerprint, of
//! a number that is drawn for each write, and of the part's place. So the parts of two writers never meet, and
//! none is written twice. What is under the object's own key is a [`Manifest`], of the
//! form [`Striped`](crate::version::Form::Striped): with it the object is there, and without it is not.
//!
//! ```text
//!  manifest:  "LNST" | format u16 | zero u16 | part length u32 | length u64 | write u128 | crc32c u32
//!  part key:  RESERVED_PREFIX (8 bytes) | fingerprint of the object's key u128 | write u128 | place u32
//! ```
//!
//! Where the object is not the default [tenant](crate::tenant)'s, that one's tag follows (u64).
//! All fields are little-endian. The CRC32C covers what is before it. Each part's own is with its copies.

use std::collections::BTreeMap;

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::{Reader, Truncated, Writer};
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use thiserror::Error;

use crate::key::{Fingerprint, Key, RESERVED_PREFIX};
use crate::range::ByteRange;
use crate::tenant::TenantTag;

/// Longest object, in bytes.
pub const OBJECT_LEN_MAX: u64 = 16 << 30;
/// Most parts of an object.
pub const PARTS_MAX: u32 = 1024;
/// Length of parts in bytes where no other is wished for: the longest object has [`PARTS_MAX`] of them.
pub const PART_LEN_DEFAULT: u32 = 16 << 20;
/// Length of a manifest in bytes.
pub const MANIFEST_BYTES: usize = 40;
/// Length of a part's key in bytes, where it is the default tenant's.
pub const PART_KEY_BYTES: usize = 44;
/// Length of a part's key in bytes, where it is another tenant's.
const TENANT_PART_KEY_BYTES: usize = PART_KEY_BYTES + 8;

const MAGIC: [u8; 4] = *b"LNST";
const FORMAT: u16 = 1;
const CRC_OFFSET: usize = MANIFEST_BYTES - 4;

const _: () = assert!(PART_LEN_DEFAULT as u64 * PARTS_MAX as u64 == OBJECT_LEN_MAX);
const _: () = assert!(PART_LEN_DEFAULT as usize <= PAYLOAD_BYTES_MAX);

/// Names one write of a striped object: drawn at random by its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u128);

/// Whose parts: what all of their keys are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartsOf {
    key: Fingerprint,
    tenant: TenantTag,
}

impl From<Key<'_>> for PartsOf {
    fn from(key: Key<'_>) -> Self {
        Self {
            key: key.fingerprint(),
            tenant: TenantTag::of(key),
        }
    }
}

/// The key of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartKey {
    bytes: [u8; TENANT_PART_KEY_BYTES],
    len: usize,
}

impl PartKey {
    /// As messages and owners have it.
    #[must_use]
    pub fn key(&self) -> Key<'_> {
        Key::new(&self.bytes[..self.len]).expect("a part's key is one")
    }
}

/// An object is longer than an object may be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("an object of {len_bytes} bytes exceeds the limit of {OBJECT_LEN_MAX}")]
pub struct ObjectTooLong {
    /// Its length.
    pub len_bytes: u64,
}

/// Why bytes are no manifest.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ManifestFault {
    /// They end too early.
    #[error("manifest: {0}")]
    Truncated(#[from] Truncated),
    /// So many follow.
    #[error("{0} bytes follow a manifest")]
    Trailing(usize),
    /// They do not begin as one does.
    #[error("no manifest begins here")]
    NoManifest,
    /// Written by a later version of this program.
    #[error("manifest format {0} is unknown")]
    UnknownFormat(u16),
    /// They have changed.
    #[error("manifest is damaged: checksum {found:#010x}, expected {expected:#010x}")]
    Damaged {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum that they carry.
        expected: u32,
    },
    /// The checksum matches, but a field lies outside its limits: the writer was at fault.
    #[error("manifest field {0} is out of its limits")]
    FieldOutOfLimits(&'static str),
}

impl ManifestFault {
    /// Whether bytes that were once right have changed.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::NoManifest | Self::Damaged { .. })
    }
}

/// What is under a striped object's key: how its parts are found, and what they are.
///
/// Every manifest that there is, made or decoded, lies within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    len_bytes: u64,
    part_len_bytes: u32,
    write: WriteId,
}

/// One part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its place, from 0.
    pub place: u32,
    /// Its first byte, counted from the object's.
    pub offset_bytes: u64,
    /// Its length in bytes: the last one may be shorter than the others.
    pub len_bytes: u32,
}

/// What is read of one part, in one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRead {
    /// The part.
    pub part: Part,
    /// Which of its bytes: at most [`RANGES_MAX`](crate::range::RANGES_MAX), which come to at most
    /// [`PAYLOAD_BYTES_MAX`].
    pub ranges: Vec<ByteRange>,
    /// Where each of them goes, counted from the first byte of what the whole read brings.
    pub to: Vec<u64>,
}

impl PartRead {
    /// Whether it is all of the part, once.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let part = ByteRange {
            offset_bytes: 0,
            len_bytes: self.part.len_bytes,
        };
        self.ranges == [part]
    }

    /// How many bytes it brings.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        crate::range::total_bytes(&self.ranges)
    }
}

/// The length of the parts of an object of `len_bytes`, whose writer wishes for `stripe_len` or for nothing;
/// `None` if it is in one piece. Where there would be more than [`PARTS_MAX`], parts are longer.
///
/// # Errors
/// [`ObjectTooLong`].
pub fn part_len(len_bytes: u64, stripe_len: Option<u32>) -> Result<Option<u32>, ObjectTooLong> {
    if len_bytes > OBJECT_LEN_MAX {
        return Err(ObjectTooLong { len_bytes });
    }
    let longest = u32::try_from(PAYLOAD_BYTES_MAX).expect("a payload's length fits");
    let in_one = stripe_len.map_or(longest, |wish| wish.clamp(1, longest));
    if len_bytes <= in_one.into() {
        return Ok(None);
    }
    let wish = stripe_len.map_or(PART_LEN_DEFAULT, |_| in_one);
    let least = len_bytes.div_ceil(PARTS_MAX.into());
    let least = u32::try_from(least).expect("the longest object has parts of the default length");
    Ok(Some(wish.max(least)))
}

impl Manifest {
    /// Of an object of `len_bytes` in parts of `part_len_bytes`.
    ///
    /// # Errors
    /// [`ManifestFault::FieldOutOfLimits`]: which of them is.
    pub const fn new(
        len_bytes: u64,
        part_len_bytes: u32,
        write: WriteId,
    ) -> Result<Self, ManifestFault> {
        if part_len_bytes == 0 || part_len_bytes as usize > PAYLOAD_BYTES_MAX {
            return Err(ManifestFault::FieldOutOfLimits("part length"));
        }
        let is_long = len_bytes > OBJECT_LEN_MAX;
        if len_bytes == 0 || is_long || len_bytes.div_ceil(part_len_bytes as u64) > PARTS_MAX as u64
        {
            return Err(ManifestFault::FieldOutOfLimits("length"));
        }
        Ok(Self {
            len_bytes,
            part_len_bytes,
            write,
        })
    }

    /// Length of the object in bytes: 1 to [`OBJECT_LEN_MAX`].
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Length of every part but the last, in bytes.
    #[must_use]
    pub const fn part_len_bytes(&self) -> u32 {
        self.part_len_bytes
    }

    /// The write that its parts are of.
    #[must_use]
    pub const fn write(&self) -> WriteId {
        self.write
    }

    /// How many parts there are: 1 to [`PARTS_MAX`].
    #[must_use]
    pub fn count(&self) -> u32 {
        let count = self.len_bytes.div_ceil(self.part_len_bytes.into());
        u32::try_from(count).expect("at most PARTS_MAX")
    }

    /// Its parts, in order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Part> + use<> {
        let manifest = *self;
        (0..self.count()).map(move |place| manifest.part(place))
    }

    fn part(&self, place: u32) -> Part {
        let offset_bytes = u64::from(place) * u64::from(self.part_len_bytes);
        let rest = self.len_bytes.saturating_sub(offset_bytes);
        let len_bytes = rest.min(self.part_len_bytes.into());
        Part {
            place,
            offset_bytes,
            len_bytes: u32::try_from(len_bytes).expect("at most a part's length"),
        }
    }

    /// The key of a part of that object.
    #[must_use]
    pub fn part_key(&self, of: PartsOf, place: u32) -> PartKey {
        let mut bytes = [0; TENANT_PART_KEY_BYTES];
        bytes[..8].copy_from_slice(RESERVED_PREFIX);
        bytes[8..24].copy_from_slice(&of.key.0.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.write.0.to_le_bytes());
        bytes[40..44].copy_from_slice(&place.to_le_bytes());
        bytes[PART_KEY_BYTES..].copy_from_slice(&of.tenant.0.to_le_bytes());
        let len = if of.tenant == TenantTag::DEFAULT {
            PART_KEY_BYTES
        } else {
            TENANT_PART_KEY_BYTES
        };
        PartKey { bytes, len }
    }

    /// What a read of these ranges is, one after the other, or of everything if there are none: by part, so that
    /// no part is asked more often than its bytes need. `None` if a range does not lie inside the object.
    #[must_use]
    pub fn reads(&self, ranges: &[ByteRange]) -> Option<Vec<PartRead>> {
        if ranges.is_empty() {
            return Some(self.parts().map(whole_read).collect());
        }
        if !ranges.iter().all(|range| range.is_within(self.len_bytes)) {
            return None;
        }
        let mut by_part: BTreeMap<u32, Vec<PartRead>> = BTreeMap::new();
        let mut to = 0;
        for range in ranges {
            let (mut at, end) = (range.offset_bytes, range.end_bytes());
            while at < end {
                let place = u32::try_from(at / u64::from(self.part_len_bytes));
                let part = self.part(place.expect("inside the object"));
                let until = end.min(part.offset_bytes + u64::from(part.len_bytes));
                let within = ByteRange {
                    offset_bytes: at - part.offset_bytes,
                    len_bytes: u32::try_from(until - at).expect("inside a part"),
                };
                add_read(by_part.entry(part.place).or_default(), part, within, to);
                to += until - at;
                at = until;
            }
        }
        Some(by_part.into_values().flatten().collect())
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MANIFEST_BYTES] {
        let mut bytes = Vec::with_capacity(MANIFEST_BYTES);
        bytes.extend_from_slice(&MAGIC);
        let mut out = Writer::new(&mut bytes);
        out.u16(FORMAT);
        out.u16(0);
        out.u32(self.part_len_bytes);
        out.u64(self.len_bytes);
        bytes.extend_from_slice(&self.write.0.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.try_into().expect("its fields come to its length")
    }

    /// The manifest that `bytes` are.
    ///
    /// # Errors
    /// [`ManifestFault`] if they are anything else than one manifest within the limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestFault> {
        let mut reader = Reader::new(bytes);
        let whole: [u8; MANIFEST_BYTES] = reader.array()?;
        if !reader.rest().is_empty() {
            return Err(ManifestFault::Trailing(reader.rest().len()));
        }
        let (covered, crc) = whole.split_at(CRC_OFFSET);
        let mut fields = Reader::new(covered);
        if fields.array()? != MAGIC {
            return Err(ManifestFault::NoManifest);
        }
        let (found, expected) = (crc32c(covered), Reader::new(crc).u32()?);
        if found != expected {
            return Err(ManifestFault::Damaged { found, expected });
        }
        let format = fields.u16()?;
        if format != FORMAT {
            return Err(ManifestFault::UnknownFormat(format));
        }
        if fields.u16()? != 0 {
            return Err(ManifestFault::FieldOutOfLimits("zero"));
        }
        let (part_len_bytes, len_bytes) = (fields.u32()?, fields.u64()?);
        Self::new(len_bytes, part_len_bytes, WriteId(fields.u128()?))
    }
}

fn whole_read(part: Part) -> PartRead {
    let all = ByteRange {
        offset_bytes: 0,
        len_bytes: part.len_bytes,
    };
    PartRead {
        part,
        ranges: vec![all],
        to: vec![part.offset_bytes],
    }
}

/// With the others of the part, unless they come to more than one answer carries.
fn add_read(reads: &mut Vec<PartRead>, part: Part, range: ByteRange, to: u64) {
    let fits = |read: &PartRead| {
        let len_bytes = read.len_bytes() + u64::from(range.len_bytes);
        len_bytes <= PAYLOAD_BYTES_MAX as u64 && read.ranges.len() < crate::range::RANGES_MAX
    };
    match reads.last_mut() {
        Some(read) if fits(read) => {
            read.ranges.push(range);
            read.to.push(to);
        }
        _ => reads.push(PartRead {
            part,
            ranges: vec![range],
            to: vec![to],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const WRITE: WriteId = WriteId(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);

    fn manifest(len_bytes: u64, part_len_bytes: u32) -> Manifest {
        Manifest::new(len_bytes, part_len_bytes, WRITE).expect("within the limits")
    }

    #[test]
    fn golden_manifest_and_key() {
        let bytes = manifest(0x0102_0304, 0x0001_0000).encode();
        let golden = [
            0x4c, 0x4e, 0x53, 0x54, 1, 0, 0, 0, 0, 0, 1, 0, 4, 3, 2, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4,
            5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        ];
        assert_eq!(bytes[..CRC_OFFSET], golden);
        assert_eq!(bytes[CRC_OFFSET..], crc32c(&golden).to_le_bytes());
        assert_eq!(
            Manifest::decode(&bytes),
            Ok(manifest(0x0102_0304, 0x0001_0000))
        );
        let of = |tenant| PartsOf {
            key: Fingerprint(1),
            tenant: TenantTag(tenant),
        };
        let key = manifest(9, 4).part_key(of(0), 2);
        let key = key.key().bytes();
        assert_eq!(key[..9], *b"\xfflunette\x01");
        assert_eq!((key[24..27].to_vec(), key[39]), (vec![0, 1, 2], 15));
        assert_eq!(key[40..], [2, 0, 0, 0]);
        let others = manifest(9, 4).part_key(of(3), 2);
        let others = others.key().bytes();
        assert_eq!(others[..44], *key);
        assert_eq!(others[44..], [3, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn how_long_parts_are() {
        let longest = PAYLOAD_BYTES_MAX as u64;
        for (len_bytes, wish, expected) in [
            (0, None, None),
            (longest, None, None),
            (longest + 1, None, Some(PART_LEN_DEFAULT)),
            (OBJECT_LEN_MAX, None, Some(PART_LEN_DEFAULT)),
            (0, Some(10), None),
            (10, Some(10), None),
            (11, Some(10), Some(10)),
            (11, Some(0), Some(1)),
            (10_240, Some(10), Some(10)),
            (10_241, Some(10), Some(11)),
            (longest, Some(u32::MAX), None),
            (longest + 1, Some(u32::MAX), Some(64 << 20)),
            (OBJECT_LEN_MAX, Some(1), Some(PART_LEN_DEFAULT)),
        ] {
            assert_eq!(
                part_len(len_bytes, wish),
                Ok(expected),
                "{len_bytes} {wish:?}"
            );
            if let Some(expected) = expected {
                assert!(manifest(len_bytes, expected).count() >= 2);
            }
        }
        let above = OBJECT_LEN_MAX + 1;
        let too_long = Err(ObjectTooLong { len_bytes: above });
        assert_eq!(part_len(above, None), too_long);
        assert_eq!(part_len(above, Some(1 << 20)), too_long);
    }

    #[test]
    fn fields_of_hostile_manifests_are_within_limits() {
        let refused = |field| Err(ManifestFault::FieldOutOfLimits(field));
        let (part, len) = ("part length", "length");
        for (len_bytes, part_len_bytes, expected) in [
            (1, 0, part),
            (1, (64 << 20) + 1, part),
            (u64::MAX, u32::MAX, part),
            (0, 1, len),
            (1025, 1, len),
            (OBJECT_LEN_MAX + 1, 64 << 20, len),
            (u64::MAX, 64 << 20, len),
        ] {
            let made = Manifest::new(len_bytes, part_len_bytes, WRITE);
            assert_eq!(made, refused(expected), "{len_bytes} {part_len_bytes}");
            // As a writer at fault would have it.
            let mut bytes = manifest(1, 1).encode();
            bytes[8..12].copy_from_slice(&part_len_bytes.to_le_bytes());
            bytes[12..20].copy_from_slice(&len_bytes.to_le_bytes());
            let crc = crc32c(&bytes[..CRC_OFFSET]);
            bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Manifest::decode(&bytes), refused(expected));
        }
        assert_eq!(manifest(1024, 1).count(), PARTS_MAX);
    }

    #[test]
    fn what_is_no_manifest_is_told_apart() {
        let good = manifest(100 * MIB, 1 << 20).encode();
        for len in 0..good.len() {
            let cut = Manifest::decode(&good[..len]);
            assert!(matches!(cut, Err(ManifestFault::Truncated(_))), "{len}");
        }
        let longer = [good.as_slice(), &[0]].concat();
        assert_eq!(Manifest::decode(&longer), Err(ManifestFault::Trailing(1)));
        for at in 0..good.len() {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            let fault = Manifest::decode(&bytes).expect_err("damaged");
            assert!(fault.is_corruption(), "byte {at}: {fault}");
        }
    }

    #[test]
    fn reads_go_by_part() {
        let manifest = manifest(25, 10);
        let range = |offset_bytes, len_bytes| ByteRange {
            offset_bytes,
            len_bytes,
        };
        let all = manifest.reads(&[]).expect("all of it");
        assert!(all.iter().all(PartRead::is_whole));
        let lens: Vec<u32> = all.iter().map(|read| read.part.len_bytes).collect();
        assert_eq!(lens, [10, 10, 5]);
        let reads = manifest.reads(&[range(24, 1), range(8, 14), range(9, 0)]);
        let reads: Vec<_> = (reads.expect("inside").into_iter())
            .map(|read| (read.part.place, read.ranges, read.to))
            .collect();
        assert_eq!(
            reads,
            [
                (0, vec![range(8, 2)], vec![1]),
                (1, vec![range(0, 10)], vec![3]),
                (2, vec![range(4, 1), range(0, 2)], vec![0, 13]),
            ]
        );
        for bad in [
            range(25, 1),
            range(0, 26),
            range(u64::MAX, 1),
            range(u64::MAX, 0),
        ] {
            assert_eq!(manifest.reads(&[range(0, 1), bad]), None, "{bad:?}");
        }
        assert_eq!(manifest.reads(&[range(25, 0)]), Some(Vec::new()));
    }

    #[test]
    fn what_one_answer_does_not_carry_is_read_in_two() {
        let manifest = manifest(130 * MIB, 64 << 20);
        let range = ByteRange {
            offset_bytes: 0,
            len_bytes: 40 << 20,
        };
        let reads = manifest.reads(&[range, range, range]).expect("inside");
        assert_eq!(reads.len(), 3);
        let to: Vec<u64> = reads.iter().map(|read| read.to[0]).collect();
        assert_eq!(to, [0, 40 * MIB, 80 * MIB]);
    }
}
