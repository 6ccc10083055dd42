//! `lunette p2p`: objects that receivers pass on to each other.
//!
//! | module | subject |
//! |---|---|
//! | `place` | where the catalogue is, and who we are there |
//! | `files` | buffers from files, and files that are buffers |
//! | `tensors` | what safetensors files tell, and a rank's part of it |
//! | `serve`, `get`, `list` | objects: the commands |
//! | `offer`, `follow` | weights in buckets: the commands |
//! | `landing` | a file that buckets come into |
//! | `simulate` | swarms in virtual time |
//! | `failure` | what can go wrong |

mod failure;
mod files;
mod follow;
mod get;
mod landing;
mod list;
mod offer;
mod place;
mod serve;
mod simulate;
mod tensors;

use clap::{Args, Subcommand};
use lunette::runtime::{CoreOptions, Idle, StartError, block_on};

use self::failure::Outcome;
use self::follow::FollowArguments;
use self::get::GetArguments;
use self::list::ListArguments;
use self::offer::OfferArguments;
use self::serve::ServeArguments;
use self::simulate::SimulateArguments;
use super::failure::Failure;

pub(crate) use self::failure::P2pFailure;

/// Spread objects (checkpoints, weights) over many receivers in about the time of one.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lunette cluster coordinator --listen 127.0.0.1:7300 &
  export LUNETTE_COORDINATORS=127.0.0.1:7300    # or LUNETTE_ETCD=127.0.0.1:2379
  lunette p2p serve llama/70b model-1.safetensors model-2.safetensors &
  lunette p2p ls
  lunette p2p get llama/70b copy-1.safetensors copy-2.safetensors
  lunette p2p get llama/70b copy-1.safetensors copy-2.safetensors --serve &    # and serves it on
  lunette p2p ls llama/70b                                       # and its tensors
  lunette p2p get llama/70b rank-3.safetensors --shard 3/8 --split '*.o_proj.weight=1' --split '*proj.weight=0'
  lunette p2p offer actor step-100.safetensors --replace &       # weights that change, in buckets
  lunette p2p follow actor weights/ --keep 2                     # each that is offered, into a file of its own
  lunette p2p simulate --receivers 64

Beyond loopback all need LUNETTE_SECRET_FILE (or LUNETTE_INSECURE=1).")]
pub(crate) struct P2pArguments {
    #[command(subcommand)]
    command: P2pCommand,
}

#[derive(Debug, Subcommand)]
enum P2pCommand {
    /// Serve files as one object, until SIGINT or SIGTERM.
    Serve(ServeArguments),
    /// Receive an object into files. Files that are there already are gone on with.
    Get(GetArguments),
    /// List objects, and how many hold them.
    Ls(ListArguments),
    /// Offer the tensors of files as an update, in buckets, until SIGINT or SIGTERM.
    Offer(OfferArguments),
    /// Take updates that are offered, each into a file of its own, in memory for a few buckets.
    Follow(FollowArguments),
    /// Simulate swarms on many machines, beside the bound and Mooncake's scheme.
    Simulate(SimulateArguments),
}

/// Does what is asked.
pub(super) fn p2p(arguments: P2pArguments, as_json: bool) -> Result<(), Failure> {
    match arguments.command {
        P2pCommand::Serve(arguments) => serve::serve(arguments, as_json),
        P2pCommand::Get(arguments) => get::get(arguments, as_json),
        P2pCommand::Ls(arguments) => list::list(arguments, as_json),
        P2pCommand::Offer(arguments) => offer::offer(arguments, as_json),
        P2pCommand::Follow(arguments) => follow::follow(arguments, as_json),
        P2pCommand::Simulate(arguments) => simulate::simulate(&arguments, as_json),
    }
}

/// Runs `work` on a core of its own.
fn run<T: 'static>(work: impl AsyncFnOnce() -> Outcome<T> + 'static) -> Result<T, Failure> {
    let options = CoreOptions {
        idle: Idle::Efficient,
        ..CoreOptions::default()
    };
    let ran: Result<Outcome<T>, StartError> =
        block_on(None, options, move || async move { work().await });
    Ok(ran??)
}
