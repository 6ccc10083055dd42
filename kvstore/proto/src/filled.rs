//! Which bytes of a reserved object have been written, and what the checksum of all of them is.
//!
//! Each write brings the CRC32C of its own range, which the receiver has verified. Ranges that meet are
//! joined and so are their checksums, so nobody reads the bytes again when the object is whole. Where a
//! part of what was written before is written again, the checksum of the rest of that is not known any
//! more: who commits the object computes it anew.
//!
//! - **What is being written is not there.** A write that ends badly leaves anything in its range, also
//!   where other bytes were before.
//! - **Two writes at the same time do not overlap**, or one that ends badly would damage what the other
//!   has written.

use std::collections::BTreeMap;

use lunette_runtime_core::checksum;
use thiserror::Error;

use crate::range::ByteRange;

/// Most pieces that the written bytes of one object are in: ranges that do not meet.
pub const PIECES_MAX: usize = 4096;
/// Most writes of one object that are under way.
pub const UNDER_WAY_MAX: usize = 256;

/// Why a range cannot be written now.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FillRefusal {
    /// Some of it is being written. Wait for that.
    #[error("some of the range is being written")]
    Overlaps,
    /// Too much is under way. Wait for some of it.
    #[error("more than {UNDER_WAY_MAX} writes are under way")]
    TooManyUnderWay,
    /// The written bytes would be in too many pieces. Write next to what is written.
    #[error("the written bytes would be in more than {PIECES_MAX} pieces")]
    TooManyPieces,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end_bytes: u64,
    /// None where it is what is left of a longer one.
    crc32c: Option<u32>,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Filled {
    /// Disjoint pieces that do not touch, by their first byte.
    pieces: BTreeMap<u64, Piece>,
    /// What is being written, by its first byte.
    under_way: BTreeMap<u64, u64>,
}

impl Filled {
    /// A range is going to be written; [`Filled::end`] follows. Whatever was there is not any more.
    ///
    /// # Errors
    /// [`FillRefusal`]: nothing has changed.
    pub fn begin(&mut self, range: ByteRange) -> Result<(), FillRefusal> {
        if range.len_bytes == 0 {
            return Ok(());
        }
        let (start, end) = (range.offset_bytes, range.end_bytes());
        if self.under_way.len() >= UNDER_WAY_MAX {
            return Err(FillRefusal::TooManyUnderWay);
        }
        let before = self.under_way.range(..end).next_back();
        if before.is_some_and(|(_, &end)| end > start) {
            return Err(FillRefusal::Overlaps);
        }
        // Each may become a piece, and what is cut may become two.
        if self.pieces.len() + self.under_way.len() + 2 > PIECES_MAX {
            return Err(FillRefusal::TooManyPieces);
        }
        self.cut(start, end);
        self.under_way.insert(start, end);
        Ok(())
    }

    /// A write that was begun has ended, with the CRC32C of its bytes if they are right.
    ///
    /// # Panics
    /// If it was not begun.
    pub fn end(&mut self, range: ByteRange, crc32c: Option<u32>) {
        if range.len_bytes == 0 {
            return;
        }
        let start = range.offset_bytes;
        let begun = self.under_way.remove(&start);
        assert_eq!(begun, Some(range.end_bytes()), "a write ends once");
        if let Some(crc32c) = crc32c {
            let end_bytes = range.end_bytes();
            let crc32c = Some(crc32c);
            self.join(start, Piece { end_bytes, crc32c });
        }
    }

    /// Takes `start..end` out of what is written.
    fn cut(&mut self, start: u64, end: u64) {
        while let Some((&first, &piece)) = self.pieces.range(..end).next_back() {
            if piece.end_bytes <= start {
                return;
            }
            self.pieces.remove(&first);
            let mut keep = |first: u64, end_bytes: u64| {
                if first < end_bytes {
                    let crc32c = None;
                    self.pieces.insert(first, Piece { end_bytes, crc32c });
                }
            };
            keep(end, piece.end_bytes);
            keep(first, start);
        }
    }

    /// Adds a piece, of which nothing is there, to what it touches.
    fn join(&mut self, mut start: u64, mut piece: Piece) {
        if let Some(after) = self.pieces.remove(&piece.end_bytes) {
            piece = follow(piece, after);
        }
        if let Some((&first, &before)) = self.pieces.range(..start).next_back()
            && before.end_bytes == start
        {
            self.pieces.remove(&first);
            (start, piece) = (first, follow(before, piece));
        }
        self.pieces.insert(start, piece);
    }

    /// Whether every byte of an object of this length is there, and none is being written.
    #[must_use]
    pub fn is_whole(&self, len_bytes: u32) -> bool {
        let written = self.pieces.get(&0).map_or(0, |piece| piece.end_bytes);
        self.is_quiet() && written == u64::from(len_bytes)
    }

    /// Whether nothing is being written.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The checksum of the object's bytes, if all are there and it is known.
    #[must_use]
    pub fn crc32c(&self, len_bytes: u32) -> Option<u32> {
        if !self.is_whole(len_bytes) {
            return None;
        }
        match self.pieces.get(&0) {
            Some(piece) => piece.crc32c,
            None => Some(checksum::crc32c(&[])),
        }
    }
}

/// A piece with the one that begins where it ends.
fn follow(piece: Piece, after: Piece) -> Piece {
    let len_bytes = after.end_bytes - piece.end_bytes;
    let both = piece.crc32c.zip(after.crc32c);
    Piece {
        end_bytes: after.end_bytes,
        crc32c: both.map(|(first, then)| checksum::joined_crc32c(first, then, len_bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset_bytes: u32, len_bytes: u32) -> ByteRange {
        ByteRange {
            offset_bytes: offset_bytes.into(),
            len_bytes,
        }
    }

    #[test]
    fn pieces_are_bounded() {
        let mut filled = Filled::default();
        let limit = u32::try_from(PIECES_MAX).expect("small") - 1;
        for n in 0..limit {
            filled.begin(range(2 * n, 1)).expect("room");
            filled.end(range(2 * n, 1), Some(0));
        }
        let more = range(2 * limit, 1);
        assert_eq!(filled.begin(more), Err(FillRefusal::TooManyPieces));
        assert_eq!(filled.begin(range(2 * limit, 0)), Ok(()));
    }

    #[test]
    fn what_is_under_way_is_bounded_and_does_not_overlap() {
        let mut filled = Filled::default();
        let limit = u32::try_from(UNDER_WAY_MAX).expect("small");
        filled.begin(range(10, 10)).expect("room");
        for (offset, len) in [(0, 11), (19, 1), (12, 3), (0, 100)] {
            let again = filled.begin(range(offset, len));
            assert_eq!(again, Err(FillRefusal::Overlaps), "{offset}, {len}");
        }
        for n in 1..limit {
            filled.begin(range(20 * n, 20)).expect("room");
        }
        let more = filled.begin(range(0, 1));
        assert_eq!(more, Err(FillRefusal::TooManyUnderWay));
        filled.end(range(20, 20), None);
        assert_eq!(filled.begin(range(0, 1)), Ok(()));
    }

    #[test]
    fn a_write_that_ends_badly_takes_away_what_was_there() {
        let mut filled = Filled::default();
        let bytes = b"0123456789";
        filled.begin(range(0, 10)).expect("room");
        assert!(!filled.is_whole(10), "it is being written");
        filled.end(range(0, 10), Some(checksum::crc32c(bytes)));
        assert_eq!(filled.crc32c(10), Some(checksum::crc32c(bytes)));
        filled.begin(range(3, 2)).expect("room");
        filled.end(range(3, 2), None);
        assert!(!filled.is_whole(10), "two are left");
        filled.begin(range(3, 2)).expect("room");
        filled.end(range(3, 2), Some(checksum::crc32c(&bytes[3..5])));
        assert!(filled.is_whole(10));
        assert_eq!(filled.crc32c(10), None, "of two pieces it is not known");
    }
}
