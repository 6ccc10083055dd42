//! A log, its owner and a drive that fails, from one seed; and whether what is promised holds.

mod device;
mod model;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lunette_kvstore_log::effect::{
    AppendRefused, DeviceFault, Effect, Event, KeepRefused, LossCause, Memory, MemoryId, OpId,
    ReadOutcome, ReadPlan, RemoveRefused, Removing, Write, WritePiece,
};
use lunette_kvstore_log::format::batch::footprint_bytes;
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::format::{Geometry, SEGMENTS_OFFSET_BYTES};
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_log::recovery::{OpenFault, Recovery};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::random::{SplitMix64, mix};
use lunette_runtime_core::time::Time;

use self::device::{Crash, Device};
use self::model::Model;

pub(crate) const IDENTITY: Identity = Identity {
    cluster: 0xc1,
    device: 0xd1,
};
const SEGMENT_BYTES: u32 = 64 * 1024;

/// What worlds have seen, counted.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

#[derive(Clone, Copy, Debug)]
enum Running {
    Write(OpId),
    Read {
        op: OpId,
        offset: u64,
        len: u32,
        is_kept: bool,
    },
    Flush(OpId),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct World {
    random: SplitMix64,
    now: Time,
    log: Log,
    device: Device,
    model: Model,
    /// What the device is asked to do, in the order in which it was asked.
    running: Vec<Running>,
    /// Payloads that are lent.
    lent: BTreeMap<MemoryId, Vec<u8>>,
    /// What reads of the log have filled.
    kept: BTreeMap<OpId, Vec<u8>>,
    judged: VecDeque<(Fingerprint, Version)>,
    pins: Vec<ReadPlan>,
    keys: u32,
    next_version: u64,
    next_memory: u64,
    generation: u64,
    /// How many writes of 100 fail.
    fails: u32,
    /// How many of 100 judged records are kept.
    keeps: u32,
    is_flipped: bool,
    /// How many reads of a million fail.
    unread_per_million: u32,
    /// Whether recovery could not read all of it.
    is_unread: bool,
    /// How many records it found no room for.
    dropped: u64,
    /// Whether a flush has failed since the power was cut: what is read may not be on the drive.
    has_failed_flush: bool,
    pub(crate) failures: Vec<String>,
    pub(crate) tally: Tally,
}

fn options(random: &mut SplitMix64) -> LogOptions {
    let segments = 7 + random.below(8);
    let capacity_bytes = SEGMENTS_OFFSET_BYTES + u64::from(segments) * u64::from(SEGMENT_BYTES);
    let reserve_segments = 2 + random.below(2);
    let writes_in_flight_max = 1 + random.below(4) as usize;
    LogOptions {
        geometry: Geometry {
            capacity_bytes,
            segment_bytes: SEGMENT_BYTES,
        },
        batch_bytes_max: 4096 << random.below(4),
        writes_in_flight_max,
        unflushed_max: writes_in_flight_max + random.below(8) as usize,
        queued_bytes_max: 64 * 1024,
        queued_records_max: 16,
        // Of some drives the index is full before the segments are.
        records_max: if random.below(3) == 0 {
            6 + random.below(30) as usize
        } else {
            200
        },
        pins_max: 4,
        reserve_segments,
        free_segments_low: reserve_segments + 1 + random.below(3),
        judged_max: 1 + random.below(8) as usize,
        has_volatile_cache: random.below(3) > 0,
        failures_max: 3,
        recovery_reads_max: 1 + random.below(6) as usize,
        ..LogOptions::new(IDENTITY, capacity_bytes)
    }
}

fn key_of(fingerprint: Fingerprint) -> Vec<u8> {
    let mut key = format!("block/{:x}", fingerprint.0).into_bytes();
    let len = 8 + usize::try_from(fingerprint.0 % 150).expect("small");
    key.resize(len, b'.');
    key
}

/// The payload of a version of a key: nothing else has these bytes.
fn payload_of(fingerprint: Fingerprint, version: Version, len_bytes: u32) -> Vec<u8> {
    let [.., low] = fingerprint.0.to_be_bytes();
    let mut random = SplitMix64::new(mix(version.sequence) ^ u64::from(low));
    let words = (0..len_bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
    words.take(len_bytes as usize).collect()
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let options = options(&mut random);
        let capacity = usize::try_from(options.geometry.capacity_bytes).expect("small");
        let device = Device::new(capacity, options.has_volatile_cache, &mut random);
        let log = Log::format(options, random.next(), 1, Time::ZERO).expect("they fit together");
        Self {
            device,
            log,
            now: Time::ZERO,
            model: Model::default(),
            running: Vec::new(),
            lent: BTreeMap::new(),
            kept: BTreeMap::new(),
            judged: VecDeque::new(),
            pins: Vec::new(),
            keys: 4 + random.below(40),
            next_version: 0,
            next_memory: 0,
            generation: 1,
            fails: match random.below(40) {
                0 => 40,
                1..14 => 1 + random.below(6),
                _ => 0,
            },
            keeps: random.below(101),
            is_flipped: false,
            unread_per_million: if random.below(4) == 0 { 20_000 } else { 0 },
            is_unread: false,
            dropped: 0,
            has_failed_flush: false,
            failures: Vec::new(),
            tally: Tally::new(),
            random,
        }
    }

    /// Some hundred steps and a few crashes. Ends at the first failure.
    pub(crate) fn run(&mut self) {
        // A drive is formatted before it is used: a crash before that leaves nothing to recover.
        let fails = std::mem::take(&mut self.fails);
        while !self.log.is_mounted() {
            self.pump();
            self.end_one();
        }
        self.fails = fails;
        let steps = 100 + self.random.below(500);
        for _ in 0..steps {
            self.step();
            if self.is_over() {
                return;
            }
        }
        self.settle();
        if !self.is_over() {
            self.crash(Crash::Kill);
        }
    }

    fn is_over(&self) -> bool {
        self.is_flipped || !self.failures.is_empty()
    }

    fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random.below(bound)
    }

    fn key(&mut self) -> Fingerprint {
        let keys = self.keys;
        Fingerprint(u128::from(self.below(keys)) + 1)
    }

    fn step(&mut self) {
        match self.below(1000) {
            0..350 => self.append(),
            350..430 => self.remove(),
            430..500 => self.pin(),
            500..560 => self.unpin(),
            560..700 => self.judge(),
            700..990 => self.end_one(),
            990..994 => self.crash(Crash::Kill),
            994..998 => self.crash(Crash::PowerCut),
            _ => self.raise(),
        }
        if self.is_over() {
            return;
        }
        let passed_us = self.below(300);
        self.now = self.now + Duration::from_micros(passed_us.into());
        self.log.advance(self.now);
        self.pump();
        self.compare();
    }

    fn append(&mut self) {
        let fingerprint = self.key();
        let len_bytes = match self.below(10) {
            0..5 => self.below(600),
            5..9 => self.below(9000),
            _ => self.below(30_000),
        };
        self.next_version += 1;
        let version = Version {
            epoch: 1,
            sequence: self.next_version,
        };
        let payload = payload_of(fingerprint, version, len_bytes);
        let record = Record {
            fingerprint,
            version,
            generation: self.generation,
            notes: self.below(u32::MAX),
            len_bytes,
            crc32c: crc32c(&payload),
        };
        self.next_memory += 1;
        let memory = MemoryId(self.next_memory);
        match self
            .log
            .append(self.now, &key_of(fingerprint), record, memory)
        {
            Ok(append) => {
                self.lent.insert(memory, payload);
                self.model.appended(append, record);
            }
            Err(AppendRefused::Full { .. }) => self.count("full"),
            Err(AppendRefused::QueueFull { .. }) => self.count("queue full"),
            Err(AppendRefused::Busy) => self.count("busy"),
            Err(AppendRefused::Device(_)) => self.count("refused by a failed drive"),
            Err(AppendRefused::IndexFull { .. }) => self.count("index full"),
            Err(AppendRefused::Slow { .. }) => {}
            Err(refused) => self.fail(format!("{record:?} was refused: {refused}")),
        }
    }

    fn remove(&mut self) {
        let fingerprint = self.key();
        let versions = self
            .model
            .written
            .range((fingerprint, Version::default())..);
        let of_key = versions.take_while(|((of, _), _)| *of == fingerprint);
        let versions: Vec<Version> = of_key.map(|((_, version), _)| *version).collect();
        let live = self.model.live(fingerprint).map(|record| record.version);
        // What is found, or else one of the last.
        let back = self.below(3) as usize;
        let last = versions.iter().rev().nth(back).copied();
        let Some(version) = (if self.below(2) == 0 {
            live.or(last)
        } else {
            last
        }) else {
            return;
        };
        match self.log.remove(self.now, fingerprint, version) {
            Ok(Removing::Done) => self.model.removed_at_once(fingerprint, version),
            Ok(Removing::Written(removal)) => {
                self.count("removal");
                self.model.removing(Some(removal), fingerprint, version);
            }
            Err(RemoveRefused::Device(_)) => self.model.removing(None, fingerprint, version),
            Err(RemoveRefused::Busy | RemoveRefused::QueueFull { .. }) => {}
        }
    }

    fn pin(&mut self) {
        let fingerprint = self.key();
        if let Ok(plan) = self.log.pin(fingerprint) {
            self.pins.push(plan);
        }
    }

    /// A read ends, and its bytes are what they were when it began.
    fn unpin(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        let at = self.below(u32::try_from(self.pins.len()).expect("few")) as usize;
        let plan = self.pins.swap_remove(at);
        if let Err(what) = self.is_right(&plan) {
            self.fail(format!("a read under a pin: {what}"));
        }
        self.count("read");
        // Now and then the drive gives other bytes than it has.
        let is_damaged = self.below(20) == 0;
        let outcome = if is_damaged {
            ReadOutcome::Damaged
        } else {
            ReadOutcome::Right
        };
        let fingerprint = plan.record.fingerprint;
        let before = self.log.get(fingerprint);
        self.log.end_read(self.now, plan.pin, outcome);
        if before != self.log.get(fingerprint) {
            self.count("dropped");
            self.model.released(fingerprint);
        }
    }

    /// Whether what the drive has is the record.
    fn is_right(&self, plan: &ReadPlan) -> Result<(), String> {
        let bytes = self.device.read(plan.offset_bytes, plan.len_bytes);
        let Record {
            fingerprint,
            version,
            len_bytes,
            crc32c: expected,
            ..
        } = plan.record;
        let key = &bytes[plan.key_at as usize..][..plan.key_len.into()];
        let payload = &bytes[plan.payload_at as usize..][..len_bytes as usize];
        if crc32c(payload) != expected {
            return Err(format!("{:?}: another checksum", plan.record));
        }
        if key != key_of(fingerprint) {
            return Err(format!("{:?}: another key", plan.record));
        }
        if payload != payload_of(fingerprint, version, len_bytes) {
            return Err(format!(
                "{:?}: other bytes under the same checksum",
                plan.record
            ));
        }
        Ok(())
    }

    fn judge(&mut self) {
        let Some((fingerprint, version)) = self.judged.pop_front() else {
            return;
        };
        let keeps = self.keeps;
        if self.below(100) < keeps {
            match self.log.keep(self.now, fingerprint, version) {
                Ok(()) => return self.count("kept"),
                Err(KeepRefused::Busy | KeepRefused::NotJudged | KeepRefused::NoRoom) => {}
            }
        }
        if self.log.release(self.now, fingerprint, version) {
            self.count("released");
            self.model.released(fingerprint);
        }
    }

    fn raise(&mut self) {
        self.generation += 1;
        let generation = self.generation;
        self.log.raise_generation(self.now, generation);
        self.model.raised(generation, false);
        self.count("generation raised");
    }

    /// The drive ends something, in any order.
    fn end_one(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.below(u32::try_from(self.running.len()).expect("few")) as usize;
        let fails = self.fails;
        let is_ok = self.below(100) >= fails;
        let result = if is_ok { Ok(()) } else { Err(DeviceFault) };
        match self.running.remove(at) {
            Running::Write(op) => {
                self.device.end_write(op, is_ok, &mut self.random);
                self.log.written(self.now, op, result);
            }
            Running::Flush(op) => {
                self.device.end_flush(op, is_ok, &mut self.random);
                self.has_failed_flush |= !is_ok;
                self.log.flushed(self.now, op, result);
            }
            Running::Read {
                op,
                offset,
                len,
                is_kept,
            } => {
                let bytes = self.device.read(offset, len).to_vec();
                if is_kept {
                    self.kept.insert(op, bytes.clone());
                }
                let is_unread = self.is_unread_now();
                let result = if is_unread {
                    Err(DeviceFault)
                } else {
                    Ok(&*bytes)
                };
                self.log.read_done(self.now, op, result);
            }
        }
        if !is_ok {
            self.count("failed write");
        }
        self.pump();
    }

    /// Takes effects and events.
    fn pump(&mut self) {
        while let Some(effect) = self.log.poll_effect() {
            match effect {
                Effect::Write(write) => self.begin_write(&write),
                Effect::Read {
                    op,
                    offset_bytes,
                    len_bytes,
                    is_kept,
                } => {
                    let (offset, len) = (offset_bytes, len_bytes);
                    self.running.push(Running::Read {
                        op,
                        offset,
                        len,
                        is_kept,
                    });
                }
                Effect::Flush { op } => {
                    self.device.begin_flush(op);
                    self.running.push(Running::Flush(op));
                }
                Effect::Release { op } => {
                    if self.kept.remove(&op).is_none() {
                        self.fail(format!("{op:?} is released, and nothing is kept"));
                    }
                }
            }
        }
        while let Some(event) = self.log.poll_event() {
            self.handle(event);
        }
        if self.log.is_mounted() {
            self.model.mounted();
        }
    }

    fn begin_write(&mut self, write: &Write) {
        let mut bytes = Vec::new();
        for piece in &write.pieces {
            match piece {
                WritePiece::Own(range) => bytes.extend_from_slice(&write.own[range.clone()]),
                WritePiece::Payload {
                    memory,
                    offset_bytes,
                    len_bytes,
                } => {
                    let held = match memory {
                        Memory::Owner(memory) => self.lent.get(memory),
                        Memory::Read(op) => self.kept.get(op),
                    };
                    let Some(held) = held else {
                        return self.fail(format!("{memory:?} is written from, and not lent"));
                    };
                    bytes.extend_from_slice(&held[*offset_bytes as usize..][..*len_bytes as usize]);
                }
            }
        }
        self.device.begin_write(write.op, write.offset_bytes, bytes);
        self.running.push(Running::Write(write.op));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Durable { append, .. } => self.model.durable(append),
            Event::Failed { append, .. } => self.model.failed(append),
            Event::Removed { removal } => self.model.removed(removal),
            Event::RemovalFailed { removal } => {
                self.count("removal failed");
                self.model.removal_failed(removal);
            }
            Event::Judge {
                fingerprint,
                version,
                ..
            } => self.judged.push_back((fingerprint, version)),
            Event::Moved { .. } => self.count("moved"),
            Event::Lost {
                fingerprint,
                cause: LossCause::Unreadable,
                ..
            } if self.unread_per_million > 0 => {
                self.count("lost");
                self.model.released(fingerprint);
            }
            Event::Lost { .. } => self.fail(format!("without damage: {event:?}")),
            Event::GenerationRaised { generation } => self.model.raised(generation, true),
            Event::DeviceFailed => self.count("drive failed"),
        }
    }

    /// The log shows what the model has, and accounts for it.
    fn compare(&mut self) {
        let mut bytes = 0;
        for key in 1..=u128::from(self.keys) {
            let fingerprint = Fingerprint(key);
            let (found, expected) = (self.log.get(fingerprint), self.model.live(fingerprint));
            if found != expected {
                self.fail(format!("{found:?} is found, and {expected:?} is there"));
            }
            if let Some(record) = expected {
                let key_len = u16::try_from(key_of(fingerprint).len()).expect("short");
                bytes += footprint_bytes(key_len, record.len_bytes);
            }
        }
        let live_bytes = self.log.stats().live_bytes;
        if live_bytes != bytes {
            self.fail(format!(
                "{live_bytes} bytes are alive, and should be {bytes}"
            ));
        }
        self.log.check();
    }

    /// Nothing fails any more, and everything ends.
    fn settle(&mut self) {
        self.fails = 0;
        for _ in 0..5000 {
            self.now = self.now + Duration::from_millis(1);
            self.log.advance(self.now);
            self.pump();
            self.end_one();
            self.judge();
            self.unpin();
            if !self.failures.is_empty() {
                return;
            }
            if self.running.is_empty() && self.model.is_settled() && self.judged.is_empty() {
                let stats = self.log.stats();
                let is_reclaimed = stats.free_segments >= self.log.options().free_segments_low;
                if is_reclaimed || stats.has_failed {
                    return self.compare();
                }
            }
        }
        self.fail(format!("it does not come to rest: {:?}", self.log));
    }

    fn crash(&mut self, crash: Crash) {
        self.count(if crash == Crash::Kill {
            "kill"
        } else {
            "power cut"
        });
        self.device.crash(crash, &mut self.random);
        self.running.clear();
        self.lent.clear();
        self.kept.clear();
        self.judged.clear();
        self.pins.clear();
        self.is_flipped = self.below(8) == 0;
        if self.is_flipped {
            self.count("flipped");
            for _ in 0..=self.below(3) {
                self.device.flip(&mut self.random);
            }
        }
        // Nobody can know better then.
        match crash {
            Crash::Kill => self.is_flipped |= self.has_failed_flush,
            Crash::PowerCut => self.has_failed_flush = false,
        }
        // The map may know more than the drive, or as much.
        let known = if self.below(2) == 0 {
            self.generation
        } else {
            0
        };
        if let Some(log) = self.recover(known) {
            self.log = log;
            self.after_recovery(known);
        }
    }

    fn recover(&mut self, generation: u64) -> Option<Log> {
        let options = *self.log.options();
        let mut recovery = Recovery::new(options, generation).expect("they fit together");
        self.is_unread = false;
        let mut reading = Vec::new();
        while !recovery.is_done() {
            while let Some(effect) = recovery.poll_effect() {
                let Effect::Read {
                    op,
                    offset_bytes,
                    len_bytes,
                    ..
                } = effect
                else {
                    self.fail(format!("recovery wants {effect:?}"));
                    return None;
                };
                reading.push((op, offset_bytes, len_bytes));
            }
            let at = self.below(u32::try_from(reading.len()).expect("few")) as usize;
            let (op, offset_bytes, len_bytes) = reading.swap_remove(at);
            let result = if self.is_unread_now() {
                self.is_unread = true;
                Err(DeviceFault)
            } else {
                Ok(self.device.read(offset_bytes, len_bytes))
            };
            recovery.read_done(op, result);
        }
        match recovery.finish(self.now) {
            Ok((log, report)) => {
                if report.damaged_segments > 0 {
                    self.count("damaged segment");
                    if !self.is_flipped && !self.is_unread {
                        self.fail(format!("damage that nobody did: {report:?}"));
                    }
                }
                self.dropped = report.dropped_records;
                *self.tally.entry("dropped by recovery").or_default() += self.dropped;
                *self.tally.entry("sealed by recovery").or_default() +=
                    u64::from(report.unsealed_segments);
                Some(log)
            }
            // Neither superblock could be read: another attempt.
            Err(OpenFault::Device(_)) if self.is_unread => self.recover(generation),
            Err(OpenFault::Damaged(_)) if self.is_flipped => {
                self.count("refused");
                None
            }
            Err(fault) => {
                self.fail(format!("not recovered: {fault}"));
                None
            }
        }
    }

    /// Whether the drive cannot read this time.
    fn is_unread_now(&mut self) -> bool {
        let is_unread = self.below(1_000_000) < self.unread_per_million;
        if is_unread {
            self.count("unread");
        }
        is_unread
    }

    fn after_recovery(&mut self, known: u64) {
        if self.is_flipped {
            return self.nothing_is_invented();
        }
        self.model.crashed(self.is_unread);
        if known == self.generation {
            self.model.raised(known, false);
        }
        let mut left_to_drop = i64::try_from(self.dropped).expect("few");
        for key in 1..=u128::from(self.keys) {
            let fingerprint = Fingerprint(key);
            let found = self.log.get(fingerprint);
            // Which ones were dropped is not said: perhaps what may be gone in any case.
            if found.is_none() && self.dropped > 0 {
                left_to_drop -= i64::from(!self.model.may_be_gone(fingerprint));
                self.model.dropped(fingerprint);
            }
            if let Err(what) = self.model.recovered(fingerprint, found) {
                self.fail(what);
            }
            if let Some(record) = found {
                if self.model.written.get(&(fingerprint, record.version)) != Some(&record) {
                    self.fail(format!("{record:?} was never written"));
                }
                let plan = self.log.pin(fingerprint).expect("it is found");
                if let Err(what) = self.is_right(&plan) {
                    self.fail(format!("after a crash: {what}"));
                }
                self.log.end_read(self.now, plan.pin, ReadOutcome::Right);
                self.count("found");
            }
        }
        if left_to_drop < 0 {
            self.fail(format!("{} were dropped, and more are gone", self.dropped));
        }
        // Versions and generations go on from what the owner knows.
        self.compare();
    }

    /// After bits have flipped there is what was written, or nothing.
    fn nothing_is_invented(&mut self) {
        let found: Vec<Record> = self.log.records().collect();
        for record in found {
            let plan = self.log.pin(record.fingerprint).expect("it is found");
            let written = self
                .model
                .written
                .get(&(record.fingerprint, record.version));
            if written != Some(&record) {
                self.fail(format!("{record:?} is invented"));
                continue;
            }
            let is_damaged = self.is_right(&plan).is_err();
            let outcome = if is_damaged {
                ReadOutcome::Damaged
            } else {
                ReadOutcome::Right
            };
            self.log.end_read(self.now, plan.pin, outcome);
            if is_damaged {
                self.count("found to be damaged");
                if self.log.get(record.fingerprint).is_some() {
                    self.fail(format!("{record:?} is damaged, and still there"));
                }
            }
        }
        self.log.check();
    }
}
