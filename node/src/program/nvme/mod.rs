//! `lunette nvme`: disks over NVMe/TCP, served and used.
//!
//! | module | subject |
//! |---|---|
//! | `serve` | serving a disk |
//! | `ana` | how it can be reached by each port |
//! | `describe` | what a target offers, and what a controller is |
//! | `watch` | what a controller tells unasked |
//! | `transfer` | bytes of a namespace to a file and back |
//! | `bench` | measuring reads or writes |
//! | `secrets` | what hosts and controllers prove to each other |
//! | `subsystem` | a subsystem and how it is reached |
//! | `url` | a namespace by one text, for drives of the store |
//! | `core` | the core that a command runs on |
//! | `failure` | what can go wrong |

mod ana;
mod bench;
mod core;
mod describe;
mod failure;
mod secrets;
mod serve;
mod subsystem;
mod transfer;
mod url;
mod watch;

use clap::{Args, Subcommand};

use self::bench::{BenchArguments, bench};
use self::core::on_core;
use self::describe::{DiscoverArguments, identify, show_offers};
use self::secrets::{NewSecretArguments, new_secret};
use self::serve::{ServeArguments, serve};
use self::subsystem::SubsystemArguments;
use self::transfer::{ReadArguments, WriteArguments, read, write};
use self::watch::watch;
use super::failure::Failure;
use super::output;

pub(crate) use self::failure::NvmeFailure;
pub(super) use self::subsystem::{HostArguments, SUBSYSTEM, namespace_at};
pub(super) use self::url::{NamespaceUrl, UrlFault};

/// Serve and use disks over NVMe/TCP.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette nvme serve --memory 1GiB &
  lunette nvme discover 127.0.0.1:4420
  lunette nvme bench 127.0.0.1:4420 --size 4KiB --depth 32
  lunette nvme serve --memory 1GiB --listen 127.0.0.1:4420 --listen 127.0.0.1:4421 --ana optimized --ana non-optimized
  lunette nvme bench 127.0.0.1:4420 --path 127.0.0.1:4421
  (umask 077; lunette nvme secret >secret); lunette nvme serve --memory 1GiB --dhchap-secret-file secret
  (umask 077; lunette nvme secret --tls >key); lunette nvme serve --memory 1GiB --tls-key-file key    # built with --features tls
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
    /// Print what a controller tells unasked: namespaces that change, paths that come and go.
    Watch(SubsystemArguments),
    /// Read bytes to a file or standard output.
    Read(ReadArguments),
    /// Write a file, or standard input.
    Write(WriteArguments),
    /// Measure reads or writes.
    Bench(BenchArguments),
    /// Print a new secret for authentication.
    Secret(NewSecretArguments),
}

/// Does what is asked.
pub(super) fn nvme(arguments: NvmeArguments, as_json: bool) -> Result<(), Failure> {
    match arguments.command {
        NvmeCommand::Serve(arguments) => serve(arguments, as_json),
        NvmeCommand::Discover(arguments) => show_offers(arguments, as_json),
        NvmeCommand::Identify(arguments) => {
            let found = on_core(async move || identify(&arguments).await)?;
            output::line(&found.to_string())
        }
        NvmeCommand::Secret(arguments) => {
            output::line(&on_core(async move || new_secret(arguments))?)
        }
        NvmeCommand::Watch(arguments) => on_core(async move || watch(&arguments).await),
        NvmeCommand::Read(arguments) => on_core(async move || read(&arguments).await),
        NvmeCommand::Write(arguments) => on_core(async move || write(&arguments).await),
        NvmeCommand::Bench(arguments) => output::line(&bench(arguments)?.to_string()),
    }
}
