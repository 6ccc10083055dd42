//! Effects are done, events are told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_log::effect::{
    AppendFailure, AppendId, DeviceFault, Effect, Event, OpId, RemovalId, Write,
};
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_runtime::arena::{Arena, Region, RegionMut};
use lunette_runtime::{Signal, can_spawn, spawn_local, time};
use lunette_runtime_core::time::Time;

use super::device::{Device, ReadFault};
use super::ended::Ended;
use super::remote::Patience;
use super::staging::{Gathered, Sources, Staging};
use super::{Keeper, Loss, RemovalLost};

/// How often a read of the log looks for memory where all is in use.
const ROOM_POLL: Duration = Duration::from_millis(1);

/// An append that is under way.
pub(super) struct Append {
    /// Its bytes, among those that are lent.
    pub(super) memory: usize,
    pub(super) ended: Rc<Ended<Result<Record, AppendFailure>>>,
}

/// Whoever waits for a removal.
pub(super) type Removal = Rc<Ended<Result<(), RemovalLost>>>;

/// What tasks and handles of a drive share.
pub(super) struct Shared {
    pub(super) log: RefCell<Log>,
    pub(super) device: Rc<Device>,
    pub(super) arena: Arena,
    pub(super) staging: Staging,
    pub(super) sources: RefCell<Sources>,
    pub(super) appends: RefCell<BTreeMap<AppendId, Append>>,
    pub(super) removals: RefCell<BTreeMap<RemovalId, Removal>>,
    pub(super) keeper: Rc<dyn Keeper>,
    /// When the log is asked to go on by itself.
    pub(super) woken_at: Cell<Option<Time>>,
    /// Raised when an operation has ended.
    pub(super) moved: Signal,
}

impl Shared {
    pub(super) fn with_log<T>(&self, ask: impl FnOnce(&mut Log) -> T) -> T {
        ask(&mut self.log.borrow_mut())
    }

    /// Tells what is to be told, and answers with the next thing that is to be done.
    fn next_effect(&self) -> Option<Effect> {
        loop {
            if let Some(effect) = self.with_log(Log::poll_effect) {
                return Some(effect);
            }
            let event = self.with_log(Log::poll_event)?;
            self.tell(event);
        }
    }

    fn tell(&self, event: Event) {
        match event {
            Event::Durable { append, record } => self.end_append(append, Ok(record)),
            Event::Failed { append, cause } => self.end_append(append, Err(cause)),
            Event::Removed { removal } => self.end_removal(removal, Ok(())),
            Event::RemovalFailed { removal } => self.end_removal(removal, Err(RemovalLost)),
            Event::Judge {
                fingerprint,
                version,
                may_stay,
            } => self.judge(fingerprint, version, may_stay),
            Event::Lost {
                fingerprint,
                version,
                cause,
            } => self.keeper.lost(fingerprint, version, Loss::Drive(cause)),
            Event::DeviceFailed => self.keeper.failed(),
            Event::Moved { .. } | Event::GenerationRaised { .. } => {}
        }
    }

    fn end_append(&self, append: AppendId, outcome: Result<Record, AppendFailure>) {
        let waiting = self.appends.borrow_mut().remove(&append);
        let waiting = waiting.expect("an append ends once");
        self.sources.borrow_mut().lent.remove(waiting.memory);
        waiting.ended.end(outcome);
    }

    fn end_removal(&self, removal: RemovalId, outcome: Result<(), RemovalLost>) {
        let waiting = self.removals.borrow_mut().remove(&removal);
        if let Some(ended) = waiting {
            ended.end(outcome);
        }
    }

    /// Asks the owner, unless there is no room anyway.
    fn judge(&self, fingerprint: Fingerprint, version: Version, may_stay: bool) {
        let record = self.with_log(|log| log.get(fingerprint));
        let now = time::now();
        let is_kept = may_stay
            && record.is_some_and(|record| record.version == version && self.keeper.keeps(record))
            && self
                .with_log(|log| log.keep(now, fingerprint, version))
                .is_ok();
        if !is_kept && self.with_log(|log| log.release(now, fingerprint, version)) {
            self.keeper.lost(fingerprint, version, Loss::Reclaimed);
        }
    }

    /// Does what the log wants done, until it wants nothing more. What has begun holds the drive until it has ended.
    pub(super) fn pump(self: &Rc<Self>) {
        while let Some(effect) = self.next_effect() {
            self.begin(effect);
        }
        self.moved.raise();
        self.keep_time();
    }

    fn begin(self: &Rc<Self>, effect: Effect) {
        if let Effect::Release { op } = effect {
            self.sources.borrow_mut().kept.remove(&op);
            return;
        }
        if !can_spawn() {
            tracing::warn!("a drive is not asked: its core has as many tasks as it may");
            return self.refuse(&effect);
        }
        let shared = Rc::clone(self);
        match effect {
            Effect::Write(write) => {
                if let Some((stage, write)) = self.staging.begin(write) {
                    spawn_local(shared.write_all(stage, write));
                }
            }
            Effect::Read {
                op,
                offset_bytes,
                len_bytes,
                is_kept,
            } => {
                spawn_local(shared.read_for_log(op, offset_bytes, len_bytes, is_kept));
            }
            Effect::Flush { op } => {
                spawn_local(shared.flush(op));
            }
            Effect::Release { .. } => {}
        }
    }

    /// An effect has failed before it was begun.
    fn refuse(&self, effect: &Effect) {
        let now = time::now();
        self.with_log(|log| match effect {
            Effect::Write(write) => log.written(now, write.op, Err(DeviceFault)),
            Effect::Read { op, .. } => log.read_done(now, *op, Err(DeviceFault)),
            Effect::Flush { op } => log.flushed(now, *op, Err(DeviceFault)),
            Effect::Release { .. } => {}
        });
    }

    /// Has the log go on when it wants to.
    fn keep_time(self: &Rc<Self>) {
        let Some(at) = self.with_log(|log| log.poll_timeout()) else {
            return;
        };
        if self.woken_at.get().is_some_and(|earlier| earlier <= at) {
            return;
        }
        self.woken_at.set(Some(at));
        let shared = Rc::clone(self);
        spawn_local(async move {
            time::sleep_until(at).await;
            if shared.woken_at.get() == Some(at) {
                shared.woken_at.set(None);
            }
            shared.with_log(|log| log.advance(time::now()));
            shared.pump();
        });
    }

    /// Writes, then what waits for the stage.
    async fn write_all(self: Rc<Self>, stage: RegionMut, write: Write) {
        let mut next = Some((stage, write));
        while let Some((stage, write)) = next {
            let (result, stage) = self.write(stage, &write).await;
            next = self.staging.next(stage);
            self.with_log(|log| log.written(time::now(), write.op, result));
            self.pump();
        }
    }

    /// Writes all of it, a stage at a time.
    async fn write(
        &self,
        mut stage: RegionMut,
        write: &Write,
    ) -> (Result<(), DeviceFault>, RegionMut) {
        let mut gathered = Gathered::default();
        let mut offset_bytes = write.offset_bytes;
        loop {
            let filled = gathered.fill(write, &self.sources.borrow(), stage.as_mut_slice());
            if filled == 0 {
                return (Ok(()), stage);
            }
            let (result, back) = self.device.write(stage, filled, offset_bytes).await;
            stage = back;
            if let Err(fault) = result {
                return (Err(fault), stage);
            }
            offset_bytes += filled as u64;
        }
    }

    async fn read_for_log(
        self: Rc<Self>,
        op: OpId,
        offset_bytes: u64,
        len_bytes: u32,
        is_kept: bool,
    ) {
        let part = (offset_bytes, len_bytes);
        let read = read(&self.device, &self.arena, part, Patience::Lasting).await;
        if let (true, Ok(bytes)) = (is_kept, &read) {
            self.sources.borrow_mut().kept.insert(op, bytes.clone());
        }
        let bytes = read.as_ref().map(Region::as_slice).map_err(|fault| *fault);
        self.with_log(|log| log.read_done(time::now(), op, bytes));
        self.pump();
    }

    async fn flush(self: Rc<Self>, op: OpId) {
        let result = self.device.flush().await;
        self.with_log(|log| log.flushed(time::now(), op, result));
        self.pump();
    }
}

/// Reads into memory of `arena`. It waits while that is in use: by reads whose bytes are being written, which need
/// no more of it.
pub(super) async fn read(
    device: &Device,
    arena: &Arena,
    (offset_bytes, len_bytes): (u64, u32),
    patience: Patience,
) -> Result<Region, DeviceFault> {
    let len = len_bytes as usize;
    let room = loop {
        match arena.alloc(len) {
            Ok(room) => break room,
            Err(error) if error.is_backpressure() => time::sleep(ROOM_POLL).await,
            Err(error) => {
                tracing::warn!(len_bytes, %error, "no memory for a read of a drive");
                return Err(DeviceFault);
            }
        }
    };
    let (result, room) = device.read(room, len, offset_bytes, patience).await;
    match result {
        Ok(()) => Ok(room.freeze()),
        Err(ReadFault::Away | ReadFault::Failed) => Err(DeviceFault),
    }
}
