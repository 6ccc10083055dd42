//! How queue pairs are made and moved on.

use lunette_verbs_proto::negotiate::Agreement;

use super::Access;

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// Requests that are in flight at most: a power of two.
    pub sends: u32,
    /// Receives that are posted at most.
    pub receives: u32,
    /// Bytes that may be sent without registered memory.
    pub inline_bytes: u32,
}

impl Default for QueueSizes {
    fn default() -> Self {
        Self {
            sends: 128,
            receives: 64,
            inline_bytes: 64,
        }
    }
}

/// How stubborn a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// An unanswered packet is sent again after 4.096 us times two to the power of this: 1 to 31, for
    /// 0 would mean never.
    pub timeout_exponent: u8,
    /// How often, at most 7.
    pub retries: u8,
    /// How often a peer without a receive is asked again, at most 6: 7 would mean for ever.
    pub receiver_not_ready_retries: u8,
}

impl Patience {
    /// Whether it ends, and adapters know it.
    #[must_use]
    pub const fn is_finite(self) -> bool {
        matches!(self.timeout_exponent, 1..=31)
            && self.retries <= 7
            && self.receiver_not_ready_retries < 7
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            timeout_exponent: 14,
            retries: 7,
            receiver_not_ready_retries: 6,
        }
    }
}

/// How to reach the peer, for the way to ready-to-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) own_gid_index: u8,
    pub(crate) own_psn: u32,
    pub(crate) peer_gid: [u8; 16],
    pub(crate) peer_lid: u16,
    pub(crate) is_global: bool,
    pub(crate) peer_qp: u32,
    pub(crate) peer_psn: u32,
    pub(crate) agreement: Agreement,
    pub(crate) patience: Patience,
}

/// A step of a queue pair's life, with what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Init(Access),
    Rtr(Route),
    Rts(Route),
    Error,
}
