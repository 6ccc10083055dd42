//! Where a payload goes.

use std::ops::Range;

use lunette_runtime::arena::{Exposed, Extent, RegionMut, View};
use lunette_runtime::net::TcpStream;
use lunette_runtime::vectored::Scatter;
use lunette_runtime::{BufResult, OpError};
use lunette_runtime_core::checksum::Crc32c;

/// Bytes of exposed memory that are copied before they are summed: few enough to be in the cache still.
const TURN_BYTES: usize = 64 * 1024;

/// Memory lent for a payload to be received into: a range of a region, or pieces of exposed memory.
#[derive(Debug)]
pub struct Room {
    place: Place,
}

#[derive(Debug)]
enum Place {
    Region {
        region: RegionMut,
        range: Range<usize>,
    },
    Pieces(Pieces),
}

/// Exposed memory, filled one piece after the other.
#[derive(Debug)]
struct Pieces {
    pieces: Vec<Exposed>,
    /// Where each piece ends.
    ends: Vec<usize>,
}

impl Pieces {
    fn new(pieces: Vec<Exposed>) -> Self {
        let end = |sum: &mut usize, piece: &Exposed| {
            *sum += piece.len();
            Some(*sum)
        };
        let ends = pieces.iter().scan(0, end).collect();
        Self { pieces, ends }
    }

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The parts that make up `offset..offset + len`.
    fn parts(&self, offset: usize, len: usize) -> impl Iterator<Item = Exposed> {
        assert!(
            offset + len <= self.len(),
            "a payload stays inside its room"
        );
        let first = self.ends.partition_point(|&end| end <= offset);
        let mut skip = offset - first.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut left = len;
        self.pieces[first..].iter().map_while(move |piece| {
            let count = left.min(piece.len() - skip);
            let part = (count > 0).then(|| piece.slice(skip, count));
            skip = 0;
            left -= count;
            part
        })
    }
}

/// A room of which parts are lent, each as a room of its own, so that several payloads are received at the same
/// time. What is dropped before [`join`](Self::join) is freed when the last part is.
#[derive(Debug)]
pub struct SplitRoom {
    pieces: Pieces,
    /// Where the room lies in the region that it was of, if it was of one.
    range: Option<Range<usize>>,
}

impl SplitRoom {
    /// Bytes that fit.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range
            .as_ref()
            .map_or(self.pieces.len(), ExactSizeIterator::len)
    }

    /// Whether nothing fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// These ranges of it, one after the other, as a room. Ranges of rooms that are lent at the same time are not
    /// to overlap: what lies there would be of either.
    ///
    /// # Panics
    /// If a range does not lie inside.
    #[must_use]
    pub fn part(&self, ranges: impl IntoIterator<Item = Range<usize>>) -> Room {
        Room::of_parts(ranges.into_iter().map(|range| (self, range)))
    }

    /// The room again, if no part of it is lent any more.
    ///
    /// # Errors
    /// Itself: a part is there, or a receive into one is in flight.
    pub fn join(self) -> Result<Room, Self> {
        let Self { mut pieces, range } = self;
        let Some(range) = range else {
            return Ok(Room {
                place: Place::Pieces(pieces),
            });
        };
        let memory = pieces.pieces.pop().expect("a region is one piece");
        match memory.try_reclaim() {
            Ok(region) => Ok(Room::of(region, range)),
            Err(memory) => Err(Self {
                pieces: Pieces::new(vec![memory]),
                range: Some(range),
            }),
        }
    }
}

impl Room {
    /// The whole region.
    #[must_use]
    pub const fn whole(region: RegionMut) -> Self {
        let range = 0..region.len();
        let place = Place::Region { region, range };
        Self { place }
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
        let place = Place::Region { region, range };
        Self { place }
    }

    /// Exposed memory, one piece after the other. Empty pieces are allowed.
    #[must_use]
    pub fn exposed(mut pieces: Vec<Exposed>) -> Self {
        pieces.retain(|piece| !piece.is_empty());
        let place = Place::Pieces(Pieces::new(pieces));
        Self { place }
    }

    /// Parts of rooms, one after the other, as one. Those that are lent at the same time are not to overlap: what
    /// lies there would be of either.
    ///
    /// # Panics
    /// If a range does not lie inside its room.
    #[must_use]
    pub fn of_parts<'a, P>(parts: P) -> Self
    where
        P: IntoIterator<Item = (&'a SplitRoom, Range<usize>)>,
    {
        let mut pieces = Vec::new();
        for (room, range) in parts {
            let is_inside = range.start <= range.end && range.end <= room.len();
            assert!(is_inside, "a part inside its room");
            let start = room.range.as_ref().map_or(0, |range| range.start);
            pieces.extend(room.pieces.parts(start + range.start, range.len()));
        }
        Self::exposed(pieces)
    }

    /// The same room, of which parts can be lent.
    #[must_use]
    pub fn split(self) -> SplitRoom {
        match self.place {
            Place::Region { region, range } => SplitRoom {
                pieces: Pieces::new(vec![region.expose()]),
                range: Some(range),
            },
            Place::Pieces(pieces) => SplitRoom {
                pieces,
                range: None,
            },
        }
    }

    /// Bytes that fit.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.place {
            Place::Region { range, .. } => range.end - range.start,
            Place::Pieces(pieces) => pieces.len(),
        }
    }

    /// Whether nothing fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the room.
    ///
    /// # Panics
    /// If it is of exposed memory, of which nobody has the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let bytes = match &self.place {
            Place::Region { region, range } => Some(&region.as_slice()[range.clone()]),
            Place::Pieces(_) => None,
        };
        bytes.expect("exposed memory is copied, not borrowed")
    }

    /// The region, with whatever has been received into the room.
    ///
    /// # Panics
    /// If it is of exposed memory.
    #[must_use]
    pub fn into_region(self) -> RegionMut {
        let region = match self.place {
            Place::Region { region, .. } => Some(region),
            Place::Pieces(_) => None,
        };
        region.expect("the room is one of a region")
    }

    /// Copies bytes to `offset`.
    ///
    /// # Panics
    /// If they do not lie inside the room.
    pub fn place(&mut self, offset: usize, bytes: &[u8]) {
        match &mut self.place {
            Place::Region { region, range } => {
                let start = range.start + offset;
                let end = start + bytes.len();
                assert!(end <= range.end, "a payload stays inside its room");
                region.as_mut_slice()[start..end].copy_from_slice(bytes);
            }
            Place::Pieces(pieces) => {
                let mut rest = bytes;
                for part in pieces.parts(offset, bytes.len()) {
                    let (now, later) = rest.split_at(part.len());
                    part.copy_in(0, now);
                    rest = later;
                }
            }
        }
    }

    /// Copies `len` bytes from `start` of another process's memory to `offset`; the CRC32C of what has been
    /// written.
    ///
    /// # Panics
    /// If they do not lie inside the view, or not inside the room.
    pub fn place_from(&mut self, offset: usize, view: &View, start: usize, len: usize) -> u32 {
        match &mut self.place {
            Place::Region { region, range } => {
                let first = range.start + offset;
                assert!(first + len <= range.end, "a payload stays inside its room");
                view.copy_out_summed(start, &mut region.as_mut_slice()[first..first + len])
            }
            Place::Pieces(pieces) => {
                let mut checksum = Crc32c::new();
                let mut from = start;
                for part in pieces.parts(offset, len) {
                    for at in (0..part.len()).step_by(TURN_BYTES) {
                        let turn = part.slice(at, TURN_BYTES.min(part.len() - at));
                        view.copy_out(from, &turn);
                        turn.fold(&mut checksum);
                        from += turn.len();
                    }
                }
                checksum.value()
            }
        }
    }

    /// The pieces that it is of, one after the other; `None` if it is of a region, which nobody but its receiver
    /// writes.
    #[must_use]
    pub fn pieces(&self) -> Option<&[Exposed]> {
        match &self.place {
            Place::Region { .. } => None,
            Place::Pieces(pieces) => Some(&pieces.pieces),
        }
    }

    /// The extents in which it lies, and where in memory its part of each begins, and how long that is.
    #[must_use]
    pub fn extents(&self) -> Vec<(Extent, usize, usize)> {
        match &self.place {
            Place::Region { region, range } => {
                let start = region.as_slice().as_ptr().addr() + range.start;
                vec![(region.extent(), start, range.len())]
            }
            Place::Pieces(pieces) => {
                let pieces = pieces.pieces.iter();
                let pieces = pieces.map(|piece| (piece.extent(), piece.start(), piece.len()));
                pieces.collect()
            }
        }
    }

    /// Folds bytes that have come into the room.
    ///
    /// # Panics
    /// If they do not lie inside the room.
    pub fn fold(&self, offset: usize, len: usize, checksum: &mut Crc32c) {
        match &self.place {
            Place::Region { region, range } => {
                let start = range.start + offset;
                checksum.fold(&region.as_slice()[start..start + len]);
            }
            Place::Pieces(pieces) => {
                for part in pieces.parts(offset, len) {
                    part.fold(checksum);
                }
            }
        }
    }

    /// Receives at most `len` bytes to `offset`, unless `stop` ends first. The room comes back when
    /// the system has let go of it.
    pub(crate) async fn receive(
        self,
        stream: &TcpStream,
        offset: usize,
        len: usize,
        stop: impl Future<Output = ()>,
    ) -> BufResult<usize, Self> {
        match self.place {
            Place::Region { region, range } => {
                let start = range.start + offset;
                assert!(start + len <= range.end, "a payload stays inside its room");
                let (result, region) = stream.recv_until(region, start, len, stop).await;
                let place = Place::Region { region, range };
                (result, Self { place })
            }
            Place::Pieces(pieces) => {
                let result = receive_pieces(stream, &pieces, offset, len, stop).await;
                let place = Place::Pieces(pieces);
                (result, Self { place })
            }
        }
    }
}

async fn receive_pieces(
    stream: &TcpStream,
    pieces: &Pieces,
    offset: usize,
    len: usize,
    stop: impl Future<Output = ()>,
) -> Result<usize, OpError> {
    let mut parts = pieces.parts(offset, len).peekable();
    let first = parts.next().expect("a receive is of at least one byte");
    if parts.peek().is_none() {
        let len = first.len();
        return stream.recv_until(first, 0, len, stop).await.0;
    }
    let mut list = Scatter::new();
    for part in std::iter::once(first).chain(parts) {
        if list.push_exposed(part).is_err() {
            break;
        }
    }
    stream.recv_list_until(list, stop).await.0
}

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::{Arena, ArenaOptions, HugePages};
    use lunette_runtime_core::checksum::crc32c;

    use super::*;

    fn arena() -> Arena {
        Arena::new(ArenaOptions::default())
    }

    #[test]
    fn bytes_are_placed_within_the_range() {
        let mut room = Room::of(arena().alloc(100).expect("room"), 10..20);
        room.place(8, b"yz");
        room.place(0, b"xxxxxxxx");
        assert_eq!(room.as_slice(), b"xxxxxxxxyz");
        let mut checksum = Crc32c::new();
        room.fold(7, 2, &mut checksum);
        assert_eq!(checksum.value(), crc32c(b"xy"));
    }

    #[test]
    fn bytes_are_placed_over_pieces_from_any_point() {
        let arena = arena();
        let lens = [3, 0, 1, 5];
        let memory: Vec<Exposed> = lens
            .iter()
            .map(|len| arena.alloc(8).expect("room").expose().slice(0, *len))
            .collect();
        let mut room = Room::exposed(memory.clone());
        assert_eq!(room.len(), 9);
        room.place(0, b"abcdefghi");
        let all = || memory.iter().flat_map(Exposed::to_vec).collect::<Vec<u8>>();
        assert_eq!(all(), b"abcdefghi");
        for start in 0..=9 {
            for end in start..=9 {
                let mut checksum = Crc32c::new();
                room.fold(start, end - start, &mut checksum);
                assert_eq!(checksum.value(), crc32c(&b"abcdefghi"[start..end]));
            }
        }
        room.place(2, b"XYZ");
        assert_eq!(all(), b"abXYZfghi");
    }

    #[test]
    fn memory_of_another_process_is_copied_to_where_it_belongs() {
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * TURN_BYTES).collect();
        let owner = Exposed::map(bytes.len(), HugePages::Never, &mut Vec::new()).expect("memory");
        owner.copy_in(0, &bytes);
        let share = owner.share().expect("a mapping");
        let view = View::map(share.memfd, 0, share.len_bytes).expect("sealed");
        let (start, len) = (7, 2 * TURN_BYTES + 5);
        let part = &bytes[start..start + len];
        let mut room = Room::of(arena().alloc(len + 20).expect("room"), 10..len + 15);
        assert_eq!(room.place_from(5, &view, start, len), crc32c(part));
        assert_eq!(&room.as_slice()[5..], part);
        let arena = arena();
        let lens = [3, len - 1, 100];
        let pieces = lens.map(|len| arena.alloc(len).expect("room").expose());
        let mut room = Room::exposed(pieces.to_vec());
        assert_eq!(room.place_from(2, &view, start, len), crc32c(part));
        let all: Vec<u8> = pieces.iter().flat_map(Exposed::to_vec).collect();
        assert_eq!(&all[2..2 + len], part);
        assert_eq!(room.place_from(0, &view, start, 0), 0);
    }

    #[test]
    fn parts_of_a_room_are_rooms_until_it_is_joined() {
        let arena = arena();
        let split = Room::of(arena.alloc(100).expect("room"), 10..20).split();
        assert_eq!((split.len(), split.is_empty()), (10, false));
        let (mut first, mut second) = (split.part([0..3, 8..10]), split.part([3..5, 5..8]));
        assert_eq!((first.len(), second.len()), (5, 5));
        first.place(0, b"abcij");
        second.place(0, b"defgh");
        drop(second);
        let split = split.join().expect_err("the first is lent");
        drop(first);
        let room = split.join().expect("nothing is lent");
        assert_eq!(room.as_slice(), b"abcdefghij");
        assert_eq!(room.into_region().len(), 100);
        let memory = arena.alloc(8).expect("room").expose();
        let split = Room::exposed(vec![memory.slice(0, 3), memory.slice(5, 3)]).split();
        let mut part = split.part([2..2, 1..5]);
        part.place(0, b"wxyz");
        let room = split.join().expect("exposed memory is never owned");
        assert_eq!((room.len(), part.len()), (6, 4));
        assert_eq!(memory.to_vec()[1..3], *b"wx");
        assert_eq!(memory.to_vec()[5..7], *b"yz");
    }

    #[test]
    #[should_panic(expected = "a part inside its room")]
    fn a_part_beyond_the_room_is_refused() {
        let split = Room::of(arena().alloc(100).expect("room"), 10..20).split();
        drop(split.part([0..1, 9..11]));
    }

    #[test]
    #[should_panic(expected = "stays inside its room")]
    fn placing_beyond_the_end_is_refused() {
        Room::of(arena().alloc(100).expect("room"), 10..20).place(9, b"yz");
    }

    #[test]
    #[should_panic(expected = "stays inside its room")]
    fn placing_beyond_the_last_piece_is_refused() {
        let memory = arena().alloc(8).expect("room").expose();
        Room::exposed(vec![memory]).place(7, b"yz");
    }
}
