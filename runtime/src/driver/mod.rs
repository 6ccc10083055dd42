//! The seam between the loop and the system.
//!
//! A [`Driver`] takes submissions ([`Submission`]: what to do with which descriptor and which part
//! of the operation's lease), and yields completions ([`Completion`]: which operation, which
//! result). It never touches tasks, wakers or timers. It is an enum behind the core's handle, so
//! that no type parameter reaches the signatures above.

pub(crate) mod command;
mod descriptor;
mod epoll;
pub(crate) mod memory;
mod probe;
mod submission;
mod table;
mod target;
mod uring;

use std::os::fd::RawFd;
use std::sync::Once;
use std::time::Duration;

use rustix::io::Errno;

pub(crate) use descriptor::{Descriptor, Handle};
pub use probe::{Feature, Features, ProbeError};
pub(crate) use submission::{Completion, CompletionFlags, Submission};
pub(crate) use table::{Arrival, Effect, Key, Polled, Table};
pub(crate) use target::{Namespace, Target, Via};

use crate::lease::Lease;
use crate::pool::OfferRing;
use crate::sim::SimulatedDriver;

/// Entries of the submission queue.
pub(crate) const SUBMISSIONS_MAX: u32 = 1024;
/// Operations in flight on one core.
pub const OPERATIONS_MAX: usize = 4096;

/// What a driver is to ask of the system beyond its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverOptions {
    /// While the core waits, the kernel polls the network devices of its connections for up to this
    /// long (NAPI, Linux 6.9), instead of waiting for their interrupts. For devices that support
    /// it; loopback is none.
    pub busy_poll: Option<Duration>,
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
    /// None of this system: the core is simulated.
    Simulated,
}

/// The drivers. Each core owns one.
pub(crate) enum Driver {
    /// Linux io_uring.
    Uring(uring::Uring),
    /// Readiness, where io_uring is forbidden.
    Epoll(epoll::Epoll),
    /// A simulated world.
    Simulated(Box<SimulatedDriver>),
}

impl Driver {
    /// Opens a driver on the calling thread, which becomes its only user.
    pub(crate) fn open(choice: DriverChoice, options: &DriverOptions) -> Result<Self, ProbeError> {
        match choice {
            DriverChoice::Uring => uring::Uring::open(options).map(Self::Uring),
            DriverChoice::Epoll => Self::open_epoll(),
            DriverChoice::Best => match uring::Uring::open(options) {
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
            Self::Simulated(_) => DriverKind::Simulated,
        }
    }

    /// Queues an operation. Its lease is at its final place and stays there until the last
    /// completion. With a timeout, it is cancelled if it has not completed by then.
    pub(crate) fn submit(
        &mut self,
        key: Key,
        target: Target,
        what: Submission,
        lease: &mut Lease,
        timeout: Option<Duration>,
    ) {
        match self {
            Self::Uring(uring) => uring.submit(key, target, what, lease, timeout),
            Self::Epoll(epoll) => epoll.submit(key, target, what, lease, timeout),
            Self::Simulated(driver) => driver.submit(key, target, what, lease, timeout),
        }
    }

    /// Makes a file known by index, which saves its look-up for each operation. `None` where that
    /// cannot be.
    pub(crate) fn register_file(&mut self, fd: RawFd) -> Option<u32> {
        match self {
            Self::Uring(uring) => uring.register_file(fd),
            Self::Epoll(_) | Self::Simulated(_) => None,
        }
    }

    /// Forgets a file by its index. It stays open until it is closed, too.
    pub(crate) fn unregister_file(&mut self, slot: u32) {
        match self {
            Self::Uring(uring) => uring.unregister_file(slot),
            Self::Epoll(_) | Self::Simulated(_) => {
                unreachable!("this driver knows no files by index")
            }
        }
    }

    /// Makes memory known, which saves its pinning for each operation. The caller keeps it mapped
    /// as long as the driver lives.
    pub(crate) fn register_buffer(&mut self, address: *mut u8, len: usize) -> Result<(), Errno> {
        match self {
            Self::Uring(uring) => uring.register_buffer(address, len),
            Self::Epoll(_) | Self::Simulated(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Offers the buffers of a pool through `ring`, if it is the kernel that picks them, which the
    /// answer says. The caller keeps ring and buffers until [`Driver::unregister_pool`].
    pub(crate) fn register_pool(&mut self, group: u16, ring: &OfferRing) -> Result<bool, Errno> {
        match self {
            Self::Uring(uring) => uring.register_pool(group, ring).map(|()| true),
            Self::Epoll(_) | Self::Simulated(_) => Ok(false),
        }
    }

    /// Takes the buffers of a pool back, if the kernel has them.
    pub(crate) fn unregister_pool(&mut self, group: u16) {
        match self {
            Self::Uring(uring) => uring.unregister_pool(group),
            Self::Epoll(_) | Self::Simulated(_) => {}
        }
    }

    /// Asks for an operation to end early. Its completion still comes, cancelled or not.
    pub(crate) fn cancel(&mut self, key: Key) {
        match self {
            Self::Uring(uring) => uring.cancel(key),
            Self::Epoll(epoll) => epoll.cancel(key),
            Self::Simulated(driver) => driver.cancel(key),
        }
    }

    /// Wakes a sleeping core by a message from this ring to its ring. False if this driver cannot.
    pub(crate) fn wake_ring(&mut self, target: RawFd) -> bool {
        match self {
            Self::Uring(uring) => uring.wake_ring(target),
            Self::Epoll(_) | Self::Simulated(_) => false,
        }
    }

    /// The descriptor at which other rings can wake this one.
    pub(crate) fn wake_fd(&self) -> Option<RawFd> {
        match self {
            Self::Uring(uring) => uring.wake_fd(),
            Self::Epoll(_) | Self::Simulated(_) => None,
        }
    }

    /// Whether [`Driver::turn`] with [`Wait::Poll`] is known to have something to do. Makes no
    /// system call.
    pub(crate) fn has_work(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.has_work(),
            Self::Epoll(epoll) => epoll.has_work(),
            Self::Simulated(driver) => driver.has_work(),
        }
    }

    /// Whether completions show up in memory, so that [`Driver::has_work`] alone may be polled.
    pub(crate) const fn completes_in_memory(&self) -> bool {
        matches!(self, Self::Uring(_) | Self::Simulated(_))
    }

    /// Hands queued submissions over, waits as told, and appends completions to `out`.
    pub(crate) fn turn(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        match self {
            Self::Uring(uring) => uring.turn(wait, out),
            Self::Epoll(epoll) => epoll.turn(wait, out),
            Self::Simulated(driver) => driver.turn(wait, out),
        }
    }
}

/// Says once per process that io_uring is not to be had.
fn warn_once(error: ProbeError) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| tracing::warn!(%error, "using epoll, which is slower"));
}
