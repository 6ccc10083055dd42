//! A host and a controller against each other: any commands, any options, any segmentation of the
//! bytes, with a small disk as the oracle.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use lunette_nvmeof_proto::command::{Command, Direction, fabrics};
    use lunette_nvmeof_proto::completion::Status;
    use lunette_nvmeof_proto::controller::{ControllerOptions, ControllerQueue, ControllerStep};
    use lunette_nvmeof_proto::fabrics::Connect;
    use lunette_nvmeof_proto::host::{GiveUp, HostOptions, HostQueue, HostStep};
    use lunette_nvmeof_proto::io::{Blocks, Geometry, IoRequest};
    use lunette_nvmeof_proto::pdu::Digests;
    use lunette_runtime_core::checksum::crc32c;
    use lunette_runtime_core::time::Time;
    use proptest::prelude::*;

    const GEOMETRY: Geometry = Geometry {
        blocks: 64,
        block_bytes_log2: 9,
        transfer_bytes_max: 1 << 20,
    };
    const ENTRIES: u16 = 8;

    #[derive(Clone, Debug)]
    enum Op {
        Submit {
            request: IoRequest,
            seed: u8,
            in_capsule: bool,
        },
        /// Bytes go from one end to the other: how many, and how many of them past the machine.
        Move {
            to_host: bool,
            count: u16,
            direct: bool,
        },
        /// The controller carries out what is ready.
        Execute {
            slot: u8,
        },
        GiveUp {
            command: u8,
        },
    }

    fn blocks() -> impl Strategy<Value = Blocks> {
        (0..60_u64, 1..40_u32).prop_map(|(first, count)| Blocks {
            first,
            count: count.min(u32::try_from(64 - first).unwrap_or(1)),
        })
    }

    fn request() -> impl Strategy<Value = IoRequest> {
        prop_oneof![
            4 => blocks().prop_map(IoRequest::Read),
            4 => blocks().prop_map(|blocks| IoRequest::Write { blocks, must_last: false }),
            1 => blocks().prop_map(IoRequest::Compare),
            1 => blocks().prop_map(|blocks| IoRequest::WriteZeroes { blocks, may_deallocate: true }),
            1 => Just(IoRequest::Flush),
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (request(), any::<u8>(), any::<bool>())
                .prop_map(|(request, seed, in_capsule)| Op::Submit { request, seed, in_capsule }),
            6 => (any::<bool>(), 0..3000_u16, any::<bool>())
                .prop_map(|(to_host, count, direct)| Op::Move { to_host, count, direct }),
            3 => any::<u8>().prop_map(|slot| Op::Execute { slot }),
            1 => any::<u8>().prop_map(|command| Op::GiveUp { command }),
        ]
    }

    fn options() -> impl Strategy<Value = (Digests, u32, u32, u32, bool)> {
        let digests = (any::<bool>(), any::<bool>());
        let digests = digests.prop_map(|(header, data)| Digests { header, data });
        (digests, 1..4_u32, 1..20_u32, 0..3_u32, any::<bool>())
    }

    /// What the host knows of a command.
    #[derive(Debug)]
    struct Asked {
        request: IoRequest,
        data: Vec<u8>,
        is_given_up: bool,
    }

    /// What the controller knows of a command.
    #[derive(Debug)]
    struct Taken {
        request: IoRequest,
        data: Vec<u8>,
        is_ready: bool,
    }

    struct Session {
        host: HostQueue,
        controller: ControllerQueue,
        to_host: VecDeque<u8>,
        to_controller: VecDeque<u8>,
        asked: BTreeMap<u16, Asked>,
        taken: BTreeMap<u16, Taken>,
        disk: Vec<u8>,
        /// By command id: how it ends, and the data of a read as of when it was carried out.
        outcomes: BTreeMap<u16, (Status, Vec<u8>)>,
        completed: usize,
        has_flow_control: bool,
        /// The Connect, while it is in flight.
        connecting: Option<u16>,
        is_open: bool,
    }

    impl Session {
        fn new((digests, r2t_max, r2t_blocks, h2c, flow): (Digests, u32, u32, u32, bool)) -> Self {
            let mut host = HostQueue::new(HostOptions {
                digests,
                r2t_max,
                // One entry stays empty.
                commands_max: ENTRIES - 1,
            });
            let mut to_controller = Vec::new();
            host.start(&mut to_controller);
            let controller = ControllerQueue::new(ControllerOptions {
                digests: Digests::BOTH,
                h2c_data_bytes_max: 4096 + 1000 * h2c,
                r2t_bytes_max: 700 * r2t_blocks,
                in_capsule_bytes_max: 1 << 15,
            });
            Self {
                host,
                controller,
                to_host: VecDeque::new(),
                to_controller: to_controller.into(),
                asked: BTreeMap::new(),
                taken: BTreeMap::new(),
                disk: vec![0; 64 << 9],
                outcomes: BTreeMap::new(),
                completed: 0,
                has_flow_control: flow,
                connecting: None,
                is_open: false,
            }
        }

        /// Without its data, which neither of the two machines looks at.
        fn connect(&mut self) {
            let connect = Connect {
                format: 0,
                queue_id: 1,
                entries_less_one: ENTRIES - 1,
                without_flow_control: !self.has_flow_control,
                keep_alive_ms: 0,
            };
            let mut out = Vec::new();
            let command = connect.command();
            let submitted = self.host.submit(command, false, Time::MAX, &mut out);
            self.connecting = Some(submitted.expect("nothing is in flight"));
            self.to_controller.extend(out);
        }

        fn submit(&mut self, request: IoRequest, seed: u8, in_capsule: bool) {
            if !self.is_open || self.host.is_full() {
                return;
            }
            let len = usize::try_from(request.data_bytes(&GEOMETRY)).unwrap();
            let fill = |index: usize| seed.wrapping_add(u8::try_from(index % 251).unwrap());
            let data: Vec<u8> = match request.direction() {
                Direction::ToController => (0..len).map(fill).collect(),
                _ => vec![0xee; len],
            };
            let command = request.command(1, &GEOMETRY);
            let in_capsule = in_capsule && request.direction() == Direction::ToController;
            let mut out = Vec::new();
            let submitted = self.host.submit(command, in_capsule, Time::MAX, &mut out);
            let cid = submitted.expect("not full");
            if in_capsule {
                out.extend_from_slice(&data);
                self.host
                    .framing()
                    .append_data_digest(&mut out, || crc32c(&data));
            }
            self.to_controller.extend(out);
            let asked = Asked {
                request,
                data,
                is_given_up: false,
            };
            assert!(self.asked.insert(cid, asked).is_none(), "ids are unique");
        }

        fn move_to_host(&mut self, count: usize, direct: bool) {
            let count = count.min(self.to_host.len());
            let bytes: Vec<u8> = self.to_host.drain(..count).collect();
            let mut input = &bytes[..];
            loop {
                match self
                    .host
                    .step(&mut input)
                    .expect("the controller is honest")
                {
                    HostStep::Open(_) => self.connect(),
                    HostStep::Data {
                        cid,
                        offset_bytes,
                        bytes,
                    } => self.place_at_host(cid, offset_bytes, bytes),
                    HostStep::NeedData {
                        cid,
                        offset_bytes,
                        len_bytes,
                    } => {
                        let len = self.to_host.len().min(len_bytes as usize);
                        if !direct || len == 0 {
                            return;
                        }
                        let bytes: Vec<u8> = self.to_host.drain(..len).collect();
                        self.place_at_host(cid, offset_bytes, &bytes);
                        self.host.on_data(&bytes);
                    }
                    HostStep::Send(transfer) => {
                        let mut out = Vec::new();
                        self.host.append_transfer(&transfer, &mut out);
                        let start = transfer.offset_bytes as usize;
                        let data = &self.asked[&transfer.cid].data;
                        let data = &data[start..start + transfer.len_bytes as usize];
                        out.extend_from_slice(data);
                        self.host
                            .framing()
                            .append_data_digest(&mut out, || crc32c(data));
                        self.to_controller.extend(out);
                    }
                    HostStep::Completed {
                        cid,
                        completion,
                        data_bytes,
                    } => self.check_completed(cid, completion.status, data_bytes),
                    HostStep::NeedBytes => return,
                }
            }
        }

        fn place_at_host(&mut self, cid: u16, offset_bytes: u32, bytes: &[u8]) {
            let asked = self
                .asked
                .get_mut(&cid)
                .expect("data of a command in flight");
            assert!(!asked.is_given_up, "memory that was given back");
            let start = offset_bytes as usize;
            asked.data[start..start + bytes.len()].copy_from_slice(bytes);
        }

        fn check_completed(&mut self, cid: u16, status: Status, data_bytes: u32) {
            if self.connecting == Some(cid) {
                (self.connecting, self.is_open) = (None, true);
                return;
            }
            let asked = self.asked.remove(&cid).expect("completed once");
            let (expected, data) = self.outcomes.remove(&cid).expect("carried out before");
            assert_eq!(status, expected);
            if asked.request.direction() == Direction::ToHost && !asked.is_given_up {
                assert_eq!(data_bytes as usize, data.len());
                assert!(asked.data == data, "what was read is what was there");
            }
            self.completed += 1;
        }

        fn move_to_controller(&mut self, count: usize, direct: bool) {
            let count = count.min(self.to_controller.len());
            let bytes: Vec<u8> = self.to_controller.drain(..count).collect();
            let mut input = &bytes[..];
            let mut out = Vec::new();
            loop {
                let step = self.controller.step(&mut input, &mut out);
                match step.expect("the host is honest") {
                    ControllerStep::Open(_) => {}
                    ControllerStep::Command {
                        slot,
                        command,
                        data_len_bytes,
                    } => self.take(slot, &command, data_len_bytes, &mut out),
                    ControllerStep::Data {
                        slot,
                        offset_bytes,
                        bytes,
                    } => self.place_at_controller(slot, offset_bytes, bytes),
                    ControllerStep::NeedData {
                        slot,
                        offset_bytes,
                        len_bytes,
                    } => {
                        let len = self.to_controller.len().min(len_bytes as usize);
                        if !direct || len == 0 {
                            break;
                        }
                        let bytes: Vec<u8> = self.to_controller.drain(..len).collect();
                        self.place_at_controller(slot, offset_bytes, &bytes);
                        self.controller.on_data(&bytes);
                    }
                    ControllerStep::DataEnd { slot, is_intact } => {
                        assert!(is_intact);
                        let taken = self.taken.get_mut(&slot).expect("a command in flight");
                        assert!(!taken.is_ready, "complete once");
                        taken.is_ready = true;
                    }
                    ControllerStep::NeedBytes => break,
                }
            }
            self.to_host.extend(out);
        }

        fn take(&mut self, slot: u16, command: &Command, data_len: u32, out: &mut Vec<u8>) {
            if command.fabrics_type() == Some(fabrics::CONNECT) {
                let connect = Connect::of(command);
                let has_flow_control = !connect.without_flow_control;
                self.controller
                    .connect(connect.entries_less_one + 1, has_flow_control);
                self.controller.complete(slot, Status::SUCCESS, 0, out);
                return;
            }
            let request = IoRequest::of(command, &GEOMETRY).expect("the host is honest");
            let is_write = request.direction() == Direction::ToController;
            let len = if is_write {
                request.data_bytes(&GEOMETRY)
            } else {
                0
            };
            if is_write && data_len == 0 {
                self.controller.request_data(slot, out);
            }
            let taken = Taken {
                request,
                data: vec![0; usize::try_from(len).unwrap()],
                is_ready: !is_write,
            };
            assert!(self.taken.insert(slot, taken).is_none(), "slots are unique");
        }

        fn place_at_controller(&mut self, slot: u16, offset_bytes: u32, bytes: &[u8]) {
            let taken = self
                .taken
                .get_mut(&slot)
                .expect("data of a command in flight");
            let start = offset_bytes as usize;
            taken.data[start..start + bytes.len()].copy_from_slice(bytes);
        }

        fn execute(&mut self, nth: u8) {
            let ready: Vec<u16> = self
                .taken
                .iter()
                .filter(|(_, taken)| taken.is_ready)
                .map(|(&slot, _)| slot)
                .collect();
            if ready.is_empty() {
                return;
            }
            let slot = ready[usize::from(nth) % ready.len()];
            let Taken { request, data, .. } = self.taken.remove(&slot).expect("just seen");
            let cid = self.controller.cid_of(slot);
            let asked = &self.asked[&cid];
            assert_eq!(asked.request, request);
            let range = request.blocks().map_or(0..0, |blocks| {
                let (start, len) = GEOMETRY.bytes(blocks);
                usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap()
            });
            let mut out = Vec::new();
            let mut outcome = (Status::SUCCESS, Vec::new());
            match request {
                IoRequest::Read(_) => {
                    outcome.1 = self.disk[range].to_vec();
                    self.send(slot, &outcome.1, nth, &mut out);
                }
                IoRequest::Write { .. } => {
                    assert!(data == asked.data, "what is written is what was sent");
                    self.disk[range].copy_from_slice(&data);
                }
                IoRequest::Compare(_) if self.disk[range.clone()] != data => {
                    outcome.0 = Status::COMPARE_FAILURE;
                }
                IoRequest::WriteZeroes { .. } => self.disk[range].fill(0),
                _ => {}
            }
            let skips = self.controller.may_skip_completion();
            if !(skips && matches!(request, IoRequest::Read(_))) {
                self.controller.complete(slot, outcome.0, 0, &mut out);
            }
            self.outcomes.insert(cid, outcome);
            self.to_host.extend(out);
        }

        /// Data to the host in one PDU or in two.
        fn send(&mut self, slot: u16, data: &[u8], nth: u8, out: &mut Vec<u8>) {
            let cut = if nth.is_multiple_of(2) {
                data.len()
            } else {
                data.len() / 3
            };
            let skips = self.controller.may_skip_completion();
            let mut rest = data;
            for piece in [cut, data.len() - cut] {
                if piece == 0 {
                    continue;
                }
                let (bytes, behind) = rest.split_at(piece);
                let completes = skips && behind.is_empty();
                let len_bytes = u32::try_from(piece).unwrap();
                self.controller.send_data(slot, len_bytes, completes, out);
                out.extend_from_slice(bytes);
                self.controller
                    .framing()
                    .append_data_digest(out, || crc32c(bytes));
                rest = behind;
            }
        }

        fn give_up(&mut self, nth: u8) {
            if self.asked.is_empty() {
                return;
            }
            let index = usize::from(nth) % self.asked.len();
            let (&cid, asked) = self.asked.iter_mut().nth(index).expect("in range");
            match self.host.give_up(cid) {
                GiveUp::Over => assert!(asked.is_given_up),
                GiveUp::Done | GiveUp::MustFence => {
                    assert!(!asked.is_given_up);
                    asked.is_given_up = true;
                }
            }
        }

        fn apply(&mut self, op: Op) {
            match op {
                Op::Submit {
                    request,
                    seed,
                    in_capsule,
                } => self.submit(request, seed, in_capsule),
                Op::Move {
                    to_host: true,
                    count,
                    direct,
                } => self.move_to_host(usize::from(count), direct),
                Op::Move { count, direct, .. } => {
                    self.move_to_controller(usize::from(count), direct);
                }
                Op::Execute { slot } => self.execute(slot),
                Op::GiveUp { command } => self.give_up(command),
            }
        }

        /// Lets everything that is under way come to its end.
        fn settle(&mut self) {
            for _ in 0..1000 {
                self.move_to_controller(usize::MAX, false);
                self.execute(0);
                self.move_to_host(usize::MAX, false);
                if self.asked.is_empty() && self.is_open {
                    return;
                }
            }
            panic!("commands that do not end: {:?}", self.asked.keys());
        }
    }

    proptest! {
        #[test]
        fn every_command_ends_once_with_the_right_bytes(
            options in options(),
            ops in prop::collection::vec(op(), 1..200),
        ) {
            let mut session = Session::new(options);
            for op in ops {
                session.apply(op);
            }
            session.settle();
            prop_assert_eq!(session.host.in_flight(), 0);
            prop_assert_eq!(session.controller.in_flight(), 0);
            prop_assert_eq!(session.host.on_eof(), Ok(()));
            prop_assert!(session.outcomes.is_empty());
        }
    }

    #[test]
    fn a_connection_may_end_at_every_byte() {
        let write = IoRequest::Write {
            blocks: Blocks { first: 0, count: 9 },
            must_last: false,
        };
        let read = IoRequest::Read(Blocks { first: 0, count: 9 });
        for len in 0..12_000 {
            let mut session = Session::new((Digests::BOTH, 1, 3, 0, true));
            session.settle();
            session.submit(write, 3, false);
            session.submit(read, 0, false);
            let mut left = len;
            // As much as `len` bytes, whichever way they go.
            while left > 0 {
                session.execute(0);
                let to_host = session.to_host.len().min(left);
                session.move_to_host(to_host, false);
                left -= to_host;
                let to_controller = session.to_controller.len().min(left);
                session.move_to_controller(to_controller, false);
                left -= to_controller;
                if to_host + to_controller == 0 {
                    break;
                }
            }
            let is_over = session.completed == 2;
            assert_eq!(session.host.on_eof().is_ok(), is_over, "after {len} bytes");
            assert_eq!(session.host.in_flight(), 2 - session.completed);
            if is_over {
                return;
            }
        }
        panic!("the commands never end");
    }

    #[test]
    fn a_session_completes_what_it_is_given() {
        let mut session = Session::new((Digests::BOTH, 2, 3, 0, true));
        session.settle();
        let blocks = Blocks {
            first: 3,
            count: 20,
        };
        for in_capsule in [false, true] {
            let write = IoRequest::Write {
                blocks,
                must_last: false,
            };
            session.submit(write, 7, in_capsule);
            session.settle();
            session.submit(IoRequest::Read(blocks), 0, false);
            session.submit(IoRequest::Compare(blocks), 7, in_capsule);
            session.submit(IoRequest::Compare(blocks), 8, in_capsule);
            session.settle();
        }
        assert_eq!(session.completed, 8);
        assert_eq!(session.disk[3 << 9], 7);
    }
}
