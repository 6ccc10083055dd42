//! An open file or socket of one core.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};

use super::{Namespace, Target, Via};
use crate::executor::Core;

/// An open descriptor. It is closed when its last handle, and the last operation on it, has ended.
#[derive(Debug)]
pub(crate) struct Descriptor {
    registered: Option<Registered>,
    via: Cell<Via>,
    fd: OwnedFd,
}

/// The index under which the driver of a core knows a file.
#[derive(Debug)]
struct Registered {
    core: Weak<Core>,
    slot: u32,
}

impl Descriptor {
    /// A descriptor that is used often enough to be known to the driver by index.
    pub(crate) fn registered(core: &Rc<Core>, fd: OwnedFd) -> Rc<Self> {
        let slot = core.register_file(fd.as_raw_fd());
        let registered = slot.map(|slot| Registered {
            core: Rc::downgrade(core),
            slot,
        });
        Rc::new(Self::new(registered, Via::System, fd))
    }

    /// A descriptor that is used seldom.
    pub(crate) fn plain(fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self::new(None, Via::System, fd))
    }

    /// A descriptor of a direct file whose device is polled, if it can be.
    pub(crate) fn polled(fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self::new(None, Via::Polling, fd))
    }

    /// The character device of an NVMe namespace, which takes commands.
    pub(crate) fn namespace(namespace: Namespace, fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self::new(None, Via::Commands(namespace), fd))
    }

    const fn new(registered: Option<Registered>, via: Via, fd: OwnedFd) -> Self {
        Self {
            registered,
            via: Cell::new(via),
            fd,
        }
    }

    pub(crate) const fn via(&self) -> Via {
        self.via.get()
    }

    /// Its device cannot be polled, or not by this driver.
    pub(crate) fn stop_polling(&self) {
        self.via.set(Via::System);
    }

    pub(crate) fn target(&self) -> Target {
        let slot = self.registered.as_ref().map(|registered| registered.slot);
        Target {
            fd: self.fd.as_raw_fd(),
            slot: slot.map(|slot| i32::try_from(slot).expect("the table of files is bounded")),
            via: self.via(),
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
