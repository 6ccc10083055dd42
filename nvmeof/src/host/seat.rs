//! A queue for another core.

use std::net::SocketAddr;

use lunette_nvmeof_proto::host::Association;
use lunette_runtime::Sender;

use super::controller::{HostConfig, connect_queue};
use super::queue::{Ask, Queue};
use crate::error::ConnectError;

/// A place for one queue of a controller whose admin queue is on another core. It may be sent to the core
/// that is to have the queue. The controller is kept alive, and its commands that nobody waits for any
/// more are aborted, where the controller was brought up: the queue ends with it.
#[derive(Debug)]
pub struct QueueSeat {
    pub(super) address: SocketAddr,
    pub(super) association: Association,
    pub(super) queue_id: u16,
    pub(super) config: HostConfig,
    pub(super) aborts: Sender<Ask>,
}

impl QueueSeat {
    /// Connects the queue on this core.
    ///
    /// # Errors
    /// [`ConnectError`]. The place is lost then.
    pub async fn connect(self) -> Result<Queue, ConnectError> {
        let Self {
            address,
            association,
            queue_id,
            config,
            aborts,
        } = self;
        let queue = connect_queue(address, &association, queue_id, &config).await?;
        queue.abort_elsewhere(aborts, queue_id);
        Ok(queue)
    }
}
