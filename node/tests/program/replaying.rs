//! `lunette replay`.

use std::env;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;

use lunette::trace::Request;
use lunette::trace::format::TraceReader;
use lunette::trace::generator::{Generator, REQUESTS_DEFAULT};
use lunette::trace::reference::{HitCount, Lru};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::process::{Mark, Node, await_that, lunette, run, run_with_input, send, wait, was_told};

/// How far a cluster's hit ratio may be below that of one LRU list over all blocks: its nodes evict each for itself, and a few
/// blocks ahead.
const RATIO_TOLERANCE: f64 = 0.005;

fn reference(requests: &[Request], blocks_max: usize) -> HitCount {
    let (mut lru, mut count) = (Lru::new(blocks_max), HitCount::default());
    for request in requests {
        lru.serve(request, &mut count);
    }
    count
}

#[track_caller]
fn assert_no_less_than(report: &Value, reference: &HitCount) {
    assert_eq!(report["requests"], reference.requests);
    let hit = report["blocks_hit"].as_u64().expect("a number");
    let missed = report["blocks_missed"].as_u64().expect("a number");
    assert_eq!(hit + missed, reference.blocks);
    assert_eq!(report["verify_errors"], 0);
    assert_eq!(report["puts_refused"], 0);
    let ratios = [
        ("block_hit_ratio", reference.block_ratio()),
        ("prefix_hit_ratio", reference.prefix_ratio()),
        ("token_hit_ratio", reference.token_ratio()),
    ];
    for (name, expected) in ratios {
        let ratio = report[name].as_f64().expect("a number");
        assert!(
            ratio > expected - RATIO_TOLERANCE,
            "{name} {ratio}, of one list {expected}"
        );
    }
}

#[test]
fn two_nodes_hit_no_less_than_one_list() {
    let report = run(&[
        "replay",
        "--requests",
        "1500",
        "--seed",
        "7",
        "--capacity-blocks",
        "4000",
        "--block-bytes",
        "512",
        "--nodes",
        "2",
        "--json",
    ]);
    let report = report.ended_with(0);
    assert!(
        report.stderr.contains("generated workload"),
        "{}",
        report.stderr
    );
    let requests: Vec<Request> = Generator::new(7).take(1500).collect();
    let object = report.json();
    assert_no_less_than(&object, &reference(&requests, 4000));
    let number = |name: &str| object[name].as_f64().unwrap_or_else(|| panic!("no {name}"));
    assert!(number("evictions") > 0.0);
    assert!(number("bytes_read") > 0.0 && number("bytes_written") > 0.0);
    assert!(number("seconds") > 0.0);
    assert!(number("seconds") < number("wall_seconds"));
    for step in ["lookup", "get", "put"] {
        let at = |name: &str| number(&format!("{step}_us_{name}"));
        assert!(at("p50") > 1.0, "{step}");
        assert!(at("p50") <= at("p99") && at("p99") <= at("p999"), "{step}");
    }
}

/// The conversation trace where it is at hand (`LUNETTE_TRACE_DIR` names its folder), else the
/// generated one, whole.
#[test]
fn a_whole_trace_hits_no_less_than_one_list_at_each_capacity() {
    let folder = env::var_os("LUNETTE_TRACE_DIR").map(PathBuf::from);
    let path = folder.map(|folder| folder.join("conversation_trace.jsonl"));
    let path = path.filter(|path| path.exists());
    let requests: Vec<Request> = match &path {
        Some(path) => TraceReader::new(BufReader::new(File::open(path).expect("it opens")))
            .collect::<Result<_, _>>()
            .expect("a good trace"),
        None => Generator::new(1)
            .take(usize::try_from(REQUESTS_DEFAULT).expect("few"))
            .collect(),
    };
    for capacity_blocks in [10_000, 30_000, 300_000] {
        let capacity = capacity_blocks.to_string();
        let mut command = lunette(&["replay", "--json", "--block-bytes", "512"]);
        command.args(["--capacity-blocks", &capacity]);
        if let Some(path) = &path {
            command.arg("--trace").arg(path);
        }
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let report = serde_json::from_slice(&output.stdout).expect("an object");
        assert_no_less_than(&report, &reference(&requests, capacity_blocks));
    }
}

#[test]
fn blocks_of_any_size_come_back_right_and_people_get_a_table() {
    for block_bytes in ["1", "4097", "1MiB"] {
        let report = run(&[
            "replay",
            "--requests",
            "20",
            "--capacity-blocks",
            "600",
            "--nodes",
            "1",
            "--block-bytes",
            block_bytes,
        ]);
        let report = report.ended_with(0);
        let text = report.text();
        assert!(text.contains("verify errors     0"), "{text}");
        assert!(text.contains("requests          20"), "{text}");
    }
}

#[test]
fn a_bad_line_is_named_and_no_node_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}"#;
    let bad = r#"{"timestamp": 0, "input_length": 600, "output_length": 1}"#;
    fs::write(&path, format!("{good}\n{good}\n{bad}\n{good}\n")).expect("it is written");
    let mark = Mark::new();
    let mut command = lunette(&["replay", "--json", "--block-bytes", "512", "--trace"]);
    mark.put_on(command.arg(&path));
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let error = object["error"].as_str().expect("a message");
    assert!(
        error.contains("trace.jsonl: line 3: no field `hash_ids`"),
        "{error}"
    );
    assert_eq!(mark.carriers(), []);
    run(&["replay", "--trace", "no-such-file"]).ended_with(1);
}

/// A replay that takes long enough to be ended, with the nodes it has started.
fn long_replay(mark: &Mark) -> std::process::Child {
    let mut command = lunette(&["replay", "--nodes", "2", "--capacity-blocks", "500"]);
    mark.put_on(&mut command);
    let child = command.spawn().expect("it starts");
    await_that("it has started its nodes", || mark.carriers().len() == 3);
    child
}

#[test]
fn an_interrupted_replay_leaves_no_node() {
    for signal in [Signal::INT, Signal::TERM] {
        let mark = Mark::new();
        let mut child = long_replay(&mark);
        send(&child, signal);
        assert_eq!(wait(&mut child), Some(1));
        assert_eq!(mark.carriers(), []);
    }
}

#[test]
fn the_nodes_of_a_killed_replay_end_by_themselves() {
    let mark = Mark::new();
    let mut child = long_replay(&mark);
    child.kill().expect("it runs");
    wait(&mut child);
    await_that("the nodes have ended", || mark.carriers().is_empty());
}

#[test]
fn a_replay_whose_node_dies_fails_and_leaves_no_other() {
    let mark = Mark::new();
    let mut child = long_replay(&mark);
    let node = mark
        .carriers()
        .into_iter()
        .find(|&pid| was_told(pid, "serve"));
    kill_process(node.expect("it has nodes"), Signal::KILL).expect("it runs");
    let code = wait(&mut child);
    // Killed before it served, or while it did.
    assert!(code == Some(1) || code == Some(4), "{code:?}");
    assert_eq!(mark.carriers(), []);
}

#[test]
fn a_node_that_is_terminated_under_load_ends_well_and_its_clients_are_told() {
    let mut node = Node::start("8MiB", &[]);
    let connect = [
        "replay",
        "--block-bytes",
        "512",
        "--connect",
        node.address(),
    ];
    let mut replay = lunette(&connect).spawn().expect("it starts");
    let stat = ["stat", "--json", "--nodes", node.address()];
    await_that("it replays", || {
        run(&stat).json()["nodes"][0]["puts"].as_u64() > Some(0)
    });
    send(&node.child, Signal::TERM);
    let (code, rest) = node.wait();
    assert_eq!(code, Some(0));
    let last: Value = serde_json::from_str(&rest).expect("its statistics");
    assert!(last["puts"].as_u64() > Some(0));
    assert_eq!(wait(&mut replay), Some(4));
}

#[test]
fn a_request_may_be_empty_or_name_a_block_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    let empty = r#"{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}"#;
    let twice = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [5, 5]}"#;
    fs::write(&path, format!("{empty}\n{twice}\n{twice}\n")).expect("it is written");
    let name = path.to_str().expect("text");
    let report = run(&["replay", "--json", "--block-bytes", "512", "--trace", name]).ended_with(0);
    let object = report.json();
    assert_eq!(object["requests"], 3);
    assert_eq!(
        (&object["blocks_hit"], &object["blocks_missed"]),
        (&2.into(), &2.into())
    );
    assert_eq!(
        (&object["bytes_written"], &object["bytes_read"]),
        (&512.into(), &1024.into())
    );
    assert_eq!(object["verify_errors"], 0);
}

#[test]
fn a_running_cluster_is_used_and_stays() {
    let nodes = [Node::start("8MiB", &[]), Node::start("8MiB", &[])];
    let list = format!("{},{}", nodes[0].address(), nodes[1].address());
    let replay = [
        "replay",
        "--requests",
        "100",
        "--block-bytes",
        "512",
        "--json",
        "--connect",
    ];
    let replay = [&replay[..], &[&list]].concat();
    let cold = run(&replay).ended_with(0).json();
    assert_eq!(cold["nodes"], 2);
    assert!(cold["blocks_missed"].as_u64() > Some(0));
    let warm = run(&replay).ended_with(0).json();
    assert_eq!(warm["blocks_missed"], 0);
    assert_eq!(warm["prefix_hit_ratio"], 1.0);
    assert_eq!(warm["verify_errors"], 0);
    assert_eq!(warm["bytes_written"], 0);
}

#[test]
fn wrong_bytes_are_found_out() {
    let node = Node::start("8MiB", &[]);
    let put = ["put", "--nodes", node.address(), "lunette-replay/0"];
    run_with_input(&put, &[0; 512]).ended_with(0);
    let replay = [
        "replay",
        "--requests",
        "3",
        "--block-bytes",
        "512",
        "--json",
    ];
    let failed = run(&[&replay[..], &["--connect", node.address()]].concat()).ended_with(1);
    assert_eq!(
        failed.json()["verify_errors"],
        3,
        "block 0 is in every request"
    );
    assert!(
        failed.stderr.contains("3 of the blocks"),
        "{}",
        failed.stderr
    );
}
