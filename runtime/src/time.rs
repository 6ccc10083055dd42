//! Sleeping, deadlines and yielding.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lunette_runtime_core::time::Time;
use lunette_runtime_core::wheel::TimerKey;
use thiserror::Error;

use crate::executor::Core;

/// The current core's clock, read now.
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn now() -> Time {
    Core::current().now()
}

/// Nanoseconds since 1970 as the current core's system has it: for names that are not to come again.
/// It may jump; what is measured is measured by [`now`].
///
/// # Panics
/// Outside a runtime.
#[must_use]
pub fn unix_ns() -> u64 {
    Core::current().unix_ns()
}

/// Waits for `delay`. Never ends early; ends at most a wheel tick (65.5 us) and a turn late.
pub fn sleep(delay: Duration) -> Sleep {
    let core = Core::current();
    let at = core.now() + delay;
    Sleep {
        core,
        at,
        armed: None,
    }
}

/// Waits until `at`.
pub fn sleep_until(at: Time) -> Sleep {
    Sleep {
        core: Core::current(),
        at,
        armed: None,
    }
}

/// The deadline passed before the future ended; the future has been dropped.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("deadline exceeded")]
pub struct DeadlineExceeded;

/// Runs `future` for at most `delay`.
///
/// # Errors
/// [`DeadlineExceeded`]: the future was dropped, which cancels its operations in flight; their
/// buffers stay with the devices until the completions.
pub async fn timeout<F: Future>(delay: Duration, future: F) -> Result<F::Output, DeadlineExceeded> {
    let mut future = pin!(future);
    let mut sleep = sleep(delay);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep)
            .poll(cx)
            .map(|()| Err(DeadlineExceeded))
    })
    .await
}

/// Lets the other ready tasks of this core run first.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A wait for a point in time. Dropping it disarms its timer.
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    core: Rc<Core>,
    at: Time,
    armed: Option<(TimerKey, Waker)>,
}

impl Sleep {
    /// When it ends.
    #[must_use]
    pub const fn deadline(&self) -> Time {
        self.at
    }

    fn disarm(&mut self) {
        if let Some((key, _)) = self.armed.take() {
            self.core.cancel_timer(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.now() >= self.at {
            self.disarm();
            return Poll::Ready(());
        }
        if self
            .armed
            .as_ref()
            .is_some_and(|(_, waker)| waker.will_wake(cx.waker()))
        {
            return Poll::Pending;
        }
        self.disarm();
        match self.core.insert_timer(self.at, cx.waker().clone()) {
            Ok(key) => self.armed = Some((key, cx.waker().clone())),
            // No timer is left: poll again next turn, which is late by nothing and costs a core.
            Err(full) => full.0.wake(),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
