//! The self-describing form of an object in memory.
//!
//! An extent is a header of 64 bytes, the key, zeros up to the next multiple of 64, and the
//! payload. Whoever holds the bytes can tell what they are, and whether they are whole, without
//! any table beside them: a home's table can be rebuilt from its owners' extents.
//!
//! ```text
//!  byte  0       4    6    8          12         16
//!        +-------+----+----+----------+----------+
//!     0  | magic |form| key|  payload |  payload |
//!        | LNEX  | at | len|    len   |  crc32c  |
//!        +-------+----+----+----------+----------+
//!    16  |      version     |   zero (8 bytes)   |
//!        +------------------+--------------------+
//!    32  |        fingerprint of the key         |
//!        +---------------------------+-----------+
//!    48  |      zero (12 bytes)      |  header   |
//!        |                           |  crc32c   |
//!        +---------------------------+-----------+
//!    64  key, then zeros to a multiple of 64, then the payload
//! ```
//!
//! All fields are little-endian. The header's CRC32C covers bytes 0 to 59; it and the magic stay
//! where they are in every later format, so that damage is never taken for a newer format. The key
//! is covered by its fingerprint, the payload by its own CRC32C; the zeros behind the key by
//! nothing, and nothing reads them.

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::{Reader, Truncated};
use lunette_runtime_core::limits::{KEY_BYTES_MAX, PAYLOAD_BYTES_MAX};
use thiserror::Error;

use crate::key::{Fingerprint, Key};

/// Length of an extent's header in bytes.
pub const EXTENT_HEADER_BYTES: usize = 64;
/// Alignment of key and payload within an extent, in bytes: a cache line.
pub const EXTENT_ALIGN_BYTES: u32 = 64;

const MAGIC: [u8; 4] = *b"LNEX";
const FORMAT: u16 = 1;
const CRC_OFFSET: usize = EXTENT_HEADER_BYTES - 4;

const _: () = assert!(EXTENT_HEADER_BYTES.is_multiple_of(EXTENT_ALIGN_BYTES as usize));

/// Why bytes are no whole extent of this format.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ExtentFault {
    /// Fewer bytes than a header.
    #[error("extent header: {0}")]
    Truncated(#[from] Truncated),
    /// The bytes do not begin as an extent does.
    #[error("no extent begins here")]
    NoExtent,
    /// Written by a later version of this program.
    #[error("extent format {0} is unknown")]
    UnknownFormat(u16),
    /// The header's checksum does not match.
    #[error("extent header is damaged: checksum {found:#010x}, expected {expected:#010x}")]
    HeaderDamaged {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum that the header carries.
        expected: u32,
    },
    /// The checksum matches, but a field lies outside its limits: the writer was at fault.
    #[error("extent header field {0} is out of its limits")]
    FieldOutOfLimits(&'static str),
    /// The key behind the header is not the one that the header fingerprints.
    #[error("the key of the extent does not match its fingerprint")]
    KeyDamaged,
}

impl ExtentFault {
    /// Whether bytes that were once right have changed. The copy is lost: drop it, count it.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self {
            Self::NoExtent | Self::HeaderDamaged { .. } | Self::KeyDamaged => true,
            Self::Truncated(_) | Self::UnknownFormat(_) | Self::FieldOutOfLimits(_) => false,
        }
    }
}

/// What an extent says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentHeader {
    /// Length of the key in bytes: 1 to [`KEY_BYTES_MAX`].
    pub key_len: u16,
    /// Length of the payload in bytes: at most [`PAYLOAD_BYTES_MAX`].
    pub payload_len: u32,
    /// CRC32C of the payload.
    pub payload_crc32c: u32,
    /// The version that the key's home issued.
    pub version: u64,
    /// Fingerprint of the key.
    pub fingerprint: Fingerprint,
}

impl ExtentHeader {
    /// The header's bytes.
    ///
    /// # Panics
    /// If a length lies outside its limits: callers check what they accept.
    #[must_use]
    pub fn encode(&self) -> [u8; EXTENT_HEADER_BYTES] {
        assert!(
            self.check_lengths().is_ok(),
            "an extent is written within its limits"
        );
        let mut out = [0; EXTENT_HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&FORMAT.to_le_bytes());
        out[6..8].copy_from_slice(&self.key_len.to_le_bytes());
        out[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.payload_crc32c.to_le_bytes());
        out[16..24].copy_from_slice(&self.version.to_le_bytes());
        out[32..48].copy_from_slice(&self.fingerprint.0.to_le_bytes());
        let crc = crc32c(&out[..CRC_OFFSET]);
        out[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the front of `bytes`; what follows it is not looked at.
    ///
    /// # Errors
    /// [`ExtentFault`] if there is no whole header of this format.
    pub fn decode(bytes: &[u8]) -> Result<Self, ExtentFault> {
        let header: [u8; EXTENT_HEADER_BYTES] = Reader::new(bytes).array()?;
        let (covered, crc) = header.split_at(CRC_OFFSET);
        let mut fields = Reader::new(covered);
        if fields.array()? != MAGIC {
            return Err(ExtentFault::NoExtent);
        }
        let (found, expected) = (crc32c(covered), Reader::new(crc).u32()?);
        if found != expected {
            return Err(ExtentFault::HeaderDamaged { found, expected });
        }
        let format = fields.u16()?;
        if format != FORMAT {
            return Err(ExtentFault::UnknownFormat(format));
        }
        let (key_len, payload_len, payload_crc32c) = (fields.u16()?, fields.u32()?, fields.u32()?);
        let (version, zero) = (fields.u64()?, fields.u64()?);
        let fingerprint = Fingerprint(fields.u128()?);
        if zero != 0 || fields.rest().iter().any(|&byte| byte != 0) {
            return Err(ExtentFault::FieldOutOfLimits("zero"));
        }
        let decoded = Self {
            key_len,
            payload_len,
            payload_crc32c,
            version,
            fingerprint,
        };
        decoded.check_lengths()?;
        Ok(decoded)
    }

    /// The key that follows the header in the extent's `bytes`.
    ///
    /// # Errors
    /// [`ExtentFault::Truncated`] if `bytes` end before the key does, and
    /// [`ExtentFault::KeyDamaged`] if it is not the key that the header fingerprints.
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Result<Key<'a>, ExtentFault> {
        let mut reader = Reader::new(bytes);
        reader.bytes(EXTENT_HEADER_BYTES)?;
        let key = Key::new(reader.bytes(usize::from(self.key_len))?)
            .map_err(|_fault| ExtentFault::FieldOutOfLimits("key_len"))?;
        if key.fingerprint() != self.fingerprint {
            return Err(ExtentFault::KeyDamaged);
        }
        Ok(key)
    }

    /// Where the parts of this extent lie.
    ///
    /// # Panics
    /// If a length lies outside its limits, which no decoded header's does.
    #[must_use]
    pub fn layout(&self) -> ExtentLayout {
        ExtentLayout::for_object(self.key_len, self.payload_len)
    }

    fn check_lengths(&self) -> Result<(), ExtentFault> {
        if self.key_len == 0 || usize::from(self.key_len) > KEY_BYTES_MAX {
            return Err(ExtentFault::FieldOutOfLimits("key_len"));
        }
        if self.payload_len as usize > PAYLOAD_BYTES_MAX {
            return Err(ExtentFault::FieldOutOfLimits("payload_len"));
        }
        Ok(())
    }
}

/// Where the parts of an extent lie, in bytes from its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentLayout {
    /// First byte of the key.
    pub key_offset_bytes: u32,
    /// First byte of the payload, a multiple of [`EXTENT_ALIGN_BYTES`].
    pub payload_offset_bytes: u32,
    /// Length of the whole extent.
    pub total_bytes: u32,
}

impl ExtentLayout {
    /// The layout for a key and a payload of these lengths in bytes.
    ///
    /// # Panics
    /// If a length is above [`KEY_BYTES_MAX`] or [`PAYLOAD_BYTES_MAX`]: callers check what they
    /// accept.
    #[must_use]
    pub fn for_object(key_len: u16, payload_len: u32) -> Self {
        assert!(
            usize::from(key_len) <= KEY_BYTES_MAX,
            "a key of {key_len} bytes"
        );
        assert!(
            payload_len as usize <= PAYLOAD_BYTES_MAX,
            "a payload of {payload_len} bytes"
        );
        let key_offset_bytes = EXTENT_ALIGN_BYTES;
        let payload_offset_bytes =
            (key_offset_bytes + u32::from(key_len)).next_multiple_of(EXTENT_ALIGN_BYTES);
        let total_bytes = payload_offset_bytes + payload_len;
        Self {
            key_offset_bytes,
            payload_offset_bytes,
            total_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"lunette";

    fn sample() -> ExtentHeader {
        ExtentHeader {
            key_len: 7,
            payload_len: 0x0023_4567,
            payload_crc32c: 0x89ab_cdef,
            version: 0x0011_2233_4455_6677,
            fingerprint: Key::new(KEY).expect("a key").fingerprint(),
        }
    }

    /// Recomputes the checksum, as a faulty writer would have.
    fn sealed(mut bytes: [u8; EXTENT_HEADER_BYTES]) -> [u8; EXTENT_HEADER_BYTES] {
        let crc = crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Bytes of format 1, which no later version may change.
    #[test]
    fn golden_bytes() {
        let hex: String = sample()
            .encode()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let golden = concat!(
            "4c4e4558",
            "0100",
            "0700",
            "67452300",
            "efcdab89",
            "7766554433221100",
            "0000000000000000",
            "a7d94445f10b26f578550a219a9c9f13",
            "000000000000000000000000",
            "377c0774",
        );
        assert_eq!(hex, golden);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = sample().encode();
        assert_eq!(ExtentHeader::decode(&bytes), Ok(sample()));
        for bit in 0..EXTENT_HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let fault = ExtentHeader::decode(&damaged).expect_err("damage");
            assert!(fault.is_corruption(), "bit {bit}: {fault}");
        }
    }

    #[test]
    fn each_fault_has_its_name() {
        let bytes = sample().encode();
        let short = ExtentHeader::decode(&bytes[..63]);
        let truncated = Truncated {
            needed_bytes: 64,
            left_bytes: 63,
        };
        assert_eq!(short, Err(ExtentFault::Truncated(truncated)));
        let with = |offset: usize, field: &[u8]| {
            let mut changed = bytes;
            changed[offset..offset + field.len()].copy_from_slice(field);
            ExtentHeader::decode(&sealed(changed))
        };
        let above = u32::try_from(PAYLOAD_BYTES_MAX).expect("fits") + 1;
        let key_above = u16::try_from(KEY_BYTES_MAX).expect("fits") + 1;
        let limits = |field| Err(ExtentFault::FieldOutOfLimits(field));
        assert_eq!(with(0, b"LNEY"), Err(ExtentFault::NoExtent));
        assert_eq!(with(4, &[2]), Err(ExtentFault::UnknownFormat(2)));
        assert_eq!(with(6, &[0]), limits("key_len"));
        assert_eq!(with(6, &key_above.to_le_bytes()), limits("key_len"));
        assert!(with(6, &(key_above - 1).to_le_bytes()).is_ok());
        assert_eq!(with(8, &above.to_le_bytes()), limits("payload_len"));
        assert!(with(8, &(above - 1).to_le_bytes()).is_ok());
        for offset in (24..32).chain(48..CRC_OFFSET) {
            assert_eq!(with(offset, &[1]), limits("zero"), "byte {offset}");
        }
    }

    #[test]
    fn the_key_is_checked_against_its_fingerprint() {
        let mut extent = sample().encode().to_vec();
        extent.extend_from_slice(KEY);
        let key = sample().key(&extent).expect("the key is there");
        assert_eq!(key.bytes(), KEY);
        extent[EXTENT_HEADER_BYTES] ^= 1;
        assert_eq!(sample().key(&extent), Err(ExtentFault::KeyDamaged));
        extent.pop();
        assert!(matches!(
            sample().key(&extent),
            Err(ExtentFault::Truncated(_))
        ));
    }

    #[test]
    fn layouts_align_key_and_payload() {
        for (key_len, payload_offset) in [(1, 128), (64, 128), (65, 192), (1024, 1088)] {
            let layout = ExtentLayout::for_object(key_len, 1000);
            assert_eq!(layout.key_offset_bytes, 64);
            assert_eq!(
                layout.payload_offset_bytes, payload_offset,
                "key of {key_len}"
            );
            assert_eq!(layout.total_bytes, payload_offset + 1000);
        }
        assert_eq!(sample().layout(), ExtentLayout::for_object(7, 0x0023_4567));
    }
}
