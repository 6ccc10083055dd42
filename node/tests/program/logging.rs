//! What processes that stay log: events with named fields.

use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Node, lunette, run, run_with_input, send};
use crate::town::{Town, await_members, put, with_client};

const PATIENT: Duration = Duration::from_secs(20);
const INFO: [&str; 4] = ["--log", "info", "--log-format", "json"];

/// The events of a process, in their order.
struct Events(Receiver<String>);

impl Events {
    fn of(node: &mut Node) -> Self {
        let stderr = node.child.stderr.take().expect("it is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(stderr).lines();
            while lines
                .next()
                .is_some_and(|line| sender.send(line.expect("text")).is_ok())
            {}
        });
        Self(lines)
    }

    /// The next event with this message. Each line before is an event too.
    fn next(&mut self, message: &str) -> Value {
        loop {
            let line = self.0.recv_timeout(PATIENT).expect(message);
            let event: Value = serde_json::from_str(&line).expect("an object a line");
            for field in ["timestamp", "level", "target", "message"] {
                assert!(event[field].is_string(), "{field}: {event}");
            }
            if event["message"] == message {
                return event;
            }
        }
    }
}

#[test]
fn a_members_life_is_told_in_events() {
    let mut town = Town::new();
    let mut node = Node::spawn(&mut town.member(7, &INFO));
    let mut events = Events::of(&mut node);
    let serves = events.next("the node serves");
    assert_eq!((&serves["node"], &serves["cores"]), (&7.into(), &1.into()));
    assert_eq!(serves["address"], node.address());
    let joined = events.next("joined the cluster");
    assert_eq!(
        (&joined["node"], &joined["members"]),
        (&7.into(), &1.into())
    );
    assert!(joined["epoch"].as_u64() >= Some(1), "{joined}");
    assert_eq!(events.next("the node has its lease")["level"], "INFO");
    await_members(&node, 1);

    // The coordinator stands still, and comes back.
    send(&town.coordinator.child, Signal::STOP);
    let lost = events.next("the node has lost its lease");
    assert_eq!((&lost["level"], &lost["node"]), (&"WARN".into(), &7.into()));
    send(&town.coordinator.child, Signal::CONT);
    let again = events.next("the node has its lease");
    assert!(
        again["epoch"].as_u64() >= joined["epoch"].as_u64(),
        "{again}"
    );

    with_client(&node, PATIENT, |client| async move {
        put(&client, "secret-key", 100, 1).await;
    });
    send(&node.child, Signal::INT);
    assert_eq!(events.next("left the cluster")["node"], 7);
    assert_eq!(events.next("ended")["node"], 7);
    assert_eq!(node.wait().0, Some(0));
    send(&town.coordinator.child, Signal::INT);
    town.coordinator.wait();
}

#[test]
fn no_event_tells_a_key() {
    let more = ["--log", "trace", "--log-format", "json"];
    let mut node = Node::start("8MiB", &more);
    let stderr = node.child.stderr.take().expect("it is piped");
    let reading = thread::spawn(move || std::io::read_to_string(stderr));
    let at = ["--nodes", node.address()];
    run_with_input(&[&["put", "secret-key"], &at[..]].concat(), b"secret-value").ended_with(0);
    run(&[&["get", "secret-key"], &at[..]].concat()).ended_with(0);
    run(&[&["rm", "secret-key"], &at[..]].concat()).ended_with(0);
    send(&node.child, Signal::INT);
    assert_eq!(node.wait().0, Some(0));
    let log = reading.join().expect("no panic").expect("text");
    assert!(
        log.contains("fingerprint_high"),
        "objects are named by their hash"
    );
    assert!(!log.contains("secret-"), "nobody's key or value is told");
}

#[test]
fn a_coordinator_and_people_are_told_too() {
    let arguments = [
        "cluster",
        "coordinator",
        "--json",
        "--listen",
        "127.0.0.1:0",
    ];
    let mut coordinator = Node::spawn(&mut lunette(&[&arguments[..], &INFO].concat()));
    let mut events = Events::of(&mut coordinator);
    let begun = events.next("coordinating");
    assert_eq!(begun["address"], coordinator.address());
    send(&coordinator.child, Signal::TERM);
    events.next("ended");
    assert_eq!(coordinator.wait().0, Some(0));

    let serve = ["serve", "--memory", "1MiB", "--listen", "127.0.0.1:0"];
    let ends = ["--until-stdin-ends", "--log", "info"];
    let text = run(&[&serve[..], &ends].concat()).ended_with(0).stderr;
    assert!(
        text.contains("INFO") && text.contains("the node serves node="),
        "{text}"
    );
    let quiet = run(&[&serve[..], &ends[..1]].concat()).ended_with(0).stderr;
    assert!(!quiet.contains("INFO"), "{quiet}");
    let wrong = run(&[&serve[..], &["--log", "lunette=loud"]].concat()).ended_with(2);
    assert!(wrong.stderr.contains("--log"), "{}", wrong.stderr);
}
