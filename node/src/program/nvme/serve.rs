//! Serving a disk.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lunette::runtime::net::{REBIND_WAIT, TcpListener};
use lunette::runtime::time;
use lunette_nvmeof::proto::controller::Secrets;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::{Disk, Export, ExportedDisk, FileDisk, MemoryDisk, Server, ServerOptions};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::core::{core, run};
use super::failure::{NvmeFailure, Outcome};
use super::secrets::SecretArguments;
use super::subsystem::{SUBSYSTEM, uuid_of};
use crate::program::arguments::IdleChoice;
use crate::program::failure::Failure;
use crate::program::output;
use crate::program::size::Size;

/// Lets a server listen beyond loopback if it is 1.
const INSECURE: &str = "LUNETTE_INSECURE";
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
    #[command(flatten)]
    secrets: SecretArguments,
    /// What the core does when it has nothing to do.
    #[arg(long, value_enum, default_value_t = IdleChoice::Adaptive)]
    idle: IdleChoice,
}

/// Serves until a signal ends it.
pub(super) fn serve(arguments: ServeArguments, as_json: bool) -> Result<(), Failure> {
    let is_insecure = env::var_os(INSECURE).is_some_and(|value| value == "1");
    if !arguments.listen.ip().is_loopback() && !is_insecure {
        return Err(Failure::NotLoopback(arguments.listen));
    }
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = flag::register(signal, Arc::clone(&ends));
        registered.map_err(|error| Failure::file("signals", error))?;
    }
    let memory_bytes = arguments.memory.map_or(0, |size| size.0);
    run(core(arguments.idle, memory_bytes), async move || {
        let listener = TcpListener::bind_within(arguments.listen, REBIND_WAIT).await;
        let listener =
            listener.map_err(|error| NvmeFailure::file(&arguments.listen.to_string(), error))?;
        let address = listener.local_addr();
        let export = export(&arguments, memory_bytes).await?;
        let len_bytes = export.disks[0].disk.len_bytes();
        let server = Server::new(ServerOptions::default(), vec![export], &[address])?;
        say_ready(address, &arguments.nqn, len_bytes, as_json)?;
        let ended = async move {
            while !ends.load(Ordering::Relaxed) {
                time::sleep(END_PAUSE).await;
            }
        };
        server.serve(listener, ended).await;
        Ok(())
    })
}

/// The disk that was asked for, as the only one of its subsystem.
async fn export(arguments: &ServeArguments, memory_bytes: u64) -> Outcome<Export> {
    let disk = match &arguments.file {
        Some(path) => Disk::File(FileDisk::open(path, arguments.block).await?),
        None => Disk::Memory(MemoryDisk::new(memory_bytes)?),
    };
    Ok(Export {
        disks: vec![ExportedDisk {
            disk,
            block_bytes: arguments.block,
            uuid: uuid_of(arguments.nqn.as_str()),
            is_read_only: arguments.read_only,
            ana_group: 1,
        }],
        name: arguments.nqn.clone(),
        hosts: None,
        secrets: Secrets {
            of_others: arguments.secrets.credentials()?,
            ..Secrets::default()
        },
    })
}

fn say_ready(address: SocketAddr, nqn: &Nqn, len_bytes: u64, as_json: bool) -> Outcome<()> {
    let line = if as_json {
        let ready = json!({
            "ready": true,
            "address": address.to_string(),
            "nqn": nqn.as_str(),
            "bytes": len_bytes,
        });
        ready.to_string()
    } else {
        format!("serving {len_bytes} bytes as {nqn} on {address}")
    };
    output::raw(format!("{line}\n").as_bytes())
        .map_err(|failure| NvmeFailure::file("standard output", io::Error::other(failure)))
}
