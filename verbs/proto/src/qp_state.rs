//! States of a queue pair, and what each transition needs.
//!
//! ```text
//!   Reset ──▶ Init ──▶ Rtr ──▶ Rts ──▶ Sqd
//!     ▲         │       │       │       │
//!     └─────────┴───────┴───────┴───────┴──▶ Error      (every state can fail or be reset)
//! ```
//!
//! An attribute that a transition does not need is refused like one that is missing: adapters
//! differ in which of the two they tell.

/// Where a queue pair stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QpState {
    /// Fresh.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue drains.
    Sqd,
    /// Both queues flush.
    Error,
}

/// All states.
pub const STATES: [QpState; 6] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Error,
];

/// A set of attributes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes(u32);

impl Attributes {
    /// The new state; part of every transition.
    pub const STATE: Self = Self(1);
    /// What peers may do.
    pub const ACCESS: Self = Self(1 << 3);
    /// Index of the partition key.
    pub const PKEY_INDEX: Self = Self(1 << 4);
    /// The port.
    pub const PORT: Self = Self(1 << 5);
    /// The way to the peer.
    pub const ADDRESS: Self = Self(1 << 7);
    /// Path MTU.
    pub const PATH_MTU: Self = Self(1 << 8);
    /// How long an answer may take.
    pub const TIMEOUT: Self = Self(1 << 9);
    /// How often a packet without an answer is sent again.
    pub const RETRY_COUNT: Self = Self(1 << 10);
    /// How often a peer without a receive is asked again.
    pub const RNR_RETRY: Self = Self(1 << 11);
    /// The peer's first packet number.
    pub const RQ_PSN: Self = Self(1 << 12);
    /// Reads and atomics that this side may have in flight.
    pub const MAX_RD_ATOMIC: Self = Self(1 << 13);
    /// How long a peer waits when there is no receive.
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    /// This side's first packet number.
    pub const SQ_PSN: Self = Self(1 << 16);
    /// Reads and atomics that the peer may have in flight.
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    /// The peer's queue pair.
    pub const DEST_QPN: Self = Self(1 << 20);

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The set as libibverbs has it.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

const INIT: Attributes = Attributes::STATE
    .and(Attributes::PKEY_INDEX)
    .and(Attributes::PORT)
    .and(Attributes::ACCESS);
const RTR: Attributes = Attributes::STATE
    .and(Attributes::ADDRESS)
    .and(Attributes::PATH_MTU)
    .and(Attributes::DEST_QPN)
    .and(Attributes::RQ_PSN)
    .and(Attributes::MAX_DEST_RD_ATOMIC)
    .and(Attributes::MIN_RNR_TIMER);
const RTS: Attributes = Attributes::STATE
    .and(Attributes::SQ_PSN)
    .and(Attributes::TIMEOUT)
    .and(Attributes::RETRY_COUNT)
    .and(Attributes::RNR_RETRY)
    .and(Attributes::MAX_RD_ATOMIC);

/// What a reliable connection needs to go from one state to another; `None`: there is no way.
#[must_use]
pub const fn required(from: QpState, to: QpState) -> Option<Attributes> {
    match (from, to) {
        (_, QpState::Reset | QpState::Error) | (QpState::Rts, QpState::Sqd) => {
            Some(Attributes::STATE)
        }
        (QpState::Reset, QpState::Init) => Some(INIT),
        (QpState::Init, QpState::Rtr) => Some(RTR),
        (QpState::Rtr, QpState::Rts) => Some(RTS),
        (QpState::Sqd, QpState::Rts) => Some(Attributes::STATE),
        _ => None,
    }
}

impl QpState {
    /// As libibverbs numbers it.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::Rtr => 2,
            Self::Rts => 3,
            Self::Sqd => 4,
            Self::Error => 6,
        }
    }

    /// Whether sends may be posted. In [`QpState::Error`] they are flushed.
    #[must_use]
    pub const fn may_send(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Error)
    }

    /// Whether receives may be posted.
    #[must_use]
    pub const fn may_receive(self) -> bool {
        !matches!(self, Self::Reset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transition_is_as_the_table_has_it() {
        let mut table = String::new();
        for from in STATES {
            for to in STATES {
                let cell = required(from, to).map_or("-".to_owned(), |a| format!("{:x}", a.bits()));
                table += &format!("{cell:>7}");
            }
            table.push('\n');
        }
        // Rows: from; columns: to; the numbers are libibverbs' masks.
        let expected = "      1     39      -      -      -      1
      1      - 1291 81      -      -      1
      1      -      -  12e01      -      1
      1      -      -      -      1      1
      1      -      -      1      -      1
      1      -      -      -      -      1
";
        let rtr = format!("{:x}", RTR.bits());
        assert_eq!(table, expected.replace(" 1291 81", &format!("{rtr:>7}")));
        assert_eq!(RTR.bits(), 0x12_9181);
    }

    #[test]
    fn nothing_leaves_error_but_by_reset() {
        let ways: Vec<QpState> = STATES
            .into_iter()
            .filter(|to| required(QpState::Error, *to).is_some())
            .collect();
        assert_eq!(ways, [QpState::Reset, QpState::Error]);
    }
}
