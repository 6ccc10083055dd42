//! An open file or socket of one core.

use std::cell::Cell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use super::{Namespace, Target, Via};
use crate::executor::Core;
use crate::sim::{SimulatedFile, SimulatedSocket};

/// An open descriptor. It is closed when its last handle, and the last operation on it, has ended.
#[derive(Debug)]
pub(crate) struct Descriptor {
    registered: Option<Registered>,
    via: Cell<Via>,
    handle: Handle,
}

/// What a descriptor is, by the world it is of. Dropping it closes it.
#[derive(Debug)]
pub(crate) enum Handle {
    /// Of this system.
    System(OwnedFd),
    /// A socket of a simulated network.
    Simulated(SimulatedSocket),
    /// A file of a simulated drive.
    SimulatedFile(SimulatedFile),
    /// The bell by which a simulated core is woken, which its driver knows.
    Bell,
}

impl Handle {
    /// The number by which a driver names it.
    fn number(&self) -> RawFd {
        match self {
            Self::System(fd) => fd.as_raw_fd(),
            Self::Simulated(socket) => socket.number(),
            Self::SimulatedFile(file) => file.number(),
            Self::Bell => NO_NUMBER,
        }
    }
}

const NO_NUMBER: RawFd = -1;

/// The index under which the driver of a core knows a file.
#[derive(Debug)]
struct Registered {
    core: Weak<Core>,
    slot: u32,
}

impl Descriptor {
    /// A descriptor that is used often enough to be known to the driver by index.
    pub(crate) fn registered(core: &Rc<Core>, handle: Handle) -> Rc<Self> {
        let slot = match &handle {
            Handle::System(fd) => core.register_file(fd.as_raw_fd()),
            Handle::Simulated(_) | Handle::SimulatedFile(_) | Handle::Bell => None,
        };
        let registered = slot.map(|slot| Registered {
            core: Rc::downgrade(core),
            slot,
        });
        Rc::new(Self::new(registered, Via::System, handle))
    }

    /// A connection, which is known by index where that does not keep it open (see
    /// [`Features::registered_connections`](super::Features::registered_connections)).
    pub(crate) fn connection(core: &Rc<Core>, handle: Handle) -> Rc<Self> {
        if core.registers_connections() {
            Self::registered(core, handle)
        } else {
            Self::plain(handle)
        }
    }

    /// A descriptor that is used seldom.
    pub(crate) fn plain(handle: Handle) -> Rc<Self> {
        Rc::new(Self::new(None, Via::System, handle))
    }

    /// A descriptor of a direct file whose device is polled, if it can be.
    pub(crate) fn polled(handle: Handle) -> Rc<Self> {
        Rc::new(Self::new(None, Via::Polling, handle))
    }

    /// The character device of an NVMe namespace, which takes commands.
    pub(crate) fn namespace(namespace: Namespace, fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self::new(
            None,
            Via::Commands(namespace),
            Handle::System(fd),
        ))
    }

    const fn new(registered: Option<Registered>, via: Via, handle: Handle) -> Self {
        Self {
            registered,
            via: Cell::new(via),
            handle,
        }
    }

    pub(crate) const fn via(&self) -> Via {
        self.via.get()
    }

    /// Its device cannot be polled, or not by this driver.
    pub(crate) fn stop_polling(&self) {
        self.via.set(Via::System);
    }

    /// What it is.
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What it was, if this is the last handle, no operation on it is under way, and it is of this system. Else it is closed,
    /// by the last of them.
    pub(crate) fn into_system(self: Rc<Self>) -> Option<OwnedFd> {
        let Self {
            registered, handle, ..
        } = Rc::into_inner(self)?;
        // The driver knows it no more before somebody else uses it.
        drop(registered);
        match handle {
            Handle::System(fd) => Some(fd),
            Handle::Simulated(_) | Handle::SimulatedFile(_) | Handle::Bell => None,
        }
    }

    /// The system's descriptor.
    ///
    /// # Panics
    /// If it is a simulated one.
    pub(crate) fn system(&self) -> &OwnedFd {
        match &self.handle {
            Handle::System(fd) => fd,
            other => unreachable!("{other:?} is none of this system"),
        }
    }

    /// The connection that an accept on this listener gave.
    ///
    /// # Safety
    /// `number` is the result of that accept, and nobody else takes it.
    pub(super) unsafe fn accepted(&self, number: RawFd) -> Handle {
        match &self.handle {
            // SAFETY: the caller's promise: the descriptor is open and nobody else's. It is closed
            // once, by the handle.
            Handle::System(_) => Handle::System(unsafe { OwnedFd::from_raw_fd(number) }),
            Handle::Simulated(listener) => Handle::Simulated(listener.accepted(number)),
            other => unreachable!("{other:?} accepts nothing"),
        }
    }

    pub(crate) fn target(&self) -> Target {
        let slot = self.registered.as_ref().map(|registered| registered.slot);
        Target {
            fd: self.handle.number(),
            slot: slot.map(|slot| i32::try_from(slot).expect("the table of files is bounded")),
            via: self.via(),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Without its core there is no ring left that could know the file.
        if let Some(core) = self.core.upgrade() {
            core.unregister_file(self.slot);
        }
    }
}
