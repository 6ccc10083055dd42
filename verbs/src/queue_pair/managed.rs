//! What the connection manager does to a queue pair.

use std::rc::{Rc, Weak};

use lunette_verbs_proto::negotiate::Agreement;
use lunette_verbs_proto::qp_state::QpState;

use super::{PairCore, QueuePair, Ready, Unconnected};
use crate::connection_manager::Managed;
use crate::error::SetupError;
use crate::provider::Patience;
use crate::provider::real::connection::Id;

impl QueuePair<Unconnected> {
    /// Whether only the connection manager connects it.
    #[must_use]
    pub const fn is_iwarp(&self) -> bool {
        self.state.is_iwarp
    }

    pub(crate) fn device_name(&self) -> &str {
        &self.state.device_name
    }

    pub(crate) const fn has_shared_receives(&self) -> bool {
        self.handle.receives.is_some()
    }

    pub(crate) fn core(&self) -> Weak<PairCore> {
        Rc::downgrade(&self.handle.core)
    }

    /// To ready-to-send, as the manager says; queue pairs of iWARP it moves itself.
    pub(crate) fn move_on(
        &mut self,
        id: &Id,
        agreement: Agreement,
        patience: Patience,
    ) -> Result<(), SetupError> {
        if !patience.is_finite() {
            return Err(SetupError::Endless);
        }
        for to in [QpState::Rtr, QpState::Rts] {
            let moved = self.handle.core.move_on(id, to, agreement, patience);
            moved.map_err(SetupError::Refused)?;
        }
        Ok(())
    }

    pub(crate) fn managed(mut self, managed: Managed, agreement: Agreement) -> QueuePair<Ready> {
        self.handle.managed = Some(managed);
        QueuePair {
            state: Ready {
                agreement,
                peer: None,
                is_iwarp: self.state.is_iwarp,
            },
            handle: self.handle,
        }
    }
}
