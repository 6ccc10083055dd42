//! One connection of a host: its commands in flight.
//!
//! A command id names a slot and how often it has been used, so that a late answer to a command
//! that is over is not taken for an answer to the next one. A slot is free again when the
//! controller has completed its command, not when the host has given it up: until then its data
//! may still come.

use core::time::Duration;

use lunette_runtime_core::checksum::Crc32c;
use lunette_runtime_core::time::Time;
use thiserror::Error;

use crate::command::{Command, Direction, Sgl};
use crate::completion::{Completion, Status};
use crate::pdu::{DataHeader, Digests, Framing, IcReq, IcResp, Pdu, PduKind, R2t, Role, WireFault};
use crate::receiver::{Receiver, Step, Verdict};

use super::heads::{Heads, Mark};
use super::stage::{Event, Stage};

/// Commands in flight on one queue at most.
pub const COMMANDS_MAX: u16 = 1 << SLOT_BITS;

const SLOT_BITS: u32 = 10;
const SLOT_MASK: u16 = COMMANDS_MAX - 1;

/// How a host wants its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Digests that it asks for.
    pub digests: Digests,
    /// R2Ts of one command that it accepts at a time; at least 1.
    pub r2t_max: u32,
    /// Commands in flight at most, up to [`COMMANDS_MAX`].
    pub commands_max: u16,
}

/// Data that the controller has asked for, in one PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The command.
    pub cid: u16,
    /// What the controller called its request.
    pub ttag: u16,
    /// First byte within the command's data.
    pub offset_bytes: u32,
    /// Length in bytes.
    pub len_bytes: u32,
    /// The last PDU of this request.
    pub is_last: bool,
}

/// What the bytes of a controller mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostStep<'a> {
    /// The connection is set up.
    Open(IcResp),
    /// Data of a command, to be placed before the next step.
    Data {
        /// The command.
        cid: u16,
        /// First byte within the command's data.
        offset_bytes: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The input is spent in the middle of a command's data: give more of it, or receive up to
    /// `len_bytes` into the command's own memory and call [`HostQueue::on_data`]. Until then, or
    /// until the next step, that memory counts as lent.
    NeedData {
        /// The command.
        cid: u16,
        /// First missing byte within the command's data.
        offset_bytes: u32,
        /// Bytes that are missing.
        len_bytes: u32,
    },
    /// Send this, by [`HostQueue::append_transfer`].
    Send(Transfer),
    /// A command has ended, and its slot is free. Its data may be used if the status is a success.
    Completed {
        /// The command.
        cid: u16,
        /// How it ended. Data that were damaged underway make it a transient transport error.
        completion: Completion,
        /// Bytes of data that were moved.
        data_bytes: u32,
    },
    /// The input is spent. Give more of it.
    NeedBytes,
}

/// As many commands are in flight as may be: wait for one to complete.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the queue is full")]
pub struct QueueFull;

/// What is to be done about a command's memory when nobody waits for the command any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// Nothing: no data will be placed any more. What was to be sent is still sent when asked for,
    /// so that memory is to be kept until the command completes.
    Done,
    /// The command's memory is lent to a receive: end that receive, then step again.
    MustFence,
    /// It was over, or given up before.
    Over,
}

/// A command whose deadline has passed. It has been given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The command.
    pub cid: u16,
    /// Its memory is lent to a receive: end that receive, then step again.
    pub must_fence: bool,
    /// It was given up before, and has not completed since: the controller, or the way to it, does
    /// not work any more. Close the connection.
    pub is_stuck: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    AwaitingIcResp,
    Open,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    stage: Stage,
    direction: Direction,
    len_bytes: u32,
    /// Arrived, or asked for by the controller.
    moved_bytes: u32,
    is_given_up: bool,
    is_corrupt: bool,
    deadline: Time,
    mark: Mark,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    uses: u8,
    flight: Option<Flight>,
}

/// The data that a PDU is bringing.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    cid: u16,
    base_bytes: u32,
    is_success: bool,
}

/// One connection of a host.
#[derive(Debug)]
pub struct HostQueue {
    options: HostOptions,
    state: State,
    receiver: Receiver,
    framing: Framing,
    h2c_data_bytes_max: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    heads: Heads,
    arriving: Option<Arriving>,
    /// What is left to be sent of a request that needs several PDUs.
    requested: Option<R2t>,
    lent: Option<u16>,
    /// No later than the earliest deadline.
    wakes_at: Time,
}

impl HostQueue {
    /// A connection that has not said anything.
    ///
    /// # Panics
    /// If no command or no R2T may be in flight, or too many commands.
    #[must_use]
    pub fn new(options: HostOptions) -> Self {
        assert!(
            (1..=COMMANDS_MAX).contains(&options.commands_max) && options.r2t_max > 0,
            "a queue has commands, and commands have R2Ts"
        );
        Self {
            options,
            state: State::Idle,
            receiver: Receiver::new(Role::Host),
            framing: Framing::INITIAL,
            h2c_data_bytes_max: 0,
            slots: vec![Slot::default(); usize::from(options.commands_max)],
            free: (0..options.commands_max).rev().collect(),
            heads: Heads::new(),
            arriving: None,
            requested: None,
            lent: None,
            wakes_at: Time::MAX,
        }
    }

    /// Appends the first PDU. The next step that is not [`HostStep::NeedBytes`] is
    /// [`HostStep::Open`]; nothing else may be sent before.
    ///
    /// # Panics
    /// If it was called before.
    pub fn start(&mut self, out: &mut Vec<u8>) {
        assert_eq!(self.state, State::Idle, "a connection is started once");
        let request = IcReq {
            version: 0,
            align_dwords: 0,
            digests: self.options.digests,
            r2t_max: self.options.r2t_max - 1,
        };
        self.framing.append_header(out, &Pdu::IcReq(request), 0);
        self.state = State::AwaitingIcResp;
    }

    /// How what is sent is framed: for the digest of data in a capsule or a transfer.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        self.framing
    }

    /// Commands in flight, given up ones included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether another command would be refused.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The index of a command's slot, below the number of commands that may be in flight.
    #[must_use]
    pub const fn slot_of(cid: u16) -> usize {
        (cid & SLOT_MASK) as usize
    }

    /// Puts a command in flight and appends its PDU. The length of its data is that of its
    /// descriptor, their direction that of its opcode. With `in_capsule` the data follow at once:
    /// the caller sends them, and then [`Framing::append_data_digest`], right behind.
    ///
    /// # Errors
    /// [`QueueFull`]: nothing was appended.
    ///
    /// # Panics
    /// If the connection is not open, or `in_capsule` is asked for data that do not go to the
    /// controller.
    pub fn submit(
        &mut self,
        mut command: Command,
        in_capsule: bool,
        deadline: Time,
        out: &mut Vec<u8>,
    ) -> Result<u16, QueueFull> {
        assert_eq!(self.state, State::Open, "commands follow the set-up");
        let direction = command.direction();
        let len_bytes = command.sgl.len_bytes();
        let capsule_bytes = if in_capsule { len_bytes } else { 0 };
        assert!(
            capsule_bytes == 0 || direction == Direction::ToController,
            "data in a capsule go to the controller"
        );
        let index = self.free.pop().ok_or(QueueFull)?;
        let slot = &mut self.slots[usize::from(index)];
        assert!(slot.flight.is_none(), "a free slot is not in flight");
        slot.uses = slot.uses.wrapping_add(1);
        command.cid = u16::from(slot.uses) << SLOT_BITS | index;
        let sent = Event::sent(direction, len_bytes - capsule_bytes);
        let stage = Stage::Free.after(sent);
        slot.flight = Some(Flight {
            stage: stage.expect("a free slot takes any command"),
            direction,
            len_bytes,
            moved_bytes: capsule_bytes,
            is_given_up: false,
            is_corrupt: false,
            deadline,
            mark: self.heads.on_sent(&command),
        });
        if capsule_bytes > 0 {
            command.sgl = Sgl::InCapsule {
                offset_bytes: 0,
                len_bytes,
            };
        }
        self.wakes_at = self.wakes_at.min(deadline);
        self.framing
            .append_header(out, &Pdu::Command(command), capsule_bytes);
        Ok(command.cid)
    }

    /// Appends the header of a transfer. Its data follow at once, and then
    /// [`Framing::append_data_digest`].
    pub fn append_transfer(&self, transfer: &Transfer, out: &mut Vec<u8>) {
        let header = DataHeader {
            cid: transfer.cid,
            ttag: transfer.ttag,
            offset_bytes: transfer.offset_bytes,
            len_bytes: transfer.len_bytes,
            is_last: transfer.is_last,
            is_success: false,
        };
        self.framing
            .append_header(out, &Pdu::H2cData(header), transfer.len_bytes);
    }

    /// Takes from the front of `input` up to the next thing that the caller has to do.
    ///
    /// # Errors
    /// [`WireFault`], from then on for ever: send [`HostQueue::append_term_req`] and close. Every
    /// command in flight has ended without an answer.
    pub fn step<'i>(&mut self, input: &mut &'i [u8]) -> Result<HostStep<'i>, WireFault> {
        self.lent = None;
        loop {
            if let Some(transfer) = self.next_transfer() {
                return Ok(HostStep::Send(transfer));
            }
            let step = match self.receiver.step(input) {
                Ok(step) => step,
                Err(fault) => return Err(self.end(fault)),
            };
            let answer = match step {
                Step::NeedBytes => return Ok(HostStep::NeedBytes),
                Step::Pdu { pdu, .. } => match self.on_pdu(&pdu) {
                    Ok(answer) => answer,
                    Err(fault) => return Err(self.end(fault)),
                },
                Step::Data {
                    offset_bytes,
                    bytes,
                } => self.on_arrived(offset_bytes, bytes),
                Step::NeedData {
                    offset_bytes,
                    len_bytes,
                } => return Ok(self.lend(offset_bytes, len_bytes)),
                Step::DataEnd(verdict) => self.on_data_end(verdict),
            };
            if let Some(step) = answer {
                return Ok(step);
            }
        }
    }

    /// Tells of data that were received straight into a command's memory after
    /// [`HostStep::NeedData`], in front of the next step.
    ///
    /// # Panics
    /// If they are more than were missing.
    pub fn on_data(&mut self, bytes: &[u8]) {
        self.on_folded(bytes.len(), |crc| crc.fold(bytes));
    }

    /// As [`on_data`](Self::on_data), of so many bytes that are in nobody's hands alone: `fold` folds them in,
    /// where there is a digest.
    ///
    /// # Panics
    /// As there.
    pub fn on_folded(&mut self, count: usize, fold: impl FnOnce(&mut Crc32c)) {
        self.lent = None;
        self.receiver.on_folded(count, fold);
        if let Some(arriving) = self.arriving {
            let count = u32::try_from(count).expect("no more than was missing");
            if let Some(flight) = self.flight_mut(arriving.cid) {
                flight.moved_bytes += count;
            }
        }
    }

    /// Whether the connection may end here.
    ///
    /// # Errors
    /// [`WireFault::Truncated`] within a PDU or while commands are in flight.
    pub fn on_eof(&self) -> Result<(), WireFault> {
        if self.in_flight() == 0 && self.receiver.is_between_pdus() {
            Ok(())
        } else {
            Err(WireFault::Truncated)
        }
    }

    /// Appends what to say to the controller before closing because of `fault`.
    pub fn append_term_req(&self, fault: &WireFault, out: &mut Vec<u8>) {
        if let Some(request) = fault.term_req() {
            append_term_req(Pdu::H2cTermReq(request), self.receiver.last_header(), out);
        }
    }

    /// Nobody waits for a command any more. Its slot stays taken until it completes.
    pub fn give_up(&mut self, cid: u16) -> GiveUp {
        let must_fence = self.lent == Some(cid);
        match self.flight_mut(cid) {
            Some(flight) if !flight.is_given_up => {
                flight.is_given_up = true;
                flight.deadline = Time::MAX;
                if must_fence {
                    GiveUp::MustFence
                } else {
                    GiveUp::Done
                }
            }
            _ => GiveUp::Over,
        }
    }

    /// Whether the controller has got none of the data that a command needs, nor asked for any: it
    /// cannot have carried it out.
    #[must_use]
    pub fn is_without_data(&self, cid: u16) -> bool {
        let slot = self.slots.get(Self::slot_of(cid));
        let slot = slot.filter(|slot| u16::from(slot.uses) << SLOT_BITS == cid & !SLOT_MASK);
        slot.and_then(|slot| slot.flight).is_some_and(|flight| {
            let needs_data = flight.direction == Direction::ToController && flight.len_bytes > 0;
            needs_data && flight.moved_bytes == 0
        })
    }

    /// When to call [`HostQueue::expire`]; it may then find nothing.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        (self.wakes_at < Time::MAX).then_some(self.wakes_at)
    }

    /// Gives up the commands whose deadlines have passed. Those that have not completed `grace`
    /// later come once more.
    pub fn expire(&mut self, now: Time, grace: Duration, expired: &mut Vec<Expired>) {
        if now < self.wakes_at {
            return;
        }
        self.wakes_at = Time::MAX;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let Some(flight) = &mut slot.flight else {
                continue;
            };
            if flight.deadline > now {
                self.wakes_at = self.wakes_at.min(flight.deadline);
                continue;
            }
            let index = u16::try_from(index).expect("slots are bounded");
            let cid = u16::from(slot.uses) << SLOT_BITS | index;
            let is_stuck = flight.is_given_up;
            flight.is_given_up = true;
            flight.deadline = if is_stuck { Time::MAX } else { now + grace };
            self.wakes_at = self.wakes_at.min(flight.deadline);
            expired.push(Expired {
                cid,
                must_fence: self.lent == Some(cid),
                is_stuck,
            });
        }
    }

    /// What is left to send of a request that needs several PDUs. One PDU a request wherever the
    /// controller's limit allows: some controllers compute the digest of data over a request
    /// rather than a PDU.
    fn next_transfer(&mut self) -> Option<Transfer> {
        let r2t = self.requested.take()?;
        let len_bytes = r2t.len_bytes.min(self.h2c_data_bytes_max);
        let left_bytes = r2t.len_bytes - len_bytes;
        if left_bytes > 0 {
            self.requested = Some(R2t {
                offset_bytes: r2t.offset_bytes + len_bytes,
                len_bytes: left_bytes,
                ..r2t
            });
        }
        Some(Transfer {
            cid: r2t.cid,
            ttag: r2t.ttag,
            offset_bytes: r2t.offset_bytes,
            len_bytes,
            is_last: left_bytes == 0,
        })
    }

    fn on_pdu(&mut self, pdu: &Pdu) -> Result<Option<HostStep<'static>>, WireFault> {
        match (self.state, pdu) {
            (_, Pdu::C2hTermReq(request)) => Err(WireFault::Terminated(*request)),
            (State::AwaitingIcResp, Pdu::IcResp(response)) => self.on_ic_resp(response).map(Some),
            (State::Open, Pdu::Response(completion)) => self.on_response(*completion).map(Some),
            (State::Open, Pdu::C2hData(header)) => {
                self.on_data_header(header)?;
                Ok(None)
            }
            (State::Open, Pdu::R2t(r2t)) => {
                self.on_r2t(*r2t)?;
                Ok(None)
            }
            _ => Err(WireFault::Unexpected { kind: pdu.kind() }),
        }
    }

    fn on_ic_resp(&mut self, response: &IcResp) -> Result<HostStep<'static>, WireFault> {
        let kind = PduKind::IcResp;
        if response.version != 0 {
            return Err(WireFault::Unsupported { kind, at: 8 });
        }
        // The controller may not use what was not asked for.
        if response.digests.and(self.options.digests) != response.digests {
            return Err(WireFault::BadField { kind, at: 11 });
        }
        self.framing = Framing {
            digests: response.digests,
            align_dwords: response.align_dwords,
        };
        self.h2c_data_bytes_max = response.h2c_data_bytes_max;
        self.receiver.open(self.framing);
        self.state = State::Open;
        Ok(HostStep::Open(*response))
    }

    fn on_response(&mut self, mut completion: Completion) -> Result<HostStep<'static>, WireFault> {
        let kind = PduKind::CapsuleResp;
        let cid = completion.cid;
        let flight = self.flight_mut(cid);
        let flight = *flight.ok_or(WireFault::BadField { kind, at: 20 })?;
        let event = if completion.status.is_success() {
            Event::Succeeded
        } else {
            Event::Failed
        };
        let after = flight.stage.after(event);
        after.ok_or(WireFault::Unexpected { kind })?;
        if !self.heads.on_completed(flight.mark, &completion) {
            return Err(WireFault::BadField { kind, at: 16 });
        }
        self.release(cid);
        if flight.is_corrupt {
            completion.status = Status::TRANSIENT_TRANSPORT_ERROR;
        }
        Ok(HostStep::Completed {
            cid,
            completion,
            data_bytes: flight.moved_bytes,
        })
    }

    /// Data come in order, for a command that asked for them, and not beyond its length; nor after what was said to be
    /// the last of them, which is said where they end.
    fn on_data_header(&mut self, header: &DataHeader) -> Result<(), WireFault> {
        let kind = PduKind::C2hData;
        let flight = self.flight_mut(header.cid);
        let flight = flight.ok_or(WireFault::BadField { kind, at: 8 })?;
        if flight.direction != Direction::ToHost {
            return Err(WireFault::BadField { kind, at: 8 });
        }
        if flight.stage != Stage::Reading {
            return Err(WireFault::Unexpected { kind });
        }
        if header.offset_bytes != flight.moved_bytes {
            return Err(WireFault::DataOutOfRange { kind, at: 12 });
        }
        let end_bytes = header.offset_bytes.checked_add(header.len_bytes);
        if end_bytes.is_none_or(|end| end > flight.len_bytes) {
            return Err(WireFault::DataOutOfRange { kind, at: 16 });
        }
        let is_end = end_bytes == Some(flight.len_bytes);
        if is_end != header.is_last && (is_end || header.is_success) {
            return Err(WireFault::BadField { kind, at: 1 });
        }
        let event = match (header.is_last, is_end) {
            (true, true) => Event::DataLast,
            (true, false) => Event::DataShort,
            (false, _) => Event::Data,
        };
        let after = flight.stage.after(event);
        flight.stage = after.ok_or(WireFault::Unexpected { kind })?;
        self.arriving = Some(Arriving {
            cid: header.cid,
            base_bytes: header.offset_bytes,
            is_success: header.is_success,
        });
        Ok(())
    }

    /// A controller asks for data in order, of a command that has some, and not beyond its length.
    fn on_r2t(&mut self, r2t: R2t) -> Result<(), WireFault> {
        let kind = PduKind::R2t;
        let flight = self.flight_mut(r2t.cid);
        let flight = flight.ok_or(WireFault::BadField { kind, at: 8 })?;
        if flight.direction != Direction::ToController {
            return Err(WireFault::BadField { kind, at: 8 });
        }
        if r2t.offset_bytes != flight.moved_bytes {
            return Err(WireFault::DataOutOfRange { kind, at: 12 });
        }
        let end_bytes = r2t.offset_bytes.checked_add(r2t.len_bytes);
        let end_bytes = end_bytes.filter(|&end| end <= flight.len_bytes);
        let end_bytes = end_bytes.ok_or(WireFault::DataOutOfRange { kind, at: 16 })?;
        let event = if end_bytes == flight.len_bytes {
            Event::AskedRest
        } else {
            Event::Asked
        };
        let after = flight.stage.after(event);
        flight.stage = after.ok_or(WireFault::Unexpected { kind })?;
        flight.moved_bytes = end_bytes;
        assert!(
            self.requested.is_none(),
            "one request is answered at a time"
        );
        self.requested = Some(r2t);
        Ok(())
    }

    fn on_arrived<'i>(&mut self, offset_bytes: u32, bytes: &'i [u8]) -> Option<HostStep<'i>> {
        let arriving = self.arriving.expect("data follow their header");
        let count = u32::try_from(bytes.len()).expect("a PDU's data fit 32 bits");
        let flight = self
            .flight_mut(arriving.cid)
            .expect("data are of a command in flight");
        flight.moved_bytes += count;
        (!flight.is_given_up).then_some(HostStep::Data {
            cid: arriving.cid,
            offset_bytes: arriving.base_bytes + offset_bytes,
            bytes,
        })
    }

    fn lend(&mut self, offset_bytes: u32, len_bytes: u32) -> HostStep<'static> {
        let arriving = self.arriving.expect("data follow their header");
        let flight = self
            .flight_mut(arriving.cid)
            .expect("data are of a command in flight");
        if flight.is_given_up {
            return HostStep::NeedBytes;
        }
        self.lent = Some(arriving.cid);
        HostStep::NeedData {
            cid: arriving.cid,
            offset_bytes: arriving.base_bytes + offset_bytes,
            len_bytes,
        }
    }

    fn on_data_end(&mut self, verdict: Verdict) -> Option<HostStep<'static>> {
        let Arriving {
            cid, is_success, ..
        } = self.arriving.take().expect("data follow their header");
        let flight = self
            .flight_mut(cid)
            .expect("data are of a command in flight");
        flight.is_corrupt |= verdict != Verdict::Intact;
        if !is_success {
            return None;
        }
        let flight = *flight;
        let after = flight.stage.after(Event::Succeeded);
        assert_eq!(
            after,
            Some(Stage::Free),
            "a success comes with the last data"
        );
        self.heads.on_completed_silently();
        self.release(cid);
        let status = if flight.is_corrupt {
            Status::TRANSIENT_TRANSPORT_ERROR
        } else {
            Status::SUCCESS
        };
        Some(HostStep::Completed {
            cid,
            completion: Completion {
                result: 0,
                head: 0,
                queue_id: 0,
                cid,
                status,
            },
            data_bytes: flight.moved_bytes,
        })
    }

    fn flight_mut(&mut self, cid: u16) -> Option<&mut Flight> {
        let slot = self.slots.get_mut(Self::slot_of(cid))?;
        if u16::from(slot.uses) << SLOT_BITS != cid & !SLOT_MASK {
            return None;
        }
        slot.flight.as_mut()
    }

    /// Frees the slot of a command that has ended.
    fn release(&mut self, cid: u16) {
        let index = cid & SLOT_MASK;
        self.slots[usize::from(index)].flight = None;
        self.free.push(index);
    }

    fn end(&mut self, fault: WireFault) -> WireFault {
        self.state = State::Ended;
        self.receiver.fail(fault);
        fault
    }
}

/// Appends a terminate request with the header that it is about.
pub(crate) fn append_term_req(pdu: Pdu, about: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    Framing::INITIAL.append_header(out, &pdu, 0);
    out.extend_from_slice(about);
    let len = u32::try_from(out.len() - start).expect("a header is short");
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

#[cfg(test)]
mod tests;
