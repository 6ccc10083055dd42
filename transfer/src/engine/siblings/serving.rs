//! The core whose adapters peers connect to.
//!
//! Each core has opened the engine's adapters for what it asks itself. For peers those of one core serve: an
//! adapter moves bytes without any core, so it does not matter at which one its queue pairs are, and with all
//! of them at one a segment is registered once with each adapter, however many cores there are. When that core
//! ends, another one takes its place: the queue pairs are lost with it, and what its peers knew of windows they
//! ask for again.

use std::sync::{Mutex, PoisonError};

use super::Siblings;

/// Which core that is, once anybody has asked.
#[derive(Debug, Default)]
pub(super) struct Serving(Mutex<Option<usize>>);

impl Siblings {
    /// A core has started, and peers may connect to so many adapters there.
    pub(in crate::engine) fn has_adapters(&self, core: usize, adapters: usize) {
        let first = self.members[core].adapters.set(adapters);
        first.expect("a core starts once");
    }

    /// The core whose adapters peers connect to, the same until it ends, and how many they are. `None` while no
    /// core has any.
    pub(in crate::engine) fn serving(&self) -> Option<(usize, usize)> {
        let mut serving = self
            .serving
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let found = serving.and_then(|core| self.serves(core));
        let mut all = 0..self.members.len();
        let found = found.or_else(|| all.find_map(|core| self.serves(core)));
        *serving = found.map(|(core, _)| core);
        found
    }

    fn serves(&self, core: usize) -> Option<(usize, usize)> {
        let member = &self.members[core];
        let adapters = *member.adapters.get()?;
        let is_asked = member.jobs.as_ref().is_none_or(|jobs| !jobs.is_closed());
        (adapters > 0 && is_asked && !member.ended.is_raised()).then_some((core, adapters))
    }
}
