//! Memory that is worth to be registered: what gets came to before, and is there still.

use std::cell::RefCell;
use std::collections::VecDeque;

use lunette_runtime::arena::Extent;

/// How much memory is remembered; what was seen first makes room.
const SIGHTINGS_MAX: usize = 64;

/// Memory to which gets came once. A buffer that is made for one get is never seen again, and registering it would
/// take longer than to be sent its bytes.
#[derive(Debug, Default)]
pub(super) struct Sightings(RefCell<VecDeque<Extent>>);

impl Sightings {
    /// Gives memory back that has been seen before; else remembers it.
    pub(super) fn again(&self, extent: Extent) -> Option<Extent> {
        let mut seen = self.0.borrow_mut();
        seen.retain(Extent::is_alive);
        let start = extent.start().as_ptr().addr();
        if seen
            .iter()
            .any(|seen| seen.covers(start, extent.len_bytes()))
        {
            return Some(extent);
        }
        if seen.len() >= SIGHTINGS_MAX {
            seen.pop_front();
        }
        seen.push_back(extent);
        None
    }
}

#[cfg(test)]
mod tests {
    use lunette_runtime::arena::{Exposed, HugePages};

    use super::*;

    #[test]
    fn memory_is_known_when_it_comes_again_and_forgotten_when_it_is_gone() {
        let sightings = Sightings::default();
        let map = || Exposed::map(4096, HugePages::Never, &mut Vec::new()).expect("memory");
        let memory = map();
        assert!(sightings.again(memory.extent()).is_none());
        assert!(sightings.again(memory.slice(7, 9).extent()).is_some());
        drop(memory);
        let others: Vec<Exposed> = (0..=SIGHTINGS_MAX).map(|_| map()).collect();
        for memory in &others {
            assert!(sightings.again(memory.extent()).is_none());
        }
        assert_eq!(sightings.0.borrow().len(), SIGHTINGS_MAX);
        assert!(
            sightings.again(others[0].extent()).is_none(),
            "it made room"
        );
        assert!(sightings.again(others[SIGHTINGS_MAX].extent()).is_some());
    }
}
