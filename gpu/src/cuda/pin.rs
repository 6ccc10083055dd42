//! Memory of the host that the driver has pinned.
//!
//! The driver pins a range once, for all devices of the process, and refuses to do so again. A chunk
//! belongs to one core, so that what is pinned is known to that core's thread, and shared by all
//! devices that it has opened.

use std::cell::RefCell;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::rc::{Rc, Weak};

use lunette_gpu_proto::fault::Fault;

use super::context::{Hold, Inner};
use super::library::check;

/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const REGISTER_PORTABLE_MAPPED: c_uint = 1 | 2;

thread_local! {
    /// What this thread's devices have pinned, by first byte.
    static PINNED: RefCell<Vec<Weak<Registration>>> = const { RefCell::new(Vec::new()) };
}

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
    pub(crate) unsafe fn pin(self, start: usize, len: usize) -> Result<Registration, Fault> {
        let library = self.0.enter()?;
        let place: *mut c_void = ptr::with_exposed_provenance_mut(start);
        // SAFETY: passed on from the caller.
        let code = unsafe { (library.cuMemHostRegister_v2)(place, len, REGISTER_PORTABLE_MAPPED) };
        check(code)?;
        Ok(Registration {
            hold: self.0,
            start,
        })
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

    /// What this thread has pinned at this address.
    pub(super) fn find(start: usize) -> Option<Rc<Self>> {
        PINNED.with_borrow(|pinned| {
            let live = pinned.iter().filter_map(Weak::upgrade);
            live.into_iter().find(|one| one.start == start)
        })
    }

    /// Makes it known to this thread.
    pub(super) fn share(self) -> Rc<Self> {
        let shared = Rc::new(self);
        PINNED.with_borrow_mut(|pinned| {
            pinned.retain(|one| one.strong_count() > 0);
            pinned.push(Rc::downgrade(&shared));
        });
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
    _registration: Rc<Registration>,
    device_address: u64,
}

impl Pin {
    pub(super) fn of(registration: Rc<Registration>, context: &Inner) -> Result<Self, Fault> {
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
