//! Replicas: copies beyond the first, made behind the acknowledgement of a write, and copies in place of
//! those that were lost.
//!
//! The replicas of writes go first, and one is made at a time. Making up for losses takes at most half of
//! the time of whoever does it, so that what a lost node held does not come between a core and those that
//! use it. What has no room in a queue is not forgotten: the home of a key says so, again and again, for as
//! long as copies are missing.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_proto::message::directory::{CopyPlace, ReplicaMessage};
use lunette_kvstore_proto::message::{Op, Status};
use lunette_kvstore_proto::placement::Seat;
use lunette_kvstore_proto::placement::choice::choose;
use lunette_kvstore_proto::version::CopyInfo;
use lunette_runtime::{Signal, entropy, time};
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::limits::KEY_BYTES_MAX;
use lunette_runtime_core::time::Time;
use lunette_transfer::{Attachments, Payload};

use super::core::MemberCore;
use super::offers::{Offers, holder};
use crate::counting::CopyCounts;
use crate::seats::Seats;
use crate::value::extent_bytes;

/// Copies of writes that may wait for their replicas. Those of further ones are made when their homes say
/// that they are missing.
const WRITES_MAX: usize = 16 * 1024;
/// Copies that may wait because others were lost. Of further ones their homes tell again.
const REPAIRS_MAX: usize = 4 * 1024;
/// How long making one replica may take.
const REPLICATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a copy is to have replicas.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    /// It has just been written.
    Write,
    /// Its home says that some are missing.
    Repair {
        missing: u8,
        /// The nodes that have one.
        holders: Vec<NodeId>,
        /// Until then the home tells nobody else.
        until: Time,
    },
}

impl Cause {
    pub(super) const fn is_repair(&self) -> bool {
        matches!(self, Self::Repair { .. })
    }
}

/// A copy that is to have replicas.
#[derive(Clone, Debug)]
pub(super) struct Scarce {
    pub(super) place: CopyPlace,
    pub(super) info: CopyInfo,
    pub(super) namespace: NamespaceKind,
    pub(super) cause: Cause,
}

impl Scarce {
    /// How many are to be made.
    const fn missing(&self) -> u8 {
        match &self.cause {
            Cause::Write => self.info.wanted.saturating_sub(1),
            Cause::Repair { missing, .. } => *missing,
        }
    }

    /// The nodes that have a copy.
    fn holders(&self, own: NodeId) -> Vec<NodeId> {
        let mut holders = vec![own];
        if let Cause::Repair { holders: known, .. } = &self.cause {
            holders.extend(known.iter().filter(|node| **node != own));
        }
        holders
    }
}

/// What is to be done next.
enum Next {
    Now(Scarce),
    /// Nothing before then.
    At(Time),
    Nothing,
}

/// The copies of one core that are to have replicas, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Scarcity {
    writes: RefCell<VecDeque<Scarce>>,
    repairs: RefCell<VecDeque<Scarce>>,
    /// Raised when there is one.
    wake: Signal,
}

impl Scarcity {
    /// Adds a copy, if there is room for it.
    pub(super) fn push(&self, scarce: Scarce) {
        let (queue, queue_max) = if scarce.cause.is_repair() {
            (&self.repairs, REPAIRS_MAX)
        } else {
            (&self.writes, WRITES_MAX)
        };
        let mut queue = queue.borrow_mut();
        if queue.len() >= queue_max {
            tracing::debug!(place = ?scarce.place, "too many copies wait for replicas: its come later");
            return;
        }
        queue.push_back(scarce);
        self.wake.raise();
    }

    /// The next one: of those whose home may have told somebody else by now, none.
    fn next(&self, now: Time, repair_from: Time) -> Next {
        if let Some(scarce) = self.writes.borrow_mut().pop_front() {
            return Next::Now(scarce);
        }
        let mut repairs = self.repairs.borrow_mut();
        repairs.retain(|scarce| matches!(scarce.cause, Cause::Repair { until, .. } if now < until));
        if repairs.is_empty() {
            return Next::Nothing;
        }
        if now < repair_from {
            return Next::At(repair_from);
        }
        repairs.pop_front().map_or(Next::Nothing, Next::Now)
    }
}

/// Makes the replicas of copies that are to have some, one after the other.
pub(super) async fn replicate(core: Rc<MemberCore>, seats: Rc<Seats>) {
    let mut offers = Offers::default();
    let mut repair_from = Time::ZERO;
    loop {
        match core.scarcity.next(time::now(), repair_from) {
            Next::Now(scarce) => {
                let begun = time::now();
                replicate_one(&core, &seats, &mut offers, &scarce).await;
                if scarce.cause.is_repair() {
                    let ended = time::now();
                    repair_from = ended + ended.since(begun);
                }
            }
            Next::At(at) => {
                let wait = at.since(time::now());
                let early = time::timeout(wait, core.scarcity.wake.raised()).await;
                tracing::trace!(?early, "replicas");
            }
            Next::Nothing => core.scarcity.wake.raised().await,
        }
    }
}

async fn replicate_one(core: &Rc<MemberCore>, seats: &Seats, offers: &mut Offers, scarce: &Scarce) {
    let map = core.map();
    let extent_bytes = extent_bytes_of(core, scarce);
    let holders = scarce.holders(core.seat().node);
    let holders = holders.into_iter().map(|node| holder(&map, node));
    let mut taken: Vec<_> = holders.collect();
    for _ in 0..scarce.missing() {
        let found = offers.find(core, seats, scarce, &taken, extent_bytes).await;
        let draws = [entropy(), entropy()];
        let all: Vec<_> = found.iter().map(|(_, offer)| *offer).collect();
        let Some(index) = choose(&all, extent_bytes, &taken, draws) else {
            tracing::debug!(place = ?scarce.place, "nobody has room for a replica");
            CopyCounts::add(&core.copies.replicas_failed);
            return;
        };
        let (to, offer) = found[index];
        taken.push(offer);
        match send_replica(core, seats, scarce, to).await {
            Ok(()) => {
                offers.take(to, extent_bytes);
                CopyCounts::add(&core.copies.replicas_made);
            }
            Err(why) => {
                tracing::debug!(?to, why, "a replica was not made");
                offers.forget(to);
                CopyCounts::add(&core.copies.replicas_failed);
            }
        }
    }
}

/// How much of a node's memory it takes; of one on the drive nobody knows how long its key is.
fn extent_bytes_of(core: &MemberCore, scarce: &Scarce) -> u64 {
    match core.bytes().borrow().extent_bytes(scarce.place) {
        0 => extent_bytes(KEY_BYTES_MAX, scarce.info.len_bytes as usize),
        known => known,
    }
}

async fn send_replica(
    core: &Rc<MemberCore>,
    seats: &Seats,
    scarce: &Scarce,
    to: Seat,
) -> Result<(), &'static str> {
    let connection = seats.connection(to).await;
    let connection = connection.map_err(|_fault| "it cannot be reached")?;
    let extent = core.extent_of(scarce.place, scarce.info).await;
    let extent = extent.ok_or("the copy is gone")?;
    let message = ReplicaMessage {
        to,
        info: scarce.info,
        namespace: scarce.namespace,
        is_repair: scarce.cause.is_repair(),
        pin: core.bytes().borrow().pin_of(scarce.place),
        key: extent.key(),
    };
    let value = extent.value();
    let attachments = Attachments {
        payload: (!value.is_empty()).then(|| Payload::region(value, extent.crc32c)),
        room: None,
        arrange: None,
    };
    let write = |out: &mut Vec<u8>| message.encode(connection.version, out);
    let reply = connection.call(Op::Replicate.code(), write, attachments, REPLICATE_TIMEOUT);
    let reply = reply.await.map_err(|_failure| "the call failed")?;
    match Status::from_code(reply.status) {
        Status::Ok => Ok(()),
        Status::Full => Err("it has no room"),
        Status::Busy => Err("it has just begun, and is filled slowly"),
        _ => Err("it was refused"),
    }
}

#[cfg(test)]
mod tests {
    use lunette_cluster::proto::map::Epoch;
    use lunette_kvstore_proto::key::Fingerprint;
    use lunette_kvstore_proto::version::{Form, Generation, Version, WriteKind};

    use super::*;

    fn scarce(number: usize, cause: Cause) -> Scarce {
        let version = Version {
            epoch: Epoch(1),
            sequence: number as u64,
        };
        let key = Fingerprint(7);
        Scarce {
            place: CopyPlace { key, version },
            info: CopyInfo {
                version,
                kind: WriteKind::Put,
                form: Form::Whole,
                generation: Generation(0),
                wanted: 3,
                len_bytes: 1,
                crc32c: 0,
            },
            namespace: NamespaceKind::Cache,
            cause,
        }
    }

    fn repair(number: usize, until: u64) -> Scarce {
        let cause = Cause::Repair {
            missing: 1,
            holders: vec![NodeId(1), NodeId(2)],
            until: Time::from_ns(until),
        };
        scarce(number, cause)
    }

    fn next(scarcity: &Scarcity, now: u64, repair_from: u64) -> Option<u64> {
        match scarcity.next(Time::from_ns(now), Time::from_ns(repair_from)) {
            Next::Now(scarce) => Some(scarce.place.version.sequence),
            Next::At(_) | Next::Nothing => None,
        }
    }

    #[test]
    fn copies_that_wait_are_bounded_and_keep_their_order() {
        for (is_repair, queue_max) in [(false, WRITES_MAX), (true, REPAIRS_MAX)] {
            let scarcity = Scarcity::default();
            for number in 0..=queue_max {
                scarcity.push(if is_repair {
                    repair(number, 9)
                } else {
                    scarce(number, Cause::Write)
                });
            }
            for number in 0..queue_max {
                assert_eq!(next(&scarcity, 1, 0), Some(number as u64));
            }
            assert_eq!(next(&scarcity, 1, 0), None, "one too many");
        }
    }

    #[test]
    fn writes_go_first_and_repairs_wait_for_their_turn() {
        let scarcity = Scarcity::default();
        scarcity.push(repair(1, 9));
        scarcity.push(repair(2, 9));
        scarcity.push(scarce(3, Cause::Write));
        assert_eq!(next(&scarcity, 4, 5), Some(3));
        let waits = scarcity.next(Time::from_ns(4), Time::from_ns(5));
        assert!(matches!(waits, Next::At(at) if at == Time::from_ns(5)));
        assert_eq!(next(&scarcity, 5, 5), Some(1));
        assert_eq!(next(&scarcity, 9, 5), None, "its home tells somebody else");
    }

    #[test]
    fn as_many_are_made_as_are_missing_and_not_where_there_is_one() {
        let written = scarce(1, Cause::Write);
        assert_eq!(written.missing(), 2);
        assert_eq!(written.holders(NodeId(1)), [NodeId(1)]);
        let lost = repair(1, 9);
        assert_eq!(lost.missing(), 1);
        assert_eq!(lost.holders(NodeId(1)), [NodeId(1), NodeId(2)]);
        let moved = lost.holders(NodeId(3));
        assert_eq!(moved, [NodeId(3), NodeId(1), NodeId(2)]);
    }
}
