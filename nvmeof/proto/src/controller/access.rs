//! Which queues may be used: those whose hosts have proved themselves, where that is asked for.
//!
//! Until then a queue carries Authentication Send and Receive, and Disconnect, alone (NVMe Base 2.0,
//! "Authentication Requirements").

use std::sync::Arc;

use super::target::{AdminReply, Controller, ControllerId, Target};
use crate::auth::{ControllerAuth, is_of_protocol};
use crate::command::{Command, fabrics};
use crate::completion::Status;
use crate::nqn::Nqn;

/// What a queue may be used for.
#[derive(Debug)]
pub(super) enum Access {
    /// Anything.
    Open,
    /// What the authentication allows.
    ByProof(Box<ControllerAuth>),
    /// As much as when the authentication was taken, to look into a message.
    Computing { is_authenticated: bool },
}

impl Access {
    pub(super) const fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    fn is_granted(&self) -> bool {
        match self {
            Self::Open => true,
            Self::ByProof(auth) => auth.is_authenticated(),
            Self::Computing { is_authenticated } => *is_authenticated,
        }
    }
}

impl Controller {
    /// Whether commands of this queue are carried out.
    pub(super) fn check_access(&self, queue_id: u16) -> Result<(), Status> {
        if self.queues.get(&queue_id).is_some_and(Access::is_granted) {
            Ok(())
        } else {
            Err(Status::AUTH_REQUIRED.do_not_retry())
        }
    }
}

impl Target {
    /// What a queue of this host may be used for at first.
    pub(super) fn access_of(&self, subsystem: Option<usize>, host: &Nqn) -> Access {
        let options = subsystem.map(|index| &self.subsystems[index].options);
        let found = options.and_then(|options| Some((options, options.secrets.of(host)?)));
        found.map_or(Access::Open, |(options, credentials)| {
            let credentials = Arc::clone(credentials);
            let auth = ControllerAuth::new(credentials, host.clone(), options.name.clone());
            Access::ByProof(Box::new(auth))
        })
    }

    /// Takes the authentication of a queue, for a message that an Authentication Send brings: the
    /// caller looks into it ([`ControllerAuth::on_send`]), gives it back and completes the command.
    ///
    /// # Errors
    /// The status to complete the command with instead.
    pub fn take_auth(
        &mut self,
        controller: ControllerId,
        queue_id: u16,
        command: &Command,
    ) -> Result<Box<ControllerAuth>, Status> {
        let invalid_opcode = Status::INVALID_OPCODE.do_not_retry();
        if command.fabrics_type() != Some(fabrics::AUTH_SEND) {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        if !is_of_protocol(command) {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let controller = self.controllers.get_mut(&controller);
        let access = controller.and_then(|controller| controller.queues.get_mut(&queue_id));
        let access = access.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        match access {
            Access::Open => Err(invalid_opcode),
            Access::Computing { .. } => Err(Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
            Access::ByProof(auth) => {
                let is_authenticated = auth.is_authenticated();
                match core::mem::replace(access, Access::Computing { is_authenticated }) {
                    Access::ByProof(auth) => Ok(auth),
                    _ => unreachable!("just seen"),
                }
            }
        }
    }

    /// Gives it back. Whether the connection is to be closed: the host has given up.
    pub fn give_auth(
        &mut self,
        controller: ControllerId,
        queue_id: u16,
        auth: Box<ControllerAuth>,
    ) -> bool {
        let is_over = auth.is_over();
        self.revision += 1;
        let controller = self.controllers.get_mut(&controller);
        let access = controller.and_then(|controller| controller.queues.get_mut(&queue_id));
        if let Some(access @ Access::Computing { .. }) = access {
            *access = Access::ByProof(auth);
        }
        is_over
    }

    /// Whether the host of a queue may use it.
    #[must_use]
    pub fn is_authenticated(&self, controller: ControllerId, queue_id: u16) -> bool {
        let controller = self.controllers.get(&controller);
        controller.is_some_and(|controller| controller.check_access(queue_id).is_ok())
    }
}

/// Answers Authentication Receive.
pub(super) fn receive(
    controller: &mut Controller,
    queue_id: u16,
    command: &Command,
) -> Result<AdminReply, Status> {
    if !is_of_protocol(command) {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    match controller.queues.get_mut(&queue_id) {
        Some(Access::ByProof(auth)) => {
            let told = auth.on_receive(command.sgl.len_bytes())?;
            Ok(if auth.is_over() {
                AdminReply::LastData(told)
            } else {
                AdminReply::Data(told)
            })
        }
        Some(Access::Computing { .. }) => Err(Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
        _ => Err(Status::INVALID_OPCODE.do_not_retry()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lunette_runtime_core::time::Time;

    use super::*;
    use crate::auth::{AuthNext, Credentials, Entropy, Group, HostAuth, Secret};
    use crate::command::{Sgl, admin};
    use crate::controller::{Attached, Secrets, SubsystemOptions, TargetOptions};
    use crate::fabrics::{CONTROLLER_ANY, Connect, ConnectData, Property};
    use crate::host::RequestData;

    fn name(text: &str) -> Nqn {
        Nqn::new(&format!("nqn.{text}")).expect("a name")
    }

    fn credentials(byte: u8) -> Arc<Credentials> {
        let secret = Secret::new(&[byte; 32], None).expect("a secret");
        Arc::new(Credentials {
            groups: vec![Group::Null],
            ..Credentials::new(secret, None)
        })
    }

    fn entropy() -> Entropy {
        Entropy::draw(|| 0x1234_5678)
    }

    /// A target whose host `nqn.h` has to prove something, and others something else or nothing.
    fn target(of_others: Option<Arc<Credentials>>) -> Target {
        let options = TargetOptions {
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
            entries_max: 64,
            io_queues_max: 4,
            in_capsule_bytes: 4096,
            transfer_pages_log2: 4,
            controllers_max: 8,
            controller_ids: (1, 99),
        };
        let subsystem = SubsystemOptions {
            name: name("s"),
            namespaces: Vec::new(),
            hosts: None,
            caches_writes: false,
            secrets: Secrets {
                by_host: BTreeMap::from([(name("h"), credentials(1))]),
                of_others,
            },
        };
        Target::new(options, vec![subsystem], Vec::new())
    }

    fn connect(target: &mut Target, host: &str, queue_id: u16, controller_id: u16) -> Attached {
        let connect = Connect {
            format: 0,
            queue_id,
            entries_less_one: 31,
            without_flow_control: true,
            keep_alive_ms: 0,
        };
        let data = ConnectData {
            host_id: [3; 16],
            controller_id,
            subsystem: name("s"),
            host: name(host),
        };
        let connected = target.connect(&connect.command(), &data.encode(), 1, Time::ZERO);
        connected.expect("connected")
    }

    fn with_len(mut command: Command, len_bytes: u32) -> Command {
        command.sgl = Sgl::Transport { len_bytes };
        command
    }

    /// Whether the host is told that it has proved itself, and how that ended for the connection.
    fn prove(target: &mut Target, attached: Attached, host: &str, byte: u8) -> (bool, bool) {
        let Attached {
            controller,
            queue_id,
            ..
        } = attached;
        let mut auth = HostAuth::new(credentials(byte), name(host), name("s"), entropy());
        let mut is_closed = false;
        loop {
            let request = match auth.next_request() {
                AuthNext::Send(request) => request,
                end => return (end == AuthNext::Done, is_closed),
            };
            match request.data {
                RequestData::Out(bytes) => {
                    let taken = target.take_auth(controller, queue_id, &request.command);
                    let mut taken = taken.expect("it is there");
                    let receive = with_len(
                        Command::fabrics(fabrics::AUTH_RECEIVE, [0xe901_0100, 64, 0, 0, 0, 0]),
                        64,
                    );
                    let early = target.admin(controller, queue_id, 0, &receive, Time::ZERO);
                    let status = Status::COMMAND_SEQUENCE_ERROR.do_not_retry();
                    assert_eq!(early, AdminReply::from(status), "it is being looked into");
                    taken.on_send(&bytes, &entropy());
                    is_closed |= target.give_auth(controller, queue_id, taken);
                    auth.on_completion(Status::SUCCESS, &[]);
                }
                RequestData::In(_) => {
                    let reply = target.admin(controller, queue_id, 0, &request.command, Time::ZERO);
                    let (told, is_last) = match reply {
                        AdminReply::Data(told) => (told, false),
                        AdminReply::LastData(told) => (told, true),
                        other => unreachable!("{other:?}"),
                    };
                    is_closed |= is_last;
                    auth.on_completion(Status::SUCCESS, &told);
                }
                RequestData::None => unreachable!("messages are data"),
            }
        }
    }

    fn enable(target: &mut Target, attached: Attached) -> AdminReply {
        let command = Property::Configuration.write(0x0046_0001);
        target.admin(
            attached.controller,
            attached.queue_id,
            0,
            &command,
            Time::ZERO,
        )
    }

    #[test]
    fn a_queue_opens_when_its_host_has_proved_itself() {
        let mut target = target(None);
        let attached = connect(&mut target, "h", 0, CONTROLLER_ANY);
        assert_eq!(
            attached.result(),
            1 << 17 | u64::from(attached.controller.0)
        );
        let required = AdminReply::from(Status::AUTH_REQUIRED.do_not_retry());
        assert_eq!(enable(&mut target, attached), required);
        let keep_alive = Command::new(admin::KEEP_ALIVE, 0, [0; 6]);
        let kept = target.admin(attached.controller, 0, 0, &keep_alive, Time::ZERO);
        assert_eq!(kept, required);
        assert_eq!(prove(&mut target, attached, "h", 1), (true, false));
        let success = AdminReply::from(Status::SUCCESS);
        assert_eq!(enable(&mut target, attached), success);
        // Each queue for itself.
        let id = attached.controller;
        let queue = connect(&mut target, "h", 1, id.0);
        assert!(queue.must_authenticate);
        let flush = Command::new(crate::command::io::FLUSH, u32::MAX, [0; 6]);
        let refused = target
            .view()
            .io(id, 1, &flush)
            .map(drop)
            .map_err(Status::code);
        assert_eq!(refused, Err(Status::AUTH_REQUIRED.code()));
        assert_eq!(prove(&mut target, queue, "h", 1), (true, false));
        assert!(target.is_authenticated(id, 1) && target.view().io(id, 1, &flush).is_ok());
    }

    #[test]
    fn a_host_that_proves_nothing_stays_outside() {
        let mut target = target(Some(credentials(2)));
        let attached = connect(&mut target, "h", 0, CONTROLLER_ANY);
        assert_eq!(prove(&mut target, attached, "h", 2), (false, true));
        let required = AdminReply::from(Status::AUTH_REQUIRED.do_not_retry());
        assert_eq!(enable(&mut target, attached), required);
        // Others have their own secret.
        let attached = connect(&mut target, "g", 0, CONTROLLER_ANY);
        assert_eq!(prove(&mut target, attached, "g", 2), (true, false));
        assert_eq!(
            enable(&mut target, attached),
            AdminReply::from(Status::SUCCESS)
        );
    }

    #[test]
    fn who_has_to_prove_nothing_cannot() {
        let mut target = target(None);
        let attached = connect(&mut target, "g", 0, CONTROLLER_ANY);
        assert!(!attached.must_authenticate);
        let command = |kind, protocol| {
            let len = 64;
            with_len(Command::fabrics(kind, [protocol, len, 0, 0, 0, 0]), len)
        };
        let id = attached.controller;
        for (protocol, status) in [
            (0xe901_0100, Status::INVALID_OPCODE),
            (0xe902_0100, Status::INVALID_FIELD),
        ] {
            let send = command(fabrics::AUTH_SEND, protocol);
            let taken = target.take_auth(id, 0, &send).map(drop);
            assert_eq!(taken.map_err(Status::code), Err(status.code()));
            let receive = command(fabrics::AUTH_RECEIVE, protocol);
            let reply = target.admin(id, 0, 0, &receive, Time::ZERO);
            assert_eq!(reply, AdminReply::from(status.do_not_retry()));
        }
    }
}
