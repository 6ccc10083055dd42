//! Reads and writes of a disk in the memory of another process, over NVMe/TCP, beside a bare exchange of as many bytes.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lunette_bench::calls::{Calls, Measure, Pace};
use lunette_bench::harness::{Failure, Goal};
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{HostConfig, NamespaceOptions, RemoteNamespace};
use lunette_runtime::{CoreOptions, arena, block_on, spawn_local, topology};
use lunette_runtime_core::random::SplitMix64;

use super::{Asking, PING, Rival, Row};
use crate::peer::{BLOCK_BYTES, DISK_BYTES, DISK_NAME, Serve, idle};
use crate::raw::{self, Exchange};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The disk is written once, in its order, in pieces so long: what was never written is one piece of zeroes.
const FILL_BYTES: usize = 128 * 1024;
/// Lengths of a command with its header, and of what comes beside data: a completion, or the header of data that ends with
/// success.
const COMMAND_BYTES: usize = 72;
const COMPLETION_BYTES: usize = 24;

/// Commands without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commands {
    writes: bool,
    /// Of each.
    bytes: usize,
    /// Under way at a time.
    depth: usize,
    /// Each somewhere else, as against one behind the other.
    random: bool,
    digests: bool,
}

impl Commands {
    /// What a bare exchange of as many bytes is; `walks` through as much memory, too.
    const fn exchange(self, walks: bool) -> Exchange {
        let (out_bytes, in_bytes) = if self.writes {
            (self.bytes, 0)
        } else {
            (0, self.bytes)
        };
        Exchange {
            request_bytes: COMMAND_BYTES + out_bytes,
            answer_bytes: COMPLETION_BYTES + in_bytes,
            depth: self.depth,
            walk_bytes: if walks { DISK_BYTES } else { 0 },
            // What is written lies where it was received: nobody knows its place before.
            header_bytes: if self.random && !self.writes {
                COMPLETION_BYTES
            } else {
                0
            },
        }
    }
}

const SMALL: Commands = Commands {
    writes: false,
    bytes: 4096,
    depth: 32,
    random: true,
    digests: false,
};
const LARGE: Commands = Commands {
    bytes: 128 * 1024,
    depth: 8,
    random: false,
    ..SMALL
};

/// A row beside an exchange through as much memory, or through what stays in a cache.
const fn row(name: &'static str, commands: Commands, walks: bool) -> Row {
    Row {
        name,
        unit: "GB/s",
        rival_name: if walks {
            "raw io_uring loop over the same working set"
        } else {
            "raw io_uring loop, always the same bytes"
        },
        goal: Goal::AtLeast(if commands.digests { 0.75 } else { 0.90 }),
        asking: Asking::Disk(commands),
        ours: Serve::Disk,
        rival: Rival::Pump { commands, walks },
        measure: Measure::Throughput {
            bytes: commands.bytes * commands.depth,
        },
        ..PING
    }
}

const fn with_digests(commands: Commands) -> Commands {
    Commands {
        digests: true,
        ..commands
    }
}

const fn to_disk(commands: Commands) -> Commands {
    Commands {
        writes: true,
        ..commands
    }
}

const ONE: Commands = Commands { depth: 1, ..SMALL };

pub(super) const ROWS: [Row; 14] = [
    Row {
        unit: "us p50",
        goal: Goal::AtMost(1.3),
        measure: Measure::P50,
        ..row("nvme_read_4k_depth_1", ONE, true)
    },
    row("nvme_read_4k_depth_1_rate", ONE, true),
    row("nvme_read_4k_depth_32", SMALL, true),
    row("nvme_write_4k_depth_32", to_disk(SMALL), true),
    row("nvme_read_128k", LARGE, true),
    row("nvme_write_128k", to_disk(LARGE), true),
    row("nvme_read_4k_depth_32_digests", with_digests(SMALL), true),
    row(
        "nvme_write_4k_depth_32_digests",
        with_digests(to_disk(SMALL)),
        true,
    ),
    row("nvme_read_128k_digests", with_digests(LARGE), true),
    row(
        "nvme_write_128k_digests",
        with_digests(to_disk(LARGE)),
        true,
    ),
    row("nvme_read_4k_depth_32:cached", SMALL, false),
    row("nvme_write_4k_depth_32:cached", to_disk(SMALL), false),
    row("nvme_read_128k:cached", LARGE, false),
    row("nvme_write_128k:cached", to_disk(LARGE), false),
];

/// Calls of as many commands as are under way at a time: a call ends with the last of so many completions.
struct Counted {
    calls: Calls,
    depth: usize,
    done: usize,
}

impl Counted {
    fn new(depth: usize) -> Self {
        let mut calls = Calls::new(Pace::Hot);
        calls.begin();
        Self {
            calls,
            depth,
            done: 0,
        }
    }

    /// So many commands have completed. Whether more are to be sent.
    fn count(&mut self, completed: usize) -> bool {
        self.done += completed;
        if self.done < self.depth {
            return true;
        }
        // More than one at once took as long together as the first.
        while self.done >= self.depth {
            self.done -= self.depth;
            self.calls.end();
            self.calls.begin();
        }
        self.calls.go_on()
    }
}

/// The bare exchange.
pub(super) fn exchange(
    server: SocketAddr,
    cpu: usize,
    spin: Duration,
    commands: Commands,
    walks: bool,
) -> Result<Calls, String> {
    topology::pin_current_thread(cpu).map_err(|error| error.to_string())?;
    let mut counted = Counted::new(commands.depth);
    let exchange = commands.exchange(walks);
    let asked = raw::ask(server, exchange, spin, |count| counted.count(count));
    asked.map_err(|error| error.to_string())?;
    Ok(counted.calls)
}

pub(super) fn measure(
    server: SocketAddr,
    cpu: usize,
    spin: Duration,
    commands: Commands,
) -> Result<Calls, Failure> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    block_on(Some(cpu), options, move || ask(server, commands))?
}

async fn ask(server: SocketAddr, commands: Commands) -> Result<Calls, Failure> {
    let namespace = Rc::new(connected(server, commands).await?);
    fill(&namespace).await?;
    let counted = Rc::new(RefCell::new(Counted::new(commands.depth)));
    let places = Rc::new(Places::new(commands));
    let tasks: Vec<_> = (0..commands.depth)
        .map(|_| {
            let (namespace, places) = (Rc::clone(&namespace), Rc::clone(&places));
            let counted = Rc::clone(&counted);
            spawn_local(async move {
                let done = command(&namespace, &places, &counted, commands).await;
                done.map_err(|error| error.to_string())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let namespace = Rc::into_inner(namespace).ok_or("a task keeps the namespace")?;
    namespace.close().await?;
    let counted = Rc::into_inner(counted).ok_or("a task keeps the calls")?;
    Ok(counted.into_inner().calls)
}

/// One command after the other.
async fn command(
    namespace: &RemoteNamespace,
    places: &Places,
    counted: &RefCell<Counted>,
    commands: Commands,
) -> Result<(), Failure> {
    let mut region = Some(arena().alloc(commands.bytes)?);
    while let Some(buffer) = region.take() {
        let first = places.next();
        let buffer = if commands.writes {
            let shared = buffer.freeze();
            namespace
                .write(first, shared.clone(), false, TIMEOUT)
                .await?;
            shared
                .try_unfreeze()
                .or_else(|_| arena().alloc(commands.bytes))?
        } else {
            namespace
                .read(first, buffer, TIMEOUT)
                .await
                .map_err(|failure| failure.error)?
        };
        region = counted.borrow_mut().count(1).then_some(buffer);
    }
    Ok(())
}

/// The first block of each command.
struct Places {
    random: Option<RefCell<SplitMix64>>,
    next: Cell<u32>,
    pieces: u32,
    blocks: u64,
}

impl Places {
    fn new(commands: Commands) -> Self {
        let pieces = DISK_BYTES / commands.bytes;
        Self {
            random: commands.random.then(|| RefCell::new(SplitMix64::new(1))),
            next: Cell::new(0),
            pieces: u32::try_from(pieces).expect("the disk is small"),
            blocks: commands.bytes as u64 / u64::from(BLOCK_BYTES),
        }
    }

    fn next(&self) -> u64 {
        let piece = match &self.random {
            Some(random) => random.borrow_mut().below(self.pieces),
            None => self.next.replace((self.next.get() + 1) % self.pieces),
        };
        u64::from(piece) * self.blocks
    }
}

async fn connected(server: SocketAddr, commands: Commands) -> Result<RemoteNamespace, Failure> {
    let digests = if commands.digests {
        Digests::BOTH
    } else {
        Digests::NONE
    };
    let config = HostConfig {
        digests,
        ..HostConfig::new(Nqn::new("nqn.2026-01.lunette:bench-host")?, [1; 16])
    };
    let options = NamespaceOptions::new(server, Nqn::new(DISK_NAME)?, config);
    Ok(RemoteNamespace::connect(options).await?)
}

/// Writes every block once.
async fn fill(namespace: &RemoteNamespace) -> Result<(), Failure> {
    let blocks = FILL_BYTES as u64 / u64::from(BLOCK_BYTES);
    for granule in 0..(DISK_BYTES / FILL_BYTES) as u64 {
        let mut bytes = arena().alloc(FILL_BYTES)?;
        bytes.as_mut_slice().fill(1);
        let written = namespace.write(granule * blocks, bytes.freeze(), false, TIMEOUT);
        written.await?;
    }
    Ok(())
}
