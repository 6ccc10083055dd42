//! Objects: puts, gets, parts of objects, and many of them at a time.

use std::collections::VecDeque;
use std::time::Duration;

use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::WAIT_MS_MAX;
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::range::{ByteRange, RANGES_MAX};
use lunette_kvstore_proto::version::COPIES_WANTED_MAX;
use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer::Room;

use super::running::{Brought, Ended};
use super::{ClusterClient, Fetched, PutOptions, Stored, valid};
use crate::client::GetFailure;
use crate::error::{StoreError, StoreErrorKind};
use crate::value::Value;

/// How long to wait for a newer map before a write is tried elsewhere.
const MAP_WAIT: Duration = Duration::from_millis(50);
/// How many of a batch are begun before the first has ended.
const BATCH_AHEAD: usize = 1024;

impl ClusterClient {
    /// Writes `value` under `key`, at the key's home.
    ///
    /// The value's bytes are pinned until they have been sent, also if the future is dropped; the write
    /// may happen all the same then.
    ///
    /// # Errors
    /// [`StoreError`]: `TimedOut` if nothing was done in time; `Interrupted` if it may have been.
    pub async fn put(
        &self,
        key: &[u8],
        value: Value,
        options: PutOptions,
    ) -> Result<Stored, StoreError> {
        let until = time::now() + self.timeout;
        let (key, begun) = self.check_and_begin(key, &value, options, until)?;
        self.put_begun(key, &value, options, until, begun).await
    }

    /// As [`put`](Self::put), of many objects, whose results are in their order. Their bytes are on the way
    /// at the same time; there is no order between them.
    ///
    /// # Errors
    /// One for each.
    pub async fn put_all(
        &self,
        objects: &[(Vec<u8>, Value)],
        options: PutOptions,
    ) -> Vec<Result<Stored, StoreError>> {
        let until = time::now() + self.timeout;
        let end = async |begun: Result<_, StoreError>| {
            let (key, value, begun) = begun?;
            self.put_begun(key, value, options, until, begun).await
        };
        let objects = objects.iter();
        let begun = objects.map(|(key, value)| {
            let begun = self.check_and_begin(key, value, options, until);
            begun.map(|(key, begun)| (key, value, begun))
        });
        batch(begun, end).await
    }

    fn check_and_begin<'a>(
        &self,
        key: &'a [u8],
        value: &Value,
        options: PutOptions,
        until: Time,
    ) -> Result<(Key<'a>, Option<impl Future<Output = Ended> + use<>>), StoreError> {
        let key = valid(key)?;
        value.check().map_err(StoreError::local)?;
        options.check()?;
        Ok((key, self.begin_put(key, value, options, until)))
    }

    /// `None`: nobody is the key's home.
    fn begin_put(
        &self,
        key: Key<'_>,
        value: &Value,
        options: PutOptions,
        until: Time,
    ) -> Option<impl Future<Output = Ended> + use<>> {
        let seat = home_of(&self.asking.map(), key.fingerprint())?;
        let wish = self.write_at(seat, key, options, until);
        let brought = Brought::Value(value.clone());
        Some(self.asking.begin(key, wish, brought, until))
    }

    async fn put_begun(
        &self,
        key: Key<'_>,
        value: &Value,
        options: PutOptions,
        until: Time,
        mut begun: Option<impl Future<Output = Ended>>,
    ) -> Result<Stored, StoreError> {
        loop {
            let ended = match begun.take() {
                Some(begun) => Some(begun.await),
                None => match self.begin_put(key, value, options, until) {
                    Some(begun) => Some(begun.await),
                    None => None,
                },
            };
            if let Some(ended) = ended
                && let Some(stored) = stored(ended)?
            {
                return Ok(stored);
            }
            // Nothing was done there: perhaps the home is another node by now.
            self.wait_for_map(until).await?;
        }
    }

    /// A write at an owner, for as long as there is time.
    pub(super) fn write_at(
        &self,
        seat: Seat,
        key: Key<'_>,
        options: PutOptions,
        until: Time,
    ) -> Wish {
        let wait_ms = until.since(time::now()).as_millis();
        let ask = WriteAsk {
            key: key.fingerprint(),
            kind: options.kind,
            namespace: self.asking.namespace(),
            wanted: options.copies,
            wait_ms: u32::try_from(wait_ms).map_or(WAIT_MS_MAX, |ms| ms.min(WAIT_MS_MAX)),
        };
        Wish::Write(seat, ask)
    }

    pub(super) async fn wait_for_map(&self, until: Time) -> Result<(), StoreError> {
        if time::now() >= until {
            return Err(StoreError::local(StoreErrorKind::TimedOut));
        }
        self.asking.renew_map(MAP_WAIT).await;
        Ok(())
    }

    /// Gets the value under `key` into the front of `room`; its checksum has been verified.
    ///
    /// The room is lent until the future ends. Dropping the future frees it as soon as no receive
    /// into it is in flight.
    ///
    /// # Errors
    /// [`GetFailure`], with the room.
    pub async fn get(&self, key: &[u8], room: Room) -> Result<Fetched, GetFailure> {
        fetched(self.begin_get(key, Vec::new(), room)?.await)
    }

    /// Gets ranges of the value under `key`, one after the other, into the front of `room`: at most
    /// [`RANGES_MAX`] of them. A room of several pieces takes each where it belongs.
    ///
    /// What has been verified is the way of the bytes; the checksum of the object is of all of it.
    ///
    /// # Errors
    /// [`GetFailure`], with the room: `OutOfRange`, which tells the object's length, if a range does not lie
    /// inside it.
    pub async fn get_ranges(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        room: Room,
    ) -> Result<Fetched, GetFailure> {
        let count = ranges.len();
        if !(1..=RANGES_MAX).contains(&count) {
            let error = StoreError::local(StoreErrorKind::Ranges { ranges: count });
            let room = Some(room);
            return Err(GetFailure { error, room });
        }
        fetched(self.begin_get(key, ranges.to_vec(), room)?.await)
    }

    /// As [`get`](Self::get), of many objects, whose results are in their order.
    ///
    /// # Errors
    /// One for each, with its room.
    pub async fn get_all(
        &self,
        wanted: impl IntoIterator<Item = (Vec<u8>, Room)>,
    ) -> Vec<Result<Fetched, GetFailure>> {
        let wanted = wanted.into_iter();
        let begun = wanted.map(|(key, room)| self.begin_get(&key, Vec::new(), room));
        let end = async |begun: Result<_, GetFailure>| {
            let ended: Ended = begun?.await;
            fetched(ended)
        };
        batch(begun, end).await
    }

    fn begin_get(
        &self,
        key: &[u8],
        ranges: Vec<ByteRange>,
        room: Room,
    ) -> Result<impl Future<Output = Ended> + use<>, GetFailure> {
        let key = match valid(key) {
            Ok(key) => key,
            Err(error) => {
                let room = Some(room);
                return Err(GetFailure { error, room });
            }
        };
        let until = time::now() + self.timeout;
        let brought = Brought::Room(room, ranges);
        Ok(self.asking.begin(key, Wish::Get, brought, until))
    }
}

impl PutOptions {
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if (1..=COPIES_WANTED_MAX).contains(&self.copies) {
            return Ok(());
        }
        let copies = self.copies;
        Err(StoreError::local(StoreErrorKind::Copies { copies }))
    }
}

/// What came of a write; `None` if nothing was done.
pub(super) fn stored(ended: Ended) -> Result<Option<Stored>, StoreError> {
    match ended.outcome.map_err(StoreError::local)? {
        Outcome::Written(WriteAnswer::Written {
            version,
            is_cut_off,
        }) => Ok(Some(Stored::Written {
            version,
            is_cut_off,
        })),
        Outcome::Written(WriteAnswer::Exists { version }) => Ok(Some(Stored::Exists { version })),
        Outcome::Written(WriteAnswer::Aborted) => Ok(None),
        Outcome::TimedOut => Err(StoreError::local(StoreErrorKind::TimedOut)),
        _ => Err(StoreError::local(StoreErrorKind::Interrupted)),
    }
}

fn fetched(ended: Ended) -> Result<Fetched, GetFailure> {
    let failed = |kind, room| {
        let error = StoreError::local(kind);
        Err(GetFailure { error, room })
    };
    let Some(room) = ended.room else {
        let kind = ended.outcome.err().unwrap_or(StoreErrorKind::ShutDown);
        return failed(kind, None);
    };
    match (ended.outcome, ended.arrived) {
        (Ok(Outcome::Hit(version)), Some((reply, len_bytes))) => Ok(Fetched::Hit {
            room,
            len_bytes: len_bytes as usize,
            object_len_bytes: reply.object_len_bytes as usize,
            version,
            is_cut_off: reply.is_cut_off,
        }),
        (Ok(outcome @ (Outcome::Miss | Outcome::Unknown)), _) => Ok(Fetched::Miss {
            room,
            is_known: outcome == Outcome::Miss,
        }),
        (Ok(_), _) => failed(StoreErrorKind::TimedOut, Some(room)),
        (Err(kind), _) => failed(kind, Some(room)),
    }
}

/// Ends what an iterator begins, in its order: a bounded number is begun before the first has ended.
pub(super) async fn batch<B, T>(
    begun: impl IntoIterator<Item = B>,
    end: impl AsyncFn(B) -> T,
) -> Vec<T> {
    let mut under_way = VecDeque::new();
    let mut ended = Vec::new();
    for begun in begun {
        if under_way.len() >= BATCH_AHEAD
            && let Some(first) = under_way.pop_front()
        {
            ended.push(end(first).await);
        }
        under_way.push_back(begun);
    }
    for begun in under_way {
        ended.push(end(begun).await);
    }
    ended
}
