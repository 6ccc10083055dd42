//! Receiving an object into files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lunette::runtime::OpError;
use lunette::runtime::time;
use lunette_p2p::{
    Found, Held, Incomplete, ObjectFiles, ObjectName, Progress, ReceiveOptions, SliceOptions, Store,
};
use serde_json::json;

use super::failure::{Outcome, P2pFailure};
use super::place::Plan;
use super::serve::{ends, say, serve_on};
use super::tensors::{Receiving, Wanted};
use super::{files, run};
use crate::program::failure::Failure;

/// How often progress is shown, and a signal seen.
pub(super) const LOOK: Duration = Duration::from_millis(100);

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
    #[arg(long, conflicts_with = "lean")]
    serve: bool,
    #[command(flatten)]
    receiving: Receiving,
}

pub(super) fn get(arguments: GetArguments, as_json: bool) -> Result<(), Failure> {
    let ends = ends()?;
    let plan = arguments.receiving.member.plan()?;
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
    let is_in_parts = arguments.receiving.parts.is_any();
    let held = if is_in_parts {
        begin_parts(&store, &found, &arguments).await?
    } else {
        begin(&store, &found, &arguments.files).await?
    };
    let began = time::now();
    let patience = Duration::from_secs(arguments.timeout);
    let came = follow(&held, patience, &ends, as_json).await;
    let took = time::now().since(began);
    if let Err(ended) = came {
        let failure = ended.told(&arguments.files, is_in_parts);
        // What comes behind that is of no consequence: it is verified when it is gone on with.
        sync(&held, &arguments.files).await?;
        store.close().await;
        return Err(failure);
    }
    sync(&held, &arguments.files).await?;
    say_done(&held, took, as_json)?;
    if arguments.serve {
        return serve_on(store, &held, &ends, as_json).await;
    }
    store.close().await;
    Ok(())
}

/// Begins to receive all of an object, into the files as it comes.
async fn begin(store: &Store, found: &Found, paths: &[PathBuf]) -> Outcome<Held> {
    let lens = found.shape.buffers();
    if lens.len() != paths.len() {
        return Err(P2pFailure::Files {
            name: found.name.clone(),
            wanted: lens.len(),
            given: paths.len(),
        });
    }
    let opened = ObjectFiles::open(paths, lens).await?;
    let options = ReceiveOptions {
        resume: opened.was_any_there(),
        version: Some(found.version),
    };
    let receiving = store.receive_files(&found.name, opened.files(), options);
    let held = receiving.await?;
    opened.keep();
    Ok(held)
}

/// Begins to receive parts of its tensors.
async fn begin_parts(store: &Store, found: &Found, arguments: &GetArguments) -> Outcome<Held> {
    let (paths, parts) = (&arguments.files, &arguments.receiving.parts);
    if paths.len() != 1 {
        return Err(P2pFailure::OneFile(paths.len()));
    }
    let layout = store.layout(found).await?;
    let layout = layout.ok_or_else(|| P2pFailure::NotFound(found.name.clone()))?;
    let Wanted {
        head,
        len_bytes,
        slices,
    } = parts.wanted(&layout)?;
    let opened = ObjectFiles::open(paths, &[len_bytes]).await?;
    let options = SliceOptions {
        keep_chunks: parts.keep_chunks(),
        resume: opened.was_any_there(),
        version: Some(found.version),
    };
    let receiving = store.receive_slices_files(&found.name, opened.files(), &slices, options);
    let held = receiving.await?;
    files::write_head(&paths[0], head).await?;
    opened.keep();
    Ok(held)
}

/// Has what came on the disk.
async fn sync(held: &Held, paths: &[PathBuf]) -> Outcome<()> {
    held.sync().await.map_err(|error| P2pFailure::File {
        path: paths[0].clone(),
        error,
    })
}

/// Why it is not waited for any more.
#[derive(Debug)]
enum Ended {
    Incomplete(Incomplete),
    /// The disk takes no more.
    Disk(OpError),
}

impl Ended {
    fn told(self, paths: &[PathBuf], is_in_parts: bool) -> P2pFailure {
        match self {
            Self::Incomplete(incomplete) if is_in_parts => {
                P2pFailure::IncompleteParts { incomplete }
            }
            Self::Incomplete(incomplete) => P2pFailure::Incomplete { incomplete },
            Self::Disk(error) => P2pFailure::File {
                path: paths[0].clone(),
                error: io::Error::other(error),
            },
        }
    }
}

/// Waits for all of it, and shows how it goes.
async fn follow(
    held: &Held,
    timeout: Duration,
    ends: &AtomicBool,
    as_json: bool,
) -> Result<(), Ended> {
    let until = time::now() + timeout;
    let bar = bar(held.progress().len_bytes, as_json);
    loop {
        let progress = held.progress();
        bar.set_position(progress.held_bytes);
        bar.set_message(format!("{} holders", progress.neighbours));
        let whole = held.whole(LOOK).await;
        let is_over = ends.load(Ordering::Relaxed) || time::now() >= until;
        let ended = match (whole, held.disk_fault()) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(Ended::Disk(error)),
            (Err(incomplete), None) if is_over => Err(Ended::Incomplete(incomplete)),
            (Err(_), None) => continue,
        };
        bar.finish_and_clear();
        return ended;
    }
}

/// How far it has come, for people.
pub(super) fn bar(len_bytes: u64, as_json: bool) -> ProgressBar {
    let bar = if as_json {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(len_bytes)
    };
    let template = "{wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left, {msg}";
    bar.with_style(ProgressStyle::with_template(template).expect("a good template"))
}

fn say_done(held: &Held, took: Duration, as_json: bool) -> Outcome<()> {
    let Progress {
        len_bytes,
        resumed_bytes,
        ..
    } = held.progress();
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
