//! What commands for I/O are checked against: a copy that any core can keep, until it is out of date.

use std::collections::{BTreeMap, BTreeSet};

use super::life::Life;
use super::target::{Controller, ControllerId, Namespace, Target};
use crate::command::{Command, io};
use crate::completion::Status;
use crate::io::{Geometry, IoRequest, is_for_all};
use crate::log_page::AnaState;

#[derive(Clone, Debug)]
struct ControllerView {
    subsystem: Option<usize>,
    port_id: u16,
    is_ready: bool,
    resets: u64,
    /// Queues whose commands are carried out.
    queues: BTreeSet<u16>,
}

impl ControllerView {
    fn of(controller: &Controller) -> Self {
        let queues = controller.queues.keys().copied();
        Self {
            subsystem: controller.subsystem,
            port_id: controller.port_id,
            is_ready: controller.life == Life::Ready,
            resets: controller.resets,
            queues: queues
                .filter(|&queue_id| controller.check_access(queue_id).is_ok())
                .collect(),
        }
    }
}

/// What a command for I/O asks for, and what it was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoOrder {
    /// The namespace and its shape; none of a Flush for all of them.
    pub namespace: Option<(u32, Geometry)>,
    /// What is to be done.
    pub request: IoRequest,
    /// How often its controller had been reset: see [`IoView::resets`].
    pub resets: u64,
}

/// A target as commands for I/O see it.
#[derive(Clone, Debug)]
pub struct IoView {
    revision: u64,
    transfer_bytes_max: u32,
    controllers: BTreeMap<ControllerId, ControllerView>,
    /// Namespaces by subsystem.
    namespaces: Vec<Vec<Namespace>>,
    states: BTreeMap<(u16, u32), AnaState>,
}

impl Target {
    /// As commands for I/O see it now.
    #[must_use]
    pub fn view(&self) -> IoView {
        let controllers = self.controllers.iter();
        let subsystems = self.subsystems.iter();
        let groups = self.groups.iter();
        IoView {
            revision: self.revision,
            transfer_bytes_max: self.transfer_bytes_max(),
            controllers: controllers
                .map(|(&id, controller)| (id, ControllerView::of(controller)))
                .collect(),
            namespaces: subsystems
                .map(|subsystem| subsystem.options.namespaces.clone())
                .collect(),
            states: groups.map(|(&group, (state, _))| (group, *state)).collect(),
        }
    }

    /// Whether a view of it is out of date.
    #[must_use]
    pub const fn has_changed_since(&self, view: &IoView) -> bool {
        self.revision != view.revision
    }
}

impl IoView {
    /// The shape of a namespace.
    #[must_use]
    pub fn geometry(&self, subsystem: usize, nsid: u32) -> Option<Geometry> {
        Some(self.shape(self.namespace(subsystem, nsid)?))
    }

    const fn shape(&self, namespace: &Namespace) -> Geometry {
        Geometry {
            blocks: namespace.identity.blocks,
            block_bytes_log2: namespace.identity.block_bytes_log2,
            transfer_bytes_max: self.transfer_bytes_max,
        }
    }

    fn namespace(&self, subsystem: usize, nsid: u32) -> Option<&Namespace> {
        let mut namespaces = self.namespaces.get(subsystem)?.iter();
        namespaces.find(|namespace| namespace.nsid == nsid)
    }

    /// How often a controller has been reset, if it is there: what came before its last reset is not to be
    /// carried out any more (NVMe Base 2.0, "Controller Level Reset").
    #[must_use]
    pub fn resets(&self, controller: ControllerId) -> Option<u64> {
        Some(self.controllers.get(&controller)?.resets)
    }

    /// What a command of queue `queue_id` for I/O asks for.
    ///
    /// # Errors
    /// The status to complete it with.
    pub fn io(
        &self,
        controller: ControllerId,
        queue_id: u16,
        command: &Command,
    ) -> Result<IoOrder, Status> {
        let controller = self.controllers.get(&controller);
        let controller = controller.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        if !controller.queues.contains(&queue_id) {
            return Err(Status::AUTH_REQUIRED.do_not_retry());
        }
        if !controller.is_ready {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let invalid = Status::INVALID_NAMESPACE.do_not_retry();
        let index = controller.subsystem.ok_or(invalid)?;
        let nsid = command.nsid;
        if is_for_all(nsid) && command.opcode == io::FLUSH {
            return Ok(IoOrder {
                namespace: None,
                request: IoRequest::Flush,
                resets: controller.resets,
            });
        }
        let namespace = self.namespace(index, nsid).ok_or(invalid)?;
        let geometry = self.shape(namespace);
        self.check_state(controller.port_id, namespace)?;
        let request = IoRequest::of(command, &geometry)?;
        if namespace.identity.is_read_only && request.changes_data() {
            return Err(Status::OPERATION_DENIED.do_not_retry());
        }
        Ok(IoOrder {
            namespace: Some((nsid, geometry)),
            request,
            resets: controller.resets,
        })
    }

    fn check_state(&self, port_id: u16, namespace: &Namespace) -> Result<(), Status> {
        let state = self.states.get(&(port_id, namespace.identity.ana_group));
        match state.unwrap_or(&AnaState::Optimized) {
            AnaState::Optimized | AnaState::NonOptimized => Ok(()),
            AnaState::Inaccessible => Err(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Err(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Err(Status::ANA_TRANSITION),
        }
    }
}
