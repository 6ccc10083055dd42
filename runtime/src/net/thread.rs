//! Connections of threads that are no core's.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use crate::arena::SharedMemory;
use crate::op::OpError;
use crate::processor::is_sent_from_here;

/// A connection that a core has made and a thread has taken, [by](super::TcpStream::into_thread). Whatever thread has it asks
/// the system itself; no core is woken, and none is asked.
///
/// Nothing here is kept by the system: buffers are the caller's again when a call returns.
#[derive(Debug)]
pub struct ThreadStream {
    socket: OwnedFd,
    is_within_host: bool,
}

impl ThreadStream {
    pub(super) const fn new(socket: OwnedFd, is_within_host: bool) -> Self {
        Self {
            socket,
            is_within_host,
        }
    }

    /// Sends as many of the bytes of these parts, one behind the other, as the system takes without waiting; how many, which may
    /// be none.
    ///
    /// # Errors
    /// [`OpError::Os`], when the connection has ended.
    pub fn try_send(&self, parts: &[IoSlice<'_>]) -> Result<usize, OpError> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let mut nothing = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, parts, &mut nothing, flags) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(OpError::Os(errno)),
            }
        }
    }

    /// Receives what has come, as much as there is room for: how many bytes, 0 if the peer has finished. `None` if nothing
    /// has come.
    ///
    /// # Errors
    /// [`OpError::Os`], when the connection has ended.
    pub fn try_recv(&self, buffer: &mut [u8]) -> Result<Option<usize>, OpError> {
        received(|| recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT).map(|(count, _)| count))
    }

    /// As [`try_recv`](Self::try_recv), straight to these bytes of memory that others may reach meanwhile.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn try_recv_to(
        &self,
        memory: &SharedMemory,
        range: Range<usize>,
    ) -> Result<Option<usize>, OpError> {
        received(|| memory.receive(range.clone(), self.socket.as_fd()))
    }

    /// Whether its peer, which is on this host, has sent last on the processor on which this thread runs: it sends no more as
    /// long as this thread does not sleep.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        self.is_within_host && is_sent_from_here(&self.socket)
    }

    /// Blocks this thread until something has come, the connection has ended or, if it `sends`, there is room to send; and no
    /// longer than `timeout`. It may return for no reason, as of a signal.
    ///
    /// # Errors
    /// [`OpError::Os`]: the system has no memory for this.
    pub fn sleep(&self, sends: bool, timeout: Duration) -> Result<(), OpError> {
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, sends);
        let mut polled = [PollFd::new(&self.socket, wanted)];
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(OpError::Os(errno)),
        }
    }
}

/// What has come, if anything has.
fn received(mut receive: impl FnMut() -> Result<usize, Errno>) -> Result<Option<usize>, OpError> {
    loop {
        match receive() {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(OpError::Os(errno)),
        }
    }
}
