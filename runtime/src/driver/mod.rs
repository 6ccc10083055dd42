//! The seam between the loop and the system.
//!
//! A [`Driver`] takes submissions ([`Submission`]: what to do with which descriptor and which part
//! of the operation's lease), and yields completions ([`Completion`]: which operation, which
//! result). It never touches tasks, wakers or timers. It is an enum behind the core's handle, so
//! that no type parameter reaches the signatures above.

mod epoll;
mod memory;
mod probe;
mod table;
mod uring;

use std::os::fd::RawFd;
use std::sync::Once;
use std::time::Duration;

pub use probe::{Features, ProbeError};
pub(crate) use table::{Key, Polled, Table};

use crate::lease::Lease;

/// Entries of the submission queue.
pub(crate) const SUBMISSIONS_MAX: u32 = 1024;
/// Operations in flight on one core. Each yields at most one completion, and the completion queue
/// has as many entries, so it cannot overflow.
pub const OPERATIONS_MAX: usize = 4096;

/// What to do. Offsets and lengths name a part of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submission {
    /// Receive at most `len` bytes to `start` of the lease.
    Receive { start: usize, len: usize },
    /// Send `len` bytes from `start` of the lease.
    Send { start: usize, len: usize },
    /// Send what is left of the lease, a gather list.
    SendMessage,
    /// Accept a connection; the result is its descriptor.
    Accept,
    /// Connect to the lease, an address.
    Connect,
    /// Read the counter of an eventfd into the lease.
    ReadCounter,
    /// Read at most `len` bytes from `offset` of a file to `start` of the lease.
    ReadAt {
        start: usize,
        len: usize,
        offset: u64,
    },
    /// Write at most `len` bytes from `start` of the lease to `offset` of a file.
    WriteAt {
        start: usize,
        len: usize,
        offset: u64,
    },
}

impl Submission {
    /// Whether a good result is a descriptor, which somebody must close.
    pub(crate) const fn yields_descriptor(self) -> bool {
        matches!(self, Self::Accept)
    }

    /// Whether it waits for its descriptor to become readable, as against writable.
    const fn is_read(self) -> bool {
        match self {
            Self::Receive { .. } | Self::Accept | Self::ReadCounter | Self::ReadAt { .. } => true,
            Self::Send { .. } | Self::SendMessage | Self::Connect | Self::WriteAt { .. } => false,
        }
    }
}

/// The end of one operation: its key as submitted, and a count or a negated errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
}

/// How long a turn may wait for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: hand over what is queued, take what is there.
    Poll,
    /// Until a completion, or until this long has passed.
    For(Duration),
    /// Until a completion.
    Forever,
}

/// Which driver a core is to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// io_uring; epoll where the system forbids or lacks it, with a warning.
    #[default]
    Best,
    /// io_uring or nothing.
    Uring,
    /// epoll.
    Epoll,
}

/// The driver of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring, with these features.
    Uring(Features),
    /// epoll.
    Epoll,
}

/// The drivers. Each core owns one.
pub(crate) enum Driver {
    /// Linux io_uring.
    Uring(uring::Uring),
    /// Readiness, where io_uring is forbidden.
    Epoll(epoll::Epoll),
}

impl Driver {
    /// Opens a driver on the calling thread, which becomes its only user.
    pub(crate) fn open(choice: DriverChoice) -> Result<Self, ProbeError> {
        match choice {
            DriverChoice::Uring => uring::Uring::open().map(Self::Uring),
            DriverChoice::Epoll => Self::open_epoll(),
            DriverChoice::Best => match uring::Uring::open() {
                Err(error) if error.asks_for_epoll() => {
                    warn_once(error);
                    Self::open_epoll()
                }
                other => other.map(Self::Uring),
            },
        }
    }

    fn open_epoll() -> Result<Self, ProbeError> {
        epoll::Epoll::open()
            .map(Self::Epoll)
            .map_err(ProbeError::Epoll)
    }

    pub(crate) const fn kind(&self) -> DriverKind {
        match self {
            Self::Uring(uring) => DriverKind::Uring(uring.features()),
            Self::Epoll(_) => DriverKind::Epoll,
        }
    }

    /// Queues an operation. Its lease is at its final place and stays there until the completion.
    pub(crate) fn submit(&mut self, key: Key, fd: RawFd, what: Submission, lease: &mut Lease) {
        match self {
            Self::Uring(uring) => uring.submit(key, fd, what, lease),
            Self::Epoll(epoll) => epoll.submit(key, fd, what, lease),
        }
    }

    /// Asks for an operation to end early. Its completion still comes, cancelled or not.
    pub(crate) fn cancel(&mut self, key: Key) {
        match self {
            Self::Uring(uring) => uring.cancel(key),
            Self::Epoll(epoll) => epoll.cancel(key),
        }
    }

    /// Wakes a sleeping core by a message from this ring to its ring. False if this driver cannot.
    pub(crate) fn wake_ring(&mut self, target: RawFd) -> bool {
        match self {
            Self::Uring(uring) => uring.wake_ring(target),
            Self::Epoll(_) => false,
        }
    }

    /// The descriptor at which other rings can wake this one.
    pub(crate) fn wake_fd(&self) -> Option<RawFd> {
        match self {
            Self::Uring(uring) => uring.wake_fd(),
            Self::Epoll(_) => None,
        }
    }

    /// Whether [`Driver::turn`] with [`Wait::Poll`] is known to have something to do. Makes no
    /// system call.
    pub(crate) fn has_work(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.has_work(),
            Self::Epoll(epoll) => epoll.has_work(),
        }
    }

    /// Whether completions show up in memory, so that [`Driver::has_work`] alone may be polled.
    pub(crate) const fn completes_in_memory(&self) -> bool {
        matches!(self, Self::Uring(_))
    }

    /// Hands queued submissions over, waits as told, and appends completions to `out`.
    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        match self {
            Self::Uring(uring) => uring.turn(wait, out),
            Self::Epoll(epoll) => epoll.turn(wait, out),
        }
    }
}

/// Says once per process that io_uring is not to be had.
fn warn_once(error: ProbeError) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| tracing::warn!(%error, "using epoll, which is slower"));
}
