//! An opened device, owned by one core.

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

use rdma_core_sys::Unavailable;
use rustix::io::Errno;

use crate::error::OpenError;
use crate::memory::{MemoryName, Window, WindowInner};
use crate::provider::null::NullDevice;
use crate::provider::{DeviceEvent, DeviceInfo, RawDevice, real};
use crate::sim::Fabric;

/// Most windows of one context.
pub const WINDOWS_MAX: usize = 4096;

/// The names of this machine's devices.
///
/// # Errors
/// [`Unavailable`]: there is no RDMA here.
pub fn devices() -> Result<Vec<String>, Unavailable> {
    real::names()
}

/// An opened device with a protection domain of its own. Clones share it.
#[derive(Clone)]
pub struct Context {
    inner: Rc<Inner>,
}

struct Inner {
    device: Rc<RawDevice>,
    windows: RefCell<Vec<WindowSlot>>,
}

/// A place for a window; its generation counts the windows that it has had.
#[derive(Debug, Default)]
struct WindowSlot {
    generation: u32,
    window: Weak<WindowInner>,
}

impl Context {
    /// Opens a device of this machine.
    ///
    /// # Errors
    /// [`OpenError`]; with [`OpenError::Unavailable`], use another transport.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let found = real::Device::open(name)?;
        let opened = found.ok_or_else(|| OpenError::NoSuchDevice(name.to_owned()))?;
        let device = opened.map_err(OpenError::System)?;
        Ok(Self::of(RawDevice::Real(device)))
    }

    /// An adapter of a simulated fabric.
    ///
    /// # Errors
    /// [`OpenError::NoSuchDevice`].
    pub fn simulated(fabric: &Fabric, device: usize) -> Result<Self, OpenError> {
        let found = fabric.device(device);
        let device = found.ok_or_else(|| OpenError::NoSuchDevice(format!("sim{device}")))?;
        Ok(Self::of(RawDevice::Sim(device)))
    }

    /// A device that completes every request at once and moves nothing: for measuring what
    /// everything but the adapter costs.
    #[must_use]
    pub fn null() -> Self {
        Self::of(RawDevice::Null(NullDevice))
    }

    fn of(device: RawDevice) -> Self {
        Self {
            inner: Rc::new(Inner {
                device: Rc::new(device),
                windows: RefCell::default(),
            }),
        }
    }

    /// What the device and its port are now.
    ///
    /// # Errors
    /// The system's.
    pub fn info(&self) -> Result<DeviceInfo, Errno> {
        self.inner.device.info()
    }

    /// The next thing that happened to the device, if any. Does not wait.
    #[must_use]
    pub fn next_event(&self) -> Option<DeviceEvent> {
        self.inner.device.next_event()
    }

    pub(crate) fn device(&self) -> &Rc<RawDevice> {
        &self.inner.device
    }

    /// Lists a window, so that its name finds it.
    pub(crate) fn list(&self, window: &Rc<WindowInner>) -> Option<MemoryName> {
        let mut slots = self.inner.windows.borrow_mut();
        let free = slots
            .iter()
            .position(|slot| slot.window.strong_count() == 0);
        let index = free.unwrap_or(slots.len());
        if index == slots.len() {
            if index >= WINDOWS_MAX {
                return None;
            }
            slots.push(WindowSlot::default());
        }
        let slot = &mut slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.window = Rc::downgrade(window);
        Some(MemoryName {
            index: u32::try_from(index).expect("bounded by WINDOWS_MAX"),
            generation: slot.generation,
        })
    }

    /// The window of this name, unless its memory is registered no more.
    #[must_use]
    pub fn window(&self, name: MemoryName) -> Option<Window> {
        let slots = self.inner.windows.borrow();
        let slot = slots.get(name.index as usize)?;
        let inner = slot.window.upgrade()?;
        (slot.generation == name.generation).then(|| Window::of(inner))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?})", self.inner.device)
    }
}
