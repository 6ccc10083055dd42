//! The serving side of a row: this program again, as a process of its own, pinned.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use lunette_bench::coordinator::{self, loopback};
use lunette_bench::harness::Plan;
use lunette_kvstore::{ClusterOptions, Node, NodeOptions};
use lunette_nvmeof::proto::controller::Secrets;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::{Disk, Export, ExportedDisk, MemoryDisk, Server, ServerOptions};
use lunette_runtime::arena::{Exposed, HugePages};
use lunette_runtime::net::{TcpListener, TcpStream};
use lunette_runtime::{
    ControlHere, CoreOptions, Idle, Placement, arena, block_on, spawn_local, topology,
};
use lunette_runtime_core::ids::NodeId;
use lunette_transfer::engine::{Engine, EngineHost, EngineOptions, RegisterOptions};

use crate::raw;

/// Bytes of a ping and of its echo.
pub(crate) const PING_BYTES: usize = 64;
/// Bytes of a raw request: those of the product's request for an object.
pub(crate) const REQUEST_BYTES: usize = 58;
/// Memory of the store node under measurement.
const NODE_MEMORY_BYTES: u64 = 256 << 20;

/// What a serving process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Serve {
    /// Echoes pings with the product's runtime.
    Echo,
    /// A store node.
    Store,
    /// A store node that is the only member of a cluster, and its coordinator.
    Member,
    /// A transfer engine with one segment.
    Engine,
    /// A transfer engine of a core, as `lunette transfer serve` has it, with nothing in it.
    EngineIdle,
    /// A disk in memory, over NVMe/TCP.
    Disk,
    /// The raw loop: whatever the connection begins by saying.
    RawPump,
    /// The raw loop: a ping for a ping.
    RawPing,
    /// The raw loop: 4 KiB for a request.
    #[value(name = "raw-4k")]
    Raw4k,
    /// The raw loop: 1 MiB for a request.
    #[value(name = "raw-1m")]
    Raw1m,
    /// The raw loop: 16 MiB for a request.
    #[value(name = "raw-16m")]
    Raw16m,
    /// The raw loop: 512 KiB for a request.
    #[value(name = "raw-512k")]
    Raw512k,
    /// The raw loop: an answer for 1 MiB.
    #[value(name = "raw-take-1m")]
    RawTake1m,
}

/// The name, the length and the blocks of the disk under measurement.
pub(crate) const DISK_NAME: &str = "nqn.2026-01.lunette:bench";
pub(crate) const DISK_BYTES: usize = 64 << 20;
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// The segment of the engine under measurement.
pub(crate) const SEGMENT: &str = "bench";
/// Its length.
pub(crate) const SEGMENT_BYTES: usize = 16 << 20;
/// The segment of a serving engine that is a part of a mapping, so that nobody maps it.
pub(crate) const SEGMENT_PART: &str = "part";

impl Serve {
    /// Bytes of request and reply of a raw server.
    pub(crate) const fn raw_bytes(self) -> (usize, usize) {
        match self {
            Self::RawPing | Self::RawPump | Self::Echo => (PING_BYTES, PING_BYTES),
            Self::Raw4k | Self::Store | Self::Member | Self::Disk | Self::EngineIdle => {
                (REQUEST_BYTES, 4096)
            }
            Self::Raw1m => (REQUEST_BYTES, 1 << 20),
            Self::Raw16m | Self::Engine => (REQUEST_BYTES, 16 << 20),
            Self::Raw512k => (REQUEST_BYTES, 512 << 10),
            Self::RawTake1m => (1 << 20, REQUEST_BYTES),
        }
    }
}

/// A serving process; killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Peer {
    /// Starts a process and waits until it says where it listens.
    pub(crate) fn start(serve: Serve, plan: &Plan, spin: Duration) -> io::Result<Self> {
        let name = serve.to_possible_value().expect("every kind has a name");
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .arg(name.get_name())
            .arg("--server-cpu")
            .arg(plan.server_cpu.to_string())
            .arg("--spin-us")
            .arg(spin.as_micros().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().expect("piped");
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let address = read.and_then(|_| {
            line.trim()
                .parse()
                .map_err(|_| io::Error::other(format!("{serve:?} did not start")))
        });
        match address {
            Ok(address) => Ok(Self { child, address }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }
}

impl Peer {
    /// A number of what the system tells of the process: `Threads`, `VmRSS` in KiB.
    pub(crate) fn told_by_system(&self, field: &str) -> io::Result<u32> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let told = status.lines().find_map(|line| {
            let (name, rest) = line.split_once(':')?;
            let number = rest.split_whitespace().next();
            number.filter(|_| name == field)?.parse().ok()
        });
        told.ok_or_else(|| io::Error::other(format!("the system does not tell {field}")))
    }

    /// How long its threads have run, all together.
    pub(crate) fn run_time(&self) -> io::Result<Duration> {
        let mut all = Duration::ZERO;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let told = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let ran = told.split_whitespace().next().map(str::parse);
            let Some(Ok(ran_ns)) = ran else {
                return Err(io::Error::other(
                    "the system does not tell how long threads run",
                ));
            };
            all += Duration::from_nanos(ran_ns);
        }
        Ok(all)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        eprintln!("ending a serving process: {error}");
    }
}

/// The body of a serving process; `once` ends a ping's with its first connection.
pub(crate) fn serve(serve: Serve, cpu: usize, spin: Duration, once: bool) -> ExitCode {
    let served = match serve {
        Serve::Echo => serve_echo(cpu, spin, once),
        Serve::Store => serve_store(cpu, spin, None),
        Serve::Member => serve_member(cpu, spin),
        Serve::Engine => serve_engine(cpu, spin),
        Serve::EngineIdle => serve_engine_idle(cpu, spin),
        Serve::Disk => serve_disk(cpu, spin),
        Serve::RawPump
        | Serve::RawPing
        | Serve::Raw4k
        | Serve::Raw1m
        | Serve::Raw16m
        | Serve::Raw512k
        | Serve::RawTake1m => serve_raw(serve, cpu, spin, once),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{serve:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The product's policy that waits as the raw loop does.
pub(crate) const fn idle(spin: Duration) -> Idle {
    if spin.is_zero() {
        Idle::Efficient
    } else {
        Idle::Adaptive(spin)
    }
}

fn announce(address: SocketAddr) -> io::Result<()> {
    println!("{address}");
    io::stdout().flush()
}

fn serve_raw(serve: Serve, cpu: usize, spin: Duration, once: bool) -> io::Result<()> {
    topology::pin_current_thread(cpu).map_err(io::Error::other)?;
    let listener = StdListener::bind(loopback())?;
    announce(listener.local_addr()?)?;
    let (request_bytes, reply_bytes) = serve.raw_bytes();
    loop {
        if serve == Serve::RawPump {
            raw::answer(&listener, spin)?;
        } else {
            raw::serve(&listener, request_bytes, reply_bytes, spin)?;
        }
        if once {
            return Ok(());
        }
    }
}

fn serve_echo(cpu: usize, spin: Duration, once: bool) -> io::Result<()> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    let served = block_on(Some(cpu), options, move || async move {
        let listener = TcpListener::bind(loopback())?;
        announce(listener.local_addr())?;
        loop {
            let stream = listener.accept().await.map_err(io::Error::other)?;
            let answering = spawn_local(echo(stream));
            if once {
                return answering.await.map_err(io::Error::other);
            }
        }
    });
    served.map_err(io::Error::other)?
}

async fn echo(stream: TcpStream) {
    let mut buffer = vec![0; PING_BYTES];
    loop {
        let (received, back) = stream.recv(buffer, 0, PING_BYTES).await;
        let Ok(count @ 1..) = received else { return };
        let (sent, back) = stream.send_all(back, 0, count).await;
        if sent.is_err() {
            return;
        }
        buffer = back;
    }
}

fn serve_engine(cpu: usize, spin: Duration) -> io::Result<()> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    let served = block_on(Some(cpu), options, move || async move {
        let options = EngineOptions {
            listen: vec![loopback()],
            same_host_trust: true,
            ..EngineOptions::default()
        };
        let engine = Engine::start(options).map_err(io::Error::other)?;
        for (name, skipped) in [(SEGMENT, 0), (SEGMENT_PART, 4096)] {
            let len = skipped + SEGMENT_BYTES;
            let whole = Exposed::map(len, HugePages::Transparent, &mut Vec::new())?;
            whole.copy_in(0, &vec![7; len]);
            let memory = whole.slice(skipped, SEGMENT_BYTES);
            let registered = engine.register(memory, &RegisterOptions::named(name));
            registered.map_err(|error| io::Error::other(error.refusal))?;
        }
        announce(engine.addresses()[0])?;
        // Until this process is killed.
        std::future::pending::<io::Result<()>>().await
    });
    served.map_err(io::Error::other)?
}

fn serve_engine_idle(cpu: usize, spin: Duration) -> io::Result<()> {
    let options = EngineOptions {
        listen: vec![loopback()],
        ..EngineOptions::default()
    };
    let core = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    let engine = EngineHost::start(&Placement::Pinned(vec![cpu]), core, &options);
    let engine = engine.map_err(io::Error::other)?;
    announce(engine.addresses()[0])?;
    control_until_killed()
}

fn serve_disk(cpu: usize, spin: Duration) -> io::Result<()> {
    let options = CoreOptions {
        idle: idle(spin),
        ..CoreOptions::default()
    };
    let served = block_on(Some(cpu), options, move || async move {
        let listener = TcpListener::bind(loopback())?;
        let address = listener.local_addr();
        let disk = MemoryDisk::new(DISK_BYTES as u64).map_err(io::Error::other)?;
        // As `lunette nvme serve` does.
        drop(spawn_local(async { arena().touch_ahead(DISK_BYTES).await }));
        let export = Export {
            name: Nqn::new(DISK_NAME).map_err(io::Error::other)?,
            hosts: None,
            secrets: Secrets::default(),
            disks: vec![ExportedDisk {
                disk: Disk::Memory(disk),
                block_bytes: BLOCK_BYTES,
                uuid: [1; 16],
                is_read_only: false,
                ana_group: 1,
            }],
        };
        let server = Server::new(ServerOptions::default(), vec![export], &[address]);
        let server = server.map_err(io::Error::other)?;
        announce(address)?;
        server.serve(listener, std::future::pending()).await;
        Ok(())
    });
    served.map_err(io::Error::other)?
}

fn serve_member(cpu: usize, spin: Duration) -> io::Result<()> {
    let (_coordinator, address) = coordinator::start()?;
    let cluster = ClusterOptions::new("bench", vec![address]);
    serve_store(cpu, spin, Some(cluster))
}

fn serve_store(cpu: usize, spin: Duration, cluster: Option<ClusterOptions>) -> io::Result<()> {
    let is_member = cluster.is_some();
    let mut options = NodeOptions::new(NodeId(1), loopback(), NODE_MEMORY_BYTES);
    options.placement = Placement::Pinned(vec![cpu]);
    options.idle = idle(spin);
    options.cluster = cluster;
    let node = Node::start(options).map_err(io::Error::other)?;
    if is_member {
        node.joined().map_err(io::Error::other)?;
    }
    announce(node.address())?;
    control_until_killed()
}

/// What `lunette` does on its main thread.
fn control_until_killed() -> io::Result<()> {
    let mut control = ControlHere::take().map_err(io::Error::other)?;
    loop {
        control.serve_for(Duration::from_secs(1));
    }
}
