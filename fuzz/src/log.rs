//! Recovery of the drive's log, from what anybody left on a drive.
//!
//! ```text
//!   byte 0      how many steps of a log are on the drive (4 bits), and for whom it is opened (bits 4 to 6)
//!   then        for each step three bytes: append, remove, or the power goes
//!   then        changes, six bytes each: where, what, and whether the checksum is made to match again
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use lunette_generate::{Bytes, Source};
use lunette_kvstore_log::effect::{Effect, Event, MemoryId, ReadOutcome, WritePiece};
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::format::{
    BLOCK_BYTES, FORMAT, SEGMENT_BYTES_MIN, SEGMENTS_OFFSET_BYTES, SUPERBLOCK_OFFSETS_BYTES,
};
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_log::recovery::{OpenFault, Recovery};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::time::Time;

const IDENTITY: Identity = Identity {
    cluster: 0xc1,
    device: 0xd1,
};
const SEGMENTS: u64 = 5;
const CAPACITY_BYTES: u64 = SEGMENTS_OFFSET_BYTES + SEGMENTS * SEGMENT_BYTES_MIN as u64;
/// Most changes of a script, so that one run stays short.
const CHANGES_MAX: usize = 64;
/// What a header has in front of its checksum, of a superblock and of any other part.
const COVERED_BYTES: [usize; 2] = [124, 60];

/// What a script reached. A corpus is judged by what its files reach together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The log was opened.
    pub opened: u32,
    /// Records were found.
    pub records: u32,
    /// Records whose bytes were not right.
    pub damaged_records: u32,
    /// Segments of which less was found than there should be.
    pub damaged_segments: u32,
    /// Segments that had no seal.
    pub unsealed_segments: u32,
    /// Both superblocks were damaged.
    pub refused_damaged: u32,
    /// The log is another cluster's or device's, or longer than the drive.
    pub refused_other: u32,
    /// The log has a newer format.
    pub refused_newer: u32,
    /// Checksums were made to match.
    pub forged: u32,
}

/// Opens a drive that was changed, and uses it.
///
/// # Panics
/// If an invariant does not hold: that is what it is for.
pub fn log(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let mut source = Bytes::new(data);
    let first = source.u8();
    let mut drive = Drive::new();
    drive.fill(&mut source, first & 0x0f);
    let mut changes = 0;
    while !source.is_spent() && changes < CHANGES_MAX {
        drive.change(&mut source, &mut reached);
        changes += 1;
    }
    let is_changed = changes > 0;
    let options = opened_with(first >> 4);
    let Some(mut log) = drive.recover(options, &mut reached) else {
        return reached;
    };
    reached.opened += 1;
    drive.judge(&mut log, &mut reached);
    drive.go_on(log, is_changed, options, &mut reached);
    reached
}

fn opened_with(whom: u8) -> LogOptions {
    let mut options = LogOptions::new(IDENTITY, CAPACITY_BYTES);
    options.geometry.segment_bytes = SEGMENT_BYTES_MIN;
    options.queued_records_max = 64;
    options.free_segments_low = 3;
    options.records_max = 256;
    options.recovery_reads_max = 4;
    match whom & 7 {
        5 => options.identity.cluster += 1,
        6 => options.identity.device += 1,
        7 => options.geometry.capacity_bytes -= u64::from(BLOCK_BYTES),
        _ => {}
    }
    options
}

/// A drive in memory, and what was written to it.
struct Drive {
    image: Vec<u8>,
    written: BTreeMap<(Fingerprint, Version), Record>,
    versions: u64,
    now: Time,
    is_forged: bool,
}

fn payload_of(version: u64, len_bytes: u32) -> Vec<u8> {
    let bytes = version.to_le_bytes().into_iter().cycle();
    bytes.take(len_bytes as usize).collect()
}

impl Drive {
    fn new() -> Self {
        let len = usize::try_from(CAPACITY_BYTES).expect("small");
        Self {
            image: vec![0; len],
            written: BTreeMap::new(),
            versions: 0,
            now: Time::ZERO,
            is_forged: false,
        }
    }

    fn bytes(&self, offset_bytes: u64, len_bytes: u32) -> &[u8] {
        let begin = usize::try_from(offset_bytes).expect("inside of the drive");
        &self.image[begin..begin + len_bytes as usize]
    }

    /// A log that somebody used.
    fn fill(&mut self, source: &mut Bytes<'_>, steps: u8) {
        let mut log = Log::format(opened_with(0), 7, 1, self.now).expect("they fit together");
        let mut lent = BTreeMap::new();
        self.settle(&mut log, &lent, true);
        for _ in 0..steps {
            let (what, key, size) = (source.u8(), source.u8() % 8, source.u8());
            let fingerprint = Fingerprint(u128::from(key) + 1);
            if what % 4 == 3 {
                if let Some(record) = log.get(fingerprint) {
                    let removed = log.remove(self.now, fingerprint, record.version);
                    removed.expect("nothing is under way");
                }
            } else {
                self.append(&mut log, &mut lent, fingerprint, u32::from(size) * 150);
            }
            // Now and then it ends while the drive has not.
            self.settle(&mut log, &lent, what & 0x80 == 0);
        }
    }

    fn append(
        &mut self,
        log: &mut Log,
        lent: &mut BTreeMap<MemoryId, Vec<u8>>,
        fingerprint: Fingerprint,
        len_bytes: u32,
    ) -> Option<Record> {
        self.versions += 1;
        let version = Version {
            epoch: 1,
            sequence: self.versions,
        };
        let payload = payload_of(self.versions, len_bytes);
        let record = Record {
            fingerprint,
            version,
            generation: log.superblock().generation,
            notes: 0,
            len_bytes,
            crc32c: crc32c(&payload),
        };
        let memory = MemoryId(self.versions);
        log.append(self.now, b"key", record, memory).ok()?;
        lent.insert(memory, payload);
        self.written.insert((fingerprint, version), record);
        Some(record)
    }

    /// The drive does what it is asked to, all of it or but for the last write.
    fn settle(&mut self, log: &mut Log, lent: &BTreeMap<MemoryId, Vec<u8>>, is_whole: bool) {
        self.now = self.now + Duration::from_millis(1);
        log.advance(self.now);
        let mut kept = BTreeMap::new();
        for _ in 0..1000 {
            while let Some(event) = log.poll_event() {
                if let Event::Judge {
                    fingerprint,
                    version,
                    ..
                } = event
                {
                    log.release(self.now, fingerprint, version);
                }
            }
            self.now = self.now + Duration::from_millis(1);
            log.advance(self.now);
            let Some(effect) = log.poll_effect() else {
                return;
            };
            match effect {
                Effect::Write(write) => {
                    let mut at = usize::try_from(write.offset_bytes).expect("inside of the drive");
                    for piece in &write.pieces {
                        let bytes = match piece {
                            WritePiece::Own(range) => &write.own[range.clone()],
                            WritePiece::Payload {
                                memory: lunette_kvstore_log::effect::Memory::Owner(id),
                                ..
                            } => lent[id].as_slice(),
                            WritePiece::Payload { .. } => unreachable!("nothing is kept"),
                        };
                        let torn = if is_whole {
                            bytes.len()
                        } else {
                            bytes.len() / 2
                        };
                        self.image[at..at + torn].copy_from_slice(&bytes[..torn]);
                        at += bytes.len();
                    }
                    log.written(self.now, write.op, Ok(()));
                }
                Effect::Read {
                    op,
                    offset_bytes,
                    len_bytes,
                    ..
                } => {
                    let bytes = self.bytes(offset_bytes, len_bytes).to_vec();
                    log.read_done(self.now, op, Ok(&bytes));
                    kept.insert(op, bytes);
                }
                Effect::Flush { op } => log.flushed(self.now, op, Ok(())),
                Effect::Release { op } => drop(kept.remove(&op)),
            }
        }
        unreachable!("the log is never done");
    }

    /// Bytes change, near where something is.
    fn change(&mut self, source: &mut Bytes<'_>, reached: &mut Reached) {
        let (place, block, at) = (source.u8(), source.u8(), source.u8());
        let (value, wide, kind) = (source.u8(), source.u8(), source.u8());
        let segment = u64::from(place) % SEGMENTS * u64::from(SEGMENT_BYTES_MIN);
        let offset = match place % 8 {
            0 => SUPERBLOCK_OFFSETS_BYTES[usize::from(block) % 2],
            1 => u64::from(block) * CAPACITY_BYTES / 256 / 4096 * 4096,
            _ => SEGMENTS_OFFSET_BYTES + segment + u64::from(block % 16) * u64::from(BLOCK_BYTES),
        };
        let begin = usize::try_from(offset).expect("small");
        let at = begin + usize::from(at) + if wide & 1 == 0 { 0 } else { usize::from(wide) };
        self.image[at] ^= value;
        if kind == 1 {
            // The whole part is of the next format.
            self.image[begin + 4..begin + 6].copy_from_slice(&(FORMAT + 1).to_le_bytes());
        }
        if kind & 1 != 0 {
            self.forge(begin);
            reached.forged += 1;
        }
    }

    /// Checksums match again: of a table, if one is there, and of the header.
    fn forge(&mut self, begin: usize) {
        self.is_forged = true;
        let is_superblock = self.image[begin..].starts_with(b"LNSB");
        if self.image[begin..].starts_with(b"LNBT") {
            let entries = u16::from_le_bytes([self.image[begin + 6], self.image[begin + 7]]);
            let end = begin + 64 + usize::from(entries) * 64;
            if let Some(table) = self.image.get(begin + 64..end) {
                let crc = crc32c(table).to_le_bytes();
                self.image[begin + 48..begin + 52].copy_from_slice(&crc);
            }
        }
        let covered = COVERED_BYTES[usize::from(!is_superblock)];
        let crc = crc32c(&self.image[begin..begin + covered]).to_le_bytes();
        self.image[begin + covered..begin + covered + 4].copy_from_slice(&crc);
    }

    fn recover(&self, options: LogOptions, reached: &mut Reached) -> Option<Log> {
        let mut recovery = Recovery::new(options, 0).expect("they fit together");
        let mut reads = 0;
        while !recovery.is_done() {
            let effect = recovery.poll_effect().expect("it reads, or is done");
            let Effect::Read {
                op,
                offset_bytes,
                len_bytes,
                ..
            } = effect
            else {
                unreachable!("recovery wants {effect:?}");
            };
            assert!(len_bytes <= SEGMENT_BYTES_MIN, "reads are bounded");
            recovery.read_done(op, Ok(self.bytes(offset_bytes, len_bytes)));
            reads += 1;
            assert!(reads < 1000, "so are they in number");
        }
        match recovery.finish(self.now) {
            Ok((log, report)) => {
                reached.damaged_segments += report.damaged_segments;
                reached.unsealed_segments += report.unsealed_segments;
                Some(log)
            }
            Err(fault) => {
                match fault {
                    OpenFault::NewerFormat(_) => reached.refused_newer += 1,
                    OpenFault::OtherCluster { .. }
                    | OpenFault::OtherDevice { .. }
                    | OpenFault::Shortened { .. } => {
                        reached.refused_other += 1;
                    }
                    _ => reached.refused_damaged += 1,
                }
                None
            }
        }
    }

    /// Nothing is invented, unless checksums were made to match.
    fn judge(&self, log: &mut Log, reached: &mut Reached) {
        log.check();
        let found: Vec<Record> = log.records().collect();
        for record in found {
            reached.records += 1;
            let plan = log.pin(record.fingerprint).expect("it is found");
            let bytes = self.bytes(plan.offset_bytes, plan.len_bytes);
            let payload = &bytes[plan.payload_at as usize..][..record.len_bytes as usize];
            let is_right = crc32c(payload) == record.crc32c;
            if !self.is_forged {
                let written = self.written.get(&(record.fingerprint, record.version));
                assert_eq!(written, Some(&record), "nothing is invented");
                let expected = payload_of(record.version.sequence, record.len_bytes);
                assert!(!is_right || payload == expected, "nor are bytes");
            }
            reached.damaged_records += u32::from(!is_right);
            let outcome = if is_right {
                ReadOutcome::Right
            } else {
                ReadOutcome::Damaged
            };
            log.end_read(self.now, plan.pin, outcome);
        }
        log.check();
    }

    /// The log is used, and opened again.
    fn go_on(
        &mut self,
        mut log: Log,
        is_changed: bool,
        options: LogOptions,
        reached: &mut Reached,
    ) {
        let mut lent = BTreeMap::new();
        self.settle(&mut log, &lent, true);
        let fingerprint = Fingerprint(99);
        let appended = self.append(&mut log, &mut lent, fingerprint, 5000);
        self.settle(&mut log, &lent, true);
        log.check();
        let again = self.recover(options, reached);
        if !is_changed {
            let again = again.expect("it was opened before");
            assert!(
                appended.is_none() || again.get(fingerprint) == appended,
                "what is appended is found"
            );
        }
    }
}
