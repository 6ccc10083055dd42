//! A drive in a namespace over NVMe/TCP, on each driver and in worlds: what is durable is found again, connections that
//! are lost are done without, and nobody else writes there.

use std::cell::RefCell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lunette_kvstore::drive::{
    ClaimRefused, ClaimTerms, Drive, DriveError, DriveOptions, Format, Medium, Opened, ReadError,
};
use lunette_kvstore_log::effect::AppendRefused;
use lunette_kvstore_log::format::claim::{CLAIM_OFFSET_BYTES, ClaimRecord, HolderName};
use lunette_kvstore_log::format::superblock::Identity;
use lunette_kvstore_log::options::LogOptions;
use lunette_kvstore_log::recovery::OpenFault;
use lunette_nvmeof::proto::controller::{Secrets, TargetOptions};
use lunette_nvmeof::proto::host::ReconnectOptions;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{
    Disk, Export, ExportedDisk, HostConfig, MemoryDisk, NamespaceOptions, RemoteNamespace, Server,
    ServerOptions,
};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{Scope, arena, spawn_local, time};

use super::{LENGTHS, Owner, assert_is, key, object, on_each_driver, read, write};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const CAPACITY_BYTES: u64 = 17 * MIB;
/// Where the log begins in the namespace: nothing in front of it is touched.
const BEGIN_BYTES: u64 = MIB;
const TIMEOUT: Duration = Duration::from_secs(10);

const TERMS: ClaimTerms = ClaimTerms {
    beat: Duration::from_millis(50),
    lapse: Duration::from_millis(800),
    settle: Duration::from_millis(200),
};

fn name(text: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.example:{text}")).expect("a name")
}

/// A target that can be ended and begun again with what it has.
struct Target {
    server: Rc<Server>,
    address: SocketAddr,
    serving: RefCell<Option<Scope>>,
}

impl Target {
    fn new(is_read_only: bool) -> Self {
        let disk = MemoryDisk::new(20 * MIB).expect("room");
        let export = Export {
            name: name("disk"),
            hosts: None,
            secrets: Secrets::default(),
            disks: vec![ExportedDisk {
                disk: Disk::Memory(disk),
                block_bytes: 512,
                uuid: [7; 16],
                is_read_only,
                ana_group: 1,
            }],
        };
        let options = ServerOptions::default();
        let options = ServerOptions {
            // Commands of 64 KiB, so that most reads and writes are several.
            target: TargetOptions {
                transfer_pages_log2: 4,
                ..options.target
            },
            ..options
        };
        let server = Server::new(options, vec![export], &[]).expect("a server");
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(any).expect("a port");
        let target = Self {
            server,
            address: listener.local_addr(),
            serving: RefCell::default(),
        };
        target.serve(listener);
        target
    }

    fn serve(&self, listener: TcpListener) {
        let scope = Scope::new();
        let serving = Rc::clone(&self.server).serve_ports(vec![listener], pending());
        scope.spawn(serving).expect("a task");
        *self.serving.borrow_mut() = Some(scope);
    }

    /// As if its process had ended.
    fn end(&self) {
        drop(self.serving.take());
        self.server.disconnect_all();
    }

    /// The process is there again, with what the disk has.
    async fn begin_again(&self) {
        loop {
            match TcpListener::bind(self.address) {
                Ok(listener) => return self.serve(listener),
                Err(_) => time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

fn namespace(address: SocketAddr) -> NamespaceOptions {
    let config = HostConfig {
        digests: Digests::BOTH,
        commands_max: 32,
        timeout: TIMEOUT,
        ..HostConfig::new(name("host"), [1; 16])
    };
    NamespaceOptions {
        path_timeout: TIMEOUT,
        reconnect: ReconnectOptions {
            longest: Duration::from_millis(10),
            ..ReconnectOptions::default()
        },
        ..NamespaceOptions::new(address, name("disk"), config)
    }
}

fn options(address: SocketAddr) -> DriveOptions {
    let identity = Identity {
        cluster: 11,
        device: 22,
    };
    let mut log = LogOptions::new(identity, CAPACITY_BYTES);
    log.geometry.segment_bytes = 1 << 20;
    log.batch_bytes_max = 256 << 10;
    log.queued_records_max = 64;
    log.records_max = 10_000;
    log.slow_after = Duration::from_millis(100);
    DriveOptions {
        medium: Medium::Namespace(Box::new(namespace(address))),
        begin_bytes: BEGIN_BYTES,
        claim: TERMS,
        holders: None,
        log,
        format: Format::Blank,
    }
}

async fn try_open(options: DriveOptions, owner: &Rc<Owner>) -> Result<(Drive, Opened), DriveError> {
    let keeper = Rc::clone(owner);
    Drive::open(options, 0, keeper).await
}

async fn open(target: &Target, owner: &Rc<Owner>) -> (Drive, Opened) {
    loop {
        match try_open(options(target.address), owner).await {
            // Who has just dropped it is giving it up.
            Err(DriveError::Claimed {
                why: ClaimRefused::Taken { .. },
                ..
            }) => time::sleep(Duration::from_millis(5)).await,
            opened => return opened.expect("the drive opens"),
        }
    }
}

/// Waits until it is so.
async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn what_is_durable_is_found_again() {
    on_each_driver::run(WORLDS, || async {
        let target = Target::new(false);
        let owner = Rc::new(Owner::default());
        let (drive, opened) = open(&target, &owner).await;
        assert!(opened.is_formatted && opened.is_direct);
        for (number, len) in (0..).zip(LENGTHS) {
            write(&drive, number, 1, len).await;
            assert_is(&drive, number, 1, len).await;
        }
        write(&drive, 3, 2, 90_000).await;
        drop(drive);
        let (drive, opened) = open(&target, &owner).await;
        let report = opened.recovery.expect("it had a log");
        assert_eq!(report.records, LENGTHS.len() as u64, "{report:?}");
        for (number, len) in (0..).zip(LENGTHS) {
            match number {
                3 => assert_is(&drive, 3, 2, 90_000).await,
                _ => assert_is(&drive, number, 1, len).await,
            }
        }
        assert!(owner.lost.borrow().is_empty());
        let namespace = RemoteNamespace::connect(namespace(target.address)).await;
        let namespace = namespace.expect("connected");
        for first in (0..BEGIN_BYTES / 512).step_by(128) {
            let room = arena().alloc(64 << 10).expect("room");
            let read = namespace.read(first, room, TIMEOUT).await.expect("read");
            assert!(read.as_slice().iter().all(|&byte| byte == 0), "in front");
        }
    });
}

#[test]
fn connections_that_are_cut_in_the_middle_cost_nothing() {
    on_each_driver::run(WORLDS, || async {
        let target = Target::new(false);
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&target, &owner).await;
        let server = Rc::clone(&target.server);
        let cuts = Scope::new();
        let cut = async move {
            loop {
                time::sleep(Duration::from_millis(30)).await;
                server.disconnect_all();
            }
        };
        cuts.spawn(cut).expect("a task");
        // Enough for every segment to be written twice.
        for round in 0..4 {
            for number in (0..8).map(|number| round * 8 + number) {
                write(&drive, 2 * number + 1, 1, 900_000).await;
            }
            for number in (0..8).map(|number| round * 8 + number) {
                loop {
                    match read(&drive, 2 * number + 1).await {
                        Ok(Some(found)) => {
                            let (record, bytes) = object(2 * number + 1, 1, 900_000);
                            assert_eq!(found.record, record);
                            assert!(found.bytes().as_slice() == bytes.as_slice());
                            break;
                        }
                        Err(ReadError::Busy) => time::sleep(Duration::from_millis(1)).await,
                        // It was not to stay.
                        Ok(None) => break,
                        other => unreachable!("{other:?}"),
                    }
                }
            }
        }
        drop(cuts);
        assert!(!owner.has_failed.get());
        assert!(drive.stats().written_bytes > 2 * CAPACITY_BYTES - 8 * MIB);
    });
}

#[test]
fn a_target_that_is_away_is_done_without_and_comes_back() {
    on_each_driver::run(WORLDS, || async {
        let target = Target::new(false);
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&target, &owner).await;
        for number in [1, 101, 102] {
            write(&drive, number, 1, 300_000).await;
        }
        target.end();
        let (record, bytes) = object(2, 1, 50_000);
        let waiting = drive.append(&key(2), record, bytes).expect("taken");
        until(|| drive.is_away()).await;
        // A get waits a moment, and the next one not at all. What was asked for is gone, and nothing else.
        for (number, longest) in [(101, 10_000), (102, 500)] {
            let asked = time::now();
            let refused = read(&drive, number).await.map(drop);
            assert_eq!(refused, Err(ReadError::Unreadable));
            assert!(time::now() - asked < Duration::from_millis(longest));
            assert_eq!(
                read(&drive, number).await.map(|found| found.is_some()),
                Ok(false)
            );
        }
        assert_eq!(owner.lost.borrow().len(), 2, "the owner is told");
        // And so does, soon, who would write.
        let mut number = 3;
        let refused = loop {
            let (record, bytes) = object(number, 1, 1000);
            if let Err(refused) = drive.append(&key(number), record, bytes) {
                break refused;
            }
            number += 1;
            time::sleep(Duration::from_millis(20)).await;
        };
        let is_slow = matches!(refused, AppendRefused::Slow { .. });
        assert!(is_slow && refused.is_backpressure(), "{refused}");
        // For longer than its claim lasts.
        time::sleep(TERMS.lapse * 2).await;
        target.begin_again().await;
        assert_eq!(waiting.await, Ok(object(2, 1, 50_000).0));
        assert_is(&drive, 1, 1, 300_000).await;
        assert_is(&drive, 2, 1, 50_000).await;
        assert!(!owner.has_failed.get() && owner.lost.borrow().len() == 2);
    });
}

#[test]
fn two_do_not_share_a_namespace() {
    on_each_driver::run(WORLDS, || async {
        let target = Target::new(false);
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&target, &owner).await;
        write(&drive, 1, 1, 5000).await;
        let refused = try_open(options(target.address), &owner).await;
        let refused = refused.expect_err("it is taken");
        let is_taken = matches!(
            refused,
            DriveError::Claimed {
                why: ClaimRefused::Taken { .. },
                ..
            }
        );
        assert!(is_taken && refused.is_retryable(), "{refused}");
        let process = format!("/{} has it", std::process::id());
        assert!(refused.to_string().contains(&process), "{refused}");
        // Another part of it is another drive.
        let mut elsewhere = options(target.address);
        elsewhere.log.geometry.capacity_bytes = 5 * MIB;
        elsewhere.begin_bytes = BEGIN_BYTES + CAPACITY_BYTES;
        let refused = try_open(elsewhere.clone(), &owner).await;
        let refused = refused.expect_err("there is not so much");
        assert!(matches!(refused, DriveError::Short { .. }), "{refused}");
        write(&drive, 2, 1, 5000).await;
        assert_is(&drive, 1, 1, 5000).await;
    });
}

/// The claim of somebody else, whom nothing stops.
async fn overwrite_claim(target: &Target) {
    let namespace = RemoteNamespace::connect(namespace(target.address)).await;
    let namespace = namespace.expect("connected");
    let record = ClaimRecord {
        holder: 5,
        taken: 5,
        beat: 5,
        lapse_ms: 1000,
        is_held: true,
        name: HolderName::new("another"),
    };
    let mut block = arena().alloc(4096).expect("room");
    block.as_mut_slice().copy_from_slice(&record.encode());
    let first = (BEGIN_BYTES + CLAIM_OFFSET_BYTES) / 512;
    let written = namespace.write(first, block.freeze(), false, TIMEOUT).await;
    written.expect("written");
}

#[test]
fn what_somebody_else_has_taken_is_not_written_any_more() {
    on_each_driver::run(WORLDS, || async {
        let target = Target::new(false);
        let owner = Rc::new(Owner::default());
        let (drive, _) = open(&target, &owner).await;
        write(&drive, 1, 1, 5000).await;
        // Between two beats its last one may still be written over it.
        let mut number = 2;
        while !owner.has_failed.get() {
            overwrite_claim(&target).await;
            time::sleep(TERMS.beat * 2).await;
            let (record, bytes) = object(number, 1, 5000);
            if let Ok(durable) = drive.append(&key(number), record, bytes) {
                let _is_written = durable.await.is_ok();
            }
            number += 1;
        }
        let (record, bytes) = object(number, 1, 5000);
        let refused = drive.append(&key(number), record, bytes).map(drop);
        assert!(
            matches!(refused, Err(AppendRefused::Device(_))),
            "{refused:?}"
        );
        assert_is(&drive, 1, 1, 5000).await;
    });
}

#[test]
fn what_is_not_a_drive_says_so_and_is_not_touched() {
    on_each_driver::run(WORLDS, || async {
        let owner = Rc::new(Owner::default());
        let nobody = "127.0.0.1:1".parse().expect("an address");
        let refused = try_open(options(nobody), &owner).await;
        let refused = refused.expect_err("nobody is there");
        assert!(matches!(refused, DriveError::Connect { .. }), "{refused}");
        assert!(refused.is_retryable());
        let told = refused.to_string();
        assert!(told.starts_with("nvme://127.0.0.1:1/nqn.2026-01.example:disk?nsid=1: "));
        let target = Target::new(true);
        let refused = try_open(options(target.address), &owner).await;
        let refused = refused.expect_err("it cannot be written");
        let is_claimed = matches!(refused, DriveError::Claimed { .. });
        assert!(is_claimed, "{refused}");
        for (at_bytes, is_behind) in [(0, false), (1024, false), (64 << 10, true)] {
            let target = Target::new(false);
            let namespace = RemoteNamespace::connect(namespace(target.address)).await;
            let namespace = namespace.expect("connected");
            let mut block = arena().alloc(512).expect("room");
            block.as_mut_slice().fill(b'x');
            let first = (BEGIN_BYTES + at_bytes) / 512;
            let written = namespace.write(first, block.freeze(), false, TIMEOUT).await;
            written.expect("written");
            let refused = try_open(options(target.address), &owner).await;
            match refused.expect_err("something is there") {
                DriveError::NotBlank { .. } if is_behind => {}
                DriveError::Log {
                    fault: OpenFault::NoLog(_),
                    ..
                } if !is_behind => {}
                other => unreachable!("{other}"),
            }
            let claim = arena().alloc(4096).expect("room");
            let first = (BEGIN_BYTES + CLAIM_OFFSET_BYTES) / 512;
            let claim = namespace.read(first, claim, TIMEOUT).await.expect("read");
            assert!(claim.as_slice().iter().all(|&byte| byte == 0));
        }
    });
}

#[test]
fn who_was_killed_is_followed_once_the_claim_has_lapsed() {
    let (tell_address, address) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let target = thread::spawn(move || {
        super::run(move || async move {
            let target = Target::new(false);
            tell_address.send(target.address).expect("somebody asks");
            until(|| stopped.try_recv() == Err(mpsc::TryRecvError::Disconnected)).await;
        });
    });
    let address = address.recv().expect("it serves");
    // This core ends while it has the drive, and something is being written.
    super::run(move || async move {
        let owner = Rc::new(Owner::default());
        let (drive, _) = try_open(options(address), &owner).await.expect("it opens");
        for number in 0..8 {
            write(&drive, number, 1, 100_000).await;
        }
        let (record, bytes) = object(8, 1, 500_000);
        drop(drive.append(&key(8), record, bytes).expect("taken"));
        drop(spawn_local(async move {
            let _kept = drive;
            pending::<()>().await;
        }));
    });
    let folder = tempfile::tempdir().expect("a folder");
    let holders = Some(folder.path().to_owned());
    // By the first of these nothing is known of who was killed.
    for is_watched in [true, false] {
        let options = DriveOptions {
            holders: holders.clone(),
            ..options(address)
        };
        super::run(move || async move {
            let owner = Rc::new(Owner::default());
            let asked = time::now();
            let opened = try_open(options, &owner).await;
            let (drive, opened) = opened.expect("it opens");
            let took = time::now() - asked;
            assert!(took >= TERMS.lapse || !is_watched, "it was watched");
            assert!(opened.recovery.expect("it had a log").records >= 8);
            for number in 0..8 {
                assert_is(&drive, number, 1, 100_000).await;
            }
            drop(spawn_local(async move {
                let _kept = drive;
                pending::<()>().await;
            }));
        });
        let left = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 1, "of the latest alone");
    }
    drop(stop);
    target.join().expect("it has served");
}
