//! What a simulated core holds in place of the system's things.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lunette_runtime_core::time::Time;
use rustix::io::Errno;

use super::disk::FileId;
use super::events::Seat;
use super::network::{Network, SocketId};
use crate::fs::OpenOptions;

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
    /// The next number of the world's generator.
    pub(crate) fn draw(&self) -> u64 {
        self.network.borrow_mut().random.next()
    }

    /// A socket, on an address of the host if one is given.
    pub(crate) fn open(&self, source: Option<IpAddr>) -> Result<SimulatedSocket, Errno> {
        let mut network = self.network.borrow_mut();
        let id = network.open(self.seat, self.host, source)?;
        Ok(self.socket(id))
    }

    /// The addresses of a name.
    pub(crate) fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        self.network.borrow().addresses_of(name)
    }

    /// How long a question to another host takes.
    pub(crate) fn latency(&self) -> Duration {
        self.network.borrow_mut().latency()
    }

    pub(crate) fn listen(&self, address: SocketAddr) -> io::Result<(SimulatedSocket, SocketAddr)> {
        let mut network = self.network.borrow_mut();
        let (id, address) = network.listen(self.seat, self.host, address)?;
        Ok((self.socket(id), address))
    }

    /// Opens a file of the host's drive.
    pub(crate) fn open_file(&self, path: &Path, options: OpenOptions) -> io::Result<SimulatedFile> {
        let mut network = self.network.borrow_mut();
        let id = network.open_file(self.host, path, options.create)?;
        Ok(SimulatedFile {
            network: Rc::clone(&self.network),
            host: self.host,
            id,
            options,
        })
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

    pub(crate) fn set_unanswered_max(&self, limit: Duration) {
        self.network.borrow_mut().set_unanswered_max(self.id, limit);
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

/// A file of a simulated drive.
pub(crate) struct SimulatedFile {
    network: Rc<RefCell<Network>>,
    host: IpAddr,
    id: FileId,
    options: OpenOptions,
}

/// What stands for the descriptor of a file: which it is, and how it was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileNumber(pub(super) FileId);

impl FileNumber {
    const DIRECT: FileId = 1;
    const READ: FileId = 2;
    const WRITE: FileId = 4;
    const BITS: u32 = 3;

    fn new(id: FileId, options: OpenOptions) -> Self {
        let mut bits = 0;
        for (is_set, bit) in [
            (options.direct, Self::DIRECT),
            (options.read, Self::READ),
            (options.write, Self::WRITE),
        ] {
            bits |= if is_set { bit } else { 0 };
        }
        Self(id << Self::BITS | bits)
    }

    pub(super) const fn id(self) -> FileId {
        self.0 >> Self::BITS
    }

    pub(super) const fn is_direct(self) -> bool {
        self.0 & Self::DIRECT != 0
    }

    /// Whether it was opened for reading, or else for writing.
    pub(super) const fn may(self, reads: bool) -> bool {
        self.0 & (if reads { Self::READ } else { Self::WRITE }) != 0
    }
}

impl SimulatedFile {
    /// What stands for its descriptor.
    pub(crate) fn number(&self) -> FileId {
        FileNumber::new(self.id, self.options).0
    }

    /// How long the drive takes for a call that is none of its operations.
    pub(crate) fn latency(&self) -> Duration {
        self.network.borrow_mut().disk_latency()
    }

    pub(crate) fn len_bytes(&self) -> Result<u64, Errno> {
        let mut network = self.network.borrow_mut();
        network.on_disk(self.host, |disk, _| disk.len_bytes(self.id))
    }

    /// How often it was changed.
    pub(crate) fn changes(&self) -> Result<u64, Errno> {
        let network = &mut *self.network.borrow_mut();
        network.on_disk(self.host, |disk, _| disk.changes(self.id))
    }

    pub(crate) fn allocate(&self, len_bytes: u64) -> Result<(), Errno> {
        if len_bytes == 0 {
            return Err(Errno::INVAL);
        }
        if !self.options.write {
            return Err(Errno::BADF);
        }
        let mut network = self.network.borrow_mut();
        network.on_disk(self.host, |disk, world| {
            disk.allocate(self.id, len_bytes, world)
        })
    }

    pub(crate) fn sync(&self) -> Result<(), Errno> {
        let mut network = self.network.borrow_mut();
        network.on_disk(self.host, |disk, world| disk.sync(self.id, world))
    }
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedFile({})", self.id)
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
