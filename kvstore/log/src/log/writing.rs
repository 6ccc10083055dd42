//! Queues, and the batches that they are written in.

use std::collections::VecDeque;

use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::appending::{Origin, Stage};
use super::devices::Op;
use super::{Ghost, Log};
use crate::effect::{AppendFailure, DeviceFault, Effect, Event, RemovalId, Write, WritePiece};
use crate::format::batch::{
    self, BATCH_HEADER_BYTES, ENTRIES_MAX, ENTRY_BYTES, Encoded, Entry, Item, Piece, PlacedObject,
    Removal,
};
use crate::format::segment::{SegmentHeader, SegmentState};
use crate::format::{BLOCK_BYTES, SEGMENT_HEAD_BLOCKS, blocks_for};
use crate::index::{Located, Location};
use crate::record::Fingerprint;
use crate::segments::State;

/// Something that waits to be written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// A record, by its place among the flights.
    Flight(usize),
    /// A removal.
    Removal(Removal, Requester),
}

/// Whose removal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requester {
    /// The owner's. Where the record was, if that is known.
    Owner(RemovalId, Option<u32>),
    /// Reclaim's: its segment is not freed before the removal is durable elsewhere.
    Reclaim,
}

/// Who waits, the first first. Only reclaim uses the reserve, so that it always has what it needs to free another
/// segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// What is kept of a segment that is reclaimed, and the removals that are needed of it.
    Reclaim,
    /// What the owner removes.
    Removals,
    /// What the owner appends.
    Appends,
}

impl Lane {
    pub(super) const ALL: [Self; 3] = [Self::Reclaim, Self::Removals, Self::Appends];
}

/// What waits, in its order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<(Time, Waiting)>,
    /// The most that it adds to batches.
    pub(super) room_bytes: u64,
}

impl Queue {
    /// Since when the first has been waiting.
    pub(super) fn since(&self) -> Option<Time> {
        self.waiting.front().map(|(since, _)| *since)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter().map(|(_, waiting)| waiting)
    }

    pub(super) fn drain(&mut self) -> Vec<Waiting> {
        self.room_bytes = 0;
        self.waiting.drain(..).map(|(_, waiting)| waiting).collect()
    }
}

/// What is in a batch.
#[derive(Clone, Copy, Debug)]
enum Written {
    Flight(usize, PlacedObject),
    Removal(Removal, Requester),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Writing,
    /// A flush has not ended that was begun since.
    Written,
    Durable,
    Failed,
}

/// A batch that has been begun.
#[derive(Debug)]
pub(super) struct Batch {
    sequence: u64,
    segment_index: u32,
    at_block: u32,
    len_blocks: u32,
    progress: Progress,
    pub(super) issued: Time,
    written: Vec<Written>,
}

impl Log {
    pub(super) fn may_write(&self) -> bool {
        self.superblock_step.is_done() && !self.has_failed
    }

    /// Whether another batch may be begun.
    pub(super) fn may_begin_batch(&self) -> bool {
        self.may_write()
            && self.writing_count() < self.options.writes_in_flight_max
            && self.batches.len() < self.options.unflushed_max
    }

    /// How many batches the drive has not written yet.
    pub(super) fn writing_count(&self) -> usize {
        let batches = self.batches.iter();
        let writing = batches.filter(|batch| batch.progress == Progress::Writing);
        writing.count()
    }

    /// Whether what waits in this lane may go to the open segment, or open one.
    pub(super) fn has_room(&self, lane: Lane) -> bool {
        let reserve = match lane {
            Lane::Reclaim => 0,
            // What reclaim waits for is few, and goes before it.
            Lane::Removals if self.is_reclaim_waiting() => 0,
            Lane::Removals | Lane::Appends => self.options.reserve_segments,
        };
        let free = self.segments.free_count();
        if self.head.is_some() {
            free >= reserve
        } else {
            free > reserve
        }
    }

    /// Writes what is due, as long as there is room.
    pub(super) fn write_on(&mut self) {
        while self.may_begin_batch() && self.is_due() {
            let Some(segment_index) = self.head.or_else(|| self.open_segment()) else {
                return;
            };
            let segment = self.segments.get(segment_index);
            let end_block = self.superblock.geometry.segment_blocks();
            let room_bytes = u64::from(end_block - segment.end_block) * u64::from(BLOCK_BYTES);
            let room_records = self.segment_records_max - segment.written_records;
            let taken = self.take_batch(room_bytes, room_records);
            if !taken.is_empty() {
                self.write_batch(segment_index, &taken);
            } else if self.is_due() {
                self.close_segment(segment_index);
            }
        }
    }

    /// Whether something has waited long enough, or is enough for a batch.
    fn is_due(&self) -> bool {
        let lanes = Lane::ALL.into_iter().filter(|&lane| self.has_room(lane));
        let queues = lanes.map(|lane| &self.lanes[lane as usize]);
        let room_bytes: u64 = queues.clone().map(|queue| queue.room_bytes).sum();
        let since = queues.filter_map(Queue::since).min();
        since.is_some_and(|since| {
            room_bytes >= self.options.batch_bytes_max.into()
                || self.now >= since + self.options.linger
        })
    }

    fn open_segment(&mut self) -> Option<u32> {
        let superblock = &self.superblock;
        let opened = self
            .segments
            .open(superblock.log_id, superblock.mount, self.next_batch);
        self.head = opened;
        opened
    }

    /// Nothing more is written to the open segment.
    pub(super) fn close_segment(&mut self, segment_index: u32) {
        self.head = None;
        self.segments.get_mut(segment_index).state = State::Closing;
        self.seal_if_ended(segment_index);
    }

    fn seal_if_ended(&mut self, segment_index: u32) {
        let segment = self.segments.get_mut(segment_index);
        if segment.state == State::Closing && segment.batches == 0 {
            segment.state = State::Full;
            self.write_seal(segment_index);
        }
    }

    /// What goes into the next batch, lane by lane. Nothing if there is no room for the first of it.
    fn take_batch(&mut self, room_bytes: u64, mut room_records: usize) -> Vec<Waiting> {
        let bound = room_bytes.min(self.options.batch_bytes_max.into());
        let (mut taken, mut bytes) = (Vec::new(), BATCH_HEADER_BYTES as u64);
        for lane in Lane::ALL {
            if !self.has_room(lane) {
                break;
            }
            while let Some((_, waiting)) = self.lanes[lane as usize].waiting.front().copied() {
                let needed = self.room_of(waiting);
                let is_record = matches!(waiting, Waiting::Flight(_));
                // One that is longer than a batch is to be goes by itself.
                let limit = if taken.is_empty() { room_bytes } else { bound };
                let has_places = taken.len() < ENTRIES_MAX && (room_records > 0 || !is_record);
                if !has_places || bytes + needed > limit {
                    return taken;
                }
                let queue = &mut self.lanes[lane as usize];
                queue.waiting.pop_front();
                queue.room_bytes -= needed;
                if !self.drop_ended(waiting) {
                    bytes += needed;
                    room_records -= usize::from(is_record);
                    taken.push(waiting);
                }
            }
        }
        taken
    }

    pub(super) fn enqueue(&mut self, lane: Lane, waiting: Waiting) {
        let room_bytes = self.room_of(waiting);
        let queue = &mut self.lanes[lane as usize];
        queue.waiting.push_back((self.now, waiting));
        queue.room_bytes += room_bytes;
    }

    fn room_of(&self, waiting: Waiting) -> u64 {
        match waiting {
            Waiting::Flight(at) => self.flights[at].room_bytes(),
            Waiting::Removal(..) => ENTRY_BYTES as u64,
        }
    }

    fn write_batch(&mut self, segment_index: u32, taken: &[Waiting]) {
        let segment = self.segments.get_mut(segment_index);
        let (tag, at_block) = (segment.tag, segment.end_block);
        let sequence = self.next_batch;
        self.next_batch += 1;
        let encoded = self.encode(segment_index, sequence, taken);
        let written =
            taken
                .iter()
                .zip(&encoded.entries)
                .map(|(waiting, entry)| match (waiting, entry) {
                    (&Waiting::Flight(at), Entry::Object(object)) => {
                        self.flights[at].stage = Stage::Placed;
                        Written::Flight(at, *object)
                    }
                    (&Waiting::Removal(removal, requester), _) => {
                        Written::Removal(removal, requester)
                    }
                    (Waiting::Flight(_), Entry::Removal(_)) => {
                        unreachable!("entries are in the order of items")
                    }
                });
        let written: Vec<Written> = written.collect();
        let is_record = |written: &&Written| matches!(written, Written::Flight(..));
        let records = written.iter().filter(is_record).count();
        let len_blocks = encoded.header.len_blocks;
        self.refund_kept(taken, len_blocks);
        let segment = self.segments.get_mut(segment_index);
        segment.end_block += len_blocks;
        segment.next_batch = sequence + 1;
        segment.batches += 1;
        segment.written_records += records;
        self.batches.push_back(Batch {
            sequence,
            segment_index,
            at_block,
            len_blocks,
            progress: Progress::Writing,
            issued: self.now,
            written,
        });
        // The head goes out with the first batch.
        let head = (at_block == SEGMENT_HEAD_BLOCKS).then_some(SegmentHeader {
            tag,
            state: SegmentState::Used,
            first_batch: sequence,
            generation: self.superblock.generation,
            segment_index,
        });
        let op = self.next_op(Op::Batch {
            sequence,
            segment_index,
        });
        let begin_block = if head.is_some() { 0 } else { at_block };
        let offset_bytes = self
            .superblock
            .geometry
            .offset_bytes(segment_index, begin_block);
        let (own, pieces) = self.pieces(head, encoded, taken);
        self.stats.written_bytes +=
            u64::from(len_blocks + at_block - begin_block) * u64::from(BLOCK_BYTES);
        self.effects.push_back(Effect::Write(Write {
            op,
            offset_bytes,
            own,
            pieces,
        }));
        if mutant::is_on(Mutant::LogAnnouncedEarly) {
            self.end_batches();
        }
    }

    fn encode(&self, segment_index: u32, sequence: u64, taken: &[Waiting]) -> Encoded {
        let segment = self.segments.get(segment_index);
        let items = taken.iter().map(|&waiting| match waiting {
            Waiting::Flight(at) => {
                let flight = &self.flights[at];
                Item::Object {
                    record: flight.record,
                    key: &flight.key,
                }
            }
            Waiting::Removal(removal, _) => Item::Removal(removal),
        });
        let items: Vec<Item<'_>> = items.collect();
        batch::encode(segment.tag, sequence, segment.end_block, &items)
    }

    /// The bytes of a batch, behind the head of its segment where it is the first.
    fn pieces(
        &self,
        head: Option<SegmentHeader>,
        encoded: Encoded,
        taken: &[Waiting],
    ) -> (Vec<u8>, Vec<WritePiece>) {
        let mut own = Vec::new();
        if let Some(header) = head {
            own.extend_from_slice(&header.encode());
            // No seal.
            own.resize((SEGMENT_HEAD_BLOCKS * BLOCK_BYTES) as usize, 0);
        }
        let shift = own.len();
        own.extend_from_slice(&encoded.own);
        let pieces = encoded.pieces.into_iter().map(|piece| match piece {
            Piece::Own(range) => {
                let begin = if range.start == 0 {
                    0
                } else {
                    range.start + shift
                };
                WritePiece::Own(begin..range.end + shift)
            }
            Piece::Payload(index) => {
                let Waiting::Flight(at) = taken[index] else {
                    unreachable!("removals have no payload");
                };
                let flight = &self.flights[at];
                WritePiece::Payload {
                    memory: flight.memory,
                    offset_bytes: flight.payload_at,
                    len_bytes: flight.record.len_bytes,
                }
            }
        });
        let pieces = pieces.collect();
        (own, pieces)
    }

    /// A batch is written, and not durable yet.
    pub(super) fn batch_written(&mut self, sequence: u64) {
        self.set_progress(sequence, Progress::Written);
    }

    fn set_progress(&mut self, sequence: u64, progress: Progress) {
        let mut batches = self.batches.iter_mut();
        if let Some(batch) = batches.find(|batch| batch.sequence == sequence) {
            batch.progress = progress;
        }
    }

    /// A batch has ended, one way or the other.
    pub(super) fn batch_ended(
        &mut self,
        sequence: u64,
        segment_index: u32,
        result: Result<(), DeviceFault>,
    ) {
        let progress = if result.is_ok() {
            Progress::Durable
        } else {
            Progress::Failed
        };
        self.set_progress(sequence, progress);
        if result.is_err() && self.head == Some(segment_index) {
            self.close_segment(segment_index);
        }
        self.end_batches();
    }

    /// Announces what has ended, in the order of batches.
    fn end_batches(&mut self) {
        while let Some(batch) = self.batches.front() {
            let is_ended = matches!(batch.progress, Progress::Durable | Progress::Failed);
            if !is_ended && !mutant::is_on(Mutant::LogAnnouncedEarly) {
                return;
            }
            let batch = self.batches.pop_front().expect("it was there");
            let segment = self.segments.get_mut(batch.segment_index);
            segment.batches -= 1;
            if batch.progress == Progress::Failed && !segment.is_broken {
                segment.is_broken = true;
                segment.end_block = batch.at_block;
                segment.next_batch = batch.sequence;
            }
            let is_broken = segment.is_broken;
            if !is_broken {
                self.stats.batches += 1;
                self.stats.batch_bytes += u64::from(batch.len_blocks) * u64::from(BLOCK_BYTES);
            }
            for &written in &batch.written {
                if is_broken {
                    self.fail_written(written, batch.segment_index);
                } else {
                    self.land_written(written, &batch);
                }
            }
            self.seal_if_ended(batch.segment_index);
        }
    }

    fn land_written(&mut self, written: Written, batch: &Batch) {
        match written {
            Written::Flight(at, object) => {
                let location = Location::of(batch.segment_index, batch.at_block, &object);
                self.stats.payload_bytes += u64::from(object.record.len_bytes);
                self.land_flight(at, &object, location);
            }
            Written::Removal(entry, Requester::Owner(removal, _)) => {
                self.end_removal(entry.fingerprint, removal);
                self.events.push_back(Event::Removed { removal });
            }
            Written::Removal(_, Requester::Reclaim) => self.removal_kept(),
        }
    }

    fn land_flight(&mut self, at: usize, object: &PlacedObject, location: Location) {
        let flight = self.take_flight(at);
        let fingerprint = flight.record.fingerprint;
        if flight.ended.is_none() {
            let located = Located::new(object, location, flight.has_history);
            self.segments
                .add_live(location.segment_index, located.footprint_bytes());
            if let Some(before) = self.index.insert(fingerprint, located) {
                self.die(fingerprint, &before);
            }
        }
        match (flight.origin, flight.ended) {
            (Origin::Append(append), None) => {
                let record = flight.record;
                self.events.push_back(Event::Durable { append, record });
            }
            (Origin::Append(append), Some(cause)) => {
                self.events.push_back(Event::Failed { append, cause })
            }
            (Origin::Move { read, .. }, ended) => {
                self.end_move(read);
                if ended.is_none() {
                    self.stats.moved_records += 1;
                    let version = flight.record.version;
                    self.events.push_back(Event::Moved {
                        fingerprint,
                        version,
                    });
                }
            }
        }
    }

    fn fail_written(&mut self, written: Written, segment_index: u32) {
        match written {
            Written::Flight(at, _) => {
                let flight = self.take_flight(at);
                let fingerprint = flight.record.fingerprint;
                self.add_ghost_of(fingerprint, segment_index, Ghost::Behind);
                match flight.origin {
                    Origin::Append(append) => {
                        let cause = flight.ended.unwrap_or(AppendFailure::Device(DeviceFault));
                        self.events.push_back(Event::Failed { append, cause });
                    }
                    Origin::Move { read, batch } => {
                        self.end_move(read);
                        if flight.ended.is_none() {
                            self.judge_again(fingerprint, flight.record.version, batch);
                        }
                    }
                }
            }
            Written::Removal(removal, Requester::Owner(id, found_in)) if self.has_failed => {
                self.fail_removal(removal.fingerprint, id, found_in);
            }
            Written::Removal(removal, Requester::Reclaim) => self.requeue_removal(removal),
            Written::Removal(removal, requester) => {
                self.enqueue(Lane::Removals, Waiting::Removal(removal, requester));
            }
        }
    }

    /// The owner's removal is not on the drive, and what it is about may be.
    pub(super) fn fail_removal(
        &mut self,
        fingerprint: Fingerprint,
        removal: RemovalId,
        found_in: Option<u32>,
    ) {
        self.end_removal(fingerprint, removal);
        // Earlier records of the key may be anywhere.
        self.add_ghost(fingerprint, found_in.unwrap_or(u32::MAX));
        self.add_ghost(fingerprint, u32::MAX);
        self.events.push_back(Event::RemovalFailed { removal });
    }

    /// The longest payload that fits into a segment under a key of this length.
    pub(super) fn payload_bytes_max(&self, key_len: u16) -> u32 {
        let blocks = self.superblock.geometry.segment_blocks() - SEGMENT_HEAD_BLOCKS;
        let room = u64::from(blocks) * u64::from(BLOCK_BYTES) - BATCH_HEADER_BYTES as u64;
        // The gap of a long payload is part of it here, although a short one has none.
        let taken = batch::room_bytes_max(key_len, batch::ALIGNED_PAYLOAD_BYTES_MIN)
            - u64::from(batch::ALIGNED_PAYLOAD_BYTES_MIN);
        let max = room.saturating_sub(taken) / u64::from(batch::ALIGN_BYTES)
            * u64::from(batch::ALIGN_BYTES);
        debug_assert!(
            blocks_for(u32::try_from(max).expect("a segment is at most 1 GiB")) <= blocks
        );
        u32::try_from(max).expect("a segment is at most 1 GiB")
    }
}
