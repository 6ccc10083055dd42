//! What a device has pinned of the host: chunks of the core's arena, and memory of other processes that the core has mapped.

use std::rc::Rc;
use std::sync::Arc;

use lunette_runtime::arena::{ChunkHandle, View};

use crate::device::Inner;
use crate::provider::RawPin;

/// Memory that is pinned as a whole, or not.
#[derive(Clone, Debug)]
pub(crate) enum Pinnable {
    /// Of the core's own arena. It is pinned when a copy first uses it.
    Chunk(ChunkHandle),
    /// Mapped for reading. It is pinned when [that is asked for](crate::Device::pin_view).
    View(Arc<View>),
}

impl PartialEq for Pinnable {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Chunk(one), Self::Chunk(other)) => one == other,
            (Self::View(one), Self::View(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Pinnable {
    /// Where it begins, by which devices reach it from here on, and its length.
    pub(crate) fn exposed(&self) -> (usize, usize) {
        match self {
            Self::Chunk(chunk) => {
                let start = chunk.start().as_ptr().expose_provenance();
                (start, chunk.len_bytes())
            }
            Self::View(view) => {
                let (pages, len) = view.pages();
                (pages.as_ptr().expose_provenance(), len)
            }
        }
    }

    /// Whether devices may read it only.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::View(_))
    }

    /// Whether anybody has it beside whoever asks.
    fn is_shared(&self) -> bool {
        match self {
            Self::Chunk(_) => true,
            Self::View(view) => Arc::strong_count(view) > 1,
        }
    }
}

/// What the device has pinned.
struct Pinned {
    // Declared, and so dropped, before what it covers.
    pin: RawPin,
    what: Pinnable,
}

/// What is pinned, what is about to be, and what the system would not pin.
#[derive(Default)]
pub(crate) struct Pins {
    pinned: Vec<Pinned>,
    pending: Vec<Pinnable>,
    refused: Vec<Pinnable>,
}

impl Pins {
    /// By which address the device reaches the start of what is pinned.
    pub(crate) fn find(&self, what: &Pinnable) -> Option<u64> {
        let known = self.pinned.iter().find(|known| known.what == *what);
        known.map(|known| known.pin.device_address())
    }

    pub(crate) fn add(&mut self, pin: RawPin, what: &Pinnable) {
        assert!(self.find(what).is_none(), "it is pinned once");
        self.refused.retain(|refused| refused != what);
        self.pinned.push(Pinned {
            pin,
            what: what.clone(),
        });
    }

    /// Whether another thread pins it just now.
    pub(crate) fn is_pending(&self, what: &Pinnable) -> bool {
        self.pending.contains(what)
    }

    pub(crate) fn is_refused(&self, what: &Pinnable) -> bool {
        self.refused.contains(what)
    }

    pub(crate) fn refuse(&mut self, what: &Pinnable) {
        self.refused.push(what.clone());
    }

    /// Lets go of views that nobody else has. (An operation that reads one has it.)
    pub(crate) fn let_go(&mut self) {
        self.pinned.retain(|known| known.what.is_shared());
        self.refused.retain(Pinnable::is_shared);
    }
}

/// Another thread pins something as long as this is held.
pub(crate) struct Pending {
    device: Rc<Inner>,
    what: Pinnable,
}

impl Pending {
    pub(crate) fn new(device: &Rc<Inner>, what: &Pinnable) -> Self {
        device.pins().borrow_mut().pending.push(what.clone());
        Self {
            device: Rc::clone(device),
            what: what.clone(),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut pins = self.device.pins().borrow_mut();
        pins.pending.retain(|pending| *pending != self.what);
    }
}
