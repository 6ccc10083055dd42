//! `lunette p2p`.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lunette::runtime::{CoreOptions, StartError, block_on};
use lunette_cluster::proto::coordination::{Ask, LeaseId};
use lunette_cluster::{Client, ClientOptions};
use lunette_p2p::proto::PeerId;
use lunette_p2p::proto::catalogue::{Catalogue, LayoutPlace, ObjectRecord};
use lunette_p2p::proto::layout::encode_groups;
use lunette_p2p::{Dtype, Layout, Shape, Tensor, Version};
use rustix::process::Signal;
use serde_json::Value;

use crate::place::{Place, tensor_of, text};
use crate::process::{Node, await_that, finish, lunette, run, send};

/// Two files that are served as `name`.
fn serve(place: &Place, name: &str) -> Node {
    let (one, two) = (place.path("one"), place.path("two"));
    fs::write(&one, pattern(300_000)).expect("written");
    fs::write(&two, b"short").expect("written");
    place.start("serve", &[name, text(&one), text(&two), "--chunk", "16KiB"])
}

fn is_copied(place: &Place, one: &Path, two: &Path) -> bool {
    let is_same = |copy: &Path, of: &str| {
        fs::read(copy).expect("a copy") == fs::read(place.path(of)).expect("a file")
    };
    is_same(one, "one") && is_same(two, "two")
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn files_are_served_listed_received_and_gone_on_with() {
    let place = Place::new();
    let mut server = serve(&place, "model/a");
    assert_eq!(server.ready["bytes"], 300_005);
    assert_eq!(server.ready["chunks"], 20);
    let listed = place.run("ls", &["model/"]).ended_with(0).json();
    let object = &listed["objects"][0];
    assert_eq!(object["name"], "model/a");
    assert_eq!(
        (&object["whole"], &object["holders"]),
        (&1.into(), &1.into())
    );
    let (one, two) = (place.path("copy-1"), place.path("copy-2"));
    // The first chunk is there already, and the rest of what is there is not the object's.
    let mut part = pattern(16 << 10);
    part.extend(vec![0; 100_000]);
    fs::write(&one, part).expect("written");
    let files = ["model/a", text(&one), text(&two)];
    let got = place.run("get", &files).ended_with(0).json();
    assert_eq!(
        (&got["bytes"], &got["resumed_bytes"]),
        (&300_005.into(), &(16 << 10).into())
    );
    assert!(is_copied(&place, &one, &two));
    let again = place.run("get", &files).ended_with(0).json();
    assert_eq!(again["resumed_bytes"], 300_005, "nothing is fetched");
    send(&server.child, Signal::TERM);
    assert_eq!(server.wait().0, Some(0));
    let listed = place.run("ls", &[]).ended_with(0).json();
    assert_eq!(
        listed["objects"],
        Value::Array(Vec::new()),
        "it is gone with its last holder"
    );
}

#[test]
fn who_received_serves_on_when_the_origin_is_killed() {
    let place = Place::new();
    let server = serve(&place, "o");
    let (one, two) = (place.path("copy-1"), place.path("copy-2"));
    let receiver = place.start("get", &["o", text(&one), text(&two), "--serve"]);
    assert_eq!(receiver.ready["done"], true);
    assert!(is_copied(&place, &one, &two));
    send(&server.child, Signal::KILL);
    await_that("the survivor alone holds it", || {
        let listed = place.run("ls", &[]).ended_with(0).json();
        let object = &listed["objects"][0];
        (&object["whole"], &object["holders"]) == (&1.into(), &1.into())
    });
    let (three, four) = (place.path("copy-3"), place.path("copy-4"));
    // Its holders are read after its name, which may have been the origin's then.
    await_that("the survivor has written its name", || {
        let get = ["o", text(&three), text(&four)];
        place.run("get", &get).code == Some(0)
    });
    assert!(is_copied(&place, &three, &four));
}

#[test]
fn what_cannot_be_had_is_told_by_its_code() {
    let place = Place::new();
    let copy = place.path("copy");
    let missing = place
        .run("get", &["none", text(&copy)])
        .ended_with(3)
        .json();
    assert_eq!(missing["exit_code"], 3);
    assert!(!copy.exists(), "nothing was written");
    let _server = serve(&place, "o");
    place.run("get", &["o", text(&copy)]).ended_with(2);
    let one = place.path("one");
    let taken = place.run("serve", &["o", text(&one)]).ended_with(1).json();
    assert!(
        taken["error"]
            .as_str()
            .is_some_and(|error| error.contains("taken")),
        "{taken}"
    );
    place.run("get", &["no name", text(&copy)]).ended_with(2);
    run(&["p2p", "ls", "--coordinators", "127.0.0.1:1"]).ended_with(4);
    run(&["p2p", "ls"]).ended_with(2);
}

/// A safetensors file of a matrix of 64 x 48 two-byte elements, each its own number, and a vector.
fn safetensors() -> Vec<u8> {
    let header = r#"{"layers.0.o_proj.weight":{"dtype":"I16","shape":[64,48],"data_offsets":[0,6144]},
        "norm":{"dtype":"F32","shape":[5],"data_offsets":[6144,6164]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..64 * 48_u16).flat_map(u16::to_le_bytes));
    file.extend([7; 20]);
    file
}

#[test]
fn ranks_receive_their_parts_of_the_tensors() {
    let place = Place::new();
    let model = place.path("model.safetensors");
    fs::write(&model, safetensors()).expect("written");
    let server = place.start("serve", &["m", text(&model), "--chunk", "4KiB"]);
    assert_eq!(server.ready["tensors"], 2);
    let listed = place.run("ls", &["m"]).ended_with(0).json();
    assert_eq!(listed["tensors"][0]["name"], "layers.0.o_proj.weight");
    assert_eq!(listed["tensors"][1]["shape"], serde_json::json!([5]));
    let rank = place.path("rank.safetensors");
    let get = [
        "m",
        text(&rank),
        "--shard",
        "1/4",
        "--split",
        "*.o_proj.*=1",
    ];
    for more in [&[][..], &["--lean"]] {
        place.run("get", &[&get, more].concat()).ended_with(0);
        let file = fs::read(&rank).expect("written");
        let (shape, bytes) = tensor_of(&file, "layers.0.o_proj.weight");
        assert_eq!(shape, serde_json::json!([64, 12]));
        let columns = (0..64_u16).flat_map(|row| (12..24).map(move |column| row * 48 + column));
        assert!(bytes == columns.flat_map(u16::to_le_bytes).collect::<Vec<_>>());
        assert_eq!(
            tensor_of(&file, "norm").1,
            [7; 20],
            "what is not split is whole"
        );
    }
    // What is in whole chunks of the half is there already.
    let half = ["m", text(&rank), "--shard", "0/2"];
    place.run("get", &half).ended_with(0);
    let again = place.run("get", &half).ended_with(0).json();
    assert_eq!(again["resumed_bytes"], 0, "there are none");
    let whole = ["m", text(&rank), "--tensor", "*"];
    place.run("get", &whole).ended_with(0);
    let again = place.run("get", &whole).ended_with(0).json();
    assert_eq!(again["resumed_bytes"], safetensors().len() - 4096);
    let norm = ["m", text(&rank), "--tensor", "n*"];
    let got = place.run("get", &norm).ended_with(0).json();
    let last_chunk = safetensors().len() - 4096;
    assert_eq!(got["bytes"], last_chunk, "which has the vector");
    place
        .run("get", &["m", text(&rank), "--tensor", "none"])
        .ended_with(3);
    place
        .run("get", &["m", text(&rank), "x", "--shard", "0/2"])
        .ended_with(2);
    place
        .run("get", &["m", text(&rank), "--shard", "2/2"])
        .ended_with(2);
    // A file whose name says what it is not is not served by mistake.
    fs::write(&model, b"none").expect("written");
    let refused = place
        .run("serve", &["n", text(&model)])
        .ended_with(1)
        .json();
    let error = refused["error"].as_str().expect("an error");
    assert!(error.contains("--bytes"), "{error}");
    let plain = place.start("serve", &["n", text(&model), "--bytes"]);
    assert_eq!(plain.ready["tensors"], 0);
}

/// The most memory that a process has had, in bytes.
fn resident_bytes_max(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.child.id()));
    let status = status.expect("it runs");
    let told = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = told.and_then(|told| told.trim().strip_suffix("kB"));
    let kib: u64 = kib.and_then(|kib| kib.trim().parse().ok()).expect("KiB");
    kib << 10
}

#[test]
fn files_are_served_without_a_copy_in_memory_and_no_more_once_they_change() {
    let place = Place::new();
    let (file, copy) = (place.path("file"), place.path("copy"));
    let bytes = pattern(251).repeat(800_000);
    fs::write(&file, &bytes).expect("written");
    let mut server = place.start("serve", &["o", text(&file), "--chunk", "1MiB"]);
    let receiver = place.start("get", &["o", text(&copy), "--serve"]);
    assert!(fs::read(&copy).expect("written") == bytes);
    for node in [&server, &receiver] {
        let resident_bytes = resident_bytes_max(node);
        assert!(resident_bytes < bytes.len() as u64 / 2, "{resident_bytes}");
    }
    let mut changed = fs::OpenOptions::new().write(true).open(&file);
    let changed = changed.as_mut().expect("opened");
    changed.write_all(b"other bytes").expect("written");
    // It ends by itself, and says why; who has it serves it on.
    assert_eq!(server.wait().0, Some(1));
    let other = place.path("other");
    await_that("the survivor is found", || {
        let get = ["o", text(&other), "--timeout", "60"];
        place.run("get", &get).code == Some(0)
    });
    assert!(fs::read(&other).expect("written") == bytes);
    // From memory, whatever becomes of the file.
    let again = place.start("serve", &["o", text(&file), "--memory", "--replace"]);
    fs::write(&file, b"short").expect("written");
    let third = place.path("third");
    place.run("get", &["o", text(&third)]).ended_with(0);
    let third = fs::read(&third).expect("written");
    assert!(third.starts_with(b"other bytes") && third[11..] == bytes[11..]);
    drop(again);
    // Who has received it looks after its file too.
    let mut receiver = receiver;
    fs::write(&copy, b"short").expect("written");
    assert_eq!(receiver.wait().0, Some(1));
}

/// Writes into the catalogue that there is an object which no machine has the memory for.
fn claim_what_is_huge(coordinator: SocketAddr) {
    let shape = Shape::new(1 << 30, vec![4096 << 30]).expect("a shape");
    let sums = vec![0; shape.chunks() as usize];
    let version = Version(1);
    let tensor = Tensor::whole("all".into(), Dtype::U8, vec![4096 << 30], 0, 0);
    let layout = Layout::new(vec![tensor], &shape).expect("a layout");
    let groups = encode_groups(&layout).expect("short");
    let writer = PeerId(1);
    let record = ObjectRecord {
        version,
        shape,
        layout: Some(LayoutPlace { writer, groups: 1 }),
    };
    let wrote: Result<_, StartError> = block_on(None, CoreOptions::default(), move || async move {
        let ask_max = Duration::from_secs(10);
        let client = Client::new(ClientOptions {
            endpoints: vec![coordinator],
            security: None,
            silence_max: ask_max,
        });
        let lease = LeaseId::new(1);
        let granted = client.ask(&Ask::Grant { lease, ttl_s: 60 }, ask_max).await;
        granted.expect("a lease");
        let catalogue = Catalogue::new("lunette").expect("a prefix");
        let name = "huge".parse().expect("a name");
        for txn in catalogue.put_layout(version, writer, &groups, lease) {
            client.ask(&Ask::Txn(txn), ask_max).await.expect("written");
        }
        let claim = catalogue.claim(&name, &record, &sums, lease, false);
        client.ask(&Ask::Txn(claim), ask_max).await
    });
    wrote.expect("a core").expect("written");
}

#[test]
fn a_receiver_without_memory_or_room_says_so_and_others_go_on() {
    let place = Place::new();
    let _server = serve(&place, "o");
    let at = place.coordinator.address();
    claim_what_is_huge(at.parse().expect("an address"));
    let copy = place.path("huge");
    for parts in [&[][..], &["--tensor", "*"], &["--tensor", "*", "--lean"]] {
        let get = [&["huge", text(&copy)], parts].concat();
        let full = place.run("get", &get).ended_with(1).json();
        let error = full["error"].as_str().expect("an error");
        assert!(error.contains("no room"), "{error}");
        assert!(!copy.exists(), "nothing was written");
    }
    // A short part of it comes into a file, and the chunks that are kept for others into memory.
    let part = ["huge", text(&copy), "--shard", "0/4294967296"];
    let get = lunette(&place.arguments("get", &part));
    // Whatever the system would promise it is not let have more than 64 GiB of addresses.
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -v 67108864 && exec \"$@\"", "sh"])
        .arg(get.get_program())
        .args(get.get_args());
    let refused = finish(&mut limited).ended_with(1).json();
    assert!(
        refused["error"]
            .as_str()
            .is_some_and(|error| error.contains("no memory")),
        "{refused}"
    );
    assert!(!copy.exists(), "nothing was written");
    let (one, two) = (place.path("copy-1"), place.path("copy-2"));
    place
        .run("get", &["o", text(&one), text(&two)])
        .ended_with(0);
    assert!(is_copied(&place, &one, &two));
}

#[test]
fn swarms_are_simulated() {
    let arguments = [
        "p2p",
        "simulate",
        "--receivers",
        "4",
        "--object",
        "512MiB",
        "--json",
    ];
    let simulated = run(&arguments).ended_with(0);
    let rows: Vec<Value> = simulated
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    assert_eq!(rows.len(), 3 + 7);
    let ratio = |row: &Value, of: &str| row[of]["ratio"].as_f64().expect("a number");
    assert!(
        ratio(&rows[2], "swarm") < 1.3 && ratio(&rows[2], "mooncake") > 3.0,
        "{}",
        rows[2]
    );
    let table = run(&[
        "p2p",
        "simulate",
        "--receivers",
        "1",
        "--object",
        "64MiB",
        "--no-mooncake",
    ]);
    assert!(table.ended_with(0).text().contains("1 on equal lines"));
    run(&["p2p", "simulate", "--chunk", "4KiB"]).ended_with(2);
}
