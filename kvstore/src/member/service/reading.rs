//! Reads, lookups and removals.

use std::rc::Rc;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    Answer as DirectoryAnswer, AnswerMessage, Ask, AskMessage, BytesReply, GetMessage, Peek,
    PeekMessage, PeekReply, ReadMessage, StripedReply,
};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::{Read, Sought};
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_kvstore_proto::shard::EntryId;
use lunette_kvstore_proto::version::{Form, Version};
use lunette_runtime::net::Pin;
use lunette_runtime_core::ids::RequestId;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_transfer::{Intake, Later, Payload, Response, WriteSource};

use super::{MemberService, Pending, version_of};
use crate::counting::{Counting, Outcome};
use crate::member::bytes::Extent;
use crate::member::core::MemberCore;
use crate::refusals::{bad_request, refusal};

/// A read of a copy, over when its bytes have been sent.
pub(super) struct CopyPin {
    core: Rc<MemberCore>,
    id: EntryId,
}

impl CopyPin {
    /// Of a copy that has been pinned.
    pub(super) fn new(core: &Rc<MemberCore>, id: EntryId) -> Self {
        let core = Rc::clone(core);
        Self { core, id }
    }
}

impl Drop for CopyPin {
    fn drop(&mut self) {
        self.core.bytes().borrow_mut().unpin(self.id);
    }
}

impl MemberService {
    /// The bytes, if this very core has them; else what the home says.
    pub(super) fn find(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = GetMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        check_total(&message.ranges)?;
        let read = self.core.read(
            message.key,
            Sought::Latest(message.epoch),
            message.namespace,
        );
        if let Some(response) = self.bytes_of(version, message.key, read, &message.ranges) {
            return Ok(Intake::Answer(response));
        }
        let wanted = (version, message.key, message.ranges.as_slice());
        let fetching = self.on_drive(wanted, read)?;
        let request = message.request;
        let ask = Ask::Lookup {
            request,
            key: message.key.fingerprint(),
            namespace: message.namespace,
            hold: None,
        };
        self.check_waiters()?;
        let status = Status::NotFound;
        if let Some(fetching) = fetching {
            let (asker, epoch) = (message.asker, message.epoch);
            let (core, mut counting) = (Rc::clone(&self.core), counting.waits());
            return Ok(Intake::Later(Later::new(async move {
                if let Some(response) = fetching.await {
                    counting.end_with(response.status);
                    return response;
                }
                let answer = core.ask(asker, epoch, ask).await;
                let answer = answer.unwrap_or(DirectoryAnswer::Busy);
                counting.end(Outcome::from(&answer));
                answers(version, status, vec![(request, answer)])
            })));
        }
        let mut waiting = self.core.ask(message.asker, message.epoch, ask);
        Ok(match waiting.try_take() {
            Some(answer) => {
                counting.end(Outcome::from(&answer));
                Intake::Answer(answers(version, status, vec![(request, answer)]))
            }
            None => {
                let mut counting = counting.waits();
                Intake::Later(Later::new(async move {
                    let answer = waiting.await.unwrap_or(DirectoryAnswer::Busy);
                    counting.end(Outcome::from(&answer));
                    answers(version, status, vec![(request, answer)])
                }))
            }
        })
    }

    pub(super) fn read(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = ReadMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        check_total(&message.ranges)?;
        let read = (self.core).read(
            message.key,
            Sought::Version(message.version),
            message.namespace,
        );
        if read == Read::Unavailable {
            return Err(Status::Unavailable);
        }
        if let Some(response) = self.bytes_of(version, message.key, read, &message.ranges) {
            return Ok(Intake::Answer(response));
        }
        let wanted = (version, message.key, message.ranges.as_slice());
        let fetching = self.on_drive(wanted, read)?.ok_or(Status::NotFound)?;
        let mut counting = counting.waits();
        Ok(Intake::Later(Later::new(async move {
            let response = fetching.await;
            let response = response.unwrap_or_else(|| refusal(Status::NotFound));
            counting.end_with(response.status);
            response
        })))
    }

    /// What was asked for of a copy that is served here, and whose bytes are on the drive.
    fn on_drive(
        &self,
        (version, key, ranges): (FormatVersion, Key<'_>, &[ByteRange]),
        read: Read,
    ) -> Result<Option<impl Future<Output = Option<Response>> + use<>>, Status> {
        let Read::Served {
            place,
            info,
            is_cut_off,
        } = read
        else {
            return Ok(None);
        };
        if !self.core.is_on_drive(place, &info) {
            return Ok(None);
        }
        let fetching = self.core.begin_fetch().ok_or(Status::Busy)?;
        let (core, ranges) = (Rc::clone(&self.core), ranges.to_vec());
        let key = Box::from(key.bytes());
        Ok(Some(async move {
            let found = (place.version, is_cut_off);
            if ranges.is_empty() && core.is_to_stream(&info) {
                let streaming = Rc::clone(&core).stream(place, info, key, fetching);
                let payload = streaming.await?;
                return Some(with_bytes(&core, version, found, payload));
            }
            let _fetching = fetching;
            let fetched = Rc::clone(&core).fetch(place, info, Some(key)).await?;
            let pin = fetched.pinned.map(|id| CopyPin::new(&core, id));
            if info.form == Form::Striped {
                return striped(version, found, &fetched.extent);
            }
            Some(sent(&core, version, found, (fetched.extent, pin), &ranges))
        }))
    }

    /// What was asked for of a copy that is served here.
    fn bytes_of(
        &self,
        version: FormatVersion,
        key: Key<'_>,
        read: Read,
        ranges: &[ByteRange],
    ) -> Option<Response> {
        let Read::Served {
            place,
            info,
            is_cut_off,
        } = read
        else {
            return None;
        };
        let (id, extent) = self.core.bytes().borrow_mut().pin(place, key)?;
        if info.form == Form::Striped {
            self.core.bytes().borrow_mut().unpin(id);
            return striped(version, (place.version, is_cut_off), &extent);
        }
        let pin = CopyPin::new(&self.core, id);
        self.core.list_read(place, id.slot_index);
        let found = (place.version, is_cut_off);
        Some(sent(
            &self.core,
            version,
            found,
            (extent, Some(pin)),
            ranges,
        ))
    }

    /// What this home knows of keys at once; with another map than the asker, nothing.
    pub(super) fn peek(&self, body: &[u8]) -> Result<Response, Status> {
        let message = PeekMessage::decode(body).map_err(bad_request)?;
        self.check(message.to)?;
        let keys: Vec<_> = message.keys().collect();
        let mut reply = PeekReply::default();
        if message.epoch == self.core.map().epoch() {
            let tell = |peek| reply.push(peek);
            self.core.peek(&keys, message.namespace, tell);
        } else {
            keys.iter().for_each(|_| reply.push(Peek::Unsure));
        }
        Ok(Response {
            body: reply.encode(),
            ..Response::default()
        })
    }

    pub(super) fn ask(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let message = AskMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        if message.asks.iter().all(Ask::is_read) {
            self.check(message.to)?;
        } else {
            self.check_begin(message.to)?;
        }
        self.check_waiters()?;
        let who = (message.asker, message.over_below);
        let asked = self.core.ask_all(who, message.epoch, message.asks);
        if asked.is_answered() {
            return Ok(Intake::Answer(answers(version, Status::Ok, asked.now())));
        }
        let mut counting = counting.waits();
        Ok(Intake::Later(Later::new(async move {
            let done = asked.all().await;
            counting.end(Outcome::Ok);
            answers(version, Status::Ok, done)
        })))
    }
}

/// The manifest of an object in parts, whatever was asked for of it: its reader asks for the parts.
fn striped(
    format: FormatVersion,
    (version, is_cut_off): (Version, bool),
    extent: &Extent,
) -> Option<Response> {
    let reply = StripedReply {
        version,
        is_cut_off,
        manifest: extent.manifest()?,
    };
    let mut body = Vec::new();
    reply.encode(format, &mut body);
    Some(Response {
        status: Status::Striped.code(),
        body,
        payload: None,
    })
}

/// The answer with the bytes that were asked for, and what keeps them where they are until they have been sent.
fn sent(
    core: &MemberCore,
    format: FormatVersion,
    (version, is_cut_off): (Version, bool),
    (extent, pin): (Extent, Option<CopyPin>),
    ranges: &[ByteRange],
) -> Response {
    let mut body = Vec::new();
    let reply = BytesReply::new(version, is_cut_off, extent.len_bytes());
    reply.encode(format, &mut body);
    let Some(payload) = parts_of(&extent, ranges) else {
        return Response {
            status: Status::OutOfRange.code(),
            body,
            payload: None,
        };
    };
    core.counts.sending(payload.len());
    let pinned = |payload: Payload| match pin {
        Some(pin) => payload.pinned(Pin::new(pin)),
        None => payload,
    };
    Response {
        status: Status::Ok.code(),
        body,
        payload: (!payload.is_empty()).then(|| pinned(payload)),
    }
}

/// The answer with all bytes of an object.
fn with_bytes(
    core: &MemberCore,
    format: FormatVersion,
    (version, is_cut_off): (Version, bool),
    payload: Payload,
) -> Response {
    let len_bytes = u32::try_from(payload.len()).expect("an object's length fits");
    let mut body = Vec::new();
    BytesReply::new(version, is_cut_off, len_bytes).encode(format, &mut body);
    core.counts.sending(payload.len());
    Response {
        status: Status::Ok.code(),
        body,
        payload: Some(payload),
    }
}

/// Ranges may overlap, and come to more than any object has: they fit one frame all the same.
fn check_total(ranges: &[ByteRange]) -> Result<(), Status> {
    if total_bytes(ranges) > PAYLOAD_BYTES_MAX as u64 {
        return Err(Status::BadRequest);
    }
    Ok(())
}

/// The ranges of an object, or all of it; `None` if one does not lie inside it. Of the whole the checksum
/// is known, that of ranges is computed here.
fn parts_of(extent: &Extent, ranges: &[ByteRange]) -> Option<Payload> {
    let value = extent.value();
    if ranges.is_empty() {
        return Some(Payload::region(value, extent.crc32c));
    }
    if !ranges
        .iter()
        .all(|range| range.is_within(extent.len_bytes().into()))
    {
        return None;
    }
    let parts = ranges.iter().filter(|range| range.len_bytes > 0);
    let parts = parts.map(|range| {
        let start = usize::try_from(range.offset_bytes).expect("inside the object");
        let len = range.len_bytes as usize;
        WriteSource::Region(value.slice(start, len))
    });
    Some(Payload::gathered(parts.collect()))
}

fn answers(
    version: FormatVersion,
    status: Status,
    answers: Vec<(RequestId, DirectoryAnswer)>,
) -> Response {
    let mut body = Vec::new();
    AnswerMessage { answers }.encode(version, &mut body);
    Response {
        status: status.code(),
        body,
        payload: None,
    }
}
