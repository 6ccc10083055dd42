//! How much a home keeps, and for how long.

use core::time::Duration;

use lunette_cluster_proto::fence::CLOCK_DRIFT_MAX;

use crate::leaving::remembered_max;

/// How long a lookup waits for a home that is being rebuilt: `rebuild_wait_ms_max`.
pub const REBUILD_WAIT_MAX: Duration = Duration::from_millis(50);
/// Most reports that a home asks for at once while it is being rebuilt.
pub const REPORTS_UNDER_WAY_MAX: usize = 32;
/// How long an answer of a seat is waited for before it is asked again.
pub const RESEND: Duration = Duration::from_millis(40);
/// How long after a member has left the map it is taken for serving still. Its lease was over when the map was written
/// (what proposes one compares that), so by its own clock it had stopped [`CLOCK_DRIFT_MAX`] before: this is for a turn
/// of its loop that began earlier.
pub const DEPARTED_WAIT: Duration = CLOCK_DRIFT_MAX;
/// How long tombstones are kept.
pub const TOMBSTONE_KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an asker that says nothing, and how its removals ended, is remembered.
pub const ANSWERED_KEEP: Duration = Duration::from_secs(20);
/// How long an owner that was told to make copies has for it, before it is taken for slow, or gone.
pub const REPAIR_WAIT: Duration = Duration::from_secs(1);
/// Longest pause before an owner is told again of a key whose copies nobody could take.
pub const REPAIR_PAUSE_MAX: Duration = Duration::from_secs(8);
/// Most keys whose copies are being made again: further ones wait for them.
pub const REPAIRS_UNDER_WAY_MAX: usize = 64;
/// Most keys that one tick judges, sweeps or has repaired: what a turn of the loop gives to it.
pub const KEYS_PER_TICK_MAX: usize = 256;
/// Most copies of one key, of all versions.
pub const COPIES_PER_KEY_MAX: usize = 32;
/// Most maps that are remembered until nobody of them can be serving any more. With one change per
/// second at most, those of a usual lease.
pub const RECENT_MAPS_MAX: usize = 16;

/// The bounds of one home. Each table has a refusal of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeLimits {
    /// Copies recorded. Beyond, claims are refused, and what is reported is dropped.
    pub copies_max: usize,
    /// Claims granted and not yet over. Beyond, claims are refused.
    pub claims_max: usize,
    /// Removals and upserts under way. Beyond, they are refused.
    pub changes_max: usize,
    /// Requests that wait. Beyond, they are refused.
    pub waiters_max: usize,
    /// Requests that wait for one key. Beyond, they are refused.
    pub waiters_per_key_max: usize,
    /// Tombstones. Beyond, the oldest is forgotten: who was away for longer comes back cold.
    pub tombstones_max: usize,
    /// Askers that are remembered, and outcomes of their removals. Beyond, removals are refused.
    pub answered_max: usize,
    /// Keys with copies too few that are remembered. Beyond, they are looked for in the table when there
    /// is room.
    pub repairs_max: usize,
    /// Keys that left, of which it is remembered how often they were used; fewer beside
    /// [few copies](lunette_kvstore_policy::ghosts_beside). Beyond, the older half is forgotten.
    pub histories_max: usize,
    /// How long a key that has lost copies waits before an owner is told.
    pub repair_after: Duration,
    /// How long nothing has been removed before what is known of removals is [kept](super::Home::keep), and a little more for each.
    pub keep_after: Duration,
}

impl Default for HomeLimits {
    fn default() -> Self {
        Self {
            copies_max: 4 << 20,
            claims_max: 64 << 10,
            changes_max: 16 << 10,
            waiters_max: 64 << 10,
            waiters_per_key_max: 64,
            tombstones_max: 256 << 10,
            answered_max: 256 << 10,
            repairs_max: 64 << 10,
            histories_max: 16 << 10,
            repair_after: Duration::from_secs(1),
            keep_after: Duration::from_secs(1),
        }
    }
}

/// Of so many copies that a memory remembers, the home on its core remembers where one left.
const HISTORIES_SHARE: u64 = 2;

impl HomeLimits {
    /// The histories for a home beside memory of that size.
    #[must_use]
    pub fn histories_max(memory_bytes: u64) -> usize {
        remembered_max(memory_bytes, HISTORIES_SHARE)
    }
}
