//! What the home beside a drive knew of removals: the drive keeps it from one life of the node to the next.
//!
//! It is written when the node has left, and before that when nothing has been removed for a while, for the case that the node
//! crashes: then it is forgotten before the next removal ends. It lies in records of its own, which are no copies: none is wanted of them, and no key has their fingerprints.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use lunette_kvstore_log::record::{Fingerprint, Record, Version};
use lunette_kvstore_proto::home::{Home, HomeMemory, MEMORY_PIECES_MAX};
use lunette_kvstore_proto::key::Key;
use lunette_runtime::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN, HugePages, Region};
use lunette_runtime::{can_spawn, spawn_local, time};
use lunette_runtime_core::checksum::crc32c;
use lunette_runtime_core::ids::NodeId;
use lunette_runtime_core::time::Time;
use thiserror::Error;

use super::Tier;
use super::notes;
use crate::drive::ReadError;
use crate::member::core::MemberCore;

/// How long a drive that has enough to write is left alone.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a drive may take to keep what a home knew when its node has left.
const REMEMBER_WAIT: Duration = Duration::from_secs(5);
/// How long a drive may take to keep what a home knows while the node serves.
const KEEP_WAIT: Duration = Duration::from_secs(10);
/// How long a drive may take to forget that. Removals and upserts wait for it.
const FORGET_WAIT: Duration = Duration::from_secs(1);

/// What of it is on the drive.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    /// How often it was begun to be written.
    written: Cell<u64>,
    /// The first piece, which is written last: without it the others are nothing.
    first: Cell<Option<(Fingerprint, Version)>>,
    /// How often it was forgotten.
    forgotten: Cell<u64>,
    is_keeping: Cell<bool>,
    is_forgetting: Cell<bool>,
    /// All of it is durable.
    is_there: Cell<bool>,
}

/// Why what a home knew is not kept.
#[derive(Clone, Copy, Debug, Error)]
enum NotKept {
    #[error("the drive has not taken it in time, or has failed")]
    Drive,
    #[error("there is no memory for it")]
    Memory,
    #[error("it is too long")]
    Long,
    #[error("more is known by now")]
    Outdated,
}

/// What a piece is appended under.
fn name_of(piece: usize) -> String {
    format!("lunette: what a home knew, {piece}")
}

/// No key's.
fn fingerprint_of(piece: usize) -> Fingerprint {
    let key = Key::new(name_of(piece).as_bytes()).map(|key| key.fingerprint().0);
    Fingerprint(!key.expect("a short key"))
}

impl MemberCore {
    /// The node has left: has its drive keep what the home knew, and says when it is done.
    pub(crate) fn begin_to_remember(self: &Rc<Self>, done: oneshot::Sender<()>) {
        let memory = self.machines().borrow().home.memory();
        let Some(memory) = memory.filter(|_| self.tier().is_some()) else {
            // Who waits is told by that.
            return drop(done);
        };
        let core = Rc::clone(self);
        let remembering = spawn_local(async move {
            let until = time::now() + REMEMBER_WAIT;
            let tier = core.tier().expect("it was there");
            let remembered = tier.remember(core.seat().node, &memory, (until, &|| true));
            if let Err(error) = remembered.await {
                tracing::warn!(%error, "the drive does not keep what was removed");
            }
            if done.send(()).is_err() {
                tracing::debug!("nobody waits for this core to remember");
            }
        });
        drop(remembering);
    }

    /// Whether its home has something for the drive to forget.
    fn is_outdated(&self) -> bool {
        self.machines().borrow().home.is_outdated()
    }

    async fn keep_memory(&self, memory: &HomeMemory) {
        let Some(tier) = self.tier() else {
            return;
        };
        let remembered = &tier.remembered;
        let (until, before) = (time::now() + KEEP_WAIT, remembered.forgotten.get());
        let may = || {
            let is_forgotten = remembered.forgotten.get() != before || self.is_outdated();
            !is_forgotten && !self.is_leaving()
        };
        remembered.is_there.set(false);
        match tier.remember(self.seat().node, memory, (until, &may)).await {
            Ok(()) => remembered.is_there.set(may()),
            Err(NotKept::Outdated) => {}
            Err(error) => tracing::debug!(%error, "what is known of removals is not kept"),
        }
        remembered.is_keeping.set(false);
    }

    /// What cannot be forgotten counts no more under another map.
    async fn forget_memory(&self) {
        let Some(tier) = self.tier() else {
            return;
        };
        let remembered = &tier.remembered;
        remembered.forgotten.set(remembered.forgotten.get() + 1);
        remembered.is_there.set(false);
        if tier.has_forgotten(time::now() + FORGET_WAIT).await {
            remembered.first.set(None);
            self.at_home(Home::has_forgotten);
        } else if self.is_outdated() {
            self.renew_map();
            time::sleep(FORGET_WAIT).await;
        }
        remembered.is_forgetting.set(false);
    }
}

impl Tier {
    /// Has the drive keep what the home knows, and forget it when it knows more, also while that is still written. See
    /// [`Home::keep`].
    pub(super) fn keep_memory(&self, core: &MemberCore) {
        if !can_spawn() {
            return;
        }
        let core = if core.is_outdated() {
            (!self.remembered.is_forgetting.replace(true)).then(|| self.keeping.core())
        } else {
            return self.begin_to_keep(core);
        };
        if let Some(core) = core {
            spawn_local(async move {
                if let Some(core) = core.upgrade() {
                    core.forget_memory().await;
                }
            });
        }
    }

    fn begin_to_keep(&self, core: &MemberCore) {
        let is_ready = self.cluster.get().is_some() && !self.drive.stats().has_failed;
        if !is_ready || core.is_leaving() || self.remembered.is_keeping.get() {
            return;
        }
        let memory = core.machines().borrow_mut().home.keep(time::now());
        let Some(memory) = memory else {
            return;
        };
        self.remembered.is_keeping.set(true);
        let core = self.keeping.core();
        spawn_local(async move {
            if let Some(core) = core.upgrade() {
                core.keep_memory(&memory).await;
            }
        });
    }

    /// Whether it has what the home knows now.
    pub(super) fn remembers(&self) -> bool {
        let core = self.keeping.core().upgrade();
        let is_current = core.is_some_and(|core| core.machines().borrow().home.is_kept());
        is_current && self.remembered.is_there.get()
    }

    /// Has the drive forget what it keeps; whether it has.
    async fn has_forgotten(&self, until: Time) -> bool {
        let Some((fingerprint, version)) = self.remembered.first.get() else {
            return true;
        };
        loop {
            match self.drive.remove(fingerprint, version) {
                Ok(removed) => {
                    let left = until.since(time::now());
                    self.keeping.note_no_copy(fingerprint, false);
                    return matches!(time::timeout(left, removed).await, Ok(Ok(())));
                }
                Err(refused) if refused.is_retryable() && time::now() < until => {
                    time::sleep(PAUSE).await;
                }
                Err(refused) => {
                    tracing::warn!(%refused, "what was known of removals is not forgotten");
                    return false;
                }
            }
        }
    }

    /// Has the drive keep what the home knows or knew, until then and as long as it may.
    async fn remember(
        &self,
        node: NodeId,
        memory: &HomeMemory,
        (until, may): (Time, &dyn Fn() -> bool),
    ) -> Result<(), NotKept> {
        self.keeping.remember();
        let cluster = self.cluster.get().ok_or(NotKept::Drive)?;
        let pieces = memory.encode(node).ok_or(NotKept::Long)?;
        let number = self.remembered.written.get() + 1;
        self.remembered.written.set(number);
        for (at, piece) in pieces.enumerate().rev() {
            let record = Record {
                fingerprint: fingerprint_of(at),
                len_bytes: u32::try_from(piece.len()).expect("a piece is bounded"),
                crc32c: crc32c(&piece),
                ..notes::memory_record(cluster, memory.known.epoch, number)
            };
            let bytes = lent(&piece).ok_or(NotKept::Memory)?;
            self.write_piece(at, record, &bytes, (until, may)).await?;
        }
        Ok(())
    }

    async fn write_piece(
        &self,
        at: usize,
        record: Record,
        bytes: &Region,
        (until, may): (Time, &dyn Fn() -> bool),
    ) -> Result<(), NotKept> {
        loop {
            if !may() {
                return Err(NotKept::Outdated);
            }
            match (self.drive).append(name_of(at).as_bytes(), record, bytes.clone()) {
                Ok(durable) => {
                    if at == 0 {
                        let first = (record.fingerprint, record.version);
                        self.remembered.first.set(Some(first));
                    }
                    let left = until.since(time::now());
                    let written = time::timeout(left, durable).await;
                    return match written {
                        Ok(Ok(_)) => {
                            self.keeping.note_no_copy(record.fingerprint, true);
                            Ok(())
                        }
                        Ok(Err(_)) | Err(_) => Err(NotKept::Drive),
                    };
                }
                Err(refused) if refused.is_retryable() && time::now() < until => {
                    time::sleep(PAUSE).await;
                }
                Err(refused) => {
                    tracing::debug!(%refused, "what a home knew of removals");
                    return Err(NotKept::Drive);
                }
            }
        }
    }

    /// What the home knew when its node left the last time, if the drive has that, of this cluster and node.
    pub(super) async fn recall(
        &self,
        (cluster, node): (u64, NodeId),
        records: &[Record],
    ) -> Option<HomeMemory> {
        let known = records.iter().filter(|it| notes::is_memory(cluster, it));
        let latest = known.clone().map(|record| record.version).max()?;
        // An earlier one that was longer has left some.
        let known = known.filter(|record| record.version == latest);
        let mut pieces = Vec::new();
        for record in known.take(MEMORY_PIECES_MAX) {
            self.keeping.note_no_copy(record.fingerprint, true);
            match self.read_piece(record.fingerprint).await {
                Ok(Some(piece)) => pieces.push(piece),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "what a home knew of removals"),
            }
        }
        let memory = HomeMemory::decode(node, pieces.iter().map(Region::as_slice));
        match memory {
            Ok(memory) => Some(memory),
            Err(fault) => {
                tracing::warn!(%fault, "what a home knew of removals");
                None
            }
        }
    }

    async fn read_piece(&self, fingerprint: Fingerprint) -> Result<Option<Region>, ReadError> {
        loop {
            match self.drive.read(fingerprint, None, &self.memory).await {
                Ok(found) => return Ok(found.map(|found| found.bytes())),
                Err(error) if error.is_retryable() => time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Memory of its own for a piece: what the core has may be full.
fn lent(piece: &[u8]) -> Option<Region> {
    let arena = Arena::new(ArenaOptions {
        bytes_max: CHUNK_BYTES_MIN,
        chunk_bytes: CHUNK_BYTES_MIN,
        huge_pages: HugePages::Never,
        lock: false,
    });
    let mut room = arena.alloc(piece.len()).ok()?;
    room.as_mut_slice().copy_from_slice(piece);
    Some(room.freeze())
}
