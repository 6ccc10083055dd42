//! What is known of a peer's windows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use lunette_runtime::time;
use lunette_runtime_core::time::Time;
use lunette_transfer_proto::engine::one_sided::Window;
use lunette_transfer_proto::engine::segment::SegmentId;
use lunette_verbs::RemoteMemory;

/// Segments of one peer whose windows are remembered; the one that was asked for first makes room.
pub(super) const WINDOWS_KNOWN_MAX: usize = 4096;
/// When is asked again for windows that were not to be had.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Known {
    windows: Vec<Window>,
    asked: Time,
}

/// The windows of a peer's segments.
#[derive(Debug, Default)]
pub(super) struct Windows {
    known: RefCell<BTreeMap<SegmentId, Known>>,
}

impl Windows {
    /// Whether there is nothing to be asked for.
    pub(super) fn is_settled(&self, segment: SegmentId, now: Time) -> bool {
        let known = self.known.borrow();
        let found = known.get(&segment);
        found.is_some_and(|found| !found.windows.is_empty() || now < found.asked + ASK_AGAIN)
    }

    /// Takes an answer; none if there are no windows.
    pub(super) fn put(&self, segment: SegmentId, windows: Vec<Window>) {
        let asked = time::now();
        let mut known = self.known.borrow_mut();
        if known.len() >= WINDOWS_KNOWN_MAX && !known.contains_key(&segment) {
            let oldest = known.iter().min_by_key(|(_, found)| found.asked);
            let oldest = oldest.map(|(segment, _)| *segment);
            oldest.and_then(|oldest| known.remove(&oldest));
        }
        known.insert(segment, Known { windows, asked });
    }

    /// Forgets what did not hold. It is asked for again after a while: whoever is refused by an adapter is told
    /// by the peer's engine why.
    pub(super) fn forget(&self, segment: SegmentId) {
        self.put(segment, Vec::new());
    }

    /// Where an adapter of the peer's reaches a segment.
    pub(super) fn find(&self, segment: SegmentId, adapter: u16) -> Option<RemoteMemory> {
        let known = self.known.borrow();
        let mut windows = known.get(&segment)?.windows.iter();
        let window = windows.find(|window| window.adapter == adapter)?;
        Some(RemoteMemory {
            address: window.address,
            rkey: window.key,
        })
    }
}
