//! A host and a server on two cores, beside a bare exchange of as many bytes over the same sockets.
//!
//! For each row: commands per second of either, round by round, and the ratio of the medians. Run it
//! with `cargo run --release -p lunette-nvmeof --example beside_raw`, and a part of a row's name behind
//! `--` for some rows alone. With `NBD=1` the rows without digests run beside `nbdkit` and `qemu-nbd`
//! instead, where those are installed.
#![forbid(unsafe_code)]

mod nbd;

use std::cell::Cell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lunette_nvmeof::proto::controller::Secrets;
use lunette_nvmeof::proto::host::{PathPolicy, ReconnectOptions};
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{
    Disk, Export, ExportedDisk, HostConfig, MemoryDisk, NamespaceOptions, RemoteNamespace, Server,
    ServerOptions,
};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{CoreOptions, Idle, Placement, Runtime, arena, core_counts, spawn_local};
use lunette_runtime_core::ids::CoreIndex;

use self::nbd::Rival;

const DISK_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(10);
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(400);
/// Lengths of a command, a completion, and a header of data on the wire.
const COMMAND_BYTES: usize = 72;
const ANSWER_BYTES: usize = 24;
const SERVER: CoreIndex = CoreIndex(0);
const HOST: CoreIndex = CoreIndex(1);

#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    len: usize,
    depth: usize,
    writes: bool,
    digests: Digests,
}

const fn row(name: &'static str, len: usize, depth: usize, writes: bool, digests: Digests) -> Row {
    Row {
        name,
        len,
        depth,
        writes,
        digests,
    }
}

const ROWS: [Row; 9] = [
    row("read 4 KiB, depth 1", 4096, 1, false, Digests::NONE),
    row("read 4 KiB, depth 32", 4096, 32, false, Digests::NONE),
    row("write 4 KiB, depth 32", 4096, 32, true, Digests::NONE),
    row("read 128 KiB, depth 8", 131_072, 8, false, Digests::NONE),
    row("write 128 KiB, depth 8", 131_072, 8, true, Digests::NONE),
    row(
        "read 4 KiB, depth 32, digests",
        4096,
        32,
        false,
        Digests::BOTH,
    ),
    row(
        "write 4 KiB, depth 32, digests",
        4096,
        32,
        true,
        Digests::BOTH,
    ),
    row(
        "read 128 KiB, depth 8, digests",
        131_072,
        8,
        false,
        Digests::BOTH,
    ),
    row(
        "write 128 KiB, depth 8, digests",
        131_072,
        8,
        true,
        Digests::BOTH,
    ),
];

impl Row {
    const fn request_bytes(&self) -> usize {
        COMMAND_BYTES + if self.writes { self.len } else { 0 }
    }

    const fn answer_bytes(&self) -> usize {
        ANSWER_BYTES + if self.writes { 0 } else { self.len }
    }
}

/// Commands per second, and turns of the ring's system calls per command on the host's core.
#[derive(Clone, Copy, Debug)]
struct Speed {
    per_s: f64,
}

fn main() {
    let options = CoreOptions {
        idle: Idle::Adaptive(Duration::from_micros(50)),
        ..CoreOptions::default()
    };
    let runtime = Runtime::start(&Placement::Anywhere(2), options).expect("two cores");
    let address = runtime.spawn_on(SERVER, || async { serve() });
    let address = address.expect("started").wait().expect("served");
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if std::env::var_os("NBD").is_some() {
        beside_rivals(&runtime, address, &wanted);
        return;
    }
    for row in ROWS.into_iter().filter(|row| row.name.contains(&wanted)) {
        let raw_address = runtime.spawn_on(SERVER, move || async move { serve_raw(row) });
        let raw_address = raw_address.expect("started").wait().expect("served");
        let measured = runtime.spawn_on(HOST, move || async move {
            let mut speeds = Vec::new();
            for _ in 0..ROUNDS {
                let raw = exchange(raw_address, row).await;
                let ours = command(address, row).await;
                speeds.push((raw, ours));
            }
            speeds
        });
        let speeds = measured.expect("started").wait().expect("measured");
        let raw = median(speeds.iter().map(|(raw, _)| raw.per_s));
        let ours = median(speeds.iter().map(|(_, ours)| ours.per_s));
        println!(
            "{:32} raw {raw:9.0}/s  ours {ours:9.0}/s  ratio {:.2}",
            row.name,
            ours / raw
        );
    }
}

/// The rows that others can do, too, by turns.
fn beside_rivals(runtime: &Runtime, address: SocketAddr, wanted: &str) {
    let rivals = Rival::all();
    let rows = ROWS.into_iter().filter(|row| row.name.contains(wanted));
    for row in rows.filter(|row| row.digests == Digests::NONE) {
        for rival in &rivals {
            let theirs = rival.address;
            let measured = runtime.spawn_on(HOST, move || async move {
                let mut speeds = Vec::new();
                for _ in 0..ROUNDS {
                    let theirs = nbd::exchange(theirs, row).await;
                    speeds.push((theirs, command(address, row).await));
                }
                speeds
            });
            let speeds = measured.expect("started").wait().expect("measured");
            let theirs = median(speeds.iter().map(|(theirs, _)| theirs.per_s));
            let ours = median(speeds.iter().map(|(_, ours)| ours.per_s));
            let name = format!("{} beside {}", row.name, rival.name);
            println!(
                "{name:40} theirs {theirs:9.0}/s  ours {ours:9.0}/s  ratio {:.2}",
                ours / theirs
            );
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn name() -> Nqn {
    Nqn::new("nqn.2026-01.example:disk").expect("a name")
}

fn serve() -> SocketAddr {
    let listener = TcpListener::bind(loopback()).expect("a port");
    let address = listener.local_addr();
    let disk = Disk::Memory(MemoryDisk::new(DISK_BYTES).expect("room"));
    let disk = ExportedDisk {
        disk,
        block_bytes: 4096,
        uuid: [1; 16],
        is_read_only: false,
        ana_group: 1,
    };
    let export = Export {
        name: name(),
        hosts: None,
        secrets: Secrets::default(),
        disks: vec![disk],
    };
    let server = Server::new(ServerOptions::default(), vec![export], &[address]);
    let server = server.expect("a server");
    drop(spawn_local(server.serve(listener, pending())));
    address
}

/// Answers each request with as many bytes as it would be answered with.
fn serve_raw(row: Row) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).expect("a port");
    let address = listener.local_addr();
    drop(spawn_local(async move {
        loop {
            let stream = listener.accept().await.expect("accepted");
            drop(spawn_local(async move {
                let (request, answer) = (row.request_bytes(), row.answer_bytes());
                pump(&stream, request, answer, row.depth, || true).await;
            }));
        }
    }));
    address
}

/// Sends `answer` bytes for every `request` bytes that come, while `goes_on`.
async fn pump(
    stream: &TcpStream,
    request: usize,
    answer: usize,
    depth: usize,
    goes_on: impl Fn() -> bool,
) -> usize {
    let mut room = arena().alloc(256 * 1024).expect("room");
    let mut answers = arena().alloc(answer * depth).expect("room");
    answers.as_mut_slice().fill(7);
    let mut answers = answers.freeze();
    let (mut kept, mut count) = (0, 0);
    loop {
        let len = room.len();
        let (received, back) = stream.recv(room, 0, len).await;
        room = back;
        let Ok(received @ 1..) = received else {
            return count;
        };
        kept += received;
        let whole = kept / request;
        kept %= request;
        count += whole;
        if !goes_on() {
            return count;
        }
        let (sent, back) = stream.send_all(answers, 0, whole * answer).await;
        answers = back;
        if sent.is_err() {
            return count;
        }
    }
}

async fn exchange(address: SocketAddr, row: Row) -> Speed {
    let stream = TcpStream::connect(address).await.expect("connected");
    let first = vec![7; row.request_bytes() * row.depth];
    let len = first.len();
    let started = Instant::now();
    stream.send_all(first, 0, len).await.0.expect("sent");
    let goes_on = || started.elapsed() < ROUND;
    let (answer, request) = (row.answer_bytes(), row.request_bytes());
    let count = pump(&stream, answer, request, row.depth, goes_on).await;
    Speed {
        per_s: count as f64 / started.elapsed().as_secs_f64(),
    }
}

async fn command(address: SocketAddr, row: Row) -> Speed {
    let config = HostConfig {
        host: Nqn::new("nqn.2026-01.example:host").expect("a name"),
        host_id: [1; 16],
        digests: row.digests,
        commands_max: 64,
        io_queues: 1,
        keep_alive: Duration::from_secs(30),
        timeout: TIMEOUT,
        credentials: None,
    };
    let options = NamespaceOptions {
        addresses: vec![address],
        subsystem: name(),
        nsid: 1,
        config,
        policy: PathPolicy::default(),
        path_timeout: TIMEOUT,
        hedge: None,
        reconnect: ReconnectOptions::default(),
        seed: 1,
    };
    let namespace = RemoteNamespace::connect(options).await.expect("connected");
    let namespace = Rc::new(namespace);
    let count = Rc::new(Cell::new(0_u64));
    let started = Instant::now();
    let before = core_counts();
    let tasks: Vec<_> = (0..row.depth)
        .map(|task| {
            let (namespace, count) = (Rc::clone(&namespace), Rc::clone(&count));
            spawn_local(async move {
                let mut region = Some(arena().alloc(row.len).expect("room"));
                let pieces = DISK_BYTES / row.len as u64;
                let mut piece = task as u64 * 7919;
                while started.elapsed() < ROUND {
                    piece = (piece + row.depth as u64 * 101) % pieces;
                    let first = piece * (row.len / BLOCK_BYTES) as u64;
                    let buffer = region.take().expect("each command gives it back");
                    if row.writes {
                        let shared = buffer.freeze();
                        let written = namespace.write(first, shared.clone(), false, TIMEOUT);
                        written.await.expect("written");
                        let free = shared.try_unfreeze();
                        region =
                            Some(free.unwrap_or_else(|_| arena().alloc(row.len).expect("room")));
                    } else {
                        let read = namespace.read(first, buffer, TIMEOUT).await;
                        region = Some(read.expect("read"));
                    }
                    count.set(count.get() + 1);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let per_s = count.get() as f64 / started.elapsed().as_secs_f64();
    if std::env::var_os("COUNTS").is_some() {
        println!(
            "{before:?}\n{:?} for {} commands",
            core_counts(),
            count.get()
        );
    }
    let namespace = Rc::into_inner(namespace).expect("its tasks have ended");
    namespace.close().await.expect("in order");
    Speed { per_s }
}
