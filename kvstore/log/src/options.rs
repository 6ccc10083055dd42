//! What a log is told when it is made, and the limits that it keeps to.

use core::ops::RangeInclusive;
use core::time::Duration;

use thiserror::Error;

use crate::format::superblock::Identity;
use crate::format::{BLOCK_BYTES, Geometry};

/// Longest key and payload that stay in a segment which is reclaimed, as a part of the segment: a quarter. So
/// that segments which are filled again are at least three quarters full.
pub const KEPT_RECORD_SHARE: u64 = 4;
/// How much of a segment stays in all when it is reclaimed: three quarters, of its bytes and of as many records as one may
/// have. So that reclaiming makes room, and writes four bytes at most for each one that is appended.
pub const KEPT_SHARE: (u64, u64) = (3, 4);
/// How much of the index is kept free for appends, as a part of it: an eighth. Where less is free reclaim begins, as where
/// few segments are.
pub const FREE_RECORDS_SHARE: usize = 8;
/// How much of what is written may be alive before the oldest leave: seven eighths.
pub(crate) const FULL_BYTES_SHARE: (u64, u64) = (7, 8);
/// The same of the index: three quarters, since reclaim begins at seven eighths with those on their way.
pub(crate) const FULL_RECORDS_SHARE: (u64, u64) = (3, 4);
/// Segments in which the records are at least that the index has room for: so that reclaim of one lets go of few.
const FULL_INDEX_SEGMENTS: RangeInclusive<usize> = 2..=16;
/// Most records of a segment: all of them may leave at once when it is reclaimed, and each is a ghost until it is freed.
const SEGMENT_RECORDS_MAX: usize = GHOSTS_MAX / 4;
/// Most records of which it is not known whether the drive still has them. Beyond, the drive has failed.
pub const GHOSTS_MAX: usize = 65_536;
/// Most records that a log drops when it is opened since its index has no room for them.
pub const DROPPED_MAX: usize = GHOSTS_MAX / 2;
/// Bytes of a batch that are read first, for its header and table: those of 255 records.
pub const TABLE_READ_BYTES: u32 = 16 * 1024;

/// How a log works. [`LogOptions::new`] has values for a drive.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Whose log it is.
    pub identity: Identity,
    /// How a drive is cut that is formatted; one that has been is cut as its superblock says.
    pub geometry: Geometry,
    /// A batch is written when it has this length, or when [`linger`](Self::linger) is over.
    pub batch_bytes_max: u32,
    /// How long a record waits for others to be written with.
    pub linger: Duration,
    /// Most batches that are being written.
    pub writes_in_flight_max: usize,
    /// Most batches that have been begun and are not durable: writes go on while a flush is under way.
    pub unflushed_max: usize,
    /// Most payload bytes that wait to be written.
    pub queued_bytes_max: u64,
    /// Most records that wait to be written or are being written; as many removals beside them.
    pub queued_records_max: usize,
    /// Most records that the log has. Room for their index is reserved when it is made. Where records are so short that
    /// they fill it before the segments, the oldest segments are reclaimed, and what they have is judged.
    pub records_max: usize,
    /// Most reads that keep a segment from being freed.
    pub pins_max: usize,
    /// Free segments that appends and removals leave to reclaim: at least two, since what is kept of a segment and the
    /// removals that are needed of it may take nearly as much.
    pub reserve_segments: u32,
    /// Reclaim begins when fewer segments than this are free: more than the reserve. As long as more than the reserve
    /// are free, and an eighth of what was written is dead, it takes the segment in which most is dead for its age; then
    /// the oldest.
    pub free_segments_low: u32,
    /// Most records of a segment being reclaimed of which the owner is asked, or which are moving.
    pub judged_max: usize,
    /// Whether what has been written may be lost with the power until a flush has ended.
    pub has_volatile_cache: bool,
    /// How long a write may take before appends are refused until it has ended.
    pub slow_after: Duration,
    /// Writes that fail one after the other before the drive is taken for failed.
    pub failures_max: u32,
    /// Most reads under way while the log is recovered.
    pub recovery_reads_max: usize,
}

/// Options that contradict each other.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("option {0} of the log is out of its limits")]
pub struct OptionsFault(pub &'static str);

impl LogOptions {
    /// Options for a drive of this capacity, in segments of 64 MiB, with an index of a record for each 256 KiB.
    #[must_use]
    pub fn new(identity: Identity, capacity_bytes: u64) -> Self {
        let records = usize::try_from(capacity_bytes / (256 * 1024));
        Self {
            identity,
            geometry: Geometry {
                capacity_bytes,
                segment_bytes: 64 << 20,
            },
            batch_bytes_max: 4 << 20,
            linger: Duration::from_micros(500),
            writes_in_flight_max: 8,
            unflushed_max: 32,
            queued_bytes_max: 64 << 20,
            queued_records_max: 4096,
            records_max: records.unwrap_or(usize::MAX).max(1024),
            pins_max: 1024,
            reserve_segments: 2,
            free_segments_low: 4,
            judged_max: 64,
            has_volatile_cache: true,
            slow_after: Duration::from_secs(1),
            failures_max: 3,
            recovery_reads_max: 32,
        }
    }

    /// Most records that are written to a segment, which is closed then: less than its bytes have room for only where
    /// records are much shorter than the index is made for.
    pub(crate) fn segment_records_max(&self, segments: u32) -> usize {
        let quarter = usize::try_from(segments / 4).unwrap_or(usize::MAX);
        let (least, most) = FULL_INDEX_SEGMENTS.into_inner();
        let records = self.records_max.div_ceil(quarter.clamp(least, most));
        records.min(SEGMENT_RECORDS_MAX)
    }

    /// Whether they fit together.
    ///
    /// # Errors
    /// [`OptionsFault`] with the first that does not.
    pub fn check(&self) -> Result<(), OptionsFault> {
        let segments = if self.geometry.is_valid() {
            self.geometry.segments()
        } else {
            0
        };
        let checks = [
            ("geometry", segments > 0),
            ("batch_bytes_max", self.batch_bytes_max >= BLOCK_BYTES),
            ("writes_in_flight_max", self.writes_in_flight_max > 0),
            (
                "unflushed_max",
                self.unflushed_max >= self.writes_in_flight_max,
            ),
            // As many removals are an eighth of a segment at most.
            (
                "queued_records_max",
                (1..=self.geometry.segment_bytes as usize / 512).contains(&self.queued_records_max),
            ),
            ("records_max", self.records_max > 0),
            (
                "reserve_segments",
                self.reserve_segments >= 2 && self.reserve_segments < segments,
            ),
            (
                "free_segments_low",
                self.free_segments_low > self.reserve_segments
                    && self.free_segments_low <= segments,
            ),
            ("judged_max", self.judged_max > 0),
            ("failures_max", self.failures_max > 0),
            ("recovery_reads_max", self.recovery_reads_max > 0),
        ];
        match checks.iter().find(|(_, holds)| !holds) {
            Some((name, _)) => Err(OptionsFault(name)),
            None => Ok(()),
        }
    }
}
