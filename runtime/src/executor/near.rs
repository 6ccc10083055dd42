//! Whether a core that looks for what is to come keeps who is to send it from running.

use std::rc::{Rc, Weak};

use super::Core;
use crate::driver::{Descriptor, Handle};
use crate::processor::{is_sent_from_here, this_processor};

/// Who has asked a core last, since the core has last had nothing to do.
#[derive(Debug, Default)]
pub(super) enum Asked {
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
    Core::with_current(|core| core.asked.replace(Asked::From(processor)));
}

impl Core {
    /// Something has come on a connection within this host.
    pub(crate) fn on_heard(&self, from: &Rc<Descriptor>) {
        self.asked.replace(Asked::Over(Rc::downgrade(from)));
    }

    /// Whether who has asked last does not run while this core does; if the last spin `has_paid`, the system is not asked.
    pub(super) fn is_in_the_way(&self, has_paid: bool) -> bool {
        match self.asked.take() {
            Asked::Elsewhere => false,
            Asked::From(processor) => processor == this_processor(),
            Asked::Over(_) if has_paid => false,
            Asked::Over(connection) => {
                let connection = connection.upgrade();
                let handle = connection.as_ref().map(|connection| connection.handle());
                matches!(handle, Some(Handle::System(fd)) if is_sent_from_here(fd))
            }
        }
    }
}
