//! Quotas of tenants: how much memory of the whole cluster one may have, kept where the memory is.
//!
//! The *lender* of a tenant is one core, its home. It knows what it has lent to which core, and never lends more than the
//! quota. A core whose tenant needs more asks it, a piece ahead, and keeps within what it has: so a put asks nobody as long as
//! there is credit here, and a lender that is away stops nothing that has some.
//!
//! ```text
//!   core A (borrower)        the tenant's home (lender)         core B (borrower)
//!     |-- use: have, want ----->|                                   |
//!     |<-- lent: so much -------|                                   |
//!     |                         |<------- use: have, want ----------|  there is no more
//!     |<------ wanted ----------|-------- lent: what is left ------>|
//!     |-- use: have, want ----->|                                   |
//!     |<-- lent: less ----------|                                   |
//!  (evicts down to it)          |                                   |
//!     |-- use: have less ------>|                                   |
//!     |                         |-------- wanted ------------------>|  and so on
//! ```
//!
//! Where cores want more than the quota, each has what it wants, or else as much as any other (max-min fairness), but no less
//! than an object takes: shares into which none fits are of use to nobody. A core that has less than what it is to keep next is
//! given that by those that have most: who has waited longest first, as long as what waits there is tried again.
//!
//! What a core says that it has is the larger of its credit and of what it uses. So the lender counts what was lent until it is
//! given back, and the sum of all that may be used stays within the quota. It may be more: for as long as a quota that was
//! lowered is being evicted down to; by what a node has that is out of the map; and if a new lender has not heard what all
//! cores have within [`SETTLE_WAIT`], by what those have.
//!
//! Messages may be lost, and come late: each use has a number, the borrower asks again until the last one is answered, and the
//! lender asks those again whom it has to hear. What was said under an older map than the lender began to listen with is not
//! heeded: who said it may have been lent more by another since. So a lender has heard what a core has only when that core takes
//! nothing from others any more.
//!
//! | file | subject |
//! |---|---|
//! | `borrower` | what the tenants of one core may have |
//! | `lender` | what all cores have of the tenants at home here |
//! | `fair` | who has how much where there is too little |

mod borrower;
mod fair;
mod lender;

use core::time::Duration;

use lunette_cluster_proto::map::ClusterMap;
pub use lunette_cluster_proto::quota::QUOTAS_MAX;
use lunette_runtime_core::random::mix;

use crate::key::Fingerprint;
use crate::placement::{Seat, home_of};
use crate::tenant::TenantTag;

pub use borrower::Borrower;
pub use lender::Lender;

/// Most that a core asks for beyond what it uses, in bytes.
pub const PIECE_BYTES_MAX: u64 = 64 << 20;
/// Least, in bytes.
pub const PIECE_BYTES_MIN: u64 = 64 << 10;
/// How long who asks waits for the answer before it asks again, and the least time from an answer to the next question.
pub const ASK_AGAIN: Duration = Duration::from_millis(100);
/// The same where there is no more to be had, unless the lender says that there is.
pub const NO_MORE_WAIT: Duration = Duration::from_secs(1);
/// How long a lender that is new waits for what all cores have, before it lends without.
pub const SETTLE_WAIT: Duration = Duration::from_secs(2);

/// For how long what was wanted last is wanted still: until it is asked for again.
const WANTED_FOR: Duration = Duration::from_secs(2 * NO_MORE_WAIT.as_secs());
/// For how long what waited for room last is taken to wait still: until it is tried again, and asked for.
const NEEDED_FOR: Duration = Duration::from_millis(300);
const _: () = assert!(NEEDED_FOR.as_millis() > 2 * ASK_AGAIN.as_millis());
/// Each core has one such part of a quota as its piece, divided by the number of cores.
const PIECE_SHARE: u64 = 8;
/// Keeps the homes of tenants apart from those of keys: the fraction bits of the square root of 7.
const LENDER_SALT: u64 = 0xa54f_f53a_5f1d_36f1;

/// What a tenant may have of one core's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// So many bytes.
    pub max_bytes: u64,
    /// The tenant's quota: what it may have in all.
    pub quota_bytes: u64,
    /// More cannot be had, as far as is known: room is made by letting go of something of the tenant's own.
    pub is_last: bool,
}

/// What lenders and borrowers tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditNews {
    /// To the lender: what this core has, and what it would have.
    Use {
        /// The tenant.
        tenant: TenantTag,
        /// Each is above the one before, of one life of a core.
        number: u64,
        /// What it may use, or uses, in bytes: the larger one.
        have_bytes: u64,
        /// What it would use, in bytes.
        want_bytes: u64,
        /// How much it cannot do without: the length of what waits for room, 0 if nothing does.
        need_bytes: u64,
    },
    /// To a borrower: what it may use from now on.
    Lent {
        /// The tenant.
        tenant: TenantTag,
        /// What this answers. It means nothing to who has said something since.
        number: u64,
        /// In bytes.
        max_bytes: u64,
        /// More cannot be had now.
        is_last: bool,
    },
    /// To a borrower: it is to say what it has.
    Wanted {
        /// The tenant.
        tenant: TenantTag,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditAction {
    /// Tell a seat; it may be this very core.
    Tell(Seat, CreditNews),
    /// What the tenant may have here is another amount, or there is no quota any more: [`Borrower::credit`] says.
    Changed(TenantTag),
}

/// The core that lends to all of a tenant's; `None` if no member may be the home of anything.
#[must_use]
pub fn lender_of(map: &ClusterMap, tenant: TenantTag) -> Option<Seat> {
    let drawn = mix(tenant.0 ^ LENDER_SALT);
    home_of(map, Fingerprint(u128::from(drawn)))
}

/// How much a core asks for beyond what it uses: the less, the smaller the quota and the more cores there are.
fn piece_bytes(quota_bytes: u64, cores: u64) -> u64 {
    let share = quota_bytes / cores.saturating_mul(PIECE_SHARE).max(1);
    share.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
}

#[cfg(test)]
mod tests;
