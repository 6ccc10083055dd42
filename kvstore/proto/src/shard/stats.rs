//! What a shard counts.

use super::PutRefusal;

/// What a shard holds, and what it has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Entries that are not released: being written, resident or dying.
    pub entries: u64,
    /// Bytes of the resident entries' extents.
    pub resident_bytes: u64,
    /// Bytes of all entries' extents, those being written and dying included.
    pub used_bytes: u64,
    /// Entries evicted.
    pub evictions: u64,
    /// Bytes of the entries evicted.
    pub evicted_bytes: u64,
    /// Puts committed.
    pub puts: u64,
    /// Puts that found their key resident.
    pub touches: u64,
    /// Puts that met another put of their key.
    pub busy: u64,
    /// Puts given up by their writer.
    pub aborts: u64,
    /// Puts refused because too many bytes cannot be evicted now.
    pub refused_full: u64,
    /// Puts refused because their extent never fits.
    pub refused_too_large: u64,
    /// Puts refused because too many entries cannot be evicted now.
    pub refused_entries: u64,
    /// Gets, hits and misses together.
    pub gets: u64,
    /// Gets that found their key.
    pub hits: u64,
    /// Gets that did not.
    pub misses: u64,
    /// Keys removed.
    pub removes: u64,
}

impl ShardStats {
    pub(super) const fn count_refusal(&mut self, refusal: PutRefusal) {
        match refusal {
            PutRefusal::Full { .. } => self.refused_full += 1,
            PutRefusal::TooLarge { .. } => self.refused_too_large += 1,
            PutRefusal::EntriesFull { .. } => self.refused_entries += 1,
        }
    }
}
