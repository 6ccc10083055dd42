//! How something has ended, for one who waits.

use std::cell::Cell;
use std::rc::Rc;

use lunette_runtime::Signal;

/// Told once, awaited by at most one.
pub(super) struct Ended<T> {
    outcome: Cell<Option<T>>,
    is_there: Signal,
}

impl<T> Ended<T> {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            outcome: Cell::new(None),
            is_there: Signal::default(),
        })
    }

    pub(super) fn end(&self, outcome: T) {
        self.outcome.set(Some(outcome));
        self.is_there.raise();
    }

    pub(super) async fn wait(&self) -> T {
        loop {
            if let Some(outcome) = self.outcome.take() {
                return outcome;
            }
            self.is_there.raised().await;
        }
    }
}
