//! Where the rows of a KV cache lie.
//!
//! A cache holds pages; a page holds, for each layer, for keys and for values, for each of its
//! tokens and each KV head, a row: the head's numbers, which are never torn apart. A layout is the
//! order of these axes, from the outermost inwards:
//!
//! ```text
//!   LAYER_FIRST  layer, part, page, token, head   engines: one tensor per layer
//!   PAGE_FIRST   page, part, layer, token, head   stores: one page is one block
//!   TOKEN_FIRST  page, part, token, layer, head   all layers of a token side by side
//!   PAGE_HEAD    page, head, part, layer, token   a rank reads its heads of a page in one piece
//! ```
//!
//! Multi-head latent attention (MLA) is a shape, not an order: one part, and one head whose row is
//! the latent vector.

use thiserror::Error;

/// Most bytes that a layout spans, so that every offset, and the sum of some, fits.
pub const LAYOUT_BYTES_MAX: u64 = 1 << 46;

/// An axis along which rows are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Keys, then values.
    Part,
    /// The model's layers.
    Layer,
    /// Pages of the cache.
    Page,
    /// Tokens of a page.
    Token,
    /// KV heads.
    Head,
}

/// How many axes there are.
pub const AXES: usize = 5;

impl Axis {
    /// All of them.
    pub const ALL: [Self; AXES] = [Self::Part, Self::Layer, Self::Page, Self::Token, Self::Head];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// The order of axes, from the outermost inwards.
pub type Order = [Axis; AXES];

/// One tensor per layer, as engines have it.
pub const LAYER_FIRST: Order = [Axis::Layer, Axis::Part, Axis::Page, Axis::Token, Axis::Head];
/// One page is one block, by layer inside.
pub const PAGE_FIRST: Order = [Axis::Page, Axis::Part, Axis::Layer, Axis::Token, Axis::Head];
/// One page is one block, by token inside.
pub const TOKEN_FIRST: Order = [Axis::Page, Axis::Part, Axis::Token, Axis::Layer, Axis::Head];
/// One page is one block, by head inside.
pub const PAGE_HEAD: Order = [Axis::Page, Axis::Head, Axis::Part, Axis::Layer, Axis::Token];

/// What a page of a model's cache is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// 2 for keys and values, 1 where there is one tensor (MLA).
    pub parts: u32,
    /// Layers.
    pub layers: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// KV heads.
    pub heads: u32,
    /// Bytes of a row: numbers of a head times bytes of a number.
    pub row_bytes: u32,
}

impl Shape {
    /// Keys and values of `heads` heads.
    #[must_use]
    pub const fn multi_head(layers: u32, page_tokens: u32, heads: u32, row_bytes: u32) -> Self {
        Self {
            parts: 2,
            layers,
            page_tokens,
            heads,
            row_bytes,
        }
    }

    /// One latent row per layer and token.
    #[must_use]
    pub const fn latent(layers: u32, page_tokens: u32, row_bytes: u32) -> Self {
        Self {
            parts: 1,
            layers,
            page_tokens,
            heads: 1,
            row_bytes,
        }
    }

    /// How far an axis reaches inside a page; pages themselves count as one.
    pub(crate) const fn extent(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Part => self.parts,
            Axis::Layer => self.layers,
            Axis::Page => 1,
            Axis::Token => self.page_tokens,
            Axis::Head => self.heads,
        }
    }

    /// Bytes of one page, if they are a sensible number.
    #[must_use]
    pub fn page_bytes(&self) -> Option<u64> {
        let axes = Axis::ALL.map(|axis| u64::from(self.extent(axis)));
        let bytes = axes
            .into_iter()
            .try_fold(u64::from(self.row_bytes), u64::checked_mul)?;
        (1..=LAYOUT_BYTES_MAX).contains(&bytes).then_some(bytes)
    }
}

/// Why there is no such layout.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// Something that is to be counted is zero.
    #[error("a cache without pages, or a page without rows")]
    Empty,
    /// It spans more than [`LAYOUT_BYTES_MAX`].
    #[error("more than {LAYOUT_BYTES_MAX} bytes")]
    TooLarge,
    /// An axis comes twice, and another one never.
    #[error("an order names each axis once")]
    Order,
    /// There is no such layer.
    #[error("the layout has no such layer")]
    Layer,
}

/// One row of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// 0 for keys, 1 for values.
    pub part: u32,
    /// Layer.
    pub layer: u32,
    /// Page.
    pub page: u32,
    /// Token of the page.
    pub token: u32,
    /// KV head.
    pub head: u32,
}

/// Where each row of a cache lies, in bytes from the cache's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    pages: u32,
    base_bytes: u64,
    /// By axis.
    strides: [u64; AXES],
    len_bytes: u64,
}

impl Layout {
    /// `pages` pages of this shape, densely in this order.
    ///
    /// # Errors
    /// [`LayoutError`]: other arguments are needed.
    pub fn new(shape: Shape, pages: u32, order: Order) -> Result<Self, LayoutError> {
        if Axis::ALL.iter().any(|axis| !order.contains(axis)) {
            return Err(LayoutError::Order);
        }
        let extent = |axis| match axis {
            Axis::Page => pages,
            axis => shape.extent(axis),
        };
        if shape.row_bytes == 0 || order.iter().any(|axis| extent(*axis) == 0) {
            return Err(LayoutError::Empty);
        }
        let mut strides = [0; AXES];
        let mut stride = u64::from(shape.row_bytes);
        for axis in order.into_iter().rev() {
            strides[axis.index()] = stride;
            stride = stride
                .checked_mul(u64::from(extent(axis)))
                .filter(|bytes| *bytes <= LAYOUT_BYTES_MAX)
                .ok_or(LayoutError::TooLarge)?;
        }
        Ok(Self {
            shape,
            pages,
            base_bytes: 0,
            strides,
            len_bytes: stride,
        })
    }

    /// The rows of one layer alone, where they lie in the whole. An engine's tensor of one layer is
    /// moved to and from that part of a block, and layers go one behind the other.
    ///
    /// # Errors
    /// [`LayoutError::Layer`].
    pub fn layer(&self, layer: u32) -> Result<Self, LayoutError> {
        if layer >= self.shape.layers {
            return Err(LayoutError::Layer);
        }
        let offset = u64::from(layer) * self.stride(Axis::Layer);
        Ok(Self {
            shape: Shape {
                layers: 1,
                ..self.shape
            },
            base_bytes: self.base_bytes + offset,
            ..*self
        })
    }

    /// What a page is made of.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How many pages there are.
    #[must_use]
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// Bytes of the memory that the layout describes, from its start to its end.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(crate) const fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    pub(crate) const fn stride(&self, axis: Axis) -> u64 {
        self.strides[axis.index()]
    }

    /// Where a row begins, if there is such a row.
    #[must_use]
    pub fn offset_bytes(&self, row: Row) -> Option<u64> {
        let indices = [
            (row.part, self.shape.parts, Axis::Part),
            (row.layer, self.shape.layers, Axis::Layer),
            (row.page, self.pages, Axis::Page),
            (row.token, self.shape.page_tokens, Axis::Token),
            (row.head, self.shape.heads, Axis::Head),
        ];
        let offset =
            indices
                .into_iter()
                .try_fold(self.base_bytes, |offset, (index, extent, axis)| {
                    (index < extent).then(|| offset + u64::from(index) * self.stride(axis))
                })?;
        assert!(
            offset + u64::from(self.shape.row_bytes) <= self.len_bytes,
            "a row lies inside its layout"
        );
        Some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape::multi_head(3, 4, 2, 8);

    fn offset(layout: &Layout, [part, layer, page, token, head]: [u32; 5]) -> Option<u64> {
        layout.offset_bytes(Row {
            part,
            layer,
            page,
            token,
            head,
        })
    }

    #[test]
    fn rows_lie_where_the_formula_of_each_order_says() {
        // (part, layer, page, token, head) = (1, 2, 5, 3, 1) of 2, 3, 7, 4, 2 and rows of 8 bytes.
        let table = [
            (LAYER_FIRST, (((2 * 2 + 1) * 7 + 5) * 4 + 3) * 2 + 1),
            (PAGE_FIRST, (((5 * 2 + 1) * 3 + 2) * 4 + 3) * 2 + 1),
            (TOKEN_FIRST, (((5 * 2 + 1) * 4 + 3) * 3 + 2) * 2 + 1),
            (PAGE_HEAD, (((5 * 2 + 1) * 2 + 1) * 3 + 2) * 4 + 3),
        ];
        for (order, rows) in table {
            let layout = Layout::new(SHAPE, 7, order).unwrap();
            assert_eq!(
                offset(&layout, [1, 2, 5, 3, 1]),
                Some(rows * 8),
                "{order:?}"
            );
            assert_eq!(layout.len_bytes(), 2 * 3 * 7 * 4 * 2 * 8);
        }
        assert_eq!(SHAPE.page_bytes(), Some(2 * 3 * 4 * 2 * 8));
    }

    #[test]
    fn a_layer_lies_where_it_lies_in_the_whole() {
        let whole = Layout::new(SHAPE, 7, PAGE_FIRST).unwrap();
        let layer = whole.layer(2).unwrap();
        assert_eq!(
            offset(&layer, [1, 0, 5, 3, 1]),
            offset(&whole, [1, 2, 5, 3, 1])
        );
        assert_eq!(offset(&layer, [1, 1, 5, 3, 1]), None);
        assert_eq!(whole.layer(3), Err(LayoutError::Layer));
    }

    #[test]
    fn what_is_outside_has_no_offset() {
        let layout = Layout::new(SHAPE, 7, PAGE_HEAD).unwrap();
        for outside in [[2, 0, 0, 0, 0], [0, 3, 0, 0, 0], [0, 0, 7, 0, 0]] {
            assert_eq!(offset(&layout, outside), None);
        }
        assert_eq!(offset(&layout, [0, 0, 0, 4, 0]), None);
        assert_eq!(offset(&layout, [0, 0, 0, 0, 2]), None);
    }

    #[test]
    fn sizes_are_checked_from_both_sides() {
        let new = |pages, row_bytes| {
            let shape = Shape::latent(1 << 8, 1 << 8, row_bytes);
            Layout::new(shape, pages, PAGE_FIRST).map(|layout| layout.len_bytes())
        };
        assert_eq!(new(1 << 15, 1 << 15), Ok(LAYOUT_BYTES_MAX));
        assert_eq!(new(1 << 15, (1 << 15) + 1), Err(LayoutError::TooLarge));
        assert_eq!(new(u32::MAX, u32::MAX), Err(LayoutError::TooLarge));
        assert_eq!(new(0, 1), Err(LayoutError::Empty));
        assert_eq!(new(1, 0), Err(LayoutError::Empty));
        let mut twice = PAGE_FIRST;
        twice[0] = Axis::Head;
        assert_eq!(Layout::new(SHAPE, 1, twice), Err(LayoutError::Order));
    }
}
