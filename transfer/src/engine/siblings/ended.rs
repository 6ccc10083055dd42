//! Something that happens once, and is waited for on any core and thread.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
struct State {
    is_raised: bool,
    waiting: Vec<Waker>,
}

/// Whether a core has ended.
#[derive(Debug, Default)]
pub(in crate::engine) struct Ended(Mutex<State>);

impl Ended {
    /// It has.
    pub(super) fn raise(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_raised = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(in crate::engine) fn is_raised(&self) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_raised
    }

    /// Waits until it has.
    pub(in crate::engine) async fn raised(&self) {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_raised {
                return Poll::Ready(());
            }
            if !state
                .waiting
                .iter()
                .any(|known| known.will_wake(cx.waker()))
            {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn who_waits_on_another_thread_is_woken_and_who_comes_late_does_not_wait() {
        let ended = Arc::new(Ended::default());
        assert!(!ended.is_raised());
        let waiting = Arc::clone(&ended);
        let thread = thread::spawn(move || pollster::block_on(waiting.raised()));
        ended.raise();
        thread.join().expect("no panic");
        pollster::block_on(ended.raised());
        assert!(ended.is_raised());
    }
}
