//! An answer is waited for.
//!
//! What comes within [`SPIN`] is had without giving the GIL up: releasing it costs a thread that has a busy
//! neighbour its turn. What takes longer, or would as of [late](Patience), is waited for without it, and signals are looked
//! for all along.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lunette_kvstore::Handing;
use lunette_runtime::Patience;
use pyo3::prelude::*;

/// How long the GIL is kept.
const SPIN: Duration = Duration::from_micros(20);
/// How often signals are looked for.
const SIGNALS: Duration = Duration::from_millis(25);

thread_local! {
    static PATIENCE: Patience = const { Patience::new() };
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
    let answer = wait_until(py, answer, None)?;
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
    loop {
        let answer = answer.as_mut();
        let waker = &waker;
        let polled = py.detach(move || {
            thread::park_timeout(SIGNALS);
            answer.poll(&mut Context::from_waker(waker))
        });
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

/// As [`wait`], for what is handed over: its bytes are copied meanwhile, without the GIL unless it `keeps_gil`.
///
/// # Errors
/// What a handler of a signal raised.
pub(crate) fn wait_for_handing(
    py: Python<'_>,
    handing: &mut Handing,
    keeps_gil: bool,
) -> PyResult<()> {
    if keeps_gil {
        let mut is_done = handing.step();
        let begun = Instant::now();
        let spin = PATIENCE.with(|patience| patience.spin(SPIN));
        while !is_done && begun.elapsed() < spin {
            std::hint::spin_loop();
            is_done = handing.step();
        }
        while !is_done {
            is_done = py.detach(|| handing.wait(SIGNALS));
            py.check_signals()?;
        }
        PATIENCE.with(|patience| patience.learn(spin, begun.elapsed()));
        return Ok(());
    }
    while !py.detach(|| handing.wait(SIGNALS)) {
        py.check_signals()?;
    }
    Ok(())
}
