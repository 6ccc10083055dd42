//! Whether a core sleeps, agreed between it and those who would wake it.
//!
//! The core announces its sleep, then looks at its rings a last time; a sender pushes, then looks at
//! the announcement. With a sequentially consistent fence between the two steps on each side, at
//! least one of them sees the other: no wake-up is lost. Whoever takes the announcement away wakes
//! the core, so at most one sender does.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The announcement.
#[derive(Debug)]
pub(crate) struct Doorbell {
    asleep: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self {
            asleep: AtomicBool::new(false),
        }
    }

    /// The core is about to look at its rings a last time, then to sleep.
    pub(crate) fn set_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// As a sender that has pushed: whether the core is to be woken, by this sender. As the core:
    /// ends the announcement.
    pub(crate) fn take_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::SeqCst)
    }

    /// Whether the core has announced its sleep.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }
}
