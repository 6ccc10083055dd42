//! `lunette serve`.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Node, await_that, lunette, run, run_with_input, send};

#[test]
fn the_ready_line_says_where_and_what() {
    let node = Node::start("8MiB", &["--core-count", "2", "--node-id", "9"]);
    assert_eq!(node.ready["ready"], true);
    assert_eq!(node.ready["cores"], 2);
    assert_eq!(node.ready["node_id"], 9);
    assert_eq!(node.ready["memory_bytes"], 8 << 20);
    let stat = run(&["stat", "--json", "--nodes", node.address()]).ended_with(0);
    assert_eq!(stat.json()["nodes"][0]["capacity_bytes"], 8 << 20);
}

/// CPUs that a process's threads called `lunette-*` may run on.
fn cpus_of_cores(node: &Node) -> Vec<String> {
    let tasks = format!("/proc/{}/task", node.child.id());
    let threads = fs::read_dir(tasks).expect("a process");
    let mut lists: Vec<String> = threads
        .map(|thread| fs::read_to_string(thread.expect("a thread").path().join("status")))
        .map_while(Result::ok)
        .filter(|status| status.starts_with("Name:\tlunette-0\n"))
        .filter_map(|status| {
            let (_, list) = status.split_once("Cpus_allowed_list:\t")?;
            Some(list.lines().next()?.to_owned())
        })
        .collect();
    lists.sort_unstable();
    lists
}

/// The one that waits for its end does what blocks for its cores.
#[test]
fn it_has_a_thread_for_each_core_and_one_more() {
    for cores in [1, 2] {
        let node = Node::start("8MiB", &["--core-count", &cores.to_string()]);
        let tasks = format!("/proc/{}/task", node.child.id());
        let threads = || fs::read_dir(&tasks).expect("a process").count();
        await_that("those that started it are gone", || threads() == cores + 1);
        run_with_input(&["put", "--nodes", node.address(), "key"], b"value").ended_with(0);
        thread::sleep(Duration::from_millis(100));
        assert_eq!(threads(), cores + 1);
    }
}

#[test]
fn nodes_of_one_host_choose_cpus_of_their_own_as_long_as_there_are_any() {
    let claims = tempfile::tempdir().expect("a folder");
    let start = || {
        let arguments = [
            "serve",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--memory",
            "1MiB",
        ];
        Node::spawn(lunette(&arguments).env("XDG_RUNTIME_DIR", claims.path()))
    };
    let usable = thread::available_parallelism().expect("known").get();
    let nodes: Vec<Node> = (0..usable.min(2)).map(|_| start()).collect();
    // A thread that a core starts has the core's name until it has its own.
    await_that("each node has one core", || {
        nodes.iter().all(|node| cpus_of_cores(node).len() == 1)
    });
    let mut chosen: Vec<String> = nodes.iter().flat_map(cpus_of_cores).collect();
    for list in &chosen {
        assert!(list.parse::<usize>().is_ok(), "one CPU each: {chosen:?}");
    }
    chosen.dedup();
    assert_eq!(chosen.len(), nodes.len(), "{chosen:?}");
}

/// Memory of a node that has pages and that others may map, in bytes.
fn shared_pages(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.child.id()));
    let status = status.expect("a process");
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let (_, size) = fields
        .find(|(name, _)| *name == "RssShmem")
        .expect("it is told");
    let kib: u64 = size
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kib << 10
}

#[test]
fn pages_are_found_before_they_are_needed_and_all_of_them_where_that_is_wished() {
    let node = Node::start("256MiB", &["--prefault"]);
    assert!(shared_pages(&node) >= 256 << 20, "before it serves");
    drop(node);
    let node = Node::start("256MiB", &[]);
    let begun = Instant::now();
    while shared_pages(&node) < 16 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(20), "they are found");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(100));
    assert!(shared_pages(&node) < 64 << 20, "it lends more than it uses");
}

#[test]
fn signals_end_it_with_its_statistics() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = Node::start("8MiB", &[]);
        run_with_input(&["put", "--nodes", node.address(), "key"], b"value").ended_with(0);
        send(&node.child, signal);
        let (code, rest) = node.wait();
        assert_eq!(code, Some(0));
        let last: Value = serde_json::from_str(&rest).expect("one more object");
        assert_eq!(last["stopped"], true);
        assert_eq!(last["puts"], 1);
        assert_eq!(last["entries"], 1);
    }
}

#[test]
fn people_get_sentences() {
    let address = "127.0.0.1:0";
    let mut command = lunette(&[
        "serve",
        "--listen",
        address,
        "--memory",
        "1.5MiB",
        "--until-stdin-ends",
    ]);
    // Its input ends at once, so it ends when it has started.
    let output = command.output().expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("serving on 127.0.0.1:"), "{text}");
    assert!(lines[0].ends_with(", 1 core, 1.5MiB"), "{text}");
    assert!(lines[1].starts_with("stopped: 0 objects in 0B"), "{text}");
    assert_eq!(lines.len(), 2);
}

#[test]
fn it_ends_with_its_standard_input_if_asked_to() {
    let arguments = [
        "serve",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "1MiB",
    ];
    let with_flag = [&arguments[..], &["--until-stdin-ends"]].concat();
    let mut node = Node::spawn(lunette(&with_flag).stdin(Stdio::piped()));
    assert_eq!(node.child.try_wait().expect("a child"), None);
    drop(node.child.stdin.take());
    assert_eq!(node.wait().0, Some(0));
}

#[test]
fn a_port_in_use_is_said_to_be_one() {
    let node = Node::start("1MiB", &[]);
    let second = ["serve", "--listen", node.address(), "--memory", "1MiB"];
    let failed = run(&second).ended_with(1);
    let expected = format!("{}: another process uses this port", node.address());
    assert!(failed.stderr.contains(&expected), "{}", failed.stderr);
    let failed = run(&[&second[..], &["--json"]].concat()).ended_with(1);
    let object = failed.json();
    assert_eq!(object["exit_code"], 1);
    let error = object["error"].as_str().expect("a message");
    assert!(error.contains("another process"), "{error}");
}

#[test]
fn beyond_loopback_it_serves_only_if_told_twice() {
    let arguments = [
        "serve",
        "--json",
        "--listen",
        "0.0.0.0:0",
        "--memory",
        "1MiB",
    ];
    let refused = run(&arguments).ended_with(1);
    assert!(
        refused.stderr.contains("LUNETTE_INSECURE=1"),
        "{}",
        refused.stderr
    );
    let mut zero = lunette(&arguments);
    let refused = zero
        .env("LUNETTE_INSECURE", "0")
        .output()
        .expect("it starts");
    assert_eq!(refused.status.code(), Some(1));
    let node = Node::spawn(lunette(&arguments).env("LUNETTE_INSECURE", "1"));
    assert_eq!(node.ready["ready"], true);
}

#[test]
fn wrong_command_lines_end_with_2() {
    let bad: [&[&str]; 7] = [
        &["serve"],
        &["serve", "--memory", "1GB"],
        &["serve", "--memory", "0"],
        &["serve", "--memory", "1MiB", "--core-count", "0"],
        &["serve", "--memory", "1MiB", "--listen", "7400"],
        &[
            "serve",
            "--memory",
            "1MiB",
            "--cores",
            "0",
            "--core-count",
            "1",
        ],
        &["stat"],
    ];
    for arguments in bad {
        assert_eq!(run(arguments).code, Some(2), "{arguments:?}");
    }
}

#[test]
fn each_command_explains_itself() {
    let help = run(&["--help"]).ended_with(0);
    assert!(help.text().contains("Exit codes:"));
    for command in ["serve", "put", "get", "rm", "stat", "replay"] {
        let help = run(&[command, "--help"]).ended_with(0);
        assert!(help.text().contains("Example"), "{command}");
    }
}
