//! Copies that outlast others: until when.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use lunette_runtime_core::time::Time;

use super::standing::Standing;
use crate::retention::{PIN_TTL_MAX, Pin};

/// When a pin ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    At(Time),
    Never,
}

impl Until {
    /// A pin that begins now.
    pub(super) fn of(now: Time, pin: Pin) -> Option<Self> {
        match pin {
            Pin::None | Pin::Soft { ttl_ms: 0 } => None,
            Pin::Soft { ttl_ms } => {
                let ttl = Duration::from_millis(ttl_ms.into()).min(PIN_TTL_MAX);
                Some(Self::At(now + ttl))
            }
            Pin::Hard => Some(Self::Never),
        }
    }

    /// The pin that begins now and ends then.
    pub(super) fn from(self, now: Time) -> Pin {
        match self {
            Self::At(end) if now < end => Pin::soft(Some(end.since(now))),
            Self::At(_) => Pin::None,
            Self::Never => Pin::Hard,
        }
    }
}

/// Copies that are pinned, by slots, and those of them that may leave if nothing else can.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    of_slot: BTreeMap<u32, Until>,
    by_end: BTreeSet<(Time, u32)>,
    last_resort: Standing,
}

impl Pinned {
    /// A copy is pinned, and may be [asked](Self::offer) to leave, or not.
    pub(super) fn insert(&mut self, slot_index: u32, until: Until) {
        let former = self.of_slot.insert(slot_index, until);
        assert!(former.is_none(), "{slot_index} is pinned twice");
        if let Until::At(end) = until {
            self.by_end.insert((end, slot_index));
        }
    }

    pub(super) fn get(&self, slot_index: u32) -> Option<Until> {
        self.of_slot.get(&slot_index).copied()
    }

    /// A pinned copy may leave if its pin allows that at all. Whether it is pinned.
    pub(super) fn offer(&mut self, now: Time, slot_index: u32) -> bool {
        let until = self.get(slot_index);
        if let Some(Until::At(_)) = until {
            self.last_resort.push(now, slot_index);
        }
        until.is_some()
    }

    pub(super) fn touch(&mut self, now: Time, slot_index: u32) {
        self.last_resort.touch(now, slot_index);
    }

    /// It is pinned still, and not offered.
    pub(super) fn withhold(&mut self, slot_index: u32) {
        self.last_resort.remove(slot_index);
    }

    pub(super) fn remove(&mut self, slot_index: u32) {
        self.withhold(slot_index);
        if let Some(Until::At(end)) = self.of_slot.remove(&slot_index) {
            self.by_end.remove(&(end, slot_index));
        }
    }

    /// One whose pin has ended, and whether it was offered.
    pub(super) fn pop_ended(&mut self, now: Time) -> Option<(u32, bool)> {
        let &(end, slot_index) = self.by_end.first()?;
        if now < end {
            return None;
        }
        self.by_end.pop_first();
        self.of_slot.remove(&slot_index);
        Some((slot_index, self.last_resort.remove(slot_index)))
    }

    /// Where nothing else can leave: the least recently used one that may.
    pub(super) fn pop(&mut self, now: Time) -> Option<u32> {
        self.last_resort.pop(now, Duration::ZERO)
    }
}
