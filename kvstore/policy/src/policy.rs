//! What a cache tells its policy, and asks.

use crate::class::Use;

/// Decides what leaves a cache. The cache numbers its slots; what lies in them it knows itself.
///
/// A chain of blocks, like those of a prompt, is told from its end to its start, so that the start was
/// used later than what builds on it, and outlives it. A group that leaves as a whole is the
/// caller's: it lets the others follow the member that is the victim.
///
/// # Panics
/// All methods but [`insert`](Self::insert) and [`victim`](Self::victim) panic if the slot holds no
/// block.
pub trait Policy {
    /// A block comes into an empty slot, and is used. `key` is a hash of what names it.
    ///
    /// # Panics
    /// If the slot holds a block.
    fn insert(&mut self, slot_index: u32, key: u64, used: Use);

    /// A block is used.
    fn touch(&mut self, slot_index: u32, used: Use);

    /// A block is no victim until it is offered again: it is pinned, or about to leave.
    fn withhold(&mut self, slot_index: u32);

    /// A block may be a victim; at once, it is the last one of its kind.
    fn offer(&mut self, slot_index: u32);

    /// Whether a block that left is remembered, so that one that comes back is told from a new one.
    fn remembers(&self, key: u64) -> bool;

    /// The block that should leave next, if one may. It stays one until told otherwise: withhold it to
    /// see the one after it.
    fn victim(&mut self) -> Option<u32>;

    /// A block has left to make room, and may come back.
    fn evict(&mut self, slot_index: u32);

    /// A block is no more, and does not come back.
    fn remove(&mut self, slot_index: u32);
}
