//! Flags between tasks of one core.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A flag that one task raises and another waits for. One task waits at a time: a later one takes the
/// place of an earlier.
#[derive(Debug, Default)]
pub struct Signal {
    is_raised: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
}

impl Signal {
    /// Raises it, and wakes who waits. Raised again before it was seen, it is seen once.
    pub fn raise(&self) {
        self.is_raised.set(true);
        let waker = self.waiting.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready once for each time that it was raised; else the waker is kept for the next time.
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        if self.is_raised.replace(false) {
            return Poll::Ready(());
        }
        *self.waiting.borrow_mut() = Some(waker.clone());
        Poll::Pending
    }

    /// Waits until it is raised.
    pub async fn raised(&self) {
        poll_fn(|cx| self.poll(cx.waker())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_once_for_each_time() {
        let signal = Signal::default();
        assert!(signal.poll(Waker::noop()).is_pending());
        signal.raise();
        assert!(signal.poll(Waker::noop()).is_ready());
        assert!(signal.poll(Waker::noop()).is_pending());
    }
}
