//! The segments of a drive: what state each is in, and what is alive in it.
//!
//! ```text
//!           open              close           all batches ended
//!   Free ----------> Open ----------> Closing -----------------> Full
//!    ^                                                             |
//!    |    header is overwritten        nothing is alive,           | reclaim
//!    +--------------------- Freeing <------------------ Reclaiming <
//!                                       no reads
//! ```

use std::collections::VecDeque;

use crate::format::segment::SegmentTag;
use crate::format::superblock::Superblock;
use crate::format::{Geometry, SEGMENT_HEAD_BLOCKS};

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Open,
    Closing,
    Full,
    Reclaiming,
    Freeing,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) state: State,
    /// What it is called; of a free one, what it was called.
    pub(crate) tag: SegmentTag,
    /// The number of its first batch.
    pub(crate) first_batch: u64,
    /// The number of the batch that would come next.
    pub(crate) next_batch: u64,
    /// Where the next batch goes; of a full one, its end.
    pub(crate) end_block: u32,
    /// Batches that are being written.
    pub(crate) batches: u32,
    /// Whether a batch of it could not be written. Those behind are not found when the log is recovered.
    pub(crate) is_broken: bool,
    /// Whether a table of it could not be read when it was to be reclaimed.
    pub(crate) is_unread: bool,
    /// Records that have been written to it, or were begun to be.
    pub(crate) written_records: usize,
    /// What records count for that are alive in it.
    pub(crate) live_bytes: u64,
    pub(crate) live_records: u32,
    /// What records count for that were alive in it and are not.
    pub(crate) dead_bytes: u64,
    /// Reads that are under way.
    pub(crate) pins: u32,
}

/// All segments of a drive.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    all: Vec<Segment>,
    /// The free ones, in the order in which they are used.
    free: VecDeque<u32>,
    next_sequence: u64,
}

impl Segments {
    /// Of a drive that has nothing on it.
    pub(crate) fn new(geometry: Geometry, next_sequence: u64) -> Self {
        let count = geometry.segments();
        Self {
            all: vec![Self::blank(); count as usize],
            free: (0..count).collect(),
            next_sequence,
        }
    }

    /// One that was never used.
    pub(crate) const fn blank() -> Segment {
        Segment {
            state: State::Free,
            tag: SegmentTag {
                log_id: 0,
                mount: 0,
                sequence: 0,
            },
            first_batch: 0,
            next_batch: 0,
            end_block: 0,
            batches: 0,
            is_broken: false,
            is_unread: false,
            written_records: 0,
            live_bytes: 0,
            live_records: 0,
            dead_bytes: 0,
            pins: 0,
        }
    }

    /// A segment that was found on the drive: full, or to be freed.
    pub(crate) fn found(&mut self, index: u32, segment: Segment) {
        self.next_sequence = self.next_sequence.max(segment.tag.sequence + 1);
        self.free.retain(|&free| free != index);
        self.all[index as usize] = segment;
    }

    /// A segment that cannot be read: nothing in it is alive, and it is to be freed.
    pub(crate) fn unread(&mut self, index: u32, superblock: &Superblock, next_batch: u64) {
        let tag = SegmentTag {
            log_id: superblock.log_id,
            mount: superblock.mount,
            sequence: self.next_sequence,
        };
        let segment = Segment {
            state: State::Freeing,
            tag,
            first_batch: next_batch,
            next_batch,
            ..Self::blank()
        };
        self.found(index, segment);
    }

    pub(crate) fn get(&self, index: u32) -> &Segment {
        &self.all[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Segment {
        &mut self.all[index as usize]
    }

    pub(crate) fn free_count(&self) -> u32 {
        u32::try_from(self.free.len()).expect("there are fewer segments than that")
    }

    /// How many are about to be free.
    pub(crate) fn freeing_count(&self) -> u32 {
        let freeing = self
            .all
            .iter()
            .filter(|segment| segment.state == State::Freeing);
        u32::try_from(freeing.count()).expect("there are fewer segments than that")
    }

    /// Begins the next segment, if one is free.
    pub(crate) fn open(&mut self, log_id: u64, mount: u64, first_batch: u64) -> Option<u32> {
        let index = self.free.pop_front()?;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.all[index as usize] = Segment {
            state: State::Open,
            tag: SegmentTag {
                log_id,
                mount,
                sequence,
            },
            first_batch,
            next_batch: first_batch,
            end_block: SEGMENT_HEAD_BLOCKS,
            ..Self::blank()
        };
        Some(index)
    }

    /// A segment whose header has been overwritten is free.
    pub(crate) fn set_free(&mut self, index: u32) {
        let segment = self.get_mut(index);
        debug_assert!(segment.state == State::Freeing, "a segment is freed once");
        segment.state = State::Free;
        self.free.push_back(index);
    }

    pub(crate) fn add_live(&mut self, index: u32, footprint_bytes: u64) {
        let segment = self.get_mut(index);
        segment.live_bytes += footprint_bytes;
        segment.live_records += 1;
    }

    /// A record that was [found](Self::found) is alive.
    pub(crate) fn revive(&mut self, index: u32, footprint_bytes: u64) {
        self.add_live(index, footprint_bytes);
        self.get_mut(index).dead_bytes -= footprint_bytes;
    }

    pub(crate) fn sub_live(&mut self, index: u32, footprint_bytes: u64) {
        let segment = self.get_mut(index);
        segment.live_bytes -= footprint_bytes;
        segment.live_records -= 1;
        segment.dead_bytes += footprint_bytes;
    }

    /// Whether a segment that is not free, other than this one, may have batches up to `sequence`.
    pub(crate) fn any_other_until(&self, index: u32, sequence: u64) -> bool {
        let others = self
            .all
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != index as usize);
        others
            .filter(|(_, segment)| segment.state != State::Free)
            .any(|(_, segment)| segment.first_batch <= sequence)
    }

    /// The segment to reclaim next: where most is dead for its age, and one that is read only if there is no other.
    /// `is_pressed`, the oldest one: no removal in it is needed any more, so that nothing has to be written. So it is
    /// where there is one that cannot be reclaimed before it is the oldest, and where what is alive makes room.
    ///
    /// Rosenblum and Ousterhout (1991): benefit to cost is free space times age, by what has to be read and
    /// written. Age is counted in segments that were begun since.
    pub(crate) fn victim(&self, geometry: Geometry, is_pressed: bool) -> Option<u32> {
        let capacity = u128::from(geometry.segment_bytes);
        let score = |segment: &Segment| {
            let dead = capacity.saturating_sub(segment.live_bytes.into()) + 1;
            let age = self.next_sequence - segment.tag.sequence;
            // Scaled, so that what is divided stays apart.
            dead * u128::from(age) * 1_000_000 / (capacity + u128::from(segment.live_bytes))
        };
        let full = self
            .all
            .iter()
            .zip(0_u32..)
            .filter(|(segment, _)| segment.state == State::Full);
        let is_in_order = is_pressed || self.all.iter().any(|segment| segment.is_unread);
        let best = full.max_by_key(|(segment, _)| {
            let (is_free_of_reads, merit) = if is_in_order {
                (true, 0)
            } else {
                (segment.pins == 0, score(segment))
            };
            (
                is_free_of_reads,
                merit,
                core::cmp::Reverse(segment.tag.sequence),
            )
        });
        best.map(|(_, index)| index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.all.iter()
    }
}
