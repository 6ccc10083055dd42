//! Objects, for threads.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use lunette_kvstore_proto::message::directory::{Found, HoldWish, Peek};
use lunette_kvstore_proto::range::ByteRange;
use lunette_kvstore_proto::retention::Parent;
use lunette_kvstore_proto::tenant::Tenant;
use lunette_kvstore_proto::version::Version;
use lunette_runtime::Pending;
use lunette_runtime::arena::SharedMemory;
use lunette_transfer::CallError;

use super::StoreHandle;
use super::cores::{Cores, failed};
use super::devices::{Apart, are_of_device};
use super::direct::merged;
use super::hosted::{Hosted, Until};
use super::lent::Lent;
use super::placing::{Filled, ToPut};
use crate::client::GetFailure;
use crate::cluster_client::{
    Among, Cleared, Fetched, ListCursor, Listed, Located, PutOptions, Stored, TenantQuota,
};
use crate::error::{StoreError, StoreErrorKind};

/// How often an object that is replaced while it is read is asked for again.
const SIZES_MAX: usize = 4;

/// What came of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// The bytes are at the front of the memory that was lent.
    Hit {
        /// How many: the value's, or those of the ranges.
        len_bytes: usize,
        /// Length of the value in bytes.
        object_len_bytes: usize,
        /// Its version.
        version: Version,
        /// The owner was cut off, in a cache namespace: the object may have been removed meanwhile.
        is_cut_off: bool,
    },
    /// There is no object.
    Miss {
        /// Whether that is sure. Otherwise a home does not know yet what all members hold.
        is_known: bool,
    },
}

impl StoreHandle {
    /// See [`ClusterClient::parent`](crate::ClusterClient::parent).
    #[must_use]
    pub fn parent(&self, key: &[u8]) -> Option<Parent> {
        self.cores.parent(key)
    }

    /// Writes what lies in `value`, one piece after the other, under `key`. See
    /// [`ClusterClient::put`](crate::ClusterClient::put).
    ///
    /// # Errors
    /// [`StoreError`]: as there; `TooManyOperations` if [`QUESTIONS_MAX`](super::QUESTIONS_MAX) wait for the
    /// core, `ShutDown` if it has ended.
    pub fn put(
        &self,
        key: Vec<u8>,
        value: Vec<Lent>,
        options: PutOptions,
    ) -> Pending<Result<Stored, StoreError>> {
        let core = self.cores.core_of(&key);
        let put = move |hosted: Rc<Hosted>| async move {
            if are_of_device(&value) {
                let object = vec![(key, value, Among::default())];
                let mut stored = hosted.put_of_devices(object, options).await;
                return stored.pop().expect("one each");
            }
            let value = hosted.value(&value);
            hosted.client.put(&key, value, options).await
        };
        self.cores.ask_until(self.puts, core, failed, put)
    }

    /// As [`put`](Self::put), of many objects, whose results are in their order. There is no order between
    /// them.
    ///
    /// # Errors
    /// One for each.
    pub fn put_all(
        &self,
        objects: Vec<impl Into<ToPut>>,
        options: PutOptions,
    ) -> Pending<Vec<Result<Stored, StoreError>>> {
        let objects = Filled::by_cores(objects);
        self.cores
            .put_filled(objects, options, (self.puts, Duration::ZERO))
    }

    /// Gets the value under `key` to the front of what is lent, one piece after the other; its checksum has
    /// been verified, but where a core copies it that has it. What is short, and seen on this host, the caller copies
    /// itself, before this returns: no core is waited for, or woken. See [`ClusterClient::get`](crate::ClusterClient::get).
    ///
    /// # Errors
    /// [`StoreError`], as of [`put`](Self::put).
    pub fn get(&self, key: Vec<u8>, into: Vec<Lent>) -> Pending<Result<Got, StoreError>> {
        if let Some(got) = self.cores.read_into(&key, &into) {
            return Pending::ready(Ok(got));
        }
        let core = self.cores.core_of(&key);
        let get = move |hosted: Rc<Hosted>| async move {
            if are_of_device(&into) {
                let mut got = hosted.get_to_devices(vec![(key, into)]).await;
                return got.pop().expect("one each");
            }
            got(hosted.client.get(&key, hosted.room(&into)).await)
        };
        self.cores.ask_until(Until::NobodyWaits, core, failed, get)
    }

    /// As [`get`](Self::get), of ranges of the value. See
    /// [`ClusterClient::get_ranges`](crate::ClusterClient::get_ranges).
    ///
    /// # Errors
    /// [`StoreError`], as there.
    pub fn get_ranges(
        &self,
        key: Vec<u8>,
        ranges: Vec<ByteRange>,
        into: Vec<Lent>,
    ) -> Pending<Result<Got, StoreError>> {
        let core = self.cores.core_of(&key);
        let get = move |hosted: Rc<Hosted>| async move {
            if are_of_device(&into) {
                return hosted.get_ranges_to_devices(&key, &ranges, &into).await;
            }
            let room = hosted.room(&into);
            got(hosted.client.get_ranges(&key, &ranges, room).await)
        };
        self.cores.ask_until(Until::NobodyWaits, core, failed, get)
    }

    /// As [`get`](Self::get), of many objects, whose results are in their order.
    ///
    /// # Errors
    /// One for each.
    pub fn get_all(
        &self,
        wanted: Vec<(Vec<u8>, Vec<Lent>)>,
    ) -> Pending<Vec<Result<Got, StoreError>>> {
        let known = self.cores.read_all_into(&wanted);
        let known: Vec<_> = known.into_iter().map(|got| got.map(Ok)).collect();
        let wanted = unknown(wanted, &known);
        if wanted.is_empty() {
            return Pending::ready(known.into_iter().flatten().collect());
        }
        let is_all = wanted.len() == known.len();
        let get = |hosted: Rc<Hosted>, wanted| async move { hosted.get_all(wanted).await };
        let asked = (self.cores).ask_each(Until::NobodyWaits, wanted, |(key, _)| key, get);
        if is_all { asked } else { merged(known, asked) }
    }

    /// The value under `key`, in memory of its own; `None` if there is none, or its home does not know.
    ///
    /// # Errors
    /// [`StoreError`], as of [`get`](Self::get).
    pub fn get_bytes(&self, key: Vec<u8>) -> Pending<Result<Option<Vec<u8>>, StoreError>> {
        if let Some(bytes) = self.cores.read_bytes(&key) {
            return Pending::ready(Ok(Some(bytes)));
        }
        let core = self.cores.core_of(&key);
        let get = move |hosted: Rc<Hosted>| async move { hosted.get_bytes(key).await };
        self.cores.ask_until(Until::NobodyWaits, core, failed, get)
    }

    /// Lengths of the values under `keys` in bytes, in their order; `None` where there is none, or its home
    /// does not know.
    ///
    /// # Errors
    /// One for each: [`StoreError`], as of [`put`](Self::put).
    pub fn sizes(&self, keys: Vec<Vec<u8>>) -> Pending<Vec<Result<Option<usize>, StoreError>>> {
        let sizes = |hosted: Rc<Hosted>, keys: Vec<Vec<u8>>| async move {
            hosted.client.sizes(&keys).await
        };
        self.cores
            .ask_each(Until::NobodyWaits, keys, |key| key, sizes)
    }

    /// Where the objects under `keys` are, in their order. See [`ClusterClient::locate`](crate::ClusterClient::locate).
    ///
    /// # Errors
    /// One for each: [`StoreError`], as of [`put`](Self::put).
    pub fn locate(&self, keys: Vec<Vec<u8>>) -> Pending<Vec<Result<Option<Located>, StoreError>>> {
        let locate = |hosted: Rc<Hosted>, keys: Vec<Vec<u8>>| async move {
            hosted.client.locate(&keys).await
        };
        self.cores
            .ask_each(Until::NobodyWaits, keys, |key| key, locate)
    }

    /// Has the objects under `keys` held, in their order, and where there are adapters, gets of them read without asking
    /// anybody. See [`ClusterClient::hold_all`](crate::ClusterClient::hold_all).
    ///
    /// # Errors
    /// One for each: [`StoreError`], as of [`put`](Self::put).
    pub fn hold_all(
        &self,
        keys: Vec<Vec<u8>>,
        hold: HoldWish,
    ) -> Pending<Vec<Result<Option<Found>, StoreError>>> {
        let held = move |hosted: Rc<Hosted>, keys: Vec<Vec<u8>>| async move {
            hosted.client.hold_all(&keys, hold).await
        };
        self.cores
            .ask_each(Until::NobodyWaits, keys, |key| key, held)
    }

    /// Whether there is an object under each of `keys`, in their order: a hint. See
    /// [`ClusterClient::exists`](crate::ClusterClient::exists).
    ///
    /// Of keys whose homes are cores of this node, or of another one on this host that has been met, no core is asked, in a
    /// cache namespace: they show what they have, so this does not wait for them, and wakes none. What was answered before
    /// this is called is seen.
    ///
    /// # Errors
    /// One for each: [`StoreError`], as of [`put`](Self::put).
    pub fn exists(&self, keys: Vec<Vec<u8>>) -> Pending<Vec<Result<bool, StoreError>>> {
        let known = self.peeked(&keys);
        self.cores.ask_whether(unknown(keys, &known), known)
    }

    /// What is seen of keys without asking anybody.
    pub(super) fn peeked(
        &self,
        keys: &[impl AsRef<[u8]>],
    ) -> Vec<Option<Result<bool, StoreError>>> {
        let peeks = self.cores.peek(keys).into_iter();
        let known = peeks.map(|peek| match peek {
            Peek::Present => Some(Ok(true)),
            Peek::Absent => Some(Ok(false)),
            Peek::Unsure => None,
        });
        known.collect()
    }

    /// Some of the keys that begin with `prefix`. See [`ClusterClient::list`](crate::ClusterClient::list).
    ///
    /// # Errors
    /// [`StoreError`], as there, or as of [`put`](Self::put).
    pub fn list(
        &self,
        prefix: Vec<u8>,
        after: Option<ListCursor>,
    ) -> Pending<Result<Listed, StoreError>> {
        self.cores.ask(0, failed, move |hosted| async move {
            hosted.client.list(&prefix, after).await
        })
    }

    /// Removes what is under keys that begin with `prefix`. See
    /// [`ClusterClient::remove_listed`](crate::ClusterClient::remove_listed).
    ///
    /// # Errors
    /// [`StoreError`], as there, or as of [`put`](Self::put).
    pub fn remove_listed(&self, prefix: Vec<u8>) -> Pending<Result<u64, StoreError>> {
        self.cores.ask(0, failed, |hosted| async move {
            hosted.client.remove_listed(&prefix).await
        })
    }

    /// "Remove all". See [`ClusterClient::clear`](crate::ClusterClient::clear).
    ///
    /// # Errors
    /// [`StoreError`], as there, or as of [`put`](Self::put).
    pub fn clear(&self) -> Pending<Result<Cleared, StoreError>> {
        self.cores.ask(
            0,
            failed,
            |hosted| async move { hosted.client.clear().await },
        )
    }

    /// Sets a tenant's quota. See [`ClusterClient::set_quota`](crate::ClusterClient::set_quota).
    ///
    /// # Errors
    /// [`StoreError`], as there, or as of [`put`](Self::put).
    pub fn set_quota(
        &self,
        tenant: Tenant,
        quota_bytes: Option<NonZeroU64>,
    ) -> Pending<Result<(), StoreError>> {
        self.cores.ask(0, failed, move |hosted| async move {
            hosted.client.set_quota(&tenant, quota_bytes).await
        })
    }

    /// All quotas, by tenant. See [`ClusterClient::quotas`](crate::ClusterClient::quotas).
    ///
    /// # Errors
    /// [`StoreError`], as there, or as of [`put`](Self::put).
    pub fn quotas(&self) -> Pending<Result<Vec<TenantQuota>, StoreError>> {
        self.cores.ask(
            0,
            failed,
            |hosted| async move { hosted.client.quotas().await },
        )
    }

    /// Removes `keys`; tells for each, in their order, whether there was an object. See
    /// [`ClusterClient::remove`](crate::ClusterClient::remove).
    ///
    /// # Errors
    /// One for each: [`StoreError`], as there.
    pub fn remove(&self, keys: Vec<Vec<u8>>) -> Pending<Vec<Result<bool, StoreError>>> {
        let remove = |hosted: Rc<Hosted>, keys: Vec<Vec<u8>>| async move {
            hosted.client.remove(&keys).await
        };
        self.cores.ask_each(Until::Done, keys, |key| key, remove)
    }
}

impl Cores {
    /// Has cores find out whether there are objects under `keys`, in their order.
    pub(super) fn ask_for_presence(
        &self,
        keys: Vec<Vec<u8>>,
    ) -> Pending<Vec<Result<bool, StoreError>>> {
        let exists = |hosted: Rc<Hosted>, keys: Vec<Vec<u8>>| async move {
            match hosted.client.exists(&keys).await {
                Ok(present) => present.into_iter().map(Ok).collect(),
                Err(error) => keys.iter().map(|_| Err(error)).collect(),
            }
        };
        self.ask_each(Until::NobodyWaits, keys, |key| key, exists)
    }

    /// Has cores put objects, whose results are in their order, of an operation that is under way for so long already.
    pub(super) fn put_filled(
        &self,
        objects: Vec<Filled>,
        options: PutOptions,
        (until, spent): (Until, Duration),
    ) -> Pending<Vec<Result<Stored, StoreError>>> {
        let put = move |hosted: Rc<Hosted>, objects: Vec<Filled>| async move {
            hosted.put_filled(objects, options, spent).await
        };
        if options.is_same_node {
            // One core chooses the node for all of them.
            let first = objects.first();
            let core = first.map_or(0, |object| self.core_of(&object.key));
            return self.ask_all(until, core, objects, put);
        }
        self.ask_each(until, objects, |object| &object.key, put)
    }
}

/// Those of which nothing is known.
pub(super) fn unknown<I, T>(items: Vec<I>, known: &[Option<T>]) -> Vec<I> {
    let items = items.into_iter().zip(known);
    let unknown = items.filter(|(_, known)| known.is_none());
    unknown.map(|(item, _)| item).collect()
}

impl Hosted {
    async fn get_all(&self, wanted: Vec<(Vec<u8>, Vec<Lent>)>) -> Vec<Result<Got, StoreError>> {
        let apart = Apart::new(wanted, |(_, into)| are_of_device(into));
        apart
            .answered(
                async |wanted| {
                    let wanted = wanted.into_iter();
                    let wanted = wanted.map(|(key, into)| (key, self.room(&into)));
                    let fetched = self.client.get_all(wanted.collect::<Vec<_>>()).await;
                    fetched.into_iter().map(got).collect()
                },
                async |wanted| self.get_to_devices(wanted).await,
            )
            .await
    }

    /// Asked for at once where it is likely to be no longer than values were of late, else behind its length.
    pub(super) async fn get_bytes(&self, key: Vec<u8>) -> Result<Option<Vec<u8>>, StoreError> {
        let key = [key];
        if let Some(room_bytes) = self.lengths.guess() {
            match self.get_of_at_most(&key[0], room_bytes).await {
                Err(error) if is_of_length(&error) => {}
                done => return done,
            }
        }
        let mut before = None;
        let mut failure = None;
        for _ in 0..SIZES_MAX {
            let sizes = self.client.sizes(&key).await.pop();
            let Some(len_bytes) = sizes.expect("one each")? else {
                return Ok(None);
            };
            if let Some(failure) = failure.take()
                && before == Some(len_bytes)
            {
                // It was not for its length.
                return Err(failure);
            }
            before = Some(len_bytes);
            match self.get_of_at_most(&key[0], len_bytes).await {
                Err(error) => failure = Some(error),
                done => return done,
            }
        }
        failed(failure.map_or(StoreErrorKind::TimedOut, |failure| failure.kind))
    }

    /// The value, if it is not longer than that.
    async fn get_of_at_most(
        &self,
        key: &[u8],
        room_bytes: usize,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let memory = SharedMemory::owned(vec![0; room_bytes]);
        let room = self.room(&[Lent::whole(&memory)]);
        let Got::Hit { len_bytes, .. } = got(self.client.get(key, room).await)? else {
            return Ok(None);
        };
        self.lengths.learn(len_bytes);
        // Its room has been let go of with the answer; where it has not, it is copied.
        let bytes = memory.into_bytes();
        let mut bytes = bytes.unwrap_or_else(|memory| self.copy_of(&memory));
        bytes.truncate(len_bytes);
        if len_bytes < room_bytes / 2 {
            bytes.shrink_to_fit();
        }
        Ok(Some(bytes))
    }
}

fn is_of_length(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Call(CallError::TooLong { .. }))
}

/// What came of a get, without its room: that is let go of here.
pub(super) fn got(fetched: Result<Fetched, GetFailure>) -> Result<Got, StoreError> {
    match fetched.map_err(|failure| failure.error)? {
        Fetched::Hit {
            len_bytes,
            object_len_bytes,
            version,
            is_cut_off,
            room: _,
        } => Ok(Got::Hit {
            len_bytes,
            object_len_bytes,
            version,
            is_cut_off,
        }),
        Fetched::Miss { is_known, .. } => Ok(Got::Miss { is_known }),
    }
}
