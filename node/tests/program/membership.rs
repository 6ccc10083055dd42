//! `lunette cluster`, and nodes that are members of one.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lunette::kvstore::{ClusterClient, ClusterClientOptions, Fetched, GetFailure};
use lunette::runtime::arena;
use lunette::transfer::Room;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;

use crate::process::{Finished, Node, await_that, lunette, run, run_with_input, send};
use crate::town::{self, Town, member_arguments, with_client};

const PATIENCE: Duration = Duration::from_secs(20);

/// The program, which knows the cluster's secret.
fn knowing(secret: &Path, arguments: &[&str]) -> Command {
    let mut command = lunette(arguments);
    command.env("LUNETTE_SECRET_FILE", secret);
    command
}

fn done(secret: &Path, arguments: &[&str]) -> Value {
    let output = knowing(secret, arguments).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text} {why}");
    serde_json::from_str(&text).expect("one object")
}

fn member(secret: &Path, coordinator: &Node, id: &str) -> Node {
    let life = secret.with_file_name(format!("life-{id}"));
    let arguments = member_arguments(id, &life, coordinator);
    let arguments = arguments.map(|argument| match &argument[..] {
        // Room for parts of long objects.
        "8MiB" => "128MiB".to_owned(),
        _ => argument,
    });
    let rack = format!("row-{id}");
    let mut arguments = arguments.each_ref().map(String::as_str).to_vec();
    arguments.extend(["--rack", &rack]);
    Node::spawn(&mut knowing(secret, &arguments))
}

/// Waits until the cluster has that many members.
fn await_members(secret: &Path, node: &Node, count: usize) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let arguments = ["cluster", "status", "--json", "--nodes", node.address()];
        let status = knowing(secret, &arguments).output().expect("it starts");
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        if status["members"].as_array().map(Vec::len) == Some(count) {
            return status;
        }
        assert!(Instant::now() < deadline, "in time: {status}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn members_come_and_go_and_any_of_them_is_enough_to_know() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    fs::write(&secret, [b's'; 40]).expect("it is written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("ours");
    let data = folder.path().join("data");
    let data = data.to_str().expect("text");
    let listen = ["--json", "--listen", "127.0.0.1:0", "--data", data];
    let arguments = [&["cluster", "coordinator"][..], &listen].concat();
    let coordinator = Node::spawn(&mut knowing(&secret, &arguments));
    let nodes = ["1", "2", "3"].map(|id| member(&secret, &coordinator, id));
    let status = await_members(&secret, &nodes[0], 3);
    assert_eq!(status["members"][1]["node_id"], 2);
    assert_eq!(status["members"][1]["address"], nodes[1].address());
    assert_eq!(status["members"][1]["rack"], "row-2");

    let value = folder.path().join("value");
    fs::write(&value, vec![7; 100_000]).expect("it is written");
    let value = value.to_str().expect("text");
    for key in 0..12 {
        let key = format!("key-{key}");
        let put = ["put", "--json", "--nodes", nodes[0].address(), &key, value];
        assert_eq!(done(&secret, &put)["written"], true);
    }
    let output = folder.path().join("output");
    let output = output.to_str().expect("text");
    let get = [
        "get",
        "--json",
        "--nodes",
        nodes[2].address(),
        "key-7",
        "--output",
        output,
    ];
    assert_eq!(done(&secret, &get)["bytes"], 100_000);
    assert_eq!(fs::read(output).expect("it is there"), vec![7; 100_000]);

    // In parts, and nothing at all.
    for (key, len) in [("long", 70 << 20), ("empty", 0)] {
        let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
        fs::write(value, &bytes).expect("it is written");
        let put = ["put", "--json", "--nodes", nodes[0].address(), key, value];
        assert_eq!(done(&secret, &put)["bytes"], len);
        let at = ["--nodes", nodes[2].address(), "--output", output];
        done(&secret, &[&["get", "--json", key][..], &at].concat());
        assert!(fs::read(output).expect("it is there") == bytes, "{key}");
        done(
            &secret,
            &["rm", "--json", "--nodes", nodes[0].address(), key],
        );
    }

    let stranger = lunette(&["get", "--nodes", nodes[2].address(), "key-7"]).output();
    let stranger = stranger.expect("it starts");
    assert_eq!(stranger.status.code(), Some(4), "{stranger:?}");

    send(&nodes[1].child, Signal::INT);
    let status = await_members(&secret, &nodes[0], 2);
    let held: u64 = (status["members"].as_array().expect("two").iter())
        .map(|member| member["entries"].as_u64().expect("a number"))
        .sum();
    let here = (0..12).filter(|key| {
        let key = format!("key-{key}");
        let stat = ["stat", "--json", "--nodes", nodes[0].address(), &key];
        let stat = knowing(&secret, &stat).output().expect("it starts");
        stat.status.success()
    });
    assert_eq!(here.count() as u64, held, "what the others hold is found");
}

#[test]
fn everything_is_removed_by_who_says_that_it_is_meant() {
    let town = Town::new();
    let nodes = [1, 2, 3].map(|id| Node::spawn(&mut town.member(id, &[])));
    town::await_members(&nodes[0], 3);
    let all = nodes[0].address();
    for number in 0..20 {
        let put = [
            "put",
            "--nodes",
            all,
            "--copies",
            "2",
            &format!("key-{number}"),
        ];
        run_with_input(&put, b"value").ended_with(0);
    }
    let held = || {
        let stat = run(&["stat", "--json", "--nodes", all])
            .ended_with(0)
            .json();
        let nodes = stat["nodes"].as_array().expect("three").clone();
        let held = nodes.iter().map(|node| node["entries"].as_u64());
        held.sum::<Option<u64>>().expect("numbers")
    };
    await_that("each object has its second copy", || held() == 40);
    let unsure = run(&["cluster", "clear", "--nodes", all]).ended_with(2);
    assert!(unsure.stderr.contains("--yes"), "{}", unsure.stderr);
    assert_eq!(held(), 40, "nothing was removed");

    let clear = ["cluster", "clear", "--yes", "--json", "--nodes", all];
    let cleared = run(&clear).ended_with(0).json();
    let expected = serde_json::json!({ "cleared": true, "generation": 1, "late": [] });
    assert_eq!(cleared, expected);
    for node in &nodes {
        for number in 0..20 {
            // Asked by way of each: all have been told.
            let get = ["get", "--nodes", node.address(), &format!("key-{number}")];
            run(&get).ended_with(3);
        }
    }
    await_that("the memory is given back", || held() == 0);
    let put = ["put", "--json", "--nodes", all, "key-1"];
    let put = run_with_input(&put, b"again").ended_with(0).json();
    assert_eq!(put["written"], true);
    let text = run(&["cluster", "clear", "--yes", "--nodes", all]).ended_with(0);
    assert_eq!(text.text(), "everything is removed: generation 2\n");

    let alone = Node::start("8MiB", &[]);
    let refused = run(&["cluster", "clear", "--yes", "--nodes", alone.address()]).ended_with(1);
    assert!(refused.stderr.contains("no member"), "{}", refused.stderr);
}

#[test]
fn a_member_is_emptied_before_it_is_stopped() {
    let town = Town::new();
    let mut nodes = [1, 2].map(|id| Node::spawn(&mut town.member(id, &[])));
    town::await_members(&nodes[0], 2);
    let [first, second] = [0, 1].map(|node: usize| nodes[node].address().to_owned());
    let (first, second) = (first.as_str(), second.as_str());
    let put = |number: u32| {
        let put = ["put", "--nodes", first, &format!("key-{number}")];
        run_with_input(&put, b"value").ended_with(0);
    };
    (0..20).for_each(put);
    let retire = ["cluster", "retire", "--nodes", first];
    // What it has is elsewhere a second later.
    let full = run(&[&retire[..], &[second, "--wait-ms", "0", "--json"]].concat()).ended_with(1);
    assert!(full.json()["objects"].as_u64() > Some(0), "{full:?}");
    let text = run(&[&retire[..], &[second]].concat()).ended_with(0);
    assert!(text.text().starts_with(second), "{}", text.text());
    let again = run(&[&retire[..], &[second, "--json"]].concat()).ended_with(0);
    assert_eq!(again.json()["retired"], second);
    let status = ["cluster", "status", "--json", "--nodes", first];
    let members = || run(&status).ended_with(0).json()["members"].clone();
    let entries = |members: &Value, node: usize| {
        let entries = members[node]["entries"].as_u64();
        entries.expect("a number")
    };
    (20..40).for_each(put);
    let wait = [second, "--wait-ms", "20000", "--json"];
    let empty = run(&[&retire[..], &wait].concat()).ended_with(0);
    let object = serde_json::json!({ "retired": second, "objects": 0 });
    assert_eq!(empty.json(), object);
    let after = members();
    assert_eq!(after[0]["is_draining"], false);
    assert_eq!(after[1]["is_draining"], true);
    assert_eq!([0, 1].map(|node| entries(&after, node)), [40, 0]);
    let [_, second] = &mut nodes;
    send(&second.child, Signal::TERM);
    assert_eq!(second.wait().0, Some(0));
    for number in 0..40 {
        let get = ["get", "--nodes", first, &format!("key-{number}")];
        run(&get).ended_with(0);
    }
    let stranger = run(&[&retire[..], &["127.0.0.1:1"]].concat()).ended_with(1);
    assert!(stranger.stderr.contains("no member"), "{}", stranger.stderr);
}

/// What others had no room for is with a member that is cut off, or stopped, and may be nowhere else.
#[test]
fn a_member_that_is_gone_is_not_taken_for_empty() {
    let town = Town::new();
    let nodes = [1, 2].map(|id| Node::spawn(&mut town.member(id, &[])));
    town::await_members(&nodes[0], 2);
    let [first, second] = nodes.each_ref().map(Node::address);
    for number in 0..10 {
        let put = ["put", "--nodes", first, &format!("key-{number}")];
        run_with_input(&put, &vec![7; 1 << 20]).ended_with(0);
    }
    let retire = ["cluster", "retire", "--nodes", first, second];
    let retire = [&retire[..], &["--wait-ms", "60000"]].concat();
    let retiring = lunette(&retire).spawn().expect("it starts");
    let status = ["cluster", "status", "--json", "--nodes", first];
    await_that("it is to be emptied", || {
        let members = run(&status).ended_with(0).json()["members"].clone();
        members[1]["is_draining"] == true
    });
    send(&nodes[1].child, Signal::STOP);
    let retired = retiring.wait_with_output().expect("it ends");
    let retired = Finished::of(retired).ended_with(1);
    assert!(retired.stderr.contains("no more"), "{}", retired.stderr);
}

/// Reads, which are computed again where they are not found, do not wait until its lease is over.
#[test]
fn nobody_who_reads_waits_for_a_member_that_is_gone() {
    let town = Town::new();
    let nodes = [1, 2, 3].map(|id| {
        let mut member = town.patient_member(id, LONG_LEASE_S);
        // What its memory holds could be read after its death.
        Node::spawn(member.arg("--no-one-sided"))
    });
    town::await_members(&nodes[0], 3);
    let [_, killed, stopped] = nodes.each_ref().map(|node| node.child.id());
    let seed: SocketAddr = nodes[0].address().parse().expect("an address");
    with_client(&nodes[0], LONG_LEASE, move |client| async move {
        for number in 0..KEYS {
            assert!(town::put(&client, &key(number), 1000, 1).await);
        }
        let hasty = ClusterClient::connect(ClusterClientOptions {
            timeout: SHORT,
            ..ClusterClientOptions::new(vec![seed])
        });
        let hasty = hasty.await.expect("a member answers");
        assert_eq!(read_all(&hasty).await, KEYS);
        signal(killed, Signal::KILL, WaitIdOptions::EXITED);
        let got = read_all(&client).await;
        assert!(
            0 < got && got < KEYS,
            "{got} of {KEYS}, one of three are gone"
        );
        assert_eq!(exist(&client).await, got);
        signal(stopped, Signal::STOP, WaitIdOptions::STOPPED);
        // Who is silent is waited for, and no longer than a get may take.
        let took = wait_in_vain(&hasty).await;
        assert!(SHORT <= took && took < 5 * SHORT, "{took:?}");
        let begun = Instant::now();
        let left = read_all(&client).await;
        assert!(left < got, "{left} of {got}");
        // Each by itself would be waited for as long as a request may take.
        let took = begun.elapsed();
        assert!(took < CLIENT_TIMEOUT * 4, "{took:?}");
        assert_eq!(exist(&client).await, left);
        assert_eq!(client.map().members().len(), 3, "no lease was over before");
    });
}

const KEYS: usize = 60;
/// Long enough for all that is read by then, and too long to be waited for.
const LONG_LEASE_S: u32 = 60;
const LONG_LEASE: Duration = Duration::from_secs(60);
/// How long a client tries where nobody says.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Less than who is silent is waited for.
const SHORT: Duration = Duration::from_secs(1);

fn key(number: usize) -> String {
    format!("key-{number}")
}

/// Signals a child, and waits until it has come to that.
fn signal(process: u32, signal: Signal, until: WaitIdOptions) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = process.expect("a process");
    kill_process(process, signal).expect("it is ours");
    let reached = waitid(WaitId::Pid(process), until | WaitIdOptions::NOWAIT);
    reached.expect("it is a child");
}

/// How many there are.
async fn exist(client: &ClusterClient) -> usize {
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|number| key(number).into_bytes()).collect();
    let exist = client.exists(&keys).await.expect("all are answered");
    exist.into_iter().filter(|exists| *exists).count()
}

/// How many are got.
async fn read_all(client: &ClusterClient) -> usize {
    let mut got = 0;
    for number in 0..KEYS {
        match get(client, number).await.expect("it is answered") {
            Fetched::Hit { len_bytes, .. } => {
                assert_eq!(len_bytes, 1000);
                got += 1;
            }
            Fetched::Miss { is_known, .. } => assert!(!is_known, "it is there, for all one knows"),
        }
    }
    got
}

/// How long the first get takes that fails. It has its room back.
async fn wait_in_vain(client: &ClusterClient) -> Duration {
    let mut number = 0;
    loop {
        assert!(number < KEYS, "nobody who is silent was asked");
        let begun = Instant::now();
        if let Err(failure) = get(client, number).await {
            assert!(failure.room.is_some(), "{:?}", failure.error);
            return begun.elapsed();
        }
        number += 1;
    }
}

async fn get(client: &ClusterClient, number: usize) -> Result<Fetched, GetFailure> {
    let room = Room::whole(arena().alloc(1000).expect("room"));
    client.get(key(number).as_bytes(), room).await
}

#[test]
fn a_tenants_quota_is_set_shown_and_removed() {
    let town = Town::new();
    let nodes = [1, 2].map(|id| Node::spawn(&mut town.member(id, &[])));
    town::await_members(&nodes[0], 2);
    let all = nodes[0].address();
    let quota = ["cluster", "quota", "--nodes", all];
    let of_quota = |more: &[&str]| run(&[&quota[..], more].concat());
    assert_eq!(
        of_quota(&[]).ended_with(0).text(),
        "no tenant has a quota\n"
    );
    let set = of_quota(&["--tenant", "a", "--memory", "1MiB", "--json"]);
    let expected = serde_json::json!({ "tenant": "a", "quota_bytes": 1 << 20 });
    assert_eq!(set.ended_with(0).json(), expected);
    let shown = || of_quota(&["--json"]).ended_with(0).json()["quotas"].clone();
    await_that("all members know it", || {
        shown()[0]["quota_bytes"] == 1 << 20
    });
    for number in 0..40 {
        let key = format!("key-{number}");
        let put = ["put", "--nodes", all, "--tenant", "a", &key];
        run_with_input(&put, &[7; 100_000]).ended_with(0);
    }
    let used = |quotas: &Value| quotas[0]["used_bytes"].as_u64().expect("a number");
    let quotas = shown();
    assert!((100_000..=1 << 20).contains(&used(&quotas)), "{quotas}");
    let text = of_quota(&[]).ended_with(0);
    assert!(text.text().contains("1MiB"), "{}", text.text());
    let first = ["get", "--nodes", all, "--tenant", "a", "key-0"];
    run(&first).ended_with(3);

    for (wrong, said) in [
        (&["--tenant", "a"][..], "--memory"),
        (&["--tenant", "a", "--memory", "0"], "above zero"),
        (&["--memory", "1MiB"], "--tenant"),
        (&["--tenant", "a", "--memory", "1MiB", "--none"], "--none"),
    ] {
        let refused = of_quota(wrong).ended_with(2);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    let none = of_quota(&["--tenant", "a", "--none"]).ended_with(0);
    assert_eq!(none.text(), "tenant a may have whatever others leave it\n");
    await_that("none is known", || shown() == serde_json::json!([]));
}

#[test]
fn a_cluster_needs_somewhere_to_be_coordinated() {
    let arguments = ["serve", "--memory", "8MiB", "--cluster", "test"];
    let output = lunette(&arguments).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let somewhere = ["--coordinators", "127.0.0.1:1", "--rack", "a row"];
    let output = lunette(&[&arguments[..], &somewhere].concat()).output();
    assert_eq!(output.expect("it starts").status.code(), Some(2));
    let status = lunette(&["cluster", "status", "--nodes", "127.0.0.1:1"]).output();
    assert_eq!(status.expect("it starts").status.code(), Some(4));
    let node = Node::start("8MiB", &[]);
    let status = lunette(&["cluster", "status", "--nodes", node.address()]).output();
    let status = status.expect("it starts");
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    let why = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(why.contains("no member of a cluster"), "{why}");
}
