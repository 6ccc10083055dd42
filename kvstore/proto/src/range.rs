//! Ranges of an object's bytes.

/// Most ranges that one request reads.
pub const RANGES_MAX: usize = 256;

/// A range of an object's bytes. It may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Its first byte, counted from the object's.
    pub offset_bytes: u64,
    /// Its length in bytes.
    pub len_bytes: u32,
}

impl ByteRange {
    /// Where it ends; what lies beyond all bytes is at the end of them.
    #[must_use]
    pub fn end_bytes(self) -> u64 {
        self.offset_bytes.saturating_add(self.len_bytes.into())
    }

    /// Whether it lies inside an object of this length.
    #[must_use]
    pub fn is_within(self, object_len_bytes: u64) -> bool {
        self.end_bytes() <= object_len_bytes
    }
}

/// The length of ranges together, in bytes: what overlaps counts each time.
#[must_use]
pub fn total_bytes(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| u64::from(range.len_bytes)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_at_the_objects_end_at_the_latest() {
        let range = |offset_bytes, len_bytes| ByteRange {
            offset_bytes,
            len_bytes,
        };
        assert!(range(0, 10).is_within(10) && range(10, 0).is_within(10));
        assert!(range(0, 0).is_within(0));
        assert!(!range(1, 10).is_within(10) && !range(11, 0).is_within(10));
        assert!(
            !range(u64::MAX, u32::MAX).is_within(u64::MAX - 1),
            "no overflow"
        );
    }
}
