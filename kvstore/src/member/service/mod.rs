//! Requests to one core of a member.
//!
//! | file | subject |
//! |---|---|
//! | `writing` | writes and replicas, whose bytes come with them |
//! | `scattering` | writes of many objects in one request |
//! | `reserved` | objects whose bytes come in ranges |
//! | `reading` | reads, lookups and removals |
//! | `gathering` | objects of many keys in one answer |
//! | `messages` | requests that come by messages, between adapters |
//! | `pushing` | bytes that adapters write to the reader's memory |
//! | `describing` | where bytes lie, for readers of this host and by adapters |
//! | `clearing` | "remove all" |
//! | `listing` | keys of what is here |

mod clearing;
mod describing;
mod gathering;
mod listing;
mod messages;
mod pushing;
mod quotas;
mod reading;
mod reserved;
mod scattering;
mod writing;

use std::rc::Rc;

use futures_channel::mpsc;
use lunette_kvstore_proto::message::directory::SeatMessage;
use lunette_kvstore_proto::message::{FormatVersion, NodeStat, Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::shard::ShardStats;
use lunette_runtime::time;
use lunette_transfer::{
    Answer, ConnectionId, Intake, PayloadOutcome, RequestHead, Response, Room, Service,
};

use super::core::MemberCore;
use super::steering::Steer;
use crate::counting::{CoreReport, Counting, Outcome};
use crate::refusals::{bad_request, refusal, stat_response};
use reserved::PendingFill;
use scattering::{PendingScatter, on_scattered};
use writing::{PendingReplica, PendingWrite, on_written};

/// What members of clusters are asked.
const OPS: [Op; 32] = [
    Op::Stat,
    Op::Map,
    Op::Tell,
    Op::Ask,
    Op::Write,
    Op::Find,
    Op::Read,
    Op::Replicate,
    Op::Reserve,
    Op::Fill,
    Op::Commit,
    Op::Revoke,
    Op::Clear,
    Op::Peek,
    Op::Meet,
    Op::FindNear,
    Op::ReadNear,
    Op::Gather,
    Op::Adapters,
    Op::Pair,
    Op::FindPushed,
    Op::ReadPushed,
    Op::FindFar,
    Op::ReadFar,
    Op::Reach,
    Op::PairAsking,
    Op::WritePulled,
    Op::List,
    Op::Scatter,
    Op::Quota,
    Op::Retire,
    Op::Clock,
];

/// Requests that may wait at one core; further ones are told that it is busy.
pub(super) const WAITERS_MAX: usize = 64 * 1024;

/// What is kept while bytes arrive.
pub(crate) enum Pending {
    Write(PendingWrite),
    Replica(PendingReplica),
    Fill(PendingFill),
    Scatter(PendingScatter),
}

/// The service of one core.
pub(crate) struct MemberService {
    core: Rc<MemberCore>,
    /// The node's membership.
    steering: mpsc::Sender<Steer>,
    /// Messages that came in the next version.
    #[cfg(feature = "next-version")]
    next: std::cell::Cell<u64>,
}

impl MemberService {
    pub(crate) const fn new(core: Rc<MemberCore>, steering: mpsc::Sender<Steer>) -> Self {
        Self {
            core,
            steering,
            #[cfg(feature = "next-version")]
            next: std::cell::Cell::new(0),
        }
    }

    #[cfg(feature = "next-version")]
    fn count_next(&self, version: FormatVersion) {
        let is_next = version == FormatVersion::NEWEST;
        self.next.set(self.next.get() + u64::from(is_next));
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
            ..self.core.counts.of_member()
        };
        let capacity_bytes = bytes.limits().high_watermark_bytes();
        let (state, lease_left) = self.core.standing();
        let now = time::now();
        let drive = self.core.drive_report();
        let has_drive = drive.is_some();
        let drive = drive.unwrap_or_default();
        NodeStat {
            epoch: self.core.map().epoch().0,
            lease_left_ms: u64::try_from(lease_left.as_millis()).unwrap_or(u64::MAX),
            state_code: state.code(),
            replica_room_bytes: self.core.replica_room_bytes(now, false),
            repair_room_bytes: self.core.replica_room_bytes(now, true),
            load_permille: self.core.load_permille().into(),
            pinned_bytes: held.hard_pinned_bytes,
            drives: has_drive.into(),
            drives_down: (drive.has_failed || drive.is_away).into(),
            drive_entries: drive.records,
            drive_used_bytes: drive.live_bytes,
            drive_capacity_bytes: drive.capacity_bytes,
            drive_reads: drive.read,
            #[cfg(feature = "next-version")]
            next: self.next.get(),
            ..self.core.counts.stat(shard, capacity_bytes)
        }
    }

    /// What it tells of itself.
    pub(crate) fn report(&self) -> CoreReport {
        let (copies_moved, moved_bytes) = self.core.bytes().borrow().moved();
        CoreReport {
            core: self.core.seat().core,
            stat: self.stat(),
            requests: self.core.counts.requests(&OPS),
            copies_written: self.core.copies.written.get(),
            copies_moved,
            moved_bytes,
            member: Some(self.core.member_report()),
            tenants: self.core.tenant_reports(),
        }
    }

    /// What another seat says; what there is for it at once goes back with the answer.
    fn tell(&self, body: &[u8]) -> Result<Response, Status> {
        let message = SeatMessage::decode(body).map_err(bad_request)?;
        let version = version_of(body)?;
        #[cfg(feature = "next-version")]
        self.count_next(version);
        self.check(message.to)?;
        let from = message.from;
        self.core.on_told(message);
        let mut response = Response::default();
        if let Some(message) = self.core.post.take(from) {
            self.core.post.count_sent();
            message.encode(version, &mut response.body);
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

    /// Checks whether something new may be written or removed here.
    fn check_begin(&self, to: Seat) -> Result<(), Status> {
        self.check(to)?;
        if self.core.is_leaving() {
            return Err(Status::WrongSeat);
        }
        Ok(())
    }

    fn check_waiters(&self) -> Result<(), Status> {
        if self.core.asks.len() < WAITERS_MAX {
            Ok(())
        } else {
            Err(Status::Busy)
        }
    }
}

impl Service for MemberService {
    type Pending = Pending;

    fn on_request(&self, request: RequestHead<'_>) -> Intake<Pending> {
        let mut counting = self.core.counts.begin(request.op);
        let counted = &mut counting;
        let answered = match Op::try_from(request.op) {
            Ok(Op::Map) => self.map(request.body).map(Intake::Answer),
            Ok(Op::Tell) => self.tell(request.body).map(Intake::Answer),
            Ok(Op::Ask) => self.ask(request.body, counted),
            Ok(Op::Write) => self.write(&request, counted),
            Ok(Op::WritePulled) => self.write_pulled(&request, counted),
            Ok(Op::Scatter) => self.scatter(&request, counted),
            Ok(Op::Find) => self.find(request.body, counted),
            Ok(Op::Read) => self.read(request.body, counted),
            Ok(Op::Replicate) => self.replicate(&request, counted),
            Ok(Op::Reserve) => self.reserve(request.body).map(Intake::Answer),
            Ok(Op::Fill) => self.fill(&request, counted),
            Ok(Op::Commit) => self.commit(request.body, counted),
            Ok(Op::Revoke) => self.revoke(request.body).map(Intake::Answer),
            Ok(Op::Clear) => self.clear(request.body, counted),
            Ok(Op::Retire) => self.retire(request.body, &mut counting),
            Ok(Op::Clock) => self.clock(request.body).map(Intake::Answer),
            Ok(Op::Quota) => self.quota(request.body, counted),
            Ok(Op::List) => self.list(request.body, counted),
            Ok(Op::Peek) => self.peek(request.body).map(Intake::Answer),
            Ok(Op::Gather) => self.gather(request.body).map(Intake::Answer),
            Ok(Op::Meet) => self.meet(request.body).map(Intake::Answer),
            Ok(Op::FindNear) => self.find_near(request.body, counted),
            Ok(Op::ReadNear) => self.read_near(request.body, counted),
            Ok(Op::Adapters) => self.adapters(request.body).map(Intake::Answer),
            Ok(Op::Pair) => self.pair(&request, false).map(Intake::Answer),
            Ok(Op::PairAsking) => self.pair(&request, true).map(Intake::Answer),
            Ok(Op::FindPushed) => self.find_pushed(&request, counted),
            Ok(Op::ReadPushed) => self.read_pushed(&request, counted),
            Ok(Op::FindFar) => self.find_far(&request, counted),
            Ok(Op::ReadFar) => self.read_far(&request, counted),
            Ok(Op::Reach) => self.reach_all(&request).map(Intake::Answer),
            Ok(Op::Stat) => stat_response(request.body, || self.stat()).map(Intake::Answer),
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
        match pending {
            Pending::Write(pending) => on_written(&self.core, pending, room, outcome),
            Pending::Replica(pending) => self.on_replicated(pending, room, outcome),
            Pending::Fill(pending) => self.on_filled(pending, room, outcome),
            Pending::Scatter(pending) => on_scattered(&self.core, pending, room, outcome),
        }
    }

    fn on_connections(&self, open: usize) {
        self.core.counts.set_connections(open);
    }

    fn on_ended(&self, connection: ConnectionId) {
        self.core.pushing().on_ended(connection);
    }
}

/// The version of a request, in which it is answered.
fn version_of(body: &[u8]) -> Result<FormatVersion, Status> {
    FormatVersion::of(body).map_err(bad_request)
}

/// The answer where bytes have not come as they were sent.
fn damaged(mut counting: Counting, outcome: PayloadOutcome) -> Answer {
    if outcome == PayloadOutcome::Corrupt {
        counting.end(Outcome::Corrupt);
    }
    refusal(Status::Corrupt).into()
}
