//! Cores and how they reach each other.
//!
//! Each core has an [`Inbox`]: a bounded ring of messages and a bounded ring of tasks woken from
//! other threads. A sender pushes, then wakes the core only if it is asleep: by a message from its
//! own ring to that core's ring, or by an eventfd where rings cannot do that (or from a thread that
//! is no core).
//!
//! No wake-up is lost: see [`doorbell`].

mod channel;
mod doorbell;
mod ring;
mod woken;

use std::future::Future;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
use futures_channel::oneshot;
use lunette_runtime_core::ids::CoreIndex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use thiserror::Error;

pub use channel::{CHANNEL_MESSAGES_MAX, Port, Receiver, SendError, Sender, channel};
use doorbell::Doorbell;
use woken::WokenList;
pub(crate) use woken::{Linked, WokenLink};

use crate::driver::Handle;
use crate::executor::{Core, Header, Pulse, deliver};
use crate::sim::SimulatedBell;

/// Messages waiting at one core.
pub const MESSAGES_MAX: usize = 1024;

/// A message: what the receiving core is to do.
pub(crate) type Message = Box<dyn FnOnce() + Send>;

const NO_RING: RawFd = -1;

/// What other threads see of a core.
pub(crate) struct Inbox {
    index: CoreIndex,
    messages: ArrayQueue<Message>,
    // Each on cache lines of its own: senders read the doorbell for each message, and the core
    // writes its pulse in each turn.
    woken: CachePadded<WokenList<Header>>,
    doorbell: CachePadded<Doorbell>,
    pulse: CachePadded<Pulse>,
    closed: AtomicBool,
    poisoned: AtomicBool,
    ring: AtomicI32,
    bell: Bell,
}

/// What wakes a core that sleeps, from any thread.
#[derive(Debug)]
enum Bell {
    Eventfd(OwnedFd),
    Simulated(SimulatedBell),
}

impl Inbox {
    pub(crate) fn new(index: CoreIndex) -> Result<Self, Errno> {
        let bell = Bell::Eventfd(eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(Self::with_bell(index, bell))
    }

    /// Of a simulated core.
    pub(crate) fn simulated(index: CoreIndex, bell: SimulatedBell) -> Self {
        Self::with_bell(index, Bell::Simulated(bell))
    }

    fn with_bell(index: CoreIndex, bell: Bell) -> Self {
        Self {
            index,
            messages: ArrayQueue::new(MESSAGES_MAX),
            woken: CachePadded::new(WokenList::new()),
            doorbell: CachePadded::new(Doorbell::new()),
            pulse: CachePadded::new(Pulse::default()),
            closed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            ring: AtomicI32::new(NO_RING),
            bell,
        }
    }

    pub(crate) const fn index(&self) -> CoreIndex {
        self.index
    }

    /// The core runs; other rings can wake it at `ring`.
    pub(crate) fn open(&self, ring: Option<RawFd>) {
        self.ring.store(ring.unwrap_or(NO_RING), Ordering::Release);
    }

    /// The core shuts down: no message is taken any more, and its ring is not to be used.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.ring.store(NO_RING, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A task has panicked; the core takes no message any more, and its end is near.
    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
        self.close();
    }

    /// Why a closed core gives no answer.
    pub(crate) fn why_closed(&self) -> MeshError {
        if self.poisoned.load(Ordering::Acquire) {
            MeshError::Poisoned(self.index)
        } else {
            MeshError::ShutDown(self.index)
        }
    }

    /// What the core reads to learn that the bell was rung.
    pub(crate) fn bell(&self) -> Result<Handle, Errno> {
        match &self.bell {
            Bell::Eventfd(fd) => Ok(Handle::System(rustix::io::dup(fd)?)),
            Bell::Simulated(_) => Ok(Handle::Bell),
        }
    }

    pub(crate) fn wake_fd(&self) -> Option<RawFd> {
        Some(self.ring.load(Ordering::Acquire)).filter(|&ring| ring != NO_RING)
    }

    pub(crate) fn push_message(&self, message: Message) -> Result<(), Message> {
        if self.is_closed() {
            return Err(message);
        }
        self.messages.push(message)
    }

    /// See [`WokenList::push`]. The core is to be woken afterwards.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn push_woken(&self, task: NonNull<Header>) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.woken.push(task) }
    }

    /// As the core: see [`WokenList::take`].
    pub(crate) fn take_woken(&self, each: impl FnMut(NonNull<Header>)) {
        self.woken.take(each);
    }

    /// As the core: see [`WokenList::close`].
    pub(crate) fn close_woken(&self, each: impl FnMut(NonNull<Header>)) {
        self.woken.close(each);
    }

    pub(crate) fn next_message(&self) -> Option<Message> {
        if self.messages.is_empty() {
            None
        } else {
            self.messages.pop()
        }
    }

    pub(crate) fn has_mail(&self) -> bool {
        !self.messages.is_empty() || !self.woken.is_empty()
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Whether the core has announced its sleep; it may be awake again the next moment.
    pub(crate) fn is_asleep(&self) -> bool {
        self.doorbell.is_asleep()
    }

    /// See [`Doorbell::set_asleep`].
    pub(crate) fn set_asleep(&self) {
        self.doorbell.set_asleep();
    }

    /// See [`Doorbell::take_asleep`].
    pub(crate) fn take_asleep(&self) -> bool {
        self.doorbell.take_asleep()
    }

    /// Wakes the core from any thread, if it is asleep.
    pub(crate) fn wake(&self) {
        if self.take_asleep() {
            self.ring_bell();
        }
    }

    pub(crate) fn ring_bell(&self) {
        let fd = match &self.bell {
            Bell::Eventfd(fd) => fd,
            Bell::Simulated(bell) => return bell.ring(),
        };
        let rung = rustix::io::write(fd, &1_u64.to_ne_bytes());
        debug_assert_eq!(
            rung,
            Ok(size_of::<u64>()),
            "the counter of an eventfd never fills up"
        );
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox")
            .field("index", &self.index)
            .field("messages", &self.messages.len())
            .field("doorbell", &self.doorbell)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

/// Why a core did not take a message, or gave no answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MeshError {
    /// This runtime has no such core.
    #[error("{0} does not exist in this runtime")]
    NoSuchCore(CoreIndex),
    /// The core has too many messages waiting; try again later.
    #[error("{0} has too many messages waiting")]
    Full(CoreIndex),
    /// The core has shut down, or did so before the answer.
    #[error("{0} has shut down")]
    ShutDown(CoreIndex),
    /// A task of the core has panicked, now or before the answer. The core's tasks have been
    /// dropped and its connections closed; what it was sent and had not used is freed when the
    /// devices have let go of it. It does not come back.
    #[error("{0} is poisoned: a task of it has panicked")]
    Poisoned(CoreIndex),
}

impl MeshError {
    /// Whether waiting can help.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Full(_))
    }
}

/// Starts a task on `core` of the current runtime and waits for its output.
///
/// `start` runs on that core and makes the future there, which therefore need not be `Send`. The
/// task is started when this function is called, not when the returned future is awaited; dropping
/// the future lets the task run on.
///
/// # Errors
/// Through the future: [`MeshError`]; nothing was started unless it is
/// [`MeshError::ShutDown`] after the start.
///
/// # Panics
/// Outside a runtime.
pub fn spawn_on<S, F>(
    core: CoreIndex,
    start: S,
) -> impl Future<Output = Result<F::Output, MeshError>> + use<S, F>
where
    S: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    let here = Core::current();
    let sent = match here.peer(core) {
        None => Err(MeshError::NoSuchCore(core)),
        Some(inbox) => send(inbox, start).map(|answer| (answer, Arc::clone(inbox))),
    };
    async move {
        let (answer, inbox) = sent?;
        answer.await.map_err(|_| inbox.why_closed())
    }
}

/// Poisons its core when it is dropped by a panic.
struct PoisonOnPanic(Rc<Core>);

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.inbox().poison();
        }
    }
}

/// Sends the start of a task to the core behind `inbox`; the receiver yields its output.
pub(crate) fn send<S, F>(
    inbox: &Arc<Inbox>,
    start: S,
) -> Result<oneshot::Receiver<F::Output>, MeshError>
where
    S: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    let (answer, receiver) = oneshot::channel();
    let message: Message = Box::new(move || {
        let core = Core::current();
        let future = start();
        let here = Rc::clone(&core);
        drop(here.spawn(async move {
            // Dropped before the answer's sender: who waits is to learn the reason.
            let _poison = PoisonOnPanic(core);
            let output = future.await;
            // A receiver that is gone does not want the output.
            drop(answer.send(output));
        }));
    });
    match deliver(inbox, message) {
        Ok(()) => Ok(receiver),
        Err(_) if inbox.is_closed() => Err(inbox.why_closed()),
        Err(_) => Err(MeshError::Full(inbox.index())),
    }
}
