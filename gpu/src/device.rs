//! A device as one core uses it.
//!
//! ```text
//!   every turn     for each stream with operations in flight: ask for the oldest one's event
//!   before sleep   put a call to the host behind what is in flight ─▶ ask once more ─▶ sleep
//!   the call       wakes the core, which asks
//! ```
//!
//! The order before sleep is what loses no completion. A context that has died calls nobody, so a
//! task looks after [`WATCH_PERIOD`] as long as anything is in flight.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use lunette_gpu_proto::fault::Fault;
use lunette_gpu_proto::planner::Planner;
use lunette_runtime::arena::{ChunkHandle, View};
use lunette_runtime::{
    CoreWaker, Signal, Source, SourceGuard, add_source, control, core_waker, spawn_local, time,
};

use crate::crowd::Looks;
use crate::cuda::{self, Driver};
use crate::error::{OpenError, SetupError};
use crate::fake::FakeMachine;
use crate::listing::{Listing, RegionName};
use crate::pins::{Pending, Pinnable, Pins};
use crate::provider::{DeviceInfo, RawContext};
use crate::region::{DeviceRegion, Origin, PoolMemory};
use crate::stream::StreamCore;

/// Most streams of one opening of a device.
pub const STREAMS_MAX: usize = 64;
/// How often a core looks for the end of its context while operations are in flight and it sleeps.
pub const WATCH_PERIOD: Duration = Duration::from_millis(50);
/// How often is looked for a pin that somebody else waits for.
const PIN_PERIOD: Duration = Duration::from_millis(1);
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`: another core is about to pin it.
const ALREADY_REGISTERED: u32 = 712;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;
/// Device memory for lists of pages.
const SCRATCH_BYTES: u64 = 4 << 20;

/// What a device's streams have done on this core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Operations that ended.
    pub operations: u64,
    /// Times that an event was asked for.
    pub queries: u64,
    /// Times that the core was let sleep with operations in flight.
    pub parks: u64,
    /// Operations whose host memory the device could not pin: correct, and slow.
    pub unpinned: u64,
}

/// A device, opened by the current core. Clones share it; everything made of it stays on this core.
#[derive(Clone)]
pub struct Device {
    shared: Rc<Shared>,
}

/// Polled as long as somebody holds it.
struct Shared {
    // The source goes before what it polls.
    _guard: SourceGuard,
    inner: Rc<Inner>,
}

pub(crate) struct Inner {
    // Streams go first: they end what is in flight, which uses all the rest.
    streams: RefCell<Vec<Rc<StreamCore>>>,
    scratch: RefCell<Option<Rc<PoolMemory>>>,
    pins: RefCell<Pins>,
    listing: Rc<Listing>,
    planner: Cell<Planner>,
    looks: Looks,
    pub(crate) counts: Cell<DeviceCounts>,
    waker: CoreWaker,
    /// Raised when something is in flight that the watch must know of.
    busy: Rc<Signal>,
    info: DeviceInfo,
    context: Rc<RawContext>,
}

impl Device {
    /// Opens the device of this number of the driver of this machine.
    ///
    /// The first opening of a device in a process blocks, for some hundred milliseconds: prepare it
    /// on another thread ([`Driver::prepare`]).
    ///
    /// # Errors
    /// [`OpenError::Unavailable`] says why there is no GPU here; nothing else is the usual case on a
    /// machine without one.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open(index: usize) -> Result<Self, OpenError> {
        Self::open_with(Driver::probe()?, index)
    }

    /// Opens a device of this driver. It blocks as [`Device::open`] does.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn open_with(driver: Driver, index: usize) -> Result<Self, OpenError> {
        let count = driver.device_count();
        if index >= count {
            return Err(OpenError::NoSuchDevice { index, count });
        }
        let context = cuda::Context::open(driver, index).map_err(OpenError::Refused)?;
        Self::of(RawContext::Cuda(context))
    }

    /// Opens a fake device. As in another process, what is made of one opening cannot be used with
    /// another one.
    ///
    /// # Errors
    /// [`OpenError::NoSuchDevice`], [`OpenError::TooManySources`].
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn fake(machine: &FakeMachine, index: usize) -> Result<Self, OpenError> {
        let count = machine.device_count();
        if index >= count {
            return Err(OpenError::NoSuchDevice { index, count });
        }
        Self::of(RawContext::Fake(machine.open(index)))
    }

    fn of(context: RawContext) -> Result<Self, OpenError> {
        let busy: Rc<Signal> = Rc::default();
        let inner = Rc::new(Inner {
            streams: RefCell::default(),
            scratch: RefCell::default(),
            pins: RefCell::default(),
            listing: Rc::default(),
            planner: Cell::default(),
            looks: Looks::default(),
            counts: Cell::default(),
            waker: core_waker(),
            busy: Rc::clone(&busy),
            info: context.info(),
            context: Rc::new(context),
        });
        let source = Polled {
            inner: Rc::clone(&inner),
        };
        let guard = add_source(source).map_err(|_| OpenError::TooManySources)?;
        drop(spawn_local(watch(Rc::downgrade(&inner), busy)));
        Ok(Self {
            shared: Rc::new(Shared {
                _guard: guard,
                inner,
            }),
        })
    }

    /// What it is and can do.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.inner().info()
    }

    /// Tells it from other openings of devices on this core, as long as something that was made of it is there.
    #[must_use]
    pub fn opening(&self) -> usize {
        Rc::as_ptr(self.inner().context()).addr()
    }

    /// What its streams have done on this core.
    #[must_use]
    pub fn counts(&self) -> DeviceCounts {
        self.inner().counts.get()
    }

    /// The region of this name, while its memory is there.
    #[must_use]
    pub fn region(&self, name: RegionName) -> Option<DeviceRegion> {
        DeviceRegion::named(self.inner(), name)
    }

    /// Pins a whole chunk of an arena for this device, on the control thread: this core goes on
    /// meanwhile, with slower copies. It takes about a millisecond for 64 MiB that have been
    /// touched. A copy pins its chunk by itself when it is the first one to use it, and then the core
    /// waits, so it is better done at start.
    ///
    /// # Errors
    /// [`SetupError::Refused`]: the limit of locked memory, most often. Copies work without, slower.
    pub async fn pin(&self, chunk: &ChunkHandle) -> Result<(), SetupError> {
        self.pin_whole(&Pinnable::Chunk(chunk.clone())).await
    }

    /// Pins memory of another process, or mapped like it, for copies from it, as [`pin`](Self::pin) does chunks; memory that
    /// has not been touched takes longer, half a second for a GiB. Copies do not pin it by themselves. It is unpinned some
    /// time after nobody else has the view.
    ///
    /// # Errors
    /// As of [`pin`](Self::pin), also where a device cannot have memory for reading only.
    pub async fn pin_view(&self, view: &Arc<View>) -> Result<(), SetupError> {
        let what = Pinnable::View(Arc::clone(view));
        self.inner().pins.borrow_mut().let_go();
        if self.inner().pins.borrow().is_refused(&what) {
            return Err(SetupError::Refused(Fault::Unsupported(NOT_SUPPORTED)));
        }
        let pinned = self.pin_whole(&what).await;
        if let Err(error) = &pinned
            && *error != SetupError::Refused(Fault::Code(ALREADY_REGISTERED))
        {
            tracing::warn!(%error, "memory of another process is not pinned: it is copied twice");
            self.inner().pins.borrow_mut().refuse(&what);
        }
        pinned
    }

    /// Whether a view [is pinned](Self::pin_view) by now.
    #[must_use]
    pub fn is_pinned(&self, view: &Arc<View>) -> bool {
        let what = Pinnable::View(Arc::clone(view));
        self.inner().pins.borrow().find(&what).is_some()
    }

    /// Whether it is worth asking for a view to be pinned: that was neither done, nor begun, nor refused.
    #[must_use]
    pub fn may_pin(&self, view: &Arc<View>) -> bool {
        let what = Pinnable::View(Arc::clone(view));
        let pins = self.inner().pins.borrow();
        !pins.is_pending(&what) && !pins.is_refused(&what) && pins.find(&what).is_none()
    }

    async fn pin_whole(&self, what: &Pinnable) -> Result<(), SetupError> {
        let inner = self.inner();
        while inner.pins.borrow().is_pending(what) {
            time::sleep(PIN_PERIOD).await;
        }
        let (start, len) = what.exposed();
        let is_known = inner.pins.borrow().find(what).is_some();
        let is_quick = is_known || inner.context.find_pin(start).is_some();
        if !is_quick && let Some(pinner) = inner.context.pinner()? {
            let pending = Pending::new(inner, what);
            let is_read_only = what.is_read_only();
            // SAFETY: `pending` holds the memory until the pin is here. Should this future go before,
            // so may the memory: the driver refuses what is no memory, and a pin that nobody takes
            // ends at once, without ever having been used.
            let pinned = control(move || unsafe { pinner.pin(start, len, is_read_only) }).await;
            drop(pending);
            if let Ok(Ok(registration)) = pinned {
                let pin = inner.context.adopt(registration)?;
                inner.pins.borrow_mut().add(pin, what);
            }
        }
        // Pinned by now; or there was no thread for it, or another device was faster: once more, here.
        inner.pin(what).map(|_| ()).map_err(SetupError::from)
    }

    /// How copies of pages are to be made from now on.
    pub fn set_planner(&self, planner: Planner) {
        self.inner().planner.set(planner);
    }

    /// How copies of pages are made.
    #[must_use]
    pub fn planner(&self) -> Planner {
        self.inner().planner.get()
    }

    pub(crate) fn inner(&self) -> &Rc<Inner> {
        &self.shared.inner
    }
}

impl Inner {
    pub(crate) const fn context(&self) -> &Rc<RawContext> {
        &self.context
    }

    pub(crate) const fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(crate) const fn listing(&self) -> &Rc<Listing> {
        &self.listing
    }

    pub(crate) fn planner(&self) -> Planner {
        self.planner.get()
    }

    pub(crate) const fn looks(&self) -> &Looks {
        &self.looks
    }

    pub(crate) const fn pins(&self) -> &RefCell<Pins> {
        &self.pins
    }

    pub(crate) fn add_stream(&self, stream: Rc<StreamCore>) -> Result<(), SetupError> {
        let mut streams = self.streams.borrow_mut();
        if streams.len() >= STREAMS_MAX {
            return Err(SetupError::TooMany);
        }
        streams.push(stream);
        Ok(())
    }

    pub(crate) const fn waker(&self) -> &CoreWaker {
        &self.waker
    }

    /// Something is in flight.
    pub(crate) fn is_busy(&self) {
        self.busy.raise();
    }

    /// By which address the device reaches the start of what is to be pinned, when it is first asked for.
    pub(crate) fn pin(&self, what: &Pinnable) -> Result<u64, Fault> {
        if let Some(address) = self.pins.borrow().find(what) {
            return Ok(address);
        }
        let (start, len) = what.exposed();
        // SAFETY: the handle beside the pin keeps the memory mapped for longer than it is pinned.
        let pin = unsafe { self.context.pin(start, len, what.is_read_only()) }?;
        let address = pin.device_address();
        self.pins.borrow_mut().add(pin, what);
        Ok(address)
    }

    /// Pins what an operation uses, if the system lets it, and that does not take long. A refusal is remembered.
    pub(crate) fn try_pin(&self, what: &Pinnable) -> bool {
        let pins = self.pins.borrow();
        if pins.find(what).is_some() {
            return true;
        }
        let is_slow = matches!(what, Pinnable::View(_));
        if is_slow || pins.is_pending(what) || pins.is_refused(what) {
            return false;
        }
        drop(pins);
        let pinned = self.pin(what);
        if let Err(fault) = pinned
            && !fault.is_sticky()
        {
            tracing::warn!(%fault, "a chunk is not pinned: copies from and to it are slow");
            self.pins.borrow_mut().refuse(what);
        }
        pinned.is_ok()
    }

    /// Device memory for a list of pages.
    pub(crate) fn scratch(&self, len: u64) -> Result<DeviceRegion, SetupError> {
        let known = self.scratch.borrow().clone();
        let pool = match known {
            Some(pool) => pool,
            None => {
                let memory = self.context.alloc(SCRATCH_BYTES)?;
                let region = DeviceRegion::of(self, Origin::Memory(memory), None, SCRATCH_BYTES)?;
                let pool = PoolMemory::new(region)?;
                self.scratch.replace(Some(Rc::clone(&pool)));
                pool
            }
        };
        pool.carve(self, len)
    }

    fn poll(&self, budget: usize) -> usize {
        let (mut ended, mut index) = (0, 0);
        loop {
            // What ends may drop what its owner has put there: nothing is borrowed meanwhile.
            let stream = self.streams.borrow().get(index).cloned();
            let Some(stream) = stream else {
                break;
            };
            ended += stream.reap(self, budget.saturating_sub(ended));
            index += 1;
        }
        // A stream that nobody holds goes when it is empty.
        let mut streams = self.streams.borrow_mut();
        streams.retain(|stream| !stream.is_over());
        ended
    }

    fn has_flights(&self) -> bool {
        let streams = self.streams.borrow();
        streams.iter().any(|stream| stream.has_flights())
    }

    /// Lets whoever the core sleeps for wake it. False where that could not be arranged.
    fn arm(&self) -> bool {
        let mut is_armed = true;
        for stream in self.streams.borrow().iter() {
            is_armed &= stream.arm(&self.waker);
        }
        is_armed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Before pins and memory.
        for stream in self.streams.take() {
            stream.finish();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody polls any more. Who waits is told, and the memory comes back.
        for stream in self.inner.streams.take() {
            stream.finish();
        }
        // Its watch ends.
        self.inner.busy.raise();
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        write!(f, "Device({} {})", info.name, info.index)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.context)
    }
}

/// What the core's loop holds.
struct Polled {
    inner: Rc<Inner>,
}

impl Source for Polled {
    fn poll(&mut self, budget: usize) -> usize {
        self.inner.poll(budget)
    }

    fn try_park(&mut self) -> bool {
        let inner = &self.inner;
        if !inner.has_flights() {
            return true;
        }
        if !inner.arm() || inner.poll(usize::MAX) > 0 {
            return false;
        }
        let mut counts = inner.counts.get();
        counts.parks += 1;
        inner.counts.set(counts);
        true
    }

    // A call that was asked for comes; an early one is one look too many.
    fn unpark(&mut self) {}
}

/// Wakes the core now and then while anything is in flight: the end of a context tells nobody.
async fn watch(device: Weak<Inner>, busy: Rc<Signal>) {
    loop {
        busy.raised().await;
        loop {
            time::sleep(WATCH_PERIOD).await;
            match device.upgrade() {
                None => return,
                Some(device) if !device.has_flights() => {
                    device.pins.borrow_mut().let_go();
                    break;
                }
                Some(_) => {}
            }
        }
    }
}
