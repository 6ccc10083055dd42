//! Memory of Python's that is lent to cores, by its address.
//!
//! A call ends when everything that it lent has been let go of, whatever became of what it asked, and memory is
//! unregistered then: no later access, by a core or a device, finds memory that the program has freed. Addresses are the program's to
//! vouch for, as those that it gives `ctypes`; that something is mapped there is looked at before they are lent.
//!
//! Whether an address is of a device, which no thread may touch, is asked of the driver: once for what is registered, else
//! at each call. Where no driver is, nobody is asked.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use libc::c_long;
use lunette_gpu::{Driver, EngineStream, is_in_use, locate};
use lunette_kvstore::{DeviceLent, LandedHandle, Lent, StoreHandle};
use lunette_runtime::arena::{ForeignMemory, SharedMemory};
use lunette_transfer::engine::ALLOCATIONS_MAX;
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

/// Whose memory there is at an address.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Host,
    Device(Driver, usize),
}

impl Whose {
    /// `None` if nothing is mapped at some of so many bytes, or a device has memory at the first of them, and not at
    /// all.
    fn find(address: usize, len: usize) -> Option<Self> {
        let Some(found) = locate(address as u64) else {
            return is_hosts(address, len).then_some(Self::Host);
        };
        let (driver, device) = (found.driver, found.device);
        let (mut at, end) = (address as u64, (address as u64).checked_add(len as u64)?);
        // An engine's allocator may have made it of several allocations side by side.
        while at < end {
            let here = driver.locate(at).filter(|here| here.device == device)?;
            at = here.base + here.len_bytes;
        }
        Some(Self::Device(driver, device))
    }
}

/// Streams of the program, live ones of the device whose memory goes along, by their handles.
pub(crate) fn streams(handles: &[usize]) -> Arc<[EngineStream]> {
    let stream = |handle: &usize| {
        // SAFETY: the program vouches for the stream as for the memory that goes along: it lives until the call, or
        // the question of a queue, has ended, and with it what waits for it.
        unsafe { EngineStream::from_raw(*handle) }
    };
    handles.iter().map(stream).collect()
}

/// A range that is lent in the parts in which it is registered.
#[derive(Debug)]
pub(crate) enum LentParts {
    Host(SharedMemory),
    Device(Vec<DeviceLent>),
}

/// Whether an address is of a device, so that no thread may touch what is there.
#[pyfunction]
pub(crate) fn is_of_device(address: usize) -> bool {
    locate(address as u64).is_some()
}

impl Loans {
    /// `len` bytes of the host's at `address`; `None` if nothing is mapped at some of them, there are none, or they are a
    /// device's.
    pub(crate) fn lend(&self, (address, len): (usize, usize)) -> Option<SharedMemory> {
        match Whose::find(address, len)? {
            Whose::Host => self.lend_host((address, len)),
            Whose::Device(..) => None,
        }
    }

    /// `len` bytes at `address`, of the host's or of a device's, whose copies come after what streams of the program have
    /// to do; `None` if nothing is mapped at some of them, or there are none. What is registered has been looked at
    /// before.
    pub(crate) fn lend_any(
        &self,
        registered: &Registered,
        (address, len): (usize, usize),
        after: &Arc<[EngineStream]>,
    ) -> Option<Lent> {
        let whose = registered.whose(address, len);
        match whose.or_else(|| Whose::find(address, len))? {
            Whose::Host => Some(Lent::whole(&self.lend_host((address, len))?)),
            Whose::Device(..) if len == 0 => None,
            Whose::Device(driver, device) => {
                let lent = self.lend_device((driver, device), (address, len), after);
                Some(Lent::device(lent))
            }
        }
    }

    /// As [`lend_any`](Self::lend_any), of a device's each allocation by itself; `None` also if there are more than
    /// [`ALLOCATIONS_MAX`] of them.
    pub(crate) fn lend_parts(
        &self,
        (address, len): (usize, usize),
        after: &Arc<[EngineStream]>,
    ) -> Option<LentParts> {
        let (driver, device) = match Whose::find(address, len)? {
            Whose::Host => return Some(LentParts::Host(self.lend_host((address, len))?)),
            Whose::Device(driver, device) => (driver, device),
        };
        let (mut at, end) = (address, address.checked_add(len)?);
        let mut parts = Vec::new();
        while at < end {
            let here = driver.locate(at as u64)?;
            let ends = usize::try_from(here.base + here.len_bytes).ok()?.min(end);
            if parts.len() == ALLOCATIONS_MAX {
                return None;
            }
            parts.push(self.lend_device((driver, device), (at, ends - at), after));
            at = ends;
        }
        Some(LentParts::Device(parts))
    }

    fn lend_device(
        &self,
        (driver, device): (Driver, usize),
        (address, len_bytes): (usize, usize),
        after: &Arc<[EngineStream]>,
    ) -> DeviceLent {
        DeviceLent {
            driver,
            device,
            address: address as u64,
            len_bytes,
            after: Arc::clone(after),
            keeper: Arc::new(self.loan()),
        }
    }

    fn loan(&self) -> Loan {
        self.0.loans.fetch_add(1, Ordering::Relaxed);
        Loan(Arc::clone(&self.0))
    }

    /// Memory of bytes that nobody has been shown yet, all of which somebody writes before they are.
    ///
    /// # Panics
    /// If there are none.
    pub(crate) fn lend_unseen(&self, (first, len): (*mut u8, usize)) -> SharedMemory {
        let range = (first.expose_provenance(), len);
        self.lend_host(range).expect("there are some")
    }

    fn lend_host(&self, (address, len): (usize, usize)) -> Option<SharedMemory> {
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address))?;
        if len == 0 {
            return None;
        }
        let loan = Box::new(self.loan());
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

/// Memory into which owners' adapters write, and what is lent to them for that.
#[derive(Debug)]
pub(crate) struct Landed {
    landing: LandedHandle,
    loans: Loans,
}

impl Landed {
    /// Has each core of a store let its owners' adapters write there; `None` if there are no adapters, or too much is
    /// landed already.
    ///
    /// # Errors
    /// What a handler of a signal raised: nothing is landed then.
    pub(crate) fn land(
        py: Python<'_>,
        store: &StoreHandle,
        range: (usize, usize),
    ) -> PyResult<Option<Self>> {
        let loans = Loans::default();
        let Some(memory) = loans.lend(range) else {
            return Ok(None);
        };
        let landing = wait(py, store.land(&Lent::whole(&memory)));
        drop(memory);
        let landing = match landing {
            Ok(Ok(landing)) if landing.adapters() > 0 => return Ok(Some(Self { landing, loans })),
            Ok(unused) => {
                // It is what the memory is kept for.
                drop(unused);
                Ok(None)
            }
            Err(raised) => Err(raised),
        };
        loans.ended(py)?;
        landing
    }

    /// Waits until nobody writes there any more.
    ///
    /// # Errors
    /// What a handler of a signal raised meanwhile: after that end.
    pub(crate) fn end(self, py: Python<'_>) -> PyResult<()> {
        drop(self.landing);
        self.loans.ended(py)
    }
}

/// A range that the program has vouched for.
#[derive(Debug)]
struct Range {
    len: usize,
    whose: Whose,
    landed: Option<Landed>,
}

/// Ranges that the program has vouched for until it takes them back.
#[derive(Debug, Default)]
pub(crate) struct Registered(Mutex<BTreeMap<usize, Range>>);

impl Registered {
    /// Whether it is registered now, of the host or of a device: not if nothing is mapped at some of it, or it overlaps another one, or there
    /// are [`REGISTERED_MAX`].
    pub(crate) fn add(&self, address: usize, len: usize) -> bool {
        let Some(end) = address.checked_add(len) else {
            return false;
        };
        if len == 0 {
            return false;
        }
        let Some(whose) = Whose::find(address, len) else {
            return false;
        };
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ranges.range(..end).next_back();
        let overlaps = before.is_some_and(|(start, range)| start + range.len > address);
        if overlaps || ranges.len() >= REGISTERED_MAX {
            return false;
        }
        let landed = None;
        ranges.insert(address, Range { len, whose, landed });
        true
    }

    /// A range that begins there is landed too; the landing comes back if there is none, or one that is.
    pub(crate) fn land(&self, address: usize, landed: Landed) -> Option<Landed> {
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ranges.get_mut(&address) {
            Some(range @ Range { landed: None, .. }) => {
                range.landed = Some(landed);
                None
            }
            _ => Some(landed),
        }
    }

    /// If a range that begins there was registered: its landing, which is to be ended, if it has one.
    pub(crate) fn remove(&self, address: usize) -> Option<Option<Landed>> {
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.remove(&address).map(|range| range.landed)
    }

    /// Whose memory so many bytes are, if they are registered.
    fn whose(&self, address: usize, len: usize) -> Option<Whose> {
        let ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, range) = ranges.range(..=address).next_back()?;
        let end = (address - start).checked_add(len)?;
        (end <= range.len).then_some(range.whose)
    }
}

/// Whether all of these addresses are memory that threads of this process may read.
fn is_hosts(address: usize, len: usize) -> bool {
    let last = address.saturating_add(len).saturating_sub(1);
    // What drivers have reserved is mapped, for nobody.
    is_mapped(address, len) && (!is_in_use() || (is_readable(address) && is_readable(last)))
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

/// Whether threads may read what is at an address. The system is asked to read eight bytes there, of a question that it
/// refuses: with another reason if it could not.
fn is_readable(address: usize) -> bool {
    /// Of no such question.
    const NO_HOW: c_long = !0;
    let word = std::ptr::with_exposed_provenance::<u64>(address & !7);
    let (nothing, len) = (std::ptr::null_mut::<u64>(), size_of::<u64>());
    // SAFETY: the system reads eight bytes, of one page, if that may be read, writes none, and changes nothing, as there is
    // no such question. Ends with the call.
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_HOW, word, nothing, len) };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
