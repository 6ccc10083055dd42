//! `lunette nvme`: disks over NVMe/TCP, served and used.

use std::cell::{Cell, RefCell};
use std::env;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use lunette::runtime::arena::{AllocError, ArenaOptions, RegionMut};
use lunette::runtime::net::TcpListener;
use lunette::runtime::{CoreOptions, StartError, arena, block_on, spawn_local, time};
use lunette_nvmeof::proto::host::ReconnectOptions;
use lunette_nvmeof::proto::identify::IdentifyNamespace;
use lunette_nvmeof::proto::log_page::DiscoveryRecord;
use lunette_nvmeof::proto::nqn::{Nqn, NqnFault};
use lunette_nvmeof::proto::pdu::Digests;
use lunette_nvmeof::{
    CommandError, ConnectError, Disk, Export, ExportedDisk, FileDisk, FileDiskError, HostConfig,
    MemoryDisk, NamespaceOptions, RemoteController, RemoteNamespace, Server, ServerError,
    ServerOptions, discover,
};
use lunette_runtime_core::random::{SplitMix64, mix};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use thiserror::Error;

use super::arguments::IdleChoice;
use super::failure::Failure;
use super::output;
use super::size::Size;

/// Lets a server listen beyond loopback if it is 1.
const INSECURE: &str = "LUNETTE_INSECURE";
/// Memory that a server needs beside that of its disk: what is under way.
const WORKING_BYTES: u64 = 256 << 20;
/// How often a server looks whether it is to end.
const END_PAUSE: Duration = Duration::from_millis(50);
/// How long one command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Serve and use disks over NVMe/TCP.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette nvme serve --memory 1GiB &
  lunette nvme discover 127.0.0.1:4420
  lunette nvme bench 127.0.0.1:4420 --size 4KiB --depth 32
  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.lunette:disk    # the kernel's host")]
pub(crate) struct NvmeArguments {
    #[command(subcommand)]
    command: NvmeCommand,
}

#[derive(Debug, Subcommand)]
enum NvmeCommand {
    /// Serve a disk, until SIGINT or SIGTERM.
    Serve(ServeArguments),
    /// Show what a target offers.
    Discover(DiscoverArguments),
    /// Show a controller and its namespaces.
    Identify(SubsystemArguments),
    /// Read bytes to a file or standard output.
    Read(ReadArguments),
    /// Write a file, or standard input.
    Write(WriteArguments),
    /// Measure reads or writes.
    Bench(BenchArguments),
}

#[derive(Args, Debug)]
struct ServeArguments {
    /// A file or block device that exists.
    #[arg(long, value_name = "FILE", required_unless_present = "memory")]
    file: Option<PathBuf>,
    /// A disk in memory of this size.
    #[arg(long, value_name = "SIZE", value_parser = Size::parse, conflicts_with = "file")]
    memory: Option<Size>,
    /// Address and port to listen on; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4420")]
    listen: SocketAddr,
    /// The subsystem's name.
    #[arg(long, value_name = "NQN", default_value = SUBSYSTEM, value_parser = Nqn::new)]
    nqn: Nqn,
    /// Length of a block in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    block: u32,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// What the core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    idle: IdleChoice,
}

/// The name of what is served, unless another one is given.
const SUBSYSTEM: &str = "nqn.2026-01.lunette:disk";

#[derive(Args, Debug)]
struct DiscoverArguments {
    /// Where the target listens.
    address: SocketAddr,
}

#[derive(Args, Debug)]
struct SubsystemArguments {
    /// Where the target listens.
    address: SocketAddr,
    /// The subsystem.
    #[arg(default_value = SUBSYSTEM, value_parser = Nqn::new)]
    nqn: Nqn,
    /// Digests to ask for.
    #[arg(long, value_enum, default_value_t = DigestChoice::None)]
    digests: DigestChoice,
    /// The namespace.
    #[arg(long, default_value_t = 1)]
    nsid: u32,
}

#[derive(Args, Debug)]
struct ReadArguments {
    #[command(flatten)]
    subsystem: SubsystemArguments,
    /// First byte: a multiple of a block.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// How much: a multiple of a block. Default: up to the end.
    #[arg(long, value_name = "SIZE", value_parser = Size::parse)]
    length: Option<Size>,
    /// Where to. Default: standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct WriteArguments {
    #[command(flatten)]
    subsystem: SubsystemArguments,
    /// First byte: a multiple of a block.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// The file; - is standard input. It is filled up with zeroes to whole blocks.
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    input: PathBuf,
}

#[derive(Args, Debug)]
struct BenchArguments {
    #[command(flatten)]
    subsystem: SubsystemArguments,
    /// Length of one command's data.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = Size::parse)]
    size: Size,
    /// Commands in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    depth: u16,
    /// How long.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Write instead of reading. What was there is lost.
    #[arg(long)]
    write: bool,
    /// One after the other instead of anywhere.
    #[arg(long)]
    sequential: bool,
    /// What the core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    idle: IdleChoice,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DigestChoice {
    None,
    Header,
    Data,
    Both,
}

impl DigestChoice {
    const fn digests(self) -> Digests {
        Digests {
            header: matches!(self, Self::Header | Self::Both),
            data: matches!(self, Self::Data | Self::Both),
        }
    }
}

/// What can go wrong with disks over NVMe/TCP.
#[derive(Debug, Error)]
pub(crate) enum NvmeFailure {
    #[error(transparent)]
    Name(#[from] NqnFault),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Disk(#[from] FileDiskError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Memory(#[from] AllocError),
    #[error(
        "{what} must be a multiple of the block, {block_bytes} bytes, and inside the namespace"
    )]
    Range {
        what: &'static str,
        block_bytes: u32,
    },
    #[error("{name}: {error}")]
    File { name: String, error: io::Error },
}

impl NvmeFailure {
    /// As `lunette --help` lists them.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Name(_) | Self::Server(_) | Self::Range { .. } => 2,
            Self::Connect(ConnectError::Connect(_) | ConnectError::TimedOut) => 4,
            _ => 1,
        }
    }

    fn file(name: &str, error: io::Error) -> Self {
        let name = name.to_owned();
        Self::File { name, error }
    }
}

type Outcome<T> = Result<T, NvmeFailure>;

/// Does what is asked.
pub(super) fn nvme(arguments: NvmeArguments, as_json: bool) -> Result<(), Failure> {
    match arguments.command {
        NvmeCommand::Serve(arguments) => serve(arguments, as_json),
        NvmeCommand::Discover(arguments) => {
            let records = on_core(async move || {
                Ok(discover(arguments.address, config(Digests::NONE, 1)?).await?)
            })?;
            say_records(&records, as_json)
        }
        NvmeCommand::Identify(arguments) => {
            let found = on_core(async move || identify(&arguments).await)?;
            output::line(&found.to_string())
        }
        NvmeCommand::Read(arguments) => on_core(async move || read(&arguments).await),
        NvmeCommand::Write(arguments) => on_core(async move || write(&arguments).await),
        NvmeCommand::Bench(arguments) => {
            let idle = arguments.idle;
            let measured = run(core(idle, 0), async move || bench(arguments).await)?;
            output::line(&measured.to_string())
        }
    }
}

fn core(idle: IdleChoice, disk_bytes: u64) -> CoreOptions {
    // A quarter more, since pieces are rounded up.
    let bytes_max = disk_bytes + disk_bytes / 4 + WORKING_BYTES;
    CoreOptions {
        idle: idle.policy(),
        arena: ArenaOptions {
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            ..ArenaOptions::default()
        },
        ..CoreOptions::default()
    }
}

fn run<T: 'static>(
    options: CoreOptions,
    work: impl AsyncFnOnce() -> Outcome<T> + 'static,
) -> Result<T, Failure> {
    let ran: Result<Outcome<T>, StartError> =
        block_on(None, options, move || async move { work().await });
    Ok(ran??)
}

fn on_core<T: 'static>(work: impl AsyncFnOnce() -> Outcome<T> + 'static) -> Result<T, Failure> {
    run(core(IdleChoice::Adaptive, 0), work)
}

fn serve(arguments: ServeArguments, as_json: bool) -> Result<(), Failure> {
    let is_insecure = env::var_os(INSECURE).is_some_and(|value| value == "1");
    if !arguments.listen.ip().is_loopback() && !is_insecure {
        return Err(Failure::NotLoopback(arguments.listen));
    }
    let ends = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = flag::register(signal, std::sync::Arc::clone(&ends));
        registered.map_err(|error| Failure::file("signals", error))?;
    }
    let memory_bytes = arguments.memory.map_or(0, |size| size.0);
    run(core(arguments.idle, memory_bytes), async move || {
        let listener = TcpListener::bind(arguments.listen)
            .map_err(|error| NvmeFailure::file(&arguments.listen.to_string(), error))?;
        let address = listener.local_addr();
        let disk = match &arguments.file {
            Some(path) => Disk::File(FileDisk::open(path, arguments.block).await?),
            None => Disk::Memory(MemoryDisk::new(memory_bytes)?),
        };
        let len_bytes = disk.len_bytes();
        let export = Export {
            disks: vec![ExportedDisk {
                disk,
                block_bytes: arguments.block,
                uuid: uuid_of(arguments.nqn.as_str()),
                is_read_only: arguments.read_only,
                ana_group: 1,
            }],
            name: arguments.nqn.clone(),
            hosts: None,
        };
        let server = Server::new(ServerOptions::default(), vec![export], &[address])?;
        let line = if as_json {
            let ready = json!({
                "ready": true,
                "address": address.to_string(),
                "nqn": arguments.nqn.as_str(),
                "bytes": len_bytes,
            });
            ready.to_string()
        } else {
            format!(
                "serving {len_bytes} bytes as {} on {address}",
                arguments.nqn
            )
        };
        output::raw(format!("{line}\n").as_bytes())
            .map_err(|failure| NvmeFailure::file("standard output", io::Error::other(failure)))?;
        let ended = async move {
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                time::sleep(END_PAUSE).await;
            }
        };
        server.serve(listener, ended).await;
        Ok(())
    })
}

/// The same for the same name: version 8, made by rules of our own.
fn uuid_of(name: &str) -> [u8; 16] {
    let fold = |seed: u64| {
        name.bytes()
            .fold(seed, |sum, byte| mix(sum ^ u64::from(byte)))
    };
    let wide = u128::from(fold(1)) << 64 | u128::from(fold(2));
    let mut uuid = wide.to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

fn config(digests: Digests, depth: u16) -> Outcome<HostConfig> {
    let host_id = uuid_of(&format!("host {}", process::id()));
    Ok(HostConfig {
        host: Nqn::new(&format!("nqn.2026-01.lunette:host.{}", process::id()))?,
        host_id,
        digests,
        commands_max: depth,
        io_queues: 1,
        keep_alive: Duration::from_secs(15),
        timeout: Duration::from_secs(10),
    })
}

fn say_records(records: &[DiscoveryRecord], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let records = records.iter().map(|record| {
            json!({ "nqn": record.subsystem.as_str(), "address": record.address.to_string() })
        });
        return output::line(&Value::from_iter(records).to_string());
    }
    for record in records {
        let kind = record.kind;
        output::line(&format!("{} {} {kind:?}", record.address, record.subsystem))?;
    }
    Ok(())
}

async fn identify(arguments: &SubsystemArguments) -> Outcome<Value> {
    let config = config(arguments.digests.digests(), 1)?;
    let controller = RemoteController::connect(arguments.address, &arguments.nqn, config).await?;
    let association = controller.association();
    let identity = &association.identity;
    let mut namespaces = Vec::new();
    for nsid in controller.namespaces().await? {
        if let Some(IdentifyNamespace {
            blocks,
            block_bytes_log2,
            ..
        }) = controller.namespace(nsid).await?
        {
            let block_bytes = 1_u64 << block_bytes_log2;
            namespaces.push(json!({
                "nsid": nsid, "block_bytes": block_bytes, "bytes": blocks * block_bytes,
            }));
        }
    }
    let said = json!({
        "controller": association.controller_id,
        "serial": identity.serial,
        "model": identity.model,
        "firmware": identity.firmware,
        "in_capsule_bytes": identity.in_capsule_bytes,
        "transfer_bytes_max": identity.transfer_bytes_max(),
        "io_queues": association.io_queues,
        "entries": association.entries,
        "namespaces": namespaces,
    });
    controller.shut_down().await?;
    Ok(said)
}

async fn connect(arguments: &SubsystemArguments, depth: u16) -> Outcome<RemoteNamespace> {
    let options = NamespaceOptions {
        address: arguments.address,
        subsystem: arguments.nqn.clone(),
        nsid: arguments.nsid,
        config: config(arguments.digests.digests(), depth)?,
        reconnect: ReconnectOptions::default(),
        seed: u64::from(process::id()),
    };
    Ok(RemoteNamespace::connect(options).await?)
}

/// Splits a range into commands.
fn pieces(namespace: &RemoteNamespace, offset: u64, len: u64) -> Outcome<Vec<(u64, usize)>> {
    let identity = namespace.identity();
    let block_bytes = identity.block_bytes();
    let range = |what| NvmeFailure::Range { what, block_bytes };
    let whole = u64::from(block_bytes);
    let bytes = identity.blocks * whole;
    if !offset.is_multiple_of(whole) || offset > bytes {
        return Err(range("the offset"));
    }
    if !len.is_multiple_of(whole) || len > bytes - offset {
        return Err(range("the length"));
    }
    let step = u64::from(namespace.transfer_bytes_max());
    let starts = (0..len.div_ceil(step)).map(|index| index * step);
    let piece = |start: u64| {
        let piece_bytes = usize::try_from(step.min(len - start)).expect("a piece is short");
        ((offset + start) / whole, piece_bytes)
    };
    Ok(starts.map(piece).collect())
}

async fn read(arguments: &ReadArguments) -> Outcome<()> {
    let namespace = connect(&arguments.subsystem, 2).await?;
    let identity = namespace.identity();
    let bytes = identity.blocks << identity.block_bytes_log2;
    let left_bytes = bytes.saturating_sub(arguments.offset);
    let len = arguments.length.map_or(left_bytes, |size| size.0);
    let name = arguments
        .output
        .as_ref()
        .map(|path| path.display().to_string());
    let name = name.unwrap_or_else(|| "standard output".to_owned());
    let failed = |error| NvmeFailure::file(&name, error);
    let mut out: Box<dyn io::Write> = match &arguments.output {
        Some(path) => Box::new(fs::File::create(path).map_err(failed)?),
        None => Box::new(io::stdout().lock()),
    };
    for (first, len) in pieces(&namespace, arguments.offset, len)? {
        let region = arena().alloc(len)?;
        let read = namespace.read(first, region, COMMAND_TIMEOUT).await;
        let region = read.map_err(|failure| failure.error)?;
        out.write_all(region.as_slice()).map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    Ok(namespace.close().await?)
}

async fn write(arguments: &WriteArguments) -> Outcome<()> {
    let namespace = connect(&arguments.subsystem, 2).await?;
    let name = arguments.input.display().to_string();
    let mut bytes = Vec::new();
    let read = if name == "-" {
        io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        fs::read(&arguments.input).map(|found| bytes = found)
    };
    read.map_err(|error| NvmeFailure::file(&name, error))?;
    let block_bytes = namespace.identity().block_bytes() as usize;
    bytes.resize(bytes.len().next_multiple_of(block_bytes), 0);
    let mut rest = &bytes[..];
    for (first, len) in pieces(&namespace, arguments.offset, bytes.len() as u64)? {
        let (front, behind) = rest.split_at(len);
        let mut region = arena().alloc(len)?;
        region.as_mut_slice().copy_from_slice(front);
        let written = namespace
            .write(first, region.freeze(), false, COMMAND_TIMEOUT)
            .await;
        written.map_err(|failure| failure.error)?;
        rest = behind;
    }
    namespace
        .flush(COMMAND_TIMEOUT)
        .await
        .map_err(|failure| failure.error)?;
    Ok(namespace.close().await?)
}

/// What the tasks of a measurement share.
struct Measurement {
    namespace: RemoteNamespace,
    latencies_ns: RefCell<Histogram<u64>>,
    random: RefCell<SplitMix64>,
    next: Cell<u64>,
    /// Pieces of the namespace, and blocks of one.
    pieces: u64,
    piece_blocks: u64,
    piece_bytes: usize,
    is_sequential: bool,
    ends_at: Instant,
}

impl Measurement {
    fn first(&self) -> u64 {
        let piece = if self.is_sequential {
            self.next.replace(self.next.get() + 1) % self.pieces
        } else {
            self.random.borrow_mut().next() % self.pieces
        };
        piece * self.piece_blocks
    }

    /// Commands one after the other until the time is over.
    async fn keep_one_in_flight(self: Rc<Self>, writes: bool) -> Result<(), CommandError> {
        let mut region: Option<RegionMut> = Some(arena().alloc(self.piece_bytes)?);
        while Instant::now() < self.ends_at {
            let started = Instant::now();
            let buffer = region.take().expect("each command gives it back");
            if writes {
                let shared = buffer.freeze();
                let writing =
                    self.namespace
                        .write(self.first(), shared.clone(), false, COMMAND_TIMEOUT);
                writing.await.map_err(|failure| failure.error)?;
                // A message may hold it a moment longer.
                region = Some(match shared.try_unfreeze() {
                    Ok(buffer) => buffer,
                    Err(_held) => arena().alloc(self.piece_bytes)?,
                });
            } else {
                let reading = self.namespace.read(self.first(), buffer, COMMAND_TIMEOUT);
                region = Some(reading.await.map_err(|failure| failure.error)?);
            }
            let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.latencies_ns.borrow_mut().saturating_record(elapsed_ns);
        }
        Ok(())
    }
}

async fn bench(arguments: BenchArguments) -> Outcome<Value> {
    let namespace = connect(&arguments.subsystem, arguments.depth).await?;
    let identity = *namespace.identity();
    let block_bytes = identity.block_bytes();
    let size = arguments.size.0;
    let fits = size <= u64::from(namespace.transfer_bytes_max());
    let pieces = (identity.blocks << identity.block_bytes_log2) / size;
    if !fits || !size.is_multiple_of(u64::from(block_bytes)) || pieces == 0 {
        return Err(NvmeFailure::Range {
            what: "the size",
            block_bytes,
        });
    }
    let longest_ns = u64::try_from(COMMAND_TIMEOUT.as_nanos()).unwrap_or(u64::MAX);
    let latencies_ns = Histogram::new_with_bounds(1, longest_ns, 3);
    let latencies_ns = latencies_ns.expect("bounds and digits that are allowed");
    let started = Instant::now();
    let measurement = Rc::new(Measurement {
        namespace,
        latencies_ns: RefCell::new(latencies_ns),
        random: RefCell::new(SplitMix64::new(1)),
        next: Cell::new(0),
        pieces,
        piece_blocks: size >> identity.block_bytes_log2,
        piece_bytes: usize::try_from(size).expect("a command's data are short"),
        is_sequential: arguments.sequential,
        ends_at: started + Duration::from_secs(arguments.seconds),
    });
    let tasks: Vec<_> = (0..arguments.depth)
        .map(|_| spawn_local(Rc::clone(&measurement).keep_one_in_flight(arguments.write)))
        .collect();
    for task in tasks {
        task.await.expect("a task that nobody cancels")?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let latencies_ns = measurement.latencies_ns.borrow();
    let count = latencies_ns.len();
    let us = |quantile| latencies_ns.value_at_quantile(quantile) as f64 / 1e3;
    Ok(json!({
        "commands": count,
        "iops": (count as f64 / seconds).round(),
        "megabytes_per_s": (count as f64 * size as f64 / seconds / 1e4).round() / 100.0,
        "p50_us": us(0.5),
        "p99_us": us(0.99),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_names_follow_from_names() {
        assert_eq!(uuid_of("nqn.a"), uuid_of("nqn.a"));
        assert_ne!(uuid_of("nqn.a"), uuid_of("nqn.b"));
        let uuid = uuid_of(SUBSYSTEM);
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2), "version and variant");
    }

    #[test]
    fn failures_have_the_exit_codes_of_the_help() {
        let refused = lunette::runtime::OpError::Cancelled;
        let unreachable = NvmeFailure::Connect(ConnectError::Connect(refused));
        assert_eq!(unreachable.exit_code(), 4);
        assert_eq!(NvmeFailure::Name(NqnFault::Malformed).exit_code(), 2);
        let error = CommandError::DeadlineExceeded;
        assert_eq!(NvmeFailure::Command(error).exit_code(), 1);
    }

    #[test]
    fn ranges_are_split_into_commands() {
        let served = on_core(async || {
            let address = "127.0.0.1:0".parse().expect("an address");
            let listener = TcpListener::bind(address).expect("a port");
            let address = listener.local_addr();
            let export = Export {
                name: Nqn::new(SUBSYSTEM)?,
                hosts: None,
                disks: vec![ExportedDisk {
                    disk: Disk::Memory(MemoryDisk::new(4 << 20)?),
                    block_bytes: 4096,
                    uuid: uuid_of(SUBSYSTEM),
                    is_read_only: false,
                    ana_group: 1,
                }],
            };
            let server = Server::new(ServerOptions::default(), vec![export], &[address])?;
            drop(spawn_local(server.serve(listener, std::future::pending())));
            let arguments = SubsystemArguments {
                address,
                nqn: Nqn::new(SUBSYSTEM)?,
                digests: DigestChoice::Both,
                nsid: 1,
            };
            let namespace = connect(&arguments, 2).await?;
            let split = pieces(&namespace, 4096, (2 << 20) + 4096)?;
            assert_eq!(split, [(1, 1 << 20), (257, 1 << 20), (513, 4096)]);
            assert!(pieces(&namespace, 4 << 20, 0)?.is_empty());
            for (offset, len) in [(1, 4096), (0, 1), (4096, 4 << 20), (8 << 20, 0)] {
                let refused = pieces(&namespace, offset, len);
                assert!(
                    matches!(refused, Err(NvmeFailure::Range { .. })),
                    "{offset} {len}"
                );
            }
            Ok(namespace.close().await?)
        });
        served.expect("served");
    }
}
