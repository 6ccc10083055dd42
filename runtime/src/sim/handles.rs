//! What a simulated core holds in place of the system's things.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lunette_runtime_core::time::Time;

use super::events::Seat;
use super::network::{Network, SocketId};

/// When simulated time began, in nanoseconds since 1970. Any moment would do.
const UNIX_START_NS: u64 = 1_700_000_000 * 1_000_000_000;

/// Where a simulated core runs: what it opens sockets on.
#[derive(Clone)]
pub(crate) struct SimulatedHost {
    pub(super) network: Rc<RefCell<Network>>,
    pub(super) seat: Seat,
    pub(super) host: IpAddr,
}

impl SimulatedHost {
    pub(crate) fn open(&self) -> SimulatedSocket {
        let id = self.network.borrow_mut().open(self.seat, self.host);
        self.socket(id)
    }

    pub(crate) fn listen(&self, address: SocketAddr) -> io::Result<(SimulatedSocket, SocketAddr)> {
        let mut network = self.network.borrow_mut();
        let (id, address) = network.listen(self.seat, self.host, address)?;
        Ok((self.socket(id), address))
    }

    fn socket(&self, id: SocketId) -> SimulatedSocket {
        SimulatedSocket {
            network: Rc::clone(&self.network),
            id,
        }
    }
}

/// A socket of a simulated network. Dropping it closes it.
pub(crate) struct SimulatedSocket {
    network: Rc<RefCell<Network>>,
    id: SocketId,
}

impl SimulatedSocket {
    /// What stands for its descriptor.
    pub(crate) const fn number(&self) -> SocketId {
        self.id
    }

    /// The connection that an accept on this listener gave.
    pub(crate) fn accepted(&self, id: SocketId) -> Self {
        Self {
            network: Rc::clone(&self.network),
            id,
        }
    }

    pub(crate) fn shut_down(&self) {
        self.network.borrow_mut().shut_down(self.id);
    }

    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        self.network.borrow_mut().peer_host(self.id)
    }
}

impl Drop for SimulatedSocket {
    fn drop(&mut self) {
        self.network.borrow_mut().close(self.id);
    }
}

impl fmt::Debug for SimulatedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedSocket({})", self.id)
    }
}

/// What wakes a simulated core.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedBell(Arc<AtomicBool>);

impl SimulatedBell {
    pub(crate) fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_rung(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// The clock of a simulated process: the world's time, and what it is ahead.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedClock {
    world_ns: Arc<AtomicU64>,
    ahead_ns: Arc<AtomicU64>,
}

impl SimulatedClock {
    pub(super) fn new(world_ns: &Arc<AtomicU64>) -> Self {
        Self {
            world_ns: Arc::clone(world_ns),
            ahead_ns: Arc::default(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        let world_ns = self.world_ns.load(Ordering::Relaxed);
        Time::from_ns(world_ns + self.ahead_ns.load(Ordering::Relaxed))
    }

    /// The world's time at which this clock shows `at`.
    pub(super) fn world_time(&self, at: Time) -> Time {
        let ahead_ns = self.ahead_ns.load(Ordering::Relaxed);
        Time::from_ns(at.as_ns().saturating_sub(ahead_ns))
    }

    pub(super) fn jump(&self, ahead: Duration) {
        let ns = u64::try_from(ahead.as_nanos()).expect("centuries fit");
        self.ahead_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn unix_ns(&self) -> u64 {
        UNIX_START_NS + self.now().as_ns()
    }
}
