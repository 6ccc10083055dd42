//! Requests to one core of a member.

use std::cell::Cell;
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

/// Requests that may wait at one core; further ones are told that it is busy.
const WAITERS_MAX: usize = 64 * 1024;

/// What is kept while an object's bytes arrive.
pub(crate) enum Pending {
    Write {
        op: OpId,
        frame: Frame,
        crc32c: u32,
        waiting: Waiting<WriteAnswer>,
    },
    Replica {
        frame: Frame,
        info: CopyInfo,
        namespace: NamespaceKind,
        key: Vec<u8>,
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

/// What has been asked of one core.
#[derive(Debug, Default)]
struct Counts {
    gets: Cell<u64>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    puts: Cell<u64>,
    touches: Cell<u64>,
    aborts: Cell<u64>,
    connections: Cell<usize>,
}

impl Counts {
    fn add(counter: &Cell<u64>) {
        counter.set(counter.get() + 1);
    }

    /// A write has ended.
    fn on_written(&self, answer: &WriteAnswer) {
        match answer {
            WriteAnswer::Written { .. } => Self::add(&self.puts),
            WriteAnswer::Exists { .. } => Self::add(&self.touches),
            WriteAnswer::Aborted | WriteAnswer::Interrupted => Self::add(&self.aborts),
            WriteAnswer::Busy | WriteAnswer::Full | WriteAnswer::Unavailable => {}
        }
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
        let mut stat = NodeStat {
            connections: self.counts.connections.get() as u64,
            ..NodeStat::default()
        };
        let (owner, bytes) = (self.core.owner_stats(), self.core.bytes().borrow());
        let held = bytes.stats();
        let shard = ShardStats {
            entries: held.entries,
            resident_bytes: held.used_bytes - held.leaving_bytes,
            used_bytes: held.used_bytes,
            evictions: owner.evicted,
            refused_full: held.refused,
            removes: owner.ordered,
            gets: self.counts.gets.get(),
            hits: self.counts.hits.get(),
            misses: self.counts.misses.get(),
            puts: self.counts.puts.get(),
            touches: self.counts.touches.get(),
            aborts: self.counts.aborts.get(),
            ..ShardStats::default()
        };
        stat.add_shard(shard, bytes.limits().high_watermark_bytes());
        stat
    }

    fn write(&self, request: &RequestHead<'_>) -> Result<Intake<Pending>, Status> {
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
                Some(answer) => Intake::Answer(self.written(answer)),
                None => Intake::Later(self.write_ends(waiting)),
            });
        };
        let len_bytes = request.payload_len_bytes;
        let mut carved = self.carve(message.key, len_bytes);
        if matches!(carved, Err(NoRoom::Full { .. })) {
            // At once, where this core is the home of what has to leave.
            self.core.make_room();
            if let Some(answer) = waiting.try_take() {
                return Ok(Intake::Answer(self.written(answer)));
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
            return Ok(Intake::Later(self.write_ends(waiting)));
        }
        let (frame, room) = carved.into_room();
        self.core.bytes().borrow_mut().receive(op, frame);
        self.core.settle();
        let pending = Pending::Write {
            op,
            frame,
            crc32c,
            waiting,
        };
        Ok(Intake::Receive { pending, room })
    }

    fn replicate(&self, request: &RequestHead<'_>) -> Result<Intake<Pending>, Status> {
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
        };
        Ok(Intake::Receive { pending, room })
    }

    fn carve(&self, key: Key<'_>, len_bytes: u32) -> Result<Carved, NoRoom> {
        self.core.bytes().borrow_mut().carve(key, len_bytes)
    }

    /// The bytes, if this very core has them; else what the home says.
    fn find(&self, body: &[u8]) -> Result<Intake<Pending>, Status> {
        let message = GetMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        Counts::add(&self.counts.gets);
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
        let (status, counts) = (Status::NotFound, Rc::clone(&self.counts));
        let count = move |answer: &DirectoryAnswer| {
            if matches!(answer, DirectoryAnswer::Miss) {
                Counts::add(&counts.misses);
            }
        };
        Ok(match waiting.try_take() {
            Some(answer) => {
                count(&answer);
                Intake::Answer(answers(status, vec![(request, answer)]))
            }
            None => Intake::Later(Later::new(async move {
                let answer = waiting.await.unwrap_or(DirectoryAnswer::Busy);
                count(&answer);
                answers(status, vec![(request, answer)])
            })),
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
        Counts::add(&self.counts.hits);
        let core = Rc::clone(&self.core);
        let pin = CopyPin { core, id };
        let value = extent.value();
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

    fn ask(&self, body: &[u8]) -> Result<Intake<Pending>, Status> {
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
        Ok(Intake::Later(Later::new(async move {
            for (request, answer) in waiting {
                let answer = answer.await.unwrap_or(DirectoryAnswer::Busy);
                done.push((request, answer));
            }
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

    fn written(&self, answer: WriteAnswer) -> Response {
        written(&self.counts, answer)
    }

    fn write_ends(&self, waiting: Waiting<WriteAnswer>) -> Later {
        let counts = Rc::clone(&self.counts);
        Later::new(async move {
            let answer = waiting.await.unwrap_or(WriteAnswer::Interrupted);
            written(&counts, answer)
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
        let answered = match Op::try_from(request.op) {
            Ok(Op::Map) => self.map(request.body).map(Intake::Answer),
            Ok(Op::Tell) => self.tell(request.body).map(Intake::Answer),
            Ok(Op::Ask) => self.ask(request.body),
            Ok(Op::Write) => self.write(&request),
            Ok(Op::Find) => self.find(request.body),
            Ok(Op::Read) => self.read(request.body).map(Intake::Answer),
            Ok(Op::Replicate) => self.replicate(&request),
            Ok(Op::Stat) => self.stat_response(request.body).map(Intake::Answer),
            // Those of nodes that are no members.
            Ok(Op::Get | Op::Put | Op::Exists | Op::Remove) | Err(_) => Err(Status::Unsupported),
        };
        answered.unwrap_or_else(|status| Intake::Answer(refusal(status)))
    }

    fn on_payload(&self, pending: Pending, room: Room, outcome: PayloadOutcome) -> Answer {
        let is_intact = outcome == PayloadOutcome::Intact;
        let region = room.into_region();
        match pending {
            Pending::Write {
                op,
                frame,
                crc32c,
                waiting,
            } => {
                if !is_intact {
                    drop(region);
                    self.core.on_lost(op);
                    return refusal(Status::Corrupt).into();
                }
                self.core.on_whole(op, frame.filled(region, crc32c));
                Answer::Later(self.write_ends(waiting))
            }
            Pending::Replica { frame, .. } if !is_intact => {
                drop(region);
                self.core.bytes().borrow_mut().drop_replica(frame);
                refusal(Status::Corrupt).into()
            }
            Pending::Replica {
                frame,
                info,
                namespace,
                key,
            } => {
                let key = Key::new(&key).expect("it was a key when it came");
                let whole = (frame, frame.filled(region, info.crc32c));
                self.core.on_replica(key, info, namespace, whole);
                Response::default().into()
            }
        }
    }

    fn on_connections(&self, open: usize) {
        self.counts.connections.set(open);
    }
}

fn written(counts: &Counts, answer: WriteAnswer) -> Response {
    counts.on_written(&answer);
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
