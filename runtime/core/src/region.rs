//! Names of pieces of arena memory, for logic that must not hold the memory itself.

/// A generation-checked name of a piece of one core's arena.
///
/// The arena that issued it resolves it to memory, or refuses when the piece has been freed since
/// (its slot's generation moved on). Holding the name holds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionRef {
    /// Index of the chunk within its arena.
    pub chunk_index: u32,
    /// Slot of the extent in the chunk's [`Carver`](crate::carve::Carver).
    pub slot_index: u32,
    /// Generation of that slot when the name was issued.
    pub generation: u32,
    /// First byte within the extent.
    pub offset_bytes: u32,
    /// Length in bytes.
    pub len_bytes: u32,
}
