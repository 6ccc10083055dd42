//! What a core answers to a thread that is none.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_channel::oneshot;

use crate::patience::Patience;

/// How long a thread looks for its answer before it sleeps: as long as a core that slept needs to wake up and
/// answer. If both slept each time, neither would ever find the other awake, and each answer would take two
/// wake-ups.
pub const SPIN: Duration = Duration::from_micros(100);

/// For how much longer a thread looks at most for an answer that [takes](Pending::taking) its time. What takes longer costs
/// more than a wake-up, which is not much of it then.
pub const WORK_MAX: Duration = Duration::from_micros(500);

/// Looks in between which the clock is not read.
const LOOKS: u32 = 32;

/// An answer on its way: a future for any executor, or [`wait`](Self::wait). Dropping it tells whoever
/// answers that nobody waits.
pub struct Pending<T> {
    source: Source<T>,
    work: Duration,
    /// The answer, where it was found by who only [slept](Self::sleep) until it is there.
    found: Option<T>,
}

// The answer is moved, and never pinned.
impl<T> Unpin for Pending<T> {}

enum Source<T> {
    /// A core; and what to say if it ends without an answer.
    Core {
        answer: oneshot::Receiver<T>,
        ended: Option<Box<dyn FnOnce() -> T + Send>>,
    },
    /// What needs no core, or several.
    Here(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Pending<T> {
    /// The answer of a core, or `ended`, if it ends without one.
    pub fn of_core(
        answer: oneshot::Receiver<T>,
        ended: impl FnOnce() -> T + Send + 'static,
    ) -> Self {
        let ended: Option<Box<dyn FnOnce() -> T + Send>> = Some(Box::new(ended));
        Source::Core { answer, ended }.into()
    }

    /// The output of a future that any executor can run.
    pub fn here(answer: impl Future<Output = T> + Send + 'static) -> Self {
        Source::Here(Box::pin(answer)).into()
    }

    /// Has [`wait`](Self::wait) look for the answer for so much longer, and no longer than [`WORK_MAX`]: as long as the core
    /// has to do for it. Or who asks for much at a time would sleep before each answer, and the core before each question.
    #[must_use]
    pub fn taking(self, work: Duration) -> Self {
        let work = work.min(WORK_MAX);
        Self { work, ..self }
    }

    /// An answer that is there.
    #[must_use]
    pub fn ready(answer: T) -> Self
    where
        T: Send + 'static,
    {
        Self::here(std::future::ready(answer))
    }

    /// The answer, if it is there. It is taken, so nothing more is to be asked of this then.
    #[must_use]
    pub fn look(&mut self) -> Option<T> {
        match Pin::new(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Blocks this thread until the answer is there to be [looked](Self::look) at, and no longer than `timeout`. Not for a core's
    /// thread, which would wait for itself.
    pub fn sleep(&mut self, timeout: Duration) {
        let waiter = Arc::new(Waiter::here());
        let waker = Waker::from(Arc::clone(&waiter));
        let begun = Instant::now();
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut *self).poll(&mut Context::from_waker(&waker))
            {
                self.found = Some(answer);
                return;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            waiter.sleep(left);
        }
    }

    /// Blocks this thread until the answer is there: looks for it for [`SPIN`], and as long as it [takes](Self::taking), where
    /// that has paid [lately](Patience), then sleeps. Not for a core's thread, which would wait for itself.
    #[must_use]
    pub fn wait(self) -> T {
        thread_local! {
            static PATIENCE: Patience = const { Patience::new() };
        }
        PATIENCE.with(|patience| {
            let (begun, spin) = (Instant::now(), patience.spin(SPIN + self.work));
            let answer = wait(self, spin);
            patience.learn(spin, begun.elapsed());
            answer
        })
    }
}

impl<T> From<Source<T>> for Pending<T> {
    fn from(source: Source<T>) -> Self {
        Self {
            source,
            work: Duration::ZERO,
            found: None,
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(found) = self.found.take() {
            return Poll::Ready(found);
        }
        match &mut self.source {
            Source::Core { answer, ended } => Pin::new(answer).poll(cx).map(|answer| {
                answer.unwrap_or_else(|_ended| {
                    let ended = ended.take().expect("polled until it is ready");
                    ended()
                })
            }),
            Source::Here(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

/// Runs a future on this thread: after each time that it is not ready, looks for `spin` whether it has been
/// woken, and sleeps then. Not for a core's thread.
pub fn wait<F: Future>(future: F, spin: Duration) -> F::Output {
    let mut future = pin!(future);
    let waiter = Arc::new(Waiter::here());
    let waker = Waker::from(Arc::clone(&waiter));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        waiter.wait(spin);
    }
}

const LOOKS_ROUND: u8 = 0;
const SLEEPS: u8 = 1;
const WOKEN: u8 = 2;

/// A thread that waits. It goes from `LOOKS_ROUND` to `SLEEPS` itself, and back once it is `WOKEN`, by
/// whomever and out of either.
struct Waiter {
    state: AtomicU8,
    thread: Thread,
}

impl Waiter {
    /// This thread.
    fn here() -> Self {
        Self {
            state: AtomicU8::new(LOOKS_ROUND),
            thread: thread::current(),
        }
    }

    /// Until it is woken, or `timeout` has passed.
    fn sleep(&self, timeout: Duration) {
        let slept =
            self.state
                .compare_exchange(LOOKS_ROUND, SLEEPS, Ordering::Acquire, Ordering::Acquire);
        if slept.is_ok() {
            thread::park_timeout(timeout);
        }
        self.state.store(LOOKS_ROUND, Ordering::Release);
    }

    fn wait(&self, spin: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < spin {
            for _ in 0..LOOKS {
                if self.take_woken() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        let slept =
            self.state
                .compare_exchange(LOOKS_ROUND, SLEEPS, Ordering::Acquire, Ordering::Acquire);
        if slept.is_ok() {
            while self.state.load(Ordering::Acquire) != WOKEN {
                thread::park();
            }
        }
        // Acquire: what was done before it was woken is seen.
        let state = self.state.swap(LOOKS_ROUND, Ordering::Acquire);
        debug_assert_eq!(state, WOKEN, "only the thread itself leaves it");
    }

    fn take_woken(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WOKEN
            && self.state.swap(LOOKS_ROUND, Ordering::Acquire) == WOKEN
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::Release) == SLEEPS {
            self.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_answer_is_seen_while_looking_and_while_asleep() {
        for spin in [Duration::from_secs(3600), Duration::ZERO] {
            let (asked, asking) = mpsc::channel::<oneshot::Sender<u32>>();
            let answering = thread::spawn(move || {
                for (n, asked) in (0..).zip(asking) {
                    asked.send(n).expect("it is waited for");
                }
            });
            for n in 0..2000 {
                let (sender, answer) = oneshot::channel();
                asked.send(sender).expect("it answers");
                assert_eq!(wait(answer, spin), Ok(n));
            }
            drop(asked);
            answering.join().expect("no panic");
        }
    }

    #[test]
    fn what_takes_its_time_is_looked_for_longer_within_a_limit() {
        let of = |work| Pending::ready(()).taking(work).work;
        assert_eq!(Pending::ready(()).work, Duration::ZERO);
        assert_eq!(of(WORK_MAX / 2), WORK_MAX / 2);
        assert_eq!(of(Duration::MAX), WORK_MAX);
        // Whatever that is, an answer that comes later is still waited for.
        let (sender, answer) = oneshot::channel();
        let pending = Pending::of_core(answer, || 0).taking(WORK_MAX);
        let answering = thread::spawn(move || {
            thread::sleep(4 * (SPIN + WORK_MAX));
            sender.send(7)
        });
        assert_eq!(pending.wait(), 7);
        assert_eq!(answering.join().expect("no panic"), Ok(()));
    }

    #[test]
    fn an_answer_is_looked_at_when_it_is_there_and_slept_for_no_longer_than_is_said() {
        let (sender, answer) = oneshot::channel();
        let mut pending = Pending::of_core(answer, || 0);
        let pause = Duration::from_millis(20);
        let begun = Instant::now();
        pending.sleep(pause);
        assert!(begun.elapsed() >= pause);
        assert_eq!(pending.look(), None);
        let answering = thread::spawn(move || {
            thread::sleep(pause);
            sender.send(7)
        });
        pending.sleep(Duration::MAX);
        assert_eq!(answering.join().expect("no panic"), Ok(()));
        // Also by who sleeps once more.
        pending.sleep(Duration::MAX);
        assert_eq!(pending.look(), Some(7));
        let mut there = Pending::ready(8);
        there.sleep(Duration::MAX);
        assert_eq!(there.wait(), 8);
    }

    #[test]
    fn a_future_that_is_woken_again_and_again_is_polled_each_time() {
        let mut left = 10_u32;
        let counted = poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready("done");
            }
            left -= 1;
            // Woken before it is waited for, and twice.
            cx.waker().wake_by_ref();
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!(wait(counted, Duration::ZERO), "done");
    }

    #[test]
    fn a_core_that_ends_without_an_answer_is_told_of() {
        let (sender, answer) = oneshot::channel();
        let pending = Pending::of_core(answer, || Err("it has ended"));
        drop::<oneshot::Sender<Result<(), _>>>(sender);
        assert_eq!(pending.wait(), Err("it has ended"));
        assert_eq!(Pending::ready(3).wait(), 3);
        assert_eq!(Pending::here(async { 4 }).wait(), 4);
    }
}
