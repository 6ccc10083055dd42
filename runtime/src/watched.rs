//! Descriptors of other libraries, watched by a core.
//!
//! A completion channel, an eventfd, a timer: whatever tells by its descriptor that it has
//! something, and is then read by its own library. What the runtime can read itself is better read
//! by an operation.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use crate::driver::{Descriptor, Handle, Submission};
use crate::executor::Core;
use crate::op::{Op, OpError};

/// A descriptor that somebody else reads, watched by the core on which it is used.
///
/// Its owner may go on with a duplicate of it: both see the same file. Clones are handles to the
/// same descriptor, which is closed when the last one is gone and nothing waits.
#[derive(Clone, Debug)]
pub struct Watched {
    fd: Rc<Descriptor>,
}

impl Watched {
    /// Watches `fd`, a duplicate of the one that its library uses, say.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            fd: Descriptor::plain(Handle::System(fd)),
        }
    }

    /// Waits until something can be read, at once if that is so already; also when the other side
    /// has gone, or there is an error, which reading tells.
    ///
    /// A core that sleeps is woken by it, without a system call of its own beside the one that it
    /// sleeps in. It says nothing of how much can be read; others who wait for the same file may
    /// be faster, so read without blocking. Dropping the future ends the wait.
    ///
    /// # Errors
    /// [`OpError`] as for any operation; `Os` where the descriptor cannot be waited for.
    pub async fn readable(&self) -> Result<(), OpError> {
        loop {
            let waits = Op::submit(&Core::current(), Submission::Readable, &self.fd, ());
            match waits.await.0 {
                Err(error) if error.is_interruption() => {}
                result => return result.map(|_events| ()),
            }
        }
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.system().as_fd()
    }
}
