//! Copies make way for longer ones.

use lunette_kvstore_proto::message::directory::CopyPlace;
use lunette_kvstore_proto::residence::Residence;
use lunette_runtime::arena::{AllocError, Region, RegionMut};

use super::looked_at::hide;
use super::{Bytes, Extent};
use crate::member::catalogue::Catalogue;
use crate::member::one_sided::Board;
use crate::moving::Lying;

/// Whether somebody relies on where a copy lies.
pub(crate) type Held<'a> = &'a dyn Fn(CopyPlace) -> bool;

/// The copies of a core, of which those may move that nobody reads or relies on.
struct Copies<'a> {
    residence: &'a Residence,
    extents: &'a mut [Option<Extent>],
    board: Option<&'a Board>,
    catalogue: Option<&'a Catalogue>,
    is_held: Held<'a>,
}

impl Lying for Copies<'_> {
    fn at_rest(&self, entry: u32) -> Option<&Region> {
        let place = self.residence.at_rest(entry)?;
        let extent = self.extents.get(entry as usize)?.as_ref()?;
        (!(self.is_held)(place)).then_some(&extent.region)
    }

    fn lies_at(&mut self, entry: u32, region: Region) -> Region {
        // Who reads it by itself does so where it is no more.
        hide(self.board, self.catalogue, entry);
        let extent = self.extents[entry as usize].as_mut();
        let extent = extent.expect("a copy has its extent");
        std::mem::replace(&mut extent.region, region)
    }
}

impl Bytes {
    /// How many copies have moved, and how many bytes that were.
    pub(in crate::member) const fn moved(&self) -> (u64, u64) {
        self.moving.moved()
    }

    /// Memory of so many bytes, for which copies move if need be.
    ///
    /// # Errors
    /// The arena's.
    pub(in crate::member) fn alloc(
        &mut self,
        len_bytes: usize,
        is_held: Held<'_>,
    ) -> Result<RegionMut, AllocError> {
        let mut copies = Copies {
            residence: &self.residence,
            extents: &mut self.extents,
            board: self.board.as_ref(),
            catalogue: self.catalogue.as_ref(),
            is_held,
        };
        self.moving.alloc(&self.arena, len_bytes, &mut copies)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use lunette_cluster::proto::map::Epoch;
    use lunette_kvstore_proto::key::Key;
    use lunette_kvstore_proto::residence::NoRoom;
    use lunette_kvstore_proto::retention::Pin;
    use lunette_kvstore_proto::shard::ShardLimits;
    use lunette_kvstore_proto::version::{Form, Version};
    use lunette_runtime::arena::{Arena, ArenaOptions, CHUNK_BYTES_MIN};
    use lunette_runtime::{CoreOptions, block_on};
    use lunette_runtime_core::checksum::crc32c;

    use super::*;

    const MEMORY: usize = 2 * CHUNK_BYTES_MIN;
    const ENTRIES_MAX: usize = 2048;
    const SHORT: u32 = 3000;
    const LONG: u32 = 100_000;

    fn on_a_core(test: impl FnOnce() + 'static) {
        let options = CoreOptions::default();
        block_on(None, options, || async { test() }).expect("a core");
    }

    fn key_of(n: usize) -> Vec<u8> {
        format!("key-{n}").into_bytes()
    }

    fn place_of(n: usize) -> CopyPlace {
        let version = Version {
            epoch: Epoch(1),
            sequence: n as u64,
        };
        let key = key_of(n);
        let key = Key::new(&key).expect("a key").fingerprint();
        CopyPlace { key, version }
    }

    fn value_of(n: usize) -> Vec<u8> {
        vec![u8::try_from(n % 251).expect("small"); SHORT as usize]
    }

    fn keep(bytes: &mut Bytes, n: usize) -> Result<(), NoRoom> {
        let key = key_of(n);
        let key = Key::new(&key).expect("a key");
        let carved = bytes.carve(key, SHORT, Pin::None, &|_| false)?;
        let (frame, mut region) = carved.into_empty();
        let value = value_of(n);
        frame.value_mut(&mut region).copy_from_slice(&value);
        let extent = frame.filled(region, crc32c(&value));
        assert!(bytes.keep_replica(frame, place_of(n), extent, Form::Whole));
        Ok(())
    }

    /// Memory full of short copies, of which every third has left: how many there were.
    fn in_pieces() -> (Bytes, usize) {
        let arena = Arena::new(ArenaOptions {
            bytes_max: MEMORY,
            chunk_bytes: CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        });
        let limits = ShardLimits::new(MEMORY as u64, MEMORY as u64, ENTRIES_MAX);
        let board = Board::new(ENTRIES_MAX).expect("memory");
        let mut bytes = Bytes::new(arena, limits.expect("limits"), Some(board));
        let mut count = 0;
        while keep(&mut bytes, count).is_ok() {
            count += 1;
        }
        assert_eq!(bytes.moved(), (0, 0));
        for n in (0..count).step_by(3) {
            bytes.free(place_of(n));
        }
        bytes.moving.has_tried(true);
        (bytes, count)
    }

    /// Where each copy lies, and the number that says so.
    fn described(bytes: &mut Bytes, count: usize) -> BTreeMap<usize, (u32, u64, u64)> {
        let there = (0..count).filter(|n| n % 3 != 0);
        let described = there.map(|n| {
            let key = key_of(n);
            let key = Key::new(&key).expect("a key");
            let described = bytes.describe(place_of(n), key).expect("a copy");
            let extent = bytes.extent(place_of(n)).expect("a copy");
            assert_eq!(extent.value().as_slice(), value_of(n));
            assert_eq!(extent.crc32c, crc32c(&value_of(n)));
            let told = (described.chunk, described.offset_bytes, described.number);
            (n, told)
        });
        described.collect()
    }

    fn carve_long(bytes: &mut Bytes, is_held: Held<'_>) -> Result<(), NoRoom> {
        let key = Key::new(b"long").expect("a key");
        let carved = bytes.carve(key, LONG, Pin::None, is_held)?;
        bytes.drop_unused(carved.into_empty().0);
        Ok(())
    }

    #[test]
    fn short_copies_move_whole_and_whoever_reads_where_they_were_sees_that() {
        on_a_core(|| {
            let (mut bytes, count) = in_pieces();
            let used_bytes = bytes.stats().used_bytes;
            let before = described(&mut bytes, count);
            carve_long(&mut bytes, &|_| false).expect("room");
            let (moved, moved_bytes) = bytes.moved();
            assert!(moved > 0 && moved_bytes < u64::from(LONG), "{moved_bytes}");
            assert_eq!(bytes.stats().used_bytes, used_bytes);
            let after = described(&mut bytes, count);
            let mut places = 0;
            for (n, (chunk, offset, number)) in &after {
                let former = before[n];
                let is_there = (former.0, former.1) == (*chunk, *offset);
                assert_eq!(is_there, former.2 == *number, "{n}");
                places += u64::from(!is_there);
            }
            assert_eq!(places, moved);
            // What left is gone, and nothing else.
            for n in 0..count {
                bytes.free(place_of(n));
            }
            assert_eq!((bytes.stats().entries, bytes.arena.used_bytes()), (0, 0));
        });
    }

    #[test]
    fn what_is_read_or_relied_on_stays_where_it_is() {
        on_a_core(|| {
            let (mut bytes, count) = in_pieces();
            let before = described(&mut bytes, count);
            let there: Vec<usize> = before.keys().copied().collect();
            let (held, rest) = there.split_at(there.len() / 4);
            let (pinned, rest) = rest.split_at(there.len() / 4);
            let (lent, _) = rest.split_at(there.len() / 4);
            let held: BTreeSet<_> = held.iter().map(|&n| place_of(n).key).collect();
            let ids: Vec<_> = (pinned.iter())
                .map(|&n| bytes.pin_any(place_of(n)).expect("a copy").0)
                .collect();
            let values: Vec<_> = (lent.iter())
                .map(|&n| bytes.extent(place_of(n)).expect("a copy").value())
                .collect();
            carve_long(&mut bytes, &|place| held.contains(&place.key)).expect("room");
            let (moved, _) = bytes.moved();
            let after = described(&mut bytes, count);
            let stays = there.len() / 4 * 3;
            for n in &there[..stays] {
                assert_eq!(before[n], after[n], "{n}");
            }
            let others = there[stays..].iter();
            let gone = others.filter(|n| before[*n] != after[*n]).count();
            assert_eq!(gone as u64, moved);
            for id in ids {
                bytes.unpin(id);
            }
            drop(values);
        });
    }

    #[test]
    fn where_it_is_of_no_use_it_is_tried_less_and_less() {
        on_a_core(|| {
            let (mut bytes, _) = in_pieces();
            let asked = std::cell::Cell::new(0_u32);
            let all_stay = |_| {
                asked.set(asked.get() + 1);
                true
            };
            let mut tries = Vec::new();
            for nth in 0..400 {
                let before = asked.get();
                let refused = carve_long(&mut bytes, &all_stay);
                assert!(matches!(refused, Err(NoRoom::Full { .. })));
                if asked.get() > before {
                    tries.push(nth);
                }
            }
            assert_eq!(tries, [0, 2, 5, 10, 19, 36, 69, 134, 199, 264, 329, 394]);
            assert_eq!(bytes.moved(), (0, 0));
            bytes.moving.has_tried(true);
            carve_long(&mut bytes, &|_| false).expect("room");
        });
    }
}
