//! Reclaim: a segment's records are kept or released, and the segment is freed.

use std::collections::{BTreeMap, VecDeque};

use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::appending::{Flight, Origin, Stage};
use super::devices::Op;
use super::writing::{Lane, Requester, Waiting};
use super::{Ghost, Log};
use crate::effect::{
    AppendFailure, DeviceFault, Effect, Event, KeepRefused, LossCause, Memory, OpId, RemovalId,
};
use crate::format::batch::{BATCH_HEADER_BYTES, BatchHeader, Entry, Removal, key_room_bytes};
use crate::format::{BLOCK_BYTES, FormatFault, SEGMENT_HEAD_BLOCKS, blocks_for};
use crate::index::{Located, Location};
use crate::options::{KEPT_RECORD_SHARE, KEPT_SHARE, TABLE_READ_BYTES};
use crate::record::{Fingerprint, Record, Version};
use crate::segments::State;

/// A record of which the owner was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    version: Version,
    /// The batch that it is in.
    batch: u64,
}

/// A segment that is being reclaimed.
#[derive(Debug)]
pub(super) struct Reclaim {
    pub(super) segment_index: u32,
    /// The next batch.
    at_block: u32,
    is_reading: bool,
    /// What is left of the table that was read last.
    entries: VecDeque<Entry>,
    /// The batch of that table, and where it begins.
    batch: (u64, u32),
    pub(super) judged: BTreeMap<Fingerprint, Judged>,
    /// Records that are kept, and not yet durable elsewhere.
    pub(super) moving: usize,
    /// Removals that are needed, and not yet durable elsewhere.
    removals: usize,
    /// The last removal that may be about something in it, once everything else is settled.
    last_removal: Option<RemovalId>,
    /// How much more may be kept.
    keepable_bytes: u64,
    /// How many records more may be kept.
    keepable_records: u64,
    /// Whether a table of it cannot be read, and removals that are needed may be behind it: it stays.
    is_unread: bool,
}

impl Log {
    /// Lets the record stay of which [`Event::Judge`] asked. It is read and written elsewhere: [`Event::Moved`]
    /// follows, or [`Event::Lost`].
    ///
    /// # Errors
    /// [`KeepRefused`].
    pub fn keep(
        &mut self,
        now: Time,
        fingerprint: Fingerprint,
        version: Version,
    ) -> Result<(), KeepRefused> {
        self.now = self.now.max(now);
        let judged = self
            .judged(fingerprint, version)
            .ok_or(KeepRefused::NotJudged)?;
        if self.flight_of.contains_key(&fingerprint) {
            return Err(KeepRefused::Busy);
        }
        let located = *self.index.get(&fingerprint).ok_or(KeepRefused::NotJudged)?;
        if !self.may_stay(&located) {
            return Err(KeepRefused::NoRoom);
        }
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.judged.remove(&fingerprint);
            reclaim.moving += 1;
            reclaim.keepable_bytes -= alone_bytes(located.room_bytes_max());
            reclaim.keepable_records -= 1;
        }
        let window = located.window(self.superblock.geometry);
        let at = self.flights.vacant_key();
        let op = self.next_op(Op::Kept { at });
        self.flights.insert(Flight {
            record: located.record(fingerprint),
            key: vec![0; located.key_len().into()].into(),
            memory: Memory::Read(op),
            payload_at: window.payload_at,
            origin: Origin::Move {
                read: op,
                batch: judged.batch,
            },
            stage: Stage::Reading,
            ended: None,
            has_history: located.has_history || self.may_have(fingerprint),
        });
        self.flight_of.insert(fingerprint, at);
        self.spend(window.len_bytes);
        self.effects.push_back(Effect::Read {
            op,
            offset_bytes: window.offset_bytes,
            len_bytes: window.len_bytes,
            is_kept: true,
        });
        self.advance(now);
        Ok(())
    }

    /// Lets the record go of which [`Event::Judge`] asked: it is not found any more. Whether it was still judged.
    pub fn release(&mut self, now: Time, fingerprint: Fingerprint, version: Version) -> bool {
        self.now = self.now.max(now);
        let Some(judged) = self.judged(fingerprint, version) else {
            return false;
        };
        if let Some(located) = self.forget(fingerprint) {
            let segment_index = located.location.segment_index;
            let has_history = located.has_history || self.may_have(fingerprint);
            if has_history {
                self.bury(fingerprint, version, judged.batch);
            }
            self.add_ghost(fingerprint, segment_index);
            self.stats.released_records += 1;
        }
        self.advance(now);
        true
    }

    fn judged(&self, fingerprint: Fingerprint, version: Version) -> Option<Judged> {
        let judged = self.reclaim.as_ref()?.judged.get(&fingerprint)?;
        (judged.version == version).then_some(*judged)
    }

    /// Whether there is room for a record of the segment that is reclaimed to stay.
    fn may_stay(&self, located: &Located) -> bool {
        let segment_bytes = u64::from(self.superblock.geometry.segment_bytes);
        let left_bytes = match &self.reclaim {
            Some(reclaim) if reclaim.keepable_records > 0 => reclaim.keepable_bytes,
            _ => 0,
        };
        let alone_bytes = alone_bytes(located.room_bytes_max());
        alone_bytes <= (segment_bytes / KEPT_RECORD_SHARE).min(left_bytes)
    }

    /// Records that were kept are in a batch of so many blocks: together they take less than they would alone.
    pub(super) fn refund_kept(&mut self, taken: &[Waiting], len_blocks: u32) {
        let alone = taken.iter().map(|waiting| match *waiting {
            Waiting::Flight(at) => match self.flights[at].origin {
                Origin::Move { .. } => alone_bytes(self.flights[at].room_bytes()),
                Origin::Append(_) => 0,
            },
            Waiting::Removal(..) => 0,
        });
        let alone_bytes: u64 = alone.sum();
        let together_bytes = u64::from(len_blocks) * u64::from(BLOCK_BYTES);
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.keepable_bytes += alone_bytes.saturating_sub(together_bytes);
        }
    }

    const fn spend(&mut self, len_bytes: u32) {
        if self.reclaim_budget_bytes != u64::MAX {
            self.reclaim_budget_bytes = self.reclaim_budget_bytes.saturating_sub(len_bytes as u64);
        }
    }

    /// Goes on with the segment that is reclaimed, or begins with one where too few are free.
    pub(super) fn reclaim_on(&mut self) {
        if !self.may_write() {
            return;
        }
        self.give_up_reclaim();
        if self.reclaim.is_none() {
            self.begin_reclaim();
        }
        while let Some(entry) = self.next_entry() {
            self.reclaim_entry(&entry);
        }
        let budget_bytes = self.reclaim_budget_bytes;
        let Some(reclaim) = &self.reclaim else {
            return;
        };
        let segment_index = reclaim.segment_index;
        let end_block = self.segments.get(segment_index).end_block;
        let is_walked = reclaim.entries.is_empty() && !reclaim.is_reading;
        if is_walked && reclaim.at_block < end_block {
            if budget_bytes > 0 {
                self.read_table(TABLE_READ_BYTES);
            }
            return;
        }
        let is_settled = reclaim.judged.is_empty() && reclaim.moving == 0 && reclaim.removals == 0;
        if is_walked && is_settled && reclaim.is_unread {
            self.leave_unread(segment_index);
        } else if is_walked && (is_settled || mutant::is_on(Mutant::LogLiveFreed)) {
            self.free_emptied(segment_index);
        }
    }

    /// Writes that fail end their segments. Where that leaves no room for what is to be kept, or for removals, the
    /// segment stays as it is, and the oldest one is reclaimed, of which nothing has to be written.
    fn give_up_reclaim(&mut self) {
        let has_room = self.head.is_some()
            || self.segments.free_count() > 0
            || self.segments.freeing_count() > 0;
        let waiting = self.waiting_for_reclaim();
        let Some(reclaim) = &self.reclaim else {
            return;
        };
        let is_all_waiting = reclaim.moving + reclaim.removals == waiting && !reclaim.is_reading;
        let is_stuck = waiting > 0 || (self.is_reclaim_waiting() && self.batches.is_empty());
        if has_room || !is_stuck || !is_all_waiting {
            return;
        }
        let segment_index = reclaim.segment_index;
        for waiting in self.lanes[Lane::Reclaim as usize].drain() {
            if let Waiting::Flight(at) = waiting {
                self.end_flight(at, AppendFailure::Removed);
                self.flights.remove(at);
            }
        }
        self.reclaim = None;
        self.segments.get_mut(segment_index).state = State::Full;
    }

    /// How much of what is to be kept, and how many removals, wait for room.
    fn waiting_for_reclaim(&self) -> usize {
        let waiting = self.lanes[Lane::Reclaim as usize].iter();
        let alive = waiting.filter(|waiting| match waiting {
            Waiting::Flight(at) => self.flights[*at].ended.is_none(),
            Waiting::Removal(..) => true,
        });
        alive.count()
    }

    fn begin_reclaim(&mut self) {
        let free = self.segments.free_count();
        let soon_free = free + self.segments.freeing_count();
        let is_index_short = self.is_index_short();
        let is_needed = soon_free < self.options.free_segments_low || is_index_short;
        if !is_needed || self.reclaim_budget_bytes == 0 {
            return;
        }
        // Where little is dead, what is alive makes room: the oldest first, whatever their segments are filled like.
        let is_in_order = is_index_short || self.room_bytes() == 0;
        let is_pressed = free <= self.options.reserve_segments || is_in_order;
        let Some(segment_index) = self.segments.victim(self.superblock.geometry, is_pressed) else {
            return;
        };
        let segment = self.segments.get_mut(segment_index);
        segment.state = State::Reclaiming;
        // What is kept of one segment does not fill the records of another; of a short index places become free.
        let records = if is_index_short {
            segment.live_records.into()
        } else {
            u64::MAX
        };
        let keepable_records = part(records.min(self.segment_records_max as u64), KEPT_SHARE);
        // Where nothing is free, as after crashes while segments were reclaimed, nothing can be kept.
        let segment_bytes = u64::from(self.superblock.geometry.segment_bytes);
        let keepable_bytes = if free > 0 {
            part(segment_bytes, KEPT_SHARE)
        } else {
            0
        };
        self.reclaim = Some(Reclaim {
            segment_index,
            at_block: SEGMENT_HEAD_BLOCKS,
            is_reading: false,
            entries: VecDeque::new(),
            batch: (0, 0),
            judged: BTreeMap::new(),
            moving: 0,
            removals: 0,
            last_removal: None,
            keepable_bytes,
            keepable_records,
            is_unread: false,
        });
    }

    /// The next entry of the table that was read, as long as few records are undecided.
    fn next_entry(&mut self) -> Option<Entry> {
        let reclaim = self.reclaim.as_mut()?;
        let undecided = reclaim.judged.len() + reclaim.moving;
        if undecided >= self.options.judged_max {
            return None;
        }
        reclaim.entries.pop_front()
    }

    fn reclaim_entry(&mut self, entry: &Entry) {
        let Some(reclaim) = &self.reclaim else {
            return;
        };
        let (segment_index, (batch, at_block)) = (reclaim.segment_index, reclaim.batch);
        match entry {
            Entry::Object(object) => {
                let location = Location::of(segment_index, at_block, object);
                let fingerprint = object.record.fingerprint;
                let located = self.index.get(&fingerprint);
                let version = object.record.version;
                if located.is_some_and(|located| located.location == location) {
                    self.judge(fingerprint, Judged { version, batch });
                } else if self
                    .ghosts
                    .contains(&(fingerprint, segment_index, Ghost::Before))
                {
                    self.bury(fingerprint, version, batch);
                }
            }
            Entry::Removal(removal) => {
                let is_needed = self.segments.any_other_until(segment_index, removal.covers);
                if is_needed && !mutant::is_on(Mutant::LogTombstoneDropped) {
                    self.need_removal(*removal);
                }
            }
        }
    }

    fn judge(&mut self, fingerprint: Fingerprint, judged: Judged) {
        let may_stay = self
            .index
            .get(&fingerprint)
            .is_some_and(|located| self.may_stay(located));
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.judged.insert(fingerprint, judged);
            let version = judged.version;
            self.events.push_back(Event::Judge {
                fingerprint,
                version,
                may_stay,
            });
        }
    }

    /// A record that was kept could not be written: the owner is asked again.
    pub(super) fn judge_again(&mut self, fingerprint: Fingerprint, version: Version, batch: u64) {
        self.judge(fingerprint, Judged { version, batch });
    }

    /// A record is gone that nothing on the drive says is dead, and is in a segment that is reclaimed: what it had
    /// replaced may be in another, and stays dead.
    fn bury(&mut self, fingerprint: Fingerprint, version: Version, batch: u64) {
        let segment_index = self.reclaim.as_ref().map(|reclaim| reclaim.segment_index);
        if segment_index
            .is_some_and(|segment_index| self.segments.any_other_until(segment_index, batch))
        {
            let covers = batch;
            self.need_removal(Removal {
                fingerprint,
                version,
                covers,
            });
        }
    }

    /// A record that is judged is gone: its entry has been passed, so that nothing else would bury it.
    pub(super) fn bury_judged(&mut self, fingerprint: Fingerprint) {
        let judged = self
            .reclaim
            .as_ref()
            .and_then(|reclaim| reclaim.judged.get(&fingerprint));
        if let Some(&Judged { version, batch }) = judged {
            self.bury(fingerprint, version, batch);
        }
    }

    /// A removal is written again before its segment is freed.
    fn need_removal(&mut self, removal: Removal) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.removals += 1;
            self.requeue_removal(removal);
        }
    }

    pub(super) fn requeue_removal(&mut self, removal: Removal) {
        let waiting = Waiting::Removal(removal, Requester::Reclaim);
        self.enqueue(Lane::Reclaim, waiting);
    }

    /// A removal that is needed is durable elsewhere.
    pub(super) const fn removal_kept(&mut self) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.removals -= 1;
        }
    }

    /// A record that was kept has ended its way.
    pub(super) fn end_move(&mut self, read: OpId) {
        self.effects.push_back(Effect::Release { op: read });
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.moving -= 1;
        }
    }

    fn read_table(&mut self, len_bytes: u32) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        reclaim.is_reading = true;
        let (segment_index, at_block) = (reclaim.segment_index, reclaim.at_block);
        let left = (self.segments.get(segment_index).end_block - at_block) * BLOCK_BYTES;
        let len_bytes = len_bytes.min(left);
        self.spend(len_bytes);
        let op = self.next_op(Op::Table);
        let offset_bytes = self
            .superblock
            .geometry
            .offset_bytes(segment_index, at_block);
        self.effects.push_back(Effect::Read {
            op,
            offset_bytes,
            len_bytes,
            is_kept: false,
        });
    }

    /// A read of the log has ended: of a table, whose memory is free then, or of a record that is kept, whose memory
    /// is not before [`Effect::Release`].
    ///
    /// # Panics
    /// If there is no such read.
    pub fn read_done(&mut self, now: Time, op: OpId, result: Result<&[u8], DeviceFault>) {
        self.now = self.now.max(now);
        match self.ops.remove(&op) {
            Some(Op::Table) => self.table_read(result),
            Some(Op::Kept { at }) => self.kept_read(at, op, result),
            _ => unreachable!("a read ends once"),
        }
        self.advance(now);
    }

    fn table_read(&mut self, result: Result<&[u8], DeviceFault>) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        reclaim.is_reading = false;
        let Ok(bytes) = result else {
            return self.pass_rest();
        };
        let (segment_index, at_block) = (reclaim.segment_index, reclaim.at_block);
        let segment = self.segments.get(segment_index);
        let header = BatchHeader::decode(bytes).and_then(|header| {
            header
                .check_place(segment.tag, at_block, segment.end_block)
                .map(|()| header)
        });
        match header.and_then(|header| header.table(bytes).map(|entries| (header, entries))) {
            Ok((header, entries)) => {
                reclaim.entries = entries.into();
                reclaim.batch = (header.sequence, at_block);
                reclaim.at_block += header.len_blocks;
            }
            Err(FormatFault::Truncated { cut, .. }) if cut.needed_bytes > bytes.len() => {
                let table_end = u32::try_from(cut.needed_bytes).expect("a table is bounded");
                self.read_table(blocks_for(table_end) * BLOCK_BYTES);
            }
            Err(_fault) => self.pass_rest(),
        }
    }

    /// What is behind a table that cannot be read is not known. Removals there may be needed as long as there is an
    /// earlier segment: then this one stays, and its records are still read. Else they are lost, and it is freed.
    fn pass_rest(&mut self) {
        let Some(reclaim) = &mut self.reclaim else {
            return;
        };
        let (segment_index, at_block) = (reclaim.segment_index, reclaim.at_block);
        let segment = self.segments.get(segment_index);
        reclaim.at_block = segment.end_block;
        self.stats.damaged_segments += 1;
        let last_batch = segment.next_batch - 1;
        if self.segments.any_other_until(segment_index, last_batch) {
            reclaim.is_unread = true;
            return;
        }
        let lost = self.index.iter().filter(|(_, located)| {
            located.location.segment_index == segment_index && located.location.block() >= at_block
        });
        let mut lost: Vec<_> = lost
            .map(|(&fingerprint, located)| (located.location, fingerprint))
            .collect();
        lost.sort_unstable();
        for (_, fingerprint) in lost {
            self.lose(fingerprint, LossCause::Unreadable);
        }
    }

    /// What could be read of a segment has been kept, released or buried. Earlier ones are reclaimed before it.
    fn leave_unread(&mut self, segment_index: u32) {
        self.reclaim = None;
        let segment = self.segments.get_mut(segment_index);
        segment.is_unread = true;
        segment.state = State::Full;
    }

    fn lose(&mut self, fingerprint: Fingerprint, cause: LossCause) {
        if let Some(located) = self.forget(fingerprint) {
            self.add_ghost(fingerprint, located.location.segment_index);
            self.stats.lost_records += 1;
            let version = located.version();
            self.events.push_back(Event::Lost {
                fingerprint,
                version,
                cause,
            });
        }
    }

    fn kept_read(&mut self, at: usize, read: OpId, result: Result<&[u8], DeviceFault>) {
        let flight = &mut self.flights[at];
        if flight.ended.is_some() || self.has_failed {
            self.take_flight(at);
            return self.end_move(read);
        }
        match filled(flight, result) {
            Ok(()) => {
                flight.stage = Stage::Waiting;
                self.enqueue(Lane::Reclaim, Waiting::Flight(at));
            }
            Err(cause) => {
                let flight = self.take_flight(at);
                let Record {
                    fingerprint,
                    version,
                    ..
                } = flight.record;
                self.end_move(read);
                if let Origin::Move { batch, .. } = flight.origin
                    && flight.has_history
                {
                    self.bury(fingerprint, version, batch);
                }
                self.lose(fingerprint, cause);
            }
        }
    }

    /// Whether something in the segment that is reclaimed is dead, not yet so on the drive, and may have replaced what
    /// is in an earlier segment.
    pub(super) fn is_reclaim_waiting(&self) -> bool {
        let Some(reclaim) = &self.reclaim else {
            return false;
        };
        let (last, first) = (reclaim.last_removal, self.removals.first());
        if last.zip(first).is_none_or(|(last, first)| *first > last) {
            return false;
        }
        let last_batch = self.segments.get(reclaim.segment_index).next_batch - 1;
        self.segments
            .any_other_until(reclaim.segment_index, last_batch)
    }

    fn free_emptied(&mut self, segment_index: u32) {
        if self.segments.get(segment_index).pins > 0 && !mutant::is_on(Mutant::LogPinIgnored) {
            return;
        }
        if let Some(reclaim) = &mut self.reclaim
            && reclaim.last_removal.is_none()
        {
            reclaim.last_removal = Some(self.removals.last().copied().unwrap_or(RemovalId(0)));
        }
        if !self.superblock_step.is_settled() || self.is_reclaim_waiting() {
            return;
        }
        self.reclaim = None;
        self.stats.reclaimed_segments += 1;
        self.write_freed(segment_index);
        self.begin_reclaim();
        if self.reclaim.is_some() {
            self.reclaim_on();
        }
    }
}

/// So many parts of as many.
const fn part(whole: u64, (parts, of): (u64, u64)) -> u64 {
    whole / of * parts + whole % of * parts / of
}

/// What a record takes in a batch of its own.
const fn alone_bytes(room_bytes: u64) -> u64 {
    (BATCH_HEADER_BYTES as u64 + room_bytes).next_multiple_of(BLOCK_BYTES as u64)
}

/// Takes the key of a record out of what was read, if all of it is right.
fn filled(flight: &mut Flight, result: Result<&[u8], DeviceFault>) -> Result<(), LossCause> {
    let bytes = result.map_err(|DeviceFault| LossCause::Unreadable)?;
    let key_len = u16::try_from(flight.key.len()).expect("keys are bounded");
    let payload_at = flight.payload_at as usize;
    let key_at = payload_at - key_room_bytes(key_len) as usize;
    let payload_end = payload_at + flight.record.len_bytes as usize;
    let key = bytes
        .get(key_at..key_at + flight.key.len())
        .ok_or(LossCause::Unreadable)?;
    let payload = bytes
        .get(payload_at..payload_end)
        .ok_or(LossCause::Unreadable)?;
    if crc32c(payload) != flight.record.crc32c && !mutant::is_on(Mutant::LogChecksumIgnored) {
        return Err(LossCause::Damaged);
    }
    flight.key.copy_from_slice(key);
    Ok(())
}
