//! What a host keeps of a controller that it has brought up, and how it connects queues of it.

use std::sync::Arc;

use super::bring_up::{BringUpFault, Request, RequestData};
use crate::auth::{Credentials, Entropy, HostAuth};
use crate::command::Sgl;
use crate::completion::Status;
use crate::fabrics::{CONNECT_DATA_BYTES, Connect, ConnectData};
use crate::identify::IdentifyController;
use crate::nqn::Nqn;

/// Bits of a Connect's answer that ask for authentication, and for a secure channel with it.
const AUTH_REQUIRED_BIT: u64 = 1 << 17;
const SECURE_CHANNEL_BIT: u64 = 1 << 18;

/// What a host knows of a controller that works: enough to connect its queues for I/O, from any
/// core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// The controller's id.
    pub controller_id: u16,
    /// What it says of itself.
    pub identity: IdentifyController,
    /// Queues for I/O that it grants.
    pub io_queues: u16,
    /// Entries of each of them.
    pub entries: u16,
    /// How long the host may be silent, in milliseconds; 0 for ever.
    pub keep_alive_ms: u32,
    pub(super) subsystem: Nqn,
    pub(super) host: Nqn,
    pub(super) host_id: [u8; 16],
    pub(super) credentials: Option<Arc<Credentials>>,
}

impl Association {
    /// The subsystem that its controller belongs to.
    #[must_use]
    pub const fn subsystem(&self) -> &Nqn {
        &self.subsystem
    }

    /// The Connect of its queue `queue_id` for I/O.
    ///
    /// # Panics
    /// If that is no queue for I/O that was granted.
    #[must_use]
    pub fn connect(&self, queue_id: u16) -> Request {
        assert!(
            (1..=self.io_queues).contains(&queue_id),
            "a queue that was granted"
        );
        let connect = Connect {
            format: 0,
            queue_id,
            entries_less_one: self.entries - 1,
            without_flow_control: true,
            keep_alive_ms: 0,
        };
        let data = ConnectData {
            host_id: self.host_id,
            controller_id: self.controller_id,
            subsystem: self.subsystem.clone(),
            host: self.host.clone(),
        };
        connect_request(&connect, &data)
    }

    /// What a Connect's answer asks for before the queue may be used: nothing, or an authentication
    /// with random numbers of `entropy`.
    ///
    /// # Errors
    /// [`BringUpFault`].
    pub fn check_connected(
        &self,
        status: Status,
        result: u64,
        entropy: impl FnOnce() -> Entropy,
    ) -> Result<Option<HostAuth>, BringUpFault> {
        check(status, "connecting a queue")?;
        let names = (&self.host, &self.subsystem);
        authentication(self.credentials.as_ref(), result, names, entropy)
    }
}

/// Whether a Connect's answer asks for authentication (NVMe Base 2.0, "Connect Response").
pub(super) const fn is_auth_required(result: u64) -> bool {
    result & AUTH_REQUIRED_BIT != 0
}

/// The authentication that a Connect's answer asks for, or that the host insists on, of its name to
/// that of the subsystem.
pub(super) fn authentication(
    credentials: Option<&Arc<Credentials>>,
    result: u64,
    (host, subsystem): (&Nqn, &Nqn),
    entropy: impl FnOnce() -> Entropy,
) -> Result<Option<HostAuth>, BringUpFault> {
    if result & SECURE_CHANNEL_BIT != 0 {
        return Err(BringUpFault::SecureChannelRequired);
    }
    let is_required = is_auth_required(result);
    let Some(credentials) = credentials else {
        return if is_required {
            Err(BringUpFault::AuthRequired)
        } else {
            Ok(None)
        };
    };
    // Nobody else proves that this is the controller.
    let is_insisted_on = credentials.controller.is_some();
    Ok((is_required || is_insisted_on).then(|| {
        let (host, subsystem) = (host.clone(), subsystem.clone());
        HostAuth::new(Arc::clone(credentials), host, subsystem, entropy())
    }))
}

pub(super) fn connect_request(connect: &Connect, data: &ConnectData) -> Request {
    let mut command = connect.command();
    command.sgl = Sgl::Transport {
        len_bytes: CONNECT_DATA_BYTES,
    };
    Request {
        command,
        data: RequestData::Out(data.encode()),
    }
}

pub(super) fn check(status: Status, step: &'static str) -> Result<(), BringUpFault> {
    if status.is_success() {
        Ok(())
    } else {
        Err(BringUpFault::Refused { step, status })
    }
}
