//! Serving files as one object.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lunette::runtime::time;
use lunette_p2p::{Held, ObjectName, RegisterOptions, Store};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::failure::{Outcome, P2pFailure};
use super::place::{Membership, Plan};
use super::{files, run, tensors};
use crate::program::failure::Failure;
use crate::program::output;
use crate::program::size::Size;

/// How often a server looks whether it is to end.
const END_PAUSE: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub(super) struct ServeArguments {
    /// The object's name.
    name: ObjectName,
    /// Files, each a buffer of the object. They are read once for its checksums, and then as others ask: nothing is to write
    /// to them meanwhile. If something does, it is served no more, and this ends.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Length of its chunks: a power of two. An object has at most 131,072.
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = Size::parse)]
    chunk: Size,
    /// Tell of no tensors: otherwise those of safetensors files are told of, and receivers may ask for parts of them.
    #[arg(long)]
    bytes: bool,
    /// Read the files into memory, and serve it from there: others on this host, and adapters, have it without this
    /// program's doing then, and the files may change.
    #[arg(long)]
    memory: bool,
    /// Take the place of whatever has the name.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    member: Membership,
}

/// A flag that SIGINT and SIGTERM raise.
pub(super) fn ends() -> Result<Arc<AtomicBool>, Failure> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = flag::register(signal, Arc::clone(&ends));
        registered.map_err(|error| Failure::file("signals", error))?;
    }
    Ok(ends)
}

/// The length of chunks, as far as there are such.
pub(super) fn chunk_bytes(size: Size) -> Outcome<u32> {
    u32::try_from(size.0).map_err(|_| P2pFailure::ChunkTooLong(size.0))
}

pub(super) fn serve(arguments: ServeArguments, as_json: bool) -> Result<(), Failure> {
    let ends = ends()?;
    let plan = arguments.member.plan()?;
    let chunk_bytes = chunk_bytes(arguments.chunk)?;
    run(async move || {
        let options = RegisterOptions {
            chunk_bytes,
            may_replace: arguments.replace,
        };
        let (store, held) = register(&arguments, plan, options).await?;
        serve_on(store, &held, &ends, as_json).await
    })
}

/// Serves what is held until a signal comes, or it is let go of for its files.
pub(super) async fn serve_on(
    store: Store,
    held: &Held,
    ends: &AtomicBool,
    as_json: bool,
) -> Outcome<()> {
    say_ready(&store, held, as_json)?;
    let fault = loop {
        let fault = held.source_fault();
        if fault.is_some() || ends.load(Ordering::Relaxed) {
            break fault;
        }
        time::sleep(END_PAUSE).await;
    };
    store.close().await;
    fault.map_or(Ok(()), |fault| Err(P2pFailure::Source(fault)))
}

async fn register(
    arguments: &ServeArguments,
    plan: Plan,
    options: RegisterOptions,
) -> Outcome<(Store, Held)> {
    let (name, paths) = (&arguments.name, &arguments.files);
    let tensors = if arguments.bytes {
        Vec::new()
    } else {
        tensors::of_files(paths)?
    };
    if arguments.memory {
        let buffers = files::read_all(paths).await?;
        let store = plan.start().await?;
        let registering = store.register_tensors(name, buffers, tensors, options);
        let held = registering.await?;
        return Ok((store, held));
    }
    let files = files::existing(paths).await?;
    let store = plan.start().await?;
    let registering = store.register_files(name, files, tensors, options);
    let held = registering.await?;
    Ok((store, held))
}

/// Serves until a signal comes, and lets all go.
pub(super) async fn until_ended(store: Store, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        time::sleep(END_PAUSE).await;
    }
    store.close().await;
}

/// Where a store listens.
pub(super) fn addresses(store: &Store) -> Vec<String> {
    let addresses = store.engine().addresses().iter();
    addresses.map(ToString::to_string).collect()
}

fn say_ready(store: &Store, held: &Held, as_json: bool) -> Outcome<()> {
    let addresses = addresses(store);
    let (name, version, shape) = (held.name(), held.version(), held.shape());
    let (len_bytes, chunks) = (shape.len_bytes(), shape.chunks());
    let tensors = held.layout().each().count();
    say(&if as_json {
        json!({ "ready": true, "addresses": addresses, "name": name.as_str(),
                "version": version.to_string(), "bytes": len_bytes, "chunks": chunks,
                "tensors": tensors })
        .to_string()
    } else {
        let addresses = addresses.join(",");
        let tensors = match tensors {
            0 => String::new(),
            count => format!(", {count} tensors"),
        };
        format!(
            "serving {name}, version {version}: {len_bytes} bytes in {chunks} chunks{tensors}, on \
             {addresses}"
        )
    })
}

pub(super) fn say(line: &str) -> Outcome<()> {
    let said = output::raw(format!("{line}\n").as_bytes());
    said.map_err(|failure| P2pFailure::Output(io::Error::other(failure)))
}
