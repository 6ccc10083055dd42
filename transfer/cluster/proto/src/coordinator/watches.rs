//! Who watches which keys, and what it has not been told yet.

use std::collections::BTreeMap;

use super::{Coordinator, WATCHES_MAX};
use crate::coordination::{Change, CoordinationFault, KeyRange, Revision, WatchFrom};

/// Most changes that are told at once. Changes of one revision are told together.
const CHANGES_AT_ONCE: usize = 256;

/// A watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId(u64);

#[derive(Debug)]
struct Watch {
    range: KeyRange,
    /// The next change that it has not looked at.
    next: Revision,
    /// Whether something in its range may have changed since it was asked last.
    is_marked: bool,
}

#[derive(Debug, Default)]
pub(super) struct Watches {
    all: BTreeMap<WatchId, Watch>,
    issued: u64,
}

impl Watches {
    pub(super) fn mark(&mut self, key: &[u8]) {
        for watch in self.all.values_mut() {
            watch.is_marked |= watch.range.contains(key);
        }
    }
}

impl Coordinator {
    /// Begins a watch. What it has to tell is asked for with [`poll_watch`](Self::poll_watch).
    ///
    /// # Errors
    /// [`CoordinationFault::Compacted`] if changes that it wants are not kept;
    /// [`CoordinationFault::TooLarge`] if there are [`WATCHES_MAX`] watches.
    pub fn watch(&mut self, from: WatchFrom) -> Result<WatchId, CoordinationFault> {
        // From now on, as etcd understands it.
        let next = if from.revision == Revision(0) {
            self.revision.next()
        } else {
            from.revision
        };
        if next <= self.forgotten {
            let oldest = self.forgotten.next();
            return Err(CoordinationFault::Compacted { oldest });
        }
        if self.watches.all.len() >= WATCHES_MAX {
            return Err(CoordinationFault::TooLarge {
                what: "the number of watches",
            });
        }
        let id = WatchId(self.watches.issued);
        self.watches.issued += 1;
        let watch = Watch {
            range: from.range,
            next,
            is_marked: true,
        };
        self.watches.all.insert(id, watch);
        Ok(id)
    }

    /// Ends a watch. One that has ended may be ended again.
    pub fn end_watch(&mut self, id: WatchId) {
        self.watches.all.remove(&id);
    }

    /// The watches that may have something to tell.
    #[must_use]
    pub fn marked_watches(&self) -> Vec<WatchId> {
        let marked = self.watches.all.iter().filter(|(_, watch)| watch.is_marked);
        marked.map(|(id, _)| *id).collect()
    }

    /// What a watch has to tell, at most some hundred changes; `None` if it is nothing now.
    ///
    /// # Errors
    /// [`CoordinationFault::Compacted`] if it fell behind; it has ended.
    pub fn poll_watch(&mut self, id: WatchId) -> Result<Option<Vec<Change>>, CoordinationFault> {
        let forgotten = self.forgotten;
        let Some(watch) = self
            .watches
            .all
            .get_mut(&id)
            .filter(|watch| watch.is_marked)
        else {
            return Ok(None);
        };
        if watch.next <= forgotten {
            self.watches.all.remove(&id);
            let oldest = forgotten.next();
            return Err(CoordinationFault::Compacted { oldest });
        }
        let start = self
            .history
            .partition_point(|change| change.revision() < watch.next);
        let mut told: Vec<Change> = Vec::new();
        watch.is_marked = false;
        watch.next = watch.next.max(self.revision.next());
        for change in self.history.range(start..) {
            let last = told.last().map(Change::revision);
            if told.len() >= CHANGES_AT_ONCE && last.is_some_and(|last| last < change.revision()) {
                watch.next = change.revision();
                watch.is_marked = true;
                break;
            }
            if watch.range.contains(change.key()) {
                told.push(change.clone());
            }
        }
        Ok(Some(told).filter(|told| !told.is_empty()))
    }
}
