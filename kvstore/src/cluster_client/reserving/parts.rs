//! Room for an object in parts, each at the home of its own key.
//!
//! ```text
//!            write ...          commit: all is written        all parts are objects, none is lost
//!   Reserved ----------> Reserved ------------------> Committing -----------------------> the manifest is put
//!      |                                                |      ^
//!      +-- dropped: each part is given back             +------+ nothing was done for a part, or nobody knows: committed again
//! ```
//!
//! - **Nothing is committed before all is written.** What was written is remembered here, so that a commit that comes
//!   too early leaves all parts open.
//! - **Parts live as long as their object is written.** A node keeps room while something is written to it. While
//!   others are written, or still being reserved, a part to which nothing is written is asked after.
//! - **Until the manifest is there, parts that were committed are nobody's**: they are removed with what is left. Their bytes are
//!   nowhere else, so that they are held meanwhile: in memory that is full of what was written in parts just now, the first would
//!   leave before the last is there.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lunette_kvstore_proto::asker::PAUSE;
use lunette_kvstore_proto::filled::{FillRefusal, Filled};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::Status;
use lunette_kvstore_proto::message::directory::KEEP_MS_MAX;
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::striped::{Manifest, Part};
use lunette_runtime::time;
use lunette_runtime_core::time::Time;

use super::slot::{Slot, SlotFailure, Slotted, is_there, lost};
use crate::cluster_client::striping::{
    Former, PARTS_AHEAD_MAX, Parts, Written, of_object, of_part, too_full,
};
use crate::cluster_client::trying::Writing;
use crate::cluster_client::{ClusterClient, PutOptions, Stored};
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// Of the time that nodes keep room to which nothing is written, what passes before it is asked after.
const KEEP_SHARE: u32 = 4;
/// How long a part is held that was committed; then for as long again, while others are.
const COMMITTED_HOLD: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(super) struct PartSlots {
    client: ClusterClient,
    /// Removes what was committed, unless the manifest follows.
    parts: Parts,
    /// In the order of their places.
    slots: Vec<PartSlot>,
    options: PutOptions,
    keep: Duration,
    /// When all nodes have last been told to keep it.
    kept_at: Cell<Time>,
    written: Written,
}

/// Room for a part.
struct PartSlot {
    part: Part,
    state: PartState,
    filled: RefCell<Filled>,
}

/// What has become of it.
enum PartState {
    Reserved(Slot),
    /// Nobody knows whether it was. If not, there may be room for it still.
    MaybeCommitted(Option<Slot>),
    Committed,
    GivenBack,
}

/// A range that is being written, or of which nobody knows what it holds.
struct Filling<'a> {
    filled: &'a RefCell<Filled>,
    range: ByteRange,
    crc32c: Option<u32>,
}

/// What a commit fails with.
struct CommitError {
    error: StoreError,
    /// Whether it can never be done.
    is_over: bool,
}

/// A commit has failed.
pub(super) struct PartsFailure {
    pub(super) error: StoreError,
    pub(super) parts: Option<PartSlots>,
}

impl PartSlots {
    /// Reserves room for each part; for none, if there is not enough for all.
    pub(super) async fn reserve(
        client: &ClusterClient,
        key: Key<'_>,
        manifest: Manifest,
        options: PutOptions,
        keep: Duration,
    ) -> Result<Self, StoreError> {
        let options = of_object(options, &manifest);
        let all: Vec<Part> = manifest.parts().collect();
        let mut reserved = Self {
            client: client.clone(),
            parts: Parts::new(client, key, manifest, COMMITTED_HOLD),
            slots: Vec::with_capacity(all.len()),
            options,
            // No node keeps it for longer.
            keep: keep.min(Duration::from_millis(KEEP_MS_MAX.into())),
            kept_at: Cell::new(time::now()),
            written: Written::default(),
        };
        for some in all.chunks(PARTS_AHEAD_MAX) {
            reserved.reserve_some(some).await?;
        }
        reserved.slots.sort_unstable_by_key(|slot| slot.part.place);
        Ok(reserved)
    }

    /// Reserves room for parts, and has nodes keep what there is of others while that takes long.
    async fn reserve_some(&mut self, some: &[Part]) -> Result<(), StoreError> {
        let mut reserving = FuturesUnordered::new();
        for &part in some {
            let (client, key) = (self.client.clone(), self.parts.key_of(part.place));
            let (options, keep) = (of_part(self.options), self.keep);
            reserving.push(async move {
                match Slot::reserve(&client, key.key(), part.len_bytes, options, keep).await? {
                    Slotted::Slot(slot) => Ok(PartSlot {
                        part,
                        state: PartState::Reserved(slot),
                        filled: RefCell::default(),
                    }),
                    // Nobody else writes under a key that was drawn.
                    Slotted::Exists { .. } => Err(lost()),
                }
            });
        }
        let mut ended = Ok(());
        loop {
            match time::timeout(self.keep / KEEP_SHARE, reserving.next()).await {
                Ok(None) => return ended,
                Ok(Some(Ok(slot))) => self.slots.push(slot),
                // The others are waited for, so that what they get is given back.
                Ok(Some(Err(error))) => ended = ended.and(Err(error)),
                Err(_late) => {}
            }
            if ended.is_ok() {
                ended = self.keep_all().await;
            }
        }
    }

    /// Writes to a range, which lies inside.
    pub(super) async fn write(&self, offset_bytes: usize, value: &Value) -> Result<(), StoreError> {
        let end = offset_bytes + value.len();
        let concerned = self.slots.iter().filter(|slot| {
            let begins_at = slot.begins_at();
            begins_at < end && offset_bytes < begins_at + slot.part.len_bytes as usize
        });
        let concerned: Vec<&PartSlot> = concerned.collect();
        for some in concerned.chunks(PARTS_AHEAD_MAX) {
            let until = time::now() + self.client.timeout;
            let written = some
                .iter()
                .map(|slot| slot.write(offset_bytes, value, until));
            // All are waited for: what has failed may be written again then.
            let written = join_all(written).await.into_iter();
            written.collect::<Result<(), StoreError>>()?;
            self.keep_all().await?;
        }
        Ok(())
    }

    /// Has the nodes keep what nothing was written to for a while.
    async fn keep_all(&self) -> Result<(), StoreError> {
        let now = time::now();
        if now.since(self.kept_at.get()) < self.keep / KEEP_SHARE {
            return Ok(());
        }
        self.kept_at.set(now);
        for some in self.slots.chunks(PARTS_AHEAD_MAX) {
            let nothing = Value::empty();
            let slots = some.iter().filter_map(PartSlot::slot);
            let kept = join_all(slots.map(|slot| slot.write(0, &nothing))).await;
            if kept.contains(&Err(lost())) {
                return Err(lost());
            }
        }
        Ok(())
    }

    /// Makes what was written an object under `key`.
    pub(super) async fn commit(mut self, key: Key<'_>) -> Result<Stored, PartsFailure> {
        match self.try_commit(key).await {
            Ok(stored) => Ok(stored),
            Err(CommitError { error, is_over }) => {
                let parts = (!is_over).then_some(self);
                Err(PartsFailure { error, parts })
            }
        }
    }

    async fn try_commit(&mut self, key: Key<'_>) -> Result<Stored, CommitError> {
        if !self.slots.iter().all(PartSlot::is_whole) {
            let kind = StoreErrorKind::Refused(Status::Unfinished);
            return Err(StoreError::local(kind).into());
        }
        let former = match self.client.former(key, self.options.kind).await? {
            Former::Taken { version } => return Ok(Stored::Exists { version }),
            former => former,
        };
        self.commit_parts().await?;
        let nothing = Value::empty();
        let object = Writing::alone(key, &nothing, self.options);
        let published = self.client.publish(object, &self.parts, None, former);
        Ok(self.written.with_manifest(published.await?))
    }

    async fn commit_parts(&mut self) -> Result<(), CommitError> {
        self.parts.begin_all();
        // Of those that were committed the time before, some may be about to leave.
        self.stay().await?;
        for first in (0..self.slots.len()).step_by(PARTS_AHEAD_MAX) {
            let end = self.slots.len().min(first + PARTS_AHEAD_MAX);
            let some = self.slots[first..end].iter_mut();
            let mut ended = Ok(());
            for written in join_all(some.map(PartSlot::commit)).await {
                match written {
                    Ok(written) => self.written = self.written.and(written),
                    // That one of them is over comes before that others may be tried again.
                    Err(error) if ended.is_ok() || !is_there(&error) => ended = Err(error),
                    Err(_) => {}
                }
            }
            ended?;
            self.stay().await?;
        }
        self.look().await?;
        if self.slots.iter().all(PartSlot::is_committed) {
            Ok(())
        } else {
            Err(StoreError::local(StoreErrorKind::TimedOut).into())
        }
    }

    /// Has what was committed held for longer, if that takes long.
    async fn stay(&mut self) -> Result<(), CommitError> {
        if self.parts.take_long() {
            self.look().await?;
        }
        Ok(())
    }

    /// Looks whether all is there that was committed, and what is there of the rest of which nobody knows.
    async fn look(&mut self) -> Result<(), CommitError> {
        let some = self.slots.iter().filter(|slot| slot.may_be_there());
        let some = some.map(|slot| slot.part).collect();
        let looked = self.client.looked_for(&self.parts, some).await;
        for part in looked.there {
            self.slot_of(part).is_there();
        }
        for part in looked.lost {
            self.slot_of(part).is_gone()?;
        }
        Ok(())
    }

    fn slot_of(&mut self, part: Part) -> &mut PartSlot {
        let place = |slot: &PartSlot| slot.part.place;
        let index = self.slots.binary_search_by_key(&part.place, place);
        &mut self.slots[index.expect("each part has one")]
    }

    /// Gives the room back.
    pub(super) async fn revoke(mut self) -> Result<(), StoreError> {
        let mut ended = Ok(());
        for some in self.slots.chunks_mut(PARTS_AHEAD_MAX) {
            let slots = some.iter_mut().filter_map(PartSlot::take);
            let revoked = join_all(slots.map(Slot::revoke)).await;
            ended = revoked.into_iter().fold(ended, Result::and);
        }
        ended
    }
}

impl PartSlot {
    fn begins_at(&self) -> usize {
        usize::try_from(self.part.offset_bytes).expect("lengths of objects fit in memory")
    }

    /// Writes what of a value belongs here. It waits for what is being written there.
    async fn write(
        &self,
        offset_bytes: usize,
        value: &Value,
        until: Time,
    ) -> Result<(), StoreError> {
        let (begins_at, len_bytes) = (self.begins_at(), self.part.len_bytes as usize);
        let from = offset_bytes.max(begins_at);
        let to = (offset_bytes + value.len()).min(begins_at + len_bytes);
        let bytes = value.slice(from - offset_bytes, to - from);
        bytes.check().map_err(StoreError::local)?;
        let slot = self.slot().ok_or(lost())?;
        let range = ByteRange {
            offset_bytes: (from - begins_at) as u64,
            len_bytes: u32::try_from(to - from).expect("inside a part"),
        };
        let mut filling = Filling::begin(&self.filled, range, until).await?;
        let offset_bytes = u32::try_from(from - begins_at).expect("inside a part");
        slot.write(offset_bytes, &bytes).await?;
        filling.crc32c = Some(bytes.crc32c());
        Ok(())
    }

    const fn slot(&self) -> Option<&Slot> {
        match &self.state {
            PartState::Reserved(slot) => Some(slot),
            PartState::MaybeCommitted(_) | PartState::Committed | PartState::GivenBack => None,
        }
    }

    /// What is to be given back.
    fn take(&mut self) -> Option<Slot> {
        match std::mem::replace(&mut self.state, PartState::GivenBack) {
            PartState::Reserved(slot) => Some(slot),
            PartState::MaybeCommitted(slot) => slot,
            PartState::Committed | PartState::GivenBack => None,
        }
    }

    const fn may_be_there(&self) -> bool {
        matches!(
            self.state,
            PartState::MaybeCommitted(_) | PartState::Committed
        )
    }

    const fn is_committed(&self) -> bool {
        matches!(self.state, PartState::Committed)
    }

    fn is_whole(&self) -> bool {
        self.slot().is_none() || self.filled.borrow().is_whole(self.part.len_bytes)
    }

    /// Makes it an object, unless it may be one.
    async fn commit(&mut self) -> Result<Written, StoreError> {
        if self.slot().is_none() {
            return Ok(Written::default());
        }
        let slot = self.take().expect("it was looked at");
        match slot.commit(Some(COMMITTED_HOLD)).await {
            Ok(stored) => {
                self.state = PartState::Committed;
                Ok(Written::of(&stored))
            }
            // Whether it is there is asked when all are.
            Err(SlotFailure { error, slot }) if is_in_doubt(&error) => {
                self.state = PartState::MaybeCommitted(slot);
                Ok(Written::default())
            }
            Err(SlotFailure { error, slot }) => {
                if let Some(slot) = slot {
                    self.state = PartState::Reserved(slot);
                }
                Err(error)
            }
        }
    }

    /// It was found.
    fn is_there(&mut self) {
        if let Some(slot) = self.take() {
            slot.end();
        }
        self.state = PartState::Committed;
    }

    /// It was not found.
    fn is_gone(&mut self) -> Result<(), CommitError> {
        let error = match std::mem::replace(&mut self.state, PartState::GivenBack) {
            PartState::MaybeCommitted(Some(slot)) => {
                self.state = PartState::Reserved(slot);
                return Ok(());
            }
            // It had to leave.
            PartState::Committed => too_full(),
            PartState::MaybeCommitted(None) | PartState::Reserved(_) | PartState::GivenBack => {
                lost()
            }
        };
        let is_over = true;
        Err(CommitError { error, is_over })
    }
}

/// Whether it may have been committed: where nobody knows, and where there is no room, since it may have been tried before.
fn is_in_doubt(error: &StoreError) -> bool {
    error.kind == StoreErrorKind::Interrupted || *error == lost()
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> Self {
        let is_over = !is_there(&error);
        Self { error, is_over }
    }
}

impl<'a> Filling<'a> {
    async fn begin(
        filled: &'a RefCell<Filled>,
        range: ByteRange,
        until: Time,
    ) -> Result<Self, StoreError> {
        loop {
            let begun = filled.borrow_mut().begin(range);
            // As the node would answer.
            let status = match begun {
                Ok(()) => break,
                Err(FillRefusal::Overlaps | FillRefusal::TooManyUnderWay) => Status::Busy,
                Err(FillRefusal::TooManyPieces) => Status::BadRequest,
            };
            if !status.is_retryable() || time::now() >= until {
                return Err(StoreError::local(StoreErrorKind::Refused(status)));
            }
            time::sleep(PAUSE).await;
        }
        Ok(Self {
            filled,
            range,
            crc32c: None,
        })
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.filled.borrow_mut().end(self.range, self.crc32c);
    }
}
