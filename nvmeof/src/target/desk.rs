//! Whose command a disk carries out next, on one core.
//!
//! A command is carried out at once while the disk has little to do. Beyond that commands wait,
//! each host's in a line of its own, and hosts get the same bytes ([`Shares`]): one with a hundred
//! commands in flight does not make another one wait for all of them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{HostId, Shares};
use lunette_runtime::{Scope, Signal, time};

use super::link::Link;
use super::work::Work;
use crate::disk::{Disk, Found};

/// What a host may have carried out in its turn, in bytes.
const QUANTUM_BYTES: usize = 64 * 1024;
/// What a command costs at least, in bytes: about what it takes beside its data.
const COST_BYTES_MIN: usize = 4096;
/// What a disk in memory carries out in one turn of the core at most, and a command more.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// What is under way at a drive at most, and a command more, in bytes.
const DRIVE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A command that is ready to be carried out.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) host: HostId,
    /// How often its controller had been reset when it came.
    pub(super) resets: u64,
    pub(super) link: Rc<Link>,
    /// Where it runs if it takes time; gone with its connection.
    pub(super) tasks: Weak<Scope>,
}

/// A disk, and the commands that wait for it.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) disk: Disk,
    waiting: RefCell<Shares<Job>>,
    /// Of a disk in memory: what was carried out in this turn; of a drive: what is under way there.
    busy_bytes: Cell<usize>,
    /// Raised when there may be something for [`Desk::serve`] to do.
    bell: Signal,
    /// Some controller may have been reset.
    is_in_doubt: Cell<bool>,
}

impl Desk {
    pub(super) fn new(disk: Disk) -> Rc<Self> {
        Rc::new(Self {
            disk,
            waiting: RefCell::new(Shares::new(QUANTUM_BYTES)),
            busy_bytes: Cell::new(0),
            bell: Signal::default(),
            is_in_doubt: Cell::new(false),
        })
    }

    /// Carries a command out: now, or in its host's turn.
    pub(super) fn take(self: &Rc<Self>, job: Job) {
        let cost_bytes = job.cost_bytes();
        if self.waiting.borrow().is_empty() && self.has_room() {
            self.start(job, cost_bytes);
            return;
        }
        let host = job.host;
        self.waiting.borrow_mut().push(host, cost_bytes, job);
        self.bell.raise();
    }

    /// Writes bytes that lie in the connection's memory, if nobody waits and the disk is one that does
    /// it at once.
    pub(super) fn write_at_once(&self, offset: u64, bytes: &[u8]) -> Option<Result<(), Status>> {
        if !self.is_free() {
            return None;
        }
        self.begin_at_once(bytes.len().max(COST_BYTES_MIN));
        self.disk.write_at_once(offset, bytes)
    }

    /// Reads, under the same conditions.
    pub(super) fn read_at_once(&self, offset: u64, len: usize) -> Option<Result<Found, Status>> {
        if !self.is_free() {
            return None;
        }
        self.begin_at_once(len.max(COST_BYTES_MIN));
        self.disk.read_at_once(offset, len)
    }

    /// Whether what is asked of the disk now is done at once.
    fn is_free(&self) -> bool {
        self.disk.is_immediate() && self.waiting.borrow().is_empty() && self.has_room()
    }

    /// Aborts a command of a host's connection that waits here.
    pub(super) fn abort(&self, host: HostId, link: &Rc<Link>, cid: u16) -> bool {
        let is_meant = |job: &Job| {
            Rc::ptr_eq(&job.link, link) && link.queue.borrow().cid_of(job.work.slot) == cid
        };
        let found = self.waiting.borrow_mut().remove(host, is_meant);
        if let Some(job) = &found {
            link.complete(job.work.slot, Status::ABORT_REQUESTED, 0);
        }
        found.is_some()
    }

    /// Some controller may have been reset: what waits for it is dropped.
    pub(super) fn look(&self) {
        if !self.waiting.borrow().is_empty() {
            self.is_in_doubt.set(true);
            self.bell.raise();
        }
    }

    /// Carries out what waits, as the disk gets to it, as long as it `is_current`.
    pub(super) async fn serve(self: Rc<Self>, is_current: impl Fn(&Job) -> bool) {
        loop {
            self.bell.raised().await;
            loop {
                if self.disk.is_immediate() {
                    self.busy_bytes.set(0);
                }
                if self.is_in_doubt.take() {
                    let mut waiting = self.waiting.borrow_mut();
                    let dropped = waiting.remove_all(|job| !is_current(job));
                    drop(waiting);
                    dropped.iter().for_each(Job::refuse);
                }
                if !self.start_waiting(&is_current) {
                    break;
                }
                time::yield_now().await;
            }
        }
    }

    /// Whether anything was started.
    fn start_waiting(self: &Rc<Self>, is_current: impl Fn(&Job) -> bool) -> bool {
        let mut has_started = false;
        while self.has_room() {
            let next = self.waiting.borrow_mut().pop();
            let Some((cost_bytes, job)) = next else {
                break;
            };
            if is_current(&job) {
                self.start(job, cost_bytes);
            } else {
                job.refuse();
            }
            has_started = true;
        }
        has_started
    }

    fn has_room(&self) -> bool {
        let limit = if self.disk.is_immediate() {
            TURN_BYTES_MAX
        } else {
            DRIVE_BYTES_MAX
        };
        self.busy_bytes.get() < limit
    }

    /// Counts what an immediate disk does in this turn.
    fn begin_at_once(&self, cost_bytes: usize) {
        let before = self.busy_bytes.get();
        self.busy_bytes.set(before + cost_bytes);
        if before == 0 {
            // The next turn begins at nothing.
            self.bell.raise();
        }
    }

    fn start(self: &Rc<Self>, job: Job, cost_bytes: usize) {
        let Job {
            work, link, tasks, ..
        } = job;
        let Some(tasks) = tasks.upgrade() else {
            // Its connection has ended meanwhile.
            return;
        };
        if self.disk.is_immediate() {
            self.begin_at_once(cost_bytes);
            let mut cx = Context::from_waker(Waker::noop());
            let polled = pin!(work.run(link, Rc::clone(self))).poll(&mut cx);
            assert!(polled.is_ready(), "an immediate disk never waits");
            return;
        }
        self.busy_bytes.set(self.busy_bytes.get() + cost_bytes);
        let under_way = UnderWay {
            desk: Rc::clone(self),
            cost_bytes,
        };
        let running = work.run(Rc::clone(&link), Rc::clone(self));
        let spawned = tasks.spawn(async move {
            running.await;
            drop(under_way);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no task for a command: the connection ends");
            link.close();
        }
    }
}

impl Job {
    /// Answers it without carrying it out: its controller has been reset.
    fn refuse(&self) {
        self.link
            .complete(self.work.slot, Status::ABORTED_WITH_QUEUE, 0);
    }

    fn cost_bytes(&self) -> usize {
        let bytes = self.work.request.data_bytes(&self.work.geometry);
        usize::try_from(bytes).map_or(usize::MAX, |bytes| bytes.max(COST_BYTES_MIN))
    }
}

/// Counts a command as under way until it is dropped.
struct UnderWay {
    desk: Rc<Desk>,
    cost_bytes: usize,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let busy_bytes = &self.desk.busy_bytes;
        busy_bytes.set(busy_bytes.get() - self.cost_bytes);
        self.desk.bell.raise();
    }
}
