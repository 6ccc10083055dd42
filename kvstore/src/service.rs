//! One core's slice of the store: requests against its shard and its extents.
//!
//! The shard decides, this module holds the memory: one region per entry, at the entry's slot. A
//! region leaves when the shard says so ([`Effect::Release`]); a reply in flight pins its entry
//! until its last byte has been handed to the system.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use lunette_kvstore_proto::extent::{ExtentHeader, ExtentLayout};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::{
    KeyBatch, KeyRequest, NodeStat, NodeState, Op, Status, VersionReply, encode_presence,
    encode_removals,
};
use lunette_kvstore_proto::placement::ClusterMap;
use lunette_kvstore_proto::shard::{
    Effect, EntryId, PutRefusal, PutStart, RemoveOutcome, Shard, ShardLimits,
};
use lunette_runtime::arena::{Arena, Region, RegionMut};
use lunette_runtime::net::Pin;
use lunette_runtime_core::ids::CoreIndex;
use lunette_runtime_core::mutant::{self, Mutant};
use lunette_transfer::{
    Answer, Intake, Payload, PayloadOutcome, RequestHead, Response, Room, Service,
};

use crate::counting::{CoreReport, Counting, Counts, Outcome};
use crate::moving::{Lying, Moving};
use crate::refusals::{bad_request, refusal, stat_response};
use crate::value::carved_bytes;

/// What a node that is alone is asked.
const OPS: [Op; 5] = [Op::Get, Op::Put, Op::Exists, Op::Remove, Op::Stat];

/// A resident object.
#[derive(Debug)]
struct Extent {
    /// Header, key and payload.
    region: Region,
    header: ExtentHeader,
}

impl Extent {
    fn holds(&self, key: Key<'_>) -> bool {
        self.header
            .key(self.region.as_slice())
            .is_ok_and(|own| own == key)
    }

    fn payload(&self) -> Region {
        let start = self.header.layout().payload_offset_bytes as usize;
        self.region.slice(start, self.header.payload_len as usize)
    }
}

/// The target of the trace events that tell of each object whose memory is freed, evicted or
/// removed: `fingerprint_high` (the high half of its key's fingerprint) and `version`. One with
/// `is_removed` tells that it has been removed, which goes before.
pub const RELEASES: &str = "lunette_kvstore::releases";

/// The target of the trace events that tell of each object whose bytes are being sent: one when an
/// answer with them is made, one with `is_sent` when nothing reads them for it any more. Other fields
/// as for [`RELEASES`]; in between the object is not to be freed.
pub const ANSWERS: &str = "lunette_kvstore::answers";

/// The shard and the memory of what it holds.
#[derive(Debug)]
struct Slice {
    shard: Shard,
    /// By slot of the entry. A slot without an extent is free, or its entry is being written.
    extents: Vec<Option<Extent>>,
    moving: Moving,
}

impl Lying for Vec<Option<Extent>> {
    fn at_rest(&self, entry: u32) -> Option<&Region> {
        let extent = self.get(entry as usize)?.as_ref()?;
        Some(&extent.region)
    }

    fn lies_at(&mut self, entry: u32, region: Region) -> Region {
        let extent = self[entry as usize].as_mut();
        let extent = extent.expect("what lies there is an object's");
        mem::replace(&mut extent.region, region)
    }
}

impl Slice {
    /// Frees what the shard has released.
    fn drain_effects(&mut self) {
        while let Some(Effect::Release(id)) = self.shard.poll_effect() {
            let extent = self.extents.get_mut(id.slot_index as usize);
            if let Some(Extent { header, .. }) = extent.and_then(Option::take) {
                tracing::trace!(
                    target: RELEASES,
                    fingerprint_high = header.fingerprint.high(),
                    version = header.version,
                );
            }
        }
    }

    fn extent(&self, id: EntryId) -> &Extent {
        let extent = self
            .extents
            .get(id.slot_index as usize)
            .and_then(Option::as_ref);
        extent.expect("a resident entry has its extent")
    }

    fn keep(&mut self, id: EntryId, extent: Extent) {
        let slot = id.slot_index as usize;
        if self.extents.len() <= slot {
            self.extents.resize_with(slot + 1, || None);
        }
        assert!(
            self.extents[slot].is_none(),
            "a slot is reused after its release"
        );
        self.moving.lies(&extent.region, id.slot_index);
        self.extents[slot] = Some(extent);
    }
}

/// A put whose payload is arriving.
#[derive(Debug)]
pub(crate) struct PendingPut {
    id: EntryId,
    header: ExtentHeader,
    counting: Counting,
}

/// A pin of an entry, taken back when the reply has been sent.
struct EntryPin {
    slice: Rc<RefCell<Slice>>,
    id: EntryId,
    fingerprint_high: u64,
    version: u64,
}

impl EntryPin {
    fn tell(&self, is_sent: bool) {
        tracing::trace!(
            target: ANSWERS,
            fingerprint_high = self.fingerprint_high,
            version = self.version,
            is_sent,
        );
    }
}

impl Drop for EntryPin {
    fn drop(&mut self) {
        self.tell(true);
        let mut slice = self.slice.borrow_mut();
        slice.shard.unpin(self.id);
        slice.drain_effects();
    }
}

/// One core's service.
#[derive(Debug)]
pub(crate) struct CoreService {
    core: CoreIndex,
    /// A map of this node alone: it tells the home core of a key within the node.
    own: ClusterMap,
    arena: Arena,
    slice: Rc<RefCell<Slice>>,
    counts: Rc<Counts>,
}

impl CoreService {
    pub(crate) fn new(core: CoreIndex, own: ClusterMap, limits: ShardLimits, arena: Arena) -> Self {
        let slice = Slice {
            shard: Shard::new(limits),
            extents: Vec::new(),
            moving: Moving::default(),
        };
        Self {
            core,
            own,
            arena,
            slice: Rc::new(RefCell::new(slice)),
            counts: Rc::default(),
        }
    }

    pub(crate) fn stat(&self) -> NodeStat {
        let slice = self.slice.borrow();
        let capacity_bytes = slice.shard.limits().high_watermark_bytes();
        NodeStat {
            state_code: NodeState::Alone.code(),
            ..self.counts.stat(slice.shard.stats(), capacity_bytes)
        }
    }

    /// What it tells of itself.
    pub(crate) fn report(&self) -> CoreReport {
        let stat = self.stat();
        let (copies_moved, moved_bytes) = self.slice.borrow().moving.moved();
        CoreReport {
            core: self.core,
            stat,
            requests: self.counts.requests(&OPS),
            copies_written: stat.shards.puts,
            copies_moved,
            moved_bytes,
            member: None,
            tenants: Vec::new(),
        }
    }

    fn is_home_of(&self, key: Key<'_>) -> bool {
        self.own.home(key.fingerprint()).core == self.core
    }

    fn get(&self, body: &[u8]) -> Result<Response, Status> {
        let key = self.own_key(body)?;
        let mut slice = self.slice.borrow_mut();
        let id = slice.shard.get(key.fingerprint()).ok_or(Status::NotFound)?;
        let extent = slice.extent(id);
        if !extent.holds(key) {
            slice.shard.unpin(id);
            slice.drain_effects();
            let fingerprint_high = key.fingerprint().high();
            tracing::warn!(
                fingerprint_high,
                "two keys with one fingerprint: the later one is a miss"
            );
            return Err(Status::NotFound);
        }
        let (header, region) = (extent.header, extent.payload());
        drop(slice);
        let pin = EntryPin {
            slice: Rc::clone(&self.slice),
            id,
            fingerprint_high: header.fingerprint.high(),
            version: header.version,
        };
        pin.tell(false);
        self.counts.sending(region.len());
        let payload = (!region.is_empty())
            .then(|| Payload::region(region, header.payload_crc32c).pinned(Pin::new(pin)));
        Ok(version_response(Status::Ok, header.version, payload))
    }

    fn put(
        &self,
        request: &RequestHead<'_>,
        counting: &mut Counting,
    ) -> Result<Intake<PendingPut>, Status> {
        let key = self.own_key(request.body)?;
        let layout = ExtentLayout::for_object(key.len_bytes(), request.payload_len_bytes);
        let mut slice = self.slice.borrow_mut();
        let started = slice
            .shard
            .begin_put(key.fingerprint(), carved_bytes(layout));
        slice.drain_effects();
        let id = match started {
            PutStart::Write(id) => id,
            PutStart::Touched(id) => return Ok(Intake::Answer(touched(&slice, id, key)?)),
            PutStart::Busy => return Err(Status::Busy),
            PutStart::Refused(PutRefusal::TooLarge { .. }) => return Err(Status::TooLarge),
            PutStart::Refused(PutRefusal::Full { .. } | PutRefusal::EntriesFull { .. }) => {
                return Err(Status::Full);
            }
        };
        let Some(mut region) = self.carve(&mut slice, layout) else {
            slice.shard.abort_put(id);
            slice.drain_effects();
            return Err(Status::Full);
        };
        drop(slice);
        let key_start = layout.key_offset_bytes as usize;
        let key_end = key_start + key.bytes().len();
        region.as_mut_slice()[key_start..key_end].copy_from_slice(key.bytes());
        let header = ExtentHeader {
            key_len: key.len_bytes(),
            payload_len: request.payload_len_bytes,
            payload_crc32c: request.payload_crc32c,
            version: 0,
            fingerprint: key.fingerprint(),
        };
        if request.payload_len_bytes == 0 {
            return Ok(Intake::Answer(self.commit((id, header), region)));
        }
        let pending = PendingPut {
            id,
            header,
            counting: counting.waits(),
        };
        let payload = layout.payload_offset_bytes as usize..layout.total_bytes as usize;
        let room = Room::of(region, payload);
        Ok(Intake::Receive { pending, room })
    }

    /// Carves an extent. Where memory is in pieces, objects move for it, or more are evicted.
    fn carve(&self, slice: &mut Slice, layout: ExtentLayout) -> Option<RegionMut> {
        let len = layout.total_bytes as usize;
        loop {
            let Slice {
                extents, moving, ..
            } = slice;
            match moving.alloc(&self.arena, len, extents) {
                Ok(region) => return Some(region),
                Err(error) if error.is_backpressure() => {
                    self.counts.waits_for_room();
                    let freed = slice.shard.make_room(u64::from(carved_bytes(layout)));
                    slice.drain_effects();
                    if freed == 0 {
                        return None;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "carving an extent");
                    return None;
                }
            }
        }
    }

    /// Makes a written object resident.
    fn commit(&self, (id, mut header): (EntryId, ExtentHeader), mut region: RegionMut) -> Response {
        let mut slice = self.slice.borrow_mut();
        if header.payload_len % 16 == 7 && mutant::is_on(Mutant::PutDropped) {
            slice.shard.abort_put(id);
            return version_response(Status::Ok, u64::MAX, None);
        }
        header.version = slice.shard.commit_put(id);
        let encoded = header.encode();
        region.as_mut_slice()[..encoded.len()].copy_from_slice(&encoded);
        let extent = Extent {
            region: region.freeze(),
            header,
        };
        slice.keep(id, extent);
        version_response(Status::Ok, header.version, None)
    }

    fn exists(&self, body: &[u8]) -> Result<Response, Status> {
        let keys = self.own_keys(body)?;
        let slice = self.slice.borrow();
        let mut response = Response::default();
        let present = keys.keys().map(|key| {
            let id = slice.shard.lookup(key.fingerprint());
            id.is_some_and(|id| slice.extent(id).holds(key))
        });
        encode_presence(present, &mut response.body);
        Ok(response)
    }

    fn remove(&self, body: &[u8]) -> Result<Response, Status> {
        let keys = self.own_keys(body)?;
        let mut slice = self.slice.borrow_mut();
        let mut response = Response::default();
        let outcomes = keys
            .keys()
            .map(|key| match slice.shard.lookup(key.fingerprint()) {
                Some(id) if !slice.extent(id).holds(key) => RemoveOutcome::NotFound,
                Some(id) => {
                    let version = slice.extent(id).header.version;
                    let outcome = slice.shard.remove(key.fingerprint());
                    tracing::trace!(
                        target: RELEASES,
                        fingerprint_high = key.fingerprint().high(),
                        version,
                        is_removed = true,
                    );
                    outcome
                }
                None => slice.shard.remove(key.fingerprint()),
            });
        encode_removals(outcomes, &mut response.body);
        slice.drain_effects();
        Ok(response)
    }

    fn own_key<'a>(&self, body: &'a [u8]) -> Result<Key<'a>, Status> {
        let KeyRequest { key } = KeyRequest::decode(body).map_err(bad_request)?;
        if self.is_home_of(key) {
            Ok(key)
        } else {
            Err(Status::WrongHome)
        }
    }

    fn own_keys<'a>(&self, body: &'a [u8]) -> Result<KeyBatch<'a>, Status> {
        let keys = KeyBatch::decode(body).map_err(bad_request)?;
        if keys.keys().all(|key| self.is_home_of(key)) {
            Ok(keys)
        } else {
            Err(Status::WrongHome)
        }
    }
}

impl Service for CoreService {
    type Pending = PendingPut;

    fn on_request(&self, request: RequestHead<'_>) -> Intake<PendingPut> {
        let mut counting = self.counts.begin(request.op);
        let answered = match Op::try_from(request.op) {
            Ok(Op::Put) => self.put(&request, &mut counting),
            Ok(Op::Get) => self.get(request.body).map(Intake::Answer),
            Ok(Op::Exists) => self.exists(request.body).map(Intake::Answer),
            Ok(Op::Remove) => self.remove(request.body).map(Intake::Answer),
            Ok(Op::Stat) => stat_response(request.body, || self.stat()).map(Intake::Answer),
            // Those of members of a cluster, and those of later versions.
            Ok(_) | Err(_) => Err(Status::Unsupported),
        };
        let answer = answered.unwrap_or_else(|status| Intake::Answer(refusal(status)));
        if let Intake::Answer(response) = &answer {
            counting.end_with(response.status);
        }
        answer
    }

    fn on_payload(&self, pending: PendingPut, room: Room, outcome: PayloadOutcome) -> Answer {
        let PendingPut {
            id,
            header,
            mut counting,
        } = pending;
        let response = match outcome {
            PayloadOutcome::Intact => {
                self.counts.received(header.payload_len);
                counting.end(Outcome::Ok);
                self.commit((id, header), room.into_region())
            }
            PayloadOutcome::Corrupt | PayloadOutcome::Lost => {
                drop(room);
                let mut slice = self.slice.borrow_mut();
                slice.shard.abort_put(id);
                slice.drain_effects();
                if outcome == PayloadOutcome::Corrupt {
                    counting.end(Outcome::Corrupt);
                }
                refusal(Status::Corrupt)
            }
        };
        response.into()
    }

    fn on_connections(&self, open: usize) {
        self.counts.set_connections(open);
    }
}

/// The answer to a put of a resident key. Another key of the same fingerprint is refused: it could
/// not be told apart by its home.
fn touched(slice: &Slice, id: EntryId, key: Key<'_>) -> Result<Response, Status> {
    let extent = slice.extent(id);
    if !extent.holds(key) {
        let fingerprint_high = key.fingerprint().high();
        tracing::warn!(
            fingerprint_high,
            "two keys with one fingerprint: the later one is refused"
        );
        return Err(Status::Internal);
    }
    Ok(version_response(
        Status::Touched,
        extent.header.version,
        None,
    ))
}

fn version_response(status: Status, version: u64, payload: Option<Payload>) -> Response {
    let mut body = Vec::with_capacity(size_of::<u64>());
    VersionReply { version }.encode(&mut body);
    Response {
        status: status.code(),
        body,
        payload,
    }
}
