//! `lunette p2p` between an origin and eight receivers, each in a network namespace of its own behind a line of its own.
//!
//! ```text
//!   host 0 --line--+
//!   host 1 --line--+-- switch (a bridge; with it the coordinator)
//!   ...            |
//!   host 8 --line--+
//! ```
//!
//! It takes root, `ip` and `tc`, and is skipped by name where they are missing. How long it takes is measured with
//!
//! ```text
//! cargo build --release -p lunette
//! LUNETTE_SWARM_PROGRAM=$PWD/target/release/lunette LUNETTE_SWARM_MIB=256 LUNETTE_SWARM_MBIT=200 \
//!   LUNETTE_SWARM_RATIO_MAX=1.25 cargo test -p lunette --test program nine_hosts -- --nocapture
//! ```

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::namespaces::{ip, secret, shape, within};
use crate::process::{Node, await_that, lunette, program, send, wait};

/// Hosts that receive.
const RECEIVERS: usize = 8;
/// Where the coordinator answers, at the switch.
const COORDINATOR: &str = "10.232.0.250:7300";
const ETCD: &str = "10.232.0.250:2379";
/// Frames carry 1,448 bytes of a stream in 1,514.
const FRAMES_SHARE: f64 = 1448.0 / 1514.0;

/// What a run is to be like: small and slow, unless the environment says otherwise.
struct Size {
    len_bytes: usize,
    mbit_per_s: u32,
    ratio_max: Option<f64>,
}

impl Size {
    fn of_the_environment() -> Self {
        Self {
            len_bytes: number("LUNETTE_SWARM_MIB").unwrap_or(16) * MIB,
            mbit_per_s: number("LUNETTE_SWARM_MBIT").unwrap_or(160),
            ratio_max: number("LUNETTE_SWARM_RATIO_MAX"),
        }
    }

    /// About 256 of them, as many as 2 GiB have in chunks of 8 MiB.
    fn chunk_bytes(&self) -> usize {
        (self.len_bytes / 256).next_power_of_two().max(64 << 10)
    }

    /// How long one line takes for all bytes of the object, and of the frames that they go in.
    fn bound_s(&self) -> f64 {
        let line = f64::from(self.mbit_per_s) * 1e6 / 8.0;
        self.len_bytes as f64 / (line * FRAMES_SHARE)
    }
}

const MIB: usize = 1 << 20;

fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    let Ok(number) = text.parse() else {
        unreachable!("{name}={text} is no such number");
    };
    Some(number)
}

/// A switch, and hosts with a line to it; gone with the value.
struct Town {
    switch: String,
    hosts: Vec<String>,
    secret: TempDir,
    files: TempDir,
}

impl Town {
    fn new(label: &str, hosts: usize, mbit_per_s: u32) -> Result<Self, String> {
        let id = std::process::id();
        let town = Self {
            switch: format!("lunette-{id}-{label}"),
            hosts: (0..hosts)
                .map(|host| format!("lunette-{id}-{label}-{host}"))
                .collect(),
            secret: secret(),
            files: tempfile::tempdir().expect("a folder"),
        };
        // From here on dropping cleans up.
        let switch = &town.switch;
        ip(&["netns", "add", switch])?;
        ip(&["-n", switch, "link", "add", "bridge", "type", "bridge"])?;
        let at = "10.232.0.250/24";
        ip(&["-n", switch, "address", "add", at, "dev", "bridge"])?;
        ip(&["-n", switch, "link", "set", "bridge", "up"])?;
        ip(&["-n", switch, "link", "set", "lo", "up"])?;
        for (host, namespace) in town.hosts.iter().enumerate() {
            town.connect(host, namespace, &format!("{mbit_per_s}mbit"))?;
        }
        Ok(town)
    }

    fn connect(&self, host: usize, namespace: &str, rate: &str) -> Result<(), String> {
        let (switch, port) = (&self.switch, format!("port{host}"));
        ip(&["netns", "add", namespace])?;
        ip(&[
            "link", "add", &port, "netns", switch, "type", "veth", "peer", "name", "line", "netns",
            namespace,
        ])?;
        ip(&["-n", switch, "link", "set", &port, "master", "bridge", "up"])?;
        let at = format!("{}/24", address(host));
        ip(&["-n", namespace, "address", "add", &at, "dev", "line"])?;
        ip(&["-n", namespace, "link", "set", "line", "up"])?;
        shape(namespace, "line", rate)?;
        shape(switch, &port, rate)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// An embedded coordinator at the switch.
    fn coordinator(&self) -> Node {
        let listen = ["--listen", COORDINATOR];
        let command = lunette(&[&["cluster", "coordinator", "--json"][..], &listen].concat());
        Node::spawn(&mut within(&self.switch, &command, &self.secret))
    }

    /// `lunette p2p` on a host.
    fn p2p(&self, host: usize, place: [&str; 2], arguments: &[&str]) -> Command {
        let listen = format!("{}:0", address(host));
        let always = ["--json", "--listen", &listen];
        let command = [&["p2p"][..], arguments, &always, &place].concat();
        let command = match env::var_os("LUNETTE_SWARM_PROGRAM") {
            Some(path) => program(Path::new(&path), &command),
            None => lunette(&command),
        };
        within(&self.hosts[host], &command, &self.secret)
    }

    /// Bytes that a host has sent, all frames.
    fn sent_bytes(&self, host: usize) -> u64 {
        self.counter(host, "tx_bytes")
    }

    fn counter(&self, host: usize, what: &str) -> u64 {
        let mut counter = Command::new("ip");
        counter.args(["netns", "exec", &self.hosts[host], "cat"]);
        counter.arg(format!("/sys/class/net/line/statistics/{what}"));
        let output = counter.output().expect("a counter");
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Town {
    fn drop(&mut self) {
        for namespace in self.hosts.iter().chain([&self.switch]) {
            // It may not have come about.
            drop(ip(&["netns", "delete", namespace]));
        }
    }
}

fn address(host: usize) -> String {
    format!("10.232.0.{}", host + 1)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Bytes that differ from chunk to chunk.
fn pattern(len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8).map(|at| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Processor time that a process has taken, in seconds.
fn cpu_s(child: &Child) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("its name ends");
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum();
    // Linux counts them by the hundredth of a second for programs.
    ticks as f64 / 100.0
}

/// A real etcd at the switch, killed when the value is dropped.
struct Etcd(
    Child,
    #[expect(dead_code, reason = "it goes with it")] TempDir,
);

impl Etcd {
    fn start(town: &Town) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let (client, peer) = (format!("http://{ETCD}"), "http://127.0.0.1:2380");
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir").arg(folder.path());
        etcd.args(["--listen-client-urls", &client]);
        etcd.args(["--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", peer]);
        etcd.args(["--initial-advertise-peer-urls", peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}")]);
        if let Err(error) = Command::new("etcd").arg("--version").output() {
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
            return None;
        }
        let mut inside = within(&town.switch, &etcd, &town.secret);
        inside.stdout(Stdio::null()).stderr(Stdio::null());
        Some(Self(inside.spawn().expect("it starts"), folder))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Town {
    /// All receive at the same time; how long that took, and what it cost.
    fn spread(&self, size: &Size, origin: &Node, place: [&str; 2]) -> Value {
        let began = Instant::now();
        let sent_before = self.sent_bytes(0);
        let spread = (1..=RECEIVERS).map(|host| {
            let copy = self.path(&format!("copy-{host}"));
            let get = ["get", "model", text(&copy), "--serve"];
            let child = self.p2p(host, place, &get).spawn().expect("it starts");
            (child, began.elapsed().as_secs_f64())
        });
        let spread: Vec<_> = spread.collect();
        let receivers = spread.into_iter().map(|(child, late_s)| {
            let receiver = Node::of(child);
            let took_s = receiver.ready["seconds"].as_f64().expect("a time");
            (receiver, late_s + took_s)
        });
        let receivers: Vec<_> = receivers.collect();
        let last_s = receivers.iter().map(|(_, at_s)| *at_s).fold(0.0, f64::max);
        let origin_copies =
            (self.sent_bytes(0) - sent_before) as f64 * FRAMES_SHARE / size.len_bytes as f64;
        let receivers_s: f64 = receivers.iter().map(|(it, _)| cpu_s(&it.child)).sum();
        let received_gb = (size.len_bytes * RECEIVERS) as f64 / 1e9;
        json!({
            "bytes": size.len_bytes,
            "chunk_bytes": size.chunk_bytes(),
            "mbit_per_s": size.mbit_per_s,
            "bound_s": size.bound_s(),
            "last_s": last_s,
            "ratio": last_s / size.bound_s(),
            "origin_copies": origin_copies,
            "origin_cpu_s_per_gb_sent": cpu_s(&origin.child) * 1e9 / size.len_bytes as f64 / origin_copies,
            "receivers_cpu_s_per_gb": receivers_s / received_gb,
        })
    }
}

#[test]
fn nine_hosts_receive_in_about_the_time_of_one() {
    let test = "nine_hosts_receive_in_about_the_time_of_one";
    let size = Size::of_the_environment();
    let town = match Town::new("swarm", RECEIVERS + 1, size.mbit_per_s) {
        Ok(town) => town,
        Err(problem) => {
            println!("SKIP {test}: {problem}");
            return;
        }
    };
    let Some(_etcd) = Etcd::start(&town) else {
        println!("SKIP {test}: etcd is not installed (Debian: etcd-server)");
        return;
    };
    let place = ["--etcd", ETCD];
    await_that("etcd answers", || {
        let list = lunette(&[&["p2p", "ls"][..], &place].concat());
        let listed = within(&town.switch, &list, &town.secret).output();
        listed.expect("it starts").status.success()
    });
    let (object, bytes) = (town.path("model"), pattern(size.len_bytes));
    fs::write(&object, &bytes).expect("written");
    let chunk = size.chunk_bytes().to_string();
    let serve = ["serve", "model", text(&object), "--chunk", &chunk];
    let origin = Node::spawn(&mut town.p2p(0, place, &serve));
    let figures = town.spread(&size, &origin, place);
    println!("{figures}");
    for host in 1..=RECEIVERS {
        let copy = fs::read(town.path(&format!("copy-{host}"))).expect("a copy");
        assert!(copy == bytes, "host {host}");
    }
    let figure = |of: &str| figures[of].as_f64().expect("a figure");
    // Were each receiver fed by the origin it would send eight.
    assert!(figure("origin_copies") < 4.0, "{figures}");
    if let Some(ratio_max) = size.ratio_max {
        assert!(figure("ratio") <= ratio_max, "{figures}");
    }
}

#[test]
fn an_origin_that_is_killed_at_half_costs_what_had_not_left_it() {
    let test = "an_origin_that_is_killed_at_half_costs_what_had_not_left_it";
    let town = match Town::new("half", 4, 160) {
        Ok(town) => town,
        Err(problem) => {
            println!("SKIP {test}: {problem}");
            return;
        }
    };
    let _coordinator = town.coordinator();
    let place = ["--coordinators", COORDINATOR];
    // Long enough that nobody has all of it by the time that the half of it has been seen, on a busy machine either.
    let (object, bytes) = (town.path("model"), pattern(40 * MIB));
    fs::write(&object, &bytes).expect("written");
    let serve = [
        "serve",
        "model",
        text(&object),
        "--chunk",
        "64KiB",
        "--replace",
    ];
    let origin = Node::spawn(&mut town.p2p(0, place, &serve));
    let copies: Vec<_> = (1..4)
        .map(|host| town.path(&format!("copy-{host}")))
        .collect();
    let get = |host: usize| {
        let get = ["get", "model", text(&copies[host - 1]), "--timeout", "30"];
        town.p2p(host, place, &get)
    };
    let receivers: Vec<_> = (1..4)
        .map(|host| get(host).spawn().expect("it starts"))
        .collect();
    await_that("half has left the origin, and each has something", || {
        let received = |host| town.counter(host, "rx_bytes") > MIB as u64;
        town.sent_bytes(0) >= bytes.len() as u64 / 2 && (1..4).all(received)
    });
    send(&origin.child, Signal::KILL);
    // Each is told to end, and keeps what has come.
    for mut receiver in receivers {
        send(&receiver, Signal::TERM);
        assert_eq!(wait(&mut receiver), Some(1), "not all came");
    }
    let _anew = Node::spawn(&mut town.p2p(0, place, &serve));
    let mut kept_bytes = 0;
    for host in 1..4 {
        let got = get(host).output().expect("it starts");
        assert!(got.status.success(), "{got:?}");
        let got: Value = serde_json::from_slice(&got.stdout).expect("one object");
        kept_bytes += got["resumed_bytes"].as_u64().expect("a number");
        let copy = fs::read(&copies[host - 1]).expect("a copy");
        assert!(copy == bytes, "host {host}");
    }
    let half = bytes.len() as u64 / 2;
    assert!(
        kept_bytes > half / 2,
        "{kept_bytes} of {half} bytes that had left the origin"
    );
}
