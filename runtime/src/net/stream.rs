//! Connections.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use super::receive::Receives;
use super::socket;
use super::thread::ThreadStream;
use crate::driver::{Descriptor, Handle, Submission};
use crate::executor::Core;
use crate::lease::{Lend, LendRead, LendWrite};
use crate::op::{BufResult, Op, OpError};
use crate::pool::BufferPool;
use crate::vectored::{Message, Scatter};

/// Messages at least this long are sent without copies to peers on other hosts. Below, the second
/// completion costs more than the copy (`io_uring_prep_send_zc(3)` and the kernel's documentation
/// of `MSG_ZEROCOPY` put the point at about 10 KiB); no adapter has been measured here.
pub const ZERO_COPY_BYTES_MIN: usize = 16 * 1024;

/// A TCP connection, owned by one core. Clones are handles to the same connection, so that one
/// task can receive while another sends.
#[derive(Clone, Debug)]
pub struct TcpStream {
    fd: Rc<Descriptor>,
    /// Both its ends are on this host.
    is_within_host: bool,
    /// Messages at least this long are sent without copies.
    zero_copy_min: Option<usize>,
}

/// How a connection is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The address of this host that it comes from; else the system's routes say which. The system
    /// still chooses the interface by its routes to the peer.
    pub source: Option<IpAddr>,
    /// How long it may take, which the driver keeps; else as long as the system tries.
    pub timeout: Option<Duration>,
}

impl TcpStream {
    /// Connects to `address`, with `TCP_NODELAY` set, and, where both ends are on this host, without pacing
    /// (`TCP_CONGESTION` is `reno` there, whatever the system's default is; so it is of accepted connections).
    ///
    /// # Errors
    /// [`OpError::Os`] with the system's reason (`ECONNREFUSED`, `ETIMEDOUT`, ...).
    pub async fn connect(address: SocketAddr) -> Result<Self, OpError> {
        Self::connect_with(address, ConnectOptions::default()).await
    }

    /// As [`TcpStream::connect`], for at most `timeout`, which the driver keeps.
    ///
    /// # Errors
    /// As there; `ETIMEDOUT` also when the timeout has passed.
    pub async fn connect_timeout(address: SocketAddr, timeout: Duration) -> Result<Self, OpError> {
        let options = ConnectOptions {
            timeout: Some(timeout),
            ..ConnectOptions::default()
        };
        Self::connect_with(address, options).await
    }

    /// As [`TcpStream::connect`], as `options` say.
    ///
    /// # Errors
    /// As there; `EADDRNOTAVAIL` if this host does not have the source, `EAFNOSUPPORT` or `EINVAL` if
    /// it is not of the target's family; `ETIMEDOUT` also when the timeout has passed.
    pub async fn connect_with(
        address: SocketAddr,
        options: ConnectOptions,
    ) -> Result<Self, OpError> {
        let core = Core::current();
        let opened = socket::open(&core, address, options.source)?;
        let fd = Descriptor::connection(&core, opened);
        let target = Box::new(SocketAddrAny::from(address));
        let connect = Op::submit_within(&core, Submission::Connect, &fd, target, options.timeout);
        let (result, _target) = connect.await;
        result.map_err(|error| match error {
            // Nobody else cancels it.
            OpError::Cancelled => OpError::Os(Errno::TIMEDOUT),
            other => other,
        })?;
        Ok(Self::with_defaults(fd, Some(address.ip())))
    }

    pub(super) fn from_connected(connected: Handle) -> Self {
        let peer = socket::peer_ip(&connected);
        let fd = Descriptor::connection(&Core::current(), connected);
        Self::with_defaults(fd, peer)
    }

    fn with_defaults(fd: Rc<Descriptor>, peer: Option<IpAddr>) -> Self {
        socket::set_no_delay(&fd);
        let is_here = peer.map(|ip| socket::is_within_host(fd.handle(), ip));
        if is_here == Some(true) {
            socket::set_unpaced(&fd);
        }
        // Within a host bytes are copied in any case, and the notice beside that is paid for.
        let is_remote = is_here == Some(false);
        Self {
            fd,
            is_within_host: is_here == Some(true),
            zero_copy_min: is_remote.then_some(ZERO_COPY_BYTES_MIN),
        }
    }

    /// From which length in bytes [`TcpStream::send_message`] sends without copies; never if
    /// `None`, which is the default on loopback. Elsewhere the default is
    /// [`ZERO_COPY_BYTES_MIN`]. It goes for this handle and its later clones. Without effect where
    /// the driver cannot.
    pub const fn set_zero_copy(&mut self, bytes_min: Option<usize>) {
        self.zero_copy_min = bytes_min;
    }

    /// Receives in pieces, each into a buffer that the system takes from `pool` when it has bytes.
    /// One such receiver at a time, and no other receive beside it.
    #[must_use]
    pub fn receives(&self, pool: &BufferPool) -> Receives {
        Receives::new(Rc::clone(&self.fd), self.is_within_host, pool.clone())
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
        let (result, buffer) = Op::submit(&core, what, &self.fd, buffer).await;
        self.on_received(&core);
        (result.map(|count| count as usize), buffer)
    }

    fn on_received(&self, core: &Core) {
        if self.is_within_host {
            core.on_heard(&self.fd);
        }
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
        let what = Submission::Receive { start, len };
        self.receive_until(what, buffer, stop).await
    }

    /// As [`TcpStream::recv`], into what is left of a list; what came is not left any more.
    pub async fn recv_list(&self, list: Box<Scatter>) -> BufResult<usize, Box<Scatter>> {
        let core = Core::current();
        let (result, mut list) =
            Op::submit(&core, Submission::ReceiveScatter, &self.fd, list).await;
        self.on_received(&core);
        let result = result.map(|count| count as usize);
        if let Ok(count) = result {
            list.advance(count);
        }
        (result, list)
    }

    /// As [`TcpStream::recv_until`], into what is left of a list; what came is not left any more.
    pub async fn recv_list_until(
        &self,
        list: Box<Scatter>,
        stop: impl Future<Output = ()>,
    ) -> BufResult<usize, Box<Scatter>> {
        let (result, mut list) = self
            .receive_until(Submission::ReceiveScatter, list, stop)
            .await;
        if let Ok(count) = result {
            list.advance(count);
        }
        (result, list)
    }

    async fn receive_until<B: Lend>(
        &self,
        what: Submission,
        buffer: B,
        stop: impl Future<Output = ()>,
    ) -> BufResult<usize, B> {
        let core = Core::current();
        let mut receive = pin!(Op::submit(&core, what, &self.fd, buffer));
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
        self.on_received(&core);
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
            let (result, back) = Op::submit(&core, what, &self.fd, buffer).await;
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
    /// The message, and every region in it, belongs to the system until the future ends: when it
    /// is sent without copies, until the peer has acknowledged the bytes.
    pub async fn send_message(&self, mut message: Box<Message>) -> BufResult<(), Box<Message>> {
        let core = Core::current();
        while !message.is_empty() {
            let what = match self.zero_copy_min.filter(|&least| message.len() >= least) {
                Some(_) if core.sends_without_copies() => Submission::SendMessageZeroCopy,
                _ => Submission::SendMessage,
            };
            let (result, back) = Op::submit(&core, what, &self.fd, message).await;
            message = back;
            match result {
                Ok(count) => message.advance(count as usize),
                Err(error) => return (Err(error), message),
            }
        }
        (Ok(()), message)
    }

    /// The connection for a thread that is no core's, if this is its last handle, nothing is under way on it, and it is not a
    /// simulated one. Else it is closed as if this handle had been dropped.
    #[must_use]
    pub fn into_thread(self) -> Option<ThreadStream> {
        let socket = self.fd.into_system()?;
        Some(ThreadStream::new(socket, self.is_within_host))
    }

    /// Ends both directions: operations in flight on this connection end soon, at the peer too.
    pub fn shutdown(&self) {
        socket::shut_down(&self.fd);
    }

    /// Gives the connection up when its peer has answered nothing for `limit`: neither to bytes sent,
    /// nor, while nothing is sent, to being asked whether it is there still (`SO_KEEPALIVE`,
    /// `TCP_USER_TIMEOUT`, `tcp(7)`). Operations then fail with `ETIMEDOUT`. A peer that takes no
    /// bytes for so long is one that answers nothing. By default a connection waits for days.
    ///
    /// # Errors
    /// The system's refusal; the connection goes on without.
    pub fn set_unanswered_max(&self, limit: Duration) -> Result<(), OpError> {
        Ok(socket::set_unanswered_max(&self.fd, limit)?)
    }

    /// Size of the system's send buffer to ask for, in bytes.
    ///
    /// # Errors
    /// The system's refusal; the connection goes on with what it has.
    pub fn set_send_buffer(&self, len_bytes: usize) -> Result<(), OpError> {
        Ok(socket::set_send_buffer(&self.fd, len_bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;

    use super::*;
    use crate::net::{TcpListener, interface_addresses};
    use crate::{CoreOptions, block_on, spawn_local};

    #[test]
    fn what_stays_on_this_host_is_not_paced_whichever_of_its_addresses_it_goes_by() {
        let own = interface_addresses().expect("addresses");
        let own = own.into_iter().map(|found| found.ip);
        // One of a link alone would have to be told which.
        let all: Vec<IpAddr> = own.filter(IpAddr::is_ipv4).collect();
        assert!(all.iter().any(IpAddr::is_loopback), "{all:?}");
        let test = || async move {
            for ip in all {
                let listener = TcpListener::bind(SocketAddr::new(ip, 0)).expect("a port");
                let address = listener.local_addr();
                let accepted = spawn_local(async move { listener.accept().await });
                let client = TcpStream::connect(address).await.expect("connected");
                let server = accepted.await.expect("a task").expect("accepted");
                for end in [client, server] {
                    let how = sockopt::tcp_congestion(end.fd.system());
                    assert_eq!(how.as_deref(), Ok(socket::WITHIN_HOST), "by {ip}");
                    assert_eq!(end.zero_copy_min, None, "by {ip}");
                }
            }
        };
        block_on(None, CoreOptions::default(), test).expect("a core");
    }
}
