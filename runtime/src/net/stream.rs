//! Connections.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use rustix::net::{self, AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt};

use super::message::Message;
use crate::driver::Submission;
use crate::executor::Core;
use crate::lease::{LendRead, LendWrite};
use crate::op::{BufResult, Op, OpError};

/// A TCP connection, owned by one core. Clones are handles to the same connection, so that one
/// task can receive while another sends.
#[derive(Clone, Debug)]
pub struct TcpStream {
    fd: Rc<OwnedFd>,
}

impl TcpStream {
    /// Connects to `address`, with `TCP_NODELAY` set.
    ///
    /// # Errors
    /// [`OpError::Os`] with the system's reason (`ECONNREFUSED`, `ETIMEDOUT`, ...).
    pub async fn connect(address: SocketAddr) -> Result<Self, OpError> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let fd = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let stream = Self::from_connected(fd);
        let target = Box::new(SocketAddrAny::from(address));
        let core = Core::current();
        let connect = Op::submit(&core, Submission::Connect, Rc::clone(&stream.fd), target);
        let (result, _target) = connect.await;
        result?;
        Ok(stream)
    }

    pub(super) fn from_connected(fd: OwnedFd) -> Self {
        // Latency first; a socket without the option still works.
        if let Err(errno) = sockopt::set_tcp_nodelay(&fd, true) {
            tracing::debug!(%errno, "TCP_NODELAY");
        }
        Self { fd: Rc::new(fd) }
    }

    /// Receives at most `len` bytes to `start` of `buffer`; 0 means that the peer has finished.
    ///
    /// The buffer belongs to the system until the future ends. Dropping the future cancels the
    /// receive and gives the buffer up; bytes that arrived in between are lost, so drop it only to
    /// close the connection.
    pub async fn recv<B: LendWrite>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
    ) -> BufResult<usize, B> {
        let core = Core::current();
        let what = Submission::Receive { start, len };
        let (result, buffer) = Op::submit(&core, what, Rc::clone(&self.fd), buffer).await;
        (result.map(|count| count as usize), buffer)
    }

    /// Like [`TcpStream::recv`], but ends early when `stop` does: the receive is then cancelled and
    /// its true outcome awaited, so that no byte is lost and the buffer comes back.
    ///
    /// A receive that was cancelled before any byte came gives [`OpError::Cancelled`].
    pub async fn recv_until<B: LendWrite>(
        &self,
        buffer: B,
        start: usize,
        len: usize,
        stop: impl Future<Output = ()>,
    ) -> BufResult<usize, B> {
        let core = Core::current();
        let what = Submission::Receive { start, len };
        let mut receive = pin!(Op::submit(&core, what, Rc::clone(&self.fd), buffer));
        let mut stop = pin!(stop);
        let mut stopped = false;
        let (result, buffer) = std::future::poll_fn(|cx| {
            if let Poll::Ready(outcome) = receive.as_mut().poll(cx) {
                return Poll::Ready(outcome);
            }
            if !stopped && stop.as_mut().poll(cx).is_ready() {
                stopped = true;
                receive.cancel();
            }
            Poll::Pending
        })
        .await;
        (result.map(|count| count as usize), buffer)
    }

    /// Sends `len` bytes from `start` of `buffer`, all of them or an error.
    ///
    /// The buffer belongs to the system until the future ends.
    pub async fn send_all<B: LendRead>(
        &self,
        mut buffer: B,
        start: usize,
        len: usize,
    ) -> BufResult<(), B> {
        let core = Core::current();
        let mut sent = 0;
        while sent < len {
            let what = Submission::Send {
                start: start + sent,
                len: len - sent,
            };
            let (result, back) = Op::submit(&core, what, Rc::clone(&self.fd), buffer).await;
            buffer = back;
            match result {
                Ok(count) => sent += count as usize,
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Sends what is left of `message`, all of it or an error; the message then says how much.
    ///
    /// The message, and every region in it, belongs to the system until the future ends.
    pub async fn send_message(&self, mut message: Box<Message>) -> BufResult<(), Box<Message>> {
        let core = Core::current();
        while !message.is_empty() {
            let send = Op::submit(&core, Submission::SendMessage, Rc::clone(&self.fd), message);
            let (result, back) = send.await;
            message = back;
            match result {
                Ok(count) => message.advance(count as usize),
                Err(error) => return (Err(error), message),
            }
        }
        (Ok(()), message)
    }

    /// Ends both directions: operations in flight on this connection end soon, at the peer too.
    pub fn shutdown(&self) {
        if let Err(errno) = net::shutdown(&self.fd, Shutdown::Both) {
            // The peer was first.
            tracing::trace!(%errno, "shutdown");
        }
    }

    /// Size of the system's send buffer to ask for, in bytes.
    ///
    /// # Errors
    /// The system's refusal; the connection goes on with what it has.
    pub fn set_send_buffer(&self, len_bytes: usize) -> Result<(), OpError> {
        Ok(sockopt::set_socket_send_buffer_size(&self.fd, len_bytes)?)
    }
}
