//! Taking updates, each into a file of its own.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use lunette::runtime::arena::Exposed;
use lunette::runtime::time;
use lunette_p2p::proto::layout::Plan as Covered;
use lunette_p2p::proto::update::Manifest;
use lunette_p2p::{
    FollowOptions, HoldFault, ObjectName, Parts, Slice, Store, Update, UpdateFault, Version,
};
use serde_json::json;

use super::failure::{Outcome, P2pFailure};
use super::get::{LOOK, bar};
use super::landing::Landing;
use super::place::Plan;
use super::serve::{ends, say};
use super::tensors::Receiving;
use super::{files, run};
use crate::program::failure::Failure;

/// How often it is looked for the next update.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
pub(super) struct FollowArguments {
    /// The updates' name.
    name: ObjectName,
    /// Where a safetensors file comes for each, named by the update: when it has its name, all of it is there.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Take the update that is offered now, and end. Otherwise each that is offered is taken, until SIGINT or SIGTERM; one
    /// that does not come is told of, and the next is waited for.
    #[arg(long)]
    once: bool,
    /// Of the files that it has written, keep this many: the last ones.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// For how many buckets there is memory: one comes while one is written, and from 3 on one is served to others.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=16))]
    slots: u32,
    /// How long a bucket may take each time that it is tried, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60)]
    timeout: u64,
    #[command(flatten)]
    receiving: Receiving,
}

pub(super) fn follow(arguments: FollowArguments, as_json: bool) -> Result<(), Failure> {
    let ends = ends()?;
    let plan = arguments.receiving.member.plan()?;
    run(async move || follow_all(arguments, plan, ends, as_json).await)
}

async fn follow_all(
    arguments: FollowArguments,
    plan: Plan,
    ends: Arc<AtomicBool>,
    as_json: bool,
) -> Outcome<()> {
    let folder = &arguments.folder;
    fs::create_dir_all(folder).map_err(|error| P2pFailure::File {
        path: folder.clone(),
        error,
    })?;
    let store = plan.start().await?;
    let is_once = arguments.once;
    let mut follower = Follower {
        store: store.clone(),
        arguments,
        ends,
        as_json,
        slots: Vec::new(),
        served: None,
        taken: None,
        written: VecDeque::new(),
    };
    let followed = if is_once {
        follower.take().await
    } else {
        follower.take_each().await
    };
    follower.let_go().await;
    store.close().await;
    followed
}

struct Follower {
    store: Store,
    arguments: FollowArguments,
    ends: Arc<AtomicBool>,
    as_json: bool,
    /// Memory of buckets.
    slots: Vec<Exposed>,
    /// What was taken last: its last buckets are served on.
    served: Option<Update>,
    /// Which that is.
    taken: Option<u64>,
    /// The files that are kept.
    written: VecDeque<PathBuf>,
}

impl Follower {
    fn is_over(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Takes each update that is offered, until it is to end.
    async fn take_each(&mut self) -> Outcome<()> {
        let mut last: Option<Version> = None;
        while !self.is_over() {
            let found = match self.store.find(&self.arguments.name).await {
                Ok(found) => found.map(|found| found.version),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "what is offered");
                    last
                }
                Err(error) => return Err(error.into()),
            };
            if found.is_some() && found != last {
                match self.take().await {
                    Ok(()) => last = found,
                    Err(P2pFailure::Update(UpdateFault::Stopped)) => {}
                    Err(P2pFailure::Update(fault)) => {
                        self.say_failed(&fault)?;
                        // What may come later is tried again.
                        last = if fault.is_retryable() { last } else { found };
                    }
                    Err(failure) => return Err(failure),
                }
            }
            let until = time::now() + PAUSE;
            while !self.is_over() && time::now() < until {
                time::sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Takes the update that is offered now.
    async fn take(&mut self) -> Outcome<()> {
        let (name, parts) = (self.arguments.name.clone(), &self.arguments.receiving.parts);
        let patience = Duration::from_secs(self.arguments.timeout);
        let manifest = self.store.offered(&name, patience).await?;
        let id = manifest.id;
        if self.taken == Some(id) {
            // It was offered between it was looked for and taken.
            return Ok(());
        }
        let (shape, layout) = self.store.offered_tensors(&name, &manifest).await?;
        let wanted = parts.wanted(&layout)?;
        let covered = Covered::new(&shape, &layout, &wanted.slices, &[wanted.len_bytes]);
        covered.map_err(|fault| UpdateFault::Hold(HoldFault::Slices(fault)))?;
        let options = FollowOptions {
            parts: self.parts(&wanted.slices),
            patience,
            ..FollowOptions::default()
        };
        let named = format!("{id:016x}");
        let buckets = manifest.buckets.len();
        let bytes = wanted.len_bytes - wanted.head.len() as u64;
        let landing = Landing::begin(&self.arguments.folder, &named, wanted).await?;
        self.let_go().await;
        self.make_room(&manifest)?;
        let began = time::now();
        let slots = self.slots.clone();
        let update = self.store.follow(&name, manifest, slots, options)?;
        let bar = bar(bytes, self.as_json);
        let came = self.land(&update, &landing, &bar).await;
        bar.finish_and_clear();
        self.served = Some(update);
        came?;
        let path = landing.finish().await?;
        let took = time::now().since(began);
        self.taken = Some(id);
        self.say_done(&named, &path, (buckets, bytes), took)?;
        self.keep(path);
        Ok(())
    }

    /// What is asked for of each tensor.
    fn parts(&self, slices: &[Slice]) -> Parts {
        if !self.arguments.receiving.parts.is_any() {
            return Parts::All;
        }
        let blocks = slices
            .iter()
            .map(|slice| (slice.tensor.clone(), slice.block.clone()));
        Parts::Of {
            blocks: blocks.collect::<BTreeMap<_, _>>(),
            keep_chunks: self.arguments.receiving.parts.keep_chunks(),
        }
    }

    /// Memory for as many buckets as there is to be, each as long as the longest.
    fn make_room(&mut self, manifest: &Manifest) -> Outcome<()> {
        let slot_bytes = manifest.slot_bytes();
        let is_enough = |slot: &Exposed| slot.len() as u64 >= slot_bytes;
        if self.slots.is_empty() || !self.slots.iter().all(is_enough) {
            // What was there goes before the new is taken.
            self.slots.clear();
            let slots = (0..self.arguments.slots).map(|_| files::buffer(slot_bytes));
            self.slots = slots.collect::<Outcome<_>>()?;
        }
        Ok(())
    }

    /// Writes each bucket as it comes.
    async fn land(&self, update: &Update, landing: &Landing, bar: &ProgressBar) -> Outcome<()> {
        let mut last = None;
        while !self.is_over() {
            let (copied, buckets) = update.progress();
            bar.set_message(format!("bucket {copied} of {buckets}"));
            bar.tick();
            // Asked again, it goes on where it was.
            match time::timeout(LOOK, update.next(last)).await {
                Err(_) => {}
                Ok(lent) => match lent? {
                    None => return Ok(()),
                    Some(lent) => {
                        bar.inc(landing.put(&lent, &self.slots).await?);
                        last = Some(lent.bucket);
                    }
                },
            }
        }
        Err(UpdateFault::Stopped.into())
    }

    /// Serves what was taken last no more, so that its memory is free.
    async fn let_go(&mut self) {
        if let Some(update) = self.served.take() {
            update.close().await;
        }
    }

    /// Takes the oldest file away, if there are more than are kept.
    fn keep(&mut self, path: PathBuf) {
        self.written.retain(|written| *written != path);
        self.written.push_back(path);
        let Some(keep) = self.arguments.keep else {
            return;
        };
        while self.written.len() > keep as usize {
            let oldest = self.written.pop_front().expect("there are some");
            if let Err(error) = fs::remove_file(&oldest) {
                tracing::warn!(path = %oldest.display(), %error, "an older file is left");
            }
        }
    }

    fn say_done(
        &self,
        id: &str,
        path: &std::path::Path,
        (buckets, bytes): (usize, u64),
        took: Duration,
    ) -> Outcome<()> {
        let (name, seconds) = (&self.arguments.name, took.as_secs_f64());
        let file = path.display();
        say(&if self.as_json {
            json!({ "done": true, "name": name.as_str(), "update": id, "file": file.to_string(),
                    "bytes": bytes, "buckets": buckets, "seconds": seconds })
            .to_string()
        } else {
            format!("{file}: {bytes} bytes of {name} in {buckets} buckets, {seconds:.1} s")
        })
    }

    fn say_failed(&self, fault: &UpdateFault) -> Outcome<()> {
        let name = &self.arguments.name;
        say(&if self.as_json {
            json!({ "done": false, "name": name.as_str(), "error": fault.to_string() }).to_string()
        } else {
            format!("an update of {name} did not come: {fault}")
        })
    }
}
