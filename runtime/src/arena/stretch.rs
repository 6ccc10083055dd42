//! Room in one piece, where an arena has enough of it in many.

use std::cmp::Reverse;
use std::rc::Rc;

use lunette_runtime_core::region::RegionRef;

use super::chunk::Chunk;
use super::{Arena, RegionMut};

/// Chunks that are looked at, those first of which most is free.
const CHUNKS_MAX: usize = 2;

/// A stretch that is being cleared. What was free there nobody else gets as long as this is kept; when the regions that
/// lie there have been dropped, and this, an allocation of the length it was asked for finds room there.
#[derive(Debug)]
pub struct Stretch {
    used: Vec<RegionRef>,
    _holes: Vec<RegionMut>,
}

impl Stretch {
    /// The regions that lie there, by the names of all that was carved for them.
    #[must_use]
    pub fn used(&self) -> &[RegionRef] {
        &self.used
    }
}

impl Arena {
    /// A stretch of at least `len_bytes` in which all regions are movable: their owner can copy them elsewhere, and drop
    /// the only handle to each. Of those that are looked at, for a bounded time, the one where the least is to be copied.
    ///
    /// `None` if there is none.
    pub fn stretch(
        &self,
        len_bytes: usize,
        is_movable: impl Fn(RegionRef) -> bool,
    ) -> Option<Stretch> {
        let len = u32::try_from(len_bytes).ok()?;
        let inner = self.inner.borrow();
        let mut chunks: Vec<&Rc<Chunk>> = inner.chunks.iter().collect();
        chunks.sort_by_key(|chunk| Reverse(chunk.len() - chunk.used_bytes()));
        let mut chunks = chunks.into_iter().take(CHUNKS_MAX);
        chunks.find_map(|chunk| {
            let found = chunk.stretch(len, |carved| is_movable(chunk.name(carved)))?;
            let holes = found.holes.into_iter();
            Some(Stretch {
                used: found.used.iter().map(|carved| chunk.name(carved)).collect(),
                _holes: holes
                    .map(|hole| RegionMut::of_carved(chunk, hole, hole.len_bytes))
                    .collect(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ArenaOptions, CHUNK_BYTES_MIN, Region};
    use super::*;

    const SHORT: usize = 4096;
    const LONG: usize = 64 * 1024;

    /// An arena full of short regions, each with a byte of its own.
    fn full(chunks: usize) -> (Arena, Vec<Option<Region>>) {
        let arena = Arena::new(ArenaOptions {
            bytes_max: chunks * CHUNK_BYTES_MIN,
            chunk_bytes: CHUNK_BYTES_MIN,
            ..ArenaOptions::default()
        });
        let mut regions = Vec::new();
        while let Ok(mut region) = arena.alloc(SHORT) {
            let byte = u8::try_from(regions.len() % 251).expect("small");
            region.as_mut_slice().fill(byte);
            regions.push(Some(region.freeze()));
        }
        assert_eq!(regions.len() * SHORT, chunks * CHUNK_BYTES_MIN);
        (arena, regions)
    }

    /// Copies what lies in the stretch elsewhere.
    fn clear(arena: &Arena, stretch: Stretch, regions: &mut [Option<Region>]) {
        let mut left = Vec::new();
        for name in stretch.used() {
            let found = regions.iter_mut().flatten();
            let region = found.into_iter().find(|region| region.name() == *name);
            let region = region.expect("a region");
            let mut copied = arena.alloc(region.len()).expect("room elsewhere");
            copied.as_mut_slice().copy_from_slice(region.as_slice());
            left.push(std::mem::replace(region, copied.freeze()));
        }
    }

    #[test]
    fn what_lies_in_the_way_moves_and_a_long_region_has_room() {
        let (arena, mut regions) = full(3);
        for nth in (0..regions.len()).step_by(5) {
            regions[nth] = None;
        }
        assert!(arena.alloc(LONG).is_err(), "there are holes only");
        let used_bytes = arena.used_bytes();
        let stretch = arena.stretch(LONG, |_| true).expect("a stretch");
        assert!(stretch.used().len() <= LONG / SHORT * 4 / 5 + 1);
        clear(&arena, stretch, &mut regions);
        assert_eq!(arena.used_bytes(), used_bytes, "nothing is kept");
        let long = arena.alloc(LONG).expect("room in one piece");
        for (nth, region) in regions.iter().enumerate() {
            let byte = u8::try_from(nth % 251).expect("small");
            let is_whole = |region: &Region| region.as_slice().iter().all(|&found| found == byte);
            assert!(region.as_ref().is_none_or(is_whole), "{nth}");
        }
        drop(long);
    }

    #[test]
    fn what_has_to_stay_is_in_no_stretch() {
        let (arena, mut regions) = full(1);
        for nth in (0..regions.len()).step_by(2) {
            regions[nth] = None;
        }
        assert!(arena.stretch(LONG, |_| false).is_none());
        let kept: Vec<_> = regions.iter().flatten().map(Region::name).collect();
        // Behind the first quarter anything may move.
        let is_movable = |name: RegionRef| {
            let at = kept.iter().position(|kept| *kept == name);
            at.expect("a region") > kept.len() / 4
        };
        let stretch = arena.stretch(LONG, is_movable).expect("a stretch");
        assert!(stretch.used().iter().all(|name| is_movable(*name)));
        drop(stretch);
        assert_eq!(arena.used_bytes(), kept.len() * SHORT, "its holes are free");
        assert!(arena.stretch(CHUNK_BYTES_MIN, is_movable).is_none());
        assert!(arena.stretch(usize::MAX, is_movable).is_none());
    }
}
