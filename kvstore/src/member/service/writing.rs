//! Writes and replicas, whose bytes come with them.

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::extent::ExtentLayout;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{OpId, ReplicaMessage, WriteMessage};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::WriteAnswer;
use lunette_kvstore_proto::residence::NoRoom;
use lunette_kvstore_proto::striped::MANIFEST_BYTES;
use lunette_kvstore_proto::version::{CopyInfo, Form};
use lunette_runtime::time;
use lunette_transfer::{Answer, Intake, Later, PayloadOutcome, RequestHead, Response, Room};

use super::{MemberService, Pending, WAITERS_MAX, damaged, version_of};

use crate::counting::{Counting, Outcome};
use crate::member::bytes::Frame;
use crate::member::local::NotCarved;
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
        let message = WriteMessage::decode(request.body).map_err(bad_request)?;
        let version = version_of(request.body)?;
        #[cfg(feature = "next-version")]
        self.count_next(version);
        self.check(message.to)?;
        let is_manifest = message.form == Form::Striped;
        if is_manifest && request.payload_len_bytes as usize != MANIFEST_BYTES {
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
            return Ok(match waiting.try_take() {
                Some(answer) => Intake::Answer(written(version, counting, answer)),
                None => Intake::Later(write_ends(version, waiting, counting.waits())),
            });
        };
        let len_bytes = request.payload_len_bytes;
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
                return Ok(Intake::Answer(written(version, counting, answer)));
            }
            Err(NotCarved::NoRoom(no_room)) => return Err(status_of(no_room)),
        };
        let crc32c = request.payload_crc32c;
        if len_bytes == 0 {
            let (frame, region) = carved.into_empty();
            (self.core.bytes().borrow_mut()).receive(op, frame, message.retention);
            self.core.on_whole(op, frame.filled(region, crc32c));
            return Ok(Intake::Later(write_ends(
                version,
                waiting,
                counting.waits(),
            )));
        }
        let (frame, room) = carved.into_room();
        (self.core.bytes().borrow_mut()).receive(op, frame, message.retention);
        self.core.settle();
        let pending = Pending::Write(PendingWrite {
            op,
            frame,
            crc32c,
            is_manifest,
            waiting,
            version,
            counting: counting.waits(),
        });
        Ok(Intake::Receive { pending, room })
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

    /// The bytes of a write have come, or will not.
    pub(super) fn on_written(
        &self,
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
            self.core.on_lost(op);
            return damaged(counting, outcome);
        }
        let extent = frame.filled(room.into_region(), crc32c);
        self.core.counts.received(extent.len_bytes());
        if is_manifest && extent.manifest().is_none() {
            self.core.on_lost(op);
            counting.end(Outcome::BadRequest);
            return refusal(Status::BadRequest).into();
        }
        self.core.on_whole(op, extent);
        Answer::Later(write_ends(version, waiting, counting.waits()))
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
        NoRoom::Full { .. } => Status::Full,
        NoRoom::Pinned { .. } => Status::PinnedFull,
        NoRoom::TooLarge { .. } => Status::TooLarge,
    }
}
