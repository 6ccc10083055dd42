//! The limits of a shard.

use thiserror::Error;

/// Most entries of one shard.
pub const ENTRIES_MAX: usize = 1 << 26;
/// Which share of the entries eviction keeps free, so that small objects find room as large ones do.
const FREE_ENTRIES_SHARE: usize = 16;

/// How much a shard holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    high_watermark_bytes: u64,
    low_watermark_bytes: u64,
    entries_max: usize,
}

/// Why limits contradict each other. The configuration is at fault.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LimitsFault {
    /// Nothing would ever fit.
    #[error("the high watermark is 0 bytes")]
    NoBytes,
    /// Eviction brings the used bytes down, not up.
    #[error("the low watermark of {low_bytes} bytes is above the high one of {high_bytes}")]
    LowAboveHigh {
        /// The low watermark.
        low_bytes: u64,
        /// The high watermark.
        high_bytes: u64,
    },
    /// A shard has 1 to [`ENTRIES_MAX`] entries.
    #[error("{0} entries are not within 1 to {ENTRIES_MAX}")]
    EntriesOutOfLimits(usize),
}

impl ShardLimits {
    /// Limits of `high_watermark_bytes`, which the extents of all entries never exceed together,
    /// of `low_watermark_bytes`, to which eviction brings them down once it has begun, and of
    /// `entries_max` entries.
    ///
    /// # Errors
    /// [`LimitsFault`] if they contradict each other.
    pub const fn new(
        high_watermark_bytes: u64,
        low_watermark_bytes: u64,
        entries_max: usize,
    ) -> Result<Self, LimitsFault> {
        if high_watermark_bytes == 0 {
            return Err(LimitsFault::NoBytes);
        }
        if low_watermark_bytes > high_watermark_bytes {
            return Err(LimitsFault::LowAboveHigh {
                low_bytes: low_watermark_bytes,
                high_bytes: high_watermark_bytes,
            });
        }
        if entries_max == 0 || entries_max > ENTRIES_MAX {
            return Err(LimitsFault::EntriesOutOfLimits(entries_max));
        }
        Ok(Self {
            high_watermark_bytes,
            low_watermark_bytes,
            entries_max,
        })
    }

    /// What the extents of all entries never exceed together, in bytes.
    #[must_use]
    pub const fn high_watermark_bytes(&self) -> u64 {
        self.high_watermark_bytes
    }

    /// What eviction brings the used bytes down to once it has begun.
    #[must_use]
    pub const fn low_watermark_bytes(&self) -> u64 {
        self.low_watermark_bytes
    }

    /// The most entries, those being written, pinned and dying included.
    #[must_use]
    pub const fn entries_max(&self) -> usize {
        self.entries_max
    }

    /// What eviction brings the number of entries down to once it has begun.
    #[must_use]
    pub fn low_watermark_entries(&self) -> usize {
        self.entries_max - (self.entries_max / FREE_ENTRIES_SHARE).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_on_both_sides() {
        assert_eq!(ShardLimits::new(0, 0, 1), Err(LimitsFault::NoBytes));
        assert!(ShardLimits::new(1, 0, 1).is_ok());
        assert!(ShardLimits::new(9, 9, 1).is_ok());
        let fault = LimitsFault::LowAboveHigh {
            low_bytes: 10,
            high_bytes: 9,
        };
        assert_eq!(ShardLimits::new(9, 10, 1), Err(fault));
        assert_eq!(
            ShardLimits::new(9, 9, 0),
            Err(LimitsFault::EntriesOutOfLimits(0))
        );
        assert!(ShardLimits::new(9, 9, ENTRIES_MAX).is_ok());
        let above = ENTRIES_MAX + 1;
        assert_eq!(
            ShardLimits::new(9, 9, above),
            Err(LimitsFault::EntriesOutOfLimits(above))
        );
    }
}
