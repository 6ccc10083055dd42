//! `lunette nvme discover`, `identify` and `watch`: what is asked of a target, and what it tells.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::process::{Node, lunette, run, send, wait};

const NQN: &str = "nqn.2026-01.example:disk";
const OTHER: &str = "nqn.2026-01.example:other";
/// How long a test waits for what is told.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a change has to be told before it is changed again.
const PAUSE: Duration = Duration::from_millis(500);

fn serve(more: &[&str]) -> Node {
    let arguments = ["nvme", "serve", "--json", "--nqn", NQN, "--memory", "4MiB"];
    let listen = ["--listen", "127.0.0.1:0"];
    Node::spawn(&mut lunette(&[&arguments[..], &listen, more].concat()))
}

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

#[test]
fn a_target_tells_what_it_offers() {
    let server = serve(&["--listen", "127.0.0.1:0"]);
    let addresses = server.ready["addresses"].as_array().expect("a list");
    let at: Vec<&str> = addresses.iter().filter_map(Value::as_str).collect();
    assert_eq!(at.len(), 2);
    let lines = format!("{} {NQN} Nvm plain\n{} {NQN} Nvm plain\n", at[0], at[1]);
    let records = json!([
        { "nqn": NQN, "address": at[0], "security": "plain" },
        { "nqn": NQN, "address": at[1], "security": "plain" },
    ]);
    // Each port tells of both.
    for address in &at {
        assert_eq!(
            run(&["nvme", "discover", address]).ended_with(0).text(),
            lines
        );
        let said = run(&["nvme", "discover", address, "--json"]).ended_with(0);
        assert_eq!(said.json(), records);
        assert_eq!(said.text().lines().count(), 1);
    }
}

#[test]
fn a_controller_says_what_it_is() {
    let server = serve(&["--block", "512"]);
    let at = server.address();
    for more in [&[][..], &["--json"], &["--digests", "both"]] {
        let said = run(&[&["nvme", "identify", at, NQN][..], more].concat());
        let said = said.ended_with(0).json();
        let namespaces = json!([{ "nsid": 1, "block_bytes": 512, "bytes": 4 << 20 }]);
        assert_eq!(said["namespaces"], namespaces);
        assert_eq!(
            (&said["model"], &said["firmware"]),
            (
                &json!("Lunette NVMe/TCP"),
                &json!(env!("CARGO_PKG_VERSION"))
            )
        );
        assert!(
            said["io_queues"] == 1 && said["controller"].is_u64(),
            "{said}"
        );
    }
}

#[test]
fn who_asks_in_vain_is_told_why() {
    let server = serve(&[]);
    let (at, nobody) = (server.address(), nobody());
    for command in ["discover", "identify", "watch"] {
        let refused = run(&["nvme", command, &nobody]).ended_with(4);
        assert!(refused.stderr.contains("refused"), "{refused:?}");
        assert_eq!(refused.text(), "");
        // Somebody else, who hangs up.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stranger = listener.local_addr().expect("an address").to_string();
        let hangs_up = thread::spawn(move || drop(listener.accept().expect("somebody")));
        let ended = run(&["nvme", command, &stranger]).ended_with(1);
        assert!(
            !ended.stderr.is_empty() && ended.text().is_empty(),
            "{ended:?}"
        );
        hangs_up.join().expect("it has hung up");
    }
    for command in ["identify", "watch"] {
        let refused = run(&["nvme", command, at, OTHER]).ended_with(1);
        let reason = "connecting: connect: invalid parameters";
        assert!(refused.stderr.contains(reason), "{refused:?}");
        assert_eq!(refused.text(), "");
        run(&["nvme", command, at, "no name"]).ended_with(2);
    }
}

/// The lines of a process, as they come.
fn lines_of(child: &mut std::process::Child) -> Receiver<Value> {
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in stdout.lines() {
            let line = serde_json::from_str(&line.expect("text")).expect("an object");
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[test]
fn a_change_is_told_to_who_watches_until_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let states = folder.path().join("states");
    fs::write(&states, "# nothing yet\n").expect("written");
    let mut server = serve(&["--ana-file", states.to_str().expect("a path")]);
    let at = server.address().to_owned();
    let mut watcher = lunette(&["nvme", "watch", &at, NQN])
        .spawn()
        .expect("it starts");
    let told = lines_of(&mut watcher);
    let deadline = Instant::now() + PATIENCE;
    // Who watches does not say when it has begun: the state is changed until it tells.
    let mut changes = ["inaccessible", "non-optimized"].iter().cycle();
    let event = loop {
        let state = changes.next().expect("they repeat");
        fs::write(&states, format!("{at} {state}\n")).expect("written");
        send(&server.child, Signal::HUP);
        match told.recv_timeout(PAUSE) {
            Ok(event) => break event,
            Err(RecvTimeoutError::Disconnected) => unreachable!("it has ended: {watcher:?}"),
            Err(RecvTimeoutError::Timeout) => {
                assert!(Instant::now() < deadline, "nothing was told");
            }
        }
    };
    let group = &event["paths"][0];
    assert_eq!(group["group"], 1);
    let is_new = group["state"] == "Inaccessible" || group["state"] == "NonOptimized";
    assert!(is_new && group["changes"].is_u64(), "{event}");
    send(&server.child, Signal::TERM);
    assert_eq!(server.wait().0, Some(0));
    assert_eq!(wait(&mut watcher), Some(1), "its connection has ended");
}
