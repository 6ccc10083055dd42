//! Authentication of connections, before any other byte is read.

use std::rc::Rc;

use lunette_auth::{AuthFault, Encryption, Entropy, Handshake, Party, Secrets};
use lunette_runtime::entropy;
use lunette_runtime_core::time::Time;

/// What one side proves with, and asks for. Clones share the secrets.
#[derive(Clone, Debug)]
pub struct Guard {
    secrets: Rc<Secrets>,
    epoch: u64,
    encryption: Encryption,
}

impl Guard {
    /// A side that knows `secrets` and whose session epoch is `epoch`. Both sides of a connection need
    /// a guard, or neither.
    #[must_use]
    pub fn new(secrets: Secrets, epoch: u64) -> Self {
        Self {
            secrets: Rc::new(secrets),
            epoch,
            encryption: Encryption::Optional,
        }
    }

    /// The same, and wants what goes over its connections sealed, or not. One side's wish is enough.
    #[must_use]
    pub fn with_encryption(self, encryption: Encryption) -> Self {
        Self { encryption, ..self }
    }

    pub(crate) fn initiator(&self, deadline: Time) -> Handshake {
        Handshake::initiator(&self.secrets, self.party(), draw(), deadline)
    }

    pub(crate) fn responder(&self, deadline: Time) -> Handshake {
        Handshake::responder(&self.secrets, self.party(), draw(), deadline)
    }

    const fn party(&self) -> Party {
        Party {
            epoch: self.epoch,
            encryption: self.encryption,
        }
    }
}

fn draw() -> Entropy {
    let mut bytes = [0; 32];
    for part in bytes.as_chunks_mut::<8>().0 {
        *part = entropy().to_le_bytes();
    }
    Entropy::new(bytes)
}

/// Why a connection was not authenticated.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GuardFault {
    /// See there.
    #[error(transparent)]
    Auth(#[from] AuthFault),
    /// The peer says of itself under the secret what it does not say without it.
    #[error("the peer's session epoch is not the one that it was authenticated with")]
    Epoch,
}

impl GuardFault {
    /// Whether a new connection may fare better without anything being changed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Auth(fault) if fault.is_retryable())
    }

    /// Whether a limit was met at the peer.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Auth(fault) if fault.is_backpressure())
    }
}
