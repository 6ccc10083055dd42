//! A cluster that is renewed member by member, from this version to the next and back, under load by clients
//! of both.
//!
//! The next version is a build of this program that speaks one version of the formats more, with fields that
//! this one does not know: `cargo xtask test` builds it, and names it to the tests.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lunette::kvstore::{ClusterClient, Fetched, PutOptions, Value};
use lunette::runtime::{arena, time};
use lunette::transfer::Room;
use rustix::process::Signal;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::process::{Node, await_that, finish, lunette, program, send};
use crate::town::{with_client, with_client_of};

const MEMBERS: usize = 3;
const COPIES: u8 = 2;
/// Longest that a put may have to be asked again: as long as a member that leaves is waited for, and a map.
const FAILOVER_MAX: Duration = Duration::from_secs(8);
/// Deadline of each operation of this version's client.
const TIMEOUT: Duration = Duration::from_secs(2);
/// What a member writes of itself into a map that only the next version reads.
const NEXT_MARK: u64 = 0x6e65_7874;
const LEN_BYTES: usize = 3000;

/// What clients do and find.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    /// Keys whose puts have succeeded.
    written: Mutex<BTreeSet<u32>>,
    /// What should not have been.
    faults: Mutex<Vec<String>>,
}

impl Load {
    fn fault(&self, what: String) {
        self.faults.lock().expect("nobody panics").push(what);
    }

    fn keys(&self) -> Vec<u32> {
        let written = self.written.lock().expect("nobody panics");
        written.iter().copied().collect()
    }

    fn count(&self, is_counted: impl Fn(u32) -> bool) -> usize {
        self.keys()
            .into_iter()
            .filter(|&key| is_counted(key))
            .count()
    }

    fn has_written(&self, key: u32) {
        self.written.lock().expect("nobody panics").insert(key);
    }
}

fn name(key: u32) -> String {
    format!("upgrade/{key}")
}

/// Bytes that only this key has.
fn bytes_of(key: u32) -> Vec<u8> {
    let numbers = (0..).map(|index: u32| (index ^ key).wrapping_mul(0x9e37_79b1).to_le_bytes()[3]);
    numbers.take(LEN_BYTES).collect()
}

/// Members of either version, at addresses that they keep.
struct Cluster {
    coordinator: Node,
    folder: TempDir,
    members: Vec<Node>,
    addresses: Vec<String>,
    this: PathBuf,
    next: PathBuf,
}

impl Cluster {
    fn start(next: PathBuf) -> Self {
        let listen = ["--json", "--listen", "127.0.0.1:0"];
        let arguments = [&["cluster", "coordinator"][..], &listen].concat();
        let mut cluster = Self {
            coordinator: Node::spawn(&mut lunette(&arguments)),
            folder: tempfile::tempdir().expect("a folder"),
            members: Vec::new(),
            addresses: Vec::new(),
            this: PathBuf::from(env!("CARGO_BIN_EXE_lunette")),
            next,
        };
        for index in 0..MEMBERS {
            let member = cluster.member(&cluster.this, index, "127.0.0.1:0");
            cluster.addresses.push(member.address().to_owned());
            cluster.members.push(member);
        }
        cluster.await_all();
        cluster
    }

    fn member(&self, build: &Path, index: usize, listen: &str) -> Node {
        let id = (index + 1).to_string();
        let life = self.folder.path().join(&id);
        let life = life.to_str().expect("text");
        let arguments = [
            &[
                "serve",
                "--json",
                "--memory",
                "64MiB",
                "--idle",
                "efficient",
            ][..],
            &["--listen", listen, "--node-id", &id, "--life-file", life],
            &["--cluster", "upgrade", "--lease-ttl", "2"],
            &["--coordinators", self.coordinator.address()],
        ];
        Node::spawn(&mut program(build, &arguments.concat()))
    }

    /// What a program of this build tells of the cluster.
    fn status(&self, build: &Path) -> Json {
        let nodes = self.addresses.join(",");
        let arguments = ["cluster", "status", "--json", "--nodes", &nodes];
        let status = program(build, &arguments).output().expect("it starts");
        serde_json::from_slice(&status.stdout).unwrap_or_default()
    }

    /// Waits until all serve, as a program of either version sees it.
    fn await_all(&self) {
        for build in [&self.this, &self.next] {
            await_that("all serve", || {
                let status = self.status(build);
                let members = status["members"].as_array().cloned().unwrap_or_default();
                let serving = members.iter().filter(|member| member["state"] == "serving");
                serving.count() == MEMBERS
            });
        }
    }

    /// Ends a member in good order, and starts one of this build in its place.
    fn replace(&mut self, index: usize, build: &Path) {
        send(&self.members[index].child, Signal::INT);
        let (code, said) = self.members[index].wait();
        assert_eq!(code, Some(0), "{said}");
        let address = self.addresses[index].clone();
        self.members[index] = self.member(build, index, &address);
        self.await_all();
    }

    /// The newest versions that the members speak, in the order of their identities.
    fn versions(&self) -> Vec<u64> {
        let status = self.status(&self.this);
        let members = status["members"].as_array().expect("all serve");
        members
            .iter()
            .map(|member| member["newest_version"].as_u64().expect("a number"))
            .collect()
    }

    /// A number that only members of the next version tell, and only a program of it reads.
    fn told_by_next(&self, field: &str) -> Vec<Option<u64>> {
        let status = self.status(&self.next);
        let members = status["members"].as_array().expect("all serve");
        members
            .iter()
            .map(|member| member[field].as_u64())
            .collect()
    }
}

/// Puts and gets of this version's client, which knows the cluster for as long as it lives.
async fn work(client: ClusterClient, load: Arc<Load>) {
    for number in 0_u32.. {
        if load.is_over.load(Ordering::Relaxed) {
            return;
        }
        let key = number * 2;
        put(&client, key, &load).await;
        let keys = load.keys();
        let read = keys[usize::try_from(number).expect("few") * 7 % keys.len()];
        if let Err(fault) = get(&client, read).await {
            // A miss may have its cause: what has to be there is looked for after each step.
            if fault.contains("other bytes") {
                load.fault(fault);
            }
        }
        time::sleep(Duration::from_millis(5)).await;
    }
}

/// Puts, if need be again, for as long as others take over.
async fn put(client: &ClusterClient, key: u32, load: &Load) {
    let begun = Instant::now();
    loop {
        let mut region = arena().alloc(LEN_BYTES).expect("room");
        region.as_mut_slice().copy_from_slice(&bytes_of(key));
        let options = PutOptions {
            copies: COPIES,
            ..PutOptions::default()
        };
        let value = Value::new(region.freeze());
        let put = client.put(name(key).as_bytes(), value, options).await;
        match put {
            Ok(_) => return load.has_written(key),
            Err(error) if begun.elapsed() > FAILOVER_MAX => {
                return load.fault(format!("put of {key}: {error}"));
            }
            Err(_) => time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Whether the object is there; an error if not, or if its bytes are others'.
async fn get(client: &ClusterClient, key: u32) -> Result<(), String> {
    let room = Room::whole(arena().alloc(LEN_BYTES).expect("room"));
    match client.get(name(key).as_bytes(), room).await {
        Ok(Fetched::Hit {
            room, len_bytes, ..
        }) if room.as_slice()[..len_bytes] == bytes_of(key) => Ok(()),
        Ok(Fetched::Hit { .. }) => Err(format!("get of {key}: other bytes")),
        Ok(Fetched::Miss { is_known, .. }) => Err(format!("get of {key}: a miss ({is_known})")),
        Err(failure) => Err(format!("get of {key}: {}", failure.error)),
    }
}

/// Puts and gets of the next version's program, which learns of the cluster each time.
fn work_as_next(build: &Path, nodes: &str, folder: &Path, load: &Load) {
    let (brought, fetched) = (folder.join("brought"), folder.join("fetched"));
    let (brought, fetched) = (
        brought.to_str().expect("text"),
        fetched.to_str().expect("text"),
    );
    for number in 0_u32.. {
        if load.is_over.load(Ordering::Relaxed) {
            return;
        }
        let key = number * 2 + 1;
        fs::write(brought, bytes_of(key)).expect("it is written");
        let begun = Instant::now();
        loop {
            let put = [
                "put",
                "--nodes",
                nodes,
                "--copies",
                "2",
                &name(key),
                brought,
            ];
            let put = finish(&mut program(build, &put));
            if put.code == Some(0) {
                load.has_written(key);
                break;
            }
            if begun.elapsed() > FAILOVER_MAX {
                load.fault(format!("put of {key} by the next version: {put:?}"));
                break;
            }
        }
        let keys = load.keys();
        let read = keys[usize::try_from(number).expect("few") * 11 % keys.len()];
        let get = ["get", "--nodes", nodes, "--output", fetched, &name(read)];
        let got = finish(&mut program(build, &get)).code == Some(0);
        if got && fs::read(fetched).expect("it is there") != bytes_of(read) {
            load.fault(format!("get of {read} by the next version: other bytes"));
        }
    }
}

/// Keys that a member other than this one has a copy of.
fn with_copies_beside(cluster: &Cluster, index: usize, keys: Vec<u32>) -> Vec<u32> {
    let leaving = u64::try_from(index + 1).expect("few");
    with_client(
        &cluster.members[index],
        FAILOVER_MAX,
        move |client| async move {
            let mut kept = Vec::new();
            for key in keys {
                let found = client.lookup(name(key).as_bytes(), None).await;
                let found = found.expect("its home answers");
                let owners = found.map_or_else(Vec::new, |found| found.owners);
                if owners.iter().any(|owner| owner.node.0 != leaving) {
                    kept.push(key);
                }
            }
            kept
        },
    )
}

/// Replaces a member; whatever had a copy elsewhere is there afterwards.
fn step(cluster: &mut Cluster, index: usize, is_next: bool, load: &Load) {
    let before = load.keys().len();
    await_that("both clients write", || {
        load.count(|key| key % 2 == 0) > before / 4 && load.keys().len() > before + 10
    });
    let kept = with_copies_beside(cluster, index, load.keys());
    assert!(kept.len() > 10, "{} of {before}", kept.len());
    let build = if is_next {
        &cluster.next
    } else {
        &cluster.this
    };
    let build = build.clone();
    cluster.replace(index, &build);
    with_client(
        &cluster.members[index],
        FAILOVER_MAX,
        move |client| async move {
            for key in kept {
                let mut found = get(&client, key).await;
                let until = Instant::now() + FAILOVER_MAX;
                // Who does not know yet what others hold says so.
                while found.as_ref().is_err_and(|fault| !fault.contains("(true)")) {
                    assert!(Instant::now() < until, "{found:?}");
                    time::sleep(Duration::from_millis(50)).await;
                    found = get(&client, key).await;
                }
                assert_eq!(found, Ok(()), "a copy had survived");
            }
        },
    );
}

#[test]
fn a_cluster_is_renewed_member_by_member_and_back_under_load_of_both_versions() {
    let Some(next) = env::var_os("LUNETTE_NEXT_VERSION") else {
        println!(
            "SKIP a_cluster_is_renewed_member_by_member_and_back_under_load_of_both_versions: \
             LUNETTE_NEXT_VERSION names no program of the next version; cargo xtask test builds it"
        );
        return;
    };
    let mut cluster = Cluster::start(next.into());
    let load = Arc::new(Load::default());
    let nodes = cluster.addresses.join(",");
    let (first, working) = (cluster.addresses[0].clone(), Arc::clone(&load));
    let this = thread::spawn(move || {
        with_client_of(&first, TIMEOUT, move |client| work(client, working));
    });
    let (build, folder) = (cluster.next.clone(), tempfile::tempdir().expect("a folder"));
    let working = Arc::clone(&load);
    let after = thread::spawn(move || work_as_next(&build, &nodes, folder.path(), &working));

    assert_eq!(cluster.versions(), [1, 1, 1]);
    step(&mut cluster, 0, true, &load);
    assert_eq!(cluster.versions(), [2, 1, 1]);
    step(&mut cluster, 1, true, &load);
    assert_eq!(cluster.versions(), [2, 2, 1]);
    // Two that speak the next version do so with each other, beside one that does not.
    let told = cluster.told_by_next("next");
    assert!(told[..2].iter().all(|&count| count > Some(0)), "{told:?}");
    assert_eq!(
        told[2],
        Some(0),
        "it was told nothing that it does not know"
    );
    step(&mut cluster, 2, true, &load);
    assert_eq!(cluster.versions(), [2, 2, 2]);
    let in_map = cluster.told_by_next("next_in_map");
    assert_eq!(in_map, [Some(NEXT_MARK); MEMBERS], "all know of it");
    // And one back, as after a version that was found wanting.
    step(&mut cluster, 1, false, &load);
    assert_eq!(cluster.versions(), [2, 1, 2]);

    load.is_over.store(true, Ordering::Relaxed);
    this.join().expect("it ends well");
    after.join().expect("it ends well");
    let faults = load.faults.lock().expect("nobody panics");
    assert!(faults.is_empty(), "{faults:?}");
}
