//! `lunette transfer`: memory that peers read and write, served and measured.
//!
//! | module | subject |
//! |---|---|
//! | `serve` | serving a segment |
//! | `bench`, `asker` | measuring reads or writes of one; on how many cores |
//! | `adapters` | RDMA adapters |
//! | `policy` | who may connect, from the environment |
//! | `failure` | what can go wrong |

mod adapters;
mod asker;
mod bench;
mod failure;
mod neighbours;
mod policy;
mod serve;

use clap::{Args, Subcommand};
use lunette::runtime::{CoreOptions, StartError, block_on};

use self::bench::{BenchArguments, bench};
use self::failure::Outcome;
use self::serve::{ServeArguments, serve};
use super::arguments::IdleChoice;
use super::failure::Failure;
use super::output;

pub(crate) use self::adapters::rdma_options;
pub(crate) use self::failure::TransferFailure;
pub(crate) use self::policy::policy;

/// Serve memory to peers, and measure how fast it is read and written.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette transfer serve --memory 1GiB &
  lunette transfer bench 127.0.0.1:7600 --size 4KiB --batch 128
  lunette transfer bench 10.0.0.2:7600,10.0.1.2:7600 --size 16MiB --write    # over two rails
  lunette transfer serve --memory 1GiB --cores 4 &    # on ports 7600 to 7603
  lunette transfer bench 127.0.0.1:7600 --size 64MiB --cores 4
  lunette transfer bench store-2:7600 --topology=topology.json    # from the nearest adapters
  lunette transfer serve --memory 1GiB --rdma mlx5_0,mlx5_1 &    # RDMA; the same flag for bench

Beyond loopback both sides need LUNETTE_SECRET_FILE (or LUNETTE_INSECURE=1).")]
pub(crate) struct TransferArguments {
    #[command(subcommand)]
    command: TransferCommand,
}

#[derive(Debug, Subcommand)]
enum TransferCommand {
    /// Serve a segment, until SIGINT or SIGTERM.
    Serve(ServeArguments),
    /// Measure reads or writes of a segment.
    Bench(BenchArguments),
}

/// Does what is asked.
pub(super) fn transfer(arguments: TransferArguments, as_json: bool) -> Result<(), Failure> {
    match arguments.command {
        TransferCommand::Serve(arguments) => serve(arguments, as_json),
        TransferCommand::Bench(arguments) => {
            let idle = arguments.idle;
            let measured = run(idle, async move || bench(arguments).await)?;
            output::line(&measured.to_string())
        }
    }
}

/// Runs `work` on a core of its own.
fn run<T: 'static>(
    idle: IdleChoice,
    work: impl AsyncFnOnce() -> Outcome<T> + 'static,
) -> Result<T, Failure> {
    let options = CoreOptions {
        idle: idle.policy(),
        ..CoreOptions::default()
    };
    let ran: Result<Outcome<T>, StartError> =
        block_on(None, options, move || async move { work().await });
    Ok(ran??)
}
