//! Objects: puts, gets, parts of objects, and many of them at a time.

use std::collections::VecDeque;
use std::time::Duration;

use lunette_kvstore_proto::asker::{Outcome, Wish};
use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::WAIT_MS_MAX;
use lunette_kvstore_proto::owner::{WriteAnswer, WriteAsk};
use lunette_kvstore_proto::placement::{Seat, home_of};
use lunette_kvstore_proto::range::{ByteRange, RANGES_MAX, total_bytes};
use lunette_kvstore_proto::version::COPIES_WANTED_MAX;
use lunette_runtime::time;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_runtime_core::time::Time;
use lunette_transfer::Room;

use super::running::{Brought, Ended};
use super::{ClusterClient, Fetched, PutOptions, Stored, valid};
use crate::client::GetFailure;
use crate::error::{StoreError, StoreErrorKind};
use crate::member::Here;
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
        let key = check(key, &value, options)?;
        self.put_by(key, &value, options, until).await
    }

    async fn put_by(
        &self,
        key: Key<'_>,
        value: &Value,
        options: PutOptions,
        until: Time,
    ) -> Result<Stored, StoreError> {
        if let Some(stored) = self.put_here(key, value, options, until).await? {
            return Ok(stored);
        }
        let begun = self.begin_put(key, value, options, until);
        self.put_begun(key, value, options, until, begun).await
    }

    /// Whether this very core is the key's home.
    fn is_here(&self, key: Key<'_>) -> bool {
        self.inside().is_some_and(|local| local.is_home_of(key))
    }

    /// On this core, if it can be done here.
    async fn put_here(
        &self,
        key: Key<'_>,
        value: &Value,
        options: PutOptions,
        until: Time,
    ) -> Result<Option<Stored>, StoreError> {
        let Some(local) = self.inside() else {
            return Ok(None);
        };
        let ask = self.write_ask(key, options, until);
        match local.put(key, value, ask).await {
            Some(answer) => stored_as(answer),
            None => Ok(None),
        }
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
        let begun = objects.iter().map(|(key, value)| {
            let key = check(key, value, options)?;
            let is_here = self.is_here(key);
            let begun = (!is_here).then(|| self.begin_put(key, value, options, until));
            Ok((key, value, begun))
        });
        let end = async |begun: Result<_, StoreError>| {
            let (key, value, begun) = begun?;
            let Some(begun) = begun else {
                return self.put_by(key, value, options, until).await;
            };
            self.put_begun(key, value, options, until, begun).await
        };
        batch(begun, end).await
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
        // Summed once, also if it is written again.
        let _crc32c = value.crc32c();
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
        Wish::Write(seat, self.write_ask(key, options, until))
    }

    fn write_ask(&self, key: Key<'_>, options: PutOptions, until: Time) -> WriteAsk {
        let wait_ms = until.since(time::now()).as_millis();
        WriteAsk {
            key: key.fingerprint(),
            kind: options.kind,
            namespace: self.asking.namespace(),
            wanted: options.copies,
            wait_ms: u32::try_from(wait_ms).map_or(WAIT_MS_MAX, |ms| ms.min(WAIT_MS_MAX)),
        }
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
        self.get_by(key, &[], room).await
    }

    async fn get_by(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        room: Room,
    ) -> Result<Fetched, GetFailure> {
        match self.get_here(key, ranges, room) {
            Ok(ended) => ended,
            Err(room) => fetched(self.begin_get(key, ranges.to_vec(), room)?.await),
        }
    }

    /// What this core knows of it; the room, if it is to be asked for.
    fn get_here(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        mut room: Room,
    ) -> Result<Result<Fetched, GetFailure>, Room> {
        let (Some(local), Ok(key)) = (self.inside(), valid(key)) else {
            return Err(room);
        };
        match local.get(key, self.asking.namespace(), ranges, &mut room) {
            Here::Unsure => Err(room),
            Here::Miss => Ok(Ok(Fetched::Miss {
                room,
                is_known: true,
            })),
            Here::OutOfRange { object_len_bytes } => {
                let error = StoreError::local(StoreErrorKind::OutOfRange { object_len_bytes });
                let room = Some(room);
                Ok(Err(GetFailure { error, room }))
            }
            Here::Hit {
                version,
                is_cut_off,
                len_bytes,
                object_len_bytes,
            } => Ok(Ok(Fetched::Hit {
                room,
                len_bytes,
                object_len_bytes,
                version,
                is_cut_off,
            })),
        }
    }

    /// Gets ranges of the value under `key`, one after the other, into the front of `room`: at most
    /// [`RANGES_MAX`] of them. A room of several pieces takes each where it belongs.
    ///
    /// What has been verified is the way of the bytes; the checksum of the object is of all of it.
    ///
    /// # Errors
    /// [`GetFailure`], with the room: `OutOfRange`, which tells the object's length, if a range does not lie
    /// inside it; `ValueTooLong` if all of them are longer than an object may be.
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
        let total = usize::try_from(total_bytes(ranges)).unwrap_or(usize::MAX);
        if total > PAYLOAD_BYTES_MAX {
            let error = StoreError::local(StoreErrorKind::ValueTooLong { len_bytes: total });
            let room = Some(room);
            return Err(GetFailure { error, room });
        }
        self.get_by(key, ranges, room).await
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
        let begun = wanted.map(|(key, room)| match self.get_here(&key, &[], room) {
            Ok(ended) => Err(ended),
            Err(room) => self.begin_get(&key, Vec::new(), room).map_err(Err),
        });
        let end = async |begun: Result<_, Result<Fetched, GetFailure>>| {
            let ended: Ended = match begun {
                Ok(begun) => begun.await,
                Err(ended) => return ended,
            };
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
        Outcome::Written(answer) => stored_as(answer),
        Outcome::TimedOut => Err(StoreError::local(StoreErrorKind::TimedOut)),
        _ => Err(StoreError::local(StoreErrorKind::Interrupted)),
    }
}

fn stored_as(answer: WriteAnswer) -> Result<Option<Stored>, StoreError> {
    match answer {
        WriteAnswer::Written {
            version,
            is_cut_off,
        } => Ok(Some(Stored::Written {
            version,
            is_cut_off,
        })),
        WriteAnswer::Exists { version } => Ok(Some(Stored::Exists { version })),
        WriteAnswer::Interrupted => Err(StoreError::local(StoreErrorKind::Interrupted)),
        WriteAnswer::Aborted | WriteAnswer::Busy | WriteAnswer::Full | WriteAnswer::Unavailable => {
            Ok(None)
        }
    }
}

fn check<'a>(key: &'a [u8], value: &Value, options: PutOptions) -> Result<Key<'a>, StoreError> {
    let key = valid(key)?;
    value.check().map_err(StoreError::local)?;
    options.check()?;
    Ok(key)
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
