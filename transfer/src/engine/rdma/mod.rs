//! Bytes between the memories of two engines by RDMA adapters, of which neither engine's program has a part.
//!
//! ```text
//!   Adapter (ours, see `adapters`) ── Registrations: whole extents, for own requests, lazily, bounded
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
//! | `acceptor` | queue pairs of those who come |
//! | `serving` | the answering side: adapters, handshakes, windows |
//! | `asking` | the asking side: which rails there are, and connecting them |
//! | `windows` | what is known of a peer's windows |
//! | `preparing` | what has to be known before a transfer can go this way |
//! | `rail` | a connected queue pair, and slices on it |

mod acceptor;
mod asking;
mod preparing;
mod rail;
mod serving;
mod windows;

use std::cell::Cell;
use std::rc::Rc;

use lunette_auth::Encryption;
use lunette_verbs::{Context, DeviceMemory, ExposedWindow, RemoteMemory};

use super::options::EngineOptions;
use crate::adapters::{Adapter, AdapterStatus, Adapters};
pub(super) use acceptor::Acceptor;
pub(super) use asking::OneSided;
pub(super) use serving::Asks;

/// The adapters of one core.
#[derive(Debug, Default)]
pub(super) struct Rdma {
    adapters: Adapters,
    acceptor: Acceptor,
    /// Windows that are registered for peers.
    windows: Rc<Cell<usize>>,
}

impl Rdma {
    pub(super) fn open(options: &EngineOptions, given: Vec<Context>) -> Self {
        let is_sealed = options.encryption == Encryption::Required;
        Self {
            adapters: Adapters::open(&options.rdma, is_sealed, given),
            ..Self::default()
        }
    }

    pub(super) fn adapters(&self) -> &[Rc<Adapter>] {
        self.adapters.all()
    }

    pub(super) fn status(&self) -> &[AdapterStatus] {
        self.adapters.status()
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
