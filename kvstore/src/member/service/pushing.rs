//! Reads whose bytes are written to the reader's memory, by an adapter.

use std::rc::Rc;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    AdaptersMessage, AdaptersReply, BytesReply, GetMessage, PairMessage, PushWish, PushedReply,
    ReadMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::{Read, Sought};
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::version::Form;
use lunette_runtime::arena::Region;
use lunette_runtime_core::checksum::Crc32c;
use lunette_transfer::{ConnectionId, Intake, Later, RequestHead, Response};

use super::reading::CopyPin;
use super::{MemberService, Pending, version_of};
use crate::counting::{CopyCounts, Counting};
use crate::refusals::{bad_request, refusal};

impl MemberService {
    /// By how many adapters this core is reached.
    pub(super) fn adapters(&self, body: &[u8]) -> Result<Response, Status> {
        let message = AdaptersMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        let count = u16::try_from(self.core.pushing().adapters()).map_err(|_| Status::Internal)?;
        let mut response = Response::default();
        AdaptersReply { count }.encode(version, &mut response.body);
        Ok(response)
    }

    /// A step of the handshake of two adapters, over which the reader asks as well, if `is_asking`.
    pub(super) fn pair(
        &self,
        request: &RequestHead<'_>,
        is_asking: bool,
    ) -> Result<Response, Status> {
        let message = PairMessage::decode(request.body).map_err(bad_request)?;
        self.check(message.to)?;
        let body = self
            .core
            .pushing()
            .step(request.connection, &message, is_asking)?;
        Ok(Response {
            body,
            ..Response::default()
        })
    }

    /// As [`find`](Self::find), of bytes that are to be written.
    pub(super) fn find_pushed(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let (wish, rest) = PushWish::split(request.body).map_err(bad_request)?;
        let message = GetMessage::decode(rest).map_err(bad_request)?;
        let version = version_of(rest)?;
        self.check(message.to)?;
        self.core
            .pushing()
            .check(request.connection, wish.connection)?;
        let read = self.core.read(
            message.key,
            Sought::Latest(message.epoch),
            message.namespace,
        );
        let wanted = (message.key, read, message.ranges.as_slice());
        match self.push(request.connection, version, &wish, wanted, counting) {
            Some(later) => Ok(Intake::Later(later)),
            None if is_sent_elsewhere(request, read) => Err(Status::OverConnection),
            None => self.find(rest, counting),
        }
    }

    /// As [`read`](Self::read), of bytes that are to be written.
    pub(super) fn read_pushed(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let (wish, rest) = PushWish::split(request.body).map_err(bad_request)?;
        let message = ReadMessage::decode(rest).map_err(bad_request)?;
        let version = version_of(rest)?;
        self.check(message.to)?;
        self.core
            .pushing()
            .check(request.connection, wish.connection)?;
        let read = (self.core).read(
            message.key,
            Sought::Version(message.version),
            message.namespace,
        );
        let wanted = (message.key, read, message.ranges.as_slice());
        match self.push(request.connection, version, &wish, wanted, counting) {
            Some(later) => Ok(Intake::Later(later)),
            None if is_sent_elsewhere(request, read) => Err(Status::OverConnection),
            None => self.read(rest, counting),
        }
    }

    /// Begins to write a copy to where it is wanted, if it is here, and whole. It is pinned until nothing of it
    /// is under way. `None`: nothing was begun.
    fn push(
        &self,
        connection: ConnectionId,
        version: FormatVersion,
        wish: &PushWish,
        (key, read, ranges): (Key<'_>, Read, &[ByteRange]),
        counting: &mut Counting,
    ) -> Option<Later> {
        let Read::Served {
            place,
            info,
            is_cut_off,
        } = read
        else {
            return None;
        };
        let are_inside = ranges
            .iter()
            .all(|range| range.is_within(info.len_bytes.into()));
        if info.form != Form::Whole || !are_inside {
            return None;
        }
        let (id, extent) = self.core.bytes().borrow_mut().pin(place, key)?;
        let pin = CopyPin::new(&self.core, id);
        let pieces = pieces_of(&extent.value(), ranges);
        let len_bytes = u32::try_from(pieces.iter().map(Region::len).sum::<usize>()).ok()?;
        let reply = PushedReply {
            bytes: BytesReply::new(place.version, is_cut_off, extent.len_bytes()),
            len_bytes,
            crc32c: if ranges.is_empty() {
                extent.crc32c
            } else {
                sum_of(&pieces)
            },
        };
        let mut body = Vec::new();
        reply.encode(version, &mut body);
        let pushing = self.core.pushing();
        let written = (pieces.as_slice(), body.as_slice());
        let pushed = pushing.begin(&self.core, connection, wish, written)?;
        let (core, mut counting) = (Rc::clone(&self.core), counting.waits());
        Some(Later::new(async move {
            let ended = core.pushing().ended(pushed).await;
            drop(pin);
            let response = match ended {
                Ok(()) => {
                    core.copies.has_pushed(len_bytes);
                    Response {
                        status: Status::Pushed.code(),
                        body,
                        payload: None,
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "an object is not written to where it is wanted");
                    CopyCounts::add(&core.copies.pushes_failed);
                    refusal(Status::PushFailed)
                }
            };
            counting.end_with(response.status);
            response
        }))
    }
}

/// Whether there are bytes to be sent to who has asked by a message: it is to ask over its connection.
pub(super) fn is_sent_elsewhere(request: &RequestHead<'_>, read: Read) -> bool {
    let is_whole = matches!(read, Read::Served { info, .. } if info.form == Form::Whole);
    request.is_message && is_whole
}

/// The object, or ranges that lie inside it, one after the other.
fn pieces_of(value: &Region, ranges: &[ByteRange]) -> Vec<Region> {
    if ranges.is_empty() {
        return vec![value.clone()];
    }
    let pieces = ranges.iter().map(|range| {
        let start = usize::try_from(range.offset_bytes).expect("inside the object");
        value.slice(start, range.len_bytes as usize)
    });
    pieces.collect()
}

/// Of ranges no checksum is known; it is computed as for those that are sent.
fn sum_of(pieces: &[Region]) -> u32 {
    let mut checksum = Crc32c::new();
    for piece in pieces {
        checksum.fold(piece.as_slice());
    }
    checksum.value()
}
