//! Listening for connections.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;

use super::socket;
use super::stream::TcpStream;
use crate::driver::{Arrival, Descriptor, Handle, Submission};
use crate::executor::Core;
use crate::op::{Multishot, OpError};
use crate::time;

/// A `wait` for [`TcpListener::bind_within`] that outlasts what the kernel does after a process.
pub const REBIND_WAIT: Duration = Duration::from_secs(1);

/// Between two tries to bind.
const REBIND_PAUSE: Duration = Duration::from_millis(5);

/// A TCP listener, owned by the core that bound it.
#[derive(Debug)]
pub struct TcpListener {
    fd: Rc<Descriptor>,
    /// The operation that accepts, once somebody has asked.
    accepts: RefCell<Option<Multishot>>,
    address: SocketAddr,
}

impl TcpListener {
    /// Binds and listens. Port 0 asks the system for a free one.
    ///
    /// # Errors
    /// The system's: `AddrInUse` when another socket has the port, `PermissionDenied` for a
    /// privileged one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let (socket, address) = socket::listen(&Core::current(), address)?;
        Ok(Self {
            fd: Descriptor::plain(socket),
            accepts: RefCell::default(),
            address,
        })
    }

    /// Binds and listens, and tries for `wait` while another socket has the port.
    ///
    /// The kernel takes a process' rings down some milliseconds after the process is gone, and the
    /// sockets that their operations name with them: whoever starts again at once where one was
    /// killed finds the port in use. Dropping the future binds nothing.
    ///
    /// # Errors
    /// [`TcpListener::bind`]'s: the last one.
    pub async fn bind_within(address: SocketAddr, wait: Duration) -> io::Result<Self> {
        let until = time::now() + wait;
        loop {
            match Self::bind(address) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && time::now() < until => {
                    time::sleep(REBIND_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// Where it listens, the port resolved.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection. Several tasks may ask at once.
    ///
    /// One operation of the driver accepts again and again, ahead of being asked, up to a bound;
    /// connections that nobody asks for any more are closed with the listener, and their peers see
    /// that. Dropping the future loses none.
    ///
    /// # Errors
    /// [`OpError`]: `EMFILE` and the like do not end the listener; try again later.
    pub async fn accept(&self) -> Result<TcpStream, OpError> {
        let core = Core::current();
        let arrival = std::future::poll_fn(|cx| self.poll_arrival(&core, cx)).await?;
        match arrival {
            Arrival::Accepted(fd) => Ok(TcpStream::from_connected(fd)),
            Arrival::Failed(errno) => Err(errno.into()),
            other => unreachable!("a listener does not yield {other:?}"),
        }
    }

    /// As [`TcpListener::accept`], for whatever core: see [`Accepted`].
    ///
    /// # Errors
    /// As there; `EOPNOTSUPP` in a simulated network, whose connections stay where they are made.
    pub async fn accept_for_any(&self) -> Result<Accepted, OpError> {
        let core = Core::current();
        let arrival = std::future::poll_fn(|cx| self.poll_arrival(&core, cx)).await?;
        match arrival {
            Arrival::Accepted(Handle::System(fd)) => Ok(Accepted(fd)),
            Arrival::Accepted(_simulated) => Err(Errno::OPNOTSUPP.into()),
            Arrival::Failed(errno) => Err(errno.into()),
            other => unreachable!("a listener does not yield {other:?}"),
        }
    }

    /// What the operation brings next; it is started, again if need be.
    fn poll_arrival(&self, core: &Rc<Core>, cx: &Context<'_>) -> Poll<Result<Arrival, OpError>> {
        let mut accepts = self.accepts.borrow_mut();
        loop {
            if let Some(current) = accepts.as_mut() {
                match current.poll_next(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(arrival)) => return Poll::Ready(Ok(arrival)),
                    Poll::Ready(None) => *accepts = None,
                }
            }
            *accepts = Some(Multishot::submit(
                core,
                Submission::AcceptMany,
                &self.fd,
                (),
            )?);
        }
    }
}

/// A connection that no core owns yet: it may be sent to the one that is to. Dropping it closes it.
#[derive(Debug)]
pub struct Accepted(OwnedFd);

impl Accepted {
    /// The connection, owned by this core.
    ///
    /// # Panics
    /// Outside a runtime.
    #[must_use]
    pub fn here(self) -> TcpStream {
        TcpStream::from_connected(Handle::System(self.0))
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        // The operation that accepts keeps the socket until its own end; nobody is to connect
        // meanwhile.
        socket::shut_down(&self.fd);
    }
}
