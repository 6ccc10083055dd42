//! What happens once, for any number of tasks that wait for it, and what one of them does at a time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Closed at first; open from then on. Any number of tasks of one core wait.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_open: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    pub(crate) const fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Opens it. Again, it does nothing.
    pub(crate) fn open(&self) {
        self.is_open.set(true);
        let waiting = self.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until it is open.
    pub(crate) async fn opened(&self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Ready once it is open; else the task is woken then.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_open.get() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        // A task that looks again and again is one.
        if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// What comes of a future, unless the gate is open before: then it is dropped.
pub(crate) async fn unless<T>(gate: &Gate, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let came = poll_fn(|cx| {
        if gate.poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    });
    came.await
}

/// What tasks of one core do one at a time.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    is_taken: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// It is this one's turn until it is dropped.
#[must_use]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits until it is nobody else's turn.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        poll_fn(|cx| {
            if !self.is_taken.replace(true) {
                return Poll::Ready(Turn(self));
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_taken.set(false);
        // Whoever is woken may have been dropped meanwhile: so all look.
        let waiting = self.0.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_who_wait_are_woken_once() {
        let gate = Gate::default();
        let tasks: [Arc<Woken>; 3] = Default::default();
        for task in tasks.iter().chain(&tasks) {
            let waker = Waker::from(Arc::clone(task));
            assert!(gate.poll(&Context::from_waker(&waker)).is_pending());
        }
        gate.open();
        gate.open();
        let woken = tasks.map(|task| task.0.load(Ordering::Relaxed));
        assert_eq!(woken, [1, 1, 1]);
        let late = Context::from_waker(Waker::noop());
        assert!(gate.poll(&late).is_ready());
    }

    #[test]
    fn turns_are_taken_one_at_a_time() {
        let turns = Turns::default();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let cx = &mut Context::from_waker(&waker);
        let Poll::Ready(first) = pin!(turns.turn()).poll(cx) else {
            unreachable!("nobody else has it");
        };
        let mut second = Box::pin(turns.turn());
        let mut third = Box::pin(turns.turn());
        assert!(second.as_mut().poll(cx).is_pending());
        assert!(third.as_mut().poll(cx).is_pending());
        drop(first);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        // Whoever waited longest is gone by now, and keeps nobody waiting.
        drop(second);
        assert!(third.as_mut().poll(cx).is_ready());
    }
}
