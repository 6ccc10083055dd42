//! Which peers have a connection to any core.
//!
//! A queue pair is accepted at one core, and the connections of who asked for it may lead to others. It is to
//! end with the last of them, so each connection holds its asker's presence, at whichever core it is: what a
//! core has that fails, it lets go of.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

/// Who asks: the session's epoch, and which of the peers that it has opened this engine is to it.
pub(in crate::engine) type Asker = (u64, u32);

#[derive(Debug, Default)]
struct State {
    there: BTreeMap<Asker, Weak<Presence>>,
    /// How many have gone.
    ends: u64,
    waiting: Vec<Waker>,
}

/// The askers that have a connection.
#[derive(Debug, Default)]
pub(in crate::engine) struct Presences(Mutex<State>);

/// An asker has a connection, as long as anybody holds this.
#[derive(Debug)]
pub(in crate::engine) struct Presence {
    asker: Asker,
    all: Arc<Presences>,
}

impl Presences {
    fn state(&self) -> MutexGuard<'_, State> {
        // A core that fails does not fail in here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection of an asker.
    pub(in crate::engine) fn enter(self: &Arc<Self>, asker: Asker) -> Arc<Presence> {
        let mut state = self.state();
        let known = state.there.get(&asker).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let all = Arc::clone(self);
            let presence = Arc::new(Presence { asker, all });
            state.there.insert(asker, Arc::downgrade(&presence));
            presence
        })
    }

    /// The presence of an asker, for what is to end with it; `None` if it has no connection.
    pub(in crate::engine) fn find(&self, asker: Asker) -> Option<Weak<Presence>> {
        let state = self.state();
        let found = state.there.get(&asker)?;
        (found.strong_count() > 0).then(|| Weak::clone(found))
    }

    /// Waits until more than `seen` have gone, and says how many that are.
    pub(in crate::engine) async fn more_gone_than(&self, seen: u64) -> u64 {
        poll_fn(|cx| {
            let mut state = self.state();
            if state.ends > seen {
                return Poll::Ready(state.ends);
            }
            let mut waiting = state.waiting.iter();
            if !waiting.any(|known| known.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut state = self.all.state();
        let found = state.there.get(&self.asker);
        // It may have come back meanwhile.
        if found.is_some_and(|found| found.strong_count() == 0) {
            state.there.remove(&self.asker);
        }
        state.ends += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn an_asker_is_there_as_long_as_any_of_its_connections() {
        let all: Arc<Presences> = Arc::default();
        let asker = (7, 1);
        assert!(all.find(asker).is_none());
        let (first, second, other) = (all.enter(asker), all.enter(asker), all.enter((7, 2)));
        let kept = all.find(asker).expect("it is there");
        let mut gone = pin!(all.more_gone_than(0));
        let look = &mut Context::from_waker(Waker::noop());
        drop(first);
        assert!(kept.strong_count() > 0 && gone.as_mut().poll(look).is_pending());
        drop(second);
        assert!(kept.strong_count() == 0 && all.find(asker).is_none());
        assert_eq!(gone.as_mut().poll(look), Poll::Ready(1));
        let again = all.enter(asker);
        assert_eq!(kept.strong_count(), 0, "what was to end has ended");
        assert!(all.find(asker).is_some());
        drop((again, other));
        assert!(all.state().there.is_empty());
    }

    #[test]
    fn one_that_comes_back_while_it_goes_is_there() {
        let all: Arc<Presences> = Arc::default();
        for _ in 0..100 {
            let first = all.enter((1, 1));
            let other = Arc::clone(&all);
            let comes = std::thread::spawn(move || other.enter((1, 1)));
            drop(first);
            let again = comes.join().expect("no panic");
            assert!(all.find((1, 1)).is_some());
            drop(again);
            assert!(all.find((1, 1)).is_none());
        }
    }
}
