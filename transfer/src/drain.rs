//! Ending connections in good order.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use lunette_runtime::Signal;

/// Asks everyone who serves connections to finish. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    state: Rc<DrainState>,
}

#[derive(Debug, Default)]
struct DrainState {
    begun: Cell<bool>,
    listeners: RefCell<Vec<Weak<Signal>>>,
}

impl Drain {
    /// Whether it has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.state.begun.get()
    }

    /// Begins it: no connection is accepted any more, and each that is open ends when what it is
    /// receiving is complete and what it has answered is sent.
    pub fn begin(&self) {
        self.state.begun.set(true);
        for listener in self.state.listeners.take() {
            if let Some(signal) = listener.upgrade() {
                signal.raise();
            }
        }
    }

    /// Something that is ready from its beginning on.
    pub(crate) fn listen(&self) -> Begun {
        let signal = Rc::new(Signal::default());
        let mut listeners = self.state.listeners.borrow_mut();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Rc::downgrade(&signal));
        drop(listeners);
        Begun {
            drain: self.clone(),
            signal,
        }
    }
}

/// Ready from the beginning of a drain on, for ever. Clones share one waiting task.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    drain: Drain,
    signal: Rc<Signal>,
}

impl Begun {
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<()> {
        if self.drain.has_begun() {
            Poll::Ready(())
        } else {
            self.signal.poll(waker)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_listens_learns_of_it_early_or_late() {
        let drain = Drain::default();
        let (early, gone) = (drain.listen(), drain.listen());
        assert!(early.poll(Waker::noop()).is_pending());
        drop(gone);
        drain.begin();
        for _ in 0..2 {
            assert!(early.poll(Waker::noop()).is_ready(), "and does not forget");
        }
        assert!(drain.listen().poll(Waker::noop()).is_ready());
        assert!(drain.has_begun());
    }
}
