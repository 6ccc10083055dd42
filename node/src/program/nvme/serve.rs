//! Serving a disk.

use std::env;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lunette::runtime::net::{REBIND_WAIT, TcpListener};
use lunette::runtime::{Answer, Placement, Runtime, arena, spawn_local, spawn_on, time};
use lunette_nvmeof::proto::controller::{CONTROLLER_ID_MAX, Secrets};
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::{
    Disk, Export, ExportedDisk, FileDisk, MemoryDisk, Server, ServerOptions, SharedDisk,
};
use lunette_runtime_core::ids::CoreIndex;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::ana::{self, StateChoice};
use super::core::{CORES_MAX, core, run};
use super::failure::{NvmeFailure, Outcome};
use super::secrets::{SecretArguments, TlsArguments};
use super::subsystem::{SUBSYSTEM, uuid_of};
use crate::program::arguments::IdleChoice;
use crate::program::failure::Failure;
use crate::program::output;
use crate::program::size::Size;

/// Lets a server listen beyond loopback if it is 1.
const INSECURE: &str = "LUNETTE_INSECURE";
/// Memory of a disk that is touched before it is written, and is made of huge pages so: at most so far ahead.
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// How often a server looks whether it is to end.
const END_PAUSE: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub(super) struct ServeArguments {
    /// A file, block device or NVMe character device (/dev/ng0n1) that exists.
    #[arg(long, value_name = "FILE", required_unless_present = "memory")]
    file: Option<PathBuf>,
    /// A disk in memory of this size.
    #[arg(long, value_name = "SIZE", value_parser = Size::parse, conflicts_with = "file")]
    memory: Option<Size>,
    /// Address and port to listen on; port 0 lets the system choose. Each one is a path to the disk.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4420")]
    listen: Vec<SocketAddr>,
    /// How the disk can be reached by the addresses, in their order. Default: optimized.
    #[arg(long, value_name = "STATE", value_enum)]
    ana: Vec<StateChoice>,
    /// A file that says the same, by lines of an address and a state; read again on SIGHUP.
    #[arg(long, value_name = "FILE")]
    ana_file: Option<PathBuf>,
    /// Ids of controllers. Servers of one subsystem need ranges of their own.
    #[arg(long, value_name = "FIRST-LAST", value_parser = controller_ids)]
    controller_ids: Option<(u16, u16)>,
    /// The subsystem's name.
    #[arg(long, value_name = "NQN", default_value = SUBSYSTEM, value_parser = Nqn::new)]
    nqn: Nqn,
    /// Length of a block in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    block: u32,
    /// Refuse writes.
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    secrets: SecretArguments,
    #[command(flatten)]
    tls: TlsArguments,
    /// Cores that serve. Connections go to them in turn.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(CORES_MAX)))]
    cores: u16,
    /// What a core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    idle: IdleChoice,
}

/// A range of ids, with room for every controller.
fn controller_ids(text: &str) -> Result<(u16, u16), String> {
    let ids = text.split_once('-');
    let ids = ids.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let (first, last): (u16, u16) = ids.ok_or("two numbers with - between them are wanted")?;
    let count = ServerOptions::default().target.controllers_max;
    let is_there = first > 0 && first <= last && last <= CONTROLLER_ID_MAX;
    if !is_there || usize::from(last - first) + 1 < count {
        return Err(format!(
            "{count} ids from 1 to {CONTROLLER_ID_MAX} are wanted"
        ));
    }
    Ok((first, last))
}

/// What signals have asked for.
#[derive(Default)]
struct Asked {
    ends: Arc<AtomicBool>,
    reads_states: Arc<AtomicBool>,
}

impl Asked {
    fn register() -> Result<Self, Failure> {
        let asked = Self::default();
        for (signal, flag) in [
            (SIGINT, &asked.ends),
            (SIGTERM, &asked.ends),
            (SIGHUP, &asked.reads_states),
        ] {
            let registered = flag::register(signal, Arc::clone(flag));
            registered.map_err(|error| Failure::file("signals", error))?;
        }
        Ok(asked)
    }

    /// Does what signals ask for, until they ask for the end.
    async fn follow(self, server: Rc<Server>, states: Option<PathBuf>, at: Vec<SocketAddr>) {
        while !self.ends.load(Ordering::Relaxed) {
            let reads_states = self.reads_states.swap(false, Ordering::Relaxed);
            if let Some(path) = states.as_ref().filter(|_| reads_states)
                && let Err(error) = ana::set_by_file(&server, path, &at)
            {
                tracing::error!(%error, "states stay as they are");
            }
            time::sleep(END_PAUSE).await;
        }
    }
}

/// Serves until a signal ends it.
pub(super) fn serve(arguments: ServeArguments, as_json: bool) -> Result<(), Failure> {
    let is_insecure = env::var_os(INSECURE).is_some_and(|value| value == "1");
    for &address in &arguments.listen {
        if !address.ip().is_loopback() && !is_insecure {
            return Err(Failure::NotLoopback(address));
        }
    }
    let asked = Asked::register()?;
    if arguments.cores == 1 {
        let memory_bytes = arguments.memory.map_or(0, |size| size.0);
        let options = core(arguments.idle, memory_bytes);
        return run(options, async move || {
            serve_here(arguments, asked, as_json).await
        });
    }
    // The cores share the disk, which is in no arena.
    let options = core(arguments.idle, 0);
    let placement = Placement::Anywhere(usize::from(arguments.cores));
    let runtime = Runtime::start(&placement, options)?;
    let serving = move || async move { serve_here(arguments, asked, as_json).await };
    let served = runtime.spawn_on(CoreIndex(0), serving);
    let served = served.and_then(Answer::wait).map_err(NvmeFailure::from)?;
    runtime.shut_down().map_err(NvmeFailure::from)?;
    Ok(served?)
}

/// Serves on this core, the first one, and on the others that there are.
async fn serve_here(arguments: ServeArguments, asked: Asked, as_json: bool) -> Outcome<()> {
    let mut listeners = Vec::new();
    for &address in &arguments.listen {
        let listener = TcpListener::bind_within(address, REBIND_WAIT).await;
        let refused = |error| NvmeFailure::file(&address.to_string(), error);
        listeners.push(listener.map_err(refused)?);
    }
    let addresses: Vec<_> = listeners.iter().map(TcpListener::local_addr).collect();
    let medium = Medium::of(&arguments)?;
    let export = export(&arguments, medium.here().await?)?;
    let len_bytes = export.disks[0].disk.len_bytes();
    let mut options = ServerOptions {
        psk: arguments.tls.psk()?,
        ..ServerOptions::default()
    };
    if let Some(ids) = arguments.controller_ids {
        options.target.controller_ids = ids;
    }
    let cores = usize::from(arguments.cores);
    let (server, seats) = Server::spread(options, vec![export], &addresses, cores)?;
    for (core, seat) in (1..).zip(seats) {
        let medium = medium.clone();
        let taken = spawn_on(CoreIndex(core), move || async move {
            let server = seat.join(vec![vec![medium.here().await?]]);
            drop(spawn_local(server.serve_ports(Vec::new(), pending())));
            Ok::<_, NvmeFailure>(())
        });
        taken.await??;
    }
    ana::set(&server, &arguments.ana);
    if let Some(path) = &arguments.ana_file {
        ana::set_by_file(&server, path, &addresses)?;
    }
    say_ready(&addresses, &arguments.nqn, len_bytes, as_json)?;
    let followed = asked.follow(Rc::clone(&server), arguments.ana_file, addresses);
    server.serve_ports(listeners, followed).await;
    Ok(())
}

/// What the disk lies on, which each core opens for itself.
#[derive(Clone, Debug)]
enum Medium {
    /// Memory of one core, of this length.
    Memory(u64),
    /// Memory that cores share.
    Shared(SharedDisk),
    /// A file, in blocks of this length.
    File(PathBuf, u32),
}

impl Medium {
    fn of(arguments: &ServeArguments) -> Outcome<Self> {
        let memory_bytes = arguments.memory.map_or(0, |size| size.0);
        Ok(match &arguments.file {
            Some(path) => Self::File(path.clone(), arguments.block),
            None if arguments.cores == 1 => Self::Memory(memory_bytes),
            None => {
                let disk = SharedDisk::new(memory_bytes);
                let refused = |error| NvmeFailure::file("memory", io::Error::from(error));
                Self::Shared(disk.map_err(refused)?)
            }
        })
    }

    async fn here(&self) -> Outcome<Disk> {
        Ok(match self {
            Self::Memory(len_bytes) => {
                let disk = MemoryDisk::new(*len_bytes)?;
                let ahead_bytes = usize::try_from(*len_bytes).unwrap_or(usize::MAX);
                let ahead_bytes = ahead_bytes.min(AHEAD_BYTES_MAX);
                drop(spawn_local(async move {
                    arena().touch_ahead(ahead_bytes).await;
                }));
                Disk::Memory(disk)
            }
            Self::Shared(disk) => Disk::Shared(disk.here()),
            Self::File(path, block) => Disk::File(FileDisk::open(path, *block).await?),
        })
    }
}

/// The disk that was asked for, as the only one of its subsystem.
fn export(arguments: &ServeArguments, disk: Disk) -> Outcome<Export> {
    Ok(Export {
        disks: vec![ExportedDisk {
            disk,
            block_bytes: arguments.block,
            uuid: uuid_of(arguments.nqn.as_str()),
            is_read_only: arguments.read_only,
            ana_group: ana::GROUP,
        }],
        name: arguments.nqn.clone(),
        hosts: None,
        secrets: Secrets {
            of_others: arguments.secrets.credentials()?,
            ..Secrets::default()
        },
    })
}

fn say_ready(addresses: &[SocketAddr], nqn: &Nqn, len_bytes: u64, as_json: bool) -> Outcome<()> {
    let listed = || addresses.iter().map(SocketAddr::to_string);
    let line = if as_json {
        let ready = json!({
            "ready": true,
            "address": addresses[0].to_string(),
            "addresses": Vec::from_iter(listed()),
            "nqn": nqn.as_str(),
            "bytes": len_bytes,
        });
        ready.to_string()
    } else {
        let listed = Vec::from_iter(listed()).join(", ");
        format!("serving {len_bytes} bytes as {nqn} on {listed}")
    };
    output::raw(format!("{line}\n").as_bytes())
        .map_err(|failure| NvmeFailure::file("standard output", io::Error::other(failure)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_controllers_are_a_range_with_room() {
        assert_eq!(controller_ids("1-65519"), Ok((1, 65_519)));
        assert_eq!(controller_ids("1000-1255"), Ok((1000, 1255)));
        for wrong in [
            "", "1", "0-300", "1-65520", "1-255", "300-1", "1-2-3", "a-b",
        ] {
            assert!(controller_ids(wrong).is_err(), "{wrong}");
        }
    }
}
