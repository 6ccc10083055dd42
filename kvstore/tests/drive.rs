//! The log in a file, on each driver: what is durable is found again, and nothing else is believed.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../../runtime/tests/on_each_driver/mod.rs"]
mod on_each_driver;
#[cfg(test)]
#[path = "drive/pieces.rs"]
mod pieces;
#[cfg(test)]
#[path = "drive/remote.rs"]
mod remote;
#[cfg(test)]
#[path = "drive/worlds.rs"]
mod worlds;

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::drive::{
    ClaimTerms, Drive, DriveError, DriveOptions, Format, Keeper, Loss, Medium, OnDrive, Opened,
    ReadError,
};
use lunette_kvstore_log::effect::{AppendRefused, LossCause};
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_log::recovery::OpenFault;
use lunette_runtime::arena::Region;
use lunette_runtime::{CoreOptions, Idle, arena, block_on, time};
use lunette_runtime_core::checksum::crc32c;

const MIB: u64 = 1 << 20;
const CAPACITY_BYTES: u64 = 17 * MIB;

fn run<F: Future + 'static>(start: impl FnOnce() -> F) -> F::Output {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    block_on(None, options, start).expect("a core")
}

fn options(path: &Path) -> DriveOptions {
    let identity = Identity {
        cluster: 11,
        device: 22,
    };
    let mut log = LogOptions::new(identity, CAPACITY_BYTES);
    log.geometry.segment_bytes = 1 << 20;
    log.batch_bytes_max = 256 << 10;
    log.queued_records_max = 64;
    log.records_max = 10_000;
    DriveOptions {
        medium: Medium::File(path.to_owned()),
        begin_bytes: 0,
        claim: ClaimTerms::default(),
        holders: None,
        log,
        format: Format::Blank,
    }
}

/// Keeps every second record, and remembers what is gone.
#[derive(Default)]
struct Owner {
    has_failed: Cell<bool>,
    lost: RefCell<Vec<(Fingerprint, Version, Loss)>>,
}

impl Keeper for Owner {
    fn keeps(&self, record: Record) -> bool {
        record.fingerprint.0.is_multiple_of(2)
    }

    fn lost(&self, fingerprint: Fingerprint, version: Version, loss: Loss) {
        self.lost.borrow_mut().push((fingerprint, version, loss));
    }

    fn failed(&self) {
        self.has_failed.set(true);
    }
}

async fn open(path: &Path, owner: &Rc<Owner>) -> (Drive, Opened) {
    let keeper = Rc::clone(owner);
    let opened = Drive::open(options(path), 0, keeper).await;
    opened.expect("the drive opens")
}

/// Opens what is still being closed by who has just dropped it.
async fn reopen(path: &Path, owner: &Rc<Owner>) -> (Drive, Opened) {
    reopen_with(&options(path), owner).await
}

async fn reopen_with(options: &DriveOptions, owner: &Rc<Owner>) -> (Drive, Opened) {
    loop {
        let keeper = Rc::clone(owner);
        match Drive::open(options.clone(), 0, keeper).await {
            Err(DriveError::Taken { .. }) => time::sleep(Duration::from_millis(1)).await,
            opened => return opened.expect("the drive opens"),
        }
    }
}

fn fingerprint(number: u64) -> Fingerprint {
    Fingerprint(u128::from(number))
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

/// Bytes that only this record has.
fn object(number: u64, sequence: u64, len: usize) -> (Record, Region) {
    let mut region = arena().alloc(len.max(1)).expect("room");
    let mut state = number ^ (sequence << 32) ^ 0x9e37_79b9_7f4a_7c15;
    for bytes in region.as_mut_slice().chunks_mut(8) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bytes.copy_from_slice(&state.to_be_bytes()[..bytes.len()]);
    }
    let bytes = region.freeze().slice(0, len);
    let record = Record {
        fingerprint: fingerprint(number),
        version: Version { epoch: 1, sequence },
        generation: 0,
        notes: 7,
        len_bytes: u32::try_from(len).expect("it is short"),
        crc32c: crc32c(bytes.as_slice()),
    };
    (record, bytes)
}

/// Appends, and waits where there is too much at this time.
async fn write(drive: &Drive, number: u64, sequence: u64, len: usize) {
    let (record, bytes) = object(number, sequence, len);
    loop {
        match drive.append(&key(number), record, bytes.clone()) {
            Ok(durable) => {
                assert_eq!(durable.await, Ok(record));
                return;
            }
            Err(refused) => {
                assert!(refused.is_retryable(), "{refused}");
                time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

async fn read(drive: &Drive, number: u64) -> Result<Option<OnDrive>, ReadError> {
    drive
        .read(fingerprint(number), Some(&key(number)), &arena())
        .await
}

async fn assert_is(drive: &Drive, number: u64, sequence: u64, len: usize) {
    let (record, bytes) = object(number, sequence, len);
    let found = read(drive, number)
        .await
        .expect("it is read")
        .expect("it is there");
    assert_eq!(found.record, record);
    assert_eq!(found.bytes().as_slice(), bytes.as_slice());
    let named = drive.read_key(fingerprint(number), &arena()).await;
    assert_eq!(named, Ok(Some(key(number).into())));
}

const LENGTHS: [usize; 8] = [0, 1, 511, 512, 4096, 65_537, 300_000, 700_001];

#[test]
fn what_is_durable_is_found_again_and_what_was_removed_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, opened) = open(&path, &owner).await;
        assert!(opened.recovery.is_none(), "it was blank");
        for (number, len) in (0..).zip(LENGTHS) {
            write(&drive, number, 1, len).await;
            assert_is(&drive, number, 1, len).await;
        }
        write(&drive, 3, 2, 90_000).await;
        let removed = drive.remove(
            Fingerprint(4),
            Version {
                epoch: 1,
                sequence: 1,
            },
        );
        removed.unwrap().await.unwrap();
        assert!(read(&drive, 4).await.unwrap().is_none());
        drop(drive);
        let (drive, opened) = reopen(&path, &owner).await;
        let report = opened.recovery.expect("it had a log");
        assert_eq!(report.records, 7, "{report:?}");
        for (number, len) in (0..).zip(LENGTHS) {
            match number {
                3 => assert_is(&drive, 3, 2, 90_000).await,
                4 => assert!(read(&drive, 4).await.unwrap().is_none()),
                _ => assert_is(&drive, number, 1, len).await,
            }
        }
        assert!(owner.lost.borrow().is_empty());
    });
}

#[test]
fn what_was_begun_by_who_is_gone_is_durable_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&path, &owner).await;
        for number in 0..10 {
            let (record, bytes) = object(number, 1, 100_000);
            drop(drive.append(&key(number), record, bytes).unwrap());
        }
        drop(drive);
        let (drive, _) = reopen(&path, &owner).await;
        for number in 0..10 {
            assert_is(&drive, number, 1, 100_000).await;
        }
    });
}

#[test]
fn a_drive_is_written_over_and_over_and_what_stays_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&path, &owner).await;
        // Five times what there is room for.
        let lens = |number: u64| 1 + usize::try_from(number * 7919 % 150_000).unwrap();
        let mut written_bytes = 0;
        let mut count = 0;
        while written_bytes < 5 * CAPACITY_BYTES {
            write(&drive, count, 1, lens(count)).await;
            written_bytes += lens(count) as u64;
            count += 1;
        }
        let stats = drive.stats();
        assert!(stats.reclaimed_segments > 16, "{stats:?}");
        assert!(
            stats.moved_records > 0 && stats.released_records > 0,
            "{stats:?}"
        );
        assert_eq!(count, stats.records + owner.lost.borrow().len() as u64);
        for record in drive.records() {
            // Segments are still being made free.
            if drive.find(record.fingerprint) == Some(record) {
                let number = u64::try_from(record.fingerprint.0).unwrap();
                assert_is(&drive, number, 1, lens(number)).await;
            }
        }
        let records = drive.stats().records;
        drop(drive);
        let (drive, opened) = reopen(&path, &owner).await;
        assert!(opened.recovery.unwrap().records <= records);
        assert!(!owner.has_failed.get());
        for record in drive.records() {
            // Segments are still being made free.
            if drive.find(record.fingerprint) == Some(record) {
                let number = u64::try_from(record.fingerprint.0).unwrap();
                assert_is(&drive, number, 1, lens(number)).await;
            }
        }
    });
}

#[test]
fn many_at_a_time_are_bounded_and_share_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&path, &owner).await;
        let mut appended = Vec::new();
        let refused = loop {
            let number = appended.len() as u64;
            let (record, bytes) = object(number, 1, 4096);
            match drive.append(&key(number), record, bytes) {
                Ok(durable) => appended.push(durable),
                Err(refused) => break refused,
            }
        };
        assert!(
            matches!(refused, AppendRefused::QueueFull { .. }),
            "{refused}"
        );
        assert!(refused.is_backpressure());
        let count = appended.len() as u64;
        assert_eq!(count, 64);
        for durable in appended {
            durable.await.unwrap();
        }
        let stats = drive.stats();
        assert!(stats.batches <= 8, "{stats:?}");
        for number in 0..count {
            assert_is(&drive, number, 1, 4096).await;
        }
    });
}

#[test]
fn a_damaged_object_is_noticed_told_and_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&path, &owner).await;
        write(&drive, 1, 1, 50_000).await;
        write(&drive, 2, 1, 50_000).await;
        let (_, bytes) = object(1, 1, 50_000);
        flip_in(&path, &bytes.as_slice()[20_000..20_064]);
        assert_eq!(read(&drive, 1).await.unwrap_err(), ReadError::Damaged);
        let version = Version {
            epoch: 1,
            sequence: 1,
        };
        let loss = Loss::Drive(LossCause::Damaged);
        assert_eq!(*owner.lost.borrow(), [(fingerprint(1), version, loss)]);
        assert!(read(&drive, 1).await.unwrap().is_none());
        assert_is(&drive, 2, 1, 50_000).await;
        // Another key of the same fingerprint is not the object.
        let other = drive.read(Fingerprint(2), Some(b"another"), &arena()).await;
        assert_eq!(other.unwrap_err(), ReadError::Damaged);
    });
}

/// The log takes what it could not read for something that may still be found, so it does not pass over its removal, which
/// would take what is here.
#[test]
fn a_removal_of_an_earlier_version_leaves_the_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&path, &owner).await;
        write(&drive, 1, 3, 50_000).await;
        let (earlier, bytes) = object(1, 3, 50_000);
        flip_in(&path, &bytes.as_slice()[20_000..20_064]);
        assert_eq!(read(&drive, 1).await.unwrap_err(), ReadError::Damaged);
        write(&drive, 1, 5, 60_000).await;
        let removed = drive.remove(earlier.fingerprint, earlier.version);
        removed.unwrap().await.unwrap();
        assert_is(&drive, 1, 5, 60_000).await;
    });
}

/// Changes a bit where these bytes are.
fn flip_in(path: &Path, bytes: &[u8]) {
    let all = std::fs::read(path).expect("the file is read");
    let at = all.windows(bytes.len()).position(|window| window == bytes);
    let at = at.expect("the file has them") as u64;
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .expect("the file opens");
    file.write_all_at(&[bytes[0] ^ 1], at)
        .expect("it is written");
    file.sync_data().expect("and there");
}

#[test]
fn a_drive_has_one_process_and_is_of_one_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&path, &owner).await;
        write(&drive, 1, 1, 5000).await;
        let second = Drive::open(options(&path), 0, Rc::<Owner>::clone(&owner)).await;
        let error = second.unwrap_err();
        assert!(
            matches!(error, DriveError::Taken { .. }) && error.is_retryable(),
            "{error}"
        );
        drop(drive);
        time::sleep(Duration::from_millis(50)).await;
        let before = std::fs::read(&path).unwrap();
        let mut foreign = options(&path);
        foreign.log.identity.cluster = 12;
        let error = Drive::open(foreign, 0, Rc::<Owner>::clone(&owner))
            .await
            .unwrap_err();
        let is_other = matches!(
            &error,
            DriveError::Log {
                fault: OpenFault::OtherCluster { .. },
                ..
            }
        );
        assert!(is_other && !error.is_retryable(), "{error}");
        assert!(
            std::fs::read(&path).unwrap() == before,
            "nothing was written"
        );
        let (drive, _) = reopen(&path, &owner).await;
        assert_is(&drive, 1, 1, 5000).await;
    });
}

/// Removals were lost with what was cut off, and what they were about would be found.
#[test]
fn a_log_that_was_cut_short_is_damaged_and_not_made_up_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive");
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&path, &owner).await;
        for number in 0..40 {
            write(&drive, number, 1, 100_000).await;
        }
        drop(drive);
        let (drive, opened) = reopen(&path, &owner).await;
        assert!(opened.recovery.unwrap().is_whole(), "{opened:?}");
        drop(drive);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(2 * MIB + 1000).unwrap();
        let (drive, opened) = reopen(&path, &owner).await;
        let found = opened.recovery.unwrap();
        assert!(!opened.is_formatted && !found.is_whole(), "{found:?}");
        assert!(found.records > 0 && found.records < 40, "{found:?}");
        // It has all of its room again.
        assert_eq!(file.metadata().unwrap().len(), CAPACITY_BYTES);
        write(&drive, 50, 1, 100_000).await;
        drop(drive);
        let (drive, opened) = reopen(&path, &owner).await;
        assert!(opened.recovery.unwrap().is_whole(), "{opened:?}");
        assert_is(&drive, 50, 1, 100_000).await;
        drop(drive);
        file.set_len(2 * MIB).unwrap();
        let options = DriveOptions {
            format: Format::BlankOrDamaged,
            ..options(&path)
        };
        let (drive, opened) = reopen_with(&options, &owner).await;
        assert!(opened.is_formatted, "{opened:?}");
        assert_eq!(drive.stats().records, 0);
    });
}

#[test]
fn what_is_no_log_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes");
    let text = vec![b'x'; 100_000];
    std::fs::write(&path, &text).unwrap();
    run(|| async move {
        let owner = Rc::new(Owner::default());
        let error = Drive::open(options(&path), 0, Rc::<Owner>::clone(&owner))
            .await
            .unwrap_err();
        let is_no_log = matches!(
            &error,
            DriveError::Log {
                fault: OpenFault::NoLog(_),
                ..
            }
        );
        assert!(is_no_log, "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), text);
        let blank = DriveOptions {
            format: Format::Never,
            ..options(&path.with_file_name("blank"))
        };
        let error = Drive::open(blank, 0, Rc::<Owner>::clone(&owner))
            .await
            .unwrap_err();
        let is_blank = matches!(
            &error,
            DriveError::Log {
                fault: OpenFault::Blank,
                ..
            }
        );
        assert!(is_blank, "{error}");
        let mut vast = options(&path.with_file_name("vast"));
        vast.log.geometry.capacity_bytes = 1 << 50;
        vast.log.geometry.segment_bytes = 1 << 30;
        let error = Drive::open(vast, 0, owner).await.unwrap_err();
        assert!(matches!(error, DriveError::File { .. }), "{error}");
    });
}
