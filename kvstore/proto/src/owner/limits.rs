//! How much an owner has under way, and how often it asks.

use core::time::Duration;

/// How long an answer of a home is waited for before it is asked again.
pub const RESEND: Duration = Duration::from_millis(40);
/// How long a writer that says nothing, and how its writes ended, is remembered.
pub const ANSWERED_KEEP: Duration = Duration::from_secs(20);
/// Longest hold: `hold_ttl_ms`.
pub const HOLD_MAX: Duration = Duration::from_secs(5);

/// The bounds of one owner. Each table has a refusal of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerLimits {
    /// Copies kept. Beyond, writes are refused: evict before.
    pub copies_max: usize,
    /// Writes under way. Beyond, writes are refused.
    pub writes_max: usize,
    /// Writers that are remembered, and outcomes of their writes. Beyond, writes are refused.
    pub answered_max: usize,
    /// Holds of one holder. Beyond, lookups succeed and hold nothing.
    pub holds_per_holder_max: usize,
    /// Bytes that one holder holds. Beyond, lookups succeed and hold nothing.
    pub held_bytes_per_holder_max: u64,
    /// Holds in all. Beyond, lookups succeed and hold nothing.
    pub holds_max: usize,
    /// Copies whose homes are found in one turn after a new map. Homes that ask meanwhile are answered at the end.
    pub relisted_per_turn_max: usize,
}

impl Default for OwnerLimits {
    fn default() -> Self {
        Self {
            copies_max: 4 << 20,
            writes_max: 16 << 10,
            answered_max: 256 << 10,
            holds_per_holder_max: 16 << 10,
            held_bytes_per_holder_max: 1 << 30,
            holds_max: 256 << 10,
            relisted_per_turn_max: 16 << 10,
        }
    }
}
