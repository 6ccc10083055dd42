//! Bytes between the memories of two engines by RDMA adapters, of which neither engine's program has a part.
//!
//! ```text
//!   Adapter (ours, see `adapters`) ── Registrations: whole extents, for own requests, lazily, bounded
//!      │
//!   Peer: rail of kind OneSided ──handshake over a stream──▶ Acceptor (theirs): a queue pair per rail
//!      │                                                         │ ends with its asker's streams, a fence, idleness
//!      ├── tells by messages (`telling`) ──▶ notifications
//!      ├── asks for windows of segments (`Operation::Windows`) ──▶ Registry: windows, one per adapter
//!      └── posts a slice as one-sided reads and writes ─────────▶ memory, and nobody else
//! ```
//!
//! What is said between engines before adapters can, or when they do not any more, goes over their authenticated
//! connections: handshakes, windows and fences. A notification goes by a message behind the writes that it tells of. A
//! queue pair lives no longer than who asked for it has a connection. What adapters do not reach goes over the
//! streams: files, segments by capability, memory that was not registered.
//!
//! | module | subject |
//! |---|---|
//! | `acceptor` | queue pairs of those who come |
//! | `serving` | the answering side: adapters, handshakes, windows |
//! | `asking` | the asking side: which rails there are, and connecting them |
//! | `windows` | what is known of a peer's windows |
//! | `preparing` | what has to be known before a transfer can go this way |
//! | `rail` | a connected queue pair, and slices on it |
//! | `telling` | notifications by messages |

mod acceptor;
mod asking;
mod preparing;
mod rail;
mod serving;
mod telling;
mod windows;

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use lunette_auth::Encryption;
use lunette_runtime::Scope;
use lunette_verbs::{Context, DeviceMemory, ExposedWindow, RemoteMemory};

use super::Inner;
use super::options::EngineOptions;
use crate::adapters::{Adapter, AdapterStatus, Adapters};
pub(super) use acceptor::Acceptor;
pub(super) use asking::OneSided;
pub(super) use serving::Asks;
use telling::Telling;

/// The adapters of one core.
#[derive(Debug, Default)]
pub(super) struct Rdma {
    adapters: Adapters,
    /// What is told over each of them.
    telling: Vec<Option<Rc<Telling>>>,
    /// Who hears that.
    hearing: OnceCell<Scope>,
    acceptor: Acceptor,
    /// Windows that are registered for peers.
    windows: Rc<Cell<usize>>,
}

impl Rdma {
    pub(super) fn open(options: &EngineOptions, given: Vec<Context>) -> Self {
        let is_sealed = options.encryption == Encryption::Required;
        let adapters = Adapters::open(&options.rdma, is_sealed, given);
        let telling = adapters.all().iter();
        let telling = telling.map(|adapter| Telling::open(adapter, options.rdma.messages));
        Self {
            telling: telling.collect(),
            adapters,
            ..Self::default()
        }
    }

    /// Hears what peers tell over its adapters, as long as the engine is there, its peers included.
    pub(super) fn hear(inner: &Rc<Inner>) {
        let hearing = inner.rdma.hearing.get_or_init(Scope::new);
        inner.hear_messages(hearing);
    }

    /// What is told over an adapter, if anything is.
    fn telling(&self, adapter: usize) -> Option<&Rc<Telling>> {
        self.telling.get(adapter)?.as_ref()
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
