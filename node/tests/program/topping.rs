//! `lunette top`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette::runtime::time;
use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Node, lunette, run, send, wait};
use crate::town::{Town, await_members, is_there, put, with_client};

const PATIENT: Duration = Duration::from_secs(20);

/// Puts and gets until it is told to end.
fn load(node: &Node, is_over: Arc<AtomicBool>) {
    with_client(node, PATIENT, |client| async move {
        for number in 0.. {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("key-{}", number % 50);
            // Short enough to be sent: what is longer is copied from the nodes' memory.
            put(&client, &key, 50_000, 1).await;
            assert_eq!(is_there(&client, &key).await, Some(true));
            is_there(&client, &format!("never-{number}")).await;
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn two_looks_tell_what_nodes_do_a_second() {
    let town = Town::new();
    let nodes = [1, 2].map(|id| Node::spawn(&mut town.member(id, &[])));
    await_members(&nodes[0], 2);
    let is_over = Arc::new(AtomicBool::new(false));
    let object = thread::scope(|scope| {
        let (node, ends) = (&nodes[0], Arc::clone(&is_over));
        scope.spawn(move || load(node, ends));
        let arguments = ["top", "--once", "--json", "--interval", "2", "--nodes"];
        let finished = run(&[&arguments[..], &[node.address()]].concat());
        is_over.store(true, Ordering::Relaxed);
        finished.ended_with(0).json()
    });
    let number = |object: &Value, name: &str| object[name].as_f64().expect(name);
    assert!(number(&object, "interval_s") >= 2.0);
    let told = object["nodes"].as_array().expect("nodes");
    assert_eq!(told.len(), 2);
    for (node, told) in nodes.iter().zip(told) {
        assert_eq!(told["address"], node.address());
        assert_eq!(
            (&told["state"], &told["cores"]),
            (&"serving".into(), &1.into())
        );
        assert!(number(told, "epoch") >= 1.0 && number(told, "lease_left_ms") > 0.0);
        assert!(number(told, "requests_per_s") > 0.0, "{told}");
        assert!(number(told, "payload_out_bytes_per_s") > 0.0, "{told}");
        let ratio = number(told, "hit_ratio");
        assert!(ratio > 0.0 && ratio < 1.0, "{told}");
    }
    let total = &object["total"];
    let sum: f64 = told.iter().map(|told| number(told, "requests_per_s")).sum();
    assert!(
        (number(total, "requests_per_s") - sum).abs() < 1e-6,
        "{object}"
    );
    assert!(number(total, "objects") > 0.0 && number(total, "used_bytes") > 1e5);
}

fn live(arguments: &[&str], node: &Node) -> (Child, BufReader<ChildStdout>) {
    let top = ["top", "--interval", "0.1", "--nodes", node.address()];
    let mut child = lunette(&[&top[..], arguments].concat())
        .spawn()
        .expect("it starts");
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    (child, stdout)
}

#[test]
fn it_goes_on_until_it_is_interrupted_and_ends_well() {
    let node = Node::start("8MiB", &[]);
    let (mut child, stdout) = live(&["--json"], &node);
    let mut lines = stdout.lines();
    for _ in 0..3 {
        let line = lines.next().expect("another one").expect("text");
        let object: Value = serde_json::from_str(&line).expect("an object a line");
        assert_eq!(object["nodes"][0]["state"], "alone");
        assert_eq!(object["nodes"][0]["hit_ratio"], Value::Null);
    }
    send(&child, Signal::INT);
    assert_eq!(wait(&mut child), Some(0));

    let (mut child, stdout) = live(&[], &node);
    let lines: Vec<String> = stdout
        .lines()
        .take(4)
        .map(|line| line.expect("text"))
        .collect();
    assert!(
        lines[0].starts_with("node ") && lines[2] == lines[0],
        "{lines:?}"
    );
    assert!(lines[1].starts_with(node.address()), "{lines:?}");
    assert!(!lines.concat().contains('\x1b'), "no terminal is spoken to");
    send(&child, Signal::TERM);
    assert_eq!(wait(&mut child), Some(0));
}

#[test]
fn a_terminal_is_left_as_it_was() {
    let node = Node::start("8MiB", &[]);
    let top = env!("CARGO_BIN_EXE_lunette");
    // `script` gives it a terminal. It ends when the program that it runs does. What is logged, which
    // io_uring's absence is, goes elsewhere.
    let address = node.address();
    let command = format!("exec {top} top --interval 0.1 --nodes {address} 2> /dev/null");
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    script.stdin(std::process::Stdio::piped());
    script.stdout(std::process::Stdio::piped());
    let mut child = match script.spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("SKIP a_terminal_is_left_as_it_was: no script(1) here: {error}");
            return;
        }
    };
    let mut stdin = child.stdin.take().expect("it is piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut seen = Vec::new();
    // Two frames, then Ctrl-C as a terminal's driver has it.
    for _ in 0..2 {
        stdout.read_until(b'J', &mut seen).expect("a frame");
    }
    std::io::Write::write_all(&mut stdin, b"\x03").expect("it reads");
    std::io::Read::read_to_end(&mut stdout, &mut seen).expect("to the end");
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert!(seen.starts_with("\x1b[?1049h\x1b[?25l"), "{seen:?}");
    assert!(
        seen.contains("127.0.0.1:") && seen.contains("alone"),
        "{seen:?}"
    );
    assert!(
        seen.trim_end().ends_with("\x1b[?25h\x1b[?1049l"),
        "{seen:?}"
    );
    assert_eq!(wait(&mut child), Some(0));
}

#[test]
fn a_node_that_is_gone_is_a_row_and_a_failure_at_the_end() {
    let nodes = [1, 2].map(|_| Node::start("1MiB", &[]));
    let list = format!("{},{}", nodes[0].address(), nodes[1].address());
    let top = ["top", "--json", "--interval", "0.1", "--nodes", &list];
    let mut child = lunette(&top).spawn().expect("it starts");
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut lines = stdout.lines();
    lines.next().expect("a line").expect("text");
    send(&nodes[1].child, Signal::KILL);
    let is_gone = |line: std::io::Result<String>| {
        let object: Value = serde_json::from_str(&line.expect("text")).expect("an object");
        let (rows, gone) = (&object["nodes"], nodes[1].address());
        let row = rows
            .as_array()
            .expect("rows")
            .iter()
            .find(|row| row["address"] == gone);
        row.expect("it is still listed")["error"].is_string()
    };
    assert!(lines.any(is_gone));
    send(&child, Signal::INT);
    assert_eq!(wait(&mut child), Some(0));
    run(&["top", "--once", "--nodes", nodes[1].address()]).ended_with(4);
    run(&["top", "--interval", "0", "--nodes", &list]).ended_with(2);
}
