//! Where bytes lie, for readers of this host and readers by an adapter, in place of the bytes.

use lunette_cluster::proto::fence::CLOCK_DRIFT_MAX;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::{
    BytesReply, CopyPlace, Described, FarWish, GetMessage, Held, HoldWish, MeetMessage, NearWish,
    Reach, ReachMessage, Reached, ReadMessage,
};
use lunette_kvstore_proto::message::{FormatVersion, Status};
use lunette_kvstore_proto::owner::{Read, Sought};
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_kvstore_proto::version::{Form, Version};
use lunette_transfer::{ConnectionId, Intake, RequestHead, Response};

use super::pushing::is_sent_elsewhere;
use super::{MemberService, Pending, version_of};
use crate::counting::{CopyCounts, Counting};
use crate::refusals::bad_request;

impl MemberService {
    /// Tells a reader where it can map this core's memory, if it is on this host.
    pub(super) fn meet(&self, body: &[u8]) -> Result<Response, Status> {
        let message = MeetMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        self.check(message.to)?;
        let sharing = self.core.sharing().ok_or(Status::Unsupported)?;
        let reply = sharing.meet(&message)?;
        let mut response = Response::default();
        reply.encode(version, &mut response.body);
        Ok(response)
    }

    /// As [`find`](Self::find), by a reader of this host.
    pub(super) fn find_near(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let (wish, rest) = self.near_wish(body)?;
        let message = GetMessage::decode(rest).map_err(bad_request)?;
        let version = version_of(rest)?;
        self.check(message.to)?;
        let read = self.core.read(
            message.key,
            Sought::Latest(message.epoch),
            message.namespace,
        );
        match self.describe(version, &wish, message.key, read, &message.ranges) {
            Some(response) => Ok(Intake::Answer(response)),
            None => self.find(rest, counting),
        }
    }

    /// As [`read`](Self::read), by a reader of this host.
    pub(super) fn read_near(
        &self,
        body: &[u8],
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let (wish, rest) = self.near_wish(body)?;
        let message = ReadMessage::decode(rest).map_err(bad_request)?;
        let version = version_of(rest)?;
        self.check(message.to)?;
        let read = (self.core).read(
            message.key,
            Sought::Version(message.version),
            message.namespace,
        );
        match self.describe(version, &wish, message.key, read, &message.ranges) {
            Some(response) => Ok(Intake::Answer(response)),
            None => self.read(rest, counting),
        }
    }

    fn near_wish<'a>(&self, body: &'a [u8]) -> Result<(NearWish, &'a [u8]), Status> {
        let (wish, rest) = NearWish::split(body).map_err(bad_request)?;
        if wish.is_again {
            CopyCounts::add(&self.core.copies.one_sided_fallbacks);
        }
        Ok((wish, rest))
    }

    /// Where the bytes lie that are asked for, if they are here, and many enough, and can be mapped.
    fn describe(
        &self,
        version: FormatVersion,
        wish: &NearWish,
        key: Key<'_>,
        read: Read,
        ranges: &[ByteRange],
    ) -> Option<Response> {
        let (place, is_cut_off) = is_described(wish, read, ranges)?;
        let mut descriptor = self.core.bytes().borrow_mut().describe(place, key)?;
        descriptor.held_ms = self.core.hold(place, wish.hold);
        self.core.list_read(place, descriptor.slot);
        CopyCounts::add(&self.core.copies.one_sided_reads);
        let bytes = BytesReply::new(place.version, is_cut_off, descriptor.len_bytes);
        let mut body = Vec::new();
        Described { bytes, descriptor }.encode(version, &mut body);
        Some(Response {
            status: Status::Described.code(),
            body,
            payload: None,
        })
    }

    /// As [`find`](Self::find), by a reader by an adapter.
    pub(super) fn find_far(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let (wish, rest) = self.far_wish(request)?;
        let message = GetMessage::decode(rest).map_err(bad_request)?;
        let version = version_of(rest)?;
        self.check(message.to)?;
        let read = self.core.read(
            message.key,
            Sought::Latest(message.epoch),
            message.namespace,
        );
        let wanted = (message.key, read, message.ranges.as_slice());
        match self.reach(request.connection, version, &wish, wanted) {
            Some(response) => Ok(Intake::Answer(response)),
            None if is_sent_elsewhere(request, read) => Err(Status::OverConnection),
            None => self.find(rest, counting),
        }
    }

    /// As [`read`](Self::read), by a reader by an adapter.
    pub(super) fn read_far(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<Pending>, Status> {
        let (wish, rest) = self.far_wish(request)?;
        let message = ReadMessage::decode(rest).map_err(bad_request)?;
        let version = version_of(rest)?;
        self.check(message.to)?;
        let read = (self.core).read(
            message.key,
            Sought::Version(message.version),
            message.namespace,
        );
        let wanted = (message.key, read, message.ranges.as_slice());
        match self.reach(request.connection, version, &wish, wanted) {
            Some(response) => Ok(Intake::Answer(response)),
            None if is_sent_elsewhere(request, read) => Err(Status::OverConnection),
            None => self.read(rest, counting),
        }
    }

    fn far_wish<'a>(&self, request: &RequestHead<'a>) -> Result<(FarWish, &'a [u8]), Status> {
        let (wish, rest) = FarWish::split(request.body).map_err(bad_request)?;
        self.core
            .pushing()
            .check(request.connection, wish.connection)?;
        if wish.near.is_again {
            CopyCounts::add(&self.core.copies.one_sided_fallbacks);
        }
        Ok((wish, rest))
    }

    /// Where an adapter of the reader's reads the bytes that are asked for, if they are here, and it may.
    fn reach(
        &self,
        connection: ConnectionId,
        version: FormatVersion,
        wish: &FarWish,
        (key, read, ranges): (Key<'_>, Read, &[ByteRange]),
    ) -> Option<Response> {
        let (place, is_cut_off) = is_described(&wish.near, read, ranges)?;
        let over = (connection, wish.connection);
        let mut reached = self.reached(over, key, place, wish.near.hold)?;
        reached.bytes.is_cut_off = is_cut_off;
        let mut body = Vec::new();
        reached.encode(version, &mut body);
        Some(Response {
            status: Status::Described.code(),
            body,
            payload: None,
        })
    }

    /// Where the adapter at the other end of a queue pair reads a copy, which is held from now on.
    fn reached(
        &self,
        over: (ConnectionId, u64),
        key: Key<'_>,
        place: CopyPlace,
        hold: HoldWish,
    ) -> Option<Reached> {
        let reachable = self.core.bytes().borrow_mut().reach(place, key)?;
        let pushing = self.core.pushing();
        let (there, word) = pushing.reach(&self.core, over, &reachable)?;
        let len_bytes = u32::try_from(reachable.value.len()).ok()?;
        let reach = Reach {
            address: there.address,
            key: there.rkey,
            word_address: word.address,
            word_key: word.rkey,
            number: reachable.number,
            len_bytes,
            crc32c: reachable.crc32c,
            held_ms: self.core.hold(place, hold),
        };
        CopyCounts::add(&self.core.copies.one_sided_reads);
        let bytes = BytesReply::new(place.version, false, len_bytes);
        Some(Reached { bytes, reach })
    }

    /// Where a reader's adapter reads copies, and for how long it need not ask.
    pub(super) fn reach_all(&self, request: &RequestHead<'_>) -> Result<Response, Status> {
        let message = ReachMessage::decode(request.body).map_err(bad_request)?;
        let version = version_of(request.body)?;
        self.check(message.to)?;
        let over = (request.connection, message.connection);
        self.core.pushing().check(over.0, over.1)?;
        let copies = message.copies.iter();
        let held: Vec<Held> = copies
            .map(|&copy| match self.reach_held(&message, over, copy) {
                Some(reached) => Held::At { reached },
                None => Held::Not {},
            })
            .collect();
        let mut response = Response::default();
        Held::encode(&held, version, &mut response.body);
        Ok(response)
    }

    /// A copy that is here, in memory, and held for as long as this node's lease is sure to last. Beyond that others
    /// may have gone on without this node, and what was removed would still be here.
    fn reach_held(
        &self,
        message: &ReachMessage<'_>,
        over: (ConnectionId, u64),
        (version, key): (Version, Key<'_>),
    ) -> Option<Reached> {
        let Read::Served {
            place,
            info,
            is_cut_off: false,
        } = self
            .core
            .read(key, Sought::Version(version), message.namespace)
        else {
            return None;
        };
        if info.form != Form::Whole {
            return None;
        }
        let (_, lease_left) = self.core.standing();
        // The reader's clock is one more that may drift.
        let sure_ms = lease_left.saturating_sub(CLOCK_DRIFT_MAX).as_millis();
        let mut reached = self.reached(over, key, place, message.hold)?;
        let sure_ms = u32::try_from(sure_ms).unwrap_or(u32::MAX);
        reached.reach.held_ms = reached.reach.held_ms.min(sure_ms);
        (reached.reach.held_ms > 0).then_some(reached)
    }
}

/// Which copy is described to a reader, and whether its owner is cut off: one that is here, whole, and has the
/// ranges, of as many bytes as are wished for.
fn is_described(wish: &NearWish, read: Read, ranges: &[ByteRange]) -> Option<(CopyPlace, bool)> {
    let Read::Served {
        place,
        info,
        is_cut_off,
    } = read
    else {
        return None;
    };
    let wanted_bytes = match ranges {
        [] => u64::from(info.len_bytes),
        ranges => total_bytes(ranges),
    };
    let is_inside = ranges
        .iter()
        .all(|range| range.is_within(info.len_bytes.into()));
    let is_served = is_inside && info.form == Form::Whole;
    let is_wished = wanted_bytes >= u64::from(wish.from_bytes);
    (is_served && is_wished).then_some((place, is_cut_off))
}
