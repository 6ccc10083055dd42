//! Nodes whose drives take what leaves memory.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lunette::kvstore::{ClusterClient, Fetched, PutOptions, Stored, Value};
use lunette::runtime::{arena, time};
use lunette::transfer::Room;
use rustix::process::Signal;
use serde_json::json;

use crate::process::{Node, await_that, lunette, run, send};
use crate::scrape::{scrape, value};
use crate::town::{Town, await_members, with_client};

pub(crate) const PATIENT: Duration = Duration::from_secs(20);
/// Three times the memory of a member.
pub(crate) const OBJECTS: usize = 120;
/// Six times that of one of two members.
const MANY: usize = 480;
pub(crate) const LEN: usize = 200_000;

pub(crate) fn drive(folder: &Path) -> [&str; 6] {
    let folder = folder.to_str().expect("text");
    let metrics = ["--metrics", "127.0.0.1:0"];
    [
        metrics[0],
        metrics[1],
        "--drive",
        folder,
        "--drive-size",
        "128MiB",
    ]
}

pub(crate) fn key(n: usize) -> Vec<u8> {
    format!("object-{n}").into_bytes()
}

fn byte(n: usize) -> u8 {
    u8::try_from(n % 251).expect("small") + 1
}

pub(crate) async fn put_all(client: &ClusterClient, count: usize) {
    for n in 0..count {
        let mut region = arena().alloc(LEN).expect("room");
        region.as_mut_slice().fill(byte(n));
        let value = Value::new(region.freeze());
        let put = client.put(&key(n), value, PutOptions::default()).await;
        assert!(
            matches!(put, Ok(Stored::Written { .. } | Stored::Exists { .. })),
            "{put:?}"
        );
        // The drive of the tests is slow now and then.
        time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many of them are there, and right.
pub(crate) async fn found(client: &ClusterClient, count: usize) -> usize {
    let mut found = 0;
    for n in 0..count {
        let room = Room::whole(arena().alloc(LEN).expect("room"));
        if let Fetched::Hit {
            room, len_bytes, ..
        } = client.get(&key(n), room).await.expect("told")
        {
            assert_eq!(len_bytes, LEN);
            assert!(room.as_slice().iter().all(|&found| found == byte(n)), "{n}");
            found += 1;
        }
    }
    found
}

pub(crate) fn metric(node: &Node, name: &str) -> f64 {
    let name = format!("lunette_store_drive_{name}");
    value(&scrape(node), &name, "{core=\"0\"}")
}

/// What a node says that does not start.
pub(crate) fn refusal(command: &mut Command) -> String {
    let mut node = command.spawn().expect("it starts");
    let begun = Instant::now();
    while node.try_wait().expect("a child").is_none() && begun.elapsed() < PATIENT {
        thread::sleep(Duration::from_millis(10));
    }
    // It may serve, where it should not.
    drop(node.kill());
    let refused = node.wait_with_output().expect("it has ended");
    assert!(
        refused.status.code().is_some_and(|code| code != 0),
        "{refused:?}"
    );
    String::from_utf8_lossy(&refused.stderr).into_owned()
}

#[test]
fn what_has_no_room_in_memory_is_on_the_drive_and_a_crash_leaves_it_usable() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let more = drive(folder.path());
    let mut node = Node::spawn(&mut town.member(1, &more));
    let epoch = |node: &Node| value(&scrape(node), "lunette_store_epoch", "{core=\"0\"}");
    let mut last_epoch = 0.0;
    for life in 0..2 {
        // What a former life left is there again, if its drive has kept what was removed; else it is let go of with the map
        // on which it is no more.
        await_that("its own life is in the map", || epoch(&node) > last_epoch);
        await_members(&node, 1);
        let found = with_client(&node, PATIENT, |client| async move {
            put_all(&client, OBJECTS).await;
            found(&client, OBJECTS).await
        });
        let left = metric(&node, "refused_total") + metric(&node, "lost_total");
        assert_eq!(found as f64 + left, OBJECTS as f64, "life {life}");
        assert!(found > OBJECTS / 2, "life {life}: {found}");
        assert!(metric(&node, "promoted_total") > 0.0);
        if life == 0 {
            assert!(metric(&node, "demoted_total") >= metric(&node, "promoted_total"));
        }
        assert!(metric(&node, "live_bytes") <= metric(&node, "capacity_bytes"));
        assert_eq!(metric(&node, "failed"), 0.0);
        let nodes = ["--json", "--nodes", node.address()];
        let status = run(&[&["cluster", "status"], &nodes[..]].concat());
        let status = status.ended_with(0).json();
        let watched = run(&[&["top", "--once"], &nodes[..]].concat());
        let watched = watched.ended_with(0).json();
        for told in [&status["members"][0], &watched["total"]] {
            assert_eq!(
                (&told["drives"], &told["drives_down"]),
                (&json!(1), &json!(0))
            );
            assert_eq!(told["drive_capacity_bytes"], 128 << 20);
            let used_bytes = told["drive_used_bytes"].as_f64();
            assert!(used_bytes >= Some(LEN as f64), "{told}");
        }
        assert!(status["members"][0]["drive_reads"].as_u64() > Some(0));
        last_epoch = epoch(&node);
        send(&node.child, Signal::KILL);
        drop(node);
        node = Node::spawn(&mut town.member(1, &more));
    }
}

#[test]
fn a_node_that_was_killed_comes_back_with_what_its_drive_has() {
    let town = Town::new();
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let one = drive(folders[0].path());
    let node = Node::spawn(&mut town.member(1, &one));
    let other = Node::spawn(&mut town.member(2, &drive(folders[1].path())));
    await_members(&other, 2);
    with_client(&other, PATIENT, |client| async move {
        put_all(&client, MANY).await;
        assert!(
            client
                .remove(&[key(3), key(4), key(5)])
                .await
                .iter()
                .all(Result::is_ok)
        );
    });
    let demoted = metric(&node, "objects");
    assert!(demoted > 100.0, "{demoted}");
    send(&node.child, Signal::KILL);
    drop(node);
    await_members(&other, 1);
    let without = with_client(&other, PATIENT, |client| async move {
        found(&client, MANY).await
    });
    let node = Node::spawn(&mut town.member(1, &one));
    await_members(&other, 2);
    await_that("what its drive has is found", || {
        let found = with_client(&other, PATIENT, |client| async move {
            found(&client, MANY).await
        });
        found as f64 > without as f64 + demoted * 0.8
    });
    with_client(&other, PATIENT, |client| async move {
        for n in 3..6 {
            let room = Room::whole(arena().alloc(LEN).expect("room"));
            let fetched = client.get(&key(n), room).await;
            assert!(matches!(fetched, Ok(Fetched::Miss { .. })), "{fetched:?}");
        }
    });
    assert!(metric(&node, "reads_total") > 0.0);
}

/// Fits the memory of two members, a half of it in each.
const FEW: usize = 40;

/// A node that is asked to end has its drive take what only its memory has, unless it is told not to.
#[test]
fn a_node_that_ends_in_good_order_comes_back_with_what_its_memory_had() {
    for parks in [true, false] {
        let town = Town::new();
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let one = drive(folders[0].path());
        let timeout = ["--drive-park-timeout", if parks { "10" } else { "0" }];
        let one = [&one[..], &timeout[..]].concat();
        let mut node = Node::spawn(&mut town.member(1, &one));
        let other = Node::spawn(&mut town.member(2, &drive(folders[1].path())));
        await_members(&other, 2);
        let count = || {
            with_client(&other, PATIENT, |client| async move {
                found(&client, FEW).await
            })
        };
        with_client(&other, PATIENT, |client| async move {
            put_all(&client, FEW).await;
        });
        assert_eq!(count(), FEW);
        let on_drive = metric(&node, "objects");
        assert!(on_drive < 5.0, "they fit its memory: {on_drive}");
        send(&node.child, Signal::TERM);
        assert_eq!(node.wait().0, Some(0));
        await_members(&other, 1);
        let without = count();
        assert!(without < FEW, "it had some");
        let node = Node::spawn(&mut town.member(1, &one));
        await_members(&other, 2);
        if parks {
            await_that("all are back", || count() == FEW);
        } else {
            thread::sleep(Duration::from_secs(1));
            assert!(count() < FEW);
        }
        drop(node);
    }
}

/// How members end in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    AtOnce,
    InTurn,
    /// All but the first, at one time.
    AllButOne,
}

/// When they have started again, all is there that was, and nothing that was removed.
#[test]
fn members_end_and_come_back_with_what_they_had() {
    for (members, ending) in [
        (1, Ending::AtOnce),
        (3, Ending::AtOnce),
        (3, Ending::InTurn),
        (3, Ending::AllButOne),
    ] {
        let share = end_and_come_back(members, ending);
        assert!(share >= 0.9, "{members} {ending:?}: {share}");
    }
}

/// Which share of what there was is there again.
fn end_and_come_back(members: usize, ending: Ending) -> f64 {
    let town = Town::new();
    let folders: Vec<_> = (0..members)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let start = |n: usize| {
        let more = drive(folders[n].path());
        let mut member = town.member(n as u64 + 1, &more);
        member.spawn().expect("it starts")
    };
    let start_from = |nodes: &mut Vec<Node>| {
        // Who ended last is started last.
        let begun: Vec<_> = (nodes.len()..members).map(start).collect();
        nodes.extend(begun.into_iter().map(Node::of));
        await_members(&nodes[0], members);
    };
    let mut nodes = Vec::new();
    start_from(&mut nodes);
    let found_at = |node: &Node| {
        with_client(node, PATIENT, |client| async move {
            found(&client, OBJECTS).await
        })
    };
    with_client(&nodes[0], PATIENT, |client| async move {
        put_all(&client, OBJECTS).await;
        let removed = client.remove(&[key(3), key(4), key(5)]).await;
        assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    });
    let before = found_at(&nodes[0]);
    assert!(before > OBJECTS / 2, "{before}");
    let mut ended = nodes.split_off(usize::from(ending == Ending::AllButOne));
    for node in &mut ended {
        send(&node.child, Signal::TERM);
        if ending == Ending::InTurn {
            assert_eq!(node.wait().0, Some(0));
        }
    }
    for node in &mut ended {
        assert_eq!(node.wait().0, Some(0));
    }
    drop(ended);
    if let Some(node) = nodes.first() {
        await_members(node, 1);
    }
    start_from(&mut nodes);
    // A busy machine's drive does not take all in time.
    let begun = Instant::now();
    let mut after = 0;
    while after * 10 < before * 9 && begun.elapsed() < Duration::from_secs(5) {
        after = found_at(&nodes[0]);
    }
    assert!(after <= before, "{after} of {before}");
    with_client(&nodes[0], PATIENT, |client| async move {
        for n in 3..6 {
            let room = Room::whole(arena().alloc(LEN).expect("room"));
            let fetched = client.get(&key(n), room).await;
            assert!(matches!(fetched, Ok(Fetched::Miss { .. })), "{fetched:?}");
        }
    });
    after as f64 / before as f64
}

/// A member that is alone is killed: what its drive has is there again, but what was removed. Where its drive has not kept
/// what it knew of removals, or has kept too little, nothing is, since nobody could tell what was removed.
#[test]
fn a_lone_member_that_is_killed_comes_back_with_what_its_drive_has_or_with_nothing() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let more = drive(folder.path());
    let start = || {
        let node = Node::spawn(&mut town.member(1, &more));
        await_members(&node, 1);
        node
    };
    let found_now = |node: &Node| {
        with_client(node, PATIENT, |client| async move {
            found(&client, OBJECTS).await
        })
    };
    let node = start();
    with_client(&node, PATIENT, |client| async move {
        put_all(&client, OBJECTS).await;
        let removed = client.remove(&[key(3), key(4), key(5)]).await;
        assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    });
    let demoted = metric(&node, "objects");
    assert!(demoted > 20.0, "{demoted}");
    await_that("what it knows is kept", || {
        metric(&node, "remembers") == 1.0
    });
    send(&node.child, Signal::KILL);
    drop(node);
    let node = start();
    await_that("what the drive has is there", || {
        found_now(&node) as f64 >= demoted * 0.8
    });
    with_client(&node, PATIENT, |client| async move {
        for n in 3..6 {
            let room = Room::whole(arena().alloc(LEN).expect("room"));
            let fetched = client.get(&key(n), room).await;
            assert!(matches!(fetched, Ok(Fetched::Miss { .. })), "{fetched:?}");
        }
        let removed = client.remove(&[key(6)]).await;
        assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    });
    // At once: what was kept is forgotten by now, and no more than that.
    assert_eq!(metric(&node, "remembers"), 0.0);
    send(&node.child, Signal::KILL);
    drop(node);
    let node = start();
    await_that("its home has judged", || {
        metric(&node, "objects") == 0.0 && found_now(&node) == 0
    });
    with_client(&node, PATIENT, |client| async move {
        put_all(&client, OBJECTS).await;
    });
    assert!(found_now(&node) > OBJECTS / 2);
}

#[test]
fn two_nodes_do_not_share_a_folder() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let more = drive(folder.path());
    let node = Node::spawn(&mut town.member(1, &more));
    await_members(&node, 1);
    let told = refusal(&mut town.member(2, &more));
    assert!(told.contains("another process uses this drive"), "{told}");
}

#[test]
fn a_drive_that_no_core_would_take_is_refused() {
    let town = Town::new();
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let first = drive(folders[0].path());
    let second = ["--drive", folders[1].path().to_str().expect("text")];
    let told = refusal(&mut town.member(1, &[&first[..], &second].concat()));
    assert!(told.contains("2 drives, and 1 cores"), "{told}");
}

#[test]
fn each_core_has_its_drive_and_one_that_is_damaged_takes_nothing_of_the_other() {
    let town = Town::new();
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let second = folders[1].path().to_str().expect("text");
    let more = drive(folders[0].path());
    let more = [&more[..], &["--drive", second, "--core-count", "2"]].concat();
    let objects = |node: &Node| {
        ["{core=\"0\"}", "{core=\"1\"}"]
            .map(|core| value(&scrape(node), "lunette_store_drive_objects", core))
    };
    let node = Node::spawn(&mut town.member(1, &more));
    let other = Node::spawn(&mut town.member(2, &[]));
    await_members(&other, 2);
    with_client(&node, PATIENT, |client| async move {
        put_all(&client, MANY).await;
    });
    let [damaged, whole] = objects(&node);
    assert!(damaged > 50.0 && whole > 50.0, "{damaged}, {whole}");
    send(&node.child, Signal::KILL);
    drop(node);
    await_members(&other, 1);
    let without = with_client(&other, PATIENT, |client| async move {
        found(&client, MANY).await
    });
    let log = folders[0].path().join("lunette-0.log");
    let log = File::options().write(true).open(log).expect("its log");
    log.write_all_at(&[0xa5; 4 << 20], 2 << 20)
        .expect("written");
    let node = Node::spawn(&mut town.member(1, &more));
    await_members(&other, 2);
    await_that("what the other drive has is found", || {
        let found = with_client(&other, PATIENT, |client| async move {
            found(&client, MANY).await
        });
        found as f64 > without as f64 + whole * 0.8
    });
    assert!(objects(&node)[0] < damaged, "{:?}", objects(&node));
}

#[test]
fn a_drive_needs_a_size_and_a_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("text");
    let town = Town::new();
    let refused = town
        .member(1, &["--drive", folder])
        .output()
        .expect("it ends");
    assert_eq!(refused.status.code(), Some(2));
    let alone = [
        "serve",
        "--memory",
        "8MiB",
        "--drive",
        folder,
        "--drive-size",
        "1GiB",
    ];
    assert_eq!(run(&alone).code, Some(2));
}

/// A target with this much memory, and the text of its namespace.
fn target(secret: &str) -> (Node, String) {
    let arguments = [
        "nvme",
        "serve",
        "--memory",
        "160MiB",
        "--listen",
        "127.0.0.1:0",
        "--json",
    ];
    let mut command = lunette(&arguments);
    command.args(["--dhchap-secret-file", secret]);
    let target = Node::spawn(&mut command);
    let url = format!(
        "nvme://{}/nqn.2026-01.lunette:disk?nsid=1&digests=header",
        target.address()
    );
    (target, url)
}

#[test]
fn a_namespace_of_a_target_is_a_drive() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    let made = run(&["nvme", "secret"]).ended_with(0);
    std::fs::write(&secret, made.stdout).expect("written");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("permissions");
    let secret = secret.to_str().expect("text");
    let (target, url) = target(secret);
    let more = [
        "--metrics",
        "127.0.0.1:0",
        "--drive",
        &url,
        "--drive-size",
        "128MiB",
        "--dhchap-secret-file",
        secret,
    ];
    // Who does not know the secret does not get there.
    let refused = town.member(1, &more[..6]).output().expect("it ends");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && told.contains("nvme://"),
        "{told}"
    );
    let node = Node::spawn(&mut town.member(1, &more));
    let without = ["--metrics", "127.0.0.1:0"];
    let other = Node::spawn(&mut town.member(2, &without));
    await_members(&other, 2);
    with_client(&node, PATIENT, |client| async move {
        put_all(&client, OBJECTS).await;
    });
    let demoted = metric(&node, "objects");
    assert!(demoted > 10.0, "{demoted}");
    // Another node does not get it.
    let refused = town.member(3, &more).output().expect("it ends");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        told.contains(&format!("/{} has it", node.child.id())),
        "{told}"
    );
    send(&node.child, Signal::KILL);
    drop(node);
    await_members(&other, 1);
    let left = with_client(&other, PATIENT, |client| async move {
        found(&client, OBJECTS).await
    });
    let node = Node::spawn(&mut town.member(1, &more));
    await_members(&other, 2);
    await_that("what its drive has is found", || {
        let found = with_client(&other, PATIENT, |client| async move {
            found(&client, OBJECTS).await
        });
        found as f64 > left as f64 + demoted * 0.8
    });
    assert!(metric(&node, "reads_total") > 0.0);
    assert_eq!(metric(&node, "away"), 0.0);
    // Without its target the node goes on with its memory.
    send(&target.child, Signal::KILL);
    await_that("the drive is away", || metric(&node, "away") == 1.0);
    with_client(&node, PATIENT, |client| async move {
        put_all(&client, OBJECTS).await;
        assert!(found(&client, OBJECTS).await > 0);
    });
}

#[test]
fn what_is_no_namespace_is_told() {
    let town = Town::new();
    for wrong in [
        "nvme://127.0.0.1:1",
        "nvme://127.0.0.1:1/disk",
        "nvme://127.0.0.1:1/nqn.a:b?nsid=0",
    ] {
        let more = ["--drive", wrong, "--drive-size", "1GiB"];
        let refused = town.member(1, &more).output().expect("it ends");
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
    }
    let nobody = [
        "--drive",
        "nvme://127.0.0.1:1/nqn.a:b",
        "--drive-size",
        "1GiB",
    ];
    let refused = town.member(1, &nobody).output().expect("it ends");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(
        told.contains("nvme://127.0.0.1:1/nqn.a:b?nsid=1: cannot connect"),
        "{told}"
    );
}
