//! Memory of the host that the driver has pinned.
//!
//! The driver pins a range once, for all devices of the process, and refuses to do so again. So what is
//! pinned is known to all cores of the process, and shared by all devices that they have opened.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lunette_gpu_proto::fault::Fault;

use super::context::{Hold, Inner};
use super::library::check;

/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const REGISTER_PORTABLE_MAPPED: c_uint = 1 | 2;
/// `CU_MEMHOSTREGISTER_READ_ONLY`: memory that is mapped for reading is refused else.
const REGISTER_READ_ONLY: c_uint = 8;

/// What is pinned in this process.
static PINNED: Mutex<Vec<Weak<Registration>>> = Mutex::new(Vec::new());

/// Pins memory of the host, on whatever thread.
#[derive(Debug)]
pub(crate) struct Pinner(Hold);

impl Pinner {
    pub(super) const fn new(hold: Hold) -> Self {
        Self(hold)
    }

    /// # Safety
    /// The range, whose provenance is exposed, is memory of this process until the result is dropped.
    /// (Where it is none already, the driver refuses.)
    pub(crate) unsafe fn pin(
        self,
        start: usize,
        len: usize,
        is_read_only: bool,
    ) -> Result<Arc<Registration>, Fault> {
        let library = self.0.enter()?;
        let more = if is_read_only { REGISTER_READ_ONLY } else { 0 };
        let place: *mut c_void = ptr::with_exposed_provenance_mut(start);
        // SAFETY: passed on from the caller.
        let code =
            unsafe { (library.cuMemHostRegister_v2)(place, len, REGISTER_PORTABLE_MAPPED | more) };
        check(code)?;
        let registration = Registration {
            hold: self.0,
            start,
        };
        Ok(registration.share())
    }
}

/// A pinned range. Any thread may end it.
#[derive(Debug)]
pub(crate) struct Registration {
    // Goes after the registration.
    hold: Hold,
    start: usize,
}

impl Registration {
    fn place(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.start)
    }

    /// What is pinned at this address.
    pub(super) fn find(start: usize) -> Option<Arc<Self>> {
        let pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<_> = pinned.iter().filter_map(Weak::upgrade).collect();
        // What ends here unlocked is unpinned here.
        drop(pinned);
        live.into_iter().find(|one| one.start == start)
    }

    /// Makes it known to others.
    fn share(self) -> Arc<Self> {
        let shared = Arc::new(self);
        let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
        pinned.retain(|one| one.strong_count() > 0);
        pinned.push(Arc::downgrade(&shared));
        shared
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Ok(library) = self.hold.enter() else {
            return;
        };
        // SAFETY: registered once; operations that use it are over, for the streams of each device go
        // before its pins.
        let _unregistered = unsafe { (library.cuMemHostUnregister)(self.place()) };
    }
}

/// A pinned range, as one device has it.
#[derive(Debug)]
pub(crate) struct Pin {
    _registration: Arc<Registration>,
    device_address: u64,
}

impl Pin {
    pub(super) fn of(registration: Arc<Registration>, context: &Inner) -> Result<Self, Fault> {
        let library = context.enter()?;
        let mut device_address = 0;
        let get = library.cuMemHostGetDevicePointer_v2;
        // SAFETY: registered for all devices, and mapped; the result is ours to write.
        check(unsafe { get(&raw mut device_address, registration.place(), 0) })?;
        Ok(Self {
            _registration: registration,
            device_address,
        })
    }

    pub(crate) const fn device_address(&self) -> u64 {
        self.device_address
    }
}
