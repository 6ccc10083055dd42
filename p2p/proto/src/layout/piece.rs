//! One part of one tensor, in runs of bytes that lie together both where they come from and where they go.

use core::ops::Range;

/// One level of a piece: so many times the next level, this far from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    count: u64,
    from_step: u64,
    to_step: u64,
    /// Bytes from the first of one to behind the last of it, where it comes from.
    inner_span: u64,
}

/// Bytes of one buffer that go to another, in runs. Where they come from runs follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from_buffer: u32,
    pub(super) to_buffer: u32,
    /// Where the first run begins, here and there.
    from: u64,
    to: u64,
    run: u64,
    levels: Vec<Level>,
}

/// A block's lengths, and the lengths of what it is taken from and put into, all in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents<'a> {
    pub(super) block: &'a [u64],
    pub(super) from: &'a [u64],
    pub(super) to: &'a [u64],
}

impl Piece {
    /// A block of elements of `element` bytes. `from` and `to` are where its first byte is.
    ///
    /// What is checked before: it has an element, and all of it lies within both.
    pub(super) fn new(
        (from_buffer, from): (u32, u64),
        (to_buffer, to): (u32, u64),
        element: u64,
        extents: Extents<'_>,
    ) -> Self {
        let Extents {
            block,
            from: from_lens,
            to: to_lens,
        } = extents;
        let (mut run, mut from_step, mut to_step) = (element, element, element);
        let mut levels: Vec<Level> = Vec::new();
        let mut span = element;
        let mut is_dense = true;
        for dimension in (0..block.len()).rev() {
            let count = block[dimension];
            if is_dense {
                // Everything further in is all of both: this dimension goes on without a gap.
                run = count * from_step;
                span = run;
                is_dense = count == from_lens[dimension] && count == to_lens[dimension];
            } else if count > 1 {
                levels.push(Level {
                    count,
                    from_step,
                    to_step,
                    inner_span: span,
                });
                span += (count - 1) * from_step;
            }
            from_step *= from_lens[dimension];
            to_step *= to_lens[dimension];
        }
        levels.reverse();
        Self {
            from_buffer,
            to_buffer,
            from,
            to,
            run,
            levels,
        }
    }

    /// The bytes between its first and its last, where they come from.
    pub(super) fn span(&self) -> Range<u64> {
        let outermost = self.levels.first();
        let span = outermost.map_or(self.run, |level| {
            (level.count - 1) * level.from_step + level.inner_span
        });
        self.from..self.from + span
    }

    /// Shows `visit` each run, or what is of it within `range` of the buffer that it comes from: where it begins there,
    /// where it goes, and its length; until that says no. Whether it never did.
    pub(super) fn runs(
        &self,
        range: &Range<u64>,
        visit: &mut impl FnMut(u64, u64, u64) -> bool,
    ) -> bool {
        self.descend(&self.levels, self.from, self.to, range, visit)
    }

    /// Whether a byte of it is within `range`.
    pub(super) fn touches(&self, range: &Range<u64>) -> bool {
        !self.runs(range, &mut |_, _, _| false)
    }

    fn descend(
        &self,
        levels: &[Level],
        from: u64,
        to: u64,
        range: &Range<u64>,
        visit: &mut impl FnMut(u64, u64, u64) -> bool,
    ) -> bool {
        let Some((level, inner)) = levels.split_first() else {
            let start = from.max(range.start);
            let end = (from + self.run).min(range.end);
            return start >= end || visit(start, to + (start - from), end - start);
        };
        // The first that ends behind the range's start, and the first that begins at its end or behind.
        let ends = from + level.inner_span;
        let first = if range.start < ends {
            0
        } else {
            (range.start - ends) / level.from_step + 1
        };
        let behind = range.end.saturating_sub(from).div_ceil(level.from_step);
        (first..behind.min(level.count)).all(|at| {
            let (from, to) = (from + at * level.from_step, to + at * level.to_step);
            self.descend(inner, from, to, range, visit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(piece: &Piece, range: Range<u64>) -> Vec<(u64, u64, u64)> {
        let mut runs = Vec::new();
        assert!(piece.runs(&range, &mut |from, to, len| {
            runs.push((from, to, len));
            true
        }));
        assert_eq!(piece.touches(&range), !runs.is_empty());
        runs
    }

    #[test]
    fn what_has_no_gap_is_one_run() {
        let lens = [3, 4, 5];
        let extents = Extents {
            block: &lens,
            from: &lens,
            to: &lens,
        };
        let piece = Piece::new((0, 100), (1, 7), 2, extents);
        assert_eq!(piece.span(), 100..220);
        assert_eq!(runs(&piece, 0..u64::MAX), [(100, 7, 120)]);
        assert_eq!(runs(&piece, 110..111), [(110, 17, 1)]);
        assert!(runs(&piece, 220..300).is_empty() && runs(&piece, 0..100).is_empty());
        let scalar = Extents {
            block: &[],
            from: &[],
            to: &[],
        };
        let piece = Piece::new((0, 8), (0, 0), 4, scalar);
        assert_eq!(runs(&piece, 0..100), [(8, 0, 4)]);
    }

    #[test]
    fn columns_are_a_run_for_each_row() {
        // Two of ten columns of three rows, into a matrix of two columns.
        let extents = Extents {
            block: &[3, 2],
            from: &[3, 10],
            to: &[3, 2],
        };
        let piece = Piece::new((0, 16), (0, 0), 4, extents);
        let all = [(16, 0, 8), (56, 8, 8), (96, 16, 8)];
        assert_eq!(
            (piece.span(), runs(&piece, 0..1000)),
            (16..104, all.to_vec())
        );
        assert_eq!(runs(&piece, 20..60), [(20, 4, 4), (56, 8, 4)]);
        assert!(runs(&piece, 24..56).is_empty(), "between two rows");
    }

    #[test]
    fn of_any_range_there_is_what_is_within_it() {
        // Two by two by three of four by three by five, into two by two by three in rows of four.
        let extents = Extents {
            block: &[2, 2, 3],
            from: &[4, 3, 5],
            to: &[2, 2, 4],
        };
        let piece = Piece::new((0, 7), (0, 3), 2, extents);
        let all = runs(&piece, 0..u64::MAX);
        assert_eq!((all.len(), piece.span()), (4, 7..7 + 30 + 10 + 6));
        for start in 0..=60 {
            for end in start..=61 {
                let clipped = all.iter().filter_map(|&(from, to, len)| {
                    let first = from.max(start);
                    let last = (from + len).min(end);
                    (first < last).then(|| (first, to + first - from, last - first))
                });
                let clipped: Vec<_> = clipped.collect();
                assert_eq!(runs(&piece, start..end), clipped, "{start}..{end}");
            }
        }
    }
}
