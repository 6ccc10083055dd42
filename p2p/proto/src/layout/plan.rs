//! Which bytes of an object go where, for a receiver that wants parts of its tensors.
//!
//! A receiver may be sharded otherwise than who registered: what it wants of a tensor is put together from the parts that
//! the object has. The unit that is fetched and verified is the chunk, so a plan names the chunks that have a byte that is
//! wanted, and for each of them the runs of bytes that are copied out of it.

use std::collections::BTreeMap;

use thiserror::Error;

use super::piece::{Extents, Piece};
use super::{Block, Dtype, Layout, TENSORS_MAX, Tensor};
use crate::chunks::ChunkSet;
use crate::object::Shape;

/// Most blocks that one slice is put together from.
const BLOCKS_MAX: usize = 4096;
/// Most pairs of a piece and a chunk that it may have bytes of.
const PAIRS_MAX: usize = 1 << 23;

/// A part of a tensor that a receiver wants, and where it is to lie: row by row, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which tensor.
    pub tensor: String,
    /// What its elements are to be.
    pub dtype: Dtype,
    /// How many elements all of it is to have.
    pub shape: Vec<u64>,
    /// Which part of it.
    pub block: Block,
    /// Into which of the receiver's buffers.
    pub buffer: u32,
    /// Where in it, in bytes.
    pub offset_bytes: u64,
}

impl Slice {
    /// Which bytes of a part of its tensor go into it: shows `visit` each run of them, where it begins in the part's buffer,
    /// where it goes in the slice's, and its length, all in bytes. Nothing of a part that has nothing of it, or is of another
    /// tensor; elements that are shorter than a byte are had as they lie, or not at all.
    pub fn runs_of(&self, part: &Tensor, mut visit: impl FnMut(u64, u64, u64)) {
        let is_its = part.name == self.tensor && part.dtype == self.dtype;
        let is_within = |block: &Block| block.is_within(&self.shape);
        if !(is_its && part.shape == self.shape && is_within(&self.block) && is_within(&part.block))
        {
            return;
        }
        let piece = if self.dtype.bits().is_multiple_of(8) {
            let common = self.block.common(&part.block);
            common.map(|common| piece(self, part, &common))
        } else {
            let is_same = self.block == part.block && elements(self) > 0;
            is_same.then(|| packed(self, part)).flatten()
        };
        let all = piece.is_none_or(|piece| {
            piece.runs(&(0..u64::MAX), &mut |from, to, len| {
                visit(from, to, len);
                true
            })
        });
        assert!(all, "nobody says no");
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanFault {
    /// Nothing is wanted.
    #[error("no byte is wanted")]
    Empty,
    /// More than [`TENSORS_MAX`] slices.
    #[error("{count} slices: at most {TENSORS_MAX} are wanted at a time")]
    TooManySlices {
        /// How many.
        count: usize,
    },
    /// The object has no such tensor.
    #[error("the object has no tensor {tensor:?}")]
    NoTensor {
        /// Which.
        tensor: String,
    },
    /// Its elements are others. Nothing is converted.
    #[error("tensor {tensor:?} is of {has}, and not of {wanted}")]
    Dtype {
        /// Which.
        tensor: String,
        /// What is wanted.
        wanted: Dtype,
        /// What there is.
        has: Dtype,
    },
    /// It has another shape.
    #[error("tensor {tensor:?} is of shape {has:?}, and not {wanted:?}")]
    Shape {
        /// Which.
        tensor: String,
        /// What is wanted.
        wanted: Vec<u64>,
        /// What there is.
        has: Vec<u64>,
    },
    /// The wanted block is not one of the tensor's.
    #[error("what is wanted of tensor {tensor:?} is outside of it")]
    Block {
        /// Which.
        tensor: String,
    },
    /// The object's parts of it do not have all that is wanted.
    #[error("the object does not have all that is wanted of tensor {tensor:?}")]
    NotCovered {
        /// Which.
        tensor: String,
    },
    /// Its elements are shorter than a byte, so that it is had whole or not at all.
    #[error("tensor {tensor:?} is of {dtype}: it can only be had as it lies")]
    Packed {
        /// Which.
        tensor: String,
        /// What its elements are.
        dtype: Dtype,
    },
    /// It does not fit where it is to lie.
    #[error("tensor {tensor:?} does not fit into the buffer where it is wanted")]
    Target {
        /// Which.
        tensor: String,
    },
    /// Something else is to lie there.
    #[error("tensor {tensor:?} is wanted where something else is")]
    Overlap {
        /// Which.
        tensor: String,
    },
    /// It is in too many parts.
    #[error("what is wanted is in too many parts")]
    TooManyParts,
}

/// Bytes of a chunk that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Where they begin in the chunk, in bytes.
    pub chunk_offset: u32,
    /// How many they are.
    pub len_bytes: u32,
    /// Into which of the receiver's buffers they go.
    pub buffer: u32,
    /// Where in it, in bytes.
    pub offset_bytes: u64,
}

/// What a receiver fetches, and what of it it takes.
#[derive(Clone, Debug)]
pub struct Plan {
    shape: Shape,
    pieces: Vec<Piece>,
    /// The pieces of each chunk.
    by_chunk: BTreeMap<u32, Vec<u32>>,
    chunks: ChunkSet,
    len_bytes: u64,
}

impl Plan {
    /// Plans how to get `slices` of an object into buffers of these lengths, in bytes.
    ///
    /// # Errors
    /// [`PlanFault`]: the first that is found.
    pub fn new(
        shape: &Shape,
        layout: &Layout,
        slices: &[Slice],
        buffers: &[u64],
    ) -> Result<Self, PlanFault> {
        if slices.len() > TENSORS_MAX {
            let count = slices.len();
            return Err(PlanFault::TooManySlices { count });
        }
        check_targets(slices, buffers)?;
        let mut pieces = Vec::new();
        let mut len_bytes = 0;
        for slice in slices {
            let parts = layout.parts(&slice.tensor);
            check_tensor(slice, parts)?;
            len_bytes += slice.dtype.bytes_of(elements(slice)).unwrap_or(0);
            gather(slice, parts, &mut pieces)?;
        }
        let by_chunk = assign(shape, &pieces)?;
        let mut chunks = ChunkSet::empty(shape.chunks());
        for &chunk in by_chunk.keys() {
            chunks.insert(chunk);
        }
        if chunks.is_empty() {
            return Err(PlanFault::Empty);
        }
        Ok(Self {
            shape: shape.clone(),
            pieces,
            by_chunk,
            chunks,
            len_bytes,
        })
    }

    /// The chunks that have something: at least one.
    #[must_use]
    pub const fn chunks(&self) -> &ChunkSet {
        &self.chunks
    }

    /// How many bytes are wanted.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// How many bytes the chunks have that are fetched for them.
    #[must_use]
    pub fn fetched_bytes(&self) -> u64 {
        let places = self.chunks.iter().filter_map(|it| self.shape.place(it));
        places.map(|place| u64::from(place.len_bytes)).sum()
    }

    /// All that is taken of a chunk, if no byte of it is left out; else `None`. So it can be told from what was taken whether
    /// that was right. Bytes that are wanted twice are there twice.
    #[must_use]
    pub fn all_of(&self, chunk: u32) -> Option<Vec<Copied>> {
        let place = self.shape.place(chunk)?;
        let mut copies = Vec::new();
        self.copies(chunk, |copied| copies.push(copied));
        copies.sort_unstable_by_key(|copied| copied.chunk_offset);
        let mut end = 0;
        for copied in &copies {
            if copied.chunk_offset > end {
                return None;
            }
            end = end.max(copied.chunk_offset + copied.len_bytes);
        }
        (end == place.len_bytes).then_some(copies)
    }

    /// What is taken of a chunk: nothing of one that is not fetched.
    pub fn copies(&self, chunk: u32, mut copy: impl FnMut(Copied)) {
        let (Some(place), Some(pieces)) = (self.shape.place(chunk), self.by_chunk.get(&chunk))
        else {
            return;
        };
        let range = place.offset_bytes..place.offset_bytes + u64::from(place.len_bytes);
        for &piece in pieces {
            let piece = &self.pieces[piece as usize];
            let all = piece.runs(&range, &mut |from, to, len| {
                let within = |bytes: u64| u32::try_from(bytes).expect("it is within a chunk");
                copy(Copied {
                    chunk_offset: within(from - range.start),
                    len_bytes: within(len),
                    buffer: piece.to_buffer,
                    offset_bytes: to,
                });
                true
            });
            assert!(all, "nobody says no");
        }
    }
}

fn elements(slice: &Slice) -> u64 {
    slice.block.elements().unwrap_or(0)
}

/// Whether slices fit where they are wanted, and none where another is.
fn check_targets(slices: &[Slice], buffers: &[u64]) -> Result<(), PlanFault> {
    let mut ranges = Vec::with_capacity(slices.len());
    for slice in slices {
        let tensor = slice.tensor.clone();
        if !slice.block.is_within(&slice.shape) {
            return Err(PlanFault::Block { tensor });
        }
        let len = slice.block.elements();
        let len = len.and_then(|elements| slice.dtype.bytes_of(elements));
        let end = len.and_then(|len| slice.offset_bytes.checked_add(len));
        let buffer = buffers.get(slice.buffer as usize);
        let end = end.filter(|end| buffer.is_some_and(|len| end <= len));
        let end = end.ok_or(PlanFault::Target { tensor })?;
        if end > slice.offset_bytes {
            ranges.push((slice.buffer, slice.offset_bytes, end, &slice.tensor));
        }
    }
    ranges.sort_unstable();
    let is_over = |pair: &&[(u32, u64, u64, &String)]| {
        let (one, two) = (pair[0], pair[1]);
        one.0 == two.0 && one.2 > two.1
    };
    let over = ranges.windows(2).find(is_over);
    over.map_or(Ok(()), |pair| {
        let tensor = pair[1].3.clone();
        Err(PlanFault::Overlap { tensor })
    })
}

/// Whether a tensor is what is wanted of it.
fn check_tensor(slice: &Slice, parts: &[Tensor]) -> Result<(), PlanFault> {
    let tensor = slice.tensor.clone();
    let Some(first) = parts.first() else {
        return Err(PlanFault::NoTensor { tensor });
    };
    if first.dtype != slice.dtype {
        return Err(PlanFault::Dtype {
            tensor,
            wanted: slice.dtype,
            has: first.dtype,
        });
    }
    if first.shape != slice.shape {
        return Err(PlanFault::Shape {
            tensor,
            wanted: slice.shape.clone(),
            has: first.shape.clone(),
        });
    }
    Ok(())
}

/// Puts a slice together from the parts that there are.
fn gather(slice: &Slice, parts: &[Tensor], pieces: &mut Vec<Piece>) -> Result<(), PlanFault> {
    if elements(slice) == 0 {
        return Ok(());
    }
    if !slice.dtype.bits().is_multiple_of(8) {
        return gather_packed(slice, parts, pieces);
    }
    let mut missing = vec![slice.block.clone()];
    for part in parts {
        let mut rest = Vec::new();
        for block in missing {
            match block.common(&part.block) {
                None => rest.push(block),
                Some(common) => {
                    pieces.push(piece(slice, part, &common));
                    rest.extend(block.without(&common));
                }
            }
        }
        missing = rest;
        if missing.is_empty() {
            return Ok(());
        }
        if missing.len() > BLOCKS_MAX || pieces.len() > PAIRS_MAX {
            return Err(PlanFault::TooManyParts);
        }
    }
    let tensor = slice.tensor.clone();
    Err(PlanFault::NotCovered { tensor })
}

/// Elements that are shorter than a byte are taken as the bytes that they are in.
fn gather_packed(
    slice: &Slice,
    parts: &[Tensor],
    pieces: &mut Vec<Piece>,
) -> Result<(), PlanFault> {
    let Some(part) = parts.iter().find(|part| part.block == slice.block) else {
        return Err(PlanFault::Packed {
            tensor: slice.tensor.clone(),
            dtype: slice.dtype,
        });
    };
    pieces.push(packed(slice, part).expect("a layout's"));
    Ok(())
}

/// All of a part, as it lies; `None` if that is no number of bytes.
fn packed(slice: &Slice, part: &Tensor) -> Option<Piece> {
    let bytes = part.len_bytes()?;
    let extents = Extents {
        block: &[bytes],
        from: &[bytes],
        to: &[bytes],
    };
    let (from, to) = (
        (part.buffer, part.offset_bytes),
        (slice.buffer, slice.offset_bytes),
    );
    Some(Piece::new(from, to, 1, extents))
}

/// The part of a slice that a part of the tensor has.
fn piece(slice: &Slice, part: &Tensor, common: &Block) -> Piece {
    let element = slice.dtype.bits() / 8;
    let at = |of: &Block| {
        let within = (0..common.start.len()).fold(0, |at, dimension| {
            at * of.shape[dimension] + (common.start[dimension] - of.start[dimension])
        });
        within * element
    };
    let extents = Extents {
        block: &common.shape,
        from: &part.block.shape,
        to: &slice.block.shape,
    };
    Piece::new(
        (part.buffer, part.offset_bytes + at(&part.block)),
        (slice.buffer, slice.offset_bytes + at(&slice.block)),
        element,
        extents,
    )
}

/// The pieces that each chunk has bytes of.
fn assign(shape: &Shape, pieces: &[Piece]) -> Result<BTreeMap<u32, Vec<u32>>, PlanFault> {
    let mut by_chunk: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut pairs = 0;
    for (piece, index) in pieces.iter().zip(0..) {
        let span = piece.span();
        let chunks = shape.chunks_of(piece.from_buffer).expect("a layout's");
        let chunk_bytes = u64::from(shape.chunk_bytes());
        let within = |bytes: u64| u32::try_from(bytes / chunk_bytes).expect("chunks are bounded");
        let (first, last) = (within(span.start), within(span.end - 1));
        for chunk in chunks.start + first..=chunks.start + last {
            pairs += 1;
            if pairs > PAIRS_MAX {
                return Err(PlanFault::TooManyParts);
            }
            let place = shape.place(chunk).expect("it is one of the buffer's");
            let range = place.offset_bytes..place.offset_bytes + u64::from(place.len_bytes);
            if piece.touches(&range) {
                by_chunk.entry(chunk).or_default().push(index);
            }
        }
    }
    Ok(by_chunk)
}
