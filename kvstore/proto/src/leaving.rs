//! What decides which copy leaves memory next, and how much of what left it remembers.

use lunette_kvstore_policy::{GHOST_BYTES, Learned};

/// Of so many bytes of memory, one is spent on remembering what left, at most, or [`REMEMBERED_MIN`].
pub(crate) const REMEMBERING_SHARE: u64 = 128;
/// So many copies that left are remembered by the smallest memory: some 1.3 MB.
pub(crate) const REMEMBERED_MIN: u64 = 16_384;

/// The policy for at most `entries_max` copies, in memory of that size.
pub(crate) fn policy_for(entries_max: usize, memory_bytes: u64) -> Learned {
    Learned::with_ghosts(entries_max, remembered_max(memory_bytes, 1))
}

/// How many copies that left are remembered by memory of that size, or a part of them.
pub(crate) fn remembered_max(memory_bytes: u64, one_of: u64) -> usize {
    let remembered_max = memory_bytes / REMEMBERING_SHARE / GHOST_BYTES as u64 / one_of;
    usize::try_from(remembered_max.max(REMEMBERED_MIN)).unwrap_or(usize::MAX)
}
