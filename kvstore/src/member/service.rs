//! Requests to one core of a member.

use std::rc::Rc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    Answer as DirectoryAnswer, AnswerMessage, Ask, AskMessage, BytesReply, GetMessage, OpId,
    ReadMessage, ReplicaMessage, SeatMessage, WriteMessage,
};
use lunette_kvstore_proto::message::{MessageFault, NodeStat, Op, Status};
use lunette_kvstore_proto::owner::{Read, WriteAnswer};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::residence::NoRoom;
use lunette_kvstore_proto::shard::{EntryId, ShardStats};
use lunette_kvstore_proto::version::CopyInfo;
use lunette_runtime::net::Pin;
use lunette_runtime_core::ids::RequestId;
use lunette_transfer::{
    Answer, Intake, Later, Payload, PayloadOutcome, RequestHead, Response, Room, Service,
};

use super::bytes::{Carved, Frame};
use super::core::MemberCore;
use super::waiters::Waiting;
use crate::counting::{CoreReport, Counting, Counts, Outcome};

/// What members of clusters are asked.
const OPS: [Op; 8] = [
    Op::Stat,
    Op::Map,
    Op::Tell,
    Op::Ask,
    Op::Write,
    Op::Find,
    Op::Read,
    Op::Replicate,
];

/// Requests that may wait at one core; further ones are told that it is busy.
const WAITERS_MAX: usize = 64 * 1024;

/// What is kept while an object's bytes arrive.
pub(crate) enum Pending {
    Write {
        op: OpId,
        frame: Frame,
        crc32c: u32,
        waiting: Waiting<WriteAnswer>,
        counting: Counting,
    },
    Replica {
        frame: Frame,
        info: CopyInfo,
        namespace: NamespaceKind,
        key: Vec<u8>,
        counting: Counting,
    },
}

/// A read of a copy, over when its bytes have been sent.
struct CopyPin {
    core: Rc<MemberCore>,
    id: EntryId,
}

impl Drop for CopyPin {
    fn drop(&mut self) {
        self.core.bytes().borrow_mut().unpin(self.id);
    }
}

/// The service of one core.
pub(crate) struct MemberService {
    core: Rc<MemberCore>,
    counts: Rc<Counts>,
}

impl MemberService {
    pub(crate) fn new(core: Rc<MemberCore>) -> Self {
        Self {
            core,
            counts: Rc::default(),
        }
    }

    /// What it holds and has counted.
    pub(crate) fn stat(&self) -> NodeStat {
        let (owner, bytes) = (self.core.owner_stats(), self.core.bytes().borrow());
        let held = bytes.stats();
        let shard = ShardStats {
            entries: held.entries,
            resident_bytes: held.used_bytes - held.leaving_bytes,
            used_bytes: held.used_bytes,
            evictions: owner.evicted,
            evicted_bytes: self.core.copies.evicted_bytes.get(),
            removes: owner.ordered,
            ..self.counts.of_member()
        };
        let capacity_bytes = bytes.limits().high_watermark_bytes();
        let (state, lease_left) = self.core.standing();
        NodeStat {
            epoch: self.core.map().epoch().0,
            lease_left_ms: u64::try_from(lease_left.as_millis()).unwrap_or(u64::MAX),
            state_code: state.code(),
            ..self.counts.stat(shard, capacity_bytes)
        }
    }

    /// What it tells of itself.
    pub(crate) fn report(&self) -> CoreReport {
        CoreReport {
            core: self.core.seat().core,
            stat: self.stat(),
            requests: self.counts.requests(&OPS),
            copies_written: self.core.copies.written.get(),
            member: Some(self.core.member_report()),
        }
    }

    fn write(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = WriteMessage::decode(request.body).map_err(bad_request)?;
        self.check(message.to)?;
        if self.core.writes.len() >= WAITERS_MAX {
            return Err(Status::Busy);
        }
        let (op, mut waiting) = self
            .core
            .write(message.asker, message.request, message.ask());
        let Some(op) = op else {
            self.core.settle();
            return Ok(match waiting.try_take() {
                Some(answer) => Intake::Answer(written(counting, answer)),
                None => Intake::Later(write_ends(waiting, counting.waits())),
            });
        };
        let len_bytes = request.payload_len_bytes;
        let mut carved = self.carve(message.key, len_bytes);
        if matches!(carved, Err(NoRoom::Full { .. })) {
            self.counts.waits_for_room();
            // At once, where this core is the home of what has to leave.
            self.core.make_room();
            if let Some(answer) = waiting.try_take() {
                return Ok(Intake::Answer(written(counting, answer)));
            }
            carved = self.carve(message.key, len_bytes);
        }
        let carved = match carved {
            Ok(carved) => carved,
            Err(no_room) => {
                self.core.give_up(op);
                return Err(status_of(no_room));
            }
        };
        let crc32c = request.payload_crc32c;
        if len_bytes == 0 {
            let (frame, region) = carved.into_empty();
            self.core.bytes().borrow_mut().receive(op, frame);
            self.core.on_whole(op, frame.filled(region, crc32c));
            return Ok(Intake::Later(write_ends(waiting, counting.waits())));
        }
        let (frame, room) = carved.into_room();
        self.core.bytes().borrow_mut().receive(op, frame);
        self.core.settle();
        let pending = Pending::Write {
            op,
            frame,
            crc32c,
            waiting,
            counting: counting.waits(),
        };
        Ok(Intake::Receive { pending, room })
    }

    fn replicate(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = ReplicaMessage::decode(request.body).map_err(bad_request)?;
        self.check(message.to)?;
        let info = message.info;
        let found = (request.payload_len_bytes, request.payload_crc32c);
        if found != (info.len_bytes, info.crc32c) {
            return Err(Status::BadRequest);
        }
        // Nothing is evicted for a replica.
        let carved = self.carve(message.key, info.len_bytes).map_err(status_of)?;
        let key = message.key;
        if info.len_bytes == 0 {
            let (frame, region) = carved.into_empty();
            let whole = (frame, frame.filled(region, info.crc32c));
            self.core.on_replica(key, info, message.namespace, whole);
            return Ok(Intake::Answer(Response::default()));
        }
        let (frame, room) = carved.into_room();
        let pending = Pending::Replica {
            frame,
            info,
            namespace: message.namespace,
            key: key.bytes().to_vec(),
            counting: counting.waits(),
        };
        Ok(Intake::Receive { pending, room })
    }

    fn carve(&self, key: Key<'_>, len_bytes: u32) -> Result<Carved, NoRoom> {
        self.core.bytes().borrow_mut().carve(key, len_bytes)
    }

    /// The bytes, if this very core has them; else what the home says.
    fn find(&self, body: &[u8], counting: &mut Counting) -> Result<Intake<Pending>, Status> {
        let message = GetMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        let read = self.core.read(message.key, None, message.namespace);
        if let Some(response) = self.bytes_of(message.key, read) {
            return Ok(Intake::Answer(response));
        }
        let request = message.request;
        let ask = Ask::Lookup {
            request,
            key: message.key.fingerprint(),
            namespace: message.namespace,
            hold: None,
        };
        self.check_waiters()?;
        let mut waiting = self.core.ask(message.asker, message.epoch, ask);
        let status = Status::NotFound;
        Ok(match waiting.try_take() {
            Some(answer) => {
                counting.end(Outcome::from(&answer));
                Intake::Answer(answers(status, vec![(request, answer)]))
            }
            None => {
                let mut counting = counting.waits();
                Intake::Later(Later::new(async move {
                    let answer = waiting.await.unwrap_or(DirectoryAnswer::Busy);
                    counting.end(Outcome::from(&answer));
                    answers(status, vec![(request, answer)])
                }))
            }
        })
    }

    fn read(&self, body: &[u8]) -> Result<Response, Status> {
        let message = ReadMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        let read = (self.core).read(message.key, Some(message.version), message.namespace);
        match read {
            Read::Unavailable => Err(Status::Unavailable),
            read => self.bytes_of(message.key, read).ok_or(Status::NotFound),
        }
    }

    fn bytes_of(&self, key: Key<'_>, read: Read) -> Option<Response> {
        let Read::Served {
            place, is_cut_off, ..
        } = read
        else {
            return None;
        };
        let (id, extent) = self.core.bytes().borrow_mut().pin(place, key)?;
        let core = Rc::clone(&self.core);
        let pin = CopyPin { core, id };
        let value = extent.value();
        self.counts.sending(value.len());
        let payload = (!value.is_empty())
            .then(|| Payload::region(value, extent.crc32c).pinned(Pin::new(pin)));
        let mut body = Vec::new();
        let version = place.version;
        BytesReply {
            version,
            is_cut_off,
        }
        .encode(&mut body);
        Some(Response {
            status: Status::Ok.code(),
            body,
            payload,
        })
    }

    fn ask(&self, body: &[u8], counting: &mut Counting) -> Result<Intake<Pending>, Status> {
        let message = AskMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        self.check_waiters()?;
        let mut done = Vec::with_capacity(message.asks.len());
        let mut waiting: Vec<(RequestId, Waiting<DirectoryAnswer>)> = Vec::new();
        for ask in message.asks {
            let request = ask.request();
            let mut answer = self.core.ask(message.asker, message.epoch, ask);
            match answer.try_take() {
                Some(answer) => done.push((request, answer)),
                None => waiting.push((request, answer)),
            }
        }
        if waiting.is_empty() {
            return Ok(Intake::Answer(answers(Status::Ok, done)));
        }
        let mut counting = counting.waits();
        Ok(Intake::Later(Later::new(async move {
            for (request, answer) in waiting {
                let answer = answer.await.unwrap_or(DirectoryAnswer::Busy);
                done.push((request, answer));
            }
            counting.end(Outcome::Ok);
            answers(Status::Ok, done)
        })))
    }

    /// What another seat says; what there is for it at once goes back with the answer.
    fn tell(&self, body: &[u8]) -> Result<Response, Status> {
        let message = SeatMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        let from = message.from;
        self.core.on_told(message);
        let mut response = Response::default();
        if let Some(message) = self.core.post.take(from) {
            self.core.post.count_sent();
            message.encode(&mut response.body);
        }
        Ok(response)
    }

    fn map(&self, body: &[u8]) -> Result<Response, Status> {
        if !body.is_empty() {
            return Err(Status::BadRequest);
        }
        let map = self.core.map();
        if map.members().is_empty() {
            return Err(Status::Unavailable);
        }
        Ok(Response {
            body: map.encode(),
            ..Response::default()
        })
    }

    fn check(&self, to: Seat) -> Result<(), Status> {
        if to == self.core.seat() && !self.core.has_left() {
            Ok(())
        } else {
            Err(Status::WrongSeat)
        }
    }

    fn check_waiters(&self) -> Result<(), Status> {
        if self.core.asks.len() < WAITERS_MAX {
            Ok(())
        } else {
            Err(Status::Busy)
        }
    }

    fn stat_response(&self, body: &[u8]) -> Result<Response, Status> {
        if !body.is_empty() {
            return Err(Status::BadRequest);
        }
        let mut response = Response::default();
        self.stat().encode(&mut response.body);
        Ok(response)
    }
}

impl Service for MemberService {
    type Pending = Pending;

    fn on_request(&self, request: RequestHead<'_>) -> Intake<Pending> {
        let mut counting = self.counts.begin(request.op);
        let counted = &mut counting;
        let answered = match Op::try_from(request.op) {
            Ok(Op::Map) => self.map(request.body).map(Intake::Answer),
            Ok(Op::Tell) => self.tell(request.body).map(Intake::Answer),
            Ok(Op::Ask) => self.ask(request.body, counted),
            Ok(Op::Write) => self.write(&request, counted),
            Ok(Op::Find) => self.find(request.body, counted),
            Ok(Op::Read) => self.read(request.body).map(Intake::Answer),
            Ok(Op::Replicate) => self.replicate(&request, counted),
            Ok(Op::Stat) => self.stat_response(request.body).map(Intake::Answer),
            // Those of nodes that are no members.
            Ok(Op::Get | Op::Put | Op::Exists | Op::Remove) | Err(_) => Err(Status::Unsupported),
        };
        let answer = answered.unwrap_or_else(|status| Intake::Answer(refusal(status)));
        if let Intake::Answer(response) = &answer {
            counting.end_with(response.status);
        }
        answer
    }

    fn on_payload(&self, pending: Pending, room: Room, outcome: PayloadOutcome) -> Answer {
        let is_intact = outcome == PayloadOutcome::Intact;
        let refuse = |mut counting: Counting| {
            if outcome == PayloadOutcome::Corrupt {
                counting.end(Outcome::Corrupt);
            }
            refusal(Status::Corrupt).into()
        };
        let region = room.into_region();
        match pending {
            Pending::Write {
                op,
                frame,
                crc32c,
                waiting,
                mut counting,
            } => {
                if !is_intact {
                    drop(region);
                    self.core.on_lost(op);
                    return refuse(counting);
                }
                let extent = frame.filled(region, crc32c);
                self.counts.received(extent.len_bytes());
                self.core.on_whole(op, extent);
                Answer::Later(write_ends(waiting, counting.waits()))
            }
            Pending::Replica {
                frame, counting, ..
            } if !is_intact => {
                drop(region);
                self.core.bytes().borrow_mut().drop_replica(frame);
                refuse(counting)
            }
            Pending::Replica {
                frame,
                info,
                namespace,
                key,
                mut counting,
            } => {
                let key = Key::new(&key).expect("it was a key when it came");
                let whole = (frame, frame.filled(region, info.crc32c));
                self.counts.received(info.len_bytes);
                self.core.on_replica(key, info, namespace, whole);
                counting.end(Outcome::Ok);
                Response::default().into()
            }
        }
    }

    fn on_connections(&self, open: usize) {
        self.counts.set_connections(open);
    }
}

fn write_ends(waiting: Waiting<WriteAnswer>, mut counting: Counting) -> Later {
    Later::new(async move {
        let answer = waiting.await.unwrap_or(WriteAnswer::Interrupted);
        written(&mut counting, answer)
    })
}

fn written(counting: &mut Counting, answer: WriteAnswer) -> Response {
    counting.end(Outcome::from(&answer));
    let mut response = Response::default();
    answer.encode(&mut response.body);
    response
}

fn answers(status: Status, answers: Vec<(RequestId, DirectoryAnswer)>) -> Response {
    let mut body = Vec::new();
    AnswerMessage { answers }.encode(&mut body);
    Response {
        status: status.code(),
        body,
        payload: None,
    }
}

fn refusal(status: Status) -> Response {
    Response {
        status: status.code(),
        ..Response::default()
    }
}

const fn status_of(no_room: NoRoom) -> Status {
    match no_room {
        NoRoom::Full { .. } => Status::Full,
        NoRoom::TooLarge { .. } => Status::TooLarge,
    }
}

fn bad_request(fault: MessageFault) -> Status {
    tracing::debug!(%fault, "bad request");
    Status::BadRequest
}
