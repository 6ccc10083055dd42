//! Objects whose bytes come in ranges: reserve, fill, commit, revoke.

use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::key::Fingerprint;
use lunette_kvstore_proto::message::directory::{
    CommitMessage, CopyPlace, FillMessage, HoldWish, KEEP_MS_MAX, ReserveMessage, ReserveReply,
    RevokeMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::{Read, WriteAnswer};
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::{Version, WriteKind};
use lunette_runtime::arena::Region;
use lunette_runtime::time;
use lunette_runtime_core::checksum::Crc32c;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_transfer::{Answer, Intake, Later, PayloadOutcome, RequestHead, Response, Room};

use super::writing::{status_of, written};
use super::{MemberService, Pending, WAITERS_MAX, damaged, version_of};
use crate::counting::{Counting, Outcome};
use crate::member::core::MemberCore;
use crate::member::reservations::{Named, Seal, Terms};
use crate::member::waiters::Waiting;
use crate::refusals::{bad_request, refusal};

/// Of how much of a core's memory reservations may be, if there is more than one: a half.
const SHARE: u64 = 2;
/// Bytes that are summed before others have their turn.
const SUM_BYTES: usize = 1 << 20;

/// A range whose bytes arrive.
pub(crate) struct PendingFill {
    named: Named,
    range: ByteRange,
    crc32c: u32,
    counting: Counting,
}

/// A sealed object that is to be written.
#[derive(Clone, Copy)]
struct Commit {
    version: FormatVersion,
    named: Named,
    key: Fingerprint,
    request: RequestId,
    wait_ms: u32,
    hold_ms: u32,
}

impl MemberService {
    pub(super) fn reserve(&self, body: &[u8]) -> Result<Response, Status> {
        let message = ReserveMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check_begin(message.to)?;
        // A frame bounds the bytes that come with it; this length is a number that somebody has written.
        if message.len_bytes as usize > PAYLOAD_BYTES_MAX {
            return Err(Status::TooLarge);
        }
        let named = (message.asker, message.reservation);
        if self.core.reservations.borrow().contains(named) {
            return Ok(reserved(version, ReserveReply::Reserved));
        }
        if message.kind == WriteKind::Put {
            let read = self.core.read_here(message.key, message.namespace);
            if let Read::Served { place, .. } = read {
                let exists = ReserveReply::Exists {
                    version: place.version,
                };
                return Ok(reserved(version, exists));
            }
        }
        let bytes_max = self.core.bytes().borrow().limits().high_watermark_bytes() / SHARE;
        let len_bytes = message.len_bytes;
        if !(self.core.reservations.borrow()).has_room(len_bytes, bytes_max) {
            return Err(Status::Full);
        }
        let carved = self
            .core
            .carve_or_make_room(message.key, len_bytes, message.retention.pin);
        let carved = carved.map_err(status_of)?;
        let terms = Terms {
            key: message.key.fingerprint(),
            kind: message.kind,
            namespace: message.namespace,
            wanted: message.wanted,
            retention: message.retention,
            keep: Duration::from_millis(message.keep_ms.min(KEEP_MS_MAX).into()),
        };
        let mut reservations = self.core.reservations.borrow_mut();
        reservations.add(time::now(), named, terms, carved.into_exposed());
        Ok(reserved(version, ReserveReply::Reserved))
    }

    pub(super) fn fill(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = FillMessage::decode(request.body).map_err(bad_request)?;
        self.check(message.to)?;
        let named = (message.asker, message.reservation);
        let range = ByteRange {
            offset_bytes: message.offset_bytes.into(),
            len_bytes: request.payload_len_bytes,
        };
        let key = message.key.fingerprint();
        let now = time::now();
        let memory = (self.core.reservations.borrow_mut()).begin_fill(now, (named, key), range)?;
        if range.len_bytes == 0 {
            return Ok(Intake::Answer(Response::default()));
        }
        let pending = Pending::Fill(PendingFill {
            named,
            range,
            crc32c: request.payload_crc32c,
            counting: counting.waits(),
        });
        let room = Room::exposed(vec![memory]);
        Ok(Intake::Receive { pending, room })
    }

    /// The bytes of a range have come, or will not.
    pub(super) fn on_filled(
        &self,
        pending: PendingFill,
        room: Room,
        outcome: PayloadOutcome,
    ) -> Answer {
        drop(room);
        let PendingFill {
            named,
            range,
            crc32c,
            mut counting,
        } = pending;
        let is_intact = outcome == PayloadOutcome::Intact;
        let crc32c = is_intact.then_some(crc32c);
        let over =
            (self.core.reservations.borrow_mut()).end_fill(time::now(), named, range, crc32c);
        if let Some(frame) = over {
            self.core.bytes().borrow_mut().drop_unused(frame);
        }
        if !is_intact {
            return damaged(counting, outcome);
        }
        self.core.counts.received(range.len_bytes);
        counting.end(Outcome::Ok);
        Response::default().into()
    }

    pub(super) fn commit(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = CommitMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        if self.core.writes.len() >= WAITERS_MAX {
            return Err(Status::Busy);
        }
        self.core.over(message.asker, message.over_below);
        let named = (message.asker, message.reservation);
        let commit = Commit {
            version,
            named,
            key: message.key.fingerprint(),
            request: message.request,
            wait_ms: message.wait_ms,
            hold_ms: message.hold_ms,
        };
        let seal = (self.core.reservations.borrow_mut()).seal(named, commit.key)?;
        let (core, counting) = (Rc::clone(&self.core), counting.waits());
        Ok(Intake::Later(Later::new(async move {
            if let Seal::ToSum(bytes) = seal {
                let crc32c = sum(&bytes).await;
                core.reservations.borrow_mut().sealed(named, crc32c);
            }
            publish(&core, commit, counting).await
        })))
    }

    pub(super) fn revoke(&self, body: &[u8]) -> Result<Response, Status> {
        let message = RevokeMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        self.core.revoke((message.asker, message.reservation));
        Ok(Response::default())
    }
}

/// Writes an object that is sealed. Whatever was not done leaves it as it is.
async fn publish(core: &MemberCore, commit: Commit, mut counting: Counting) -> Response {
    let waiting = match begin(core, commit) {
        Ok(waiting) => waiting,
        Err(status) => {
            counting.end_with(status.code());
            return refusal(status);
        }
    };
    let answer = waiting.await.unwrap_or(WriteAnswer::Interrupted);
    if !answer.is_undone() {
        core.revoke(commit.named);
    }
    if let WriteAnswer::Written { version, .. } = answer
        && commit.hold_ms > 0
    {
        hold(core, &commit, version);
    }
    written(commit.version, &mut counting, answer)
}

/// Keeps what was written for its writer, who has more to write before it is of use. Where as much is held as may be, it goes
/// without: the writer asks whether all is there in the end.
fn hold(core: &MemberCore, commit: &Commit, version: Version) {
    let place = CopyPlace {
        key: commit.key,
        version,
    };
    let (asker, _) = commit.named;
    let wish = HoldWish {
        holder: asker.0,
        ttl_ms: commit.hold_ms,
    };
    let held_ms = core.hold(place, wish);
    tracing::trace!(held_ms, "a reserved object is there");
}

fn begin(core: &MemberCore, commit: Commit) -> Result<Waiting<WriteAnswer>, Status> {
    let terms = core.reservations.borrow().terms(commit.named)?;
    let ask = terms.ask(commit.wait_ms);
    let (asker, _) = commit.named;
    let (op, waiting) = core.write(asker, commit.request, ask);
    let Some(op) = op else {
        core.settle();
        return Ok(waiting);
    };
    let (frame, extent) = core.reservations.borrow_mut().commit(commit.named, op);
    core.bytes().borrow_mut().receive(op, frame, ask.retention);
    core.on_whole(op, extent);
    Ok(waiting)
}

/// The CRC32C of all bytes, by and by.
async fn sum(bytes: &Region) -> u32 {
    let mut checksum = Crc32c::new();
    for part in bytes.as_slice().chunks(SUM_BYTES) {
        checksum.fold(part);
        time::yield_now().await;
    }
    checksum.value()
}

fn reserved(version: FormatVersion, reply: ReserveReply) -> Response {
    let mut response = Response::default();
    reply.encode(version, &mut response.body);
    response
}
