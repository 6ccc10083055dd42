//! Where a payload goes.

use std::ops::Range;

use lunette_runtime::arena::RegionMut;

/// A range of a region, lent for a payload to be received into.
#[derive(Debug)]
pub struct Room {
    region: RegionMut,
    range: Range<usize>,
}

impl Room {
    /// The whole region.
    #[must_use]
    pub const fn whole(region: RegionMut) -> Self {
        let range = 0..region.len();
        Self { region, range }
    }

    /// A range of the region.
    ///
    /// # Panics
    /// If the range does not lie inside the region.
    #[must_use]
    pub fn of(region: RegionMut, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= region.len(),
            "a room inside its region"
        );
        Self { region, range }
    }

    /// Bytes that fit.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Whether nothing fits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the room.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.region.as_slice()[self.range.clone()]
    }

    /// The region, with whatever has been received into the room.
    #[must_use]
    pub fn into_region(self) -> RegionMut {
        self.region
    }

    /// Places bytes that arrived in staging.
    pub(crate) fn place(&mut self, offset: usize, bytes: &[u8]) {
        let start = self.range.start + offset;
        let end = start + bytes.len();
        assert!(end <= self.range.end, "a payload stays inside its room");
        self.region.as_mut_slice()[start..end].copy_from_slice(bytes);
    }

    /// Takes the room apart for a receive to `offset`: the region and where to start in it.
    pub(crate) fn lend(self, offset: usize, len: usize) -> (RegionMut, Lent) {
        let start = self.range.start + offset;
        assert!(
            start + len <= self.range.end,
            "a payload stays inside its room"
        );
        (
            self.region,
            Lent {
                range: self.range,
                start,
            },
        )
    }
}

/// What is left of a room while its region is lent to a receive.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    range: Range<usize>,
    /// Where in the region the receive starts.
    pub(crate) start: usize,
}

impl Lent {
    pub(crate) fn reunite(self, region: RegionMut) -> Room {
        Room {
            region,
            range: self.range,
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::{Arena, ArenaOptions};

    use super::*;

    #[test]
    fn a_room_is_taken_apart_and_put_together() {
        let arena = Arena::new(ArenaOptions::default());
        let mut room = Room::of(arena.alloc(100).expect("room"), 10..20);
        room.place(8, b"yz");
        let (mut region, lent) = room.lend(0, 8);
        assert_eq!(lent.start, 10);
        region.as_mut_slice()[10..18].fill(b'x');
        let room = lent.reunite(region);
        assert_eq!(room.as_slice(), b"xxxxxxxxyz");
    }

    #[test]
    #[should_panic(expected = "stays inside its room")]
    fn placing_beyond_the_end_is_refused() {
        let arena = Arena::new(ArenaOptions::default());
        Room::of(arena.alloc(100).expect("room"), 10..20).place(9, b"yz");
    }
}
