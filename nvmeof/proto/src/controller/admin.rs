//! What a controller answers on its admin queue.

use lunette_runtime_core::time::Time;

use super::access;
use super::life::{Event, Life};
use super::target::{AdminReply, Controller, ControllerId, Target, Topic};
use crate::command::{Command, admin, fabrics, io};
use crate::completion::Status;
use crate::fabrics::{Capabilities, Configuration, Property};
use crate::feature::{self, events};
use crate::identify::{
    self, ANA_TRANSITION_S, EVENT_REQUESTS_LESS_ONE, IdentifyController, NSID_ALL, PAGE_BYTES,
    Page, VERSION, cns, optional,
};
use crate::log_page::{self, AnaGroup, LogRequest, id};

/// Halves of a second that a controller may take to become ready.
const READY_TIMEOUT_HALVES: u8 = 15;

/// When a command is carried out, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    opcode: u8,
    /// Before the controller is enabled, too.
    any_time: bool,
    /// By a discovery controller, too.
    discovery: bool,
}

const fn row(opcode: u8, any_time: bool, discovery: bool) -> Row {
    Row {
        opcode,
        any_time,
        discovery,
    }
}

/// The commands of an admin queue.
const COMMANDS: [Row; 8] = [
    row(admin::GET_LOG_PAGE, false, true),
    row(admin::IDENTIFY, false, true),
    row(admin::ABORT, false, false),
    row(admin::SET_FEATURES, false, true),
    row(admin::GET_FEATURES, false, true),
    row(admin::ASYNC_EVENT, false, true),
    row(admin::KEEP_ALIVE, false, true),
    row(admin::FABRICS, true, true),
];

/// The commands of a queue for I/O.
const IO_COMMANDS: [u8; 6] = [
    io::FLUSH,
    io::WRITE,
    io::READ,
    io::COMPARE,
    io::WRITE_ZEROES,
    io::DATASET_MANAGEMENT,
];
const IO_WRITES: [u8; 3] = [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT];

fn row_of(opcode: u8) -> Option<&'static Row> {
    COMMANDS.iter().find(|row| row.opcode == opcode)
}

type Answer = Result<AdminReply, Status>;

fn done(result: u64) -> Answer {
    Ok(AdminReply::Done {
        status: Status::SUCCESS,
        result,
    })
}

impl Target {
    /// Answers a command of an admin queue, or a fabrics command of another queue, that is kept in
    /// `slot` of its connection.
    pub fn admin(
        &mut self,
        controller: ControllerId,
        queue_id: u16,
        slot: u16,
        command: &Command,
        now: Time,
    ) -> AdminReply {
        self.touch(controller, now);
        self.answer(controller, queue_id, slot, command)
            .unwrap_or_else(AdminReply::from)
    }

    fn answer(&mut self, id: ControllerId, queue_id: u16, slot: u16, command: &Command) -> Answer {
        let controller = self.controllers.get_mut(&id);
        let controller = controller.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        match command.fabrics_type() {
            Some(fabrics::AUTH_RECEIVE) => {
                // By what it is told the host may have proved itself.
                self.revision += 1;
                return access::receive(controller, queue_id, command);
            }
            Some(fabrics::DISCONNECT) => {}
            _ => controller.check_access(queue_id)?,
        }
        let invalid_opcode = Status::INVALID_OPCODE.do_not_retry();
        let row = row_of(command.opcode).ok_or(invalid_opcode)?;
        if controller.subsystem.is_none() && !row.discovery {
            return Err(invalid_opcode);
        }
        if controller.life != Life::Ready && !row.any_time {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        match command.opcode {
            admin::FABRICS => self.fabrics(id, queue_id, command),
            admin::IDENTIFY => self.identify(id, command),
            admin::GET_LOG_PAGE => self.log_page(id, command),
            admin::ABORT => Ok(abort(controller, command)),
            admin::SET_FEATURES => {
                // Whoever waits for silent hosts may have to wake earlier.
                self.revision += 1;
                set_feature(controller, command)
            }
            admin::GET_FEATURES => {
                let value = controller.settings.read(command.cdw10[0])?;
                done(u64::from(value))
            }
            admin::ASYNC_EVENT => await_event(controller, slot, command.cid),
            _keep_alive => done(0),
        }
    }

    fn fabrics(&mut self, id: ControllerId, queue_id: u16, command: &Command) -> Answer {
        let entries_max = self.options.entries_max;
        let controller = self.controllers.get_mut(&id).expect("just seen");
        let invalid_field = Status::INVALID_FIELD.do_not_retry();
        match (command.fabrics_type(), queue_id) {
            (Some(fabrics::PROPERTY_GET), 0) => {
                done(match Property::of(command).ok_or(invalid_field)? {
                    Property::Capabilities => {
                        Capabilities::new(entries_max, READY_TIMEOUT_HALVES).0
                    }
                    Property::Version => u64::from(VERSION),
                    Property::Configuration => u64::from(controller.configuration.0),
                    Property::Status => u64::from(controller.life.status().0),
                    Property::SubsystemReset => return Err(invalid_field),
                })
            }
            (Some(fabrics::PROPERTY_SET), 0) => {
                if Property::of(command) != Some(Property::Configuration) {
                    return Err(invalid_field);
                }
                self.revision += 1;
                controller.configuration = Configuration(command.cdw10[2]);
                controller.life = controller.life.after(Event::of(controller.configuration));
                if controller.life == Life::Disabled {
                    controller.resets += 1;
                    // A reset ends what waits, and forgets what was told.
                    let waiting = core::mem::take(&mut controller.waiting);
                    controller
                        .aborted
                        .extend(waiting.iter().map(|waiting| waiting.0));
                    controller.raised.clear();
                    controller.masked.clear();
                }
                done(0)
            }
            (Some(fabrics::DISCONNECT), 1..) => Ok(AdminReply::Close),
            (Some(fabrics::CONNECT), _) => Err(Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
            _ => Err(Status::INVALID_OPCODE.do_not_retry()),
        }
    }

    fn identify(&self, id: ControllerId, command: &Command) -> Answer {
        let controller = &self.controllers[&id];
        if command.sgl.len_bytes() as usize != PAGE_BYTES {
            return Err(Status::DATA_LENGTH_INVALID.do_not_retry());
        }
        let invalid_field = Status::INVALID_FIELD.do_not_retry();
        let [wanted, ..] = command.cdw10[0].to_le_bytes();
        if wanted == cns::CONTROLLER {
            return Ok(AdminReply::Data(self.identity(id, controller).encode()));
        }
        let subsystem = controller.subsystem.ok_or(invalid_field)?;
        let subsystem = &self.subsystems[subsystem];
        let identity = |nsid| {
            subsystem
                .namespace(nsid)
                .map(|namespace| &namespace.identity)
        };
        let invalid_namespace = Status::INVALID_NAMESPACE.do_not_retry();
        let existing = || identity(command.nsid).ok_or(invalid_namespace);
        let page = match wanted {
            // What all namespaces have in common.
            cns::NAMESPACE if command.nsid == NSID_ALL => Page::new().0,
            cns::NAMESPACE => existing()?.encode(),
            cns::ACTIVE_NAMESPACES => {
                if command.nsid >= NSID_ALL - 1 {
                    return Err(invalid_namespace);
                }
                let namespaces = subsystem.options.namespaces.iter();
                identify::encode_list(namespaces.map(|namespace| namespace.nsid), command.nsid)
            }
            cns::NAMESPACE_DESCRIPTORS => identify::encode_descriptors(&existing()?.uuid),
            // Nothing beyond what the other structures say; the NVM command set is the only one.
            cns::COMMAND_SET_NAMESPACE if command.cdw10[1] >> 24 == 0 => {
                existing()?;
                Page::new().0
            }
            cns::COMMAND_SET_CONTROLLER if command.cdw10[1] >> 24 == 0 => Page::new().0,
            cns::INDEPENDENT_NAMESPACE => identify::encode_independent(existing()?),
            _ => return Err(invalid_field),
        };
        Ok(AdminReply::Data(page))
    }

    fn identity(&self, id: ControllerId, controller: &Controller) -> IdentifyController {
        let subsystem = controller
            .subsystem
            .map(|index| &self.subsystems[index].options);
        let is_discovery = subsystem.is_none();
        let namespaces = subsystem.map_or(&[][..], |subsystem| &subsystem.namespaces);
        IdentifyController {
            serial: self.options.serial.clone(),
            model: self.options.model.clone(),
            firmware: self.options.firmware.clone(),
            controller_id: id.0,
            transfer_pages_log2: self.options.transfer_pages_log2,
            is_discovery,
            namespaces_max: namespaces.iter().map(|n| n.nsid).max().unwrap_or(0),
            commands_max: self.options.entries_max,
            in_capsule_bytes: if is_discovery {
                0
            } else {
                self.options.in_capsule_bytes
            },
            optional_commands: if is_discovery {
                0
            } else {
                optional::COMPARE | optional::DATASET_MANAGEMENT | optional::WRITE_ZEROES
            },
            has_ana: !is_discovery,
            ana_transition_s: if is_discovery { 0 } else { ANA_TRANSITION_S },
            caches_writes: subsystem.is_some_and(|subsystem| subsystem.caches_writes),
            events: if is_discovery {
                events::DISCOVERY
            } else {
                events::NAMESPACES | events::ANA
            },
            subsystem: subsystem.map_or_else(crate::nqn::Nqn::discovery, |s| s.name.clone()),
        }
    }

    fn log_page(&mut self, id: ControllerId, command: &Command) -> Answer {
        let request = LogRequest::of(command);
        let len_bytes = command.sgl.len_bytes();
        if u64::from(len_bytes) != request.len_bytes {
            return Err(Status::DATA_LENGTH_INVALID.do_not_retry());
        }
        if len_bytes > self.transfer_bytes_max() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let page = self.whole_page(id, &request)?;
        let part = request.part_of(&page, len_bytes);
        let part = part.ok_or(Status::INVALID_FIELD.do_not_retry())?;
        if !request.retains_event {
            let controller = self.controllers.get_mut(&id).expect("just seen");
            let told = Topic::ALL
                .into_iter()
                .filter(|topic| topic.facts().2 == request.id);
            for topic in told {
                controller.masked.remove(&topic);
            }
            if request.id == id::CHANGED_NAMESPACES {
                controller.changed_namespaces.clear();
            }
        }
        Ok(AdminReply::Data(part))
    }

    fn whole_page(&self, id: ControllerId, request: &LogRequest) -> Result<Vec<u8>, Status> {
        let controller = &self.controllers[&id];
        let invalid = Status::INVALID_LOG_PAGE.do_not_retry();
        let Some(subsystem) = controller.subsystem else {
            return if request.id == id::DISCOVERY {
                Ok(log_page::encode_discovery(self.generation, &self.records))
            } else {
                Err(invalid)
            };
        };
        match request.id {
            // No error is kept beyond its completion.
            id::ERROR => Ok(vec![0; 64]),
            id::HEALTH => Ok(log_page::health()),
            id::FIRMWARE => {
                let mut page = vec![0; 512];
                page[0] = 1;
                let firmware = self.options.firmware.bytes().chain([b' '; 8]);
                for (byte, letter) in page[8..16].iter_mut().zip(firmware) {
                    *byte = letter;
                }
                Ok(page)
            }
            id::CHANGED_NAMESPACES => {
                let changed = controller.changed_namespaces.iter();
                Ok(identify::encode_list(changed.copied(), 0))
            }
            id::EFFECTS => {
                let opcodes = COMMANDS.map(|row| row.opcode);
                Ok(log_page::effects(&opcodes, &IO_COMMANDS, &IO_WRITES))
            }
            id::ANA => Ok(self.ana_page(subsystem, controller.port_id, request.specific & 1 != 0)),
            _ => Err(invalid),
        }
    }

    fn ana_page(&self, subsystem: usize, port_id: u16, groups_only: bool) -> Vec<u8> {
        let namespaces = &self.subsystems[subsystem].options.namespaces;
        let mut ids: Vec<u32> = namespaces.iter().map(|n| n.identity.ana_group).collect();
        ids.sort_unstable();
        ids.dedup();
        let groups = ids.into_iter().map(|group| {
            let members = namespaces.iter().filter(|n| n.identity.ana_group == group);
            AnaGroup {
                id: group,
                changes: self
                    .groups
                    .get(&(port_id, group))
                    .map_or(0, |(_, changes)| *changes),
                state: self.ana_state(port_id, group),
                nsids: if groups_only {
                    Vec::new()
                } else {
                    members.map(|namespace| namespace.nsid).collect()
                },
            }
        });
        let groups: Vec<AnaGroup> = groups.collect();
        let changes = groups.iter().map(|group| group.changes).sum();
        log_page::encode_ana(changes, &groups)
    }
}

/// Of the admin queue only what waits for an event can be aborted; of others, what the caller knows
/// not to have begun.
fn abort(controller: &mut Controller, command: &Command) -> AdminReply {
    let [a, b, c, d] = command.cdw10[0].to_le_bytes();
    let (queue_id, cid) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    if queue_id > 0 && controller.queues.contains_key(&queue_id) {
        return AdminReply::Abort { queue_id, cid };
    }
    let mut waiting = controller.waiting.iter();
    let found = waiting.position(|waiting| queue_id == 0 && waiting.1 == cid);
    if let Some(index) = found {
        let (slot, _cid) = controller.waiting.swap_remove(index);
        controller.aborted.push(slot);
    }
    AdminReply::aborted(found.is_some())
}

fn set_feature(controller: &mut Controller, command: &Command) -> Answer {
    let [feature, ..] = command.cdw10[0].to_le_bytes();
    let value = controller
        .settings
        .write(command.cdw10[0], command.cdw10[1])?;
    done(if feature == feature::id::QUEUES {
        u64::from(value)
    } else {
        0
    })
}

fn await_event(controller: &mut Controller, slot: u16, cid: u16) -> Answer {
    if controller.waiting.len() > usize::from(EVENT_REQUESTS_LESS_ONE) {
        return Err(Status::ASYNC_EVENT_LIMIT.do_not_retry());
    }
    controller.waiting.push((slot, cid));
    Ok(AdminReply::Held)
}
