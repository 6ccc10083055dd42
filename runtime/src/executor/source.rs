//! Completion sources: what a core polls beside its driver.
//!
//! An RDMA completion queue, a GPU's events, a ring that another thread fills: each is polled once a
//! turn, and all of them agree before the core sleeps:
//!
//! ```text
//!   poll, poll, ... nothing for a while
//!        │
//!        ▼            refused: unpark those armed before, poll again
//!   try_park each ◀──────────────────────────────────────────────┐
//!        │ all armed                                             │
//!        ▼                                                       │
//!   sleep in the driver ── a completion, a timer, a wake-up ──▶ unpark each, poll
//! ```

use std::rc::Rc;
use std::sync::Arc;

use lunette_runtime_core::time::Time;

use super::Core;
use crate::mesh::Inbox;

/// Sources of one core.
pub const SOURCES_MAX: usize = 64;

/// Something that completes by itself and is polled by a core.
pub trait Source {
    /// Delivers at most `budget` completions to those who wait for them, and says how many.
    fn poll(&mut self, budget: usize) -> usize;

    /// The core is about to sleep. Arranges that the next completion wakes it (by its
    /// [`CoreWaker`]), then looks once more: false if a completion is there already. After false,
    /// nothing is armed.
    fn try_park(&mut self) -> bool;

    /// The core is awake again, or did not sleep after all; undoes [`Source::try_park`].
    fn unpark(&mut self);

    /// Until when the core may sleep that all sources have let: something is there then to be polled, and nothing will
    /// say so. `None`, where everything is announced.
    fn sleeps_until(&self) -> Option<Time> {
        None
    }
}

/// Wakes one core, from any thread. Costs no system call while the core is awake.
#[derive(Clone, Debug)]
pub struct CoreWaker(Arc<Inbox>);

impl CoreWaker {
    /// Makes the core poll its sources soon. What is to be seen then must have been published
    /// before this call.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// Takes the source away from its core when dropped.
#[derive(Debug)]
pub struct SourceGuard {
    core: Rc<Core>,
    id: u64,
}

impl Drop for SourceGuard {
    fn drop(&mut self) {
        self.core.remove_source(self.id);
    }
}

/// The sources of one core.
#[derive(Default)]
pub(super) struct Sources {
    next_id: u64,
    listed: Vec<Listed>,
}

struct Listed {
    id: u64,
    source: Box<dyn Source>,
}

impl Sources {
    pub(super) const fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    pub(super) fn poll(&mut self, budget: usize) -> usize {
        self.listed
            .iter_mut()
            .map(|listed| listed.source.poll(budget))
            .sum()
    }

    /// Whether all sources are armed. If not, none is.
    pub(super) fn try_park(&mut self) -> bool {
        let refused = self
            .listed
            .iter_mut()
            .position(|listed| !listed.source.try_park());
        if let Some(refused) = refused {
            self.listed[..refused]
                .iter_mut()
                .for_each(|listed| listed.source.unpark());
        }
        refused.is_none()
    }

    /// Until when all of them let the core sleep.
    pub(super) fn sleeps_until(&self) -> Option<Time> {
        let until = self.listed.iter();
        until
            .filter_map(|listed| listed.source.sleeps_until())
            .min()
    }

    pub(super) fn unpark(&mut self) {
        self.listed
            .iter_mut()
            .for_each(|listed| listed.source.unpark());
    }

    /// The id under which it is listed, or the source back.
    fn add(&mut self, source: Box<dyn Source>) -> Result<u64, Box<dyn Source>> {
        if self.listed.len() >= SOURCES_MAX {
            return Err(source);
        }
        self.next_id += 1;
        self.listed.push(Listed {
            id: self.next_id,
            source,
        });
        Ok(self.next_id)
    }

    fn remove(&mut self, id: u64) -> Option<Box<dyn Source>> {
        let index = self.listed.iter().position(|listed| listed.id == id)?;
        Some(self.listed.remove(index).source)
    }
}

impl Core {
    pub(crate) fn waker(&self) -> CoreWaker {
        CoreWaker(Arc::clone(&self.inbox))
    }

    pub(crate) fn add_source(
        self: &Rc<Self>,
        source: Box<dyn Source>,
    ) -> Result<SourceGuard, Box<dyn Source>> {
        let id = self.sources.borrow_mut().add(source)?;
        Ok(SourceGuard {
            core: Rc::clone(self),
            id,
        })
    }

    fn remove_source(&self, id: u64) {
        let source = self.sources.borrow_mut().remove(id);
        drop(source);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Writes down what is asked of it.
    struct Scripted {
        name: &'static str,
        parks: bool,
        until: Option<Time>,
        trace: Rc<RefCell<Vec<String>>>,
    }

    impl Source for Scripted {
        fn poll(&mut self, budget: usize) -> usize {
            budget
        }

        fn try_park(&mut self) -> bool {
            self.trace.borrow_mut().push(format!("{} park", self.name));
            self.parks
        }

        fn unpark(&mut self) {
            self.trace
                .borrow_mut()
                .push(format!("{} unpark", self.name));
        }

        fn sleeps_until(&self) -> Option<Time> {
            self.until
        }
    }

    fn sources(parks: [bool; 3]) -> (Sources, Rc<RefCell<Vec<String>>>) {
        let trace: Rc<RefCell<Vec<String>>> = Rc::default();
        let mut sources = Sources::default();
        for (name, parks) in ["a", "b", "c"].into_iter().zip(parks) {
            let source = Scripted {
                name,
                parks,
                until: None,
                trace: Rc::clone(&trace),
            };
            assert!(sources.add(Box::new(source)).is_ok());
        }
        (sources, trace)
    }

    #[test]
    fn one_refusal_disarms_those_before_it_and_asks_none_after_it() {
        let (mut all, trace) = sources([true, false, true]);
        assert!(!all.try_park());
        assert_eq!(*trace.borrow(), ["a park", "b park", "a unpark"]);
        let (mut all, trace) = sources([true, true, true]);
        assert!(all.try_park());
        assert_eq!(*trace.borrow(), ["a park", "b park", "c park"]);
        assert_eq!(all.poll(5), 15);
    }

    #[test]
    fn a_core_sleeps_until_the_first_of_what_nobody_announces() {
        let (mut all, trace) = sources([true, true, true]);
        assert_eq!(all.sleeps_until(), None);
        for (name, at_ns) in [("d", 900), ("e", 300), ("f", 500)] {
            let source = Scripted {
                name,
                parks: true,
                until: Some(Time::from_ns(at_ns)),
                trace: Rc::clone(&trace),
            };
            assert!(all.add(Box::new(source)).is_ok());
        }
        assert_eq!(all.sleeps_until(), Some(Time::from_ns(300)));
    }

    #[test]
    fn sources_are_bounded_and_a_removed_one_makes_room() {
        let trace: Rc<RefCell<Vec<String>>> = Rc::default();
        let source = || Scripted {
            name: "s",
            parks: true,
            until: None,
            trace: Rc::clone(&trace),
        };
        let mut sources = Sources::default();
        let mut ids = Vec::new();
        for _ in 0..SOURCES_MAX {
            ids.extend(sources.add(Box::new(source())).ok());
        }
        assert!(sources.add(Box::new(source())).is_err());
        assert!(sources.remove(ids[7]).is_some());
        assert!(sources.remove(ids[7]).is_none());
        assert!(sources.add(Box::new(source())).is_ok());
    }
}
