//! The frame of every part: a magic, the number of the format, fields, zeros, and a CRC32C of all that.
//!
//! Magic, format and CRC stay where they are in every later format, so that damage is never taken for a
//! newer format.

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::codec::{Reader, Truncated};
use lunette_runtime_core::mutant::{self, Mutant};
use thiserror::Error;

use super::{COUNT_MAX, FORMAT};

/// Which part of the drive a fault is in.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Part {
    /// One of the two superblocks.
    #[error("superblock")]
    Superblock,
    /// The claim of a drive.
    #[error("claim")]
    Claim,
    /// The first block of a segment.
    #[error("segment header")]
    SegmentHeader,
    /// The second block of a segment.
    #[error("seal")]
    Seal,
    /// The header of a batch.
    #[error("batch header")]
    BatchHeader,
    /// The table of a batch's records.
    #[error("batch table")]
    BatchTable,
}

/// Why bytes are no whole part of a log of this format.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FormatFault {
    /// Fewer bytes than the part has.
    #[error("{part}: {cut}")]
    Truncated {
        /// What was read.
        part: Part,
        /// How much is missing.
        cut: Truncated,
    },
    /// The bytes do not begin as this part does.
    #[error("no {part} begins here")]
    Absent {
        /// What was looked for.
        part: Part,
    },
    /// The checksum does not match.
    #[error("{part} is damaged: checksum {found:#010x}, expected {expected:#010x}")]
    Damaged {
        /// What was read.
        part: Part,
        /// The checksum of the bytes.
        found: u32,
        /// The checksum that they carry.
        expected: u32,
    },
    /// Written by a later version of this program.
    #[error("{part} has format {format}, and {FORMAT} is the last that is known")]
    UnknownFormat {
        /// What was read.
        part: Part,
        /// Its format.
        format: u16,
    },
    /// The checksum matches, but a field lies outside its limits: the writer was at fault.
    #[error("{part}: field {field} is out of its limits")]
    FieldOutOfLimits {
        /// What was read.
        part: Part,
        /// Which of its fields.
        field: &'static str,
    },
    /// Whole, but of another place, segment or log: what was there before.
    #[error("{part} is of another segment or log")]
    Stale {
        /// What was read.
        part: Part,
    },
}

impl FormatFault {
    /// Whether bytes that were once right may have changed, or were never written whole.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Truncated { .. }
            | Self::Absent { .. }
            | Self::UnknownFormat { .. }
            | Self::FieldOutOfLimits { .. }
            | Self::Stale { .. } => false,
        }
    }
}

/// A part of `N` bytes under construction.
pub(super) fn begun<const N: usize>(magic: [u8; 4]) -> [u8; N] {
    let mut out = [0; N];
    out[0..4].copy_from_slice(&magic);
    out[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    out
}

/// The part with its checksum, which is its last four bytes.
pub(super) fn ended<const N: usize>(mut out: [u8; N]) -> [u8; N] {
    let crc = crc32c(&out[..N - 4]);
    out[N - 4..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// What lies between the format and the checksum of the part at the front of `bytes`.
pub(super) fn opened<const N: usize>(
    part: Part,
    magic: [u8; 4],
    bytes: &[u8],
) -> Result<Reader<'_>, FormatFault> {
    let cut = |cut| FormatFault::Truncated { part, cut };
    let whole = Reader::new(bytes).bytes(N).map_err(cut)?;
    let (covered, crc) = whole.split_at(N - 4);
    let mut fields = Reader::new(covered);
    if fields.array().map_err(cut)? != magic {
        return Err(FormatFault::Absent { part });
    }
    let (found, expected) = (crc32c(covered), Reader::new(crc).u32().map_err(cut)?);
    if found != expected && !mutant::is_on(Mutant::LogChecksumIgnored) {
        return Err(FormatFault::Damaged {
            part,
            found,
            expected,
        });
    }
    let format = fields.u16().map_err(cut)?;
    if format != FORMAT {
        return Err(FormatFault::UnknownFormat { part, format });
    }
    Ok(fields)
}

/// Fails unless everything that is left is zero.
pub(super) fn zeros(part: Part, fields: &Reader<'_>) -> Result<(), FormatFault> {
    if fields.rest().iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(FormatFault::FieldOutOfLimits {
            part,
            field: "zero",
        })
    }
}

/// Fails unless a count has room to rise.
pub(super) fn counted(part: Part, field: &'static str, count: u64) -> Result<u64, FormatFault> {
    if count < COUNT_MAX {
        Ok(count)
    } else {
        Err(FormatFault::FieldOutOfLimits { part, field })
    }
}
