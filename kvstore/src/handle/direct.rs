//! What threads [see](crate::glance) without asking a core: which keys there are, and copies, which they read where they
//! lie: short ones always, long ones if they say so.

use std::mem::MaybeUninit;
use std::sync::Arc;

use lunette_kvstore_proto::message::directory::Peek;
use lunette_runtime::Pending;
use lunette_runtime::arena::View;
use lunette_runtime_core::checksum::joined_crc32c;

use super::StoreHandle;
use super::cores::Cores;
use super::lent::Lent;
use super::objects::Got;
use crate::glance::{Likely, Look};
use crate::member::DIRECT_BYTES_MAX;

/// Bytes that one call of many gets copies itself. What asks for more leaves all of it to cores, which copy at the same
/// time; and who calls from an event loop does not keep it from others for long.
const BYTES_PER_CALL_MAX: usize = 256 << 10;

impl Cores {
    /// What is known of keys without asking a core, in their order.
    pub(super) fn peek(&self, keys: &[impl AsRef<[u8]>]) -> Vec<Peek> {
        let map = self.map();
        let Some(map) = map.as_ref() else {
            return vec![Peek::Unsure; keys.len()];
        };
        let keys = keys.iter().map(|key| {
            let key = self.tenant().key(key.as_ref());
            let key = self.tenant().check(&key).ok()?;
            Some(key.fingerprint())
        });
        self.glance().peek(map, keys)
    }

    /// Reads an object of at most `len_max` bytes, if it is short and listed: `copy` copies so many bytes from there on in
    /// the view, and tells their CRC32C. What it has copied is the object only if this says so.
    fn read(
        &self,
        key: &[u8],
        len_max: usize,
        copy: impl FnMut(&View, usize, usize) -> u32,
    ) -> Option<Got> {
        let key = self.tenant().key(key);
        let key = self.tenant().check(&key).ok()?;
        let (home, own_core) = self.places_of(key.fingerprint());
        let own_core = Some(own_core);
        let likely = Likely { home, own_core };
        let look = self.glance().read(key, likely, len_max, copy);
        match look {
            Look::Read {
                version,
                len_bytes,
                is_to_hear,
            } => {
                if let Some(core) = is_to_hear {
                    // It hears at its next tick else.
                    let _is_told = self.tell(core, |hosted| hosted.client.hear_reads());
                }
                Some(Got::Hit {
                    len_bytes,
                    object_len_bytes: len_bytes,
                    version,
                    is_cut_off: false,
                })
            }
            Look::Wants {
                core,
                seat,
                chunk,
                shown,
            } => {
                let asked = Arc::clone(&shown);
                let is_told = self.tell(core, move |hosted| {
                    hosted.client.bring_chunk(seat, chunk, asked);
                });
                if !is_told {
                    shown.is_not_asked_for(chunk);
                }
                None
            }
            Look::Nothing => None,
        }
    }

    /// Reads a short object into memory of this host.
    pub(super) fn read_into(&self, key: &[u8], into: &[Lent]) -> Option<Got> {
        self.read_up_to(DIRECT_BYTES_MAX, key, into)
    }

    /// Reads an object of at most so many bytes into memory of this host.
    fn read_up_to(&self, len_max: usize, key: &[u8], into: &[Lent]) -> Option<Got> {
        if into.iter().any(Lent::is_of_device) {
            return None;
        }
        let room: usize = into.iter().map(Lent::len).sum();
        self.read(key, room.min(len_max), |view, from, len| {
            copy_in(into, view, from, len)
        })
    }

    /// Reads objects into memory of this host, in their order, if one call may read so much.
    pub(super) fn read_all_into(&self, wanted: &[(Vec<u8>, Vec<Lent>)]) -> Vec<Option<Got>> {
        let pieces = wanted.iter().flat_map(|(_, into)| into);
        let len_bytes: usize = pieces.map(Lent::len).sum();
        if len_bytes > BYTES_PER_CALL_MAX {
            return vec![None; wanted.len()];
        }
        // The last one is used first, as in `ClusterClient::get_all`.
        let read = wanted.iter().rev();
        let mut got: Vec<_> = read.map(|(key, into)| self.read_into(key, into)).collect();
        got.reverse();
        got
    }

    /// Reads an object into memory of its own.
    pub(super) fn read_bytes(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let got = self.read(key, DIRECT_BYTES_MAX, |view, from, len| {
            bytes.resize(len, 0);
            view.copy_out_summed(from, &mut bytes)
        });
        got.map(|_| bytes)
    }
}

/// The bytes of an object where they lie, in memory of this process or another one. See [`StoreHandle::see`].
#[derive(Debug)]
pub struct SeenBytes<'a> {
    view: &'a View,
    from: usize,
    len: usize,
    crc32c: Option<u32>,
}

impl SeenBytes<'_> {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies them over `to`, on whatever thread.
    ///
    /// # Panics
    /// If it has another length.
    pub fn copy_to(&mut self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len, "as many bytes");
        self.crc32c = Some(self.view.copy_out_summed(self.from, to));
    }

    /// As [`copy_to`](Self::copy_to), to memory of which nothing is known before: all of it is written.
    ///
    /// # Panics
    /// As there.
    pub fn copy_to_new(&mut self, to: &mut [MaybeUninit<u8>]) {
        assert_eq!(to.len(), self.len, "as many bytes");
        self.crc32c = Some(self.view.copy_out_new(self.from, to));
    }
}

impl StoreHandle {
    /// Reads an object that is seen without asking, of whatever length, if there is one: `read` copies it from where it lies.
    /// What it has copied is the object only if this says that there was a hit; else it is to be asked for. No core is waited
    /// for.
    pub fn see(&self, key: &[u8], mut read: impl FnMut(&mut SeenBytes<'_>)) -> Option<Got> {
        let mut is_read = false;
        let got = self.cores.read(key, usize::MAX, |view, from, len| {
            let mut seen = SeenBytes {
                view,
                from,
                len,
                crc32c: None,
            };
            read(&mut seen);
            is_read = seen.crc32c.is_some();
            seen.crc32c.unwrap_or_default()
        });
        got.filter(|_| is_read)
    }

    /// As [`get_all`](Self::get_all) of what is seen, of whatever length, by this thread: `None` where it is not seen, and is to
    /// be asked for.
    #[must_use]
    pub fn see_all(&self, wanted: &[(Vec<u8>, Vec<Lent>)]) -> Vec<Option<Got>> {
        let see = |(key, into): &(Vec<u8>, Vec<Lent>)| self.cores.read_up_to(usize::MAX, key, into);
        // The last one is used first, as in `ClusterClient::get_all`.
        let mut got: Vec<_> = wanted.iter().rev().map(see).collect();
        got.reverse();
        got
    }
}

fn copy_in(into: &[Lent], view: &View, from: usize, len: usize) -> u32 {
    let (mut done, mut crc32c) = (0, 0);
    for piece in into {
        let count = piece.len().min(len - done);
        let then = piece.copy_in_view(view, from + done, count);
        crc32c = joined_crc32c(crc32c, then, count as u64);
        done += count;
    }
    assert_eq!(done, len, "it is read because it fits");
    crc32c
}

/// What is known, and in its gaps what is asked for, of which there is one for each.
pub(super) fn merged<T: Send + 'static>(
    known: Vec<Option<T>>,
    asked: Pending<Vec<T>>,
) -> Pending<Vec<T>> {
    Pending::here(async move {
        let mut answers = asked.await.into_iter();
        let known = known.into_iter();
        known
            .map(|known| known.unwrap_or_else(|| answers.next().expect("one each")))
            .collect()
    })
}
