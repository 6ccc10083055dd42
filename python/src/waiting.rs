//! An answer is waited for.
//!
//! What comes within [`SPIN`] is had without giving the GIL up: releasing it costs a thread that has a busy
//! neighbour its turn. What takes longer, or would as of [late](Patience), is waited for without it: looked for, for as long
//! as a core needs for many objects, where that has paid, and then slept for; beside a [busy thread](gil) it is slept for with
//! it first, for as long as it costs less to keep it than to get it back. Signals are looked for all along.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lunette_kvstore::{Fetching, FetchingBytes, Handing, Looking};
use lunette_runtime::{Patience, WORK_MAX};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::gil::{self, KEPT_MAX};

/// How long the GIL is kept.
const SPIN: Duration = Duration::from_micros(20);
/// How long an answer about many objects is looked for without it, for each of them, within [`WORK_MAX`]: what a core needs.
const LOOKED_EACH: Duration = Duration::from_micros(4);
/// Looks in between which the clock is not read.
const LOOKS: u32 = 32;
/// How often signals are looked for.
const SIGNALS: Duration = Duration::from_millis(25);

thread_local! {
    static PATIENCE: Patience = const { Patience::new() };
    /// Of looks without the GIL.
    static WITHOUT_GIL: Patience = const { Patience::new() };
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The answer. What has been begun is not stopped by an exception of a signal.
///
/// # Errors
/// What a handler of a signal raised.
pub(crate) fn wait<T: Send>(py: Python<'_>, answer: impl Future<Output = T> + Send) -> PyResult<T> {
    wait_for_many(py, answer, 1)
}

/// As [`wait`], for an answer about so many objects. A core that works on them for a while is looked for as long: else both
/// would sleep by turns, and each batch take two wake-ups.
///
/// # Errors
/// What a handler of a signal raised.
pub(crate) fn wait_for_many<T: Send>(
    py: Python<'_>,
    answer: impl Future<Output = T> + Send,
    objects: usize,
) -> PyResult<T> {
    let others = u32::try_from(objects.saturating_sub(1)).unwrap_or(u32::MAX);
    let looked = LOOKED_EACH.saturating_mul(others).min(WORK_MAX);
    let answer = wait_looking(py, answer, looked, None)?;
    Ok(answer.expect("there is no end to the waiting"))
}

/// As [`wait`], for no longer than `until`, within a look for signals: `None` then.
///
/// # Errors
/// What a handler of a signal raised.
pub(crate) fn wait_until<T: Send>(
    py: Python<'_>,
    answer: impl Future<Output = T> + Send,
    until: Option<Instant>,
) -> PyResult<Option<T>> {
    wait_looking(py, answer, Duration::ZERO, until)
}

fn wait_looking<T: Send>(
    py: Python<'_>,
    answer: impl Future<Output = T> + Send,
    looked: Duration,
    until: Option<Instant>,
) -> PyResult<Option<T>> {
    let mut answer = pin!(answer);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let begun = Instant::now();
    let spin = PATIENCE.with(|patience| patience.spin(SPIN));
    let learn = || PATIENCE.with(|patience| patience.learn(spin, begun.elapsed()));
    loop {
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut context) {
            learn();
            return Ok(Some(answer));
        }
        if begun.elapsed() >= spin {
            break;
        }
        std::hint::spin_loop();
    }
    if gil::is_contended() {
        let kept = || sleep_until(answer.as_mut(), &mut context, begun + KEPT_MAX);
        if let Poll::Ready(answer) = gil::keeping(kept) {
            learn();
            return Ok(Some(answer));
        }
    }
    let mut looked = if looked.is_zero() {
        looked
    } else {
        WITHOUT_GIL.with(|patience| patience.spin(looked))
    };
    loop {
        let answer = answer.as_mut();
        let waker = &waker;
        let looks = std::mem::take(&mut looked);
        let polled = gil::without(py, move || look_and_sleep(answer, waker, looks));
        match polled {
            Poll::Ready(answer) => {
                learn();
                return Ok(Some(answer));
            }
            Poll::Pending => py.check_signals()?,
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(None);
        }
    }
}

/// Sleeps until the answer comes, or until then.
fn sleep_until<T>(
    mut answer: Pin<&mut impl Future<Output = T>>,
    context: &mut Context<'_>,
    until: Instant,
) -> Poll<T> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Poll::Pending;
        }
        thread::park_timeout(left);
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
    }
}

/// Looks for the answer, and sleeps for a while if it does not come.
fn look_and_sleep<T>(
    mut answer: Pin<&mut impl Future<Output = T>>,
    waker: &Waker,
    looked: Duration,
) -> Poll<T> {
    let mut context = Context::from_waker(waker);
    let begun = Instant::now();
    while begun.elapsed() < looked {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
        }
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut context) {
            WITHOUT_GIL.with(|patience| patience.learn(looked, begun.elapsed()));
            return Poll::Ready(answer);
        }
    }
    thread::park_timeout(SIGNALS);
    let polled = answer.poll(&mut context);
    WITHOUT_GIL.with(|patience| patience.learn(looked, begun.elapsed()));
    polled
}

/// What a thread does itself, step by step.
pub(crate) trait Stepped: Send {
    /// Whether there is nothing to do or to wait for.
    fn is_over(&self) -> bool;
    /// Goes on as far as it can; whether it is done.
    fn step(&mut self) -> bool;
    /// Blocks until it is done, and no longer than `timeout`; whether it is.
    fn wait(&mut self, timeout: Duration) -> bool;
}

macro_rules! stepped {
    ($($steps:ty),*) => { $(
        impl Stepped for $steps {
            fn is_over(&self) -> bool {
                Self::is_over(self)
            }

            fn step(&mut self) -> bool {
                Self::step(self)
            }

            fn wait(&mut self, timeout: Duration) -> bool {
                Self::wait(self, timeout)
            }
        }
    )* };
}

stepped!(Handing, Looking<PyBackedBytes>, Fetching, FetchingBytes);

/// As [`wait`], for what this thread does itself meanwhile, without the GIL unless it `keeps_gil`, or for a while beside a busy
/// thread.
///
/// # Errors
/// What a handler of a signal raised.
pub(crate) fn wait_for_steps(
    py: Python<'_>,
    steps: &mut impl Stepped,
    keeps_gil: bool,
) -> PyResult<()> {
    if steps.is_over() {
        return Ok(());
    }
    if keeps_gil {
        let mut is_done = false;
        let begun = Instant::now();
        let spin = PATIENCE.with(|patience| patience.spin(SPIN));
        while !is_done && begun.elapsed() < spin {
            std::hint::spin_loop();
            is_done = steps.step();
        }
        while !is_done {
            is_done = wait_a_while(py, steps);
            py.check_signals()?;
        }
        PATIENCE.with(|patience| patience.learn(spin, begun.elapsed()));
        return Ok(());
    }
    while !wait_a_while(py, steps) {
        py.check_signals()?;
    }
    Ok(())
}

fn wait_a_while(py: Python<'_>, steps: &mut impl Stepped) -> bool {
    let is_done = gil::is_contended() && gil::keeping(|| steps.wait(KEPT_MAX));
    is_done || gil::without(py, || steps.wait(SIGNALS))
}
