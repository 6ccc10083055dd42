//! Copies come back from the drive.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::shard::EntryId;
use lunette_kvstore_proto::version::CopyInfo;
use lunette_runtime::time;
use lunette_runtime_core::limits::KEY_BYTES_MAX;

use super::Tier;
use super::notes::{fingerprint_of, is_of};
use crate::counting::CopyCounts;
use crate::drive::{OnDrive, ReadError};
use crate::member::bytes::Extent;
use crate::member::core::MemberCore;

/// How often a read that finds the drive busy is tried, and how long apart.
const TRIES_MAX: usize = 1000;
const TRY_AGAIN: Duration = Duration::from_millis(1);
/// From this length on what was read stays where it has come to lie; less is copied to where it takes no more than
/// it needs.
const ADOPTED_BYTES_MIN: u32 = 64 << 10;
/// What is read beside a payload at most: the key in front of it, and to whole blocks.
const READ_BESIDE_BYTES_MAX: usize = KEY_BYTES_MAX + 2 * BLOCK_BYTES as usize;

/// A copy whose bytes were on the drive.
pub(crate) struct Fetched {
    pub(crate) extent: Extent,
    /// Its entry, which is pinned, if there was room for it in memory.
    pub(crate) pinned: Option<EntryId>,
}

/// Most copies that may be on their way back: further reads are told that the core is busy.
const FETCHES_MAX: usize = 4096;

/// A copy that is on its way back, for as long as this lives.
pub(crate) struct Fetching {
    under_way: Rc<Cell<usize>>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.under_way.set(self.under_way.get() - 1);
    }
}

impl MemberCore {
    /// A copy is to come back: `None` if as many are on their way as may be.
    pub(crate) fn begin_fetch(&self) -> Option<Fetching> {
        let under_way = Rc::clone(&self.tier()?.fetching);
        let fetches = under_way.get();
        (fetches < FETCHES_MAX).then(|| {
            under_way.set(fetches + 1);
            Fetching { under_way }
        })
    }

    /// Whether the bytes of a copy are on the drive.
    pub(crate) fn is_on_drive(&self, place: CopyPlace, info: &CopyInfo) -> bool {
        self.tier().is_some_and(|tier| tier.has(place, info))
    }

    /// The bytes of a copy that is on the drive, which are in memory from now on if there is room for them. `None` if
    /// the copy is no more, or the drive cannot read it, or is too busy for long.
    pub(crate) async fn fetch(
        self: Rc<Self>,
        place: CopyPlace,
        info: CopyInfo,
        key: Option<Box<[u8]>>,
    ) -> Option<Fetched> {
        let tier = self.tier()?;
        let extent = tier.read(place, &info, key.as_deref()).await?;
        self.take_in(tier, place, extent)
    }

    /// A copy has been read; `None` if it is no more.
    pub(super) fn take_in(&self, tier: &Tier, place: CopyPlace, extent: Extent) -> Option<Fetched> {
        // It may have been removed meanwhile, and it may be here by now.
        self.machines().borrow().owner.copy(place)?;
        let pinned = self.bytes().borrow_mut().pin_any(place);
        Some(match pinned {
            Some((id, extent)) => Fetched {
                extent,
                pinned: Some(id),
            },
            None => self.promote(tier, place, extent),
        })
    }

    /// The key of a copy that is on the drive; `None` if the drive cannot read it, has it no more, or is too busy for long.
    pub(crate) async fn key_on_drive(&self, place: CopyPlace) -> Option<Box<[u8]>> {
        self.tier()?.read_key(place).await
    }

    /// The bytes of a copy, from wherever they are.
    pub(crate) async fn extent_of(
        self: &Rc<Self>,
        place: CopyPlace,
        info: CopyInfo,
    ) -> Option<Extent> {
        let here = self.bytes().borrow().extent(place);
        if here.is_some() {
            return here;
        }
        let _fetching = self.begin_fetch()?;
        let fetched = Rc::clone(self).fetch(place, info, None).await?;
        if let Some(id) = fetched.pinned {
            self.bytes().borrow_mut().unpin(id);
        }
        Some(fetched.extent)
    }

    fn promote(&self, tier: &Tier, place: CopyPlace, read: Extent) -> Fetched {
        let is_kept = if read.len_bytes() >= ADOPTED_BYTES_MIN {
            self.bytes().borrow_mut().adopt(place, read.clone())
        } else {
            self.with_moving(|bytes, held| bytes.keep_copied(place, &read, held))
        };
        let pinned = if is_kept {
            CopyCounts::add(&tier.counts.promoted);
            self.tell_copy(place, "promoted");
            self.bytes().borrow_mut().pin_any(place)
        } else {
            None
        };
        let is_tight = {
            let bytes = self.bytes().borrow();
            let of_tenant = pinned.as_ref().map(|&(id, _)| bytes.is_tight_for(id));
            of_tenant.unwrap_or_else(|| bytes.is_tight())
        };
        if is_tight {
            self.make_room();
        }
        match pinned {
            Some((id, extent)) => Fetched {
                extent,
                pinned: Some(id),
            },
            None => Fetched {
                extent: read,
                pinned: None,
            },
        }
    }
}

impl Tier {
    /// What a read comes to, which is tried while the drive is busy; `None` if it fails, or that takes long.
    pub(super) async fn tried<T>(
        &self,
        place: CopyPlace,
        read: impl AsyncFn() -> Result<Option<T>, ReadError>,
    ) -> Option<T> {
        for _ in 0..TRIES_MAX {
            match read().await {
                Ok(found) => return found,
                Err(ReadError::Busy) => {
                    self.make_way(place);
                    time::sleep(TRY_AGAIN).await;
                }
                Err(error) => {
                    tracing::debug!(?place, %error, "a copy was not read from the drive");
                    return None;
                }
            }
        }
        None
    }

    /// Copies move out of the way of a read, if that is what it waits for.
    fn make_way(&self, place: CopyPlace) {
        let core = self.keeping.core().upgrade();
        let record = self.drive.find(fingerprint_of(place));
        if let (Some(core), Some(record)) = (core, record) {
            let len_bytes = record.len_bytes as usize + READ_BESIDE_BYTES_MAX;
            core.with_moving(|bytes, held| drop(bytes.alloc(len_bytes, held)));
        }
    }

    /// The key of a copy whose bytes are on the drive, if it can be read.
    async fn read_key(&self, place: CopyPlace) -> Option<Box<[u8]>> {
        let fingerprint = fingerprint_of(place);
        let read = async || self.drive.read_key(fingerprint, &self.memory).await;
        let found = self.tried(place, read).await?;
        let key = Key::new(&found).ok()?;
        (key.fingerprint() == place.key).then_some(found)
    }

    async fn read(&self, place: CopyPlace, info: &CopyInfo, key: Option<&[u8]>) -> Option<Extent> {
        let fingerprint = fingerprint_of(place);
        let read = async || self.drive.read(fingerprint, key, &self.memory).await;
        let found = self.tried(place, read).await?;
        if !is_of(&found.record, info) {
            return None;
        }
        self.has_read(place, &found)
    }

    /// A copy has been read, and is right.
    pub(super) fn has_read(&self, place: CopyPlace, found: &OnDrive) -> Option<Extent> {
        let key = Key::new(found.key()).ok();
        key.filter(|key| key.fingerprint() == place.key)?;
        CopyCounts::add(&self.counts.read);
        self.keeping.has_read(fingerprint_of(place));
        Some(Extent::on_drive(found))
    }
}
