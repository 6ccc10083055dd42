//! `lunette transfer`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Node, lunette, run, run_with_input, send};

const SECRET: &str = "0123456789abcdef0123456789abcdef\n";

fn serve(listen: &str) -> Command {
    lunette(&[
        "transfer",
        "serve",
        "--json",
        "--listen",
        listen,
        "--memory",
        "4MiB",
        "--idle",
        "efficient",
    ])
}

fn bench(server: &Node, more: &[&str]) -> Command {
    let address = server.ready["addresses"][0].as_str().expect("an address");
    let always = ["transfer", "bench", address, "--seconds", "1", "--json"];
    lunette(&[&always, more].concat())
}

#[test]
fn adapters_that_are_not_there_are_told_and_done_without() {
    let mut server = Node::spawn(serve("127.0.0.1:0").args(["--rdma", "none0,none1"]));
    let adapters = server.ready["adapters"].as_array().expect("a list").clone();
    assert_eq!(adapters.len(), 2, "{adapters:?}");
    for (adapter, name) in adapters.iter().zip(["none0", "none1"]) {
        assert_eq!(adapter["name"], name);
        assert!(adapter["unused"].is_string(), "why: {adapter}");
    }
    let more = ["--size", "1MiB", "--network", "--rdma", "all"];
    let output = bench(&server, &more).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let measured: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(measured["requests"].as_u64() > Some(0), "{measured}");
    send(&server.child, Signal::TERM);
    server.child.wait().expect("it ends");
    let wrong = serve("127.0.0.1:0")
        .args(["--rdma", "all", "--cores", "2"])
        .output();
    assert_eq!(wrong.expect("it starts").status.code(), Some(2));
}

#[test]
fn a_segment_is_served_measured_and_accounted_for() {
    let mut server = Node::spawn(&mut serve("127.0.0.1:0"));
    assert_eq!(server.ready["bytes"], 4 << 20);
    for (is_sent, more) in [
        (true, &["--size", "4KiB", "--batch", "100", "--network"][..]),
        (
            true,
            &["--size", "1MiB", "--depth", "4", "--write", "--network"],
        ),
        (false, &["--size", "4KiB", "--batch", "100"]),
        (false, &["--size", "1MiB", "--depth", "4", "--write"]),
    ] {
        let output = bench(&server, more).output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let measured: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert!(measured["requests"].as_u64() > Some(0), "{measured}");
        assert_eq!(measured["slices_resent"], 0);
        let is_copied = measured["same_host_bytes"].as_u64() > Some(0);
        assert_eq!(is_copied, !is_sent, "{measured}");
        assert_eq!(measured["rails"][0]["up"], true);
    }
    let too_long = bench(&server, &["--size", "8MiB"])
        .output()
        .expect("it starts");
    assert_eq!(too_long.status.code(), Some(2), "{too_long:?}");
    let elsewhere = bench(&server, &["--segment", "other"])
        .output()
        .expect("it starts");
    assert_eq!(elsewhere.status.code(), Some(1), "{elsewhere:?}");
    send(&server.child, Signal::INT);
    let (code, said) = server.wait();
    assert_eq!(code, Some(0));
    let done: Value = serde_json::from_str(said.trim()).expect("one object");
    assert!(done["served_read_bytes"].as_u64() > Some(0), "{done}");
    assert!(done["served_written_bytes"].as_u64() > Some(0), "{done}");
}

#[test]
fn several_cores_serve_and_ask() {
    let mut server = Node::spawn(serve("127.0.0.1:0").args(["--cores", "2"]));
    assert_eq!(server.ready["cores"], 2);
    let mut ports = Vec::new();
    for (cores, more) in [
        ("2", &["--size", "4MiB", "--write", "--network"][..]),
        (
            "2",
            &[
                "--size",
                "4KiB",
                "--batch",
                "50",
                "--depth",
                "4",
                "--network",
            ],
        ),
        ("1", &["--size", "1MiB", "--network"]),
        ("2", &["--size", "4MiB"]),
    ] {
        let output = bench(&server, &[&["--cores", cores], more].concat()).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let measured: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert!(measured["requests"].as_u64() > Some(0), "{measured}");
        let rails = measured["rails"].as_array().expect("a list");
        assert_eq!(rails.len().to_string(), cores);
        ports.extend(rails.iter().map(|rail| rail["address"].to_string()));
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 2, "a port of each core: {ports:?}");
    send(&server.child, Signal::INT);
    let (code, said) = server.wait();
    assert_eq!(code, Some(0));
    let done: Value = serde_json::from_str(said.trim()).expect("one object");
    assert!(done["served_read_bytes"].as_u64() > Some(0), "{done}");
    assert!(done["served_written_bytes"].as_u64() > Some(0), "{done}");
}

/// Reads and writes what a server serves; the bytes are not copied on this host.
fn reads_and_writes(server: &Node) {
    for more in [&["--size", "64KiB", "--batch", "16"][..], &["--write"]] {
        let output = bench(server, more).output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let measured: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert!(measured["requests"].as_u64() > Some(0), "{measured}");
        assert_eq!(measured["same_host_bytes"], 0, "over the connection");
    }
}

#[test]
fn a_namespace_is_served_to_peers() {
    let disk = Node::spawn(&mut lunette(&[
        "nvme",
        "serve",
        "--json",
        "--memory",
        "4MiB",
        "--listen",
        "127.0.0.1:0",
    ]));
    let address = disk.ready["addresses"][0].as_str().expect("an address");
    run_with_input(&["nvme", "write", address], &vec![1; 4 << 20]).ended_with(0);
    let serve = |more: &[&str]| {
        let always = ["transfer", "serve", "--json", "--listen", "127.0.0.1:0"];
        lunette(&[&always, more].concat())
    };
    for cores in ["1", "2"] {
        let more = ["--namespace", address, "--cores", cores];
        let server = Node::spawn(&mut serve(&more));
        assert_eq!(server.ready["bytes"], 4 << 20);
        reads_and_writes(&server);
    }
    let length = ["--length", "4194304"];
    let found = run(&[&["nvme", "read", address][..], &length].concat()).ended_with(0);
    assert!(found.stdout.contains(&0), "it was written");
    let missing = serve(&["--namespace", address, "--nsid", "9"]).output();
    let missing = missing.expect("it starts");
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    let both = serve(&["--namespace", address, "--memory", "1MiB"]).output();
    assert_eq!(both.expect("it starts").status.code(), Some(2));
}

#[test]
fn a_file_is_served_to_peers() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("segment");
    fs::write(&path, vec![1; 2 << 20]).expect("written");
    let path = path.to_str().expect("a path of characters");
    let serve = |more: &[&str]| {
        let always = [
            "transfer",
            "serve",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--file",
            path,
        ];
        lunette(&[&always, more].concat())
    };
    for direct in [&[][..], &["--direct"], &["--cores", "2"]] {
        let server = Node::spawn(&mut serve(direct));
        assert_eq!(server.ready["bytes"], 2 << 20);
        reads_and_writes(&server);
    }
    assert!(fs::read(path).expect("read").contains(&0), "it was written");
    let missing = lunette(&[
        "transfer",
        "serve",
        "--file",
        "/no/such/file",
        "--read-only",
    ]);
    let output = { missing }.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let neither = lunette(&["transfer", "serve"]).output().expect("it starts");
    assert_eq!(neither.status.code(), Some(2), "{neither:?}");
}

#[test]
fn other_hosts_need_the_secret() {
    let refused = serve("0.0.0.0:0").output().expect("it starts");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    fs::write(&file, SECRET).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
    let server = Node::spawn(serve("0.0.0.0:0").env("LUNETTE_SECRET_FILE", &file));
    let port = server.ready["addresses"][0].as_str().expect("an address");
    let port = port.rsplit(':').next().expect("a port");
    let address = format!("127.0.0.1:{port}");
    let bench = || lunette(&["transfer", "bench", &address, "--seconds", "1"]);
    let stranger = bench().output().expect("it starts");
    assert_eq!(stranger.status.code(), Some(4), "{stranger:?}");
    for encrypt in [false, true] {
        let mut member = bench();
        if encrypt {
            member.args(["--network", "--encrypt"]);
        }
        let member = member.env("LUNETTE_SECRET_FILE", &file).output();
        let member = member.expect("it starts");
        assert!(member.status.success(), "{member:?}");
    }
    let without = bench().arg("--encrypt").output().expect("it starts");
    assert_eq!(without.status.code(), Some(2), "{without:?}");
}
