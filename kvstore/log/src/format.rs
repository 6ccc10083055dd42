//! What is on the drive, byte by byte. `FORMAT.md` draws it.
//!
//! ```text
//!   block 0        8        16             16 + S                 16 + 2 S
//!         +--------+--------+--------------+----------------------+-------
//!         | super- | super- | segment 0    | segment 1            | ...
//!         | block  | block  |              |                      |
//!         +--------+--------+--------------+----------------------+-------
//!
//!   segment: | header | seal | batch | batch | ... | what was there before |
//!   batch:   | header | table of records | key, payload | key, payload | ... | zeros |
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`superblock`] | whose log it is, and how it is cut |
//! | [`claim`] | who may write to the drive, where nothing else keeps others from it |
//! | [`segment`] | where a segment begins, and where it ends |
//! | [`batch`] | what is written at once: records, removals, their table |
//! | `checked` | the frame that all of them share: magic, format, fields, CRC32C |

pub mod batch;
mod checked;
pub mod claim;
pub mod segment;
pub mod superblock;

pub use checked::{FormatFault, Part};

/// What every offset and length of a read or write is a multiple of.
pub const BLOCK_BYTES: u32 = 4096;
/// The number that every part carries.
pub const FORMAT: u16 = 1;
/// Where the first segment begins.
pub const SEGMENTS_OFFSET_BYTES: u64 = 64 * 1024;
/// Where the two superblocks are.
pub const SUPERBLOCK_OFFSETS_BYTES: [u64; 2] = [0, 32 * 1024];
/// Blocks of a segment before its first batch: header and seal.
pub const SEGMENT_HEAD_BLOCKS: u32 = 2;
/// The shortest segment.
pub const SEGMENT_BYTES_MIN: u32 = 64 * 1024;
/// The longest segment.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// Mounts, segments and batches are counted from 1, and never as far as this.
pub const COUNT_MAX: u64 = 1 << 62;

/// How a drive is cut into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the drive that the log uses, from its first.
    pub capacity_bytes: u64,
    /// Length of each segment.
    pub segment_bytes: u32,
}

impl Geometry {
    /// Whether both are multiples of a block and within their limits, and there are three segments at
    /// least: one that is written, one that is reclaimed, one in reserve.
    #[must_use]
    pub fn is_valid(self) -> bool {
        let block_bytes = u64::from(BLOCK_BYTES);
        self.capacity_bytes.is_multiple_of(block_bytes)
            && self.segment_bytes.is_multiple_of(BLOCK_BYTES)
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            && self.counted().is_some_and(|count| count >= 3)
    }

    fn counted(self) -> Option<u32> {
        let room_bytes = self.capacity_bytes.checked_sub(SEGMENTS_OFFSET_BYTES)?;
        u32::try_from(room_bytes / u64::from(self.segment_bytes)).ok()
    }

    /// How many segments there are.
    ///
    /// # Panics
    /// If it is not [valid](Self::is_valid).
    #[must_use]
    pub fn segments(self) -> u32 {
        self.counted().expect("the geometry has been checked")
    }

    /// Blocks of a segment.
    #[must_use]
    pub const fn segment_blocks(self) -> u32 {
        self.segment_bytes / BLOCK_BYTES
    }

    /// Where on the drive a block of a segment is, in bytes.
    #[must_use]
    pub fn offset_bytes(self, segment_index: u32, block: u32) -> u64 {
        let segment = u64::from(segment_index) * u64::from(self.segment_bytes);
        SEGMENTS_OFFSET_BYTES + segment + u64::from(block) * u64::from(BLOCK_BYTES)
    }
}

/// The whole blocks that so many bytes take.
#[must_use]
pub const fn blocks_for(len_bytes: u32) -> u32 {
    len_bytes.div_ceil(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometry_has_three_segments_and_whole_blocks() {
        let segment = u64::from(SEGMENT_BYTES_MIN);
        let cases = [
            (SEGMENTS_OFFSET_BYTES + 3 * segment, SEGMENT_BYTES_MIN, true),
            (
                SEGMENTS_OFFSET_BYTES + 3 * segment - 4096,
                SEGMENT_BYTES_MIN,
                false,
            ),
            (
                SEGMENTS_OFFSET_BYTES + 3 * segment + 1,
                SEGMENT_BYTES_MIN,
                false,
            ),
            (1 << 40, SEGMENT_BYTES_MIN - 4096, false),
            (1 << 40, SEGMENT_BYTES_MIN + 512, false),
            (1 << 40, SEGMENT_BYTES_MAX, true),
            (1 << 40, SEGMENT_BYTES_MAX + 4096, false),
            (0, SEGMENT_BYTES_MIN, false),
            (u64::MAX - 4095, SEGMENT_BYTES_MIN, false),
        ];
        for (capacity_bytes, segment_bytes, expected) in cases {
            let geometry = Geometry {
                capacity_bytes,
                segment_bytes,
            };
            assert_eq!(geometry.is_valid(), expected, "{geometry:?}");
        }
    }

    #[test]
    fn segments_lie_one_behind_the_other() {
        let geometry = Geometry {
            capacity_bytes: 1 << 20,
            segment_bytes: 65_536,
        };
        assert_eq!(geometry.segments(), 15);
        assert_eq!(geometry.offset_bytes(0, 0), SEGMENTS_OFFSET_BYTES);
        assert_eq!(geometry.offset_bytes(14, 16), 1 << 20);
        assert_eq!(
            (
                blocks_for(0),
                blocks_for(1),
                blocks_for(4096),
                blocks_for(4097)
            ),
            (0, 1, 1, 2)
        );
    }
}
