//! A host and a server on two cores, beside a bare exchange of as many bytes over the same sockets.
//!
//! For each row: commands per second of either, round by round, and the ratio of the medians. Run it
//! with `cargo run --release -p lunette-nvmeof --example beside_raw`, and a part of a row's name behind
//! `--` for some rows alone. With `NBD=1` the rows without digests run beside `nbdkit` and `qemu-nbd`
//! instead, where those are installed.
//!
//! The bare exchange sends the same bytes from cache again and again and receives into one place; a
//! second one, "walk", goes through as much memory as the disk has on the server's side, and through as
//! much as the commands have on the host's.
//!
//! Where other work disturbs the time, count: `COMMANDS=n` has one round of so many commands instead of
//! so long a one, on cores that never spin, and `ONLY=raw`, `ONLY=walk` or `ONLY=ours` leaves the others
//! out; `COUNTS=1` tells what the host's core did. Two runs of different lengths under `valgrind
//! --tool=callgrind --separate-threads=yes --fair-sched=yes`, which knows the epoll driver only
//! (`DRIVER=epoll`), differ by what the commands between them took.
#![forbid(unsafe_code)]

mod extent;
mod nbd;

use std::cell::Cell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lunette_nvmeof::proto::controller::Secrets;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{
    Disk, Export, ExportedDisk, HostConfig, MemoryDisk, NamespaceOptions, RemoteNamespace, Server,
    ServerOptions,
};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{CoreOptions, Placement, Runtime, arena, core_counts, spawn_local};
use lunette_runtime_core::ids::CoreIndex;

use self::extent::{Extent, Only};
use self::nbd::Rival;

const DISK_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Granules are written in order at first: what was never written is one piece of zeroes.
const FILL_BYTES: usize = 128 * 1024;
/// Room that the bare exchange receives into.
const ROOM_BYTES: usize = 256 * 1024;
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
    /// Whether its name has what was asked for, which with a full stop behind it is all of the name.
    fn is_wanted(&self, wanted: &str) -> bool {
        match wanted.strip_suffix('.') {
            Some(whole) => self.name == whole,
            None => self.name.contains(wanted),
        }
    }

    const fn request_bytes(&self) -> usize {
        COMMAND_BYTES + if self.writes { self.len } else { 0 }
    }

    const fn answer_bytes(&self) -> usize {
        ANSWER_BYTES + if self.writes { 0 } else { self.len }
    }
}

/// Commands per second.
#[derive(Clone, Copy, Debug)]
struct Speed {
    per_s: f64,
}

/// What an exchange sends and receives.
#[derive(Clone, Copy, Debug)]
struct Sides {
    receives: usize,
    sends: usize,
    depth: usize,
    /// Memory that is gone through either way.
    walks_bytes: Option<usize>,
}

fn main() {
    let extent = Extent::from_env();
    let options = CoreOptions {
        idle: extent.idle(),
        driver: extent::driver(),
        ..CoreOptions::default()
    };
    let runtime = Runtime::start(&Placement::Anywhere(2), options).expect("two cores");
    let address = runtime.spawn_on(SERVER, || async { serve() });
    let address = address.expect("started").wait().expect("served");
    let filled = runtime.spawn_on(HOST, move || fill(address));
    filled.expect("started").wait().expect("filled");
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if std::env::var_os("NBD").is_some() {
        beside_rivals(&runtime, address, &wanted);
        return;
    }
    let only = Only::from_env();
    for row in ROWS.into_iter().filter(|row| row.is_wanted(&wanted)) {
        let served = runtime.spawn_on(SERVER, move || async move {
            (
                serve_raw(row, None),
                serve_raw(row, usize::try_from(DISK_BYTES).ok()),
            )
        });
        let (raw_address, walk_address) = served.expect("started").wait().expect("served");
        let measured = runtime.spawn_on(HOST, move || async move {
            let mut speeds = [const { Vec::new() }; 3];
            for _ in 0..extent.rounds() {
                if only.takes("raw") {
                    speeds[0].push(exchange(raw_address, row, None, extent).await);
                }
                if only.takes("walk") {
                    let walks = Some(row.len * row.depth);
                    speeds[1].push(exchange(walk_address, row, walks, extent).await);
                }
                if only.takes("ours") {
                    speeds[2].push(command(address, row, extent).await);
                }
            }
            speeds
        });
        let speeds = measured.expect("started").wait().expect("measured");
        let [raw, walk, ours] = speeds.map(|speeds| median(speeds.iter().map(|s| s.per_s)));
        println!(
            "{:32} raw {raw:9.0}/s  walk {walk:9.0}/s  ours {ours:9.0}/s  ratio {:.2}, to walk {:.2}",
            row.name,
            ours / raw,
            ours / walk
        );
    }
}

/// The rows that others can do, too, by turns.
fn beside_rivals(runtime: &Runtime, address: SocketAddr, wanted: &str) {
    let rivals = Rival::all();
    let extent = Extent::from_env();
    let rows = ROWS.into_iter().filter(|row| row.is_wanted(wanted));
    for row in rows.filter(|row| row.digests == Digests::NONE) {
        for rival in &rivals {
            let theirs = rival.address;
            let measured = runtime.spawn_on(HOST, move || async move {
                let mut speeds = Vec::new();
                for _ in 0..extent.rounds() {
                    let theirs = nbd::exchange(theirs, row).await;
                    speeds.push((theirs, command(address, row, extent).await));
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
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
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
fn serve_raw(row: Row, walks_bytes: Option<usize>) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).expect("a port");
    let address = listener.local_addr();
    drop(spawn_local(async move {
        loop {
            let stream = listener.accept().await.expect("accepted");
            let sides = Sides {
                receives: row.request_bytes(),
                sends: row.answer_bytes(),
                depth: row.depth,
                walks_bytes,
            };
            drop(spawn_local(async move {
                pump(&stream, sides, |_| true).await;
            }));
        }
    }));
    address
}

/// Sends an answer for every request that comes, while `goes_on` with so many.
async fn pump(stream: &TcpStream, sides: Sides, goes_on: impl Fn(u64) -> bool) -> u64 {
    let Sides {
        receives, sends, ..
    } = sides;
    let walks = sides.walks_bytes.unwrap_or(0);
    let mut room = vec![0; ROOM_BYTES.max(walks)];
    let mut answers = vec![7; (sends * sides.depth).max(walks)];
    let (mut kept, mut count, mut received_to, mut sent_to) = (0, 0, 0, 0);
    loop {
        let len = ROOM_BYTES.min(room.len() - received_to);
        let (received, back) = stream.recv(room, received_to, len).await;
        room = back;
        let Ok(received @ 1..) = received else {
            return count;
        };
        received_to = (received_to + received) % room.len();
        if sides.walks_bytes.is_none() {
            received_to = 0;
        }
        kept += received;
        let whole = kept / receives;
        kept %= receives;
        count += whole as u64;
        if !goes_on(count) {
            return count;
        }
        let len = whole * sends;
        if sides.walks_bytes.is_none() || sent_to + len > answers.len() {
            sent_to = 0;
        }
        let (sent, back) = stream.send_all(answers, sent_to, len).await;
        answers = back;
        sent_to += len;
        if sent.is_err() {
            return count;
        }
    }
}

async fn exchange(
    address: SocketAddr,
    row: Row,
    walks_bytes: Option<usize>,
    extent: Extent,
) -> Speed {
    let stream = TcpStream::connect(address).await.expect("connected");
    let first = vec![7; row.request_bytes() * row.depth];
    let len = first.len();
    let started = Instant::now();
    let before = core_counts();
    stream.send_all(first, 0, len).await.0.expect("sent");
    let sides = Sides {
        receives: row.answer_bytes(),
        sends: row.request_bytes(),
        depth: row.depth,
        walks_bytes,
    };
    let count = pump(&stream, sides, |count| extent.goes_on(started, count)).await;
    extent::tell(before, count);
    Speed {
        per_s: count as f64 / started.elapsed().as_secs_f64(),
    }
}

/// A connection to our server.
async fn connected(address: SocketAddr, digests: Digests) -> RemoteNamespace {
    let host = Nqn::new("nqn.2026-01.example:host").expect("a name");
    let config = HostConfig {
        digests,
        ..HostConfig::new(host, [1; 16])
    };
    let options = NamespaceOptions::new(address, name(), config);
    let connected = RemoteNamespace::connect(options).await;
    connected.expect("connected")
}

/// Writes every block once.
async fn fill(address: SocketAddr) {
    let namespace = connected(address, Digests::NONE).await;
    for granule in 0..DISK_BYTES / FILL_BYTES as u64 {
        let mut bytes = arena().alloc(FILL_BYTES).expect("room");
        bytes.as_mut_slice().fill(1);
        let first = granule * (FILL_BYTES / BLOCK_BYTES) as u64;
        let written = namespace.write(first, bytes.freeze(), false, TIMEOUT);
        written.await.expect("written");
    }
    namespace.close().await.expect("in order");
}

async fn command(address: SocketAddr, row: Row, extent: Extent) -> Speed {
    let namespace = connected(address, row.digests).await;
    let namespace = Rc::new(namespace);
    let count = Rc::new(Cell::new(0_u64));
    // A clock for all: one a command would be none that the bare exchange reads.
    let is_over = Rc::new(Cell::new(false));
    let over = Rc::clone(&is_over);
    let clock = spawn_local(async move {
        extent.passed().await;
        over.set(true);
    });
    let started = Instant::now();
    let before = core_counts();
    let tasks: Vec<_> = (0..row.depth)
        .map(|task| {
            let (namespace, count) = (Rc::clone(&namespace), Rc::clone(&count));
            let is_over = Rc::clone(&is_over);
            spawn_local(async move {
                let mut region = Some(arena().alloc(row.len).expect("room"));
                let pieces = DISK_BYTES / row.len as u64;
                let mut piece = task as u64 * 7919;
                while !is_over.get() {
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
                    is_over.set(is_over.get() || extent.is_enough(count.get()));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let per_s = count.get() as f64 / started.elapsed().as_secs_f64();
    drop(clock);
    extent::tell(before, count.get());
    let namespace = Rc::into_inner(namespace).expect("its tasks have ended");
    namespace.close().await.expect("in order");
    Speed { per_s }
}
