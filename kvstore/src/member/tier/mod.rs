//! A core's drive takes what leaves memory, and gives it back when it is read.
//!
//! ```text
//!            memory is wanted                 durable                      read
//!  resident ------------------> on its way ------------> on the drive ------------> resident, and on the drive
//!      ^                            |                         |                              |
//!      +--------- refused ----------+                         | its segment is reclaimed     | memory is wanted:
//!      |                                                      v                              | freed at once
//!      +---- no drive, or it refuses: the home lets it go <---+                              +--> on the drive
//! ```
//!
//! The owner serves a copy all the while, and its home hears of nothing: where the bytes lie is this core's own
//! affair. What holds at any time:
//!
//! - A copy's memory is freed when its record is durable, or when its home has recorded that it is gone.
//! - A record is served if the owner has the copy, and version, length and checksum are the copy's.
//! - What a former life of the core has left is told to its homes, which judge it, if it is of this very cluster and the
//!   drive had all of it. Else it is nobody's.
//! - What the owner lets go of is removed from the drive, in the order in which that happens: so what a drive has is no
//!   older than the latest record on it says.
//! - The drive has one record of a key. Another version of it goes there when the former one is no copy any more.
//! - Nothing waits for the drive but who reads from it. A drive that is full, slow or failing takes nothing, and what
//!   leaves memory then leaves altogether.
//!
//! | file | subject |
//! |---|---|
//! | `opening` | [`TierOptions`]: which drives, cut how |
//! | `keeping` | what stays when a segment is reclaimed, and what is lost |
//! | `fetching` | copies come back |
//! | `streaming` | long ones are sent while they do |
//! | `notes` | what a record tells of its copy |
//! | `parking` | what only memory has when the node ends |
//! | `returning` | what a former life of the core left |
//! | `remembering` | what its home knew of removals |

mod fetching;
mod keeping;
mod notes;
mod opening;
mod parking;
mod remembering;
mod returning;
mod streaming;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_log::effect::AppendRefused;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::version::CopyInfo;
use lunette_runtime::arena::Arena;
use lunette_runtime::{can_spawn, spawn_local};
use lunette_runtime_core::time::Time;

use super::core::MemberCore;
use crate::counting::{CopyCounts, DriveReport};
use crate::drive::Drive;
use keeping::Keeping;
use notes::{fingerprint_of, is_of, place_of, version_of};
use remembering::Remembered;
use returning::Former;

pub use opening::{TierOptions, TierPlace};

/// See the [module](self).
pub(crate) struct Tier {
    drive: Drive,
    /// Where what is read comes to lie.
    memory: Arena,
    keeping: Rc<Keeping>,
    records_max: usize,
    /// What was found when it was opened, and which cluster it is, once that is known.
    former: RefCell<Former>,
    cluster: Cell<Option<u64>>,
    remembered: Remembered,
    /// Dead records that the drive has not taken the removal of yet.
    dead: RefCell<BTreeSet<(Fingerprint, Version)>>,
    /// How many copies are on their way back.
    fetching: Rc<Cell<usize>>,
    /// Until when nothing is [streamed](MemberCore::stream).
    is_slow_until: Cell<Time>,
    /// [`TierOptions::park_timeout`].
    park_timeout: Duration,
    counts: TierCounts,
}

#[derive(Debug, Default)]
struct TierCounts {
    demoted: Cell<u64>,
    promoted: Cell<u64>,
    read: Cell<u64>,
    streamed: Cell<u64>,
    refused: Cell<u64>,
}

/// What becomes of a copy that is to leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demotion {
    /// It is on the drive already.
    There,
    /// It is being written.
    OnItsWay,
    /// The drive does not take it.
    Refused,
}

impl Tier {
    /// From now on it is this core's.
    pub(super) fn begin(&self, core: &Rc<MemberCore>) {
        self.keeping.begin(core);
    }

    /// Most copies that it has.
    pub(super) fn records_max(&self) -> usize {
        self.records_max
    }

    /// Whether the drive has these very bytes.
    fn has(&self, place: CopyPlace, info: &CopyInfo) -> bool {
        let found = self.drive.find(fingerprint_of(place));
        found.is_some_and(|record| is_of(&record, info))
    }

    /// Bytes that the drive takes without letting anything go.
    pub(super) fn room_bytes(&self) -> u64 {
        self.keeping.room_bytes()
    }

    /// Time passes.
    pub(super) fn on_tick(&self, core: &MemberCore) {
        self.keeping.measure(&self.drive);
        self.keep_memory(core);
        self.remove_dead();
        self.keeping.give_up_lost(core);
    }

    /// Whether nothing that is lost is still to be told, and nothing that is dead to be removed.
    pub(super) fn is_idle(&self) -> bool {
        self.keeping.is_idle() && self.dead.borrow().is_empty()
    }

    fn demote(&self, core: &MemberCore, place: CopyPlace) -> Demotion {
        let copy = core.machines().borrow().owner.copy(place);
        let Some((info, namespace)) = copy else {
            return Demotion::Refused;
        };
        let Some(extent) = core.bytes().borrow().extent(place) else {
            return Demotion::Refused;
        };
        match self.drive.find(fingerprint_of(place)) {
            Some(record) if is_of(&record, &info) => {
                // It was used while it was in memory.
                self.keeping.has_read(record.fingerprint);
                return Demotion::There;
            }
            Some(record) if self.is_wanted(core, &record) => return Demotion::Refused,
            _ => {}
        }
        if !can_spawn() {
            return Demotion::Refused;
        }
        let Some(record) = self
            .cluster
            .get()
            .and_then(|id| notes::record_of(id, place, &info, namespace))
        else {
            return Demotion::Refused;
        };
        match (self.drive).append(extent.key().bytes(), record, extent.value()) {
            Ok(durable) => {
                let core = self.keeping.core();
                spawn_local(async move {
                    let is_durable = durable.await.is_ok();
                    if let Some(core) = core.upgrade() {
                        core.has_demoted(place, is_durable);
                    }
                });
                Demotion::OnItsWay
            }
            Err(AppendRefused::Here) => Demotion::There,
            Err(refused) => {
                tracing::trace!(?place, %refused, "a copy is not taken by the drive");
                Demotion::Refused
            }
        }
    }

    /// A copy leaves that was not taken, for whatever reason.
    pub(super) fn has_refused(&self) {
        CopyCounts::add(&self.counts.refused);
    }

    /// Whether a record is that of a copy which is served.
    fn is_wanted(&self, core: &MemberCore, record: &Record) -> bool {
        let copy = core.machines().borrow().owner.copy(place_of(record));
        copy.is_some_and(|(info, _)| is_of(record, &info))
    }

    /// The copy is no more: its record is dead.
    pub(super) fn forget(&self, place: CopyPlace) {
        let (fingerprint, version) = (fingerprint_of(place), version_of(place));
        self.keeping.forget(fingerprint);
        self.remove(fingerprint, version);
    }

    /// A drive that has failed takes no removal, and no later record either: what it has is the older for it.
    fn remove(&self, fingerprint: Fingerprint, version: Version) {
        match self.drive.remove(fingerprint, version) {
            Ok(_) => {}
            Err(refused) if refused.is_retryable() => {
                self.dead.borrow_mut().insert((fingerprint, version));
            }
            Err(refused) => tracing::debug!(%refused, "a dead record stays on the drive"),
        }
    }

    /// What the drive was too busy for is removed.
    fn remove_dead(&self) {
        let dead = self.dead.take();
        for (fingerprint, version) in dead {
            self.remove(fingerprint, version);
        }
    }

    /// What it tells of itself.
    pub(super) fn report(&self) -> DriveReport {
        let stats = self.drive.stats();
        DriveReport {
            records: stats.records.saturating_sub(self.keeping.no_copies()),
            live_bytes: stats.live_bytes,
            capacity_bytes: self.keeping.capacity_bytes(),
            written_bytes: stats.written_bytes,
            demoted: self.counts.demoted.get(),
            promoted: self.counts.promoted.get(),
            read: self.counts.read.get(),
            streamed: self.counts.streamed.get(),
            refused: self.counts.refused.get(),
            lost: self.keeping.lost_count(),
            has_failed: stats.has_failed,
            is_away: self.drive.is_away(),
            remembers: self.remembers(),
        }
    }
}

impl MemberCore {
    /// A copy is to leave memory: whether the drive has it, or is about to.
    pub(super) fn demote(&self, place: CopyPlace) -> bool {
        let Some(tier) = self.tier() else {
            return false;
        };
        match tier.demote(self, place) {
            Demotion::There => {
                self.bytes().borrow_mut().leave(place);
                self.free_memory(tier, place);
            }
            Demotion::OnItsWay => {
                self.bytes().borrow_mut().leave(place);
                self.tell_copy(place, "demotes");
            }
            Demotion::Refused => return false,
        }
        true
    }

    /// A record was written, or was not.
    fn has_demoted(&self, place: CopyPlace, is_durable: bool) {
        let Some(tier) = self.tier() else {
            return;
        };
        let copy = self.machines().borrow().owner.copy(place);
        if is_durable && copy.is_some_and(|(info, _)| tier.has(place, &info)) {
            self.free_memory(tier, place);
        } else {
            // Others may leave in its place, or it will another time.
            self.bytes().borrow_mut().stay(place);
        }
    }

    fn free_memory(&self, tier: &Tier, place: CopyPlace) {
        CopyCounts::add(&tier.counts.demoted);
        self.bytes().borrow_mut().free(place);
        self.tell_copy(place, "demoted");
    }
}
