//! A rank's way through the buckets of an update, driven.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use lunette_p2p_proto::ObjectName;
use lunette_p2p_proto::layout::Tensor;
use lunette_p2p_proto::update::{
    Action, Manifest, Outcome, Pipeline, PipelineOptions, SLOTS_MAX, SLOTS_MIN, TRIES_MAX_DEFAULT,
};
use lunette_runtime::{Scope, Signal, time};

use super::UpdateFault;
use super::fetching::{Begun, Parts, begin};
use crate::buffers::Buffers;
use crate::error::HoldFault;
use crate::gate::{Gate, unless};
use crate::store::{Held, Store};

/// How a rank takes an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// What of it.
    pub parts: Parts,
    /// How long a bucket may take, each time that it is tried.
    pub patience: Duration,
    /// How often one is tried.
    pub tries_max: u32,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self {
            parts: Parts::default(),
            patience: Duration::from_secs(60),
            tries_max: TRIES_MAX_DEFAULT,
        }
    }
}

/// A bucket that is here, and lent to the program until the next is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentBucket {
    /// Which.
    pub bucket: u32,
    /// What is here of it. A tensor's buffer is the slot that it lies in, its block what is here.
    pub tensors: Vec<Tensor>,
}

/// An update that a rank takes. It goes on by itself as far as there is memory; dropped without being
/// [closed](Update::close) it leaves what is in its slots held until the store ends.
#[derive(Debug)]
pub struct Update {
    session: Rc<Session>,
    /// They end with it.
    _tasks: Rc<Scope>,
}

struct Session {
    store: Store,
    name: ObjectName,
    manifest: Manifest,
    slots: Buffers,
    options: FollowOptions,
    pipeline: RefCell<Pipeline>,
    /// Buckets that are here.
    here: RefCell<BTreeMap<u32, Begun>>,
    /// Opened where a bucket that is fetched is not to be.
    cancels: RefCell<BTreeMap<u32, Rc<Gate>>>,
    /// What is lent.
    lent: Cell<Option<u32>>,
    is_complete: Cell<bool>,
    /// What is lent may have changed.
    changed: Signal,
    /// There is another time to wake up at.
    keeper: Signal,
    /// Why buckets failed last.
    faults: RefCell<BTreeMap<u32, UpdateFault>>,
    outcome: Cell<Option<Outcome>>,
    ended: Gate,
    tasks: Weak<Scope>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.name)
    }
}

impl Store {
    /// Takes an update that is [offered](Self::offered) through slots of staging memory, of the host or of devices, 2 to 16, each
    /// as long as the longest bucket ([`Manifest::slot_bytes`]). It begins at once.
    ///
    /// A store follows an update once at a time, and not one that it offers itself.
    ///
    /// # Errors
    /// [`UpdateFault`].
    pub fn follow(
        &self,
        name: &ObjectName,
        manifest: Manifest,
        slots: impl Into<Buffers>,
        options: FollowOptions,
    ) -> Result<Update, UpdateFault> {
        let wanted_bytes = manifest.slot_bytes();
        let slots = slots.into();
        let lens = slots.lens();
        let slot_bytes = lens.iter().copied().min().unwrap_or_default();
        let count = u32::try_from(lens.len()).unwrap_or(u32::MAX);
        if slot_bytes < wanted_bytes || !(SLOTS_MIN..=SLOTS_MAX).contains(&count) {
            return Err(UpdateFault::Slots {
                slots: lens.len(),
                slot_bytes,
                wanted_bytes,
            });
        }
        let pipeline_options = PipelineOptions {
            slots: count,
            tries_max: options.tries_max.max(1),
        };
        let buckets = u32::try_from(manifest.buckets.len()).expect("buckets are bounded");
        let tasks = Rc::new(Scope::new());
        let session = Rc::new(Session {
            store: self.clone(),
            name: name.clone(),
            manifest,
            slots,
            options,
            pipeline: RefCell::new(Pipeline::new(buckets, pipeline_options)),
            here: RefCell::default(),
            cancels: RefCell::default(),
            lent: Cell::default(),
            is_complete: Cell::default(),
            changed: Signal::default(),
            keeper: Signal::default(),
            faults: RefCell::default(),
            outcome: Cell::default(),
            ended: Gate::default(),
            tasks: Rc::downgrade(&tasks),
        });
        let keeping = Rc::clone(&session).keep_time();
        tasks.spawn(keeping).map_err(|_| HoldFault::Task)?;
        session.on(|_| {});
        Ok(Update {
            session,
            _tasks: tasks,
        })
    }
}

impl Update {
    /// The bucket that is next to be copied and has something that is wanted, when it is here; `None` behind the last.
    /// `copied` is what was lent before and is not looked at any more: its slot is another's from then on. What was lent and
    /// is not said to be copied is lent again, so an answer that was lost loses nothing.
    ///
    /// One at a time waits. Dropping the future changes nothing.
    ///
    /// # Errors
    /// [`UpdateFault`]: a bucket was not to be had, or it was closed.
    pub async fn next(&self, copied: Option<u32>) -> Result<Option<LentBucket>, UpdateFault> {
        let session = &self.session;
        if copied.is_some() && copied == session.lent.get() {
            session.copied();
        }
        loop {
            if let Some(bucket) = session.lent.get() {
                let here = session.here.borrow();
                let tensors = here.get(&bucket).map(|begun| begun.tensors.clone());
                drop(here);
                let tensors = tensors.expect("it is lent when it is here");
                if !tensors.is_empty() {
                    return Ok(Some(LentBucket { bucket, tensors }));
                }
                session.copied();
                continue;
            }
            if session.is_complete.get() {
                return Ok(None);
            }
            if let Some(outcome) = session.outcome.get() {
                return Err(session.fault_of(outcome));
            }
            session.changed.raised().await;
        }
    }

    /// How many buckets were copied, of how many.
    #[must_use]
    pub fn progress(&self) -> (u32, usize) {
        let copied = self.session.pipeline.borrow().copied();
        (copied, self.session.manifest.buckets.len())
    }

    /// Ends it, and waits until nobody has its slots: nothing is served from them any more. What was lent is not to be looked
    /// at. Dropping the future changes nothing.
    pub async fn close(&self) {
        let session = &self.session;
        session.on(Pipeline::stop);
        session.copied();
        session.changed.raise();
        session.ended.opened().await;
    }
}

impl Session {
    /// Tells the machine something, and does what it asks for.
    fn on(self: &Rc<Self>, event: impl FnOnce(&mut Pipeline)) {
        event(&mut self.pipeline.borrow_mut());
        loop {
            let action = self.pipeline.borrow_mut().poll_action();
            let Some(action) = action else {
                break;
            };
            self.act(action);
        }
        self.keeper.raise();
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Fetch { bucket, slot } => {
                let cancel = Rc::new(Gate::default());
                self.cancels.borrow_mut().insert(bucket, Rc::clone(&cancel));
                if !self.spawn(Rc::clone(self).fetch(bucket, slot, cancel)) {
                    self.cancels.borrow_mut().remove(&bucket);
                    let mut pipeline = self.pipeline.borrow_mut();
                    pipeline.on_failed(time::now(), bucket, true);
                }
            }
            Action::Release { bucket, .. } => {
                let cancel = self.cancels.borrow().get(&bucket).cloned();
                if let Some(cancel) = cancel {
                    cancel.open();
                } else if !self.spawn(Rc::clone(self).release(bucket)) {
                    tracing::warn!(bucket, "the core takes no more tasks: it is served on");
                }
            }
            Action::Lend { bucket, .. } => {
                self.lent.set(Some(bucket));
                self.changed.raise();
            }
            Action::Complete => {
                self.is_complete.set(true);
                self.changed.raise();
            }
            Action::Ended(outcome) => {
                tracing::debug!(name = %self.name, ?outcome, "an update has ended");
                self.outcome.set(Some(outcome));
                self.ended.open();
                self.changed.raise();
            }
        }
    }

    /// What is lent, if anything, is looked at no more.
    fn copied(self: &Rc<Self>) {
        if let Some(bucket) = self.lent.take() {
            self.on(|pipeline| pipeline.on_copied(bucket));
        }
    }

    fn fault_of(&self, outcome: Outcome) -> UpdateFault {
        let fault = match outcome {
            Outcome::Failed(bucket) => self.faults.borrow().get(&bucket).cloned(),
            Outcome::Complete | Outcome::Stopped => None,
        };
        fault.unwrap_or(UpdateFault::Stopped)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) -> bool {
        let tasks = self.tasks.upgrade();
        tasks.is_some_and(|tasks| tasks.spawn(task).is_ok())
    }

    async fn fetch(self: Rc<Self>, bucket: u32, slot: u32, cancel: Rc<Gate>) {
        let came = self.fetched(bucket, slot, &cancel).await;
        self.cancels.borrow_mut().remove(&bucket);
        match came {
            // Whatever came of it: nobody has the slot.
            Ok(None) => self.on(|pipeline| pipeline.on_released(bucket)),
            Ok(Some(begun)) => {
                self.here.borrow_mut().insert(bucket, begun);
                self.faults.borrow_mut().remove(&bucket);
                self.on(|pipeline| pipeline.on_fetched(bucket));
            }
            Err(_) if cancel.is_open() => self.on(|pipeline| pipeline.on_released(bucket)),
            Err(fault) => {
                tracing::debug!(bucket, %fault, "a bucket");
                let is_retryable = fault.is_retryable();
                self.faults.borrow_mut().insert(bucket, fault);
                self.on(|pipeline| pipeline.on_failed(time::now(), bucket, is_retryable));
            }
        }
    }

    /// All of a bucket; `None`, and nothing of it, if it is not to be fetched any more.
    async fn fetched(
        &self,
        bucket: u32,
        slot: u32,
        cancel: &Gate,
    ) -> Result<Option<Begun>, UpdateFault> {
        let record = self.manifest.buckets[bucket as usize];
        let name = Manifest::bucket_name(&self.name, self.manifest.id, bucket)?;
        let into = (slot, &self.slots);
        let parts = &self.options.parts;
        let begun = begin(&self.store, &name, record, into, parts).await?;
        let came = match &begun.held {
            Some(held) => self.whole(held, cancel).await,
            None => (!cancel.is_open()).then_some(Ok(())),
        };
        if let Some(Ok(())) = came {
            return Ok(Some(begun));
        }
        if let Some(held) = begun.held {
            drop(held.unregister().await);
        }
        match came {
            Some(Err(fault)) => Err(fault),
            Some(Ok(())) | None => Ok(None),
        }
    }

    /// Waits for all of it, as long as it is to be fetched.
    async fn whole(&self, held: &Held, cancel: &Gate) -> Option<Result<(), UpdateFault>> {
        let came = unless(cancel, held.whole(self.options.patience)).await;
        came.map(|came| came.map_err(UpdateFault::from))
    }

    async fn release(self: Rc<Self>, bucket: u32) {
        let begun = self.here.borrow_mut().remove(&bucket);
        if let Some(held) = begun.and_then(|begun| begun.held) {
            drop(held.unregister().await);
        }
        self.on(|pipeline| pipeline.on_released(bucket));
    }

    /// Keeps the machine's times.
    async fn keep_time(self: Rc<Self>) {
        while !self.ended.is_open() {
            let deadline = self.pipeline.borrow().deadline();
            match deadline {
                None => self.keeper.raised().await,
                Some(at) => {
                    let left = at.since(time::now());
                    let raised = time::timeout(left, self.keeper.raised()).await;
                    if raised.is_err() {
                        self.on(|pipeline| pipeline.on_time(time::now()));
                    }
                }
            }
        }
    }
}
