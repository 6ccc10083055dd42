//! What stays when a segment is reclaimed, and what is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_runtime::time;

use super::notes::{self, is_of, place_of};
use crate::drive::{Drive, Keeper, Loss};
use crate::member::core::MemberCore;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Keeping {
    core: RefCell<Weak<MemberCore>>,
    /// Whether it is known whose the records are: until then they stay.
    is_settled: Cell<bool>,
    capacity_bytes: u64,
    /// What it takes before it is as full as it is to be, when that was last looked at.
    room_bytes: Cell<u64>,
    /// Records that were read since they were written, or whose copies left memory since: they get another turn. As many as there are records.
    read: RefCell<BTreeSet<Fingerprint>>,
    /// Copies whose records are gone, until their homes are told.
    lost: RefCell<Vec<(CopyPlace, Loss)>>,
    lost_count: Cell<u64>,
    /// Whether what the home knew is being written, which stays.
    remembers: Cell<bool>,
    /// Records that are no copies.
    no_copies: RefCell<BTreeSet<Fingerprint>>,
}

impl Keeping {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            room_bytes: Cell::new(capacity_bytes),
            ..Self::default()
        }
    }

    pub(super) fn begin(&self, core: &Rc<MemberCore>) {
        *self.core.borrow_mut() = Rc::downgrade(core);
    }

    /// From now on what the home knew is on the drive.
    pub(super) fn remember(&self) {
        self.remembers.set(true);
    }

    /// A record that is no copy is on the drive, or is not any more.
    pub(super) fn note_no_copy(&self, fingerprint: Fingerprint, is_there: bool) {
        let mut no_copies = self.no_copies.borrow_mut();
        if is_there {
            no_copies.insert(fingerprint);
        } else {
            no_copies.remove(&fingerprint);
        }
    }

    /// How many there are.
    pub(super) fn no_copies(&self) -> u64 {
        self.no_copies.borrow().len() as u64
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
        let room_bytes = if stats.has_failed {
            0
        } else {
            stats.room_bytes
        };
        self.room_bytes.set(room_bytes);
    }

    pub(super) const fn room_bytes(&self) -> u64 {
        self.room_bytes.get()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lost.borrow().is_empty()
    }

    /// The homes of what is lost, and is not in memory either, are told: also of what is held, which nobody can keep any more, and
    /// of what is arriving, once it is here.
    pub(super) fn give_up_lost(&self, core: &MemberCore) {
        let lost = self.lost.take();
        if lost.is_empty() {
            return;
        }
        for (place, loss) in lost {
            if core.bytes().borrow().has(place) {
                continue;
            }
            if core.lose(place) {
                let is_evicted = loss == Loss::Reclaimed;
                core.tell_copy(place, if is_evicted { "leaves" } else { "lost" });
            } else if core.machines().borrow().owner.stays(place) {
                self.lost.borrow_mut().push((place, loss));
            }
        }
        core.settle();
    }
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
        if self.remembers.get() && notes::is_no_copy(&record) {
            return true;
        }
        let place = place_of(&record);
        let machines = core.machines().borrow();
        let copy = machines.owner.copy(place);
        let is_served = copy.is_some_and(|(info, _)| is_of(&record, &info));
        let is_held = machines.owner.held_until(time::now(), place).is_some();
        let was_read = self.read.borrow_mut().remove(&record.fingerprint);
        is_served && (is_held || was_read || self.room_bytes() > 0)
    }

    fn lost(&self, fingerprint: Fingerprint, version: Version, loss: Loss) {
        self.forget(fingerprint);
        self.note_no_copy(fingerprint, false);
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
        let stays = core.machines().borrow().owner.stays(place);
        if stays {
            self.lost_count.set(self.lost_count.get() + 1);
            self.lost.borrow_mut().push((place, loss));
            core.busy.raise();
        }
    }

    fn failed(&self) {
        tracing::error!("a drive has failed: what leaves memory leaves altogether from now on");
    }
}
