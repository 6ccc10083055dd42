//! Noticing that a core does not turn.
//!
//! Each core counts its turns and says which task it runs, both where another thread can read them.
//! A thread samples that: a core that is awake and has the same count for longer than the limit
//! stalls, and the task is named by the line that spawned it. There are no signals, and a core pays
//! two plain stores per turn and one per task.

use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use lunette_runtime_core::ids::CoreIndex;

use crate::mesh::Inbox;

/// Samples per limit: a stall is reported at most this fraction late.
const SAMPLES_PER_LIMIT: u32 = 4;

/// What a core says of itself.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    turns: AtomicU64,
    /// The line that spawned the running task; null between tasks.
    task: AtomicPtr<Location<'static>>,
}

impl Pulse {
    pub(super) fn beat(&self, turns: u64) {
        self.turns.store(turns, Ordering::Relaxed);
    }

    pub(super) fn enter_task(&self, spawned_at: &'static Location<'static>) {
        self.task
            .store(ptr::from_ref(spawned_at).cast_mut(), Ordering::Relaxed);
    }

    pub(super) fn leave_task(&self) {
        self.task.store(ptr::null_mut(), Ordering::Relaxed);
    }

    fn task(&self) -> Option<&'static Location<'static>> {
        let task = self.task.load(Ordering::Relaxed);
        // SAFETY: null, or a location that the compiler made, which is static and never written.
        unsafe { task.cast_const().as_ref() }
    }
}

/// A core that does not turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The core.
    pub core: CoreIndex,
    /// Where the task was spawned that keeps it; `None` if it is none, but the runtime itself.
    pub spawned_at: Option<&'static Location<'static>>,
    /// How long it has been so, at least.
    pub lasted: Duration,
}

/// Watches cores until it is dropped.
#[derive(Debug)]
pub struct StallWatch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl StallWatch {
    pub(crate) fn start(
        inboxes: Arc<[Arc<Inbox>]>,
        limit: Duration,
        report: impl Fn(Stall) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("lunette-stalls".to_owned())
            .spawn(move || {
                let mut seen: Vec<Seen> = inboxes.iter().map(|inbox| Seen::now(inbox)).collect();
                let pause = limit / SAMPLES_PER_LIMIT;
                while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    for (inbox, seen) in inboxes.iter().zip(&mut seen) {
                        if let Some(stall) = seen.sample(inbox, limit) {
                            report(stall);
                        }
                    }
                }
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the report of a stall panicked");
        }
    }
}

/// What a sampler saw of a core last.
struct Seen {
    turns: u64,
    since: Instant,
    reported: bool,
}

impl Seen {
    fn now(inbox: &Inbox) -> Self {
        let turns = inbox.pulse().turns.load(Ordering::Relaxed);
        Self {
            turns,
            since: Instant::now(),
            reported: false,
        }
    }

    /// A stall that has just become one.
    fn sample(&mut self, inbox: &Inbox, limit: Duration) -> Option<Stall> {
        let turns = inbox.pulse().turns.load(Ordering::Relaxed);
        if turns != self.turns || inbox.is_asleep() || inbox.is_closed() {
            *self = Self::now(inbox);
            return None;
        }
        let lasted = self.since.elapsed();
        if self.reported || lasted < limit {
            return None;
        }
        self.reported = true;
        Some(Stall {
            core: inbox.index(),
            spawned_at: inbox.pulse().task(),
            lasted,
        })
    }
}
