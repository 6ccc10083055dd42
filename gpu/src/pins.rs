//! Which chunks of the core's arena a device has pinned.

use std::rc::Rc;

use lunette_runtime::arena::ChunkHandle;

use crate::device::Inner;
use crate::provider::RawPin;

/// A chunk that the device has pinned as a whole.
struct PinnedChunk {
    // Declared, and so dropped, before what it covers.
    pin: RawPin,
    chunk: ChunkHandle,
}

/// What is pinned, what is about to be, and what the system would not pin.
#[derive(Default)]
pub(crate) struct Pins {
    pinned: Vec<PinnedChunk>,
    pending: Vec<ChunkHandle>,
    refused: Vec<ChunkHandle>,
}

impl Pins {
    /// By which address the device reaches the start of a chunk that is pinned.
    pub(crate) fn find(&self, chunk: &ChunkHandle) -> Option<u64> {
        let known = self.pinned.iter().find(|known| known.chunk == *chunk);
        known.map(|known| known.pin.device_address())
    }

    pub(crate) fn add(&mut self, pin: RawPin, chunk: &ChunkHandle) {
        assert!(self.find(chunk).is_none(), "a chunk is pinned once");
        self.refused.retain(|refused| refused != chunk);
        self.pinned.push(PinnedChunk {
            pin,
            chunk: chunk.clone(),
        });
    }

    /// Whether another thread pins it just now.
    pub(crate) fn is_pending(&self, chunk: &ChunkHandle) -> bool {
        self.pending.contains(chunk)
    }

    pub(crate) fn is_refused(&self, chunk: &ChunkHandle) -> bool {
        self.refused.contains(chunk)
    }

    pub(crate) fn refuse(&mut self, chunk: &ChunkHandle) {
        self.refused.push(chunk.clone());
    }
}

/// Another thread pins a chunk as long as this is held.
pub(crate) struct Pending {
    device: Rc<Inner>,
    chunk: ChunkHandle,
}

impl Pending {
    pub(crate) fn new(device: &Rc<Inner>, chunk: &ChunkHandle) -> Self {
        device.pins().borrow_mut().pending.push(chunk.clone());
        Self {
            device: Rc::clone(device),
            chunk: chunk.clone(),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut pins = self.device.pins().borrow_mut();
        pins.pending.retain(|pending| *pending != self.chunk);
    }
}

/// A chunk's address, by which devices reach it from here on.
pub(crate) fn exposed(chunk: &ChunkHandle) -> usize {
    chunk.start().as_ptr().expose_provenance()
}
