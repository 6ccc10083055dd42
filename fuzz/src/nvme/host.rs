//! A host with commands in flight, against a hostile controller.

use std::collections::BTreeMap;

use lunette_nvmeof_proto::command::{Command, Sgl, io};
use lunette_nvmeof_proto::completion::{Completion, Status};
use lunette_nvmeof_proto::fabrics::Connect;
use lunette_nvmeof_proto::host::{GiveUp, HostOptions, HostQueue, HostStep};
use lunette_nvmeof_proto::pdu::WireFault;
use lunette_runtime_core::time::Time;

use super::Reached;
use super::script::{Cut, Script};

const LEN_BYTES: u32 = 4096;
/// Entries of a queue that is connected.
const ENTRIES: u16 = 8;

/// A command in flight.
#[derive(Debug)]
struct Flight {
    is_read: bool,
    next: u32,
    is_given_up: bool,
    /// Commands that had completed when it was sent.
    completed_before: u32,
}

/// What is the same however the stream is cut.
#[derive(Debug, Default, PartialEq, Eq)]
struct Transcript {
    /// Ends of commands, and what was sent.
    events: Vec<(u16, Option<Status>, u32)>,
    fault: Option<WireFault>,
    reached: Reached,
}

struct Victim {
    queue: HostQueue,
    flights: BTreeMap<u16, Flight>,
    connects: bool,
    /// The Connect, until it has completed, and whether the queue has a head then.
    connecting: Option<u16>,
    has_head: bool,
    sent: u32,
    transcript: Transcript,
}

/// Plays the script whole and cut, and compares.
pub(super) fn attack(script: &Script, reached: &mut Reached) {
    let whole = [Cut {
        len: usize::MAX,
        is_straight: false,
    }];
    let first = Victim::new(script).play(script, &whole);
    let second = Victim::new(script).play(script, &script.cuts);
    assert_eq!(first, second, "the stream's cuts show");
    *reached = first.reached;
}

impl Victim {
    fn new(script: &Script) -> Self {
        let mut queue = HostQueue::new(HostOptions {
            digests: script.digests,
            r2t_max: 1,
            commands_max: 4,
        });
        queue.start(&mut Vec::new());
        Self {
            queue,
            flights: BTreeMap::new(),
            connects: script.connects,
            connecting: None,
            has_head: false,
            sent: 0,
            transcript: Transcript::default(),
        }
    }

    fn play(mut self, script: &Script, cuts: &[Cut]) -> Transcript {
        let mut given_up = script.given_up.iter().peekable();
        let mut at = 0;
        for cut in cuts.iter().cycle() {
            if self.transcript.fault.is_some() {
                break;
            }
            while let Some((_, nth)) = given_up.next_if(|(when, _)| *when <= at) {
                self.give_up(*nth);
            }
            if at == script.stream.len() {
                break;
            }
            // A command is given up at the same byte however the stream is cut.
            let stop = given_up.peek().map_or(usize::MAX, |(when, _)| *when);
            let end = script.stream.len().min(stop);
            let mut rest = &script.stream[at..end];
            let (piece, behind) = rest.split_at(cut.len.min(rest.len()));
            rest = behind;
            self.receive(piece, &mut rest, cut.is_straight);
            at = end - rest.len();
        }
        assert!(self.queue.in_flight() <= 4);
        self.transcript
    }

    /// Keeps four commands in flight: reads and writes by turns.
    fn submit(&mut self) {
        while !self.queue.is_full() {
            let is_read = self.flights.len().is_multiple_of(2);
            let opcode = if is_read { io::READ } else { io::WRITE };
            let mut command = Command::new(opcode, 1, [0; 6]);
            command.sgl = Sgl::Transport {
                len_bytes: LEN_BYTES,
            };
            self.put(command, is_read);
        }
    }

    fn put(&mut self, command: Command, is_read: bool) -> u16 {
        let submitted = self
            .queue
            .submit(command, false, Time::MAX, &mut Vec::new());
        let cid = submitted.expect("not full");
        let flight = Flight {
            is_read,
            next: 0,
            is_given_up: false,
            completed_before: self.transcript.reached.completed,
        };
        self.sent += 1;
        let before = self.flights.insert(cid, flight);
        assert!(before.is_none(), "ids are unique among commands in flight");
        cid
    }

    fn connect(&mut self) {
        let connect = Connect {
            format: 0,
            queue_id: 1,
            entries_less_one: ENTRIES - 1,
            without_flow_control: false,
            keep_alive_ms: 0,
        };
        self.connecting = Some(self.put(connect.command(), false));
    }

    /// A head is one of those that the queue had between the start and the end of the command.
    fn check_head(&mut self, cid: u16, flight: &Flight, completion: &Completion, by_data: bool) {
        if self.connecting == Some(cid) {
            self.connecting = None;
            self.has_head = completion.status.is_success();
        }
        // Data with SUCCESS bring no head.
        if self.has_head && !by_data {
            let mut heads = flight.completed_before + 1..=self.sent;
            let is_one = heads.any(|head| head % u32::from(ENTRIES) == u32::from(completion.head));
            assert!(is_one, "a head of what was sent");
            self.transcript.reached.heads += 1;
        }
    }

    fn receive(&mut self, piece: &[u8], rest: &mut &[u8], is_straight: bool) {
        let mut input = piece;
        loop {
            match self.queue.step(&mut input) {
                Err(fault) => return self.on_fault(fault),
                Ok(HostStep::NeedBytes) => return,
                Ok(HostStep::NeedData {
                    cid,
                    offset_bytes,
                    len_bytes,
                }) => {
                    let len = rest.len().min(len_bytes as usize);
                    if !is_straight || len == 0 {
                        return;
                    }
                    let (bytes, behind) = rest.split_at(len);
                    *rest = behind;
                    self.place(cid, offset_bytes, bytes);
                    self.queue.on_data(bytes);
                }
                Ok(HostStep::Open(_)) => {
                    self.transcript.reached.opened += 1;
                    if self.connects {
                        self.connect();
                    }
                    self.submit();
                }
                Ok(HostStep::Data {
                    cid,
                    offset_bytes,
                    bytes,
                }) => self.place(cid, offset_bytes, bytes),
                Ok(HostStep::Send(transfer)) => {
                    let flight = self.flights.get_mut(&transfer.cid).expect("in flight");
                    assert!(!flight.is_read, "only what writes is asked for data");
                    assert_eq!(transfer.offset_bytes, flight.next);
                    flight.next += transfer.len_bytes;
                    assert!(flight.next <= LEN_BYTES, "no more than the command has");
                    self.transcript.reached.transfers += 1;
                    let event = (transfer.cid, None, transfer.len_bytes);
                    self.transcript.events.push(event);
                }
                Ok(HostStep::Completed {
                    cid,
                    completion,
                    data_bytes,
                }) => {
                    let flight = self.flights.remove(&cid).expect("each ends once");
                    if !flight.is_given_up {
                        assert_eq!(data_bytes, flight.next);
                    }
                    let is_whole = data_bytes == LEN_BYTES || !flight.is_read;
                    assert!(is_whole || !completion.status.is_success(), "all data");
                    self.check_head(cid, &flight, &completion, flight.is_read);
                    self.transcript.reached.completed += 1;
                    let event = (cid, Some(completion.status), data_bytes);
                    self.transcript.events.push(event);
                    self.submit();
                }
            }
        }
    }

    fn place(&mut self, cid: u16, offset_bytes: u32, bytes: &[u8]) {
        let flight = self
            .flights
            .get_mut(&cid)
            .expect("data of a command in flight");
        assert!(
            flight.is_read && !flight.is_given_up,
            "memory that is not lent"
        );
        assert_eq!(offset_bytes, flight.next, "data come in order");
        flight.next += u32::try_from(bytes.len()).expect("short");
        assert!(flight.next <= LEN_BYTES, "no data beyond the command's");
    }

    fn give_up(&mut self, nth: u8) {
        let count = self.flights.len();
        if count == 0 {
            return;
        }
        let mut flights = self.flights.iter_mut();
        let chosen = flights.nth(usize::from(nth) % count);
        let (&cid, flight) = chosen.expect("in range");
        let given_up = self.queue.give_up(cid);
        assert_eq!(given_up == GiveUp::Over, flight.is_given_up);
        self.transcript.reached.given_up += u32::from(!flight.is_given_up);
        flight.is_given_up = true;
    }

    fn on_fault(&mut self, fault: WireFault) {
        let reached = &mut self.transcript.reached;
        reached.faults += 1;
        reached.header_digests += u32::from(fault.is_corruption());
        self.transcript.fault = Some(fault);
        self.queue.append_term_req(&fault, &mut Vec::new());
        let again = self.queue.step(&mut &[0; 200][..]);
        assert_eq!(again, Err(fault), "faults are for ever");
    }
}
