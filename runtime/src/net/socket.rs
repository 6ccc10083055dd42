//! The calls on sockets that do not wait: of this system, or of a simulated network.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use crate::driver::{Descriptor, Handle};
use crate::executor::Core;

/// Connections that the system may hold for a listener between two accepts.
pub(crate) const BACKLOG_MAX: i32 = 1024;

/// How often a silent peer is asked before it is given up.
const PROBES: u32 = 3;

const fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// A stream socket that is to be connected to `address`, from an address of this host if one is given.
pub(super) fn open(
    core: &Core,
    address: SocketAddr,
    source: Option<IpAddr>,
) -> Result<Handle, Errno> {
    if let Some(host) = core.simulated_host() {
        return host.open(source).map(Handle::Simulated);
    }
    let socket = stream(address)?;
    if let (Some(source), Handle::System(fd)) = (source, &socket) {
        net::bind(fd, &SocketAddr::new(source, 0))?;
    }
    Ok(socket)
}

fn stream(address: SocketAddr) -> Result<Handle, Errno> {
    let flags = SocketFlags::CLOEXEC;
    net::socket_with(family(address), SocketType::STREAM, flags, None).map(Handle::System)
}

/// A socket that listens, and where.
pub(super) fn listen(core: &Core, address: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
    if let Some(host) = core.simulated_host() {
        let (socket, address) = host.listen(address)?;
        return Ok((Handle::Simulated(socket), address));
    }
    let socket = stream(address)?;
    let Handle::System(fd) = &socket else {
        unreachable!("it was just opened")
    };
    sockopt::set_socket_reuseaddr(fd, true)?;
    net::bind(fd, &address)?;
    net::listen(fd, BACKLOG_MAX)?;
    let address = SocketAddr::try_from(net::getsockname(fd)?)?;
    Ok((socket, address))
}

/// Ends both directions: what is under way on the socket ends soon, at the peer too.
pub(super) fn shut_down(socket: &Rc<Descriptor>) {
    let done = match socket.handle() {
        Handle::Simulated(simulated) => {
            simulated.shut_down();
            return;
        }
        _ => net::shutdown(socket.system(), Shutdown::Both),
    };
    if let Err(errno) = done {
        // The peer was first.
        tracing::trace!(%errno, "shutdown of a socket");
    }
}

/// The host at the other end, if there is one still.
pub(super) fn peer_ip(socket: &Handle) -> Option<IpAddr> {
    match socket {
        Handle::Simulated(simulated) => simulated.peer_ip(),
        Handle::System(fd) => {
            let peer = net::getpeername(fd).ok()??;
            Some(SocketAddr::try_from(peer).ok()?.ip())
        }
        Handle::SimulatedFile(_) | Handle::Bell => None,
    }
}

/// Whether both ends are on this host.
pub(super) fn is_within_host(socket: &Handle, peer: IpAddr) -> bool {
    let peer = peer.to_canonical();
    if peer.is_loopback() {
        return true;
    }
    let Handle::System(fd) = socket else {
        return false;
    };
    let here = net::getsockname(fd).ok();
    let here = here.and_then(|here| SocketAddr::try_from(here).ok());
    here.is_some_and(|here| here.ip().to_canonical() == peer)
}

/// How the system sends within a host, where nothing is congested and nothing is lost: what is there, at once. An
/// algorithm that paces by what it has measured (BBR) sends at half the speed over some connections for as long as they
/// last, because that is what it has measured.
pub(super) const WITHIN_HOST: &str = "reno";

/// Sends what there is, at once, if both ends are on this host.
pub(super) fn set_unpaced(socket: &Rc<Descriptor>) {
    if let Handle::System(fd) = socket.handle()
        && let Err(errno) = sockopt::set_tcp_congestion(fd, WITHIN_HOST)
    {
        // A socket without the option still works.
        tracing::debug!(%errno, "TCP_CONGESTION");
    }
}

/// Latency before throughput. A simulated network knows nothing else.
pub(super) fn set_no_delay(socket: &Rc<Descriptor>) {
    if let Handle::System(fd) = socket.handle()
        && let Err(errno) = sockopt::set_tcp_nodelay(fd, true)
    {
        // A socket without the option still works.
        tracing::debug!(%errno, "TCP_NODELAY");
    }
}

/// Asks for a send buffer of this size. A simulated network has its own sizes.
pub(super) fn set_send_buffer(socket: &Rc<Descriptor>, len_bytes: usize) -> Result<(), Errno> {
    match socket.handle() {
        Handle::System(fd) => sockopt::set_socket_send_buffer_size(fd, len_bytes),
        Handle::Simulated(_) | Handle::SimulatedFile(_) | Handle::Bell => Ok(()),
    }
}

/// Asks the peer now and then whether it is there still, and gives the connection up when it has
/// answered nothing for `limit`.
pub(super) fn set_unanswered_max(socket: &Rc<Descriptor>, limit: Duration) -> Result<(), Errno> {
    let fd = match socket.handle() {
        Handle::System(fd) => fd,
        Handle::Simulated(simulated) => {
            simulated.set_unanswered_max(limit);
            return Ok(());
        }
        Handle::SimulatedFile(_) | Handle::Bell => return Ok(()),
    };
    // Seconds are what the system counts probes in.
    let interval = (limit / (1 + PROBES)).max(Duration::from_secs(1));
    sockopt::set_tcp_keepidle(fd, interval)?;
    sockopt::set_tcp_keepintvl(fd, interval)?;
    sockopt::set_tcp_keepcnt(fd, PROBES)?;
    sockopt::set_socket_keepalive(fd, true)?;
    let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, limit_ms)
}
