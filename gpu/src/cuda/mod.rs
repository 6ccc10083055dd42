//! The provider of real devices.
//!
//! A context is a device's primary one, which everything in the process shares, a serving engine
//! included. Calls make it current on their thread first, for a core's thread may serve several
//! devices.

mod context;
mod library;
mod meeting;
mod memory;
mod pin;
mod stream;

use std::path::Path;
use std::sync::OnceLock;

pub(crate) use context::Context;
use library::Library;
pub use meeting::{MEETINGS, meeting_stream};
pub(crate) use memory::Memory;
pub(crate) use pin::{Pin, Pinner, Registration};
pub(crate) use stream::{Event, Stream};

use crate::error::{OpenError, Unavailable};

/// The CUDA driver of this process, which works.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    library: &'static Library,
    devices: usize,
}

impl PartialEq for Driver {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.library, other.library)
    }
}

impl Eq for Driver {}

/// Memory of a device, found by an address in it.
#[derive(Clone, Copy, Debug)]
pub struct Located {
    /// The driver of that device.
    pub driver: Driver,
    /// The device's number, for [`Device::open_with`](crate::Device::open_with).
    pub device: usize,
    /// First byte of the allocation in which the address lies.
    pub base: u64,
    /// Length of the allocation in bytes.
    pub len_bytes: u64,
}

/// The driver of this machine, started or not, where there is one.
fn loaded() -> Option<&'static Library> {
    static LOADED: OnceLock<Option<Library>> = OnceLock::new();
    LOADED.get_or_init(|| Library::load().ok()).as_ref()
}

/// Whether this process uses the driver of this machine. Then some of its addresses are the driver's, mapped for nobody:
/// of memory that was a device's and is given back, too.
#[must_use]
pub fn is_in_use() -> bool {
    loaded().is_some_and(Library::is_started)
}

/// As [`Driver::locate`], by the driver of this machine, if this process uses it: the driver is not started for that, for
/// nobody has memory of a device before somebody has. Where there is no driver that is remembered, and costs nothing.
///
/// It may be called by any thread, and leaves that thread's current context as it is.
#[must_use]
pub fn locate(address: u64) -> Option<Located> {
    loaded()?.place_of(address)?;
    // Somebody has started it, so this does not take long.
    Driver::probe().ok()?.locate(address)
}

impl Driver {
    /// Looks for the driver, once per process.
    ///
    /// # Errors
    /// [`Unavailable`], the same at every call: why there is no GPU here.
    pub fn probe() -> Result<Self, Unavailable> {
        static FOUND: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        FOUND
            .get_or_init(|| Library::open().and_then(Self::of))
            .clone()
    }

    /// The driver of this file, where the loader does not find it by itself: in a container, say. It
    /// stays in the process.
    ///
    /// # Errors
    /// As [`Driver::probe`].
    pub fn probe_at(path: &Path) -> Result<Self, Unavailable> {
        Library::open_at(path).and_then(Self::of)
    }

    /// The memory of a device of this driver in which an address of this process lies: plain memory of the device, which
    /// the host must not touch. `None` of all other memory.
    #[must_use]
    pub fn locate(&self, address: u64) -> Option<Located> {
        let (device, base, len_bytes) = self.library.place_of(address)?;
        Some(Located {
            driver: *self,
            device,
            base,
            len_bytes,
        })
    }

    fn of(library: Library) -> Result<Self, Unavailable> {
        let mut count = 0;
        // SAFETY: the count is ours to write.
        let code = unsafe { (library.cuDeviceGetCount)(&raw mut count) };
        if code != 0 {
            return Err(Unavailable::Driver { code });
        }
        let devices = usize::try_from(count).unwrap_or(0);
        if devices == 0 {
            return Err(Unavailable::NoDevice);
        }
        Ok(Self {
            library: Box::leak(Box::new(library)),
            devices,
        })
    }

    /// Makes the context of a device, and what copies are summed by, and keeps both for the rest of the process, so that
    /// opening it is quick from then on. It blocks, so it is for the control thread:
    /// `control(move || driver.prepare(0))`.
    ///
    /// # Errors
    /// [`OpenError::NoSuchDevice`], [`OpenError::Refused`].
    pub fn prepare(self, index: usize) -> Result<(), OpenError> {
        let count = self.devices;
        if index >= count {
            return Err(OpenError::NoSuchDevice { index, count });
        }
        let context = Context::open(self, index).map_err(OpenError::Refused)?;
        context.keep();
        Ok(())
    }

    /// How many devices there are; at least one.
    #[must_use]
    pub const fn device_count(&self) -> usize {
        self.devices
    }
}
