//! The log of one drive: what is appended, removed, read and reclaimed.
//!
//! It holds no bytes but headers and keys, and does nothing by itself: the driver asks for
//! [effects](Log::poll_effect) and reports how they ended, the owner asks for [events](Log::poll_event), and both
//! call [`Log::advance`] when [`Log::poll_timeout`] says so.
//!
//! ```text
//!   append, remove ----> queues ----> batches of the open segment ----> index
//!                          ^                                              |
//!                          +------- what is kept <------- reclaim <-------+
//! ```
//!
//! What holds at any time:
//!
//! 1. A record is announced when its batch and all earlier ones of its segment have been written, and flushed where
//!    the drive has a volatile cache; a removal likewise.
//! 2. Nothing else is written before both superblocks of this mount, and where what was recovered ends, are durable.
//! 3. There is one open segment; batches are numbered in the order in which they are begun, and end in it.
//! 4. One record of a key at most is on its way to the drive.
//! 5. Live bytes of a segment are those of the records that the index has there.
//! 6. A segment is freed when nothing in it is alive, what was kept is durable elsewhere, what has died in it is dead
//!    on the drive as well (removals and generations are durable), and nobody reads it; it is used again when that it
//!    is free is durable. So what it had replaced does not come back.
//! 7. A removal stays on the drive as long as another segment may have what it is about.
//! 8. Appends leave [`reserve_segments`](crate::options::LogOptions::reserve_segments) free, and less is kept of a
//!    segment than it has: so reclaim comes to an end.
//! 9. Each queue and table has a bound, and a refusal at it; nothing waits for the drive but what was told so.
//!
//! A flush that fails takes with it all that was written and is not durable, and what was being written meanwhile:
//! systems take failed pages for clean, and the next flush says nothing of them.
//!
//! A write that fails ends its segment before it: what was written behind it there fails as well, since recovery
//! would not find it. Of such records it is not known whether the drive has them (*ghosts*) until the seal of their
//! segment is durable. Until then removing one is written down although it is not here.

mod appending;
mod devices;
mod reading;
mod reclaiming;
mod removing;
mod writing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lunette_runtime_core::time::Time;
use slab::Slab;

use self::appending::Flight;
pub(crate) use self::devices::Ends;
use self::devices::{Op, SuperblockStep};
use self::reading::Pin;
use self::reclaiming::Reclaim;
use self::writing::{Batch, Queue};
use crate::effect::{Effect, Event, OpId, RemovalId};
use crate::format::superblock::Superblock;
use crate::index::{ByFingerprint, Located};
use crate::options::{FULL_BYTES_SHARE, FULL_RECORDS_SHARE, GHOSTS_MAX, LogOptions, OptionsFault};
use crate::record::{Fingerprint, Record, Version};
use crate::segments::{Segments, State};

/// What the log holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Records that are here.
    pub records: u64,
    /// What they count for, without gaps.
    pub live_bytes: u64,
    /// What it takes before it is as full as it is to be: an eighth of what was written dead or still free, and a quarter
    /// of the index. While there is any, reclaim gathers what is alive, and what is judged had better stay; then it has
    /// the oldest leave.
    pub room_bytes: u64,
    /// Segments that are free.
    pub free_segments: u32,
    /// Segments there are.
    pub segments: u32,
    /// Bytes that were written, of any kind.
    pub written_bytes: u64,
    /// Bytes of the batches that are durable and of the payloads in them: the rest is what the format costs.
    pub batch_bytes: u64,
    /// Payload bytes of those.
    pub payload_bytes: u64,
    /// Batches that are durable.
    pub batches: u64,
    /// Records that were kept when their segment was reclaimed.
    pub moved_records: u64,
    /// Records that were released then.
    pub released_records: u64,
    /// Segments that were reclaimed.
    pub reclaimed_segments: u64,
    /// Segments of which a table could not be read when they were to be reclaimed.
    pub damaged_segments: u64,
    /// Records whose bytes were damaged or could not be read.
    pub lost_records: u64,
    /// Appends that were refused.
    pub refused_appends: u64,
    /// Writes and flushes that failed.
    pub failed_writes: u64,
    /// Whether the drive has failed.
    pub has_failed: bool,
}

/// Where in its segment a record is that is not here and may be on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ghost {
    /// Before its end: until the segment is freed.
    Before,
    /// Behind its end, since it could not be written: until the seal says so.
    Behind,
}

/// The machine of one drive. See the [module](self).
#[derive(Debug)]
pub struct Log {
    options: LogOptions,
    superblock: Superblock,
    superblock_step: SuperblockStep,
    now: Time,
    index: ByFingerprint<Located>,
    segments: Segments,
    /// Most records that are written to a segment.
    segment_records_max: usize,
    /// The open segment.
    head: Option<u32>,
    next_batch: u64,
    flights: Slab<Flight>,
    flight_of: ByFingerprint<usize>,
    /// What waits to be written, by [`Lane`](writing::Lane).
    lanes: [Queue; 3],
    /// The owner's removals that have not ended.
    removals: BTreeSet<RemovalId>,
    /// The removal of each key that has not ended.
    removal_of: ByFingerprint<RemovalId>,
    /// Those that are being written, and those behind one that is.
    batches: VecDeque<Batch>,
    ops: BTreeMap<OpId, Op>,
    next_op: u64,
    next_token: u64,
    /// Written since the last flush began.
    unflushed: Vec<Op>,
    is_flushing: bool,
    /// Operations up to this one had been begun when a flush failed.
    spoiled_until: OpId,
    failures: u32,
    has_failed: bool,
    pins: Slab<Pin>,
    reclaim: Option<Reclaim>,
    reclaim_budget_bytes: u64,
    /// Records that are not here and may be on the drive, with their segments.
    ghosts: BTreeSet<(Fingerprint, u32, Ghost)>,
    effects: VecDeque<Effect>,
    events: VecDeque<Event>,
    stats: LogStats,
}

impl Log {
    /// Formats a drive, whatever is on it. `log_id` is drawn by the caller, never twice for one drive; records of
    /// generations before `generation` are refused.
    ///
    /// # Errors
    /// [`OptionsFault`] if the options contradict each other.
    pub fn format(
        options: LogOptions,
        log_id: u64,
        generation: u64,
        now: Time,
    ) -> Result<Self, OptionsFault> {
        options.check()?;
        let superblock = Superblock {
            mount: 1,
            identity: options.identity,
            log_id,
            generation,
            geometry: options.geometry,
        };
        let segments = Segments::new(options.geometry, 1);
        let mut log = Self::mounting(options, superblock, segments, ByFingerprint::default(), 1);
        log.mount(now, Ends::default());
        Ok(log)
    }

    /// A log whose superblock is still to be written.
    pub(crate) fn mounting(
        options: LogOptions,
        superblock: Superblock,
        segments: Segments,
        mut index: ByFingerprint<Located>,
        next_batch: u64,
    ) -> Self {
        index.reserve(options.records_max.saturating_sub(index.len()));
        let segment_records_max = options.segment_records_max(superblock.geometry.segments());
        Self {
            options,
            superblock,
            superblock_step: SuperblockStep::default(),
            now: Time::ZERO,
            index,
            segments,
            segment_records_max,
            head: None,
            next_batch,
            flights: Slab::with_capacity(options.queued_records_max),
            flight_of: ByFingerprint::default(),
            lanes: Default::default(),
            removals: BTreeSet::new(),
            removal_of: ByFingerprint::default(),
            batches: VecDeque::new(),
            ops: BTreeMap::new(),
            next_op: 0,
            next_token: 0,
            unflushed: Vec::new(),
            is_flushing: false,
            spoiled_until: OpId(0),
            failures: 0,
            has_failed: false,
            pins: Slab::new(),
            reclaim: None,
            reclaim_budget_bytes: u64::MAX,
            ghosts: BTreeSet::new(),
            effects: VecDeque::new(),
            events: VecDeque::new(),
            stats: LogStats::default(),
        }
    }

    /// What it was told when it was made.
    #[must_use]
    pub const fn options(&self) -> &LogOptions {
        &self.options
    }

    /// What the drive says about itself.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether its superblocks, and where what was recovered ends, are durable: then the rest is written.
    #[must_use]
    pub const fn is_mounted(&self) -> bool {
        self.superblock_step.is_done()
    }

    /// What it holds and has done.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        LogStats {
            records: self.index.len() as u64,
            live_bytes: self.segments.iter().map(|segment| segment.live_bytes).sum(),
            room_bytes: self.room_bytes(),
            free_segments: self.segments.free_count(),
            segments: self.superblock.geometry.segments(),
            has_failed: self.has_failed,
            ..self.stats
        }
    }

    /// See [`LogStats::room_bytes`].
    fn room_bytes(&self) -> u64 {
        let (live, dead) = self.segments.iter().fold((0, 0), |(live, dead), segment| {
            // What has left the segment that is reclaimed is about to be free.
            let is_to_stay = matches!(segment.state, State::Open | State::Closing | State::Full);
            let dead_bytes = if is_to_stay { segment.dead_bytes } else { 0 };
            (live + segment.live_bytes, dead + dead_bytes)
        });
        let free = (self.segments.free_count()).saturating_sub(self.options.free_segments_low);
        let free_bytes = u64::from(free) * u64::from(self.superblock.geometry.segment_bytes);
        let records = (self.options.records_max as u64, self.index.len() as u64);
        room_bytes((live + dead + free_bytes, live), records)
    }

    /// The record of a key, if it is here and durable.
    #[must_use]
    pub fn get(&self, fingerprint: Fingerprint) -> Option<Record> {
        let located = self.index.get(&fingerprint)?;
        Some(located.record(fingerprint))
    }

    /// All records that are here, in no order that anything may rely on.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let records = self.index.iter();
        records.map(|(&fingerprint, located)| located.record(fingerprint))
    }

    /// The next thing that the driver is to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The next thing that the owner is told.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`advance`](Self::advance) is to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let oldest = self.lanes.iter().filter_map(Queue::since).min()?;
        self.may_begin_batch().then(|| oldest + self.options.linger)
    }

    /// Time has passed.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.reclaim_on();
        self.write_on();
        self.flush_on();
    }

    /// Lets reclaim read and write so many bytes more. Without a call it is as fast as the drive; once there is one
    /// it does what it was granted, at most a segment ahead.
    pub fn grant_reclaim(&mut self, now: Time, budget_bytes: u64) {
        let bound = u64::from(self.superblock.geometry.segment_bytes);
        let left = if self.reclaim_budget_bytes == u64::MAX {
            0
        } else {
            self.reclaim_budget_bytes
        };
        self.reclaim_budget_bytes = left.saturating_add(budget_bytes).min(bound);
        self.advance(now);
    }

    /// "Remove all": records of generations before this one are not found any more. Ends with
    /// [`Event::GenerationRaised`] when that is durable.
    pub fn raise_generation(&mut self, now: Time, generation: u64) {
        if generation > self.superblock.generation {
            self.superblock.generation = generation;
            self.end_flights_before(generation);
            let dead: Vec<Fingerprint> = self
                .index
                .iter()
                .filter(|(_, located)| located.generation() < generation)
                .map(|(&fingerprint, _)| fingerprint)
                .collect();
            for fingerprint in dead {
                self.forget(fingerprint);
            }
        }
        self.write_generation();
        self.advance(now);
    }

    /// Takes a record out of the index. Its bytes are dead.
    fn forget(&mut self, fingerprint: Fingerprint) -> Option<Located> {
        let located = self.index.remove(&fingerprint)?;
        self.die(fingerprint, &located);
        Some(located)
    }

    /// Lets so many records go that nobody was asked about, those of the earliest segments first. They stay on the drive
    /// until these are reclaimed.
    pub(crate) fn drop_oldest(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let records = self.index.iter();
        let places = records.map(|(&fingerprint, located)| {
            let location = located.location;
            let segment = self.segments.get(location.segment_index);
            (segment.tag.sequence, location, fingerprint)
        });
        let mut places: Vec<_> = places.collect();
        places.sort_unstable();
        for (_, location, fingerprint) in places.into_iter().take(count) {
            self.forget(fingerprint);
            self.add_ghost(fingerprint, location.segment_index);
        }
    }

    /// What was found by an entry is not any more.
    fn die(&mut self, fingerprint: Fingerprint, located: &Located) {
        let segment_index = located.location.segment_index;
        self.segments
            .sub_live(segment_index, located.footprint_bytes());
        if let Some(reclaim) = &mut self.reclaim
            && reclaim.segment_index == segment_index
        {
            reclaim.judged.remove(&fingerprint);
        }
    }

    /// Whether the drive may have a record of this key that is not here. That may be of any key as long as it is not
    /// durable what was recovered, or that a generation has ended.
    fn may_have(&self, fingerprint: Fingerprint) -> bool {
        let of_key = (fingerprint, 0, Ghost::Before)..=(fingerprint, u32::MAX, Ghost::Behind);
        !self.superblock_step.is_settled() || self.ghosts.range(of_key).next().is_some()
    }

    /// The drive may have a record of this key in this segment.
    fn add_ghost(&mut self, fingerprint: Fingerprint, segment_index: u32) {
        self.add_ghost_of(fingerprint, segment_index, Ghost::Before);
    }

    fn add_ghost_of(&mut self, fingerprint: Fingerprint, segment_index: u32, ghost: Ghost) {
        self.ghosts.insert((fingerprint, segment_index, ghost));
        if self.ghosts.len() > GHOSTS_MAX {
            self.fail_device();
        }
    }

    /// What could not be written in a segment lies behind its seal.
    fn clear_ghosts_behind(&mut self, segment_index: u32) {
        self.ghosts
            .retain(|(_, ghost_in, ghost)| *ghost_in != segment_index || *ghost == Ghost::Before);
    }

    fn clear_ghosts(&mut self, segment_index: u32) {
        self.ghosts
            .retain(|(_, ghost_in, _)| *ghost_in != segment_index);
    }

    fn next_op(&mut self, op: Op) -> OpId {
        self.next_op += 1;
        let id = OpId(self.next_op);
        self.ops.insert(id, op);
        id
    }

    /// A number for what the owner is told about later.
    fn next_token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Checks what must hold between the index and the segments.
    ///
    /// # Panics
    /// If it does not: tests and fuzz targets call it.
    pub fn check(&self) {
        let mut live = vec![(0, 0); self.superblock.geometry.segments() as usize];
        for located in self.index.values() {
            let (bytes, records) = &mut live[located.location.segment_index as usize];
            *bytes += located.footprint_bytes();
            *records += 1;
        }
        for (segment, (bytes, records)) in self.segments.iter().zip(live) {
            assert_eq!(
                (segment.live_bytes, segment.live_records),
                (bytes, records),
                "{segment:?}"
            );
            let may_be_alive = !matches!(segment.state, State::Free | State::Freeing);
            assert!(may_be_alive || segment.live_records == 0, "{segment:?}");
            assert!(may_be_alive || segment.pins == 0, "{segment:?}");
        }
        assert!(
            self.index.len() <= self.options.records_max,
            "the index is bounded"
        );
        assert!(
            self.writing_count() <= self.options.writes_in_flight_max,
            "writes are bounded"
        );
        assert!(
            self.batches.len() <= self.options.unflushed_max,
            "what is not durable is bounded"
        );
        assert_eq!(
            self.flight_of.len(),
            self.flight_of
                .values()
                .filter(|&&at| self.flights.contains(at))
                .count()
        );
    }

    /// The version of a record that is here.
    fn version_here(&self, fingerprint: Fingerprint) -> Option<Version> {
        self.index.get(&fingerprint).map(Located::version)
    }
}

/// How much is taken before there is as much as there is to be, of bytes or, by their mean length, of records. Of both: how
/// many there may be, and how many there are.
fn room_bytes((writable_bytes, live_bytes): (u64, u64), (records_max, records): (u64, u64)) -> u64 {
    let left =
        |max: u64, used: u64, (part, whole): (u64, u64)| (max / whole * part).saturating_sub(used);
    let room_bytes = left(writable_bytes, live_bytes, FULL_BYTES_SHARE);
    let room_records = left(records_max, records, FULL_RECORDS_SHARE);
    let by_records = live_bytes
        .checked_div(records)
        .map(|mean_bytes| room_records.saturating_mul(mean_bytes));
    by_records.map_or(room_bytes, |by_records| room_bytes.min(by_records))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_full_by_bytes_or_by_records() {
        for (bytes, records, room) in [
            ((800, 0), (80, 0), 700),
            ((800, 100), (80, 10), 500),
            ((800, 100), (80, 1), 600),
            ((800, 700), (80, 7), 0),
            // Shorter than the index is made for.
            ((800, 100), (80, 50), 20),
            ((800, 120), (80, 60), 0),
            ((800, 140), (80, 70), 0),
        ] {
            assert_eq!(room_bytes(bytes, records), room, "{bytes:?} {records:?}");
        }
    }
}
