//! Drives that fail, are full, may not be written, or have another log than they should.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use lunette::kvstore::{ClusterClient, Fetched, PutOptions, Stored, Value};
use lunette::runtime::arena;
use lunette::transfer::Room;
use lunette_runtime_core::checksum::crc32c;
use rustix::process::{Pid, Resource, Rlimit, Signal, getuid, prlimit};

use crate::drives::{LEN, OBJECTS, PATIENT, drive, found, key, metric, put_all, refusal};
use crate::process::{Node, await_that, send};
use crate::scrape::{Families, health, scrape};
use crate::town::{Town, await_members, with_client};

/// Each family, and what moves it in [`each_metric_of_a_drive_is_moved`]. Nothing is told of drives that is not here.
const FAMILIES: [(&str, &str); 13] = [
    ("objects", "puts of more than there is memory"),
    ("live_bytes", "puts of more than there is memory"),
    ("capacity_bytes", CONSTANT),
    ("failed", "writes are refused to it"),
    ("away", OF_NAMESPACES),
    ("remembers", "a removal after a while without"),
    ("written_bytes_total", "puts of more than there is memory"),
    ("demoted_total", "puts of more than there is memory"),
    ("promoted_total", "gets"),
    ("reads_total", "gets"),
    ("streamed_total", "gets of long objects"),
    ("refused_total", "puts when it has failed"),
    ("lost_total", "gets of what was written over"),
];
/// Three times the memory, of objects that are sent while they are read, and a drive that takes so long ones.
const LONG_OBJECTS: usize = 10;
const LONG_LEN: usize = 2_300_000;
const LONG_DRIVE: &str = "160MiB";
const CONSTANT: &str = "nothing";
/// The test of a namespace whose target is killed does.
const OF_NAMESPACES: &str = "targets that cannot be reached";

const SUPERBLOCK_OFFSETS_BYTES: [u64; 2] = [0, 32 << 10];
const SUPERBLOCK_BYTES: usize = 128;

fn log_of(folder: &Path) -> PathBuf {
    folder.join("lunette-0.log")
}

/// The command, as what these words start.
fn behind(words: &[&str], command: &Command) -> Command {
    let mut wrapped = Command::new(words[0]);
    wrapped.args(&words[1..]).arg(command.get_program());
    wrapped.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    wrapped
}

/// A process whose writes can be [refused](refuse_writes) without ending it.
fn refusable(command: &Command) -> Command {
    behind(&["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""], command)
}

/// From now on the process cannot write to files behind their first 64 KiB: neither can it to the segments of a log.
fn refuse_writes(node: &Node) {
    let limit = Rlimit {
        current: Some(64 << 10),
        maximum: Some(64 << 10),
    };
    prlimit(Some(Pid::from_child(&node.child)), Resource::Fsize, limit).expect("it is ours");
}

/// One object more is there as soon as it is put.
async fn put_and_get(client: &ClusterClient, name: &str, len: usize) {
    let region = arena().alloc(len).expect("room").freeze();
    let put = client
        .put(name.as_bytes(), Value::new(region), PutOptions::default())
        .await;
    assert!(matches!(put, Ok(Stored::Written { .. })), "{name}: {put:?}");
    get(client, name, len).await;
}

async fn get(client: &ClusterClient, name: &str, len: usize) {
    let room = Room::whole(arena().alloc(len).expect("room"));
    let got = client.get(name.as_bytes(), room).await;
    assert!(matches!(got, Ok(Fetched::Hit { .. })), "{name}: {got:?}");
}

/// Puts more, round by round, until the drive has been found to fail.
fn put_until_failed(node: &Node) {
    let mut round = 0;
    await_that("the drive has failed", || {
        round += 1;
        with_client(node, PATIENT, move |client| async move {
            for n in 0..20 {
                put_and_get(&client, &format!("more-{round}-{n}"), LEN).await;
            }
        });
        metric(node, "failed") == 1.0
    });
}

/// Ends the node at once; gives what it has logged.
fn killed(mut node: Node) -> String {
    let mut stderr = node.child.stderr.take().expect("it is piped");
    send(&node.child, Signal::KILL);
    drop(node);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut text).expect("text");
    text
}

#[test]
fn a_drive_that_fails_for_good_leaves_a_node_that_goes_on_with_its_memory() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::spawn(&mut refusable(&town.member(1, &drive(folder.path()))));
    await_members(&node, 1);
    with_client(&node, PATIENT, |client| async move {
        put_all(&client, OBJECTS).await;
    });
    await_that("some are on the drive", || {
        metric(&node, "demoted_total") > 20.0
    });
    assert_eq!(health(&node).1["failed_drives"], 0);
    refuse_writes(&node);
    put_until_failed(&node);
    let (status, told) = health(&node);
    assert_eq!((status, &told["failed_drives"]), (200, &1.into()), "{told}");
    let (reads, refused) = (metric(&node, "reads_total"), metric(&node, "refused_total"));
    with_client(&node, PATIENT, |client| async move {
        // What is on the drive is still read; what is put takes the place of others.
        assert!(found(&client, OBJECTS).await > 0);
        for n in 0..OBJECTS {
            put_and_get(&client, &format!("later-{n}"), LEN).await;
        }
    });
    assert!(metric(&node, "reads_total") > reads);
    assert!(metric(&node, "refused_total") > refused);
    let logged = killed(node);
    assert!(logged.contains("a drive has failed"), "{logged}");
    assert!(logged.contains("has not taken a write"), "{logged}");
}

fn has_moved(scrapes: &[Families], family: &str) -> bool {
    let first = &scrapes[0][family];
    scrapes.iter().any(|scrape| scrape[family] != *first)
}

#[test]
fn each_metric_of_a_drive_is_moved() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let mut more = drive(folder.path());
    *more.last_mut().expect("its size") = LONG_DRIVE;
    let node = Node::spawn(&mut refusable(&town.member(1, &more)));
    let mut scrapes = vec![scrape(&node)];
    await_members(&node, 1);
    let get_all = |node: &Node| {
        with_client(node, PATIENT, |client| async move {
            put_all(&client, OBJECTS).await;
            found(&client, OBJECTS).await
        })
    };
    assert!(get_all(&node) > 0);
    with_client(&node, PATIENT, |client| async move {
        for n in 0..LONG_OBJECTS {
            put_and_get(&client, &format!("long-{n}"), LONG_LEN).await;
        }
        for n in 0..LONG_OBJECTS {
            get(&client, &format!("long-{n}"), LONG_LEN).await;
        }
    });
    scrapes.push(scrape(&node));
    await_that("what is known of removals is kept", || {
        metric(&node, "remembers") == 1.0
    });
    scrapes.push(scrape(&node));
    with_client(&node, PATIENT, |client| async move {
        let removed = client.remove(&[key(0)]).await;
        assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    });
    scrapes.push(scrape(&node));
    let log = File::options().write(true).open(log_of(folder.path()));
    let log = log.expect("its log");
    log.write_all_at(&[0xa5; 64 << 20], 64 << 10)
        .expect("written");
    log.sync_data().expect("and there");
    get_all(&node);
    scrapes.push(scrape(&node));
    refuse_writes(&node);
    put_until_failed(&node);
    with_client(&node, PATIENT, |client| async move {
        for n in 0..OBJECTS {
            put_and_get(&client, &format!("later-{n}"), LEN).await;
        }
    });
    scrapes.push(scrape(&node));

    let mut named: Vec<String> = Vec::new();
    for (family, why) in FAMILIES {
        let family = format!("lunette_store_drive_{family}");
        let is_moved = why != CONSTANT && why != OF_NAMESPACES;
        assert_eq!(has_moved(&scrapes, &family), is_moved, "{family}: {why}");
        named.push(family);
    }
    named.sort_unstable();
    let of_drives = |name: &&String| name.starts_with("lunette_store_drive_");
    let told: Vec<_> = scrapes[0].keys().filter(of_drives).cloned().collect();
    assert_eq!(told, named, "each family is in the table, and no other");
}

/// Two members, of which the first has this drive and was killed when it had put so much there that some is.
fn killed_with_a_log(town: &Town, folder: &Path) -> (Node, f64) {
    let node = Node::spawn(&mut town.member(1, &drive(folder)));
    let other = Node::spawn(&mut town.member(2, &[]));
    await_members(&other, 2);
    with_client(&other, PATIENT, |client| async move {
        put_all(&client, OBJECTS * 2).await;
        let removed = client.remove(&[key(3), key(4), key(5)]).await;
        assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    });
    let demoted = metric(&node, "objects");
    assert!(demoted > 20.0, "{demoted}");
    killed(node);
    await_members(&other, 1);
    (other, demoted)
}

#[test]
fn a_log_that_was_cut_short_is_begun_anew_and_nothing_of_it_is_made_up() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (other, demoted) = killed_with_a_log(&town, folder.path());
    let log = File::options().write(true).open(log_of(folder.path()));
    let log = log.expect("its log");
    let len_bytes = log.metadata().expect("it is there").len();
    log.set_len((2 << 20) + 1000).expect("it is cut");
    let node = Node::spawn(&mut town.member(1, &drive(folder.path())));
    await_members(&other, 2);
    assert_eq!(metric(&node, "objects"), 0.0, "of {demoted}");
    with_client(&other, PATIENT, |client| async move {
        found(&client, OBJECTS * 2).await;
        for n in 3..6 {
            let room = Room::whole(arena().alloc(LEN).expect("room"));
            let fetched = client.get(&key(n), room).await;
            assert!(matches!(fetched, Ok(Fetched::Miss { .. })), "{fetched:?}");
        }
        put_all(&client, OBJECTS * 2).await;
    });
    assert_eq!(log.metadata().expect("it is there").len(), len_bytes);
    await_that("it takes what leaves memory", || {
        metric(&node, "demoted_total") > 0.0
    });
    let logged = killed(node);
    assert!(logged.contains("a damaged drive is formatted"), "{logged}");
}

/// Changes both superblocks, and has their checksums say so.
fn rewrite(log: &Path, change: impl Fn(&mut [u8; SUPERBLOCK_BYTES])) {
    let file = File::options().read(true).write(true).open(log);
    let file = file.expect("a log");
    for offset_bytes in SUPERBLOCK_OFFSETS_BYTES {
        let mut superblock = [0; SUPERBLOCK_BYTES];
        file.read_exact_at(&mut superblock, offset_bytes)
            .expect("it is long enough");
        change(&mut superblock);
        let crc = crc32c(&superblock[..SUPERBLOCK_BYTES - 4]);
        superblock[SUPERBLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&superblock, offset_bytes)
            .expect("written");
    }
}

/// What the node says that does not start on the log, which stays as it is.
fn refused_and_untouched(town: &Town, folder: &Path) -> String {
    refused_with(town, folder, &drive(folder))
}

fn refused_with(town: &Town, folder: &Path, arguments: &[&str]) -> String {
    let log = log_of(folder);
    let read = |log: &Path| {
        let metadata = fs::metadata(log).expect("it is there");
        (metadata.len(), crc32c(&fs::read(log).expect("a log")))
    };
    let before = read(&log);
    let told = refusal(&mut town.member(1, arguments));
    assert_eq!(read(&log), before, "{told}");
    assert!(told.contains(log.to_str().expect("text")), "{told}");
    told
}

#[test]
fn a_log_of_a_newer_format_of_another_cluster_or_damaged_is_refused_and_stays_as_it_is() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (other, demoted) = killed_with_a_log(&town, folder.path());
    let log = log_of(folder.path());
    rewrite(&log, |superblock| superblock[4] += 1);
    let told = refused_and_untouched(&town, folder.path());
    assert!(told.contains("the log has a newer format"), "{told}");
    // Also one that is shorter than this node's would be.
    let file = File::options().write(true).open(&log).expect("a log");
    let len_bytes = fs::metadata(&log).expect("it is there").len();
    file.set_len(len_bytes - (1 << 20)).expect("it is cut");
    refused_and_untouched(&town, folder.path());
    file.set_len(len_bytes)
        .expect("what is free is zeros again");
    rewrite(&log, |superblock| superblock[4] -= 1);

    rewrite(&log, |superblock| superblock[16] ^= 1);
    let told = refused_and_untouched(&town, folder.path());
    assert!(told.contains("the log is of another cluster"), "{told}");
    rewrite(&log, |superblock| superblock[16] ^= 1);

    // Given half the room, it is told what was given, and what to do.
    let [metrics, metrics_at, option, at, size, _] = drive(folder.path());
    let less = [metrics, metrics_at, option, at, size, "64MiB"];
    let told = refused_with(&town, folder.path(), &less);
    let expected = "there is a log of 134217728 bytes, and it is given 67108864";
    assert!(told.contains(expected), "{told}");

    let set = |offset_bytes: u64, byte: u8| {
        // Zeros, which the checksum covers.
        file.write_all_at(&[byte], offset_bytes + 100)
            .expect("written");
    };
    for offset_bytes in SUPERBLOCK_OFFSETS_BYTES {
        set(offset_bytes, 1);
    }
    let told = refused_and_untouched(&town, folder.path());
    assert!(told.contains("both superblocks are damaged"), "{told}");
    // One of them is enough, and all of it was there all the while.
    set(SUPERBLOCK_OFFSETS_BYTES[1], 0);
    let node = Node::spawn(&mut town.member(1, &drive(folder.path())));
    await_members(&other, 2);
    assert!(metric(&node, "objects") > demoted * 0.8, "of {demoted}");
}

/// What has no right to write where permissions say so, root included. `Err` says why not.
fn without_privileges(command: &Command) -> Result<Command, String> {
    if !getuid().is_root() {
        return Ok(behind(&["env"], command));
    }
    let words = ["setpriv", "--bounding-set", "-dac_override"];
    let tried = behind(&words, &Command::new("true")).status();
    match tried {
        Ok(status) if status.success() => Ok(behind(&words, command)),
        tried => Err(format!("setpriv: {tried:?}")),
    }
}

#[test]
fn what_may_not_be_written_is_told_and_no_node_starts() {
    let town = Town::new();
    let folder = tempfile::tempdir().expect("a folder");
    let command = town.member(1, &drive(folder.path()));
    let refused = || -> Result<String, String> {
        let told = refusal(&mut without_privileges(&command)?);
        Ok(told)
    };
    let log = log_of(folder.path());
    let permit = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
    };
    let assert_told = |told: &str| {
        assert!(told.contains(log.to_str().expect("text")), "{told}");
        assert!(told.contains("Permission denied"), "{told}");
    };
    permit(folder.path(), 0o500);
    match refused() {
        Ok(told) => assert_told(&told),
        Err(why) => {
            println!("skipped what_may_not_be_written_is_told_and_no_node_starts: {why}");
            return;
        }
    }
    permit(folder.path(), 0o700);
    File::create(&log).expect("a file");
    permit(&log, 0o400);
    assert_told(&refused().expect("as before"));
    assert_eq!(fs::metadata(&log).expect("it is there").len(), 0);
    permit(&log, 0o600);
    let node = Node::spawn(&mut without_privileges(&command).expect("as before"));
    await_members(&node, 1);
}

/// A file system of so much memory, gone with the value.
struct Small {
    folder: tempfile::TempDir,
}

impl Small {
    fn new(size: &str) -> Result<Self, String> {
        let small = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        let size = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(small.folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Ok(small),
            mounted => Err(format!("mount: {mounted:?}")),
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Later where the system still has something open for a process that has ended. It may not be mounted.
        let folder = self.folder.path();
        drop(Command::new("umount").arg("--lazy").arg(folder).output());
    }
}

#[test]
fn a_drive_without_the_room_it_is_to_have_is_told_and_fits_when_there_is_room() {
    let small = match Small::new("64m") {
        Ok(small) => small,
        Err(why) => {
            let test = "a_drive_without_the_room_it_is_to_have_is_told_and_fits_when_there_is_room";
            println!("skipped {test}: {why}");
            return;
        }
    };
    let town = Town::new();
    let folder = small.folder.path();
    let told = refusal(&mut town.member(1, &drive(folder)));
    assert!(
        told.contains(log_of(folder).to_str().expect("text")),
        "{told}"
    );
    assert!(told.contains("No space left on device"), "{told}");
    let fits = folder.to_str().expect("text");
    let fits = [
        "--metrics",
        "127.0.0.1:0",
        "--drive",
        fits,
        "--drive-size",
        "32MiB",
    ];
    let node = Node::spawn(&mut town.member(1, &fits));
    await_members(&node, 1);
    assert_eq!(metric(&node, "capacity_bytes"), f64::from(32 << 20));
    with_client(&node, PATIENT, |client| async move {
        put_all(&client, OBJECTS).await;
        assert!(found(&client, OBJECTS).await > 0);
    });
    assert!(metric(&node, "demoted_total") > 0.0);
}
