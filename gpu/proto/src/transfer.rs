//! Pages from one layout to another.
//!
//! Axes that lie side by side in both layouts are one run of bytes; what is left is at most four
//! loops over such runs. The naive formula, row by row, is [`copy_rows`]; everything else here, and
//! the kernel, must do what it does.

use thiserror::Error;

use crate::layout::{Axis, Layout, Row, Shape};

/// Most loops that are left of a page.
pub const LOOPS_MAX: usize = 4;

/// A page of the source and the page of the destination that it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePair {
    /// Page of the source.
    pub from: u32,
    /// Page of the destination.
    pub to: u32,
}

impl PagePair {
    /// A place of a list where nothing is moved.
    pub const SKIP: Self = Self {
        from: u32::MAX,
        to: u32::MAX,
    };
}

/// Bytes that lie side by side in both places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// First byte in the source.
    pub from_bytes: u64,
    /// First byte in the destination.
    pub to_bytes: u64,
    /// Length.
    pub len_bytes: u64,
}

/// Why pages cannot be moved so.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TransferError {
    /// The layouts hold different pages.
    #[error("the layouts hold pages of different shapes")]
    Shape,
    /// A page is not there; nothing was moved.
    #[error("there is no page pair {from} -> {to}")]
    Page {
        /// Page of the source.
        from: u32,
        /// Page of the destination.
        to: u32,
    },
}

/// A loop over runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// How often.
    pub extent: u32,
    /// How far from one to the next, in the source.
    pub from_bytes: u64,
    /// How far from one to the next, in the destination.
    pub to_bytes: u64,
}

impl Loop {
    pub(crate) const ONCE: Self = Self {
        extent: 1,
        from_bytes: 0,
        to_bytes: 0,
    };
}

/// How the pages of one layout become those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTransfer {
    shape: Shape,
    from: Place,
    to: Place,
    run_bytes: u64,
    /// From the outermost inwards.
    loops: [Loop; LOOPS_MAX],
}

/// One side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    base_bytes: u64,
    page_bytes: u64,
    pages: u32,
    len_bytes: u64,
}

impl Place {
    const fn of(layout: &Layout) -> Self {
        Self {
            base_bytes: layout.base_bytes(),
            page_bytes: layout.stride(Axis::Page),
            pages: layout.pages(),
            len_bytes: layout.len_bytes(),
        }
    }

    const fn page(&self, page: u32) -> u64 {
        self.base_bytes + page as u64 * self.page_bytes
    }
}

impl PageTransfer {
    /// From one layout to another of the same shape.
    ///
    /// # Errors
    /// [`TransferError::Shape`].
    pub fn new(from: &Layout, to: &Layout) -> Result<Self, TransferError> {
        if from.shape() != to.shape() {
            return Err(TransferError::Shape);
        }
        let shape = *from.shape();
        let inner = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Page);
        let mut loops: Vec<Loop> = inner
            .map(|axis| Loop {
                extent: shape.extent(axis),
                from_bytes: from.stride(axis),
                to_bytes: to.stride(axis),
            })
            .filter(|one| one.extent > 1)
            .collect();
        let run_bytes = join_runs(u64::from(shape.row_bytes), &mut loops);
        // Writes go forward.
        loops.sort_by_key(|one| std::cmp::Reverse(one.to_bytes));
        join_loops(&mut loops);
        let mut all = [Loop::ONCE; LOOPS_MAX];
        assert!(loops.len() <= LOOPS_MAX, "four axes beside the page");
        let first = LOOPS_MAX - loops.len();
        all[first..].copy_from_slice(&loops);
        let transfer = Self {
            shape,
            from: Place::of(from),
            to: Place::of(to),
            run_bytes,
            loops: all,
        };
        let moved = transfer.fragments_per_page() * run_bytes;
        assert_eq!(Some(moved), shape.page_bytes(), "runs make up a page");
        Ok(transfer)
    }

    /// Bytes of one run.
    #[must_use]
    pub const fn run_bytes(&self) -> u64 {
        self.run_bytes
    }

    /// Bytes of one page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.fragments_per_page() * self.run_bytes
    }

    /// Runs of one page.
    #[must_use]
    pub fn fragments_per_page(&self) -> u64 {
        self.loops.iter().map(|one| u64::from(one.extent)).product()
    }

    /// Bytes of the source's memory.
    #[must_use]
    pub const fn from_len_bytes(&self) -> u64 {
        self.from.len_bytes
    }

    /// Bytes of the destination's memory.
    #[must_use]
    pub const fn to_len_bytes(&self) -> u64 {
        self.to.len_bytes
    }

    /// The loops over runs, from the outermost inwards; those that are not needed come first and
    /// run once.
    #[must_use]
    pub const fn loops(&self) -> &[Loop; LOOPS_MAX] {
        &self.loops
    }

    /// First byte of page 0 and the distance of pages, in the source and in the destination.
    #[must_use]
    pub const fn pages(&self) -> [(u64, u64); 2] {
        [
            (self.from.base_bytes, self.from.page_bytes),
            (self.to.base_bytes, self.to.page_bytes),
        ]
    }

    /// The way back.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            loops: self.loops.map(|one| Loop {
                from_bytes: one.to_bytes,
                to_bytes: one.from_bytes,
                ..one
            }),
            ..*self
        }
    }

    /// Whether all pages are there.
    ///
    /// # Errors
    /// [`TransferError::Page`] names the first that is not.
    pub fn check(&self, pairs: &[PagePair]) -> Result<(), TransferError> {
        let is_there = |pair: &PagePair| {
            *pair == PagePair::SKIP || (pair.from < self.from.pages && pair.to < self.to.pages)
        };
        match pairs.iter().find(|pair| !is_there(pair)) {
            None => Ok(()),
            Some(&PagePair { from, to }) => Err(TransferError::Page { from, to }),
        }
    }

    /// A run of a page, counted from 0.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn fragment(&self, pair: PagePair, index: u64) -> Fragment {
        assert!(index < self.fragments_per_page(), "run {index} of a page");
        let mut rest = index;
        let mut fragment = Fragment {
            from_bytes: self.from.page(pair.from),
            to_bytes: self.to.page(pair.to),
            len_bytes: self.run_bytes,
        };
        for one in self.loops.iter().rev() {
            let at = rest % u64::from(one.extent);
            rest /= u64::from(one.extent);
            fragment.from_bytes += at * one.from_bytes;
            fragment.to_bytes += at * one.to_bytes;
        }
        fragment
    }

    /// What is to be moved for these pages, in order, with neighbours joined where both sides
    /// allow it.
    ///
    /// # Errors
    /// [`TransferError::Page`]: nothing is to be moved.
    pub fn fragments<'a>(
        &'a self,
        pairs: &'a [PagePair],
    ) -> Result<impl Iterator<Item = Fragment> + 'a, TransferError> {
        self.check(pairs)?;
        let moved = pairs.iter().filter(|pair| **pair != PagePair::SKIP);
        let all = moved.flat_map(|pair| {
            (0..self.fragments_per_page()).map(|index| self.fragment(*pair, index))
        });
        Ok(Joined {
            rest: all,
            held: None,
        })
    }
}

/// Joins to a run the axes that lie side by side in both layouts.
fn join_runs(row_bytes: u64, loops: &mut Vec<Loop>) -> u64 {
    let mut run_bytes = row_bytes;
    while let Some(next) = loops
        .iter()
        .position(|one| one.from_bytes == run_bytes && one.to_bytes == run_bytes)
    {
        run_bytes *= u64::from(loops.remove(next).extent);
    }
    run_bytes
}

/// Joins loops that go on where the one inside them ends.
fn join_loops(loops: &mut Vec<Loop>) {
    let mut index = 0;
    while index + 1 < loops.len() {
        let (outer, inner) = (loops[index], loops[index + 1]);
        let reach = u64::from(inner.extent);
        let goes_on = outer.from_bytes == inner.from_bytes * reach
            && outer.to_bytes == inner.to_bytes * reach;
        match outer.extent.checked_mul(inner.extent).filter(|_| goes_on) {
            Some(extent) => {
                loops[index] = Loop { extent, ..inner };
                loops.remove(index + 1);
            }
            None => index += 1,
        }
    }
}

/// Joins fragments that follow one another on both sides.
struct Joined<I> {
    rest: I,
    held: Option<Fragment>,
}

impl<I: Iterator<Item = Fragment>> Iterator for Joined<I> {
    type Item = Fragment;

    fn next(&mut self) -> Option<Fragment> {
        for next in self.rest.by_ref() {
            let Some(held) = &mut self.held else {
                self.held = Some(next);
                continue;
            };
            let follows = held.from_bytes + held.len_bytes == next.from_bytes
                && held.to_bytes + held.len_bytes == next.to_bytes;
            if follows {
                held.len_bytes += next.len_bytes;
            } else {
                return self.held.replace(next);
            }
        }
        self.held.take()
    }
}

/// The reference: moves the rows of these pages one by one, by the formula of the layouts alone.
///
/// # Errors
/// [`TransferError`]: nothing was moved.
///
/// # Panics
/// If a slice is shorter than its layout.
pub fn copy_rows(
    (from, source): (&Layout, &[u8]),
    (to, destination): (&Layout, &mut [u8]),
    pairs: &[PagePair],
) -> Result<(), TransferError> {
    PageTransfer::new(from, to)?.check(pairs)?;
    let shape = *from.shape();
    let len = shape.row_bytes as usize;
    for pair in pairs.iter().filter(|pair| **pair != PagePair::SKIP) {
        for (part, layer, token, head) in rows_of(&shape) {
            let row = |page| Row {
                part,
                layer,
                page,
                token,
                head,
            };
            let place = |layout: &Layout, page| {
                let offset = layout.offset_bytes(row(page)).expect("pages were checked");
                usize::try_from(offset).expect("a slice holds it")
            };
            let (at, to) = (place(from, pair.from), place(to, pair.to));
            destination[to..to + len].copy_from_slice(&source[at..at + len]);
        }
    }
    Ok(())
}

/// Part, layer, token and head of each row of a page.
fn rows_of(shape: &Shape) -> impl Iterator<Item = (u32, u32, u32, u32)> + use<> {
    let Shape {
        parts,
        layers,
        page_tokens,
        heads,
        ..
    } = *shape;
    (0..parts).flat_map(move |part| {
        (0..layers).flat_map(move |layer| {
            (0..page_tokens)
                .flat_map(move |token| (0..heads).map(move |head| (part, layer, token, head)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{LAYER_FIRST, Order, PAGE_FIRST, PAGE_HEAD, TOKEN_FIRST};

    const SHAPE: Shape = Shape::multi_head(3, 4, 2, 8);
    const PAGE_BYTES: u64 = 2 * 3 * 4 * 2 * 8;

    fn transfer(from: Order, to: Order) -> PageTransfer {
        let layout = |order| Layout::new(SHAPE, 5, order).unwrap();
        PageTransfer::new(&layout(from), &layout(to)).unwrap()
    }

    #[test]
    fn runs_are_as_long_as_both_layouts_allow() {
        let table = [
            (PAGE_FIRST, PAGE_FIRST, PAGE_BYTES),
            // Tokens and heads of a layer's page.
            (LAYER_FIRST, PAGE_FIRST, 4 * 2 * 8),
            (LAYER_FIRST, TOKEN_FIRST, 2 * 8),
            (LAYER_FIRST, PAGE_HEAD, 8),
            (PAGE_HEAD, PAGE_FIRST, 8),
        ];
        for (from, to, run) in table {
            assert_eq!(transfer(from, to).run_bytes(), run, "{from:?} {to:?}");
            assert_eq!(transfer(to, from).run_bytes(), run, "{to:?} {from:?}");
        }
        // Without parts and heads, layers and tokens are what is left.
        let latent = |order| Layout::new(Shape::latent(3, 4, 8), 5, order).unwrap();
        let transfer = PageTransfer::new(&latent(LAYER_FIRST), &latent(PAGE_HEAD)).unwrap();
        assert_eq!(transfer.run_bytes(), 4 * 8);
    }

    #[test]
    fn loops_that_go_on_are_joined() {
        // Layers and parts change places, so both are looped over; layer by layer one is left.
        assert_eq!(transfer(LAYER_FIRST, PAGE_FIRST).loops()[1], Loop::ONCE);
        assert_eq!(transfer(LAYER_FIRST, PAGE_FIRST).fragments_per_page(), 6);
        let from = Layout::new(SHAPE, 5, TOKEN_FIRST).unwrap();
        let to = Layout::new(SHAPE, 5, PAGE_FIRST).unwrap();
        let one = PageTransfer::new(&from.layer(1).unwrap(), &to.layer(2).unwrap()).unwrap();
        assert_eq!((one.run_bytes(), one.fragments_per_page()), (16, 8));
    }

    #[test]
    fn neighbours_on_both_sides_are_one_copy() {
        let same = transfer(PAGE_FIRST, PAGE_FIRST);
        let pair = |from, to| PagePair { from, to };
        let pairs = [
            pair(0, 1),
            pair(1, 2),
            PagePair::SKIP,
            pair(2, 3),
            pair(4, 4),
        ];
        let moved: Vec<_> = same.fragments(&pairs).unwrap().collect();
        assert_eq!(
            moved,
            [(0, 1, 3), (4, 4, 1)].map(|(from, to, pages)| Fragment {
                from_bytes: from * PAGE_BYTES,
                to_bytes: to * PAGE_BYTES,
                len_bytes: pages * PAGE_BYTES,
            })
        );
    }

    #[test]
    fn pages_that_are_not_there_are_named() {
        let transfer = transfer(LAYER_FIRST, PAGE_FIRST);
        let last = PagePair { from: 4, to: 4 };
        assert_eq!(transfer.check(&[last, PagePair::SKIP]), Ok(()));
        for (from, to) in [(5, 0), (0, 5), (u32::MAX, 0)] {
            let error = transfer.check(&[last, PagePair { from, to }]);
            assert_eq!(error, Err(TransferError::Page { from, to }));
        }
        let other = Layout::new(Shape::latent(3, 4, 8), 5, PAGE_FIRST).unwrap();
        let layout = Layout::new(SHAPE, 5, PAGE_FIRST).unwrap();
        let error = PageTransfer::new(&layout, &other);
        assert_eq!(error, Err(TransferError::Shape));
    }
}
