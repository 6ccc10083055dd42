//! One connection of a controller: the commands to carry out.

use crate::command::{Command, Direction, Sgl};
use crate::completion::{Completion, HEAD_WITHOUT_FLOW_CONTROL, Status};
use crate::fabrics::QUEUE_ENTRIES_MAX;
use crate::host::queue::append_term_req;
use crate::pdu::{
    DataHeader, Digests, Framing, H2C_DATA_BYTES_MIN, IcReq, IcResp, Pdu, PduKind, R2t, Role,
    WireFault,
};
use crate::receiver::{Receiver, Step, Verdict};

use super::cids::Cids;
use super::stage::{Event, Stage};

const SLOT_BITS: u32 = 10;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;
/// Bits of a tag that tell the requests of one command apart.
const REQUEST_MASK: u32 = (1 << (u16::BITS - SLOT_BITS)) - 1;
/// Entries of a queue before a Connect has said how many.
const ENTRIES_BEFORE_CONNECT: u16 = 1;

const _: () = assert!(QUEUE_ENTRIES_MAX as u32 <= 1 << SLOT_BITS);

/// How a controller wants its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerOptions {
    /// Digests that it can do; the host chooses among them.
    pub digests: Digests,
    /// Most data in one H2CData PDU, in bytes; at least [`H2C_DATA_BYTES_MIN`].
    pub h2c_data_bytes_max: u32,
    /// Most data asked for by one R2T, in bytes.
    pub r2t_bytes_max: u32,
    /// Most data in a capsule, in bytes.
    pub in_capsule_bytes_max: u32,
}

/// What the bytes of a host mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerStep<'a> {
    /// The connection is set up.
    Open(IcReq),
    /// A command. Its data, if they came with it, come with the next steps, and it is to be carried
    /// out after [`ControllerStep::DataEnd`]; with `data_len_bytes` 0, at once.
    Command {
        /// Where it is kept until it is completed.
        slot: u16,
        /// The command.
        command: Command,
        /// Length of the data that follow it, in bytes.
        data_len_bytes: u32,
    },
    /// Data of a command, to be placed before the next step.
    Data {
        /// The command.
        slot: u16,
        /// First byte within the command's data.
        offset_bytes: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The input is spent in the middle of a command's data: give more of it, or receive up to
    /// `len_bytes` into the command's own memory and call [`ControllerQueue::on_data`].
    NeedData {
        /// The command.
        slot: u16,
        /// First missing byte within the command's data.
        offset_bytes: u32,
        /// Bytes that are missing.
        len_bytes: u32,
    },
    /// All data of a command are there: carry it out, or complete it as a transient transport
    /// error if they were damaged underway.
    DataEnd {
        /// The command.
        slot: u16,
        /// Whether they may be used.
        is_intact: bool,
    },
    /// The input is spent. Give more of it.
    NeedBytes,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    stage: Stage,
    cid: u16,
    direction: Direction,
    len_bytes: u32,
    /// Arrived, or sent to the host.
    moved_bytes: u32,
    /// Asked for by R2Ts.
    asked_bytes: u32,
    is_corrupt: bool,
    /// How it ends, without being carried out.
    refusal: Option<Status>,
}

impl Slot {
    const FREE: Self = Self {
        stage: Stage::Free,
        cid: 0,
        direction: Direction::None,
        len_bytes: 0,
        moved_bytes: 0,
        asked_bytes: 0,
        is_corrupt: false,
        refusal: None,
    };

    #[track_caller]
    fn advance(&mut self, event: Event) {
        let after = self.stage.after(event);
        self.stage = after.expect("a command's stage allows what is done to it");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    AwaitingIcReq,
    Open,
    Ended,
}

/// The data that a PDU is bringing.
#[derive(Clone, Copy, Debug)]
struct Arriving {
    slot: u16,
    base_bytes: u32,
}

/// One connection of a controller.
#[derive(Debug)]
pub struct ControllerQueue {
    options: ControllerOptions,
    state: State,
    receiver: Receiver,
    framing: Framing,
    r2t_max: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Ids of commands that have not been completed.
    cids: Cids,
    entries: u16,
    head: u16,
    has_flow_control: bool,
    arriving: Option<Arriving>,
}

impl ControllerQueue {
    /// A connection on which nothing has come.
    ///
    /// # Panics
    /// If the options allow less data than the wire does, or R2Ts for nothing.
    #[must_use]
    pub fn new(options: ControllerOptions) -> Self {
        assert!(
            options.h2c_data_bytes_max >= H2C_DATA_BYTES_MIN && options.r2t_bytes_max > 0,
            "limits that the wire allows"
        );
        Self {
            options,
            state: State::AwaitingIcReq,
            receiver: Receiver::new(Role::Controller),
            framing: Framing::INITIAL,
            r2t_max: 1,
            cids: Cids::new(),
            slots: vec![Slot::FREE],
            free: vec![0],
            entries: ENTRIES_BEFORE_CONNECT,
            head: 0,
            has_flow_control: true,
            arriving: None,
        }
    }

    /// A Connect has said how many entries the queue has, and whether the host wants to know its
    /// head. To be called before the Connect is completed.
    ///
    /// # Panics
    /// If there are fewer than 2 or more than [`QUEUE_ENTRIES_MAX`], or it was called before.
    pub fn connect(&mut self, entries: u16, has_flow_control: bool) {
        assert!((2..=QUEUE_ENTRIES_MAX).contains(&entries), "checked before");
        assert_eq!(
            self.entries, ENTRIES_BEFORE_CONNECT,
            "a queue is connected once"
        );
        self.slots.resize(usize::from(entries), Slot::FREE);
        self.free.splice(0..0, (1..entries).rev());
        self.entries = entries;
        self.has_flow_control = has_flow_control;
        // The Connect itself was the first entry.
        self.head = 1;
    }

    /// How what is sent is framed: for the digest of data.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        self.framing
    }

    /// Commands that have not been completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a read may end with its data, without a completion.
    #[must_use]
    pub const fn may_skip_completion(&self) -> bool {
        !self.has_flow_control
    }

    /// The id that the host gave to the command in `slot`.
    #[must_use]
    pub fn cid_of(&self, slot: u16) -> u16 {
        self.slots[usize::from(slot)].cid
    }

    /// Takes from the front of `input` up to the next thing that the caller has to do. What the
    /// machine itself has to say is appended to `out`.
    ///
    /// # Errors
    /// [`WireFault`], from then on for ever: send [`ControllerQueue::append_term_req`] and close.
    pub fn step<'i>(
        &mut self,
        input: &mut &'i [u8],
        out: &mut Vec<u8>,
    ) -> Result<ControllerStep<'i>, WireFault> {
        loop {
            let step = match self.receiver.step(input) {
                Ok(step) => step,
                Err(fault) => return Err(self.end(fault)),
            };
            let answer = match step {
                Step::NeedBytes => return Ok(ControllerStep::NeedBytes),
                Step::Pdu {
                    pdu,
                    data_len_bytes,
                } => match self.on_pdu(&pdu, data_len_bytes, out) {
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
                Step::DataEnd(verdict) => self.on_data_end(verdict, out),
            };
            if let Some(step) = answer {
                return Ok(step);
            }
        }
    }

    /// Tells of data that were received straight into a command's memory after
    /// [`ControllerStep::NeedData`], in front of the next step.
    ///
    /// # Panics
    /// If they are more than were missing.
    pub fn on_data(&mut self, bytes: &[u8]) {
        self.receiver.on_data(bytes);
        let arriving = self.arriving.expect("data follow their header");
        let count = u32::try_from(bytes.len()).expect("no more than was missing");
        self.slots[usize::from(arriving.slot)].moved_bytes += count;
    }

    /// Asks for the data of a command, as much at a time as host and options allow. They come with
    /// the next steps.
    ///
    /// # Panics
    /// If the command is not being carried out, has no data to bring, or has brought them.
    pub fn request_data(&mut self, slot: u16, out: &mut Vec<u8>) {
        let entry = &mut self.slots[usize::from(slot)];
        assert!(
            entry.direction == Direction::ToController && entry.moved_bytes < entry.len_bytes,
            "a command with data to bring"
        );
        entry.advance(Event::DataAsked);
        self.append_requests(slot, out);
    }

    /// Appends the header of the next `len_bytes` of a command's data to the host. They follow at
    /// once, and then [`Framing::append_data_digest`]. With `completes` they are the last, and the
    /// command has succeeded and is over.
    ///
    /// # Panics
    /// If that is more than the command asked for, or `completes` is not allowed here.
    pub fn send_data(&mut self, slot: u16, len_bytes: u32, completes: bool, out: &mut Vec<u8>) {
        let may_skip = self.may_skip_completion();
        let entry = &mut self.slots[usize::from(slot)];
        entry.advance(Event::DataSent);
        assert_eq!(
            entry.direction,
            Direction::ToHost,
            "a command with data to fetch"
        );
        let offset_bytes = entry.moved_bytes;
        assert!(
            len_bytes <= entry.len_bytes - offset_bytes,
            "no more than the command asked for"
        );
        entry.moved_bytes += len_bytes;
        let is_last = entry.moved_bytes == entry.len_bytes;
        assert!(
            !completes || is_last && may_skip,
            "a completion may be left out"
        );
        let header = DataHeader {
            cid: entry.cid,
            ttag: 0,
            offset_bytes,
            len_bytes,
            is_last,
            is_success: completes,
        };
        self.framing
            .append_header(out, &Pdu::C2hData(header), len_bytes);
        if completes {
            self.release(slot);
        }
    }

    /// Completes a command.
    ///
    /// # Panics
    /// If it is not being carried out.
    pub fn complete(&mut self, slot: u16, status: Status, result: u64, out: &mut Vec<u8>) {
        let head = if self.has_flow_control {
            self.head
        } else {
            HEAD_WITHOUT_FLOW_CONTROL
        };
        let completion = Completion {
            result,
            head,
            queue_id: 0,
            cid: self.slots[usize::from(slot)].cid,
            status,
        };
        self.release(slot);
        self.framing
            .append_header(out, &Pdu::Response(completion), 0);
    }

    /// Whether the connection ends at a good point: between PDUs. Commands that are being carried
    /// out have nobody to answer to.
    #[must_use]
    pub const fn is_between_pdus(&self) -> bool {
        self.receiver.is_between_pdus()
    }

    /// Appends what to say to the host before closing because of `fault`.
    pub fn append_term_req(&self, fault: &WireFault, out: &mut Vec<u8>) {
        if let Some(request) = fault.term_req() {
            append_term_req(Pdu::C2hTermReq(request), self.receiver.last_header(), out);
        }
    }

    fn on_pdu(
        &mut self,
        pdu: &Pdu,
        data_len_bytes: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<ControllerStep<'static>>, WireFault> {
        match (self.state, pdu) {
            (_, Pdu::H2cTermReq(request)) => Err(WireFault::Terminated(*request)),
            (State::AwaitingIcReq, Pdu::IcReq(request)) => self.on_ic_req(request, out).map(Some),
            (State::Open, Pdu::Command(command)) => self.on_command(command, data_len_bytes, out),
            (State::Open, Pdu::H2cData(header)) => {
                self.on_data_header(header)?;
                Ok(None)
            }
            _ => Err(WireFault::Unexpected { kind: pdu.kind() }),
        }
    }

    fn on_ic_req(
        &mut self,
        request: &IcReq,
        out: &mut Vec<u8>,
    ) -> Result<ControllerStep<'static>, WireFault> {
        if request.version != 0 {
            return Err(WireFault::Unsupported {
                kind: PduKind::IcReq,
                at: 8,
            });
        }
        let digests = request.digests.and(self.options.digests);
        let response = IcResp {
            version: 0,
            align_dwords: 0,
            digests,
            h2c_data_bytes_max: self.options.h2c_data_bytes_max,
        };
        self.framing.append_header(out, &Pdu::IcResp(response), 0);
        self.framing = Framing {
            digests,
            align_dwords: request.align_dwords,
        };
        self.r2t_max = request.r2t_max.saturating_add(1);
        self.receiver.open(self.framing);
        self.state = State::Open;
        Ok(ControllerStep::Open(*request))
    }

    fn on_command(
        &mut self,
        command: &Command,
        data_len_bytes: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<ControllerStep<'static>>, WireFault> {
        let kind = PduKind::CapsuleCmd;
        if data_len_bytes > self.options.in_capsule_bytes_max {
            return Err(WireFault::LimitExceeded { kind });
        }
        if self.cids.has(command.cid) {
            return Err(WireFault::BadField { kind, at: 10 });
        }
        let index = self.free.pop();
        let slot = index.ok_or(WireFault::LimitExceeded { kind })?;
        self.cids.flip(command.cid);
        if self.entries > ENTRIES_BEFORE_CONNECT {
            self.head = (self.head + 1) % self.entries;
        }
        let refusal = check_data(command, data_len_bytes).err();
        let entry = &mut self.slots[usize::from(slot)];
        *entry = Slot {
            stage: Stage::Free,
            cid: command.cid,
            direction: command.direction(),
            len_bytes: command.sgl.len_bytes(),
            refusal,
            ..Slot::FREE
        };
        if data_len_bytes == 0 {
            entry.advance(Event::Bare);
            if let Some(status) = refusal {
                self.complete(slot, status, 0, out);
                return Ok(None);
            }
        } else {
            entry.advance(Event::WithData);
            self.arriving = Some(Arriving {
                slot,
                base_bytes: 0,
            });
            if refusal.is_some() {
                return Ok(None);
            }
        }
        Ok(Some(ControllerStep::Command {
            slot,
            command: *command,
            data_len_bytes,
        }))
    }

    /// Data come in order, for the R2T that is next, and end with it.
    fn on_data_header(&mut self, header: &DataHeader) -> Result<(), WireFault> {
        let kind = PduKind::H2cData;
        let bad = |at| WireFault::BadField { kind, at };
        let slot = header.ttag & SLOT_MASK;
        let entry = self.slots.get(usize::from(slot)).ok_or(bad(10))?;
        if entry.stage != Stage::Transfer || self.tag_of(slot, entry.moved_bytes) != header.ttag {
            return Err(bad(10));
        }
        if header.cid != entry.cid {
            return Err(bad(8));
        }
        if header.len_bytes > self.options.h2c_data_bytes_max {
            return Err(WireFault::LimitExceeded { kind });
        }
        if header.offset_bytes != entry.moved_bytes {
            return Err(WireFault::DataOutOfRange { kind, at: 12 });
        }
        let request_end_bytes = self.request_end_bytes(entry);
        let end_bytes = header.offset_bytes.checked_add(header.len_bytes);
        if end_bytes.is_none_or(|end| end > request_end_bytes) {
            return Err(WireFault::DataOutOfRange { kind, at: 16 });
        }
        if header.is_last != (end_bytes == Some(request_end_bytes)) {
            return Err(bad(1));
        }
        self.arriving = Some(Arriving {
            slot,
            base_bytes: header.offset_bytes,
        });
        Ok(())
    }

    fn on_arrived<'i>(&mut self, offset_bytes: u32, bytes: &'i [u8]) -> Option<ControllerStep<'i>> {
        let Arriving { slot, base_bytes } = self.arriving.expect("data follow their header");
        let entry = &mut self.slots[usize::from(slot)];
        entry.moved_bytes += u32::try_from(bytes.len()).expect("a PDU's data fit 32 bits");
        entry.refusal.is_none().then_some(ControllerStep::Data {
            slot,
            offset_bytes: base_bytes + offset_bytes,
            bytes,
        })
    }

    fn lend(&self, offset_bytes: u32, len_bytes: u32) -> ControllerStep<'static> {
        let Arriving { slot, base_bytes } = self.arriving.expect("data follow their header");
        if self.slots[usize::from(slot)].refusal.is_some() {
            return ControllerStep::NeedBytes;
        }
        ControllerStep::NeedData {
            slot,
            offset_bytes: base_bytes + offset_bytes,
            len_bytes,
        }
    }

    fn on_data_end(
        &mut self,
        verdict: Verdict,
        out: &mut Vec<u8>,
    ) -> Option<ControllerStep<'static>> {
        let Arriving { slot, .. } = self.arriving.take().expect("data follow their header");
        let entry = &mut self.slots[usize::from(slot)];
        entry.is_corrupt |= verdict != Verdict::Intact;
        let is_intact = !entry.is_corrupt;
        if let Some(status) = entry.refusal {
            entry.advance(Event::DataComplete);
            self.complete(slot, status, 0, out);
            return None;
        }
        if entry.moved_bytes < entry.len_bytes {
            self.append_requests(slot, out);
            return None;
        }
        entry.advance(Event::DataComplete);
        Some(ControllerStep::DataEnd { slot, is_intact })
    }

    /// Asks for as much as may be asked for at a time.
    fn append_requests(&mut self, slot: u16, out: &mut Vec<u8>) {
        loop {
            let entry = self.slots[usize::from(slot)];
            let step_bytes = self.options.r2t_bytes_max;
            let under_way = entry.asked_bytes.div_ceil(step_bytes) - entry.moved_bytes / step_bytes;
            if entry.asked_bytes == entry.len_bytes || under_way >= self.r2t_max {
                return;
            }
            let len_bytes = step_bytes.min(entry.len_bytes - entry.asked_bytes);
            let r2t = R2t {
                cid: entry.cid,
                ttag: self.tag_of(slot, entry.asked_bytes),
                offset_bytes: entry.asked_bytes,
                len_bytes,
            };
            self.framing.append_header(out, &Pdu::R2t(r2t), 0);
            self.slots[usize::from(slot)].asked_bytes += len_bytes;
        }
    }

    /// The tag of the request that covers `offset_bytes`.
    fn tag_of(&self, slot: u16, offset_bytes: u32) -> u16 {
        let request = (offset_bytes / self.options.r2t_bytes_max) & REQUEST_MASK;
        u16::try_from(request << SLOT_BITS).expect("6 bits above 10") | slot
    }

    /// Where the request ends that the next byte belongs to.
    fn request_end_bytes(&self, entry: &Slot) -> u32 {
        let step_bytes = self.options.r2t_bytes_max;
        let start_bytes = entry.moved_bytes / step_bytes * step_bytes;
        start_bytes
            .saturating_add(step_bytes)
            .min(entry.asked_bytes)
    }

    fn release(&mut self, slot: u16) {
        let entry = &mut self.slots[usize::from(slot)];
        entry.advance(Event::Completed);
        let cid = entry.cid;
        self.cids.flip(cid);
        self.free.push(slot);
    }

    fn end(&mut self, fault: WireFault) -> WireFault {
        self.state = State::Ended;
        self.receiver.fail(fault);
        fault
    }
}

/// Whether a command's descriptor fits the data that came with it (NVMe/TCP 1.0, "Data Transfers").
fn check_data(command: &Command, data_len_bytes: u32) -> Result<(), Status> {
    if !command.has_sgl() {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    match command.sgl {
        Sgl::Other(_) => Err(Status::SGL_TYPE_INVALID.do_not_retry()),
        Sgl::InCapsule { offset_bytes, .. } if offset_bytes != 0 => {
            Err(Status::SGL_OFFSET_INVALID.do_not_retry())
        }
        Sgl::InCapsule { len_bytes, .. }
            if len_bytes != data_len_bytes || command.direction() != Direction::ToController =>
        {
            Err(Status::DATA_LENGTH_INVALID.do_not_retry())
        }
        Sgl::None | Sgl::Transport { .. } if data_len_bytes > 0 => {
            Err(Status::DATA_LENGTH_INVALID.do_not_retry())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
