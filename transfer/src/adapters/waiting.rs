//! Tasks that wait until something has changed.

use std::cell::RefCell;
use std::task::Waker;

/// Tasks that wait until something has changed, and then look again.
#[derive(Debug, Default)]
pub(crate) struct Waiting(RefCell<Vec<Waker>>);

impl Waiting {
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut wakers = self.0.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(crate) fn wake(&self) {
        let wakers = self.0.take();
        wakers.into_iter().for_each(Waker::wake);
    }
}
