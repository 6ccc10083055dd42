//! Whether a core that looks for what is to come keeps who is to send it from running.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use super::Core;
use crate::driver::{Descriptor, Handle};
use crate::processor::{is_sent_from_here, this_processor};

/// How often the system is not asked where a peer runs while spins pay. One that shares its processor may have it for a
/// while within a spin, which then seems to have paid.
const UNASKED_MAX: u8 = 16;

/// For how many times that a core has nothing to do it counts who has asked last: until the answer has left, and its next
/// question is awaited. What comes from elsewhere meanwhile is not told of here.
const COUNTS_MAX: u8 = 4;

/// What a core knows of where they run who ask it.
#[derive(Debug, Default)]
pub(super) struct Near {
    asked: RefCell<Asked>,
    counts: Cell<u8>,
    unasked: Cell<u8>,
}

/// Who has asked a core last.
#[derive(Debug, Default)]
enum Asked {
    /// Nobody of whom it is known where.
    #[default]
    Elsewhere,
    /// Somebody who ran on this processor.
    From(usize),
    /// The peer of this connection within the host.
    Over(Weak<Descriptor>),
}

/// Tells the calling core that a thread of this host has asked it on this processor, by memory that they share. If the core
/// runs there too and has nothing to do any more, it does not spin, since that thread could not run.
///
/// # Panics
/// Outside a runtime's thread.
pub fn asked_from(processor: usize) {
    Core::with_current(|core| core.near.note(Asked::From(processor)));
}

impl Near {
    fn note(&self, asked: Asked) {
        self.asked.replace(asked);
        self.counts.set(COUNTS_MAX);
    }

    /// Whether the peer of the connection shares this processor. If the last spin `has_paid`, the system is asked less often
    /// than that.
    fn shares(&self, connection: &Weak<Descriptor>, has_paid: bool) -> bool {
        let unasked = self.unasked.get();
        if has_paid && unasked < UNASKED_MAX {
            self.unasked.set(unasked + 1);
            return false;
        }
        self.unasked.set(0);
        let connection = connection.upgrade();
        let handle = connection.as_ref().map(|connection| connection.handle());
        matches!(handle, Some(Handle::System(fd)) if is_sent_from_here(fd))
    }
}

impl Core {
    /// Something has come on a connection within this host.
    pub(crate) fn on_heard(&self, from: &Rc<Descriptor>) {
        self.near.note(Asked::Over(Rc::downgrade(from)));
    }

    /// This core has nothing to do: whether who has asked last does not run while it does. `has_paid`: the last spin.
    pub(super) fn is_in_the_way(&self, has_paid: bool) -> bool {
        let near = &self.near;
        let Some(counts) = near.counts.get().checked_sub(1) else {
            return false;
        };
        near.counts.set(counts);
        match &*near.asked.borrow() {
            Asked::Elsewhere => false,
            Asked::From(processor) => *processor == this_processor(),
            Asked::Over(connection) => near.shares(connection, has_paid),
        }
    }
}
