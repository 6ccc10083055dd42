//! Receiving an object into files.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lunette::runtime::arena::Exposed;
use lunette::runtime::time;
use lunette_p2p::{Found, Held, Incomplete, ObjectName, ReceiveOptions, SliceOptions, Store};
use serde_json::json;

use super::failure::{Outcome, P2pFailure};
use super::place::{Place, Plan, Presence};
use super::serve::{ends, say, say_ready, until_ended};
use super::tensors::{PartArguments, Wanted};
use super::{files, run};
use crate::program::failure::Failure;

/// How often progress is shown, and a signal seen.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
pub(super) struct GetArguments {
    /// The object's name.
    name: ObjectName,
    /// Files, one for each of the object's buffers. What is right in those that are there is not fetched again. One
    /// file for parts of tensors.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// When it is given up, in seconds; what has come is in the files then.
    #[arg(long, value_name = "S", default_value_t = 3600)]
    timeout: u64,
    /// Serve it on when it is here, until SIGINT or SIGTERM. It is served while it comes in any case.
    #[arg(long)]
    serve: bool,
    #[command(flatten)]
    parts: PartArguments,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    presence: Presence,
}

pub(super) fn get(arguments: GetArguments, as_json: bool) -> Result<(), Failure> {
    let ends = ends()?;
    let plan = arguments.place.plan(&arguments.presence)?;
    run(async move || receive(arguments, plan, ends, as_json).await)
}

async fn receive(
    arguments: GetArguments,
    plan: Plan,
    ends: Arc<AtomicBool>,
    as_json: bool,
) -> Outcome<()> {
    let store = plan.start().await?;
    let found = store.find(&arguments.name).await?;
    let found = found.ok_or_else(|| P2pFailure::NotFound(arguments.name.clone()))?;
    let is_in_parts = arguments.parts.is_any();
    let (held, buffers) = if is_in_parts {
        begin_parts(&store, &found, &arguments).await?
    } else {
        begin(&store, &found, &arguments.files).await?
    };
    let resumed_bytes = held.progress().held_bytes;
    let began = time::now();
    let came = follow(
        &held,
        Duration::from_secs(arguments.timeout),
        &ends,
        as_json,
    )
    .await;
    let took = time::now().since(began);
    if let Err(incomplete) = came {
        // Nothing lands in the buffers any more before they are written.
        let buffers = held.unregister().await;
        if !is_in_parts {
            files::write(&arguments.files, &buffers).await?;
        }
        store.close().await;
        return Err(if is_in_parts {
            P2pFailure::IncompleteParts { incomplete }
        } else {
            P2pFailure::Incomplete { incomplete }
        });
    }
    files::write(&arguments.files, &buffers).await?;
    say_done(&held, resumed_bytes, took, as_json)?;
    if arguments.serve {
        say_ready(&store, &held, as_json)?;
        until_ended(store, &ends).await;
    } else {
        store.close().await;
    }
    Ok(())
}

/// Begins to receive all of an object.
async fn begin(store: &Store, found: &Found, paths: &[PathBuf]) -> Outcome<(Held, Vec<Exposed>)> {
    let (buffers, resume) = prepare(found, paths).await?;
    let options = ReceiveOptions {
        resume,
        version: Some(found.version),
    };
    let receiving = store.receive(&found.name, buffers.clone(), options);
    Ok((receiving.await?, buffers))
}

/// Begins to receive parts of its tensors.
async fn begin_parts(
    store: &Store,
    found: &Found,
    arguments: &GetArguments,
) -> Outcome<(Held, Vec<Exposed>)> {
    let files = arguments.files.len();
    if files != 1 {
        return Err(P2pFailure::OneFile(files));
    }
    let layout = store.layout(found).await?;
    let layout = layout.ok_or_else(|| P2pFailure::NotFound(found.name.clone()))?;
    let Wanted { file, slices } = arguments.parts.wanted(&layout)?;
    let options = SliceOptions {
        keep_chunks: arguments.parts.keep_chunks(),
        version: Some(found.version),
    };
    let buffers = vec![file];
    let receiving = store.receive_slices(&found.name, buffers.clone(), &slices, options);
    Ok((receiving.await?, buffers))
}

/// Buffers as the object's, with what the files have, and whether there was a file: what is new is not looked through.
async fn prepare(found: &Found, paths: &[PathBuf]) -> Outcome<(Vec<Exposed>, bool)> {
    let lens = found.shape.buffers();
    if lens.len() != paths.len() {
        return Err(P2pFailure::Files {
            name: found.name.clone(),
            wanted: lens.len(),
            given: paths.len(),
        });
    }
    let (mut buffers, mut is_any_there) = (Vec::new(), false);
    for (&len_bytes, path) in lens.iter().zip(paths) {
        let buffer = files::buffer(len_bytes)?;
        if files::read_into(path, &buffer).await? {
            tracing::info!(path = %path.display(), "going on with what is there");
            is_any_there = true;
        }
        buffers.push(buffer);
    }
    Ok((buffers, is_any_there))
}

/// Waits for all of it, and shows how it goes.
async fn follow(
    held: &Held,
    timeout: Duration,
    ends: &AtomicBool,
    as_json: bool,
) -> Result<(), Incomplete> {
    let until = time::now() + timeout;
    let bar = bar(held.progress().len_bytes, as_json);
    loop {
        let progress = held.progress();
        bar.set_position(progress.held_bytes);
        bar.set_message(format!("{} holders", progress.neighbours));
        match held.whole(LOOK).await {
            Ok(()) => {
                bar.finish_and_clear();
                return Ok(());
            }
            Err(incomplete) if ends.load(Ordering::Relaxed) || time::now() >= until => {
                bar.finish_and_clear();
                return Err(incomplete);
            }
            Err(_) => {}
        }
    }
}

fn bar(len_bytes: u64, as_json: bool) -> ProgressBar {
    let bar = if as_json {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(len_bytes)
    };
    let template = "{wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left, {msg}";
    bar.with_style(ProgressStyle::with_template(template).expect("a good template"))
}

fn say_done(held: &Held, resumed_bytes: u64, took: Duration, as_json: bool) -> Outcome<()> {
    let len_bytes = held.progress().len_bytes;
    let (name, version) = (held.name(), held.version());
    let seconds = took.as_secs_f64();
    say(&if as_json {
        json!({ "done": true, "name": name.as_str(), "version": version.to_string(),
                "bytes": len_bytes, "resumed_bytes": resumed_bytes, "seconds": seconds })
        .to_string()
    } else {
        let resumed = if resumed_bytes > 0 {
            format!(", {resumed_bytes} of which were there")
        } else {
            String::new()
        };
        format!("{name}, version {version}: {len_bytes} bytes in {seconds:.1} s{resumed}")
    })
}
