//! Starting cores: one on the calling thread, or several on threads of their own.

use std::future::Future;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::limits::CORES_MAX;
use rustix::io::Errno;
use thiserror::Error;

use crate::arena::ArenaOptions;
use crate::clock::Clock;
use crate::driver::{DriverChoice, DriverOptions, ProbeError};
use crate::executor::{Core, Idle, Stall, StallWatch};
use crate::mesh::{self, Inbox, MeshError};
use crate::pending::{SPIN, wait};
use crate::topology::{self, CoreClaim, PinError, TooFewCpus};
use crate::{process, processor};

/// When a core is asked to stop again that has too many messages waiting.
const STOP_AGAIN: Duration = Duration::from_millis(1);

/// Where cores run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// This many cores, scheduled by the system wherever the process may run.
    Anywhere(usize),
    /// One core on each of these CPUs (numbers as the system counts them).
    Pinned(Vec<usize>),
    /// This many cores, each on a CPU of its own: of those that the calling thread may use, one
    /// that no other program has claimed. It is claimed as long as the runtime runs
    /// ([`topology::CoreClaim`]). Where claims do not work, without.
    Claimed(usize),
}

impl Placement {
    /// How many cores it places.
    #[must_use]
    pub const fn cores(&self) -> usize {
        match self {
            Self::Anywhere(count) | Self::Claimed(count) => *count,
            Self::Pinned(cpus) => cpus.len(),
        }
    }

    /// A CPU for each core, if it is to have one, and the claims on them.
    fn cpus(&self) -> Result<(Vec<Option<usize>>, Vec<CoreClaim>), TooFewCpus> {
        let (cpus, claims) = match self {
            Self::Anywhere(count) => return Ok((vec![None; *count], Vec::new())),
            Self::Pinned(cpus) => (cpus.clone(), Vec::new()),
            Self::Claimed(count) => {
                let chosen = topology::choose_and_claim(*count)?;
                (chosen.cpus, chosen.claims)
            }
        };
        Ok((cpus.into_iter().map(Some).collect(), claims))
    }
}

/// How cores are to be run.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreOptions {
    /// What a core does when it has nothing to do.
    pub idle: Idle,
    /// The arena of each core.
    pub arena: ArenaOptions,
    /// The driver of each core.
    pub driver: DriverChoice,
    /// What the driver is to ask of the system.
    pub driver_options: DriverOptions,
}

/// Why a runtime could not be started.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StartError {
    /// No core was asked for, or too many.
    #[error("{0} cores asked for; 1 to {CORES_MAX} are possible")]
    CoreCount(usize),
    /// There are not enough CPUs that nobody has claimed.
    #[error(transparent)]
    TooFewCpus(#[from] TooFewCpus),
    /// A core could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// No driver works here.
    #[error(transparent)]
    Driver(#[from] ProbeError),
    /// This process is a child of a fork of one that ran cores. Start a new program instead.
    #[error("cores were running when this process was forked: start a new program instead")]
    Forked,
    /// The system refused a thread or a descriptor.
    #[error("the system refused a core's resources: {0}")]
    Resources(Errno),
}

/// Runs `future` on a core made of the calling thread, pinned to `cpu` if one is given.
///
/// # Errors
/// [`StartError`]: nothing ran.
///
/// # Panics
/// If the calling thread already runs a core, or if a task panics.
pub fn block_on<S, F>(
    cpu: Option<usize>,
    options: CoreOptions,
    start: S,
) -> Result<F::Output, StartError>
where
    S: FnOnce() -> F,
    F: Future + 'static,
    F::Output: 'static,
{
    refuse_forked()?;
    if let Some(cpu) = cpu {
        topology::pin_current_thread(cpu)?;
    }
    let inbox = Inbox::new(CoreIndex(0)).map_err(StartError::Resources)?;
    let peers: Arc<[Arc<Inbox>]> = Arc::new([Arc::new(inbox)]);
    let core = Core::open(CoreIndex(0), peers, Clock::start(), &options)?;
    let _entered = core.enter();
    let output = core.block_on(start());
    core.shut_down();
    Ok(output)
}

fn refuse_forked() -> Result<(), StartError> {
    if process::is_fork_child() {
        return Err(StartError::Forked);
    }
    process::watch_forks();
    Ok(())
}

/// Cores on threads of their own. Dropping it shuts them down and waits for them.
#[derive(Debug)]
pub struct Runtime {
    inboxes: Arc<[Arc<Inbox>]>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Given up when the threads have ended.
    _claims: Vec<CoreClaim>,
}

/// A core's thread ended by a panic.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0} panicked")]
pub struct CorePanicked(pub CoreIndex);

impl Runtime {
    /// Starts the cores and waits until each of them runs.
    ///
    /// # Errors
    /// [`StartError`]: cores that had started have been shut down again.
    pub fn start(placement: &Placement, options: CoreOptions) -> Result<Self, StartError> {
        refuse_forked()?;
        let count = placement.cores();
        if count == 0 || count > CORES_MAX {
            return Err(StartError::CoreCount(count));
        }
        let (cpus, claims) = placement.cpus()?;
        let mut inboxes = Vec::with_capacity(cpus.len());
        for index in 0..cpus.len() {
            let index = CoreIndex(u16::try_from(index).expect("cores are bounded"));
            inboxes.push(Arc::new(Inbox::new(index).map_err(StartError::Resources)?));
        }
        let inboxes: Arc<[Arc<Inbox>]> = inboxes.into();
        let clock = Clock::start();
        let (report, reports) = mpsc::channel();
        let mut runtime = Self {
            inboxes,
            threads: Vec::new(),
            _claims: claims,
        };
        for (inbox, cpu) in runtime.inboxes.iter().zip(&cpus) {
            let index = inbox.index();
            let (peers, report, cpu) = (Arc::clone(&runtime.inboxes), report.clone(), *cpu);
            let clock = clock.clone();
            let thread = thread::Builder::new()
                .name(format!("lunette-{}", index.0))
                .spawn(move || run_core(index, peers, clock, cpu, options, &report))
                .map_err(|error| {
                    StartError::Resources(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
                })?;
            runtime.threads.push(thread);
        }
        for _ in &cpus {
            // A thread that panics before its report is a failed start as well.
            reports
                .recv()
                .unwrap_or(Err(StartError::Resources(Errno::CANCELED)))?;
        }
        Ok(runtime)
    }

    /// How many cores there are.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.inboxes.len()
    }

    /// Starts a task on `core`. `start` runs there and makes the future, which need not be `Send`.
    /// The task runs on if the returned answer is dropped.
    ///
    /// # Errors
    /// [`MeshError`]: nothing was started.
    pub fn spawn_on<S, F>(&self, core: CoreIndex, start: S) -> Result<Answer<F::Output>, MeshError>
    where
        S: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let inbox = self
            .inboxes
            .get(usize::from(core.0))
            .ok_or(MeshError::NoSuchCore(core))?;
        let receiver = mesh::send(inbox, start)?;
        let inbox = Arc::clone(inbox);
        Ok(Answer { inbox, receiver })
    }

    /// Watches the cores: `report` is called, on a thread of its own, once for each time that a core
    /// has not turned for `limit`.
    ///
    /// # Errors
    /// The system's, if it refuses the thread.
    pub fn watch_stalls(
        &self,
        limit: Duration,
        report: impl Fn(Stall) + Send + 'static,
    ) -> io::Result<StallWatch> {
        StallWatch::start(Arc::clone(&self.inboxes), limit, report)
    }

    /// Shuts every core down and waits for them. Tasks are dropped, which cancels their
    /// operations; memory lent to devices is waited for.
    ///
    /// # Errors
    /// [`CorePanicked`] names the first core whose task panicked.
    pub fn shut_down(mut self) -> Result<(), CorePanicked> {
        self.stop_all()
    }

    fn stop_all(&mut self) -> Result<(), CorePanicked> {
        for inbox in self.inboxes.iter() {
            stop(inbox);
        }
        let mut result = Ok(());
        for (index, thread) in self.threads.drain(..).enumerate() {
            if thread.join().is_err() && result.is_ok() {
                let index = u16::try_from(index).expect("cores are bounded");
                result = Err(CorePanicked(CoreIndex(index)));
            }
        }
        result
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Err(error) = self.stop_all() {
            tracing::error!(%error, "at shut-down");
        }
    }
}

/// The output of a task on another core, to be waited for by a thread that is no core.
#[derive(Debug)]
pub struct Answer<T> {
    inbox: Arc<Inbox>,
    receiver: oneshot::Receiver<T>,
}

impl<T> Answer<T> {
    /// Blocks the calling thread until the output is there. Not for use on a core's thread.
    ///
    /// # Errors
    /// [`MeshError::ShutDown`] or [`MeshError::Poisoned`]: the core ended before the task did.
    pub fn wait(self) -> Result<T, MeshError> {
        wait(self.receiver, SPIN).map_err(|_| self.inbox.why_closed())
    }
}

/// Asks a core to stop. That needs no task of it: it may have as many as it takes.
fn stop(inbox: &Arc<Inbox>) {
    let ask = || {
        mesh::send(inbox, || {
            Core::current().stop();
            async {}
        })
    };
    // A core that panicked takes no message; it has ended already.
    while ask().is_err_and(|error| error.is_backpressure()) {
        thread::sleep(STOP_AGAIN);
    }
}

/// The body of a core's thread.
fn run_core(
    index: CoreIndex,
    peers: Arc<[Arc<Inbox>]>,
    clock: Clock,
    cpu: Option<usize>,
    options: CoreOptions,
    report: &mpsc::Sender<Result<(), StartError>>,
) {
    let inbox = Arc::clone(&peers[usize::from(index.0)]);
    let _closed = CloseOnExit(inbox);
    process::block_signals();
    processor::ask_for_short_turns();
    let opened = cpu
        .map_or(Ok(()), topology::pin_current_thread)
        .map_err(StartError::from);
    let opened =
        opened.and_then(|()| Core::open(index, peers, clock, &options).map_err(StartError::from));
    match opened {
        Ok(core) => {
            let _entered = core.enter();
            // The starter may have given up; then a stop message follows.
            drop(report.send(Ok(())));
            let ran = panic::catch_unwind(AssertUnwindSafe(|| core.run()));
            if ran.is_err() {
                // It may have been a message's or a source's, not a task's.
                core.inbox().poison();
            }
            // After a panic too: its connections are closed, its peers see that, and memory that
            // devices own is waited for.
            core.shut_down();
            if let Err(panicked) = ran {
                panic::resume_unwind(panicked);
            }
        }
        Err(error) => drop(report.send(Err(error))),
    }
}

/// Closes the inbox of a core whose thread ends, by a panic too, so that nobody waits for it.
struct CloseOnExit(Arc<Inbox>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.0.close();
        while let Some(message) = self.0.next_message() {
            drop(message);
        }
    }
}
