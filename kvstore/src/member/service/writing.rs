//! Writes and replicas, whose bytes come with them, or are read where they lie.

use std::rc::Rc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::extent::ExtentLayout;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{OpId, PullWish, ReplicaMessage, WriteMessage};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::residence::NoRoom;
use lunette_kvstore_proto::striped::MANIFEST_BYTES;
use lunette_kvstore_proto::version::{CopyInfo, Form};
use lunette_runtime::time;
use lunette_transfer::{
    Answer, ConnectionId, Intake, Later, PayloadOutcome, RequestHead, Response, Room,
};

use super::{MemberService, Pending, WAITERS_MAX, damaged, version_of};

use crate::counting::{Counting, Outcome};
use crate::member::bytes::Frame;
use crate::member::core::MemberCore;
use crate::member::local::NotCarved;
use crate::member::pushing::Pulled;
use crate::member::waiters::Waiting;
use crate::refusals::{bad_request, refusal};
use crate::value::carved_bytes;

/// A write whose bytes arrive.
pub(crate) struct PendingWrite {
    op: OpId,
    frame: Frame,
    crc32c: u32,
    /// Its bytes say which parts the object has.
    is_manifest: bool,
    waiting: Waiting<WriteAnswer>,
    version: FormatVersion,
    counting: Counting,
}

/// What came of a write that has begun.
enum Begun {
    /// No bytes of it are wanted.
    Answered(Intake<Pending>),
    /// Its bytes go there.
    Arrives(PendingWrite, Room),
}

/// A replica whose bytes arrive.
pub(crate) struct PendingReplica {
    frame: Frame,
    info: CopyInfo,
    namespace: NamespaceKind,
    key: Vec<u8>,
    counting: Counting,
}

impl MemberService {
    pub(super) fn write(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let value = (request.payload_len_bytes, request.payload_crc32c);
        Ok(match self.begin_write(request.body, value, counting)? {
            Begun::Answered(intake) => intake,
            Begun::Arrives(pending, room) => {
                let pending = Pending::Write(pending);
                Intake::Receive { pending, room }
            }
        })
    }

    /// As [`write`](Self::write), of bytes that are to be read where they lie.
    pub(super) fn write_pulled(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let (wish, rest) = PullWish::split(request.body).map_err(bad_request)?;
        self.core.pushing().check_pull(request.connection, &wish)?;
        let value = (wish.len_bytes(), wish.crc32c);
        Ok(match self.begin_write(rest, value, counting)? {
            Begun::Answered(intake) => intake,
            Begun::Arrives(pending, room) => {
                let over = (request.connection, wish);
                Intake::Later(pulled(Rc::clone(&self.core), over, pending, room))
            }
        })
    }

    /// Makes room for a value of this length and this checksum.
    fn begin_write(
        &self,
        body: &[u8],
        (len_bytes, crc32c): (u32, u32),
        counting: &mut Counting,
    ) -> Result<Begun, Status> {
        let message = WriteMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        #[cfg(feature = "next-version")]
        self.count_next(version);
        self.check_begin(message.to)?;
        let is_manifest = message.form == Form::Striped;
        if is_manifest && len_bytes as usize != MANIFEST_BYTES {
            return Err(Status::BadRequest);
        }
        if self.core.writes.len() >= WAITERS_MAX {
            return Err(Status::Busy);
        }
        self.core.over(message.asker, message.over_below);
        let (op, mut waiting) = self
            .core
            .write(message.asker, message.request, message.ask());
        let Some(op) = op else {
            self.core.settle();
            return Ok(Begun::Answered(match waiting.try_take() {
                Some(answer) => Intake::Answer(written(version, counting, answer)),
                None => Intake::Later(write_ends(version, waiting, counting.waits())),
            }));
        };
        let carved = self.core.carve_for(
            op,
            &mut waiting,
            message.key,
            len_bytes,
            message.retention.pin,
        );
        let carved = match carved {
            Ok(carved) => carved,
            Err(NotCarved::Over(answer)) => {
                let answered = Intake::Answer(written(version, counting, answer));
                return Ok(Begun::Answered(answered));
            }
            Err(NotCarved::NoRoom(no_room)) => return Err(status_of(no_room)),
        };
        if len_bytes == 0 {
            let (frame, region) = carved.into_empty();
            (self.core.bytes().borrow_mut()).receive(op, frame, message.retention);
            self.core.on_whole(op, frame.filled(region, crc32c));
            let ends = write_ends(version, waiting, counting.waits());
            return Ok(Begun::Answered(Intake::Later(ends)));
        }
        let (frame, room) = carved.into_room();
        (self.core.bytes().borrow_mut()).receive(op, frame, message.retention);
        self.core.settle();
        let pending = PendingWrite {
            op,
            frame,
            crc32c,
            is_manifest,
            waiting,
            version,
            counting: counting.waits(),
        };
        Ok(Begun::Arrives(pending, room))
    }

    pub(super) fn replicate(
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
        let layout = ExtentLayout::for_object(message.key.len_bytes(), info.len_bytes);
        let extent_bytes = carved_bytes(layout).into();
        (self.core).takes_replica(time::now(), extent_bytes, message.is_repair)?;
        let carved = self
            .core
            .carve(message.key, info.len_bytes, message.pin)
            .map_err(status_of)?;
        let key = message.key;
        if info.len_bytes == 0 {
            let (frame, region) = carved.into_empty();
            let whole = (frame, frame.filled(region, info.crc32c));
            self.core.on_replica(key, info, message.namespace, whole);
            return Ok(Intake::Answer(Response::default()));
        }
        let (frame, room) = carved.into_room();
        let pending = Pending::Replica(PendingReplica {
            frame,
            info,
            namespace: message.namespace,
            key: key.bytes().to_vec(),
            counting: counting.waits(),
        });
        Ok(Intake::Receive { pending, room })
    }

    /// The bytes of a replica have come, or will not.
    pub(super) fn on_replicated(
        &self,
        pending: PendingReplica,
        room: Room,
        outcome: PayloadOutcome,
    ) -> Answer {
        let PendingReplica {
            frame,
            info,
            namespace,
            key,
            mut counting,
        } = pending;
        if outcome != PayloadOutcome::Intact {
            drop(room);
            self.core.bytes().borrow_mut().drop_unused(frame);
            return damaged(counting, outcome);
        }
        let key = Key::new(&key).expect("it was a key when it came");
        let whole = (frame, frame.filled(room.into_region(), info.crc32c));
        self.core.counts.received(info.len_bytes);
        self.core.on_replica(key, info, namespace, whole);
        counting.end(Outcome::Ok);
        Response::default().into()
    }
}

/// The bytes of a write have come, or will not.
pub(super) fn on_written(
    core: &MemberCore,
    pending: PendingWrite,
    room: Room,
    outcome: PayloadOutcome,
) -> Answer {
    let PendingWrite {
        op,
        frame,
        crc32c,
        is_manifest,
        waiting,
        version,
        mut counting,
    } = pending;
    if outcome != PayloadOutcome::Intact {
        drop(room);
        core.on_lost(op);
        return damaged(counting, outcome);
    }
    let extent = frame.filled(room.into_region(), crc32c);
    core.counts.received(extent.len_bytes());
    if is_manifest && extent.manifest().is_none() {
        core.on_lost(op);
        counting.end(Outcome::BadRequest);
        return refusal(Status::BadRequest).into();
    }
    core.on_whole(op, extent);
    Answer::Later(write_ends(version, waiting, counting.waits()))
}

/// A write whose bytes are being read. Dropped before they are there, they will not be.
struct Pulling {
    core: Rc<MemberCore>,
    pending: Option<PendingWrite>,
}

impl Drop for Pulling {
    fn drop(&mut self) {
        if let Some(pending) = &self.pending {
            self.core.on_lost(pending.op);
        }
    }
}

/// Reads the bytes of a write, and then answers it as if they had been received.
fn pulled(
    core: Rc<MemberCore>,
    (connection, wish): (ConnectionId, PullWish),
    pending: PendingWrite,
    room: Room,
) -> Later {
    let mut pulling = Pulling {
        core,
        pending: Some(pending),
    };
    Later::new(async move {
        let core = Rc::clone(&pulling.core);
        let (room, pulled) = core.pushing().pull(connection, &wish, room).await;
        let pending = pulling.pending.take().expect("it is taken once");
        let (outcome, status) = match pulled {
            Pulled::Whole => (PayloadOutcome::Intact, Status::Ok),
            Pulled::Corrupt => (PayloadOutcome::Corrupt, Status::Corrupt),
            Pulled::NotNow => (PayloadOutcome::Lost, Status::OverConnection),
            Pulled::Failed => (PayloadOutcome::Lost, Status::PushFailed),
        };
        let Some(room) = room.filter(|_| outcome != PayloadOutcome::Lost) else {
            core.on_lost(pending.op);
            let mut counting = pending.counting;
            counting.end_with(status.code());
            return refusal(status);
        };
        if pulled == Pulled::Whole {
            core.copies.has_pulled(wish.len_bytes());
        }
        match on_written(&core, pending, room, outcome) {
            Answer::Now(response) => response,
            Answer::Later(later) => later.answer().await,
        }
    })
}

pub(super) fn write_ends(
    version: FormatVersion,
    waiting: Waiting<WriteAnswer>,
    mut counting: Counting,
) -> Later {
    Later::new(async move {
        let answer = waiting.await.unwrap_or(WriteAnswer::Interrupted);
        written(version, &mut counting, answer)
    })
}

pub(super) fn written(
    version: FormatVersion,
    counting: &mut Counting,
    answer: WriteAnswer,
) -> Response {
    counting.end(Outcome::from(&answer));
    let mut response = Response::default();
    answer.encode(version, &mut response.body);
    response
}

pub(super) const fn status_of(no_room: NoRoom) -> Status {
    match no_room {
        NoRoom::Full { .. } | NoRoom::OverCredit { .. } => Status::Full,
        NoRoom::OverQuota { .. } => Status::OverQuota,
        NoRoom::Pinned { .. } => Status::PinnedFull,
        NoRoom::TooLarge { .. } => Status::TooLarge,
    }
}
