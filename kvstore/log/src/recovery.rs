//! Recovery: what a drive has is read, and is a log again. Nothing is written before it is known to be ours.
//!
//! ```text
//!   superblocks --> heads of all segments --> tables of sealed ones ------------> index
//!                                        \--> tables and payloads of others --/
//! ```
//!
//! Segments are read in any order, some at a time, since batches say which record is the later one. Of a sealed
//! segment no payload is read; who reads a record compares its checksum. A segment without a seal was being written:
//! it ends before the first batch that is not whole, and gets a seal before anything else is written, so that the
//! same is found the next time.
//!
//! What is not there any more is never made up for: a part that is damaged costs the records behind it in its segment,
//! and [`RecoveryReport::damaged_segments`] says so. It is then made sure that they stay away: a segment ends before what
//! could not be read of it, or is free, before anything else is written. Removals among them are lost as well, so that what they were
//! about may be found again; the store's homes know of removals for a day, and judge what a node reports.

mod found;

use std::collections::{BTreeMap, VecDeque};

use lunette_runtime_core::mutant::{self, Mutant};
use lunette_runtime_core::time::Time;
use thiserror::Error;

use self::found::Found;
use crate::effect::{DeviceFault, Effect, OpId};
use crate::format::batch::{BatchHeader, Entry};
use crate::format::segment::{Seal, SegmentHeader, SegmentState};
use crate::format::superblock::{Identity, Superblock};
use crate::format::{
    BLOCK_BYTES, FormatFault, SEGMENT_HEAD_BLOCKS, SUPERBLOCK_OFFSETS_BYTES, blocks_for,
};
use crate::log::{Ends, Log};
use crate::options::{DROPPED_MAX, LogOptions, OptionsFault, TABLE_READ_BYTES};
use crate::segments::{Segment, Segments, State};

/// Why a drive is not opened. Nothing has been written to it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OpenFault {
    /// There is nothing where the superblocks would be: the drive may be formatted.
    #[error("the drive is blank")]
    Blank,
    /// Something else is there: format the drive only if nobody misses that.
    #[error("the drive has something else than a log: {0}")]
    NoLog(FormatFault),
    /// Both superblocks are damaged. What is behind them cannot be told apart from what was there before.
    #[error("both superblocks are damaged: {0}")]
    Damaged(FormatFault),
    /// Written by a later version of this program: use that one, or format the drive.
    #[error("the log has a newer format: {0}")]
    NewerFormat(FormatFault),
    /// It belongs to another cluster.
    #[error("the log is of another cluster: {found:032x}, expected {expected:032x}")]
    OtherCluster {
        /// Whose it is.
        found: u128,
        /// Whose it should be.
        expected: u128,
    },
    /// It belongs to another node or directory: two of them may use the same drive.
    #[error("the log is of another device: {found:032x}, expected {expected:032x}")]
    OtherDevice {
        /// Which it is.
        found: u128,
        /// Which it should be.
        expected: u128,
    },
    /// It was begun with more room than it is given today. It is not made shorter: what it holds may lie anywhere.
    #[error(
        "there is a log of {needed_bytes} bytes, and it is given {found_bytes}: give it as many as before, or remove it"
    )]
    Shortened {
        /// What it is given.
        found_bytes: u64,
        /// What it was begun with.
        needed_bytes: u64,
    },
    /// It has many more records than the index may have: not only what was about to leave.
    #[error("the log has {records} records, far more than {records_max}: raise the limit")]
    TooManyRecords {
        /// How many were found.
        records: usize,
        /// The limit.
        records_max: usize,
    },
    /// The options do not fit how the drive is cut.
    #[error(transparent)]
    Options(#[from] OptionsFault),
    /// The superblocks could not be read.
    #[error(transparent)]
    Device(#[from] DeviceFault),
}

impl OpenFault {
    /// Whether bytes that were once right have changed.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Damaged(_))
    }

    /// Whether the same may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Records that are here.
    pub records: u64,
    /// Records that were read and are not here: replaced, removed, or of an earlier generation.
    pub dead_records: u64,
    /// The oldest records, which were read and are not here: the index has no room for them. As many at most as were
    /// about to leave a full log when it was used last, unless its limit is another one.
    pub dropped_records: u64,
    /// Removals that were read.
    pub removals: u64,
    /// Segments that are not free.
    pub used_segments: u32,
    /// Segments that were being written: they have got seals.
    pub unsealed_segments: u32,
    /// Segments of which less was found than their seals say, or which could not be read.
    pub damaged_segments: u32,
    /// Segments whose headers are not whole: never acknowledged, being freed, or damaged.
    pub headless_segments: u32,
    /// Bytes that were read.
    pub read_bytes: u64,
}

impl RecoveryReport {
    /// Whether all of it could be read.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.damaged_segments == 0 && self.headless_segments == 0
    }
}

/// What a read is for.
#[derive(Clone, Copy, Debug)]
enum Reading {
    Superblock {
        copy: usize,
    },
    /// Header and seal of a segment.
    Head {
        segment_index: u32,
    },
    /// Header and table of the next batch of a segment.
    Table {
        segment_index: u32,
    },
    /// All of it.
    Batch {
        segment_index: u32,
    },
}

/// A segment that is walked.
#[derive(Clone, Debug)]
struct Walk {
    header: SegmentHeader,
    /// Whether the drive says where it ends, and that is so.
    is_sealed: bool,
    /// Where the next batch is.
    at_block: u32,
    /// Where the segment ends at the latest.
    end_block: u32,
    /// The number of the next batch.
    next_batch: u64,
    /// What all records that were read count for.
    read_bytes: u64,
}

/// The machine that reads a drive. See the [module](self).
#[derive(Debug)]
pub struct Recovery {
    options: LogOptions,
    generation: u64,
    superblocks: [Option<Result<Superblock, SuperblockFault>>; 2],
    superblock: Option<Superblock>,
    fault: Option<OpenFault>,
    /// The next segment whose head is read.
    next_segment: u32,
    waiting: VecDeque<(Reading, u64, u32)>,
    reading: BTreeMap<OpId, (Reading, u32)>,
    next_op: u64,
    walks: BTreeMap<u32, Walk>,
    walked: BTreeMap<u32, Walk>,
    /// Segments whose heads could not be read.
    unread: Vec<u32>,
    next_sequence: u64,
    found: Found,
    report: RecoveryReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuperblockFault {
    Blank,
    Format(FormatFault),
    Device,
}

impl Recovery {
    /// Begins to read the drive that these options are for; its capacity is the drive's of today. Records of
    /// generations before `generation`, and before the one that the drive knows, are dead.
    ///
    /// # Errors
    /// [`OptionsFault`] if the options contradict each other.
    pub fn new(options: LogOptions, generation: u64) -> Result<Self, OptionsFault> {
        options.check()?;
        let mut recovery = Self {
            options,
            generation,
            superblocks: [None; 2],
            superblock: None,
            fault: None,
            next_segment: 0,
            waiting: VecDeque::new(),
            reading: BTreeMap::new(),
            next_op: 0,
            walks: BTreeMap::new(),
            walked: BTreeMap::new(),
            unread: Vec::new(),
            next_sequence: 1,
            found: Found::default(),
            report: RecoveryReport::default(),
        };
        for (copy, offset_bytes) in SUPERBLOCK_OFFSETS_BYTES.into_iter().enumerate() {
            recovery
                .waiting
                .push_back((Reading::Superblock { copy }, offset_bytes, BLOCK_BYTES));
        }
        Ok(recovery)
    }

    /// The next read that the driver is to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if self.reading.len() >= self.options.recovery_reads_max {
            return None;
        }
        let (reading, offset_bytes, len_bytes) =
            self.waiting.pop_front().or_else(|| self.next_head())?;
        self.next_op += 1;
        let op = OpId(self.next_op);
        self.reading.insert(op, (reading, len_bytes));
        self.report.read_bytes += u64::from(len_bytes);
        Some(Effect::Read {
            op,
            offset_bytes,
            len_bytes,
            is_kept: false,
        })
    }

    fn next_head(&mut self) -> Option<(Reading, u64, u32)> {
        let geometry = self.superblock?.geometry;
        let segment_index = self.next_segment;
        if self.fault.is_some() || segment_index >= geometry.segments() {
            return None;
        }
        self.next_segment += 1;
        let offset_bytes = geometry.offset_bytes(segment_index, 0);
        Some((
            Reading::Head { segment_index },
            offset_bytes,
            SEGMENT_HEAD_BLOCKS * BLOCK_BYTES,
        ))
    }

    /// A read has ended, with all of its bytes; their memory is free then.
    ///
    /// # Panics
    /// If there is no such read.
    pub fn read_done(&mut self, op: OpId, result: Result<&[u8], DeviceFault>) {
        let (reading, len_bytes) = self.reading.remove(&op).expect("a read ends once");
        let result = result
            .ok()
            .filter(|bytes| bytes.len() == len_bytes as usize);
        match reading {
            Reading::Superblock { copy } => self.superblock_read(copy, result),
            Reading::Head { segment_index } => self.head_read(segment_index, result),
            Reading::Table { segment_index } => self.table_read(segment_index, result),
            Reading::Batch { segment_index } => self.batch_read(segment_index, result),
        }
    }

    /// Whether everything has been read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let is_idle = self.reading.is_empty() && self.waiting.is_empty();
        let segments = self
            .superblock
            .map_or(0, |superblock| superblock.geometry.segments());
        is_idle
            && (self.fault.is_some()
                || (self.superblock.is_some() && self.next_segment >= segments))
    }

    /// The log, once everything has been [read](Self::is_done). It writes its superblocks first, the seals that are
    /// missing, and where segments are damaged what has them end, or be free: what could not be read now and could be
    /// the next time would come back behind what has taken its place.
    ///
    /// # Errors
    /// [`OpenFault`]; nothing has been written then.
    ///
    /// # Panics
    /// If not everything has been read.
    pub fn finish(mut self, now: Time) -> Result<(Log, RecoveryReport), OpenFault> {
        assert!(self.is_done(), "the drive is still being read");
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let found = self.superblock.expect("there is one if there is no fault");
        let superblock = Superblock {
            mount: found.mount + 1,
            generation: found.generation.max(self.generation),
            ..found
        };
        let options = LogOptions {
            geometry: found.geometry,
            ..self.options
        };
        options.check()?;
        let index = self.found.merged(&mut self.report);
        let (records, records_max) = (index.len(), options.records_max);
        let excess = records.saturating_sub(records_max);
        if excess > DROPPED_MAX {
            return Err(OpenFault::TooManyRecords {
                records,
                records_max,
            });
        }
        let mut segments = Segments::new(found.geometry, self.next_sequence);
        let mut next_batch = 1;
        for (&segment_index, walk) in &self.walked {
            next_batch = next_batch.max(walk.next_batch);
            segments.found(segment_index, walk.segment());
        }
        for &segment_index in &self.unread {
            segments.unread(segment_index, &superblock, next_batch);
        }
        for located in index.values() {
            segments.revive(located.location.segment_index, located.footprint_bytes());
        }
        let mut log = Log::mounting(options, superblock, segments, index, next_batch);
        log.drop_oldest(excess);
        self.report.records -= excess as u64;
        self.report.dropped_records = excess as u64;
        let unsealed = self.walked.into_iter().filter(|(_, walk)| !walk.is_sealed);
        let ends = Ends {
            unsealed: unsealed.map(|(segment_index, _)| segment_index).collect(),
            unread: self.unread,
        };
        log.mount(now, ends);
        Ok((log, self.report))
    }

    fn superblock_read(&mut self, copy: usize, result: Option<&[u8]>) {
        self.superblocks[copy] = Some(match result {
            None => Err(SuperblockFault::Device),
            Some(bytes) if bytes.iter().all(|&byte| byte == 0) => Err(SuperblockFault::Blank),
            Some(bytes) => Superblock::decode(bytes).map_err(SuperblockFault::Format),
        });
        if let [Some(first), Some(second)] = self.superblocks {
            match judged(first, second).and_then(|found| self.checked(found)) {
                Ok(superblock) => {
                    self.generation = self.generation.max(superblock.generation);
                    self.superblock = Some(superblock);
                }
                Err(fault) => self.fault = Some(fault),
            }
        }
    }

    fn checked(&self, found: Superblock) -> Result<Superblock, OpenFault> {
        let Identity { cluster, device } = self.options.identity;
        if found.identity.cluster != cluster {
            return Err(OpenFault::OtherCluster {
                found: found.identity.cluster,
                expected: cluster,
            });
        }
        if found.identity.device != device {
            return Err(OpenFault::OtherDevice {
                found: found.identity.device,
                expected: device,
            });
        }
        let (found_bytes, needed_bytes) = (
            self.options.geometry.capacity_bytes,
            found.geometry.capacity_bytes,
        );
        if found_bytes < needed_bytes {
            return Err(OpenFault::Shortened {
                found_bytes,
                needed_bytes,
            });
        }
        Ok(found)
    }

    const fn opened(&self) -> Superblock {
        self.superblock.expect("segments are read behind it")
    }

    fn head_read(&mut self, segment_index: u32, result: Option<&[u8]>) {
        let superblock = self.opened();
        let Some(bytes) = result else {
            self.report.damaged_segments += 1;
            if !is_damage_forgotten() {
                self.unread.push(segment_index);
            }
            return;
        };
        let (first, second) = bytes.split_at(BLOCK_BYTES as usize);
        let header = match SegmentHeader::decode(first) {
            Ok(header)
                if header.tag.log_id == superblock.log_id
                    && header.segment_index == segment_index =>
            {
                header
            }
            // What was there before the drive was formatted.
            Ok(_) | Err(FormatFault::Absent { .. }) => return,
            Err(_fault) => {
                self.report.headless_segments += 1;
                return;
            }
        };
        self.next_sequence = self.next_sequence.max(header.tag.sequence + 1);
        if header.state == SegmentState::Freed {
            return;
        }
        let blocks = superblock.geometry.segment_blocks();
        let seal = Seal::decode(second).ok().filter(|seal| {
            seal.tag == header.tag
                && seal.segment_index == segment_index
                && seal.end_blocks <= blocks
        });
        self.report.used_segments += 1;
        self.report.unsealed_segments += u32::from(seal.is_none());
        let walk = Walk {
            header,
            is_sealed: seal.is_some(),
            at_block: SEGMENT_HEAD_BLOCKS,
            end_block: seal.map_or(blocks, |seal| seal.end_blocks),
            next_batch: header.first_batch,
            read_bytes: 0,
        };
        self.walks.insert(segment_index, walk);
        self.walk_on(segment_index);
    }

    /// The next batch of a segment, or its end.
    fn walk_on(&mut self, segment_index: u32) {
        let walk = &self.walks[&segment_index];
        if walk.at_block < walk.end_block {
            self.read_next(Reading::Table { segment_index }, TABLE_READ_BYTES);
        } else {
            self.end_walk(segment_index, false);
        }
    }

    fn end_walk(&mut self, segment_index: u32, is_damaged: bool) {
        let mut walk = self.walks.remove(&segment_index).expect("it is walked");
        self.report.damaged_segments += u32::from(is_damaged);
        walk.end_block = walk.at_block;
        walk.is_sealed &= !is_damaged || is_damage_forgotten();
        self.walked.insert(segment_index, walk);
    }

    fn read_next(&mut self, reading: Reading, len_bytes: u32) {
        let (Reading::Table { segment_index } | Reading::Batch { segment_index }) = reading else {
            unreachable!("what is next in a segment is a batch");
        };
        let walk = &self.walks[&segment_index];
        let left_bytes = (walk.end_block - walk.at_block) * BLOCK_BYTES;
        let offset_bytes = self
            .opened()
            .geometry
            .offset_bytes(segment_index, walk.at_block);
        self.waiting
            .push_back((reading, offset_bytes, len_bytes.min(left_bytes)));
    }

    fn table_read(&mut self, segment_index: u32, result: Option<&[u8]>) {
        let walk = &self.walks[&segment_index];
        let is_sealed = walk.is_sealed;
        let Some(bytes) = result else {
            return self.end_walk(segment_index, true);
        };
        // Before the end of a sealed segment there is nothing but whole batches; an unsealed one has a tail.
        let Ok(header) = walk.batch_header(bytes) else {
            return self.end_walk(segment_index, is_sealed);
        };
        if !is_sealed {
            return self.read_next(
                Reading::Batch { segment_index },
                header.len_blocks * BLOCK_BYTES,
            );
        }
        match header.table(bytes) {
            Ok(entries) => self.take(segment_index, &header, &entries),
            Err(FormatFault::Truncated { cut, .. }) if cut.needed_bytes > bytes.len() => {
                let table_end = u32::try_from(cut.needed_bytes).expect("a table is bounded");
                self.read_next(
                    Reading::Table { segment_index },
                    blocks_for(table_end) * BLOCK_BYTES,
                );
            }
            Err(_fault) => self.end_walk(segment_index, true),
        }
    }

    /// A batch of a segment without a seal.
    fn batch_read(&mut self, segment_index: u32, result: Option<&[u8]>) {
        let walk = &self.walks[&segment_index];
        let Some(bytes) = result else {
            return self.end_walk(segment_index, true);
        };
        let header = walk.batch_header(bytes);
        match header.and_then(|header| Ok((header, header.table(bytes)?))) {
            Ok((header, entries)) if are_whole(&entries, bytes) => {
                self.take(segment_index, &header, &entries)
            }
            _ => self.end_walk(segment_index, false),
        }
    }

    fn take(&mut self, segment_index: u32, header: &BatchHeader, entries: &[Entry]) {
        let generation = self.generation;
        let at = (segment_index, header.at_block);
        self.found
            .take(at, header.sequence, entries, generation, &mut self.report);
        let walk = self.walks.get_mut(&segment_index).expect("it is walked");
        walk.at_block += header.len_blocks;
        walk.next_batch = header.sequence + 1;
        let objects = entries.iter().filter_map(|entry| match entry {
            Entry::Object(object) => Some(object.footprint_bytes()),
            Entry::Removal(_) => None,
        });
        walk.read_bytes += objects.sum::<u64>();
        self.walk_on(segment_index);
    }
}

impl Walk {
    /// The header of the next batch, if it is of this segment and place.
    fn batch_header(&self, bytes: &[u8]) -> Result<BatchHeader, FormatFault> {
        let header = BatchHeader::decode(bytes)?;
        header.check_place(self.header.tag, self.at_block, self.end_block)?;
        if header.sequence != self.next_batch && !mutant::is_on(Mutant::LogStaleAccepted) {
            let part = crate::format::Part::BatchHeader;
            return Err(FormatFault::Stale { part });
        }
        Ok(header)
    }

    /// What was walked, as the log has it: full, and nothing in it is alive.
    const fn segment(&self) -> Segment {
        Segment {
            state: State::Full,
            tag: self.header.tag,
            first_batch: self.header.first_batch,
            next_batch: self.next_batch,
            end_block: self.at_block,
            dead_bytes: self.read_bytes,
            ..Segments::blank()
        }
    }
}

fn is_damage_forgotten() -> bool {
    mutant::is_on(Mutant::LogDamageForgotten)
}

/// Whether all keys and payloads of a batch are what they were.
fn are_whole(entries: &[Entry], bytes: &[u8]) -> bool {
    entries.iter().all(|entry| match entry {
        Entry::Removal(_) => true,
        Entry::Object(object) => {
            object.is_whole(bytes) || mutant::is_on(Mutant::LogChecksumIgnored)
        }
    })
}

/// The superblock that counts.
fn judged(
    first: Result<Superblock, SuperblockFault>,
    second: Result<Superblock, SuperblockFault>,
) -> Result<Superblock, OpenFault> {
    for copy in [first, second] {
        if let Err(SuperblockFault::Format(fault @ FormatFault::UnknownFormat { .. })) = copy {
            return Err(OpenFault::NewerFormat(fault));
        }
    }
    match (first, second) {
        (Ok(first), Ok(second)) => {
            let is_first = (first.mount, first.generation) >= (second.mount, second.generation);
            Ok(if is_first { first } else { second })
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(SuperblockFault::Blank), Err(SuperblockFault::Blank)) => Err(OpenFault::Blank),
        (Err(first), Err(second)) => Err(both_faulty([first, second])),
    }
}

/// The fault that says most: of a device, of a superblock that was there, of something else.
fn both_faulty(faults: [SuperblockFault; 2]) -> OpenFault {
    if faults.contains(&SuperblockFault::Device) {
        return OpenFault::Device(DeviceFault);
    }
    let formats = faults.into_iter().filter_map(|fault| match fault {
        SuperblockFault::Format(fault) => Some(fault),
        SuperblockFault::Blank | SuperblockFault::Device => None,
    });
    let is_absent = |fault: &FormatFault| matches!(fault, FormatFault::Absent { .. });
    let formats: Vec<FormatFault> = formats.collect();
    match formats.iter().find(|fault| !is_absent(fault)) {
        Some(&fault) => OpenFault::Damaged(fault),
        None => formats
            .first()
            .map_or(OpenFault::Blank, |&fault| OpenFault::NoLog(fault)),
    }
}
