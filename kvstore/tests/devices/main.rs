//! A drive on devices that this host may not have: an NVMe namespace by passthrough, the same one as a block device, and
//! one of the kernel's NVMe/TCP target. `cargo xtask test --lane vm` runs this in a machine that has them.
//!
//! The drive is that of `LUNETTE_NVME_COMMANDS`, and `LUNETTE_NVME_BLOCKS` is its block device. Its last 64 MiB are
//! overwritten.
#![forbid(unsafe_code)]
#![expect(clippy::tests_outside_test_module, reason = "the whole file is a test")]

use std::cell::{Cell, RefCell};
use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::drive::{
    ClaimRefused, ClaimTerms, Drive, DriveError, DriveOptions, Format, Keeper, Loss, Medium, Opened,
};
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_nvmeof::proto::host::ReconnectOptions;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{HostConfig, NamespaceOptions};
use lunette_runtime::arena::Region;
use lunette_runtime::fs::{File, OpenOptions};
use lunette_runtime::{CoreOptions, arena, block_on, time};
use lunette_runtime_core::checksum::crc32c;

const MIB: u64 = 1 << 20;
const SCRATCH_BYTES: u64 = 64 * MIB;
const CAPACITY_BYTES: u64 = 33 * MIB;
const COUNT: u64 = 60;
/// Most of them are longer than a command of the drive, and all of them together than the drive.
const LEN: usize = 700_001;
const TARGET_NAME: &str = "nqn.2026-01.example:store";
const TARGET_PORT: u16 = 4428;
const TERMS: ClaimTerms = ClaimTerms {
    beat: Duration::from_millis(500),
    lapse: Duration::from_millis(4000),
    settle: Duration::from_millis(1000),
};

fn run(scenario: impl AsyncFnOnce() + 'static) {
    let ran = block_on(None, CoreOptions::default(), move || async move {
        scenario().await;
    });
    ran.expect("a core");
}

/// Where the scratch begins of a drive, by each of its names, if there is one. It begins with zeros.
async fn scratch(test: &str) -> Option<(u64, [PathBuf; 2])> {
    let device = |name| env::var_os(name).map(PathBuf::from);
    let found = device("LUNETTE_NVME_COMMANDS").zip(device("LUNETTE_NVME_BLOCKS"));
    let Some((commands, blocks)) = found else {
        println!("SKIP {test}: no NVMe drive is given to it");
        return None;
    };
    let options = OpenOptions {
        write: true,
        direct: true,
        ..OpenOptions::READ
    };
    let file = File::open(&blocks, options).await.expect("the drive opens");
    let begin_bytes = file.len_bytes().await.expect("it has a length") - SCRATCH_BYTES;
    let zeros = arena().alloc(256 << 10).expect("room");
    let (written, _) = file.write_all_at(zeros, 0, 256 << 10, begin_bytes).await;
    written.expect("it is written");
    file.sync_data().await.expect("it lasts");
    Some((begin_bytes, [commands, blocks]))
}

fn options(medium: Medium, begin_bytes: u64) -> DriveOptions {
    let identity = Identity {
        cluster: 11,
        device: 22,
    };
    let mut log = LogOptions::new(identity, CAPACITY_BYTES);
    log.geometry.segment_bytes = 2 << 20;
    log.batch_bytes_max = 1 << 20;
    log.queued_records_max = 64;
    DriveOptions {
        medium,
        begin_bytes,
        claim: TERMS,
        holders: None,
        log,
        format: Format::Blank,
    }
}

/// Keeps nothing that has to make room, and counts that.
#[derive(Default)]
struct Owner {
    has_failed: Cell<bool>,
    lost: RefCell<Vec<(Fingerprint, Loss)>>,
}

impl Keeper for Owner {
    fn keeps(&self, _record: Record) -> bool {
        false
    }

    fn lost(&self, fingerprint: Fingerprint, _version: Version, loss: Loss) {
        self.lost.borrow_mut().push((fingerprint, loss));
    }

    fn failed(&self) {
        self.has_failed.set(true);
    }
}

async fn open(options: &DriveOptions, owner: &Rc<Owner>) -> (Drive, Opened) {
    loop {
        let keeper = Rc::clone(owner);
        match Drive::open(options.clone(), 0, keeper).await {
            // Who has just dropped it is giving it up.
            Err(DriveError::Claimed { .. }) => time::sleep(Duration::from_millis(20)).await,
            opened => return opened.expect("the drive opens"),
        }
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

fn object(number: u64) -> (Record, Region) {
    let mut region = arena().alloc(LEN).expect("room");
    for (index, byte) in (number..).zip(region.as_mut_slice()) {
        *byte = u8::try_from((index * 7 + index / 512) % 251).expect("a byte");
    }
    let bytes = region.freeze().slice(0, LEN);
    let record = Record {
        fingerprint: Fingerprint(number.into()),
        version: Version {
            epoch: 1,
            sequence: 1,
        },
        len_bytes: u32::try_from(LEN).expect("it is short"),
        crc32c: crc32c(bytes.as_slice()),
        ..Record::default()
    };
    (record, bytes)
}

/// Objects for more than the drive has, as fast as it takes them.
async fn fill(drive: &Drive) {
    for number in 0..COUNT {
        let (record, bytes) = object(number);
        loop {
            match drive.append(&key(number), record, bytes.clone()) {
                Ok(durable) => {
                    assert_eq!(durable.await, Ok(record));
                    break;
                }
                Err(refused) => {
                    assert!(refused.is_retryable(), "{refused}");
                    time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
}

/// How many are there; each of them is right, and the latest is among them.
async fn found(drive: &Drive) -> u64 {
    let mut count = 0;
    for number in 0..COUNT {
        let fingerprint = Fingerprint(number.into());
        let found = drive.read(fingerprint, Some(&key(number)), &arena()).await;
        if let Some(found) = found.expect("it is read") {
            assert!(found.bytes().as_slice() == object(number).1.as_slice());
            count += 1;
        } else {
            assert!(number < COUNT - 1, "the latest is there");
        }
    }
    count
}

#[test]
fn a_namespace_by_passthrough_is_a_drive_and_one_with_its_block_device() {
    let name = "a_namespace_by_passthrough_is_a_drive_and_one_with_its_block_device";
    run(async move || {
        let Some((begin_bytes, [commands, blocks])) = scratch(name).await else {
            return;
        };
        let owner = Rc::new(Owner::default());
        let by_commands = options(Medium::Device(commands), begin_bytes);
        let by_blocks = options(Medium::Device(blocks), begin_bytes);
        let (drive, opened) = open(&by_commands, &owner).await;
        assert!(opened.is_formatted && opened.is_direct);
        fill(&drive).await;
        let count = found(&drive).await;
        assert!(count > 20, "{count}");
        // By its other name it is held as well, which no lock of the system would tell.
        let keeper = Rc::<Owner>::clone(&owner);
        let refused = Drive::open(by_blocks.clone(), 0, keeper).await;
        let refused = refused.expect_err("it is held");
        let is_taken = matches!(
            refused,
            DriveError::Claimed {
                why: ClaimRefused::Taken { .. },
                ..
            }
        );
        assert!(is_taken, "{refused}");
        drop(drive);
        for options in [&by_blocks, &by_commands] {
            let (drive, opened) = open(options, &owner).await;
            let report = opened.recovery.expect("it had a log");
            assert!(report.is_whole() && report.records >= count, "{report:?}");
            assert!(found(&drive).await >= count);
        }
        assert!(!owner.has_failed.get());
        let lost = owner.lost.borrow();
        assert!(lost.iter().all(|(_, loss)| *loss == Loss::Reclaimed));
    });
}

#[test]
fn a_drive_that_is_too_short_says_so() {
    let name = "a_drive_that_is_too_short_says_so";
    run(async move || {
        let Some((begin_bytes, devices)) = scratch(name).await else {
            return;
        };
        for device in devices {
            let owner = Rc::new(Owner::default());
            let beyond = begin_bytes + SCRATCH_BYTES / 2;
            let options = options(Medium::Device(device), beyond);
            let refused = Drive::open(options, 0, owner).await;
            let refused = refused.expect_err("it is too short");
            assert!(matches!(refused, DriveError::Short { .. }), "{refused}");
        }
    });
}

fn sh(script: &str) {
    let output = Command::new("bash").args(["-euc", script]).output();
    let output = output.expect("bash runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{said}");
}

/// A target in the kernel, with a namespace in memory.
fn bring_target_up() {
    let megabytes = SCRATCH_BYTES >> 20;
    sh(&format!(
        "modprobe configfs; modprobe null_blk nr_devices=0; modprobe -a nvmet nvmet_tcp
         mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
         target=/sys/kernel/config/nvmet; disk=/sys/kernel/config/nullb/nullb8
         subsystem=$target/subsystems/{TARGET_NAME}
         mkdir $disk; echo {megabytes} >$disk/size; echo 1 >$disk/memory_backed; echo 1 >$disk/power
         mkdir $subsystem $subsystem/namespaces/1; echo 1 >$subsystem/attr_allow_any_host
         echo -n /dev/nullb8 >$subsystem/namespaces/1/device_path
         echo 1 >$subsystem/namespaces/1/enable
         mkdir $target/ports/28; cd $target/ports/28
         echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo 127.0.0.1 >addr_traddr
         echo {TARGET_PORT} >addr_trsvcid
         ln -s $subsystem subsystems/"
    ));
}

/// Cuts every connection to the kernel's target, which can be connected to again at once.
fn cut_target() {
    sh(&format!(
        "cd /sys/kernel/config/nvmet/ports/28/subsystems; rm {TARGET_NAME}
         ln -s /sys/kernel/config/nvmet/subsystems/{TARGET_NAME} ."
    ));
}

#[test]
fn a_namespace_of_the_kernels_target_is_a_drive() {
    bring_target_up();
    run(async || {
        let timeout = Duration::from_secs(30);
        let name = |name| Nqn::new(name).expect("a name");
        let config = HostConfig {
            digests: Digests::BOTH,
            commands_max: 32,
            keep_alive: timeout,
            timeout,
            ..HostConfig::new(name("nqn.2026-01.example:host"), [9; 16])
        };
        let address = ([127, 0, 0, 1], TARGET_PORT).into();
        let namespace = NamespaceOptions {
            path_timeout: timeout,
            reconnect: ReconnectOptions {
                longest: Duration::from_millis(100),
                ..ReconnectOptions::default()
            },
            ..NamespaceOptions::new(address, name(TARGET_NAME), config)
        };
        let owner = Rc::new(Owner::default());
        let options = options(Medium::Namespace(Box::new(namespace)), MIB);
        let (drive, _) = open(&options, &owner).await;
        let cutting = lunette_runtime::spawn_local(async {
            for _ in 0..3 {
                time::sleep(Duration::from_millis(700)).await;
                cut_target();
            }
        });
        fill(&drive).await;
        cutting.await.expect("it is cut");
        let count = found(&drive).await;
        assert!(count > 20, "{count}");
        drop(drive);
        let (drive, opened) = open(&options, &owner).await;
        let report = opened.recovery.expect("it had a log");
        assert!(report.is_whole() && report.records >= count, "{report:?}");
        assert!(found(&drive).await >= count);
        assert!(!owner.has_failed.get());
    });
}
