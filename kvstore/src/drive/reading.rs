//! An object comes back, and is compared with its checksum.

use std::rc::Rc;

use lunette_kvstore_log::effect::{LossCause, PinRefused, ReadOutcome, ReadPlan};
use lunette_kvstore_log::format::BLOCK_BYTES;
use lunette_kvstore_log::log::Log;
use lunette_kvstore_log::record::{Fingerprint, Record};
use lunette_runtime::arena::{AllocError, Arena, Region, RegionMut};
use lunette_runtime::{spawn_local, time};
use lunette_runtime_core::checksum::Crc32c;
use thiserror::Error;

use super::device::ReadFault;
use super::driving::Shared;
use super::ended::Ended;
use super::remote::Patience;
use super::{Drive, Loss};

/// Who reads waits for it.
pub(super) const BRISK: Patience = Patience::Brisk;
/// Bytes that are summed in one turn of the core.
const SUMMED_PER_TURN_BYTES: usize = 1 << 20;

/// An object that was read, whose checksum is right.
#[derive(Clone, Debug)]
pub struct OnDrive {
    /// What is known of it.
    pub record: Record,
    /// What was read of the drive: the key and the payload, each from where it begins, and what is around them.
    pub window: Region,
    /// Where the key begins in it, and its length.
    pub key_at: u32,
    /// Length of the key in bytes.
    pub key_len: u16,
    /// Where the payload begins in it.
    pub payload_at: u32,
}

impl OnDrive {
    /// The key that it was appended under.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.window.as_slice()[self.key_at as usize..][..self.key_len.into()]
    }

    /// Its payload.
    #[must_use]
    pub fn bytes(&self) -> Region {
        (self.window).slice(self.payload_at as usize, self.record.len_bytes as usize)
    }
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// As many reads are under way as may, or no memory is free for another: later.
    #[error("too much is being read at this time")]
    Busy,
    /// Longer than anything in this arena may be.
    #[error("no memory for the object: {0}")]
    Memory(AllocError),
    /// The drive cannot read it, or cannot be reached. It is gone, and the owner was told.
    #[error("the drive could not read it")]
    Unreadable,
    /// It is not what was written. It is gone, and the owner was told.
    #[error("its bytes are damaged")]
    Damaged,
}

impl ReadError {
    /// Whether the same may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.is_backpressure()
    }

    /// Whether there is too much at this time.
    #[must_use]
    pub const fn is_backpressure(&self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Whether bytes that were once right have changed.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Damaged)
    }
}

impl Drive {
    /// Reads an object, if it is durable here, into memory of `arena`. With a `key`, any other one that it was
    /// appended under is damage. A read whose future is dropped goes on to its end for nothing.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read(
        &self,
        fingerprint: Fingerprint,
        key: Option<&[u8]>,
        arena: &Arena,
    ) -> Result<Option<OnDrive>, ReadError> {
        let Some(plan) = self.pin(fingerprint)? else {
            return Ok(None);
        };
        let room = self.room(&plan, plan.len_bytes, arena)?;
        let (shared, ended) = (Rc::clone(&self.shared), Ended::new());
        let reading = read(shared, plan, room, key.map(Box::from), Rc::clone(&ended));
        self.begin(&plan, reading)?;
        ended.wait().await.map(Some)
    }

    /// Reads the key that an object was appended under, if that is durable here, and of the object no more than lies in the
    /// same blocks. What was read is not checked: whoever knows the key's fingerprint can tell. Dropped, it goes on to
    /// its end for nothing.
    ///
    /// # Errors
    /// [`ReadError`], never `Damaged`.
    pub async fn read_key(
        &self,
        fingerprint: Fingerprint,
        arena: &Arena,
    ) -> Result<Option<Box<[u8]>>, ReadError> {
        let Some(plan) = self.pin(fingerprint)? else {
            return Ok(None);
        };
        let key_end = plan.key_at + u32::from(plan.key_len);
        let len = key_end.next_multiple_of(BLOCK_BYTES).min(plan.len_bytes);
        let room = self.room(&plan, len, arena)?;
        let (shared, ended) = (Rc::clone(&self.shared), Ended::new());
        let told = Rc::clone(&ended);
        let reading = async move {
            let reading = (shared.device).read(room, len as usize, plan.offset_bytes, BRISK);
            let (key, outcome) = match reading.await {
                (Ok(()), room) => {
                    let key = &room.as_slice()[plan.key_at as usize..key_end as usize];
                    (Ok(Box::from(key)), ReadOutcome::Right)
                }
                (Err(_fault), _) => (Err(ReadError::Unreadable), ReadOutcome::Failed),
            };
            shared.end_read(&plan, outcome);
            told.end(key);
        };
        self.begin(&plan, reading)?;
        ended.wait().await.map(Some)
    }

    /// Where an object lies, which stays there until its read ends.
    pub(super) fn pin(&self, fingerprint: Fingerprint) -> Result<Option<ReadPlan>, ReadError> {
        match self.shared.with_log(|log| log.pin(fingerprint)) {
            Ok(plan) => Ok(Some(plan)),
            Err(PinRefused::NotHere) => Ok(None),
            Err(PinRefused::TooMany { .. }) => Err(ReadError::Busy),
        }
    }

    /// Begins the task of a read, which has ended if there is none for it.
    pub(super) fn begin(
        &self,
        plan: &ReadPlan,
        reading: impl Future<Output = ()> + 'static,
    ) -> Result<(), ReadError> {
        if spawn_local(reading).is_finished() {
            self.shared.end_read(plan, ReadOutcome::Right);
            return Err(ReadError::Busy);
        }
        Ok(())
    }

    /// Memory for a read, which has ended if there is none.
    pub(super) fn room(
        &self,
        plan: &ReadPlan,
        len: u32,
        arena: &Arena,
    ) -> Result<RegionMut, ReadError> {
        arena.alloc(len as usize).map_err(|error| {
            self.shared.end_read(plan, ReadOutcome::Right);
            if error.is_backpressure() {
                ReadError::Busy
            } else {
                ReadError::Memory(error)
            }
        })
    }
}

/// A task of its own, since the segment is kept until the drive has done with it.
async fn read(
    shared: Rc<Shared>,
    plan: ReadPlan,
    room: RegionMut,
    key: Option<Box<[u8]>>,
    ended: Rc<Ended<Result<OnDrive, ReadError>>>,
) {
    let len = plan.len_bytes as usize;
    let reading = (shared.device).read(room, len, plan.offset_bytes, BRISK);
    let (result, room) = reading.await;
    let outcome = match result {
        Ok(()) => checked(&plan, room.freeze(), key.as_deref()).await,
        // What cannot be reached is as good as gone: else whoever asks would wait for it, and nobody could put it again.
        Err(ReadFault::Away | ReadFault::Failed) => Err(ReadError::Unreadable),
    };
    let for_log = match outcome {
        Err(ReadError::Unreadable) => ReadOutcome::Failed,
        Err(_) => ReadOutcome::Damaged,
        Ok(_) => ReadOutcome::Right,
    };
    shared.end_read(&plan, for_log);
    ended.end(outcome);
}

async fn checked(
    plan: &ReadPlan,
    window: Region,
    key: Option<&[u8]>,
) -> Result<OnDrive, ReadError> {
    let found = OnDrive {
        record: plan.record,
        window,
        key_at: plan.key_at,
        key_len: plan.key_len,
        payload_at: plan.payload_at,
    };
    let bytes = found.bytes();
    let mut checksum = Crc32c::new();
    for part in bytes.as_slice().chunks(SUMMED_PER_TURN_BYTES) {
        checksum.fold(part);
        if bytes.len() > SUMMED_PER_TURN_BYTES {
            time::yield_now().await;
        }
    }
    if key.is_some_and(|key| found.key() != key) || checksum.value() != plan.record.crc32c {
        return Err(ReadError::Damaged);
    }
    Ok(found)
}

impl Shared {
    pub(super) fn end_read(self: &Rc<Self>, plan: &ReadPlan, outcome: ReadOutcome) {
        let Record {
            fingerprint,
            version,
            ..
        } = plan.record;
        let is_here = |log: &mut Log| {
            let record = log.get(fingerprint);
            record.is_some_and(|record| record.version == version)
        };
        let is_lost = self.with_log(|log| {
            let was_here = is_here(log);
            log.end_read(time::now(), plan.pin, outcome);
            was_here && !is_here(log)
        });
        let cause = match outcome {
            ReadOutcome::Failed => LossCause::Unreadable,
            ReadOutcome::Right | ReadOutcome::Damaged => LossCause::Damaged,
        };
        if is_lost {
            self.keeper.lost(fingerprint, version, Loss::Drive(cause));
        }
        self.pump();
    }
}
