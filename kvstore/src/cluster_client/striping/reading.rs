//! Gets of objects in parts, and of what is under a key.

use std::collections::VecDeque;

use lunette_kvstore_proto::key::Key;
use lunette_kvstore_proto::message::directory::StripedReply;
use lunette_kvstore_proto::range::{ByteRange, total_bytes};
use lunette_kvstore_proto::striped::{Manifest, Part, PartKey, PartRead, PartsOf};
use lunette_kvstore_proto::version::Form;
use lunette_runtime::time;
use lunette_runtime_core::limits::PAYLOAD_BYTES_MAX;
use lunette_transfer::{CallError, Room, SplitRoom};

use super::{PARTS_AHEAD_MAX, ROUNDS_MAX, len};
use crate::client::GetFailure;
use crate::cluster_client::objects::Fetching;
use crate::cluster_client::running::Ended;
use crate::cluster_client::{ClusterClient, Fetched};
use crate::error::{StoreError, StoreErrorKind};

/// Asked for, it tells what is there.
const NOTHING: ByteRange = ByteRange {
    offset_bytes: 0,
    len_bytes: 0,
};

/// A part that was asked for.
enum PartGet<F> {
    Here(Fetching),
    There(F),
}

/// What the parts of a read have come to.
#[derive(Debug, Default)]
struct Reading {
    is_cut_off: bool,
    /// One is not there.
    is_lost: bool,
    /// Nobody knows yet whether one is there.
    is_unknown: bool,
    error: Option<StoreError>,
    /// A room has not come back.
    is_room_gone: bool,
}

impl Reading {
    const fn is_good(&self) -> bool {
        !self.is_lost && !self.is_unknown && self.error.is_none()
    }

    fn add(&mut self, part: Part, fetched: Fetching) {
        match fetched {
            Fetching::Done(Ok(Fetched::Hit {
                object_len_bytes,
                is_cut_off,
                ..
            })) => {
                self.is_cut_off |= is_cut_off;
                self.is_lost |= object_len_bytes != part.len_bytes as usize;
            }
            Fetching::Done(Ok(Fetched::Miss { is_known, .. })) => {
                self.is_lost |= is_known;
                self.is_unknown |= !is_known;
            }
            Fetching::Striped(..) => self.is_lost = true,
            Fetching::Done(Err(failure)) => {
                self.is_room_gone |= failure.room.is_none();
                match failure.error.kind {
                    // It is none that its manifest knows.
                    StoreErrorKind::OutOfRange { .. }
                    | StoreErrorKind::Call(CallError::TooLong { .. }) => self.is_lost = true,
                    _ => self.error = self.error.or(Some(failure.error)),
                }
            }
        }
    }
}

/// What a read of parts has come to, with the room.
enum Read {
    Done(Result<Fetched, GetFailure>),
    Lost(Room),
}

/// What came of a read of some parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster_client) enum Stretch {
    Hit {
        is_cut_off: bool,
    },
    /// There is no object, or nobody knows.
    Miss {
        is_known: bool,
    },
    /// One is lost, and the manifest with it: another object is there by now.
    Lost,
}

impl ClusterClient {
    /// Reads a range of an object whose manifest is known, into all of the room. Of parts that lie inside the checksums
    /// are verified.
    pub(in crate::cluster_client) async fn read_stretch(
        &self,
        key: Key<'_>,
        range: ByteRange,
        room: Room,
        reply: &StripedReply,
    ) -> Result<Stretch, StoreError> {
        match self.read_parts(key, &[range], room, reply).await {
            Read::Done(Ok(Fetched::Hit { is_cut_off, .. })) => Ok(Stretch::Hit { is_cut_off }),
            Read::Done(Ok(Fetched::Miss { is_known, .. })) => Ok(Stretch::Miss { is_known }),
            Read::Done(Err(failure)) => Err(failure.error),
            Read::Lost(_) if self.forget(key, reply).await => Ok(Stretch::Miss { is_known: true }),
            Read::Lost(_) => Ok(Stretch::Lost),
        }
    }

    /// Reads an object whose manifest has come instead of its bytes.
    pub(in crate::cluster_client) async fn get_striped(
        &self,
        key: &[u8],
        ranges: &[ByteRange],
        room: Room,
        reply: StripedReply,
    ) -> Result<Fetched, GetFailure> {
        let key = Key::new(key).expect("there is an object under it");
        let (mut room, mut reply) = (room, reply);
        for _ in 0..ROUNDS_MAX {
            let left = match self.read_parts(key, ranges, room, &reply).await {
                Read::Done(ended) => return ended,
                Read::Lost(room) => room,
            };
            if self.forget(key, &reply).await {
                return Ok(Fetched::Miss {
                    room: left,
                    is_known: true,
                });
            }
            (room, reply) = match self.fetch(key, ranges, left).await {
                Fetching::Done(ended) => return ended,
                Fetching::Striped(room, reply) => (room, reply),
            };
        }
        Ok(Fetched::Miss {
            room,
            is_known: false,
        })
    }

    /// What is under a key, and not what that stands for.
    pub(in crate::cluster_client) async fn fetch(
        &self,
        key: Key<'_>,
        ranges: &[ByteRange],
        room: Room,
    ) -> Fetching {
        if total_bytes(ranges) > PAYLOAD_BYTES_MAX as u64 {
            return self.fetch_long(key, ranges, room).await;
        }
        self.fetch_by(key, ranges, room).await
    }

    /// As [`fetch`](Self::fetch), where one answer does not carry as much: it is in parts, or is refused.
    async fn fetch_long(&self, key: Key<'_>, ranges: &[ByteRange], room: Room) -> Fetching {
        let nowhere = Room::exposed(Vec::new());
        let fetched = match self.fetch_by(key, &[NOTHING], nowhere).await {
            Fetching::Striped(_, reply) => return Fetching::Striped(room, reply),
            Fetching::Done(fetched) => fetched,
        };
        let error = match fetched {
            Ok(Fetched::Miss { is_known, .. }) => {
                return Fetching::Done(Ok(Fetched::Miss { room, is_known }));
            }
            Ok(Fetched::Hit {
                object_len_bytes, ..
            }) => {
                let inside = |range: &ByteRange| range.is_within(object_len_bytes as u64);
                StoreError::local(if ranges.iter().all(inside) {
                    StoreErrorKind::ValueTooLong {
                        len_bytes: len(total_bytes(ranges)),
                        len_max_bytes: PAYLOAD_BYTES_MAX as u64,
                    }
                } else {
                    StoreErrorKind::OutOfRange { object_len_bytes }
                })
            }
            Err(failure) => failure.error,
        };
        let room = Some(room);
        Fetching::Done(Err(GetFailure { error, room }))
    }

    async fn fetch_by(&self, key: Key<'_>, ranges: &[ByteRange], room: Room) -> Fetching {
        match self.get_here(key.bytes(), ranges, room) {
            Ok(fetched) => fetched,
            Err(room) => Fetching::of(self.begin_get_of(key, ranges.to_vec(), room).await),
        }
    }

    /// The manifest under a key; `None` if there is none.
    pub(in crate::cluster_client) async fn manifest_of(
        &self,
        key: Key<'_>,
    ) -> Result<Option<StripedReply>, StoreError> {
        match (self.fetch_by(key, &[NOTHING], Room::exposed(Vec::new()))).await {
            Fetching::Striped(_, reply) => Ok(Some(reply)),
            Fetching::Done(Ok(_)) => Ok(None),
            Fetching::Done(Err(failure)) => Err(failure.error),
        }
    }

    /// The length of an object that was in parts when it was asked for last.
    pub(in crate::cluster_client) async fn size_of_striped(
        &self,
        key: Key<'_>,
    ) -> Result<Option<usize>, StoreError> {
        if let Some(reply) = self.manifest_of(key).await? {
            return Ok(usize::try_from(reply.manifest.len_bytes()).ok());
        }
        let found = self.find(key, None).await?;
        let whole = found.filter(|found| found.form == Form::Whole);
        Ok(whole.map(|found| found.len_bytes as usize))
    }

    async fn read_parts(
        &self,
        key: Key<'_>,
        ranges: &[ByteRange],
        room: Room,
        reply: &StripedReply,
    ) -> Read {
        let manifest = &reply.manifest;
        let object_len_bytes = len(manifest.len_bytes());
        let failed = |kind, room| {
            let error = StoreError::local(kind);
            Read::Done(Err(GetFailure { error, room }))
        };
        let Some(reads) = manifest.reads(ranges) else {
            let kind = StoreErrorKind::OutOfRange { object_len_bytes };
            return failed(kind, Some(room));
        };
        let total = reads.iter().map(PartRead::len_bytes).sum();
        if total > room.len() as u64 {
            let bound = |len_bytes: u64| u32::try_from(len_bytes).unwrap_or(u32::MAX);
            let kind = StoreErrorKind::Call(CallError::TooLong {
                payload_len_bytes: bound(total),
                room_bytes: bound(room.len() as u64),
            });
            return failed(kind, Some(room));
        }
        let split = room.split();
        let read = self.read_all(key, manifest, reads, &split).await;
        let Some(room) = split.join().ok().filter(|_| !read.is_room_gone) else {
            let kind = read.error.map(|error| error.kind);
            return failed(kind.unwrap_or(StoreErrorKind::ShutDown), None);
        };
        match read.error {
            _ if read.is_lost => Read::Lost(room),
            Some(error) => failed(error.kind, Some(room)),
            None if read.is_unknown => Read::Done(Ok(Fetched::Miss {
                room,
                is_known: false,
            })),
            None => Read::Done(Ok(Fetched::Hit {
                room,
                len_bytes: len(total),
                object_len_bytes,
                version: reply.version,
                is_cut_off: reply.is_cut_off || read.is_cut_off,
            })),
        }
    }

    /// Asks for parts until all have come, or one will not.
    async fn read_all(
        &self,
        key: Key<'_>,
        manifest: &Manifest,
        reads: Vec<PartRead>,
        split: &SplitRoom,
    ) -> Reading {
        let (mut left, mut under_way) = (reads.into_iter(), VecDeque::new());
        let (mut all, of) = (Reading::default(), PartsOf::from(key));
        loop {
            while all.is_good()
                && under_way.len() < PARTS_AHEAD_MAX
                && let Some(read) = left.next()
            {
                // Those that are copied from this very core take their time.
                if self.local.is_some() {
                    time::yield_now().await;
                }
                let part_key = manifest.part_key(of, read.part.place);
                let part = read.part;
                under_way.push_back((part, self.begin_read(&part_key, read, split)));
            }
            let Some((part, begun)) = under_way.pop_front() else {
                return all;
            };
            let fetched = match begun {
                PartGet::Here(fetched) => fetched,
                PartGet::There(begun) => Fetching::of(begun.await),
            };
            all.add(part, fetched);
        }
    }

    fn begin_read(
        &self,
        key: &PartKey,
        read: PartRead,
        split: &SplitRoom,
    ) -> PartGet<impl Future<Output = Ended> + use<>> {
        let to = read.to.iter().zip(&read.ranges);
        let room = split.part(to.map(|(to, range)| len(*to)..len(*to) + range.len_bytes as usize));
        // Of all of a part the checksum is known.
        let ranges = if read.is_whole() {
            Vec::new()
        } else {
            read.ranges
        };
        match self.get_here(key.key().bytes(), &ranges, room) {
            Ok(fetched) => PartGet::Here(fetched),
            Err(room) => PartGet::There(self.begin_get_of(key.key(), ranges, room)),
        }
    }
}
