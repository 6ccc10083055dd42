//! Records on their way to the drive: appended by the owner, or kept by reclaim.

use lunette_runtime_core::limits::KEY_BYTES_MAX;
use lunette_runtime_core::time::Time;

use super::Log;
use super::writing::{Lane, Waiting};
use crate::effect::{
    AppendFailure, AppendId, AppendRefused, DeviceFault, Event, Memory, MemoryId, OpId,
};
use crate::format::batch::room_bytes_max;
use crate::options::FREE_RECORDS_SHARE;
use crate::record::Record;

/// Where a record comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    Append(AppendId),
    /// From another segment, by this read. It was in this batch.
    Move {
        read: OpId,
        batch: u64,
    },
}

/// How far a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Reading,
    Waiting,
    /// It is in a batch.
    Placed,
}

/// A record on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) record: Record,
    pub(super) key: Box<[u8]>,
    pub(super) memory: Memory,
    /// Where in its memory the payload begins.
    pub(super) payload_at: u32,
    pub(super) origin: Origin,
    pub(super) stage: Stage,
    /// Why it will not be found when it is there.
    pub(super) ended: Option<AppendFailure>,
    pub(super) has_history: bool,
}

impl Flight {
    pub(super) const fn is_move(&self) -> bool {
        matches!(self.origin, Origin::Move { .. })
    }

    pub(super) fn room_bytes(&self) -> u64 {
        let key_len = u16::try_from(self.key.len()).expect("keys are bounded");
        room_bytes_max(key_len, self.record.len_bytes)
    }
}

impl Log {
    /// Takes a record to be written. `memory` holds its payload, of the length and checksum that the record says, and
    /// is lent until the append's event.
    ///
    /// What is appended later counts, whatever the versions are.
    ///
    /// # Errors
    /// [`AppendRefused`]; nothing is lent then.
    pub fn append(
        &mut self,
        now: Time,
        key: &[u8],
        record: Record,
        memory: MemoryId,
    ) -> Result<AppendId, AppendRefused> {
        self.now = self.now.max(now);
        if let Err(refused) = self.may_append(key, &record) {
            self.stats.refused_appends += 1;
            return Err(refused);
        }
        let fingerprint = record.fingerprint;
        let append = AppendId(self.next_token());
        let flight = Flight {
            record,
            key: key.into(),
            memory: Memory::Owner(memory),
            payload_at: 0,
            origin: Origin::Append(append),
            stage: Stage::Waiting,
            ended: None,
            has_history: self.index.contains_key(&fingerprint) || self.may_have(fingerprint),
        };
        let at = self.flights.insert(flight);
        self.flight_of.insert(fingerprint, at);
        self.enqueue(Lane::Appends, Waiting::Flight(at));
        self.advance(now);
        Ok(append)
    }

    fn may_append(&self, key: &[u8], record: &Record) -> Result<(), AppendRefused> {
        let key_len = match u16::try_from(key.len()) {
            Ok(key_len) if (1..=KEY_BYTES_MAX).contains(&key.len()) => key_len,
            _ => {
                return Err(AppendRefused::KeyLength {
                    len_bytes: key.len(),
                });
            }
        };
        let (len_bytes, max_bytes) = (record.len_bytes, self.payload_bytes_max(key_len));
        if len_bytes > max_bytes {
            return Err(AppendRefused::TooLong {
                len_bytes,
                max_bytes,
            });
        }
        let (generation, earliest) = (record.generation, self.superblock.generation);
        if generation < earliest {
            return Err(AppendRefused::GenerationEnded {
                generation,
                earliest,
            });
        }
        if self.has_failed {
            return Err(AppendRefused::Device(DeviceFault));
        }
        if self.flight_of.contains_key(&record.fingerprint) {
            return Err(AppendRefused::Busy);
        }
        if self.version_here(record.fingerprint) == Some(record.version) {
            return Err(AppendRefused::Here);
        }
        self.has_room_for(record)
    }

    fn has_room_for(&self, record: &Record) -> Result<(), AppendRefused> {
        let (queued_records, queued_bytes) = (
            self.flights.len(),
            self.lanes[Lane::Appends as usize].room_bytes,
        );
        let bytes = queued_bytes + u64::from(record.len_bytes);
        let is_alone = queued_bytes == 0;
        if queued_records >= self.options.queued_records_max
            || (bytes > self.options.queued_bytes_max && !is_alone)
        {
            return Err(AppendRefused::QueueFull {
                queued_records,
                queued_bytes,
            });
        }
        if self.free_records() == 0 {
            return Err(AppendRefused::IndexFull {
                records: self.index.len(),
            });
        }
        if !self.has_room(Lane::Appends) {
            return Err(AppendRefused::Full {
                free_segments: self.segments.free_count(),
            });
        }
        let waited = self
            .batches
            .front()
            .map(|batch| self.now.since(batch.issued));
        if let Some(waited) = waited.filter(|waited| *waited > self.options.slow_after) {
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            return Err(AppendRefused::Slow { waited_ms });
        }
        Ok(())
    }

    /// How many more records may come.
    fn free_records(&self) -> usize {
        // What is moved has its place.
        let moving = self.reclaim.as_ref().map_or(0, |reclaim| reclaim.moving);
        let taken = self.index.len() + self.flights.len() - moving;
        self.options.records_max.saturating_sub(taken)
    }

    /// Whether so few more may come that reclaim has to make room for them.
    pub(super) fn is_index_short(&self) -> bool {
        self.free_records() < self.options.records_max.div_ceil(FREE_RECORDS_SHARE)
    }

    /// A record has ended its way.
    pub(super) fn take_flight(&mut self, at: usize) -> Flight {
        let flight = self.flights.remove(at);
        let fingerprint = flight.record.fingerprint;
        if self.flight_of.get(&fingerprint) == Some(&at) {
            self.flight_of.remove(&fingerprint);
        }
        flight
    }

    /// A record will not be found. What is in no batch yet will not be written either: its memory is free at once.
    pub(super) fn end_flight(&mut self, at: usize, cause: AppendFailure) {
        let flight = &mut self.flights[at];
        if flight.ended.is_some() {
            return;
        }
        flight.ended = Some(cause);
        let (fingerprint, origin, stage) = (flight.record.fingerprint, flight.origin, flight.stage);
        if stage == Stage::Placed {
            return;
        }
        self.flight_of.remove(&fingerprint);
        match origin {
            Origin::Append(append) => self.events.push_back(Event::Failed { append, cause }),
            Origin::Move { read, .. } if stage == Stage::Waiting => self.end_move(read),
            // Its memory is the drive's until the read has ended.
            Origin::Move { .. } => {}
        }
    }

    /// Drops what has ended while it waited. Whether it has.
    pub(super) fn drop_ended(&mut self, waiting: Waiting) -> bool {
        let Waiting::Flight(at) = waiting else {
            return false;
        };
        let has_ended = self.flights[at].ended.is_some();
        if has_ended {
            self.flights.remove(at);
        }
        has_ended
    }

    /// Records of earlier generations end where they are.
    pub(super) fn end_flights_before(&mut self, generation: u64) {
        let old = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.record.generation < generation);
        let old: Vec<usize> = old.map(|(at, _)| at).collect();
        for at in old {
            self.end_flight(at, AppendFailure::GenerationEnded);
        }
    }
}
