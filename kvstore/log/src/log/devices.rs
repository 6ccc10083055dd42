//! Operations of the drive: how they end, flushes, seals, superblocks, and a drive that fails.

use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;

use super::Log;
use super::writing::{Queue, Requester, Waiting};
use crate::effect::{AppendFailure, DeviceFault, Effect, Event, OpId, Write, WritePiece};
use crate::format::segment::{Seal, SegmentHeader, SegmentState};
use crate::format::{BLOCK_BYTES, SUPERBLOCK_OFFSETS_BYTES};
use crate::segments::State;

/// What an operation is for.
#[derive(Debug)]
pub(super) enum Op {
    Batch {
        sequence: u64,
        segment_index: u32,
    },
    Seal {
        segment_index: u32,
    },
    /// The header of a segment that is freed.
    Header {
        segment_index: u32,
    },
    /// What was there when the log was opened, and may have been in the drive's cache.
    Found,
    /// A copy of the superblock.
    Superblock {
        copy: usize,
    },
    /// What had been written before it.
    Flush(Vec<Self>),
    /// A table of the segment that is reclaimed.
    Table,
    /// A record that is kept, by its place among the flights.
    Kept {
        at: usize,
    },
}

/// What a log that is opened says of segments before it writes anything else.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// These end where they were found to end.
    pub(crate) unsealed: Vec<u32>,
    /// These are free.
    pub(crate) unread: Vec<u32>,
}

/// How far the superblocks are.
#[derive(Debug, Default)]
pub(super) struct SuperblockStep {
    is_writing: bool,
    /// What they say has changed since.
    is_again: bool,
    /// What is to be said of segments that were found when the log was opened.
    ends: Ends,
    /// What of that is not durable.
    ends_left: usize,
    /// Both have been written in this mount.
    is_written: bool,
    /// Whether a new generation is not durable yet.
    is_raised: bool,
}

impl SuperblockStep {
    pub(super) const fn is_done(&self) -> bool {
        self.is_written && self.ends_left == 0
    }

    /// Whether, besides, the generation is durable.
    pub(super) const fn is_settled(&self) -> bool {
        self.is_done() && !self.is_raised
    }
}

impl Log {
    /// A write has ended: the drive does not touch its memory any more.
    ///
    /// # Panics
    /// If there is no such write.
    pub fn written(&mut self, now: Time, op: OpId, result: Result<(), DeviceFault>) {
        let is_spoiled = op <= self.spoiled_until && !mutant::is_on(Mutant::LogFlushTrusted);
        let op = self.ops.remove(&op).expect("a write ends once");
        match result {
            Ok(()) if is_spoiled => self.failed(op),
            Ok(()) if self.options.has_volatile_cache => {
                self.failures = 0;
                if let Op::Batch { sequence, .. } = op {
                    self.batch_written(sequence);
                }
                self.unflushed.push(op);
            }
            Ok(()) => {
                self.failures = 0;
                self.settled(op);
            }
            Err(DeviceFault) => {
                self.count_failure();
                self.failed(op);
            }
        }
        self.advance(now);
    }

    /// A flush has ended.
    ///
    /// # Panics
    /// If there is no such flush.
    pub fn flushed(&mut self, now: Time, op: OpId, result: Result<(), DeviceFault>) {
        let Some(Op::Flush(mut ops)) = self.ops.remove(&op) else {
            unreachable!("a flush ends once");
        };
        self.is_flushing = false;
        if result.is_err() {
            self.count_failure();
            self.spoiled_until = OpId(self.next_op);
            if !mutant::is_on(Mutant::LogFlushTrusted) {
                ops.append(&mut self.unflushed);
            }
        }
        for op in ops {
            match result {
                Ok(()) => self.settled(op),
                Err(DeviceFault) => self.failed(op),
            }
        }
        self.advance(now);
    }

    pub(super) fn flush_on(&mut self) {
        if self.is_flushing || self.unflushed.is_empty() {
            return;
        }
        self.is_flushing = true;
        let written = core::mem::take(&mut self.unflushed);
        let op = self.next_op(Op::Flush(written));
        self.effects.push_back(Effect::Flush { op });
    }

    /// What was written is durable.
    fn settled(&mut self, op: Op) {
        match op {
            Op::Batch {
                sequence,
                segment_index,
            } => self.batch_ended(sequence, segment_index, Ok(())),
            Op::Seal { segment_index } => {
                self.end_settled();
                let segment = self.segments.get(segment_index);
                // What could not be written lies behind the seal, and is not found again.
                if segment.is_broken && segment.state == State::Full {
                    self.clear_ghosts_behind(segment_index);
                }
            }
            Op::Header { segment_index } => {
                self.end_settled();
                self.clear_ghosts(segment_index);
                self.segments.set_free(segment_index);
            }
            Op::Found => self.write_mount(),
            Op::Superblock { copy: 0 } => self.write_superblock_copy(1),
            Op::Superblock { .. } => self.superblock_written(),
            Op::Flush(_) | Op::Table | Op::Kept { .. } => unreachable!("only writes settle"),
        }
    }

    /// While the log is mounted nothing else is written to segments than what is to be said of them.
    fn end_settled(&mut self) {
        let step = &mut self.superblock_step;
        step.ends_left = step.ends_left.saturating_sub(1);
    }

    fn failed(&mut self, op: Op) {
        match op {
            Op::Batch {
                sequence,
                segment_index,
            } => {
                self.batch_ended(sequence, segment_index, Err(DeviceFault));
            }
            _ if self.has_failed => {}
            Op::Seal { segment_index } => self.write_seal(segment_index),
            Op::Header { segment_index } => self.write_freed(segment_index),
            Op::Superblock { copy } => self.write_superblock_copy(copy),
            // What was recovered may be gone from the drive, although it is still read.
            Op::Found => self.fail_device(),
            Op::Flush(_) | Op::Table | Op::Kept { .. } => unreachable!("only writes are retried"),
        }
    }

    fn count_failure(&mut self) {
        self.stats.failed_writes += 1;
        self.failures += 1;
        if self.failures >= self.options.failures_max {
            self.fail_device();
        }
    }

    /// Nothing is written any more; what waited for that has failed.
    pub(super) fn fail_device(&mut self) {
        if self.has_failed {
            return;
        }
        self.has_failed = true;
        self.events.push_back(Event::DeviceFailed);
        let waiting: Vec<Waiting> = self.lanes.iter_mut().flat_map(Queue::drain).collect();
        for waiting in waiting {
            match waiting {
                Waiting::Flight(at) => {
                    self.end_flight(at, AppendFailure::Device(DeviceFault));
                    self.flights.remove(at);
                }
                Waiting::Removal(removal, Requester::Owner(id, found_in)) => {
                    self.fail_removal(removal.fingerprint, id, found_in);
                }
                Waiting::Removal(_, Requester::Reclaim) => {}
            }
        }
        self.reclaim = None;
    }

    /// Says on the drive where a segment ends.
    pub(super) fn write_seal(&mut self, segment_index: u32) {
        let segment = self.segments.get(segment_index);
        let seal = Seal {
            tag: segment.tag,
            next_batch: segment.next_batch,
            end_blocks: segment.end_block,
            segment_index,
        };
        let offset_bytes = self.superblock.geometry.offset_bytes(segment_index, 1);
        self.write_block(
            Op::Seal { segment_index },
            offset_bytes,
            seal.encode().to_vec(),
        );
    }

    /// Says on the drive that a segment is free.
    pub(super) fn write_freed(&mut self, segment_index: u32) {
        let segment = self.segments.get_mut(segment_index);
        segment.state = State::Freeing;
        let header = SegmentHeader {
            tag: segment.tag,
            state: SegmentState::Freed,
            first_batch: segment.first_batch,
            generation: self.superblock.generation,
            segment_index,
        };
        let offset_bytes = self.superblock.geometry.offset_bytes(segment_index, 0);
        self.write_block(
            Op::Header { segment_index },
            offset_bytes,
            header.encode().to_vec(),
        );
    }

    /// Writes both superblocks, one behind the other.
    pub(super) fn write_superblock(&mut self) {
        let step = &mut self.superblock_step;
        if step.is_writing {
            step.is_again = true;
            return;
        }
        step.is_writing = true;
        self.write_superblock_copy(0);
    }

    fn write_superblock_copy(&mut self, copy: usize) {
        let block = self.superblock.encode().to_vec();
        self.write_block(
            Op::Superblock { copy },
            SUPERBLOCK_OFFSETS_BYTES[copy],
            block,
        );
    }

    fn superblock_written(&mut self) {
        let step = &mut self.superblock_step;
        step.is_written = true;
        if core::mem::take(&mut step.is_again) {
            self.write_superblock_copy(0);
            return;
        }
        step.is_writing = false;
        if core::mem::take(&mut step.is_raised) {
            let generation = self.superblock.generation;
            self.events
                .push_back(Event::GenerationRaised { generation });
        }
    }

    /// Says on the drive that a generation has ended.
    pub(super) fn write_generation(&mut self) {
        self.superblock_step.is_raised = true;
        // What mounts the log says it as well, if it is still to come.
        if self.superblock_step.is_written || self.superblock_step.is_writing {
            self.write_superblock();
        }
    }

    /// Makes what was recovered durable, and then says on the drive where these segments end, and that it is mounted.
    ///
    /// A seal that outlives the batches before it would be damage, so what a drive's cache showed is flushed first.
    pub(crate) fn mount(&mut self, now: Time, ends: Ends) {
        self.superblock_step.ends = ends;
        if self.options.has_volatile_cache {
            self.unflushed.push(Op::Found);
        } else {
            self.write_mount();
        }
        self.advance(now);
    }

    fn write_mount(&mut self) {
        let Ends { unsealed, unread } = core::mem::take(&mut self.superblock_step.ends);
        self.superblock_step.ends_left = unsealed.len() + unread.len();
        for segment_index in unsealed {
            self.write_seal(segment_index);
        }
        for segment_index in unread {
            self.write_freed(segment_index);
        }
        self.write_superblock();
    }

    fn write_block(&mut self, op: Op, offset_bytes: u64, block: Vec<u8>) {
        let op = self.next_op(op);
        self.stats.written_bytes += u64::from(BLOCK_BYTES);
        let pieces = vec![WritePiece::Own(0..block.len())];
        self.effects.push_back(Effect::Write(Write {
            op,
            offset_bytes,
            own: block,
            pieces,
        }));
    }
}
