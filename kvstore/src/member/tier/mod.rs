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
//! - A record is served if the owner has the copy, and version, length and checksum are the copy's: what an earlier
//!   life of the core has left on the drive is nobody's.
//! - The drive has one record of a key. Another version of it goes there when the former one is no copy any more.
//! - Nothing waits for the drive but who reads from it. A drive that is full, slow or failing takes nothing, and what
//!   leaves memory then leaves altogether.
//!
//! | file | subject |
//! |---|---|
//! | `opening` | [`TierOptions`]: which drives, cut how |
//! | `keeping` | what stays when a segment is reclaimed, and what is lost |
//! | `fetching` | copies come back |

mod fetching;
mod keeping;
mod opening;

use std::cell::Cell;
use std::rc::Rc;

use lunette_cluster::proto::fence::NamespaceKind;
use lunette_kvstore_log::effect::AppendRefused;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::version::{CopyInfo, Form, WriteKind};
use lunette_runtime::arena::Arena;
use lunette_runtime::{can_spawn, spawn_local};

use super::core::MemberCore;
use crate::counting::{CopyCounts, DriveReport};
use crate::drive::Drive;
use keeping::Keeping;

pub use opening::TierOptions;

/// See the [module](self).
pub(crate) struct Tier {
    drive: Drive,
    /// Where what is read comes to lie.
    memory: Arena,
    keeping: Rc<Keeping>,
    records_max: usize,
    /// How many copies are on their way back.
    fetching: Rc<Cell<usize>>,
    counts: TierCounts,
}

#[derive(Debug, Default)]
struct TierCounts {
    demoted: Cell<u64>,
    promoted: Cell<u64>,
    read: Cell<u64>,
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
        self.keeping.give_up_lost(core);
    }

    /// Whether nothing that is lost is still to be told.
    pub(super) fn is_idle(&self) -> bool {
        self.keeping.is_idle()
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
            Some(record) if is_of(&record, &info) => return Demotion::There,
            Some(record) if self.is_wanted(core, &record) => return Demotion::Refused,
            _ => {}
        }
        if !can_spawn() {
            return Demotion::Refused;
        }
        let record = record_of(place, &info, namespace);
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
                CopyCounts::add(&self.counts.refused);
                Demotion::Refused
            }
        }
    }

    /// Whether a record is that of a copy which is served.
    fn is_wanted(&self, core: &MemberCore, record: &Record) -> bool {
        let copy = core.machines().borrow().owner.copy(place_of(record));
        copy.is_some_and(|(info, _)| is_of(record, &info))
    }

    /// The copy is no more: its record is dead. Where the drive does not take that, the record is nobody's from now
    /// on, and takes room until its segment is reclaimed.
    pub(super) fn forget(&self, place: CopyPlace) {
        let (fingerprint, version) = (fingerprint_of(place), version_of(place));
        self.keeping.forget(fingerprint);
        if let Err(refused) = self.drive.remove(fingerprint, version) {
            tracing::debug!(?place, %refused, "a dead record stays on the drive");
        }
    }

    /// What it tells of itself.
    pub(super) fn report(&self) -> DriveReport {
        let stats = self.drive.stats();
        DriveReport {
            records: stats.records,
            live_bytes: stats.live_bytes,
            capacity_bytes: self.keeping.capacity_bytes(),
            written_bytes: stats.written_bytes,
            demoted: self.counts.demoted.get(),
            promoted: self.counts.promoted.get(),
            read: self.counts.read.get(),
            refused: self.counts.refused.get(),
            lost: self.keeping.lost_count(),
            has_failed: stats.has_failed,
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
            Demotion::There => self.free_memory(tier, place),
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

fn fingerprint_of(place: CopyPlace) -> Fingerprint {
    Fingerprint(place.key.0)
}

const fn version_of(place: CopyPlace) -> Version {
    Version {
        epoch: place.version.epoch.0,
        sequence: place.version.sequence,
    }
}

fn place_of(record: &Record) -> CopyPlace {
    use lunette_cluster::proto::map::Epoch;
    use lunette_kvstore_proto::{key, version};
    CopyPlace {
        key: key::Fingerprint(record.fingerprint.0),
        version: version::Version {
            epoch: Epoch(record.version.epoch),
            sequence: record.version.sequence,
        },
    }
}

/// Whether a record has the bytes of a copy of its key.
fn is_of(record: &Record, info: &CopyInfo) -> bool {
    let is_same_version = (record.version.epoch, record.version.sequence)
        == (info.version.epoch.0, info.version.sequence);
    is_same_version && (record.len_bytes, record.crc32c) == (info.len_bytes, info.crc32c)
}

/// The record of a copy. Its notes have what else is known of it: in bits 0 to 7 how many copies there are to be,
/// and then one bit each that says whether it was an upsert, in parts, and of a strict namespace.
fn record_of(place: CopyPlace, info: &CopyInfo, namespace: NamespaceKind) -> Record {
    let is_upsert = u32::from(info.kind == WriteKind::Upsert);
    let is_striped = u32::from(info.form == Form::Striped);
    let is_strict = u32::from(namespace == NamespaceKind::Strict);
    Record {
        fingerprint: fingerprint_of(place),
        version: version_of(place),
        generation: info.generation.0,
        notes: u32::from(info.wanted) | is_upsert << 8 | is_striped << 9 | is_strict << 10,
        len_bytes: info.len_bytes,
        crc32c: info.crc32c,
    }
}
