//! Listening for connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::stream::TcpStream;
use crate::driver::Submission;
use crate::executor::Core;
use crate::op::{Op, OpError};

/// Connections that the system may hold for us between two accepts.
const BACKLOG_MAX: i32 = 1024;

/// A TCP listener, owned by the core that bound it.
#[derive(Debug)]
pub struct TcpListener {
    fd: Rc<OwnedFd>,
    address: SocketAddr,
}

impl TcpListener {
    /// Binds and listens. Port 0 asks the system for a free one.
    ///
    /// # Errors
    /// The system's: `AddrInUse` when another socket has the port, `PermissionDenied` for a
    /// privileged one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let fd = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        net::bind(&fd, &address)?;
        net::listen(&fd, BACKLOG_MAX)?;
        let address = SocketAddr::try_from(net::getsockname(&fd)?)?;
        Ok(Self {
            fd: Rc::new(fd),
            address,
        })
    }

    /// Where it listens, the port resolved.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection. Dropping the future loses none: a connection that arrives after the
    /// drop is closed, and the peer sees that.
    ///
    /// # Errors
    /// [`OpError`]: `EMFILE` and the like do not end the listener; try again later.
    pub async fn accept(&self) -> Result<TcpStream, OpError> {
        let core = Core::current();
        let (result, ()) = Op::submit(&core, Submission::Accept, Rc::clone(&self.fd), ()).await;
        let number = i32::try_from(result?).expect("a descriptor fits its type");
        // SAFETY: the kernel just handed this descriptor to us as the result of our accept, so
        // nobody else owns it; the stream closes it, once.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(TcpStream::from_connected(fd))
    }
}
