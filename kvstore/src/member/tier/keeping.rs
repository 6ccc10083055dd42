//! What stays when a segment is reclaimed, and what is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::owner::EvictRefusal;

use super::notes::{is_of, place_of};
use crate::drive::{Drive, Keeper, Loss};
use crate::member::core::MemberCore;

/// As long as less than this share of a drive is alive, what is alive stays: 7 of 8 parts.
const ROOMY_SHARE: (u64, u64) = (7, 8);
/// The same of the records that its index has room for. Reclaim begins at seven eighths of them, with those on their way.
const ROOMY_RECORDS_SHARE: (u64, u64) = (3, 4);

/// See the [module](self).
#[derive(Default)]
pub(super) struct Keeping {
    core: RefCell<Weak<MemberCore>>,
    /// Whether it is known whose the records are: until then they stay.
    is_settled: Cell<bool>,
    capacity_bytes: u64,
    records_max: u64,
    /// What it takes before it is as full as it is to be, when that was last looked at.
    room_bytes: Cell<u64>,
    /// Records that were read since they were written: they get another turn. As many as there are records.
    read: RefCell<BTreeSet<Fingerprint>>,
    /// Copies whose records are gone, until their homes are told.
    lost: RefCell<Vec<CopyPlace>>,
    lost_count: Cell<u64>,
}

impl Keeping {
    pub(super) fn new(capacity_bytes: u64, records_max: u64) -> Self {
        Self {
            capacity_bytes,
            records_max,
            room_bytes: Cell::new(capacity_bytes),
            ..Self::default()
        }
    }

    pub(super) fn begin(&self, core: &Rc<MemberCore>) {
        *self.core.borrow_mut() = Rc::downgrade(core);
    }

    pub(super) fn settle(&self) {
        self.is_settled.set(true);
    }

    pub(super) fn core(&self) -> Weak<MemberCore> {
        self.core.borrow().clone()
    }

    pub(super) const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(super) const fn lost_count(&self) -> u64 {
        self.lost_count.get()
    }

    pub(super) fn has_read(&self, fingerprint: Fingerprint) {
        self.read.borrow_mut().insert(fingerprint);
    }

    pub(super) fn forget(&self, fingerprint: Fingerprint) {
        self.read.borrow_mut().remove(&fingerprint);
    }

    /// How much of the drive is alive.
    pub(super) fn measure(&self, drive: &Drive) {
        let stats = drive.stats();
        let room = if stats.has_failed {
            0
        } else {
            room_bytes(
                (self.capacity_bytes, stats.live_bytes),
                (self.records_max, stats.records),
            )
        };
        self.room_bytes.set(room);
    }

    pub(super) const fn room_bytes(&self) -> u64 {
        self.room_bytes.get()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lost.borrow().is_empty()
    }

    /// The homes of what is lost, and is not in memory either, are told.
    pub(super) fn give_up_lost(&self, core: &MemberCore) {
        let lost = self.lost.take();
        if lost.is_empty() {
            return;
        }
        for place in lost {
            if core.bytes().borrow().has(place) {
                continue;
            }
            match core.evict(place) {
                Ok(()) => core.tell_copy(place, "leaves"),
                Err(EvictRefusal::Held { .. }) => self.lost.borrow_mut().push(place),
                Err(EvictRefusal::NotPublished) => {}
            }
        }
        core.settle();
    }
}

/// How much a drive takes before it is as full as it is to be, of bytes or, by their mean length, of records. Of both: how
/// many there may be, and how many there are.
fn room_bytes((capacity_bytes, live_bytes): (u64, u64), (records_max, records): (u64, u64)) -> u64 {
    let left =
        |max: u64, used: u64, (part, whole): (u64, u64)| (max / whole * part).saturating_sub(used);
    let room_bytes = left(capacity_bytes, live_bytes, ROOMY_SHARE);
    let room_records = left(records_max, records, ROOMY_RECORDS_SHARE);
    let by_records = live_bytes
        .checked_div(records)
        .map(|mean_bytes| room_records.saturating_mul(mean_bytes));
    by_records.map_or(room_bytes, |by_records| room_bytes.min(by_records))
}

impl Keeper for Keeping {
    fn keeps(&self, record: Record) -> bool {
        let Some(core) = self
            .core
            .borrow()
            .upgrade()
            .filter(|_| self.is_settled.get())
        else {
            return !self.is_settled.get();
        };
        let copy = core.machines().borrow().owner.copy(place_of(&record));
        let is_served = copy.is_some_and(|(info, _)| is_of(&record, &info));
        let was_read = self.read.borrow_mut().remove(&record.fingerprint);
        is_served && (was_read || self.room_bytes() > 0)
    }

    fn lost(&self, fingerprint: Fingerprint, version: Version, loss: Loss) {
        self.forget(fingerprint);
        let Some(core) = self.core.borrow().upgrade() else {
            return;
        };
        if let Loss::Drive(cause) = loss {
            tracing::warn!(?cause, "a drive has lost a copy");
        }
        let record = Record {
            fingerprint,
            version,
            ..Record::default()
        };
        let place = place_of(&record);
        let is_served = core.machines().borrow().owner.copy(place).is_some();
        if is_served {
            self.lost_count.set(self.lost_count.get() + 1);
            self.lost.borrow_mut().push(place);
            core.busy.raise();
        }
    }

    fn failed(&self) {
        tracing::error!("a drive has failed: what leaves memory leaves altogether from now on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_full_by_bytes_or_by_records() {
        for (bytes, records, room) in [
            ((800, 0), (80, 0), 700),
            ((800, 100), (80, 10), 500),
            ((800, 100), (80, 1), 600),
            ((800, 700), (80, 7), 0),
            // Shorter than the index is made for.
            ((800, 100), (80, 50), 20),
            ((800, 120), (80, 60), 0),
            ((800, 140), (80, 70), 0),
        ] {
            assert_eq!(room_bytes(bytes, records), room, "{bytes:?} {records:?}");
        }
    }
}
