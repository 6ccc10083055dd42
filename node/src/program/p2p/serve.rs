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
use super::place::{Place, Presence};
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
    /// Files, each a buffer of the object. They are read once.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Length of its chunks: a power of two. An object has at most 131,072.
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = Size::parse)]
    chunk: Size,
    /// Tell of no tensors: otherwise those of safetensors files are told of, and receivers may ask for parts of them.
    #[arg(long)]
    bytes: bool,
    /// Take the place of whatever has the name.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    presence: Presence,
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

pub(super) fn serve(arguments: ServeArguments, as_json: bool) -> Result<(), Failure> {
    let ends = ends()?;
    let plan = arguments.place.plan(&arguments.presence)?;
    let chunk_bytes = u32::try_from(arguments.chunk.0);
    let chunk_bytes = chunk_bytes.map_err(|_| P2pFailure::ChunkTooLong(arguments.chunk.0))?;
    run(async move || {
        let (mut buffers, mut tensors) = (Vec::new(), Vec::new());
        for (path, index) in arguments.files.iter().zip(0..) {
            let buffer = files::read(path).await?;
            if !arguments.bytes {
                tensors.extend(tensors::of_file(path, index, &buffer)?);
            }
            buffers.push(buffer);
        }
        let store = plan.start().await?;
        let options = RegisterOptions {
            chunk_bytes,
            may_replace: arguments.replace,
        };
        let registering = store.register_tensors(&arguments.name, buffers, tensors, options);
        let held = registering.await?;
        say_ready(&store, &held, as_json)?;
        until_ended(store, &ends).await;
        Ok(())
    })
}

/// Serves until a signal comes, and lets all go.
pub(super) async fn until_ended(store: Store, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        time::sleep(END_PAUSE).await;
    }
    store.close().await;
}

pub(super) fn say_ready(store: &Store, held: &Held, as_json: bool) -> Outcome<()> {
    let addresses = store.engine().addresses().iter();
    let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
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
