//! Bytes between the memories of two engines by RDMA adapters, of which neither engine's program has a part.
//!
//! ```text
//!   Adapter (ours) ── Registrations: whole extents, for own requests, lazily, bounded
//!      │
//!   Peer: rail of kind OneSided ──handshake over a stream──▶ Acceptor (theirs): a queue pair per rail
//!      │                                                         │ ends with its asker's streams, a fence, idleness
//!      ├── asks for windows of segments (`Operation::Windows`) ──▶ Registry: windows, one per adapter
//!      └── posts a slice as one-sided reads and writes ─────────▶ memory, and nobody else
//! ```
//!
//! What is said between engines goes over their authenticated connections: handshakes, windows, fences and
//! notifications. A queue pair lives no longer than who asked for it has a connection. What adapters do not
//! reach goes over the streams: files, segments by capability, memory that was not registered.
//!
//! | module | subject |
//! |---|---|
//! | `options` | [`RdmaOptions`], [`AdapterChoice`] |
//! | `adapter` | an opened adapter, and what is registered with it |
//! | `acceptor` | queue pairs of those who come |
//! | `serving` | the answering side: adapters, handshakes, windows |
//! | `asking` | the asking side: which rails there are, and connecting them |
//! | `windows` | what is known of a peer's windows |
//! | `preparing` | what has to be known before a transfer can go this way |
//! | `rail` | a connected queue pair, and slices on it |

mod acceptor;
mod adapter;
mod asking;
mod options;
mod preparing;
mod rail;
mod serving;
mod windows;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use lunette_auth::Encryption;
use lunette_transfer_proto::engine::one_sided::ADAPTERS_MAX;
use lunette_verbs::{Context, DeviceMemory, ExposedWindow, OpenError, RemoteMemory};

use super::options::EngineOptions;
pub(super) use acceptor::Acceptor;
pub(super) use adapter::Adapter;
pub(super) use asking::OneSided;
pub use options::{AdapterChoice, AdapterFault, AdapterStatus, RdmaOptions};
pub(super) use serving::Asks;

/// The adapters of one core.
#[derive(Debug, Default)]
pub(super) struct Rdma {
    adapters: Vec<Rc<Adapter>>,
    status: Vec<AdapterStatus>,
    acceptor: Acceptor,
    /// Windows that are registered for peers.
    windows: Rc<Cell<usize>>,
}

impl Rdma {
    /// Opens what is to be used, as far as that is there. What is not is told, and does without.
    pub(super) fn open(options: &EngineOptions, given: Vec<Context>) -> Self {
        let mut rdma = Self::default();
        let is_sealed = options.encryption == Encryption::Required;
        let given = given.into_iter().map(|context| (None, Ok(context)));
        let named = options::open(&options.rdma.adapters);
        for (name, opened) in given.chain(named) {
            rdma.add(name, opened, &options.rdma, is_sealed);
        }
        rdma
    }

    fn add(
        &mut self,
        name: Option<String>,
        opened: Result<Context, OpenError>,
        options: &RdmaOptions,
        is_sealed: bool,
    ) {
        let adapter = match opened {
            Err(error) => Err(AdapterFault::from(error)),
            Ok(_) if is_sealed => Err(AdapterFault::Sealed),
            Ok(_) if self.adapters.len() >= ADAPTERS_MAX => Err(AdapterFault::TooMany),
            Ok(context) => Adapter::new(context, options),
        };
        let name = match &adapter {
            Ok(adapter) => adapter.name().to_owned(),
            Err(_) => name.unwrap_or_else(|| "-".to_owned()),
        };
        if let Err(fault) = &adapter {
            tracing::warn!(%name, %fault, "an adapter is not used");
        }
        let fault = match adapter {
            Ok(adapter) => {
                self.adapters.push(Rc::new(adapter));
                None
            }
            Err(fault) => Some(fault),
        };
        self.status.push(AdapterStatus { name, fault });
    }

    pub(super) fn adapters(&self) -> &[Rc<Adapter>] {
        &self.adapters
    }

    pub(super) fn status(&self) -> &[AdapterStatus] {
        &self.status
    }

    pub(super) const fn acceptor(&self) -> &Acceptor {
        &self.acceptor
    }
}

/// A window for peers, which counts while it is there.
#[derive(Debug)]
pub(super) struct CountedWindow {
    window: AnyWindow,
    _count: Counted,
}

#[derive(Debug)]
enum AnyWindow {
    Memory(ExposedWindow),
    Device(DeviceMemory),
}

impl CountedWindow {
    /// What peers name its first byte by.
    pub(super) fn remote(&self) -> RemoteMemory {
        match &self.window {
            AnyWindow::Memory(window) => window.remote(),
            AnyWindow::Device(memory) => memory.remote(),
        }
    }
}

#[derive(Debug)]
struct Counted(Rc<Cell<usize>>);

impl Counted {
    /// One more, if there are fewer than `most`.
    fn new(count: &Rc<Cell<usize>>, most: usize) -> Option<Self> {
        (count.get() < most).then(|| {
            count.set(count.get() + 1);
            Self(Rc::clone(count))
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Tasks that wait until something has changed, and then look again.
#[derive(Debug, Default)]
struct Waiting(RefCell<Vec<Waker>>);

impl Waiting {
    fn wait(&self, waker: &Waker) {
        let mut wakers = self.0.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    fn wake(&self) {
        let wakers = self.0.take();
        wakers.into_iter().for_each(Waker::wake);
    }
}
