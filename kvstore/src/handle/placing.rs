//! Large objects, for threads that copy them themselves to where they stay: see [`bringing`](super::bringing).

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunette_kvstore_proto::retention::{GroupId, Parent};
use lunette_runtime::Pending;
use lunette_runtime_core::checksum::joined_crc32c;

use super::StoreHandle;
use super::cores::Cores;
use super::devices::{Apart, are_of_device};
use super::hosted::{Hosted, Until};
use super::lent::Lent;
use crate::cluster_client::{Among, PutOptions, Putting, Stored};
use crate::error::StoreError;
use crate::member::LentRoom;

/// Objects that are about to be put. There is room for those that are long and stay in this process; it is filled, and
/// all of them are put, by [`finish`](Self::finish).
#[must_use = "nothing is put unless it is finished"]
pub struct Placing {
    cores: Arc<Cores>,
    until: Until,
    options: PutOptions,
    objects: Vec<Result<Object, StoreError>>,
}

/// One of several objects that are to be put.
#[derive(Debug)]
pub struct ToPut {
    /// The key.
    pub key: Vec<u8>,
    /// The value, one piece after the other.
    pub value: Vec<Lent>,
    /// The group that it is in, if not in that of all: see [`PutOptions::group`].
    pub group: Option<GroupId>,
    /// The object that it is of no use without, if not that of all ([`StoreHandle::parent`]): see [`PutOptions::behind`].
    pub behind: Option<Parent>,
}

impl ToPut {
    /// What it is to those that it is put with.
    pub(super) const fn among(&self, index: usize, count: usize) -> Among {
        Among {
            group: self.group,
            behind: self.behind,
            ..Among::at(index, count)
        }
    }
}

impl From<(Vec<u8>, Vec<Lent>)> for ToPut {
    fn from((key, value): (Vec<u8>, Vec<Lent>)) -> Self {
        Self {
            key,
            value,
            group: None,
            behind: None,
        }
    }
}

/// One of them.
struct Object {
    core: usize,
    key: Vec<u8>,
    value: Vec<Lent>,
    among: Among,
    room: Option<LentRoom>,
}

/// One of several that are to be put.
pub(super) struct Filled {
    pub(super) key: Vec<u8>,
    value: Vec<Lent>,
    among: Among,
    /// The room that has the value, and its checksum.
    room: Option<(LentRoom, u32)>,
}

impl fmt::Debug for Placing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placing")
            .field("objects", &self.objects.len())
            .finish_non_exhaustive()
    }
}

impl Filled {
    /// Those that the cores copy.
    pub(super) fn by_cores<T: Into<ToPut>>(objects: Vec<T>) -> Vec<Self> {
        let count = objects.len();
        let objects = objects.into_iter().map(Into::into).enumerate();
        let objects = objects.map(|(index, object): (usize, ToPut)| {
            let among = object.among(index, count);
            Self::by_core(object.key, object.value, among)
        });
        objects.collect()
    }

    /// One that a core copies.
    pub(super) const fn by_core(key: Vec<u8>, value: Vec<Lent>, among: Among) -> Self {
        Self {
            key,
            value,
            among,
            room: None,
        }
    }
}

impl Object {
    fn len_bytes(&self) -> usize {
        self.value.iter().map(Lent::len).sum()
    }

    fn fill(self) -> Filled {
        let room = self.room.map(|mut room| {
            let crc32c = copy_summed(&self.value, room.value_mut());
            (room, crc32c)
        });
        Filled {
            key: self.key,
            value: self.value,
            among: self.among,
            room,
        }
    }
}

/// Copies the pieces, which fill `to`; the CRC32C of the copy.
fn copy_summed(pieces: &[Lent], to: &mut [u8]) -> u32 {
    let (mut sum, mut rest) = (None, to);
    for piece in pieces {
        let (now, later) = rest.split_at_mut(piece.len());
        let then = piece.copy_out_summed(now);
        let len_bytes = piece.len() as u64;
        sum = Some(sum.map_or(then, |sum| joined_crc32c(sum, then, len_bytes)));
        rest = later;
    }
    assert!(rest.is_empty(), "room for the value and no more");
    sum.expect("what is long has pieces")
}

impl Placing {
    /// How many bytes are to be copied.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        let objects = self.objects.iter().flatten();
        let left = objects.filter(|object| object.room.is_some());
        left.map(Object::len_bytes).sum()
    }

    /// Copies them, on this thread, and puts all objects. What came of each, in their order.
    ///
    /// # Errors
    /// [`StoreError`] for each: as of [`StoreHandle::put`].
    pub fn finish(self) -> Pending<Vec<Result<Stored, StoreError>>> {
        let options = self.options;
        let mut failed = Vec::with_capacity(self.objects.len());
        let mut filled = Vec::with_capacity(self.objects.len());
        for object in self.objects {
            failed.push(object.as_ref().err().copied());
            filled.extend(object.map(|object| (object.core, object.fill())));
        }
        let put = move |hosted: Rc<Hosted>, objects: Vec<(usize, Filled)>| async move {
            let objects = objects.into_iter().map(|(_, filled)| filled);
            hosted
                .put_filled(objects.collect(), options, Duration::ZERO)
                .await
        };
        let stored = (self.cores).ask_at(self.until, filled, |(core, _)| *core, put);
        if failed.iter().all(Option::is_none) {
            return stored;
        }
        Pending::here(async move {
            let mut stored = stored.await.into_iter();
            let merged = failed.into_iter().map(|failed| match failed {
                Some(error) => Err(error),
                None => stored.next().expect("one for each that was put"),
            });
            merged.collect()
        })
    }
}

impl StoreHandle {
    /// As [`put_all`](Self::put_all), but that objects of more than 64 KiB that stay in this process are copied by the
    /// thread that [finishes](Placing::finish). Preferred nodes, or all on the same one, leave that to the cores.
    ///
    /// # Errors
    /// With `finish`.
    pub fn place_all(
        &self,
        objects: Vec<impl Into<ToPut>>,
        options: PutOptions,
    ) -> Pending<Placing> {
        let (cores, until) = (Arc::clone(&self.cores), self.puts);
        let objects: Vec<ToPut> = objects.into_iter().map(Into::into).collect();
        let first = objects
            .first()
            .map_or(0, |object| cores.core_of(&object.key));
        let count = objects.len();
        let objects = objects.into_iter().enumerate();
        let objects = objects.map(|(index, object): (usize, ToPut)| Object {
            // One core chooses the node for all of them.
            core: if options.is_same_node {
                first
            } else {
                cores.core_of(&object.key)
            },
            among: object.among(index, count),
            key: object.key,
            value: object.value,
            room: None,
        });
        let place = move |hosted: Rc<Hosted>, mut objects: Vec<Object>| async move {
            let of_host = objects.iter_mut();
            for object in of_host.filter(|object| !are_of_device(&object.value)) {
                let len_bytes = object.len_bytes();
                object.room = hosted.client.lend_room(&object.key, len_bytes, &options);
            }
            objects.into_iter().map(Ok).collect()
        };
        let core = |object: &Object| object.core;
        let placed = self
            .cores
            .ask_at(Until::NobodyWaits, objects.collect(), core, place);
        Pending::here(async move {
            let objects = placed.await;
            Placing {
                cores,
                until,
                options,
                objects,
            }
        })
    }
}

impl Hosted {
    pub(super) async fn put_filled(
        &self,
        objects: Vec<Filled>,
        options: PutOptions,
        spent: Duration,
    ) -> Vec<Result<Stored, StoreError>> {
        let apart = Apart::new(objects, |object| are_of_device(&object.value));
        apart
            .answered(
                async |objects| self.put_of_host(objects, options, spent).await,
                async |objects| {
                    let objects = objects.into_iter();
                    let objects = objects.map(|object| (object.key, object.value, object.among));
                    self.put_of_devices(objects.collect(), options).await
                },
            )
            .await
    }

    async fn put_of_host(
        &self,
        objects: Vec<Filled>,
        options: PutOptions,
        spent: Duration,
    ) -> Vec<Result<Stored, StoreError>> {
        let until = self.client.until(spent);
        let objects = objects.into_iter().map(|filled| {
            let room = filled.room;
            let placed = room.and_then(|(room, crc32c)| self.client.filled(room, crc32c));
            let value = self.value(&filled.value);
            (filled.key, value, placed, filled.among)
        });
        let objects: Vec<_> = objects.collect();
        let objects = objects.iter();
        let objects = objects.map(|(key, value, placed, among)| Putting {
            key,
            value,
            placed: placed.as_ref(),
            among: *among,
        });
        self.client.put_each(objects, options, until).await
    }
}
