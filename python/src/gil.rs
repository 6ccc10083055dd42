//! When the GIL is given up.
//!
//! It is for whatever takes long: to copy much, and to wait for an answer that has not come soon. That costs next to nothing, but
//! beside a thread that is busy in Python: that one gives it back after the interpreter's switch interval, 5 ms as a rule, which is
//! ten times of what a call of 1 MiB takes. So where it has taken long of late to get the GIL back, it is kept for what takes no
//! longer than [`KEPT_MAX`], a fifth of that interval. What another thread keeps so is no sign that any is busy: threads that wait
//! for the store, and do nothing else, would keep the GIL from each other for ever.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Most bytes that are copied without giving the GIL up.
pub(crate) const COPIED_WITH_GIL_MAX: usize = 64 << 10;
/// For how long it is kept at most, beside a busy thread.
pub(crate) const KEPT_MAX: Duration = Duration::from_millis(1);
/// Most bytes that are copied with it, beside a busy thread: in less than that.
const COPIED_BESIDE_BUSY_MAX: usize = 2 << 20;
/// It has taken long to get the GIL back, if so long: half a switch interval, and more than somebody keeps it here.
const LONG: Duration = Duration::from_micros(2_500);
/// How long a thread is taken to be busy. Then it is found out again, at the price of one call.
const BUSY_FOR: Duration = Duration::from_millis(250);

/// How often it was kept, by all threads. What follows from it is a guess: it orders nothing.
static KEPT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static BUSY_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Whether another thread is busy in Python, as far as is known.
pub(crate) fn is_contended() -> bool {
    let until = BUSY_UNTIL.get();
    until.is_some_and(|until| Instant::now() < until)
}

/// Does that without the GIL.
pub(crate) fn without<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let (done, at, kept) = py.detach(|| {
        let done = work();
        (done, Instant::now(), KEPT.load(Ordering::Relaxed))
    });
    let now = Instant::now();
    if now.duration_since(at) >= LONG && kept == KEPT.load(Ordering::Relaxed) {
        BUSY_UNTIL.set(Some(now + BUSY_FOR));
    }
    done
}

/// Does that with the GIL, which takes longer than is usual, beside a busy thread: [`KEPT_MAX`] at most.
pub(crate) fn keeping<T>(work: impl FnOnce() -> T) -> T {
    KEPT.fetch_add(1, Ordering::Relaxed);
    let done = work();
    KEPT.fetch_add(1, Ordering::Relaxed);
    done
}

/// Does what copies so many bytes, without the GIL if that is long.
pub(crate) fn copying<T: Send>(
    py: Python<'_>,
    len_bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> T {
    if len_bytes <= COPIED_WITH_GIL_MAX {
        work()
    } else if len_bytes <= COPIED_BESIDE_BUSY_MAX && is_contended() {
        keeping(work)
    } else {
        without(py, work)
    }
}
