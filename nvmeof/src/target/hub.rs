//! What the cores of one server share: who is connected where, and what commands are checked against.
//!
//! The target is changed seldom: by commands of admin queues, and by connections that come and go.
//! Whoever changes it does so under a lock and publishes a view of it, which each core keeps until
//! it is out of date: a command for I/O costs a look at one number that hardly ever changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunette_nvmeof_proto::controller::{ControllerId, IoView, Target};
use lunette_runtime::net::Accepted;
use lunette_runtime::{Port, Sender, channel};

/// Calls that may be on their way to one core.
const CALLS_MAX: usize = 1024;

/// What one core asks of another.
#[derive(Debug)]
pub(super) enum Call {
    /// Something has changed that its connections may have to know.
    Look,
    /// A connection that came by a port is its own from now on.
    Serve {
        port_id: u16,
        connection: Accepted,
        place: Place,
    },
    /// A command of one of its queues is to be aborted, if it has not begun.
    Abort {
        controller: ControllerId,
        queue_id: u16,
        cid: u16,
        /// Where the answer goes, and the slot of the command that asks for it.
        core: usize,
        slot: u16,
    },
    /// The answer.
    Aborted {
        controller: ControllerId,
        slot: u16,
        was_aborted: bool,
    },
}

#[derive(Debug)]
struct State {
    target: Target,
    view: Arc<IoView>,
    /// The core of each queue.
    cores: BTreeMap<(ControllerId, u16), usize>,
}

/// See the module.
pub(super) struct Hub {
    state: Mutex<State>,
    /// Raised by one for each view.
    views: AtomicU64,
    calls: Box<[Sender<Call>]>,
    connections: Arc<AtomicUsize>,
    next_core: AtomicUsize,
}

impl Hub {
    /// A hub for so many cores, and the port of each, in order.
    pub(super) fn new(target: Target, cores: usize) -> (Arc<Self>, Vec<Port<Call>>) {
        let (calls, ports): (Vec<_>, Vec<_>) = (0..cores).map(|_| channel(CALLS_MAX)).unzip();
        let view = Arc::new(target.view());
        let hub = Self {
            state: Mutex::new(State {
                target,
                view,
                cores: BTreeMap::new(),
            }),
            views: AtomicU64::new(1),
            calls: calls.into_boxed_slice(),
            connections: Arc::default(),
            next_core: AtomicUsize::new(0),
        };
        (Arc::new(hub), ports)
    }

    pub(super) const fn cores(&self) -> usize {
        self.calls.len()
    }

    /// Looks at the target, or changes it. The other cores are told of what concerns them; `core` is
    /// this one.
    pub(super) fn with<T>(&self, core: usize, action: impl FnOnce(&mut Target) -> T) -> T {
        let mut state = self.lock();
        let done = action(&mut state.target);
        let has_changed = state.target.has_changed_since(&state.view);
        if has_changed {
            state.view = Arc::new(state.target.view());
            self.views.fetch_add(1, Ordering::Release);
        }
        drop(state);
        if has_changed {
            for other in (0..self.calls.len()).filter(|&other| other != core) {
                // Where calls pile up one of them will have it look.
                drop(self.calls[other].try_send(Call::Look));
            }
        }
        done
    }

    /// The newest view and its number.
    pub(super) fn view(&self) -> (u64, Arc<IoView>) {
        let state = self.lock();
        // Views are published under the lock.
        (self.views.load(Ordering::Relaxed), Arc::clone(&state.view))
    }

    /// The number of the newest view.
    pub(super) fn views(&self) -> u64 {
        self.views.load(Ordering::Acquire)
    }

    /// Asks a core for something; whether it is going to know.
    pub(super) fn call(&self, core: usize, call: Call) -> bool {
        self.calls[core].try_send(call).is_ok()
    }

    /// The core that the next connection goes to.
    pub(super) fn next_core(&self) -> usize {
        self.next_core.fetch_add(1, Ordering::Relaxed) % self.calls.len()
    }

    pub(super) fn seat(&self, queue: (ControllerId, u16), core: usize) {
        self.lock().cores.insert(queue, core);
    }

    pub(super) fn unseat(&self, queue: (ControllerId, u16)) {
        self.lock().cores.remove(&queue);
    }

    /// The core of a queue.
    pub(super) fn core_of(&self, queue: (ControllerId, u16)) -> Option<usize> {
        self.lock().cores.get(&queue).copied()
    }

    /// Connections that are open on any core, or on their way to one.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// A place for another connection, unless so many have one.
    pub(super) fn place(&self, connections_max: usize) -> Option<Place> {
        let more = |count| (count < connections_max).then_some(count + 1);
        let taken = self
            .connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Place(Arc::clone(&self.connections)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panicked took its core down; what it left is whole but for its own change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place, from when it is accepted on: it is counted while this lives.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hub({} cores)", self.calls.len())
    }
}
