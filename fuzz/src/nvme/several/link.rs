//! One connection of an honest host: both ends, and what is between them.

use std::collections::BTreeMap;

use lunette_nvmeof_proto::command::{Command, Direction, Sgl};
use lunette_nvmeof_proto::completion::Status;
use lunette_nvmeof_proto::controller::Target;
use lunette_nvmeof_proto::fabrics::{Configuration, Connect, ConnectData, Property};
use lunette_nvmeof_proto::host::{HostOptions, HostQueue, HostStep};
use lunette_nvmeof_proto::io::IoRequest;
use lunette_nvmeof_proto::nqn::Nqn;
use lunette_nvmeof_proto::pdu::Digests;
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::time::Time;

use super::served::Served;
use super::{ENTRIES, GEOMETRY};
use crate::nvme::script::HONEST;

/// What a host has asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: IoRequest,
    pub(super) data: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Link {
    host: HostQueue,
    pub(super) served: Served,
    to_controller: Vec<u8>,
    /// Commands in flight, by their ids.
    pub(super) asked: BTreeMap<u16, Asked>,
    /// How those of them end that were carried out, and with what data.
    pub(super) outcomes: BTreeMap<u16, (Status, Vec<u8>)>,
    /// What commands of the set-up ended with.
    answers: Vec<(Status, u64)>,
    pub(super) completed: u32,
    pub(super) read_back: u32,
}

impl Link {
    /// Connects queue `queue_id` of a controller of `host`.
    pub(super) fn connect(
        host: &str,
        (queue_id, controller_id): (u16, u16),
        digests: Digests,
        has_flow_control: bool,
        target: &mut Target,
    ) -> Self {
        let mut link = Self {
            host: HostQueue::new(HostOptions {
                digests,
                r2t_max: 1,
                commands_max: ENTRIES - 1,
            }),
            served: Served::new(),
            to_controller: Vec::new(),
            asked: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            answers: Vec::new(),
            completed: 0,
            read_back: 0,
        };
        link.host.start(&mut link.to_controller);
        link.settle(target);
        let connect = Connect {
            format: 0,
            queue_id,
            entries_less_one: ENTRIES - 1,
            without_flow_control: !has_flow_control,
            keep_alive_ms: 0,
        };
        let data = ConnectData {
            host_id: [1; 16],
            controller_id,
            subsystem: Nqn::new(HONEST).expect("a name"),
            host: Nqn::new(host).expect("a name"),
        };
        link.call(connect.command(), &data.encode(), target);
        link
    }

    /// Makes its controller work: of an admin queue. Gives the controller's id.
    pub(super) fn enable(&mut self, target: &mut Target) -> u16 {
        let command = Property::Configuration.write(Configuration::ENABLED.0);
        self.call(command, &[], target);
        let (_, id) = self.answers[0];
        u16::try_from(id).expect("an id, and nothing is asked for")
    }

    /// Has a command of the set-up carried out.
    fn call(&mut self, mut command: Command, data: &[u8], target: &mut Target) {
        let len_bytes = u32::try_from(data.len()).expect("short");
        if len_bytes > 0 {
            command.sgl = Sgl::Transport { len_bytes };
        }
        self.put(command, data, len_bytes > 0);
        self.settle(target);
        let answer = self.answers.last().expect("an answer");
        assert!(answer.0.is_success(), "{answer:?}");
    }

    fn put(&mut self, command: Command, data: &[u8], in_capsule: bool) -> u16 {
        let out = &mut self.to_controller;
        let submitted = self.host.submit(command, in_capsule, Time::MAX, out);
        if in_capsule {
            out.extend_from_slice(data);
            self.host.framing().append_data_digest(out, || crc32c(data));
        }
        submitted.expect("not full")
    }

    /// Asks for something, if there is room. What is to be sent is all `fill`.
    pub(super) fn submit(&mut self, request: IoRequest, fill: u8, in_capsule: bool) {
        if self.host.is_full() {
            return;
        }
        let len = usize::try_from(request.data_bytes(&GEOMETRY)).expect("bounded");
        let sends = request.direction() == Direction::ToController;
        let data = vec![if sends { fill } else { !fill }; len];
        let in_capsule = in_capsule && sends && len <= 2048;
        let cid = self.put(request.command(1, &GEOMETRY), &data, in_capsule);
        let before = self.asked.insert(cid, Asked { request, data });
        assert!(before.is_none(), "ids are unique");
    }

    pub(super) fn move_to_controller(&mut self, count: usize, target: &mut Target) {
        let count = count.min(self.to_controller.len());
        let bytes: Vec<u8> = self.to_controller.drain(..count).collect();
        self.served.receive(&bytes, target);
        assert_eq!(self.served.fault, None, "the host is honest");
    }

    pub(super) fn move_to_host(&mut self, count: usize) {
        let count = count.min(self.served.out.len());
        let bytes: Vec<u8> = self.served.out.drain(..count).collect();
        let mut input = &bytes[..];
        loop {
            match self.host.step(&mut input).expect("an honest controller") {
                HostStep::NeedBytes | HostStep::NeedData { .. } => return,
                HostStep::Open(_) => {}
                HostStep::Data {
                    cid,
                    offset_bytes,
                    bytes,
                } => {
                    let asked = self.asked.get_mut(&cid).expect("in flight");
                    let start = offset_bytes as usize;
                    asked.data[start..start + bytes.len()].copy_from_slice(bytes);
                }
                HostStep::Send(transfer) => {
                    let start = transfer.offset_bytes as usize;
                    let data = &self.asked[&transfer.cid].data;
                    let data = &data[start..start + transfer.len_bytes as usize];
                    let out = &mut self.to_controller;
                    self.host.append_transfer(&transfer, out);
                    out.extend_from_slice(data);
                    self.host.framing().append_data_digest(out, || crc32c(data));
                }
                HostStep::Completed {
                    cid, completion, ..
                } => match self.asked.remove(&cid) {
                    None => self.answers.push((completion.status, completion.result)),
                    Some(asked) => self.on_completed(cid, completion.status, &asked),
                },
            }
        }
    }

    fn on_completed(&mut self, cid: u16, status: Status, asked: &Asked) {
        let outcome = self.outcomes.remove(&cid);
        let (expected, data) = outcome.expect("what completes was carried out");
        assert_eq!(status.code(), expected.code(), "{:?}", asked.request);
        if asked.request.direction() == Direction::ToHost && status.is_success() {
            assert!(asked.data == data, "what is read is what was there");
            self.read_back += 1;
        }
        self.completed += 1;
    }

    /// Moves everything that does not wait for a disk.
    pub(super) fn settle(&mut self, target: &mut Target) {
        while !self.to_controller.is_empty() || !self.served.out.is_empty() {
            self.move_to_controller(usize::MAX, target);
            self.move_to_host(usize::MAX);
        }
    }
}
