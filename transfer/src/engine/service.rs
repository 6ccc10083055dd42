//! The answering side of an engine.

use std::rc::Rc;
use std::sync::Arc;

use lunette_runtime::net::Pin;
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::codec::{Reader, Writer};
use lunette_transfer_proto::engine::message::{
    BodyFault, Introduction, Note, Operation, Place, Refusal, finish, read_name, read_note,
    read_places, read_token,
};
use lunette_transfer_proto::engine::one_sided::{
    Pairing, read_segment, write_adapters, write_windows,
};
use lunette_transfer_proto::engine::segment::Way;
use lunette_transfer_proto::engine::siblings::write_ports;
use lunette_transfer_proto::hello::Agreement;

use super::Inner;
use super::files::{self, FileWrite, Piece};
use super::peer::asking_peer;
use super::rdma::Asks;
use super::registry::InUse;
use super::sessions::{Attached, Link};
use crate::frames::Payload;
use crate::room::Room;
use crate::server::{
    Answer, Closer, ConnectionId, Intake, Later, PayloadOutcome, RequestHead, Response, Service,
};

/// A request that is refused: why, and for which of its places.
type Refused = (Refusal, usize);

/// A write whose bytes arrive.
#[derive(Debug)]
pub(super) struct PendingWrite {
    link: Link,
    note: Option<(u64, Vec<u8>)>,
    /// What of it goes to files.
    files: Option<FileWrite>,
    in_use: Vec<InUse>,
}

/// Answers peers.
#[derive(Clone, Debug)]
pub(super) struct EngineService {
    inner: Rc<Inner>,
    /// Which of the engine's listeners it serves.
    listener: usize,
}

impl EngineService {
    pub(super) const fn new(inner: Rc<Inner>, listener: usize) -> Self {
        Self { inner, listener }
    }

    const fn link(&self, connection: ConnectionId) -> Link {
        (self.listener, connection)
    }

    fn take(&self, request: RequestHead<'_>) -> Result<Intake<PendingWrite>, Refused> {
        let malformed = (Refusal::Malformed, 0);
        let op = Operation::from_wire(request.op).ok_or(malformed)?;
        if op != Operation::Write && request.payload_len_bytes > 0 {
            return Err(malformed);
        }
        match op {
            Operation::Open => self.open(request.body),
            Operation::Find => self.find(request.body),
            Operation::Read => self.read(request),
            Operation::Write => self.write(request),
            Operation::Notify => self.notify(request),
            Operation::Fence => self.fence(request),
            Operation::Introduce => self.introduce(request.body),
            Operation::Redeem => self.redeem(request),
            Operation::Siblings => self.siblings(request.body),
            Operation::Adapters => self.adapters(request.body),
            Operation::Pair => self.pair(request, false),
            Operation::PairTelling => self.pair(request, true),
            Operation::Windows => self.windows(request),
        }
    }

    fn open(&self, body: &[u8]) -> Result<Intake<PendingWrite>, Refused> {
        let name = read_name(body).map_err(no_sense)?;
        let found = self.inner.registry.borrow().open(name);
        let descriptor = found.map_err(|refusal| (refusal, 0))?;
        let mut body = Vec::new();
        descriptor.encode(&mut body);
        Ok(answer(body, None))
    }

    fn find(&self, body: &[u8]) -> Result<Intake<PendingWrite>, Refused> {
        let mut reader = Reader::new(body);
        let read = |reader: &mut Reader<'_>| {
            let range = (reader.u64()?, reader.u64()?);
            finish(reader)?;
            Ok::<_, BodyFault>(range)
        };
        let (start, len_bytes) = read(&mut reader).map_err(no_sense)?;
        let found = self.inner.registry.borrow().open_at(start, len_bytes);
        let (descriptor, offset) = found.map_err(|refusal| (refusal, 0))?;
        let mut body = Vec::new();
        descriptor.encode(&mut body);
        Writer::new(&mut body).u64(offset);
        Ok(answer(body, None))
    }

    fn read(&self, request: RequestHead<'_>) -> Result<Intake<PendingWrite>, Refused> {
        let places = read_places(&mut Reader::new(request.body)).map_err(no_sense)?;
        let link = self.link(request.connection);
        let (pieces, in_use, len_bytes) = self.reach(link, Way::Read, places)?;
        if len_bytes == 0 {
            return Ok(answer(Vec::new(), None));
        }
        let memory = match Piece::into_memory(pieces) {
            Ok(memory) => memory,
            Err(pieces) => {
                return Ok(Intake::Later(self.read_files(pieces, in_use, len_bytes)));
            }
        };
        self.inner.counts.served(Way::Read, len_bytes);
        let payload = Payload::exposed(memory).pinned(Pin::new(in_use));
        Ok(answer(Vec::new(), Some(payload)))
    }

    fn write(&self, request: RequestHead<'_>) -> Result<Intake<PendingWrite>, Refused> {
        let mut reader = Reader::new(request.body);
        let note = read_note(&mut reader).map_err(no_sense)?;
        let note = note.map(|Note { id, bytes }| (id, bytes.to_vec()));
        let places = read_places(&mut reader).map_err(no_sense)?;
        let link = self.link(request.connection);
        let (pieces, in_use, len_bytes) = self.reach(link, Way::Write, places)?;
        if len_bytes != u64::from(request.payload_len_bytes) {
            return Err((Refusal::Malformed, 0));
        }
        let mut pending = PendingWrite {
            link,
            note,
            files: None,
            in_use,
        };
        if len_bytes == 0 {
            return Ok(Intake::Answer(self.written(link, pending.note, 0)));
        }
        let room = match Piece::into_memory(pieces) {
            Ok(memory) => Room::exposed(memory),
            Err(pieces) => {
                let files = FileWrite::begin(&self.inner.staging, pieces);
                pending
                    .files
                    .insert(files.ok_or((Refusal::Busy, 0))?)
                    .room()
            }
        };
        Ok(Intake::Receive { pending, room })
    }

    /// Reads pieces of which some are files', and sends them then.
    fn read_files(&self, pieces: Vec<Piece>, in_use: Vec<InUse>, len_bytes: u64) -> Later {
        let inner = Rc::clone(&self.inner);
        Later::new(async move {
            match files::read(Rc::clone(&inner.staging), pieces, in_use).await {
                Ok(payload) => {
                    inner.counts.served(Way::Read, len_bytes);
                    Response {
                        payload: Some(payload),
                        ..Response::default()
                    }
                }
                Err(refused) => {
                    inner.counts.refused();
                    refuse(refused)
                }
            }
        })
    }

    /// Writes what was received to files, also if its connection ends meanwhile.
    fn write_files(&self, files: FileWrite, pending: PendingWrite, len_bytes: u64) -> Later {
        let PendingWrite {
            link, note, in_use, ..
        } = pending;
        let landing = self.inner.sessions.borrow().land(link);
        let writing = spawn_local(async move {
            let landed = files.land().await;
            drop(in_use);
            // Who asked may not hear of it, and must not write there again.
            if matches!(landed, Err((Refusal::Detached, _))) {
                landing.may_be_late();
            }
            landed
        });
        let service = self.clone();
        Later::new(async move {
            let landed = writing.await.unwrap_or(Err((Refusal::Busy, 0)));
            match landed {
                Ok(()) => service.written(link, note, len_bytes),
                Err(refused) => {
                    service.inner.counts.refused();
                    refuse(refused)
                }
            }
        })
    }

    fn notify(&self, request: RequestHead<'_>) -> Result<Intake<PendingWrite>, Refused> {
        let mut reader = Reader::new(request.body);
        let note = read_note(&mut reader).map_err(no_sense)?;
        finish(&reader).map_err(no_sense)?;
        let Some(Note { id, bytes }) = note else {
            return Err((Refusal::Malformed, 0));
        };
        let delivered = self.deliver(self.link(request.connection), id, bytes.to_vec());
        delivered.map_err(|refusal| (refusal, 0))?;
        Ok(answer(Vec::new(), None))
    }

    fn fence(&self, request: RequestHead<'_>) -> Result<Intake<PendingWrite>, Refused> {
        let mut reader = Reader::new(request.body);
        let number = reader.u64().map_err(|_| (Refusal::Malformed, 0))?;
        finish(&reader).map_err(no_sense)?;
        self.inner.counts.fenced();
        let link = self.link(request.connection);
        let sessions = self.inner.sessions.borrow();
        // Who belongs to no session has nothing to end.
        let epoch = sessions.session(link);
        if let Some(epoch) = epoch {
            self.inner.rdma.acceptor().fence(epoch, number);
        }
        let here = epoch.and_then(|epoch| sessions.fence(epoch, number));
        let alive = Arc::clone(&self.inner.alive);
        let elsewhere = epoch.filter(|_| alive.siblings().are_several());
        if here.is_none() && elsewhere.is_none() {
            return Ok(answer(Vec::new(), None));
        }
        Ok(Intake::Later(Later::new(async move {
            if let Some(epoch) = elsewhere {
                let siblings = alive.siblings();
                siblings.fence_elsewhere(alive.core(), epoch, number).await;
            }
            if let Some(signal) = here {
                signal.raised().await;
            }
            Response::default()
        })))
    }

    fn siblings(&self, body: &[u8]) -> Result<Intake<PendingWrite>, Refused> {
        finish(&Reader::new(body)).map_err(no_sense)?;
        let mut body = Vec::new();
        write_ports(&mut body, &self.inner.alive.siblings().ports(self.listener));
        Ok(answer(body, None))
    }

    fn adapters(&self, body: &[u8]) -> Result<Intake<PendingWrite>, Refused> {
        finish(&Reader::new(body)).map_err(no_sense)?;
        let mut body = Vec::new();
        write_adapters(&mut body, self.inner.served_adapters());
        Ok(answer(body, None))
    }

    /// A step of a handshake of adapters. Who belongs to no session has nothing that would end its queue pair.
    fn pair(&self, request: RequestHead<'_>, tells: bool) -> Result<Intake<PendingWrite>, Refused> {
        let session = self.session(request.connection)?;
        let pairing = Pairing::decode(request.body).map_err(no_sense)?;
        let asks = Asks {
            session,
            connection: pairing.connection,
            adapter: pairing.adapter,
            message: pairing.message.to_vec(),
            tells,
        };
        let inner = Rc::clone(&self.inner);
        Ok(Intake::Later(Later::new(async move {
            match Rc::clone(&inner).pair(asks).await {
                Ok(body) => Response {
                    body,
                    ..Response::default()
                },
                Err(refusal) => {
                    inner.counts.refused();
                    refuse((refusal, 0))
                }
            }
        })))
    }

    fn windows(&self, request: RequestHead<'_>) -> Result<Intake<PendingWrite>, Refused> {
        self.session(request.connection)?;
        let segment = read_segment(request.body).map_err(no_sense)?;
        let inner = Rc::clone(&self.inner);
        Ok(Intake::Later(Later::new(async move {
            match Rc::clone(&inner).windows(segment).await {
                Ok(windows) => {
                    let mut body = Vec::new();
                    write_windows(&mut body, &windows);
                    Response {
                        body,
                        ..Response::default()
                    }
                }
                Err(refusal) => {
                    inner.counts.refused();
                    refuse((refusal, 0))
                }
            }
        })))
    }

    /// The session of a connection.
    fn session(&self, connection: ConnectionId) -> Result<u64, Refused> {
        let sessions = self.inner.sessions.borrow();
        let session = sessions.session(self.link(connection));
        session.ok_or((Refusal::Session, 0))
    }

    fn introduce(&self, body: &[u8]) -> Result<Intake<PendingWrite>, Refused> {
        let introduction = Introduction::decode(body).map_err(no_sense)?;
        let owner = self.inner.owner.as_ref().ok_or((Refusal::Elsewhere, 0))?;
        let whereabouts = owner.introduce(introduction, time::now());
        let mut body = Vec::new();
        whereabouts
            .map_err(|refusal| (refusal, 0))?
            .encode(&mut body);
        Ok(answer(body, None))
    }

    fn redeem(&self, request: RequestHead<'_>) -> Result<Intake<PendingWrite>, Refused> {
        let token = read_token(request.body).map_err(no_sense)?;
        let redeemed = self.inner.redeem(self.link(request.connection), token);
        let mut body = Vec::new();
        redeemed.map_err(|refusal| (refusal, 0))?.encode(&mut body);
        Ok(answer(body, None))
    }

    /// What places reach, who holds it, and how much it is in all.
    fn reach(
        &self,
        link: Link,
        way: Way,
        places: impl ExactSizeIterator<Item = Place>,
    ) -> Result<(Vec<Piece>, Vec<InUse>, u64), Refused> {
        let registry = self.inner.registry.borrow();
        let payload_bytes_max = u64::from(self.inner.options.payload_bytes_max);
        let mut pieces = Vec::with_capacity(places.len());
        let mut in_use = Vec::with_capacity(places.len());
        let mut sum_bytes = 0;
        for (index, place) in places.enumerate() {
            let len_bytes = u64::from(place.len_bytes);
            let at = place.offset_bytes;
            let reached = registry.reach(place.segment, way, at, len_bytes, |wanted, epoch| {
                self.inner.sessions.borrow().permit(link, wanted, epoch)
            });
            let (piece, hold) = reached.map_err(|refusal| (refusal, index))?;
            sum_bytes += len_bytes;
            if sum_bytes > payload_bytes_max {
                return Err((Refusal::Malformed, index));
            }
            pieces.push(piece);
            in_use.push(hold);
        }
        Ok((pieces, in_use, sum_bytes))
    }

    /// Bytes are in place; their notification follows.
    fn written(&self, link: Link, note: Option<(u64, Vec<u8>)>, len_bytes: u64) -> Response {
        self.inner.counts.served(Way::Write, len_bytes);
        let delivered = match note {
            Some((id, bytes)) => self.deliver(link, id, bytes),
            None => Ok(()),
        };
        match delivered {
            Ok(()) => Response::default(),
            Err(refusal) => refuse((refusal, 0)),
        }
    }

    fn deliver(&self, link: Link, id: u64, bytes: Vec<u8>) -> Result<(), Refusal> {
        let session = self.inner.sessions.borrow().session(link);
        let session = session.ok_or(Refusal::Session)?;
        let notices = &self.inner.alive.siblings().notices;
        notices.deliver(session, id, bytes)
    }
}

impl Service for EngineService {
    type Pending = PendingWrite;

    fn on_request(&self, request: RequestHead<'_>) -> Intake<PendingWrite> {
        self.take(request).unwrap_or_else(|refused| {
            self.inner.counts.refused();
            Intake::Answer(refuse(refused))
        })
    }

    fn on_payload(&self, mut pending: PendingWrite, room: Room, outcome: PayloadOutcome) -> Answer {
        let len_bytes = room.len() as u64;
        match (outcome, pending.files.take()) {
            (PayloadOutcome::Intact, Some(files)) => {
                Answer::Later(self.write_files(files, pending, len_bytes))
            }
            (PayloadOutcome::Intact, None) => {
                let PendingWrite { link, note, .. } = pending;
                Answer::Now(self.written(link, note, len_bytes))
            }
            (PayloadOutcome::Corrupt, _) => {
                self.inner.counts.corrupted();
                Answer::Now(refuse((Refusal::Corrupt, 0)))
            }
            (PayloadOutcome::Lost, _) => {
                self.inner.counts.torn();
                Answer::Now(Response::default())
            }
        }
    }

    fn on_agreed(&self, connection: ConnectionId, agreement: &Agreement, closer: Closer) {
        let number = Reader::new(&agreement.greeting).u64();
        let Ok(number) = number else {
            // No engine: it may ask, but it cannot be told apart, so it neither fences nor notifies.
            return;
        };
        let session = agreement.session_epoch;
        let link = self.link(connection);
        let alive = &self.inner.alive;
        let presence = alive
            .siblings()
            .presences
            .enter((session, asking_peer(number)));
        let attached = Attached::new(closer, presence);
        let mut sessions = self.inner.sessions.borrow_mut();
        if sessions.open(link, session, number, attached) {
            alive.siblings().notices.opened(alive.core(), session);
        }
    }

    fn on_ended(&self, connection: ConnectionId) {
        let ended = self.inner.sessions.borrow_mut().end(self.link(connection));
        if let Some(session) = ended {
            let alive = &self.inner.alive;
            alive.siblings().notices.ended(alive.core(), session);
        }
    }
}

fn no_sense(fault: BodyFault) -> Refused {
    tracing::debug!(%fault, "a request makes no sense");
    (Refusal::Malformed, 0)
}

const fn answer(body: Vec<u8>, payload: Option<Payload>) -> Intake<PendingWrite> {
    Intake::Answer(Response {
        status: 0,
        body,
        payload,
    })
}

fn refuse((refusal, place): Refused) -> Response {
    let mut body = Vec::new();
    Writer::new(&mut body).u16(u16::try_from(place).expect("places are bounded"));
    Response {
        status: refusal.to_wire(),
        body,
        payload: None,
    }
}
