//! An opened device, owned by one core.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};

use lunette_runtime::OpError;
use lunette_runtime::arena::ChunkHandle;
use rdma_core_sys::Unavailable;
use rustix::io::Errno;

use crate::error::{OpenError, SetupError};
use crate::events::Events;
use crate::memory::{MemoryName, RegisteredChunk, Window, WindowInner};
use crate::provider::null::NullDevice;
use crate::provider::{Calls, DeviceEvent, DeviceInfo, RawDevice, real};
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
    events: Rc<Events>,
    windows: RefCell<Vec<WindowSlot>>,
    /// The chunks that are registered as a whole.
    chunks: RefCell<Vec<Weak<RegisteredChunk>>>,
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
        Self::open_with(name, Calls::default())
    }

    /// As [`Context::open`], with these calls of libibverbs.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(name: &str, calls: Calls) -> Result<Self, OpenError> {
        let found = real::Device::open(name, calls)?;
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
        let device = Rc::new(device);
        Self {
            inner: Rc::new(Inner {
                events: Events::new(Rc::clone(&device)),
                device,
                windows: RefCell::default(),
                chunks: RefCell::default(),
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

    /// The next thing that happened to the device, if any. Does not wait. What happened to one
    /// queue or queue pair is told there instead: see [`QueuePair::cause`](crate::QueuePair::cause).
    #[must_use]
    pub fn next_event(&self) -> Option<DeviceEvent> {
        self.inner.events.next()
    }

    /// Waits for the next thing that happens to the device, asleep if there is nothing else to do.
    /// Each is told to one caller; of those that nobody asks for, the last
    /// [`EVENTS_KEPT_MAX`](crate::events::EVENTS_KEPT_MAX) are kept. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// The system's, when the device's descriptor cannot be watched ([`Context::next_event`] works
    /// then); `ENODEV` when the device is lost and that has been told.
    ///
    /// # Panics
    /// Outside a runtime.
    pub async fn event(&self) -> Result<DeviceEvent, OpError> {
        let events = &self.inner.events;
        events.watch().map_err(OpError::Os)?;
        poll_fn(|cx| events.poll_next(cx)).await
    }

    pub(crate) fn events(&self) -> &Rc<Events> {
        &self.inner.events
    }

    pub(crate) fn device(&self) -> &Rc<RawDevice> {
        &self.inner.device
    }

    pub(crate) fn is_iwarp(&self) -> Result<bool, SetupError> {
        let info = self.info().map_err(SetupError::Refused)?;
        Ok(info.is_iwarp)
    }

    /// The registration of a whole chunk: that of earlier slabs, else a new one.
    pub(crate) fn register_chunk(&self, chunk: &ChunkHandle) -> Result<Rc<RegisteredChunk>, Errno> {
        let mut chunks = self.inner.chunks.borrow_mut();
        chunks.retain(|known| known.strong_count() > 0);
        let mut known = chunks.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.find(|known| known.chunk() == chunk) {
            return Ok(known);
        }
        let made = Rc::new(RegisteredChunk::new(self.device(), chunk.clone())?);
        chunks.push(Rc::downgrade(&made));
        Ok(made)
    }

    /// Chunks that are registered as a whole, for slabs that lie in them.
    #[must_use]
    pub fn registered_chunks(&self) -> usize {
        let chunks = self.inner.chunks.borrow();
        chunks
            .iter()
            .filter(|known| known.strong_count() > 0)
            .count()
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
