//! Memory of Python's that is lent to cores, by its address.
//!
//! A call ends when everything that it lent has been let go of, whatever became of what it asked, and memory is
//! unregistered then: no later access, by a core or a device, finds memory that the program has freed. Addresses are the program's to
//! vouch for, as those that it gives `ctypes`; that something is mapped there is looked at before they are lent.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use lunette_runtime::arena::{ForeignMemory, SharedMemory};
use pyo3::prelude::*;
use rustix::mm::{MsyncFlags, msync};
use rustix::param::page_size;

use crate::waiting::wait;

/// Most ranges that are registered.
pub(crate) const REGISTERED_MAX: usize = 1 << 20;

/// What one call has lent, or one registration.
#[derive(Debug, Default)]
pub(crate) struct Loans(Arc<Left>);

/// How many loans there still are, and who waits for their end.
#[derive(Debug, Default)]
struct Left {
    loans: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

/// One loan: dropped with the last access to its memory, on whatever thread.
struct Loan(Arc<Left>);

impl Drop for Loan {
    fn drop(&mut self) {
        if self.0.loans.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.take_wakers().into_iter().for_each(Waker::wake);
        }
    }
}

impl Left {
    fn take_wakers(&self) -> Vec<Waker> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut waiting)
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
        }
        // After the waker is there: whoever is last sees it, or is seen.
        if self.loans.load(Ordering::Acquire) == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Loans {
    /// `len` bytes at `address`; `None` if nothing is mapped at some of them, or there are none. What is
    /// registered has been looked at before.
    pub(crate) fn lend(
        &self,
        registered: Option<&Registered>,
        (address, len): (usize, usize),
    ) -> Option<SharedMemory> {
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address))?;
        let is_known = registered.is_some_and(|registered| registered.has(address, len));
        if len == 0 || !is_known && !is_mapped(address, len) {
            return None;
        }
        self.0.loans.fetch_add(1, Ordering::Relaxed);
        let loan = Box::new(Loan(Arc::clone(&self.0)));
        // SAFETY: the program vouches for memory of so many bytes at the address that stays, and that it accesses
        // in no way that a concurrent write would break, until it is told that the loan is over: by the return of
        // the call that lent it, or of the one that unregisters it. Both return after `ended`, which waits until
        // the owner here has been dropped. That something is mapped has been seen. Values of `bytes` are only
        // read. Ends with the drop of the owner.
        let memory = unsafe { ForeignMemory::new(first, len, loan) };
        Some(SharedMemory::foreign(memory))
    }

    /// Whether everything has been let go of.
    pub(crate) fn are_over(&self) -> bool {
        self.0.loans.load(Ordering::Acquire) == 0
    }

    /// Ready when everything has been let go of.
    pub(crate) fn over(&self) -> impl Future<Output = ()> + '_ {
        std::future::poll_fn(|cx| self.0.poll(cx))
    }

    /// Waits until everything has been let go of.
    ///
    /// # Errors
    /// What a handler of a signal raised meanwhile: after that end.
    pub(crate) fn ended(&self, py: Python<'_>) -> PyResult<()> {
        let mut raised = Ok(());
        while self.0.loans.load(Ordering::Acquire) > 0 {
            if let Err(error) = wait(py, self.over()) {
                raised = Err(error);
            }
        }
        raised
    }
}

/// Ranges that the program has vouched for until it takes them back.
#[derive(Debug, Default)]
pub(crate) struct Registered(Mutex<BTreeMap<usize, usize>>);

impl Registered {
    /// Whether it is registered now: not if nothing is mapped at some of it, or it overlaps another one, or there
    /// are [`REGISTERED_MAX`].
    pub(crate) fn add(&self, address: usize, len: usize) -> bool {
        let Some(end) = address.checked_add(len) else {
            return false;
        };
        if len == 0 || !is_mapped(address, len) {
            return false;
        }
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ranges.range(..end).next_back();
        let overlaps = before.is_some_and(|(start, len)| start + len > address);
        if overlaps || ranges.len() >= REGISTERED_MAX {
            return false;
        }
        ranges.insert(address, len);
        true
    }

    /// Whether a range that begins there was registered.
    pub(crate) fn remove(&self, address: usize) -> bool {
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.remove(&address).is_some()
    }

    fn has(&self, address: usize, len: usize) -> bool {
        let ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ranges.range(..=address).next_back();
        before.is_some_and(|(start, range)| {
            (address - start)
                .checked_add(len)
                .is_some_and(|end| end <= *range)
        })
    }
}

/// Whether the process has something at each of these addresses.
fn is_mapped(address: usize, len: usize) -> bool {
    let first = address & !(page_size() - 1);
    let Some(len) = address.checked_add(len).map(|end| end - first) else {
        return false;
    };
    let pages = std::ptr::with_exposed_provenance_mut(first);
    // SAFETY: the system looks at its own tables of the process's memory, and begins to write back what is a
    // file's; no byte is touched, and addresses that are nobody's are its answer. Ends with the call.
    unsafe { msync(pages, len, MsyncFlags::ASYNC) }.is_ok()
}
