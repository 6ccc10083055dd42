//! `lunette p2p`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunette::runtime::{CoreOptions, StartError, block_on};
use lunette_cluster::proto::coordination::{Ask, LeaseId};
use lunette_cluster::{Client, ClientOptions};
use lunette_p2p::proto::catalogue::{Catalogue, ObjectRecord};
use lunette_p2p::{Shape, Version};
use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Finished, Node, await_that, finish, lunette, run, send};

/// A coordinator, and a folder for files.
struct Place {
    coordinator: Node,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let arguments = [
            "cluster",
            "coordinator",
            "--json",
            "--listen",
            "127.0.0.1:0",
        ];
        Self {
            coordinator: Node::spawn(&mut lunette(&arguments)),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn arguments<'a>(&'a self, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let at = self.coordinator.address();
        let always = ["p2p", command, "--json", "--coordinators", at];
        [&always, more].concat()
    }

    fn run(&self, command: &str, more: &[&str]) -> Finished {
        run(&self.arguments(command, more))
    }

    fn start(&self, command: &str, more: &[&str]) -> Node {
        let short_lease = [more, &["--lease-ttl", "1"]].concat();
        Node::spawn(&mut lunette(&self.arguments(command, &short_lease)))
    }

    /// Two files that are served as `name`.
    fn serve(&self, name: &str) -> Node {
        let (one, two) = (self.path("one"), self.path("two"));
        fs::write(&one, pattern(300_000)).expect("written");
        fs::write(&two, b"short").expect("written");
        self.start("serve", &[name, text(&one), text(&two), "--chunk", "16KiB"])
    }

    fn is_copied(&self, one: &Path, two: &Path) -> bool {
        let is_same = |copy: &Path, of: &str| {
            fs::read(copy).expect("a copy") == fs::read(self.path(of)).expect("a file")
        };
        is_same(one, "one") && is_same(two, "two")
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn files_are_served_listed_received_and_gone_on_with() {
    let place = Place::new();
    let mut server = place.serve("model/a");
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
    assert!(place.is_copied(&one, &two));
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
    let server = place.serve("o");
    let (one, two) = (place.path("copy-1"), place.path("copy-2"));
    let receiver = place.start("get", &["o", text(&one), text(&two), "--serve"]);
    assert_eq!(receiver.ready["done"], true);
    assert!(place.is_copied(&one, &two));
    send(&server.child, Signal::KILL);
    await_that("the survivor alone holds it", || {
        let listed = place.run("ls", &[]).ended_with(0).json();
        let object = &listed["objects"][0];
        (&object["whole"], &object["holders"]) == (&1.into(), &1.into())
    });
    let (three, four) = (place.path("copy-3"), place.path("copy-4"));
    place
        .run("get", &["o", text(&three), text(&four)])
        .ended_with(0);
    assert!(place.is_copied(&three, &four));
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
    let _server = place.serve("o");
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

/// What a safetensors file says of a tensor, and its bytes.
fn tensor_of(file: &[u8], name: &str) -> (Value, Vec<u8>) {
    let (len, rest) = file.split_first_chunk::<8>().expect("a length");
    let len = usize::try_from(u64::from_le_bytes(*len)).expect("small");
    let header: Value = serde_json::from_slice(&rest[..len]).expect("a header");
    let offset = |at: usize| {
        header[name]["data_offsets"][at]
            .as_u64()
            .expect("an offset")
    };
    let at = |at: usize| len + usize::try_from(offset(at)).expect("small");
    (header[name]["shape"].clone(), rest[at(0)..at(1)].to_vec())
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

/// Writes into the catalogue that there is an object which no machine has the memory for.
fn claim_what_is_huge(coordinator: SocketAddr) {
    let shape = Shape::new(1 << 30, vec![4096 << 30]).expect("a shape");
    let sums = vec![0; shape.chunks() as usize];
    let version = Version(1);
    let record = ObjectRecord {
        version,
        shape,
        layout: None,
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
        let claim = catalogue.claim(&name, &record, &sums, lease, false);
        client.ask(&Ask::Txn(claim), ask_max).await
    });
    wrote.expect("a core").expect("written");
}

#[test]
fn a_receiver_without_memory_says_so_and_others_go_on() {
    let place = Place::new();
    let _server = place.serve("o");
    let at = place.coordinator.address();
    claim_what_is_huge(at.parse().expect("an address"));
    let copy = place.path("huge");
    let get = lunette(&place.arguments("get", &["huge", text(&copy)]));
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
    assert!(place.is_copied(&one, &two));
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
