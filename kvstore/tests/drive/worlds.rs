//! A drive in worlds: its process is killed and loses its power while it writes, and the drive fails or lies.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::drive::{
    ClaimTerms, Drive, DriveError, DriveOptions, Format, Keeper, Loss, Medium, ReadError,
};
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_runtime::sim::{DiskOptions, FaultCounts, Kill, ProcessId, World, WorldOptions};
use lunette_runtime::{CoreOptions, arena, spawn_local, time};
use lunette_runtime_core::random::SplitMix64;

use super::{fingerprint, key, object};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const SEEDS: u64 = 8;
const LIVES: u32 = 8;
const KEYS: u64 = 24;
const SEGMENT_BYTES: u32 = 64 << 10;
const SEGMENTS: u64 = 12;
/// A little more than a batch.
const LEN_MAX: u32 = 20_000;

/// What may be found of a key: nothing is `None`.
type Possible = BTreeSet<Option<u64>>;

/// What one who knows all of it expects of the drive.
#[derive(Default)]
struct Ledger {
    possible: RefCell<BTreeMap<u64, Possible>>,
    /// Ever appended, by key.
    sent: RefCell<BTreeSet<(u64, u64)>>,
    /// Keys about which something is under way.
    busy: RefCell<BTreeSet<u64>>,
    sequence: Cell<u64>,
    broken: RefCell<Vec<String>>,
    refused: RefCell<Option<DriveError>>,
    has_failed: Cell<bool>,
    durable: Cell<u64>,
    removed: Cell<u64>,
    reclaimed: Cell<u64>,
    read: Cell<u64>,
    found: Cell<u64>,
    drive: Cell<Honesty>,
}

/// What is to be expected of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Honesty {
    #[default]
    Honest,
    /// Operations fail. What cannot be read when the log is recovered is missing then, and it says so.
    Failing,
    /// It may lose anything, and is asked for right bytes alone.
    Lying,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Ledger {
    fn of(&self, key: u64) -> Possible {
        let possible = self.possible.borrow();
        let nothing = || Possible::from([None]);
        possible.get(&key).cloned().unwrap_or_else(nothing)
    }

    fn is_now(&self, key: u64, only: Option<u64>) {
        self.possible
            .borrow_mut()
            .insert(key, Possible::from([only]));
    }

    fn may_be(&self, key: u64, one: Option<u64>) {
        let mut possible = self.of(key);
        possible.insert(one);
        self.possible.borrow_mut().insert(key, possible);
    }

    /// What is found must be possible, and is what is there from then on.
    fn judge(&self, key: u64, found: Option<u64>, when: &str) {
        let possible = self.of(key);
        if !possible.contains(&found) && self.drive.get() != Honesty::Lying {
            let text = format!("{when}: key {key} is {found:?}, not one of {possible:?}");
            self.broken.borrow_mut().push(text);
        }
        self.is_now(key, found);
    }
}

impl Ledger {
    /// A part of the log could not be read: what was there is missing, and may be there again the next time, and so
    /// may what it had replaced.
    fn forget(&self, number: u64) {
        let sent = self.sent.borrow();
        let of_key = sent.range((number, 0)..=(number, u64::MAX));
        let all = of_key.map(|&(_, sequence)| Some(sequence)).chain([None]);
        self.possible.borrow_mut().insert(number, all.collect());
    }
}

impl Keeper for Ledger {
    fn keeps(&self, record: Record) -> bool {
        !record.version.sequence.is_multiple_of(3)
    }

    fn lost(&self, fingerprint: Fingerprint, version: Version, loss: Loss) {
        let key = u64::try_from(fingerprint.0).expect("keys are small numbers");
        if loss == Loss::Reclaimed {
            count(&self.reclaimed);
        }
        // It may be there again after a restart.
        self.may_be(key, Some(version.sequence));
        self.may_be(key, None);
    }

    fn failed(&self) {
        self.has_failed.set(true);
    }
}

fn options() -> DriveOptions {
    let identity = Identity {
        cluster: 3,
        device: 4,
    };
    let capacity_bytes = SEGMENTS * u64::from(SEGMENT_BYTES) + (64 << 10);
    let mut log = LogOptions::new(identity, capacity_bytes);
    log.geometry.segment_bytes = SEGMENT_BYTES;
    log.batch_bytes_max = 16 << 10;
    log.queued_records_max = 32;
    log.recovery_reads_max = 4;
    DriveOptions {
        medium: Medium::File("drive".into()),
        begin_bytes: 0,
        claim: ClaimTerms::default(),
        holders: None,
        log,
        format: Format::Blank,
    }
}

fn len_of(sequence: u64) -> usize {
    let len = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    usize::try_from(len % u64::from(LEN_MAX)).expect("it is short")
}

fn start(world: &mut World, ledger: &Rc<Ledger>) -> ProcessId {
    let process = world.start(HOST, 1, CoreOptions::default());
    let seed = world.draw().next();
    let ledger = Rc::clone(ledger);
    drop(world.spawn(process, 0, move || live(ledger, seed)));
    process
}

/// Opens the drive, compares it with what is possible, and goes on.
async fn live(ledger: Rc<Ledger>, seed: u64) {
    let keeper = Rc::clone(&ledger);
    let (drive, opened) = match Drive::open(options(), 0, keeper).await {
        Ok(opened) => opened,
        Err(error) => return drop(ledger.refused.replace(Some(error))),
    };
    let report = opened.recovery.unwrap_or_default();
    let is_whole = report.damaged_segments == 0 && report.headless_segments == 0;
    for number in 0..KEYS {
        if ledger.drive.get() == Honesty::Failing && !is_whole {
            ledger.forget(number);
            continue;
        }
        let record = drive.find(fingerprint(number));
        let found = record.map(|record| record.version.sequence);
        ledger.judge(number, found, "after a restart");
        if found.is_some() {
            count(&ledger.found);
        }
    }
    let mut draw = SplitMix64::new(seed);
    loop {
        let number = u64::from(draw.below(u32::try_from(KEYS).expect("few")));
        if ledger.busy.borrow_mut().insert(number) {
            let what = draw.below(10);
            let (drive, ledger) = (drive.clone(), Rc::clone(&ledger));
            spawn_local(async move {
                match what {
                    0..=5 => append(&drive, &ledger, number).await,
                    6 => remove(&drive, &ledger, number).await,
                    _ => read(&drive, &ledger, number).await,
                }
                ledger.busy.borrow_mut().remove(&number);
            });
        }
        time::sleep(Duration::from_micros(draw.below(1000).into())).await;
    }
}

async fn append(drive: &Drive, ledger: &Ledger, number: u64) {
    let sequence = ledger.sequence.get() + 1;
    ledger.sequence.set(sequence);
    let (record, bytes) = object(number, sequence, len_of(sequence));
    ledger.sent.borrow_mut().insert((number, sequence));
    if let Ok(durable) = drive.append(&key(number), record, bytes) {
        ledger.may_be(number, Some(sequence));
        if durable.await.is_ok() {
            ledger.is_now(number, Some(sequence));
            count(&ledger.durable);
        }
    }
}

async fn remove(drive: &Drive, ledger: &Ledger, number: u64) {
    let Some(record) = drive.find(fingerprint(number)) else {
        return;
    };
    if let Ok(removed) = drive.remove(fingerprint(number), record.version) {
        ledger.may_be(number, None);
        if removed.await.is_ok() {
            ledger.is_now(number, None);
            count(&ledger.removed);
        }
    }
}

async fn read(drive: &Drive, ledger: &Ledger, number: u64) {
    let key = key(number);
    // Not checked, and no judgement of the record.
    let named = drive.read_key(fingerprint(number), &arena()).await;
    if let Err(error @ (ReadError::Memory(_) | ReadError::Damaged)) = named {
        ledger.broken.borrow_mut().push(error.to_string());
    }
    match drive.read(fingerprint(number), Some(&key), &arena()).await {
        Ok(Some(found)) => {
            let sequence = found.record.version.sequence;
            let (record, bytes) = object(number, sequence, len_of(sequence));
            let was_sent = ledger.sent.borrow().contains(&(number, sequence));
            let is_right = found.record == record
                && found.key() == key
                && found.bytes().as_slice() == bytes.as_slice();
            if !was_sent || !is_right {
                let text = format!("key {number}: bytes that nobody appended: {found:?}");
                ledger.broken.borrow_mut().push(text);
            }
            count(&ledger.read);
        }
        Ok(None) | Err(ReadError::Busy) => {}
        // The keeper was told.
        Err(ReadError::Unreadable | ReadError::Damaged) => {}
        Err(ReadError::Memory(error)) => ledger.broken.borrow_mut().push(error.to_string()),
    }
}

/// The process loses its power, or is killed, again and again, and is started again.
fn run(seed: u64, disk: DiskOptions, drive: Honesty) -> (Rc<Ledger>, FaultCounts) {
    let latency = (Duration::from_micros(50), Duration::from_millis(1));
    let options = WorldOptions {
        disk: DiskOptions { latency, ..disk },
        ..WorldOptions::default()
    };
    let mut world = World::new(seed, options);
    let ledger = Rc::new(Ledger {
        drive: Cell::new(drive),
        ..Ledger::default()
    });
    let mut draw = world.draw();
    let mut process = start(&mut world, &ledger);
    let mut failed_syncs = 0;
    for _ in 0..LIVES {
        let until = world.now() + Duration::from_millis(draw.below(400).into());
        let watched = Rc::clone(&ledger);
        let is_over = move || watched.has_failed.get() || watched.refused.borrow().is_some();
        world.run_until(until, is_over);
        let fault = ledger.refused.take();
        if fault.is_some_and(|error| !error.is_retryable()) {
            ledger.refused.replace(Some(DriveError::Taken {
                drive: "drive".to_owned(),
            }));
            break;
        }
        let how = if draw.below(3) == 0 {
            Kill::Crash
        } else {
            Kill::PowerLoss
        };
        // What was read then may not be on the drive, and nobody can know better.
        if how == Kill::Crash && world.fault_counts().failed_syncs > failed_syncs {
            ledger.drive.set(Honesty::Lying);
        }
        if how == Kill::PowerLoss {
            failed_syncs = world.fault_counts().failed_syncs;
        }
        world.kill(process, how);
        ledger.busy.borrow_mut().clear();
        ledger.has_failed.set(false);
        world.run_for(Duration::from_millis(5));
        process = start(&mut world, &ledger);
    }
    world.run_for(Duration::from_millis(100));
    (ledger, world.fault_counts())
}

#[test]
fn what_is_durable_outlives_every_power_cut_of_an_honest_drive() {
    let (mut torn, mut reclaimed, mut removed, mut found) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let (ledger, counts) = run(seed, DiskOptions::default(), Honesty::Honest);
        assert_eq!(*ledger.broken.borrow(), [""; 0], "seed {seed}");
        assert!(ledger.refused.borrow().is_none(), "seed {seed}");
        assert!(ledger.durable.get() > 20, "seed {seed}");
        torn += counts.lost_sectors;
        reclaimed += ledger.reclaimed.get();
        removed += ledger.removed.get();
        found += ledger.found.get();
    }
    assert!(torn > SEEDS, "power is lost while it writes: {torn}");
    assert!(reclaimed > SEEDS, "segments are made free: {reclaimed}");
    assert!(removed > SEEDS, "records are removed: {removed}");
    assert!(found > 10 * SEEDS, "records are found again: {found}");
}

#[test]
fn a_drive_that_fails_loses_nothing_without_saying_so() {
    let disk = DiskOptions {
        io_errors_per_million: 10_000,
        short_operations_per_million: 100_000,
        ..DiskOptions::default()
    };
    let mut failed = 0;
    for seed in 0..SEEDS {
        let (ledger, counts) = run(seed, disk, Honesty::Failing);
        assert_eq!(*ledger.broken.borrow(), [""; 0], "seed {seed}");
        failed += counts.io_errors;
    }
    assert!(failed > SEEDS, "operations fail: {failed}");
}

#[test]
fn what_a_lying_drive_damages_is_never_taken_for_an_object() {
    let disk = DiskOptions {
        lost_writes_per_million: 20_000,
        misdirected_writes_per_million: 20_000,
        lying_syncs_per_million: 50_000,
        rots_per_million: 50_000,
        ..DiskOptions::default()
    };
    let mut read = 0;
    for seed in 0..SEEDS {
        let (ledger, _) = run(seed, disk, Honesty::Lying);
        assert_eq!(*ledger.broken.borrow(), [""; 0], "seed {seed}");
        read += ledger.read.get();
    }
    assert!(read > SEEDS, "and some of it is right: {read}");
}
