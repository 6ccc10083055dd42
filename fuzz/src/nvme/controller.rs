//! A controller with a target behind it, against a hostile host.

use std::collections::BTreeMap;

use lunette_nvmeof_proto::command::{Command, Direction, admin};
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::{
    AdminReply, Attached, ControllerOptions, ControllerQueue, ControllerStep, Namespace, Secrets,
    SubsystemOptions, Target, TargetOptions,
};
use lunette_nvmeof_proto::identify::IdentifyNamespace;
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_nvmeof_proto::pdu::WireFault;
use lunette_runtime_core::time::Time;

use super::Reached;
use super::script::{Cut, SUBSYSTEM, Script};

const TRANSFER_BYTES_MAX: u32 = 1 << 14;
const OPTIONS: ControllerOptions = ControllerOptions {
    digests: lunette_nvmeof_proto::pdu::Digests::BOTH,
    h2c_data_bytes_max: 4096,
    r2t_bytes_max: 3000,
    in_capsule_bytes_max: 2048,
};

/// A command whose data are coming.
#[derive(Debug)]
struct Arrival {
    command: Command,
    len: usize,
    next: usize,
}

/// What is the same however the stream is cut.
#[derive(Debug, Default, PartialEq, Eq)]
struct Transcript {
    said: Vec<u8>,
    fault: Option<WireFault>,
    reached: Reached,
}

struct Victim {
    queue: ControllerQueue,
    target: Target,
    attached: Option<Attached>,
    arrivals: BTreeMap<u16, Arrival>,
    transcript: Transcript,
}

/// Plays the script whole and cut, and compares.
pub(super) fn attack(script: &Script, reached: &mut Reached) {
    let whole = [Cut {
        len: usize::MAX,
        is_straight: false,
    }];
    let first = Victim::new().play(&script.stream, &whole);
    let second = Victim::new().play(&script.stream, &script.cuts);
    assert!(first == second, "the stream's cuts show");
    *reached = first.reached;
}

impl Victim {
    fn new() -> Self {
        let options = TargetOptions {
            serial: "s".into(),
            model: "m".into(),
            firmware: "f".into(),
            entries_max: 8,
            io_queues_max: 2,
            in_capsule_bytes: 2048,
            transfer_pages_log2: 2,
            controllers_max: 2,
            controller_ids: (1, 8),
        };
        let identity = IdentifyNamespace {
            blocks: 64,
            block_bytes_log2: 9,
            ana_group: 1,
            uuid: [1; 16],
            is_read_only: false,
            optimal_blocks_less_one: 7,
        };
        let subsystem = SubsystemOptions {
            name: Nqn::new(SUBSYSTEM).expect("a name"),
            namespaces: vec![Namespace { nsid: 1, identity }],
            hosts: None,
            caches_writes: true,
            secrets: Secrets::default(),
        };
        Self {
            queue: ControllerQueue::new(OPTIONS),
            target: Target::new(options, vec![subsystem], Vec::new()),
            attached: None,
            arrivals: BTreeMap::new(),
            transcript: Transcript::default(),
        }
    }

    fn play(mut self, stream: &[u8], cuts: &[Cut]) -> Transcript {
        let mut rest = stream;
        for cut in cuts.iter().cycle() {
            if rest.is_empty() || self.transcript.fault.is_some() {
                break;
            }
            let (piece, behind) = rest.split_at(cut.len.min(rest.len()));
            rest = behind;
            self.receive(piece, &mut rest, cut.is_straight);
        }
        self.check_end();
        self.transcript
    }

    fn receive(&mut self, piece: &[u8], rest: &mut &[u8], is_straight: bool) {
        let mut input = piece;
        loop {
            let mut out = Vec::new();
            let step = self.queue.step(&mut input, &mut out);
            self.transcript.said.extend_from_slice(&out);
            match step {
                Err(fault) => return self.on_fault(fault),
                Ok(ControllerStep::NeedBytes) => return,
                Ok(ControllerStep::NeedData {
                    slot,
                    offset_bytes,
                    len_bytes,
                }) => {
                    let len = rest.len().min(len_bytes as usize);
                    if !is_straight || len == 0 {
                        return;
                    }
                    let (bytes, behind) = rest.split_at(len);
                    *rest = behind;
                    self.place(slot, offset_bytes, bytes);
                    self.queue.on_data(bytes);
                }
                Ok(step) => self.on_step(step),
            }
        }
    }

    fn on_step(&mut self, step: ControllerStep<'_>) {
        match step {
            ControllerStep::Open(_) => self.transcript.reached.opened += 1,
            ControllerStep::Command {
                slot,
                command,
                data_len_bytes,
            } => self.on_command(slot, command, data_len_bytes),
            ControllerStep::Data {
                slot,
                offset_bytes,
                bytes,
            } => self.place(slot, offset_bytes, bytes),
            ControllerStep::DataEnd { slot, is_intact } => {
                let arrival = self.arrivals.remove(&slot).expect("data of a command");
                assert_eq!(arrival.next, arrival.len, "all data have come");
                if is_intact {
                    self.transcript.reached.data_complete += 1;
                    self.carry_out(slot, &arrival.command, true);
                } else {
                    self.transcript.reached.data_corrupt += 1;
                    self.complete(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
                }
            }
            ControllerStep::NeedBytes | ControllerStep::NeedData { .. } => {
                unreachable!("handled where the input is")
            }
        }
    }

    fn on_command(&mut self, slot: u16, command: Command, data_len_bytes: u32) {
        let len_bytes = command.sgl.len_bytes();
        let brings_data = command.direction() == Direction::ToController && len_bytes > 0;
        assert!(data_len_bytes == 0 || data_len_bytes == len_bytes);
        if !brings_data {
            self.carry_out(slot, &command, false);
        } else if data_len_bytes == 0 && len_bytes > TRANSFER_BYTES_MAX {
            // Before anything is allocated.
            self.complete(slot, Status::INVALID_FIELD, 0);
        } else {
            let arrival = Arrival {
                command,
                len: len_bytes as usize,
                next: 0,
            };
            let before = self.arrivals.insert(slot, arrival);
            assert!(before.is_none(), "a slot holds one command");
            if data_len_bytes == 0 {
                let mut out = Vec::new();
                self.queue.request_data(slot, &mut out);
                self.transcript.said.extend_from_slice(&out);
            }
        }
    }

    fn place(&mut self, slot: u16, offset_bytes: u32, bytes: &[u8]) {
        let arrival = self.arrivals.get_mut(&slot).expect("data of a command");
        assert_eq!(offset_bytes as usize, arrival.next, "data come in order");
        arrival.next += bytes.len();
        assert!(arrival.next <= arrival.len, "no data beyond the command's");
    }

    fn carry_out(&mut self, slot: u16, command: &Command, has_data: bool) {
        self.transcript.reached.carried_out += 1;
        let now = Time::ZERO;
        let Some(attached) = self.attached else {
            let data = vec![
                0;
                if has_data {
                    command.sgl.len_bytes() as usize
                } else {
                    0
                }
            ];
            return self.connect(slot, command, &data, now);
        };
        if attached.queue_id == 0 || command.opcode == admin::FABRICS {
            let id = attached.controller;
            match self.target.admin(id, attached.queue_id, slot, command, now) {
                AdminReply::Done { status, result } => self.complete(slot, status, result),
                AdminReply::Data(bytes) | AdminReply::LastData(bytes) => self.send(slot, &bytes),
                AdminReply::Held => {}
                AdminReply::Close => self.complete(slot, Status::SUCCESS, 0),
                AdminReply::Abort { .. } => match AdminReply::aborted(false) {
                    AdminReply::Done { status, result } => self.complete(slot, status, result),
                    other => unreachable!("an Abort ends: {other:?}"),
                },
            }
            while let Some(notice) = self.target.next_notice(|_| true) {
                self.complete(notice.slot, notice.status, notice.result);
            }
            return;
        }
        match self
            .target
            .view()
            .io(attached.controller, attached.queue_id, command)
        {
            Err(status) => self.complete(slot, status, 0),
            Ok(_) if command.direction() == Direction::ToHost => {
                let len = command.sgl.len_bytes();
                assert!(len <= TRANSFER_BYTES_MAX, "lengths are checked before");
                self.send(slot, &vec![7; len as usize]);
            }
            Ok(_) => self.complete(slot, Status::SUCCESS, 0),
        }
    }

    /// The content of a Connect is the fuzzer's in the stream; its names are made good here, since
    /// data are not kept.
    fn connect(&mut self, slot: u16, command: &Command, data: &[u8], now: Time) {
        let data = lunette_nvmeof_proto::fabrics::ConnectData {
            host_id: [0; 16],
            controller_id: 0xffff,
            subsystem: Nqn::new(SUBSYSTEM).expect("a name"),
            host: Nqn::new("nqn.h").expect("a name"),
        }
        .encode()
        .into_iter()
        .take(data.len())
        .collect::<Vec<u8>>();
        match self.target.connect(command, &data, 1, now) {
            Ok(attached) => {
                self.queue
                    .connect(attached.entries, attached.has_flow_control);
                self.attached = Some(attached);
                self.transcript.reached.connected += 1;
                self.complete(slot, Status::SUCCESS, u64::from(attached.controller.0));
            }
            Err(refusal) => self.complete(slot, refusal.status, u64::from(refusal.result)),
        }
    }

    fn complete(&mut self, slot: u16, status: Status, result: u64) {
        let said = &mut self.transcript.said;
        self.queue.complete(slot, status, result, said);
    }

    fn send(&mut self, slot: u16, bytes: &[u8]) {
        let len_bytes = u32::try_from(bytes.len()).expect("bounded");
        let completes = self.queue.may_skip_completion();
        let said = &mut self.transcript.said;
        self.queue.send_data(slot, len_bytes, completes, said);
        if !completes {
            self.queue.complete(slot, Status::SUCCESS, 0, said);
        }
    }

    fn on_fault(&mut self, fault: WireFault) {
        let reached = &mut self.transcript.reached;
        reached.faults += 1;
        reached.header_digests += u32::from(fault.is_corruption());
        self.transcript.fault = Some(fault);
        let said = &mut self.transcript.said;
        self.queue.append_term_req(&fault, said);
        let again = self.queue.step(&mut &[0; 200][..], &mut Vec::new());
        assert_eq!(again, Err(fault), "faults are for ever");
    }

    fn check_end(&self) {
        assert!(self.queue.in_flight() <= 256, "commands are bounded");
    }
}
