//! Members with drives: what leaves memory is still there.

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore::{
    ClusterClient, DriveReport, Fetched, NodeError, PutOptions, Stored, TierOptions, Value,
};
use lunette_kvstore_proto::message::directory::HoldWish;
use lunette_kvstore_proto::version::WriteKind;
use lunette_runtime::sim::{DiskOptions, WorldOptions};
use lunette_runtime::{spawn_local, time};

use super::on_each_driver::run;
use super::scene::{
    PATIENCE, Scene, eventually, in_a_world, is_found, key, pattern, put_in_time, room,
};

const WORLDS: u64 = 3;
const MIB: u64 = 1 << 20;
const MEMORY: u64 = 8 * MIB;
const LEN: usize = 100_000;
/// Three times the memory.
const COUNT: usize = 240;

fn tier(folder: &Path) -> TierOptions {
    TierOptions::in_folders(vec![folder.to_owned()], 30 * MIB)
}

async fn scene(nodes: usize, folder: &Path) -> Scene {
    let mut scene = Scene::of(0, MEMORY).await;
    for node in 0..nodes {
        let folder = folder.join(node.to_string());
        // There are no folders in a world.
        drop(std::fs::create_dir_all(&folder));
        scene.set_tier(Some(tier(&folder)));
        scene.add(MEMORY).await;
    }
    scene
}

async fn drives(scene: &Scene) -> Vec<DriveReport> {
    let reports = scene.reports().await.into_iter();
    let drives = reports.map(|report| report.member.expect("a member").drive);
    drives.flatten().collect()
}

/// Waits until all that leaves memory has left it, however slow the drive is.
async fn all_has_left(client: &ClusterClient) {
    let deadline = time::now() + PATIENCE;
    loop {
        let stats = client.stat().await.into_iter();
        let mut held = stats.map(|(_, stat)| stat.expect("it answers").shards);
        if held.all(|held| held.used_bytes == held.resident_bytes) {
            return;
        }
        assert!(time::now() < deadline, "in time: the drive takes it");
        time::sleep(Duration::from_millis(2)).await;
    }
}

/// How many objects are put or read before what leaves for them has to have left: some 100,000 bytes.
fn at_once(len: usize) -> usize {
    (LEN / len).max(1)
}

/// Puts objects no faster than the drive takes what leaves for them.
async fn fill(client: &ClusterClient, count: usize, len: usize, options: PutOptions) {
    fill_from(client, 0..count, len, options).await;
}

async fn fill_from(client: &ClusterClient, all: Range<usize>, len: usize, options: PutOptions) {
    for n in all {
        put_in_time(client, n, len, options).await;
        if n % at_once(len) == 0 {
            all_has_left(client).await;
        }
    }
    all_has_left(client).await;
}

/// Reads objects, no faster than the drive takes what leaves for them: all are there.
async fn expect_all(scene: &Scene, client: &ClusterClient, all: Range<usize>, len: usize) {
    for n in all {
        scene.expect(client, n, len).await;
        if n % at_once(len) == 0 {
            all_has_left(client).await;
        }
    }
}

async fn fill_slowly(
    client: &ClusterClient,
    (count, len): (usize, usize),
    options: PutOptions,
    pause: Duration,
) {
    for n in 0..count {
        put_in_time(client, n, len, options).await;
        time::sleep(pause).await;
    }
}

#[test]
fn what_leaves_memory_comes_back_when_it_is_read() {
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let scene = scene(1, folder.path()).await;
        let client = scene.client().await;
        fill(&client, COUNT, LEN, PutOptions::default()).await;
        expect_all(&scene, &client, 0..COUNT, LEN).await;
        // And again: most of it leaves for nothing, since the drive has it.
        for n in (0..COUNT).rev() {
            scene.expect(&client, n, LEN).await;
        }
        let [drive] = drives(&scene).await[..] else {
            panic!("one core has a drive");
        };
        assert_eq!((drive.refused, drive.lost), (0, 0), "{drive:?}");
        let left = COUNT as u64 * LEN as u64 - MEMORY;
        assert!(drive.demoted * LEN as u64 >= left, "{drive:?}");
        assert!(drive.promoted > 0 && drive.read >= drive.promoted);
        assert!(drive.records <= COUNT as u64, "each is there once");
        let all = COUNT as u64 * (LEN as u64 + 8192);
        assert!(drive.written_bytes < all * 5 / 4, "{drive:?}");
    });
}

/// Long enough to be sent while they are read; three times the memory.
const LONG_LEN: usize = 2_300_000;
const LONG_COUNT: usize = 11;
/// A segment has one of them, or two of shorter ones.
const LONG_DRIVE: u64 = 136 * MIB;

/// One member, whose drive has room for all of them.
async fn scene_of_long(folder: &Path) -> Scene {
    let mut scene = Scene::of(0, MEMORY).await;
    let capacity_bytes = LONG_DRIVE;
    scene.set_tier(Some(TierOptions {
        capacity_bytes,
        ..tier(folder)
    }));
    scene.add(MEMORY).await;
    scene
}

async fn long_objects_come_back(folder: &Path) {
    let scene = scene_of_long(folder).await;
    let client = scene.client().await;
    fill(&client, LONG_COUNT, LONG_LEN, PutOptions::default()).await;
    expect_all(&scene, &client, 0..LONG_COUNT, LONG_LEN).await;
    // Several at a time, by one connection.
    for _ in 0..3 {
        let wanted = (0..LONG_COUNT).map(|n| (key(n), room(LONG_LEN)));
        let all = client.get_all(wanted).await.into_iter();
        for (n, got) in all.enumerate() {
            let Ok(Fetched::Hit { room, .. }) = got else {
                panic!("{n}: {got:?}");
            };
            assert!(room.as_slice()[..LONG_LEN] == *pattern(n, LONG_LEN).as_slice());
        }
    }
    let [drive] = drives(&scene).await[..] else {
        panic!("one core has a drive");
    };
    assert!(drive.streamed > 20, "{drive:?}");
    assert!(drive.streamed <= drive.read && drive.promoted > 0);
    assert_eq!((drive.refused, drive.lost), (0, 0), "{drive:?}");
}

#[test]
fn long_objects_are_sent_while_they_are_read() {
    run(0, || async {
        let folder = tempfile::tempdir().expect("a folder");
        long_objects_come_back(folder.path()).await;
    });
    for seed in 0..WORLDS {
        let options = with_disk(DiskOptions::default());
        in_a_world(seed, options, || {
            long_objects_come_back(Path::new("/drives"))
        });
    }
}

/// A world in which nothing is lost, and whose disks have room for a long log.
fn with_disk(disk: DiskOptions) -> WorldOptions {
    let capacity_bytes = 256 << 20;
    WorldOptions {
        losses_per_mille: 0,
        disk: DiskOptions {
            capacity_bytes,
            ..disk
        },
        ..WorldOptions::default()
    }
}

/// Gets of what is on the drive of a node in a world with such a disk: how many were found, and what the drive says.
fn long_gets_with(seed: u64, disk: DiskOptions) -> (usize, DriveReport) {
    let told = Rc::new(Cell::new(None));
    let tell = Rc::clone(&told);
    in_a_world(seed, with_disk(disk), move || {
        let tell = Rc::clone(&tell);
        async move {
            let scene = scene_of_long(Path::new("/drives")).await;
            let client = scene.client().await;
            let all = (LONG_COUNT, LONG_LEN);
            let pause = 8 * disk.latency.1.max(Duration::from_millis(5));
            fill_slowly(&client, all, PutOptions::default(), pause).await;
            let mut found = 0;
            for _ in 0..ROUNDS {
                for n in 0..LONG_COUNT {
                    found += usize::from(is_found(&client, n, LONG_LEN).await);
                }
            }
            let [drive] = drives(&scene).await[..] else {
                panic!("one core has a drive");
            };
            tell.set(Some((found, drive)));
        }
    });
    told.take().expect("it has ended")
}

const ROUNDS: usize = 3;

#[test]
fn a_slow_drive_holds_up_nobody_for_long_and_loses_nothing() {
    for seed in 0..WORLDS {
        let latency = (Duration::from_millis(50), Duration::from_millis(700));
        let (found, drive) = long_gets_with(
            seed,
            DiskOptions {
                latency,
                ..DiskOptions::default()
            },
        );
        // So slow a drive does not take all that leaves memory.
        let gone = usize::try_from(drive.refused).expect("few");
        assert!(
            found > LONG_COUNT / 2 && found + gone >= LONG_COUNT,
            "{found}: {drive:?}"
        );
        // What was late is read again, and whole, and so are others for a while.
        assert!(
            0 < drive.streamed && drive.streamed < drive.read / 2,
            "{drive:?}"
        );
    }
}

#[test]
fn what_rots_on_the_drive_is_sent_to_nobody_as_right() {
    let (mut found, mut lost) = (0, 0);
    for seed in 0..WORLDS {
        let (hits, drive) = long_gets_with(
            seed,
            DiskOptions {
                rots_per_million: 100_000,
                ..DiskOptions::default()
            },
        );
        found += hits;
        lost += drive.lost;
    }
    assert!(lost > 0 && found > 0, "{found} found, {lost} lost");
}

/// Also on the drive: what is least likely to be asked for leaves before.
#[test]
fn what_is_held_stays_on_a_drive_that_is_full() {
    const HELD: usize = 6;
    const TURN: usize = 40;
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let scene = scene(1, folder.path()).await;
        let client = scene.client().await;
        fill(&client, COUNT, LEN, PutOptions::default()).await;
        let hold = HoldWish {
            holder: 1,
            ttl_ms: 5_000,
        };
        for first in (COUNT..4 * COUNT).step_by(TURN) {
            for n in 0..HELD {
                let held = client.lookup(&key(n), Some(hold)).await;
                let held = held.expect("an answer").expect("it is there");
                assert!(held.held_ms > 0, "{n}: {held:?}");
            }
            fill_from(&client, first..first + TURN, LEN, PutOptions::default()).await;
        }
        let [drive] = drives(&scene).await[..] else {
            panic!("one core has a drive");
        };
        assert!(drive.lost > COUNT as u64, "{drive:?}");
        for n in 0..HELD {
            assert!(is_found(&client, n, LEN).await, "{n} of {drive:?}");
        }
        let others = HELD..COUNT;
        let mut left = 0;
        for n in others {
            left += usize::from(is_found(&client, n, LEN).await);
        }
        assert!(left < COUNT / 2, "{left}");
    });
}

/// What was promised of it nobody can keep any more: it is a miss at once, and may be put again.
#[test]
fn what_rots_on_the_drive_is_held_by_nobody() {
    let missed = Rc::new(Cell::new(0));
    for seed in 0..WORLDS {
        let disk = DiskOptions {
            rots_per_million: 200_000,
            ..DiskOptions::default()
        };
        let missed = Rc::clone(&missed);
        in_a_world(seed, with_disk(disk), move || {
            let missed = Rc::clone(&missed);
            async move {
                let mut scene = scene_of_long(Path::new("/drives")).await;
                scene.set_client_timeout(Duration::from_secs(2));
                let client = scene.client().await;
                let all = (LONG_COUNT, LONG_LEN);
                let pause = Duration::from_millis(50);
                fill_slowly(&client, all, PutOptions::default(), pause).await;
                let hold = HoldWish {
                    holder: 1,
                    ttl_ms: 5_000,
                };
                for n in 0..LONG_COUNT {
                    let held = client.lookup(&key(n), Some(hold)).await;
                    assert!(held.is_ok(), "{n}: {held:?}");
                }
                for n in 0..LONG_COUNT {
                    let got = client.get(&key(n), room(LONG_LEN)).await;
                    let Fetched::Miss { is_known, .. } = got.expect("an answer") else {
                        continue;
                    };
                    assert!(is_known, "{n}");
                    missed.set(missed.get() + 1);
                    let again = Value::new(pattern(n, 100));
                    let again = client.put(&key(n), again, PutOptions::default()).await;
                    assert!(matches!(again, Ok(Stored::Written { .. })), "{n}");
                }
            }
        });
    }
    assert!(missed.get() > 0);
}

#[test]
fn small_objects_and_those_in_parts_leave_and_come_back() {
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let scene = scene(2, folder.path()).await;
        let client = scene.client().await;
        let in_parts = PutOptions {
            stripe_len: Some(50_000),
            ..PutOptions::default()
        };
        fill(&client, 10, 1_200_000, in_parts).await;
        fill_from(&client, 10..6000, 3000, PutOptions::default()).await;
        expect_all(&scene, &client, 0..10, 1_200_000).await;
        expect_all(&scene, &client, 10..6000, 3000).await;
        let demoted: u64 = drives(&scene).await.iter().map(|drive| drive.demoted).sum();
        assert!(demoted > 1000, "{demoted}");
    });
}

#[test]
fn what_is_removed_or_replaced_does_not_come_back_from_the_drive() {
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let scene = scene(1, folder.path()).await;
        let client = scene.client().await;
        fill(&client, COUNT, LEN, PutOptions::default()).await;
        for n in 0..10 {
            let removed = client.remove(&[key(n)]).await.remove(0);
            assert!(removed.expect("an answer"));
            assert!(!is_found(&client, n, LEN).await);
        }
        for n in 10..20 {
            let value = Value::new(pattern(n + 7, LEN));
            let options = PutOptions {
                kind: WriteKind::Upsert,
                ..PutOptions::default()
            };
            let put = client.put(&key(n), value, options).await;
            assert!(matches!(put, Ok(Stored::Written { .. })));
        }
        fill(&client, 100, LEN, PutOptions::default()).await;
        for n in 0..COUNT {
            let bytes = if (10..20).contains(&n) { n + 7 } else { n };
            scene.expect_value(&client, n, bytes, LEN).await;
        }
        scene.clear().await;
        for n in 0..COUNT {
            assert!(!is_found(&client, n, LEN).await, "{n}");
        }
        eventually("the drive forgets", async || {
            drives(&scene).await[0].records == 0
        })
        .await;
    });
}

#[test]
fn a_drive_that_is_full_lets_the_oldest_go_and_nothing_wrong_is_read() {
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut scene = Scene::of(0, MEMORY).await;
        let capacity_bytes = 16 * MIB;
        scene.set_tier(Some(TierOptions {
            capacity_bytes,
            ..tier(folder.path())
        }));
        scene.add(MEMORY).await;
        let client = scene.client().await;
        let count = 500;
        fill(&client, count, LEN, PutOptions::default()).await;
        let mut found = 0;
        for n in 0..count {
            found += u64::from(is_found(&client, n, LEN).await);
        }
        let [drive] = drives(&scene).await[..] else {
            panic!("one core has a drive");
        };
        assert!(drive.lost > 0 && !drive.has_failed, "{drive:?}");
        assert!(found * LEN as u64 > MEMORY * 5 / 4, "{found}: {drive:?}");
        // Homes know of what is gone.
        eventually("what is listed is there", async || {
            let reports = scene.reports().await;
            let copies: u64 = reports
                .iter()
                .map(|report| report.stat.shards.entries)
                .sum();
            let known: u64 = (reports.iter())
                .map(|report| report.member.expect("a member").home_copies)
                .sum();
            let [drive] = drives(&scene).await[..] else {
                return false;
            };
            known <= copies + drive.records
        })
        .await;
    });
}

/// Objects are so short that the index is full while most of the drive is free.
#[test]
fn a_drive_whose_index_is_full_lets_the_oldest_go_and_goes_on() {
    const SHORT_LEN: usize = 2000;
    const SHORT_COUNT: usize = 12_000;
    run(1, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut scene = Scene::of(0, MEMORY).await;
        scene.set_tier(Some(tier(folder.path())));
        scene.add(MEMORY).await;
        let client = scene.client().await;
        fill(&client, SHORT_COUNT, SHORT_LEN, PutOptions::default()).await;
        let [drive] = drives(&scene).await[..] else {
            panic!("one core has a drive");
        };
        assert!(drive.records <= 4096, "{drive:?}");
        assert!(drive.live_bytes * 2 < drive.capacity_bytes, "{drive:?}");
        assert!(drive.lost > 1000, "{drive:?}");
        assert!(drive.refused < 100, "{drive:?}");
        let mut found = 0;
        for n in SHORT_COUNT - 5000..SHORT_COUNT {
            found += u64::from(is_found(&client, n, SHORT_LEN).await);
        }
        // Memory alone has room for some 2,500 of them.
        assert!(found > 3600, "the newest are there: {found}, {drive:?}");
    });
}

/// What a member's memory has is on its drive when it has left, what is written meanwhile too.
#[test]
fn who_leaves_parks_what_only_its_memory_has() {
    const FEW: usize = 60;
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut scene = scene(2, folder.path()).await;
        let client = scene.client().await;
        fill(&client, FEW, LEN, PutOptions::default()).await;
        let records = |drives: Vec<DriveReport>| drives.iter().map(|drive| drive.records).sum();
        let before: u64 = records(drives(&scene).await);
        assert_eq!(before, 0, "memory has room for them");
        let leaving = spawn_local(scene.first_leaves());
        let mut more = FEW;
        while !leaving.is_finished() {
            put_in_time(&client, more, LEN / 100, PutOptions::default()).await;
            more += 1;
            time::sleep(Duration::from_millis(5)).await;
        }
        let left = leaving.await.expect("no panic");
        let [report] = &left.watch().report().await.expect("it answers")[..] else {
            panic!("it has one core");
        };
        let drive = report.member.as_ref().and_then(|member| member.drive);
        let records = drive.expect("it has a drive").records;
        assert!(records > 0, "it had some");
        assert_eq!(
            records, report.stat.shards.entries,
            "all that its memory has"
        );
        assert!(more > FEW);
    });
}

#[test]
fn copies_on_a_drive_are_made_again_elsewhere() {
    run(WORLDS, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut scene = scene(1, folder.path()).await;
        let client = scene.client().await;
        let options = PutOptions {
            copies: 2,
            ..PutOptions::default()
        };
        fill(&client, 120, LEN, options).await;
        assert!(drives(&scene).await[0].demoted > 30);
        scene.set_tier(None);
        // Who joins takes a sixteenth of its memory at once.
        scene.add(256 * MIB).await;
        eventually("each has two", async || {
            let reports = scene.reports().await.into_iter();
            let members = reports.map(|report| report.member.expect("a member"));
            let told = members.fold((0, 0), |(made, scarce), member| {
                (made + member.copies_replicated, scarce + member.scarce_keys)
            });
            // Their homes know of them, too.
            told == (120, 0)
        })
        .await;
        scene.remove_first().await;
        let client = scene.client().await;
        for n in 0..120 {
            scene.expect(&client, n, LEN).await;
        }
    });
}

#[test]
fn a_drive_that_cannot_be_opened_is_told_and_no_node_is_left() {
    run(1, || async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut scene = Scene::of(1, MEMORY).await;
        let folders = vec![folder.path().to_owned()];
        scene.set_tier(Some(TierOptions::in_folders(folders, MIB)));
        let refused = scene.try_start(MEMORY).await;
        assert!(matches!(refused, Err(NodeError::Drive(_))), "{refused:?}");
    });
}
