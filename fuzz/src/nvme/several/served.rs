//! The controller's end of one connection.

use std::collections::BTreeMap;

use lunette_nvmeof_proto::command::{Command, Direction, admin};
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{
    AdminReply, Attached, ControllerOptions, ControllerQueue, ControllerStep, Target,
};
use lunette_nvmeof_proto::pdu::{Digests, WireFault};
use lunette_runtime_core::time::Time;

/// Longest data that are taken.
const TRANSFER_BYTES_MAX: u32 = 1 << 14;

/// A command and the data that it brought.
pub(super) type Taken = (Command, Vec<u8>);

#[derive(Debug)]
pub(super) struct Served {
    pub(super) queue: ControllerQueue,
    pub(super) attached: Option<Attached>,
    pub(super) out: Vec<u8>,
    pub(super) fault: Option<WireFault>,
    arriving: BTreeMap<u16, Taken>,
    /// Commands for I/O that can be carried out, by their slots.
    pub(super) ready: BTreeMap<u16, Taken>,
}

impl Served {
    pub(super) fn new() -> Self {
        let options = ControllerOptions {
            digests: Digests::BOTH,
            h2c_data_bytes_max: 4096,
            r2t_bytes_max: 3000,
            in_capsule_bytes_max: 2048,
        };
        Self {
            queue: ControllerQueue::new(options),
            attached: None,
            out: Vec::new(),
            fault: None,
            arriving: BTreeMap::new(),
            ready: BTreeMap::new(),
        }
    }

    pub(super) fn receive(&mut self, bytes: &[u8], target: &mut Target) {
        let mut input = bytes;
        while self.fault.is_none() {
            match self.queue.step(&mut input, &mut self.out) {
                Err(fault) => {
                    self.queue.append_term_req(&fault, &mut self.out);
                    self.fault = Some(fault);
                }
                Ok(ControllerStep::NeedBytes | ControllerStep::NeedData { .. }) => return,
                Ok(ControllerStep::Open(_)) => {}
                Ok(ControllerStep::Command {
                    slot,
                    command,
                    data_len_bytes,
                }) => self.on_command(slot, command, data_len_bytes, target),
                Ok(ControllerStep::Data {
                    slot,
                    offset_bytes,
                    bytes,
                }) => {
                    let (_, data) = self.arriving.get_mut(&slot).expect("data of a command");
                    let start = offset_bytes as usize;
                    data[start..start + bytes.len()].copy_from_slice(bytes);
                }
                Ok(ControllerStep::DataEnd { slot, is_intact }) => {
                    let taken = self.arriving.remove(&slot).expect("data of a command");
                    if is_intact {
                        self.on_whole(slot, taken, target);
                    } else {
                        self.complete(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
                    }
                }
            }
        }
    }

    fn on_command(&mut self, slot: u16, command: Command, data_len: u32, target: &mut Target) {
        let len_bytes = command.sgl.len_bytes();
        if command.direction() != Direction::ToController || len_bytes == 0 {
            self.on_whole(slot, (command, Vec::new()), target);
        } else if data_len == 0 && len_bytes > TRANSFER_BYTES_MAX {
            self.complete(slot, Status::INVALID_FIELD, 0);
        } else {
            let taken = (command, vec![0; len_bytes as usize]);
            let before = self.arriving.insert(slot, taken);
            assert!(before.is_none(), "a slot holds one command");
            if data_len == 0 {
                self.queue.request_data(slot, &mut self.out);
            }
        }
    }

    fn on_whole(&mut self, slot: u16, (command, data): Taken, target: &mut Target) {
        let Some(attached) = self.attached else {
            return match target.connect(&command, &data, 1, Time::ZERO) {
                Err(refusal) => self.complete(slot, refusal.status, u64::from(refusal.result)),
                Ok(attached) => {
                    self.queue
                        .connect(attached.entries, attached.has_flow_control);
                    self.attached = Some(attached);
                    self.complete(slot, Status::SUCCESS, attached.result());
                }
            };
        };
        if attached.queue_id != 0 && command.opcode != admin::FABRICS {
            let before = self.ready.insert(slot, (command, data));
            assert!(before.is_none(), "a slot holds one command");
            return;
        }
        let (id, queue_id) = (attached.controller, attached.queue_id);
        self.reply(slot, target.admin(id, queue_id, slot, &command, Time::ZERO));
    }

    fn reply(&mut self, slot: u16, reply: AdminReply) {
        match reply {
            AdminReply::Done { status, result } => self.complete(slot, status, result),
            AdminReply::Data(bytes) | AdminReply::LastData(bytes) => self.send(slot, &bytes),
            AdminReply::Held => {}
            AdminReply::Close => self.complete(slot, Status::SUCCESS, 0),
            AdminReply::Abort { .. } => self.reply(slot, AdminReply::aborted(false)),
        }
    }

    pub(super) fn complete(&mut self, slot: u16, status: Status, result: u64) {
        self.queue.complete(slot, status, result, &mut self.out);
    }

    /// Ends a command with its data.
    pub(super) fn send(&mut self, slot: u16, bytes: &[u8]) {
        let completes = self.queue.may_skip_completion();
        let len_bytes = u32::try_from(bytes.len()).expect("bounded");
        self.queue
            .send_data(slot, len_bytes, completes, &mut self.out);
        self.out.extend_from_slice(bytes);
        let crc = || lunette_runtime_core::checksum::crc32c(bytes);
        self.queue.framing().append_data_digest(&mut self.out, crc);
        if !completes {
            self.complete(slot, Status::SUCCESS, 0);
        }
    }
}
