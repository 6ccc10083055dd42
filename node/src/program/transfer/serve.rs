//! Serving a segment.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use lunette::runtime::arena::{Exposed, HugePages, SharedMemory, Shortfall};
use lunette::runtime::{CoreOptions, Placement, time};
use lunette::transfer::engine::{
    Access, Engine, EngineHost, EngineOptions, FileSegment, FileSegmentOptions, NamespaceSegment,
    NamespaceSegmentOptions, RegisterOptions, Statistics,
};
use lunette_nvmeof::proto::nqn::Nqn;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::adapters::{Adapters, described};
use super::failure::{Outcome, TransferFailure};
use super::neighbours::Neighbours;
use super::policy::{encryption, policy};
use super::run;
use crate::program::arguments::IdleChoice;
use crate::program::failure::Failure;
use crate::program::nvme::{SUBSYSTEM, namespace_at};
use crate::program::output;
use crate::program::size::Size;

/// How often a server looks whether it is to end.
const END_PAUSE: Duration = Duration::from_millis(50);
/// Commands in flight to a namespace, from each core.
const NAMESPACE_DEPTH: u16 = 64;

#[derive(Args, Debug)]
pub(super) struct ServeArguments {
    /// Addresses and ports to listen on, each a rail for those who come; port 0 lets the system
    /// choose.
    #[arg(
        long,
        value_name = "ADDRESS:PORT,...",
        value_delimiter = ',',
        default_value = "127.0.0.1:7600"
    )]
    listen: Vec<SocketAddr>,
    /// The segment's name.
    #[arg(long, value_name = "NAME", default_value = "memory")]
    segment: String,
    /// Serve memory of this length; with --file, so much of the file, which is made that long.
    #[arg(long, value_name = "SIZE", value_parser = Size::parse, required_unless_present_any = ["file", "namespace"])]
    memory: Option<Size>,
    /// Serve this file.
    #[arg(long, value_name = "FILE", conflicts_with = "huge_pages")]
    file: Option<PathBuf>,
    /// Serve the namespace of the NVMe/TCP controller that listens there, in whole blocks. Secrets and keys are
    /// taken from the environment, as by `lunette nvme`.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        conflicts_with_all = ["file", "memory", "huge_pages"]
    )]
    namespace: Option<SocketAddr>,
    /// Its subsystem.
    #[arg(long, value_name = "NQN", requires = "namespace", default_value = SUBSYSTEM, value_parser = Nqn::new)]
    subsystem: Nqn,
    /// Its id.
    #[arg(long, requires = "namespace", default_value_t = 1)]
    nsid: u32,
    /// Read and write the file around the page cache.
    #[arg(long, requires = "file")]
    direct: bool,
    /// Back it with huge pages where the system has them.
    #[arg(long)]
    huge_pages: bool,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    /// Seal what goes over connections. It takes a secret.
    #[arg(long)]
    encrypt: bool,
    #[command(flatten)]
    neighbours: Neighbours,
    #[command(flatten)]
    adapters: Adapters,
    /// Cores to serve on, each with ports of its own: the given ones, and those after them. Each opens the
    /// file, or connects to the namespace, for itself.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    cores: u16,
    /// What a core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    idle: IdleChoice,
}

/// Serves until a signal ends it, and says what was done.
pub(super) fn serve(arguments: ServeArguments, as_json: bool) -> Result<(), Failure> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = flag::register(signal, Arc::clone(&ends));
        registered.map_err(|error| Failure::file("signals", error))?;
    }
    if arguments.adapters.are_wanted() && arguments.cores > 1 {
        return Err(TransferFailure::AdaptersOnCores.into());
    }
    let options = EngineOptions {
        listen: arguments.listen.clone(),
        policy: policy()?,
        encryption: encryption(arguments.encrypt),
        same_host_trust: arguments.neighbours.same_host_trust,
        same_host_dir: arguments.neighbours.same_host_dir.clone(),
        rdma: arguments.adapters.options(),
        ..EngineOptions::default()
    };
    if arguments.cores > 1 {
        let served = serve_on_cores(&arguments, &options, &ends, as_json);
        return served.map_err(Failure::from);
    }
    run(arguments.idle, async move || {
        let engine = Engine::start(options)?;
        let len_bytes = register(&engine, &arguments).await?;
        let segment = &arguments.segment;
        let adapters = described(engine.adapters());
        let addresses = engine.addresses();
        say_ready(addresses, segment, len_bytes, &arguments, adapters, as_json)?;
        while !ends.load(Ordering::Relaxed) {
            time::sleep(END_PAUSE).await;
        }
        let done = engine.statistics();
        engine.close().await;
        say_done(&done, as_json)
    })
}

/// Serves on several cores.
fn serve_on_cores(
    arguments: &ServeArguments,
    options: &EngineOptions,
    ends: &AtomicBool,
    as_json: bool,
) -> Outcome<()> {
    let placement = Placement::Anywhere(usize::from(arguments.cores));
    let core = CoreOptions {
        idle: arguments.idle.policy(),
        ..CoreOptions::default()
    };
    let host = EngineHost::start(&placement, core, options)?;
    let handle = host.handle();
    let options = how(arguments);
    let id = if let Some(namespace) = namespace(arguments)? {
        handle.register_namespace(namespace, options).wait()?
    } else if let Some(file) = &arguments.file {
        let opening = opening(arguments);
        handle.register_file(file, opening, options).wait()?
    } else {
        let memory = map(arguments, SharedMemory::map)?;
        handle.register_shared(memory, options).wait()?
    };
    let len_bytes = handle.len_bytes(id).wait()?;
    let segment = &arguments.segment;
    let none = Vec::new();
    say_ready(
        host.addresses(),
        segment,
        len_bytes,
        arguments,
        none,
        as_json,
    )?;
    while !ends.load(Ordering::Relaxed) {
        thread::sleep(END_PAUSE);
    }
    let done = handle.statistics().wait()?;
    host.close();
    say_done(&done, as_json)
}

fn say_done(done: &Statistics, as_json: bool) -> Outcome<()> {
    let (read, written) = (done.served_read_bytes, done.served_written_bytes);
    say(&if as_json {
        json!({ "served_read_bytes": read, "served_written_bytes": written,
                "refused": done.refused, "corrupted": done.corrupted, "torn": done.torn })
        .to_string()
    } else {
        format!("peers have read {read} bytes and written {written}")
    })
}

/// How the segment is registered.
fn how(arguments: &ServeArguments) -> RegisterOptions {
    RegisterOptions {
        access: if arguments.read_only {
            Access::Read
        } else {
            Access::ReadWrite
        },
        ..RegisterOptions::named(&arguments.segment)
    }
}

/// Registers what is to be served; says how long it is.
async fn register(engine: &Engine, arguments: &ServeArguments) -> Outcome<u64> {
    let options = how(arguments);
    if let Some(namespace) = namespace(arguments)? {
        let segment = NamespaceSegment::connect(namespace).await?;
        let len_bytes = segment.len_bytes();
        let registered = engine.register_namespace(segment, &options);
        registered.map_err(|error| error.refusal)?;
        return Ok(len_bytes);
    }
    let Some(file) = &arguments.file else {
        let memory = map(arguments, Exposed::map)?;
        let len_bytes = memory.len() as u64;
        let registered = engine.register(memory, &options);
        registered.map_err(|error| error.refusal)?;
        return Ok(len_bytes);
    };
    let opened = FileSegment::open(file.clone(), opening(arguments)).await;
    let segment = opened.map_err(|error| TransferFailure::File {
        path: file.clone(),
        error,
    })?;
    let len_bytes = segment.len_bytes();
    let registered = engine.register_file(segment, &options);
    registered.map_err(|error| error.refusal)?;
    Ok(len_bytes)
}

/// How the file is opened.
fn opening(arguments: &ServeArguments) -> FileSegmentOptions {
    FileSegmentOptions {
        write: !arguments.read_only,
        direct: arguments.direct,
        offset_bytes: 0,
        len_bytes: arguments.memory.map(|size| size.0),
    }
}

/// The namespace that is served, if one is.
fn namespace(arguments: &ServeArguments) -> Outcome<Option<NamespaceSegmentOptions>> {
    let Some(address) = arguments.namespace else {
        return Ok(None);
    };
    let subsystem = arguments.subsystem.clone();
    let namespace = namespace_at(address, subsystem, arguments.nsid, NAMESPACE_DEPTH)?;
    Ok(Some(NamespaceSegmentOptions::new(namespace)))
}

/// Maps the memory that is to be served.
fn map<M, E: Into<io::Error>>(
    arguments: &ServeArguments,
    map: impl FnOnce(usize, HugePages, &mut Vec<Shortfall>) -> Result<M, E>,
) -> Outcome<M> {
    let huge_pages = if arguments.huge_pages {
        HugePages::Prefer
    } else {
        HugePages::Never
    };
    let size = arguments.memory.expect("required without a file");
    let len = usize::try_from(size.0).unwrap_or(usize::MAX);
    let mut shortfalls = Vec::new();
    let memory = map(len, huge_pages, &mut shortfalls);
    for shortfall in shortfalls {
        tracing::warn!(%shortfall, "memory");
    }
    memory.map_err(|error| TransferFailure::Memory(error.into()))
}

fn say_ready(
    addresses: &[SocketAddr],
    segment: &str,
    len_bytes: u64,
    arguments: &ServeArguments,
    adapters: Vec<Value>,
    as_json: bool,
) -> Outcome<()> {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let cores = arguments.cores;
    say(&if as_json {
        json!({ "ready": true, "addresses": addresses, "segment": segment, "bytes": len_bytes,
                "cores": cores, "adapters": adapters })
        .to_string()
    } else {
        let addresses = addresses.join(",");
        let on_cores = if cores > 1 {
            format!(", {cores} cores")
        } else {
            String::new()
        };
        format!("serving {len_bytes} bytes as {segment} on {addresses}{on_cores}")
    })
}

fn say(line: &str) -> Outcome<()> {
    let said = output::raw(format!("{line}\n").as_bytes());
    said.map_err(|failure| TransferFailure::Output(io::Error::other(failure)))
}
