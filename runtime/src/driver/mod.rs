//! The seam between the loop and the system.
//!
//! A [`Driver`] takes submissions ([`Submission`]: what to do with which descriptor and which part
//! of the operation's lease), and yields completions ([`Completion`]: which operation, which
//! result). It never touches tasks, wakers or timers. It is an enum behind the core's handle, so
//! that no type parameter reaches the signatures above.

mod probe;
mod table;
mod uring;

use std::os::fd::RawFd;
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
}

impl Submission {
    /// Whether a good result is a descriptor, which somebody must close.
    pub(crate) const fn yields_descriptor(self) -> bool {
        matches!(self, Self::Accept)
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

/// The drivers. Each core owns one.
pub(crate) enum Driver {
    /// Linux io_uring.
    Uring(uring::Uring),
}

impl Driver {
    /// Opens the best driver of this system on the calling thread, which becomes its only user.
    pub(crate) fn open() -> Result<Self, ProbeError> {
        uring::Uring::open().map(Self::Uring)
    }

    pub(crate) fn features(&self) -> Features {
        match self {
            Self::Uring(uring) => uring.features(),
        }
    }

    /// Queues an operation. Its lease is at its final place and stays there until the completion.
    pub(crate) fn submit(&mut self, key: Key, fd: RawFd, what: Submission, lease: &mut Lease) {
        match self {
            Self::Uring(uring) => uring.submit(key, fd, what, lease),
        }
    }

    /// Asks for an operation to end early. Its completion still comes, cancelled or not.
    pub(crate) fn cancel(&mut self, key: Key) {
        match self {
            Self::Uring(uring) => uring.cancel(key),
        }
    }

    /// Wakes a sleeping core by a message from this ring to its ring. False if this driver cannot.
    pub(crate) fn wake_ring(&mut self, target: RawFd) -> bool {
        match self {
            Self::Uring(uring) => uring.wake_ring(target),
        }
    }

    /// The descriptor at which other rings can wake this one.
    pub(crate) fn wake_fd(&self) -> Option<RawFd> {
        match self {
            Self::Uring(uring) => uring.wake_fd(),
        }
    }

    /// Whether [`Driver::turn`] with [`Wait::Poll`] has something to do. Makes no system call.
    pub(crate) fn has_work(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.has_work(),
        }
    }

    /// Hands queued submissions over, waits as told, and appends completions to `out`.
    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        match self {
            Self::Uring(uring) => uring.turn(wait, out),
        }
    }
}
