//! An open file or socket of one core.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};

use super::Target;
use crate::executor::Core;

/// An open descriptor. It is closed when its last handle, and the last operation on it, has ended.
#[derive(Debug)]
pub(crate) struct Descriptor {
    registered: Option<Registered>,
    /// Its device is polled for completions.
    is_polled: Cell<bool>,
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
        Rc::new(Self::new(registered, false, fd))
    }

    /// A descriptor that is used seldom.
    pub(crate) fn plain(fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self::new(None, false, fd))
    }

    /// A descriptor of a direct file whose device is polled, if it can be.
    pub(crate) fn polled(fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self::new(None, true, fd))
    }

    const fn new(registered: Option<Registered>, is_polled: bool, fd: OwnedFd) -> Self {
        Self {
            registered,
            is_polled: Cell::new(is_polled),
            fd,
        }
    }

    pub(crate) const fn is_polled(&self) -> bool {
        self.is_polled.get()
    }

    /// Its device cannot be polled, or not by this driver.
    pub(crate) fn stop_polling(&self) {
        self.is_polled.set(false);
    }

    pub(crate) fn target(&self) -> Target {
        let slot = self.registered.as_ref().map(|registered| registered.slot);
        Target {
            fd: self.fd.as_raw_fd(),
            slot: slot.map(|slot| i32::try_from(slot).expect("the table of files is bounded")),
            is_polled: self.is_polled(),
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
